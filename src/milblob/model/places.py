"""Where the values of a tensor come from: a record, an immediate, a chain, a foreign file, an assigned array.

A place knows dtype, shape and stored bytes, and how to read them. Tensors, tools and formats read through places, so a
new container needs only one new place.
"""

from collections.abc import Hashable
from math import prod
from typing import Any, cast

import numpy as np

from .. import _codec
from ..blobs.reader import BlobReader, BlobRecord, array_over
from ..dtypes import BY_MIL_CODE, DType
from ..errors import FormatError, MilblobError, ResolveError
from ..program.constexpr import Chain
from ..program.scan import Compressed, Program
from ..storage.beneath import join_relative
from ..values.arrays import copy_into, require_fit
from ..values.dense import Dense, Packed, pack, read, read_key
from ..values.tensorvalue import require_shape, stored_bytes, undeclared, unpack_at
from .package import MODEL_PATH, Package, Source

Array = np.ndarray[Any, Any]
Shape = tuple[int | None, ...]


class Place:
    """Where the values of one tensor come from.

    Attributes:
        dtype: DType of the elements.
        shape: dimensions as declared; None for one that is left open.
        where: path in the Program, or another name, for messages.
        file: path of the file that holds the values; None in a buffer, or where there are several.
        is_computed: whether the values are computed from stored parts, by `dense`.
    """

    __slots__ = ("dtype", "shape")

    is_computed = False

    def __init__(self, dtype: DType, shape: Shape) -> None:
        self.dtype = dtype
        self.shape = shape

    @property
    def where(self) -> str:
        """See the class."""
        raise NotImplementedError

    @property
    def file(self) -> str | None:
        """See the class."""
        return None

    def key(self) -> Hashable:
        """Return a key that is equal for two places in one model exactly if they are the same stored bytes."""
        return id(self)

    def account(self) -> None:
        """Count the values as produced or scanned: see `budget.Budget`.

        Raises:
            LimitError: more bytes than may be produced from the files.
        """

    def nbytes(self) -> int:
        """Return the number of stored bytes: packed for sub-byte dtypes, all parts together for a chain."""
        shape = self.shape
        return self.dtype.nbytes(prod(cast("tuple[int, ...]", shape) if None not in shape else self.read().shape))

    def read(self, out: Array | None = None) -> Array:
        """Return the values, as `Tensor.read`."""
        raise NotImplementedError

    def packed(self) -> Packed:
        """Return the elements in their stored form, zero-copy where possible; those of a chain are computed."""
        return pack(self.read(), self.dtype)

    def dense(self) -> Dense | None:
        """Return what computes any range of the values; None if nothing needs computing."""
        return None

    def read_packed(self) -> Array:
        """Return the stored bytes as a uint8 vector; zero-copy where possible. See `Tensor.read_packed`."""
        return np.asarray(stored_bytes(self.read(), self.dtype))

    def read_key(self, key: Any) -> Any:
        """Return `values[key]`."""
        return self.read()[key]

    def naming(self) -> "_Naming":
        """Add the tensor's name to errors raised inside."""
        return _Naming(self)

    def name_error(self, error: MilblobError) -> None:
        """Add the tensor's name to an error."""
        error.where = error.where or self.where


class _Naming:
    """See `Place.naming`. A class, because a generator costs more than all that reading a small record does."""

    __slots__ = ("_place",)

    def __init__(self, place: Place) -> None:
        self._place = place

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, MilblobError):
            self._place.name_error(error)


class AssignedPlace(Place):
    """Values that were assigned but not written yet; all else is as for the place they will be written to."""

    __slots__ = ("_array", "_below")

    def __init__(self, below: Place, array: Array) -> None:
        super().__init__(below.dtype, array.shape)
        self._below = below
        self._array = array.view()
        self._array.flags.writeable = False

    @property
    def where(self) -> str:
        """See Place."""
        return self._below.where

    @property
    def file(self) -> str | None:
        """See Place."""
        return self._below.file

    def key(self) -> Hashable:
        """See Place."""
        return "assigned", self.where

    def read(self, out: Array | None = None) -> Array:
        """See Place."""
        return self._array if out is None else copy_into(out, self._array)


# ------------------------------------------------------------------------------------------------------------ of models


