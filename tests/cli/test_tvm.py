"""TVM's files on the command line: every command that takes a model takes .params files and archives too."""

import hashlib
import json
import shutil

import ml_dtypes
import numpy as np
import pytest

import milblob
import paths
import tvm_archives as made
from milblob import tvm
from milblob.formats.read import open_arrays
from peers import WITHOUT

pytestmark = pytest.mark.usefixtures("unsynced")

KINDS = ("tar", "tar.gz", "directory")
NEW = np.array([[5, 6]], np.float32)


@pytest.fixture(params=KINDS)
def archive(request, tmp_path):
    return build(tmp_path, "m", request.param)


def build(folder, name, kind, **options):
    path = folder / (name if kind == "directory" else f"{name}.{kind}")
    return made.make(path, made.files_of(**options), kind)


@pytest.fixture
def params(tmp_path):
    path = tmp_path / "m.params"
    path.write_bytes(made.params_of({"p0": made.C, "p1": np.arange(6, dtype=np.int8).reshape(2, 3)}))
    return path


def npz(path, **arrays):
    np.savez(path, **arrays)
    return path


def digest(path):
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    return [(p.name, hashlib.sha256(p.read_bytes()).hexdigest()) for p in files]


def p0_of(path, module="default"):
    with tvm.open(path) as library:
        return library.modules[module].params["p0"].read().tolist()


# ------------------------------------------------------------------------------------------- the commands of all models


def test_ls(archive, cli):
    status, out, _ = cli("ls", archive, "--json")
    document = json.loads(out)
    assert (status, document["kind"]) == (0, "archive")
    (row,) = document["tensors"]
    assert (row["name"], row["dtype"], row["shape"], row["nbytes"]) == ("p0", "float32", [1, 2], 8)
    data = archive.read_bytes() if archive.suffix == ".tar" else None
    if data is not None:  # the offset is that of the elements
        assert data[row["offset"] : row["offset"] + 8] == made.C.tobytes() and row["file"] == str(archive)
    assert document["totals"]["nbytes_unique"] == 8
    assert "p0    float32  [1, 2]   8 B" in cli("ls", archive)[1]


def test_ls_takes_dtypes_that_only_tvm_has(tmp_path, cli):
    path = tmp_path / "m.params"
    tvm.write_params({"a": np.ones((2, 3), ml_dtypes.float8_e3m4), "b": np.ones(2, np.float32)}, path)
    document = json.loads(cli("ls", path, "--json")[1])
    assert [(row["dtype"], row["nbytes"]) for row in document["tensors"]] == [("float8_e3m4", 6), ("float32", 8)]
    status, _, err = cli("stats", path)
    assert status == 2 and "parameter a: expected an element type that MIL has, got float8_e3m4" in err
    assert cli("stats", path, "-k", "b")[0] == 0
    status, out, err = cli("show", path, "a")
    assert status == 2 and "float8_e3m4 [2, 3]" in out and "got float8_e3m4" in err
    # From .params to .params nothing of it is lost.
    assert cli("convert", path, "-o", tmp_path / "n.params", "-v")[0] == 0
    assert (tmp_path / "n.params").read_bytes() == path.read_bytes()


def test_show_a_file(archive, params, cli):
    out = cli("show", archive)[1]
    assert "Model Library Format version 7, full-model" in out and "module" in out and "graph; c -keys=cpu" in out
    document = json.loads(cli("show", archive, "--json")[1])
    assert (document["tensors"], document["nbytes"], document["library"]["version"]) == (1, 8, 7)
    assert json.loads(cli("show", params, "--json")[1]) == {
        "path": str(params),
        "kind": "params",
        "tensors": 2,
        "nbytes": 14,
    }


def test_show_an_array(params, cli):
    document = json.loads(cli("show", params, "p1", "--json")[1])
    assert (document["dtype"], document["tvm_dtype"], document["shape"]) == ("int8", "int8", [2, 3])
    assert (document["values"]["first"], document["values"]["max"]) == ([0, 1, 2, 3, 4, 5], 5)
    assert params.read_bytes()[document["offset"] :][:6] == bytes(range(6))
    assert "first values  2, 4" in cli("show", params, "p0")[1]
    assert "first values" not in cli("show", params, "p0", "-q")[1]
    status, _, err = cli("show", params, "p")
    assert status == 2 and "has no array 'p'" in err and "did you mean" in err
    assert cli("show", params, "p0", "-f", "main")[0] == 2


