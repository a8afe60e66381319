"""Rules of the MIL specification that a Program must keep: names, scope, types; docs/rules.md has their sources."""

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Literal, NamedTuple

from .types import DictionaryType, ListType, TensorType, TupleType, ValueType
from .view import Block, Function, Operation, ProgramView, Variable

Severity = Literal["error", "warning"]


class Rule(NamedTuple):
    """One demand of the specification.

    Attributes:
        severity: "error" where the specification or a loader refuses what breaks it, "warning" where tools differ.
        demand: what must hold.
        remedy: what to do.
    """

    severity: Severity
    demand: str
    remedy: str


RULES = {
    "MIL001": Rule("error", "names match [A-Za-z_][A-Za-z0-9_@]*", "rename it"),
    "MIL002": Rule("error", "a name is bound once in its block", "rename one of the two"),
    "MIL003": Rule(
        "error", "a name that is read is defined in its block or around it", "define it, or read another one"
    ),
    "MIL004": Rule("error", "a name is defined before it is read", "move the operation that defines it up"),
    "MIL005": Rule("error", "an output of a block is a name that the block sees", "return another name"),
    "MIL006": Rule("error", "a function's opset has a block specialization", "set the opset to one of the keys"),
    "MIL007": Rule("error", "all block specializations of a function return the same", "make their outputs match"),
    "MIL008": Rule("error", "inputs and outputs have a type", "state the type"),
    "MIL009": Rule("error", "a tensor type has a known data type", "use one that the opset has"),
    "MIL010": Rule("error", "the rank is the number of dimensions, or -1 where that varies", "correct the rank"),
    "MIL011": Rule("error", "lists, tuples, dictionaries and states state the types inside", "state them"),
    "MIL012": Rule("error", "an input is bound to one name or value at least", "bind it, or leave the input out"),
}
"""Every rule by its code. Codes are never given to another rule."""

_is_identifier = re.compile(r"[A-Za-z_][A-Za-z0-9_@]*").fullmatch


class Breach(NamedTuple):
    """Where a Program breaks a rule.

    Attributes:
        rule: its code.
        message: what was expected, and what was found.
        where: path in the Program.
    """

    rule: str
    message: str
    where: str


def breaches(view: ProgramView) -> Iterator[Breach]:
    """Yield every place where a Program breaks a rule, in Program order.

    Raises:
        FormatError: bytes that are malformed; the rest of the Program is not looked at.
    """
    for key in view.attributes:
        if _is_identifier(key) is None:
            yield Breach("MIL001", f"attribute: expected a name such as x_1, got {_quoted(key)}", "program")
    for function in view.functions.values():
        yield from _in_function(function)


def _in_function(function: Function) -> Iterator[Breach]:
    yield from _name(function.name.removeprefix(function.view.prefix), "function", function)
    yield from _keys(function.attributes, function)
    inputs = function.inputs
    yield from _variables(inputs, "input", function)
    seen: set[str] = set()
    for name, _ in inputs:
        if name in seen:
            yield Breach("MIL002", f"input: expected a name that no other has, got {_quoted(name)}", function.name)
        seen.add(name)
    blocks = function.blocks
    if function.opset not in blocks:
        have = ", ".join(map(_quoted, blocks)) or "none"
        words = f"block specialization: expected one for the opset {_quoted(function.opset)}, got {have}"
        yield Breach("MIL006", words, function.name)
    expected: tuple[str, str] | None = None  # what the first one returns
    for block in blocks.values():
        yield from _name(block.name, "block specialization", function)
        yield from _Scope(inputs).visit(block)
        returned = _returned(block)
        if expected is None:
            expected = block.name, returned
        elif returned != expected[1]:
            words = f"outputs: expected {expected[1]} as in {_quoted(expected[0])}, got {returned}"
            yield Breach("MIL007", words, block.path)


def _returned(block: Block) -> str:
    """Names and types of what a block returns."""
    found = []
    for name in block.outputs:
        definer = block.defining(name)
        variables: tuple[Variable, ...] = ()
        if definer is not None:
            variables = definer.inputs if isinstance(definer, Function | Block) else definer.outputs
        found.append(next((str(v) for v in variables if v.name == name), name))
    return ", ".join(found) or "none"


