"""Dense values of compressed weights: every case that coremltools made (tests/data/make_constexpr.py), to the bit."""

import concurrent.futures
import json
import shutil

import numpy as np
import pytest

import milblob
from cases import DENSE_CASES, dense_rows, model_directory
from constexpr_bytes import weight
from dtype_values import assert_same
from milblob.values import dense
from paths import DATA
from thorough import sized


def weights():
    return [(case, name) for case in DENSE_CASES for name in dense_rows(case)]


def test_there_are_many_cases():
    assert len(weights()) > 280
    operations = {row["op"] for case in DENSE_CASES for row, _ in dense_rows(case).values()}
    assert {"constexpr_affine_dequantize", "constexpr_blockwise_shift_scale", "constexpr_cast", "constexpr_lut_to_dense",
            "constexpr_sparse_to_dense"} == operations  # fmt: skip


@pytest.mark.parametrize("case", DENSE_CASES)
def test_every_weight(case, tier):
    expected = dense_rows(case)
    arrays = milblob.load(DATA / case / "model.mlpackage")
    assert set(expected) <= set(arrays)
    for name, (row, array) in expected.items():
        assert_same(arrays[name], array, row["dtype"])


@pytest.mark.parametrize("case", DENSE_CASES)
def test_every_weight_by_parts(case):
    """What an operation of a chain yields is a part, which can be read by itself: so are both outputs of those with two."""
    with milblob.open(DATA / case / "model.mlpackage") as model:
        for name, (_, array) in dense_rows(case).items():
            tensor = model[name]
            parts = tensor.parts
            if tensor.op == "constexpr_sparse_to_dense" and "shape" not in parts:
                dense = np.zeros(array.shape, array.dtype)
                dense[parts["mask"].read().view(np.uint8) != 0] = parts["nonzero_data"].read()
                assert dense.tobytes() == array.tobytes()
            assert all(part.read().shape == part.shape for part in parts.values())


# -------------------------------------------------------------------------------------------------------------- slices

KEYS = [
    ..., (), 0, -1, slice(None), slice(1, 3), slice(2, None), slice(None, -1), slice(None, None, 2), slice(3, 0, -1), slice(None, None, -2),
    slice(2, 2), slice(5, 1), slice(-100, 100), (slice(1, 3), 0), (0, slice(1, 3)), (-1, -1), (1, slice(None, None, -2)), (0, ...), (..., 0),
    (slice(1, 4), ..., slice(0, 2)), None, (None, 1), (1, None), (0, None, slice(1, 2)), [1, 0], (slice(1, 3), [1, 0]), (0, [1, 0, 1]),
    (slice(0, 2), np.array([0, 1])), np.int64(1), (np.uint8(1), slice(0, 2)), (0, 1, 0), (0, 1, slice(1, None)), (1, slice(None), 0),
]  # fmt: skip


@pytest.mark.parametrize("case", DENSE_CASES)
def test_slices(case):
    """t[key] is t.read()[key], whatever part of the array is computed for it."""
    checked = 0
    with milblob.open(DATA / case / "model.mlpackage") as model:
        for name, (_, array) in list(dense_rows(case).items())[:: sized(2, 1) if case.startswith("matrix") else 4]:
            tensor = model[name]
            for key in KEYS:
                try:
                    expected = array[key]
                except IndexError:
                    with pytest.raises(IndexError):
                        tensor[key]
                    continue
                got = tensor[key]
                assert (type(got), np.shape(got)) == (type(expected), np.shape(expected)), (name, key)
                assert np.asarray(got).tobytes() == np.asarray(expected).tobytes(), (name, key)
                checked += 1
            for row, expected in zip(tensor, array, strict=True):
                assert row.tobytes() == expected.tobytes()
            with pytest.raises(IndexError, match=rf"^index {array.shape[0]} is out of bounds for axis 0 with size"):
                tensor[array.shape[0]]
    assert checked > 100


def filled(monkeypatch):
    """A list to which every computed range is added, as (begin, count)."""
    ranges = []
    for kind in (dense.Scaled, dense.LookedUp, dense.Sparse):

        def fill(self, out, begin, count, own=kind.fill):
            ranges.append((begin, count))
            own(self, out, begin, count)

        monkeypatch.setattr(kind, "fill", fill)
    return ranges


