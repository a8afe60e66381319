"""Chunks compute what the model computes, have its operations and weights, and are as large as they say."""

import json
import os
import shutil

import numpy as np
import pytest

import built_models
import milblob
from milblob.rewrite import new_package
from paths import DATA
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])

import coremltools as ct
import onnx
from coremltools.converters.mil.frontend.milproto import load as milproto
from onnx.reference import ReferenceEvaluator

EXACT = ("float32", "half", "ios15", "caches", "int4", "palette")


def chunks_of(model, folder, **how):
    return [chunk.path for chunk in milblob.chunk(model, folder / "parts", **how).chunks]


def operations_of(path, function="main"):
    """(type, outputs, inputs) of every operation, nested ones too."""
    with milblob.open(path) as model:
        return [(one.type, one.outputs, dict(one.inputs)) for one in model.functions[function].statements()]


# -------------------------------------------------------------------------------------------------------------- results


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("parts", [2, 3, 7])
def test_chunks_compute_the_same_bit_for_bit(models, tmp_path, name, parts):
    paths = chunks_of(models[name], tmp_path, parts=parts)
    assert len(paths) == parts
    report = milblob.verify(models[name], paths, runs=3)
    assert {one.name: one.differing for one in report.outputs} == dict.fromkeys((one.name for one in report.outputs), 0)
    assert report.outputs[0].name == "logits" and report.outputs[0].total == 3 * 6 * 64
    if name == "caches":
        assert {one.name for one in report.outputs} == {"logits", "cache0", "cache1", "cache2", "cache3"}


def evaluated(path, values, folder):
    """Outputs by the evaluator of ONNX, which rounds after each operation; onnxruntime keeps float32 in between."""
    milblob.onnx.convert(path, folder / "m.onnx", weights="embed", force=True)
    evaluator = ReferenceEvaluator(onnx.load(folder / "m.onnx"))
    found = evaluator.run(None, {name: values[name] for name in evaluator.input_names})
    return dict(zip(evaluator.output_names, found, strict=True))


@pytest.mark.parametrize("name", ["float32", "half"])
def test_chunks_compute_what_those_of_coremltools_compute(models, tmp_path, name):
    """bisect_model cuts once, and passes float16 on as float32."""
    ct.models.utils.bisect_model(str(models[name]), str(tmp_path / "theirs"), check_output_correctness=False)
    theirs = [str(tmp_path / "theirs" / f"{name}_chunk{number}.mlpackage") for number in (1, 2)]
    ours = chunks_of(models[name], tmp_path, parts=2)
    x = np.random.default_rng(5).standard_normal((1, 6, 32)).astype(np.float32 if name == "float32" else np.float16)
    found = []
    for paths in (theirs, ours):
        values = {"x": x, "position": np.full((1, 1, 1), 2, np.int32)}
        for path in paths:
            values |= evaluated(path, values, tmp_path)
        found.append(values["logits"])
    assert np.array_equal(*found)


def test_a_list_of_models_is_a_session(models, tmp_path):
    paths = chunks_of(models["caches"], tmp_path, parts=3)
    values = {"x": np.ones((1, 6, 32), np.float32), "position": np.zeros((1, 1, 1), np.int32)}
    with milblob.Session(models["caches"]) as whole, milblob.Session(paths) as chain:
        assert whole.inputs.keys() == chain.inputs.keys()
        assert whole.outputs.keys() < chain.outputs.keys()  # what they pass on is there too
        for _ in range(2):
            expected, found = whole.predict(values), chain.predict(values)
            assert np.array_equal(expected["logits"], found["logits"])
        assert all(np.array_equal(whole.states[name], chain.states[name]) for name in whole.states)
    for wrong, message in (([], "got none"), ([paths[0], paths[0]], "in several")):
        with pytest.raises(ValueError, match=message):
            milblob.Session(wrong)


def test_every_function_is_cut_where_the_same_weights_are(models, tmp_path):
    report = milblob.chunk(models["functions"], tmp_path / "parts", parts=3)
    places = {cut.function: [] for cut in report.cuts}
    for cut in report.cuts:
        places[cut.function].append(cut.after)
    assert places["prefill"] == places["decode"] and len(places["decode"]) == 2
    paths = [chunk.path for chunk in report.chunks]
    for function in ("prefill", "decode"):
        found = milblob.verify(models["functions"], paths, function=function, runs=2)
        assert not any(one.differing for one in found.outputs)
    one = sum(os.path.getsize(path) for path in weight_files(models["functions"]))
    three = sum(os.path.getsize(path) for chunk in paths for path in weight_files(chunk))
    assert three < 1.05 * one  # both functions of a chunk share its weights


