"""Splicing: replace ranges of a serialized message, and fix the lengths of the messages around them."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from .. import _codec
from ..storage.mapped import MappedFile
from ..storage.transfer import copy_range, write_at


class Edit(NamedTuple):
    """Replace the bytes [offset, offset + nbytes) of a buffer."""

    offset: int  # in the buffer
    # of the range, never 0. It is the whole payload of a length-delimited field, or a run of whole fields with their
    # tags; to insert a field, replace a neighbour by itself and the new one.
    nbytes: int
    # the new bytes, any C-contiguous buffer, also an empty one. Not copied: it must not change until the result is
    # written.
    data: Any


Piece = tuple[int, int] | memoryview
"""(offset, nbytes) of old bytes to keep, or new bytes."""


class Spliced:
    """The result of `splice`: the pieces to write. No old bytes are copied to memory."""

    __slots__ = ("_buffer", "_source", "nbytes", "pieces")

    def __init__(self, source: MappedFile | _codec.Buffer, nbytes: int, pieces: list[Piece]) -> None:
        self._source = source
        self._buffer = source.live() if isinstance(source, MappedFile) else source
        self.nbytes = nbytes  # of the new message
        self.pieces = pieces  # in order

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the bytes of each piece; old ones are views of the buffer."""
        old = memoryview(self._buffer)
        for piece in self.pieces:
            yield old[piece[0] : piece[0] + piece[1]] if isinstance(piece, tuple) else piece

    def tobytes(self) -> bytes:
        """Return the new message as bytes."""
        return b"".join(self)

    def write_to(self, fd: int, offset: int = 0, *, sync: bool = False) -> int:
        """Stream the new message to a file: memory does not grow with its size.

        `sync`: wait until the bytes are on the disk.
        Returns: Number of bytes written, which is `nbytes`.
        Raises: OSError: the write failed. Some of the bytes may have been written. FormatError: the old file shrank.
        """
        for piece, data in zip(self.pieces, self, strict=True):
            if isinstance(piece, tuple) and isinstance(self._source, MappedFile):
                copy_range(self._source, *piece, fd, offset)
            else:
                write_at(fd, [data], offset)
            offset += data.nbytes
        if sync:
            os.fsync(fd)
        return self.nbytes


def splice(source: MappedFile | _codec.Buffer, span: tuple[int, int], edits: Iterable[Edit]) -> Spliced:
    """Replace ranges of a serialized message, and fix the length prefixes of every message around them.

    All other bytes are unchanged: unknown fields, groups, the order of maps, and the prefixes of messages whose
    length does not change, padded ones too. A prefix that changes becomes minimal.

    Args:
        source: holds the message; the operating system copies the old bytes of a mapped file later.
        span: (offset, nbytes) of the outermost message: normally all of a model file, else a bare Program.
        edits: in any order; must not overlap.

    Raises:
        FormatError: an edit that is neither the payload of a field nor whole fields, edits that overlap, or a broken
            message on the way to one; with the offset.
    """
    buffer = source.check_size() if isinstance(source, MappedFile) else source
    first, old_nbytes = span
    ordered = sorted(edits, key=lambda edit: (edit.offset, edit.nbytes))
    new = [(edit.offset, edit.nbytes, memoryview(_codec.Buffer(edit.data))) for edit in ordered]
    nbytes, prefixes = _codec.splice_prefixes(buffer, first, old_nbytes, [(o, n, data.nbytes) for o, n, data in new])
    new += [(offset, length, memoryview(data)) for offset, length, data in prefixes]
    return Spliced(source, nbytes, pieces_of(span, sorted(new, key=lambda row: row[0])))


def pieces_of(span: tuple[int, int], changes: Iterable[tuple[int, int, memoryview]]) -> list[Piece]:
    """Return the pieces of a message with changes: (offset, nbytes, new bytes) of each, in order."""
    pieces: list[Piece] = []
    at, end = span[0], sum(span)
    for offset, nbytes, data in changes:
        if offset > at:
            pieces.append((at, offset - at))
        if data.nbytes:
            pieces.append(data)
        at = offset + nbytes
    return [*pieces, (at, end - at)] if end > at else pieces
