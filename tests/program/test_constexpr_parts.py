"""Parts of compressed weights that do not fit each other, and combinations that coremltools does not make."""

import ml_dtypes
import numpy as np
import pytest

import milblob
from constexpr_bytes import code, constexpr, open_weight, sub_byte, value, weight
from dtype_values import NUMPY
from hostile_bytes import blob_value, const, field
from milblob.program.scan import MAX_CHAIN

F16, F32, I8, U8 = "<f2", "<f4", np.int8, np.uint8


def array(dtype, *shape):
    """(dtype, elements that are all legal) as a part."""
    numpy = U8 if NUMPY[dtype] in (ml_dtypes.int4, ml_dtypes.uint4, ml_dtypes.uint2, ml_dtypes.uint1) else NUMPY[dtype]
    return dtype, np.ones(shape, numpy)


def bits(*values):
    return "UINT1", np.array(values, U8)


def one(value, dtype="INT32"):
    return dtype, np.array(value, NUMPY[dtype])


def without(parts, key):
    return {name: part for name, part in parts.items() if name != key}


BLOCK = {"data": array("INT8", 4, 6), "scale": array("FLOAT16", 4, 2), "offset": array("INT8", 4, 2)}
AFFINE = {
    "quantized_data": array("INT8", 4, 6),
    "scale": array("FLOAT16", 4),
    "zero_point": array("INT8", 4),
    "axis": one(0),
}
LUT = {"indices": array("UINT2", 4, 6), "lut": array("FLOAT16", 2, 1, 4, 1)}
VECTORS = {"indices": array("UINT2", 4, 6), "lut": array("FLOAT16", 2, 1, 4, 3), "vector_axis": one(1)}
OLD_LUT = {"indices": array("UINT8", 6), "lut": array("FLOAT16", 4), "shape": ("UINT32", np.array([4, 6], "<u4"))}
SPARSE = {"nonzero_data": array("FLOAT16", 3), "mask": bits([1, 0, 1], [0, 1, 0])}
OLD_SPARSE = {
    "nonzero_data": array("FLOAT16", 3),
    "mask": ("UINT8", np.array([0b010101], U8)),
    "shape": ("UINT32", np.array([2, 3], "<u4")),
}
CAST = {"source_val": array("FLOAT16", 4, 6)}
LUT_TO_SPARSE = {
    "indices_mask": bits([1, 0, 1], [0, 1, 0]),
    "indices_nonzero_data": array("UINT2", 3),
    "lut": array("FLOAT16", 1, 1, 4, 1),
}
SPARSE_BLOCK = {
    "data_mask": bits([1, 0, 1], [0, 1, 0]),
    "nonzero_data": array("INT8", 3),
    "scale": array("FLOAT16", 2, 1),
}

GOOD = {
    "blockwise_shift_scale": (BLOCK, (4, 6)), "affine_dequantize": (AFFINE, (4, 6)), "lut_to_dense": (LUT, (4, 6)), "vectors": (VECTORS, (4, 18)),
    "old lut": (OLD_LUT, (4, 6)), "sparse_to_dense": (SPARSE, (2, 3)), "old sparse": (OLD_SPARSE, (2, 3)), "cast": (CAST, (4, 6)),
}  # fmt: skip
KINDS = {"vectors": "lut_to_dense", "old lut": "lut_to_dense", "old sparse": "sparse_to_dense"}

