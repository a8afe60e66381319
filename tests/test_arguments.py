"""Arguments of public functions that are of another kind: a TypeError in one grammar, before anything is done."""

import os
import pathlib
import shutil
import sys
import types

import ml_dtypes
import numpy as np
import pytest

import milblob
import milblob.tvm
from compress_options import grouped
from matrix import every
from milblob.arguments import array_of, as_count, as_integer, require_flags
from paths import DATA, DEMO

ARRAYS = {"a": np.ones(3, np.float32)}
FLAGS = {
    "open": ("constants", "stored", "mmap"), "load": ("constants", "stored", "mmap"), "BlobReader": ("mmap",),
    "check": ("values",), "content_hash": ("dense",), "diff": ("names_only", "stored"),
    "statistics": ("histogram", "distinct"), "merge_functions": ("force", "dry_run"), "join": ("force",),
    "chunk": ("pipeline", "force", "dry_run"), "refit": ("cast", "force", "dry_run"),
    "repack": ("gc", "merge", "canonical", "decompress", "force", "dry_run"), "write_weights": ("force",),
    "BlobWriter": ("sync",), "compress": ("recompress", "force", "dry_run"), "compress_frontier": ("recompress",),
    "delta": ("force",), "apply": ("force", "dry_run"),
}  # fmt: skip
FUNCTIONS = dict.fromkeys(
    (
        "apply",
        "check",
        "chunk",
        "content_hash",
        "delta",
        "diff",
        "join",
        "match",
        "merge_functions",
        "refit",
        "repack",
        "write_weights",
    ),
    ("progress",),
) | {"compress": ("progress",), "compress_frontier": ("progress", "errors"), "Goal": ("errors",)}
SELECTING = ("diff", "match", "refit", "repack", "Scope")
MAPPINGS = {
    "diff": {"mapping": "a mapping of names"},
    "refit": {"mapping": "a mapping of names"},
    "write_weights": {"dtypes": "a mapping of names to dtypes"},
    "Scope": {
        "op_types": "a mapping from types of operations to recipes", "per_name": "a mapping from globs of names to recipes",
    },
    "Guidance": {"importance": "arrays by name of weight", "mapping": "a mapping of names"},
    "Goal": {"sensitivity": "a mapping from globs of names to numbers"},
    "compress_frontier": {"sensitivity": "a mapping from globs of names to numbers"},
}  # fmt: skip
OTHERS = [
    ("diff", "function", ["main"], "a name, got list"),
    ("repack", "externalize", "x", "a number of elements, True or False, got str"),
    ("repack", "inline", 1.5, "a number of elements, True or False, got float"),
    ("repack", "split", 1e6, "'function' or a size, got float"),
    *[(name, "select", 3, "a glob, several globs or a function, got int") for name in SELECTING],
    *[(name, "select", np.array(3), "a glob, several globs or a function, got ndarray") for name in SELECTING],
    *[(name, "select", ["w", 3], "a glob, several globs or a function, got int among the globs") for name in SELECTING],
    ("repack", "functions", [None], "names, got NoneType"),
    ("repack", "executor", 4, "a concurrent.futures.Executor, got int"),
    ("repack", "align", np.array([]), "an integer, got ndarray"),
    ("refit", "requantize", np.array([]), "keep or fit, got ndarray"),
    ("merge_functions", "default", np.array([]), "the name of a function, got ndarray"),
    ("compress", "nan", np.array([]), "one of keep, skip, error, got ndarray"),
    ("compress", "scope", {}, "a Scope, got dict"),
    ("compress", "guidance", {}, "a Guidance, got dict"),
    ("repack", "nan", np.array([]), "one of keep, skip, error, got ndarray"),
    ("compress", "executor", 4, "a concurrent.futures.Executor, got int"),
    ("compress_frontier", "nan", np.array([]), "one of keep, skip, error, got ndarray"),
    ("Scope", "min_size", None, "an integer, got NoneType"),
    ("compress_frontier", "recipes", milblob.Linear(), "several recipes, got Linear"),
    ("compress_frontier", "recipes", {}, "several recipes, got dict"),
    *[("to_text", name, 3, "text, got int") for name in ("function", "operation", "weights", "version")],
    ("to_text", "destination", 3, "a binary file, got int"),
    ("to_text", "around", "2", "an integer, got str"),
]


