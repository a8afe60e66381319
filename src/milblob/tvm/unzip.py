"""A gzipped archive, decompressed once into a nameless file, within bounds; and compressed again as it was."""

import os
import struct
import tempfile
from collections.abc import Iterable
from typing import Any

from ..errors import FormatError
from ..storage.disk import naming
from ..storage.mapped import MappedFile
from ..storage.transfer import write_at

MAGIC = b"\x1f\x8b"
_CHUNK_NBYTES = 1 << 20
_LEAST_NBYTES, _RATIO = 256 << 20, 64
"""Default limit of the decompressed size: source code shrinks to a tenth, weights hardly."""


def most_nbytes(nbytes: int) -> int:
    """Return the default limit for decompressing a gzip file of a size."""
    return max(_LEAST_NBYTES, _RATIO * nbytes)


def decompress(source: MappedFile, limit: int) -> MappedFile:
    """Decompress a gzip file into a temporary file without a name, and map that.

    Memory does not grow with the archive. The file lies where `tempfile` puts it (TMPDIR) and is gone with the mapping.

    `source`: the gzip file; it may have several members, and zeros after the last. `limit`: bytes that it may
    decompress to.
    Raises: FormatError: no gzip, a wrong checksum, cut off, something after the end, or more than `limit` bytes.
    OSError: the temporary file cannot be written.
    """
    import zlib

    data, at, done = memoryview(source.live()), 0, 0
    with tempfile.TemporaryFile() as file, naming(os.path.join(tempfile.gettempdir(), ""), file.fileno()):
        while at < len(data):
            if done and bytes(data[at : at + len(MAGIC)]) != MAGIC:
                if any(data[at:]):
                    raise FormatError("gzip: expected its end, got something after it", offset=at, file=source.name)
                break
            stream = zlib.decompressobj(31)
            try:
                while not stream.eof:
                    held = stream.unconsumed_tail
                    chunk: Any = held or data[at : at + _CHUNK_NBYTES]
                    if not held:
                        at += len(chunk)
                    part = stream.decompress(chunk, _CHUNK_NBYTES)
                    if not part and not chunk:
                        raise FormatError("gzip: expected more, got the end", offset=at, file=source.name)
                    done += len(part)
                    if done > limit:
                        message = (
                            f"gzip: expected at most {limit} bytes decompressed, got more (max_nbytes allows them)"
                        )
                        raise FormatError(message, offset=at, file=source.name)
                    file.write(part)
            except zlib.error as error:
                raise FormatError(f"gzip: expected a sound stream, got: {error}", offset=at, file=source.name) from None
            at -= len(stream.unused_data)
        file.flush()
        return MappedFile(file, source.name)


def header_of(data: memoryview) -> bytes:
    """Return the header of a gzip file that has been decompressed before: all bytes before the deflated ones."""
    flags, at = data[3], 10
    if flags & 4:
        at += 2 + int.from_bytes(data[at : at + 2], "little")
    for flag in (8, 16):  # name and comment end with a zero
        if flags & flag:
            while data[at]:
                at += 1
            at += 1
    return bytes(data[: at + (2 if flags & 2 else 0)])


def compress(header: bytes, parts: Iterable[Any], fd: int) -> None:
    """Write a gzip file of one member in a stream.

    `header`: as `header_of` gives it; its time, name and level are kept. `parts`: buffers, one after another. `fd`: of
    an empty file.
    """
    import zlib

    level = {2: 9, 4: 1}.get(header[8], 6)
    stream = zlib.compressobj(level, zlib.DEFLATED, -15)
    crc, nbytes, at = 0, 0, len(header)
    write_at(fd, [header], 0)
    for part in parts:
        crc, nbytes = zlib.crc32(part, crc), nbytes + len(part)
        if some := stream.compress(part):
            write_at(fd, [some], at)
            at += len(some)
    rest = stream.flush() + struct.pack("<II", crc, nbytes & 0xFFFFFFFF)
    write_at(fd, [rest], at)
    os.lseek(fd, 0, os.SEEK_SET)
