"""NumPy's .npz: a zip of .npy files, one for each tensor, not compressed."""

import json
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..files import NewFile
from ..tensor import Tensor
from .elements import Progress, elements
from .filenames import escaped

NOTES = "__milblob__"
"""Key of the notes: one string of JSON, {key: {"dtype": ..., "name": ...}}; only of tensors that need a note."""


def save(tensors: Mapping[str, Tensor], path: str, *, force: bool = False, progress: Progress | None = None) -> None:
    """Write tensors to an .npz file that `numpy.load` reads.

    Args:
        tensors: name -> Tensor. Read one at a time, and written from the mapped file where it holds the values.
        path: appears whole or not at all.
        force: replace a file that exists.
        progress: told of each tensor.

    Names that a zip cannot hold as they are, or that would lead out of a directory where it is unpacked, are escaped;
    the notes have the real ones. Dtypes that NumPy lacks: see `elements`.

    Raises:
        As `Tensor.read`; FileExistsError: without `force`.
    """
    notes: dict[str, dict[str, Any]] = {}
    with (
        NewFile(path, force=force) as new,
        open(new.fd, "w+b", closefd=False) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, tensor in tensors.items():
            key = _key(name)
            array, note = elements(tensor)
            if key != name:
                note = {"name": name, **(note or {})}
            if note is not None:
                notes[key] = note
            _write(archive, key, array)
            if progress is not None:
                progress(name, tensor.nbytes)
        if notes:
            _write(archive, NOTES, np.array(json.dumps(notes)))


def _key(name: str) -> str:
    """A key for a tensor: the name, unless a zip member cannot be called that; then "%" and the name escaped."""
    parts = name.split("/")
    safe = all(part not in ("", ".", "..") and part.isprintable() for part in parts)
    safe = safe and not any(c in name for c in "\\:%") and not name.endswith(".npy") and len(name) < 4096
    return name if safe and name != NOTES else "%" + escaped(name)


def _write(archive: zipfile.ZipFile, key: str, array: np.ndarray[Any, Any]) -> None:
    # A fixed date, so that the same tensors give the same file.
    with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)  # type: ignore[no-untyped-call,unused-ignore]
