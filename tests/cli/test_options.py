"""Options mean the same in every command: -k that matches nothing, -n, several models, names of dtypes."""

import json
import shutil

import numpy as np
import pytest

import milblob
import tvm_archives
from milblob.cli.parser import COMMANDS
from paths import DATA, DEMO
from thorough import some

pytestmark = pytest.mark.usefixtures("unsynced")

PALETTE = DATA / "palette_4bit/model.mlpackage"


@pytest.fixture
def places(tmp_path):
    """A model, its arrays with other values, an archive of TVM, and where to write."""
    model = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    arrays = {name: array + array.dtype.type(1) for name, array in milblob.load(model).items()}
    np.savez(tmp_path / "w.npz", **arrays)
    tvm_archives.make(tmp_path / "model.tar", tvm_archives.files_of())
    return {"model": model, "weights": tmp_path / "w.npz", "archive": tmp_path / "model.tar", "out": tmp_path / "out"}


WITH_KEEP = {
    "ls": ["{model}"],
    "stats": ["{model}"],
    "hash": ["{model}"],
    "diff": ["{model}", "{weights}"],
    "match": ["{model}", "{weights}", "-o", "{out}.json"],
    "convert": ["{model}", "-o", "{out}.npz"],
    "refit": ["{model}", "{weights}", "-o", "{out}.mlpackage"],
    "compress": ["{model}", "-o", "{out}.mlpackage", "--int8"],
    "report": ["{model}", "-o", "{out}.html"],
    "repack": ["{model}", "-o", "{out}.mlpackage", "--cast", "float32=float16"],
    "tvm params": ["{archive}", "-o", "{out}.npz"],
}


@pytest.mark.parametrize("name", some(WITH_KEEP, 12))
@pytest.mark.parametrize("more", [[], ["-q"], ["--json"]])
def test_keep_that_matches_nothing_is_an_error(cli, places, name, more):
    """In every command that has -k: one line on stderr, exit status 2, nothing written, nothing on stdout."""
    argv = [*name.split(), *(word.format(**places) for word in WITH_KEEP[name])]
    before = sorted(places["out"].parent.rglob("*"))
    status, out, err = cli(*argv, "-k", "haed_*", *more)
    assert (status, out) == (2, "")
    assert err.startswith("milblob: -k haed_*: no tensor in ")
    assert " matches" in err
    assert sorted(places["out"].parent.rglob("*")) == before
    names = milblob.load(places["model"])
    assert all(name in names for name in err.partition("did you mean ")[2].rstrip("?\n").split(" or ") if name)


@pytest.mark.parametrize("name", [name for name in WITH_KEEP if name != "tvm params"])
def test_a_glob_without_a_match_beside_others_is_named(cli, places, name):
    argv = [*name.split(), *(word.format(**places) for word in WITH_KEEP[name])]
    status, _, err = cli(*argv, "-k", "head_*", "-k", "typo*")
    assert status in (0, 1)
    assert err.count("milblob: -k typo*: no tensor in ") == 1
    assert "head_*" not in err
    if name in ("ls", "stats", "hash", "diff"):
        assert "typo" not in cli(*argv, "-k", "head_*", "-k", "typo*", "-q")[2]


def test_every_command_with_keep_is_in_the_table(cli):
    found = set()
    for name in (*COMMANDS, "tvm ls", "tvm check", "tvm params"):
        if "--select" in cli(*name.split(), "--help")[1]:
            found.add(name)
    assert found == set(WITH_KEEP)


def test_a_function_without_tensors_to_compare_is_not_the_same(cli, tmp_path):
    path = DATA / "functions/model.mlpackage"
    status, out, err = cli("diff", path, path, "-f", "alpha", "--stored", "-k", "beta/*")
    assert (status, out) == (2, "")
    assert err.startswith("milblob: -k beta/*: no tensor in ") and ", function alpha matches" in err


def test_dry_run_has_one_letter_everywhere(cli):
    for name in (*COMMANDS, "tvm ls", "tvm check", "tvm params"):
        text = cli(*name.split(), "--help")[1]
        assert ("--dry-run" in text) == ("-n, --dry-run" in text), name
        if name not in ("info", "tvm"):
            makes_values = ["--max-nbytes"] if name not in ("recover", "batch") else []  # those of its command
            for option in ("-q, --quiet", "-v, --verbose", "--json", *makes_values):
                assert option in text, (name, option)


