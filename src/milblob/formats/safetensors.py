"""safetensors, through the library of that name (an extra)."""

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..dtypes import DType
from ..errors import UnsupportedError
from ..model import Tensor
from .elements import PLAIN, elements
from .whole import Progress, whole_file

NOTES = "milblob"
"""Key of the notes in the file's metadata: JSON, {name: {"dtype": ...}} of the tensors whose dtype safetensors lacks."""

# safetensors' names of the dtypes it has; the plain ones are called as in NumPy.
_NAMES = {DType.BFLOAT16: "bfloat16", DType.FLOAT8E4M3FN: "float8_e4m3fn", DType.FLOAT8E5M2: "float8_e5m2"}
_NATIVE = PLAIN | frozenset(_NAMES)


def save(tensors: Mapping[str, Tensor], path: str, *, force: bool = False, progress: Progress | None = None) -> None:
    """Write tensors to a .safetensors file.

    Args:
        tensors: name -> Tensor. The library takes all of them at once, from the mapped file where it holds the values;
            versions before 0.6 want copies.
        path: appears whole or not at all.
        force: replace a file that exists.
        progress: told of each tensor.

    bfloat16 and fp8 are stored as such; for dtypes that safetensors lacks see `elements`.

    Raises:
        As `Tensor.read`; FileExistsError: without `force`.
        UnsupportedError: the library is not installed, or refuses a name.
    """
    try:
        import safetensors
    except ImportError:
        raise UnsupportedError("safetensors files: expected the library, got none; pip install milblob[safetensors]") from None
    specification = getattr(safetensors, "TensorSpec", None)
    notes: dict[str, dict[str, Any]] = {}
    entries: dict[str, Any] = {}
    alive = []  # TensorSpec holds addresses, not arrays
    for name, tensor in tensors.items():
        array, note = elements(tensor, _NATIVE)
        array = np.require(array, requirements="C")
        if note is not None:
            notes[name] = note
        key = name if name != "__metadata__" else f"%{name}"
        if key != name:
            notes[key] = {"name": name, **(note or {})}
        dtype = _NAMES.get(tensor.mil_dtype) if note is None else None
        dtype = dtype or array.dtype.name
        if specification is not None:
            alive.append(array)
            entries[key] = specification(dtype=dtype, shape=array.shape, data_ptr=array.ctypes.data, data_len=array.nbytes)
        else:
            entries[key] = {"dtype": dtype, "shape": array.shape, "data": array.tobytes()}
        if progress is not None:
            progress(name, tensor.nbytes)
    metadata = {NOTES: json.dumps(notes)} if notes else None
    with whole_file(path, force) as temporary:
        try:
            safetensors.serialize_file(entries, os.fspath(temporary), metadata)
        except safetensors.SafetensorError as error:
            raise UnsupportedError(f"safetensors file: expected tensors that it takes, got a refusal: {error}") from None
    del alive
