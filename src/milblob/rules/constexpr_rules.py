"""Rules of the specification about compressed weights: parts of constexpr operations fit each other and the result.

By types, and by the values of small constants. What reading a weight refuses besides (the ones of a mask) is in
constexpr.py.
"""

from collections.abc import Generator, Iterator, Mapping, Sequence
from math import prod

from ..dtypes import DType
from ..program.types import TensorType

Shape = tuple[int, ...]
_Values = Mapping[str, tuple[int, ...]]
_BIT_WIDTHS = (1, 2, 4, 6, 8)

WITH_MASKS = frozenset(["constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale"])
"""Operations with two outputs, a mask and values; the others have one."""

NUMBERS = frozenset(["axis", "vector_axis", "shape"])
"""Parts whose values the shapes of the others depend on."""

_RANKED = frozenset(["quantized_data", "data", "data_mask", "indices", "indices_mask"])
_VECTORS = frozenset(["nonzero_data", "indices_nonzero_data"])


def constexpr_breaches(
    kind: str, parts: Mapping[str, TensorType], values: _Values, outputs: Sequence[TensorType]
) -> Iterator[str]:
    """Yield descriptions of parts that do not fit.

    `parts`: key -> type of each part that is a tensor. `values`: the elements of those in NUMBERS that are known.
    `outputs`: the types of the operation's outputs, one at least.
    """
    result = outputs[-1]
    shapes = {key: shape for key, part in parts.items() if (shape := _known(part)) is not None}
    made = _known(result)
    if len(shapes) != len(parts) or made is None or _known(outputs[0]) is None:
        return  # an open dimension: another rule, because constants have none
    for key in shapes:
        if key in _VECTORS and len(shapes[key]) != 1:
            yield _message(key, "a vector", list(shapes[key]))
        if key == "shape" and shapes[key] != (len(made),):
            yield _message(key, f"a vector of {len(made)}, which the result has as dimensions", list(shapes[key]))
            return
        if key in _RANKED and not shapes[key]:
            yield _message(key, "one dimension or more", "none")
            return
    try:
        if kind == "constexpr_affine_dequantize":
            yield from _affine(shapes, values)
            yield from _made(shapes["quantized_data"], parts["scale"], result)
        elif kind == "constexpr_blockwise_shift_scale":
            yield from _blocks("data", shapes["data"], shapes)
            yield from _offset(parts["data"], parts)
            yield from _made(shapes["data"], parts["scale"], result)
        elif kind == "constexpr_sparse_blockwise_shift_scale":
            yield from _blocks("data_mask", shapes["data_mask"], shapes)
            yield from _offset(parts["nonzero_data"], parts)
            yield from _made(shapes["data_mask"], parts["data_mask"], outputs[0], "mask")
            yield from _made(shapes["nonzero_data"], parts["scale"], result)
        elif kind == "constexpr_cast":
            yield from _made(shapes["source_val"], TensorType(DType.FLOAT32), result)
        elif kind == "constexpr_lut_to_dense" and "shape" in parts:
            dense = values.get("shape", made)
            yield from _packed_palette(shapes, dense)
            yield from _made(dense, parts["lut"], result)
        elif kind == "constexpr_lut_to_dense":
            indices = shapes["indices"]
            axis = yield from _palette("indices", indices, parts["indices"].dtype, shapes, values)
            if axis is not None:
                yield from _made(_grown(indices, axis, shapes["lut"]), parts["lut"], result)
        elif kind == "constexpr_lut_to_sparse":
            mask, stored = shapes["indices_mask"], parts["indices_nonzero_data"]
            axis = yield from _palette("indices_mask", mask, stored.dtype, shapes, values)
            if axis is not None:
                yield from _made(_grown(mask, axis, shapes["lut"]), parts["indices_mask"], outputs[0], "mask")
                count = prod(shapes["indices_nonzero_data"])
                yield from _made((count * shapes["lut"][-1],), parts["lut"], result)
        elif kind == "constexpr_sparse_to_dense":
            dense = shapes["mask"]
            if "shape" in parts:
                dense = values.get("shape", made)
                yield from _bits("mask", shapes["mask"], prod(dense))
            yield from _made(dense, parts["nonzero_data"], result)
    except KeyError:
        return  # a part is missing, or is not a tensor: other rules


def _known(declared: TensorType) -> Shape | None:
    sizes = tuple(size for size in declared.shape if size is not None)
    return sizes if len(sizes) == len(declared.shape) and declared.rank >= 0 else None


def _message(what: str, expected: object, got: object) -> str:
    return f"{what}: expected {expected}, got {got}"


