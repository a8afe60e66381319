"""safetensors, through the library of that name (an optional dependency)."""

import contextlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np

from ..budget import Budget
from ..dtypes import DType
from ..errors import FormatError, UnsupportedError
from ..extras import require
from ..jsontext import as_shape
from ..mirrored import PREFIX
from ..model.lazy import LazyTensor
from ..model.manifest import read_json
from ..model.stored import Arrays, StoredArray, named, parse_notes, restored
from ..progress import Progress, ProgressCounter
from ..storage import paths
from ..storage.beneath import Location
from ..storage.mapped import MappedFile, closed_on_error
from ..storage.output import NewNamedFile
from .directories import FILE_SUFFIX, INDEX_SUFFIX, checkpoint_in
from .encoding import PLAIN, elements

NOTES = "milblob"
"""Key of the notes in the file's metadata: JSON, {name: {"dtype": ...}}; only of tensors that need a note."""

_NATIVE = PLAIN | {DType.BFLOAT16, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2}


_MAX_HEADER_NBYTES = 100_000_000  # as the library's own limit

CODES = {
    "BOOL": DType.BOOL, "U8": DType.UINT8, "I8": DType.INT8, "U16": DType.UINT16, "I16": DType.INT16,
    "U32": DType.UINT32, "I32": DType.INT32, "U64": DType.UINT64, "I64": DType.INT64, "F16": DType.FLOAT16,
    "BF16": DType.BFLOAT16, "F32": DType.FLOAT32, "F64": DType.FLOAT64, "F8_E4M3": DType.FLOAT8E4M3FN,
    "F8_E5M2": DType.FLOAT8E5M2,
}  # fmt: skip


def save(
    tensors: Mapping[str, LazyTensor],
    path: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    packed: bool = False,
) -> None:
    """Write tensors to a .safetensors file: see `write.save`. bfloat16 and fp8 are stored as such.

    The library takes all tensors at once, and writes them at the end: `progress` counts those that are read. Recent
    versions write directly from the mapped file where it holds the values.

    Raises: As `write.save`; UnsupportedError: the library is not installed, or refuses a name.
    """
    require("safetensors.numpy")
    safetensors = require("safetensors")
    notes: dict[str, dict[str, Any]] = {}
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    counter = ProgressCounter(progress, tensors.values())
    for name, tensor in tensors.items():
        array, note = elements(tensor, _NATIVE, packed)
        key = f"%{name}" if name.lstrip("%") == "__metadata__" else name  # the format reserves that key
        if key != name:
            note = {"name": name, **(note or {})}
        if note is not None:
            notes[key] = note
        arrays[key] = np.require(array, requirements="C")
        counter.add_tensor(name, tensor)
    metadata = {NOTES: json.dumps(notes)} if notes else None
    with NewNamedFile(path, force) as new:
        try:
            safetensors.numpy.save_file(arrays, new.name, metadata)
        except safetensors.SafetensorError as error:
            if number := re.search(r"\(os error (\d+)\)", str(error)):  # the library's words for an OSError
                raise OSError(int(number[1]), os.strerror(int(number[1])), path) from None
            raise UnsupportedError(
                f"safetensors file: expected tensors that it takes, got a refusal: {error}"
            ) from None


# -------------------------------------------------------------------------------------------------------------- reading


def open_arrays(path: str, max_nbytes: int | None = None) -> Arrays[StoredArray]:
    """Open a .safetensors file from any writer.

    The library checks the file. Its NumPy interface copies every tensor and has no views of bfloat16 and fp8, so
    milblob makes the arrays over its own mapping of the file, at the offsets in the header.

    Raises: OSError: it cannot be opened. FormatError: the library refuses it; a key occurs twice; notes that do not
    match. UnsupportedError: the library is not installed. A dtype that MIL lacks is refused when its tensor is
    accessed.
    """
    require("safetensors.numpy")
    safetensors = require("safetensors")
    mapping = MappedFile(path)
    with closed_on_error(mapping):
        try:
            with _checkable(mapping, path) as same, safetensors.safe_open(same, framework="numpy"):
                pass
        except safetensors.SafetensorError as error:
            raise FormatError(f"safetensors file: expected a sound one, got: {error}", file=path) from None
        header, start = _read_header(mapping, path)
        texts = header.pop("__metadata__", {})
        notes = parse_notes(str(texts.pop(NOTES, "{}")), path)
        names = named(header, notes, path)
        budget = Budget(max_nbytes, path)
        budget.add_file(path, mapping.nbytes, mapping.identity)

    def find(name: str, key: str) -> StoredArray:
        return _found(mapping, path, start, name, header[key], notes.get(key), budget)

    arrays = Arrays(names, find, mapping.close)
    arrays.texts = {key: str(text) for key, text in texts.items()}
    return arrays


