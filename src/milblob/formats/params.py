"""TVM's `.params` files: tensors as views of the mapped file, and new files, byte for byte as TVM writes them."""

import os
import struct
from collections.abc import Callable, Hashable, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..arguments import array_of, as_path, require, require_flags
from ..budget import Budget
from ..dtypes import DType, as_dtype
from ..errors import FormatError, MilblobError, UnsupportedError
from ..jsontext import first_again
from ..model.lazy import LazyTensor
from ..model.places import Place
from ..model.stored import Arrays
from ..progress import Progress, ProgressCounter, start_progress
from ..storage.mapped import MappedFile, closed_on_error
from ..storage.output import NewFile
from ..storage.pending import map_settled
from ..storage.transfer import write_at
from ..values.arrays import copy_into, sound_bools
from ..wording import escape, shortened
from .params_codes import PACKED, Codes, codes_of, dtype_text, numpy_dtype, written_dtype

LIST_MAGIC, TENSOR_MAGIC = 0xF7E58D4F05049CB7, 0xDD5E40F096B4A13F
MAGIC = struct.pack("<Q", LIST_MAGIC)
_HEAD = struct.Struct("<QQQ")
_RECORD = struct.Struct("<QQiiiBBH")
_CPU, _MAX_RANK = 1, 64
_WINDOW_NBYTES = 128  # a record of up to 11 dimensions
_BATCH_COUNT, _BATCH_NBYTES = 500, 1 << 20  # of one call: larger ones are slower here


