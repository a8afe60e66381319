"""The command line: output, JSON, exit status, and no traceback whatever it is given."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import milblob
import paths
import screens
from milblob.analysis import check_blob as blobcheck
from milblob.cli.terminal import output, patterns
from paths import DATA, ROOT
from peers import WITHOUT
from thorough import some

pytestmark = [pytest.mark.wheel, pytest.mark.usefixtures("unsynced")]

SOURCES = pathlib.Path(milblob.__file__).parents[1]
"""Where what is tested is imported from: src/, or an installed wheel."""
DEMO = str(paths.DEMO)
PALETTE = str(DATA / "palette_4bit/model.mlpackage")
PIPELINE = str(DATA / "pipeline/model.mlpackage")
FUNCTIONS = str(DATA / "functions/model.mlpackage")
BLOB = str(DATA / "blob_all_dtypes/weight.bin")
COMMANDS = ["ls", "show", "convert", "check"]
TENSOR_KEYS = ["name", "dtype", "shape", "nbytes", "function", "op", "file", "offset", "compression"]


def spawn(*argv, **options):
    """Start the command as a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(SOURCES), **options.pop("env", {})}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.Popen([sys.executable, "-m", "milblob", *argv], env=environment, **pipes)


def copied(source, tmp_path):
    return pathlib.Path(shutil.copytree(source, tmp_path / "copy.mlpackage"))


# -- ls ---------------------------------------------------------------------------------------------------------------


def test_ls(cli):
    status, out, err = cli("ls", DEMO)
    lines = out.splitlines()
    assert (status, err) == (0, "")
    assert lines[0].split() == ["name", "dtype", "shape", "size", "bits", "share", "read", "by"]
    assert "embedding_weight                 float16  [96, 48]   9.0 KiB    16   5.1%  gather 'embedding' x" in lines
    assert lines[71].split() == ["tensors", "elements", "size", "bits", "share"]
    assert lines[72].split() == ["total", "69", "85,248", "175.7", "KiB", "16.88", "100.0%"]
    assert lines[-1] == "333 constants not listed: fewer than ten elements, bool or text (--constants lists them)."
    assert [line.split()[0] for line in lines[73:-2]] == [
        "by", "float16", "float32", "by", "layers", "head", "embedding", "final",
    ]  # fmt: skip


@pytest.mark.parametrize("path", [DEMO, PALETTE, PIPELINE, FUNCTIONS, BLOB, DATA / "immediates/model_1.0.mlmodelc"])
@pytest.mark.parametrize("view", [[], ["--constants"], ["--stored"]])
def test_ls_json(cli, path, view):
    status, out, _ = cli("ls", path, "--json", *view)
    document = json.loads(out)
    assert status == 0
    assert list(document) == ["path", "kind", "tensors", "totals"]
    with milblob.open(path, constants="--constants" in view, stored="--stored" in view) as model:
        assert document["path"] == str(path)
        assert document["kind"] == model.kind
        assert [row["name"] for row in document["tensors"]] == list(model)
        for row, tensor in zip(document["tensors"], model.values(), strict=True):
            assert list(row) == TENSOR_KEYS
            assert row["dtype"] == str(tensor.mil_dtype)
            assert row["shape"] == list(tensor.declared_shape)
            assert row["nbytes"] == (None if None in tensor.declared_shape else tensor.nbytes)
            assert [row["op"], row["file"], row["offset"]] == [tensor.op, tensor.file, tensor.offset]
            assert row["compression"] == (tensor.compression.scheme if tensor.compression else "")
            assert row["function"].endswith(tensor.function)
        totals = document["totals"]
        assert totals["tensors"] == len(model)
        for table in ("by_dtype", "by_scope"):
            for key in ("tensors", "elements", "nbytes"):
                assert sum(entry[key] for entry in totals[table].values()) == totals[key]


def test_ls_works_without_weight_files(cli, tmp_path):
    package = copied(DEMO, tmp_path)
    with_weights = json.loads(cli("ls", package, "--json")[1])
    shutil.rmtree(package / "Data/com.apple.CoreML/weights")
    assert json.loads(cli("ls", package, "--json")[1]) == with_weights


