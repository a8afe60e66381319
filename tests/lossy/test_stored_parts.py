"""Codes, scales, palettes and masks for new values: nearest by trying all, and coremltools' own quantizers."""

import math

import numpy as np
import pytest

from milblob.lossy import stored_parts
from milblob.lossy.stored_parts import Range
from peers import WITHOUT

SIGNED, UNSIGNED = Range(-8, 7), Range(0, 15)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch):
    """Every loop over pieces runs more than once."""
    monkeypatch.setattr(stored_parts, "_PIECE_COUNT", 37)
    monkeypatch.setattr(stored_parts, "_DISTANCES_COUNT", 50)


def spread_out(parameters, shape):
    for axis, count in enumerate(parameters.shape):
        parameters = np.repeat(parameters, shape[axis] // count, axis)
    return parameters


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.sample(4)
def test_codes_are_the_nearest(seed):
    """No other code is worth a value that is nearer; also with negative scales, scales of 0, fractional offsets."""
    random = np.random.default_rng(seed)
    codes = [SIGNED, UNSIGNED, Range(-128, 127)][seed % 3]
    counts = tuple(int(n) for n in random.integers(1, 4, random.integers(1, 4)))
    shape = tuple(n * int(k) for n, k in zip(counts, random.integers(1, 5, len(counts)), strict=True))
    scale = random.normal(size=counts).astype(np.float32) / 4
    scale.reshape(-1)[: seed % 2] = 0
    offset = [None, random.integers(codes.low, codes.high, counts).astype(np.int16), random.normal(size=counts).astype(np.float16)][seed // 3 % 3]  # fmt: skip
    values = random.normal(size=shape).astype(np.float32) * 2
    found = stored_parts.quantize(values, scale, offset, codes)
    assert found.dtype == np.int16 and found.shape == shape and codes.low <= found.min() and found.max() <= codes.high
    by = spread_out(scale.astype(np.float64), shape)
    shift = 0.0 if offset is None else spread_out(offset.astype(np.float64), shape)
    every = np.stack([by * (code - shift) for code in range(codes.low, codes.high + 1)])
    best = np.abs(every - values).min(0)
    own = np.abs(by * (found - shift) - values)
    assert (own <= best + 1e-6 * np.maximum(1, np.abs(values))).all()


@pytest.mark.parametrize("vector", [1, 2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_entries_are_the_nearest(seed, vector):
    random = np.random.default_rng(seed)
    palette = random.normal(size=(2 ** int(random.integers(1, 6)), vector))
    palette[1] = palette[0]  # as coremltools fills palettes up
    vectors = random.normal(size=(5, 33, vector)).astype(np.float32)
    found = stored_parts.nearest(vectors, palette)
    distances = ((vectors[..., None, :] - palette) ** 2).sum(-1)
    own = np.take_along_axis(distances, found[..., None].astype(np.int64), -1)[..., 0]
    assert found.shape == (5, 33) and (own <= distances.min(-1) + 1e-9).all()


@pytest.mark.parametrize("vector", [1, 2])
@pytest.mark.parametrize("seed", range(10))
def test_a_fitted_palette_is_as_good_as_any(seed, vector):
    """However poor the palette is that is there: numbers as kmeans1d has them, vectors as scikit-learn has them."""
    random = np.random.default_rng(seed)
    vectors = random.normal(size=(300, vector)).astype(np.float32)
    kmeans1d, cluster = (
        pytest.importorskip("kmeans1d", reason=WITHOUT["kmeans1d"]),
        pytest.importorskip("sklearn.cluster", reason=WITHOUT["sklearn"]),
    )
    palette = np.full((8, vector), 1000.0)
    fitted = stored_parts.fit_palette(vectors, palette)

    def error(entries):
        return ((vectors - entries[stored_parts.nearest(vectors, entries)]) ** 2).sum()

    if vector == 1:
        theirs = np.asarray(kmeans1d.cluster(vectors[:, 0], 8).centroids)[:, None]
    else:
        theirs = cluster.KMeans(8, n_init=10, random_state=seed).fit(vectors).cluster_centers_
    assert error(fitted) <= error(theirs) * (1.000001 if vector == 1 else 1.02)
    assert np.array_equal(stored_parts.fit_palette(vectors[:0], palette), palette)


def test_masks():
    values = np.array([[1, -5, 3], [0, 3, -3]], np.float32)
    for count, expected in ((0, []), (1, [1]), (2, [1, 2]), (3, [1, 2, 4]), (4, [1, 2, 4, 5]), (6, range(6))):
        mask = stored_parts.fit_mask(values, count)
        assert mask.shape == (2, 3) and np.flatnonzero(mask).tolist() == list(expected)


def test_extremes_of_blocks_and_masks():
    random = np.random.default_rng(1)
    for counts, shape in (((2, 3), (8, 9)), ((1, 1), (7, 5)), ((4,), (8,)), ((2, 1, 3), (4, 6, 3))):
        values = random.normal(size=shape).astype(np.float32)
        mask = random.random(shape) < 0.5
        for chosen in (None, mask, np.zeros(shape, bool)):
            low, high = stored_parts.extremes(values, counts, chosen)
            number = spread_out(np.arange(math.prod(counts)).reshape(counts), shape)
            for at, (a, b) in enumerate(zip(low.reshape(-1), high.reshape(-1), strict=True)):
                own = values[(number == at) & (True if chosen is None else chosen)]
                assert (a, b) == ((own.min(), own.max()) if own.size else (0, 0))


def test_blocks_of_zeros():
    """A scale of 0 is told apart by the caller; no code is made of 0 / 0."""
    values = np.zeros((2, 4), np.float32)
    values[1] = [1, -2, 3, -4]
    for offset in (None, np.full((2, 1), 3, np.int8)):
        scale, new, codes = stored_parts.fit_scale(values, (2, 1), offset, SIGNED)
        assert np.isfinite(scale).all() and scale[0] == 0 and scale[1] > 0
        found = stored_parts.quantize(values, np.where(scale == 0, 1, scale), new, codes)
        assert (found[0] == (0 if new is None else new[0])).all()


def test_fit_of_a_scale_alone():
    values = np.array([[1, -2], [8, -1]], np.float32)
    offset = np.array([[2], [-7]], np.int8)
    scale = stored_parts.fit_scale_alone(values, np.ones((1, 1), np.float32), offset, SIGNED)
    assert scale.tolist() == [[max(1 / 5, 2 / 10, 8 / 14, 1 / 1)]]
    steps = stored_parts.quantize(values, scale, offset, SIGNED)
    assert np.abs(scale * (steps - offset.astype(int)) - values).max() <= scale.item() / 2 + 1e-6


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("mode", ["LINEAR_SYMMETRIC", "LINEAR"])
@pytest.mark.parametrize("nbits", [4, 8])
@pytest.mark.parametrize(
    "shape, blocks",
    [((6, 10), (1, 0)), ((6, 10), (0, 0)), ((8, 12), (1, 4)), ((4, 6, 3, 3), (2, 3, 0, 0)), ((64,), (1,))],
)
def test_a_fit_is_that_of_coremltools(shape, blocks, nbits, mode, signed):
    """Scales, zero points and codes of float32 bit for bit, as `linear_quantize_weights` makes them."""
    utils = pytest.importorskip("coremltools.optimize._utils", reason=WITHOUT["coremltools"])
    types = pytest.importorskip("coremltools.converters.mil.mil.types", reason=WITHOUT["coremltools"])
    random = np.random.default_rng(sum(shape) + nbits)
    values = random.normal(size=shape).astype(np.float32)
    dtype = types.get_nbits_int_builtin_type(nbits, signed)
    data, scale, zero_point = utils.compute_qparams_by_dtype(values, dtype, mode, list(blocks))
    codes = Range(-(1 << nbits - 1), (1 << nbits - 1) - 1) if signed else Range(0, (1 << nbits) - 1)
    # The present zero points tell the mode; those of other values here.
    _, _, present = utils.compute_qparams_by_dtype(
        random.normal(1, 1, shape).astype(np.float32), dtype, mode, list(blocks)
    )
    own_scale, own_offset, own_codes = stored_parts.fit_scale(values, scale.shape, present, codes)
    assert own_scale.dtype == np.float32 and own_scale.tobytes() == scale.tobytes()
    assert (own_offset is None) == (zero_point is None)
    if zero_point is not None:
        assert own_offset.astype(np.int64).tolist() == zero_point.astype(np.int64).tolist()
    found = stored_parts.quantize(values, own_scale, own_offset, own_codes)
    assert found.astype(np.int64).tolist() == data.astype(np.int64).tolist()


def test_sqnr():
    values = np.array([3.0, 4.0], np.float32)
    assert stored_parts.sqnr(values, values) == math.inf
    assert stored_parts.sqnr(values * 0, values) is None
    assert stored_parts.sqnr(values, np.array([3.0, 4.5], np.float16)) == pytest.approx(20)
