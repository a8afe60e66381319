"""Reading blob v2 files: records in file order or by offset, arrays over the mapped bytes."""

import struct
from collections.abc import Iterable, Iterator
from copy import copy
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..arguments import as_integer, require_flags
from ..dtypes import BY_BLOB_CODE, DType
from ..errors import FormatError, MilblobError, UnsupportedError
from ..storage.foreign import explained
from ..storage.mapped import MappedFile, Opened
from ..storage.pending import map_settled
from ..values import parallel
from ..values.arrays import copy_into, filled

RECORD: np.dtype[np.void] = np.dtype(
    [(name, "<u4" if name.endswith("code") else "<u8") for name in _codec.RECORD_FIELDS]
)
"""One row of an index: offset, data_offset, nbytes, count, padding_nbits (uint64), blob_code, mil_code (uint32).

Examples:
    >>> offsets = milblob.write_weights({"w": np.zeros(3, np.float16), "v": np.zeros(8, np.int8)}, "weight.bin")
    >>> rows = milblob.BlobReader("weight.bin").index
    >>> rows.dtype == milblob.RECORD
    True
    >>> rows["count"].tolist()
    [3, 8]
"""


_HEADER_NBYTES = _RECORD_NBYTES = _ALIGNMENT = 64
_SPAN = struct.Struct("<QQ")  # in a record's metadata, at 8: bytes of data, and their offset
_FAR_NBYTES = 1 << 17
"""So far apart on average, records are read one by one."""


class BlobRecord(NamedTuple):
    """One record of a blob file.

    Attributes:
        offset: byte offset of the metadata: what a Program's BlobFileValue holds.
        dtype: DType of the elements.
        nbytes: bytes of data.
        data_offset: byte offset of the data.
        count: elements.
        padding_nbits: unused bits at the end of the last byte; always 0 for byte-sized dtypes, for any value in the
            file.

    Examples:
        >>> reader = milblob.BlobReader("demo.mlpackage/Data/com.apple.CoreML/weights/weight.bin")
        >>> record = reader.record(64)
        >>> record.offset, record.data_offset, record.count, record.nbytes
        (64, 128, 4608, 9216)
    """

    offset: int
    dtype: DType
    nbytes: int
    data_offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count
    padding_nbits: int


def array_over(
    buffer: _codec.Buffer, record: BlobRecord, shape: tuple[int, ...], out: np.ndarray[Any, Any] | None = None
) -> np.ndarray[Any, Any]:
    """Return the values of a checked record in the given shape.

    A read-only view, or a new read-only array for sub-byte dtypes. With `out`, the values are written there.
    """
    dtype = record.dtype
    if not dtype.is_sub_byte:
        view = np.ndarray(shape, dtype.numpy, memoryview(buffer), record.data_offset)
        return view if out is None else copy_into(out, view)

    def unpack(values: np.ndarray[Any, Any]) -> None:
        parallel.unpack_bits(buffer, record.data_offset, record.count, dtype.nbits, values)

    values = filled(out, dtype.numpy, shape, unpack)
    if out is not None:
        return out
    values.flags.writeable = False
    return values.view()  # of a read-only array, so that the caller cannot make it writeable


def in_data(records: np.ndarray[Any, Any], offset: int) -> str:
    """Return words for a message that an offset lies in the data of a record, where it should name one; else "".

    `records`: rows of dtype RECORD, in file order. `offset`: of no record.
    """
    from bisect import bisect_right  # not brought by `import milblob`

    number = bisect_right(records["data_offset"], offset) - 1
    if number < 0:
        return ""
    at, data_offset, nbytes = (int(records[number][key]) for key in ("offset", "data_offset", "nbytes"))
    if offset >= data_offset + nbytes:
        return ""
    where = "where the data begins" if offset == data_offset else "in the data"
    return f" ({where} of the record at byte {at}: a reference names the offset of the record)"


