"""The parts of a function between cuts: operations, inputs and outputs of each."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from .. import _codec
from ..dtypes import DType
from ..errors import UnsupportedError
from ..program.fields import repeated
from ..program.splice import Edit
from ..program.wire_edits import (
    INPUTS,
    field,
    field_start,
    fields_of,
    followed_operation,
    immediate_value,
    new_operation,
    removed_operations,
    tensor_type,
    varint,
)
from ..rewrite.describe import ARRAY
from ..values.tensorvalue import pack_tensor
from .flow import Flow, LiveValue, constant_closure

# Function {1 inputs, 2 opset}; NamedValueType {1 name, 2 type}; Block {2 outputs, 3 operations}.
_INPUTS, _OPSET = 1, 2
_OUTPUTS, _OPERATIONS = 2, 3
_UNBOUNDED = -1  # the upper bound of a dimension
_ARRAY_DTYPES = {DType.FLOAT32: 65568, DType.FLOAT16: 65552, DType.INT32: 131104}
_MIL_NAMES = {DType.FLOAT16: "fp16", DType.FLOAT32: "fp32"}


@dataclass(eq=False)
class FunctionPart:
    """A part of a function."""

    flow: Flow  # the function
    start: int  # of its steps
    stop: int
    # of the operations of the function's own block that it has: its steps, those that are computed again, and the
    # constants that these read
    rows: set[int]
    inputs: list[LiveValue]  # what it takes: inputs of the function, states among them, then values of earlier parts
    returned: list[str]  # outputs of the function that it returns
    passed: list[LiveValue]  # values that later parts take, those that are outputs of the function left out

    @property
    def input_names(self) -> list[str]:
        """Names of the inputs."""
        return [value.port for value in self.inputs]

    @property
    def output_names(self) -> list[str]:
        """Names of the outputs."""
        return [*self.returned, *(value.port for value in self.passed)]


def parts_of(flow: Flow, cuts: Sequence[int]) -> list[FunctionPart]:
    """Divide a function. Raises: UnsupportedError: a part would return nothing."""
    edges = [0, *cuts, flow.count]
    parts = [_part(flow, start, stop) for start, stop in itertools.pairwise(edges)]
    taken: list[set[str]] = [set(part.input_names) for part in parts]
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        later = set().union(*taken[number + 1 :])
        part.returned = list(dict.fromkeys(name for name in flow.returned if _returns(flow, part, name, is_last)))
        made = (value for value in flow.values.values() if part.start <= value.step < part.stop)
        part.passed = [value for value in made if value.port in later and value.port not in part.returned]
        if not part.output_names:
            message = f"function {flow.name}: expected parts that return something, got part {number + 1} that does not"
            raise UnsupportedError(message, file=flow.function.view.held()[0].name)
    _leave_unused(flow, parts)
    return parts


def _returns(flow: Flow, part: FunctionPart, name: str, is_last: bool) -> bool:
    """Whether an output of the function is one of a part: a constant or an input that is returned, of the last."""
    value = flow.values.get(name)
    return is_last if value is None or value.step < 0 else part.start <= value.step < part.stop


def _part(flow: Flow, start: int, stop: int) -> FunctionPart:
    steps = set(range(start, stop))
    pending = list(steps)
    taken: set[str] = set()
    reads: set[str] = set()
    while pending:
        for name in flow.steps[pending.pop()].reads:
            reads.add(name)
            value = flow.values.get(name)
            if value is None or value.step in steps:
                continue
            if value.passed:
                taken.add(name)
                continue
            again = (flow.steps[value.step].repeated or frozenset()) - steps
            steps |= again
            pending += again
    if stop == flow.count:
        reads.update(flow.returned)
        taken.update(name for name in flow.returned if name in flow.values and flow.values[name].step < 0)
    taken = {name for name in taken if flow.values[name].step not in steps}
    rows = {flow.steps[number].op.row for number in steps}
    rows |= {flow.constants[name].row for name in constant_closure(flow, reads)}
    inputs = [value for value in flow.values.values() if value.name in taken]  # inputs of the function come first
    return FunctionPart(flow, start, stop, rows, inputs, [], [])


def _leave_unused(flow: Flow, parts: list[FunctionPart]) -> None:
    """Give the first part what nothing reads: constants and inputs of the function."""
    first = parts[0]
    first.rows |= {op.row for op in flow.unread if not any(op.row in part.rows for part in parts)}
    used = {name for part in parts for name in part.input_names}
    own = [value for value in flow.values.values() if value.step < 0]
    kept = {value.name for value in own if value.name not in used} | set(first.input_names)
    first.inputs = [value for value in own if value.name in kept]


def part_edits(buffer: _codec.Buffer, part: FunctionPart) -> list[Edit]:
    """Return the edits that leave only a part of a function; references to weight files are unchanged.

    `buffer`: the model file.
    Raises: UnsupportedError: operations or outputs that are not encoded minimally.
    """
    flow = part.flow
    view = flow.function.view
    edits = removed_operations(buffer, [op for op in flow.operations if op.row not in part.rows])
    kept = set(part.input_names)
    new = b"".join(field(_INPUTS, _named(buffer, value)) for value in part.inputs if value.step >= 0)
    listed = fields_of(buffer, view.graph.function(flow.function.row)[2])
    names = [value.name for value in flow.values.values() if value.step < 0]
    own = [one for one in listed if one.number == _INPUTS and one.wire == 2]
    edits += [
        Edit(one.start, one.end - one.start, b"") for one, name in zip(own, names, strict=True) if name not in kept
    ]
    opset = next(one for one in listed if one.number == _OPSET and one.wire == 2)
    if new:
        whole = bytes(memoryview(buffer)[opset.start : opset.end])
        edits.append(Edit(opset.start, opset.end - opset.start, new + whole))
    before = [value for value in part.inputs if value.is_cast]
    if before or part.output_names != list(flow.returned):
        data = b"".join(field(_OUTPUTS, name) for name in part.output_names)
        data += b"".join(field(_OPERATIONS, _cast(value, value.port, value.name, DType.FLOAT16)) for value in before)
        for _, span in repeated(buffer, view.graph.block(flow.block.row)[1], {_OUTPUTS: 2}, "outputs"):
            start = field_start(buffer, _OUTPUTS, span, f"outputs of function {flow.name}")
            if before and start > flow.operations[0].message[0]:
                message = f"outputs of function {flow.name}: expected before its operations, got them after"
                raise UnsupportedError(message, offset=start, file=buffer.name)
            edits.append(Edit(start, sum(span) - start, data))
            data = b""
    return edits


def last_edit(buffer: _codec.Buffer, part: FunctionPart, inside: Sequence[Edit]) -> Edit | None:
    """Return the edit that puts casts after the last operation of a part; None if no value is cast.

    `buffer`: the model file. `inside`: all other edits; those in that operation are part of this one.
    """
    after = [value for value in part.passed if value.is_cast]
    if not after:
        return None
    op = next(op for op in reversed(part.flow.operations) if op.row in part.rows)
    own = [edit for edit in inside if op.message[0] <= edit.offset < sum(op.message)]
    return followed_operation(buffer, op, own, [_cast(one, one.name, one.port, DType.FLOAT32) for one in after])


def _cast(value: LiveValue, source: str, target: str, dtype: DType) -> bytes:
    """Serialize an operation that casts a value."""
    kind = value.tensor
    text = immediate_value(tensor_type(DType.STRING, ()), pack_tensor(_MIL_NAMES[dtype]))
    parameters = [
        (INPUTS, field(1, "dtype") + field(2, field(1, field(2, text)))),
        (INPUTS, field(1, "x") + field(2, field(1, field(1, source)))),
    ]
    return new_operation("cast", target, [(target, dtype, kind.shape)], parameters)


def _named(buffer: _codec.Buffer, value: LiveValue) -> bytes:
    at, nbytes = value.type_span
    if value.is_cast:
        return field(1, value.port) + field(2, tensor_type(DType.FLOAT32, value.tensor.shape))
    return field(1, value.name) + field(2, memoryview(buffer)[at : at + nbytes])


# -------------------------------------------------------------------------------------------------------- descriptions


def array_feature(value: LiveValue, is_input: bool) -> bytes:
    """Describe a value that goes from one part to another, as coremltools describes arrays.

    An open dimension of an input may have any size from 1 on; an output with one states no shape.
    """
    kind = value.tensor
    dtype = field(2, _ARRAY_DTYPES[DType.FLOAT32 if value.is_cast else DType(kind.dtype)])
    is_open = None in kind.shape
    if is_open and not is_input:
        return _feature(value.port, dtype)
    shape = field(1, b"".join(varint(1 if size is None else size) for size in kind.shape))
    ranges = b""
    if is_open:
        rows = (
            field(1, 1) + field(2, _UNBOUNDED) if size is None else field(1, size) + field(2, size)
            for size in kind.shape
        )
        ranges = field(31, b"".join(field(1, row) for row in rows))
    return _feature(value.port, shape + dtype + ranges)


def _feature(name: str, array: bytes) -> bytes:
    return field(1, name) + field(3, field(ARRAY, array))
