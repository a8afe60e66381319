"""safe_open: what code written for safetensors does gives the same on the same tensors, of a file and of a model."""

import threading

import ml_dtypes
import numpy as np
import pytest

import milblob
from children import run_child
from paths import DATA, DEMO
from peers import WITHOUT

TENSORS = {
    "z": np.arange(12, dtype=np.float32).reshape(3, 4), "a": np.arange(24, dtype=np.int64).reshape(2, 3, 4),
    "half": np.linspace(-1, 1, 5).astype(np.float16), "flags": np.array([True, False]), "one": np.array(3.5, np.float32),
    "brain": np.arange(4).astype(ml_dtypes.bfloat16), "bytes": np.arange(6, dtype=np.uint8).reshape(6, 1),
    "none": np.zeros((0, 3), np.float32), "e4": np.ones((2, 2), ml_dtypes.float8_e4m3fn),
}  # fmt: skip
KEYS = (
    0, -1, slice(None), slice(1, 2), slice(None, None, 2), ..., (..., 1), (0, ...), (slice(None), slice(1, 3)), (1, 2), (),
    (slice(0, 2), 3), [], True,
)  # fmt: skip


@pytest.fixture
def path(tmp_path):
    pytest.importorskip("safetensors", reason=WITHOUT["safetensors"])
    milblob.save(TENSORS, tmp_path / "t.safetensors")
    return tmp_path / "t.safetensors"


def theirs(path):
    return pytest.importorskip("safetensors", reason=WITHOUT["safetensors"]).safe_open(path, framework="np")


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@pytest.mark.parametrize("backend", ["mmap", "pread"])
def test_names_tensors_and_slices_are_those_of_safetensors(path, backend):
    with theirs(path) as one, milblob.safe_open(path, framework="np", backend=backend) as other:
        assert other.keys() == one.keys()
        assert other.offset_keys() == one.offset_keys()
        for name in one.keys():  # noqa: SIM118  safetensors has no other way
            ours, part = other.get_slice(name), one.get_slice(name)
            assert (ours.get_shape(), ours.get_dtype()) == (part.get_shape(), part.get_dtype())
            if name in ("brain", "e4"):  # safetensors with NumPy alone makes a type of another name, or none
                assert same(other.get_tensor(name), TENSORS[name])
                continue
            assert same(other.get_tensor(name), one.get_tensor(name))
        for key in KEYS:
            assert same(np.asarray(other.get_slice("z")[key]), np.asarray(one.get_slice("z")[key])), key
        assert other.get_tensors().keys() == TENSORS.keys()


def test_a_model_reads_as_the_safetensors_file_of_its_weights(tmp_path):
    pytest.importorskip("safetensors", reason=WITHOUT["safetensors"])
    with milblob.open(DEMO) as model:
        milblob.save(model, tmp_path / "w.safetensors")
    with theirs(tmp_path / "w.safetensors") as one, milblob.safe_open(DEMO, "np") as other:
        assert other.keys() == one.keys()
        for name in one.keys():  # noqa: SIM118  safetensors has no other way
            assert same(other.get_tensor(name), one.get_tensor(name))
            assert same(other.get_slice(name)[1:], one.get_slice(name)[1:])


def test_offset_keys_are_in_the_order_of_the_weight_file():
    with milblob.open(DEMO) as model, milblob.safe_open(model, "np") as f:
        offsets = [model[name].data_offset for name in f.offset_keys()]
        assert offsets == sorted(offsets) and len(offsets) == len(model) == 69
        assert f.keys() == sorted(model)


def test_compressed_weights_and_constants_have_an_offset_key_each():
    with milblob.safe_open(DATA / "quant_int8" / "model.mlpackage", "np", constants=True) as f:
        assert sorted(f.offset_keys()) == f.keys()
        loaded = milblob.load(DATA / "quant_int8" / "model.mlpackage", constants=True)
        for name, values in f.get_tensors().items():
            assert np.array_equal(values, loaded[name])


def test_the_metadata_of_a_model_is_texts():
    with milblob.safe_open(DEMO, "np") as f:
        found = f.metadata()
        assert found["author"] == "the milblob authors" and found["com.github.apple.coremltools.version"] == "9.0"
        assert all(isinstance(text, str) for pair in found.items() for text in pair)


