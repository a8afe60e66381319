"""Names of files and directories that are whole: given, exchanged, and taken back."""

import errno
import os

from .._codec import exchange
from ..errors import DestinationExistsError
from . import paths
from .disk import sync_directory
from .locks import replacing
from .temporary import SUFFIX, new_name

CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EISDIR)
_CLOEXEC = getattr(os, "O_CLOEXEC", 0)


def place(name: str, path: str, *, force: bool) -> None:
    """Give a whole file or directory its final name; what it replaces is never half removed.

    `name`: of it, on the same file system. What is replaced has this name afterwards, or none. `path`: the final name;
    a symbolic link there is replaced itself. `force`: replace what is there.
    Raises: FileExistsError: without `force`, something has the name. BlockingIOError: a writer has its lock. OSError:
    from the system.
    """
    if not force:
        if paths.is_there(path):
            raise DestinationExistsError(path)
        os.rename(name, path) if paths.is_directory(name) else link_as(name, path)
        return
    with replacing(path, is_held=paths.is_link(path)):  # a link has no lock
        if not paths.is_there(path):
            os.rename(name, path)
        elif not exchanged(name, path):
            aside = new_name(os.path.dirname(path)).removesuffix(SUFFIX) + ".old"
            rename_aside(name, path, aside)
            os.rename(aside, name)
        sync_directory(os.path.dirname(path) or ".")


def rename_aside(name: str, path: str, aside: str) -> None:
    """Rename what has a name to `aside`, and the new one to its name; after an error all have their names again."""
    os.rename(path, aside)
    try:
        os.rename(name, path)
    except BaseException:
        os.rename(aside, path)
        raise


def exchanged(a: str, b: str) -> bool:
    """Exchange two names in one step; return False where the system cannot."""
    code = exchange(os.fsencode(a), os.fsencode(b))
    if code not in (0, *CANNOT):
        raise OSError(code, os.strerror(code), b)
    return code == 0


def link_as(file: str | int, path: str) -> None:
    """Give a file its final name, only if that is free."""
    if isinstance(file, int):
        link(file, path)
        return
    try:
        os.link(file, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        if paths.is_there(path):
            raise
        os.rename(file, path)
    else:
        os.unlink(file)


def link(fd: int, name: str) -> None:
    """Give a name to a file without one; raise FileExistsError if the name is taken."""
    directory = os.open(os.path.dirname(name) or ".", os.O_RDONLY | _CLOEXEC)
    try:  # with a descriptor of a directory, os.link follows the link that /proc/self/fd/N is
        os.link(f"/proc/self/fd/{fd}", name, src_dir_fd=directory, follow_symlinks=True)
    finally:
        os.close(directory)
