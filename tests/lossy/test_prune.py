"""Pruning against coremltools: the same zeros, ties included."""

import warnings

import numpy as np
import pytest

from matrix import every
from milblob import _codec
from milblob.errors import FormatError
from milblob.lossy.prune import Pruner, prune
from peers import WITHOUT
from thorough import share, some

pytestmark = pytest.mark.usefixtures("one_thread")


def dense(result):
    bits = np.unpackbits(result.mask, count=int(np.prod(result.shape)), bitorder="little").astype(bool)
    out = np.zeros(bits.size, result.nonzero.dtype)
    out[bits] = result.nonzero
    return out.reshape(result.shape)


def theirs(array, options):
    from coremltools.optimize.coreml._quantization_passes import prune_weights as pruner

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if "threshold" in options:
            found = pruner.compress_by_threshold(array.copy(), options["threshold"], 0.0)
        elif "n_m" in options:
            found = pruner.compress_by_nm_sparsity(array.copy(), options["n_m"], options.get("dim", 1))
        else:
            dim = options.get("dim", 0 if "block" in options else None)
            found = pruner.compress_by_magnitude(array.copy(), options["sparsity"], options.get("block"), dim)
        return found, pruner.decompress(found)


def arrays():
    rng = np.random.default_rng(0)
    yield "normal", rng.standard_normal((30, 22, 3))
    yield "ties", rng.integers(-4, 5, (30, 22, 3)) / 4
    yield "zero", np.zeros((30, 22, 3))
    yield "half zero", rng.standard_normal((30, 22, 3)) * (rng.random((30, 22, 3)) < 0.5)
    yield "tiny", rng.standard_normal((30, 22, 3)) * 3e-7
    yield "large", rng.standard_normal((30, 22, 3)) * 9000
    yield "negative zero", np.copysign(rng.integers(0, 2, (30, 22, 3)), -1.0)
    yield "matrix", rng.standard_normal((41, 40))
    yield "rank 5", rng.standard_normal((10, 8, 2, 3, 2))


OPTIONS = [
    *({"sparsity": part} for part in (0.0, 0.1, 0.3, 0.5, 0.75, 0.9, 0.999, 1.0)),
    *({"threshold": cut} for cut in (0.0, 1e-12, 0.25, 0.3, 1e9)),
    *({"sparsity": part, "block": size} for part in (0.0, 0.3, 0.5, 1.0) for size in (2, 3, 4)),
    {"sparsity": 0.5, "block": 2, "dim": 1},
    *({"n_m": pair} for pair in ((1, 2), (2, 4), (3, 4), (0, 3), (3, 3))),
    {"n_m": (2, 4), "dim": 0},
]


@pytest.mark.parametrize("dtype", [np.float16, np.float32], ids=["float16", "float32"])
def test_the_zeros_of_coremltools(dtype):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

    def check(case, options):
        array = cases[case].astype(dtype)
        result, (found, wide) = prune(array, **options), theirs(array, options)
        assert np.array_equal(result.mask, found.mask)
        assert result.nonzero.tobytes() == found.nonzero_data.tobytes()
        assert np.array_equal(dense(result), wide)
        lost = array.astype(np.float64) - wide
        assert result.loss.squared == pytest.approx(float(np.sum(lost**2)), rel=1e-9)
        assert result.loss.power == pytest.approx(float(np.sum(array.astype(np.float64) ** 2)), rel=1e-9)
        assert result.loss.largest == pytest.approx(float(np.abs(lost).max()))

    cases = dict(arrays())
    every(check, cases, OPTIONS)


def test_many_float16_elements():
    """More than float16 can count: coremltools' threshold is NaN there, and it prunes nothing."""
    array = np.random.default_rng(1).standard_normal((300, 300)).astype(np.float16)
    result = prune(array, sparsity=0.75)
    assert 0.75 <= result.sparsity < 0.751
    magnitudes = np.abs(array)
    kept = magnitudes[dense(result) != 0]
    assert magnitudes[dense(result) == 0].max() < kept.min()