@pytest.fixture
def given(tmp_path):
    """Function -> arguments that it takes, of files of its own."""
    model, weights, new = tmp_path / "m.mlpackage", tmp_path / "w.bin", tmp_path / "new.mlpackage"
    shutil.copytree(DATA / "quant_int8" / "model.mlpackage", model)
    milblob.write_weights(ARRAYS, weights)
    return {
        "open": (model,), "load": (model,), "BlobReader": (weights,), "check": (model,), "content_hash": (model,),
        "diff": (ARRAYS, ARRAYS), "match": (model, ARRAYS), "statistics": ([1.0],), "merge_functions": ([model], new),
        "chunk": (model, tmp_path / "parts"), "join": ([model, model], new),
        "refit": (model, ARRAYS), "repack": (model, new), "write_weights": (ARRAYS, tmp_path / "new.bin"),
        "BlobWriter": (tmp_path / "new.bin",), "compress": (model, new, milblob.Linear()), "compress_frontier": (model,),
        "delta": (model, model, tmp_path / "p"), "apply": (model, tmp_path / "p"), "to_text": (model,), "Goal": (100,), "Scope": (), "Guidance": ({},),
    }  # fmt: skip


def state(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refuse(given, name, option, value, words, folder):
    before = state(folder)
    with pytest.raises(TypeError, match=f"^{option}: expected {words}$"):
        getattr(milblob, name)(*given[name], **{option: value})
    assert state(folder) == before


@pytest.mark.parametrize("name", FLAGS)
def test_flags(given, name, tmp_path):
    """ "no" is not True."""
    for option in FLAGS[name]:
        for value in ("no", None, 1, []):
            refuse(given, name, option, value, rf"True or False, got {value!r}".replace("[", r"\["), tmp_path)


def test_flags_of_a_model_to_change(given):
    for option in ("constants", "stored", "mmap"):
        with pytest.raises(TypeError, match=f"^{option}: expected True or False, got 'no'$"):
            milblob.open(*given["open"], "r+", **{option: "no"})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(given, name, tmp_path):
    for option in FUNCTIONS[name]:
        refuse(given, name, option, "x", "a function, got str", tmp_path)


@pytest.mark.sample(13)
@pytest.mark.parametrize(("name", "option", "value", "words"), OTHERS)
def test_others(given, name, option, value, words, tmp_path):
    refuse(given, name, option, value, words, tmp_path)


@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings(given, name, tmp_path):
    """A name in one that is no text would be looked for among names, and not be found with a traceback."""
    for option, words in MAPPINGS[name].items():
        for value in ("x", ["x"], 3, True, np.array([])):
            refuse(given, name, option, value, f"{words}, got {type(value).__name__}", tmp_path)
        for key in (None, 3, b"w", ("w",)):
            refuse(given, name, option, {key: None}, f"{words}, with text as keys, got {type(key).__name__}", tmp_path)


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("repack", "overflow"),
        ("refit", "overflow"),
        ("BlobWriter", "mode"),
        ("BlobWriter", "align"),
        ("open", "mode"),
    ],
)
def test_choices(given, name, option):
    """An array has no truth value when it is looked for among words."""
    for value in ("x", 3, np.array([]), np.array(["x", "y"]), b"error"):
        with pytest.raises(ValueError, match=f"^{option}: expected .*, got "):
            getattr(milblob, name)(*given[name], **{option: value})


def test_goals_beyond_all_numbers(tmp_path):
    """The most bits and the least quality that anybody can ask for are no other answer than a lot and a little."""
    source = DATA / "opset_ios16_fp16" / "model.mlpackage"
    options = {"recipes": [milblob.Linear()], "min_size": 0, "dry_run": True}

    def chosen(**goal):
        return milblob.compress(source, tmp_path / "new.mlpackage", **grouped(**goal, **options)).nbytes_after

    assert chosen(bits=1e308) == chosen(bits=64) > chosen(sqnr=-1e308) == chosen(sqnr=0)
    assert chosen(sqnr=1e308) == chosen(sqnr=1e9)


