"""Weights as arrays of JAX."""

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
    device: Any = None,
    constants: bool = False,
    stored: bool = False,
    mmap: bool = True,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> dict[str, Any]:
    """Read the weights of a model as JAX arrays: name -> jax.Array.

    Args:
        source: what `milblob.open` or `milblob.open_arrays` takes, or what they returned.
        select: the weights to read: a glob, several, or a function that is called with a name.
        device: a jax.Device or a sharding, as `jax.device_put` takes; None: JAX's default.
        constants, stored, mmap, max_nbytes, storage_options, cache: as for `milblob.open`.

    Returns:
        dict in the order of the file. bfloat16, fp8 and int4 are JAX's own types; other integers below a byte are
        uint8. JAX's arrays never change, so on the CPU it may share the pages of the mapped file.

    Raises:
        As `milblob.open` and `Tensor.read`; ImportError: jax is not installed. SelectionError: nothing is selected.
        UnsupportedError: strings; types of 64 bits, unless JAX is set to have them (jax_enable_x64): it would round
        their values.

    Examples:
        >>> weights = milblob.jax.load("demo.mlpackage", select="head_*")
        >>> weights["head_weight"].shape, weights["head_weight"].dtype
        ((96, 48), dtype('float32'))
    """
    require("jax")
    options: dict[str, Any] = {"constants": constants, "stored": stored, "mmap": mmap, "max_nbytes": max_nbytes}
    with opened(source, select, **options, storage_options=storage_options, cache=cache) as tensors:
        return {name: of_array(tensor.read(), tensor, device) for name, tensor in tensors.items()}


def of_array(array: Array, tensor: LazyTensor, device: Any) -> Any:
    """Return an array of values, or of some values, of a tensor as a jax.Array; the array must never change.

    Raises: UnsupportedError: strings; types of 64 bits that JAX is not set to have.
    """
    jax = require("jax")
    if tensor.mil_dtype is DType.STRING:
        raise refuse(tensor, "JAX")
    if tensor.mil_dtype.nbits == 64 and not jax.config.jax_enable_x64:
        raise refuse(tensor, "JAX", " while jax_enable_x64 is False")
    if array.dtype.name not in ("int4", "uint4"):
        array = bytes_as_integers(array)
    return jax.device_put(np.ascontiguousarray(array).reshape(array.shape), None if device == "cpu" else device)
