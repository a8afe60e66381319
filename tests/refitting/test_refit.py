"""milblob.refit and `milblob refit`: every pair is checked, then all are written, in place or to a copy."""

import json
import os
import pathlib
import shutil
import sys

import ml_dtypes
import numpy as np
import pytest

import milblob
from blob_files import blob_file
from editable_packages import FULL, files_of, left, make_package, number_of
from faults import FAILURES
from milblob import DType
from milblob.cli import main
from milblob.formats import npz
from milblob.formats import safetensors as safetensors_format
from paths import DATA
from peers import WITHOUT
from thorough import some

pytestmark = pytest.mark.usefixtures("unsynced")

DEMO = DATA.parent.parent / "examples" / "demo.mlpackage"
posix = pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX file locks and links: refit is not tested here")


def arrays(number):
    return {
        "floats": np.full((3, 100), number, "<f4"),
        "bytes": np.full(70, number, "u1"),
        "ints": np.full(40, number * 1000, "<i4"),
    }


@pytest.fixture
def package(tmp_path):
    return make_package(tmp_path)


@pytest.fixture
def cli(capsys):
    def run(*argv):
        status = main([str(argument) for argument in argv])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


# ------------------------------------------------------------------------------------------------------------ functions


def test_refit(package):
    report = milblob.refit(package, arrays(1))
    assert number_of(package) == 1 and left(package) == []
    assert [c.name for c in report.changes] == ["floats", "bytes", "ints"] and report.done
    assert [c.in_place for c in report.changes] == [True, True, False]
    assert [c.nbytes for c in report.changes] == [1200, 70, 84]
    assert report.nbytes == 1354 and report.source == report.output == str(package)
    assert milblob.refit(package, {"bytes": arrays(1)["bytes"]}).changes[0].in_place


@pytest.mark.parametrize("form", ["npz", "safetensors", "directory", "npy"])
def test_weights_of_files(tmp_path, package, form):
    given = arrays(2)
    if form == "npz":
        np.savez(tmp_path / "w.npz", **given)
        path = tmp_path / "w.npz"
    elif form == "safetensors":
        safetensors = pytest.importorskip("safetensors.numpy", reason=WITHOUT["safetensors"])
        path = tmp_path / "w.safetensors"
        safetensors.save_file(given, path)
    else:
        path = tmp_path / "w"
        path.mkdir()
        for name, array in given.items():
            np.save(path / f"{name}.npy", array)
        if form == "npy":
            for name in given:
                milblob.refit(package, path / f"{name}.npy")
    if form != "npy":
        milblob.refit(package, path)
    assert number_of(package) == 2


@pytest.mark.parametrize("save, suffix", [(npz.save, "npz"), (safetensors_format.save, "safetensors")])
def test_what_was_extracted_goes_back(tmp_path, save, suffix):
    """The weights of a model, sub-byte ones among them, written by milblob and refitted: nothing changes."""
    source = DATA / "blob_all_dtypes/weight.bin"
    target = tmp_path / "weight.bin"
    shutil.copy(source, target)
    with milblob.open(source) as model:
        save(model, str(tmp_path / f"w.{suffix}"))
        names = list(model)
        for name in names:
            with milblob.open(target, "r+") as zeroed:
                zeroed[name] = np.zeros(model[name].shape, model[name].dtype)
    assert target.read_bytes() != source.read_bytes()
    report = milblob.refit(target, tmp_path / f"w.{suffix}")
    assert sorted(c.name for c in report.changes) == sorted(names)
    expected = milblob.load(source)
    for name, array in milblob.load(target).items():
        assert array.dtype == expected[name].dtype and array.tobytes() == expected[name].tobytes()


