"""Where a Program breaks the rules of the specification: a walk over its functions, blocks and operations."""

import re
from collections.abc import Generator, Hashable, Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from .. import _codec
from ..dtypes import DType
from ..program.types import DictionaryType, StateType, TensorType, ValueType, read_type
from ..program.value import Value
from ..program.view import Block, Function, Operation, ProgramView
from ..progress import NO_PROGRESS, ProgressCounter
from ..wording import abbreviated
from .catalog import Breach, quoted
from .constexpr_rules import NUMBERS, WITH_MASKS, constexpr_breaches
from .misfits import Misfit
from .operation_rules import BLOCKS, Bound, newer_dtypes, operation_breaches, opset_index, table
from .output_rules import axis_breaches, outputs_of
from .type_rules import KnownType, brief, fits
from .value_rules import value_breaches

_is_identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_@]*").fullmatch

# Operations whose outputs a converter may know before the model runs although their inputs vary: shapes are known.
_BY_SHAPE = ("shape", "fill_like", "reshape_like", "list_length", "range_1d")
_STRING, _BOOL = TensorType(DType.STRING), TensorType(DType.BOOL)
_READ = frozenset(dtype for dtype in DType if dtype.is_integer or dtype in (DType.STRING, DType.BOOL))
_Place = Function | Block | Operation
_Hidden = dict[str, tuple[Bound | None] | None]
_Argument = tuple[str, tuple[Bound | None, ...]]
_Inputs = list[tuple[str, tuple[str | tuple[bytes, bytes], ...]]]
_Facts = tuple[
    str,
    list[tuple[str, bytes | None]],
    _Inputs,
    list[tuple[str, bytes, bytes]] | None,
    list[tuple[bool, str, int, int, int]],
]


class Signature(NamedTuple):
    """The inputs and outputs of a function."""

    opset: str  # of its active block
    inputs: list[tuple[str, ValueType | None]]  # names and types, states among them
    # names and types, None for the type of an undefined name; None without an active block
    outputs: list[tuple[str, ValueType | None]] | None


def breaches(
    view: ProgramView, signatures: dict[str, Signature] | None = None, counter: ProgressCounter = NO_PROGRESS
) -> Iterator[Breach]:
    """Yield every place where a Program breaks a rule, in Program order.

    `view`: the Program. `signatures`: gets the signature of each function, by its name, while the breaches are yielded.
    `counter`: notes each operation.
    Raises: FormatError: bytes that are malformed; the rest of the Program is not looked at.
    """
    walk = _Walk(view, {} if signatures is None else signatures, counter)
    if view.version != 1:
        yield Breach("MIL036", f"version of the Program: expected 1, got {view.version}", "program")
    attributes = view.attributes
    yield from _attributes(attributes, "program")
    if "buildInfo" in attributes and attributes["buildInfo"].type != DictionaryType(_STRING, _STRING):
        message = f"buildInfo: expected dict<string, string>, got {brief(attributes['buildInfo'].type)}"
        yield Breach("MIL038", message, "program")
    functions = view.functions
    if not functions:
        yield Breach("MIL037", "functions of the Program: expected one at least, got none", "program")
    for function in functions.values():
        yield from walk.function(function)


_FLEXIBLE = "FlexibleShapeInformation"


def _attributes(attributes: dict[str, Value], where: str) -> Iterator[Breach]:
    for key, value in attributes.items():
        yield from _name(key, "attribute", where)
        yield from value_breaches(value)


def _name(name: str, what: str, where: str) -> tuple[Breach, ...]:
    if _is_identifier(name) is not None:
        return ()
    return (Breach("MIL001", f"{what}: expected a name such as x_1, got {quoted(name)}", where),)


def _path(place: _Place) -> str:
    return place.name if isinstance(place, Function) else place.path


