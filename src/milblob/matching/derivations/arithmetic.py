"""Arithmetic in derivations: functions of elements, reductions over axes, sums, differences, products, quotients.

NumPy computes everything in float32, as coremltools computes constants. Values that torch computed before the
conversion can differ in the last bit: `matching.rounding` decides when values are equal to one rounding.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...dtypes import DType
from .derivation import Arrays, CheckpointArray, Derivation
from .layouts import Values

_Function = Callable[[Values], Values]
_Reduction = Callable[..., Any]

_MAX_EPSILON = 1e-2

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
    "1 - sigmoid": lambda x: 1 - 1 / (1 + np.exp(-x)),
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


class Arithmetic(Derivation):
    """A step that computes in float32."""

    def _values(self, arrays: Arrays) -> Values:
        steps = (np.asarray(step.compute(arrays), np.float32) for step in self.steps)
        return np.asarray(self._result(*steps), np.float32)

    def _result(self, *steps: Values) -> Any:
        raise NotImplementedError

    def dtype(self, dtypes: Callable[[str], DType]) -> DType:
        return DType.FLOAT32


@dataclass(frozen=True)
class Literal(Arithmetic):
    """A number that the network's code holds, such as the 1 of `1 + w`: it depends on no array."""

    value: float

    def _result(self, *steps: Values) -> Any:
        return self.value

    def __str__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True)
class Applied(Arithmetic):
    """A function of each element: one of FUNCTIONS."""

    of: Derivation
    name: str

    def _result(self, *steps: Values) -> Any:
        return FUNCTIONS[self.name](*steps)

    def __str__(self) -> str:
        return f"{self.name}({self.of})"


@dataclass(frozen=True)
class Reduced(Arithmetic):
    """One number of the elements along some axes: one of REDUCTIONS."""

    of: Derivation  # the operand
    name: str  # of the reduction
    axes: tuple[int, ...] | None = None  # along which; None for all
    keepdims: bool = False  # whether the axes are kept, with size 1

    def _result(self, *steps: Values) -> Any:
        return REDUCTIONS[self.name](*steps, axis=self.axes, keepdims=self.keepdims)

    def __str__(self) -> str:
        along = "" if self.axes is None else f" along {', '.join(map(str, self.axes))}"
        return f"{self.name}({self.of}{along})"


@dataclass(frozen=True)
class Combined(Arithmetic):
    """Two values with one of OPERATORS between them, broadcast as NumPy does."""

    operator: str
    a: Derivation
    b: Derivation

    def _result(self, *steps: Values) -> Any:
        return OPERATORS[self.operator](*steps)

    @property
    def steps(self) -> tuple[Derivation, ...]:
        return (self.a, self.b)

    @property
    def is_elementwise(self) -> bool:
        """See Derivation. Rows are taken of sums of two arrays of one size only, such as the biases of a GRU."""
        return self.operator == "+" and all(isinstance(step, CheckpointArray) for step in self.steps)

    def __str__(self) -> str:
        a, b = (f"({part})" if isinstance(part, Combined) else str(part) for part in (self.a, self.b))
        return f"{a} {self.operator} {b}"


STANDARDS = ("variance", "sample variance", "deviation")
"""The divisors of channels: the root of variance and epsilon; the same of n - 1; the root, and epsilon added."""


@dataclass(frozen=True)
class Standardized(Arithmetic):
    """Weight standardization: each channel with a mean of 0 and a deviation of 1."""

    of: Derivation  # the operand
    axes: tuple[int, ...]  # of a channel
    form: str  # one of STANDARDS
    epsilon: float  # added

    def _result(self, *steps: Values) -> Any:
        (whole,), epsilon = steps, np.float32(self.epsilon)
        away = whole - np.mean(whole, axis=self.axes, keepdims=True)
        if self.form == STANDARDS[1]:
            variance = np.var(whole, axis=self.axes, keepdims=True, ddof=1)
        else:
            variance = np.mean(away * away, axis=self.axes, keepdims=True)
        return away / (np.sqrt(variance) + epsilon if self.form == STANDARDS[2] else np.sqrt(variance + epsilon))

    def __str__(self) -> str:
        return f"{self.of}, standardized (epsilon {self.epsilon:g})"


@dataclass(frozen=True)
class Filled(Derivation):
    """One number in all elements of a shape."""

    of: Derivation
    shape: tuple[int, ...]

    def _values(self, arrays: Arrays) -> Values:
        values = self.of.compute(arrays)
        return np.full(self.shape, values.reshape(-1)[0], values.dtype)

    def __str__(self) -> str:
        return f"{self.of} in every element"


def follows_by_element(derivation: Derivation) -> bool:
    """Whether each element of arrays of one shape gives the same element of the result."""
    is_one = isinstance(derivation, (CheckpointArray, Literal, Applied, Combined))
    return is_one and all(map(follows_by_element, derivation.steps))


def kind_of(derivation: Derivation) -> tuple[Any, ...]:
    """Return the form of an expression without its arrays: equal for weights that are computed in the same way."""
    words: tuple[Any, ...] = tuple(getattr(derivation, key, None) for key in ("operator", "name", "form", "epsilon"))
    if isinstance(derivation, Literal):  # a width is not the same for two weights, an epsilon is
        words = (derivation.value if abs(derivation.value) <= _MAX_EPSILON else None,)
    elif not derivation.steps:
        words = ()
    return (type(derivation).__name__, *words, *(kind_of(step) for step in derivation.steps))
