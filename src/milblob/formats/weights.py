"""Bare weight files with a listing: records, and beside them what each is called."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..arguments import require, require_calls, require_flags
from ..blobs.writer import BlobWriter
from ..dtypes import DType, as_dtype
from ..model.elements import Progress, Readable, elements
from ..model.listing import Row, parse_listing, to_json, to_mil
from ..model.model import Model
from ..model.stored import Arrays, StoredArray, restored
from ..model.tensor import Tensor
from ..storage.mapped import Mapping as MappedFile
from ..storage.output import NewFile, whole_file
from .params import Parameter

LISTINGS = (".json", ".mil")

_NATIVE = frozenset(dtype for dtype in DType if dtype.blob_code is not None)


def write_weights(
    tensors: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    listing: str | os.PathLike[str] | None = None,
    dtypes: Mapping[str, Any] | None = None,
    align: int = 64,
    force: bool = False,
    progress: Progress | None = None,
) -> dict[str, int]:
    """Write arrays to a new weight file, one record for each, in their order.

    Args:
        tensors: name -> anything NumPy makes an array of, a Tensor of a model, or a StoredArray or Parameter of another
            file. Read one at a time, and written from the mapped file where it holds the values.
        path: the weight file; appears whole or not at all.
        listing: a file beside it, or above, that says which record is which: .json, or .mil for MIL text. Either of
            them is what `open` takes to find the tensors by name.
        dtypes: name -> DType, name or NumPy dtype to store instead of the array's own: uint3 and uint6, whose arrays
            are uint8, or a narrower integer. Every value is checked; floats are not converted.
        align: the data of each record begins at a multiple of it: 64, 4096 or 16384.
        force: replace files that exist.
        progress: told of each tensor.

    Returns:
        name -> byte offset of the record's metadata, as a Program's BlobFileValue holds it.

    The weight file takes its name first and the listing right after it; if that fails, a weight file that was not there
    before is removed again.

    Raises:
        TypeError: dtypes that weight files cannot hold (bool, int64, uint64, float64, strings); all are named, before
            anything is written.
        OverflowError: an element outside its dtype. KeyError: a name in `dtypes` that is not in `tensors`.
        ProgramError: a name that MIL text cannot hold. ValueError: a listing of another kind, or elsewhere.
        FileExistsError: without `force`. Otherwise as `Tensor.read` and `BlobWriter.write`.
    """
    require_flags(force=force)
    require_calls(progress=progress)
    require("tensors", tensors, Mapping, "a mapping of names to arrays")
    require("dtypes", {} if dtypes is None else dtypes, Mapping, "a mapping of names to dtypes")
    given = {name: as_dtype(dtype) for name, dtype in (dtypes or {}).items()}
    for name in given:
        if name not in tensors:
            raise KeyError(f"tensor: expected a name among those to be written, got {name!r}")
    readable = {name: _readable(name, tensor) for name, tensor in tensors.items()}
    lacking = {
        name: dtype
        for name, tensor in readable.items()
        if (dtype := given.get(name, tensor.mil_dtype)).blob_code is None
    }
    if lacking:
        names = ", ".join(f"{dtype} of {name}" for name, dtype in list(lacking.items())[:8])
        more = f" and {len(lacking) - 8} more" if len(lacking) > 8 else ""
        raise TypeError(f"dtypes: expected ones that weight files hold, got {names}{more}")
    return save(readable, path, listing=listing, align=align, force=force, progress=progress, dtypes=given)


def save(
    tensors: Mapping[str, Readable],
    path: str | os.PathLike[str],
    *,
    listing: str | os.PathLike[str] | None = None,
    align: int = 64,
    force: bool = False,
    progress: Progress | None = None,
    dtypes: Mapping[str, DType] | None = None,
) -> dict[str, int]:
    """Write tensors to a weight file, without losing those that weight files lack a dtype for.

    Args:
        See `write_weights`. bool, int64, uint64, float64 and strings become uint8, and the listing in JSON says what
        they are (see `elements`); `open_arrays` gives them back.

    Raises:
        As `write_weights`; ProgramError: a listing as MIL text has no place for such a tensor.
    """
    path = os.fsdecode(os.fspath(path))
    listing = None if listing is None else os.fsdecode(os.fspath(listing))
    file = "" if listing is None else _file_in_listing(path, listing)
    existed = os.path.lexists(path)
    listed = None if listing is None else NewFile(listing, force=force)
    try:
        with whole_file(path, force) as temporary:
            rows = []
            with BlobWriter(temporary, align=align, sync=False) as blobs:
                for name, tensor in tensors.items():
                    with _naming(name):
                        rows.append(_write(blobs, name, tensor, (dtypes or {}).get(name)))
                    if progress is not None:
                        progress(name, tensor.nbytes)
            if listed is not None:
                text = to_mil(file, rows) if str(listing).endswith(".mil") else to_json(file, rows)
                with open(listed.fd, "wb", closefd=False) as stream:
                    stream.write(text.encode())
        if listed is not None:
            try:
                listed.commit()
            except BaseException:
                if not existed:
                    with contextlib.suppress(OSError):
                        os.unlink(path)
                raise
    finally:
        if listed is not None:
            listed.discard()
    return {row.name: row.offset for row in rows}


def _write(blobs: BlobWriter, name: str, tensor: Readable, dtype: DType | None) -> Row:
    """Write one tensor as a record."""
    own = tensor.mil_dtype
    if dtype is not None and dtype is not own:
        return Row(name, dtype, tensor.shape, blobs.write(tensor.read(), dtype))
    if own.is_sub_byte:
        return Row(name, own, tensor.shape, blobs.write_packed(tensor.read_packed(), own, tensor.size))
    array, note = elements(tensor, _NATIVE, packed=True)
    return Row(name, as_dtype(array.dtype), array.shape, blobs.write(array), note)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say of which tensor an element or a dtype is refused."""
    try:
        yield
    except (TypeError, OverflowError) as error:
        raise type(error)(f"tensor {name}: {error}") from None


