"""Records that follow those of an existing weight file: where they go, and their bytes."""

from collections.abc import Callable
from typing import Any

from .. import _codec
from ..dtypes import DType
from ..errors import FormatError
from ..storage.transfer import write_at
from .reader import BlobReader

_SENTINEL = 0xDEADBEEF.to_bytes(4, "little")
MARK_AT, MARK = 56, b"appended"
"""In a reserved field of the first record of an append, until the record is counted: see BlobWriter."""


def end_of_records(reader: BlobReader) -> int:
    """Return where the data of the last record ends, where others may be appended.

    Raises: FormatError: a record that the header does not count, unless an interrupted append left it.
    """
    end = reader[-1].data_offset + reader[-1].nbytes if len(reader) else 64
    offset, _ = _codec.blob_place(end)
    found = bytes(memoryview(reader.mapping.live())[offset : offset + 64])
    if found.startswith(_SENTINEL) and found[MARK_AT:] != MARK:
        # Not from an interrupted append: a Program may refer to it, even if the header does not count it.
        message = f"records: expected {len(reader)} as the header states, got another after them"
        raise FormatError(message, offset=offset, file=reader.name)
    return end


class Appended:
    """New records to append to a copy of a weight file. Raises: FormatError: as `end_of_records`."""

    def __init__(self, reader: BlobReader) -> None:
        self._end = end_of_records(reader)
        self._count = len(reader)
        # offset and bytes of the metadata, offset and number of the data's bytes, and what makes the data
        self._records: list[tuple[int, bytes, int, int, Callable[[], Any]]] = []

    def __len__(self) -> int:
        return len(self._records)

    def add(self, dtype: DType, count: int, make: Callable[[], Any]) -> int:
        """Add a record; return the offset of its metadata.

        `dtype`, `count`: of its elements. `make`: returns their stored bytes when the file is written.
        """
        nbytes = dtype.nbytes(count)
        offset, data_offset = _codec.blob_place(self._end)
        metadata = _codec.blob_metadata(dtype.blob_code or 0, nbytes, data_offset, nbytes * 8 - count * dtype.nbits)
        self._records.append((offset, metadata, data_offset, nbytes, make))
        self._end = data_offset + nbytes
        return offset

    def write(self, fd: int, written: Callable[[], object]) -> None:
        """Write the records and their number to a copy of the file; `written` is called after each.

        Raises: ValueError: `make` returned another number of bytes. OSError: they cannot be written. As `make`.
        """
        for offset, metadata, data_offset, nbytes, make in self._records:
            data = memoryview(make())
            if data.nbytes != nbytes:
                raise ValueError(f"new record: expected {nbytes} bytes, got {data.nbytes}")
            write_at(fd, [metadata], offset)
            write_at(fd, [data], data_offset)
            written()
        if self._records:
            count = self._count + len(self._records)
            write_at(fd, [count.to_bytes(4, "little")], 0)
