"""BLAKE3 of bytes; many are hashed by several threads."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from . import _codec
from .threads import AHEAD, PIECE_NBYTES, ordered

_STRETCH = _codec.HASH_STRETCH_NBYTES

Span = tuple[_codec.Buffer, int, int]
"""A buffer, an offset in it, and a number of bytes."""


def blake3(spans: Iterable[Span], passed: Callable[[int, int], object] = lambda offset, nbytes: None) -> bytes:
    """Return the BLAKE3 of bytes, 32 of them.

    `spans`: the bytes in order. Each is done with when the next one is asked for, or kept. `passed`: called, in any
    thread, with the place in its buffer of each piece that was read, the last one of all spans included.
    """
    values: list[bytes] = []  # chaining values of whole stretches
    count = 0
    rest: Span = (_codec.Buffer(b""), 0, 0)  # at most one stretch: the last one if nothing follows
    for buffer, offset, nbytes in spans:
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
            values += _whole_stretches(buffer, offset, whole, count, passed)
            count += whole
        rest = (buffer, offset + whole * _STRETCH, nbytes - whole * _STRETCH)
    values.append(_codec.hash_stretches(*rest, count, not count))
    passed(*rest[1:])
    return _codec.hash_join(b"".join(values)) if count else values[0]


def hash_bytes(data: Any) -> str:
    """Return the BLAKE3 hash of any contiguous buffer or array as 64 hexadecimal digits, as b3sum prints it."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    buffer = _codec.Buffer(data)
    return blake3([(buffer, 0, buffer.nbytes)]).hex()


def _whole_stretches(
    buffer: _codec.Buffer, offset: int, count: int, first: int, passed: Callable[[int, int], object]
) -> list[bytes]:
    step = max(PIECE_NBYTES // _STRETCH, 1)

    def work(start: int) -> bytes:
        at, nbytes = offset + start * _STRETCH, min(step, count - start) * _STRETCH
        value = _codec.hash_stretches(buffer, at, nbytes, first + start)
        passed(at, nbytes)
        return value

    return list(ordered(work, range(0, count, step), count > step, AHEAD))


def _view(buffer: _codec.Buffer, offset: int, nbytes: int) -> memoryview:
    return memoryview(buffer)[offset : offset + nbytes]
