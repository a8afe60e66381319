"""The tensors of a model's Programs, by name: found in a table, made when somebody asks, and not kept."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from .. import _codec
from ..dtypes import DType
from ..program.scan import Compressed, Program
from .package import Package, Source
from .places import Shape, declared
from .tensor import Tensor, make_tensor


class ProgramTensors(Mapping[str, Tensor]):
    """The listed tensors of one Program, in Program order.

    A Tensor is made each time it is asked for. Nothing but the table of names and rows is held for those that are not.

    Args:
        package, source, program: where they are.
        is_stored: list the parts of compressed weights instead of the weights.

    Raises:
        As `Program.compressed` and `Program.names`.
    """

    def __init__(self, package: Package, source: Source, program: Program, is_stored: bool) -> None:
        self._package = package
        self._source = source
        self._program = program
        self._rows: Sequence[Any] | None = None  # by number of a name: Constant or Compressed; None: ask the scan
        self._declared: dict[
            int, tuple[DType, Shape]
        ]  # of rows that the scan does not tell it of: read while files are open
        ends, parts = program.compressed()
        if not program.scan.has_constexpr:
            self._names = program.names()[0]
            self._numbers: Sequence[int] = range(len(self._names))
            constant = program.scan.constant
            self._declared = {n: declared(source, program, constant(n)) for n in program.scan.untyped}
            return
        constants = program.scan.constants
        listed = set(constants)
        small = [c for c in parts if c not in listed]  # below the threshold, but a part of a weight
        self._names, op_names = program.names(small)
        rows: list[Any] = [*program.scan.constants, *small]
        number_of = {id(group): len(rows) + i for i, group in enumerate(program.groups)}
        program.part_names = {c: self._names[i] for i, c in enumerate(rows) if c in parts}
        program.part_names |= {group: op_names[id(group.op)] for group in program.groups}
        waiting = {} if is_stored else {id(group.op): group for group in ends}
        numbers: list[int] = []
        for number, c in enumerate(rows):
            if waiting and id(c.op) in waiting:  # a compressed weight is listed where its operation is
                numbers.append(number_of[id(waiting.pop(id(c.op)))])
            if c.storage != _codec.NAME and (is_stored or c not in parts or c in program.shared):
                numbers.append(number)
        numbers.extend(number_of[id(group)] for group in waiting.values())  # weights without any part
        self._rows = rows + program.groups
        self._numbers = numbers
        self._listed = frozenset(numbers)
        untyped = (n for n in numbers if isinstance(self._rows[n], Compressed) or self._rows[n].shape is None)
        self._declared = {n: declared(source, program, self._rows[n]) for n in untyped}

    def find(self, name: str) -> int:
        """Return the number of a name that is listed, or -1."""
        number = self._names.find(name)
        return number if number < 0 or self._rows is None or number in self._listed else -1

    def tensor(self, number: int) -> Tensor:
        """Make the tensor of a name's number."""
        row = self._program.scan.constant(number) if self._rows is None else self._rows[number]
        known = self._declared.get(number) if self._declared else None
        return make_tensor(self._package, self._source, self._program, self._names[number], row, known)

    @property
    def has_short_names(self) -> bool:
        """Whether parts of any name may be left out."""
        return self._names.has_slash

    def __getitem__(self, name: str) -> Tensor:
        number = self.find(name) if isinstance(name, str) else -1
        if number < 0:
            raise KeyError(name)
        return self.tensor(number)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) >= 0

    def __iter__(self) -> Iterator[str]:
        if self._rows is None:
            return iter(self._names.tolist())
        return (self._names[number] for number in self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def made(self) -> Iterator[Tensor]:
        """Yield every tensor."""
        return map(self.tensor, self._numbers)

    def sparse(self) -> Iterator[Tensor]:
        """Yield what constexpr operations with several outputs compute: masks, and the values that are not zero."""
        for group in self._program.groups if self._rows is not None else ():
            if group.op.output_count > 1:
                yield make_tensor(self._package, self._source, self._program, self._program.part_names[group], group)


class Tensors(Mapping[str, Tensor]):
    """The tensors of all Programs of a model, one after the other; no two have a name in common, but for its tail."""

    def __init__(self) -> None:
        self._programs: list[ProgramTensors] = []

    def add(self, tensors: ProgramTensors) -> None:
        """Append those of one more Program, whose names have another prefix."""
        self._programs.append(tensors)

    def __getitem__(self, name: str) -> Tensor:
        for tensors in self._programs:
            if name in tensors:
                return tensors[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(name in tensors for tensors in self._programs)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._programs)

    def __len__(self) -> int:
        return sum(map(len, self._programs))

    def made(self) -> Iterator[Tensor]:
        """Yield every tensor."""
        return chain.from_iterable(tensors.made() for tensors in self._programs)

    def sparse(self) -> Iterator[Tensor]:
        """Yield what constexpr operations with several outputs compute; no model lists it."""
        return chain.from_iterable(tensors.sparse() for tensors in self._programs)

    @property
    def has_short_names(self) -> bool:
        """Whether parts of any name may be left out."""
        return any(tensors.has_short_names for tensors in self._programs)
