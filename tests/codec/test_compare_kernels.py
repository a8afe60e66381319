"""The kernels that compare two arrays, in every tier, against NumPy in float64."""

import itertools
import math

import ml_dtypes
import numpy as np
import pytest

from matrix import every
from milblob import DType, _codec

NUMBERS = [dtype for dtype in DType if dtype is not DType.STRING]
COUNTS = [*range(14), 127, 1023, 1024, 1025, 2051]


def values(dtype, count, seed=0):
    """Elements of a dtype as arrays hold them, without NaN and infinities."""
    rng = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_integer:
        low, high = dtype.range
        whole = rng.integers(max(low, -(1 << 31)), min(high, (1 << 31) - 1), count, endpoint=True)
        return whole.astype(dtype.numpy)
    return (rng.standard_normal(count) * 3).astype(dtype.numpy)


def as_float64(array, dtype):
    return array.astype(np.int64).astype(np.float64) if dtype.is_integer else array.astype(np.float64)


def compare(a_dtype, a, b_dtype, b, *tolerances):
    return _codec.compare(a_dtype.mil_code, a.view(np.uint8), b_dtype.mil_code, b.view(np.uint8), *tolerances)


def expected(x, y, atol, rtol):
    """(counts, most, sums) of two float64 arrays, sums by math.fsum."""
    d = y - x
    outside = np.abs(d) > atol + rtol * np.abs(x)
    sums = [math.fsum(terms) for terms in (x, y, x * x, y * y, x * y, np.abs(d), d * d)]
    return (len(x), len(x), int((d != 0).sum()), int(outside.sum()), 0), np.abs(d).max(initial=0), sums


def test_every_dtype_and_count(tier):
    def check(dtype, count):
        a, b = values(dtype, count), values(dtype, count, 1)
        found = compare(dtype, a, dtype, b, 0.25, 0.5)
        counts, most, sums = expected(as_float64(a, dtype), as_float64(b, dtype), 0.25, 0.5)
        assert (found.counts, found.most) == (counts, most)
        np.testing.assert_allclose(found.sums, sums, rtol=1e-13, atol=1e-9)

    every(check, NUMBERS, COUNTS)


@pytest.fixture(scope="module")
def pairs():
    """Of every two different dtypes: arrays of both, and what comparing them gives. The same for all tiers."""
    found = {}
    for a_dtype, b_dtype in itertools.permutations(NUMBERS, 2):
        a, b = values(a_dtype, 1100), values(b_dtype, 1100, 2)
        found[a_dtype, b_dtype] = (a, b, expected(as_float64(a, a_dtype), as_float64(b, b_dtype), 0.0, 0.1))
    assert len(found) == len(NUMBERS) * (len(NUMBERS) - 1)
    return found


def test_every_pair_of_dtypes(tier, pairs):
    def check(pair):
        a, b, (counts, most, sums) = pairs[pair]
        found = compare(pair[0], a, pair[1], b, 0.0, 0.1)
        assert (found.counts, found.most) == (counts, most)
        np.testing.assert_allclose(found.sums, sums, rtol=1e-12, atol=1e-9)

    every(check, pairs)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_every_pattern_of_narrow_floats(tier, kind):
    """Against the values that NumPy and ml_dtypes give them: what is not finite agrees too."""
    dtype = next(d for d in NUMBERS if d.numpy == np.dtype(getattr(ml_dtypes, kind, None) or kind))
    patterns = np.arange(1 << dtype.nbits, dtype=f"u{dtype.nbits // 8}").view(dtype.numpy)
    with np.errstate(invalid="ignore"):
        wide = patterns.astype(np.float64)
    numbers = ~np.isnan(wide)
    found = compare(dtype, patterns[numbers], DType.FLOAT64, wide[numbers])
    assert found.counts[2:] == (0, 0, 0)
    assert found.counts[1] == np.isfinite(wide).sum()
    nans = compare(dtype, patterns[~numbers], DType.FLOAT64, np.zeros((~numbers).sum()))
    assert nans.counts[4] == (~numbers).sum()


def test_all_tiers_give_the_same_bits():
    a, b = values(DType.FLOAT32, 5000), values(DType.FLOAT16, 5000, 3)
    before, results = _codec.tiers()[1], []
    for name in _codec.tiers()[0]:
        _codec.set_tier(name)
        found = compare(DType.FLOAT32, a, DType.FLOAT16, b, 0.1, 0.1)
        wide = compare(DType.FLOAT64, a.astype(float), DType.INT32, b.astype(np.int32), 0.1, 0.1)
        results.append((found.counts, found.most, found.sums, wide.counts, wide.most, wide.sums))
    _codec.set_tier(before)
    assert all(result == results[0] for result in results)


