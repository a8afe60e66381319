"""BlobReader and the mapping under it: what docstrings promise about memory, arguments and closing.

The values of every fixture are checked in test_golden.py.
"""

import concurrent.futures
import gc
import io
import mmap
import os
import tempfile
import weakref

import ml_dtypes
import numpy as np
import pytest

import milblob
from blob_files import blob_file
from cases import load_case
from dtype_values import natural
from milblob import _codec
from milblob.storage.mapped import MappedFile
from paths import DATA

pytestmark = pytest.mark.wheel

FLOATS = np.arange(40, dtype="<f4")
NIBBLES = natural(np.arange(37, dtype=np.uint8) % 16, "UINT4")
DATA_BYTES, (AT_FLOATS, AT_NIBBLES, AT_EMPTY) = blob_file(
    ("FLOAT32", FLOATS), ("UINT4", NIBBLES), ("INT8", np.zeros(0, np.int8))
)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "weight.bin"
    path.write_bytes(DATA_BYTES)
    return path


def address(array):
    return array.__array_interface__["data"][0]


# ------------------------------------------------------------------------------------------------------------- memory


def test_byte_sized_values_are_views_of_the_buffer():
    data = bytearray(DATA_BYTES)
    with milblob.BlobReader(data) as blobs:
        values, packed = blobs.read(AT_FLOATS), blobs.read_packed(AT_NIBBLES)
        whole = np.frombuffer(data, np.uint8)
        assert np.shares_memory(values, whole)
        assert address(values) == address(whole) + AT_FLOATS + 64
        assert address(packed) == address(whole) + AT_NIBBLES + 64


def test_byte_sized_values_are_views_of_the_mapped_file(path):
    with milblob.BlobReader(path) as blobs:
        values = blobs.read(AT_FLOATS)
        assert np.shares_memory(values, blobs.read(AT_FLOATS))
        assert address(blobs.read_packed(AT_NIBBLES)) - address(values) == AT_NIBBLES - AT_FLOATS
        with path.open("r+b") as file:  # the mapping is the file
            file.seek(AT_FLOATS + 64)
            file.write(np.float32(-1).tobytes())
        assert values[0] == -1


def test_sub_byte_values_are_new_arrays(path):
    with milblob.BlobReader(path) as blobs:
        first, second = blobs.read(AT_NIBBLES), blobs.read(AT_NIBBLES)
        assert first.dtype == ml_dtypes.uint4
        assert not np.shares_memory(first, second)
        assert not first.flags.writeable
        assert first.nbytes == 37
        assert blobs.read_packed(AT_NIBBLES).nbytes == 19


@pytest.mark.parametrize("offset", [AT_FLOATS, AT_NIBBLES, AT_EMPTY])
def test_arrays_cannot_be_written(path, offset):
    with milblob.BlobReader(path) as blobs:
        for array in (blobs.read(offset), blobs.read_packed(offset), blobs.index):
            assert not array.flags.writeable
            with pytest.raises(ValueError, match="read-only"):
                array[...] = 0
        for array in (blobs.read(offset), blobs.read_packed(offset)):  # and not made writable either
            with pytest.raises(ValueError, match="WRITEABLE"):
                array.flags.writeable = True


def test_arrays_outlive_close_the_reader_and_the_file(path):
    blobs = milblob.BlobReader(path)
    values, packed = blobs.read(AT_FLOATS), blobs.read_packed(AT_NIBBLES)
    gone = weakref.ref(blobs)
    blobs.close()
    del blobs
    gc.collect()
    assert gone() is None
    path.unlink()
    gc.collect()
    assert values.tobytes() == FLOATS.tobytes()
    assert packed[:2].tolist() == [0x10, 0x32]


def test_the_mapping_goes_with_the_last_array(path):
    opened = milblob.BlobReader(path)
    mapped = opened.mapping._mmap
    values = opened.read(AT_FLOATS)
    opened.close()
    with pytest.raises(BufferError):
        mapped.close()
    tail = values[1:]
    del values
    gc.collect()
    with pytest.raises(BufferError):
        mapped.close()
    del tail
    gc.collect()
    mapped.close()
    assert mapped.closed


