"""Which of many stretches of bytes are equal: exactly, and at the speed of reading them."""

import os
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from . import _codec

_SAMPLE_NBYTES = 64
_FEW = 4  # different candidates that each newcomer is compared with directly; with more, hashes choose among them


class Stretch(NamedTuple):
    """Bytes of a held buffer.

    Attributes:
        buffer: where they are.
        offset, nbytes: which.
        kind: only stretches of one kind can be equal (the dtype, say).
    """

    buffer: _codec.Buffer
    offset: int
    nbytes: int
    kind: Hashable = None


def first_equal(stretches: Sequence[Stretch]) -> list[int]:
    """Return, for each stretch, the index of the first one that it equals (its own, where there is none before it).

    Stretches of one kind and size are told apart by a few samples, and what is left is compared byte by byte: comparing
    two equal stretches reads each once, as hashing them would, and needs no confirmation. Where many that differ share
    their samples, a hash of all their bytes finds the one to compare with, so the cost stays linear. Bytes that only one
    stretch of its size has are not read.
    """
    result = list(range(len(stretches)))
    groups: dict[tuple[Hashable, int], list[int]] = {}
    for index, stretch in enumerate(stretches):
        groups.setdefault((stretch.kind, stretch.nbytes), []).append(index)
    seed = int.from_bytes(os.urandom(8), "little")  # so that nobody can make files whose samples or hashes agree
    for group in groups.values():
        if len(group) > 1:
            _compare(stretches, group, result, seed)
    return result


def _compare(stretches: Sequence[Stretch], group: list[int], result: list[int], seed: int) -> None:
    buckets: dict[tuple[int, ...], list[int]] = {}
    for index in group:
        buckets.setdefault(_samples(stretches[index], seed) if len(group) > 2 else (), []).append(index)
    for bucket in buckets.values():
        different: list[int] = []
        hashed: dict[int, list[int]] | None = None
        for index in bucket:
            stretch = stretches[index]
            candidates, own = different, 0
            if len(different) >= _FEW:
                if hashed is None:
                    hashed = {}
                    for other in different:
                        hashed.setdefault(_hash(stretches[other], seed), []).append(other)
                own = _hash(stretch, seed)
                candidates = hashed.get(own, [])
            found = next((other for other in candidates if _equal(stretches[other], stretch)), None)
            if found is not None:
                result[index] = found
                continue
            different.append(index)
            if hashed is not None:
                hashed.setdefault(own, []).append(index)


def _equal(a: Stretch, b: Stretch) -> bool:
    return (a.buffer is b.buffer and a.offset == b.offset) or _codec.equal_bytes(
        a.buffer, a.offset, b.buffer, b.offset, a.nbytes
    )


def _hash(stretch: Stretch, seed: int) -> int:
    return _codec.hash_bytes(stretch.buffer, stretch.offset, stretch.nbytes, seed)


def _samples(stretch: Stretch, seed: int) -> tuple[int, ...]:
    """Hashes of a few places: weights that differ nearly always differ there."""
    buffer, offset, nbytes, _ = stretch
    if nbytes <= 3 * _SAMPLE_NBYTES:
        return (_codec.hash_bytes(buffer, offset, nbytes, seed),)
    places = (0, nbytes // 2, nbytes - _SAMPLE_NBYTES)
    return tuple(_codec.hash_bytes(buffer, offset + place, _SAMPLE_NBYTES, seed) for place in places)
