"""What the frameworks share: sources are opened, tensors are chosen, dtypes below a byte are widened."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ..arguments import as_path, require_flags
from ..errors import UnsupportedError
from ..formats.read import has_views, is_array_file, open_arrays
from ..mirrored import is_remote
from ..model.fetching import fetch
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.open import open as open_any
from ..model.stored import Arrays
from ..selection import Select, choose

Array = np.ndarray[Any, Any]
Tensors = Model | Arrays[LazyTensor]


@contextmanager
def opened(
    source: Any,
    select: Select,
    *,
    constants: bool,
    stored: bool = False,
    mmap: bool,
    max_nbytes: int | None,
    storage_options: dict[str, Any] | None,
) -> Iterator[dict[str, LazyTensor]]:
    """Open a model or a file of arrays for as long as the block runs, and yield the tensors that are selected.

    Raises:
        As `open_tensors` and `chosen`.
    """
    with ExitStack() as stack:
        tensors = open_tensors(
            stack, source, constants=constants, stored=stored, mmap=mmap, max_nbytes=max_nbytes,
            storage_options=storage_options,
        )  # fmt: skip
        yield chosen(tensors, select)


def open_tensors(
    stack: ExitStack,
    source: Any,
    *,
    constants: bool = False,
    stored: bool = False,
    mmap: bool = True,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> Tensors:
    """Open a model or a file of arrays; see `milblob.open` for the options.

    Args:
        stack: closes what is opened here.
        source: what `milblob.open` or `milblob.open_arrays` takes, or what they returned.

    Raises:
        As they do; ValueError: options for a source that is open.
    """
    if isinstance(source, Model | Arrays):
        if constants or stored or not mmap or max_nbytes is not None or storage_options:
            raise ValueError("source: expected a path with these options, got an open model, which has its own")
        return source
    if storage_options or is_remote(source):
        from ..remote.mirror import local

        source = stack.enter_context(local(source, storage_options, max_nbytes))
    if isinstance(source, str) or hasattr(source, "__fspath__"):
        path = as_path(source)
        if is_array_file(path) and not has_views(path):
            require_flags(mmap=mmap)
            return stack.enter_context(open_arrays(path, max_nbytes=max_nbytes, constants=constants, stored=stored))
    return stack.enter_context(open_any(source, constants=constants, stored=stored, mmap=mmap, max_nbytes=max_nbytes))


def chosen(tensors: Tensors, select: Select) -> dict[str, LazyTensor]:
    """Return the tensors that are selected, in the order of the file; those of a remote model are fetched at once.

    Raises:
        SelectionError: nothing is selected. As `open_arrays`.
    """
    names, _ = choose(tensors, select, getattr(tensors, "path", None) or "the source")
    found: dict[str, LazyTensor] = {name: tensors[name] for name in names}
    fetch(found.values())
    return found


def bytes_as_integers(array: Array) -> Array:
    """Return an array of a type below a byte, as ml_dtypes has them, as int8 or uint8; others as they are."""
    if array.dtype.isbuiltin == 1:  # NumPy's own; to ask for a name takes longer than all else here
        return array
    if array.dtype.name in ("int2", "int4"):
        return array.astype(np.int8)
    return array.astype(np.uint8) if array.dtype.name in ("uint1", "uint2", "uint4") else array


def refuse(tensor: LazyTensor, framework: str, advice: str = "") -> UnsupportedError:
    """Return the error about a tensor of a dtype that a framework lacks."""
    message = f"dtype: expected one that {framework} has, got {tensor.mil_dtype}{advice}; select= leaves the tensor out"
    return UnsupportedError(message, where=tensor.place.where, file=tensor.place.file)
