"""The tensors of an ONNX model and their places: a walk over its messages that copies no values and trusts no size.

The libraries of ONNX parse the whole file into objects first, values included.
"""

from collections.abc import Iterable, Iterator
from math import prod
from typing import NamedTuple

from .. import _codec
from ..errors import FormatError, UnsupportedError
from ..storage.foreign import is_onnx
from ..storage.mapped import MappedFile
from .onnx_external import REFERENCE

MIN_CONSTANT = 10
"""Elements from which on the tensor of a Constant node is listed, as a value in an operation of an ML Program is."""

RAW, FLOATS, INTS, TEXTS, LONGS, DOUBLES, UNSIGNED = 9, 4, 5, 6, 7, 10, 11
"""The fields of TensorProto that hold elements."""

_VALUES = frozenset((RAW, FLOATS, INTS, TEXTS, LONGS, DOUBLES, UNSIGNED))
_VARINT, _BYTES = 0, 2
_MAX_FIELDS = 1 << 22  # of all messages that are walked: enough for a million operations
_MAX_DEPTH = 32  # of graphs in each other
_MAX_DIMENSIONS = 64  # of NumPy

_Field = tuple[int, int, int, int, int]
_Span = tuple[int, int]


class Initializer(NamedTuple):
    """A tensor's description in the file; numbers are as in the file, not checked."""

    name: str  # of the tensor; of a Constant node that of its output
    dims: tuple[int, ...]  # sizes
    code: int  # element type, a number of TensorProto.DataType
    spans: dict[int, list[_Span]]  # field that holds elements -> places (offset, nbytes) in the file, in their order
    external: dict[str, str] | None = None  # key -> value of what refers to another file; None if the elements are here
    indices: "Initializer | None" = None  # where the elements of a sparse tensor stand; None for others
    note: str = ""  # what milblob noted about the bytes in another file; "" for nothing


def read_messages(mapping: MappedFile) -> tuple[dict[str, Initializer], dict[str, str]]:
    """Return the tensors of an ONNX model by name, and its metadata.

    These are initializers, dense and sparse ones, and the tensors of Constant nodes with MIN_CONSTANT elements or more:
    those of the graph, then those in graphs inside of nodes, and in functions. What is called as one before it is
    "NODE.ATTRIBUTE/NAME": the node's first output, and the attribute that holds the graph.

    Raises: FormatError: no ONNX model, or a broken one. UnsupportedError: more messages than any model has.
    """
    return _Walk(mapping).model()


