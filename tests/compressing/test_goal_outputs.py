"""A goal beside one recipe of the same size: never worse, in weights without inputs, in outputs with inputs."""

import json
import math

import pytest

import milblob
from compress_options import grouped
from goal_models import SAVE, make_inputs
from milblob import Linear, OutputSensitivity, Palette, Session
from thorough import sized, some

pytestmark = pytest.mark.usefixtures("one_thread", "unsynced")
RECIPES = (Palette(3), Palette(4), Palette(6), Linear("int8"))


@pytest.fixture(scope="module", params=some(SAVE, 1))
def model(request, tmp_path_factory):
    options = {} if request.param == "cnn" else {"layers": sized(2, 4)}
    return request.param, SAVE[request.param](tmp_path_factory.mktemp("goals") / "m.mlpackage", **options)


def outputs_error(model, path, inputs):
    """By what verify measures of two packages."""
    return 10 ** (-milblob.verify(model, path, inputs).outputs[0].sqnr / 10)


def test_goals_are_never_worse_than_one_recipe_of_that_size(model, tmp_path):
    kind, path = model
    inputs, out = make_inputs(kind, 2, 1), tmp_path / "o.mlpackage"
    errors = OutputSensitivity(path, inputs)
    alone = {}
    for recipe in RECIPES[:: sized(4, 1)]:
        report = milblob.compress(path, out, recipe, force=True)
        alone[recipe] = report, outputs_error(path, out, inputs)
    with milblob.open(path) as opened:
        count = sum(opened[one.name].size for one in report.weights)
        shares = {one.name: opened[one.name].size * len(opened[one.name].consumers) for one in report.weights}

    def of_weights(report):
        return math.fsum(shares[one.name] * one.squared / one.power for one in report.weights)

    for report, moved in list(alone.values())[:: sized(2, 1)]:
        bits = 8 * sum(one.nbytes_after for one in report.weights) / count
        for goal in ({"size": report.nbytes_after}, {"bits": bits * (1 + 1e-12)})[: sized(1, 2)]:
            chosen = milblob.compress(path, out, **grouped(**goal, dry_run=True, force=True))
            assert of_weights(chosen) <= of_weights(report) * (1 + 1e-12)
            assert chosen.outputs_sqnr is None
            chosen = milblob.compress(path, out, **grouped(**goal, errors=errors, force=True))
            found = outputs_error(path, out, inputs)
            assert found <= moved * (1 + 1e-3)
            assert -10 * math.log10(found) == pytest.approx(chosen.outputs_sqnr, abs=0.01)
        quality = min(one.sqnr for one in report.weights)
        chosen = milblob.compress(path, out, milblob.Goal(sqnr=quality - 1e-9), dry_run=True, force=True)
        assert chosen.nbytes_after <= report.nbytes_after


def test_no_best_mixture_is_below_its_neighbour(model):
    kind, path = model
    for errors in (None, OutputSensitivity(path, make_inputs(kind, 1, 1))):
        alone = milblob.compress_frontier(path, errors=errors).alone
        found = [one.chosen_error for one in alone]
        assert found == sorted(found, reverse=True) and len(found) > 5
        assert all(one.chosen_error <= other.point.error for n, one in enumerate(alone) for other in alone[: n + 1])


def test_a_weight_that_two_operations_read_counts_for_both(tmp_path):
    """Without inputs too, a language model keeps what one recipe keeps of its outputs."""
    path = SAVE["gpt"](tmp_path / "m.mlpackage")
    inputs, out = make_inputs("gpt", 4, 1), tmp_path / "o.mlpackage"
    report = milblob.compress(path, out, Palette(4))
    alone = outputs_error(path, out, inputs)
    milblob.compress(path, out, milblob.Goal(size=report.nbytes_after), force=True)
    assert outputs_error(path, out, inputs) <= alone * 1.01
    report = milblob.compress(path, out, milblob.Goal(size=report.nbytes_after + 16_000), dry_run=True, force=True)
    found = {one.name: one.sqnr for one in report.weights}
    assert found["tied"] > 30 and sum(sqnr < 21 for sqnr in found.values()) > 20  # room for it, not for all


def test_calibration_predicts_once_for_each_weight(tmp_path, monkeypatch):
    """Two passes over the runs before, one prediction for each weight, and one pass for each choice that is compared."""
    path, runs = SAVE["cnn"](tmp_path / "m.mlpackage"), 3
    count = []
    predict = Session.predict
    monkeypatch.setattr(Session, "predict", lambda *given, **named: count.append(1) or predict(*given, **named))
    errors = OutputSensitivity(path, make_inputs("cnn", runs, 1))
    assert len(count) == runs
    rows, out = [], tmp_path / "o.mlpackage"
    options = {"recipes": RECIPES, "errors": errors, "dry_run": True, "progress": lambda *row: rows.append(row)}
    report = milblob.compress(path, out, **grouped(bits=5, **options))
    assert {row[2] for row in rows} == {0, rows[-1][1]}  # it is not known at first
    assert sorted(row[1] for row in rows) == [row[1] for row in rows]
    fitting = 2  # palettes of 3 and 4 bits
    assert len(count) == runs + len(report.weights) + len(report.kept) + runs * (1 + fitting)


def test_a_quality_that_compresses_nothing_fails(cli, tmp_path):
    """A size that is there already, and a plan that keeps all, are reached."""
    from paths import DEMO

    plan = {"milblob": "compress plan", "version": 1, "weights": {"head_weight": {"recipe": None}}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    for number, (options, expected) in enumerate(
        {("--sqnr", "90"): 1, ("--size", "1M"): 0, ("--plan", tmp_path / "plan.json"): 0}.items()
    ):
        status, _, err = cli("compress", DEMO, "-o", tmp_path / f"{number}.mlpackage", *options, "-q")
        words = "milblob: no weight compressed: expected a recipe that keeps 90 dB of one of 26 weights, got none\n"
        assert (status, err) == (expected, words if expected else "")
