"""Compressed packages against coremltools.optimize.coreml on the same model, and what coremltools reads from them."""

import logging

import numpy as np
import pytest

import milblob
from compress_coremltools import decompressed, described, theirs
from compress_models import save_model
from matrix import every
from milblob import Linear, Palette, Prune
from milblob.errors import UnsupportedError
from peers import WITHOUT
from thorough import IS_THOROUGH

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytestmark = pytest.mark.usefixtures("one_thread", "unsynced")
RECIPES = {
    "int8": (Linear(), "linear", {}),
    "uint8 linear": (Linear("uint8", "linear", "per_tensor"), "linear",
                     {"mode": "linear", "dtype": "uint8", "granularity": "per_tensor"}),
    "uint8": (Linear("uint8"), "linear", {"dtype": "uint8"}),
    "int8 linear": (Linear("int8", "linear"), "linear", {"mode": "linear"}),
    "int4 blocks": (Linear("int4", granularity="per_block", block=8), "linear",
                    {"dtype": "int4", "granularity": "per_block", "block_size": 8}),
    "uint4 linear": (Linear("uint4", "linear"), "linear", {"mode": "linear", "dtype": "uint4"}),
    "int4 large blocks": (Linear("int4", granularity="per_block", block=32), "linear",
                          {"dtype": "int4", "granularity": "per_block", "block_size": 32}),
    **{f"palette {n}": (Palette(n), "palettize", {"nbits": n}) for n in (1, 2, 3, 4, 6, 8)},
    "palette groups": (Palette(4, granularity="per_grouped_channel", group_size=16), "palettize",
                       {"nbits": 4, "granularity": "per_grouped_channel", "group_size": 16}),
    "palette axis": (Palette(2, granularity="per_grouped_channel", group_size=4, channel_axis=1), "palettize",
                     {"nbits": 2, "granularity": "per_grouped_channel", "group_size": 4, "channel_axis": 1}),
    "vectors": (Palette(4, vector=2), "palettize", {"nbits": 4, "cluster_dim": 2}),
    "vectors of groups": (
        Palette(2, granularity="per_grouped_channel", group_size=8, vector=4), "palettize",
        {"nbits": 2, "granularity": "per_grouped_channel", "group_size": 8, "cluster_dim": 4}),
    "vectors of another axis": (
        Palette(3, granularity="per_grouped_channel", group_size=8, vector=2, channel_axis=1), "palettize",
        {"nbits": 3, "granularity": "per_grouped_channel", "group_size": 8, "cluster_dim": 2, "channel_axis": 1}),
    "scale": (Palette(4, scale=True), "palettize", {"nbits": 4, "enable_per_channel_scale": True}),
    "scale of groups": (
        Palette(4, granularity="per_grouped_channel", group_size=16, scale=True), "palettize",
        {"nbits": 4, "granularity": "per_grouped_channel", "group_size": 16, "enable_per_channel_scale": True}),
    "uniform": (Palette(6, "uniform"), "palettize", {"nbits": 6, "mode": "uniform"}),
    "sparsity": (Prune(0.5), "prune", {"target_sparsity": 0.5}),
    "blocks": (Prune(0.5, block=2), "prune", {"target_sparsity": 0.5, "block_size": 2}),
    "n m": (Prune(n_m=(2, 4)), "prune", {"n_m_ratio": (2, 4)}),
    "threshold": (Prune(threshold=0.1), "prune", {"threshold": 0.1}),
}  # fmt: skip
# Every opset and every dtype; before iOS 18 the operations that hold a dtype are the same ones.
MODELS = [(16, "float32"), (17, "float16"), (18, "float16"), (18, "float32")]
ALIKE = {
    "uint8",
    "int8 linear",
    "int4 large blocks",
    "palette 2",
    "palette 3",
    "palette 6",
    "palette 8",
    "vectors of another axis",
}
"""What differs from another recipe in a number only."""
READ = {"int8", "uint8 linear", "int4 blocks", "palette 4", "palette groups", "vectors", "scale", "sparsity"}
"""What coremltools reads again in `make test`: one recipe of each operation and layout."""
assert RECIPES.keys() >= ALIKE | READ


def chosen(index):
    """Return the recipes for one of the models: in `make test` each is for one that takes it, and each older model refuses one."""
    if IS_THOROUGH:
        return list(RECIPES)
    early = [name for name, (recipe, *_) in RECIPES.items() if recipe.opset < 18 and name not in ALIKE]
    late = [name for name, (recipe, *_) in RECIPES.items() if recipe.opset == 18 and name not in ALIKE]
    return early[index::4] + (late[index - 2 :: 2] if MODELS[index][0] == 18 else late[index : index + 1])


@pytest.fixture(scope="module", params=MODELS, ids=str)
def model(request, tmp_path_factory):
    opset, dtype = request.param
    path = tmp_path_factory.mktemp("models") / "model.mlpackage"
    logging.disable(logging.CRITICAL)
    yield save_model(path, opset, np.dtype(dtype)), opset, chosen(MODELS.index(request.param))
    logging.disable(logging.NOTSET)


def test_the_operations_of_coremltools(model, tmp_path):
    path, opset, recipes = model
    before = {name: values for name, (_, values) in described(path).items()}

    def check(name):
        recipe, kind, options = RECIPES[name]
        ours, other = tmp_path / f"{name} ours.mlpackage", tmp_path / f"{name} theirs.mlpackage"
        refused = theirs(path, [(kind, options)], other)
        if opset < recipe.opset:
            assert refused is not None
            with pytest.raises(UnsupportedError, match="expected a model for iOS 18 or later, got one for iOS 1"):
                milblob.compress(path, ours, recipe)
            assert not ours.exists()
            return
        assert refused is None
        report = milblob.compress(path, ours, recipe)
        got, expected = described(ours), described(other)
        assert {n: row for n, (row, _) in got.items()} == {n: row for n, (row, _) in expected.items()}
        for weight in report.weights:
            errors = [float(np.sum((found[weight.name][1] - before[weight.name]) ** 2)) for found in (got, expected)]
            assert errors[0] <= errors[1]
            assert weight.squared == pytest.approx(errors[0], rel=1e-5)
            if isinstance(recipe, Prune):
                assert np.array_equal(got[weight.name][1], expected[weight.name][1])
        # The model is coremltools' own, whose folders only their owner can read; copies keep permissions.
        # Nor is it a surprise that palettes that are repeated for each scale take more room than weights of this size.
        usual = {"owner-only", "compressed-larger"} if name.startswith("scale") else {"owner-only"}
        assert [finding for finding in milblob.check(ours) if finding.code not in usual] == []
        compressed = {weight.name for weight in report.weights}
        skipped = {name for name, _ in report.skipped}
        assert not compressed & skipped
        assert compressed | skipped == set(got)
        if not IS_THOROUGH and name not in READ:
            return
        decompressed(ours, tmp_path / f"{name} dense.mlpackage")
        with milblob.open(tmp_path / f"{name} dense.mlpackage") as opened, milblob.open(ours) as own:
            for weight in report.weights:
                assert opened[weight.name].read().tobytes() == own[weight.name].read().tobytes()

    every(check, recipes)
