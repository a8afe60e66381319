"""Classifiers (the operation classify): the label and the probabilities, with texts and 64-bit numbers as labels."""

import json

import numpy as np
import pytest

import milblob
import milblob.onnx
from onnx_models import run, save, session

F = np.float32
TEXTS, NUMBERS = ["cat", "dog", "Möwe"], [4000000000, -1, 7]
X = np.array([[0.25, 2, -1]], F)
PROBABILITIES = np.exp(X) / np.exp(X).sum()


def classifier(path, labels, shape=(1, 3), opset="iOS15"):
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import Function, Program

    target = getattr(ct.target, opset)
    with Function({"x": mb.placeholder(shape=shape)}, opset_version=target) as function:
        function.set_outputs([mb.softmax(x=function.inputs["x"], axis=len(shape) - 1, name="probabilities")])
    program = Program()
    program.add_function("main", function)
    model = ct.convert(
        program,
        source="milinternal",
        convert_to="mlprogram",
        minimum_deployment_target=target,
        classifier_config=ct.ClassifierConfig(labels, predicted_feature_name="label"),
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )
    model.save(str(path))
    return path


@pytest.mark.parametrize("labels", [TEXTS, NUMBERS], ids=["texts", "numbers"])
@pytest.mark.parametrize("shape", [(1, 3), (3,)])
def test_a_classifier_gives_its_label_and_the_probabilities(tmp_path, labels, shape):
    path = classifier(tmp_path / "m.mlpackage", labels, shape)
    model = milblob.onnx.convert(path, tmp_path / "m.onnx")
    assert json.loads(model.metadata_props["milblob.classes"]) == labels
    assert milblob.onnx.coverage(path) == {}
    found = run(tmp_path / "m.onnx", {"x": X.reshape(shape)})
    assert list(found) == ["label", "label_probs"]
    assert found["label"].tolist() == [labels[1]]
    assert found["label"].dtype == (object if labels is TEXTS else np.int64)
    np.testing.assert_allclose(found["label_probs"], PROBABILITIES.reshape(shape), rtol=1e-6)


def test_of_two_labels_that_are_as_probable_the_first_one_is_given(tmp_path):
    path = classifier(tmp_path / "m.mlpackage", TEXTS)
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    assert run(tmp_path / "m.onnx", {"x": np.array([[0, 1, 1]], F)})["label"].tolist() == ["dog"]


@pytest.mark.parametrize("labels", [TEXTS, NUMBERS], ids=["texts", "numbers"])
@pytest.mark.parametrize("opset", [18, 21, 23])
def test_zipmap_makes_the_probabilities_a_dictionary(tmp_path, labels, opset):
    path = classifier(tmp_path / "m.mlpackage", labels)
    milblob.onnx.convert(path, tmp_path / "m.onnx", zipmap=True, opset=opset)
    opened = session(tmp_path / "m.onnx")
    kinds = {output.name: output.type for output in opened.get_outputs()}
    key = "string" if labels is TEXTS else "int64"
    assert kinds["label_probs"] == f"seq(map({key},tensor(float)))"
    label, (found,) = opened.run(None, {"x": X})
    assert label.tolist() == [labels[1]]
    assert list(found) == sorted(labels)
    np.testing.assert_allclose([found[one] for one in labels], PROBABILITIES[0], rtol=1e-6)


def test_zipmap_needs_a_path(tmp_path):
    path = classifier(tmp_path / "m.mlpackage", TEXTS)
    with pytest.raises(ValueError, match="zipmap: expected a path"):
        milblob.onnx.convert(path, zipmap=True)
    assert milblob.onnx.convert(path).graph.outputs[0].shape == (1,)


def test_zipmap_is_ignored_without_a_classifier(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    path = save(tmp_path / "m.mlpackage", lambda x: mb.relu(x=x), {"x": X})
    model = milblob.onnx.convert(path, tmp_path / "m.onnx", zipmap=True)
    assert "milblob.classes" not in model.metadata_props
    assert next(iter(run(tmp_path / "m.onnx", {"x": X}).values())).tolist() == [[0.25, 2, 0]]
