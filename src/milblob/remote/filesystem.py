"""Files of any file system that fsspec knows, read by ranges."""

import errno
import os
import threading
from typing import Any

from ..extras import require
from .origin import Version, require_names
from .urls import shown

_ETAGS = ("ETag", "etag", "md5Hash", "content_hash", "blob_id", "sha")
_TIMES = ("LastModified", "last_modified", "mtime", "updated", "created")


class FileSystemOrigin:
    """A directory of a file system of fsspec; see RemoteDirectory."""

    def __init__(self, system: Any, directory: str, name: str) -> None:
        self._system, self._directory, self.name = system, directory, name

    can_list = True

    def file(self, relative: str) -> "FileSystemFile | None":
        """See RemoteDirectory."""
        path, label = self._path(relative), f"{self.name}/{relative}"
        try:
            with _named(label):
                info = self._system.info(path)
        except FileNotFoundError:
            return None
        return None if info["type"] == "directory" else FileSystemFile(self._system, path, info, label)

    def _path(self, relative: str) -> str:
        return f"{self._directory}/{relative}" if self._directory else relative

    def files(self, relative: str) -> "dict[str, FileSystemFile]":
        """See RemoteDirectory."""
        path, label = self._path(relative), f"{self.name}/{relative}"
        with _named(label):
            info = self._system.info(path)
            if info["type"] != "directory":
                return {relative: FileSystemFile(self._system, info["name"], info, label)}
            found = self._system.find(path, detail=True)
        start = len(info["name"].rstrip("/")) + 1
        inside = {row["name"][start:]: row for row in found.values()}
        require_names(list(inside), label)
        return {
            f"{relative}/{name}": FileSystemFile(self._system, row["name"], row, f"{label}/{name}")
            for name, row in inside.items()
        }

    def close(self) -> None:
        """See RemoteDirectory."""


class FileSystemFile:
    """A file of a file system of fsspec; see RemoteFile.

    fsspec does not report the version of a range. So the version of the file is requested before the first range and
    after each: the bytes are of one version, unless the file changed and changed back. A listing may have fewer fields
    than the file itself, so only the size is taken from it.
    """

    def __init__(self, system: Any, path: str, info: dict[str, Any], name: str) -> None:
        self._system, self._path, self.name = system, path, name
        self.version = _version(info, name)
        self.head = b""
        self._first: Version | None = None
        self._lock = threading.Lock()

    def read(self, offset: int, nbytes: int) -> bytes:
        """See RemoteFile."""
        with self._lock, _named(self.name):
            if self._first is None:
                self._first = self._now()
        with _named(self.name, f"bytes {offset} to {offset + nbytes - 1}: "):
            data = bytes(self._system.cat_file(self._path, start=offset, end=offset + nbytes))
            now = self._now()
        Version(self.version.nbytes, self._first.etag, self._first.changed).require_same(now, self.name)
        return data

    def current(self) -> Version:
        """Return the version that it is of now.

        Raises:
            OSError: it cannot be asked.
        """
        with _named(self.name):
            return self._now()

    def _now(self) -> Version:
        self._system.invalidate_cache(self._path)  # or `info` answers what it knows
        return _version(self._system.info(self._path), self.name)


def _version(info: dict[str, Any], name: str) -> Version:
    nbytes = info.get("size")
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise OSError(errno.EIO, f"size: expected the number of its bytes, got {nbytes!r:.100}", name)
    etag, changed = (next((str(info[k]) for k in keys if info.get(k) is not None), "") for keys in (_ETAGS, _TIMES))
    return Version(nbytes, etag, changed)


class _named:  # noqa: N801
    """Turns any error of a file system into an OSError that names the file, without what a URL in it may hold."""

    def __init__(self, name: str, message: str = "") -> None:
        self._name, self._words = name, message

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None or not isinstance(error, Exception) or isinstance(error, MemoryError):
            return
        if isinstance(error, FileNotFoundError):
            raise FileNotFoundError(errno.ENOENT, f"{self._words}{os.strerror(errno.ENOENT)}", self._name) from None
        if isinstance(error, PermissionError):
            raise PermissionError(errno.EACCES, f"{self._words}{os.strerror(errno.EACCES)}", self._name) from None
        what = error.strerror if isinstance(error, OSError) and error.strerror else type(error).__name__
        status = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
        got = f"{what} ({status})" if isinstance(status, int) else what
        raise OSError(errno.EIO, f"{self._words}expected its bytes, got {got}", self._name) from None


def open_origin(url: str, options: dict[str, Any]) -> tuple[FileSystemOrigin, str]:
    """Return the directory of a URL, and the name in it.

    Raises:
        ImportError: fsspec, or the package for this URL, is not installed. ValueError: a scheme that it does not know.
        OSError: the file system cannot be opened.
    """
    fsspec = require("fsspec")
    text = shown(url)
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
    path = path.rstrip("/")
    directory, _, name = path.rpartition("/")
    whole = text.rstrip("/")
    if not name:
        raise ValueError(f"URL: expected one whose path ends with a name, got {text!r:.200}")
    return FileSystemOrigin(system, directory, whole[: -len(name) - 1] if whole.endswith(name) else whole), name