# (case of GOOD, what is changed about its parts, words: part, expected, got)
BAD = [
    ("blockwise_shift_scale", {"scale": array("FLOAT16", 4, 4)}, r"scale .*: expected sizes that divide \(4, 6\), got \(4, 4\)"),
    ("blockwise_shift_scale", {"scale": array("FLOAT16", 4, 0)}, r"scale .*: expected sizes that divide"),
    ("blockwise_shift_scale", {"scale": array("FLOAT16", 8, 2)}, r"scale .*: expected sizes that divide"),
    ("blockwise_shift_scale", {"scale": array("FLOAT16", 4)}, r"scale .*: expected as many dimensions as \(4, 6\), 1 or more, got shape \(4,\)"),
    ("blockwise_shift_scale", {"scale": array("BFLOAT16", 4, 2)}, "scale .*: expected float16 or float32, got bfloat16"),
    ("blockwise_shift_scale", {"scale": array("INT8", 4, 2)}, "scale .*: expected float16 or float32, got int8"),
    ("blockwise_shift_scale", {"offset": array("INT8", 4, 1)}, r"offset .*: expected the shape of scale, \(4, 2\), got \(4, 1\)"),
    ("blockwise_shift_scale", {"offset": array("UINT8", 4, 2)}, "offset .*: expected int8, float16 or float32, got uint8"),
    ("blockwise_shift_scale", {"data": array("INT16", 4, 6)}, "data .*: expected uint1, .* or float32, got int16"),
    ("blockwise_shift_scale", {"data": array("BFLOAT16", 4, 6)}, "data .*: expected uint1, .* or float32, got bfloat16"),
    ("blockwise_shift_scale", {"data": array("INT8"), "scale": array("FLOAT16"), "offset": array("INT8")}, r"scale .*1 or more, got shape \(\)"),
    ("blockwise_shift_scale", {"data": array("INT8", 4, 12)}, r"output .*: expected float16 \(4, 12\), which its parts make, got float16 \(4, 6\)"),
    ("blockwise_shift_scale", {"scale": array("FLOAT32", 4, 2)}, r"output .*: expected float32 \(4, 6\)"),
    ("blockwise_shift_scale", {"bias": array("INT8", 4, 2)}, "bias .*: expected no part but data, scale, offset, got one"),
    ("affine_dequantize", {"axis": one(2)}, "axis .*: expected -2 to 1, got 2"),
    ("affine_dequantize", {"axis": one(-3)}, "axis .*: expected -2 to 1, got -3"),
    ("affine_dequantize", {"axis": array("INT32", 2)}, r"axis .*: expected one integer, got int32 \(2,\)"),
    ("affine_dequantize", {"axis": array("FLOAT32")}, r"axis .*: expected one integer, got float32 \(\)"),
    ("affine_dequantize", {"axis": one(1)}, r"scale .*: expected a number, or 6 along axis 1, got shape \(4,\)"),
    ("affine_dequantize", {"zero_point": array("INT8", 1)}, "zero_point .*: expected a number, or 4 along axis 0"),
    ("affine_dequantize", {"scale": array("FLOAT16", 4, 1)}, "scale .*: expected a number, or 4 along axis 0"),
    ("affine_dequantize", {"zero_point": array("FLOAT16", 4)}, "zero_point .*: expected int8, uint8 or float32, got float16"),
    ("affine_dequantize", {"quantized_data": array("INT4", 4, 6)}, "quantized_data .*: expected int8 or uint8, got int4"),
    ("affine_dequantize", {"quantized_data": array("INT8"), "scale": array("FLOAT16"), "zero_point": array("INT8")}, "quantized_data .*one dimension or more"),
    ("lut_to_dense", {"lut": array("FLOAT16", 1, 1, 3, 1)}, "lut .*: expected 4 entries for indices of 2 bits, got 3"),
    ("lut_to_dense", {"lut": array("FLOAT16", 1, 1, 8, 1)}, "lut .*: expected 4 entries for indices of 2 bits, got 8"),
    ("lut_to_dense", {"indices": array("UINT8", 4, 6)}, "lut .*: expected 256 entries for indices of 8 bits, got 4"),
    ("lut_to_dense", {"indices": array("INT4", 4, 6)}, "indices .*: expected uint1, .* or uint8, got int4"),
    ("lut_to_dense", {"indices": array("UINT16", 4, 6)}, "indices .*: expected uint1, .* or uint8, got uint16"),
    ("lut_to_dense", {"lut": array("FLOAT16", 3, 1, 4, 1)}, r"lut .*: expected first sizes that divide \(4, 6\), got shape \(3, 1, 4, 1\)"),
    ("lut_to_dense", {"lut": array("FLOAT16", 0, 1, 4, 1)}, "lut .*: expected first sizes that divide"),
    ("lut_to_dense", {"lut": array("FLOAT16", 4, 1)}, "lut .*: expected two dimensions more than those of indices"),
    ("lut_to_dense", {"lut": array("FLOAT16", 1, 1, 4, 0)}, "lut .*: expected vectors of one element or more, got 0"),
    ("lut_to_dense", {"lut": array("BOOL", 1, 1, 4, 1)}, "lut .*: expected numbers, got bool"),
    ("lut_to_dense", {"lut": array("FLOAT16", 1, 1, 4, 2)}, "vector_axis .*: expected one for vectors of 2 elements, got none"),
    ("vectors", {"vector_axis": one(2)}, "vector_axis .*: expected -2 to 1, got 2"),
    ("vectors", {"vector_axis": one(0)}, r"output .*: expected float16 \(12, 6\), which its parts make, got float16 \(4, 18\)"),
    ("vectors", {"shape": ("UINT32", np.array([4, 6], "<u4"))}, "vector_axis .*: expected none beside shape, got one"),
    ("old lut", {"lut": array("FLOAT16", 5)}, r"lut .*: expected a vector of 2, 4, 8, 16, 64 or 256 entries, got \(5,\)"),
    ("old lut", {"lut": array("FLOAT16", 32)}, "lut .*: expected a vector of 2, 4, 8, 16, 64 or 256 entries"),
    ("old lut", {"lut": array("FLOAT16", 1, 1, 4, 1)}, "lut .*: expected a vector of"),
    ("old lut", {"indices": array("UINT8", 5)}, r"indices .*: expected uint8 \(6,\) for 2 bits each of shape \(4, 6\), got uint8 \(5,\)"),
    ("old lut", {"indices": array("UINT4", 6)}, r"indices .*: expected uint8 \(6,\)"),
    ("old lut", {"shape": array("UINT32", 2, 1)}, r"shape .*: expected a vector of integers, got uint32 \(2, 1\)"),
    ("old lut", {"shape": array("FLOAT32", 2)}, "shape .*: expected a vector of integers, got float32"),
    ("old lut", {"shape": ("INT32", np.array([-4, -6], "<i4"))}, r"shape .*: expected sizes of 0 or more, got \(-4, -6\)"),
    ("old lut", {"shape": ("UINT32", np.array([4, 5], "<u4"))}, r"indices .*: expected uint8 \(5,\)"),
    ("old lut", {"shape": ("UINT32", np.array([6, 4], "<u4"))}, r"output .*: expected float16 \(6, 4\)"),
    ("old lut", {"shape": ("UINT32", np.array([1 << 31] * 4, "<u4"))}, r"indices .*: expected uint8 \(5316911983139663491615228241121378304,\)"),
    ("sparse_to_dense", {"mask": bits([1, 0, 1], [0, 1, 1])}, "mask .*: expected 3 set bits, one for each element of nonzero_data, got 4"),
    ("sparse_to_dense", {"mask": bits([0, 0, 0], [0, 1, 1])}, "mask .*: expected 3 set bits, one for each element of nonzero_data, got 2"),
    ("sparse_to_dense", {"mask": array("UINT8", 2, 3)}, r"mask .*: expected uint1, got uint8 \(2, 3\)"),
    ("sparse_to_dense", {"mask": array("BOOL", 2, 3)}, r"mask .*: expected uint1, got bool \(2, 3\)"),
    ("sparse_to_dense", {"nonzero_data": array("FLOAT16", 3, 1)}, r"nonzero_data .*: expected a vector, got float16 \(3, 1\)"),
    ("old sparse", {"mask": ("UINT8", np.array([0b110101], U8))}, "mask .*: expected 3 set bits, .* got 4"),
    ("old sparse", {"mask": array("UINT8", 2)}, r"mask .*: expected uint8 \(1,\) for 1 bits each of shape \(2, 3\), got uint8 \(2,\)"),
    ("old sparse", {"mask": array("UINT1", 1)}, r"mask .*: expected uint8 \(1,\)"),
    ("cast", {"source_val": array("FLOAT32", 4, 6)}, "source_val .*: expected float16, got float32"),
]  # fmt: skip


