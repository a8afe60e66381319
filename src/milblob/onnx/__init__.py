"""ML Programs to ONNX, in the manner of ONNXMLTools: parse, compile, convert.

    milblob.onnx.convert("Model.mlpackage", "model.onnx")  # refers into weight.bin; nothing is copied
    milblob.onnx.coverage("Model.mlpackage")               # {operation: count} of operations without a converter
    milblob.onnx.decoded("Model.mlpackage")                # {weight: why} of compressed weights without a form in ONNX

It needs onnx-ir, an extra: `onnx`. docs/onnx-operations.md lists the operations.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..extras import explained

if TYPE_CHECKING:
    from .compiling import compile
    from .containers import MilProgramContainer
    from .conversion import convert, convert_topology, coverage, decoded
    from .emit import ModelComponentContainer
    from .parse import parse_mil
    from .registry import register_converter, register_shape_calculator, supported, unregister
    from .topology import Operator, Scope, Topology, Variable
    from .weights import Weights

__all__ = [
    "MilProgramContainer", "ModelComponentContainer", "Operator", "Scope",
    "Topology", "Variable", "Weights", "compile",
    "convert", "convert_topology", "coverage", "decoded", "parse_mil", "register_converter",
    "register_shape_calculator", "supported", "unregister",
]  # fmt: skip

_MODULES = {
    name: module
    for module, names in {
        "compiling": ("compile",),
        "containers": ("MilProgramContainer",),
        "conversion": ("convert", "convert_topology", "coverage", "decoded"),
        "emit": ("ModelComponentContainer",),
        "parse": ("parse_mil",),
        "registry": ("register_converter", "register_shape_calculator", "supported", "unregister"),
        "topology": ("Operator", "Scope", "Topology", "Variable"),
        "weights": ("Weights",),
    }.items()
    for name in names
}


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