def test_mapping_and_select(package):
    given = {"encoder.w": arrays(3)["floats"], "encoder.b": arrays(3)["bytes"], "ints": arrays(3)["ints"]}
    mapping = {"encoder.w": "floats", "encoder.b": "bytes"}
    words = (
        r"2 problems: 2 arrays with names that .* lacks \(encoder.w, encoder.b\): `milblob match` finds which weight"
    )
    with pytest.raises(ValueError, match=words):
        milblob.refit(package, given)
    report = milblob.refit(package, given, mapping=mapping, select=lambda name: name != "bytes")
    assert [(c.given, c.name) for c in report.changes] == [("encoder.w", "floats"), ("ints", "ints")]
    values = milblob.load(package)
    assert set(values["floats"].reshape(-1)) == {3.0} and set(values["bytes"]) == {0}
    milblob.refit(package, given, mapping=mapping)
    assert number_of(package) == 3
    with pytest.raises(KeyError, match="mapping: no array 'other'"):
        milblob.refit(package, given, mapping={**mapping, "other": "floats"})
    words = "floats: expected equal arrays for it, got different ones: encoder.w, again; unshare=True"
    with pytest.raises(ValueError, match=words):
        milblob.refit(package, {**given, "again": -given["encoder.w"]}, mapping={**mapping, "again": "floats"})
    same = milblob.refit(package, {**given, "again": given["encoder.w"].copy()}, mapping={**mapping, "again": "floats"})
    assert [(c.given, c.name) for c in same.changes] == [
        ("encoder.w", "floats"), ("encoder.b", "bytes"), ("ints", "ints"), ("again", "floats"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="weights: expected at least one, got none"):
        milblob.refit(package, given, mapping=mapping, select=lambda name: False)
    with pytest.raises(TypeError, match="weights: expected a path or a mapping of arrays, got list"):
        milblob.refit(package, [1])


def test_all_problems_are_reported_and_nothing_is_written(package):
    before = files_of(package)
    given = arrays(1)
    bad = {
        "floats": given["floats"].T,
        "bytes": given["bytes"].astype("<f8"),
        "ints": given["ints"],
        "more": given["ints"],
    }
    with pytest.raises(ValueError) as caught:
        milblob.refit(package, bad)
    assert str(caught.value) == (
        "weights: expected all to fit, got 3 problems: floats: expected shape (3, 100), got (100, 3); bytes: expected "
        f"elements of uint8, got float64; {package} has no weight 'more' (it has floats, bytes, ints) (`milblob match` finds which "
        "weight an array is for)"
    )
    many = {f"w{i}": given["ints"] for i in range(50)}
    with pytest.raises(
        ValueError, match=r"got 50 problems: 50 arrays .* \(w0, w1, w2, w3 and 46 more\): `milblob match`"
    ):
        milblob.refit(package, many)
    assert files_of(package) == before


def test_problems_of_one_kind_are_counted(tmp_path, capsys):
    """A checkpoint in float32 for a model in float16 is one problem with one remedy, and so are unknown names."""
    given = {name: values.astype("f4") for name, values in milblob.load(DEMO).items() if values.dtype == np.float16}
    assert len(given) == 67
    words = (
        "weights: expected all to fit, got 67 problems: 67 float32 arrays for float16 weights (embedding_weight, "
        "layers_0_norm1_weight, layers_0_norm1_bias, layers_0_attention_query_weight and 63 more): add --cast (cast=True)"
    )
    with pytest.raises(ValueError) as caught:
        milblob.refit(DEMO, given, dry_run=True)
    assert str(caught.value) == words
    np.savez(tmp_path / "w.npz", **given)
    assert main(["refit", str(DEMO), str(tmp_path / "w.npz"), "--dry-run"]) == 2
    assert capsys.readouterr().err == f"milblob: {words}\n"
    with pytest.raises(TypeError, match=r"embedding_weight: expected elements of float16, got float32 \(add --cast"):
        milblob.refit(DEMO, {"embedding_weight": given["embedding_weight"]}, dry_run=True)
    wrong = {"head_wieght": np.zeros((96, 48), "f4")}
    with pytest.raises(KeyError) as one:
        milblob.refit(DEMO, wrong, dry_run=True)
    assert one.value.args[0] == (
        f"{DEMO} has no weight 'head_wieght'; did you mean head_weight or head_bias? "
        "(`milblob match` finds which weight an array is for)"
    )
    renamed = {f"transformer.{name}": values for name, values in given.items()} | {"head_bias": np.zeros(95, "f4")}
    with pytest.raises(ValueError) as caught:
        milblob.refit(DEMO, renamed, dry_run=True)
    assert str(caught.value) == (
        "weights: expected all to fit, got 68 problems: head_bias: expected shape (96,), got (95,); 67 arrays with names "
        f"that {DEMO} lacks (transformer.embedding_weight, transformer.layers_0_norm1_weight, "
        "transformer.layers_0_norm1_bias, transformer.layers_0_attention_query_weight and 63 more): `milblob match` "
        "finds which weight an array is for"
    )
    del renamed["head_bias"]  # no array has the name of a weight: the converter renamed them
    with pytest.raises(ValueError, match="finds which weight .* trained further, --base ORIGINAL .base=. finds how"):
        milblob.refit(DEMO, renamed, dry_run=True)
    factors = {f"base_model.model.fc.lora_{one}.weight": np.zeros((4, 4), "f4") for one in "AB"}
    with pytest.raises(ValueError, match="factors of a LoRA adapter: give its folder, with adapter_config.json, and"):
        milblob.refit(DEMO, factors, dry_run=True)
    compressed = DATA / "palette_4bit" / "model.mlpackage"
    with milblob.open(compressed) as model:
        names = [name for name, tensor in model.items() if tensor.compression]
        assert names
        with pytest.raises(milblob.UnsupportedError, match="expected a weight that is stored dense, got constexpr"):
            milblob.refit(compressed, {names[0]: model[names[0]].read()}, dry_run=True)


def test_cast(package):
    floats = np.linspace(-3, 3, 300).reshape(3, 100)
    with pytest.raises(TypeError, match="expected elements of float32, got float64"):
        milblob.refit(package, {"floats": floats})
    report = milblob.refit(
        package, {"floats": floats, "bytes": np.arange(70), "ints": np.arange(40, dtype="u1")}, cast=True
    )
    values = milblob.load(package)
    assert values["floats"].tobytes() == floats.astype("<f4").tobytes()
    assert values["bytes"].tolist() == list(range(70)) and values["ints"].tolist() == list(range(40))
    assert [c.given_dtype for c in report.changes] == [DType.FLOAT64, DType.INT64, DType.UINT8]
    before = files_of(package)
    large = np.full((3, 100), 1e300)
    with pytest.raises(OverflowError, match="floats: element 0: expected at most .* got 1e\\+300"):
        milblob.refit(package, {"floats": large}, cast=True)
    with pytest.raises(OverflowError, match="bytes: element 2: expected 0 to 255, got 256"):
        milblob.refit(package, {"bytes": np.arange(70) + 254}, cast=True)
    with pytest.raises(TypeError, match="bytes: expected elements of uint8, or that can become it, got float32"):
        milblob.refit(package, {"bytes": np.zeros(70, "<f4")}, cast=True)
    assert files_of(package) == before
    report = milblob.refit(package, {"floats": large}, cast=True, overflow="clamp")
    assert report.changes[0].counts.overflow == 300
    assert set(milblob.load(package)["floats"].reshape(-1)) == {np.finfo("f4").max}


def test_cast_rounds_to_nearest_even(tmp_path):
    data, _ = blob_file(("FLOAT16", np.zeros(4, "<f2")), ("BFLOAT16", np.zeros(4, ml_dtypes.bfloat16)))
    (tmp_path / "weight.bin").write_bytes(data)
    ties = np.array([1 + 2**-11, 1 + 3 * 2**-11, 65519.9, 2**-25], "<f4")
    milblob.refit(tmp_path / "weight.bin", {"#0": ties, "#1": ties}, cast=True)
    values = milblob.load(tmp_path / "weight.bin")
    assert values["#0"].tobytes() == ties.astype("<f2").tobytes()
    assert values["#0"].tolist() == [1.0, 1 + 2**-9, 65504.0, 0.0]
    assert values["#1"].tobytes() == ties.astype(ml_dtypes.bfloat16).tobytes()


def test_dry_run(package):
    before = files_of(package)
    report = milblob.refit(package, arrays(1), dry_run=True)
    assert not report.done and [c.name for c in report.changes] == ["floats", "bytes", "ints"]
    assert [c.in_place for c in report.changes] == [True, True, False]
    assert files_of(package) == before
    for given in ({"floats": 1}, {"bytes": arrays(1)["floats"]}):
        with pytest.raises((ValueError, TypeError)):
            milblob.refit(package, given, dry_run=True)
    with milblob.open(package, "r+"):  # needs no lock
        milblob.refit(package, arrays(1), dry_run=True)


# --------------------------------------------------------------------------------------------------------------- copies


def test_copy_of_a_package(tmp_path, package):
    before = files_of(package)
    (package / "Data" / "notes.txt").write_text("mine")
    target = tmp_path / "new.mlpackage"
    report = milblob.refit(package, arrays(7), destination=target)
    assert number_of(target) == 7 and number_of(package) == 0
    assert (target / "Data" / "notes.txt").read_text() == "mine"
    assert {path: path.read_bytes() for path in before} == before
    assert report.output == str(target) and report.source == str(package)
    assert {os.path.dirname(c.file) for c in report.changes} == {
        str(target / "Data/com.apple.CoreML/weights"), str(target / "Data/com.apple.CoreML"),
    }  # fmt: skip
    with pytest.raises(FileExistsError, match="use force=True to replace it"):
        milblob.refit(package, arrays(8), destination=target)
    assert number_of(target) == 7
    milblob.refit(package, arrays(8), destination=target, force=True)
    assert number_of(target) == 8
    with pytest.raises(ValueError, match="2 problems"):
        milblob.refit(package, {"a": 1, "b": 2}, destination=target, force=True)
    assert number_of(target) == 8 and left(tmp_path) == []


def test_places_for_a_copy(tmp_path, package):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "mine").touch()
    for target in (package, package / "inside", tmp_path):
        with pytest.raises(ValueError, match="expected a place outside the model"):
            milblob.refit(package, arrays(1), destination=target, force=True)
    with pytest.raises(FileExistsError, match="expected a .mlpackage to replace, got something else"):
        milblob.refit(package, arrays(1), destination=tmp_path / "other", force=True)
    with pytest.raises(FileNotFoundError, match="expected a directory"):
        milblob.refit(package, arrays(1), destination=tmp_path / "none" / "x")
    assert sorted(os.listdir(tmp_path)) == ["m.mlpackage", "other"] and number_of(package) == 0


