"""Arrays of other formats that are not read yet: dtype and shape of each, and its elements in place."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from math import prod
from typing import Any, Self, TypeVar, cast

import numpy as np

from .. import _codec
from ..arguments import array_of
from ..budget import Budget
from ..dtypes import DType, as_dtype, dtype_of
from ..errors import FormatError, UnsupportedError
from ..jsontext import as_shape, parse_json
from ..shown import MAX_FIRST, Shown, short
from ..storage.mapped import Closable, MappedFile
from ..values.arrays import copy_into
from ..values.dense import Packed
from ..values.tensorvalue import require_shape
from .lazy import LazyTensor
from .places import Place

_A = TypeVar("_A", covariant=True)
_BY_NAME: dict[str, DType] = {str(dtype): dtype for dtype in DType}


class StretchPlace(Place):
    """An array of another format's file, or of memory: a byte range, or a member that is unpacked when it is read.

    Args:
        dtype, shape: of the values.
        name: of the array, for messages.
        load: returns the stored array, over the mapped file where possible.
        form: its form: "values" (of this shape, bits unchanged), "bytes" (uint8; the low bits of each are an
            element), "packed" (uint8, one-dimensional, as in a weight file), "text" (uint8, a JSON list of strings),
            "memory" (an array of the caller, returned as it is, strided or not).
        file: that holds it, for messages.
        budget: of the file or files; None for an array in memory.

    Attributes:
        stretch: the file, and (offset, bytes) in it that `load` reads, if it is a remote one; else None.
    """

    __slots__ = ("_budget", "_form", "_load", "file", "stretch", "where")

    where: str
    file: str | None

    def __init__(
        self,
        dtype: DType,
        shape: tuple[int, ...],
        name: str,
        load: Callable[[], np.ndarray[Any, Any]],
        form: str = "values",
        file: str | None = None,
        budget: Budget | None = None,
    ) -> None:
        super().__init__(dtype, shape)
        self.stretch: tuple[MappedFile, int, int] | None = None
        self._budget = budget
        self.where = name
        self._load = load
        self._form = form
        self.file = file

    def account(self) -> None:
        budget = self._budget  # another thread may remove it
        if budget is not None:
            count = prod(cast("tuple[int, ...]", self.shape))
            budget.spend(self.where, self.dtype.numpy.itemsize * count)
            self._budget = None  # each array counts once

    def _stored(self) -> np.ndarray[Any, Any]:
        with self.naming():
            self.account()
            return self._load()

    def read(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        values = self._values()
        return values if out is None else copy_into(out, values)

    def _values(self) -> np.ndarray[Any, Any]:
        stored = self._stored()
        dtype, shape = self.dtype, cast("tuple[int, ...]", self.shape)
        if self._form == "memory":
            return stored
        if self._form == "values" and stored.dtype is dtype.numpy and stored.flags.c_contiguous:  # nearly all
            return stored.reshape(shape)
        if self._form == "text":
            return self._strings(stored)
        if self._form == "packed" and dtype.is_sub_byte:
            values = np.empty(shape, np.uint8)
            _codec.unpack_bits(_codec.Buffer(stored), 0, values.size, dtype.nbits, values)
            return values.view(dtype.numpy)
        if self._form == "bytes" and stored.size and int(stored.max()) >= 1 << dtype.nbits:
            message = f"elements of {self.where}: expected {dtype.nbits} bits of each byte, got {int(stored.max())}"
            raise FormatError(message, file=self.file)
        if dtype is DType.STRING:
            return stored.astype(object)
        if stored.dtype.byteorder == ">":
            stored = stored.astype(stored.dtype.newbyteorder("<"))
        if not stored.flags.c_contiguous:
            stored = np.ascontiguousarray(stored)
        return stored.view(dtype.numpy).reshape(shape)

    def read_packed(self) -> np.ndarray[Any, Any]:
        return self._stored() if self._form == "packed" else super().read_packed()

    def packed(self) -> Packed:
        if self._form != "packed" and not self.dtype.is_sub_byte:
            return super().packed()
        return Packed(_codec.Buffer(self.read_packed()), 0, self.dtype, cast("tuple[int, ...]", self.shape))

    def _strings(self, stored: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        size = prod(cast("tuple[int, ...]", self.shape))
        texts = parse_json(bytes(stored), f"strings of {self.where}", self.file)
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts) or len(texts) != size:
            message = f"strings of {self.where}: expected a list of {size} strings, got something else"
            raise FormatError(message, file=self.file)
        values = np.empty(len(texts), object)
        values[:] = texts
        return values.reshape(cast("tuple[int, ...]", self.shape))


class StoredArray(LazyTensor):
    """One array of a file, not yet read; has the attributes of a `Tensor` that writing to another format needs.

    Attributes:
        name: unique in its file.
        mil_dtype: DType of the elements.
        shape: dimensions.
        nbytes: bytes in a weight file: packed for sub-byte dtypes; 0 for strings, which have no fixed size.
    """

    __slots__ = ("_place",)

    def __init__(
        self,
        name: str,
        mil_dtype: DType,
        shape: tuple[int, ...],
        load: Callable[[], np.ndarray[Any, Any]],
        form: str = "values",
        file: str | None = None,
        budget: Budget | None = None,
    ) -> None:
        """Describe an array; see StretchPlace for the arguments."""
        super().__init__(name, mil_dtype, shape)
        self._place = StretchPlace(mil_dtype, shape, name, load, form, file, budget)

    @property
    def place(self) -> StretchPlace:
        """Where the values come from; for milblob's own modules."""
        return self._place

    def read_from(self, mapping: MappedFile, offset: int, nbytes: int) -> Self:
        """Note which bytes of a file reading takes, so that `fetching.fetch` fetches those of many arrays at once."""
        if mapping.is_partial and nbytes:
            self._place.stretch = mapping, offset, nbytes
        return self


