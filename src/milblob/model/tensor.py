"""One tensor of a model: its type, its place, and its values on demand."""

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from ..errors import MilblobError
from ..mirrored import shown
from ..program.scan import Compressed, Parts
from ..shown import short
from .lazy import LazyTensor
from .open_program import OpenProgram
from .package import Package
from .places import Place, RecordPlace, Shape, path_of, with_assigned
from .program_places import declared, record_place, stored_place

if TYPE_CHECKING:
    from ..program.compression import Compression
    from ..program.view import Consumer, Operation

_EMPTY: Mapping[str, "Tensor"] = MappingProxyType({})


class Tensor(LazyTensor):
    """One tensor of a model, not yet read.

    `np.asarray(t)`, `t[...]` and `t.read()` return the values: a zero-copy, read-only view of the mapped file wherever
    the stored bytes are the values, else a new array. Views may be unaligned (`array.flags.aligned`) and remain valid
    after the model is closed.

    Attributes:
        name: unique in its model.
        dtype: NumPy dtype of the values; `mil_dtype` is the DType.
        shape: as declared; an open dimension is derived from the values.
        nbytes: bytes stored for it: packed for sub-byte dtypes, the sum of the parts for a compressed weight (a blob
            that is two parts counts once).
        function: name of its function; "" for attributes of the whole Program and in blob files.
        op: type of the operation that holds it ("const", "constexpr_lut_to_dense", ...), "" if there is none.
        file: path of the file that holds the values; None in a buffer.
        offset: in a blob file, of the record's metadata; of an immediate value, of its TensorValue in the model file.
            None for immediates of MIL text and for compressed weights, whose parts have offsets of their own.
        is_blob: whether the values are in a blob file.

    For milblob's own modules, not a stable interface: `place` (where the values come from), `declared_shape`,
    `package`, and the position in the Program: `program`, an OpenProgram, and `row`, a row of its scan: a
    `_codec.Constant` or, for a compressed weight, a Compressed. Both are None in a weight file.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     tensor = model["head_weight"]
        ...     values = tensor.read()
        >>> tensor
        <Tensor 'head_weight': float32 [96, 48]>
        >>> values.shape, tensor.nbytes, tensor.is_blob
        ((96, 48), 18432, True)
    """

    __slots__ = ("offset", "package", "program", "row")

    def __init__(
        self,
        package: Package,
        name: str,
        mil_dtype: DType,
        shape: tuple[int | None, ...],
        program: OpenProgram | None = None,
        row: Any = None,
        offset: int | None = None,
    ) -> None:
        self.name = name  # as LazyTensor does, without the call: there may be a hundred thousand of them
        self.mil_dtype = mil_dtype
        self._shape = shape
        self.package = package
        self.program = program
        self.row = row
        self.offset = offset

    def __eq__(self, other: object) -> bool:
        """Whether it is the same tensor of the same open model: each access makes a new object."""
        if not isinstance(other, Tensor):
            return NotImplemented
        return self.name == other.name and self.package is other.package

    def __hash__(self) -> int:
        return hash(self.name)

    @property
    def constant(self) -> Any:
        """The `_codec.Constant` that it is; None for a compressed weight, and in a weight file."""
        return None if isinstance(self.row, Compressed) else self.row

    @property
    def chain(self) -> Compressed | None:
        """The chain of operations that computes a compressed weight; None for others."""
        return self.row if isinstance(self.row, Compressed) else None

    @property
    def place(self) -> Place:
        """Where the values come from: the assigned ones, or `stored_place`; for milblob's own modules."""
        stored = self.stored_place
        return with_assigned(stored, self.package, self.name) if self.package.assigned else stored

    @property
    def stored_place(self) -> Place:
        """Where the stored values are, ignoring assigned ones; for milblob's own modules."""
        if self.program is None:
            return RecordPlace(self.package, self.name, self.mil_dtype, self._shape, cast(int, self.offset))
        if self.is_blob:  # made again each time: a place kept costs more than it takes
            return record_place(self.program, self.name, self.mil_dtype, self._shape, self.row)
        return stored_place(self.program, self.name, self.row)

    @property
    def nbytes(self) -> int:
        """See the class."""
        if self.chain is None and self.mil_dtype is not DType.STRING and None not in self._shape:
            return self.mil_dtype.nbytes(prod(cast(tuple[int, ...], self._shape)))  # cheaper than asking its place
        return self.place.nbytes()

    @property
    def is_blob(self) -> bool:
        """Whether the values are in a blob file, not in the Program."""
        row = self.row
        return row is None or (not isinstance(row, Compressed) and row.storage == _codec.BLOB)

    @property
    def function(self) -> str:
        """Name of the function it belongs to, as in `Model.functions`, or ""."""
        if self.program is None:
            return ""
        table, row = self.program.scan.table, self.row
        number = table.blocks[row.op.block][1] if isinstance(row, Compressed) else row.function
        return self.program.prefix + table.functions[number][0] if number >= 0 else ""

    @property
    def op(self) -> str:
        """Type of the operation that holds it, or ""."""
        op = self.op_row
        return str(op.type) if op is not None else ""

    @property
    def operation(self) -> "Operation | None":
        """The operation that holds it, in the view of its Program; None if there is none.

        Raises:
            As `Model.views`.
        """
        op = self.op_row
        return None if op is None or self.program is None else self.program.operation(op)

    @property
    def op_row(self) -> Any:
        """The `_codec.Op` that holds it, or None; for milblob's own modules."""
        return None if self.row is None else self.row.op

    @property
    def file(self) -> str | None:
        """Path of the file that holds the values; it need not exist. None in a buffer."""
        if self.program is not None and self.is_blob:
            path = path_of(self.program.source, self.row.text)  # cheaper than asking its place
            return path and shown(path)
        return self.place.file

    @property
    def data_offset(self) -> int | None:
        """Byte offset of the first value in a blob file, from its record; None for other tensors.

        Raises:
            As `read`: this looks into the file.
        """
        place = self.stored_place
        if not isinstance(place, RecordPlace):
            return None
        return place.reader().record(place.offset).data_offset

    @property
    def parts(self) -> Mapping[str, "Tensor"]:
        """Parameter -> stored part of a compressed weight (which may be compressed itself); empty for others."""
        if self.chain is None:
            return _EMPTY
        return MappingProxyType(Parts(self.chain.op, {key: self.part(row) for key, row in self.chain.parts.items()}))

    def part(self, row: Any) -> "Tensor":
        """Return a part of a compressed weight by its row; for milblob's own modules."""
        # Created on each call: tensors that referred to each other would form a cycle and keep files mapped.
        program = cast(OpenProgram, self.program)
        return make_tensor(program, program.scan.name_of(row), row)

    @property
    def compression(self) -> "Compression | None":
        """How it is compressed; None if it is not. `str` of it is a few characters, such as "int4 /32"."""
        if self.chain is None or self.chain.op.type == "constexpr_":  # a type without a name is not a scheme
            return None
        from ..program.compression import describe  # reading weights does not need it

        return describe(self.chain, self._number)

    def _number(self, constant: Any) -> int | None:
        """The value of a part that is one integer, if it can be read."""
        if constant is None or isinstance(constant, Compressed) or constant.shape is None:
            return None
        if None in constant.shape or prod(constant.shape) != 1:  # else each weight would unpack it again
            return None
        try:
            return int(self.part(constant).place.packed().array().reshape(-1)[0])
        except (MilblobError, OSError, ValueError, TypeError, IndexError):
            return None

    @property
    def consumers(self) -> tuple["Consumer", ...]:
        """The operations that read it, constexpr ones included, and the blocks that return it; in Program order.

        Raises:
            As `Model.views`.
        """
        return () if self.program is None else self.program.consumers(self.row)

    @property
    def where(self) -> str:
        """Path in the Program, such as ``main.block['CoreML7'].op[12] 'conv_3'.weight``; the name in a blob file."""
        return self.name if self.program is None else self.program.scan.path(self.op_row, self.constant)

    def _texts(self) -> list[tuple[str, str]]:
        compression = self.compression
        rows: list[tuple[str, Any]] = [("compression", compression and str(compression)), ("function", self.function)]
        rows += [("operation", self.op), ("file", self.file), ("record at byte", self.offset)]
        return super()._texts() + [(name, short(value)) for name, value in rows if value not in (None, "")]

    def __repr__(self) -> str:
        scheme = f", {found.scheme}" if (found := self.compression) else ""
        return f"{super().__repr__()[:-1]}{scheme}>"


def make_tensor(program: OpenProgram, name: str, row: Any, known: tuple[DType, Shape] | None = None) -> Tensor:
    """Make the tensor of a `_codec.Constant` or of a `Compressed`.

    `known`: what `declared` returned for it.
    Raises: FormatError: an operation that computes a weight, but whose output is not a tensor.
    """
    is_chain = isinstance(row, Compressed)
    if not is_chain and row.shape is not None:  # almost all tensors; the others use `declared`
        dtype, shape = BY_MIL_CODE[row.mil_code], row.shape
    else:
        dtype, shape = known or declared(program, row)
    offset = None
    if not is_chain and row.storage == _codec.BLOB:
        offset = row.blob_offset
    elif not is_chain and program.has_file_offsets:
        offset = row.payload[0]
    return Tensor(program.package, name, dtype, shape, program, row, offset)
