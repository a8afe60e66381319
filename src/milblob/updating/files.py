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
from .patch import KINDS, PatchedFile, digest_of, part_hashes

_FINDER = ".DS_Store"


class FilePart(NamedTuple):
    """Bytes of a weight file: the data of a record, or what is between them.

    Attributes:
        offset, nbytes: in the file.
        width: bytes of an element; 0 of packed ones, and between records.
        is_record: whether it is the data of a record.
        names: of the weights that the record has, in the Program; "#0" and so on in a bare weight file.
        digest: BLAKE3 of the data; b"" between records.
    """

    offset: int
    nbytes: int
    width: int
    is_record: bool = False
    names: tuple[str, ...] = ()
    digest: bytes = b""


class ModelFiles:
    """A model and all files in it, open; a context manager.

    Args:
        source: path of a .mlpackage, .mlmodelc, .mlmodel or weight file.
        on_pending: what to do about an interrupted change; see `Package`.
        max_nbytes: as for `open`.

    Attributes:
        kind: "mlpackage", "mlmodelc", "mlmodel" or "blob".
        package: the open model.
        mappings: path relative to the model, with "/" -> open file; "" of a model that is a file.
        is_directory: whether it is one.

    Raises:
        As opening it. UnsupportedError: another kind of file; a model file whose weights are in others.
    """

    def __init__(
        self, source: str, on_pending: Callable[[Pending], object] = wait, *, max_nbytes: int | None = None
    ) -> None:
        self.path = source
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

    def __enter__(self) -> "ModelFiles":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

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
    """The digests of a model's files and of the records in them, from one pass over the bytes.

    Args:
        files: the model.
        counter: `add` is called with each part that is hashed.

    Attributes:
        files: the model.
        patched: each file as a patch names it.
        parts: path -> parts of a file with records, in order, from its first byte to the last.
        content: content hash of the model.

    Raises:
        As `content_hash`.
    """

    def __init__(self, files: ModelFiles, counter: ProgressCounter) -> None:
        self.files = files
        self.patched: dict[str, PatchedFile] = {}
        self.parts: dict[str, list[FilePart]] = {}
        with Model(files.package, constants=True) as model:
            names = self._names(model)
            for path, mapping in files.mappings.items():
                rows = _parts_of(mapping, names.get(mapping.identity, {}))
                sizes = [row.nbytes for row in rows]
                hashes = []
                for size, found in zip(sizes, part_hashes(mapping, sizes), strict=True):
                    hashes.append(found)
                    counter.add(files.shown(path), size)
                digest = digest_of(sizes, hashes)
                self.patched[path] = PatchedFile(path, mapping.nbytes, digest, np.array(sizes, np.uint64))
                if any(row.is_record for row in rows):
                    self.parts[path] = [
                        row._replace(digest=found) if row.is_record else row
                        for row, found in zip(rows, hashes, strict=True)
                    ]
            known = self._known(model, files)
            self.content = bytes.fromhex(model_hash(model, known=known).model)

    def _names(self, model: Model) -> dict[tuple[int, int] | None, dict[int, list[str]]]:
        """Return identity of each weight file -> offset of a record -> names."""
        found: dict[tuple[int, int] | None, dict[int, list[str]]] = {}
        for reader, offset, name, _, _ in _records(model):
            found.setdefault(reader.mapping.identity, {}).setdefault(offset, []).append(name)
        if model.package.blobs is not None:
            found.setdefault(model.package.blobs.mapping.identity, {})
        elif found and not self.files.is_directory:
            message = "source: expected a model whose weights are in it, got a file that refers to others"
            raise UnsupportedError(message, file=self.files.path)
        return found

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
