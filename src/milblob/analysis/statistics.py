"""Statistics of a tensor's values: counts, extremes, mean and spread, special and distinct values."""

import contextlib
import math
import os
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np

from .. import _codec
from ..arguments import array_of, require, require_flags, source_of
from ..dtypes import DType, as_dtype, dtype_of
from ..model.elements import Piece, array_pieces, dense_pieces, in_order, split
from ..model.fetching import fetch
from ..model.lazy import LazyTensor
from ..model.tensor import Tensor
from ..progress import Progress, ProgressCounter, start_progress
from ..remote.cache import CacheLike
from ..remote.reading import takes_urls
from ..results import Result, least
from ..selection import Select, require_selected, selector
from ..threads import with_own
from .histogram import Bin, Histogram
from .reopening import FarTensors, account
from .sides import Side

if TYPE_CHECKING:
    from concurrent.futures import Executor

_WIDE = {
    DType.FLOAT32: _codec.WIDE_F32,
    DType.FLOAT64: _codec.WIDE_F64,
    DType.INT32: _codec.WIDE_I32,
    DType.UINT32: _codec.WIDE_U32,
    DType.INT64: _codec.WIDE_I64,
    DType.UINT64: _codec.WIDE_U64,
}
_COUNTS = (
    "zeros", "negative_zeros", "nans", "positive_infinities", "negative_infinities", "subnormals", "float16_overflows",
)  # fmt: skip
_own = threading.local()  # a Tally per thread: a megabyte that is not cleared again for each small tensor


@dataclass(frozen=True, repr=False)
class Statistics(Result):
    """Statistics of the values of one tensor, or of several together.

    Only finite elements count in `min` to `std`, which are None if there are none. Counts and extremes are
    exact. With e = 2^-50 for dtypes of up to 16 bits and 2^-44 for others: the error of `total` is at most e times the
    sum of magnitudes; the relative error of `std` at most e * (1 + |mean| / std).

    Attributes:
        dtype: DType; None for several tensors of different ones.
        shape: dimensions; None for several tensors.
        count: elements.
        min, max: int for integers and bools (0 and 1), else float.
        mean, std: arithmetic mean; standard deviation of the population (as numpy.std).
        total: sum, as float.
        absmax: largest magnitude.
        smallest: smallest magnitude other than zero; None if all are zero.
        zeros: of either sign; `negative_zeros` of them are -0.0.
        nans, positive_infinities, negative_infinities: counts.
        subnormals: nonzero elements below the smallest normal number of the dtype.
        float16_overflows: finite elements that become infinite in float16: 65520 and more in magnitude.
        distinct: number of distinct values; all NaNs count as one, and so do 0.0 and -0.0. None for several tensors.
        is_distinct_exact: whether `distinct` is exact, as it always is up to 65536; else an estimate with a standard
            error of 0.6%.
        histogram: Bins from `min` to `max`; None if it was not requested.
        spread: sum of the squared distances from the mean; used by `merge`.

    Examples:
        >>> found = milblob.statistics(np.array([0.0, -2.0, 4.0, np.nan], np.float32))
        >>> found.min, found.max, found.nans, found.zeros, found.distinct
        (-2.0, 4.0, 1, 1, 4)
    """

    dtype: Any
    shape: tuple[int, ...] | None
    count: int
    min: float | int | None
    max: float | int | None
    mean: float | None
    std: float | None
    total: float
    absmax: float | int | None
    smallest: float | int | None
    zeros: int
    negative_zeros: int
    nans: int
    positive_infinities: int
    negative_infinities: int
    subnormals: int
    float16_overflows: int
    distinct: int | None
    is_distinct_exact: bool
    histogram: tuple[Bin, ...] | None = None
    spread: float = 0.0

    _keys: ClassVar = {"spread": None}

    @property
    def infinities(self) -> int:
        """Number of infinite elements, of either sign."""
        return self.positive_infinities + self.negative_infinities

    @property
    def finite(self) -> int:
        """Number of elements that are neither NaN nor infinite."""
        return self.count - self.nans - self.infinities

    @staticmethod
    def merge(parts: Iterable["Statistics"]) -> "Statistics":
        """Return the statistics of several tensors together: all except shape, distinct values and histogram.

        Strings have no such statistics: they count as elements and nothing else.
        """
        given = list(parts)
        for part in given:
            require("parts", part, Statistics, "Statistics")
        return _merge(given)


