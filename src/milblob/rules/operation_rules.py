"""Rules of the specification about operations: which an opset has, and with which arguments.

operations.txt has their entries in coremltools' registry; tests/data/make_operations.py makes it.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from ..dtypes import DType
from ..program.types import ListType, StateType, TensorType, ValueType
from .catalog import listed, quoted
from .type_rules import brief

_FREE = ("custom_layer",)  # any arguments; and operations of a dialect, which have a dot in their names
BLOCKS = {"cond": 2, "while_loop": 2}


class Argument(NamedTuple):
    """One argument of an operation."""

    kind: str  # "tensor", "list", "state", "tuple" for any number of bindings, or "any"
    dtypes: frozenset[DType]  # of a tensor; none for any
    group: str  # arguments of one group have the same data type; "" for none
    is_constant: bool  # it is known before the model runs
    is_optional: bool  # it may be left out


class OperationTable(NamedTuple):
    """The operations of the opsets that milblob knows."""

    opsets: tuple[str, ...]  # from the oldest to the newest
    # operation -> [(index of the first opset that has these, argument -> Argument)], the oldest first
    versions: dict[str, list[tuple[int, dict[str, Argument]]]]

    def find(self, name: str, opset: int) -> dict[str, Argument] | None:
        """Return the arguments of an operation in an opset, by its index; None if it does not have it."""
        found = None
        for first, arguments in self.versions.get(name, ()):
            if first <= opset:
                found = arguments
        return found

    def later(self, name: str, opset: int) -> Iterator[tuple[str, dict[str, Argument]]]:
        """Yield the forms of an operation in newer opsets: opset, arguments."""
        for first, arguments in self.versions.get(name, ()):
            if first > opset:
                yield self.opsets[first], arguments


@cache
def table() -> OperationTable:
    """Read operations.txt."""
    from pkgutil import get_data

    opsets: tuple[str, ...] = ()
    versions: dict[str, list[tuple[int, dict[str, Argument]]]] = {}
    for line in (get_data(__package__, "operations.txt") or b"").decode().splitlines():
        if line.startswith("#"):
            continue
        name, *rest = line.split(" ")
        if not opsets:
            opsets = tuple(rest)
            continue
        versions.setdefault(name, []).append((opsets.index(rest[0]), dict(_arguments(rest[1:]))))
    return OperationTable(opsets, versions)


def _arguments(words: Iterable[str]) -> Iterator[tuple[str, Argument]]:
    groups: dict[str, frozenset[DType]] = {}
    for word in words:
        key, _, kind = word.partition(":")
        is_optional, is_constant = kind.endswith("?"), "!" in kind
        kind = kind.rstrip("?!")
        group, _, dtypes = kind.rpartition("=")
        if kind in ("tuple", "list", "state", "any"):
            yield key, Argument(kind, frozenset(), "", is_constant, is_optional)
            continue
        if kind in groups:
            group, found = kind, groups[kind]
        else:
            found = frozenset(_dtype(one) for one in dtypes.split(","))
            groups[group or key] = found
        yield key, Argument("tensor", found, group, is_constant, is_optional)


@cache
def _dtype(text: str) -> DType:
    return next(dtype for dtype in DType if dtype.mil_text == text)


def opset_index(opset: str) -> int | None:
    """Return which of the known opsets one is, by the name of a Program or of MIL text; None for any other."""
    if re.fullmatch("ios[0-9]{2}", opset):  # as MIL text spells it
        opset = f"CoreML{int(opset[3:]) - 10}"
    opsets = table().opsets
    return opsets.index(opset) if opset in opsets else None


@cache
def newer_dtypes(opset: int | None) -> dict[DType, str]:
    """Return the data types that an opset, by its index, does not have yet, each with the first opset that has it.

    Only types below a byte: coremltools writes wider ones into constants of every opset, for any operation.
    """
    if opset is None:
        return {}
    operations, found = table(), dict[DType, int]()
    for versions in operations.versions.values():
        for first, arguments in versions:
            for argument in arguments.values():
                for dtype in argument.dtypes:
                    if dtype.is_sub_byte:
                        found[dtype] = min(found.get(dtype, first), first)
    return {dtype: operations.opsets[first] for dtype, first in found.items() if first > opset}


class Bound(NamedTuple):
    """The binding of an argument."""

    type: ValueType | None  # of the name or value; None if it is not known
    is_constant: bool  # whether it is known before the model runs
    # the elements of a small constant of integers, bools or strings; None for all else
    value: tuple[int | str, ...] | None = None


def operation_breaches(
    name: str, opset: int, arguments: Sequence[tuple[str, Sequence[Bound | None]]], block_count: int
) -> Iterator[tuple[str, str]]:
    """Yield the breaches of an operation's arguments: (rule, words).

    `opset`: its index. `arguments`: key and bindings, None for an undefined one; also attributes of operations whose
    arguments stand there. `block_count`: how many blocks it has.
    """
    if name in _FREE or "." in name:
        return
    operations = table()
    known = operations.find(name, opset)
    if known is None:
        newer = next(operations.later(name, opset), None)
        if newer is None:
            yield "MIL023", f"operation: expected one of {operations.opsets[opset]}, got {quoted(name)}"
        else:
            message = f"operation {name}: expected an opset that has it, {newer[0]} or newer"
            yield "MIL024", f"{message}, got {operations.opsets[opset]}"
        return
    expected = BLOCKS.get(name, 0)
    if block_count != expected:
        yield "MIL033", f"blocks of {name}: expected {expected}, got {block_count}"
    groups: dict[str, tuple[str, DType | int]] = {}
    for key, bound in arguments:
        argument = known.get(key)
        if argument is None:
            yield _unknown(operations, name, opset, key, known)
            continue
        for rule, message in _argument(operations, name, opset, key, argument, bound):
            yield rule, f"argument {key} of {name}: {message}"
        first = bound[0].type if bound and bound[0] else None
        # Constants may have another: coremltools gives batch_norm a float32 epsilon beside a float16 mean.
        if argument.group and not argument.is_constant and isinstance(first, TensorType):
            earlier = groups.setdefault(argument.group, (key, first.dtype))
            if earlier[1] != first.dtype:
                message = f"expected {_text(earlier[1])}, as argument {earlier[0]} has, got {_text(first.dtype)}"
                yield "MIL031", f"argument {key} of {name}: {message}"
    have = {key for key, _ in arguments}
    for key, argument in known.items():
        if not argument.is_optional and key not in have:
            yield "MIL027", f"arguments of {name}: expected {key} among them, got {listed(have)}"


def _unknown(
    operations: OperationTable, name: str, opset: int, key: str, known: dict[str, Argument]
) -> tuple[str, str]:
    for newer, arguments in operations.later(name, opset):
        if key in arguments:
            message = f"argument {key} of {name}: expected an opset that has it, {newer} or newer"
            return "MIL026", f"{message}, got {operations.opsets[opset]}"
    return "MIL025", f"argument of {name}: expected one of {listed(known)}, got {quoted(key)}"


def _argument(
    operations: OperationTable, name: str, opset: int, key: str, argument: Argument, bound: Sequence[Bound | None]
) -> Iterator[tuple[str, str]]:
    """Yield the breaches of one argument."""
    if argument.kind in ("tuple", "any"):
        return
    if len(bound) > 1:
        yield "MIL028", f"expected one binding, got {len(bound)}"
        return
    for one in bound:  # one, or none: MIL012
        if one is None:
            continue
        declared = one.type
        if argument.is_constant and not one.is_constant:
            yield "MIL032", "expected a constant, got a name that is not one"
        if declared is None:
            continue
        cls = {"list": ListType, "state": StateType}.get(argument.kind, TensorType)
        if not isinstance(declared, cls):
            yield "MIL028", f"expected a {argument.kind}, got {brief(declared)}"
        elif isinstance(declared, TensorType) and isinstance(declared.dtype, DType):
            if declared.dtype in argument.dtypes:
                continue
            got = f"got {declared.dtype.mil_text}"
            later = operations.later(name, opset)
            newer = next((one for one, known in later if key in known and declared.dtype in known[key].dtypes), None)
            if newer is None:
                yield "MIL029", f"expected {listed(d.mil_text for d in argument.dtypes)}, {got}"
            else:
                message = f"expected an opset in which it is taken, {newer} or newer"
                yield "MIL030", f"{message}, {got} in {operations.opsets[opset]}"


def _text(dtype: DType | int) -> str:
    return dtype.mil_text if isinstance(dtype, DType) else f"number {dtype}"
