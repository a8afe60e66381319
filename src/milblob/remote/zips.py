"""Models in zip archives, read without unpacking: stored members where they lie, deflated ones decoded when needed.

Where two readers could see two archives (a local header with another name than the directory, members that overlap, a
name twice) milblob does not guess. Names and links cannot lead out of the archive, and what is decoded is bounded.

Spec: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 (structure) and 4.5.3 (zip64).
"""

import io
import os
import stat
import struct
import threading
import zipfile
import zlib
from itertools import pairwise
from typing import Any

from ..budget import Budget
from ..errors import FormatError, UnsupportedError
from ..mirrored import Backing, Spans
from ..storage.disk import naming
from ..storage.foreign import Foreign, foreign, refusal
from ..storage.mapped import MappedFile
from ..storage.transfer import write_at
from .origin import MAX_FILES, require_names
from .sparse import unnamed_file

TAIL_NBYTES = 1 << 16  # that hold the end record, and the directory of most archives
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_MAX_EXTRA_NBYTES = 64  # of a local header, that are fetched with it
_MAX_RATIO = 1032  # of deflate
_CHUNK_NBYTES = 1 << 20
_IGNORED = ("__MACOSX/", ".DS_Store")
_MODEL = ("Manifest.json", "model.mil", "model0/", "coremldata.bin", "main.mlirb")
_EXPECTED = "zip: expected one .mlpackage, .mlmodelc or .aimodel in it"
_OTHER = Foreign("zip", "a zip archive of something else", "unzip it")
_SUFFIXES = (".mlpackage", ".mlmodelc", ".aimodel")


class ZipDirectory:
    """The model in an archive, as a directory; see RemoteDirectory.

    `archive`: opens the archive, once its members are asked for. `max_nbytes`: see `Budget`: of what is decoded.
    `close`: called by `close`.
    """

    can_list = True

    def __init__(self, archive: Any, name: str, max_nbytes: int | None, close: Any = lambda: None) -> None:
        self._open, self._close = archive, close
        self._path = name
        self.name = os.path.dirname(name)
        self._max_nbytes = max_nbytes

    def file(self, relative: str) -> None:
        """See RemoteDirectory: `files` gives all there are."""
        return

    def files(self, relative: str) -> "dict[str, ZipMember]":
        """See RemoteDirectory: those of the model.

        Raises: FormatError: no zip, or a broken one; several models. UnsupportedError: no model; encrypted members, or
        compressed in another way than deflate. LimitError: too much would be decoded.
        """
        archive: MappedFile = self._open()
        members = _members(archive, self._path)
        budget = Budget(self._max_nbytes, self._path)
        budget.add_file(self._path, archive.nbytes, archive.identity)
        inside = _root(list(members), self._path)
        if inside is None:
            head = memoryview(archive.need([(0, archive.nbytes)]))
            raise refusal(foreign(head, self._path) or _OTHER, _EXPECTED, self._path)
        return {
            f"{relative}/{name[len(inside) :]}": ZipMember(archive, row, start, f"{self._path}/{name}", budget)
            for name, (row, start) in members.items()
            if name.startswith(inside)
        }

    def close(self) -> None:
        self._close()


