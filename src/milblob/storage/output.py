"""Output that appears whole or not at all, and the lock that keeps two writers apart.

New bytes go to a temporary name in the directory of the final one (or to none at all, where the system can do that),
are synced, and take the final name in one step. Whoever dies on the way leaves the old state; what a killed process
leaves under a temporary name is removed by the next one that writes to that directory (`sweep`).
"""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from .._codec import exchange
from . import paths
from .pending import require_none

if sys.platform != "win32":
    import fcntl

PREFIX, SUFFIX = ".milblob-", ".tmp"
_RANDOM_NBYTES = 8
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_BINARY = _CLOEXEC | getattr(os, "O_BINARY", 0)
_TMPFILE = getattr(os, "O_TMPFILE", 0)
_NO_LINKS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | _CLOEXEC
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EISDIR)
_ATTEMPTS = 100


class NewFile:
    """A file that takes its name when it is complete: on exit from the `with` block, or with `commit`.

    Args:
        path: the final name. A symbolic link is followed: what it points to is replaced, the link stays.
        force: replace a file that exists. Its other links, and views of its bytes, keep what they have.
        sync: have the bytes on the disk before the name changes; without it a power failure may lose both.
        locked: the caller holds the `lock` of the file that is replaced, and knows that no journal is for it; else the
            lock is taken for the moment of replacing, and a journal refused.

    Attributes:
        fd: descriptor for reading and writing, at the beginning of an empty file. Closed by `commit` and `discard`.
        path: the final name, links resolved.

    An exception in the block leaves everything as it was. On Linux the file has no name before it is complete, so that
    not even kill -9 leaves anything; elsewhere it has a temporary one (see `sweep`). Permissions are those of the file
    that is replaced, else as the umask says.

    Raises:
        FileExistsError: `path` exists and `force` is False; or is no regular file. (Also from `commit`, if it was made
            meanwhile.)
        FileNotFoundError: there is no such directory.
        BlockingIOError: from `commit`: another writer has the lock of the file to be replaced.
        FormatError: a change of that file was interrupted, and has to be completed first.
        OSError: whatever the system says.
    """

    def __init__(self, path: str, *, force: bool = True, sync: bool = True, locked: bool = False) -> None:
        self.fd = -1
        self._name: str | None = None
        self._pid = os.getpid()
        self.path, old = _destination(path, force, locked)
        self._force, self._sync, self._locked = force, sync, locked
        directory = os.path.dirname(self.path) or "."
        sweep(directory)
        # Not more readable than the file it replaces, from the first byte on.
        self.fd, self._name = _create_file(directory, 0o666 if old is None else 0o600)
        if old is not None and hasattr(os, "fchmod"):
            os.fchmod(self.fd, stat.S_IMODE(old.st_mode))

    def commit(self) -> None:
        """Give the file its name. If that fails, everything is as it was, and this object is done with too."""
        try:
            if self._sync:
                sync(self.fd)
            name = self._name
            if name is None and not self._force:
                if not self._locked:
                    require_none(self.path)
                _link(self.fd, self.path)
            else:
                if name is None:
                    name = self._name = _link_temporary(self.fd, os.path.dirname(self.path) or ".")
                elif sys.platform == "win32":  # an open file cannot be renamed there
                    self._close()
                _move(name, self.path, self._force, self._locked)
                self._name = None
        except BaseException:
            self.discard()
            raise
        self._close()
        if self._sync:
            sync_directory(os.path.dirname(self.path))

    def discard(self) -> None:
        """Leave everything as it was. Does nothing after `commit`, or the second time."""
        self._close()
        name, self._name = self._name, None
        if name is not None and self._pid == os.getpid():  # a forked process has a copy of this object
            with contextlib.suppress(OSError):
                os.unlink(name)

    def _close(self) -> None:
        fd, self.fd = self.fd, -1
        if fd >= 0:
            if self._pid == os.getpid():
                unlock(fd)
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()

    def __del__(self) -> None:
        self.discard()