def test_closing_without_arrays_unmaps_at_once(path):
    opened = milblob.BlobReader(path)
    mapped = opened.mapping._mmap
    opened.close()
    assert mapped.closed


def test_a_buffer_is_held_while_it_is_used():
    data = bytearray(DATA_BYTES)
    blobs = milblob.BlobReader(data)
    values = blobs.read(AT_FLOATS)
    blobs.close()
    with pytest.raises(BufferError):
        data.append(0)
    del values, blobs
    gc.collect()
    data.append(0)


def test_closed_readers_leave_no_open_file(path):
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    readers = [milblob.BlobReader(path) for _ in range(20)]
    arrays = [blobs.read(AT_FLOATS) for blobs in readers]
    for blobs in readers:
        blobs.close()
    del readers, arrays, blobs
    gc.collect()
    assert (len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0) == before


# ---------------------------------------------------------------------------------------------------------- arguments


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.empty(40, "<f8"), "out: expected dtype float32, got float64"),
        (np.empty(40, "<u4"), "out: expected dtype float32, got uint32"),
        (np.empty(39, "<f4"), r"out: expected shape \(40,\), got \(39,\)"),
        (np.empty((2, 20), "<f4"), r"out: expected shape \(40,\), got \(2, 20\)"),
        (np.empty(0, "<f4"), "out: expected shape"),
        (np.broadcast_to(np.float32(0), 40), "read-only"),
    ],
)
def test_out_that_does_not_fit(path, out, words):
    with milblob.BlobReader(path) as blobs, pytest.raises(ValueError, match=words):
        blobs.read(AT_FLOATS, out=out)


def test_out_may_be_strided(path):
    wide = np.zeros(80, "<f4")
    with milblob.BlobReader(path) as blobs:
        out = wide[::2]
        assert blobs.read(AT_FLOATS, out=out) is out
        assert wide[::2].tobytes() == FLOATS.tobytes()
        assert not wide[1::2].any()
        nibbles = np.zeros(37, ml_dtypes.uint4)
        assert blobs.read(AT_NIBBLES, out=nibbles).tobytes() == NIBBLES.tobytes()


def test_numbers_of_records(path):
    with milblob.BlobReader(path) as blobs:
        assert [record.offset for record in blobs] == [AT_FLOATS, AT_NIBBLES, AT_EMPTY]
        assert blobs[0] == blobs[-3]
        assert blobs[2].count == 0
        assert blobs[1] == milblob.BlobRecord(AT_NIBBLES, milblob.DType.UINT4, 19, AT_NIBBLES + 64, 37, 4)
        for number in (3, -4, 10**9, 10**30):
            with pytest.raises(IndexError, match=f"^record: expected the number of one of 3, got {number}$"):
                blobs[number]
        for number in ("1", None, 1.0, slice(2)):
            words = f"^record: expected the number of one, got {type(number).__name__}$"
            with pytest.raises(TypeError, match=words):
                blobs[number]
        for offset in ("x", None, 64.0, float("nan"), [64], b"64"):
            for read in (blobs.read, blobs.read_packed, blobs.record):
                words = f"^record: expected its offset or a BlobRecord, got {type(offset).__name__}$"
                with pytest.raises(TypeError, match=words):
                    read(offset)


@pytest.mark.parametrize("kind", [int, np.int64, np.uint64, np.int32])
def test_offsets_of_any_integer_type(path, kind):
    with milblob.BlobReader(path) as blobs:
        assert blobs.read(kind(AT_FLOATS)).tobytes() == FLOATS.tobytes()
        assert blobs.record(kind(AT_NIBBLES)) == blobs[1]


@pytest.mark.parametrize("offset", [-1, -64, 1 << 64, 1 << 80])
def test_offsets_that_no_program_can_hold(path, offset):
    with milblob.BlobReader(path) as blobs:
        for call in (blobs.read, blobs.read_packed, blobs.record):
            with pytest.raises(milblob.FormatError, match=r"record offset: expected 0 to 2\^64 - 1, got"):
                call(offset)


