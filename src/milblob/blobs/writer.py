"""BlobWriter: writes new blob v2 files and appends records to existing ones."""

import contextlib
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from itertools import chain
from types import TracebackType
from typing import Any, Self

import numpy as np

from .. import _codec
from ..arguments import array_of, as_integer, as_path, require_flags
from ..dtypes import DType, as_dtype
from ..forks import here
from ..storage import paths
from ..storage.disk import naming, sync
from ..storage.locks import lock, unlock
from ..storage.output import NewFile
from ..storage.transfer import copy_range, write_at
from ..values.tensorvalue import as_array, stored_bytes
from .appended import MARK, MARK_AT, end_of_records
from .reader import BlobReader, BlobRecord

_BUFFER_NBYTES = 1 << 20  # small records are collected here and written a megabyte at a time
_SMALL_NBYTES = _BUFFER_NBYTES // 4  # larger ones are written directly from their own memory
_CHUNK_COUNT = 1 << 18  # elements of a strided or packed array copied at a time; a multiple of 8
_CODES = {m.numpy: m.blob_code for m in DType if m.blob_code and m.nbits >= 8}
ALIGNMENTS = (64, 4096, 16384)
"""Multiples that the data of records may be placed at: the format's own, and pages of 4 and 16 KiB."""


class BlobWriter:
    """Writes a blob v2 file ("weight.bin"), byte for byte as coremltools writes the same arrays.

    Args:
        path: the file. With mode "w" it appears atomically when the writer is closed without an exception (temporary
            name in the same directory, sync, rename). A file of that name is replaced; views of the old one remain
            valid. With mode "a" records are appended to an existing file from any writer. The record count is written
            last, so a crash at any byte leaves the old records readable. Nothing before the end of the last record
            changes except the count; the remains of an interrupted append are overwritten.
        mode: "w" or "a".
        align: the data of each record begins at a multiple of it: 64 (as coremltools does), 4096 or 16384.
        sync: write everything to disk before the file takes its name or the new count is written.

    Every writing method returns the byte offset of a record's metadata, as in a Program's BlobFileValue. Arrays are not
    kept. After a failed write the writer remains usable, without that record. Use a writer from one thread at a time,
    and only in the process that created it. If it is never closed, nothing changes.

    Raises:
        OSError: the file cannot be created or opened; BlockingIOError: mode "a", and another writer has the file.
        FormatError, UnsupportedError: mode "a", and the file is not a valid blob v2 file, or has records that its
            header does not count.
        ValueError: another mode or alignment.

    Spec: coremltools e0e2f42, mlmodel/src/MILBlob/Blob/StorageWriter.cpp.

    Examples:
        >>> with milblob.BlobWriter("weight.bin") as writer:
        ...     offsets = [writer.write(np.zeros(3, np.float32)), writer.write([1, 2, 3], "int4")]
        >>> offsets
        [64, 192]
        >>> milblob.BlobReader("weight.bin").read(offsets[1])
        array([1, 2, 3], dtype=int4)
    """

    _fd = -1

    def __init__(self, path: str | os.PathLike[str], mode: str = "w", *, align: int = 64, sync: bool = True) -> None:
        require_flags(sync=sync)
        if not isinstance(mode, str) or mode not in ("w", "a"):
            raise ValueError(f"mode: expected 'w' or 'a', got {mode!r}")
        if not np.isscalar(align) or align not in ALIGNMENTS:
            raise ValueError(f"align: expected one of {', '.join(map(str, ALIGNMENTS))}, got {align!r}")
        self.path = as_path(path)
        self.mode = mode
        self._sync = sync
        self._process = here()
        self._turn = _codec.Turn(f"writer {self.path}")
        self._reserved: dict[int, tuple[int, int, list[tuple[int, int]]]] = {}
        self._records = _codec.RecordBuffer(self._turn, _BUFFER_NBYTES, align, np.ndarray, _CODES)
        self._records.base = self._records.end = 64
        self._count_before = self._nbytes_before = 0
        self._marked = 0  # mode "a": offset of the first new record
        self._is_counted = False  # mode "a": whether the new count may have been written
        self._new: NewFile | None = None
        if mode == "w":
            self._new = self._create()
            self._fd = self._new.fd
            self._records.takes = True
        else:
            self._fd = self._open_existing()

    def _create(self) -> NewFile:
        return NewFile(self.path, sync=self._sync)

    def _open_existing(self) -> int:
        path = paths.real(self.path)
        fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        try:
            lock(fd, path)
            with BlobReader(path) as reader:
                count = len(reader)
                self._records.base = self._records.end = end_of_records(reader)
                self._nbytes_before = reader.mapping.nbytes
            self._records.count = self._count_before = count
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _require_process(self) -> None:
        if self._process.was_forked:
            raise RuntimeError(f"writer {self.path}: expected the process that opened it, got a forked one")

    def _require_open(self) -> None:
        if self._fd < 0:
            raise ValueError(f"I/O operation on closed writer {self.path}")

    # ----------------------------------------------------------------------------------------------------------- write

    def write(self, array: Any, dtype: Any = None) -> int:
        """Write an array as one record.

        Args:
            array: anything that NumPy makes an array of; its shape is not stored. Strided and byte-swapped arrays are
                copied in chunks. Sub-byte dtypes take one element per byte, which are checked and packed.
            dtype: DType, name or NumPy dtype to store; default: the array's own. Integers may be narrowed; every value
                is checked. uint3 and uint6 must be named; their arrays are uint8. Floats are not converted, except
                Python numbers and lists of them.

        Returns:
            Byte offset of the record's metadata.

        Raises:
            TypeError: a dtype that blob files cannot hold (bool, int64, float64, ...), or one that the array's
                elements do not fit.
            OverflowError: an element outside the dtype; its index is named.
            OSError: the file cannot be written. ValueError: the writer is closed.
            RuntimeError: another thread is writing, or this is a forked process.
        """
        if dtype is None and not self._process.was_forked and (offset := self._records.add(array)):
            return offset  # most arrays: a copy of them is all that is needed
        self._require_process()
        with self._turn:
            self._require_open()
            return self._write(array, dtype)

    def _write(self, array: Any, dtype: Any) -> int:
        asked = None if dtype is None else _require_blob(as_dtype(dtype))
        if isinstance(array, int | float | list | tuple) and not isinstance(array, np.generic):
            array = as_array(array, asked)
        array = array_of(array)
        own = as_dtype(array.dtype)
        target = _require_blob(own) if asked is None else asked
        if target is not own and not (target.is_integer and (own.is_integer or own is DType.BOOL)):
            raise TypeError(f"array: expected elements of {target}, got {own}; convert them first")
        if array.dtype == target.numpy and target.nbits >= 8 and array.flags.c_contiguous:
            return self._add(target, array.size, [memoryview(array.reshape(-1).view(np.uint8))], array.nbytes)
        return self._add(target, array.size, _stored_parts(array, target), target.nbytes(array.size))

    def write_packed(self, data: Any, dtype: Any, count: int | None = None) -> int:
        """Write elements that are already in their stored form: little-endian, sub-byte elements packed.

        Args:
            data: any C-contiguous buffer.
            dtype: data type of the elements.
            count: number of elements; default: as many as the bytes hold. Unused bits of the last byte are set to
                zero.

        Raises:
            ValueError: the bytes are not a whole number of elements, or do not match `count`.
            TypeError: as `write`; a buffer of Python objects. OSError: as `write`. BufferError: a strided buffer.
        """
        self._require_process()
        with self._turn:
            self._require_open()
            target = _require_blob(as_dtype(dtype))
            view = _bytes_of(data)
            count = _require_count(view.nbytes, target, count, "data")
            unused = view.nbytes * 8 - count * target.nbits
            pieces = [view]
            if unused and view[-1] >> (8 - unused):
                pieces = [view[:-1], memoryview(bytes([view[-1] & (0xFF >> unused)]))]
            return self._add(target, count, pieces, view.nbytes)

    def write_many(self, arrays: Iterable[Any]) -> list[int]:
        """Write several arrays, one record each; faster than one call each if they are small.

        Args:
            arrays: as `write` takes them. An iterator's arrays are released as soon as they are written.

        Returns:
            Byte offset of each record's metadata.

        Raises:
            As `write`, and any error of the iterator; then none of the arrays is written.
        """
        offsets: list[int] = []
        self._require_process()
        with self._turn:
            self._require_open()
            records = self._records
            before = records.count, records.end, records.takes
            try:
                for batch in _batches(arrays):
                    index = 0
                    while (index := records.add_all(batch, index, offsets)) < len(batch):
                        if records.takes and records.end > records.base:
                            self._flush()  # perhaps there was no room
                        else:
                            offsets.append(self._write(batch[index], None))
                            index += 1
            except BaseException:
                records.count, records.end, records.takes = before  # no calls here: Ctrl-C comes after one
                if records.base > records.end:
                    records.base = records.end
                raise
        return offsets

    def reserve(self, nbytes: int, dtype: Any, count: int | None = None) -> int:
        """Reserve space for a record whose data is written later, by `fill`.

        Args:
            nbytes: bytes of data, in their stored form.
            dtype: data type of the elements.
            count: number of elements; default: as many as the bytes hold.

        Returns:
            Byte offset of the record's metadata. All data must be filled in before the writer is closed.

        Raises:
            ValueError: the bytes are not a whole number of elements, or do not match `count`.
            OverflowError: a file of 2^63 bytes or more. TypeError, OSError: as `write`.
        """
        self._require_process()
        with self._turn:
            self._require_open()
            target = _require_blob(as_dtype(dtype))
            nbytes = as_integer("nbytes", nbytes)
            if nbytes < 0:
                raise ValueError(f"nbytes: expected 0 or more, got {nbytes}")
            offset = self._add(target, _require_count(nbytes, target, count, "nbytes"), None, nbytes)
            self._reserved[offset] = (self._records.end - nbytes, nbytes, [])
            return offset

    def fill(self, offset: int, data: Any, start: int = 0) -> None:
        """Write data of a reserved record in its stored form.

        Args:
            offset: the offset that `reserve` returned.
            data: any C-contiguous buffer.
            start: byte offset within the record's data; pieces may come in any order.

        Raises:
            KeyError: no reserved record there. ValueError: it reaches past the record's data. TypeError, BufferError,
                OSError: as `write_packed`.
        """
        self._require_process()
        with self._turn:
            self._require_open()
            if as_integer("record", offset, "the offset of one") not in self._reserved:
                raise KeyError(f"record: expected one that is reserved, got offset {offset}")
            data_offset, nbytes, done = self._reserved[offset]
            view = _bytes_of(data)
            start = as_integer("start", start)
            stop = start + view.nbytes
            if start < 0 or stop > nbytes:
                raise ValueError(f"data: expected bytes inside the {nbytes} of the record, got {start} to {stop}")
            self._put([view], data_offset + start)
            if done and done[-1][1] == start:
                done[-1] = done[-1][0], stop
            else:
                done.append((start, stop))

    def copy(self, reader: BlobReader, record: BlobRecord | int) -> int:
        """Copy a record of another file in its stored form.

        Args:
            reader: the other file. It may be the file being replaced or appended to.
            record: one of its records, or the offset of one.

        Raises:
            FormatError: the record is not valid, or the file has shrunk. OSError, ValueError: as `write`.
        """
        self._require_process()
        with self._turn:
            self._require_open()
            if not isinstance(reader, BlobReader):
                raise TypeError(f"reader: expected a BlobReader, got {type(reader).__name__}")
            mapping = reader.mapping
            buffer = mapping.check_size()
            found = reader.record_in(buffer, record)
            if found.nbytes <= _SMALL_NBYTES:
                data = memoryview(buffer)[found.data_offset : found.data_offset + found.nbytes]
                return self._add(found.dtype, found.count, [data], found.nbytes)
            offset, data_offset = _codec.blob_place(self._records.end, self._records.align)
            if not self._records.takes:  # mode "a": if this fails, what was copied is to be removed
                self._marked = offset
            with naming(self.path, self._fd, data_offset + found.nbytes):
                copy_range(mapping, found.data_offset, found.nbytes, self._fd, data_offset)
            return self._add(found.dtype, found.count, None, found.nbytes)

    # -------------------------------------------------------------------------------------------------- inside a record

    def _add(self, dtype: DType, count: int, pieces: Iterable[Any] | None, nbytes: int) -> int:
        """Append metadata and data to the file; with `pieces` None the caller writes the data later.

        `pieces`: byte buffers, `nbytes` in total; each is written before the next is requested.
        """
        records = self._records
        offset, data_offset = _codec.blob_place(records.end, records.align)
        if data_offset + nbytes >= 1 << 63:
            raise OverflowError(f"size of the file: expected less than 2^63 bytes, got {data_offset + nbytes}")
        padding_nbits = nbytes * 8 - count * dtype.nbits
        metadata = _codec.blob_metadata(dtype.blob_code or 0, nbytes, data_offset, padding_nbits)
        if not records.takes:  # mode "a": the first new record
            self._marked, metadata = offset, metadata[:MARK_AT] + MARK
            self._put([MARK], offset + MARK_AT)  # before the sentinel: a kill may come between two bytes
        head = bytes(offset - records.end) + metadata + bytes(data_offset - offset - 64)
        if pieces is not None and nbytes <= _SMALL_NBYTES:
            if records.end - records.base + len(head) + nbytes > _BUFFER_NBYTES:
                self._flush()
            at = records.end - records.base
            for piece in chain((head,), pieces):
                records.memory[at : at + len(piece)] = piece
                at += len(piece)
        else:
            self._flush()
            at, first = records.end, [head]
            for piece in (b"",) if pieces is None else pieces:
                self._put([*first, piece], at)
                at += sum(map(len, first)) + len(piece)
                first = []
            records.base = data_offset + nbytes
        records.end = data_offset + nbytes
        records.count += 1
        records.takes = True
        return offset

    def _flush(self) -> None:
        """Write to the file what is buffered."""
        records = self._records
        if records.end > records.base:
            self._put([memoryview(records.memory)[: records.end - records.base]], records.base)
        records.base = records.end

    def _put(self, pieces: list[Any], offset: int) -> None:
        """Write at an offset of the file; the error of a full disk states how much the file needs so far."""
        with naming(self.path, self._fd, self._records.end):
            write_at(self._fd, pieces, offset)

    # ----------------------------------------------------------------------------------------------------------- close

    def __len__(self) -> int:
        return self._records.count

    @property
    def nbytes(self) -> int:
        """Bytes up to the end of the last record written so far: the size of a new file."""
        return self._records.end

    def close(self) -> None:
        """Complete the file. Does nothing when called again.

        Raises:
            ValueError: a reserved record was not filled; OSError: the file cannot be written. The file is then as it
                was before, or not there.
            RuntimeError: another thread is writing, or this is a forked process; then the writer remains open.
        """
        if self._fd < 0:
            return
        self._require_process()
        with self._turn:
            if self._fd < 0:  # another thread has just closed it
                return
            has_more = self._records.count > self._count_before
            try:
                for offset, (_, nbytes, done) in self._reserved.items():
                    _require_filled(offset, nbytes, done)
                self._flush()
                if self._new is not None:
                    self._put([_codec.blob_header(len(self))], 0)
                    with naming(self.path, self._fd, self.nbytes):
                        os.ftruncate(self._fd, self.nbytes)  # removes the rest of a failed write after the last record
                    self._new.commit()
                    self._fd, self._records.takes = -1, False  # after Ctrl-C from here on it is closed
                elif has_more:
                    self._count_in()
                    self._count_before, self._marked = self._records.count, 0  # nothing that could be undone
            except BaseException:
                self._let_go(undo=True)
                raise
            self._let_go(undo=not has_more)

    def _count_in(self) -> None:
        """Mode "a": make the new records count, all at once.

        Until then the first one carries a mark that lets the next append overwrite it. The mark is removed only after
        the count is on disk. If power failed between the two in the other order, there would be a record that is
        neither counted nor marked; it would look like another writer's, and no append would touch the file again. A
        mark that is left does no harm: no reader looks at it in a counted record.
        """
        nbytes = max(self.nbytes, self._nbytes_before)  # never less: another process may have it mapped
        with naming(self.path, self._fd, nbytes):
            os.ftruncate(self._fd, nbytes)
        # The remains of an interrupted append or a failed write must not look like a record after the last.
        self._put([bytes(min(nbytes - self.nbytes, 128))], self.nbytes)
        self._to_disk()
        self._is_counted = True
        self._put([len(self).to_bytes(4, "little")], 0)
        self._to_disk()
        with contextlib.suppress(OSError):  # the records count already, with or without the mark
            write_at(self._fd, [bytes(len(MARK))], self._marked + MARK_AT)

    def _to_disk(self) -> None:
        if self._sync:
            with naming(self.path, self._fd):
                sync(self._fd)

    def _let_go(self, *, undo: bool) -> None:
        """Close the file; with `undo`, restore its old state or remove it.

        Raises: OSError: closing failed after writing without `sync`, so bytes may not have reached the disk. With
        `sync`, or if the bytes are not counted, the error is ignored: a caller that saw it would append again.
        """
        fd, new, self._records.takes = self._fd, self._new, False
        self._fd, self._new = -1, None
        try:  # no call before it: Ctrl-C comes after one, and the file would remain open
            if new is not None:
                fd = -1
                new.discard()  # does nothing after `commit`
            elif fd >= 0 and self._process.is_here:  # a forked process shares the file and must leave it alone
                with contextlib.suppress(OSError):
                    if undo and self._marked:
                        self._take_back(fd)
                unlock(fd)
        finally:  # after Ctrl-C, closing unlocks it
            try:
                if fd >= 0:
                    os.close(fd)
            except OSError:
                if not undo and not self._sync:
                    raise
        self._records.release()
        self._reserved.clear()

    def _take_back(self, fd: int) -> None:
        """Mode "a": undo what was written. After each step, and if one fails, the old records are valid."""
        if self._is_counted:
            write_at(fd, [self._count_before.to_bytes(4, "little")], 0)
            if self._sync:
                sync(fd)
        os.ftruncate(fd, self._nbytes_before)
        if self._marked < self._nbytes_before:
            write_at(fd, [bytes(min(64, self._nbytes_before - self._marked))], self._marked)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        elif not self._process.is_here:
            self._let_go(undo=True)
        else:
            self._turn.when_free(lambda: self._let_go(undo=True))  # a thread must not write to a closed descriptor

    def __del__(self) -> None:
        if self._fd >= 0:
            if self._process.is_here:
                warnings.warn(f"{self!r} was never closed: nothing was written", ResourceWarning, 2, source=self)
            self._let_go(undo=True)

    def __repr__(self) -> str:
        state = "closed" if self._fd < 0 else f"{len(self)} records"
        return f"<BlobWriter {self.path}: {state}>"


