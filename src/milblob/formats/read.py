"""Opening files of arrays: which format a path has."""

import os

from ..errors import UnsupportedError
from ..model.package import BLOB_SUFFIXES
from ..model.stored import Arrays
from ..storage import paths

SUFFIXES = (".npz", ".safetensors", ".npy")
LISTINGS = (".json", ".mil")


def is_array_file(path: str) -> bool:
    """Whether `open_arrays` takes a path: judged by its suffix; for a directory, by its contents."""
    if paths.is_directory(path):
        names = os.listdir(path)
        return any(name.endswith(".npy") for name in names) and not {"Manifest.json", "model.mil", "model0"} & {*names}
    return os.path.splitext(path)[1].lower() in SUFFIXES


def open_arrays(path: str | os.PathLike[str], *, max_nbytes: int | None = None) -> Arrays:
    """Open a .safetensors, .npz or .npy file, a directory of .npy files, a weight file or a listing of one.

    Args:
        path: what to open.
        max_nbytes: as for `milblob.open`.

    Returns:
        Mapping from names to `StoredArray`; a context manager. Arrays are zero-copy over the mapped file wherever it
        holds their elements, and stay valid after closing. milblob's notes restore dtypes that the format lacks.

    Raises:
        OSError: it cannot be opened.
        FormatError: it is broken. UnsupportedError: another format; safetensors without its library.
        An array is examined when it is accessed, which raises the same errors.
    """
    path = os.fsdecode(os.fspath(path))
    suffix = os.path.splitext(path)[1].lower()
    if paths.is_directory(path):
        from . import npy_dir

        return npy_dir.open_arrays(path, max_nbytes)
    if suffix == ".npz":
        from . import npz

        return npz.open_arrays(path, max_nbytes)
    if suffix == ".safetensors":
        from . import safetensors

        return safetensors.open_arrays(path, max_nbytes)
    if suffix == ".npy":
        from . import npy_dir

        return npy_dir.open_file(path, max_nbytes)
    if suffix in (*BLOB_SUFFIXES, *LISTINGS):
        from . import weights

        return weights.open_arrays(path, max_nbytes)
    raise UnsupportedError(
        f"arrays: expected .safetensors, .npz, .npy, a directory of .npy, a weight file or a listing of one, got {path}"
    )
