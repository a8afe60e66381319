"""Atomic output: files and directories that are there whole or not at all, several of them together.

New bytes go to a temporary name in the directory of the final one (or to a file without a name, where the system
supports that), are synced, and take the final name in one step. A process that dies on the way leaves the old state.
The next process that writes to that directory removes the temporary files of killed ones (`sweep`).
"""

import contextlib
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from typing import Self

from .._codec import exchange
from ..arguments import as_path
from ..errors import DestinationExistsError
from ..forks import here
from . import mounts, owners, paths
from .disk import describe_full, naming, nbytes_on_disk, opened, sizes, sync, sync_directory, sync_tree
from .locks import NO_LINKS, give_back, is_named, replacing, take
from .pending import require_none
from .renaming import CANNOT, exchanged, link, link_as, rename_aside
from .temporary import SUFFIX, new_name, remove_tree, sweep

_CLOEXEC = getattr(os, "O_CLOEXEC", 0)
_BINARY = _CLOEXEC | getattr(os, "O_BINARY", 0)
_TMPFILE = getattr(os, "O_TMPFILE", 0)
_ATTEMPTS = 100


class Whole:
    """An output that takes its name when it is complete: on exit from the `with` block, or with `commit`."""

    path: str  # the final name, links resolved
    _process = here()  # for `__del__`, if Ctrl-C comes before there is anything

    def complete(self) -> None:
        """Do everything that may fail before it takes its name. Does nothing when called again."""
        raise NotImplementedError

    def named(self) -> contextlib.AbstractContextManager[None]:
        """Give it its name, synced, when the block begins. An exception in the block takes the name back."""
        raise NotImplementedError

    def discard(self) -> None:
        """Leave everything as it was. Does nothing after `commit` or when called again."""
        raise NotImplementedError

    def sizes(self) -> tuple[int, int]:
        """Return how many bytes it has so far, and how many of the disk."""
        raise NotImplementedError

    def commit(self) -> None:
        """Give it its name. On failure everything is as it was, and this object cannot be used again."""
        with together() as parts:
            parts.append(self)

    def fail(self, error: BaseException) -> None:
        """As `discard`; the error of a full disk then reports the missing space."""
        _fail([self], error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            self.commit()
        else:
            self.fail(error)

    def __del__(self) -> None:
        self.discard()


@contextlib.contextmanager
def together() -> Iterator[list[Whole]]:
    """Yield a list of outputs that take their names together when the block ends, in the order of the list.

    All of them are complete and synced before the first takes its name. If one cannot take its name, those before it
    give theirs back. If the process is killed in between, the first of them are new and the others old. So an output
    comes after those that it refers to, by names that nothing old refers to; one that marks completion comes last.

    Raises: As the block, `complete` and `named`; everything is as it was.
    """
    parts: list[Whole] = []
    try:
        yield parts
        for part in parts:
            part.complete()
        with contextlib.ExitStack() as stack:
            for part in parts:
                stack.enter_context(part.named())
    except BaseException as error:
        _fail(parts, error)
        raise
    for part in parts:
        part.discard()  # those that are only held


def _fail(parts: list[Whole], error: BaseException) -> None:
    """Discard all outputs; if the disk is full, report which output needs how much."""
    found = [(part.sizes(), part.path) for part in parts] if isinstance(error, OSError) else []
    if found:
        describe_full(error, max(found)[1], *(sum(each) for each in zip(*(nbytes for nbytes, _ in found), strict=True)))
    for part in parts:
        part.discard()


class NewFile(Whole):
    """A file that takes its name when it is complete: on exit from the `with` block, or with `commit`.

    Args:
        path: the final name. A symbolic link is followed: its target is replaced, the link is kept.
        force: replace a file that exists. Its other hard links, and views of its bytes, keep the old contents.
        sync: write the bytes to disk before the name changes; without it, a power failure may lose old and new.
        locked: the caller holds the `lock` of the file to be replaced and knows that it has no journal; else the lock
            is taken while replacing, and a journal is refused.
        held: the new file keeps its own lock, from before it has its name until `release`. Not on Windows, which
            cannot rename an open file.

    Attributes:
        fd: descriptor for reading and writing, at the beginning of an empty file. Closed by `commit` and `discard`.
        path: the final name, links resolved.

    An exception in the block leaves everything as it was. On Linux the file has no name until it is complete, so not
    even kill -9 leaves anything; elsewhere it has a temporary name (see `sweep`). Owner and permissions
    are those of the replaced file (see owners.py), else those of this process and its umask.

    Raises:
        FileExistsError: `path` exists and `force` is False, or it is not a regular file. (Also from `commit`, if
            another process created it after this call.)
        FileNotFoundError: the directory does not exist.
        BlockingIOError: from `commit`: another writer has the lock of the file to be replaced.
        PendingChangeError: a change of that file was interrupted and must be completed first.
        OSError: from the system.
    """

    fd = _held_fd = -1
    _name: str | None = None

    def __init__(
        self, path: str, *, force: bool = True, sync: bool = True, locked: bool = False, held: bool = False
    ) -> None:
        self._inode = 0  # once it is complete
        self._process = here()
        self.path, old = _destination(as_path(path), force, locked)
        self._force, self._sync, self._locked, self._held = force, sync, locked, held
        directory = os.path.dirname(self.path) or "."
        sweep(directory)
        # From the first byte on, no more readable than the file that it replaces.
        with naming(self.path):
            self.fd, self._name = _create_file(directory, 0o666 if old is None else 0o600)
        self._old = old

    def complete(self) -> None:
        if self._inode:
            return
        if self._old is not None:
            owners.keep_file(self.fd, self._old)  # before it is synced: a power failure loses these just like bytes
        if self._sync:
            sync(self.fd)
        if self._name is None and self._force:
            self._name = _link_temporary(self.fd, os.path.dirname(self.path) or ".")
        self._inode = os.fstat(self.fd).st_ino

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        if self._name is not None and sys.platform == "win32":  # an open file cannot be renamed there
            self._close()
        file = self.fd if self._name is None else self._name
        with _placed(file, self.path, self._inode, self._force, self._locked, self._sync) as is_kept:
            self._name = self._name if is_kept else None
            if self._held:
                self.fd, self._held_fd = -1, self.fd
            self._close()
            yield

    def discard(self) -> None:
        self._close()
        if self._name is not None and self._process.is_here:  # a forked process has a copy of this object
            with contextlib.suppress(OSError):
                os.unlink(self._name)
        self._name = None  # last: after Ctrl-C, `__del__` removes what is left

    def release(self) -> None:
        """Release the lock that `held` keeps. Does nothing when called again."""
        give_back(self, "_held_fd", self._process.is_here)

    def __del__(self) -> None:
        self.release()  # after Ctrl-C
        super().__del__()

    def sizes(self) -> tuple[int, int]:
        return (0, 0) if self.fd < 0 else sizes(self.fd)

    def _close(self) -> None:
        give_back(self, "fd", self._process.is_here)


class NewDirectory(Whole):
    """A directory that takes its name when it is complete: on exit from the `with` block, or with `commit`.

    Args:
        path: the final name; of a symbolic link, its target is replaced.
        replace: `path` may exist, and is replaced with everything in it. The caller decides which ones may be.
        locked: the caller holds the `lock` of the directory that is replaced.

    Attributes:
        name: the temporary directory beside the final one, empty at first. Fill it with files and directories.
        path: the final name, links resolved.

    Before that every file and directory in it is synced. `commit` exchanges the replaced directory for the new one in a
    single step (Linux, macOS) and then removes the old one. Where the system has no such step, the old one is first
    renamed to `.milblob-*.old`; a process killed at that moment leaves both complete, neither under the final name.

    Raises:
        FileExistsError: `path` exists and `replace` is False, or is not a directory, or something is mounted in it.
        FileNotFoundError: the directory to create it in does not exist.
        BlockingIOError: from `commit`: another writer has the lock of the directory to be replaced.
        OSError: from the system.
    """

    name = ""
    _fd = -1

    def __init__(self, path: str, *, replace: bool = False, locked: bool = False) -> None:
        self._is_complete = False
        self._process = here()
        path = as_path(path).rstrip("/\\") or path
        self.path, self._replace, self._locked = _resolved(path), replace, locked
        old = paths.status(self.path, follow=False)
        if old is not None and not (replace and stat.S_ISDIR(old.st_mode)):
            if not replace:
                raise FileExistsError(f"{path} already exists")
            raise FileExistsError(f"{path}: expected a directory or nothing, got {described(old)}")
        if old is not None:
            mounts.require_none(self.path)
        _require_parent(path, self.path)
        parent = os.path.dirname(self.path) or "."
        sweep(parent)
        self._old = old
        with naming(self.path):
            self.name, self._fd = _create_directory(parent, 0o777 if old is None else 0o700)

    def complete(self) -> None:
        if self._is_complete:
            return
        if self._old is not None and self._fd >= 0:
            owners.keep_tree(self._fd, self.path)
        sync_tree(self.name)
        if self._old is not None and self._fd >= 0:
            owners.keep_file(self._fd, self._old)  # last: from now on others may enter it
            sync(self._fd)  # else a power failure might leave the new directory with temporary permissions
        if self._old is not None:
            mounts.require_none(self.path)  # again: writing may have taken long
        self._is_complete = True

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        with replacing(self.path, self._locked):
            old = self._take_name()
            try:
                sync_directory(os.path.dirname(self.path))
                yield
            except BaseException:
                self._give_back(old)
                raise
            self.name = old  # which `discard` removes

    def _take_name(self) -> str:
        """Move the new directory into place; return the current path of the old one, or ""."""
        if not (self._replace and paths.is_directory(self.path)):
            os.rename(self.name, self.path)
            return ""
        if exchanged(self.name, self.path):
            return self.name
        aside = self.name.removesuffix(SUFFIX) + ".old"  # `sweep` must not take it for an unfinished directory
        rename_aside(self.name, self.path, aside)
        return aside

    def _give_back(self, old: str) -> None:
        """Undo `_take_name`."""
        name, self.name = self.name, ""  # if this fails, the file of that name must not be removed
        if old == name:
            if exchange(os.fsencode(name), os.fsencode(self.path)) != 0:
                return
        else:
            os.rename(self.path, name)
            if old:
                os.rename(old, self.path)
        self.name = name

    def sizes(self) -> tuple[int, int]:
        return _sizes_below(self.name)

    def discard(self) -> None:
        is_ours = self._process.is_here  # a forked process has a copy of this object
        try:
            if self.name and is_ours:
                remove_tree(self.name)
            self.name = ""  # after Ctrl-C, `__del__` removes what is left
        finally:  # it may be the directory in place by now, whose next writer must get its lock
            with contextlib.suppress(OSError):  # of a directory nothing can be lost
                give_back(self, "_fd", is_ours)


class NewNamedFile(Whole):
    """A NewFile for libraries that need a name, and may themselves rename a file to it.

    `path`, `force`, `locked`: as for `NewFile`.
    Raises: As `NewFile`.
    """

    _directory = ""
    _fd = -1

    def __init__(self, path: str, force: bool = False, *, locked: bool = False) -> None:
        self._inode = 0  # once it is complete
        self._process = here()
        self.path, self._old = _destination(path, force, locked)  # path: the final name, links resolved
        self._force, self._locked = force, locked
        parent = os.path.dirname(self.path) or "."
        sweep(parent)
        with naming(self.path):
            self._directory, self._fd = _create_directory(parent, 0o777)
            self._mode = stat.S_IMODE((self._old or os.stat(self._directory)).st_mode)
            os.chmod(self._directory, 0o700)
        self._mode &= 0o666 if self._old is None else ~0
        # the name to write to, in a temporary directory beside the final name
        self.name = os.path.join(self._directory, os.path.basename(self.path))

    def complete(self) -> None:
        if self._inode:
            return
        with opened(self.name) as handle:
            os.chmod(self.name, self._mode)  # before it is synced: a power failure loses permissions just like bytes
            if self._old is not None:
                owners.keep_file(handle, self._old)
            sync(handle)
            self._inode = os.fstat(handle).st_ino

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        with _placed(self.name, self.path, self._inode, self._force, self._locked):
            yield

    def sizes(self) -> tuple[int, int]:
        return _sizes_below(self._directory)

    def discard(self) -> None:
        if self._directory and self._process.is_here:  # a forked process has a copy of this object
            remove_tree(self._directory)
        self._directory = ""  # last: after Ctrl-C, `__del__` removes what is left
        with contextlib.suppress(OSError):
            fd, self._fd = self._fd, -1
            if fd >= 0:
                os.close(fd)


@contextlib.contextmanager
def _placed(
    file: str | int, path: str, inode: int, force: bool, locked: bool, is_synced: bool = True
) -> Iterator[bool]:
    """Give a file its final name, and take it back after an exception in the block.

    Args:
        file: its temporary name; or a descriptor of a file without one, which replaces none.
        locked: the caller holds the lock of that file, and knows that it has no journal.
        is_synced: whether the new name is written to the disk.

    Yields:
        Whether the replaced file has the temporary name now. Where the system cannot exchange two names it is gone, and
        the new file keeps its name.
    """
    with replacing(path, locked):
        if not locked:  # a file with a journal must not be replaced: completing it would change the new file
            require_none(path)
        is_kept = is_new = False
        if force and isinstance(file, str):
            old = paths.status(path, follow=False)
            is_new = old is None
            is_kept = old is not None and stat.S_ISREG(old.st_mode) and exchanged(file, path)
            if not is_kept:
                os.replace(file, path)
        else:
            link_as(file, path)
            is_new = True
        try:
            if is_synced:
                sync_directory(os.path.dirname(path))
            yield is_kept
        except BaseException:
            if is_kept:
                exchanged(str(file), path)
            elif is_new and os.stat(path, follow_symlinks=False).st_ino == inode:
                os.unlink(path)
            raise


# ------------------------------------------------------------------------------------------------------ temporary names


def _create_file(directory: str, mode: int) -> tuple[int, str | None]:
    """Create an empty file and lock it: (descriptor, name, or None if it has no name)."""
    if _TMPFILE and paths.is_directory("/proc/self/fd"):
        try:
            fd = os.open(directory, os.O_RDWR | _TMPFILE | _CLOEXEC, mode)
        except OSError as error:
            if error.errno not in CANNOT:
                raise
        else:
            try:
                take(fd)  # for the time it has a temporary name
            except OSError:
                pass  # the file system has no locks
            except BaseException:  # Ctrl-C
                os.close(fd)
                raise
            return fd, None
    for _ in range(_ATTEMPTS):
        name, fd = new_name(directory), -1
        try:
            fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _BINARY, mode)
            if _hold(fd, name):
                return fd, name
        except BaseException:  # Ctrl-C too
            _take_back(fd, name, os.unlink)
            raise
        os.close(fd)
    raise FileExistsError(errno.EEXIST, "expected to keep one temporary file, got all of them removed", directory)


