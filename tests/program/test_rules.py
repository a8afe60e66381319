"""Rules of the specification: one broken Program for each, made from a sound one by one change; none in sound models."""

import re

import numpy as np
import pytest

import milblob
from cases import DATA, case_paths, load_case
from milblob import _codec
from milblob.program.rules import RULES, breaches
from milblob.program.view import ProgramView
from paths import ROOT, SAMPLES
from protobuf_programs import F32, add_const, add_op, as_model, new_program, set_type

BOOL = 1
HERE = "main.block['CoreML8']"


def sound_program():
    """A Program with a constant, a nested block that reads from around it, and two block specializations."""
    message, block = new_program()
    function = message.functions["main"]
    set_type(function.inputs.add(name="x").type, F32, [12])
    add_const(block, "w", range(12))
    add_op(block, "add", "y", x="x", y="w")
    truth = block.operations.add(type="const")
    set_type(truth.attributes["val"].type, BOOL, [])
    truth.attributes["val"].immediateValue.tensor.bools.values.append(True)
    set_type(truth.outputs.add(name="p").type, BOOL, [])
    cond = add_op(block, "cond", "z", pred="p")
    for _ in range(2):
        inner = cond.blocks.add()
        add_op(inner, "relu", "inside", x="y")
        inner.outputs.append("inside")
    block.outputs.append("z")
    function.block_specializations["CoreML9"].CopyFrom(block)
    return message


def breaches_of(message):
    data = message.SerializeToString(deterministic=True)
    return list(breaches(ProgramView(_codec.Buffer(data), (0, len(data)))))


# rule, what is changed, words of the message, path
BROKEN = [
    ("MIL001", lambda f, b: set_type(b.operations[0].outputs.add(name="1w").type, F32, [12]), "output: expected a name such as x_1, got '1w'", f"{HERE}.op[0] 'w'"),
    ("MIL001", lambda f, b: set_type(f.inputs.add(name="a-b").type, F32, [1]), "input: expected a name such as x_1, got 'a-b'", "main"),
    ("MIL001", lambda f, b: b.operations[0].attributes["clé"].SetInParent(), "attribute: expected a name such as x_1, got 'clé'", f"{HERE}.op[0] 'w'"),
    ("MIL001", lambda f, b: f.attributes[""].SetInParent(), "attribute: expected a name such as x_1, got ''", "main"),
    ("MIL002", lambda f, b: set_type(f.inputs.add(name="x").type, F32, [1]), "input: expected a name that no other has, got 'x'", "main"),
    ("MIL002", lambda f, b: add_op(b, "relu", "y", x="x"), "name: expected one that its block does not have yet, got 'y'", f"{HERE}.op[4] 'y'"),
    ("MIL003", lambda f, b: add_op(b, "relu", "v", x="nobody"), "input 'x': expected a name that is defined before, got 'nobody'", f"{HERE}.op[4] 'v'"),
    ("MIL003", lambda f, b: add_op(b, "relu", "v", x="inside"), "input 'x': expected a name that is defined before, got 'inside'", f"{HERE}.op[4] 'v'"),
    ("MIL004", lambda f, b: b.operations[1].inputs["y"].arguments.add(name="z"), "input 'y': expected a name that is defined before, got 'z'", f"{HERE}.op[1] 'y'"),
    ("MIL004", lambda f, b: b.operations[3].blocks[0].operations[0].inputs["y"].arguments.add(name="inside"), "got 'inside'", f"{HERE}.op[3] 'z'.block[0].op[0] 'inside'"),
    ("MIL004", lambda f, b: b.operations[3].blocks[0].operations[0].inputs["y"].arguments.add(name="z"), "got 'z'", f"{HERE}.op[3] 'z'.block[0].op[0] 'inside'"),
    ("MIL005", lambda f, b: b.operations[3].blocks[1].outputs.append("z"), "output of the block: expected a name that it sees, got 'z'", f"{HERE}.op[3] 'z'.block[1]"),
    ("MIL006", lambda f, b: setattr(f, "opset", "CoreML7"), "block specialization: expected one for the opset 'CoreML7', got 'CoreML8', 'CoreML9'", "main"),
    ("MIL007", lambda f, b: b.outputs.append("y"), "outputs: expected tensor<fp32, [12]> z, tensor<fp32, [12]> y as in 'CoreML8', got tensor<fp32, [12]> z", "main.block['CoreML9']"),
    ("MIL007", lambda f, b: setattr(b.operations[3].outputs[0].type.tensorType.dimensions[0].constant, "size", 1), "got tensor<fp32, [12]> z", "main.block['CoreML9']"),
    ("MIL008", lambda f, b: b.operations[1].outputs[0].ClearField("type"), "output 'y': expected a type, got none", f"{HERE}.op[1] 'y'"),
    ("MIL008", lambda f, b: f.inputs.add(name="i"), "input 'i': expected a type, got none", "main"),
    ("MIL009", lambda f, b: setattr(b.operations[1].outputs[0].type.tensorType, "dataType", 0), "output 'y': expected a data type that is known, got number 0", f"{HERE}.op[1] 'y'"),
    ("MIL010", lambda f, b: setattr(b.operations[1].outputs[0].type.tensorType, "rank", 2), "output 'y': expected a rank of 1, its number of dimensions, got 2", f"{HERE}.op[1] 'y'"),
    ("MIL010", lambda f, b: setattr(b.operations[1].outputs[0].type.tensorType, "rank", -1), "got -1", f"{HERE}.op[1] 'y'"),
    ("MIL011", lambda f, b: b.operations[1].outputs[0].type.listType.SetInParent(), "output 'y': expected a type inside, got none", f"{HERE}.op[1] 'y'"),
    ("MIL012", lambda f, b: b.operations[1].inputs["z"].SetInParent(), "input 'z': expected a name or a value, got neither", f"{HERE}.op[1] 'y'"),
]  # fmt: skip


