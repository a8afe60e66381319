"""NumPy's .npz: a zip of .npy files, one for each tensor; milblob writes it uncompressed."""

import contextlib
import errno
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..budget import Budget
from ..errors import FormatError, MilblobError, UnsupportedError
from ..jsontext import MAX_NBYTES
from ..model.lazy import LazyTensor
from ..model.stored import Arrays, StoredArray, named, parse_notes, restored
from ..progress import Progress, ProgressCounter
from ..storage.mapped import MappedFile, closed_on_error
from ..storage.output import NewFile
from .encoding import PLAIN, elements
from .filenames import escaped
from .npy import HEAD_NBYTES, Header, read_header
from .unpacking import unpacker

NOTES = "__milblob__"
"""Key of the notes: one string of JSON, {key: {"dtype": ..., "name": ...}}; only of tensors that need a note."""


_PIECE_NBYTES = 1 << 20  # decompressed at a time
_LOCAL_HEADER = 30  # bytes before the name in a local file header
_MAX_RATIO = 1040  # deflate's maximum: a larger declared size is false, and must not be allocated


def save(
    tensors: Mapping[str, LazyTensor],
    path: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    packed: bool = False,
) -> None:
    """Write tensors to an .npz file that `numpy.load` reads: see `write.save`.

    Names that a zip cannot hold, or that would escape the directory where it is unpacked, are escaped.
    """
    notes: dict[str, dict[str, Any]] = {}
    counter = ProgressCounter(progress, tensors.values())
    with (
        NewFile(path, force=force) as new,
        open(new.fd, "w+b", closefd=False) as file,
        zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive,
    ):
        for name, tensor in tensors.items():
            key = _key(name)
            array, note = elements(tensor, PLAIN, packed)
            if key != name:
                note = {"name": name, **(note or {})}
            if note is not None:
                notes[key] = note
            _write(archive, key, array)
            counter.add_tensor(name, tensor)
        if notes:
            _write(archive, NOTES, np.array(json.dumps(notes)))


def _key(name: str) -> str:
    """Return a tensor's key: its name if a zip member can have it; else "%" and the escaped name."""
    parts = name.split("/")
    safe = all(part not in ("", ".", "..") and part.isprintable() for part in parts)
    safe = safe and not any(c in name for c in "\\:%") and not name.endswith(".npy") and len(name) < 4096
    return name if safe and name != NOTES else "%" + escaped(name)


def _write(archive: zipfile.ZipFile, key: str, array: np.ndarray[Any, Any]) -> None:
    # A fixed date: the same tensors give the same file.
    with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)  # type: ignore[no-untyped-call,unused-ignore]


# -------------------------------------------------------------------------------------------------------------- reading


def open_arrays(path: str, max_nbytes: int | None = None) -> Arrays[StoredArray]:
    """Open an .npz file from any writer.

    Uncompressed members are read zero-copy, after their checksum was verified; compressed ones are unpacked when they
    are read. Pickles are never loaded.

    Raises: OSError: it cannot be opened. FormatError: not a zip, or a broken one; a member that is not an .npy, or
    occurs twice; notes that do not match. UnsupportedError: an encrypted member. A member's contents are checked when
    it is accessed.
    """
    mapping = MappedFile(path)
    with closed_on_error(mapping):
        with _as_ours(path):
            directory = _directory(mapping)
        budget = Budget(max_nbytes, path)
        budget.add_file(path, mapping.nbytes, mapping.identity)
        members: dict[str, _Member] = {}
        for info in directory:
            if not info.filename.endswith(".npy"):
                raise FormatError(f"member {info.filename!r:.100}: expected an .npy file, got another", file=path)
            key = info.filename.removesuffix(".npy")
            if key in members:
                raise FormatError(f"members: expected each name once, got {info.filename!r:.100} twice", file=path)
            members[key] = _Member(path, mapping, info)
        notes = {}
        if NOTES in members:
            notes = parse_notes(members.pop(NOTES).text(), path)
        names = named(members, notes, path)

    def find(name: str, key: str) -> StoredArray:
        return _found(members[key], name, notes.get(key), budget)

    return Arrays(names, find, mapping.close)


def _directory(mapping: MappedFile) -> list[zipfile.ZipInfo]:
    """Return the rows of the zip's directory; of a remote file, they and the headers of its members are fetched."""
    if mapping.is_partial:
        from ..remote.zips import TAIL_NBYTES, ArchiveFile  # local files need no HTTP

        mapping.need([(max(0, mapping.nbytes - TAIL_NBYTES), TAIL_NBYTES)])
        with zipfile.ZipFile(ArchiveFile(mapping)) as archive:
            rows = archive.infolist()
        mapping.need([(row.header_offset, len(row.filename) + _LOCAL_HEADER + HEAD_NBYTES) for row in rows])
        return rows
    with (
        mapping.held() as fd,
        open(fd, "rb", closefd=False) as file,  # not by name: another file may have that name by now
        zipfile.ZipFile(file) as archive,
    ):
        return archive.infolist()


def _found(member: "_Member", name: str, note: dict[str, Any] | None, budget: Budget) -> StoredArray:
    header = member.header()

    def load() -> np.ndarray[Any, Any]:
        if not member.is_stored:
            budget.spend((name, "member"), member.nbytes)
        return member.load(header)

    found = restored(name, note, header.dtype, header.shape, load, member.path, budget)
    return found.read_from(*member.stretch()) if member.is_partial else found


