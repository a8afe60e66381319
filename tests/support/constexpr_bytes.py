"""Compressed weights by hand: Program bytes around one operation or a chain of them, parts as immediates."""

import numpy as np

import milblob
import reference
from dtype_values import tensor_value
from hostile_bytes import field, immediate, model, operation, program, tensor_type

FIELDS = {"FLOAT32": "floats", "INT32": "ints", "INT16": "ints", "UINT16": "ints", "STRING": "strings"}
MASKED = {"lut_to_sparse": "indices_mask", "sparse_blockwise_shift_scale": "data_mask"}


def code(dtype):
    """The number of a dtype in a Program."""
    return reference.DTYPES[dtype][1]


def value(dtype, array):
    """A Value with the elements of an array; sub-byte ones from an array of one byte each."""
    if dtype == "STRING":
        return immediate(2, array.shape, field(4, field(1, str(array))))
    if dtype in ("INT4", "UINT1", "UINT2", "UINT3", "UINT4", "UINT6"):
        packed = reference.pack_elements(
            [int(v) - (16 if dtype == "INT4" and v > 7 else 0) for v in array.reshape(-1)], dtype
        )
        return immediate(code(dtype), array.shape, reference.pack_tensor_value("bytes", packed))
    return immediate(code(dtype), array.shape, tensor_value(FIELDS.get(dtype, "bytes"), array, dtype))


def constexpr(kind, outputs, parts, as_attributes=False):
    """An Operation.

    Args:
        outputs: [(name, dtype, shape)].
        parts: key -> (dtype, array), or the name of another operation's output.
    """
    body = field(1, f"constexpr_{kind}")
    for key, part in parts.items():
        if not as_attributes:
            binding = field(1, part) if isinstance(part, str) else field(2, value(*part))
            body += field(2, field(1, key) + field(2, field(1, binding)))
    for name, dtype, shape in outputs:
        body += field(3, field(1, name) + field(2, tensor_type(code(dtype), shape)))
    for key, part in parts.items():
        if as_attributes:
            body += field(5, field(1, key) + field(2, value(*part)))
    return body


def open_weight(*operations, name="w"):
    """The Tensor of that name in a model of these operations."""
    return milblob.open(model(program(*operations)))[name]


def weight(kind, dtype, shape, as_attributes=False, /, **parts):
    """The Tensor `w` of one operation. A sparse-to-sparse one is followed by what spreads its values."""
    if kind not in MASKED:
        return open_weight(constexpr(kind, [("w", dtype, shape)], parts, as_attributes))
    count = parts["count"]
    del parts["count"]
    first = constexpr(kind, [("mask", "UINT1", shape), ("values", dtype, [count])], parts)
    return open_weight(
        first, constexpr("sparse_to_dense", [("w", dtype, shape)], {"nonzero_data": "values", "mask": "mask"})
    )


def sub_byte(rng, dtype, shape):
    """Random elements of a sub-byte dtype, zero-extended in uint8."""
    return rng.integers(0, 1 << reference.DTYPES[dtype][2], shape, np.uint8)


__all__ = ["code", "constexpr", "field", "open_weight", "operation", "sub_byte", "value", "weight"]