def _require_blob(dtype: DType) -> DType:
    if dtype.blob_code is None:
        raise TypeError(f"dtype: expected one that blob files hold, got {dtype}")
    return dtype


def _bytes_of(data: Any) -> memoryview:
    """Return the bytes of a buffer.

    Raises: TypeError: no buffer, or one of Python objects, whose bytes are addresses. BufferError: a strided one.
    """
    view = memoryview(_codec.Buffer(data))
    dtype = getattr(data, "dtype", None)
    if isinstance(dtype, np.dtype):  # some of them have no format
        is_of_objects = dtype.hasobject
    else:
        with memoryview(data) as typed:
            is_of_objects = "O" in re.sub(":[^:]*:", "", typed.format)  # without names of fields
    if is_of_objects:
        raise TypeError("data: expected a buffer of elements in their stored form, got one of Python objects")
    return view


def _require_count(nbytes: int, dtype: DType, count: int | None, what: str) -> int:
    """Return the number of elements in `nbytes` bytes; it must be `count` if given.

    Raises: ValueError: the bytes do not hold that number of elements.
    """
    found = nbytes * 8 // dtype.nbits if count is None else as_integer("count", count)
    if found < 0 or dtype.nbytes(found) != nbytes:
        raise ValueError(f"{what}: expected {dtype.nbytes(max(found, 0))} bytes for {found} x {dtype}, got {nbytes}")
    return found


