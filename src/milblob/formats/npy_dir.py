"""A directory of .npy files, one for each tensor, with an index.json that maps names to files."""

import json
import os
from collections.abc import Mapping
from functools import partial
from math import prod
from typing import Any

import numpy as np

from ..budget import Budget
from ..errors import FormatError
from ..model.lazy import LazyTensor
from ..model.manifest import read_json
from ..model.replaceable import IsPart, require_replaceable
from ..model.stored import Arrays, StoredArray, restored
from ..progress import Progress, ProgressCounter
from ..storage import paths
from ..storage.beneath import Location
from ..storage.output import NewDirectory
from .encoding import PLAIN, elements
from .filenames import file_names
from .npy import open_array

INDEX = "index.json"


def save(
    tensors: Mapping[str, LazyTensor],
    path: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    packed: bool = False,
) -> None:
    """Write tensors to a directory: see `write.save`.

    With `force`, a directory that an earlier call has made is replaced if nothing else is in it. No other ever is.

    index.json is {"format": "milblob", "tensors": {name: {"file", "dtype", "shape", "stored"}}}: `dtype` is milblob's
    name, `stored` the NumPy dtype in the file, which differs where NumPy lacks the dtype (see `elements`, also for when
    there is "packed").
    """
    index: dict[str, dict[str, Any]] = {}
    counter = ProgressCounter(progress, tensors.values())
    path = path.rstrip("/\\") or path
    require_replaceable(path, "a directory that milblob convert made", force, understand=_understand)
    with NewDirectory(path, replace=paths.is_directory(path)) as directory:
        temporary = directory.name
        for name, file_name in file_names(tensors).items():
            tensor = tensors[name]
            array, note = elements(tensor, PLAIN, packed)
            target = os.path.join(temporary, f"{file_name}.npy")
            np.save(target, array, allow_pickle=False)
            shape = (note or {}).get("shape", list(array.shape))
            index[name] = {
                "file": f"{file_name}.npy",
                "dtype": str(tensor.mil_dtype),
                "shape": shape,
                "stored": str(array.dtype),
            }
            if note is not None and "packed" in note:
                index[name]["packed"] = True
            counter.add_tensor(name, tensor)
        target = os.path.join(temporary, INDEX)
        with open(target, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"format": "milblob", "tensors": index}, file, ensure_ascii=False, indent=1)
            file.write("\n")


def _understand(place: Location) -> IsPart:
    """Read the index of a directory that is about to be replaced."""
    rows = read_index(place.path)
    if rows is None:
        raise FormatError(f"directory: expected an {INDEX} of milblob, got none", file=place.path)
    names = {row["file"] for row in rows.values() if row["file"].endswith(".npy") and "/" not in row["file"]}
    return lambda name: name == INDEX or name in names


# -------------------------------------------------------------------------------------------------------------- reading


def read_index(directory: str) -> dict[str, Any] | None:
    """Return the rows of a directory's index, name -> {"file", "dtype", "shape", ...}; None if it has no milblob index.

    Raises: OSError: it cannot be opened. FormatError: it is broken.
    """
    path = os.path.join(directory, INDEX)
    if not paths.is_there(path):
        return None
    document = read_json(Location(directory).beneath(INDEX), "index", unique=True, code="")
    if not isinstance(document, dict) or document.get("format") != "milblob":
        return None
    rows = document.get("tensors")
    if not isinstance(rows, dict) or not all(
        isinstance(row, dict) and isinstance(row.get("file"), str) for row in rows.values()
    ):
        raise FormatError("index: expected a file for each tensor, got something else", file=path)
    return rows


def open_path(path: str, max_nbytes: int | None = None) -> Arrays[StoredArray]:
    """Open a .npy file, or a directory of them. Raises as `open_file` and `open_arrays`."""
    return open_arrays(path, max_nbytes) if paths.is_directory(path) else open_file(path, max_nbytes)


def open_arrays(path: str, max_nbytes: int | None = None) -> Arrays[StoredArray]:
    """Open a directory written by `save`, or any directory of .npy files, whose arrays are named by their files.

    Raises: OSError: it cannot be opened. FormatError: a broken index, or no .npy file at all. A file's contents are
    checked when it is accessed.
    """
    rows = read_index(path)
    if rows is None:
        names = sorted(name for name in os.listdir(path) if name.endswith(".npy"))
        rows = {name.removesuffix(".npy"): {"file": name} for name in names}
        if not rows:
            raise FormatError(f"directory: expected {INDEX} or .npy files, got neither", file=path)
    return Arrays(rows, partial(_found, path, Budget(max_nbytes, path)))


def _found(directory: str, budget: Budget, name: str, row: Mapping[str, Any]) -> StoredArray:
    place = Location(directory).beneath(row["file"])
    header, load = open_array(place)
    budget.add_file(place.path, header.nbytes + header.dtype.itemsize * prod(header.shape))
    return restored(name, row, header.dtype, header.shape, load, place.path, budget)


def open_file(path: str, max_nbytes: int | None = None) -> Arrays[StoredArray]:
    """Open one .npy file as an array, named by the index beside it or else by its file name.

    Raises: As `open_arrays`.
    """
    directory, file_name = os.path.split(path)
    rows = read_index(directory) or {}
    name, row = next(
        ((name, row) for name, row in rows.items() if row["file"] == file_name),
        (file_name.removesuffix(".npy"), {"file": file_name}),
    )
    return Arrays({name: row}, partial(_found, directory, Budget(max_nbytes, path)))
