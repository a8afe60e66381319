"""Journals of interrupted changes: where they are and what they contain. Only this module answers "is one pending?".

A journal lies in a directory that holds everything it changes. A process that opens a path looks for one there:

- `.NAME.milblob-journal`, beside a file that is opened alone and changes only itself;
- `.milblob-journal`, in the root of a package or compiled model, or in the directory of a model file that changes
  weight files too.

So `pending` looks beside the file and in every directory above it, links resolved, whatever the directories' names.

The file, little-endian: magic with the version (8 bytes), nbytes of all of it (u64), CRC-32 of what follows the header
(u32), number of entries (u32); the name of the model file in this directory, empty if the directory is the model (u16
nbytes, UTF-8); then per entry: kind (u8: 1 patch, 2 replacement), nbytes of the path (u16), nbytes of the target file
after the change (u64), offset (u64), nbytes of the data (u64), the path (UTF-8, relative, "/"), the data. The data of a
replacement is a hash of the new file (32 bytes), then its temporary name. The hash is the BLAKE3 of the first 64 bytes
and the BLAKE3 of the others: a listing names the latter of its weight file, which is thus hashed once.
"""

import contextlib
import errno
import io
import itertools
import os
import stat
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from .. import _codec
from ..errors import FormatError
from . import paths
from .mapped import MappedFile

JOURNAL = ".milblob-journal"
_NAME_OF_ANY = JOURNAL.encode()
STAGED = ".milblob-new"  # prepared by a commit, beside its target file
PATCH, REPLACEMENT = 1, 2
DIGEST_NBYTES = 32
FIRST_NBYTES = 64  # of a replacement, hashed apart from the others: the header of a weight file
_REPLACEMENT_NBYTES = DIGEST_NBYTES + 4096  # no file system has longer names
_MAGIC, _VERSION = b"milblob", 3
_FIRST_COUNT = 1 << 16  # entries examined in another user's journal to see whether it concerns a path
_HEAD = struct.Struct("<8sQII")
HEAD_NBYTES = _HEAD.size
_NAME = struct.Struct("<H")
_ENTRY = struct.Struct("<BHQQQ")
_FLAGS = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


class Pending(NamedTuple):
    """An existing journal: its directory (a real path) and its name."""

    root: str
    name: str

    @property
    def path(self) -> str:
        """Path of the journal itself."""
        return os.path.join(self.root, self.name)


class Later:
    """Bytes that are made when they are written, so that not all of them are in memory at once.

    Attributes:
        nbytes: how many there will be.
        make: returns them, a C-contiguous buffer. What it raises ends the work, and nothing has changed.
    """

    __slots__ = ("make", "nbytes")

    def __init__(self, nbytes: int, make: Callable[[], Any]) -> None:
        self.nbytes = nbytes
        self.make = make


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


# ---------------------------------------------------------------------------------------------------------------- where


def place(path: str, is_directory: bool) -> tuple[str, str]:
    """Return (root, name in it) of a model: all its files are below `root`; "" where the root is the model.

    Args:
        path: of the model.
        is_directory: what the model was when it was opened. The file system is not asked again: if the path leads
            nowhere at that moment, the root would be another directory.
    """
    full = paths.real(path)
    return (full, "") if is_directory else (os.path.dirname(full), os.path.basename(full))


def pending(path: str) -> Pending | None:
    """Return the journal that must be completed before the bytes of a path can be trusted, or None.

    Args:
        path: of a model, of one of its files, or of a file to be written.

    Raises:
        OSError: a place where a journal may lie cannot be examined.
    """
    full = paths.real(path)
    place = full
    while (found := _nearest(place)) is not None:
        if found.name != JOURNAL or found.root == full or _concerns(found, full):
            return found
        place = os.path.dirname(found.root)
        if place == found.root:
            break
    return None


