"""The plan of a rewritten model: actions for each tensor, records of the result, edits of the Program.

Writes nothing. `arrange` makes an `Arrangement` of an open model and `Options`; `repack.py` executes it.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from .. import _codec
from ..blobs.reader import BlobReader
from ..closeness import unknown
from ..dtypes import DType
from ..errors import MilblobError, UnsupportedError
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.package import resolve
from ..model.program_places import ChainPlace
from ..model.tensor import Tensor, make_tensor
from ..program import cast_edits
from ..program.scan import Compressed
from ..progress import NO_PROGRESS, ProgressCounter
from ..selection import require_selected
from ..storage.beneath import Location
from ..values import cast as casting
from ..values.tensorvalue import BYTES, DOUBLES, FLOATS, pack_tensor, stored_bytes
from ..wording import escape
from .alike import Shared, find_shared, shareable
from .changes import WEIGHT_COUNT, Options, Sharing, TensorChange, is_counted, set_places
from .decompress import Decompression, Identities, plan_decompression, program_of
from .layout import Records, WeightFile
from .parts import CompressedWeight, StoredBytes
from .references import Edits, Reference, order_records, program_edits
from .share import SharedWeight, plan_sharing, shared_changes
from .tasks import CAST, COMPUTED, COPY, HELD, VALUE, Item

_RAW_FIELDS = (FLOATS, DOUBLES, BYTES)
_IOS18, _IOS18_SPEC_VERSION = 18, 9
# What weight files may hold for Core ML before iOS 18, per coremltools; from iOS 18 on, every dtype with a blob code.
_EARLY_DTYPES = (DType.FLOAT16, DType.FLOAT32, DType.UINT8, DType.INT8)


class Arrangement(NamedTuple):
    """The plan of a repacked model: data."""

    changes: list[TensorChange]  # one row per tensor, and one per record that nothing refers to
    records: Records  # the contents of the result's weight files, and which of them are rewritten
    edits: Edits  # of each Program that changes
    shared: tuple[SharedWeight, ...] = ()  # the weights that take the form of another one


def arrange(
    models: Sequence[Model],
    options: Options,
    required: Iterable[str] = (),
    compressed: Iterable[CompressedWeight] = (),
    max_nbytes: int | None = None,
    counter: ProgressCounter = NO_PROGRESS,
) -> Arrangement:
    """Plan a repacked model.

    Args:
        models: one; or several bare weight files, whose records are concatenated. Opened with `stored=True`.
        required: names of files that the result must have if the source has them.
        compressed: weights that are compressed. The models are then opened with `constants=True`, too.
        max_nbytes: as for `open`, of the base of weights that share.
        counter: notes each tensor.

    Raises:
        ProgramError: a cast after which an operation would not type-check; the consumer is named.
        UnsupportedError: an option that this kind of model does not support.
        ResolveError, FormatError: a reference to a missing record or file, a broken file.
    """
    model = models[0]
    _require_support(model, options)
    root = os.path.realpath(model.path or ".")
    root = root if model.package.is_directory else os.path.dirname(root)
    records = Records(root, options.align, options.canonical)
    changes: list[TensorChange] = []
    references: list[Reference] = []
    weights: list[tuple[Tensor, Item | None, bytes | None]] = []
    constexprs: list[tuple[CompressedWeight, dict[str, Item]]] = []
    sources = _Sources(model, records)
    choice = _Choice(options, _weights_of_parts(model), compressed)
    shared: list[Shared] = []
    if model.kind == "blob":
        for other in models:
            changes += _file_changes(
                other, f"{other.path}" if len(models) > 1 else "", cast(str, model.path), choice, records
            )
    else:
        again = [weight for weight in choice.compressed.values() if weight.tensor.chain is not None]
        for program in model.parts if again else ():
            choice.decompressions[program] = plan_decompression(program, lambda group: group in choice.compressed)
        if options.decompress:
            choice.decompressions.update(_decompressions(model, choice))
        if options.share is not None:
            shared = _shared(model, choice, sources, options.share, max_nbytes, counter)
        tensors = model.tensors.values()
        for tensor in counter.noting(sorted(tensors, key=_order) if options.canonical else tensors):
            change, reference = _arranged(tensor, choice, sources)
            weight = choice.compressed.get(tensor.constant)
            if weight is not None and change is not None:
                constexprs.append(_compressed(weight, change, sources))
                reference = None
            changes += [change] if change is not None else []
            references += [reference] if reference is not None else []
        items = {(r.tensor.program, r.tensor.constant): r.item for r in references} if shared else {}
        changes += shared_changes(shared, items)
        for weight in counter.noting(
            again, lambda weight: weight.tensor.name
        ):  # they were compressed before, in another way
            change = TensorChange(weight.tensor.name, weight.tensor.mil_dtype, 0, None, None)
            constexprs.append(_compressed(weight, change, sources))
            changes.append(change)
        if options.decompress:
            rows = list(_dense_weights(model, choice, sources, counter))
            changes += [change for change, _ in rows]
            weights = [dense for _, dense in rows]
    require_selected(options.select, choice.has_selected, str(model.path))
    if options.canonical and (weights or shared):
        order_records(references, weights, shared)
    is_laid_out = options.moves or len(models) > 1
    if is_laid_out:
        changes += _unreferenced_changes(records, options.gc)
        if options.dedupe:
            records.dedupe()
        if model.kind != "blob":
            if options.merge:
                records.merge()
            elif options.split == "function":
                records.split_by_function()
            elif isinstance(options.split, int):
                records.split_by_size(options.split)
        records.lay_out(required)
    _require_no_weight_file(model, records)
    set_places(changes, is_laid_out)
    if not options.moves:
        return Arrangement(changes, records, {})
    edits = program_edits(
        model, options.functions, references, choice.decompressions, weights, constexprs, shared, counter
    )
    return Arrangement(changes, records, edits, tuple(map(SharedWeight.of, shared)))


def _order(tensor: Tensor) -> Any:
    """Return a sort key for a constant: its position in the Program, independent of the order of maps."""
    op, constant = tensor.op_row, tensor.constant
    at = -1 if op is None else op.message[0]
    return tensor.function, at, constant.block, constant.owner, constant.key, constant.binding, constant.steps


def _require_support(model: Model, options: Options) -> None:
    edits = {
        "externalize": options.externalize is not None, "inline": options.inline is not None,
        "functions": options.functions is not None, "decompress": options.decompress,
    }  # fmt: skip
    asked = [name for name, is_asked in edits.items() if is_asked]
    if model.kind == "listing":
        message = "repack: expected a model or a weight file, got a listing of one (give the weight file)"
        raise UnsupportedError(message, file=model.path)
    if model.kind == "mlmodelc" and options.functions is not None:
        message = "functions: expected a package, got a compiled model, whose coremldata.bin names its functions too"
        raise UnsupportedError(f"{message} (repack the package, then compile it)", file=model.path)
    if model.kind == "blob":
        asked += ["dedupe of values"] * (options.share is not None)
        asked += ["gc"] * options.gc + ["split"] * (options.split is not None)
        if asked:
            raise UnsupportedError(f"{asked[0]}: expected a model, got a weight file alone", file=model.path)
    for name in options.functions or ():
        if name not in model.functions:
            raise KeyError(unknown("function", name, model.functions, model.path or "the model"))


# --------------------------------------------------------------------------------------------------------------- choice


class _Choice:
    """Which tensors the options are about. `weights_of`: a part -> names of the weights that it is a part of."""

    def __init__(
        self, options: Options, weights_of: Mapping[Any, Sequence[str]], compressed: Iterable[CompressedWeight]
    ) -> None:
        self.options = options
        # these, by constant, or by the chain of what was compressed before
        self.compressed = {weight.tensor.row: weight for weight in compressed}
        self.decompressions: dict[OpenProgram, Decompression] = {}  # of each Program
        self.shared: set[Any] = set()  # rows of the weights that take the form of another one
        self.has_selected = False  # whether `is_selected` was True of anything so far
        self._weights_of = weights_of

    def matches(self, name: str, constant: Any = None) -> bool:
        """Whether a tensor, or the weight that it is a part of, has a selected name."""
        select = self.options.select
        return select is None or any(select(n) for n in (name, *self._weights_of.get(constant, ())))

    def is_selected(self, name: str, constant: Any = None) -> bool:
        """Whether a tensor that has a row is selected, or the weight that it is a part of. Sets `has_selected`."""
        found = self.matches(name, constant)
        self.has_selected = self.has_selected or found
        return found

    def is_kept(self, tensor: Tensor) -> bool:
        """Whether the result has the tensor."""
        functions = self.options.functions
        decompression = self.decompressions.get(program_of(tensor)) if self.decompressions else None
        if decompression is not None and tensor.constant is not None:
            op = tensor.op_row
            if op is not None and op.message in decompression.gone:
                return False
        return functions is None or not tensor.function or tensor.function in functions

    def may_externalize(self, tensor: Tensor) -> bool:
        """Whether an immediate goes to the weight file if it is selected."""
        least, dtype = self.options.externalize, tensor.mil_dtype
        return (
            least is not None
            and dtype.blob_code is not None
            and (dtype in _EARLY_DTYPES or _is_late(tensor))
            and tensor.constant.storage != _codec.BLOB
            and _is_value(tensor.constant)
            and None not in tensor.declared_shape
            and tensor.size >= max(least, 1)
        )

    def target(self, tensor: Tensor, is_part: bool) -> DType | None:
        """Return the dtype that a selected weight is cast to (which may be refused with a reason), or None.

        A tensor selected by name is always tried. If all are selected, this skips values inside other operations and
        vectors that would become a constexpr operation (see `cast_edits.is_vector`).
        """
        constant, target = tensor.constant, self.options.cast.get(tensor.mil_dtype)
        is_weight = constant.storage == _codec.BLOB or is_part or tensor.size >= WEIGHT_COUNT
        if target is None or not is_weight:
            return None
        if is_part:
            return target if constant.op.type == "constexpr_cast" else None
        if self.options.is_skipped(tensor):
            return None
        if self.options.select is not None:
            return target
        becomes_constexpr = constant.mil_code == DType.FLOAT32.mil_code and target is DType.FLOAT16
        is_tried = _is_value(constant) and not (becomes_constexpr and cast_edits.is_vector(constant))
        return target if is_tried else None


def _is_late(tensor: Tensor) -> bool:
    """Whether a model is for iOS 18 or later; MIL text has no version, so its operators decide."""
    program = program_of(tensor)
    if program.is_text:
        return cast_edits.opset(program.scan, tensor.constant) >= _IOS18
    return program.source.spec_version >= _IOS18_SPEC_VERSION


def _weights_of_parts(model: Model) -> dict[Any, list[str]]:
    result: dict[Any, list[str]] = {}
    for program in model.parts:
        for group in program.scan.groups:
            for part in group.stored():
                result.setdefault(part, []).append(program.scan.name_of(group))
    return result


def _is_value(constant: Any) -> bool:
    """Whether a constant is a whole value: of a const operation, or a part of a constexpr operation."""
    op = constant.op
    if op is None or constant.steps or constant.owner not in (_codec.ATTRIBUTE, _codec.INPUT):
        return False
    return bool(op.type == "const" and constant.key == "val") or str(op.type).startswith("constexpr_")


# -------------------------------------------------------------------------------------------------------------- sources


class _Sources:
    """Where the values of a model are: its weight files, each once, as `Records` knows them."""

    def __init__(self, model: Model, records: Records) -> None:
        self.model = model
        self.records = records
        self.identities = Identities()
        self._known: dict[tuple[Location | None, str], WeightFile] = {}

    def name_of(self, tensor: Tensor, part: Any) -> str:
        """Return what the weight file of a stored part of a weight is called."""
        return self.weight_file(tensor.part(part)).name

    def base(self, program: OpenProgram) -> str:
        """Return the directory that replaces @model_path, relative to the root."""
        inside = os.path.relpath(cast(Location, program.directory).real(), self.records.root)
        return "" if inside == "." else inside.replace(os.sep, "/")

    def weight_file(self, tensor: Tensor) -> WeightFile:
        """Return the weight file that a constant refers to; one object per file, also for several links and names."""
        program, text = program_of(tensor), tensor.constant.text
        key = (program.directory, text)
        found = self._known.get(key)
        if found is None:
            try:
                reader = program.package.reader(program.source, text)
            except MilblobError as error:
                error.where = error.where or tensor.where
                raise
            real = resolve(program.directory, text).real()
            name = os.path.relpath(real, self.records.root).replace(os.sep, "/")
            found = self._known[key] = self.records.weight_file(name, self.base(program), reader)
        return found

    def record(self, weight_file: WeightFile, tensor: Tensor) -> Any:
        """Return the record that a constant refers to, and mark it as referenced."""
        try:
            record = weight_file.record(tensor.constant.blob_offset)
        except MilblobError as error:
            error.where = error.where or tensor.where
            raise
        key = weight_file.name, record.offset
        self.records.used.add(key)
        self.model.package.budget.spend(key, record.nbytes)  # records may overlap
        return record


# -------------------------------------------------------------------------------------------------------------- tensors


def _arranged(tensor: Tensor, choice: _Choice, sources: _Sources) -> tuple[TensorChange | None, Reference | None]:
    """Decide what happens to a tensor.

    Returns: Its row (None for an unchanged constant that is not a weight), and its reference if the result has one.
    """
    constant, scan, name = tensor.constant, program_of(tensor).scan, tensor.name
    is_blob, is_part = constant.storage == _codec.BLOB, scan.is_part(constant)
    is_kept = choice.is_kept(tensor)
    if is_blob:
        weight_file = sources.weight_file(tensor)
        record = sources.record(weight_file, tensor)
        change = TensorChange(name, tensor.mil_dtype, record.nbytes, weight_file.name, record.offset)
    elif (
        is_counted(tensor, is_part)
        or (is_kept and choice.matches(name, constant) and choice.may_externalize(tensor))  # below the threshold
    ):
        change = TensorChange(name, tensor.mil_dtype, tensor.nbytes, None, None)
    else:
        return None, None
    is_selected = choice.is_selected(name, constant)
    if not is_kept:
        change.drop()
        return change, None
    target = None
    if is_selected:
        target = choice.target(tensor, is_part and not scan.is_shared(constant))
        change.actions += _actions(tensor, target, choice)
        change.dtype_after = target or change.dtype_after
    if constant in choice.compressed:
        return change, None
    if constant in choice.shared:
        change.actions.append("share")
        change.nbytes_after, change.file_after, change.offset_after = 0, None, None
        return change, None
    if change.actions and is_blob:
        tensor.read()  # raises if the record does not match what the Program declares
    item, value = None, None
    if "inline" in change.actions or (not is_blob and change.actions == ["cast"]):
        value = _new_value(tensor, target, change, choice.options)
    elif is_blob:
        item = sources.records.add_record(weight_file, record, target, name)
    elif "externalize" in change.actions:
        item = _external_item(tensor, target, change, sources, choice.options)
    if item is not None:
        item.add_user(tensor.function)
        if target is not None and item.held is None:
            item.how = CAST
    change.item = item
    return change, Reference(tensor, item, target, value)


def _actions(tensor: Tensor, target: DType | None, choice: _Choice) -> list[str]:
    """Return what happens to a selected tensor that is cast to `target`, if that is not None."""
    actions = [] if target is None else ["cast"]
    if tensor.constant.storage != _codec.BLOB:
        if choice.may_externalize(tensor):
            actions.append("externalize")
    elif choice.options.inline is not None and _is_value(tensor.constant) and tensor.size < choice.options.inline:
        actions.append("inline")
    return actions


def _external_item(
    tensor: Tensor, target: DType | None, change: TensorChange, sources: _Sources, options: Options
) -> Item:
    """Return a new record for an immediate."""
    program = program_of(tensor)
    program.require_edits()
    if program.is_text:  # no file has the bytes
        own = target or tensor.mil_dtype
        data = _codec.Buffer(stored_bytes(_cast_values(tensor, target, change, options), own))
        item = sources.records.add_value(
            program.mapping, (0, data.nbytes), own, tensor.shape, sources.base(program), HELD
        )
        item.name, item.held = tensor.name, data
        return item
    dtype, (offset, nbytes) = tensor.mil_dtype, tensor.constant.payload
    field, _, at, payload, pieces, _ = _codec.tensor_locate(program.scan.buffer, offset, nbytes)
    raw = field in _RAW_FIELDS and pieces == 1 and payload == dtype.nbytes(tensor.size)
    if not raw and target is not None:
        message = f"cast of a value that is written in pieces: expected one piece, got {pieces}"
        raise UnsupportedError(message, file=sources.model.path, where=tensor.where)
    tensor.read()  # raises if the elements do not match the declaration
    span, how = ((at, payload), COPY) if raw else ((offset, nbytes), VALUE)
    item = sources.records.add_value(program.mapping, span, dtype, tensor.shape, sources.base(program), how)
    item.name = tensor.name
    item.target = target or dtype
    return item


def _new_value(tensor: Tensor, target: DType | None, change: TensorChange, options: Options) -> bytes:
    """Return the new TensorValue of what is, or becomes, an immediate; note in its row what a cast meets."""
    values = _cast_values(tensor, target, change, options)
    dtype = target or tensor.mil_dtype
    change.nbytes_after = dtype.nbytes(values.size)
    change.file_after = change.offset_after = None
    return pack_tensor(values, dtype)


def _cast_values(tensor: Tensor, target: DType | None, change: TensorChange, options: Options) -> Any:
    """Return the values of a tensor as `target`, if that is not None; note in its row what the cast meets."""
    values = tensor.read()
    if target is None:
        return values
    with casting.elements_named(escape(change.name)):
        values, counts = casting.cast_array(values, target, overflow=options.overflow, nan=options.nan)
    change.overflow, change.nan, change.underflow = counts
    return values


# -------------------------------------------------------------------------------------------------------- dense weights


def _decompressions(model: Model, choice: _Choice) -> dict[OpenProgram, Decompression]:
    """Find the compressed weights to decompress, of each Program."""
    result = {}
    for program in model.parts:

        def is_selected(group: Compressed, program: OpenProgram = program) -> bool:
            name = program.scan.name_of(group)
            return choice.is_kept(make_tensor(program, name, group)) and choice.is_selected(name)

        result[program] = plan_decompression(program, is_selected)
    return result


def _dense_weights(
    model: Model, choice: _Choice, sources: _Sources, counter: ProgressCounter
) -> Iterable[tuple[TensorChange, tuple[Tensor, Item | None, bytes | None]]]:
    """Yield the weights that become dense, each with its row."""
    least = max(choice.options.inline or 0, 1)  # every weight must remain listed, however small
    for program in model.parts:
        weights = choice.decompressions[program].weights
        tensors = [make_tensor(program, program.scan.name_of(group), group) for group in weights]
        if choice.options.canonical:
            tensors.sort(key=lambda tensor: (tensor.function, tensor.op_row.message))
        for tensor in counter.noting(tensors):
            group = cast(Compressed, tensor.chain)
            program.require_edits()
            dtype = tensor.mil_dtype
            change = TensorChange(tensor.name, dtype, 0, None, None)
            change.actions.append("decompress")
            item, value = None, None
            if model.kind in ("mlmodel", "mil") or dtype.blob_code is None or tensor.size < least:
                value = pack_tensor(tensor.read(), dtype)
                change.nbytes_after = dtype.nbytes(tensor.size)
            else:
                item = change.item = _dense_item(tensor, group, sources)
                item.add_user(tensor.function)
            yield change, (tensor, item, value)


def _dense_item(tensor: Tensor, group: Compressed, sources: _Sources) -> Item:
    program = program_of(tensor)
    blobs = [part for part in group.stored() if part.storage == _codec.BLOB]
    weight_file = sources.weight_file(tensor.part(blobs[0])) if blobs else None
    base = sources.base(program)
    item = sources.records.add_dense(
        weight_file, blobs[0].blob_offset if blobs else 0, program.mapping, tensor.mil_dtype, tensor.shape,
        base, (base, sources.identities.of(tensor, sources.name_of)),
    )  # fmt: skip
    if item.open is None:
        tensor.place.account()
        item.name, item.open = tensor.name, cast(ChainPlace, tensor.place).dense
    return item


# ------------------------------------------------------------------------------------------------------- shared weights


def _shared(
    model: Model,
    choice: _Choice,
    sources: _Sources,
    sharing: Sharing,
    max_nbytes: int | None,
    counter: ProgressCounter,
) -> list[Shared]:
    """Find the weights that take the form of another one; note them in the choice."""
    every = (tensor for program in model.parts for tensor in shareable(program))
    weights = [tensor for tensor in every if choice.is_kept(tensor) and choice.is_selected(tensor.name)]
    shared = find_shared(weights, sharing, lambda tensor: sources.base(program_of(tensor)), max_nbytes, counter)
    choice.shared = {row.weight.row for row in shared}
    choice.decompressions.update(plan_sharing(shared))
    return shared


# --------------------------------------------------------------------------------------------------- compressed weights


def _compressed(
    weight: CompressedWeight, change: TensorChange, sources: _Sources
) -> tuple[CompressedWeight, dict[str, Item]]:
    """Add the parts of a weight that is compressed to the records; note in its row what it takes."""
    tensor, program = weight.tensor, program_of(weight.tensor)
    rows = tensor.chain.stored() if tensor.chain is not None else [tensor.constant]
    blobs = [row for row in rows if row.storage == _codec.BLOB]
    of_file = tensor.part(blobs[0]) if blobs and tensor.chain is not None else tensor
    weight_file = sources.weight_file(of_file) if blobs else None
    base, nbytes = sources.base(program), 0
    items = {}
    for part in weight.parts.parts:
        if part.array is not None:
            nbytes += part.nbytes
            continue
        item = items[part.key] = sources.records.add_dense(
            weight_file, blobs[0].blob_offset if blobs else 0, program.mapping, part.dtype, part.shape, base,
            (base, weight.parts, part.key),
        )  # fmt: skip
        item.add_user(tensor.function)
        if item.name:
            continue  # weights that share it are counted once
        nbytes += part.nbytes
        item.name = f"{tensor.name}.{part.key}"
        if isinstance(part.data, StoredBytes):
            item.how, item.origin = COPY, part.data.file
            item.start, item.nbytes = part.data.offset, part.nbytes
        elif part.data is not None:
            item.how, item.held = HELD, _codec.Buffer(part.data)
        else:
            item.how, item.computed = COMPUTED, (weight.parts, part.key)
    change.actions.append("compress")
    change.file_after = change.offset_after = None
    change.nbytes_after = nbytes
    return weight, items


# -------------------------------------------------------------------------------------------------------------- records


def _file_changes(model: Model, prefix: str, file: str, choice: _Choice, records: Records) -> Iterable[TensorChange]:
    """Add all records of a bare weight file to the result, which is the single file `file`; yield their rows."""
    reader, path = cast(BlobReader, model.package.blobs), cast(str, model.path)
    weight_file = records.weight_file(path, "", reader)
    for name, tensor in model.tensors.items():
        record = weight_file.record(tensor.offset or 0)
        change = TensorChange(prefix + name, record.dtype, record.nbytes, path, record.offset)
        target = choice.options.cast.get(record.dtype) if choice.is_selected(name) else None
        if target is not None and choice.options.is_skipped(tensor):
            target = None
        if target is not None:
            change.actions.append("cast")
            change.dtype_after = target
        item = change.item = records.add_record(weight_file, record, target, prefix + name)
        item.file, item.how = file, CAST if target is not None else COPY
        records.used.add((path, record.offset))
        yield change


def _unreferenced_changes(records: Records, is_dropped: bool) -> Iterable[TensorChange]:
    """Keep or drop the records that nothing in the source refers to; yield their rows."""
    for weight_file, number, record in records.unreferenced(is_dropped):
        name = f"{weight_file.name}#{number}"
        change = TensorChange(name, record.dtype, record.nbytes, weight_file.name, record.offset)
        if is_dropped:
            change.drop()
        else:
            change.item = records.add_record(weight_file, record, None, "")
            change.item.name = name
        yield change


def _require_no_weight_file(model: Model, records: Records) -> None:
    """Refuse a bare model file that would need a weight file."""
    if model.kind in ("mlmodel", "mil") and records.items:
        message = "model file: expected one without a weight file, which has no place beside the result, got"
        room = "a .mlpackage" if model.kind == "mlmodel" else "a .mlmodelc"
        raise UnsupportedError(f"{message} {records.items[0].name!r} ({room} has room for both)", file=model.path)
