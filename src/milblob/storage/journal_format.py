"""The format of a journal, which `commit` writes and `recover` reads.

The file, little-endian: magic with the version (8 bytes), nbytes of all of it (u64), CRC-32 of everything after the
header (u32), number of entries (u32); the name of the model file in this directory, empty if the directory is the model
(u16 nbytes, UTF-8); then per entry: kind (u8: 1 patch, 2 replacement), nbytes of the path (u16), nbytes of the target
file after the change (u64), offset (u64), nbytes of the data (u64), the path (UTF-8, relative, "/"), the data. The data
of a replacement is a hash of the new file (32 bytes), then its temporary name. The hash is the BLAKE3 of the first 64
bytes and the BLAKE3 of the others: a listing names the latter of its weight file, which is thus hashed once.
"""

import contextlib
import io
import itertools
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from .._codec import Buffer
from ..errors import FormatError
from . import paths
from .locks import take, unlock
from .mapped import Closable, MappedFile

STAGED = ".milblob-new"  # prepared by a commit, beside its target file
PATCH, REPLACEMENT = 1, 2
DIGEST_NBYTES = 32
FIRST_NBYTES = 64  # of a replacement, hashed apart from the others: the header of a weight file
_PIECE_NBYTES = 16 << 20  # of a file, read and hashed at a time
_REPLACEMENT_NBYTES = DIGEST_NBYTES + 4096  # no file system has longer names
_MAGIC, _VERSION = b"milblob", 3
_FIRST_COUNT = 1 << 16  # entries examined in another user's journal to see whether it concerns a path
_HEAD = struct.Struct("<8sQII")
HEAD_NBYTES = _HEAD.size
_NAME = struct.Struct("<H")
_ENTRY = struct.Struct("<BHQQQ")
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


class Later:
    """Bytes that are made when they are written, so that not all of them are in memory at once."""

    __slots__ = ("make", "nbytes")

    def __init__(self, nbytes: int, make: Callable[[], Any]) -> None:
        self.nbytes = nbytes  # how many there will be
        self.make = make  # returns them, a C-contiguous buffer. Its exception ends the work, and nothing has changed.


def nbytes_of(data: Any) -> int:
    """Return the number of bytes of a buffer, or of a `Later`."""
    return data.nbytes if isinstance(data, Later) else memoryview(data).nbytes


class Entry(NamedTuple):
    """One change of a journal, with the fields of the file format. The data to be written may be a `Later`."""

    kind: int
    path: str
    file_nbytes: int
    offset: int
    data: Any

    @property
    def staged(self) -> str:
        """Name of the new file that a replacement moves into place, in the same directory."""
        return bytes(memoryview(self.data)[DIGEST_NBYTES:]).decode()


def join(root: str, path: str) -> str:
    """Join the directory of a journal and a path from it."""
    return os.path.join(root, *path.split("/"))


# -------------------------------------------------------------------------------------------------------------- reading


