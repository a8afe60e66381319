"""A private local directory that represents a remote one: with a file for each remote file that was asked for.

Models are opened by local paths. `open_mirror` returns one that represents a source; what is looked up below it is
asked for where it really is, and what is read of it is fetched.
"""

import contextlib
import errno
import functools
import os
import re
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ..arguments import as_source
from ..mirrored import FILES, PREFIX, ROOTS, Backing, Root, enter, is_remote, is_url
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import MappedFile
from ..storage.temporary import remove_tree
from .cache import CacheLike
from .cache_directory import CacheDirectory
from .directories import open_directory
from .origin import RemoteDirectory, as_options
from .sparse import SparseFile

_PACKAGE, _COMPILED = ".mlpackage", ".mlmodelc"
_MODEL_NUMBER = re.compile(r"model\d{1,6}\Z")
COMPILED_NAMES = ("model.mil", "model.espresso.net", "coremldata.bin", "metadata.json")
_TRIED = {_PACKAGE: ("Manifest.json",), _COMPILED: COMPILED_NAMES}
"""Names in a model's directory that are requested although no file refers to them; other such names are not."""


class Mirror:
    """The local stand-in of a remote directory.

    Args:
        origin: the directory; closed by `close`.
        name: of the file or directory in it that was asked for.
        make: returns what represents a remote file; by default a new SparseFile.
        whole_name: what messages call the file or directory; by default its name in the directory.
        cache: that is to be kept in bounds when it is closed.

    Raises:
        OSError: no directory for temporary files was found.
    """

    def __init__(
        self,
        origin: RemoteDirectory,
        name: str,
        make: Any = SparseFile,
        whole_name: str = "",
        cache: CacheDirectory | None = None,
    ) -> None:
        self._origin, self._make, self._start, self._cache = origin, make, name, cache
        self._lock = threading.RLock()
        self._made: dict[str, tuple[int, int]] = {}
        self._folders: set[str] = set()
        self._missing: set[str] = set()
        self._was_listed = self._is_closed = False
        self.root = os.path.realpath(tempfile.mkdtemp(prefix=PREFIX))
        self.path = os.path.join(self.root, name)  # local path that represents that file or directory
        self.name = whole_name or f"{origin.name}/{name}"  # what messages call it
        try:
            if not origin.can_list and name.endswith((_PACKAGE, _COMPILED)):
                os.mkdir(self.path)
                self._folders.add(name)
            enter(self.root, Root(origin.name, self._provide, origin.can_list))
        except BaseException:
            self.close()
            raise

    def _list(self) -> None:
        """Make a file for each one that the directory lists."""
        files = self._origin.files(self._start)
        for relative, file in files.items():
            if relative not in self._made:  # of an attempt before, which failed
                self._add(relative, self._make(file).backing)
        self._is_closed = list(files) != [self._start]  # else a file, which may name others
        if not files:
            os.mkdir(self.path)

    def _provide(self, relative: str, is_named: bool) -> bool:
        """See mirrored.Root."""
        parts = relative.split("/")
        if self._is_closed or any(part in ("", ".", "..") or "\0" in part for part in parts):
            return False
        with self._lock:
            if self._is_closed:  # while this thread waited
                return False
            if self._origin.can_list and not self._was_listed:
                self._list()
                self._was_listed = True
            if relative in self._made or relative in self._folders:
                return True
            if self._is_closed or relative in self._missing or not (is_named or self._is_tried(parts)):
                return False
            found = self._ask(relative) or self._is_directory(relative)
            if not found:
                self._missing.add(relative)
            if not found and relative == self._start:
                message = f"{os.strerror(errno.ENOENT)}, nor {self._start}/Manifest.json or {self._start}/model.mil"
                raise FileNotFoundError(errno.ENOENT, message, self.name)
            return found

    def _is_tried(self, parts: list[str]) -> bool:
        """Whether to ask for a name that no model names."""
        if parts == [self._start]:
            return True
        names = _TRIED.get(os.path.splitext(self._start)[1])
        if parts[0] != self._start or names is None:
            return names is None and parts[0] == self._start and parts[-1] in ("Manifest.json", *_TRIED[_COMPILED])
        inside = parts[1:]
        while inside and _MODEL_NUMBER.match(inside[0]):
            inside = inside[1:]
        return not inside or (len(inside) == 1 and inside[0] in names)

    def _ask(self, relative: str) -> bool:
        file = self._origin.file(relative)
        if file is None:
            return False
        self._add(relative, self._make(file).backing)
        return True

    def _is_directory(self, relative: str) -> bool:
        """Whether a name is that of a model's directory: a server that lists nothing has a file in it."""
        last = relative.rpartition("/")[2]
        if self._origin.can_list:
            return False
        if relative == self._start:
            tried: tuple[str, ...] = ("Manifest.json", "model.mil", "coremldata.bin")
        elif _MODEL_NUMBER.match(last):
            tried = ("model.mil", "coremldata.bin")
        else:
            return False
        return any(self._provide(f"{relative}/{name}", True) for name in tried)

    def _add(self, relative: str, backing: Backing) -> None:
        path = os.path.join(self.root, *relative.split("/"))
        folder = relative.rpartition("/")[0]
        if folder not in self._folders:
            os.makedirs(os.path.dirname(path), exist_ok=True)
        while folder and folder not in self._folders:
            self._folders.add(folder)
            folder = folder.rpartition("/")[0]
        unfinished = os.path.join(self.root, f"{PREFIX}{os.urandom(8).hex()}")
        fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            status = os.fstat(fd)
        finally:
            os.close(fd)
        identity = status.st_dev, status.st_ino
        self._made[relative] = identity
        FILES[identity] = backing
        os.rename(unfinished, path)  # last: another thread that finds the name must find the backing

    def close(self) -> None:
        """Remove the directory. Mapped files remain readable, and are fetched as before."""
        ROOTS.pop(self.root, None)
        with self._lock:
            for identity in self._made.values():
                FILES.pop(identity, None)
            self._made.clear()
            self._is_closed = True
        remove_tree(self.root)
        self._origin.close()
        if self._cache is not None:
            self._cache.trim()


