"""The two classes of coremltools' native module `libmilstoragepython`, over milblob's reader and building blocks.

Methods, arguments, results and error classes are those of coremltools 9.0 (test_storage.py calls both with the
same arguments and compares); pybind11 turns its C++ exceptions into RuntimeError, ValueError and TypeError.
Different on purpose:

- Strided and Fortran-ordered arrays are written element by element in C order. The native writer writes as many bytes
  as the array has from its first element on: wrong values, and memory outside the array for negative strides.
- Records that the native reader would read beyond their end, or round down, are refused with a RuntimeError, and so is
  a file that has shrunk, where the native reader's process is killed.
- A file is complete after every write. The native writer writes its last count when the object is destroyed.
- Several threads may call methods of one writer; each waits for the other. A call inside of a call, as a signal handler
  may make it, is refused with a RuntimeError.

Spec: coremltools e0e2f42, milstoragepython/MilStorage.cpp and mlmodel/src/MILBlob/Blob/Storage{Writer,Reader}.cpp.
"""

import contextlib
import os
import struct
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from .. import _codec
from ..blobs.reader import BlobReader
from ..dtypes import DType
from ..errors import FormatError, MilblobError, PendingChangeError
from ..storage import paths
from ..storage.pending import require_none
from ..storage.transfer import write_at
from ..values.tensorvalue import stored_bytes

_METADATA = struct.Struct("<IIQQQ")  # sentinel, dtype, nbytes, data offset, padding in bits
_METADATA_NBYTES = _HEADER_NBYTES = 64
_SENTINEL = 0xDEADBEEF
_BAD_HEADER = "[MIL StorageWriter]: Incorrect file header, please use truncateFile=true"
_CHUNK_COUNT = 1 << 18  # elements of int4 that are unpacked and then sign-extended while they are in the cache

# NumPy dtype of the arrays of a dtype: the native module has no float16, and NumPy nothing below 8 bits.
_ELEMENTS: dict[DType, np.dtype[Any]] = {DType.FLOAT16: np.dtype(np.uint16), DType.INT4: np.dtype(np.int8)}


def _elements(dtype: DType) -> np.dtype[Any]:
    own = np.dtype(np.uint8) if dtype.is_sub_byte else dtype.numpy.newbyteorder("=")
    return _ELEMENTS.get(dtype, own)


# The stored elements of a dtype's records, and their NumPy dtype.
_STORED = {d: (_elements(d).newbyteorder("<"), _elements(d)) for d in DType if d.blob_code and not d.is_sub_byte}


def _path(value: Any, what: str) -> bytes:
    """Convert a file name as pybind11 does for a std::string: str or bytes."""
    if isinstance(value, str):
        with contextlib.suppress(UnicodeEncodeError):
            return value.encode()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    raise TypeError(f"{what}: incompatible constructor arguments: expected the file name as str, got {value!r:.100}")


def _refuse_pickling(self: Any, *_: object) -> NoReturn:
    raise TypeError(f"cannot pickle {type(self).__module__}.{type(self).__name__!r} object")


# -------------------------------------------------------------------------------------------------------------- writing


def _writes(name: str, dtype: DType) -> Callable[["_BlobStorageWriter", Any], int]:
    elements = _elements(dtype)

    def write(self: "_BlobStorageWriter", data: Any, /) -> int:
        try:
            array = np.asarray(data, elements)  # as pybind11 does with forcecast: floats are truncated, integers wrap
        except Exception as error:
            message = f"{name}(): incompatible function arguments: expected numpy.ndarray[numpy.{elements.name}], got "
            raise TypeError(f"{message}{type(data).__name__} ({error})") from error
        return write_array(self, dtype, array)

    write.__name__ = name
    write.__qualname__ = f"_BlobStorageWriter.{name}"
    write.__doc__ = f"Write an array of {elements.name} as {dtype}; return the byte offset of the record's metadata."
    return write


def write_array(writer: "_BlobStorageWriter", dtype: DType, array: np.ndarray[Any, Any]) -> int:
    """Write a record: the body of the writer's methods, once the array has the right elements.

    Args:
        array: of its elements, or of another NumPy dtype of the same size (float16 for uint16); any shape and strides.

    Returns:
        Byte offset of the record's metadata.

    Raises:
        ValueError: an element outside a sub-byte dtype.
        RuntimeError: the file cannot be written, or has 2^32 - 1 records.
    """
    elements = _elements(dtype)
    flat = np.ascontiguousarray(array).reshape(-1).view(elements)
    try:
        data: Any = stored_bytes(flat, dtype) if dtype.is_sub_byte else flat.astype(_STORED[dtype][0], copy=False)
    except OverflowError:
        low, high = dtype.range
        value = flat[(flat < low) | (flat > high)][0]
        message = f"Value {value} is outside allowed subbyte datatype range [{low}, {high}]."
        raise ValueError(message) from None
    return writer._append(dtype, flat.size, data)


