"""`milblob.onnx.convert`: names and types, weights, errors, and what is never touched."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from math import erf

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import milblob
import milblob.onnx
from children import child_environment, run_child
from milblob.onnx.declared import message_of
from onnx_models import run, save, session
from paths import DATA, ROOT
from thorough import some

DEMO = ROOT / "examples" / "demo.mlpackage"
TOKENS = np.arange(16, dtype=np.int32)[None] * 5


@pytest.fixture
def demo(tmp_path):
    return shutil.copytree(DEMO, tmp_path / "demo.mlpackage")


def weight_files(package):
    return {
        path: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in package.rglob("*")
        if path.is_file()
    }


def test_references_point_into_the_unchanged_weight_file(demo, tmp_path):
    before = weight_files(demo)
    model = milblob.onnx.convert(demo, tmp_path / "demo.onnx")
    assert weight_files(demo) == before
    assert sorted(os.listdir(tmp_path)) == ["demo.mlpackage", "demo.onnx"]
    assert (tmp_path / "demo.onnx").stat().st_size < 65536
    with milblob.open(demo) as opened:
        for name in ("embedding_weight", "head_weight"):
            tensor = model.graph.initializers[name].const_value
            assert tensor.offset == opened[name].data_offset
            assert tensor.location == "demo.mlpackage/Data/com.apple.CoreML/weights/weight.bin"
            np.testing.assert_array_equal(tensor.numpy(), opened[name].read())
    logits = run(tmp_path / "demo.onnx", {"tokens": TOKENS})["logits"]
    assert logits.shape == (1, 16, 96)
    assert np.ptp(logits) > 0.1


def test_the_message_that_is_checked_holds_no_large_weights(demo):
    """They were copied for the check, and a session then copied them again."""
    model = milblob.onnx.convert(demo)
    small = message_of(model).ByteSize()
    large = ir.Tensor(np.ones((512, 512), np.float32), name="large")
    model.graph.initializers["large"] = ir.Value(name="large", const_value=large)
    proto = message_of(model)
    assert proto.ByteSize() < small + 200
    [tensor] = [tensor for tensor in proto.graph.initializer if tensor.name == "large"]
    assert (list(tensor.dims), tensor.data_type, tensor.raw_data) == ([512, 512], onnx.TensorProto.FLOAT, b"")
    assert model.graph.initializers["large"].const_value is large


@pytest.mark.parametrize("inside", ["", "Data", "Data/com.apple.CoreML"])
def test_a_file_inside_the_package_refers_downwards_too(demo, inside):
    path = demo / inside / "demo.onnx"
    milblob.onnx.convert(demo, path)
    assert run(path, {"tokens": TOKENS})["logits"].shape == (1, 16, 96)


def test_every_way_of_keeping_weights_computes_the_same(demo, tmp_path):
    found = []
    for weights in ("reference", "copy", "embed"):
        folder = tmp_path if weights == "reference" else tmp_path / "elsewhere"
        folder.mkdir(exist_ok=True)
        path = folder / f"{weights}.onnx"
        milblob.onnx.convert(demo, path, weights=weights)
        found.append(run(path, {"tokens": TOKENS})["logits"])
    assert sorted(os.listdir(tmp_path / "elsewhere")) == ["copy.bin", "copy.onnx", "embed.onnx"]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    weight = next(demo.rglob("weight.bin"))
    assert (tmp_path / "elsewhere" / "copy.bin").read_bytes() == weight.read_bytes()


@pytest.mark.parametrize("opset", some(range(18, 24), 2))
def test_every_opset_gives_the_same_and_the_lowest_version_of_the_format(demo, tmp_path, opset):
    import onnx

    milblob.onnx.convert(demo, tmp_path / "one.onnx", opset=opset)
    found = onnx.load(tmp_path / "one.onnx", load_external_data=False)
    assert [(entry.domain, entry.version) for entry in found.opset_import] == [("", opset)]
    assert found.ir_version == {18: 8, 19: 9, 20: 9, 21: 10, 22: 10, 23: 11}[opset]
    logits = run(tmp_path / "one.onnx", {"tokens": TOKENS})["logits"]
    milblob.onnx.convert(demo, tmp_path / "two.onnx", opset=21)
    np.testing.assert_allclose(logits, run(tmp_path / "two.onnx", {"tokens": TOKENS})["logits"], atol=2e-2)


def test_two_conversions_are_the_same_bytes(demo, tmp_path):
    """By another process, whose sets have another order."""
    code = "import sys, milblob.onnx; milblob.onnx.convert(sys.argv[1], sys.argv[2])"
    milblob.onnx.convert(demo, tmp_path / "a.onnx")
    environment = {**child_environment(), "PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    subprocess.run([sys.executable, "-c", code, demo, tmp_path / "b.onnx"], env=environment, check=True)
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_without_a_path_nothing_is_written_and_weights_are_lazy(demo, tmp_path):
    model = milblob.onnx.convert(demo)
    assert os.listdir(tmp_path) == ["demo.mlpackage"]
    tensor = model.graph.initializers["embedding_weight"].const_value
    with milblob.open(demo) as opened:
        np.testing.assert_array_equal(tensor.numpy(), opened["embedding_weight"].read())


# ------------------------------------------------------------------------------------------------------- path rules


def refused(error, words, model, path, **options):
    parent = os.path.dirname(path)
    before = sorted(os.listdir(parent))
    with pytest.raises(error, match=words) as caught:
        milblob.onnx.convert(model, path, **options)
    assert sorted(os.listdir(parent)) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_folder_that_is_not_above_the_weights_is_refused(demo, tmp_path):
    (tmp_path / "other").mkdir()
    words = refused(ValueError, "refers only downwards", demo, tmp_path / "other" / "m.onnx")
    assert 'weights="copy"' in words


def test_links_on_the_way_are_refused(demo, tmp_path):
    os.symlink(demo, tmp_path / "link.mlpackage")
    refused(milblob.ResolveError, "symbolic link", tmp_path / "link.mlpackage", tmp_path / "m.onnx")
    weight = next(demo.rglob("weight.bin"))
    weight.rename(weight.with_name("real.bin"))
    os.symlink("real.bin", weight)
    refused(milblob.ResolveError, "symbolic link", demo, tmp_path / "m.onnx")


def test_a_weight_file_with_two_names_is_refused(demo, tmp_path):
    os.link(next(demo.rglob("weight.bin")), tmp_path / "second")
    refused(milblob.ResolveError, "got 2", demo, tmp_path / "m.onnx")
    milblob.onnx.convert(demo, tmp_path / "m.onnx", weights="copy")


def test_a_link_above_both_is_nobodys_business(demo, tmp_path):
    os.symlink(tmp_path, tmp_path.parent / f"{tmp_path.name}-link")
    base = tmp_path.parent / f"{tmp_path.name}-link"
    milblob.onnx.convert(base / "demo.mlpackage", base / "m.onnx")
    assert run(tmp_path / "m.onnx", {"tokens": TOKENS})["logits"].shape == (1, 16, 96)


@pytest.mark.parametrize("name", ["m.onnx", "m.bin"])
def test_files_that_exist_are_kept(demo, tmp_path, name):
    (tmp_path / name).write_text("mine")
    refused(FileExistsError, name, demo, tmp_path / "m.onnx", weights="copy")
    assert (tmp_path / name).read_text() == "mine"
    milblob.onnx.convert(demo, tmp_path / "m.onnx", weights="copy", force=True)
    assert run(tmp_path / "m.onnx", {"tokens": TOKENS})["logits"].shape == (1, 16, 96)


def contents(package):
    return {file: file.read_bytes() for file in package.rglob("*") if file.is_file()}


@pytest.mark.parametrize("weights", ["reference", "copy", "embed"])
def test_no_file_of_a_model_is_replaced(demo, tmp_path, weights):
    before, options = contents(demo), {"weights": weights, "force": True}
    for file in before:
        if file.suffix != ".bin":
            refused(ValueError, "part of a model", demo, file, **options)
        link = tmp_path / "link.onnx"
        link.symlink_to(file)
        refused(ValueError, "part of a model", demo, link, **options)
        link.unlink()
    with milblob.open(next(demo.rglob("*.mlmodel"))) as model:  # a model that is a file, whose weights lie below it
        link.symlink_to(next(demo.rglob("weight.bin")))
        refused(ValueError, "part of a model", model, link, **options)
    other = shutil.copytree(demo, tmp_path / "other.mlpackage")
    refused(ValueError, "part of a model", other, demo / "Manifest.json", **{**options, "weights": "embed"})
    assert contents(demo) == before == {demo / file.relative_to(other): data for file, data in contents(other).items()}


def test_a_file_beside_the_weights_does_not_become_the_weights(demo, tmp_path):
    """What is copied or decoded goes to NAME.bin, which for weight.onnx would be weight.bin."""
    from coremltools.converters.mil.mil import Builder as mb

    path = next(demo.rglob("weight.bin")).with_suffix(".onnx")
    before = contents(demo)
    refused(ValueError, "part of a model", demo, path, weights="copy", force=True)
    large = tmp_path / "large.mlpackage"
    weight = np.random.default_rng(0).standard_normal((1024, 512)).astype(np.float32)
    save(large, lambda x: mb.linear(x=x, weight=weight), {"x": np.zeros((1, 512), np.float32)})
    small = tmp_path / "small.mlpackage"
    milblob.compress(large, small, milblob.Palette(6))
    beside = next(small.rglob("weight.bin")).with_suffix(".onnx")
    stored = contents(small)
    refused(ValueError, "part of a model", small, beside, force=True)
    assert contents(demo) == before and contents(small) == stored


def test_a_conversion_inside_a_package_is_replaced_by_the_next(demo):
    path = demo / "Data" / "demo.onnx"
    milblob.onnx.convert(demo, path)
    path.write_bytes(b"")
    milblob.onnx.convert(demo, path, force=True)
    assert run(path, {"tokens": TOKENS})["logits"].shape == (1, 16, 96)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"opset": 17}, ValueError, "18 to 23"),
        ({"opset": 24}, ValueError, "18 to 23"),
        ({"opset": 21.0}, TypeError, "opset"),
        ({"weights": "link"}, ValueError, "reference, copy, embed"),
        ({"weights": None}, TypeError, "weights"),
        ({"function": "decode"}, KeyError, "main"),
        ({"force": "no"}, TypeError, "force"),
    ],
)
def test_wrong_arguments_name_the_right_ones(demo, tmp_path, options, error, words):
    refused(error, words, demo, tmp_path / "m.onnx", **options)


def test_copies_need_a_path(demo):
    with pytest.raises(ValueError, match="without a destination"):
        milblob.onnx.convert(demo, weights="copy")


def test_models_without_a_program_are_refused_by_their_type(tmp_path, demo):
    weight = next(demo.rglob("weight.bin"))
    refused(milblob.UnsupportedError, "ML Program", weight, tmp_path / "m.onnx")


# -------------------------------------------------------------------------------------------------------- interface


def test_names_types_and_order_are_those_of_the_description(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    def build(zeta, alpha, flag):
        first = mb.add(x=zeta, y=np.float32(1), name="omega")
        return first, mb.cast(x=mb.reduce_sum(x=alpha, axes=[0], keep_dims=False), dtype="fp32", name="beta"), flag

    inputs = {"zeta": np.zeros((2, 3), np.float32), "alpha": np.zeros(4, np.int32), "flag": np.zeros(3, np.float16)}
    path = save(tmp_path / "m.mlpackage", build, inputs)
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    opened = session(tmp_path / "m.onnx")
    with milblob.open(path) as model:
        assert [one.name for one in opened.get_inputs()] == [one.name for one in model.metadata.inputs]
        assert [one.name for one in opened.get_outputs()] == [one.name for one in model.metadata.outputs]
    types = {one.name: (one.type, one.shape) for one in (*opened.get_inputs(), *opened.get_outputs())}
    assert types["zeta"] == ("tensor(float)", [2, 3])
    assert types["alpha"] == ("tensor(int32)", [4])
    assert types["flag"] == ("tensor(float16)", [3])
    assert types["beta"] == ("tensor(float)", [])


def test_open_dimensions_remain_open(tmp_path):
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        return mb.reshape(x=mb.softmax(x=x, axis=-1), shape=[1, -1])

    shape = (ct.RangeDim(1, 9, 4), 3)
    path = save(
        tmp_path / "m.mlpackage", build, {"x": ((None, 3), np.float32)}, inputs=[ct.TensorType(name="x", shape=shape)]
    )
    model = milblob.onnx.convert(path, tmp_path / "m.onnx")
    assert json.loads(model.metadata_props["milblob.shapes"]) == {"x": {"ranges": [[1, 9], [3, 3]]}}
    opened = session(tmp_path / "m.onnx")
    assert opened.get_inputs()[0].shape == ["x_0", 3]
    for size in (1, 4, 9):
        (found,) = opened.run(None, {"x": np.zeros((size, 3), np.float32)})
        np.testing.assert_allclose(found, np.full((1, 3 * size), 1 / 3), rtol=1e-6)


def test_enumerated_shapes_fix_what_they_share(tmp_path):
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb

    shapes = [(1, 4, 6), (1, 8, 6), (1, 2, 6)]
    kind = ct.TensorType(name="x", shape=ct.EnumeratedShapes(shapes))
    path = save(
        tmp_path / "m.mlpackage",
        lambda x: mb.reduce_max(x=x, axes=[1]),
        {"x": ((1, None, 6), np.float32)},
        inputs=[kind],
    )
    model = milblob.onnx.convert(path, tmp_path / "m.onnx")
    given = json.loads(model.metadata_props["milblob.shapes"])["x"]["enumerated"]
    assert sorted(map(tuple, given)) == sorted(shapes)
    opened = session(tmp_path / "m.onnx")
    assert opened.get_inputs()[0].shape == [1, "x_1", 6]
    for shape in shapes:
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        np.testing.assert_array_equal(opened.run(None, {"x": x})[0], x.max(1))


def test_images_are_tensors_and_the_metadata_describe_them(tmp_path):
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb

    kind = ct.ImageType(
        name="photo", shape=(1, 3, 4, 6), scale=1 / 255, bias=[-1, -2, -3], color_layout=ct.colorlayout.BGR
    )
    path = save(
        tmp_path / "m.mlpackage", lambda photo: mb.relu(x=mb.add(x=photo, y=np.float32(2))),
        {"photo": np.zeros((1, 3, 4, 6), np.float32)}, inputs=[kind],
    )  # fmt: skip
    model = milblob.onnx.convert(path, tmp_path / "m.onnx")
    about = json.loads(model.metadata_props["milblob.images"])
    assert about == {"photo": {"colorSpace": "BGR", "height": 4, "width": 6}}
    pixels = np.random.default_rng(0).integers(0, 256, (1, 3, 4, 6)).astype(np.float32)
    (found,) = run(tmp_path / "m.onnx", {"photo": pixels}).values()
    expected = np.maximum(pixels / 255 + np.array([-1, -2, -3], np.float32)[:, None, None] + 2, 0)
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_optional_inputs_have_their_defaults(tmp_path):
    import coremltools as ct
    from coremltools.converters.mil.mil import Builder as mb

    kinds = [
        ct.TensorType(name="x", shape=(3,)),
        ct.TensorType(name="y", shape=(3,), default_value=np.full(3, 7, np.float32)),
    ]
    inputs = dict.fromkeys("xy", np.zeros(3, np.float32))
    path = save(tmp_path / "m.mlpackage", lambda x, y: mb.sub(x=x, y=y), inputs, inputs=kinds)
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    x = np.arange(3, dtype=np.float32)
    (alone,) = run(tmp_path / "m.onnx", {"x": x}).values()
    np.testing.assert_array_equal(alone, x - 7)
    (both,) = run(tmp_path / "m.onnx", {"x": x, "y": x}).values()
    np.testing.assert_array_equal(both, x - x)


def test_an_input_or_a_constant_may_be_an_output(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        return mb.identity(x=x, name="same"), mb.const(val=np.arange(3, dtype=np.float32), name="fixed")

    path = save(tmp_path / "m.mlpackage", build, {"x": np.zeros(2, np.float32)})
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    x = np.array([3, 4], np.float32)
    found = list(run(tmp_path / "m.onnx", {"x": x}).values())
    np.testing.assert_array_equal(found[0], x)
    np.testing.assert_array_equal(found[1], [0, 1, 2])


def test_states_are_inputs_and_outputs_in_program_order(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    def build(x, memory, unused):
        old = mb.read_state(input=memory)
        new = mb.coreml_update_state(state=memory, value=mb.add(x=old, y=x))
        return mb.mul(x=new, y=np.float16(2)), mb.sub(x=new, y=old), mb.read_state(input=unused)

    zeros = np.zeros(3, np.float16)
    path = save(tmp_path / "m.mlpackage", build, {"x": zeros}, opset="iOS18", states={"memory": zeros, "unused": zeros})
    with milblob.open(path) as package:  # coreml_update_state becomes the two others
        assert {op.type for op in package.find()} == {"const", "read_state", "write_state", "add", "mul", "sub"}
    model = milblob.onnx.convert(path, tmp_path / "m.onnx")
    assert json.loads(model.metadata_props["milblob.states"]) == {
        name: {"input": name, "output": f"{name}_out"} for name in ("memory", "unused")
    }
    written = next(output for output in model.graph.outputs if output.name == "memory_out")
    assert written.producer().op_type == "Add"  # no Identity copies it
    opened = session(tmp_path / "m.onnx")
    state, x = {"memory": zeros, "unused": zeros + 5}, np.array([1, 2, 3], np.float16)
    for step in (1, 2, 3):
        names = [one.name for one in opened.get_outputs()]
        found = dict(zip(names, opened.run(None, {"x": x, **state}), strict=True))
        doubled, difference, untouched = list(found.values())[:3]
        np.testing.assert_array_equal(doubled, 2 * step * x)
        np.testing.assert_array_equal(difference, x)
        np.testing.assert_array_equal(untouched, zeros + 5)
        state = {name: found[f"{name}_out"] for name in state}


def test_each_function_of_a_package_refers_to_the_same_weights(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    weight = np.random.default_rng(0).normal(size=(40, 30)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(2, 30)).astype(np.float32)
    builders = {
        "prefill": lambda x: mb.linear(x=x, weight=weight),
        "decode": lambda x: mb.relu(x=mb.linear(x=x, weight=weight)),
    }
    sources = [
        (save(tmp_path / f"{name}.mlpackage", build, {"x": x}, opset="iOS18"), name) for name, build in builders.items()
    ]
    both = tmp_path / "both.mlpackage"
    milblob.merge_functions(sources, both, default="decode")
    models = {n: milblob.onnx.convert(both, tmp_path / f"{n}.onnx", function=n) for n in ("prefill", "decode")}
    offsets = {
        (tensor.location, tensor.offset)
        for model in models.values()
        for value in model.graph.initializers.values()
        if hasattr(tensor := value.const_value, "offset")
    }
    assert len(offsets) == 1
    (found,) = run(tmp_path / "decode.onnx", {"x": x}).values()
    np.testing.assert_allclose(found, np.maximum(x @ weight.T, 0), atol=1e-5)
    assert milblob.onnx.convert(both).graph.name == "decode"
    refused(KeyError, "prefill, decode", both, tmp_path / "x.onnx", function="main")


def test_compressed_weights_are_those_that_milblob_reads(tmp_path, demo):
    milblob.compress(demo, tmp_path / "small.mlpackage", milblob.Palette(bits=6))
    model = milblob.onnx.convert(tmp_path / "small.mlpackage", tmp_path / "m.onnx")
    copied = {row["name"]: row["why"] for row in json.loads(model.metadata_props["milblob.copied"])}
    with milblob.open(tmp_path / "small.mlpackage") as opened:
        for name, why in copied.items():
            assert why == "constexpr_lut_to_dense: 6-bit indices"
            np.testing.assert_array_equal(model.graph.initializers[name].const_value.numpy(), opened[name].read())
    assert len(copied) > 10
    assert run(tmp_path / "m.onnx", {"tokens": TOKENS})["logits"].shape == (1, 16, 96)


def test_large_weights_that_are_decoded_go_to_a_file_beside(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    weight = np.random.default_rng(0).normal(size=(700, 600)).astype(np.float32)
    x = np.random.default_rng(1).normal(size=(2, 600)).astype(np.float32)
    whole = save(tmp_path / "whole.mlpackage", lambda x: mb.linear(x=x, weight=weight), {"x": x}, opset="iOS18")
    milblob.compress(whole, tmp_path / "small.mlpackage", milblob.Palette(bits=6))
    model = milblob.onnx.convert(tmp_path / "small.mlpackage", tmp_path / "m.onnx")
    assert (tmp_path / "m.onnx").stat().st_size < 4096
    assert (tmp_path / "m.bin").stat().st_size == weight.nbytes
    with milblob.open(tmp_path / "small.mlpackage") as opened:
        (dense,) = (tensor.read() for tensor in opened.values() if tensor.shape == (700, 600))
    (large,) = (v.const_value for v in model.graph.initializers.values() if v.const_value.nbytes == weight.nbytes)
    np.testing.assert_array_equal(large.numpy(), dense)
    (found,) = run(tmp_path / "m.onnx", {"x": x}).values()
    np.testing.assert_allclose(found, x @ dense.T, atol=1e-3)
    (tmp_path / "m.bin").unlink()
    refused(FileExistsError, "m.onnx", tmp_path / "small.mlpackage", tmp_path / "m.onnx")


def test_compiled_models_convert_as_packages_do(demo, tmp_path):
    compiled = tmp_path / "demo.mlmodelc"
    (compiled / "weights").mkdir(parents=True)
    shutil.copy(next(demo.rglob("weight.bin")), compiled / "weights")
    with milblob.open(demo) as model:
        (compiled / "model.mil").write_text(milblob.to_text(model), "utf-8")
    found = []
    for source in (demo, compiled):
        milblob.onnx.convert(source, tmp_path / "m.onnx", force=True)
        found.append(run(tmp_path / "m.onnx", {"tokens": TOKENS})["logits"])
    np.testing.assert_array_equal(*found)


def test_an_output_of_open_rank_is_refused(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    feeds = {"shape": ((None,), np.int32)}
    path = save(tmp_path / "m.mlpackage", lambda shape: mb.fill(shape=shape, value=np.float32(1)), feeds)
    refused(milblob.UnsupportedError, "known number of dimensions", path, tmp_path / "m.onnx")


# ------------------------------------------------------------------------------------- operations without a converter


@pytest.fixture
def odd(tmp_path):
    """A model with two operations that get names that nobody knows."""
    from coremltools.converters.mil.mil import Builder as mb

    def build(x):
        return mb.softsign(x=mb.erf(x=mb.erf(x=x, name="first"), name="second"), name="third")

    path = save(tmp_path / "odd.mlpackage", build, {"x": np.zeros(3, np.float32)})
    model = next(path.rglob("*.mlmodel"))
    model.write_bytes(model.read_bytes().replace(b"\x0a\x03erf", b"\x0a\x03eRf").replace(b"softsign", b"softsigN"))
    return path


def test_all_operations_without_a_converter_are_named_at_once(odd, tmp_path):
    assert milblob.onnx.coverage(odd) == {"eRf": 2, "softsigN": 1}
    words = refused(
        milblob.UnsupportedError, "eRf x2 .first first., softsigN x1 .first third.", odd, tmp_path / "m.onnx"
    )
    assert "register_converter" in words


def test_converters_of_ones_own(odd, tmp_path):
    def convert_erf(scope, operator, container):
        container.bind(operator.output, container.node("Erf", operator.input("x")))

    def softsign(scope, operator, container):
        container.bind(operator.output, container.node("Neg", operator.input("x")))

    milblob.onnx.convert(odd, tmp_path / "a.onnx", converters={"eRf": convert_erf, "softsigN": softsign})
    milblob.onnx.register_converter("eRf")(convert_erf)
    seen = []
    milblob.onnx.register_shape_calculator("softsigN")(lambda operator: seen.append(operator.type))
    milblob.onnx.register_converter("softsigN", since_opset=20)(softsign)
    try:
        assert {"eRf", "softsigN"} <= milblob.onnx.supported()
        assert milblob.onnx.coverage(odd) == {}
        assert milblob.onnx.coverage(odd, opset=19) == {"softsigN": 1}
        milblob.onnx.convert(odd, tmp_path / "b.onnx")
    finally:
        milblob.onnx.unregister("eRf")
        milblob.onnx.unregister("softsigN")
    with pytest.raises(KeyError, match=r"expected an operation that you registered \(none\), got 'eRf'"):
        milblob.onnx.unregister("eRf")
    assert seen == ["softsigN"]
    assert milblob.onnx.coverage(odd) == {"eRf": 2, "softsigN": 1}
    x = np.array([0.5, -1, 2], np.float32)
    found = [next(iter(run(tmp_path / f"{name}.onnx", {"x": x}).values())) for name in "ab"]
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_allclose(found[0], [-erf(erf(value)) for value in x], atol=1e-5)


def test_an_error_inside_a_converter_names_the_operation(odd, tmp_path):
    def fails(scope, operator, container):
        raise ZeroDivisionError("by zero")

    options = {"converters": {"eRf": fails, "softsigN": fails}}
    words = refused(milblob.ProgramError, "ZeroDivisionError: by zero", odd, tmp_path / "m.onnx", **options)
    assert "'first'" in words


def test_a_result_of_another_type_than_declared_is_refused(odd, tmp_path):
    def wrong(scope, operator, container):
        container.bind(operator.output, container.node("ReduceSum", operator.input("x")))

    options = {"converters": {"eRf": wrong, "softsigN": wrong}}
    refused(milblob.ProgramError, "as the Program declares", odd, tmp_path / "m.onnx", **options)


def test_parts_can_be_used_by_themselves(demo):
    with milblob.open(demo) as model:
        raw = milblob.onnx.MilProgramContainer(model)
        assert (raw.input_names, raw.output_names) == (["tokens"], ["logits"])
        topology = milblob.onnx.parse_mil(raw.function)
        assert "layers_0_attention_query = linear(" in str(topology)
        milblob.onnx.compile(topology)
        types = {operator.type for operator in topology.topological_operator_iterator()}
        assert {"gather", "linear", "softmax"} <= types
        made = milblob.onnx.convert_topology(topology, raw, milblob.onnx.Weights(model, "embed", None))
        assert len(made.graph) > 100


# ------------------------------------------------------------------------------------------------ what is not installed


def test_import_of_milblob_brings_nothing_of_onnx():
    code = "import milblob; import sys; print(sorted(name for name in sys.modules if name.startswith('onnx')))"
    assert run_child(code).strip() == "[]"


def test_without_the_library_the_error_names_it():
    code = """
        sys.modules["onnx_ir"] = None
        import milblob
        try:
            milblob.onnx.convert
        except ImportError as error:
            print(error)
    """
    assert "onnx-ir is not installed; run: pip install onnx-ir (milblob's extra onnx " in run_child(code)


@pytest.mark.parametrize(
    ("kind", "attributes", "words"),
    [("NoSuchOperator", {}, "NoSuchOperator"), ("Elu", {"alpha": "much"}, "alpha"), ("Relu", {"beta": 1.0}, "beta")],
)
def test_what_the_checker_of_onnx_refuses_is_not_written(tmp_path, kind, attributes, words):
    """A converter of one's own may make what ONNX does not have."""
    from coremltools.converters.mil.mil import Builder as mb

    def convert(scope, operator, container):
        container.bind(operator.output, container.node(kind, operator.input("x"), **attributes))

    x = np.ones((2, 3), np.float32)
    path = save(tmp_path / "m.mlpackage", lambda x: mb.relu(x=x), {"x": x})
    with pytest.raises(milblob.ProgramError, match=words):
        milblob.onnx.convert(path, tmp_path / "m.onnx", converters={"relu": convert})
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize("name", ["Relu", "reLu", "gelu", "const", ""])
@pytest.mark.parametrize("by", [milblob.onnx.convert, milblob.onnx.coverage, milblob.Session])
@pytest.mark.sample(5)
def test_a_converter_of_an_operation_that_the_model_does_not_have_is_refused(tmp_path, by, name):
    """It was passed over, and the misspelled operation converted by milblob's own."""
    from coremltools.converters.mil.mil import Builder as mb

    def convert(scope, operator, container):
        container.bind(operator.output, container.node("Neg", operator.input("x")))

    x = np.ones((2, 3), np.float32)
    path = save(tmp_path / "m.mlpackage", lambda x: mb.relu(x=x), {"x": x})
    by(path, converters={"relu": convert})
    with pytest.raises(ValueError, match=f"^converters: expected types of operations in .*m.mlpackage, got '{name}'"):
        by(path, converters={"relu": convert, name: convert})


