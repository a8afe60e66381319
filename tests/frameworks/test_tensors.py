"""Weights as tensors of PyTorch, JAX and MLX: the values and types that safetensors gives, without a copy where it can be."""

import importlib
import pathlib
import shutil
import sys

import ml_dtypes
import numpy as np
import pytest

import milblob
from milblob.model.writable import WritableArrays
from paths import DATA, DEMO
from peers import WITHOUT

WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
NATIVE = {
    name: np.arange(1, 7).reshape(2, 3).astype(dtype)
    for name, dtype in (
        ("f16", np.float16), ("f32", np.float32), ("f64", np.float64), ("bf16", ml_dtypes.bfloat16),
        ("e4", ml_dtypes.float8_e4m3fn), ("e5", ml_dtypes.float8_e5m2), ("i8", np.int8), ("u8", np.uint8), ("i16", np.int16),
        ("u16", np.uint16), ("i32", np.int32), ("u32", np.uint32), ("i64", np.int64), ("u64", np.uint64), ("b", np.bool_),
    )
}  # fmt: skip
NATIVE |= {"scalar": np.array(2.5, np.float16), "empty": np.zeros((0, 3), np.float32)}
SMALL = {
    "int4": np.array([-8, -1, 0, 7]).astype(ml_dtypes.int4), "uint4": np.arange(16).astype(ml_dtypes.uint4),
    "uint2": np.arange(4).astype(ml_dtypes.uint2), "uint1": np.array([1, 0, 1]).astype(ml_dtypes.uint1),
}  # fmt: skip
FILES = ("t.safetensors", "t.bin", "t.npz")
READ = ("t.safetensors", "t.json", "t.npz")
"""The same, of the weight file its listing, which has the names."""


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason=WITHOUT["torch"])


@pytest.fixture
def jax():
    return pytest.importorskip("jax", reason=WITHOUT["jax"])


@pytest.fixture
def mlx():
    return pytest.importorskip("mlx.core", reason=WITHOUT["mlx"])


@pytest.fixture
def paths(tmp_path):
    """Files of NATIVE and SMALL; weight files lack types of 64 bits, uint3 and bool."""
    pytest.importorskip("safetensors", reason=WITHOUT["safetensors"])
    for name in FILES:
        has_all = not name.endswith(".bin")
        lacks = () if has_all else ("f64", "i64", "u64", "b", "empty")
        milblob.save({k: v for k, v in {**NATIVE, **SMALL}.items() if k not in lacks}, tmp_path / name)
    return [tmp_path / name for name in READ]


pytestmark = pytest.mark.filterwarnings("error")


# --------------------------------------------------------------------------------------------------------- without any


def test_arrays_for_frameworks_are_writable_and_the_file_never_changes(tmp_path):
    before = (DEMO / WEIGHTS).read_bytes()
    with milblob.open(DEMO) as model:
        memory, loaded = WritableArrays(), milblob.load(DEMO)
        for name, tensor in model.items():
            array = memory.array(tensor)
            assert array.flags.carray and array.tobytes() == loaded[name].tobytes()
            assert not np.shares_memory(array, tensor.read())
            array[...] = 0
            assert not array.any() and tensor.read().tobytes() == loaded[name].tobytes()
    assert not array.any()  # after closing
    assert (DEMO / WEIGHTS).read_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="no list of mappings: that arrays are views is not tested")
def test_arrays_of_a_weight_file_are_views_of_one_private_mapping():
    with milblob.open(DEMO) as model:
        memory = WritableArrays()
        arrays = [memory.array(tensor) for tensor in model.values()]
        lines = [line.split() for line in pathlib.Path("/proc/self/maps").read_text("utf-8").splitlines()]
        found = [line for line in lines if line[1] == "rw-p" and line[-1].endswith("weights/weight.bin")]
        assert len(found) == 1
        begin, end = (int(part, 16) for part in found[0][0].split("-"))
        assert all(begin <= array.ctypes.data < end for array in arrays)