def test_ls_globs_and_functions(cli):
    def names(*argv):
        return [row["name"] for row in json.loads(cli("ls", *argv, "--json")[1])["tensors"]]

    assert names(DEMO, "-k", "head_*") == ["head_weight", "head_bias"]
    assert names(DEMO, "-k", "head_bias", "-k", "final*bias") == ["final_norm_bias", "head_bias"]
    assert all(name.startswith("alpha/") for name in names(FUNCTIONS, "-f", "alpha"))
    assert names(FUNCTIONS, "-f", "alpha") + names(FUNCTIONS, "-f", "beta") == names(FUNCTIONS)
    assert names(PIPELINE, "-f", "model1/main") == [n for n in names(PIPELINE) if n.startswith("model1/")]
    assert names(PIPELINE, "-f", "main") == names(PIPELINE)
    blocks = str(DATA / "control_flow/model.mlpackage")
    inner = "main/loop_0[1]/branch[0]/branch_weight"  # a name with the characters of a glob
    assert names(blocks, "-k", inner) == [inner]
    status, _, err = cli("ls", DEMO, "-k", "nothing*")
    assert (status, err) == (
        2,
        f"milblob: -k nothing*: no tensor in {DEMO} matches\n",
    )


@pytest.mark.parametrize("order", ["file", "name", "size", "dtype", "offset"])
def test_ls_orders(cli, order):
    rows = json.loads(cli("ls", DEMO, "--sort", order, "--json")[1])["tensors"]
    keys = {
        "name": lambda row: row["name"],
        "size": lambda row: -row["nbytes"],
        "dtype": lambda row: row["dtype"],
        "offset": lambda row: row["offset"],
    }
    if order in keys:
        assert rows == sorted(rows, key=keys[order])
    else:
        with milblob.open(DEMO) as model:
            assert [row["name"] for row in rows] == list(model)


def test_ls_patterns(cli):
    _, out, _ = cli("ls", DEMO, "--pattern", "-q")
    lines = out.splitlines()
    assert len(lines) == 22
    assert (
        "layers_{0..3}_mlp_up_weight             4 x  float16  [96, 48]  36.0 KiB    16  20.5%  linear weight" in lines
    )
    document = json.loads(cli("ls", DEMO, "--pattern", "--json")[1])
    assert sum(row["count"] for row in document["patterns"]) == len(document["tensors"])
    assert sum(row["nbytes"] for row in document["patterns"]) == document["totals"]["nbytes"]


def test_ls_patterns_by_size(cli):
    sizes = [row["nbytes"] for row in json.loads(cli("ls", DEMO, "-p", "-s", "size", "--json")[1])["patterns"]]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 4 * 96 * 48 * 2
    assert "{0..3}_mlp_up_weight" in cli("ls", DEMO, "-p", "-s", "size")[1].splitlines()[1]


def test_ls_counts_shared_blobs_once(cli):
    totals = json.loads(cli("ls", FUNCTIONS, "--json")[1])["totals"]
    assert totals["nbytes_unique"] < totals["nbytes"]
    assert "stored once for several tensors" in cli("ls", FUNCTIONS)[1]
    assert json.loads(cli("ls", DEMO, "--json")[1])["totals"]["nbytes_unique"] == 179904


def test_ls_verbose_prints_files_and_offsets(cli):
    _, out, _ = cli("ls", DEMO, "-v", "-k", "head_bias")
    assert out.splitlines()[1].split()[-4:] == [
        "main", "const", "185152", os.path.join(DEMO, "Data", "com.apple.CoreML", "weights", "weight.bin"),
    ]  # fmt: skip


def test_ls_compressed(cli):
    out = cli("ls", PALETTE)[1]
    assert "float32 as pal4" in out
    assert "conv_weight_palettized.lut" in cli("ls", PALETTE, "--stored")[1]


