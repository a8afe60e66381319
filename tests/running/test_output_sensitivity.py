"""`OutputSensitivity`, and `compress --calibrate`: recipes are chosen by what they do to the outputs."""

import json
import shutil

import numpy as np
import pytest

import milblob
from compress_options import grouped
from draws import restarts
from milblob import OutputSensitivity, Session
from onnx_models import save
from paths import DEMO
from thorough import some

RANDOM = np.random.default_rng(0)
each_test_draws_the_same = restarts(RANDOM)
TOKENS = RANDOM.integers(0, 96, (4, 1, 16)).astype(np.int32)
OTHERS = RANDOM.integers(0, 96, (16, 1, 16)).astype(np.int32)


def mb():
    from coremltools.converters.mil.mil import Builder

    return Builder


def test_a_session_takes_other_values_for_its_weights(tmp_path):
    """The same as a model that has them, and the session stays as it was."""
    other = shutil.copytree(DEMO, tmp_path / "other.mlpackage")
    with milblob.open(other, "r+") as model:
        values = {name: model[name].read() * 2 for name in ("head_weight", "embedding_weight")}
        for name, array in values.items():
            model[name] = array
    session, inputs = Session(DEMO, replaceable=True), {"tokens": TOKENS[0]}
    plain = Session(DEMO).predict(inputs)["logits"]
    changed = session.predict(inputs, weights=values)["logits"]
    np.testing.assert_array_equal(changed, Session(other).predict(inputs)["logits"])
    np.testing.assert_array_equal(session.predict(inputs)["logits"], plain)
    assert not np.array_equal(changed, plain)
    assert list(session.inputs) == ["tokens"] and Session(DEMO).weights == {}
    for given, words in (
        ({"haed_weight": values["head_weight"]}, "got 'haed_weight'; did you mean head_weight"),
        ({"head_weight": values["head_weight"][1:]}, r"weight head_weight: expected float32 \[96, 48\] optional, got"),
    ):
        with pytest.raises(ValueError, match=words):
            session.predict(inputs, weights=given)
    with pytest.raises(ValueError, match="expected none, but of a session with replaceable=True"):
        Session(DEMO).predict(inputs, weights=values)


def test_the_cost_is_the_error_of_the_outputs(tmp_path):
    """Against the formula, and a model that has the changed weight in its file; one weight alone is estimated."""
    errors = OutputSensitivity(DEMO, {"tokens": TOKENS})
    assert errors.runs == 4
    other = shutil.copytree(DEMO, tmp_path / "other.mlpackage")
    with milblob.open(other, "r+") as model:
        name = "layers_2_mlp_up_weight"
        before = model[name].read().copy()
        after = (before + RANDOM.normal(size=before.shape) / 20).astype(before.dtype)
        model[name] = after
    plain, changed = (
        np.array([one.predict({"tokens": tokens})["logits"] for tokens in TOKENS], np.float64)
        for one in (Session(DEMO), Session(other))
    )
    expected = np.square(changed - plain).sum() / np.square(plain).sum()
    np.testing.assert_allclose(errors.of_all({name: after}), expected, rtol=1e-9)
    np.testing.assert_allclose(errors(name, before, after), expected, rtol=0.2)
    assert errors(name, before, before) == errors.of_all({}) == 0
    assert errors(name, before, np.full_like(before, np.nan)) == errors.of_all({name: after * np.nan}) == 1e12
    assert not errors.unmeasured


@pytest.mark.parametrize("bits", some([4, 6], 1))
def test_outputs_are_nearer_at_the_same_size(tmp_path, bits):
    """Also for inputs that the choice did not see."""
    paths = {}
    for name, more in (("plain", {}), ("measured", {"errors": OutputSensitivity(DEMO, {"tokens": TOKENS})})):
        paths[name] = tmp_path / f"{name}.mlpackage"
        milblob.compress(DEMO, paths[name], **grouped(bits=bits, **more))
    found = {name: milblob.verify(DEMO, path, {"tokens": OTHERS}).outputs[0].sqnr for name, path in paths.items()}
    assert found["measured"] > found["plain"] + 2


@pytest.fixture
def unequal(tmp_path):
    """Two layers of one size; the first one's outputs hardly reach the result."""
    weights = [RANDOM.normal(size=(64, 64)).astype(np.float32) for _ in range(2)]

    def build(x):
        small = mb().mul(x=mb().linear(x=x, weight=weights[0]), y=np.float32(1e-3))
        return mb().add(x=small, y=mb().linear(x=x, weight=weights[1]), name="y")

    return save(tmp_path / "m.mlpackage", build, {"x": np.zeros((1, 64), np.float32)})


