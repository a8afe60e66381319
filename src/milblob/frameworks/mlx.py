"""Weights as arrays of MLX."""

from typing import Any

import numpy as np

from ..dtypes import DType
from ..extras import require
from ..model.lazy import LazyTensor
from ..remote.cache import CacheLike
from ..selection import Select
from .memory import Array, bytes_as_integers, opened, refuse


def load(
    source: Any,
    *,
    select: Select = None,
    constants: bool = False,
    stored: bool = False,
    mmap: bool = True,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> dict[str, Any]:
    """Read the weights of a model as MLX arrays: name -> mlx.core.array.

    Args:
        source: what `milblob.open` or `milblob.open_arrays` takes, or what they returned.
        select: the weights to read: a glob, several, or a function that is called with a name.
        constants, stored, mmap, max_nbytes, storage_options, cache: as for `milblob.open`.

    Returns:
        dict in the order of the file. MLX copies the values. bfloat16 is MLX's own type; integers below a byte are int8
        or uint8.

    Raises:
        As `milblob.open` and `Tensor.read`; ImportError: mlx is not installed. SelectionError: nothing is selected.
        UnsupportedError: strings and fp8, which MLX has no arrays of.

    Examples:
        >>> weights = milblob.mlx.load("demo.mlpackage", select="head_*")
        >>> weights["head_weight"].shape, weights["head_weight"].dtype
        ((96, 48), mlx.core.float32)
    """
    require("mlx.core")
    options: dict[str, Any] = {"constants": constants, "stored": stored, "mmap": mmap, "max_nbytes": max_nbytes}
    with opened(source, select, **options, storage_options=storage_options, cache=cache) as tensors:
        return {name: of_array(tensor.read(), tensor) for name, tensor in tensors.items()}


def of_array(array: Array, tensor: LazyTensor) -> Any:
    """Return a copy of an array of values, or of some values, of a tensor as an mlx.core.array.

    Raises: UnsupportedError: strings and fp8.
    """
    core = require("mlx.core")
    if tensor.mil_dtype in (DType.STRING, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2):
        raise refuse(tensor, "MLX")
    if tensor.mil_dtype is DType.BFLOAT16:
        return core.array(array.view(np.uint16)).view(core.bfloat16)
    array = bytes_as_integers(array)
    return core.array(array, dtype=getattr(core, "bool_" if array.dtype == bool else array.dtype.name))
