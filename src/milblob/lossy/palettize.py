"""Palettes chosen for an array: the entries with the least squared error, and an index for each element.

A palette of one group of elements is optimal for float16 and bfloat16, and for float32 with few different numbers: the
fit is exact one-dimensional k-means (include/milblob/kernels/palette_fit.h names the method and has the proof). For
other float32 it is optimal among palettes whose runs end between fine bins; Lloyd's algorithm then moves the ends, and
`gap` bounds how much less the error could be. Results do not depend on the number of threads.
"""

import contextlib
from collections.abc import Iterator
from functools import partial
from math import gcd
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _codec
from ..arguments import array_of
from ..dtypes import DType, as_dtype
from ..threads import each, ordered, parts, with_own
from ..values.strided import ONCE_COUNT, Empty, fill_places, not_finite, range_of, ranges, vector_of
from .loss import Loss, total
from .unfit import UnfitError, refuse_not_finite

NBITS = (1, 2, 3, 4, 6, 8)
MODES = ("kmeans", "uniform", "unique")

_PART_NBYTES = 1 << 24  # of one group, that one thread processes at a time
_TABLE_NBYTES = 1 << 16  # of the indices of all numbers of 16 bits
_GROUPS_COUNT = 1 << 18  # elements of small groups that one thread processes at a time
_LLOYD_STEPS = 8
_ENOUGH = 1e-5  # Lloyd's algorithm ends when a step gains less than this part of the error
MOST_DIFFERENT = 1 << 16
"""Numbers, or vectors, that the mode "unique" counts."""

Array = np.ndarray[Any, Any]


class Palettized(NamedTuple):
    """An array as indices into palettes."""

    indices: Array  # uint8, in the shape of the array
    # entries, rising up to the last that is used, then zeros: of the array's dtype and the shape that MIL's
    # constexpr_lut_to_dense (iOS18) wants: the number of groups in each dimension, 2**nbits, 1
    palettes: Array
    nbits: int  # of an index
    loss: Loss = Loss()
    # the squared error (weighted by the importance, if any) is at most this much above the least possible; 0 up to
    # rounding where the palettes are proven to be optimal, nan for palettes without a proof (uniform)
    gap: float = float("nan")


class _Elements:
    """The elements of one group, in row-major order, and their weights.

    `weights`: in the same shape; None: all alike. `dtype`: NumPy's, of the elements that are wanted. `empty`: makes
    arrays of elements that are not contiguous, if there are not very many.
    """

    def __init__(self, array: Array, weights: Array | None, dtype: Any, empty: Empty) -> None:
        is_small = array.size <= ONCE_COUNT
        if weights is not None and not any(np.float32(piece.max(initial=0)) for _, piece in ranges(weights)):
            weights = None  # no element has importance: treat all alike
        self.size, self.dtype = array.size, dtype
        self._array = vector_of(array, dtype, empty) if is_small else array
        self._weights = weights
        if weights is not None and is_small:
            self._weights = vector_of(weights, np.float32, empty)

    @property
    def is_weighted(self) -> bool:
        """Whether elements have different weights."""
        return self._weights is not None

    def values(self, first: int, count: int) -> Array:
        """Return elements, contiguous."""
        return range_of(self._array, first, count, self.dtype)

    def buffer(self, first: int, count: int) -> _codec.Buffer:
        """Return the bytes of elements."""
        return _codec.Buffer(self.values(first, count).view(np.uint8))

    def weights(self, first: int, count: int) -> _codec.Buffer | None:
        """Return the bytes of float32 weights; None: all alike."""
        if self._weights is None:
            return None
        return _codec.Buffer(range_of(self._weights, first, count, np.float32).view(np.uint8))


class _Fitted(NamedTuple):
    """One group: its entries, what is lost, how many entries are in use, and the table of fit_16."""

    entries: list[float]
    loss: Loss
    gap: float
    used: int
    table: bytes | None


