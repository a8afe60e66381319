"""milblob repack on the command line: the same as milblob.repack, its plan, its JSON, its one line for what goes wrong."""

import json

import numpy as np
import pytest

import milblob
from milblob.cli import main
from paths import DEMO
from peers import WITHOUT
from repacking import (
    blobs_of,
    copy_of,
    fixture_path,
    record_values,
    simple_package,
    tree,
    values,
)

pytestmark = pytest.mark.usefixtures("unsynced")

FUNCTIONS = fixture_path("functions", "model.mlpackage")


@pytest.fixture
def cli(capsys):
    """Run main() in this process: (status, stdout, stderr)."""

    def run(*argv):
        status = main(["repack", *map(str, argv)])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        if status == 2:
            assert len(captured.err.splitlines()) == 1 and captured.err.startswith("milblob: "), captured.err
        return status, captured.out, captured.err

    return run


@pytest.mark.parametrize(("arguments", "options"), [
    ([], {}),
    (["--dedupe", "--gc"], {"dedupe": True, "gc": True}),
    (["--dedupe=values"], {"dedupe": "values"}),
    (["--dedupe=near", "--min-sqnr", "40"], {"dedupe": "near", "min_sqnr": 40}),
    (["--align", "4096", "--canonical"], {"align": 4096, "canonical": True}),
    (["--inline"], {"inline": True}),
    (["--inline", "500", "-k", "*weight*", "-k", "*bias*"], {"inline": 500, "select": ["*weight*", "*bias*"]}),
    (["--externalize=3", "--split=function"], {"externalize": 3, "split": "function"}),
    (["--split", "1K"], {"split": 1024}),
    (["--split", "0.5KiB"], {"split": 512}),
    (["--split", "2k"], {"split": "2K"}),
    (["--split", "0.001M"], {"split": "0.001MiB"}),
    (["--merge"], {"merge": True}),
    (["--decompress"], {"decompress": True}),
    (["--function", "add"], {"functions": ["add"]}),
])  # fmt: skip
def test_options_are_those_of_the_function(cli, tmp_path, arguments, options):
    with milblob.open(FUNCTIONS) as opened:
        name = next(iter(opened.functions))
    arguments = [name if word == "add" else word for word in arguments]
    options = {key: [name] if key == "functions" else value for key, value in options.items()}
    status, out, err = cli(FUNCTIONS, "-o", tmp_path / "cli.mlpackage", *arguments)
    report = milblob.repack(FUNCTIONS, tmp_path / "python.mlpackage", **options)
    assert (
        (status, out) == (0, "") and err.count("\n") == 1 and err.startswith(f"milblob: {len(report.changes)} tensor")
    )
    assert tree(tmp_path / "cli.mlpackage") == tree(tmp_path / "python.mlpackage")


def test_decompress(cli, tmp_path):
    source, target = fixture_path("palette_4bit", "model.mlpackage"), tmp_path / "dense.mlpackage"
    status, out, err = cli(source, "-o", target, "--decompress", "-k", "*weight*", "-n")
    assert status == 0 and "decompress" in out and "drop" in out and not target.exists()
    status, out, err = cli(source, "-o", target, "--decompress")
    assert (status, out) == (0, "") and "decompress 3, drop 9" in err
    status, out, err = cli(source, "-o", target, "--decompress", "--cast", "float16", "--force")
    assert status == 2 and "decompress: expected it without cast" in err


def test_json_and_dry_run(cli, tmp_path):
    source = simple_package(tmp_path, [b"abcd" * 3, b"abcd" * 3])
    target = tmp_path / "out.mlpackage"
    status, out, err = cli(source, "-o", target, "--dedupe", "--dry-run", "--json")
    planned = json.loads(out)
    assert (status, err) == (0, "") and not target.exists() and planned["done"] is False
    status, out, _ = cli(source, "-o", target, "--dedupe", "--json")
    assert json.loads(out) == {**planned, "done": True}
    assert json.loads(out) == milblob.repack(source, target, dedupe=True, force=True).to_dict()
    assert planned["actions"] == {"deduplicate": 1} and planned["nbytes"] == 24 and planned["nbytes_after"] == 12


