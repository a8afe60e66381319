"""Pruning: which elements of an array become zero, and the others without them.

The same elements as coremltools prunes, ties included. It finds the threshold of a sparsity with NumPy's percentile in
the dtype of the array. In float16 the position of the threshold overflows for more than 65504 elements, and coremltools
then prunes nothing; here it is computed in float64 where that happens.
"""

from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..dtypes import DType, as_dtype
from ..threads import ordered, parts

_PART_NBYTES = 1 << 24  # that one thread processes at a time

Array = np.ndarray[Any, Any]


class Pruned(NamedTuple):
    """An array as the elements that are not zero, and where they are.

    Attributes:
        mask: packed bits, one for each element, least significant first.
        nonzero: the elements whose bit is set.
        shape: of the array.
        squared: sum of the squares of what became zero.
        power: sum of the squares of the array.
        largest: magnitude that became zero.
    """

    mask: Array
    nonzero: Array
    shape: tuple[int, ...]
    squared: float
    power: float
    largest: float

    @property
    def sparsity(self) -> float:
        """The part of the elements that are zero."""
        return 1 - self.nonzero.size / int(np.prod(self.shape))


def prune(
    array: Any,
    *,
    sparsity: float | None = None,
    threshold: float | None = None,
    n_m: tuple[int, int] | None = None,
    block: int | None = None,
    dim: int | None = None,
) -> Pruned:
    """Make elements zero: exactly one of `sparsity`, `threshold` and `n_m` says which.

    Args:
        array: float16 or float32, any memory order, one element or more.
        sparsity: the part of the elements, 0 to 1, that become zero: those of the least magnitude.
        threshold: the greatest magnitude that becomes zero.
        n_m: (n, m): of every m neighbours along `dim`, the n of the least magnitude.
        block: with `sparsity`: so many neighbours along `dim` stay or become zero together, by their norm.
        dim: 0 or 1. Default: 0 for blocks, 1 for n_m.

    Returns:
        Pruned.

    Raises:
        TypeError: elements of another dtype.
        ValueError: an element is NaN or infinite; no elements; an option that does not apply; m or block larger than
            half of the dimension, or a rank that is not 2 to 5 where there are neighbours.
    """
    array = np.asarray(array)
    kind = as_dtype(array.dtype)
    if kind not in (DType.FLOAT16, DType.FLOAT32):
        raise TypeError(f"array: expected float16 or float32, got {array.dtype}")
    if array.size == 0:
        raise ValueError(f"array: expected elements, got shape {array.shape}")
    if sum(option is not None for option in (sparsity, threshold, n_m)) != 1:
        raise ValueError("prune: expected exactly one of sparsity, threshold and n_m, got another number of them")
    array = np.ascontiguousarray(array, kind.numpy).reshape(array.shape)
    top = _count(array)
    infinite = 0x7C00 if kind is DType.FLOAT16 else 0x7F80
    bad = int(top[infinite:].sum())
    if bad:
        raise ValueError(f"array: expected finite elements, got {bad} that are NaN or infinite")
    if block is not None or n_m is not None:
        if threshold is not None:
            raise ValueError("block: expected None with a threshold, got a size")
        axis = (0 if n_m is None else 1) if dim is None else dim
        _require_neighbours(array.shape, axis, n_m[1] if n_m is not None else block)
        return _neighbours(array, sparsity, n_m, block, axis)
    if dim is not None:
        raise ValueError(f"dim: expected None without block and n_m, got {dim}")
    if threshold is not None:
        if not threshold >= 0:
            raise ValueError(f"threshold: expected zero or more, got {threshold}")
        with np.errstate(over="ignore"):
            return _split(array, _bits(np.array(threshold).astype(array.dtype)), top)
    return _split(array, _cut(array, top, _sparsity(sparsity)), top)


def _sparsity(value: float | None) -> float:
    if value is None or not 0 <= value <= 1:
        raise ValueError(f"sparsity: expected 0 to 1, got {value}")
    return value


def _require_neighbours(shape: tuple[int, ...], dim: int, size: int | None) -> None:
    if not 2 <= len(shape) <= 5:
        raise ValueError(f"array: expected 2 to 5 dimensions, where neighbours are pruned, got {shape}")
    if dim not in (0, 1):
        raise ValueError(f"dim: expected 0 or 1, got {dim}")
    if size is None or size < 1 or size > shape[dim] / 2:
        raise ValueError(f"neighbours: expected at most half of the {shape[dim]} of dimension {dim}, got {size}")


def _bits(value: Any) -> int:
    """The bits of a magnitude."""
    number = np.asarray(value)
    return int(number.view(np.uint16 if number.dtype.itemsize == 2 else np.uint32))


def _count(array: Array) -> Array:
    """How many elements have each of the upper 15 bits of a magnitude."""
    source = _codec.Buffer(array.reshape(-1).view(np.uint8))
    size = array.dtype.itemsize

    def work(part: tuple[int, int]) -> Array:
        counts = np.zeros(_codec.MAGNITUDES, np.uint64)
        _codec.prune_count(counts, source, size * part[0], part[1], size == 2)
        return counts

    return np.asarray(sum(ordered(work, parts(array.size, size, _PART_NBYTES))))


