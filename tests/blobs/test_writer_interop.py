"""BlobWriter beside coremltools' own writer and reader: the same bytes for the same arrays, read back equal."""

import random

import numpy as np
import pytest

import milblob
from blob_files import RANDOM, values_of, written
from draws import restarts
from dtype_values import NUMPY
from peers import WITHOUT

each_test_draws_the_same = restarts(RANDOM)

coremltools = pytest.importorskip("coremltools.libmilstoragepython", reason=WITHOUT["coremltools"])

# dtype -> (word in the names of its methods, what those take)
WORDS = {
    "FLOAT16": ("fp16", np.uint16), "FLOAT32": ("float", np.float32), "INT8": ("int8", np.int8), "INT16": ("int16", np.int16),
    "INT32": ("int32", np.int32), "UINT8": ("uint8", np.uint8), "UINT16": ("uint16", np.uint16), "UINT32": ("uint32", np.uint32),
    "INT4": ("int4", np.int8), "UINT1": ("uint1", np.uint8), "UINT2": ("uint2", np.uint8), "UINT3": ("uint3", np.uint8),
    "UINT4": ("uint4", np.uint8), "UINT6": ("uint6", np.uint8),
}  # fmt: skip


def theirs(array, dtype):
    """An array as coremltools' methods take it: int4 sign-extended, float16 as bits."""
    if dtype == "INT4":
        nibbles = array.view(np.int8) & 15
        return np.where(nibbles > 7, nibbles - 16, nibbles).astype(np.int8)
    return array.view(WORDS[dtype][1])


def write_theirs(path, records, append=False):
    """Write (dtype, array) records with coremltools; return their offsets."""
    writer = coremltools._BlobStorageWriter(str(path), not append)
    return [getattr(writer, f"write_{WORDS[dtype][0]}_data")(theirs(array, dtype)) for dtype, array in records]


def read_theirs(path, dtype, offset):
    """The values of a record as coremltools reads them, as milblob has them."""
    values = getattr(coremltools._BlobStorageReader(str(path)), f"read_{WORDS[dtype][0]}_data")(offset)
    return (values & 15 if dtype == "INT4" else values).view(NUMPY[dtype])


def some_records(seed, count=40):
    chooser, values = random.Random(seed), np.random.default_rng(seed)
    sizes = [0, 1, 2, 7, 8, 31, 32, 33, 64, 100, 1000, 5000]
    return [(dtype, values_of(dtype, chooser.choice(sizes), values)) for dtype in chooser.choices(list(WORDS), k=count)]


@pytest.mark.parametrize("seed", range(20))
def test_the_same_bytes(tmp_path, seed):
    records = some_records(seed)
    offsets = write_theirs(tmp_path / "theirs", records)
    data, found = written(tmp_path / "ours", *(lambda blobs, r=record: blobs.write(r[1], r[0]) for record in records))
    assert data == (tmp_path / "theirs").read_bytes() and found == offsets
    for (dtype, array), offset in zip(records, offsets, strict=True):
        if array.size:  # it cannot read an empty record
            assert read_theirs(tmp_path / "ours", dtype, offset).tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", WORDS)
@pytest.mark.sample(5)
def test_the_same_bytes_of_large_records(tmp_path, dtype):
    records = [(dtype, values_of(dtype, 3)), (dtype, values_of(dtype, 2_100_001)), (dtype, values_of(dtype, 5))]
    offsets = write_theirs(tmp_path / "theirs", records)
    data, found = written(tmp_path / "ours", *(lambda blobs, r=record: blobs.write(r[1], r[0]) for record in records))
    assert data == (tmp_path / "theirs").read_bytes() and found == offsets


@pytest.mark.parametrize("seed", range(10))
def test_taking_turns_at_one_file(tmp_path, seed):
    """coremltools appends to ours, we to theirs; the bytes are those of coremltools alone."""
    chooser, paths = random.Random(seed), [tmp_path / "both", tmp_path / "theirs"]
    for turn in range(6):
        records = some_records(100 * seed + turn, chooser.randrange(1, 6))
        offsets = write_theirs(paths[1], records, turn > 0)
        if (turn + seed) % 2:
            assert write_theirs(paths[0], records, turn > 0) == offsets
        else:
            with milblob.BlobWriter(paths[0], "a" if turn else "w", sync=False) as blobs:
                assert [blobs.write(array, dtype) for dtype, array in records] == offsets
        assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("align", [4096, 16384])
def test_aligned_files_are_read(tmp_path, align):
    records = some_records(7)
    _, offsets = written(
        tmp_path / "a", *(lambda blobs, r=record: blobs.write(r[1], r[0]) for record in records), align=align
    )
    for (dtype, array), offset in zip(records, offsets, strict=True):
        if array.size:
            assert read_theirs(tmp_path / "a", dtype, offset).tobytes() == array.tobytes()
    more = values_of("FLOAT16", 100)  # and continued
    (offset,) = write_theirs(tmp_path / "a", [("FLOAT16", more)], append=True)
    with milblob.BlobReader(tmp_path / "a") as blobs:
        assert [record.offset for record in blobs] == [*offsets, offset]
        assert blobs.read(offset).tobytes() == more.tobytes()


def test_records_past_4_gib_are_read(tmp_path, monkeypatch):
    """A sparse file: nobody fills the large record, which the writer would insist on."""
    monkeypatch.setattr(milblob.blobs.writer, "_require_filled", lambda *_: None)
    arrays = [values_of("FLOAT16", 100), values_of("UINT3", 100)]
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        blobs.reserve(5 << 30, "float32")
        offsets = [blobs.write(arrays[0]), blobs.write(arrays[1], "uint3")]
    with milblob.BlobWriter(tmp_path / "a", "a", sync=False) as blobs:
        offsets.append(blobs.write(arrays[0]))
    assert offsets[0] > 5 << 30
    for offset, (dtype, number) in zip(offsets, [("FLOAT16", 0), ("UINT3", 1), ("FLOAT16", 0)], strict=True):
        assert read_theirs(tmp_path / "a", dtype, offset).tobytes() == arrays[number].tobytes()
