"""Element types and shapes of MIL in ONNX."""

from typing import Any

import onnx_ir as ir

from ..dtypes import DType
from ..errors import UnsupportedError
from ..program.types import StateType, TensorType, ValueType

_ONNX: dict[DType, ir.DataType] = {
    member: ir.DataType["FLOAT" if name == "FLOAT32" else "DOUBLE" if name == "FLOAT64" else name]
    for name, member in DType.__members__.items()
    if name not in ("UINT1", "UINT3", "UINT6")
}
# Three have no ONNX type. Their values fit in a byte.
_ONNX |= dict.fromkeys((DType.UINT1, DType.UINT3, DType.UINT6), ir.DataType.UINT8)

MAX_SIZE = (1 << 63) - 1
"""Of a dimension."""

FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE)
NARROW = (ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16)
"""Integers that many kernels of runtimes lack: computed as int32."""

_INTEGERS = [f"{sign}{nbits}" for nbits in (8, 16, 32, 64) for sign in ("INT", "UINT")]
NUMPY: dict[ir.DataType, Any] = {
    ir.DataType[name]: ir.DataType[name].numpy().type for name in ("FLOAT", "FLOAT16", "DOUBLE", "BOOL", *_INTEGERS)
}
"""The NumPy dtypes that a scalar may have."""

# The texts that MIL's `dtype` parameters have.
BY_TEXT: dict[str, ir.DataType] = {
    "fp16": ir.DataType.FLOAT16,
    "fp32": ir.DataType.FLOAT,
    "fp64": ir.DataType.DOUBLE,
    "float": ir.DataType.FLOAT,
    "bool": ir.DataType.BOOL,
    **{name.lower(): ir.DataType[name] for name in _INTEGERS},
}


def onnx_dtype(dtype: DType | int) -> ir.DataType:
    """Return the ONNX element type of a MIL one. Raises: UnsupportedError: a number that milblob does not know."""
    found = None if isinstance(dtype, int) else _ONNX.get(dtype)
    if found is None:
        raise UnsupportedError(f"element type: expected one that ONNX has, got {dtype}")
    return found


def tensor_type(declared: ValueType | None) -> TensorType:
    """Return the tensor type of a value: its own, or the one that a state wraps.

    Raises: UnsupportedError: a list, a tuple, a dictionary, or no type.
    """
    if isinstance(declared, StateType):
        declared = declared.wrapped
    if not isinstance(declared, TensorType):
        raise UnsupportedError(f"type: expected a tensor, got {declared}")
    return declared


def onnx_shape(declared: TensorType, name: str) -> ir.Shape | None:
    """Return the shape of a value; an open dimension is named after the value and its axis.

    Returns: None if not even the rank is known.
    Raises: UnsupportedError: a size that ONNX cannot hold.
    """
    if declared.rank < 0 or declared.variadic:
        return None
    if any(size is not None and size > MAX_SIZE for size in declared.shape):
        raise UnsupportedError(f"{name}: expected sizes below 2**63, as ONNX holds them, got {declared}")
    return ir.Shape([f"{name}_{axis}" if size is None else size for axis, size in enumerate(declared.shape)])
