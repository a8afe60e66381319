"""Making compressed weights dense in a Program: which operations become a `const`, and which are removed."""

from collections.abc import Callable, Iterator
from typing import Any

from .. import _codec
from ..program.constexpr import part_names
from ..program.scan import Compressed, Program, reading_op
from ..program.splice import Edit
from ..program.wire_edits import (
    ATTRIBUTES,
    blob_value,
    field,
    immediate_value,
    removed_operation,
    rewritten_operation,
    tensor_type,
)

Span = tuple[int, int]


class Decompression:
    """What happens to the constexpr operations of one Program.

    A weight becomes dense when the operation that yields it becomes a `const`. That happens to every selected operation
    that is read by something other than a constexpr operation (or by nothing). Operations that then have no reader left
    are removed: inner operations of a chain, and `const` operations that were parts.

    Args:
        program: scanned with all constants, grouped (`Program.compressed`).
        is_selected: called with the name of a weight.

    Attributes:
        weights: the operations that become dense, in Program order.
        gone: messages of the operations whose parts are no longer read: those of the weights, and all removed ones.
    """

    def __init__(self, program: Program, is_selected: Callable[[Compressed], bool]) -> None:
        self._program = program
        self._readers = program.readers()
        self.weights = [
            group
            for group in program.groups
            if group.op.output_count == 1 and self._is_end(group) and is_selected(group)
        ]
        self.gone: set[Span] = {group.op.message for group in self.weights}
        self._removed: dict[Span, _codec.Op] = {}
        self._follow()

    def _reading(self, op: _codec.Op) -> Iterator[_codec.Op | None]:
        """Yield the readers of an output: an operation, or None for an output of a block."""
        return map(reading_op, self._readers.get((op.block, op.name), ()))

    def _is_end(self, group: Compressed) -> bool:
        readers = list(self._reading(group.op))
        return not readers or any(op is None or not op.type.startswith("constexpr_") for op in readers)

    def _follow(self) -> None:
        """Find operations that are read only by removed ones, and so on down the chain."""
        outputs: dict[Span, list[_codec.Op]] = {}
        for group in self._program.groups:
            if group.op.message not in self.gone:
                outputs.setdefault(group.op.message, []).append(group.op)
            for part in group.parts.values():
                if not isinstance(part, Compressed) and part.op.message != group.op.message:
                    outputs[part.op.message] = [part.op]  # a const operation, which has one output
        found = True
        while found:
            found = False
            for message in list(outputs):
                readers = [op for output in outputs[message] for op in self._reading(output)]
                if readers and all(op is not None and op.message in self.gone for op in readers):
                    self._removed[message] = outputs.pop(message)[0]
                    self.gone.add(message)
                    found = True

    def edits(self) -> list[Edit]:
        """Return the edits that remove operations."""
        return [removed_operation(self._program.buffer, op) for op in self._removed.values()]

    def weight_edit(self, group: Compressed, dtype: Any, shape: tuple[int, ...], value: Any) -> Edit:
        """Make the operation of a weight a `const`.

        Args:
            dtype, shape: of the dense tensor.
            value: (file name, metadata offset) of a record, or a serialized TensorValue.
        """
        type_bytes = tensor_type(dtype, shape)
        new = blob_value(type_bytes, *value) if isinstance(value, tuple) else immediate_value(type_bytes, value)
        entry = field(1, "val") + field(2, new)
        gone = part_names(group.op.type)
        return rewritten_operation(self._program.buffer, group.op, "const", gone, [(ATTRIBUTES, entry)])


class Identities:
    """Numbers that identify what weights are computed from: equal for the same operations on the same stored parts.

    Each operation and each part is examined once, however many weights share it.
    """

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}
        self._by_contents: dict[Any, int] = {}

    def of(self, part: Any, place: Callable[[Any], Any]) -> int:
        """Return the number of a Compressed or of a stored part.

        Args:
            place: a function that returns the location of a stored part.
        """
        found = self._numbers.get(part)
        if found is None:
            if isinstance(part, Compressed):
                parts = tuple((key, self.of(inner, place)) for key, inner in sorted(part.parts.items()))
                contents: tuple[Any, ...] = (part.op.type, part.output, part.op.mil_code, part.op.shape, parts)
            else:
                contents = (part.mil_code, part.shape, place(part))
            found = self._numbers[part] = self._by_contents.setdefault(contents, len(self._by_contents))
        return found
