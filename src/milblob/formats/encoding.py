"""How to store a tensor in a format that lacks its dtype: raw elements, and a note with the original dtype."""

from typing import Any

import numpy as np

from ..dtypes import DType
from ..model.lazy import LazyTensor
from ..values.arrays import sound_bools

_NUMPY = "BOOL FLOAT16 FLOAT32 FLOAT64 INT8 INT16 INT32 INT64 UINT8 UINT16 UINT32 UINT64"
PLAIN = frozenset(DType[name] for name in _NUMPY.split())
"""Dtypes that NumPy itself has."""


def elements(
    tensor: LazyTensor, native: frozenset[DType] = PLAIN, packed: bool = False
) -> tuple[np.ndarray[Any, Any], dict[str, Any] | None]:
    """Read a tensor as an array that a format with the dtypes `native` can hold, without losing a bit.

    Args:
        tensor: to be read.
        native: dtypes that the format has; UINT8 is one of them.
        packed: store dtypes below 8 bits packed, as a weight file does, instead of one element per byte.

    A dtype that is not in `native` becomes unsigned integers of its own width: int4 and uint1 to uint6 become uint8,
    one element per byte (int4 as its nibble: -1 is 15), fp8 becomes uint8, bfloat16 uint16. With `packed`, dtypes below
    8 bits become their bytes in a weight file: uint8, one-dimensional. So do, with or without it, elements wider than
    any integer of the format. Their note has "shape" and "packed". Strings become the bytes of a JSON list.

    `stored.restored` is the inverse.

    Returns:
        (an array of a dtype that the format has, over the tensor's own bytes where they are its elements; None if that
        is the tensor, else what is needed to restore it: {"dtype": milblob's name, ...}).

    Raises:
        As `Tensor.read`.
    """
    dtype = tensor.mil_dtype
    tensor.place.account()
    if dtype in native:
        array = tensor.read()
        return sound_bools(array) if dtype is DType.BOOL else array, None
    if dtype is DType.STRING:
        import json

        array = tensor.read()
        text = json.dumps(array.reshape(-1).tolist(), ensure_ascii=False).encode()
        return np.frombuffer(text, np.uint8), {"dtype": "string", "shape": list(array.shape)}
    if (packed and dtype.is_sub_byte) or (dtype.nbits > 8 and DType[f"UINT{dtype.nbits}"] not in native):
        return tensor.read_packed(), {"dtype": str(dtype), "shape": list(tensor.shape), "packed": True}
    array = tensor.read()
    stored = array.view(np.uint8 if array.itemsize == 1 else f"<u{array.itemsize}")
    if dtype.is_sub_byte and stored.size and int(stored.max()) >> dtype.nbits:
        stored = stored & ((1 << dtype.nbits) - 1)  # ml_dtypes ignores what is above: 0xFF is -1 in int4, as 0x0F is
    return stored, {"dtype": str(dtype)}