def _create_directory(parent: str, mode: int) -> tuple[str, int]:
    """Create an empty directory and lock it: (name, descriptor that holds the lock, or -1 on Windows)."""
    for _ in range(_ATTEMPTS):
        name, fd = new_name(parent), -1
        try:
            os.mkdir(name, mode)
            if sys.platform == "win32":
                return name, -1
            try:
                fd = os.open(name, os.O_RDONLY | NO_LINKS)
            except FileNotFoundError:
                continue
            if _hold(fd, name):
                return name, fd
        except BaseException:  # Ctrl-C too
            _take_back(fd, name, os.rmdir)
            raise
        os.close(fd)
    raise FileExistsError(errno.EEXIST, "expected to keep one temporary directory, got all of them removed", parent)


def _take_back(fd: int, name: str, remove: Callable[[str], None]) -> None:
    """Remove what was made under a random name, if it was."""
    if fd >= 0:
        os.close(fd)
    with contextlib.suppress(OSError):
        remove(name)


def _hold(fd: int, name: str) -> bool:
    """Lock a temporary name that was just created; return False if another process's sweep removed it first."""
    try:
        take(fd)
    except BlockingIOError:
        return False
    except OSError:
        return True  # the file system has no locks, so no sweep takes one either
    return is_named(fd, name)


