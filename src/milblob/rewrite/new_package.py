"""A new .mlpackage with one weight file: the records that it gets from other models, and its files."""

import os
from collections.abc import Sequence
from typing import TypeAlias

from .. import _codec
from ..blobs.equal import Stretch, first_equal
from ..errors import UnsupportedError
from ..model.manifest import new_manifest
from ..model.open_program import OpenProgram
from ..model.package import MODEL_PATH, Package, Source
from ..program.splice import Spliced
from ..program.wire_edits import varint
from ..progress import ProgressCounter
from ..storage import paths
from ..storage.mapped import MappedFile
from ..storage.output import NewDirectory
from ..storage.source_file import SourceFile
from ..storage.transfer import write_at
from .copying import new_file
from .destination import require_new_package
from .execute import write_weight_files
from .tasks import Item, lay_out

WEIGHT_FILE = "weight.bin"
WEIGHTS_NAME = "weights"
FOLDER = os.path.join("Data", "com.apple.CoreML")
_MODEL_NAME = "model.mlmodel"
_KINDS = {"mlmodelc": "a compiled model", "mil": "MIL text", "blob": "a weight file", "listing": "a listing of weights"}

Bytes: TypeAlias = bytes | Spliced
"""A stretch of a new model file."""


def reference_to(name: str = WEIGHT_FILE) -> str:
    """Return how a Program spells a weight file of its package."""
    return f"{MODEL_PATH}{WEIGHTS_NAME}/{name}"


def require_one_program(package: Package) -> Source:
    """Return the Program of a package.

    Raises: UnsupportedError: a compiled model, a pipeline, or something else that is not one ML Program in protobuf.
    """
    if package.kind in _KINDS:
        raise UnsupportedError(f"source: expected a .mlpackage, got {_KINDS[package.kind]}", file=package.path)
    if len(package.sources) != 1 or package.sources[0].prefix or package.others:
        raise UnsupportedError("source: expected a single ML Program, got a pipeline", file=package.path)
    return package.sources[0]


class NewRecords:
    """The records of a new weight file, gathered from those of other models. `counter`: notes each."""

    def __init__(self, counter: ProgressCounter) -> None:
        self._counter = counter
        # one item for each record that was added, in the order of the first reference; its `first` is stored
        self.every: list[Item] = []
        self.file_nbytes = 0  # size of the weight file, once `lay_out` has set it
        self.origins: dict[SourceFile, MappedFile] = {}  # every file that bytes come from, mapped
        self._stretches: list[Stretch] = []
        self._known: dict[tuple[int, str, int], Item] = {}
        self._files: dict[MappedFile, SourceFile] = {}

    def hold(self, package: Package) -> None:
        """Note the files of a model, so that a change of any of them is found."""
        self.origins.update((SourceFile.of(mapping), mapping) for mapping in package.mappings)

    def add(self, program: OpenProgram, constant: _codec.Constant) -> Item:
        """Return the item for the record that a constant of a Program refers to; one item for each record.

        Raises: FormatError, ResolveError: no such record. LimitError: records that overlap, beyond the budget.
        """
        package = program.package
        key = id(package), constant.text, constant.blob_offset
        item = self._known.get(key)
        if item is None:
            reader = package.reader(program.source, constant.text)
            record = reader.record(constant.blob_offset)
            package.budget.spend((*key[1:], "record"), record.nbytes)
            origin, span = self._origin(reader.mapping), (record.data_offset, record.nbytes)
            item = self._known[key] = Item(origin, span, record.dtype, record.count, "", WEIGHT_FILE)
            item.order, item.name = (len(self.every),), constant.op.name if constant.op is not None else ""
            self.every.append(item)
            self._stretches.append(Stretch(reader.mapping.check_size(), *span, (record.dtype, record.count)))
        self._counter.note(item.name)
        return item

    def _origin(self, mapping: MappedFile) -> SourceFile:
        if mapping not in self._files:
            origin = self._files[mapping] = SourceFile.of(mapping)
            self.origins[origin] = mapping
        return self._files[mapping]

    def share_equal(self) -> None:
        """Store one of several equal records. Compares their bytes."""
        for item, index in zip(self.every, first_equal(self._stretches), strict=True):
            item.first = self.every[index]

    @property
    def items(self) -> list[Item]:
        """Those that are stored."""
        return [item for item in self.every if item.first is item]

    def lay_out(self) -> None:
        """Set the offsets of all items, and the size of the weight file."""
        self.file_nbytes = lay_out(self.items, 64).get(WEIGHT_FILE, ([], 64))[1]

    def require_same(self) -> None:
        """Refuse a file that was written to since it was opened. Raises: FormatError."""
        for origin, mapping in self.origins.items():
            origin.require_same(mapping.fd)


def write_package(
    directory: str, weights: Sequence[tuple[str, list[Item], int]], model: Sequence[Bytes], counter: ProgressCounter
) -> list[str]:
    """Fill an empty directory with the files of a package.

    Args:
        weights: name, records in order and size of each weight file.
        model: the model file in pieces.
        counter: `add` is called with everything that is written.

    Returns:
        The paths of the weight files.

    Raises:
        As `write_weight_files`. OSError: a file cannot be written.
    """
    folder = os.path.join(directory, FOLDER)
    os.makedirs(os.path.join(folder, WEIGHTS_NAME))
    files = [(os.path.join(folder, WEIGHTS_NAME, name), items, nbytes) for name, items, nbytes in weights]
    write_weight_files(files, counter)
    _write_file(os.path.join(folder, _MODEL_NAME), model, counter)
    _write_file(os.path.join(directory, "Manifest.json"), [new_manifest()], ProgressCounter(None))
    return [path for path, _, _ in files]


def write_new_package(
    sources: list[str], target: str, force: bool, records: NewRecords, model: list[Bytes], counter: ProgressCounter
) -> None:
    """Write a package with one weight file, whole or not at all; `model` is emptied: it holds bytes of the sources.

    Raises: As `require_new_package` and `write_package`. FormatError: a source was written to since it was opened.
    """
    counter.total_nbytes = sum(item.nbytes for item in records.items) + nbytes_of(model)
    require_new_package(sources, target, force)  # again: another process may have created it
    with NewDirectory(target, replace=paths.is_directory(target)) as directory:
        write_package(directory.name, [(WEIGHT_FILE, records.items, records.file_nbytes)], model, counter)
        model.clear()
        records.require_same()


def framed(number: int, pieces: Sequence[Bytes]) -> list[Bytes]:
    """Return the field of a message whose contents are there in pieces."""
    return [varint(number << 3 | 2) + varint(nbytes_of(pieces)), *pieces]


def nbytes_of(model: Sequence[Bytes]) -> int:
    """Return the size of a model file that is there in pieces."""
    return sum(piece.nbytes if isinstance(piece, Spliced) else len(piece) for piece in model)


def _write_file(path: str, pieces: Sequence[Bytes], counter: ProgressCounter) -> None:
    offset = 0
    with new_file(path) as fd:
        for piece in pieces:
            nbytes = nbytes_of([piece])
            if isinstance(piece, Spliced):
                piece.write_to(fd, offset)
            else:
                write_at(fd, [piece], offset)
            offset += nbytes
            counter.add(os.path.basename(path), nbytes)