@pytest.mark.parametrize("options", [{"mmap": False}, {}], ids=["read", "mapped"])
def test_arrays_of_compressed_weights_and_of_files_read_whole(options):
    path = DATA / "quant_int8" / "model.mlpackage"
    with milblob.open(path, constants=True, **options) as model:
        memory = WritableArrays()
        for name, values in milblob.load(path, constants=True).items():
            array = memory.array(model[name])
            assert array.flags.writeable and np.array_equal(array, values)
            assert not np.shares_memory(array, model[name].read())


def test_new_values_of_a_model_that_are_not_written_yet_are_copied(tmp_path):

    path = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    with milblob.open(path, "r+") as model:
        values = np.arange(96, dtype=np.float32)
        model["head_bias"] = values
        array = WritableArrays().array(model["head_bias"])
        array += 1
        assert np.array_equal(model["head_bias"].read(), values)


def test_a_file_that_has_shrunk_is_noticed(tmp_path):
    milblob.save({"w": np.ones(50_000, np.float32)}, tmp_path / "w.bin")
    with milblob.open(tmp_path / "w.bin") as model:
        memory, tensor = WritableArrays(), model["#0"]
        memory.array(tensor)
        with (tmp_path / "w.bin").open("r+b") as file:
            file.truncate(5000)
        for one in (memory, WritableArrays()):
            with pytest.raises(milblob.FormatError, match="expected 200"):
                one.array(tensor)


# ------------------------------------------------------------------------------------------------------------- PyTorch


def bits(torch, tensor):
    """Its bytes; a copy, since a dimension of one element may have any stride."""
    return torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor).reshape(-1).view(torch.uint8).numpy().tobytes()


def test_torch_has_each_type_as_in_safetensors(torch, paths):
    expected = importlib.import_module("safetensors.torch").load_file(paths[0])
    for path in paths:
        found = milblob.torch.load(path)
        assert found.keys() >= {"f16", "bf16", "e4", "e5", "i8"}
        for name, tensor in found.items():
            if name in SMALL:
                assert tensor.dtype == (torch.int8 if name == "int4" else torch.uint8)
                assert tensor.tolist() == SMALL[name].astype(int).tolist()
            else:
                assert tensor.dtype == expected[name].dtype and tensor.shape == expected[name].shape
                assert bits(torch, tensor) == bits(torch, expected[name])
        with milblob.safe_open(path, "pt") as f:
            for name in found:
                assert torch.equal(f.get_tensor(name).float(), found[name].float())
                assert f.get_tensor(name).dtype == f.get_slice(name)[...].dtype == found[name].dtype


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int32"])
def test_views_of_negative_values_are_stored_as_their_values(torch, tmp_path, name):
    """The memory of the tensor has other values, and a flag of it negates them."""
    values = torch.tensor([2, -4, 8]).to(getattr(torch, name))
    negative = torch._neg_view(values)
    assert negative.is_neg() and negative.is_contiguous()
    wanted = np.array([-2, 4, -8]).astype(getattr(ml_dtypes, name, name))
    assert milblob.pack_tensor(negative) == milblob.pack_tensor(wanted)
    milblob.save({"a": negative}, tmp_path / "a.npz")
    assert np.array_equal(milblob.open_arrays(tmp_path / "a.npz")["a"].read(), wanted)
    with milblob.BlobWriter(tmp_path / "a", sync=False) as blobs:
        offsets = [blobs.write(negative), *blobs.write_many([negative])]
    for offset in offsets:
        assert np.array_equal(milblob.BlobReader(tmp_path / "a").read(offset), wanted)


def test_a_negative_view_that_torch_cannot_resolve_is_refused(torch):
    negative = torch._neg_view(torch.tensor([2.0, 4.0]).to(torch.float8_e4m3fn))
    with pytest.raises(
        TypeError, match="^array: expected a tensor with its values, got a negative view of float8_e4m3fn "
    ):
        milblob.pack_tensor(negative)


def test_imaginary_parts_and_conjugates_of_torch(torch):
    conjugate = torch.tensor([1 + 2j]).conj()
    assert conjugate.is_conj() and conjugate.imag.is_neg()
    assert milblob.pack_tensor(conjugate.imag) == milblob.pack_tensor(np.float32([-2]))
    assert milblob.statistics(conjugate.imag).min == -2
    with pytest.raises(TypeError, match="expected one that MIL has, got complex64"):
        milblob.pack_tensor(conjugate)