class ModelPlace(Place):
    """A place in a model: reading ends when the model is closed.

    Attributes:
        package: files of the model.
        name: of the tensor.
    """

    __slots__ = ("name", "package")

    def __init__(self, package: Package, name: str, dtype: DType, shape: Shape) -> None:
        super().__init__(dtype, shape)
        self.package = package
        self.name = name

    def account(self) -> None:
        """See Place."""
        shape = self.shape if None not in self.shape else self.read().shape
        count = prod(cast("tuple[int, ...]", shape))
        self.package.budget.spend(self.name, self.dtype.numpy.itemsize * count)

    def name_error(self, error: MilblobError) -> None:
        """See Place."""
        self.package.require_open()  # a file closed by another thread meanwhile reads as if it were empty
        super().name_error(error)


def path_of(source: Source, text: str) -> str | None:
    """Return the path of a weight file that a Program names; it need not exist. None in a buffer."""
    if source.directory is None:
        return source.mapping.name
    return join_relative(source.directory.path, text.removeprefix(MODEL_PATH))


class RecordPlace(ModelPlace):
    """A record of a weight file.

    Args:
        constant: the row of a scan that refers to the record, and where it was found; None in a bare weight file.
    """

    __slots__ = ("_program", "_source", "constant", "offset")

    def __init__(
        self,
        package: Package,
        name: str,
        dtype: DType,
        shape: Shape,
        offset: int,
        source: Source | None = None,
        program: Program | None = None,
        constant: Any = None,
    ) -> None:
        super().__init__(package, name, dtype, shape)
        self.offset = offset
        self.constant = constant
        self._source = source
        self._program = program

    @property
    def where(self) -> str:
        """See Place."""
        return self.name if self._program is None else self._program.path(self.constant.op, self.constant)

    @property
    def file(self) -> str | None:
        """See Place; the file need not exist."""
        return self.package.path if self._source is None else path_of(self._source, self.constant.text)

    def key(self) -> Hashable:
        """See Place."""
        return self.file, self.offset

    def reader(self) -> BlobReader:
        """Return the weight file.

        Raises:
            ResolveError: it is missing, or outside the model. ValueError: the model is closed.
        """
        self.package.require_open()
        if self._source is None:
            return cast(BlobReader, self.package.blobs)
        return self.package.reader(self._source, self.constant.text)

    def record(self) -> tuple[BlobReader, BlobRecord]:
        """Return the weight file and the record, once the record is known to match what the Program declares.

        Raises:
            ResolveError: it does not match. As reading the record does.
        """
        reader = self.reader()
        record = reader.record(self.offset)
        if record.dtype is not self.dtype:
            words = f"record dtype: expected {self.dtype} as the Program declares, got {record.dtype}"
            raise ResolveError(words, offset=record.offset, file=reader.name)
        shape = cast("tuple[int, ...]", self.shape)
        require_shape(shape, record.offset, reader.name)
        if None in shape:
            raise ResolveError(
                f"shape: expected every dimension known, got {shape}", offset=record.offset, file=reader.name
            )
        if record.count != prod(shape):
            words = f"elements of the record: expected {prod(shape)} for shape {shape}, got {record.count}"
            raise ResolveError(words, offset=record.offset, file=reader.name)
        return reader, record

    def read(self, out: Array | None = None) -> Array:
        """See Place."""
        with self.naming():
            reader, record = self.record()
            if self.dtype.is_sub_byte:  # others are zero-copy
                self.account()
            return array_over(reader.mapping.live(), record, cast("tuple[int, ...]", self.shape), out)

    def packed(self) -> Packed:
        """See Place."""
        with self.naming():
            reader, record = self.record()
            return Packed(reader.mapping.live(), record.data_offset, self.dtype, cast("tuple[int, ...]", self.shape))

    def read_packed(self) -> Array:
        """See Place."""
        if not self.dtype.is_sub_byte:
            return super().read_packed()
        with self.naming():
            reader, record = self.record()
            return reader.read_packed(record)


class ImmediatePlace(ModelPlace):
    """A value inside a Program."""

    __slots__ = ("constant", "program", "source")

    def __init__(
        self, package: Package, name: str, dtype: DType, shape: Shape, source: Source, program: Program, constant: Any
    ) -> None:
        super().__init__(package, name, dtype, shape)
        self.source = source
        self.program = program
        self.constant = constant

    @property
    def where(self) -> str:
        """See Place."""
        return self.program.path(self.constant.op, self.constant)

    @property
    def file(self) -> str | None:
        """See Place."""
        return self.source.mapping.name

    def key(self) -> Hashable:
        """See Place."""
        return self.program.prefix, self.constant.value

    def nbytes(self) -> int:
        """See Place."""
        return int(self.constant.payload[1]) if self.dtype is DType.STRING else super().nbytes()

    def read(self, out: Array | None = None) -> Array:
        """See Place."""
        with self.naming():
            self.package.require_open()
            self.source.mapping.check_size()
            offset, nbytes = self.constant.payload
            return unpack_at(self.program.buffer, offset, nbytes, self.dtype, self.shape, out)


