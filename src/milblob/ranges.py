"""The elements of a tensor, decoded, any range of them at a time; and threads that share ranges."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import prod
from typing import Any, TypeVar

import numpy as np

from . import _codec
from .dense import Dense
from .dense import read as read_dense
from .dtypes import DType
from .formats.elements import Readable
from .tensor import Tensor

PIECE_COUNT = 1 << 18
"""Elements that are looked at in one go; a multiple of 8, so that packed ones begin at whole bytes."""

_STORED_NBYTES = 1 << 24

_T = TypeVar("_T")
_R = TypeVar("_R")


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
        return all(_equal(*pair) for pair in _pairs(a, b))
    nbits = a.count * a.dtype.nbits
    whole = nbits // 8
    if nbits % 8 and (int(x[whole]) ^ int(y[whole])) & (
        (1 << nbits % 8) - 1
    ):  # bits behind the last element count for nothing
        return False
    if _is_same_memory(x, y):
        return True
    parts = (
        (x[at : min(at + _STORED_NBYTES, whole)], y[at : min(at + _STORED_NBYTES, whole)])
        for at in range(0, whole, _STORED_NBYTES)
    )
    return all(in_threads(lambda pair: _equal(*pair), parts, whole > _STORED_NBYTES))


def _pairs(a: Elements, b: Elements) -> Iterator[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    for begin in starts(a.count):
        count = min(PIECE_COUNT, a.count - begin)
        yield a.read(begin, count).view(np.uint8), b.read(begin, count).view(np.uint8)


def _equal(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    return len(x) == 0 or _codec.equal_bytes(_codec.Buffer(x), 0, _codec.Buffer(y), 0, len(x))


def _is_same_memory(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    return bool(x.__array_interface__["data"][0] == y.__array_interface__["data"][0] and len(x) == len(y))


# -------------------------------------------------------------------------------------------------------------- threads


def in_threads(work: Callable[[_T], _R], items: Iterable[_T], is_much: bool) -> Iterator[_R]:
    """Yield work(item) for each, in order; of much work, several at a time. Stops early with its consumer."""
    workers = thread_count() if is_much and threading.current_thread() is threading.main_thread() else 1
    if workers < 2:
        yield from map(work, items)
        return
    from collections import deque
    from concurrent.futures import Future, ThreadPoolExecutor

    left = iter(items)
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[_R]] = deque(pool.submit(work, item) for item in islice(left, 2 * workers))
        try:
            while pending:
                result = pending.popleft().result()
                pending.extend(pool.submit(work, item) for item in islice(left, 1))
                yield result
        finally:
            for future in pending:
                future.cancel()


def thread_count() -> int:
    """Return how many threads work on large tensors: one for each processor that this process may use, at most 4."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(4, count))
