"""Temporary names beside the final ones, and their removal when a writer was killed."""

import contextlib
import os
import stat
import sys

from .locks import NO_LINKS, is_named, take

PREFIX, SUFFIX = ".milblob-", ".tmp"
_RANDOM_NBYTES = 8


def sweep(directory: str) -> None:
    """Remove temporary files and directories left by killed processes: those that no process holds a lock on.

    On Windows directories cannot be locked, so staging directories are left there.
    """
    names: list[str] = []
    with contextlib.suppress(OSError), os.scandir(directory or ".") as entries:
        names = [entry.path for entry in entries if is_ours(entry.name)]
    for name in names:
        with contextlib.suppress(OSError):
            _sweep(name)


def is_ours(name: str) -> bool:
    """Return whether a name is a temporary one of a milblob writer; `sweep` removes it once its writer is gone.

    `.milblob-*.old` is not: a complete directory that was being replaced has this name, and may be the only copy.
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
        os.unlink(name)  # Windows refuses this while it is open
        return
    fd = os.open(name, os.O_RDONLY | NO_LINKS)
    try:
        take(fd)
        if is_named(fd, name):
            if stat.S_ISDIR(os.fstat(fd).st_mode):
                remove_tree(name)
            else:
                os.unlink(name)
    finally:
        os.close(fd)


def new_name(directory: str) -> str:
    """Return a temporary name in a directory."""
    return os.path.join(directory, f"{PREFIX}{os.urandom(_RANDOM_NBYTES).hex()}{SUFFIX}")


def remove_tree(name: str) -> None:
    """Remove a directory with everything in it, as far as that goes; after Ctrl-C, which is raised then, the rest."""
    import shutil

    try:
        shutil.rmtree(name, ignore_errors=True)
    except BaseException as error:
        shutil.rmtree(name, ignore_errors=True)
        if isinstance(error.__context__, KeyboardInterrupt):  # rmtree may close a descriptor twice and raise that
            raise error.__context__ from None
        raise