@pytest.mark.parametrize("recipe", [{"recipe": "Linear", 1: 2, "x": 3}, {"recipe": "Joint"}, '{"recipe": "Joint"}'])
def test_recipes(given, recipe):
    with pytest.raises(ValueError, match="^(Linear: expected its options [a-z, ]+|Joint: expected recipes), got "):
        milblob.compress(*given["compress"][:2], recipe)


@pytest.mark.parametrize("source", [None, 3, 1.5, object(), [1], {"a": 1}], ids=lambda value: type(value).__name__)
def test_sources(source):
    functions = [milblob.open, milblob.load, milblob.BlobReader, milblob.check]
    if not isinstance(source, dict):  # arrays by name have a hash
        functions.append(milblob.content_hash)
    for function in functions:
        words = f"^source: expected a path, a buffer or a file object, got {type(source).__name__}$"
        with pytest.raises(TypeError, match=words):
            function(source)


def test_masked_arrays(tmp_path):
    """Nobody means what lies under a mask: it was written, compared and predicted with like any other value."""
    package = shutil.copytree(DATA / "opset_ios16_fp16" / "model.mlpackage", tmp_path / "m.mlpackage")
    good = milblob.load(package, mmap=False)["fc_weight"]
    new = tmp_path / "new"

    def assign(array):
        with milblob.open(package, "r+") as model:
            model["fc_weight"] = array

    def write(array):
        with milblob.BlobWriter(f"{new}.bin") as writer:
            writer.write(array)

    calls = {
        "assign": assign, "write": write, "pack_tensor": milblob.pack_tensor, "statistics": milblob.statistics,
        "refit": lambda array: milblob.refit(package, {"fc_weight": array}, dry_run=True),
        "base": lambda array: milblob.refit(
            package, {"fc_weight": good}, base={"fc_weight": array}, leave=["fc_bias", "table*"], dry_run=True
        ),
        "write_weights": lambda array: milblob.write_weights({"w": array}, f"{new}-w.bin"),
        "write_params": lambda array: milblob.tvm.write_params({"w": array}, f"{new}.params"),
        "diff": lambda array: milblob.diff({"fc_weight": array}, package),
        "match": lambda array: milblob.match(package, {"fc_weight": array}),
        "importance": lambda array: milblob.compress(package, f"{new}.mlpackage", milblob.Palette(4), dry_run=True, scope=milblob.Scope(min_size=0), guidance=milblob.Guidance(importance={"fc_weight": abs(array)})),
    }  # fmt: skip
    before = state(tmp_path)
    for name, call in calls.items():
        with pytest.raises((TypeError, ValueError), match=f"a masked array with 3 of {good.size} masked"):
            call(np.ma.masked_array(good, mask=np.arange(good.size).reshape(good.shape) < 3))
        assert state(tmp_path) == before, name
    with pytest.raises(TypeError, match="^importance of fc_weight: array: expected a value for each element"):
        calls["importance"](np.ma.masked_array(good, mask=True))
    for call in calls.values():
        call(np.ma.masked_array(good))
    assert np.array_equal(milblob.load(package)["fc_weight"], good)
    assert milblob.BlobReader(f"{new}.bin").read(64).tolist() == good.reshape(-1).tolist()


@pytest.mark.parametrize("dtype", ["complex64", "object", "U3", "S3", "datetime64[s]", "timedelta64[s]", "V4"])
def test_importance_of_other_dtypes(dtype, tmp_path):
    """An imaginary part is no importance, nor is a date; those were taken as if they were numbers."""
    package = DATA / "opset_ios16_fp16" / "model.mlpackage"
    shape = milblob.load(package)["fc_weight"].shape
    given = {"fc_weight": np.ones(shape, "i1").astype(dtype) if dtype != "V4" else np.zeros(shape, dtype)}
    with pytest.raises(TypeError, match="^importance: expected real numbers, got .* \\(importance of fc_weight\\)$"):
        milblob.compress(
            package,
            tmp_path / "new.mlpackage",
            milblob.Palette(4),
            scope=milblob.Scope(min_size=0),
            guidance=milblob.Guidance(importance=given),
        )