def _link_temporary(fd: int, directory: str) -> str:
    while True:
        name = new_name(directory)
        try:
            link(fd, name)
        except FileExistsError:
            continue
        except BaseException:  # Ctrl-C too
            _take_back(-1, name, os.unlink)
            raise
        return name


def _sizes_below(directory: str) -> tuple[int, int]:
    """Return the bytes of all files below a directory, and how many they have on the disk."""
    nbytes = on_disk = 0
    for folder, _, names in os.walk(directory) if directory else ():
        for name in names:
            with contextlib.suppress(OSError):
                status = os.lstat(os.path.join(folder, name))
                nbytes, on_disk = nbytes + status.st_size, on_disk + nbytes_on_disk(status)
    return nbytes, on_disk


# ---------------------------------------------------------------------------------------------------------------- paths


def _destination(path: str, force: bool, locked: bool) -> tuple[str, os.stat_result | None]:
    """Return the final path of a new file, links resolved, and the status of the file that it replaces."""
    target = _resolved(path)
    old = paths.status(target, follow=False)
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise FileExistsError(f"{path}: expected a regular file or nothing, got {described(old)}")
    if old is not None and not force:
        raise DestinationExistsError(path)
    _require_parent(path, target)
    if not locked:
        require_none(target)
    return target, old


def _resolved(path: str) -> str:
    return paths.real(path) if paths.is_link(path) else path


def described(status: os.stat_result) -> str:
    """Return the kind of a path: a file, a directory, a link or a device."""
    if stat.S_ISLNK(status.st_mode):
        return "a link"
    if stat.S_ISDIR(status.st_mode):
        return "a directory"
    return "a file" if stat.S_ISREG(status.st_mode) else "a device, a pipe or a socket"


def _require_parent(path: str, target: str) -> None:
    """Raise for a missing directory by its own name; the temporary name inside it would only confuse."""
    parent = os.path.dirname(target) or "."
    if not paths.is_directory(parent):
        raise FileNotFoundError(f"output {path}: expected a directory {parent}, got none")
