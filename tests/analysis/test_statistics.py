"""Statistics of arrays of every dtype, in every tier, against NumPy in float64, exact fractions and counting by hand."""

import fractions
import math
from collections.abc import Mapping
from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

import milblob
from cases import case_paths, load_case
from dtype_values import NUMPY
from milblob import DType, Statistics, _codec, statistics
from milblob.model import elements
from paths import DATA, DEMO
from thorough import sized, some

DTYPES = [dtype for dtype in DType if dtype is not DType.STRING]
WIDE = [dtype for dtype in DTYPES if dtype.nbits > 16]
FLOATS = [dtype for dtype in DTYPES if "FLOAT" in dtype.name]
EACH = pytest.mark.parametrize("dtype", DTYPES, ids=str)
pytestmark = [
    pytest.mark.filterwarnings("error"),
    pytest.mark.filterwarnings("ignore:Type google:DeprecationWarning"),  # protobuf 4 with Python 3.12
    pytest.mark.wheel,
]


def random_values(dtype, count, seed=0):
    """Random bits, so that all special values occur; what a dtype below 8 bits cannot hold does not."""
    rng = np.random.default_rng(seed)
    if dtype is DType.BOOL:
        return rng.integers(0, 2, count).astype(bool)
    if dtype.is_sub_byte:
        return rng.integers(0, 1 << dtype.nbits, count, dtype=np.uint8).view(dtype.numpy)
    return np.frombuffer(rng.bytes(count * dtype.nbits // 8), dtype.numpy)


def numbers_of(values, dtype):
    """Every element as a Python number."""
    with np.errstate(all="ignore"):
        return values.astype(np.float64).tolist() if dtype in FLOATS else [int(v) for v in values.reshape(-1)]


def check(values, dtype, **options):
    """Compare with what plain Python counts, and sums as fractions."""
    got = statistics(values, dtype, **options)
    numbers = numbers_of(values, dtype)
    finite = [v for v in numbers if math.isfinite(v)]
    assert (got.count, got.shape, got.dtype) == (len(numbers), values.shape, dtype)
    assert (got.nans, got.infinities) == (
        sum(v != v for v in numbers),
        sum(v in (math.inf, -math.inf) for v in numbers),
    )
    assert got.positive_infinities == numbers.count(math.inf)
    assert got.zeros == sum(v == 0 for v in numbers)
    assert got.negative_zeros == sum(v == 0 and math.copysign(1, v) < 0 for v in numbers)
    tiny = float(ml_dtypes.finfo(dtype.numpy).smallest_normal) if dtype in FLOATS else 0
    assert got.subnormals == sum(0 < abs(v) < tiny for v in numbers)
    assert got.float16_overflows == sum(abs(v) >= 65520 for v in finite)
    assert got.smallest == min((abs(v) for v in finite if v), default=None)
    assert got.finite == len(finite)
    if got.is_distinct_exact:
        assert got.distinct == len(set(finite)) + (got.nans > 0) + (got.positive_infinities > 0) + (
            got.negative_infinities > 0
        )
    if not finite:
        assert (got.min, got.max, got.mean, got.std, got.absmax) == (None,) * 5
        return got
    assert (got.min, got.max) == (min(finite), max(finite))
    assert type(got.min) is (float if dtype in FLOATS else int)
    assert got.absmax == max(abs(got.min), abs(got.max))
    ratios = [v.as_integer_ratio() for v in finite]
    unit = max(below for _, below in ratios)  # they are powers of two: whole numbers of 1/unit have exact and fast sums
    counts = [above * (unit // below) for above, below in ratios]
    total = fractions.Fraction(sum(counts), unit)
    magnitude = fractions.Fraction(sum(map(abs, counts)), unit)
    part = fractions.Fraction(1, 2**50 if dtype.nbits <= 16 else 2**45)
    if magnitude < 2**1023:
        assert abs(fractions.Fraction(got.total) - total) <= part * magnitude
        mean = total / len(finite)
        squares = fractions.Fraction(sum(count**2 for count in counts), unit**2)
        variance = squares / len(finite) - mean**2
        if variance < 2**1000:
            deviation = math.sqrt(variance)
            assert abs(got.std - deviation) <= 2 * part * (deviation + abs(float(mean)))
    return got


@EACH
def test_every_count(dtype):
    for count in sized([*range(18), 31, 32, 33, 63, 64, 65, 127, 128, 129], range(131)):
        check(random_values(dtype, count, count), dtype)


@pytest.mark.parametrize("dtype", WIDE, ids=str)
def test_every_count_in_every_tier(dtype, tier):
    for count in sized([*range(0, 34, 3), 129, 1025], [*range(34), 127, 128, 129, 1023, 1024, 1025]):
        check(random_values(dtype, count, count), dtype)


@EACH
@pytest.mark.sample(7)
def test_many_elements(dtype):
    """More than a block, a list of patterns, and a multiple of what kernels take at a time."""
    got = check(random_values(dtype, sized(5_003, 17_011)), dtype, histogram=True)
    assert sum(bar.count for bar in got.histogram) == got.finite
    assert got.is_distinct_exact


@pytest.mark.parametrize(
    "dtype", [DType.FLOAT16, DType.BFLOAT16, DType.FLOAT8E4M3FN, DType.FLOAT8E5M2, DType.INT8, DType.INT4], ids=str
)
def test_every_pattern(dtype):
    patterns = np.arange(1 << dtype.nbits)
    check(patterns.astype(f"<u{max(dtype.nbits // 8, 1)}").view(dtype.numpy), dtype)


@EACH
@pytest.mark.sample(7)
def test_odd_alignment(dtype):
    for shift in range(9):
        values = random_values(dtype, 1100, shift)
        moved = np.frombuffer(b"\xff" * shift + values.tobytes(), np.uint8)[shift:].view(values.dtype)
        assert equal(statistics(moved, dtype), statistics(values, dtype))


def equal(a, b):
    return repr(a) == repr(b)  # NaN for NaN


def test_every_tier_gives_the_same_bits():
    found = []
    for name in _codec.tiers()[0]:
        before = _codec.tiers()[1]
        _codec.set_tier(name)
        found.append([repr(statistics(random_values(dtype, 30_000, 3), dtype)) for dtype in DTYPES])
        _codec.set_tier(before)
    assert all(one == found[0] for one in found)


@EACH
@pytest.mark.sample(7)
def test_threads_change_nothing(dtype, monkeypatch):
    values = random_values(dtype, sized(20_001, 70_001))
    whole = statistics(values, dtype)
    monkeypatch.setattr(elements, "PIECE_NBYTES", 4096)
    results = []
    for threads in (1, 2, 5):
        monkeypatch.setenv("MILBLOB_THREADS", str(threads))
        results.append(statistics(values, dtype))
    assert all(equal(one, results[0]) for one in results)
    assert replace(results[0], total=0, mean=0, std=0, spread=0) == replace(whole, total=0, mean=0, std=0, spread=0)
    if whole.mean is not None and math.isfinite(whole.std):
        assert results[0].mean == pytest.approx(whole.mean, rel=1e-9, abs=1e-300)
        assert results[0].std == pytest.approx(whole.std, rel=1e-12)


@pytest.mark.parametrize("name", ["float32", "float64", "int32", "float16", "int8"])
def test_strange_arrays(name):
    values = np.random.default_rng(5).normal(0, 30, (40, 60)).astype(name)
    expected = statistics(np.ascontiguousarray(values.T))
    assert replace(statistics(values.T), shape=()) == replace(expected, shape=())
    assert equal(statistics(values.astype(values.dtype.newbyteorder(">"))), statistics(values))
    assert statistics(values[::2, ::3]).count == 20 * 20
    assert statistics(values[0, 0]).mean == values[0, 0]
    assert statistics(values.tolist()).count == 2400


def test_a_spread_that_is_small_beside_the_mean(tier):
    """A difference of two large sums would have nothing right here."""
    for dtype, mean, step in ((np.float32, 2.0**20, 2.0**-3), (np.float64, 1e12, 1e-3)):
        values = (mean + step * np.random.default_rng(1).integers(-3, 4, 300_000)).astype(dtype)
        exact = values.astype(np.float64) - mean
        assert statistics(values).std == pytest.approx(exact.std(), rel=2**-44 * mean / step)
    constant = statistics(np.full(100_000, np.float32(0.1)))
    assert constant.std <= 2**-44 * 0.1 and constant.mean == pytest.approx(float(np.float32(0.1)), rel=1e-15)


def test_distinct_values_beyond_what_is_counted():
    for count in (65_536, 65_537, 200_000, 1_000_000):
        got = statistics(np.random.default_rng(0).permutation(count).astype(np.int32) * 7919)
        assert got.is_distinct_exact == (count <= 65_536)
        assert got.distinct == pytest.approx(count, rel=0 if count <= 65_536 else 0.04)
    odd = np.array([0.0, -0.0, np.nan, -np.nan, 1], np.float32)
    assert statistics(odd).distinct == 3
    assert statistics(np.repeat(np.arange(70_000, dtype=np.float32), 3), distinct=False).distinct is None


def test_estimates_do_not_depend_on_order_or_parts():
    values = np.random.default_rng(2).integers(0, 1 << 62, 150_000)
    parts = [_codec.Distinct() for _ in range(3)]
    for part, values_of_part in zip(
        parts, np.array_split(values, [40_000, 120_000]), strict=True
    ):  # two exact ones, one estimated
        _codec.wide_moments(_codec.WIDE_I64, _codec.Buffer(values_of_part.view(np.uint8)), 0, values_of_part.size, part)
    assert [part.is_estimated for part in parts] == [False, True, False]
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        whole = _codec.Distinct()
        for index in order:
            whole.merge(parts[index])
        assert whole.is_estimated and whole.count == statistics(values).distinct


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
def test_an_extreme_of_zero_has_no_sign(name, tier):
    for values in ([-0.0], [-0.0, 0.0], [0.0, -0.0] * 700, [-0.0, 1.0], [-0.0, -1.0], [-0.0, np.nan]):
        got = statistics(np.array(values, name))
        assert all(math.copysign(1, edge) == 1 for edge in (got.min, got.max) if edge == 0), values


def test_estimates_of_regular_values():
    """Arithmetic progressions, numbers of few bits and multiples of a scale are estimated as well as random ones."""
    steps = np.arange(500_000, dtype=np.uint32)
    for name, values in {
        "step 1": steps,
        "step 4096": steps * np.uint32(4096),
        "float32 of whole numbers": steps.astype(np.float32),
        "multiples": steps.astype(np.float32) * np.float32(0.0037),
        "upper halves": (steps << np.uint32(13)).view(np.float32),
    }.items():
        expected = len(np.unique(values))
        assert statistics(values).distinct == pytest.approx(expected, rel=0.025), name


def test_sums_that_leave_float64():
    got = statistics(np.array([1.7e308, 1.7e308, 1.0]))
    assert (got.total, got.max) == (math.inf, 1.7e308)
    assert not math.isfinite(got.std)
    got = statistics(np.array([-1.7e308, 1.7e308]), histogram=True)
    assert (got.min, got.max, got.total) == (-1.7e308, 1.7e308, 0)


def test_integers_of_64_bits_are_exact():
    got = statistics(np.array([2**63 - 1, 2**63 - 2, -(2**63)], np.int64), histogram=True)
    assert (got.min, got.max, got.absmax) == (-(2**63), 2**63 - 1, 2**63)
    got = statistics(np.array([2**64 - 1, 2**64 - 3], np.uint64))
    assert (got.min, got.max, got.distinct) == (2**64 - 3, 2**64 - 1, 2)


@pytest.mark.parametrize(
    ("values", "bins"),
    [
        (np.arange(-8, 16, dtype=np.int8), [(low, low + 1, 2) for low in range(-8, 16, 2)]),
        (np.arange(17, dtype=np.uint8), [*((low, low + 1, 2) for low in range(0, 16, 2)), (16, 16, 1)]),
        (np.array([2**63 - 1, 2**63 - 2, 2**63 - 1], np.int64), [(2**63 - 2, 2**63 - 2, 1), (2**63 - 1, 2**63 - 1, 2)]),
        (np.array([2**64 - 1], np.uint64), [(2**64 - 1, 2**64 - 1, 1)]),
        (np.array([True, False, True]), [(0, 0, 1), (1, 1, 2)]),
        (np.empty(0, np.float32), []),
        (np.array([np.nan], np.float16), []),
        (np.array([2.5, 2.5], np.float16), [(2.5, 2.5, 2)]),
    ],
)  # fmt: skip
def test_histograms(values, bins):
    assert list(statistics(values, histogram=True).histogram) == bins


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn"])
def test_histograms_of_floats(name):
    values = np.random.default_rng(4).normal(0, 3, 5000).astype(NUMPY.get(name.upper(), name))
    got = statistics(values, histogram=True)
    counts, edges = np.histogram(values.astype(np.float64), 12)
    assert [bar.count for bar in got.histogram] == counts.tolist()
    assert [bar.low for bar in got.histogram] == pytest.approx(edges[:-1].tolist())
    tiny = statistics(np.array([5e-324, 1e-323]), histogram=True)
    assert sum(bar.count for bar in tiny.histogram) == 2


@pytest.mark.parametrize(
    ("limit", "would"), [(65504.0, 0), (65519.99, 0), (65520.0, 1), (-65520.0, 1), (np.inf, 0), (np.nan, 0), (1e300, 1)]
)
def test_what_float16_cannot_hold(limit, would):
    for dtype in (np.float32, np.float64):
        value = np.array([limit]).astype(dtype) if np.isfinite(limit) and dtype is np.float64 else None
        if value is None:
            with np.errstate(all="ignore"):
                value = np.array([limit], dtype)
        with np.errstate(all="ignore"):
            expected = int(np.isfinite(value[0]) and np.isinf(value.astype(np.float16)[0]))
        assert statistics(value).float16_overflows == expected
        assert dtype is np.float32 or expected == would


def test_merge():
    rng = np.random.default_rng(9)
    parts = [rng.normal(i, 2, 1000 + i).astype(np.float32) for i in range(5)]
    parts.append(np.array([np.nan, np.inf], np.float32))
    merged, whole = Statistics.merge(map(statistics, parts)), statistics(np.concatenate(parts))
    for key in (
        "count",
        "nans",
        "positive_infinities",
        "min",
        "max",
        "zeros",
        "smallest",
        "dtype",
        "float16_overflows",
    ):
        assert getattr(merged, key) == getattr(whole, key)
    assert (merged.mean, merged.std) == pytest.approx((whole.mean, whole.std), rel=1e-13)
    assert merged.distinct is None and merged.shape is None
    assert Statistics.merge([]).count == 0 and Statistics.merge([]).mean is None
    mixed = Statistics.merge([statistics(np.ones(3, np.int8)), statistics(np.full(1, 5.0))])
    assert (mixed.dtype, mixed.mean, mixed.max, mixed.count) == (None, 2.0, 5.0, 4)


def test_strings_and_other_dtypes():
    got = statistics(np.array(["a", "b"], object))
    assert (got.count, got.dtype, got.min) == (2, DType.STRING, None)
    with pytest.raises(TypeError, match="dtype: expected"):
        statistics(np.array([1j]))
    with pytest.raises(OverflowError, match="element 1"):
        statistics(np.array([1, 9], np.uint8), "uint3")


@pytest.mark.parametrize(("case", "path"), some(case_paths(), 20))
@pytest.mark.sample(7)
def test_tensors_of_models(case, path):
    """Every stored tensor of every fixture has the statistics of its array."""
    with milblob.open(load_case(case).source(path), stored=True, constants=True) as model:
        for tensor in model.values():
            try:
                values = tensor.read()
            except milblob.MilblobError as error:
                with pytest.raises(type(error)):
                    statistics(tensor)
                continue
            assert equal(statistics(tensor), statistics(values, tensor.mil_dtype))


def test_arguments_of_the_kernels():
    buffer = _codec.Buffer(bytes(10))
    tally = _codec.Tally()
    with pytest.raises(ValueError, match="nbits: expected"):
        tally.add(buffer, 0, 1, 5)
    with pytest.raises(milblob.FormatError, match="elements: expected at most 5"):
        tally.add(buffer, 0, 6, 16)
    with pytest.raises(milblob.FormatError, match="expected to lie inside"):
        tally.add(buffer, 1, 5, 16)
    tally.add(buffer, 0, 5, 16)
    other = _codec.Tally()
    other.add(buffer, 0, 3, 8)
    for wrong in (lambda: tally.add(buffer, 0, 1, 8), lambda: tally.merge(other)):
        with pytest.raises(ValueError, match="nbits: expected"):
            wrong()
    with pytest.raises(ValueError, match="kind: expected"):
        _codec.wide_moments(6, buffer, 0, 1)
    with pytest.raises(milblob.FormatError, match="at most 2"):
        _codec.wide_moments(_codec.WIDE_F32, buffer, 0, 3)


def test_a_count_that_wraps_its_low_part():
    for count in (255, 256, 257, 511, 513, 16_385, 200_003):  # listed, and counted in the whole table
        got = statistics(np.full(count, 1.5, np.float16))
        assert (got.count, got.total, got.distinct, got.std) == (count, 1.5 * count, 1, 0)
    tallies = [_codec.Tally() for _ in range(2)]
    for tally in tallies:
        tally.add(_codec.Buffer(np.full(40_000, 7, np.uint16).view(np.uint8)), 0, 40_000, 16)
    tallies[0].merge(tallies[1])
    moments, *_ = tallies[0].gather(DType.UINT16.mil_code)
    assert (moments.counts[0], moments.sums[0]) == (80_000, 560_000)
    assert tallies[0].gather(DType.UINT16.mil_code)[0].counts[0] == 0  # empty again


@pytest.mark.parametrize(
    ("values", "dtype"), [([1.5, 2.5], "int8"), ([1e300], "float16"), (np.uint8([1, 2]), "float32")]
)
def test_array_that_is_not_of_the_dtype_is_refused(values, dtype):
    with pytest.raises(TypeError, match=rf"^array: expected elements of {dtype}, got "):
        milblob.statistics(np.array(values), dtype)


@pytest.mark.parametrize(("array", "dtype"), [(np.array([200], np.uint8), "int8"), (np.array([-1], np.int8), "uint8")])
def test_bytes_of_the_other_sign_are_checked(array, dtype):
    """They are as wide as the dtype that was named, and not of it."""
    with pytest.raises(OverflowError, match=str(array[0])):
        milblob.statistics(array, dtype)
    assert milblob.statistics(np.array([100], array.dtype), dtype).max == 100


@pytest.mark.parametrize(
    "value", [object(), None, [1, None], np.array(["x", 1], object)], ids=lambda value: type(value).__name__
)
def test_a_source_that_is_not_an_array_is_refused(value):
    with pytest.raises(TypeError, match="^array: expected numbers or text, got (object|NoneType|int)$"):
        milblob.statistics(value)


def test_what_are_no_statistics():
    with pytest.raises(TypeError, match="^parts: expected Statistics, got str$"):
        milblob.Statistics.merge(["count"])


def test_texts_are_counted():
    for texts in (["a", "bc"], np.array(["a", "bc"], object), np.array(["a", b"bc"], object)):
        assert milblob.statistics(texts).count == 2


def test_statistics_of_a_model_are_those_of_each_weight(tmp_path):
    with milblob.open(DEMO) as model:
        expected = {name: tensor.read() for name, tensor in model.items()}
    found = milblob.statistics(DEMO, histogram=True)
    assert isinstance(found, Mapping) and list(found) == list(expected) and found.source == str(DEMO)
    for name, array in expected.items():
        assert (found[name].min, found[name].max, found[name].count) == (array.min(), array.max(), array.size)
        assert sum(one.count for one in found[name].histogram) == array.size
    np.savez(tmp_path / "w.npz", **expected)
    assert dict(milblob.statistics(tmp_path / "w.npz")) == dict(milblob.statistics(expected))
    assert found.total.max == max(array.max() for array in expected.values())
    assert list(milblob.statistics(expected, select="*_norm_weight")) == [
        n for n in expected if n.endswith("_norm_weight")
    ]


def test_statistics_refuse_what_means_nothing(tmp_path):
    with pytest.raises(FileNotFoundError):
        milblob.statistics(str(tmp_path / "nothing.mlpackage"))
    for option in ({"select": "*"}, {"max_nbytes": 9}, {"progress": print}):
        with pytest.raises(ValueError, match=f"{next(iter(option))}: expected a path, a model or a mapping"):
            milblob.statistics(np.zeros(3), **option)
    with pytest.raises(ValueError, match="dtype: expected none"):
        milblob.statistics({"w": np.zeros(3)}, "float32")
    with pytest.raises(milblob.LimitError):
        milblob.statistics(DATA / "constexpr_ios18" / "model.mlpackage", max_nbytes=1)


@pytest.mark.parametrize(
    ("values", "total", "mean", "std"),
    [
        (([1e308], [1e308]), math.inf, math.inf, math.inf),
        (([1e308], [1e308], [-1e308]), math.inf, math.inf, math.inf),
        (([1e200], [-1e200]), 0.0, 0.0, math.inf),
        (([1e308, 1e308], [-1e308, -1e308]), math.nan, math.nan, math.nan),
    ],
)
def test_sums_outside_the_range_of_float64_are_infinite_or_nan(values, total, mean, std):
    report = statistics({str(i): np.array(one) for i, one in enumerate(values)})
    assert np.array_equal([report.total.total, report.total.mean], [total, mean], equal_nan=True)
    assert np.array_equal(report.total.std, std, equal_nan=True)
    assert repr(report) and report.to_dict()["total"]["std"] is None
