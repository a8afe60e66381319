"""Palettes whose entries are vectors: an index stands for a few neighbours along an axis.

Entries are found by k-means. It begins with k-means++ on a sample, several times, and goes on from the best beginning
with all vectors. Nothing says how far the result is from the best there is; for palettes of numbers there is
`palettize`. Random numbers come from a seed, and sums are added up in an order of their own, so results do not depend
on the number of threads.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..threads import ordered
from .palettize import NBITS, Palettized, require_palette, weights_for
from .unfit import UnfitError

MODES = ("kmeans", "unique")

_LEAST_RESTARTS, _MOST_RESTARTS = 3, 8
_CLOSEST, _EXCHANGE_STEPS, _MOST_EXCHANGES = 8, 6, 100
_EXCHANGE_COUNT = 1 << 24  # vectors times entries that exchanges may cost together, each step of one
_RESTART_COUNT = 1 << 22  # vectors times entries that the beginnings may cost together, beyond the least number
_PART_COUNT = 1 << 16  # vectors that one thread processes at a time
_SAMPLE_COUNT = 1 << 14  # vectors that the beginnings are tried on, or 128 for each entry if that is more
_REFINED_COUNT = 1 << 18  # vectors that the best one is refined on, or 1024 for each entry; a few steps on all follow
_SAMPLE_STEPS, _MOST_STEPS, _LAST_STEPS = 30, 100, 4
_ENOUGH = 1e-5  # a gain of less than this part of the error ends a round of steps

Array = np.ndarray[Any, Any]


class _Vectors(NamedTuple):
    """The vectors of one group: float32, from -1 to 1.

    Attributes:
        rows: shape (vectors, elements).
        weights: of each element; None: all alike.
        exponent: `rows` are the elements divided by this power of two.
    """

    rows: Array
    weights: Array | None
    exponent: int


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
) -> Palettized:
    """Choose palettes of vectors for an array, and indices.

    Args:
        array: float16, bfloat16 or float32, one element or more.
        nbits: of an index: 1, 2, 3, 4, 6 or 8. None in the mode "unique": as few as hold every vector.
        vector: elements of an entry, 2 or more: neighbours along `axis`.
        axis: of the vectors, and of the groups.
        mode: "kmeans", or "unique" with an entry for each vector that there is, which loses nothing.
        group_size: so many channels of `axis` share a palette; None: all. A multiple of `vector`.
        importance: as for `palettize.palettize`.
        seed: of the random numbers.
        restarts: how many beginnings are tried. None: 3 to 8, the more the fewer vectors there are.

    Returns:
        Palettized: the indices have a `vector`-th of the length along `axis`; the palettes' last size is `vector`. Its
        figures are of the array, its gap is nan where something is lost.

    Raises:
        TypeError, ValueError: as `palettize.palettize`; `vector` does not divide the channels of a group.
    """
    array = np.asarray(array)
    require_palette(array, nbits, mode, MODES)
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
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise UnfitError(f"array: expected finite elements, got {bad} that are NaN or infinite")
    groups = channels // size
    if mode == "unique":
        found = [_unique(_rows(array, axis, size, number, vector)) for number in range(groups)]
        nbits = _nbits_of(max(len(entries) for entries, _ in found), nbits)
    else:
        bits = int(nbits or 0)

        def fit(number: int) -> tuple[Array, Array]:
            rows = _rows(array, axis, size, number, vector)
            heavy = None if weights is None else _rows(weights, axis, size, number, vector)
            random = np.random.default_rng((seed, number))
            return _fit(rows, heavy, 1 << bits, array.dtype, random, restarts)

        found = list(ordered(fit, range(groups), groups > 1 and array.nbytes > 1 << 18))
    return _assembled(array, found, int(nbits or 0), axis, vector, mode)


def _rows(array: Array, axis: int, size: int, number: int, vector: int) -> Array:
    """The vectors of a group, shape (vectors, elements), in the order of the indices."""
    where = (slice(None),) * axis + (slice(number * size, (number + 1) * size),)
    part = array[where]
    shape = part.shape
    split = part.reshape(*shape[:axis], size // vector, vector, *shape[axis + 1 :])
    return np.ascontiguousarray(np.moveaxis(split, axis + 1, -1)).reshape(-1, vector)


def _assembled(
    array: Array, found: list[tuple[Array, Array]], nbits: int, axis: int, vector: int, mode: str
) -> Palettized:
    groups = len(found)
    shape = list(array.shape)
    shape[axis] //= vector
    part = list(shape)
    part[axis] //= groups
    indices = np.concatenate([codes.reshape(part) for _, codes in found], axis)
    palettes = np.zeros((groups, 1 << nbits, vector), array.dtype)
    for number, (entries, _) in enumerate(found):
        palettes[number, : len(entries)] = entries
    squared = power = largest = 0.0
    for number, (_, codes) in enumerate(found):
        rows = _rows(array, axis, array.shape[axis] // groups, number, vector)
        for first in range(0, len(rows), _PART_COUNT):
            wide = rows[first : first + _PART_COUNT].astype(np.float64)
            lost = palettes[number][codes[first : first + _PART_COUNT]].astype(np.float64) - wide
            squared += float(np.sum(lost * lost))
            power += float(np.sum(wide * wide))
            largest = max(largest, float(np.abs(lost).max()))
    gap = 0.0 if mode == "unique" or squared == 0 else float("nan")
    wanted = [1] * array.ndim + [1 << nbits, vector]
    wanted[axis] = groups
    return Palettized(indices, palettes.reshape(wanted), nbits, squared, power, largest, gap)


def _unique(rows: Array) -> tuple[Array, Array]:
    """The different vectors, and which of them each is."""
    plain = rows + rows.dtype.type(0)  # negative zero becomes zero
    if plain.dtype.kind != "f":  # bfloat16, which NumPy cannot sort
        plain = plain.astype(np.float32)
    entries, codes = np.unique(plain, axis=0, return_inverse=True)
    return entries, codes.reshape(-1) if len(entries) > 256 else codes.reshape(-1).astype(np.uint8)


def _nbits_of(most: int, nbits: int | None) -> int:
    allowed = [n for n in NBITS if most <= 1 << n and (nbits is None or n == nbits)]
    if not allowed:
        room = f"{1 << nbits}" if nbits is not None else "256"
        raise UnfitError(f"mode 'unique': expected at most {room} different vectors, got {most}")
    return allowed[0]


# -------------------------------------------------------------------------------------------------------------- k-means


def _fit(
    rows: Array, heavy: Array | None, k: int, dtype: np.dtype[Any], random: np.random.Generator, restarts: int | None
) -> tuple[Array, Array]:
    """Entries of a dtype for vectors, and the index of the nearest of each."""
    wide = rows.astype(np.float32)
    exponent = int(np.frexp(np.abs(wide).max())[1])
    weights = None
    if heavy is not None and heavy.any():
        most = np.frexp(heavy.max())[1]
        weights = np.ldexp(heavy.astype(np.float32), -most)
    work = _Vectors(np.ldexp(wide, -exponent), weights, exponent)
    if restarts is None:
        restarts = min(max(_RESTART_COUNT // (len(rows) * k), _LEAST_RESTARTS), _MOST_RESTARTS)
    entries = _best_beginning(_sample(work, max(_SAMPLE_COUNT, 128 * k), random), k, random, max(restarts, 1))
    sample = _sample(work, max(_REFINED_COUNT, 1024 * k), random)
    entries = _refined(sample, entries, _MOST_STEPS)
    if sample is not work:
        entries = _refined(work, entries, _LAST_STEPS)
    with np.errstate(over="ignore"):
        stored = np.ldexp(entries, exponent).astype(dtype)
    top = np.array(np.finfo(np.float16).max if dtype == np.float16 else np.finfo(np.float32).max, np.float32).astype(
        dtype
    )
    stored = np.clip(stored, -top, top) if dtype.kind == "f" else stored
    codes = np.empty(len(rows), np.uint8)
    _step(work, np.ldexp(stored.astype(np.float32), -exponent), codes)
    return stored, codes


def _best_beginning(work: _Vectors, k: int, random: np.random.Generator, restarts: int) -> Array:
    """The entries with the least error of a few beginnings, each refined a little."""
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
    """Merge two entries that are close, and put one where the error is: a way out of local minima. The best is kept."""
    if len(entries) < k or k < 3:
        return entries
    codes = np.empty(len(work.rows), np.uint8)
    for _ in range(min(_EXCHANGE_COUNT // (len(work.rows) * k), _MOST_EXCHANGES)):
        _step(work, entries, codes)
        counts = np.bincount(codes, minlength=k).astype(np.float64)
        apart = ((entries[:, None].astype(np.float64) - entries) ** 2).sum(-1)
        both = np.add.outer(counts, counts)
        merging = apart * np.divide(np.outer(counts, counts), both, out=np.zeros_like(both), where=both > 0)
        merging[np.tri(k, dtype=bool)] = np.inf
        lost = (work.rows.astype(np.float64) - entries[codes]) ** 2
        lost = (lost if work.weights is None else lost * work.weights).sum(1)
        pair = np.argsort(merging, axis=None)[int(random.integers(0, min(_CLOSEST, k * (k - 1) // 2)))]
        first, second = divmod(int(pair), k)
        tried = entries.copy()
        tried[first] = (entries[first] * counts[first] + entries[second] * counts[second]) / max(both[first, second], 1)
        tried[second] = work.rows[_drawn(lost, 1, random)[0]]
        tried = _refined(work, tried, _EXCHANGE_STEPS)
        now = _step(work, tried)[1]
        if now < cost:
            entries, cost = tried, now
    return entries


def _sample(work: _Vectors, count: int, random: np.random.Generator) -> _Vectors:
    """So many of the vectors, in order; all if there are no more."""
    if len(work.rows) <= count:
        return work
    chosen = np.sort(random.choice(len(work.rows), count, replace=False))
    return _Vectors(work.rows[chosen], None if work.weights is None else work.weights[chosen], work.exponent)


def _refined(work: _Vectors, entries: Array, steps: int) -> Array:
    """The entries after Lloyd's steps, at most so many."""
    cost = float("inf")
    for _ in range(steps):
        moved, now = _step(work, entries)
        if not now < cost * (1 - _ENOUGH):
            break
        entries, cost = moved, now
    return entries