def test_weights_that_matter_get_the_bits(unequal, tmp_path):
    with milblob.open(unequal) as model:
        first, second = (name for name in model if "weight" in name)
    inputs = {"x": RANDOM.normal(size=(3, 1, 64))}
    recipes = [milblob.Palette(nbits) for nbits in (2, 4, 8)]
    options = {"bits": 6.2, "recipes": recipes, "dry_run": True}
    plain = milblob.compress(unequal, tmp_path / "o.mlpackage", **grouped(**options))
    assert {one.recipe.bits for one in plain.weights} == {4}  # by their own errors both are alike
    errors = OutputSensitivity(unequal, inputs)
    measured = milblob.compress(unequal, tmp_path / "o.mlpackage", **grouped(**options, errors=errors))
    found = {one.name: one.recipe.bits for one in measured.weights}
    assert found[second] == 8 and found[first] < 8
    frontier = milblob.compress_frontier(unequal, recipes=recipes, errors=errors)
    assert frontier.points[-1].error < frontier.points[0].error


def test_states_are_kept_from_run_to_run_and_counted(tmp_path):
    weight, x = RANDOM.normal(size=(32, 32)) / 24, RANDOM.normal(size=(5, 1, 32)).astype(np.float16)

    def build(x, memory):
        old = mb().read_state(input=memory)
        moved = mb().linear(x=mb().add(x=x, y=old), weight=weight.astype(np.float16))
        return mb().relu(x=mb().coreml_update_state(state=memory, value=moved), name="y")

    zeros = np.zeros((1, 32), np.float16)
    model = tmp_path / "m.mlpackage"
    save(model, build, {"x": zeros}, opset="iOS18", precision="fp16", states={"memory": zeros})
    errors = OutputSensitivity(model, {"x": x})
    session = Session(model, replaceable=True)
    ((name, kind),) = session.weights.items()
    with milblob.open(model) as opened:
        before = opened[name].read()
    after = (before * 1.5).astype(kind.dtype)
    runs = []
    for weights in ({}, {name: after}):
        state = session.make_state()
        runs.append([session.predict({"x": one}, state, weights=weights) | dict(state) for one in x])
    costs = []
    for output in runs[0][0]:
        a, b = (np.array([run[output] for run in runs[i]], np.float64) for i in (0, 1))
        costs.append(np.square(a - b).sum() / np.square(a).sum())
    np.testing.assert_allclose(errors.of_all({name: after}), np.mean(costs), rtol=1e-9)
    # What the state carries from run to run is not in the estimate: with larger weights it is too low.
    np.testing.assert_allclose(errors(name, before, after), np.mean(costs), rtol=0.5)


