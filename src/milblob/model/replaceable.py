"""Which directories may be replaced: those that contain only files of the same kind of output."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator

from ..errors import DestinationExistsError, FormatError, MilblobError, UnsupportedError
from ..storage import paths
from ..storage.beneath import Location
from ..storage.table import BLOB_SUFFIXES, LISTINGS, SUFFIXES
from ..storage.temporary import is_ours
from .identify import is_blob_head
from .manifest import find_root_model, read_json
from .package import Package

IsPart = Callable[[str], bool]
"""Whether the name of a file, relative to a directory, with "/", is one of those that belong there."""

_SUFFIXES = {
    "mlpackage": (".mlpackage",),
    "mlmodelc": (".mlmodelc",),
    "mlmodel": (".mlmodel",),
    "mil": (".mil",),
    "blob": BLOB_SUFFIXES,
    "listing": LISTINGS,
    "tar": (".tar",),
    "tar.gz": (".tar.gz", ".tgz", ".gz"),
    "directory": (),
    "zip file": (".zip",),
    "compressed file": (".bz2", ".xz", ".zst", ".7z"),
    "ONNX model": (".onnx",),
    "file of arrays": SUFFIXES,
    "aimodel": (".aimodel",),
    "bytecode": (".mlirb",),
}
"""Kind of file -> suffixes of its names. If several kinds match, the first one is used."""

_FINDER = ".DS_Store"
_HEAD_NBYTES = 68
_COMPILED = re.compile(
    r"(model\d+/)*(model\.mil|metadata\.json|model\.espresso\.(net|shape|weights)"
    r"|(analytics/|model/|neural_network_optionals/)?coremldata\.bin)"
)


def require_name(path: str, kind: str) -> None:
    """Refuse a name whose suffix belongs to another kind of file.

    `path`: of the output. `kind`: of what is written, "mlpackage", "blob", "tar" and so on.
    Raises: ValueError: its end is that of another kind.
    """
    name = path.rstrip("/\\").lower()
    if name.endswith(_SUFFIXES[kind]):
        return
    other_kind = next((other for other, suffixes in _SUFFIXES.items() if name.endswith(suffixes)), None)
    if other_kind is not None:
        wanted = " or ".join(_SUFFIXES[kind][:2]) or "none of these"
        raise ValueError(f"output {path}: expected a name for a {kind}, such as {wanted}, got one for a {other_kind}")


def require_apart(source: str, target: str) -> None:
    """Refuse a directory as an output that lies inside or around the directory it is a copy of; links are followed.

    Raises: ValueError: it does.
    """
    inner, outer = f"{paths.real(target)}{os.sep}", f"{paths.real(source)}{os.sep}"
    if inner.startswith(outer) or outer.startswith(inner):
        raise ValueError(f"output {target}: expected a place outside of {source}, got one inside or around it")


def require_replaceable(
    path: str,
    kind: str,
    force: bool,
    *,
    like: Iterable[str] = (),
    understand: Callable[[Location], IsPart] | None = None,
) -> None:
    """Refuse to replace a directory unless every file in it belongs to the kind of output that replaces it.

    A directory's index or manifest lists its files. Any other file, hidden or not, is the user's. Exceptions:
    .DS_Store, which stores how the Finder shows a folder, and the remains of killed milblob writers. An empty directory
    may always be replaced.

    Args:
        path: of the output; links are followed. It need not exist.
        kind: "mlpackage", "mlmodelc"; else the name of the kind in messages.
        force: allow replacing an output of this kind.
        like: directories that the result will be a copy of: their files are allowed too.
        understand: for another kind, reads a directory's index; FormatError if it is not one.

    Raises:
        FileExistsError: it may not be replaced; the message names the file that is in the way.
    """
    if not paths.is_there(path):
        return
    if not paths.is_directory(path):
        raise FileExistsError(f"{path}: expected no such directory, or {_called(kind)} to replace, got a file")
    if not os.listdir(path):
        return
    place = Location(paths.real(path))
    try:
        is_part = (understand or _UNDERSTAND[kind])(place)
    except (MilblobError, OSError) as error:
        message = (
            f"expected {_called(kind)} to replace, got something else ({error}); name another output, or remove it"
        )
        raise FileExistsError(f"{path}: {message}") from None
    for name in _files(place):
        if not is_part(name) and not any(paths.is_there(os.path.join(source, name)) for source in like):
            message = f"expected nothing but {_called(kind)} to replace, got the file {name} that is not part of one"
            raise FileExistsError(f"{path}: {message}; move it elsewhere, or name another output")
    if not force:
        raise DestinationExistsError(path)


def _called(kind: str) -> str:
    return f"a .{kind}" if kind in _UNDERSTAND else kind


def _files(place: Location, inside: str = "") -> Iterator[str]:
    """Yield the names of everything but directories, relative to a directory, with "/"."""
    for base, is_directory in place.entry(inside).names():
        name = f"{inside}/{base}" if inside else base
        if is_directory:
            yield from _files(place, name)
        elif base != _FINDER and not is_ours(base):
            yield name


def _package(root: Location) -> IsPart:
    """Accept the files that a manifest names, and weight files below the folders that it names."""
    find_root_model(root)
    items = set()
    for item in read_json(root.beneath("Manifest.json"))["itemInfoEntries"].values():
        if not isinstance(item, dict) or not isinstance(item.get("path"), str):
            raise FormatError("manifest: expected a path for each item, got none", file=root.path)
        items.add("/".join(["Data", *(part for part in item["path"].split("/") if part not in ("", "."))]))

    def is_part(name: str) -> bool:
        if name == "Manifest.json" or name in items:
            return True
        return any(name.startswith(f"{item}/") for item in items) and _is_weights(root, name)

    return is_part


def _compiled(root: Location) -> IsPart:
    """Accept the files that Core ML's compiler writes, and weight files."""
    with contextlib.suppress(UnsupportedError):  # it was read then, and is a model of another type
        Package(root.path, on_pending=None).close()  # it is replaced with its journal
    return lambda name: _COMPILED.fullmatch(name) is not None or _is_weights(root, name)


_UNDERSTAND = {"mlpackage": _package, "mlmodelc": _compiled}


def _is_weights(root: Location, name: str) -> bool:
    """Whether a file is a weight file, by its name and its first bytes."""
    if not name.endswith(BLOB_SUFFIXES):
        return False
    try:
        fd = root.entry(name).open()
    except (MilblobError, OSError):
        return False
    try:
        return is_blob_head(os.read(fd, _HEAD_NBYTES))
    except OSError:
        return False
    finally:
        os.close(fd)
