"""What can be said of an array in a few lines: first values, extremes, mean, histogram."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from ..dtypes import DType

_CHUNK_COUNT = 1 << 20  # elements that are converted at a time, so that memory does not grow with the tensor
_BIN_COUNT = 12


@dataclass(slots=True)
class Statistics:
    """The summary of an array.

    Attributes:
        count: elements.
        first: the first few, as int, float, bool or str.
        minimum, maximum, mean, deviation: of the finite values; None if there are none, or they are strings.
        zeros, nans, infinities: how many.
        bins: (low, high, count); finite values only. Those of integers hold low to high, all equally many numbers but
            the last, and low == high where the range is narrow.
    """

    count: int
    first: list[Any]
    minimum: float | int | None = None
    maximum: float | int | None = None
    mean: float | None = None
    deviation: float | None = None
    zeros: int = 0
    nans: int = 0
    infinities: int = 0
    bins: list[tuple[float, float, int]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON knows it: numbers that are not finite become strings."""
        document = asdict(self)
        document["first"] = [str(v) if isinstance(v, float) and not math.isfinite(v) else v for v in self.first]
        document["histogram"] = [
            {"low": low, "high": high, "count": count} for low, high, count in document.pop("bins")
        ]
        for key in ("mean", "deviation"):
            if document[key] is not None and not math.isfinite(document[key]):
                document[key] = str(document[key])
        return document


def summarize(values: np.ndarray[Any, Any], dtype: Any, first_count: int = 16) -> Statistics:
    """Summarize an array, a chunk at a time.

    Args:
        values: any array that `Tensor.read` returns.
        dtype: its DType.
        first_count: how many of the first elements to keep.
    """
    with np.errstate(all="ignore"):  # signalling NaNs and extremes are what is looked for, not trouble
        return _summarize(values.reshape(-1), dtype, first_count)


def _summarize(flat: np.ndarray[Any, Any], dtype: Any, first_count: int) -> Statistics:
    if dtype is DType.STRING:
        return Statistics(len(flat), [str(text) for text in flat[:first_count]])
    is_float = not (dtype.is_integer or dtype is DType.BOOL)
    result = Statistics(len(flat), _plain(flat[:first_count], is_float).tolist())
    low, high, finite_count, total = math.inf, -math.inf, 0, 0.0
    for chunk in _chunks(flat, is_float):
        result.zeros += int(np.count_nonzero(chunk == 0))
        if is_float:
            result.nans += int(np.count_nonzero(np.isnan(chunk)))
            result.infinities += int(np.count_nonzero(np.isinf(chunk)))
            chunk = chunk[np.isfinite(chunk)]
        if len(chunk):
            low, high = min(low, chunk.min().item()), max(high, chunk.max().item())
            finite_count += len(chunk)
            total += float(chunk.sum(dtype=np.float64))
    if finite_count:
        result.minimum, result.maximum = low, high
        result.mean = total / finite_count
        _add_spread(result, flat, is_float, finite_count)
    return result


def _add_spread(result: Statistics, flat: np.ndarray[Any, Any], is_float: bool, finite_count: int) -> None:
    """A second pass: deviation and histogram, now that extremes and mean are known."""
    low: Any = result.minimum
    high: Any = result.maximum
    mean: Any = result.mean
    # Integers are counted by whole numbers: bins of 1.3 would hold now one of them and now two.
    width = 1 if is_float or high - low < 16 else -(-(high - low + 1) // _BIN_COUNT)
    half = high / 2 - low / 2 if is_float else 0.0  # of the width, which itself may overflow
    steps = np.arange(_BIN_COUNT + 1) * (half / _BIN_COUNT)
    edges = low + steps + steps  # in this order nothing overflows
    edges[-1] = high
    has_edges = is_float and bool(np.all(np.diff(edges) > 0))
    counts = np.zeros(_BIN_COUNT if has_edges else 1 if is_float else (high - low) // width + 1, np.int64)
    squares = 0.0
    for chunk in _chunks(flat, is_float):
        numbers = chunk.astype(np.float64)
        numbers = numbers[np.isfinite(numbers)]
        squares += float(np.square(numbers - mean).sum())
        if not is_float:  # modulo 2^64 the distance from the least is right for signed and unsigned ones
            distance = chunk.astype(np.uint64) - np.uint64(low % (1 << 64))
            counts += np.bincount((distance // np.uint64(width)).astype(np.int64), minlength=len(counts))
        elif has_edges:
            counts += np.histogram(numbers, edges)[0]
        else:
            counts[0] += len(numbers)
    result.deviation = math.sqrt(squares / finite_count)
    if not is_float:
        starts = range(low, high + 1, width)
        result.bins = [(at, min(at + width - 1, high), n) for at, n in zip(starts, counts.tolist(), strict=True)]
    elif has_edges:
        result.bins = list(zip(edges[:-1].tolist(), edges[1:].tolist(), counts.tolist(), strict=True))
    else:
        result.bins = [(low, high, int(counts[0]))]


def _chunks(flat: np.ndarray[Any, Any], is_float: bool) -> Iterator[np.ndarray[Any, Any]]:
    for start in range(0, len(flat), _CHUNK_COUNT):
        yield _plain(flat[start : start + _CHUNK_COUNT], is_float)


def _plain(chunk: np.ndarray[Any, Any], is_float: bool) -> np.ndarray[Any, Any]:
    """Values as a type NumPy can reckon with: float64 or a native integer."""
    if is_float:
        return chunk.astype(np.float64)
    return chunk.astype(np.int64) if chunk.dtype.itemsize < 8 else chunk
