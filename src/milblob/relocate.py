"""Moving the weight-file references of MIL text: every other character stays."""

import re

from . import _codec
from .errors import FormatError, UnsupportedError
from .text import parse_text

Place = tuple[str, int]
"""(fileName, offset) of a BlobFileValue."""

_STRING = rb"(?:tensor<string, ?\[\]>|string)"
_NUMBER = rb"(?:tensor<uint64, ?\[\]>|uint64)"
# Strings come first, so that nothing inside one is taken for a reference. A string has no escapes (docs/mil-text.md).
_REFERENCE = re.compile(
    rb'BLOBFILE\s*\(\s*path\s*=\s*%s\s*\(\s*"([^"\n]*)"\s*\)\s*,\s*offset\s*=\s*%s\s*\(\s*([0-9]+)\s*\)\s*\)|"[^"\n]*"'
    % (_STRING, _NUMBER)
)


def relocate(text: bytes, moves: dict[Place, Place], name: str | None = None) -> bytes:
    """Return MIL text whose references lead to other places.

    Args:
        text: a whole model.mil.
        moves: place before -> place after; others stay.
        name: of the file, for messages.

    Raises:
        UnsupportedError: the text spells a reference that should move in a way that is not recognised.
        FormatError: text that cannot be parsed.
    """
    pieces: list[bytes] = []
    at = 0
    for match in _REFERENCE.finditer(text):
        if match[1] is None:
            continue
        place = moves.get((match[1].decode("utf-8", "surrogateescape"), int(match[2])))
        if place is not None:
            pieces += [
                text[at : match.start(1)],
                place[0].encode(),
                text[match.end(1) : match.start(2)],
                str(place[1]).encode(),
            ]
            at = match.end(2)
    result = b"".join([*pieces, text[at:]])
    before, after = _places(text, name), _places(result, name)
    if after != [moves.get(place, place) for place in before]:
        raise UnsupportedError(
            "references of MIL text: expected BLOBFILE(path = ..., offset = ...) as Core ML writes it, got others",
            file=name,
        )
    return result


def _places(text: bytes, name: str | None) -> list[Place]:
    """Every reference of a text, in Program order, as the parser understands them."""
    program = _codec.Buffer(parse_text(_codec.Buffer(text, name)), name)
    scan = _codec.scan_program(program, 0, program.nbytes)
    if scan is None:
        raise FormatError("MIL text: expected every function and argument once, got a name twice", file=name)
    return [(c.text, c.blob_offset) for c in scan.constants if c.storage == _codec.BLOB]
