"""A remote file as a sparse local file of the same size, which knows the ranges that it holds and fetches others."""

import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from ..mirrored import Backing, Spans
from ..storage.disk import naming
from ..storage.transfer import write_at
from .cache_directory import CacheDirectory, CacheEntry
from .http import MAX_REQUESTS
from .origin import RemoteFile
from .ranges import MAX_GAP_NBYTES, Range, Ranges, merged, pieces


class SparseFile:
    """The bytes of a remote file that have been needed so far.

    Threads may share it. No byte is fetched twice: what another thread is fetching is waited for. The local file is
    made when it is first needed: a directory may have more files than a process can have open.

    `cache`: where its bytes are kept; None: in a file without a name.
    """

    def __init__(self, remote: RemoteFile, cache: CacheDirectory | None = None) -> None:
        self.remote = remote
        self.nbytes = remote.version.nbytes
        self._cache = cache
        self._fd = -1
        self._entry: CacheEntry | None = None
        self._held = Ranges()
        self._busy = Ranges()
        self._changed = threading.Condition()  # its lock is one that a thread may take again
        self._looking = threading.Lock()

    @property
    def backing(self) -> Backing:
        """What represents the file for `storage`."""
        return Backing(self.remote.name, self.nbytes, self.fetch, self.file)

    def file(self) -> int:
        """Return the descriptor of the local file, which belongs to this object; made by the first call.

        Raises: OSError: no space for the bytes that came first, no descriptor left; the cache cannot be used.
        """
        with self._changed:
            if self._fd < 0:
                self._open()
            return self._fd

    def _open(self) -> None:
        head = self.remote.head
        entry, held = self._kept(head)
        fd = unnamed_file() if entry is None else entry.fd
        try:
            with naming(self.remote.name, fd):
                if entry is None:
                    os.ftruncate(fd, self.nbytes)
                for begin, end in held.missing(0, len(head)):
                    _put(fd, entry, begin, head[begin:end])
                    held.add(begin, end)
        except BaseException:
            if entry is None:
                os.close(fd)
            raise
        self._fd, self._entry, self._held = fd, entry, held
        self.remote.head = b""

    def _kept(self, head: bytes) -> tuple[CacheEntry | None, Ranges]:
        """Return the entry in the cache, and what is known to be sound of it."""
        for _ in range(0 if self._cache is None else 2):
            entry = cast("CacheDirectory", self._cache).entry(self.remote)
            if entry is None:
                break
            held = Ranges(entry.sound(0, len(head)))
            inside = [(begin, min(end, len(head))) for begin, end in held]
            if all(entry.read(begin, end - begin) == head[begin:end] for begin, end in inside):
                return entry, held
            entry.remove()  # the server has other bytes under the same version
        return None, Ranges()

    def fetch(self, spans: Spans) -> None:
        """Return once ranges are in the local file.

        `spans`: (offset, nbytes) inside the file.
        Raises: OSError, FormatError: as RemoteFile.read; what arrived until then is kept.
        """
        wanted = merged((offset, offset + nbytes) for offset, nbytes in spans)
        self.file()
        while True:
            with self._changed:
                missing = [part for begin, end in wanted for part in self._held.missing(begin, end)]
                if not missing:
                    return
                free = [part for begin, end in missing for part in self._busy.missing(begin, end)]
                if not free:
                    self._changed.wait()
                    continue
                mine = self._without_gaps(free)
                for begin, end in mine:
                    self._busy.add(begin, end)
            self._fetch(mine)

    def _without_gaps(self, missing: list[Range]) -> list[Range]:
        """Return the ranges to ask for: neighbours with what lies between them, but nothing that is here or coming."""
        found: list[Range] = []
        for begin, end in merged(missing, MAX_GAP_NBYTES):
            parts = [p for b, e in self._held.missing(begin, end) for p in self._busy.missing(b, e)]
            found += [(b, e) for b, e in parts if any(b < last and first < e for first, last in missing)]
        return found

    def _fetch(self, ranges: list[Range]) -> None:
        try:
            todo = pieces(self._not_kept(ranges), MAX_REQUESTS)
            if len(todo) < 2:
                for begin, end in todo:
                    self._get(begin, end)
                return
            with ThreadPoolExecutor(min(len(todo), MAX_REQUESTS), "milblob-remote") as executor:
                running = [executor.submit(self._get, *piece) for piece in todo]
                try:
                    for future in running:
                        future.result()
                finally:
                    for future in running:  # after the first failure: those that have not started
                        future.cancel()
        finally:
            with self._changed:
                for begin, end in ranges:
                    self._busy.remove(begin, end)
                self._changed.notify_all()

    def _not_kept(self, ranges: list[Range]) -> list[Range]:
        """Return the parts of ranges that the cache does not have."""
        if self._entry is None:
            return ranges
        with self._looking:  # one thread at a time: what the others need may be in the same range
            for begin, end in ranges:
                sound = self._entry.sound(begin, end)
                with self._changed:
                    for first, last in sound:
                        self._held.add(first, last)
                    self._changed.notify_all()
        with self._changed:
            return [part for begin, end in ranges for part in self._held.missing(begin, end)]

    def _get(self, begin: int, end: int) -> None:
        data = self.remote.read(begin, end - begin)
        if len(data) != end - begin:
            message = f"bytes {begin} to {end - 1}: expected {end - begin} bytes, got {len(data)}"
            raise OSError(None, message, self.remote.name)
        with naming(self.remote.name, self._fd):
            _put(self._fd, self._entry, begin, data)
        with self._changed:
            self._held.add(begin, end)
            self._changed.notify_all()

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0 and self._entry is None:  # an entry closes its own
            os.close(fd)


def _put(fd: int, entry: CacheEntry | None, begin: int, data: bytes | bytearray) -> None:
    write_at(fd, [data], begin)
    if entry is not None:
        entry.note(begin, data)


def unnamed_file() -> int:
    """Return the descriptor, which the caller owns, of a new file without a name."""
    with tempfile.TemporaryFile(prefix="milblob-", buffering=0) as file:
        return os.dup(file.fileno())