class _Walk:
    """Reads one file."""

    def __init__(self, mapping: MappedFile) -> None:
        self._buffer = mapping.live()
        self._path = mapping.name
        self._data = memoryview(self._buffer)
        self._left = _MAX_FIELDS
        self._found: dict[str, Initializer] = {}

    def model(self) -> tuple[dict[str, Initializer], dict[str, str]]:
        fields = self._fields((0, self._buffer.nbytes))
        numbers = frozenset(number for number, *_ in fields)
        if not is_onnx(numbers):
            got = "an empty file" if not fields else f"a message with the fields {', '.join(map(str, sorted(numbers)))}"
            raise FormatError(f"file: expected an ONNX model, got {got:.200}", file=self._path)
        graphs = list(self._messages(fields, 7))
        if len(graphs) != 1:
            raise self._error("graph of ONNX model", "one", f"{len(graphs)}", graphs[-1] if graphs else (0, 0))
        metadata = dict(self._pairs(self._messages(fields, 14)))
        functions = list(self._messages(fields, 25))
        del fields
        self._graph(graphs[0], "", 1)
        for span in functions:
            inside = self._fields(span)
            name = next((self._text(at) for at in self._messages(inside, 1)), "")
            self._nodes(list(self._messages(inside, 7)), name, 1)
        return self._found, metadata

    def _graph(self, span: _Span, path: str, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise self._error("graphs in each other", f"at most {_MAX_DEPTH}", "more", span)
        fields = self._fields(span)
        own: set[str] = set()
        for number, wire, _, at, nbytes in fields:
            if number not in (5, 15):
                continue
            self._require_bytes(wire, "initializer", (at, nbytes))
            found = self._tensor((at, nbytes)) if number == 5 else self._sparse((at, nbytes))
            if found.name in own or not found.name:
                got = f"{found.name!r:.100} twice" if found.name else "none"
                raise self._error("names of initializers", "each once in a graph", got, (at, nbytes))
            own.add(found.name)
            self._add(found, path, (at, nbytes))
        nodes = list(self._messages(fields, 1))
        del fields
        self._nodes(nodes, path, depth)

    def _nodes(self, spans: list[_Span], path: str, depth: int) -> None:
        for span in spans:
            fields = self._fields(span)
            attributes = [self._fields(at) for at in self._messages(fields, 5)]
            output = next((self._text(at) for at in self._messages(fields, 2)), "")
            for attribute in attributes:
                name = next((self._text(at) for at in self._messages(attribute, 1)), "")
                if name in ("value", "sparse_value") and self._is_constant(fields):
                    self._constant(attribute, output, path)
                for number in (6, 11):  # a graph, several
                    for inner in self._messages(attribute, number):
                        where = f"{output or 'node'}.{name}"
                        self._graph(inner, f"{path}/{where}" if path else where, depth + 1)

    def _is_constant(self, fields: list[_Field]) -> bool:
        kind = [bytes(self._data[at : at + nbytes]) for at, nbytes in self._messages(fields, 4)]
        domain = [bytes(self._data[at : at + nbytes]) for at, nbytes in self._messages(fields, 7)]
        return kind[-1:] == [b"Constant"] and domain[-1:] in ([], [b""], [b"ai.onnx"])

    def _constant(self, attribute: list[_Field], output: str, path: str) -> None:
        tensors = [(span, self._tensor) for span in self._messages(attribute, 5)]
        tensors += [(span, self._sparse) for span in self._messages(attribute, 22)]
        for span, read in tensors[-1:]:
            found = read(span)
            if prod(found.dims) >= MIN_CONSTANT and output:
                self._add(found._replace(name=output), path, span)

    def _add(self, found: Initializer, path: str, span: _Span) -> None:
        name = found.name
        if name in self._found:
            name = f"{path}/{name}"
        if name in self._found:
            raise self._error("names of tensors", "each once", f"{name!r:.100} twice", span)
        self._found[name] = found

    # ------------------------------------------------------------------------------------------------------ one tensor

    def _tensor(self, span: _Span) -> Initializer:
        dims: list[int] = []
        code, name, is_external = 0, "", False
        spans: dict[int, list[_Span]] = {}
        entries: list[_Span] = []
        metadata: list[_Span] = []
        for number, wire, value, at, nbytes in self._fields(span):
            if number == 1:
                dims += [value] if wire == _VARINT else self._varints((at, nbytes))
                if len(dims) > _MAX_DIMENSIONS:
                    raise self._error("dimensions of a tensor", f"at most {_MAX_DIMENSIONS}", "more", span)
            elif number == 2 and wire == _VARINT:
                code = value
            elif number == 3:
                raise UnsupportedError("tensor: expected a whole one, got a segment", offset=at, file=self._path)
            elif number == 8 and wire == _BYTES:
                name = self._text((at, nbytes))
            elif number == RAW and wire == _BYTES:
                spans[RAW] = [(at, nbytes)]  # the last one wins, as in protobuf
            elif number in _VALUES:
                spans.setdefault(number, []).append((at, nbytes))
            elif number == 13 and wire == _BYTES:
                entries.append((at, nbytes))
            elif number == 14 and wire == _VARINT:
                is_external = value == 1
            elif number == 16 and wire == _BYTES:
                metadata.append((at, nbytes))
        sizes = tuple(size - (1 << 64) if size >> 63 else size for size in dims)
        if any(size < 0 for size in sizes):
            raise self._error(f"shape of {name!r:.100}", "sizes of 0 and more", f"{list(sizes)!s:.100}", span)
        if not is_external:
            return Initializer(name, sizes, code, spans)
        external: dict[str, str] = {}
        for key, text in self._pairs(entries):
            if key in external:
                raise self._error("external data", "each key once", f"{key!r:.100} twice", span)
            external[key] = text
        note = dict(self._pairs(metadata)).get(REFERENCE, "")
        return Initializer(name, sizes, code, spans, external, note=note)

    def _sparse(self, span: _Span) -> Initializer:
        """Read a SparseTensorProto: values, their indices, and the sizes of the whole."""
        parts: dict[int, _Span] = {}
        dims: list[int] = []
        for number, wire, value, at, nbytes in self._fields(span):
            if number == 3:
                dims += [value] if wire == _VARINT else self._varints((at, nbytes))
            elif wire == _BYTES:
                parts[number] = (at, nbytes)
        if 1 not in parts or 2 not in parts:
            raise self._error("sparse tensor", "values and indices", "none", span)
        if any(size >> 63 for size in dims) or len(dims) > _MAX_DIMENSIONS:
            raise self._error("shape of a sparse tensor", "sizes of 0 and more", f"{dims!s:.100}", span)
        values, indices = self._tensor(parts[1]), self._tensor(parts[2])
        if indices.indices is not None or len(values.dims) != 1:
            raise self._error("sparse tensor", "values of one dimension", f"{list(values.dims)!s:.100}", span)
        return values._replace(dims=tuple(dims), indices=indices)

    # ------------------------------------------------------------------------------------------------------- the bytes

    def _fields(self, span: _Span) -> list[_Field]:
        found = _codec.wire_fields(self._buffer, *span, self._left)
        self._left -= len(found)
        if not self._left:
            message = f"parts of ONNX model: expected fewer than {_MAX_FIELDS}, got more"
            raise UnsupportedError(message, file=self._path)
        return found

    def _messages(self, fields: list[_Field], wanted: int) -> Iterator[_Span]:
        """Yield the places of the messages and texts that a field holds."""
        for number, wire, _, at, nbytes in fields:
            if number == wanted:
                self._require_bytes(wire, f"field {wanted}", (at, nbytes))
                yield at, nbytes

    def _pairs(self, spans: Iterable[_Span]) -> Iterator[tuple[str, str]]:
        """Yield the keys and values of entries."""
        for span in spans:
            pair = {number: self._text((at, nbytes)) for number, wire, _, at, nbytes in self._fields(span) if wire == 2}
            yield pair.get(1, ""), pair.get(2, "")

    def _require_bytes(self, wire: int, what: str, span: _Span) -> None:
        if wire != _BYTES:
            raise self._error(f"{what} of ONNX model", "a message", f"wire type {wire}", span)

    def _varints(self, span: _Span) -> list[int]:
        count = _codec.varint_count(self._buffer, *span)
        if count > _MAX_DIMENSIONS:
            raise self._error("dimensions of a tensor", f"at most {_MAX_DIMENSIONS}", f"{count}", span)
        found, value, shift = [], 0, 0
        for byte in self._data[span[0] : sum(span)]:
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                found.append(value & ((1 << 64) - 1))
                value = shift = 0
        return found

    def _text(self, span: _Span) -> str:
        try:
            return bytes(self._data[span[0] : sum(span)]).decode()
        except UnicodeDecodeError:
            raise self._error("text in ONNX model", "UTF-8", "other bytes", span) from None

    def _error(self, what: str, expected: str, got: str, span: _Span) -> FormatError:
        return FormatError(f"{what}: expected {expected}, got {got}", offset=span[0], file=self._path)