@dataclass(frozen=True, repr=False)
class StatisticsReport(Result, Mapping[str, Statistics]):
    """Statistics of several tensors: a mapping from their names.

    Attributes:
        source: what was examined: a path, or a description of anything without one.
        tensors: name -> Statistics, in the order of the source.

    Examples:
        >>> report = milblob.statistics("demo.mlpackage")
        >>> len(report), report["head_bias"].count, report.total.nans
        (69, 96, 0)
    """

    source: str
    tensors: dict[str, Statistics]

    _keys: ClassVar = {"total": "total"}

    @property
    def total(self) -> Statistics:
        """Statistics of all of them together; see `Statistics.merge`."""
        return _merge(list(self.tensors.values()))

    def __getitem__(self, name: str) -> Statistics:
        return self.tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def _worst(self) -> list[str]:
        rows = least(self.tensors.items(), lambda item: -(item[1].nans + item[1].infinities))
        special = [(name, one.nans + one.infinities) for name, one in rows]
        return [f"{name}: {count:,} NaN or infinite" for name, count in special if count]


@overload
def statistics(
    source: str | os.PathLike[str] | Mapping[str, Any],
    dtype: None = None,
    *,
    select: Select = None,
    histogram: bool = False,
    distinct: bool = True,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> "StatisticsReport": ...
@overload
def statistics(source: Any, dtype: Any = None, *, histogram: bool = False, distinct: bool = True) -> Statistics: ...
@takes_urls("source")
def statistics(
    source: Any,
    dtype: Any = None,
    *,
    select: Select = None,
    histogram: bool = False,
    distinct: bool = True,
    executor: "Executor | None" = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> "Statistics | StatisticsReport":
    """Examine every value once, of one tensor or of all weights of a model, without the GIL and in several threads.

    Args:
        source: a path (of what `open` takes, or of a file of arrays), an open model, or a mapping of arrays: all of its
            tensors, each by itself. Or one: a Tensor (a compressed weight is decoded, a part at a time), an array of a
            file that is not yet read (a StoredArray, a Parameter of TVM), or anything NumPy makes an array of, in any
            memory order.
        dtype: what the elements of an array are: a DType, a name or a NumPy dtype; default: the array's own. uint3 and
            uint6 must be named, their arrays are uint8.
        select: of several tensors: which (see `Select`).
        histogram: count into bins too. A second pass, by NumPy, for dtypes of 32 and 64 bits; at no cost for others.
        distinct: count different values, which is most of the work for dtypes of 32 and 64 bits.
        executor: of the tensors of a local path or an open model: any concurrent.futures.Executor, whose workers open
            the path themselves (see `milblob.executors`).
        progress: of several tensors: called as each has been examined (see `Progress`).
        max_nbytes: as for `open`, of a path.

    Returns:
        Statistics of one tensor; for strings, only count and shape. A StatisticsReport of several.

    Raises:
        As `Tensor.read`, and `milblob.open` for a path; TypeError for an array of a dtype that MIL lacks, or whose
            elements are not of `dtype` (integers may be narrowed). ValueError: `dtype` with several tensors; `select`,
            `progress` or `max_nbytes` with one; `select` selects nothing.

    Examples:
        >>> milblob.statistics(np.float16([1, 2, 3])).mean
        2.0
        >>> report = milblob.statistics("demo.mlpackage", select="head_*")
        >>> list(report), report.total.count
        (['head_weight', 'head_bias'], 4704)
    """
    require_flags(histogram=histogram, distinct=distinct)
    start_progress(progress)
    source = source_of(source)
    if isinstance(source, str | os.PathLike | Mapping):
        if dtype is not None:
            raise ValueError("dtype: expected none for the tensors of a file or a mapping, which have their own")
        with contextlib.ExitStack() as stack:
            side = Side.open(source, False, stack, max_nbytes)
            is_selected = selector(select)
            tensors = {name: tensor for name, tensor in side.tensors.items() if is_selected(name)}
            require_selected(select, bool(tensors), side.words)
            counter = ProgressCounter(progress, tensors.values())
            rows = {}
            far = FarTensors.of(executor, source, max_nbytes=max_nbytes, is_restored=True)
            found = examined(tensors, far, histogram=histogram, distinct=distinct)
            with contextlib.closing(found):
                for (name, tensor), figures in zip(tensors.items(), found, strict=True):
                    rows[name] = figures
                    counter.add_tensor(name, tensor)
            return StatisticsReport(side.words, rows)
    for name, value in (("select", select), ("executor", executor), ("progress", progress), ("max_nbytes", max_nbytes)):
        if value is not None:
            raise ValueError(f"{name}: expected a path, a model or a mapping of arrays, got one tensor")
    return _of_one(source, dtype, histogram, distinct)


def _of_one(source: Any, dtype: Any, histogram: bool, distinct: bool) -> Statistics:
    if isinstance(source, LazyTensor):
        if source.mil_dtype is DType.STRING:
            return _nothing(DType.STRING, source.shape, source.size)
        return _of_pieces(dense_pieces(source), source.mil_dtype, source.shape, histogram, distinct, source)
    array = array_of(source)
    own = dtype_of(array)
    element = own if dtype is None else as_dtype(dtype)
    if element is not own and not (element.is_integer and (own.is_integer or own is DType.BOOL)):
        raise TypeError(f"array: expected elements of {element}, got {own}; convert them first")
    if element is DType.STRING:
        return _nothing(element, array.shape, array.size)
    return _of_pieces(array_pieces(array, element), element, array.shape, histogram, distinct, array)


def examined(
    tensors: Mapping[str, LazyTensor], far: FarTensors | None, *, histogram: bool = False, distinct: bool = True
) -> Generator[Statistics, None, None]:
    """Yield the statistics of each tensor, in order.

    `tensors`: by their names in the source. `far`: the workers that examine them; None for this process.
    """
    if far is None:
        return statistics_of(tensors.values(), histogram=histogram, distinct=distinct)
    return far.each(statistics_of, tensors, account, histogram=histogram, distinct=distinct)


def statistics_of(
    tensors: Iterable[LazyTensor], *, histogram: bool = False, distinct: bool = True
) -> Generator[Statistics, None, None]:
    """Yield the statistics of each tensor, in order; small ones are looked at several at a time.

    A record that is several tensors is examined once (or a few times, if several threads reach it at the same time).
    """
    known: dict[Any, Statistics] = {}
    tensors = list(tensors)
    fetch(tensors)

    def work(tensor: LazyTensor) -> Statistics:
        if not isinstance(tensor, Tensor) or not tensor.is_blob:
            return _of_one(tensor, None, histogram, distinct)
        key = (tensor.place.key(), tensor.mil_dtype, tensor.size)
        found = known.get(key)
        if found is None:
            found = known[key] = _of_one(tensor, None, histogram, distinct)
        return found if found.shape == tensor.shape else replace(found, shape=tensor.shape)

    yield from in_order(tensors, work)


# ----------------------------------------------------------------------------------------------------- putting together


def _of_pieces(
    pieces: Iterable[Piece], dtype: Any, shape: tuple[int, ...], histogram: bool, distinct: bool, source: Any
) -> Statistics:
    narrow = dtype.nbits <= 16
    moments, number, is_exact, bins = _narrow(pieces, dtype, histogram) if narrow else _wide(pieces, dtype, distinct)
    if histogram and not narrow:
        low, high = _ends(moments, dtype)
        bins = ()
        if low is not None:
            second = Histogram(low, high)
            again = dense_pieces(source) if isinstance(source, LazyTensor) else array_pieces(source, dtype)
            for piece in again:
                second.add(np.ndarray((piece.count,), dtype.numpy, piece.buffer, piece.offset))  # type: ignore[arg-type]
            bins = second.bins()
    return _from_moments(moments, dtype, shape, number, is_exact, bins)


def _narrow(pieces: Iterable[Piece], dtype: Any, histogram: bool) -> tuple[_codec.Moments, int, bool, Any]:
    """Elements of up to 16 bits: count each of the 65536 patterns; everything else follows from these counts."""
    tally = _own.__dict__.pop("tally", None) or _codec.Tally()  # dropped if an error occurs

    def count(part: Piece, into: _codec.Tally) -> None:
        into.add(part.buffer, part.offset, part.count, dtype.nbits)

    for piece in pieces:
        parts = split(piece)
        if len(parts) == 1:
            count(parts[0], tally)
        else:
            for other in with_own(_codec.Tally, count, parts)[1]:
                tally.merge(other)
    moments, distinct, *_ = tally.gather(dtype.mil_code)
    bins: tuple[Bin, ...] | None = None
    if histogram:
        low, high = _ends(moments, dtype)
        bins = ()
        if low is not None:
            whole = Histogram(low, high)
            whole.add_counts(tally.bins(dtype.mil_code, whole.edges))
            bins = whole.bins()
    _own.tally = tally
    return moments, distinct, True, bins


def _wide(pieces: Iterable[Piece], dtype: Any, distinct: bool) -> tuple[_codec.Moments, int | None, bool, Any]:
    """Elements of 32 and 64 bits. Parts are merged in order, so the result does not depend on the threads."""
    kind = _WIDE[dtype]
    total, seen = _codec.Moments(), _codec.Distinct() if distinct else None

    def look(part: Piece, own: _codec.Distinct | None) -> _codec.Moments:
        return _codec.wide_moments(kind, part.buffer, part.offset, part.count, own)

    for piece in pieces:
        parts = split(piece)
        if len(parts) == 1:
            total.add(look(parts[0], seen))
            continue
        found, sets = with_own(lambda: None if seen is None else _codec.Distinct(seen), look, parts)
        for moments in found:
            total.add(moments)
        for own in sets:
            if seen is not None and own is not None:
                seen.merge(own)
    return total, None if seen is None else seen.count, seen is None or not seen.is_estimated, None


def _ends(moments: _codec.Moments, dtype: Any) -> tuple[Any, Any]:
    """Return the smallest and largest finite element as Python numbers; None if there are none."""
    least, most, _, least_whole, most_whole, _ = moments.extremes
    if least == math.inf:
        return None, None
    if dtype.nbits == 64 and dtype.is_integer:
        bias = 1 << 63 if dtype is DType.UINT64 else 0
        return least_whole + bias, most_whole + bias
    if dtype.is_integer or dtype is DType.BOOL:
        return int(least), int(most)
    return least, most


def _from_moments(
    moments: _codec.Moments, dtype: Any, shape: tuple[int, ...], distinct: int | None, is_exact: bool, histogram: Any
) -> Statistics:
    count, nans, positive, negative, zeros, negative_zeros, subnormals, overflows = moments.counts
    total, low, spread, spread_low = moments.sums
    minimum, maximum = _ends(moments, dtype)
    smallest: Any = moments.extremes[2]
    finite = count - nans - positive - negative
    if smallest == math.inf or minimum is None:
        smallest = None
    elif isinstance(minimum, int):
        smallest = moments.extremes[5] if dtype.nbits == 64 else int(smallest)
    return Statistics(
        dtype=dtype,
        shape=tuple(shape),
        count=count,
        min=minimum,
        max=maximum,
        mean=(total + low) / finite if finite else None,
        std=_root((spread + spread_low) / finite) if finite else None,
        total=total + low,
        absmax=None if minimum is None else max(abs(minimum), abs(maximum)),
        smallest=smallest,
        zeros=zeros,
        negative_zeros=negative_zeros,
        nans=nans,
        positive_infinities=positive,
        negative_infinities=negative,
        subnormals=subnormals,
        float16_overflows=overflows,
        distinct=None if distinct is None else min(distinct, count),  # an estimate may be more
        is_distinct_exact=is_exact,
        histogram=histogram,
        spread=spread + spread_low,
    )


def _root(variance: float) -> float:
    return math.sqrt(variance) if variance >= 0 else math.nan  # NaN if sums have left the range of float64


def _sum(numbers: list[float]) -> float:
    """Return the sum, exactly rounded where it is in the range of float64; else infinity or NaN."""
    try:
        return math.fsum(numbers)
    except (OverflowError, ValueError):  # of intermediate sums; of infinities of both signs
        return float(sum(numbers))


def _nothing(dtype: Any, shape: tuple[int, ...] | None, count: int) -> Statistics:
    numbers = dict.fromkeys(_COUNTS, 0)
    none = dict.fromkeys(("min", "max", "mean", "std", "absmax", "smallest", "distinct"))
    return Statistics(dtype=dtype, shape=shape, count=count, total=0.0, is_distinct_exact=True, **numbers, **none)  # type: ignore[arg-type]


def _merge(parts: list[Statistics]) -> Statistics:
    dtypes = {part.dtype for part in parts}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    if not parts:
        return _nothing(None, None, 0)
    counts = {name: sum(getattr(part, name) for part in parts) for name in _COUNTS}
    numeric = [part for part in parts if part.mean is not None]
    finite = sum(part.finite for part in numeric)
    total = _sum([part.total for part in numeric])
    result = replace(_nothing(dtype, None, sum(part.count for part in parts)), **counts, total=total)
    if not finite:
        return result
    mean = total / finite
    shifts = [(part, part.mean - mean) for part in numeric if part.mean is not None]
    spread = _sum([part.spread + part.finite * (shift * shift) for part, shift in shifts])  # `shift ** 2` may raise
    return replace(
        result,
        min=min(part.min for part in numeric if part.min is not None),
        max=max(part.max for part in numeric if part.max is not None),
        mean=mean,
        std=_root(spread / finite),
        absmax=max(part.absmax for part in numeric if part.absmax is not None),
        smallest=min((part.smallest for part in numeric if part.smallest is not None), default=None),
        spread=spread,
    )
