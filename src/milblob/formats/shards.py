"""A checkpoint in several safetensors files, with the index that Hugging Face's libraries write beside them."""

import contextlib
import os
from typing import Any

from ..errors import FormatError
from ..model.manifest import read_json
from ..model.stored import Arrays, StoredArray
from ..storage import paths
from ..storage.beneath import Location
from . import safetensors
from .directories import FILE_SUFFIX, INDEX_SUFFIX, checkpoint_in


def open_path(path: str, max_nbytes: int | None = None) -> Arrays[StoredArray]:
    """Open an index, or the checkpoint in a directory. Raises as `open_arrays`, `safetensors.open_arrays`."""
    found = checkpoint_in(path) if paths.is_directory(path) else path
    open_it = open_arrays if found is None or found.endswith(INDEX_SUFFIX) else safetensors.open_arrays
    return open_it(found or path, max_nbytes)


def open_arrays(path: str, max_nbytes: int | None = None) -> Arrays[StoredArray]:
    """Open the arrays of all files that an index names.

    Raises: OSError: the index or a file cannot be opened. FormatError: a broken index; a file that is not beside it; a
    file that lacks an array. UnsupportedError: as `safetensors.open_arrays`.
    """
    directory = os.path.dirname(path)
    document = read_json(Location(path), "index of safetensors files", unique=True, code="")
    places = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise FormatError("index of safetensors files: expected a weight_map, array -> file; got none", file=path)
    files: dict[str, Arrays[StoredArray]] = {}
    with contextlib.ExitStack() as stack:
        for name in dict.fromkeys(places.values()):
            if os.path.basename(name) != name or not name.endswith(FILE_SUFFIX):
                message = f"expected names of {FILE_SUFFIX} files beside it, got {name!r:.200}"
                raise FormatError(f"index of safetensors files: {message}", file=path)
            files[name] = stack.enter_context(safetensors.open_arrays(os.path.join(directory, name), max_nbytes))
        for array, name in places.items():
            if array not in files[name]:
                message = f"array {array!r:.200}: expected in {name} because of the index, got a file without it"
                raise FormatError(message, file=path)
        close = stack.pop_all().close

    def find(name: str, file: Any) -> StoredArray:
        return files[file][name]

    return Arrays(places, find, close)
