"""`out=`: values go into the caller's array, directly or through a copy; arrays that do not fit are refused."""

from functools import partial

import ml_dtypes
import numpy as np
import pytest

import milblob
import reference
from constexpr_bytes import constexpr, open_weight, value
from dtype_values import NUMERIC, NUMPY, accepted, draw, tensor_value
from hostile_bytes import const, model, program
from milblob import BlobReader, FormatError, _codec, pack_tensor, unpack_tensor
from milblob.values import dense, parallel
from paths import DATA

pytestmark = pytest.mark.wheel

SUB_BYTE = ["UINT1", "UINT2", "UINT3", "UINT4", "UINT6", "INT4"]


def outs(values):
    """Arrays to fill: in one piece, strided, in Fortran order, unaligned."""
    yield np.empty_like(values, order="C")
    yield np.empty((*values.shape, 2), values.dtype)[..., 1]
    yield np.empty(values.shape, values.dtype, order="F")
    memory = np.empty(values.nbytes + 1, np.uint8)
    yield memory[1:].view(values.dtype).reshape(values.shape)


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.sample(7)
def test_unpack_tensor(dtype, tier):
    for field in sorted(accepted(dtype)):
        values = draw(dtype, 96, 3)
        if (dtype, field) == ("FLOAT64", "floats"):
            values = draw("FLOAT32", 96, 3).astype(np.float64)
        if field == "ints" and values.itemsize == 8:
            values = values % 1000
        data = tensor_value(field, values.astype("<f4") if field == "floats" else values, dtype)
        expected = unpack_tensor(data, dtype.lower(), (8, 12))
        for out in outs(expected):
            out[...] = np.zeros((), out.dtype)
            assert unpack_tensor(data, dtype.lower(), (8, None), out=out) is out
            assert out.tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", SUB_BYTE)
def test_records(dtype, tmp_path, tier):
    values = draw(dtype, 1001, 5)
    path = tmp_path / "weight.bin"
    (offset,) = milblob.write_weights({"w": values}, path, dtypes={"w": dtype.lower()}).values()
    with BlobReader(path) as blobs, milblob.open(path) as model:
        (tensor,) = model.values()
        for out in outs(blobs.read(offset)):
            for read in (lambda out: blobs.read(offset, out=out), lambda out: tensor.read(out=out)):
                out[...] = np.zeros((), out.dtype)
                assert read(out) is out
                assert out.tobytes() == blobs.read(offset).tobytes() == values.astype(NUMPY[dtype]).tobytes()
                assert out.flags.writeable


def test_strings_and_nothing():
    texts = pack_tensor(["a", "bc"])
    out = np.empty(2, object)
    assert unpack_tensor(texts, "string", (2,), out=out) is out
    assert out.tolist() == ["a", "bc"]
    nothing = np.empty((0, 3), np.float32)
    assert unpack_tensor(b"", "float32", (0, 3), out=nothing) is nothing


@pytest.mark.parametrize(
    ("out", "words"),
    [
        (np.empty(24, np.int64), "out: expected dtype int32, got int64"),
        (np.empty(24, ">i4"), "out: expected dtype int32, got >i4"),
        (np.empty(25, np.int32), r"out: expected shape \(24,\), got \(25,\)"),
        (np.empty((4, 6), np.int32), r"out: expected shape \(24,\), got \(4, 6\)"),
        (np.broadcast_to(np.int32(0), 24), "read-only"),
    ],
)
def test_arrays_that_do_not_do(out, words):
    with pytest.raises(ValueError, match=words):
        unpack_tensor(pack_tensor(np.arange(24, dtype=np.int32)), "int32", (24,), out=out)


def test_no_array():
    for out in ([0] * 24, bytearray(96)):
        with pytest.raises(TypeError, match="out: expected a NumPy array, got"):
            unpack_tensor(pack_tensor(np.arange(24, dtype=np.int32)), "int32", (24,), out=out)


def test_an_error_is_the_same():
    data = reference.pack_tensor_value("ints", [1] * 300 + [200] + [1] * 300)
    out = np.empty(601, np.int8)
    for options in ({}, {"out": out}):
        with pytest.raises(FormatError, match="^element 300: expected -128 to 127, got 200 "):
            unpack_tensor(data, "int8", (601,), **options)