def test_buffers_of_other_elements():
    """What a buffer is made of does not matter: one number of NumPy is one too, and too short to be a file."""
    for source in (np.int8(3), np.array(3), np.zeros((2, 3), "f4")):
        with pytest.raises(milblob.FormatError):
            milblob.BlobReader(source)
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 12"
    for source in (pointer, np.frombuffer(pointer, "u1"), np.frombuffer(pointer.ljust(64), "f8")):
        with pytest.raises(milblob.FormatError) as caught:
            milblob.BlobReader(source)
        assert caught.value.code == "lfs-pointer"


class AsBytes:
    def __init__(self, path):
        self.path = path

    def __fspath__(self):
        return os.fsencode(self.path)


@pytest.mark.parametrize("kind", ["package", "compiled", "npy", "npz", "weights", "listing", "params"])
def test_paths_of_every_kind(kind, tmp_path):
    """os.listdir and os.scandir answer a path of NumPy's str with bytes."""
    np.savez(tmp_path / "a.npz", **ARRAYS)
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "a.npy", ARRAYS["a"])
    milblob.write_weights(ARRAYS, tmp_path / "a.bin", listing=tmp_path / "a.json")
    milblob.tvm.write_params(ARRAYS, tmp_path / "a.params")
    path = {
        "package": DATA / "opset_ios16_fp16" / "model.mlpackage", "compiled": DATA / "opset_ios16_fp16" / "model.mlmodelc",
        "npy": tmp_path / "arrays", "npz": tmp_path / "a.npz", "weights": tmp_path / "a.bin", "listing": tmp_path / "a.json",
        "params": tmp_path / "a.params",
    }[kind]  # fmt: skip
    model = DATA / "opset_ios16_fp16" / "model.mlpackage"
    functions = {
        "load": lambda path: sorted(milblob.load(path)),
        "check": lambda path: [str(finding) for finding in milblob.check(path)],
        "content_hash": milblob.content_hash,
        "diff": lambda path: milblob.diff(path, model).to_dict(),
        "match": lambda path: milblob.match(model, path).to_dict(),
        "refit": lambda path: milblob.refit(model, path, dry_run=True).to_dict(),
        "repack": lambda path: milblob.repack(path, tmp_path / "new", dry_run=True).to_dict(),
        "to_text": milblob.to_text,
    }

    def outcome(function, path):
        try:
            return function(path)
        except (milblob.MilblobError, ValueError, KeyError) as error:
            return f"{type(error).__name__}: {error}"

    def check(name, made):
        found, expected = (outcome(functions[name], one) for one in (made, str(path)))
        assert found == expected
        assert "str_(" not in repr(found)

    every(check, functions, [np.str_(path), path, AsBytes(path)])


def test_a_new_file_whose_path_is_of_numpy(tmp_path):
    path, model = np.str_(tmp_path / "new"), DATA / "quant_int8" / "model.mlpackage"
    for call in (
        lambda: milblob.repack(model, np.str_(path + ".mlpackage")),
        lambda: milblob.repack(model, np.str_(path + ".mlpackage"), force=True),
        lambda: milblob.write_weights(ARRAYS, np.str_(path + ".bin"), listing=np.str_(path + ".json")),
    ):
        call()
    assert milblob.diff(model, path + ".mlpackage").is_same
    assert list(milblob.load(path + ".json")) == ["a"]


def test_sources_of_a_merge(given, tmp_path):
    model, new = given["repack"]
    for sources in (None, str(model), model):
        with pytest.raises(TypeError, match=f"^sources: expected a list of models, got {type(sources).__name__}$"):
            milblob.merge_functions(sources, new)
    with pytest.raises(TypeError, match="^name: expected one, or a mapping from functions to names, got int$"):
        milblob.merge_functions([(model, 3)], new)
    with pytest.raises(TypeError, match="^tensors: expected a mapping of names to arrays, got list$"):
        milblob.write_weights([np.ones(3)], tmp_path / "new.bin")


