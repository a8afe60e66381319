"""Moving bytes into files at offsets: positioned writes, and copies made by the kernel."""

import errno
import mmap
import os
from collections.abc import Sequence
from typing import Any

from .mapped import MappedFile

_CHUNK_NBYTES = 8 << 20
_READ_NBYTES = 1 << 20  # of one read: it fits the cache
_MAX_VIEWS = 1000  # IOV_MAX is 1024 on Linux and macOS
_MAX_NBYTES = 1 << 30  # of one call: macOS refuses 2 GiB and more, Linux takes no more than that
# The kernel, or the file system, cannot copy between these two files; a plain write is needed.
_NO_COPY = {
    errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EBADF, errno.EPERM, errno.ETXTBSY,
}  # fmt: skip


def write_json(fd: int, document: Any) -> None:
    """Write a JSON document to an empty file, for people to read: names are not ASCII only.

    Raises: OSError: it cannot be written. ValueError: as `json.dumps`.
    """
    import json

    text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    write_at(fd, [text.encode("utf-8", "backslashreplace")], 0)  # a lone surrogate: an escape of JSON too


def write_at(fd: int, pieces: Sequence[Any], offset: int) -> None:
    """Write buffers one after another at an offset of a file, all of their bytes.

    Args:
        fd: a descriptor open for writing, without O_APPEND. Its position moves where there are no positioned writes.
        pieces: C-contiguous buffers of any format that memoryview knows; empty ones are allowed.
        offset: byte of the file at which the first goes.

    Raises:
        OSError: the file cannot be written; some of the bytes may be.
    """
    views = [view for view in map(_bytes_of, pieces) if view.nbytes]
    while views:
        done = _write_some(fd, views, offset)
        if done == 0:
            raise OSError(errno.EIO, f"write of {views[0].nbytes} bytes: expected progress, got none")
        offset += done
        while views and done >= views[0].nbytes:
            done -= views.pop(0).nbytes
        if done:
            views[0] = views[0][done:]


def _bytes_of(piece: Any) -> memoryview:
    view = memoryview(piece)
    return view.cast("B") if view.nbytes else memoryview(b"")  # a view with a 0 in its shape cannot be cast


def _write_some(fd: int, views: list[memoryview], offset: int) -> int:
    """Make one system call; return how many bytes it wrote."""
    if hasattr(os, "pwritev"):
        count = nbytes = 0
        while count < min(len(views), _MAX_VIEWS) and nbytes + views[count].nbytes <= _MAX_NBYTES:
            nbytes += views[count].nbytes
            count += 1
        return os.pwritev(fd, views[:count] or [views[0][:_MAX_NBYTES]], offset)
    if hasattr(os, "pwrite"):
        return os.pwrite(fd, views[0][:_MAX_NBYTES], offset)
    os.lseek(fd, offset, os.SEEK_SET)  # Windows: a descriptor has only one writer at a time
    return os.write(fd, views[0][:_CHUNK_NBYTES])


def read_into(source: MappedFile, start: int, view: memoryview) -> None:
    """Read bytes of a mapped file or buffer from `start` on, as many as a view has, and map nothing if possible.

    Raises: FormatError: the file has shrunk. OSError: it cannot be read.
    """
    done = 0
    with source.held() as fd:
        if fd >= 0 and hasattr(os, "preadv"):
            while done < view.nbytes and (some := os.preadv(fd, [view[done:]], start + done)):
                done += some
    if done < view.nbytes:
        view[done:] = memoryview(source.check_size())[start + done : start + view.nbytes]


def copy_range(source: MappedFile, start: int, nbytes: int, fd: int, offset: int) -> None:
    """Copy bytes of a mapped file or buffer to an offset of another file.

    The kernel copies where it can (some file systems then share the blocks). Pages that begin at different places in
    the two files cannot be shared, and the kernel copies them slower than a read and a write do, so those are read into
    memory. Nothing is mapped. Where neither is possible, the bytes are written from the mapping.

    Args:
        source: the file to copy from; [start, start + nbytes) lies inside it.
        fd: descriptor of the target, open for writing. It may be the same file if the ranges do not overlap.
        offset: byte offset in the target.

    Raises:
        FormatError: the source has shrunk. OSError: the target cannot be written.
    """
    buffer = source.check_size()
    end = start + nbytes
    with source.held() as own:
        if own >= 0 and hasattr(os, "copy_file_range"):
            copy = _read_and_write if (start - offset) % mmap.PAGESIZE else _copy_some
            while start < end and (done := copy(own, fd, end - start, start, offset)):
                start, offset = start + done, offset + done
    view = memoryview(buffer)
    while start < end:
        size = min(end - start, _CHUNK_NBYTES)
        source.check_size()
        write_at(fd, [view[start : start + size]], offset)
        start, offset = start + size, offset + size


def _read_and_write(source: int, target: int, nbytes: int, start: int, offset: int) -> int:
    """Return how many bytes were copied; 0 at the end of a source that has shrunk."""
    data = os.pread(source, min(nbytes, _READ_NBYTES), start)
    write_at(target, [data], offset)
    return len(data)


def _copy_some(source: int, target: int, nbytes: int, start: int, offset: int) -> int:
    """Return how many bytes the kernel copied; 0 where it cannot, and at the end of a source that has shrunk."""
    try:
        return os.copy_file_range(source, target, min(nbytes, _MAX_NBYTES), start, offset)
    except OSError as error:
        if error.errno in _NO_COPY:
            return 0
        raise
