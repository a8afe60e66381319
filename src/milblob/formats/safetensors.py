"""safetensors, through the library of that name (an extra)."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import UnsupportedError
from ..files import whole_file
from ..tensor import Tensor
from .elements import PLAIN, Progress, elements

NOTES = "milblob"
"""Key of the notes in the file's metadata: JSON, {name: {"dtype": ...}}; only of tensors that need a note."""

_NATIVE = PLAIN | {DType.BFLOAT16, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2}


def save(tensors: Mapping[str, Tensor], path: str, *, force: bool = False, progress: Progress | None = None) -> None:
    """Write tensors to a .safetensors file.

    Args:
        tensors: name -> Tensor. The library takes all of them at once, and recent versions write from the mapped file
            where that holds the values.
        path: appears whole or not at all.
        force: replace a file that exists.
        progress: told of each tensor.

    bfloat16 and fp8 are stored as such; for dtypes that safetensors lacks see `elements`.

    Raises:
        As `Tensor.read`; FileExistsError: without `force`.
        UnsupportedError: the library is not installed, or refuses a name.
    """
    try:
        import safetensors.numpy
    except ImportError:
        raise UnsupportedError(
            "safetensors files: expected the library, got none; pip install milblob[safetensors]"
        ) from None
    notes: dict[str, dict[str, Any]] = {}
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for name, tensor in tensors.items():
        array, note = elements(tensor, _NATIVE)
        key = f"%{name}" if name.lstrip("%") == "__metadata__" else name  # that key is the format's own
        if key != name:
            note = {"name": name, **(note or {})}
        if note is not None:
            notes[key] = note
        arrays[key] = np.require(array, requirements="C")
        if progress is not None:
            progress(name, tensor.nbytes)
    metadata = {NOTES: json.dumps(notes)} if notes else None
    with whole_file(path, force) as temporary:
        try:
            safetensors.numpy.save_file(arrays, temporary, metadata)
        except safetensors.SafetensorError as error:
            raise UnsupportedError(
                f"safetensors file: expected tensors that it takes, got a refusal: {error}"
            ) from None
