"""Lifetimes: arrays outlive readers, models and close; nothing leaks; what arrays lie on stays locked."""

import array
import gc
import io
import mmap
import os
import pathlib
import shutil
import sys
import weakref

import ml_dtypes
import numpy as np
import pytest

import milblob
import reference
from children import run_child
from hostile_bytes import FLOATS, blob_value, const, immediate, model, program, write_package
from paths import DATA

FILE, OFFSETS = reference.write_blobs([("FLOAT32", [float(i) for i in range(100)]), ("UINT4", [1, 2, 3])])
VALUES = list(range(100))
linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="no /proc/self here: what a buffer keeps open is not counted"
)


def exporters():
    ctypes_like = array.array("B", FILE)
    anonymous = mmap.mmap(-1, len(FILE))
    anonymous[:] = FILE
    return {
        "bytes": FILE,
        "bytearray": bytearray(FILE),
        "memoryview": memoryview(FILE),
        "memoryview of a slice": memoryview(b"x" + FILE + b"x")[1:-1],
        "array": ctypes_like,
        "mmap": anonymous,
        "uint8": np.frombuffer(FILE, np.uint8),
        "float16": np.frombuffer(FILE, np.float16),
        "matrix": np.frombuffer(FILE, np.uint8).reshape(2, -1),
        "BytesIO": io.BytesIO(FILE),
        "getbuffer": io.BytesIO(FILE).getbuffer(),
        "file name": None,
        "file object": None,
    }


@pytest.mark.parametrize("kind", exporters())
def test_every_kind_of_source(kind, tmp_path):
    path = tmp_path / "weight.bin"
    path.write_bytes(FILE)
    source = {"file name": path, "file object": path.open("rb")}.get(kind, exporters()[kind])
    with milblob.BlobReader(source) as blobs:
        values, packed = blobs.read(OFFSETS[0]), blobs.read(OFFSETS[1])
    if kind == "file object":
        source.close()
    assert values.tolist() == VALUES
    assert packed.tolist() == [1, 2, 3]
    assert not values.flags.writeable
    with pytest.raises(ValueError, match="WRITEABLE"):
        values.flags.writeable = True
    tensor = milblob.unpack_tensor(reference.pack_tensor_value("floats", [1.0]), "float32", (1,))
    assert not tensor.flags.writeable


@pytest.mark.parametrize("source", [
    np.frombuffer(FILE * 2, np.uint8)[::2], memoryview(FILE * 2)[::2], np.zeros((64, 4), np.uint8, order="F"),
    np.zeros((64, 64), np.uint8)[:, :32],
], ids=["strided", "strided view", "Fortran", "columns"])  # fmt: skip
def test_strided_buffers_are_refused(source):
    for use in (
        milblob.BlobReader,
        milblob.open,
        milblob.load,
        lambda data: milblob.unpack_tensor(data, "float32", (1,)),
    ):
        with pytest.raises(BufferError, match="contiguous"):
            use(source)


@pytest.mark.parametrize("source", [None, 7, 1.5, object(), ["a"], {}])
def test_an_object_without_a_buffer_is_refused(source):
    for use in (milblob.BlobReader, milblob.open, lambda data: milblob.unpack_tensor(data, "float32", (1,))):
        with pytest.raises(TypeError):
            use(source)


def test_bfloat16_and_int4_arrays_are_buffers():
    value = np.arange(40, dtype=np.uint8).view(ml_dtypes.bfloat16)
    assert (
        milblob.unpack_tensor(reference.pack_tensor_value("bytes", value.tobytes()), "bfloat16", (20,)).tobytes()
        == value.tobytes()
    )
    assert milblob.unpack_tensor(
        np.frombuffer(reference.pack_tensor_value("bytes", b"\x21"), np.uint8), "int4", (2,)
    ).tolist() == [1, 2]


def test_bytearray_is_locked_while_arrays_live():
    data = bytearray(FILE)
    with milblob.BlobReader(data) as blobs:
        with pytest.raises(BufferError):
            data.append(0)
        values = blobs.read(OFFSETS[0])
    with pytest.raises(BufferError):
        data.clear()
    tail = values[-1:]
    del values, blobs
    with pytest.raises(BufferError):
        data.clear()
    assert tail.tolist() == [99.0]
    del tail
    data.clear()


@pytest.mark.parametrize("bad", [b"", FILE[:64] + bytes(64), b"version https://git-lfs.github.com/spec/v1\n"])
def test_bytearray_is_free_after_a_failure(bad):
    data = bytearray(bad)
    for use in (milblob.open, lambda source: list(milblob.BlobReader(source))):
        with pytest.raises(milblob.MilblobError):
            use(data)
    gc.collect()
    data.append(0)


def test_arrays_outlive_everything(tmp_path):
    path = tmp_path / "weight.bin"
    path.write_bytes(FILE)
    reader = milblob.BlobReader(path)
    values, again = reader.read(OFFSETS[0]), reader.read_packed(OFFSETS[0])
    gone = weakref.ref(reader.mapping.buffer.__class__) and weakref.ref(reader)
    reader.close()
    path.unlink()
    del reader
    gc.collect()
    assert gone() is None
    assert values.tolist() == VALUES
    assert again.tobytes() == values.tobytes()
    part = values.reshape(10, 10)[::3, 1:4].T
    del values, again
    gc.collect()
    assert part.tolist() == np.arange(100.0).reshape(10, 10)[::3, 1:4].T.tolist()


