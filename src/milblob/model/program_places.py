"""The places of values in an open Program: immediates, and weights that constexpr operations compute."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from ..errors import FormatError
from ..program.constexpr import Chain
from ..program.scan import Compressed
from ..values.dense import Dense, read_key, read_to
from ..values.tensorvalue import undeclared, unpack_at
from .open_program import OpenProgram
from .package import Package, Source
from .places import Array, ModelPlace, Place, RecordPlace, Shape, with_assigned

if TYPE_CHECKING:
    from ..program.view import Operation, ProgramView


class ImmediatePlace(ModelPlace):
    """A value inside a Program."""

    __slots__ = ("constant", "program")

    def __init__(self, program: OpenProgram, name: str, dtype: DType, shape: Shape, constant: Any) -> None:
        super().__init__(program.package, name, dtype, shape)
        self.program = program
        self.constant = constant

    @property
    def where(self) -> str:
        return self.program.scan.path(self.constant.op, self.constant)

    @property
    def file(self) -> str | None:
        return self.program.mapping.name

    def key(self) -> Hashable:
        return self.program.prefix, self.constant.value

    def nbytes(self) -> int:
        return int(self.constant.payload[1]) if self.dtype is DType.STRING else super().nbytes()

    def read(self, out: Array | None = None) -> Array:
        with self.naming():
            self.program.require()
            offset, nbytes = self.constant.payload
            return unpack_at(self.program.scan.buffer, offset, nbytes, self.dtype, self.shape, out)


class ChainPlace(ModelPlace):
    """A chain of constexpr operations: stored parts, and how the dense values are computed from them."""

    __slots__ = ("chain", "program")

    is_computed = True

    def __init__(self, program: OpenProgram, name: str, dtype: DType, shape: Shape, chain: Compressed) -> None:
        super().__init__(program.package, name, dtype, shape)
        self.program = program
        self.chain = chain

    @property
    def where(self) -> str:
        return self.program.scan.path(self.chain.op)

    @property
    def file(self) -> str | None:
        """See Place; None where the parts are in several files."""
        files = {self.part(c).file for c in self.chain.stored()}
        return files.pop() if len(files) == 1 else None

    def key(self) -> Hashable:
        return self.program.prefix, self.chain.op.message, self.chain.output

    def part(self, row: Any) -> Place:
        """Return the place of a part: a `_codec.Constant`, or the Compressed that computes it."""
        return place_of(self.program, self.program.scan.name_of(row), row)

    def nbytes(self) -> int:
        """See Place. Two parts may be one blob: sparse_to_dense and the operation computing its values share a mask."""
        rows = self.chain.stored()
        parts = {(c.text, c.blob_offset) if c.storage == _codec.BLOB else c: c for c in rows}
        return sum(self.part(c).nbytes() for c in parts.values())

    def dense(self) -> Dense:
        with self.naming():
            self.package.require_open()
            budget = self.package.budget
            chain = Chain(lambda row: self.part(row).packed(), self.program.scan.path, budget.require)
            dense = chain.dense(self.chain)
            budget.spend((self.name, "parts"), chain.nbytes)
            return dense

    def known_shape(self) -> tuple[int, ...]:
        """See Place; if the Program lacks the shape, it is taken from the parts."""
        return self.dense().shape if None in self.shape else cast("tuple[int, ...]", self.shape)

    def read(self, out: Array | None = None) -> Array:
        with self.naming():
            dense = self.dense()
            self.account()
            return read_to(dense, out, (self.part(row).packed().buffer for row in self.chain.stored()))

    def read_key(self, key: Any) -> Any:
        with self.naming():
            return read_key(self.dense(), key)


def place_of(program: OpenProgram, name: str, row: Any) -> Place:
    """Return the place of a `_codec.Constant` or of a `Compressed`.

    `name`: of the tensor: assigned values take precedence over stored ones.
    Raises: FormatError: an operation that computes a weight, but whose output is not a tensor.
    """
    return with_assigned(stored_place(program, name, row), program.package, name)


def stored_place(program: OpenProgram, name: str, row: Any) -> Place:
    """Return the place of the stored values, ignoring assigned ones; as `place_of`."""
    dtype, shape = declared(program, row)
    if isinstance(row, Compressed):
        return ChainPlace(program, name, dtype, shape, row)
    if row.storage == _codec.BLOB:
        return record_place(program, name, dtype, shape, row)
    return ImmediatePlace(program, name, dtype, shape, row)


def record_place(program: OpenProgram, name: str, dtype: DType, shape: Shape, row: _codec.Constant) -> RecordPlace:
    """Return the place of a constant that is in a weight file."""
    where = program.source, row.text, program.scan, row
    return RecordPlace(program.package, name, dtype, shape, row.blob_offset, *where)


def declared(program: OpenProgram, row: Any) -> tuple[DType, Shape]:
    """Return dtype and shape that a Program declares for a `_codec.Constant` or a `Compressed`.

    Raises: FormatError: an operation that computes a weight, but whose output is not a tensor.
    """
    if isinstance(row, Compressed):
        op = row.op
        if op.shape is None:
            message = f"output of {op.type}: expected a tensor type, got none"
            raise FormatError(message, file=program.mapping.name, where=program.scan.path(op))
        return BY_MIL_CODE[op.mil_code], op.shape
    if row.shape is not None:
        return BY_MIL_CODE[row.mil_code], row.shape
    return undeclared(program.scan.buffer, *row.payload)  # an element of a list that states no type


Decode = Callable[["ProgramView", "Operation", int], "np.ndarray[Any, Any]"]


def decoder(package: Package, source: Source) -> Decode:
    """Return a function that decodes an output of a constexpr operation: `decode(view, operation, number)`.

    The first call scans the Program of the view again, which holds no model that is no longer used.
    """
    programs: list[OpenProgram] = []
    rows: dict[tuple[int, int], Any] = {}

    def decode(view: "ProgramView", operation: "Operation", number: int) -> "np.ndarray[Any, Any]":
        if not programs:
            buffer, span = view.held()
            program = OpenProgram(package, source._replace(program=(buffer, *span)))
            program.scan.link()
            rows.update({(group.op.message[0], group.output): group for group in program.scan.groups})
            programs.append(program)
        row = rows.get((operation.message[0], number))
        if row is None:
            message = f"{operation.type}: expected an operation that computes a weight, got one that cannot be decoded"
            raise FormatError(message, where=operation.path)
        program = programs[0]
        return place_of(program, program.scan.name_of(row), row).read()

    return decode
