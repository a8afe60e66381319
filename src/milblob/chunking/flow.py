"""The order of a function's operations, and the values that are live between them.

Operations that are constants (`const`, and `constexpr_*` of constants) have no place in the order: a part of the
function has those that its own operations read. All others are numbered by their order, and a cut is the number of the
first operation after it.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from .. import _codec
from ..dtypes import DType
from ..errors import FormatError, UnsupportedError
from ..program.types import ListType, StateType, TensorType, ValueType
from ..program.value import type_at
from ..program.view import Block, Function, Operation
from ..progress import ProgressCounter

_FLOAT16_SPEC_VERSION = 7  # iOS 16: the first with inputs and outputs of float16
NOT_REPEATABLE = ("random_", "classify")
"""Prefixes of the types of operations that must not be computed twice: their values may differ, or are not tensors."""
CAST_SUFFIX = "__fp32"
"""Suffix of the names of values that are passed on as float32."""
_MAX_REPEATED = 64
"""Most operations that are computed again for one value that cannot be passed on."""


@dataclass(eq=False)
class LiveValue:
    """An input of the function, or an output of one of its operations."""

    name: str  # of the value
    type: ValueType | None  # as declared; None where nothing is
    type_span: tuple[int, int]  # (offset, nbytes) of its serialized ValueType; offset 0 where there is none
    step: int  # number of the operation that computes it; -1 for an input of the function
    # numbers of the operations that need it, directly or to compute a value again that cannot be passed on
    uses: set[int] = field(default_factory=set)
    is_returned: bool = False  # whether the function returns it
    passed: bool = True  # whether it can be an output of one package and an input of the next
    # what it is called as such. Before iOS 16, values of float16 are cast to float32 and back for that, which is exact,
    # and the float32 has a name of its own.
    port: str = ""

    def __post_init__(self) -> None:
        self.port = self.port or self.name

    @property
    def is_cast(self) -> bool:
        """Whether it is passed on as float32."""
        return self.port != self.name

    @property
    def tensor(self) -> TensorType:
        """Its type, of a value that is passed on. Raises: TypeError: it is not a tensor."""
        if not isinstance(self.type, TensorType):
            raise TypeError(f"value {self.name!r}: expected a tensor, got {self.type}")
        return self.type

    @property
    def is_state(self) -> bool:
        """Whether it is a state, which is an input of the function."""
        return isinstance(self.type, StateType)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements as they are passed on; an open dimension counts as 1."""
        kind = self.type
        if not isinstance(kind, TensorType) or not isinstance(kind.dtype, DType):
            return 0
        dtype = DType.FLOAT32 if self.is_cast else kind.dtype
        return int(dtype.nbytes(prod(1 if size is None else size for size in kind.shape)))


@dataclass(eq=False)
class Computation:
    """An operation that computes something."""

    op: Operation  # the operation
    outputs: list[LiveValue] = field(default_factory=list)  # its values
    # names of what it reads, in nested blocks too: values and outputs of constants of the function
    reads: set[str] = field(default_factory=set)
    # where an output cannot be passed on, the numbers of the operations that are computed again wherever it is needed:
    # this one and those before it; None if that is not possible
    repeated: frozenset[int] | None = None


