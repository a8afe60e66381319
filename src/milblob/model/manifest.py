"""What a package's manifest says about files other than the model."""

import os
from collections.abc import Container
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


def with_folders(root: str, folders: list[str], model: bytes | None = None) -> bytes | None:
    """Return a manifest in which every given folder is an item or lies inside one.

    Args:
        root: of the package.
        folders: relative to it, with "/".
        model: contents of the model file, from which all items get their identifiers; None to keep those they have.

    Returns:
        The new contents of Manifest.json; None where nothing changes. The same package gives the same bytes, and with
        `model` also a package that differs only in its identifiers and in how the manifest is written.
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
    return read_json(Location(root).beneath("Manifest.json"))


def _entries(document: Any) -> dict[str, Any]:
    entries: dict[str, Any] = document["itemInfoEntries"]  # present, because the package could be opened
    return entries
