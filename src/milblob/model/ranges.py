"""The elements of a tensor, decoded, any range of them at a time."""

from math import prod
from typing import Any

import numpy as np

from .. import _codec
from ..dtypes import DType
from ..threads import ordered
from ..values import parallel
from ..values.dense import Dense
from ..values.dense import read as read_dense
from .elements import Readable
from .tensor import Tensor

PIECE_COUNT = 1 << 18
"""Elements that are looked at in one go; a multiple of 8, so that packed ones begin at whole bytes."""


class Elements:
    """The elements of a tensor in row-major order, whatever they are stored as.

    A few pieces are in memory at a time, unless the tensor itself can only be read whole (an immediate that is varints,
    an array of a compressed .npz).

    Args:
        tensor: of a model, or an array of another format; not of strings.

    Attributes:
        dtype: DType. shape, count: of the whole.

    Raises:
        TypeError: strings. As `Tensor.read`.
    """

    def __init__(self, tensor: Readable) -> None:
        self.dtype = tensor.mil_dtype
        if self.dtype is DType.STRING:
            raise TypeError(f"dtype of {tensor.name}: expected numbers, got string")
        self._dense: Dense | None = None
        self._flat: np.ndarray[Any, Any] | None = None
        self._packed: np.ndarray[Any, Any] | None = None
        if isinstance(tensor, Tensor) and tensor._compressed is not None:
            self._dense = tensor._dense()
            self.shape = self._dense.shape
        elif self.dtype.is_sub_byte:
            self.shape = tensor.shape
            self._packed = tensor.read_packed()
        else:
            values = tensor.read()
            self.shape = values.shape
            self._flat = values.reshape(-1)
        self.count = prod(self.shape)

    def read(self, begin: int, count: int) -> np.ndarray[Any, Any]:
        """Return elements [begin, begin + count) as a vector, one byte each below 8 bits; `begin` a multiple of 8."""
        if self._flat is not None:
            return self._flat[begin : begin + count]
        if self._dense is not None:
            return read_dense(self._dense, None, begin, (count,))
        nbits = self.dtype.nbits
        out = np.empty(count, np.uint8)
        if count:
            _codec.unpack_bits(_codec.Buffer(self._packed), begin * nbits // 8, count, nbits, out)  # type: ignore[arg-type]
        return out.view(self.dtype.numpy)

    @property
    def stored(self) -> np.ndarray[Any, Any] | None:
        """The bytes of all elements as a weight file has them; None for compressed weights."""
        if self._packed is not None:
            return self._packed
        return None if self._flat is None else self._flat.view(np.uint8)


def starts(count: int) -> range:
    """Where pieces of `count` elements begin."""
    return range(0, count, PIECE_COUNT)


def have_equal_bits(a: Elements, b: Elements) -> bool:
    """Whether two tensors of one dtype and shape have the same bits; reads on to the first difference."""
    x, y = a.stored, b.stored
    if x is None or y is None:

        def work(begin: int) -> bool:
            count = min(PIECE_COUNT, a.count - begin)
            return _equal(a.read(begin, count).view(np.uint8), b.read(begin, count).view(np.uint8))

        return all(ordered(work, starts(a.count), a.count > 4 * PIECE_COUNT))
    nbits = a.count * a.dtype.nbits
    whole = nbits // 8
    if nbits % 8 and (int(x[whole]) ^ int(y[whole])) & (
        (1 << nbits % 8) - 1
    ):  # bits behind the last element count for nothing
        return False
    if _is_same_memory(x, y):
        return True
    return _equal(x[:whole], y[:whole])


def _equal(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    return len(x) == 0 or parallel.equal_bytes(_codec.Buffer(x), 0, _codec.Buffer(y), 0, len(x))


def _is_same_memory(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    return bool(x.__array_interface__["data"][0] == y.__array_interface__["data"][0] and len(x) == len(y))
