"""Files and buffers with one interface: held, mapped read-only or read into memory, checked for shrinking."""

import contextlib
import io
import mmap
import os
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NoReturn, Self

from .._codec import Buffer
from ..arguments import as_path
from ..errors import FormatError
from ..mirrored import FILES, Backing, Spans, shown
from . import paths
from .beneath import OPEN_FLAGS, Location, final_path

PASSED_NBYTES = 1 << 24
"""How many bytes of a file that is read once are in memory."""

_PAGE_NBYTES = 4096
_RWF_DONTCACHE = 0x80  # of preadv2, Linux 6.14

_KINDS = (
    (stat.S_ISDIR, "directory"),
    (stat.S_ISFIFO, "FIFO"),
    (stat.S_ISCHR, "character device"),
    (stat.S_ISBLK, "block device"),
    (stat.S_ISSOCK, "socket"),
)
LFS_PREFIX = b"version https://git-lfs.github.com/spec/"


@contextlib.contextmanager
def closed_on_error(opened: Any) -> Iterator[None]:
    """Close the opened file if the block that uses it raises."""
    try:
        yield
    except BaseException:
        opened.close()
        raise


class Closable:
    """Base of what is closed at the end of a `with` block."""

    __slots__ = ()

    def close(self) -> None:
        """Release what is open."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Opened(Closable):
    """Base of objects that hold open files: like a file object, they cannot be copied or pickled."""

    path: str | None
    _kept: Callable[[], Any] | None = None

    def keep(self, mirror: Any, owner: Any = None) -> None:
        """Keep a mirror while its bytes may be asked for, and call the model by its name; for milblob's own modules.

        Args:
            mirror: a `remote.mirror.Mirror`; closed when `owner` goes, or by `release`.
            owner: what reads from it; None for this object.
        """
        self._kept = weakref.finalize(owner or self, mirror.close)
        self.path = mirror.name

    def release(self) -> None:
        """Close what `keep` keeps, if anything; for milblob's own modules."""
        if self._kept is not None:
            self._kept()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse, with advice in the message."""
        message = f"{type(self).__name__}: cannot be copied or pickled"
        raise TypeError(f"{message}; open the path there again")


class _Pages:
    """Reads whole pages past the page cache, each once for all that begins in it.

    `fd`: of the file. `nbytes`: bytes of each read.
    """

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd, self._nbytes = fd, nbytes
        self._begin, self._block = 0, b""
        self._is_uncached = True

    def read(self, offset: int) -> bytes:
        """Return the bytes at an offset, or what the file has of them."""
        if not self._begin <= offset <= self._begin + len(self._block) - self._nbytes:
            self._begin = offset - offset % _PAGE_NBYTES
            self._block = self._read(-(-(offset + self._nbytes) // _PAGE_NBYTES) * _PAGE_NBYTES - self._begin)
        return self._block[offset - self._begin :][: self._nbytes]

    def _read(self, nbytes: int) -> bytes:
        if self._is_uncached:
            block = bytearray(nbytes)
            try:
                return bytes(block[: os.preadv(self._fd, [block], self._begin, _RWF_DONTCACHE)])
            except OSError:  # an older kernel, another file system; a read that fails fails again
                self._is_uncached = False
        return os.pread(self._fd, nbytes, self._begin)


class MappedFile:
    """The bytes of one file or buffer, read-only, for as long as this object or an array over it lives.

    A file is memory-mapped: a page is read from disk when it is first touched. If another process truncates the file,
    touching the lost pages of an existing array kills the process with SIGBUS; no library can prevent that.
    `check_size` detects it before any new array is returned. With `is_mapped=False` the whole file is read into memory
    once: later changes of the file do not matter, and each array over it keeps all of that memory.

    Threads may share it, and one may close it while others read: each of these gets its values, or a ValueError that
    reports that the file is closed.

    A file that represents a remote one (`mirrored`) holds only the requested bytes, so each method states which part of
    the returned buffer may be read: `live` and `check_size` fetch the whole file, `need` fetches a range.
    """

    __slots__ = (
        *("_backing", "_is_cold", "_lock", "_mmap", "_users"),
        *("buffer", "changed_ns", "fd", "identity", "is_partial", "name"),
    )

    def __init__(self, source: Any, name: str | None = None, *, is_mapped: bool = True, small_nbytes: int = 0) -> None:
        """Map, or read, a path, a file object or a buffer.

        Args:
            source: str or PathLike, opened wherever it leads; a Location, inside its model; an open binary
                file, or any object with `read` and `seek`; or any C-contiguous buffer, which is not copied and must
                not change. A file object that is not a plain file is read whole.
            is_mapped: map files; else read them into private memory. A buffer is never copied.
            small_nbytes: read files of fewer bytes in any case.

        Raises:
            OSError: the file cannot be opened or read. ResolveError: a Location that escapes. ValueError: a path with a
                NUL; a URL.
            FormatError: not a regular file, a Git LFS pointer, or it shrank while it was read.
            BufferError: a strided buffer. TypeError: any other object.
        """
        self._backing: Backing | None = None
        self.is_partial = False  # whether it represents a remote file and holds only the requested bytes
        self._mmap: mmap.mmap | None = None
        self._is_cold: bool | None = None
        self._lock = threading.Lock()
        self._users = 0
        # its own descriptor of the file, for positioned reads; -1 for memory, for a file that was read whole, and after
        # close. Where another thread may close, use it only inside `held`: after a close the system reuses the number
        # for the next file.
        self.fd = -1
        self.name = name  # the path as given, or None for memory
        self.identity: tuple[int, int] | None = None  # device and inode of the file, or None for memory
        self.changed_ns: int | None = None  # when the file had been changed last as it was opened, or None for memory

        def take() -> Any:
            nbytes = self._file_nbytes()
            backing = self._backing
            if backing is not None and (not is_mapped or nbytes < small_nbytes):
                backing.fetch([(0, nbytes)])
            if backing is not None and backing.memory is not None:
                return backing.memory if is_mapped else bytes(backing.memory)
            return self._map(nbytes) if is_mapped and nbytes >= small_nbytes else self._read(nbytes)

        if isinstance(source, Location):
            self.name = name or source.path
            self.fd = source.open()  # closed by `close`, or when this object goes
            data = take()
        elif isinstance(source, str | os.PathLike):
            path = as_path(source)
            self.name = name or path
            self.fd = os.open(path, OPEN_FLAGS)
            data = take()
        elif hasattr(source, "read") and not isinstance(source, mmap.mmap):
            data = self._of_file_object(source, take)
        else:
            data = source
        try:
            buffer = Buffer(data, self.name)
        except TypeError:
            message = f"source: expected a path, a buffer or a file object, got {type(source).__name__}"
            raise TypeError(message) from None
        self.buffer: Buffer | None = buffer  # the bytes for `_codec` and for arrays; None after close
        view = memoryview(buffer)  # of bytes, for elements of any size
        if buffer.nbytes < 1024 and view[: len(LFS_PREFIX)] == LFS_PREFIX:
            raise FormatError(self._lfs_message(bytes(view)), offset=0, file=self.name, code="lfs-pointer")

    def _of_file_object(self, source: Any, take: Callable[[], Any]) -> Any:
        # Map only plain files: a gzip file object has a descriptor too, but of the compressed file.
        plain = getattr(source, "file", source)  # what tempfile wraps
        if not isinstance(getattr(plain, "raw", plain), io.FileIO):
            source.seek(0)
            return source.read()
        self.fd = os.dup(source.fileno())
        name = getattr(source, "name", None)
        self.name = self.name or (name if isinstance(name, str) else None)
        return take()

    def _file_nbytes(self) -> int:
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            kind = next((name for is_kind, name in _KINDS if is_kind(status.st_mode)), "special file")
            raise FormatError(f"file: expected a regular file, got a {kind}", file=self.name, code="not-a-model")
        self.identity, self.changed_ns = (status.st_dev, status.st_ino), status.st_mtime_ns
        if FILES and (backing := FILES.get(self.identity)) is not None:
            self.__del__()
            self.fd = -1 if backing.file is None else os.dup(backing.file())
            self._backing, self.is_partial, self.name = backing, True, backing.name
            return backing.nbytes
        return status.st_size

    def _map(self, nbytes: int) -> Any:
        if nbytes == 0:
            return b""
        self._mmap = mmap.mmap(self.fd, 0, access=mmap.ACCESS_READ)
        return self._mmap

    def _read(self, nbytes: int) -> Any:
        done = 0
        # An anonymous mapping: not zeroed by us, released with the last array, and in huge pages where the kernel has
        # them, since the first touch costs more than reading.
        memory: Any = mmap.mmap(-1, nbytes) if nbytes > 0 else b""
        if nbytes > 0 and hasattr(mmap, "MADV_HUGEPAGE"):
            with contextlib.suppress(OSError):
                memory.madvise(mmap.MADV_HUGEPAGE)
        with io.FileIO(self.fd, closefd=False) as file, memoryview(memory) as view:
            position = file.tell()  # a descriptor that was copied from a file object shares its position
            file.seek(0)
            while done < nbytes and (some := file.readinto(view[done:])):
                done += some
            file.seek(position)
        self.__del__()  # later reads must come from this memory, not from a file that may have changed
        if done < nbytes:
            message = f"size: expected {nbytes} bytes as when it was opened, got {done}"
            raise FormatError(message, offset=done, file=self.name)
        return memory

    @staticmethod
    def _lfs_message(data: bytes) -> str:
        sizes = [line[5:].decode("ascii", "replace") for line in data.splitlines() if line.startswith(b"size ")]
        size = f" of {sizes[0]} bytes" if sizes else ""
        return f"content: expected the file itself{size}, got a Git LFS pointer (run `git lfs pull`)"

    @property
    def nbytes(self) -> int:
        """Size in bytes when it was mapped."""
        return self._open_buffer().nbytes

    def _open_buffer(self) -> Buffer:
        if self.buffer is None:
            raise ValueError("I/O operation on closed file" + (f" {shown(self.name)}" if self.name else ""))
        return self.buffer

    def live(self) -> Buffer:
        """Return the buffer, or raise ValueError after close; all bytes of a remote file are fetched before."""
        buffer = self.buffer
        if buffer is None or self.is_partial:
            return self.need([(0, self._open_buffer().nbytes)])
        return buffer

    def need(self, spans: Spans) -> Buffer:
        """Return the buffer, in which only the given ranges may be read; ranges of a remote file are fetched first.

        `spans`: (offset, nbytes) of each; what lies outside of the file is left out.
        Raises: ValueError: it is closed. OSError: they cannot be fetched. FormatError: the remote file has changed.
        """
        buffer = self._open_buffer()
        if self._backing is not None:
            end = buffer.nbytes
            inside = [(offset, min(nbytes, end - offset)) for offset, nbytes in spans if 0 <= offset < end]
            self._backing.fetch(inside)
        return buffer

    def check_size(self) -> Buffer:
        """Return the buffer if the file still has all the bytes that were mapped; a remote file is fetched whole.

        Raises: FormatError: the file has shrunk since it was opened. As `need`.
        """
        buffer = self.buffer
        if buffer is None or self.is_partial:
            return self.live()
        mapped = self._mmap  # another thread may close it
        if mapped is not None:
            try:
                now = mapped.size()
            except (ValueError, OSError):
                self.live()  # raises if another thread closed it
                raise
            if now < buffer.nbytes:
                self._open_buffer()
                raise FormatError(
                    f"size: expected {buffer.nbytes} bytes as when it was opened, got {now}", offset=now, file=self.name
                )
        return buffer

    def check_range(self, offset: int, nbytes: int) -> Buffer:
        """As `check_size`; of a remote file, only this range is fetched, and may be read."""
        return self.need([(offset, nbytes)]) if self.is_partial else self.check_size()

    def read_at(self, offsets: list[int], nbytes: int) -> bytes | None:
        """Read `nbytes` at each of the offsets from the file itself, one after another; see `reading`.

        Returns: The bytes; None where only the mapping can give them: as `reading`, an offset outside the file, a file
        that has shrunk.
        """
        last = self.nbytes - nbytes
        if self.is_partial:
            self.need([(offset, nbytes) for offset in offsets])
        with self.reading(nbytes) as read:
            if read is None or not all(0 <= offset <= last for offset in offsets):
                return None
            data = b"".join(map(read, offsets))
        return data if len(data) == nbytes * len(offsets) else None

    @contextlib.contextmanager
    def reading(self, nbytes: int) -> Iterator[Callable[[int], bytes] | None]:
        """Yield a function that reads `nbytes` at an offset, or what the file has of them.

        Through the mapping, each would be a page fault that maps the cached pages around it; a positioned read maps
        nothing (bench/bench_load.py shows which pages remain resident). If the file is not in the page cache, none of
        it is kept there, where Linux can do so: single cached pages make later read-ahead slow (bench/bench_cold.py).

        Yields: None for a buffer, and on a platform without positioned reads.
        """
        with self._held() as fd:
            if fd < 0 or not hasattr(os, "pread"):
                yield None
            elif not self.is_cold():
                yield lambda offset: os.pread(fd, nbytes, offset)
            else:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)  # neighbours are no reason to read ahead
                try:
                    yield _Pages(fd, nbytes).read
                finally:
                    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_NORMAL)

    def is_cold(self) -> bool:
        """Whether the middle of a file was not in the page cache at the first call; False where nothing shows it."""
        if self._is_cold is None:
            self._is_cold = False
            try:
                with self._held() as fd:
                    os.preadv(fd, [bytearray(1)], self.nbytes // 2, os.RWF_NOWAIT)  # type: ignore[attr-defined,unused-ignore]
            except BlockingIOError:
                self._is_cold = True
            except (OSError, AttributeError, NotImplementedError):
                pass
        return self._is_cold

    @contextlib.contextmanager
    def held(self) -> Iterator[int]:
        """Yield `fd`, which remains open until the block ends, even if another thread closes; -1 if there is none.

        Raises: ValueError: it is closed. As `need`, of the whole file.
        """
        self.live()
        with self._held() as fd:
            yield fd

    @contextlib.contextmanager
    def _held(self) -> Iterator[int]:
        with self._lock:
            self._open_buffer()
            self._users += 1
        try:
            yield self.fd
        finally:
            with self._lock:
                self._users -= 1
                self._drop()

    @contextlib.contextmanager
    def held_name(self) -> Iterator[str | None]:
        """Yield a path that leads to the open file itself until the block ends, for libraries that open files by name.

        `name` may lead elsewhere by now. On Linux the descriptor has a path; on Windows nobody can rename an open file,
        nor a directory above it. Other systems have no such path, nor has a file without a name.

        Yields: The absolute path; None if there is none.
        """
        with self.held() as fd:
            yield self._name_of(fd) if fd >= 0 else None

    def _name_of(self, fd: int) -> str | None:
        if self._backing is not None:  # a file without a name, or of a cache that may remove it
            return None
        try:
            real = final_path(fd)
            status = os.stat(real)  # of a removed file, readlink gives a path that leads nowhere
        except OSError:
            return None
        if (status.st_dev, status.st_ino) != self.identity:
            return None
        return real if sys.platform == "win32" else f"/proc/self/fd/{fd}"

    def map_private(self, begin: int = 0, nbytes: int | None = None) -> mmap.mmap | None:
        """Map the file once more, to write to the mapping: a page that is written becomes a copy of this process.

        The file never changes, nor do arrays over `buffer`. Closing this object leaves the new mapping as it is.

        `begin`, `nbytes`: the bytes that are needed; None: all from `begin` on.
        Returns: The bytes of the file from `begin`, rounded down to a multiple of mmap.ALLOCATIONGRANULARITY. None
        where no file is mapped: a buffer, a remote file, a file that was read whole.
        Raises: ValueError: it is closed. FormatError: the file has shrunk. OSError: it cannot be mapped.
        """
        if self.is_partial or self._mmap is None:
            return None
        with self.held() as fd:
            end = self.check_size().nbytes if nbytes is None else begin + nbytes
            start = begin - begin % mmap.ALLOCATIONGRANULARITY
            if sys.platform == "linux":  # memory is not reserved for pages that are never written
                flags = mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0)
                return mmap.mmap(fd, end - start, flags=flags, prot=mmap.PROT_READ | mmap.PROT_WRITE, offset=start)
            return mmap.mmap(fd, end - start, access=mmap.ACCESS_COPY, offset=start)

    def require_named(self) -> None:
        """Refuse a file whose name now leads to another one: for outputs that refer to the file by that name.

        Raises: FormatError: it does.
        """
        status = None if self.name is None else paths.status(self.name)
        if status is None or (status.st_dev, status.st_ino) != self.identity:
            got = "nothing" if status is None else "another"
            raise FormatError(f"file: expected the one that was opened, got {got} by that name", file=self.name)

    def expect_random(self, random: bool) -> None:
        """Advise the kernel which reads to expect: small scattered ones, or (False) whole arrays.

        Listing touches 64 bytes per record; with default read-ahead, most of a cold file would be read for nothing.
        """
        mapped = self._mmap
        if mapped is not None and hasattr(mapped, "madvise"):
            try:
                mapped.madvise(mmap.MADV_RANDOM if random else mmap.MADV_NORMAL)
            except ValueError:
                self.live()  # raises if another thread closed it
                raise

    def passed(self, offset: int, nbytes: int) -> None:
        """Take pages out of memory that were read once, such as for a hash, at each multiple of PASSED_NBYTES.

        Only of a mapping of a file, which is shared and read-only: its pages have no changes that could be lost, and an
        array over them, in any thread, finds the same bytes in the page cache again.

        `offset`, `nbytes`: the place of the bytes that were read now; those before them are passed too.
        """
        mapped, begin = self._mmap, offset - offset % PASSED_NBYTES
        if mapped is not None and offset + nbytes >= begin + PASSED_NBYTES and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(ValueError, OSError):  # another thread closed it; advice that a system lacks
                mapped.madvise(mmap.MADV_DONTNEED, begin, offset + nbytes - begin)

    def close(self) -> None:
        """Release the bytes. Arrays over them remain valid, and the last of them releases the mapping."""
        with self._lock:
            self.buffer = None
            mapped, self._mmap = self._mmap, None
            self._drop()
        if mapped is not None:
            with contextlib.suppress(BufferError):  # arrays still use it: unmapped when they are gone
                mapped.close()

    def _drop(self) -> None:
        """Close the descriptor if no one uses it now or will later."""
        if self.buffer is None and not self._users:
            self.__del__()

    def __del__(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            os.close(fd)