def test_stats(archive, params, cli):
    row = json.loads(cli("stats", archive, "--json")[1])["tensors"][0]
    assert (row["name"], row["min"], row["max"], row["mean"]) == ("p0", 2, 4, 3)
    assert [row["max"] for row in json.loads(cli("stats", params, "--json")[1])["tensors"]] == [4, 5]


def test_statistics_of_modules_have_their_names(tmp_path, cli):
    path = build(tmp_path, "m", "tar", modules=("a", "b"))
    names = ["a/p0", "b/p0"]
    for command in ("ls", "stats"):
        assert [row["name"] for row in json.loads(cli(command, path, "--json")[1])["tensors"]] == names
    assert list(json.loads(cli("hash", path, "--json")[1])["tensors"]) == names


def test_hash_is_that_of_the_contents(archive, tmp_path, cli):
    """Of an archive, of its parameters in every other format, and of a weight file with its listing."""
    found = {json.loads(cli("hash", archive, "--json")[1])["model"]}
    for target in ("x.npz", "x.safetensors", "x.params", "x/", "x.bin"):
        there = f"{tmp_path}/{target}"
        assert cli("convert", archive, "-o", there)[0] == 0
        found.add(json.loads(cli("hash", there.replace(".bin", ".json").rstrip("/"), "--json")[1])["model"])
    assert len(found) == 1
    tvm.write_params({"p0": NEW}, tmp_path / "y.params")
    assert json.loads(cli("hash", tmp_path / "y.params", "--json")[1])["model"] not in found


@pytest.mark.parametrize("target", ["x.params", "x.npz", "x.safetensors", "x/", "x.bin"])
def test_out_of_an_archive(target, archive, tmp_path, cli):
    there = f"{tmp_path}/{target}"
    assert cli("convert", archive, "-o", there)[0] == 0
    with open_arrays(there.replace(".bin", ".json").rstrip("/")) as arrays:
        assert {name: array.read().tolist() for name, array in arrays.items()} == {"p0": [[2, 4]]}
    if target == "x.params":  # what the archive has, byte for byte
        with tvm.open(archive) as library:
            assert (tmp_path / target).read_bytes() == bytes(library.read_file("parameters/default.params"))


@pytest.mark.parametrize("source", ["x.params", "x.npz", "x.safetensors", "x/", "x.bin"])
def test_params_to_every_format_and_back(source, tmp_path, cli):
    """Every dtype that .params files and weight files, or other formats with their notes, have."""
    rng = np.random.default_rng(1)
    names = ["int8", "int16", "int32", "uint8", "uint16", "uint32", "float16", "float32", "bfloat16"]
    names += ["float8_e4m3fn", "float8_e5m2"]
    if source != "x.bin":
        names += ["int64", "uint64", "float64"]
    arrays = {name: rng.integers(0, 9, (3, 5)).astype(np.dtype(getattr(ml_dtypes, name, name))) for name in names}
    arrays |= {"scalar": np.float32(3), "empty": np.zeros((0, 3), np.float32)}
    if source != "x.bin":
        arrays["bool"] = np.array([True, False])
    else:
        del arrays["empty"], arrays["scalar"]
    path = tmp_path / "first.params"
    tvm.write_params(arrays, path)
    there = f"{tmp_path}/{source}"
    assert cli("convert", path, "-o", there)[0] == 0
    assert cli("convert", there.replace(".bin", ".json").rstrip("/"), "-o", tmp_path / "last.params")[0] == 0
    if source in ("x.params", "x.npz"):  # the others have an order of their own
        assert (tmp_path / "last.params").read_bytes() == path.read_bytes()
    with tvm.read_params(tmp_path / "last.params") as views:
        for name, array in arrays.items():
            assert (views[name].dtype, views[name].shape) == (array.dtype, array.shape)
            assert views[name].tobytes() == array.tobytes()


def test_a_model_becomes_params(tmp_path, cli):
    model = paths.DEMO
    assert cli("convert", model, "-o", tmp_path / "x.params")[0] == 0
    weights = milblob.load(model)
    with tvm.read_params(tmp_path / "x.params") as views:
        assert list(views) == list(weights)
        assert all(np.array_equal(views[name], weights[name]) for name in weights)
    assert cli("diff", model, tmp_path / "x.params")[0] == 0


