"""Sets of byte ranges: which a file holds, which are missing, and which requests fetch them."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

Range = tuple[int, int]
"""(begin, end) of bytes; the end is not included."""

MAX_GAP_NBYTES = 1 << 16
"""Neighbours that are not farther apart are fetched by one request."""

_MIN_PIECE_NBYTES, _MAX_PIECE_NBYTES = 1 << 20, 1 << 23


class Ranges:
    """A set of bytes, as sorted ranges that do not touch each other."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        self._begins: list[int] = []
        self._ends: list[int] = []
        for begin, end in ranges:
            self.add(begin, end)

    def __iter__(self) -> Iterator[Range]:
        return iter(list(zip(self._begins, self._ends, strict=True)))

    @property
    def nbytes(self) -> int:
        """Number of bytes in the set."""
        return sum(self._ends) - sum(self._begins)

    def add(self, begin: int, end: int) -> None:
        """Add a range."""
        if begin < end:
            first, last = bisect_left(self._ends, begin), bisect_right(self._begins, end)
            if first < last:
                begin, end = min(begin, self._begins[first]), max(end, self._ends[last - 1])
            self._begins[first:last], self._ends[first:last] = [begin], [end]

    def remove(self, begin: int, end: int) -> None:
        """Remove a range."""
        if begin < end:
            first, last = bisect_right(self._ends, begin), bisect_left(self._begins, end)
            if first < last:
                left, right = self._begins[first], self._ends[last - 1]
                rest = [(left, begin), (end, right)]
                kept = [(b, e) for b, e in rest if b < e]
                self._begins[first:last], self._ends[first:last] = [b for b, _ in kept], [e for _, e in kept]

    def missing(self, begin: int, end: int) -> list[Range]:
        """Return the parts of a range that are not in the set, in order."""
        found = []
        for number in range(bisect_right(self._ends, begin), len(self._begins)):
            if self._begins[number] >= end:
                break
            if begin < self._begins[number]:
                found.append((begin, self._begins[number]))
            begin = max(begin, self._ends[number])
        if begin < end:
            found.append((begin, end))
        return found


def merged(ranges: Iterable[Range], gap: int = 0) -> list[Range]:
    """Return ranges in order, with those that are at most `gap` bytes apart as one."""
    found: list[Range] = []
    for begin, end in sorted(ranges):
        if found and begin <= found[-1][1] + gap:
            found[-1] = found[-1][0], max(end, found[-1][1])
        elif begin < end:
            found.append((begin, end))
    return found


def pieces(ranges: list[Range], count: int) -> list[Range]:
    """Cut ranges into requests, so that `count` of them can run at once and none has to begin again with much.

    `count`: requests that run at once.
    """
    share = sum(end - begin for begin, end in ranges) // count
    size = min(max(share, _MIN_PIECE_NBYTES), _MAX_PIECE_NBYTES)
    found = []
    for begin, end in ranges:
        while end - begin > size + size // 2:
            found.append((begin, begin + size))
            begin += size
        found.append((begin, end))
    return found