def test_why_an_index_cannot_be_made_is_found_out_once(monkeypatch):
    """Each error about a record asks whether its offset lies in the data of another one: in time, the square of their number."""
    data, offsets = blob_file(*[("FLOAT32", FLOATS)] * 50)
    broken = bytearray(data)
    for offset in offsets:
        broken[offset] ^= 1  # of the magic number
    asked = []
    blob_walk = _codec.blob_walk
    monkeypatch.setattr(_codec, "blob_walk", lambda *args: asked.append(args) or blob_walk(*args))
    with milblob.BlobReader(bytes(broken)) as reader:
        for offset in offsets:
            with pytest.raises(milblob.FormatError, match="record") as caught:
                reader.read(offset)
            assert caught.value.offset == offset
        with pytest.raises(milblob.FormatError) as caught:
            _ = reader.index
        assert caught.value.offset == offsets[0]
    assert len(asked) == 1


def test_the_index_is_built_once(path):
    with milblob.BlobReader(path) as blobs:
        assert blobs.index is blobs.index
        assert blobs.index.itemsize == 48


@pytest.mark.parametrize("number", [slice(0, 2), slice(0, 7), 1.0, "0"])
def test_record_numbers_are_integers(path, number):
    with milblob.BlobReader(path) as blobs, pytest.raises(TypeError):
        blobs[number]


def test_strided_buffers_are_refused():
    with pytest.raises(BufferError):
        milblob.BlobReader(memoryview(bytes(2 * len(DATA_BYTES)))[::2])


@pytest.mark.parametrize("source", [None, 5, 1.5, object()])
def test_what_is_neither_path_nor_buffer(source):
    with pytest.raises(TypeError):
        milblob.BlobReader(source)


def test_file_objects(path):
    with path.open("rb") as file:
        file.seek(100)  # the position does not matter, and stays
        with milblob.BlobReader(file) as blobs:
            assert len(blobs) == 3
            assert blobs.name == str(path)
        assert file.tell() == 100
    assert blobs.name == str(path)


def test_a_file_object_may_be_closed_at_once(path):
    with path.open("rb") as file:
        blobs = milblob.BlobReader(file)
    assert blobs.read(AT_FLOATS).tobytes() == FLOATS.tobytes()
    blobs.close()


def test_file_objects_without_a_name_or_a_file():
    with tempfile.TemporaryFile() as file:
        file.write(DATA_BYTES)
        file.flush()
        with milblob.BlobReader(file) as blobs:
            assert blobs.read(AT_FLOATS).tobytes() == FLOATS.tobytes()
    memory = io.BytesIO(DATA_BYTES)
    memory.seek(77)
    with milblob.BlobReader(memory) as blobs:
        assert blobs.name is None
        assert blobs.read(AT_FLOATS).tobytes() == FLOATS.tobytes()


def test_names_and_repr(path):
    with milblob.BlobReader(path) as blobs:
        assert blobs.name == str(path)
        assert repr(blobs) == f"<BlobReader {path}: 3 records>"
    assert repr(blobs) == f"<BlobReader {path}: closed>"
    assert repr(milblob.BlobReader(DATA_BYTES)) == "<BlobReader buffer: 3 records>"
    with milblob.BlobReader(os.fsencode(path).decode()) as blobs:
        assert blobs.name == str(path)


def test_an_exporter_that_is_an_mmap(path):
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        blobs = milblob.BlobReader(mapped)
        values = blobs.read(AT_FLOATS)
        assert np.shares_memory(values, np.frombuffer(mapped, np.uint8))  # used where it lies, not read
        assert mapped.tell() == 0
        blobs.close()
        with pytest.raises(BufferError):
            mapped.close()
        assert values[7] == 7
        del values, blobs
        gc.collect()


# ------------------------------------------------------------------------------------------------------------ closing


def test_after_close(path):
    with milblob.BlobReader(path) as blobs:
        index = blobs.index
        assert blobs.__enter__() is blobs
    for call in (blobs.read, blobs.read_packed, blobs.record):
        with pytest.raises(ValueError, match=f"I/O operation on closed file {path}"):
            call(AT_FLOATS)
    assert len(index) == 3
    blobs.close()
    fresh = milblob.BlobReader(DATA_BYTES)
    fresh.close()
    with pytest.raises(ValueError, match="I/O operation on closed file$"):
        _ = fresh.index


