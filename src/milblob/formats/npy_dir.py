"""A directory of .npy files, one for each tensor, with an index.json that says which is which."""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..files import whole_directory
from ..tensor import Tensor
from .elements import Progress, elements
from .filenames import file_names

INDEX = "index.json"


def save(tensors: Mapping[str, Tensor], path: str, *, force: bool = False, progress: Progress | None = None) -> None:
    """Write tensors to a directory.

    Args:
        tensors: name -> Tensor. Read one at a time, and written from the mapped file where it holds the values.
        path: appears whole or not at all.
        force: replace a directory that an earlier call has made. No other is ever replaced.
        progress: told of each tensor.

    index.json is {"format": "milblob", "tensors": {name: {"file", "dtype", "shape", "stored"}}}: `dtype` is milblob's
    name of it, `stored` the NumPy dtype in the file, which differs where NumPy lacks the former (see `elements`).

    Raises:
        As `Tensor.read`; FileExistsError: the directory exists.
    """
    index: dict[str, dict[str, Any]] = {}
    with whole_directory(path, force, INDEX) as temporary:
        for name, file_name in file_names(tensors).items():
            tensor = tensors[name]
            array, note = elements(tensor)
            target = os.path.join(temporary, f"{file_name}.npy")
            np.save(target, array, allow_pickle=False)
            shape = (note or {}).get("shape", list(array.shape))
            index[name] = {
                "file": f"{file_name}.npy",
                "dtype": str(tensor.mil_dtype),
                "shape": shape,
                "stored": str(array.dtype),
            }
            if progress is not None:
                progress(name, tensor.nbytes)
        target = os.path.join(temporary, INDEX)
        with open(target, "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump({"format": "milblob", "tensors": index}, file, ensure_ascii=False, indent=1)
            file.write("\n")