def test_ls_of_a_file_without_tensors(cli):
    assert cli("ls", DATA / "blob_none/weight.bin")[0] == 0
    assert json.loads(cli("ls", DATA / "type_attributes/model.mlmodel", "--json")[1])["tensors"] == []


# -- patterns and scopes ----------------------------------------------------------------------------------------------


def test_fold():
    def folded(names, kinds=None):
        return {pattern: len(members) for pattern, members in patterns.fold(names, kinds or [0] * len(names))}

    assert folded([f"layers.{i}.w" for i in range(32)]) == {"layers.{0..31}.w": 32}
    assert folded([f"l_{i}_c_{j}_w" for i in range(2) for j in range(3)]) == {"l_{0..1}_c_{0..2}_w": 6}
    assert folded(["op_3_w", "op_9_w", "op_12_w"]) == {"op_{3,9,12}_w": 3}
    assert folded([f"op_{2 * i}" for i in range(9)]) == {"op_{0..16: 9 of them}": 9}
    assert folded(["a_1", "a_2", "a_3"], ["f", "f", "g"]) == {"a_{1..2}": 2, "a_3": 1}
    assert folded(["conv1_w", "conv2_w"]) == {"conv1_w": 1, "conv2_w": 1}
    assert folded(["a_0_b_7", "a_1_b_7"]) == {"a_{0..1}_b_7": 2}
    assert folded(["a_\0_1", "a_1_\0", "7", "8"]) == {"a_\0_1": 1, "a_1_\0": 1, "{7..8}": 2}


def test_scopes():
    assert patterns.scopes(["encoder_layers_0_w", "decoder.b", "head/w", "x"]) == ["encoder", "decoder", "head", "x"]
    assert patterns.scopes(["m_enc_w", "m_enc_b", "m_dec_w"]) == ["m_enc", "m_enc", "m_dec"]
    assert patterns.scopes(["a_w"]) == ["a"]
    assert patterns.scopes([]) == []
    assert patterns.scopes(["_w", "_b", "__"]) == ["_w", "_b", "_"]


# -- show -------------------------------------------------------------------------------------------------------------


def test_show_tensor(cli):
    status, out, err = cli("show", DEMO, "head_bias")
    assert (status, err) == (0, "")
    place = "record at byte 185152, data at byte 185216"
    for words in ("float32 [96]", "384 bytes", place, "linear 'logits', as bias"):
        assert words in out
    assert "█" in out or "#" in out


def test_show_json_has_the_numbers(cli):
    document = json.loads(cli("show", DEMO, "head_weight", "--json")[1])
    values = milblob.load(DEMO)["head_weight"].astype(np.float64)
    stats = document["values"]
    assert document["data_offset"] == document["offset"] + 64
    assert document["consumers"] == [{"op": "linear", "name": "logits", "parameter": "weight"}]
    assert stats["first"] == values.reshape(-1)[:8].tolist()
    assert (stats["min"], stats["max"], stats["count"]) == (values.min(), values.max(), values.size)
    assert stats["mean"] == pytest.approx(values.mean())
    assert stats["std"] == pytest.approx(values.std())
    assert sum(b["count"] for b in stats["histogram"]) == values.size


