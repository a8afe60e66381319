"""The elements of a tensor or array, packed as weight files hold them, in bounded pieces."""

from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np

from .. import _codec
from ..threads import ordered
from ..values.dense import read
from ..values.tensorvalue import stored_bytes
from .elements import Readable
from .tensor import Tensor

PIECE_NBYTES = 1 << 24
"""What is looked at in one go: large enough that threads are worth while, small enough to be held several times."""

_TINY_NBYTES = 1 << 16

_R = TypeVar("_R")


class Piece(NamedTuple):
    """Elements that lie one behind the other in held bytes: little-endian, packed below 8 bits.

    Attributes:
        buffer, offset: where they begin.
        count: elements.
        dtype: DType of the elements.
    """

    buffer: _codec.Buffer
    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    dtype: Any

    @property
    def nbytes(self) -> int:
        """Bytes that they take; the last may have bits that are no element's."""
        return int(self.dtype.nbytes(self.count))


def stored_piece(tensor: Readable) -> Piece | None:
    """Return the stored elements of a tensor in one piece; None for a compressed weight.

    Nothing is copied or unpacked where the stored bytes are the elements, as in all weight files.

    Raises:
        As `Tensor.read`; TypeError: strings.
    """
    if isinstance(tensor, Tensor) and tensor._compressed is not None:
        return None
    packed = tensor.read_packed()
    return Piece(
        _codec.Buffer(packed, tensor.file if isinstance(tensor, Tensor) else None), 0, tensor.size, tensor.mil_dtype
    )


def dense_pieces(tensor: Readable) -> Iterator[Piece]:
    """Yield the values of a tensor, decoded, in order; those of a compressed weight in pieces of PIECE_NBYTES."""
    piece = stored_piece(tensor)
    if piece is not None or not isinstance(tensor, Tensor):
        if piece is not None:
            yield piece
        return
    with tensor._naming():
        dense = tensor._dense()
    dtype, count = dense.dtype, prod(dense.shape)
    unit = 8 * max(dense.unit, 1)  # elements below 8 bits are packed in whole bytes
    step = max(PIECE_NBYTES // dtype.numpy.itemsize // unit, 1) * unit
    for begin in range(0, count, step):
        values = read(dense, None, begin, (min(step, count - begin),))
        yield Piece(_codec.Buffer(stored_bytes(values, dtype)), 0, values.size, dtype)


def array_pieces(array: np.ndarray[Any, Any], dtype: Any) -> Iterator[Piece]:
    """Yield the elements of an array in order; one that is contiguous as it is, others copied a piece at a time."""
    is_stored = array.dtype == dtype.numpy or (array.dtype.itemsize == 1 and not dtype.is_integer)  # such as of float8
    if array.flags.c_contiguous and is_stored and not dtype.is_sub_byte:
        yield Piece(_codec.Buffer(array.reshape(-1).view(np.uint8)), 0, array.size, dtype)
        return
    step = PIECE_NBYTES // 8
    for start in range(0, array.size, step):
        part = array.flat[start : start + step]
        yield Piece(_codec.Buffer(stored_bytes(part, dtype)), 0, part.size, dtype)


def split(piece: Piece) -> list[Piece]:
    """Return pieces of about PIECE_NBYTES, which begin at whole bytes."""
    step = PIECE_NBYTES // piece.dtype.nbits * 8
    return [
        Piece(piece.buffer, piece.offset + piece.dtype.nbytes(start), min(step, piece.count - start), piece.dtype)
        for start in range(0, piece.count, step)
    ]


def in_order(tensors: Iterable[Readable], work: Callable[[Any], _R]) -> Iterator[_R]:
    """Yield work(tensor) for each, in order.

    Those of a middling size are worked on several at a time. Large ones come alone: `work` shares them out itself. For
    tiny ones a thread would cost more than it saves. An exception of `work` is raised where its result would be.
    """
    for size, some in groupby(tensors, _size):
        yield from ordered(work, list(some), size == "middling")


def _size(tensor: Readable) -> str:
    if isinstance(tensor, Tensor) and (tensor._compressed is not None or None in tensor._shape):
        return "large"
    if tensor.nbytes >= PIECE_NBYTES:
        return "large"
    return "tiny" if tensor.nbytes < _TINY_NBYTES else "middling"
