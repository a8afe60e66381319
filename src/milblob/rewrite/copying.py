"""Copies of everything that a rewrite does not change: files, links and holes, and old bytes of an edited message."""

import contextlib
import mmap
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator

from ..errors import FormatError
from ..program.splice import Spliced
from ..storage import paths
from ..storage.beneath import Location
from ..storage.journal_format import is_left
from ..storage.mapped import MappedFile
from ..storage.pending import JOURNAL
from ..storage.temporary import is_ours
from ..storage.transfer import copy_range, write_at

SETTLED_S = 300.0
"""So long after the last change of a file the system has written its data to the disk."""

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
_CHUNK_NBYTES = 64 << 20
_ZEROS = bytes(1 << 20)


def walk(root: str, inside: str = "") -> Iterator[tuple[str, bool]]:
    """Yield (path relative to root, is a directory) for everything below, directories before their contents.

    Sorted by name; links are not followed. The remains of interrupted milblob writers are skipped.

    Raises: FormatError: a journal. ResolveError: a directory has become a link that escapes.
    """
    for base, is_directory in Location(root).entry(inside).names():
        if is_ours(base) or (is_left(base) and not is_directory):
            continue
        name = os.path.join(inside, base) if inside else base
        if base.endswith(JOURNAL):  # it appeared after the model was opened
            raise FormatError("model: expected no change while it is read, got a journal", file=root)
        yield name, is_directory
        if is_directory:
            yield from walk(root, name)


class OpenFiles:
    """The open files of a model, found by what they are: a name may lead to another file or be a link by now."""

    def __init__(self, mappings: Iterable[MappedFile]) -> None:
        self._files = {_identity(os.fstat(mapped.fd)): mapped for mapped in mappings}
        self._met: set[tuple[int, int]] = set()

    def find(self, path: str) -> MappedFile | None:
        """Return the open file that a path names itself, not through a link; None if it names something else."""
        status = paths.status(path, follow=False)
        if status is None or _identity(status) not in self._files:
            return None
        self._met.add(_identity(status))
        return self._files[_identity(status)]

    def require_all(self) -> None:
        """Raise FormatError unless each of the files was found."""
        for identity, mapped in self._files.items():
            if identity not in self._met:
                raise FormatError("file: expected the one that was opened, got another", file=mapped.name)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def copy_entry(
    root: str,
    name: str,
    target: str,
    written: Callable[[int], None] = lambda nbytes: None,
    held: MappedFile | None = None,
    *,
    least: int = 0,
) -> None:
    """Copy a file with its permissions; a symbolic link as a link.

    A link that names a place inside the model by an absolute path becomes a relative one, so that the copy does not
    depend on the original. Holes of a sparse file are preserved.

    Args:
        root: real directory of the model.
        written: called with the number of bytes copied, as they are copied.
        held: the open file itself, if any: its name might lead elsewhere by now.
        least: permissions that the copy has in any case.

    Raises:
        FormatError: not a regular file, or it changed during the copy. ResolveError: it became a link that escapes.
        OSError: it cannot be read or written.
    """
    origin = os.path.join(root, name)
    if held is None and paths.is_link(origin):
        os.symlink(_link(root, origin), target)
        return
    mapping = held if held is not None else MappedFile(Location(root).entry(name))
    try:
        before = os.fstat(mapping.fd)
        with new_file(target) as fd:
            os.ftruncate(fd, mapping.nbytes)
            _copy(mapping, 0, mapping.nbytes, fd, 0, written)
        after = os.fstat(mapping.fd)
        if (after.st_size, after.st_mtime_ns) != (mapping.nbytes, before.st_mtime_ns):
            raise FormatError("file: expected no change while it is copied, got one", file=origin)
    finally:
        if held is None:
            mapping.close()
    set_mode(target, before.st_mode, least=least)


