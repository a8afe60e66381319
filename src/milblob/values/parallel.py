"""The codec's kernels over arrays of any size: large ones in parts, in several threads."""

from typing import Any

import numpy as np

from .. import _codec
from ..threads import AHEAD, each, ordered, parts

PIECE_NBYTES = 1 << 24
"""Bytes that one thread processes at a time: these kernels run at memory speed, and starting a thread takes time."""

Array = np.ndarray[Any, Any]


def unpack_bits(buffer: _codec.Buffer, offset: int, count: int, nbits: int, out: Array) -> None:
    """As _codec.unpack_bits; `out` is a C-contiguous array of `count` bytes, of any shape."""
    if count <= PIECE_NBYTES:
        _codec.unpack_bits(buffer, offset, count, nbits, out)
        return
    flat = out.reshape(-1)

    def work(part: tuple[int, int]) -> None:
        first, size = part
        _codec.unpack_bits(buffer, offset + first * nbits // 8, size, nbits, flat[first : first + size])

    each(work, parts(count, 1, PIECE_NBYTES))


def pack_bits(array: Array, out: Array, nbits: int, low: int, high: int, first: int = 0) -> None:
    """As _codec.pack_bits; `array` is a vector of bytes, `out` one of the packed size.

    Raises: OverflowError: an element is outside low..high; the message has the index of the first one.
    """
    if array.size <= PIECE_NBYTES:
        _codec.pack_bits(array, out, nbits, low, high, first)
        return

    def work(part: tuple[int, int]) -> None:
        begin, count = part
        into = out[begin * nbits // 8 : ((begin + count) * nbits + 7) // 8]
        _codec.pack_bits(array[begin : begin + count], into, nbits, low, high, first + begin)

    each(work, parts(array.size, 1, PIECE_NBYTES))


def cast(kind: int, source: _codec.Buffer, offset: int, count: int, dst: Any, clamp: bool) -> tuple[int, int, int]:
    """As _codec.cast, for a writable buffer `dst` of any format."""
    if 4 * count <= PIECE_NBYTES:  # limited by the wider side
        return _codec.cast(kind, source, offset, count, dst, clamp)

    def work(part: tuple[int, int]) -> tuple[int, int, int]:
        return _codec.cast(kind, source, offset, count, dst, clamp, *part)

    overflow, nan, underflow = (
        sum(column) for column in zip(*ordered(work, parts(count, 4, PIECE_NBYTES), ahead=AHEAD), strict=True)
    )
    return overflow, nan, underflow


def equal_bytes(a: _codec.Buffer, a_offset: int, b: _codec.Buffer, b_offset: int, nbytes: int) -> bool:
    """As _codec.equal_bytes; reads on to the first difference, and a few parts further."""
    if nbytes <= PIECE_NBYTES:
        return _codec.equal_bytes(a, a_offset, b, b_offset, nbytes)

    def work(part: tuple[int, int]) -> bool:
        first, size = part
        return _codec.equal_bytes(a, a_offset + first, b, b_offset + first, size)

    return all(ordered(work, parts(nbytes, 1, PIECE_NBYTES), ahead=AHEAD))
