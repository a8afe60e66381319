"""Arrays that lie in files without a name: as long as a weight, and in memory only as far as the system has room."""

import errno
import mmap
import os
import tempfile
import threading
from math import prod
from typing import Any

import numpy as np

from .disk import naming
from .transfer import write_at

Array = np.ndarray[Any, Any]

_HELD_NBYTES = 1 << 24  # smaller arrays are in memory, as usual
_ALIGNMENT = 64
_ZEROS_NBYTES = 1 << 20
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


class Scratch:
    """Makes arrays for what is computed on the way.

    Args:
        directory: where the files of large arrays are, as long as the arrays are used.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._room: Array | None = None

    def empty(self, shape: Any, dtype: Any) -> Array:
        """Return a new array, as `numpy.empty`. A large one is a mapped file, which goes with the last view of it.

        Raises:
            OSError: the disk is full, or the directory cannot be written to.
        """
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        kind, count = np.dtype(dtype), prod(dims)
        nbytes = count * kind.itemsize
        if nbytes < _HELD_NBYTES:
            return np.empty(dims, kind)
        place = os.path.join(self._directory, "")
        with naming(place, nbytes=nbytes):
            opened = tempfile.TemporaryFile(dir=self._directory, prefix=".milblob-", buffering=0)  # noqa: SIM115
        with opened as file:
            with naming(place, file.fileno(), nbytes):
                _reserve(file.fileno(), nbytes)
            mapping = mmap.mmap(file.fileno(), nbytes)
        return np.ndarray(dims, kind, mapping)

    def lasting(self, shape: Any, dtype: Any) -> Array:
        """As `empty`, for what is kept of every weight until the result is written: together they take little memory.

        Several share a file, as there may be more weights than files that a process may have open.
        """
        kind, dims = np.dtype(dtype), (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = prod(dims) * kind.itemsize
        taken = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            if self._room is None:
                self._room = np.empty(_HELD_NBYTES, np.uint8)  # where nothing is written takes no memory
            if taken > self._room.size:
                self._room = self.empty(max(taken, _HELD_NBYTES), np.uint8)
            found, self._room = self._room[:nbytes], self._room[taken:]
        return np.ndarray(dims, kind, found)


def _reserve(fd: int, nbytes: int) -> None:
    """Give a file its size, and room on the disk: a page that is written and has no room would kill the process."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(fd, 0, nbytes)
        except OSError as error:
            if error.errno not in _CANNOT:
                raise
        else:
            return
    zeros = bytes(_ZEROS_NBYTES)
    for offset in range(0, nbytes, _ZEROS_NBYTES):
        write_at(fd, [memoryview(zeros)[: nbytes - offset]], offset)
