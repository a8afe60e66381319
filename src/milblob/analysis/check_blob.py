"""Every problem of one blob v2 file in one pass."""

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..blobs.reader import RECORD, fetch_records
from ..dtypes import BY_BLOB_CODE
from ..errors import FormatError
from ..model.identify import is_blob_head
from ..storage.foreign import foreign, refusal
from ..storage.mapped import MappedFile
from .check_report import Findings

_HEADER_NBYTES = _RECORD_NBYTES = _ALIGNMENT = 64
_SENTINEL = 0xDEADBEEF
_VERSION = 2
_METADATA = struct.Struct("<IIQQQ")
_CHUNK_NBYTES = 1 << 20

CODES = frozenset([
    "not-a-model", "other-format", "web-page", "manifest", "missing-file", "escaping-file", "lfs-pointer",
    "unreadable", "empty-file", "model-type", "spec-version", "program", "metadata", "header", "version",
    "record-count", "sentinel", "dtype-code", "size", "bounds", "overlap", "alignment", "reference",
    "dtype-mismatch", "size-mismatch", "shape", "conflict", "unreferenced", "padding", "trailing-bytes",
    "other-model", "nan", "infinite", "mask-count", "palette-index", "limit", "compressed-larger", "inline-large",
    "owner-only", "pending-change",
])  # fmt: skip
"""Every code that a finding can have; docs/cli.md describes them."""


class BlobFile(NamedTuple):
    """The contents of a blob file, as found by a check."""

    records: np.ndarray[Any, Any]  # rows of dtype RECORD: the valid ones, by offset
    places: frozenset[int]  # metadata offsets of all records of the walk, valid or not


def check_blob(found: Findings, mapping: MappedFile, references: Sequence[int] = ()) -> BlobFile | None:
    """Check a storage file: header, records, the bytes between them, and the records that a Program refers to.

    Of a remote file, only these are fetched; all of it, if a record is broken and the next one must be looked for.

    `found`: takes the findings. `references`: metadata offsets that Programs refer to.
    Returns: Its contents, or None if it is not a storage file at all.
    """
    around = [(max(0, offset - _ALIGNMENT), _ALIGNMENT + _RECORD_NBYTES) for offset in references]
    buffer = mapping.need([(0, _HEADER_NBYTES + _RECORD_NBYTES), *around] if mapping.is_partial else ())
    file = buffer.name
    if buffer.nbytes == 0:
        message = "weight file: expected a storage header of 64 bytes, got an empty file"
        found.add("error", "empty-file", message, file=file, offset=0)
        return None
    if (other := None if is_blob_head(memoryview(buffer)) else foreign(mapping.live(), file)) is not None:
        error = refusal(other, "file: expected a weight file", file)
        found.add("error", error.code, error.what, file=file)
        return None
    if buffer.nbytes < _HEADER_NBYTES:
        message = f"storage header: expected {_HEADER_NBYTES} bytes, got {buffer.nbytes}"
        found.add("error", "header", message, file=file, offset=0)
        return None
    data = memoryview(buffer)
    announced, version = struct.unpack_from("<II", data)
    if version != _VERSION:
        espresso = " (the older Espresso weight format)" if version == 1 else ""
        found.add("error", "version", f"storage version: expected 2, got {version}{espresso}", file=file, offset=4)
        if buffer.nbytes < 68 or struct.unpack_from("<I", data, 64)[0] != _SENTINEL:
            return None
    if mapping.is_partial and not fetch_records(mapping, announced):
        mapping.live()
    walk = _Walk(found, mapping, buffer, announced)
    walk.run()
    outside = walk.add_references(sorted(set(references)))
    records = np.array(walk.rows, RECORD) if walk.rows else np.empty(0, RECORD)
    if walk.bulk is not None:
        records = np.concatenate([walk.bulk, records])
    records = records[np.argsort(records["offset"], kind="stable")]
    _check_overlaps(found, file, records)
    inside = records[~np.isin(records["offset"], np.array(outside, np.uint64))]
    if mapping.is_partial:
        mapping.need(_between(inside, buffer.nbytes))
    _check_layout(found, data, file, inside, walk.broken)
    return BlobFile(records, frozenset(walk.places))


