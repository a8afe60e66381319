"""Joins functions that run one after another: links values, shares equal operations, renames colliding values."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

from .. import _codec
from ..blobs.equal import Stretch, first_equal
from ..dtypes import DType
from ..errors import ProgramError, UnsupportedError
from ..program.splice import Edit, splice
from ..program.types import StateType, TensorType, ValueType
from ..program.view import Block, Function, Operation
from ..program.wire_edits import combined, fields_of, reference_edit
from ..wording import escape
from .flow import CAST_SUFFIX, NOT_REPEATABLE

# Operation {2 inputs, 3 outputs, 4 blocks}; Block {1 inputs, 2 outputs, 3 operations}; Argument.Binding {1 name}.
_INPUTS, _OUTPUTS, _BLOCKS = 2, 3, 4
_BLOCK_INPUTS, _BLOCK_OUTPUTS, _BLOCK_OPERATIONS = 1, 2, 3
_SHARED = "@shared"


@dataclass(eq=False)
class JoinedPart:
    """A function of one of the models that are joined."""

    path: str  # of the model
    buffer: _codec.Buffer  # its model file
    function: Function  # the function
    held: dict[int, list[_codec.Constant]]  # row of an operation -> the constants in weight files that it holds
    stretch: Callable[[_codec.Constant], Stretch]  # returns the bytes of the record that a constant refers to
    names: dict[str, str] = field(default_factory=dict)  # old name -> name in the joined function, where they differ
    dropped: set[int] = field(default_factory=set)  # rows of operations that an earlier stage has too

    @property
    def block(self) -> Block:
        """The block of the function. Raises: UnsupportedError: it has several."""
        blocks = self.function.blocks
        if len(blocks) != 1:
            message = f"block specializations of function {self.function.name}: expected one, got {', '.join(blocks)}"
            raise UnsupportedError(message, file=self.path)
        return self.function.block

    def name(self, name: str) -> str:
        """Return what a value is called in the joined function."""
        return self.names.get(name, name)

    def rename(self, name: str, new: str) -> None:
        """Give a value another name in the joined function."""
        if new != name:
            self.names[name] = new


@dataclass(eq=False)
class Interface:
    """What a joined function takes and returns."""

    inputs: dict[str, int] = field(default_factory=dict)  # name -> number of the stage whose description it has
    states: dict[str, int] = field(default_factory=dict)
    outputs: dict[str, int] = field(default_factory=dict)  # name -> number of the stage that computes it
    # (number of the stage that takes it, name) -> number of the stage that computes it
    linked: dict[tuple[int, str], int] = field(default_factory=dict)
    # those links whose casts are dropped: the value before the cast is taken
    uncast: set[tuple[int, str]] = field(default_factory=set)


def interface_of(stages: Sequence[JoinedPart], kept: Sequence[str]) -> Interface:
    """Link outputs of each stage to inputs of later ones that have their names.

    `kept`: outputs that the joined function returns although a later stage takes them.
    Raises: ProgramError: types that differ; an output that another stage has too; a state of two stages.
    """
    found = Interface()
    types: dict[str, ValueType | None] = {}
    made: dict[str, int] = {}
    for number, stage in enumerate(stages):
        for name, kind in _inputs(stage):
            if isinstance(kind, StateType):
                if name in found.states:
                    other = stages[found.states[name]].path
                    message = f"state {name!r}: expected it in one of the models only, got it in {other} too"
                    raise ProgramError(escape(f"{message}; as one state it would keep other values"), file=stage.path)
                found.states[name] = number
                continue
            if name in types and types[name] != kind:
                message = f"input {name!r}: expected {types[name]}, as in the models before it, got {kind}"
                raise ProgramError(escape(message), file=stage.path)
            if name in made:
                found.linked[number, name] = made[name]
            elif name not in found.inputs:
                found.inputs[name] = number
                types[name] = kind
        for name, kind in _outputs(stage):
            if name in found.inputs:
                if isinstance(stage.block.defining(name), Function):
                    found.outputs.setdefault(name, number)
                    continue
                message = f"output {name!r}: expected another name than that of an input of the whole, got the same"
                if (taker := found.inputs[name]) < number:
                    message += f" as {stages[taker].path} takes; list models in the order in which they run"
                raise ProgramError(escape(message), file=stage.path)
            taken = {link for (_, link), maker in found.linked.items() if maker == made.get(name)}
            if name in made and name not in taken:
                other = stages[made[name]].path
                message = f"output {name!r}: expected it from one of the models only, got it from {other} too"
                raise ProgramError(escape(message), file=stage.path)
            made[name], types[name] = number, kind
    consumed = {(name, maker) for (_, name), maker in found.linked.items()}
    found.outputs |= {
        name: maker for name, maker in made.items() if (name, maker) not in consumed or name in kept
    }  # fmt: skip
    if not found.outputs:
        raise ProgramError("outputs: expected models that return something that no later one takes, got none")
    order = {name: number for number, name in enumerate(kept)}
    found.outputs = dict(sorted(found.outputs.items(), key=lambda row: order.get(row[0], len(order))))
    return found


def _inputs(stage: JoinedPart) -> Iterator[tuple[str, ValueType | None]]:
    for variable in stage.function.inputs:
        yield variable.name, variable.type


def _outputs(stage: JoinedPart) -> Iterator[tuple[str, ValueType | None]]:
    block = stage.block
    for name in block.outputs:
        definer = block.defining(name)
        if definer is None:
            raise ProgramError(
                escape(f"output {name!r}: expected an operation that computes it, got none"), file=stage.path
            )
        variables = definer.inputs if isinstance(definer, Function) else definer.outputs
        yield name, next(one.type for one in variables if not isinstance(one, str) and one.name == name)


# ---------------------------------------------------------------------------------------------------------------- names


def settle_names(stages: Sequence[JoinedPart], interface: Interface) -> int:
    """Find the operations that several stages have, and give new names to values whose names are in use.

    Sets `names` and `dropped` of every stage.

    Returns: The number of values with a new name.
    """
    used = {*interface.inputs, *interface.states, *interface.outputs}
    every = used | {name for stage in stages for op in stage.block.operations for name in _defined(op)}
    known: dict[str, tuple[JoinedPart, Operation]] = {}
    renamed = 0
    _drop_casts(stages, interface)
    for number, stage in enumerate(stages):
        own = {name for name, _ in _inputs(stage)}
        own.update(name for op in stage.block.operations for name in op.output_names)
        outer = set(used)  # what a nested block of this stage would hide
        for name in [name for name, _ in _inputs(stage) if (number, name) in interface.linked]:
            maker = stages[interface.linked[number, name]]
            name = name.removesuffix(CAST_SUFFIX) if (number, name) in interface.uncast else name
            stage.rename(name, maker.name(name))
        for op in stage.block.operations:
            if op.row in stage.dropped:
                continue
            before = known.setdefault(op.name, (stage, op))
            is_returned = any(interface.outputs.get(name) == number for name in op.output_names)
            if before[0] is not stage and not is_returned and _is_shared(stage, op, *before):
                stage.dropped.add(op.row)
                for name in op.output_names:
                    stage.rename(name, before[0].name(name))
                continue
            taken = [name for name in op.output_names if name in used and interface.outputs.get(name) != number]
            taken += [name for name in _nested(op) if name in outer and name not in own and name not in stage.names]
            for name in taken:
                new = next(f"{name}__{n}" for n in count(1) if f"{name}__{n}" not in every)
                every.add(new)
                stage.rename(name, new)
                renamed += 1
            used.update(map(stage.name, op.output_names))
    return renamed


def _drop_casts(stages: Sequence[JoinedPart], interface: Interface) -> None:
    """Drop the casts to float32 and back that `chunk` made to pass float16 on."""
    for port, maker in {(port, maker) for (_, port), maker in interface.linked.items()}:
        name = port.removesuffix(CAST_SUFFIX)
        takers = [taker for (taker, one), origin in interface.linked.items() if (one, origin) == (port, maker)]
        before = stages[maker].block.defining(port)
        if name == port or not isinstance(before, Operation) or not _is_cast(before, name, port, DType.FLOAT32):
            continue
        after = []
        for taker in takers:
            readers = [one.reader for one in stages[taker].function.consumers if one.name == port]
            after += [op for op in readers if isinstance(op, Operation) and _is_cast(op, port, name, DType.FLOAT16)]
            if len(readers) != 1:
                after.clear()
                break
        if len(after) != len(takers):
            continue
        for taker, op in zip(takers, after, strict=True):
            stages[taker].dropped.add(op.row)
            interface.uncast.add((taker, port))
        others = [one for one in before.consumers if isinstance(one.reader, Operation)]
        if interface.outputs.get(port) != maker and not others:
            stages[maker].dropped.add(before.row)


def _is_cast(op: Operation, source: str, target: str, dtype: DType) -> bool:
    """Whether an operation does nothing but cast a value to a value of a dtype."""
    x = op.inputs.get("x", ())
    kind = op.outputs[0].type if len(op.outputs) == 1 else None
    is_named = len(x) == 1 and x[0].name == source and op.output_names == (target,)
    return op.type == "cast" and is_named and isinstance(kind, TensorType) and kind.dtype is dtype


def _defined(op: Operation) -> Iterator[str]:
    """Yield the names that an operation defines, in its blocks too."""
    yield from op.output_names
    yield from _nested(op)


def _nested(op: Operation) -> Iterator[str]:
    """Yield the names that the blocks of an operation define."""
    for block in op.blocks:
        for variable in block.inputs:
            yield variable.name
        for inner in block.operations:
            yield from _defined(inner)


def _is_shared(stage: JoinedPart, op: Operation, other: JoinedPart, before: Operation) -> bool:
    """Whether two operations of one name compute the same from the same values."""
    if op.type != before.type or op.block_rows or before.block_rows or op.type.startswith(NOT_REPEATABLE):
        return False
    own, theirs = stage.held.get(op.row, []), other.held.get(before.row, [])
    if len(own) != len(theirs):
        return False
    if _without_places(stage, op, own) != _without_places(other, before, theirs):
        return False
    reads = [one.name for bindings in op.inputs.values() for one in bindings if one.name is not None]
    if any(stage.name(name) != other.name(name) for name in reads):
        return False
    if any(one.name in reads and isinstance(one.type, StateType) for one in stage.function.inputs):
        return False
    return all(first_equal([other.stretch(b), stage.stretch(a)])[1] == 0 for a, b in zip(own, theirs, strict=True))


def _without_places(stage: JoinedPart, op: Operation, held: Sequence[_codec.Constant]) -> bytes:
    """Return the bytes of an operation, with its references to weight files all the same."""
    edits = [reference_edit(stage.buffer, constant, _SHARED, 1) for constant in held]
    return splice(stage.buffer, op.message, combined(edits)).tobytes()


# ---------------------------------------------------------------------------------------------------------------- edits


def rename_edits(stage: JoinedPart) -> Iterator[Edit]:
    """Yield the edits that give values their new names, where they are computed and where they are read."""
    if not stage.names:
        return
    for op in stage.block.operations:
        if op.row not in stage.dropped and not stage.names.keys().isdisjoint(_mentioned(op)):
            yield from _in_operation(stage, op.message)


def _mentioned(op: Operation) -> Iterator[str]:
    yield from op.output_names
    for bindings in op.inputs.values():
        for binding in bindings:
            if binding.name is not None:
                yield binding.name
    for block in op.blocks:
        yield from block.outputs
        for variable in block.inputs:
            yield variable.name
        for inner in block.operations:
            yield from _mentioned(inner)


def _in_operation(stage: JoinedPart, span: tuple[int, int]) -> Iterator[Edit]:
    for one in fields_of(stage.buffer, span):
        if one.wire != 2:
            continue
        if one.number == _OUTPUTS:
            yield from _texts(stage, one.span, 1)
        elif one.number == _BLOCKS:
            yield from _in_block(stage, one.span)
        elif one.number == _INPUTS:
            for argument in fields_of(stage.buffer, one.span):
                if argument.number == 2 and argument.wire == 2:
                    for binding in fields_of(stage.buffer, argument.span):
                        if binding.number == 1 and binding.wire == 2:
                            yield from _texts(stage, binding.span, 1)


def _in_block(stage: JoinedPart, span: tuple[int, int]) -> Iterator[Edit]:
    yield from _texts(stage, span, _BLOCK_OUTPUTS)
    for one in fields_of(stage.buffer, span):
        if one.number == _BLOCK_INPUTS and one.wire == 2:
            yield from _texts(stage, one.span, 1)
        elif one.number == _BLOCK_OPERATIONS and one.wire == 2:
            yield from _in_operation(stage, one.span)


def _texts(stage: JoinedPart, span: tuple[int, int], number: int) -> Iterator[Edit]:
    """Yield edits of the string fields of a number in a message."""
    view = memoryview(stage.buffer)
    for one in fields_of(stage.buffer, span):
        if one.number == number and one.wire == 2 and one.nbytes:
            new = stage.names.get(str(view[one.offset : one.end], "utf-8", "replace"))
            if new is not None:
                yield Edit(one.offset, one.nbytes, new.encode())
