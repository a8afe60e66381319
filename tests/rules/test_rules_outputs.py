"""The rule about types of outputs: sound Programs of each operation break nothing, and each change of an output is seen."""

import pytest

from milblob import _codec
from milblob.program.view import ProgramView
from milblob.rules.output_rules import MAKERS
from milblob.rules.program_rules import breaches
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

import output_cases
from output_cases import CASES
from thorough import some

pytestmark = pytest.mark.filterwarnings("ignore")
F16, F32 = 10, 11


def rules_of(message, path=""):
    data = message.SerializeToString(deterministic=True)
    found = breaches(ProgramView(_codec.Buffer(data), (0, len(data))))
    return [breach.rule for breach in found if path in breach.where]


def the_operation(program, kind):
    """The last operation of a kind, and its place."""
    (block,) = program.functions["main"].block_specializations.values()
    number, op = [(i, op) for i, op in enumerate(block.operations) if op.type == kind][-1]
    return op, f".op[{number}]"


def is_seen(program, path):
    return "MIL050" in rules_of(program, path)


@pytest.mark.parametrize(
    "case", some(map(pytest.param, CASES), 25), ids=[f"{case.kind}-{number}" for number, case in enumerate(CASES)]
)
def test_a_change_of_an_output_is_seen(case):
    program = output_cases.program_of(case)
    assert rules_of(program) == []
    op, path = the_operation(program, case.kind)
    for number, output in enumerate(op.outputs):
        if not output.type.HasField("tensorType"):
            continue
        tensor = output.type.tensorType
        before = type(tensor)()
        before.CopyFrom(tensor)
        tensor.dataType = F16 if tensor.dataType == F32 else F32
        assert is_seen(program, path), (number, "data type")
        tensor.CopyFrom(before)
        for i in range(len(tensor.dimensions)):
            if number or i not in case.open:
                tensor.dimensions[i].constant.size += 1
                assert is_seen(program, path), (number, "dimension", i)
                tensor.CopyFrom(before)
        tensor.rank += 1
        tensor.dimensions.add().constant.size = 2
        assert is_seen(program, path), (number, "rank")
        tensor.CopyFrom(before)
    assert rules_of(program) == []
    op.outputs.add(name="one_more").type.CopyFrom(op.outputs[0].type)
    assert is_seen(program, path)


def test_every_operation_has_a_case():
    """Those that yield the type of x, and the many that go the same way as another one, are in test_rules_operations."""
    made = {MAKERS[case.kind] for case in CASES}
    missing = {kind for kind, make in MAKERS.items() if make not in made}
    assert missing == {kind for kind, make in MAKERS.items() if make is MAKERS["relu"]}
