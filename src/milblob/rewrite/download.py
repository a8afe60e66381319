"""milblob.download: whole files of a remote model to a local directory; resumed where it ended before."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from .. import _codec
from ..analysis.hash import content_hash
from ..arguments import as_path, require_flags
from ..errors import DestinationExistsError, MilblobError
from ..mirrored import is_url, shown_url
from ..model.manifest import NAME, find_root_model
from ..model.package import Package, resolve
from ..program.scan import ProgramScan
from ..progress import Progress, ProgressCounter, start_progress
from ..remote.directories import open_directory
from ..remote.http import HttpOrigin
from ..remote.mirror import COMPILED_NAMES
from ..remote.origin import RemoteDirectory, RemoteFile, Version
from ..results import Result
from ..storage import paths
from ..storage.beneath import Location
from ..storage.locks import lock
from ..storage.renaming import place
from ..storage.temporary import remove_tree
from ..storage.transfer import write_at

_STATE = ".state.json"
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
    start_progress(progress)
    if not isinstance(source, str) or not is_url(source):
        raise ValueError(f"source: expected a URL, got {source!r:.200}")
    folder = as_path(destination)
    origin, name = open_directory(source, storage_options)
    with contextlib.closing(origin):
        target = os.path.join(folder, name)
        if paths.is_there(target) and not force:
            raise DestinationExistsError(target)
        os.makedirs(folder, exist_ok=True)
        staging = os.path.join(folder, f".milblob-{name}.download")
        os.makedirs(staging, exist_ok=True)
        with _locked(staging):
            made = os.path.join(staging, name)
            work = _Work(origin, name, staging, progress)
            work.fetch_all()
            work.remove_others()
            digest, counter = "", ProgressCounter(progress)
            counter.add("", work.nbytes)
            with contextlib.suppress(MilblobError, NotImplementedError):  # a part of a model, or something else
                digest = content_hash(made, progress=counter.notes).model
            work.forget()  # what `place` leaves in the staging directory is the replaced model
            place(made, target, force=force)
            remove_tree(staging)
    return Download(target, shown_url(source), work.files, work.nbytes, work.fetched, digest)


@contextlib.contextmanager
def _locked(staging: str) -> Iterator[None]:
    name = os.path.join(staging, ".lock")
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        lock(fd, name)
        yield
    finally:
        os.close(fd)


class _Work:
    """The local files of a download, and what of them is there; fetches those that a directory lists or a model names.

    The state names the version that each file is of. What has none is never a part of the result.
    """

    def __init__(self, origin: RemoteDirectory, name: str, staging: str, progress: Progress | None) -> None:
        self._origin, self._name, self._staging = origin, name, staging
        self._made, self._wanted = os.path.join(staging, name), set[str]()
        self.files = self.nbytes = self.fetched = 0
        self._progress = progress
        self._state_path = os.path.join(staging, _STATE)
        self._state: dict[str, Any] = {}
        unreadable = OSError, ValueError, RecursionError
        with contextlib.suppress(*unreadable), open(self._state_path, encoding="utf-8") as file:  # noqa: PTH123
            found = json.load(file)
            self._state = found if isinstance(found, dict) else {}
        if not self._state:
            remove_tree(self._made)  # of nothing else than a directory
            self._unlink(self._made)

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

    def _fetch(self, relative: str, file: RemoteFile) -> None:
        """Fetch one file, from where it ended before."""
        path = os.path.join(self._staging, *relative.split("/"))
        os.makedirs(os.path.dirname(path), exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0), 0o666)
        try:
            begin, version = os.fstat(fd).st_size, self._known(relative)
            if version is None or begin > version.nbytes:
                os.ftruncate(fd, 0)  # of an unknown version: its end must not become the end of another
                begin, version = 0, None
            self._wanted.add(path)
            found = self._save(relative, file, fd, begin, version)
            os.fsync(fd)
            self.files, self.nbytes = self.files + 1, self.nbytes + found.nbytes
            self.fetched += max(0, found.nbytes - begin)
        finally:
            os.close(fd)

    def _save(self, relative: str, file: RemoteFile, fd: int, begin: int, version: Version | None) -> Version:
        def noted(done: int, total: int) -> None:
            self._note(relative, file.version)
            if self._progress is not None:
                self._progress(relative, done, total)

        try:
            found = file.save(fd, begin, version, noted)
        except MilblobError as error:
            if version is None or error.code != "changed-file":
                raise
            os.ftruncate(fd, 0)  # another version than before: from the beginning
            found = file.save(fd, 0, None, noted)
        self._note(relative, found)
        return found

    def _known(self, relative: str) -> Version | None:
        row = self._state.get(relative)
        if not isinstance(row, list) or len(row) != 3 or not isinstance(row[0], int):
            return None
        return Version(row[0], str(row[1]), str(row[2]))

    def _note(self, relative: str, version: Version) -> None:
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

    # ------------------------------------------------------------------------------------------------ which files

    def fetch_all(self) -> None:
        """Fetch every file."""
        if not isinstance(self._origin, HttpOrigin):
            for relative, file in self._origin.files(self._name).items():
                self._fetch(relative, file)
        elif self._name.endswith((".mlmodelc", ".mlpackage")):
            self._fetch_model(self._made)
        else:
            self._fetch_named(self._name)

    def _fetch_model(self, root: str) -> None:
        if self._name.endswith(".mlmodelc"):
            self._fetch_compiled(self._name)
        else:
            self._fetch_named(f"{self._name}/{NAME}")
            self._fetch_named(self._relative(find_root_model(Location(root)).path))
        with contextlib.closing(Package(root)) as package:
            wanted: dict[str, None] = {}
            for source in package.sources:
                scan = ProgramScan(source.program[0], source.program[1:], source.prefix, is_text=source.is_text)
                for constant in scan.constants:
                    if constant.storage == _codec.BLOB:
                        wanted[self._relative(resolve(source.directory, constant.text).path)] = None
        for relative in wanted:
            self._fetch_named(relative)

    def _relative(self, path: str) -> str:
        return os.path.relpath(path, self._staging).replace(os.sep, "/")

    def _fetch_compiled(self, relative: str) -> None:
        found = [name for name in COMPILED_NAMES if self._fetch_named(f"{relative}/{name}", is_needed=False)]
        if "model.mil" in found:
            return
        for number in range(_MAX_MODELS):
            before = self.files
            self._fetch_compiled(f"{relative}/model{number}") if relative.count("/model") < 16 else None
            if self.files == before:
                break

    def _fetch_named(self, relative: str, is_needed: bool = True) -> bool:
        """Fetch a file by its name; return whether there is one."""
        try:
            self._fetch(relative, cast("HttpOrigin", self._origin).named(relative))
        except FileNotFoundError:
            if is_needed:
                raise
            path = os.path.join(self._staging, *relative.split("/"))
            with contextlib.suppress(OSError):
                os.unlink(path)
                os.rmdir(os.path.dirname(path))
            return False
        return True


__all__ = ["Download", "download"]
