"""One tensor of a model: where it is, what it is, and its values when asked."""

import contextlib
from collections.abc import Iterator, Mapping
from math import prod
from types import MappingProxyType
from typing import Any, cast

import numpy as np

from . import _codec
from .beneath import join_relative
from .blob import BlobReader, BlobRecord, array_over, copy_into, require_fit
from .compression import Compression, describe
from .decode import Chain
from .dense import Dense, Packed, pack, read, read_key
from .dtypes import BY_MIL_CODE, DType
from .errors import FormatError, MilblobError, ResolveError
from .package import MODEL_PATH, Package, Source
from .program import Compressed, Program, Use
from .tensorvalue import require_shape, stored_bytes, unpack_at

_EMPTY: Mapping[str, "Tensor"] = MappingProxyType({})


class Tensor:
    """One tensor of a model, not yet read.

    `np.asarray(t)`, `t[...]` and `t.read()` give the values: a read-only view of the mapped file wherever the stored
    bytes are the values, else a new array. Views may be unaligned (`array.flags.aligned`), and stay valid after the
    model is closed.

    Attributes:
        name: unique in its model.
        dtype: NumPy dtype of the values; `mil_dtype` is the DType.
        shape: as declared; a dimension that is left open follows from the values.
        nbytes: bytes stored for it: packed for sub-byte dtypes, the sum of the parts for a compressed weight (a blob
            that is two parts counts once).
        function: name of its function; "" for attributes of the whole Program and in blob files.
        op: type of the operation that holds it ("const", "constexpr_lut_to_dense", ...), "" where there is none.
        file: path of the file that holds the values; None in a buffer.
        offset: in a blob file, of the record's metadata; of an immediate value, of its TensorValue in the model file.
            None for immediates of MIL text and for compressed weights, whose parts have offsets of their own.
        is_blob: whether the values are in a blob file.
    """

    __slots__ = (
        "_compressed", "_constant", "_package", "_program", "_shape", "_source", "mil_dtype", "name", "offset",
    )  # fmt: skip

    def __init__(
        self,
        package: Package,
        name: str,
        mil_dtype: DType,
        shape: tuple[int | None, ...],
        source: Source | None = None,
        program: Program | None = None,
        constant: Any = None,
        compressed: Compressed | None = None,
        offset: int | None = None,
    ) -> None:
        self._package = package
        self.name = name
        self.mil_dtype = mil_dtype
        self._shape = shape
        self._source = source
        self._program = program
        self._constant = constant
        self._compressed = compressed
        self.offset = offset

    # ------------------------------------------------------------------------------------------------------ what it is

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the values."""
        return self.mil_dtype.numpy

    @property
    def shape(self) -> tuple[int, ...]:
        """Dimensions; one that the type leaves open is found by counting the values."""
        if None in self._shape:
            self._shape = self.read().shape
        return self._shape  # type: ignore[return-value]

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self._shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes stored: packed for sub-byte dtypes, all parts together for a compressed weight."""
        if self._compressed is not None:
            # Two parts may be one blob: a mask is named by sparse_to_dense and by what computes its values.
            parts = {
                (c.text, c.blob_offset) if c.storage == _codec.BLOB else id(c): c for c in self._compressed.stored()
            }
            return sum(self._part(c).nbytes for c in parts.values())
        if self.mil_dtype is DType.STRING:
            return int(self._constant.payload[1])
        return self.mil_dtype.nbytes(self.size)

    @property
    def is_blob(self) -> bool:
        """Whether the values are in a blob file, not in the Program."""
        return self._constant.storage == _codec.BLOB if self._constant is not None else self._compressed is None

    @property
    def function(self) -> str:
        """Name of the function it belongs to, as in `Model.functions`, or ""."""
        if self._program is None:
            return ""
        scan = self._program.scan
        compressed = self._compressed
        number = scan.blocks[compressed.op.block][1] if compressed is not None else self._constant.function
        return self._program.prefix + scan.functions[number][0] if number >= 0 else ""

    @property
    def op(self) -> str:
        """Type of the operation that holds it, or ""."""
        op = self._op()
        return str(op.type) if op is not None else ""

    def _op(self) -> Any:
        if self._compressed is not None:
            return self._compressed.op
        return self._constant.op if self._constant is not None else None

    @property
    def file(self) -> str | None:
        """Path of the file that holds the values; it need not exist. None in a buffer."""
        if self._source is None:
            return self._package.path
        if self._compressed is not None:
            files = {self._part(c).file for c in self._compressed.stored()}
            return files.pop() if len(files) == 1 else None
        if self._constant.storage != _codec.BLOB or self._source.directory is None:
            return self._source.mapping.name
        return join_relative(self._source.directory.path, self._constant.text.removeprefix(MODEL_PATH))

    @property
    def _place(self) -> Any:
        """What two tensors of an open model that are one record have in common; None of what is in no weight file."""
        constant = self._constant
        if not (constant.storage == _codec.BLOB if constant is not None else self._compressed is None):
            return None
        if self._package.staged:
            return None
        return (constant.text if constant is not None else None), id(self._source), self.offset

    @property
    def data_offset(self) -> int | None:
        """In a blob file, byte offset of the first value, as its record says; None for other tensors.

        Raises:
            As `read`: this looks into the file.
        """
        if not self.is_blob or self.offset is None:
            return None
        self._package.require_open()
        if self._source is None:
            return cast(BlobReader, self._package.blobs).record(self.offset).data_offset
        return self._package.reader(self._source, self._constant.text).record(self.offset).data_offset

    @property
    def parts(self) -> Mapping[str, "Tensor"]:
        """Parameter -> stored part of a compressed weight (which may be compressed itself); empty for others."""
        if self._compressed is None:
            return _EMPTY
        return MappingProxyType({key: self._part(part) for key, part in self._compressed.parts.items()})

    def _part(self, part: Any) -> "Tensor":
        # Made anew each time: tensors that held each other would be a cycle, and keep their files mapped for long.
        source, program = cast(Source, self._source), cast(Program, self._program)
        return make_tensor(self._package, source, program, program.part_names[id(part)], part)

    @property
    def compression(self) -> Compression:
        """How it is compressed: a str, the operation without "constexpr_", with attributes; "" if it is not."""
        return Compression() if self._compressed is None else describe(self._compressed, self._number)

    def _number(self, constant: Any) -> int | None:
        """The value of a part that is one integer, if it can be read."""
        if constant is None or isinstance(constant, Compressed) or constant.shape is None:
            return None
        if None in constant.shape or prod(constant.shape) != 1:  # each weight would unpack it again, whatever its size
            return None
        try:
            return int(self._part(constant)._packed().array().reshape(-1)[0])
        except (MilblobError, OSError, ValueError, TypeError, IndexError):
            return None

    @property
    def consumers(self) -> tuple[Use, ...]:
        """Who reads it: operations, constexpr ones among them, and blocks that return it; in Program order."""
        op = self._op()
        if op is None or self._program is None:
            return ()
        constant = self._constant
        if constant is not None and not (constant.key == "val" and op.type == "const"):
            return (Use(op.type, op.name, constant.key),)
        if self._source is not None:
            self._source.mapping.check_size()
        return tuple(self._program.uses().get((op.block, op.name), ()))

    # --------------------------------------------------------------------------------------------------------- reading

    def read(self, *, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Return the values.

        Args:
            out: array of the same dtype and shape to fill instead. Values that have to be computed (compressed
                weights, packed ones, immediates of integers) are written straight into it if it is C-contiguous.
                What it holds after an exception is unspecified.

        Returns:
            ndarray, read-only view of the mapped file if the stored bytes are the values, else a new array: the dense
            values of a compressed weight, bit for bit what coremltools decompresses it to. With `out`, that array.

        Raises:
            ResolveError: the weight file is missing or outside the model, or its record has another dtype or size.
            FormatError: broken bytes; parts of a compressed weight that do not fit each other; the file has shrunk
                since it was opened.
            ValueError: `out` does not fit, or the model is closed.
        """
        with self._naming():
            if self._compressed is not None:
                dense = self._dense()
                self._account()
                if out is None:
                    return read(dense)
                require_fit(out, dense.dtype.numpy, dense.shape)
                if out.flags.c_contiguous and out.flags.writeable:
                    return read(dense, out)
                return copy_into(out, read(dense))
            return self._read(out)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Say in errors which tensor they are about."""
        try:
            yield
        except MilblobError as error:
            self._package.require_open()  # what another thread closes meanwhile reads as if it were empty
            error.where = error.where or self.where
            raise

    @property
    def where(self) -> str:
        """Path in the Program, such as ``main.block['CoreML7'].op[12] 'conv_3'.weight``; the name in a blob file."""
        if self._program is None:
            return self.name
        return self._program.path(self._op(), self._constant)

    def _read(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        package = self._package
        package.require_open()
        if package.staged and self.name in package.staged:
            staged = package.staged[self.name]
            return staged if out is None else copy_into(out, staged)
        if self._compressed is not None:
            dense = self._dense()
            self._account()
            return read(dense)
        if self.is_blob:
            reader, record = self._record()
            if self.mil_dtype.is_sub_byte:  # others are views
                self._account()
            return array_over(reader._mapping.live(), record, cast("tuple[int, ...]", self._shape), out)
        source, program = cast(Source, self._source), cast(Program, self._program)
        source.mapping.check_size()
        offset, nbytes = self._constant.payload
        return unpack_at(program.buffer, offset, nbytes, self.mil_dtype, self._shape, out)

    def _record(self) -> tuple[BlobReader, BlobRecord]:
        """The record that holds the values, once it is known to be what the Program declares, and its file."""
        if self._source is None:
            reader = cast(BlobReader, self._package.blobs)
        else:
            reader = self._package.reader(self._source, self._constant.text)
        record = reader.record(cast(int, self.offset))
        if record.dtype is not self.mil_dtype:
            words = f"record dtype: expected {self.mil_dtype} as the Program declares, got {record.dtype}"
            raise ResolveError(words, offset=record.offset, file=reader.name)
        shape = cast("tuple[int, ...]", self._shape)
        require_shape(shape, record.offset, reader.name)
        if None in shape:
            raise ResolveError(
                f"shape: expected every dimension known, got {shape}", offset=record.offset, file=reader.name
            )
        if record.count != prod(shape):
            words = f"elements of the record: expected {prod(shape)} for shape {shape}, got {record.count}"
            raise ResolveError(words, offset=record.offset, file=reader.name)
        return reader, record

    def _packed(self) -> Packed:
        """The elements of a stored part as they are stored."""
        with self._naming():
            if self._constant.storage == _codec.BLOB:
                reader, record = self._record()
                buffer = reader._mapping.live()
                return Packed(buffer, record.data_offset, self.mil_dtype, self.shape)
            return pack(self._read(), self.mil_dtype)

    def _dense(self) -> Dense:
        """What computes the values of a compressed weight."""
        self._package.require_open()
        program, budget = cast(Program, self._program), self._package.budget
        chain = Chain(lambda part: self._part(part)._packed(), program.path, budget.require)
        dense = chain.dense(cast(Compressed, self._compressed))
        budget.spend((self.name, "parts"), chain.nbytes)
        return dense

    def _account(self) -> None:
        """Count the values as ones that are made, or looked through: see `budget.Budget`.

        Raises:
            UnsupportedError: more than may be made of the files of this model.
        """
        self._package.budget.spend(self.name, self.mil_dtype.numpy.itemsize * self.size)

    def read_packed(self) -> np.ndarray[Any, Any]:
        """Return the elements as a weight file stores them: little-endian, those below 8 bits packed.

        Returns:
            uint8 array of shape (nbytes,): a read-only view of the mapped file wherever that has these bytes, else a
            new array.

        Raises:
            As `read`; TypeError: strings, which weight files do not hold.
        """
        if self.mil_dtype is DType.STRING:
            raise TypeError(f"dtype of {self.name}: expected one of fixed size, got string")
        if not (self.mil_dtype.is_sub_byte and self.is_blob) or self.name in self._package.staged:
            return np.asarray(stored_bytes(self.read(), self.mil_dtype))
        try:
            self._package.require_open()
            reader, record = self._record()
        except MilblobError as error:
            error.where = error.where or self.where
            raise
        return reader.read_packed(record)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        values = self.read()
        if dtype is not None and np.dtype(dtype) != values.dtype:
            if copy is False:
                raise ValueError(
                    f"array of {values.dtype} as {np.dtype(dtype)}: expected a copy to be allowed, got copy=False"
                )
            return values.astype(dtype)
        return values.copy() if copy else values

    def __getitem__(self, key: Any) -> Any:
        if self._compressed is None:
            return self.read()[key]
        with self._naming():
            return read_key(self._dense(), key)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.read())  # read once, not once per item, as iteration by index would

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a tensor with no dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        shape = ", ".join("?" if size is None else str(size) for size in self._shape)
        scheme = f", {self.compression}" if self.compression else ""
        return f"<Tensor {self.name!r}: {self.mil_dtype} [{shape}]{scheme}>"


def make_tensor(package: Package, source: Source, program: Program, name: str, row: Any) -> Tensor:
    """Make the tensor of a `_codec.Constant` or of a `Compressed`.

    Raises:
        FormatError: an operation that computes a weight, but whose output is no tensor.
    """
    if isinstance(row, Compressed):
        op = row.op
        if op.shape is None:
            words = f"output of {op.type}: expected a tensor type, got none"
            raise FormatError(words, file=source.mapping.name, where=program.path(op))
        return Tensor(package, name, BY_MIL_CODE[op.mil_code], op.shape, source, program, None, row)
    offset = None
    if row.storage == _codec.BLOB:
        offset = row.blob_offset
    elif program.buffer is source.mapping.buffer:  # neither parsed from text nor rewritten: offsets are the file's
        offset = row.payload[0]
    dtype, shape = (BY_MIL_CODE[row.mil_code], row.shape) if row.shape is not None else _untyped(program.buffer, row)
    return Tensor(package, name, dtype, shape, source, program, row, None, offset)


def _untyped(buffer: _codec.Buffer, constant: _codec.Constant) -> tuple[DType, tuple[int | None, ...]]:
    """Dtype and shape of a list element that states no type: what its field holds, as a vector."""
    field = _codec.tensor_locate(buffer, *constant.payload)[0]
    names = ("UINT8", "FLOAT32", "INT32", "BOOL", "STRING", "INT64", "FLOAT64", "UINT8")
    return DType[names[field]], (None,) if field else (0,)
