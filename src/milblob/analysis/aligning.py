"""Pairs the operations of two Programs: a list of rules, each applied to the operations that are still unpaired.

Names are not enough. Converters number operations ("linear_3") and mark precision in their names
("linear_3_cast_fp16"), so two conversions of one network name most operations differently. The inputs of an operation
and the uses of its outputs do not depend on the conversion, so the rules also match definition-use chains.
"""

import re
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from functools import cached_property
from typing import Any

from ..model.model import Model
from ..progress import ProgressCounter
from .operations import (
    ComparedFunction,
    ComparedOperation,
    CompressedArgument,
    ConstantArgument,
    Input,
    Key,
    OperationOutput,
    functions,
    origin,
)

_MARKS = re.compile(
    r"_(?:cast_to_|cast_|to_)(?:fp16|fp32|fp64|bf16|u?int(?:8|16|32))(?=$|[./\[_])"
    r"|_(?:quantized|palettized|sparsified|promoted)(?=$|[./\[_])"
)
_NUMBERED_CAST = re.compile(r"(?:^|/)cast_\d+$")


def plain(name: str) -> str:
    """Return a name without what coremltools adds for a precision or a compression: "_to_fp16", "_cast_fp16"."""
    return _MARKS.sub("", name)


class Alignment:
    """The operations of two models, found on first access. `counter`: notes each of them."""

    def __init__(self, a: Model, b: Model, counter: ProgressCounter) -> None:
        self.models, self._counter = (a, b), counter

    @cached_property
    def functions(self) -> list[tuple[tuple[str, str], ComparedFunction | None, ComparedFunction | None]]:
        """Names of a function of A and one of B, and both; None where one side lacks it.

        Those of A come in their order, then those that only B has. Two models of one function each pair it by itself.
        """
        first, second = (dict(functions(model, self._counter)) for model in self.models)
        if len(first) == len(second) == 1:
            ((old, ours),), ((new, theirs),) = first.items(), second.items()
            return [((old, new), ours, theirs)]
        every = dict.fromkeys([*first, *second])
        return [((name, name), first.get(name), second.get(name)) for name in every]

    @cached_property
    def partners(self) -> dict[Key, ComparedOperation]:
        """Key of an operation of A -> its partner in B. Casts that change only the precision are among them."""
        found: dict[Key, ComparedOperation] = {}
        for _, ours, theirs in self.functions:
            if ours is not None and theirs is not None:
                found |= {old.key: new for old, new in align(ours, theirs).items()}
        return found


def align(a: ComparedFunction, b: ComparedFunction) -> dict[ComparedOperation, ComparedOperation]:
    """Find the operation of B for each of A that has one."""
    pairs = _Pairs(_Reading(a), _Reading(b))
    if not pairs.by_all_names():
        for rule in _RULES:
            rule(pairs)
    pairs.add_casts()
    return pairs.found


class _Reading:
    """A function with its casts of precision left out."""

    def __init__(self, function: ComparedFunction) -> None:
        self.ops = [op for op in function.ops if op.source is None]  # the other operations, in Program order
        self.casts = [op for op in function.ops if op.source is not None]  # the casts
        # operation -> (parameter, number, what is read) of everything that it reads
        self.reads: dict[ComparedOperation, list[tuple[str, int, Any]]] = {}
        # operation -> (reader, parameter, number, index of the output that is read)
        self.readers: dict[ComparedOperation, list[tuple[ComparedOperation, str, int, int]]] = {
            op: [] for op in self.ops
        }
        # operation -> (number among the outputs of all blocks, index of the output that is returned)
        self.returned: dict[ComparedOperation, list[tuple[int, int]]] = {}
        for op in self.ops:
            rows = self.reads[op] = []
            for key in sorted(op.arguments):
                for number, argument in enumerate(op.arguments[key]):
                    read = origin(argument)
                    rows.append((key, number, read))
                    if isinstance(read, OperationOutput) and read.op in self.readers:
                        self.readers[read.op].append((op, key, number, read.number))
        for number, (_, _, argument) in enumerate(function.returns):
            read = origin(argument)
            if isinstance(read, OperationOutput):
                self.returned.setdefault(read.op, []).append((number, read.number))


_Numbers = dict[Hashable, int]
"""A number for every signature, the same on both sides."""


