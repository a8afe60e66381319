"""ONNX models as files of arrays: their initializers, in the file itself or in others that it names. Needs no library.

`onnx_messages` finds them; here are their element types and values. External data are mapped, never copied.
"""

import os
from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..budget import Budget
from ..dtypes import DType
from ..errors import FormatError, UnsupportedError
from ..hashing import hash_bytes
from ..jsontext import parse_json
from ..model.lazy import LazyTensor
from ..model.stored import Arrays, StretchPlace
from ..storage.mapped import MappedFile, closed_on_error
from ..values.parallel import unpack_varints
from ..values.tensorvalue import require_shape
from .onnx_external import HASH_DIGITS, External, ExternalFiles
from .onnx_messages import DOUBLES, FLOATS, INTS, LONGS, RAW, TEXTS, UNSIGNED, Initializer, read_messages

Array = np.ndarray[Any, Any]

WEIGHTS, MADE = "milblob.weights", "milblob.made"
"""Keys of the metadata that `milblob.onnx.convert` leaves: which weight an initializer holds where its name is another,
{initializer: weight}; and what no weight is as it stands, {initializer: {"why": words, "hash": of its bytes}}."""


class _Type(NamedTuple):
    """An element type: its name in ONNX, milblob's or None, the field for its elements, and their bits in raw_data."""

    text: str
    dtype: DType | None
    field: int
    nbits: int


def _types() -> dict[int, _Type]:
    rows = {
        1: ("float", FLOATS, "FLOAT32"), 2: ("uint8", INTS, "UINT8"), 3: ("int8", INTS, "INT8"),
        4: ("uint16", INTS, "UINT16"), 5: ("int16", INTS, "INT16"), 6: ("int32", INTS, "INT32"),
        7: ("int64", LONGS, "INT64"), 8: ("string", TEXTS, "STRING"), 9: ("bool", INTS, "BOOL"),
        10: ("float16", INTS, "FLOAT16"), 11: ("double", DOUBLES, "FLOAT64"), 12: ("uint32", UNSIGNED, "UINT32"),
        13: ("uint64", UNSIGNED, "UINT64"), 16: ("bfloat16", INTS, "BFLOAT16"),
        17: ("float8e4m3fn", INTS, "FLOAT8E4M3FN"), 19: ("float8e5m2", INTS, "FLOAT8E5M2"),
        21: ("uint4", INTS, "UINT4"), 22: ("int4", INTS, "INT4"), 25: ("uint2", INTS, "UINT2"),
    }  # fmt: skip
    found = {code: _Type(text, DType[name], field, DType[name].nbits) for code, (text, field, name) in rows.items()}
    others = {
        14: ("complex64", FLOATS, 64), 15: ("complex128", DOUBLES, 128), 18: ("float8e4m3fnuz", INTS, 8),
        20: ("float8e5m2fnuz", INTS, 8), 23: ("float4e2m1", INTS, 4), 24: ("float8e8m0", INTS, 8),
        26: ("int2", INTS, 2), 27: ("float6e2m3", INTS, 6), 28: ("float6e3m2", INTS, 6),
    }  # fmt: skip
    return found | {code: _Type(text, None, field, nbits) for code, (text, field, nbits) in others.items()}


_TYPES = _types()


class OnnxArray(LazyTensor):
    """One tensor of an ONNX model, not yet read.

    Attributes:
        name: that of the weight, if the model's metadata have it; else that of the initializer.
        initializer: its name in the ONNX model.
        dtype_text: ONNX's name of the element type, such as "float16".
        shape: dimensions; UnsupportedError where there are more than NumPy can have.
        file: path of the file that holds the elements.
        offset: of the first element in that file; None where they are in pieces, varints or texts.
        stored_nbytes: bytes of the elements, packed; those that a file of this size would have in raw_data.
        external: where they are in another file; None for others.
    """

    __slots__ = ("_declared", "_place", "dtype_text", "external", "file", "initializer", "offset", "stored_nbytes")

    def __init__(self, name: str, row: Initializer, kind: _Type, place: StretchPlace | None, file: str) -> None:
        # Not LazyTensor's: a DType is there to be asked for, and may be none that MIL has.
        self.name, self.initializer, self.dtype_text, self._declared = name, row.name, kind.text, row.dims
        self.file, self._place = file, place
        self.offset: int | None = None
        self.external: External | None = None
        self.stored_nbytes = (prod(row.dims) * kind.nbits + 7) // 8

    @property
    def _shape(self) -> tuple[int, ...]:  # type: ignore[override]
        require_shape(self._declared, 0, self.file)
        return self._declared

    @property
    def mil_dtype(self) -> DType:  # type: ignore[override]
        """DType of the values. Raises: UnsupportedError: MIL has no such element type."""
        return self.place.dtype

    @property
    def place(self) -> StretchPlace:
        """Where the values come from; for milblob's own modules.

        Raises: UnsupportedError: an element type that MIL lacks; a shape that NumPy cannot have.
        """
        require_shape(self._declared, 0, self.file)
        if self._place is None:
            message = f"element type of {self.name}: expected one that MIL has, got {self.dtype_text}"
            raise UnsupportedError(message, file=self.file)
        return self._place

    def __repr__(self) -> str:
        return f"<OnnxArray {self.name!r}: {self.dtype_text} [{', '.join(map(str, self._declared))}]>"


