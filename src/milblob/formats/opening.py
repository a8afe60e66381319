"""The one way to open a `source`: a model or a file of arrays, local or remote, or open already."""

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from ..arguments import as_path, require_flags
from ..mirrored import is_remote
from ..model import open as opening
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.stored import Arrays
from .read import has_views, is_array_file, open_arrays

if TYPE_CHECKING:
    from ..remote.cache import CacheLike

Tensors = Model | Arrays[LazyTensor]


def open_source(
    stack: ExitStack,
    source: Any,
    *,
    constants: bool = False,
    stored: bool = False,
    mmap: bool = True,
    tvm: str | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: "CacheLike" = None,
) -> Tensors:
    """Open a model or a file of arrays; see `milblob.open` and `milblob.open_arrays` for the options.

    `stack`: closes what is opened here. `source`: what `milblob.open` or `milblob.open_arrays` takes, or what they
    returned.
    Raises: As they do; ValueError: options for a source that is open.
    """
    if isinstance(source, Model | Arrays):
        if constants or stored or not mmap or storage_options or max_nbytes is not None or cache is not None:
            raise ValueError("options: expected none of an open model, which has its own")
        return source
    if storage_options or cache is not None or is_remote(source):
        from ..remote.mirror import local

        source = stack.enter_context(local(source, storage_options, max_nbytes, cache))
    if isinstance(source, str | os.PathLike):
        path = as_path(source)
        if is_array_file(path) and not has_views(path):
            require_flags(mmap=mmap)
            arrays = open_arrays(path, tvm=tvm, max_nbytes=max_nbytes, constants=constants, stored=stored)
            return stack.enter_context(arrays)
    model = opening.open(source, constants=constants, stored=stored, mmap=mmap, max_nbytes=max_nbytes)
    return stack.enter_context(model)