def test_elements_count_by_the_mean_squares_of_what_they_are_multiplied_with(tmp_path):
    """Of every operation that multiplies, along the axis it sums over, against mean squares from NumPy."""
    rng = np.random.default_rng(7)

    def weight(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    x = (rng.standard_normal((3, 1, 16, 8, 8)) * np.exp(rng.standard_normal((16, 1, 1)))).astype(np.float32)
    rows = (rng.standard_normal((3, 5, 24)) * np.exp(rng.standard_normal(24))).astype(np.float32)

    def build(x, rows, indices):
        tied = mb().const(val=weight(20, 24), name="tied")
        turned = mb().transpose(x=rows, perm=[1, 0])
        made = [
            mb().conv(x=x, weight=mb().const(val=weight(12, 16, 3, 3), name="conv"), pad_type="same"),
            mb().conv(x=x, weight=mb().const(val=weight(12, 4, 3, 3), name="grouped"), groups=4),
            mb().conv_transpose(x=x, weight=mb().const(val=weight(16, 4, 2, 2), name="transposed")),
            mb().linear(x=rows, weight=mb().const(val=weight(32, 24), name="linear")),
            mb().matmul(x=rows, y=mb().const(val=weight(24, 20), name="product")),
            mb().matmul(x=rows, y=mb().const(val=weight(20, 24), name="turned"), transpose_y=True),
            mb().matmul(x=mb().const(val=weight(20, 24), name="left"), y=turned),
            mb().matmul(x=mb().const(val=weight(24, 20), name="left_turned"), y=turned, transpose_x=True),
            mb().add(
                x=mb().gather(x=tied, indices=indices, axis=0),
                y=mb().matmul(x=mb().linear(x=rows, weight=tied), y=weight(20, 24)),
            ),
        ]
        return [mb().relu(x=one, name=f"y{number}") for number, one in enumerate(made)]

    indices = np.array([1, 3, 3, 0, 7], np.int32)
    feeds = {"x": x[0], "rows": rows[0], "indices": indices}
    model = save(tmp_path / "m.mlpackage", build, feeds, opset="iOS17")
    errors = OutputSensitivity(model, {"x": x, "rows": rows, "indices": indices})
    channels, columns = (
        np.square(one.astype(np.float64)).mean(axes) for one, axes in ((x, (0, 1, 3, 4)), (rows, (0, 1)))
    )
    expected = {
        "conv": channels[None, :, None, None],
        "grouped": channels.reshape(4, 1, 4).repeat(3, 1).reshape(12, 4, 1, 1),
        "transposed": channels[:, None, None, None],
        "linear": columns, "product": columns[:, None], "turned": columns, "left": columns, "left_turned": columns[:, None],
        "tied": columns / columns.mean() + 1,  # the table's rows count alike
    }  # fmt: skip
    with milblob.open(model) as opened:
        for name, moments in expected.items():
            before = opened[name].read()
            moments = np.broadcast_to(moments, before.shape)
            first, last = np.zeros_like(before), np.zeros_like(before)
            first.flat[0] = last.flat[-1] = 0.25
            costs = [errors(name, before, before + change) for change in (first, last)]
            np.testing.assert_allclose(costs[0] / costs[1], moments.flat[0] / moments.flat[-1], rtol=2e-3, err_msg=name)
    assert not errors.unmeasured


# -------------------------------------------------------------------------------------------------- the command's option


@pytest.fixture
def files(tmp_path, monkeypatch):
    shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    np.savez(tmp_path / "data.npz", tokens=TOKENS)
    np.savez(tmp_path / "wrong.npz", token=TOKENS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_calibrate_on_the_command_line(cli, files):
    argv = ["compress", "m.mlpackage", "-o", "o.mlpackage", "--bits", "4", "--calibrate", "data.npz"]
    status, out, err = cli(*argv, "--json", "-n")
    errors = OutputSensitivity("m.mlpackage", {"tokens": TOKENS})
    expected = milblob.compress("m.mlpackage", "o.mlpackage", milblob.Goal(bits=4, errors=errors), dry_run=True)
    assert (status, err) == (0, "")
    found, wanted = ({row["name"]: row["recipe"] for row in rows} for rows in (json.loads(out)["weights"], expected.to_dict()["weights"]))  # fmt: skip
    assert found == wanted
    assert cli("compress", "m.mlpackage", "--frontier", "f.svg", "--calibrate", "data.npz", "-q")[0] == 0


def test_what_calibrate_cannot_use_is_an_error(cli, files):
    before = sorted(files.rglob("*"))
    argv = ["compress", "m.mlpackage", "-o", "o.mlpackage"]
    for options, words in (
        (["--int8", "--calibrate", "data.npz"], "--calibrate: expected --size, --bits, --sqnr or --frontier"),
        (["--bits", "4", "--calibrate", "wrong.npz"], "got the unknown 'token'; did you mean tokens?"),
        (["--bits", "4", "--calibrate", "none.npz"], "none.npz"),
    ):
        status, out, err = cli(*argv, *options)
        assert (status, out) == (2, "") and words in err
    assert sorted(files.rglob("*")) == before


def test_weights_that_cannot_be_replaced_are_named(cli, tmp_path):
    """Those of an LSTM have another order of gates in ONNX; they count by their own error."""
    size, rng = 32, RANDOM
    given = {name: rng.normal(size=shape).astype(np.float32) / 4
             for name, shape in (("ih", (4 * size, size)), ("hh", (4 * size, size)), ("out", (64, size)))}  # fmt: skip

    def build(x):
        zeros = np.zeros((1, size), np.float32)
        _, last, _ = mb().lstm(
            x=x, initial_h=zeros, initial_c=zeros, weight_ih=given["ih"], weight_hh=given["hh"],
            bias=np.zeros(4 * size, np.float32),
        )  # fmt: skip
        return mb().linear(x=last, weight=given["out"], name="y")

    model = save(tmp_path / "m.mlpackage", build, {"x": np.zeros((3, 1, size), np.float32)})
    x = rng.normal(size=(2, 3, 1, size)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    errors = OutputSensitivity(model, {"x": x})
    with milblob.open(model) as opened:
        lstm = [name for name in opened if opened[name].consumers[0].type == "lstm" and opened[name].size > 1000]
        before = opened[lstm[0]].read()
    after = before + np.float32(0.01)
    np.testing.assert_allclose(
        errors(lstm[0], before, after), np.square(after - before).sum() / np.square(before).sum(), rtol=1e-5
    )
    assert list(errors.unmeasured) == lstm[:1]
    argv = ["compress", model, "-o", tmp_path / "o.mlpackage", "--bits", "5"]
    status, _, err = cli(*argv, "--calibrate", tmp_path / "x.npz", "-q")
    said = err.splitlines()[-1]
    assert status == 0 and said.startswith("milblob: --calibrate: measured by their own error, for they cannot be ")
    assert all(name in said for name in lstm)