class OnnxArrays(Arrays[OnnxArray]):
    """The tensors of an ONNX model by name."""

    def __init__(self, rows: dict[str, Initializer], made: dict[str, tuple[str, str]], source: "_Source") -> None:
        super().__init__(rows, source.find, source.close)
        self._hashes = {name: hash for name, (_, hash) in made.items()}
        # name -> why, of initializers that hold no weight of an ML Program as it stands there: what a conversion by
        # milblob made itself, or out of weights
        self.made = {name: why for name, (why, _) in made.items()}

    def is_as_made(self, name: str) -> bool:
        """Whether an array is one of `made`, and has the values that the conversion gave it.

        Raises: As `LazyTensor.read`.
        """
        if name not in self.made:
            return False
        array = self[name]
        if array.mil_dtype is DType.STRING:
            return True  # labels: no weight can come of them
        return hash_bytes(array.read_packed())[:HASH_DIGITS] == self._hashes[name]


def open_arrays(path: str, max_nbytes: int | None = None) -> OnnxArrays:
    """Open an ONNX model.

    Raises: OSError: it cannot be opened. FormatError: broken. UnsupportedError: what no library writes. An array is
    examined when it is accessed; its external data when it is read.
    """
    mapping = MappedFile(path)
    with closed_on_error(mapping):
        rows, metadata = read_messages(mapping)
        homes, made = _notes(metadata, path)
        named: dict[str, Initializer] = {}
        for initializer, row in rows.items():
            name = homes.get(initializer, initializer)
            if name in named:
                message = f"names of weights: expected each once, got {name!r:.100} twice"
                raise FormatError(message, file=path)
            named[name] = row
        budget = Budget(max_nbytes, path)
        budget.add_file(path, mapping.nbytes, mapping.identity)
    own = {homes.get(name, name): note for name, note in made.items() if name in rows}
    return OnnxArrays(named, own, _Source(path, mapping, budget))


def _notes(metadata: dict[str, str], path: str) -> tuple[dict[str, str], dict[str, tuple[str, str]]]:
    """Read what the conversion noted: initializer -> weight, and initializer -> (why, hash).

    Raises: FormatError: it does not have this form.
    """
    homes = parse_json(metadata.get(WEIGHTS, "{}"), WEIGHTS, path, unique=True)
    made = parse_json(metadata.get(MADE, "{}"), MADE, path, unique=True)
    if not isinstance(homes, dict) or not all(isinstance(name, str) for name in homes.values()):
        raise FormatError(f"{WEIGHTS}: expected a name for each initializer, got something else", file=path)
    notes: dict[str, tuple[str, str]] = {}
    for name, note in made.items() if isinstance(made, dict) else [("", made)]:
        why, hash = (note.get("why"), note.get("hash")) if isinstance(note, dict) else (None, None)
        if not isinstance(why, str) or not isinstance(hash, str):
            raise FormatError(f"{MADE}: expected why and hash of each initializer, got something else", file=path)
        notes[name] = (why, hash)
    return homes, notes


# -------------------------------------------------------------------------------------------------------------- values