def _begin(work: _Vectors, k: int, random: np.random.Generator) -> Array:
    """k-means++: each entry is the best of a few vectors, drawn with the squared distance from the entries before."""
    rows = work.rows
    heavy = np.ones(len(rows)) if work.weights is None else work.weights.sum(1, dtype=np.float64)
    entries = np.zeros((k, rows.shape[1]), np.float32)
    entries[0] = rows[_drawn(heavy, 1, random)[0]]
    distances = _distances(work, entries[0])
    for number in range(1, k):
        if not distances.any():  # as many entries as there are different vectors
            return entries[:number]
        chosen = _drawn(distances, 2 + int(np.log(k)), random)
        tries = [np.minimum(_distances(work, rows[at]), distances) for at in chosen]
        best = min(range(len(tries)), key=lambda i: float(tries[i].sum()))
        entries[number], distances = rows[chosen[best]], tries[best]
    return entries


def _drawn(chances: Array, count: int, random: np.random.Generator) -> Array:
    """Indices drawn with probabilities that are proportional to `chances`; at random if these are all zero."""
    ends = np.cumsum(chances)
    if not ends[-1] > 0:
        return random.integers(0, len(chances), count)
    found = np.searchsorted(ends, random.random(count) * ends[-1], side="right")
    return np.asarray(np.minimum(found, len(chances) - 1))


