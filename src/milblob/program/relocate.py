"""Moving the weight-file references of MIL text: every other character stays."""

import re

from .. import _codec
from ..errors import FormatError, UnsupportedError
from .mil_text import parse_text

Place = tuple[str, int]
"""(fileName, offset) of a BlobFileValue."""

# docs/mil-text.md describes the language: white space between any tokens, no comments, five escapes in strings.
_ONE = rb"string|tensor\s*<\s*string\s*,\s*\[\s*\]\s*>"
_NUMBER = rb"uint64|tensor\s*<\s*uint64\s*,\s*\[\s*\]\s*>"
_STRING = rb'"((?:[^"\\]|\\.)*)"'
_REFERENCE = re.compile(
    # A string that is not part of a reference comes second, so that its contents are not taken for a reference.
    rb"\bBLOBFILE\s*\(\s*path\s*=\s*(?:%s)\s*\(\s*%s\s*\)\s*,\s*offset\s*=\s*(?:%s)\s*\(\s*([0-9]+)\s*\)\s*\)|%s"
    % (_ONE, _STRING, _NUMBER, _STRING),
    re.S,
)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"r": b"\r"}


def relocate(text: bytes, moves: dict[Place, Place], name: str | None = None) -> bytes:
    """Return MIL text with moved references.

    Args:
        text: a whole model.mil.
        moves: (file name, offset) before -> after; others stay.
        name: name of the file, for messages.

    Raises:
        UnsupportedError: the text writes a reference that should move in an unknown form.
        FormatError: text that cannot be parsed.
    """
    pieces: list[bytes] = []
    at = 0
    for match in _REFERENCE.finditer(text):
        if match[2] is None:
            continue
        before = (_unescaped(match[1]), int(match[2]))
        after = moves.get(before, before)
        if after[0] != before[0]:
            pieces += [text[at : match.start(1)], _escaped(after[0])]
            at = match.end(1)
        if after[1] != before[1]:
            pieces += [text[at : match.start(2)], str(after[1]).encode()]
            at = match.end(2)
    result = b"".join([*pieces, text[at:]])
    wanted = [moves.get(place, place) for place in _places(text, name)]
    if _places(result, name) != wanted:
        raise UnsupportedError(
            "references of MIL text: expected BLOBFILE(path = ..., offset = ...) as Core ML writes it, got others",
            file=name,
        )
    return result


def _unescaped(data: bytes) -> str:
    plain = re.sub(rb"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), data, flags=re.S)
    return plain.decode("utf-8", "replace")


def _escaped(text: str) -> bytes:
    data = text.encode().replace(b"\\", b"\\\\").replace(b'"', b'\\"')
    return data.replace(b"\n", b"\\n").replace(b"\t", b"\\t").replace(b"\r", b"\\r")


def _places(text: bytes, name: str | None) -> list[Place]:
    """Every reference of a text, in Program order, as the parser understands them."""
    program = _codec.Buffer(parse_text(_codec.Buffer(text, name)), name)
    scan = _codec.scan_program(program, 0, program.nbytes)
    if scan is None:
        raise FormatError("MIL text: expected every function and argument once, got a name twice", file=name)
    return [(c.text, c.blob_offset) for c in scan.constants if c.storage == _codec.BLOB]
