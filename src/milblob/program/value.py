"""A value in a Program: a tensor, tuple, list or dictionary written there, or a reference to a weight file."""

from collections.abc import Iterable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from .. import _codec
from ..errors import FormatError, MilblobError, Naming
from ..values.tensorvalue import undeclared, unpack_at
from .fields import InPieces, repeated, singular

if TYPE_CHECKING:
    from .types import ValueType, Variable

Span = tuple[int, int]

_MAX_DEPTH = 100  # lists, tuples and dictionaries in each other


class Owner(Protocol):
    """The part of its view that a value needs."""

    def require(self) -> None:
        """Raise ValueError if the model is closed."""

    def read(self, value: "Value") -> "np.ndarray[Any, Any]":
        """Return the array of a value that is in a weight file."""

    def place(self, value: "Value") -> Any:
        """Return where a weight file holds a value, a RecordPlace."""


class BlobReference(NamedTuple):
    """Where a weight file holds a value: the file as the Program names it, and the offset of the record's metadata.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     [const] = model.find("head_weight")
        ...     place = const.attributes["val"].blob
        >>> place
        BlobReference(file_name='@model_path/weights/weight.bin', offset=166656)
    """

    file_name: str
    offset: int


_KINDS = {1: "tensor", 2: "tuple", 3: "list", 4: "dictionary"}
_FIELDS, _IMMEDIATE = dict.fromkeys((1, 2, 3, 5), 2), dict.fromkeys(_KINDS, 2)  # with their wire types


class Value:
    """A value in a Program: a tensor, a tuple, a list or a dictionary written there, or one in a weight file.

    Attributes:
        kind: "tensor", "tuple", "list", "dictionary", "blob", or "" if the Program states none.

    Examples:
        >>> model = milblob.open("demo.mlpackage")
        >>> [gather] = model.find("embedding")
        >>> axis = gather["axis"].constant
        >>> axis.kind, str(axis.type), axis.read()
        ('tensor', 'int32', np.int32(0))
    """

    __slots__ = ("_buffer", "_depth", "_fields", "_is_merged", "_member", "_owner", "_step", "kind", "view")

    def __init__(
        self,
        view: Owner,
        buffer: _codec.Buffer,
        span: Span,
        owner: Any,
        step: str = "",
        depth: int = 1,
        is_merged: bool = False,
    ) -> None:
        self.view = view
        self._owner, self._step = owner, step
        self._depth = depth
        self._is_merged = is_merged
        with Naming(self._name_error):
            if depth > _MAX_DEPTH:
                message = f"lists, tuples and dictionaries: expected at most {_MAX_DEPTH} levels of nesting, got more"
                raise FormatError(message, offset=span[0], file=buffer.name)
            try:
                self._read(buffer, span)
            except InPieces:
                self._is_merged = True
                self._read(*merged(buffer, [span]))

    def _read(self, buffer: _codec.Buffer, span: Span) -> None:
        self._buffer = buffer
        self._fields = fields = singular(buffer, span, _FIELDS, "member of Value")
        if 3 in fields and 5 in fields:
            raise InPieces
        self.kind = "blob" if 5 in fields else ""
        self._member: Span = fields.get(5, (0, 0))
        if 3 in fields:
            member = singular(buffer, fields[3], _IMMEDIATE, "member of ImmediateValue")
            if len(member) > 1:
                raise InPieces
            for number, at in member.items():
                self.kind, self._member = _KINDS[number], at

    @property
    def path(self) -> str:
        """Where it is, for messages."""
        if not isinstance(self._owner, str):
            self._owner, self._step = str(self._owner.path) + self._step, ""
        return self._owner + self._step

    @property
    def doc_string(self) -> str:
        """Value.docString."""
        self.view.require()
        return text_at(self._buffer, self._fields[1]) if 1 in self._fields else ""

    @property
    def type(self) -> "ValueType | None":
        """The declared type; None for an element of a list that states none."""
        self.view.require()
        return self._declared()

    def _declared(self) -> "ValueType | None":
        if 2 not in self._fields:
            return None
        with Naming(self._name_error):
            return type_at(self._buffer, self._fields[2])

    @property
    def blob(self) -> BlobReference | None:
        """Where a weight file holds it; None for a value that stands in the Program."""
        if self.kind != "blob":
            return None
        self.view.require()
        with Naming(self._name_error):
            found = dict(repeated(self._buffer, self._member, {1: 2, 2: 0}, "BlobFileValue"))
            return BlobReference(text_at(self._buffer, found[1]) if 1 in found else "", found.get(2, 0))

    @property
    def items(self) -> tuple["Value", ...]:
        """The members of a tuple or a list; of others none."""
        return tuple(self.each_item())

    def each_item(self) -> Iterator["Value"]:
        """Yield `items` one by one."""
        if self.kind not in ("tuple", "list"):
            return
        self.view.require()
        with Naming(self._name_error):
            for i, (_, at) in enumerate(repeated(self._buffer, self._member, {1: 2}, self.kind)):
                yield self._inner(self._buffer, at, f"[{i}]")

    @property
    def pairs(self) -> tuple[tuple["Value", "Value"], ...]:
        """The keys and values of a dictionary, in their order; of others none."""
        return tuple(self.each_pair())

    def each_pair(self) -> Iterator[tuple["Value", "Value"]]:
        """Yield `pairs` one by one."""
        if self.kind != "dictionary":
            return
        self.view.require()
        with Naming(self._name_error):
            for i, (_, at) in enumerate(repeated(self._buffer, self._member, {1: 2}, "pair of a dictionary")):
                buffer, span = self._buffer, at
                try:
                    pair = singular(buffer, span, {1: 2, 2: 2}, "pair of a dictionary")
                except InPieces:
                    buffer, span = merged(buffer, [span], "DictionaryValue.KeyValuePair")
                    pair = singular(buffer, span, {1: 2, 2: 2}, "pair of a dictionary")
                key, value = pair.get(1, (span[0], 0)), pair.get(2, (span[0], 0))
                yield self._inner(buffer, key, f"[{i}].key"), self._inner(buffer, value, f"[{i}].value")

    def array(self) -> "np.ndarray[Any, Any]":
        """Return a tensor, as `Tensor.read` does: a view of the stored bytes wherever they are the values.

        Raises:
            TypeError: a tuple, a list, a dictionary, or no value. As `Tensor.read`.
        """
        self.view.require()
        if self.kind == "blob":
            return self.view.read(self)
        if self.kind != "tensor":
            raise TypeError(f"array: expected a tensor, got {self.kind or 'no value'} at {self.path}")
        return self.unpack(self._declared())

    def unpack(self, declared: "ValueType | None") -> "np.ndarray[Any, Any]":
        """Return a tensor that stands in the Program as one of this type; None where none is stated.

        Raises:
            FormatError: another type, or another field or count than the type has. As `array`.
        """
        with Naming(self._name_error):
            if declared is None:
                dtype, shape = undeclared(self._buffer, *self._member)
            else:
                found, shape = getattr(declared, "dtype", 0), getattr(declared, "shape", ())  # those of a TensorType
                if isinstance(found, int):
                    raise FormatError(f"type of a tensor value: expected a tensor type that is known, got {declared}")
                dtype = found
            return unpack_at(self._buffer, *self._member, dtype, shape)

    def read(self) -> Any:
        """Return the value as a Python object: an array, a scalar for rank 0, a tuple, a list, or a dict.

        Raises:
            TypeError: no value, or a dictionary whose keys Python cannot use. As `array`.
        """
        if self.kind == "tuple":
            return tuple(item.read() for item in self.items)
        if self.kind == "list":
            return [item.read() for item in self.items]
        if self.kind == "dictionary":
            return {key.read(): value.read() for key, value in self.pairs}
        return self.array()[()]

    def _inner(self, buffer: _codec.Buffer, span: Span, step: str) -> "Value":
        is_merged = self._is_merged or buffer is not self._buffer
        return Value(self.view, buffer, span, self, step, self._depth + 1, is_merged)

    def _name_error(self, error: MilblobError) -> None:
        """Add the path to an error; an offset in bytes that protobuf merged is dropped."""
        error.where = error.where or self.path
        if self._is_merged:
            error.offset = None

    def __repr__(self) -> str:
        return f"<Value {self.path}: {self.kind or 'none'}>"


