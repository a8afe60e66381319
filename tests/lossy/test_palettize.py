"""Palettes against exhaustive search, against kmeans1d and coremltools, and for any number of threads."""

import itertools
import warnings

import ml_dtypes
import numpy as np
import pytest

from matrix import every
from milblob.lossy.palettize import NBITS, palettize
from nearest import distances
from peers import WITHOUT
from thorough import share, sized, some

pytestmark = pytest.mark.usefixtures("one_thread")
DTYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16), np.dtype(np.float32)]


def dense(result, axis=0):
    """The array that a result stands for, computed the slow way."""
    out = np.empty(result.indices.shape, result.palettes.dtype)
    rows = result.palettes.reshape(-1, result.palettes.shape[-2])
    if result.indices.ndim == 0:
        return rows[0][result.indices]
    size = result.indices.shape[axis] // len(rows)
    for group, row in enumerate(rows):
        where = (slice(None),) * axis + (slice(group * size, (group + 1) * size),)
        out[where] = row[result.indices[where]]
    return out


def squared(array, result, weights=1.0, axis=0):
    wide = dense(result, axis).astype(np.float64)
    return float(np.sum(weights * (wide - array.astype(np.float64)) ** 2))


def best_entry(values, weights, dtype):
    """The least squared error of one entry of that dtype, by trying the numbers around the mean."""
    mean = np.float64(np.sum(values * weights) / np.sum(weights))
    near = mean.astype(dtype)
    around = [near, np.nextafter(near, dtype.type(np.inf)), np.nextafter(near, dtype.type(-np.inf))]
    return min(float(np.sum(weights * (values - float(entry)) ** 2)) for entry in around)


def least(array, weights, k):
    """The least squared error of k entries, by trying all divisions of the sorted numbers."""
    dtype, values = array.dtype, np.unique(array.astype(np.float64))
    total = np.array([weights[array.astype(np.float64) == value].sum() for value in values])
    values, total = values[total > 0], total[total > 0]
    if len(values) <= k:
        return 0.0
    of_run = {
        (a, b): best_entry(values[a:b], total[a:b], dtype) for a, b in itertools.combinations(range(len(values) + 1), 2)
    }
    return min(
        sum(of_run[run] for run in itertools.pairwise((0, *cuts, len(values))))
        for cuts in itertools.combinations(range(1, len(values)), k - 1)
    )


def small_arrays():
    rng = np.random.default_rng(1)
    yield "few", rng.integers(-3, 4, 12) / 4
    yield "lattice", np.arange(11) * 0.5
    yield "twins", np.repeat([0.0, 1.0, 5.0, 6.0, 10.0, 11.0], 2)
    yield "far", np.concatenate([1000 + np.arange(4), rng.standard_normal(6)])
    yield "tiny", rng.integers(-9, 9, 12) * 2.0**-24
    for seed in range(6):
        yield f"normal {seed}", np.random.default_rng(seed).standard_normal(10)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_palette_is_better(dtype):
    def check(case, nbits, is_weighted):
        array = case[1].astype(dtype)
        weights = (
            np.random.default_rng(7).integers(0, 5, array.size).astype(np.float64)
            if is_weighted
            else np.ones(array.size)
        )
        result = palettize(array, nbits, importance=weights if is_weighted else None)
        expected = least(array, weights, 1 << nbits)
        assert squared(array, result, weights) <= expected * (1 + 1e-12) + 1e-30
        assert result.gap <= 1e-12 * expected + 1e-14 * result.loss.power
        assert result.loss.squared == pytest.approx(squared(array, result), rel=1e-12)

    every(check, list(small_arrays()), [1, 2, 3], [False, True])


def test_bounds_that_are_reported_hold():
    """Of float32 with many numbers, the least possible is not known; kmeans1d finds it up to rounding."""
    kmeans1d = pytest.importorskip("kmeans1d", reason=WITHOUT["kmeans1d"])
    rng = np.random.default_rng(3)
    array = rng.standard_normal(20000).astype(np.float32)
    for nbits in (2, 4, 6):
        result = palettize(array, nbits)
        best = kmeans1d.cluster(array.astype(np.float64), 1 << nbits)
        centroids = np.array(best.centroids)[best.clusters]
        optimum = float(np.sum((array.astype(np.float64) - centroids) ** 2))
        assert optimum * (1 - 1e-9) <= result.loss.squared <= optimum + result.gap
        assert result.loss.squared <= optimum * 1.001


def theirs(array, nbits, axis=None, group=0, mode="KMEANS"):
    """The squared error of coremltools' palettes, and its entries and indices."""
    from coremltools.optimize.coreml._quantization_passes import palettize_weights

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = palettize_weights.grouped_channelwise_compress(array.copy(), mode, nbits, axis or 0, group)
        wide = palettize_weights.decompress(found).astype(np.float64)
    return float(np.sum((wide - array.astype(np.float64)) ** 2)), found