class _Source:
    """The files of one ONNX model; an external file is mapped on the first access to an array in it."""

    def __init__(self, path: str, mapping: MappedFile, budget: Budget) -> None:
        self._path = path
        self._mapping = mapping
        self._budget = budget
        self._files = ExternalFiles(path, budget)

    def close(self) -> None:
        self._mapping.close()
        self._files.close()

    def find(self, name: str, row: Initializer) -> OnnxArray:
        """Return the array of a row.

        Raises: FormatError: an element type that no version of ONNX has; elements of the wrong number; external data
        whose place is none.
        """
        kind = _TYPES.get(row.code)
        if kind is None:
            message = f"element type of {name!r:.100}: expected one of ONNX, got {row.code}"
            raise FormatError(message, file=self._path)
        if row.indices is not None:  # only values other than zero are stored
            load, form = self._sparse(name, row, kind), "values"
            array = OnnxArray(name, row, kind, self._place(name, row, kind, load, form, self._path), self._path)
            array.stored_nbytes = sum(nbytes for spans in row.spans.values() for _, nbytes in spans)
            return array
        if row.external is not None:
            return self._external(name, row, kind)
        load, form, offset = self._inside(name, row, kind)
        array = OnnxArray(name, row, kind, self._place(name, row, kind, load, form, self._path), self._path)
        array.offset = offset
        return array

    def _place(
        self, name: str, row: Initializer, kind: _Type, load: Callable[[], Array], form: str, file: str
    ) -> StretchPlace | None:
        if kind.dtype is None:
            return None
        return StretchPlace(kind.dtype, row.dims, name, load, form, file, self._budget)

    def _refuse(self, name: str, what: str, expected: object, got: object) -> FormatError:
        return FormatError(f"{what} of {name!r:.100}: expected {expected}, got {got!s:.100}", file=self._path)

    # ----------------------------------------------------------------------------------------------- in the file itself

    def _inside(self, name: str, row: Initializer, kind: _Type) -> tuple[Callable[[], Array], str, int | None]:
        """Return what reads the elements, their form, and the offset of raw ones."""
        given = [field for field, spans in row.spans.items() if any(nbytes for _, nbytes in spans)]
        count = prod(row.dims)
        if len(given) > 1:
            raise self._refuse(name, "elements", "one field with them", f"{len(given)}")
        field = given[0] if given else RAW
        if given and field not in ((TEXTS,) if kind.dtype is DType.STRING else (RAW, kind.field)):
            raise self._refuse(name, "elements", f"those of {kind.text} in field {kind.field}", f"field {field}")
        spans = row.spans.get(field, [])
        if kind.dtype is DType.STRING:
            spans = row.spans.get(TEXTS, [])
            if len(spans) != count:
                raise self._refuse(name, "strings", f"{count} for the shape {list(row.dims)}", len(spans))
            return lambda: self._texts(name, spans, row.dims), "values", None
        if field == RAW:
            offset, nbytes = spans[0] if spans else (0, 0)
            needed = (count * kind.nbits + 7) // 8
            if nbytes != needed:
                raise self._refuse(name, "raw_data", f"{needed} bytes for {kind.text} {list(row.dims)}", nbytes)
            load, form = _view(name, self._mapping, offset, nbytes, row.dims, kind)
            return load, form, offset if nbytes else None
        self._require_count(name, row, kind, field, spans)
        if kind.dtype is None:
            return lambda: np.empty(0, np.uint8), "values", None
        form = "packed" if kind.dtype.is_sub_byte else "values"
        at = spans[0][0] if len(spans) == 1 and field in (FLOATS, DOUBLES) else None
        return lambda: self._typed(name, row, kind, field), form, at

    def _require_count(self, name: str, row: Initializer, kind: _Type, field: int, spans: list[Any]) -> None:
        """Refuse another number of elements than the shape has, before anything is made."""
        nbytes, count = sum(size for _, size in spans), prod(row.dims)
        if field in (FLOATS, DOUBLES):
            got, needed = nbytes, count * kind.nbits // 8
        else:
            got = sum(_codec.varint_count(self._mapping.live(), *span) for span in spans)
            needed = (count * kind.nbits + 7) // 8 if kind.nbits < 8 else count
        if got != needed:
            what = "bytes of elements" if field in (FLOATS, DOUBLES) else "elements"
            raise self._refuse(name, what, f"{needed} for {kind.text} {list(row.dims)}", got)

    def _payload(self, spans: list[Any]) -> tuple[_codec.Buffer, int, int]:
        """Return the place of all elements; the rare elements in several pieces are joined."""
        buffer = self._mapping.check_size()
        if len(spans) == 1:
            return buffer, *spans[0]
        data = memoryview(buffer)
        joined = _codec.Buffer(b"".join(data[at : at + nbytes] for at, nbytes in spans), self._path)
        return joined, 0, joined.nbytes

    def _typed(self, name: str, row: Initializer, kind: _Type, field: int) -> Array:
        """Read the elements of a field that has a type of its own."""
        dtype: Any = kind.dtype
        buffer, offset, nbytes = self._payload(row.spans[field])
        if field in (FLOATS, DOUBLES):
            return np.ndarray(row.dims, dtype.numpy, memoryview(buffer), offset)
        low, high, itemsize = 0, (1 << min(max(kind.nbits, 8), 63)) - 1, max(kind.nbits // 8, 1)
        if dtype.is_integer and not dtype.is_sub_byte:
            low, high = dtype.range
        elif dtype is DType.BOOL:
            high = 1
        if dtype is DType.UINT64:  # the decoder's bounds are signed, and its bits the same
            low, high = -(1 << 63), (1 << 63) - 1
        count = prod(row.dims) if kind.nbits >= 8 else dtype.nbytes(prod(row.dims))
        values = np.empty(count, np.dtype(f"u{itemsize}"))
        try:
            unpack_varints(buffer, offset, nbytes, values, itemsize, low, high)
        except FormatError as error:
            error.where = error.where or name
            raise
        if dtype.is_sub_byte:
            return values
        shaped: Array = values.view(dtype.numpy.newbyteorder("=")).reshape(row.dims)
        return shaped

    def _texts(self, name: str, spans: list[Any], dims: tuple[int, ...]) -> Array:
        data = memoryview(self._mapping.check_size())
        values = np.empty(len(spans), object)
        try:
            values[:] = [bytes(data[at : at + nbytes]).decode() for at, nbytes in spans]
        except UnicodeDecodeError:
            raise self._refuse(name, "strings", "UTF-8", "other bytes") from None
        return values.reshape(dims)

    def _sparse(self, name: str, row: Initializer, kind: _Type) -> Callable[[], Array]:
        """Return a function that makes the dense array of a sparse tensor when it is called."""
        indices = row.indices
        if indices is None or kind.dtype is None or kind.dtype.is_sub_byte or kind.dtype is DType.STRING:
            message = f"sparse tensor {name!r:.100}: expected elements of whole bytes that MIL has, got {kind.text}"
            raise UnsupportedError(message, file=self._path)
        if indices.code != 7:
            raise self._refuse(name, "indices", "int64", f"type {indices.code}")
        rank, dims = len(row.dims), row.dims
        count = indices.dims[0] if indices.dims else 0
        if indices.dims not in ((count,), (count, rank)):
            raise self._refuse(name, "indices", f"[count] or [count, {rank}]", list(indices.dims))
        places = self.find(f"{name}.indices", indices._replace(name="indices"))
        values = self.find(f"{name}.values", row._replace(dims=(count,), indices=None))

        def load() -> Array:
            where = places.read()
            if where.ndim == 2:
                if ((where < 0) | (where >= np.array(dims))).any():
                    raise self._refuse(name, "indices", f"places inside of {list(dims)}", "others")
                where = where @ np.array([prod(dims[axis + 1 :]) for axis in range(rank)], np.int64)
            if where.size and not 0 <= int(where.min()) <= int(where.max()) < prod(dims):
                raise self._refuse(name, "indices", f"places inside of {list(dims)}", "others")
            whole: Array = np.zeros(prod(dims), values.dtype)
            whole[where] = values.read()
            return whole.reshape(dims)

        return load

    # ------------------------------------------------------------------------------------------------ in another file

    def _external(self, name: str, row: Initializer, kind: _Type) -> OnnxArray:
        given = row.external or {}
        if kind.dtype is DType.STRING:
            raise self._refuse(name, "external data", "elements of fixed size", kind.text)
        found = self._files.find(name, given, row.note, (prod(row.dims) * kind.nbits + 7) // 8)

        def load() -> Array:
            view, _ = _view(name, found.checked(), found.offset, found.nbytes, row.dims, kind)
            return view()

        place = os.path.join(os.path.dirname(self._path), *given["location"].replace("\\", "/").split("/"))
        form = "packed" if kind.nbits < 8 else "values"
        array = OnnxArray(name, row, kind, self._place(name, row, kind, load, form, place), place)
        array.offset, array.external = found.offset, found
        return array


def _view(
    name: str, mapping: MappedFile, offset: int, nbytes: int, dims: tuple[int, ...], kind: _Type
) -> tuple[Callable[[], Array], str]:
    """Return what makes an array over a mapped file of elements as they are in raw_data, and its form."""
    dtype: Any = kind.dtype
    if kind.nbits < 8:
        return lambda: np.ndarray((nbytes,), np.uint8, _bytes_of(mapping, nbytes), offset if nbytes else 0), "packed"
    if dtype is None:
        return lambda: np.empty(0, np.uint8), "values"

    def load() -> Array:
        stored = np.uint8 if dtype is DType.BOOL else dtype.numpy
        values = np.ndarray(dims, stored, _bytes_of(mapping, nbytes), offset if nbytes else 0)
        if dtype is DType.BOOL and values.size and int(values.max()) > 1:
            message = f"elements of {name!r:.100}: expected 0 and 1 for bool, got {int(values.max())}"
            raise FormatError(message, file=mapping.name)
        return values.view(dtype.numpy)

    return load, "values"


def _bytes_of(mapping: MappedFile, nbytes: int) -> Any:
    return mapping.check_size() if nbytes else b""
