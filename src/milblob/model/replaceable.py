"""Which directories may be replaced: those of which every file is of the kind that takes their place."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator

from ..errors import FormatError, MilblobError, UnsupportedError
from ..storage import paths
from ..storage.beneath import Location
from ..storage.output import is_ours
from .package import BLOB_SUFFIXES, Package, find_root_model, is_blob_head, read_json

IsPart = Callable[[str], bool]
"""Whether the name of a file, relative to a directory, with "/", is one of those that belong there."""

_FINDER = ".DS_Store"
_HEAD_NBYTES = 68
_COMPILED = re.compile(
    r"(model\d+/)*(model\.mil|metadata\.json|model\.espresso\.(net|shape|weights)"
    r"|(analytics/|model/|neural_network_optionals/)?coremldata\.bin)"
)


def require_replaceable(
    path: str,
    kind: str,
    force: bool,
    *,
    like: Iterable[str] = (),
    understand: Callable[[Location], IsPart] | None = None,
) -> None:
    """Refuse to replace a directory that is not, with every file in it, what is written in its place.

    A directory is understood by its index or manifest. Every file that these do not explain is somebody's, hidden ones
    too; but for .DS_Store, which holds how the Finder shows a folder, and what killed writers of milblob have left.
    An empty directory may always be replaced.

    Args:
        path: of the output; links are followed. Nothing need be there.
        kind: "mlpackage", "mlmodelc"; else what messages call it.
        force: what is of the kind may be replaced.
        like: directories that the result will be a copy of: it has what they have.
        understand: of another kind, reads the index of a directory; FormatError if that is none.

    Raises:
        FileExistsError: it may not be replaced; the file that stands in the way is named.
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
        words = f"expected {_called(kind)} to replace, got something else ({error}); name another output, or remove it"
        raise FileExistsError(f"{path}: {words}") from None
    for name in _files(place):
        if not is_part(name) and not any(paths.is_there(os.path.join(source, name)) for source in like):
            words = f"expected nothing but {_called(kind)} to replace, got the file {name} that is no part of one"
            raise FileExistsError(f"{path}: {words}; move it elsewhere, or name another output")
    if not force:
        raise FileExistsError(f"{path}: expected no such directory, got one (--force replaces it)")


def _called(kind: str) -> str:
    return f"a .{kind}" if kind in _UNDERSTAND else kind


def _files(place: Location, inside: str = "") -> Iterator[str]:
    """Yield the names of all that is no directory, relative to a directory, with "/"."""
    for base, is_directory in place.entry(inside).names():
        name = f"{inside}/{base}" if inside else base
        if is_directory:
            yield from _files(place, name)
        elif base != _FINDER and not is_ours(base):
            yield name


def _package(root: Location) -> IsPart:
    """What a manifest names, and weight files below the folders that it names."""
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
    """What the compiler of Core ML writes, and weight files."""
    with contextlib.suppress(UnsupportedError):  # then it is read, and is a model of another type
        Package(root.path, recover=False).close()
    return lambda name: _COMPILED.fullmatch(name) is not None or _is_weights(root, name)


_UNDERSTAND = {"mlpackage": _package, "mlmodelc": _compiled}


def _is_weights(root: Location, name: str) -> bool:
    """Whether a file is a weight file, by its name and what it begins with."""
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
