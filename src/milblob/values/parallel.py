"""The codec's kernels over arrays of any size: large ones in parts, in several threads."""

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

import numpy as np

from .. import _codec
from ..errors import FormatError
from ..threads import AHEAD, each, ordered, parts, would_share

PIECE_NBYTES = 1 << 24
"""Bytes that one thread processes at a time: these kernels run at memory speed, and starting a thread takes time."""

VARINTS_NBYTES = PIECE_NBYTES // 4
"""The same for varints, which take longer for each byte."""

Array = np.ndarray[Any, Any]


def _shares(buffer: _codec.Buffer, offset: int, nbytes: int, out: Array) -> bool:
    """Whether `out` is memory of the stored bytes, perhaps of another part: a call for all of them refuses it."""
    at = min(offset, buffer.nbytes)
    stored = np.frombuffer(memoryview(buffer), np.uint8, min(nbytes, buffer.nbytes - at), at)
    return bool(np.may_share_memory(stored, out))


def unpack_bits(buffer: _codec.Buffer, offset: int, count: int, nbits: int, out: Array) -> None:
    """As _codec.unpack_bits; `out` is a C-contiguous array of `count` bytes, of any shape."""
    if count <= PIECE_NBYTES or _shares(buffer, offset, (count * nbits + 7) // 8, out):
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


def pack_varints(field: int, array: Array, kind: int) -> bytes:
    """As _codec.tensor_pack, for one of the kinds that are varints; `array` is a vector of bytes."""
    if array.size <= VARINTS_NBYTES:
        return _codec.tensor_pack(field, array, kind)
    itemsize = kind // 8
    pieces = [
        array[first * itemsize : (first + count) * itemsize]
        for first, count in parts(array.size // itemsize, itemsize, VARINTS_NBYTES)
    ]
    sizes = list(ordered(lambda piece: _codec.varint_nbytes(piece, kind), pieces, ahead=AHEAD))
    message, begin = _codec.tensor_begin(field, sum(sizes))

    def work(part: tuple[Array, int, int]) -> None:
        piece, end, nbytes = part
        _codec.varint_encode(piece, kind, message, begin + end - nbytes, nbytes)

    each(work, zip(pieces, accumulate(sizes), sizes, strict=True))
    return message


def unpack_varints(
    buffer: _codec.Buffer,
    offset: int,
    nbytes: int,
    out: Array,
    itemsize: int,
    low: int,
    high: int,
    is_bool: bool = False,
) -> None:
    """As _codec.varint_decode; `out` is a C-contiguous array of any shape."""
    flat, most = out.reshape(-1), PIECE_NBYTES if is_bool else VARINTS_NBYTES
    done = 0  # elements that have a part

    def split() -> Iterator[tuple[int, int, Array]]:
        nonlocal done
        at = 0
        while at < nbytes:
            size, count = _codec.varint_split(buffer, offset + at, nbytes - at, most)
            yield offset + at, size, flat[done : done + count]
            at, done = at + size, done + count

    def work(part: tuple[int, int, Array]) -> None:
        at, size, elements = part
        _codec.varint_decode(buffer, at, size, elements, itemsize, low, high, is_bool)

    # Alone, counting first would only cost time.
    if nbytes > most and would_share() and not _shares(buffer, offset, nbytes, out):
        try:
            each(work, split())
            if done == flat.size:
                return
        except FormatError:
            pass  # its element is one of a part: all of them together are refused with the right one
    _codec.varint_decode(buffer, offset, nbytes, flat, itemsize, low, high, is_bool)


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