class _Walk:
    """The definitions of the blocks around the current place, during a walk in Program order."""

    def __init__(self, view: ProgramView, signatures: dict[str, Signature], counter: ProgressCounter) -> None:
        self._view, self._counter = view, counter
        self._signatures = signatures
        self._visible: dict[str, Bound | None] = {}  # name -> its definition
        self._blocks: list[Block] = []  # open ones, the outermost first
        self._coming: dict[int, frozenset[str]] = {}  # row of an open block -> all that its operations define
        self._types: dict[bytes | None, KnownType] = {}  # by the bytes that state them
        self._bounds: dict[tuple[bytes | None, bool, bytes], Bound] = {}
        self._kept: list[Bound] = []
        self._judged: dict[tuple[object, ...], tuple[tuple[tuple[str, str], ...], tuple[ValueType, ...] | None]] = {}
        self._sound: dict[Hashable, bool] = {}  # what `_alike` returned -> whether the outputs are constant
        self._opset: int | None = None
        self._newer: dict[DType, str] = {}  # data types that the opset does not have

    # ------------------------------------------------------------------------------------------------ functions, blocks

    def function(self, function: Function) -> Iterator[Breach]:
        """Yield the breaches of a function."""
        where = function.name
        own_name = where.removeprefix(self._view.prefix)
        yield from _name(own_name, "function", where)
        for breach in _attributes(function.attributes, where):
            # Core ML's own compiler declares the shapes in this attribute without their lengths.
            if breach.rule != "MIL014" or not breach.where.endswith(f".{_FLEXIBLE}"):
                yield breach
        blocks = function.blocks
        if function.opset not in blocks:
            have = abbreviated(", ".join(map(quoted, sorted(blocks))) or "none")
            message = f"block specialization: expected one for the opset {quoted(function.opset)}, got {have}"
            yield Breach("MIL006", message, where)
        self._visible = {}
        self._set_opset(function.opset)
        first, count = self._view.graph.function(function.row)[4]
        inputs: dict[str, Bound | None] = {}
        for name, declared in self._named(first, count):
            if name in inputs:
                message = f"input: expected a name that no other has, got {quoted(name)}"
                yield Breach("MIL002", message, where)
            inputs[name] = self._bound(declared, False)
            yield from self._variable(name, declared, "input", function, may_be_state=True)
        taken = [(name, bound.type if bound else None) for name, bound in inputs.items()]
        self._signatures[own_name] = Signature(function.opset, taken, None)
        expected: tuple[str, list[tuple[str, ValueType | None]]] | None = None  # the outputs of the first one
        for block in blocks.values():
            yield from _name(block.name, "block specialization", where)
            self._set_opset(block.name)
            if self._opset is None and block.name:
                message = f"opset: expected one whose operations are known here, got {quoted(block.name)}"
                yield Breach("MIL039", message, block.path)
            self._visible = dict(inputs)
            returned: list[tuple[str, ValueType | None]] = []
            yield from self._block(block, returned)
            if block.name == function.opset:
                self._signatures[own_name] = Signature(block.name, taken, returned)
            if expected is None:
                expected = block.name, returned
            elif returned != expected[1]:
                message = (
                    f"outputs: expected {_listed(expected[1])} as in {quoted(expected[0])}, got {_listed(returned)}"
                )
                yield Breach("MIL007", message, block.path)

    def _set_opset(self, opset: str) -> None:
        self._opset = opset_index(opset)
        self._newer = newer_dtypes(self._opset)

    def _named(self, first: int, count: int) -> Iterator[tuple[str, bytes | None]]:
        """Yield rows of names, each with the bytes of its type."""
        data = memoryview(self._view.held()[0])
        for name, at, nbytes in self._view.graph.names(first, count):
            yield name, bytes(data[at : at + nbytes]) if at else None

    def _block(self, block: Block, returned: list[tuple[str, ValueType | None]]) -> Iterator[Breach]:
        """Yield the breaches of a block and of those nested in it; `returned` gets its outputs with their types."""
        hidden: _Hidden = {}  # own names -> the definitions that they hide
        where = block.path
        self._blocks.append(block)
        yield from _attributes(block.attributes, where)
        first, count = self._view.graph.block(block.row)[5]
        for name, declared in self._named(first, count):
            yield from self._variable(name, declared, "input", block)
            yield from self._define(name, self._bound(declared, False), hidden, block)
        for op in self._counter.noting(block.operations):
            yield from self._operation(op, hidden)
        for name in block.outputs:
            yield from _name(name, "output of the block", where)
            if name not in self._visible:
                message = f"output of the block: expected a name that it sees, got {quoted(name)}"
                yield Breach("MIL005", message, where)
            bound = self._visible.get(name)
            returned.append((name, bound.type if bound else None))
        self._blocks.pop()
        self._coming.pop(block.row, None)
        for name, before in hidden.items():
            if before is None:
                del self._visible[name]
            else:
                self._visible[name] = before[0]

    def _define(self, name: str, bound: Bound | None, hidden: _Hidden, place: Block | Operation) -> tuple[Breach, ...]:
        if name in hidden:
            message = f"name: expected one that its block does not have yet, got {quoted(name)}"
            return (Breach("MIL002", message, place.path),)
        hidden[name] = (self._visible[name],) if name in self._visible else None
        self._visible[name] = bound
        return ()

    # ------------------------------------------------------------------------------------------------------- operations

    def _operation(self, op: Operation, hidden: _Hidden) -> Iterable[Breach]:
        """Return the breaches of an operation: one that breaks no rule is judged once for all that are like it."""
        facts: _Facts = self._view.graph.facts(op.row)
        alike = None if op.block_rows else self._alike(facts)
        if alike is None:
            return self._judge(op, facts, hidden)
        _, outputs, _, attributes, _ = facts
        is_constant = self._sound.get(alike)
        if is_constant is None:
            found = list(self._judge(op, facts, hidden))
            if not found and outputs:
                last = self._visible[outputs[-1][0]]
                self._sound[alike] = last is not None and last.is_constant
            return found
        whole = b""
        if facts[0] == "const":
            whole = next((data for key, _, data in attributes or () if key == "val"), b"")
        return [
            breach
            for name, data in outputs
            for breach in self._define(name, self._bound(data, is_constant, whole), hidden, op)
        ]

    def _alike(self, facts: _Facts) -> Hashable:
        """Return what the rules compare of an operation, but for the names of its outputs; None where that is more."""
        kind, outputs, inputs, attributes, doubtful = facts
        if doubtful or attributes is None or len({key for key, _, _ in attributes}) != len(attributes):
            return None
        if None in [_is_identifier(name) for name, _ in outputs]:
            return None
        read: list[int | str] = []
        for key, bindings in inputs:
            for binding in bindings:
                bound = (
                    self._visible.get(binding)
                    if isinstance(binding, str)
                    else self._bound(binding[0], True, binding[1])
                )
                if bound is None:
                    return None
                read.append(id(bound))
            read.append(key)
        stated = tuple([(key, stated, whole if key in NUMBERS else b"") for key, stated, whole in attributes])
        return kind, self._opset, tuple(read), stated, tuple([data for _, data in outputs])

    def _judge(self, op: Operation, facts: _Facts, hidden: _Hidden) -> Iterator[Breach]:
        kind, outputs, inputs, attributes, doubtful = facts
        merged: dict[tuple[bool, str, int], Value] = {}
        in_pieces = attributes is None or len({key for key, _, _ in attributes}) != len(attributes)
        for is_attribute, key, number, offset, nbytes in doubtful:
            if is_attribute and in_pieces:
                continue  # of a key that comes twice the last one stands: read below
            path = f"{op.path}.{key}" if is_attribute or not number else f"{op.path}.{key}[{number}]"
            read = Value(self._view, self._view.held()[0], (offset, nbytes), path)
            merged[is_attribute, key, number] = read
            yield from value_breaches(read)
        arguments = yield from self._inputs(op, inputs, merged)
        is_constant = all(one is None or one.is_constant for _, bound in arguments for one in bound)
        if attributes is None or in_pieces:
            values = op.attributes  # protobuf merges the pieces
            for read in values.values():
                yield from value_breaches(read)
            stated = [(key, self._keep(Bound(read.type, True))) for key, read in values.items()]
        else:
            stated = [
                (key, self._value(data, whole if key in NUMBERS else b"", merged.get((True, key, 0))))
                for key, data, whole in attributes
            ]
        as_attributes = kind == "const" or kind.startswith("constexpr_")
        value: ValueType | None = None
        whole = b""  # the value of a constant, if it is small
        for key, declared in stated:
            if key == "name":
                if declared.type is not None and declared.type != _STRING:
                    message = f"name of the operation: expected a string, got {brief(declared.type)}"
                    yield Breach("MIL038", message, op.path)
                continue
            if _is_identifier(key) is None:
                yield from _name(key, "attribute", op.path)
            if as_attributes:
                arguments.append((key, (declared,)))
            if kind == "const" and key == "val":
                value = declared.type
                whole = next((data for other, _, data in attributes or () if other == key), b"")
        blocks = op.blocks if op.block_rows else ()
        if self._opset is not None:
            # By identity: a type of any size is looked at once, not once for each operation that reads it.
            alike = tuple([(key, *map(id, bound)) for key, bound in arguments])
            signature = (kind, self._opset, alike, len(blocks))
            judged = self._judged.get(signature)
            if judged is None:
                wrong = tuple(operation_breaches(kind, self._opset, arguments, len(blocks)))
                wrong = wrong or tuple(axis_breaches(kind, arguments))
                made = None
                try:
                    made = None if wrong else outputs_of(kind, arguments)
                except Misfit as error:
                    wrong = (("MIL050", error.words(kind)),)
                judged = self._judged[signature] = wrong, made
            for rule, message in judged[0]:
                yield Breach(rule, message, op.path)
            if judged[1] is not None:
                yield from self._yielded(op, kind, judged[1], outputs)
            if kind.startswith("constexpr_"):
                yield from self._compressed(op, kind, arguments, outputs)
        if kind == "const" and len(outputs) != 1:
            yield Breach("MIL022", f"outputs of const: expected 1, got {len(outputs)}", op.path)
        if blocks:
            yield from self._nested(op, kind, blocks, arguments, [self._known(data).type for _, data in outputs])
        is_constant = is_constant or as_attributes or bool(blocks) or kind in _BY_SHAPE
        for name, data in outputs:
            known = self._known(data)
            is_odd = known.breaches or known.has_state or known.type is None or not known.dtypes.isdisjoint(self._newer)
            if is_odd or _is_identifier(name) is None:
                yield from self._variable(name, data, "output", op)
            if value is not None and not fits(known.type, value):
                message = f"output {quoted(name)}: expected {brief(value)}, which its value has"
                yield Breach("MIL022", f"{message}, got {brief(known.type)}", op.path)
            yield from self._define(name, self._bound(data, is_constant, whole), hidden, op)

    def _inputs(
        self, op: Operation, inputs: _Inputs, merged: dict[tuple[bool, str, int], Value]
    ) -> Generator[Breach, None, list[_Argument]]:
        """Yield the breaches of an operation's bindings; return the binding of each input."""
        visible = self._visible
        arguments: list[_Argument] = []
        for key, bindings in inputs:
            if not bindings:
                yield Breach("MIL012", f"input {quoted(key)}: expected a name or a value, got neither", op.path)
            bound: list[Bound | None] = []
            for number, binding in enumerate(bindings):
                if isinstance(binding, tuple):
                    bound.append(self._value(*binding, merged.get((False, key, number))))
                    continue
                if binding not in visible:
                    is_late = any(binding in self._all_of(block) for block in self._blocks)
                    message = f"input {quoted(key)}: expected a name that is defined before, got {quoted(binding)}"
                    yield Breach("MIL004" if is_late else "MIL003", message, op.path)
                bound.append(visible.get(binding))
            arguments.append((key, tuple(bound)))
        return arguments

    def _yielded(
        self, op: Operation, kind: str, made: tuple[ValueType, ...], outputs: list[tuple[str, bytes | None]]
    ) -> Iterator[Breach]:
        """Yield where the outputs of an operation do not follow from its inputs."""
        if len(outputs) != len(made):
            yield Breach("MIL050", f"outputs of {kind}: expected {len(made)}, got {len(outputs)}", op.path)
            return
        for due, (name, data) in zip(made, outputs, strict=True):
            known = self._known(data)
            if known.breaches or known.has_state or _is_same_number(known.type, due):
                continue
            if not fits(known.type, due):
                message = f"output {quoted(name)} of {kind}: expected {brief(due)}, which its inputs make"
                yield Breach("MIL050", f"{message}, got {brief(known.type)}", op.path)

    def _compressed(
        self, op: Operation, kind: str, arguments: list[_Argument], outputs: list[tuple[str, bytes | None]]
    ) -> Iterator[Breach]:
        """Yield where the parts of a compressed weight do not fit, or not as many outputs are there as it yields."""
        count = 2 if kind in WITH_MASKS else 1
        if len(outputs) != count:
            yield Breach("MIL049", f"outputs of {kind}: expected {count}, got {len(outputs)}", op.path)
        single = [(key, bound[0]) for key, bound in arguments if len(bound) == 1 and bound[0] is not None]
        parts = {key: one.type for key, one in single if isinstance(one.type, TensorType)}
        values = {
            key: tuple(n for n in one.value if not isinstance(n, str))
            for key, one in single
            if key in NUMBERS and one.value is not None
        }
        made = [known for _, data in outputs if isinstance(known := self._known(data).type, TensorType)]
        if len(made) == len(outputs) == count:
            for message in constexpr_breaches(kind, parts, values, made):
                yield Breach("MIL049", f"{kind}, {message}", op.path)

    def _all_of(self, block: Block) -> frozenset[str]:
        """All that the operations of an open block define, sooner or later."""
        found = self._coming.get(block.row)
        if found is None:
            found = frozenset(name for op in block.operations for name in op.output_names)
            self._coming[block.row] = found
        return found

    def _nested(
        self,
        op: Operation,
        kind: str,
        blocks: tuple[Block, ...],
        arguments: list[_Argument],
        outputs: list[ValueType | None],
    ) -> Iterator[Breach]:
        """Yield the breaches of the blocks of an operation."""
        for number, block in enumerate(blocks):
            returned: list[tuple[str, ValueType | None]] = []
            yield from self._block(block, returned)
            if len(blocks) != BLOCKS.get(kind):
                continue
            taken: list[ValueType | None] = []
            if kind == "while_loop":
                variables = next((bound for key, bound in arguments if key == "loop_vars"), ())
                taken = [bound.type if bound else None for bound in variables]
            first, count = self._view.graph.block(block.row)[5]
            types = [self._known(declared).type for _, declared in self._named(first, count)]
            yield from _agree(f"inputs of block {number} of {kind}", taken, types, block)
            due, made = outputs, [one for _, one in returned]
            if kind == "while_loop" and number == 0:
                due = [_BOOL]  # coremltools writes one bool with a shape as well, and Core ML runs it
                made = [_BOOL if _is_same_number(one, _BOOL) else one for one in made]
            yield from _agree(f"outputs of block {number} of {kind}", due, made, block)

    # ------------------------------------------------------------------------------------------------------------ types

    def _known(self, stated: bytes | None) -> KnownType:
        found = self._types.get(stated)
        if found is None:
            found = self._types[stated] = KnownType.of(read_type(stated) if stated else None)
        return found

    def _bound(self, stated: bytes | None, is_constant: bool, whole: bytes = b"") -> Bound:
        """Return a name's or value's type, and all its bytes where types of outputs may depend on them."""
        key = stated, is_constant, whole
        found = self._bounds.get(key)
        if found is None:
            declared = self._known(stated).type
            if whole and not (isinstance(declared, TensorType) and declared.dtype in _READ):
                return self._bound(stated, is_constant)
            found = self._bounds[key] = Bound(declared, is_constant, self._elements(whole) if whole else None)
        return found

    def _elements(self, data: bytes) -> tuple[int | str, ...] | None:
        """The elements of a value that is plainly sound; None if it is in a weight file."""
        value = Value(self._view, _codec.Buffer(data), (0, len(data)), "value")
        return tuple(value.unpack(value.type).reshape(-1).tolist()) if value.kind == "tensor" else None

    def _value(self, stated: bytes, whole: bytes, read: Value | None) -> Bound:
        """Return the type of a value by its bytes, or by itself where these come in pieces."""
        return self._bound(stated, True, whole) if read is None or stated else self._keep(Bound(read.type, True))

    def _keep(self, bound: Bound) -> Bound:
        """Keep an object that is identified by id(), because it has no bytes of its own: the id must not be reused."""
        self._kept.append(bound)
        return bound

    def _variable(
        self, name: str, stated: bytes | None, what: str, place: _Place, may_be_state: bool = False
    ) -> Iterator[Breach]:
        yield from _name(name, what, _path(place))
        known = self._known(stated)
        if known.type is None:
            yield Breach("MIL008", f"{what} {quoted(name)}: expected a type, got none", _path(place))
        for rule, message in known.breaches:
            yield Breach(rule, f"{what} {quoted(name)}: {message}", _path(place))
        for dtype, first in self._newer.items():
            if dtype in known.dtypes:
                message = f"{what} {quoted(name)}: expected an opset that has {dtype.mil_text}, {first} or newer"
                yield Breach("MIL048", f"{message}, got {table().opsets[self._opset or 0]}", _path(place))
        if known.has_state and not (may_be_state and isinstance(known.type, StateType)):
            message = f"{what} {quoted(name)}: expected a type without states, got {brief(known.type)}"
            yield Breach("MIL035", message, _path(place))


