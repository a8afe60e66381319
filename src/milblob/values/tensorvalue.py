"""TensorValue <-> ndarray: which field holds the data, and whether it matches the declared type."""

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any, cast

import numpy as np

from .. import _codec
from ..arguments import array_of, as_integer, require
from ..dtypes import DType, as_dtype
from ..errors import FormatError, UnsupportedError
from . import parallel
from .arrays import copy_into, filled
from .strided import Empty

FLOATS, INTS, BOOLS, STRINGS, LONGINTS, DOUBLES, BYTES = range(1, 8)
_VARINTS = (INTS, BOOLS, LONGINTS)
FIELD_NAMES = ("nothing", "floats", "ints", "bools", "strings", "longInts", "doubles", "bytes")

MAX_RANK = 64
Shape = Sequence[int | None]


def accepts(dtype: DType, field: int) -> bool:
    """Whether a TensorValue field can hold values of `dtype` without loss.

    ints and longInts hold integers (each value is checked against the dtype), floats also float64, and bytes anything
    of fixed size, little-endian and packed as in a blob file.
    """
    if field == dtype.field:
        return True
    if field == BYTES:
        return dtype is not DType.STRING
    return dtype.is_integer if field in (INTS, LONGINTS) else field == FLOATS and dtype is DType.FLOAT64