class _Scope:
    """What a block sees, while its operations are gone through in Program order."""

    def __init__(self, inputs: tuple[Variable, ...]) -> None:
        self._visible = {v.name: 1 for v in inputs}  # in how many of the open blocks a name is defined so far
        self._coming: list[frozenset[str]] = []  # what each open block defines, sooner or later

    def visit(self, block: Block) -> Iterator[Breach]:
        """Yield the breaches of a block and of those nested in it."""
        own: set[str] = set()
        self._coming.append(frozenset(name for op in block.operations for name in op.output_names))
        yield from _keys(block.attributes, block)
        inputs = block.inputs
        yield from _variables(inputs, "input", block)
        yield from self._define(inputs, own, block)
        for op in block.operations:
            yield from self._visit_operation(op, own)
        for name in block.outputs:
            yield from _name(name, "output of the block", block)
            if name not in self._visible:
                words = f"output of the block: expected a name that it sees, got {_quoted(name)}"
                yield Breach("MIL005", words, block.path)
        self._coming.pop()
        for name in own:
            self._visible[name] -= 1
            if not self._visible[name]:
                del self._visible[name]

    def _visit_operation(self, op: Operation, own: set[str]) -> Iterator[Breach]:
        yield from _keys(op.attributes, op)
        for key, bindings in op.inputs.items():
            if not bindings:
                words = f"input {_quoted(key)}: expected a name or a value, got neither"
                yield Breach("MIL012", words, op.path)
            for binding in bindings:
                name = binding.name
                if name is None or name in self._visible:
                    continue
                is_late = any(name in names for names in self._coming)
                words = f"input {_quoted(key)}: expected a name that is defined before, got {_quoted(name)}"
                yield Breach("MIL004" if is_late else "MIL003", words, op.path)
        for block in op.blocks:
            yield from self.visit(block)
        outputs = op.outputs
        yield from _variables(outputs, "output", op)
        yield from self._define(outputs, own, op)

    def _define(self, variables: tuple[Variable, ...], own: set[str], place: Block | Operation) -> Iterator[Breach]:
        for name, _ in variables:
            if name in own:
                words = f"name: expected one that its block does not have yet, got {_quoted(name)}"
                yield Breach("MIL002", words, place.path)
            else:
                own.add(name)
                self._visible[name] = self._visible.get(name, 0) + 1


_Place = Block | Operation | Function


def _path(place: _Place) -> str:
    return place.name if isinstance(place, Function) else place.path


def _quoted(name: str) -> str:
    """A name for a message; those from files may have any length."""
    return repr(name if len(name) <= 120 else name[:100] + "..." + name[-17:])


def _name(name: str, what: str, place: _Place) -> Iterator[Breach]:
    if _is_identifier(name) is None:
        yield Breach("MIL001", f"{what}: expected a name such as x_1, got {_quoted(name)}", _path(place))


def _keys(attributes: Iterable[str], place: _Place) -> Iterator[Breach]:
    for key in attributes:
        yield from _name(key, "attribute", place)


def _variables(variables: tuple[Variable, ...], what: str, place: _Place) -> Iterator[Breach]:
    for name, declared in variables:
        yield from _name(name, what, place)
        if declared is None:
            yield Breach("MIL008", f"{what} {_quoted(name)}: expected a type, got none", _path(place))
            continue
        for rule, words in _type(declared):
            yield Breach(rule, f"{what} {_quoted(name)}: {words}", _path(place))


@lru_cache(maxsize=1024)
def _type(declared: ValueType | None) -> tuple[tuple[str, str], ...]:
    """What a type breaks: (rule, words)."""
    if isinstance(declared, TensorType):
        found = []
        if isinstance(declared.dtype, int):
            found.append(("MIL009", f"expected a data type that is known, got number {declared.dtype}"))
        count = len(declared.shape)
        if declared.rank != count and not (declared.rank == -1 and (declared.variadic or not count)):
            found.append(("MIL010", f"expected a rank of {count}, its number of dimensions, got {declared.rank}"))
        return tuple(found)
    if declared is None:
        return (("MIL011", "expected a type inside, got none"),)
    if isinstance(declared, ListType):
        inner: tuple[ValueType | None, ...] = (declared.element,)
    elif isinstance(declared, TupleType):
        inner = declared.members
    else:
        inner = (declared.key, declared.value) if isinstance(declared, DictionaryType) else (declared.wrapped,)
    return tuple(breach for one in inner for breach in _type(one))