def test_slices_compute_what_they_hold(monkeypatch):
    ranges = filled(monkeypatch)
    with milblob.open(DATA / "matrix_blockwise" / "model.mlpackage") as model:
        tensor = model["block_layout_7"]  # 4 x 6 x 2 x 3
        for key, expected in ((1, (36, 36)), (slice(1, 3), (36, 72)), ((2, 5), (102, 6)), ((3, slice(1, 3), 0), (114, 12)),
                              ((0, 1, 1, 2), (11, 1)), (slice(0, 4, 3), (0, 144))):  # fmt: skip
            ranges.clear()
            tensor[key]
            assert ranges == [expected], key
        ranges.clear()
        tensor[slice(2, 2)]
        assert ranges == []


def test_slices_across_vectors(monkeypatch):
    """A range that cuts vectors is computed from whole ones."""
    ranges = filled(monkeypatch)
    with milblob.open(DATA / "matrix_palettes" / "model.mlpackage") as model:
        tensor = model["vectors_2d_of3_axis0"]  # 18 x 4, in vectors of 3 x 1
        array = dense_rows("matrix_palettes")["vectors_2d_of3_axis0"][1]
        assert tensor[4:8].tobytes() == array[4:8].tobytes()
        assert ranges == [(16, 16), (12, 24)]


# ----------------------------------------------------------------------------------------------------------------- out


def test_out():
    for case in DENSE_CASES[:3]:
        with milblob.open(DATA / case / "model.mlpackage") as model:
            for name, (row, array) in dense_rows(case).items():
                out = np.full(array.shape, 7, array.dtype)
                assert model[name].read(out=out) is out
                assert_same(out, array, row["dtype"])
                strided = np.full((*array.shape, 2), 7, array.dtype)[..., 0]
                assert model[name].read(out=strided) is strided
                assert np.array_equal(strided.view(strided.dtype), array, equal_nan=True)


def test_out_that_does_not_fit():
    with milblob.open(DATA / "matrix_blockwise" / "model.mlpackage") as model:
        tensor = model["block_int8_fp16_none"]
        with pytest.raises(ValueError, match="^out: expected dtype float16, got float32$"):
            tensor.read(out=np.zeros(tensor.shape, np.float32))
        with pytest.raises(ValueError, match=r"^out: expected shape "):
            tensor.read(out=np.zeros((1, *tensor.shape), np.float16))
        with pytest.raises(TypeError, match="^out: expected a NumPy array, got list"):
            tensor.read(out=[])
        read_only = np.zeros(tensor.shape, np.float16)
        read_only.flags.writeable = False
        with pytest.raises(ValueError, match="read-only"):
            tensor.read(out=read_only)
    with pytest.raises(ValueError, match="closed"):
        tensor.read()
    with pytest.raises(ValueError, match="closed"):
        tensor[0]


# ------------------------------------------------------------------------------------------------------------- threads


def large_weights(rng):
    """(tensor, what it must be) with results of several pieces, each scheme once."""
    shape = (1500, 3001)
    data = rng.integers(-128, 128, shape).astype(np.int8)
    scale = rng.standard_normal((1500, 1)).astype("<f2")
    yield (
        weight("blockwise_shift_scale", "FLOAT16", shape, data=("INT8", data), scale=("FLOAT16", scale)),
        scale * data.astype("<f2"),
    )
    indices = data.view(np.uint8)
    lut = rng.standard_normal((256, 2)).astype("<f2")
    parts = {
        "indices": ("UINT8", indices),
        "lut": ("FLOAT16", lut.reshape(1, 1, 256, 2)),
        "vector_axis": ("INT32", np.array(0, "<i4")),
    }
    yield (
        weight("lut_to_dense", "FLOAT16", (3000, 3001), **parts),
        np.ascontiguousarray(lut[indices].transpose(0, 2, 1)).reshape(3000, 3001),
    )
    mask = rng.random(shape) < 0.3
    nonzero = rng.standard_normal(int(mask.sum())).astype("<f2")
    expected = np.zeros(shape, "<f2")
    expected[mask] = nonzero
    packed = np.packbits(mask.reshape(-1), bitorder="little")
    parts = {
        "nonzero_data": ("FLOAT16", nonzero),
        "mask": ("UINT8", packed),
        "shape": ("UINT32", np.array(shape, "<u4")),
    }
    yield weight("sparse_to_dense", "FLOAT16", shape, True, **parts), expected