def test_large_arrays_in_parts(monkeypatch):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    array = np.random.default_rng(2).standard_normal((500, 300)).astype(np.float32)
    found, _ = theirs(array, {"sparsity": 0.37})
    for threads in ("1", "3"):
        monkeypatch.setenv("MILBLOB_THREADS", threads)
        monkeypatch.setattr("milblob.lossy.prune._PART_NBYTES", 1 << 14)
        result = prune(array, sparsity=0.37)
        assert np.array_equal(result.mask, found.mask)
        assert np.array_equal(result.nonzero, found.nonzero_data)


def test_neighbours_in_parts(monkeypatch):
    """Parts hold whole rows, and whole groups of rows where neighbours are in one column."""
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    cases = dict(arrays())

    def check(case, dtype, options):
        array = cases[case].astype(dtype)
        found, _ = theirs(array, options)
        whole = prune(array, **options)
        with monkeypatch.context() as patch:
            patch.setattr("milblob.lossy.prune._PART_NBYTES", 64)
            result = prune(array, **options)
        assert np.array_equal(result.mask, found.mask)
        assert result.nonzero.tobytes() == found.nonzero_data.tobytes()
        assert result.loss[:3] == pytest.approx(whole.loss[:3])

    some = [options for options in OPTIONS if "block" in options or "n_m" in options]
    every(check, ["normal", "ties", "matrix", "rank 5"], [np.float16, np.float32], some)


@pytest.mark.parametrize("dtype", some([np.float16, np.float32], 1), ids=["float16", "float32"])
def test_blocks_of_every_layout(dtype):
    """NumPy adds neighbours pairwise where they are next to each other in memory, and one after another where they are not.

    `make test` prunes one of three parts of each array, `make thorough` each of them.
    """
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    rng = np.random.default_rng(6)
    shapes = [
        (600, 1),
        (1, 601),
        (70, 61),
        (61, 70, 1, 1),
        (40, 3, 3, 3),
        (3, 41, 2, 1),
        (700, 2),
        (2, 700, 1),
        (1, 620, 2),
    ]

    def check(shape, dim, size):
        if size > shape[dim] / 2:
            return
        number = shapes.index(shape) + dim + sizes.index(size)
        for scale in (1.0, 3e-4, 3e-7, 900.0):  # sums that round, of subnormal squares, of zeros, that overflow
            array, number = (rng.standard_normal(shape) * scale).astype(dtype), number + 1
            for part in share((0.2, 0.5, 0.93), number, 3):
                options = {"sparsity": part, "block": size, "dim": dim}
                with np.errstate(all="ignore"):
                    result, (found, _) = prune(array, **options), theirs(array, options)
                assert np.array_equal(result.mask, found.mask), (scale, part)
                assert result.nonzero.tobytes() == found.nonzero_data.tobytes()

    sizes = (1, 2, 3, 4, 7, 8, 9, 16, 20, 129, 137, 300)
    every(check, shapes, (0, 1), sizes)


def test_every_tier_gives_the_same_bits():
    rng = np.random.default_rng(4)
    before = _codec.tiers()[1]
    patterns = np.arange(65536, dtype=np.uint16).view(np.float16)
    half = rng.permutation(patterns[np.isfinite(patterns)])
    arrays = {np.float16: half, np.float32: (half.astype(np.float32) * np.float32(1.001))[5:]}

    def results(dtype, options):
        for name in _codec.tiers()[0]:
            _codec.set_tier(name)
            found = prune(arrays[dtype], **options)
            yield found.mask.tobytes(), found.nonzero.tobytes(), found[3:]

    def check(dtype, options):
        assert len(set(results(dtype, options))) == 1

    try:
        every(check, arrays, [{"sparsity": part} for part in (0, 0.5, 0.9, 1)] + [{"threshold": 0.01}])
        arrays = {dtype: array[:60000].reshape(300, 200) for dtype, array in arrays.items()}
        every(check, arrays, [{"sparsity": 0.5, "block": 4, "dim": dim} for dim in (0, 1)] + [{"n_m": (2, 4)}])
    finally:
        _codec.set_tier(before)


def test_an_array_that_changes_during_the_call():
    """Sizes are told before the elements are: another number of them is an error, and never more than was told."""
    for dtype in (np.float16, np.float32):
        array = np.linspace(-1, 1, 1000, dtype=dtype)
        for change in (0, 5):
            work = Pruner(array, sparsity=0.5)
            array[:] = np.linspace(-1, 1, 1000) * change
            total = 0
            with pytest.raises(FormatError, match=f"expected {work.count} elements to keep, as counted before"):
                for *_, nonzero in work.stretches():
                    total += nonzero.size
            assert total <= work.count
            array[:] = np.linspace(-1, 1, 1000)


