"""Linear quantization: a scale, and perhaps a zero point, for each block of an array, chosen here.

Scales and zero points are computed as coremltools does, in the array's dtype. For float32 the integers are those of
coremltools too. For float16 they are the nearest ones, where coremltools divides in float16: the error is at most its.

`Quantizer` goes through an array a stretch of whole blocks at a time, so that an array of any size needs little memory
of its own; each element is read once, unless blocks are very large or a search tries several ranges.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..dtypes import DType, as_dtype
from ..threads import ordered, parts
from ..values.dense import make_grid
from ..values.strided import Empty, boxes, range_of, vector_of
from .loss import Loss
from .palettize import weights_for
from .unfit import UnfitError, refuse_not_finite

DTYPES = (DType.INT8, DType.UINT8, DType.INT4, DType.UINT4)
MODES = ("linear_symmetric", "linear")

_PART_COUNT = 1 << 22  # elements that one thread processes at a time
_BLOCKS_COUNT = 1 << 16  # blocks whose ranges each part finds and which are merged; for more see _scales_in_boxes
_CLIPPINGS = tuple(1 - i / 50 for i in range(40))  # parts of the range that a search tries

Array = np.ndarray[Any, Any]


class Quantized(NamedTuple):
    """An array as integers on linear scales: scale * (data - zero_point)."""

    data: Array  # integers, in the shape of the array; of 4 bits with ml_dtypes' dtypes
    scale: Array  # of the array's dtype: the number of blocks in each dimension
    zero_point: Array | None  # likewise, of the dtype of data; None for zeros
    dtype: Any  # of data
    loss: Loss = Loss()


class QuantizedStretch(NamedTuple):
    """A part of a quantized array."""

    begin: int  # index of the first element
    data: Array  # bytes of the integers
    block: int  # index of the first block that is complete in this stretch
    scale: Array  # of the array's dtype, one for each such block
    zero_point: Array | None  # bytes of the integers of the blocks; None for zeros
    loss: Loss = Loss()  # of these elements


def quantize(array: Any, dtype: Any = DType.INT8, *, empty: Empty = np.empty, **options: Any) -> Quantized:
    """Quantize an array.

    `dtype`, `options`: of Quantizer. `empty`: makes the arrays of the result.
    Raises: As Quantizer, and as its `stretches`.
    """
    work = Quantizer(array, dtype, **options, empty=empty)
    data = empty(work.shape, np.uint8)
    scale = empty(work.counts, work.array_dtype)
    point = empty(work.counts, np.uint8) if work.has_zero_point else None
    loss = Loss()
    for one in work.stretches(into=data.reshape(-1)):
        scale.reshape(-1)[one.block : one.block + one.scale.size] = one.scale
        if point is not None and one.zero_point is not None:
            point.reshape(-1)[one.block : one.block + one.scale.size] = one.zero_point
        loss = loss.plus(one.loss)
    target = work.dtype
    zero_point = None if point is None else point.view(target.numpy)
    return Quantized(data.view(target.numpy), scale, zero_point, target, loss)


def counts_of(shape: tuple[int, ...], blocks: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the number of blocks in each dimension.

    Raises: ValueError: `blocks` has another number of dimensions, or a size that does not divide one.
    """
    sizes = (0,) * len(shape) if blocks is None else tuple(blocks)
    if len(sizes) != len(shape):
        raise ValueError(f"blocks: expected a size for each of {len(shape)} dimensions, got {sizes}")
    if any(size < 0 or (size and length % size) for size, length in zip(sizes, shape, strict=True)):
        raise UnfitError(f"blocks: expected sizes that divide the shape {shape}, got {sizes}")
    return tuple(length // size if size else 1 for size, length in zip(sizes, shape, strict=True))


class Quantizer:
    """Quantizes an array, a stretch at a time.

    Args:
        array: float16 or float32, any memory order, one element or more.
        dtype: int8, uint8, int4 or uint4: a DType, name or NumPy dtype.
        mode: "linear_symmetric": the range of a block is symmetric around zero, and so are the integers (-127 to 127;
            0 to 254 with the zero point 127); "linear": from the least to the greatest element, zero included.
        blocks: the size of a block in each dimension; 0 is the whole dimension. None: one block.
        search: whether to try clipped ranges for each block, down to a fifth, and take the one with the least squared
            error.
        importance: weights of the elements for the search: an array that broadcasts to the shape.
        empty: makes arrays as long as the array, which a search with importance in very large blocks needs, and the
            scales of very many blocks that go on from one stretch to the next.

    Raises:
        TypeError: elements of another dtype.
        ValueError: no elements; an unknown option; blocks that do not divide the array.
    """

    def __init__(
        self,
        array: Any,
        dtype: Any = DType.INT8,
        *,
        mode: str = "linear_symmetric",
        blocks: tuple[int, ...] | None = None,
        search: bool = False,
        importance: Any = None,
        empty: Empty = np.empty,
    ) -> None:
        array = np.asarray(array)
        kind, target = as_dtype(array.dtype), as_dtype(dtype)
        if kind not in (DType.FLOAT16, DType.FLOAT32):
            raise TypeError(f"array: expected float16 or float32, got {array.dtype}")
        if array.size == 0:
            raise UnfitError(f"array: expected elements, got shape {array.shape}")
        if target not in DTYPES:
            raise ValueError(f"dtype: expected int8, uint8, int4 or uint4, got {target}")
        if mode not in MODES:
            raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
        if importance is not None and not search:
            raise ValueError("importance: expected None without search, which it is for, got weights")
        # shape, array_dtype: of the array; dtype: of the integers
        self.shape, self.array_dtype, self.dtype = array.shape, kind.numpy, target
        self.counts = counts_of(array.shape, blocks)  # the number of blocks in each dimension
        is_linear, is_signed = mode == "linear", target in (DType.INT8, DType.INT4)
        self.has_zero_point = is_linear or not is_signed  # whether there are zero points, or all are zero
        half = 1 << (target.nbits - 1)
        least, most = (-half, half - 1) if is_signed else (0, 2 * half - 1)
        if not is_linear:  # as many on both sides of zero
            least, most = least + is_signed, most - (not is_signed)
        self._integers = _codec.Integers(least, most, target.nbits, is_linear)
        self._search = search
        weights = None if importance is None else weights_for(importance, array.shape)
        flat = np.ascontiguousarray(array, kind.numpy).reshape(-1)
        self._work = _Work(flat, array.shape, self.counts, self._integers, weights, empty)
        self._found: tuple[Array, Array] | None = None

    def scales(self) -> tuple[Array, Array | None]:
        """Return the scale and the zero point of each block, in the shape of `counts`: a pass of its own.

        Raises: ValueError: an element is NaN or infinite.
        """
        if self._found is None:
            self._found = self._work.scales(self._search)
        scale, zero = self._found
        point = self._points(zero).reshape(self.counts) if self.has_zero_point else None
        return scale.astype(self.array_dtype).reshape(self.counts), point

    def _points(self, zero: Array) -> Array:
        """Return the zeros of blocks as the bytes of integers."""
        point = zero.astype(np.int16).astype(np.uint8)
        return point & 15 if self.dtype.nbits == 4 else point

    def stretches(self, *, is_packed: bool = False, into: Array | None = None) -> Iterator[QuantizedStretch]:
        """Yield the stretches of the array in order; they do not depend on the number of threads.

        `is_packed`: whether integers of 4 bits are packed, as they are stored; else one byte each, as ml_dtypes has
        them. `into`: a byte for each element, for their integers, if they are not packed; default: new ones.
        Raises: ValueError: an element is NaN or infinite.
        """
        found = self._found
        if found is None and self._work.unit > _PART_COUNT:  # blocks are too large to be complete in a stretch
            found = self._work.scales(self._search)  # not kept: this object may live long after it
        if found is not None:
            scale, zero = found
            nothing = np.empty(0, np.uint8)
            for first, count in parts(scale.size, 1, _PART_COUNT):
                point = self._points(zero[first : first + count]) if self.has_zero_point else None
                if point is not None and is_packed and self.dtype.nbits == 4:
                    point = _pack_4(point)
                some = scale[first : first + count].astype(self.array_dtype)
                yield QuantizedStretch(0, nothing, first, some, point)
            for begin, data, loss in self._work.quantized(scale, zero, is_packed, into):
                yield QuantizedStretch(begin, data, scale.size, scale[:0].astype(self.array_dtype), None, loss)
            return
        yield from self._work.in_blocks(self.has_zero_point, self._search, is_packed, into)


def _pack_4(point: Array) -> Array:
    """Two to a byte."""
    padded = np.append(point, np.zeros(point.size % 2, np.uint8)).reshape(-1, 2)
    return np.asarray(padded[:, 0] | padded[:, 1] << 4)


class _Work:
    """A vector of elements in blocks, shared among threads; parts, and so sums, do not depend on their number."""

    def __init__(
        self, flat: Array, shape: tuple[int, ...], counts: tuple[int, ...], integers: Any, weights: Array | None,
        empty: Empty = np.empty,
    ) -> None:  # fmt: skip
        self._flat, self._shape, self._counts = flat, shape, counts
        self._source = _codec.Buffer(flat.view(np.uint8))
        self._is_f16 = flat.dtype.itemsize == 2
        self._integers = integers
        self._weights, self._empty = weights, empty
        self._grid = make_grid(shape, counts)
        apart = next((axis for axis, count in enumerate(counts) if count != shape[axis]), len(shape))
        number = prod(counts[: apart + 1])  # of units: dimensions before this one have a block for each index
        # number of elements that hold whole blocks, so they can be processed on their own
        self.unit = flat.size // number
        self._unit_blocks = prod(counts) // number
        self._unit_shape = (shape[apart] // counts[apart], *shape[apart + 1 :]) if apart < len(shape) else ()
        self._unit_counts = (1, *counts[apart + 1 :]) if apart < len(shape) else ()

    def _parts(self, unit: int) -> Iterator[tuple[int, int]]:
        """(begin, count) of parts in whole units, an even number of them but for the last."""
        step = max(_PART_COUNT // (2 * unit), 1) * 2 * unit
        for begin in range(0, self._flat.size, step):
            yield begin, min(step, self._flat.size - begin)

    @property
    def _is_much(self) -> bool:
        return bool(self._flat.size > _PART_COUNT // 4)

    def _refuse_not_finite(self) -> None:
        """Raise UnfitError with the number of elements that are not finite, or 1 if another thread overwrote them."""

        def bad(part: tuple[int, int]) -> int:
            return _codec.not_finite(self._source, self._flat.itemsize * part[0], self._is_f16, part[1])

        refuse_not_finite(max(sum(ordered(bad, self._parts(64), self._is_much)), 1))

    # ------------------------------------------------------------------------------------------------ in one pass

    def in_blocks(
        self, has_zero: bool, search: bool, is_packed: bool, into: Array | None
    ) -> Iterator[QuantizedStretch]:
        """Quantize parts of whole blocks."""

        def work(part: tuple[int, int]) -> QuantizedStretch | None:
            begin, count = part
            if search:
                return self._searched(begin, count, has_zero, is_packed, into)
            first, blocks = begin // self.unit * self._unit_blocks, count // self.unit * self._unit_blocks
            data = self._space(begin, count, is_packed, into)
            scale = np.empty(blocks, self._flat.dtype)
            zero = np.empty(self._nbytes(blocks, is_packed), np.uint8) if has_zero else None
            figures = _codec.quantize_blocks(
                data, scale, zero, is_packed, self._source, 0, self._is_f16, begin, count, self.unit, self._unit_blocks,
                self._grid, self._integers,
            )  # fmt: skip
            return None if figures is None else QuantizedStretch(begin, data, first, scale, zero, Loss(*figures))

        for one in ordered(work, self._parts(self.unit), self._is_much):
            if one is not None:
                yield one
            else:
                self._refuse_not_finite()

    def _searched(
        self, begin: int, count: int, has_zero: bool, is_packed: bool, into: Array | None
    ) -> QuantizedStretch | None:
        """Quantize a part by itself, with a search."""
        units = count // self.unit
        shape, counts = (units, *self._unit_shape), (units, *self._unit_counts)
        heavy = None if self._weights is None else range_of(self._weights, begin, count, np.float32)
        own = _Work(self._flat[begin : begin + count], shape, counts, self._integers, heavy)
        try:
            scale, zero = own.scales(True)
        except UnfitError:
            return None
        point: Array | None = None
        if has_zero:
            point = zero.astype(np.int16).astype(np.uint8)
            if self._integers.nbits == 4:
                point = _pack_4(point & 15) if is_packed else point & 15
        loss = Loss()
        data = self._space(begin, count, is_packed, into)
        for at, codes, lost in own.quantized(scale, zero, is_packed, None if is_packed else data):
            if is_packed:
                data[self._nbytes(at, True) :][: codes.size] = codes
            loss = loss.plus(lost)
        first = begin // self.unit * self._unit_blocks
        return QuantizedStretch(begin, data, first, scale.astype(self._flat.dtype), point, loss)

    def _nbytes(self, count: int, is_packed: bool) -> int:
        return (count + 1) // 2 if is_packed and self._integers.nbits == 4 else count

    def _space(self, begin: int, count: int, is_packed: bool, into: Array | None) -> Array:
        if into is not None and not is_packed:
            return into[begin : begin + count]
        return np.empty(self._nbytes(count, is_packed), np.uint8)

    # ------------------------------------------------------------------------------------------- one pass after another

    def _blockwise(self, fill: Any, dtype: Any, work: Callable[..., None], merge: tuple[Any, ...]) -> list[Array]:
        """Call work(begin, count, *arrays) for each part; the arrays, merged where parts share blocks."""
        count = self._grid.parameter_count
        is_apart = self.unit <= _PART_COUNT
        made = [np.full(count, value, dtype) for value in fill]

        def one(part: tuple[int, int]) -> list[Array]:
            own = made if is_apart else [np.full(count, value, dtype) for value in fill]
            work(*part, *own)
            return own

        for own in ordered(one, self._parts(self.unit if is_apart else 64), self._is_much):
            if own is not made:
                made = [join(a, b) for join, a, b in zip(merge, made, own, strict=True)]
        return made

    def scales(self, search: bool) -> tuple[Array, Array]:
        """Return the scale and the zero of each block, as float32."""
        if self.unit > _PART_COUNT and self._grid.parameter_count > _BLOCKS_COUNT:
            return self._scales_in_boxes(search)

        def ranges(begin: int, count: int, least: Array, most: Array) -> None:
            _codec.quantize_ranges(self._source, 0, self._is_f16, begin, count, self._grid, least, most)

        least, most = self._blockwise((-0.0, 0.0), np.float32, ranges, (np.minimum, np.maximum))
        if not (np.isfinite(least).all() and np.isfinite(most).all()):
            self._refuse_not_finite()
        scale, zero = self._chosen(least, most)
        if not search:
            return scale, zero
        best = self._errors(scale, zero)
        for part in _CLIPPINGS[1:]:
            other_scale, other_zero = self._chosen(least * np.float32(part), most * np.float32(part))
            errors = self._errors(other_scale, other_zero)
            better = errors < best  # of equals the wider one is kept
            best[better], scale[better], zero[better] = errors[better], other_scale[better], other_zero[better]
        return scale, zero

    def _scales_in_boxes(self, search: bool) -> tuple[Array, Array]:
        """As `scales`, if many blocks are not contiguous: copies some whole blocks at a time to one stretch."""
        array, sizes = self._flat.reshape(self._shape), self._counts
        scale, zero = (self._empty(self._counts, np.float32) for _ in range(2))

        def work(blocks: tuple[slice, ...]) -> tuple[Array, Array] | None:
            steps = (length // count for length, count in zip(self._shape, sizes, strict=True))
            box = tuple(slice(at.start * step, at.stop * step) for at, step in zip(blocks, steps, strict=True))
            some = np.ascontiguousarray(array[box])
            heavy = None if self._weights is None else np.ascontiguousarray(self._weights[box], np.float32).reshape(-1)
            counts = tuple(at.stop - at.start for at in blocks)
            own = _Work(some.reshape(-1), some.shape, counts, self._integers, heavy)
            try:
                found = own.scales(search)
            except UnfitError:
                return None
            return found[0].reshape(counts), found[1].reshape(counts)

        most = max(_PART_COUNT * self._grid.parameter_count // self._flat.size, 1)
        for blocks, found in zip(boxes(sizes, most), ordered(work, boxes(sizes, most)), strict=True):
            if found is None:
                self._refuse_not_finite()
            else:
                scale[blocks], zero[blocks] = found
        return scale.reshape(-1), zero.reshape(-1)

    def _chosen(self, least: Array, most: Array) -> tuple[Array, Array]:
        scale, zero = np.empty_like(least), np.empty_like(least)
        ranges = _codec.Buffer(least), _codec.Buffer(most)
        _codec.quantize_scales(scale, zero, *ranges, least.size, self._is_f16, self._integers)
        return scale, zero

    def _errors(self, scale: Array, zero: Array) -> Array:
        """Return the squared error of each block, weighted."""
        about = self._grid, _codec.Buffer(scale), _codec.Buffer(zero), self._integers
        if self._weights is not None:
            self._weights = vector_of(self._weights, np.float32, self._empty)
        heavy = None if self._weights is None else _codec.Buffer(self._weights.view(np.uint8))

        def work(begin: int, count: int, errors: Array) -> None:
            _codec.quantize_errors(errors, self._source, 0, self._is_f16, begin, count, *about, heavy)

        return self._blockwise((0.0,), np.float64, work, (np.add,))[0]

    def quantized(
        self, scale: Array, zero: Array, is_packed: bool, into: Array | None
    ) -> Iterator[tuple[int, Array, Loss]]:
        """Yield (begin, bytes of the integers, loss) of each part."""
        scales, zeros = _codec.Buffer(scale), _codec.Buffer(zero)

        def work(part: tuple[int, int]) -> tuple[int, Array, Loss]:
            begin, count = part
            data = self._space(begin, count, is_packed, into)
            about = self._source, 0, self._is_f16, begin, count, self._grid
            return begin, data, Loss(*_codec.quantize(data, is_packed, *about, scales, zeros, self._integers))

        return ordered(work, self._parts(64), self._is_much)