def weights_like(kind, dtype, shape):
    rng = np.random.default_rng(len(kind))
    if kind == "normal":
        array = rng.standard_normal(shape) * 0.02
    elif kind == "laplace":
        array = rng.laplace(size=shape)
    elif kind == "outliers":
        array = rng.standard_normal(shape) * np.where(rng.random(shape) < 0.001, 100, 0.1)
    elif kind == "sparse":
        array = rng.standard_normal(shape) * (rng.random(shape) < 0.3)
    elif kind == "few":
        array = rng.integers(0, 5, shape) / 7
    elif kind == "constant":
        array = np.full(shape, 0.3)
    else:
        array = rng.standard_normal(shape) * 1e-6
    return array.astype(dtype)


KINDS = ["normal", "laplace", "outliers", "sparse", "few", "constant", "subnormal"]


@pytest.mark.parametrize("dtype", some([np.float16, np.float32], 1), ids=["float16", "float32"])
@pytest.mark.parametrize("kind", some(KINDS, 4))
def test_at_least_as_good_as_coremltools(kind, dtype):
    """Each number of bits in one dtype for every second kind, in the other for the others; `make thorough`: all."""
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    array = weights_like(kind, dtype, (32, 24, 3, 5))

    def check(nbits, groups):
        axis, size = groups
        result = palettize(array, nbits, axis=axis, group_size=size or None)
        error, found = theirs(array, nbits, axis, size)
        ours = squared(array, result, axis=axis or 0)
        assert ours <= error
        assert result.loss.squared == pytest.approx(ours, rel=1e-9, abs=1e-300)
        assert result.palettes.shape == found.lut.shape
        assert result.palettes.dtype == found.lut.dtype
        assert result.indices.max() < 1 << nbits

    number = KINDS.index(kind) + (dtype == np.float16)
    every(check, share(NBITS, number, 2), [(None, 0)])
    # Each group is an array of its own; coremltools takes seconds for more bits.
    every(check, share([1, 3, 4, 2], number, 2), [(0, 8), (1, 4)])


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["float16", "float32"])
def test_uniform_and_unique_modes(dtype):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

    def check(kind, nbits):
        array = weights_like(kind, dtype, (16, 40))
        result = palettize(array, nbits, mode="uniform")
        if kind != "constant":  # which coremltools divides by zero
            error, found = theirs(array, nbits, mode="UNIFORM")
            assert np.array_equal(result.palettes, found.lut)
            assert squared(array, result) <= error
        assert np.isnan(result.gap)

    every(check, KINDS, NBITS)
    few = weights_like("few", dtype, (16, 40))
    result, (error, found) = palettize(few, mode="unique"), theirs(few, None, mode="UNIQUE")
    assert result.nbits == 3
    assert error == 0
    assert np.array_equal(dense(result), few)
    assert np.array_equal(result.indices, found.indices)
    assert np.array_equal(result.palettes, found.lut)


def test_every_pattern_of_16_bits():
    """All finite numbers at once, in every position of the table."""
    patterns = np.arange(65536, dtype=np.uint16)
    for dtype in DTYPES[:2]:
        array = patterns.view(dtype)
        array = array[np.isfinite(array.astype(np.float32))]
        for nbits in NBITS:
            result = palettize(array, nbits)
            row = result.palettes.reshape(-1).astype(np.float64)
            nearest = distances(array, row)
            got = np.abs(array.astype(np.float64) - row[result.indices])
            assert np.array_equal(got, nearest)
            assert result.gap <= 1e-9 * result.loss.squared


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_same_bits_for_any_number_of_threads(dtype, monkeypatch):
    array = np.random.default_rng(5).standard_normal((64, 1 << 14)).astype(dtype)
    importance = np.random.default_rng(6).random(1 << 14)
    monkeypatch.setattr("milblob.lossy.palettize._PART_NBYTES", 1 << 16)

    def run():
        yield palettize(array, 4)
        yield palettize(array, 4, axis=0, group_size=4)
        yield palettize(array[:, :512], 3, axis=1, group_size=128, importance=importance[:512])
        yield palettize(array, 4, importance=importance)

    monkeypatch.setenv("MILBLOB_THREADS", "1")
    alone = list(run())
    for threads in sized(["5"], ["2", "5"]):
        monkeypatch.setenv("MILBLOB_THREADS", threads)
        for one, other in zip(alone, run(), strict=True):
            assert one.palettes.tobytes() == other.palettes.tobytes()
            assert one.indices.tobytes() == other.indices.tobytes()
            assert one[3:] == other[3:]


def test_shapes_and_memory_orders():
    rng = np.random.default_rng(8)
    for shape in ((), (1,), (7,), (4, 6), (2, 3, 4), (2, 3, 4, 2), (2, 2, 2, 2, 3)):
        array = rng.standard_normal(shape).astype(np.float16)
        for order in (array, np.asfortranarray(array), array[..., ::-1]) if shape else (array,):
            result = palettize(order, 8)
            assert np.array_equal(dense(result), order)
            assert result.palettes.shape == (1,) * len(shape) + (256, 1)
    array = rng.standard_normal((8, 6, 4)).astype(np.float16)
    for axis in (-1, 0, 1, 2):
        result = palettize(array, 8, axis=axis, group_size=2)
        assert np.array_equal(dense(result, axis % 3), array)


