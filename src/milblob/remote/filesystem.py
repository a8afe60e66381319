"""Files of any file system that fsspec knows, read by ranges."""

import contextlib
import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..extras import require
from ..mirrored import shown_url
from ..storage.transfer import write_at
from .origin import Version, require_names

_ETAGS = ("ETag", "etag", "md5Hash", "content_hash", "blob_id", "sha")
_PIECE_NBYTES = 1 << 23
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


class FileSystemOrigin:
    """A directory of a file system of fsspec; see RemoteDirectory."""

    def __init__(self, system: Any, directory: str, name: str, address: str) -> None:
        self._system, self._directory, self.name, self._address = system, directory, name, address

    can_list = True

    def file(self, relative: str) -> "FileSystemFile | None":
        """See RemoteDirectory."""
        path, label = self._path(relative), f"{self.name}/{relative}"
        try:
            with _named(label):
                info = self._system.info(path)
        except FileNotFoundError:
            return None
        return None if info["type"] == "directory" else self._file(path, info, label)

    def _file(self, path: str, info: dict[str, Any], label: str) -> "FileSystemFile":
        return FileSystemFile(self._system, path, info, label, self._address)

    def _path(self, relative: str) -> str:
        return f"{self._directory}/{relative}" if self._directory else relative

    def files(self, relative: str) -> "dict[str, FileSystemFile]":
        """See RemoteDirectory."""
        path, label = self._path(relative), f"{self.name}/{relative}"
        with _named(label):
            info = self._system.info(path)
            if info["type"] != "directory":
                return {relative: self._file(info["name"], info, label)}
            found = self._system.find(path, detail=True)
        start = len(info["name"].rstrip("/")) + 1
        inside = {row["name"][start:]: row for row in found.values()}
        require_names(list(inside), label)
        return {f"{relative}/{name}": self._file(row["name"], row, f"{label}/{name}") for name, row in inside.items()}

    def close(self) -> None:
        """See RemoteDirectory."""


class FileSystemFile:
    """A file of a file system of fsspec; see RemoteFile.

    fsspec does not report the version of a range. So the version of the file is requested before the first range and
    after each: the bytes are of one version, unless the file changed and changed back. A listing may have fewer fields
    than the file itself, so only the size is taken from it.
    """

    def __init__(self, system: Any, path: str, info: dict[str, Any], name: str, address: str) -> None:
        self._system, self._path, self.name = system, path, name
        self.address = f"{name}\n{path}", address
        self.version = _version(info, name)
        self.head = b""
        self._first: Version | None = None
        self._lock = threading.Lock()

    def read(self, offset: int, nbytes: int) -> bytes:
        """See RemoteFile."""
        first = self.current()
        with _named(self.name, f"bytes {offset} to {offset + nbytes - 1}: "):
            data = self._range(offset, offset + nbytes)
            now = self._now()
        first.require_same(now, self.name)
        return data

    def _range(self, begin: int, end: int) -> bytes:
        """Read exactly a range; fsspec's own `cat_file` reads blocks of 5 MiB ahead."""
        fsspec = require("fsspec")
        if type(self._system).cat_file is not fsspec.spec.AbstractFileSystem.cat_file:
            return bytes(self._system.cat_file(self._path, start=begin, end=end))
        with self._system.open(self._path, "rb") as file:
            if isinstance(file, fsspec.spec.AbstractBufferedFile):
                file.cache = fsspec.caching.BaseCache(file.blocksize, file.cache.fetcher, file.size)
            file.seek(begin)
            return bytes(file.read(end - begin))

    def current(self) -> Version:
        """See RemoteFile: asked for once. Raises: FormatError: its size is not that of the listing."""
        with self._lock:
            if self._first is None:
                with _named(self.name):
                    now = self._now()
                Version(self.version.nbytes, now.etag, now.changed).require_same(now, self.name)
                self._first = now
            return self._first

    def save(self, fd: int, begin: int, version: Version | None, progress: Callable[[int, int], None]) -> Version:
        """See RemoteFile."""
        self.version = now = self.current()
        if version is not None:
            version.require_same(now, self.name)
        progress(begin, now.nbytes)
        for offset in range(begin, now.nbytes, _PIECE_NBYTES):
            data = self.read(offset, min(_PIECE_NBYTES, now.nbytes - offset))
            write_at(fd, [data], offset)
            progress(offset + len(data), now.nbytes)
        os.ftruncate(fd, now.nbytes)
        return now

    def _now(self) -> Version:
        self._system.invalidate_cache(self._path)  # or `info` answers what it knows
        return _version(self._system.info(self._path), self.name)


def _version(info: dict[str, Any], name: str) -> Version:
    nbytes = info.get("size")
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise OSError(errno.EIO, f"size: expected the number of its bytes, got {nbytes!r:.100}", name)
    etag, changed = (next((str(info[k]) for k in keys if info.get(k) is not None), "") for keys in (_ETAGS, _TIMES))
    return Version(nbytes, etag, changed)


@contextlib.contextmanager
def _named(name: str, message: str = "") -> Iterator[None]:
    """Turn any error of a file system into an OSError that names the file, without what a URL in it may hold."""
    try:
        yield
    except MemoryError:
        raise
    except FileNotFoundError:
        raise FileNotFoundError(errno.ENOENT, f"{message}{os.strerror(errno.ENOENT)}", name) from None
    except PermissionError:
        raise PermissionError(errno.EACCES, f"{message}{os.strerror(errno.EACCES)}", name) from None
    except Exception as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
        got = f"{what} ({status})" if isinstance(status, int) else what
        raise OSError(errno.EIO, f"{message}expected its bytes, got {got}", name) from None


def open_origin(url: str, options: dict[str, Any]) -> tuple[FileSystemOrigin, str]:
    """Return the directory of a URL, and the name in it.

    Raises: ImportError: fsspec, or the package for this URL, is not installed. ValueError: a scheme that it does not
    know. OSError: the file system cannot be opened.
    """
    fsspec = require("fsspec")
    text = shown_url(url)
    try:
        system, path = fsspec.url_to_fs(url, **options)
    except ImportError as error:
        package = str(error).partition("\n")[0]
        raise ImportError(f"{text}: its file system needs another package ({package})") from None
    except ValueError as error:
        known = "protocol not known" in str(error).lower()
        message = f"a scheme that fsspec knows, got {url.partition(':')[0]!r}" if known else "options that it takes"
        raise ValueError(f"URL {text}: expected {message}") from None
    except TypeError:
        names = ", ".join(map(str, options)) or "none"
        raise ValueError(f"storage options of {text}: expected those of its file system, got {names}") from None
    except MemoryError:
        raise
    except Exception as error:  # such as a host that is unknown, whose error names no file, or a login that is refused
        what = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        raise OSError(errno.EIO, f"expected a file system that can be opened, got {what}", text) from None
    path = path.rstrip("/")
    directory, _, name = path.rpartition("/")
    whole = text.rstrip("/")
    if not name:
        raise ValueError(f"URL: expected one whose path ends with a name, got {text!r:.200}")
    place = whole[: -len(name) - 1] if whole.endswith(name) else whole
    address = json.dumps([url, options], sort_keys=True, default=repr)
    return FileSystemOrigin(system, directory, place, address), name