def test_plan_and_summary(cli, tmp_path):
    source, target = simple_package(tmp_path, [b"abcd" * 3, b"efgh" * 30, b"abcd" * 3]), tmp_path / "out.mlpackage"
    status, out, err = cli(source, "-o", target, "--dedupe", "--inline", "5", "-k", "w0", "-n")
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["name", "action", "dtype", "becomes", "size", "becomes", "to"]
    assert (
        lines[1] == ["w0", "inline", "float32", "float32", "12", "B", "12", "B", "the", "Program"] and len(lines) == 2
    )
    assert err == f"milblob: 3 tensors, 144 B -> 144 B: inline 1, would go to {target}\n" and status == 0
    _, out, _ = cli(source, "-o", target, "-v")
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["w0", "keep"], ["w1", "keep"], ["w2", "keep"]]
    assert "weight.bin at 64" in out
    assert cli(source, "-o", target, "--force", "-q") == (0, "", "")
    _, out, err = cli(source, "-o", target, "--force", "--dedupe", "--gc", "-v")
    assert "deduplicate" in out and err.endswith(f"144 B -> 132 B: deduplicate 1, to {target}\n")


def test_casts(cli, tmp_path):
    big = np.array([1e9, np.nan, 1e-30, 1.5], np.float32)
    (tmp_path / "w.bin").write_bytes(blobs_of((2, big.tobytes()), (5, b"\x80\x3f"))[0])
    source, target = tmp_path / "w.bin", tmp_path / "out.bin"
    status, _, err = cli(source, "-o", target, "--cast", "float16")
    assert (
        status == 2 and "#0: element 0: expected at most 65504 in magnitude, got 1e+09" in err and not target.exists()
    )
    status, _, err = cli(source, "-o", target, "--cast", "float16", "--overflow", "clamp", "--nan", "error")
    assert status == 2 and "#0: element 1: expected a number, got nan" in err and not target.exists()
    status, _, err = cli(source, "-o", target, "--cast", "float16", "--overflow", "clamp")
    assert status == 0 and "cast 2, 1 element too large, 1 element NaN, 1 element to zero" in err
    assert [row[0] for row in record_values(target)] == ["float16", "float16"]
    cli(source, "-o", target, "--force", "--cast", "float32=bfloat16", "--cast", "bfloat16=float32")
    assert [row[0] for row in record_values(target)] == ["bfloat16", "float32"]
    status, _, err = cli(source, "-o", target, "--force", "--cast", "float32=bfloat16", "--cast", "float16")
    assert status == 2 and "cast: expected FROM=TO where there are several, got 'float16'" in err


@pytest.mark.parametrize(("arguments", "words"), [
    (["--align", "100"], "invalid choice: 100"),
    (["-k", "head*"], "-k: expected --cast, --decompress, --externalize, --inline or --dedupe=values, which it selects for,"),
    (["-k", "head*", "--dedupe"], "-k: expected --cast, "),
    (["--dedupe=near", "--min-sqnr", "nan"], "min_sqnr: expected a number of dB above 0, got nan"),
    (["--dedupe=values", "--min-sqnr", "60"], "min_sqnr: expected dedupe='near' (--dedupe=near), which it is about, got 'values'"),
    (["--min-sqnr", "60"], "min_sqnr: expected dedupe='near' (--dedupe=near), which it is about, got none"),
    (["--dedupe", "--base", "nowhere.npz"], "base: expected dedupe='near' (--dedupe=near), which it is about, got that of equal records"),
    (["--dedupe=near", "--base", "nowhere.npz"], "nowhere.npz"),
    (["--verify", "--dry-run"], "--verify: expected a result beside the model to compare with it, got none"),
    (["--overflow", "inf"], "--overflow: expected --cast, which it is about, got none"),
    (["--nan", "error"], "--nan: expected --cast, which it is about, got none"),
    (["--split", "lots"], "size: expected bytes, such as 64M or 2G, got 'lots'"),
    (["--split", "1"], "split: expected 'function' or a size of 192 bytes or more, got 1"),
    (["--split", "1e400"], "size: expected bytes"),
    (["--merge", "--split", "1M"], "merge: expected it without split, got both"),
    (["--cast", "int8"], "cast: expected float32, float16 or bfloat16, got int8"),
    (["--cast", "number"], "number"),
    (["-f", "none"], "has no function 'none' (it has "),
    (["--inline", "-5"], "inline: expected a number of elements, got -5"),
    (["--overflow", "wrap"], "invalid choice: 'wrap'"),
])  # fmt: skip
def test_wrong_usage(cli, tmp_path, arguments, words):
    status, out, err = cli(FUNCTIONS, "-o", tmp_path / "out.mlpackage", *arguments)
    assert (status, out) == (2, "") and words in err
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_replaced(cli, tmp_path):
    source = copy_of(FUNCTIONS, tmp_path)
    status, _, err = cli(FUNCTIONS, "-o", source)
    assert status == 2 and "use --force to replace it" in err
    status, _, err = cli(FUNCTIONS)
    assert status == 2 and "-o/--output" in err
    before = values(source)
    assert cli(source, "-o", source, "--align", "4096", "-q") == (0, "", "")  # itself
    assert values(source) == before and tree(source) != tree(FUNCTIONS)


