"""Many models: of the commands that read, and of `milblob batch`."""

import io
import json
import re
import shutil
import sys

import numpy as np
import pytest

import milblob
from milblob.cli import main
from milblob.cli.command_call import COMMANDS, CommandCall
from paths import DEMO

pytestmark = pytest.mark.usefixtures("unsynced")

READING = {
    "ls": [], "show": [], "stats": [], "hash": [], "check": [], "text": ["--op", "head"], "to-onnx": ["--coverage"],
}  # fmt: skip
KEYS = {"ls": "tensors", "show": "producer", "stats": "totals", "hash": "model", "check": "findings", "text": "operations", "to-onnx": "unsupported"}  # fmt: skip


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Three models, one of which is broken."""
    for name in ("a", "in/b", "in/c"):
        shutil.copytree(DEMO, tmp_path / "models" / f"{name}.mlpackage")
    program = tmp_path / "models/in/b.mlpackage/Data/com.apple.CoreML/model.mlmodel"
    program.write_bytes(program.read_bytes()[:-100])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(capsys, *argv):
    """As the fixture `cli`, of commands that print a line for each of several errors."""
    status = main([*map(str, argv)])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.err
    return status, captured.out, captured.err


def test_the_table_has_every_command_with_many_models():
    from milblob.cli.parser import commands_of, whole_parser

    with_lines = {name for name, parser in commands_of(whole_parser()) if "--json-lines" in parser.format_help()}
    assert with_lines == {*READING, "batch"}


@pytest.mark.parametrize("name", READING)
def test_a_broken_model_does_not_stop_the_rest(folder, capsys, name):
    op = ["--op", next(iter(milblob.open(DEMO).find(type="linear"))).outputs[0][0]] if name == "text" else READING[name]
    status, out, err = run(capsys, name, *op, "-r", "models", "--json-lines")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["path"] for row in rows] == [f"models/{part}.mlpackage" for part in ("a", "in/b", "in/c")]
    is_found = name == "check"  # which reports what is broken
    assert status == (1 if is_found else 2)
    assert [KEYS[name] in row for row in rows] == [True, is_found, True]
    if not is_found:
        assert len(err.splitlines()) == 1
        assert rows[1]["error"] in err
    assert run(capsys, name, *op, "models/a.mlpackage", "--json")[1] == json.dumps(
        {"models": [rows[0]]} if is_found else rows[0], ensure_ascii=False, indent=1
    ) + "\n"  # fmt: skip
    document = json.loads(run(capsys, name, *op, "-r", "models", "--json")[1])
    assert document["models"] == [row for row in rows if "error" not in row]
    status, out, _ = run(capsys, name, *op, "-r", "models", "--json-lines", "--fail-fast")
    assert len(out.splitlines()) == (3 if is_found else 2)


def test_what_no_model_is_found_for_is_named(folder, capsys):
    (folder / "empty").mkdir()
    (folder / "list").write_text("empty\n")
    given = ["empty", "no*.mlpackage"]
    status, out, _ = run(capsys, "hash", "--json-lines", "-r", *given, "--files-from", "list")
    assert status == 2 and [json.loads(line)["path"] for line in out.splitlines()] == [*given, "empty"]


def test_lists_and_globs(folder, capsys, monkeypatch):
    (folder / "list").write_text("models/a.mlpackage\nno.mlpackage\nmodels\n")
    status, out, err = run(capsys, "hash", "-q", "--files-from", "list", "-r", "models/in/*c.*")
    assert [line.partition("  ")[2] for line in out.splitlines()] == [
        "models/in/c.mlpackage", "models/a.mlpackage", "models/a.mlpackage", "models/in/c.mlpackage",
    ]  # fmt: skip
    assert status == 2
    assert "No such file or directory: no.mlpackage" in err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"models/a.mlpackage\0models/in/c.mlpackage\0")))
    assert run(capsys, "ls", "--files-from", "-", "-q")[1].count("head_bias") == 2
    assert run(capsys, "show", "--files-from", "list", "head_bias")[1].count("first values") == 1
    status, out, err = run(capsys, "ls", "none*", "models/a.mlpackage", "-q")
    assert (status, out.count("head_bias"), err.count("no match")) == (2, 1, 1)
    status, out, err = run(capsys, "ls", "-r", "list")
    assert (status, out) == (2, "list:\n")
    (folder / "empty").mkdir()
    assert run(capsys, "check", "-r", "empty")[::2] == (
        2, "milblob: empty: expected a directory with models below it, got none\n",
    )  # fmt: skip
    assert (
        run(capsys, "ls")[0]
        == run(capsys, "convert", "-o", "x.npz")[0]
        == run(capsys, "ls", "--files-from", "no")[0]
        == 2
    )


def test_convert_makes_one_file_of_all_that_is_found(folder, capsys):
    np.savez("models/x.npz", x=np.arange(3))
    np.savez("models/y.npz", y=np.arange(4))
    assert run(capsys, "convert", "models/*.npz", "-o", "one.npz", "-q") == (0, "", "")
    with np.load("one.npz") as arrays:
        assert sorted(arrays) == ["x", "y"]


@pytest.mark.parametrize("name", READING)
@pytest.mark.parametrize("content", ["", "\n\n"])
def test_an_empty_list_is_not_passed_over(folder, cli, name, content):
    (folder / "list").write_text(content, "utf-8")
    for words in ([], ["--json-lines"]):
        status, out, err = cli(name, *READING[name], "--files-from", "list", *words)
        assert (status, out) == (2, "")
        assert "expected a list of models, got an empty one: list" in err


def test_one_model_is_reported_without_a_heading(folder, capsys):
    expected = run(capsys, "ls", "models/a.mlpackage")
    assert run(capsys, "ls", "models/a*") == expected
    assert run(capsys, "ls", "-r", "models/a.mlpackage")[1] == f"models/a.mlpackage:\n{expected[1]}"


# --------------------------------------------------------------------------------------------------------------- batch


WRITTEN = {
    "repack": (["--cast", "float32=float16"], ".mlpackage"), "compress": (["--int8"], ".mlpackage"), "convert": ([], ".npz"),
    "to-onnx": (["--weights", "copy"], ".onnx"), "check": (["--values"], ".mlpackage.json"), "stats": ([], ".mlpackage.json"),
    "hash": (["--dense"], ".mlpackage.json"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_batch_does_what_the_command_does(folder, capsys, name):
    assert WRITTEN.keys() == COMMANDS.keys()
    words, suffix = WRITTEN[name]
    status, out, err = run(capsys, "batch", name, *words, "--", "-r", "models", "--into", "out")
    assert out == ""
    if name == "check":
        assert (status, err.splitlines()[-1]) == (1, "milblob: 3 models, 658.3 KiB: 3 done, 0 failed, to out")
    else:
        assert status == 2
        summary, failure = err.splitlines()
        assert summary == "milblob: 3 models, 438.9 KiB: 2 done, 1 failed, to out"
        assert "models/in/b.mlpackage" in failure
    if name in ("check", "stats", "hash"):
        shown = json.loads(run(capsys, name, *words, "models/in/c.mlpackage", "--json")[1])
        assert json.loads((folder / f"out/in/c{suffix}").read_text("utf-8")) == (
            shown["models"][0] if name == "check" else shown
        )
        return
    assert run(capsys, name, *words, "models/in/c.mlpackage", "-o", f"one{suffix}", "-q")[0] == 0
    assert milblob.content_hash(f"out/in/c{suffix}") == milblob.content_hash(f"one{suffix}")
    status, out, err = run(
        capsys, "batch", name, *words, "--", "-r", "models", "--into", "out", "--resume", "--json-lines", "-q"
    )
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["state"] for row in rows] == ["skipped", "failed", "skipped"]
    assert [row["output"] for row in rows] == [f"out/{part}{suffix}" for part in ("a", "in/b", "in/c")]
    assert rows[1]["error"] in err


def test_batch_prints_results_without_outputs(folder, capsys):
    status, out, err = run(capsys, "batch", "hash", "--", "models/a.mlpackage", "models/in/c.mlpackage", "--jobs", "2")
    assert status == 0
    rows = {row["path"]: row for row in map(json.loads, out.splitlines())}
    assert sorted(rows) == ["models/a.mlpackage", "models/in/c.mlpackage"]
    for path, row in rows.items():
        assert row["result"]["model"] == milblob.content_hash(path).model
    assert err == "milblob: 2 models, 438.9 KiB: 2 done, 0 failed\n"
    status, out, _ = run(capsys, "batch", "check", "--", "-r", "models", "--json", "-q")
    assert (status, json.loads(out)["done"]) == (1, 3)
    status, out, _ = run(capsys, "batch", "repack", "--gc", "-n", "--", "models/a.mlpackage", "-q")
    assert (status, json.loads(out)["result"]["done"]) == (0, False)
    status, out, _ = run(capsys, "batch", "to-onnx", "--coverage", "--", "models/a.mlpackage", "-q")
    assert (status, json.loads(out)["result"]["unsupported"]) == (0, {})


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["frobnicate", "--", "models"], "expected one of repack, .*, got 'frobnicate'"),
        (["ls", "--", "models"], "expected one of repack, .*, got 'ls'"),
        (["repack", "models"], "expected COMMAND OPTIONS -- MODEL ..., got no --"),
        ([], "got no --"), (["--", "models"], "expected one of .*, got none"),
        (["repack", "--"], "expected MODEL or --files-from FILE after --"),
        (["repack", "--", "models/a.mlpackage"], "repack: expected --into DIR"),
        (["repack", "--bits", "--", "models", "--into", "out"], "unrecognized arguments: --bits"),
        (["repack", "x", "--", "models", "--into", "out"], "expected models after --, got x before"),
        (["compress", "x", "--int8", "--", "models", "--into", "out"], "unrecognized arguments: x"),
        (["repack", "--gc", "--", "models", "--bits", "--into", "out"], "unrecognized arguments: --bits"),
        (["compress", "--int8", "--save-plan", "p", "--", "models", "--into", "out"], "expected no --save-plan of compress"),
        (["compress", "--frontier", "f.svg", "--", "models", "--into", "out"], "expected no --frontier of compress"),
        (["repack", "-o", "x", "--", "models", "--into", "out"], "expected no --output of repack"),
        (["repack", "--output=x", "--", "models", "--into", "out"], "expected no --output of repack"),
        (["repack", "-ox", "--", "models", "--into", "out"], "expected no --output of repack"),
        (["check", "--sarif", "--", "models"], "expected no --sarif of check"),
        (["check", "--cache", "c", "--", "models"], "expected no --cache of check"),
        (["hash", "--download", "c", "--", "models"], "expected no --download of hash"),
        (["stats", "--storage-option", "a=b", "--", "models"], "expected no --storage-option of stats"),
        (["repack", "--force", "--", "models", "--into", "out"], "expected no --force of repack"),
        (["repack", "--json", "--", "models", "--into", "out"], "expected no --json of repack"),
        (["check", "-r", "--", "models"], "expected no --recursive of check"),
        (["repack", "--gc", "--", "-r", "models", "--into", "models/out"], "outside of the sources"),
        (["repack", "--gc", "--", "-r", "empty", "--into", "out"], "expected a directory with models below it"),
        (["repack", "--gc", "--", "https://host/m.mlpackage", "--into", "out"], "expected local paths, got a URL"),
    ],
)  # fmt: skip
def test_batch_refuses_before_it_writes(folder, cli, words, message):
    (folder / "empty").mkdir()
    before = sorted(folder.rglob("*"))
    status, out, err = cli("batch", *words)
    assert (status, out) == (2, "")
    assert re.search(message, err), err
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("name", ["repack", "compress", "check", "stats", "hash"])
def test_results_of_a_batch_in_an_executor_are_the_same(folder, capsys, name):
    words = [*WRITTEN[name][0], "--", "models/a.mlpackage", "-q"]
    plain = run(capsys, "batch", name, *words, "--into", "one")
    assert run(capsys, "batch", name, *words, "--into", "two", "--executor", "threads:2") == plain
    assert plain[0] in (0, 1)
    suffix = WRITTEN[name][1]
    if suffix == ".mlpackage":
        assert milblob.content_hash(f"one/a{suffix}") == milblob.content_hash(f"two/a{suffix}")
    else:
        assert (folder / f"one/a{suffix}").read_bytes() == (folder / f"two/a{suffix}").read_bytes()


def test_a_dry_run_of_a_batch_takes_no_other_path_for_the_output(folder, capsys):
    (folder / "MODEL").write_bytes(b"mine")
    status, out, err = run(capsys, "batch", "compress", "--int8", "-n", "--", "models/a.mlpackage", "-q")
    assert (status, err) == (0, "")
    assert json.loads(out)["result"]["output"] == "models/a.mlpackage"


def test_batch_prints_the_help_of_the_command(cli):
    assert cli("batch", "repack", "--help", "--")[1].startswith("usage: milblob repack")


def test_a_command_call_can_be_pickled_and_is_known_by_its_words():
    import pickle

    call = pickle.loads(pickle.dumps(CommandCall(["repack", "--gc"])))
    assert repr(call) == "milblob repack --gc"
