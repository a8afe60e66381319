"""`ModelPackage` in place of coremltools' native module `libmodelpackage`, where that is missing.

It has what coremltools uses to save and open packages. Unlike the native one it writes a manifest only when something
has changed, not each time that a package is opened, and no entry escapes the package.

Spec: coremltools e0e2f42, modelpackage/src/ModelPackage.cpp and ModelPackagePython.cpp.
"""

import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

_VERSION = "1.0.0"
_KEYS = ("path", "name", "author", "description")


class ModelPackageItemInfo:
    """One item of a package: a file or a directory."""

    def __init__(self, identifier: str, path: str, name: str, author: str, description: str) -> None:
        self._fields = (identifier, path, name, author, description)

    def identifier(self) -> str:
        """Its key in the manifest."""
        return self._fields[0]

    def path(self) -> str:
        """Its path: that of the package, "Data", author and name."""
        return self._fields[1]

    def name(self) -> str:
        """Its name."""
        return self._fields[2]

    def author(self) -> str:
        """The author of the item, such as "com.apple.CoreML"."""
        return self._fields[3]

    def description(self) -> str:
        """Its description."""
        return self._fields[4]


class ModelPackage:
    """A directory with a manifest; created if it does not exist.

    Args:
        path: the directory.

    Raises:
        RuntimeError: the path is something else, or its manifest is broken or names a missing item.
    """

    def __init__(self, path: str) -> None:
        self._path = os.fspath(path)
        self._data = os.path.join(self._path, "Data")
        self._manifest: dict[str, Any] = {"fileFormatVersion": _VERSION}
        if os.path.exists(self._path):
            self._manifest = self._read()
            return
        try:
            os.mkdir(self._path)
            os.mkdir(self._data)
            self._write()
        except OSError as error:
            raise RuntimeError(f"Failed to create model package at path: {self._path} ({error})") from error

    def _read(self) -> dict[str, Any]:
        path = os.path.join(self._path, "Manifest.json")
        try:
            manifest: Any = json.loads(Path(path).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise RuntimeError(f"A valid manifest does not exist at path: {path} ({error})") from error
        version = manifest.get("fileFormatVersion") if isinstance(manifest, dict) else None
        if not isinstance(manifest, dict) or version != _VERSION:
            raise RuntimeError(f"Unsupported version: {version}")
        entries = manifest.get("itemInfoEntries", {})
        if not isinstance(entries, dict):
            raise RuntimeError(f"A valid manifest does not exist at path: {path} (itemInfoEntries)")
        for identifier, entry in entries.items():
            if not isinstance(entry, dict) or not all(isinstance(entry.get(key), str) for key in _KEYS):
                raise RuntimeError(f"Invalid itemInfo for identifier: {identifier}")
            if not os.path.exists(self._inside(entry["path"])):
                raise RuntimeError(f"Item does not exist for identifier: {identifier}")
        return manifest

    def _write(self) -> None:
        """Replace the manifest atomically."""
        path = os.path.join(self._path, "Manifest.json")
        unfinished = f"{path}.{uuid.uuid4()}"
        try:
            Path(unfinished).write_text(json.dumps(self._manifest, indent=4, sort_keys=True), encoding="utf-8")
            os.replace(unfinished, path)
        except BaseException:
            if os.path.exists(unfinished):
                os.unlink(unfinished)
            raise

    def _inside(self, relative: str) -> str:
        parts = relative.replace("\\", "/").split("/")
        if os.path.isabs(relative) or ".." in parts or not relative or ":" in parts[0]:
            raise RuntimeError(f"Item is not inside the package: {relative}")
        return os.path.join(self._data, relative)

    def _item(self, identifier: str) -> ModelPackageItemInfo | None:
        entry = self._manifest.get("itemInfoEntries", {}).get(identifier)
        if entry is None:
            return None
        _, name, author, description = (entry[key] for key in _KEYS)
        return ModelPackageItemInfo(identifier, self._inside(entry["path"]), name, author, description)

    def path(self) -> str:
        """The path that it was opened with."""
        return self._path

    def findItemByNameAuthor(self, name: str, author: str) -> ModelPackageItemInfo | None:  # noqa: N802  # their name
        """Return the item, or None."""
        for identifier, entry in self._manifest.get("itemInfoEntries", {}).items():
            if (entry["name"], entry["author"]) == (name, author):
                return self._item(identifier)
        return None

    def addItem(self, path: str, name: str, author: str, description: str) -> str:  # noqa: N802
        """Copy a file or a directory into the package; return its identifier."""
        identifier = self._copy(path, name, author, description)
        self._write()
        return identifier

    def _copy(self, path: str, name: str, author: str, description: str) -> str:
        if self.findItemByNameAuthor(name, author) is not None:
            raise RuntimeError(f"The package already contains a file with name: {name} author: {author}")
        target = self._inside(f"{author}/{name}")
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            if os.path.isdir(path):
                shutil.copytree(path, target)
            else:
                shutil.copyfile(path, target)
        except OSError as error:
            raise RuntimeError(f"filesystem error: cannot copy: {path} to {target} ({error})") from error
        identifier = str(uuid.uuid4())
        entry = dict(zip(_KEYS, (f"{author}/{name}", name, author, description), strict=True))
        self._manifest.setdefault("itemInfoEntries", {})[identifier] = entry
        return identifier

    def setRootModel(self, path: str, name: str, author: str, description: str) -> str:  # noqa: N802
        """Add the item that is the model; fails if there is one already."""
        if "rootModelIdentifier" in self._manifest:
            raise RuntimeError("A root model already exists in this package")
        self._manifest["rootModelIdentifier"] = identifier = self._copy(path, name, author, description)
        self._write()
        return identifier

    def replaceRootModel(self, path: str, name: str, author: str, description: str) -> str:  # noqa: N802
        """Add the item that is the model, and remove the previous one."""
        old = self._manifest.get("rootModelIdentifier")
        item = self._item(old) if old is not None else None
        if item is not None:
            os.unlink(item.path())
            del self._manifest["itemInfoEntries"][item.identifier()]
        self._manifest["rootModelIdentifier"] = identifier = self._copy(path, name, author, description)
        self._write()
        return identifier

    def getRootModel(self) -> ModelPackageItemInfo:  # noqa: N802
        """Return the item that is the model."""
        identifier = self._manifest.get("rootModelIdentifier")
        item = self._item(identifier) if isinstance(identifier, str) else None
        if item is None:
            raise RuntimeError("Failed to look up root model")
        return item

    @staticmethod
    def isValid(path: str) -> bool:  # noqa: N802
        """Whether there is a package with a root model."""
        try:
            return os.path.isdir(path) and bool(ModelPackage(path).getRootModel())
        except RuntimeError:
            return False


__all__ = ["ModelPackage", "ModelPackageItemInfo"]
