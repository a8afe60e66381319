"""Joined packages: chunks become the model that they were, and other models run as one."""

import os
import shutil

import numpy as np
import pytest

import milblob
from hostile_bytes import field, operation, tensor_type, write_package
from merging import package_of, weights_of
from onnx_models import save
from paths import DATA
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])

import coremltools as ct
from coremltools.converters.mil import Builder as mb
from coremltools.converters.mil.frontend.milproto import load as milproto
from coremltools.converters.mil.mil import types

WHOLE = ("float32", "caches", "half", "ios15", "int4", "palette", "functions")


def round_trip(model, folder, **how):
    chunks = [chunk.path for chunk in milblob.chunk(model, folder / "parts", **how).chunks]
    return milblob.join(chunks, folder / "whole.mlpackage")


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_joined_chunks_have_the_content_hash_of_the_model(models, tmp_path, name, parts):
    report = round_trip(models[name], tmp_path, parts=parts)
    assert milblob.content_hash(report.destination) == milblob.content_hash(models[name])
    assert report.renamed == 0
    with milblob.open(models[name]) as before, milblob.open(report.destination) as after:
        assert before.metadata.functions == after.metadata.functions
        assert before.metadata.inputs == after.metadata.inputs
        assert before.metadata.outputs == after.metadata.outputs
        assert before.metadata.user_defined == after.metadata.user_defined
        for name, function in before.functions.items():  # constants come where they are first needed
            ours = [(op.type, op.output_names) for op in after.functions[name].walk() if op.type != "const"]
            assert ours == [(op.type, op.output_names) for op in function.walk() if op.type != "const"]


def test_states_have_the_order_of_the_whole(tmp_path):
    """Not that in which the parts use them."""
    specs = [mb.TensorSpec((2, 3), dtype=types.fp16)]
    specs += [mb.StateTensorSpec((2, 3), dtype=types.fp16) for _ in range(2)]

    @mb.program(input_specs=specs, opset_version=ct.target.iOS18)
    def main(x, a, b):
        for state in (b, a):
            x = mb.relu(x=mb.coreml_update_state(state=state, value=mb.add(x=mb.read_state(input=state), y=x)))
        return x

    model = ct.convert(main, minimum_deployment_target=ct.target.iOS18, skip_model_load=True)
    model.save(str(tmp_path / "m.mlpackage"))
    report = round_trip(tmp_path / "m.mlpackage", tmp_path, parts=2)
    assert report.states == {"main": ["a", "b"]}
    with milblob.open(tmp_path / "m.mlpackage") as before, milblob.open(report.destination) as after:
        assert before.metadata.states == after.metadata.states
        inputs = [[one.name for one in model.functions["main"].inputs] for model in (before, after)]
    assert inputs[0] == inputs[1] == ["x", "a", "b"]


FIXTURES = ("flexible", "control_flow", "classifier_strings", "lists", "states", "functions", "opset_ios15_fp16", "weight_files",
            "sparse_palette", "quant_int4_block", "optimize_ios18")  # fmt: skip


@pytest.mark.parametrize("name", FIXTURES)
def test_joined_chunks_of_models_of_all_kinds_have_their_content_hash(tmp_path, name):
    model = shutil.copytree(
        DATA / name / "model.mlpackage", tmp_path / "model.mlpackage"
    )  # coremltools writes its manifest
    report = round_trip(model, tmp_path, parts=2)
    assert milblob.content_hash(report.destination) == milblob.content_hash(model)
    assert not [one for one in milblob.check(report.destination) if one.severity != "note"]
    whole, joined = (
        ct.models.MLModel(str(path), skip_model_load=True).get_spec() for path in (model, report.destination)
    )
    if not whole.description.metadata.ByteSize():
        whole.description.ClearField("metadata")  # an empty one
    assert whole.description == joined.description and whole.specificationVersion == joined.specificationVersion


def test_coremltools_loads_what_is_joined(models, tmp_path):
    report = round_trip(models["ios15"], tmp_path, parts=3)
    model = ct.models.MLModel(report.destination, skip_model_load=True)
    spec = model.get_spec()
    program = milproto.load(spec, spec.specificationVersion, model.weights_dir)
    assert [one.name for one in program.functions["main"].outputs] == ["logits"]


def test_chunks_of_chunks_are_joined_in_two_steps(models, tmp_path):
    first = milblob.chunk(models["float32"], tmp_path / "a", parts=2)
    inner = milblob.chunk(first.chunks[0].path, tmp_path / "b", parts=2)
    middle = milblob.join([one.path for one in inner.chunks], tmp_path / "middle.mlpackage")
    report = milblob.join([middle.destination, first.chunks[1].path], tmp_path / "whole.mlpackage")
    assert milblob.content_hash(report.destination) == milblob.content_hash(models["float32"])
    with milblob.open(report.destination) as model:
        assert "milblob.chunk" not in model.metadata.user_defined
    at_once = milblob.join([*(one.path for one in inner.chunks), first.chunks[1].path], tmp_path / "other.mlpackage")
    assert milblob.content_hash(at_once.destination) == milblob.content_hash(models["float32"])