class _BlobStorageWriter:
    """Writes a blob v2 file in place, complete after every call: see the module.

    Args:
        file_name: str or bytes.
        truncate_file: start an empty file; else append to the existing records.

    Raises:
        RuntimeError: the file cannot be opened, or is not a blob v2 file. TypeError: other arguments.
    """

    __slots__ = ("__weakref__", "_count", "_fd", "_path", "_turn")

    def __init__(self, file_name: str, truncate_file: bool = True) -> None:
        self._fd = -1
        self._path = _path(file_name, "__init__()")
        self._turn = _codec.Turn(f"writer {os.fsdecode(self._path)}")
        try:
            if not isinstance(truncate_file, bool) and truncate_file is not None:
                truncate_file = type(truncate_file).__bool__(truncate_file)
        except Exception as error:
            message = f"__init__(): incompatible constructor arguments: expected a bool, got {truncate_file!r:.100}"
            raise TypeError(message) from error
        flags = os.O_RDWR | os.O_CREAT | (os.O_TRUNC if truncate_file else 0)
        flags |= getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
        try:
            require_none(os.fsdecode(self._path))
            self._fd = os.open(self._path, flags, 0o666)
            self._count = self._read_count()
        except (OSError, ValueError, PendingChangeError) as error:  # ValueError: a NUL in the name
            message = f"[MIL FileWriter]: Unable to open {os.fsdecode(self._path)} file stream for writing ({error})"
            raise RuntimeError(message) from error

    def _read_count(self) -> int:
        if os.lseek(self._fd, 0, os.SEEK_END) == 0:
            write_at(self._fd, [_codec.blob_header(0)], 0)
            return 0
        os.lseek(self._fd, 0, os.SEEK_SET)
        header = os.read(self._fd, _HEADER_NBYTES)
        count, version = struct.unpack_from("<II", header.ljust(8, b"\0"))
        if len(header) < _HEADER_NBYTES or version != 2:
            raise RuntimeError(_BAD_HEADER)
        return int(count)

    def _append(self, dtype: DType, count: int, data: Any) -> int:
        return int(self._turn.when_free(lambda: self._append_alone(dtype, count, data)))

    def _append_alone(self, dtype: DType, count: int, data: Any) -> int:
        if self._count == 0xFFFFFFFF:
            raise RuntimeError(f"{os.fsdecode(self._path)}: expected less than 2^32 - 1 records, got as many")
        end, is_counted = -1, False
        try:
            end = os.lseek(self._fd, 0, os.SEEK_END)  # the current end: other processes may write too
            offset, data_offset = _codec.blob_place(end)
            padding_nbits = data.nbytes * 8 - count * dtype.nbits
            metadata = _codec.blob_metadata(dtype.blob_code or 0, data.nbytes, data_offset, padding_nbits)
            write_at(self._fd, [metadata, data], offset)
            is_counted = True
            write_at(self._fd, [(self._count + 1).to_bytes(4, "little")], 0)
        except BaseException as error:  # Ctrl-C too
            if end >= 0:
                with contextlib.suppress(OSError):
                    if is_counted:  # perhaps in part; the record must be kept while the count includes it
                        write_at(self._fd, [self._count.to_bytes(4, "little")], 0)
                    os.ftruncate(self._fd, end)  # the records that were there still count, and nothing follows them
            if not isinstance(error, OSError):
                raise
            message = f"[MIL FileWriter]: Unknown error occurred while writing data to the file. ({error})"
            raise RuntimeError(message) from error
        self._count += 1
        return offset

    __reduce_ex__ = _refuse_pickling

    def __del__(self) -> None:
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            self._fd = -1
            os.close(fd)


# -------------------------------------------------------------------------------------------------------------- reading


def _reads(name: str, dtype: DType) -> Callable[["_BlobStorageReader", Any], np.ndarray[Any, Any]]:
    def read(self: "_BlobStorageReader", offset: Any, /) -> np.ndarray[Any, Any]:
        return read_array(self, dtype, _offset(offset, name))

    read.__name__ = name
    read.__qualname__ = f"_BlobStorageReader.{name}"
    read.__doc__ = f"Return the {dtype} record whose metadata is at an offset: a new array of {_elements(dtype).name}."
    return read


def _offset(value: Any, name: str) -> int:
    """Convert an offset as pybind11 does for a uint64: anything that Python converts to an integer, except floats."""
    if type(value) is int and 0 <= value < 1 << 64:
        return value
    try:
        if isinstance(value, float | str | bytes | bytearray):
            raise TypeError(type(value).__name__)
        offset = int(value)
        if not 0 <= offset < 1 << 64:
            raise OverflowError(offset)
    except Exception as error:
        message = f"{name}(): incompatible function arguments: expected an int of 0 to 2^64 - 1, got {value!r:.100}"
        raise TypeError(message) from error
    return offset


