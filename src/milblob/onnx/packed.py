"""Compressed weights that ONNX can compute from the bytes in the weight file: how, and why others cannot.

A plan is made of declared types, and of the few numbers that decide; `unpacking` makes nodes of it. The results are,
bit for bit, the values that milblob decodes: tests/onnx/test_packed.py.
"""

from collections.abc import Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..dtypes import DType

if TYPE_CHECKING:
    from ..model.tensor import Tensor

Shape = tuple[int, ...]

NIBBLES_SINCE = 21
"""The first opset with int4, uint4 and blocks."""

_BYTES, _NIBBLES = (DType.INT8, DType.UINT8), (DType.INT4, DType.UINT4)
_RANGES = {DType.INT8: (-128, 127), DType.UINT8: (0, 255), DType.INT4: (-8, 7), DType.UINT4: (0, 15)}
_FLOATS = (DType.FLOAT16, DType.FLOAT32)
_NEEDED = {
    "affine_dequantize": ("quantized_data", "scale", "zero_point", "axis"),
    "blockwise_shift_scale": ("data", "scale"),
    "lut_to_dense": ("indices", "lut"),
}
"""The compressed operations that ONNX can express, and the parts that they must have."""


class DequantizeLayout(NamedTuple):
    """In which shape DequantizeLinear sees elements that share scales."""

    view: Shape  # the shape of the elements; as many as the weight has, in its order
    # axis, block: of DequantizeLinear; block is 0 where there are no blocks
    axis: int
    block: int
    scales: Shape  # the shape of scale and zero point; () for one of all
    counts: Shape  # number of scales along each axis of the weight, after scales of several blocks were repeated


class PackedPalette(NamedTuple):
    """A weight that is looked up."""

    # indices, lut: the stored parts
    indices: "Tensor"
    lut: "Tensor"
    shape: Shape  # of the weight
    nbits: int  # of an index: 1, 2, 4 or 8, so that none lies in two bytes
    # the shape of the indices as (before, groups, after): along the axes before that of the groups, the groups, and the
    # indices in each
    order: tuple[int, int, int]
    vector: int  # elements of an entry
    # (rows, columns) of the indices where the elements of a vector lie between these, so that a Transpose must put them
    # there; None where they lie last
    turned: tuple[int, int] | None


class PackedScaled(NamedTuple):
    """A weight that is scaled."""

    elements: "Tensor | PackedPalette"  # the stored part, or the palette that has them
    scale: "Tensor"  # the stored part
    # the stored zero point, or its values in the type of the elements; None: it is 0
    zero: "Tensor | np.ndarray[Any, Any] | None"
    shape: Shape  # of the weight
    counts: Shape  # the shape of the scales, one axis for each of the weight's
    layout: DequantizeLayout | None  # of DequantizeLinear; None: the elements are floats, and are multiplied


PackedWeight = PackedScaled | PackedPalette


def plan(weight: "Tensor", opset: int) -> PackedWeight | str:
    """Return how to compute a compressed weight in ONNX, or in a few words why it is decoded instead.

    `weight`: of a model. `opset`: of ONNX.
    Raises: FormatError: its parts do not fit together. As reading them.
    """
    kind = weight.op.removeprefix("constexpr_")
    if kind not in _NEEDED:
        return "sparse" if "sparse" in kind else kind
    if 0 in weight.shape or not weight.shape:
        return "empty" if weight.shape else "a number"
    if any(key not in weight.parts for key in _NEEDED[kind]):
        weight.place.dense()  # raises the error about the missing part
        return "incomplete"
    if kind == "affine_dequantize":
        return _affine(weight, opset)
    if kind == "blockwise_shift_scale":
        parts = weight.parts
        return _scaled(weight, parts["data"], parts["scale"], parts.get("offset"), parts["scale"].shape, opset)
    return _palette(weight)


def _affine(weight: "Tensor", opset: int) -> PackedWeight | str:
    weight.place.dense()  # which checks the parts
    parts = weight.parts
    scale, zero, shape = parts["scale"], parts["zero_point"], weight.shape
    axis = int(parts["axis"].read().reshape(-1)[0]) % len(shape)
    counts = [1] * len(shape)
    if scale.shape or zero.shape:
        counts[axis] = shape[axis]
    return _scaled(weight, parts["quantized_data"], scale, zero, tuple(counts), opset)