class Flow:
    """The operations of one function, in order, and its live values.

    `function`: with one block. `images`: outputs that are not arrays, so the next package could not read them.
    Raises: UnsupportedError: several blocks, or no operation that computes something. FormatError: a value that is read
    before it is computed.
    """

    def __init__(self, function: Function, spec_version: int, images: frozenset[str], counter: ProgressCounter) -> None:
        self.function, self.name = function, function.name  # name: of the function
        self.spec_version = spec_version
        blocks = function.blocks
        if len(blocks) != 1:
            message = f"block specializations of function {self.name}: expected one, got {', '.join(blocks) or 'none'}"
            raise UnsupportedError(f"{message} (keep one of them)", file=_file(function))
        self.block = function.block
        self.operations = list(counter.noting(self.block.operations))  # those of the function's own block, in order
        self.steps: list[Computation] = []  # the operations that compute something, in order
        self.constants: dict[str, Operation] = {}  # output -> the constant operation
        self.sources: dict[str, list[str]] = {}  # output of a constant -> the names that it is computed from
        self.read_by: dict[str, set[int]] = {}  # output of a constant -> the numbers of the steps that need it
        self.values: dict[str, LiveValue] = {}  # by name
        self.returned = self.block.outputs  # the names that the function returns, in order
        self.barred: dict[int, str] = {}  # cut -> why the function cannot be cut there
        self._number: dict[int, int] = {}  # row of an operation -> its step
        self._others: dict[int, Operation] = {}  # row -> constant operation
        self._buffer = function.view.held()[0]
        self._types: dict[bytes, ValueType | None] = {}  # most values have one of a few types
        self._tops: dict[int, Operation] = {}  # row of a nested block -> operation of the function's own block
        self._define()
        if not self.steps:
            raise UnsupportedError(
                f"function {self.name}: expected operations, got constants only", file=_file(function)
            )
        self._read()
        # constants that nothing reads, which are put into the first part
        self.unread = [op for name, op in self.constants.items() if not self.read_by[name]]
        self._repeat()
        self._bar(images)
        # cuts that are possible, but right after an operation whose results are neither passed on nor returned: a part
        # that ends there might return nothing. Cuts are not chosen there.
        self.idle = self._idle()
        self.cost = self._costs()  # bytes that live across each cut, by its number; the first and the last are 0

    @property
    def count(self) -> int:
        """The number of steps."""
        return len(self.steps)

    # ------------------------------------------------------------------------------------------------------- what it is

    def _define(self) -> None:
        graph = self.function.view.graph
        for name, at, nbytes in graph.names(*graph.function(self.function.row)[4]):
            self._add(LiveValue(name, self._type((at, nbytes)), (at, nbytes), -1))
        for op in self.operations:
            sources = self._sources(op)
            if sources is not None:
                self._others[op.row] = op
                for name in op.output_names:
                    if name in self.constants or name in self.values:
                        raise self._twice(name)
                    self.constants[name], self.sources[name] = op, sources
                    self.read_by[name] = set()
                continue
            number = self._number[op.row] = len(self.steps)
            rows = graph.names(*op.output_rows)
            values = [LiveValue(name, self._type((at, nbytes)), (at, nbytes), number) for name, at, nbytes in rows]
            self.steps.append(Computation(op, values))
            for value in values:
                self._add(value)

    def _type(self, span: tuple[int, int]) -> ValueType | None:
        """Return the type in the bytes at a place; equal bytes are parsed once."""
        if not span[0]:
            return None
        key = bytes(memoryview(self._buffer)[span[0] : sum(span)])
        if key not in self._types:
            self._types[key] = type_at(self._buffer, span)
        return self._types[key]

    def _add(self, value: LiveValue) -> None:
        if value.name in self.values or value.name in self.constants:
            raise self._twice(value.name)
        value.passed = value.step < 0 or self._can_pass(value.type)
        is_half = isinstance(value.type, TensorType) and value.type.dtype is DType.FLOAT16
        if is_half and value.passed and value.step >= 0 and self.spec_version < _FLOAT16_SPEC_VERSION:
            value.port = value.name + CAST_SUFFIX
        self.values[value.name] = value

    def _twice(self, name: str) -> FormatError:
        message = f"value {name!r:.200}: expected one operation that computes it, got two"
        return FormatError(message, file=_file(self.function), where=self.name)

    def _sources(self, op: Operation) -> list[str] | None:
        """Return the names of the constants that a constant is computed from; None of an operation that is not one."""
        kind = op.type
        if (kind != "const" and not kind.startswith("constexpr_")) or op.block_rows:
            return None
        names = [str(one.name) for bindings in op.inputs.values() for one in bindings if not one.is_value]
        return names if all(name in self.constants for name in names) else None

    def _can_pass(self, kind: ValueType | None) -> bool:
        """Whether Core ML has inputs and outputs of a type."""
        if not isinstance(kind, TensorType) or not kind.shape or kind.variadic or kind.rank < 0:
            return False
        return kind.dtype in (DType.FLOAT32, DType.FLOAT16, DType.INT32)

    # ---------------------------------------------------------------------------------------------------- what it reads

    def _read(self) -> None:
        """Find out who reads what: uses of values, and steps that need each constant."""
        later: list[tuple[str, str]] = []  # (constant, output of a constant that reads it)
        graph = self.function.view.graph
        self._note(graph.consumers(*graph.function(self.function.row)[4]), later)
        for op in self.operations:
            self._note(graph.consumers(*op.output_rows), later)
        for name, reader in reversed(later):  # the readers of a constant come after it
            self.read_by[name] |= self.read_by[reader]
        last = self.count - 1
        for name in self.returned:
            if name in self.values:
                self.values[name].is_returned = True
            elif name in self.constants:
                self._need(name, last)

    def _need(self, name: str, step: int) -> None:
        """Note that a step needs a constant, and all that this is computed from."""
        pending = [name]
        while pending:
            found = pending.pop()
            self.read_by[found].add(step)
            pending += self.sources[found]

    def _note(self, consumers: list[tuple[int, str, str]], later: list[tuple[str, str]]) -> None:
        """Note readers of values: rows of operations, -1 - row of blocks that return them; and the names they read."""
        for row, _, name in consumers:
            number = self._number.get(row)
            if number is None and row not in self._others:
                top = self._top(row)
                if top is None:  # the function returns it
                    continue
                row, number = top.row, self._number.get(top.row)
            if number is None:
                if name in self.constants:
                    later += ((name, output) for output in self._others[row].output_names)
                continue
            self.steps[number].reads.add(name)
            if name in self.constants:
                self.read_by[name].add(number)
                continue
            value = self.values[name]
            if value.step >= number:
                label = self.steps[number].op.label
                message = f"value {name!r:.200}: expected an operation before {label!r:.200}, which reads it"
                raise FormatError(f"{message}, got a later one", file=_file(self.function), where=self.name)
            value.uses.add(number)

    def _top(self, row: int) -> Operation | None:
        """Return the operation of the function's own block in which a reader is; None for that block itself.

        Args:
            row: of an operation in a nested block; -1 - row of a block.
        """
        view = self.function.view
        block = view.operation(row).block if row >= 0 else Block(view, -1 - row)
        if block.row == self.block.row:
            return None
        chain = []
        found = self._tops.get(block.row)
        while found is None:
            chain.append(block.row)
            outer = block.operation
            if outer is None:  # a block of another function
                return None
            if outer.block_row == self.block.row:
                found = outer
            else:
                block = outer.block
                found = self._tops.get(block.row)
        self._tops.update(dict.fromkeys(chain, found))
        return found

    # ----------------------------------------------------------------------------------------- what cannot be passed on

    def _repeat(self) -> None:
        """Find what is computed again where values cannot be passed on, and what it needs."""
        needs: dict[int, tuple[frozenset[int], frozenset[str]] | None] = {}
        for number, step in enumerate(self.steps):
            own = step.outputs
            if all(value.passed for value in own):
                continue
            found = needs[number] = self._again(number, step, needs)
            if found is None:
                continue
            step.repeated, base = found
            for value in own:
                value.passed = False  # the operation is there as a whole
                for name in base:
                    self.values[name].uses |= value.uses
            for name in set().union(*(self.steps[again].reads for again in step.repeated)):
                for user in set().union(*(value.uses for value in own)):
                    if name in self.constants:
                        self._need(name, user)

    def _again(
        self, number: int, step: Computation, needs: dict[int, tuple[frozenset[int], frozenset[str]] | None]
    ) -> tuple[frozenset[int], frozenset[str]] | None:
        """Return the steps to compute again, and the values that these need, which can be passed on."""
        op = step.op
        if op.block_rows or op.type.startswith(NOT_REPEATABLE):
            return None
        if any(not isinstance(value.type, TensorType) for value in step.outputs):
            return None
        steps, base = {number}, set()
        for name in step.reads:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value.type, StateType | ListType):
                return None
            if value.passed:
                base.add(name)
                continue
            before = needs.get(value.step)
            if before is None:
                return None
            steps |= before[0]
            base |= before[1]
        return (frozenset(steps), frozenset(base)) if len(steps) <= _MAX_REPEATED else None

    def _bar(self, images: frozenset[str]) -> None:
        """Find the cuts that are not possible."""
        found: list[tuple[int, int, str]] = []
        for value in self.values.values():
            if not value.uses:
                continue
            if value.is_state:
                first, last = min(value.uses), max(value.uses)
                words = f"state {value.name!r} is used before and after it, and each package has states of its own"
            elif value.step < 0:
                continue
            elif not value.passed and self.steps[value.step].repeated is None:
                first, last = value.step, max(value.uses)
                words = f"{value.name!r} ({value.type}) would have to cross it, and is not a type of inputs and outputs"
            elif value.name in images:
                first, last = value.step, max(value.uses)
                words = f"output {value.name!r}, which is not an array, is read after it"
            else:
                continue
            found.append((first + 1, last + 1, words))
        done = 0
        for start, stop, words in sorted(found):
            self.barred.update(dict.fromkeys(range(max(start, done), stop), words))
            done = max(done, stop)

    # ------------------------------------------------------------------------------------------------------------ costs

    def _idle(self) -> frozenset[int]:
        """Find the cuts before which the last operation has nothing to pass on, or after which nothing is returned."""
        found = set()
        for number, step in enumerate(self.steps):
            if any(value.is_returned or (value.passed and value.uses) for value in step.outputs):
                continue
            if not any(name in self.values and self.values[name].is_state for name in step.reads):
                found.add(number + 1)
        ends = [self.values[name].step if name in self.values else self.count for name in self.returned]
        last = max((self.count if step < 0 else step for step in ends), default=-1)
        return frozenset(found | set(range(last + 1, self.count)))

    def crossing(self, cut: int) -> list[LiveValue]:
        """Return the values that are computed before a cut and needed after it."""
        return [
            value
            for value in self.values.values()
            if value.passed and 0 <= value.step < cut and value.uses and max(value.uses) >= cut
        ]

    def _costs(self) -> list[int]:
        changes = [0] * (self.count + 2)
        sizes: dict[tuple[int, bool], int] = {}  # by type
        for value in self.values.values():
            if value.passed and value.step >= 0 and value.uses:
                key = id(value.type), value.is_cast
                nbytes = sizes.get(key, -1)
                if nbytes < 0:
                    nbytes = sizes[key] = value.nbytes
                changes[value.step + 1] += nbytes
                changes[max(value.uses) + 1] -= nbytes
        return list(accumulate(changes))[: self.count + 1]

    def index_of(self, name: str) -> int | None:
        """Return the cut right after the operation that computes a value; None for a name that is not one."""
        value = self.values.get(name)
        return None if value is None or value.step < 0 else value.step + 1

    def nested_in(self, name: str) -> str | None:
        """Return the operation whose block computes a value; None if none does."""
        for step in self.steps:
            if step.op.block_rows and any(name in op.output_names for op in _inside(step.op)):
                return step.op.label
        return None