def test_small_integers_are_named(tmp_path, cli):
    arrays = {"a": np.array([-8, 7, 1], ml_dtypes.int4), "b": np.float32([1])}
    milblob.write_weights(arrays, tmp_path / "x.bin", listing=tmp_path / "x.json")
    status, _, err = cli("convert", tmp_path / "x.json", "-o", tmp_path / "x.params")
    assert status == 0 and "as int8 or uint8, one element to a byte: a\n" in err
    with tvm.read_params(tmp_path / "x.params") as views:
        assert views["a"].dtype == np.int8 and views["a"].tolist() == [-8, 7, 1]


def test_what_params_files_lack_is_named(tmp_path, cli):
    npz(tmp_path / "x.npz", a=np.array(["text"]), b=np.float32([1]))
    status, _, err = cli("convert", tmp_path / "x.npz", "-o", tmp_path / "x.params")
    assert status == 2 and "'a'" in err and not (tmp_path / "x.params").exists()


def test_versions_of_tvm(tmp_path, cli):
    npz(tmp_path / "x.npz", a=np.array([True, False]))
    assert cli("convert", tmp_path / "x.npz", "-o", tmp_path / "old.params", "--tvm", "0.14")[0] == 0
    assert cli("convert", tmp_path / "x.npz", "-o", tmp_path / "new.params")[0] == 0
    old, new = ((tmp_path / name).read_bytes() for name in ("old.params", "new.params"))
    assert [(a, b) for a, b in zip(old, new, strict=True) if a != b] == [(1, 6), (1, 8)]
    # (6, 8) in a file of TVM 0.14 is fp8.
    assert cli("convert", tmp_path / "new.params", "-o", tmp_path / "y.npz", "--tvm", "0.14")[0] == 0
    with open_arrays(tmp_path / "y.npz") as arrays:
        assert str(arrays["a"].mil_dtype) == "float8e4m3fn"
    status, _, err = cli("convert", tmp_path / "x.npz", "-o", tmp_path / "z.npz", "--tvm", "0.14")
    assert status == 2 and "which tvm is about" in err


def test_no_archive_is_created(params, tmp_path, cli):
    for name in ("x.tar", "x.tar.gz"):
        status, _, err = cli("convert", params, "-o", tmp_path / name)
        assert status == 2 and "nothing makes a new one" in err and not (tmp_path / name).exists()


def test_diff(archive, tmp_path, cli):
    same, other = npz(tmp_path / "same.npz", p0=made.C), npz(tmp_path / "other.npz", p0=NEW)
    assert cli("diff", archive, same)[0] == 0
    status, out, _ = cli("diff", archive, other, "--json")
    assert status == 1 and json.loads(out)["tensors"][0]["figures"]["max_abs"] == 3
    tvm.write_params({"p0": made.C}, tmp_path / "same.params")
    assert cli("diff", tmp_path / "same.params", archive)[0] == 0
    assert cli("diff", archive, npz(tmp_path / "more.npz", p0=made.C, p1=NEW))[0] == 1


def test_check(archive, params, tmp_path, cli):
    assert cli("check", archive, params)[0] == 0
    params.write_bytes(params.read_bytes() + b"x")
    broken = tmp_path / "cut.params"
    broken.write_bytes(params.read_bytes()[:50])
    for command in (("check",), ("tvm", "check")):
        status, out, _ = cli(*command, params, broken, archive, "--json")
        codes = [[finding["code"] for finding in row["findings"]] for row in json.loads(out)["models"]]
        assert (status, codes) == (1, [["params-trailing"], ["params"], []])
    status, _, err = cli("check", params, "--values")
    assert status == 2 and "got params" in err
    assert cli("check", tmp_path / "none.params")[0] == 2
    assert cli("tvm", "check", tmp_path / "none.tar")[0] == 2


def test_tensor_caches(tmp_path, cli):
    source = paths.DATA / "tvm" / "cache"
    status, out, _ = cli("ls", source, "--json")
    document = json.loads(out)
    assert (status, document["kind"]) == (0, "tensor-cache") and document["tensors"]
    assert cli("convert", source, "-o", tmp_path / "x.params")[0] == 0
    assert cli("diff", source, tmp_path / "x.params")[0] == 0


