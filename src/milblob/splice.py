"""A serialized message with some ranges replaced: its old bytes, the new ones, and the lengths of what is around."""

import errno
import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from . import _codec
from .errors import FormatError
from .mapping import Mapping

_CHUNK_NBYTES = 8 << 20  # of one write out of a mapping: enough for full speed, and a signal is heard soon
_NO_KERNEL_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}


class Edit(NamedTuple):
    """Replace the bytes [offset, offset + nbytes) of a buffer.

    Attributes:
        offset: in the buffer.
        nbytes: of the range, never 0. It is the whole payload of a length-delimited field, or a run of whole fields
            with their tags; to insert a field, replace a neighbour by itself and the new one.
        data: the new bytes, any C-contiguous buffer, also an empty one. Not copied: it must not change until the result
            is written.
    """

    offset: int
    nbytes: int
    data: Any


class Spliced:
    """The result of `splice`: what to write, piece by piece. Nothing of the old bytes is in memory.

    Attributes:
        nbytes: of the new message.
        pieces: in order, either (offset, nbytes) of old bytes that stay, or new bytes.
    """

    __slots__ = ("_buffer", "_source", "nbytes", "pieces")

    def __init__(
        self, source: Mapping | _codec.Buffer, nbytes: int, pieces: list[tuple[int, int] | memoryview]
    ) -> None:
        self._source = source
        self._buffer = source.live() if isinstance(source, Mapping) else source
        self.nbytes = nbytes
        self.pieces = pieces

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the bytes of each piece; those of old ones are views of the buffer."""
        old = memoryview(self._buffer)
        for piece in self.pieces:
            yield old[piece[0] : piece[0] + piece[1]] if isinstance(piece, tuple) else piece

    def tobytes(self) -> bytes:
        """Return the new message as bytes."""
        return b"".join(self)

    def write_to(self, fd: int, offset: int | None = None, *, sync: bool = False) -> int:
        """Write the new message to a file, in a stream: memory does not grow with it.

        Args:
            fd: descriptor of a file that is open for writing, and is not the one that is read.
            offset: where in the file; None: at its position, which moves.
            sync: wait until the bytes are on the disk.

        Returns:
            Number of bytes written, which is `nbytes`.

        Raises:
            OSError: what the file system says. Some of the bytes may have been written.
            FormatError: the old file has shrunk meanwhile.
        """
        if offset is not None:
            os.lseek(fd, offset, os.SEEK_SET)
        for piece in self.pieces:
            if isinstance(piece, tuple):
                copy_range(self._source, piece[0], piece[1], fd)
            else:
                write_all(fd, piece)
        if sync:
            os.fsync(fd)
        return self.nbytes


def splice(source: Mapping | _codec.Buffer, span: tuple[int, int], edits: Iterable[Edit]) -> Spliced:
    """Replace ranges of a serialized message, and fix the length prefixes of every message around them.

    All other bytes stay as they are: unknown fields, groups, the order of maps, and the prefixes of messages whose
    length does not change, padded ones too. A prefix that changes becomes minimal.

    Args:
        source: holds the message; of a mapped file the old bytes are later copied by the kernel.
        span: (offset, nbytes) of the outermost message: normally all of a model file, else a bare Program.
        edits: in any order; none may lie on another.

    Raises:
        FormatError: an edit that is neither the payload of a field nor whole fields, edits that overlap, or a broken
            message on the way to one; with the offset.
    """
    buffer = source.check_size() if isinstance(source, Mapping) else source
    first, old_nbytes = span
    ordered = sorted(edits, key=lambda edit: (edit.offset, edit.nbytes))
    new = [(edit.offset, edit.nbytes, memoryview(_codec.Buffer(edit.data))) for edit in ordered]
    nbytes, prefixes = _codec.splice_prefixes(buffer, first, old_nbytes, [(o, n, data.nbytes) for o, n, data in new])
    new += [(offset, length, memoryview(data)) for offset, length, data in prefixes]
    pieces: list[tuple[int, int] | memoryview] = []
    at = first
    for offset, length, data in sorted(new, key=lambda row: row[0]):
        if offset > at:
            pieces.append((at, offset - at))
        if data.nbytes > 0:
            pieces.append(data)
        at = offset + length
    if first + old_nbytes > at:
        pieces.append((at, first + old_nbytes - at))
    return Spliced(source, nbytes, pieces)


def write_all(fd: int, data: Any) -> None:
    """Write a whole buffer at the position of a descriptor, whatever part of it one call takes."""
    view = memoryview(data)
    at = 0
    while at < view.nbytes:
        at += os.write(fd, view[at : at + _CHUNK_NBYTES])


def copy_range(source: Mapping | _codec.Buffer, offset: int, nbytes: int, fd: int) -> None:
    """Copy bytes of a buffer to the position of a descriptor; of a mapped file by the kernel, where it can.

    The kernel shares the blocks where the file system knows how (reflink); otherwise it copies them without a round
    through this process.

    Raises:
        OSError: what the file system says.
        FormatError: the file has shrunk since it was mapped.
    """
    end = offset + nbytes
    if isinstance(source, Mapping):
        buffer = source.check_size()
        while offset < end and source.fd >= 0 and hasattr(os, "copy_file_range"):
            try:
                done = os.copy_file_range(source.fd, fd, min(end - offset, 1 << 30), offset)
            except OSError as error:
                if error.errno not in _NO_KERNEL_COPY:
                    raise
                break
            if (
                done == 0
            ):  # some file systems say so of files they cannot copy; if it has shrunk, the next line finds it
                buffer = source.check_size()
                break
            offset += done
    else:
        buffer = source
    if end > buffer.nbytes:
        raise FormatError(f"copy: expected bytes up to {end}, got {buffer.nbytes}", file=buffer.name)
    if offset < end:
        write_all(fd, memoryview(buffer)[offset:end])
