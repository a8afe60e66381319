"""Bare weight files with a listing: records, and beside them the name of each."""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

from ..arguments import as_mapping, as_path, require, require_flags
from ..blobs.writer import BlobWriter
from ..closeness import unknown
from ..dtypes import DType, as_dtype
from ..errors import MilblobError, ResolveError
from ..hashing import hash_bytes
from ..model.lazy import LazyTensor
from ..model.listing import HASH_AT, Row, Stamp, parse_listing, to_json, to_mil
from ..model.model import Model
from ..model.package import Package
from ..model.recovery import settle
from ..model.replaceable import require_name
from ..model.stored import Arrays, StoredArray, readable_of, restored
from ..model.tensor import Tensor
from ..progress import Progress, ProgressCounter, start_progress
from ..storage import journal, paths, pending
from ..storage.beneath import Location
from ..storage.mapped import MappedFile, closed_on_error
from ..storage.output import NewFile, together
from ..storage.table import LISTINGS
from ..storage.transfer import write_at
from ..wording import escape, some
from .encoding import elements
from .filenames import require_texts

_NATIVE = frozenset(dtype for dtype in DType if dtype.blob_code is not None)


def write_weights(
    tensors: Mapping[str, Any],
    destination: str | os.PathLike[str],
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
        destination: the weight file; appears whole or not at all.
        listing: a file in the same directory, or above, that names the records: .json, or .mil for MIL text. `open`
            takes either to find the tensors by name.
        dtypes: name -> DType, name or NumPy dtype to store instead of the array's own: uint3 and uint6, whose arrays
            are uint8, or a narrower integer. Every value is checked; floats are not converted.
        align: the data of each record begins at a multiple of it: 64, 4096 or 16384.
        force: replace files that exist.
        progress: called as each tensor is written (see `Progress`).

    Returns:
        name -> byte offset of the record's metadata, as a Program's BlobFileValue holds it.

    Both files change together, or neither. If they replace an earlier pair, a journal makes the two renames one step,
    even if the process is killed between them: the next writer or `milblob.recover` completes it. If one of them is
    new, a killed process may leave a listing that reports that its weights are missing or different.

    Raises:
        TypeError: dtypes that weight files cannot hold (bool, int64, uint64, float64, strings); the message names all
            of them, and nothing is written.
        OverflowError: an element outside its dtype. KeyError: a name in `dtypes` that is not in `tensors`.
        ProgramError: a name that MIL text cannot hold. ValueError: a listing with another suffix, or in another place.
        FileExistsError: without `force`. Otherwise as `Tensor.read` and `BlobWriter.write`.

    Examples:
        >>> tensors = {"w": np.zeros((2, 3), np.float16), "q": np.array([1, 2, 3])}
        >>> milblob.write_weights(tensors, "weight.bin", listing="weight.json", dtypes={"q": "uint4"})
        {'w': 64, 'q': 192}
        >>> milblob.load("weight.json")["w"].shape
        (2, 3)
    """
    require_flags(force=force)
    start_progress(progress)
    require("tensors", tensors, Mapping, "a mapping of names to arrays")
    chosen = as_mapping("dtypes", dtypes, "a mapping of names to dtypes")
    given = {name: as_dtype(dtype) for name, dtype in chosen.items()}
    for name in given:
        if name not in tensors:
            raise KeyError(f"dtypes: {unknown('tensor', name, tensors)}")
    readable = {name: readable_of(name, tensor) for name, tensor in tensors.items()}
    lacking = {
        name: dtype
        for name, tensor in readable.items()
        if (dtype := given.get(name, tensor.mil_dtype)).blob_code is None
    }
    if lacking:
        names = some(f"{dtype} of {name}" for name, dtype in lacking.items())
        raise TypeError(escape(f"dtypes: expected ones that weight files hold, got {names}"))
    return save(readable, destination, listing=listing, align=align, force=force, progress=progress, dtypes=given)


def save(
    tensors: Mapping[str, LazyTensor],
    destination: str | os.PathLike[str],
    *,
    listing: str | os.PathLike[str] | None = None,
    align: int = 64,
    force: bool = False,
    progress: Progress | None = None,
    dtypes: Mapping[str, DType] | None = None,
) -> dict[str, int]:
    """Write tensors to a weight file, including those whose dtype weight files lack.

    See `write_weights`. bool, int64, uint64, float64 and strings become uint8, and the listing in JSON records their
    dtype (see `elements`); `open_arrays` restores them.
    Raises: As `write_weights`; ProgramError: MIL text cannot describe such a tensor.
    """
    path = as_path(destination)
    listing = None if listing is None else as_path(listing)
    file = "" if listing is None else _file_in_listing(path, listing)
    require_name(path, "blob")
    if listing is not None:
        require_texts(tensors)
    rows: list[Row] = []
    counter = ProgressCounter(progress, tensors.values())

    def write_records(blobs: BlobWriter) -> None:
        with blobs:
            for name, tensor in tensors.items():
                with _naming(name):
                    rows.append(_write(blobs, name, tensor, (dtypes or {}).get(name)))
                counter.add_tensor(name, tensor)

    def write_listing(fd: int, stamp: Stamp) -> None:
        text = to_mil(file, rows, stamp) if str(listing).endswith(".mil") else to_json(file, rows, stamp)
        write_at(fd, [text.encode()], 0)

    if listing is None:
        with NewFile(path, force=force) as new:
            write_records(_Into(path, new.fd, align))
    else:
        is_of = force and paths.is_file(listing) and _is_of(listing, path)
        if is_of:
            _require_one_directory(listing, path)
        # A journal beside the listing can replace both.
        if is_of and paths.is_file(path) and os.access(listing, os.W_OK) and os.access(path, os.W_OK):
            _replace_pair(listing, path, align, write_records, write_listing)
        else:
            is_first = is_of or not paths.is_there(listing)
            _write_pair(listing, path, align, force, is_first, write_records, write_listing)
    return {row.name: row.offset for row in rows}


# -------------------------------------------------------------------------------------------- weights and their listing


def _is_of(listing: str, path: str) -> bool:
    """Whether a file is a listing of a weight file; the weight file need not exist."""
    settle(listing)
    try:
        package = Package(listing)
    except (MilblobError, OSError):
        return False
    with contextlib.closing(package), contextlib.suppress(MilblobError):
        return package.kind in ("listing", "mil") and paths.real(path) in package.changeable()
    return False


def _require_one_directory(listing: str, path: str) -> None:
    """Refuse to replace a pair whose listing is a link to another directory: no journal there could name the weights.

    Raises: ValueError: it is.
    """
    real = paths.real(listing)
    directory = os.path.dirname(real).rstrip(os.sep) + os.sep
    if paths.is_file(path) and not paths.real(path).startswith(directory):
        message = (
            f"listing {listing}: expected a file beside {path}, or above it, got a link to {real}, which could not be "
        )
        raise ValueError(f"{message}replaced together with the weights; remove the link, or name another listing")


def _replace_pair(
    listing: str,
    path: str,
    align: int,
    write_records: Callable[[BlobWriter], None],
    write_listing: Callable[[int, Stamp], None],
) -> None:
    """Replace both in one journal: a killed process leaves the old pair, or a journal that completes the new one."""
    stamps: list[Stamp] = []

    def write(fd: int) -> None:
        write_records(_Into(path, fd, align))
        stamps.append(_put_stamp(fd, path))

    root, base = pending.place(listing, False)
    weights = os.path.relpath(paths.real(path), paths.real(root)).replace(os.sep, "/")
    new = [
        journal.Replacement(weights, write, rest=lambda: bytes.fromhex(stamps[0].hash)),
        journal.Replacement(os.path.basename(paths.real(listing)), lambda fd: write_listing(fd, stamps[0])),
    ]
    journal.commit(root, base, (), new)


def _write_pair(
    listing: str,
    path: str,
    align: int,
    force: bool,
    is_first: bool,
    write_records: Callable[[BlobWriter], None],
    write_listing: Callable[[int, Stamp], None],
) -> None:
    """Write both where one is new, or where the existing listing belongs to another weight file.

    `is_first`: rename the listing before the weights: without weights, or with others, it is refused. Otherwise, if it
    replaces another file's listing, after the weights: until then the old listing remains valid.
    """
    with together() as parts:
        blobs, listed = NewFile(path, force=force), NewFile(listing, force=force)
        parts += [listed, blobs] if is_first else [blobs, listed]
        write_records(_Into(path, blobs.fd, align))
        write_listing(listed.fd, _put_stamp(blobs.fd, path))


def _put_stamp(fd: int, path: str) -> Stamp:
    """Put the hash of a weight file into its header; return the stamp for its listing."""
    with open(fd, "rb", closefd=False) as stream, contextlib.closing(MappedFile(stream, path)) as mapping:
        data = memoryview(mapping.live())
        stamp = Stamp(data.nbytes, hash_bytes(data[64:]))
    write_at(fd, [bytes.fromhex(stamp.hash)], HASH_AT)
    return stamp


class _Into(BlobWriter):
    """A writer to the descriptor of a file that its caller owns."""

    def __init__(self, path: str, fd: int, align: int) -> None:
        self._given = fd
        super().__init__(path, align=align, sync=False)

    def _create(self) -> Any:
        """The interface of `NewFile` that a BlobWriter needs, with nothing to rename or to remove."""
        return SimpleNamespace(fd=self._given, commit=lambda: None, discard=lambda: None)


def _write(blobs: BlobWriter, name: str, tensor: LazyTensor, dtype: DType | None) -> Row:
    """Write one tensor as a record."""
    own = tensor.mil_dtype
    tensor.place.account()
    if dtype is not None and dtype is not own:
        return Row(name, dtype, tensor.shape, blobs.write(tensor.read(), dtype))
    if own.is_sub_byte:
        return Row(name, own, tensor.shape, blobs.write_packed(tensor.read_packed(), own, tensor.size))
    array, note = elements(tensor, _NATIVE, packed=True)
    return Row(name, as_dtype(array.dtype), array.shape, blobs.write(array), note)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Add the tensor's name to errors about an element or a dtype."""
    try:
        yield
    except (TypeError, OverflowError) as error:
        raise type(error)(f"tensor {name}: {error}") from None


def _file_in_listing(path: str, listing: str) -> str:
    """Return the weight file's name as the listing has to spell it."""
    if os.path.splitext(listing)[1] not in LISTINGS:
        raise ValueError(f"listing {listing}: expected a name that ends in .json or .mil, got another")
    if paths.real(listing) == paths.real(path):
        raise ValueError(f"listing {listing}: expected another file than {path}, got the same one")
    directory = Location(os.path.dirname(listing) or ".")
    weights = os.path.join(paths.real(os.path.dirname(path) or "."), os.path.basename(path))
    file = os.path.relpath(weights, paths.real(directory.path)).replace(os.sep, "/")
    try:  # as reading the listing will
        is_found = directory.beneath(file.encode().decode()).real() == paths.real(path)
    except (ResolveError, UnicodeEncodeError):
        is_found = False
    if not is_found:
        message = "expected a place beside it or above it, where no link leads out, and a name without a backslash, "
        message += "drive or bytes that are no UTF-8"
        raise ValueError(f"listing {listing}: {message}, for {path!r}")
    return file


# -------------------------------------------------------------------------------------------------------------- reading


def open_arrays(path: str, max_nbytes: int | None = None) -> Arrays[StoredArray]:
    """Open a weight file or a listing of one: a mapping from names to `StoredArray`. Raises: As `milblob.open`."""
    model = Model(path, max_nbytes=max_nbytes)
    with closed_on_error(model):
        tensors = with_notes(model, model)
    return Arrays(tensors, _stored, model.close)


def _stored(name: str, tensor: LazyTensor) -> StoredArray:
    if isinstance(tensor, StoredArray):
        return tensor
    budget = cast(Tensor, tensor).package.budget
    load, form = (tensor.read_packed, "packed") if tensor.mil_dtype.is_sub_byte else (tensor.read, "values")
    return StoredArray(name, tensor.mil_dtype, tensor.shape, load, form, tensor.place.file, budget)


def with_notes(tensors: Mapping[str, LazyTensor], model: Model) -> Mapping[str, LazyTensor]:
    """Return the tensors of a model; for a listing with notes, restore what the notes describe.

    Raises: FormatError: a note that does not match its record.
    """
    if model.kind != "listing" or model.path is None:
        return tensors
    _, rows, _ = parse_listing(memoryview(model.package.sources[0].mapping.live()), model.path)
    notes = {row.name: row.note for row in rows if row.note is not None}
    result: dict[str, LazyTensor] = dict(tensors)
    for name in notes.keys() & result.keys():
        tensor = tensors[name]
        budget = model.package.budget
        result[name] = restored(name, notes[name], tensor.mil_dtype, tensor.shape, tensor.read, model.path, budget)
    return result
