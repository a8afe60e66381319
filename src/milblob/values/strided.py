"""Arrays of any strides a piece at a time: ranges of their elements in row-major order, and boxes.

So no copy is as long as the array, for any strides and dtype.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from ..threads import parts

Array = np.ndarray[Any, Any]
Empty = Callable[[Any, Any], Array]
"""Makes an array of a shape and a dtype, as `numpy.empty` does. Another one may put large arrays into files."""

PIECE_COUNT = 1 << 20
"""Elements of temporaries."""

ONCE_COUNT = 1 << 26
"""Elements that are made contiguous once. Of more, which would fill a disk, each pass makes the parts that it needs."""


def range_of(array: Array, begin: int, count: int, dtype: Any = None) -> Array:
    """Return elements [begin, begin + count) in row-major order, contiguous and aligned; a view where possible.

    `dtype`: of the result; None: that of the array.
    """
    kind = array.dtype if dtype is None else np.dtype(dtype)
    if array.flags.c_contiguous:
        # Views of a file, such as one in an .npz, may begin anywhere; `astype` alone would leave them there.
        return np.require(array.reshape(-1)[begin : begin + count], kind, "A")
    out = np.empty(count, kind)
    _gather(array, begin, out)
    return out


def _gather(array: Array, begin: int, out: Array) -> None:
    if array.ndim == 1:
        out[:] = array[begin : begin + out.size]
        return
    inner, done = prod(array.shape[1:]), 0
    row, skipped = divmod(begin, inner)
    if skipped:
        done = min(inner - skipped, out.size)
        _gather(array[row], skipped, out[:done])
        row += 1
    rows = (out.size - done) // inner
    if rows:
        out[done : done + rows * inner].reshape(rows, *array.shape[1:])[:] = array[row : row + rows]
        done += rows * inner
    if done < out.size:
        _gather(array[row + rows], 0, out[done:])


def ranges(array: Array) -> Iterator[tuple[int, Array]]:
    """Yield (begin, elements) of pieces of an array, in row-major order."""
    for begin, count in parts(array.size, 1, PIECE_COUNT):
        yield begin, range_of(array, begin, count)


def vector_of(array: Array, dtype: Any, empty: Empty) -> Array:
    """Return all elements as a vector, aligned: a view where they are stored so, else a copy in a new array."""
    if array.flags.c_contiguous and array.flags.aligned and array.dtype == dtype:
        return array.reshape(-1)
    out = empty(array.shape, dtype)
    out[...] = array
    return out.reshape(-1)


def fill_places(array: Array, fill: Callable[[Array], Any], empty: Empty) -> Any:
    """Call `fill` with a vector for all elements of an array; return its result."""
    if array.flags.c_contiguous:
        return fill(array.reshape(-1))
    out = empty(array.size, array.dtype)
    found = fill(out)
    array[...] = out.reshape(array.shape)
    return found


def boxes(shape: tuple[int, ...], most: int = PIECE_COUNT) -> Iterator[tuple[slice, ...]]:
    """Yield indices of parts that cover an array, each of at most `most` elements, in row-major order."""
    inner = prod(shape[1:])
    if not shape or prod(shape) <= most:
        yield tuple(slice(0, length) for length in shape)
    elif inner <= most:
        step = most // inner
        for first in range(0, shape[0], step):
            yield slice(first, min(first + step, shape[0])), *(slice(0, length) for length in shape[1:])
    else:
        for row in range(shape[0]):
            for rest in boxes(shape[1:], most):
                yield slice(row, row + 1), *rest


def computed(shape: tuple[int, ...], dtype: Any, work: Callable[[tuple[slice, ...]], Any], empty: Empty) -> Array:
    """Return a new array; `work` returns the values of each box."""
    out = empty(shape, dtype)
    for box in boxes(shape):
        out[box] = work(box)
    return out


def is_finite(array: Array) -> bool:
    """Whether no element is NaN or infinite."""
    return all(np.isfinite(piece).all() for _, piece in ranges(array))


def not_finite(array: Array) -> int:
    """Return how many elements are NaN or infinite."""
    return sum(int(np.count_nonzero(~np.isfinite(piece))) for _, piece in ranges(array))


def selected(array: Array, mask: Array, empty: Empty) -> Array:
    """Return the elements whose mask is true, as `array[mask]`. `mask`: bools in the shape of the array."""
    count = sum(int(np.count_nonzero(piece)) for _, piece in ranges(mask))
    out, done = empty(count, array.dtype), 0
    for begin, chosen in ranges(mask):
        some = range_of(array, begin, chosen.size)[chosen]
        out[done : done + some.size] = some
        done += some.size
    return out


def packed_mask(mask: Array, empty: Empty) -> Array:
    """Return bools as bits, least significant first."""
    out = empty((mask.size + 7) // 8, np.uint8)
    for begin, piece in ranges(mask):
        bits = np.packbits(piece, bitorder="little")
        out[begin // 8 : begin // 8 + bits.size] = bits
    return out


def unpacked_mask(bits: Array, shape: tuple[int, ...], empty: Empty) -> Array:
    """Return the bools that bits are, least significant first."""
    out = empty(shape, np.bool_)
    flat = out.reshape(-1)
    for begin, count in parts(flat.size, 1, PIECE_COUNT):
        some = bits[begin // 8 : (begin + count + 7) // 8]
        flat[begin : begin + count] = np.unpackbits(some, count=count, bitorder="little").view(bool)
    return out
