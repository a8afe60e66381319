"""Finds models: below a directory, by a glob, or as they are named."""

import glob
import os
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from typing import IO, NamedTuple

from ..arguments import as_source
from ..mirrored import is_url
from ..model.identify import identify, identify_directory
from ..model.listing import HEAD_NBYTES
from ..storage import paths
from ..storage.table import BLOB_SUFFIXES, CACHES, format_of, is_bundle

_ALWAYS = (".mlmodel", ".mil", ".mlirb")  # and the formats of arrays
_LOOKED_INTO = (*BLOB_SUFFIXES, ".json")
_ARCHIVES = (".tar", ".tar.gz", ".tgz")  # a compressed one is not looked into: finding what it has decodes all of it
_METADATA = "metadata.json"  # of a Model Library Format archive
_MAX_MEMBERS = 1000
_PACKAGES = (".mlpackage", ".mlmodelc")


class Found(NamedTuple):
    """A source."""

    path: str  # as it was given, or found
    # the path, with "/", that its output has below the directory for outputs: that below the directory in which it was
    # found, below the fixed part of a glob, or the last part of a path
    name: str
    root: str = ""  # the directory in which it was found; "" if it was given


def find_models(
    sources: Iterable[str | os.PathLike[str]], *, recursive: bool = False, listed: Iterable[str] = ()
) -> Iterator[Found]:
    """Yield every source, in order; the models in a directory are sorted by name.

    Args:
        sources: paths, URLs, and globs ("models/**/*.mlpackage"; a path that exists is not a glob).
        recursive: a directory that is not a model itself yields every model below it.
        listed: further paths, which are not globs. A relative one keeps its directories in its name.

    Raises:
        ValueError: a glob that matches nothing, or a directory without models.
    """
    for source in sources:
        path = as_source(source)
        if is_url(path) or paths.is_there(path) or not glob.has_magic(path):
            yield from _below(path, _last(path), recursive)
            continue
        root = _fixed(path)
        matches = sorted(glob.glob(path, recursive=True))
        if not matches:
            raise ValueError(f"{path}: expected a glob that matches a file or directory, got no match")
        for match in matches:
            yield from _below(match, os.path.relpath(match, root or os.curdir).replace(os.sep, "/"), recursive)
    for path in listed:
        name = os.path.normpath(path).replace(os.sep, "/")
        is_inside = not (is_url(path) or os.path.isabs(path) or name.split("/")[0] in (os.curdir, os.pardir))
        yield from _below(path, name if is_inside else _last(path), recursive)


def read_list(file: IO[bytes]) -> Iterator[str]:
    """Yield the paths of a list, one on each line; those of a file with NUL bytes end with these, as `find -print0`."""
    head = file.readline()
    if b"\0" in head:
        rest = head + file.read()
        yield from (os.fsdecode(path) for path in rest.split(b"\0") if path)
        return
    while head:
        if line := head.rstrip(b"\r\n"):
            yield os.fsdecode(line)
        head = file.readline()


def is_container(path: str) -> bool:
    """Whether a path is a directory that is not a model itself."""
    return not is_url(path) and paths.is_directory(path) and not _is_model_directory(path)


def _below(path: str, name: str, recursive: bool) -> Iterator[Found]:
    """Yield a path, or every model below it."""
    if not (recursive and is_container(path)):
        yield Found(path, name)
        return
    base = len(os.path.join(path, ""))
    is_empty = True
    for model in _walk(path):
        is_empty = False
        yield Found(model, model[base:].replace(os.sep, "/"), path)
    if is_empty:
        raise ValueError(f"{path}: expected a directory with models below it, got none")


def _walk(root: str) -> Iterator[str]:
    """Yield the models below a directory: not hidden ones, and none below links to directories.

    A directory that cannot be listed is yielded: opening it reports why.
    """
    stack = [root]
    while stack:
        directory = stack.pop()
        try:
            with os.scandir(directory) as entries:
                rows = sorted((entry.name, entry.is_dir(), entry.is_symlink()) for entry in entries)
        except OSError:
            yield directory
            continue
        inner = []
        for name, is_directory, is_link in rows:
            path = os.path.join(directory, name)
            if name.startswith("."):
                continue
            if not is_directory:
                if _is_model_file(path):
                    yield path
            elif _is_model_directory(path):
                yield path
            elif not is_link:
                inner.append(path)
        stack += reversed(inner)


def _is_model_directory(path: str) -> bool:
    try:
        if isinstance(identify_directory(path), str) or is_bundle(path):
            return True
        found = format_of(path)
    except OSError:
        return False
    return found is not None and found.kind == "archive"


def _is_model_file(path: str) -> bool:
    """Whether a file is one that milblob opens: by its name, and by its content where other programs use the name."""
    lower = path.lower()
    try:
        if lower.endswith(".zip"):
            return _is_zipped_model(path)
        if lower.endswith(_ARCHIVES):
            return lower.endswith(".tar") and _is_library(path)
        if lower.endswith(_LOOKED_INTO) and os.path.basename(path) not in CACHES:
            with open(path, "rb") as file:  # noqa: PTH123
                return identify(file.read(HEAD_NBYTES)) in ("blob", "listing")
    except (OSError, ValueError, NotImplementedError):
        return False  # what cannot be read is not known to be a model
    row = format_of(path)
    return lower.endswith(_ALWAYS) or (row is not None and not row.is_model and not lower.endswith(".index.json"))


def _is_zipped_model(path: str) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        return False
    return any(part.endswith(_PACKAGES) for name in names for part in name.split("/")[:-1]) or bool(
        {"Manifest.json", "model.mil", "coremldata.bin"}.intersection(names)
    )


def _is_library(path: str) -> bool:
    try:
        with tarfile.open(path, "r:") as archive:
            members = (member.name for member, _ in zip(archive, range(_MAX_MEMBERS), strict=False))
            return any(name.removeprefix("./") == _METADATA for name in members)
    except (tarfile.TarError, EOFError):
        return False


def _last(path: str) -> str:
    """The last part of a path or URL."""
    if is_url(path):
        return path.split("::")[0].split("?")[0].rstrip("/").rpartition("/")[2] or "model"
    return os.path.basename(os.path.abspath(path))


def _fixed(pattern: str) -> str:
    """The directory that every match of a glob is in."""
    head = pattern
    while glob.has_magic(head):
        head = os.path.dirname(head)
    return head


def folded(name: str) -> str:
    """Return a name as the file system compares it: without case on macOS and Windows."""
    return name.casefold() if sys.platform in ("darwin", "win32") else name