def test_an_output_that_a_later_chunk_reads_is_an_output_again(tmp_path):
    """`mid` is an output of the model, and read by what comes after it."""
    path = stage(tmp_path / "m", "x", "y", middle="mid", returned=("mid", "y"))
    (first, last) = [one.path for one in milblob.chunk(path, tmp_path / "parts", at="mid").chunks]
    report = milblob.join([first, last], tmp_path / "whole.mlpackage")
    assert report.outputs == {"main": ["mid", "y"]}
    assert milblob.content_hash(report.destination) == milblob.content_hash(path)


def test_parts_between_which_nothing_crosses_are_joined_again(tmp_path):
    def build(x, y):
        return mb.tanh(x=mb.exp(x=x, name="e"), name="a"), mb.relu(x=mb.square(x=y), name="b")

    path = save(tmp_path / "m.mlpackage", build, {name: np.zeros(4, np.float32) for name in "xy"})
    report = round_trip(path, tmp_path, at="a")
    assert report.outputs == {"main": ["a", "b"]} and milblob.content_hash(report.destination) == milblob.content_hash(
        path
    )


# ------------------------------------------------------------------------------------------------------- other models


VECTOR = tensor_type(11, [2])
FLOATS = field(3, field(5, field(1, 2) + field(2, 65568)))


def unary(kind, source, target, kind_of=VECTOR):
    return operation(
        kind, target, inputs=field(2, field(1, "x") + field(2, field(1, field(1, source)))), output_type=kind_of
    )


def stage(
    folder,
    takes,
    gives,
    *,
    kind="relu",
    middle="h",
    returned=None,
    number=1.0,
    type_of=VECTOR,
    feature=FLOATS,
    opset="CoreML8",
    record=None,
):
    """A package that computes middle = kind(takes), then gives = middle + weight; the constants are called w0."""
    folder.mkdir(parents=True)
    data, ops = weights_of([("FLOAT32", [number, 2.0])])
    add = operation(
        "add", gives,
        inputs=b"".join(field(2, field(1, key) + field(2, field(1, field(1, name)))) for key, name in (("x", middle), ("y", "w0"))),
        output_type=type_of,
    )  # fmt: skip
    returned = returned or (gives,)
    block = b"".join(field(2, name) for name in returned)
    block += b"".join(field(3, op) for op in (*ops, unary(kind, takes, middle, type_of), add))
    body = field(1, field(1, takes) + field(2, type_of)) + field(2, opset) + field(3, field(1, opset) + field(2, block))
    program = field(1, 1) + field(2, field(1, "main") + field(2, body))
    described = field(1, field(1, takes) + feature) + b"".join(field(10, field(1, name) + feature) for name in returned)
    if record is not None:
        described += field(100, field(100, field(1, "milblob.chunk") + field(2, record)))
    model = field(1, 9) + field(2, described) + field(502, program)
    path = write_package(folder, model, {"weight.bin": data}).rename(folder.parent / f"{folder.name}.mlpackage")
    folder.rmdir()
    return path


def test_names_that_are_in_use_get_numbers_and_the_whole_computes_the_chain(tmp_path):
    """Three models made apart: `h` and `w0` are in each, with other values."""
    paths = [
        stage(tmp_path / "a", "x", "p", kind="relu", number=-3.0),
        stage(tmp_path / "b", "p", "q", kind="sigmoid", number=7.0),
        stage(tmp_path / "c", "q", "h_out", kind="tanh", number=7.0),
    ]
    report = milblob.join(paths, tmp_path / "whole.mlpackage")
    assert report.inputs == {"main": ["x"]} and report.outputs == {"main": ["h_out"]}
    assert report.linked == {"main": ["p", "q"]} and report.renamed == 4
    found = milblob.verify(report.destination, paths, runs=3)
    assert [one.differing for one in found.outputs] == [0]
    x = np.array([1.5, -2.0], np.float32)
    first = np.maximum(x, 0) + np.array([-3, 2])
    expected = np.tanh(1 / (1 + np.exp(-first)) + np.array([7, 2])) + np.array([7, 2])
    with milblob.Session(report.destination) as session:
        assert np.allclose(session.predict({"x": x})["h_out"], expected, atol=1e-6)
    assert not [one for one in milblob.check(report.destination) if one.severity != "note"]


def test_equal_constants_of_one_name_are_stored_once(tmp_path):
    paths = [stage(tmp_path / "a", "x", "p"), stage(tmp_path / "b", "p", "q", kind="tanh")]
    report = milblob.join(paths, tmp_path / "whole.mlpackage")
    assert report.shared_nbytes == 8 and report.blob_count == 1 and report.renamed == 1
    with milblob.open(report.destination) as model:
        assert [op.name for op in model.functions["main"].block.operations] == ["w0", "h", "p", "h__1", "q"]


