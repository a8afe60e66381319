"""Tensors as other libraries take them: in one piece, never item by item."""

import ctypes
import pathlib
import shutil
import sys

import numpy as np
import pytest

import milblob
from milblob.formats.read import open_arrays
from milblob.model.lazy import _HAS_VERSIONS, LazyTensor
from paths import DATA, DEMO
from peers import WITHOUT

pytestmark = pytest.mark.wheel

_IS_WRITABLE = np.from_dlpack(np.zeros(1)).flags.writeable  # NumPy 2.1 makes all that it imports read-only


@pytest.fixture
def no_items(monkeypatch):
    """Reading an item or iterating is an error."""

    def refused(self, *_):
        raise AssertionError(f"{self.name} is read item by item")

    for name in ("__getitem__", "__iter__", "__len__"):
        monkeypatch.setattr(LazyTensor, name, refused)


def sources(tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "w.npz", w=values)
    milblob.save({"w": values, "n": values.astype(np.int64), "b": values > 3}, tmp_path / "w.params")
    yield milblob.open(DEMO)
    yield milblob.open(DATA / "blob_all_dtypes/weight.bin")
    yield milblob.open(DATA / "palette_4bit/model.mlpackage")
    yield milblob.open(DATA / "immediates/model.mlmodel", constants=True)
    yield open_arrays(tmp_path / "w.npz")
    yield open_arrays(tmp_path / "w.params")


def test_numpy_and_dlpack_take_tensors_in_one_piece(no_items, tmp_path):
    """DLPack is what torch.as_tensor looks for first; the values are those of `read`, in memory of their own."""
    exported = refused = 0
    for source in sources(tmp_path):
        with source as tensors:
            for tensor in tensors.values():
                values = tensor.read()
                assert np.array_equal(np.asarray(tensor).view(np.ndarray), values, equal_nan=values.dtype.kind == "f")
                assert tensor.__dlpack_device__() == (1, 0)
                try:
                    found = np.from_dlpack(tensor)
                except BufferError as error:
                    assert str(error).startswith(f"{tensor.name}: expected a dtype that NumPy exports, got ")
                    assert values.dtype == object or values.dtype.type.__module__ != "numpy", tensor
                    refused += 1
                    continue
                assert found.dtype == values.dtype and found.shape == values.shape
                assert found.tobytes() == values.tobytes()
                assert not np.shares_memory(found, values)  # which may be a mapped file, and torch does not ask
                exported += 1
    assert exported > 70 and refused > 3


def test_dlpack_arguments():
    with milblob.open(DEMO) as model:
        tensor = model["head_bias"]
        assert "dltensor" in repr(tensor.__dlpack__())
        assert ("dltensor_versioned" in repr(tensor.__dlpack__(max_version=(1, 0)))) is _HAS_VERSIONS
        assert "dltensor" in repr(tensor.__dlpack__(copy=True))
        with pytest.raises(BufferError, match=r"head_bias: expected a copy to be allowed, got copy=False; np\.asarray"):
            tensor.__dlpack__(copy=False)


@pytest.mark.skipif(
    not _HAS_VERSIONS, reason="NumPy before 2.1 exports no read-only arrays: DLPack of them is not tested"
)
def test_dlpack_shares_what_is_stored_and_never_changes_the_file(tmp_path):
    package = shutil.copytree(DEMO, tmp_path / "demo.mlpackage")
    expected = milblob.load(DEMO)["head_weight"]
    with milblob.open(package) as model:
        tensor = model["head_weight"]
        shared, copied = np.from_dlpack(tensor), np.from_dlpack(tensor, copy=True)
        assert not shared.flags.writeable and copied.flags.writeable is _IS_WRITABLE
        assert np.array_equal(shared, expected) and np.array_equal(copied, expected)
        if sys.platform == "linux":
            assert mapped_file(shared).endswith("weight.bin") and not mapped_file(copied).endswith(".bin")
        ctypes.memset(copied.ctypes.data, 7, copied.nbytes)
        ctypes.memset(shared.ctypes.data, 1, shared.nbytes)  # as PyTorch does, which ignores that it is read-only
        assert not np.array_equal(shared, expected)
        for again in (tensor.read(), np.from_dlpack(tensor), np.from_dlpack(tensor, copy=False)):
            assert np.array_equal(again, expected)
    assert np.array_equal(np.asarray(milblob.load(package)["head_weight"]), expected)
    del model
    assert shared[0, 0] == shared[-1, -1]  # valid after closing


def mapped_file(array):
    """The file whose mapping an array is in, as Linux reports it; "" or "[heap]" of other memory."""
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(end, 16) for end in line.split()[0].split("-"))
        if low <= array.ctypes.data < high:
            return "".join(line.split()[5:])
    raise AssertionError("array: expected in a mapping, got none")


@pytest.mark.skipif(
    not _HAS_VERSIONS, reason="NumPy before 2.1 exports no read-only arrays: DLPack of them is not tested"
)
def test_dlpack_without_a_copy_is_refused_where_it_needs_one(tmp_path):
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "w.npz", w=values)
    milblob.save({"w": values, "n": values.astype(np.int64), "b": values > 3}, tmp_path / "w.params")
    with open_arrays(tmp_path / "w.npz") as arrays, pytest.raises(BufferError, match="w: expected a copy"):
        np.from_dlpack(arrays["w"], copy=False)
    with milblob.open(DATA / "palette_4bit/model.mlpackage") as model:
        tensor = next(tensor for tensor in model.values() if tensor.compression)
        decoded = np.from_dlpack(tensor, copy=False)  # computed for the caller
        assert decoded.flags.writeable is _IS_WRITABLE and np.array_equal(decoded, tensor.read())


def test_the_error_for_bfloat16_names_an_alternative():
    with milblob.open(DATA / "blob_handmade/weight.bin") as model:
        tensor = next(tensor for tensor in model.values() if tensor.mil_dtype is milblob.DType.BFLOAT16)
        with pytest.raises(
            BufferError, match=r"use torch\.from_numpy\(t\.read\(\)\.view\('int16'\)\)\.view\(torch\.bfloat16\)"
        ):
            tensor.__dlpack__()


def test_torch(no_items):
    torch = pytest.importorskip("torch", reason=WITHOUT["torch"])
    with milblob.open(DEMO) as model:
        tensor = model["head_weight"]
        for take in (torch.as_tensor, torch.tensor, torch.asarray, torch.from_dlpack):
            found = take(tensor)
            assert np.array_equal(found.numpy(), tensor.read())
            found[0, 0] = 1  # a copy: the mapped file is read-only
