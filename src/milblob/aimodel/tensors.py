"""The tensors of a bundle: the place of each, and its values on demand."""

from collections.abc import Hashable, Mapping
from math import prod
from types import MappingProxyType
from typing import Any, NamedTuple, cast

import numpy as np

from ..dtypes import DType
from ..errors import MilblobError, UnsupportedError
from ..model.lazy import LazyTensor
from ..model.places import Place
from ..program.compression import Compression, describe
from ..values.arrays import copy_into
from ..values.dense import Dense, Packed, pack, read_key, read_to
from ..values.tensorvalue import MAX_RANK
from .codes import short_family
from .decode import AssetDecoder
from .open_bytecode import OpenBytecode
from .program import WeightRow, type_text

Array = np.ndarray[Any, Any]


def stored_of(packed: Packed) -> Array:
    """Return the stored bytes of elements, uint8."""
    buffer: Any = packed.buffer
    found: Array = np.frombuffer(buffer, np.uint8, packed.dtype.nbytes(packed.size), packed.offset)
    return found


class ConstantPlace(Place):
    """A constant of a bundle: an inline value, or a resource."""

    __slots__ = ("_name", "_op", "_opened")

    def __init__(
        self, opened: OpenBytecode, name: str, op: int, dtype: DType | None, shape: tuple[int | None, ...]
    ) -> None:
        super().__init__(cast(DType, dtype), shape)
        self._opened, self._name, self._op = opened, name, op

    @property
    def where(self) -> str:
        return self._name

    @property
    def file(self) -> str | None:
        return self._opened.file

    def key(self) -> Hashable:
        """See Place: constants with one attribute, or one resource, are one value."""
        return self._opened.program.stored(self._op).key

    def account(self) -> None:
        kind = self._opened.program.kind(self._op)
        if kind.element is not None and None not in kind.shape:
            self._opened.budget.spend(self._op, kind.element.numpy.itemsize * prod(cast("tuple[int, ...]", kind.shape)))

    def read(self, out: Array | None = None) -> Array:
        with self.naming():
            values = self._opened.constant(self._op)
            return values if out is None else copy_into(out, values)

    def packed(self) -> Packed:
        with self.naming():
            return self._opened.packed_constant(self._op)

    def read_packed(self) -> Array:
        with self.naming():
            found = self._opened.packed_constant(self._op)
            return stored_of(found)


class ComputedPlace(ConstantPlace):
    """A weight that operations of the bundle compute from stored parts."""

    __slots__ = ()

    is_computed = True

    def key(self) -> Hashable:
        return "computed", self._op

    def nbytes(self) -> int:
        program = self._opened.program
        pieces = (program.stored(row) for row in program.parts_of(self._op).values())
        return sum({stored.key: stored.nbytes for stored in pieces}.values())

    def dense(self) -> Dense:
        with self.naming():
            opened = self._opened
            opened.require_readable()
            decoder = AssetDecoder(opened)
            found = decoder.dense(self._op)
            opened.budget.spend((self._op, "parts"), decoder.nbytes)
            return found

    def read(self, out: Array | None = None) -> Array:
        with self.naming():
            dense = self.dense()
            self.account()
            return read_to(dense, out, [self._opened.mapping.check_size()])

    def packed(self) -> Packed:
        return pack(self.read(), self.dtype)

    def read_packed(self) -> Array:
        found = self.packed()
        return stored_of(found)

    def read_key(self, key: Any) -> Any:
        with self.naming():
            return read_key(self.dense(), key)


class AssetConsumer(NamedTuple):
    """One place where a tensor is read.

    Attributes:
        reader: row of the operation.
        type: its type.
        label: its name, as names of tensors spell it.
        parameter: its operand.
    """

    reader: int
    type: str
    label: str
    parameter: str