def palettize(
    array: Any,
    nbits: int | None = None,
    *,
    mode: str = "kmeans",
    axis: int | None = None,
    group_size: int | None = None,
    importance: Any = None,
    empty: Empty = np.empty,
) -> Palettized:
    """Choose palettes for an array, and indices.

    Args:
        array: float16, bfloat16 or float32, any shape and memory order, of one element or more.
        nbits: of an index: 1, 2, 3, 4, 6 or 8. None in the mode "unique": as few as hold every number.
        mode: "kmeans" has the least squared error; "uniform" places the entries at equal distances from the least to
            the greatest element, as coremltools does; "unique" has an entry for each number, and loses nothing.
        axis: None for one palette, or the dimension that is divided into groups with a palette each.
        group_size: number of channels of `axis` that share a palette; must divide the size of `axis`.
        importance: weights of the elements, zero or more, in the fit: an array of the same shape, or one that
            broadcasts to it. None: all alike. In "kmeans" only.
        empty: makes the array of the indices.

    Returns:
        Palettized.

    Raises:
        TypeError: elements of another dtype.
        ValueError: an element is NaN or infinite; no elements; an unknown option; groups that do not divide; more
            numbers than nbits, or 8 bits, can hold in the mode "unique".
    """
    array = np.asarray(array)
    dtype = require_palette(array, nbits, mode)
    if importance is not None and mode != "kmeans":
        raise ValueError(f"importance: expected none in the mode {mode!r}, got some")
    along, size = _groups_of(array.shape, axis, group_size)
    weights = None if importance is None else weights_for(importance, array.shape)
    if mode == "unique":
        groups = (_Elements(elements, None, dtype.numpy, empty) for _, elements, _ in _groups(array, None, along, size))
        nbits = fewest_nbits(max(len(_different(group)) for group in groups), nbits, "numbers")
    return _palettize(array, dtype, nbits or 8, mode, along, size, weights, empty)