# ------------------------------------------------------------------------------------------------------ match and refit


def weights():
    rng = np.random.default_rng(7)
    return {f"p{i}": rng.normal(size=shape).astype(np.float32) for i, shape in enumerate([(8, 4), (4, 9), (9,)])}


def with_weights(folder, kind, arrays):
    """An archive whose graph has these parameters."""
    files = made.files_of()
    arguments = [("a", "uint8", (1, 2)), ("b", "float32", (1, 2))] + [
        (name, "float32", array.shape) for name, array in arrays.items()
    ]
    graph = made.graph_of(arguments, [("tvmgen_default_fused", "float32", (1, 9), 9)])
    files["executor-config/graph/default.graph"] = json.dumps(graph).encode()
    files["parameters/default.params"] = made.params_of(arrays)
    return made.make(folder / ("m" if kind == "directory" else f"m.{kind}"), files, kind)


@pytest.mark.parametrize("kind", KINDS)
def test_retrained_weights_without_compiling(kind, tmp_path, cli):
    """match against the checkpoint that was compiled; refit with the retrained one, by the mapping that match wrote."""
    compiled = weights()
    path = with_weights(tmp_path, kind, compiled)
    names = {"p0": "fc.weight", "p1": "head.weight", "p2": "head.bias"}
    first = npz(tmp_path / "first.npz", **{names[name]: array for name, array in compiled.items()}, steps=np.ones(3))
    status, out, _ = cli("match", path, first, "-o", tmp_path / "map.json", "--json")
    document = json.loads(out)
    assert status == 0 and {row["given"]: row["name"] for row in document["matches"]} == {
        v: k for k, v in names.items()
    }
    assert document["unmatched_given"] == ["steps"]
    second = npz(
        tmp_path / "second.npz", **{names[name]: array * 2 for name, array in compiled.items()}, steps=np.ones(3)
    )
    before = digest(path)
    status, _, err = cli("refit", path, second, "--mapping", tmp_path / "map.json", "--dry-run")
    assert status == 0 and "not used: steps" in err and digest(path) == before
    status, out, err = cli("refit", path, second, "--mapping", tmp_path / "map.json", "--json")
    assert status == 0 and json.loads(out)["unused"] == ["steps"] and err == ""
    with tvm.open(path) as library:
        assert [finding.code for finding in library.validate() if finding.severity == "error"] == []
        for name, array in compiled.items():
            assert np.array_equal(library.modules["default"].params[name].read(), array * 2)


def test_refit_to_a_copy_and_with_a_cast(archive, tmp_path, cli):
    before, target = digest(archive), archive.with_name(f"new{archive.name[1:]}")
    given = npz(tmp_path / "half.npz", p0=NEW.astype(np.float16))
    status, _, err = cli("refit", archive, given, "-o", target)
    assert status == 2 and "expected elements of float32, got float16" in err and not target.exists()
    status, out, _ = cli("refit", archive, given, "-o", target, "--cast", "--json")
    (row,) = json.loads(out)["tensors"]
    assert status == 0 and (row["cast_from"], row["in_place"]) == ("float16", False)
    assert p0_of(target) == [[5, 6]] and digest(archive) == before
    assert cli("refit", archive, given, "-o", target, "--cast")[0] == 2  # it is there
    assert cli("refit", archive, given, "-o", target, "--cast", "--force")[0] == 0


def test_refit_refuses_all_or_nothing(archive, tmp_path, cli):
    before = digest(archive)
    for arrays, words in (
        ({"p0": np.ones((1, 3), np.float32)}, "p0: expected shape (1, 2), got (1, 3)"),
        ({"p0": NEW, "nobody": NEW}, "has no parameter 'nobody' (it has p0)"),
        ({"p0": np.ones((3, 1), np.int32), "nobody": NEW}, "2 problems"),
        ({"p0": np.array([[1e300, 0]])}, "float64"),
    ):
        status, _, err = cli("refit", archive, npz(tmp_path / "x.npz", **arrays))
        assert status == 2 and words in err and digest(archive) == before
    given = npz(tmp_path / "x.npz", p0=np.array([[1e300, 0]]))
    status, _, err = cli("refit", archive, given, "--cast")
    assert status == 2 and err.startswith("milblob: p0: ") and digest(archive) == before
    status, out, _ = cli("refit", archive, given, "--cast", "--overflow", "clamp", "--json")
    assert status == 0 and json.loads(out)["tensors"][0]["overflow"] == 1
    assert p0_of(archive)[0][0] == float(np.finfo(np.float32).max)


