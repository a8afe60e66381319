"""Other file systems that are mounted inside a directory: removing the directory would empty them."""

import io
import os
import re

from . import paths

_TABLE = "/proc/self/mountinfo"
_ESCAPED = rb"\\([0-7]{3})"  # compiled with its first use


def require_none(path: str) -> None:
    """Refuse a directory that is to be replaced if something is mounted below it, or on it.

    Raises: FileExistsError: there is a mount; the message names it. OSError: the directory cannot be examined.
    """
    real = os.fsencode(paths.real(path))
    for point in _points(real):
        if point == real or point.startswith(real.rstrip(b"/") + b"/"):
            message = f"{path}: expected a directory without mounts, which replacing would empty, got one at "
            raise FileExistsError(f"{message}{os.fsdecode(point)} (unmount it, or write elsewhere)")


def _points(real: bytes) -> list[bytes]:
    """Return the mount points of this process; where the system has no table of them, those below a directory."""
    try:
        with io.FileIO(_TABLE) as table:
            lines = table.read().splitlines()
    except OSError:
        return _points_below(real)
    return [re.sub(_ESCAPED, lambda found: bytes([int(found[1], 8)]), line.split(b" ")[4]) for line in lines]


def _points_below(real: bytes) -> list[bytes]:
    """Return the directories whose device is another one than that of the directory around them."""
    found = []
    for directory, names, _ in os.walk(real):
        device = os.lstat(directory).st_dev
        found += [full for name in names if os.lstat(full := os.path.join(directory, name)).st_dev != device]
    return found
