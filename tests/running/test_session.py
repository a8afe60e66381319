"""`milblob.Session`: what a user gives and gets, states between calls, pipelines; nothing copied, nothing written."""

import json
import os
import shutil
import subprocess
import sys
import threading

import numpy as np
import pytest
from PIL import Image

import milblob
import milblob.onnx
from children import child_environment
from draws import restarts
from milblob import Session
from onnx_models import run, save
from paths import DATA, ROOT

DEMO = ROOT / "examples" / "demo.mlpackage"
TOKENS = np.arange(16, dtype=np.int32)[None] * 5
RANDOM = np.random.default_rng(0)
each_test_draws_the_same = restarts(RANDOM)


def mb():
    from coremltools.converters.mil.mil import Builder

    return Builder


@pytest.fixture(scope="module")
def sums(tmp_path_factory):
    """x + y, where y is 7 unless it is given; floats and integers."""
    import coremltools as ct

    kinds = [ct.TensorType(name="x", shape=(3,)), ct.TensorType(name="n", shape=(3,), dtype=np.int32)]
    kinds.append(ct.TensorType(name="y", shape=(3,), default_value=np.full(3, 7, np.float32)))
    inputs = {"x": np.zeros(3, np.float32), "n": np.zeros(3, np.int32), "y": np.zeros(3, np.float32)}

    def build(x, n, y):
        return mb().add(x=x, y=y, name="sum"), mb().add(x=n, y=np.int32(1), name="next")

    return save(tmp_path_factory.mktemp("sums") / "m.mlpackage", build, inputs, inputs=kinds)


def test_it_computes_what_the_converted_file_does(tmp_path):
    package = shutil.copytree(DEMO, tmp_path / "demo.mlpackage")
    milblob.onnx.convert(package, tmp_path / "demo.onnx")
    expected = run(tmp_path / "demo.onnx", {"tokens": TOKENS}, prepacked=False)["logits"]
    before = sorted(tmp_path.rglob("*"))
    with milblob.open(package) as model:
        from_model = Session(model)
    for session in (Session(package), from_model, Session(tmp_path / "demo.onnx"), Session(str(package), threads=1)):
        assert {name: str(one) for name, one in session.inputs.items()} == {"tokens": "int32 [1, 16]"}
        assert list(session.outputs) == ["logits"]
        np.testing.assert_array_equal(session.predict({"tokens": TOKENS})["logits"], expected)
    fast = Session(package, optimize=True).predict({"tokens": TOKENS})["logits"]
    np.testing.assert_allclose(fast, expected, atol=0.1)
    assert sorted(tmp_path.rglob("*")) == before


def test_each_operation_is_rounded_where_that_is_asked_for(tmp_path):
    """As NumPy rounds them, also in a nested block; otherwise what is too large for float16 in between is not seen."""
    half, large = np.float16, np.float16(300)

    def build(x, n):
        left = mb().mul(x=mb().mul(x=x, y=large), y=large, name="grown")
        grown = mb().mul(x=left, y=half(1 / 300), name="shrunk")
        nested = mb().cond(
            pred=mb().squeeze(x=mb().greater(x=n, y=half(0))),
            _true_fn=lambda: mb().exp(x=mb().sin(x=x)),
            _false_fn=lambda: x,
            name="nested",
        )
        return grown, nested

    import coremltools as ct

    values = {"x": np.linspace(-2, 2, 64).astype(half), "n": np.ones(1, half)}
    kinds = [ct.TensorType(name, array.shape, half) for name, array in values.items()]
    outputs = [ct.TensorType(name, dtype=half) for name in ("shrunk", "nested")]
    path = save(tmp_path / "m.mlpackage", build, values, inputs=kinds, outputs=outputs)
    with np.errstate(over="ignore"):
        grown = values["x"] * large * large * half(1 / 300)
    nested = np.exp(np.sin(values["x"].astype(np.float32)).astype(half).astype(np.float32)).astype(half)
    found = Session(path, round_each=True).predict(values)
    np.testing.assert_array_equal(found["shrunk"], grown)
    np.testing.assert_array_equal(found["nested"], nested)
    assert np.isinf(grown).any() and not np.isinf(Session(path).predict(values)["shrunk"]).any()
    with pytest.raises(ValueError, match="round_each: expected False with optimize"):
        Session(path, optimize=True, round_each=True)
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    with pytest.raises(ValueError, match=r"round_each: expected False for an \.onnx file"):
        Session(tmp_path / "m.onnx", round_each=True)