def _distances(work: _Vectors, entry: Array) -> Array:
    """The squared distance of each vector from an entry, weighted."""
    total = np.zeros(len(work.rows))
    for number, at in enumerate(entry):
        difference = work.rows[:, number].astype(np.float64) - float(at)
        difference *= difference
        total += difference if work.weights is None else difference * work.weights[:, number]
    return total


def _step(work: _Vectors, entries: Array, codes: Array | None = None) -> tuple[Array, float]:
    """One step of Lloyd's: (the mean of the vectors nearest to each entry, their error before).

    Args:
        codes: takes the index of the nearest entry of each vector.
    """
    source = _codec.Buffer(work.rows.reshape(-1).view(np.uint8))
    weights = (
        None if work.weights is None else _codec.Buffer(np.ascontiguousarray(work.weights).reshape(-1).view(np.uint8))
    )
    k, dims = entries.shape
    turned = np.ascontiguousarray(entries.T)

    def work_on(first: int) -> tuple[Array, Array, float]:
        count = min(_PART_COUNT, len(work.rows) - first)
        sums, totals = np.zeros((k, dims)), np.zeros((k, dims))
        out = None if codes is None else codes[first : first + count]
        cost = _codec.vectors_nearest(out, source, weights, first, count, turned, k, dims, sums, totals)
        return sums, totals, cost

    parts: Iterator[tuple[Array, Array, float]] = ordered(work_on, range(0, len(work.rows), _PART_COUNT))
    sums, totals, cost = next(parts)
    for more in parts:
        sums, totals, cost = sums + more[0], totals + more[1], cost + more[2]
    means = np.divide(sums, totals, out=entries.astype(np.float64), where=totals > 0)
    return means.astype(np.float32), cost