def test_several_weight_files(cli, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(blobs_of((3, name.encode() * 5), (3, b"same"))[0])
    status, _, _ = cli(tmp_path / "a", tmp_path / "b", "-o", tmp_path / "out.bin", "--dedupe")
    assert status == 0 and [row[2] for row in record_values(tmp_path / "out.bin")] == [b"aaaaa", b"same", b"bbbbb"]


def test_output_has_no_escapes_of_files(cli, tmp_path):
    from repacking import WEIGHTS, package_of

    data, (at,) = blobs_of((2, b"abcd"))
    source = package_of(tmp_path, {"main": [("w\x1b[31m", 11, [1], WEIGHTS, at)]}, {"weights/weight.bin": data})
    _, out, err = cli(source, "-o", tmp_path / "out.mlpackage", "-v", "--inline")
    assert "\x1b" not in out + err and "w\\x1b[31m" in out


def test_a_dry_run_that_changes_no_tensor_prints_no_table(cli, tmp_path):
    status, out, err = cli(DEMO, "-o", tmp_path / "out.mlpackage", "--inline", "--dry-run")
    assert (status, out) == (0, "") and "would go to" in err


def test_weights_that_share_are_listed(cli, tmp_path):
    """A dry run has a row for each with its SQNR; --verify runs both models; nothing to share is said."""
    pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])
    source, target = fixture_path("matrix_chains", "model.mlpackage"), tmp_path / "b.mlpackage"
    copy, both = tmp_path / "dense.mlpackage", tmp_path / "both.mlpackage"
    milblob.repack(source, copy, decompress=True)
    assert main(["merge-functions", str(source), str(copy), "-o", str(both), "-q"]) == 0
    expected = milblob.repack(both, target, dedupe="values", dry_run=True).shared
    status, out, err = cli(both, "-o", target, "--dedupe=values", "--dry-run")
    assert status == 0 and not target.exists() and expected
    assert all(f"{row.name} " in out and row.reference in out for row in expected) and out.count("equal") == len(
        expected
    )
    assert f"shared: {len(expected)} weight" in err
    status, out, err = cli(both, "-o", target, "--dedupe=values", "--verify", "--json")
    document = json.loads(out)
    assert (
        status == 0 and len(document["shared"]) == len(expected) and all(row["is_same"] for row in document["verify"])
    )
    status, out, err = cli(both, "-o", tmp_path / "c.mlpackage", "--dedupe=values", "--verify")
    assert status == 0 and out.count("same: ") == 2
    status, _, err = cli(target, "-o", tmp_path / "d.mlpackage", "--dedupe=values")
    assert status == 0 and "nothing to share: no weights have the same values in different forms" in err
    status, _, err = cli(target, "-o", tmp_path / "e.mlpackage", "--dedupe=near")
    assert status == 0 and "nothing to share: no different weights have nearly equal values" in err
    status, _, err = cli(both, "-o", both, "--force", "--dedupe=values", "--verify")
    assert status == 2 and "--verify: expected a result beside the model" in err
