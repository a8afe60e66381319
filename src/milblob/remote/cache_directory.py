"""A directory that keeps what was fetched of remote files, between runs and for several processes at once.

An entry is one version of one file: KEY.data, a sparse file of its size, and KEY.ranges, a line for each range that was
written to it, with the BLAKE2b digest of its bytes. A range is used only if its bytes have that digest. So it does not
matter in which order a crash leaves the two files, nor that entries are removed while other processes use them: at
worst, bytes are fetched again. Processes that write to one entry write the same bytes to the same places.

KEY is a keyed hash of the URL and the version. What may hold a credential (query, headers, options) is a part of it, by
a slow hash with a random key of the directory; it is in no name and no file.
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import stat
import threading
from bisect import bisect_left, bisect_right
from typing import Any

from ..arguments import as_path
from ..storage.disk import naming, nbytes_on_disk
from ..storage.locks import NO_LINKS, take
from ..storage.transfer import write_at
from .cache import Cache
from .origin import RemoteFile
from .ranges import Range, merged

_NAME = re.compile(r"([0-9a-f]{40})\.(data|ranges)\Z")
_LINE = re.compile(rb"([0-9a-f]{1,16}) ([0-9a-f]{1,16}) ([0-9a-f]{32}) ([0-9a-f]{8})")
_FLAGS = os.O_RDWR | os.O_CREAT | NO_LINKS | getattr(os, "O_BINARY", 0)
_KEY, _LOCK = "key", "lock"
_KEY_NBYTES, _KEY_ROUNDS = 32, 100_000  # of PBKDF2: about 50 ms
_SHARE = 16  # of the size, after which the directory is looked at again


class CacheDirectory:
    """An open cache.

    `settings`: which directory, and its size; or its path.
    Raises: OSError: the directory cannot be made or used. PermissionError: others may write to it. TypeError: neither a
    Cache nor a path. ValueError: a path with a NUL; a URL.
    """

    def __init__(self, settings: Cache | str | os.PathLike[str]) -> None:
        if not isinstance(settings, Cache):
            if not isinstance(settings, str | os.PathLike):
                kind = type(settings).__name__
                raise TypeError(f"cache: expected a directory's path or a milblob.Cache, got {kind}")
            settings = Cache(settings)
        self.path = os.path.abspath(as_path(settings.path))
        self.max_nbytes = settings.max_nbytes
        os.makedirs(self.path, mode=0o700, exist_ok=True)
        _require_own(self.path)
        self._lock = threading.Lock()
        self._slow: dict[str, str] = {}
        self._fresh = 0  # bytes that this process wrote since the directory was looked at

    def entry(self, remote: RemoteFile) -> "CacheEntry | None":
        """Return the entry of the current version of a file, which the caller closes; None for one that is not kept.

        Raises: OSError: the server cannot be asked, or the entry cannot be opened.
        """
        version = remote.current()
        if not version.is_lasting:
            return None
        public, secret = remote.address
        text = json.dumps([1, public, self._digest(secret), *version])
        name = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        return CacheEntry(self, os.path.join(self.path, name), version.nbytes)

    def _digest(self, secret: str) -> str:
        with self._lock:
            if secret not in self._slow:
                data = secret.encode("utf-8", "surrogatepass")
                self._slow[secret] = hashlib.pbkdf2_hmac("sha256", data, self._key(), _KEY_ROUNDS).hex()
            return self._slow[secret]

    def _key(self) -> bytes:
        """Return the random key of the directory; the first process makes it."""
        path = os.path.join(self.path, _KEY)
        for _ in range(2):
            with contextlib.suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | NO_LINKS | getattr(os, "O_BINARY", 0))
                try:
                    key = os.read(fd, _KEY_NBYTES) if stat.S_ISREG(os.fstat(fd).st_mode) else b""
                finally:
                    os.close(fd)
                if len(key) == _KEY_NBYTES:
                    return key
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)  # a crash left a part of it
            unfinished = f"{path}.{os.urandom(8).hex()}"
            fd = os.open(unfinished, _FLAGS | os.O_EXCL, 0o600)
            try:
                try:
                    with naming(path, fd, _KEY_NBYTES):
                        write_at(fd, [os.urandom(_KEY_NBYTES)], 0)
                        os.fsync(fd)
                finally:
                    os.close(fd)
                with contextlib.suppress(FileExistsError):
                    os.link(unfinished, path)
            finally:
                os.unlink(unfinished)
        raise OSError(errno.EIO, "cache: expected the key of this directory, got none", path)

    def wrote(self, nbytes: int) -> None:
        """Count bytes that were written, and make room after some."""
        with self._lock:
            self._fresh += nbytes
            is_due = self._fresh * _SHARE >= self.max_nbytes
            self._fresh = 0 if is_due else self._fresh
        if is_due:
            self.trim()

    def trim(self) -> None:
        """Remove the entries that were not used for the longest time, until the rest takes at most `max_nbytes`.

        Files that others have open remain theirs until they close them. Does nothing while another process does it.
        """
        with contextlib.suppress(OSError):  # the next one makes room
            fd = os.open(os.path.join(self.path, _LOCK), _FLAGS, 0o600)
            try:
                take(fd)
                self._trim()
            finally:
                os.close(fd)

    def _trim(self) -> None:
        used: dict[str, list[Any]] = {}  # key -> [time of the last use, bytes, paths]
        for found in os.scandir(self.path):
            match = _NAME.match(found.name)
            if match is None:
                continue
            try:
                status = found.stat(follow_symlinks=False)
            except OSError:  # gone
                continue
            row = used.setdefault(match[1], [0.0, 0, []])
            row[0], row[1] = max(row[0], status.st_mtime), row[1] + nbytes_on_disk(status)
            row[2].append(found.path)
        total = sum(nbytes for _, nbytes, _ in used.values())
        for _, nbytes, paths in sorted(used.values(), key=lambda row: row[0]):
            if total <= self.max_nbytes:
                return
            total -= nbytes
            for path in paths:
                with contextlib.suppress(OSError):  # Windows removes no file that is open
                    os.unlink(path)


class CacheEntry:
    """One version of one file in a cache."""

    def __init__(self, cache: CacheDirectory, path: str, nbytes: int) -> None:
        self._cache, self._path = cache, path
        self._log = self.fd = -1  # fd: of the sparse file, which belongs to this object
        self._begins: list[int] = []
        self._rows: list[tuple[int, int, bytes]] = []  # (begin, end, digest), by begin; no row is inside another
        self.fd = _opened(f"{path}.data", _FLAGS, nbytes)
        if os.fstat(self.fd).st_size != nbytes:
            with naming(f"{path}.data", self.fd, nbytes):
                os.ftruncate(self.fd, nbytes)
        self._log = _opened(f"{path}.ranges", _FLAGS | os.O_APPEND)
        with contextlib.suppress(OSError):  # another process has removed it
            os.utime(f"{path}.ranges")  # its last use
        self._read_log(nbytes)

    def _read_log(self, nbytes: int) -> None:
        data = b""
        while some := os.read(self._log, 1 << 20):
            data += some
        found = []
        for line in data.split(b"\n"):
            match = _LINE.fullmatch(line)
            if match is not None and match[4] == _check_of(line[:-9]):
                begin, end = int(match[1], 16), int(match[2], 16)
                if begin < end <= nbytes:
                    found.append((begin, end, bytes.fromhex(match[3].decode())))
        last = 0
        for row in sorted(found, key=lambda row: (row[0], -row[1])):
            if row[1] > last:
                self._rows.append(row)
                last = row[1]
        self._begins = [row[0] for row in self._rows]

    def sound(self, begin: int, end: int) -> list[Range]:
        """Return the ranges of the sparse file that overlap with a range and hold what was fetched.

        Each is looked at once. For one thread at a time.
        """
        last = bisect_left(self._begins, end)
        first = bisect_right(self._rows, begin, 0, last, key=lambda row: row[1])  # ends ascend as begins do
        rows = self._rows[first:last]
        del self._rows[first:last], self._begins[first:last]
        return merged((b, e) for b, e, digest in rows if self._digest(b, e) == digest)

    def _digest(self, begin: int, end: int) -> bytes:
        hasher = hashlib.blake2b(digest_size=16)
        while begin < end:
            data = self.read(begin, min(end - begin, 1 << 20))
            if not data:
                return b""
            hasher.update(data)
            begin += len(data)
        return hasher.digest()

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the sparse file; fewer at its end."""
        if hasattr(os, "pread"):
            return os.pread(self.fd, nbytes, offset)
        os.lseek(self.fd, offset, os.SEEK_SET)
        return os.read(self.fd, nbytes)

    def note(self, begin: int, data: bytes | bytearray) -> None:
        """Record that bytes are in the sparse file."""
        digest = hashlib.blake2b(data, digest_size=16).hexdigest()
        line = f"{begin:x} {begin + len(data):x} {digest}".encode()
        # A line that a crash cut off must not become a part of this one.
        with naming(f"{self._path}.ranges", self._log):
            os.write(self._log, b"\n%b %b\n" % (line, _check_of(line)))
        self._cache.wrote(len(data))

    def remove(self) -> None:
        """Remove it from the cache; this object can be used as before."""
        for suffix in ("data", "ranges"):
            with contextlib.suppress(OSError):
                os.unlink(f"{self._path}.{suffix}")

    def __del__(self) -> None:
        for name in ("fd", "_log"):
            fd = getattr(self, name, -1)
            setattr(self, name, -1)
            if fd >= 0:
                os.close(fd)


