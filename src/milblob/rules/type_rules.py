"""Rules of the specification about types."""

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from ..dtypes import DType
from ..program.types import DictionaryType, ListType, StateType, TensorType, TupleType, ValueType
from ..wording import abbreviated

_MAX_BREACHES = 20  # that are reported of one type


class KnownType(NamedTuple):
    """The facts about a type, found once for all values and variables that have it."""

    type: ValueType | None
    breaches: tuple[tuple[str, str], ...]
    is_known: bool  # whether it leaves no dimension and no length open
    has_state: bool  # whether it is a state, or has one inside
    dtypes: frozenset[DType]  # those that it is made of

    @classmethod
    def of(cls, declared: ValueType | None) -> "KnownType":
        """Look at a type."""
        broken = type_breaches(declared) if declared is not None else ()
        return cls(declared, broken, is_known(declared), _has_state(declared), dtypes_of(declared))


@lru_cache(maxsize=1024)
def type_breaches(declared: ValueType | None) -> tuple[tuple[str, str], ...]:
    """Return the breaches of a type and the types inside it: (rule, words)."""
    if isinstance(declared, TensorType):
        return tuple(_tensor(declared))
    if declared is None:
        return (("MIL011", "expected a type inside, got none"),)
    inner = (breach for one in inner_types(declared) for breach in type_breaches(one))
    found = list(islice(dict.fromkeys(inner), _MAX_BREACHES))
    if isinstance(declared, DictionaryType) and declared.key is not None and not _is_key(declared.key):
        found.append(("MIL020", f"expected keys that are strings or integers, got {brief(declared.key)}"))
    return tuple(found)


def inner_types(declared: ValueType | None) -> tuple[ValueType | None, ...]:
    """The types that a type is made of."""
    if isinstance(declared, ListType):
        return (declared.element,)
    if isinstance(declared, TupleType):
        return declared.members
    if isinstance(declared, DictionaryType):
        return declared.key, declared.value
    return (declared.wrapped,) if isinstance(declared, StateType) else ()


def _tensor(declared: TensorType) -> Iterator[tuple[str, str]]:
    if isinstance(declared.dtype, int):
        yield "MIL009", f"expected a data type that is known, got number {declared.dtype}"
    count = len(declared.shape)
    # If a dimension represents any number of them, MIL.proto has rank -1; coremltools writes the number that it lists.
    if declared.rank != count and not (declared.rank == -1 and (declared.variadic or not count)):
        yield "MIL010", f"expected a rank of {count}, its number of dimensions, got {declared.rank}"


def _is_key(key: ValueType) -> bool:
    """Whether values of a type compare: one string or integer each."""
    if not isinstance(key, TensorType) or key.shape or key.rank:
        return False
    return isinstance(key.dtype, int) or key.dtype is DType.STRING or key.dtype.is_integer


def brief(declared: ValueType | None, depth: int = 4) -> str:
    """Describe a type for a message: its beginning, for a type of any size."""
    if declared is None or depth == 0:
        return "none" if declared is None else "..."
    if isinstance(declared, TensorType):
        return str(replace(declared, shape=declared.shape[:12])) if len(declared.shape) > 12 else str(declared)
    inner = [brief(one, depth - 1) for one in inner_types(declared)[:6]]
    if isinstance(declared, ListType):
        inner.append("?" if declared.length is None else str(declared.length))
    elif isinstance(declared, TupleType) and len(declared.members) > 6:
        inner.append("...")
    name = {ListType: "list", TupleType: "tuple", DictionaryType: "dict", StateType: "state"}[type(declared)]
    return abbreviated(f"{name}<{', '.join(inner)}>")


def dtypes_of(declared: ValueType | None) -> frozenset[DType]:
    """The data types that a type is made of."""
    if isinstance(declared, TensorType):
        return frozenset([declared.dtype]) if isinstance(declared.dtype, DType) else frozenset()
    return frozenset(dtype for one in inner_types(declared) for dtype in dtypes_of(one))


def is_known(declared: ValueType | None) -> bool:
    """Whether a type leaves no dimension and no length open."""
    if isinstance(declared, TensorType):
        return declared.rank >= 0 and None not in declared.shape
    if isinstance(declared, ListType) and declared.length is None:
        return False
    return all(is_known(one) for one in inner_types(declared))


def _has_state(declared: ValueType | None) -> bool:
    return isinstance(declared, StateType) or any(map(_has_state, inner_types(declared)))


def fits(declared: ValueType | None, expected: ValueType | None) -> bool:
    """Whether a value of one type is valid where another is expected: an open part fits anything."""
    if declared is None or expected is None or declared == expected:
        return True
    if isinstance(declared, TensorType) and isinstance(expected, TensorType):
        if declared.dtype != expected.dtype:
            return False
        if -1 in (declared.rank, expected.rank) or declared.variadic or expected.variadic:
            return True
        pairs = zip(declared.shape, expected.shape, strict=False)
        return len(declared.shape) == len(expected.shape) and all(_same(a, b) for a, b in pairs)
    if type(declared) is not type(expected):
        return False
    if (
        isinstance(declared, ListType)
        and isinstance(expected, ListType)
        and not _same(declared.length, expected.length)
    ):
        return False
    ours, theirs = inner_types(declared), inner_types(expected)
    return len(ours) == len(theirs) and all(map(fits, ours, theirs))


def _same(count: int | None, other: int | None) -> bool:
    """Whether two counts may be equal; None is any."""
    return count is None or other is None or count == other