def test_converters_may_be_of_any_part_of_a_model_and_of_no_onnx_file(tmp_path):
    """Of all functions, and of all models of a pipeline: the same mapping serves each of them."""
    with milblob.open(DATA / "functions" / "model.mlpackage") as model:
        types = {operation.type for operation in model.find()} - {"const"}
        own = {type: milblob.onnx.registry.find(type, 21) for type in types}
        for function in model.functions:
            milblob.onnx.convert(model, function=function, converters=own)
        milblob.onnx.convert(model, tmp_path / "m.onnx", weights="embed")
    with pytest.raises(
        ValueError, match="^converters: expected none of an .onnx file, which is converted already, got "
    ):
        milblob.Session(tmp_path / "m.onnx", converters=own)


def test_states_are_read_and_written_in_branches_and_loops(tmp_path):
    """A branch that is not taken leaves them alone; each pass of a loop sees what the pass before has written."""
    from coremltools.converters.mil.mil import Builder as mb

    half, one = np.float16(0.5), np.float16(1)

    def build(x, count, memory, other):
        def added():
            return mb.coreml_update_state(state=memory, value=mb.add(x=mb.read_state(input=memory), y=x))

        positive = mb.greater(x=mb.reduce_sum(x=x), y=np.float16(0))
        branch = mb.cond(pred=positive, _true_fn=added, _false_fn=lambda: mb.mul(x=x, y=half))

        def body(i):
            old = mb.read_state(input=other)
            mb.coreml_update_state(state=other, value=mb.add(x=mb.add(x=old, y=old), y=mb.read_state(input=memory)))
            return mb.add(x=i, y=one)

        loop = mb.while_loop(_cond=lambda i: mb.less(x=i, y=count), _body=body, loop_vars=(np.float16(0),))
        return branch, loop, mb.read_state(input=other)

    zeros = np.zeros(3, np.float16)
    feeds = {"x": zeros, "count": np.zeros(1, np.float16)}
    path = save(
        tmp_path / "m.mlpackage", lambda x, count, memory, other: build(x, mb.squeeze(x=count), memory, other), feeds,
        opset="iOS18", states={"memory": zeros, "other": zeros},
    )  # fmt: skip
    milblob.onnx.convert(path, tmp_path / "m.onnx")
    opened = session(tmp_path / "m.onnx")
    names = [one.name for one in opened.get_outputs()]
    memory, other = zeros, zeros
    for x, count in (([1, 2, 3], 2), ([-1, -2, 1], 1), ([4, 0, 0], 0), ([1, 1, 1], 3)):
        x = np.array(x, np.float16)
        feeds = {"x": x, "count": np.array([count], np.float16), "memory": memory, "other": other}
        branch, passes, read, *states = opened.run(None, feeds)
        memory = memory + x if x.sum() > 0 else memory
        for _ in range(count):
            other = 2 * other + memory
        np.testing.assert_array_equal(branch, memory if x.sum() > 0 else x / 2)
        np.testing.assert_array_equal(passes, count)
        np.testing.assert_array_equal(read, other)
        found = dict(zip(names[3:], states, strict=True))
        np.testing.assert_array_equal(found["memory_out"], memory)
        np.testing.assert_array_equal(found["other_out"], other)


def test_a_branch_that_writes_a_state_is_kept_though_nothing_reads_its_result(tmp_path):
    from coremltools.converters.mil.mil import Builder as mb

    def build(x, memory):
        def added():
            return mb.coreml_update_state(state=memory, value=mb.add(x=mb.read_state(input=memory), y=x))

        positive = mb.greater(x=mb.reduce_sum(x=x), y=np.float16(0))
        branch = mb.cond(pred=positive, _true_fn=added, _false_fn=lambda: mb.identity(x=x))
        return mb.mul(x=x, y=np.float16(2)), branch, mb.sub(x=x, y=branch)

    zeros = np.zeros(3, np.float16)
    path = save(tmp_path / "m.mlpackage", build, {"x": zeros}, opset="iOS18", states={"memory": zeros})
    with milblob.open(path) as model:
        topology = milblob.onnx.parse_mil(milblob.onnx.MilProgramContainer(model).function)
        del topology.scope.outputs[1:]
        milblob.onnx.compile(topology)
        kept = {operator.type for operator in topology.topological_operator_iterator()}
        assert {"cond", "write_state", "mul", "greater"} <= kept and "sub" not in kept
