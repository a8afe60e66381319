"""Changed bundles run in Apple's own library: `make aimodel-oracle` runs this ($MILBLOB_COREAI_PYTHON), each bundle in a process."""

import os
import subprocess

import numpy as np
import pytest

import milblob
from bundles import FOLDER, NAMES, bundle, copy_of, linear
from milblob.aimodel import Asset
from milblob.aimodel.emit import Emitter, views

ORACLE = str(FOLDER.parent / "make_aimodel_oracle.py")
TRIES = 3
"""The library fails now and then while it shuts down."""


@pytest.fixture
def run(tmp_path):
    """A function that runs a bundle there, and returns its outputs."""

    def one(path, **inputs):
        np.savez(tmp_path / "in.npz", **inputs)
        command = [
            os.environ["MILBLOB_COREAI_PYTHON"],
            ORACLE,
            "run",
            str(path),
            str(tmp_path / "in.npz"),
            str(tmp_path / "out.npz"),
        ]
        for _ in range(TRIES):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                with np.load(tmp_path / "out.npz") as arrays:
                    return dict(arrays)
        raise AssertionError(done.stderr[-2000:])

    return one


def expected(path, x):
    weights = [np.asarray(a, np.float32) for name, a in milblob.load(path).items() if name.startswith("main/")]
    return linear(weights, x.astype(np.float32))


def x_of(dtype):
    return np.random.default_rng(4).standard_normal((1, 24)).astype(dtype)


@pytest.mark.parametrize("name", ["linear_f32", "linear_f16", "linear_f32_debug", "linear_f32_b2"])
@pytest.mark.parametrize("way", ["in place", "copied"])
def test_refitted_bundles_compute_what_numpy_does(name, way, run, tmp_path):
    folder = copy_of(name, tmp_path)
    source, old = np.random.default_rng(8), milblob.load(folder)
    new = {key: source.standard_normal(array.shape).astype(array.dtype) for key, array in old.items()}
    target = folder if way == "in place" else tmp_path / "new.aimodel"
    milblob.refit(folder, new, destination=None if way == "in place" else target)
    x = x_of(next(iter(old.values())).dtype)
    (found,) = run(target, x=x).values()
    tolerance = 1e-4 if x.dtype == np.float32 else 0.2
    np.testing.assert_allclose(found, expected(target, x), atol=tolerance)


def test_values_stored_apart_and_merged_again_compute_what_numpy_does(run, tmp_path):
    folder = copy_of("functions_f32", tmp_path)
    old = milblob.load(folder)
    first, other = "main/broadcasting_batch_matmul_0.y", "second/broadcasting_batch_matmul_0.y"
    bias = "main/broadcasting_add_0.other"
    milblob.refit(folder, {first: old[first] * 2, bias: old[bias] + 1}, unshare=True)
    x = x_of(np.float32)
    np.testing.assert_allclose(next(iter(run(folder, x=x).values())), expected(folder, x), atol=1e-4)
    milblob.refit(folder, {other: old[first] * 2})
    report = milblob.repack(folder, tmp_path / "merged.aimodel", dedupe=True, gc=True)
    assert report.counts() == {"deduplicate": 1}
    np.testing.assert_allclose(
        next(iter(run(tmp_path / "merged.aimodel", x=x).values())), expected(folder, x), atol=1e-4
    )


def test_a_splat_that_grew_runs(run, tmp_path):
    folder = copy_of("attention_f32", tmp_path)
    milblob.refit(folder, {"main/layer_norm_0.gamma": np.linspace(0.5, 2, 16, dtype="f4")})
    (found,) = run(folder, ids=np.arange(6, dtype=np.int32)[None]).values()
    (before,) = run(bundle("attention_f32"), ids=np.arange(6, dtype=np.int32)[None]).values()
    assert found.shape == before.shape and np.isfinite(found).all() and not np.array_equal(found, before)


@pytest.mark.parametrize(
    "name",
    [name for name in NAMES if name.startswith("bare_f16") and not name.endswith("fp4_mx") and "_int2" not in name][
        ::6
    ],
)
def test_dense_values_of_parts_that_were_refitted(name, run, tmp_path):
    """New codes or palettes: what milblob decodes is what the library multiplies with."""
    folder = copy_of(name, tmp_path)
    with milblob.open(folder, stored=True) as asset:
        parts = {key: tensor.read() for key, tensor in asset.items() if tensor.offset is not None and tensor.size > 16}
    key = next(iter(parts))
    milblob.refit(folder, {key: np.ascontiguousarray(parts[key][..., ::-1] if parts[key].ndim > 1 else parts[key])})
    (found,) = run(folder, x=np.eye(64, dtype=np.float16)).values()
    (values,) = milblob.load(folder).values()
    np.testing.assert_allclose(found.T.astype("f4"), values.astype("f4"), rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["linear_f32", "bare_f16_sparse_palette4"])
def test_an_emitted_file_is_the_same_file(name):
    with Asset(bundle(name)) as asset:
        data = b"".join(map(bytes, views(asset.mapping, Emitter(asset.program.bytecode).pieces())))
    assert data == (FOLDER / f"{name}.aimodel" / "main.mlirb").read_bytes()
