"""Is a change of these files pending? Only this module answers, and defines how readers and writers react.

A change in place is written to a journal first (journal.py). A journal lies in a directory that holds everything it
changes. A process that opens a path looks for one there:

- `.NAME.milblob-journal`, beside a file that is opened alone and changes only itself;
- `.milblob-journal`, in the root of a package or compiled model, or in the directory of a model file that changes
  weight files too.

So `pending` looks beside the file and in every directory above it, links resolved, for any names of directories.
Readers map their files with `map_settled`, which changes nothing. Writers complete the change first (journal.recover).
"""

import contextlib
import errno
import os
import stat
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from .. import _codec
from ..errors import FormatError, PendingChangeError
from . import paths
from .beneath import Location
from .locks import NO_LINKS, is_held, is_named
from .mapped import MappedFile

JOURNAL = ".milblob-journal"
_NAME_OF_ANY = JOURNAL.encode()
_WAIT_S = 10.0  # for a writer that is applying its change


class Pending(NamedTuple):
    """An existing journal: its directory (a real path) and its name."""

    root: str
    name: str

    @property
    def path(self) -> str:
        """Path of the journal itself."""
        return os.path.join(self.root, self.name)

    @property
    def advice(self) -> str:
        """The command that completes the change: of the file that the journal lies beside, else of its directory."""
        from shlex import quote

        beside = self.name.removesuffix(JOURNAL)[1:]
        return f"milblob recover {quote(os.path.join(self.root, beside) if beside else self.root)}"


# ---------------------------------------------------------------------------------------------------------------- where


def place(path: str, is_directory: bool) -> tuple[str, str]:
    """Return (root, name in it) of a model: all its files are below `root`; "" where the root is the model.

    `is_directory`: the kind of the model when it was opened. The file system is not asked again: if the path leads
    nowhere at that moment, the root would be another directory.
    """
    full = paths.real(path)
    return (full, "") if is_directory else (os.path.dirname(full), os.path.basename(full))


def pending(path: str) -> Pending | None:
    """Return the journal that must be completed before the bytes of a path can be trusted, or None.

    `path`: of a model, of one of its files, or of a file to be written.
    Raises: OSError: a place where a journal may lie cannot be examined.
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

    `path`: a real path.
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
    if status is None:
        return False
    directory = os.stat(found.root)
    if not hasattr(os, "geteuid") or not directory.st_mode & stat.S_ISVTX:
        return True
    if not stat.S_ISREG(status.st_mode):
        return False
    if status.st_uid in (os.geteuid(), directory.st_uid, 0):
        return True
    from .journal_format import Journal, join  # rarely needed: readers do not wait for it to be imported

    try:
        with Journal(found.path, is_whole=False) as journal:
            changed = [join(found.root, entry.path) for entry in journal.entries]
    except (FormatError, OSError):
        return False
    return any(f"{name}/".startswith(f"{path.rstrip('/')}/") for name in changed)


# -------------------------------------------------------------------------------------------------------------- readers


def wait(found: Pending) -> None:
    """Wait until a running writer has completed its change; it holds the lock of its journal.

    Raises: PendingChangeError: no writer is running: the change was interrupted. BlockingIOError: the writer is still
    at work after ten seconds.
    """
    end = time.monotonic() + _WAIT_S
    while (fd := _opened(found.path)) is not None:
        try:
            is_running = fd >= 0 and is_held(fd)
            if not is_running and (fd < 0 or is_named(fd, found.path)):
                raise interrupted(found)
        finally:
            if fd >= 0:
                os.close(fd)
        if is_running:
            if time.monotonic() > end:
                message = f"expected the writer of this change to be done within {_WAIT_S:.0f} s, got one still at work"
                raise BlockingIOError(errno.EAGAIN, message, found.path)
            time.sleep(0.01)


def _opened(path: str) -> int | None:
    """Open a journal to look at its lock: None if it is gone, -1 if it cannot be opened.

    On Windows an open file cannot be removed, so that looking would disturb the writer, and writers hold no such lock.
    """
    if sys.platform == "win32":
        return -1 if paths.is_there(path) else None
    try:
        return os.open(path, os.O_RDONLY | NO_LINKS)
    except FileNotFoundError:
        return None
    except OSError:  # a link; another user's
        return -1


def interrupted(found: Pending) -> PendingChangeError:
    """Return the error about a change that was interrupted: it names the journal and gives advice."""
    message = f"journal: expected none, got one of an interrupted change; {found.advice} completes it"
    return PendingChangeError(message, file=found.path)


def map_settled(
    source: Any, on_pending: Callable[[Pending], object] | None = wait, *, is_mapped: bool = True
) -> MappedFile:
    """Map a file while no change of it is pending: how everything is read that milblob changes in place.

    The file is mapped first and the journal is looked for afterwards, so that no change can begin in between unseen.

    `source`: as for MappedFile. A buffer or a file object has no path, and so no journal. `on_pending`: called with a
    journal that was found; returns when it is gone. None does not look for one: only to complete the change.
    Raises: OSError: a place where a journal may lie cannot be examined. As MappedFile and `on_pending`.
    """
    path = source.path if isinstance(source, Location) else source
    while True:
        mapping = MappedFile(source, is_mapped=is_mapped)
        if on_pending is None or not isinstance(path, str | os.PathLike):
            return mapping
        try:
            found = pending(os.fsdecode(path))
        except BaseException:
            mapping.close()
            raise
        if found is None:
            return mapping
        mapping.close()
        on_pending(found)


# -------------------------------------------------------------------------------------------------------------- writers


def require_none(path: str) -> None:
    """Refuse to write to a path with a pending change. For writers, once they hold their locks.

    Raises: PendingChangeError: there is a journal. OSError: as `pending`.
    """
    found = pending(path)
    if found is not None:
        raise interrupted(found)


def sweep_staged(path: str) -> None:
    """Remove the unused files that a killed commit prepared for a file, unless a journal needs them.

    The caller holds the lock of the file.

    Raises: As `require_none`.
    """
    from .journal_format import is_staged

    require_none(path)
    directory, base = os.path.split(path)
    with contextlib.suppress(OSError):  # a leftover only takes space; the next writer tries again
        for name in os.listdir(directory or "."):
            if is_staged(name, base):
                os.unlink(os.path.join(directory, name))
