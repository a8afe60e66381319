"""milblob.compress of a weight of several GiB in little memory. The file is sparse."""

import shutil
import sys

import numpy as np
import pytest

import milblob
from children import LIMIT_NBYTES
from compress_large_models import COLUMNS, save_weight
from milblob.lossy.quantize import quantize
from repacking import measured_compress
from thorough import sized, some

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"),
    reason="Linux has sparse files and RssAnon: memory for huge files is not measured here",
)
SOME = 256
ROWS = {"float16": sized(20_480, 402_688), "float32": sized(10_240, 201_344)}  # 160 MiB, or just over 3 GiB
MOST_NBYTES = LIMIT_NBYTES + (sized(60, 100) << 20)
"""Anonymous memory, Python and NumPy included: much less than the integers of the weight take."""

LINEAR = {
    "int8": ({}, ("int8", "linear_symmetric", (1, 0))),
    "int4 blocks": ({"dtype": "int4", "granularity": "per_block", "block": 32}, ("int4", "linear_symmetric", (1, 32))),
    "uint4 blocks with zero points": (
        {"dtype": "uint4", "mode": "linear", "granularity": "per_block", "block": 32}, ("uint4", "linear", (1, 32)),
    ),
}  # fmt: skip
OTHERS = {
    "int8 per tensor": ({"recipe": "Linear", "granularity": "per_tensor"}, 37),
    "4-bit palette": ({"recipe": "Palette", "bits": 4}, 15),
    "1-bit palette": ({"recipe": "Palette", "bits": 1}, 2),
    "palettes of 16 channels": (
        {"recipe": "Palette", "bits": 4, "granularity": "per_grouped_channel", "group_size": 16}, 19,
    ),
    "sparsity": ({"recipe": "Prune", "sparsity": 0.5}, 100),
    "threshold": ({"recipe": "Prune", "threshold": 1.0, "min_sparsity": 0.1}, 6),
    "2 of 4": ({"recipe": "Prune", "n_m": [2, 4]}, 8),
    "2 of 4 along the first dimension": ({"recipe": "Prune", "n_m": [2, 4], "dim": 0}, 8),
    "blocks pruned": ({"recipe": "Prune", "sparsity": 0.5, "block": 4}, 100),
    "int8 columns": ({"recipe": "Linear", "granularity": "per_block", "block": [0, 1]}, 39),
}  # fmt: skip

SPOOLED = {
    "palette with integers": ([{"recipe": "Palette", "bits": 6, "lut_dtype": "int8"}], 1),
    "pruned, then palette": ([{"recipe": "Prune", "sparsity": 0.5}, {"recipe": "Palette", "bits": 4}], 1),
    "pruned, then integers": ([{"recipe": "Prune", "sparsity": 0.5}, {"recipe": "Linear"}], 30),
    "palette, then pruned": ([{"recipe": "Palette", "bits": 4}, {"recipe": "Prune", "sparsity": 0.5}], 1),
    "integers, then palette": ([{"recipe": "Linear"}, {"recipe": "Palette", "bits": 4}], 1),
    "palettes along another axis": (
        [{"recipe": "Palette", "granularity": "per_grouped_channel", "group_size": 256, "channel_axis": 1}], 1,
    ),
    "palettes with scales": ([{"recipe": "Palette", "scale": True}], 1),
    "palette of vectors": ([{"recipe": "Palette", "vector": 2}], 0),
}  # fmt: skip
"""Recipes whose parts go to a file before the result is laid out: (recipe, least SQNR)."""

MOST_SPOOLED_NBYTES = LIMIT_NBYTES + (sized(150, 400) << 20)
"""Far less than 1 GiB, for 3 GiB of float16 or float32."""


