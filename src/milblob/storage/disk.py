"""The disk: syncs bytes and names to it, and describes how much space a full one lacks."""

import contextlib
import errno
import os
import sys
import threading
from collections.abc import Callable, Iterator

from ..threads import each
from . import paths

if sys.platform != "win32":
    import fcntl

_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_FULL = (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", errno.ENOSPC))
_BLOCK_NBYTES = 512  # the unit of st_blocks


def sync(fd: int) -> None:
    """Write a descriptor's data to the disk itself."""
    if hasattr(os, "fsync") and sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # macOS: fsync stops at the drive's cache
            return
        except OSError:
            pass
    os.fsync(fd)


def sync_directory(path: str) -> None:
    """Write a directory's names to disk. Windows cannot; its file system journals renames."""
    if sys.platform != "win32":
        with opened(path or ".") as fd:
            sync(fd)


def sync_tree(path: str) -> None:
    """Write every file and directory below `path`, and `path` itself, to disk, several at a time."""
    files, directories = [], []
    for directory, _, names in os.walk(path, topdown=False):
        files += [full for name in names if not paths.is_link(full := os.path.join(directory, name))]
        directories.append(directory)
    each(_sync_path, files)
    each(sync_directory, directories)


def _sync_path(path: str) -> None:
    with opened(path) as fd:
        sync(fd)


@contextlib.contextmanager
def syncing() -> Iterator[Callable[[str], None]]:
    """Yield a function that writes a file to disk in a thread of its own, while more is written to others.

    Raises: OSError: from the system, once the block has ended and all of the files are synced.
    """
    threads: list[threading.Thread] = []
    errors: list[BaseException] = []

    def work(path: str) -> None:
        try:
            _sync_path(path)
        except BaseException as error:
            errors.append(error)

    def start(path: str) -> None:
        thread = threading.Thread(target=work, args=(path,), name="milblob")
        with contextlib.suppress(RuntimeError):  # the system allows no more: it is synced with everything else
            thread.start()
            threads.append(thread)

    try:
        yield start
    finally:
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]


@contextlib.contextmanager
def opened(path: str) -> Iterator[int]:
    """Open a file or directory for `sync`."""
    # Windows syncs only files that are open for writing.
    fd = os.open(path, (os.O_RDWR if sys.platform == "win32" else os.O_RDONLY) | _FLAGS)
    try:
        yield fd
    finally:
        os.close(fd)


def nbytes_on_disk(status: os.stat_result) -> int:
    """Return how many bytes of the disk a file occupies."""
    blocks: int | None = getattr(status, "st_blocks", None)
    return status.st_size if blocks is None else blocks * _BLOCK_NBYTES


def describe_full(error: BaseException, path: str, nbytes: int, has_nbytes: int = 0) -> None:
    """Add the missing space to an error about a full disk; leave any other error unchanged.

    Args:
        error: the error of a write; it lacks the file and its size.
        nbytes: how many bytes of it are known to be needed; more may follow.
        has_nbytes: how many of them are on the disk.
    """
    if not isinstance(error, OSError) or error.errno not in _FULL or getattr(error, "is_described", False):
        return
    needed = f"{max(nbytes, has_nbytes)} bytes or more" if nbytes or has_nbytes else "a new file"
    message = f"{error.strerror}; expected room for {needed}"
    if error.errno == errno.ENOSPC and hasattr(os, "statvfs"):
        try:
            status = os.statvfs(os.path.dirname(path) or ".")
            message += f", got {has_nbytes + status.f_bavail * status.f_frsize}"
        except OSError:  # the disk is gone: report what is known
            pass
    error.strerror, error.filename = message, path
    del error.filename2  # None would be printed as a second name
    error.is_described = True  # type: ignore[attr-defined]


def sizes(fd: int) -> tuple[int, int]:
    """Return the size of an open file, and how many bytes of the disk it occupies."""
    status = os.fstat(fd)
    return status.st_size, nbytes_on_disk(status)


@contextlib.contextmanager
def naming(path: str, fd: int = -1, nbytes: int = 0) -> Iterator[None]:
    """If the disk is full in the block, name the file and the space it needs in the error; see `describe_full`."""
    try:
        yield
    except OSError as error:
        size, on_disk = (0, 0) if fd < 0 else sizes(fd)
        describe_full(error, path, max(size, nbytes), on_disk)
        raise