def test_show_compressed(cli):
    status, out, _ = cli("show", PALETTE, "conv_weight_palettized")
    assert status == 0
    assert "conv_weight_palettized.lut" in out
    assert "lut_to_dense, 10.3 bits per weight, elements of 4 bits, a palette for [8, 4, 3]" in out
    document = json.loads(cli("show", PALETTE, "conv_weight_palettized", "--json")[1])
    assert (document["compression"], document["compressed"]["scheme"]) == ("lut_to_dense", "lut_to_dense")
    assert document["compressed"]["group_shape"] == [8, 4, 3]
    assert document["values"]["first"] == milblob.load(PALETTE)["conv_weight_palettized"].reshape(-1)[:8].tolist()
    assert json.loads(cli("show", PALETTE, "conv_weight_palettized", "--json")[1])["parts"] == {
        key: f"conv_weight_palettized.{key}" for key in ("indices", "lut", "shape")
    }
    assert "float32 [16]" in cli("show", PALETTE, "conv_weight_palettized.lut")[1]


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "source",
    some([BLOB, *(DATA / case for case in ("blob_handmade/weight.bin", "blob_empty/weight.bin", "immediates/model.mlmodel",
                                      "immediates_odd/model.mlmodel"))], 1),
)  # fmt: skip
def test_show_every_dtype(cli, source):
    with milblob.open(source, constants=True) as model:
        names = list(model)
    for name in names:
        assert cli("show", source, name)[0] == 0, name
        document = json.loads(cli("show", source, name, "--json")[1])
        stats = document["values"]
        if stats["histogram"]:
            finite = stats["count"] - stats["nans"] - stats["infinities"]
            assert sum(b["count"] for b in stats["histogram"]) == finite, name


def test_show_model(cli):
    out = cli("show", DEMO)[1]
    for words in ("the milblob authors", "coremltools 9.0", "CoreML7", "tokens  multiArray int32 [1, 16]"):
        assert words in out
    document = json.loads(cli("show", PIPELINE, "--json")[1])
    assert document["functions"] == ["model0/main", "model1/main"]
    assert cli("show", BLOB)[0] == 0


def test_show_unknown_names(cli):
    status, out, err = cli("show", DEMO, "head_wieght")
    assert (status, out) == (2, "")
    assert "did you mean head_weight" in err
    assert "it is a glob, which milblob ls" in cli("show", DEMO, "head*")[2]
    assert "ambiguous" in cli("show", FUNCTIONS, "base_weight")[2]
    assert cli("show", FUNCTIONS, "base_weight", "-f", "beta")[0] == 0
    assert "has no function 'alhpa'; did you mean alpha?" in cli("show", FUNCTIONS, "base_weight", "-f", "alhpa")[2]
    of_another = cli("show", FUNCTIONS, "alpha/base_weight", "-f", "beta")[2]
    assert "function beta of" in of_another and "has no tensor 'alpha/base_weight'" in of_another
    assert "did you mean beta/base_weight" in of_another
    assert "did you mean alpha" not in of_another


def test_show_more_and_less(cli, tmp_path):
    package = copied(DEMO, tmp_path)
    assert (
        cli("show", package, "head_bias", "-v")[1].count(", ") > cli("show", package, "head_bias")[1].count(", ") + 50
    )
    assert len(json.loads(cli("show", package, "head_bias", "--json", "-v")[1])["values"]["first"]) == 64
    shutil.rmtree(package / "Data/com.apple.CoreML/weights")
    status, out, _ = cli("show", package, "head_bias", "-q")
    assert (status, "first values" in out) == (0, False)
    assert "user-defined" not in cli("show", DEMO, "-q")[1]
    assert "functions     alpha, beta (default alpha)" in cli("show", FUNCTIONS)[1]
    assert "output of beta" in cli("show", FUNCTIONS, "-v")[1]
    assert list(json.loads(cli("show", FUNCTIONS, "--json")[1])["function_features"]) == ["alpha", "beta"]


def test_show_without_weight_files(cli, tmp_path):
    package = copied(DEMO, tmp_path)
    shutil.rmtree(package / "Data/com.apple.CoreML/weights")
    status, out, err = cli("show", package, "head_bias")
    assert status == 2
    assert "record at byte 185152" in out
    assert "no such file" in err


# -- convert ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["out.npz", "out.safetensors", "out/", "out"])
def test_convert(cli, name, tmp_path):
    target = f"{tmp_path}/{name}"
    status, out, err = cli("convert", DEMO, "-o", target, "-k", "head_*")
    assert (status, out) == (0, "")
    assert "2 tensors, 18.4 KiB" in err
    assert len(os.listdir(tmp_path)) == 1
    assert cli("convert", DEMO, "-o", target)[0] == 2  # it is there
    assert cli("convert", DEMO, "-o", target, "--force", "-q") == (0, "", "")
    if name.endswith(".npz"):
        with np.load(target) as archive:
            assert sorted(archive.files) == sorted(milblob.load(DEMO))


