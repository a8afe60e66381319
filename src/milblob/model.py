"""A model as a mapping from names to tensors: milblob.open and milblob.load."""

import os
from collections.abc import Iterator
from collections.abc import Mapping as MappingABC
from math import prod
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Self, cast

import numpy as np

from . import _codec
from .blob import RECORD, BlobReader, BlobRecord, array_over, copy_into
from .dtypes import BY_BLOB_CODE, BY_MIL_CODE, DType
from .errors import FormatError, MilblobError, ResolveError, UnsupportedError
from .package import Package, Source, contained, read_json
from .program import Compressed, Program, Use
from .tensorvalue import unpack_at

if TYPE_CHECKING:
    from .metadata import Metadata

_EMPTY: MappingABC[str, "Tensor"] = MappingProxyType({})


class Tensor:
    """One tensor of a model, not yet read.

    `np.asarray(t)`, `t[...]` and `t.read()` give the values: a read-only view of the mapped file wherever the stored
    bytes are the values, else a new array. Views may be unaligned (`array.flags.aligned`), and stay valid after the
    model is closed.

    Attributes:
        name: unique in its model.
        dtype: NumPy dtype of the values; `mil_dtype` is the DType.
        shape: as declared; a dimension that is left open follows from the values.
        nbytes: bytes stored for it: packed for sub-byte dtypes, the sum of the parts for a compressed weight.
        function: name of its function; "" for attributes of the whole Program and in blob files.
        op: type of the operation that holds it ("const", "constexpr_lut_to_dense", ...), "" where there is none.
        file: path of the file that holds the values; None in a buffer.
        offset: in a blob file, of the record's metadata; of an immediate value, of its TensorValue in the model file.
            None for immediates of MIL text and for compressed weights, whose parts have offsets of their own.
        is_blob: whether the values are in a blob file.
    """

    __slots__ = (
        "_compressed", "_constant", "_model", "_program", "_shape", "_source", "mil_dtype", "name", "offset",
    )  # fmt: skip

    def __init__(
        self,
        model: "Model",
        name: str,
        mil_dtype: DType,
        shape: tuple[int | None, ...],
        source: Source | None = None,
        program: Program | None = None,
        constant: Any = None,
        compressed: Compressed | None = None,
        offset: int | None = None,
    ) -> None:
        self._model = model
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
            return sum(self._model._stored(self, c).nbytes for c in self._compressed.stored())
        if self.mil_dtype is DType.STRING:
            return int(self._constant.payload[1])
        return self.mil_dtype.nbytes(self.size)

    @property
    def is_blob(self) -> bool:
        """Whether the values are in a blob file, not in the Program."""
        return self._constant.storage == _codec.BLOB if self._constant is not None else self._compressed is None

    @property
    def function(self) -> str:
        """Name of the function it belongs to, or ""."""
        if self._program is None:
            return ""
        scan = self._program.scan
        if self._compressed is not None:
            return str(scan.functions[scan.blocks[self._compressed.op.block][1]][0])
        return str(scan.functions[self._constant.function][0]) if self._constant.function >= 0 else ""

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
            return self._model.path
        if self._compressed is not None:
            files = {self._model._stored(self, c).file for c in self._compressed.stored()}
            return files.pop() if len(files) == 1 else None
        if self._constant.storage != _codec.BLOB or self._source.directory is None:
            return self._source.mapping.name
        tail = self._constant.text.removeprefix("@model_path/")
        return os.path.join(self._source.directory, *tail.split("/"))

    @property
    def parts(self) -> MappingABC[str, "Tensor"]:
        """Parameter -> stored part of a compressed weight (which may be compressed itself); empty for others."""
        if self._compressed is None:
            return _EMPTY
        parts = {}
        for key, part in self._compressed.parts.items():
            inner = isinstance(part, Compressed)
            parts[key] = self._model._inner(self, part) if inner else self._model._stored(self, part)
        return MappingProxyType(parts)

    @property
    def compression(self) -> str:
        """Scheme of a compressed weight: its operation without "constexpr_", such as "lut_to_dense"; else ""."""
        return self.op.removeprefix("constexpr_") if self._compressed is not None else ""

    @property
    def consumers(self) -> tuple[Use, ...]:
        """Who reads it: operations, constexpr ones among them, and blocks that return it; in Program order."""
        op = self._op()
        if op is None or self._program is None:
            return ()
        constant = self._constant
        if constant is not None and not (constant.key == "val" and op.type == "const"):
            return (Use(op.type, op.name, constant.key),)
        return tuple(self._model._uses(self._program).get((op.block, op.name), ()))

    # --------------------------------------------------------------------------------------------------------- reading

    def read(self, *, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Return the values.

        Args:
            out: array of the same dtype and shape to fill instead.

        Returns:
            ndarray, read-only view of the mapped file if the stored bytes are the values, else a new array. With `out`,
            that array.

        Raises:
            ResolveError: the weight file is missing or outside the model, or its record has another dtype or size.
            FormatError: broken bytes; the file has shrunk since it was opened.
            UnsupportedError: a compressed weight.
            ValueError: `out` does not fit, or the model is closed.
        """
        try:
            values = self._read()
        except MilblobError as error:
            if not error.where:
                error.where = self.where
            raise
        return values if out is None else copy_into(out, values)

    @property
    def where(self) -> str:
        """Path in the Program, such as ``main.block['CoreML7'].op[12] 'conv_3'.weight``; the name in a blob file."""
        if self._program is None:
            return self.name
        return self._program.path(self._op(), self._constant)

    def _read(self) -> np.ndarray[Any, Any]:
        model = self._model
        if self._compressed is not None:
            model._check_open()
            words = f"weight: expected one that is stored dense, got {self.op} (its parts can be read: stored=True)"
            raise UnsupportedError(words, file=self._source.mapping.name if self._source else None)
        if self._source is None or self._program is None:
            blobs = model._blobs()
            return blobs.read(self.offset or 0)
        constant = self._constant
        if constant.storage == _codec.BLOB:
            model._check_open()
            reader = model._package.reader(self._source, constant.text)
            buffer = reader._mapping.check_size()
            record = reader._record(buffer, constant.blob_offset)
            return self._checked(reader, buffer, record)
        self._source.mapping.check_size()
        offset, nbytes = constant.payload
        return unpack_at(self._program.buffer, offset, nbytes, self.mil_dtype, self._shape)

    def _checked(self, reader: BlobReader, buffer: _codec.Buffer, record: BlobRecord) -> np.ndarray[Any, Any]:
        """The values of a record, once it is known to hold what the Program declares."""
        if record.dtype is not self.mil_dtype:
            words = f"record dtype: expected {self.mil_dtype} as the Program declares, got {record.dtype}"
            raise ResolveError(words, offset=record.offset, file=reader.name)
        shape = cast("tuple[int, ...]", self._shape)
        if None in shape:
            raise ResolveError(
                f"shape: expected every dimension known, got {shape}", offset=record.offset, file=reader.name
            )
        if record.count != prod(shape):
            words = f"elements of the record: expected {prod(shape)} for shape {shape}, got {record.count}"
            raise ResolveError(words, offset=record.offset, file=reader.name)
        if record.dtype.is_sub_byte:
            return array_over(buffer, record).reshape(shape)
        return np.ndarray(shape, record.dtype.numpy, buffer, record.data_offset)  # type: ignore[arg-type]

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
        return self.read()[key]

    def __len__(self) -> int:
        if not self._shape:
            raise TypeError("len() of a tensor with no dimensions")
        return self.shape[0]

    def __repr__(self) -> str:
        shape = ", ".join("?" if size is None else str(size) for size in self._shape)
        scheme = f", {self.compression}" if self.compression else ""
        return f"<Tensor {self.name!r}: {self.mil_dtype} [{shape}]{scheme}>"


class Model(MappingABC[str, Tensor]):
    """An open model: a mapping from names to `Tensor`. Made by `milblob.open`.

    Attributes:
        path: as given; None for a buffer.
        kind: "mlpackage", "mlmodelc", "mlmodel", "mil" or "blob".
        functions: names of all functions, prefixed in a pipeline.

    A name without its function or model prefix is accepted where only one tensor has it. Reading is safe from several
    threads. Closing ends reading; arrays that were read stay valid.
    """

    def __init__(self, source: Any, *, constants: bool = False, stored: bool = False) -> None:
        self._closed = False
        self._constants = constants
        self._stored_view = stored
        self._package = Package(source)
        self.path = self._package.path
        self.kind = self._package.kind
        self._tensors: MappingABC[str, Tensor] = {}
        self._short: dict[str, list[str]] | None = None
        self._parts: dict[int, Tensor] = {}
        self._use_tables: dict[int, dict[tuple[int, str], list[Use]]] = {}
        self._metadata: Metadata | None = None
        self._programs: list[tuple[Source, Program]] = []
        try:
            for part in self._package.sources:
                buffer, offset, nbytes = part.program
                part.mapping.expect_random(True)
                program = Program(buffer, (offset, nbytes), part.prefix, constants)
                part.mapping.expect_random(False)
                self._programs.append((part, program))
                self._add(part, program)
            if self._package.blobs is not None:
                self._tensors = _Records(self, self._package.blobs)
        except BaseException:
            self.close()
            raise

    def _add(self, source: Source, program: Program) -> None:
        scan = program.scan
        constants = scan.constants
        names, op_names = program.names()
        ends, parts = program.compressed()
        waiting = {id(group.op): group for group in ends}
        tensors: dict[str, Tensor] = self._tensors  # type: ignore[assignment]
        plain = not program.rewritten and program.buffer is source.mapping.buffer  # else not offsets in the file
        listed = dict(zip(map(id, constants), names, strict=True))
        small = [c for c in parts.values() if id(c) not in listed]  # below the threshold, but a part of a weight
        names += [f"{program.prefix}{c.op.name}" for c in small]
        for name, c in zip(names, constants + small, strict=True):
            if waiting and id(c.op) in waiting:  # a compressed weight stands where its operation does
                self._add_compressed(source, program, waiting.pop(id(c.op)), op_names)
            if c.storage == _codec.NAME:
                continue
            offset = c.blob_offset if c.storage == _codec.BLOB else c.payload[0] if plain else None
            shape = c.shape
            if shape is None:
                dtype, shape = _untyped(program.buffer, c)
            else:
                dtype = BY_MIL_CODE[c.mil_code]
            tensor = Tensor(self, name, dtype, shape, source, program, c, None, offset)
            if parts and id(c) in parts:
                self._parts[id(c)] = tensor
                if not self._stored_view:
                    continue
            tensors.setdefault(name, tensor)
        for group in waiting.values():  # one without any part
            self._add_compressed(source, program, group, op_names)

    def _add_compressed(self, source: Source, program: Program, end: Compressed, names: dict[int, str]) -> None:
        tensors: dict[str, Tensor] = self._tensors  # type: ignore[assignment]
        pending = [end]
        while pending:
            group = pending.pop()
            if id(group) in self._parts:
                continue
            name, op = names[id(group.op)], group.op
            if op.shape is None:
                words = f"output of {op.type}: expected a tensor type, got none"
                raise FormatError(words, file=source.mapping.name, where=program.path(op))
            tensor = Tensor(self, name, BY_MIL_CODE[op.mil_code], op.shape, source, program, None, group)
            self._parts[id(group)] = tensor
            if group is end and not self._stored_view:
                tensors[name] = tensor
            pending += [part for part in group.parts.values() if isinstance(part, Compressed)]

    # -------------------------------------------------------------------------------------------------- for the tensors

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("I/O operation on closed model" + (f" {self.path}" if self.path else ""))

    def _blobs(self) -> BlobReader:
        self._check_open()
        if self._package.blobs is None:
            raise TypeError("blob file: expected a bare weight file, got a model")
        return self._package.blobs

    def _stored(self, _owner: Tensor, constant: Any) -> Tensor:
        return self._parts[id(constant)]

    def _inner(self, _owner: Tensor, group: Compressed) -> Tensor:
        return self._parts[id(group)]

    def _uses(self, program: Program) -> dict[tuple[int, str], list[Use]]:
        table = self._use_tables.get(id(program))
        if table is None:
            self._check_open()
            table = self._use_tables[id(program)] = program.uses()
        return table

    # ---------------------------------------------------------------------------------------------------------- mapping

    def __getitem__(self, name: str) -> Tensor:
        found = self._tensors.get(name)
        if found is not None:
            return found
        candidates = self._by_short_name().get(name, [])
        if len(candidates) == 1:
            return self._tensors[candidates[0]]
        if candidates:
            raise KeyError(f"{name!r} is ambiguous: expected one of {', '.join(candidates[:8])}")
        raise KeyError(name)

    def _by_short_name(self) -> dict[str, list[str]]:
        """Every tail of a prefixed name: "model0/main/w" can be asked for as "main/w" and "w"."""
        if self._short is None:
            short: dict[str, list[str]] = {}
            for name in self._tensors:
                tail = name
                while "/" in tail:
                    tail = tail.partition("/")[2]
                    short.setdefault(tail, []).append(name)
            self._short = short
        return self._short

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def __contains__(self, name: object) -> bool:
        if name in self._tensors:
            return True
        return isinstance(name, str) and len(self._by_short_name().get(name, ())) == 1

    # ------------------------------------------------------------------------------------------------- the model itself

    @property
    def functions(self) -> tuple[str, ...]:
        """Names of all functions, in Program order; "model0/main" in a pipeline."""
        return tuple(
            source.prefix + name for source, program in self._programs for name, _, _ in program.scan.functions
        )

    @property
    def program(self) -> Any:
        """The Program as a protobuf message, parsed on every use; yours to change.

        Raises:
            UnsupportedError: a bare weight file, a pipeline (see `programs`), or more than protobuf's 2 GiB.
        """
        if len(self._programs) != 1:
            what = f"a pipeline of {len(self._programs)}; see Model.programs" if self._programs else "a weight file"
            raise UnsupportedError(f"program: expected a model with one Program, got {what}", file=self.path)
        return next(iter(self.programs.values()))

    @property
    def programs(self) -> dict[str, Any]:
        """Every Program as a protobuf message, by prefix: "" for the only one, "model0/" in a pipeline."""
        from . import schema

        self._check_open()
        messages = {}
        for source, program in self._programs:
            offset, nbytes = program.span
            source.mapping.check_size()
            data = memoryview(program.buffer)[offset : offset + nbytes]
            messages[source.prefix] = schema.parse("Program", data, file=source.mapping.name)
        return messages

    @property
    def metadata(self) -> "Metadata":
        """Author, description, inputs and outputs with types, specification version, opset, producer.

        Of a pipeline: its own inputs and outputs. Of a weight file: empty.
        """
        if self._metadata is None:
            self._check_open()
            self._metadata = self._read_metadata()
        return self._metadata

    def _read_metadata(self) -> "Metadata":
        from .metadata import Metadata, read_build_info

        opsets = {
            source.prefix + name: opset
            for source, program in self._programs
            for name, opset, _ in program.scan.functions
        }
        if not self._programs:
            return Metadata()
        source, _ = self._programs[0]
        opset: Any = opsets if len(opsets) > 1 else next(iter(opsets.values()), "")
        build_info = read_build_info(build) if (build := self._build_info()) is not None else None
        if not source.is_text:
            spec_version, description = self._package.describe()
            return Metadata.from_model(description, spec_version, opset=opset, build_info=build_info)
        document = None
        if (
            self.kind == "mlmodelc"
            and self.path is not None
            and os.path.lexists(os.path.join(self.path, "metadata.json"))
        ):
            document = read_json(contained(self.path, "metadata.json"))
        if document is not None or len(opsets) != 1:
            return Metadata.from_metadata_json(document, opset=opset, build_info=build_info)
        function = next(iter(self.program.functions.values()))
        return Metadata.from_function(function.inputs, opset=opset, build_info=build_info)

    def _build_info(self) -> Any:
        """The first Program's buildInfo attribute as a Value message, without parsing the Program."""
        from . import schema

        program = self._programs[0][1]
        for number, wire, _, offset, nbytes in _codec.wire_fields(program.buffer, *program.span):
            if number == 4 and wire == 2:
                pair = dict.fromkeys((1, 2), (offset, 0))
                pair.update(
                    {n: (o, size) for n, w, _, o, size in _codec.wire_fields(program.buffer, offset, nbytes) if w == 2}
                )
                view = memoryview(program.buffer)
                if bytes(view[pair[1][0] : sum(pair[1])]) == b"buildInfo":
                    return schema.parse("Value", view[pair[2][0] : sum(pair[2])], file=program.buffer.name)
        return None

    def close(self) -> None:
        """Close every file. Arrays that were read stay valid; their mapping goes when the last of them does."""
        self._closed = True
        self._package.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self)} tensors"
        return f"<Model {self.path or 'buffer'} ({self.kind}): {state}>"