def _readable(name: str, tensor: Any) -> Readable:
    if isinstance(tensor, Tensor | StoredArray | Parameter):
        return tensor
    array = np.asarray(tensor)
    return _Given(name, as_dtype(array.dtype), array.shape, lambda: array)


class _Given(StoredArray):
    """An array in memory, as it is: BlobWriter copies strided ones in pieces."""

    __slots__ = ()

    def read(self) -> np.ndarray[Any, Any]:
        return self._load()


def _file_in_listing(path: str, listing: str) -> str:
    """Return the weight file's name as its listing spells it."""
    if os.path.splitext(listing)[1] not in LISTINGS:
        raise ValueError(f"listing {listing}: expected a name that ends in .json or .mil, got another")
    directory = os.path.dirname(os.path.abspath(listing))
    weights = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    file = os.path.relpath(weights, os.path.realpath(directory))
    if file.startswith("..") or os.path.isabs(file):
        raise ValueError(f"listing {listing}: expected a place beside {path} or above it, got another")
    return file.replace(os.sep, "/")


# -------------------------------------------------------------------------------------------------------------- reading


def open_arrays(path: str) -> Arrays:
    """Open a weight file or a listing of one: a mapping from names to `StoredArray`.

    Raises:
        As `milblob.open`.
    """
    model = Model(path)
    try:
        tensors = with_notes(model, model)
    except BaseException:
        model.close()
        raise
    return Arrays({name: partial(_stored, name, tensors) for name in tensors}, model.close)


def _stored(name: str, tensors: Mapping[str, Readable]) -> StoredArray:
    tensor = tensors[name]
    if isinstance(tensor, StoredArray):
        return tensor
    load, form = (tensor.read_packed, "packed") if tensor.mil_dtype.is_sub_byte else (tensor.read, "values")
    return StoredArray(name, tensor.mil_dtype, tensor.shape, load, form, tensor.file)


def with_notes(tensors: Mapping[str, Tensor], model: Model) -> Mapping[str, Readable]:
    """Return tensors of a model; where it is a listing with notes, what these say that the records stand for.

    Raises:
        FormatError: a note that does not fit its record.
    """
    if model.kind != "listing" or model.path is None:
        return tensors
    mapping = MappedFile(model.path)
    try:
        _, rows = parse_listing(memoryview(mapping.live()), model.path)
    finally:
        mapping.close()
    notes = {row.name: row.note for row in rows if row.note is not None}
    result: dict[str, Readable] = dict(tensors)
    for name in notes.keys() & result.keys():
        tensor = tensors[name]
        result[name] = restored(name, notes[name], tensor.mil_dtype, tensor.shape, tensor.read, model.path)
    return result