def weight_files(package):
    folder = os.path.join(package, "Data", "com.apple.CoreML", "weights")
    return [os.path.join(folder, name) for name in os.listdir(folder)]


@pytest.mark.parametrize(
    "name", ["flexible", "control_flow", "classifier_strings", "classifier_integers", "lists", "states"]
)
def test_features_of_all_kinds_go_with_the_operations_that_use_them(tmp_path, name):
    model = DATA / name / "model.mlpackage"
    paths = chunks_of(model, tmp_path, parts=2)
    report = milblob.verify(model, paths, runs=3)
    assert report.is_same and not any(one.differing for one in report.outputs)


def test_a_classifier_predicts_labels_in_its_last_chunk(tmp_path):
    paths = chunks_of(DATA / "classifier_strings" / "model.mlpackage", tmp_path, parts=2)
    specs = [ct.models.MLModel(path, skip_model_load=True).get_spec() for path in paths]
    assert [spec.description.predictedFeatureName for spec in specs] == ["", "classLabel"]
    assert not specs[0].description.predictedProbabilitiesName


def test_images_and_flexible_shapes_are_described_as_before(tmp_path):
    model = shutil.copytree(
        DATA / "flexible" / "model.mlpackage", tmp_path / "model.mlpackage"
    )  # opening writes its manifest
    whole = ct.models.MLModel(str(model), skip_model_load=True).get_spec()
    paths = chunks_of(model, tmp_path, parts=2)
    first, last = (ct.models.MLModel(path, skip_model_load=True).get_spec() for path in paths)
    assert first.description.input == whole.description.input
    assert last.description.output == whole.description.output
    (passed,) = last.description.input
    sizes = [(size.lowerBound, size.upperBound) for size in passed.type.multiArrayType.shapeRange.sizeRanges]
    assert (1, -1) in sizes and len(sizes) == len(passed.type.multiArrayType.shape)


@pytest.mark.parametrize("how", [{"parts": 3}, {"max_nbytes": 30_000}, {"at": ["layer0_out", "layer2_out"]}])
def test_coremltools_loads_each_chunk_and_finds_its_operations(models, tmp_path, how):
    for path in chunks_of(models["half"], tmp_path, **how):
        model = ct.models.MLModel(path, skip_model_load=True)
        spec = model.get_spec()
        program = milproto.load(spec, spec.specificationVersion, model.weights_dir)
        theirs = [op.op_type for op in program.functions["main"].operations]
        assert theirs == [one[0] for one in operations_of(path)]
        assert [one.name for one in spec.description.input] == list(program.functions["main"].inputs)
        assert [one.name for one in spec.description.output] == [one.name for one in program.functions["main"].outputs]
        assert not [one for one in milblob.check(path) if one.severity != "note"]


# --------------------------------------------------------------------------------------------------- what a chunk has


@pytest.mark.parametrize("name", ["float32", "ios15", "caches", "functions"])
def test_operations_keep_their_order_and_form(models, tmp_path, name):
    function = "decode" if name == "functions" else "main"
    whole = operations_of(models[name], function)
    found = [one for path in chunks_of(models[name], tmp_path, parts=3) for one in operations_of(path, function)]
    computed = [one for one in whole if one[0] != "const"]
    new = [one for one in found if one[0] != "const" and one not in computed]
    assert all(kind == "cast" and outputs[0].removesuffix("__fp32") in str(whole) for kind, outputs, _ in new)
    first_seen = list(dict.fromkeys(str(one) for one in found if one in computed))
    assert first_seen == [str(one) for one in computed]
    again = len([one for one in found if one in computed]) - len(computed)
    assert 0 < again <= 4  # the mask, which is bool, is computed again


def crossing(path, cut, count):
    """By protobuf: what the operations after the first `count` that are no constants read of those before."""
    with milblob.open(path) as model:
        (block,) = model.program.functions["main"].block_specializations.values()
    steps = [op for op in block.operations if op.type != "const"]
    made = {output.name for op in steps[:count] for output in op.outputs}
    read = {one.name for op in steps[count:] for arg in op.inputs.values() for one in arg.arguments}
    assert cut.after == steps[count - 1].outputs[0].name
    return made & read