@pytest.mark.parametrize("command", ["ls", "stats", "hash"])
def test_several_models(cli, command, tmp_path):
    """Each as it is alone, after its path; one that cannot be read is named, and the others are shown."""
    missing = tmp_path / "missing.mlpackage"
    alone = [cli(command, path)[1] for path in (DEMO, PALETTE)]
    status, out, err = cli(command, DEMO, missing, PALETTE)
    assert status == 2
    assert out == f"{DEMO}:\n{alone[0]}\n{missing}:\n\n{PALETTE}:\n{alone[1]}"
    assert err.startswith("milblob: ") and str(missing) in err and len(err.splitlines()) == 1
    status, out, _ = cli(command, DEMO, PALETTE, "--json")
    assert status == 0
    assert json.loads(out) == {"models": [json.loads(cli(command, path, "--json")[1]) for path in (DEMO, PALETTE)]}
    assert len(json.loads(cli(command, DEMO, missing, "--json")[1])["models"]) == 1


def test_several_models_quietly(cli):
    out = cli("hash", DEMO, PALETTE, "-q")[1]
    assert [line.split("  ")[1] for line in out.splitlines()] == [str(DEMO), str(PALETTE)]
    assert cli("stats", DEMO, PALETTE, "--would-overflow", "f16")[0] == 0


def test_several_archives(cli, tmp_path):
    for name in ("a.tar", "b.tar"):
        tvm_archives.make(tmp_path / name, tvm_archives.files_of())
    document = json.loads(cli("tvm", "ls", tmp_path / "a.tar", tmp_path / "b.tar", "--json")[1])
    assert [entry["path"] for entry in document["models"]] == [str(tmp_path / "a.tar"), str(tmp_path / "b.tar")]


@pytest.mark.parametrize("pair", ["fp32=fp16", "f32=f16", "F32=F16", "FLOAT32=half", "float32=float16"])
def test_names_of_dtypes(cli, tmp_path, pair):
    for number, options in enumerate((["--cast", pair],)):
        out = tmp_path / f"{number}.mlpackage"
        assert cli("repack", DEMO, "-o", out, *options, "-q")[0] == 0
        with milblob.open(out) as model:
            assert model["head_weight"].compression.scheme == "cast"
    short = pair.partition("=")[2]
    assert cli("stats", DEMO, "--would-overflow", short) == cli("stats", DEMO, "--would-overflow", "float16")
    assert "expected float16, got 'bf16'" in cli("stats", DEMO, "--would-overflow", "bf16")[2]
    np.savez(tmp_path / "w.npz", w=np.arange(4, dtype=np.uint8))
    assert cli("convert", tmp_path / "w.npz", "-o", tmp_path / "w.bin", "--dtype", "w=UINT4", "-q")[0] == 0


def test_a_model_is_not_a_file_of_arrays(cli, places):
    for argv in (["convert", places["model"], "-o", "x.mlpackage"], ["convert", places["model"], "-o", "x.mlmodelc/"]):
        status, out, err = cli(*argv)
        assert (status, out) == (2, "")
        assert "expected a file of arrays, got a model; `milblob repack MODEL -o` writes one" in err


def test_a_model_without_weights_is_named(cli):
    path = DATA / "type_attributes/model.mlmodel"
    assert cli("stats", path) == (0, "", f"milblob: {path}: no weights (--constants takes every constant)\n")
    assert cli("stats", path, "-q") == (0, "", "")
    assert "total        0" in cli("ls", path)[1]


def test_an_argument_that_may_be_left_out_also_comes_after_options(tmp_path, cli):
    milblob.save({"head_bias": np.ones(96, np.float32)}, tmp_path / "w.npz")
    status, _, err = cli("refit", DEMO, "-n", "--cast", tmp_path / "w.npz")
    assert (status, err.startswith("milblob: 1 weight")) == (0, True), err
    assert cli("report", DEMO, "-o", tmp_path / "r.html", "-q", DEMO) == (0, "", "")
    assert cli("show", DEMO, "-q", "head_bias")[0] == 0
    assert "unrecognized arguments: x y" in cli("refit", DEMO, "-n", "x", "y")[2]
    assert "unrecognized arguments: x" in cli("refit", DEMO, tmp_path / "w.npz", "-n", "x")[2]


def test_an_executor_of_check_needs_values(cli):
    status, out, err = cli("check", DEMO, DEMO, "--executor", "threads:2")
    assert (status, out) == (2, "")
    assert err == "milblob: --executor: expected --values, whose work it gives out, got none\n"
