"""How the values of a weight follow from arrays of a checkpoint: small expressions that can be computed and printed.

An expression holds names, never values, so an expression learned from one checkpoint can be computed for another. The
cast to the weight's dtype is not a part of it: the writer of the values casts them last.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import numpy as np

from ...dtypes import DType, as_dtype
from .layouts import Layout, Values
from .norms import Norm, fold_bias, fold_weight

Arrays = Callable[[str], Values]
"""Returns the array of a checkpoint by its name."""


class ArrayRange(NamedTuple):
    """A part of an array that takes part: [begin, end) along an axis; all of it if the axis is None."""

    name: str
    axis: int | None = None
    begin: int = 0
    end: int = 0


class Derivation:
    """An expression that gives a weight; each subclass is one step."""

    def compute(self, arrays: Arrays) -> Values:
        """Return the values, in the dtype of the arrays or, after arithmetic, in that of the arithmetic."""
        with np.errstate(all="ignore"):
            return np.asarray(self._values(arrays))

    def _values(self, arrays: Arrays) -> Values:
        raise NotImplementedError

    @property
    def steps(self) -> tuple["Derivation", ...]:
        """Return the operands of this step: the attribute `of`, unless a subclass has others."""
        return (self.of,) if hasattr(self, "of") else ()

    @property
    def is_elementwise(self) -> bool:
        """Whether each row follows from the same row of each step alone."""
        return False

    def sources(self) -> Iterator[str]:
        """Yield the name of each array that takes part, perhaps several times."""
        for step in self.steps:
            yield from step.sources()

    @property
    def main(self) -> str | None:
        """The array that the values are mostly those of."""
        return next(self.sources(), None)

    @property
    def words(self) -> str:
        """A description for people."""
        return str(self)

    def uses(self) -> Iterator[ArrayRange]:
        """Yield the part of each array that is used."""
        for step in self.steps:
            yield from step.uses()

    def dtype(self, dtypes: Callable[[str], DType]) -> DType:
        """Return the dtype of the result of `compute`, from those of the arrays."""
        found = {step.dtype(dtypes) for step in self.steps}
        return found.pop() if len(found) == 1 else DType.FLOAT32


@dataclass(frozen=True)
class CheckpointArray(Derivation):
    """An array without a change."""

    name: str

    def _values(self, arrays: Arrays) -> Values:
        return arrays(self.name)

    def sources(self) -> Iterator[str]:
        yield self.name

    def uses(self) -> Iterator[ArrayRange]:
        yield ArrayRange(self.name)

    def dtype(self, dtypes: Callable[[str], DType]) -> DType:
        return dtypes(self.name)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Moved(Derivation):
    """Transposed, reshaped, or both."""

    of: Derivation
    layout: Layout

    def _values(self, arrays: Arrays) -> Values:
        return np.ascontiguousarray(self.layout.apply(np.ascontiguousarray(self.of.compute(arrays))))

    def __str__(self) -> str:
        return f"{self.of}: {', '.join(self.layout.words)}"


@dataclass(frozen=True)
class RowRange(Derivation):
    """A range along the first axis."""

    of: Derivation
    begin: int
    end: int

    def _values(self, arrays: Arrays) -> Values:
        return self.of.compute(arrays)[self.begin : self.end]

    def uses(self) -> Iterator[ArrayRange]:
        if isinstance(self.of, CheckpointArray):
            yield ArrayRange(self.of.name, 0, self.begin, self.end)
        elif (
            isinstance(self.of, Moved)
            and isinstance(self.of.of, CheckpointArray)
            and self.of.layout[::2] == (None, None)
        ):
            axes = self.of.layout.axes
            yield ArrayRange(self.of.of.name, 0 if axes is None else axes[0], self.begin, self.end)
        elif self.of.is_elementwise:
            for step in self.of.steps:
                yield from RowRange(step, self.begin, self.end).uses()
        else:
            yield from self.of.uses()

    def __str__(self) -> str:
        return f"{self.of}[{self.begin}:{self.end}]"


@dataclass(frozen=True)
class Stacked(Derivation):
    """Several, one after the other along the first axis."""

    parts: tuple[Derivation, ...]

    @property
    def steps(self) -> tuple[Derivation, ...]:
        return self.parts

    def _values(self, arrays: Arrays) -> Values:
        values = [part.compute(arrays) for part in self.parts]
        if len({part.dtype for part in values}) > 1:
            values = [part.astype(np.float32) for part in values]
        return np.concatenate(values)

    def __str__(self) -> str:
        shown = [str(part) for part in self.parts[:6]]
        return f"{' | '.join(shown)}{f' | {len(self.parts) - 6} more' if len(self.parts) > 6 else ''}"


@dataclass(frozen=True)
class Gathered(Derivation):
    """Rows in any order, some perhaps several times: what `table[indices]` gives."""

    of: Derivation  # an array; Moved before, if another axis than the first is that of the rows
    rows: bytes  # which, as the bytes of int32

    @property
    def indices(self) -> Values:
        """Which rows."""
        return np.frombuffer(self.rows, np.int32)

    def _values(self, arrays: Arrays) -> Values:
        return np.asarray(self.of.compute(arrays)[self.indices])

    def uses(self) -> Iterator[ArrayRange]:
        for row in np.unique(self.indices).tolist():
            yield from RowRange(self.of, row, row + 1).uses()

    def __str__(self) -> str:
        return f"{self.of}, {len(self.indices):,} rows gathered"


@dataclass(frozen=True)
class Folded(Derivation):
    """The weight or the bias of a convolution with a batch norm, or a scale, folded in."""

    of: Derivation | None  # the convolution's own weight or bias; None for a bias that it does not have
    norm: Norm  # the norm that was folded
    groups: int  # of a conv_transpose; 0 for a conv
    is_bias: bool  # whether it is the bias
    shape: tuple[int, ...]  # of the result

    def _values(self, arrays: Arrays) -> Values:
        own = np.zeros(self.shape, np.float32) if self.of is None else self.of.compute(arrays)
        vectors = self.norm.vectors(arrays)
        if self.is_bias:
            return fold_bias(own.reshape(-1), self.norm, vectors).reshape(self.shape)
        return fold_weight(own.reshape(self.shape), self.norm, vectors, self.groups)

    @property
    def steps(self) -> tuple[Derivation, ...]:
        norm = (CheckpointArray(name) for name in self.norm.names(self.is_bias))
        return (*(() if self.of is None else (self.of,)), *norm)

    @property
    def main(self) -> str | None:
        return self.norm.beta if self.of is None else self.of.main

    @property
    def words(self) -> str:
        return f"{self.of.words}, {self.norm}" if isinstance(self.of, Folded) else str(self.norm)

    def dtype(self, dtypes: Callable[[str], DType]) -> DType:
        return as_dtype(self.norm.dtype)

    def __str__(self) -> str:
        return f"{self.of if self.of is not None else 'no bias'}, {self.norm} folded in"


class Explained(NamedTuple):
    """A derivation that gives the values of a weight."""

    derivation: Derivation  # gives the present values
    is_exact: bool  # to the bit; else to one rounding
    is_of_one: bool = False  # of an array of one element
    is_weak: bool = False  # a number of few bits, and not an array itself: it may be equal by accident


def moved(of: Derivation, layout: Layout) -> Derivation:
    """Return a derivation in another layout."""
    return of if layout.is_identity else Moved(of, layout)


def row_of(name: str, shape: tuple[int, ...], row: int) -> Derivation:
    """Return one of the rows along the last axis of an array: [1, n]; the array itself if it has no other one."""
    rows, count = CheckpointArray(name), prod(shape[:-1])
    if count == 1:
        return rows
    return RowRange(rows if len(shape) == 2 else Moved(rows, Layout(after=(count, shape[-1]))), row, row + 1)
