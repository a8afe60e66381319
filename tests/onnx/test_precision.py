"""precision="float32": nothing of a half-precision model is computed in float16, and it computes what it did."""

import json

import numpy as np
import pytest

from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])

import onnx
from coremltools.converters.mil import Builder as mb

import milblob
import milblob.onnx
from draws import restarts
from onnx_models import run, save

pytestmark = pytest.mark.filterwarnings("ignore")
HALF = onnx.TensorProto.FLOAT16
RANDOM = np.random.default_rng(3)
each_test_draws_the_same = restarts(RANDOM)
NETWORKS = {}


def network(**inputs):
    """Add a function of `inputs` (name -> shape) to the networks."""

    def add(make):
        NETWORKS[make.__name__] = make, inputs
        return make

    return add


def weights(*shape):
    """Numbers that half precision has, so that the twin in single precision has the same ones."""
    return (RANDOM.integers(-64, 64, shape) / 64).astype(np.float32)


WEIGHT, KERNEL = weights(48, 32), weights(8, 4, 3, 3)
RECURRENT = weights(32, 4), weights(32, 8)


def like(x, array):
    """A constant in the precision of a value."""
    from coremltools.converters.mil.mil import types

    return np.asarray(array).astype(types.nptype_from_builtin(x.dtype))


@network(x=(4, 32))
def layers(x):
    x = mb.linear(x=x, weight=like(x, WEIGHT), bias=like(x, WEIGHT[:, 0]))
    x = mb.layer_norm(x=mb.gelu(x=x), axes=[-1], epsilon=like(x, 1e-3))
    return mb.softmax(x=mb.clip(x=x, alpha=like(x, -1), beta=like(x, 1)), axis=-1)


@network(x=(1, 4, 8, 8))
def images(x):
    x = mb.conv(x=x, weight=like(x, KERNEL), pad_type="same")
    x = mb.max_pool(x=x, kernel_sizes=[2, 2], strides=[2, 2], pad_type="valid")
    x = mb.upsample_bilinear(x=x, scale_factor_height=2.0, scale_factor_width=2.0, align_corners=False)
    return mb.pad(x=x, pad=[1, 1], mode="constant", constant_val=like(x, 0.5))


@network(x=(2, 6))
def constants(x):
    count, place = mb.topk(x=x, k=2, axis=1)
    hot = mb.one_hot(indices=place, one_hot_vector_size=6, on_value=like(x, 2), off_value=like(x, -1))
    filled = mb.fill(shape=mb.shape(x=hot), value=like(x, 0.25))
    steps = mb.range_1d(start=like(x, 0), end=mb.reduce_sum(x=like(x, [2, 4])), step=like(x, 1))
    return mb.add(x=hot, y=filled), count, mb.mul(x=steps, y=mb.cast(x=mb.cast(x=x, dtype="int32"), dtype="fp16"))


@network(x=(6,))
def branches(x):
    is_large = mb.greater(x=mb.reduce_sum(x=x), y=like(x, 100))
    return mb.cond(
        pred=is_large,
        _true_fn=lambda: mb.mul(x=x, y=like(x, 2)),
        _false_fn=lambda: mb.add(
            x=mb.fill_like(ref_tensor=x, value=like(x, 0.5)), y=mb.cast(x=mb.round(x=x), dtype="fp16")
        ),
    )


@network(x=(3,))
def loops(x):
    def add(i, total):
        return mb.add(x=i, y=1), mb.add(x=total, y=mb.mul(x=x, y=like(x, 0.5)))

    return mb.while_loop(_cond=lambda i, total: mb.less(x=i, y=3), _body=add, loop_vars=(np.int32(0), x))[1]


@network(x=(3,))
def lists(x):
    made = mb.make_list(init_length=2, elem_shape=(3,), dtype="fp16", dynamic_length=False)
    made = mb.list_write(ls=made, index=1, value=mb.mul(x=x, y=like(x, 3)))
    return mb.list_gather(ls=made, indices=[1, 0])


@network(x=(5, 2, 4))
def sequences(x):
    options = {"initial_h": like(x, np.zeros((2, 8))), "initial_c": like(x, np.zeros((2, 8)))}
    ih, hh = (like(x, part) for part in RECURRENT)
    return mb.lstm(x=x, weight_ih=ih, weight_hh=hh, output_sequence=True, **options)[0]