def _is_one(declared: ValueType | None) -> bool:
    """Whether a type is that of one element, in a tensor of any rank."""
    return isinstance(declared, TensorType) and set(declared.shape) <= {1} and declared.rank >= 0


def _is_same_number(declared: ValueType | None, due: ValueType) -> bool:
    """Whether two types are of one element of a data type: a number may have a shape."""
    is_tensor = isinstance(declared, TensorType) and isinstance(due, TensorType) and declared.dtype == due.dtype
    return is_tensor and _is_one(declared) and _is_one(due)


def _agree(what: str, expected: list[ValueType | None], got: list[ValueType | None], block: Block) -> Iterator[Breach]:
    if len(expected) != len(got):
        yield Breach("MIL034", f"{what}: expected {len(expected)}, got {len(got)}", block.path)
        return
    for number, (one, other) in enumerate(zip(expected, got, strict=True)):
        if not fits(other, one):
            message = f"{what}: expected {brief(one)} as number {number}, got {brief(other)}"
            yield Breach("MIL034", message, block.path)
            return


def _listed(variables: Sequence[tuple[str, ValueType | None]]) -> str:
    first = islice(variables, 20)  # the rest does not fit into a message
    words = (abbreviated(name) if one is None else f"{brief(one)} {abbreviated(name)}" for name, one in first)
    return abbreviated(", ".join(words) or "none")
