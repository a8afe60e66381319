"""A package's Manifest.json: read (the model file and other items), and written."""

import os
from collections.abc import Container
from contextlib import closing
from typing import Any

from ..errors import FormatError
from ..jsontext import MAX_NBYTES, parse_json
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import MappedFile

NAME = "Manifest.json"
_DATA = "Data"
_AUTHOR = "com.apple.CoreML"


def read_json(place: Location, what: str = "JSON", *, unique: bool = False, code: str = "manifest") -> Any:
    """Read a JSON file: of a package, or as `parse_json` takes the other arguments.

    Raises: OSError: it cannot be opened. ResolveError: it escapes the package. FormatError: not a regular file, too
    large, not JSON, or nested too deeply.
    """
    # Read, not mapped: faster for a few kilobytes. A file that is too large is refused first.
    with closing(MappedFile(place, small_nbytes=MAX_NBYTES + 1)) as mapping:
        return parse_json(memoryview(mapping.live()), what, place.path, unique=unique, code=code)


def find_root_model(root: Location) -> Location:
    """Return the location of a package's model file, as its manifest states it.

    Raises: FormatError: a manifest without root item. ResolveError: the root item's path escapes the package.
    """
    path = os.path.join(root.path, NAME)
    manifest = read_json(root.beneath(NAME))
    entries = manifest.get("itemInfoEntries") if isinstance(manifest, dict) else None
    identifier = manifest.get("rootModelIdentifier") if isinstance(manifest, dict) else None
    if not isinstance(entries, dict) or not isinstance(identifier, str):
        lacking = "itemInfoEntries" if not isinstance(entries, dict) else "rootModelIdentifier"
        raise FormatError(f"manifest: expected a key {lacking}, got none that can be used", file=path, code="manifest")
    item = entries.get(identifier)
    if not isinstance(item, dict) or not isinstance(item.get("path"), str):
        message = f"manifest: expected an item with a path for root {identifier!r}, got none"
        raise FormatError(message, file=path, code="manifest")
    root.beneath("Data").beneath(item["path"])  # refuses an absolute path before the next line joins it
    return root.beneath("Data/" + item["path"])


def listed_files(root: str) -> list[str]:
    """Return the paths of all items, relative to the real root of the package, with "/", links resolved.

    Raises: As opening the package does.
    """
    real = os.path.realpath(root)
    found = []
    for item in _entries(_read(root)).values():
        if isinstance(item, dict) and isinstance(item.get("path"), str):
            path = os.path.realpath(os.path.join(root, _DATA, item["path"]))
            found.append(os.path.relpath(path, real).replace(os.sep, "/"))
    return found


def make_folders(root: str) -> None:
    """Make the folders that a manifest lists and that have no files: coremltools lists `weights` in every package.

    `root`: of a new package, without links. Items that lead out of it, or into a file, are left to those who open it.
    Raises: As opening the package does.
    """
    find_root_model(Location(root))
    for item in _entries(_read(root)).values():
        path = item.get("path") if isinstance(item, dict) else None
        parts = [_DATA, *path.split("/")] if isinstance(path, str) else []
        if all(part.isprintable() and "\\" not in part and part not in ("", ".", "..") for part in parts):
            folders = [os.path.join(root, *parts[: count + 1]) for count in range(len(parts))]
            if not any(paths.is_file(folder) for folder in folders):
                os.makedirs(os.path.join(root, *parts), exist_ok=True)


def new_manifest() -> bytes:
    """Return the manifest of a package with model.mlmodel and a folder of weights: always the same bytes.

    Identifiers need to be unique only within a manifest. These are version 5 UUIDs of the paths. coremltools rewrites
    the manifest of every package that it opens; this is the form that it writes, so it changes nothing.
    """
    import json

    items = (
        ("B7B312DC-4C52-5F9E-A2C1-08A40D60BF43", "model.mlmodel", "CoreML Model Specification"),
        ("AA794B57-6179-5AD2-8C64-3B8D10B76FAC", "weights", "CoreML Model Weights"),
    )
    author = "com.apple.CoreML"
    entries = {
        identifier: {"author": author, "description": words, "name": name, "path": f"{author}/{name}"}
        for identifier, name, words in items
    }
    content = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": items[0][0]}
    return (json.dumps(content, indent=4, sort_keys=True) + "\n").encode()


def with_folders(root: str, folders: list[str], model: bytes | None = None) -> bytes | None:
    """Return a manifest in which every given folder is an item or lies inside one.

    `folders`: relative to it, with "/". `model`: contents of the model file, from which all items get their
    identifiers; None to keep those they have.
    Returns: The new contents of Manifest.json; None where nothing changes. The same package gives the same bytes, and
    with `model` also a package that differs only in its identifiers and in how the manifest is written.
    """
    import json

    document = _read(root)
    known = listed_files(root)
    lacking = [f for f in folders if not any(f == k or f.startswith(f"{k}/") for k in known)]
    if not lacking and model is None:
        return None
    entries = _entries(document)
    for folder in lacking:
        path = folder.removeprefix(f"{_DATA}/")
        entries[_identifier(path, entries)] = {
            "author": _AUTHOR, "description": "CoreML Model Weights", "name": folder.rpartition("/")[2], "path": path,
        }  # fmt: skip
    if model is not None:
        _rename(document, model)
    text = json.dumps(document, indent=4, ensure_ascii=False, sort_keys=model is not None)
    return (text + "\n").encode("utf-8", "surrogatepass")


def _identifier(text: str, taken: Container[str]) -> str:
    import uuid

    identifier = str(uuid.uuid5(uuid.NAMESPACE_URL, text)).upper()
    while identifier in taken:
        identifier = str(uuid.uuid5(uuid.NAMESPACE_URL, identifier)).upper()
    return identifier


def _rename(document: Any, model: bytes) -> None:
    """Give every item of a manifest the identifier that follows from the model file and the item itself."""
    import hashlib
    import json

    digest = hashlib.sha256(model).hexdigest()
    texts = {key: json.dumps(item, sort_keys=True) for key, item in _entries(document).items()}
    renamed: dict[str, str] = {}
    for key in sorted(texts, key=lambda key: (texts[key], key)):
        renamed[key] = _identifier(f"{digest}/{texts[key]}", renamed.values())
    document["itemInfoEntries"] = {renamed[key]: item for key, item in _entries(document).items()}
    document["rootModelIdentifier"] = renamed[document["rootModelIdentifier"]]


def _read(root: str) -> Any:
    return read_json(Location(root).beneath(NAME))


def _entries(document: Any) -> dict[str, Any]:
    entries: dict[str, Any] = document["itemInfoEntries"]  # present, because the package could be opened
    return entries
