"""What the tests of diff and match share: arrays to compare, and figures of a difference by NumPy."""

import numpy as np
import pytest

import milblob


def listed(folder, name="w", **arrays):
    """A weight file with a listing: the path of the listing."""
    listing = folder / f"{name}.json"
    milblob.write_weights(arrays, folder / f"{name}.bin", listing=listing)
    return listing


def noise(count=1000, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def kinds(found):
    return {row.name: row.kind for row in found.rows}


def check_figures(figures, a, b):
    """Against NumPy in float64, every figure by its own formula."""
    x, y = a.astype(np.float64).reshape(-1), b.astype(np.float64).reshape(-1)
    d = y - x
    assert figures.unequal == np.count_nonzero(d)
    assert figures.max_abs == np.abs(d).max()
    close = {"rel": 1e-11, "abs": 1e-14}
    assert figures.mean_abs == pytest.approx(np.abs(d).mean(), **close)
    assert figures.relative == pytest.approx(np.linalg.norm(d) / np.linalg.norm(x), **close)
    assert figures.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y), **close)
    assert figures.sqnr == pytest.approx(10 * np.log10((x * x).sum() / (d * d).sum()), **close)
    assert figures.correlation == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-9)