def of_each(cases, count):
    """Parameters `large` and `case`: each case, and one of the two dtypes in turn."""
    dtypes = list(ROWS)
    pairs = [(dtypes[number % 2], case) for number, case in enumerate(cases)]
    own = pairs[::2]  # make test has one file
    named = [own[number * len(own) // count] for number in range(count)]
    return pytest.mark.parametrize(("large", "case"), some(pairs, named=named), indirect=["large"])


@pytest.fixture(scope="module")
def large(request, tmp_path_factory):
    """(package, rows): one weight w0 of a linear operation; rows at both ends and in the middle, the rest is a hole."""
    folder, name = tmp_path_factory.mktemp("large"), request.param
    count, dtype = ROWS[name], np.dtype(name)
    rows = np.random.default_rng(1).standard_normal((3, SOME, COLUMNS), np.float32).astype(dtype)
    width, half = COLUMNS * dtype.itemsize, count // 2
    pieces = [
        rows[0].tobytes(),
        (half - SOME) * width,
        rows[1].tobytes(),
        (count - half - 2 * SOME) * width,
        rows[2].tobytes(),
    ]
    package = save_weight(folder, name, count, pieces)
    yield package, rows
    shutil.rmtree(folder)


def dense_rows(package, count):
    """The rows that hold numbers, and some between them."""
    with milblob.open(package) as opened:
        weight = opened["w0"]
        begins = (0, count // 2, count - SOME)
        return np.stack([weight[begin : begin + SOME] for begin in begins]), weight[SOME : SOME + 8]


@of_each(LINEAR, 1)
def test_linear(large, case, tmp_path):
    package, rows = large
    options, (dtype, mode, blocks) = LINEAR[case]
    target = tmp_path / "out.mlpackage"
    found = measured_compress(package, target, {"recipe": "Linear", **options}, MOST_NBYTES)
    values, between = dense_rows(target, ROWS[rows.dtype.name])
    assert not between.any()
    alone = [quantize(part, dtype, mode=mode, blocks=blocks) for part in rows]  # rows do not depend on each other
    with milblob.open(target, stored=True) as opened:
        codes = opened["w0.data"]
        for begin, one in zip((0, ROWS[rows.dtype.name] // 2, -SOME), alone, strict=True):
            part = codes[begin : begin + SOME] if begin >= 0 else codes[begin:]
            assert np.array_equal(part.astype(np.int8), one.data.astype(np.int8))
    assert found["squared"] == pytest.approx(sum(one.loss.squared for one in alone), rel=1e-9)
    assert found["power"] == pytest.approx(sum(one.loss.power for one in alone), rel=1e-9)
    lost = float(np.sum((values.astype(np.float64) - rows) ** 2))
    assert found["squared"] == pytest.approx(lost, rel=1e-5)
    shutil.rmtree(target)


@of_each(OTHERS, 2)
def test_others(large, case, tmp_path):
    require_figures(large, *OTHERS[case], MOST_NBYTES, tmp_path)


@of_each(SPOOLED, 1)
def test_spooled(large, case, tmp_path):
    recipes, least_sqnr = SPOOLED[case]
    recipe = recipes[0] if len(recipes) == 1 else {"recipe": "Joint", "recipes": recipes}
    require_figures(large, recipe, least_sqnr, MOST_SPOOLED_NBYTES, tmp_path)


def require_figures(large, recipe, least_sqnr, most_nbytes, tmp_path):
    """Compress in little memory; the figures are those of the values that a reader gets."""
    package, rows = large
    target = tmp_path / "out.mlpackage"
    found = measured_compress(package, target, recipe, most_nbytes)
    values, between = dense_rows(target, ROWS[rows.dtype.name])
    lost = float(np.sum((values.astype(np.float64) - rows) ** 2))
    rest = float(np.sum(between.astype(np.float64) ** 2)) / between.size * (ROWS[rows.dtype.name] - 3 * SOME) * COLUMNS
    assert found["squared"] == pytest.approx(lost + rest, rel=1e-3, abs=1e-9)
    assert found["sqnr"] is None or found["sqnr"] > least_sqnr
    shutil.rmtree(target)
