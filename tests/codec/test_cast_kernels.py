"""The six float casts, in every tier, against NumPy and ml_dtypes bit for bit; NaNs against the rule in float.h."""

import platform

import ml_dtypes
import numpy as np
import pytest

from children import run_child
from milblob import FormatError, _codec
from thorough import sized

pytestmark = pytest.mark.wheel

BF16 = np.dtype(ml_dtypes.bfloat16)
F16, F32 = np.dtype("<f2"), np.dtype("<f4")
KINDS = {
    (F32, F16): _codec.CAST_F32_F16, (F32, BF16): _codec.CAST_F32_BF16, (F16, F32): _codec.CAST_F16_F32,
    (BF16, F32): _codec.CAST_BF16_F32, (F16, BF16): _codec.CAST_F16_BF16, (BF16, F16): _codec.CAST_BF16_F16,
}  # fmt: skip
PAIRS = pytest.mark.parametrize(("src", "dst"), KINDS, ids=lambda dtype: dtype.name)
ALL_16 = np.arange(1 << 16, dtype="<u2")
LARGEST = {F16: 0x7BFF, BF16: 0x7F7F}


def bits_of(array):
    return array.view(f"<u{array.dtype.itemsize}")


def astype(array, dtype):
    with np.errstate(all="ignore"):
        return array.astype(dtype)


def nan_rule(array, dtype):
    """What float.h says NaNs become: bit patterns."""
    bits = bits_of(array).astype(np.uint32)
    src, width = array.dtype, 8 * array.dtype.itemsize
    sign = bits >> (width - 1)
    if dtype == BF16:
        return sign << 15 | 0x7FC0
    if dtype == F16 and src == BF16:
        return sign << 15 | 0x7E00
    if dtype == F16:
        payload = bits >> 13 & 0x3FF
        return sign << 15 | 0x7C00 | np.where(payload == 0, 1, payload)
    fraction = bits << 13 & 0x7FFFFF if src == F16 else bits << 16 & 0x7FFFFF
    return sign << 31 | 0x7F800000 | fraction


def expected(array, dtype, clamp=False):
    """(bits, (overflow, nan, underflow)) by NumPy, ml_dtypes and nan_rule."""
    values = astype(array, dtype)
    bits = bits_of(values).copy()
    wide = astype(array, np.float64)
    nan, overflow = np.isnan(wide), np.isfinite(wide) & np.isinf(astype(values, np.float64))
    bits[nan] = nan_rule(array[nan], dtype)
    if clamp and overflow.any():
        bits[overflow] = LARGEST[dtype] | (bits[overflow] & 0x8000)
    underflow = (wide != 0) & (astype(values, np.float64) == 0)
    return bits, (int(overflow.sum()), int(nan.sum()), int(underflow.sum()))


def cast(array, dtype, clamp=False, shift=0):
    """(bits, counts) by the codec; source and destination start `shift` bytes off."""
    memory = np.frombuffer(b"\xee" * shift + array.tobytes(), np.uint8)
    nbytes = array.size * dtype.itemsize
    out = np.full(nbytes + shift + 8, 0xAB, np.uint8)
    counts = _codec.cast(
        KINDS[array.dtype, dtype], _codec.Buffer(memory), shift, array.size, out[shift : shift + nbytes], clamp
    )
    assert (out[:shift] == 0xAB).all() and (out[shift + nbytes :] == 0xAB).all()
    return np.frombuffer(out[shift : shift + nbytes].tobytes(), f"<u{dtype.itemsize}"), counts


def check(array, dtype, **options):
    got, counts = cast(array, dtype, **options)
    want, want_counts = expected(array, dtype, options.get("clamp", False))
    different = np.flatnonzero(got != want)
    assert different.size == 0, [(hex(bits_of(array)[i]), hex(got[i]), hex(want[i])) for i in different[:5].tolist()]
    assert counts == want_counts


def boundary_f32():
    """All exponents and signs with the fractions at which rounding to 0..24 kept bits changes its mind."""
    fractions = {0, 1, 2, 0x7FFFFF, 0x7FFFFE, 0x400000, 0x400001, 0x3FFFFF, 0x2AAAAA, 0x555555}
    for place in range(23):
        for base in (0, 1 << place, 0x7FFFFF & ~((1 << place) - 1)):
            fractions |= {(base + half + d) & 0x7FFFFF for half in (0, 1 << place >> 1) for d in (-1, 0, 1)}
    fraction = np.array(sorted(fractions), np.uint32)
    head = np.arange(512, dtype=np.uint32) << 23
    return (head[:, None] | fraction[None, :]).reshape(-1).astype("<u4").view(F32)


@pytest.mark.parametrize("clamp", [False, True])
@PAIRS
@pytest.mark.sample(8)
def test_every_value(tier, src, dst, clamp):
    """All 65,536 halves and bfloats; of float32 every exponent with every fraction that rounding can trip over."""
    array = boundary_f32() if src == F32 else ALL_16.view(src)
    assert array.size >= 1 << 16
    check(array, dst, clamp=clamp)


