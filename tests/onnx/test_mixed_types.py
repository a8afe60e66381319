"""From iOS 17 on the parameters of an operation may have another element type than x; ONNX has one for all."""

import numpy as np
import pytest

import milblob.onnx
from onnx_models import run, save

X = np.array([[[[-1.5, 0.5], [2.0, -0.25]], [[1.0, 3.0], [-2.0, 0.75]], [[0.5, -1.0], [1.5, 2.5]]]])
TWO = np.array([0.5, 2.0])
THREE = np.array([0.5, 2.0, 1.5])
MASK = np.array([[0.0, -1.0], [0.5, -2.0]])


def builder():
    from coremltools.converters.mil.mil import Builder as mb

    return mb


def channels(values):
    return values.reshape(3, 1, 1)


def normalized(x, axes, epsilon=0.5):
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + epsilon)


def attention(x):
    score = x @ x.swapaxes(-1, -2) / np.sqrt(2) + MASK
    weight = np.exp(score - score.max(-1, keepdims=True))
    return weight / weight.sum(-1, keepdims=True) @ x


# Operation: the parameters, what it is built with besides, and what it computes in NumPy.
CASES = {
    "inverse": ({"epsilon": 4.0}, {}, lambda x: 1 / (x + 4)),
    "log": ({"epsilon": 4.0}, {}, lambda x: np.log(x + 4)),
    "rsqrt": ({"epsilon": 4.0}, {}, lambda x: 1 / np.sqrt(x + 4)),
    "clamped_relu": ({"alpha": 0.5, "beta": 1.0}, {}, lambda x: np.minimum(np.where(x < 0, 0.5 * x, x), 1.0)),
    "elu": ({"alpha": 0.5}, {}, lambda x: np.where(x < 0, 0.5 * np.expm1(x), x)),
    "leaky_relu": ({"alpha": 0.5}, {}, lambda x: np.where(x < 0, 0.5 * x, x)),
    "linear_activation": ({"alpha": 0.5, "beta": 1.0}, {}, lambda x: 0.5 * x + 1.0),
    "prelu": ({"alpha": THREE}, {}, lambda x: np.where(x < 0, channels(THREE) * x, x)),
    "scaled_tanh": ({"alpha": 0.5, "beta": 2.0}, {}, lambda x: 0.5 * np.tanh(2.0 * x)),
    "sigmoid_hard": ({"alpha": 0.25, "beta": 0.5}, {}, lambda x: np.clip(0.25 * x + 0.5, 0, 1)),
    "softplus_parametric": (
        {"alpha": THREE, "beta": THREE},
        {},
        lambda x: channels(THREE) * np.log1p(np.exp(channels(THREE) * x)),
    ),
    "thresholded_relu": ({"alpha": 0.5}, {}, lambda x: np.where(x >= 0.5, x, 0)),
    "conv": (
        {"weight": np.ones((2, 3, 1, 1)) * 0.5, "bias": TWO},
        {},
        lambda x: np.repeat(x.sum(1, keepdims=True) * 0.5, 2, 1) + TWO.reshape(2, 1, 1),
    ),
    "conv_transpose": (
        {"weight": np.ones((3, 2, 1, 1)) * 0.5, "bias": TWO},
        {},
        lambda x: np.repeat(x.sum(1, keepdims=True) * 0.5, 2, 1) + TWO.reshape(2, 1, 1),
    ),
    "linear": ({"weight": np.ones((3, 2)) * 0.5, "bias": THREE}, {}, lambda x: x.sum(-1, keepdims=True) * 0.5 + THREE),
    "matmul": ({"y": np.ones((2, 3)) * 0.5}, {}, lambda x: np.repeat(x.sum(-1, keepdims=True) * 0.5, 3, -1)),
    "batch_norm": (
        {"mean": THREE, "variance": THREE, "gamma": THREE, "beta": THREE, "epsilon": 0.5},
        {},
        lambda x: (x - channels(THREE)) / np.sqrt(channels(THREE) + 0.5) * channels(THREE) + channels(THREE),
    ),
    "instance_norm": (
        {"gamma": THREE, "beta": THREE, "epsilon": 0.5},
        {},
        lambda x: normalized(x, (2, 3)) * channels(THREE) + channels(THREE),
    ),
    "l2_norm": (
        {"epsilon": 0.5},
        {},
        lambda x: x / np.sqrt((x**2).sum((1, 2, 3), keepdims=True) + 0.5),
    ),
    "layer_norm": (
        {"gamma": TWO, "beta": TWO, "epsilon": 0.5},
        {"axes": [-1]},
        lambda x: normalized(x, (-1,)) * TWO + TWO,
    ),
    "layer_norm of the channels": (
        {"gamma": THREE, "beta": THREE, "epsilon": 0.5},
        {"axes": [1]},
        lambda x: normalized(x, (1,)) * channels(THREE) + channels(THREE),
    ),
    "local_response_norm": (
        {"alpha": 0.5, "beta": 0.5, "k": 2.0},
        {"size": 1},
        lambda x: x / np.sqrt(2.0 + 0.5 * x**2),
    ),
    "scaled_dot_product_attention": ({"attn_mask": MASK}, {}, attention),
}


