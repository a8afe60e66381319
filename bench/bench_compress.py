"""Compression of weights: quantization, palettes and pruning of 48 million parameters, against coremltools."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import SCALE, Made, needs, scaled
from milblob import Linear, Palette
from milblob.rewrite.recipes import Recipe
from milblob.values.palettize import palettize
from milblob.values.prune import prune
from milblob.values.quantize import quantize

SHAPE = (scaled(12 * 1024, 64), scaled(4096, 64))
NBYTES = SHAPE[0] * SHAPE[1] * 2
JOB = f"compress {SHAPE[0] * SHAPE[1] / 1e6:.2g}M float16"


@pytest.fixture(scope="module")
def weights() -> Any:
    """Normally distributed weights."""
    random = np.random.default_rng(6)
    block = (random.standard_normal(1 << 22, np.float32) * np.float32(0.02)).astype(np.float16)
    return np.resize(block, SHAPE)


def _quantizer(dtype: str, blocks: list[int]) -> Callable[[Any], Any]:
    from coremltools.optimize.coreml._quantization_passes import linear_quantize_weights as rival

    return lambda array: rival.blockwise_compress_by_dtype(array, dtype, "LINEAR_SYMMETRIC", blocks)


def _palettizer(group: int) -> Callable[[Any], Any]:
    from coremltools.optimize.coreml._quantization_passes import palettize_weights as rival

    return lambda array: rival.grouped_channelwise_compress(array, "KMEANS", 4, 0, group)


def _pruner() -> Callable[[Any], Any]:
    from coremltools.optimize.coreml._quantization_passes import prune_weights as rival

    return lambda array: rival.compress_by_magnitude(array, 0.5)


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[], Callable[[Any], Any]], int]] = {
    "int8 per channel": (lambda a: quantize(a, "int8", blocks=(1, 0)), lambda: _quantizer("int8", [1, 0]), 1),
    "int4 blocks of 32": (lambda a: quantize(a, "int4", blocks=(1, 32)), lambda: _quantizer("int4", [1, 32]), 1),
    "4-bit palette": (lambda a: palettize(a, 4), lambda: _palettizer(0), 1),
    "4-bit palettes of 16 channels": (lambda a: palettize(a, 4, axis=0, group_size=16), lambda: _palettizer(16), 16),
    "half of the elements zero": (lambda a: prune(a, sparsity=0.5), _pruner, 1),
}
"""Kind -> (milblob, what makes coremltools' function, the part of the rows that the latter is run on)."""


@pytest.mark.parametrize("kind", KINDS)
def bench_milblob(row: Any, weights: Any, kind: str) -> None:
    run = KINDS[kind][0]

    def check(found: Any) -> None:
        assert 0 < found.squared < found.power / 5

    row(f"{JOB}: {kind}", "milblob", lambda: run(weights), check=check, role="milblob", nbytes=NBYTES)


@pytest.mark.parametrize("kind", KINDS)
def bench_coremltools(row: Any, weights: Any, kind: str) -> None:
    needs("coremltools")
    _, make, part = KINDS[kind]
    rows = max(SHAPE[0] // part // 16 * 16, 16)
    run, some = make(), weights[:rows].copy()

    def quiet() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(some)

    def check(found: Any) -> None:
        assert found is not None and any(np.size(field) >= some.size // 8 for field in found if field is not None)

    row(f"{JOB}: {kind}", "coremltools", quiet, check=check, nbytes=NBYTES, share=rows / SHAPE[0], rounds=1)


# ----------------------------------------------------------------------------------------------------- choosing recipes

LADDER: tuple[Recipe, ...] = (Linear(), Palette(8), Palette(6), Palette(4), Palette(3), Palette(2))
CHOICE_JOB = "choose from 6 recipes for 50M float16 by a size"


@pytest.fixture(scope="module")
def layers(made: Made) -> Path:
    """Four layers of a transformer, for iOS 18."""
    count, width = scaled(4, 1), max(64, round(1024 * min(1.0, SCALE**0.5)) // 64 * 64)
    return made("layers.mlpackage", lambda path: makers.write_transformer(path, count, width, "iOS18"))


def bench_choice(row: Any, layers: Path) -> None:
    """Every recipe measured on every weight, and all sizes that can be had."""

    def check(found: Any) -> None:
        assert len(found.alone) == len(LADDER) and found.points[-1].error == 0

    with milblob.open(layers) as opened:
        nbytes = sum(t.nbytes for name, t in opened.items() if name.startswith("layers_") and name.endswith("_weight"))
    row(
        CHOICE_JOB, "milblob",
        lambda: milblob.compress_frontier(layers, recipes=LADDER, select="layers_*_weight"),
        check=check, role="milblob", nbytes=nbytes,
    )  # fmt: skip


def bench_choice_rival(row: Any, weights: Any) -> None:
    """What coremltools takes for one of the six, a 4-bit palette of one weight as large as all of them."""
    needs("coremltools")
    run, some = _palettizer(0), weights[: max(SHAPE[0] // 16, 16)].copy()

    def quiet() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(some)

    def check(found: Any) -> None:
        assert found is not None

    row(
        CHOICE_JOB,
        "coremltools, one recipe",
        quiet,
        check=check,
        nbytes=NBYTES,
        share=some.size / weights.size,
        rounds=1,
    )
