"""Brings a Program or a Model into plain form: messages in one piece, keys of a map once. protobuf does it."""

from .. import _codec
from ..errors import FormatError, UnsupportedError

ModelHead = tuple[int, tuple[int, int] | None, int, tuple[int, int] | None]
"""Of a Model: specification version; place of the ModelDescription, or None; number of the field that holds its type;
the place of that field, or None if it came in pieces."""


def rewrite(buffer: _codec.Buffer, span: tuple[int, int]) -> tuple[_codec.Buffer, tuple[int, int]]:
    """Let protobuf merge split messages and drop repeated map keys. Unknown fields are kept.

    Returns: The new bytes, and the Program's place in them.
    Raises: UnsupportedError: 2 GiB or more, which protobuf cannot merge. FormatError: protobuf refuses the bytes.
    """
    from . import schema

    offset, nbytes = span
    if nbytes >= 1 << 31:
        raise UnsupportedError(
            f"Program in pieces: expected less than 2 GiB, which protobuf can merge, got {nbytes} bytes",
            file=buffer.name,
        )
    data = schema.parse("Program", memoryview(buffer)[offset : offset + nbytes]).SerializeToString(deterministic=True)
    return _codec.Buffer(data, buffer.name), (0, len(data))


def plain_model(buffer: _codec.Buffer, offset: int, nbytes: int) -> tuple[_codec.Buffer, ModelHead]:
    """Read the top level of a Model; let protobuf join its type if that comes in pieces.

    Returns: The bytes to which the places refer, and the head.
    Raises: FormatError: broken bytes.
    """
    head = read_model(buffer, offset, nbytes)
    if head[-1] is not None:
        return buffer, head
    from . import schema

    plain = schema.parse("Model", memoryview(buffer)[offset : offset + nbytes], file=buffer.name)
    buffer = _codec.Buffer(plain.SerializeToString(deterministic=True), buffer.name)
    return buffer, read_model(buffer, 0, buffer.nbytes)


def read_model(buffer: _codec.Buffer, offset: int, nbytes: int) -> ModelHead:
    """Read the top level of a Model."""
    spec_version, description, kind = 0, None, 0
    body: tuple[int, int] | None = (offset, 0)
    pieces = 0
    for number, wire, value, at, length in _codec.wire_fields(buffer, offset, nbytes):
        if number == 1 and wire == 0:
            spec_version = value
        elif number == 2 and wire == 2:
            description = (at, length)
        elif wire == 2 and number >= 200:  # Model.Type, a oneof: the last one is valid; pieces of the same one add up
            pieces = pieces + 1 if number == kind else 1
            kind, body = number, (at, length)
    return spec_version, description, kind, body if pieces < 2 else None


def parse_text(buffer: _codec.Buffer, statements: list[tuple[int, int]] | None = None) -> bytes:
    """Parse MIL text; docs/mil-text.md describes the language.

    `buffer`: the text, UTF-8. Not kept. `statements`: takes (offset, nbytes) of every statement in the text, the
    semicolon included: one before those in its blocks, as `ProgramView` counts its operations.
    Returns: bytes: the serialized Program. Owns its memory.
    Raises: FormatError: not MIL text; `where` has line and column (from 1, in bytes).
    """
    try:
        return _codec.text_to_program(buffer, statements)
    except FormatError as error:
        if error.offset is not None:
            before = bytes(memoryview(buffer)[: error.offset])
            line = before.count(b"\n") + 1
            column = error.offset - (before.rfind(b"\n") + 1) + 1
            error.where = f"line {line} column {column}"
        raise