def test_numbers_of_a_writer(tmp_path):
    with milblob.BlobWriter(tmp_path / "w.bin") as writer:
        offset = writer.reserve(4, "int8")
        for call, words in (
            (lambda: writer.reserve("4", "int8"), "nbytes: expected an integer, got str"),
            (lambda: writer.reserve(4, "int8", 4.0), "count: expected an integer, got float"),
            (lambda: writer.write_packed(b"ab", "int8", "2"), "count: expected an integer, got str"),
            (lambda: writer.fill([offset], b"ab"), "record: expected the offset of one, got list"),
            (lambda: writer.fill(offset, b"ab", None), "start: expected an integer, got NoneType"),
            (
                lambda: writer.write([1.0], "(1,"),
                "dtype: expected a DType, a NumPy dtype or a name such as 'float16', got ",
            ),
        ):
            with pytest.raises(TypeError, match=f"^{words}"):
                call()
        writer.fill(offset, b"abcd", np.int64(0))
    assert len(milblob.BlobReader(tmp_path / "w.bin")) == 1


def test_what_is_taken():
    require_flags(a=True, b=False, c=np.True_, d=np.bool_(0))
    assert [as_integer("n", value) for value in (3, np.uint64(3), np.array(3))] == [3, 3, 3]
    assert [as_count("n", value, 3, nbits=8) for value in (3, np.uint64(255), np.array(3))] == [3, 255, 3]
    assert as_count("n", 10**30) == 10**30


@pytest.mark.parametrize("value", [True, np.False_, np.array([1, 2]), 3.0])
def test_integers_only(value):
    with pytest.raises(TypeError, match="^n: expected an integer, got "):
        as_integer("n", value)


def test_a_size_must_be_a_number():
    with pytest.raises(TypeError, match="^size: expected bytes, or a text such as '40MB', got bool$"):
        milblob.Goal(size=True)


@pytest.mark.parametrize("value", [-1, 0, -(10**30), np.int8(-128), 2**31, 10**30, np.uint64(2**64 - 1)])
def test_counts_that_are_too_small_or_too_large(value):
    words = "expected 1 or more" if value < 1 else r"expected less than 2\^31"
    with pytest.raises(ValueError, match=f"^n: {words}, got {value}$"):
        as_count("n", value, 1, nbits=31)
    with pytest.raises(TypeError, match="^n: expected an integer, got float$"):
        as_count("n", float(value))


class TorchTensor:
    """What array_of needs of a torch tensor, which no test here has: its refusals are torch's."""

    def __init__(self, array, dtype, is_leaf=True):
        self._array, self.dtype, self._is_leaf = array, f"torch.{dtype}", is_leaf

    def detach(self):
        return TorchTensor(self._array, self.dtype.removeprefix("torch."), False)

    def cpu(self):
        return self

    def contiguous(self):
        return self

    resolve_conj = resolve_neg = contiguous

    def untyped_storage(self):
        raise AssertionError

    def view(self, dtype):
        return TorchTensor(self._array.view(dtype), np.dtype(dtype).name, self._is_leaf)

    def numpy(self):
        if self._is_leaf:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")
        if self.dtype == "torch.bfloat16":
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self._array

    def __array__(self, dtype=None, copy=None):
        return self.numpy()


def test_parameters_of_torch(monkeypatch):
    """Those that require gradients, and those of dtypes that NumPy lacks."""
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(int16=np.int16, uint8=np.uint8))
    for name in ("float32", "bfloat16", "float8_e4m3fn", "float8_e5m2"):
        wanted = np.arange(6).astype(getattr(ml_dtypes, name, name))
        given = TorchTensor(wanted, name)
        assert array_of(given).tobytes() == wanted.tobytes() and array_of(given).dtype == wanted.dtype
        assert milblob.pack_tensor(given) == milblob.pack_tensor(wanted)
        assert milblob.statistics(given).max == 5.0


def test_a_path_is_refused_as_an_array():
    with pytest.raises(TypeError, match="array: expected values, got the path 'w.npy'; milblob.load reads a file"):
        milblob.pack_tensor(pathlib.Path("w.npy"))
    with pytest.raises(FileNotFoundError):
        milblob.statistics("not there.mlpackage")
    with milblob.open(DEMO) as model:
        parts = [milblob.statistics(tensor) for tensor in model.values()]
        for whole in (DEMO, str(DEMO), model, {name: tensor.read() for name, tensor in model.items()}):
            found = milblob.statistics(whole)
            assert list(found) == list(model) and list(found.values()) == parts
            assert found.total.count == sum(part.count for part in parts)
            assert found.total.max == max(part.max for part in parts)
