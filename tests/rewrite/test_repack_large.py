"""milblob.repack past 2 and 4 GiB, in little memory. The files are sparse, and so is what becomes of them."""

import os
import shutil
import struct
import sys

import pytest

import milblob
import reference
from hostile_bytes import Sparse, blob_value, field, model, operation, program, write_package
from repacking import FILE, WEIGHTS, measured_repack, value_type
from thorough import sized

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="Linux has sparse files and RssAnon: memory for huge files is not measured here",
)
GIB = 1 << 30
FAR = [1.5, -2.5, 3.5]
TAIL = struct.pack("<3f", *FAR)


def on_disk(path):
    return sum(file.stat().st_blocks * 512 for file in path.rglob("*") if file.is_file())


@pytest.fixture
def folder(tmp_path):
    """A directory that does not stay."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def large_package(folder, counts):
    """float32 weights of so many elements, zero but for the last ones: w0, w1, ..., of shape (2, count / 2)."""
    parts, ops, at = [struct.pack("<II56x", len(counts), 2)], [], 64
    for number, count in enumerate(counts):
        reference_value = blob_value(11, [2, count // 2], WEIGHTS, at)
        ops.append(
            operation("const", f"w{number}", [("val", reference_value)], output_type=value_type(11, [2, count // 2]))
        )
        parts += [struct.pack("<IIQQ40x", reference.SENTINEL, 2, count * 4, at + 64), count * 4 - len(TAIL), TAIL]
        end = at + 64 + count * 4
        at = reference.align64(end)
        parts.append(at - end)
    package = write_package(folder, model(program(*ops)))
    Sparse(*parts).write(package / FILE)
    return package


def check_weights(path, counts):
    """Shapes, and the values at both ends."""
    with milblob.open(path, stored=True) as opened:
        assert [tensor.shape for tensor in opened.values()] == [(2, count // 2) for count in counts]
        for tensor in opened.values():
            assert tensor[1, -3:].tolist() == FAR and not tensor[0, :1000].any() and not tensor[1, -1003:-3].any()


def test_3_gib_package_cast_deduped_and_aligned(folder):
    equal, longest = sized((GIB // 32, 9 * GIB // 16 + 2), (GIB // 4, GIB // 8 + 2))
    counts = [equal, equal, GIB // 8, longest, 20]
    source, target = large_package(folder, counts), folder / "out.mlpackage"
    assert (source / FILE).stat().st_size > 3 * GIB
    found = measured_repack(source, target, cast={"float32": "float16"}, dedupe=True, gc=True, align=4096)
    assert found["cast"] == 5 and found["deduplicate"] == 1
    assert (target / FILE).stat().st_size == pytest.approx(2 * (equal + GIB // 8 + longest), rel=0.001)
    check_weights(target, counts)
    assert on_disk(target) < 16 << 20


def test_6_gib_package(folder):
    counts = [20, 5 * GIB // 4, GIB // 4, 30]
    source, target = large_package(folder, counts), folder / "out.mlpackage"
    assert (source / FILE).stat().st_size > 6 * GIB
    measured_repack(source, target, align=16384, canonical=True)
    check_weights(target, counts)
    with milblob.BlobReader(target / FILE) as blobs:
        assert [r.count for r in blobs] == counts and all(r.data_offset % 16384 == 0 for r in blobs)
    assert on_disk(target) < 16 << 20
    measured_repack(source, folder / "copy.mlpackage")
    check_weights(folder / "copy.mlpackage", counts)
    assert on_disk(folder / "copy.mlpackage") < 16 << 20


def test_3_gib_program(folder):
    """A value of 3 GiB in the Program stays where it is, another one leaves; then it leaves too."""
    count = 3 * GIB // 4
    tensor = Sparse(count * 4 - len(TAIL), TAIL).field(1).field(1)
    large = Sparse(field(2, value_type(11, [2, count // 2])), tensor.field(1).field(3))
    attribute = Sparse(field(1, "val"), large.field(2)).field(5)
    large_op = Sparse(
        field(1, "const") + field(3, field(1, "w0") + field(2, value_type(11, [2, count // 2]))), attribute
    )
    small = field(2, value_type(11, [2, 10])) + field(3, field(1, field(1, field(1, bytes(68) + TAIL))))
    small_op = Sparse(operation("const", "w1", [("val", small)], output_type=value_type(11, [2, 10])))
    block = Sparse(large_op.field(3), small_op.field(3))
    inner = Sparse(field(2, "CoreML7"), Sparse(field(1, "CoreML7"), block.field(2)).field(3))
    whole = Sparse(field(1, 1), Sparse(field(1, "main"), inner.field(2)).field(2))
    package = write_package(folder, b"")
    Sparse(field(1, 8), whole.field(502)).write(package / "Data/com.apple.CoreML/model.mlmodel")
    counts = [count, 20]
    check_weights(package, counts)
    first = folder / "first.mlpackage"
    assert measured_repack(package, first, externalize=True, select="w1")["externalize"] == 1
    check_weights(first, counts)
    assert (first / "Data/com.apple.CoreML/model.mlmodel").stat().st_size > 3 * GIB > (first / FILE).stat().st_size
    second = folder / "second.mlpackage"
    assert measured_repack(first, second, externalize=True, dedupe=True)["externalize"] == 1
    check_weights(second, counts)
    assert (second / "Data/com.apple.CoreML/model.mlmodel").stat().st_size < 1000
    third = folder / "third.mlpackage"
    assert measured_repack(package, third, externalize=True, cast="float16")["cast"] == 2
    check_weights(third, counts)
    assert on_disk(first) + on_disk(second) + on_disk(third) < 48 << 20


def test_dense_package_in_parts(folder):
    """64 MiB that are no hole, cast and copied by several workers in parts, take no more memory than a small one."""
    import numpy as np

    array = np.random.default_rng(3).standard_normal(16 << 20, np.float32)
    package = large_package(folder, [20])
    (package / FILE).write_bytes(b"")
    with milblob.BlobWriter(package / FILE) as blobs:
        blobs.write(array)
    value = blob_value(11, [2, 8 << 20], WEIGHTS, 64)
    op = operation("const", "w0", [("val", value)], output_type=value_type(11, [2, 8 << 20]))
    (package / "Data/com.apple.CoreML/model.mlmodel").write_bytes(model(program(op)))
    for options in ({"align": 16384}, {"cast": "float16"}):
        measured_repack(package, folder / f"{next(iter(options))}.mlpackage", **options)
    with milblob.BlobReader(folder / "align.mlpackage" / FILE) as blobs:
        assert blobs.read(64).tobytes() == array.tobytes()
    with milblob.BlobReader(folder / "cast.mlpackage" / FILE) as blobs:
        assert blobs.read(64).tobytes() == array.astype(np.float16).tobytes()


def test_holes_that_are_none(tmp_path, monkeypatch):
    """Where the file system is wrong about a hole, its bytes are copied all the same."""
    from milblob.rewrite import copying
    from milblob.storage.mapped import MappedFile

    path = tmp_path / "file"
    data = bytes(5000) + b"x" * 5000 + bytes(20000) + b"y"
    path.write_bytes(data)
    monkeypatch.setattr(
        os, "lseek", lambda fd, at, how: {os.SEEK_HOLE: at, os.SEEK_DATA: min(at + 7000, len(data))}[how]
    )
    assert list(copying.data_ranges(MappedFile(path), 0, len(data))) == [(0, 7000), (7000, 7000), (28000, 2001)]
    assert list(copying.data_ranges(MappedFile(path), 20000, 5000)) == []
    monkeypatch.setattr(copying, "SETTLED_S", -1e9)
    assert list(copying.data_ranges(MappedFile(path), 0, len(data))) == []

    def fail(*_):
        raise OSError(22, "invalid argument")

    monkeypatch.setattr(os, "lseek", lambda fd, at, how: at)  # neither data nor a hole: somebody is writing
    assert list(copying.data_ranges(MappedFile(path), 100, 9000)) == [(100, 9000)]
    monkeypatch.setattr(os, "lseek", fail)
    assert list(copying.data_ranges(MappedFile(path), 100, 9000)) == [(100, 9000)]
    monkeypatch.undo()
    with path.open("wb") as file:
        file.truncate(1 << 20)
        file.seek(300_000)
        file.write(b"z")
    ranges = list(copying.data_ranges(MappedFile(path), 5, (1 << 20) - 5))
    assert any(at <= 300_000 < at + size for at, size in ranges) and sum(size for _, size in ranges) <= (1 << 20) - 5
    assert list(copying.data_ranges(MappedFile(bytes(100)), 10, 20)) == [(10, 20)]
