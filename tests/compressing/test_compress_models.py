"""Usual architectures, compressed as coremltools compresses them: operations, parts, dtypes, shapes; and what it reads."""

import itertools
import logging
import warnings

import numpy as np
import pytest

import milblob
from compress_coremltools import decompressed, described, theirs
from compress_models import save_architecture
from matrix import every
from milblob import Linear, Palette, Prune
from peers import WITHOUT
from thorough import share, some

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytestmark = pytest.mark.usefixtures("one_thread", "unsynced")
RECIPES = {
    "int8": (Linear(), [("linear", {})]),
    "uint8": (Linear("uint8", "linear", "per_tensor"), [("linear", {"mode": "linear", "dtype": "uint8", "granularity": "per_tensor"})]),
    "int4": (Linear("int4", granularity="per_block", block=16),
             [("linear", {"dtype": "int4", "granularity": "per_block", "block_size": 16})]),
    "palette": (Palette(4), [("palettize", {"nbits": 4})]),
    "uniform": (Palette(2, "uniform"), [("palettize", {"nbits": 2, "mode": "uniform"})]),
    "groups": (Palette(2, granularity="per_grouped_channel", group_size=16),
               [("palettize", {"nbits": 2, "granularity": "per_grouped_channel", "group_size": 16})]),
    "vectors": (Palette(3, vector=4), [("palettize", {"nbits": 3, "cluster_dim": 4})]),
    "scale": (Palette(4, scale=True), [("palettize", {"nbits": 4, "enable_per_channel_scale": True})]),
    "pruned": (Prune(0.75), [("prune", {"target_sparsity": 0.75})]),
    "n m": (Prune(n_m=(1, 2), dim=0), [("prune", {"n_m_ratio": (1, 2), "dim": 0})]),
    "joint": (Prune(0.5) + Palette(4), [("prune", {"target_sparsity": 0.5}), ("palettize", {"nbits": 4})]),
    "joint integers": (Prune(0.5) + Linear(), [("prune", {"target_sparsity": 0.5}), ("linear", {})]),
}  # fmt: skip


KINDS = ["transformer", "cnn", "recurrent", "embedding"]


@pytest.fixture(autouse=True)
def quiet():
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("kind", "opset"),
    some(itertools.product(KINDS, [16, 17, 18]), named=[(kind, 16 + i % 3) for i, kind in enumerate(KINDS)]),
)
@pytest.mark.sample(2)
def test_an_architecture(kind, opset, tmp_path):
    """Each recipe with every kind and every opset, but not with all pairs of them (`make thorough`: with all)."""
    dtype = np.dtype("float32" if kind == "recurrent" else "float16")
    path = save_architecture(kind, tmp_path / "model.mlpackage", opset, dtype)
    before = {name: values for name, (_, values) in described(path).items()}

    def check(name):
        recipe, steps = RECIPES[name]
        ours, other = tmp_path / f"{name} ours.mlpackage", tmp_path / f"{name} theirs.mlpackage"
        if opset < recipe.opset:
            with pytest.raises(milblob.UnsupportedError, match="expected a model for iOS 18 or later"):
                milblob.compress(path, ours, recipe)
            return
        refused = theirs(path, steps, other)
        report = milblob.compress(path, ours, recipe)
        if refused is not None:  # joint compression of a weight along different axes
            assert len(steps) > 1
            return
        got, expected = described(ours), described(other)
        assert set(got) == set(expected)
        names = {weight.name for weight in report.weights} if len(steps) > 1 else set(got)
        assert {n: row for n, (row, _) in got.items() if n in names} == {
            n: row for n, (row, _) in expected.items() if n in names
        }
        is_for_others = name == "n m" and kind in ("embedding", "recurrent")  # n:m is for conv and linear
        assert bool(report.weights) != is_for_others
        for weight in report.weights:
            errors = [float(np.sum((found[weight.name][1] - before[weight.name]) ** 2)) for found in (got, expected)]
            assert errors[0] <= errors[1] * (1 + 1e-9), weight.name
        decompressed(ours, tmp_path / f"{name} dense.mlpackage")
        with milblob.open(tmp_path / f"{name} dense.mlpackage") as opened, milblob.open(ours) as own:
            for weight in report.weights:
                assert opened[weight.name].read().tobytes() == own[weight.name].read().tobytes()

    every(check, share(RECIPES, opset + KINDS.index(kind), 2))


def test_functions_are_compressed_as_each_alone(tmp_path):
    """coremltools compresses no model of several functions; each one alone, and its reading of the result."""
    import coremltools as ct

    first = save_architecture("transformer", tmp_path / "a.mlpackage", 18, np.dtype("float16"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        both = ct.utils.MultiFunctionDescriptor()
        both.add_function(str(first), "main", "main")
        both.add_function(str(first), "main", "other")
        both.default_function_name = "main"
        ct.utils.save_multifunction(both, str(tmp_path / "both.mlpackage"))
    for name in ("int4", "palette", "joint"):
        recipe, steps = RECIPES[name]
        ours, other = tmp_path / f"{name} ours.mlpackage", tmp_path / f"{name} theirs.mlpackage"
        report = milblob.compress(tmp_path / "both.mlpackage", ours, recipe)
        assert theirs(first, steps, other) is None
        got, expected = described(ours), described(other)
        names = {weight.name.partition("/")[2] for weight in report.weights}
        assert len(names) >= 3
        for function in ("main", "other"):
            assert {n: got[f"{function}/{n}"][0] for n in names} == {n: expected[n][0] for n in names}
        with milblob.open(ours) as opened:
            for one in names:
                places = [
                    sorted(
                        part.constant.blob_offset for part in opened[f"{function}/{one}"].parts.values() if part.is_blob
                    )
                    for function in ("main", "other")
                ]
                assert places[0] == places[1]
        loaded = ct.models.MLModel(str(ours), skip_model_load=True, function_name="other")
        assert set(loaded.get_spec().mlProgram.functions) == {"main", "other"}