def test_good_parts_are_good():
    """The cases that are spoilt below are sound themselves."""
    for case, (parts, shape) in GOOD.items():
        dtype = "FLOAT32" if case == "cast" else "FLOAT16"
        assert weight(KINDS.get(case, case), dtype, shape, **parts).read().shape == shape
    for kind, parts in (("lut_to_sparse", LUT_TO_SPARSE), ("sparse_blockwise_shift_scale", SPARSE_BLOCK)):
        assert weight(kind, "FLOAT16", (2, 3), **parts, count=3).read().shape == (2, 3)


@pytest.mark.sample(40)
@pytest.mark.parametrize(("case", "change", "words"), BAD, ids=lambda part: part if isinstance(part, str) else "")
def test_bad_parts(case, change, words):
    parts, shape = GOOD[case]
    kind = KINDS.get(case, case)
    tensor = weight(kind, "FLOAT32" if case == "cast" else "FLOAT16", shape, **{**parts, **change})
    part, _, rest = words.partition(" .*: ")
    expected = f"^{part} of constexpr_{kind}: {rest}" if rest else words
    for read in (tensor.read, lambda: tensor[0]):
        with pytest.raises(milblob.FormatError, match=expected) as error:
            read()
        assert error.value.where == tensor.where
    assert isinstance(tensor.compression.to_dict(), dict)
    tensor.nbytes, tensor.parts, repr(tensor)