class ParameterPlace(Place):
    """Elements of a `.params` file, or of a shard of a tensor cache: a view of it wherever that is possible.

    DType and shape are found out when they are asked for: TVM has element types that MIL lacks.
    """

    __slots__ = ("_budget", "_parameter")

    def __init__(self, parameter: "Parameter", budget: Budget | None) -> None:
        self._parameter = parameter
        self._budget = budget

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        """See Place. Raises: UnsupportedError: MIL has no such element type."""
        return self._parameter.mil_dtype

    @property
    def shape(self) -> tuple[int, ...]:  # type: ignore[override]
        return self._parameter.shape

    @property
    def where(self) -> str:
        return self._parameter.name

    @property
    def file(self) -> str | None:
        return self._parameter.file

    def key(self) -> Hashable:
        return self._parameter.file, self._parameter.offset

    def account(self) -> None:
        if self._budget is not None:
            self._budget.spend((self.key(), self._parameter.name), self._parameter.nbytes)

    def read(self, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        with self.naming():
            return self._parameter.read(out=out)


class Parameter(LazyTensor):
    """One tensor of a `.params` file or of a tensor cache, not yet read.

    Attributes:
        name: as the file has it; bytes that are no UTF-8 come as lone surrogates (see `str.decode`, "surrogateescape").
        dtype_text: TVM's name of the element type, such as "float32".
        shape: dimensions; UnsupportedError where there are more than NumPy can have.
        file: path of the file, or None for a buffer.
        offset: of the first element in that file (of a .tar.gz: in the archive that it holds).
        stored_nbytes: bytes that the file has for it.

    Examples:
        >>> with milblob.tvm.open_params("demo.params") as params:
        ...     w = params["w"]
        >>> w.name, w.dtype, w.shape, w.stored_nbytes
        ('w', dtype('float32'), (2, 2), 16)
    """

    __slots__ = ("_budget", "_declared", "_form", "_mapping", "dtype_text", "file", "offset", "stored_nbytes")

    def __init__(
        self,
        name: str,
        dtype_text: str,
        shape: tuple[int, ...] | None,
        mapping: MappedFile,
        place: tuple[int, int],
        form: str = "values",
        budget: Budget | None = None,
    ) -> None:
        """Describe a tensor.

        Args:
            name, dtype_text: see the class.
            shape: None if it has more dimensions than NumPy can have.
            mapping: the file.
            place: offset and nbytes of its elements, which lie inside the file.
            form: how they are stored: "values", or "bf16", the upper half of each float32.
            budget: of the file.
        """
        # Not LazyTensor's: DType and shape are there to be asked for, and may be none that MIL and NumPy have.
        self.name, self.dtype_text, self._declared, self._mapping, self._form = name, dtype_text, shape, mapping, form
        self._budget = budget
        self.offset, self.stored_nbytes = place
        self.file: str | None = mapping.name

    @property
    def _shape(self) -> tuple[int, ...]:  # type: ignore[override]
        if self._declared is None:
            raise self._unsupported(f"at most {_MAX_RANK} dimensions", "more")
        return self._declared

    @property
    def place(self) -> ParameterPlace:
        """Where the values come from; for milblob's own modules."""
        return ParameterPlace(self, self._budget)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype of the values.

        Raises:
            UnsupportedError: an element type that has none, or that TVM itself cannot read back.
        """
        dtype = numpy_dtype(self.dtype_text)
        if dtype is None:
            raise self._unsupported("an element type that NumPy or ml_dtypes has", self.dtype_text)
        return dtype

    @property
    def mil_dtype(self) -> DType:  # type: ignore[override]
        """DType of the values.

        Raises:
            UnsupportedError: MIL has no such element type.
        """
        try:
            return as_dtype(self.dtype)
        except TypeError:
            raise self._unsupported("an element type that MIL has", self.dtype_text) from None

    @property
    def nbytes(self) -> int:
        """Bytes of the array that `read` returns."""
        return self.size * self.dtype.itemsize

    def stored(self) -> np.ndarray[Any, Any]:
        """Return the stored bytes: a read-only view of the file, uint8, shape (stored_nbytes,).

        Raises:
            FormatError: the file has shrunk. ValueError: it is closed.
        """
        buffer: Any = self._mapping.check_size() if self.stored_nbytes else b""
        return np.frombuffer(buffer, np.uint8, self.stored_nbytes, self.offset if self.stored_nbytes else 0)

    def read(self, *, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Return the values, of `dtype` and `shape`.

        Args:
            out: array of the same dtype and shape to fill instead.

        Returns:
            A read-only view of the mapped file, aligned only by chance (see `flags.aligned`). Of int4, float4_e2m1fn
            and float32 that is stored as bfloat16: a new array.

        Raises:
            UnsupportedError: see `dtype`, `shape`. FormatError: the file has shrunk; a bool that is neither 0 nor 1.
            ValueError: it is closed; `out` does not fit.
        """
        values = self._values()
        return values if out is None else copy_into(out, values)

    def _values(self) -> np.ndarray[Any, Any]:
        dtype, shape = self.dtype, self.shape
        if not self.stored_nbytes:
            return np.empty(shape, dtype)
        if self._form == "bf16":
            out = np.empty(shape, np.float32)
            buffer = self._mapping.check_size()
            _codec.cast(_codec.CAST_BF16_F32, buffer, self.offset, out.size, out)
            return out
        if self.dtype_text in PACKED:
            return self._nibbles(dtype, shape)
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, self._mapping.check_size(), self.offset)  # type: ignore[arg-type]
        if dtype.kind == "b" and int(array.view(np.uint8).max()) > 1:
            message = (
                f"elements of {self.name}: expected 0 or 1 in each byte of a bool, got {array.view(np.uint8).max()}"
            )
            raise FormatError(message, offset=self.offset, file=self.file)
        return array

    def _nibbles(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
        stored = self.stored()
        out = np.empty(stored.size, np.uint8)
        out[0::2] = stored[: (stored.size + 1) // 2] >> 4
        out[1::2] = stored[: stored.size // 2] & 15
        return out.view(dtype).reshape(shape)

    def __repr__(self) -> str:
        shape = "?" if self._declared is None else ", ".join(map(str, self._declared))
        return f"<Parameter {self.name!r}: {self.dtype_text} [{shape}]>"

    def _unsupported(self, expected: str, got: object) -> UnsupportedError:
        return UnsupportedError(
            f"parameter {self.name}: expected {expected}, got {got}", offset=self.offset, file=self.file
        )


class ParamsScan(NamedTuple):
    """What is in a `.params` file, sound or not."""

    names: list[str]  # all names, with lone surrogates for bytes that are no UTF-8; some may be there twice
    rows: list[Any]  # one for each record up to the first that is not good, in order; see `_codec.params_record`
    reserved: int  # of the header; TVM writes 0
    end: int  # offset after the last good record
    error: MilblobError | None  # what is wrong with the names, or with the record after the rows; None if all is well


def scan(mapping: MappedFile, offset: int, nbytes: int) -> ParamsScan:
    """Find the tensors of a `.params` file that lies at [offset, offset + nbytes) of a mapped file, and no elements.

    The records of a file are read by position: through the mapping, each would be a page fault that maps the cached
    pages around it, megabytes of them where they are large (bench/bench_tvm.py shows what becomes resident).
    """
    buffer = mapping.check_size()
    raw, reserved, at, error = _codec.params_names(buffer, offset, nbytes)
    names = [name.decode("utf-8", "surrogateescape") for name in raw]
    end, rows = offset + nbytes, []
    with mapping.held() as fd:
        can_read = fd >= 0 and hasattr(os, "pread")
        for _ in names:
            window = os.pread(fd, _WINDOW_NBYTES, at) if can_read else None
            if window is not None and len(window) < min(_WINDOW_NBYTES, end - at):
                mapping.check_size()  # it has shrunk
            try:
                row = _codec.params_record(buffer, at, end, window)
            except FormatError as found:
                error = found
                break
            rows.append(row)
            at = row[1] + row[2]
    return ParamsScan(names, rows, reserved, at, error)


class Parameters(Arrays[Parameter]):
    """The tensors of one `.params` file or tensor cache by name, in its order. Values are read on access.

    A context manager. Closing ends reading; arrays that were read remain valid.

    Examples:
        >>> with milblob.tvm.open_params("demo.params") as params:
        ...     print(list(params), params["w"].read().sum())
        ['w', 'n'] 10.0
    """


class Views(Arrays[np.ndarray[Any, Any]]):
    """The values of tensors by name, each read on access.

    A context manager. Closing ends reading; arrays that were read remain valid.

    Attributes:
        tensors: what they are: name -> `Parameter`.

    Examples:
        >>> with milblob.tvm.read_params("demo.params") as views:
        ...     w = views["w"]
        >>> w, views.tensors["w"].dtype_text
        (array([[1., 2.],
               [3., 4.]], dtype=float32), 'float32')
    """

    def __init__(self, tensors: Parameters) -> None:
        super().__init__(tensors, lambda name, tensor: tensor.read(), tensors.close)
        self.tensors = tensors


def parameters_in(
    mapping: MappedFile,
    offset: int,
    nbytes: int,
    codes: Codes,
    close: Callable[[], None] = lambda: None,
    budget: Budget | None = None,
) -> Parameters:
    """Return the tensors of a `.params` file that lies at [offset, offset + nbytes) of a mapped file.

    Bytes after the last tensor are left alone, as TVM does: `check` reports them.

    Raises: FormatError: it is broken, also where TVM would not notice: cut off inside the last tensor, or a name twice.
    """
    names, rows, _, _, error = scan(mapping, offset, nbytes)
    if error is not None:
        if len(names) > len(rows):
            error.where = error.where or f"tensor {names[len(rows)]}"
        raise error
    found = dict(zip(names, rows, strict=True))
    if len(found) != len(names):
        message = f"names of tensors: expected each once, got {first_again(names)!r:.100} twice"
        raise FormatError(message, offset=offset + _HEAD.size, file=mapping.name)
    return Parameters(found, lambda name, row: parameter_of(name, row, mapping, codes, budget), close)


def parameter_of(name: str, row: Any, mapping: MappedFile, codes: Codes, budget: Budget | None = None) -> Parameter:
    """Return the tensor of a row of `ParamsScan`."""
    _, data_offset, nbytes, code, bits, lanes, shape, _, _ = row
    return Parameter(name, dtype_text(codes, code, bits, lanes), shape, mapping, (data_offset, nbytes), budget=budget)


def open_arrays(path: str, max_nbytes: int | None = None, tvm: str | None = None) -> Parameters:
    """Open a .params file by path: see `open_params`."""
    return open_params(path, tvm=tvm, max_nbytes=max_nbytes)


def open_params(source: Any, *, tvm: str | None = None, mmap: bool = True, max_nbytes: int | None = None) -> Parameters:
    """Open a `.params` file: a mapping from names to tensors that are read when asked to.

    Args:
        source: path, buffer or file object of a `.params` file.
        tvm: see `read_params`.
        mmap: map the file; else it is read whole.
        max_nbytes: as for `milblob.open`.

    Raises:
        As `read_params`.

    Examples:
        >>> with milblob.tvm.open_params("demo.params") as params:
        ...     print(params["w"].shape, params["w"].read().max())
        (2, 2) 4.0
    """
    require_flags(mmap=mmap)
    codes = codes_of(tvm)
    budget = Budget(max_nbytes)
    mapping = map_settled(source, is_mapped=mmap)
    with closed_on_error(mapping):
        budget.file = mapping.name
        budget.add_file(mapping.name, mapping.nbytes, mapping.identity)
        return parameters_in(mapping, 0, mapping.nbytes, codes, mapping.close, budget)


# -------------------------------------------------------------------------------------------------------------- writing


class _Planned(NamedTuple):
    """A tensor that is to be written: its record as bytes, and where its elements come from."""

    name: str
    head: bytes
    text: str
    dtype: np.dtype[Any]
    nbytes: int
    source: Any


def write_params(
    tensors: Mapping[str, Any],
    destination: str | os.PathLike[str],
    *,
    tvm: str | None = None,
    force: bool = False,
    sync: bool = True,
    progress: Progress | None = None,
) -> None:
    """Write tensors to a new `.params` file, in the order given, byte for byte as TVM's `save_param_dict` does.

    Args:
        tensors: name -> anything NumPy makes an array of, or an object with `dtype`, `shape` and `read` (a Parameter, a
            Tensor of a model). Read one at a time, and not copied where they are contiguous.
        destination: path of the file; appears whole or not at all.
        tvm: version of TVM that is to read it: up to 0.22 bool is written as (1, 1), up to 0.20 fp8 as (6, 8) and
            (7, 8). Default: as TVM 0.23 and later.
        force: replace a file that exists.
        sync: have it on the disk when this returns; without it a power failure may lose the old file and the new one.
        progress: called as each tensor is written (see `milblob.progress.Progress`).

    Integers of less than a byte become int8 or uint8: TVM does not take them from NumPy. float4_e2m1fn is stored two to
    a byte and padded with zeros, where TVM leaves uninitialized memory.

    Raises:
        TypeError: dtypes that TVM lacks; all are named, before anything is written. Names that are no strings.
        FileExistsError: without `force`. Otherwise as `NewFile`, and as reading the tensors.

    Examples:
        >>> milblob.tvm.write_params({"w": np.zeros((2, 3), np.float16)}, "new.params")
        >>> milblob.tvm.read_params("new.params")["w"].shape
        (2, 3)
    """
    require_flags(force=force, sync=sync)
    start_progress(progress)
    require("tensors", tensors, Mapping, "a mapping of names to arrays")
    codes = codes_of(tvm)
    planned = _plan(tensors, codes)
    names = b"".join(struct.pack("<Q", len(name)) + name for name in (_encoded(row.name) for row in planned))
    count = struct.pack("<Q", len(planned))
    pieces: list[Any] = [_HEAD.pack(LIST_MAGIC, 0, len(planned)) + names + count]
    counter = ProgressCounter(progress, planned)
    with NewFile(as_path(destination), force=force, sync=sync) as new:
        at, held = 0, len(pieces[0])
        for row in planned:
            pieces += [row.head, _elements(row)]
            held += len(row.head) + row.nbytes
            counter.add(row.name, row.nbytes)
            if held >= _BATCH_NBYTES or len(pieces) >= _BATCH_COUNT:
                write_at(new.fd, pieces, at)
                at, held, pieces = at + held, 0, []
        write_at(new.fd, pieces, at)


def _encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def _plan(arrays: Mapping[str, Any], codes: Codes) -> list[_Planned]:
    planned: list[_Planned] = []
    problems: list[str] = []
    for name, given in arrays.items():
        require("name of a tensor", name, str, "a string")
        try:
            _encoded(name)
        except UnicodeEncodeError:
            problems.append(f"{name!r:.100} cannot be encoded as UTF-8")
            continue
        source = given if is_lazy(given) else array_of(given)
        try:
            text = written_dtype(np.dtype(source.dtype))
            code, bits = codes.numbers[text]
        except (UnsupportedError, KeyError):
            problems.append(f"{source.dtype} of {name!r:.100}")
            continue
        shape = tuple(source.shape)
        dtype: Any = numpy_dtype(text)
        nbytes = prod(shape) * dtype.itemsize
        head = _RECORD.pack(TENSOR_MAGIC, 0, _CPU, 0, len(shape), code, bits, 1)
        head += struct.pack(f"<{len(shape) + 1}q", *shape, nbytes)
        planned.append(_Planned(name, head, text, dtype, nbytes, source))
    if problems:
        raise TypeError(
            escape(f"arrays: expected names and dtypes that TVM has, got {', '.join(shortened(problems, 20))}")
        )
    return planned


def is_lazy(value: Any) -> bool:
    """Whether something is a tensor that is read when asked to: a Parameter, a Tensor, a StoredArray."""
    return not isinstance(value, np.ndarray) and all(hasattr(value, name) for name in ("dtype", "shape", "read"))


def _elements(row: _Planned) -> Any:
    if isinstance(row.source, LazyTensor):
        row.source.place.account()
    array = row.source.read() if is_lazy(row.source) else row.source
    data = element_bytes(array, row.text, row.dtype)
    if data.nbytes != row.nbytes:
        raise ValueError(f"{row.name}: expected {row.nbytes} bytes for its shape and dtype, got {data.nbytes}")
    return data


def element_bytes(array: np.ndarray[Any, Any], text: str, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the bytes that a file has for an array: uint8, one-dimensional, a view wherever that is possible.

    `array`: of `dtype`, or of one that `written_dtype` widens to it. `text`: TVM's name of `dtype`.
    """
    values = np.ascontiguousarray(array if array.dtype == dtype else array.astype(dtype)).reshape(-1).view(np.uint8)
    if dtype.kind == "b":
        return sound_bools(values.view(np.bool_)).view(np.uint8)
    if text not in PACKED:
        return values
    out = np.zeros(values.size, np.uint8)
    out[: (values.size + 1) // 2] = (values[0::2] & 15) << 4
    out[: values.size // 2] |= values[1::2] & 15
    return out