def test_what_crosses_a_cut_is_what_later_operations_read(models, tmp_path):
    with milblob.open(models["float32"]) as model:
        steps = [op.name for op in model.functions["main"].block.operations if op.type != "const"]
    for count in range(3, len(steps) - 1, 7):
        (cut,) = milblob.chunk(models["float32"], tmp_path / "x", at=steps[count - 1], dry_run=True).cuts
        assert set(cut.values) == crossing(models["float32"], cut, count) - {"mask"}
        sizes = {"angle": 4}
        assert cut.nbytes == sum(sizes.get(name, nbytes_of(models["float32"], name)) for name in cut.values)


def nbytes_of(path, name):
    with milblob.open(path) as model:
        (op,) = [op for op in model.functions["main"].walk() if name in op.output_names]
        return int(np.prod(op.outputs[0].type.shape)) * 4


def test_each_weight_is_in_the_chunks_that_read_it_and_repeated_ones_are_reported(models, tmp_path):
    report = milblob.chunk(models["float32"], tmp_path / "parts", parts=4)
    whole = milblob.load(models["float32"])
    found = {}
    for number, chunk in enumerate(report.chunks, 1):
        for name, array in milblob.load(chunk.path).items():
            assert np.array_equal(array, whole[name])
            found.setdefault(name, []).append(number)
    assert found.keys() == whole.keys()
    in_files = {name for name in whole if milblob.open(models["float32"])[name].file is not None}
    several = {name: numbers for name, numbers in found.items() if len(numbers) > 1 and name in in_files}
    assert several.keys() >= {one.name for one in report.repeated}
    assert {one.name: one.chunks for one in report.repeated}.items() <= several.items()


def test_a_limit_holds_for_the_weight_file_and_takes_the_fewest_chunks(models, tmp_path):
    limit = 40_000
    report = milblob.chunk(models["float32"], tmp_path / "parts", max_nbytes=limit)
    for chunk in report.chunks:
        assert chunk.nbytes <= limit
        assert os.path.getsize(weight_files(chunk.path)[0]) <= limit
    total = sum(os.path.getsize(path) for path in weight_files(models["float32"]))
    assert total / limit <= len(report.chunks) <= 2 * total / limit
    fewer = milblob.chunk(models["float32"], tmp_path / "n", parts=len(report.chunks) - 1, dry_run=True)
    assert max(chunk.nbytes for chunk in fewer.chunks) > limit
    assert not milblob.verify(models["float32"], [chunk.path for chunk in report.chunks], runs=1).outputs[0].differing


def test_sub_byte_weights_count_as_they_are_stored(models, tmp_path):
    large = milblob.chunk(models["float32"], tmp_path / "x", parts=2, dry_run=True)
    small = milblob.chunk(models["int4"], tmp_path / "x", parts=2, dry_run=True)
    assert sum(one.nbytes for one in small.chunks) < 0.6 * sum(one.nbytes for one in large.chunks)
    written = milblob.chunk(models["int4"], tmp_path / "y", parts=2)
    for chunk in written.chunks:
        assert os.path.getsize(weight_files(chunk.path)[0]) <= chunk.nbytes


def test_one_part_has_everything(models, tmp_path):
    (path,) = chunks_of(models["caches"], tmp_path, parts=1)
    assert milblob.content_hash(path).model == milblob.content_hash(models["caches"]).model


def test_no_value_of_a_weight_is_read(models, tmp_path, monkeypatch):
    """Records are copied by ranges of files: Python never asks for the bytes of one."""

    def refuse(*_, **__):
        raise AssertionError("a value was read")

    for place in (
        "milblob.model.tensor.Tensor.read",
        "milblob.blobs.reader.BlobReader.read",
        "milblob.blobs.equal.first_equal",
    ):
        monkeypatch.setattr(place, refuse)
    assert len(chunks_of(models["int4"], tmp_path, parts=3)) == 3


# --------------------------------------------------------------------------------------------------------------- pipeline


