"""NumPy's .npz: a zip of .npy files, one for each tensor, not compressed where milblob writes it."""

import contextlib
import errno
import json
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from ..errors import FormatError, MilblobError, UnsupportedError
from ..model.elements import PLAIN, Progress, Readable, elements
from ..model.stored import Arrays, StoredArray, named, parse_notes, restored
from ..storage.mapped import Mapping as MappedFile
from ..storage.output import NewFile
from .filenames import escaped
from .npy import HEAD_NBYTES, Header, read_header

NOTES = "__milblob__"
"""Key of the notes: one string of JSON, {key: {"dtype": ..., "name": ...}}; only of tensors that need a note."""


_LOCAL_HEADER = 30  # bytes before the name in a local file header
_MAX_RATIO = 1040  # deflate cannot do better: a larger size is a lie, and memory for it must not be asked for


def save(
    tensors: Mapping[str, Readable],
    path: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    packed: bool = False,
) -> None:
    """Write tensors to an .npz file that `numpy.load` reads.

    Args:
        tensors: name -> Tensor or StoredArray. Read one at a time, and written from the mapped file where it holds the
            values.
        path: appears whole or not at all.
        force: replace a file that exists.
        progress: told of each tensor.
        packed: see `elements`.

    Names that a zip cannot hold as they are, or that would lead out of a directory where it is unpacked, are escaped;
    the notes have the real ones. Dtypes that NumPy lacks: see `elements`.

    Raises:
        As `Tensor.read`; FileExistsError: without `force`.
    """
    notes: dict[str, dict[str, Any]] = {}
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
            if progress is not None:
                progress(name, tensor.nbytes)
        if notes:
            _write(archive, NOTES, np.array(json.dumps(notes)))


def _key(name: str) -> str:
    """A key for a tensor: the name, unless a zip member cannot be called that; then "%" and the name escaped."""
    parts = name.split("/")
    safe = all(part not in ("", ".", "..") and part.isprintable() for part in parts)
    safe = safe and not any(c in name for c in "\\:%") and not name.endswith(".npy") and len(name) < 4096
    return name if safe and name != NOTES else "%" + escaped(name)


def _write(archive: zipfile.ZipFile, key: str, array: np.ndarray[Any, Any]) -> None:
    # A fixed date, so that the same tensors give the same file.
    with archive.open(zipfile.ZipInfo(f"{key}.npy"), "w", force_zip64=True) as member:
        np.lib.format.write_array(member, array, allow_pickle=False)  # type: ignore[no-untyped-call,unused-ignore]


# -------------------------------------------------------------------------------------------------------------- reading


def open_arrays(path: str) -> Arrays:
    """Open an .npz file, whoever wrote it.

    Members that are not compressed are read where they lie, after their checksum; compressed ones are unpacked, each
    when it is read. Pickles are never loaded.

    Raises:
        OSError: it cannot be opened.
        FormatError: no zip, or a broken one; a member that is no .npy, or twice; notes that do not fit.
        UnsupportedError: an encrypted member. What a member holds is looked at when it is asked for.
    """
    mapping = MappedFile(path)
    try:
        with _as_ours(path):
            archive = zipfile.ZipFile(path)
    except BaseException:
        mapping.close()
        raise

    def close() -> None:
        archive.close()
        mapping.close()

    try:
        members: dict[str, _Member] = {}
        for info in archive.infolist():
            if not info.filename.endswith(".npy"):
                raise FormatError(f"member {info.filename!r:.100}: expected an .npy file, got another", file=path)
            key = info.filename.removesuffix(".npy")
            if key in members:
                raise FormatError(f"members: expected each name once, got {info.filename!r:.100} twice", file=path)
            members[key] = _Member(path, mapping, archive, info)
        notes = {}
        if NOTES in members:
            text = members.pop(NOTES)
            notes = parse_notes(str(text.load(text.header())), path)
        names = named(members, notes, path)
    except BaseException:
        close()
        raise
    return Arrays({name: partial(_find, members[key], name, notes.get(key)) for name, key in names.items()}, close)


def _find(member: "_Member", name: str, note: dict[str, Any] | None) -> StoredArray:
    header = member.header()
    return restored(name, note, header.dtype, header.shape, partial(member.load, header), member.path)


