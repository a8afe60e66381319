"""The files of a model that is patched: their bytes, their digests, and the records in them with their names."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..analysis.hash import Known, model_hash
from ..blobs.reader import BlobReader
from ..dtypes import BY_MIL_CODE
from ..errors import MilblobError, UnsupportedError
from ..mirrored import shown
from ..model.identify import is_blob_head
from ..model.listing import HEAD_NBYTES
from ..model.model import Model
from ..model.package import Package
from ..model.places import path_of
from ..progress import ProgressCounter
from ..rewrite.copying import walk
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import MappedFile
from ..storage.pending import Pending, wait
from ..storage.source_file import SourceFile
from . import frames
from .digests import Run, RunFile, digest_of, run_hashes
from .patch import KINDS, PatchedFile

_FINDER = ".DS_Store"


class FilePart(NamedTuple):
    """Bytes of a weight file: the data of a record, or what is between them."""

    offset: int  # in the file
    nbytes: int
    width: int  # bytes of an element; 0 of packed ones, and between records
    is_record: bool = False  # whether it is the data of a record
    names: tuple[str, ...] = ()  # of the weights that the record has, in the Program; "#0" in a bare weight file
    digest: bytes = b""  # BLAKE3 of the data; b"" between records


Parts = dict[str, list[FilePart]]
"""The parts of files, by path."""

_Place = tuple[int, str, int]
"""A part: 0 if it is of the old model and 1 of the new one, the path of its file, its number there."""


class ModelFiles:
    """A model and all files in it, open.

    `source`: path of a .mlpackage, .mlmodelc, .mlmodel or weight file. `on_pending`: what to do about an interrupted
    change; see `Package`. `max_nbytes`: as for `open`.
    Raises: As opening it. UnsupportedError: another kind of file; a model file whose weights are in others.
    """

    def __init__(
        self, source: str, on_pending: Callable[[Pending], object] = wait, *, max_nbytes: int | None = None
    ) -> None:
        self.path = source
        # path relative to the model, with "/" -> open file; "" of a model that is a file
        self.mappings: dict[str, MappedFile] = {}
        self.package = Package(source, on_pending=on_pending, max_nbytes=max_nbytes)
        try:
            self.kind, self.is_directory = self.package.kind, self.package.is_directory
            if self.kind not in KINDS:
                kind = {"mil": "MIL text", "listing": "a listing of weights"}.get(self.kind, self.kind)
                message = f"source: expected a .mlpackage, .mlmodelc, .mlmodel or weight file, got {kind}"
                raise UnsupportedError(message, file=source)
            root = Location(paths.real(source)) if self.is_directory else Location(source)
            for name in self.names() if self.is_directory else [""]:
                self.mappings[name] = MappedFile(root.entry(name) if name else root)
        except BaseException:
            self.close()
            raise

    def names(self) -> list[str]:
        """Return the paths of all files of a directory. Those of the Finder are left out."""
        root = paths.real(self.path)
        found = [name.replace(os.sep, "/") for name, is_directory in walk(root) if not is_directory]
        return [name for name in found if name.rpartition("/")[2] != _FINDER]

    def close(self) -> None:
        """Close all files."""
        for mapping in self.mappings.values():
            mapping.close()
        self.package.close()

    def shown(self, path: str) -> str:
        """Return how messages call a file."""
        return os.path.join(self.path, *path.split("/")) if path else self.path

    def require_same(self) -> None:
        """Refuse files that were written to since they were opened. Raises: FormatError."""
        for mapping in self.mappings.values():
            SourceFile.of(mapping).require_same(mapping.fd)


class HashedFiles:
    """The digests of a model's files and of the records in them.

    `model`: that of the files, listing every constant. `parts`: path -> parts of each file, in order, from its first
    byte to the last. `hashes`: path -> BLAKE3 of each part. `counter`: notes each tensor.
    Raises: As `content_hash`.
    """

    def __init__(
        self,
        files: ModelFiles,
        model: Model,
        parts: Parts,
        hashes: Mapping[str, list[bytes]],
        counter: ProgressCounter,
    ) -> None:
        self.files = files
        self.patched: dict[str, PatchedFile] = {}  # each file as a patch names it
        self.parts: Parts = {}  # of each file with records
        for path, rows in parts.items():
            sizes = [row.nbytes for row in rows]
            digest = digest_of(sizes, hashes[path])
            self.patched[path] = PatchedFile(path, files.mappings[path].nbytes, digest, np.array(sizes, np.uint64))
            if any(row.is_record for row in rows):
                found = zip(rows, hashes[path], strict=True)
                self.parts[path] = [row._replace(digest=one) if row.is_record else row for row, one in found]
        self.content = bytes.fromhex(model_hash(model, known=self._known(model, files), progress=counter.notes).model)

    def _known(self, model: Model, files: ModelFiles) -> Known:
        """Return the digests of records as `model_hash` takes them."""
        by_file = {mapping.identity: path for path, mapping in files.mappings.items()}
        digests = {path: {row.offset: row for row in rows if row.digest} for path, rows in self.parts.items()}
        known: Known = {}
        for reader, offset, _, key, nbytes in _records(model):
            record = reader.record(offset)
            row = digests.get(by_file.get(reader.mapping.identity, ""), {}).get(record.data_offset)
            if row is not None and not record.padding_nbits and record.nbytes == row.nbytes == nbytes:
                known[key] = row.digest
        return known


def hash_both(old: ModelFiles, new: ModelFiles, counter: ProgressCounter) -> tuple[HashedFiles, HashedFiles]:
    """Hash two models in one pass over the bytes; those that both have are hashed once.

    `counter`: counts each part that is hashed. Raises: As `content_hash`.
    """
    both = old, new
    with Model(old.package, constants=True) as a, Model(new.package, constants=True) as b:
        parts = [_parts(old, a), _parts(new, b)]
        hashes = [{path: [b""] * len(rows) for path, rows in own.items()} for own in parts]
        runs = list(_runs(*parts))
        found = run_hashes(_run_of(both, parts, count, places) for count, places in runs)
        for count, places in runs:
            for step, values in zip(range(count), found, strict=False):
                for (side, path, first), value in zip(places, values, strict=True):
                    hashes[side][path][first + step] = value
                    counter.add(both[side].shown(path), parts[side][path][first + step].nbytes)
        return HashedFiles(old, a, parts[0], hashes[0], counter), HashedFiles(new, b, parts[1], hashes[1], counter)


def _run_of(both: tuple[ModelFiles, ModelFiles], parts: list[Parts], count: int, places: list[_Place]) -> Run:
    side, path, first = places[0]
    sizes = [row.nbytes for row in parts[side][path][first : first + count]]
    sides = (RunFile(both[side].mappings[path], parts[side][path][first].offset) for side, path, first in places)
    return Run(sizes, tuple(sides))


def _parts(files: ModelFiles, model: Model) -> Parts:
    """Return the parts of each file of a model, with the names of the records."""
    names: dict[tuple[int, int] | None, dict[int, list[str]]] = {}  # by identity of the weight file, offset
    for reader, offset, name, _, _ in _records(model):
        names.setdefault(reader.mapping.identity, {}).setdefault(offset, []).append(name)
    if names and model.package.blobs is None and not files.is_directory:
        message = "source: expected a model whose weights are in it, got a file that refers to others"
        raise UnsupportedError(message, file=files.path)
    return {path: _parts_of(mapping, names.get(mapping.identity, {})) for path, mapping in files.mappings.items()}


def _runs(old: Parts, new: Parts) -> Iterator[tuple[int, list[_Place]]]:
    """Divide the parts of two models into runs: yield (number of parts, places of the first one)."""
    count, start = 0, list[_Place]()
    for places in _places(old, new):
        if places != [(side, path, number + count) for side, path, number in start]:
            if count:
                yield count, start
            count, start = 0, places
        count += 1
    if count:
        yield count, start


def _places(old: Parts, new: Parts) -> Iterator[list[_Place]]:
    """Yield where each part is: two places of those that may be equal, by name and size, or by what is before them."""
    left: dict[tuple[str, int], int] = {}  # parts of the old model that have no equal yet: their sizes
    named: dict[str, tuple[str, int]] = {}
    for path, rows in old.items():
        for number, row in enumerate(rows):
            left[path, number] = row.nbytes
            named.update(dict.fromkeys(row.names, (path, number)))
    for path, rows in new.items():
        like = path, -1
        for number, row in enumerate(rows):
            like = next((named[name] for name in row.names if name in named), (like[0], like[1] + 1))
            if left.get(like) == row.nbytes:
                del left[like]
                yield [(1, path, number), (0, *like)]
            else:
                yield [(1, path, number)]
    for path, number in left:
        yield [(0, path, number)]


def _records(model: Model) -> Iterator[tuple[BlobReader, int, str, Any, int]]:
    """Yield (reader, offset, name, key for `model_hash`, bytes as declared) of every reference to a record."""
    package = model.package
    if package.blobs is not None:
        for tensor in model.values():
            key = (tensor.file, tensor.offset, tensor.mil_dtype)
            yield package.blobs, tensor.offset or 0, tensor.name, key, tensor.nbytes
    for program in model.parts:
        for one in program.scan.constants:
            shape = tuple(size for size in one.shape or () if size is not None)
            if one.storage == _codec.BLOB and one.shape is not None and len(shape) == len(one.shape):
                dtype, file = BY_MIL_CODE[one.mil_code], path_of(program.source, one.text)
                reader = package.reader(program.source, one.text)
                key = (file and shown(file), one.blob_offset, dtype)
                yield reader, one.blob_offset, program.scan.name_of(one), key, dtype.nbytes(prod(shape))


def _parts_of(mapping: MappedFile, names: Mapping[int, Sequence[str]]) -> list[FilePart]:
    """Return the parts of a file; of one without records, or from a record on that is broken, one."""
    rows: list[FilePart] = []
    at = 0
    if mapping.nbytes >= HEAD_NBYTES and is_blob_head(frames.read(mapping, 0, HEAD_NBYTES)):
        with contextlib.suppress(MilblobError):
            for record in BlobReader(mapping):
                start, end = record.data_offset, record.data_offset + record.nbytes
                if start < at or end > mapping.nbytes or not record.nbytes:
                    continue
                if start > at:
                    rows.append(FilePart(at, start - at, 0))
                width = 0 if record.dtype.is_sub_byte else record.dtype.nbits // 8
                rows.append(FilePart(start, record.nbytes, width, True, tuple(names.get(record.offset, ()))))
                at = end
    if at < mapping.nbytes:
        rows.append(FilePart(at, mapping.nbytes - at, 0))
    return rows