@pytest.mark.parametrize(
    ("case", "key"),
    [(case, key) for case in GOOD for key in GOOD[case][0] if key not in ("axis", "shape", "vector_axis")],
)
def test_a_part_that_names_a_string(case, key):
    parts, shape = GOOD[case]
    kind = KINDS.get(case, case)
    text = const(value("STRING", np.array("text")), "text")
    dtype = "FLOAT32" if case == "cast" else "FLOAT16"
    tensor = open_weight(text, constexpr(kind, [("w", dtype, shape)], {**parts, key: "text"}))
    with pytest.raises(milblob.FormatError, match=rf"^{key} of constexpr_{kind}: expected numbers, got string \(\)"):
        tensor.read()


@pytest.mark.parametrize("case", GOOD)
def test_missing_parts(case):
    parts, shape = GOOD[case]
    kind = KINDS.get(case, case)
    for key in parts:
        if key in ("offset", "shape", "vector_axis"):
            continue
        tensor = weight(kind, "FLOAT16", shape, **without(parts, key))
        with pytest.raises(milblob.FormatError, match=f"^{key} of constexpr_{kind}: expected a tensor, got none"):
            tensor.read()
        assert isinstance(tensor.compression.to_dict(), dict)


@pytest.mark.parametrize("kind", ["lut_to_sparse", "sparse_blockwise_shift_scale"])
def test_missing_mask_beside_a_mask_of_its_own(kind):
    """The fuzz harness of Python found it: what was compared with the mask was not there."""
    outputs = [("mask", "UINT1", (2, 3)), ("values", "FLOAT16", (3,))]
    mask = blob_value(code("UINT1"), (2, 3), "@model_path/weights/weight.bin", 64)
    argument = field(1, "mask") + field(2, field(1, field(2, mask)))
    outer = constexpr("sparse_to_dense", [("w", "FLOAT16", (2, 3))], {"nonzero_data": "values"}) + field(2, argument)
    tensor = open_weight(constexpr(kind, outputs, {}), outer)
    with pytest.raises(milblob.FormatError, match=f"_mask of constexpr_{kind}: expected a tensor, got none"):
        tensor.read()


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("lut_to_sparse", {"indices_mask": bits([1, 1, 1], [1, 1, 1])}, "indices_mask of .*: expected 3 set bits, one for each element of indices_nonzero_data, got 6"),
        ("lut_to_sparse", {"lut": array("FLOAT16", 1, 1, 5, 1)}, "lut of constexpr_lut_to_sparse: expected 4 entries"),
        ("lut_to_sparse", {"lut": array("FLOAT32", 1, 1, 4, 1)}, r"output of constexpr_lut_to_sparse: expected float32 \(3,\)"),
        ("sparse_blockwise_shift_scale", {"scale": array("FLOAT16", 2, 2)}, r"scale of constexpr_sparse_blockwise_shift_scale: expected sizes that divide \(2, 3\)"),
        ("sparse_blockwise_shift_scale", {"nonzero_data": array("INT8", 2)}, "data_mask of .*: expected 2 set bits"),
        ("sparse_blockwise_shift_scale", {"data_mask": bits(1, 1, 1)}, "scale of .*: expected as many dimensions as"),
    ],
)  # fmt: skip
def test_bad_parts_inside_a_chain(kind, change, words):
    """The message names the inner operation, and where it is."""
    parts = {"lut_to_sparse": LUT_TO_SPARSE, "sparse_blockwise_shift_scale": SPARSE_BLOCK}[kind]
    tensor = weight(kind, "FLOAT16", (2, 3), **{**parts, **change}, count=3)
    with pytest.raises(milblob.FormatError, match=f"^{words}") as error:
        tensor.read()
    assert error.value.where == "main.block['CoreML7'].op[0] 'mask'" or error.value.where.endswith("op[0] 'values'")


