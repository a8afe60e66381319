"""TVM's weights: `.params` files, tensor caches, and Model Library Format archives of every version.

    weights = milblob.tvm.read_params("model.params")     # name -> ndarray, views of the mapped file
    with milblob.tvm.open("model.tar") as library:        # .tar, .tar.gz or the directory it was unpacked to
        library.modules["default"].params["p0"].read()

It reads and changes archives that TVM wrote. It does not compile, and makes no archive from nothing. docs/tvm.md has
the formats.
"""

from ..formats.params import Parameter, Parameters, Views, open_params, write_params
from ..formats.tensor_cache import read_cache
from .arrays import read_params
from .check import check_archive, check_params
from .library import Library, Module, open

__all__ = [
    "Library", "Module", "Parameter", "Parameters", "Views", "check_archive", "check_params", "open", "open_params",
    "read_cache", "read_params", "write_params",
]  # fmt: skip
