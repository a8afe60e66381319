"""Tasks that people have, each in a few lines of public functions."""

import collections
import shutil
import subprocess
import sys

import numpy as np
import pytest

import milblob
from paths import DATA, DEMO
from peers import WITHOUT
from repacking import tree


@pytest.fixture
def package(tmp_path):
    return shutil.copytree(DEMO, tmp_path / "m.mlpackage")


def test_load_all():
    weights = milblob.load(DEMO)
    assert len(weights) > 50 and all(isinstance(array, np.ndarray) for array in weights.values())


def test_one_weight_to_torch():
    torch = pytest.importorskip("torch", reason=WITHOUT["torch"])
    with milblob.open(DEMO) as model:
        tensor = torch.from_numpy(model["head_weight"].read().copy())
    assert tensor.shape == milblob.load(DEMO)["head_weight"].shape


def test_replace_one(package):
    with milblob.open(package, "r+") as model:
        model["head_bias"] = np.ones(model["head_bias"].shape, model["head_bias"].dtype)
    assert (milblob.load(package)["head_bias"] == 1).all()


def test_cast(package, tmp_path):
    milblob.repack(package, tmp_path / "wide.mlpackage", cast="float16", select="*")
    found = milblob.load(tmp_path / "wide.mlpackage")
    for name, array in milblob.load(package).items():
        assert np.array_equal(found[name], array.astype(np.float16).astype(found[name].dtype))


def test_int4_blocks(tmp_path):
    source = DATA / "opset_ios18_fp16" / "model.mlpackage"
    recipe = milblob.Linear(4, granularity="per_block", block=2)
    report = milblob.compress(source, tmp_path / "s.mlpackage", recipe, scope=milblob.Scope(min_size=0))
    with milblob.open(tmp_path / "s.mlpackage", stored=True) as model:
        dtypes = {str(tensor.mil_dtype) for tensor in model.values()}
    assert report.weights and "int4" in dtypes


def test_save_as_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy", reason=WITHOUT["safetensors"])
    with milblob.open(DEMO) as model:
        milblob.save(model, tmp_path / "w.safetensors")
    found, expected = safetensors.load_file(tmp_path / "w.safetensors"), milblob.load(DEMO)
    assert found.keys() == expected.keys()
    assert all(found[name].tobytes() == expected[name].tobytes() for name in expected)


def test_open_an_npz_lazily(tmp_path):
    np.savez(tmp_path / "w.npz", w=np.arange(6.0), other=np.ones(3))
    with milblob.open_arrays(tmp_path / "w.npz") as arrays:
        assert list(arrays) == ["w", "other"]
        assert np.array_equal(arrays["w"], np.arange(6.0))


def test_are_they_equal(package, tmp_path):
    milblob.repack(package, tmp_path / "copy.mlpackage")
    assert milblob.content_hash(package).model == milblob.content_hash(tmp_path / "copy.mlpackage").model
    assert tree(package) == tree(tmp_path / "copy.mlpackage")


def test_gate_on_quality(package, tmp_path):
    report = milblob.compress(package, tmp_path / "s.mlpackage", milblob.Goal(sqnr=30))
    assert report.weights and min(weight.sqnr for weight in report.weights) >= 30
    found = milblob.diff(package, tmp_path / "s.mlpackage")
    assert not found.failing(min_sqnr=30) and found.failing(min_sqnr=60)


def test_predict():
    pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])
    with milblob.Session(DEMO) as session:
        name, port = next(iter(session.inputs.items()))
        value = np.zeros(port.shape, port.dtype)
        outputs = session(**{name: value})
        listed = session.run(None, {name: value})
        (alone,) = session.run([next(iter(session.outputs))], {name: value})
        with pytest.raises(ValueError, match="outputs: expected some of .*, got 'nope'"):
            session.run(["nope"], {name: value})
        with pytest.raises(ValueError, match=r"for other batch sizes, convert with ct\.TensorType"):
            session(**{name: np.zeros((port.shape[0] + 1, *port.shape[1:]), port.dtype)})
    assert [*outputs] == [*session.outputs] and len(listed) == len(outputs)
    for array, expected in zip(listed, outputs.values(), strict=True):
        assert np.array_equal(array, expected)
    assert np.array_equal(alone, listed[0])


