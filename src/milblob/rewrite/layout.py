"""The records of a repacked model: the list of records, equal records, their files and offsets.

Writes nothing. `arrange.py`, which knows what refers to each record, fills `Records`.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

from .. import _codec
from ..blobs.equal import Stretch, first_equal
from ..blobs.reader import BlobReader, BlobRecord
from ..dtypes import DType
from ..errors import MilblobError
from ..storage.mapped import MappedFile
from ..storage.source_file import SourceFile
from ..values.tensorvalue import stored_bytes, unpack_at
from .tasks import COPY, DENSE, VALUE, Item, lay_out

WEIGHTS = "weights"
WEIGHT_FILE = "weight.bin"
_MAX_NCHARS = 100  # limit for a function's name in a file name


class WeightFile(NamedTuple):
    """A weight file of the source."""

    name: str  # relative to the root of the model, with "/", links resolved
    base: str  # replaces @model_path in references to it, relative to the root: "" or a directory
    reader: BlobReader  # its reader
    buffer: _codec.Buffer  # its bytes
    number: int  # its place in the order of first reference

    def record(self, offset: int) -> BlobRecord:
        """Return the record whose metadata is at `offset`."""
        return self.reader.record_in(self.buffer, offset)  # the size of the file was checked once


class Records:
    """The contents of the result's weight files.

    `root`: real directory of the model; file names are relative to it. `align`: data alignment in the result.
    `canonical`: order records by reference and rewrite every file.
    """

    def __init__(self, root: str, align: int, canonical: bool) -> None:
        self.root = root
        self.weight_files: dict[str, WeightFile] = {}  # of the source, by name
        self.items: list[Item] = []  # records of the result
        # weight file of the result -> (its items in order, size in bytes); only rewritten files
        self.files: dict[str, tuple[list[Item], int]] = {}
        self.gone: set[str] = set()  # weight files of the source that the result lacks or rewrites
        # (file, offset) of records in the source that are, or were, referred to
        self.used: set[tuple[str, int]] = set()
        self.origins: dict[SourceFile, MappedFile] = {}  # every file that bytes come from, mapped
        self._align = align
        self._canonical = canonical
        self._dense: dict[Any, Item] = {}
        self._by_record: dict[tuple[str, int, DType], Item] = {}
        self._origin_of: dict[int, SourceFile] = {}
        self._others: set[str] | None = None

    def origin(self, mapping: MappedFile) -> SourceFile:
        """Describe a file that bytes come from."""
        origin = self._origin_of.get(id(mapping))
        if origin is None:
            origin = self._origin_of[id(mapping)] = SourceFile.of(mapping)
            self.origins[origin] = mapping
        return origin

    def weight_file(self, name: str, base: str, reader: BlobReader) -> WeightFile:
        """Return the weight file of that name, adding it if it is new."""
        found = self.weight_files.get(name)
        if found is None:
            buffer = reader.mapping.check_size()
            found = self.weight_files[name] = WeightFile(name, base, reader, buffer, len(self.weight_files))
        return found

    def add_record(self, weight_file: WeightFile, record: Any, target: DType | None, name: str) -> Item:
        """Return the item for a record of the source converted to `target`; one item per pair.

        `name`: of the tensor that refers to it; "" if none does: in a canonical layout it then comes last.
        """
        key = weight_file.name, record.offset, target or record.dtype
        item = self._by_record.get(key)
        if item is None:
            origin, span = self.origin(weight_file.reader.mapping), (record.data_offset, record.nbytes)
            item = Item(origin, span, record.dtype, record.count, weight_file.base, weight_file.name)
            item.order = (0, weight_file.number, record.offset)
            if self._canonical:
                item.order = (0 if name else 1, len(self.items), 0)
            item.name = name
            item.before = (weight_file.name, record.offset)
            item.target = target or record.dtype
            self._by_record[key] = item
            self.items.append(item)
        return item

    def add_value(
        self, mapping: MappedFile, span: tuple[int, int], dtype: DType, shape: tuple[int, ...], base: str, how: str
    ) -> Item:
        """Return a new item for bytes in a model file."""
        item = Item(self.origin(mapping), span, dtype, prod(shape), base, self._default_file(base), how)
        item.shape = shape
        item.order = (0 if self._canonical else 1, len(self.items), 0)
        self.items.append(item)
        return item

    def add_dense(
        self, weight_file: WeightFile | None, offset: int, mapping: MappedFile, dtype: DType, shape: tuple[int, ...],
        base: str, key: Any,
    ) -> Item:  # fmt: skip
        """Return the item for what is computed of a weight: its dense values, or a part; each key has one.

        `weight_file`: of its first part, at `offset`, which the result goes to; None for the default. `mapping`: of the
        model file. `base`: replaces @model_path. `key`: identifies what it is computed from.
        """
        item = self._dense.get(key)
        if item is None:
            file = weight_file.name if weight_file is not None else self._default_file(base)
            item = Item(self.origin(mapping), (0, 0), dtype, prod(shape), base, file, DENSE)
            item.shape = shape
            item.order = (1, len(self.items), 0) if weight_file is None else (0, weight_file.number, offset)
            if self._canonical:
                item.order = (0, len(self.items), 0)
            self._dense[key] = item
            self.items.append(item)
        return item

    def unreferenced(self, is_dropped: bool) -> Iterator[tuple[WeightFile, int, Any]]:
        """Yield (file, number, record) for every record that nothing in the source refers to.

        `is_dropped`: skip a file whose records cannot all be listed; those referred to have been read already.
        """
        for weight_file in list(self.weight_files.values()):
            reader = weight_file.reader
            try:
                offsets = reader.index["offset"].tolist()
            except MilblobError:
                if is_dropped:
                    continue
                raise
            for number, offset in enumerate(offsets):
                if (weight_file.name, offset) not in self.used:
                    yield weight_file, number, weight_file.record(offset)

    # ------------------------------------------------------------------------------------------------------------ equal

    def dedupe(self) -> None:
        """Find the items that equal an earlier one of the same model directory, and remove them from the items."""
        self.items.sort(key=lambda item: item.order)
        kinds = [  # dense values are equal if their parts are; they are not compared otherwise
            (item.base, item.dtype.mil_code, item.target.mil_code, item.count, id(item) if item.how == DENSE else 0)
            for item in self.items
        ]
        alike = Counter(kinds)
        stretches = [
            Stretch(*self._bytes_of(item, alike[kind] > 1), kind) for item, kind in zip(self.items, kinds, strict=True)
        ]
        for item, index in zip(self.items, first_equal(stretches), strict=True):
            item.first = self.items[index]
            item.first.add_user(item.user)
        self.items = [item for item in self.items if item.first is item]

    def _bytes_of(self, item: Item, is_compared: bool) -> tuple[_codec.Buffer, int, int]:
        if item.held is not None:
            return item.held, 0, item.nbytes
        buffer = self.origins[item.origin].check_size()
        if item.how != VALUE or not is_compared:
            return buffer, item.start, item.nbytes
        values = unpack_at(buffer, item.start, item.nbytes, item.dtype, item.shape)
        stored = _codec.Buffer(stored_bytes(values, item.dtype))
        return stored, 0, stored.nbytes

    # ------------------------------------------------------------------------------------------------------------ files

    def _default_file(self, base: str) -> str:
        """Return the file for a value that was in the Program: the only weight file, if there is just one."""
        own = [name for name, weight_file in self.weight_files.items() if weight_file.base == base]
        return own[0] if len(own) == 1 else self._free(_join(base, WEIGHTS), WEIGHT_FILE, set())

    def merge(self) -> None:
        """Put all records of each model directory into one file."""
        files = {base: self._default_file(base) for base in {item.base for item in self.items}}
        for item in self.items:
            item.file = files[item.base]

    def split_by_function(self) -> None:
        """Move records that only one function uses to a file of its own, beside the one for everything else."""
        files: dict[tuple[str, str], str] = {}
        given: set[str] = set()
        for item in self._ordered():
            directory = item.file.rpartition("/")[0]
            function = item.user or ""
            key = directory, function
            if key not in files:
                stem = re.sub(r"[^A-Za-z0-9_@-]", "-", function[:_MAX_NCHARS])
                files[key] = self._free(directory, f"{stem}-{WEIGHT_FILE}" if function else WEIGHT_FILE, given)
            item.file = files[key]

    def split_by_size(self, limit: int) -> None:
        """Limit files to `limit` bytes; a larger record gets its own file. Files that already fit are unchanged."""
        by_directory: dict[str, list[Item]] = {}
        for item in self._ordered():
            by_directory.setdefault(item.file.rpartition("/")[0], []).append(item)
        for directory, items in by_directory.items():
            files = {item.file: (0, 64) for item in items}  # records, end
            for item in items:
                count, end = files[item.file]
                files[item.file] = count + 1, self._end_behind(item, end)
            if all(end <= limit or count == 1 for count, end in files.values()):
                continue
            given: set[str] = set()
            file, end = "", limit
            for item in items:
                end = self._end_behind(item, end)
                if end > limit or not file:
                    file = self._free(directory, f"{len(given)}-{WEIGHT_FILE}", given)
                    end = self._end_behind(item, 64)
                item.file = file

    def _ordered(self) -> list[Item]:
        return sorted(self.items, key=lambda item: item.order)

    def _end_behind(self, item: Item, end: int) -> int:
        return int(_codec.blob_place(end, self._align)[1]) + item.target_nbytes

    def _free(self, directory: str, name: str, given: set[str]) -> str:
        """Return a name in a directory that is not assigned to another file and not used by anything else in the model.

        Names differ even if case is ignored. Names of the source's weight files count as free: their records are
        assigned to files here.
        """
        if self._others is None:
            self._others = {name.casefold() for name in _names(self.root) if name not in self.weight_files}
        stem, dot, suffix = name.rpartition(".")
        number = 1
        while True:
            path = _join(directory, name if number == 1 else f"{stem}-{number}{dot}{suffix}")
            if path.casefold() not in self._others and path.casefold() not in given:
                given.add(path.casefold())
                return path
            number += 1

    def lay_out(self, required: Iterable[str] = ()) -> None:
        """Assign every record its offset, and find the files that are unchanged.

        `required`: names of files that must exist; a weight file among them is kept even without records.
        """
        self.files = lay_out(self.items, self._align)
        for name in required:
            if name in self.weight_files and name not in self.files:
                self.files[name] = ([], 64)
        for name, weight_file in self.weight_files.items():
            items, nbytes = self.files.get(name, ([], 0))
            if name in self.files and not self._canonical and _is_same(weight_file, items, nbytes):
                del self.files[name]
            else:
                self.gone.add(name)


def _is_same(weight_file: WeightFile, items: list[Item], nbytes: int) -> bool:
    """Whether a file's new layout equals the old one: it is then copied whole, including its reserved bytes."""
    reader = weight_file.reader
    if reader.mapping.nbytes != nbytes or len(reader) != len(items):
        return False
    return all(
        item.how == COPY and item.before == (weight_file.name, item.offset) and item.data_offset == item.start
        for item in items
    )


def _join(directory: str, name: str) -> str:
    return f"{directory}/{name}" if directory else name


def _names(root: str) -> Iterator[str]:
    """Yield every file and directory below a directory, relative to it, with "/"."""
    for directory, folders, files in os.walk(root):
        inside = os.path.relpath(directory, root).replace(os.sep, "/")
        for name in [*folders, *files]:
            yield _join("" if inside == "." else inside, name)
