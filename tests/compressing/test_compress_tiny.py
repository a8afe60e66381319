"""Weights so small that what they become goes into the Program, in part or as a whole: all of it is reported."""

import warnings

import numpy as np
import pytest

import milblob
from matrix import every
from milblob import Linear, Palette, Prune
from thorough import share

pytestmark = pytest.mark.usefixtures("one_thread", "unsynced")
WHOLE = Linear(granularity="per_tensor")
SIZES = (2, 3, 7, 8, 9, 10, 11, 16, 17, 72, 73, 79, 80, 81, 160)
EARLY = [
    Linear(), Linear("uint8", "linear"), WHOLE, Palette(1), Palette(4), Palette(8, "uniform"), Palette(None, "unique"), Prune(0.0),
    Prune(0.5), Prune(1.0), Prune(threshold=0.1, min_sparsity=0), Prune(threshold=9.0),
]  # fmt: skip
LATE = [
    Linear("int4"), Linear("uint4", "linear", search=True), Prune(n_m=(1, 2), dim=0), Prune(0.5, block=2), Palette(2, scale=True),
    Prune(0.5) + Palette(2), Palette(6) + WHOLE, Linear() + Prune(0.5), Prune(1.0) + Linear(),
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """(opset, dtype) -> a package with a weight of each size, all of them in the weight file."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    made, folder = {}, tmp_path_factory.mktemp("tiny")
    for opset, dtype in ((16, np.float32), (17, np.float16), (18, np.float16), (18, np.float32)):
        floats = types.fp16 if dtype == np.float16 else types.fp32
        rng = np.random.default_rng(opset)
        weights = [(rng.standard_normal((size, 1)) * 0.3).astype(dtype) for size in SIZES]

        def program(x, *, weights=weights):
            return tuple(mb.linear(x=x, weight=weight, name=f"y{len(weight)}") for weight in weights)

        target = getattr(ct.target, f"iOS{opset}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            converted = ct.convert(
                mb.program(input_specs=[mb.TensorSpec((1, 1), dtype=floats)], opset_version=target)(program),
                convert_to="mlprogram", minimum_deployment_target=target, skip_model_load=True,
                compute_precision=ct.precision.FLOAT16 if dtype == np.float16 else ct.precision.FLOAT32,
            )  # fmt: skip
            converted.save(str(folder / "whole.mlpackage"))
        path = folder / f"{opset}-{np.dtype(dtype)}.mlpackage"
        milblob.repack(folder / "whole.mlpackage", path, externalize=1, force=True)
        made[opset, np.dtype(dtype).name] = path
    return made


def values(path):
    with milblob.open(path) as opened:
        return {name: tensor.read().astype(np.float64) for name, tensor in opened.items()}


MODELS = ((18, "float16"), (18, "float32"), (16, "float32"), (17, "float16"))
# Each recipe for one of the models that take it; `make thorough`: for all.
CASES = [(*one, recipe) for i, recipe in enumerate(EARLY) for one in share(MODELS, i, 4)]
CASES += [(*one, recipe) for i, recipe in enumerate(LATE) for one in share(MODELS[:2], i, 2)]


def test_every_weight_is_reported_at_any_size(models, tmp_path):
    dst = tmp_path / "out.mlpackage"
    seen = set()

    def check(case):
        opset, dtype, recipe = case
        told = []
        src = models[opset, dtype]
        report = milblob.compress(
            src, dst, recipe, force=True, progress=lambda *row: told.append(row), scope=milblob.Scope(min_size=0)
        )
        dry = milblob.compress(src, dst, recipe, dry_run=True, force=True, scope=milblob.Scope(min_size=0))
        assert (dry.weights, dry.skipped, dry.nbytes_after) == (report.weights, report.skipped, report.nbytes_after)
        assert told[-1][1] == told[-1][2] > 0
        before, after = values(src), values(dst)
        for row in report.weights:
            old, new = before[row.name], after[row.name]
            assert row.squared == pytest.approx(float(np.sum((new - old) ** 2)), rel=1e-5, abs=1e-12)
            assert row.power == pytest.approx(float(np.sum(old**2)), rel=1e-5)
            assert row.largest == pytest.approx(float(np.abs(new - old).max()), rel=1e-5, abs=1e-12)
            seen.add(old.size)

    every(check, CASES)
    assert seen >= set(SIZES)
