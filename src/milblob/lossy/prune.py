"""Pruning: which elements of an array become zero, and the others without them.

The same elements as coremltools prunes, ties included. It finds the threshold of a sparsity with NumPy's percentile in
the dtype of the array. In float16 the position of the threshold overflows for more than 65504 elements, and coremltools
then prunes nothing; here it is computed in float64 where that happens.

`Pruner` reads an array twice: the first pass counts, so that the sizes of the results are known; the second yields
them, a stretch at a time. So an array of any size needs little memory of its own.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import partial
from math import gcd, prod
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..dtypes import DType, as_dtype
from ..errors import FormatError
from ..threads import ordered, parts
from ..values.strided import Empty
from .loss import Loss
from .unfit import UnfitError, refuse_not_finite

_PART_NBYTES = 1 << 22  # that one thread processes at a time
_KEPT_NBYTES = 1 << 24  # of sums of blocks that are kept for the next pass; the others are computed again
_TIES_COUNT = 1 << 18  # elements in groups with ties that are sorted at a time

Array = np.ndarray[Any, Any]
_Part = tuple[int, int]  # first element, count


class Pruned(NamedTuple):
    """An array as its nonzero elements and their places."""

    mask: Array  # packed bits, one for each element, least significant first
    nonzero: Array  # the elements whose bit is set
    shape: tuple[int, ...]  # of the array
    loss: Loss

    @property
    def sparsity(self) -> float:
        """The part of the elements that are zero."""
        return 1 - self.nonzero.size / prod(self.shape)


def prune(array: Any, *, empty: Empty = np.empty, **options: Any) -> Pruned:
    """Make elements zero.

    `options`: of Pruner. `empty`: makes the arrays of the result.
    Raises: As Pruner.
    """
    work = Pruner(array, **options, empty=empty)
    mask, nonzero = empty((prod(work.shape) + 7) // 8, np.uint8), empty(work.count, work.dtype)
    for begin, bits, first, kept in work.stretches():
        mask[begin // 8 :][: bits.size] = bits
        nonzero[first : first + kept.size] = kept
    return Pruned(mask, nonzero, work.shape, work.loss)


class Pruner:
    """Makes elements of an array zero, a stretch at a time. Exactly one of `sparsity`, `threshold` and `n_m` is given.

    Args:
        array: float16 or float32, any memory order, one element or more.
        sparsity: the part of the elements, 0 to 1, that become zero: those of the least magnitude.
        threshold: the greatest magnitude that becomes zero.
        n_m: (n, m): of every m neighbours along `dim`, the n of the least magnitude.
        block: with `sparsity`: number of neighbours along `dim` that are kept or pruned together, by their norm.
        dim: 0 or 1. Default: 0 for blocks, 1 for n_m.
        empty: makes the mask of the kept neighbours; it lives as long as this object.

    Raises:
        TypeError: elements of another dtype.
        ValueError: an element is NaN or infinite; no elements; an option that does not apply; m or block larger than
            half of the dimension, or a rank that is not 2 to 5 where there are neighbours.
    """

    def __init__(
        self,
        array: Any,
        *,
        sparsity: float | None = None,
        threshold: float | None = None,
        n_m: tuple[int, int] | None = None,
        block: int | None = None,
        dim: int | None = None,
        empty: Empty = np.empty,
    ) -> None:
        array = np.asarray(array)
        kind = as_dtype(array.dtype)
        if kind not in (DType.FLOAT16, DType.FLOAT32):
            raise TypeError(f"array: expected float16 or float32, got {array.dtype}")
        if array.size == 0:
            raise UnfitError(f"array: expected elements, got shape {array.shape}")
        require_one(sparsity=sparsity, threshold=threshold, n_m=n_m)
        self.shape, self.dtype = array.shape, kind.numpy  # shape, dtype: of the array
        self.loss = Loss()  # once all stretches were yielded
        self._array = np.ascontiguousarray(array, kind.numpy).reshape(array.shape)
        self._flat = self._array.reshape(-1)
        self._mask: Array | None = None  # of all elements, where neighbours decide
        self._unit = 0  # rows that a part cannot divide; 0 if neighbours play no role
        if block is None and n_m is None and dim is not None:
            raise ValueError(f"dim: expected None without block and n_m, got {dim}")
        if threshold is not None and (block is not None or n_m is not None):
            raise ValueError("block: expected None with a threshold, got a size")
        if threshold is not None and not threshold >= 0:
            raise ValueError(f"threshold: expected zero or more, got {threshold}")
        if block is not None or n_m is not None:
            axis = (0 if n_m is None else 1) if dim is None else dim
            _require_neighbours(array.shape, axis, n_m[1] if n_m is not None else block)
            self._choose_neighbours(sparsity, n_m, block or 1, axis, empty)
            return
        magnitudes = _Magnitudes(self._tally, self.dtype, self._parts)
        top = magnitudes.counts
        refuse_not_finite(int(top[0x7C00 if kind is DType.FLOAT16 else 0x7F80 :].sum()))
        with np.errstate(over="ignore"):
            given = None if threshold is None else _bits(np.array(threshold).astype(self.dtype))
        self._cut = max(magnitudes.cut(_sparsity(sparsity)), 0) if given is None else given  # zeros are not stored
        self.count = magnitudes.above(self._cut)  # number of elements that are kept
        if kind is DType.FLOAT16:
            self.loss = Loss(*_measured(top, self._cut))

    def _choose_neighbours(
        self, sparsity: float | None, n_m: tuple[int, int] | None, size: int, dim: int, empty: Empty
    ) -> None:
        """Choose the neighbours to prune, and count the elements to keep."""
        self._cut = 0
        if n_m is not None:
            n, m = n_m
            if not 0 <= n <= m:
                raise ValueError(f"n_m: expected 0 <= n <= m, got {n_m}")
            self._unit = m if dim == 0 else 1
            choose: Callable[[_Part], tuple[int, Array]] = partial(self._chosen_of_m, n=n, m=m, dim=dim)
        else:
            self._unit = size if dim == 0 else 1
            choose = self._choose_blocks(_sparsity(sparsity), size, dim)
        mask = self._mask = empty((self._flat.size + 7) // 8, np.uint8)

        def work(part: _Part) -> int:
            count, own = choose(part)
            mask[part[0] // 8 :][: own.size] = own
            return count

        self.count = sum(ordered(work, self._parts(), self._is_much))

    def _choose_blocks(self, sparsity: float, size: int, dim: int) -> Callable[[_Part], tuple[int, Array]]:
        """Return a function that chooses the blocks to keep. It compares sums of squares: roots keep their order."""
        is_f16, shape = self.dtype.itemsize == 2, self.shape

        def blocks_of(part: _Part) -> Any:
            count = part[1] // prod(shape[1:])
            if dim == 0:
                return _codec.PruneBlocks(1, count, prod(shape[1:]), size, is_f16)
            return _codec.PruneBlocks(count, shape[1], prod(shape[2:]), size, is_f16)

        kept: dict[_Part, Array] = {}  # while there is room: memory does not grow with the array

        def sums_of(part: _Part) -> Array:
            if part in kept:
                return kept[part]
            blocks = blocks_of(part)
            sums = np.empty(blocks.sums_count, self.dtype)
            if blocks.sums(sums.view(np.uint8), _codec.Buffer(self._elements(part).view(np.uint8)), 0):
                self._refuse_not_finite()
            if (len(kept) + 1) * sums.nbytes <= _KEPT_NBYTES:  # threads may see the same room: a part or two too much
                kept[part] = sums
            return sums

        def tally(part: _Part, top: int | None) -> Array:
            counts = np.zeros(_codec.MAGNITUDES if top is None else 1 << 16, np.uint64)
            blocks_of(part).tally(counts, _codec.Buffer(sums_of(part).view(np.uint8)), top)
            return counts

        cut = _Magnitudes(tally, self.dtype, self._parts, is_squared=True).cut(sparsity) if sparsity != 0 else -1

        def choose(part: _Part) -> tuple[int, Array]:
            mask, sums = np.empty((part[1] + 7) // 8, np.uint8), _codec.Buffer(sums_of(part).view(np.uint8))
            source = _codec.Buffer(self._elements(part).view(np.uint8))
            return blocks_of(part).choose(mask, source, 0, sums, cut), mask

        return choose if cut >= 0 else lambda part: self._not_zero(self._elements(part))

    def _chosen_of_m(self, part: _Part, n: int, m: int, dim: int) -> tuple[int, Array]:
        """Return (number of kept elements, mask of them): the n least of every m neighbours are pruned."""
        elements, outer, channels = self._elements(part), 1, part[1] // prod(self.shape[1:])
        if dim == 1:
            outer, channels = channels, self.shape[1]
        inner = elements.size // (outer * channels)
        ties = np.empty(outer * -(-channels // m) * inner, np.uint64)
        if m > _codec.NEIGHBOURS:
            number, mask = self._not_zero(elements)
            return number - _drop_ties(mask, elements, np.arange(ties.size), channels, inner, n, m), mask
        mask, is_f16 = np.empty((elements.size + 7) // 8, np.uint8), self.dtype.itemsize == 2
        number, found, is_finite = _codec.prune_neighbours(
            mask, ties, _codec.Buffer(elements.view(np.uint8)), 0, outer, channels, inner, is_f16, n, m
        )
        if not is_finite:
            self._refuse_not_finite()
        return number - _drop_ties(mask, elements, ties[:found].astype(np.int64), channels, inner, n, m), mask

    def _refuse_not_finite(self) -> None:
        """Raise UnfitError with the number of elements that are not finite, or 1 if another thread overwrote them."""
        is_f16 = self.dtype.itemsize == 2

        def bad(part: _Part) -> int:
            return _codec.not_finite(_codec.Buffer(self._elements(part).view(np.uint8)), 0, is_f16, part[1])

        refuse_not_finite(max(sum(ordered(bad, self._parts(), self._is_much)), 1))

    def _not_zero(self, elements: Array) -> tuple[int, Array]:
        """Return (number of nonzero elements, mask of them)."""
        if _codec.not_finite(_codec.Buffer(elements.view(np.uint8)), 0, self.dtype.itemsize == 2, elements.size):
            self._refuse_not_finite()
        mask, spare = np.empty((elements.size + 7) // 8, np.uint8), np.empty(elements.nbytes, np.uint8)
        source = _codec.Buffer(elements.view(np.uint8))
        number, _ = _codec.prune_split(mask, spare, source, 0, elements.size, self.dtype.itemsize == 2, 0)
        return number, mask

    def stretches(self) -> Iterator[tuple[int, Array, int, Array]]:
        """Yield the stretches of the array in order; they do not depend on the number of threads.

        Each is the index of its first element, a multiple of eight; the packed bits of its mask; the number of elements
        kept before it; and the kept ones of its elements.

        Raises: FormatError: the array has changed since it was counted.
        """
        loss, first, is_same = Loss(), 0, True
        for begin, mask, nonzero, lost in ordered(self._split, self._parts(), self._is_much):
            is_same = nonzero.size <= self.count - first
            if not is_same:
                break
            yield begin, mask, first, nonzero
            first += nonzero.size
            loss = loss.plus(lost)
        if first != self.count or not is_same:
            message = f"expected {self.count} elements to keep, as counted before, got another number"
            raise FormatError(f"array: {message}: it changed while it was read")
        if self._mask is not None or self.dtype.itemsize == 4:
            self.loss = loss

    @property
    def _is_much(self) -> bool:
        return self._flat.nbytes > _PART_NBYTES

    def _parts(self) -> Iterator[tuple[int, int]]:
        """Yield (first element, count) of parts: whole bytes of the mask, and whole groups of neighbouring rows."""
        if self._unit == 0:
            yield from parts(self._flat.size, self.dtype.itemsize, _PART_NBYTES)
            return
        unit = self._unit * prod(self.shape[1:])
        unit *= 8 // gcd(8, unit)
        step = max(_PART_NBYTES // 2 // self.dtype.itemsize // unit, 1) * unit
        for begin in range(0, self._flat.size, step):
            yield begin, min(step, self._flat.size - begin)

    def _elements(self, part: tuple[int, int]) -> Array:
        return self._flat[part[0] : sum(part)]

    def _tally(self, part: _Part, top: int | None) -> Array:
        elements = self._elements(part)
        source, count = _codec.Buffer(elements.view(np.uint8)), elements.size
        if top is None:
            counts = np.zeros(_codec.MAGNITUDES, np.uint32)
            _codec.prune_count(counts, source, 0, count, self.dtype.itemsize == 2)
        else:
            counts = np.zeros(1 << 16, np.uint64)
            _codec.prune_count_below(counts, source, 0, count, top)
        return counts

    def _split(self, part: _Part) -> tuple[int, Array, Array, Loss]:
        """Return (first element, mask, the kept elements, what is lost)."""
        begin, count = part
        mask, kept = np.empty((count + 7) // 8, np.uint8), np.empty(count, self.dtype)
        source, is_f16 = _codec.Buffer(self._elements(part).view(np.uint8)), self.dtype.itemsize == 2
        out = kept.view(np.uint8)
        if self._mask is None:
            number, lost = _codec.prune_split(mask, out, source, 0, count, is_f16, self._cut)
        else:
            chosen = _codec.Buffer(self._mask[begin // 8 :][: mask.size])
            number, lost = _codec.prune_chosen(mask, out, chosen, source, 0, count, is_f16)
        return begin, mask, kept[:number], Loss(*lost)


class _Magnitudes:
    """The magnitudes of many elements, in parts: counted by their upper 15 bits, which for float16 are all.

    `tally`: (part, top) returns how many elements have each of the upper 15 bits of a magnitude, or, of float32
    elements that have the upper bits `top`, each of the lower 16. `is_squared`: squares of the magnitudes are tallied.
    """

    def __init__(
        self,
        tally: Callable[[_Part, int | None], Array],
        dtype: np.dtype[Any],
        parts_of: Callable[[], Iterator[_Part]],
        *,
        is_squared: bool = False,
    ) -> None:
        self._tally, self._parts_of, self.dtype, self._is_squared = tally, parts_of, dtype, is_squared
        self._below: dict[int, Array] = {}
        self.counts = self._counted(_codec.MAGNITUDES, None)
        self.size = int(self.counts.sum())

    def _counted(self, size: int, top: int | None) -> Array:
        found = np.zeros(size, np.uint64)
        for counts in ordered(lambda part: self._tally(part, top), self._parts_of()):
            found += counts
        return found

    def below(self, top: int) -> Array:
        """Return the counts of the lower 16 bits of float32 elements with these upper bits."""
        if top not in self._below:
            found = self._counted(1 << 16, top)
            if int(found.sum()) != int(self.counts[top]):
                message = f"expected {self.counts[top]} elements as counted before, got {found.sum()}"
                raise FormatError(f"array: {message}: it changed while it was read")
            self._below[top] = found
        return self._below[top]

    def above(self, cut: int) -> int:
        """Return how many magnitudes are above the one with these bits."""
        if self.dtype.itemsize == 2:
            return int(self.counts[cut + 1 :].sum())
        top, low = cut >> 16, cut & 0xFFFF
        more = int(self.counts[top + 1 :].sum())
        if top < self.counts.size and self.counts[top]:
            more += int(self.below(top)[low + 1 :].sum())
        return more

    def at(self, position: int) -> Any:
        """Return the magnitude at a position of the sorted ones."""
        ends = np.cumsum(self.counts)
        rank = int(np.searchsorted(ends, position, side="right"))
        if self.dtype.itemsize == 2:
            return self._magnitude(rank)
        before = int(ends[rank]) - int(self.counts[rank])
        low = int(np.searchsorted(np.cumsum(self.below(rank)), position - before, side="right"))
        return self._magnitude(rank << 16 | low)

    def _magnitude(self, bits: int) -> Any:
        number = np.uint16(bits).view(np.float16) if self.dtype.itemsize == 2 else np.uint32(bits).view(np.float32)
        return np.sqrt(number) if self._is_squared else number

    def cut(self, sparsity: float) -> int:
        """Return the bits of the greatest number that is pruned, from NumPy's percentile of magnitudes; -1 for none."""
        percent = sparsity * 100
        if percent == 100:
            return 0x7FFFFFFF
        if percent == 0:
            return -1
        count, dtype = self.size, self.dtype.type
        with np.errstate(over="ignore", invalid="ignore"):
            part = np.asarray(np.true_divide(percent, dtype(100)))
            at = np.asanyarray((count - 1) * part)
        if not np.isfinite(at):
            at = np.asanyarray((count - 1) * (percent / 100))
        before = np.floor(at)
        if at >= count - 1:
            first, second, along = count - 1, count - 1, np.asanyarray(at - before)
        else:
            first, second, along = int(before), int(before + 1), np.asanyarray(at - before, at.dtype)
        low, high = self.at(first), self.at(min(second, count - 1))
        with np.errstate(over="ignore", invalid="ignore"):
            wide = high - low
            value = high - wide * (1 - along) if along >= 0.5 else low + wide * along
        if np.isnan(value):  # norms that overflow; no number is at most NaN
            return -1
        # NumPy compares in the wider dtype, so an element that only rounding makes equal is above.
        wanted = np.asarray(value)
        narrow = wanted.astype(self.dtype)
        bits = _bits(narrow) - int(narrow > wanted)
        if not self._is_squared:
            return bits
        infinity = 0x7C00 if self.dtype.itemsize == 2 else 0x7F800000
        return bisect_right(range(infinity + 1), bits, key=lambda square: _bits(self._magnitude(square))) - 1