@cache
def _types() -> Any:
    """Import the module of types, which listing does not need."""
    from . import types

    return types


def text_at(buffer: _codec.Buffer, span: Span) -> str:
    """Return text from the Program's bytes. Raises: FormatError: not UTF-8."""
    try:
        return bytes(memoryview(buffer)[span[0] : sum(span)]).decode()
    except UnicodeDecodeError as error:
        offset = span[0] + error.start
        raise FormatError(f"text: expected UTF-8, got {error.reason}", offset=offset, file=buffer.name) from None


def variables_at(buffer: _codec.Buffer, rows: Iterable[tuple[str, int, int]]) -> "tuple[Variable, ...]":
    """Return names with the types at their places in a buffer, (offset, nbytes). Raises: as `type_at`."""
    variable = _types().Variable
    return tuple([variable(name, type_at(buffer, (at, nbytes)) if at else None) for name, at, nbytes in rows])


def type_at(buffer: _codec.Buffer, span: Span) -> "ValueType | None":
    """Read the ValueType at a place in a buffer. Raises: FormatError: malformed, or nested too deep."""
    offset, nbytes = span
    try:
        found: ValueType | None = _types().read_type(bytes(memoryview(buffer)[offset : offset + nbytes]))
        return found
    except FormatError as error:
        error.offset = offset if error.offset is None else offset + error.offset
        error.file = buffer.name
        raise


def merged(buffer: _codec.Buffer, spans: list[Span], message: str = "Value") -> tuple[_codec.Buffer, Span]:
    """Let protobuf merge the pieces of a message: bytes of its own."""
    from . import schema

    pieces = b"".join(bytes(memoryview(buffer)[offset : offset + nbytes]) for offset, nbytes in spans)
    data = schema.parse(message, pieces, file=buffer.name).SerializeToString(deterministic=True)
    return _codec.Buffer(data, buffer.name), (0, len(data))
