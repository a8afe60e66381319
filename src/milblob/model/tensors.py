"""The tensors of a model by name: found in a table, made on access, and not kept."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _codec
from ..blobs.reader import BlobReader
from ..dtypes import BY_BLOB_CODE, DType
from .open_program import OpenProgram
from .package import Package
from .places import Shape
from .program_places import declared
from .tensor import Tensor, make_tensor

if TYPE_CHECKING:
    from ..program.view import Consumer


class Table(Mapping[str, Tensor]):
    """Tensors by name and by number: those of one Program, or of a weight file. What it does not define has none.

    Attributes:
        numbers: of those that are listed, in order.
    """

    numbers: Sequence[int]

    @property
    def has_short_names(self) -> bool:
        """Whether parts of any name may be left out."""
        return False

    def columns(self, numbers: Sequence[int]) -> tuple[list[str], list[Any], list[int | None]]:
        """Return names, kinds and offsets. Those of a kind are alike in all else; None: like no other."""
        raise NotImplementedError

    def tensor(self, number: int) -> Tensor:
        """Make the tensor of a number, also one that is not listed."""
        raise NotImplementedError

    def parts_of(self, number: int) -> list[int] | None:
        """Return the numbers of the parts of a compressed weight; None for what is stored itself."""
        return None

    def consumers(self, name: str) -> tuple["Consumer", ...]:
        """Return who reads a tensor that is listed; no tensor is made. Raises: as `Tensor.consumers`."""
        return ()

    def sparse(self) -> Iterator[Tensor]:
        """Yield what constexpr operations with several outputs compute: masks, and the values that are not zero."""
        return iter(())

    def unlisted(self) -> Iterator[Tensor]:
        """Yield every constant that the listing leaves out; searched for at each call."""
        return iter(())

    @property
    def unlisted_count(self) -> int:
        """The number of constants that `unlisted` yields; no tensor is made."""
        return 0

    def made(self) -> Iterator[Tensor]:
        """Yield every tensor."""
        return map(self.tensor, self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


class ProgramTensors(Table):
    """The listed tensors of one Program, in Program order.

    A Tensor is made each time it is asked for. Nothing but the table of names and rows is held for those that are not.

    `program`: where they are. `is_stored`: list the parts of compressed weights instead of the weights.
    Raises: As `ProgramScan.link` and `ProgramScan.names`. FormatError: an operation that computes a weight, but whose
    output is not a tensor.
    """

    def __init__(self, program: OpenProgram, is_stored: bool) -> None:
        self._program = program
        self._scan = program.scan
        self._is_stored = is_stored
        self._scan.link()
        self._names = self._scan.names()
        self._chains = self._scan.chains
        self._total = self._scan.table.total
        self.numbers = range(self._total) if self._chains is None else self._chains.listed(is_stored)
        self._declared: dict[int, tuple[DType, Shape]] = {}  # for rows without a type: read while files are open
        if (untyped := set(self._scan.table.untyped)) or (self._chains is not None and not self._chains.is_typed):
            for number in self.numbers:
                if number in untyped or number >= self._total:
                    self._declared[number] = declared(program, self._row(number))

    def _row(self, number: int) -> Any:
        """Make the row of a number: a Constant or a Compressed."""
        if number < self._total:
            return self._scan.table.constant(number)
        return self._scan.compressed(number - self._total)

    def find(self, name: str) -> int:
        """Return the number of a name that is listed, or -1."""
        number = self._names.find(name)
        is_listed = number < 0 or self._chains is None or self._chains.is_listed(number, self._is_stored)
        return number if is_listed else -1

    def tensor(self, number: int) -> Tensor:
        known = self._declared.get(number) if self._declared else None
        return make_tensor(self._program, self._names[number], self._row(number), known)

    def consumers(self, name: str) -> tuple["Consumer", ...]:
        return self._program.consumers(self._row(self.find(name)))

    @property
    def has_short_names(self) -> bool:
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

    def columns(self, numbers: Sequence[int]) -> tuple[list[str], list[Any], list[int | None]]:
        columns = self._scan.table.columns(numbers, self._chains, self._program.has_file_offsets)
        return self._names.pick(numbers), *columns

    def parts_of(self, number: int) -> list[int] | None:
        if number < self._total or self._chains is None:
            return None
        number -= self._total
        return self._chains.part_numbers(number) if self._chains.op(number).type != "constexpr_" else None

    def sparse(self) -> Iterator[Tensor]:
        for group in self._scan.groups:
            if group.op.output_count > 1:
                yield make_tensor(self._program, self._scan.name_of(group), group)

    def unlisted(self) -> Iterator[Tensor]:
        rows = self._unlisted_rows()
        names = self._scan.names(rows)
        for number, row in enumerate(rows, len(self._scan.table)):
            yield make_tensor(self._program, names[number], row)

    def _unlisted_rows(self) -> list[_codec.Constant]:
        """Scan the Program again, for every constant: small ones, bools and strings too."""
        self._program.require()
        listed = {constant.value for constant in self._scan.constants}
        listed |= {part.value for group in self._scan.groups for part in group.stored()}
        every = self._scan.scan_again(_codec.SCAN_ALL).constants
        return [c for c in every if c.storage != _codec.NAME and c.value not in listed]

    @property
    def unlisted_count(self) -> int:
        return len(self._unlisted_rows())


class RecordTensors(Table):
    """The records of a bare weight file as tensors `#0`, `#1`, ...; made on access."""

    def __init__(self, package: Package, reader: BlobReader) -> None:
        self._package = package
        self._index = reader.index
        self.numbers = range(len(self._index))

    def __getitem__(self, name: str) -> Tensor:
        digits = name[1:] if isinstance(name, str) and name[:1] == "#" else ""
        # Accept only the canonical spelling: no "#007", no "#+7", no digits of other scripts.
        if not (
            digits.isascii() and digits.isdigit() and str(int(digits[:20])) == digits and int(digits) < len(self._index)
        ):
            raise KeyError(name)
        return self.tensor(int(digits))

    def columns(self, numbers: Sequence[int]) -> tuple[list[str], list[Any], list[int | None]]:
        found = self._index[np.asarray(numbers, np.intp)]
        kinds = zip(found["blob_code"].tolist(), found["count"].tolist(), strict=True)
        return [f"#{number}" for number in numbers], list(kinds), found["offset"].tolist()

    def tensor(self, number: int) -> Tensor:
        row = self._index[number]
        dtype = BY_BLOB_CODE[int(row["blob_code"])]
        return Tensor(self._package, f"#{number}", dtype, (int(row["count"]),), offset=int(row["offset"]))

    def __iter__(self) -> Iterator[str]:
        return (f"#{number}" for number in self.numbers)


class Tensors(Mapping[str, Tensor]):
    """The tensors of a model, in the order of its Programs or records; names are unique."""

    def __init__(self) -> None:
        self.tables: list[Table] = []  # those of each Program, or of the weight file

    def add(self, tensors: Table) -> None:
        """Append the tensors of one more Program, whose names have another prefix; or of a weight file."""
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

    def unlisted(self) -> dict[str, Tensor]:
        """Return every constant that is left out of the listing, by name; searched for at each call."""
        return {tensor.name: tensor for tensors in self.tables for tensor in tensors.unlisted()}

    def consumers(self, name: str) -> tuple["Consumer", ...]:
        """Return who reads a tensor, by its full name. Raises: as `Tensor.consumers`."""
        return next((tensors.consumers(name) for tensors in self.tables if name in tensors), ())

    @property
    def unlisted_count(self) -> int:
        """The number of these constants; no tensor is made."""
        return sum(tensors.unlisted_count for tensors in self.tables)

    @property
    def has_short_names(self) -> bool:
        """Whether parts of any name may be left out."""
        return any(tensors.has_short_names for tensors in self.tables)
