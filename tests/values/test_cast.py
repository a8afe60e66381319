"""values/cast.py: policies, counts, messages, dtypes without a kernel, any memory order, integers."""

import ml_dtypes
import numpy as np
import pytest

from milblob import DType, FormatError, _codec
from milblob.values.cast import CHUNK_COUNT, CastCounts, cast_array, convert_into, is_castable

FLOATS = [DType.FLOAT16, DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2]
PAIRS = [(a, b) for a in FLOATS for b in FLOATS if a is not b]


def astype(array, dtype):
    with np.errstate(all="ignore"):
        return np.asarray(array).astype(dtype.numpy)


def convert(array, dtype, **options):
    out = np.zeros(array.size, dtype.numpy)
    counts = convert_into(
        out.view(np.uint8), _codec.Buffer(array.view(np.uint8)), 0, array.size, array.dtype, dtype, **options
    )
    return out, counts


def sample(dtype, count=3 * CHUNK_COUNT // 2):
    """Values that fit everywhere, then some that do not."""
    values = np.random.default_rng(1).standard_normal(count)
    values[[5, 70_000]] = 3e300, -3e300  # inf in small dtypes, which is no overflow from there
    values[[6, 70_001]] = np.nan, 1e-320
    values[7:9] = 1e5, -1e5
    return astype(values, dtype)


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=str)
@pytest.mark.sample(8)
def test_values_and_counts(src, dst):
    array = sample(src)
    got, counts = convert(array, dst, overflow="inf")
    want = astype(array, dst)
    wide, narrow = astype(array, DType.FLOAT64), astype(want, DType.FLOAT64)
    number = ~np.isnan(narrow)
    assert (got[number] == want[number]).all() and np.isnan(astype(got, DType.FLOAT64)[~number]).all()
    overflow = np.isfinite(wide) & ~np.isfinite(narrow)
    assert counts == (overflow.sum(), np.isnan(wide).sum(), ((wide != 0) & (narrow == 0)).sum())
    clamped, same_counts = convert(array, dst, overflow="clamp")
    assert same_counts == counts
    largest = float(ml_dtypes.finfo(dst.numpy).max)
    assert (np.abs(astype(clamped, DType.FLOAT64))[overflow] == largest).all()
    assert (np.signbit(astype(clamped, DType.FLOAT64)) == np.signbit(wide))[overflow].all()
    assert (clamped[~overflow & number] == want[~overflow & number]).all()


@pytest.mark.parametrize(("src", "dst"), PAIRS, ids=str)
@pytest.mark.sample(8)
def test_refusals_name_the_first_element(src, dst):
    array = np.ones(CHUNK_COUNT + 100, src.numpy)
    array[CHUNK_COUNT + 3 :: 7] = np.nan
    with pytest.raises(ValueError, match=rf"^element {CHUNK_COUNT + 3}: expected a number, got nan$"):
        convert(array, dst, nan="error")
    largest = ml_dtypes.finfo(src.numpy).max
    if not np.isfinite(astype(largest, dst)):
        array = np.ones(CHUNK_COUNT + 100, src.numpy)
        array[[CHUNK_COUNT + 5, CHUNK_COUNT + 9]] = -largest
        words = rf"^element {CHUNK_COUNT + 5}: expected at most [\d.e+]+ in magnitude, got -[\d.e+]+$"
        with pytest.raises(OverflowError, match=words):
            convert(array, dst)
        with pytest.raises(OverflowError, match=words):
            cast_array(array, dst)


def test_message():
    with pytest.raises(OverflowError) as caught:
        cast_array(np.array([1, 2, 7e4], np.float32), "float16")
    assert str(caught.value) == "element 2: expected at most 65504 in magnitude, got 70000"


def test_infinities_are_no_overflow():
    array = np.array([np.inf, -np.inf, 1], np.float32)
    for dtype in (DType.FLOAT16, DType.BFLOAT16):
        for policy in ("error", "inf", "clamp"):
            got, counts = convert(array, dtype, overflow=policy)
            assert got.tolist() == array.tolist() and counts == CastCounts()