def test_packages_reached_through_symbolic_links_run(tmp_path):
    """As in a cache of downloads, where each file is a link to a blob elsewhere."""
    package = shutil.copytree(DEMO, tmp_path / "demo.mlpackage")
    expected = Session(package).predict({"tokens": TOKENS})["logits"]
    (tmp_path / "link.mlpackage").symlink_to(package)
    np.testing.assert_array_equal(Session(tmp_path / "link.mlpackage").predict({"tokens": TOKENS})["logits"], expected)
    os.link(next(package.rglob("weight.bin")), tmp_path / "second name")
    np.testing.assert_array_equal(Session(package).predict({"tokens": TOKENS})["logits"], expected)


@pytest.mark.parametrize("how", ["replaced", "removed"])
def test_a_weight_file_that_is_replaced_later_is_not_read(tmp_path, how):
    """The open model goes on with the file that it opened, and so does its session."""
    package = shutil.copytree(DEMO, tmp_path / "demo.mlpackage")
    expected = Session(package).predict({"tokens": TOKENS})["logits"]
    weight = next(package.rglob("weight.bin"))
    with milblob.open(package) as model:
        model["head_weight"].read()
        contents = weight.read_bytes()
        weight.unlink()
        if how == "replaced":
            weight.write_bytes(bytes(len(contents)))
        np.testing.assert_array_equal(Session(model).predict({"tokens": TOKENS})["logits"], expected)


def test_a_model_in_memory_runs():
    with milblob.open(DATA / "immediates" / "model.mlmodel") as model:
        expected = Session(model).predict({"x": [1]})
    with milblob.open((DATA / "immediates" / "model.mlmodel").read_bytes()) as model:
        found = Session(model).predict({"x": [1]})
    assert list(found) == list(expected)
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value)


# ------------------------------------------------------------------------------------------------------- what is given


def test_dtypes_are_cast_where_no_harm_is_done(sums):
    session, n = Session(sums), np.zeros(3, np.int32)
    exact = np.array([1, 2, 3], np.float32)
    for dtype in ("float64", "float32", "float16", "int64", "int8", "uint32", "bool"):
        x = exact.astype(dtype)
        np.testing.assert_array_equal(session.predict({"x": x, "n": n})["sum"], x.astype(np.float32) + 7)
    assert session.predict({"x": [1, 2, 3], "n": [True, False, True]})["next"].tolist() == [2, 1, 2]
    for dtype in ("int64", "uint64", "int8", "uint16"):
        assert session.predict({"x": exact, "n": np.array([4, 5, 6], dtype)})["next"].tolist() == [5, 6, 7]
    rounded = session.predict({"x": np.full(3, 1 / 3), "n": n, "y": np.zeros(3)})["sum"]
    np.testing.assert_array_equal(rounded, np.full(3, 1 / 3, np.float32))
    odd = session.predict({"x": np.array([np.nan, np.inf, -np.inf]), "n": n})["sum"]
    np.testing.assert_array_equal(odd, np.array([np.nan, np.inf, -np.inf], np.float32))


