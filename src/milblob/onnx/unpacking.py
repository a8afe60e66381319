"""The nodes that compute a compressed weight from its stored bytes, as `packed` plans it."""

from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import onnx_ir as ir

from ..dtypes import DType
from .emit import ModelComponentContainer
from .packed import PackedPalette, PackedScaled, PackedWeight, indices_of_bytes, repeat
from .types import onnx_dtype

if TYPE_CHECKING:
    from ..model.tensor import Tensor
    from .topology import Variable

RUNTIME_DOMAIN = "com.microsoft"
"""Of operators that only onnxruntime has."""

_FLOAT, _INT32 = ir.DataType.FLOAT, ir.DataType.INT32


def unpack(g: ModelComponentContainer, plan: PackedWeight) -> ir.Value:
    """Add the nodes that compute a weight; return it."""
    return _looked_up(g, plan) if isinstance(plan, PackedPalette) else _scaled(g, plan)


def product(g: ModelComponentContainer, x: "ir.Value | Variable", plan: PackedScaled, block: int) -> ir.Value:
    """Add the node that multiplies by a weight of 4 bits as it is stored; return the product, float32.

    Elements times scales are not rounded to half precision.

    Args:
        g: where the nodes go.
        x: [..., inputs], floats.
        plan: of the weight, [outputs, inputs].
        block: from `packed.product_block`.
    """
    (rows, columns), elements, scale = plan.shape, cast("Tensor", plan.elements), plan.scale
    counts, flip = (rows, columns // block), 0x88 if elements.mil_dtype is DType.INT4 else 0

    def repeated(values: Any) -> Any:
        g.weights.spend(prod(counts) * values.itemsize)
        return repeat(values.reshape(plan.counts), counts)

    if flip:  # the operator has no signs, and 8 for its zero
        g.weights.spend(elements.nbytes)
        packed = g.made(f"{elements.name}.unsigned", np.asarray(elements.read_packed()) ^ np.uint8(flip), "elements")
        packed = _of_shape(g, packed, (), (*counts, block // 2))
    else:
        packed = g.stored(elements, ir.DataType.UINT8, (*counts, block // 2))
    if plan.counts == counts:
        scales = g.stored(scale, onnx_dtype(scale.mil_dtype), counts)
    else:
        scales = g.made(f"{scale.name}.repeated", repeated(np.asarray(scale.read())), "scales")
    zeros = None
    if plan.zero is not None or not flip:
        zero = plan.zero if isinstance(plan.zero, np.ndarray | None) else plan.zero.read()
        values = g.filled((rows, counts[1] + counts[1] % 2), 0, np.uint8)
        if zero is not None:
            values[:, : counts[1]] = (repeated(np.asarray(zero)).astype(np.uint8) & 15) ^ (flip & 15)
        zeros = g.made(f"{scale.name}.zero", values[:, ::2] | values[:, 1::2] << 4, "zero points")
    made: ir.Value = g.node(
        "MatMulNBits", g.cast(x, _FLOAT), packed, g.cast(scales, _FLOAT), zeros, domain=RUNTIME_DOMAIN, K=columns,
        N=rows, bits=4, block_size=block, accuracy_level=1,
    )  # fmt: skip
    return made


def _scaled(g: ModelComponentContainer, plan: PackedScaled) -> ir.Value:
    """Compute products of half precision in single precision, where they are exact, and round once.

    DequantizeLinear does the same, but older opsets lack it for half precision, and its kernel in onnxruntime is ten
    times as slow. The Reshape at the end, for every type, prevents two rewrites of onnxruntime that change results: it
    removes the rounding together with a Cast to single precision after it, and for a MatMul after DequantizeLinear it
    rounds the other operand to 8 bits.
    """
    kind, layout = onnx_dtype(plan.scale.mil_dtype), plan.layout
    if layout is None:
        product = g.node("Mul", _elements(g, plan, plan.shape), g.stored(plan.scale, kind, plan.counts))
        return _of_shape(g, product, (), plan.shape)
    if layout.counts == plan.counts and prod(plan.scale.shape) == prod(plan.counts):
        scale = g.stored(plan.scale, kind, layout.scales)
    else:
        repeated = _repeated(g, plan.scale.read(), plan).reshape(layout.scales)
        scale = g.made(f"{plan.scale.name}.repeated", repeated, "scales")
    zero = None if plan.zero is None else _zero(g, plan, layout.scales)
    elements = _elements(g, plan, layout.view)
    options: dict[str, Any] = {"axis": layout.axis} if layout.scales else {}
    if layout.block:
        options["block_size"] = layout.block
    found = g.node("DequantizeLinear", elements, g.cast(scale, _FLOAT), zero, **options)
    return _of_shape(g, g.cast(found, kind), (), plan.shape)


def _repeated(g: ModelComponentContainer, values: Any, plan: PackedScaled) -> Any:
    """Return the scales or zero points of the plan, with those of several places repeated."""
    values = np.asarray(values)
    counts = plan.counts if plan.layout is None else plan.layout.counts
    if values.size == 1:
        return g.filled(counts, values.reshape(-1)[0], values.dtype)
    g.weights.spend(prod(counts) * values.itemsize)
    return repeat(values.reshape(plan.counts), counts)


def _zero(g: ModelComponentContainer, plan: PackedScaled, shape: tuple[int, ...]) -> ir.Value:
    zero = plan.zero
    counts = plan.counts if plan.layout is None else plan.layout.counts
    if not isinstance(zero, np.ndarray) and zero is not None and prod(zero.shape) == prod(counts):
        return g.stored(zero, onnx_dtype(zero.mil_dtype), shape)
    array = zero if isinstance(zero, np.ndarray) or zero is None else zero.read()
    kind = plan.elements.lut if isinstance(plan.elements, PackedPalette) else plan.elements
    values = np.asarray(_repeated(g, array, plan)).reshape(shape)
    return g.made(f"{plan.scale.name}.zero", values.astype(onnx_dtype(kind.mil_dtype).numpy()), "zero points")


def _elements(g: ModelComponentContainer, plan: PackedScaled, view: tuple[int, ...]) -> ir.Value:
    if isinstance(plan.elements, PackedPalette):
        return _of_shape(g, _looked_up(g, plan.elements), plan.elements.shape, view)
    return g.stored(plan.elements, onnx_dtype(plan.elements.mil_dtype), view)


def _looked_up(g: ModelComponentContainer, plan: PackedPalette) -> ir.Value:
    """Each element of a byte is looked up in a table of its own: GatherElements is several times as fast as Gather."""
    before, groups, behind = plan.order
    width = 8 // plan.nbits * plan.vector
    nbytes = behind * plan.nbits // 8
    bytes_of = g.cast(g.stored(plan.indices, ir.DataType.UINT8, (before, groups, nbytes)), _INT32)
    if width == 1:
        if before == 1:
            rows, places = groups, _of_shape(g, bytes_of, (before, groups, nbytes), (groups, nbytes))
        else:
            rows = 1
            places = _of_shape(g, _in_group(g, bytes_of, groups), (), (1, before * groups * nbytes))
        entries = _entries(g, plan, (rows, groups // rows * 256))
        return _of_shape(g, g.node("GatherElements", entries, places, axis=1), (), plan.shape)
    entries = _entries(g, plan, (groups, 1 << plan.nbits, plan.vector))
    if plan.nbits < 8:
        entries = g.node("Gather", entries, g.constant(indices_of_bytes(plan.nbits)), axis=1)
    places = _of_shape(g, _in_group(g, bytes_of, groups), (), (1, before * groups * nbytes))
    tables = g.node("Transpose", _of_shape(g, entries, (), (groups * 256, width)), perm=[1, 0])
    copies = g.node("Expand", places, g.ints([width, 1]))
    found = g.node("Transpose", g.node("GatherElements", tables, copies, axis=1), perm=[1, 0])
    if plan.turned is None:
        return _of_shape(g, found, (), plan.shape)
    rows, columns = plan.turned
    turned = g.node("Transpose", _of_shape(g, found, (), (rows, columns, plan.vector)), perm=[0, 2, 1])
    return _of_shape(g, turned, (), plan.shape)


def rows(g: ModelComponentContainer, plan: PackedWeight, places: ir.Value, rank: int) -> ir.Value:
    """Add the nodes that compute only some rows of a weight, for which `packed.has_rows` must be true.

    Args:
        g: where the nodes go.
        plan: of the weight.
        places: int32 or int64, of any shape.
        rank: of the places.
    """
    count, columns = plan.shape
    if isinstance(plan, PackedPalette):
        width = 8 // plan.nbits
        bytes_of = g.stored(plan.indices, ir.DataType.UINT8, (count, columns // width))
        entries = _entries(g, plan, (1 << plan.nbits,))
        if plan.nbits < 8:
            entries = g.node("Gather", entries, g.constant(indices_of_bytes(plan.nbits)), axis=0)
        picked = g.cast(g.node("Gather", bytes_of, places, axis=0), _INT32)
        return _row_shape(g, g.node("Gather", entries, picked, axis=0), rank, columns)
    kind, elements = onnx_dtype(plan.scale.mil_dtype), cast("Tensor", plan.elements)
    per_row, blocks = plan.counts
    block = columns // blocks
    if elements.mil_dtype.is_sub_byte:
        bytes_of = g.stored(elements, ir.DataType.UINT8, (count, blocks, block // 2))
        values = np.arange(16) if elements.mil_dtype is DType.UINT4 else (np.arange(16) ^ 8) - 8
        table = g.constant(values[indices_of_bytes(4)].astype(np.float32))
        picked = g.cast(g.node("Gather", bytes_of, places, axis=0), _INT32)
        found, ends = g.node("Gather", table, picked, axis=0), [1, 1]
    else:
        picked = g.node(
            "Gather", g.stored(elements, onnx_dtype(elements.mil_dtype), (count, blocks, block)), places, axis=0
        )
        found, ends = g.cast(picked, _FLOAT), [1]
    if plan.zero is not None:
        found = g.node(
            "Sub", found, _of_rows(g, g.cast(_zero(g, plan, (per_row, blocks, *ends)), _FLOAT), places, per_row)
        )
    scale = _of_rows(g, g.stored(plan.scale, kind, (per_row, blocks, *ends)), places, per_row)
    return _row_shape(g, g.cast(g.node("Mul", found, g.cast(scale, _FLOAT)), kind), rank, columns)


def _of_rows(g: ModelComponentContainer, values: ir.Value, places: ir.Value, per_row: int) -> ir.Value:
    """Return the scales of some rows, or the one row that all share."""
    return g.node("Gather", values, places if per_row > 1 else g.scalar(0, ir.DataType.INT64), axis=0)


def _row_shape(g: ModelComponentContainer, value: ir.Value, rank: int, columns: int) -> ir.Value:
    return g.node("Reshape", value, g.ints([*([0] * rank), columns]))


def _in_group(g: ModelComponentContainer, bytes_of: ir.Value, groups: int) -> ir.Value:
    """Turn places in the entries of each group into places in all entries: [before, groups, after]."""
    if groups == 1:
        return bytes_of
    starts = g.constant(g.numbers(groups, 256, np.int32)[:, None])
    return g.node("Add", bytes_of, starts)


def _entries(g: ModelComponentContainer, plan: PackedPalette, shape: tuple[int, ...]) -> ir.Value:
    lut: Tensor = plan.lut
    if lut.parts:
        return g.made(lut.name, np.asarray(lut.read()).reshape(shape), "computed entries")
    return g.stored(lut, onnx_dtype(lut.mil_dtype), shape)


def _of_shape(g: ModelComponentContainer, value: ir.Value, own: tuple[int, ...], shape: tuple[int, ...]) -> ir.Value:
    if own == shape:
        return value
    return g.node("Reshape", value, g.ints(shape))
