"""Arithmetic in derivations: functions of elements, reductions over axes, sums, differences, products, quotients.

Everything is computed by NumPy in float32, as coremltools computes constants. What torch computed before the conversion
can differ in the last bit: `matching.rounding` says when values are equal to one rounding.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..dtypes import DType
from .derivation import ArrayRange, Arrays, Derivation, Values

_Function = Callable[[Values], Values]
_Reduction = Callable[..., Any]

FUNCTIONS: Mapping[str, _Function] = {
    "negative": np.negative,
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "square": np.square,
    "abs": np.abs,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "softplus": lambda x: np.logaddexp(x, 0),
}
"""Functions of each element, by name."""

REDUCTIONS: Mapping[str, _Reduction] = {
    "sum": np.sum,
    "mean": np.mean,
    "variance": np.var,
    "sample variance": lambda x, axis, keepdims: np.var(x, axis=axis, keepdims=keepdims, ddof=1),
    "minimum": np.min,
    "maximum": np.max,
    "largest magnitude": lambda x, axis, keepdims: np.max(np.abs(x), axis=axis, keepdims=keepdims),
    "norm": lambda x, axis, keepdims: np.sqrt(np.sum(np.square(x), axis=axis, keepdims=keepdims)),
}
"""Functions that leave one number of the elements along some axes, by name."""

OPERATORS: Mapping[str, Callable[[Values, Values], Values]] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
}


@dataclass(frozen=True)
class Literal(Derivation):
    """A number that the network's code holds, such as the 1 of `1 + w`: it depends on no array."""

    value: float

    def compute(self, arrays: Arrays) -> Values:
        """See Derivation."""
        return np.asarray(self.value, np.float32)

    def sources(self) -> Iterator[str]:
        """See Derivation."""
        return iter(())

    def dtype(self, dtypes: Callable[[str], DType]) -> DType:
        """See Derivation."""
        return DType.FLOAT32

    def to_dict(self) -> dict[str, Any]:
        """See Derivation."""
        return {"literal": self.value}

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Function(Derivation):
    """A function of each element: one of FUNCTIONS."""

    of: Derivation
    name: str

    def compute(self, arrays: Arrays) -> Values:
        """See Derivation."""
        with np.errstate(all="ignore"):
            return np.asarray(FUNCTIONS[self.name](_float32(self.of.compute(arrays))), np.float32)

    def sources(self) -> Iterator[str]:
        """See Derivation."""
        return self.of.sources()

    def uses(self) -> Iterator[ArrayRange]:
        """See Derivation."""
        return self.of.uses()

    def dtype(self, dtypes: Callable[[str], DType]) -> DType:
        """See Derivation."""
        return DType.FLOAT32

    def to_dict(self) -> dict[str, Any]:
        """See Derivation."""
        return {"function": self.name, "of": self.of.to_dict()}

    def __str__(self) -> str:
        return f"{self.name}({self.of})"


@dataclass(frozen=True)
class Reduced(Derivation):
    """One number of the elements along some axes: one of REDUCTIONS.

    Attributes:
        of: what is reduced.
        name: of the reduction.
        axes: along which; None for all.
        keepdims: whether the axes stay, with size 1.
    """

    of: Derivation
    name: str
    axes: tuple[int, ...] | None = None
    keepdims: bool = False

    def compute(self, arrays: Arrays) -> Values:
        """See Derivation."""
        with np.errstate(all="ignore"):
            found = REDUCTIONS[self.name](_float32(self.of.compute(arrays)), axis=self.axes, keepdims=self.keepdims)
        return np.asarray(found, np.float32)

    def sources(self) -> Iterator[str]:
        """See Derivation."""
        return self.of.sources()

    def uses(self) -> Iterator[ArrayRange]:
        """See Derivation."""
        return self.of.uses()

    def dtype(self, dtypes: Callable[[str], DType]) -> DType:
        """See Derivation."""
        return DType.FLOAT32

    def to_dict(self) -> dict[str, Any]:
        """See Derivation."""
        axes = None if self.axes is None else list(self.axes)
        return {"reduction": self.name, "axes": axes, "keepdims": self.keepdims, "of": self.of.to_dict()}

    def __str__(self) -> str:
        along = "" if self.axes is None else f" along {', '.join(map(str, self.axes))}"
        return f"{self.name}({self.of}{along})"


@dataclass(frozen=True)
class Combined(Derivation):
    """Two values with one of OPERATORS between them, broadcast as NumPy does."""

    operator: str
    a: Derivation
    b: Derivation

    def compute(self, arrays: Arrays) -> Values:
        """See Derivation."""
        a, b = (_float32(part.compute(arrays)) for part in (self.a, self.b))
        with np.errstate(all="ignore"):
            return np.asarray(OPERATORS[self.operator](a, b), np.float32)

    def sources(self) -> Iterator[str]:
        """See Derivation."""
        yield from self.a.sources()
        yield from self.b.sources()

    def uses(self) -> Iterator[ArrayRange]:
        """See Derivation."""
        yield from self.a.uses()
        yield from self.b.uses()

    def dtype(self, dtypes: Callable[[str], DType]) -> DType:
        """See Derivation."""
        return DType.FLOAT32

    def to_dict(self) -> dict[str, Any]:
        """See Derivation."""
        return {"operator": self.operator, "a": self.a.to_dict(), "b": self.b.to_dict()}

    def __str__(self) -> str:
        a, b = (f"({part})" if isinstance(part, Combined) else str(part) for part in (self.a, self.b))
        return f"{a} {self.operator} {b}"


@dataclass(frozen=True)
class Filled(Derivation):
    """One number in all elements of a shape."""

    of: Derivation
    shape: tuple[int, ...]

    def compute(self, arrays: Arrays) -> Values:
        """See Derivation."""
        values = self.of.compute(arrays)
        return np.full(self.shape, values.reshape(-1)[0], values.dtype)

    def sources(self) -> Iterator[str]:
        """See Derivation."""
        return self.of.sources()

    def uses(self) -> Iterator[ArrayRange]:
        """See Derivation."""
        return self.of.uses()

    def dtype(self, dtypes: Callable[[str], DType]) -> DType:
        """See Derivation."""
        return self.of.dtype(dtypes)

    def to_dict(self) -> dict[str, Any]:
        """See Derivation."""
        return {"filled": list(self.shape), "of": self.of.to_dict()}

    def __str__(self) -> str:
        return f"{self.of} in every element"


def _float32(values: Values) -> Values:
    return values if values.dtype == np.float32 else values.astype(np.float32)
