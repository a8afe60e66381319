"""The elements of any tensor: decoded, any range at a time; or packed as in weight files, in bounded pieces."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import _codec
from ..dtypes import DType
from ..threads import ordered
from ..values import parallel
from ..values.dense import Dense, read
from ..values.tensorvalue import stored_bytes
from ..wording import escape
from .lazy import LazyTensor

PIECE_COUNT = 1 << 18
"""Elements that are looked at in one go; a multiple of 8, so that packed ones begin at whole bytes."""

PIECE_NBYTES = 1 << 24
"""What is hashed or counted in one go: large enough for threads to pay, small enough to be held several times."""

_TINY_NBYTES = 1 << 16
_GAP_COUNT, _MAX_GAPS = 1 << 16, 64  # of elements between two that are sampled

_T = TypeVar("_T", bound=LazyTensor)
_R = TypeVar("_R")


# -------------------------------------------------------------------------------------------------------------- decoded


class Elements:
    """The elements of a tensor in row-major order, however they are stored.

    Only a few pieces are in memory at a time, unless the tensor can only be read whole (an immediate stored as varints,
    an array of a compressed .npz).

    `tensor`: of a model, or an array of another format; not of strings.
    Raises: TypeError: strings. As `Tensor.read`.
    """

    def __init__(self, tensor: LazyTensor) -> None:
        self.dtype = tensor.mil_dtype  # DType. shape, count: of the whole.
        if self.dtype is DType.STRING:
            raise TypeError(escape(f"dtype of {tensor.name}: expected numbers, got string"))
        self._flat: np.ndarray[Any, Any] | None = None
        self._packed: np.ndarray[Any, Any] | None = None
        place = tensor.place
        place.account()
        self._dense: Dense | None = place.dense()
        if self._dense is not None:
            self.shape = self._dense.shape
        elif self.dtype.is_sub_byte:
            self.shape = tensor.shape
            self._packed = place.read_packed()
        else:
            values = place.read()
            self.shape = values.shape
            self._flat = values.reshape(-1)
        self.count = prod(self.shape)

    def read(self, begin: int, count: int) -> np.ndarray[Any, Any]:
        """Return elements [begin, begin + count) as a vector, one byte each below 8 bits; `begin`: a multiple of 8."""
        if self._flat is not None:
            return self._flat[begin : begin + count]
        if self._dense is not None:
            return read(self._dense, None, begin, (count,))
        nbits = self.dtype.nbits
        out = np.empty(count, np.uint8)
        if count:
            _codec.unpack_bits(_codec.Buffer(self._packed), begin * nbits // 8, count, nbits, out)  # type: ignore[arg-type]
        return out.view(self.dtype.numpy)

    def sample(self, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the elements at the given positions, in any order, as float64."""
        if self._flat is not None:
            return np.asarray(self._flat[positions].astype(np.float64))
        order = np.argsort(positions)
        ascending = positions[order]
        result = np.empty(len(positions))
        gaps = np.flatnonzero(np.diff(ascending) > _GAP_COUNT) + 1  # what is between is not worth decoding
        edges = [0, *gaps.tolist(), len(positions)] if len(gaps) < _MAX_GAPS else [0, len(positions)]
        for low, end in itertools.pairwise(edges):
            while low < end:
                first = int(ascending[low]) & ~7
                high = low + int(np.searchsorted(ascending[low:end], first + PIECE_COUNT))
                piece = self.read(first, int(ascending[high - 1]) + 1 - first)
                result[order[low:high]] = piece[ascending[low:high] - first]
                low = high
        return result

    @property
    def values(self) -> np.ndarray[Any, Any] | None:
        """The array of all elements where it is in memory or mapped; None for compressed weights and packed ones."""
        return None if self._flat is None else self._flat.reshape(self.shape)

    @property
    def stored(self) -> np.ndarray[Any, Any] | None:
        """The bytes of all elements as in a weight file; None for compressed weights."""
        if self._packed is not None:
            return self._packed
        return None if self._flat is None else self._flat.view(np.uint8)


def starts(count: int) -> range:
    """Return the first index of each piece of `count` elements."""
    return range(0, count, PIECE_COUNT)


def have_equal_bits(a: Elements, b: Elements) -> bool:
    """Return whether two tensors of one dtype and shape have the same bits; stops at the first difference."""
    x, y = a.stored, b.stored
    if x is None or y is None:

        def work(begin: int) -> bool:
            count = min(PIECE_COUNT, a.count - begin)
            return _equal(a.read(begin, count).view(np.uint8), b.read(begin, count).view(np.uint8))

        return all(ordered(work, starts(a.count), a.count > 4 * PIECE_COUNT))
    nbits = a.count * a.dtype.nbits
    return not nbits or _is_same_memory(x, y) or _have_equal_bits(_codec.Buffer(x), 0, _codec.Buffer(y), 0, nbits)