class NewDirectory:
    """A directory that takes its name when it is complete: on exit from the `with` block, or with `commit`.

    Args:
        path: the final name; of a symbolic link, what it points to is replaced.
        replace: `path` may exist, and is replaced with all that is in it. Which ones may be is the caller's rule.
        locked: the caller holds the `lock` of the directory that is replaced.

    Attributes:
        name: the temporary directory, beside the final one, empty at first. To be filled with files and directories.
        path: the final name, links resolved.

    `commit` syncs every file and directory in it. A directory that is replaced is exchanged for the new one in a single
    step (Linux, macOS) and then removed. Where the system has no such step, the old one is renamed to `.milblob-*.old`
    first; a process that is killed at that moment leaves both, whole, but none under the final name.

    Raises:
        FileExistsError: `path` exists and `replace` is False, or is no directory.
        FileNotFoundError: there is no directory to make it in.
        BlockingIOError: from `commit`: another writer has the lock of the directory to be replaced.
        OSError: whatever the system says.
    """

    def __init__(self, path: str, *, replace: bool = False, locked: bool = False) -> None:
        self.name = ""
        self._fd = -1
        self._pid = os.getpid()
        path = path.rstrip("/\\") or path
        self.path, self._replace, self._locked = _resolved(path), replace, locked
        old = paths.status(self.path, follow=False)
        if old is not None and not (replace and stat.S_ISDIR(old.st_mode)):
            wanted = "a directory or nothing" if replace else "no such directory"
            raise FileExistsError(f"{path}: expected {wanted}, got {'one' if not replace else _kind(old)}")
        _require_parent(path, self.path)
        parent = os.path.dirname(self.path) or "."
        sweep(parent)
        self._mode = stat.S_IMODE(old.st_mode) if old is not None else None
        self.name, self._fd = _create_directory(parent, 0o777 if old is None else 0o700)

    def commit(self) -> None:
        """Give the directory its name. If that fails, everything is as it was, and this object is done with too."""
        try:
            sync_tree(self.name)
            if self._mode is not None:
                os.chmod(self.name, self._mode)
                if self._fd >= 0:
                    sync(self._fd)  # else a power failure might leave the new directory with the permissions of a draft
            with _locked(self.path, self._locked):
                old = self._take_name()
                try:
                    sync_directory(os.path.dirname(self.path))
                except BaseException:
                    self._give_back(old)
                    raise
                self.name = ""
                if old:
                    _remove_tree(old)
        except BaseException:
            self.discard()
            raise
        self.discard()

    def _take_name(self) -> str:
        """Put the new directory in its place; return where the old one is now, or ""."""
        if not (self._replace and paths.is_directory(self.path)):
            os.rename(self.name, self.path)
            return ""
        code = exchange(os.fsencode(self.name), os.fsencode(self.path))
        if code == 0:
            return self.name
        if code not in _CANNOT:
            raise OSError(code, os.strerror(code), self.path)
        aside = self.name.removesuffix(SUFFIX) + ".old"  # `sweep` must not take it for something unfinished
        os.rename(self.path, aside)
        try:
            os.rename(self.name, self.path)
        except BaseException:
            os.rename(aside, self.path)
            raise
        return aside

    def _give_back(self, old: str) -> None:
        """Undo `_take_name`."""
        name, self.name = self.name, ""  # if this fails, what has that name is not to be removed
        if old == name:
            if exchange(os.fsencode(name), os.fsencode(self.path)) != 0:
                return
        else:
            os.rename(self.path, name)
            if old:
                os.rename(old, self.path)
        self.name = name

    def discard(self) -> None:
        """Leave everything as it was. Does nothing after `commit`, or the second time."""
        name, self.name = self.name, ""
        is_ours = self._pid == os.getpid()  # a forked process has a copy of this object
        if name and is_ours:
            _remove_tree(name)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            if is_ours:
                unlock(fd)
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.commit()
        else:
            self.discard()

    def __del__(self) -> None:
        self.discard()


@contextlib.contextmanager
def whole_file(path: str, force: bool = False, *, locked: bool = False) -> Iterator[str]:
    """Give a name to write to; on success that file becomes `path`, on failure nothing is left.

    For libraries that want a name and no descriptor, and may themselves rename something to it: the name is in a
    temporary directory, beside the final one. Everything else as for `NewFile`.

    Raises:
        As `NewFile`.
    """
    target, old = _destination(path, force, locked)
    parent = os.path.dirname(target) or "."
    sweep(parent)
    directory, fd = _create_directory(parent, 0o777)
    try:
        mode = stat.S_IMODE(os.stat(directory).st_mode) & 0o666 if old is None else stat.S_IMODE(old.st_mode)
        os.chmod(directory, 0o700)
        name = os.path.join(directory, os.path.basename(target))
        yield name
        with _opened(name) as handle:
            os.chmod(name, mode)  # before it is synced: permissions are lost in a power failure as bytes are
            sync(handle)
        _move(name, target, force, locked)
    finally:
        _remove_tree(directory)
        if fd >= 0:
            os.close(fd)
    sync_directory(os.path.dirname(target))