def _cut(array: Array, top: Array, sparsity: float) -> int:
    """The bits of the greatest magnitude that is pruned, from NumPy's percentile."""
    percent = sparsity * 100
    if percent == 100:
        return 0x7FFFFFFF
    if percent == 0:
        return 0  # zeros are not stored
    count, dtype = array.size, array.dtype.type
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
    low, high = _ordered(array, top, (first, min(second, count - 1)))
    with np.errstate(over="ignore", invalid="ignore"):
        wide = high - low
        value = high - wide * (1 - along) if along >= 0.5 else low + wide * along
    if np.isnan(value):  # norms that overflow; nothing is at most that
        return 0
    # In a comparison with the array, a NumPy number of a wider dtype makes both wide: what rounds up to it stays above.
    wanted = np.asarray(value)
    narrow = wanted.astype(array.dtype)
    return _bits(narrow) - int(narrow > wanted)


def _ordered(array: Array, top: Array, positions: tuple[int, int]) -> list[Any]:
    """The magnitudes at these positions of the sorted ones."""
    ends = np.cumsum(top)
    found: list[Any] = []
    for position in positions:
        rank = int(np.searchsorted(ends, position, side="right"))
        if array.dtype.itemsize == 2:
            found.append(np.uint16(rank).view(np.float16))
            continue
        many, before = int(top[rank]), int(ends[rank]) - int(top[rank])
        members = np.empty(many, np.uint32)
        source = _codec.Buffer(array.reshape(-1).view(np.uint8))
        got = _codec.prune_collect(members, many, source, 0, array.size, rank)
        if got != many:
            raise ValueError(f"array: expected {many} elements as counted before, got {got}: it changed meanwhile")
        found.append(np.partition(members, position - before)[position - before].view(np.float32))
    return found


def _split(array: Array, cut: int, top: Array) -> Pruned:
    """Divide an array into its mask and the elements above `cut`; in parts of whole bytes of the mask.

    Args:
        top: what `_count` says of the array.
    """
    source, size = _codec.Buffer(array.reshape(-1).view(np.uint8)), array.dtype.itemsize
    mask = np.empty((array.size + 7) // 8, np.uint8)

    def work(part: tuple[int, int]) -> tuple[Array, tuple[float, float, float]]:
        first, count = part
        bits = mask[first // 8 : (first + count + 7) // 8]
        kept = np.empty(count, array.dtype)
        number = _codec.prune_split(bits, kept.view(np.uint8), source, size * first, count, size == 2, cut)
        error = _codec.prune_measure(source, size * first, count, cut) if size == 4 else (0.0, 0.0, 0.0)
        return kept[:number].copy(), error

    rows = list(ordered(work, parts(array.size, size, _PART_NBYTES)))
    nonzero = np.concatenate([row[0] for row in rows])
    if size == 2:
        return Pruned(mask, nonzero, array.shape, *_measured(top, cut))
    squared, power = sum(row[1][0] for row in rows), sum(row[1][1] for row in rows)
    return Pruned(mask, nonzero, array.shape, squared, power, max(row[1][2] for row in rows))


def _measured(top: Array, cut: int) -> tuple[float, float, float]:
    """(squared error, power, largest error) of float16 elements, from the counts of their magnitudes."""
    bits = np.flatnonzero(top)
    numbers, counts = bits.astype(np.uint16).view(np.float16).astype(np.float64), top[bits].astype(np.float64)
    lost = bits <= cut
    squares = counts * numbers * numbers
    return float(squares[lost].sum()), float(squares.sum()), float(numbers[lost].max(initial=0.0))


def _neighbours(
    array: Array, sparsity: float | None, n_m: tuple[int, int] | None, block: int | None, dim: int
) -> Pruned:
    """Prune blocks, or n of m, with the steps of coremltools: which of equals become zero depends on them."""
    turned = array if dim == 0 else np.swapaxes(array, 0, 1)
    if n_m is not None:
        n, m = n_m
        if not 0 <= n <= m:
            raise ValueError(f"n_m: expected 0 <= n <= m, got {n_m}")
        order = (*range(2, array.ndim), 1 - dim, dim)
        rows = np.transpose(array, order)
        flat = np.abs(np.pad(rows.reshape(-1, rows.shape[-1]), ((0, 0), (0, -rows.shape[-1] % m))))
        drop = np.zeros((flat.size // m, m), bool)
        np.put_along_axis(drop, np.argsort(flat.reshape(-1, m), axis=-1)[:, :n], True, axis=-1)
        drop = drop.reshape(flat.shape)[:, : rows.shape[-1]].reshape(rows.shape)
        drop = np.transpose(drop, np.argsort(order))
    else:
        size, channels = block or 1, turned.shape[0]
        with np.errstate(over="ignore", invalid="ignore"):
            padded = np.pad(np.abs(turned), [(0, -channels % size)] + [(0, 0)] * (array.ndim - 1))
            grouped = padded.reshape(-1, size, *turned.shape[1:])
            norms = np.sqrt(np.sum(grouped * grouped, axis=1, keepdims=True))
        norms = np.broadcast_to(norms, grouped.shape).reshape(padded.shape)[:channels]
        norms = np.ascontiguousarray(norms if dim == 0 else np.swapaxes(norms, 0, 1))
        cut = _cut(norms, _count(norms), _sparsity(sparsity))
        drop = np.less_equal(norms.view(f"u{norms.dtype.itemsize}"), cut)
        if sparsity == 0:
            drop = np.zeros(array.shape, bool)
    rest = np.where(drop, array.dtype.type(0), array)
    kept = _split(rest, 0, _count(rest))
    lost = array[drop].astype(np.float64)
    squared = float(np.sum(lost * lost))
    largest = float(np.abs(lost).max()) if lost.size else 0.0
    return kept._replace(squared=squared, power=kept.power + squared, largest=largest)
