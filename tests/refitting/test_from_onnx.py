"""Weights come home from ONNX: what was changed there is in the model, what was not stays, what cannot is named."""

import json
import pathlib
import shutil

import numpy as np
import onnx_ir as ir
import pytest

import milblob
from milblob import UnsupportedError
from milblob.cli import main
from milblob.formats.read import open_arrays
from onnx_models import save
from paths import ROOT
from thorough import some

pytestmark = pytest.mark.usefixtures("unsynced")

DATA = ROOT / "tests" / "data"
DEMO = ROOT / "examples" / "demo.mlpackage"
MODELS = {
    "demo": DEMO, "compiled": DATA / "states/model.mlmodelc", "functions": DATA / "functions/model.mlpackage",
    "functions compiled": DATA / "functions/model.mlmodelc", "pipeline": DATA / "pipeline/model.mlpackage",
    "control flow": DATA / "control_flow/model.mlpackage", "several files": DATA / "weight_files/model.mlpackage",
    "integers": DATA / "opset_ios18_fp16/model.mlpackage", "text": DATA / "opset_ios15_fp32/model.mlmodelc",
}  # fmt: skip
COMPRESSED = ["quant_int8", "palette_4bit", "sparse", "constexpr_ios16"]


def converted(source, folder, weights, function=None):
    """A copy of a model, and an ONNX model of it."""
    model = folder / source.name
    shutil.copytree(source, model)
    milblob.onnx.convert(model, folder / "m.onnx", weights=weights, function=function)
    return model, folder / "m.onnx"


def files_of(model):
    return {path.relative_to(model): path.read_bytes() for path in sorted(model.rglob("*")) if path.is_file()}


def tuned(path, select=lambda name: True, change=None):
    """Change initializers as somebody else's program does, and save them elsewhere: name -> the new array."""
    model, found = ir.load(path), {}
    with open_arrays(path) as arrays:
        weights = {arrays[name].initializer: name for name in arrays if name not in arrays.made}
    for value in model.graph.initializers.values():
        name = weights.get(value.name)
        if name is None or not select(name):
            continue
        old = np.array(value.const_value.numpy())
        if change is not None:
            new = change(old)
        elif old.dtype.kind in "iub":
            new = old[..., ::-1].copy()
        else:
            new = (old.astype(np.float32) * -0.5).astype(old.dtype)
        if new.tobytes() != old.tobytes():
            value.const_value = ir.Tensor(new, name=value.name)
            found[name] = new
    path.with_name("tuned").mkdir()
    ir.save(model, path.with_name("tuned") / "t.onnx", external_data="t.bin", size_threshold_bytes=64)
    return path.with_name("tuned") / "t.onnx", found


@pytest.mark.parametrize("weights", some(["reference", "copy", "embed"], 6))
@pytest.mark.parametrize("name", MODELS)
def test_an_unchanged_onnx_model_changes_nothing_and_a_tuned_one_goes_home(name, weights, tmp_path):
    with milblob.open(MODELS[name]) as model:
        function = next(iter(model.functions)) if len(model.functions) > 1 else None
    model, onnx = converted(MODELS[name], tmp_path, weights, function)
    before, files = milblob.load(model), files_of(model)
    report = milblob.refit(model, onnx)
    assert report.changes == [] and report.unchanged and report.unused == () and report.done
    assert files_of(model) == files
    path, new = tuned(onnx)
    assert new
    report = milblob.refit(model, path, unshare=function is not None)  # functions share what is equal
    assert {change.name for change in report.changes} >= set(new) and report.unused == ()
    after = milblob.load(model)
    shared = {change.name for change in report.changes} - set(new)  # stored once with one that changed
    for weight, array in after.items():
        expected = new.get(weight, before[weight])
        if weight not in shared:
            assert array.dtype == expected.dtype and array.tobytes() == expected.tobytes(), weight
    # What the converted model holds now is what the other one held.
    again = milblob.refit(model, path)
    assert again.changes == []


def test_only_what_changed_is_written(tmp_path):
    model, onnx = converted(DEMO, tmp_path, "reference")
    path, new = tuned(
        onnx, lambda name: name == "layers_2_norm1_bias"
    )  # 96 bytes: it has a name of its own all the same
    report = milblob.refit(model, path)
    assert [change.name for change in report.changes] == list(new) == ["layers_2_norm1_bias"]
    assert len(report.unchanged) == 74
    other = tmp_path / "copy.mlpackage"
    report = milblob.refit(model, path, destination=other)
    assert report.changes == [] and report.done and milblob.content_hash(other) == milblob.content_hash(model)


