"""Palettes of vectors: coremltools decodes them alike and does no better; threads change nothing; what is exact."""

import ml_dtypes
import numpy as np
import pytest

from matrix import every
from milblob import MilblobError, _codec
from milblob.lossy.vectors import palettize_vectors
from peers import WITHOUT
from thorough import sized

pytestmark = pytest.mark.usefixtures("one_thread")


def decoded(made, axis):
    """The dense values, the slow and obvious way."""
    groups = made.palettes.shape[axis]
    vector = made.palettes.shape[-1]
    indices = np.moveaxis(made.indices, axis, 0)
    palettes = made.palettes.reshape(groups, -1, vector)
    rows = []
    for number, row in enumerate(indices):
        entries = palettes[number // (len(indices) // groups)][row]
        rows += [entries[..., i] for i in range(vector)]
    return np.moveaxis(np.array(rows), 0, axis)


def noise(shape, dtype, seed=0):
    return (np.random.default_rng(seed).standard_normal(shape) * 0.1).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    ("shape", "axis", "vector", "size"),
    [
        ((16, 12), 0, 2, None),
        ((16, 12), 1, 3, 6),
        ((8, 4, 3), -1, 3, None),
        ((6, 8, 2, 3, 2), 1, 4, 4),
        ((4, 2), 0, 4, None),
    ],
)
def test_figures_are_of_what_is_decoded(shape, axis, vector, size, dtype):
    array = noise(shape, dtype)
    made = palettize_vectors(array, 3, vector=vector, axis=axis, group_size=size)
    dense = decoded(made, axis % len(shape))
    assert (dense.shape, dense.dtype) == (array.shape, array.dtype)
    lost = dense.astype(np.float64) - array.astype(np.float64)
    assert made.loss.squared == pytest.approx(float(np.sum(lost**2)), abs=1e-12)
    assert made.loss.power == pytest.approx(float(np.sum(array.astype(np.float64) ** 2)))
    assert made.loss.largest == pytest.approx(float(np.abs(lost).max()))


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
@pytest.mark.parametrize(
    ("shape", "axis", "vector", "size", "nbits"),
    [((64, 48), 0, 2, None, 4), ((64, 96), 1, 4, 32, 2), ((32, 16, 3, 3), 0, 2, 8, 3), ((256, 16), 0, 4, None, 6)],
)
def test_no_worse_than_coremltools(shape, axis, vector, size, nbits, dtype):
    pytest.importorskip("sklearn", reason=WITHOUT["sklearn"])
    passes = pytest.importorskip("coremltools.optimize.coreml._quantization_passes", reason=WITHOUT["coremltools"])
    array = noise(shape, dtype, 5)
    made = palettize_vectors(array, nbits, vector=vector, axis=axis, group_size=size)
    theirs = passes.palettize_weights.grouped_channelwise_compress(
        array, "KMEANS", nbits, axis, size or 0, None, vector
    )
    assert (made.indices.shape, made.palettes.shape) == (theirs.indices.shape, theirs.lut.shape)
    dense = passes.palettize_weights.decompress(theirs).astype(np.float64)
    assert made.loss.squared <= float(np.sum((dense - array) ** 2))
    own = theirs._replace(indices=made.indices, lut=made.palettes)
    assert np.array_equal(passes.palettize_weights.decompress(own), decoded(made, axis))


def test_the_least_error_of_all_palettes_on_small_cases():
    """Every division of 6 vectors in two."""
    for seed in range(20):
        array = noise((6, 2), np.float32, seed)
        best = np.inf
        for choice in range(1 << 6):
            groups = [array[[i for i in range(6) if choice >> i & 1 == side]].astype(np.float64) for side in (0, 1)]
            best = min(best, sum(float(np.sum((g - g.mean(0)) ** 2)) for g in groups if len(g)))
        made = palettize_vectors(array, 1, vector=2, axis=1)
        assert made.loss.squared == pytest.approx(best, rel=1e-4, abs=1e-12)


