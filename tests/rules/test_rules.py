"""Rules of the specification: one broken model for each, made from a sound one by one change; none in sound models."""

import re

import numpy as np
import pytest

import milblob
from broken_models import BROKEN, broken_rules
from cases import case_paths, load_case
from hostile_bytes import field
from milblob import _codec
from milblob.program.view import ProgramView
from milblob.rules.catalog import RULES
from milblob.rules.program_rules import breaches
from paths import ROOT, SAMPLES
from peers import WITHOUT
from protobuf_programs import add_const, add_op, as_model, new_program, set_type
from sound_models import BOOL, operation, sound_model, write
from thorough import sized

IDS = [f"{broken.rule}-{number}" for number, broken in enumerate(BROKEN)]


def breaches_of(message):
    data = message.SerializeToString(deterministic=True)
    return list(breaches(ProgramView(_codec.Buffer(data), (0, len(data)))))


def loads(path):
    """Whether coremltools reads a model into its own Program; it must have parsed it by then."""
    proto = pytest.importorskip("coremltools.proto", reason=WITHOUT["coremltools"])
    from coremltools.converters.mil.frontend.milproto.load import load

    spec = proto.Model_pb2.Model.FromString(path.read_bytes())
    try:
        load(spec, spec.specificationVersion, str(path.parent / "weights"))
    except Exception:
        return False
    return True


def test_the_sound_model_is_sound(tmp_path):
    path = write(sound_model(), tmp_path)
    assert list(milblob.check(path, values=True)) == []
    assert loads(path)


@pytest.mark.every
@pytest.mark.parametrize("broken", BROKEN, ids=IDS)
def test_one_change_breaks_one_rule(broken, tmp_path):
    model = sound_model()
    broken.change(model)
    found = milblob.check(write(model, tmp_path), rules="MIL*")
    assert {finding.code for finding in found} == {broken.rule}
    assert any(broken.words in finding.message and finding.where == broken.where for finding in found), found
    for finding in found:
        assert re.fullmatch(r"[^\n]+: expected [^\n]+, got [^\n]+", finding.message)
        assert finding.severity == RULES[broken.rule].severity


@pytest.mark.parametrize("broken", BROKEN, ids=IDS)
@pytest.mark.sample(8)
def test_what_the_loader_of_coremltools_notices(broken, tmp_path):
    model = sound_model()
    broken.change(model)
    assert loads(write(model, tmp_path)) == (not broken.loader)


def test_every_rule_is_broken_here():
    assert list(dict.fromkeys(sorted(broken.rule for broken in BROKEN))) == list(RULES)


def test_a_rank_that_varies():
    message = sound_model().mlProgram
    for block in message.functions["main"].block_specializations.values():
        tensor = block.operations[2].outputs[0].type.tensorType
        tensor.rank = -1
        tensor.dimensions[0].unknown.variadic = True
    assert breaches_of(message) == []


@pytest.mark.parametrize(("name", "path"), case_paths())
@pytest.mark.sample(8)
def test_sound_models_break_no_rule(name, path):
    found = milblob.check(load_case(name).source(path), rules="MIL*")
    assert {finding.code for finding in found} == broken_rules(name, path)


@pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="no models by other people beside the repository: only our own are tested"
)
def test_samples_break_no_rule():
    tried = 0
    for path in [*SAMPLES.glob("*/*.mlpackage"), *SAMPLES.glob("*/*.mlmodelc")]:
        assert list(milblob.check(path, rules="MIL*")) == [], path
        tried += 1
    assert tried > 8


def test_check_reports_them(cli, tmp_path):
    model = sound_model()
    model.mlProgram.functions["main"].opset = "CoreML7"
    path = write(model, tmp_path)
    (finding,) = milblob.check(path)
    assert (finding.severity, finding.code, finding.where, finding.file) == ("error", "MIL006", "main", str(path))
    status, out, _ = cli("check", path)
    assert status == 1 and "error[MIL006] block specialization: expected one for the opset 'CoreML7'" in out