def open_mirror(
    source: Any, options: dict[str, Any] | None = None, max_nbytes: int | None = None, cache: CacheLike = None
) -> Mirror | None:
    """Return the mirror of a remote source; None for a local file or directory.

    Makes no request yet.

    Args:
        source: a URL, or the path of a zip archive; see `mirrored.is_remote`.
        options: for the file system, as fsspec takes them.
        max_nbytes: see `Budget`: of what is decoded of a zip archive.
        cache: keeps what is fetched of a URL.

    Raises:
        ValueError: a URL that cannot be one; an option that its file system does not have; options or a cache without a
            URL.
        OSError, PermissionError: the cache cannot be used.
        TypeError: options that are no mapping.
        ImportError: fsspec, or what it needs for this URL, is not installed.
    """
    text = as_source(source)
    if not is_url(text):
        if as_options(options):
            raise ValueError(f"storage options: expected a URL, which they are for, got the path {text}")
        if cache is not None:
            raise ValueError(f"cache: expected a URL, which it is for, got the path {text}")
        if not paths.is_file(text):
            return None
        return _zip(lambda: MappedFile(text), text, max_nbytes, lambda: None)
    kept = None if cache is None else CacheDirectory(cache)
    mirror = Mirror(*open_directory(text, options), functools.partial(SparseFile, cache=kept), cache=kept)
    if mirror.path[-4:].lower() != ".zip":
        return mirror
    return _zip(lambda: MappedFile(Location(mirror.path)), mirror.name, max_nbytes, mirror.close)


def _zip(archive: Callable[[], MappedFile], name: str, max_nbytes: int | None, close: Callable[[], None]) -> Mirror:
    from .zips import ZipDirectory

    directory = ZipDirectory(archive, name, max_nbytes, close)
    return Mirror(directory, os.path.basename(name), lambda member: member, name)


@contextlib.contextmanager
def local(
    source: Any, options: dict[str, Any] | None = None, max_nbytes: int | None = None, cache: CacheLike = None
) -> Iterator[Any]:
    """Yield the local path that represents a source until the block ends; the source itself, where it is local."""
    is_asked = is_remote(source) or options or cache is not None
    mirror = open_mirror(source, options, max_nbytes, cache) if is_asked else None
    if mirror is None:
        yield source
        return
    try:
        yield mirror.path
    finally:
        mirror.close()