def test_declared_output_of_a_chain():
    """The second output of an inner operation must be what its parts make, although only the dense end is computed."""
    first = constexpr(
        "sparse_blockwise_shift_scale", [("mask", "UINT1", (2, 3)), ("values", "FLOAT16", (4,))], SPARSE_BLOCK
    )
    last = constexpr("sparse_to_dense", [("w", "FLOAT16", (2, 3))], {"nonzero_data": "values", "mask": "mask"})
    with pytest.raises(milblob.FormatError, match=r"output of constexpr_sparse_blockwise.*: expected float16 \(3,\)"):
        open_weight(first, last).read()


def test_unknown_operation():
    tensor = weight("unfold", "FLOAT16", (4, 6), data=array("INT8", 4, 6))
    with pytest.raises(milblob.UnsupportedError, match="^operation: expected one that is known, got constexpr_unfold"):
        tensor.read()
    assert tensor.compression.scheme == "unfold"


def test_long_chains():
    """Chains are bounded; a part that is used twice is computed once, so shared parts cost no more than their number."""

    def chain(count):
        ops = [
            constexpr(
                "blockwise_shift_scale",
                [("w0", "FLOAT16", (2, 2))],
                {"data": array("INT8", 2, 2), "scale": array("FLOAT16", 2, 2)},
            )
        ]
        for i in range(1, count):
            parts = {"data": f"w{i - 1}", "scale": f"w{i - 1}"}
            ops.append(constexpr("blockwise_shift_scale", [(f"w{i}", "FLOAT16", (2, 2))], parts))
        return open_weight(*ops, name=f"w{count - 1}")

    assert (chain(MAX_CHAIN).read() == 1).all()
    with pytest.raises(
        milblob.UnsupportedError, match="constexpr operations: expected a chain of at most 32, got more"
    ):
        chain(MAX_CHAIN + 1).read()


def test_a_result_too_large_to_hold():
    """A vast result of small parts is refused before anything is computed; one that is merely large is not."""
    lut = np.zeros((1, 2, 1 << 16), U8)
    indices = ("UINT1", np.zeros(1 << 12, U8))
    tensor = weight("lut_to_dense", "UINT8", (1 << 28,), indices=indices, lut=("UINT8", lut), vector_axis=one(0))
    assert tensor.shape == (1 << 28,)
    assert tensor[(1 << 28) - 3 :].tobytes() == bytes(3)
    lut = np.zeros((1, 2, 1 << 20), U8)
    tensor = weight("lut_to_dense", "UINT8", (1 << 32,), indices=indices, lut=("UINT8", lut), vector_axis=one(0))
    assert len(tensor[:5]) == 5  # 2048 times what is stored
    indices = ("UINT1", np.zeros(1 << 16, U8))
    tensor = weight("lut_to_dense", "UINT8", (1 << 36,), indices=indices, lut=("UINT8", lut), vector_axis=one(0))
    with pytest.raises(milblob.FormatError, match=r"lut .*expected a result of at most 4096 times .* got 68719476736"):
        tensor[:5]


# ------------------------------------------------------------------------------ what coremltools does not make: slow oracle


