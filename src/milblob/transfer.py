"""Moving bytes into files at offsets: positioned writes, and copies that the kernel makes."""

import contextlib
import errno
import os
from collections.abc import Sequence
from typing import Any

from .mapping import Mapping

_CHUNK_NBYTES = 8 << 20
_MAX_VIEWS = 1000  # IOV_MAX is 1024 on Linux and macOS
# The kernel, or the file system, cannot copy between these two files; a plain write can.
_NO_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM}


def write_at(fd: int, pieces: Sequence[Any], offset: int) -> None:
    """Write buffers one after another at an offset of a file, all of their bytes.

    Raises:
        OSError: the file cannot be written; some of the bytes may be.
    """
    views = [view for view in (memoryview(piece).cast("B") for piece in pieces) if view.nbytes]
    if not hasattr(os, "pwrite"):  # Windows: nobody else moves the position, writers are used by one thread at a time
        os.lseek(fd, offset, os.SEEK_SET)
        for view in views:
            while view.nbytes:
                view = view[os.write(fd, view[:_CHUNK_NBYTES]) :]
        return
    while views:
        if hasattr(os, "pwritev"):
            done = os.pwritev(fd, views[:_MAX_VIEWS], offset)
        else:
            done = os.pwrite(fd, views[0], offset)
        if done == 0:
            raise OSError(errno.EIO, "write of some bytes: expected progress, got none")
        offset += done
        while views and done >= views[0].nbytes:
            done -= views.pop(0).nbytes
        if done:
            views[0] = views[0][done:]


def copy_range(source: Mapping, start: int, nbytes: int, fd: int, offset: int) -> None:
    """Copy bytes of a mapped file or buffer to an offset of another file.

    The kernel copies where it can (on some file systems it shares the blocks), so that nothing is mapped; else the bytes
    are written from the mapping.

    Raises:
        FormatError: the source has shrunk. OSError: the target cannot be written.
    """
    buffer = source.check_size()
    end = start + nbytes
    if source.fd >= 0 and hasattr(os, "copy_file_range"):
        with contextlib.suppress(_CannotCopy):
            while start < end:
                done = _copy_some(source.fd, fd, end - start, start, offset)
                start, offset = start + done, offset + done
    view = memoryview(buffer)
    while start < end:
        size = min(end - start, _CHUNK_NBYTES)
        source.check_size()
        write_at(fd, [view[start : start + size]], offset)
        start, offset = start + size, offset + size


class _CannotCopy(Exception):
    pass


def _copy_some(source: int, target: int, nbytes: int, start: int, offset: int) -> int:
    try:
        done = os.copy_file_range(source, target, min(nbytes, 1 << 30), start, offset)
    except OSError as error:
        if error.errno in _NO_COPY:
            raise _CannotCopy from None
        raise
    if done == 0:  # the end of a source that has shrunk: check_size says so; or a file system that lies
        raise _CannotCopy
    return done