def test_an_output_has_its_name_although_an_earlier_model_has_a_value_of_that_name(tmp_path):
    paths = [stage(tmp_path / "a", "x", "p", middle="q"), stage(tmp_path / "b", "p", "q", kind="tanh", number=4.0)]
    report = milblob.join(paths, tmp_path / "whole.mlpackage")
    assert report.outputs == {"main": ["q"]}
    assert not any(one.differing for one in milblob.verify(report.destination, paths, runs=2).outputs)


def test_kept_outputs_are_returned(tmp_path):
    paths = [stage(tmp_path / "a", "x", "p"), stage(tmp_path / "b", "p", "q")]
    report = milblob.join(paths, tmp_path / "whole.mlpackage", also=["p"])
    assert report.outputs == {"main": ["p", "q"]}
    spec = ct.models.MLModel(report.destination, skip_model_load=True).get_spec()
    assert [one.name for one in spec.description.output] == ["p", "q"]
    assert not any(one.differing for one in milblob.verify(report.destination, paths, runs=2).outputs)


def test_unknown_fields_are_kept(tmp_path):
    """Fields of operations and functions that milblob does not know."""
    a = package_of(tmp_path / "a", [("FLOAT32", [1.0])])
    data, (weight,) = weights_of([("FLOAT32", [5.0])])
    del data
    assert b"kept" in weight
    chunk = milblob.chunk(a, tmp_path / "parts", parts=1).chunks[0].path
    model = (a / "Data" / "com.apple.CoreML" / "model.mlmodel").read_bytes()
    with open(os.path.join(chunk, "Data", "com.apple.CoreML", "model.mlmodel"), "rb") as file:
        assert file.read().count(b"kept") == model.count(b"kept") > 0


HALF = tensor_type(10, [2])
IMAGE = field(3, field(4, field(1, 2) + field(2, 2) + field(3, 10)))

ERRORS = {
    "other types": ({"takes": "p", "gives": "q", "type_of": HALF}, milblob.ProgramError, "input 'p': expected tensor<fp32"),
    "no link": ({"takes": "z", "gives": "q"}, milblob.ProgramError, "that link it to the other models"),
    "one output twice": ({"takes": "x", "gives": "p"}, milblob.ProgramError, "'p': expected it from one of the models only"),
    "an output that is an input": ({"takes": "p", "gives": "x"}, milblob.ProgramError, "a.mlpackage takes; list models in the"),
    "an image": ({"takes": "p", "gives": "q", "feature": IMAGE}, milblob.ProgramError, "expected an array"),
    "another opset": ({"takes": "p", "gives": "q", "opset": "CoreML7"}, milblob.UnsupportedError, "opset of function main"),
}  # fmt: skip


@pytest.mark.parametrize("case", ERRORS)
def test_models_that_do_not_fit_are_one_error_and_nothing_is_written(tmp_path, case):
    options, error, message = ERRORS[case]
    paths = [stage(tmp_path / "a", "x", "p"), stage(tmp_path / "b", **options)]
    with pytest.raises(error, match=message):
        milblob.join(paths, tmp_path / "whole.mlpackage")
    assert sorted(os.listdir(tmp_path)) == ["a.mlpackage", "b.mlpackage"]


def test_arguments_that_are_wrong_are_refused(models, tmp_path):
    a, b = stage(tmp_path / "a", "x", "p"), stage(tmp_path / "b", "p", "q")
    for arguments, error, message in (
        (([a], "w.mlpackage"), ValueError, "two models or more"),
        ((str(a), "w.mlpackage"), TypeError, "a list of models"),
        (([a, b], "w.mlmodel"), ValueError, "ends in .mlpackage"),
        (([a, b], a), ValueError, "outside the models"),
        (([a, DATA / "palette_4bit" / "model.mlmodelc"], "w.mlpackage"), milblob.UnsupportedError, "a compiled model"),
        (([a, DATA / "pipeline" / "model.mlpackage"], "w.mlpackage"), milblob.UnsupportedError, "a pipeline"),
        (([a, models["functions"]], "w.mlpackage"), milblob.ProgramError, "functions: expected main"),
        (([models["caches"], models["caches"]], "w.mlpackage"), milblob.ProgramError, "state 'cache0'"),
    ):
        sources, destination = arguments
        with pytest.raises(error, match=message):
            milblob.join(sources, tmp_path / destination)
    with pytest.raises(milblob.ProgramError, match="also: expected an output"):
        milblob.join([a, b], tmp_path / "w.mlpackage", also=["w0"])
    with pytest.raises(TypeError, match="also"):
        milblob.join([a, b], tmp_path / "w.mlpackage", also="p")
    assert sorted(os.listdir(tmp_path)) == ["a.mlpackage", "b.mlpackage"]


@pytest.mark.parametrize(
    "record", ["", "no json", "[1]", "{}", '{"parts": [1], "functions": {"main": 3}}', "[" * 100_000]
)
def test_a_record_that_is_not_ours_is_passed_over(tmp_path, record):
    a, b = stage(tmp_path / "a", "x", "p", record=record), stage(tmp_path / "b", "p", "q", record=record)
    report = milblob.join([a, b], tmp_path / "whole.mlpackage")
    assert report.outputs == {"main": ["q"]}
