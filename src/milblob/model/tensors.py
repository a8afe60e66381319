"""The tensors of a model's Programs, by name: found in a table, made when somebody asks, and not kept."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from ..dtypes import DType
from ..program.scan import Program
from .package import Package, Source
from .places import Shape, declared
from .tensor import Tensor, make_tensor


class ProgramTensors(Mapping[str, Tensor]):
    """The listed tensors of one Program, in Program order.

    A Tensor is made each time it is asked for. Nothing but the table of names and rows is held for those that are not.

    Attributes:
        numbers: of those that are listed.

    Args:
        package, source, program: where they are.
        is_stored: list the parts of compressed weights instead of the weights.

    Raises:
        As `Program.link` and `Program.names`.
        FormatError: an operation that computes a weight, but whose output is no tensor.
    """

    def __init__(self, package: Package, source: Source, program: Program, is_stored: bool) -> None:
        self._package = package
        self._source = source
        self._program = program
        self._is_stored = is_stored
        program.link()
        self._names = program.names()
        scan, self._chains = program.scan, program.chains
        self._total = scan.total
        self.numbers: Sequence[int] = range(self._total) if self._chains is None else self._chains.listed(is_stored)
        self._declared: dict[int, tuple[DType, Shape]] = {}  # where rows do not say it: read while files are open
        if (untyped := set(scan.untyped)) or (self._chains is not None and not self._chains.is_typed):
            for number in self.numbers:
                if number in untyped or number >= self._total:
                    self._declared[number] = declared(source, program, self._row(number))

    def _row(self, number: int) -> Any:
        """Make the row of a number: a Constant or a Compressed."""
        if number < self._total:
            return self._program.scan.constant(number)
        return self._program.compressed(number - self._total)

    def find(self, name: str) -> int:
        """Return the number of a name that is listed, or -1."""
        number = self._names.find(name)
        is_listed = number < 0 or self._chains is None or self._chains.is_listed(number, self._is_stored)
        return number if is_listed else -1

    def tensor(self, number: int) -> Tensor:
        """Make the tensor of a name's number."""
        known = self._declared.get(number) if self._declared else None
        return make_tensor(self._package, self._source, self._program, self._names[number], self._row(number), known)

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
        if self._chains is None:
            return iter(self._names.tolist())
        return iter(self._names.pick(self.numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def made(self) -> Iterator[Tensor]:
        """Yield every tensor."""
        return map(self.tensor, self.numbers)

    def columns(self, numbers: Sequence[int]) -> tuple[list[str], list[Any], list[int | None]]:
        """See `rows.Table`."""
        has_places = self._program.buffer is self._source.mapping.buffer
        return self._names.pick(numbers), *self._program.scan.columns(numbers, self._chains, has_places)

    def parts_of(self, number: int) -> list[int] | None:
        """See `rows.Table`."""
        if number < self._total or self._chains is None:
            return None
        number -= self._total
        return self._chains.part_numbers(number) if self._chains.op(number).type != "constexpr_" else None

    def sparse(self) -> Iterator[Tensor]:
        """Yield what constexpr operations with several outputs compute: masks, and the values that are not zero."""
        for group in self._program.groups:
            if group.op.output_count > 1:
                yield make_tensor(self._package, self._source, self._program, self._program.name_of(group), group)


class Tensors(Mapping[str, Tensor]):
    """The tensors of all Programs of a model, one after the other; no two have a name in common, but for its tail.

    Attributes:
        tables: those of each Program.
    """

    def __init__(self) -> None:
        self.tables: list[ProgramTensors] = []

    def add(self, tensors: ProgramTensors) -> None:
        """Append those of one more Program, whose names have another prefix."""
        self.tables.append(tensors)

    def __getitem__(self, name: str) -> Tensor:
        for tensors in self.tables:
            if name in tensors:
                return tensors[name]
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return any(name in tensors for tensors in self.tables)

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self.tables)

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    def made(self) -> Iterator[Tensor]:
        """Yield every tensor."""
        return chain.from_iterable(tensors.made() for tensors in self.tables)

    def sparse(self) -> Iterator[Tensor]:
        """Yield what constexpr operations with several outputs compute; no model lists it."""
        return chain.from_iterable(tensors.sparse() for tensors in self.tables)

    @property
    def has_short_names(self) -> bool:
        """Whether parts of any name may be left out."""
        return any(tensors.has_short_names for tensors in self.tables)