def test_with_closes_on_errors(path):
    with pytest.raises(KeyError), milblob.BlobReader(path) as blobs:
        raise KeyError
    with pytest.raises(ValueError, match="closed"):
        blobs.read(AT_FLOATS)


def test_an_offset_of_data_is_explained(path):
    """One that lies in the data of a record, aligned to pages too; not one outside, nor in a file with broken records."""
    with milblob.BlobWriter(path, align=4096) as blobs:
        offsets = [blobs.write(np.arange(40, dtype=np.float32)), blobs.write(np.zeros(0, np.float32))]
        offsets.append(blobs.write(np.arange(9, dtype=np.int8)))
    with milblob.BlobReader(path) as blobs:
        for offset in (offsets[0], offsets[2]):
            data_offset = blobs.record(offset).data_offset
            for at, words in ((data_offset, "where the data begins"), (data_offset + 3, "in the data")):
                with pytest.raises(milblob.FormatError, match=f"{words} of the record at byte {offset}: a reference"):
                    blobs.read(at)
        end = blobs.record(offsets[2]).data_offset + 9
        for at in (0, 16, end, end + 64, 1 << 40):
            with pytest.raises(milblob.FormatError) as caught:
                blobs.read(at)
            assert "a reference" not in str(caught.value)
    data = bytearray(path.read_bytes())
    data[offsets[2]] ^= 1
    with milblob.BlobReader(bytes(data)) as blobs, pytest.raises(milblob.FormatError, match="got 0x00000000 at byte"):
        blobs.read(blobs.record(offsets[0]).data_offset)


def test_a_bad_header_closes_what_the_reader_opened(path, monkeypatch):
    path.write_bytes(b"\1\0\0\0\1\0\0\0" + bytes(120))
    closed, close = [], MappedFile.close
    monkeypatch.setattr(MappedFile, "close", lambda self: (closed.append(self.name), close(self)))
    with pytest.raises(milblob.UnsupportedError, match="Espresso"):
        milblob.BlobReader(path)
    assert closed == [str(path)]
    mapping = MappedFile(path)
    with pytest.raises(milblob.UnsupportedError, match="Espresso"):
        milblob.BlobReader(mapping)
    assert closed == [str(path)]
    mapping.close()


# ------------------------------------------------------------------------------------------------------------ threads


def test_threads_share_a_reader():
    case = load_case("blob_all_dtypes")
    rows = case.expected["records"] * 4
    with milblob.BlobReader(DATA / "blob_all_dtypes" / "weight.bin") as blobs:

        def read(row):
            return (len(blobs.index), blobs.read(row["offset"]).tobytes(), blobs.read_packed(row["offset"]).nbytes)

        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for row, (count, values, nbytes) in zip(rows, pool.map(read, rows), strict=True):
                assert count == len(case.expected["records"])
                assert values == natural(case.arrays[row["npz"]], row["dtype"]).tobytes()
                assert nbytes == row["nbytes"]


def test_threads_that_unpack_one_large_record():
    values = natural((np.arange(1 << 18) % 8).astype(np.uint8), "UINT3")
    packed = np.packbits(
        (values[:, None] >> np.arange(3, dtype=np.uint8) & 1).reshape(-1), bitorder="little"
    )  # the reference takes minutes for so many
    data, (offset,) = blob_file(("UINT8", packed))
    data = bytearray(data)
    data[offset + 4] = 12
    with milblob.BlobReader(data) as blobs, concurrent.futures.ThreadPoolExecutor(4) as pool:
        for got in pool.map(lambda _: blobs.read(offset), range(8)):
            assert got.tobytes() == values.tobytes()


def test_dtypes_of_records_are_the_public_enum():
    with milblob.BlobReader(DATA_BYTES) as blobs:
        assert [record.dtype for record in blobs] == [milblob.DType.FLOAT32, milblob.DType.UINT4, milblob.DType.INT8]


def test_wrong_arguments_are_named():
    with milblob.BlobReader(DATA / "blob_all_dtypes/weight.bin") as reader:
        with pytest.raises(TypeError):
            reader[:2]
        with pytest.raises(TypeError, match="^out: expected a NumPy array, got list$"):
            reader.read(64, out=[0.0])
    with pytest.raises(TypeError, match="^source: expected a path, a buffer or a file object, got NoneType$"):
        milblob.BlobReader(None)