def _batches(arrays: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield arrays in lists: all at once if they are in memory anyway, else about one staging buffer at a time."""
    if isinstance(arrays, list | tuple):
        yield list(arrays)
        return
    batch: list[Any] = []
    nbytes = 0
    for array in arrays:
        batch.append(array)
        size = getattr(array, "nbytes", 0)
        nbytes += (size if isinstance(size, int) else 0) + 128
        if nbytes >= _BUFFER_NBYTES:
            yield batch
            batch, nbytes = [], 0
    yield batch


def _stored_parts(array: np.ndarray[Any, Any], target: DType) -> Iterator[memoryview]:
    """Yield the stored bytes of an array in C order, in parts; each part is valid until the next one is requested."""
    first = 0
    for part in _parts(array):
        yield stored_bytes(part, target, first)
        first += part.size


def _parts(array: np.ndarray[Any, Any]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements of an array in C order, _CHUNK_COUNT at a time: only the last part may end inside a byte."""
    if array.flags.c_contiguous:
        flat = array.reshape(-1)
        for start in range(0, flat.size, _CHUNK_COUNT):
            yield flat[start : start + _CHUNK_COUNT]
        return
    chunk = np.empty(_CHUNK_COUNT, array.dtype)
    used = 0
    runs: Any = np.nditer(array, ["external_loop", "buffered", "zerosize_ok"], order="C", buffersize=_CHUNK_COUNT)
    for run in runs:  # of any length up to _CHUNK_COUNT
        taken = min(run.size, _CHUNK_COUNT - used)
        chunk[used : used + taken] = run[:taken]
        used += taken
        if used == _CHUNK_COUNT:
            yield chunk
            used = run.size - taken
            chunk[:used] = run[taken:]
    yield chunk[:used]


def _require_filled(offset: int, nbytes: int, done: list[tuple[int, int]]) -> None:
    end = 0
    for start, stop in sorted(done):
        if start > end:
            break
        end = max(end, stop)
    if end < nbytes:
        message = f"reserved record at byte {offset}: expected its {nbytes} bytes to be filled, got none for byte {end}"
        raise ValueError(message)
