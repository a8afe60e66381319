"""The types of values in a Program: small frozen classes that print as MIL text does, ``tensor<fp16, [1, ?, 64]>``."""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from ..errors import FormatError
from .fields import InPieces, repeated, singular

_MAX_CACHED_NBYTES = 256
_MAX_DEPTH = 100  # types in types, as in MIL text


@dataclass(frozen=True, slots=True)
class TensorType:
    """A tensor; a scalar is one of rank 0.

    Attributes:
        dtype: DType of the elements, or its number in the Program if milblob does not know it.
        shape: the dimensions; None for one that is left open.
        rank: as declared: the number of dimensions, or -1 where the rank itself is open.
        variadic: indices of open dimensions that represent any number of dimensions.

    Examples:
        >>> model = milblob.open("demo.mlpackage")
        >>> [logits] = model.find("logits")
        >>> print(logits.outputs[0].type)
        tensor<fp32, [1, 16, 96]>
        >>> logits.outputs[0].type.dtype, logits.outputs[0].type.shape
        (DType.FLOAT32, (1, 16, 96))
    """

    dtype: DType | int
    shape: tuple[int | None, ...] = ()
    rank: int = 0
    variadic: tuple[int, ...] = ()

    def __str__(self) -> str:
        name = self.dtype.mil_text if isinstance(self.dtype, DType) else f"type_{self.dtype}"
        if not self.shape and not self.rank:
            return name
        sizes = [
            "..." if i in self.variadic else "?" if size is None else str(size) for i, size in enumerate(self.shape)
        ]
        return f"tensor<{name}, [{', '.join(sizes)}]>"


@dataclass(frozen=True, slots=True)
class ListType:
    """A list of `length` elements of one type; None for a length that is left open.

    Examples:
        >>> model = milblob.open("lists.mlpackage")
        >>> [made] = model.find(type="make_list")
        >>> print(made.outputs[0].type, made.outputs[0].type.length)
        list<tensor<fp32, [12]>, 3> 3
    """

    element: "ValueType | None"
    length: int | None

    def __str__(self) -> str:
        return f"list<{self.element}, {'?' if self.length is None else self.length}>"


@dataclass(frozen=True, slots=True)
class TupleType:
    """A tuple, by the types of its members.

    Examples:
        >>> member = milblob.TensorType(milblob.DType.FLOAT16, (1, None), 2)
        >>> print(milblob.TupleType((member, member)))
        tuple<tensor<fp16, [1, ?]>, tensor<fp16, [1, ?]>>
    """

    members: tuple["ValueType | None", ...]

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.members))}>"


@dataclass(frozen=True, slots=True)
class DictionaryType:
    """A dictionary, by the types of its keys and of its values.

    Examples:
        >>> model = milblob.open("classifier.mlpackage")
        >>> [classify] = model.find(type="classify")
        >>> probabilities = classify.outputs[1].type
        >>> print(probabilities, probabilities.key, probabilities.value)
        dict<string, fp64> string fp64
    """

    key: "ValueType | None"
    value: "ValueType | None"

    def __str__(self) -> str:
        return f"dict<{self.key}, {self.value}>"


@dataclass(frozen=True, slots=True)
class StateType:
    """A state: something that keeps a value of the wrapped type from one prediction to the next.

    Examples:
        >>> model = milblob.open("states.mlpackage")
        >>> variable = model.functions["main"].inputs[1]
        >>> print(variable.type, variable.type.wrapped)
        state<tensor<fp16, [1, 16]>> tensor<fp16, [1, 16]>
    """

    wrapped: "ValueType | None"

    def __str__(self) -> str:
        return f"state<{self.wrapped}>"


ValueType = TensorType | ListType | TupleType | DictionaryType | StateType


class Variable(NamedTuple):
    """A name with its type: an input of a function or block, an output of an operation.

    Examples:
        >>> [logits] = milblob.open("demo.mlpackage").find("logits")
        >>> logits.outputs[0].name, str(logits.outputs[0].type)
        ('logits', 'tensor<fp32, [1, 16, 96]>')
    """

    name: str
    type: ValueType | None

    def __str__(self) -> str:
        return f"{self.type} {self.name}"


_MEMBERS = {1: "tensorType", 2: "listType", 3: "tupleType", 4: "dictionaryType", 5: "stateType"}


def read_type(data: bytes) -> ValueType | None:
    """Read a serialized ValueType; None if it states no type.

    Raises: FormatError: malformed, or nested too deep; offsets are counted from the start of `data`.
    """
    return _cached(data) if len(data) <= _MAX_CACHED_NBYTES else _read_any(data)


def _read_any(data: bytes) -> ValueType | None:
    try:
        return _read(_codec.Buffer(data), (0, len(data)), 1)
    except InPieces:
        from . import schema

        data = schema.parse("ValueType", data).SerializeToString()
        return _read(_codec.Buffer(data), (0, len(data)), 1)


_cached = lru_cache(maxsize=4096)(_read_any)  # a Program has few types, each of them very often


def _read(buffer: _codec.Buffer, span: tuple[int, int] | None, depth: int) -> ValueType | None:
    if span is None:
        return None
    if depth > _MAX_DEPTH:
        raise FormatError(f"types: expected at most {_MAX_DEPTH} levels of nesting, got more", offset=span[0])
    found = singular(buffer, span, dict.fromkeys(_MEMBERS, 2), "member of ValueType")
    if len(found) > 1:
        raise InPieces
    for number, member in found.items():
        if number == 1:
            return _read_tensor(buffer, member)
        if number == 3:
            types = repeated(buffer, member, {1: 2}, "type of a tuple")
            return TupleType(tuple(_read(buffer, inner, depth + 1) for _, inner in types))
        fields = singular(buffer, member, {1: 2} if number == 5 else {1: 2, 2: 2}, _MEMBERS[number])
        first = _read(buffer, fields.get(1), depth + 1)
        if number == 2:
            return ListType(first, _dimension(buffer, fields[2])[0] if 2 in fields else None)
        if number == 4:
            return DictionaryType(first, _read(buffer, fields.get(2), depth + 1))
        return StateType(first)
    return None


def _read_tensor(buffer: _codec.Buffer, span: tuple[int, int]) -> TensorType:
    code = rank = 0
    shape: list[int | None] = []
    variadic = []
    for number, value in repeated(buffer, span, {1: 0, 2: 0, 3: 2}, "field of TensorType"):
        if number == 1:
            code = _int32(value)
        elif number == 2:
            rank = value - (1 << 64) if value >> 63 else value
        else:
            size, is_variadic = _dimension(buffer, value)
            if is_variadic:
                variadic.append(len(shape))
            shape.append(size)
    return TensorType(BY_MIL_CODE.get(code, code), tuple(shape), rank, tuple(variadic))


def _int32(value: int) -> int:
    """An enum as protobuf reads it: the low 32 bits of the varint, signed."""
    value &= 0xFFFFFFFF
    return value - (1 << 32) if value >> 31 else value


def _dimension(buffer: _codec.Buffer, span: tuple[int, int]) -> tuple[int | None, bool]:
    """Return the size, None if it is left open, and whether it then represents any number of dimensions."""
    found = singular(buffer, span, {1: 2, 2: 2}, "member of Dimension")
    if len(found) > 1:
        raise InPieces
    for number, member in found.items():
        value = singular(buffer, member, {1: 0}, "size of a dimension").get(1, 0)
        return (value, False) if number == 1 else (None, bool(value))
    return None, False
