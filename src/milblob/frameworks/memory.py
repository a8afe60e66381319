"""What the frameworks share: sources are opened, tensors are chosen, dtypes below a byte are widened."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np

from ..errors import UnsupportedError
from ..formats.opening import Tensors, open_source
from ..model.fetching import fetch
from ..model.lazy import LazyTensor
from ..remote.cache import CacheLike
from ..selection import Select, choose

Array = np.ndarray[Any, Any]


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
    cache: CacheLike,
) -> Iterator[dict[str, LazyTensor]]:
    """Open a model or a file of arrays for as long as the block runs, and yield the tensors that are selected.

    Raises: As `open_source` and `chosen`.
    """
    with ExitStack() as stack:
        tensors = open_source(
            stack, source, constants=constants, stored=stored, mmap=mmap, max_nbytes=max_nbytes,
            storage_options=storage_options, cache=cache,
        )  # fmt: skip
        yield chosen(tensors, select)


def chosen(tensors: Tensors, select: Select) -> dict[str, LazyTensor]:
    """Return the tensors that are selected, in the order of the file; those of a remote model are fetched at once.

    Raises: SelectionError: nothing is selected. As `open_arrays`.
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
