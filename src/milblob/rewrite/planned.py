"""Compressed weights whose parts have known sizes before they are computed: they are written while they are computed.

A recipe says what there will be (`PartsPlan`), the layout gives every part its place, and only then values are read. So
memory holds a stretch of a weight at a time, and nothing is kept in between.
"""

from collections.abc import Callable, Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..threads import ordered
from ..values.dense import Dense

Array = np.ndarray[Any, Any]
Put = Callable[[str, int, Any], None]
"""Called as `put(key, offset, data)`: bytes of a part, from the offset in bytes on."""


class PlannedPart(NamedTuple):
    """A part of a compressed weight.

    Attributes:
        array: the values if they go into the Program, which is written first; else None.
    """

    key: str
    dtype: Any
    shape: tuple[int, ...]
    array: Array | None = None

    @property
    def nbytes(self) -> int:
        """Bytes as stored."""
        return int(self.dtype.nbytes(prod(self.shape)))


class CompressionLoss(NamedTuple):
    """What was lost.

    Attributes:
        squared: sum of the squared differences.
        power: sum of the squares of the weight.
        largest: difference.
        gap: the most by which the squared error of palettes may exceed the least possible; None if that is not known.
    """

    squared: float
    power: float
    largest: float
    gap: float | None = None


class PartsPlan(NamedTuple):
    """What becomes of a weight.

    Attributes:
        op: type of the operation that computes it.
        parts: its parts.
        write: computes the parts that have no array, and gives every byte of them to a `Put` once, in the caller's
            thread. Raises NotCompressibleError if the values cannot be compressed.
    """

    op: str
    parts: tuple[PlannedPart, ...]
    write: Callable[[Put], CompressionLoss]

    @property
    def has_stored_parts(self) -> bool:
        """Whether `write` has parts to compute: not all values go into the Program."""
        return any(part.array is None for part in self.parts)


class Computation:
    """One weight that is compressed while it is written.

    Args:
        plan: what becomes of it.
        is_large: whether it is shared out among threads by itself; others are computed several at a time.
        done: called with the figures once they are known.
    """

    def __init__(self, plan: PartsPlan, is_large: bool, done: Callable[[CompressionLoss], None]) -> None:
        self.is_large = is_large
        self._plan: PartsPlan | None = plan
        self._done = done

    def write(self, put: Put) -> None:
        """Compute the parts, once. Raises: as the plan."""
        self._done(self._compute(put))

    def collect(self) -> tuple[list[tuple[str, int, Any]], CompressionLoss]:
        """Compute the parts, once, in any thread; return what to put, in order, and the figures."""
        rows: list[tuple[str, int, Any]] = []
        figures = self._compute(lambda *row: rows.append(row))
        return rows, figures

    def put_all(self, put: Put, rows: list[tuple[str, int, Any]], figures: CompressionLoss) -> None:
        """Write what `collect` returned."""
        for row in rows:
            put(*row)
        self._done(figures)

    def _compute(self, put: Put) -> CompressionLoss:
        plan, self._plan = self._plan, None  # it holds the values of the source, which is closed before the end
        if plan is None:
            raise RuntimeError("computation: expected one call, got another")
        return plan.write(put)


class Streamed(Dense):
    """A part that is written when its weight is computed."""

    def __init__(self, computation: Computation, part: PlannedPart) -> None:
        super().__init__(part.dtype, part.shape)
        self.computation = computation
        self.key = part.key


def write_all(computations: Iterable[Computation], put_of: Callable[[Computation], Put]) -> None:
    """Compute and write weights, in order: large ones with all threads, several small ones at a time."""
    small: list[Computation] = []

    def flush() -> None:
        for one, made in zip(small, ordered(Computation.collect, small), strict=True):
            one.put_all(put_of(one), *made)
        small.clear()

    for computation in computations:
        if not computation.is_large:
            small.append(computation)
            continue
        flush()
        computation.write(put_of(computation))
    flush()