def test_a_pipeline_has_all_chunks_and_computes_the_same(models, tmp_path):
    report = milblob.chunk(models["float32"], tmp_path / "parts", parts=3, pipeline=True)
    assert report.pipeline == str(tmp_path / "parts" / "float32_pipeline.mlpackage")
    spec = ct.models.MLModel(report.pipeline, skip_model_load=True).get_spec()
    assert [one.mlProgram.version for one in spec.pipeline.models] == [1, 1, 1]
    assert list(spec.pipeline.names) == ["float32_chunk1", "float32_chunk2", "float32_chunk3"]
    assert not milblob.verify(models["float32"], report.pipeline, runs=2).outputs[0].differing
    assert not [one for one in milblob.check(report.pipeline) if one.severity != "note"]
    parts = [chunk.path for chunk in report.chunks]
    whole = milblob.load(report.pipeline)
    for number, path in enumerate(parts):
        for name, array in milblob.load(path).items():
            assert np.array_equal(
                whole[
                    f"model{number}/main/{name}" if f"model{number}/main/{name}" in whole else f"model{number}/{name}"
                ],
                array,
            )


@pytest.mark.parametrize("name", ["int4", "palette"])
def test_a_pipeline_of_compressed_models_computes_the_same(models, tmp_path, name):
    """Operations of several models have the same number in their Programs: each gets the weight of its own one."""
    report = milblob.chunk(models[name], tmp_path / "parts", parts=3, pipeline=True)
    whole = milblob.Session(report.pipeline)
    inputs = {
        port: np.random.default_rng(0).integers(0, 4, one.shape).astype(one.dtype) for port, one in whole.inputs.items()
    }
    parts = milblob.Session([chunk.path for chunk in report.chunks]).predict(inputs)
    for port, array in whole.predict(inputs).items():
        assert np.array_equal(array, parts[port])


@pytest.mark.parametrize(("name", "what"), [("caches", "without states"), ("functions", "without states")])
def test_a_pipeline_is_refused_where_core_ml_has_none(models, tmp_path, name, what):
    with pytest.raises(milblob.UnsupportedError, match=what):
        milblob.chunk(models[name], tmp_path / "parts", parts=2, pipeline=True)
    assert not (tmp_path / "parts").exists()


# ----------------------------------------------------------------------------------------------------------------- errors


ERRORS = [
    ("float32", {"parts": 1000}, milblob.ProgramError, "expected at most"),
    ("float32", {"parts": 0}, ValueError, "parts"),
    ("float32", {"parts": 100_000}, ValueError, "at most 1000"),
    ("float32", {}, ValueError, "expected one of parts, max_nbytes and at, got none"),
    ("float32", {"parts": 2, "at": "x"}, ValueError, "got parts and at"),
    ("float32", {"max_nbytes": 5000}, milblob.ProgramError, r"'layer\d_(up|down)', with the weight"),
    ("float32", {"max_nbytes": 10}, milblob.ProgramError, "expected at least"),
    ("float32", {"at": "layer1_otu"}, milblob.ProgramError, "did you mean layer1_out"),
    ("float32", {"at": "x"}, milblob.ProgramError, "got the input 'x'"),
    ("float32", {"at": []}, ValueError, "got none"),
    ("float32", {"at": [3]}, TypeError, "names"),
    ("float32", {"at": "logits"}, milblob.ProgramError, "before the last operation"),
    ("one cache", {"parts": 40}, milblob.ProgramError, "state 'cache0' is used before and after"),
    ("one cache", {"at": "layer1_out"}, milblob.ProgramError, "states of its own"),
]


@pytest.mark.parametrize(("name", "how", "error", "message"), ERRORS)
def test_impossible_cuts_are_one_error_and_nothing_is_written(models, tmp_path, name, how, error, message):
    with pytest.raises(error, match=message):
        milblob.chunk(models[name], tmp_path / "parts", **how)
    assert os.listdir(tmp_path) == []


