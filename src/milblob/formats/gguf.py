"""GGUF files: their header is read here, every size checked; their types and values by the library of that name.

The library's own reader maps the file and follows its sizes unchecked, and makes an array of every word of a
vocabulary. It is an optional dependency.
"""

import struct
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ..budget import Budget
from ..dtypes import DType
from ..errors import FormatError, UnsupportedError
from ..extras import require
from ..model.stored import Arrays, StoredArray
from ..storage.mapped import MappedFile, closed_on_error
from ..values.strided import Empty
from ..values.tensorvalue import require_shape

Array = np.ndarray[Any, Any]

BLOCK = 32
"""Elements that share a scale, in every type that is read here."""

_VERSIONS = (2, 3)
_AHEAD_NBYTES, _MAX_AHEAD_NBYTES = 1 << 16, 1 << 20
_ALIGNMENT = 32
_MAX_DIMENSIONS = 4  # of ggml
_MAX_DEPTH = 8  # of arrays in arrays, which are not used in practice
_PART_COUNT = 1 << 18  # elements that are dequantized at a time
_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value in the metadata, by its type."""
_STRING, _ARRAY, _UINT32 = 8, 9, 4

_PLAIN = {
    "F32": DType.FLOAT32, "F16": DType.FLOAT16, "BF16": DType.BFLOAT16, "F64": DType.FLOAT64,
    "I8": DType.INT8, "I16": DType.INT16, "I32": DType.INT32, "I64": DType.INT64,
}  # fmt: skip
_BLOCKS = {"Q8_0": DType.INT8, "Q4_0": DType.INT4}
_QUANTIZED = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")


class Blocks(NamedTuple):
    """A quantized array as it is stored: each element is scale * integer, in float32."""

    data: Array  # integers, int8, in the shape of the array
    dtype: Any  # that holds them: INT8 or INT4
    scale: Array  # float16: one for each BLOCK elements of the last dimension


class GGUFArray(StoredArray):
    """One array of a GGUF file."""

    __slots__ = ("_nbytes", "_raw", "kind")

    def __init__(
        self, name: str, dtype: DType, shape: tuple[int, ...], load: Callable[[], Array], file: str, budget: Budget,
        kind: str, nbytes: int, raw: Callable[[], Array],
    ) -> None:  # fmt: skip
        """Describe an array; `raw` returns the `nbytes` stored bytes."""
        super().__init__(name, dtype, shape, load, file=file, budget=budget)
        self.kind = kind  # its type there, such as "Q8_0". What is quantized has float32 values.
        self._nbytes = nbytes
        self._raw = raw

    @property
    def nbytes(self) -> int:
        """Bytes stored: of what is quantized, its blocks."""
        return self._nbytes

    @property
    def block_dtype(self) -> DType | None:
        """The dtype of the integers of Q8_0 and Q4_0; None of other types."""
        return _BLOCKS.get(self.kind)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The size of a block in each dimension, of Q8_0 and Q4_0."""
        return (*[1] * (len(self.shape) - 1), BLOCK)

    def blocks(self, empty: Empty = np.empty) -> Blocks | None:
        """Return the integers and scales of Q8_0 and Q4_0, in arrays that `empty` makes; None of other types."""
        if self.block_dtype is None:
            return None
        self.place.account()
        rows = self._raw().reshape(prod(self.shape) // BLOCK, 34 if self.kind == "Q8_0" else 18)
        scale, data = empty((len(rows), 2), np.uint8), empty((len(rows), BLOCK), np.int8)
        for first in range(0, len(rows), _PART_COUNT // BLOCK):
            some, into = rows[first : first + _PART_COUNT // BLOCK], data[first : first + _PART_COUNT // BLOCK]
            scale[first : first + len(some)] = some[:, :2]
            if self.kind == "Q8_0":
                into[:] = some[:, 2:].view(np.int8)
            else:  # the low halves of the bytes are the first 16 elements
                into[:, : BLOCK // 2] = (some[:, 2:] & 15).view(np.int8) - 8
                into[:, BLOCK // 2 :] = (some[:, 2:] >> 4).view(np.int8) - 8
        scales = scale.view("<f2").reshape((*self.shape[:-1], self.shape[-1] // BLOCK))
        return Blocks(data.reshape(self.shape), self.block_dtype, scales)


class _Row(NamedTuple):
    """A tensor's entry in the header; `dims` begins with the axis whose elements are contiguous."""

    dims: tuple[int, ...]
    code: int
    offset: int


def open_arrays(path: str, max_nbytes: int | None = None) -> Arrays[GGUFArray]:
    """Open a GGUF file.

    Floats and integers are views of the mapped file. Q8_0, Q4_0, Q4_1, Q5_0 and Q5_1 are read as float32, exactly as
    the library dequantizes them. Shapes are those of NumPy: GGUF writes the dimensions the other way round.

    Raises: OSError: it cannot be opened. FormatError: it is broken. UnsupportedError: another version or byte order, or
    the library is not installed. A type that is not read is refused by name when its tensor is accessed.
    """
    library = require("gguf")
    mapping = MappedFile(path)
    with closed_on_error(mapping):
        rows, start = _Header(mapping, path).read()
        budget = Budget(max_nbytes, path)
        budget.add_file(path, mapping.nbytes, mapping.identity)

    def find(name: str, row: _Row) -> GGUFArray:
        return _found(library, mapping, path, start, name, row, budget)

    return Arrays(rows, find, mapping.close)


# -------------------------------------------------------------------------------------------------------------- header


class _Header:
    """Reads the header of a GGUF file; every size is checked before it is used."""

    def __init__(self, mapping: MappedFile, path: str) -> None:
        self._data = memoryview(mapping.need(()))
        self._mapping = mapping
        self._at = self._fetched = 0
        self._path = path
        self._alignment = _ALIGNMENT

    def read(self) -> tuple[dict[str, _Row], int]:
        """Return (name -> row, offset of the data)."""
        self._fetch(4)
        if bytes(self._data[:4]) != b"GGUF":
            raise self._error(f"beginning of GGUF file: expected GGUF, got {bytes(self._data[:4])!r}")
        self._at = 4
        version = self._number("<I", "version")
        if version not in _VERSIONS:
            swapped = int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS
            got = "big-endian numbers" if swapped else str(version)
            message = f"version of GGUF file: expected {_VERSIONS[0]} or {_VERSIONS[1]}, got {got}"
            raise UnsupportedError(message, file=self._path)
        tensor_count, pair_count = self._number("<Q", "number of tensors"), self._number("<Q", "number of values")
        self._require_room(pair_count, 13, "values of metadata")  # a length, a type, a byte
        for _ in range(pair_count):
            self._pair()
        self._require_room(tensor_count, 24, "tensors")  # a length, dimensions, type and offset
        rows: dict[str, _Row] = {}
        for _ in range(tensor_count):
            name, row = self._tensor()
            if name in rows:
                raise self._error(f"names of tensors: expected each once, got {name!r:.100} twice")
            rows[name] = row
        return rows, -(-self._at // self._alignment) * self._alignment

    def _error(self, message: str) -> FormatError:
        return FormatError(message, offset=self._at, file=self._path)

    def _take(self, nbytes: int, what: str) -> memoryview:
        if nbytes > len(self._data) - self._at:
            left = len(self._data) - self._at
            raise self._error(f"{what} in GGUF file: expected {nbytes} bytes, got {left} up to the end of the file")
        self._at += nbytes
        if self._mapping.is_partial:
            self._fetch(self._at)
        return self._data[self._at - nbytes : self._at]

    def _fetch(self, end: int) -> None:
        """Fetch a remote file up to a byte, and as much again: the size of the header is not known."""
        if end > self._fetched:
            begin, self._fetched = self._fetched, end + min(max(end, _AHEAD_NBYTES), _MAX_AHEAD_NBYTES)
            self._mapping.need([(begin, self._fetched - begin)])

    def _number(self, code: str, what: str) -> int:
        return int(struct.unpack(code, self._take(struct.calcsize(code), what))[0])

    def _require_room(self, count: int, nbytes: int, what: str) -> None:
        """Refuse a count of items, each of `nbytes` or more, that the rest of the file cannot hold."""
        if count > (len(self._data) - self._at) // nbytes:
            raise self._error(f"number of {what} in GGUF file: expected no more than the file can hold, got {count}")

    def _string(self, what: str) -> bytes:
        return bytes(self._take(self._number("<Q", what), what))

    def _text(self, what: str) -> str:
        try:
            return self._string(what).decode()
        except UnicodeDecodeError:
            raise self._error(f"{what} in GGUF file: expected UTF-8, got other bytes") from None

    def _pair(self) -> None:
        key, kind = self._string("key"), self._number("<I", "type of a value")
        if key != b"general.alignment":
            self._pass_over(kind, 0)
            return
        if kind != _UINT32:
            raise self._error(f"general.alignment: expected a uint32, got type {kind}")
        self._alignment = self._number("<I", "general.alignment")
        if self._alignment < 1 or self._alignment & (self._alignment - 1):
            raise self._error(f"general.alignment: expected a power of two, got {self._alignment}")

    def _pass_over(self, kind: int, depth: int) -> None:
        if kind in _SCALARS:
            self._take(_SCALARS[kind], "value")
        elif kind == _STRING:
            self._take(self._number("<Q", "string"), "string")
        elif kind == _ARRAY and depth < _MAX_DEPTH:
            inner, count = self._number("<I", "type of an array"), self._number("<Q", "length of an array")
            if inner in _SCALARS:
                self._take(_SCALARS[inner] * count, "array")
                return
            self._require_room(count, 8, "elements of an array")
            for _ in range(count):
                self._pass_over(inner, depth + 1)
        else:
            raise self._error(f"type of a value in GGUF file: expected 0 to 12, got {kind}")

    def _tensor(self) -> tuple[str, _Row]:
        name = self._text("name of a tensor")
        count = self._number("<I", "number of dimensions")
        if count > _MAX_DIMENSIONS:
            raise self._error(f"dimensions of {name!r:.100}: expected at most {_MAX_DIMENSIONS}, got {count}")
        dims = tuple(self._number("<Q", "dimension") for _ in range(count))
        return name, _Row(dims, self._number("<I", "type of a tensor"), self._number("<Q", "offset of a tensor"))


# -------------------------------------------------------------------------------------------------------------- arrays


def _found(library: Any, mapping: MappedFile, path: str, start: int, name: str, row: _Row, budget: Budget) -> GGUFArray:
    try:
        code = library.GGMLQuantizationType(row.code)
    except ValueError:
        raise FormatError(f"type of {name!r:.100}: expected one of ggml, got {row.code}", file=path) from None
    kind = code.name
    if kind not in _PLAIN and kind not in _QUANTIZED:
        message = f"type of {name!r:.100}: expected {', '.join((*_PLAIN, *_QUANTIZED))}, got {kind}"
        raise UnsupportedError(f"{message} (llama-quantize --allow-requantize makes Q8_0 of it)", file=path)
    shape = tuple(reversed(row.dims))
    require_shape(shape, 0, path)
    per_block, block_nbytes = library.GGML_QUANT_SIZES[code]
    count = prod(shape)
    if kind in _QUANTIZED and (not shape or shape[-1] % per_block):
        message = f"shape of {name!r:.100}: expected rows of whole blocks of {per_block}, got {list(shape)}"
        raise FormatError(message, file=path)
    nbytes, begin = count // per_block * block_nbytes, start + row.offset
    if begin + nbytes > mapping.nbytes:
        message = f"place of {name!r:.100}: expected {kind} {list(shape)} inside the {mapping.nbytes} bytes of the file"
        raise FormatError(f"{message}, got bytes {begin} to {begin + nbytes}", file=path)

    def raw() -> Array:
        if not nbytes:
            return np.empty(0, np.uint8)
        return np.ndarray((nbytes,), np.uint8, mapping.check_range(begin, nbytes), begin)  # type: ignore[arg-type]

    def view() -> Array:
        if not nbytes:
            return np.empty(shape, _PLAIN[kind].numpy)
        return np.ndarray(shape, _PLAIN[kind].numpy, mapping.check_range(begin, nbytes), begin)  # type: ignore[arg-type]

    def dequantized() -> Array:
        values = np.empty(count, np.float32)
        blocks, step = raw().reshape(-1, block_nbytes), _PART_COUNT // per_block
        with np.errstate(all="ignore"):  # scales may be anything
            for first in range(0, len(blocks), step):
                row = blocks[first : first + step].reshape(1, -1)  # the library is slow with many short rows
                part = library.quants.dequantize(row, code).reshape(-1)
                values[first * per_block : first * per_block + part.size] = part
        return values.reshape(shape)

    load = view if kind in _PLAIN else dequantized
    found = GGUFArray(name, _PLAIN.get(kind, DType.FLOAT32), shape, load, path, budget, kind, nbytes, raw)
    return found.read_from(mapping, begin, nbytes)