def are_stored_alike(a: LazyTensor, b: LazyTensor) -> bool:
    """As `have_equal_bits`, for tensors that are not compressed: compares their stored bytes without making arrays.

    For a small tensor, an array costs several times as much as the comparison.

    Raises: As `Tensor.read`.
    """
    ours, theirs = a.place, b.place
    ours.account()
    x = ours.packed()
    theirs.account()
    y = theirs.packed()
    if x.buffer is y.buffer and x.offset == y.offset:
        return True
    return _have_equal_bits(x.buffer, x.offset, y.buffer, y.offset, prod(x.shape) * x.dtype.nbits)


def _have_equal_bits(x: _codec.Buffer, x_offset: int, y: _codec.Buffer, y_offset: int, nbits: int) -> bool:
    whole, rest = divmod(nbits, 8)
    if rest:  # bits after the last element do not count
        last = memoryview(x)[x_offset + whole] ^ memoryview(y)[y_offset + whole]
        if last & ((1 << rest) - 1):
            return False
    return not whole or parallel.equal_bytes(x, x_offset, y, y_offset, whole)


def _equal(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    return len(x) == 0 or parallel.equal_bytes(_codec.Buffer(x), 0, _codec.Buffer(y), 0, len(x))


def _is_same_memory(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> bool:
    return bool(x.__array_interface__["data"][0] == y.__array_interface__["data"][0] and len(x) == len(y))


# --------------------------------------------------------------------------------------------------------------- packed


class Piece(NamedTuple):
    """Consecutive elements in held bytes: little-endian, packed below 8 bits."""

    buffer: _codec.Buffer  # where they begin
    offset: int
    # number of elements
    count: int  # type: ignore[assignment]  # hides tuple.count
    dtype: Any  # DType of the elements

    @property
    def nbytes(self) -> int:
        """Bytes that they occupy; the last one may have unused bits."""
        return int(self.dtype.nbytes(self.count))


def stored_piece(tensor: LazyTensor) -> Piece:
    """Return the stored elements of a tensor in one piece; a compressed weight is decoded.

    Zero-copy where the stored bytes are the elements, as in all weight files.

    Raises: As `Tensor.read`; TypeError: strings.
    """
    return Piece(_codec.Buffer(tensor.read_packed(), tensor.place.file), 0, tensor.size, tensor.mil_dtype)


def dense_pieces(tensor: LazyTensor) -> Iterator[Piece]:
    """Yield the decoded values of a tensor in order; a compressed weight in pieces of PIECE_NBYTES."""
    place = tensor.place
    with place.naming():
        place.account()
    dense = place.dense()
    if dense is None:
        yield stored_piece(tensor)
        return
    dtype, count = dense.dtype, prod(dense.shape)
    unit = 8 * max(dense.unit, 1)  # packed elements must fill whole bytes
    step = max(PIECE_NBYTES // dtype.numpy.itemsize // unit, 1) * unit
    for begin in range(0, count, step):
        values = read(dense, None, begin, (min(step, count - begin),))
        yield Piece(_codec.Buffer(stored_bytes(values, dtype)), 0, values.size, dtype)


def array_pieces(array: np.ndarray[Any, Any], dtype: Any) -> Iterator[Piece]:
    """Yield the elements of an array in order: zero-copy if it is contiguous, else copied a piece at a time."""
    is_stored = array.dtype == dtype.numpy or (array.dtype.itemsize == 1 and not dtype.is_integer)  # such as of float8
    if array.flags.c_contiguous and is_stored and not dtype.is_sub_byte:
        yield Piece(_codec.Buffer(array.reshape(-1).view(np.uint8)), 0, array.size, dtype)
        return
    step = PIECE_NBYTES // 8
    for start in range(0, array.size, step):
        part = array.flat[start : start + step]
        yield Piece(_codec.Buffer(stored_bytes(part, dtype)), 0, part.size, dtype)


def split(piece: Piece) -> list[Piece]:
    """Return pieces of about PIECE_NBYTES, each starting at a whole byte."""
    step = PIECE_NBYTES // piece.dtype.nbits * 8
    return [
        Piece(piece.buffer, piece.offset + piece.dtype.nbytes(start), min(step, piece.count - start), piece.dtype)
        for start in range(0, piece.count, step)
    ]


def in_order(tensors: Iterable[_T], work: Callable[[_T], _R]) -> Iterator[_R]:
    """Yield work(tensor) for each, in order.

    Medium-sized tensors are processed several at a time. Large ones run alone, since `work` itself uses several
    threads. For tiny ones a thread would cost more than it saves. An exception of `work` replaces its result.
    """
    for size, some in groupby(tensors, _size):
        yield from ordered(work, list(some), size == "middling")


def _size(tensor: LazyTensor) -> str:
    if tensor.place.is_computed or None in tensor.declared_shape or tensor.nbytes >= PIECE_NBYTES:
        return "large"
    return "tiny" if tensor.nbytes < _TINY_NBYTES else "middling"
