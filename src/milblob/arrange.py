"""Arranging a model anew: what becomes of each tensor, which records the result has, which bytes of the Program change.

Nothing is written here. `Arrangement` is made from an open model and `Options`; `repack.py` executes it.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, cast

from . import _codec, casting
from .blob import BlobReader
from .dedupe import Stretch, first_equal
from .dtypes import DType
from .edits import combined, function_edits, reference_edit, value_edit
from .errors import MilblobError, ProgramError, UnsupportedError
from .model import Model
from .package import MODEL_PATH, join_relative
from .plan import CAST, COPY, VALUE, Item, Origin, lay_out
from .program import Program
from .splice import Edit
from .tensor import Tensor
from .tensorvalue import BYTES, DOUBLES, FLOATS, pack_tensor

DEFAULT_FILE = "weights/weight.bin"
_RAW_FIELDS = (FLOATS, DOUBLES, BYTES)


class Options(NamedTuple):
    """What `repack` is asked for; see there."""

    cast: dict[DType, DType]
    dedupe: bool = False
    gc: bool = False
    externalize: int | None = None
    inline: int | None = None
    split: str | int | None = None
    merge: bool = False
    align: int = 64
    canonical: bool = False
    select: tuple[str, ...] = ()
    functions: tuple[str, ...] | None = None
    overflow: str = "error"
    nan: str = "keep"

    @property
    def moves(self) -> bool:
        """Whether records may change their places."""
        return bool(
            self.cast
            or self.dedupe
            or self.gc
            or self.externalize is not None
            or self.inline is not None
            or self.split is not None
            or self.merge
            or self.align != 64
            or self.canonical
            or self.functions is not None
        )


class Change:
    """What becomes of one tensor.

    Attributes:
        name: of the tensor; of a record that nothing refers to, "#n" by its file and number.
        actions: "cast", "externalize", "inline", "deduplicate", "drop"; none of them for a tensor that is kept.
        dtype, dtype_after, nbytes, nbytes_after: of the values as they are stored. Of a tensor that shares its record
            with an earlier one, nbytes_after is 0.
        file, offset, file_after, offset_after: of the record, by name in the package; None for immediates.
        overflow, nan, underflow: what a cast has met: see `casting.CastCounts`. Known when it is done.
    """

    __slots__ = (
        "actions", "dtype", "dtype_after", "file", "file_after", "item", "name", "nan", "nbytes", "nbytes_after",
        "offset", "offset_after", "overflow", "underflow",
    )  # fmt: skip

    def __init__(self, name: str, dtype: DType, nbytes: int, file: str | None, offset: int | None) -> None:
        self.name = name
        self.actions: list[str] = []
        self.dtype = self.dtype_after = dtype
        self.nbytes = self.nbytes_after = nbytes
        self.file = self.file_after = file
        self.offset = self.offset_after = offset
        self.overflow = self.nan = self.underflow = 0
        self.item: Item | None = None


class _Reference:
    """One constant of the result: where its value is, and how the Program has to change for it."""

    __slots__ = ("change", "constant", "item", "program", "target", "tensor", "value")

    def __init__(self, tensor: Tensor, change: Change) -> None:
        self.tensor = tensor
        self.program = cast(Program, tensor._program)
        self.constant = tensor._constant
        self.change = change
        self.item: Item | None = None
        self.target: DType | None = None  # of a cast
        self.value: bytes | None = None  # new TensorValue of an immediate


class WeightFile(NamedTuple):
    """A weight file of the source.

    Attributes:
        name: relative to the package, with "/".
        reader: of it.
        number: in order of first reference.
    """

    name: str
    reader: BlobReader
    number: int


class Arrangement:
    """What a repacked model will be.

    Attributes:
        changes: one row per tensor, and per record that is dropped or that nothing refers to.
        files: weight file of the result -> (its items in order, size in bytes); only those that are written anew.
        gone: weight files of the source that the result does not have, or has anew.
        edits: of the model file.

    Raises:
        ProgramError: a cast after which an operation would not type-check; the consumer is named.
        UnsupportedError: something that this kind of model cannot have.
        ResolveError, FormatError: a reference that leads nowhere, a broken file.
    """

    def __init__(self, models: Sequence[Model], options: Options) -> None:
        model = self.model = models[0]
        self.options = options
        self.changes: list[Change] = []
        self.files: dict[str, tuple[list[Item], int]] = {}
        self.gone: set[str] = set()
        self.edits: list[Edit] = []
        self._references: list[_Reference] = []
        self._items: list[Item] = []
        self._by_record: dict[tuple[str, int, DType], Item] = {}
        self._origins: dict[int, Origin] = {}
        self._weight_files: dict[str, WeightFile] = {}
        self._users: dict[int, set[str]] = {}  # functions that refer to an item, by its id
        self._used_records: set[tuple[str, int]] = set()
        self._root = os.path.abspath(model.path or ".")
        if model.kind in ("mlmodel", "blob"):
            self._root = os.path.dirname(self._root)
        self._require_support()
        self._kept_functions()
        for tensor in model._tensors.values():
            self._add_tensor(tensor)
        for other in models[1:]:
            self._add_file(other)
        if options.moves or len(models) > 1:
            self._add_unreferenced()
            if options.dedupe:
                self._dedupe()
            self._assign_files()
            self._lay_out()
        self._edit()

    def _require_support(self) -> None:
        options, kind = self.options, self.model.kind
        compiled = any(source.is_text for source, _ in self.model._programs)
        edits = {
            "cast": bool(options.cast), "externalize": options.externalize is not None,
            "inline": options.inline is not None, "functions": options.functions is not None,
        }  # fmt: skip
        asked = [name for name, is_asked in edits.items() if is_asked]
        if kind == "mil":
            raise UnsupportedError(
                "repack: expected a package, a compiled model or a weight file, got MIL text alone",
                file=self.model.path,
            )
        if compiled and asked:
            raise UnsupportedError(
                f"{asked[0]}: expected a model whose Program is protobuf, got MIL text, in which only the places of "
                "records can change",
                file=self.model.path,
            )
        if kind == "blob":
            asked = [name for name in asked if name != "cast"]
            asked += ["gc"] * options.gc + ["split"] * (options.split is not None)
            if asked:
                raise UnsupportedError(f"{asked[0]}: expected a model, got a weight file alone", file=self.model.path)
        for _, program in self.model._programs:
            if program.rewritten and options.moves:
                words = "Program: expected messages in one piece, which can be edited where they are, got pieces"
                raise UnsupportedError(words, file=self.model.path)

    def _kept_functions(self) -> None:
        """Check the names in `functions`."""
        wanted = self.options.functions
        if wanted is None:
            return
        have = self.model.functions
        for name in wanted:
            if name not in have:
                raise KeyError(f"function: expected one of {', '.join(have[:8])}, got {name!r}")

    # --------------------------------------------------------------------------------------------------------- tensors

    def _is_selected(self, name: str) -> bool:
        return not self.options.select or any(fnmatchcase(name, glob) for glob in self.options.select)

    def _add_tensor(self, tensor: Tensor) -> None:
        options, constant = self.options, tensor._constant
        name = tensor.name
        if constant is None:  # of a bare weight file
            self._add_record(self.model, tensor, name)
            return
        program = cast(Program, tensor._program)
        is_blob = constant.storage == _codec.BLOB
        weight_file, record = None, None
        change = Change(name, tensor.mil_dtype, 0, None, None)
        if is_blob:
            weight_file = self._weight_file(tensor)
            record = weight_file.reader.record(constant.blob_offset)
            change = Change(name, tensor.mil_dtype, record.nbytes, weight_file.name, record.offset)
        elif tensor.mil_dtype is not DType.STRING:
            change = Change(name, tensor.mil_dtype, tensor.nbytes, None, None)
        self.changes.append(change)
        if not self._is_kept(tensor):
            change.actions.append("drop")
            change.nbytes_after, change.file_after, change.offset_after = 0, None, None
            if weight_file is not None and record is not None:
                self._used_records.add((weight_file.name, record.offset))
            return
        reference = _Reference(tensor, change)
        is_value = _is_value(constant)
        is_part = id(constant) in program.part_names and id(constant) not in program.shared
        dense_name = constant.op.name if is_part and constant.op is not None else name
        if self._is_selected(dense_name) or self._is_selected(name):
            target = options.cast.get(tensor.mil_dtype)
            if target is not None and (not is_part or constant.op.type == "constexpr_cast"):
                reference.target = target
                change.actions.append("cast")
                change.dtype_after = target
            if is_blob and options.inline is not None and is_value and tensor.size < options.inline:
                change.actions.append("inline")
            elif not is_blob and is_value and self._may_externalize(tensor):
                change.actions.append("externalize")
        self._references.append(reference)
        if weight_file is not None and record is not None:
            self._used_records.add((weight_file.name, record.offset))
        if change.actions and is_blob:
            tensor.read()  # refuses a record that is not what the Program declares
        if "inline" in change.actions or (not is_blob and change.actions == ["cast"]):
            self._make_value(reference)
        elif weight_file is not None and record is not None:
            reference.item = self._item_of(weight_file, record, reference.target, name)
        elif "externalize" in change.actions:
            reference.item = self._external_item(reference)
        if reference.item is not None:
            self._users.setdefault(id(reference.item), set()).add(tensor.function)
            change.item = reference.item

    def _is_kept(self, tensor: Tensor) -> bool:
        functions = self.options.functions
        return functions is None or tensor._constant.function < 0 or tensor.function in functions

    def _may_externalize(self, tensor: Tensor) -> bool:
        least = self.options.externalize
        return (
            least is not None
            and tensor.mil_dtype.blob_code is not None
            and None not in tensor._shape
            and tensor.size >= max(least, 1)
        )

    def _weight_file(self, tensor: Tensor) -> WeightFile:
        """The weight file that a constant refers to, each once, by its path in the package."""
        source = tensor._source
        assert source is not None
        try:
            reader = self.model._package.reader(source, tensor._constant.text)
        except MilblobError as error:
            error.where = error.where or tensor.where
            raise
        path = join_relative(source.directory or ".", tensor._constant.text.removeprefix(MODEL_PATH))
        name = os.path.relpath(os.path.abspath(path), self._root).replace(os.sep, "/")
        found = self._weight_files.get(name)
        if found is None:
            found = self._weight_files[name] = WeightFile(name, reader, len(self._weight_files))
        return found

    def _origin(self, mapping: Any) -> Origin:
        origin = self._origins.get(id(mapping))
        if origin is None:
            origin = self._origins[id(mapping)] = Origin.of(mapping)
        return origin

    def _item_of(self, weight_file: WeightFile, record: Any, target: DType | None, name: str) -> Item:
        key = weight_file.name, record.offset, target or record.dtype
        item = self._by_record.get(key)
        if item is None:
            order = (0, weight_file.number, record.offset)
            if self.options.canonical:
                order = (0, len(self._items), 0)
            origin = self._origin(weight_file.reader._mapping)
            item = Item(origin, record.data_offset, record.nbytes, record.dtype, record.count, weight_file.name, order)
            item.name = name
            item.before = (weight_file.name, record.offset)
            if target is not None and target is not record.dtype:
                item.how, item.target = CAST, target
            self._by_record[key] = item
            self._items.append(item)
        return item

    def _external_item(self, reference: _Reference) -> Item | None:
        """A record for an immediate; None if its value cannot be taken from the model file as it is there."""
        tensor, program = reference.tensor, reference.program
        mapping = tensor._source.mapping  # type: ignore[union-attr]
        dtype, (offset, nbytes) = tensor.mil_dtype, reference.constant.payload
        field, _, at, payload, pieces, _ = _codec.tensor_locate(program.buffer, offset, nbytes)
        order = (0, len(self._items), 0) if self.options.canonical else (1, len(self._items), 0)
        raw = field in _RAW_FIELDS and pieces == 1 and payload == dtype.nbytes(tensor.size)
        if not raw and reference.target is not None:
            raise UnsupportedError(
                f"cast of a value that is written in pieces: expected one piece, got {pieces}",
                file=self.model.path,
                where=tensor.where,
            )
        start, size = (at, payload) if raw else (offset, nbytes)
        file = self._default_file(tensor)
        item = Item(self._origin(mapping), start, size, dtype, tensor.size, file, order, COPY if raw else VALUE)
        item.name, item.shape = tensor.name, tensor.shape
        if reference.target is not None:
            item.how, item.target = CAST, reference.target
        self._items.append(item)
        return item

    def _default_file(self, tensor: Tensor) -> str:
        if len(self._weight_files) == 1:
            return next(iter(self._weight_files))
        source = tensor._source
        assert source is not None and source.directory is not None
        path = join_relative(source.directory, DEFAULT_FILE)
        return os.path.relpath(os.path.abspath(path), self._root).replace(os.sep, "/")

    def _make_value(self, reference: _Reference) -> None:
        """The new TensorValue of something that is, or becomes, an immediate."""
        values, change, options = reference.tensor.read(), reference.change, self.options
        if reference.target is not None:
            try:
                values, counts = casting.cast_array(
                    values, reference.target, overflow=options.overflow, nan=options.nan
                )
            except (OverflowError, ValueError) as error:
                raise type(error)(f"{change.name}: {error}") from None
            change.overflow, change.nan, change.underflow = counts
        dtype = reference.target or reference.tensor.mil_dtype
        reference.value = pack_tensor(values, dtype)
        change.nbytes_after = dtype.nbytes(values.size)
        change.file_after = change.offset_after = None

    def _add_file(self, model: Model) -> None:
        """Another weight file, whose records follow those that there are."""
        for tensor in model._tensors.values():
            self._add_record(model, tensor, f"{model.path}{tensor.name}")
        for item in self._items:
            item.file = cast(str, self.model.path)

    def _add_record(self, model: Model, tensor: Tensor, name: str) -> None:
        """A record of a bare weight file."""
        reader, path = cast(BlobReader, model._package.blobs), cast(str, model.path)
        weight_file = self._weight_files.get(path)
        if weight_file is None:
            weight_file = self._weight_files[path] = WeightFile(path, reader, len(self._weight_files))
        record = reader.record(tensor.offset or 0)
        change = Change(name, record.dtype, record.nbytes, path, record.offset)
        target = self.options.cast.get(record.dtype) if self._is_selected(tensor.name) else None
        if target is not None:
            change.actions.append("cast")
            change.dtype_after = target
        change.item = self._item_of(weight_file, record, target, name)
        self.changes.append(change)
        self._used_records.add((path, record.offset))

    # --------------------------------------------------------------------------------------------------------- records

    def _add_unreferenced(self) -> None:
        """Records that nothing in the source refers to: kept where they are, or dropped."""
        for weight_file in self._weight_files.values():
            if self.options.gc and not self._is_walkable(weight_file):
                continue
            for number, record in enumerate(weight_file.reader):
                if (weight_file.name, record.offset) in self._used_records:
                    continue
                name = f"{weight_file.name}#{number}"
                change = Change(name, record.dtype, record.nbytes, weight_file.name, record.offset)
                self.changes.append(change)
                if self.options.gc:
                    change.actions.append("drop")
                    change.nbytes_after, change.file_after, change.offset_after = 0, None, None
                    continue
                change.item = self._item_of(weight_file, record, None, "")
                if self.options.canonical:
                    change.item.order = (2, weight_file.number, record.offset)

    @staticmethod
    def _is_walkable(weight_file: WeightFile) -> bool:
        """Whether all records can be listed. What is referred to was read already: the rest is to be dropped anyway."""
        try:
            return len(weight_file.reader.index) >= 0
        except MilblobError:
            return False

    def _dedupe(self) -> None:
        self._items.sort(key=lambda item: item.order)
        buffers = {id(reader._mapping): reader._mapping for _, reader, _ in self._weight_files.values()}
        buffers |= {id(source.mapping): source.mapping for source, _ in self.model._programs}
        held = {self._origins[key]: mapping.check_size() for key, mapping in buffers.items() if key in self._origins}
        stretches = [
            Stretch(held[i.origin], i.start, i.nbytes, (i.how == VALUE, i.dtype, i.target, i.count))
            for i in self._items
        ]
        first = first_equal(stretches)
        for change in self.changes:
            item = change.item
            if item is None:
                continue
            item.first = item
        for item, index in zip(self._items, first, strict=True):
            item.first = self._items[index]
        for reference in self._references:
            if reference.item is not None and reference.item.first is not reference.item:
                users = self._users.pop(id(reference.item), set())
                self._users.setdefault(id(reference.item.first), set()).update(users | {reference.tensor.function})
        self._items = [item for item in self._items if item.first is item]

    def _assign_files(self) -> None:
        """Divide the records among files, as `split` and `merge` say."""
        options = self.options
        if options.merge:
            for item in self._items:
                item.file = self._directory_of(item.file) + "weight.bin"
        elif options.split == "function":
            for item in self._items:
                users = self._users.get(id(item), set())
                alone = next(iter(users)).replace("/", "-") if len(users) == 1 else ""
                item.file = self._directory_of(item.file) + (f"{alone}.bin" if alone else "weight.bin")
        elif isinstance(options.split, int):
            self._split_by_size(options.split)

    @staticmethod
    def _directory_of(file: str) -> str:
        return file.rpartition("/")[0] + "/" if "/" in file else ""

    def _split_by_size(self, limit: int) -> None:
        number, end = 0, 64
        for item in sorted(self._items, key=lambda item: item.order):
            _, data_offset = _codec.blob_place(end, self.options.align)
            if data_offset + item.target_nbytes > limit and end > 64:
                number, end = number + 1, 64
                _, data_offset = _codec.blob_place(end, self.options.align)
            end = data_offset + item.target_nbytes
            item.file = f"{self._directory_of(item.file)}{number}-weight.bin"

    def _lay_out(self) -> None:
        self.files = lay_out(self._items, self.options.align)
        have = set(self._weight_files)
        for name, weight_file in self._weight_files.items():
            items, nbytes = self.files.get(name, ([], 64))
            if name in self.files and not self.options.canonical and self._is_same(weight_file, items, nbytes):
                del self.files[name]
                continue
            self.gone.add(name)
        if have and not self.files and not have - self.gone:
            self.files[min(have)] = ([], 64)  # the manifest names its directory, which must not be empty
        for change in self.changes:
            item = change.item
            if item is None:
                continue
            first = item.first or item
            if first is not item:
                change.actions.append("deduplicate")
            change.file_after, change.offset_after = first.file, first.offset
            change.nbytes_after = item.target_nbytes if first is item and item.name in ("", change.name) else 0

    @staticmethod
    def _is_same(weight_file: WeightFile, items: list[Item], nbytes: int) -> bool:
        """Whether a file would be laid out as it is: then it is copied whole, whatever is in its reserved bytes."""
        reader = weight_file.reader
        if reader._mapping.nbytes != nbytes or len(reader) != len(items):
            return False
        return all(
            item.how == COPY and item.before == (weight_file.name, item.offset) and item.data_offset == item.start
            for item in items
        )

    # --------------------------------------------------------------------------------------------------------- Program

    def _edit(self) -> None:
        edits: list[Edit | None] = []
        if self.options.functions is not None:
            edits += self._function_edits()
        for reference in self._references:
            edits += self._edits_of(reference)
        self.edits = combined(edits)

    def _edits_of(self, reference: _Reference) -> Iterable[Edit | None]:
        program, constant, item = reference.program, reference.constant, reference.item
        place = self._place(reference, item)
        if reference.target is not None:
            value: Any = reference.value if place is None else place
            return casting.cast_edits(program, constant, reference.target, value)
        if reference.value is not None:
            return [value_edit(program.buffer, constant, tensor=reference.value)]
        if place is None:
            return ()
        if constant.storage != _codec.BLOB:
            return [value_edit(program.buffer, constant, reference=place)]
        if (constant.text, constant.blob_offset) == place or reference.tensor._source.is_text:  # type: ignore[union-attr]
            return ()
        return [reference_edit(program.buffer, constant, *place)]

    def _place(self, reference: _Reference, item: Item | None) -> tuple[str, int] | None:
        """(fileName, offset) of a record of the result, as the Program is to spell it."""
        if item is None:
            return None
        constant = reference.constant
        first = item.first or item
        if not self.options.moves:
            return constant.text, constant.blob_offset
        if constant.storage == _codec.BLOB and item.before is not None and first.file == item.before[0]:
            return constant.text, first.offset
        directory = reference.tensor._source.directory  # type: ignore[union-attr]
        base = os.path.relpath(os.path.abspath(directory or "."), self._root).replace(os.sep, "/")
        inside = first.file if base == "." else first.file.removeprefix(base + "/")
        return MODEL_PATH + inside, first.offset

    def moves(self) -> Iterator[tuple[str, tuple[str, int], tuple[str, int]]]:
        """Yield (prefix of the Program, place before, place after) of every reference that changes."""
        for reference in self._references:
            constant = reference.constant
            place = self._place(reference, reference.item)
            if place is not None and place != (constant.text, constant.blob_offset):
                yield reference.program.prefix, (constant.text, constant.blob_offset), place

    def _function_edits(self) -> list[Edit]:
        if len(self.model._programs) != 1:
            raise UnsupportedError("functions: expected a model with one Program, got a pipeline", file=self.model.path)
        source, program = self.model._programs[0]
        keep = [name.removeprefix(program.prefix) for name in self.options.functions or ()]
        if not keep:
            raise ProgramError("functions: expected at least one to keep, got none", file=self.model.path)
        return function_edits(program.buffer, program.span, source.description, keep)


def _is_value(constant: Any) -> bool:
    """Whether a constant is a whole value: of a const operation, or a part of a constexpr one."""
    op = constant.op
    if op is None or constant.steps or constant.owner not in (_codec.ATTRIBUTE, _codec.INPUT):
        return False
    return bool(op.type == "const" and constant.key == "val") or str(op.type).startswith("constexpr_")
