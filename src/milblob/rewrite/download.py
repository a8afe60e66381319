"""milblob.download: whole files of a remote model to a local directory; resumed where it ended before."""

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from .. import _codec
from ..analysis.hash import content_hash
from ..arguments import as_path, require_calls, require_flags
from ..errors import DestinationExistsError, MilblobError
from ..mirrored import is_url
from ..model.manifest import NAME, find_root_model
from ..model.package import Package, resolve
from ..program.scan import ProgramScan
from ..progress import Progress
from ..remote.http import HttpFile, HttpOrigin
from ..remote.mirror import COMPILED_NAMES
from ..remote.origin import Version, as_options
from ..remote.urls import shown, split
from ..results import Result
from ..storage import paths
from ..storage.beneath import Location
from ..storage.locks import lock
from ..storage.renaming import place
from ..storage.temporary import remove_tree
from ..storage.transfer import write_at

_STATE = ".state.json"
_PIECE_NBYTES = 1 << 23
_MAX_MODELS = 1000


@dataclass(frozen=True, repr=False)
class Download(Result):
    """What `milblob.download` did.

    Attributes:
        path: of the local model. source: where it is from, without credentials.
        files, nbytes: how many, and their bytes.
        fetched_nbytes: of them, those that this call fetched.
        hash: `content_hash` of the local model, if it is a model or a file of arrays; else "".

    Examples:
        >>> found = milblob.download(f"{url}/demo.mlpackage", "models")
        >>> found.path, found.files, found.nbytes == found.fetched_nbytes
        ('models/demo.mlpackage', 3, True)
    """

    path: str
    source: str
    files: int
    nbytes: int
    fetched_nbytes: int
    hash: str


def download(
    source: str,
    destination: str | os.PathLike[str],
    *,
    force: bool = False,
    progress: Progress | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Download:
    """Fetch the whole files of a remote model, one after the other, also from a server without ranges.

    What an interrupted call has fetched is in a directory beside the result, whose name begins with ".milblob-", and is
    used by the next call unless the remote file has changed.

    Args:
        source: URL of a package, a compiled model or a file.
        destination: a directory, which is made if there is none; the model gets its name in the URL there.
        force: replace what has this name.
        progress: called as bytes arrive, for each file (see `Progress`).
        storage_options: as for `open`.

    Returns:
        Download.

    Raises:
        ValueError: no URL. FileExistsError: without `force`, something has the name. OSError: it cannot be fetched.
        FormatError, ResolveError: not a sound model. BlockingIOError: another call fetches it to the same place.

    Examples:
        >>> found = milblob.download(f"{url}/demo.mlpackage", "models")
        >>> len(milblob.load(found.path))
        69
    """
    require_flags(force=force)
    require_calls(progress=progress)
    if not isinstance(source, str) or not is_url(source):
        raise ValueError(f"source: expected a URL, got {source!r:.200}")
    folder = as_path(destination)
    fetcher: _Fetcher = _Http(source, storage_options) if _is_http(source) else _FileSystem(source, storage_options)
    target = os.path.join(folder, fetcher.name)
    if paths.is_there(target) and not force:
        raise DestinationExistsError(target)
    os.makedirs(folder, exist_ok=True)
    staging = os.path.join(folder, f".milblob-{fetcher.name}.download")
    os.makedirs(staging, exist_ok=True)
    with _locked(staging):
        made = os.path.join(staging, fetcher.name)
        work = _Work(made, staging, progress)
        fetcher.fetch_all(work)
        work.remove_others()
        digest = ""
        with contextlib.suppress(MilblobError, NotImplementedError):  # a part of a model, or something else
            digest = content_hash(made).model
        work.forget()  # what `place` leaves in the staging directory is the replaced model
        place(made, target, force=force)
        remove_tree(staging)
    return Download(target, shown(source), work.files, work.nbytes, work.fetched, digest)


def _is_http(source: str) -> bool:
    return source.partition("://")[0].lower() in ("http", "https") and "::" not in source


@contextlib.contextmanager
def _locked(staging: str) -> Iterator[None]:
    name = os.path.join(staging, ".lock")
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock(fd, name)
        yield
    finally:
        os.close(fd)


Save = Callable[[int, int, Version | None, Callable[[int, int], None]], Version]


class _Work:
    """The local files of a download, and what of them is there.

    The state names the version that each file is of. What has none is never a part of the result.
    """

    def __init__(self, made: str, staging: str, progress: Progress | None) -> None:
        self.staging = staging
        self._made, self._wanted = made, set[str]()
        self.files = self.nbytes = self.fetched = 0
        self._progress = progress
        self._state_path = os.path.join(staging, _STATE)
        self._state: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError), open(self._state_path, encoding="utf-8") as file:  # noqa: PTH123
            found = json.load(file)
            self._state = found if isinstance(found, dict) else {}
        if not self._state:
            remove_tree(made)  # of nothing else than a directory
            self._unlink(made)

    @staticmethod
    def _unlink(path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)

    def forget(self) -> None:
        """Forget the versions, before the local files become others."""
        self._unlink(self._state_path)

    def remove_others(self) -> None:
        """Remove files that an interrupted call has fetched, and that the model no longer has."""
        for folder, _, names in os.walk(self._made, topdown=False):
            for path in (os.path.join(folder, name) for name in names):
                if path not in self._wanted:
                    os.unlink(path)
            with contextlib.suppress(OSError):  # it is not empty
                os.rmdir(folder)

    def fetch(self, relative: str, save: Save) -> None:
        """Fetch one file, from where it ended before."""
        path = os.path.join(self.staging, *relative.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            begin, version = os.fstat(fd).st_size, self._known(relative)
            if version is None or begin > version.nbytes:
                os.ftruncate(fd, 0)  # of an unknown version: its end must not become the end of another
                begin, version = 0, None
            self._wanted.add(path)
            before = begin

            def count(done: int, total: int) -> None:
                if self._progress is not None:
                    self._progress(relative, done, total)

            version = self._save(relative, save, fd, begin, version, count)
            os.fsync(fd)
            self.files, self.nbytes = self.files + 1, self.nbytes + version.nbytes
            self.fetched += max(0, version.nbytes - before)
        finally:
            os.close(fd)

    def _save(
        self, relative: str, save: Save, fd: int, begin: int, version: Version | None, count: Callable[[int, int], None]
    ) -> Version:
        def noted(done: int, total: int) -> None:
            count(done, total)

        try:
            found = save(fd, begin, version, noted)
        except MilblobError as error:
            if version is None or error.code != "changed-file":
                raise
            os.ftruncate(fd, 0)  # another version than before: from the beginning
            found = save(fd, 0, None, noted)
        self.note(relative, found)
        return found

    def _known(self, relative: str) -> Version | None:
        row = self._state.get(relative)
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], int):
            return None
        return Version(row[0], str(row[1]), str(row[2]))

    def note(self, relative: str, version: Version) -> None:
        """Remember the version that a local file is of."""
        if self._state.get(relative) != list(version):
            self._state[relative] = list(version)
            text = json.dumps(self._state).encode()
            unfinished = f"{self._state_path}.new"
            fd = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                write_at(fd, [text], 0)
            finally:
                os.close(fd)
            os.replace(unfinished, self._state_path)