def test_a_part_of_the_source():
    """Unpacking over its own bytes would give something else."""
    memory = np.zeros(4096, np.uint8)
    with pytest.raises(ValueError, match="^out: expected memory of its own, got a part of the buffer"):
        _codec.unpack_bits(_codec.Buffer(memory), 0, 2000, 4, memory[999:2999])
    _codec.unpack_bits(_codec.Buffer(memory), 0, 2000, 4, memory[1000:3000])
    with pytest.raises(ValueError, match="^out: expected memory of its own, got a part of the buffer"):
        _codec.varint_decode(_codec.Buffer(memory), 0, 100, memory[96:496], 4, 0, 9)
    _codec.varint_decode(_codec.Buffer(memory), 0, 100, memory[100:500], 4, 0, 9)


def test_immediates_of_a_model():
    with milblob.open(DATA / "immediates" / "model.mlmodel", constants=True) as model:
        for tensor in model.values():
            if tensor.mil_dtype.name != "STRING":
                for out in outs(np.empty(tensor.shape, tensor.dtype)):
                    assert tensor.read(out=out) is out
                    assert out.tobytes() == tensor.read().tobytes()


def test_int4_keeps_its_nibbles():
    values = np.arange(-8, 8, dtype=np.int8).astype(ml_dtypes.int4)
    out = np.empty(16, ml_dtypes.int4)
    data = reference.pack_tensor_value("ints", range(-8, 8))
    assert unpack_tensor(data, "int4", (16,), out=out).view(np.uint8).max() == 15
    assert out.astype(np.int8).tolist() == values.astype(np.int8).tolist()


def test_read_only_array_raises_an_error_of_milblob():
    tensor = milblob.open(DATA / "quant_int8" / "model.mlpackage")["first_weight_quantized"]
    out = np.zeros(tensor.shape, tensor.dtype)
    out.flags.writeable = False
    with pytest.raises(ValueError, match=r"^out: expected a writable array, got a read-only one"):
        tensor.read(out=out)


class Own(np.ndarray):
    """Copies in a way of its own, as arrays with units do."""

    def __array_function__(self, *_):
        raise RuntimeError


@pytest.mark.parametrize("kind", [np.matrix, np.ma.MaskedArray, Own])
@pytest.mark.parametrize("order", ["C", "F"])
def test_subclasses(kind, order, monkeypatch):
    """Parts of a matrix are matrices, which `reshape(-1)` leaves two-dimensional: large ones are filled in parts."""
    monkeypatch.setattr(parallel, "PIECE_NBYTES", 1 << 10)
    monkeypatch.setattr(dense, "PIECE_NBYTES", 1 << 10)
    stored = np.arange(12 << 10, dtype=np.int32).reshape(12, -1)
    parts = {
        "quantized_data": ("UINT8", stored.astype(np.uint8)),
        "zero_point": ("UINT8", np.uint8(3)),
        "scale": ("FLOAT32", np.float32(2)),
        "axis": ("INT32", np.int32(0)),
    }
    weight = open_weight(constexpr("affine_dequantize", [("w", "FLOAT32", stored.shape)], parts))
    for read, values in (
        (weight.read, (stored % 256 - 3) * np.float32(2)),
        (partial(unpack_tensor, pack_tensor(stored), "int32", stored.shape), stored),
        (
            partial(unpack_tensor, pack_tensor(stored % 8, "uint3"), "uint3", stored.shape),
            (stored % 8).astype(np.uint8),
        ),
    ):
        out = np.zeros(stored.shape, read().dtype, order).view(kind)
        assert read(out=out) is out
        np.testing.assert_array_equal(out.view(np.ndarray), values)


@pytest.mark.parametrize("is_hard", [False, True])
def test_masked_elements_hide_the_values(is_hard):
    out = np.ma.MaskedArray(np.zeros(24, np.int32), np.arange(24) == 5, hard_mask=is_hard)
    with pytest.raises(ValueError, match=r"^out: expected an array without masked elements, which hide the values"):
        unpack_tensor(pack_tensor(np.arange(24, dtype=np.int32)), "int32", (24,), out=out)
    assert not out.data.any()


OVERLAPPING = [((40,), (0,)), ((40,), (2,)), ((40,), (-3,)), ((5, 8), (0, 4)), ((5, 8), (16, 4)), ((5, 8), (4, 4)),
               ((2, 4, 5), (4, 40, 4)), ((2, 20), (-4, 4))]  # fmt: skip