def _nearest(path: str) -> Pending | None:
    """Return the first journal beside a file, in a directory, or in one above it; it may concern something else.

    Args:
        path: a real path.
    """
    name = os.fsencode(path)
    nbytes = _codec.look_above(name, _NAME_OF_ANY)
    if nbytes == 0:
        return None
    if nbytes > len(name):
        return _beside(path)
    if nbytes > 0:
        return Pending(os.fsdecode(name[:nbytes]), JOURNAL)
    if nbytes != -errno.ENOSYS:
        raise OSError(-nbytes, os.strerror(-nbytes), path)
    if not paths.is_directory(path):
        beside = _beside(path)
        if paths.is_there(beside.path):
            return beside
    while not paths.is_there(os.path.join(path, JOURNAL)):
        parent = os.path.dirname(path)
        if parent == path:
            return None
        path = parent
    return Pending(path, JOURNAL)


def _beside(path: str) -> Pending:
    """Return where the journal of a file that is opened alone would be."""
    return Pending(os.path.dirname(path), f".{os.path.basename(path)}{JOURNAL}")


def _concerns(found: Pending, path: str) -> bool:
    """Return whether a journal in a directory above a path concerns it.

    Otherwise any user could block all others from everything below /tmp. In a directory that is not sticky, a user who
    can create a journal can also remove the other files.
    """
    status = paths.status(found.path, follow=False)
    if status is None or not stat.S_ISREG(status.st_mode):
        return False
    directory = os.stat(found.root)
    if not hasattr(os, "geteuid") or not directory.st_mode & stat.S_ISVTX:
        return True
    if status.st_uid in (os.geteuid(), directory.st_uid, 0):
        return True
    try:
        with Journal(found.path, is_whole=False) as journal:
            changed = [join(found.root, entry.path) for entry in journal.entries]
    except (FormatError, OSError):
        return False
    return any(f"{name}/".startswith(f"{path.rstrip('/')}/") for name in changed)


def enclosing(path: str) -> str | None:
    """Return the directory of the package or compiled model around a path, judged by its name."""
    full = paths.real(path)
    parent = os.path.dirname(full)
    while parent != os.path.dirname(parent):
        if parent.endswith((".mlpackage", ".mlmodelc")) and paths.is_directory(parent):
            return parent
        parent = os.path.dirname(parent)
    return None


def require_none(path: str) -> None:
    """Refuse a path with a pending change: for readers that know the file but not the model, and for writers.

    Raises:
        FormatError: there is a journal; the message says what to do.
        OSError: as `pending`.
    """
    found = pending(path)
    if found is not None:
        model = model_of(found) or path
        words = f"journal: expected none, got one of an interrupted change; milblob.open({model!r}) completes it"
        raise FormatError(words, file=found.path)


def model_of(found: Pending) -> str | None:
    """Return the path of the model that a journal belongs to; None if the journal cannot be read."""
    if found.name != JOURNAL:
        return os.path.join(found.root, found.name.removesuffix(JOURNAL)[1:])
    try:
        with Journal(found.path, is_whole=False) as journal:
            return os.path.join(found.root, journal.base) if journal.base else found.root
    except (FormatError, OSError):
        return None


def join(root: str, path: str) -> str:
    """Join the directory of a journal and a path from it."""
    return os.path.join(root, *path.split("/"))


# -------------------------------------------------------------------------------------------------------------- reading