def test_copy_of_a_file(tmp_path, package):
    data, _ = blob_file(("UINT8", np.zeros(5, "u1")))
    (tmp_path / "weight.bin").write_bytes(data)
    new = {"#0": np.arange(5, dtype="u1")}
    for force in (False, True):
        milblob.refit(tmp_path / "weight.bin", new, destination=tmp_path / "new.bin", force=force)
        assert milblob.load(tmp_path / "new.bin")["#0"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(FileExistsError, match="use force=True to replace it"):
        milblob.refit(tmp_path / "weight.bin", new, destination=tmp_path / "new.bin")
    assert (tmp_path / "weight.bin").read_bytes() == data
    (file,) = package.rglob("*.mlmodel")
    shutil.copytree(file.parent, tmp_path / "flat")
    with pytest.raises(milblob.UnsupportedError, match="whose weights can be copied with it"):
        milblob.refit(
            tmp_path / "flat" / "model.mlmodel", {"ints": arrays(1)["ints"]}, destination=tmp_path / "x.mlmodel"
        )
    milblob.refit(tmp_path / "flat" / "model.mlmodel", arrays(5))  # in place it is one model
    assert number_of(tmp_path / "flat" / "model.mlmodel") == 5
    whole = DATA / "immediates/model.mlmodel"
    with milblob.open(whole) as model:
        name = next(iter(model))
        values = model[name].read()
        milblob.refit(whole, {name: values[::-1]}, destination=tmp_path / "new.mlmodel")
    assert milblob.load(tmp_path / "new.mlmodel")[name].tobytes() == values[::-1].tobytes()
    assert left(tmp_path) == []


def copy_to(source, target, number):
    milblob.refit(source, arrays(number), destination=target, force=True)


@pytest.mark.parametrize("mode, code", some([FAILURES[0], FAILURES[3], FAILURES[6], *FAILURES[7:]], 3))
def test_copy_at_every_call(faults, tmp_path, mode, code):
    (tmp_path / "a").mkdir()
    source, target = make_package(tmp_path / "a"), tmp_path / "out" / "new.mlpackage"
    target.parent.mkdir()
    before, states = files_of(source), set()
    for outcome in faults.at_every_call(
        copy_to, [str(source), str(target), 2], root=target.parent, mode=mode, code=code
    ):
        assert files_of(source) == before
        state = number_of(target) if target.exists() else None
        assert state == 2 or outcome.exit != "ok"
        states.add(state)
        milblob.storage.temporary.sweep(str(target.parent))
        assert left(target.parent) == [], outcome
        shutil.rmtree(target, ignore_errors=True)
        if state is None:  # now with something to replace
            shutil.copytree(source, target)
    assert states >= {None} and states <= {None, 0, 2}


# --------------------------------------------------------------------------------------------------------- command line


def test_command(cli, tmp_path, package):
    np.savez(tmp_path / "w.npz", **arrays(1))
    assert cli("refit", package, tmp_path / "w.npz", "--dry-run") == (
        0, "", "milblob: 3 weights, 1.3 KiB, the model file rewritten; nothing written (--dry-run)\n",
    )  # fmt: skip
    assert number_of(package) == 0
    assert cli("refit", package, tmp_path / "w.npz", "-k", "floats", "-k", "byt*") == (
        0, "", "milblob: 2 weights, 1.2 KiB, in place\nmilblob: 1 array not used: ints\n",
    )  # fmt: skip
    status, out, err = cli("refit", package, tmp_path / "w.npz", "--json", "-v")
    document = json.loads(out)
    assert status == 0 and number_of(package) == 1
    keys = ["source", "output", "done", "nbytes", "tensors", "note", "constant", "unused", "without_effect", "left"]
    keys.append("unchanged")
    assert set(document) == set(keys) and document["done"] is True
    assert [row["name"] for row in document["tensors"]] == ["floats", "bytes", "ints"]
    assert document["tensors"][0] == {
        "name": "floats", "given": "floats", "dtype": "float32", "shape": [3, 100], "nbytes": 1200,
        "file": str(next(package.rglob("weight.bin"))), "in_place": True, "cast_from": None,
    }  # fmt: skip
    assert err.splitlines()[0] == "milblob: floats float32 [3, 100]"
    assert cli("refit", package, tmp_path / "w.npz", "-q") == (0, "", "")


def test_command_maps_names(cli, tmp_path, package):
    given = arrays(4)
    np.savez(tmp_path / "w.npz", a=given["floats"], b=given["bytes"], c=given["ints"].astype("<i8"))
    (tmp_path / "m.txt").write_text("# names\na = floats\n\nb=wrong\n")
    (tmp_path / "m.json").write_text('{"a": "floats", "b": "wrong"}')
    for number, mapping in ((0, "m.txt"), (1, "m.json")):
        status, _, err = cli(
            "refit", package, tmp_path / "w.npz", "--mapping", tmp_path / mapping, "--map", "b=bytes", "--map", "c=ints", "--cast", "-v",
        )  # fmt: skip
        assert status == 0 and number_of(package) == 4
        assert "milblob: ints int32 [40] <- c, cast from int64" in err
        milblob.refit(package, arrays(number))
    target = tmp_path / "new.mlpackage"
    argv = ["refit", package, tmp_path / "w.npz", "--map", "a=floats", "-k", "floats", "-o", target]
    assert cli(*argv) == (0, "", f"milblob: 1 weight, 1.2 KiB, to {target}\nmilblob: 2 arrays not used: b, c\n")
    status, _, err = cli(*argv)
    assert status == 2 and "use --force to replace it" in err
    assert cli(*argv, "--force", "-q") == (0, "", "milblob: 2 arrays not used\n")


def test_command_reports_what_a_cast_lost(cli, tmp_path, package):
    np.savez(tmp_path / "w.npz", floats=np.array([[1e300, 1e-300, np.nan] + [0.0] * 97] * 3))
    status, _, err = cli("refit", package, tmp_path / "w.npz", "--cast")
    assert status == 2 and "floats: element 0: expected at most" in err
    status, _, err = cli("refit", package, tmp_path / "w.npz", "--cast", "--overflow", "inf")
    assert status == 0
    assert (
        err
        == "milblob: 1 weight, 1.2 KiB, in place; 3 elements too large; 3 elements became zero; 3 elements not a number\n"
    )


@pytest.mark.parametrize(
    "name, text, words",
    [
        ("m.txt", "a b", "mapping, line 1: expected OLD=NEW, got 'a b'"),
        ("m.txt", "\n=b", "mapping, line 2: expected OLD=NEW"),
        ("m.json", "[", "mapping: expected a document"),
        ("m.json", '{"a": "floats", "a": "bytes"}', "mapping: expected every key once, got 'a' twice"),
        ("m.json", '["a"]', "mapping: expected an object of names"),
        ("m.json", '{"a": 1}', "mapping: expected an object of names"),
        ("m.txt", b"\xff\xfe", "mapping: expected UTF-8"),
    ],
)
def test_command_broken_mappings(cli, tmp_path, package, name, text, words):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    np.savez(tmp_path / "w.npz", **arrays(1))
    status, _, err = cli("refit", package, tmp_path / "w.npz", "--mapping", tmp_path / name)
    assert status == 2 and words in err and len(err.splitlines()) == 1
    assert number_of(package) == 0


def test_command_errors(cli, tmp_path, package):
    np.savez(tmp_path / "w.npz", floats=arrays(1)["floats"].T, nothing=np.zeros(3))
    (tmp_path / "w.txt").write_text("1 2 3")
    for argv, words in (
        ([package, tmp_path / "w.npz"], "2 problems: floats: expected shape"),
        ([package, tmp_path / "w.npz", "--map", "x"], "--map: expected OLD=NEW, got 'x'"),
        ([package, tmp_path / "none.npz"], "No such file"),
        ([package, tmp_path / "w.txt"], "arrays: expected .safetensors, .npz"),
        ([tmp_path / "none", tmp_path / "w.npz"], "No such file"),
    ):
        status, out, err = cli("refit", *argv)
        assert (status, out) == (2, "") and words in err and len(err.splitlines()) == 1
    with milblob.open(package, "r+"):
        np.savez(tmp_path / "w.npz", **arrays(1))
        if sys.platform != "win32":
            status, _, err = cli("refit", package, tmp_path / "w.npz")
            assert status == 2 and "expected to be the only writer, got another one that holds the lock" in err
    assert number_of(package) == 0


# ----------------------------------------------------------------------------------------------------------- coremltools


@pytest.fixture(scope="module")
def ct():
    return pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])


