"""Finding equal byte stretches among many: exactly, at the speed of reading them."""

import os
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

from .. import _codec
from ..values import parallel

_FEW = 4  # compare each stretch with at most this many different ones; above that, use a key to select candidates
_SAMPLE_NBYTES = 64


class Stretch(NamedTuple):
    """Some bytes of a held buffer."""

    buffer: _codec.Buffer  # the buffer that holds them
    offset: int  # their position and size
    nbytes: int
    kind: Hashable = None  # only stretches of the same kind can be equal (the dtype, for example)


_Key = Callable[[Stretch], Hashable]


def first_equal(stretches: Sequence[Stretch]) -> list[int]:
    """Return, for each stretch, the index of the first that equals it (its own index if none before it does).

    Equal means that the bytes were compared. Equal stretches are read once each, as hashing would do; different ones
    are read up to the first difference. Keys select candidates only where more than a few different stretches share one
    kind and size: samples first, then a fast hash, then one for which no one can construct collisions. Each stretch is
    compared a few times for each key, for any contents. A stretch whose kind and size are unique is not read.

    Raises: FormatError: a stretch reaches past its buffer.
    """
    result = list(range(len(stretches)))
    groups: dict[Hashable, list[int]] = {}
    for index, stretch in enumerate(stretches):
        groups.setdefault((stretch.kind, stretch.nbytes), []).append(index)
    secret = os.urandom(8)
    keys: list[_Key] = [_samples, _hash(secret), _strong_hash(secret)]
    for group in groups.values():
        _compare(stretches, group, result, keys)
    return result


def _compare(stretches: Sequence[Stretch], group: list[int], result: list[int], keys: list[_Key]) -> None:
    """Find the equal stretches in a group of one kind and size, in ascending order."""
    different: list[int] = []
    for position, index in enumerate(group):
        if len(different) == _FEW and keys:
            buckets: dict[Hashable, list[int]] = {}
            for other in different + group[position:]:
                buckets.setdefault(keys[0](stretches[other]), []).append(other)
            for bucket in buckets.values():
                _compare(stretches, bucket, result, keys[1:])
            return
        found = next((other for other in different if _equal(stretches[other], stretches[index])), None)
        if found is None:
            different.append(index)
        else:
            result[index] = found


def _equal(a: Stretch, b: Stretch) -> bool:
    same = a.buffer is b.buffer and a.offset == b.offset
    return same or parallel.equal_bytes(a.buffer, a.offset, b.buffer, b.offset, a.nbytes)


def _samples(stretch: Stretch) -> Hashable:
    """Return the bytes at a few places, where different weights nearly always differ; all bytes if there are few."""
    view, (_, offset, nbytes, _) = memoryview(stretch.buffer), stretch
    if nbytes <= 3 * _SAMPLE_NBYTES:
        return bytes(view[offset : offset + nbytes])
    places = (offset, offset + nbytes // 2, offset + nbytes - _SAMPLE_NBYTES)
    return b"".join(view[place : place + _SAMPLE_NBYTES] for place in places)


def _hash(secret: bytes) -> _Key:
    seed = int.from_bytes(secret, "little")
    return lambda stretch: _codec.hash_bytes(stretch.buffer, stretch.offset, stretch.nbytes, seed)


def _strong_hash(secret: bytes) -> _Key:
    import hashlib  # needed only for stretches constructed to collide

    def digest(stretch: Stretch) -> Hashable:

        view = memoryview(stretch.buffer)[stretch.offset : stretch.offset + stretch.nbytes]
        return hashlib.blake2b(view, key=secret, digest_size=16).digest()

    return digest
