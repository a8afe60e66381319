"""A remote file as a sparse local file of the same size, which knows the ranges that it holds and fetches others."""

import os
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from ..mirrored import Backing, Spans
from ..storage.disk import naming
from ..storage.transfer import write_at
from .http import MAX_REQUESTS
from .origin import RemoteFile
from .ranges import MAX_GAP_NBYTES, Range, Ranges, merged, pieces


class SparseFile:
    """The bytes of a remote file that have been needed so far.

    Threads may share it. No byte is fetched twice: what another thread is fetching is waited for.

    Args:
        remote: the file.
        fd: of a local file for the bytes, which belongs to this object from now on; None for a new one without a name.
        held: ranges that `fd` holds already.
        kept: called with each range once it is in the file.

    Raises:
        OSError: no space for the bytes that came first.
    """

    def __init__(
        self,
        remote: RemoteFile,
        fd: int | None = None,
        held: Ranges | None = None,
        kept: Callable[[int, int], None] = lambda begin, end: None,
    ) -> None:
        self.remote = remote
        self.nbytes = remote.version.nbytes
        self._fd = unnamed_file() if fd is None else fd
        self._held = Ranges() if held is None else held
        self._busy = Ranges()
        self._changed = threading.Condition()
        self._kept = kept
        with naming(remote.name, self._fd):
            if os.fstat(self._fd).st_size != self.nbytes:
                os.ftruncate(self._fd, self.nbytes)
            if remote.head:
                for begin, end in self._held.missing(0, len(remote.head)):
                    self._put(begin, remote.head[begin:end])
                    self._held.add(begin, end)
        remote.head = b""

    @property
    def backing(self) -> Backing:
        """What represents the file for `storage`."""
        return Backing(self.remote.name, self.nbytes, self.fetch, self._fd)

    def fetch(self, spans: Spans) -> None:
        """Return once ranges are in the local file.

        Args:
            spans: (offset, nbytes) inside the file.

        Raises:
            OSError, FormatError: as RemoteFile.read; what arrived until then is kept.
        """
        wanted = merged((offset, offset + nbytes) for offset, nbytes in spans)
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
        todo = pieces(ranges, MAX_REQUESTS)
        try:
            if len(todo) == 1:
                self._get(*todo[0])
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

    def _get(self, begin: int, end: int) -> None:
        data = self.remote.read(begin, end - begin)
        if len(data) != end - begin:
            message = f"bytes {begin} to {end - 1}: expected {end - begin} bytes, got {len(data)}"
            raise OSError(None, message, self.remote.name)
        with naming(self.remote.name, self._fd):
            self._put(begin, data)
        with self._changed:
            self._held.add(begin, end)
            self._changed.notify_all()

    def _put(self, begin: int, data: bytes | bytearray) -> None:
        write_at(self._fd, [data], begin)
        self._kept(begin, begin + len(data))

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)


def unnamed_file() -> int:
    """Return the descriptor, which the caller owns, of a new file without a name."""
    with tempfile.TemporaryFile(prefix="milblob-", buffering=0) as file:
        return os.dup(file.fileno())
