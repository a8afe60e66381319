"""BLAKE3 of elements, as weight files store them."""

from collections.abc import Iterable, Iterator

from .. import _codec
from ..hashing import Span, blake3
from .elements import Piece


def digest(pieces: Iterable[Piece]) -> bytes:
    """Return the BLAKE3 of concatenated pieces; bits after the last element count as zero."""
    return blake3(span for piece in pieces for span in _spans(piece))


def _spans(piece: Piece) -> Iterator[Span]:
    """Yield the bytes of a piece; the last one changed if bits after its last element are set, as in some files."""
    buffer, offset, nbytes = piece.buffer, piece.offset, piece.nbytes
    used = piece.count * piece.dtype.nbits % 8
    last = memoryview(buffer)[offset + nbytes - 1] if used else 0
    if last >> used == 0:
        yield buffer, offset, nbytes
    else:
        yield buffer, offset, nbytes - 1
        yield _codec.Buffer(bytes([last & ((1 << used) - 1)]), buffer.name), 0, 1