class ZipMember:
    """A file in an archive."""

    def __init__(self, archive: MappedFile, row: zipfile.ZipInfo, start: int, name: str, budget: Budget) -> None:
        self._archive, self._row, self._start, self._name, self._budget = archive, row, start, name, budget
        self._lock = threading.Lock()
        self._is_decoded = False
        self._fd = -1
        if row.compress_type == zipfile.ZIP_STORED:
            whole = memoryview(archive.need([]))
            self.backing = Backing(name, row.file_size, self._fetch, memory=whole[start : start + row.file_size])
            return
        # its bytes: a part of the archive's mapping if it is stored, else a file that they are decoded into
        self.backing = Backing(name, row.file_size, self._decode, self._file)

    def _file(self) -> int:
        """Return the descriptor of the file that is decoded into; made by the first call."""
        with self._lock:
            if self._fd < 0:
                fd = unnamed_file()
                try:
                    os.ftruncate(fd, self._row.file_size)
                except BaseException:
                    os.close(fd)
                    raise
                self._fd = fd
            return self._fd

    def _fetch(self, spans: Spans) -> None:
        if self._archive.is_partial:
            self._archive.need([(self._start + offset, nbytes) for offset, nbytes in spans])
        else:
            self._archive.check_range(0, 0)

    def _decode(self, spans: Spans) -> None:
        """Decode the member, all of it: deflate has no place to begin in the middle."""
        self._file()
        with self._lock:
            if self._is_decoded:
                return
            row = self._row
            self._budget.spend(self._name, row.file_size)
            data = memoryview(self._archive.check_range(self._start, row.compress_size))
            end, at, done, crc = self._start + row.compress_size, self._start, 0, 0
            decoder = zlib.decompressobj(-zlib.MAX_WBITS)
            some: Any = b""
            with naming(self._name, self._fd, row.file_size):
                while not decoder.eof and done <= row.file_size:
                    some = decoder.unconsumed_tail or data[at : min(at + _CHUNK_NBYTES, end)]
                    at = at if decoder.unconsumed_tail else min(at + _CHUNK_NBYTES, end)
                    if not len(some):
                        break
                    try:
                        piece = decoder.decompress(some, min(_CHUNK_NBYTES, row.file_size - done + 1))
                    except zlib.error as error:
                        raise FormatError(f"zip member: expected deflated data, got {error}", file=self._name) from None
                    write_at(self._fd, [piece[: row.file_size - done]], done)
                    done, crc = done + len(piece), zlib.crc32(piece, crc)
            if done != row.file_size or not decoder.eof:
                got = f"{done} or more" if done > row.file_size else str(done)
                raise FormatError(f"zip member: expected {row.file_size} bytes as stated, got {got}", file=self._name)
            if crc != row.CRC:
                message = f"zip member: expected the CRC-32 {row.CRC:08x} as stated, got {crc:08x}"
                raise FormatError(message, file=self._name)
            self._is_decoded = True

    def __del__(self) -> None:
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)


class ArchiveFile(io.RawIOBase):
    """An archive as `zipfile` reads one."""

    def __init__(self, archive: MappedFile) -> None:
        self._archive, self._at = archive, 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._archive.nbytes}[whence]
        if base + offset < 0:
            raise OSError(None, "seek before the beginning")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def seekable(self) -> bool:
        return True

    def read(self, nbytes: int = -1) -> bytes:
        left = max(0, self._archive.nbytes - self._at)
        nbytes = left if nbytes is None or nbytes < 0 else min(nbytes, left)
        data = memoryview(self._archive.need([(self._at, nbytes)]))
        self._at += nbytes
        return bytes(data[self._at - nbytes : self._at])


def _members(archive: MappedFile, path: str) -> dict[str, tuple[zipfile.ZipInfo, int]]:
    """Return the files of an archive: name -> (row of the directory, offset of the data)."""
    archive.need([(max(0, archive.nbytes - TAIL_NBYTES), TAIL_NBYTES)])
    try:
        with zipfile.ZipFile(ArchiveFile(archive)) as opened:
            rows, end = opened.infolist(), opened.start_dir
    except (zipfile.BadZipFile, struct.error, EOFError, UnicodeDecodeError, ValueError, OverflowError) as error:
        if isinstance(error, FormatError):
            raise
        raise FormatError(f"zip: expected a sound one, got {error!s:.200}", file=path, code="not-a-model") from None
    except NotImplementedError as error:
        raise UnsupportedError(f"zip: expected one that can be read, got {error!s:.200}", file=path) from None
    if len(rows) > MAX_FILES:
        raise FormatError(f"zip: expected at most {MAX_FILES} members, got {len(rows)}", file=path)
    kept = [row for row in rows if not row.filename.startswith(_IGNORED[0]) and not row.filename.endswith(_IGNORED[1])]
    require_names([row.filename.rstrip("/") for row in kept], path, _folders(kept))
    files = [row for row in kept if not row.filename.endswith("/")]
    for row in kept:
        if stat.S_ISLNK(row.external_attr >> 16):
            message = f"zip member {row.filename!r:.200}: expected a file, got a link"
            raise FormatError(message, file=path, code="escaping-file")
    for row in files:
        if row.flag_bits & 1:
            raise UnsupportedError(f"zip member {row.filename!r:.200}: expected none encrypted, got one", file=path)
        if row.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            message = (
                f"zip member {row.filename!r:.200}: expected it stored or deflated, got method {row.compress_type}"
            )
            raise UnsupportedError(message, file=path)
        if row.compress_type == zipfile.ZIP_STORED and row.file_size != row.compress_size:
            message = (
                f"zip member {row.filename!r:.200}: expected one size, got {row.file_size} and {row.compress_size}"
            )
            raise FormatError(message, file=path)
        if row.file_size > _MAX_RATIO * row.compress_size:
            message = f"zip member {row.filename!r:.200}: expected at most {_MAX_RATIO} bytes of each deflated one, got"
            raise FormatError(f"{message} {row.file_size} of {row.compress_size}", file=path)
    names = {id(row): len(row.orig_filename.encode("utf-8", "surrogateescape")) for row in files}
    heads = [(row.header_offset, _LOCAL.size + names[id(row)] + _MAX_EXTRA_NBYTES) for row in files]
    data = memoryview(archive.need(heads))
    starts = [_start(data, archive, row, path) for row in files]
    spans = sorted((row.header_offset, start + row.compress_size) for row, start in zip(files, starts, strict=True))
    spans.append((end, end))
    for (_, last), (first, _) in pairwise(spans):
        if last > first:
            raise FormatError("zip: expected members that do not overlap, got some that do", offset=first, file=path)
    return {row.filename: (row, start) for row, start in zip(files, starts, strict=True)}