def test_what_is_not_finite(tier):
    nan, other = np.array([0x7FC00000, 0x7FC00001], "<u4").view("<f4")
    inf = np.float32(np.inf)
    a = np.zeros(1200, "<f4")
    b = np.zeros(1200, "<f4")
    pairs = [(nan, nan), (nan, other), (inf, inf), (inf, -inf), (nan, 1), (1, nan), (inf, 1), (2, 3), (0.0, -0.0)]
    for index, (x, y) in zip((5, 6, 7, 8, 9, 10, 1100, 1101, 1102), pairs, strict=True):
        a[index : index + 1], b[index : index + 1] = np.array([x], "<f4"), np.array([y], "<f4")
    a[5:7] = [nan, nan]
    a.view("<u4")[5], b.view("<u4")[5] = 0x7FC00000, 0x7FC00000
    a.view("<u4")[6], b.view("<u4")[6] = 0x7FC00000, 0x7FC00001
    found = compare(DType.FLOAT32, a, DType.FLOAT32, b, 1000, 1000)
    # Two are equal (a NaN with the same bits, an infinity), five are not; 2 and 3 are inside the tolerance.
    assert found.counts == (1200, 1200 - 7, 6, 5, 5)
    assert found.most == 1
    assert found.sums == (2, 3, 4, 9, 6, 1, 1)


def test_nans_of_other_dtypes_agree_as_float64(tier):
    half = np.array([0x7E00, 0xFE00, 0x7E01], "<u2").view("<f2")
    wide = np.array([0x7FC00000, 0x7FC00000, 0x7FC02000], "<u4").view("<f4")
    assert compare(DType.FLOAT16, half, DType.FLOAT32, wide).counts == (3, 0, 1, 1, 1)


def test_integers_of_64_bits_are_exact(tier):
    a = np.array([2**62, -(2**63), 2**63 - 1, 5, -5, 2**53 + 1], np.int64)
    b = np.array([2**62 + 1, -(2**63) + 1, 2**63 - 1, 5, -6, 2**53], np.int64)
    found = compare(DType.INT64, a, DType.INT64, b)
    assert (found.counts[2], found.most, found.sums[5], found.sums[6]) == (4, 1, 4, 4)
    found = compare(
        DType.UINT64, np.array([2**64 - 1, 0, 7], np.uint64), DType.UINT64, np.array([0, 2**64 - 1, 7], np.uint64)
    )
    assert found.most == 2.0**64
    found = compare(DType.INT64, np.array([2**53 + 1, -3]), DType.FLOAT64, np.array([2.0**53, -3]))
    assert (found.counts[2], found.most) == (1, 1)
    small = np.arange(-20, 20)
    found = compare(DType.INT64, small, DType.INT8, small.astype(np.int8))
    assert (found.counts[2], found.sums[0], found.sums[2]) == (0, small.sum(), (small * small).sum())


def test_differences_that_overflow(tier):
    found = compare(DType.FLOAT64, np.array([1e308, 1.0]), DType.FLOAT64, np.array([-1e308, 1.0]), 1.0, 0.0)
    assert (found.counts, found.most) == ((2, 2, 1, 1, 0), np.inf)


def test_unaligned_arrays_and_parts(tier):
    a, b = values(DType.FLOAT32, 4099), values(DType.FLOAT32, 4099, 9)
    whole = compare(DType.FLOAT32, a, DType.FLOAT32, b)
    shifted = [np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:] for array in (a, b)]
    code = DType.FLOAT32.mil_code
    assert _codec.compare(code, shifted[0], code, shifted[1]).sums == whole.sums
    total = _codec.Comparison()
    for start in range(0, 4099, 1024):
        total.add(compare(DType.FLOAT32, a[start : start + 1024], DType.FLOAT32, b[start : start + 1024]))
    assert (total.counts, total.most, total.sums) == (whole.counts, whole.most, whole.sums)


def test_what_is_refused():
    one = np.zeros(1, np.float32).view(np.uint8)
    code = DType.FLOAT32.mil_code
    with pytest.raises(ValueError, match="MIL codes of numbers, got 2 and 11"):
        _codec.compare(DType.STRING.mil_code, one, code, one)
    with pytest.raises(ValueError, match="as many elements in both, got 4 and 8 bytes"):
        _codec.compare(code, one, code, np.zeros(8, np.uint8))
    with pytest.raises(ValueError, match="as many elements in both, got 3 and 4 bytes"):
        _codec.compare(code, one[:3], code, one)
    for atol in (-1.0, math.nan):
        with pytest.raises(ValueError, match="0 or more"):
            _codec.compare(code, one, code, one, atol)


def splitmix(x):
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


@pytest.mark.parametrize("nbytes", [1, 2, 4, 8])
def test_hash_of_elements_in_any_order(nbytes):
    rng = np.random.default_rng(nbytes)
    array = rng.integers(0, 1 << 8 * nbytes, 300, dtype=f"u{nbytes}", endpoint=False)
    found = _codec.hash_elements(array, nbytes)
    assert found == sum(map(splitmix, array.tolist())) % 2**64
    assert found == _codec.hash_elements(rng.permutation(array), nbytes)
    array[7] ^= 1
    assert found != _codec.hash_elements(array, nbytes)
    with pytest.raises(ValueError, match="1, 2, 4 or 8"):
        _codec.hash_elements(array, 3)
    if nbytes > 1:
        with pytest.raises(ValueError, match="whole elements"):
            _codec.hash_elements(np.zeros(nbytes + 1, np.uint8), nbytes)
