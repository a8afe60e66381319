"""The rule about types of outputs: sound Programs of each operation break nothing, and each change of an output is seen."""

import itertools

import pytest

from milblob import _codec
from milblob.program.view import ProgramView
from milblob.rules.output_rules import MAKERS
from milblob.rules.program_rules import breaches
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

import numpy as np
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.mil import get_new_symbol

import output_cases
from output_cases import CASES, Case
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


def _pooled(kernel, stride):
    """Windows that coremltools rounds up twice where they are narrower than their stride."""
    return lambda x: mb.max_pool(x=x, kernel_sizes=[kernel], strides=[stride], pad_type="same_lower", ceil_mode=True)


ODD = [
    Case("max_pool", {"x": (1, 1, 6)}, _pooled(1, 3), opset="iOS16"),
    Case("max_pool", {"x": (1, 1, 5)}, _pooled(2, 4), opset="iOS16"),
    Case("reshape", {"x": (3, 2, get_new_symbol(), 4)}, lambda x: mb.reshape(x=x, shape=[4, 0, 3, 3])),
    Case("reshape", {"x": (2, get_new_symbol())}, lambda x: mb.reshape(x=x, shape=[0, -1])),
    Case("reshape", {"x": (3, 2, get_new_symbol())}, lambda x: mb.reshape(x=x, shape=[0, 2, -1]), opset="iOS17"),
    Case("matmul", {"x": (2,)}, lambda x: mb.matmul(x=x, y=np.ones((1, 3, 2, 4), np.float32))),
]


@pytest.mark.parametrize("case", ODD)
def test_sizes_that_coremltools_infers_in_its_own_way(case):
    """They are not what the operation makes of its inputs in the documentation, and break no rule."""
    assert rules_of(output_cases.program_of(case)) == []


def test_windows_of_every_width_and_stride():
    for size, kernel, stride in itertools.product(range(1, 9), range(1, 4), range(1, 5)):
        case = Case("max_pool", {"x": (1, 1, size)}, _pooled(kernel, stride), opset="iOS16")
        assert rules_of(output_cases.program_of(case)) == [], (size, kernel, stride)
