"""The elements of a tensor or array, packed as weight files hold them, in bounded pieces; and threads for them."""

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np

from . import _codec
from .dense import read, thread_count
from .tensor import Tensor
from .tensorvalue import stored_bytes

PIECE_NBYTES = 1 << 24
"""What is looked at in one go: large enough that threads are worth while, small enough to be held several times."""

_TINY_NBYTES = 1 << 16
_PENDING_COUNT = 64

_T = TypeVar("_T")
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


def stored_piece(tensor: Tensor) -> Piece | None:
    """Return the stored elements of a tensor in one piece; None for a compressed weight.

    Nothing is copied or unpacked where the stored bytes are the elements, as in all weight files.

    Raises:
        As `Tensor.read`; TypeError: strings.
    """
    if tensor._compressed is not None:
        return None
    packed = tensor.read_packed()
    return Piece(_codec.Buffer(packed, tensor.file), 0, tensor.size, tensor.mil_dtype)


def dense_pieces(tensor: Tensor) -> Iterator[Piece]:
    """Yield the values of a tensor, decoded, in order; those of a compressed weight in pieces of PIECE_NBYTES."""
    piece = stored_piece(tensor)
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
    if array.flags.c_contiguous and (array.dtype == dtype.numpy or array.dtype.itemsize == 1) and not dtype.is_sub_byte:
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


# -------------------------------------------------------------------------------------------------------------- threads


def share_out(items: Sequence[_T], work: Callable[[Iterator[_T]], _R]) -> list[_R]:
    """Call `work` in several threads, each with an iterator that yields items until there are no more; return results.

    Every item is taken once, in order, by whoever is free. With few items, or one processor, there is one call.
    """
    lock, left = threading.Lock(), iter(items)

    def take() -> Iterator[_T]:
        while True:
            with lock:
                item = next(left, _END)
            if item is _END:
                return
            yield cast(_T, item)

    workers = min(thread_count(), len(items))
    if workers < 2:
        return [work(iter(items))]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        return [future.result() for future in [pool.submit(work, take()) for _ in range(workers)]]


_END = object()


def in_order(tensors: Iterable[Tensor], work: Callable[[Tensor], _R]) -> Iterator[_R]:
    """Yield work(tensor) for each, in order.

    Those of a middling size are worked on several at a time. Large ones come alone: `work` shares them out itself. For
    tiny ones a thread would cost more than it saves. An exception of `work` is raised where its result would be.
    """
    if thread_count() < 2:
        yield from map(work, tensors)
        return
    from collections import deque
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(thread_count()) as pool:
        pending: deque[Callable[[], _R]] = deque()
        for tensor in tensors:
            is_open = tensor._compressed is not None or None in tensor._shape
            nbytes = PIECE_NBYTES if is_open else tensor.nbytes
            while pending and (nbytes >= PIECE_NBYTES or len(pending) > _PENDING_COUNT):
                yield pending.popleft()()
            if (nbytes < _TINY_NBYTES and not pending) or nbytes >= PIECE_NBYTES:
                yield work(tensor)
            else:
                pending.append(pool.submit(work, tensor).result)
        while pending:
            yield pending.popleft()()