def _made(shape: Shape, part: TensorType, output: TensorType, name: str = "result") -> Iterator[str]:
    """An output has this shape, and the data type of a part."""
    if output.shape != shape:
        yield _message(f"shape of the {name}", f"{list(shape)}, which the parts make", list(output.shape))
    if part.dtype != output.dtype:
        yield _message(f"data type of the {name}", f"{part.dtype}, which the parts make", output.dtype)


def _grown(indices: Shape, axis: int, lut: Shape) -> Shape:
    """Return the shape of what indices select: vectors lie along one dimension."""
    return (*indices[:axis], indices[axis] * lut[-1], *indices[axis + 1 :])


def _axis(key: str, rank: int, shapes: Mapping[str, Shape], values: _Values) -> Generator[str, None, int | None]:
    """Check the number of a dimension; return it, counted from the first, if it is known."""
    if prod(shapes[key]) != 1:
        yield _message(key, "one integer", f"the shape {list(shapes[key])}")
    elif values.get(key):
        axis = values[key][0]
        if -rank <= axis < rank:
            return axis % rank
        yield _message(key, f"{-rank} to {rank - 1}", axis)
    return None


def _affine(shapes: Mapping[str, Shape], values: _Values) -> Iterator[str]:
    data = shapes["quantized_data"]
    axis = yield from _axis("axis", len(data), shapes, values)
    sizes = data if axis is None else data[axis : axis + 1]
    which = f"an axis of {list(data)}" if axis is None else f"axis {axis} of {list(data)}"
    for key in ("scale", "zero_point"):
        if shapes[key] and (len(shapes[key]) > 1 or shapes[key][0] not in sizes):
            yield _message(key, f"a number, or as many as {which}", list(shapes[key]))


def _blocks(key: str, data: Shape, shapes: Mapping[str, Shape]) -> Iterator[str]:
    scale = shapes["scale"]
    if not _divides(scale, data):
        yield _message("scale", f"sizes that divide those of {key}, {list(data)}", list(scale))
    if "offset" in shapes and shapes["offset"] != scale:
        yield _message("offset", f"the shape of scale, {list(scale)}", list(shapes["offset"]))


def _offset(data: TensorType, parts: Mapping[str, TensorType]) -> Iterator[str]:
    """An offset is of a float type, or of the data's own."""
    dtype = parts["offset"].dtype if "offset" in parts else None
    if isinstance(dtype, DType) and dtype not in (data.dtype, DType.FLOAT16, DType.FLOAT32):
        own = f"{data.dtype}, " if data.dtype not in (DType.FLOAT16, DType.FLOAT32) else ""
        yield _message("data type of the offset", f"{own}float16 or float32", dtype)


def _palette(
    key: str, indices: Shape, dtype: DType | int, shapes: Mapping[str, Shape], values: _Values
) -> Generator[str, None, int | None]:
    """Check palettes; return the dimension along which vectors lie, if it is known."""
    lut = shapes["lut"]
    if len(lut) != len(indices) + 2 or not _divides(lut[:-2], indices):
        yield _message("lut", f"sizes that divide those of {key}, {list(indices)}, and two more", list(lut))
        return None
    if isinstance(dtype, DType) and lut[-2] != 1 << dtype.nbits:
        yield _message("lut", f"{1 << dtype.nbits} entries for indices of {dtype.nbits} bits", lut[-2])
    if not lut[-1]:
        yield _message("lut", "vectors of one element or more", list(lut))
    if "vector_axis" in shapes:
        return (yield from _axis("vector_axis", len(indices), shapes, values))
    if lut[-1] > 1:
        yield _message("vector_axis", f"one for vectors of {lut[-1]} elements", "none")
    return 0 if lut[-1] == 1 else None


def _packed_palette(shapes: Mapping[str, Shape], made: Shape) -> Iterator[str]:
    lut = shapes["lut"]
    widths = [nbits for nbits in _BIT_WIDTHS if lut == (1 << nbits,)]
    if not widths:
        yield _message("lut", "a vector of 2, 4, 16, 64 or 256 entries", list(lut))
        return
    yield from _bits("indices", shapes["indices"], prod(made) * widths[0])


def _bits(key: str, shape: Shape, count: int) -> Iterator[str]:
    """Check that a vector of bytes holds `count` bits."""
    if shape != ((count + 7) // 8,):
        yield _message(key, f"a vector of {(count + 7) // 8} bytes", list(shape))


def _divides(parts: Shape, whole: Shape) -> bool:
    return len(parts) == len(whole) and all(n and not size % n for n, size in zip(parts, whole, strict=True))
