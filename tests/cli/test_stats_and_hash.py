"""The command line: stats and hash."""

import json
import shutil

import numpy as np
import pytest

import milblob
import reference
from milblob.cli import main
from paths import DATA, DEMO

IMMEDIATES = DATA / "immediates" / "model.mlmodel"


@pytest.fixture
def cli(capsys):
    """Run a command: (exit status, stdout, stderr)."""

    def run(*arguments):
        capsys.readouterr()
        status = main([str(argument) for argument in arguments])
        return status, *capsys.readouterr()

    return run


@pytest.fixture
def odd(tmp_path):
    """A weight file with special values, and numbers that float16 cannot hold."""
    path = tmp_path / "odd.bin"
    values = np.array([1e6, -65520, 65504, 0, -0.0, np.nan, np.inf, -np.inf, 1e-40], np.float32)
    bits = values.view("<u4").tolist()
    data = bytearray(reference.write_blobs([("UINT32", bits), ("FLOAT16", [0, 1, 0x7BFF]), ("INT4", [-8, 7, 7])])[0])
    data[68] = 2  # the first record is float32
    path.write_bytes(data)
    return path


def test_stats_json_has_every_figure(cli, odd):
    status, out, err = cli("stats", odd, "--json", "--histogram")
    assert (status, err) == (0, "")
    document = json.loads(out)
    first = document["tensors"][0]
    with milblob.open(odd) as model:
        for row, tensor in zip(document["tensors"], model.values(), strict=True):
            figures = milblob.statistics(tensor, histogram=True)
            assert row["shape"] == list(tensor.shape) and row["dtype"] == str(tensor.mil_dtype)
            assert all(
                row[key] == getattr(figures, key)
                for key in row
                if hasattr(figures, key) and key not in ("dtype", "shape", "histogram")
            )
            assert [tuple(bar.values()) for bar in row["histogram"]] == list(figures.histogram)
    assert (first["nans"], first["positive_infinities"], first["negative_infinities"], first["negative_zeros"]) == (
        1,
        1,
        1,
        1,
    )
    assert (first["float16_overflows"], first["subnormals"], first["distinct"]) == (2, 1, 8)
    totals = document["totals"]
    assert (totals["tensors"], totals["count"], totals["max"], totals["nans"]) == (3, 15, 1e6, 1)
    assert set(totals["by_dtype"]) == {"float32", "float16", "int4"} and totals["by_dtype"]["int4"]["min"] == -8
    assert totals["by_scheme"]["none"]["tensors"] == 3 and "distinct" not in totals


def test_stats_that_are_not_finite(cli, tmp_path):
    path = tmp_path / "huge.bin"
    path.write_bytes(reference.write_blobs([("FLOAT16", [0x7E00])])[0])
    (row,) = json.loads(cli("stats", path, "--json")[1])["tensors"]
    assert (row["min"], row["mean"], row["std"], row["nans"]) == (None, None, None, 1)
    assert cli("stats", path)[1].splitlines()[1].split() == ["#0", "float16", "[1]", *"-----", "0.0%", "1", "1"]


def test_stats_would_overflow(cli, odd):
    status, out, _ = cli("stats", odd, "--would-overflow", "float16")
    assert status == 1
    lines = out.splitlines()
    assert (
        len(lines) == 4
        and lines[0].endswith("float16 overflow")
        and lines[1].startswith("#0 ")
        and lines[1].endswith(" 2")
    )
    assert lines[3] == "1 tensor of 3 would overflow float16"
    status, out, _ = cli("stats", odd, "--would-overflow", "float16", "--json")
    assert status == 1 and [row["name"] for row in json.loads(out)["tensors"]] == ["#0"]
    assert json.loads(out)["totals"]["tensors"] == 3
    assert cli("stats", odd, "--would-overflow", "float16", "-q", "-k", "#1") == (0, "", "")
    assert cli("stats", odd, "--would-overflow", "bfloat16")[0] == 2


@pytest.mark.parametrize("key", ["name", "dtype", "count", "min", "max", "mean", "std", "absmax", "zeros", "distinct"])
def test_stats_sorted(cli, key):
    rows = json.loads(cli("stats", DEMO, "--json", "-s", key)[1])["tensors"]
    values = [row[key] for row in rows]
    assert values == sorted(values, reverse=key not in ("name", "dtype"))


def test_stats_selected(cli):
    status, out, err = cli("stats", DEMO, "-k", "head_*", "-q")
    assert (status, err) == (0, "") and [line.split()[0] for line in out.splitlines()] == [
        "name",
        "head_weight",
        "head_bias",
    ]
    assert "by scope" in cli("stats", DEMO)[1] and "by dtype" in cli("stats", DEMO)[1]
    assert cli("stats", DEMO, "-v")[1].splitlines()[0].endswith("float16 overflow")
    assert "main/" not in cli("stats", DATA / "functions" / "model.mlpackage", "-f", "beta", "-q")[1]


def test_stats_of_compressed_weights_and_parts(cli):
    path = DATA / "palette_4bit" / "model.mlpackage"
    out = cli("stats", path, "--stored")[1]
    assert "uint8" in out and "float32" in out
    assert cli("stats", path, "--stored", "--histogram", "-q")[0] == 0


def test_stats_of_strings(cli):
    status, out, _ = cli("stats", IMMEDIATES, "--constants", "--json")
    strings = [row for row in json.loads(out)["tensors"] if row["dtype"] == "string"]
    assert status == 0 and strings and all(row["min"] is None and row["count"] >= 0 for row in strings)


def test_hash(cli):
    hashed = milblob.content_hash(DEMO)
    whole, tensors = hashed.model, hashed.tensors
    status, out, err = cli("hash", DEMO)
    assert (status, err) == (0, "")
    lines = dict(reversed(line.split("  ", 1)) for line in out.splitlines())
    with milblob.open(DEMO) as model:
        assert list(lines) == [*model, str(DEMO)]
    assert lines.pop(str(DEMO)) == whole
    assert lines.items() <= tensors.items() and len(lines) < len(tensors)
    assert cli("hash", DEMO, "-q")[1] == f"{whole}  {DEMO}\n"
    verbose = cli("hash", DEMO, "-v")[1].splitlines()
    assert len(verbose) == len(tensors) + 1
    document = json.loads(cli("hash", DEMO, "--json")[1])
    assert document == {"path": str(DEMO), "kind": "mlpackage", "dense": False, "model": whole, "tensors": lines}


def test_hash_of_some(cli):
    tensors = milblob.content_hash(DEMO).tensors
    assert cli("hash", DEMO, "-k", "head_bias")[1] == f"{tensors['head_bias']}  head_bias\n"
    assert cli("hash", DEMO, "-k", "head_bias", "-q")[1] == f"{tensors['head_bias']}  head_bias\n"
    assert json.loads(cli("hash", DEMO, "-k", "head_bias", "--json")[1])["model"] is None


def test_commands_without_the_weight_file(cli, tmp_path):
    package = tmp_path / "demo.mlpackage"
    shutil.copytree(DEMO, package)
    shutil.rmtree(package / "Data/com.apple.CoreML/weights")
    for command in ("stats", "hash"):
        status, out, err = cli(command, package)
        assert (status, out, err.count("\n")) == (2, "", 1) and "no such file" in err