def _folders(rows: list[zipfile.ZipInfo]) -> set[str]:
    return {row.filename.rstrip("/") for row in rows if row.filename.endswith("/")}


def _start(data: memoryview, archive: MappedFile, row: zipfile.ZipInfo, path: str) -> int:
    """Return where the data of a member begins; its local header must agree with the directory."""
    at = row.header_offset
    what = f"local header of zip member {row.filename!r:.200}"
    if not 0 <= at <= len(data) - _LOCAL.size:
        raise FormatError(f"{what}: expected it inside the file, got byte {at}", file=path)
    magic, _, flags, method, _, _, _, packed, size, name_nbytes, extra_nbytes = _LOCAL.unpack_from(data, at)
    archive.need([(at, _LOCAL.size + name_nbytes)])
    name = bytes(data[at + _LOCAL.size : at + _LOCAL.size + name_nbytes])
    try:
        text = name.decode("utf-8" if flags & 0x800 else "cp437")
    except UnicodeDecodeError:
        text = ""
    has_sizes = not flags & 8 and packed != 0xFFFFFFFF and size != 0xFFFFFFFF
    agrees = (
        magic == b"PK\x03\x04"
        and method == row.compress_type
        and text == row.orig_filename
        and (not has_sizes or (packed, size) == (row.compress_size, row.file_size))
    )
    if not agrees:
        raise FormatError(f"{what}: expected the same as in the directory, got something else", offset=at, file=path)
    start: int = at + _LOCAL.size + name_nbytes + extra_nbytes
    if start + row.compress_size > len(data):
        raise FormatError(f"{what}: expected its data inside the file, got less", offset=at, file=path)
    return start


def _root(names: list[str], path: str) -> str | None:
    """Return what the names of the only model in an archive begin with: "", or a folder and "/"; None of no model.

    Raises: FormatError: there are several.
    """
    folders = {""} | {name[: at + 1] for name in names for at in range(len(name)) if name[at] == "/"}
    found: list[str] = []
    for folder in sorted(folders, key=lambda folder: (folder.count("/"), folder)):
        if any(folder.startswith(other) for other in found):
            continue
        has_suffix = folder.rstrip("/").endswith(_SUFFIXES)
        is_model = any(f"{folder}{name}" in (folders if name.endswith("/") else names) for name in _MODEL)
        if is_model or has_suffix:
            found.append(folder)
    if len(found) > 1:
        some = ", ".join(found[:3]) + (", ..." if len(found) > 3 else "")
        message = f"{_EXPECTED}, got {len(found)} of them ({some}; unzip it to give one of them)"
        raise FormatError(message, file=path, code="not-a-model")
    return found[0] if found else None