def test_which_operations_read_a_weight():
    with milblob.open(DEMO) as model:
        assert [consumer.type for consumer in model["head_weight"].consumers] == ["linear"]


def test_count_by_dtype():
    with milblob.open(DEMO) as model:
        counts = collections.Counter(str(tensor.mil_dtype) for tensor in model.values())
    assert counts == collections.Counter(str(array.dtype) for array in milblob.load(DEMO).values())


class Parameter:
    """As a torch Parameter that requires grad: NumPy cannot take it before it is detached."""

    requires_grad = True

    def __init__(self, array):
        self._array, self.shape, self.dtype = array, array.shape, f"torch.{array.dtype}"

    def __array__(self, *arguments, **options):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")

    def untyped_storage(self):
        raise RuntimeError

    def detach(self):
        return _Detached(self._array)


class _Detached:
    def __init__(self, array):
        self._array, self.dtype = array, f"torch.{array.dtype}"

    def cpu(self):
        return self

    contiguous = resolve_conj = resolve_neg = cpu

    def numpy(self):
        return self._array


@pytest.mark.parametrize("kind", ["torch", "a class like its Parameter"])
def test_parameters_that_require_grad(kind, package, tmp_path):
    """They are detached by refit, assignment, save, diff and match."""
    old = milblob.load(package)["head_weight"]
    new = (old * 2).astype(old.dtype)
    if kind == "torch":
        torch = pytest.importorskip("torch", reason=WITHOUT["torch"])
        given = torch.nn.Parameter(torch.from_numpy(new.copy()))
    else:
        given = Parameter(new)
    milblob.refit(package, {"head_weight": given})
    assert np.array_equal(milblob.load(package)["head_weight"], new)
    with milblob.open(package, "r+") as model:
        model["head_bias"] = (
            type(given)(given.detach()[:, 0].contiguous())
            if kind == "torch"
            else Parameter(np.ones(model["head_bias"].shape, model["head_bias"].dtype))
        )
    milblob.refit(package, {"head_weight": given}, cast=True, destination=tmp_path / "c.mlpackage")
    milblob.save({"w": given}, tmp_path / "w.npz")
    assert np.array_equal(np.load(tmp_path / "w.npz")["w"], new)
    assert milblob.diff({"w": given}, {"w": new}).rows[0].kind == "same"
    assert milblob.match(package, {"head_weight": given}).matches[0].name == "head_weight"


MLMODEL = """
import sys, numpy as np, coremltools as ct, milblob
package, folder = sys.argv[1:]
model = ct.models.MLModel(package, skip_model_load=True)
expected = milblob.load(package)
assert milblob.load(model).keys() == expected.keys()
with milblob.open(model) as opened:
    assert opened.path == package
assert milblob.content_hash(model) == milblob.content_hash(package)
assert milblob.diff(model, package).rows
assert milblob.to_text(model) == milblob.to_text(package)
assert milblob.statistics(model) == milblob.statistics(package)
milblob.check(model)
milblob.repack(model, folder + "/r.mlpackage")
milblob.compress(model, folder + "/c.mlpackage", "int8")
milblob.convert([model], folder + "/w.npz")
assert np.load(folder + "/w.npz").files == [*expected]
milblob.refit(model, {"head_bias": expected["head_bias"]}, dry_run=True)
spec = ct.proto.Model_pb2.Model(specificationVersion=4)
spec.neuralNetwork.SetInParent()
try:
    milblob.open(ct.models.MLModel(spec, skip_model_load=True))
except TypeError as error:
    assert "expected an ML Program, which has a package" in str(error), error
else:
    raise AssertionError("a model without a package was opened")
"""


def test_a_model_of_coremltools_is_a_source(package, tmp_path):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    done = subprocess.run([sys.executable, "-c", MLMODEL, str(package), str(tmp_path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
