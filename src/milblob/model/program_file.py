"""The file that holds a Program, and what it becomes when the Program is edited."""

from collections.abc import Iterable

from ..program.scan import Program
from ..program.splice import Edit, Spliced, splice
from ..program.wire_edits import require_plain
from .package import Source


def require_edits(source: Source, program: Program) -> None:
    """Refuse a Program that cannot be edited in its file.

    Raises:
        UnsupportedError: protobuf had to put it together first.
    """
    if not source.is_text:  # a Program that was read from text is always in one piece
        require_plain(program, source.mapping.live())


def edited_file(source: Source, program: Program, edits: Iterable[Edit]) -> Spliced:
    """Return what the whole file becomes: a model file, or MIL text.

    Args:
        source, program: a row of `Model.scans`.
        edits: of `program.buffer`.

    Raises:
        As `splice` and `splice_text`.
    """
    if not source.is_text:
        return splice(source.mapping, (0, source.mapping.nbytes), edits)
    from ..program.text_edits import splice_text  # only for MIL text

    return splice_text(source.mapping.check_size(), program, edits)