def read_array(reader: "_BlobStorageReader", dtype: DType, offset: int) -> np.ndarray[Any, Any]:
    """Read a record: the body of the reader's methods.

    Returns:
        ndarray, shape (count,), newly allocated and writable; uint16 for FLOAT16, one byte for each sub-byte element.

    Raises:
        RuntimeError: the file cannot be opened, or has no sound record of that dtype.
        ValueError: the record is not inside the file, or empty.
    """
    blob = reader._opened()
    try:
        buffer = blob.mapping.check_size()
    except MilblobError as error:
        raise RuntimeError(str(error)) from error
    try:
        data_offset, nbytes, count, _, code = _codec.blob_record(buffer, offset)
    except MilblobError as error:
        raise _refusal(blob, buffer, dtype, offset, str(error)) from error
    if code != dtype.blob_code or not nbytes:
        raise _refusal(blob, buffer, dtype, offset, "")
    if not dtype.is_sub_byte:
        stored, elements = _STORED[dtype]
        return np.ndarray((count,), stored, buffer, data_offset).astype(elements)  # type: ignore[arg-type]
    out = np.empty(count, np.uint8)
    if dtype is not DType.INT4:
        _codec.unpack_bits(buffer, data_offset, count, dtype.nbits, out)
        return out
    for start in range(0, count, _CHUNK_COUNT):
        part = out[start : start + _CHUNK_COUNT]
        _codec.unpack_bits(buffer, data_offset + start // 2, part.size, 4, part)
        part ^= 8  # nibbles 0..7 become 8..15, nibbles 8..15 become 0..7: minus 8, both have their signed value
        part -= 8
    return out.view(np.int8)


def _refusal(blob: BlobReader, buffer: _codec.Buffer, dtype: DType, offset: int, message: str) -> Exception:
    """The first error that the native reader would raise for a record; else milblob's own message, in `message`."""
    at = f" at byte {offset} in {blob.name}" if blob.name else f" at byte {offset}"
    if offset + _METADATA_NBYTES > buffer.nbytes:
        return ValueError("index out of bounds" + at)
    sentinel, code, nbytes, data_offset, _ = _METADATA.unpack(memoryview(buffer)[offset : offset + _METADATA.size])
    if sentinel != _SENTINEL:
        return RuntimeError("Invalid sentinel in blob_metadata." + at)
    if code != dtype.blob_code:
        return RuntimeError("Metadata data type does not match requested type." + at)
    if nbytes == 0 or data_offset + nbytes > buffer.nbytes:
        return ValueError("index out of bounds" + at)
    return RuntimeError(message)


class _BlobStorageReader:
    """Reads a blob v2 file, which is mapped at the first read: see the module.

    Args:
        file_name: str or bytes.

    Raises:
        TypeError: another argument.
    """

    __slots__ = ("__weakref__", "_blob", "_path")

    def __init__(self, file_name: str, /) -> None:
        self._path = _path(file_name, "__init__()")
        self._blob: BlobReader | None = None

    def _opened(self) -> BlobReader:
        blob = self._blob  # two threads may both open it; either mapping works
        if blob is None:
            name = os.fsdecode(self._path)
            try:
                blob = self._blob = BlobReader(name)
            except (FormatError, PendingChangeError) as error:
                if paths.is_file(name) and 0 < os.path.getsize(name) < _HEADER_NBYTES:
                    raise ValueError(f"index out of bounds ({error})") from error
                raise RuntimeError(f"Unable to mmap file {name} ({error})") from error
            except MilblobError as error:
                raise RuntimeError(f"Storage Reader expects file format version 2. ({error})") from error
            except (OSError, ValueError) as error:  # ValueError: a NUL in the name
                raise RuntimeError(f"Could not open {name} ({error})") from error
        return blob

    __reduce_ex__ = _refuse_pickling


# What the native module calls the dtypes in the names of its methods.
_METHODS = {
    "float": DType.FLOAT32, "fp16": DType.FLOAT16, "int16": DType.INT16, "int32": DType.INT32, "int4": DType.INT4,
    "int8": DType.INT8, "uint16": DType.UINT16, "uint1": DType.UINT1, "uint2": DType.UINT2, "uint32": DType.UINT32,
    "uint3": DType.UINT3, "uint4": DType.UINT4, "uint6": DType.UINT6, "uint8": DType.UINT8,
}  # fmt: skip
for _name, _dtype in _METHODS.items():
    setattr(_BlobStorageWriter, f"write_{_name}_data", _writes(f"write_{_name}_data", _dtype))
    setattr(_BlobStorageReader, f"read_{_name}_data", _reads(f"read_{_name}_data", _dtype))

__all__ = ["_BlobStorageReader", "_BlobStorageWriter"]