@pytest.mark.parametrize("name", COMPRESSED)
def test_compressed_weights_go_home_as_parts_or_are_compressed_again(name, tmp_path):
    """What nobody changed is as in the model. Changed parts go home as they are, decoded weights are compressed again."""
    model, onnx = converted(DATA / name / "model.mlpackage", tmp_path, "embed")
    files = files_of(model)
    assert milblob.refit(model, onnx).changes == [] and files_of(model) == files
    path, new = tuned(onnx, change=lambda old: old * 2 if old.dtype.kind == "f" and old.size > 3 else old)
    with milblob.open(model) as opened:
        compressed = {weight for weight in new if weight in opened and opened[weight].compression}
    if compressed:
        with pytest.raises((UnsupportedError, ValueError), match="requantize"):
            milblob.refit(model, path)
        assert files_of(model) == files
    report = milblob.refit(model, path, requantize="fit")
    assert {change.name for change in report.changes if change.requantized} == compressed
    assert {change.name for change in report.changes} == set(new) != set()
    after = milblob.load(model, stored=True)
    assert all(change.sqnr is None or change.sqnr > 10 for change in report.changes)
    for weight in set(new) - compressed:
        assert after[weight].tobytes() == new[weight].tobytes()


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recurrent")
    random = np.random.default_rng(2)

    def build(x):
        from coremltools.converters.mil.mil import Builder as mb

        shapes = {"weight_ih": (16, 4), "weight_hh": (16, 4), "bias": (16,)}
        given = {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        y = mb.lstm(x=x, initial_h=np.zeros((2, 4), np.float32), initial_c=np.zeros((2, 4), np.float32), **given)[0]
        gamma = np.arange(1, 13, dtype=np.float32)
        return mb.prelu(x=mb.transpose(x=mb.stack(values=[y] * 12, axis=0), perm=[1, 0, 2, 3]), alpha=gamma)

    return save(folder / "m.mlpackage", build, {"x": np.zeros((3, 2, 4), np.float32)})


@pytest.mark.parametrize("kind", ["LSTM", "PRelu"])
def test_transformed_weights_are_refused_by_name(kind, recurrent, tmp_path):
    model, onnx = converted(recurrent, tmp_path, "embed")
    files = files_of(model)
    assert milblob.refit(model, onnx).changes == []
    changed = ir.load(onnx)
    node = next(node for node in changed.graph if node.op_type == kind)
    value = node.inputs[1]
    value.const_value = ir.Tensor(np.array(value.const_value.numpy()) + 1, name=value.name)
    ir.save(changed, tmp_path / "t.onnx")
    with pytest.raises(
        UnsupportedError, match=rf"^{value.name}: expected the values that the conversion to ONNX gave it"
    ):
        milblob.refit(model, tmp_path / "t.onnx")
    assert files_of(model) == files
    assert milblob.refit(model, tmp_path / "t.onnx", mapping={value.name: None}).unused == (value.name,)


def test_renamed_initializers_are_recognized_by_their_references(tmp_path):
    """Their references say which weights they are: of a copy of the weight file, whose bytes are changed in place."""
    model, onnx = converted(DEMO, tmp_path, "copy")
    renamed = ir.load(onnx)
    old = {}
    for number, value in enumerate(list(renamed.graph.initializers.values())):
        if isinstance(value.const_value, ir.ExternalTensor):
            old[f"renamed_{number}"] = value.name
            value.name = value.const_value.name = f"renamed_{number}"
    ir.save(renamed, tmp_path / "t.onnx")
    assert len(old) > 20
    assert milblob.refit(model, tmp_path / "t.onnx").changes == []
    with open_arrays(tmp_path / "t.onnx") as arrays:
        name = next(name for name, weight in old.items() if weight == "head_weight")
        new = np.array(arrays[name].read()) * 3
        file, offset = arrays[name].file, arrays[name].offset
    with pathlib.Path(file).open("r+b") as stream:
        stream.seek(offset)
        stream.write(new.tobytes())
    with pytest.raises(milblob.FormatError, match=f"'{name}': expected the bytes that were converted"):
        milblob.refit(model, tmp_path / "t.onnx")
    for value in renamed.graph.initializers.values():  # as tools that keep no metadata
        value.const_value.metadata_props.clear()
    ir.save(renamed, tmp_path / "t.onnx")
    report = milblob.refit(model, tmp_path / "t.onnx")
    assert [(change.name, change.given) for change in report.changes] == [("head_weight", name)]
    assert milblob.load(model)["head_weight"].tobytes() == new.tobytes()


@pytest.fixture
def source(tmp_path):
    """A folder for a model that is converted: `converted` makes a copy of it in `tmp_path`."""
    (tmp_path / "s").mkdir()
    return tmp_path / "s"


def with_equal_weights(path, **options):
    """A model whose weights "one" and "two" are equal; returns its path and their values."""
    weight = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)

    def build(x):
        from coremltools.converters.mil.mil import Builder as mb

        one, two = mb.const(val=weight, name="one"), mb.const(val=2 * weight, name="two")
        return mb.linear(x=mb.relu(x=mb.linear(x=x, weight=one)), weight=two)

    made = save(path, build, {"x": np.zeros((1, 64), np.float32)}, **options)
    milblob.refit(made, {"two": weight})  # coremltools itself would make one constant of two that are equal
    return made, weight


