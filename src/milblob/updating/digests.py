"""Digests of files: the BLAKE3 of each part, computed once where two files have the same bytes."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from .._codec import HASH_STRETCH_NBYTES, Buffer, equal_bytes, hash_join, hash_stretches
from ..errors import FormatError
from ..hashing import Span, blake3
from ..storage.mapped import MappedFile
from ..storage.transfer import read_into
from ..threads import ordered
from .frames import PIECE_NBYTES

READ_NBYTES = HASH_STRETCH_NBYTES
"""Bytes of a file that are read, compared and hashed at a time: the second-level cache holds them."""


class RunFile(NamedTuple):
    """Where the parts of a run are: a file, and the offset of the first."""

    mapping: MappedFile
    offset: int


class Run(NamedTuple):
    """Parts of a file that follow each other, or of two files that may have the same bytes in them."""

    sizes: Sequence[int]  # of the parts
    sides: tuple[RunFile, ...]  # one or two


class _Piece(NamedTuple):
    """A part, or stretches of one."""

    nbytes: int
    first: int  # number of the first stretch in the part
    is_last: bool  # whether the part ends with it


def digest_of(sizes: Sequence[int], hashes: Iterable[bytes]) -> bytes:
    """Return the digest of a file: the BLAKE3 of sizes and hashes of its parts.

    So the bytes of a weight are hashed once for the digest of its file and for the content hash of the model.
    """
    lines = [b"milblob file 1\n"]
    lines += [b"%d %s\n" % (size, found.hex().encode()) for size, found in zip(sizes, hashes, strict=True)]
    data = b"".join(lines)
    return blake3([(Buffer(data), 0, len(data))])


def run_hashes(runs: Iterable[Run]) -> Iterator[tuple[bytes, ...]]:
    """Yield the BLAKE3 of each part of each run, on each side; several are computed at a time.

    The bytes of two sides are compared as they are read, and hashed once where they are equal.

    Raises:
        FormatError: a file has shrunk. OSError: it cannot be read.
    """
    runs = list(runs)
    is_much = sum(sum(run.sizes) for run in runs) > PIECE_NBYTES
    values: list[bytes] = []  # of each side, the chaining values of a part so far
    spaces: list[tuple[bytearray, Buffer]] = []  # memory that no thread reads into

    def work(read: tuple[Run, int, list[_Piece]]) -> tuple[list[_Piece], list[tuple[bytes, ...]]]:
        run, at, pieces = read
        nbytes = sum(piece.nbytes for piece in pieces)
        own = [_taken(spaces) for _ in run.sides]
        for side, (space, _) in zip(run.sides, own, strict=True):
            read_into(side.mapping, side.offset + at, memoryview(space)[:nbytes])
        found = _values([buffer for _, buffer in own], pieces, nbytes)
        spaces.extend(own)
        return pieces, found

    for pieces, found in ordered(work, (read for run in runs for read in _reads(run)), is_much):
        for piece, own in zip(pieces, found, strict=True):
            values = [a + b for a, b in zip(values, own, strict=True)] if piece.first else list(own)
            if piece.is_last:
                yield tuple(hash_join(value) if piece.first else value for value in values)


def _taken(spaces: list[tuple[bytearray, Buffer]]) -> tuple[bytearray, Buffer]:
    try:
        return spaces.pop()
    except IndexError:
        space = bytearray(READ_NBYTES)
        return space, Buffer(space)


def part_hashes(mapping: MappedFile, sizes: Sequence[int]) -> Iterator[bytes]:
    """Yield the BLAKE3 of each part of a file; see `run_hashes`."""
    for (found,) in run_hashes([Run(sizes, (RunFile(mapping, 0),))]):
        yield found


def _reads(run: Run) -> Iterator[tuple[Run, int, list[_Piece]]]:
    """Divide a run: yield (run, offset in it, pieces) of what is read at a time, several small parts together."""
    pieces: list[_Piece] = []
    at = nbytes = 0
    for size in run.sizes:
        for start in range(0, size, READ_NBYTES) if size else (0,):
            count = min(READ_NBYTES, size - start)
            if pieces and nbytes + count > READ_NBYTES:
                yield run, at, pieces
                at, nbytes, pieces = at + nbytes, 0, []
            pieces.append(_Piece(count, start // HASH_STRETCH_NBYTES, start + count == size))
            nbytes += count
    if pieces:
        yield run, at, pieces


def _values(buffers: list[Buffer], pieces: list[_Piece], nbytes: int) -> list[tuple[bytes, ...]]:
    """Return the chaining value of each piece on each side; of one that is a whole part, its hash."""
    is_same = len(buffers) == 2 and equal_bytes(buffers[0], 0, buffers[1], 0, nbytes)
    found, at = [], 0
    for piece in pieces:
        is_part = piece.is_last and not piece.first
        own = [hash_stretches(buffers[0], at, piece.nbytes, piece.first, is_part)]
        if len(buffers) == 2:
            is_equal = is_same or equal_bytes(buffers[0], at, buffers[1], at, piece.nbytes)
            own.append(own[0] if is_equal else hash_stretches(buffers[1], at, piece.nbytes, piece.first, is_part))
        found.append(tuple(own))
        at += piece.nbytes
    return found


def hashes_of_pieces(pieces: Iterable[Any], sizes: Sequence[int]) -> Iterator[bytes]:
    """Yield the BLAKE3 of each part of bytes that come in pieces of other sizes.

    Raises:
        FormatError: more or fewer bytes than that.
    """
    left = iter(pieces)
    rest = memoryview(b"")

    def take(nbytes: int) -> Iterator[Span]:
        nonlocal rest
        while nbytes:
            if not rest.nbytes:
                rest = memoryview(next(left, b"")).cast("B")
            if not rest.nbytes:
                raise FormatError("patch: expected as many bytes as a file has, got fewer")
            count = min(nbytes, rest.nbytes)
            yield Buffer(rest[:count]), 0, count
            rest, nbytes = rest[count:], nbytes - count

    for size in sizes:
        yield blake3(take(size))
