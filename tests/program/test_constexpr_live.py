"""Random parts against coremltools' own `decompress()`, where coremltools is installed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from constexpr_bytes import sub_byte, weight
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
from coremltools.converters.mil.mil.ops.defs.iOS16 import constexpr_ops as ios16
from coremltools.converters.mil.mil.ops.defs.iOS18 import compression as ios18

pytestmark = pytest.mark.filterwarnings("ignore:.*(overflow|invalid value) encountered:RuntimeWarning")

NAMES = {"FLOAT16": np.float16, "FLOAT32": np.float32, "INT8": np.int8, "UINT8": np.uint8}
FLOATS = st.sampled_from(["FLOAT16", "FLOAT32"])
SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def blocks(draw):
    """(shape, parameters along each axis): 1 to 4 dimensions, up to some thousand elements."""
    shape, counts = [], []
    for _ in range(draw(st.integers(1, 4))):
        count = draw(st.integers(1, 5))
        counts.append(count)
        shape.append(count * draw(st.sampled_from([1, 1, 2, 3, 8, 33])))
        if math.prod(shape) > 3000:
            shape[-1], counts[-1] = 1, 1
    return tuple(shape), tuple(counts)


def elements(rng, dtype, shape):
    """Random elements: as parts are made of, and as coremltools has them (int4 sign-extended)."""
    if dtype in ("FLOAT16", "FLOAT32"):
        values = (rng.standard_normal(shape) * 10.0 ** rng.integers(-4, 4)).astype(NAMES[dtype])
        return values, values
    if dtype in NAMES:
        info = np.iinfo(NAMES[dtype])
        values = rng.integers(info.min, info.max, shape, endpoint=True).astype(NAMES[dtype])
        return values, values
    values = sub_byte(rng, dtype, shape)
    return values, ((values ^ 8).astype(np.int8) - 8).astype(np.int8) if dtype == "INT4" else values


def pack(values, nbits):
    """Elements as iOS16 packs them in uint8."""
    bits = values.reshape(-1, 1) >> np.arange(nbits, dtype=np.uint8) & 1
    return np.packbits(bits.reshape(-1), bitorder="little")


def check(tensor, expected):
    expected = np.asarray(expected).astype(tensor.dtype)
    got = tensor.read()
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype)
    assert got.tobytes() == expected.tobytes()
    if expected.shape[0] > 1:
        assert tensor[1:].tobytes() == expected[1:].tobytes()
        assert tensor[-1].tobytes() == expected[-1].tobytes()


DATA = st.sampled_from(["INT4", "UINT4", "INT8", "UINT8", "FLOAT16", "FLOAT32"])


@given(SEEDS, blocks(), DATA, FLOATS, st.sampled_from(["none", "same", "FLOAT16", "FLOAT32"]), st.booleans())
def test_blockwise(seed, block, data, scale, offset, is_sparse):
    rng = np.random.default_rng(seed)
    shape, counts = block
    offset = data if offset == "same" else offset
    scales, _ = elements(rng, scale, counts)
    parts, offsets = {"scale": (scale, scales)}, None
    if offset != "none":
        stored, offsets = elements(rng, offset, counts)
        parts["offset"] = (offset, stored)
    if not is_sparse:
        stored, values = elements(rng, data, shape)
        tensor = weight("blockwise_shift_scale", scale, shape, data=(data, stored), **parts)
        check(tensor, ios18.constexpr_blockwise_shift_scale.decompress(values, scales, offsets))
        return
    mask = (rng.random(shape) < rng.random()).astype(np.uint8)
    stored, values = elements(rng, data, int(mask.sum()))
    parts |= {"data_mask": ("UINT1", mask), "nonzero_data": (data, stored), "count": len(values)}
    tensor = weight("sparse_blockwise_shift_scale", scale, shape, **parts)
    _, nonzero = ios18.constexpr_sparse_blockwise_shift_scale.decompress(mask, values, scales, offsets)
    check(tensor, ios18.constexpr_sparse_to_dense.decompress(nonzero, mask))
    assert tensor.parts["nonzero_data"].read().tobytes() == nonzero.astype(tensor.dtype).tobytes()


@given(
    SEEDS, blocks(), st.sampled_from([1, 2, 3, 4, 6, 8]), st.sampled_from(list(NAMES)), st.integers(1, 5), st.integers(-4, 3), st.booleans()
)  # fmt: skip
def test_palettes(seed, block, nbits, dtype, vector, axis, is_sparse):
    rng = np.random.default_rng(seed)
    shape, counts = block
    if math.prod(counts) > 60:
        counts = (1,) * len(shape)
    axis %= len(shape)
    axis -= len(shape) * int(rng.integers(0, 2))
    lut, _ = elements(rng, dtype, (*counts, 1 << nbits, vector))
    dense = list(shape)
    dense[axis] *= vector
    parts = {"lut": (dtype, lut)}
    if vector > 1:
        parts["vector_axis"] = ("INT32", np.array(axis, "<i4"))
    chosen = axis if vector > 1 else None
    if not is_sparse:
        indices = rng.integers(0, 1 << nbits, shape, np.uint8)
        tensor = weight("lut_to_dense", dtype, dense, indices=(f"UINT{nbits}", indices), **parts)
        check(tensor, ios18.constexpr_lut_to_dense.decompress(indices, lut, chosen))
        return
    mask = (rng.random(shape) < rng.random()).astype(np.uint8)
    indices = rng.integers(0, 1 << nbits, int(mask.sum()), np.uint8)
    parts |= {"indices_mask": ("UINT1", mask), "indices_nonzero_data": (f"UINT{nbits}", indices)}
    tensor = weight("lut_to_sparse", dtype, dense, **parts, count=len(indices) * vector)
    bits, nonzero = ios18.constexpr_lut_to_sparse.decompress(mask, indices, lut, chosen)
    check(tensor, ios18.constexpr_sparse_to_dense.decompress(nonzero, bits))
    assert tensor.parts["nonzero_data"].read().tobytes() == nonzero.tobytes()
    assert tensor.parts["mask"].read().tobytes() == bits.tobytes()


@given(SEEDS, blocks(), st.sampled_from([1, 2, 4, 6, 8]), st.sampled_from(list(NAMES)))
def test_old_palettes_and_masks(seed, block, nbits, dtype):
    rng = np.random.default_rng(seed)
    shape, _ = block
    sizes = ("UINT32", np.array(shape, "<u4"))
    packed = pack(rng.integers(0, 1 << nbits, shape, np.uint8), nbits)
    lut, _ = elements(rng, dtype, (1 << nbits,))
    tensor = weight("lut_to_dense", dtype, shape, True, indices=("UINT8", packed), lut=(dtype, lut), shape=sizes)
    check(tensor, ios16.constexpr_lut_to_dense.decompress(lut, packed, shape))
    bits = rng.random(shape) < rng.random()
    mask = pack(bits.astype(np.uint8), 1)
    nonzero, _ = elements(rng, dtype, (int(bits.sum()),))
    tensor = weight(
        "sparse_to_dense", dtype, shape, True, nonzero_data=(dtype, nonzero), mask=("UINT8", mask), shape=sizes
    )
    check(tensor, ios16.constexpr_sparse_to_dense.decompress(nonzero, mask, shape))


@given(
    SEEDS,
    blocks(),
    st.sampled_from(["INT8", "UINT8"]),
    FLOATS,
    st.sampled_from(["INT8", "UINT8", "FLOAT32"]),
    st.integers(-4, 3),
)
def test_affine(seed, block, data, scale, zero, axis):
    rng = np.random.default_rng(seed)
    shape, _ = block
    axis %= len(shape)
    size = shape[axis]
    axis -= len(shape) * int(rng.integers(0, 2))
    values, _ = elements(rng, data, shape)
    scales, _ = elements(rng, scale, (size,) if rng.integers(0, 2) else ())
    zeros, _ = elements(rng, zero, (size,) if rng.integers(0, 2) else ())
    parts = {"scale": (scale, scales), "zero_point": (zero, zeros), "axis": ("INT32", np.array(axis, "<i4"))}
    tensor = weight("affine_dequantize", scale, shape, bool(rng.integers(0, 2)), quantized_data=(data, values), **parts)
    check(tensor, ios16.constexpr_affine_dequantize.decompress(values, zeros, scales, axis))
