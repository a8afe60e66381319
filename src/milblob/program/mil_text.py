"""MIL text (`model.mil` of a compiled model) to the bytes of the Program that it describes."""

from .. import _codec
from ..errors import FormatError


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
