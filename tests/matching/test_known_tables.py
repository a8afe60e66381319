"""Tables that code computes are recognised; those that were trained, or made of what was trained, are not."""

import numpy as np
import pytest

from draws import restarts
from milblob import DType
from milblob.matching.steps.known_tables import recognise, resembles
from milblob.matching.steps.literals import Literals

LITERALS = Literals({64, 12, 3, 768, 197, 512, 4, 16, 8, 32, 100, 14, 50})
RNG = np.random.default_rng(1)
each_test_draws_the_same = restarts(RNG)


def angles(count, size, base=1e4):
    """The angles of rotary embeddings, in float32 as torch computes them."""
    inverse = 1 / np.float32(base) ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    half = np.outer(np.arange(count, dtype=np.float32), inverse)
    return np.concatenate([half, half], -1)


def interleaved(count, size):
    half = angles(count, size)[:, : size // 2]
    return np.stack([np.sin(half), np.cos(half)], -1).reshape(count, size)


def grid_of(table, count):
    rows, columns = np.repeat(table[:, None], count, 1), np.repeat(table[None], count, 0)
    return np.concatenate([rows, columns], -1).reshape(count * count, -1)


TURNS = np.outer(np.arange(32), np.arange(32)) / 32
KNOWN = {
    "cosines": np.cos(angles(64, 32))[None, None], "sines": np.sin(angles(512, 64, 5e5))[None], "few": np.cos(angles(8, 8)),
    "long": np.cos(angles(2048, 128, 1e6)), "interleaved": interleaved(100, 64), "transposed": interleaved(100, 64).T,
    "times sqrt(64)": interleaved(100, 64) * 8, "of a grid": np.sin(grid_of(angles(8, 16), 8)), "range": np.linspace(-1, 1, 50),
    "DFT": np.cos(2 * np.pi * TURNS), "DFT, sines": np.sin(2 * np.pi * TURNS),
    "grid": np.stack(np.meshgrid(np.linspace(-1, 1, 14), np.linspace(-1, 1, 14)), -1)[None],
    "causal mask": np.where(np.tri(16) > 0, 0, -1e4), "mask": np.where(RNG.random((4, 49, 49)) > 0.5, 0, -100),
    "ALiBi": 2.0 ** -np.arange(1, 9)[:, None, None] * -np.arange(32)[None, None], "zeros": np.zeros((8, 8)),
    "frequencies": angles(2, 64)[1, :32][None, :, None], "frequencies of Llama 3": angles(2, 128, 5e5)[1, :64],
    "anchors": np.stack(np.meshgrid(np.arange(20) + 0.5, np.arange(20) + 0.5), -1).reshape(-1, 2),
}  # fmt: skip
UNKNOWN = {
    "random": RNG.normal(size=(64, 32)), "ten": RNG.normal(size=10), "small": RNG.normal(size=(64, 32)) * 1e-3,
    "sorted": np.sort(RNG.normal(size=64)), "rank 1": np.outer(RNG.normal(size=16), RNG.normal(size=16)),
    "nearly ones": 1 + RNG.normal(size=(64, 64)) * 1e-2, "equal rows": np.repeat(RNG.normal(size=(1, 64)), 50, 0),
    "learnt frequencies": np.sin(np.outer(np.arange(64), RNG.normal(size=32))), "scaled": np.cos(angles(64, 32)) * 1.2345,
    "learnt amplitudes": np.cos(angles(64, 32)) * RNG.normal(size=32), "angles of a grid": grid_of(angles(8, 16), 8),
    "series": np.sort(RNG.random(32))[::-1] / 0.999, "series not from 1": 0.7 * 0.9 ** np.arange(32),
    "nearly a series": 0.8 ** (np.arange(32) + 0.02 * (np.arange(32) > 3)), "learnt slopes": RNG.normal(size=8)[:, None] * np.arange(32), "scaled range": np.arange(50) * 0.7391,
}  # fmt: skip
DTYPES = [DType.FLOAT32, DType.FLOAT16]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", KNOWN)
def test_what_code_computes(name, dtype):
    assert recognise(KNOWN[name].astype(dtype.numpy), dtype, LITERALS) is not None


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_was_trained(name, dtype):
    assert recognise(UNKNOWN[name].astype(dtype.numpy), dtype, LITERALS) is None


def test_what_the_law_leaves_open():
    """Signs may be those of an array; a geometric series of frequencies may have been trained too."""
    signs = np.sign(UNKNOWN["random"]).astype(np.float32)
    (found,) = recognise(signs, DType.FLOAT32, LITERALS).coefficients
    assert resembles(found, signs)
    (frequencies,) = recognise(KNOWN["few"].astype(np.float32), DType.FLOAT32, LITERALS).coefficients
    assert resembles(frequencies, frequencies + 1e-5) and not resembles(frequencies, frequencies * 1.1)


def test_numbers_of_code():
    for dtype in DTYPES:
        for number in (
            0.5,
            12**-0.5,
            1e-5,
            0.044715,
            0.1,
            1 / 3,
            14.0,
            127,
            0.485,
            1 / 0.229,
            64**-0.25,
            -3.4e38,
            np.inf,
            1e-12,
        ):
            with np.errstate(over="ignore"):
                assert LITERALS.has(np.array([number]).astype(dtype.numpy), dtype), number
    learnt = RNG.normal(size=2000)
    assert np.mean([LITERALS.has(np.array([x], np.float32), DType.FLOAT32) for x in learnt]) < 0.01
    assert np.mean([LITERALS.has(np.array([x], np.float16), DType.FLOAT16) for x in learnt]) < 0.15
