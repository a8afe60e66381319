"""Bad blob files, numbered: each ends in the documented class, with its offset and words."""

# One attack per line, however long it is.

import os
import struct

import numpy as np
import pytest

import milblob
import reference

SENTINEL = 0xDEADBEEF
FILE, OFFSETS = reference.write_blobs([("FLOAT32", [1.0, 2.0]), ("UINT4", [1, 2, 3]), ("INT8", list(range(70)))])
FIRST, SECOND, THIRD = OFFSETS
MOST = (1 << 64) - 1


def edited(*edits):
    """FILE with (offset, struct format, value) edits."""
    data = bytearray(FILE)
    for offset, kind, value in edits:
        struct.pack_into(kind, data, offset, value)
    return bytes(data)


# number, file, error class, offset, words
BAD_FILES = [
    (1, b"", milblob.FormatError, 0, "storage header: expected 64 more bytes, got 0"),
    (2, FILE[:63], milblob.FormatError, 0, "storage header: expected 64 more bytes, got 63"),
    (3, edited((4, "<I", 1)), milblob.UnsupportedError, 4, "storage version: expected 2, got 1 (the older Espresso"),
    (4, edited((4, "<I", 3)), milblob.UnsupportedError, 4, "storage version: expected 2, got 3"),
    (5, edited((4, "<I", 0)), milblob.UnsupportedError, 4, "storage version: expected 2, got 0"),
    (6, edited((0, "<I", 0xFFFFFFFF)), milblob.FormatError, 0, f"records that the file has room for: expected {(len(FILE) - 64) // 64}, got 4294967295"),
    (7, edited((0, "<I", 4)), milblob.FormatError, 512, "record metadata: expected 64 bytes, got a file of"),
    (8, edited((FIRST, "<I", 0xDEADBEEE)), milblob.FormatError, 64, "record sentinel: expected 0xdeadbeef, got 0xdeadbeee"),
    (9, edited((SECOND, "<I", 0)), milblob.FormatError, SECOND, "record sentinel: expected 0xdeadbeef, got 0x00000000"),
    (10, edited((FIRST + 4, "<I", 0)), milblob.FormatError, 68, "blob dtype code: expected one that is known, got 0"),
    (11, edited((FIRST + 4, "<I", 18)), milblob.FormatError, 68, "blob dtype code: expected one that is known, got 18"),
    (12, edited((FIRST + 4, "<I", 0x102)), milblob.FormatError, 68, "got 258"),
    (13, edited((FIRST + 8, "<Q", MOST)), milblob.FormatError, 72, "data offset + size: expected a number below 2^64"),
    (14, edited((FIRST + 8, "<Q", MOST - 127)), milblob.FormatError, 72, "data offset + size"),
    (15, edited((FIRST + 8, "<Q", MOST - 128)), milblob.FormatError, 128, "record data: expected 18446744073709551487 bytes"),
    (16, edited((FIRST + 8, "<Q", len(FILE))), milblob.FormatError, 128, "record data: expected"),
    (17, edited((FIRST + 8, "<Q", 7)), milblob.FormatError, 72, "size of data: expected 4, got 7"),
    (18, edited((FIRST + 16, "<Q", MOST)), milblob.FormatError, 72, "data offset + size"),
    (19, edited((FIRST + 16, "<Q", MOST - 7)), milblob.FormatError, 72, "data offset + size"),
    (20, edited((FIRST + 16, "<Q", len(FILE) - 7)), milblob.FormatError, len(FILE) - 7, "record data: expected 8 bytes"),
    (21, edited((FIRST + 16, "<Q", 0)), milblob.FormatError, 0, "record data: expected to begin at byte 128 or later, got 0"),
    (22, edited((FIRST + 16, "<Q", FIRST + 63)), milblob.FormatError, FIRST + 63, "record data: expected to begin"),
    (23, edited((SECOND + 16, "<Q", FIRST + 64)), milblob.FormatError, FIRST + 64, f"expected to begin at byte {SECOND + 64}"),
    (24, edited((SECOND + 24, "<Q", 8)), milblob.FormatError, SECOND + 24, "padding bits: expected 0 to 7"),
    (25, edited((SECOND + 24, "<Q", MOST)), milblob.FormatError, SECOND + 24, "padding bits: expected 0 to 7"),
    (26, edited((SECOND + 24, "<Q", 3)), milblob.FormatError, SECOND + 24, "that leave whole 4-bit elements, got 3"),
    (27, edited((SECOND + 8, "<Q", 0)), milblob.FormatError, SECOND + 24, "padding bits"),
    (28, edited((SECOND + 8, "<Q", (1 << 61) + 2)), milblob.FormatError, SECOND + 64, "record data: expected"),
    (29, FILE[:-1], milblob.FormatError, THIRD + 64, "record data: expected 70 bytes"),
    (30, FILE[:THIRD + 63], milblob.FormatError, THIRD, "record metadata: expected 64 bytes"),
    (31, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12345\n", milblob.FormatError, 0, "of 12345 bytes, got a Git LFS pointer"),
    (32, FILE[:64] + bytes(64), milblob.FormatError, 0, "records that the file has room for: expected 1, got 3"),
]  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize(("number", "data", "kind", "offset", "words"), BAD_FILES, ids=[row[0] for row in BAD_FILES])
def test_bad_file(number, data, kind, offset, words, tmp_path):
    path = tmp_path / "weight.bin"
    path.write_bytes(data)
    for source in (data, path):
        with pytest.raises(milblob.MilblobError) as caught, milblob.BlobReader(source) as blobs:
            list(blobs)
        error = caught.value
        assert type(error) is kind
        assert error.offset == offset
        assert words in str(error)
        assert error.file == (os.fspath(path) if source is path else None)
        assert "\n" not in str(error)


@pytest.mark.parametrize("number", [n for n, *_ in BAD_FILES if n not in (1, 2, 31)])
@pytest.mark.sample(10)
def test_bad_file_opened_as_a_model(number, tmp_path):
    """The same files by milblob.open, where the name says what they are: a blob of this suffix, not a broken protobuf."""
    _, data, kind, offset, words = BAD_FILES[number - 1]
    path = tmp_path / "weight.bin"
    path.write_bytes(data)
    with pytest.raises(milblob.MilblobError) as caught:
        milblob.load(path)
    assert (type(caught.value), caught.value.offset) == (kind, offset)
    assert words in str(caught.value)


@pytest.mark.parametrize("offset", [0, 1, 63, 65, 128, len(FILE) - 63, len(FILE), 1 << 32, 1 << 63, MOST - 62, MOST])
def test_offsets_where_no_record_is(offset):
    with milblob.BlobReader(FILE) as blobs:
        for read in (blobs.record, blobs.read, blobs.read_packed):
            with pytest.raises(milblob.FormatError, match="record"):
                read(offset)


@pytest.mark.parametrize("offset", [-1, 1 << 64])
def test_offsets_that_are_no_offsets(offset):
    with milblob.BlobReader(FILE) as blobs, pytest.raises(milblob.FormatError, match="expected 0 to 2"):
        blobs.record(offset)


def test_one_good_record_does_not_depend_on_a_bad_one():
    with milblob.BlobReader(edited((SECOND, "<I", 0))) as blobs:
        assert blobs.read(FIRST).tolist() == [1.0, 2.0]
        assert blobs.read(THIRD).tolist() == list(range(70))
        with pytest.raises(milblob.FormatError) as caught:
            _ = blobs.index
        assert caught.value.where == "record 1"
        with pytest.raises(milblob.FormatError):  # no partial result is kept
            _ = blobs.index


def test_truncated_at_every_byte():
    """A shorter file is an error, or the records that are whole have the values they had."""
    whole = [value.tobytes() for value in map(milblob.BlobReader(FILE).read, OFFSETS)]
    for cut in range(len(FILE)):
        data = FILE[:cut]
        with pytest.raises(milblob.FormatError), milblob.BlobReader(data) as blobs:
            list(blobs)
        if cut < 64:
            continue
        shorter = bytearray(data)
        shorter[0:4] = bytes(4)
        with milblob.BlobReader(shorter) as blobs:
            for offset, values in zip(OFFSETS, whole, strict=True):
                try:
                    assert blobs.read(offset).tobytes() == values
                except milblob.FormatError as error:
                    assert error.offset is not None


def test_two_records_over_the_same_data_are_read_but_not_walked():
    """Legal by offset (shared data is what dedupe makes); as neighbours in one walk it is an overlap."""
    data = edited((SECOND + 4, "<I", 2), (SECOND + 8, "<Q", 8), (SECOND + 16, "<Q", FIRST + 64))
    with milblob.BlobReader(data) as blobs:
        assert np.array_equal(blobs.read(SECOND), blobs.read(FIRST))
        with pytest.raises(milblob.FormatError, match="expected to begin"):
            list(blobs)


def test_garbage_in_what_is_not_read():
    noise = [(OFFSETS[0] + at, "<Q", 0xFFFFFFFFFFFFFFFF) for at in (24, 32, 40, 48, 56)]
    with milblob.BlobReader(edited(*noise, (8, "<Q", MOST), (56, "<Q", MOST))) as blobs:
        assert blobs[0].padding_nbits == 0
        assert blobs.read(FIRST).tolist() == [1.0, 2.0]
