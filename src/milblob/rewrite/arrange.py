"""Planning a rewritten model: what happens to each tensor, which records the result has, how the Program changes.

Writes nothing. `Arrangement` is made from an open model and `Options`; `repack.py` executes it.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, cast

from .. import _codec
from ..blobs.reader import BlobReader
from ..dtypes import DType
from ..errors import MilblobError, ProgramError, UnsupportedError
from ..model.model import Model
from ..model.package import MODEL_PATH, Source, resolve
from ..model.places import ChainPlace
from ..model.tensor import Tensor, make_tensor
from ..program import cast_rules
from ..program.scan import Compressed, Program
from ..program.splice import Edit
from ..program.wire_edits import combined, function_edits, reference_edit, require_plain, value_edit
from ..storage.beneath import Location
from ..values import cast as casting
from ..values.tensorvalue import BYTES, DOUBLES, FLOATS, pack_tensor
from .decompress import Decompression, Identities
from .layout import Records, WeightFile
from .tasks import CAST, COPY, VALUE, Item

WEIGHT_COUNT = 10
"""The ecosystem's threshold: constants of this many elements are kept in the weight file."""

_RAW_FIELDS = (FLOATS, DOUBLES, BYTES)
_IOS18_SPEC_VERSION = 9
# What weight files may hold for Core ML before iOS 18, per coremltools; from iOS 18 on, every dtype with a blob code.
_EARLY_DTYPES = (DType.FLOAT16, DType.FLOAT32, DType.UINT8, DType.INT8)


class Options(NamedTuple):
    """The options of `repack`; see there."""

    cast: dict[DType, DType]
    dedupe: bool = False
    gc: bool = False
    externalize: int | None = None
    inline: int | None = None
    split: str | int | None = None
    merge: bool = False
    align: int = 64
    canonical: bool = False
    select: Callable[[str], bool] | None = None
    functions: tuple[str, ...] | None = None
    overflow: str = "error"
    nan: str = "keep"
    decompress: bool = False

    @property
    def moves(self) -> bool:
        """Whether anything may change; if not, the result is a plain copy."""
        plain = Options({}, select=self.select, overflow=self.overflow, nan=self.nan)
        return self != plain


