"""Opening files of arrays: which format a path has."""

import os
from importlib import import_module

from ..arguments import as_path
from ..errors import FormatError, UnsupportedError
from ..model.identify import BLOB_SUFFIXES, identify
from ..model.lazy import LazyTensor
from ..model.stored import Arrays
from ..storage import paths
from ..storage.foreign import Foreign, refusal
from . import archive
from .params import open_params
from .shards import SUFFIX as INDEX
from .shards import checkpoint_in

SUFFIXES = (".npz", ".safetensors", ".npy", ".params", ".gguf", ".onnx")
CACHES = ("tensor-cache.json", "ndarray-cache.json")
LISTINGS = (".json", ".mil")
_MODULES = {
    **{f".{name}": name for name in ("npz", "safetensors", "gguf", "onnx")},
    **dict.fromkeys((*BLOB_SUFFIXES, *LISTINGS), "weights"),
}
"""Suffix -> the module that opens such files, imported when it is needed first."""
_EXPECTED = ".safetensors, .npz, .npy, .params, .gguf, .onnx, a directory, an archive, a weight file or a listing"


def is_array_file(path: str) -> bool:
    """Whether a path is one that `open_arrays` takes: by its suffix; of a directory, by what is in it."""
    return array_kind(path) is not None


def array_kind(path: str) -> str | None:
    """Return what a path is that `open_arrays` takes, such as "npz", "params" or "archive"; None of others."""
    if paths.is_directory(path):
        if archive.is_archive(path):
            return "archive"
        if is_cache(path):
            return "tensor-cache"
        if _holds_npy(path):
            return "npy"
        return "safetensors" if checkpoint_in(path) is not None else None
    if archive.is_archive_name(path):  # a file is known by its name alone: the file system is asked once
        return "archive"
    if _is_cache_name(path):
        return "tensor-cache"
    if path.endswith(INDEX):
        return "safetensors"
    suffix = os.path.splitext(path)[1].lower()
    return suffix[1:] if suffix in SUFFIXES else None


def is_cache(path: str) -> bool:
    """Whether a path is a tensor cache of TVM, or a directory with one."""
    if paths.is_directory(path):
        return any(paths.is_there(os.path.join(path, name)) for name in CACHES)
    return _is_cache_name(path)


def _is_cache_name(path: str) -> bool:
    return path.endswith(CACHES) and os.path.basename(path) in CACHES


def _holds_npy(path: str) -> bool:
    names = os.listdir(path)
    return any(name.endswith(".npy") for name in names) and not {"Manifest.json", "model.mil", "model0"} & {*names}


def open_arrays(
    path: str | os.PathLike[str], *, max_nbytes: int | None = None, tvm: str | None = None
) -> Arrays[LazyTensor]:
    """Open .safetensors, .npz, .npy, .params, .gguf and .onnx files, directories of .npy files, weight files, listings.

    A .safetensors.index.json opens the files that it names, and a directory the checkpoint in it.
    Of an ONNX model, these are its initializers, under the names that the weights of the ML Program have that it was
    converted from. Also a tensor cache of TVM, or the parameters of a Model Library Format archive: as they are called
    in their file; of an archive with several modules, "module/parameter".

    Args:
        path: what to open.
        max_nbytes: as for `milblob.open`.
        tvm: version of TVM that wrote a .params file; see `milblob.tvm.read_params`. Of other files it says nothing.

    Returns:
        Mapping from names to `LazyTensor`: `StoredArray`, `Parameter` for TVM's files, `OnnxArray` for ONNX; a
        context manager. Arrays lie over the mapped file wherever it holds their elements, and stay valid after
        closing. Dtypes that the format lacks are restored from the notes that milblob left.

    Raises:
        OSError: it cannot be opened.
        FormatError: it is broken. UnsupportedError: another format; safetensors and GGUF without their libraries.
        An array is examined when it is accessed, which raises the same errors.
    """
    path = as_path(path)
    try:
        return _open(path, max_nbytes, tvm)
    except (FormatError, UnsupportedError) as error:
        found = _other(path) if error.code != "lfs-pointer" else None
        if found is None:
            raise
        raise refusal(found, f"arrays: expected {_EXPECTED}", path) from error


def _open(path: str, max_nbytes: int | None, tvm: str | None) -> Arrays[LazyTensor]:
    suffix = os.path.splitext(path)[1].lower()
    if archive.is_archive(path):
        return archive.kind().open_arrays(path, max_nbytes)
    if suffix == ".params" and not paths.is_directory(path):
        return open_params(path, tvm=tvm, max_nbytes=max_nbytes)
    module, function = _MODULES.get(suffix, ""), "open_arrays"
    if is_cache(path):
        module, function = "tensor_cache", "open_cache"
    elif path.endswith(INDEX):
        module = "shards"
    elif paths.is_directory(path):
        checkpoint = None if _holds_npy(path) else checkpoint_in(path)
        if checkpoint is not None:
            return _open(checkpoint, max_nbytes, tvm)
        module = "npy_dir"
    elif suffix == ".npy":
        module, function = "npy_dir", "open_file"
    if not module:
        raise UnsupportedError(f"arrays: expected {_EXPECTED}, got {path}")
    found: Arrays[LazyTensor] = getattr(import_module(f"{__package__}.{module}"), function)(path, max_nbytes)
    return found


def _other(path: str) -> Foreign | None:
    """Return what a path is that could not be opened, if it is of another kind than its name says."""
    if archive.is_archive(path) or not paths.is_there(path):
        return None
    found = identify(path)
    if isinstance(found, Foreign):
        suffix = os.path.splitext(path)[1].lower()
        if found.name == "directory":
            return None
        is_own = suffix in SUFFIXES and found.name == suffix[1:]
        return None if is_own or (suffix, found.name) == (".npz", "zip") else found
    if found not in ("mlpackage", "mlmodelc", "mil") and not path.endswith(".mlmodel"):
        return None
    return Foreign("model", "a Core ML model", f"milblob extract {path} writes its tensors to a file")
