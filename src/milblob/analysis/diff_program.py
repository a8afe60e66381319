"""Differences between two Programs, as text. Does not look at values of weights.

What two conversions of one network do differently without another meaning is counted, not listed one by one: casts
between precisions, operations of another precision, small constants that are the same once rounded.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import numpy as np

from ..dtypes import DType
from .aligning import Alignment, plain
from .changes import Change, compare_named, only
from .operations import (
    ComparedFunction,
    ComparedOperation,
    CompressedArgument,
    ConstantArgument,
    Input,
    Key,
    OperationOutput,
    argument_words,
    is_large,
    origin,
)

_ROUNDED = "the same values once rounded"
_AXES = ("axis", "axes", "perm")
_RANK_OF_OUTPUT = ("expand_dims", "stack")  # their axes are those of what they give


def compare_programs(
    alignment: Alignment, paired: Collection[tuple[Key, Key]] = (), seen: tuple[set[Key], set[Key]] | None = None
) -> tuple[list[Change], list[Change]]:
    """Compare the Programs of two models: functions, inputs and outputs, operations.

    The order of operations, names of constants and operations, and how and where constants are stored do not count.
    Constants of WEIGHT_COUNT elements or more, and the operations that decompress them, are left to the comparison of
    tensors. Operations without inputs are not compared.

    `paired`: keys of tensors of A and B that are compared elsewhere, and not reported here. `seen`: two sets, to which
    the keys of all smaller constants of A and B compared here are added.
    Returns: (differences, what differs without being one: names of operations).
    Raises: FormatError, ResolveError, UnsupportedError: as reading the models does.
    """
    comparison = _Comparison(alignment, paired, (set(), set()) if seen is None else seen)
    rows = alignment.functions
    several = len(rows) > 1
    for (name, other), ours, theirs in rows:
        if theirs is None:
            comparison.changes += only([f"function {name!r}"])
        elif ours is None:
            comparison.changes += only([f"function {name!r}"], "added")
        else:
            if name != other:
                comparison.changes.append(Change("changed", f"function: {name!r} in A, {other!r} in B"))
            comparison.compare(f"{name}: " if several else "", ours, theirs)
    return comparison.changes, comparison.notes()


class _Comparison:
    """What was found so far."""

    def __init__(
        self, alignment: Alignment, paired: Collection[tuple[Key, Key]], seen: tuple[set[Key], set[Key]]
    ) -> None:
        self.changes: list[Change] = []  # the differences
        self._partners = alignment.partners
        self._paired = set(paired)
        self._known = {old for old, _ in self._paired}, {new for _, new in self._paired}
        self._seen = seen
        self._prefix = ""
        self._renamed: list[str] = []

    def notes(self) -> list[Change]:
        """Return what differs without being a difference."""
        if not self._renamed:
            return []
        message = f"{len(self._renamed):,} operations have other names, such as {self._renamed[0]}"
        if len(self._renamed) == 1:
            message = f"1 operation has another name: {self._renamed[0]}"
        return [Change("renamed", message, tuple(self._renamed))]

    def compare(self, prefix: str, old: ComparedFunction, new: ComparedFunction) -> None:
        """Compare two functions; `prefix` is put before each line of the report."""
        self._prefix = prefix
        if old.opset != new.opset:
            self._add([Change("changed", f"opset: {old.opset} in A, {new.opset} in B")])
        self._add(compare_named("input", old.inputs, new.inputs))
        if not self._return_the_same(old, new):
            texts = [", ".join(path + name for path, name, _ in side.returns) for side in (old, new)]
            self._add([Change("changed", f"outputs: {texts[0]} in A, {texts[1]} in B")])
        partners = {op: self._partners[op.key] for op in old.ops if op.key in self._partners}
        self._add_lonely((op for op in old.ops if op not in partners), "removed")
        outputs: dict[str, list[Change]] = {}
        constants: dict[str, list[Change]] = {}
        names = (old.inputs.keys(), new.inputs.keys())
        for op, other in partners.items():
            self._compare_operations(op, other, names, outputs, constants)
        done = set(partners.values())
        self._add_lonely((op for op in new.ops if op not in done), "added")
        for precision, changes in outputs.items():
            self._add_folded(changes, f"{len(changes):,} operations give {precision}")
        for precision, changes in constants.items():
            message = f"{len(changes):,} small constants are {precision}, {_ROUNDED}"
            self._add_folded(changes, message)

    def _add(self, changes: Iterable[Change]) -> None:
        self.changes += [Change(c.kind, self._prefix + c.message, c.parts) for c in changes]

    def _add_folded(self, changes: list[Change], message: str) -> None:
        """Add changes of one kind as one."""
        several = Change(changes[0].kind, message, tuple(change.message for change in changes))
        self._add(changes if len(changes) == 1 else [several])

    def _add_lonely(self, ops: Iterable[ComparedOperation], kind: str) -> None:
        """Add operations that only one side has; casts are counted by what they give."""
        casts: list[Change] = []
        dtypes: Counter[str] = Counter()
        for op in ops:
            (change,) = only([f"operation {op.type} {op.name!r}"], kind)
            if op.type == "cast":
                casts.append(change)
                dtypes[str(op.dtype)] += 1
            else:
                self._add([change])
        if casts:
            counts = ", ".join(f"{count:,} to {dtype}" for dtype, count in dtypes.items())
            where = "A" if kind == "removed" else "B"
            self._add_folded(casts, f"{len(casts):,} casts, {counts}: only in {where}")

    # ------------------------------------------------------------------------------------------------------ operations

    def _compare_operations(
        self,
        old: ComparedOperation,
        new: ComparedOperation,
        names: tuple[Collection[str], Collection[str]],
        outputs: dict[str, list[Change]],
        constants: dict[str, list[Change]],
    ) -> None:
        """Compare two operations; `outputs` and `constants` get changes of precision, by their words."""
        is_renamed = plain(old.name) != plain(new.name)
        if old.type != new.type:
            self._add([Change("changed", f"operation {old.name!r}: {old.type} in A, {new.type} in B")])
            return
        subject = f"operation {old.type} {old.name!r}"
        if is_renamed:
            self._renamed.append(f"{old.type} {old.name!r} in A, {new.name!r} in B")
            subject += f" ({new.name!r} in B)"
        if old.output != new.output:
            change = Change("changed", f"{subject}: gives {old.output} in A, {new.output} in B")
            if old.shape == new.shape and old.output_count == new.output_count:
                outputs.setdefault(f"{old.dtype} in A, {new.dtype} in B", []).append(change)
            else:
                self._add([change])
        for key in [*old.arguments, *(key for key in new.arguments if key not in old.arguments)]:
            ours, theirs = old.arguments.get(key), new.arguments.get(key)
            for seen, arguments in zip(self._seen, (ours, theirs), strict=True):
                for x in arguments or ():
                    if isinstance(x, ConstantArgument) and not x.is_weight():
                        seen.update(x.keys())
            if ours is None or theirs is None:
                kind, where = ("added", "B") if ours is None else ("removed", "A")
                self._add([Change(kind, f"{subject}, {key}: only in {where}")])
                continue
            if (old.type, key) == ("cast", "dtype") and old.dtype is not new.dtype:
                continue  # as what it gives
            rank = _rank(old) if key in _AXES else None
            found = {self._relate(x, y, rank, names) for x, y in zip(ours, theirs, strict=False)}
            if len(ours) == len(theirs) and found <= {"same"}:
                continue
            precisions = found - {"same"}
            if len(ours) == len(theirs) and len(precisions) == 1 and "" not in found:
                precision = precisions.pop()
                message = f"{subject}, {key}: {precision}, {_ROUNDED}"
                constants.setdefault(precision, []).append(Change("changed", message))
            else:
                message = f"{argument_words(ours)} in A, {argument_words(theirs)} in B"
                self._add([Change("changed", f"{subject}, {key}: {message}")])

    def _relate(
        self, x: Any, y: Any, rank: int | None = None, names: tuple[Collection[str], Collection[str]] = ((), ())
    ) -> str:
        """Return "same", "" for something else, or the dtypes of equal values of another precision in words."""
        x, y = origin(x), origin(y)
        if isinstance(x, ConstantArgument | CompressedArgument) and isinstance(
            y, ConstantArgument | CompressedArgument
        ):
            return self._relate_constants(x, y, rank)
        is_same = False
        if isinstance(x, OperationOutput) and isinstance(y, OperationOutput):
            is_same = self._partners.get(x.op.key) is y.op and x.number == y.number
        elif isinstance(x, Input) and isinstance(y, Input):
            if x.op is not None and y.op is not None:
                is_same = self._partners.get(x.op.key) is y.op and (x.block, x.number) == (y.block, y.number)
            elif x.op is y.op:  # inputs of the function
                is_renamed = x.number == y.number and x.name not in names[1] and y.name not in names[0]
                is_same = x.name == y.name or is_renamed
        elif isinstance(x, str) and isinstance(y, str):
            is_same = plain(x) == plain(y)
        return "same" if is_same else ""

    def _return_the_same(self, old: ComparedFunction, new: ComparedFunction) -> bool:
        if len(old.returns) != len(new.returns):
            return False
        for (path, name, x), (other_path, other_name, y) in zip(old.returns, new.returns, strict=True):
            if not path or not other_path:  # the model's own outputs are called by their names
                if path != other_path or name != other_name:
                    return False
            elif self._relate(x, y) == "":
                return False
        return True

    # ------------------------------------------------------------------------------------------------------- constants

    def _relate_constants(
        self, x: ConstantArgument | CompressedArgument, y: ConstantArgument | CompressedArgument, rank: int | None
    ) -> str:
        if (
            isinstance(x, ConstantArgument)
            and isinstance(y, ConstantArgument)
            and not (x.is_weight() and y.is_weight())
        ):
            if len(x.rows) != len(y.rows):
                return ""
            found = {self._relate_rows(x, y, number, rank) for number in range(len(x.rows))} - {"same"}
            return "same" if not found else found.pop() if len(found) == 1 else ""
        keys = x.keys()[0], y.keys()[0]
        if keys in self._paired:
            return "same"
        is_another = (
            keys[0] in self._known[0] and keys[1] in self._known[1]
        )  # both are compared, but not with each other
        return "same" if x.is_weight() and y.is_weight() and not is_another else ""

    def _relate_rows(self, x: ConstantArgument, y: ConstantArgument, number: int, rank: int | None) -> str:
        if (x.keys()[number], y.keys()[number]) in self._paired:
            return "same"
        are_large = is_large(x.rows[number]), is_large(y.rows[number])
        if any(are_large):
            return "same" if all(are_large) else ""
        data = x.data(number)
        if data is not None and data == y.data(number):
            return "same"
        (dtype, values), (other, others) = x.read(number), y.read(number)
        if values.shape != others.shape:
            return ""
        if dtype is not other:
            return f"{dtype} in A, {other} in B" if _are_rounded(dtype, values, other, others) else ""
        if _bits(values) == _bits(others):
            return "same"
        return "same" if rank is not None and _are_axes(values, others, rank) else ""


def _bits(array: Any) -> bytes:
    return repr(array.tolist()).encode() if array.dtype == object else bytes(array.tobytes())


def _are_rounded(dtype: Any, values: Any, other: Any, others: Any) -> bool:
    """Whether the values of one are those of the other in its own precision."""
    if DType.STRING in (dtype, other) or DType.BOOL in (dtype, other) or dtype.is_integer != other.is_integer:
        return False
    if dtype.nbits < other.nbits:
        values, others = others, values
    with np.errstate(all="ignore"):
        return _bits(values.astype(others.dtype)) == _bits(others)


def _are_axes(values: Any, others: Any, rank: int) -> bool:
    """Whether both name the same axes of a tensor of that rank, counted from its start or its end."""
    if not np.issubdtype(values.dtype, np.integer):
        return False
    rows = [array.reshape(-1).tolist() for array in (values, others)]
    if not all(-rank <= axis < rank for row in rows for axis in row):
        return False
    return [axis % rank for axis in rows[0]] == [axis % rank for axis in rows[1]]


def _rank(op: ComparedOperation) -> int | None:
    """Return the rank of the tensor whose axes an operation names; None if the Program lacks it."""
    if op.type in _RANK_OF_OUTPUT:
        return None if op.shape is None else len(op.shape)
    for key in ("x", "values", "data"):
        for read in op.arguments.get(key, ()):
            if isinstance(read, OperationOutput | Input):
                return read.rank
            if isinstance(read, ConstantArgument | CompressedArgument) and isinstance(read.shape, tuple):
                return len(read.shape)
    return None
