"""Questions to the file system. Only "no such file" is a no; every other error is raised.

`os.path.exists` and its siblings answer False whatever went wrong. Where the answer decides whether a change was done,
one failing disk block would turn half of it into all of it.
"""

import os
import stat


def status(path: str, *, follow: bool = True) -> os.stat_result | None:
    """Return what `os.stat` says of a path, or None if there is nothing.

    Args:
        path: of anything.
        follow: follow symbolic links; a link that leads nowhere is nothing then.

    Raises:
        OSError: any error but ENOENT and ENOTDIR.
    """
    try:
        return os.stat(path, follow_symlinks=follow)
    except (FileNotFoundError, NotADirectoryError):
        return None


def is_there(path: str) -> bool:
    """Whether a name exists; a symbolic link counts, wherever it leads. Raises as `status`."""
    return status(path, follow=False) is not None


def is_directory(path: str) -> bool:
    """Whether a path leads to a directory. Raises as `status`."""
    found = status(path)
    return found is not None and stat.S_ISDIR(found.st_mode)


def is_file(path: str) -> bool:
    """Whether a path leads to a regular file. Raises as `status`."""
    found = status(path)
    return found is not None and stat.S_ISREG(found.st_mode)


def is_link(path: str) -> bool:
    """Whether a name is a symbolic link. Raises as `status`."""
    found = status(path, follow=False)
    return found is not None and stat.S_ISLNK(found.st_mode)


def real(path: str) -> str:
    """Return the absolute path without links; names at its end that do not exist stay as they are.

    Raises:
        OSError: a part cannot be looked at, which `os.path.realpath` takes for "no link"; links that go round.
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
        path = os.path.join(os.getcwd(), path)  # not os.path.abspath: "link/.." is above where the link leads
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
    """Ask Linux for the real path, in a sixth of the time: 5 us instead of 30. "" where it does not say."""
    if not hasattr(os, "O_PATH"):
        return ""
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        found = os.readlink(f"/proc/self/fd/{fd}")
        # What has no name any more, or one outside of what this process sees, is marked in words.
        return found if found.startswith("/") and not found.endswith(" (deleted)") else ""
    except FileNotFoundError:  # no /proc, or the name has just gone
        return ""
    finally:
        os.close(fd)
