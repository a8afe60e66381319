"""The lock that keeps two writers apart: of a file, or of a directory."""

import contextlib
import errno
import os
import sys
from collections.abc import Iterator

if sys.platform != "win32":
    import fcntl

NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
"""Flags to open the file of a name; if it is a link, the link itself."""


def lock(fd: int, path: str) -> None:
    """Take the writers' lock of a file or directory until the descriptor is closed. Never waits.

    The lock is advisory: it keeps milblob's writers apart, not readers or other programs.

    `fd`: an open descriptor of it. `path`: its name, which must still lead there when the lock is held.
    Raises: BlockingIOError: another writer has it. FileNotFoundError: the name now leads elsewhere: the opened file has
    been replaced. OSError: the file system has no locks.
    """
    try:
        take(fd)
    except BlockingIOError:
        message = "expected to be the only writer, got another one that holds the lock"
        raise BlockingIOError(errno.EAGAIN, message, path) from None
    if not is_named(fd, path):
        raise FileNotFoundError(errno.ENOENT, "expected the file that was opened, got another by that name", path)


def unlock(fd: int) -> None:
    """Release a lock before its descriptor is closed: a forked process may have a copy that would keep it."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)


def give_back(holder: object, name: str, is_ours: bool) -> None:
    """Unlock and close the descriptor that an attribute of an object holds, which is -1 from then on; -1 is none.

    After Ctrl-C at any place it is closed, or still the attribute's: so it is taken here, and not by the caller.

    `is_ours`: whether this process took the lock; a forked one has a copy.
    """
    fd = getattr(holder, name)
    try:
        setattr(holder, name, -1)
        if fd >= 0 and is_ours:
            unlock(fd)
    finally:
        if fd >= 0:
            os.close(fd)


@contextlib.contextmanager
def locked_directory(path: str) -> Iterator[None]:
    """Hold the writers' lock of a directory; on Windows, which has none of directories, that of its files is enough.

    Raises: As `lock`; OSError: it cannot be opened.
    """
    if os.name == "nt":
        yield
        return
    fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    try:
        lock(fd, path)
        yield
    finally:
        try:
            unlock(fd)
        finally:  # after Ctrl-C, closing unlocks it
            os.close(fd)


def take(fd: int) -> None:
    """Take the lock of a descriptor.

    Raises: BlockingIOError: another writer has it. OSError: the file system has no locks.
    """
    if sys.platform == "win32":
        import msvcrt

        at = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, (1 << 62), os.SEEK_SET)  # Windows locks are mandatory: lock a byte that no file has
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(errno.EAGAIN, str(error)) from None
        finally:
            os.lseek(fd, at, os.SEEK_SET)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_held(fd: int) -> bool:
    """Return whether a process holds the lock of a file, which is open for reading: a look that changes nothing.

    A writer that takes its lock at the same moment may be refused, so readers ask this about journals only. False where
    there are no such locks.
    """
    if sys.platform != "win32":
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        unlock(fd)
    return False


def is_named(fd: int, path: str) -> bool:
    """Return whether a name leads to the file of a descriptor."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def replacing(path: str, is_held: bool = False) -> Iterator[None]:
    """Hold the lock of a file or directory that is about to be replaced, if it exists and can be locked.

    Raises: BlockingIOError: another writer has it.
    """
    fd = -1
    if not is_held and sys.platform != "win32":  # Windows cannot replace an open file, which acts as a lock
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            fd = os.open(path, os.O_RDONLY | NO_LINKS)
    try:
        if fd >= 0:
            try:
                lock(fd, path)
            except BlockingIOError:
                raise
            except OSError:
                pass  # another process has replaced it, or the file system has no locks
        yield
    finally:
        if fd >= 0:
            with contextlib.suppress(OSError):  # nothing was written to it, and the file of that name is kept
                os.close(fd)
