"""The codes of version 2 of the `aicode` dialect: element types, attributes, operands.

The dialect has no public specification. Codes of elements and attributes were found by comparing bundles with the
output of Apple's library; operands have the names of its Python builders. docs/aimodel.md lists the codes that were
found.
"""

import re
from functools import lru_cache
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from ..dtypes import DType

DIALECT, DIALECT_VERSION = "aicode", 2

GRAPH, INVOKE, CONSTANT = "dataflow.graph", "dataflow.invoke", "primitive.constant"
CONTROL_FLOW = "controlflow."
"""Operations whose regions are parts of the graph around them; the regions of all others are decompositions."""


class Element(NamedTuple):
    """An element type."""

    text: str  # as Apple's library prints it
    nbits: int  # of an element; those below 8 are packed, the lowest bits first, across bytes
    dtype: DType | None  # its DType; None if MIL has none
    numpy: np.dtype[Any]  # of the array that is read: one byte for each element below 8 bits


def _elements() -> dict[int, Element]:
    rows = {
        4: ("i1", DType.BOOL), 5: ("f64", DType.FLOAT64), 6: ("f32", DType.FLOAT32), 7: ("f16", DType.FLOAT16),
        8: ("bf16", DType.BFLOAT16), 9: ("f8E5M2", DType.FLOAT8E5M2), 10: ("f8E4M3FN", DType.FLOAT8E4M3FN),
        17: ("si64", DType.INT64), 18: ("si32", DType.INT32), 19: ("si16", DType.INT16), 20: ("si8", DType.INT8),
        21: ("si4", DType.INT4), 23: ("ui64", DType.UINT64), 24: ("ui32", DType.UINT32), 25: ("ui16", DType.UINT16),
        26: ("ui8", DType.UINT8), 27: ("ui4", DType.UINT4), 28: ("ui2", DType.UINT2), 29: ("ui1", DType.UINT1),
        36: ("ui6", DType.UINT6), 37: ("ui3", DType.UINT3),
    }  # fmt: skip
    known = {code: Element(text, dtype.nbits, dtype, dtype.numpy) for code, (text, dtype) in rows.items()}
    return known | {
        12: Element("complex<f32>", 64, None, np.dtype(np.complex64)),
        22: Element("si2", 2, None, np.dtype(ml_dtypes.int2)),
        46: Element("f4E2M1FN", 4, None, np.dtype(ml_dtypes.float4_e2m1fn)),
        47: Element("f8E8M0FNU", 8, None, np.dtype(ml_dtypes.float8_e8m0fnu)),
    }


ELEMENTS = _elements()
NO_NUMPY = {13: "complex<f16>"}
"""Element types that NumPy lacks too."""

TENSOR, SPARSE_TENSOR, FUNCTION_TYPE, HANDLE, TOKEN = 2, 3, 30, 31, 32
"""Codes of types: rank, sizes as zigzag, element; the same and an encoding; n, results, n, arguments; of a state; of
the order in which states change."""

OPEN_SIZE = -(1 << 63)
"""A size that is not known before the model runs."""

STRING, TYPE, ARRAY, DENSE, RESOURCE, NAMED, SYMBOL_PATH, SYMBOL = 1, 4, 5, 6, 7, 9, 14, 16
METADATA_DATA, METADATA, LOCATION, DICTIONARY = 33, 35, 40, 45
"""Codes of attributes. DENSE: a byte that is not 0 if one element is repeated, nbytes, the bytes. RESOURCE:
its number. NAMED: name, n, attributes. SYMBOL_PATH: n, strings. SYMBOL: the path, a list. LOCATION: position, scope, n,
fused locations, n, METADATA."""

NAME_KEY, CALL_STACK, SOURCES, IDENTIFIERS = "aicode.name", "call_stack", "sources", "identifiers"

# Operand names by operation: coreai's, whose operations these become when a bundle is loaded.
_OPERANDS = """
x: abs acos acosh asin asinh atan atanh cos cosh erf exp log not round rsqrt sin sinh sqrt tan tanh
x y: add batch_matmul bitwise_and bitwise_or bitwise_xor broadcasting_batch_matmul divide floor_divide logical_and
x y: logical_or logical_xor maximum minimum modulo mul pow sub
input: cast gelu get_shape imaginary_part non_zero real_part relu sigmoid silu sparse_with_bitmask_to_dense
input other: broadcasting_add broadcasting_bitwise_and broadcasting_bitwise_or broadcasting_bitwise_xor
input other: broadcasting_divide broadcasting_equal broadcasting_floor_divide broadcasting_greater
input other: broadcasting_logical_and broadcasting_logical_or broadcasting_logical_xor broadcasting_maximum
input other: broadcasting_minimum broadcasting_modulo broadcasting_mul broadcasting_not_equal broadcasting_pow
input other: broadcasting_sub equal greater not_equal
input axes: all any expand_dims reduce_max reduce_mean reduce_min reduce_product reduce_sum shrink_dims
input axis: argmax softmax
input axis init_value init_index: reduce_index
input axes init_value: reduce
input axis reverse: scan
input dim descending stable: argsort sort
input range axis: asymmetric_quantization_statistics symmetric_quantization_statistics
input dim_sizes axes: broadcast_in_dims
shape_1 shape_2: broadcast_shapes
input shape: broadcast_to
condition a b: broadcasting_where where
values bitmask: build_sparse_with_bitmask
input weight stride dilation groups: conv2d conv3d
input weight stride padding dilation output_pad groups: conv_transpose2d conv_transpose3d
real imaginary: create_complex
data scale offset1 offset2: blockwise_shift_scale sparse_with_bitmask_blockwise_shift_scale
input scale offset1 offset2 axis: dequantize quantize
input indices axis: gather_along_axis
input indices: gather_nd
input coords: interpolate_coordinates
input output_shape scale offset: interpolate
indices lut axis: lut_to_dense lut_to_sparse_with_bitmask
input kernel_size stride dilation ceil_mode: max_pool_2d max_pool_3d
input kernel_size strides dilation: sum_pool_2d sum_pool_3d
input padding padding_value: pad
start stop step: range
handle in_token: read_handle
handle data in_token: write_handle
input new_shape: reshape
input dims: reverse tile
input indices updates axis: scatter_along_axis
input indices updates: scatter_nd
input start_indices end_indices strides: slice
input start_indices end_indices strides update: slice_update
input split_size_or_sections dim: split
source: image_to_tensor tensor_to_image copy_with_constraints copy_discarding_constraints
input permutation: transpose
dimension inputs: concat
condition: condition if
"""
_BY_FAMILY = {
    family: tuple(names.split())
    for names, _, families in (line.partition(":") for line in _OPERANDS.strip().splitlines())
    for family in families.split()
}
_VERSION = re.compile(r"_v\d+$")


@lru_cache(4096)
def family(op_name: str) -> str:
    """Return an operation's name without its version, such as "primitive.conv2d" for "primitive.conv2d_v1"."""
    return _VERSION.sub("", op_name)


@lru_cache(4096)
def short_family(op_name: str) -> str:
    """Return the last part of a family, such as "conv2d"."""
    return family(op_name).rpartition(".")[2]


def operand_name(op_name: str, number: int) -> str:
    """Return what an operand is called, such as "weight"; its number if the operation is not known to have it."""
    names = _BY_FAMILY.get(short_family(op_name), ())
    return names[number] if number < len(names) else str(number)