@pytest.mark.parametrize("kinds", [("float16", "float32"), ("float32", "float16")], ids="-".join)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.sample(8)
def test_parameters_of_another_element_type_than_x(name, kinds, tmp_path):
    parameters, others, expected = CASES[name]
    own, other = map(np.dtype, kinds)
    operation = name.partition(" ")[0]
    mixed = {key: np.asarray(value).astype(other)[()] for key, value in parameters.items()}
    feeds = {"x": X.astype(own)}
    if operation == "scaled_dot_product_attention":
        feeds["mask"] = mixed.pop("attn_mask")

    def build(x, mask=None):
        if mask is not None:
            return builder().scaled_dot_product_attention(query=x, key=x, value=x, attn_mask=mask)
        return getattr(builder(), operation)(x=x, **mixed, **others)

    package = save(tmp_path / "m.mlpackage", build, feeds, opset="iOS18")
    milblob.onnx.convert(package, tmp_path / "m.onnx")
    (found,) = run(tmp_path / "m.onnx", feeds).values()
    tolerance = 2e-3 if own == np.float16 else 2e-5
    np.testing.assert_allclose(found.astype(np.float64), expected(X), rtol=tolerance, atol=tolerance)
    assert found.dtype == own


def test_parameters_of_ios15_may_be_float16_beside_a_float32_x(tmp_path):
    """coremltools leaves out the cast of x then, and declares the float16 output that Core ML makes."""
    mb = builder()
    import coremltools as ct
    from coremltools.converters.mil.mil import Function, types
    from coremltools.converters.mil.mil.program import Program

    mean, variance = THREE.astype(np.float16), THREE[::-1].astype(np.float16)
    target, program = ct.target.iOS15, Program()
    with Function({"x": mb.placeholder(shape=X.shape, dtype=types.fp16)}, opset_version=target) as function:
        x = function.inputs["x"]
        made = [
            mb.batch_norm(x=x, mean=mean, variance=variance, epsilon=np.float16(0.5), name="a"),
            mb.batch_norm(x=x, mean=mean, variance=variance, gamma=variance, beta=mean, name="b"),
        ]
        function.set_outputs(made)
        program.add_function("main", function)
    options = {"source": "milinternal", "convert_to": "mlprogram", "minimum_deployment_target": target}
    path, single = tmp_path / "m.mlpackage", ct.precision.FLOAT32
    ct.convert(program, compute_precision=single, skip_model_load=True, **options).save(str(path))
    assert milblob.check(path).is_sound
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    a, b = run(tmp_path / "m.onnx", {"x": X.astype(np.float32)}).values()
    centred, squared, scale = X - channels(mean), channels(variance), channels(variance)
    np.testing.assert_allclose(a, centred / np.sqrt(squared + 0.5), atol=0.02)
    np.testing.assert_allclose(b, centred / np.sqrt(squared + 1e-5) * scale + channels(mean), atol=0.02)
