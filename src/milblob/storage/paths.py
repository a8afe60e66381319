"""Questions to the file system. Only "no such file" counts as no; every other error is raised.

`os.path.exists` and its siblings return False on any error. Where the answer decides whether a change was done, one
failing disk block would turn a half-done change into a finished one.
"""

import os
import stat

from ..mirrored import ROOTS, provide


def status(path: str, *, follow: bool = True) -> os.stat_result | None:
    """Return the `os.stat` of a path, or None if nothing is there.

    `path`: of anything. `follow`: follow symbolic links; a link whose target does not exist then counts as nothing.
    Raises: OSError: any error but ENOENT and ENOTDIR; what represents a remote file cannot be asked for.
    """
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        if ROOTS and provide(path, is_named=False):
            return os.stat(path, follow_symlinks=follow)
        return None


def is_there(path: str) -> bool:
    """Return whether a name exists; a symbolic link counts, even a dangling one. Raises as `status`."""
    return status(path, follow=False) is not None


def is_directory(path: str) -> bool:
    """Return whether a path leads to a directory. Raises as `status`."""
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_file(path: str) -> bool:
    """Return whether a path leads to a regular file. Raises as `status`."""
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_link(path: str) -> bool:
    """Return whether a name is a symbolic link. Raises as `status`."""
    found = status(path, follow=False)
    return found is not None and stat.S_ISLNK(found.st_mode)


def above(path: str, suffixes: tuple[str, ...]) -> str | None:
    """Return the nearest directory above a path, links resolved, whose name ends in one of the suffixes.

    Raises: As `real` and `status`.
    """
    parent = os.path.dirname(real(path))
    while parent != os.path.dirname(parent):
        if parent.endswith(suffixes) and is_directory(parent):
            return parent
        parent = os.path.dirname(parent)
    return None


def real(path: str) -> str:
    """Return the absolute path without links; names at its end that do not exist are kept.

    Raises: OSError: a part cannot be examined, which `os.path.realpath` would take for "not a link"; a loop of links.
    """
    missing: list[str] = []  # the last one first
    while True:
        try:
            found = asked(path) or os.path.realpath(path, strict=True)
            break
        except (FileNotFoundError, NotADirectoryError):
            pass
        if is_link(path):
            path = os.path.join(os.path.dirname(path), os.readlink(path))
            continue
        path = os.path.join(os.getcwd(), path)  # not os.path.abspath: "link/.." is the parent of the link's target
        parent, name = os.path.split(path)
        if parent == path:
            found = path
            break
        path = parent
        missing.append(name)
    for name in reversed(missing):
        if name == os.pardir:
            found = os.path.dirname(found)
        elif name not in ("", os.curdir):
            found = os.path.join(found, name)
    return found


def asked(path: str) -> str:
    """Ask Linux for the real path, six times faster: 5 us instead of 30. "" where it gives none."""
    if not hasattr(os, "O_PATH"):
        return ""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.readlink(f"/proc/self/fd/{fd}")
        # The kernel marks a deleted file, or one outside this process's view, with extra text.
        return found if found.startswith("/") and not found.endswith(" (deleted)") else ""
    except FileNotFoundError:  # no /proc, or the name has just gone
        return ""
    finally:
        os.close(fd)