def test_convert_writes_dense_values_or_stored_parts(cli, tmp_path):
    """Dense values; with --stored the parts."""
    for name, options, stored in (("dense.npz", [], False), ("parts.npz", ["--stored"], True)):
        _, out, _ = cli("convert", PALETTE, "-o", tmp_path / name, "--json", *options)
        expected = milblob.load(PALETTE, stored=stored)
        assert sorted(row["name"] for row in json.loads(out)["tensors"]) == sorted(expected)
        with np.load(tmp_path / name) as archive:
            for key, values in expected.items():
                assert archive[key].tobytes() == values.tobytes()


def test_convert_never_touches_the_model(cli, tmp_path):
    package = copied(DEMO, tmp_path)
    weight = package / "Data/com.apple.CoreML/weights/weight.bin"
    before = weight.read_bytes()
    for target in (package, package / "x.npz", f"{package}/Data/", tmp_path, weight):
        assert cli("convert", package, "-o", target, "--force")[0] == 2
    assert cli("convert", weight, "-o", weight, "--force")[0] == 2
    assert weight.read_bytes() == before
    assert os.listdir(tmp_path) == ["copy.mlpackage"]


def test_convert_refusals(cli, tmp_path):
    assert "expected .safetensors, .npz" in cli("convert", DEMO, "-o", tmp_path / "a.pickle")[2]
    assert "-k none*" in cli("convert", DEMO, "-o", tmp_path / "a.npz", "-k", "none*")[2]
    for name in ("none/a.npz", "none/a/", "none/a.safetensors"):
        err = cli("convert", DEMO, "-o", tmp_path / name)[2]
        assert err.endswith(f"expected a directory {tmp_path}/none, got none\n".replace("/", os.sep)), name
    assert os.listdir(tmp_path) == []


# -- check ------------------------------------------------------------------------------------------------------------


def test_check(cli, tmp_path):
    assert cli("check", DEMO) == (0, f"{DEMO}: good\n", "")
    assert cli("check", DEMO, "-q") == (0, "", "")
    package = copied(DEMO, tmp_path)
    weight = package / "Data/com.apple.CoreML/weights/weight.bin"
    weight.write_bytes(weight.read_bytes()[:-10])
    status, out, err = cli("check", DEMO, package)
    assert (status, err) == (1, "")
    assert "error[bounds] record data: expected 384 bytes" in out
    assert "in Data" in out
    document = json.loads(cli("check", DEMO, package, "--json")[1])
    assert [row["path"] for row in document["models"]] == [DEMO, str(package)]
    broken = document["models"][1]
    assert broken["errors"] == len(broken["findings"]) == 2
    assert list(broken["findings"][0]) == ["severity", "code", "message", "file", "offset", "where"]
    lines = cli("check", DEMO, package, "-q")[1].splitlines()
    assert [line.partition(": error[")[0] for line in lines] == [str(package)] * 2
    assert cli("check", package, "-v")[1].endswith("2 errors\n  bounds 1\n  reference 1\n")


def test_check_notes_are_good(cli):
    nested = str(DATA / "nested_pipeline/model.mlmodel")
    status, out, _ = cli("check", nested)
    assert status == 0
    assert out.endswith(f"{nested}: 1 note\n")
    assert cli("check", nested, "-q") == (0, "", "")


def test_check_of_nothing(cli, tmp_path):
    assert cli("check", tmp_path / "none")[0] == 2
    assert cli("check", DEMO, tmp_path / "none")[0] == 2