WRONG = {
    "a shape": ({"x": np.zeros(4, np.float32)}, "input x: expected float32 [3], got the shape [4]"),
    "a rank": ({"x": np.zeros((1, 3), np.float32)}, "input x: expected float32 [3], got the shape [1, 3]"),
    "floats as integers": ({"n": np.zeros(3)}, "input n: expected int32 [3], got float64"),
    "texts": ({"x": ["a", "b", "c"]}, "input x: expected float32 [3], got <U1"),
    "complex numbers": ({"x": np.zeros(3, complex)}, "input x: expected float32 [3], got complex128"),
    "too large a float": (
        {"x": np.array([0, 1e300, 0])},
        "input x: expected float32 [3], got float64 with 1e+300, which float32 cannot hold",
    ),
    "too large an integer": (
        {"n": np.array([0, 1 << 31, 0])},
        "input n: expected int32 [3], got int64 with 2147483648, which int32 cannot hold",
    ),
    "a negative one": (
        {"n": np.array([1 << 63, 0, 0], np.uint64)},
        "input n: expected int32 [3], got uint64 with 9223372036854775808, which int32 cannot hold",
    ),
    "an image": ({"x": Image.new("L", (3, 1))}, "input x: expected float32 [3], got an image"),
    "another name": (
        {"z": np.zeros(3)},
        "inputs: expected x (float32 [3]), n (int32 [3]), y (float32 [3] optional); got the unknown 'z'",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_is_refused_in_one_line(sums, what):
    session = Session(sums)
    given, words = WRONG[what]
    with pytest.raises(ValueError) as caught:
        session.predict({"x": np.zeros(3, np.float32), "n": np.zeros(3, np.int32)} | given)
    assert str(caught.value) == words


def test_what_is_missing_is_listed(sums):
    words = "inputs: expected x (float32 [3]), n (int32 [3]), y (float32 [3] optional); got no x, n"
    with pytest.raises(ValueError) as caught:
        Session(sums).predict({"y": np.zeros(3)})
    assert str(caught.value) == words
    with pytest.raises(TypeError, match="inputs: expected arrays by name of input, got list"):
        Session(sums).predict([1, 2, 3])


def test_shapes_that_are_enumerated(tmp_path):
    import coremltools as ct

    shapes = [(1, 4, 6), (1, 8, 6), (1, 2, 6)]
    kind = ct.TensorType(name="x", shape=ct.EnumeratedShapes(shapes))
    path = save(
        tmp_path / "m.mlpackage",
        lambda x: mb().reduce_max(x=x, axes=[1], name="most"),
        {"x": ((1, None, 6), np.float32)},
        inputs=[kind],
    )
    session = Session(path)
    for shape in shapes:
        x = RANDOM.normal(size=shape).astype(np.float32)
        np.testing.assert_array_equal(session.predict({"x": x})["most"], x.max(1))
    with pytest.raises(ValueError, match=r"expected float32 \[1, \d, 6\] or .*, got the shape \[1, 3, 6\]"):
        session.predict({"x": np.zeros((1, 3, 6))})
    assert milblob.verify(path, path).runs == 4
    assert milblob.verify(path, path).is_same


def test_shapes_with_ranges_at_both_ends(tmp_path):
    import coremltools as ct

    kind = ct.TensorType(name="x", shape=(ct.RangeDim(2, 9, 4), 3))
    path = save(
        tmp_path / "m.mlpackage",
        lambda x: mb().reduce_sum(x=x, axes=[0], name="sum"),
        {"x": ((None, 3), np.float32)},
        inputs=[kind],
    )
    session = Session(path)
    for size in (2, 4, 9):
        np.testing.assert_array_equal(session.predict({"x": np.ones((size, 3))})["sum"], np.full(3, size))
    for size in (1, 10):
        with pytest.raises(ValueError) as caught:
            session.predict({"x": np.ones((size, 3))})
        assert str(caught.value) == f"input x: expected float32 [2 to 9, 3], got the shape [{size}, 3]"
    sizes = {run["x"].shape for run in milblob.running.samples.random_runs([session], None, 0)}
    assert {(2, 3), (9, 3)} < sizes


def test_ranges_of_a_compiled_model(tmp_path):
    """Core ML's compiler writes them into an attribute of the function, whose type leaves lengths open; check accepts it.

    metadata.json states a default shape, which fixes nothing.
    """
    model = shutil.copytree(DATA / "flexible" / "model.mlmodelc", tmp_path / "m.mlmodelc")
    assert str(Session(model).inputs["x"]) == "float32 [1, ?, 12]"
    attribute = (
        "[FlexibleShapeInformation = tuple<tuple<string, dict<string, tensor<int32, [?]>>>, "
        "tuple<string, dict<string, list<tensor<int32, [2]>, ?>>>>"
        '((("DefaultShapes", {{"x", [1, 4, 12]}}), ("RangeDims", {{"x", [[1, 1], [2, 9], [12, 12]]}})))] {'
    )
    text = (model / "model.mil").read_text("utf-8")
    head = "(tensor<fp32, [1, ?, 12]> x) {"
    assert text.count(head) == 1
    (model / "model.mil").write_text(text.replace(head, head.replace("{", attribute)), "utf-8")
    assert [finding for finding in milblob.check(model) if finding.severity == "error"] == []
    session = Session(model)
    assert str(session.inputs["x"]) == "float32 [1, 2 to 9, 12]"
    for size in (2, 9):
        assert session.predict({"x": np.ones((1, size, 12))})
    with pytest.raises(ValueError, match=r"expected float32 \[1, 2 to 9, 12\], got the shape \[1, 10, 12\]"):
        session.predict({"x": np.ones((1, 10, 12))})
    sizes = {run["x"].shape[1] for run in milblob.running.samples.random_runs([session, session], None, 0)}
    assert {2, 9} <= sizes


# --------------------------------------------------------------------------------------------------------------- images


def images(tmp_path, color, channels):
    """A model that passes an image through: one from 0 to 255 in, the same out."""
    import coremltools as ct

    shape = (1, channels, 4, 6)
    kind = ct.ImageType(name="photo", shape=shape, color_layout=color)
    dtype = np.float16 if color == ct.colorlayout.GRAYSCALE_FLOAT16 else np.float32
    path = save(
        tmp_path / "m.mlpackage",
        lambda photo: mb().mul(x=photo, y=dtype(1), name="copy"),
        {"photo": np.zeros(shape, dtype)}, precision="fp16" if dtype is np.float16 else "fp32", inputs=[kind],
    )  # fmt: skip
    spec = ct.utils.load_spec(str(path))
    spec.description.output[0].type.CopyFrom(spec.description.input[0].type)
    model = ct.models.MLModel(spec, weights_dir=str(path / "Data/com.apple.CoreML/weights"), skip_model_load=True)
    model.save(str(tmp_path / "images.mlpackage"))
    return tmp_path / "images.mlpackage"


@pytest.mark.parametrize("name", ["RGB", "BGR", "GRAYSCALE", "GRAYSCALE_FLOAT16"])
def test_images_go_in_and_come_out(tmp_path, name):
    import coremltools as ct

    channels = 3 if name in ("RGB", "BGR") else 1
    path = images(tmp_path, getattr(ct.colorlayout, name), channels)
    session = Session(path)
    assert session.inputs["photo"].color_space == session.outputs["copy"].color_space == name
    if channels == 3:
        pixels = RANDOM.integers(0, 256, (4, 6, 3), np.uint8)
        photo, planes = Image.fromarray(pixels), pixels[..., :: 1 if name == "RGB" else -1].transpose(2, 0, 1)[None]
    elif name == "GRAYSCALE":
        pixels = RANDOM.integers(0, 256, (4, 6), np.uint8)
        photo, planes = Image.fromarray(pixels), pixels[None, None]
    else:
        pixels = RANDOM.random((4, 6)).astype(np.float16).astype(np.float32)
        photo, planes = Image.fromarray(pixels), pixels[None, None]
    copy = session.predict({"photo": photo})["copy"]
    assert copy.mode == photo.mode
    np.testing.assert_array_equal(np.asarray(copy), pixels)
    np.testing.assert_array_equal(session.predict({"photo": photo}, raw=True)["copy"], planes)
    np.testing.assert_array_equal(np.asarray(session.predict({"photo": planes})["copy"]), pixels)  # an array does too
    with pytest.raises(ValueError) as caught:
        session.predict({"photo": photo.resize((5, 4))})
    assert f"expected {session.inputs['photo']}, got an image 5 wide and 4 high; resize it first" in str(caught.value)
    with pytest.raises(ValueError, match=r"got CMYK; image\.convert\(.* makes one"):
        session.predict({"photo": Image.new("CMYK", (6, 4))})


def test_an_image_with_alpha_loses_it(tmp_path):
    import coremltools as ct

    session = Session(images(tmp_path, ct.colorlayout.BGR, 3))
    pixels = RANDOM.integers(0, 256, (4, 6, 4), np.uint8)
    found = np.asarray(session.predict({"photo": Image.fromarray(pixels)})["copy"])
    np.testing.assert_array_equal(found, pixels[..., :3])


def test_pixels_beyond_their_range_are_clipped(tmp_path):
    import coremltools as ct

    session = Session(images(tmp_path, ct.colorlayout.GRAYSCALE, 1))
    values = np.zeros((1, 1, 4, 6), np.float32)
    values[0, 0, 0] = [-3, 0.4, 0.6, 254.6, 300, np.nan]
    assert np.asarray(session.predict({"photo": values})["copy"])[0].tolist() == [0, 0, 1, 255, 255, 0]


# ---------------------------------------------------------------------------------------------------------- classifiers


@pytest.mark.parametrize("name", ["classifier_strings", "classifier_integers"])
def test_classifiers_give_labels_and_probabilities(tmp_path, name):
    """Labels of texts and of 64 bits, from a package, its compiled form, and .onnx files of both kinds."""
    package = DATA / name / "model.mlpackage"
    with milblob.open(package) as model:
        (classify,) = model.find(type="classify")
        labels = list(classify.inputs["classes"][0].value.read())
    labels = [label if isinstance(label, str) else int(label) for label in labels]
    assert "integers" not in name or max(labels) > 1 << 32
    x = np.array([[0.5, -1, 2, 0.25]], np.float32)
    paths = [package, package.with_suffix(".mlmodelc"), tmp_path / "plain.onnx", tmp_path / "zipped.onnx"]
    milblob.onnx.convert(package, paths[2], weights="copy")
    milblob.onnx.convert(package, paths[3], weights="copy", zipmap=True)
    expected = run(paths[2], {"x": x}, prepacked=False)["classLabel_probs"].reshape(-1)
    for path in paths:
        session = Session(path)
        found = session.predict({"x": x})
        assert list(found) == ["classLabel", "classLabel_probs"]
        assert found["classLabel"] == labels[int(expected.argmax())] and type(found["classLabel"]) is type(labels[0])
        assert list(found["classLabel_probs"]) == labels
        np.testing.assert_array_equal(list(found["classLabel_probs"].values()), expected)
        raw = session.predict({"x": x}, raw=True)
        assert raw["classLabel"].tolist() == [found["classLabel"]]
        np.testing.assert_array_equal(raw["classLabel_probs"].reshape(-1), expected)
        assert milblob.verify(package, path).is_same


# --------------------------------------------------------------------------------------------------------------- states


@pytest.fixture(scope="module")
def cached(tmp_path_factory):
    """Attention of one head with a cache of keys and values, the mathematics of a language model's step."""
    random = np.random.default_rng(1)
    weights = {name: random.normal(size=(8, 8)).astype(np.float16) / 3 for name in "qkvo"}

    def build(x, place, keys, values):
        q, k, v = (mb().linear(x=x, weight=weights[name]) for name in "qkv")
        end = mb().add(x=place, y=np.int32(1))
        kept = []
        for state, row in ((keys, k), (values, v)):
            begin = mb().concat(values=[place, [0]], axis=0)
            stop = mb().concat(values=[end, [8]], axis=0)
            old = mb().read_state(input=state)
            new = mb().slice_update(x=old, update=row, begin=begin, end=stop)
            kept.append(mb().coreml_update_state(state=state, value=new))
        scores = mb().mul(x=mb().matmul(x=q, y=kept[0], transpose_y=True), y=np.float16(8**-0.5))
        rows = mb().const(val=np.arange(40, dtype=np.int32)[None])
        is_seen = mb().less_equal(x=rows, y=place)
        weight = mb().softmax(x=mb().select(cond=is_seen, a=scores, b=np.float16(-1e4)), axis=-1)
        return mb().linear(x=mb().matmul(x=weight, y=kept[1]), weight=weights["o"], name="out")

    zeros = np.zeros((40, 8), np.float16)
    inputs = {"x": np.zeros((1, 8), np.float16), "place": np.zeros(1, np.int32)}
    states = {"keys": zeros, "values": zeros}
    path = tmp_path_factory.mktemp("cached") / "m.mlpackage"
    return save(path, build, inputs, opset="iOS18", precision="fp16", states=states), weights


def attention(weights, xs):
    """The same over a whole sequence at once, in double precision."""
    q, k, v, o = (weights[name].astype(np.float64).T for name in "qkvo")
    scores = (xs @ q) @ (xs @ k).T * 8**-0.5
    scores[np.triu_indices(len(xs), 1)] = -np.inf
    weight = np.exp(scores - scores.max(1, keepdims=True))
    return (weight / weight.sum(1, keepdims=True)) @ (xs @ v) @ o


def test_a_cache_is_kept_for_32_steps(cached):
    path, weights = cached
    session = Session(path)
    xs = RANDOM.normal(size=(32, 8)).astype(np.float16)
    expected = attention(weights, xs.astype(np.float64))
    state = session.make_state()
    for step, x in enumerate(xs):
        found = session.predict({"x": x[None], "place": [step]}, state)["out"][0]
        kept = session.predict({"x": x[None], "place": [step]})["out"][0]  # in session.states
        np.testing.assert_array_equal(found, kept)
        np.testing.assert_allclose(found, expected[step], atol=8e-3 * np.abs(expected).max())
    np.testing.assert_array_equal(state["keys"], session.states["keys"])
    assert (state["keys"][:32] != 0).any() and (state["keys"][32:] == 0).all()


def test_states_of_a_model_without_any_are_refused():
    with pytest.raises(KeyError, match="the model has no state 'cache'"):
        Session(DEMO).make_state({"cache": 1})


def test_states_are_read_written_and_given(cached):
    session = Session(cached[0])
    x = {"x": np.ones((1, 8), np.float16), "place": [3]}
    session.predict(x)
    kept = {name: array.copy() for name, array in session.states.items()}
    first = session.predict(x | {"place": [4]})["out"]
    other = Session(cached[0], states=kept)
    np.testing.assert_array_equal(other.predict(x | {"place": [4]})["out"], first)
    state = session.make_state(kept)
    assert sorted(state) == ["keys", "values"] and len(state) == 2
    np.testing.assert_array_equal(session.predict(x | {"place": [4]}, state)["out"], first)
    state["keys"] = np.zeros((40, 8))
    state.write_state("values", np.ones((40, 8), np.float32))
    assert state.read_state("values").dtype == np.float16
    assert (state["keys"] == 0).all()
    for wrong, words in (
        (
            lambda: state.__setitem__("keys", np.zeros((40, 9))),
            r"state keys: expected float16 \[40, 8\], got the shape",
        ),
        (lambda: session.predict(x, Session(DEMO).make_state()), "state: expected one of this model, with keys "),
        (lambda: session.make_state({"queries": 0}), "the model has no state 'queries' .it has keys, values"),
        (lambda: session.predict(x, {}), "state: expected what make_state returned, got dict"),
    ):
        with pytest.raises((ValueError, KeyError, TypeError), match=words):
            wrong()


def test_a_run_that_fails_leaves_the_states_as_they_were(tmp_path):
    table = np.arange(30, dtype=np.float16).reshape(10, 3)

    def build(row, last):
        new = mb().coreml_update_state(state=last, value=mb().gather(x=table, indices=row, axis=0))
        return mb().identity(x=new, name="out")

    states = {"last": np.zeros((1, 3), np.float16)}
    path = save(tmp_path / "m.mlpackage", build, {"row": np.zeros(1, np.int32)}, opset="iOS18", states=states)
    session = Session(path)
    session.predict({"row": [4]})
    with pytest.raises(milblob.MilblobError, match="onnxruntime: expected inputs that it can compute with") as caught:
        session.predict({"row": [1000]})
    assert "\n" not in str(caught.value) and caught.value.code == "runtime"
    np.testing.assert_array_equal(session.states["last"], table[4:5])


def test_threads_may_predict_at_once(cached):
    path, weights = cached
    session = Session(path, threads=1)
    xs = RANDOM.normal(size=(6, 12, 8)).astype(np.float16)
    found = np.zeros((6, 12, 8), np.float16)

    def one(number):
        state = session.make_state()
        for step in range(12):
            found[number, step] = session.predict({"x": xs[number, step][None], "place": [step]}, state)["out"][0]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    for number in range(6):
        expected = attention(weights, xs[number].astype(np.float64))
        np.testing.assert_allclose(found[number], expected, atol=8e-3 * np.abs(expected).max())


# ---------------------------------------------------------------------------------------- several functions and models


def test_each_function_of_a_package_runs(tmp_path):
    package = DATA / "functions" / "model.mlpackage"
    with milblob.open(package) as model:
        names = list(model.functions)
    x = RANDOM.normal(size=(1, 12)).astype(np.float32)
    found = {name: Session(package, function=name).predict({"x": x}) for name in names}
    for name in names:
        milblob.onnx.convert(package, tmp_path / f"{name}.onnx", function=name, weights="copy")
        # A session leaves weights unpacked; the kernels for packed ones add in another order, and round otherwise.
        for output, value in run(tmp_path / f"{name}.onnx", {"x": x}, prepacked=False).items():
            np.testing.assert_array_equal(found[name][output], value)
    first, second = (next(iter(found[name].values())) for name in names[:2])
    assert not np.array_equal(first, second)
    with pytest.raises(KeyError, match=f"no function 'gamma' .it has {', '.join(names)}"):
        Session(package, function="gamma")
    with pytest.raises(ValueError, match=r"function: expected none of an \.onnx file"):
        Session(tmp_path / f"{names[0]}.onnx", function=names[0])


def test_several_functions_without_a_default_must_be_chosen_from():
    compiled = DATA / "functions" / "model.mlmodelc"
    with pytest.raises(
        KeyError, match=r"function: expected one of alpha, beta .*, got none, and .*\.mlmodelc has no default"
    ):
        Session(compiled)
    assert Session(compiled, function="alpha").inputs


@pytest.mark.parametrize("kind", ["mlpackage", "mlmodelc"])
def test_the_models_of_a_pipeline_run_in_turn(kind):
    package = DATA / "pipeline" / f"model.{kind}"
    x = RANDOM.normal(size=(1, 12)).astype(np.float32)
    session = Session(package)
    with milblob.open(package) as model:
        values = {"x": x}
        for name in model.functions:
            part = Session(model, function=name)
            values |= part.predict({name: values[name] for name in part.inputs})
        wanted = [feature.name for feature in model.metadata.outputs]
    found = session.predict({"x": x})
    assert list(found) == wanted
    for name in wanted:
        np.testing.assert_array_equal(found[name], values[name])


def test_a_pipeline_with_another_kind_of_model_is_refused_by_name():
    with pytest.raises(milblob.UnsupportedError, match=r"got also model1/model1 \(neuralNetwork\)"):
        Session(DATA / "nested_pipeline" / "model.mlmodel")


# -------------------------------------------------------------------------------------------------------------- errors


def test_without_onnxruntime_the_message_names_the_extra(tmp_path):
    code = "import sys; sys.modules['onnxruntime'] = None\nimport milblob\nmilblob.verify(sys.argv[1], sys.argv[1])"
    found = subprocess.run(
        [sys.executable, "-c", code, DEMO], env=child_environment(), capture_output=True, text=True, check=False
    )
    words = "ImportError: onnxruntime is not installed; run: pip install onnxruntime (milblob's extra onnx-run installs all that is needed)"
    assert found.stderr.splitlines()[-1] == words


def test_what_cannot_be_opened_is_refused(tmp_path):
    with pytest.raises(milblob.UnsupportedError, match="expected an ML Program or a pipeline of them, got a neural"):
        Session(DATA / "neural_network" / "model.mlmodel")
    with pytest.raises(FileNotFoundError):
        Session(tmp_path / "none.onnx")
    for data, words in ((b"nothing", "one that protobuf reads"), (b"\x08\x0a", "a model that it can open, got")):
        (tmp_path / "bad.onnx").write_bytes(data)
        with pytest.raises(milblob.MilblobError, match=words) as caught:
            Session(tmp_path / "bad.onnx")
        assert "\n" not in str(caught.value)
    with pytest.raises(ValueError, match="threads: expected 1 or more, got 0"):
        Session(DEMO, threads=0)


@pytest.mark.parametrize("key", ["states", "images", "shapes", "classifier", "classes"])
@pytest.mark.parametrize(
    "text",
    [
        "no JSON", "[]", "5", '{"x": 5}', '{"x": {"input": 5, "output": []}}', "null", "[" * 100_000, "9" * 10_000,
        '{"x": {"ranges": [[1e400, 1]]}}', '{"x": {"ranges": [[1, "a"]]}}', '{"x": {"ranges": [[1.5, 2]]}}',
        '{"x": {"enumerated": [[1e400]]}}', '{"x": {"enumerated": [[-2]]}}', '{"x": {"enumerated": ["12"]}}',
    ],
)  # fmt: skip
def test_metadata_by_another_hand_end_in_our_errors(tmp_path, key, text):
    """Or are of no consequence."""
    import onnx
    from onnx import helper

    ends = [helper.make_tensor_value_info(end, 1, [2]) for end in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    other = '{"label": "x", "probabilities": "y"}' if key == "classes" else "{}"
    helper.set_model_props(
        model, {f"milblob.{key}": text} | ({"milblob.classifier": other} if key == "classes" else {})
    )
    onnx.save(model, tmp_path / "m.onnx")
    try:
        found = Session(tmp_path / "m.onnx").predict({"x": [-1, 2]})
    except milblob.MilblobError as error:
        assert "\n" not in str(error)
    else:
        assert len(found) <= 1


@pytest.mark.parametrize("text", ["[1]", '["one", "another"]', '["a", "b", "c"]'])
def test_labels_by_another_hand_end_in_our_errors(tmp_path, text):
    """Those of a dictionary of probabilities."""
    import onnx

    package = ROOT / "tests/data/classifier_strings/model.mlpackage"
    milblob.onnx.convert(package, tmp_path / "m.onnx", weights="embed", zipmap=True)
    model = onnx.load(tmp_path / "m.onnx")
    for entry in model.metadata_props:
        if entry.key == "milblob.classes":
            entry.value = text
    onnx.save(model, tmp_path / "t.onnx")
    session = Session(tmp_path / "t.onnx")
    with pytest.raises(milblob.UnsupportedError, match=r"milblob\.classes"):
        session.predict({name: np.ones([n or 1 for n in one.shape], one.dtype) for name, one in session.inputs.items()})


def test_a_closed_session_raises_an_error_that_names_it():
    with Session(DEMO) as session:
        pass
    with pytest.raises(ValueError, match="operation on closed session"):
        session.predict({"tokens": TOKENS})


def test_a_session_that_is_closed_while_it_predicts(sums):
    """As by another thread: the prediction that has begun ends as if nothing had happened."""
    session = Session(sums)

    class Closing(dict):
        def items(self):
            session.close()
            return super().items()

    given = {"x": np.ones(3, np.float32), "n": np.zeros(3, np.int32)}
    found = session.predict(Closing(given))
    assert np.array_equal(found["sum"], [8, 8, 8]) and np.array_equal(found["next"], [1, 1, 1])
    with pytest.raises(ValueError, match="^operation on closed session$"):
        session.predict(given)


def test_options_of_another_kind_are_refused_by_name(sums):
    session, given = Session(sums), {"x": np.ones(3, np.float32), "n": np.zeros(3, np.int32)}
    odd = np.array([])
    for call, words in (
        (lambda: session.predict(given, raw="no"), "raw: expected True or False, got 'no'"),
        (lambda: session.predict(given, weights=odd), "weights: expected arrays by name of weight, got ndarray"),
        (lambda: Session(sums, providers=None), "providers: expected a list of names, got NoneType"),
        (lambda: Session(sums, providers="CPUExecutionProvider"), "providers: expected a list of names, got str"),
        (lambda: milblob.verify(sums, sums, max_error="1"), "max_error: expected a number, got str"),
        (lambda: milblob.verify(sums, sums, max_error=odd), "max_error: expected a number, got ndarray"),
        *[
            (lambda call=call, value=value: call(sums, function=value), f"function: expected a name, got {kind}")
            for call in (Session, milblob.onnx.convert, milblob.onnx.coverage, milblob.onnx.decoded)
            for value, kind in ((0, "int"), (True, "bool"), (odd, "ndarray"))
        ],
        *[
            (
                lambda call=call, v=v: call(sums, converters=v),
                f"converters: expected converters by type of operation{k}",
            )
            for call in (Session, milblob.onnx.convert, milblob.onnx.coverage)
            for v, k in ((True, ", got bool"), ("x", ", got str"), ({3: None}, ", with text as keys, got int"))
        ],
        *[
            (lambda call=call: call(sums, opset=None), "opset: expected an integer, got NoneType")
            for call in (milblob.onnx.convert, milblob.onnx.coverage, milblob.onnx.decoded)
        ],
    ):
        with pytest.raises(TypeError, match=f"^{words}$"):
            call()
    for call, words in (
        (lambda: Session(sums, threads=2**31), "threads: expected less than 2\\^31, got 2147483648"),
        (lambda: milblob.onnx.coverage(sums, opset=17), "opset: expected 18 to 23, got 17"),
        (lambda: milblob.onnx.decoded(sums, opset=24), "opset: expected 18 to 23, got 24"),
    ):
        with pytest.raises(ValueError, match=f"^{words}$"):
            call()
    assert milblob.verify(sums, sums, seed=np.array(4), runs=1).is_same


def test_weights_are_not_copied(tmp_path):
    """64 MiB in the package: the process that runs it holds less than a quarter of that in memory of its own."""
    weight = np.zeros((4096, 4096), np.float32)
    path = save(
        tmp_path / "m.mlpackage",
        lambda x: mb().linear(x=x, weight=weight + np.float32(0.5)),
        {"x": np.zeros((1, 4096), np.float32)},
    )
    code = """
import json, sys, numpy as np
from milblob import Session
def own():
    text = open("/proc/self/status").read()
    return int(text.partition("RssAnon:")[2].split()[0]) << 10
Session(sys.argv[2]).predict({"tokens": np.zeros((1, 16), np.int32)})
before = own()
session = Session(sys.argv[1])
found = session.predict({"x": np.ones((1, 4096))})
print(json.dumps([own() - before, float(next(iter(found.values()))[0, 0])]))
"""
    if not sys.platform.startswith("linux"):
        pytest.skip("/proc is Linux's: the memory of a session is not measured here")
    found = subprocess.run(
        [sys.executable, "-c", code, path, DEMO], env=child_environment(), capture_output=True, text=True, check=True
    )
    nbytes, value = json.loads(found.stdout)
    assert value == 2048
    assert nbytes < 16 << 20
