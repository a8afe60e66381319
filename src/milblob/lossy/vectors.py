"""Palettes whose entries are vectors: an index represents a few neighbours along an axis.

Entries are found by k-means (Lloyd's algorithm), the usual method for vectors, for which exact methods are slow. It
begins with several runs of k-means++ on a sample, and continues from the best of them with all vectors. It does not
bound the distance from the optimum; `palettize` does, for palettes of single numbers. Random numbers come from a seed,
and sums are added up in a fixed order, so results do not depend on the number of threads.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..threads import each, ordered, parts
from ..values.strided import ONCE_COUNT, Empty, fill_places, not_finite, range_of, ranges
from .loss import Loss
from .palettize import MOST_DIFFERENT, Palettized, fewest_nbits, require_palette, weights_for
from .unfit import UnfitError, refuse_not_finite

MODES = ("kmeans", "unique")

_LEAST_RESTARTS, _MOST_RESTARTS = 3, 8
_EXCHANGE_STEPS, _MOST_EXCHANGES = 6, 100
_EXCHANGE_COUNT = 1 << 24  # vectors times entries that exchanges may cost together, each step of one
_RESTART_COUNT = 1 << 22  # vectors times entries that the beginnings may cost together, beyond the least number
_PART_COUNT = 1 << 16  # vectors that one thread processes at a time, unless they are long
_LONG_COUNT = 1 << 22  # elements that one thread processes at a time, where vectors are long
_LONG = 64  # elements of a vector that is long
_APART_COUNT = 1 << 18  # elements of the vectors whose distances are computed at a time
_SAMPLE_COUNT = 1 << 14  # vectors that the beginnings are tried on, or 128 for each entry if that is more
_REFINED_COUNT = 1 << 18  # vectors that the best one is refined on, or 1024 for each entry; a few steps on all follow
_SAMPLE_STEPS, _MOST_STEPS, _LAST_STEPS = 30, 100, 4
_ENOUGH = 1e-5  # a round ends when a step gains less than this part of the error
_UNIQUE_NBYTES = 1 << 22  # of vectors as float32, that one thread sorts at a time

Array = np.ndarray[Any, Any]


class _Vectors(NamedTuple):
    """Some vectors: float32, from -1 to 1."""

    rows: Array  # shape (vectors, elements)
    weights: Array | None  # of each element; None: all alike

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self.rows)

    @property
    def dims(self) -> int:
        """How many elements each has."""
        return int(self.rows.shape[1])

    @property
    def is_weighted(self) -> bool:
        """Whether elements count differently."""
        return self.weights is not None

    def part(self, first: int, count: int) -> "_Vectors":
        """Return some of them."""
        heavy = None if self.weights is None else self.weights[first : first + count]
        return _Vectors(self.rows[first : first + count], heavy)

    def chosen(self, numbers: Array) -> "_Vectors":
        """Return the vectors with these numbers."""
        return _Vectors(self.rows[numbers], None if self.weights is None else self.weights[numbers])


class _Stored:
    """The vectors of one group where they are stored.

    `rows`: as `_rows` returns them, finite. `heavy`: weights in the same shape; None: all alike.
    """

    def __init__(self, rows: Array, heavy: Array | None) -> None:
        self._rows, self._heavy, self.dims = rows, heavy, int(rows.shape[-1])  # dims: how many elements each has
        self.size = rows.size // self.dims  # how many there are
        self.exponent = _exponent_of(rows)  # they are the elements divided by this power of two
        self._heavy_exponent = 0
        if heavy is not None:
            self._heavy_exponent = _exponent_of(heavy)
            if not any(np.float32(piece.max()) for _, piece in ranges(heavy)):
                self._heavy = None  # no vector has importance: treat all alike

    def part(self, first: int, count: int) -> _Vectors:
        """Return some of the vectors."""
        where = first * self.dims, count * self.dims, np.float32
        heavy = None if self._heavy is None else range_of(self._heavy, *where)
        return self._scaled(range_of(self._rows, *where), heavy)

    @property
    def is_weighted(self) -> bool:
        """Whether elements count differently."""
        return self._heavy is not None

    def chosen(self, numbers: Array) -> _Vectors:
        """Return the vectors with these numbers."""
        at = np.unravel_index(numbers, self._rows.shape[:-1])
        heavy = None if self._heavy is None else self._heavy[at].astype(np.float32)
        return self._scaled(self._rows[at].astype(np.float32), heavy)

    def _scaled(self, rows: Array, heavy: Array | None) -> _Vectors:
        if heavy is not None:
            heavy = np.ldexp(heavy, -self._heavy_exponent).reshape(-1, self.dims)
        return _Vectors(np.ldexp(rows, -self.exponent).reshape(-1, self.dims), heavy)


def _filled(work: _Vectors | _Stored, count: int, empty: Empty, part: Callable[[int, int], _Vectors]) -> _Vectors:
    """Return `count` vectors like those of `work`, in arrays that `empty` makes; `part(first, count)` returns some."""
    rows = empty((count, work.dims), np.float32)
    heavy = empty(rows.shape, np.float32) if work.is_weighted else None
    for first, number in _stretches(count, work.dims):
        some = part(first, number)
        rows[first : first + number] = some.rows
        if heavy is not None:
            heavy[first : first + number] = some.weights
    return _Vectors(rows, heavy)


def _stretches(count: int, dims: int) -> list[tuple[int, int]]:
    """Return (first, count) of parts of vectors, few if they are long."""
    step = max(min(_PART_COUNT, _LONG_COUNT // dims), 1)
    return [(first, min(step, count - first)) for first in range(0, count, step)]


def _exponent_of(array: Array) -> int:
    """Return the exponent of the greatest magnitude, as float32."""
    most = max(np.abs(piece.astype(np.float32)).max() for _, piece in ranges(array))
    return int(np.frexp(most)[1])


def palettize_vectors(
    array: Any,
    nbits: int | None = None,
    *,
    vector: int,
    axis: int,
    mode: str = "kmeans",
    group_size: int | None = None,
    importance: Any = None,
    seed: int = 0,
    restarts: int | None = None,
    empty: Empty = np.empty,
) -> Palettized:
    """Choose palettes of vectors for an array, and indices.

    Args:
        array: float16, bfloat16 or float32, one element or more.
        nbits: of an index: 1, 2, 3, 4, 6 or 8. None in the mode "unique": as few as hold every vector.
        vector: elements of an entry, 2 or more: neighbours along `axis`.
        axis: of the vectors, and of the groups.
        mode: "kmeans", or "unique" with an entry for each different vector, which is lossless.
        group_size: number of channels of `axis` that share a palette; None: all. A multiple of `vector`.
        importance: as for `palettize.palettize`.
        seed: of the random numbers.
        restarts: how many beginnings are tried. None: 3 to 8, the more the fewer vectors there are.
        empty: makes the array of the indices.

    Returns:
        Palettized: the indices have a `vector`-th of the length along `axis`; the palettes' last size is `vector`. Its
        figures are of the array, its gap is nan where something is lost.

    Raises:
        TypeError, ValueError: as `palettize.palettize`; `vector` does not divide the channels of a group.
    """
    array = np.asarray(array)
    dtype = require_palette(array, nbits, mode, MODES).numpy
    if importance is not None and mode != "kmeans":
        raise ValueError(f"importance: expected none in the mode {mode!r}, got some")
    if not -array.ndim <= axis < array.ndim:
        raise ValueError(f"axis: expected a dimension of {array.ndim}, got {axis}")
    axis %= array.ndim
    channels = array.shape[axis]
    size = channels if group_size is None else group_size
    if not 1 <= size <= channels or channels % size:
        raise UnfitError(f"group_size: expected a divisor of {channels}, the channels of axis {axis}, got {size}")
    if vector < 2:
        raise ValueError(f"vector: expected 2 or more, got {vector}")
    if size % vector:
        raise UnfitError(f"vector: expected 2 or more that divide the {size} channels of a palette, got {vector}")
    weights = None if importance is None else weights_for(importance, array.shape)
    refuse_not_finite(not_finite(array))
    groups = channels // size
    shape = list(array.shape)
    shape[axis] //= vector
    indices = empty(tuple(shape), np.uint8)
    views = [_rows(array, axis, size, number, vector) for number in range(groups)]
    places = [_channels(indices, axis, size // vector, number) for number in range(groups)]
    if mode == "unique":
        found = [_different(rows) for rows in views]
        nbits = fewest_nbits(max(map(len, found)), nbits, "vectors")
        for rows, entries, into in zip(views, found, places, strict=True):
            fill_places(into, partial(_look_up, rows, entries), empty)
    else:
        bits = int(nbits or 0)

        def fit(number: int) -> Array:
            heavy = None if weights is None else _rows(weights, axis, size, number, vector)
            random = np.random.default_rng((seed, number))
            stored = _Stored(views[number], heavy)
            work = partial(_fit, stored, 1 << bits, dtype, random, restarts, empty)
            return np.asarray(fill_places(places[number], work, empty))

        found = list(ordered(fit, range(groups), groups > 1 and array.nbytes > 1 << 18))
    palettes = np.zeros((groups, 1 << int(nbits or 0), vector), dtype)
    for number, entries in enumerate(found):
        palettes[number, : len(entries)] = entries
    loss = Loss()
    for rows, entries, codes in zip(views, palettes, places, strict=True):
        for first, count in _stretches(codes.size, vector):
            own = range_of(codes, first, count)
            wide = range_of(rows, first * vector, own.size * vector, np.float64).reshape(-1, vector)
            lost = entries[own].astype(np.float64) - wide
            squares = float(np.sum(lost * lost)), float(np.sum(wide * wide))
            loss = loss.plus(Loss(*squares, float(np.abs(lost).max())))
    gap = 0.0 if mode == "unique" or loss.squared == 0 else float("nan")
    wanted = [1] * array.ndim + [1 << int(nbits or 0), vector]
    wanted[axis] = groups
    return Palettized(indices, palettes.reshape(wanted), int(nbits or 0), loss, gap)


def _channels(array: Array, axis: int, size: int, number: int) -> Array:
    """Return a view of the channels of a group."""
    return array[(*(slice(None),) * axis, slice(number * size, (number + 1) * size))]


def _rows(array: Array, axis: int, size: int, number: int, vector: int) -> Array:
    """Return a view of a group, of the shape of its indices and one more dimension: the elements of each vector."""
    part = _channels(array, axis, size, number)
    shape = part.shape
    split = part.reshape(*shape[:axis], size // vector, vector, *shape[axis + 1 :])
    return np.moveaxis(split, axis + 1, -1)


def _plain(rows: Array, first: int, count: int) -> Array:
    """Return some vectors as numbers that NumPy can sort, without negative zeros."""
    plain = range_of(rows, first * rows.shape[-1], count * rows.shape[-1])
    if plain.dtype.kind != "f":  # bfloat16
        plain = plain.astype(np.float32)
    return np.asarray(plain + plain.dtype.type(0)).reshape(-1, rows.shape[-1])


def _words(vectors: Array) -> Array:
    """Return the bytes of vectors as integers of 64 bits, which NumPy sorts much faster than rows."""
    width = vectors.shape[1] * vectors.itemsize
    words = np.zeros((len(vectors), -(-width // 8)), np.uint64)
    words.view(np.uint8)[:, :width] = vectors.view(np.uint8)
    return words


def _ranked(vectors: Array) -> tuple[int, Array]:
    """Return (n, a number below n for each vector) for n distinct vectors: equal ones have equal numbers."""
    first, *rest = _words(vectors).T
    found = np.unique(first)
    ranks = np.searchsorted(found, first)
    for word in rest:
        own = np.unique(word)
        keys = ranks * len(own) + np.searchsorted(own, word)  # both fewer than the vectors of a part
        found = np.unique(keys)
        ranks = np.searchsorted(found, keys)
    return len(found), ranks


def _distinct(vectors: Array) -> Array:
    """Return the distinct ones of some vectors, in any order."""
    words = _words(vectors)
    if words.shape[1] == 1:
        found = np.unique(words).view(np.uint8).reshape(-1, 8)[:, : vectors.shape[1] * vectors.itemsize]
        return np.ascontiguousarray(found).view(vectors.dtype)
    different, ranks = _ranked(vectors)
    some = np.empty(different, np.int64)
    some[ranks] = np.arange(len(vectors))
    return np.asarray(vectors[some])


def _parts(rows: Array) -> list[tuple[int, int]]:
    return list(parts(rows.size // rows.shape[-1], 4 * rows.shape[-1], _UNIQUE_NBYTES))


def _different(rows: Array) -> Array:
    """Return the distinct vectors, in order; stop once there are more than MOST_DIFFERENT."""
    found: Array | None = None
    for own in ordered(lambda part: _distinct(_plain(rows, *part)), _parts(rows)):
        found = own if found is None else _distinct(np.concatenate((found, own)))
        if len(found) > MOST_DIFFERENT:
            return found
    return np.unique(np.asarray(found), axis=0)


def _look_up(rows: Array, entries: Array, out: Array) -> None:
    """Write the index of each vector among the entries, which are all the distinct vectors."""

    def work(part: tuple[int, int]) -> None:
        own = _plain(rows, *part)
        different, ranks = _ranked(np.concatenate((entries.astype(own.dtype), own)))
        numbers = np.empty(different, np.uint8)
        numbers[ranks[: len(entries)]] = np.arange(len(entries))
        out[part[0] : sum(part)] = numbers[ranks[len(entries) :]]

    each(work, _parts(rows))


# -------------------------------------------------------------------------------------------------------------- k-means


def _fit(
    stored: _Stored, k: int, dtype: np.dtype[Any], random: np.random.Generator, restarts: int | None, empty: Empty,
    codes: Array,
) -> Array:  # fmt: skip
    """Return entries of a dtype for vectors; write the index of the nearest of each to `codes`."""
    if restarts is None:
        restarts = min(max(_RESTART_COUNT // (stored.size * k), _LEAST_RESTARTS), _MOST_RESTARTS)
    most = max(ONCE_COUNT // stored.dims, 4 * k)  # so that samples of long vectors do not fill a disk
    work = _filled(stored, stored.size, empty, stored.part) if stored.size * stored.dims <= ONCE_COUNT else stored
    sample = _sample(work, min(max(_SAMPLE_COUNT, 128 * k), most), random, empty)
    entries = _best_beginning(sample, k, random, max(restarts, 1))
    refined = min(max(_REFINED_COUNT, 1024 * k), most)
    entries = _refined(work if work.size <= refined else _sample(work, refined, random, empty), entries, _MOST_STEPS)
    if work.size > refined:
        entries = _refined(work, entries, _LAST_STEPS)
    with np.errstate(over="ignore"):
        found = np.ldexp(entries, stored.exponent).astype(dtype)
    top = np.array(np.finfo(np.float16).max if dtype == np.float16 else np.finfo(np.float32).max, np.float32).astype(
        dtype
    )
    found = np.clip(found, -top, top) if dtype.kind == "f" else found
    _step(work, np.ldexp(found.astype(np.float32), -stored.exponent), codes)
    return np.asarray(found)


def _best_beginning(work: _Vectors, k: int, random: np.random.Generator, restarts: int) -> Array:
    """Return the entries with the least error of a few beginnings, each refined a little."""
    best, least = None, float("inf")
    for _ in range(restarts):
        entries = _refined(work, _begin(work, k, random), _SAMPLE_STEPS)
        cost = _step(work, entries)[1]
        if cost < least or best is None:
            best, least = entries, cost
        if least == 0:
            return np.asarray(best)
    return _exchanged(work, np.asarray(best), least, k, random)


def _exchanged(work: _Vectors, entries: Array, cost: float, k: int, random: np.random.Generator) -> Array:
    """Random swap clustering (Franti 2018): merge two close entries, put the free one where the error is large.

    This leaves the local minima of Lloyd's algorithm. Keeps the best entries.
    """
    if len(entries) < k or k < 3:
        return entries
    codes, lost = np.empty(work.size, np.uint8), None
    for _ in range(min(_EXCHANGE_COUNT // (work.size * k * max(work.dims // _LONG, 1)), _MOST_EXCHANGES)):
        if lost is None:  # the entries are new
            _step(work, entries, codes)
            counts, lost = np.bincount(codes, minlength=k).astype(np.float64), _apart(work, entries, codes)
            pairs = _codec.vectors_merges(entries, counts, *entries.shape)
        first, second = pairs[int(random.integers(len(pairs)))]
        tried, both = entries.copy(), max(counts[first] + counts[second], 1)
        tried[first] = (entries[first] * counts[first] + entries[second] * counts[second]) / both
        tried[second] = work.rows[_drawn(lost, random)]
        tried = _refined(work, tried, _EXCHANGE_STEPS)
        now = _step(work, tried)[1]
        if now < cost:
            entries, cost, lost = tried, now, None
    return entries


def _apart(work: _Vectors, entries: Array, codes: Array) -> Array:
    """Return the squared distance of each vector from its entry, weighted."""
    found, step = np.empty(work.size), max(_APART_COUNT // work.dims, 1)
    for first in range(0, work.size, step):
        part = work.part(first, step)
        lost = (part.rows.astype(np.float64) - entries[codes[first : first + step]]) ** 2
        found[first : first + step] = (lost if part.weights is None else lost * part.weights).sum(1)
    return found


def _sample(work: _Vectors | _Stored, count: int, random: np.random.Generator, empty: Empty) -> _Vectors:
    """Return a random sample of `count` vectors, in order, in arrays that `empty` makes; all if there are fewer."""
    if work.size <= count:
        return _filled(work, work.size, empty, work.part) if isinstance(work, _Stored) else work
    chosen = np.sort(random.choice(work.size, count, replace=False))
    return _filled(work, count, empty, lambda first, number: work.chosen(chosen[first : first + number]))


def _refined(work: _Vectors | _Stored, entries: Array, steps: int) -> Array:
    """Return the entries after at most `steps` steps of Lloyd's algorithm."""
    cost = float("inf")
    for _ in range(steps):
        moved, now = _step(work, entries)
        if not now < cost * (1 - _ENOUGH):
            break
        entries, cost = moved, now
    return entries


