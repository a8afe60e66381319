"""What a package's manifest says about files other than the model."""

import os
from typing import Any

from ..storage.beneath import Location
from .package import read_json

_DATA = "Data"
_AUTHOR = "com.apple.CoreML"


def listed_files(root: str) -> list[str]:
    """Return the paths of all items, relative to the real root of the package, with "/", links resolved.

    Raises:
        As opening the package does.
    """
    real = os.path.realpath(root)
    found = []
    for item in _entries(_read(root)).values():
        if isinstance(item, dict) and isinstance(item.get("path"), str):
            path = os.path.realpath(os.path.join(root, _DATA, item["path"]))
            found.append(os.path.relpath(path, real).replace(os.sep, "/"))
    return found


def with_folders(root: str, folders: list[str]) -> bytes | None:
    """Return a manifest in which every given folder is an item or lies inside one.

    Args:
        root: of the package.
        folders: relative to it, with "/".

    Returns:
        The new contents of Manifest.json; None where nothing changes. The same package gives the same bytes.
    """
    import json
    import uuid

    document = _read(root)
    known = listed_files(root)
    lacking = [f for f in folders if not any(f == k or f.startswith(f"{k}/") for k in known)]
    if not lacking:
        return None
    entries = _entries(document)
    for folder in lacking:
        path = folder.removeprefix(f"{_DATA}/")
        identifier = str(uuid.uuid5(uuid.NAMESPACE_URL, path)).upper()
        while identifier in entries:
            identifier = str(uuid.uuid5(uuid.NAMESPACE_URL, identifier)).upper()
        entries[identifier] = {
            "author": _AUTHOR, "description": "CoreML Model Weights", "name": folder.rpartition("/")[2], "path": path,
        }  # fmt: skip
    return (json.dumps(document, indent=4, ensure_ascii=False) + "\n").encode("utf-8", "surrogatepass")


def _read(root: str) -> Any:
    return read_json(Location(root).beneath("Manifest.json"))


def _entries(document: Any) -> dict[str, Any]:
    entries: dict[str, Any] = document["itemInfoEntries"]  # present, because the package could be opened
    return entries
