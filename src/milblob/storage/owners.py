"""The owner and permissions of a new file or tree: those of the one that it replaces, if the system allows it.

Only root can give files away, and does: the owner of a model that root rewrites must keep it. Other users own what they
write, and can keep the group at most. The result never has more permissions than the file or tree that it replaces.
"""

import contextlib
import os
import stat

from ..errors import FormatError
from . import paths

HAS_OWNERS = hasattr(os, "fchown")
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def keep_file(fd: int, old: os.stat_result) -> None:
    """Give a new file the owner, group and permissions of the one that it replaces.

    `fd`: open descriptor of the new file, or directory. `old`: status of the replaced one.
    Raises: OSError: its permissions cannot be set.
    """
    if HAS_OWNERS:
        mode = mode_like(fd, old)
        if mode != stat.S_IMODE(os.fstat(fd).st_mode):
            os.fchmod(fd, mode)


def mode_like(fd: int, old: os.stat_result) -> int:
    """Give a new file the owner and group of the one it replaces, where allowed; return the permissions to set.

    The permissions are those of the old file, but none for writing by the group if the group could not be kept.
    """
    now = os.fstat(fd)
    for own, owner, group in ((now.st_gid, -1, old.st_gid), (now.st_uid, old.st_uid, -1)):
        if own != max(owner, group):
            with contextlib.suppress(OSError):
                os.fchown(fd, owner, group)
    is_same = os.fstat(fd).st_gid == old.st_gid
    return stat.S_IMODE(old.st_mode) & (~0 if is_same else ~stat.S_IWGRP)


def keep_tree(fd: int, old: str) -> None:
    """Give everything in a new directory, but not the directory itself, the old owners and permissions.

    A name that the old directory lacks gets the owner of the old directory, and keeps its permissions. Directories
    remain writable for their owner.

    `fd`: open descriptor of the new directory, which no other process can enter yet. `old`: path of the directory that
    it replaces.
    Raises: OSError: the permissions cannot be set.
    """
    root = paths.status(old, follow=False)
    if not HAS_OWNERS or root is None:
        return
    for directory, folders, files, at in os.fwalk(".", topdown=False, dir_fd=fd):
        for name in folders + files:
            now = os.stat(name, dir_fd=at, follow_symlinks=False)
            before = paths.status(os.path.join(old, directory, name), follow=False)
            is_same = before is not None and stat.S_IFMT(before.st_mode) == stat.S_IFMT(now.st_mode)
            _keep_entry(name, at, now, before if is_same and before is not None else root, is_same)


def _keep_entry(name: str, at: int, now: os.stat_result, old: os.stat_result, is_same: bool) -> None:
    for own, owner, group in ((now.st_gid, -1, old.st_gid), (now.st_uid, old.st_uid, -1)):
        if own != max(owner, group):
            with contextlib.suppress(OSError):
                os.chown(name, owner, group, dir_fd=at, follow_symlinks=False)
    if not is_same or stat.S_ISLNK(now.st_mode):
        return
    kept = os.stat(name, dir_fd=at, follow_symlinks=False)
    mode = old.st_mode & 0o777 & (~0 if kept.st_gid == old.st_gid else ~stat.S_IWGRP)
    mode |= stat.S_IRWXU if stat.S_ISDIR(now.st_mode) else 0
    if mode != stat.S_IMODE(kept.st_mode):
        os.chmod(name, mode, dir_fd=at)


def require_trusted(status: os.stat_result, target: os.stat_result, journal: str, name: str, path: str) -> None:
    """Refuse a file that may come from a user who may not write to the file that it would change.

    `target`: status of the file that it would change. `journal`, `name`, `path`: of the journal that names both, and of
    both.
    Raises: FormatError: it belongs neither to the owner of that file nor to this process, or other users may write to
    it.
    """
    if not hasattr(os, "geteuid"):
        return
    if status.st_uid not in (os.geteuid(), target.st_uid):
        message = (
            f"journal: expected {name} to belong to the owner of {path} (user {target.st_uid}) or to this process "
            f"(user {os.geteuid()}), got user {status.st_uid}; have that user open the model, or restore it and remove "
            "the journal"
        )
        raise FormatError(message, file=journal)
    known = _OTHERS_WRITE if status.st_gid == target.st_gid else stat.S_IWOTH
    if status.st_mode & _OTHERS_WRITE & ~(target.st_mode & known):
        message = (
            f"journal: expected {name} to be writable by nobody who may not write to {path}, got mode "
            f"{stat.S_IMODE(status.st_mode):04o}; take away the permissions if you know who wrote it, or restore the "
            "model and remove the journal"
        )
        raise FormatError(message, file=journal)
