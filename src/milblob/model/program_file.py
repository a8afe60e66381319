"""The file that holds a Program, and its new bytes after an edit of the Program."""

from collections.abc import Iterable

from ..program.splice import Edit, Spliced, splice
from ..program.wire_edits import require_plain
from .open_program import OpenProgram


def require_edits(program: OpenProgram) -> None:
    """Refuse a Program that cannot be edited in its file.

    Raises: UnsupportedError: protobuf had to put it together first.
    """
    if not program.is_text:  # a Program that was read from text is always in one piece
        require_plain(program.scan, program.mapping.live())


def edited_file(program: OpenProgram, edits: Iterable[Edit]) -> Spliced:
    """Return what the whole file becomes: a model file, or MIL text. Raises: As `splice` and `splice_text`."""
    if not program.is_text:
        return splice(program.mapping, (0, program.mapping.nbytes), edits)
    from ..program.text_edits import splice_text  # only for MIL text

    return splice_text(program.mapping.check_size(), program.scan, edits)