# ---------------------------------------------------------------------------------------------------------------- locks


def lock(fd: int, path: str) -> None:
    """Take the writers' lock of a file or directory until the descriptor is closed. It never waits.

    The lock is advisory: it keeps writers of milblob apart, not readers, and no other program.

    Args:
        fd: an open descriptor of it.
        path: its name, which must still lead there once the lock is held.

    Raises:
        BlockingIOError: another writer has it.
        FileNotFoundError: the name leads elsewhere by now: what was opened has been replaced.
        OSError: the file system has no locks.
    """
    try:
        _lock(fd)
    except BlockingIOError:
        words = "expected to be the only writer, got another one that holds the lock"
        raise BlockingIOError(errno.EAGAIN, words, path) from None
    if not is_named(fd, path):
        raise FileNotFoundError(errno.ENOENT, "expected the file that was opened, got another by that name", path)


def unlock(fd: int) -> None:
    """Give a lock back before its descriptor is closed: a forked process may have a copy, and would keep it."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_UN)


def _lock(fd: int) -> None:
    if sys.platform == "win32":
        import msvcrt

        at = os.lseek(fd, 0, os.SEEK_CUR)
        os.lseek(fd, (1 << 62), os.SEEK_SET)  # locks are mandatory there: on a byte that no file has
        try:
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except PermissionError as error:
            raise BlockingIOError(errno.EAGAIN, str(error)) from None
        finally:
            os.lseek(fd, at, os.SEEK_SET)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_named(fd: int, path: str) -> bool:
    """Whether a name is that of the file of a descriptor."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def _locked(path: str, is_held: bool = False) -> Iterator[None]:
    """Hold the lock of what is about to be replaced, if there is anything and it can be locked.

    Raises:
        BlockingIOError: another writer has it.
    """
    fd = -1
    if not is_held and sys.platform != "win32":  # an open file cannot be replaced there, which is a lock of its own
        with contextlib.suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            fd = os.open(path, os.O_RDONLY | _NO_LINKS)
    try:
        if fd >= 0:
            try:
                lock(fd, path)
            except BlockingIOError:
                raise
            except OSError:
                pass  # replaced meanwhile, whole, by somebody else; or a file system without locks
        yield
    finally:
        if fd >= 0:
            os.close(fd)


# ------------------------------------------------------------------------------------------------------ temporary names


def sweep(directory: str) -> None:
    """Remove the temporary files and directories of processes that were killed: those that nobody holds a lock of.

    On Windows, directories cannot be locked and stay.
    """
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(directory or ".") as entries:
        names = [entry.path for entry in entries if is_ours(entry.name)]
    for name in names:
        with contextlib.suppress(OSError):
            _sweep(name)


def is_ours(name: str) -> bool:
    """Whether a name is a temporary one of a writer of milblob: `sweep` removes what has it when its writer is gone.

    `.milblob-*.old` is none: it is a directory that was replaced, whole, and may be the only copy of it.
    """
    middle = name[len(PREFIX) : -len(SUFFIX)]
    return (
        name.startswith(PREFIX)
        and name.endswith(SUFFIX)
        and len(middle) == 2 * _RANDOM_NBYTES
        and not set(middle) - set("0123456789abcdef")
    )


def _sweep(name: str) -> None:
    if sys.platform == "win32":
        os.unlink(name)  # refused while it is open
        return
    fd = os.open(name, os.O_RDONLY | _NO_LINKS)
    try:
        _lock(fd)
        if is_named(fd, name):
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                _remove_tree(name)
            else:
                os.unlink(name)
    finally:
        os.close(fd)


def _temporary(directory: str) -> str:
    return os.path.join(directory, f"{PREFIX}{os.urandom(_RANDOM_NBYTES).hex()}{SUFFIX}")


def _create_file(directory: str, mode: int) -> tuple[int, str | None]:
    """Create an empty file and lock it: (descriptor, name or None if it has none)."""
    if _TMPFILE and paths.is_directory("/proc/self/fd"):
        try:
            fd = os.open(directory, os.O_RDWR | _TMPFILE | _CLOEXEC, mode)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
        else:
            with contextlib.suppress(OSError):
                _lock(fd)  # for the moment when it has a temporary name
            return fd, None
    for _ in range(_ATTEMPTS):
        name = _temporary(directory)
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, mode)
        if _hold(fd, name):
            return fd, name
        os.close(fd)
    raise FileExistsError(errno.EEXIST, "expected to keep one temporary file, got all of them removed", directory)


