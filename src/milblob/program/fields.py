"""The fields of a protobuf message of a Program, by their numbers, as places in its bytes."""

from collections.abc import Iterator
from typing import Any

from .. import _codec
from ..errors import FormatError


class InPieces(Exception):  # noqa: N818 - not an error: the caller lets protobuf merge the pieces
    """A singular sub-message came in pieces, or two members of a oneof came."""


def singular(buffer: _codec.Buffer, span: tuple[int, int], expected: dict[int, int], what: str) -> dict[int, Any]:
    """Return the fields of a message that has none more than once: number -> (offset, nbytes), or a varint's value.

    For messages whose fields are messages. For a single string, `dict(repeated(...))` does what protobuf does.

    `expected`: numbers of the fields that are wanted, each with its wire type; others are passed over. `what`: of what,
    for messages.
    Raises: InPieces: a field with a length occurs twice. Of a number that does, the last one is valid, as in protobuf.
    FormatError: malformed, or another wire type.
    """
    found: dict[int, Any] = {}
    at, end = span[0], span[0] + span[1]
    while at < end:
        rows, at = _codec.next_fields(buffer, at, end - at, expected)
        for number, wire, value, offset, nbytes in rows:
            if wire != expected[number]:
                raise _of_wire(what, expected[number], wire, offset, buffer)
            if wire != 2:
                found[number] = value
            elif number in found:
                raise InPieces
            else:
                found[number] = offset, nbytes
    return found


def repeated(
    buffer: _codec.Buffer, span: tuple[int, int], expected: dict[int, int], what: str
) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message in their order; as `singular`, however many there are."""
    at, end = span[0], sum(span)
    while at < end:
        rows, at = _codec.next_fields(buffer, at, end - at, expected)
        for number, wire, value, offset, nbytes in rows:
            if wire != expected[number]:
                raise _of_wire(what, expected[number], wire, offset, buffer)
            yield number, ((offset, nbytes) if wire == 2 else value)


def _of_wire(what: str, expected: int, got: int, offset: int, buffer: _codec.Buffer) -> FormatError:
    return FormatError(f"{what}: expected wire type {expected}, got {got}", offset=offset, file=buffer.name)