def test_values_stored_once_and_changed_in_one_place_need_unshare(source, tmp_path):
    """One of two initializers that are one record was changed: the other must not follow silently."""
    made, weight = with_equal_weights(source / "m.mlpackage")
    milblob.repack(made, source / "d.mlpackage", dedupe=True)
    with milblob.open(source / "d.mlpackage") as opened:
        assert opened["one"].offset == opened["two"].offset
    model, onnx = converted(source / "d.mlpackage", tmp_path, "reference")
    path, new = tuned(onnx, lambda name: name == "one")
    with pytest.raises(ValueError, match="unshare"):
        milblob.refit(model, path)
    milblob.refit(model, path, unshare=True)
    after = milblob.load(model)
    assert after["one"].tobytes() == new["one"].tobytes() and after["two"].tobytes() == weight.tobytes()


@pytest.mark.parametrize("weights", ["reference", "copy", "embed"])
@pytest.mark.parametrize("part", ["scale", "lut"])
def test_parts_stored_once_and_changed_apart(part, weights, source, tmp_path):
    """Compressed weights whose parts are stored once have parts of their own in ONNX: one is changed, or both are."""
    made, _ = with_equal_weights(source / "dense.mlpackage", opset="iOS18")
    recipe = {"scale": milblob.Linear("int4", granularity="per_block", block=16), "lut": milblob.Palette(8)}[part]
    milblob.compress(made, source / "m.mlpackage", recipe)  # equal weights share their parts
    model, onnx = converted(source / "m.mlpackage", tmp_path, weights)
    before, names = milblob.load(model, stored=True), (f"one.{part}", f"two.{part}")
    assert before[names[0]].nbytes >= 1024  # in the weight file, and in ONNX a tensor of its own
    path, new = tuned(onnx, lambda name: name == names[1])
    with pytest.raises(ValueError, match="unshare"):
        milblob.refit(model, path)
    milblob.refit(model, path, destination=tmp_path / "apart.mlpackage", unshare=True)
    after = milblob.load(tmp_path / "apart.mlpackage", stored=True)
    assert after[names[0]].tobytes() == before[names[0]].tobytes() != new[names[1]].tobytes()
    assert after[names[1]].tobytes() == new[names[1]].tobytes()
    shutil.rmtree(tmp_path / "tuned")
    path, new = tuned(onnx, lambda name: name in names)
    milblob.refit(model, path)
    after = milblob.load(model, stored=True)
    assert len(new) == 2 and all(after[name].tobytes() == new[name].tobytes() for name in names)


@pytest.mark.parametrize("rows", [-1, 1])
@pytest.mark.parametrize("weights", ["reference", "copy"])
def test_references_to_another_number_of_rows(weights, rows, tmp_path):
    """They begin where the weight begins, and are another weight: an error, as with fewer rows anywhere else."""
    model, onnx = converted(DEMO, tmp_path, weights)
    files, changed = files_of(model), ir.load(onnx)
    value = changed.graph.initializers["layers_0_attention_key_weight"]
    old = value.const_value
    shape = (old.shape[0] + rows, *old.shape[1:])
    length = old.length // old.shape[0] * shape[0]
    value.const_value = ir.ExternalTensor(
        old.location, old.offset, length, old.dtype, shape=ir.Shape(shape), name=value.name, base_dir=old.base_dir
    )
    ir.save(changed, tmp_path / "t.onnx")
    with pytest.raises(ValueError, match="expected shape"):
        milblob.refit(model, tmp_path / "t.onnx")
    assert files_of(model) == files