class ChainPlace(ModelPlace):
    """A chain of constexpr operations: stored parts, and how the dense values are computed from them."""

    __slots__ = ("chain", "program", "source")

    is_computed = True

    def __init__(
        self,
        package: Package,
        name: str,
        dtype: DType,
        shape: Shape,
        source: Source,
        program: Program,
        chain: Compressed,
    ) -> None:
        super().__init__(package, name, dtype, shape)
        self.source = source
        self.program = program
        self.chain = chain

    @property
    def where(self) -> str:
        """See Place."""
        return self.program.path(self.chain.op)

    @property
    def file(self) -> str | None:
        """See Place; None where the parts are in several files."""
        files = {self.part(c).file for c in self.chain.stored()}
        return files.pop() if len(files) == 1 else None

    def key(self) -> Hashable:
        """See Place."""
        return self.program.prefix, self.chain.op.message, self.chain.output

    def part(self, row: Any) -> Place:
        """Return the place of a part: a `_codec.Constant`, or the Compressed that computes it."""
        return place_of(self.package, self.source, self.program, self.program.name_of(row), row)

    def nbytes(self) -> int:
        """See Place. Two parts may be one blob: sparse_to_dense and the operation computing its values share a mask."""
        rows = self.chain.stored()
        parts = {(c.text, c.blob_offset) if c.storage == _codec.BLOB else c: c for c in rows}
        return sum(self.part(c).nbytes() for c in parts.values())

    def dense(self) -> Dense:
        """See Place."""
        with self.naming():
            self.package.require_open()
            budget = self.package.budget
            chain = Chain(lambda row: self.part(row).packed(), self.program.path, budget.require)
            dense = chain.dense(self.chain)
            budget.spend((self.name, "parts"), chain.nbytes)
            return dense

    def account(self) -> None:
        """See Place; where the Program does not tell the shape, the parts do."""
        shape = self.shape if None not in self.shape else self.dense().shape
        count = prod(cast("tuple[int, ...]", shape))
        self.package.budget.spend(self.name, self.dtype.numpy.itemsize * count)

    def read(self, out: Array | None = None) -> Array:
        """See Place."""
        with self.naming():
            dense = self.dense()
            self.account()
            if out is None:
                return read(dense)
            require_fit(out, dense.dtype.numpy, dense.shape)
            return read(dense, out) if out.flags.carray else copy_into(out, read(dense))

    def read_key(self, key: Any) -> Any:
        """See Place."""
        with self.naming():
            return read_key(self.dense(), key)


def place_of(package: Package, source: Source, program: Program, name: str, row: Any) -> Place:
    """Return the place of a `_codec.Constant` or of a `Compressed`.

    Args:
        name: of the tensor: assigned values take precedence over stored ones.

    Raises:
        FormatError: an operation that computes a weight, but whose output is no tensor.
    """
    return with_assigned(stored_place(package, source, program, name, row), package, name)


def with_assigned(stored: Place, package: Package, name: str) -> Place:
    """Return the place of the values assigned to a tensor, or that of the stored ones if there are none."""
    values = package.assigned.get(name) if package.assigned else None
    return stored if values is None else AssignedPlace(stored, values)


def stored_place(package: Package, source: Source, program: Program, name: str, row: Any) -> Place:
    """Return the place of the stored values, ignoring assigned ones; as `place_of`."""
    dtype, shape = declared(source, program, row)
    if isinstance(row, Compressed):
        return ChainPlace(package, name, dtype, shape, source, program, row)
    if row.storage == _codec.BLOB:
        return RecordPlace(package, name, dtype, shape, row.blob_offset, source, program, row)
    return ImmediatePlace(package, name, dtype, shape, source, program, row)


def declared(source: Source, program: Program, row: Any) -> tuple[DType, Shape]:
    """Return dtype and shape that a Program declares for a `_codec.Constant` or a `Compressed`.

    Raises:
        FormatError: an operation that computes a weight, but whose output is no tensor.
    """
    if isinstance(row, Compressed):
        op = row.op
        if op.shape is None:
            words = f"output of {op.type}: expected a tensor type, got none"
            raise FormatError(words, file=source.mapping.name, where=program.path(op))
        return BY_MIL_CODE[op.mil_code], op.shape
    if row.shape is not None:
        return BY_MIL_CODE[row.mil_code], row.shape
    return undeclared(program.buffer, *row.payload)  # an element of a list that states no type
