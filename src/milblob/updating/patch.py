"""The file format of patches, which `delta` writes and `apply` reads; docs/format-of-patches.md describes it.

A patch may come from anywhere and is not trusted: every length is checked before it is used, and nothing is made of
the contents before all of them have been checked.
"""

import contextlib
import itertools
import os
import struct
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from .._codec import Buffer
from ..errors import FormatError, ResolveError
from ..hashing import Span, blake3
from ..storage.beneath import Location
from ..storage.mapped import MappedFile
from . import frames
from .frames import MAX_PREFIX_NBYTES, PIECE_NBYTES

MAGIC, VERSION = b"milpatch", 1
KINDS = ("mlpackage", "mlmodelc", "mlmodel", "blob")
"""Kinds of models, in the order of their numbers."""

COPY, RAW, CHANGE, PREFIX = range(4)
"""Kinds of steps: bytes of an old file; a frame; a frame of differences from old bytes; a frame that refers to them."""

STEP = np.dtype(
    [
        ("kind", "u1"), ("width", "u1"), ("file", "<u4"), ("offset", "<u8"), ("nbytes", "<u8"), ("span", "<u4"),
        ("stored", "<u4"),
    ]
)  # fmt: skip
"""A row of the table of steps; see docs/format-of-patches.md."""

_HEAD = struct.Struct("<8sIIQQQ")
_DIGEST_NBYTES = 32
HEAD_NBYTES = _HEAD.size + _DIGEST_NBYTES
_COUNTS = struct.Struct("<II")
_FILE = struct.Struct("<QIIH")
MAX_INDEX_NBYTES = 96 << 20
_READ_NBYTES = 16 << 20
_MAX_FILE_NBYTES = 1 << 48


class PatchedFile(NamedTuple):
    """A file of a model, as a patch names it."""

    path: str  # relative to the model, with "/"; "" of a model that is a file
    nbytes: int  # its size
    digest: bytes  # of its bytes, see `digests.digest_of`
    # sizes of the parts that are hashed, as uint64: of a weight file, each record and what is between two; of other
    # files, one
    parts: np.ndarray[Any, Any]

    @property
    def key(self) -> tuple[int, bytes]:
        """Equal for equal bytes in equal parts."""
        return self.nbytes, self.digest


class Index(NamedTuple):
    """What a patch contains, but for its frames."""

    kind: str  # of both models
    hashes: tuple[bytes, bytes]  # content hashes of the old and of the new model
    old: Sequence[PatchedFile]  # their files
    new: Sequence[PatchedFile]
    steps: Sequence[np.ndarray[Any, Any]]  # of each new file, rows of STEP that make its bytes in order


def spans(mapping: MappedFile, offset: int, nbytes: int) -> Iterator[Span]:
    """Yield bytes of a file in pieces, for `blake3`."""
    for start in range(offset, offset + nbytes, _READ_NBYTES):
        count = min(_READ_NBYTES, offset + nbytes - start)
        yield Buffer(frames.read(mapping, start, count)), 0, count


# -------------------------------------------------------------------------------------------------------------- writing


def index_bytes(index: Index) -> bytes:
    """Return an index as it is in a patch, before it is compressed."""
    parts = [*index.hashes, _COUNTS.pack(len(index.old), len(index.new))]
    counts = [0] * len(index.old) + [len(rows) for rows in index.steps]
    for file, count in zip([*index.old, *index.new], counts, strict=True):
        path = file.path.encode()
        parts += [_FILE.pack(file.nbytes, len(file.parts), count, len(path)), file.digest, path]
    parts += [file.parts.astype("<u8").tobytes() for file in [*index.old, *index.new]]
    return b"".join([*parts, *(rows.tobytes() for rows in index.steps)])


def header(kind: str, mapping: MappedFile, index_offset: int, index_nbytes: int) -> bytes:
    """Return the header of a patch whose frames and index are written.

    `mapping`: the file. `index_offset`: where the index begins. `index_nbytes`: its size before it was compressed.
    """
    fields = _HEAD.pack(MAGIC, VERSION, KINDS.index(kind), mapping.nbytes, index_offset, index_nbytes)
    return fields + _digest(fields, mapping)