class Journal(Closable):
    """A journal opened for reading; a context manager. It may come from anywhere and is not trusted.

    Attributes:
        base: name of the model file in the journal's directory; "" if the directory is the model.
        entries: the data of patches are views of the file, valid until the end of the block; all else is copied.
        status: `os.stat_result` of the file.

    Raises:
        FileNotFoundError: it no longer exists. OSError: it cannot be read.
        FormatError: not a regular file, broken contents, another version.
    """

    def __init__(self, path: str, *, is_whole: bool = True, is_ours: bool = False) -> None:
        """Read a journal; without `is_whole`, only its first entries and no data, in bounded time.

        With `is_ours`, this process has just written it and still holds its locks: its checksum is not computed again.
        """
        self._path, self._is_held = path, False
        if paths.is_link(path):
            raise FormatError("journal: expected a regular file, got a symbolic link", file=path)
        fd = os.open(path, _FLAGS)
        try:
            self.status = os.fstat(fd)
            if not stat.S_ISREG(self.status.st_mode):
                kind = "a directory" if stat.S_ISDIR(self.status.st_mode) else "a special file"
                raise FormatError(f"journal: expected a regular file, got {kind}", file=path)
            with io.FileIO(fd, closefd=False) as file:
                self._mapping = MappedFile(file, path)
        finally:
            os.close(fd)
        try:
            data = memoryview(self._mapping.live())
            crc = self._require_header(data)
            self.base, entries = self._parse(data)
            self.entries = list(self._bounded(entries) if is_whole else itertools.islice(entries, _FIRST_COUNT))
            if is_whole and not is_ours:
                self._require_whole(data, crc)
        except BaseException:
            self.close()
            raise

    def hold(self) -> None:
        """Lock the journal until it is closed: readers then wait for the change instead of refusing the model."""
        with contextlib.suppress(OSError):  # another process looks whether it is locked; or there are no locks here
            take(self._mapping.fd)
            self._is_held = True

    def close(self) -> None:
        """Close the file."""
        self.entries = []
        if self._is_held:
            unlock(self._mapping.fd)  # views of the data may keep the mapping, and with it a descriptor
        self._is_held = False
        self._mapping.close()

    def _require_header(self, data: memoryview) -> int:
        if len(data) < _HEAD.size:
            raise FormatError(f"journal: expected a header of {_HEAD.size} bytes, got {len(data)}", file=self._path)
        magic, nbytes, crc, _ = _HEAD.unpack_from(data)
        if magic[: len(_MAGIC)] != _MAGIC:
            raise FormatError(f"journal: expected the magic {_MAGIC!r}, got {magic!r}", offset=0, file=self._path)
        if magic[len(_MAGIC)] != _VERSION:
            message = (
                f"journal: expected version {_VERSION} of the format, got version {magic[len(_MAGIC)]}; "
                "the milblob that began the change completes it"
            )
            raise FormatError(message, offset=len(_MAGIC), file=self._path)
        if nbytes != len(data):
            raise FormatError(f"journal: expected {nbytes} bytes, got {len(data)}", offset=8, file=self._path)
        return int(crc)

    def _bounded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries, unless they hold more bytes than the files that they change.

        A sparse file takes no room, and can be of any size: its contents are not read before this is known. Each entry
        has a head that is not zero, so the number of entries is bounded by the file's size on the disk.
        """
        left: dict[str, int] = {}
        for entry in entries:
            if entry.kind == PATCH:
                if entry.path not in left:
                    status = None if "\0" in entry.path else paths.status(join(os.path.dirname(self._path), entry.path))
                    if status is None:
                        message = "journal: expected changes of the model file and its weight files only, got one of "
                        raise FormatError(f"{message}{entry.path!r:.500}, which is not there", file=self._path)
                    left[entry.path] = status.st_size
                left[entry.path] -= len(entry.data)
                if left[entry.path] < 0 or not len(entry.data):
                    message = f"journal: expected patches with as many bytes as {entry.path} at most, got "
                    message += "more" if len(entry.data) else "an empty one"
                    raise FormatError(message, file=self._path)
            elif entry.kind != REPLACEMENT:
                message = f"journal: expected a patch or a replacement, got kind {entry.kind}"
                raise FormatError(message, file=self._path)
            yield entry

    def _require_whole(self, data: memoryview, crc: int) -> None:
        import zlib

        got = zlib.crc32(data[_HEAD.size :])
        if got != crc:
            message = f"journal: expected the checksum 0x{crc:08x}, got 0x{got:08x}"
            raise FormatError(message, offset=16, file=self._path)

    def _parse(self, data: memoryview) -> tuple[str, Iterator[Entry]]:
        at = _HEAD.size
        if len(data) - at < _NAME.size or len(data) - at - _NAME.size < _NAME.unpack_from(data, at)[0]:
            raise FormatError("journal: expected the name of a model, got its end", offset=at, file=self._path)
        start = at + _NAME.size
        end = start + _NAME.unpack_from(data, at)[0]
        base = self._text(data[start:end], at)
        if os.path.basename(base) != base or base in (".", "..") or "\0" in base:
            message = f"journal: expected a model in its own directory, got {base!r}"
            raise FormatError(message, offset=at, file=self._path)
        return base, self._entries(data, end)

    def _entries(self, data: memoryview, at: int) -> Iterator[Entry]:
        count = _HEAD.unpack_from(data)[3]
        for _ in range(count):
            if len(data) - at < _ENTRY.size:
                message = f"journal: expected an entry, got {len(data) - at} bytes"
                raise FormatError(message, offset=at, file=self._path)
            kind, path_nbytes, file_nbytes, offset, data_nbytes = _ENTRY.unpack_from(data, at)
            start = at + _ENTRY.size + path_nbytes
            if start > len(data) or data_nbytes > len(data) - start:
                message = "journal: expected an entry to end inside it, got one that does not"
                raise FormatError(message, offset=at, file=self._path)
            relative = self._text(data[at + _ENTRY.size : start], at)
            found: Any = data[start : start + data_nbytes]
            if (
                kind == REPLACEMENT
            ):  # copied: names are checked now and used later, and the file's owner could change them between
                if data_nbytes > _REPLACEMENT_NBYTES:
                    message = (
                        f"journal: expected at most {_REPLACEMENT_NBYTES} bytes of a replacement, got {data_nbytes}"
                    )
                    raise FormatError(message, offset=at, file=self._path)
                found = bytes(found)
            yield Entry(kind, relative, file_nbytes, offset, found)
            at = start + data_nbytes
        if at != len(data):
            raise FormatError(f"journal: expected its end after {count} entries, got more", offset=at, file=self._path)

    def _text(self, data: memoryview, at: int) -> str:
        try:
            return bytes(data).decode()
        except UnicodeDecodeError:
            raise FormatError(
                "journal: expected a path in UTF-8, got other bytes", offset=at, file=self._path
            ) from None


def header(nbytes: int, crc: int, count: int) -> bytes:
    """Return the header of a journal with `nbytes` bytes and `count` entries; `crc` is that of everything after it."""
    return _HEAD.pack(_MAGIC + bytes([_VERSION]), nbytes, crc, count)


def pieces(base: str, entries: list[Entry]) -> Iterator[memoryview]:
    """Yield the bytes of a journal after its header, in order: two pieces for the name, then two for each entry.

    The second piece of an entry is its data, not copied; a `Later` is made when its turn comes.

    Raises: ValueError: a `Later` made another number of bytes than it declared.
    """
    name = base.encode()
    yield memoryview(_NAME.pack(len(name)))
    yield memoryview(name)
    for entry in entries:
        relative, nbytes = entry.path.encode(), nbytes_of(entry.data)
        head = _ENTRY.pack(entry.kind, len(relative), entry.file_nbytes, entry.offset, nbytes)
        yield memoryview(head + relative)
        view = memoryview(entry.data.make() if isinstance(entry.data, Later) else entry.data)
        if view.nbytes != nbytes:
            raise ValueError(f"new bytes of {entry.path}: expected {nbytes}, got {view.nbytes}")
        yield view.cast("B") if nbytes else memoryview(b"")


# --------------------------------------------------------------------------------------------------------- replacements


def digest_of(fd: int, rest: Callable[[], bytes] | None = None) -> bytes:
    """Return the hash of a file: the BLAKE3 of its first bytes and of the BLAKE3 of the others (`rest`, if known).

    The file is read and not mapped: another process may shorten it at any time.
    """
    from ..hashing import blake3

    with open(fd, "rb", buffering=0, closefd=False) as file:
        file.seek(0)
        head = file.read(FIRST_NBYTES)
        pieces = iter(lambda: file.read(_PIECE_NBYTES), b"")
        others = rest() if rest is not None else blake3((Buffer(piece), 0, len(piece)) for piece in pieces)
    return blake3([(Buffer(head + others), 0, len(head) + len(others))])


def staged_name(base: str) -> str:
    """Return a new name for the replacement of the file `base`."""
    return f".{base}.{os.urandom(8).hex()}{STAGED}"


def is_staged(name: str, base: str) -> bool:
    """Return whether a name is that of a replacement of the file `base`."""
    middle = name.removeprefix(f".{base}.").removesuffix(STAGED)
    return name == f".{base}.{middle}{STAGED}" and len(middle) == 16 and not set(middle) - set("0123456789abcdef")


def is_left(name: str) -> bool:
    """Return whether a name is that of a replacement of any file."""
    return is_staged(name, name[1 : -len(STAGED) - 17])