def test_the_sound_program_is_sound():
    assert breaches_of(sound_program()) == []


@pytest.mark.parametrize(
    ("rule", "change", "words", "where"),
    BROKEN,
    ids=lambda value: value if isinstance(value, str) and value[:3] == "MIL" else "",
)
def test_one_change_breaks_one_rule(rule, change, words, where):
    message = sound_program()
    function = message.functions["main"]
    change(function, function.block_specializations["CoreML8"])
    found = breaches_of(message)
    assert {breach.rule for breach in found} == {rule}
    assert any(words in breach.message and breach.where == where for breach in found), found
    assert all(re.fullmatch(r"[^\n]+: expected [^\n]+, got [^\n]+", breach.message) for breach in found)


def test_every_rule_is_broken_here():
    assert {rule for rule, *_ in BROKEN} == set(RULES)


def test_a_rank_that_varies():
    message = sound_program()
    for block in message.functions["main"].block_specializations.values():
        tensor = block.operations[1].outputs[0].type.tensorType
        tensor.rank = -1
        tensor.dimensions[0].unknown.variadic = True
    assert breaches_of(message) == []


# Written by hand for what their bytes look like; they return an output that they do not define, or have odd names.
UNSOUND = {
    "wire/chunks",
    "wire/duplicate_keys",
    "wire/odd_numbers",
    "wire/odd_names",
    "wire/split",
    "wire/split_program",
    "wire/unpacked",
}


@pytest.mark.parametrize(("name", "path"), [row for row in case_paths() if row[0] not in UNSOUND])
def test_sound_models_break_no_rule(name, path):
    with milblob.open(load_case(name).source(path)) as opened:
        assert [breach for view in opened.views for breach in breaches(view)] == []


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="no samples on this machine")
def test_samples_break_no_rule():
    tried = 0
    for path in [*SAMPLES.glob("*/*.mlpackage"), *SAMPLES.glob("*/*.mlmodelc")]:
        with milblob.open(path) as opened:
            assert [breach for view in opened.views for breach in breaches(view)] == [], path
            tried += 1
    assert tried > 8


def test_check_reports_them(cli, tmp_path):
    message = sound_program()
    message.functions["main"].opset = "CoreML7"
    path = tmp_path / "broken.mlmodel"
    path.write_bytes(as_model(message))
    assert milblob.check(path) == []
    (finding,) = milblob.check(path, rules=True)
    assert (finding.severity, finding.code, finding.where, finding.file) == ("error", "MIL006", "main", str(path))
    status, out, _ = cli("check", path, "--rules")
    assert status == 1 and "error[MIL006] block specialization: expected one for the opset 'CoreML7'" in out


def test_a_listing_has_no_program_to_check(tmp_path):
    milblob.write_weights({"a": np.zeros(4, np.float32)}, tmp_path / "w.bin", listing=tmp_path / "w.json")
    assert milblob.open(tmp_path / "w.json").kind == "listing"
    assert milblob.check(tmp_path / "w.json", rules=True) == []


def test_files_of_tvm_have_no_program(tmp_path):
    milblob.tvm.write_params({"a": np.zeros(4, np.float32)}, tmp_path / "w.params")
    with pytest.raises(ValueError, match="expected a model, whose Program can be checked, got a file of TVM"):
        milblob.check(tmp_path / "w.params", rules=True)


def test_names_of_any_length_and_many_breaches():
    message, block = new_program()
    for _ in range(1500):
        add_op(block, "relu", None, x="n" * 100_000)
    found = breaches_of(message)
    assert len(found) == 1500 and all(len(breach.message) < 250 for breach in found)


def test_the_page_has_every_rule():
    page = (ROOT / "docs" / "rules.md").read_text("utf-8")
    listed = {
        code: (severity, demand)
        for code, severity, demand in re.findall(r"^\| (MIL\d+) \| (\w+) \| ([^|]+?) \|", page, re.M)
    }
    assert listed == {code: (rule.severity, rule.demand) for code, rule in RULES.items()}
    assert all(rule.remedy in page for rule in RULES.values()) and DATA.is_dir()