@network(x=(2, 3))
def integers(x):
    scale = like(x, 0.5)
    stored = mb.quantize(input=x, scale=scale, zero_point=np.int8(3), output_dtype="int8")
    return mb.dequantize(input=stored, scale=scale, zero_point=np.int8(3))


def half_values(path):
    """Names of values that are float16; of initializers those that anything but a Cast to float32 reads."""
    model = onnx.shape_inference.infer_shapes(onnx.load(path, load_external_data=False), strict_mode=True)
    stored = {tensor.name for tensor in model.graph.initializer if tensor.data_type == HALF}
    found, pending = [], [model.graph]
    while pending:
        graph = pending.pop()
        values = [*graph.value_info, *graph.input, *graph.output]
        found += [one.name for one in values if one.type.tensor_type.elem_type == HALF]
        for node in graph.node:
            is_reader = node.op_type == "Cast" and node.attribute[0].i == onnx.TensorProto.FLOAT
            found += [name for name in node.input if name in stored and not is_reader]
            found += [node.op_type for one in node.attribute if one.name in ("to", "dtype") and one.i == HALF]
            found += [node.op_type for one in node.attribute if one.t.data_type == HALF]
            pending += [one.g for one in node.attribute if one.HasField("g")]
    return found


def numbers(shapes, dtype):
    return {
        name: (np.random.default_rng(5).integers(-32, 32, shape) / 16).astype(dtype) for name, shape in shapes.items()
    }


def compare(found, expected, limit):
    for name, array in found.items():
        assert array.dtype != np.float16
        other = expected[name].astype(np.float64)
        assert np.abs(array - other).max() <= limit * max(np.abs(other).max(), 1e-3), name


@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, tmp_path):
    make, shapes = NETWORKS[name]
    half = save(tmp_path / "half.mlpackage", make, numbers(shapes, np.float16), precision="fp16")
    milblob.onnx.convert(half, tmp_path / "half.onnx")
    assert half_values(tmp_path / "half.onnx")
    made = milblob.onnx.convert(half, tmp_path / "single.onnx", precision="float32")
    assert half_values(tmp_path / "single.onnx") == []
    assert all(value.dtype.name != "FLOAT16" for value in (*made.graph.inputs, *made.graph.outputs))
    found = run(tmp_path / "single.onnx", numbers(shapes, np.float32))
    compare(found, run(tmp_path / "half.onnx", numbers(shapes, np.float16)), 8e-3)
    compare(run(tmp_path / "single.onnx", numbers(shapes, np.float32), optimised=True), found, 2e-4)


@pytest.mark.parametrize("name", ["layers", "images", "sequences", "integers"])
def test_it_computes_what_the_same_network_in_single_precision_does(name, tmp_path):
    make, shapes = NETWORKS[name]
    half = save(tmp_path / "half.mlpackage", make, numbers(shapes, np.float16), precision="fp16")
    twin = save(tmp_path / "twin.mlpackage", make, numbers(shapes, np.float32))
    milblob.onnx.convert(half, tmp_path / "a.onnx", precision="float32")
    milblob.onnx.convert(twin, tmp_path / "b.onnx")
    feeds = numbers(shapes, np.float32)
    found, expected = run(tmp_path / "a.onnx", feeds), run(tmp_path / "b.onnx", feeds)
    compare(dict(zip("abc", found.values(), strict=False)), dict(zip("abc", expected.values(), strict=False)), 2e-5)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    make, shapes = NETWORKS["layers"]
    return save(tmp_path_factory.mktemp("m") / "m.mlpackage", make, numbers(shapes, np.float16), precision="fp16")


def test_half_weights_are_referenced_as_stored_and_refit_finds_no_change(package, tmp_path):
    path = package.parent / "m.onnx"
    milblob.onnx.convert(package, path, precision="float32", force=True)
    tensors = {one.name: one for one in onnx.load(path, load_external_data=False).graph.initializer}
    (large,) = (one for one in tensors.values() if list(one.dims) == [48, 32])
    assert large.data_type == HALF and "weight.bin" in large.external_data[0].value
    report = milblob.refit(package, path, dry_run=True)
    assert report.changes == [] and report.unused == ()