def test_slices_of_torch_are_those_of_safetensors(torch, paths):
    library = importlib.import_module("safetensors")
    with library.safe_open(paths[0], "pt") as one, milblob.safe_open(paths[0], "pt") as other:
        for name in ("f32", "bf16", "e4", "i64"):
            for key in (0, (slice(None), slice(1, 3)), (..., 1), (slice(None, None, 2), 0), slice(1, 2)):
                a, b = one.get_slice(name)[key], other.get_slice(name)[key]
                assert a.dtype == b.dtype and a.shape == b.shape and bits(torch, a) == bits(torch, b)


def test_torch_tensors_can_be_written_or_refuse_it(torch):
    before, kept = (DEMO / WEIGHTS).read_bytes(), milblob.load(DEMO)["head_weight"].copy()
    tensor = milblob.torch.load(DEMO, select="head_weight")["head_weight"].requires_grad_()
    tensor.sum().backward()
    with torch.no_grad():
        tensor -= tensor.grad
    assert np.array_equal(tensor.detach().numpy(), kept - 1)
    fixed = milblob.torch.load(DEMO, select="head_weight", writable=False)["head_weight"]
    assert torch.equal(fixed + 0, torch.from_numpy(kept))
    with pytest.raises(RuntimeError, match="[Ii]nplace update to inference tensor"):
        fixed.zero_()
    assert np.array_equal(milblob.load(DEMO)["head_weight"], kept) and (DEMO / WEIGHTS).read_bytes() == before


def test_torch_devices_and_what_is_refused(torch):
    assert {t.device.type for t in milblob.torch.load(DEMO, device="meta").values()} == {"meta"}
    with pytest.raises(ValueError, match="head_bia"):
        milblob.torch.load(DEMO, select="head_bia")
    with pytest.raises(TypeError, match="writable: expected True or False"):
        milblob.torch.load(DEMO, writable="no")
    with pytest.raises(milblob.UnsupportedError, match=r"expected one that PyTorch has, got string; select="):
        milblob.torch.load(DATA / "classifier_strings" / "model.mlpackage", constants=True)


@pytest.fixture
def module(torch):
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(48, 96)
            self.same = torch.nn.Linear(48, 96)
            self.same.weight = self.head.weight
            self.same.bias = self.head.bias

    return Tied()


@pytest.mark.parametrize("assign", [False, True])
def test_a_module_takes_the_weights_by_the_names_of_coremltools(torch, module, assign):
    pointer, loaded = module.head.weight.data_ptr(), milblob.load(DEMO)
    found = milblob.torch.load_into(module, DEMO, select="head_*", assign=assign)
    assert found == ([], [])  # the tied ones are not missing
    assert np.array_equal(module.head.weight.detach().numpy(), loaded["head_weight"])
    assert np.array_equal(module.head.bias.detach().numpy(), loaded["head_bias"])
    assert (module.head.weight.data_ptr() == pointer) is not assign
    assert isinstance(module.head.weight, torch.nn.Parameter) and module.head.weight.requires_grad


def test_a_module_takes_the_weights_by_a_mapping_of_match(torch):
    loaded = milblob.load(DEMO)
    module = torch.nn.ModuleDict({"out": torch.nn.Linear(48, 96)})
    with torch.no_grad():
        module["out"].weight.copy_(torch.from_numpy(loaded["head_weight"].copy()))
        module["out"].bias.copy_(torch.from_numpy(loaded["head_bias"].copy()))
    mapping = milblob.match(DEMO, module.state_dict()).refit_mapping
    module.double().load_state_dict({name: torch.zeros_like(t) for name, t in module.state_dict().items()})
    missing, unexpected = milblob.torch.load_into(module, DEMO, mapping=mapping, strict=False)
    assert missing == [] and len(unexpected) == len(loaded) - 2
    assert module["out"].weight.dtype == torch.float64
    assert np.array_equal(module["out"].weight.detach().numpy(), loaded["head_weight"].astype(np.float64))