@pytest.mark.parametrize(
    ("array", "options", "words"),
    [
        (np.array([1, np.nan], np.float16), {"sparsity": 0.5}, "array: expected finite elements, got 1 that are NaN or infinite"),
        (np.array([1, np.inf], np.float32), {"threshold": 0.5}, "array: expected finite elements, got 1"),
        (np.zeros((0, 3), np.float16), {"sparsity": 0.5}, "array: expected elements, got shape"),
        (np.zeros(3, np.float16), {}, "prune: expected exactly one of sparsity, threshold and n_m, got none"),
        (np.zeros(3, np.float16), {"sparsity": 0.5, "threshold": 1.0}, "prune: expected exactly one of"),
        (np.zeros(3, np.float16), {"sparsity": 1.5}, "sparsity: expected 0 to 1, got 1.5"),
        (np.zeros(3, np.float16), {"threshold": -1.0}, "threshold: expected zero or more, got -1.0"),
        (np.zeros(3, np.float16), {"sparsity": 0.5, "dim": 1}, "dim: expected None without block and n_m, got 1"),
        (np.zeros((8, 8), np.float16), {"threshold": 0.5, "block": 2}, "block: expected None with a threshold"),
        (np.zeros((8, 8), np.float16), {"sparsity": 0.5, "block": 5}, "neighbours: expected at most half of the 8 of dimension 0, got 5"),
        (np.zeros((8, 8), np.float16), {"n_m": (3, 2)}, "n_m: expected 0 <= n <= m, got (3, 2)"),
        (np.zeros((8, 8), np.float16), {"n_m": (1, 2), "dim": 2}, "dim: expected 0 or 1, got 2"),
        (np.zeros(8, np.float16), {"n_m": (1, 2)}, "array: expected 2 to 5 dimensions, where neighbours are pruned"),
    ],
)  # fmt: skip
def test_what_is_refused(array, options, words):
    with pytest.raises(ValueError) as caught:
        prune(array, **options)
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize("shape", [(96, 100), (90, 81, 3, 3)])
@pytest.mark.parametrize("where", [0, -1])
def test_what_is_not_finite_is_met_and_counted_in_the_first_pass(monkeypatch, dtype, shape, where):
    """Whatever groups the elements, wherever they lie and however many parts there are. Sums that overflow are no such."""
    monkeypatch.setattr("milblob.lossy.prune._PART_NBYTES", 1 << 12)
    ways = [{"sparsity": 0.5}, {"sparsity": 0.0}, {"sparsity": 1.0}, {"threshold": 0.5}, {"threshold": 2.0}]
    ways += [{"n_m": (n, m), "dim": dim} for n, m in ((1, 2), (2, 4), (3, 7), (20, 40)) for dim in (0, 1)]
    ways += [
        {"sparsity": part, "block": size, "dim": dim} for part in (0.0, 0.5, 1.0) for size in (3, 4) for dim in (0, 1)
    ]
    for bad in (np.nan, np.inf, -np.inf):
        array = np.ones(shape, dtype)
        array.reshape(-1)[where] = array.reshape(-1)[array.size // 2] = bad
        for options in ways:
            with pytest.raises(ValueError, match=r"array: expected finite elements, got 2 that are NaN or infinite"):
                prune(array, **options)
    large = np.full(shape, np.finfo(dtype).max)
    for options in ways:
        prune(large, **options)


def test_an_array_that_changes_after_it_was_counted_is_refused():
    """Also where what stays before the change is all that was counted."""

    def check(dtype, options, begin):
        array = np.zeros((64, 64), dtype)
        array[:begin] = 1
        work = Pruner(array, **options)
        array[begin:] = 1
        with pytest.raises(FormatError, match="it changed while it was read"):
            list(work.stretches())

    options = [{"threshold": 0.5}, {"sparsity": 0.0}]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("milblob.lossy.prune._PART_NBYTES", 1024)
        every(check, [np.float16, np.float32], options, [0, 8, 32])