class TensorChange:
    """What happens to one tensor.

    Attributes:
        name: of the tensor; for a record that nothing refers to, the name of its file and "#n".
        actions: "cast", "externalize", "inline", "deduplicate", "drop", "decompress"; none for a tensor that is kept. A
            decompressed weight has a row after all tensors; its parts, which have rows of their own, are dropped.
        dtype, dtype_after, nbytes, nbytes_after: of the stored values. nbytes_after is 0 for a tensor that shares its
            record with an earlier one.
        file, offset, file_after, offset_after: of the record, by name in the model; None for immediates.
        overflow, nan, underflow: counts of a cast, see `cast.CastCounts`. Known when the cast is done.
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

    def drop(self) -> None:
        """Mark the tensor as dropped."""
        self.actions.append("drop")
        self.nbytes_after, self.file_after, self.offset_after = 0, None, None

    def __repr__(self) -> str:
        return f"<TensorChange {self.name!r}: {', '.join(self.actions) or 'keep'}>"


class _Result:
    """One constant of the result: where its value is, and how the Program changes for it."""

    __slots__ = ("change", "constant", "item", "program", "source", "target", "tensor", "value")

    def __init__(self, tensor: Tensor, change: TensorChange) -> None:
        self.tensor = tensor
        self.program = cast(Program, tensor.program)
        self.source = cast(Source, tensor.source)
        self.constant = tensor.constant
        self.change = change
        self.item: Item | None = None
        self.target: DType | None = None  # of a cast
        self.value: bytes | None = None  # new TensorValue of an immediate


class _DenseWeight(NamedTuple):
    """A compressed weight that becomes dense: a new record, or a new TensorValue."""

    decompression: Decompression
    tensor: Tensor
    item: Item | None
    value: bytes | None


class Arrangement:
    """The plan of a repacked model.

    Args:
        models: one; or several bare weight files, whose records are concatenated. Opened with `stored=True`.
        options: what was requested.
        required: names of files that the result must have if the source has them.

    Attributes:
        changes: one row per tensor, and one per record that nothing refers to.
        records: the contents of the result's weight files, and which of them are rewritten.
        edits: of the model file.

    Raises:
        ProgramError: a cast after which an operation would not type-check; the consumer is named.
        UnsupportedError: an option that this kind of model does not support.
        ResolveError, FormatError: a reference to a missing record or file, a broken file.
    """

    def __init__(self, models: Sequence[Model], options: Options, required: Iterable[str] = ()) -> None:
        model = self.model = models[0]
        self.options = options
        self.changes: list[TensorChange] = []
        self.edits: list[Edit] = []
        self._references: list[_Result] = []
        self._decompressions: dict[int, Decompression] = {}  # by id of the Program
        self._weights: list[_DenseWeight] = []
        self._identities = Identities()
        self._known: dict[tuple[Location | None, str], WeightFile] = {}
        self._groups: dict[int, list[str]] = {}  # id of a part -> names of the weights that it is a part of
        root = os.path.realpath(model.path or ".")
        root = root if model.package.is_directory else os.path.dirname(root)
        self.records = Records(root, options.align, options.canonical)
        self._require_support()
        for other in models:
            if other.kind == "blob":
                self._add_file(other, f"{other.path}" if len(models) > 1 else "")
        for _, program in model.scans:
            self._add_groups(program)
        if options.decompress:
            self._choose_weights()
        for tensor in model.tensors.values() if model.kind != "blob" else ():
            self._add_tensor(tensor)
        for source, program in model.scans if options.decompress else ():
            self._add_weights(source, program)
        self._is_laid_out = options.moves or len(models) > 1
        if self._is_laid_out:
            self._add_unreferenced()
            if options.dedupe:
                self.records.dedupe()
            self._assign_files()
            self.records.lay_out(required)
        self._require_no_weight_file()
        self._complete_changes()
        self._edit()

    def _require_support(self) -> None:
        options, kind, path = self.options, self.model.kind, self.model.path
        edits = {
            "cast": bool(options.cast), "externalize": options.externalize is not None,
            "inline": options.inline is not None, "functions": options.functions is not None,
            "decompress": options.decompress,
        }  # fmt: skip
        asked = [name for name, is_asked in edits.items() if is_asked]
        if kind == "mil":
            words = "repack: expected a package, a compiled model or a weight file, got MIL text alone"
            raise UnsupportedError(words, file=path)
        if any(source.is_text for source, _ in self.model.scans) and asked:
            words = f"{asked[0]}: expected a model whose Program is protobuf, got MIL text, in which only the places of"
            raise UnsupportedError(f"{words} records can change", file=path)
        if kind == "blob":
            asked = [name for name in asked if name != "cast"]
            asked += ["gc"] * options.gc + ["split"] * (options.split is not None)
            if asked:
                raise UnsupportedError(f"{asked[0]}: expected a model, got a weight file alone", file=path)
        for name in options.functions or ():
            if name not in self.model.functions:
                have = ", ".join(self.model.functions[:8])
                raise KeyError(f"function: expected one of {have}, got {name!r}")

    # --------------------------------------------------------------------------------------------------------- tensors

    def _add_groups(self, program: Program) -> None:
        for group in program.groups:
            for part in group.stored():
                self._groups.setdefault(id(part), []).append(program.part_names[id(group)])

    def _is_selected(self, name: str, constant: Any = None) -> bool:
        """Whether a tensor, or the weight that it is a part of, is one of those that are asked for."""
        select = self.options.select
        return select is None or any(select(n) for n in (name, *self._groups.get(id(constant), ())))

    def _add_tensor(self, tensor: Tensor) -> None:
        constant, program, name = tensor.constant, cast(Program, tensor.program), tensor.name
        is_blob = constant.storage == _codec.BLOB
        is_part = id(constant) in program.part_names
        if is_blob:
            weight_file = self._weight_file(tensor)
            record = self._record(weight_file, tensor)
            change = TensorChange(name, tensor.mil_dtype, record.nbytes, weight_file.name, record.offset)
        elif is_part or (tensor.mil_dtype not in (DType.STRING, DType.BOOL) and tensor.size >= WEIGHT_COUNT):
            change = TensorChange(name, tensor.mil_dtype, tensor.nbytes, None, None)
        elif self._is_kept(tensor) and self._is_selected(name, constant) and self._may_externalize(tensor):
            change = TensorChange(
                name, tensor.mil_dtype, tensor.nbytes, None, None
            )  # below the threshold, but selected
        else:
            return
        self.changes.append(change)
        if not self._is_kept(tensor):
            change.drop()
            return
        reference = _Result(tensor, change)
        self._references.append(reference)
        if self._is_selected(name, constant):
            self._choose(reference, is_part and id(constant) not in program.shared)
        if change.actions and is_blob:
            tensor.read()  # raises if the record does not match what the Program declares
        if "inline" in change.actions or (not is_blob and change.actions == ["cast"]):
            self._make_value(reference)
        elif is_blob:
            reference.item = self.records.add_record(weight_file, record, reference.target, name)
        elif "externalize" in change.actions:
            reference.item = self._external_item(reference)
        if reference.item is not None:
            reference.item.users.add(tensor.function)
            if reference.target is not None:
                reference.item.how = CAST
        change.item = reference.item

    def _choose(self, reference: _Result, is_part: bool) -> None:
        """Decide what happens to a selected tensor."""
        tensor, constant, change, options = reference.tensor, reference.constant, reference.change, self.options
        is_weight = constant.storage == _codec.BLOB or is_part or tensor.size >= WEIGHT_COUNT
        target = options.cast.get(tensor.mil_dtype)
        if target is not None and is_weight and self._may_cast(constant, target, is_part):
            reference.target = change.dtype_after = target
            change.actions.append("cast")
        if constant.storage != _codec.BLOB:
            if self._may_externalize(tensor):
                change.actions.append("externalize")
        elif options.inline is not None and _is_value(constant) and tensor.size < options.inline:
            change.actions.append("inline")

    def _may_cast(self, constant: Any, target: DType, is_part: bool) -> bool:
        """Whether a value is cast (or refused with a reason); others are not weights and stay as they are.

        A tensor selected by name is always tried. If all are selected, values inside other operations stay, and so do
        vectors that would become a constexpr operation (see `cast_rules.is_vector`).
        """
        if is_part:
            return bool(constant.op.type == "constexpr_cast")
        if self.options.select is not None:
            return True
        becomes_constexpr = constant.mil_code == DType.FLOAT32.mil_code and target is DType.FLOAT16
        return _is_value(constant) and not (becomes_constexpr and cast_rules.is_vector(constant))

    def _is_kept(self, tensor: Tensor) -> bool:
        functions, op = self.options.functions, tensor.op_row
        decompression = self._decompressions.get(id(tensor.program))
        if (
            decompression is not None
            and tensor.constant is not None
            and op is not None
            and op.message in decompression.gone
        ):
            return False
        return functions is None or not tensor.function or tensor.function in functions

    def _may_externalize(self, tensor: Tensor) -> bool:
        least, dtype, source = self.options.externalize, tensor.mil_dtype, cast(Source, tensor.source)
        return (
            least is not None
            and dtype.blob_code is not None
            and (dtype in _EARLY_DTYPES or source.spec_version >= _IOS18_SPEC_VERSION)
            and tensor.constant.storage != _codec.BLOB
            and _is_value(tensor.constant)
            and None not in tensor.declared_shape
            and tensor.size >= max(least, 1)
        )

    def _base(self, source: Source) -> str:
        """What @model_path stands for, relative to the root."""
        inside = os.path.relpath(cast(Location, source.directory).real(), self.records.root)
        return "" if inside == "." else inside.replace(os.sep, "/")

    def _weight_file(self, tensor: Tensor) -> WeightFile:
        """Return the weight file that a constant refers to; each file once, whatever links and names lead to it."""
        source, text = cast(Source, tensor.source), tensor.constant.text
        try:
            reader = self.model.package.reader(source, text)
        except MilblobError as error:
            error.where = error.where or tensor.where
            raise
        key = (source.directory, text)
        if key not in self._known:
            real = resolve(source.directory, text).real()
            name = os.path.relpath(real, self.records.root).replace(os.sep, "/")
            self._known[key] = self.records.weight_file(name, self._base(source), reader)
        return self._known[key]

    def _record(self, weight_file: WeightFile, tensor: Tensor) -> Any:
        try:
            record = weight_file.record(tensor.constant.blob_offset)
        except MilblobError as error:
            error.where = error.where or tensor.where
            raise
        key = weight_file.name, record.offset
        self.records.used.add(key)
        self.model.package.budget.spend(key, record.nbytes)  # records may overlap
        return record

    def _external_item(self, reference: _Result) -> Item:
        """Return a new record for an immediate."""
        tensor, program, mapping = reference.tensor, reference.program, reference.source.mapping
        require_plain(program, mapping.live())
        dtype, (offset, nbytes) = tensor.mil_dtype, reference.constant.payload
        field, _, at, payload, pieces, _ = _codec.tensor_locate(program.buffer, offset, nbytes)
        raw = field in _RAW_FIELDS and pieces == 1 and payload == dtype.nbytes(tensor.size)
        if not raw and reference.target is not None:
            words = f"cast of a value that is written in pieces: expected one piece, got {pieces}"
            raise UnsupportedError(words, file=self.model.path, where=tensor.where)
        tensor.read()  # raises if the elements do not match the declaration
        span = (at, payload) if raw else (offset, nbytes)
        item = self.records.add_value(
            mapping, span, dtype, tensor.shape, self._base(reference.source), COPY if raw else VALUE
        )
        item.name = tensor.name
        item.target = reference.target or dtype
        return item

    def _make_value(self, reference: _Result) -> None:
        """Make the new TensorValue of a constant that is, or becomes, an immediate."""
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

    # --------------------------------------------------------------------------------------------------- dense weights

    def _choose_weights(self) -> None:
        """Find the compressed weights to decompress."""
        for source, program in self.model.scans:

            def is_selected(group: Compressed, source: Source = source, program: Program = program) -> bool:
                name = program.part_names[id(group)]
                tensor = make_tensor(self.model.package, source, program, name, group)
                return self._is_kept(tensor) and self._is_selected(name)

            self._decompressions[id(program)] = Decompression(program, is_selected)

    def _add_weights(self, source: Source, program: Program) -> None:
        decompression = self._decompressions[id(program)]
        for group in decompression.weights:
            require_plain(program, source.mapping.live())
            name = program.part_names[id(group)]
            tensor = make_tensor(self.model.package, source, program, name, group)
            dtype = tensor.mil_dtype
            change = TensorChange(name, dtype, 0, None, None)
            change.actions.append("decompress")
            self.changes.append(change)
            least = max(self.options.inline or 0, 1)  # every weight must stay listed, however small
            item, value = None, None
            if self.model.kind == "mlmodel" or dtype.blob_code is None or tensor.size < least:
                value = pack_tensor(tensor.read(), dtype)
                change.nbytes_after = dtype.nbytes(tensor.size)
            else:
                item = change.item = self._dense_item(tensor, group)
                item.users.add(tensor.function)
            self._weights.append(_DenseWeight(decompression, tensor, item, value))

    def _dense_item(self, tensor: Tensor, group: Compressed) -> Item:
        source = cast(Source, tensor.source)

        def place(part: Any) -> Any:
            if part.storage != _codec.BLOB:
                import hashlib  # not brought by `import milblob`

                offset, nbytes = part.payload
                data = memoryview(cast(Program, tensor.program).buffer)[offset : offset + nbytes]
                return hashlib.blake2b(data).digest()
            return self._weight_file(tensor.part(part)).name, part.blob_offset

        blobs = [part for part in group.stored() if part.storage == _codec.BLOB]
        weight_file = self._weight_file(tensor.part(blobs[0])) if blobs else None
        item = self.records.add_dense(
            weight_file, blobs[0].blob_offset if blobs else 0, source.mapping, tensor.mil_dtype, tensor.shape,
            self._base(source), (self._base(source), self._identities.of(group, place)),
        )  # fmt: skip
        if item.open is None:
            tensor.place.account()
            item.name, item.open = tensor.name, cast(ChainPlace, tensor.place).dense
        return item

    # --------------------------------------------------------------------------------------------------------- records

    def _add_file(self, model: Model, prefix: str) -> None:
        """Add all records of a bare weight file; the result is one file, named as the first."""
        reader, path = cast(BlobReader, model.package.blobs), cast(str, model.path)
        weight_file = self.records.weight_file(path, "", reader)
        for name, tensor in model.tensors.items():
            record = weight_file.record(tensor.offset or 0)
            change = TensorChange(prefix + name, record.dtype, record.nbytes, path, record.offset)
            target = self.options.cast.get(record.dtype) if self._is_selected(name) else None
            if target is not None:
                change.actions.append("cast")
                change.dtype_after = target
            item = change.item = self.records.add_record(weight_file, record, target, prefix + name)
            item.file, item.how = cast(str, self.model.path), CAST if target is not None else COPY
            self.changes.append(change)
            self.records.used.add((path, record.offset))

    def _add_unreferenced(self) -> None:
        """Add the records that nothing in the source refers to, to be kept or dropped."""
        for weight_file, number, record in self.records.unreferenced(self.options.gc):
            name = f"{weight_file.name}#{number}"
            change = TensorChange(name, record.dtype, record.nbytes, weight_file.name, record.offset)
            self.changes.append(change)
            if self.options.gc:
                change.drop()
            else:
                change.item = self.records.add_record(weight_file, record, None, "")
                change.item.name = name

    def _assign_files(self) -> None:
        """Divide the records among files, as `split` and `merge` require."""
        if self.model.kind == "blob":
            return
        if self.options.merge:
            self.records.merge()
        elif self.options.split == "function":
            self.records.split_by_function()
        elif isinstance(self.options.split, int):
            self.records.split_by_size(self.options.split)

    def _require_no_weight_file(self) -> None:
        """Refuse a bare model file that would need a weight file."""
        if self.model.kind == "mlmodel" and self.records.items:
            words = "model file: expected one without a weight file, which has no place beside the result, got"
            raise UnsupportedError(
                f"{words} {self.records.items[0].name!r} (a .mlpackage has room for both)", file=self.model.path
            )

    def _complete_changes(self) -> None:
        counted: set[int] = set()
        for change in self.changes:
            item = change.item
            if item is None:
                continue
            first = item.first
            if first is not item:
                change.actions.append("deduplicate")
            if self._is_laid_out:
                change.file_after, change.offset_after = first.file, first.offset
            change.nbytes_after = 0 if id(first) in counted else first.target_nbytes
            counted.add(id(first))

    # --------------------------------------------------------------------------------------------------------- Program

    def _edit(self) -> None:
        if not self.options.moves:
            return
        edits: list[Edit | None] = []
        if self.options.functions is not None:
            edits += self._function_edits(self.options.functions)
        for reference in self._references:
            edits += self._edits_of(reference)
        for decompression in self._decompressions.values():
            edits += decompression.edits()
        for weight in self._weights:
            tensor, value = weight.tensor, weight.value if weight.item is None else self._spelled(weight.item)
            group = cast(Compressed, tensor.chain)
            edits.append(weight.decompression.weight_edit(group, tensor.mil_dtype, tensor.shape, value))
        self.edits = combined(edits)

    def _edits_of(self, reference: _Result) -> Iterable[Edit | None]:
        program, constant, place = reference.program, reference.constant, self._place(reference)
        is_same = place is None or (constant.text, constant.blob_offset) == place
        if reference.source.is_text or (is_same and reference.target is None and reference.value is None):
            return ()
        require_plain(program, reference.source.mapping.live())
        if reference.target is not None:
            value: Any = reference.value if place is None else place
            return cast_rules.cast_edits(program, constant, reference.target, value)
        if place is None:
            return [value_edit(program.buffer, constant, tensor=reference.value)]
        if constant.storage != _codec.BLOB:
            return [value_edit(program.buffer, constant, reference=place)]
        return [reference_edit(program.buffer, constant, *place)]

    def _place(self, reference: _Result) -> tuple[str, int] | None:
        """Return (fileName, offset) of a record of the result, as the Program spells it."""
        item, constant = reference.item, reference.constant
        if item is None:
            return None
        first = item.first
        if constant.storage == _codec.BLOB and item.before is not None and first.file == item.before[0]:
            return constant.text, first.offset
        return self._spelled(item)

    def _spelled(self, item: Item) -> tuple[str, int]:
        """Return (fileName, offset) of a record of the result, relative to its model."""
        first = item.first
        return MODEL_PATH + (first.file.removeprefix(f"{first.base}/") if first.base else first.file), first.offset

    def moves(self) -> Iterator[tuple[str, tuple[str, int], tuple[str, int]]]:
        """Yield (Program prefix, old place, new place) for every reference that changes."""
        for reference in self._references if self.options.moves else ():
            place, before = self._place(reference), (reference.constant.text, reference.constant.blob_offset)
            if place is not None and place != before:
                yield reference.program.prefix, before, place

    def _function_edits(self, functions: tuple[str, ...]) -> list[Edit]:
        if len(self.model.scans) != 1:
            raise UnsupportedError("functions: expected a model with one Program, got a pipeline", file=self.model.path)
        source, program = self.model.scans[0]
        require_plain(program, source.mapping.live())
        if not functions:
            raise ProgramError("functions: expected at least one to keep, got none", file=self.model.path)
        keep = [name.removeprefix(program.prefix) for name in functions]
        return function_edits(program.buffer, program.span, source.description, keep)


def _is_value(constant: Any) -> bool:
    """Whether a constant is a whole value: of a const operation, or a part of a constexpr operation."""
    op = constant.op
    if op is None or constant.steps or constant.owner not in (_codec.ATTRIBUTE, _codec.INPUT):
        return False
    return bool(op.type == "const" and constant.key == "val") or str(op.type).startswith("constexpr_")