def _begin(work: _Vectors, k: int, random: np.random.Generator) -> Array:
    """Choose entries by k-means++: draw a few vectors by squared distance from the entries so far, keep the best."""
    count, dims = work.rows.shape
    tries, is_rows = 2 + int(np.log(k)), dims > _LONG  # columns would be a copy, which long vectors do not need
    points = random.random(1 + (k - 1) * tries)
    numbers = _flat(work.rows if is_rows else work.rows.T)
    heavy = None if work.weights is None else _flat(work.weights if is_rows else work.weights.T)
    return work.rows[_codec.vectors_begin(numbers, heavy, count, dims, is_rows, k, tries, points)]


def _flat(array: Array) -> _codec.Buffer:
    return _codec.Buffer(np.ascontiguousarray(array).reshape(-1).view(np.uint8))


def _drawn(chances: Array, random: np.random.Generator) -> int:
    """Draw an index with probabilities proportional to `chances`; uniformly if these are all zero."""
    ends = np.cumsum(chances)
    if not ends[-1] > 0:
        return int(random.integers(len(chances)))
    return min(int(np.searchsorted(ends, random.random() * ends[-1], side="right")), len(chances) - 1)


def _step(work: _Vectors | _Stored, entries: Array, codes: Array | None = None) -> tuple[Array, float]:
    """Do one step of Lloyd's algorithm: return (the mean of the vectors nearest to each entry, their error before).

    `codes`: takes the index of the nearest entry of each vector.
    """
    k, dims = entries.shape
    turned = np.ascontiguousarray(entries.T)

    def work_on(where: tuple[int, int]) -> tuple[Array, Array, float]:
        first, count = where
        part = work.part(first, count)
        source = _codec.Buffer(part.rows.reshape(-1).view(np.uint8))
        heavy = None if part.weights is None else _codec.Buffer(part.weights.reshape(-1).view(np.uint8))
        sums, totals = np.zeros((k, dims)), np.zeros((k, dims))
        out = None if codes is None else codes[first : first + count]
        cost = _codec.vectors_nearest(out, source, heavy, 0, count, turned, k, dims, sums, totals)
        return sums, totals, cost

    rows: Iterator[tuple[Array, Array, float]] = ordered(work_on, _stretches(work.size, dims))
    sums, totals, cost = next(rows)
    for more in rows:
        sums, totals, cost = sums + more[0], totals + more[1], cost + more[2]
    means = np.divide(sums, totals, out=entries.astype(np.float64), where=totals > 0)
    return means.astype(np.float32), cost