def test_what_a_mapping_leaves_out_keeps_its_values_and_is_missing(torch, tmp_path):
    """As refit_mapping does with folded weights; names in float16, and several weights that are equal or are not."""
    path, one = tmp_path / "w.npz", np.ones((2, 2), np.float32)
    milblob.save({"a_weight_to_fp16": one.astype(np.float16), "b1": one, "b2": one, "c1": one, "c2": one * 2}, path)
    module = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(2, 2)) for name in ("a_weight", "b", "c")})
    found = milblob.torch.load_into(module, path, mapping={"b": ["b1", "b2"], "c": None}, strict=False)
    assert found == (["c"], ["c1", "c2"])
    assert [module[name].sum().item() for name in ("a_weight", "b", "c")] == [4, 4, 0]
    with pytest.raises(ValueError, match="c: expected equal weights, got c1 and c2, which differ"):
        milblob.torch.load_into(module, path, mapping={"c": ["c1", "c2"]}, strict=False)
    with pytest.raises(TypeError, match="mapping: expected a name, a list of names or None, got 3"):
        milblob.torch.load_into(module, path, mapping={"c": 3}, strict=False)
    assert module["c"].sum() == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "got no parameters for embedding_weight, .* and 62 more"), ({"select": "head_bias"}, "no weights for head.weight"),
        ({"select": "head_*", "mapping": {"no": "head_bias"}}, "mapping: the module has no 'no'"),
        ({"select": "head_*", "mapping": {"head.weight": "head_bias"}, "strict": False}, r"head.weight: expected shape \[96, 48\], got \[96\]"),
    ],
)  # fmt: skip
def test_a_module_is_unchanged_after_an_error(torch, module, options, words):
    before = {name: t.clone() for name, t in module.state_dict().items()}
    with pytest.raises(ValueError, match=words):
        milblob.torch.load_into(module, DEMO, **options)
    assert all(torch.equal(before[name], t) for name, t in module.state_dict().items())
    with pytest.raises(TypeError, match="module: expected a torch.nn.Module, got dict"):
        milblob.torch.load_into({}, DEMO)


# ----------------------------------------------------------------------------------------------------------- JAX, MLX


WIDE = ("f64", "i64", "u64")


def test_jax_has_each_type(jax, paths):
    for path in paths:
        for name, array in milblob.jax.load(path, select=lambda name: name not in WIDE).items():
            expected = {**NATIVE, **SMALL}[name]
            is_own = name in NATIVE or name in ("int4", "uint4")
            assert array.dtype == (expected.dtype if is_own else np.uint8)
            assert np.array_equal(np.asarray(array).astype(np.float64), expected.astype(np.float64))
            assert array.shape == expected.shape
    with milblob.safe_open(paths[0], "flax") as f:
        assert f.get_slice("bf16")[:, 1:].tolist() == [[2, 3], [5, 6]] and isinstance(f.get_tensor("f32"), jax.Array)
    for name in WIDE:
        with pytest.raises(milblob.UnsupportedError, match="JAX has, got .*64 while jax_enable_x64 is False"):
            milblob.jax.load(paths[0], select=name)
    with jax.enable_x64(True):
        for name, array in milblob.jax.load(paths[0], select=WIDE, device=jax.devices()[0]).items():
            assert array.dtype == NATIVE[name].dtype and np.array_equal(np.asarray(array), NATIVE[name])


def test_mlx_has_each_type_but_fp8(mlx, paths):
    for path in paths:
        for name, array in milblob.mlx.load(path, select=lambda name: name not in ("e4", "e5")).items():
            expected = {**NATIVE, **SMALL}[name]
            if name in SMALL:
                assert array.dtype == (mlx.int8 if name == "int4" else mlx.uint8)
            else:
                names = {"bf16": "bfloat16", "b": "bool"}
                assert str(array.dtype) == f"mlx.core.{names.get(name, expected.dtype.name)}"
            found = np.array(array.astype(mlx.float32) if name == "bf16" else array)
            assert found.shape == expected.shape
            assert np.array_equal(found.astype(np.float64), expected.astype(np.float64))
    with milblob.safe_open(paths[0], "mlx") as f:
        assert f.get_slice("bf16")[:, 1:].tolist() == [[2, 3], [5, 6]]
    with pytest.raises(milblob.UnsupportedError, match="MLX has, got float8e4m3fn"):
        milblob.mlx.load(paths[0], select="e4")