def _opened(path: str, flags: int, nbytes: int | None = None) -> int:
    """Return the descriptor of a file of an entry, a new one in place of what milblob did not write.

    `nbytes`: what it has, unless it is empty; None: any size.
    """
    for _ in range(2):
        fd = os.open(path, flags, 0o600)
        try:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and (nbytes is None or status.st_size in (0, nbytes)):
                return fd
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)  # others may have it mapped, so its size must not change
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
    kind = "file" if nbytes is None else f"file of {nbytes} bytes"
    raise OSError(errno.EIO, f"cache: expected a {kind}, got another each time", path)


def _check_of(line: bytes) -> bytes:
    return hashlib.blake2b(line, digest_size=4).hexdigest().encode()


def _require_own(path: str) -> None:
    """Refuse a directory that others may write to: they could exchange the bytes of a model."""
    if not hasattr(os, "geteuid"):
        return
    status = os.stat(path)
    if status.st_mode & stat.S_IWOTH or status.st_uid not in (0, os.geteuid()):
        owner = "its own" if status.st_uid == os.geteuid() else f"user {status.st_uid}'s"
        message = f"cache: expected a directory of this user that others cannot write to, got {owner} with mode"
        raise PermissionError(errno.EACCES, f"{message} {stat.S_IMODE(status.st_mode):04o}", path)