def _create_directory(parent: str, mode: int) -> tuple[str, int]:
    """Create an empty directory and lock it: (name, descriptor that holds the lock, or -1 on Windows)."""
    for _ in range(_ATTEMPTS):
        name = _temporary(parent)
        os.mkdir(name, mode)
        if sys.platform == "win32":
            return name, -1
        try:
            fd = os.open(name, os.O_RDONLY | _NO_LINKS)
        except FileNotFoundError:
            continue
        except BaseException:
            with contextlib.suppress(OSError):
                os.rmdir(name)
            raise
        if _hold(fd, name):
            return name, fd
        os.close(fd)
    raise FileExistsError(errno.EEXIST, "expected to keep one temporary directory, got all of them removed", parent)


def _hold(fd: int, name: str) -> bool:
    """Lock a temporary name that was just made; False if a sweep of another process was faster."""
    try:
        _lock(fd)
    except BlockingIOError:
        return False
    except OSError:
        return True  # no locks here, for nobody
    return is_named(fd, name)


def _link(fd: int, name: str) -> None:
    """Give a name to a file without one; FileExistsError if the name is taken."""
    directory = os.open(os.path.dirname(name) or ".", os.O_RDONLY | _CLOEXEC)
    try:  # with a descriptor of a directory, os.link follows the link that /proc/self/fd/N is
        os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)


def _link_temporary(fd: int, directory: str) -> str:
    while True:
        name = _temporary(directory)
        with contextlib.suppress(FileExistsError):
            _link(fd, name)
            return name


def _move(name: str, path: str, force: bool, locked: bool = False) -> None:
    """Rename a file to its final name; without `force` only if there is none by that name."""
    if force:
        with _locked(path, locked):
            if not locked:  # what a journal is for may not be replaced: completing it would change the new file
                require_none(path)
            os.replace(name, path)
        return
    if not locked:
        require_none(path)
    try:
        os.link(name, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if paths.is_there(path):
            raise
        os.rename(name, path)
    else:
        os.unlink(name)


def _remove_tree(name: str) -> None:
    import shutil

    shutil.rmtree(name, ignore_errors=True)


# ----------------------------------------------------------------------------------------------------------------- sync


def sync(fd: int) -> None:
    """Have what was written to a descriptor on the disk itself."""
    if hasattr(os, "fsync") and sys.platform == "darwin":
        try:
            fcntl.fcntl(fd, fcntl.F_FULLFSYNC)  # fsync stops at the drive's cache there
            return
        except OSError:
            pass
    os.fsync(fd)


def sync_directory(path: str) -> None:
    """Have the names in a directory on the disk. Windows cannot; its renames are in the journal of the file system."""
    if sys.platform != "win32":
        with _opened(path or ".") as fd:
            sync(fd)


def sync_tree(path: str) -> None:
    """Have every file and directory below `path`, and `path` itself, on the disk."""
    for directory, _, names in os.walk(path, topdown=False):
        for name in names:
            full = os.path.join(directory, name)
            if not paths.is_link(full):
                with _opened(full) as fd:
                    sync(fd)
        sync_directory(directory)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[int]:
    # Windows syncs only what may be written to.
    fd = os.open(path, (os.O_RDWR if sys.platform == "win32" else os.O_RDONLY) | _BINARY)
    try:
        yield fd
    finally:
        os.close(fd)


# ---------------------------------------------------------------------------------------------------------------- paths


def _destination(path: str, force: bool, locked: bool) -> tuple[str, os.stat_result | None]:
    """Return where a new file goes, links resolved, and the status of the file that it replaces."""
    target = _resolved(path)
    old = paths.status(target, follow=False)
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise FileExistsError(f"{path}: expected a regular file or nothing, got {_kind(old)}")
    if old is not None and not force:
        raise FileExistsError(f"{path}: expected no such file, got one (--force replaces it)")
    _require_parent(path, target)
    if not locked:
        require_none(target)
    return target, old


def _resolved(path: str) -> str:
    return paths.real(path) if paths.is_link(path) else path


def _kind(status: os.stat_result) -> str:
    if stat.S_ISDIR(status.st_mode):
        return "a directory"
    return "a file" if stat.S_ISREG(status.st_mode) else "a device, a pipe or a socket"


def _require_parent(path: str, target: str) -> None:
    """Name the directory that is not there; the temporary name in it would mean nothing to anyone."""
    parent = os.path.dirname(target) or "."
    if not paths.is_directory(parent):
        raise FileNotFoundError(f"output {path}: expected a directory {parent}, got none")