def test_threads_change_nothing(monkeypatch):
    array = noise((1024, 512), np.float16)
    found = []
    for threads in sized(["1", "5"], ["1", "2", "5"]):
        monkeypatch.setenv("MILBLOB_THREADS", threads)
        one = palettize_vectors(array, 2, vector=2, axis=0, restarts=1)
        other = palettize_vectors(array[:128], 3, vector=2, axis=0, group_size=32, restarts=2)
        found.append(
            [
                one.indices.tobytes(),
                one.palettes.tobytes(),
                one.loss.squared,
                other.indices.tobytes(),
                other.loss.squared,
            ]
        )
    assert all(one == found[0] for one in found)


def test_fewer_vectors_than_entries_lose_nothing():
    array = np.tile(np.array([[1, 2], [3, 4], [1, -2]], np.float16), (5, 3)).T.copy()
    for mode in ("kmeans", "unique"):
        made = palettize_vectors(array, 3 if mode == "kmeans" else None, vector=2, axis=0, mode=mode)
        assert made.loss.squared == made.loss.largest == made.gap == 0
        assert np.array_equal(decoded(made, 0), array)
    assert made.nbits == 2
    assert not made.palettes.reshape(4, 2)[3].any()
    constant = np.full((4, 4), 7, np.float32)
    assert palettize_vectors(constant, 1, vector=2, axis=0).loss.squared == 0
    assert palettize_vectors(np.zeros((4, 4), np.float16), 8, vector=4, axis=1).loss.squared == 0


def test_unique_vectors_are_sorted_as_numbers(monkeypatch):
    """Of any length and dtype, in several parts: entries in the order of rows; only entries are ever sorted as rows."""
    rng = np.random.default_rng(6)
    unique, sorted_rows = np.unique, []

    def recorded(array, *args, axis=None, **options):
        sorted_rows.append(0 if axis is None else len(array))
        return unique(array, *args, axis=axis, **options)

    def check(dtype, vector, axis):
        some = rng.integers(-2, 3, (30, vector)).astype(dtype)
        some[:2, 0], some[2:4] = (0, -0.0), some[4]
        chosen = rng.integers(0, 30, (40, 50))
        array = some[chosen].reshape(40, 50 * vector)
        wanted, at = unique(some.astype(np.float32) + np.float32(0), axis=0, return_inverse=True)
        found = palettize_vectors(array if axis == 1 else array.T, vector=vector, axis=axis, mode="unique")
        entries = found.palettes.reshape(-1, vector).astype(np.float32)
        assert np.array_equal(entries[: len(wanted)], wanted)
        assert np.array_equal(found.indices if axis == 1 else found.indices.T, at.reshape(-1)[chosen])
        assert found.loss.squared == 0

    monkeypatch.setattr("milblob.lossy.vectors._UNIQUE_NBYTES", 1 << 11)
    monkeypatch.setattr(np, "unique", recorded)
    every(check, [np.float16, np.float32, ml_dtypes.bfloat16], [2, 3, 4, 5, 8, 13], [0, 1])
    assert max(sorted_rows) <= 256


@pytest.mark.parametrize("power", [-147, -60, 0, 120])
def test_any_magnitude(power):
    array = np.ldexp(noise((8, 64), np.float32).round(2), power).astype(np.float32)
    made, plain = (palettize_vectors(x, 4, vector=2, axis=0) for x in (array, noise((8, 64), np.float32).round(2)))
    if power > -100:
        assert np.array_equal(made.indices, plain.indices)
    assert np.isfinite(made.loss.squared)