def test_large_results(monkeypatch, tier):
    """Pieces by several threads, by one, and inside a pool of the caller's give the same; slices count their own rank."""
    monkeypatch.setenv("MILBLOB_THREADS", "3")
    ranges = filled(monkeypatch)
    for tensor, expected in large_weights(np.random.default_rng(5)):
        ranges.clear()
        assert tensor.read().tobytes() == expected.tobytes()
        assert len(ranges) > 1 and sum(count for _, count in ranges) == expected.size
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            assert pool.submit(tensor.read).result().tobytes() == expected.tobytes()
        assert tensor[1111:1301].tobytes() == expected[1111:1301].tobytes()
        assert tensor[701, 17:2999].tobytes() == expected[701, 17:2999].tobytes()
    monkeypatch.setenv("MILBLOB_THREADS", "1")
    assert tensor.read().tobytes() == expected.tobytes()


# --------------------------------------------------------------------------------------------------------- compression


def facts(case, name):
    with milblob.open(DATA / case / "model.mlpackage") as model:
        compression = model[name].compression
        assert compression.to_dict()["scheme"] == compression.scheme and json.dumps(compression.to_dict())
        return {key: getattr(compression, key) for key, value in compression.to_dict().items() if value is not None}


def test_compression_in_numbers():
    assert facts("matrix_ios16", "lut_4bit_fp16") == {
        "scheme": "lut_to_dense", "operations": ("lut_to_dense",), "nbits": 4, "group_shape": (64,), "vector_size": 1,
        "bits_per_weight": (32 + 32 + 4) * 8 / 64,
    }  # fmt: skip
    found = facts("matrix_blockwise", "block_layout_8")  # 4 x 6 x 2 x 3 with 4 x 3 scales, int4 offsets
    assert (found["block_shape"], found["nbits"]) == ((1, 2, 2, 3), 4)
    assert found["bits_per_weight"] == (72 + 24 + 6) * 8 / 144
    found = facts("matrix_palettes", "vectors_3d_of2_axis1")
    assert (found["vector_size"], found["group_shape"]) == (2, (2, 3, 1))
    found = facts("matrix_chains", "chain_three_sparse")
    assert found["operations"] == ("sparse_to_dense", "sparse_blockwise_shift_scale", "lut_to_sparse")
    assert (found["nbits"], found["block_shape"], found["group_shape"]) == (4, (1, 8), (3, 8))
    array = dense_rows("matrix_chains")["chain_three_sparse"][1]
    with milblob.open(DATA / "matrix_chains" / "model.mlpackage") as model:
        stored = model["chain_three_sparse"].parts["nonzero_data"].shape[0]
    assert found["sparsity"] == 1 - stored / array.size
    found = facts("matrix_chains", "chain_quantized_palette")
    assert "block_shape" not in found  # the palette's scales are no blocks of the weight
    assert found["operations"] == ("lut_to_dense", "blockwise_shift_scale")
    name = next(name for name in dense_rows("matrix_ios16") if name.endswith("3d_axis1_vs"))
    assert facts("matrix_ios16", name)["block_shape"] == (4, 1, 5)
    name = next(name for name in dense_rows("matrix_ios16") if name.startswith("sparse_fp16"))
    assert set(facts("matrix_ios16", name)) == {"scheme", "operations", "bits_per_weight", "sparsity"}
    with milblob.open(DATA / "opset_ios16_fp16" / "model.mlpackage") as model:
        tensor = next(t for t in model.values() if not t.parts)
        assert tensor.compression is None


def test_compression_needs_no_weight_file(tmp_path):
    path = shutil.copytree(DATA / "optimize_ios18" / "model.mlpackage", tmp_path / "m.mlpackage")
    with milblob.open(path) as model:
        before = {name: tensor.compression for name, tensor in model.items()}
    shutil.rmtree(model_directory(path) / "weights")
    with milblob.open(path) as model:
        assert {name: tensor.compression for name, tensor in model.items()} == before
        with pytest.raises(milblob.ResolveError):
            next(t for t in model.values() if t.parts).read()
