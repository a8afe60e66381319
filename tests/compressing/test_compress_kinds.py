"""Compressing models of several functions, pipelines and models with states, against coremltools on each part."""

import logging
import warnings

import numpy as np
import pytest

import milblob
from compress_models import save_model
from milblob import Linear, Palette, Prune
from onnx_models import save
from peers import WITHOUT
from progress_rows import steps
from thorough import some

ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])


@pytest.fixture(autouse=True, scope="module")
def quiet():
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def quantized(path, to):
    """int8 per channel by coremltools: name -> dense values."""
    import coremltools.optimize.coreml as opt

    loaded = ct.models.MLModel(str(path), skip_model_load=True)
    config = opt.OptimizationConfig(global_config=opt.OpLinearQuantizerConfig())
    opt.linear_quantize_weights(loaded, config).save(str(to))
    return dense(to)


def dense(path, prefix=""):
    with milblob.open(path) as opened:
        return {
            name.removeprefix(prefix).removesuffix("_quantized"): (tensor.op, tensor.read().copy())
            for name, tensor in opened.items() if name.startswith(prefix)
        }  # fmt: skip


def assert_same(got, expected):
    assert set(got) == set(expected)
    assert any(op.startswith("constexpr") for op, _ in expected.values())
    for name, (op, values) in expected.items():
        assert got[name][0] == op, name
        assert got[name][1].tobytes() == values.tobytes(), name


def test_functions(tmp_path):
    """Each function has what coremltools makes of the model that it was; what they share stays shared."""
    singles = {
        name: save_model(tmp_path / f"{name}.mlpackage", 18, np.float32, seed)
        for name, seed in (("one", 0), ("two", 1), ("same", 0))
    }
    descriptor = ct.utils.MultiFunctionDescriptor()
    for name, path in singles.items():
        descriptor.add_function(str(path), src_function_name="main", target_function_name=name)
    descriptor.default_function_name = "one"
    ct.utils.save_multifunction(descriptor, str(tmp_path / "m.mlpackage"))
    report = milblob.compress(tmp_path / "m.mlpackage", tmp_path / "out.mlpackage", Linear())
    for name, path in singles.items():
        assert_same(
            dense(tmp_path / "out.mlpackage", f"{name}/"), quantized(path, tmp_path / f"{name} theirs.mlpackage")
        )
    loaded = ct.models.MLModel(str(tmp_path / "out.mlpackage"), skip_model_load=True)
    assert {function.name for function in loaded.get_spec().description.functions} == set(singles)
    with milblob.open(tmp_path / "out.mlpackage") as opened:
        for weight in report.weights:
            function, _, name = weight.name.partition("/")
            if function == "one":
                parts, others = opened[weight.name].parts, opened[f"same/{name}"].parts
                assert [parts[key].offset for key in ("data",)] == [others[key].offset for key in ("data",)]
    assert [finding for finding in milblob.check(tmp_path / "out.mlpackage") if finding.code != "owner-only"] == []


def test_a_goal_for_functions(tmp_path):
    """Weights of functions that are the same get one recipe; the bytes are those of the file."""
    for name, seed in (("one", 0), ("two", 1), ("same", 0)):
        save_model(tmp_path / f"{name}.mlpackage", 18, np.float16, seed)
    sources = [(tmp_path / f"{name}.mlpackage", name) for name in ("one", "two", "same")]
    milblob.merge_functions(sources, tmp_path / "m.mlpackage")
    for nbytes in (70_000, 110_000, 200_000):
        report = milblob.compress(
            tmp_path / "m.mlpackage", tmp_path / "out.mlpackage", milblob.Goal(size=nbytes), force=True
        )
        assert report.nbytes_after <= nbytes
        with milblob.open(tmp_path / "out.mlpackage", stored=True) as opened:
            rows = {(t.file, t.offset) if t.is_blob else name: t.nbytes for name, t in opened.items()}
        assert report.nbytes_after == sum(rows.values())
        recipes = {weight.name: weight.recipe for weight in report.weights}
        assert all(
            recipes.get(f"same/{name[4:]}") == recipe for name, recipe in recipes.items() if name.startswith("one/")
        )


def convert(program, path, target):
    ct.convert(
        program, convert_to="mlprogram", minimum_deployment_target=target, compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    ).save(str(path))  # fmt: skip
    return path


USES = ["linear", "gather", "product", "turned product"]
ALONG_AXES = Palette(4, granularity="per_grouped_channel", group_size=16)


