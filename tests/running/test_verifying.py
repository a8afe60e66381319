"""`milblob.verify`: equal models are the same, a changed weight is found, and what is random is sensible."""

import json
import math
import shutil

import numpy as np
import pytest

import milblob
import milblob.onnx
from milblob import Session
from milblob.running.samples import given_runs, index_bounds, random_runs
from onnx_models import save
from paths import DATA, ROOT, SAMPLES

DEMO = ROOT / "examples" / "demo.mlpackage"
BOTH_FORMS = sorted(
    path.parent.name for path in DATA.glob("*/model.mlpackage") if path.with_suffix(".mlmodelc").is_dir()
)


def mb():
    from coremltools.converters.mil.mil import Builder

    return Builder


@pytest.fixture
def demo(tmp_path):
    return shutil.copytree(DEMO, tmp_path / "demo.mlpackage")


@pytest.mark.parametrize("name", BOTH_FORMS)
@pytest.mark.sample(8)
def test_a_package_and_its_compiled_form_predict_the_same(name):
    paths = [DATA / name / f"model.{kind}" for kind in ("mlpackage", "mlmodelc")]
    with milblob.open(paths[0]) as model:
        functions = list(model.functions) if len(model.functions) > 1 and name == "functions" else [None]
    for function in functions:
        found = milblob.verify(*paths, function=function)
        assert found.is_same and found.outputs
        assert not any(one.differing for one in found.outputs)


@pytest.mark.sample(2)
def test_a_model_and_its_conversions(demo, tmp_path):
    milblob.onnx.convert(demo, tmp_path / "demo.onnx")
    milblob.repack(demo, tmp_path / "other.mlpackage", align=4096, dedupe=True)
    for other in (demo, tmp_path / "demo.onnx", tmp_path / "other.mlpackage"):
        found = milblob.verify(demo, other)
        assert found.is_same and found.runs == 4
        (one,) = found.outputs
        assert (one.name, one.differing, one.total, one.largest) == ("logits", 0, 4 * 16 * 96, 0)
        assert one.sqnr == math.inf and one.limit == 8e-3
    assert milblob.verify(tmp_path / "demo.onnx", demo).is_same
    with Session(demo) as a, milblob.open(demo) as b:
        assert milblob.verify(a, b).is_same


def test_one_changed_weight_is_found_and_measured(demo, tmp_path):
    """The figures are those of the formulas, from the two models' own predictions."""
    other = shutil.copytree(demo, tmp_path / "other.mlpackage")
    with milblob.open(other, "r+") as model:
        bias = model["head_bias"].read().copy()
        bias[7] += 1
        model["head_bias"] = bias
    found = milblob.verify(demo, other)
    (one,) = found.outputs
    assert not found.is_same and not one.is_within
    assert one.differing == 4 * 16 and one.total == 4 * 16 * 96
    sessions = Session(demo), Session(other)
    runs = list(random_runs(sessions, None, 0))
    pairs = [[one.predict(run)["logits"].astype(np.float64) for one in sessions] for run in runs]
    relative = [np.abs(a - b).max() / max(np.ptp(a), np.abs(a).max()) for a, b in pairs]
    assert one.relative == max(relative) and one.run == int(np.argmax(relative))
    assert one.largest == max(np.abs(a - b).max() for a, b in pairs)
    noise = sum(np.square(a - b).sum() for a, b in pairs)
    np.testing.assert_allclose(one.sqnr, 10 * np.log10(sum(np.square(a).sum() for a, _ in pairs) / noise))
    np.testing.assert_array_equal(found.worst[0]["tokens"], runs[one.run]["tokens"])
    again = milblob.verify(demo, other, found.worst[0])
    assert (again.runs, again.outputs[0].relative) == (1, one.relative)
    assert milblob.verify(demo, other, max_error=1).is_same
    assert json.loads(json.dumps(found.to_dict()))["outputs"][0]["is_within"] is False


def test_compressed_copies_are_farther_the_fewer_their_bits(demo, tmp_path):
    errors = []
    for nbits in (8, 4, 2):
        milblob.compress(demo, tmp_path / f"{nbits}.mlpackage", milblob.Palette(nbits))
        errors.append(milblob.verify(demo, tmp_path / f"{nbits}.mlpackage").outputs[0])
    assert errors[0].relative < errors[1].relative < errors[2].relative
    assert errors[0].sqnr > errors[1].sqnr > errors[2].sqnr > 0