APART = [((40,), (4,)), ((40,), (12,)), ((40,), (7,)), ((5, 8), (4, 20)), ((5, 8), (36, 4)), ((1, 40), (0, 4)),
         ((40, 1, 1), (8, 0, 2)), ((2, 4, 5), (4, 40, 8))]  # fmt: skip


@pytest.mark.parametrize(("shape", "strides"), OVERLAPPING + APART)
def test_elements_that_share_memory(shape, strides):
    """Each would be written over by another, and the array would hold something else than the values."""
    values = np.arange(40, dtype=np.float32).reshape(shape)
    negative = [min(stride, 0) * (size - 1) for stride, size in zip(strides, shape, strict=True)]
    memory = np.zeros(4096, np.uint8)
    out = np.ndarray(shape, np.float32, memory, -sum(negative), strides)
    taken = [sum(i * s for i, s in zip(index, strides, strict=True)) for index in np.ndindex(*shape)]
    assert ((shape, strides) in OVERLAPPING) == (min(np.diff(sorted(taken))) < 4)
    if (shape, strides) in APART:
        assert unpack_tensor(pack_tensor(values), "float32", shape, out=out) is out
        assert out.tobytes() == values.tobytes()
        return
    with pytest.raises(ValueError, match=r"^out: expected memory of its own for each element, got strides \("):
        unpack_tensor(pack_tensor(values), "float32", shape, out=out)
    assert not memory.any()


def test_elements_that_share_memory_are_refused_everywhere(tmp_path):
    path = tmp_path / "w.bin"
    (offset,) = milblob.write_weights({"w": np.arange(40, dtype=np.float32)}, path).values()
    packed = tmp_path / "p.bin"
    milblob.write_weights({"w": np.arange(40) % 16}, packed, dtypes={"w": "uint4"})
    with BlobReader(path) as blobs, milblob.open(path) as model, milblob.open(packed) as nibbles:
        compressed = milblob.open(DATA / "quant_int8" / "model.mlpackage")["first_weight_quantized"]
        for read, dtype, shape in (
            (partial(blobs.read, offset), np.float32, (40,)),
            (model["#0"].read, np.float32, (40,)),
            (nibbles["#0"].read, nibbles["#0"].dtype, (40,)),
            (compressed.read, compressed.dtype, compressed.shape),
        ):
            out = np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, [0] * len(shape), writeable=True)
            with pytest.raises(ValueError, match="^out: expected memory of its own for each element, got strides"):
                read(out=out)


def test_a_part_of_the_model_that_is_read():
    """A weight that is computed from parts in a caller's memory, into that memory, is what it is elsewhere."""
    stored = np.arange(64, dtype=np.uint8).reshape(4, 16)
    parts = {
        "quantized_data": ("UINT8", stored),
        "zero_point": ("UINT8", np.uint8(3)),
        "scale": ("FLOAT32", np.float32(2)),
        "axis": ("INT32", np.int32(0)),
    }
    weight = constexpr("affine_dequantize", [("w", "FLOAT32", (4, 16))], parts)
    data = model(program(weight, const(value("UINT8", np.zeros(400, np.uint8)), "room")))
    for at in range(0, len(data) - 259, 4):
        memory = np.zeros(len(data) // 4 + 1, np.float32).view(np.uint8)[: len(data)]
        memory[:] = np.frombuffer(data, np.uint8)
        out = memory[at : at + 256].view(np.float32).reshape(4, 16)
        assert milblob.open(memory)["w"].read(out=out) is out
        np.testing.assert_array_equal(out, (stored.astype(np.float32) - 3) * 2)


@pytest.mark.parametrize("step", [1, -1, 2, -2, 3])
def test_out_among_the_bytes_of_the_weight_itself(tmp_path, step):
    values = np.arange(48, dtype="<f2")
    with milblob.BlobWriter(tmp_path / "w.bin") as writer:
        writer.write(values)
    for offset in range(129):  # the values begin at byte 128
        data = bytearray((tmp_path / "w.bin").read_bytes()) + bytearray(300)
        out = np.ndarray(48 * abs(step), values.dtype, data, offset)[::step]
        with milblob.open(data) as model:
            (tensor,) = model.values()
            tensor.read(out=out)
            np.testing.assert_array_equal(out, values, str(offset))
