"""Files of arrays: which format a path is of."""

import os

from ..errors import UnsupportedError
from ..model.package import BLOB_SUFFIXES
from ..model.stored import Arrays

SUFFIXES = (".npz", ".safetensors", ".npy")
LISTINGS = (".json", ".mil")


def is_array_file(path: str) -> bool:
    """Whether a path is one that `open_arrays` takes: by its suffix; of a directory, by what is in it."""
    if os.path.isdir(path):
        names = os.listdir(path)
        return any(name.endswith(".npy") for name in names) and not {"Manifest.json", "model.mil", "model0"} & {*names}
    return os.path.splitext(path)[1].lower() in SUFFIXES


def open_arrays(path: str | os.PathLike[str]) -> Arrays:
    """Open a .safetensors, .npz or .npy file, a directory of .npy files, a weight file or a listing of one.

    Returns:
        Mapping from names to `StoredArray`; a context manager. Arrays lie over the mapped file wherever it holds their
        elements, and stay valid after closing. What milblob noted about dtypes that the format lacks is heeded.

    Raises:
        OSError: it cannot be opened.
        FormatError: it is broken. UnsupportedError: another format; safetensors without its library.
        What an array is is looked at when it is asked for, and raises the same errors.
    """
    path = os.fsdecode(os.fspath(path))
    suffix = os.path.splitext(path)[1].lower()
    if os.path.isdir(path):
        from . import npy_dir

        return npy_dir.open_arrays(path)
    if suffix == ".npz":
        from . import npz

        return npz.open_arrays(path)
    if suffix == ".safetensors":
        from . import safetensors

        return safetensors.open_arrays(path)
    if suffix == ".npy":
        from . import npy_dir

        return npy_dir.open_file(path)
    if suffix in (*BLOB_SUFFIXES, *LISTINGS):
        from . import weights

        return weights.open_arrays(path)
    raise UnsupportedError(
        f"arrays: expected .safetensors, .npz, .npy, a directory of .npy, a weight file or a listing of one, got {path}"
    )
