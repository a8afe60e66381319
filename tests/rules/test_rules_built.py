"""Rules of the specification: what coremltools builds, over operator sets, operations, interfaces and compression, breaks none."""

import pytest

import milblob
from matrix import every
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

import built_models
from draws import restarts
from thorough import some

each_test_draws_the_same = restarts(built_models.RANDOM)

MAKERS = built_models.makers()
GROUPS = 16
NAMES = sorted(MAKERS)


def test_there_are_many():
    assert len(MAKERS) >= 150


@pytest.mark.parametrize("group", some(range(GROUPS), 1))
@pytest.mark.filterwarnings("ignore")
def test_what_coremltools_builds_breaks_no_rule(group, tmp_path):
    def check(name):
        path = tmp_path / f"{name}.mlpackage"
        MAKERS[name]().save(str(path))
        assert list(milblob.check(path, rules="MIL*")) == []

    every(check, NAMES[group::GROUPS])


@pytest.mark.filterwarnings("ignore")
def test_a_variable_that_is_returned_twice(tmp_path):
    """As torch's `return y, y` is converted: the description lists the output twice, and ONNX has it once."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb

    @mb.program(input_specs=[mb.TensorSpec((2, 3))])
    def program(x):
        y = mb.relu(x=x, name="y")
        return y, y

    path = tmp_path / "m.mlpackage"
    made = ct.convert(program, convert_to="mlprogram", skip_model_load=True)
    assert [feature.name for feature in made.get_spec().description.output] == ["y", "y"]
    made.save(str(path))
    assert list(milblob.check(path, rules="MIL*")) == []
    assert [output.name for output in milblob.onnx.convert(path).graph.outputs] == ["y"]