class Journal:
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
        self._path = path
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

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self.entries = []
        self._mapping.close()

    def _require_header(self, data: memoryview) -> int:
        if len(data) < _HEAD.size:
            raise FormatError(f"journal: expected a header of {_HEAD.size} bytes, got {len(data)}", file=self._path)
        magic, nbytes, crc, _ = _HEAD.unpack_from(data)
        if magic[: len(_MAGIC)] != _MAGIC:
            raise FormatError(f"journal: expected the magic {_MAGIC!r}, got {magic!r}", offset=0, file=self._path)
        if magic[len(_MAGIC)] != _VERSION:
            words = (
                f"journal: expected version {_VERSION} of the format, got version {magic[len(_MAGIC)]}; "
                "the milblob that began the change completes it"
            )
            raise FormatError(words, offset=len(_MAGIC), file=self._path)
        if nbytes != len(data):
            raise FormatError(f"journal: expected {nbytes} bytes, got {len(data)}", offset=8, file=self._path)
        return int(crc)

    def _bounded(self, entries: Iterable[Entry]) -> Iterator[Entry]:
        """Yield the entries, unless they hold more bytes than the files that they change.

        A sparse file takes no room, and can be of any size: what it holds is not read before this is known. Each entry
        has a head that is not zero, so the number of entries is bounded by what the file takes on the disk.
        """
        left: dict[str, int] = {}
        for entry in entries:
            if entry.kind == PATCH:
                if entry.path not in left:
                    status = None if "\0" in entry.path else paths.status(join(os.path.dirname(self._path), entry.path))
                    if status is None:
                        words = "journal: expected changes of the model file and its weight files only, got one of "
                        raise FormatError(f"{words}{entry.path!r:.500}, which is not there", file=self._path)
                    left[entry.path] = status.st_size
                left[entry.path] -= len(entry.data)
                if left[entry.path] < 0 or not len(entry.data):
                    words = f"journal: expected patches with as many bytes as {entry.path} at most, got "
                    words += "more" if len(entry.data) else "an empty one"
                    raise FormatError(words, file=self._path)
            elif entry.kind != REPLACEMENT:
                words = f"journal: expected a patch or a replacement, got kind {entry.kind}"
                raise FormatError(words, file=self._path)
            yield entry

    def _require_whole(self, data: memoryview, crc: int) -> None:
        import zlib

        got = zlib.crc32(data[_HEAD.size :])
        if got != crc:
            words = f"journal: expected the checksum 0x{crc:08x}, got 0x{got:08x}"
            raise FormatError(words, offset=16, file=self._path)

    def _parse(self, data: memoryview) -> tuple[str, Iterator[Entry]]:
        at = _HEAD.size
        if len(data) - at < _NAME.size or len(data) - at - _NAME.size < _NAME.unpack_from(data, at)[0]:
            raise FormatError("journal: expected the name of a model, got its end", offset=at, file=self._path)
        start = at + _NAME.size
        end = start + _NAME.unpack_from(data, at)[0]
        base = self._text(data[start:end], at)
        if os.path.basename(base) != base or base in (".", "..") or "\0" in base:
            words = f"journal: expected a model in its own directory, got {base!r}"
            raise FormatError(words, offset=at, file=self._path)
        return base, self._entries(data, end)

    def _entries(self, data: memoryview, at: int) -> Iterator[Entry]:
        count = _HEAD.unpack_from(data)[3]
        for _ in range(count):
            if len(data) - at < _ENTRY.size:
                words = f"journal: expected an entry, got {len(data) - at} bytes"
                raise FormatError(words, offset=at, file=self._path)
            kind, path_nbytes, file_nbytes, offset, data_nbytes = _ENTRY.unpack_from(data, at)
            start = at + _ENTRY.size + path_nbytes
            if start > len(data) or data_nbytes > len(data) - start:
                words = "journal: expected an entry to end inside it, got one that does not"
                raise FormatError(words, offset=at, file=self._path)
            relative = self._text(data[at + _ENTRY.size : start], at)
            found: Any = data[start : start + data_nbytes]
            if (
                kind == REPLACEMENT
            ):  # copied: names are checked now and used later, and the file's owner could change them between
                if data_nbytes > _REPLACEMENT_NBYTES:
                    words = f"journal: expected at most {_REPLACEMENT_NBYTES} bytes of a replacement, got {data_nbytes}"
                    raise FormatError(words, offset=at, file=self._path)
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
    """Return the header of a journal of so many bytes and entries; `crc` is that of what follows."""
    return _HEAD.pack(_MAGIC + bytes([_VERSION]), nbytes, crc, count)


def pieces(base: str, entries: list[Entry]) -> Iterator[memoryview]:
    """Yield the bytes of a journal behind its header, in order: two pieces for the name, then two for each entry.

    The second piece of an entry is its data, not copied; a `Later` is made when its turn comes.

    Raises:
        ValueError: a `Later` made another number of bytes than it said.
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


# -------------------------------------------------------------------------------------------------------------- staging


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


def sweep_staged(path: str) -> None:
    """Remove what a killed commit prepared for a file but never used, unless a journal needs it.

    The caller holds the lock of the file.

    Raises:
        FormatError: there is a journal.
        OSError: as `pending`.
    """
    require_none(path)
    directory, base = os.path.split(path)
    with contextlib.suppress(OSError):  # a leftover only takes space; the next writer tries again
        for name in os.listdir(directory or "."):
            if is_staged(name, base):
                os.unlink(os.path.join(directory, name))
