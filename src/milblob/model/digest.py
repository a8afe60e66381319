"""BLAKE3 of bytes and of elements; large ones are hashed by several threads."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from .. import _codec
from ..dtypes import DType
from ..threads import PIECE_NBYTES, ordered
from .elements import Piece

_STRETCH = _codec.HASH_STRETCH_NBYTES


def digest(pieces: Iterable[Piece]) -> bytes:
    """Return the BLAKE3 of concatenated pieces; bits after the last element count as zero."""
    values: list[bytes] = []  # chaining values of whole stretches
    count = 0
    rest: tuple[_codec.Buffer, int, int] = (
        _codec.Buffer(b""),
        0,
        0,
    )  # at most one stretch: the last one if nothing follows
    for piece in pieces:
        buffer, offset, nbytes = piece.buffer, piece.offset, piece.nbytes
        if nbytes == 0:
            continue
        if rest[2]:
            taken = min(_STRETCH - rest[2], nbytes)
            joined = bytes(_view(*rest)) + bytes(_view(buffer, offset, taken))
            rest = (_codec.Buffer(joined), 0, len(joined))
            offset, nbytes = offset + taken, nbytes - taken
            if nbytes == 0:
                continue
            values.append(_codec.hash_stretches(*rest, count))
            count += 1
        whole = (nbytes - 1) // _STRETCH
        if whole:
            values += _whole_stretches(buffer, offset, whole, count)
            count += whole
        rest = _without_padding(piece, offset + whole * _STRETCH, nbytes - whole * _STRETCH)
    if not count:
        return _codec.hash_stretches(*rest, 0, True)
    values.append(_codec.hash_stretches(*rest, count))
    return _codec.hash_join(b"".join(values))


def _whole_stretches(buffer: _codec.Buffer, offset: int, count: int, first: int) -> list[bytes]:
    step = max(PIECE_NBYTES // _STRETCH, 1)

    def work(start: int) -> bytes:
        nbytes = min(step, count - start) * _STRETCH
        return _codec.hash_stretches(buffer, offset + start * _STRETCH, nbytes, first + start)

    return list(ordered(work, range(0, count, step), count > step))


def _without_padding(piece: Piece, offset: int, nbytes: int) -> tuple[_codec.Buffer, int, int]:
    """Return the end of a piece; copied if bits after its last element are set, as in some files."""
    used = piece.count * piece.dtype.nbits % 8
    view = _view(piece.buffer, offset, nbytes)
    if piece.dtype.nbits >= 8 or used == 0 or view[-1] >> used == 0:
        return piece.buffer, offset, nbytes
    data = bytearray(view)
    data[-1] &= (1 << used) - 1
    return _codec.Buffer(bytes(data), piece.buffer.name), 0, nbytes


def _view(buffer: _codec.Buffer, offset: int, nbytes: int) -> memoryview:
    return memoryview(buffer)[offset : offset + nbytes]


def hash_bytes(data: Any) -> str:
    """Return the BLAKE3 hash of any contiguous buffer or array as 64 hexadecimal digits, as b3sum prints it."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    buffer = _codec.Buffer(data)
    return digest([Piece(buffer, 0, buffer.nbytes, DType.UINT8)]).hex()