def test_vectors_are_fitted_to_important_elements():
    array = noise((8, 256), np.float32)
    heavy = np.zeros(array.shape, np.float32)
    heavy[:, :8] = 1  # 32 vectors of 16 different ones at most
    array[:4, :8] = array[4:, :8]
    made = palettize_vectors(array, 4, vector=2, axis=0, importance=heavy)
    assert float(np.abs(decoded(made, 0) - array)[:, :8].max()) < 1e-7
    assert made.loss.squared > 0.1
    plain = palettize_vectors(array, 4, vector=2, axis=0)
    assert palettize_vectors(array, 4, vector=2, axis=0, importance=np.ones(256)).loss.squared == pytest.approx(
        plain.loss.squared, rel=0.02
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"nbits": 5}, "nbits: expected one of 1, 2, 3, 4, 6, 8, got 5"),
        ({"vector": 3}, "vector: expected 2 or more that divide the 8 channels of a palette, got 3"),
        ({"vector": 1}, "vector: expected 2 or more"),
        ({"group_size": 3}, "group_size: expected a divisor of 8, the channels of axis 0, got 3"),
        ({"axis": 2}, "axis: expected a dimension of 2, got 2"),
        ({"mode": "uniform"}, "mode: expected one of kmeans, unique, got 'uniform'"),
        ({"mode": "unique", "nbits": 1}, "mode 'unique': expected at most 2 different vectors, got 32"),
        ({"mode": "unique", "importance": 1.0}, "importance: expected none in the mode 'unique', got some"),
    ],
)
def test_refused(options, words):
    with pytest.raises(ValueError) as caught:
        palettize_vectors(noise((8, 8), np.float32), **{"nbits": 4, "vector": 2, "axis": 0, **options})
    assert str(caught.value).startswith(words)


def test_what_is_not_finite_is_refused():
    array = noise((8, 8), np.float16)
    array[1, 1] = np.nan
    with pytest.raises(ValueError, match="expected finite elements, got 1 that are NaN or infinite"):
        palettize_vectors(array, 2, vector=2, axis=0)
    with pytest.raises(TypeError, match="expected float16, bfloat16 or float32, got float64"):
        palettize_vectors(array.astype(np.float64), 2, vector=2, axis=0)


def test_the_kernel_refuses_what_does_not_fit():
    rows = np.zeros((8, 2), np.float32)
    source = _codec.Buffer(rows.reshape(-1).view(np.uint8))
    entries = np.zeros((2, 4), np.float32)
    sums, totals = np.zeros((4, 2)), np.zeros((4, 2))
    good = {"out": np.zeros(8, np.uint8), "src": source, "weights": None, "first": 0, "count": 8, "entries": entries, "k": 4, "dims": 2,
            "sums": sums, "totals": totals}  # fmt: skip
    assert _codec.vectors_nearest(*good.values()) == 0
    for change in (
        {"out": np.zeros(7, np.uint8)}, {"count": 9, "out": None}, {"first": 1, "out": None}, {"k": 0}, {"k": 257}, {"dims": 0},
        {"dims": 3, "out": None}, {"entries": entries[:1].copy()}, {"sums": sums[:1]}, {"totals": None}, {"first": 1 << 63},
        {"weights": _codec.Buffer(np.zeros(60, np.uint8))}, {"src": _codec.Buffer(np.zeros(65, np.uint8)[1:]), "out": None},
    ):  # fmt: skip
        with pytest.raises((ValueError, IndexError, MilblobError)):
            _codec.vectors_nearest(*{**good, **change}.values())


def test_the_kernel_finds_the_first_of_the_nearest():
    """Any number of entries, also such that do not fill the last eight, against the slow and obvious way."""
    rng = np.random.default_rng(2)
    for k in (1, 2, 3, 7, 8, 9, 16, 31, 64, 255, 256):
        for dims in (1, 2, 5):
            rows, entries = (rng.integers(-3, 4, (n, dims)).astype(np.float32) for n in (50, k))
            weights = rng.integers(0, 3, rows.shape).astype(np.float32)
            for heavy in (None, weights):
                out, sums, totals = np.zeros(50, np.uint8), np.zeros((k, dims)), np.zeros((k, dims))
                buffers = [None if x is None else _codec.Buffer(x.reshape(-1).view(np.uint8)) for x in (rows, heavy)]
                cost = _codec.vectors_nearest(
                    out, *buffers, 0, 50, np.ascontiguousarray(entries.T), k, dims, sums, totals
                )
                by = np.ones_like(rows) if heavy is None else heavy
                distances = (by[:, None] * (rows[:, None] - entries) ** 2).sum(-1)
                assert np.array_equal(out, distances.argmin(1))
                assert cost == distances.min(1).sum()
                expected = np.zeros((k, dims))
                np.add.at(expected, out, by * rows)
                assert np.array_equal(sums, expected)
                assert totals.sum() == by.sum()
