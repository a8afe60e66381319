"""Names that newer versions of ONNXMLTools lack and its own Core ML module imports; installed only on request."""

import importlib
from typing import Any


def repair() -> bool:
    """Make `onnxmltools.convert.coreml` importable where it is not: in 1.14 to 1.16, at least.

    These import a function that they no longer have (onnxmltools#735, #776). It is put into
    `onnxmltools.convert.common.data_types`, as 1.13 had it; nothing else of that package is touched.
    `milblob.onnxmltools.convert_coreml` does not need this; `onnxmltools.convert_coreml` itself does.

    Returns:
        Whether something had to be added.

    Raises:
        ImportError: onnxmltools is not there, or does not import for another reason.
    """
    types = importlib.import_module("onnxmltools.convert.common.data_types")
    is_needed = not hasattr(types, "find_type_conversion")
    if is_needed:

        def find_type_conversion(source_type: Any, target_type: Any) -> str:
            """Return the operator that makes one type of another."""
            if isinstance(source_type, type(target_type)):
                return "identity"
            if isinstance(target_type, types.FloatTensorType):
                return "imageToFloatTensor"
            raise ValueError(f"type conversion: expected one to float or none, got {source_type} to {target_type}")

        types.find_type_conversion = find_type_conversion  # type: ignore[attr-defined,unused-ignore]
    importlib.import_module("onnxmltools.convert.coreml")
    return is_needed
