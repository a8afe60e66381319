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
_FIRST_NBYTES = 1 << 22  # of the first room for arrays that last: in memory, for small models
_ALIGNMENT = 64
_ZEROS_NBYTES = 1 << 20
_CANNOT = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


class Scratch:
    """Makes arrays for intermediate results.

    `directory`: where the files of large arrays are, as long as the arrays are used.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._room = np.empty(0, np.uint8)
        self._lasting_nbytes = 0

    def empty(self, shape: Any, dtype: Any) -> Array:
        """Return a new array, as `numpy.empty`. A large one is a mapped file, which goes with the last view of it.

        Raises: OSError: the disk is full, or the directory cannot be written to.
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

    def persistent(self, shape: Any, dtype: Any) -> Array:
        """As `empty`, for arrays of every weight that are kept until the result is written: together they are small.

        Several share a file, as there may be more weights than files that a process may have open. Each file has room
        for an eighth of all before it, so that their number grows with the logarithm of the bytes.
        """
        kind, dims = np.dtype(dtype), (shape,) if isinstance(shape, int) else tuple(shape)
        nbytes = prod(dims) * kind.itemsize
        taken = -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        with self._lock:
            if taken > self._room.size:
                is_first = not self._lasting_nbytes and taken <= _FIRST_NBYTES
                room = _FIRST_NBYTES if is_first else max(taken, self._lasting_nbytes // 8, _HELD_NBYTES)
                self._room = self.empty(room, np.uint8)
            self._lasting_nbytes += taken
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
