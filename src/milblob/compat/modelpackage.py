"""`ModelPackage` in place of coremltools' native module `libmodelpackage`, where that is missing.

It has what coremltools uses to save and open packages. Unlike the native one it writes a manifest only when something
has changed, not each time that a package is opened, and no entry escapes the package.

Spec: coremltools e0e2f42, modelpackage/src/ModelPackage.cpp and ModelPackagePython.cpp.
"""

import contextlib
import json
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from ..storage import paths

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
        if paths.status(self._path) is not None:
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
            if paths.status(self._inside(entry["path"])) is None:
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
            with contextlib.suppress(OSError):
                os.unlink(unfinished)
            raise

    def _inside(self, relative: str) -> str:
        parts = relative.replace("\\", "/").split("/")
        is_inside = not (
            os.path.isabs(relative) or ".." in parts or not relative or ":" in parts[0] or "\0" in relative
        )
        path = os.path.join(self._data, relative)
        if is_inside:  # nor is its folder a link that leads out: items are replaced and removed there
            data, folder = os.path.realpath(self._data), os.path.realpath(os.path.dirname(path))
            is_inside = folder == data or folder.startswith(data + os.sep)
        if not is_inside:
            raise RuntimeError(f"Item is not inside the package: {relative}")
        return path

    def _has_written(self, identifier: str) -> bool:
        with contextlib.suppress(OSError, ValueError):
            manifest = json.loads(Path(self._path, "Manifest.json").read_bytes())
            return identifier in manifest.get("itemInfoEntries", {})
        return False

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
        return self._add(path, name, author, description)

    def _add(self, path: str, name: str, author: str, description: str, root: str | None = None) -> str:
        """Copy an item and write the manifest; after a failure the call can be repeated.

        Args:
            root: of the model: the identifier of the one that it replaces, or "".
        """
        old = dict(self._manifest)
        old_entries = dict(self._manifest.get("itemInfoEntries", {}))
        if root:
            del self._manifest["itemInfoEntries"][root]
        target, is_new, identifier = "", False, str(uuid.uuid4())
        try:
            if self.findItemByNameAuthor(name, author) is not None:
                raise RuntimeError(f"The package already contains a file with name: {name} author: {author}")
            target = self._inside(f"{author}/{name}")
            is_new = not paths.is_there(target)
            _copy(path, target)
            entry = dict(zip(_KEYS, (f"{author}/{name}", name, author, description), strict=True))
            self._manifest.setdefault("itemInfoEntries", {})[identifier] = entry
            if root is not None:
                self._manifest["rootModelIdentifier"] = identifier
            self._write()
        except BaseException as error:
            if self._has_written(identifier):  # Ctrl-C came after the manifest had its name: it needs the item
                raise
            self._manifest = old
            if "itemInfoEntries" in old:
                old["itemInfoEntries"] = old_entries
            if is_new:
                _remove(target)
            if isinstance(error, OSError):
                raise RuntimeError(f"filesystem error: cannot copy: {path} to {target} ({error})") from error
            raise
        return identifier

    def setRootModel(self, path: str, name: str, author: str, description: str) -> str:  # noqa: N802
        """Add the item that is the model; fails if there is one already."""
        if "rootModelIdentifier" in self._manifest:
            raise RuntimeError("A root model already exists in this package")
        return self._add(path, name, author, description, "")

    def replaceRootModel(self, path: str, name: str, author: str, description: str) -> str:  # noqa: N802
        """Add the item that is the model, and remove the one that was, when the manifest no longer names it."""
        old = self._manifest.get("rootModelIdentifier")
        item = self._item(old) if old is not None else None
        identifier = self._add(path, name, author, description, old if item is not None else "")
        if item is not None:
            try:
                if not os.path.samefile(item.path(), self._inside(f"{author}/{name}")):
                    os.unlink(item.path())
            except OSError as error:
                raise RuntimeError(f"Failed to remove file at path: {item.path()} ({error})") from error
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
            return paths.is_directory(path) and bool(ModelPackage(path).getRootModel())
        except RuntimeError:
            return False


def _copy(source: str, target: str) -> None:
    """Copy a file or a directory; the copy gets its name when it is complete."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    unfinished = f"{target}.{uuid.uuid4()}"
    try:
        if paths.is_directory(source):
            shutil.copytree(source, unfinished)
            os.rename(unfinished, target)
        else:
            shutil.copyfile(source, unfinished)
            os.replace(unfinished, target)
    except BaseException:
        _remove(unfinished)
        raise


def _remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.unlink(path)


__all__ = ["ModelPackage", "ModelPackageItemInfo"]