# -- bad input --------------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile(tmp_path):
    """Paths that are no sound model, each in another way."""
    (tmp_path / "empty.bin").touch()
    (tmp_path / "text.txt").write_text("hello\x1b[31m")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bare.mlpackage").mkdir()
    (tmp_path / "lfs.bin").write_bytes(b"version https://git-lfs.github.com/spec/v1\nsize 1\n")
    (tmp_path / "deep.mil").write_text("program(1.0)" + "[" * 100000)
    (tmp_path / "json.mlpackage").mkdir()
    (tmp_path / "json.mlpackage/Manifest.json").write_text("[" * 100000)
    (tmp_path / "cut.bin").write_bytes(pathlib.Path(BLOB).read_bytes()[:1000])
    return [*map(str, sorted(tmp_path.iterdir())), str(tmp_path / "none"), str(DATA / "neural_network/model.mlpackage")]


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_input_is_one_line(cli, command, hostile, tmp_path):
    weights = tmp_path / "w.npz"
    np.savez(weights, w=np.zeros(3))
    for path in hostile:
        rest = {
            "convert": ["-o", str(tmp_path / "x.npz")],
            "show": ["#0"],
        }.get(command, [])
        status, out, err = cli(command, path, *rest)
        assert status == (2 if command != "check" or path.endswith("none") else 1), path
        assert "\x1b" not in out + err


@pytest.mark.parametrize("argv", [["nothing"], ["ls"], ["ls", DEMO, "--sort", "x"], ["show"], ["convert", DEMO],
                                  ["ls", DEMO, "--bogus"], ["ls", DEMO, "-q", "-v"], ["ls", "a\0b"]])  # fmt: skip
def test_wrong_usage_is_one_line(cli, argv):
    assert cli(*argv)[0] == 2


@pytest.mark.parametrize("argv", [["--help"], ["--version"], *([command, "-h"] for command in COMMANDS)])
def test_help(cli, argv):
    status, out, err = cli(*argv)
    assert (status, err) == (0, "")
    assert "milblob" in out


def test_every_error_has_a_status(cli, monkeypatch):
    def failing(error):
        def run(*_, **__):
            raise error

        monkeypatch.setattr("milblob.model.open.open_model", run)
        return cli("ls", DEMO)

    assert failing(MemoryError())[2] == "milblob: not enough memory\n"
    assert failing(RecursionError())[0] == 2
    assert failing(PermissionError(13, "Permission denied", "x"))[2] == "milblob: Permission denied: x\n"
    assert failing(OSError("odd"))[2] == "milblob: odd\n"
    assert failing(milblob.FormatError("two\nlines\x1b"))[2] == "milblob: two\\nlines\\x1b\n"
    assert failing(KeyboardInterrupt())[:2] == (130, "")


def test_escape():
    assert output.escape("größe_0 [1]") == "größe_0 [1]"
    assert output.escape("a\x1b]0;\x07\n\u202eb") == "a\\x1b]0;\\x07\\n\\u202eb"


def test_sizes():
    assert [output.size(n) for n in (0, 1023, 1024, 1536, 1024**2 - 1, 5 * 1024**3, None)] == [
        "0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB", "?",
    ]  # fmt: skip


# -- as a process -----------------------------------------------------------------------------------------------------


def test_python_m(tmp_path):
    process = spawn("ls", DEMO, "-k", "head_bias", "-q")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert b"head_bias" in out


def test_other_encodings():
    process = spawn("ls", str(DATA / "weight_files/model.mlpackage"), "-v", env={"PYTHONIOENCODING": "ascii"})
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")
    assert out.isascii()
    process = spawn("show", DEMO, "head_bias", env={"PYTHONIOENCODING": "ascii"})
    assert b"####" in process.communicate(timeout=60)[0]
    process = spawn("ls", str(DATA / "weight_files/model.mlpackage"), "--json", env={"PYTHONIOENCODING": "latin-1"})
    assert json.loads(process.communicate(timeout=60)[0].decode("ascii"))


