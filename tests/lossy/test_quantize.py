"""Linear quantization against coremltools: the same bits for float32, at most its error for float16."""

import functools
import warnings

import ml_dtypes
import numpy as np
import pytest

from matrix import every
from milblob import _codec
from milblob.lossy.quantize import quantize
from nearest import distances
from peers import WITHOUT

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = ["int8", "uint8", "int4", "uint4"]
MODES = ["linear_symmetric", "linear"]
SHAPE = (12, 64, 3, 2)
BLOCKS = [
    (0, 0, 0, 0),
    (1, 0, 0, 0),
    (0, 1, 0, 0),
    (1, 32, 0, 0),
    (4, 16, 3, 1),
    (0, 0, 0, 1),
    (1, 1, 1, 1),
    (3, 0, 1, 2),
]


def dense(result):
    """The dense values, computed the slow way."""
    shape = result.data.shape
    wide = [result.scale] + ([] if result.zero_point is None else [result.zero_point])
    for axis, length in enumerate(shape):
        wide = [np.repeat(part, length // part.shape[axis], axis) for part in wide]
    data = result.data.astype(np.float32)
    if result.zero_point is not None:
        data = data - wide[1].astype(np.float32)
    return (data * wide[0].astype(np.float32)).astype(result.scale.dtype)


@functools.cache  # for all tiers
def theirs(case, kind, dtype, mode, blocks):
    """What coremltools makes of one of `arrays`, of float16 or float32, and its dense values."""
    from coremltools.optimize.coreml._quantization_passes import linear_quantize_weights as quantizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array = dict(arrays(kind))[case].astype(kind)
        found = quantizer.blockwise_compress_by_dtype(array, dtype, mode.upper(), list(blocks))
        return found, quantizer.decompress(found)


def arrays(dtype):
    rng = np.random.default_rng(0)
    yield "normal", rng.standard_normal(SHAPE) * 0.02
    yield "positive", rng.random(SHAPE) + 3
    yield "zero", np.zeros(SHAPE)
    yield "constant", np.full(SHAPE, -0.7)
    yield "tiny", rng.standard_normal(SHAPE) * (2e-7 if dtype == np.float16 else 1e-41)
    yield "large", rng.standard_normal(SHAPE) * (9000 if dtype == np.float16 else 1e34)
    yield "outliers", rng.standard_normal(SHAPE) * np.where(rng.random(SHAPE) < 0.01, 50, 0.1)
    yield "some zero", rng.standard_normal(SHAPE) * (np.arange(SHAPE[0]) % 2).reshape(-1, 1, 1, 1)
    yield "ties", rng.integers(-254, 255, SHAPE) / 2


def test_float32_has_the_bits_of_coremltools(tier):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

    def check(case, dtype, mode, blocks):
        array, (found, wide) = cases[case].astype(np.float32), theirs(case, np.float32, dtype, mode, blocks)
        result = quantize(array, dtype, mode=mode, blocks=blocks)
        assert result.data.astype(np.int16).tobytes() == found.data.astype(np.int16).tobytes()
        assert result.scale.tobytes() == found.scale.tobytes()
        assert result.scale.shape == found.scale.shape
        assert (result.zero_point is None) == (found.offset is None)
        if found.offset is not None:
            assert result.zero_point.astype(np.int16).tobytes() == found.offset.astype(np.int16).tobytes()
            assert result.zero_point.shape == found.offset.shape
        assert dense(result).tobytes() == wide.tobytes()
        error = array.astype(np.float64) - wide
        assert result.loss.squared == pytest.approx(float(np.sum(error**2)), rel=1e-5)
        assert result.loss.power == pytest.approx(float(np.sum(array.astype(np.float64) ** 2)), rel=1e-9)
        assert result.loss.largest == pytest.approx(float(np.abs(error).max()), rel=1e-6, abs=1e-44)

    cases = dict(arrays(np.float32))
    every(check, cases, DTYPES, MODES, BLOCKS)


def test_float16_is_at_least_as_good_as_coremltools(tier):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

    def check(case, dtype, mode, blocks):
        array, (found, wide) = cases[case].astype(np.float16), theirs(case, np.float16, dtype, mode, blocks)
        result = quantize(array, dtype, mode=mode, blocks=blocks)
        ours, other = (np.sum((array.astype(np.float64) - part) ** 2) for part in (dense(result), wide))
        assert ours <= other or np.isnan(other)
        assert result.loss.squared == pytest.approx(float(ours), rel=2**-19, abs=1e-30)
        assert result.scale.dtype == np.float16
        assert result.scale.shape == found.scale.shape

    cases = dict(arrays(np.float16))
    every(check, cases, DTYPES, MODES, BLOCKS)


def test_every_tier_gives_the_same_bits():
    rng = np.random.default_rng(6)
    before = _codec.tiers()[1]

    def results(dtype, blocks, mode):
        for name in _codec.tiers()[0]:
            _codec.set_tier(name)
            found = quantize(arrays[dtype], "int8", mode=mode, blocks=blocks)
            yield found.data.tobytes(), found.scale.tobytes(), found[4:]

    patterns = rng.integers(0, 1 << 16, (37, 131), np.uint16).view(np.float16)
    half = np.where(np.isfinite(patterns), patterns, 0)
    arrays = {np.float16: half, np.float32: half.astype(np.float32) * np.float32(1.1)}

    def check(dtype, blocks, mode):
        assert len(set(results(dtype, blocks, mode))) == 1

    try:
        every(check, arrays, [(0, 0), (1, 0), (0, 1), (1, 1), (37, 1)], MODES)
    finally:
        _codec.set_tier(before)


def test_no_integer_is_nearer():
    """Every finite float16, on scales from subnormal to large: the dense value is the nearest of all."""
    array = np.arange(65536, dtype=np.uint16).view(np.float16)
    array = array[np.isfinite(array)]

    def check(part, dtype, mode):
        limited = array[np.abs(array) <= part]
        result = quantize(limited, dtype, mode=mode)
        point = 0.0 if result.zero_point is None else float(result.zero_point[0])
        low = {"int8": -128, "uint8": 0, "int4": -8, "uint4": 0}[dtype]
        high = low + (256 if dtype.endswith("8") else 16)
        if mode == "linear_symmetric":
            low, high = (low + 1, high) if low else (low, high - 1)
        grid = (np.arange(low, high).astype(np.float32) - np.float32(point)) * np.float32(result.scale[0])
        with np.errstate(over="ignore"):
            grid = grid.astype(np.float16).astype(np.float64)
        nearest = distances(limited, grid)
        got = np.abs(limited.astype(np.float64) - dense(result).astype(np.float64))
        assert np.array_equal(got, nearest)

    every(check, [2.0**-20, 0.01, 1.0, 1000.0, 32000.0, 65504.0], DTYPES, MODES)


def test_ranges_whose_width_overflows():
    """coremltools' scale is infinite there, or its zero point NaN."""
    rng = np.random.default_rng(4)

    def check(dtype, mode, target):
        most = 0.8 * float(np.finfo(dtype).max)  # so that the ends of the scale do not overflow
        array = (rng.uniform(-1, 1, (4, 100)) * most).astype(dtype)
        result = quantize(array, target, mode=mode, blocks=(1, 0))
        steps = 254 if target.endswith("8") else 14
        assert np.isfinite(result.scale).all()
        assert result.loss.largest <= 2 * most / steps
        assert 0 < result.loss.squared / result.loss.power < 0.02 or dtype == np.float32  # whose squares may overflow

    every(check, [np.float16, np.float32], MODES, DTYPES)


def test_search_is_never_worse():
    rng = np.random.default_rng(2)

    def check(dtype, target, mode, blocks):
        array = (rng.standard_normal((16, 64)) * np.where(rng.random((16, 64)) < 0.02, 20, 1)).astype(dtype)
        plain = quantize(array, target, mode=mode, blocks=blocks)
        found = quantize(array, target, mode=mode, blocks=blocks, search=True)
        assert found.loss.squared <= plain.loss.squared
        if target.endswith("4"):
            assert found.loss.squared < plain.loss.squared
        importance = rng.random((16, 64)) ** 4
        heavy = quantize(array, target, mode=mode, blocks=blocks, search=True, importance=importance)

        def weighted(result):
            return float(np.sum(importance.astype(np.float32) * (dense(result).astype(np.float64) - array) ** 2))

        assert weighted(heavy) <= weighted(found) * (1 + 1e-6)
        for result in (found, heavy):
            lost = np.abs(dense(result).astype(np.float64) - array)
            assert result.loss.squared == pytest.approx(float(np.sum(lost**2)), rel=1e-6)
            assert result.loss.power == pytest.approx(float(np.sum(array.astype(np.float64) ** 2)), rel=1e-6)
            assert result.loss.largest == pytest.approx(float(lost.max()), rel=1e-6)

    every(check, [np.float16, np.float32], DTYPES, MODES, [(0, 0), (1, 0), (0, 1), (1, 32)])


def added(squares):
    """The sum of squares in the order that include/milblob/kernels/sums.h says: 16 lanes, halved until one is left."""
    lanes = np.zeros(16, squares.dtype)
    for number, square in enumerate(squares):
        lanes[number % 16] += square
    lanes = lanes.astype(np.float64)
    for left in (8, 4, 2, 1):
        lanes[:left] += lanes[left : 2 * left]
    return lanes[0]


def test_errors_of_blocks_of_any_length():
    """Short blocks are quantized together; their errors are the bits that each alone has."""
    rng, (tiers, before) = np.random.default_rng(3), _codec.tiers()

    def check(tier, dtype, length, weighted):
        array = rng.standard_normal((3, 35, length)).astype(dtype)
        scale, zero = (
            (rng.random((3, 35), np.float32) / 20).astype(dtype).astype(np.float32),
            rng.integers(-3, 4, (3, 35)).astype(np.float32),
        )
        scale[1, :7] = 0
        heavy = rng.random(array.shape, np.float32)
        source, is_f16 = _codec.Buffer(array.reshape(-1).view(np.uint8)), dtype == np.float16
        grid = _codec.Grid((3, 35, length), (35, 1, 0)) if length > 1 else _codec.Grid((3, 35), (35, 1))
        begin, errors, codes = length // 2, np.zeros(105), np.empty(array.size, np.uint8)
        about = grid, _codec.Buffer(scale), _codec.Buffer(zero), _codec.Integers(-100, 90, 8, True)
        _codec.set_tier(tier)
        _codec.quantize_errors(
            errors, source, 0, is_f16, begin, array.size - begin, *about, _codec.Buffer(heavy) if weighted else None
        )
        _codec.quantize(codes, False, source, 0, is_f16, 0, array.size, *about)
        whole = codes.view(np.int8).reshape(array.shape) - zero[..., None]
        off = array.astype(np.float32) - (whole * scale[..., None]).astype(dtype).astype(np.float32)
        squares = off.astype(np.float32 if is_f16 and length > 16 and not weighted else np.float64) ** 2
        squares[0, 0, :begin] = 0
        if weighted:
            wanted = (squares * heavy).sum(-1).reshape(-1)
            assert np.allclose(errors, wanted, rtol=1e-14, atol=0)
            assert length > 1 or np.array_equal(errors, wanted)
        else:
            first = added(squares[0, 0, begin:])
            assert errors.tolist() == [first, *(added(row) for row in squares.reshape(-1, length)[1:])]

    try:
        every(check, tiers, [np.float16, np.float32], [1, 2, 3, 7, 8, 15, 16, 17, 33, 200], [False, True])
    finally:
        _codec.set_tier(before)


def test_same_bits_for_any_number_of_threads(monkeypatch):
    array = np.random.default_rng(5).standard_normal((96, 1 << 10)).astype(np.float16)
    monkeypatch.setattr("milblob.lossy.quantize._PART_COUNT", 1 << 12)

    def run():
        for blocks in ((0, 0), (1, 0), (0, 1), (1, 32), (32, 1)):
            result = quantize(array, "int4", blocks=blocks, mode="linear", search=True)
            yield result.data.tobytes(), result.scale.tobytes(), result.zero_point.tobytes(), result[4:]

    monkeypatch.setenv("MILBLOB_THREADS", "1")
    alone = list(run())
    monkeypatch.setenv("MILBLOB_THREADS", "3")
    assert list(run()) == alone


def test_very_many_blocks_that_lie_in_several_stretches(monkeypatch):
    """Whole blocks at a time, with the same result as all at once; what is made for a part does not hold all of them."""
    rng = np.random.default_rng(9)
    full, most = np.full, [0]

    def recorded(shape, *args, **options):
        most[0] = max(most[0], int(np.prod(shape)))
        return full(shape, *args, **options)

    def check(shape, blocks, dtype, target, search, weighted):
        array = rng.standard_normal(shape).astype(dtype)
        options = {"blocks": blocks, "mode": "linear", "search": search}
        if weighted and search:
            options["importance"] = rng.random(shape)
        whole = quantize(array, target, **options)
        most[0] = 0
        with monkeypatch.context() as patched:
            patched.setattr("milblob.lossy.quantize._PART_COUNT", 1 << 9)
            patched.setattr("milblob.lossy.quantize._BLOCKS_COUNT", 1 << 6)
            patched.setattr(np, "full", recorded)
            found = quantize(array, target, **options)
            assert most[0] <= 1 << 9
            broken = array.copy()
            broken[1, 2], broken[-1, -1] = np.nan, np.inf
            with pytest.raises(ValueError, match=f"got {np.count_nonzero(~np.isfinite(broken))} that are NaN"):
                quantize(broken, target, **options)
        for one, other in zip(found[:3], whole[:3], strict=True):
            assert np.array_equal(one, other)
        assert found.loss.largest == whole.loss.largest
        assert found.loss[:2] == pytest.approx(whole.loss[:2], rel=1e-12 if dtype == np.float32 else 2**-19)

    cases = [((8, 1030), (0, 1)), ((8, 1029), (4, 3)), ((2, 8, 130), (1, 0, 1)), ((4, 6, 25, 9), (0, 3, 1, 3))]
    for shape, blocks in cases:
        every(
            lambda *rest, at=(shape, blocks): check(*at, *rest),
            [np.float16, np.float32], ["int8", "uint4"], [False, True], [False, True],
        )  # fmt: skip


def test_memory_orders_and_ranks():
    rng = np.random.default_rng(8)
    for shape in ((), (1,), (7,), (4, 6), (2, 3, 4), (2, 2, 2, 2, 3)):
        array = rng.standard_normal(shape).astype(np.float32)
        result = quantize(array, "int8")
        assert result.scale.shape == (1,) * len(shape)
        for order in (np.asfortranarray(array), array[..., ::-1][..., ::-1]) if shape else ():
            assert np.array_equal(quantize(order, "int8").data, result.data)


@pytest.mark.parametrize(
    ("array", "options", "words"),
    [
        (np.array([1, np.nan], np.float16), {}, "array: expected finite elements, got 1 that are NaN or infinite"),
        (np.array([1, -np.inf], np.float32), {"mode": "linear"}, "array: expected finite elements, got 1"),
        (np.zeros((0, 3), np.float16), {}, "array: expected elements, got shape"),
        (np.zeros(3, np.float16), {"dtype": "int16"}, "dtype: expected int8, uint8, int4 or uint4, got"),
        (np.zeros(3, np.float16), {"mode": "affine"}, "mode: expected one of linear_symmetric, linear, got 'affine'"),
        (np.zeros((6, 2), np.float16), {"blocks": (4, 0)}, "blocks: expected sizes that divide the shape (6, 2), got (4, 0)"),
        (np.zeros((6, 2), np.float16), {"blocks": (2,)}, "blocks: expected a size for each of 2 dimensions"),
        (np.zeros(3, np.float16), {"importance": np.ones(3)}, "importance: expected None without search"),
    ],
)  # fmt: skip
def test_what_is_refused(array, options, words):
    with pytest.raises(ValueError) as caught:
        quantize(array, **options)
    assert str(caught.value).startswith(words)


def test_other_dtypes_are_refused():
    for dtype in (np.float64, np.int8, ml_dtypes.bfloat16):
        with pytest.raises(TypeError, match="array: expected float16 or float32, got"):
            quantize(np.zeros(4, dtype))