class AssetTensor(LazyTensor):
    """One tensor of a bundle, not yet read; reads like a `Tensor`.

    Attributes:
        name: function, and the operation and operand that read it first, such as "main/conv2d_0.weight".
        function: its function.
        ordinal: its number among the constants directly in the function; of a compressed weight, of its first part. -1
            inside the decomposition of an operation. The name "main/#3" is accepted too.
        op: what makes it: "constant", or the operation that decodes it, such as "lut_to_dense".
        label: the modules and the node that made it, such as "Net$1/Linear$2:addmm_1", of a bundle converted for
            debugging; else "".
        dtype_text: the element type as Apple's library prints it, such as "f16" or "ui4".
        stored_nbytes: bytes in the file: of all parts of a compressed weight.
        file, offset: where its bytes are; offset is None for a compressed weight, whose parts have their own.

    Examples:
        >>> asset = milblob.open("demo.aimodel")
        >>> tensor = asset["main/conv2d_0.weight"]
        >>> tensor.dtype_text, tensor.read().shape, tensor.stored_nbytes
        ('f16', (8, 3, 3, 3), 432)
    """

    __slots__ = ("opened", "row")

    def __init__(self, opened: OpenBytecode, row: WeightRow) -> None:
        # Not LazyTensor's: an element type may be one that MIL lacks, which matters only to who asks for its DType.
        self.opened, self.row = opened, row
        self.name: str = row.name

    @property
    def _kind(self) -> Any:
        return self.opened.program.kind(self.row.op)

    @property
    def _shape(self) -> tuple[int | None, ...]:  # type: ignore[override]
        shape = self._kind.shape
        if len(shape) > MAX_RANK:
            raise UnsupportedError(f"shape of {self.name}: expected at most {MAX_RANK} dimensions, got {len(shape)}")
        if None in shape:
            raise UnsupportedError(f"shape of {self.name}: expected every size known, got {type_text(self._kind)}")
        return cast("tuple[int | None, ...]", shape)

    @property
    def declared_shape(self) -> tuple[int | None, ...]:
        """Dimensions; None for an open one."""
        return cast("tuple[int | None, ...]", self._kind.shape)

    @property
    def mil_dtype(self) -> DType:  # type: ignore[override]
        """DType of the values.

        Raises:
            UnsupportedError: MIL has no such element type.
        """
        kind = self._kind
        if kind.element is None or kind.element.dtype is None:
            message = f"element type of {self.name}: expected one that MIL has, got {kind.text}"
            raise UnsupportedError(message, file=self.opened.file, code="element-type")
        return cast(DType, kind.element.dtype)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the values.

        Raises:
            UnsupportedError: neither NumPy nor ml_dtypes has the element type, or its code is not known.
        """
        kind = self._kind
        if kind.element is None:
            message = f"element type of {self.name}: expected one that is known, got {kind.text}"
            raise UnsupportedError(message, file=self.opened.file, code="element-type")
        return cast("np.dtype[Any]", kind.element.numpy)

    @property
    def dtype_text(self) -> str:
        """See the class."""
        return str(self._kind.text)

    @property
    def is_computed(self) -> bool:
        """Whether it is computed from stored parts."""
        return self.row.op in self.opened.program.computed

    @property
    def chain(self) -> WeightRow | None:
        """The row of a compressed weight; None of a dense one; for milblob's own modules."""
        return self.row if self.is_computed else None

    @property
    def is_blob(self) -> bool:
        """Whether it is a resource, not a value written inline; for milblob's own modules."""
        return self.is_computed or self.opened.program.stored(self.row.op).resource is not None

    @property
    def is_dense(self) -> bool:
        """Whether it is a constant directly in a function; for milblob's own modules."""
        return not self.is_computed and self.row.ordinal >= 0

    @property
    def place(self) -> ConstantPlace:
        """Where the values come from; for milblob's own modules."""
        kind = self._kind
        dtype = kind.element.dtype if kind.element is not None else None
        make = ComputedPlace if self.is_computed else ConstantPlace
        return make(self.opened, self.name, self.row.op, dtype, self._shape)

    @property
    def nbytes(self) -> int:
        """See the class: `stored_nbytes`."""
        return self.stored_nbytes

    @property
    def stored_nbytes(self) -> int:
        """See the class."""
        return self.place.nbytes() if self.is_computed else self.opened.program.stored(self.row.op).nbytes

    def stored_pieces(self) -> dict[Hashable, int]:
        """Return the stored pieces: for each a key, equal if tensors share the piece, and its number of bytes."""
        program = self.opened.program
        rows = program.parts_of(self.row.op).values() if self.is_computed else (self.row.op,)
        return {stored.key: stored.nbytes for stored in map(program.stored, rows)}

    @property
    def function(self) -> str:
        """See the class."""
        return self.row.function

    @property
    def ordinal(self) -> int:
        """See the class."""
        return self.row.ordinal

    @property
    def op(self) -> str:
        """See the class."""
        return short_family(self.opened.program.bytecode.op_name(self.row.op))

    @property
    def file(self) -> str | None:
        """See the class."""
        return self.opened.file

    @property
    def offset(self) -> int | None:
        """See the class."""
        try:
            return None if self.is_computed else self.opened.program.stored(self.row.op).offset
        except UnsupportedError:  # reading it names what is not known
            return None

    @property
    def label(self) -> str:
        """See the class."""
        program = self.opened.program
        row = self.row.op
        if self.is_computed:
            row = next(iter(program.parts_of(row).values()), row)
        return program.debug_label(row)

    @property
    def consumers(self) -> tuple[AssetConsumer, ...]:
        """The operations that read it, in the order of the program."""
        program = self.opened.program
        found = []
        for reader, number in program.uses(self.row.op):
            name = program.bytecode.op_name(reader)
            found.append(
                AssetConsumer(reader, short_family(name), program.label(reader), program.operand(reader, number))
            )
        return tuple(found)

    @property
    def parts(self) -> Mapping[str, "AssetTensor"]:
        """Operand -> stored part of a compressed weight; empty for others."""
        row, program = self.row, self.opened.program
        rows = program.parts_of(row.op) if self.is_computed else {}
        return MappingProxyType(
            {
                key: AssetTensor(self.opened, WeightRow(f"{row.name}.{key}", row.function, op, -1))
                for key, op in rows.items()
            }
        )

    @property
    def compression(self) -> Compression | None:
        """How it is compressed, as for a `Tensor`; None if it is not."""
        if not self.is_computed:
            return None
        chain = AssetDecoder(self.opened).described(self.row.op)
        return Compression(self.op, label=self.op) if chain is None else describe(chain, self._number)

    def _number(self, part: Any) -> int | None:
        try:
            return int(self.opened.constant(part.row).reshape(-1)[0])
        except (AttributeError, MilblobError, ValueError, IndexError):
            return None

    def __repr__(self) -> str:
        scheme = f", {found.scheme}" if (found := self.compression) else ""
        return f"<AssetTensor {self.name!r}: {type_text(self._kind)}{scheme}>"
