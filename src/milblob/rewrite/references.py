"""References from the Program of a repacked model to its values, and the edits that write them.

Needs a layout: the records of the result have their files and offsets.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

from .. import _codec
from ..dtypes import DType
from ..errors import ProgramError, UnsupportedError
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.package import MODEL_PATH
from ..model.tensor import Tensor
from ..program import cast_edits
from ..program.compress_edits import constexpr_edit
from ..program.constexpr import part_names
from ..program.scan import Compressed
from ..program.splice import Edit
from ..program.wire_edits import combined, function_edits, reference_edit, removed_operation, value_edit
from ..progress import NO_PROGRESS, ProgressCounter
from ..values.tensorvalue import pack_tensor
from .alike import Shared
from .decompress import Decompression, dense_edit
from .parts import CompressedWeight
from .share import sharing_edits
from .tasks import Item

Place = tuple[str, int]
"""(fileName, offset) as a Program spells it."""


class Reference(NamedTuple):
    """A constant that the result keeps."""

    tensor: Tensor  # of the source
    item: Item | None = None  # the record of its value; None if the value is, or becomes, an immediate
    target: DType | None = None  # dtype that it is cast to, or None
    value: bytes | None = None  # the new TensorValue of an immediate, if it changes

    @property
    def place(self) -> Place | None:
        """Its record in the result, as the Program spells it; None without one."""
        item, constant = self.item, self.tensor.constant
        if item is None:
            return None
        if constant.storage == _codec.BLOB and item.before is not None and item.first.file == item.before[0]:
            return constant.text, item.first.offset
        return _spelled(item)


def _spelled(item: Item) -> Place:
    """Return the place of a record relative to its model."""
    first = item.first
    return MODEL_PATH + (first.file.removeprefix(f"{first.base}/") if first.base else first.file), first.offset


def order_records(
    references: Iterable[Reference],
    weights: Iterable[tuple[Tensor, Item | None, bytes | None]],
    shared: Iterable[Shared],
) -> None:
    """Put records in the order in which the new Program refers to them.

    `references`: in the order of the old one. `weights`: those that become dense. `shared`: those that share.
    """
    rows = [(row.tensor, row.item) for row in references]
    items = {(tensor.program, tensor.constant): item for tensor, item in rows}
    rows += [(tensor, item) for tensor, item, _ in weights]
    for weight, reference, _ in shared:
        rows += [(weight, items.get((reference.program, one))) for one in _stored_parts(reference.row)]
    rows.sort(key=lambda row: (row[0].function, -1 if row[0].op_row is None else row[0].op_row.message[0]))
    first = {id(item): number for number, (_, item) in reversed([*enumerate(rows)])}
    for _, item in rows:
        if item is not None:
            item.order = (0, first[id(item)], 0)


def _stored_parts(row: Any) -> Iterator[Any]:
    """Yield the stored parts of a constant or a compressed weight; inner operations come first."""
    if isinstance(row, Compressed):
        for part in row.parts.values():
            if isinstance(part, Compressed):
                yield from _stored_parts(part)
        yield from (part for _, part in sorted(row.parts.items()) if not isinstance(part, Compressed))
    else:
        yield row


Edits = dict[OpenProgram, list[Edit]]
"""The edits of each Program that changes, of the bytes of its scan."""


def program_edits(
    model: Model,
    functions: tuple[str, ...] | None,
    references: Sequence[Reference],
    decompressions: Mapping[OpenProgram, Decompression],
    weights: Sequence[tuple[Tensor, Item | None, bytes | None]],
    constexprs: Sequence[tuple[CompressedWeight, dict[str, Item]]] = (),
    shared: Sequence[Shared] = (),
    counter: ProgressCounter = NO_PROGRESS,
) -> Edits:
    """Return the edits of a model's Programs; none for those that do not change.

    Args:
        functions: that the result keeps; None for all.
        references: constants that the result keeps.
        decompressions: of its Programs.
        weights: that become dense, each with its new record or its new TensorValue.
        constexprs: weights that are compressed, and by key of part the new record; other parts are in the Program.
        shared: weights that take the form of another one.
        counter: notes each weight.

    Raises:
        ProgramError: a cast after which an operation would not type-check; no function is left.
        UnsupportedError: functions of a pipeline; a Program that protobuf had to rewrite.
    """
    edits: dict[OpenProgram, list[Edit | None]] = {program: [] for program in model.parts}
    if functions is not None:
        edits[model.parts[0]] += _function_edits(model, functions)
    for reference in counter.noting(references, lambda reference: reference.tensor.name):
        edits[cast(OpenProgram, reference.tensor.program)] += _edits_of(reference)
    for program, decompression in decompressions.items():
        edits[program] += [removed_operation(program.scan.buffer, op) for op in decompression.removed]
    for tensor, item, packed in counter.noting(weights, lambda row: row[0].name):
        value = packed if item is None else _spelled(item)
        program, group = cast(OpenProgram, tensor.program), cast(Compressed, tensor.chain)
        edits[program].append(dense_edit(program.scan, group, tensor.mil_dtype, tensor.shape, value))
    for (tensor, parts), items in counter.noting(constexprs, lambda row: row[0].tensor.name):
        program, row = cast(OpenProgram, tensor.program), tensor.op_row
        values = [
            (
                part.key, part.dtype, part.shape,
                _spelled(items[part.key]) if part.array is None else pack_tensor(part.array, part.dtype),
            )
            for part in parts.parts
        ]  # fmt: skip
        gone = ("val",) if row.type == "const" else part_names(row.type)
        edits[program].append(constexpr_edit(program.scan, row, gone, parts.op, values, parts.links))
    records = {(r.tensor.program, r.tensor.constant): cast(Item, r.item) for r in references} if shared else {}
    for program, some in sharing_edits(shared, lambda part: _spelled(records[part.program, part.constant])).items():
        edits[program] += some
    found = {key: combined(rows) for key, rows in edits.items()}
    return {key: rows for key, rows in found.items() if rows}


def _edits_of(reference: Reference) -> Iterable[Edit | None]:
    constant, place = reference.tensor.constant, reference.place
    is_same = place is None or (constant.text, constant.blob_offset) == place
    if is_same and reference.target is None and reference.value is None:
        return ()
    program = cast(OpenProgram, reference.tensor.program)
    program.require_edits()
    if reference.target is not None:
        value = reference.value if place is None else place
        consumers = program.consumers(constant)
        return cast_edits.cast_edits(program.scan, constant, reference.target, value, consumers)
    buffer = program.scan.buffer
    if place is None:
        return [value_edit(buffer, constant, tensor=reference.value)]
    if constant.storage != _codec.BLOB:
        return [value_edit(buffer, constant, reference=place)]
    return [reference_edit(buffer, constant, *place)]


def _function_edits(model: Model, functions: tuple[str, ...]) -> list[Edit]:
    if len(model.parts) != 1:
        raise UnsupportedError("functions: expected a model with one Program, got a pipeline", file=model.path)
    program = model.parts[0]
    program.require_edits()
    if not functions:
        raise ProgramError("functions: expected at least one to keep, got none", file=model.path)
    keep = [name.removeprefix(program.prefix) for name in functions]
    return function_edits(program.scan.buffer, program.scan.span, program.source.description, keep)