def test_negative_zero_is_zero():
    for dtype in DTYPES:
        result = palettize(np.array([0.0, -0.0, 1.0, 2.0], dtype), 2)
        assert dense(result).astype(float).tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_importance_that_vanishes_beside_the_rest(dtype):
    """Doubles cannot hold the sum of weights that far apart: entries are numbers among the elements all the same."""
    array = np.sort(np.random.default_rng(2).standard_normal(512)).astype(dtype).reshape(8, 64)
    weights = np.full(array.shape, 1e-12, np.float32)
    weights[0, :5] = 1e25
    for nbits in (4, 8):
        for elements in (array, -array):
            found = palettize(elements, nbits, importance=weights)
            entries = found.palettes.reshape(-1)
            assert np.array_equal(np.sort(entries), entries)
            assert elements.min() <= entries.min() and entries.max() <= elements.max()
            assert np.array_equal(dense(found)[0, :5], elements[0, :5])
            assert found.gap >= 0
            assert found.loss.squared == pytest.approx(squared(elements, found), rel=1e-9)


def test_importance_of_nothing():
    """Weights that are all zero say nothing: the elements count alike."""
    array = np.random.default_rng(9).standard_normal(1000).astype(np.float32)
    for dtype in DTYPES:
        one, other = palettize(array.astype(dtype), 2, importance=np.zeros(1000)), palettize(array.astype(dtype), 2)
        assert one.loss.squared == pytest.approx(other.loss.squared)


@pytest.mark.parametrize(
    ("array", "options", "words"),
    [
        (np.array([1, np.nan], np.float16), {"nbits": 1}, "array: expected finite elements, got 1 that are NaN or infinite"),
        (np.array([1, -np.inf], np.float32), {"nbits": 1}, "array: expected finite elements, got 1"),
        (np.array([np.inf] * 2, ml_dtypes.bfloat16), {"nbits": 1}, "array: expected finite elements, got 2"),
        (np.array([1, np.nan], np.float32), {"mode": "unique"}, "array: expected finite elements, got 1"),
        (np.array([1, np.nan], np.float16), {"mode": "uniform", "nbits": 2}, "array: expected finite elements, got 1"),
        (np.zeros((0, 3), np.float16), {"nbits": 1}, "array: expected elements, got shape"),
        (np.zeros(3, np.float16), {"nbits": 5}, "nbits: expected one of 1, 2, 3, 4, 6, 8, got 5"),
        (np.zeros(3, np.float16), {}, "nbits: expected one of"),
        (np.zeros(3, np.float16), {"nbits": 2, "mode": "best"}, "mode: expected one of kmeans, uniform, unique, got 'best'"),
        (np.zeros(3, np.float16), {"nbits": 2, "axis": 1}, "axis: expected a dimension of 1, got 1"),
        (np.zeros(3, np.float16), {"nbits": 2, "group_size": 1}, "group_size: expected None without an axis, got 1"),
        (np.zeros((6, 2), np.float16), {"nbits": 2, "axis": 0, "group_size": 4}, "group_size: expected a divisor of 6"),
        (np.zeros(3, np.float16), {"nbits": 2, "importance": np.ones(2)}, "importance: expected a shape that broadcasts"),
        (np.zeros(3, np.float16), {"nbits": 2, "importance": [1, -1, 0]}, "importance: expected finite weights"),
        (np.zeros(3, np.float16), {"nbits": 2, "importance": [1, 1, 1], "mode": "uniform"}, "importance: expected none"),
        (np.arange(300, dtype=np.float16), {"mode": "unique"}, "mode 'unique': expected at most 256 different numbers, got 300"),
        (np.arange(5, dtype=np.float16), {"mode": "unique", "nbits": 2}, "mode 'unique': expected at most 4 different"),
    ],
)  # fmt: skip
def test_what_is_refused(array, options, words):
    with pytest.raises(ValueError) as caught:
        palettize(array, **options)
    assert str(caught.value).startswith(words)


def test_other_dtypes_are_refused():
    for dtype in (np.float64, np.int8):
        with pytest.raises(TypeError, match="array: expected float16, bfloat16 or float32, got"):
            palettize(np.zeros(4, dtype), 2)


@pytest.mark.parametrize("count", [100, 5000, 262144])
def test_unique_counts_equal_float16_numbers_once(count):
    """Many of few numbers, where NumPy's sorting of float16 may take other ways."""
    array = (np.random.default_rng(0).integers(-100, 100, count) / 1024).astype(np.float16)
    wanted = sorted(set(array.tolist()))
    made = palettize(array, mode="unique")
    assert made.loss.squared == 0
    assert made.palettes.reshape(-1)[: len(wanted)].tolist() == wanted
    assert np.array_equal(made.palettes.reshape(-1)[made.indices], array)
