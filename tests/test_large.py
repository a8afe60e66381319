"""Files past 2 and 4 GiB, sparse on disk: they open, list and load with little resident memory, right to the far end.

What a child may use is 100 MiB, of which importing NumPy, ml_dtypes and milblob takes about 30.
"""

import os
import struct
import sys

import numpy as np
import pytest

import milblob
import reference
from children import LIMIT_NBYTES, run_fork
from hostile_bytes import Sparse, blob_value, field, model, program, tensor_type, write_package
from thorough import sized

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="Linux has sparse files and VmHWM: files of many GiB are not read here",
)
GIB = 1 << 30
WORKED_THROUGH = sized(GIB // 16, GIB)
"""Instead of GIB where every byte is read or written."""
FAR = [1.5, -2.5, 3.5]


def large_const(name, code, number, dtype_nbytes, count):
    """Operation const of `count` elements, zeros but for FAR as its last ones, as float32 or as raw bytes."""
    tail = b"".join(struct.pack("<f" if dtype_nbytes == 4 else "<e", value) for value in FAR)
    payload = Sparse(count * dtype_nbytes - len(tail), tail)
    tensor = payload.field(1).field(number)
    value = Sparse(field(2, tensor_type(code, [count])), tensor.field(1).field(3))
    attribute = Sparse(field(1, "val"), value.field(2)).field(5)
    return Sparse(field(1, "const") + field(3, field(1, name)), attribute)


def large_model(*operations):
    block = Sparse(*(operation.field(3) for operation in operations))
    inner = Sparse(field(2, "CoreML7"), Sparse(field(1, "CoreML7"), block.field(2)).field(3))
    whole = Sparse(field(1, 1), Sparse(field(1, "main"), inner.field(2)).field(2))
    return Sparse(field(1, 8), whole.field(502))


CHILD = """
    from children import peak_rss_nbytes
    import milblob
    baseline = peak_rss_nbytes()
    path, counts = sys.argv[1], dict(item.split("=") for item in sys.argv[2:])
    with milblob.open(path) as opened:
        assert list(opened) == list(counts), list(opened)
        for name, tensor in opened.items():
            assert tensor.shape == (int(counts[name]),) and tensor.nbytes == tensor.size * tensor.dtype.itemsize
    weights = milblob.load(path)
    for name, values in weights.items():
        assert values.shape == (int(counts[name]),)
        assert values[-3:].tolist() == [1.5, -2.5, 3.5], values[-3:]
        assert values[0] == values[len(values) // 2] == 0
        assert not values.flags.owndata
    print(baseline, peak_rss_nbytes())
"""


def check(path, counts):
    assert os.stat(path if path.is_file() else next(path.rglob("weight.bin"))).st_blocks * 512 < 4 << 20
    baseline, peak = map(int, run_fork(CHILD, path, *(f"{name}={count}" for name, count in counts.items())).split())
    print(f"{path.name}: {peak / 2**20:.0f} MiB at most, of which {baseline / 2**20:.0f} after the imports")
    assert peak < LIMIT_NBYTES


def test_one_value_of_3_gib_of_floats(tmp_path):
    path = tmp_path / "model.mlmodel"
    file = large_model(large_const("w", 11, 1, 4, 3 * GIB // 4), large_const("after", 11, 1, 4, 20))
    file.write(path)
    assert path.stat().st_size > 3 * GIB
    check(path, {"w": 3 * GIB // 4, "after": 20})


def test_one_value_of_3_gib_of_bytes(tmp_path):
    path = tmp_path / "model.mlmodel"
    large_model(large_const("before", 10, 7, 2, 20), large_const("w", 10, 7, 2, 3 * GIB // 2)).write(path)
    check(path, {"before": 20, "w": 3 * GIB // 2})


def test_several_values_with_their_bounds_past_4_gib(tmp_path):
    path = tmp_path / "model.mlmodel"
    large_model(*(large_const(f"w{i}", 11, 1, 4, GIB // 8 + i) for i in range(9))).write(path)
    assert path.stat().st_size > 4 * GIB
    check(path, {f"w{i}": GIB // 8 + i for i in range(9)})


def test_program_property_of_a_large_model_is_refused(tmp_path):
    path = tmp_path / "model.mlmodel"
    large_model(large_const("w", 11, 1, 4, 3 * GIB // 4)).write(path)
    code = """
        from children import peak_rss_nbytes
        import milblob
        with milblob.open(sys.argv[1]) as opened:
            try:
                opened.program
            except milblob.UnsupportedError as error:
                assert "2147483647" in str(error), error
            assert opened.metadata.spec_version == 8
        assert peak_rss_nbytes() < 100 << 20, peak_rss_nbytes()
        print("done")
    """
    assert run_fork(code, path).strip() == "done"


def large_blobs(*counts):
    """A blob file of float32 records with FAR at their ends: (Sparse, metadata offsets)."""
    parts, offsets, at = [struct.pack("<II56x", len(counts), 2)], [], 64
    for count in counts:
        offsets.append(at)
        tail = b"".join(struct.pack("<f", value) for value in FAR)
        parts += [struct.pack("<IIQQ40x", reference.SENTINEL, 2, count * 4, at + 64), count * 4 - len(tail), tail]
        end = at + 64 + count * 4
        at = reference.align64(end)
        parts.append(at - end)
    return Sparse(*parts), offsets


def test_blob_file_of_5_gib(tmp_path):
    counts = [20, 5 * GIB // 4, 30]
    file, offsets = large_blobs(*counts)
    path = tmp_path / "weight.bin"
    file.write(path)
    assert offsets[2] > 5 * GIB
    check(path, {f"#{i}": count for i, count in enumerate(counts)})


def test_package_with_weights_past_4_gib(tmp_path):
    counts = [20, 5 * GIB // 4, 30]
    file, offsets = large_blobs(*counts)
    ops = [
        field(1, "const") + field(3, field(1, f"w{i}"))
        + field(5, field(1, "val") + field(2, blob_value(11, [count], "@model_path/weights/weight.bin", offset)))
        for i, (count, offset) in enumerate(zip(counts, offsets, strict=True))
    ]  # fmt: skip
    package = write_package(tmp_path, model(program(*ops)))
    file.write(package / "Data/com.apple.CoreML/weights/weight.bin")
    check(package, {f"w{i}": count for i, count in enumerate(counts)})


@pytest.mark.parametrize("nbytes", [5 * GIB, (1 << 40)])
def test_large_blob_file_that_announces_what_fits_and_holds_nothing(nbytes, tmp_path):
    """The most records that a sparse file has room for; the first is already broken."""
    path = tmp_path / "weight.bin"
    Sparse(struct.pack("<II56x", min((nbytes - 64) // 64, (1 << 32) - 1), 2), nbytes - 64).write(path)
    code = """
        from children import peak_rss_nbytes
        import milblob
        try:
            milblob.open(sys.argv[1])
        except milblob.FormatError as error:
            assert "record sentinel" in str(error) and error.offset == 64, error
        assert peak_rss_nbytes() < 100 << 20, peak_rss_nbytes()
        print("done")
    """
    assert run_fork(code, path).strip() == "done"


def test_splice_of_a_large_file(tmp_path):
    """A value far away is replaced and the file written as a stream; this one really takes the disk for a while."""
    old, new = tmp_path / "old.mlmodel", tmp_path / "new.mlmodel"
    large_model(large_const("w", 11, 1, 4, 3 * WORKED_THROUGH // 4), large_const("after", 11, 1, 4, 20)).write(old)
    wanted = large_model(large_const("w", 11, 1, 4, 3 * WORKED_THROUGH // 4), large_const("after", 11, 1, 4, 20_000))
    code = """
        import os, struct, tracemalloc
        from children import peak_rss_nbytes
        from hostile_bytes import field, tensor_type
        from milblob import _codec
        from milblob.storage.mapped import MappedFile
        from milblob.program.scan import ProgramScan
        from milblob.program.splice import Edit, splice
        mapping = MappedFile(sys.argv[1])
        outer = _codec.wire_fields(mapping.live(), 0, mapping.nbytes)
        w, after = ProgramScan(mapping.live(), outer[-1][3:]).constants
        (_, _, _, offset, nbytes), _ = _codec.wire_fields(mapping.live(), *after.value)
        values = bytes(4 * 20_000 - 12) + struct.pack("<3f", 1.5, -2.5, 3.5)
        edits = [Edit(offset, nbytes, tensor_type(11, [20_000])), Edit(*after.payload, field(1, field(1, values)))]
        tracemalloc.start()
        result = splice(mapping, (0, mapping.nbytes), edits)
        fd = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
        result.write_to(fd)
        os.close(fd)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
        print(peak_rss_nbytes())
    """
    try:
        assert int(run_fork(code, old, new)) < LIMIT_NBYTES
        assert new.stat().st_size == len(wanted) > 3 * WORKED_THROUGH
        with new.open("rb") as file:
            assert file.read(len(wanted.parts[0])) == wanted.parts[0]
        with milblob.open(new) as opened:
            assert [tensor.shape for tensor in opened.values()] == [(3 * WORKED_THROUGH // 4,), (20_000,)]
            for tensor in opened.values():
                assert tensor[-3:].tolist() == FAR and not tensor[-1003:-3].any()
    finally:
        new.unlink(missing_ok=True)


def test_writer_past_6_gib(tmp_path):
    """Records at large offsets, new and appended: written with little memory, and what is reserved takes no room."""
    code = """
        import os
        import numpy as np
        import milblob, milblob.blobs.writer
        from children import peak_rss_nbytes
        milblob.blobs.writer._require_filled = lambda *_: None  # the writer insists on it; here the holes are the point
        path, gib = sys.argv[1], 1 << 30
        tail, bits = np.array([1.5, -2.5, 3.5], np.float16), np.arange(100_003, dtype=np.uint8) % 8
        def check(offsets, dtypes):
            with milblob.BlobReader(path) as blobs:
                assert [record.offset for record in blobs] == offsets
                assert [str(record.dtype) for record in blobs] == dtypes
                for record in blobs:
                    assert record.data_offset == record.offset + 64 or record.data_offset % 16384 == 0
                    if record.nbytes > gib:
                        assert blobs.read(record)[-3:].tolist() == tail.tolist() and blobs.read(record)[gib] == 0
                    elif str(record.dtype) == "uint3":
                        assert np.array_equal(blobs.read(record), bits)
        def large(blobs, nbytes):
            offset = blobs.reserve(nbytes, "float16")
            blobs.fill(offset, tail, nbytes - tail.nbytes)
            return offset
        with milblob.BlobWriter(path, sync=False) as blobs:
            offsets = [large(blobs, 3 * gib), large(blobs, 3 * gib + 2), blobs.write(bits, "uint3")]
            assert blobs.nbytes > 6 * gib
        assert offsets == [64, 128 + 3 * gib, 128 + 6 * gib + 128]
        dtypes = ["float16", "float16", "uint3"]
        check(offsets, dtypes)
        with milblob.BlobWriter(path, "a", align=16384, sync=False) as blobs:
            offsets += blobs.write_many([tail, tail])
            offsets += [large(blobs, 5 * gib), blobs.write(bits, "uint3")]
        check(offsets, dtypes + ["float16", "float16", "float16", "uint3"])
        assert os.stat(path).st_size > 11 * gib and os.stat(path).st_blocks * 512 < 4 << 20
        assert peak_rss_nbytes() < 100 << 20, peak_rss_nbytes()
        print("done")
    """
    assert run_fork(code, tmp_path / "weight.bin").strip() == "done"


LOOK = """
    import pathlib, threading, time
    import milblob
    def anonymous():
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024
    most, stop = [0], threading.Event()
    def watch():
        while not stop.wait(0.005):
            most[0] = max(most[0], anonymous())
    with milblob.open(sys.argv[1]) as opened:
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        figures = [milblob.statistics(tensor) for tensor in opened.values()]
        digest = milblob.content_hash(sys.argv[1]).model
        same, found = (milblob.diff(sys.argv[1], other) for other in sys.argv[1:3])
        stop.set()
        watcher.join()
    for tensor, one in zip(milblob.open(sys.argv[1]).values(), figures):
        assert (one.count, one.min, one.max, one.total) == (tensor.size, -2.5, 3.5, 2.5), one
        assert one.zeros == one.count - 3 and one.distinct == 4
    assert same.is_same and [row.figures.unequal for row in found.rows] == [1, 1], found
    assert [row.figures.max_abs for row in found.rows] == [1.5, 1.5]
    print(most[0])
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/status"), reason="no RssAnon here: memory of a huge file is not measured"
)
def test_statistics_hash_and_diff_of_a_large_model(tmp_path):
    path = tmp_path / "model.mlmodel"
    large_model(
        large_const("half", 10, 7, 2, WORKED_THROUGH), large_const("single", 11, 1, 4, WORKED_THROUGH // 4)
    ).write(path)
    assert path.stat().st_size > 3 * WORKED_THROUGH
    other = tmp_path / "other.mlmodel"
    large_model(
        large_const("half", 10, 7, 2, WORKED_THROUGH), large_const("single", 11, 1, 4, WORKED_THROUGH // 4)
    ).write(other)
    with milblob.open(other) as opened:
        ends = {tensor.dtype: sum(tensor.constant.payload) for tensor in opened.values()}
    with open(other, "r+b") as file:
        for dtype, end in ends.items():
            file.seek(end - dtype.itemsize)
            assert file.read(dtype.itemsize) == np.array(3.5, dtype).tobytes()
            file.seek(end - dtype.itemsize)
            file.write(np.array(2, dtype).tobytes())
    anonymous = int(run_fork(LOOK, path, other, timeout=600))
    print(f"statistics, hash and diff of {3 * WORKED_THROUGH >> 20} MiB: {anonymous / 2**20:.0f} MiB anonymous at most")
    assert anonymous < LIMIT_NBYTES
