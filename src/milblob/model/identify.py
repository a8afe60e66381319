"""Identifies a path or the bytes of a file: a kind of model, or another format. Opens and completes nothing."""

import os
from contextlib import closing
from typing import Any

from ..arguments import as_path
from ..storage import paths
from ..storage.foreign import Foreign, bundle, foreign, is_onnx_head, onnx_model, unpacked_archive
from ..storage.mapped import MappedFile
from ..storage.table import BLOB_SUFFIXES, SUFFIXES
from .listing import HEAD_NBYTES, is_listing

COMPILED = ("model.mil", "model0", "model.espresso.net", "coremldata.bin")
"""A directory that has an entry of one of these names is a compiled model."""

SPEC_VERSION_TAG = 0x08
"""The first byte of every Model that a known producer writes."""

EXPECTED = "file: expected a Core ML model, MIL text or a weight file"
PACKAGES = (".mlpackage", ".mlmodelc", ".aimodel")
"""Suffixes of the directories that are models."""

_MODEL_SUFFIXES = (*PACKAGES, ".mlmodel")
_MAX_ENTRIES = 1000  # of a directory that is not a model, listed in the error


def identify(source: Any) -> str | Foreign:
    """Return what a path is, or a file that has these bytes.

    `source`: a path; or the bytes of a file, or its first kilobyte, as a bytes-like object.
    Returns: "mlpackage", "mlmodelc", "mlmodel", "mil", "listing" or "blob"; else a Foreign. What could be a serialized
    Model is "mlmodel": only reading it decides.
    Raises: OSError: the path cannot be examined.
    """
    if not isinstance(source, str | os.PathLike):
        return identify_file(memoryview(source))
    path = as_path(source)
    kind = identify_directory(path)
    if kind is not None:
        return kind
    with closing(MappedFile(path)) as mapping:
        return identify_file(memoryview(mapping.need([(0, HEAD_NBYTES)]))[:HEAD_NBYTES], path)


def identify_file(data: memoryview, path: str | None = None) -> str | Foreign:
    """As `identify`, for the bytes of a file; its suffix decides only what they leave open."""
    if bytes(data[:64]).lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"program"):
        return "mil"
    if path is not None and path.endswith(".mil"):
        found = foreign(data, path)
        return "mil" if found is None or found.name == "text" else found
    if is_listing(bytes(data[:HEAD_NBYTES])):
        return "listing"
    if is_blob_head(data):
        return "blob"
    if is_onnx_head(data):
        return onnx_model(path)
    if len(data) and data[0] != SPEC_VERSION_TAG and (found := foreign(data, path)) is not None:
        around = paths.above(path, PACKAGES) if path is not None else None
        return (
            found
            if around is None
            else Foreign("part", f"{found.description} that is a part of a model", f"open {around}")
        )
    suffix = os.path.splitext(path or "")[1]
    if suffix == ".onnx":  # the fields before the graph may be long
        return onnx_model(path)
    if path is not None and os.path.basename(path) == "coremldata.bin":
        return Foreign("part", "a part of a compiled model", f"open {os.path.dirname(os.path.abspath(path))}")
    return "blob" if suffix in BLOB_SUFFIXES else "mlmodel"


def identify_directory(path: str) -> str | Foreign | None:
    """As `identify`, for a directory; None if the path is not one."""

    def has(name: str) -> bool:
        return paths.is_there(os.path.join(path, name))

    if not paths.is_directory(path):
        return None
    if has("Manifest.json") or path.rstrip("/\\").endswith(".mlpackage"):
        return "mlpackage"
    if any(map(has, COMPILED)):
        return "mlmodelc"
    if has("main.mlirb") or path.rstrip("/\\").endswith(".aimodel"):
        return bundle(path)
    if path.rstrip("/\\").endswith((".aimodelc", ".aimodelx")) or has("main-universal.odix"):
        message = "a compiled bundle of Core AI, which milblob does not read"
        return Foreign("aimodelc", message, "give the .aimodel that it was made from")
    if has("metadata.json") and has("codegen"):
        return unpacked_archive()
    around = paths.above(path, PACKAGES)
    if around is not None:
        return Foreign("directory", "a directory inside a model", f"open {around}")
    with os.scandir(path) as entries:
        names = sorted(entry.name for entry, _ in zip(entries, range(_MAX_ENTRIES), strict=False))
    models = [name for name in names if name.endswith(_MODEL_SUFFIXES)]
    if models:
        return Foreign("directory", f"a directory with {_few(models)} in it", f"open {os.path.join(path, models[0])}")
    if "saved_model.pb" in names:
        return Foreign("directory", "a SavedModel of TensorFlow, which milblob does not read")
    arrays = [name for name in names if name.endswith(SUFFIXES)]
    if arrays:
        return Foreign("directory", f"a directory with {_few(arrays)} in it", f"give {os.path.join(path, arrays[0])}")
    return Foreign("directory", f"a directory with {_few(names)} in it" if names else "an empty directory")


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")


def is_blob_head(data: memoryview | bytes) -> bool:
    """Whether data begins with a storage header, version 2 (or 1, refused by name), and a sentinel if it has any."""
    if len(data) < 64 or bytes(data[4:8]) not in (b"\2\0\0\0", b"\1\0\0\0"):
        return False
    return data[4] == 2 or (len(data) >= 68 and bytes(data[64:68]) == b"\xef\xbe\xad\xde")