@linux
def test_arrays_of_a_model_outlive_it_and_then_the_mapping_goes(tmp_path):
    def mapped():
        return str(tmp_path) in pathlib.Path("/proc/self/maps").read_text()

    package = tmp_path / "m.mlpackage"
    shutil.copytree(DATA / "opset_ios15_fp16/model.mlpackage", package)
    weights = milblob.load(package, constants=True)
    expected = {name: values.copy() for name, values in weights.items()}
    assert mapped()
    shutil.rmtree(package)
    assert all(np.array_equal(weights[name], expected[name]) for name in weights)
    last = weights["fc_weight"]
    del weights
    assert mapped()
    assert np.array_equal(last, expected["fc_weight"])
    del last
    assert not mapped()  # at once, without the garbage collector


@linux
def test_failed_reads_leave_nothing_mapped(tmp_path):
    path = tmp_path / "weight.bin"
    path.write_bytes(FILE[:-1] + b"")
    spec = model(program(const(blob_value(11, [7], "@model_path/weights/weight.bin", OFFSETS[0]))))
    package = write_package(tmp_path, spec, {"weight.bin": FILE})
    for _ in range(3):
        for use in (lambda: milblob.load(package), lambda: list(milblob.BlobReader(path))):
            with pytest.raises(milblob.MilblobError):
                use()
    gc.collect()
    assert str(tmp_path) not in pathlib.Path("/proc/self/maps").read_text()


@linux
def test_file_descriptors_do_not_leak(tmp_path):
    def count():
        return len(os.listdir("/proc/self/fd"))

    good = DATA / "opset_ios15_fp16/model.mlpackage"
    short = tmp_path / "short.bin"
    short.write_bytes(FILE[:100])
    (tmp_path / "a.mlpackage").mkdir()
    bad = [short, tmp_path / "missing", tmp_path, tmp_path / "a.mlpackage", "/dev/null"]
    milblob.load(good)
    gc.collect()
    before = count()
    kept = []
    for number in range(1000):
        with milblob.open(good) as opened:
            kept.append(opened["fc_weight"].read())
            del kept[:-3]
        milblob.open(good)  # dropped without close
        with pytest.raises((milblob.MilblobError, OSError)):
            milblob.load(bad[number % len(bad)])
    kept.clear()
    gc.collect()
    assert count() <= before


@linux
def test_live_arrays_hold_a_bounded_number_of_descriptors(tmp_path):
    """An array keeps its mapping; Python's mmap keeps a descriptor with it. One per file, however many arrays."""
    before = len(os.listdir("/proc/self/fd"))
    arrays = []
    with milblob.open(DATA / "opset_ios15_fp16/model.mlpackage", constants=True) as opened:
        for _ in range(100):
            arrays += [tensor.read() for tensor in opened.values()]
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    assert arrays


def test_closing_twice_and_using_after_close(tmp_path):
    package = write_package(tmp_path, model(program(const(immediate(11, [10], FLOATS)))))
    opened = milblob.open(package)
    tensor = opened["w"]
    values = tensor.read()
    opened.close()
    opened.close()
    for use in (
        tensor.read,
        lambda: np.asarray(tensor),
        lambda: tensor[...],
        lambda: opened.metadata,
        lambda: opened.program,
    ):
        with pytest.raises(ValueError, match="closed"):
            use()
    assert (list(opened), repr(opened), tensor.shape) == (["w"], f"<Model {package} (mlpackage): closed>", (10,))
    assert values.tolist() == [0.0] * 10
    reader = milblob.BlobReader(FILE)
    reader.close()
    reader.close()
    for use in (
        lambda: reader.read(64),
        lambda: reader.index,
        lambda: reader.record(64),
        lambda: reader.read_packed(64),
    ):
        with pytest.raises(ValueError, match="closed"):
            use()


def test_open_model_is_freed_without_the_garbage_collector():
    gc.collect()
    gc.disable()
    try:
        opened = milblob.open(DATA / "opset_ios15_fp16/model.mlpackage")
        gone = weakref.ref(opened.package.sources[0].mapping.__class__), weakref.ref(opened)
        opened.close()
        buffers = sys.getrefcount(opened.package.mappings[0])
        assert buffers < 10
        del opened
    finally:
        gc.enable()
    gc.collect()
    assert gone[1]() is None


def test_dead_cycles_with_memoryviews():
    """An exception holds its frames, they hold the Buffer and the memoryview under it. The collector may clear the view
    first; when the Buffer then released it, CPython crashed."""
    code = """
        import gc
        import milblob
        for _ in range(200):
            try:
                milblob.load(memoryview(bytearray(b"no model" * 20)))
            except milblob.MilblobError as error:
                error.itself = error
                frame = error.__traceback__
            view = memoryview(bytearray(4096))
            cycle = [milblob._codec.Buffer(view), view]
            cycle.append(cycle)
            del cycle, view, frame
            gc.collect()
        print("done")
    """
    assert run_child(code).strip() == "done"


def test_no_array_is_writable_or_shares_what_is_not_its_own():
    with milblob.open(DATA / "immediates/model.mlmodel", constants=True) as opened:
        for tensor in opened.values():
            values = tensor.read()
            if values.flags.owndata or (values.base is not None and getattr(values.base, "flags", None) is not None):
                continue
            assert not values.flags.writeable