def _scaled(
    weight: "Tensor", data: "Tensor", scale: "Tensor", offset: "Tensor | None", counts: Shape, opset: int
) -> PackedWeight | str:
    shape, kind = weight.shape, data.mil_dtype
    elements: Tensor | PackedPalette = data
    if data.parts:
        found = plan(data, opset)
        if not isinstance(found, PackedPalette):
            return found if isinstance(found, str) else "scaled twice"
        elements = found
    else:
        weight.place.dense()
    fits = len(counts) == len(shape) and all(n and not size % n for size, n in zip(shape, counts, strict=True))
    if data.parts and offset is not None and offset.shape != scale.shape:
        fits = False
    if scale.parts or (offset is not None and offset.parts) or scale.mil_dtype not in _FLOATS or not fits:
        return "computed scales"
    if isinstance(elements, PackedPalette) and kind in _FLOATS:
        if kind is not scale.mil_dtype or offset is not None:
            return f"{kind} elements"
        return (
            PackedScaled(elements, scale, None, shape, counts, None)
            if _is_broadcast(shape, counts)
            else "scaled blocks"
        )
    if kind not in _BYTES + _NIBBLES:
        return f"{kind} elements"
    if kind in _NIBBLES and opset < NIBBLES_SINCE:
        return f"{kind} elements, before opset {NIBBLES_SINCE}"
    zero: Tensor | np.ndarray | None = offset
    if offset is not None and offset.mil_dtype is not kind:
        zero = _whole(offset, kind)
        if zero is None:
            return f"{offset.mil_dtype} offsets that are no {kind}"
    found_layout = layout(shape, counts, opset >= NIBBLES_SINCE)
    if found_layout is None:
        return f"blocks, before opset {NIBBLES_SINCE}"
    made = prod(found_layout.counts) if found_layout.counts != counts else 0
    itemsize = scale.mil_dtype.nbits // 8
    if made * (itemsize + (zero is not None)) + _nbytes(elements) >= prod(shape) * itemsize:
        return "blocks along several axes that are as small as their scales"
    return PackedScaled(elements, scale, zero, shape, counts, found_layout)


def _nbytes(elements: "Tensor | PackedPalette") -> int:
    return elements.indices.nbytes if isinstance(elements, PackedPalette) else elements.nbytes


def _whole(offset: "Tensor", kind: DType) -> "np.ndarray | None":
    """Return offsets of another type as elements, if they are whole numbers that elements can be."""
    values = np.asarray(offset.read()).astype(np.float64)
    low, high = _RANGES[kind]
    if not (np.isfinite(values) & (values >= low) & (values <= high) & (values == np.trunc(values))).all():
        return None
    return values.astype(kind.numpy)


def _is_broadcast(shape: Shape, counts: Shape) -> bool:
    """Whether scales fit to a weight as operands of a multiplication do."""
    return all(n in (1, size) for size, n in zip(shape, counts, strict=True))