# --------------------------------------------------------------------------------------- files outside of the page cache


@pytest.fixture(scope="module")
def records_far_apart():
    """Records so far apart that they are read one by one, two of them in one page."""
    values = np.arange(90_000, dtype="<f4")
    return blob_file(*[("FLOAT32", values[:n]) for n in (90_000, 80_001, 3, 89_999, 0, 70_000)])


@pytest.fixture
def far(tmp_path, records_far_apart):
    data, offsets = records_far_apart
    path = tmp_path / "far.bin"
    path.write_bytes(data)
    return path, data, offsets


def is_read(monkeypatch, error=None):
    """Make every file cold; return the list of what is then read past the page cache. `error`: of such a read."""
    seen = []

    def preadv(fd, buffers, offset, flags=0):
        if flags == os.RWF_NOWAIT:
            raise BlockingIOError
        seen.append((offset, len(buffers[0])))
        if error is not None:
            raise error
        buffers[0][:] = (found := os.pread(fd, len(buffers[0]), offset)).ljust(len(buffers[0]), b"?")
        return len(found)

    monkeypatch.setattr(os, "preadv", preadv)
    return seen


ONLY_LINUX = pytest.mark.skipif(
    not hasattr(os, "RWF_NOWAIT"), reason="no RWF_NOWAIT: how cold files are read is not tested"
)


@ONLY_LINUX
@pytest.mark.parametrize("error", [None, OSError(95, "not supported")])
def test_the_index_of_a_cold_file_is_that_of_its_bytes(far, monkeypatch, error):
    path, data, offsets = far
    with milblob.BlobReader(data) as reader:
        expected = reader.index.tobytes()
    seen = is_read(monkeypatch, error)
    with milblob.BlobReader(path) as reader:
        assert reader.index.tobytes() == expected and not reader.index.flags.writeable
        assert [record.offset for record in reader] == offsets
    pages = list(dict.fromkeys((offset // 4096 * 4096, 4096) for offset in offsets))
    assert len(pages) < len(offsets) and seen == (pages if error is None else pages[:1])  # what failed is not repeated


@ONLY_LINUX
def test_a_broken_record_of_a_cold_file_is_named_as_in_its_bytes(far, monkeypatch):
    path, data, offsets = far
    big = (1 << 64) - 64

    def broken(at, number):
        return data[:at] + number.to_bytes(8, "little") + data[at + 8 :]

    files = [broken(offset + at, n) for offset in offsets for at in (0, 8, 16) for n in (0, 1, 64, big, len(data))]
    files += [data[:size] for size in (len(data) - 1, offsets[-1] + 63, offsets[3] + 64)]
    refused = 0
    for bad in files:
        results = []
        for source in (bad, path):
            path.write_bytes(bad)
            with monkeypatch.context() as patch:
                is_read(patch)
                try:
                    with milblob.BlobReader(source) as reader:
                        results.append(reader.index.tobytes())
                except milblob.MilblobError as error:
                    results.append((type(error), error.what, error.offset, error.where))
                    refused += 1
        assert results[0] == results[1]
    assert refused > len(files)  # nearly all of them, both ways


@ONLY_LINUX
def test_reads_of_a_cold_file_at_any_offsets(tmp_path, monkeypatch):
    data = np.random.default_rng(5).bytes(50_000)
    (tmp_path / "file").write_bytes(data)
    seen = is_read(monkeypatch)
    mapping = MappedFile(tmp_path / "file")
    offsets = [0, 64, 4090, 4032, 4096, 49_936, 20_000, 20_001, 4095, 0]
    assert mapping.read_at(offsets, 64) == b"".join(data[at : at + 64] for at in offsets)
    # Each page once for all that begins in it; with the next one, if one of them goes on there.
    assert seen == [(0, 4096), (0, 8192), (49_152, 4096), (16_384, 4096), (0, 8192)]
    assert mapping.read_at([49_937], 64) is None and mapping.read_at([], 64) == b""
    mapping.close()


def test_a_file_that_was_just_written_is_not_cold(far):
    mapping = MappedFile(far[0])
    assert mapping.is_cold() is False
    assert MappedFile(far[1]).is_cold() is False
    mapping.close()