@pytest.fixture(scope="module")
def one_record(tmp_path_factory):
    """Four functions that read one record, each by another operation; the last one along other axes."""
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    folder, weight = tmp_path_factory.mktemp("m"), np.random.default_rng(4).standard_normal((64, 64)).astype(np.float32)

    def make(use):
        dtype = types.int32 if use == "gather" else types.fp32

        @mb.program(input_specs=[mb.TensorSpec((1, 64), dtype=dtype)], opset_version=ct.target.iOS18)
        def program(x):
            table = mb.const(val=weight, name="w")
            if use == "gather":
                return mb.gather(x=table, indices=x, axis=0)
            return (
                mb.linear(x=x, weight=table)
                if use == "linear"
                else mb.matmul(x=x, y=table, transpose_y=use == "product")
            )

        return convert(program, folder / f"{use}.mlpackage", ct.target.iOS18), use.replace(" ", "_")

    milblob.merge_functions([make(use) for use in USES], folder / "all.mlpackage")
    return folder / "all.mlpackage"


@pytest.mark.parametrize(
    ("recipe", "shares"),
    some([
        (Linear(granularity="per_tensor"), [4]), (Palette(4), [4]), (Palette(None, "unique"), []), (Prune(0.5), [4]),
        (Prune(0.5) + Palette(2), [4]), (Linear(), [3, 1]), (ALONG_AXES, [3, 1]), (Palette(2, vector=2), [3, 1]),
        (Palette(4, scale=True), [3, 1]), (Linear(granularity="per_block", block=8), [3, 1]),
        (Linear(granularity="per_block", block=(8, 1)), [4]), (Prune(n_m=(2, 4)), [1]),
        (Palette(2, granularity="per_grouped_channel", channel_axis=0), [4]), (Prune(0.5) + Linear(), [3, 1]),
    ], 5),
    ids=str,
)  # fmt: skip
def test_one_record_that_different_operations_read(recipe, shares, one_record, tmp_path):
    """It is computed and stored once, unless the recipe goes along channels and they lie along different axes."""
    told = []
    report = milblob.compress(one_record, tmp_path / "a.mlpackage", recipe, progress=lambda *row: told.append(row))
    with milblob.open(tmp_path / "a.mlpackage") as opened:
        places = [
            tuple(sorted(row.blob_offset for row in opened[weight.name].chain.stored())) for weight in report.weights
        ]
    assert sorted((places.count(place) for place in set(places)), reverse=True) == shares
    assert len({name for name, _, _ in steps(told)}) == {"[]": 1, "[1]": 3}.get(
        str(shares), len(shares)
    )  # three kinds of readers; two are refused
    for size in (9_000, 12_000):  # and a goal counts it once
        found = milblob.compress(one_record, tmp_path / "b.mlpackage", milblob.Goal(size=size), force=True)
        with milblob.open(tmp_path / "b.mlpackage", stored=True) as opened:
            rows = {(t.file, t.offset) if t.is_blob else name: t.nbytes for name, t in opened.items()}
        assert found.nbytes_after == sum(rows.values()) <= size


def two_models(folder):
    """Two models; the second one takes what the first one gives."""
    from coremltools.converters.mil import Builder as mb

    rng = np.random.default_rng(4)

    def make(number, inputs, outputs):
        @mb.program(input_specs=[mb.TensorSpec((1, inputs))], opset_version=ct.target.iOS17)
        def program(x):
            weight = mb.const(val=rng.standard_normal((outputs, inputs)).astype(np.float32), name=f"w_{number}")
            return mb.linear(x=x, weight=weight, name=f"y_{number}")

        path = convert(program, folder / f"{number}.mlpackage", ct.target.iOS17)
        return path, ct.models.MLModel(str(path), skip_model_load=True)

    for number, (inputs, outputs) in enumerate(((48, 64), (64, 80))):
        path, model = make(number, inputs, outputs)
        spec = model.get_spec()
        if number:  # a pipeline passes values on by name
            ct.utils.rename_feature(spec, "x", "y_0")
            ct.models.MLModel(spec, weights_dir=model.weights_dir, skip_model_load=True).save(str(path))
    return [folder / f"{number}.mlpackage" for number in (0, 1)]


