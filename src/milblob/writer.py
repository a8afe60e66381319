"""BlobWriter: new blob v2 files, and records appended to existing ones."""

import _thread
import operator
import os
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np

from . import _codec
from .blob import BlobReader, BlobRecord
from .dtypes import DType, as_dtype
from .errors import ProgramError
from .files import NewFile, lock
from .mapping import Mapping
from .tensorvalue import stored_bytes
from .transfer import copy_range, write_at

_STAGING_NBYTES = 1 << 20  # small records are gathered here: one write for a megabyte of them
_CHUNK_COUNT = 1 << 18  # elements of a strided or packed array that are copied at once; a multiple of 8
_CODES = {m.numpy: m.blob_code for m in DType if m.blob_code and m.nbits >= 8}
ALIGNMENTS = (64, 4096, 16384)
"""Multiples that the data of records may be placed at: the format's own, and pages of 4 and 16 KiB."""


class BlobWriter:
    """Writes a blob v2 file ("weight.bin"), byte for byte as coremltools writes the same arrays.

    Args:
        path: the file. With mode "w" it appears whole when the writer is closed without an exception (temporary name in
            the same directory, sync, rename), and replaces a file of that name, whose open views stay valid. With mode
            "a" records are added to an existing file, whoever wrote it; the record count is written last, so that a
            crash at any byte leaves the old records readable. What follows the last counted record, left from an
            interrupted append, is overwritten.
        mode: "w" or "a".
        align: the data of each record begins at a multiple of it: 64 (as coremltools does), 4096 or 16384.
        sync: wait until everything is on disk before it counts as written.

    Every method that writes returns the byte offset of a record's metadata, as a Program's BlobFileValue holds it.
    Arrays are not kept. A failed write leaves the writer usable, without that record. Not for several threads at once.

    Raises:
        OSError: the file cannot be made or opened; BlockingIOError: mode "a", and another writer has the file.
        FormatError, UnsupportedError: mode "a", and the file is no sound blob v2 file.
        ValueError: another mode or alignment.

    Spec: coremltools e0e2f42, mlmodel/src/MILBlob/Blob/StorageWriter.cpp.
    """

    def __init__(self, path: str | os.PathLike[str], mode: str = "w", *, align: int = 64, sync: bool = True) -> None:
        self._fd = -1
        if mode not in ("w", "a"):
            raise ValueError(f"mode: expected 'w' or 'a', got {mode!r}")
        if align not in ALIGNMENTS:
            raise ValueError(f"align: expected one of {', '.join(map(str, ALIGNMENTS))}, got {align!r}")
        self.path = os.fsdecode(os.fspath(path))
        self.mode = mode
        self._align = align
        self._sync = sync
        self._turn = _thread.allocate_lock()
        self._reserved: dict[int, tuple[int, int, list[tuple[int, int]]]] = {}
        self._staging = bytearray()
        self._new: NewFile | None = None
        self._size_before = 0
        self._count = 0
        self._base = self._end = 64  # of the staged bytes; behind the last data
        if mode == "w":
            self._new = NewFile(self.path, sync=sync)
            self._fd = self._new.fd
        else:
            self._open_existing()
        self._count_before = self._count

    def _open_existing(self) -> None:
        fd = os.open(self.path, os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            lock(fd, self.path)
            with BlobReader(Mapping(self.path)) as reader:
                self._count = len(reader)
                if self._count:
                    last = reader[-1]
                    self._base = self._end = last.data_offset + last.nbytes
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        self._size_before = os.fstat(fd).st_size

    # ----------------------------------------------------------------------------------------------------------- write

    def write(self, array: Any, dtype: Any = None) -> int:
        """Write an array as one record.

        Args:
            array: anything NumPy makes an array of; its shape is not stored. Strided and byte-swapped arrays are copied
                in chunks. Elements of sub-byte dtypes come one to a byte and are packed, each value checked.
            dtype: DType, name or NumPy dtype to store; default: the array's own. Integers may be narrowed, every value
                is checked; uint3 and uint6 must be named, their arrays are uint8. Floats are not converted.

        Returns:
            Byte offset of the record's metadata.

        Raises:
            TypeError: a dtype that blob files cannot hold (bool, int64, float64, ...), or that the array's elements do
                not belong to.
            OverflowError: an element outside the dtype; its index is named.
            OSError: the file cannot be written. ValueError: the writer is closed.
        """
        with _Turn(self):
            return self._write(array, dtype)

    def _write(self, array: Any, dtype: Any) -> int:
        array = np.asarray(array)
        own = as_dtype(array.dtype)
        target = own if dtype is None else as_dtype(dtype)
        if target.blob_code is None:
            raise TypeError(f"dtype: expected one that blob files hold, got {target}")
        if target is not own and not (target.is_integer and (own.is_integer or own is DType.BOOL)):
            raise TypeError(f"array: expected elements of {target}, got {own}; convert them first")
        if array.dtype == target.numpy and target.nbits >= 8 and array.flags.c_contiguous:
            return self._add(target, array.size, [memoryview(array.reshape(-1).view(np.uint8))], array.nbytes)
        return self._add(target, array.size, _chunks(array, target), target.nbytes(array.size))

    def write_packed(self, data: Any, dtype: Any, count: int | None = None) -> int:
        """Write elements that are in their stored form already: little-endian, sub-byte elements packed.

        Args:
            data: any C-contiguous buffer.
            dtype: what the elements are.
            count: how many there are; default: as many as the bytes hold. The unused bits of the last byte are set to
                zero.

        Raises:
            ValueError: the bytes are no whole number of elements, or not the number of them.
            TypeError, OSError: as `write`.
        """
        with _Turn(self):
            target = _require_blob(dtype)
            view = memoryview(data).cast("B")
            if count is None:
                count = view.nbytes * 8 // target.nbits
            if count < 0 or target.nbytes(count) != view.nbytes:
                raise ValueError(
                    f"data: expected {target.nbytes(max(count, 0))} bytes for {count} x {target}, got {view.nbytes}"
                )
            unused = view.nbytes * 8 - count * target.nbits
            pieces = [view]
            if unused and view[-1] >> (8 - unused):
                pieces = [view[:-1], memoryview(bytes([view[-1] & (0xFF >> unused)]))]
            return self._add(target, count, pieces, view.nbytes)

    def write_many(self, arrays: Iterable[Any]) -> list[int]:
        """Write several arrays, one record each; faster than one by one where they are small.

        Returns:
            Byte offset of each record's metadata.

        Raises:
            As `write`; what was written before the array that failed stays.
        """
        arrays = list(arrays)
        offsets: list[int] = []
        with _Turn(self):
            index = 0
            while index < len(arrays):
                before = index
                self._make_room()
                index, self._end = _codec.blob_stage(
                    arrays, index, self._staging, self._base, self._end, self._align, np.ndarray, _CODES, offsets
                )
                self._count += index - before
                if index == before and self._end > self._base:
                    self._flush()  # no room, or an array that needs more than a copy: the latter comes back here
                elif index == before:
                    offsets.append(self._write(arrays[index], None))
                    index += 1
        return offsets

    def reserve(self, nbytes: int, dtype: Any, count: int | None = None) -> int:
        """Make room for a record whose data comes later, by `fill`.

        Args:
            nbytes: bytes of data, in their stored form.
            dtype, count: as for `write_packed`.

        Returns:
            Byte offset of the record's metadata. All of it must be filled before the writer is closed.

        Raises:
            As `write_packed`.
        """
        with _Turn(self):
            target = _require_blob(dtype)
            nbytes = operator.index(nbytes)
            count = nbytes * 8 // target.nbits if count is None else count
            if count < 0 or nbytes < 0 or target.nbytes(count) != nbytes:
                raise ValueError(f"nbytes: expected the size of whole elements of {target}, got {nbytes}")
            offset, data_offset = _codec.blob_place(self._end, self._align)
            self._add(target, count, None, nbytes)
            self._reserved[offset] = (data_offset, nbytes, [])
            return offset

    def fill(self, offset: int, data: Any, start: int = 0) -> None:
        """Write data of a reserved record, in its stored form.

        Args:
            offset: what `reserve` returned.
            data: any C-contiguous buffer.
            start: byte of the record's data at which it goes; pieces may come in any order.

        Raises:
            KeyError: nothing is reserved there. ValueError: it reaches past the record's data.
        """
        with _Turn(self):
            if offset not in self._reserved:
                raise KeyError(f"record: expected one that is reserved, got offset {offset}")
            data_offset, nbytes, done = self._reserved[offset]
            view = memoryview(data).cast("B")
            if start < 0 or start + view.nbytes > nbytes:
                raise ValueError(
                    f"data: expected bytes inside the {nbytes} of the record, got {start} to {start + view.nbytes}"
                )
            self._flush()
            write_at(self._fd, [view], data_offset + start)
            done.append((start, start + view.nbytes))

    def copy(self, reader: BlobReader, record: BlobRecord | int) -> int:
        """Copy a record of another file as it is stored.

        Args:
            reader: the other file.
            record: one of its records, or the offset of one.

        Raises:
            FormatError: no sound record there. OSError, ValueError: as `write`.
        """
        with _Turn(self):
            buffer = reader._mapping.check_size()
            found = reader._record(buffer, record)
            if found.nbytes <= _STAGING_NBYTES:
                data = memoryview(buffer)[found.data_offset : found.data_offset + found.nbytes]
                return self._add(found.dtype, found.count, [data], found.nbytes)
            _, data_offset = _codec.blob_place(self._end, self._align)
            self._flush()
            copy_range(reader._mapping, found.data_offset, found.nbytes, self._fd, data_offset)
            return self._add(found.dtype, found.count, None, found.nbytes)

    def _add(self, dtype: DType, count: int, pieces: Iterable[Any] | None, nbytes: int) -> int:
        """Put metadata and data behind what there is; with `pieces` None the data is written by somebody else."""
        offset, data_offset = _codec.blob_place(self._end, self._align)
        padding_nbits = nbytes * 8 - count * dtype.nbits
        metadata = _codec.blob_metadata(dtype.blob_code or 0, nbytes, data_offset, padding_nbits)
        head = metadata + bytes(data_offset - offset - 64)
        gap = bytes(offset - self._end)
        if pieces is not None and nbytes <= _STAGING_NBYTES // 4:
            self._make_room()
            start = self._end - self._base
            if start + len(gap) + len(head) + nbytes > _STAGING_NBYTES:
                self._flush()
                start = 0
            data = b"".join(pieces)
            self._staging[start : start + len(gap) + len(head) + nbytes] = gap + head + data
        else:
            self._flush()
            at = data_offset
            first: list[Any] = [gap, head]
            for piece in pieces or ():
                write_at(self._fd, [*first, piece], at - sum(map(len, first)))
                at += memoryview(piece).nbytes
                first = []
            if first:
                write_at(self._fd, first, self._end)
            self._base = data_offset + nbytes
        self._end = data_offset + nbytes
        self._count += 1
        return offset

    def _make_room(self) -> None:
        if not self._staging:
            self._staging = bytearray(_STAGING_NBYTES)

    def _flush(self) -> None:
        """Write what is staged."""
        if self._end > self._base:
            write_at(self._fd, [memoryview(self._staging)[: self._end - self._base]], self._base)
        self._base = self._end

    # ----------------------------------------------------------------------------------------------------------- close

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        """Size of the file in bytes, with what has been written so far."""
        return self._end

    def close(self) -> None:
        """Complete the file.

        Raises:
            ProgramError: a reserved record was not filled; OSError: the file cannot be written. The file is then as it
                was before, or not there.
        """
        if self._fd < 0:
            return
        try:
            for offset, (_, nbytes, done) in self._reserved.items():
                _require_filled(offset, nbytes, done, self.path)
            self._flush()
            if self._new is not None:
                write_at(self._fd, [_codec.blob_header(self._count)], 0)
                os.ftruncate(self._fd, self._end)  # what a failed write has left behind the last record
            elif self._count != self._count_before:
                os.ftruncate(self._fd, max(self._end, self._size_before))  # never less: somebody may have it mapped
                if self._sync:
                    os.fsync(self._fd)
                write_at(self._fd, [self._count.to_bytes(4, "little")], 0)
                if self._sync:
                    os.fsync(self._fd)
        except BaseException:
            self._abandon()
            raise
        fd, self._fd = self._fd, -1
        if self._new is not None:
            self._new.commit()
        else:
            os.close(fd)

    def _abandon(self) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        if self._new is not None:
            self._new.discard()
            return
        try:
            write_at(fd, [self._count_before.to_bytes(4, "little")], 0)
            os.ftruncate(fd, self._size_before)
        finally:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            self._abandon()

    def __del__(self) -> None:
        self._abandon()

    def __repr__(self) -> str:
        state = "closed" if self._fd < 0 else f"{self._count} records"
        return f"<BlobWriter {self.path}: {state}>"


class _Turn:
    """One call at a time: a writer that two threads use would interleave their records without a word."""

    def __init__(self, writer: BlobWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        writer = self._writer
        if writer._fd < 0:
            raise ValueError(f"I/O operation on closed writer {writer.path}")
        if not writer._turn.acquire(blocking=False):
            raise RuntimeError(f"writer {writer.path}: expected one call at a time, got one from another thread")

    def __exit__(self, *_: object) -> None:
        self._writer._turn.release()


def _require_blob(dtype: Any) -> DType:
    target = as_dtype(dtype)
    if target.blob_code is None:
        raise TypeError(f"dtype: expected one that blob files hold, got {target}")
    return target


def _chunks(array: np.ndarray[Any, Any], target: DType) -> Iterator[Any]:
    """Yield the stored bytes of an array in C order, a part at a time; they are the reader's until the next one."""
    done = 0
    for part in np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=_CHUNK_COUNT):
        try:
            yield stored_bytes(part, target)  # type: ignore[arg-type]
        except OverflowError as error:
            if not done:
                raise
            head, _, tail = str(error).removeprefix("element ").partition(":")
            raise OverflowError(f"element {int(head) + done}:{tail}") from None
        done += part.size  # type: ignore[attr-defined]


def _require_filled(offset: int, nbytes: int, done: list[tuple[int, int]], path: str) -> None:
    end = 0
    for start, stop in sorted(done):
        if start > end:
            break
        end = max(end, stop)
    if end < nbytes:
        words = f"reserved record of {nbytes} bytes: expected all of it to be filled, got none at its byte {end}"
        raise ProgramError(words, offset=offset, file=path)