class _Fetcher:
    """Knows the files of a remote model.

    Attributes:
        name: of the model.
    """

    name: str

    def fetch_all(self, work: _Work) -> None:
        """Fetch every file."""
        raise NotImplementedError


class _FileSystem(_Fetcher):
    def __init__(self, source: str, options: dict[str, Any] | None) -> None:
        from ..remote.filesystem import open_origin

        self._origin, self.name = open_origin(source, as_options(options))

    def fetch_all(self, work: _Work) -> None:
        for relative, file in self._origin.files(self.name).items():

            def save(
                fd: int, begin: int, version: Version | None, progress: Callable[[int, int], None], file: Any = file
            ) -> Version:
                now: Version = file.current()
                if version is not None:
                    version.require_same(now, file.name)
                work.note(relative, now)  # noqa: B023 - called before the next one
                for offset in range(begin, now.nbytes, _PIECE_NBYTES):
                    data = file.read(offset, min(_PIECE_NBYTES, now.nbytes - offset))
                    write_at(fd, [data], offset)
                    progress(offset + len(data), now.nbytes)
                os.ftruncate(fd, now.nbytes)
                return now

            work.fetch(relative, save)


class _Http(_Fetcher):
    def __init__(self, source: str, options: dict[str, Any] | None) -> None:
        url = split(source)
        self._origin, self.name = HttpOrigin(url, as_options(options)), url.name

    def fetch_all(self, work: _Work) -> None:
        try:
            self._fetch_all(work, os.path.join(work.staging, self.name))
        finally:
            self._origin.close()

    def _fetch_all(self, work: _Work, root: str) -> None:
        if self.name.endswith(".mlmodelc"):
            self._fetch_compiled(work, self.name)
        elif not self.name.endswith(".mlpackage"):
            self._fetch(work, self.name)
            return
        else:
            self._fetch(work, f"{self.name}/{NAME}")
            model = os.path.relpath(find_root_model(Location(root)).path, work.staging)
            self._fetch(work, model.replace(os.sep, "/"))
        package = Package(root)
        with contextlib.closing(package):
            wanted: dict[str, None] = {}
            for source in package.sources:
                scan = ProgramScan(source.program[0], source.program[1:], source.prefix, is_text=source.is_text)
                for constant in scan.constants:
                    if constant.storage == _codec.BLOB:
                        place = resolve(source.directory, constant.text).path
                        wanted[os.path.relpath(place, work.staging).replace(os.sep, "/")] = None
        for relative in wanted:
            self._fetch(work, relative)

    def _fetch_compiled(self, work: _Work, relative: str) -> None:
        found = [name for name in COMPILED_NAMES if self._fetch(work, f"{relative}/{name}", is_needed=False)]
        if "model.mil" in found:
            return
        for number in range(_MAX_MODELS):
            before = work.files
            self._fetch_compiled(work, f"{relative}/model{number}") if relative.count("/model") < 16 else None
            if work.files == before:
                break

    def _fetch(self, work: _Work, relative: str, is_needed: bool = True) -> bool:
        file: HttpFile = self._origin.named(relative)

        def save(fd: int, begin: int, version: Version | None, progress: Callable[[int, int], None]) -> Version:
            def noted(done: int, total: int) -> None:
                work.note(relative, file.version)
                progress(done, total)

            return file.save(fd, begin, version, noted)

        try:
            work.fetch(relative, save)
        except FileNotFoundError:
            if is_needed:
                raise
            path = os.path.join(work.staging, *relative.split("/"))
            with contextlib.suppress(OSError):
                os.unlink(path)
                os.rmdir(os.path.dirname(path))
            return False
        return True


__all__ = ["Download", "download"]