def require_one(**options: object) -> None:
    """Require exactly one of the options that select what is pruned. Raises: ValueError."""
    given = [name for name, value in options.items() if value is not None]
    if len(given) != 1:
        *names, last = options
        message = f"prune: expected exactly one of {', '.join(names)} and {last}"
        raise ValueError(f"{message}, got {' and '.join(given) or 'none'}")


def _sparsity(value: float | None) -> float:
    if value is None or not 0 <= value <= 1:
        raise ValueError(f"sparsity: expected 0 to 1, got {value}")
    return value


def _require_neighbours(shape: tuple[int, ...], dim: int, size: int | None) -> None:
    if not 2 <= len(shape) <= 5:
        raise UnfitError(f"array: expected 2 to 5 dimensions, where neighbours are pruned, got {shape}")
    if dim not in (0, 1):
        raise ValueError(f"dim: expected 0 or 1, got {dim}")
    if size is None or size < 1 or size > shape[dim] / 2:
        raise UnfitError(f"neighbours: expected at most half of the {shape[dim]} of dimension {dim}, got {size}")


def _bits(value: Any) -> int:
    """Return the bits of a magnitude."""
    number = np.asarray(value)
    return int(number.view(np.uint16 if number.dtype.itemsize == 2 else np.uint32))


def _measured(top: Array, cut: int) -> tuple[float, float, float]:
    """Return (squared error, power, largest error) of float16 elements, from the counts of their magnitudes."""
    bits = np.flatnonzero(top)
    numbers, counts = bits.astype(np.uint16).view(np.float16).astype(np.float64), top[bits].astype(np.float64)
    lost = bits <= cut
    squares = counts * numbers * numbers
    return float(squares[lost].sum()), float(squares.sum()), float(numbers[lost].max(initial=0.0))


def _drop_ties(mask: Array, elements: Array, groups: Array, channels: int, inner: int, n: int, m: int) -> int:
    """Clear the bits of the n least of m neighbours in some groups; return how many were set.

    Which of equals are the least depends on the steps: they are coremltools'.

    `mask`: a bit for each element. `groups`: their numbers, counted through [outer][group of the channels][inner].
    """
    cleared, count = 0, -(-channels // m)
    for first in range(0, groups.size, _TIES_COUNT // m + 1):
        some = groups[first : first + _TIES_COUNT // m + 1]
        group = some // inner
        channel = group % count * m + np.arange(m)[:, None]
        at = ((group // count * channels + channel) * inner + some % inner).T
        is_there = channels > channel.T
        sizes = np.where(is_there, np.abs(elements[np.where(is_there, at, 0)]), elements.dtype.type(0))
        least = np.argsort(sizes, axis=-1)[:, :n]
        dropped = np.take_along_axis(at, least, 1)[np.take_along_axis(is_there, least, 1)]
        bits = np.uint8(1) << (dropped & 7).astype(np.uint8)
        cleared += int(np.count_nonzero(mask[dropped >> 3] & bits))
        np.bitwise_and.at(mask, dropped >> 3, ~bits)
    return cleared