def write_spliced(spliced: Spliced, mapping: MappedFile, fd: int, written: Callable[[int], None]) -> None:
    """Write an edited message to a new file as a stream; holes of the old file are preserved.

    `spliced`: of `mapping`. `fd`: of an empty file. `written`: called with the number of bytes written, as they are
    written.
    Raises: OSError, FormatError: as copying.
    """
    os.ftruncate(fd, spliced.nbytes)
    offset = 0
    for piece in spliced.pieces:
        if isinstance(piece, tuple):
            _copy(mapping, piece[0], piece[1], fd, offset, written)
            offset += piece[1]
        else:
            write_at(fd, [piece], offset)
            written(piece.nbytes)
            offset += piece.nbytes


def _copy(mapping: MappedFile, start: int, nbytes: int, fd: int, offset: int, written: Callable[[int], None]) -> None:
    done = 0
    for at, size in data_ranges(mapping, start, nbytes):
        for part in range(at, at + size, _CHUNK_NBYTES):
            count = min(_CHUNK_NBYTES, at + size - part)
            copy_range(mapping, part, count, fd, offset + part - start)
            done += count
            written(count)
    if done < nbytes:  # holes
        written(nbytes - done)


def _link(root: str, path: str) -> str:
    link = os.readlink(path)
    if not os.path.isabs(link):
        return link
    directory, place = os.path.realpath(os.path.dirname(path)), os.path.realpath(os.path.dirname(link))
    if os.path.commonpath([root, place]) != root:
        return link
    return os.path.relpath(os.path.join(place, os.path.basename(link)), directory)


def set_mode(path: str, mode: int, *, least: int = 0) -> None:
    """Give a file or directory the permissions of another one, and those in `least`."""
    os.chmod(path, stat.S_IMODE(mode) & 0o777 | least)


@contextlib.contextmanager
def new_file(path: str) -> Iterator[int]:
    """Create a file that does not exist, and yield a descriptor for reading and writing."""
    fd = os.open(path, _FLAGS, 0o666)
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def existing_file(path: str) -> Iterator[int]:
    """Yield a descriptor for reading and writing of a file that exists."""
    fd = os.open(path, _FLAGS & ~(os.O_CREAT | os.O_EXCL))
    try:
        yield fd
    finally:
        os.close(fd)


def data_ranges(mapping: MappedFile, start: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, nbytes) of the bytes to write to a file of zeros: everything but the holes of a sparse file.

    Some file systems have reported unwritten data as holes. So a hole in a recently changed file is read, and skipped
    only if it is zero. Less than a page is not searched.
    """
    end = start + nbytes
    seek_data, seek_hole = getattr(os, "SEEK_DATA", None), getattr(os, "SEEK_HOLE", None)
    if nbytes < mmap.PAGESIZE or mapping.fd < 0 or seek_data is None or seek_hole is None:
        yield start, nbytes
        return
    is_settled = time.time() - os.fstat(mapping.fd).st_ctime > SETTLED_S
    while start < end:
        try:
            hole = min(os.lseek(mapping.fd, start, seek_hole), end)
        except OSError:  # not supported here
            hole = end
        data = _end_of_hole(mapping.fd, hole, end, seek_data)
        if data <= start:  # another process is writing to it
            hole = data = end
        if hole > start:
            yield start, hole - start
        if not is_settled and not _is_zero(mapping.fd, hole, data - hole):
            yield hole, data - hole
        start = data


def _end_of_hole(fd: int, hole: int, end: int, seek_data: int) -> int:
    if hole == end:
        return end
    try:
        return min(os.lseek(fd, hole, seek_data), end)
    except OSError:  # ENXIO: a hole up to the end of the file
        return end


def _is_zero(fd: int, start: int, nbytes: int) -> bool:
    """Whether all bytes of a range exist and are zero. They are read, not mapped, so no pages become resident."""
    end = start + nbytes
    while start < end:
        data = os.pread(fd, min(len(_ZEROS), end - start), start)
        if not data or data != _ZEROS[: len(data)]:
            return False
        start += len(data)
    return True