def fetch_records(mapping: MappedFile, count: int) -> bool:
    """Fetch the metadata of the records of a remote file, one by one: each gives the place of the next one.

    `mapping`: a weight file with a sound header. `count`: of its records.
    Returns: Whether there are as many records, all of them sound; else it ends with the first that is not.
    """
    offset = _HEADER_NBYTES
    for _ in range(count):
        try:
            data_offset, nbytes, *_ = _codec.blob_record(mapping.need([(offset, _RECORD_NBYTES)]), offset)
        except FormatError:
            return False
        offset = -(-(data_offset + nbytes) // _ALIGNMENT) * _ALIGNMENT
    return True


class BlobReader(Opened):
    """A blob v2 file ("weight.bin"), memory-mapped.

    Args:
        source: path, file object, or any C-contiguous buffer, which must not change while arrays are in use.
        mmap: map the file. False reads the whole file into memory, which arrays then share and keep: for files that
            another process may truncate, where touching a lost mapped page kills this process.

    Raises:
        OSError: the file cannot be opened.
        FormatError: no storage header, more records than fit, not a regular file, a Git LFS pointer.
        PendingChangeError: a change of the file was interrupted.
        UnsupportedError: storage version 1 (Espresso), or an unknown one.

    Iterating yields a BlobRecord for each record, in file order; `index` gives all of them as one structured array,
    built in C. Offsets are those of record metadata, as in a Program's BlobFileValue. Threads may share a reader.

    Spec: coremltools e0e2f42, mlmodel/src/MILBlob/Blob/StorageFormat.hpp.

    Examples:
        >>> with milblob.BlobReader("demo.mlpackage/Data/com.apple.CoreML/weights/weight.bin") as reader:
        ...     record = next(iter(reader))
        ...     values = reader.read(record)
        >>> len(reader), record.offset, str(record.dtype), values.shape
        (69, 64, 'float16', (4608,))
    """

    def __init__(self, source: Any, *, mmap: bool = True) -> None:
        require_flags(mmap=mmap)
        is_own = not isinstance(source, MappedFile)
        self.mapping = map_settled(source, is_mapped=mmap) if is_own else source
        self._index: np.ndarray[Any, Any] | None = None
        self._no_index: MilblobError | None = None  # why it cannot be made
        self.mapping.expect_random(True)  # before touching the header: read one page, not a whole read-ahead window
        try:
            self._count: int = _codec.blob_count(self.mapping.need([(0, _HEADER_NBYTES)]))
            self.mapping.expect_random(False)
        except (FormatError, UnsupportedError) as error:
            error = explained(error, self.mapping, "file: expected a weight file")  # a name that the block ends with
            if is_own:
                self.mapping.close()
            raise error from None
        except BaseException:
            if is_own:
                self.mapping.close()
            raise

    @property
    def name(self) -> str | None:
        """The file's path as given, or None for a buffer."""
        return self.mapping.name

    @property
    def index(self) -> np.ndarray[Any, Any]:
        """Every record, as a read-only structured array of dtype `RECORD`, shape (len(self),).

        Raises:
            FormatError: a broken record; its offset and number are named.
        """
        if self._no_index is not None:  # errors of many records ask
            self.mapping.check_size()
            raise copy(self._no_index)
        if self._index is None and (found := self._read_index()) is not None:
            found.flags.writeable = False
            self._index = found
        if self._index is None:
            if self.mapping.is_partial:
                fetch_records(self.mapping, self._count)  # the walk names a record that is broken
            buffer = self.mapping.check_range(0, _HEADER_NBYTES)
            # Allocate only for records that exist: a sparse file can announce 2^32 - 1 and have none.
            rows = min(self._count, 1 << 16)
            self.mapping.expect_random(True)
            try:
                while True:
                    index = np.empty(rows, RECORD)
                    _, error = _codec.blob_walk(buffer, index)
                    if error is not None or rows == self._count:
                        break
                    rows = min(self._count, rows * 4)
            finally:
                self.mapping.expect_random(False)
            if error is not None:
                self._no_index = None if self.mapping.is_partial else copy(error)
                raise error
            index.flags.writeable = False
            self._index = index
        return self._index

    def _read_index(self) -> np.ndarray[Any, Any] | None:
        """The index of a file that is not in the page cache, by reads that leave no pages there.

        None where records lie near each other, or one is broken: walk the mapping.
        """
        mapping = self.mapping
        if mapping.nbytes < self._count * _FAR_NBYTES or mapping.is_partial or not mapping.is_cold():
            return None
        offset, offsets, metadata = _HEADER_NBYTES, [], []
        with mapping.reading(_RECORD_NBYTES) as read:
            for _ in range(self._count):
                row = read(offset) if read is not None and offset < mapping.nbytes else b""
                nbytes, data_offset = _SPAN.unpack_from(row, 8) if len(row) == _RECORD_NBYTES else (0, 0)
                if data_offset < offset + _RECORD_NBYTES:
                    return None
                offsets.append(offset)
                metadata.append(row)
                offset = -(-(data_offset + nbytes) // _ALIGNMENT) * _ALIGNMENT
        index = np.empty(self._count, RECORD)
        buffer = mapping.check_size()
        _, error = _codec.blob_records_at(buffer, np.array(offsets, np.uint64), index, b"".join(metadata))
        return index if error is None else None

    def fetch(self, records: Iterable[tuple[int, int]]) -> None:
        """Fetch records of a remote file before they are read, all at once; nothing of a local one.

        Args:
            records: (offset, bytes of data) of each; a record whose data lies elsewhere is fetched when it is read.
        """
        if self.mapping.is_partial:
            self.mapping.need([(offset, _RECORD_NBYTES + nbytes) for offset, nbytes in records])

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[BlobRecord]:
        for offset, data_offset, nbytes, count, padding, code, _ in self.index.tolist():
            yield BlobRecord(offset, BY_BLOB_CODE[code], nbytes, data_offset, count, padding)

    def __getitem__(self, number: int) -> BlobRecord:
        """Return the record with this number, counted from 0 in file order; negative numbers count from the end.

        Raises:
            IndexError: the record does not exist.
        """
        number = as_integer("record", number, "the number of one")
        if not -self._count <= number < self._count:
            raise IndexError(f"record: expected the number of one of {self._count}, got {number}")
        row = self.index[number]
        offset, data_offset, nbytes, count, padding, code, _ = row.tolist()
        return BlobRecord(offset, BY_BLOB_CODE[code], nbytes, data_offset, count, padding)

    def record(self, offset: int | BlobRecord) -> BlobRecord:
        """Return the record whose metadata is at `offset`, reading nothing else in the file.

        Raises:
            FormatError: the record is not valid.
        """
        at = offset.offset if isinstance(offset, BlobRecord) else offset
        return self.record_in(self.mapping.check_range(at if isinstance(at, int) else 0, _RECORD_NBYTES), offset)

    def record_in(self, buffer: _codec.Buffer, offset: int | BlobRecord) -> BlobRecord:
        """As `record`, in bytes that the caller holds; for milblob's own modules."""
        if isinstance(offset, BlobRecord):
            offset = offset.offset
        offset = as_integer("record", offset, "its offset or a BlobRecord")
        if offset < 0 or offset >= 1 << 64:
            raise FormatError(f"record offset: expected 0 to 2^64 - 1, got {offset}", file=self.name)
        try:
            data_offset, nbytes, count, padding, code = _codec.blob_record(buffer, offset)
        except FormatError as error:
            raise self._explained(error, offset) from None
        return BlobRecord(offset, BY_BLOB_CODE[code], nbytes, data_offset, count, padding)

    def records_at(self, offsets: list[int]) -> tuple[np.ndarray[Any, Any], int, MilblobError | None]:
        """Return the records at many offsets, in the order given; for milblob's own modules.

        Returns:
            Rows of dtype RECORD, the number of valid rows, and the error of the next one.
        """
        buffer = self.mapping.check_range(0, _HEADER_NBYTES)
        records = np.empty(len(offsets), RECORD)
        metadata = self.mapping.read_at(offsets, _RECORD_NBYTES)
        good, error = _codec.blob_records_at(buffer, np.array(offsets, np.uint64), records, metadata)
        if isinstance(error, FormatError):
            error = self._explained(error, offsets[good])
        return records, good, error

    def _explained(self, error: FormatError, offset: int) -> FormatError:
        """Return an error about a record; it also notes if the offset is that of a record's data."""
        try:
            words = in_data(self.index, offset)
        except MilblobError:  # another record is broken
            return error
        return FormatError(error.what + words, offset=error.offset, where=error.where, file=error.file, code=error.code)

    def read(self, offset: int | BlobRecord, *, out: np.ndarray[Any, Any] | None = None) -> np.ndarray[Any, Any]:
        """Return the values of the record at `offset`.

        Args:
            offset: byte offset of the record's metadata, or a BlobRecord.
            out: array of the record's NumPy dtype and shape (count,) to fill instead. Sub-byte values are unpacked
                directly into it if it is C-contiguous.

        Returns:
            ndarray, shape (count,), read-only and zero-copy over the file's bytes (valid after close). Sub-byte dtypes
            are unpacked to a new array, one byte per element. With `out`, that array.

        Raises:
            FormatError: the record is not valid, or the file has shrunk.
            ValueError: `out` does not fit, or the reader is closed.
        """
        if self.mapping.is_partial:
            record = self.record(offset)
            return array_over(self.data_of(record), record, (record.count,), out)
        buffer = self.mapping.check_size()
        record = self.record_in(buffer, offset)
        return array_over(buffer, record, (record.count,), out)

    def data_of(self, record: BlobRecord) -> _codec.Buffer:
        """Return the bytes of the file, among them the data of a record; for milblob's own modules."""
        return self.mapping.need([(record.data_offset, record.nbytes)])

    def read_packed(self, offset: int | BlobRecord) -> np.ndarray[Any, Any]:
        """Return the stored bytes of the record at `offset`: uint8, shape (nbytes,), a read-only view of the file."""
        record = self.record(offset)
        return np.ndarray((record.nbytes,), np.uint8, memoryview(self.data_of(record)), record.data_offset)

    def close(self) -> None:
        """Close the file. Arrays over it remain valid; the last of them releases the mapping."""
        self.mapping.close()

    def __repr__(self) -> str:
        state = "closed" if self.mapping.buffer is None else f"{self._count} records"
        return f"<BlobReader {self.name or 'buffer'}: {state}>"


__all__ = ["RECORD", "BlobReader", "BlobRecord", "DType"]
