"""The arguments of an operation, for the rules about outputs: their types, and the values of small constants."""

from collections.abc import Sequence
from typing import TypeVar

from ..dtypes import DType
from ..program.types import ListType, TensorType, ValueType
from ..wording import sizes as spelled
from .misfits import Misfit, Shape
from .operation_rules import Bound

Arguments = Sequence[tuple[str, Sequence[Bound | None]]]
_Type = TypeVar("_Type", bound=ValueType)

MAX_COUNT = 1 << 10
"""Dimensions of an output, and outputs, that are made from a number in the Program.

A few bytes can ask for 2**63 of them. No tool asks for a tenth of this."""

_MAX_SIZE = 1 << 64  # of a dimension: the most that a Program can state


class Unsure(Exception):  # noqa: N818 - not an error: the inputs do not determine the type
    """The arguments do not determine the output."""


class Given:
    """The arguments of one operation. Access to an unknown one raises Unsure, which ends the inference."""

    def __init__(self, arguments: Arguments) -> None:
        self._bound = dict(arguments)

    def __contains__(self, key: str) -> bool:
        return key in self._bound

    def type(self, key: str) -> ValueType:
        """The type of an argument."""
        bound = self._bound.get(key, ())
        found = bound[0].type if len(bound) == 1 and bound[0] is not None else None
        if found is None:
            raise Unsure
        return _require_plain(found)

    def tensor(self, key: str) -> TensorType:
        """The type of a tensor, whose rank may be open."""
        found = self.type(key)
        if not isinstance(found, TensorType):
            raise Unsure
        return found

    def ranked(self, key: str, least: int = 0, most: int | None = None) -> TensorType:
        """The type of a tensor of a known rank, from `least` to `most`."""
        found = _require_rank(self.tensor(key))
        if len(found.shape) < least or (most is not None and len(found.shape) > most):
            raise Unsure
        return found

    def several(self, key: str) -> list[TensorType]:
        """The types of the tensors of an argument that takes several; of a known rank, and of one data type."""
        found = self._each(key)
        if not found or any(one.dtype != found[0].dtype for one in found):
            raise Unsure
        return found

    def shapes(self, key: str) -> list[Shape]:
        """The shapes of the tensors of an argument that takes several, of any data types."""
        return [one.shape for one in self._each(key)]

    def _each(self, key: str) -> list[TensorType]:
        found = []
        for one in self._bound.get(key, ()):
            if one is None or not isinstance(one.type, TensorType):
                raise Unsure
            found.append(_require_rank(_require_plain(one.type)))
        return found

    def element(self, key: str) -> TensorType:
        """The type of the elements of a list, of a known rank."""
        found = self.type(key)
        if not isinstance(found, ListType) or not isinstance(found.element, TensorType):
            raise Unsure
        return _require_rank(_require_plain(found.element))

    def integers(self, key: str) -> tuple[int, ...]:
        """The elements of a constant of integers or bools."""
        found = self.integers_or_none(key)
        if found is None:
            raise Unsure
        return found

    def integers_or_none(self, key: str) -> tuple[int, ...] | None:
        """As `integers`; None if they are not known before the model runs, or too large to read."""
        bound = self._bound.get(key, ())
        return self.each_integer(key) if len(bound) == 1 and bound[0] and bound[0].value is not None else None

    def each_integer(self, key: str) -> tuple[int, ...]:
        """The elements of all constants that an argument is bound to, one after the other."""
        found: list[int] = []
        for one in self._bound.get(key, ()):
            if one is None or one.value is None:
                raise Unsure
            found.extend(element for element in one.value if not isinstance(element, str))
        return tuple(found)

    def integer(self, key: str, default: int | None = None) -> int:
        """One integer or bool; the default where the argument is left out."""
        if key not in self._bound and default is not None:
            return default
        found = self.integers(key)
        if len(found) != 1:
            raise Unsure
        return found[0]

    def sizes(self, key: str, count: int, default: int) -> tuple[int, ...]:
        """Return `count` integers; the default for each if the argument is left out."""
        found = self.integers(key) if key in self._bound else (default,) * count
        if len(found) != count:
            raise Unsure
        return found

    def word(self, key: str, default: str | None = None) -> str:
        """A string; the default where the argument is left out."""
        if key not in self._bound and default is not None:
            return default
        bound = self._bound.get(key, ())
        found = bound[0].value if len(bound) == 1 and bound[0] is not None else None
        if found is None or len(found) != 1 or not isinstance(found[0], str):
            raise Unsure
        return found[0]

    def named(self, key: str, default: str) -> DType:
        """The data type that a string names."""
        word = self.word(key, default).lower()  # coremltools takes INT32 as well
        found = next((dtype for dtype in DType if dtype.mil_text == word), None)
        if found is None:
            raise Unsure
        return found


def typed(x: TensorType, shape: Sequence[int | None]) -> TensorType:
    """A tensor of the data type of another one."""
    return TensorType(x.dtype, tuple(shape), len(shape))


def of_dtype(dtype: DType | int, shape: Sequence[int | None]) -> TensorType:
    """A tensor of a known rank."""
    return TensorType(dtype, tuple(shape), len(shape))


def index(axis: int, rank: int) -> int:
    """An axis counted from the front."""
    axis = axis + rank if axis < 0 else axis
    if not 0 <= axis < rank:
        raise Unsure  # no such axis: coremltools refuses it before it has a type
    return axis


def product(shape: Sequence[int | None]) -> int | None:
    """The number of elements; None if a dimension is open, or if there are more than any dimension can have."""
    count = 1
    for size in shape:
        if size is None or count >= _MAX_SIZE:  # numbers that grow further take minutes, and cannot be printed
            return None
        count *= size
    return count if count < _MAX_SIZE else None


def broadcast(*shapes: Shape) -> Shape:
    """Return the broadcast shape; open where the inputs do not determine it."""
    rank = max(map(len, shapes))
    found: list[int | None] = []
    for sizes in zip(*((1,) * (rank - len(shape)) + shape for shape in shapes), strict=True):
        others = {size for size in sizes if size != 1}
        known = others - {None}
        if len(known) > 1:
            raise Misfit("shapes", "ones that broadcast", " and ".join(map(spelled, shapes)))
        found.append(known.pop() if len(known) == 1 else None if others else 1)
    return tuple(found)


def _require_plain(found: "_Type") -> "_Type":
    if isinstance(found, TensorType) and not (isinstance(found.dtype, DType) and found.rank in (-1, len(found.shape))):
        raise Unsure  # broken itself
    return found


def _require_rank(found: TensorType) -> TensorType:
    if found.rank < 0 or found.variadic:
        raise Unsure
    return found