@PAIRS
def test_random_values(tier, src, dst):
    rng = np.random.default_rng(7)
    check(rng.integers(0, 1 << 8 * src.itemsize, sized(100_003, 1_000_003), f"u{src.itemsize}").view(src), dst)
    for scale in (1e-8, 1e-6, 0.02, 1e3, 3e4):  # runs in which special values are rare, as in weights
        check(astype(rng.standard_normal(sized(30_001, 300_001)) * scale, src), dst)


@PAIRS
def test_every_count_and_alignment(tier, src, dst):
    rng = np.random.default_rng(8)
    array = astype(rng.standard_normal(131), src)
    array[[3, 70, 129]] = np.array([np.nan, np.inf, -np.inf], src)
    for count in range(131):
        check(array[:count], dst, shift=count % 8)
    for shift in range(64):
        check(array, dst, shift=shift)


@pytest.mark.parametrize(
    "value", [np.nan, np.inf, -np.inf, 65520, -65520, 65519.996, 2.0**-25, -(2.0**-25), 2.0**-149, -0.0]
)
def test_one_special_value_among_ordinary_ones(tier, value):
    """A block of float32 -> float16 that the instruction must not do, with the value in every place of it."""
    for place in range(0, 200, sized(7, 1)):
        array = np.full(200, 0.125, F32)
        array[place] = value
        check(array, F16)
        check(array, F16, clamp=True)


def test_nan_rule_is_numpys_and_ml_dtypes():
    """float.h claims that its NaNs are theirs. NumPy may leave those of float16 to the machine: this is x86-64's."""
    for src, dst in KINDS:
        if F16 in (src, dst) and BF16 not in (src, dst) and platform.machine().lower() not in ("x86_64", "amd64"):
            continue
        array = boundary_f32() if src == F32 else ALL_16.view(src)
        array = array[np.isnan(astype(array, np.float64))]
        assert array.size > 100
        assert (bits_of(astype(array, dst)) == nan_rule(array, dst)).all(), (src, dst)


def test_widening_and_back_is_the_identity(tier):
    for dtype in (F16, BF16):
        values = ALL_16.view(dtype)
        wide, counts = cast(values, F32)
        back, counts_back = cast(wide.view(F32), dtype)
        number = ~np.isnan(astype(values, F32))
        assert (back[number] == ALL_16[number]).all() and counts[0] == counts_back[0] == 0


def test_find():
    array = np.zeros(1000, F32)
    array[[700, 900]], array[[400, 800]] = 1e9, np.nan
    held = _codec.Buffer(array)
    for is_nan, index in ((False, 700), (True, 400)):
        assert _codec.cast_find(_codec.CAST_F32_F16, held, 0, 1000, is_nan) == index
        assert _codec.cast_find(_codec.CAST_F32_F16, held, 40, 900, is_nan) == index - 10
        assert _codec.cast_find(_codec.CAST_F32_F16, held, 0, 300, is_nan) == 300
    assert _codec.cast_find(_codec.CAST_F32_BF16, held, 0, 1000, False) == 1000


def test_wrong_arguments():
    held = _codec.Buffer(np.zeros(8, F32))
    out = np.zeros(16, np.uint8)
    with pytest.raises(ValueError, match=r"^kind: expected one of CAST_\*, got 6$"):
        _codec.cast(6, held, 0, 8, out)
    with pytest.raises(ValueError, match="^kind: "):
        _codec.cast_find(-1, held, 0, 8, False)
    for count in (9, 1 << 62, (1 << 64) - 1):
        with pytest.raises(FormatError, match="^elements: expected at most 8, which the buffer holds, got"):
            _codec.cast(_codec.CAST_F32_F16, held, 0, count, out)
    for offset in (1, 1 << 62, (1 << 64) - 1):
        with pytest.raises(FormatError, match="expected to lie inside the buffer"):
            _codec.cast(_codec.CAST_F32_F16, held, offset, 8, out)
        with pytest.raises(FormatError, match="expected to lie inside the buffer"):
            _codec.cast_find(_codec.CAST_F32_F16, held, offset, 8, False)
    with pytest.raises(ValueError, match="^dst: expected 16 bytes, got 15$"):
        _codec.cast(_codec.CAST_F32_F16, held, 0, 8, out[:15])
    with pytest.raises((BufferError, ValueError)):
        _codec.cast(_codec.CAST_F32_F16, held, 0, 8, bytes(16))
    memory = np.zeros(64, np.uint8)
    with pytest.raises(ValueError, match="^dst: expected memory of its own"):
        _codec.cast(_codec.CAST_F32_F16, _codec.Buffer(memory), 0, 8, memory[31:47])
    _codec.cast(_codec.CAST_F32_F16, _codec.Buffer(memory), 0, 8, memory[32:48])


def test_tier_is_chosen_when_the_core_is_imported(monkeypatch):
    code = "from milblob import _codec; print(_codec.tiers()[1])"
    monkeypatch.delenv("MILBLOB_TIER", raising=False)
    assert run_child(code).strip() == _codec.tiers()[0][-1]
    monkeypatch.setenv("MILBLOB_TIER", "plain")
    assert run_child(code).strip() == "plain"
    monkeypatch.setenv("MILBLOB_TIER", "mmx")
    words = run_child("try:\n    import milblob._codec\nexcept ValueError as error:\n    print(error)")
    assert words.startswith("MILBLOB_TIER: expected one of plain") and words.strip().endswith("got 'mmx'")