def _digest(fields: bytes, mapping: MappedFile) -> bytes:
    """Return the BLAKE3 of a patch but for the digest in its header."""
    rest = spans(mapping, HEAD_NBYTES, mapping.nbytes - HEAD_NBYTES)
    return blake3(itertools.chain([(Buffer(fields), 0, len(fields))], rest))


# -------------------------------------------------------------------------------------------------------------- reading


class PatchReader:
    """A patch, opened and checked.

    Raises: OSError: it cannot be read. FormatError: not a patch, a damaged one, another version, lengths that do not
    fit, a path that leads out.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._mapping = MappedFile(path)
        try:
            with self._naming():
                kind, at, nbytes = self._require_header()
                data = frames.decompress(frames.read(self._mapping, at, self._mapping.nbytes - at), nbytes)
                self.index = _parse(data, kind)
                # of each new file, the place in the patch of the frame of each step, and after the last one
                self.starts = self._places(at)
                self.nbytes = self._mapping.nbytes
                self.new_nbytes = sum(file.nbytes for file in self.index.new)  # of all files of the new model
        except BaseException:
            self.close()
            raise

    def frame(self, offset: int, nbytes: int) -> bytes:
        """Return the bytes of a frame."""
        return frames.read(self._mapping, offset, nbytes)

    def close(self) -> None:
        """Close the file."""
        self._mapping.close()

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        try:
            yield
        except FormatError as error:
            error.file = error.file or self.path
            raise

    def _require_header(self) -> tuple[str, int, int]:
        size = self._mapping.nbytes
        head = frames.read(self._mapping, 0, min(HEAD_NBYTES, size))
        if head[: len(MAGIC)] != MAGIC[: len(head)] or not head:
            raise FormatError(f"patch: expected the magic {MAGIC!r}, got {head[: len(MAGIC)]!r}", offset=0)
        if size < HEAD_NBYTES:
            raise FormatError(f"patch: expected a header of {HEAD_NBYTES} bytes, got {size}; it is cut off")
        _, version, kind, nbytes, at, index_nbytes = _HEAD.unpack_from(head)
        if version != VERSION:
            raise FormatError(f"patch: expected version {VERSION} of the format, got {version}", offset=8)
        if nbytes != size:
            raise FormatError(f"patch: expected {nbytes} bytes, got {size}; it is cut off or damaged", offset=16)
        if _digest(head[: _HEAD.size], self._mapping) != head[_HEAD.size :]:
            raise FormatError("patch: expected the bytes that its digest is of, got others; it is damaged")
        if kind >= len(KINDS) or not HEAD_NBYTES <= at <= nbytes:
            raise FormatError("patch: expected a kind of model and the place of the index, got none")
        if index_nbytes > MAX_INDEX_NBYTES:
            raise FormatError(f"patch: expected an index of at most {MAX_INDEX_NBYTES} bytes, got {index_nbytes}")
        return KINDS[kind], at, index_nbytes

    def _places(self, end: int) -> list[np.ndarray[Any, Any]]:
        """Return the places of all frames, which end where the index begins."""
        at, found = HEAD_NBYTES, []
        for rows in self.index.steps:
            places = np.concatenate([[0], np.cumsum(rows["stored"], dtype=np.int64)]) + at
            at = int(places[-1])
            found.append(places)
        if at != end:
            raise FormatError(f"patch: expected frames up to byte {end}, got some up to byte {at}")
        return found


def _parse(data: bytes, kind: str) -> Index:
    at = 2 * _DIGEST_NBYTES + _COUNTS.size
    if len(data) < at:
        raise FormatError("patch: expected an index with hashes and counts, got its end")
    hashes = data[:_DIGEST_NBYTES], data[_DIGEST_NBYTES : 2 * _DIGEST_NBYTES]
    old_count, new_count = _COUNTS.unpack_from(data, 2 * _DIGEST_NBYTES)
    found: list[tuple[str, int, bytes]] = []
    counts: list[int] = []
    part_counts: list[int] = []
    for _ in range(old_count + new_count):
        start = at + _FILE.size + _DIGEST_NBYTES
        if start > len(data):
            raise FormatError(f"patch: expected {old_count + new_count} files, got {len(found)}")
        nbytes, part_count, count, path_nbytes = _FILE.unpack_from(data, at)
        if start + path_nbytes > len(data) or nbytes > _MAX_FILE_NBYTES:
            raise FormatError("patch: expected the path and the size of a file, got none that fit")
        found.append((_text(data[start : start + path_nbytes]), nbytes, data[at + _FILE.size : start]))
        counts.append(count)
        part_counts.append(part_count)
        at = start + path_nbytes
    total, part_total = sum(counts[old_count:]), sum(part_counts)
    if any(counts[:old_count]) or total * STEP.itemsize + part_total * 8 != len(data) - at:
        raise FormatError(f"patch: expected {part_total} parts and {total} steps, got others")
    parts = _divided(np.frombuffer(data, "<u8", part_total, at), part_counts)
    files = [PatchedFile(*fields, own) for fields, own in zip(found, parts, strict=True)]
    for file in files:
        if not (file.parts <= file.nbytes).all() or sum(file.parts.tolist()) != file.nbytes:
            raise FormatError(f"patch: expected parts of the {file.nbytes} bytes of a file, got others")
    rows = np.frombuffer(data, STEP, total, at + part_total * 8)
    steps = _divided(rows, counts[old_count:])
    old, new = files[:old_count], files[old_count:]
    index = Index(kind, (hashes[0], hashes[1]), old, new, steps)
    for group in (old, new):
        _require_paths([file.path for file in group], kind)
    _require_steps(index, rows)
    return index


def _divided(rows: np.ndarray[Any, Any], counts: Sequence[int]) -> list[np.ndarray[Any, Any]]:
    """Return consecutive rows, `counts` of them for each file."""
    return [rows[end - count : end] for end, count in zip(itertools.accumulate(counts), counts, strict=True)]


def _text(data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FormatError("patch: expected a path in UTF-8, got other bytes") from None


def _require_paths(paths: list[str], kind: str) -> None:
    """Refuse paths that lead out of a model, and a path that is equal to another one or inside it."""
    if kind in ("mlmodel", "blob"):
        if paths != [""]:
            raise FormatError(f"patch: expected the one file of a {kind}, got {len(paths)} paths")
        return
    known: set[str] = set()
    folders: set[str] = set()
    for path in paths:
        try:
            Location(os.curdir).beneath(path)
        except ResolveError:
            path = ""
        parts = path.split("/")
        if not path or "\\" in path or any(part in ("", ".", "..") or not part.isprintable() for part in parts):
            raise FormatError("patch: expected paths of files inside the model, got one that leads out or is not plain")
        plain = path.casefold()
        known.add(plain)
        folders.update(str(folder) for folder in PurePosixPath(plain).parents)
    if len(known) != len(paths) or known & folders:
        raise FormatError("patch: expected a path for each file, got one twice")


def _require_steps(index: Index, rows: np.ndarray[Any, Any]) -> None:
    """Refuse steps outside of their files, or larger than they may be, or of another size than the new files."""
    kind, nbytes, offset, stored = rows["kind"], rows["nbytes"], rows["offset"], rows["stored"]
    sizes = np.array([*(file.nbytes for file in index.old), 0], np.uint64)  # a file that is not there has 0 bytes
    size = np.where(kind == RAW, offset + nbytes, sizes[np.minimum(rows["file"], len(index.old))])
    needed, has_frame = np.where(kind == PREFIX, rows["span"], nbytes), kind != COPY
    wrong = (kind > PREFIX) | (nbytes == 0) | (offset > size) | (needed > size - np.minimum(offset, size))
    wrong |= ~np.isin(rows["width"], (0, 1, 2, 4, 8)) | (nbytes % np.maximum(rows["width"], 1) != 0)
    wrong |= has_frame & ((nbytes > PIECE_NBYTES) | (stored == 0) | (stored > frames.max_frame_nbytes(PIECE_NBYTES)))
    wrong |= ~has_frame & (stored != 0)
    wrong |= (kind == PREFIX) & ((rows["span"] > MAX_PREFIX_NBYTES) | (rows["width"] != 0))
    if wrong.any():
        raise FormatError(f"patch: expected steps inside of their files, got number {int(np.argmax(wrong))}")
    for file, own in zip(index.new, index.steps, strict=True):
        if sum(own["nbytes"].tolist()) != file.nbytes:
            raise FormatError(f"patch: expected steps that make the {file.nbytes} bytes of a file, got others")
