"""ML Programs through ONNXMLTools' framework: what it makes computes what milblob's own conversion computes."""

import numpy as np
import pytest

from peers import WITHOUT

pytest.importorskip("onnxmltools", reason=WITHOUT["onnxmltools"])

import milblob
import milblob.onnx
import milblob.onnxmltools
from children import run_child
from milblob import UnsupportedError
from milblob.formats.read import open_arrays
from onnxmltools_models import MODELS, PUBLIC, require_own, require_public
from paths import DATA


@pytest.mark.parametrize("name", MODELS)
def test_convert_coreml_of_milblob(name, tmp_path):
    require_own(name, tmp_path)


@pytest.mark.parametrize("name", PUBLIC)
def test_convert_coreml_of_onnxmltools_with_our_functions(name, tmp_path):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    require_public(name, tmp_path)


def test_weights_go_home(tmp_path):
    path, made = require_own("demo", tmp_path)
    assert milblob.refit(path, _saved(made, tmp_path)).changes == []
    tensor = next(tensor for tensor in made.graph.initializer if tensor.name == "head_bias")
    tensor.raw_data = (np.frombuffer(tensor.raw_data, np.float32) + 1).tobytes()
    expected = milblob.load(path)["head_bias"] + 1
    milblob.refit(path, _saved(made, tmp_path))
    assert np.array_equal(milblob.load(path)["head_bias"], expected)


def _saved(model, folder):
    (folder / "saved.onnx").write_bytes(model.SerializeToString())
    with open_arrays(folder / "saved.onnx") as arrays:
        assert len(arrays) > 60
    return folder / "saved.onnx"


def test_a_converter_of_ones_own(tmp_path):
    def twice(scope, operator, container):
        x = container.value(operator.input("x"))
        container.bind(operator.output, container.node("Add", x, x))

    made = milblob.onnxmltools.convert_coreml(MODELS["demo"][0], "net", converters={"gelu": twice}, doc_string="words")
    assert "Erf" not in {node.op_type for node in made.graph.node}
    assert (made.graph.name, made.doc_string) == ("net", "words")


def test_other_opsets_and_states_are_refused(tmp_path):
    import onnxmltools

    for opset in (14, 16, 99):
        with pytest.raises(ValueError, match=f"target_opset: expected 15, which .* knows, got {opset}"):
            milblob.onnxmltools.convert_coreml(MODELS["demo"][0], target_opset=opset)
    milblob.onnxmltools.repair()
    coremltools = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    path, _ = require_own("states", tmp_path)
    conversions, shapes = milblob.onnxmltools.functions(path)
    spec = coremltools.utils.load_spec(str(path))
    for feature in (*spec.description.input, *spec.description.output):  # in halves, which its parser refuses
        feature.type.multiArrayType.dataType = 65568
    with pytest.raises(UnsupportedError, match=r"\(cache differ\); milblob.onnxmltools.convert_coreml takes states"):
        onnxmltools.convert_coreml(spec, custom_conversion_functions=conversions, custom_shape_calculators=shapes)


def test_it_is_imported_only_when_asked_for():
    code = "import sys, milblob, milblob.onnxmltools as m; m.__all__; print('onnxmltools' in sys.modules, 'onnx' in sys.modules)"
    assert run_child(code).strip() == "False False"
    code = """
sys.modules["onnxmltools"] = None
import milblob.onnx
import milblob.onnxmltools
try:
    milblob.onnxmltools.convert_coreml
except ImportError as error:
    print(error)
"""
    assert run_child(code).strip() == "onnxmltools is not installed; run: pip install onnxmltools"


@pytest.mark.filterwarnings("error")
def test_no_advice_that_onnxmltools_cannot_follow(tmp_path):
    """`milblob.onnx.convert` names the opset that keeps 4 bits; ONNXMLTools ends before it."""
    package = tmp_path / "m.mlpackage"
    milblob.compress(
        DATA / "opset_ios18_fp16/model.mlpackage", package, milblob.Linear("int4"), scope=milblob.Scope(min_size=10)
    )
    with pytest.warns(UserWarning, match="which opset 21 keeps compressed"):
        milblob.onnx.convert(package, opset=19)
    assert milblob.onnxmltools.convert_coreml(package).graph.node