class _Records(MappingABC[str, Tensor]):
    """The records of a bare blob file as tensors `#0`, `#1`, ...; made when asked for, since there may be very many."""

    def __init__(self, model: Model, blobs: BlobReader) -> None:
        self._model = model
        self._index = blobs.index

    def __getitem__(self, name: str) -> Tensor:
        digits = name[1:] if isinstance(name, str) and name[:1] == "#" else ""
        # Only the one spelling: no "#007", no "#+7", no digits of other scripts.
        if not (
            digits.isascii() and digits.isdigit() and str(int(digits[:20])) == digits and int(digits) < len(self._index)
        ):
            raise KeyError(name)
        row = self._index[int(digits)]
        dtype = BY_BLOB_CODE[int(row["blob_code"])]
        return Tensor(self._model, name, dtype, (int(row["count"]),), offset=int(row["offset"]))

    def __iter__(self) -> Iterator[str]:
        return (f"#{number}" for number in range(len(self._index)))

    def __len__(self) -> int:
        return len(self._index)


def _untyped(buffer: _codec.Buffer, constant: _codec.Constant) -> tuple[DType, tuple[int | None, ...]]:
    """Dtype and shape of a list element that states no type: what its field holds, as a vector."""
    field = _codec.tensor_locate(buffer, *constant.payload)[0]
    names = ("UINT8", "FLOAT32", "INT32", "BOOL", "STRING", "INT64", "FLOAT64", "UINT8")
    return DType[names[field]], (None,) if field else (0,)