def odd(tmp_path, name, values):
    """An .onnx file, by another hand, whose outputs are constants times an input of ones: NaN and infinity come through."""
    import onnx
    from onnx import helper, numpy_helper

    ends = [helper.make_tensor_value_info(end, 1, [len(values)]) for end in ("x", "product")]
    weight = numpy_helper.from_array(np.array(values, np.float32), "weight")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "weight"], ["product"])], "g", ends[:1], ends[1:], [weight]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    onnx.save(model, tmp_path / f"{name}.onnx")
    return tmp_path / f"{name}.onnx", {"x": np.ones(len(values), np.float32)}


CASES = {
    "NaN equals NaN": ([math.nan, 1], [math.nan, 1], 0.0),
    "infinity equals infinity": ([math.inf, -math.inf, 1], [math.inf, -math.inf, 1], 0.0),
    "the other infinity": ([math.inf, 1], [-math.inf, 1], math.inf),
    "NaN and a number": ([math.nan, 1], [2, 1], math.inf),
    "a number and NaN": ([2, 1], [math.nan, 1], math.inf),
    "a number and infinity": ([2, 1], [math.inf, 1], math.inf),
    "zeros": ([0, 0], [0, 0], 0.0),
    "negative zero": ([0, 1], [-0.0, 1], 0.0),
    "zeros and something": ([0, 0], [0, 1e-30], math.inf),
    "a tenth": ([10, 0], [9, 0], 0.1),
    "a tenth of the spread": ([10, -10], [8, -10], 0.1),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_not_finite(tmp_path, name):
    a, b, relative = CASES[name]
    (first, inputs), (second, _) = odd(tmp_path, "a", a), odd(tmp_path, "b", b)
    found = milblob.verify(first, second, inputs)
    assert found.is_same == (relative == 0)
    np.testing.assert_allclose(found.outputs[0].relative, relative, rtol=1e-6)


def test_integers_must_be_equal(tmp_path):
    paths = []
    for number, table in enumerate(([5, 6, 7, 8], [5, 6, 7, 9])):
        rows = np.array(table, np.int32)
        path = save(
            tmp_path / f"{number}.mlpackage",
            lambda at, rows=rows: mb().gather(x=rows, indices=at, axis=0, name="found"),
            {"at": np.zeros(4, np.int32)},
        )
        paths.append(path)
    (one,) = milblob.verify(*paths, {"at": [0, 1, 2, 3]}).outputs
    assert (one.limit, one.relative, one.differing, one.largest, one.is_within) == (0, 0.25, 1, 1, False)
    assert milblob.verify(*paths, {"at": [0, 1, 2, 2]}).is_same
    assert milblob.verify(*paths, {"at": [0, 1, 2, 3]}, max_error=0.25).is_same


# ------------------------------------------------------------------------------------------------------- random inputs


def test_tokens_are_below_the_rows_of_the_embedding():
    session = Session(DEMO)
    with milblob.open(DEMO) as model:
        rows = model["embedding_weight"].shape[0]
    assert index_bounds(session) == {"tokens": rows}
    tokens = np.concatenate([run["tokens"] for run in random_runs([session], 50, 0)])
    assert tokens.min() >= 0 and rows - 5 < tokens.max() < rows
    assert tokens.dtype == np.int32


def test_rows_are_found_through_other_operations(tmp_path):
    table = np.zeros((6, 3), np.float32)

    def build(direct, moved, count, both):
        one = mb().gather(x=table, indices=direct, axis=1)
        two = mb().gather(x=table, indices=mb().reshape(x=mb().expand_dims(x=moved, axes=[0]), shape=[2]), axis=0)
        three = mb().gather(x=table, indices=mb().cast(x=mb().cast(x=both, dtype="fp32"), dtype="int32"), axis=0)
        four = mb().gather(x=table, indices=both, axis=1)
        return one, two, mb().add(x=count, y=np.int32(3)), three, four

    inputs = dict.fromkeys(("direct", "moved", "count", "both"), np.zeros(2, np.int32))
    session = Session(save(tmp_path / "m.mlpackage", build, inputs))
    assert index_bounds(session) == {"direct": 3, "moved": 6, "both": 3}
    counts = np.concatenate([run["count"] for run in random_runs([session], 20, 0)])
    assert set(counts.tolist()) == {0, 1}


def test_the_same_seed_gives_the_same_inputs():
    session = Session(DEMO)
    a, b, c = (list(random_runs([session], 3, seed)) for seed in (0, 0, 1))
    assert all(np.array_equal(one["tokens"], two["tokens"]) for one, two in zip(a, b, strict=True))
    assert not all(np.array_equal(one["tokens"], two["tokens"]) for one, two in zip(a, c, strict=True))
    assert len(list(random_runs([session], 9, 0))) == 9


def test_optional_inputs_are_given_and_left_out(tmp_path):
    import coremltools as ct

    kinds = [ct.TensorType(name="x", shape=(3,))]
    kinds.append(ct.TensorType(name="y", shape=(3,), default_value=np.full(3, 7, np.float32)))
    inputs = dict.fromkeys("xy", np.zeros(3, np.float32))
    paths = []
    for factor in (1, 2):
        path = tmp_path / f"{factor}.mlpackage"
        save(path, lambda x, y, f=factor: mb().mul(x=mb().sub(x=x, y=y), y=np.float32(f)), inputs, inputs=kinds)
        paths.append(path)
    runs = random_runs([Session(paths[0])], None, 0)
    assert [("y" in run) for run in runs] == [True, False, True, False]
    assert milblob.verify(paths[0], paths[0]).is_same
    assert not milblob.verify(*paths).is_same


def test_axes_that_belong_together_have_the_same_size(tmp_path):
    import coremltools as ct

    kinds = [ct.TensorType(name=name, shape=(ct.RangeDim(1, 300, 4), 2)) for name in "ab"]
    path = save(
        tmp_path / "m.mlpackage", lambda a, b: mb().add(x=a, y=b), dict.fromkeys("ab", ((None, 2), np.float32)),
        inputs=kinds,
    )  # fmt: skip
    found = milblob.verify(path, path, runs=8)
    assert found.is_same and found.runs == 8
    sizes = [run["a"].shape[0] for run in random_runs([Session(path)], 8, 0)]
    assert sizes[:2] == [1, 300] and len(set(sizes)) > 4


def test_states_are_kept_and_compared(tmp_path):
    paths = []
    for step in (1, 2):

        def build(x, memory, step=step):
            old = mb().read_state(input=memory)
            new = mb().coreml_update_state(state=memory, value=mb().add(x=old, y=np.float16(step)))
            return mb().mul(x=x, y=mb().identity(x=mb().sub(x=new, y=new)), name="zero")

        zeros = np.zeros(3, np.float16)
        path = tmp_path / f"{step}.mlpackage"
        paths.append(save(path, build, {"x": zeros}, opset="iOS18", precision="fp16", states={"memory": zeros}))
    found = milblob.verify(*paths, runs=3)
    zero, memory = found.outputs
    assert zero.is_within and not zero.differing
    assert (memory.name, memory.largest, memory.relative, memory.run, memory.differing) == ("memory", 3, 1, 0, 9)
    assert len(found.worst) == 1
    assert milblob.verify(paths[0], paths[0]).is_same


def test_the_inputs_of_all_runs_up_to_the_worst_are_those_of_a_state(tmp_path):
    paths = []
    for step in (1, 4):

        def build(x, memory, step=step):
            old = mb().read_state(input=memory)
            return mb().coreml_update_state(state=memory, value=mb().add(x=old, y=mb().mul(x=x, y=np.float16(step))))

        paths.append(
            save(tmp_path / f"{step}.mlpackage", build, {"x": np.zeros(1, np.float16)}, opset="iOS18", precision="fp16",
                 states={"memory": np.zeros(1, np.float16)})
        )  # fmt: skip
    inputs = [{"x": np.float16([value])} for value in (0, 0, 1, 0)]
    found = milblob.verify(*paths, inputs)
    assert {one.run for one in found.outputs} == {2} and found.runs == 4
    assert [run["x"].item() for run in found.worst] == [0, 0, 1]


def test_runs_are_made_when_their_turn_comes(demo):
    """All of them at once take as much memory as there are."""
    seen = []

    def progress(name, done, total):
        seen.append(name)
        if name == "run 2":
            raise InterruptedError

    with pytest.raises(InterruptedError):
        milblob.verify(demo, demo, runs=2**31 - 1, progress=progress)
    assert seen == ["", "a", "b", "run 0", "run 1", "run 2"]


# --------------------------------------------------------------------------------------------------------- what is given


def test_an_axis_in_front_holds_several_runs(demo):
    tokens = np.arange(48, dtype=np.int32).reshape(3, 1, 16)
    found = milblob.verify(demo, demo, {"tokens": tokens})
    assert found.runs == 3
    assert milblob.verify(demo, demo, [{"tokens": tokens[0]}, {"tokens": tokens[1:]}]).runs == 3
    runs = given_runs({"tokens": tokens, "other": 5}, Session(demo).inputs)
    assert [run["tokens"][0, 0] for run in runs] == [0, 16, 32] and [run["other"] for run in runs] == [5, 5, 5]


WRONG = {
    "another name": ({"inputs": {"token": np.zeros((1, 16))}}, "got the unknown 'token'; did you mean tokens?"),
    "too few": ({"inputs": {}}, "inputs: expected tokens (int32 [1, 16]); got no tokens"),
    "no runs": ({"inputs": []}, "inputs: expected one run or more, got none"),
    "a path": ({"inputs": "x.npz"}, "inputs: expected arrays by name of input, got str"),
    "runs and inputs": ({"inputs": {"tokens": np.zeros((1, 16))}, "runs": 3}, "runs: expected none with inputs"),
    "more runs than anybody can wait for": ({"runs": 10**30}, f"runs: expected less than 2^31, got {10**30}"),
    "no random run": ({"runs": 0}, "runs: expected 1 or more, got 0"),
    "a negative seed": ({"seed": -1}, "seed: expected 0 or more, got -1"),
    "a limit that is NaN": ({"max_error": math.nan}, "max_error: expected 0 or more, got nan"),
    "a token that is none": ({"inputs": {"tokens": np.full((1, 16), 999)}}, "run 0: onnxruntime: expected inputs that"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_one_line(demo, name):
    options, words = WRONG[name]
    with pytest.raises((ValueError, TypeError, milblob.MilblobError)) as caught:
        milblob.verify(demo, demo, **options)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_function_that_neither_side_takes_is_refused(demo, tmp_path):
    """Of a session and an .onnx file it says nothing: it was passed over, even where no function has the name."""
    milblob.onnx.convert(demo, tmp_path / "m.onnx", weights="embed")
    session, file = Session(demo), tmp_path / "m.onnx"
    for a, b in ((session, session), (file, file), (session, str(file))):
        with pytest.raises(ValueError, match="^function: expected none of sessions and .onnx files, .*, got 'main'$"):
            milblob.verify(a, b, function="main", runs=1)
    assert milblob.verify(demo, file, function="main", runs=1).runs == 1


def test_different_numbers_of_runs_are_refused(tmp_path):
    inputs = dict.fromkeys("ab", np.zeros(2, np.float32))
    path = save(tmp_path / "m.mlpackage", lambda a, b: mb().add(x=a, y=b), inputs)
    with pytest.raises(ValueError, match="expected as many runs of each, along the first axis, got 2 of a, 3 of b"):
        milblob.verify(path, path, {"a": np.zeros((2, 2)), "b": np.zeros((3, 2))})


def test_models_with_other_inputs_or_outputs_are_refused(demo, tmp_path):
    path = save(tmp_path / "m.mlpackage", lambda x: mb().abs(x=x, name="y"), {"x": np.zeros(2, np.float32)})
    with pytest.raises(
        ValueError, match="inputs: expected the same of both models, got tokens only in A and x only in B"
    ):
        milblob.verify(demo, path)
    other = save(tmp_path / "o.mlpackage", lambda x: mb().abs(x=x, name="z"), {"x": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="outputs: expected the same of both models, got y only in A and z only in B"):
        milblob.verify(path, other)
    wide = save(tmp_path / "w.mlpackage", lambda x: mb().abs(x=x, name="y"), {"x": np.zeros(3, np.float32)})
    with pytest.raises(ValueError, match=r"input x: expected the same shape in both models, got float32 \[2\] and"):
        milblob.verify(path, wide)
    after = save(tmp_path / "z.mlpackage", lambda y: mb().abs(x=y, name="z"), {"y": np.zeros(2, np.float32)})
    with pytest.raises(ValueError, match="got y only in B; list models in the order in which they run$"):
        milblob.verify(other, [after, path])


def test_real_models_run_or_are_refused_by_operation():
    """Models by other people, where they are at hand: each one that has weights runs as itself, or says why not."""
    if not SAMPLES.is_dir():
        pytest.skip("no models by other people are here: only milblob's own were run")
    ran = 0
    for path in sorted(SAMPLES.glob("*/*.ml*")):
        try:
            with milblob.open(path) as model:
                model.metadata  # noqa: B018
                session = Session(model)
        except milblob.MilblobError as error:
            assert "\n" not in str(error)
            continue
        found = milblob.verify(session, path)
        assert found.is_same and not any(one.differing for one in found.outputs), path
        ran += 1
    assert ran >= 5


COMPRESSED = ("constexpr", "matrix", "optimize", "palette", "quant", "sparse")


@pytest.mark.parametrize(
    "name", sorted(path.name for path in DATA.iterdir() if path.name.startswith(COMPRESSED) and path.is_dir())
)
@pytest.mark.sample(8)
def test_a_compressed_model_predicts_what_its_decompressed_copy_does(tmp_path, name):
    """The same weights, decoded at another time: the same bits."""
    model = DATA / name / "model.mlpackage"
    milblob.repack(model, tmp_path / "dense.mlpackage", decompress=True)
    found = milblob.verify(model, tmp_path / "dense.mlpackage", runs=2)
    assert found.is_same and not any(one.differing for one in found.outputs)
