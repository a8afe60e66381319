"""The rule about inputs of operations that go together, beside what coremltools' loader refuses."""

import re

import pytest

from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

from coremltools.converters.mil.frontend.milproto.load import load
from coremltools.proto import Model_pb2

import output_cases
from milblob import _codec
from milblob.program.view import ProgramView
from milblob.rules.program_rules import breaches
from output_cases import CASES
from thorough import some

CHANGED = tuple(case for case in CASES if case.inputs and "state" not in case.dtypes.values())


@pytest.mark.parametrize(
    "case", some(map(pytest.param, CHANGED), 20), ids=[f"{case.kind}-{n}" for n, case in enumerate(CHANGED)]
)
def test_what_is_refused_coremltools_refuses_too(case, tmp_path):
    """Each dimension of each input gets other sizes, and each input another rank; its readers stay as they are."""
    message = output_cases.program_of(case, str(tmp_path))

    def loads():
        """Whether coremltools reads the Program, and finds the types that it declares."""
        spec = Model_pb2.Model(specificationVersion=output_cases.VERSIONS[case.opset])
        spec.mlProgram.CopyFrom(message)
        try:
            load(spec, spec.specificationVersion, str(tmp_path))
        except Exception:
            return False
        return True

    assert loads()
    (function,) = message.functions.values()
    for given in function.inputs:
        tensor = given.type.tensorType
        before = type(tensor)()
        before.CopyFrom(tensor)
        sizes = [one.constant.size for one in before.dimensions]
        shapes = [[*sizes[:i], size, *sizes[i + 1 :]] for i in range(len(sizes)) for size in (1, 2, 3, 5, 7, 24)]
        for changed in [*shapes, sizes[1:], [*sizes, 2], [2, *sizes]]:
            del tensor.dimensions[:]
            tensor.rank = len(changed)
            for size in changed:
                tensor.dimensions.add().constant.size = size
            data = message.SerializeToString()
            found = [one.message for one in breaches(ProgramView(_codec.Buffer(data), (0, len(data))))]
            # That sizes add up is documented, and coremltools does not look at it.
            others = [one for one in found if not re.search("which its inputs make|^split_sizes of", one)]
            if others:
                assert not loads(), (given.name, changed, found)
        tensor.CopyFrom(before)