def layout(shape: Shape, counts: Shape, has_blocks: bool) -> DequantizeLayout | None:
    """Return how DequantizeLinear can have `counts` scales along each axis of a weight; None if it cannot.

    It knows one scale of all, one for each place along an axis, and (from opset 21 on) blocks along one axis with a
    scale for each place along all others. Axes that lie side by side can be seen as one; a weight that still does not
    fit gets its scales repeated along all axes but one.
    """
    if prod(counts) == 1:
        return DequantizeLayout(shape, 0, 0, (), counts)
    own = [n == size for size, n in zip(shape, counts, strict=True)]
    many = [axis for axis, n in enumerate(counts) if n > 1]
    if len(many) == 1 and own[many[0]]:
        return DequantizeLayout(shape, many[0], 0, (counts[many[0]],), counts)
    if has_blocks and own.count(False) == 1:
        axis = own.index(False)
        return DequantizeLayout(shape, axis, shape[axis] // counts[axis], counts, counts)
    runs = _runs(shape, counts)
    sizes, numbers = tuple(size for size, _, _ in runs), tuple(n for _, n, _ in runs)
    many = [axis for axis, n in enumerate(numbers) if n > 1]
    if len(many) == 1 and sizes[many[0]] == numbers[many[0]]:
        return DequantizeLayout(sizes, many[0], 0, (numbers[many[0]],), counts)
    if not has_blocks:
        return None
    shared = [axis for axis, (size, n, _) in enumerate(runs) if n < size]
    if len(shared) == 1:
        return DequantizeLayout(sizes, shared[0], sizes[shared[0]] // numbers[shared[0]], numbers, counts)
    kept = max(shared, key=lambda axis: sizes[axis] // numbers[axis])  # the longest blocks: the fewest scales
    repeated = list(counts)
    for axis in shared:
        if axis != kept:
            for inner in runs[axis][2]:
                repeated[inner] = shape[inner]
    return layout(shape, tuple(repeated), True)


def _runs(shape: Shape, counts: Shape) -> list[tuple[int, int, list[int]]]:
    """Return (size, scales, axes) of axes that can be seen as one: the blocks of the result are as contiguous."""
    runs: list[tuple[int, int, list[int]]] = []
    for axis, (size, n) in enumerate(zip(shape, counts, strict=True)):
        if size == 1:
            continue
        if runs:
            before, m, axes = runs[-1]
            same = (m == before and n == size) or (m == 1 and n == 1)
            inside = 1 < m < before and n == 1  # a block of rows is a longer block
            outside = m == before and 1 < n < size  # rows of blocks are more blocks
            if same or inside or outside:
                runs[-1] = before * size, m * n, [*axes, axis]
                continue
        runs.append((size, n, [axis]))
    return runs


def _palette(weight: "Tensor") -> PackedWeight | str:
    parts = weight.parts
    indices, lut = parts["indices"], parts["lut"]
    if indices.parts:
        return "computed indices"
    weight.place.dense()
    shape, vector, axis = weight.shape, 1, 0
    if "shape" in parts:
        nbits, places, groups = lut.shape[0].bit_length() - 1, shape, (1,) * len(shape)
    else:
        nbits, places, groups, vector = indices.mil_dtype.nbits, indices.shape, lut.shape[:-2], lut.shape[-1]
        if vector > 1:
            axis = int(parts["vector_axis"].read().reshape(-1)[0]) % len(shape)
    if 8 % nbits:
        return f"{nbits}-bit indices"
    if lut.mil_dtype not in (*_FLOATS, *_BYTES):
        return f"{lut.mil_dtype} entries"
    several = [at for at, count in enumerate(groups) if count > 1]
    if len(several) > 1:
        return "palettes along several axes"
    first = several[0] if several else 0
    before, count = prod(places[:first]), groups[first]
    behind = prod(places) // (before * count)
    if behind % (8 // nbits):
        return (
            f"{nbits}-bit indices of several palettes in a byte" if several else f"an odd number of {nbits}-bit indices"
        )
    itemsize = lut.mil_dtype.nbits // 8
    if indices.nbytes + prod(lut.shape) * itemsize >= prod(shape) * itemsize:
        return "palettes as large as the weight"
    rows, columns = prod(places[: axis + 1]), prod(places[axis + 1 :])
    turned = (rows, columns) if vector > 1 and columns > 1 else None
    return PackedPalette(indices, lut, shape, nbits, (before, count, behind), vector, turned)


def product_block(plan: PackedWeight) -> int:
    """Return the size of the blocks in which MatMulNBits of onnxruntime takes a weight; 0 if it cannot."""
    if isinstance(plan, PackedPalette) or isinstance(plan.elements, PackedPalette) or len(plan.shape) != 2:
        return 0
    if plan.elements.mil_dtype not in _NIBBLES or plan.shape[0] % plan.counts[0]:
        return 0
    block = gcd(plan.shape[1] // plan.counts[1], 256)
    return block if block >= 16 else 0


def has_rows(plan: PackedWeight) -> bool:
    """Whether rows of a weight can be computed without the others: tables of embeddings."""
    if len(plan.shape) != 2:
        return False
    if isinstance(plan, PackedPalette):
        return plan.vector == 1 and plan.order[1] == 1 and not plan.shape[1] * plan.nbits % 8
    elements, (per_row, blocks) = plan.elements, plan.counts
    if isinstance(elements, PackedPalette) or plan.layout is None or plan.layout.counts != plan.counts:
        return False
    if per_row not in (1, plan.shape[0]):
        return False
    scales = prod(plan.counts)
    if prod(plan.scale.shape) != scales or (plan.zero is not None and prod(plan.zero.shape) != scales):
        return False
    return not elements.mil_dtype.is_sub_byte or plan.shape[1] // blocks % 2 == 0


def indices_of_bytes(nbits: int) -> "np.ndarray[Any, Any]":
    """Return the indices that every byte holds, [256, 8 / nbits]: the first of them has the low bits."""
    return ((np.arange(256)[:, None] >> np.arange(0, 8, nbits)) & ((1 << nbits) - 1)).astype(np.int32)


def repeat(values: "np.ndarray[Any, Any]", counts: Sequence[int]) -> "np.ndarray[Any, Any]":
    """Repeat scales of several places, once for each place: `counts` scales along each axis."""
    for axis, count in enumerate(counts):
        values = np.repeat(values, count // values.shape[axis], axis)
    return values