def _inside(op: Operation) -> Iterator[Operation]:
    for block in op.blocks:
        yield from block.walk()


def _file(function: Function) -> str | None:
    return function.view.held()[0].name


def constant_closure(flow: Flow, names: set[str]) -> set[str]:
    """Return the outputs of constants among `names`, and of all constants that these are computed from."""
    found: set[str] = set()
    pending = [name for name in names if name in flow.constants]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.update(flow.constants[name].output_names)
        pending += flow.sources[name]
    return found


def constants_by_row(function: Function, constants: list[_codec.Constant]) -> dict[int, list[_codec.Constant]]:
    """Return constants by the row of the operation of the function's own block that holds them.

    Those that no operation holds, in attributes of the function or its block, are listed by row -1.
    """
    spans = sorted((*op.message, op.row) for op in function.block.operations)
    start, nbytes = function.view.graph.function(function.row)[2]
    found: dict[int, list[_codec.Constant]] = {}
    for constant in sorted(constants, key=lambda one: one.value[0]):
        place = constant.value[0]
        if not start <= place < start + nbytes:
            continue
        offset, size, row = spans[max(bisect_left(spans, (place + 1,)) - 1, 0)] if spans else (0, 0, -1)
        found.setdefault(row if offset <= place < offset + size else -1, []).append(constant)
    return found