class Palettizer:
    """Chooses palettes for an array of any size and yields the indices, a stretch at a time.

    Args:
        As palettize, without importance.
        empty: makes the tables of the palettes that `fit` keeps.

    Raises:
        As palettize, but for elements that are not finite: fit and stretches meet them.
    """

    def __init__(
        self, array: Any, nbits: int, *, mode: str = "kmeans", axis: int | None = None, group_size: int | None = None,
        empty: Empty = np.empty,
    ) -> None:  # fmt: skip
        array = np.asarray(array)
        self._kind = require_palette(array, nbits, mode)
        along, size = _groups_of(array.shape, axis, group_size)
        # shape, dtype: of the array; nbits: of an index
        self.shape, self.dtype, self.nbits = array.shape, array.dtype, nbits
        count = array.shape[along] // size if array.ndim else 1
        # number of groups in each dimension
        self.counts = tuple(count if axis == along else 1 for axis in range(array.ndim))
        self.loss, self.gap = Loss(), 0.0  # as in Palettized, once all stretches were yielded
        self.is_apart = count == 1 or all(length == 1 for length in array.shape[:along])
        self._mode, self._count, self._each = mode, count, array.size // count
        self._flat = np.ascontiguousarray(array, self._kind.numpy).reshape(-1)
        self._spare: list[_codec.PaletteFit] = []
        # of the tables that `fit` keeps: 64 KiB for each palette of elements of 16 bits
        self.kept_nbytes = count * _TABLE_NBYTES if self._kind.nbits == 16 else 0
        self._empty = empty
        self._fits: list[_Fitted] | None = None
        self._tables: Array | None = None  # of these, one after the other

    def fit(self) -> Array:
        """Return the palettes, shape (groups, 2**nbits), and keep them for stretches."""
        fits: list[_Fitted] = []
        for number, one in enumerate(ordered(self._fitted, range(self._count), self._is_in_groups)):
            if one.table is not None:
                if self._tables is None:
                    self._tables = self._empty((self._count, len(one.table)), np.uint8)
                self._tables[number] = np.frombuffer(one.table, np.uint8)
            fits.append(one._replace(table=None))
        self._fits = fits
        self._spare.clear()  # 10 MiB each, and it may take long until the indices are asked for
        return self._palettes(fits)

    def stretches(self) -> Iterator[tuple[int, Array, int, Array]]:
        """Yield the stretches of the array in order; they do not depend on the number of threads.

        Each is the index of its first element; its indices, packed as they are stored; and the number of the first
        group that begins in it, with the palettes of those that do: shape (groups, 2**nbits).

        Raises: ValueError: an element is NaN or infinite; groups do not lie one after another (is_apart).
        """
        if not self.is_apart:
            raise ValueError(f"axis: expected the first dimension of more than one channel, got groups {self.counts}")
        done: list[_Fitted] = []
        unit = 8 // gcd(8, self._each * self.nbits)  # groups that fill whole bytes
        step = max(_GROUPS_COUNT // (unit * self._each), 1) * unit

        def several(first: int) -> tuple[int, list[_Fitted], Array]:
            numbers = range(first, min(first + step, self._count))
            fits = [self._known(number) for number in numbers]
            out = np.empty(len(numbers) * self._each, np.uint8)
            for number, one in enumerate(fits):
                self._look_up(one, (first + number) * self._each, out[number * self._each :][: self._each])
            return first, fits, self._packed(out)

        if self._is_in_groups:
            for first, fits, packed in ordered(several, range(0, self._count, step), self._flat.nbytes > 1 << 18):
                done += [one._replace(table=None) for one in fits]
                yield first * self._each, packed, first, self._palettes(fits)
        else:  # each shared out among the threads
            for number in range(self._count):
                one = self._known(number)
                begin, palettes = number * self._each, self._palettes([one])
                done.append(one._replace(table=None))

                def look_up(part: tuple[int, int], one: _Fitted = one, begin: int = begin) -> tuple[int, Array]:
                    out = np.empty(part[1], np.uint8)
                    self._look_up(one, begin + part[0], out)
                    return begin + part[0], self._packed(out)

                for at, packed in ordered(look_up, parts(self._each, self.dtype.itemsize, _PART_NBYTES // 4)):
                    yield at, packed, number, palettes
                    palettes = palettes[:0]
        self._spare.clear()  # a plan that was only measured may live long
        self.loss, self.gap = total(one.loss for one in done), sum(one.gap for one in done)

    @property
    def _is_in_groups(self) -> bool:
        """Whether threads take whole groups; else a group is shared out among them, and begins at a byte."""
        return self._count > 1 and (self._each < _GROUPS_COUNT * 16 or self._each * self.nbits % 8 != 0)

    def _known(self, number: int) -> _Fitted:
        """Return the palette that `fit` kept of a group, with its table; without `fit` it is fitted now."""
        if self._fits is None:
            return self._fitted(number)
        one = self._fits[number]
        return one if self._tables is None else one._replace(table=self._tables[number].tobytes())

    def _fitted(self, number: int) -> _Fitted:
        elements = _Elements(self._flat[number * self._each :][: self._each], None, self._flat.dtype, np.empty)
        with _borrowed(self._spare) as memory:
            return _fit(memory, elements, self._kind, 1 << self.nbits, self._mode, None)

    def _palettes(self, fits: list[_Fitted]) -> Array:
        return np.array([one.entries for one in fits]).astype(self._kind.numpy)

    def _look_up(self, one: _Fitted, first: int, out: Array) -> None:
        source = _codec.Buffer(self._flat.view(np.uint8))
        if one.table is not None:
            _codec.palette_indices_16(out, source, 2 * first, out.size, one.table)
        else:
            _codec.palette_indices_32(out, source, 4 * first, out.size, one.entries[: one.used])

    def _packed(self, indices: Array) -> Array:
        if self.nbits == 8:
            return indices
        packed = np.empty((indices.size * self.nbits + 7) // 8, np.uint8)
        _codec.pack_bits(indices, packed, self.nbits, 0, (1 << self.nbits) - 1, 0)
        return packed


@contextlib.contextmanager
def _borrowed(spare: list[_codec.PaletteFit]) -> Iterator[_codec.PaletteFit]:
    """Yield memory for a fit that no thread uses: spare one, to which it returns, or new one."""
    try:
        memory = spare.pop()
    except IndexError:
        memory = _codec.PaletteFit()
    try:
        yield memory
    finally:
        spare.append(memory)


def require_palette(array: Array, nbits: int | None, mode: str, modes: tuple[str, ...] = MODES) -> Any:
    """Check the arguments of a palette; return the DType."""
    dtype = as_dtype(array.dtype)
    if dtype not in (DType.FLOAT16, DType.BFLOAT16, DType.FLOAT32):
        raise TypeError(f"array: expected float16, bfloat16 or float32, got {array.dtype}")
    if array.size == 0:
        raise UnfitError(f"array: expected elements, got shape {array.shape}")
    if mode not in modes:
        raise ValueError(f"mode: expected one of {', '.join(modes)}, got {mode!r}")
    if mode != "unique" if nbits is None else nbits not in NBITS:
        raise ValueError(f"nbits: expected one of {', '.join(map(str, NBITS))}, got {nbits!r}")
    return dtype


def weights_for(importance: Any, shape: tuple[int, ...]) -> Array:
    """Return weights of elements, real numbers, as a view of that shape; they will be rounded to float32.

    Raises:
        ValueError: they do not broadcast to the shape; one is negative, NaN or infinite. TypeError: no real numbers.
    """
    weights = array_of(importance)
    if weights.dtype.kind not in "biuf" and weights.dtype.name != "bfloat16":
        raise TypeError(f"importance: expected real numbers, got {weights.dtype}")
    try:
        wide = np.broadcast_to(weights, shape)
    except ValueError:
        raise ValueError(f"importance: expected a shape that broadcasts to {shape}, got {weights.shape}") from None
    for _, piece in ranges(weights):
        with np.errstate(over="ignore"):
            narrow = piece.astype(np.float32, copy=False)
        if not (np.isfinite(narrow).all() and (narrow >= 0).all()):
            raise ValueError("importance: expected finite weights of zero or more, got others")
    return wide


def _groups_of(shape: tuple[int, ...], axis: int | None, group_size: int | None) -> tuple[int, int]:
    """Return (axis, channels in a group), or (0, all channels) for one palette."""
    if axis is None:
        if group_size is not None:
            raise ValueError(f"group_size: expected None without an axis, got {group_size}")
        return 0, shape[0] if shape else 1
    if not -len(shape) <= axis < len(shape):
        raise ValueError(f"axis: expected a dimension of {len(shape)}, got {axis}")
    axis %= len(shape)
    size = 1 if group_size is None else group_size
    if not 1 <= size <= shape[axis] or shape[axis] % size:
        raise UnfitError(f"group_size: expected a divisor of {shape[axis]}, the channels of axis {axis}, got {size}")
    return axis, size


def _groups(array: Array, weights: Array | None, axis: int, size: int) -> Iterator[tuple[Any, Array, Array | None]]:
    """Yield (index, elements, weights) of each group, in order; views."""
    for first in range(0, array.shape[axis] if array.ndim else 1, size):
        where: Any = (slice(None),) * axis + (slice(first, first + size),) if array.ndim else (...,)
        yield where, array[where], None if weights is None else weights[where]


def _palettize(
    array: Array, dtype: Any, nbits: int, mode: str, axis: int, size: int, weights: Array | None, empty: Empty
) -> Palettized:
    indices = empty(array.shape, np.uint8)
    spare: list[_codec.PaletteFit] = []  # memory that is free; any thread takes and returns

    def work(group: tuple[Any, Array, Array | None]) -> _Fitted:
        where, elements, of_elements = group
        found = _Elements(elements, of_elements, dtype.numpy, empty)
        with _borrowed(spare) as memory:
            fit = partial(_fit, memory, found, dtype, 1 << nbits, mode)
            return cast(_Fitted, fill_places(indices[where], fit, empty))

    count = array.shape[axis] // size if array.ndim else 1
    # The parts of a single group are shared among the threads; of several groups each is one task.
    fitted = list(ordered(work, _groups(array, weights, axis, size), count > 1 and array.nbytes > 1 << 18))
    palettes = np.array([group.entries for group in fitted]).astype(dtype.numpy)
    shape = [1] * array.ndim + [1 << nbits, 1]
    if array.ndim:
        shape[axis] = count
    loss, gap = total(group.loss for group in fitted), sum(group.gap for group in fitted)
    return Palettized(indices, palettes.reshape(shape), nbits, loss, gap)


def _fit(memory: _codec.PaletteFit, elements: _Elements, dtype: Any, k: int, mode: str, out: Array | None) -> _Fitted:
    """Fit a palette to a vector; write the indices to `out` unless it is None."""
    given = None
    if mode != "kmeans":
        least, most, bad = _range(elements, dtype)
        refuse_not_finite(bad)
        given = _uniform(least, most, k, elements.dtype) if mode == "uniform" else _different(elements).tolist()
    if dtype.nbits == 16:
        return _fit_16(memory, elements, dtype, k, given, out)
    return _fit_32(memory, elements, k, given, out)


def _fit_16(
    memory: _codec.PaletteFit, elements: _Elements, dtype: Any, k: int, given: list[float] | None, out: Array | None
) -> _Fitted:
    count = elements.size
    if not elements.is_weighted and count > _PART_NBYTES:  # counts are whole: they add up alike in any order

        def tally(part: tuple[int, int], own: _codec.Tally) -> None:
            own.add(elements.buffer(*part), 0, part[1], 16)

        for one in with_own(_codec.Tally, tally, parts(count, 2, _PART_NBYTES))[1]:
            memory.merge_tally(one)
    else:
        for part in parts(count, 4, _PART_NBYTES):  # in order: sums of doubles depend on it
            memory.count(elements.buffer(*part), 0, part[1], elements.weights(*part))
    found = memory.fit_16(dtype is DType.BFLOAT16, k, given)
    if found is None:
        bad = sum(not_finite(elements.values(*part)) for part in parts(count, 2, _PART_NBYTES))
        refuse_not_finite(max(bad, 1))  # it counted one, but another thread may have overwritten it since
    entries, used, cost, bound, table, figures = cast(Any, found)

    def look_up(part: tuple[int, int]) -> None:
        if out is not None:
            _codec.palette_indices_16(out[part[0] : sum(part)], elements.buffer(*part), 0, part[1], table)

    each(look_up, parts(count, 2, _PART_NBYTES) if out is not None else ())
    gap = cost - bound if given is None else float("nan")
    return _Fitted(entries, Loss(*figures), gap, used, table)


def _fit_32(
    memory: _codec.PaletteFit, elements: _Elements, k: int, given: list[float] | None, out: Array | None
) -> _Fitted:
    divided = list(parts(elements.size, 4, _PART_NBYTES))
    entries, used, gap = given or [], len(given or []), float("nan")
    if given is None:
        refuse_not_finite(_count_tops(memory, elements, divided))
        if not all(
            memory.count_distinct(elements.buffer(*part), 0, part[1], elements.weights(*part)) for part in divided
        ):
            bins = min(max(256 * max(k, 16), elements.size // 2), _codec.PALETTE_BINS)
            memory.divide(bins)

            def fill(part: tuple[int, int]) -> _codec.PaletteFit:
                own = _codec.PaletteFit() if len(divided) > 1 else memory
                if own is not memory:
                    own.divide(bins, memory)
                own.fill(elements.buffer(*part), 0, part[1], elements.weights(*part))
                return own

            for one in ordered(fill, divided):  # in order: sums of doubles depend on it
                if one is not memory:
                    memory.merge(one)
        entries, used, cost, bound, reach = memory.fit_32(k)
        gap = cost - bound + reach
    steps = 1 if given is not None or gap == 0 else _LLOYD_STEPS
    at = entries[:used]
    for step in range(steps):
        rows = list(ordered(partial(_assign, out, elements, at), divided))
        loss = total(Loss(*row[2]) for row in rows)
        totals, sums = (np.sum([row[i] for row in rows], axis=0) for i in (0, 1))
        if step == steps - 1:
            break
        means = np.divide(sums, totals, out=np.array(at), where=totals > 0)
        moved = means.astype(np.float32).astype(np.float64)
        gain = float(np.sum(totals * ((np.array(at) - means) ** 2 - (moved - means) ** 2)))
        if not gain > _ENOUGH * loss.squared:
            break
        at = moved.tolist()
    return _Fitted(at + [0.0] * (k - used), loss, gap, used, None)


def _count_tops(memory: _codec.PaletteFit, elements: _Elements, divided: list[tuple[int, int]]) -> int:
    """Count elements by their upper bits, in parts; return how many are not finite."""
    if len(divided) == 1:
        return memory.count_tops(elements.buffer(*divided[0]), 0, divided[0][1])

    def count(part: tuple[int, int]) -> tuple[int, _codec.PaletteFit]:
        own = _codec.PaletteFit()
        return own.count_tops(elements.buffer(*part), 0, part[1]), own

    bad = 0
    for number, own in ordered(count, divided):
        bad += number
        memory.merge_tops(own)
    return bad


def _assign(out: Array | None, elements: _Elements, entries: list[float], part: tuple[int, int]) -> Any:
    first, count = part
    into = np.empty(count, np.uint8) if out is None else out[first : first + count]
    return _codec.palette_indices_32(into, elements.buffer(*part), 0, count, entries, elements.weights(*part))


def _range(elements: _Elements, dtype: Any) -> tuple[float, float, int]:
    """Return (least, most, number of elements that are not finite)."""

    def work(part: tuple[int, int]) -> tuple[float, float, int]:
        if dtype is DType.FLOAT32:
            return _codec.palette_range(elements.buffer(*part), 0, part[1])
        values = elements.values(*part)
        return float(values.min()), float(values.max()), not_finite(values)

    rows = list(ordered(work, parts(elements.size, 4, _PART_NBYTES), dtype is DType.FLOAT32))
    return min(row[0] for row in rows), max(row[1] for row in rows), sum(row[2] for row in rows)


def _uniform(least: float, most: float, k: int, dtype: Any) -> list[float]:
    """Return the entries of coremltools: it computes the distance in the array's dtype, the rest in float64."""
    low, high = np.array(least, dtype), np.array(most, dtype)
    with np.errstate(over="ignore"):
        scale = float((high - low) / (k - 1)) if np.isfinite(high - low) else (most - least) / (k - 1)
    return [float(x) for x in (np.arange(k) * scale + least).astype(dtype)]


def _different(elements: _Elements) -> Array:
    """Return the distinct numbers, rising, as float32; stop once there are more than MOST_DIFFERENT.

    Some versions of NumPy find equal float16 numbers several times.
    """
    found = np.empty(0, np.float32)
    for part in parts(elements.size, 4, _PART_NBYTES):
        with np.errstate(invalid="ignore"):  # a signalling NaN
            wide = elements.values(*part).astype(np.float32) + np.float32(0)  # negative zero becomes zero
        found = np.unique(np.concatenate((found, np.unique(wide))))
        if len(found) > MOST_DIFFERENT:
            break
    return found


def fewest_nbits(most: int, nbits: int | None, what: str) -> int:
    """Return the fewest bits of an index among `most` different numbers or vectors; `nbits` if that is given.

    Raises: UnfitError: they are too many.
    """
    allowed = [n for n in NBITS if most <= 1 << n and (nbits is None or n == nbits)]
    if not allowed:
        room = f"{1 << nbits}" if nbits is not None else "256"
        found = f"{most}" if most <= MOST_DIFFERENT else f"more than {MOST_DIFFERENT}"
        raise UnfitError(f"mode 'unique': expected at most {room} different {what}, got {found}")
    return allowed[0]
