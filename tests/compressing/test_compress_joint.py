"""Recipes one after the other, against coremltools' joint compression of the same model."""

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
from thorough import IS_THOROUGH, sized

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytestmark = pytest.mark.usefixtures("one_thread", "unsynced")
PRUNE = ("prune", {"target_sparsity": 0.5})
PALETTE = ("palettize", {"nbits": 4})
GROUPS = ("palettize", {"nbits": 4, "granularity": "per_grouped_channel", "group_size": 16})
LINEAR = ("linear", {})
ENTRIES = ("linear", {"granularity": "per_tensor"})
GROUPED = Palette(4, granularity="per_grouped_channel", group_size=16)
WHOLE = Linear(granularity="per_tensor")
RECIPES = {
    "prune palette": (Prune(0.5) + Palette(4), [PRUNE, PALETTE]),
    "prune groups": (Prune(0.5) + GROUPED, [PRUNE, GROUPS]),
    "prune uniform": (Prune(0.5) + Palette(6, "uniform"), [PRUNE, ("palettize", {"nbits": 6, "mode": "uniform"})]),
    "prune linear": (Prune(0.5) + Linear(), [PRUNE, LINEAR]),
    "prune blocks": (
        Prune(0.25) + Linear("int4", granularity="per_block", block=8),
        [
            ("prune", {"target_sparsity": 0.25}),
            ("linear", {"dtype": "int4", "granularity": "per_block", "block_size": 8}),
        ],
    ),
    "n m linear": (
        Prune(n_m=(2, 4)) + Linear("uint8", "linear"),
        [("prune", {"n_m_ratio": (2, 4)}), ("linear", {"dtype": "uint8", "mode": "linear"})],
    ),
    "threshold palette": (
        Prune(threshold=0.1) + Palette(2),
        [("prune", {"threshold": 0.1}), ("palettize", {"nbits": 2})],
    ),
    "palette entries": (Palette(4) + WHOLE, [PALETTE, ENTRIES]),
    "integer entries": (Palette(4, lut_dtype="int8"), [PALETTE, ENTRIES]),
    "prune, integer entries": (Prune(0.5) + Palette(4, lut_dtype="int8"), [PRUNE, PALETTE, ENTRIES]),
    "few entries": (Palette(2) + WHOLE, [("palettize", {"nbits": 2}), ENTRIES]),
    "groups entries": (
        GROUPED + Linear("uint8", "linear", "per_tensor"),
        [GROUPS, ("linear", {"granularity": "per_tensor", "dtype": "uint8", "mode": "linear"})],
    ),
    "palette prune": (Palette(4) + Prune(0.5), [PALETTE, PRUNE]),
    "linear prune": (Linear() + Prune(0.5), [LINEAR, PRUNE]),
    "linear palette": (Linear() + Palette(4), [LINEAR, PALETTE]),
    "whole palette": (WHOLE + Palette(4), [ENTRIES, PALETTE]),
    "linear groups": (Linear("uint8", "linear") + GROUPED, [("linear", {"dtype": "uint8", "mode": "linear"}), GROUPS]),
    "three": (Prune(0.5) + Palette(4) + WHOLE, [PRUNE, PALETTE, ENTRIES]),
    "three, palette first": (Palette(4) + Prune(0.5) + WHOLE, [PALETTE, PRUNE, ENTRIES]),
}
ALIKE = {
    "prune groups",
    "prune blocks",
    "few entries",
    "whole palette",
    "linear groups",
    "prune, integer entries",
    "three, palette first",
}
"""What joins the same operations as another recipe."""
READ = {"prune palette", "prune linear", "palette entries", "linear palette", "three"}
"""What coremltools reads again in `make test`: one recipe of each layout."""
assert RECIPES.keys() >= ALIKE | READ


@pytest.fixture(scope="module", params=[(n, t) for n in (17, 18) for t in ("float16", "float32")], ids=str)
def model(request, tmp_path_factory):
    opset, dtype = request.param
    path = tmp_path_factory.mktemp("models") / "model.mlpackage"
    logging.disable(logging.CRITICAL)
    yield save_model(path, opset, np.dtype(dtype), disagree=False), opset
    logging.disable(logging.NOTSET)