def test_unaligned_source_and_offset():
    for src, dst in ((DType.FLOAT32, DType.FLOAT16), (DType.FLOAT64, DType.FLOAT16)):
        array = sample(src)[:1001]
        held = _codec.Buffer(b"\xff" * 3 + array.tobytes())
        out = np.zeros(2 * array.size + 1, np.uint8)
        convert_into(out[1:], held, 3, array.size, src, dst, overflow="inf")
        assert out[1:].tobytes() == astype(array, dst).tobytes()


def test_wrong_arguments():
    held, out = _codec.Buffer(bytes(64)), np.zeros(64, np.uint8)
    for pair in (("float32", "float32"), ("float32", "int8"), ("int8", "float16"), ("int32", "int8")):
        with pytest.raises(TypeError, match="^cast: expected two different float dtypes, got"):
            convert_into(out, held, 0, 4, *pair)
    with pytest.raises(ValueError, match="^overflow: expected one of error, inf, clamp, got 'wrap'$"):
        convert_into(out, held, 0, 4, "float32", "float16", overflow="wrap")
    with pytest.raises(ValueError, match="^nan: expected one of keep, error, got 'drop'$"):
        cast_array(np.zeros(4, np.float32), "float16", nan="drop")
    for src in ("float32", "float64"):
        for offset, count in ((0, 17), (61, 4), (1 << 62, 1), (0, 1 << 60)):
            with pytest.raises(FormatError):
                convert_into(out, held, offset, count, src, "float16")
        with pytest.raises(ValueError, match=r"^dst: expected 8 bytes, got 64$"):
            convert_into(out, held, 0, 4, src, "float16")


@pytest.mark.parametrize("dst", [DType.FLOAT16, DType.FLOAT8E5M2], ids=str)
def test_arrays_in_any_memory_order(dst):
    base = sample(DType.FLOAT32, 60 * 60 * 40).reshape(60, 60, 40)
    base[0, 0] = 0.5
    views = [base, base.T, base[::-1], base[:, ::3, ::-2], base[:, :, 5], base[0, 0, 0], base[:0], np.asfortranarray(base),
             base.astype(">f4"), np.broadcast_to(base[0, 0], (2000, 40))]  # fmt: skip
    for view in views:
        got, counts = cast_array(view, dst, overflow="inf")
        want = astype(view, dst)
        assert got.dtype == dst.numpy and got.shape == view.shape and got.flags.c_contiguous
        assert got.tobytes() == want.tobytes()
        assert counts.nan == np.isnan(view).sum()


def test_index_in_a_strided_array():
    array = np.ones((2, CHUNK_COUNT), np.float32).T
    array[40_000, 1] = 1e9
    with pytest.raises(OverflowError, match="^element 80001: "):
        cast_array(array, "float16")


def test_same_dtype_is_the_array_itself():
    array = np.array([np.nan, 1], np.float32)
    got, counts = cast_array(array, "fp32", nan="error")
    assert got is array and counts == CastCounts()


def test_integers_are_checked():
    got, counts = cast_array(np.array([[1, -128], [127, 0]]), "int8")
    assert got.dtype == np.int8 and got.tolist() == [[1, -128], [127, 0]] and counts == CastCounts()
    assert cast_array(np.arange(8), "uint3")[0].dtype == np.uint8
    assert cast_array(np.array([3, -8], ml_dtypes.int4), "int32")[0].tolist() == [3, -8]
    for values, dtype, words in (([0, 8], "uint3", "element 1: expected 0 to 7, got 8"), ([-1], "uint64", "element 0: expected 0 to 18446744073709551615, got -1"),
                                 ([1 << 40], "int32", "element 0: expected -2147483648 to 2147483647, got 1099511627776")):  # fmt: skip
        for policy in ("error", "inf", "clamp"):
            with pytest.raises(OverflowError) as caught:
                cast_array(np.array(values), dtype, overflow=policy)
            assert str(caught.value) == words


def test_kinds_do_not_mix():
    for array, dtype in ((np.ones(3), "int32"), (np.arange(3), "float16"), (np.ones(3, bool), "int8"), (np.ones(3, bool), "float16"),
                         (np.array(["a"], object), "float16"), (np.ones(3, np.float16), "bool")):  # fmt: skip
        with pytest.raises(TypeError, match="^array: expected elements of a dtype that can become"):
            cast_array(array, dtype)
        assert not is_castable(array.dtype, dtype)
    assert is_castable("bool", "bool") and is_castable("float64", "fp16") and is_castable("uint3", "int64")