def test_the_metadata_of_a_file_without_any_is_none_as_in_safetensors(tmp_path):
    numpy = pytest.importorskip("safetensors.numpy", reason=WITHOUT["safetensors"])
    numpy.save_file({"w": np.ones(2)}, tmp_path / "a.safetensors")
    numpy.save_file({"w": np.ones(2)}, tmp_path / "b.safetensors", metadata={"format": "np"})
    for name in ("a", "b"):
        with (
            theirs(tmp_path / f"{name}.safetensors") as one,
            milblob.safe_open(tmp_path / f"{name}.safetensors", "np") as f,
        ):
            assert f.metadata() == one.metadata()


def test_a_tensor_can_be_written_and_the_file_never_changes(path):
    with milblob.safe_open(path, "np") as f:
        tensor = f.get_tensor("z")
        tensor[:] = -1
        part = f.get_slice("z")[1:]
        part[:] = -2
        assert same(f.get_tensor("z"), TENSORS["z"])


def test_what_is_refused(path):
    """Where safetensors raises, milblob does, with its own exceptions."""
    library = pytest.importorskip("safetensors", reason=WITHOUT["safetensors"])
    with theirs(path) as one, milblob.safe_open(path, "np") as other:
        for f, error in ((one, library.SafetensorError), (other, KeyError)):
            for read in (f.get_tensor, f.get_slice):
                with pytest.raises(error, match="zz"):
                    read("zz")
        for key, error in ((5, IndexError), ((0, 0, 0), IndexError), ([0, 1], TypeError), (None, TypeError)):
            with pytest.raises(library.SafetensorError):
                one.get_slice("z")[key]
            with pytest.raises(error):
                other.get_slice("z")[key]
        kept = other.get_slice("z")
    for f, error in ((one, library.SafetensorError), (other, ValueError)):
        for call in (f.keys, f.offset_keys, f.metadata, lambda f=f: f.get_tensor("z")):
            with pytest.raises(error, match="closed"):
                call()
    with pytest.raises(ValueError, match="closed"):
        kept[0]
    with pytest.raises(ValueError, match="framework: expected one of np, numpy, pt"):
        milblob.safe_open(path, framework="tensorfire")
    with pytest.raises(ValueError, match="backend: expected one of mmap, pread, got 'disk'"):
        milblob.safe_open(path, "np", backend="disk")
    for opener in (theirs, lambda path: milblob.safe_open(path, "np")):
        with pytest.raises(FileNotFoundError):
            opener(path.parent / "nothing.safetensors")


def test_an_open_model_remains_open_and_has_its_own_options():
    with milblob.open(DEMO) as model:
        with milblob.safe_open(model, "np") as f:
            assert "69 tensors as np" in repr(f)
        assert "closed" in repr(f)
        assert model["head_bias"].read().shape == (96,)
        with pytest.raises(ValueError, match="an open model, which has its own"):
            milblob.safe_open(model, "np", constants=True)


def test_threads_read_from_one_object():
    found, loaded = [], milblob.load(DEMO)
    with milblob.safe_open(DEMO, "np") as f:

        def read():
            found.append(all(same(f.get_tensor(name), loaded[name]) for name in f.keys()))  # noqa: SIM118

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [True] * 4


@pytest.mark.parametrize(
    ("call", "package"),
    [("torch.load(PATH)", "torch"), ("torch.load_into(None, PATH)", "torch"), ("safe_open(PATH, 'pt')", "torch"),
     ("jax.load(PATH)", "jax"), ("safe_open(PATH, 'flax')", "jax"), ("mlx.load(PATH)", "mlx"), ("safe_open(PATH, 'mlx')", "mlx")],
)  # fmt: skip
def test_a_framework_is_imported_when_it_is_used_and_named_when_it_is_missing(call, package):
    code = f"""
import sys, milblob, milblob.torch, milblob.jax, milblob.mlx
assert not {{"torch", "jax", "mlx"}} & set(sys.modules)
sys.modules["{package}"] = None
PATH = sys.argv[1]
try:
    milblob.{call}
except ImportError as error:
    assert "{package} is not installed; run: pip install {package}" in str(error), error
    assert "milblob's extra {package}" in str(error), error
else:
    raise SystemExit("no error")
"""
    run_child(code, str(DEMO))