def test_a_listing_has_no_program_to_check(tmp_path):
    milblob.write_weights({"a": np.zeros(4, np.float32)}, tmp_path / "w.bin", listing=tmp_path / "w.json")
    assert milblob.open(tmp_path / "w.json").kind == "listing"
    assert list(milblob.check(tmp_path / "w.json")) == []


def test_names_of_any_length_and_many_breaches():
    message, block = new_program()
    count = sized(200, 1500)
    for _ in range(count):
        add_op(block, "relu", None, x="n" * 100_000)
    found = breaches_of(message)
    assert len(found) == count and all(len(breach.message) < 250 for breach in found)


def _lengthen(op):
    op.attributes["val"].immediateValue.tensor.floats.values.append(1)


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        (_lengthen, "MIL016"),
        (lambda op: op.attributes["val"].ClearField("immediateValue"), "MIL013"),
        (lambda op: setattr(op.outputs[0], "name", "1 x"), "MIL001"),
        (lambda op: setattr(op.outputs[0], "name", "first"), "MIL002"),
        (lambda op: op.outputs.add().CopyFrom(op.outputs[0]), "MIL022"),
        (lambda op: set_type(op.outputs[0].type, 10, (3,)), "MIL022"),
        (lambda op: op.attributes["1 x"].CopyFrom(op.attributes["val"]), "MIL001"),
    ],
)
def test_a_constant_breaks_rules_after_sound_ones_of_its_types(change, rule):
    """A sound one is judged for all that are like it; `change` makes one in the middle unlike them."""
    found = []
    for names in (["first", "changed"], ["first", "second", "changed", "last"]):
        message, block = new_program()
        for name in names:
            op = add_const(block, name, np.arange(4))
            if name == "changed":
                change(op)
        found.append([(breach.rule, breach.message) for breach in breaches_of(message)])
    assert rule in [rule for rule, _ in found[0]]
    assert found[0] == found[1]


def test_many_findings_of_one_rule_are_counted(tmp_path):
    message, block = new_program()
    for _ in range(1500):
        add_op(block, "relu", None, x="nobody")
    path = tmp_path / "m.mlmodel"
    path.write_bytes(as_model(message))
    found = milblob.check(path)
    assert len(found) == 1001 and "500 more" in found[-1].message


def test_the_page_has_every_rule():
    page = (ROOT / "docs" / "rules.md").read_text("utf-8")
    rows = re.findall(r"^\| (MIL\d+) \| (\w+) \| ([^|]+?) \|[^|]+\| ([^|]+?) \| ([^|]+?) \|", page, re.M)
    assert {row[0]: row[1:4] for row in rows} == {code: tuple(rule) for code, rule in RULES.items()}
    for code, *_, who in rows:
        verdicts = {broken.loader for broken in BROKEN if broken.rule == code}
        expected = {(True,): "the loader", (False,): "nobody", (False, True): "the loader in part"}
        assert who.split(":")[0] == expected[tuple(sorted(verdicts))], code


@pytest.mark.parametrize("is_inner", [False, True])
def test_a_description_that_does_not_parse(is_inner):
    """It is told once, as before there were rules about it; the Program is compared all the same."""
    program = sound_model().mlProgram
    program.version = 2
    broken = field(2, field(1, b"\x0f"))
    model = field(1, 9) + broken + field(502, program.SerializeToString())
    if is_inner:
        model = field(1, 9) + field(202, field(1, model))
    found = milblob.check(model, ignore="missing-file")
    assert [(finding.severity, finding.code) for finding in found] == [("error", "MIL036"), ("warning", "metadata")]


def test_the_test_of_a_loop_may_be_one_bool_of_any_rank():
    """As coremltools writes it, whose own tests run such models; two bools are still refused."""
    for shape, rules in (([1], []), ([1, 1], []), ([2], ["MIL050", "MIL034"])):
        message = sound_model().mlProgram
        loop = operation(message.functions["main"].block_specializations["CoreML6"], "out")
        tested = loop.blocks[0].operations[-1].outputs[0].type
        set_type(tested, BOOL, shape)
        assert [breach.rule for breach in breaches_of(message)] == rules
