"""milblob text: the text on stdout, on a terminal, as JSON, and around one operation."""

import io
import json
import re
import sys

import pytest

import milblob
from cases import load_case
from milblob.cli import main
from milblob.cli.terminal import tables
from paths import DATA, DEMO
from peers import WITHOUT
from protobuf_programs import STRING, add_op, as_model, new_program, set_type


def test_the_text_of_a_model(cli):
    status, out, err = cli("text", DEMO)
    assert (status, err) == (0, "") and out == milblob.to_text(DEMO)


def test_a_compiled_model_gives_its_own_bytes(capfdbinary):
    path = DATA / "immediates/model_1.0.mlmodelc"
    assert main(["text", str(path)]) == 0
    assert capfdbinary.readouterr().out == (path / "model.mil").read_bytes()


def test_one_function(cli):
    functions = load_case("functions").path()
    with milblob.open(functions) as opened:
        name = list(opened.functions)[1]
    out = cli("text", functions, "-f", name)[1]
    assert re.findall(r"func (\w+)<", out) == [name]
    status, out, err = cli("text", functions, "-f", "nobody")
    assert (status, out) == (2, "") and "has no function 'nobody' (it has " in err and err.count("\n") == 1


def test_weights(cli, tmp_path):
    message, block = new_program()
    add_op(block, "add", "y", x=[[float(i) for i in range(12)]])
    path = tmp_path / "m.mlmodel"
    path.write_bytes(as_model(message))
    whole = cli("text", path)[1]
    assert "0x1.6p+3" in whole and cli("text", path, "--weights", "all")[1] == whole == cli("text", path, "-v")[1]
    assert "0x1.cp+2, ...]" in cli("text", path, "--weights", "head")[1]
    assert "([...])" in cli("text", path, "--weights", "none")[1]
    assert cli("text", path, "-q") == (0, "", "")


def test_around_an_operation(cli):
    out = cli("text", DEMO, "--op", "logits")[1]
    assert out == milblob.to_text(DEMO, operation="logits") and len(out.splitlines()) == 4
    assert len(cli("text", DEMO, "--op", "logits", "--around", "2")[1].splitlines()) > 4
    assert len(cli("text", DEMO, "--op", "logits", "--around", "0")[1].splitlines()) == 1
    for arguments, words in (
        (("--around", "2"), "--around: expected --op NAME"),
        (("--op", "nobody"), "has no operation with the output 'nobody'"),
        (("--op", "logits", "--around", "-1"), "expected a number of 0 or more"),
    ):
        status, out, err = cli("text", DEMO, *arguments)
        assert (status, out) == (2, "") and words in err and err.count("\n") == 1


def test_json(cli):
    document = json.loads(cli("text", DEMO, "--op", "logits", "--json")[1])
    (linear,) = [row for row in document["operations"] if row["type"] == "linear"]
    assert linear["outputs"] == [{"name": "logits", "type": "tensor<fp32, [1, 16, 96]>"}]
    assert linear["inputs"] == {"bias": ["head_bias"], "weight": ["head_weight"], "x": ["cast_0"]}
    assert linear["path"].startswith("main.block['CoreML7'].op[")
    (function,) = json.loads(cli("text", DEMO, "--json")[1])["functions"]
    with milblob.open(DEMO) as opened:
        assert [row["type"] for row in function["operations"]] == [op.type for op in opened.functions["main"].walk()]


def test_what_text_cannot_hold_prints_nothing(cli):
    status, out, err = cli("text", load_case("attributes").path())
    assert (status, out) == (2, "") and "MIL text: expected a Program that text can hold, got a docString" in err
    status, out, err = cli("text", load_case("blob_all_dtypes").path())
    assert (status, out) == (2, "") and "got a weight file" in err


@pytest.fixture
def hostile(tmp_path):
    """A model with a control sequence in a string."""
    message, block = new_program()
    op = add_op(block, "relu", "y", x="x")
    set_type(op.attributes["name"].type, STRING, [])
    op.attributes["name"].immediateValue.tensor.strings.values.append("\x1b[31mred")
    path = tmp_path / "hostile.mlmodel"
    path.write_bytes(as_model(message))
    return path


def test_a_terminal_gets_no_control_sequences(cli, hostile, monkeypatch):
    assert "\x1b" in cli("text", hostile)[1]  # a file or a pipe gets what is there
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    monkeypatch.setenv("TERM", "dumb")
    out = cli("text", hostile)[1]
    assert "\x1b" not in out and r"\x1b[31mred" in out and len(out.splitlines()) == 6


def test_a_terminal_has_colours(monkeypatch):
    pytest.importorskip("rich", reason=WITHOUT["rich"])
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["text", str(DEMO), "--op", "logits"]) == 0
    plain = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
    assert plain == milblob.to_text(DEMO, operation="logits") and out.getvalue().count("\x1b[") > 20


def test_without_rich(cli, monkeypatch):
    monkeypatch.setattr(tables, "terminal_width", lambda: 80)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    assert cli("text", DEMO, "--op", "logits")[1] == milblob.to_text(DEMO, operation="logits")