@contextlib.contextmanager
def _as_ours(path: str) -> Iterator[None]:
    """Turn the errors of zipfile and zlib about broken bytes into FormatError."""
    try:
        yield
    except (MilblobError, MemoryError):
        raise
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # EINVAL: an offset before the beginning of the file
            raise
        raise FormatError(f"zip: expected a sound one, got {error}", file=path) from None
    except RuntimeError as error:  # encrypted; or, as NotImplementedError, an unknown compression method
        raise UnsupportedError(f"zip: expected members that can be read, got {error}", file=path) from None
    except Exception as error:  # BadZipFile, zlib.error, LZMAError, EOFError, struct.error, UnicodeDecodeError, ...
        message = str(error) or type(error).__name__
        raise FormatError(f"zip: expected a sound one, got {message:.200}", file=path) from None


class _Member:
    """One .npy in a zip."""

    __slots__ = ("_info", "_is_sound", "_mapping", "_name", "path")

    def __init__(self, path: str, mapping: MappedFile, info: zipfile.ZipInfo) -> None:
        self.path = path
        self._mapping = mapping
        self._info = info
        self._name = f"member {info.filename!r:.100}"
        self._is_sound = False

    @property
    def is_stored(self) -> bool:
        """Whether the member is stored uncompressed."""
        return self._info.compress_type == zipfile.ZIP_STORED

    @property
    def is_partial(self) -> bool:
        """Whether the zip is a remote file."""
        return self._mapping.is_partial

    def stretch(self) -> tuple[MappedFile, int, int]:
        """Return the file, and (offset, bytes) of the stored data in it."""
        return self._mapping, self._data_offset(), self._info.compress_size

    @property
    def nbytes(self) -> int:
        """Bytes of the .npy, as declared in the zip."""
        return self._info.file_size

    def header(self) -> Header:
        """Read its header."""
        info = self._info
        if info.flag_bits & 1:
            raise UnsupportedError(f"{self._name}: expected one that is not encrypted, got a secret", file=self.path)
        head = bytearray(min(info.file_size, HEAD_NBYTES))
        if self.is_stored:
            start = self._start()
            head[:] = memoryview(self._mapping.need([(start, len(head))]))[start : start + len(head)]
        else:
            if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > _MAX_RATIO * info.compress_size:
                message = f"{self._name}: expected at most {_MAX_RATIO} bytes of each that is stored, got a size of "
                raise FormatError(f"{message}{info.file_size} for {info.compress_size}", file=self.path)
            with _as_ours(self.path):
                self._unpack(memoryview(head))
        return read_header(bytes(head), info.file_size, self._name, self.path)

    def text(self) -> str:
        """Return the string that it holds; its size is limited like that of any JSON document."""
        header = self.header()
        if header.shape != () or header.dtype.kind != "U" or header.dtype.itemsize > 4 * MAX_NBYTES:
            message = f"{self._name}: expected one string of at most {MAX_NBYTES} characters"
            raise FormatError(f"{message}, got {header.dtype} {list(header.shape)}", file=self.path)
        return str(self.load(header))

    def load(self, header: Header) -> np.ndarray[Any, Any]:
        """Return the array: zero-copy over the mapped file if it is not compressed."""
        if self.is_stored:
            start = self._start()
            buffer = self._mapping.check_range(start, self._info.file_size)
            if not self._is_sound:
                self._require_sum(zlib.crc32(memoryview(buffer)[start : start + self._info.file_size]))
                self._is_sound = True
            return header.array_over(buffer, start)
        out = np.empty(header.shape, header.dtype, order="F" if header.is_fortran else "C")
        head = bytearray(header.nbytes)
        flat: Any = memoryview(out.reshape(-1, order="A").view(np.uint8)) if out.nbytes else memoryview(b"")  # type: ignore[arg-type]
        with _as_ours(self.path):
            self._unpack(memoryview(head), flat)
            self._require_sum(zlib.crc32(flat, zlib.crc32(head)))
        return out

    def _unpack(self, *parts: memoryview) -> None:
        """Fill parts with the decompressed bytes of the member, from its beginning.

        zipfile makes bz2 and lzma decompress whole blocks, and a few kilobytes may become gigabytes; this decompresses
        only as many bytes as are needed.
        """
        start = self._data_offset()
        data = memoryview(self._mapping.check_range(start, self._info.compress_size))
        end = min(start + self._info.compress_size, data.nbytes)
        unpack = unpacker(self._info, data[start:end])
        for part in parts:
            while part.nbytes:
                piece = unpack(min(part.nbytes, _PIECE_NBYTES))
                if not piece:
                    raise EOFError(f"{self._name} that ends too soon")
                part[: len(piece)] = piece
                part = part[len(piece) :]

    def _data_offset(self) -> int:
        """Byte offset of the member's stored data, compressed or not."""
        info, data = self._info, memoryview(self._mapping.check_range(self._info.header_offset, _LOCAL_HEADER))
        at = info.header_offset
        head = bytes(data[at : at + _LOCAL_HEADER]) if at >= 0 else b""
        if len(head) < _LOCAL_HEADER or head[:4] != b"PK\3\4":
            message = f"local header of {self._name}: expected PK, 3, 4, got {head[:4].hex() or 'the end of the file'}"
            raise FormatError(message, offset=at, file=self.path)
        lengths = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        return int(at + _LOCAL_HEADER + lengths)

    def _start(self) -> int:
        """Byte offset of the data of an uncompressed member."""
        info, nbytes = self._info, self._mapping.nbytes
        at, start = info.header_offset, self._data_offset()
        if info.compress_size != info.file_size or start + info.file_size > nbytes:
            message = f"{self._name}: expected {info.file_size} bytes from {start} on, got a file that ends at {nbytes}"
            raise FormatError(message, offset=at, file=self.path)
        return start

    def _require_sum(self, found: int) -> None:
        if found != self._info.CRC:
            message = f"checksum of {self._name}: expected {self._info.CRC:#010x}, got {found:#010x}"
            raise FormatError(message, offset=self._info.header_offset, file=self.path)
