"""Arrays of outside formats, not yet read: what each is, and its elements in place."""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import Any, Self

import numpy as np

from .. import _codec
from ..dtypes import DType, as_dtype
from ..errors import FormatError, MilblobError, UnsupportedError
from ..formats.params import Parameter
from ..jsontext import as_shape, parse_json
from ..values.tensorvalue import require_shape, stored_bytes

_BY_NAME: dict[str, DType] = {str(dtype): dtype for dtype in DType}


class StoredArray:
    """One array of a file, not yet read; has what a `Tensor` has that is written to another format.

    Attributes:
        name: unique in its file.
        mil_dtype: DType of the elements.
        shape: dimensions.
    """

    __slots__ = ("_form", "_load", "_where", "mil_dtype", "name", "shape")

    def __init__(
        self,
        name: str,
        mil_dtype: DType,
        shape: tuple[int, ...],
        load: Callable[[], np.ndarray[Any, Any]],
        form: str = "values",
        where: str | None = None,
    ) -> None:
        """Describe an array.

        Args:
            name, mil_dtype, shape: see the class.
            load: gives what is stored, an array over the mapped file wherever that is possible.
            form: what that is: "values" (of this shape, in bits as they are), "bytes" (uint8, low bits of each are an
                element), "packed" (uint8, one-dimensional, as in a weight file), "text" (uint8, a JSON list of
                strings).
            where: file, for messages.
        """
        self.name = name
        self.mil_dtype = mil_dtype
        self.shape = shape
        self._load = load
        self._form = form
        self._where = where

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the values."""
        return self.mil_dtype.numpy

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes that it takes in a weight file: packed for sub-byte dtypes. Of strings: 0, they have no fixed size."""
        return self.mil_dtype.nbytes(self.size)

    def read(self) -> np.ndarray[Any, Any]:
        """Return the values.

        Returns:
            ndarray of dtype and shape; sub-byte elements take one byte each. A read-only view of the mapped file if the
            stored bytes are the values, else a new array.

        Raises:
            FormatError: the file is broken, or has elements outside the dtype.
        """
        stored, dtype = self._stored(), self.mil_dtype
        if self._form == "text":
            return self._strings(stored)
        if self._form == "packed" and dtype.is_sub_byte:
            out = np.empty(self.shape, np.uint8)
            _codec.unpack_bits(_codec.Buffer(stored), 0, out.size, dtype.nbits, out)
            return out.view(dtype.numpy)
        if self._form == "bytes" and stored.size and int(stored.max()) >= 1 << dtype.nbits:
            words = f"elements of {self.name}: expected {dtype.nbits} bits of each byte, got {int(stored.max())}"
            raise FormatError(words, file=self._where)
        if dtype is DType.STRING:
            return stored.astype(object)
        if stored.dtype.byteorder == ">":
            stored = stored.astype(stored.dtype.newbyteorder("<"))
        if not stored.flags.c_contiguous:
            stored = np.ascontiguousarray(stored)
        return stored.view(dtype.numpy).reshape(self.shape)

    def read_packed(self) -> np.ndarray[Any, Any]:
        """Return the elements as a weight file stores them: uint8, shape (nbytes,); a view wherever that is possible.

        Raises:
            As `read`; TypeError: strings.
        """
        if self.mil_dtype is DType.STRING:
            raise TypeError(f"dtype of {self.name}: expected one of fixed size, got string")
        return self._stored() if self._form == "packed" else np.asarray(stored_bytes(self.read(), self.mil_dtype))

    def _stored(self) -> np.ndarray[Any, Any]:
        try:
            return self._load()
        except MilblobError as error:
            error.where = error.where or self.name
            raise

    def _strings(self, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        texts = parse_json(bytes(stored), f"strings of {self.name}", self._where)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or len(texts) != self.size:
            words = f"strings of {self.name}: expected a list of {self.size} strings, got something else"
            raise FormatError(words, file=self._where)
        values = np.empty(len(texts), object)
        values[:] = texts
        return values.reshape(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        values = self.read()
        if dtype is not None and np.dtype(dtype) != values.dtype:
            return values.astype(dtype)
        return values.copy() if copy else values

    def __repr__(self) -> str:
        return f"<StoredArray {self.name!r}: {self.mil_dtype} [{', '.join(map(str, self.shape))}]>"


class Arrays(Mapping[str, StoredArray | Parameter]):
    """The arrays of a file by name, in its order; what each is, is found out when it is asked for.

    A context manager. Closing ends reading; arrays that were read stay valid.
    """

    def __init__(self, find: Mapping[str, Callable[[], StoredArray | Parameter]], close: Callable[[], None]) -> None:
        self._find = find
        self._close = close

    def __getitem__(self, name: str) -> StoredArray | Parameter:
        return self._find[name]()

    def __iter__(self) -> Iterator[str]:
        return iter(self._find)

    def __len__(self) -> int:
        return len(self._find)

    def close(self) -> None:
        """Let go of the file."""
        self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


# ---------------------------------------------------------------------------------------------------------------- notes


def parse_notes(text: str, file: str) -> dict[str, dict[str, Any]]:
    """Read the notes that a format keeps about its arrays: key -> {"name", "dtype", "shape", "packed"}, all optional.

    Raises:
        FormatError: they are no such thing.
    """
    notes = parse_json(text, "notes of milblob", file, unique=True)
    if not isinstance(notes, dict) or not all(isinstance(note, dict) for note in notes.values()):
        raise FormatError("notes of milblob: expected an object for each array, got something else", file=file)
    return notes


def named(keys: Mapping[str, Any], notes: Mapping[str, dict[str, Any]], file: str) -> dict[str, str]:
    """Return name -> key: the names that the notes give, else the keys themselves.

    Raises:
        FormatError: a name that is no string, or a name twice.
    """
    names: dict[str, str] = {}
    for key in keys:
        name = notes.get(key, {}).get("name", key)
        if not isinstance(name, str):
            raise FormatError(f"name of array {key!r:.100}: expected a string, got {name!r:.100}", file=file)
        if name in names:
            raise FormatError(f"names of arrays: expected each once, got {name!r:.100} twice", file=file)
        names[name] = key
    return names


def restored(
    name: str,
    note: Mapping[str, Any] | None,
    stored: Any,
    shape: tuple[int, ...],
    load: Callable[[], np.ndarray[Any, Any]],
    file: str,
) -> StoredArray:
    """Make the array that is stored as another one: the inverse of `elements.elements`.

    Args:
        name: of the array.
        note: what is known about it, None or {} if it is what it looks like.
        stored: NumPy dtype or DType that the format says it has.
        shape: that the format says it has.
        load: gives it, of this dtype and shape.
        file: for messages.

    Raises:
        FormatError: a note that does not fit what is stored.
        UnsupportedError: a dtype that MIL has not; more than 64 dimensions.
    """
    note = note or {}
    require_shape(shape, 0, file)
    try:
        own = as_dtype(stored)
    except TypeError:
        words = f"dtype of {name}: expected one that MIL has, got {stored}"
        raise UnsupportedError(words, file=file) from None
    if "dtype" not in note:
        return StoredArray(name, own, shape, load, "values", file)

    def refuse(what: str, expected: Any, got: Any) -> FormatError:
        return FormatError(f"{what} in the note of {name}: expected {expected}, got {got!r:.100}", file=file)

    dtype = _BY_NAME.get(str(note["dtype"]))
    if dtype is None:
        raise refuse("dtype", "one that MIL has", note["dtype"])
    given = as_shape(note.get("shape", list(shape)))
    if given is None:
        raise refuse("shape", "a list of sizes", note["shape"])
    require_shape(given, 0, file)
    if own is DType.UINT8 and dtype is DType.STRING:
        return StoredArray(name, dtype, given, load, "text", file)
    if note.get("packed") is True and dtype is not DType.STRING:
        if own is not DType.UINT8 or shape != (dtype.nbytes(prod(given)),):
            raise refuse("dtype and shape", f"what {own} {list(shape)} holds packed", f"{dtype} {list(given)}")
        return StoredArray(name, dtype, given, load, "packed", file)
    if given != shape:
        raise refuse("shape", list(shape), list(given))
    if own is dtype:
        return StoredArray(name, dtype, shape, load, "bytes" if dtype.is_sub_byte else "values", file)
    if own.name != f"UINT{max(dtype.nbits, 8)}":
        raise refuse("dtype", f"one that {own} can stand for", note["dtype"])
    return StoredArray(name, dtype, shape, load, "bytes" if dtype.is_sub_byte else "values", file)