@pytest.mark.parametrize("name", ["opset_ios16_fp16", "opset_ios18_fp32", "functions", "control_flow", "lists"])
def test_coremltools_finds_the_values(ct, tmp_path, name):
    from coremltools_view import load_pymil, loaded_values
    from editable_packages import turned

    package = pathlib.Path(shutil.copytree(DATA / name / "model.mlpackage", tmp_path / "m.mlpackage"))
    with milblob.open(package, **FULL) as model:
        chosen = {
            n: turned(t).copy() for n, t in model.items() if t.op == "const" and t.where.endswith(".val") and t.mil_dtype is not DType.STRING
        }  # fmt: skip
        chosen = {n: v for n, v in chosen.items() if v.dtype.kind == "f" and v.size > 1}
        places = {n: (model[n].function, n.rpartition("/")[2]) for n in chosen}
    assert chosen
    milblob.refit(package, chosen)
    theirs = loaded_values(load_pymil(package))
    for n, values in chosen.items():
        function, output = places[n]
        candidates = [np.asarray(c) for c in theirs[function, output, "val"]]
        assert any(c.tobytes() == values.tobytes() and c.shape == values.shape for c in candidates), n


def test_their_blob_reader_finds_the_values(ct, tmp_path):
    from coremltools.libmilstoragepython import _BlobStorageReader

    package = pathlib.Path(shutil.copytree(DEMO, tmp_path / "m.mlpackage"))
    with milblob.open(package) as model:
        chosen = {n: -t.read() for n, t in model.items() if t.mil_dtype is DType.FLOAT16}
        offsets = {n: model[n].offset for n in chosen}
    milblob.refit(package, chosen)
    reader = _BlobStorageReader(str(next(package.rglob("weight.bin"))))
    for n, offset in offsets.items():
        assert np.asarray(reader.read_fp16_data(offset)).tobytes() == chosen[n].tobytes()
    assert not [f for f in milblob.check(package) if f.severity == "error"]