def scaled(data, scale, offset):
    """scale * (data - offset), in the dtype of scale, NumPy scalar by scalar; blocks by integer division."""
    out = np.zeros(data.shape, scale.dtype)
    for at in np.ndindex(data.shape):
        block = tuple(i * n // size for i, n, size in zip(at, scale.shape, data.shape, strict=True))
        value = scale.dtype.type(data[at])
        if offset is not None:
            value = value - offset[block]
        out[at] = scale[block] * value
    return out


@pytest.mark.parametrize("dtype", ["UINT1", "UINT2", "UINT3", "UINT6"])
@pytest.mark.parametrize("kind", [F16, F32])
def test_widths_that_coremltools_does_not_scale(tier, dtype, kind):
    rng = np.random.default_rng(9)
    data, scale, offset = (
        sub_byte(rng, dtype, (6, 70)),
        rng.standard_normal((6, 10)).astype(kind),
        sub_byte(rng, dtype, (6, 10)),
    )
    name = {F16: "FLOAT16", F32: "FLOAT32"}[kind]
    tensor = weight(
        "blockwise_shift_scale", name, (6, 70), data=(dtype, data), scale=(name, scale), offset=(dtype, offset)
    )
    assert tensor.read().tobytes() == scaled(data, scale, offset.astype(I8)).tobytes()


@pytest.mark.parametrize("dtype", ["BFLOAT16", "INT4", "UINT3", "FLOAT8E5M2", "FLOAT64", "INT32"])
@pytest.mark.parametrize("vector", [1, 2])
def test_palettes_of_other_dtypes(tier, dtype, vector):
    rng = np.random.default_rng(10)
    indices = sub_byte(rng, "UINT3", (6, 35))
    if dtype in ("INT4", "UINT3"):
        lut = sub_byte(rng, dtype, (2, 5, 8, vector))
    else:
        lut = rng.integers(-100, 100, (2, 5, 8, vector)).astype(NUMPY[dtype])
    tensor = weight(
        "lut_to_dense", dtype, (6 * vector, 35), indices=("UINT3", indices), lut=(dtype, lut), vector_axis=one(0)
    )
    expected = np.zeros((6 * vector, 35), lut.dtype)
    for i, j in np.ndindex(indices.shape):
        expected[i * vector : (i + 1) * vector, j] = lut[i // 3, j // 7, indices[i, j]]
    assert tensor.dtype == np.dtype(NUMPY[dtype])
    assert tensor.read().tobytes() == expected.tobytes()


@pytest.mark.parametrize("dtype", ["BFLOAT16", "INT4", "UINT3", "FLOAT64", "BOOL", "INT32"])
def test_sparse_tensors_of_other_dtypes(tier, dtype):
    rng = np.random.default_rng(11)
    mask = rng.random((7, 61)) < 0.5
    count = int(mask.sum())
    nonzero = (
        sub_byte(rng, dtype, count) if dtype in ("INT4", "UINT3") else rng.integers(0, 2, count).astype(NUMPY[dtype])
    )
    tensor = weight("sparse_to_dense", dtype, (7, 61), nonzero_data=(dtype, nonzero), mask=("UINT1", mask.astype(U8)))
    expected = np.zeros((7, 61), nonzero.dtype)
    expected[mask] = nonzero
    assert tensor.read().tobytes() == expected.tobytes()


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
def test_empty_and_small(count):
    data = np.zeros((count, 3), I8)
    tensor = weight(
        "blockwise_shift_scale", "FLOAT16", (count, 3), data=("INT8", data), scale=("FLOAT16", np.ones((1, 3), F16))
    )
    assert tensor.read().shape == (count, 3) == np.asarray(tensor)[:].shape
    none = ("FLOAT16", np.zeros(0, F16))
    tensor = weight("sparse_to_dense", "FLOAT16", (count,), nonzero_data=none, mask=("UINT1", np.zeros(count, U8)))
    assert tensor.read().tobytes() == bytes(2 * count)


def test_padding_bits_of_a_mask_do_not_matter():
    """coremltools refuses a mask with bits set past the shape; their meaning is nothing, so they are not looked at."""
    parts = {**OLD_SPARSE, "mask": ("UINT8", np.array([0b11010101], U8))}
    assert weight("sparse_to_dense", "FLOAT16", (2, 3), **parts).read().tolist() == [[1, 0, 1], [0, 1, 0]]


def test_special_numbers(tier):
    """Infinite, not-a-number and huge scales and offsets: as NumPy computes them, whatever kernel is used."""
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 6e-8, 65504.0, -65504.0, 1.0]
    for kind, name in ((F16, "FLOAT16"), (F32, "FLOAT32")):
        scale = np.repeat(np.array(special, kind), len(special)).reshape(-1, 1)
        offset = np.tile(np.array(special, kind), len(special)).reshape(-1, 1)
        data = np.tile(np.arange(-128, 128).astype(I8), (scale.shape[0], 1))
        for offsets in (None, (name, offset), ("FLOAT32", offset.astype(F32))):
            parts = {"data": ("INT8", data), "scale": (name, scale)} | ({"offset": offsets} if offsets else {})
            got = weight("blockwise_shift_scale", name, data.shape, **parts).read()
            with np.errstate(all="ignore"):
                shifted = data.astype(kind) if offsets is None else data.astype(kind) - offsets[1]
                expected = (scale * shifted).astype(kind)
            assert np.array_equal(np.isnan(got), np.isnan(expected))
            number = ~np.isnan(expected)
            assert got[number].tobytes() == expected[number].tobytes()