def unpack_tensor(
    value: Any, dtype: Any, shape: int | Shape, *, out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """Return the values of a TensorValue.

    Args:
        value: a serialized TensorValue (any C-contiguous buffer), or a TensorValue message of any protobuf binding,
            milblob's or coremltools'. A buffer must not change while the array is in use.
        dtype: DType, name or NumPy dtype that the enclosing Value declares.
        shape: declared dimensions, or one number; one may be None (open), and then follows from the count.
        out: array of dtype.numpy and that shape to fill instead; directly, without an intermediate copy, if it is
            C-contiguous. Its contents after an exception are unspecified.

    Returns:
        ndarray of dtype.numpy and the given shape. From bytes, floats, doubles and byte-sized values of the bytes field
        are a read-only view of `value`, possibly unaligned; everything else is a new array. Sub-byte values take one
        byte each. Strings are an object array of str. With `out`, that array.

    Raises:
        FormatError: broken bytes; a field that does not hold this dtype; too many or too few elements; an element
            outside the dtype. The message names the field and the element.
        UnsupportedError: a shape that NumPy cannot hold (more than 64 dimensions).
        TypeError: `value` is neither bytes nor a TensorValue message.
        ValueError: a negative dimension, or more than one that is open; `out` does not fit.

    Spec: coremltools e0e2f42, mlmodel/format/MIL.proto, message TensorValue.

    Examples:
        >>> message = milblob.pack_tensor([[1, 2], [3, -4]], "int4")
        >>> milblob.unpack_tensor(message, "int4", (2, None))
        array([[1, 2],
               [3, -4]], dtype=int4)
    """
    if hasattr(value, "SerializeToString"):
        name = getattr(getattr(value, "DESCRIPTOR", None), "full_name", type(value).__name__)
        if not name.endswith("MILSpec.TensorValue"):
            raise TypeError(f"value: expected a TensorValue message, got {name}")
        value = value.SerializeToString()
    given: Any = (shape,) if hasattr(shape, "__index__") else shape  # a single number, as in NumPy
    if type(given) is not tuple:
        require("shape", given, Iterable, "a number or several")
    sizes = tuple([n if n is None or type(n) is int else as_integer("shape", n, "integers") for n in given])
    if sizes.count(None) > 1:
        raise ValueError(f"shape: expected at most one open dimension, got {sizes}")
    for size in sizes:
        if size is not None and size < 0:
            raise ValueError(f"shape: expected sizes of 0 or more, or None for an open one, got {sizes}")
    try:
        buffer = value if isinstance(value, _codec.Buffer) else _codec.Buffer(value)
    except TypeError:
        message = f"value: expected a buffer or a TensorValue message, got {type(value).__name__}"
        raise TypeError(message) from None
    return unpack_at(buffer, 0, buffer.nbytes, as_dtype(dtype), sizes, out)


def unpack_at(
    buffer: _codec.Buffer,
    offset: int,
    nbytes: int,
    dtype: DType,
    shape: tuple[int | None, ...],
    out: np.ndarray[Any, Any] | None = None,
) -> np.ndarray[Any, Any]:
    """As unpack_tensor, for the TensorValue at [offset, offset + nbytes) of a held buffer."""
    field, start, at, payload, chunk_count, string_count = _codec.tensor_locate(buffer, offset, nbytes)
    require_shape(shape, offset, buffer.name)
    open_count = shape.count(None)
    if open_count > 1:
        raise FormatError(f"shape: expected at most one open dimension, got {shape}", offset=offset, file=buffer.name)
    known = prod([size for size in shape if size is not None])
    if field == 0 or not accepts(dtype, field):
        if field == 0 and known == 0:
            nothing = np.empty([size or 0 for size in shape], dtype.numpy)
            return nothing if out is None else copy_into(out, nothing)
        expected = FIELD_NAMES[dtype.field]
        raise FormatError(
            f"tensor value of {dtype}: expected field {expected}, got {FIELD_NAMES[field]}",
            offset=offset,
            file=buffer.name,
        )
    if chunk_count > 1 and field != STRINGS:
        buffer = _codec.Buffer(_codec.tensor_gather(buffer, offset + nbytes, field, start, payload), buffer.name)
        at = 0
    if field in _VARINTS and not open_count and known <= payload:
        # Counted while they are decoded; a varint is at least a byte.
        return _varints(buffer, field, dtype, at, payload, shape, out)
    count = _count(buffer, field, dtype, at, payload, string_count, None if open_count else known)
    if open_count:
        fewer = count - count % known if known else count  # the others may be padding bits of the last byte
        if field == BYTES and dtype.nbytes(fewer) == payload:
            count = fewer
        shape = _close(shape, known, count)
        known = prod(shape)  # type: ignore[arg-type]
    if count != known:
        raise _wrong_count(buffer, field, at, known, shape, count)
    if field == STRINGS:
        texts = np.empty(count, object)
        texts[:] = _codec.tensor_strings(buffer, offset + nbytes, start, count)
        texts = texts.reshape(cast("tuple[int, ...]", shape))
        return texts if out is None else copy_into(out, texts)
    if field in _VARINTS:
        return _varints(buffer, field, dtype, at, payload, shape, out)
    return _fixed(buffer, field, dtype, at, payload, count, shape, out)


def _wrong_count(buffer: _codec.Buffer, field: int, at: int, known: int, shape: Any, count: int) -> FormatError:
    message = f"elements of {FIELD_NAMES[field]}: expected {known} for shape {shape}, got {count}"
    return FormatError(message, offset=at, file=buffer.name)


def require_shape(shape: Shape, offset: int, file: str | None) -> None:
    """Refuse a shape that no ndarray can have, even an empty one.

    Raises: UnsupportedError: more than 64 dimensions; or a zero (or an open dimension) among others whose product is
    too large, which the length of the payload cannot rule out.
    """
    if len(shape) > MAX_RANK:
        raise UnsupportedError(
            f"rank: expected at most {MAX_RANK}, which NumPy holds, got {len(shape)}", offset=offset, file=file
        )
    if not all(shape) and prod([size for size in shape if size]) >= 1 << 59:
        message = f"shape: expected fewer than 2^59 elements, zeros left out, got {tuple(shape)}"
        raise UnsupportedError(message, offset=offset, file=file)


def undeclared(buffer: _codec.Buffer, offset: int, nbytes: int) -> tuple[DType, tuple[int | None, ...]]:
    """Return dtype and shape for a TensorValue without a type: the contents of its field, as a vector."""
    field = _codec.tensor_locate(buffer, offset, nbytes)[0]
    names = ("UINT8", "FLOAT32", "INT32", "BOOL", "STRING", "INT64", "FLOAT64", "UINT8")
    return DType[names[field]], (None,) if field else (0,)


def _count(
    buffer: _codec.Buffer, field: int, dtype: DType, at: int, nbytes: int, string_count: int, expected: int | None
) -> int:
    """The number of elements in a payload; a remainder that is not a whole element is refused."""
    if field == STRINGS:
        return string_count
    if field in _VARINTS:
        return _codec.varint_count(buffer, at, nbytes)
    nbits = {FLOATS: 32, DOUBLES: 64}.get(field, dtype.nbits)
    count = nbytes * 8 // nbits
    if expected is not None and (expected * nbits + 7) // 8 == nbytes:
        count = expected  # the padding bits of the last byte are not elements
    if (count * nbits + 7) // 8 != nbytes:
        message = f"bytes of {FIELD_NAMES[field]}: expected a multiple of {nbits // 8}, got {nbytes}"
        raise FormatError(message, offset=at, file=buffer.name)
    return int(count)


def _close(shape: tuple[int | None, ...], known: int, count: int) -> tuple[int | None, ...]:
    """Fill in the one open dimension; 0 where the count does not divide, which the caller then refuses."""
    size = count // known if known else 0
    return tuple(size if n is None else n for n in shape)


def _fixed(
    buffer: _codec.Buffer, field: int, dtype: DType, at: int, nbytes: int, count: int, shape: Any, out: Any
) -> np.ndarray[Any, Any]:
    """The values of floats, doubles or bytes: a view, unless they have to be unpacked or widened."""

    def unpack(values: np.ndarray[Any, Any]) -> None:
        if dtype is DType.BOOL:
            parallel.unpack_varints(buffer, at, nbytes, values, 1, 0, 1, True)
        else:
            parallel.unpack_bits(buffer, at, count, dtype.nbits, values)

    if field == BYTES and (dtype is DType.BOOL or dtype.is_sub_byte):
        return filled(out, dtype.numpy, shape, unpack)
    stored: Any = dtype.numpy if field == BYTES else "<f4" if field == FLOATS else "<f8"
    values: np.ndarray[Any, Any] = np.ndarray(shape, stored, memoryview(buffer), at)
    if dtype.numpy != values.dtype:
        with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
            values = values.astype(dtype.numpy)
    return values if out is None else copy_into(out, values)


def _varints(
    buffer: _codec.Buffer, field: int, dtype: DType, at: int, nbytes: int, shape: Any, out: Any
) -> np.ndarray[Any, Any]:
    """The values of ints, longInts or bools: a new array or `out`, every element checked against the dtype."""
    low, high = dtype.range
    # A field of signed numbers holds an unsigned dtype of its own width as the same bits.
    if dtype is DType.UINT64 and field == LONGINTS:
        low, high = -(1 << 63), (1 << 63) - 1
    elif dtype.nbits == 32 and field == INTS:
        low, high = -(1 << 31), (1 << 32) - 1  # some encoders write a negative int32 in five bytes
    itemsize = max(dtype.nbits // 8, 1)

    def decode(values: np.ndarray[Any, Any]) -> None:
        try:
            bounds = low, min(high, (1 << 63) - 1)
            parallel.unpack_varints(buffer, at, nbytes, values, itemsize, *bounds, field == BOOLS)
        except FormatError:
            count = _codec.varint_count(buffer, at, nbytes)
            if count != values.size:
                raise _wrong_count(buffer, field, at, values.size, shape, count) from None
            raise
        if dtype is DType.INT4:
            nibbles = values.view(np.uint8)
            nibbles &= 0x0F  # ml_dtypes keeps int4 zero-extended

    return filled(out, dtype.numpy.newbyteorder("="), shape, decode)


_VARINT_KINDS = {
    DType.INT16: _codec.PACK_I16,
    DType.UINT16: _codec.PACK_U16,
    DType.INT32: _codec.PACK_I32,
    DType.INT64: _codec.PACK_I64,
    DType.UINT64: _codec.PACK_I64,
}


_NARROWED = 1 << 15
"""Elements whose range is checked at a time."""

_CHOSEN = [np.dtype(bool), np.dtype(np.int64), np.dtype(np.float64)]
"""The dtypes that NumPy gives to Python's own numbers."""


def pack_tensor(array: Any, dtype: Any = None) -> bytes:
    """Serialize an array as a TensorValue, byte for byte as coremltools and protobuf do.

    Args:
        array: anything that NumPy makes an array of. Its shape is not stored; a strided array is copied.
        dtype: DType, name or NumPy dtype to store; default: the array's own. Integers may be narrowed, every value is
            checked; uint3 and uint6 must be named, their arrays are uint8. Floats are not converted.

    Returns:
        bytes: the message TensorValue, ready for `TensorValue.FromString` or the value of a Program.

    Raises:
        TypeError: a dtype that MIL lacks, or that does not fit the kind of the array's values.
        OverflowError: an element outside the dtype; its index is named.
        FormatError: the array changed while it was read (by another thread, or as a file that is mapped).

    Examples:
        >>> message = milblob.pack_tensor(np.float32([1, 2]))
        >>> milblob.unpack_tensor(message, "float32", 2)
        array([1., 2.], dtype=float32)
    """
    if not isinstance(array, np.ndarray | np.generic) or isinstance(array, str | bytes):
        array = as_array(array, None if dtype is None else as_dtype(dtype))
    array = array_of(array)
    own = as_dtype(array.dtype)
    target = own if dtype is None else as_dtype(dtype)
    if target is DType.STRING and own is DType.STRING:
        return _codec.tensor_pack_strings([_utf8(text) for text in array.reshape(-1).tolist()])
    if target is not own and not (target.is_integer and own.is_integer):
        raise TypeError(f"array: expected elements of {target}, got {own}; convert them first")
    if target.is_sub_byte:
        elements, low, high = _one_byte_elements(array, own, target)
        return _codec.tensor_pack(target.field, elements, target.nbits, low, high)
    if target is not own:
        array = narrow(array, target)
    # A view of foreign bytes as bools: NumPy does not promise 0 and 1.
    kind = _codec.PACK_BOOL if target is DType.BOOL else _VARINT_KINDS.get(target, _codec.PACK_RAW)
    array = np.require(array, array.dtype.newbyteorder("=" if kind != _codec.PACK_RAW else "<"), ["C", "A"])
    elements = array.reshape(-1).view(np.uint8)
    if kind in _VARINT_KINDS.values():
        return parallel.pack_varints(target.field, elements, kind)
    return _codec.tensor_pack(target.field, elements, kind)


def as_array(values: Any, wanted: Any) -> np.ndarray[Any, Any]:
    """Make an array of a number or of lists, of dtype `wanted` where NumPy would choose another one.

    Raises: OverflowError: a finite number that `wanted` makes infinite; its index is named.
    """
    array = array_of(values)
    if array.dtype.kind in "US":  # NumPy's fixed-width text drops trailing NULs, and converts numbers to text
        return np.asarray(values, object)
    is_chosen = array.dtype in _CHOSEN and wanted is not DType.STRING
    if wanted is None or not (array.size == 0 or (is_chosen and not wanted.is_integer)):
        return array
    with np.errstate(over="ignore"):
        converted = array.astype(wanted.numpy)
    if array.size and wanted is not DType.BOOL and wanted is not DType.FLOAT64:
        outside = np.isfinite(array) & ~np.isfinite(converted)
        if outside.any():
            index = int(outside.reshape(-1).argmax())
            raise OverflowError(f"element {index}: expected a finite {wanted}, got {array.reshape(-1)[index]}")
    return converted


def _utf8(text: Any) -> bytes:
    if isinstance(text, str):
        return text.encode()
    if isinstance(text, bytes):
        return text.decode().encode()
    raise TypeError(f"array: expected elements of str, got {type(text).__name__}")


def narrow(array: np.ndarray[Any, Any], target: DType, first: int = 0) -> np.ndarray[Any, Any]:
    """Convert integers to another integer dtype, every value checked; OverflowError names the first outside.

    `first` is the index of the array's first element in a larger one, for that message.
    """
    low, high = target.range
    narrowed = np.empty(array.shape, target.numpy)
    flat = narrowed.reshape(-1)
    source = array.reshape(-1)
    for start in range(0, array.size, _NARROWED):
        # A copy: the checked values are kept, even if another thread changes the array. And it fits into the cache.
        part = source[start : start + _NARROWED]
        part = part.copy() if part.dtype.kind in "iu" else part.astype(np.int64)
        outside = (part < low) | (part > high)
        if outside.any():
            index = int(outside.argmax())
            raise OverflowError(f"element {first + start + index}: expected {low} to {high}, got {int(part[index])}")
        flat[start : start + _NARROWED] = part.astype(target.numpy)
    return narrowed


def _one_byte_elements(
    array: np.ndarray[Any, Any], own: DType, target: DType, first: int = 0
) -> tuple[np.ndarray[Any, Any], int, int]:
    """The elements of a sub-byte array as a vector of bytes, and the range for the packing kernel to check."""
    low, high = target.range
    direct = array.dtype == np.int8 if target is DType.INT4 else array.dtype == np.uint8
    if not direct:
        array = array if own is target else narrow(array, target, first)
        if target is DType.INT4:
            low, high = -8, 15  # ml_dtypes keeps -1 as 0x0F; 0xFF would mean the same
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8), low, high


def stored_bytes(array: np.ndarray[Any, Any], target: DType, first: int = 0, *, empty: Empty = np.empty) -> memoryview:
    """Return the bytes that a blob file holds for an array: little-endian, sub-byte elements packed.

    `array`: elements of `target`, or of another integer dtype or bools, then checked. `first`: index of the first
    element in a larger array, for messages. `empty`: makes the array of packed elements.
    Returns: memoryview of the array itself if its memory is already in that form, else of new bytes.
    Raises: OverflowError: an element outside the dtype; its index is named.
    """
    own = as_dtype(array.dtype)
    if target.is_sub_byte:
        elements, low, high = _one_byte_elements(array, own, target, first)
        out = empty(target.nbytes(elements.size), np.uint8)
        parallel.pack_bits(elements, out, target.nbits, low, high, first)
        return memoryview(out)  # type: ignore[arg-type,unused-ignore]
    if target is not own:
        array = narrow(array, target, first)
    array = np.ascontiguousarray(array, target.numpy)
    return memoryview(array.reshape(-1).view(np.uint8))  # type: ignore[arg-type,unused-ignore]
