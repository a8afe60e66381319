"""`out=`: the same values in the caller's memory, computed there where it will do."""

import ml_dtypes
import numpy as np
import pytest

import milblob
import reference
from conftest import DATA
from milblob import outputs

FILE = DATA / "blob_all_dtypes/weight.bin"
MODELS = [
    "constexpr_ios18/model.mlpackage", "immediates/model.mlmodel", "other_fields/model.mlmodel", "opset_ios18_fp16/model.mlpackage",
    "palette_grouped/model.mlpackage", "sparse/model.mlpackage",
]  # fmt: skip


def filled_like(values):
    """An array to fill, full of other bits."""
    return np.full(values.nbytes, 0xA5, np.uint8).view(values.dtype).reshape(values.shape)


@pytest.fixture
def copies(monkeypatch):
    """How often values were computed elsewhere and copied."""
    made = []
    monkeypatch.setattr(np, "copyto", lambda *args, own=np.copyto: (made.append(1), own(*args)))
    return made


def outs(values):
    """Arrays of all memory orders that must take the values."""
    yield filled_like(values)
    if values.ndim:
        whole = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        yield whole[..., ::2]
        yield np.zeros(values.shape, values.dtype, order="F")
    odd = np.zeros(values.nbytes + 1, np.uint8)[1:]
    yield (
        odd.view(values.dtype).reshape(values.shape)
        if values.size
        else odd[:0].view(values.dtype).reshape(values.shape)
    )


def test_blobs():
    with milblob.BlobReader(FILE) as blobs:
        for record in blobs:
            values = blobs.read(record)
            for out in outs(values):
                assert blobs.read(record, out=out) is out
                assert out.tobytes() == values.tobytes()


@pytest.mark.parametrize("case", MODELS)
def test_tensors(case):
    with milblob.open(DATA / case, constants=True) as model:
        seen = 0
        for tensor in model.values():
            values = tensor.read()
            if values.dtype == object:
                continue
            seen += 1
            for out in outs(values):
                assert tensor.read(out=out) is out
                assert out.tobytes() == values.tobytes()
    assert seen


@pytest.mark.parametrize(
    "dtype", ["bool", "int32", "int64", "int8", "uint16", "int4", "uint3", "float32", "float64", "float16"]
)
def test_tensor_values(dtype):
    array = np.arange(12).reshape(3, 4) % 5
    numpy = milblob.DType[dtype.upper()].numpy
    value = milblob.pack_tensor(array.astype(numpy), dtype)
    values = milblob.unpack_tensor(value, dtype, (3, 4))
    for out in outs(values):
        assert milblob.unpack_tensor(value, dtype, (3, 4), out=out) is out
        assert out.tobytes() == values.tobytes()
    doubles = reference.pack_tensor_value("floats", [0.5, 2.0])
    out = np.zeros(2)
    assert milblob.unpack_tensor(doubles, "float64", 2, out=out).tolist() == [0.5, 2.0]
    texts = np.empty(2, object)
    assert milblob.unpack_tensor(milblob.pack_tensor(["a", "b"]), "string", 2, out=texts) is texts
    assert texts.tolist() == ["a", "b"]


def test_computed_in_place(copies):
    """Nothing is made and copied where the memory will do."""
    value = milblob.pack_tensor(np.arange(60, dtype=np.uint8), "uint6")
    out = np.zeros(60, np.uint8)
    milblob.unpack_tensor(value, "uint6", 60, out=out)
    milblob.unpack_tensor(milblob.pack_tensor(np.arange(60)), "int64", 60, out=np.zeros(60, np.int64))
    with milblob.open(DATA / "palette_grouped/model.mlpackage") as model:
        tensor = next(tensor for tensor in model.values() if tensor.parts)
        tensor.read(out=np.empty(tensor.shape, tensor.dtype))
    assert not copies
    milblob.unpack_tensor(value, "uint6", 60, out=np.zeros(120, np.uint8)[::2])
    assert copies


def test_memory_that_is_read_from():
    """Packed bits that are unpacked over themselves are read first."""
    memory = np.zeros(100, np.uint8)
    value = milblob.pack_tensor(np.arange(40, dtype=np.uint8) % 4, "uint2")
    memory[: len(value)] = np.frombuffer(value, np.uint8)
    out = memory[:40].view(ml_dtypes.uint2)
    assert milblob.unpack_tensor(memory[: len(value)], "uint2", 40, out=out) is out
    assert out.tolist() == [i % 4 for i in range(40)]


@pytest.mark.parametrize(
    ("out", "error", "words"),
    [
        ([0] * 6, TypeError, "out: expected a NumPy array, got list"),
        (np.zeros(6, np.int16), ValueError, "out: expected dtype int32, got int16"),
        (np.zeros((2, 3), np.int32), ValueError, r"out: expected shape \(6,\), got \(2, 3\)"),
    ],
)
def test_what_does_not_fit(out, error, words):
    value = milblob.pack_tensor(np.arange(6, dtype=np.int32))
    with pytest.raises(error, match=f"^{words}$"):
        milblob.unpack_tensor(value, "int32", 6, out=out)
    with pytest.raises(error, match=f"^{words}$"):
        outputs.deliver(out, np.zeros(6, np.int32))


def test_read_only():
    out = np.zeros(6, np.int32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        milblob.unpack_tensor(milblob.pack_tensor(np.arange(6, dtype=np.int32)), "int32", 6, out=out)
    assert not out.any()


def test_after_an_error():
    """A value outside the dtype is found, with or without `out`."""
    value = milblob.pack_tensor(np.array([1, 300], np.int32))
    for out in (None, np.zeros(2, np.int8)):
        with pytest.raises(milblob.FormatError, match="element 1"):
            milblob.unpack_tensor(value, "int8", 2, out=out)
