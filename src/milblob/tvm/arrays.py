"""Parameters as arrays by name: of an archive, as milblob's other commands and functions take them, and of a file."""

import os
from typing import Any

from ..arguments import as_path
from ..errors import FormatError
from ..formats.params import Parameters, Views, open_params
from ..formats.params_codes import codes_of
from ..formats.tensor_cache import open_cache
from ..storage import paths
from ..storage.mapped import closed_on_error
from .library import Library, Module
from .library import open as open_library


def named_parameters(library: Library) -> dict[str, tuple[Module, str]]:
    """Return the names of an archive's parameters in one list, each with its module and its name there.

    They are called as their file has it; of an archive with several modules, "module/parameter".

    Raises: FormatError: parameters that are broken; two that would be called the same.
    """
    found: dict[str, tuple[Module, str]] = {}
    for module in library.modules.values():
        for name in module.params:
            full = f"{module.name}/{name}" if len(library.modules) > 1 else name
            if full in found:
                message = (
                    f"names of parameters: expected each once, got {full!r:.100} in {found[full][0].name!r:.100} too"
                )
                raise FormatError(message, file=library.path)
            found[full] = (module, name)
    return found


def open_arrays(path: str, max_nbytes: int | None = None) -> Parameters:
    """Open the parameters of an archive: a mapping from names, as `named_parameters` has them, to `Parameter`.

    Raises: As `milblob.tvm.open`, and as `named_parameters`.
    """
    library = open_library(path, max_nbytes=max_nbytes)
    with closed_on_error(library):
        rows = named_parameters(library)
    return Parameters(rows, lambda _, place: place[0].params[place[1]], library.close)


def read_params(source: Any, *, tvm: str | None = None) -> Views:
    """Read the tensors of a `.params` file, or of a tensor cache, without copying them.

    Args:
        source: path, buffer or file object of a `.params` file; or path of a `tensor-cache.json` or
            `ndarray-cache.json`, or of the directory that holds one.
        tvm: version of TVM that wrote it, such as "0.14". The codes of bool and fp8 mean different things in different
            versions; without a version (6, 8) is bool and the others are DLPack's, as TVM writes them from 0.23 on.

    Returns:
        Mapping from names to arrays: read-only views of the mapped file, in its order, mostly unaligned (see
        `Parameter.read`). They keep the file mapped for as long as they live.

    Raises:
        OSError: the file cannot be opened.
        FormatError: it is broken. UnsupportedError: when a tensor is asked for whose element type NumPy cannot have.

    Examples:
        >>> milblob.tvm.read_params("demo.params")["w"]
        array([[1., 2.],
               [3., 4.]], dtype=float32)
    """
    if isinstance(source, str | os.PathLike):
        path = as_path(source)
        if path.endswith(".json") or paths.is_directory(path):
            codes_of(tvm)
            return Views(open_cache(path))
    return Views(open_params(source, tvm=tvm))
