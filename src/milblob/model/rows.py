"""The tensors of a model as rows of a listing. Shared fields are computed once, and no values are read."""

from collections.abc import Container, Iterable, Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import MilblobError
from ..wording import sizes
from .tensor import Tensor
from .tensors import Table

if TYPE_CHECKING:
    from ..program.compression import Compression


class Listed(NamedTuple):
    """The row of one tensor. Nothing here reads values, so weight files may be missing."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]
    element_count: int | None  # elements; None where the shape is open
    nbytes: int | None  # stored bytes; None where they are unknown
    function: str
    op: str
    file: str | None
    offset: int | None  # in `file`; see `Tensor.offset`
    compression: "Compression | None"

    @property
    def nbits(self) -> str:
        """Stored bits per element, as text."""
        return f"{8 * self.nbytes / self.element_count:.4g}" if self.element_count and self.nbytes is not None else "-"

    @property
    def summary(self) -> str:
        """Dtype, shape, stored bytes and compression as text."""
        nbytes = "" if self.nbytes is None else f", {self.nbytes:,} bytes"
        return f"{self.dtype} {sizes(self.shape)}{nbytes}{f', {self.compression!s}' * bool(self.compression)}"


def scheme_of(tensor: object) -> str:
    """Return the scheme of a compressed weight or of its row; "" for any other tensor."""
    compression = getattr(tensor, "compression", None)
    return "" if compression is None else str(compression.scheme)


class Rows:
    """The rows of some tables, one after the other."""

    def __init__(self, tables: Iterable[Table], names: Container[str] | None = None) -> None:
        self.listed: list[Listed] = []
        self._tables: list[tuple[Table, list[int]]] = []
        for table in tables:
            numbers: list[int] = []
            for number, row in zip(table.numbers, _rows(table, table.numbers), strict=True):
                if names is None or row.name in names:
                    numbers.append(number)
                    self.listed.append(row)
            self._tables.append((table, numbers))

    @property
    def unique_nbytes(self) -> int:
        """Stored bytes, with each blob counted once however many tensors refer to it."""
        seen: set[Any] = set()
        total = 0
        listed = iter(self.listed)
        for table, numbers in self._tables:
            stored = list(_stored(table, [(number, next(listed)) for number in numbers]))
            of_parts = _rows(table, [number for number, row in stored if row is None])
            for _, known in stored:
                row = known or next(of_parts)
                key = (row.file, row.offset) if row.offset is not None else row.name
                if key not in seen and row.element_count is not None:
                    seen.add(key)
                    total += row.nbytes or 0
        return total


def _rows(table: Table, numbers: Sequence[int]) -> Iterator[Listed]:
    """Yield the row of each number. The first of a kind is found out from its tensor."""
    alike: dict[Any, Listed] = {}
    for number, name, kind, offset in zip(numbers, *table.columns(numbers), strict=True):
        first = alike.get(kind)
        if first is not None:
            yield Listed(name, *first[1:8], offset, first.compression)
            continue
        row = row_of(table.tensor(number))
        if kind is not None:
            alike[kind] = row
        yield row


def _stored(table: Table, rows: Iterable[tuple[int, Listed]]) -> Iterator[tuple[int, Listed | None]]:
    """Yield what is stored for some rows, with its row if that is known; of a compressed weight the last part first."""
    seen: set[int] = set()
    for number, row in rows:
        if not row.compression:
            yield number, row
            continue
        pending = [number]
        while pending:
            part = pending.pop()
            if (parts := table.parts_of(part)) is None:
                yield part, None
            elif part not in seen:  # operations that share what they read lead to it in more ways than can be gone
                seen.add(part)
                pending.extend(parts)


def row_of(tensor: Tensor) -> Listed:
    """Return the row of a tensor."""
    shape = tensor.declared_shape
    count = None if None in shape else prod(shape)  # type: ignore[arg-type]
    nbytes = None
    if count is not None:
        try:
            nbytes = tensor.nbytes
        except MilblobError:  # a part whose shape is open
            nbytes = None
    return Listed(
        tensor.name,
        str(tensor.mil_dtype),
        shape,
        count,
        nbytes,
        tensor.function,
        tensor.op,
        tensor.file,
        tensor.offset,
        tensor.compression,
    )