def _upward(side: _Reading, numbers: _Numbers) -> dict[ComparedOperation, int]:
    """Number every operation by its type and all that it is computed from; constants count by their shape alone."""
    found: dict[ComparedOperation, int] = {}
    for op in side.ops:
        reads = tuple((key, number, _signature(read, found)) for key, number, read in side.reads[op])
        found[op] = numbers.setdefault((op.type, op.output_count, reads), len(numbers))
    return found


def _signature(read: Any, found: dict[ComparedOperation, int]) -> Hashable:
    if isinstance(read, OperationOutput):
        return "result", found.get(read.op, -1), read.number
    if isinstance(read, Input):
        return "input", -1 if read.op is None else found.get(read.op, -1), read.block, read.number
    if isinstance(read, ConstantArgument | CompressedArgument):
        return "constant", read.shape
    return "name", plain(read)


def _downward(side: _Reading, numbers: _Numbers) -> dict[ComparedOperation, int]:
    """Number every operation by its type and all that is computed from it."""
    found: dict[ComparedOperation, int] = {}
    for op in reversed(side.ops):
        readers = sorted((found.get(reader, -1), *row) for reader, *row in side.readers[op])
        returned = tuple(side.returned.get(op, ()))
        shapes = tuple(
            (key, read.shape)
            for key, _, read in side.reads[op]
            if isinstance(read, ConstantArgument | CompressedArgument)
        )
        signature = (op.type, op.output_count, tuple(readers), returned, shapes)
        found[op] = numbers.setdefault(signature, len(numbers))
    return found


class _Pairs:
    """The operations that were paired so far."""

    def __init__(self, a: _Reading, b: _Reading) -> None:
        self.sides = a, b  # A and B
        # operation of A -> operation of B; back: the other way
        self.found: dict[ComparedOperation, ComparedOperation] = {}
        self.back: dict[ComparedOperation, ComparedOperation] = {}
        self._new: deque[tuple[ComparedOperation, ComparedOperation]] = deque()

    def add(self, old: ComparedOperation, new: ComparedOperation) -> None:
        """Add a pair of operations that are in none."""
        self.found[old] = new
        self.back[new] = old
        self._new.append((old, new))

    def left(self, number: int) -> list[ComparedOperation]:
        """Return the operations of A (0) or B (1) that are in no pair."""
        done = self.back if number else self.found
        return [op for op in self.sides[number].ops if op not in done]

    @cached_property
    def numbers(self) -> tuple[list[dict[ComparedOperation, int]], list[dict[ComparedOperation, int]]]:
        """The numbers of both sides, upward and downward."""
        up: _Numbers = {}
        down: _Numbers = {}
        return [_upward(side, up) for side in self.sides], [_downward(side, down) for side in self.sides]

    def add_equal(self, key: Callable[[int, ComparedOperation], Hashable]) -> None:
        """Pair what has one key on both sides; `key` gets the side, 0 or 1, and an operation."""
        groups: list[dict[Hashable, list[ComparedOperation]]] = [{}, {}]
        for number, group in enumerate(groups):
            for op in self.left(number):
                group.setdefault(key(number, op), []).append(op)
        for signature, ours in groups[0].items():
            self.add_alike(ours, groups[1].get(signature, []))

    def add_alike(self, ours: list[ComparedOperation], theirs: list[ComparedOperation]) -> None:
        """Pair operations that differ only in their names, in order, if the counts match and names do not decide."""
        if not ours or not theirs:
            return
        if len(ours) > 1 or len(theirs) > 1:
            names = [_unique(group) for group in (ours, theirs)]
            do_names_agree = len(names[0]) == len(ours) and names[0].keys() == names[1].keys()
            if do_names_agree or len(ours) != len(theirs):
                for name, old in names[0].items():
                    if name in names[1]:
                        self.add(old, names[1][name])
                return
        for old, new in zip(ours, theirs, strict=True):
            self.add(old, new)

    def by_all_names(self) -> bool:
        """Pair by name if that pairs everything, and what is read is then paired too; return whether it does."""
        names = [_unique(side.ops) for side in self.sides]
        if names[0].keys() != names[1].keys() or any(
            len(known) != len(side.ops) for known, side in zip(names, self.sides, strict=True)
        ):
            return False
        partners = {old: names[1][name] for name, old in names[0].items()}
        for old, new in partners.items():
            theirs = {(key, number): read for key, number, read in self.sides[1].reads[new]}
            if old.type != new.type or not all(
                _are_partners(read, theirs.get((key, number)), partners)
                for key, number, read in self.sides[0].reads[old]
            ):
                return False
        for old, new in partners.items():
            self.add(old, new)
        return True

    def add_neighbours(self) -> None:
        """Of the same type, and read by a pair as the same parameter, or reading it; as long as that yields pairs."""
        while self._new:
            old, new = self._new.popleft()
            reads = {(key, number): read for key, number, read in self.sides[1].reads[new]}
            for key, number, read in self.sides[0].reads[old]:
                other = reads.get((key, number))
                if (
                    isinstance(read, OperationOutput)
                    and isinstance(other, OperationOutput)
                    and read.number == other.number
                ):
                    self._add_if_alike([read.op], [other.op])
            groups: list[dict[Hashable, list[ComparedOperation]]] = [{}, {}]
            for group, side, op in zip(groups, self.sides, (old, new), strict=True):
                for reader, *row in side.readers[op]:
                    group.setdefault((reader.type, *row), []).append(reader)
            for where, ours in groups[0].items():
                self._add_if_alike(ours, groups[1].get(where, []))

    def _add_if_alike(self, ours: list[ComparedOperation], theirs: list[ComparedOperation]) -> None:
        ours = [op for op in ours if op not in self.found and op.type in {other.type for other in theirs}]
        theirs = [op for op in theirs if op not in self.back and op.type in {other.type for other in ours}]
        self.add_alike(ours, theirs)

    def add_casts(self) -> None:
        """Pair casts of the same thing to the same dtype, then what has the name of a cast."""
        groups: list[dict[Hashable, list[ComparedOperation]]] = [{}, {}]
        for number, (group, side) in enumerate(zip(groups, self.sides, strict=True)):
            for cast in side.casts:
                source = cast.source
                if isinstance(source, OperationOutput):
                    where: Any = source.op if number else self.found.get(source.op)
                    group.setdefault((where, source.number, cast.dtype), []).append(cast)
                else:
                    group.setdefault((source.block, source.number, source.name, cast.dtype), []).append(cast)
        for key, ours in groups[0].items():
            for old, new in zip(ours, groups[1].get(key, []), strict=False):
                self.add(old, new)
        given: list[dict[str, ComparedOperation]] = [{}, {}]
        for number, (names, side) in enumerate(zip(given, self.sides, strict=True)):
            done = self.back if number else self.found
            left = (op for op in (*side.ops, *side.casts) if op not in done)
            names |= {op.name: op for op in left if not _NUMBERED_CAST.search(op.name)}
        for name, old in given[0].items():
            if name in given[1]:
                self.add(old, given[1][name])