class Arrays(Shown, Closable, Mapping[str, _A]):
    """The arrays of a file by name, in its order. Each array is looked up on first access.

    A context manager. Closing ends reading; arrays that were read remain valid.

    Attributes:
        has_given_names: whether the names are in the file; else milblob makes them of what reads an array.
        texts: what a .safetensors file holds about itself, without milblob's notes; of other files empty.

    Args:
        rows: name -> the file's description of the array.
        find: called with a name and its row, returns the array.
        close: closes the file.
    """

    has_given_names = True

    def __init__(
        self, rows: Mapping[str, Any], find: Callable[[str, Any], _A], close: Callable[[], None] = lambda: None
    ) -> None:
        self._rows = rows
        self._find = find
        self._close = close
        self.texts: dict[str, str] = {}

    def __getitem__(self, name: str) -> _A:
        return self._find(name, self._rows[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<Arrays: {len(self):,} arrays>"

    def _texts(self) -> list[tuple[str, str]]:
        return [("arrays", f"{len(self):,}"), ("first", "; ".join(map(short, islice(self, MAX_FIRST))))]

    def close(self) -> None:
        """Close the file."""
        self._close()


# ---------------------------------------------------------------------------------------------------------------- notes


def parse_notes(text: str, file: str) -> dict[str, dict[str, Any]]:
    """Read the notes that a format keeps about its arrays: key -> {"name", "dtype", "shape", "packed"}, all optional.

    Raises: FormatError: they do not have this form.
    """
    notes = parse_json(text, "notes of milblob", file, unique=True)
    if not isinstance(notes, dict) or not all(isinstance(note, dict) for note in notes.values()):
        raise FormatError("notes of milblob: expected an object for each array, got something else", file=file)
    return notes


def named(keys: Mapping[str, Any], notes: Mapping[str, dict[str, Any]], file: str) -> dict[str, str]:
    """Return name -> key: the names that the notes give, else the keys themselves.

    Raises: FormatError: a name that is not a string, or a name twice.
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
    budget: Budget,
) -> StoredArray:
    """Return the original of an array that was stored in another form: the inverse of `encoding.elements`.

    Args:
        name: of the array.
        note: what the format notes about it; None or {} if the stored array is the original.
        stored: NumPy dtype or DType that the format declares.
        shape: that the format declares.
        load: returns it, with this dtype and shape.
        file: for messages.
        budget: of that file.

    Raises:
        FormatError: a note that does not match what is stored.
        UnsupportedError: a dtype that MIL lacks; more than 64 dimensions.
    """
    note = note or {}
    require_shape(shape, 0, file)
    try:
        own = as_dtype(stored)
    except TypeError:
        message = f"dtype of {name}: expected one that MIL has, got {stored}"
        raise UnsupportedError(message, file=file) from None
    if "dtype" not in note:
        return StoredArray(name, own, shape, load, "values", file, budget)

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
        return StoredArray(name, dtype, given, load, "text", file, budget)
    if note.get("packed") is True and dtype is not DType.STRING:
        if own is not DType.UINT8 or shape != (dtype.nbytes(prod(given)),):
            raise refuse("dtype and shape", f"what {own} {list(shape)} holds packed", f"{dtype} {list(given)}")
        return StoredArray(name, dtype, given, load, "packed", file, budget)
    if given != shape:
        raise refuse("shape", list(shape), list(given))
    if own is dtype:
        return StoredArray(name, dtype, shape, load, "bytes" if dtype.is_sub_byte else "values", file, budget)
    if own.name != f"UINT{max(dtype.nbits, 8)}":
        raise refuse("dtype", f"one that {own} can represent", note["dtype"])
    return StoredArray(name, dtype, shape, load, "bytes" if dtype.is_sub_byte else "values", file, budget)


def readable_of(name: str, tensor: Any) -> LazyTensor:
    """Return a tensor as it is, and anything that NumPy makes an array of as a StoredArray. Raises: as `array_of`."""
    if isinstance(tensor, LazyTensor):
        return tensor
    array = array_of(tensor)
    # Not made contiguous: BlobWriter copies strided arrays in pieces.
    return StoredArray(name, dtype_of(array, f"array {name!r}"), array.shape, lambda: array, "memory")