def open(source: Any, mode: str = "r", *, constants: bool = False, stored: bool = False) -> Model:
    """Open a model, or a bare weight file, without reading its values.

    Args:
        source: path of a .mlpackage, .mlmodelc, .mlmodel, model.mil or blob file; or a buffer or file object that holds
            one of the latter three. What it is follows from the contents.
        mode: "r".
        constants: list every tensor constant, not only the weights (every blob-file value, and numeric immediates of
            ten or more elements).
        stored: list the stored parts of compressed weights ("w.indices", "w.lut", ...) instead of the dense weights.

    Returns:
        Model, a mapping from names to `Tensor`; a context manager.

    Raises:
        OSError: a file cannot be opened.
        FormatError: broken bytes; UnsupportedError: not an ML Program (the type is named); ResolveError: the manifest
            leads nowhere. A missing weight file is no error before a tensor in it is read.
        ValueError: another mode.
    """
    if mode != "r":
        raise ValueError(f"mode: expected 'r', got {mode!r}")
    return Model(source, constants=constants, stored=stored)


def load(source: Any, *, constants: bool = False, stored: bool = False) -> dict[str, np.ndarray[Any, Any]]:
    """Read every weight of a model: name -> ndarray.

    Args:
        source, constants, stored: as for `open`.

    Returns:
        dict in Program order. Arrays are read-only views of the mapped files wherever the stored bytes are the values
        (nothing is read from disk before it is touched), else new arrays. They keep their files mapped.

    Raises:
        As `open` and `Tensor.read`; all or nothing.
    """
    with Model(source, constants=constants, stored=stored) as model:
        return read_all(model)