class _Walk:
    """The walk over a file's records, which continues after a broken one."""

    def __init__(self, found: Findings, mapping: MappedFile, buffer: _codec.Buffer, announced: int) -> None:
        self.found = found
        self.mapping = mapping
        self.buffer = buffer
        self.data = memoryview(buffer)
        self.announced = announced
        self.rows: list[tuple[int, ...]] = []
        self.bulk: np.ndarray[Any, Any] | None = None
        self.broken = False
        self.places: set[int] = set()
        self._candidates: np.ndarray[Any, Any] | None = None

    def run(self) -> None:
        """Find the records, report the broken ones, and compare their number with the header's."""
        nbytes, announced = self.buffer.nbytes, self.announced
        bulk = np.empty(min(announced, (nbytes - _HEADER_NBYTES) // _RECORD_NBYTES), RECORD)
        good, error = _codec.blob_walk(self.buffer, bulk)
        self.bulk = bulk[:good]
        self.places.update(self.bulk["offset"].tolist())
        at = _next(self.bulk[-1]["data_offset"], self.bulk[-1]["nbytes"]) if good else _HEADER_NBYTES
        count = good
        self.broken = error is not None
        if error is not None or good == announced:  # in the second case, look for more records than the header counts
            extra = good == announced
            for place, row in self._rest(at, announced - count, extra):
                count += 1
                self.places.add(place)
                if row is not None:
                    self.rows.append(row)
        if count != announced:
            most = (nbytes - _HEADER_NBYTES) // _RECORD_NBYTES
            room = f" (there is room for {most})" if announced > most else ""
            message = f"record count: expected {count} as found in the file, got {announced} in the header{room}"
            self.found.add("error", "record-count", message, file=self.buffer.name, offset=0)

    def _rest(self, at: int, expected: int, extra: bool) -> Iterator[tuple[int, tuple[int, ...] | None]]:
        """Yield (offset, row or None if broken) of the records from `at` on, one by one."""
        while at + _RECORD_NBYTES <= self.buffer.nbytes:
            self.mapping.need([(at, _RECORD_NBYTES)])
            row = record_row(self.buffer, at)
            if row is not None and row[1] >= at + _RECORD_NBYTES:
                yield at, row
                at = _next(row[1], row[2])
                expected -= 1
                continue
            if expected <= 0:
                extra = True  # all counted records were found: the rest need not be records
            sentinel, code, size, data_offset, _ = _METADATA.unpack_from(self.data, at)
            is_marked = sentinel == _SENTINEL
            # It is plausible enough to trust its position of the next record.
            likely = data_offset == at + _RECORD_NBYTES and data_offset + size <= self.buffer.nbytes
            likely = likely and (is_marked or code in BY_BLOB_CODE)
            if extra and not is_marked:
                return
            if is_marked or likely:
                for problem, offset, message in record_problems(self.data, at):
                    self._add(problem, message, offset)
                yield at, None
                expected -= 1
                if likely:
                    at = _next(data_offset, size)
                    continue
            else:
                self._add("sentinel", f"record sentinel: expected 0x{_SENTINEL:08x}, got 0x{sentinel:08x}", at)
            following = self._next_candidate(at)
            if following is None:
                return
            if not is_marked:  # a record was here, or the next one would not follow
                yield at, None
                expected -= 1
            at = following

    def _add(self, code: str, message: str, offset: int) -> None:
        number = f"record {len(self.places)}"
        self.found.add("error", code, message, file=self.buffer.name, offset=offset, where=number)

    def _next_candidate(self, at: int) -> int | None:
        """Return the next offset after `at` with a plausible record: a sentinel, and a plausible dtype or offset."""
        if self._candidates is None:
            self.mapping.live()
            words = np.ndarray((self.buffer.nbytes // _ALIGNMENT,), "<u4", memoryview(self.buffer), 0, (_ALIGNMENT,))
            self._candidates = np.flatnonzero(words == _SENTINEL) * _ALIGNMENT
        start = int(np.searchsorted(self._candidates, at, "right"))
        for offset in self._candidates[start:]:
            _, code, _, data_offset, _ = _METADATA.unpack_from(self.data, offset)
            if code in BY_BLOB_CODE or data_offset == offset + _RECORD_NBYTES:
                return int(offset)
        return None

    def add_references(self, references: Sequence[int]) -> list[int]:
        """Report references to offsets without a record; return the offsets of valid records outside the walk."""
        outside = []
        file = self.buffer.name
        for offset in references:
            if offset % _ALIGNMENT:
                message = f"record offset: expected a multiple of {_ALIGNMENT}, got {offset}"
                self.found.add("warning", "alignment", message, file=file, offset=offset)
            if offset in self.places:
                continue
            row = record_row(self.buffer, offset)
            if row is not None:
                self.rows.append(row)
                outside.append(offset)
        return outside


def record_row(buffer: _codec.Buffer, offset: int) -> tuple[int, ...] | None:
    """Return the index row of the record at `offset` (see RECORD), or None if it is not valid."""
    if not 0 <= offset < 1 << 64:
        return None
    try:
        data_offset, nbytes, count, padding, code = _codec.blob_record(buffer, offset)
    except FormatError:
        return None
    return offset, data_offset, nbytes, count, padding, code, BY_BLOB_CODE[code].mil_code


def record_problems(data: memoryview, at: int) -> list[tuple[str, int, str]]:
    """Return every problem of the record at `at`: (code, offset, message) each.

    `_codec` decides whether a record is valid and stops at the first problem; this lists all of them.
    """
    if at < _HEADER_NBYTES or at + _RECORD_NBYTES > len(data):
        message = f"record metadata: expected {_RECORD_NBYTES} bytes, got a file that ends at {len(data)}"
        if at < _HEADER_NBYTES:
            message = f"record metadata: expected it after the storage header of {_HEADER_NBYTES} bytes, got byte {at}"
        return [("bounds", at, message)]
    sentinel, code, nbytes, data_offset, padding = _METADATA.unpack_from(data, at)
    problems = []
    if sentinel != _SENTINEL:
        problems.append(("sentinel", at, f"record sentinel: expected 0x{_SENTINEL:08x}, got 0x{sentinel:08x}"))
    dtype = BY_BLOB_CODE.get(code)
    if dtype is None:
        problems.append(("dtype-code", at + 4, f"blob dtype code: expected one that is known, got {code}"))
    elif dtype.nbits >= 8 and nbytes % (dtype.nbits // 8):
        message = f"size of data: expected a multiple of {dtype.nbits // 8} for {dtype}, got {nbytes}"
        problems.append(("size", at + 8, message))
    elif dtype.is_sub_byte and (padding >= 8 or padding > 8 * nbytes or (8 * nbytes - padding) % dtype.nbits):
        message = f"padding bits: expected 0 to 7 that leave whole {dtype.nbits}-bit elements, got {padding}"
        problems.append(("size", at + 24, message))
    end = data_offset + nbytes
    if end > len(data):
        message = f"record data: expected {nbytes} bytes from {data_offset} on, got a file that ends at {len(data)}"
        problems.append(("bounds", at + 16, message))
    if data_offset < at + _RECORD_NBYTES:
        message = f"record data: expected to begin at byte {at + _RECORD_NBYTES} or later, got {data_offset}"
        problems.append(("overlap", at + 16, message))
    return problems


def _next(data_offset: Any, nbytes: Any) -> int:
    return -(-(int(data_offset) + int(nbytes)) // _ALIGNMENT) * _ALIGNMENT


def _check_overlaps(found: Findings, file: str | None, records: np.ndarray[Any, Any]) -> None:
    """Report records whose metadata or data overlaps that of another record."""
    if len(records) < 2:
        return
    filled = records[records["nbytes"] > 0]
    starts = np.concatenate([records["offset"], filled["data_offset"]])
    ends = np.concatenate([records["offset"] + np.uint64(_RECORD_NBYTES), filled["data_offset"] + filled["nbytes"]])
    owners = np.concatenate([records["offset"], filled["offset"]])
    order = np.argsort(starts, kind="stable")
    starts, ends, owners = starts[order], ends[order], owners[order]
    reach = np.maximum.accumulate(ends)
    # Index of the block that reaches furthest, so far.
    furthest = np.maximum.accumulate(np.where(ends == reach, np.arange(len(ends)), 0))
    for index in (np.flatnonzero(starts[1:] < reach[:-1]) + 1).tolist():
        other = int(furthest[index - 1])
        first, second = int(owners[other]), int(owners[index])
        message = (
            f"record at byte {second}: expected to begin after the record at byte {first}, which ends at "
            f"{int(ends[other])}, got byte {int(starts[index])}"
        )
        found.add("error", "overlap", message, file=file, offset=second)


def _between(records: np.ndarray[Any, Any], nbytes: int) -> list[tuple[int, int]]:
    """Return the stretches of a file that `_check_layout` looks at: (offset, nbytes) of each."""
    spans, previous_end = [], _HEADER_NBYTES
    for offset, data_offset, size, _, padding, _, _ in records.tolist():
        end = data_offset + size
        spans += [
            (previous_end, offset - previous_end),
            (offset + _RECORD_NBYTES, data_offset - offset - _RECORD_NBYTES),
        ]
        spans += [(end - 1, 1)] if padding and size else []
        previous_end = max(previous_end, end)
    spans += [(previous_end, nbytes - previous_end)] if nbytes - previous_end < _ALIGNMENT else []
    return [(offset, size) for offset, size in spans if size > 0]


def _check_layout(
    found: Findings, data: memoryview, file: str | None, records: np.ndarray[Any, Any], broken: bool
) -> None:
    """Check the alignment of data and the bytes that belong to no record."""
    previous_end = _HEADER_NBYTES
    for offset, data_offset, nbytes, _, padding, code, _ in records.tolist():
        if data_offset % _ALIGNMENT:
            message = f"data offset: expected a multiple of {_ALIGNMENT}, got {data_offset}"
            found.add("warning", "alignment", message, file=file, offset=offset + 16)
        if not broken and not _is_zero(data[previous_end:offset]):
            found.add(
                "note", "padding", "bytes between records: expected zeros, got others", file=file, offset=previous_end
            )
        if data_offset > offset + _RECORD_NBYTES and not _is_zero(data[offset + _RECORD_NBYTES : data_offset]):
            message = "bytes between metadata and data: expected zeros, got others"
            found.add("note", "padding", message, file=file, offset=offset + _RECORD_NBYTES)
        if padding and nbytes and data[data_offset + nbytes - 1] >> (8 - padding):
            message = f"unused bits of the last {BY_BLOB_CODE[code]} byte: expected zeros, got others"
            found.add("note", "padding", message, file=file, offset=data_offset + nbytes - 1)
        previous_end = max(previous_end, data_offset + nbytes)
    rest = len(data) - previous_end
    if not broken and rest > 0 and (rest >= _ALIGNMENT or not _is_zero(data[previous_end:])):
        message = f"end of file: expected at byte {previous_end}, after the last record, got {rest} more bytes"
        found.add("note", "trailing-bytes", message, file=file, offset=previous_end)


def _is_zero(data: memoryview) -> bool:
    return not any(bytes(data[at : at + _CHUNK_NBYTES]).strip(b"\0") for at in range(0, len(data), _CHUNK_NBYTES))
