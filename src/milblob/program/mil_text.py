"""MIL text (`model.mil` of a compiled model) to the bytes of the Program that it describes."""

from .. import _codec
from ..errors import FormatError


def parse_text(buffer: _codec.Buffer) -> bytes:
    """Parse MIL text; docs/mil-text.md describes the language.

    Args:
        buffer: the text, UTF-8. Not kept.

    Returns:
        bytes: the serialized Program. Owns its memory.

    Raises:
        FormatError: not MIL text; `where` has line and column (from 1, in bytes).
    """
    return _parsed(buffer, None)


def parse_statements(buffer: _codec.Buffer) -> tuple[bytes, list[tuple[int, int]]]:
    """Parse MIL text, and find its statements.

    Returns:
        The serialized Program, and (offset, nbytes) of every statement in the text, the semicolon included: one before
        those in its blocks, as `ProgramView` counts its operations.

    Raises:
        As `parse_text`.
    """
    statements: list[tuple[int, int]] = []
    return _parsed(buffer, statements), statements


def _parsed(buffer: _codec.Buffer, statements: list[tuple[int, int]] | None) -> bytes:
    try:
        return _codec.text_to_program(buffer, statements)
    except FormatError as error:
        if error.offset is not None:
            before = bytes(memoryview(buffer)[: error.offset])
            line = before.count(b"\n") + 1
            column = error.offset - (before.rfind(b"\n") + 1) + 1
            error.where = f"line {line} column {column}"
        raise