def test_pipelines(tmp_path):
    """Each model of a pipeline has what coremltools makes of it alone."""
    paths = two_models(tmp_path)
    loaded = [ct.models.MLModel(str(path), skip_model_load=True) for path in paths]
    ct.utils.make_pipeline(*loaded).save(str(tmp_path / "p.mlpackage"))
    report = milblob.compress(tmp_path / "p.mlpackage", tmp_path / "out.mlpackage", Linear())
    assert [weight.name for weight in report.weights] == ["model0/w_0", "model1/w_1"]
    for number, path in enumerate(paths):
        assert_same(
            dense(tmp_path / "out.mlpackage", f"model{number}/"),
            quantized(path, tmp_path / f"{number} theirs.mlpackage"),
        )
    assert len(ct.models.MLModel(str(tmp_path / "out.mlpackage"), skip_model_load=True).get_spec().pipeline.models) == 2
    chosen = milblob.compress(
        tmp_path / "p.mlpackage", tmp_path / "small.mlpackage", milblob.Goal(bits=5, recipes=[Linear(), Palette(2)])
    )
    assert len({weight.recipe for weight in chosen.weights}) == 2
    assert [finding for finding in milblob.check(tmp_path / "out.mlpackage") if finding.code != "owner-only"] == []


def test_states(tmp_path):
    """Reading and writing a state stays as it was; the weights beside it are compressed as coremltools does."""
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    rng = np.random.default_rng(4)

    @mb.program(
        input_specs=[mb.TensorSpec((1, 64), dtype=types.fp32), mb.StateTensorSpec((1, 64), dtype=types.fp16)],
        opset_version=ct.target.iOS18,
    )
    def program(x, cache):
        old = mb.cast(x=mb.read_state(input=cache), dtype="fp32")
        weight = mb.const(val=rng.standard_normal((64, 64)).astype(np.float32), name="w")
        new = mb.linear(x=mb.add(x=old, y=x), weight=weight)
        mb.coreml_update_state(state=cache, value=mb.cast(x=new, dtype="fp16"))
        return mb.relu(x=new, name="out")

    path = convert(program, tmp_path / "m.mlpackage", ct.target.iOS18)
    milblob.compress(path, tmp_path / "out.mlpackage", Linear())
    assert_same(dense(tmp_path / "out.mlpackage"), quantized(path, tmp_path / "theirs.mlpackage"))
    with milblob.open(path) as before, milblob.open(tmp_path / "out.mlpackage") as after:
        states = [[(op.type, op.name) for op in model.find() if "state" in op.type] for model in (before, after)]
    assert states[0] == states[1] and len(states[0]) >= 2
    spec = ct.models.MLModel(str(tmp_path / "out.mlpackage"), skip_model_load=True).get_spec()
    assert [state.name for state in spec.description.state] == ["cache"]
    assert [finding for finding in milblob.check(tmp_path / "out.mlpackage") if finding.code != "owner-only"] == []


@pytest.mark.parametrize("is_turned", [False, True], ids=["as it is", "transposed"])
@pytest.mark.parametrize("where", ["inner block", "outer block", "operation"])
def test_the_flag_of_a_product_in_a_loop(where, is_turned, tmp_path):
    """It says which channels have a scale, whichever block its constant is in and if it stands in the operation itself."""
    from coremltools.converters.mil import Builder as mb

    weight = np.random.default_rng(2).standard_normal((64, 64)).astype(np.float32)

    def body(i, v):
        product = mb.matmul(x=v, y=mb.const(val=weight, name="w"), transpose_y=is_turned)
        return mb.add(x=i, y=1), mb.tanh(x=product)

    def build(x):
        return mb.while_loop(_cond=lambda i, v: mb.less(x=i, y=3), _body=body, loop_vars=(0, x), name="y")[1]

    path = save(tmp_path / "m.mlpackage", build, {"x": np.zeros((1, 64), np.float32)}, opset="iOS18", precision="fp32")
    model = next(path.rglob("*.mlmodel"))
    message = ct.utils.load_spec(str(path))
    (block,) = message.mlProgram.functions["main"].block_specializations.values()
    (loop,) = (op for op in block.operations if op.type == "while_loop")
    inner = loop.blocks[1].operations
    (product,) = (op for op in inner if op.type == "matmul")
    flag = product.inputs["transpose_y"].arguments[0]
    (constant,) = (op for op in inner if op.outputs and op.outputs[0].name == flag.name)
    if where == "outer block":
        block.operations.insert(0, constant)
    elif where == "operation":
        flag.value.CopyFrom(constant.attributes["val"])
    if where != "inner block":
        inner.remove(constant)
    model.write_bytes(message.SerializeToString())
    milblob.compress(path, tmp_path / "out.mlpackage", Linear())
    axis = 0 if is_turned else 1  # of the output channels
    with milblob.open(tmp_path / "out.mlpackage") as opened:
        assert opened["w"].parts["scale"].shape == ((64, 1) if is_turned else (1, 64))
        lost = np.abs(opened["w"].read() - weight)
    assert (lost <= np.abs(weight).max(1 - axis, keepdims=True) / 254 * 1.001).all()
