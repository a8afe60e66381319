"""Opening files of arrays, by the table of formats."""

import os
from typing import Any

from ..arguments import as_path
from ..errors import FormatError, UnsupportedError
from ..mirrored import shown
from ..model.identify import identify
from ..model.lazy import LazyTensor
from ..model.stored import Arrays
from ..storage import paths
from ..storage.foreign import Foreign, refusal
from ..storage.table import ARRAYS, SUFFIXES, format_of

_EXPECTED = f"{', '.join(SUFFIXES)}, .aimodel, a directory, an archive, a weight file or a listing"


def is_array_file(path: str) -> bool:
    """Whether a path is one that `open_arrays` takes: by its suffix; of a directory, by what is in it."""
    return array_kind(path) is not None


def array_kind(path: str) -> str | None:
    """Return what a path is that `open_arrays` takes, such as "npz", "params" or "archive"; None of others."""
    found = format_of(path)
    return None if found is None or found.is_model else found.kind


def open_arrays(
    source: str | os.PathLike[str],
    *,
    max_nbytes: int | None = None,
    tvm: str | None = None,
    constants: bool = False,
    stored: bool = False,
) -> Arrays[LazyTensor]:
    """Open .safetensors, .npz, .npy, .params, .gguf and .onnx files, directories of .npy files, weight files, listings.

    A .safetensors.index.json opens the files that it names, and a directory the checkpoint in it.
    Of an ONNX model, these are its initializers, under the names that the weights of the ML Program have that it was
    converted from. Also a tensor cache of TVM, or the parameters of a Model Library Format archive: as they are called
    in their file; of an archive with several modules, "module/parameter". Of a bundle of Core AI, its weights.

    Args:
        source: path of what to open.
        max_nbytes: as for `milblob.open`.
        tvm: version of TVM that wrote a .params file; see `milblob.tvm.read_params`. Other files ignore it.
        constants, stored: as for `milblob.open`, of bundles of Core AI; other files of arrays have neither.

    Returns:
        Mapping from names to `LazyTensor`: `StoredArray`, `Parameter` for TVM's files, `OnnxArray` for ONNX; a
        context manager. Arrays are views of the mapped file where it holds their elements, and remain valid after
        closing. Dtypes that the format lacks are restored from the notes that milblob wrote.

    Raises:
        OSError: it cannot be opened.
        FormatError: it is broken. UnsupportedError: another format; safetensors and GGUF without their libraries.
        An array is examined when it is accessed, which raises the same errors.

    Examples:
        >>> milblob.save({"w": np.arange(6.0).reshape(2, 3)}, "weights.npz")
        >>> with milblob.open_arrays("weights.npz") as arrays:
        ...     print(arrays["w"].dtype, arrays["w"].shape, arrays["w"].read().sum())
        float64 (2, 3) 15.0
    """
    path = as_path(source)
    try:
        return _open(path, max_nbytes, tvm, constants, stored)
    except (FormatError, UnsupportedError) as error:
        found = _other(path) if error.code != "lfs-pointer" else None
        if found is None:
            raise
        raise refusal(found, f"arrays: expected {_EXPECTED}", path) from error


def has_views(path: str) -> bool:
    """Whether a path is of a format with functions, constants and stored parts, as a model has them."""
    row = format_of(path)
    return row is not None and bool(row.open_model)


def _open(path: str, max_nbytes: int | None, tvm: str | None, constants: bool, stored: bool) -> Arrays[LazyTensor]:
    row = format_of(path)
    if row is None and paths.is_directory(path):
        row = ARRAYS["npy"]  # its reader reports what a directory must contain
    if row is None:
        raise UnsupportedError(f"arrays: expected {_EXPECTED}, got {path}")
    options: dict[str, Any] = {"tvm": tvm} if tvm is not None and row.kind == "params" else {}
    if row.open_model:
        options |= {"constants": constants, "stored": stored}
    elif constants or stored:
        raise ValueError(f"{shown(path)}: expected a model, which constants and stored are about")
    found: Arrays[LazyTensor] = row.function("open")(path, max_nbytes=max_nbytes, **options)
    return found


def _other(path: str) -> Foreign | None:
    """Return the actual kind of a file that could not be opened, if it does not match the name of the file."""
    row = format_of(path)
    if (row is not None and row.check and row.kind != "params") or not paths.is_there(path):
        return None
    found = identify(path)
    if isinstance(found, Foreign):
        if found.name == "directory":
            return None
        own = row.kind if row is not None and row.called else ""
        return None if found.name == own or (own, found.name) == ("npz", "zip") else found
    if found not in ("mlpackage", "mlmodelc", "mil") and not path.endswith(".mlmodel"):
        return None
    return Foreign("model", "a Core ML model", f"milblob convert {path} -o OUT.npz writes its tensors to a file")
