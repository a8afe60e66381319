"""Decompression of weights in a Program: operations that become a `const`, and operations that are removed."""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, cast

from .. import _codec
from ..hashing import hash_bytes
from ..model.open_program import OpenProgram
from ..model.places import path_of
from ..model.tensor import Tensor
from ..program.constexpr import part_names
from ..program.scan import Compressed, ProgramScan
from ..program.splice import Edit
from ..program.view import Operation
from ..program.wire_edits import ATTRIBUTES, blob_value, field, immediate_value, rewritten_operation, tensor_type

Span = tuple[int, int]
FileOf = Callable[[Tensor, Any], Hashable]


class Decompression(NamedTuple):
    """What happens to the constexpr operations of one Program: data."""

    weights: list[Compressed]  # the operations that become dense, in Program order
    removed: list[_codec.Op]  # operations that nothing reads any more
    # messages of the operations whose parts are no longer read: those of the weights, and all removed ones
    gone: set[Span]


def is_end(program: OpenProgram, group: Compressed) -> bool:
    """Whether something but a constexpr operation reads what a constexpr operation computes, or nothing does."""
    found = [consumer.reader for consumer in program.consumers(group)]
    is_read = not found or any(not (isinstance(r, Operation) and r.type.startswith("constexpr_")) for r in found)
    return group.op.output_count == 1 and is_read


def plan_decompression(program: OpenProgram, is_selected: Callable[[Compressed], bool]) -> Decompression:
    """Decide what happens to the constexpr operations of a Program.

    A weight becomes dense when the operation that yields it becomes a `const`. That happens to every selected operation
    that is read by something other than a constexpr operation (or by nothing). Operations that then have no reader left
    are removed: inner operations of a chain, and `const` operations that were parts.

    `program`: scanned with all constants. `is_selected`: called with each weight.
    """
    groups = program.scan.groups
    weights = [group for group in groups if is_end(program, group) and is_selected(group)]
    gone: set[Span] = {group.op.message for group in weights}
    outputs: dict[Span, list[Any]] = {}
    for group in groups:
        if group.op.message not in gone:
            outputs.setdefault(group.op.message, []).append(group)
        for part in group.parts.values():
            if not isinstance(part, Compressed) and part.op.message != group.op.message:
                outputs[part.op.message] = [part]  # a const operation has one output
    readers = {
        message: [consumer.reader for row in rows for consumer in program.consumers(row)]
        for message, rows in outputs.items()
    }
    removed = []
    found = True
    while found:  # remove operations that only removed ones read, repeatedly
        found = False
        for message in [message for message in readers if message not in gone]:
            own = readers[message]
            if own and all(isinstance(r, Operation) and r.message in gone for r in own):
                removed.append(outputs[message][0].op)
                gone.add(message)
                found = True
    return Decompression(weights, removed, gone)


def dense_edit(program: ProgramScan, group: Compressed, dtype: Any, shape: tuple[int, ...], value: Any) -> Edit:
    """Make the operation of a weight a `const`.

    `dtype`, `shape`: of the dense tensor. `value`: (file name, metadata offset) of a record, or a serialized
    TensorValue.
    """
    type_bytes = tensor_type(dtype, shape)
    new = blob_value(type_bytes, *value) if isinstance(value, tuple) else immediate_value(type_bytes, value)
    entry = field(1, "val") + field(2, new)
    return rewritten_operation(program.buffer, group.op, "const", part_names(group.op.type), [(ATTRIBUTES, entry)])


def program_of(tensor: Tensor) -> OpenProgram:
    """Return the Program that has a tensor, which is not of a bare weight file."""
    return cast(OpenProgram, tensor.program)


def file_of(tensor: Tensor, part: Any) -> Hashable:
    """Return the path of the weight file in which a stored part of a weight is."""
    return path_of(program_of(tensor).source, part.text)


class Identities:
    """Numbers that identify what weights are computed from: equal for the same operations on the same stored parts.

    Each operation and each part is examined once, however many weights share it.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._by_contents: dict[Any, int] = {}

    def of(self, tensor: Tensor, file_of: FileOf = file_of) -> int:
        """Return the number of a tensor of a Program.

        `tensor`: the weight. `file_of`: called with it and a part of it that is in a weight file; equal for the same
        file.
        """
        return self._of(tensor, tensor.row, file_of)

    def _of(self, tensor: Tensor, part: Any, file_of: FileOf) -> int:
        found = self._numbers.get(part)
        if found is None:
            if isinstance(part, Compressed):
                parts = tuple((key, self._of(tensor, inner, file_of)) for key, inner in sorted(part.parts.items()))
                contents: tuple[Any, ...] = (part.op.type, part.output, part.op.mil_code, part.op.shape, parts)
            else:
                contents = (part.mil_code, part.shape, _place(tensor, part, file_of))
            found = self._numbers[part] = self._by_contents.setdefault(contents, len(self._by_contents))
        return found


def _place(tensor: Tensor, part: Any, file_of: FileOf) -> Hashable:
    if part.storage == _codec.BLOB:
        return file_of(tensor, part), part.blob_offset
    offset, nbytes = part.payload
    return hash_bytes(memoryview(program_of(tensor).scan.buffer)[offset : offset + nbytes])