def test_axes_of_one_element_do_not_matter(tmp_path):
    model, onnx = converted(DEMO, tmp_path, "embed")
    changed = ir.load(onnx)
    for name, factor in (("head_bias", 1), ("final_norm_bias", 2)):
        array = np.array(changed.graph.initializers[name].const_value.numpy())
        changed.graph.initializers[name].const_value = ir.Tensor(
            (array * factor)[None, :, None] + (factor - 1), name=name
        )
    ir.save(changed, tmp_path / "t.onnx")
    before = np.array(milblob.load(model)["final_norm_bias"])
    assert [change.name for change in milblob.refit(model, tmp_path / "t.onnx").changes] == ["final_norm_bias"]
    assert np.array_equal(milblob.load(model)["final_norm_bias"], before * 2 + 1)


def test_two_weights_whose_references_were_exchanged(tmp_path):
    """The new values of each are the old ones of the other, in the file that is written."""
    model, onnx = converted(DEMO, tmp_path, "reference")
    before, names = milblob.load(model), ("layers_0_attention_key_weight", "layers_1_attention_key_weight")
    before = {name: np.array(array) for name, array in before.items()}
    changed = ir.load(onnx)
    one, two = (changed.graph.initializers[name] for name in names)
    one.const_value, two.const_value = (
        ir.ExternalTensor(v.location, v.offset, v.length, v.dtype, shape=v.shape, name=name, base_dir=v.base_dir)
        for v, name in ((two.const_value, names[0]), (one.const_value, names[1]))
    )
    ir.save(changed, tmp_path / "t.onnx")
    report = milblob.refit(model, tmp_path / "t.onnx")
    assert [change.name for change in report.changes] == list(names)
    after = milblob.load(model)
    assert (
        after[names[0]].tobytes() == before[names[1]].tobytes()
        and after[names[1]].tobytes() == before[names[0]].tobytes()
    )


def test_defaults_of_optional_inputs_are_no_weights(source, tmp_path):
    import coremltools as ct

    def build(x):
        from coremltools.converters.mil.mil import Builder as mb

        return mb.linear(x=x, weight=np.arange(24, dtype=np.float32).reshape(2, 12))

    inputs = [ct.TensorType("x", shape=(1, 12), default_value=np.full((1, 12), 3, np.float32))]
    model, onnx = converted(
        save(source / "m.mlpackage", build, {"x": np.zeros((1, 12), np.float32)}, inputs=inputs), tmp_path, "embed"
    )
    with open_arrays(onnx) as arrays:
        assert arrays["x"].read().tolist() == [[3] * 12] and arrays.is_as_made("x")
    report = milblob.refit(model, onnx)
    assert report.changes == [] and "x" in report.unchanged


def test_names_that_the_model_lacks_are_an_error(tmp_path):
    """Nothing of theirs is passed over: names that the model lacks are an error, until somebody says what they are."""
    model = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    array = np.ones((96, 48), np.float32)
    values = [ir.Value(name=name, const_value=ir.Tensor(array, name=name)) for name in ("head.weight", "axes")]
    graph = ir.Graph([], [], nodes=[], initializers=values, opset_imports={"": 21}, name="g")
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "t.onnx")
    with pytest.raises(ValueError, match="2 arrays with names that .* lacks"):
        milblob.refit(model, tmp_path / "t.onnx")
    report = milblob.refit(model, tmp_path / "t.onnx", mapping={"head.weight": "head_weight", "axes": None})
    assert [change.name for change in report.changes] == ["head_weight"] and report.unused == ("axes",)
    assert (milblob.load(model)["head_weight"] == 1).all()


def test_the_command_counts_what_is_as_in_the_model(tmp_path, capsys):
    model, onnx = converted(DEMO, tmp_path, "embed")
    assert main(["refit", str(model), str(onnx)]) == 0
    assert "nothing changed\n" in (err := capsys.readouterr().err) and "75 initializers as in the model" in err
    path, _ = tuned(onnx, lambda name: name == "head_bias")
    assert main(["refit", str(model), str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in found["tensors"]] == ["head_bias"] and len(found["unchanged"]) == 74
