"""Where the values of a tensor come from: a record, an immediate, a chain, a foreign file, an assigned array.

A place knows dtype, shape and stored bytes, and how to read them. Tensors, tools and formats read through places, so a
new container needs only one new place.
"""

from collections.abc import Hashable
from math import prod
from typing import Any, cast

import numpy as np

from ..blobs.reader import BlobReader, BlobRecord, array_over
from ..dtypes import DType
from ..errors import MilblobError, Naming, ResolveError
from ..program.scan import ProgramScan
from ..storage.beneath import join_relative
from ..values.arrays import copy_into
from ..values.dense import Dense, Packed, pack
from ..values.tensorvalue import require_shape, stored_bytes
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

        Raises: LimitError: more bytes than may be produced from the files.
        """

    def nbytes(self) -> int:
        """Return the number of stored bytes: packed for sub-byte dtypes, all parts together for a chain."""
        return self.dtype.nbytes(prod(self.known_shape()))

    def known_shape(self) -> tuple[int, ...]:
        """Return the dimensions; one that is left open is found by counting the values."""
        return self.read().shape if None in self.shape else cast("tuple[int, ...]", self.shape)

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

    def naming(self) -> Naming:
        """Add the tensor's name to errors raised inside."""
        return Naming(self.name_error)

    def name_error(self, error: MilblobError) -> None:
        """Add the tensor's name to an error."""
        error.where = error.where or self.where


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
        return self._below.where

    @property
    def file(self) -> str | None:
        return self._below.file

    def key(self) -> Hashable:
        return "assigned", self.where

    def read(self, out: Array | None = None) -> Array:
        return self._array if out is None else copy_into(out, self._array)


# ------------------------------------------------------------------------------------------------------------ of models


class ModelPlace(Place):
    """A place in a model: reading ends when the model is closed."""

    __slots__ = ("name", "package")

    def __init__(self, package: Package, name: str, dtype: DType, shape: Shape) -> None:
        super().__init__(dtype, shape)
        self.package = package  # files of the model
        self.name = name  # of the tensor

    def account(self) -> None:
        self.package.budget.spend(self.name, self.dtype.numpy.itemsize * prod(self.known_shape()))

    def name_error(self, error: MilblobError) -> None:
        self.package.require_open()  # a file that another thread has just closed reads as if it were empty
        super().name_error(error)


def path_of(source: Source, text: str) -> str | None:
    """Return the path of a weight file that a Program names; it need not exist. None in a buffer."""
    if source.directory is None:
        return source.mapping.name
    return join_relative(source.directory.path, text.removeprefix(MODEL_PATH))


class RecordPlace(ModelPlace):
    """A record of a weight file.

    `source`: the Program that refers to the record; None in a bare weight file. `file_name`: the weight file, as the
    Program spells it. `scan`, `constant`: the row that refers to it. None: `name` is where it is, for messages.
    """

    __slots__ = ("_constant", "_file_name", "_scan", "_source", "offset")

    def __init__(
        self,
        package: Package,
        name: str,
        dtype: DType,
        shape: Shape,
        offset: int,
        source: Source | None = None,
        file_name: str = "",
        scan: ProgramScan | None = None,
        constant: Any = None,
    ) -> None:
        super().__init__(package, name, dtype, shape)
        self.offset = offset
        self._source = source
        self._file_name = file_name
        self._scan = scan
        self._constant = constant

    @property
    def where(self) -> str:
        return self.name if self._scan is None else self._scan.path(self._constant.op, self._constant)

    @property
    def file(self) -> str | None:
        """See Place; the file need not exist."""
        return self.package.path if self._source is None else path_of(self._source, self._file_name)

    def key(self) -> Hashable:
        return self.file, self.offset

    def reader(self) -> BlobReader:
        """Return the weight file.

        Raises: ResolveError: it is missing, or outside the model. ValueError: the model is closed.
        """
        self.package.require_open()
        if self._source is None:
            return cast(BlobReader, self.package.blobs)
        return self.package.reader(self._source, self._file_name)

    @property
    def span(self) -> tuple[int, int]:
        """Offset of the record, and the bytes of data that the Program declares; 0 where they are unknown."""
        shape = self.shape
        return self.offset, 0 if None in shape else self.dtype.nbytes(prod(cast("tuple[int, ...]", shape)))

    def record(self) -> tuple[BlobReader, BlobRecord]:
        """Return the weight file and the record, once the record is known to match what the Program declares.

        Raises: ResolveError: it does not match. As reading the record does.
        """
        reader = self.reader()
        if reader.mapping.is_partial:
            reader.fetch([self.span])  # the record together with its data
        record = reader.record(self.offset)
        if record.dtype is not self.dtype:
            message = f"record dtype: expected {self.dtype} as the Program declares, got {record.dtype}"
            raise ResolveError(message, offset=record.offset, file=reader.name)
        shape = cast("tuple[int, ...]", self.shape)
        require_shape(shape, record.offset, reader.name)
        if None in shape:
            raise ResolveError(
                f"shape: expected every dimension known, got {shape}", offset=record.offset, file=reader.name
            )
        if record.count != prod(shape):
            message = f"elements of the record: expected {prod(shape)} for shape {shape}, got {record.count}"
            raise ResolveError(message, offset=record.offset, file=reader.name)
        return reader, record

    def read(self, out: Array | None = None) -> Array:
        with self.naming():
            reader, record = self.record()
            if self.dtype.is_sub_byte:  # others are zero-copy
                self.account()
            return array_over(reader.data_of(record), record, cast("tuple[int, ...]", self.shape), out)

    def packed(self) -> Packed:
        with self.naming():
            reader, record = self.record()
            return Packed(reader.data_of(record), record.data_offset, self.dtype, cast("tuple[int, ...]", self.shape))

    def read_packed(self) -> Array:
        if not self.dtype.is_sub_byte:
            return super().read_packed()
        with self.naming():
            reader, record = self.record()
            return reader.read_packed(record)


def with_assigned(stored: Place, package: Package, name: str) -> Place:
    """Return the place of the values assigned to a tensor, or that of the stored ones if there are none."""
    values = package.assigned.get(name) if package.assigned else None
    return stored if values is None else AssignedPlace(stored, values)