@contextlib.contextmanager
def _checkable(mapping: MappedFile, path: str) -> Iterator[str]:
    """Yield a path whose header the library can check; of a remote file, its header in a file of the same size."""
    if not mapping.is_partial:
        with mapping.held_name() as same:
            yield same or path
        return
    data = memoryview(mapping.need([(0, 8)]))
    nbytes = 8 + min(int.from_bytes(data[:8], "little"), _MAX_HEADER_NBYTES)
    mapping.need([(0, nbytes)])
    with tempfile.TemporaryDirectory(prefix=PREFIX) as folder:
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".safetensors", delete=False) as file:
            file.write(data[:nbytes])
            file.truncate(mapping.nbytes)
        yield file.name


def _read_header(mapping: MappedFile, path: str) -> tuple[dict[str, Any], int]:
    """Read the header: (name -> entry, byte offset of the data).

    The library has validated it, but perhaps in another file, where it could only be given the path: so what is used
    of it is checked.
    """
    data = memoryview(mapping.live() if not mapping.is_partial else mapping.need([(0, 8)]))
    start = 8 + int.from_bytes(data[:8], "little")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise FormatError("header of safetensors file: expected every key once, got one twice", file=path)
        return dict(pairs)

    try:
        header = json.loads(bytes(data[8:start]), object_pairs_hook=unique)
    except FormatError:
        raise
    except (ValueError, RecursionError) as error:
        raise FormatError(f"header of safetensors file: expected JSON, got: {error}", file=path) from None
    for name, entry in header.items() if isinstance(header, dict) else [("header", None)]:
        if not isinstance(entry, dict) or not (_is_entry(entry) or name == "__metadata__"):
            message = f"header of safetensors file: expected dtype, shape and offsets of {name!r:.100}, got others"
            raise FormatError(message, file=path)
    return header, start


def _is_entry(entry: dict[str, Any]) -> bool:
    place = as_shape(entry.get("data_offsets"))
    has_type = isinstance(entry.get("dtype"), str) and as_shape(entry.get("shape")) is not None
    return has_type and place is not None and len(place) == 2


def _found(
    mapping: MappedFile,
    path: str,
    start: int,
    name: str,
    entry: dict[str, Any],
    note: dict[str, Any] | None,
    budget: Budget,
) -> StoredArray:
    dtype = CODES.get(entry["dtype"])
    if dtype is None:
        message = f"dtype of {name}: expected one that MIL has, got {entry['dtype']}"
        raise UnsupportedError(message, file=path)
    shape = as_shape(entry["shape"])
    begin, end = entry["data_offsets"]
    if shape is None or end - begin != dtype.nbytes(prod(shape)) or start + end > mapping.nbytes:
        message = f"place of {name}: expected {dtype} {entry['shape']} inside the file, got bytes {begin} to {end}"
        raise FormatError(message, file=path)

    def load() -> np.ndarray[Any, Any]:
        if begin == end:
            return np.empty(shape, dtype.numpy)
        return np.ndarray(shape, dtype.numpy, mapping.check_range(start + begin, end - begin), start + begin)  # type: ignore[arg-type]

    return restored(name, note, dtype, shape, load, path, budget).read_from(mapping, start + begin, end - begin)


def open_path(path: str, max_nbytes: int | None = None) -> Arrays[StoredArray]:
    """Open an index, or the checkpoint in a directory. Raises as `open_arrays`, `open_arrays`."""
    found = checkpoint_in(path) if paths.is_directory(path) else path
    open_it = open_index if found is None or found.endswith(INDEX_SUFFIX) else open_arrays
    return open_it(found or path, max_nbytes)


def open_index(path: str, max_nbytes: int | None = None) -> Arrays[StoredArray]:
    """Open the arrays of all files that an index names.

    Raises: OSError: the index or a file cannot be opened. FormatError: a broken index; a file that is not beside it; a
    file that lacks an array. ResolveError: a name that no file can have. UnsupportedError: as `open_arrays`.
    """
    directory = os.path.dirname(path)
    document = read_json(Location(path), "index of safetensors files", unique=True, code="")
    places = document.get("weight_map") if isinstance(document, dict) else None
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise FormatError("index of safetensors files: expected a weight_map, array -> file; got none", file=path)
    files: dict[str, Arrays[StoredArray]] = {}
    with contextlib.ExitStack() as stack:
        for name in dict.fromkeys(places.values()):
            if os.path.basename(name) != name or not name.endswith(FILE_SUFFIX):
                message = f"expected names of {FILE_SUFFIX} files beside it, got {name!r:.200}"
                raise FormatError(f"index of safetensors files: {message}", file=path)
            Location(directory or ".").beneath(name)  # refuses what JSON can spell and no file name can hold
            files[name] = stack.enter_context(open_arrays(os.path.join(directory, name), max_nbytes))
        for array, name in places.items():
            if array not in files[name]:
                message = f"array {array!r:.200}: expected in {name} because of the index, got a file without it"
                raise FormatError(message, file=path)
        close = stack.pop_all().close

    def find(name: str, file: Any) -> StoredArray:
        return files[file][name]

    return Arrays(places, find, close)