# ----------------------------------------------------------------------------------------------------------- milblob tvm


def test_tvm_ls(archive, cli):
    status, out, _ = cli("tvm", "ls", archive, "--json")
    document = json.loads(out)
    (module,) = document["modules"]
    assert (status, document["version"], document["style"]) == (0, 7, "full-model")
    assert (module["name"], module["executors"], module["parameters"], module["nodes"]) == ("default", ["graph"], 1, 4)
    (row,) = module["memory"]["main"]
    assert (row["device"], row["workspace_nbytes"], row["constants_nbytes"], row["io_nbytes"]) == (1, 0, 8, 18)
    assert row["inputs"] == {"a": {"nbytes": 2, "dtype": "uint8"}, "b": {"nbytes": 8, "dtype": "float32"}}
    assert [entry["storage_id"] for entry in module["memory"]["storage"]] == [0, 1, 2, 3]
    roles = {file["name"]: file["role"] for file in document["files"]}
    assert roles["parameters/default.params"] == "parameters" and roles["metadata.json"] == "metadata"
    lines = cli("tvm", "ls", archive)[1].splitlines()
    assert any(line.split() == ["default", "CPU", "0", "B", "8", "B", "18", "B"] for line in lines)
    assert any(line.split() == ["parameters", "1", "106", "B"] for line in lines)
    assert "storage id" in cli("tvm", "ls", archive, "-v")[1] and "files for" not in cli("tvm", "ls", archive, "-q")[1]


@pytest.mark.parametrize("version", range(1, 8))
@pytest.mark.parametrize("executor", ["graph", "aot"])
def test_tvm_ls_of_every_version(version, executor, tmp_path, cli):
    path = build(tmp_path, "m", "tar", version=version, executor=executor)
    document = json.loads(cli("tvm", "ls", path, "--json")[1])
    assert (document["version"], document["modules"][0]["executors"]) == (version, [executor])
    assert document["modules"][0]["parameters"] == (executor == "graph")
    for more in ((), ("-v",), ("-q",)):
        assert cli("tvm", "ls", path, *more)[0] == 0
    assert cli("tvm", "check", path)[0] == 0


def test_tvm_ls_of_operators(tmp_path, cli):
    path = made.make(tmp_path / "m.tar", made.operator_files(), "tar")
    document = json.loads(cli("tvm", "ls", path, "--json")[1])
    assert document["style"] == "operator"
    assert [buffer["nbytes"] for buffer in document["modules"][0]["memory"]["operators"]["add"]] == [2, 1, 2]
    assert cli("tvm", "ls", path, "-v")[0] == 0


def test_tvm_ls_takes_archives_only(params, tmp_path, cli):
    assert cli("tvm", "ls", params)[0] == 2 and cli("tvm", "ls", tmp_path / "none.tar")[0] == 2
    assert cli("tvm", "params", params, "-o", tmp_path / "x.npz")[0] == 2


def test_tvm_params_of_files_that_milblob_only_reads(archive, tmp_path, cli):
    """Initializers of an ONNX model, and tensors of a GGUF file."""
    pytest.importorskip("gguf", reason=WITHOUT["gguf"])
    pytest.importorskip("onnx", reason=WITHOUT["onnx"])
    from onnx import TensorProto, helper, numpy_helper

    import gguf_files

    graph = helper.make_graph([], "g", [], [helper.make_tensor_value_info("p0", TensorProto.FLOAT, [1, 2])])
    graph.initializer.append(numpy_helper.from_array(NEW, "p0"))
    (tmp_path / "new.onnx").write_bytes(helper.make_model(graph).SerializeToString())
    gguf_files.write(tmp_path / "new.gguf", {"p0": NEW + 1})
    for name, values in (("new.onnx", [[5, 6]]), ("new.gguf", [[6, 7]])):
        assert cli("tvm", "params", archive, "--with", tmp_path / name)[0] == 0
        assert p0_of(archive) == values