def test_a_cut_inside_a_nested_block_is_refused_by_the_operation_around_it(tmp_path):
    path = DATA / "control_flow" / "model.mlpackage"
    with milblob.open(path) as model:
        outer = next(op for op in model.functions["main"].block.operations if op.blocks)
        inner = next(op.name for block in outer.blocks for op in block.operations if op.type != "const")
        around = outer.name
    with pytest.raises(milblob.ProgramError, match=f"in a block of '{around}'"):
        milblob.chunk(path, tmp_path / "parts", at=inner)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("palette_4bit/model.mlmodelc", "a compiled model"), ("pipeline/model.mlpackage", "a pipeline"),
        ("nested_pipeline/model.mlmodel", "a pipeline"), ("specializations/model.mlmodel", "block specializations"),
        ("blob_all_dtypes/weight.bin", "a weight file"), ("neural_network/model.mlpackage", "neuralNetwork"),
    ],
)  # fmt: skip
def test_models_that_cannot_be_cut_are_refused_by_name(tmp_path, source, message):
    path = DATA / source
    if not path.exists():
        path = next((DATA / source).parent.glob("*.bin"))
    with pytest.raises(milblob.UnsupportedError, match=message):
        milblob.chunk(path, tmp_path / "parts", parts=2)
    assert os.listdir(tmp_path) == []


def test_packages_are_replaced_only_by_force_and_other_files_are_kept(models, tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    before = milblob.chunk(models["float32"], folder, parts=2)
    with pytest.raises(FileExistsError):
        milblob.chunk(models["float32"], folder, parts=3)
    assert sorted(os.listdir(folder)) == ["float32_chunk1.mlpackage", "float32_chunk2.mlpackage", "notes.txt"]
    milblob.chunk(models["float32"], folder, parts=2, force=True)
    assert (folder / "notes.txt").read_text() == "mine"
    (folder / "float32_chunk1.mlpackage" / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"mine\.txt"):
        milblob.chunk(models["float32"], folder, parts=2, force=True)
    assert not milblob.verify(models["float32"], [one.path for one in before.chunks], runs=1).outputs[0].differing


def test_a_model_is_not_cut_into_itself(models, tmp_path):
    path = shutil.copytree(models["float32"], tmp_path / "m.mlpackage")
    with pytest.raises(ValueError, match="expected a folder outside the model"):
        milblob.chunk(path, path / "parts", parts=2)
    with pytest.raises(ValueError, match="expected a place outside of models"):
        milblob.chunk(path, path, parts=2, force=True)


def test_a_source_that_changes_while_it_is_copied_leaves_nothing(models, tmp_path, monkeypatch):
    path = shutil.copytree(models["float32"], tmp_path / "m.mlpackage")
    (weights,) = weight_files(path)
    write = new_package.write_weight_files

    def written(*arguments, **options):
        write(*arguments, **options)
        with open(weights, "r+b") as file:
            file.write(b"\x01")

    monkeypatch.setattr(new_package, "write_weight_files", written)
    with pytest.raises(milblob.FormatError, match="unchanged"):
        milblob.chunk(path, tmp_path / "parts", parts=2)
    assert os.listdir(tmp_path) == ["m.mlpackage"]


def test_a_chunk_that_is_much_larger_than_the_others_is_explained(models, tmp_path):
    (note,) = milblob.chunk(models["one cache"], tmp_path / "parts", parts=2, dry_run=True).notes
    assert "state 'cache0'" in note and "of the bytes" in note
    assert milblob.chunk(models["caches"], tmp_path / "parts", parts=2, dry_run=True).notes == []


def test_the_report_is_json_and_a_dry_run_writes_nothing(models, tmp_path):
    planned = milblob.chunk(models["caches"], tmp_path / "parts", parts=2, dry_run=True)
    assert os.listdir(tmp_path) == [] and not planned.is_written
    done = milblob.chunk(models["caches"], tmp_path / "parts", parts=2)
    assert done.is_written and done.cuts == planned.cuts and done.chunks == planned.chunks
    assert json.loads(json.dumps(done.to_dict()))["chunks"][1]["states"] == {"main": ["cache2", "cache3"]}


@pytest.mark.parametrize("name", ["comparisons", "conditional", "lists", "shapes"])
@pytest.mark.parametrize("parts", [2, 3, 5])
def test_every_chunk_returns_something(tmp_path, name, parts):
    """Of operations whose results cannot be passed on (bools, lists), the chunk that reads them has a copy."""
    path = tmp_path / "m.mlpackage"
    built_models.makers()[f"{name} iOS18"]().save(str(path))
    try:
        report = milblob.chunk(path, tmp_path / "parts", parts=parts)
    except milblob.ProgramError as error:
        assert "expected at most" in str(error)
        return
    assert all(chunk.outputs["main"] for chunk in report.chunks)
    assert milblob.verify(path, [chunk.path for chunk in report.chunks], runs=2).is_same