@pytest.mark.parametrize(("recipe", "opset"), [
    (milblob.Linear("int8"), 18), (milblob.Linear("int4", granularity="per_block", block=16), 21),
    (milblob.Palette(4), 21), (milblob.Prune(0.5), 21),
])  # fmt: skip
def test_compressed_weights(recipe, opset, tmp_path):
    make, shapes = NETWORKS["layers"]
    half = save(tmp_path / "m.mlpackage", make, numbers(shapes, np.float16), precision="fp16", opset="iOS18")
    small = milblob.compress(half, tmp_path / "small.mlpackage", recipe, scope=milblob.Scope(min_size=100)).output
    milblob.onnx.convert(small, tmp_path / "half.onnx", opset=opset)
    milblob.onnx.convert(small, tmp_path / "single.onnx", opset=opset, precision="float32")
    assert half_values(tmp_path / "single.onnx") == []
    found = run(tmp_path / "single.onnx", numbers(shapes, np.float32))
    compare(found, run(tmp_path / "half.onnx", numbers(shapes, np.float16)), 8e-3)


def test_states(tmp_path):
    def add(x, total):
        made = mb.add(x=mb.read_state(input=total), y=x)
        mb.coreml_update_state(state=total, value=made)
        return mb.mul(x=made, y=np.float16(0.5))

    feeds, state = {"x": np.ones(3, np.float16)}, {"total": np.ones(3, np.float16)}
    path = save(tmp_path / "m.mlpackage", add, feeds, precision="fp16", opset="iOS18", states=state)
    milblob.onnx.convert(path, tmp_path / "m.onnx", precision="float32")
    assert half_values(tmp_path / "m.onnx") == []
    session = milblob.Session(tmp_path / "m.onnx")
    assert session.states["total"].dtype == np.float32
    (first,), (second,) = (session.predict({"x": np.ones(3, np.float32)}).values() for _ in range(2))
    assert (first.tolist(), second.tolist()) == ([0.5] * 3, [1.0] * 3)


def test_an_optional_input_of_half_precision(tmp_path):
    import coremltools as ct

    path = save(
        tmp_path / "m.mlpackage",
        lambda x, y: mb.add(x=x, y=y),
        numbers({"x": (2,), "y": (2,)}, np.float16),
        precision="fp16",
    )
    model = ct.utils.load_spec(str(path))
    (given,) = (one for one in model.description.input if one.name == "y")
    given.type.isOptional, given.type.multiArrayType.floatDefaultValue = True, 0.25
    ct.utils.save_spec(model, str(tmp_path / "n.mlpackage"), weights_dir=str(path / "Data/com.apple.CoreML/weights"))
    milblob.onnx.convert(tmp_path / "n.mlpackage", tmp_path / "n.onnx", precision="float32")
    assert half_values(tmp_path / "n.onnx") == []
    (found,) = run(tmp_path / "n.onnx", {"x": np.ones(2, np.float32)}).values()
    assert found.tolist() == [1.25, 1.25]
    assert milblob.refit(tmp_path / "n.mlpackage", tmp_path / "n.onnx", dry_run=True).unused == ()


def test_a_model_of_single_precision_is_the_same(tmp_path):
    path = save(tmp_path / "m.mlpackage", NETWORKS["layers"][0], numbers({"x": (4, 32)}, np.float32))
    for name, options in (("a.onnx", {}), ("b.onnx", {"precision": "float32"})):
        milblob.onnx.convert(path, tmp_path / name, weights="embed", **options)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_the_command_and_its_errors(cli, package):
    out = package.parent / "cli.onnx"
    _, found, _ = cli("to-onnx", package, "-o", out, "--precision", "float32", "--json")
    assert json.loads(found)["precision"] == "float32" and half_values(out) == []
    assert (
        "--precision: expected none with --coverage" in cli("to-onnx", package, "--coverage", "--precision", "keep")[2]
    )
    with pytest.raises(ValueError, match="precision: expected one of keep, float32, got 'float16'"):
        milblob.onnx.convert(package, precision="float16")
