"""Histograms: the number of elements in each of a few bins from the minimum to the maximum."""

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

BIN_COUNT = 12
_CHUNK_COUNT = 1 << 20  # elements converted at a time, so memory does not grow with the tensor


class Bin(NamedTuple):
    """One bar of a histogram.

    Attributes:
        low, high: its ends. For floats: low <= x < high, in the last bin also x == high. For integers both ends are
            included, and low == high if the range is narrow.
        count: finite elements in it.
    """

    low: float
    high: float
    count: int  # type: ignore[assignment]  # hides tuple.count


class Histogram:
    """Counts elements in BIN_COUNT bins of equal width; in fewer if there are fewer distinct numbers.

    Args:
        low, high: the least and the greatest finite element: ints for integers, floats for floats.

    Attributes:
        edges: the numbers with which the second and all further bins begin.
    """

    def __init__(self, low: Any, high: Any) -> None:
        self._low, self._high = low, high
        self._is_float = isinstance(low, float)
        # Bins of integers have whole widths: a width of 1.3 would hold sometimes one integer, sometimes two.
        self._width = 1 if self._is_float or high - low < 16 else -(-(high - low + 1) // BIN_COUNT)
        half = high / 2 - low / 2 if self._is_float else 0.0  # of the width, which itself may overflow
        steps = [at * (half / BIN_COUNT) for at in range(BIN_COUNT + 1)]
        ends = [low + step + step for step in steps]  # in this order only the last may overflow, which is
        ends[-1] = high  # exact anyhow
        self._has_edges = self._is_float and all(a < b for a, b in pairwise(ends))
        self._ends = ends
        if self._is_float:
            self.edges = ends[1:-1] if self._has_edges else []
        else:
            self.edges = [*range(low, high + 1, self._width)][1:]
        self._counts = np.zeros(len(self.edges) + 1, np.int64)

    def add(self, values: np.ndarray[Any, Any]) -> None:
        """Count the elements of a vector, none outside the range."""
        for start in range(0, len(values), _CHUNK_COUNT):
            with np.errstate(all="ignore"):  # signalling NaNs
                self._add(values[start : start + _CHUNK_COUNT])

    def add_counts(self, counts: list[int]) -> None:
        """Add counts of bins that begin with `edges`."""
        self._counts += np.array(counts, np.int64)

    def _add(self, part: np.ndarray[Any, Any]) -> None:
        if not self._is_float:  # modulo 2^64 the distance from the least is right for signed and unsigned ones
            wide = part.astype(np.int64) if part.dtype.itemsize < 8 else part
            distance = wide.astype(np.uint64) - np.uint64(self._low % (1 << 64))
            index = (distance // np.uint64(self._width)).astype(np.int64)
            self._counts += np.bincount(index, minlength=len(self._counts))
            return
        numbers = part.astype(np.float64)
        is_finite = np.isfinite(numbers)
        if not is_finite.all():
            numbers = numbers[is_finite]
        if self._has_edges:
            index = np.searchsorted(self.edges, numbers, "right")  # as numpy.histogram, and it sorts nothing
            self._counts += np.bincount(index, minlength=len(self._counts))
        else:
            self._counts[0] += len(numbers)

    def bins(self) -> tuple[Bin, ...]:
        """Return the bins, lowest first."""
        counts = self._counts.tolist()
        if not self._is_float:
            starts = range(self._low, self._high + 1, self._width)
            return tuple(
                Bin(at, min(at + self._width - 1, self._high), n) for at, n in zip(starts, counts, strict=True)
            )
        if self._has_edges:
            return tuple(map(Bin, self._ends[:-1], self._ends[1:], counts))
        return (Bin(self._low, self._high, counts[0]),)
