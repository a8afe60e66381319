"""ML Programs through ONNXMLTools, which reads the older kinds of Core ML models and fails with these.

    model = milblob.onnxmltools.convert_coreml("Model.mlpackage")            # an onnx.ModelProto, of opset 15

    conversions, shapes = milblob.onnxmltools.functions("Model.mlpackage")   # for onnxmltools.convert_coreml itself
    onnxmltools.convert_coreml(
        spec, custom_conversion_functions=conversions, custom_shape_calculators=shapes, target_opset=15
    )

It needs onnxmltools and onnx-ir, and nothing else in milblob imports it. docs/onnx.md lists compatible versions.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..extras import explained

if TYPE_CHECKING:
    from .adapter import convert_coreml, functions
    from .imports import repair

__all__ = ["convert_coreml", "functions", "repair"]

_MODULES = {"convert_coreml": "adapter", "functions": "adapter", "repair": "imports"}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(f"{__name__}.{module}"), name)
    except ModuleNotFoundError as error:
        raise explained(error) from error


def __dir__() -> list[str]:
    return sorted(__all__)