@pytest.mark.parametrize("force", [False, True])
def test_a_file_that_appears_at_the_destination_is_not_replaced(package, force, tmp_path):
    """Reading new values may take long; what is there then is somebody's."""
    target = tmp_path / "new" / "out.mlpackage"
    target.parent.mkdir()

    class Late(dict):
        def __getitem__(self, name):
            target.mkdir(exist_ok=True)
            (target / "thesis.txt").write_text("mine")
            return super().__getitem__(name)

    new = Late({name: values + 1 for name, values in milblob.load(package, mmap=False).items() if name == "floats"})
    with pytest.raises(FileExistsError, match=r"out\.mlpackage: expected "):
        milblob.refit(package, new, destination=target, force=force)
    assert [path.name for path in target.parent.rglob("*")] == ["out.mlpackage", "thesis.txt"]


def test_a_weight_file_that_is_replaced_before_it_is_copied_is_refused(tmp_path, monkeypatch):
    """The copy of another file would have none of the new values, and the refit would be reported as done."""
    from milblob.refitting import write

    def replaced(root, name, *arguments):
        os.replace(other, os.path.join(root, name))
        return copy(root, name, *arguments)

    copy = write.copy_changed
    array, other = np.arange(8, dtype=np.float32), tmp_path / "other.bin"
    for path in (tmp_path / "w.bin", other):
        path.write_bytes(blob_file(("FLOAT32", array))[0])
    monkeypatch.setattr(write, "copy_changed", replaced)
    with pytest.raises(milblob.FormatError, match="expected the one that was opened, got another"):
        milblob.refit(tmp_path / "w.bin", {"#0": array + 1}, destination=tmp_path / "new.bin")
    assert not (tmp_path / "new.bin").exists()
