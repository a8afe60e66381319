"""Linear quantization: a scale, and perhaps a zero point, for each block of an array, chosen here.

Scales and zero points are computed as coremltools does, in the array's dtype. For float32 the integers are those of
coremltools too. For float16 they are the nearest ones, where coremltools divides in float16: the error is at most its.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..dtypes import DType, as_dtype
from ..threads import ordered
from .dense import make_grid
from .palettize import weights_for

DTYPES = (DType.INT8, DType.UINT8, DType.INT4, DType.UINT4)
MODES = ("linear_symmetric", "linear")

_PART_COUNT = 1 << 22  # elements that one thread processes at a time
_CLIPPINGS = tuple(1 - i / 50 for i in range(40))  # parts of the range that a search tries

Array = np.ndarray[Any, Any]


class Quantized(NamedTuple):
    """An array as integers on linear scales: scale * (data - zero_point).

    Attributes:
        data: integers, in the shape of the array; of 4 bits with ml_dtypes' dtypes.
        scale: of the array's dtype: the number of blocks in each dimension.
        zero_point: likewise, of the dtype of data; None for zeros.
        dtype: of data.
        squared: sum of the squared differences of the dense values from the array.
        power: sum of the squares of the array.
        largest: difference.
    """

    data: Array
    scale: Array
    zero_point: Array | None
    dtype: Any
    squared: float
    power: float
    largest: float


def quantize(
    array: Any,
    dtype: Any = DType.INT8,
    *,
    mode: str = "linear_symmetric",
    blocks: tuple[int, ...] | None = None,
    search: bool = False,
    importance: Any = None,
) -> Quantized:
    """Quantize an array.

    Args:
        array: float16 or float32, any memory order, one element or more.
        dtype: int8, uint8, int4 or uint4: a DType, name or NumPy dtype.
        mode: "linear_symmetric": the range of a block is symmetric around zero, and so are the integers (-127 to 127;
            0 to 254 with the zero point 127); "linear": from the least to the greatest element, zero included.
        blocks: the size of a block in each dimension; 0 is the whole dimension. None: one block.
        search: whether to try clipped ranges for each block, down to a fifth, and take the one with the least squared
            error.
        importance: weights of the elements for the search: an array that broadcasts to the shape.

    Returns:
        Quantized.

    Raises:
        TypeError: elements of another dtype.
        ValueError: an element is NaN or infinite; no elements; an unknown option; blocks that do not divide the array.
    """
    array = np.asarray(array)
    kind = as_dtype(array.dtype)
    target = as_dtype(dtype)
    if kind not in (DType.FLOAT16, DType.FLOAT32):
        raise TypeError(f"array: expected float16 or float32, got {array.dtype}")
    if array.size == 0:
        raise ValueError(f"array: expected elements, got shape {array.shape}")
    if target not in DTYPES:
        raise ValueError(f"dtype: expected int8, uint8, int4 or uint4, got {target}")
    if mode not in MODES:
        raise ValueError(f"mode: expected one of {', '.join(MODES)}, got {mode!r}")
    if importance is not None and not search:
        raise ValueError("importance: expected None without search, which it is for, got weights")
    weights = None if importance is None else np.ascontiguousarray(weights_for(importance, array.shape))
    work = _Work(np.ascontiguousarray(array, kind.numpy).reshape(array.shape), kind, counts_of(array.shape, blocks))
    least, most = work.ranges()
    steps = _Steps(target, mode, kind.numpy)
    scale, zero = steps.choose(least, most)
    if search:
        scale, zero = _search(work, steps, least, most, weights)
    data = np.empty(array.shape, np.uint8)
    squared, power, largest = work.quantize(data, scale, zero, steps)
    shape = work.counts
    point = zero.astype(target.numpy).reshape(shape) if steps.has_zero else None
    return Quantized(data.view(target.numpy), scale.reshape(shape), point, target, squared, power, largest)


def counts_of(shape: tuple[int, ...], blocks: tuple[int, ...] | None) -> tuple[int, ...]:
    """Return the number of blocks in each dimension.

    Raises:
        ValueError: `blocks` has another number of dimensions, or a size that does not divide one.
    """
    sizes = (0,) * len(shape) if blocks is None else tuple(blocks)
    if len(sizes) != len(shape):
        raise ValueError(f"blocks: expected a size for each of {len(shape)} dimensions, got {sizes}")
    if any(size < 0 or (size and length % size) for size, length in zip(sizes, shape, strict=True)):
        raise ValueError(f"blocks: expected sizes that divide the shape {shape}, got {sizes}")
    return tuple(length // size if size else 1 for size, length in zip(sizes, shape, strict=True))


class _Steps:
    """How ranges become scales and zero points: coremltools' formulas, in the dtype of the array."""

    def __init__(self, target: Any, mode: str, dtype: np.dtype[Any]) -> None:
        self.is_signed = target in (DType.INT8, DType.INT4)
        self.is_linear = mode == "linear"
        self.has_zero = self.is_linear or not self.is_signed
        self.nbits = target.nbits
        self.dtype = dtype
        half = 1 << (self.nbits - 1)
        self.least: int = -half if self.is_signed else 0
        self.most: int = self.least + 2 * half - 1
        if not self.is_linear:  # as many on both sides of zero
            self.least += self.is_signed
            self.most -= not self.is_signed

    def choose(self, least: Array, most: Array) -> tuple[Array, Array]:
        """Return (scale, zero) for ranges: scale of the array's dtype, zero as whole float32."""
        scale, zero = self._compute(least, most, self.dtype)
        bad = ~np.isfinite(scale)  # the width of the range overflows
        if bad.any():
            scale[bad], zero[bad] = self._compute(least[bad], most[bad], np.dtype(np.float64))
        return scale, zero

    def _compute(self, least: Array, most: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
        low, high = least.astype(dtype), most.astype(dtype)
        with np.errstate(all="ignore"):
            if self.is_linear:
                low, high = np.minimum(0.0, low), np.maximum(0.0, high)
            else:
                high = np.maximum(np.abs(low), np.abs(high))
                low = -high
            scale = ((high - low) / (self.most - self.least)).astype(self.dtype)
            zero = np.zeros(low.shape, dtype) if self.is_signed else np.full(low.shape, self.most // 2, dtype)
            if self.is_linear:
                zero = np.round((self.least * high - self.most * low) / (high - low))
                lost = np.isnan(zero) & (high > low)  # a product overflows, which float64 does not
                if lost.any():
                    wide = [part[lost].astype(np.float64) for part in (low, high)]
                    zero[lost] = np.round((self.least * wide[1] - self.most * wide[0]) / (wide[1] - wide[0]))
                zero = np.nan_to_num(np.clip(zero, self.least, self.most))
        return scale, zero.astype(np.float32)


def _search(work: "_Work", steps: _Steps, least: Array, most: Array, weights: Array | None) -> tuple[Array, Array]:
    """The scale and zero of each block whose clipping has the least squared error; the wider one of equals."""
    scale, zero = steps.choose(least, most)
    best = work.errors(scale, zero, steps, weights)
    for part in _CLIPPINGS[1:]:
        other_scale, other_zero = steps.choose(least * np.float32(part), most * np.float32(part))
        errors = work.errors(other_scale, other_zero, steps, weights)
        better = errors < best
        best[better], scale[better], zero[better] = errors[better], other_scale[better], other_zero[better]
    return scale, zero


class _Work:
    """One array and its blocks, shared out among threads. Parts, and with them sums, do not depend on their number."""

    def __init__(self, array: Array, kind: Any, counts: tuple[int, ...]) -> None:
        self._source = _codec.Buffer(array.reshape(-1).view(np.uint8))
        self._is_f16 = kind is DType.FLOAT16
        self._size = array.size
        self.counts = counts
        self._grid = make_grid(array.shape, counts)
        # Parts that share no block may write to the same arrays; else each has its own.
        self._is_apart = bool(counts) and counts[0] > 1
        self._unit = prod(array.shape[1:]) * (array.shape[0] // counts[0]) if self._is_apart else 64

    def _parts(self) -> Iterator[tuple[int, int]]:
        step = max(_PART_COUNT // self._unit, 1) * self._unit
        for begin in range(0, self._size, step):
            yield begin, min(step, self._size - begin)

    def _blockwise(
        self, fill: Any, dtype: Any, work: Callable[..., Any], merge: tuple[Any, ...]
    ) -> tuple[list[Array], list[Any]]:
        """Call work(begin, count, *arrays) for each part; the arrays, merged where each part has its own."""
        count = self._grid.parameter_count
        made = [np.full(count, value, dtype) for value in fill]

        def one(part: tuple[int, int]) -> tuple[Any, list[Array]]:
            own = made if self._is_apart else [np.full(count, value, dtype) for value in fill]
            return work(*part, *own), own

        results = []
        for result, own in ordered(one, self._parts(), self._size > _PART_COUNT // 4):
            results.append(result)
            if own is not made:
                made = [join(a, b) for join, a, b in zip(merge, made, own, strict=True)]
        return made, results

    def ranges(self) -> tuple[Array, Array]:
        """Return the least and the greatest element of each block."""

        def work(begin: int, count: int, least: Array, most: Array) -> int:
            return _codec.quantize_ranges(self._source, 0, self._is_f16, begin, count, self._grid, least, most)

        (least, most), bad = self._blockwise((np.inf, -np.inf), np.float32, work, (np.minimum, np.maximum))
        if sum(bad):
            raise ValueError(f"array: expected finite elements, got {sum(bad)} that are NaN or infinite")
        return least, most

    def errors(self, scale: Array, zero: Array, steps: _Steps, weights: Array | None) -> Array:
        """Return the squared error of each block, weighted."""
        scales, zeros = _codec.Buffer(scale.astype(np.float32)), _codec.Buffer(zero)
        heavy = None if weights is None else _codec.Buffer(weights.reshape(-1).view(np.uint8))

        def work(begin: int, count: int, errors: Array) -> Any:
            about = self._source, 0, self._is_f16, begin, count, self._grid
            return _codec.quantize(None, *about, scales, zeros, steps.least, steps.most, errors, heavy)

        return self._blockwise((0.0,), np.float64, work, (np.add,))[0][0]

    def quantize(self, data: Array, scale: Array, zero: Array, steps: _Steps) -> tuple[float, float, float]:
        """Write the integers as bytes; return (squared error, power, largest error)."""
        scales, zeros = _codec.Buffer(scale.astype(np.float32)), _codec.Buffer(zero)
        flat = data.reshape(-1)

        def work(part: tuple[int, int]) -> tuple[float, float, float]:
            begin, count = part
            out = flat[begin : begin + count]
            about = self._source, 0, self._is_f16, begin, count, self._grid
            error = _codec.quantize(out, *about, scales, zeros, steps.least, steps.most)
            if steps.nbits == 4 and steps.is_signed:
                np.bitwise_and(out, 15, out=out)  # as ml_dtypes holds them
            return error

        rows = list(ordered(work, self._parts(), self._size > _PART_COUNT // 4))
        return sum(row[0] for row in rows), sum(row[1] for row in rows), max(row[2] for row in rows)