def _unique(ops: Iterable[ComparedOperation]) -> dict[str, ComparedOperation]:
    """Return operations by their plain names; leaves out a name of several operations."""
    found: dict[str, ComparedOperation] = {}
    several: set[str] = set()
    for op in ops:
        name = plain(op.name)
        if found.setdefault(name, op) is not op:
            several.add(name)
    return {name: op for name, op in found.items() if name not in several}


def _are_partners(read: Any, other: Any, partners: dict[ComparedOperation, ComparedOperation]) -> bool:
    if isinstance(read, OperationOutput):
        return isinstance(other, OperationOutput) and partners.get(read.op) is other.op and read.number == other.number
    return not isinstance(other, OperationOutput)


# ---------------------------------------------------------------------------------------------------------------- rules


_RULES: tuple[Callable[[_Pairs], None], ...] = (
    # The same computation before it and after it; only before it, when uses may differ; only after it.
    lambda pairs: pairs.add_equal(lambda side, op: tuple(numbers[side][op] for numbers in pairs.numbers)),
    lambda pairs: pairs.add_equal(lambda side, op: pairs.numbers[0][side][op]),
    lambda pairs: pairs.add_equal(lambda side, op: pairs.numbers[1][side][op]),
    _Pairs.add_neighbours,
    lambda pairs: pairs.add_equal(lambda _, op: (op.type, plain(op.name))),
    _Pairs.add_neighbours,
    lambda pairs: pairs.add_equal(lambda _, op: plain(op.name)),  # of another type: the operation was replaced
)