@contextlib.contextmanager
def _as_ours(path: str) -> Iterator[None]:
    """Turn what zipfile and zlib raise about broken bytes into FormatError."""
    try:
        yield
    except (MilblobError, MemoryError):
        raise
    except OSError as error:
        if error.errno not in (None, errno.EINVAL):  # EINVAL: an offset before the beginning of the file
            raise
        raise FormatError(f"zip: expected a sound one, got {error}", file=path) from None
    except RuntimeError as error:  # encrypted; or, as NotImplementedError, an unknown way of compression
        raise UnsupportedError(f"zip: expected members that can be read, got {error}", file=path) from None
    except Exception as error:  # BadZipFile, zlib.error, LZMAError, EOFError, struct.error, UnicodeDecodeError, ...
        words = str(error) or type(error).__name__
        raise FormatError(f"zip: expected a sound one, got {words:.200}", file=path) from None


class _Member:
    """One .npy in a zip."""

    __slots__ = ("_archive", "_info", "_is_sound", "_mapping", "_name", "path")

    def __init__(self, path: str, mapping: MappedFile, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
        self.path = path
        self._mapping = mapping
        self._archive = archive
        self._info = info
        self._name = f"member {info.filename!r:.100}"
        self._is_sound = False

    def header(self) -> Header:
        """Read its header."""
        info = self._info
        if info.flag_bits & 1:
            raise UnsupportedError(f"{self._name}: expected one that is not encrypted, got a secret", file=self.path)
        if info.compress_type == zipfile.ZIP_STORED:
            start = self._start()
            head = bytes(memoryview(self._mapping.live())[start : start + min(info.file_size, HEAD_NBYTES)])
        else:
            if info.compress_type == zipfile.ZIP_DEFLATED and info.file_size > _MAX_RATIO * info.compress_size:
                words = f"{self._name}: expected at most {_MAX_RATIO} bytes of each that is stored, got a size of "
                raise FormatError(f"{words}{info.file_size} for {info.compress_size}", file=self.path)
            with _as_ours(self.path), self._archive.open(info) as stream:
                head = stream.read(HEAD_NBYTES)
        return read_header(head, info.file_size, self._name, self.path)

    def load(self, header: Header) -> np.ndarray[Any, Any]:
        """Return the array: over the mapped file if it is not compressed."""
        if self._info.compress_type == zipfile.ZIP_STORED:
            buffer = self._mapping.check_size()
            start = self._start()
            if not self._is_sound:
                self._require_sum(memoryview(buffer)[start : start + self._info.file_size])
            return header.array_over(buffer, start)
        out = np.empty(header.shape, header.dtype, order="F" if header.is_fortran else "C")
        flat: Any = out.reshape(-1, order="A").view(np.uint8) if out.nbytes else b""
        rest = memoryview(flat)
        stream: Any
        with _as_ours(self.path), self._archive.open(self._info) as stream:
            stream.read(header.nbytes)
            while rest.nbytes:
                count = stream.readinto(rest)
                if not count:
                    raise EOFError(f"{self._name} that ends too soon")
                rest = rest[count:]
            stream.read(1)  # the end: zipfile compares the checksum
        return out

    def _start(self) -> int:
        """Byte offset of what is stored."""
        info, data = self._info, memoryview(self._mapping.check_size())
        at = info.header_offset
        head = bytes(data[at : at + _LOCAL_HEADER]) if at >= 0 else b""
        if len(head) < _LOCAL_HEADER or head[:4] != b"PK\3\4":
            words = f"local header of {self._name}: expected PK, 3, 4, got {head[:4].hex() or 'the end of the file'}"
            raise FormatError(words, offset=at, file=self.path)
        lengths = int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
        start = at + _LOCAL_HEADER + lengths
        if info.compress_size != info.file_size or start + info.file_size > data.nbytes:
            words = (
                f"{self._name}: expected {info.file_size} bytes from {start} on, got a file that ends at {data.nbytes}"
            )
            raise FormatError(words, offset=at, file=self.path)
        return int(start)

    def _require_sum(self, data: memoryview) -> None:
        found = zlib.crc32(data)
        if found != self._info.CRC:
            words = f"checksum of {self._name}: expected {self._info.CRC:#010x}, got {found:#010x}"
            raise FormatError(words, offset=self._info.header_offset, file=self.path)
        self._is_sound = True
