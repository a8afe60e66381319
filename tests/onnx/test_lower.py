"""Opset 15 from opset 19: what a model computes stays, and what has no older form is refused by name.

`test_operations.py` lowers the conversion of every operation; here are the forms that these do not have.
"""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from draws import restarts
from milblob import UnsupportedError
from milblob.onnx.lower import FROM, lower

F = np.float32
random = np.random.default_rng(4)
each_test_draws_the_same = restarts(random)
X = random.standard_normal((2, 3, 4)).astype(F)


def model_of(kind, feeds, constants=(), opset=FROM, outputs=1, **attributes):
    """A model of one node: its inputs are the feeds, then the constants; None is one that is left out."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for name, a in feeds.items()
    ]
    names = [*feeds, *("" if array is None else f"c{i}" for i, array in enumerate(constants))]
    held = [numpy_helper.from_array(array, f"c{i}") for i, array in enumerate(constants) if array is not None]
    node = helper.make_node(kind, names, [f"y.{i}" for i in range(outputs)], **attributes)
    returned = [onnx.ValueInfoProto(name=f"y.{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "g", inputs, returned, initializer=held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    return onnx.shape_inference.infer_shapes(model)


def run(model, feeds):
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(model.SerializeToString(), options).run(None, feeds)


def lowered(model, opset=15):
    return ir.serde.serialize_model(lower(ir.serde.deserialize_model(model), opset))


def ints(*values):
    return np.array(values, np.int64)


def reduces():
    for name in ("Max", "Min", "Mean", "Prod", "L1", "L2", "SumSquare", "LogSumExp"):
        yield pytest.param(f"Reduce{name}", {"x": X}, [ints(0, -1)], {"keepdims": 0}, id=name)
    yield pytest.param("ReduceLogSum", {"x": np.abs(X)}, [ints(1)], {}, id="LogSum")
    yield pytest.param("ReduceMax", {"x": X}, [], {}, id="all axes")
    yield pytest.param("ReduceMax", {"x": X}, [ints()], {"noop_with_empty_axes": 1}, id="no axis")
    yield pytest.param("ReduceMean", {"x": X}, [ints()], {}, id="empty axes")


def scatters():
    rows = np.array([[0], [2], [0], [0]])
    for how in ("none", "add", "mul", "max", "min"):  # of halves, onnxruntime itself has none but the first
        for dtype in (F, np.int32, *([np.float16] if how == "none" else [])):
            data, updates = (random.integers(-4, 5, shape).astype(dtype) for shape in ((3, 4), (4, 4)))
            places = rows[1:3] if how == "none" else rows
            yield pytest.param(
                "ScatterND",
                {"x": data, "i": places, "u": updates[: len(places)]},
                [],
                {"reduction": how},
                id=f"ND {how} {dtype.__name__}",
            )
        index = (
            random.integers(0, 3, (5, 3, 2)) if how != "none" else np.arange(3)[None, :, None] * np.ones((2, 1, 2), int)
        )
        feeds = {
            "x": random.standard_normal((6, 3, 4)).astype(F),
            "i": index,
            "u": random.standard_normal(index.shape).astype(F),
        }
        yield pytest.param("ScatterElements", feeds, [], {"reduction": how, "axis": 1}, id=f"elements {how}")
    deep = {
        "x": X,
        "i": np.array([[[1, 2], [1, 2]], [[0, 0], [1, 2]]]),
        "u": random.standard_normal((2, 2, 4)).astype(F),
    }
    yield pytest.param("ScatterND", deep, [], {"reduction": "add"}, id="ND of two axes")
    one = {"x": X, "i": np.array([[1, 2, 3], [1, 2, 3]]), "u": np.array([1, 2], F)}
    yield pytest.param("ScatterND", one, [], {"reduction": "mul"}, id="ND of elements")
    none = {"x": X, "i": np.zeros((0, 1), np.int64), "u": np.zeros((0, 3, 4), F)}
    yield pytest.param("ScatterND", none, [], {"reduction": "add"}, id="ND of nothing")


def others():
    gamma, beta = random.standard_normal((2, 3, 4)).astype(F)
    for dtype in (F, np.float16):
        for axis, scale in ((-1, gamma[0]), (2, gamma[0]), (1, gamma)):
            given = [scale.astype(dtype), beta[0].astype(dtype) if scale.ndim == 1 else beta.astype(dtype)]
            options = {"axis": axis, "epsilon": 1e-3}
            yield pytest.param(
                "LayerNormalization", {"x": X.astype(dtype)}, given, options, id=f"norm {axis} {dtype.__name__}"
            )
    yield pytest.param("LayerNormalization", {"x": X}, [gamma[0]], {}, id="norm without bias")
    yield pytest.param("Pad", {"x": X}, [ints(1, 0, 2, 3), F(0.5), ints(2, -3)], {}, id="pad")
    yield pytest.param("Pad", {"x": X}, [ints(1, 2), None, ints(1)], {"mode": "edge"}, id="pad edge")
    yield pytest.param("Pad", {"x": X, "p": ints(1, 2)}, [None, ints(1)], {}, id="pad computed")
    sizes = [None, np.array([1, 1, 2, 3], F)]
    yield pytest.param("Resize", {"x": X[None]}, sizes, {"antialias": 0, "mode": "linear"}, id="resize")
    yield pytest.param(
        "LpPool", {"x": X[None]}, [], {"kernel_shape": [2, 2], "dilations": [1, 1], "ceil_mode": 0}, id="pool"
    )
    for dtype in (F, np.float16):
        scale, zero = np.array([0.1, 0.2, 0.3], dtype), np.array([1, 0, 3], np.int8)
        yield pytest.param(
            "QuantizeLinear", {"x": X.astype(dtype)}, [scale, zero], {"axis": 1}, id=f"quantize {dtype.__name__}"
        )
        stored = random.integers(-128, 128, (2, 3, 4)).astype(np.int8)
        yield pytest.param(
            "DequantizeLinear", {"x": stored}, [scale, zero], {"axis": 1}, id=f"dequantize {dtype.__name__}"
        )


@pytest.mark.parametrize(("kind", "feeds", "constants", "attributes"), [*reduces(), *scatters(), *others()])
@pytest.mark.sample(12)
def test_older_operators_compute_the_same_values(kind, feeds, constants, attributes):
    model = model_of(kind, feeds, constants, **attributes)
    (expected,) = run(model, feeds)
    for opset in (15, 17):
        made = lowered(model, opset)
        assert made.opset_import[0].version == opset and made.ir_version == 8
        assert [output.name for output in made.graph.output] == ["y.0"]
        (found,) = run(made, feeds)
        assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
        limit = 2e-3 if expected.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(found.astype(float), expected.astype(float), rtol=limit, atol=limit)


def test_split_and_graphs_inside_of_nodes():
    feeds = {"x": X}
    model = model_of("Split", feeds, outputs=2, num_outputs=2, axis=2)
    assert [a.tolist() for a in run(lowered(model), feeds)] == [a.tolist() for a in run(model, feeds)]

    def branch(kind):
        node = helper.make_node(kind, ["x", "axes"], [f"{kind}.out"])
        return helper.make_graph(
            [node], kind, [], [helper.make_tensor_value_info(f"{kind}.out", TensorProto.FLOAT, None)]
        )

    choose = helper.make_node("If", ["c"], ["y"], then_branch=branch("ReduceMax"), else_branch=branch("ReduceL1"))
    graph = helper.make_graph(
        [choose], "g",
        [helper.make_tensor_value_info("c", TensorProto.BOOL, []), helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 1])], initializer=[numpy_helper.from_array(ints(0, 2), "axes")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", FROM)], ir_version=9)
    for c in (True, False):
        feeds = {"x": X, "c": np.array(c)}
        np.testing.assert_allclose(run(lowered(model), feeds)[0], run(model, feeds)[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("kind", "feeds", "attributes", "words"),
    [
        ("GridSample", {"x": X[None], "g": np.zeros((1, 2, 2, 2), F)}, {}, r"got GridSample x1 \(first y.0\)"),
        (
            "ReduceMax",
            {"x": X, "axes": ints(1)},
            {},
            "ReduceMax y.0: expected constant axes, as this opset has it, got computed",
        ),
        ("LpPool", {"x": X[None]}, {"kernel_shape": [2, 2], "ceil_mode": 1}, "expected no ceil_mode"),
        ("AveragePool", {"x": X[None]}, {"kernel_shape": [2, 2], "dilations": [1, 1]}, "AveragePool with dilations"),
        (
            "Resize",
            {"x": X[None], "r": np.zeros(8, F), "s": np.ones(4, F)},
            {"antialias": 1, "mode": "linear"},
            "no antialias",
        ),
        ("BitwiseAnd", {"a": ints(1), "b": ints(2)}, {}, "expected those of ONNX opset 15, got BitwiseAnd"),
    ],
)
def test_what_has_no_older_form_is_refused_by_name(kind, feeds, attributes, words):
    with pytest.raises(UnsupportedError, match=words):
        lowered(model_of(kind, feeds, **attributes))


def test_other_opsets_are_refused():
    for opset in (14, 18):
        with pytest.raises(ValueError, match=f"opset: expected 15 to 17, got {opset}"):
            lowered(model_of("Relu", {"x": X}), opset)
