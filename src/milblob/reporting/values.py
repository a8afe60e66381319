"""What a report shows of the values of one weight: statistics, a histogram, and the range of each channel."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ..analysis.histogram import Histogram
from ..analysis.statistics import statistics
from ..dtypes import DType
from ..errors import MilblobError
from ..model.elements import Elements
from ..model.lazy import LazyTensor
from ..model.tensor import Tensor
from ..wording import bounded, escape
from .fields import histogram_row, number, statistics_row

MAX_EXACT_COUNT = 1 << 28
"""Elements of the largest weight whose statistics are those of all its values."""
_SAMPLE_COUNT, _RUNS = 1 << 24, 256
"""Number of elements that are read of a larger weight, and the number of runs, at even distances."""
_HISTOGRAM_COUNT = 1 << 14
"""Elements of 32 and 64 bits in a histogram: counting them all would take longer than all statistics."""
_CHANNELS, _CHANNEL_COUNT = 32, 128
"""Channels whose range is shown, and elements that are read of each."""
_STEPS = 999


class Examined(NamedTuple):
    """What was found in the values of a weight."""

    figures: list[Any] | None = None  # see `fields.STATISTICS`; None if the values cannot be read, or are strings
    histogram: list[Any] | None = None  # see `fields.histogram_row`; None without finite values
    histogram_count: int = 0  # elements that the histogram is of
    channels: list[Any] | None = None  # see `channel_ranges`
    sampled: int | None = None  # elements that `figures` are of, if they are not all; else None
    failure: str = ""  # why the values cannot be read; "" if they can


def examine_all(tensors: Iterable[LazyTensor]) -> Iterator[Examined]:
    """Yield what is found in each tensor, in order. A record of a weight file that several tensors share is read once.

    Large tensors are read by several threads, one tensor at a time; for small ones, threads would cost more than they
    save.
    """
    known: dict[Any, Examined] = {}
    for tensor in tensors:
        if not isinstance(tensor, Tensor) or not tensor.is_blob:
            yield examine(tensor)
            continue
        key = (tensor.place.key(), tensor.mil_dtype, tensor.declared_shape)
        if key not in known:
            known[key] = examine(tensor)
        yield known[key]


def examine(tensor: LazyTensor) -> Examined:
    """Read the values of a tensor. What cannot be read is a `failure`, so that one bad weight spoils no report."""
    if tensor.mil_dtype is DType.STRING:
        return Examined()
    try:
        return _examined(tensor)
    except (MilblobError, OSError, ValueError, TypeError) as error:
        return Examined(failure=escape(bounded(f"{type(error).__name__}: {error}")))


def _examined(tensor: LazyTensor) -> Examined:
    dtype = tensor.mil_dtype
    elements = Elements(tensor)
    sampled = None
    is_narrow = dtype.nbits <= 16
    if elements.count > MAX_EXACT_COUNT:
        values = sample(elements, _SAMPLE_COUNT)
        sampled = values.size
        found = statistics(values, dtype, histogram=is_narrow)
    elif elements.values is not None:  # read once, for everything below
        found = statistics(elements.values, dtype, histogram=is_narrow)
    else:
        found = statistics(tensor, histogram=is_narrow)
    bins, count = found.histogram, found.count
    low, high = found.min, found.max
    if not is_narrow and low is not None:
        part = sample(elements, _HISTOGRAM_COUNT)
        counted = Histogram(low, high)
        if sampled is not None:  # of another sample, whose ends are others
            part = part[(part >= low) & (part <= high)]
        counted.add(part)
        bins, count = counted.bins(), part.size
    return Examined(statistics_row(found), histogram_row(bins), count, channel_ranges(elements), sampled)


def sample(elements: Elements, count: int) -> Any:
    """Return a vector of at most about `count` elements: all, or runs at even distances."""
    if elements.count <= count:
        return elements.read(0, elements.count)
    length = count // _RUNS
    last = elements.count - length
    begins = [at * last // (_RUNS - 1) // 8 * 8 for at in range(_RUNS)]
    return np.concatenate([elements.read(begin, length) for begin in begins])


def channel_ranges(elements: Elements) -> list[Any] | None:
    """Return the ranges of some channels (indices along the first axis), of elements from the middle of each.

    Returns: [channels, low, high, minima, maxima, elements read of each]: the channels are at even distances from the
    first to the last; minima and maxima are whole numbers from 0 at low to _STEPS at high, -1 for a channel without
    finite values. None for a vector, and without finite values.
    """
    if len(elements.shape) < 2 or elements.shape[0] < 2 or not elements.count:
        return None
    channels = elements.shape[0]
    each = elements.count // channels
    length, shown = min(each, _CHANNEL_COUNT), min(channels, _CHANNELS)
    indices = [at * (channels - 1) // (shown - 1) for at in range(shown)]
    start = (each - length) // 2
    values = elements.values
    if values is not None:
        part = values.reshape(channels, each)[indices, start : start + length]
    else:
        part = np.concatenate([_run(elements, index * each + start, length) for index in indices])
    with np.errstate(all="ignore"):  # signalling NaNs
        wide = part.reshape(shown, length).astype(np.float64 if elements.dtype.nbits > 16 else np.float32)
        extremes = np.empty((2, shown))
        np.minimum.reduce(wide, 1, out=extremes[0])
        np.maximum.reduce(wide, 1, out=extremes[1])
        unknown = None
        if not np.isfinite(extremes).all():
            is_finite = np.isfinite(wide)
            unknown = ~is_finite.any(1)
            np.min(wide, axis=1, where=is_finite, initial=np.inf, out=extremes[0])
            np.max(wide, axis=1, where=is_finite, initial=-np.inf, out=extremes[1])
            if unknown.all():
                return None
    least, most = float(extremes[0].min()), float(extremes[1].max())
    scale = _STEPS / 2 / (most / 2 - least / 2) if most > least else 0.0  # the range itself may overflow
    with np.errstate(invalid="ignore"):
        steps = np.rint((extremes / 2 - least / 2) * 2 * scale)
    if unknown is not None:
        steps[:, unknown] = -1
    minima, maxima = steps.astype(np.int64).tolist()
    return [channels, number(least), number(most), minima, maxima, length]


def _run(elements: Elements, begin: int, count: int) -> Any:
    aligned = begin // 8 * 8
    return elements.read(aligned, begin - aligned + count)[begin - aligned :]


def overlaid(a: LazyTensor, b: LazyTensor) -> list[Any] | None:
    """Return the histograms of two tensors over the same bins: [low, high, width, counts of A, counts of B, elements].

    None if one of them has no finite values.
    """
    count = _HISTOGRAM_COUNT
    parts = [sample(Elements(tensor), count) for tensor in (a, b)]
    found = [statistics(part, tensor.mil_dtype, distinct=False) for part, tensor in zip(parts, (a, b), strict=True)]
    limits = [(one.min, one.max) for one in found]
    if any(low is None for low, _ in limits):
        return None
    is_float = any(isinstance(low, float) for low, _ in limits)
    kind: Callable[[Any], Any] = float if is_float else int
    low, high = min(kind(low) for low, _ in limits), max(kind(high) for _, high in limits)
    rows = []
    for part in parts:
        counted = Histogram(low, high)
        counted.add(part.astype(np.float64) if is_float else part)
        rows.append(histogram_row(counted.bins()))
    return [*rows[0][:3], rows[0][3], rows[1][3], parts[0].size]  # type: ignore[index]
