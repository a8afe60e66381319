"""What the tests of milblob.onnxmltools run in every version of ONNXMLTools: conversions, through its framework, that
compute what milblob's own conversion computes."""

import shutil

import numpy as np
import onnx
import onnxruntime

import milblob
import milblob.onnx
import milblob.onnxmltools
from paths import ROOT

DATA = ROOT / "tests" / "data"
MODELS = {
    "demo": (ROOT / "examples/demo.mlpackage", None), "states": (DATA / "states/model.mlpackage", None),
    "functions": (DATA / "functions/model.mlpackage", "beta"), "flexible": (DATA / "flexible/model.mlpackage", None),
    "pipeline": (DATA / "pipeline/model.mlpackage", "model0/main"), "halves": (DATA / "opset_ios18_fp16/model.mlpackage", None),
    "control flow": (DATA / "control_flow/model.mlpackage", None), "text": (DATA / "palette_4bit/model.mlmodelc", None),
    "int4": (DATA / "quant_int4_block/model.mlpackage", None),
}  # fmt: skip
PUBLIC = ("demo", "flexible", "int4")
"""Those whose inputs and outputs ONNXMLTools' own parser takes."""

_NUMPY = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


def opened(data):
    """A session, of a model that passes the full check of ONNX."""
    onnx.checker.check_model(onnx.load_from_string(data), full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])


def require_equal(own, made):
    """Require that two ONNX models have the same inputs and outputs and compute the same of random ones."""
    a, b = opened(own), opened(made)
    for values in ("get_inputs", "get_outputs"):
        described = [[(v.name, v.type, len(v.shape)) for v in getattr(one, values)()] for one in (a, b)]
        assert described[0] == described[1], described
    random = np.random.default_rng(0)
    feeds = {}
    for value in a.get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in value.shape]
        dtype = _NUMPY[value.type]
        is_whole = np.dtype(dtype).kind in "ib"
        feeds[value.name] = (random.integers(0, 2, shape) if is_whole else random.random(shape)).astype(dtype)
    for expected, found in zip(a.run(None, feeds), b.run(None, feeds), strict=True):
        assert (expected.dtype, expected.shape) == (found.dtype, found.shape)
        reach = float(np.abs(expected.astype(np.float64)).max(initial=0))
        # The demo computes in halves.
        np.testing.assert_allclose(found, expected, rtol=0, atol=8e-3 * reach)


def require_own(name, folder):
    """Convert a model by milblob's own Topology; return the ONNX model."""
    source, function = MODELS[name]
    path = shutil.copytree(source, folder / source.name)  # coremltools writes to what it opens
    milblob.onnx.convert(path, folder / "own.onnx", weights="embed", function=function, force=True)
    made = milblob.onnxmltools.convert_coreml(path, function=function)
    assert {entry.version for entry in made.opset_import if not entry.domain} == {15}
    assert made.producer_name != "milblob"  # it went through their framework
    require_equal((folder / "own.onnx").read_bytes(), made.SerializeToString())
    return path, made


def require_public(name, folder):
    """Convert a model by onnxmltools.convert_coreml itself."""
    import coremltools
    import onnxmltools

    path, own = require_own(name, folder)
    milblob.onnxmltools.repair()
    conversions, shapes = milblob.onnxmltools.functions(path)
    spec = coremltools.utils.load_spec(str(path))
    made = onnxmltools.convert_coreml(
        spec, "net", custom_conversion_functions=conversions, custom_shape_calculators=shapes, target_opset=15
    )
    require_equal(own.SerializeToString(), made.SerializeToString())
    return made