@pytest.mark.parametrize("target", ["x.npz", "x.params", "x.safetensors"])
def test_tvm_params_out_and_in(target, archive, tmp_path, cli):
    """Unchanged they give the same archive; changed ones another, whose other bytes are the same."""
    there, new = tmp_path / target, archive.with_name(f"new{archive.name[1:]}")
    assert cli("tvm", "params", archive, "-o", there)[0] == 0
    assert cli("tvm", "params", archive, "--with", there, "-o", new)[0] == 0
    assert digest(new) == (digest(archive) if new.is_dir() else [(new.name, digest(archive)[0][1])])
    npz(tmp_path / "changed.npz", p0=NEW)
    before = digest(archive)
    status, _, err = cli("tvm", "params", archive, "--with", tmp_path / "changed.npz", "--dry-run")
    assert status == 0 and "nothing written" in err and digest(archive) == before
    assert cli("tvm", "params", archive, "--with", tmp_path / "changed.npz")[0] == 0  # in place
    assert p0_of(archive) == [[5, 6]]
    assert cli("tvm", "params", archive, "--with", there, "-o", archive)[0] == 0  # in place too
    assert digest(archive) == before


def test_tvm_params_of_modules(tmp_path, cli):
    path = build(tmp_path, "m", "tar", modules=("a", "b"))
    assert cli("tvm", "params", path, "-o", tmp_path / "all.npz")[0] == 0
    with open_arrays(tmp_path / "all.npz") as arrays:
        assert list(arrays) == ["a/p0", "b/p0"]
    assert cli("tvm", "params", path, "-m", "b", "-o", tmp_path / "b.params")[0] == 0
    with tvm.read_params(tmp_path / "b.params") as views:
        assert list(views) == ["p0"]
    new = npz(tmp_path / "new.npz", p0=NEW)
    assert cli("tvm", "params", path, "--with", new)[0] == 2  # whose p0?
    assert cli("tvm", "params", path, "--with", new, "-m", "c")[0] == 2
    assert cli("tvm", "params", path, "--with", new, "-m", "b")[0] == 0
    assert (p0_of(path, "a"), p0_of(path, "b")) == ([[2, 4]], [[5, 6]])
    assert cli("tvm", "params", path, "--with", tmp_path / "all.npz")[0] == 0
    assert p0_of(path, "b") == [[2, 4]]


def test_an_unused_array_is_mentioned(archive, tmp_path, cli):
    given = npz(tmp_path / "x.npz", p0=NEW, spare=NEW)
    before = digest(archive)
    status, _, err = cli("tvm", "params", archive, "--with", given)
    assert status == 2 and "spare" in err and digest(archive) == before
    status, _, err = cli("tvm", "params", archive, "--with", given, "-k", "p0")
    assert status == 0 and "not used: spare" in err
    status, out, _ = cli("tvm", "params", archive, "--with", given, "-k", "p0", "--json")
    assert json.loads(out)["unused"] == ["spare"]


def test_aot_archives_are_refused_by_name(tmp_path, cli):
    given = npz(tmp_path / "x.npz", p0=NEW)
    for kind in KINDS:
        path = build(tmp_path, "m", kind, executor="aot")
        before = digest(path)
        for command in (("tvm", "params", path, "--with", given), ("refit", path, given)):
            status, _, err = cli(*command)
            assert status == 2 and "module default" in err and "AOT executor" in err and digest(path) == before
        status, _, err = cli("tvm", "params", path, "-o", tmp_path / "y.npz")
        assert status == 2 and "expected at least one, got none" in err
        if path.is_dir():
            shutil.rmtree(path)


def test_params_needs_to_know_what_to_do(archive, tmp_path, cli):
    assert "expected -o OUT, or --with NEW" in cli("tvm", "params", archive)[2]
    assert cli("tvm", "params", archive, "-o", tmp_path / "x.npz", "--dry-run")[0] == 2
    assert cli("tvm", "params", archive, "-o", tmp_path / "x.npz", "-m", "none")[0] == 2
    assert not (tmp_path / "x.npz").exists()


@pytest.mark.parametrize("command", ["ls", "check", "params"])
def test_help_ends_with_two_examples(command, cli):
    status, out, _ = cli("tvm", command, "--help")
    lines = out.rstrip().splitlines()
    assert status == 0 and lines[-3] == "examples:" and all(f"milblob tvm {command} " in line for line in lines[-2:])