def without_counts(row, is_counted):
    """A description without the number of elements that are not zero."""
    if is_counted or not isinstance(row, tuple):
        return row
    if len(row) == 1 and isinstance(row[0], int):
        return "so many"
    return tuple(
        {key: without_counts(part, False) for key, part in one.items()}
        if isinstance(one, dict)
        else without_counts(one, False)
        for one in row
    )


def test_the_operations_of_coremltools(request, model, tmp_path):
    """Each recipe for one of the two models that take it, one for each that refuses; `make thorough`: all for all."""
    path, opset = model
    before, kept = {name: values for name, (_, values) in described(path).items()}, {}

    def check(name):
        recipe, steps = RECIPES[name]
        ours, other = tmp_path / f"{name} ours.mlpackage", tmp_path / f"{name} theirs.mlpackage"
        if opset < 18:
            with pytest.raises(UnsupportedError, match="expected a model for iOS 18 or later, got one for iOS 1"):
                milblob.compress(path, ours, recipe)
            return
        refused = theirs(path, steps, other, kept)
        assert refused is None
        report = milblob.compress(path, ours, recipe)
        got, expected = described(ours), described(other)
        is_counted = steps[0][0] == "prune"  # else the magnitudes that are pruned by are not coremltools'
        compressed = {weight.name for weight in report.weights}
        assert len(compressed) >= 3
        for found, row in expected.items():
            if found in compressed:
                assert without_counts(got[found][0], is_counted) == without_counts(row[0], is_counted)
            else:  # coremltools may have applied one recipe of several; milblob all or none, and says why
                assert got[found][0] != row[0] or row[0][0] in ("const", "linear")
                assert row[0][0] in ("const", "linear") or found in dict(report.skipped)
        for weight in report.weights:
            errors = [float(np.sum((found[weight.name][1] - before[weight.name]) ** 2)) for found in (got, expected)]
            assert weight.squared == pytest.approx(errors[0], rel=1e-5)
            assert not is_counted or errors[0] <= errors[1] * 1.001
        assert [finding for finding in milblob.check(ours) if finding.code != "owner-only"] == []
        if not IS_THOROUGH and name not in READ:
            return
        decompressed(ours, tmp_path / f"{name} dense.mlpackage")
        with milblob.open(tmp_path / f"{name} dense.mlpackage") as opened, milblob.open(ours) as own:
            for weight in report.weights:
                assert opened[weight.name].read().tobytes() == own[weight.name].read().tobytes()

    chosen = [name for name in RECIPES if IS_THOROUGH or name not in ALIKE]
    is_half = "float16" in request.node.name
    own = [name for name in chosen if (RECIPES[name][1][0][0] == "prune") == is_half]  # which begin alike
    every(check, sized(own, chosen) if opset > 17 else chosen[: sized(1, len(chosen))])


@pytest.mark.sample(5)
@pytest.mark.parametrize("first", [Palette(4), Linear(), GROUPED], ids=str)
def test_what_is_pruned_last_is_what_coremltools_prunes(first, model, tmp_path):
    """The same zeros as coremltools makes of the same values, ties included."""
    from coremltools.optimize.coreml._quantization_passes import prune_weights

    path, opset = model
    if opset < 18:
        with pytest.raises(UnsupportedError, match="expected a model for iOS 18 or later, got one for iOS 1"):
            milblob.compress(path, tmp_path / "b.mlpackage", first + Prune(0.5))
        return
    milblob.compress(path, tmp_path / "a.mlpackage", first)
    report = milblob.compress(path, tmp_path / "b.mlpackage", first + Prune(0.5))
    assert len(report.weights) >= 3
    with milblob.open(tmp_path / "a.mlpackage") as before, milblob.open(tmp_path / "b.mlpackage") as after:
        for weight in report.weights:
            values = before[weight.name].read()
            expected = prune_weights.decompress(prune_weights.compress_by_magnitude(values, 0.5))
            assert np.array_equal(after[weight.name].read(), expected)