def read_all(model: Model) -> dict[str, np.ndarray[Any, Any]]:
    """Read every tensor of an open model. Records are looked up file by file, in one C call each."""
    result: dict[str, Any] = dict.fromkeys(model)  # keeps Program order while files are read one after another
    by_file: dict[int, tuple[BlobReader, list[Tensor]]] = {}
    readers: dict[tuple[int, str], BlobReader] = {}
    for name, tensor in model._tensors.items():
        constant = tensor._constant
        if constant is None or constant.storage != _codec.BLOB or tensor._source is None:
            result[name] = tensor.read()
            continue
        key = (id(tensor._source), constant.text)
        reader = readers.get(key)
        if reader is None:
            try:
                reader = readers[key] = model._package.reader(tensor._source, constant.text)
            except MilblobError as error:
                error.where = error.where or tensor.where
                raise
        by_file.setdefault(id(reader), (reader, []))[1].append(tensor)
    for reader, tensors in by_file.values():
        _read_blobs(reader, tensors, result)
    return result


def _read_blobs(reader: BlobReader, tensors: list[Tensor], result: dict[str, Any]) -> None:
    buffer = reader._mapping.check_size()
    offsets = np.array([t.offset for t in tensors], np.uint64)
    records = np.empty(len(tensors), RECORD)
    reader._mapping.expect_random(True)
    done, broken = _codec.blob_records_at(buffer, offsets, records, True)
    reader._mapping.expect_random(False)
    if broken is not None:
        broken.where = tensors[done].where
        raise broken
    starts, counts, codes = (records[name].tolist() for name in ("data_offset", "count", "blob_code"))
    for tensor, start, count, code in zip(tensors, starts, counts, codes, strict=True):
        dtype = tensor.mil_dtype
        # The common case, in one comparison each: what the record says is what the Program declares.
        if code == dtype.blob_code and count == tensor._constant.count and dtype.nbits >= 8:
            result[tensor.name] = np.ndarray(tensor._shape, dtype.numpy, buffer, start)  # type: ignore[arg-type]
        else:
            result[tensor.name] = tensor.read()