def test_a_pipe_that_is_closed_is_quiet():
    with spawn("ls", DEMO, "--constants", "--json", bufsize=0) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def on_terminal(argv, columns, env):
    """Run the command with a terminal as stdout; return what it wrote there."""
    pty, fcntl, termios = (pytest.importorskip(name, reason=WITHOUT["pty"]) for name in ("pty", "fcntl", "termios"))
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, columns.to_bytes(2, sys.byteorder).join([b"\x28\0", b"\0\0\0\0"]))
    clean = {"TERM": "xterm", "COLUMNS": str(columns), "PYTHONIOENCODING": "utf-8", **env}
    process = spawn(*argv, stdout=theirs, env=clean)
    os.close(theirs)
    out = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while chunk := os.read(ours, 65536):
            out += chunk
    os.close(ours)
    assert process.wait(60) == 0
    process.stderr.close()
    return out.decode().replace("\r\n", "\n")


@pytest.mark.skipif(sys.platform == "win32", reason="no pseudo-terminals here: output to a terminal is not tested")
def test_terminals(tmp_path):
    (tmp_path / "rich.py").write_text("raise ImportError\n")
    path = os.pathsep.join([str(tmp_path), str(SOURCES)])
    coloured = on_terminal(["ls", DEMO, "-p"], 100, {})
    assert "\x1b[36m" in coloured
    assert "─" in coloured
    assert "\x1b[36m" not in on_terminal(["ls", DEMO, "-p"], 100, {"NO_COLOR": "1"})
    for env in ({"PYTHONPATH": path}, {"TERM": "dumb"}):
        plain = on_terminal(["ls", DEMO, "-p", "-q"], 100, env)
        assert "\x1b" not in plain
        assert "layers_{0..3}_attention_query_weight    4 x  float16  [48, 48]" in plain


@pytest.mark.skipif(sys.platform == "win32", reason="no POSIX signals here: an interrupted command is not tested")
def test_interrupted_while_it_waits():
    process = spawn("ls", DEMO, "--constants", "--json", bufsize=0)
    process.stdout.read(1)  # it is writing to a pipe that is full
    process.send_signal(signal.SIGINT)
    with process:
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
    assert process.returncode in (130, 141)


# -- the page about it ------------------------------------------------------------------------------------------------

PAGE = (ROOT / "docs" / "cli.md").read_text("utf-8")
EXAMPLES = [example for page in screens.PAGES for example in screens.EXAMPLE.findall(page.read_text("utf-8"))]


@pytest.mark.skipif(os.sep != "/", reason="paths as POSIX spells them: the examples are not run here")
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.partition("\n")[0])
@pytest.mark.sample(8)
def test_examples_of_the_pages(example, tmp_path, monkeypatch):
    """Every command of docs/cli.md and README.md prints what stands there on 80 columns; "..." stands for more lines."""
    monkeypatch.chdir(tmp_path)
    screens.make_files(tmp_path)
    for command, shown in screens.steps_of(example):
        text = screens.screen(command)
        parts = [re.escape(part) for part in shown.split(screens.ELLIPSIS)]
        assert re.fullmatch("\n(?:.*\n)+".join(parts), text), f"{text}\n\ntests/support/screens.py writes the pages"
        if command.split()[0] not in ("hash", "text"):  # whose lines are those of sha256sum, and of MIL text
            lines = [line for line in text.splitlines() if not line.startswith("milblob: ")]
            assert all(len(line) <= screens.COLUMNS for line in lines)


def test_the_pages_show_every_table():
    shown = {command.split()[0] for example in EXAMPLES for command, _ in screens.steps_of(example)}
    assert {
        "ls",
        "show",
        "stats",
        "hash",
        "diff",
        "match",
        "check",
        "repack",
        "compress",
        "text",
        "refit",
        "tvm",
    } <= shown


def test_the_page_has_every_code():
    listed = re.findall(r"^\| `([a-z-]+)` \| (?:error|warning|note) \|", PAGE, re.M)
    assert sorted(listed) == sorted(blobcheck.CODES)
    tested = "".join(
        (ROOT / "tests" / name).read_text("utf-8")
        for name in (
            "analysis/test_check.py",
            "analysis/test_check_storage.py",
            "analysis/test_check_values.py",
            "test_budget.py",
        )
    )
    assert [code for code in listed if f'"{code}"' not in tested] == []
