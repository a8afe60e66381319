"""milblob.compress with a size, bits or a quality instead of a recipe, and its plans."""

import itertools
import json
import math
import re
import shutil
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

import milblob
from compress_models import save_model, with_config
from compress_options import grouped, scoped
from milblob import CompressPlan, Linear, Palette, Prune
from milblob.cli import main
from milblob.compressing.compress_plan import PlannedWeight
from milblob.compressing.goals import LADDER
from milblob.compressing.parse_recipe import RECIPES
from paths import DATA, ROOT
from peers import WITHOUT
from progress_rows import steps
from repacking import tree
from thorough import sized, some

pytestmark = pytest.mark.usefixtures("one_thread", "unsynced")
DEMO = ROOT / "examples" / "demo.mlpackage"
FUNCTIONS = DATA / "functions" / "model.mlpackage"
PIPELINES = [DATA / "pipeline" / "model.mlpackage"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model for iOS 18 with weights of many kinds, tied ones, and one whose readers disagree."""
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    return save_model(tmp_path_factory.mktemp("model") / "m.mlpackage", 18, np.float16)


def compress(src, folder, **options):
    return milblob.compress(src, folder / "out.mlpackage", **grouped(force=True, **options))


def stored_nbytes(path):
    """Bytes of all weights of a package, each record once."""
    with milblob.open(path, stored=True) as opened:
        rows = {(t.file, t.offset) if t.is_blob else name: t.nbytes for name, t in opened.items()}
    return sum(rows.values())


def reads(source, names):
    """Elements of weights, once for each operation that reads them: how much their errors count."""
    with milblob.open(source) as opened:
        return {name: opened[name].size * len(opened[name].consumers) for name in names}


def total(report):
    """The relative squared errors of the weights, each for its elements and the operations that read it."""
    shares = reads(report.source, [one.name for one in report.weights])
    return sum(shares[one.name] * one.squared / one.power for one in report.weights)


@pytest.mark.parametrize("nbytes", [50_000, 70_000, 90_000, 120_000, 200_000])
def test_size_is_that_of_the_result(nbytes, tmp_path):
    report = compress(DEMO, tmp_path, size=nbytes)
    assert report.nbytes_after <= nbytes
    assert report.nbytes_after == stored_nbytes(tmp_path / "out.mlpackage")
    assert list(milblob.check(tmp_path / "out.mlpackage")) == []
    names = [one.name for one in report.weights]
    assert sorted(names + report.kept) == sorted({*names, *report.kept})
    assert len(names) + len(report.kept) == 26
    assert all((name, "the plan keeps it as it is") in report.skipped for name in report.kept)


def test_more_bytes_never_lose_more(model, tmp_path):
    """Sizes that the walk passes through; each has the least error for its size."""
    sizes = range(33_000, 160_000, sized(25_000, 5_000))
    errors = []
    for nbytes in sizes:
        report = compress(model, tmp_path, size=nbytes, dry_run=True)
        assert report.nbytes_after <= nbytes
        errors.append(total(report))
    assert errors[-1] == 0.0
    assert errors[0] > 1000
    assert sum(later > earlier for earlier, later in itertools.pairwise(errors)) == 0


def test_least_error_of_all_combinations(tmp_path):
    """Two or three weights, three recipes: what each combination takes and loses, by compressing with it."""
    names = ["head_weight", "embedding_weight", "layers_0_mlp_up_weight"][: sized(2, 3)]
    ladder = [Linear(), Palette(4), Palette(2)]
    rows = []
    for picked in itertools.product([*ladder, None], repeat=len(names)):
        if any(picked):
            report = compress(DEMO, tmp_path, per_name=dict(zip(names, picked, strict=True)), dry_run=True)
            rows.append((report.nbytes_after, total(report)))
    rows.append((report.nbytes, 0.0))
    single = [compress(DEMO, tmp_path, recipe=one, select=names, dry_run=True) for one in ladder]
    shares = reads(DEMO, names)
    biggest = max(shares[one.name] * one.squared / one.power for report in single for one in report.weights)
    exact = 0
    for nbytes in sorted({row[0] for row in rows}):
        best = min(error for size, error in rows if size <= nbytes)
        report = compress(DEMO, tmp_path, size=nbytes, recipes=ladder, select=names, dry_run=True)
        assert report.nbytes_after <= nbytes
        assert best - 1e-9 <= total(report) < best + biggest
        exact += math.isclose(total(report), best, abs_tol=1e-9)
    assert exact >= sized(4, 10)  # at the sizes of the walk, and often between them


def test_size_as_text_and_out_of_reach(tmp_path):
    assert compress(DEMO, tmp_path, size="100KB", dry_run=True).nbytes_after <= 100 << 10
    with pytest.raises(
        ValueError, match=r"size: expected (\d+) bytes or more, which the smallest recipes take .*, got 1000"
    ) as caught:
        compress(DEMO, tmp_path, size=1000)
    least = int(str(caught.value).split()[2])
    assert compress(DEMO, tmp_path, size=least).nbytes_after == least
    with pytest.raises(ValueError, match="size: expected"):
        compress(DEMO, tmp_path, size=least - 1)


@pytest.mark.parametrize("bits", [2.5, 4.2, 7.0, 16.0])
def test_bits_are_those_of_the_weights_that_can_be_compressed(bits, tmp_path):
    report = compress(DEMO, tmp_path, bits=bits)
    with milblob.open(DEMO) as opened:
        kept = [opened[name] for name in report.kept]
        count = sum(tensor.size for tensor in kept) + sum(opened[one.name].size for one in report.weights)
        nbytes = sum(tensor.nbytes for tensor in kept) + sum(one.nbytes_after for one in report.weights)
    assert bits - 1 < 8 * nbytes / count <= bits


def test_bits_out_of_reach(tmp_path):
    with pytest.raises(ValueError, match=r"bits: expected 2\.\d+ or more, which the smallest recipes take, got 1"):
        compress(DEMO, tmp_path, bits=1)


@pytest.fixture(scope="module")
def by_recipe(tmp_path_factory):
    """What each recipe of the ladder makes of the weights of the demo, without writing it."""
    folder = tmp_path_factory.mktemp("recipes")
    recipes = {one for one in LADDER if one.opset <= 17}
    return [one for recipe in recipes for one in compress(DEMO, folder, recipe=recipe, dry_run=True).weights]


@pytest.mark.parametrize("sqnr", [10, 30, 41.5, 200])
def test_quality_of_every_weight_in_the_fewest_bytes(sqnr, by_recipe, tmp_path):
    report = compress(DEMO, tmp_path, sqnr=sqnr)
    assert all(one.sqnr >= sqnr for one in report.weights)
    sizes = {}
    for one in by_recipe:
        if one.sqnr >= sqnr:
            sizes.setdefault(one.name, []).append(one.nbytes_after)
    assert {one.name: one.nbytes_after for one in report.weights} == {name: min(each) for name, each in sizes.items()}
    assert len(report.kept) == 26 - len(sizes)


def test_sensitivity(tmp_path):
    plain = compress(DEMO, tmp_path, size=60_000, dry_run=True)
    heavy = compress(DEMO, tmp_path, size=60_000, sensitivity={"layers_0_*": 1e6, "head_weight": 0.0}, dry_run=True)
    before, after = ({one.name: one.sqnr for one in report.weights} for report in (plain, heavy))
    assert all(after.get(name, math.inf) >= before[name] for name in before if name.startswith("layers_0"))
    assert any(after.get(name, math.inf) > before[name] for name in before if name.startswith("layers_0"))
    assert {one.recipe for one in heavy.weights if one.name == "head_weight"} == {Palette(2)}
    quiet = compress(DEMO, tmp_path, sqnr=30, sensitivity={"head_weight": 100}, dry_run=True)
    assert all(one.sqnr >= (50 if one.name == "head_weight" else 30) for one in quiet.weights)
    with pytest.raises(
        ValueError,
        match=r"sensitivity: expected names of weights that can be compressed in .*, got 'haed_weight'; did you mean head_weight",
    ):
        compress(DEMO, tmp_path, size=60_000, sensitivity={"haed_weight": 2})


def shared_names(path):
    """Names of weights of two dimensions that share a record: a list for each record."""
    with milblob.open(path) as opened:
        places = {}
        for name, tensor in opened.items():
            if tensor.is_blob and len(tensor.shape) > 1:
                places.setdefault(tensor.constant.blob_offset, []).append(name)
    return [names for names in places.values() if len(names) > 1]


def test_weights_that_share_bytes_get_one_recipe(tmp_path):
    report = compress(FUNCTIONS, tmp_path, bits=5, min_size=0, recipes=[Linear(), Palette(4), Palette(2)])
    recipes = {one.name: one.recipe for one in report.weights}
    assert shared_names(FUNCTIONS)
    for names in shared_names(FUNCTIONS):
        assert len({recipes.get(name) for name in names}) == 1
    assert len(set(recipes.values())) > 1


@pytest.mark.parametrize("path", [FUNCTIONS, *PIPELINES], ids=lambda path: path.parent.name)
def test_functions_and_pipelines(path, tmp_path):
    whole = compress(path, tmp_path, sqnr=-1000, min_size=0, dry_run=True)  # the smallest recipe of each
    assert whole.weights
    for nbytes in {whole.nbytes_after, (whole.nbytes_after + whole.nbytes) // 2, whole.nbytes}:
        report = compress(path, tmp_path, size=nbytes, min_size=0)
        assert report.nbytes_after <= nbytes
        assert report.nbytes_after == stored_nbytes(tmp_path / "out.mlpackage")
    with pytest.raises(ValueError, match=f"size: expected {whole.nbytes_after} bytes or more"):
        compress(path, tmp_path, size=whole.nbytes_after - 1, min_size=0)


def test_ladder_is_what_the_opset_holds(model, tmp_path):
    found = compress(model, tmp_path, size=40_000, dry_run=True)
    assert any(one.recipe.opset == 18 for one in found.weights)
    earlier = compress(DEMO, tmp_path, size=50_000, dry_run=True)
    assert all(one.recipe.opset < 18 for one in earlier.weights)
    with pytest.raises(milblob.UnsupportedError, match="expected a model for iOS 18 or later"):
        compress(DEMO, tmp_path, size=50_000, recipes=[Linear("int4")])


def test_other_choices_go_with_a_goal(tmp_path):
    report = compress(
        DEMO, tmp_path, bits=5, select="layers_*", per_name={"layers_0_*": Prune(0.5), "layers_1_*": None}, dry_run=True,
    )  # fmt: skip
    recipes = {one.name: one.recipe for one in report.weights}
    assert {recipe for name, recipe in recipes.items() if name.startswith("layers_0")} == {Prune(0.5)}
    assert not any(name.startswith("layers_1") for name in recipes)
    assert "head_weight" not in recipes and "head_weight" not in report.kept


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"size": 9, "bits": 4}, "goal: expected one of size, bits and sqnr, got size and bits"),
        ({"size": -1}, "size: expected 0 bytes or more, got -1"),
        ({"size": "many"}, "size: expected bytes, such as 64M or 2G, got 'many'"),
        ({"bits": math.nan}, "bits: expected a finite number of 0 or more, got nan"),
        ({"bits": -1}, "bits: expected a finite number of 0 or more, got -1"),
        ({"bits": 10**400}, "bits: expected a finite number of 0 or more, got 1000000000"),
        ({"sqnr": -(10**400)}, "sqnr: expected a finite number, got -1000000000"),
        ({"bits": 4, "sensitivity": {"head_weight": 10**400}}, "sensitivity of head_weight: expected a finite number of 0"),
        ({"size": "9" * 5000}, "size: expected bytes, such as 64M or 2G, got '999999999"),
        ({"sqnr": math.inf}, "sqnr: expected a finite number, got inf"),
        ({"bits": 4, "recipes": []}, "recipes: expected one or more to choose from, got none"),
        ({"recipes": [Linear()]}, "goal: expected one of size, bits and sqnr, got none"),
        ({"sensitivity": {"a": 1}}, "goal: expected one of size, bits and sqnr, got none"),
        ({"bits": 4, "sensitivity": {"head_weight": -1}}, "sensitivity of head_weight: expected a finite number of 0"),
        ({"plan": {"milblob": 1}}, "plan: expected milblob: 'compress plan', got 1"),
        ({"plan": CompressPlan({}), "min_size": 5}, "scope: expected none with a CompressPlan, which names the weights, got one"),
        ({"plan": CompressPlan({}), "select": "a"}, "scope: expected none with a CompressPlan"),
    ],
)  # fmt: skip
def test_wrong_goals_are_refused(options, words, tmp_path):
    with pytest.raises(ValueError) as caught:
        compress(DEMO, tmp_path, **options)
    assert str(caught.value).startswith(words) and len(str(caught.value)) < 200
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("cost", some([1.7e308, 10**400, math.inf], 1), ids=["float", "integer", "infinity"])
@pytest.mark.parametrize("goal", [{"bits": 6}, {"size": 75_000}, {"sqnr": 25}], ids=str)
def test_errors_as_large_as_can_be(goal, cost, tmp_path):
    """Their sums, and their products with sensitivities, are beyond all floats; such a recipe is the last choice."""

    def errors(name, before, after):
        is_palette = len(np.unique(after)) <= 16
        return (cost if name.startswith("layers_0") else 0.002) if is_palette else 0.001

    options = {**goal, "recipes": [Linear(), Palette(4)], "errors": errors, "dry_run": True}
    recipes = {one.name: one.recipe for one in compress(DEMO, tmp_path, **options).weights}
    assert {recipe for name, recipe in recipes.items() if name.startswith("layers_0")} == {Linear()}
    assert Palette(4) in recipes.values()
    heavy = compress(DEMO, tmp_path, **options, sensitivity={"*": sys.float_info.max})
    assert "size" not in goal or heavy.nbytes_after <= goal["size"]


def test_a_named_weight_has_its_recipe_with_every_goal(tmp_path):
    """A goal that all weights reach as they are leaves them; one with a recipe of its own takes that one all the same."""
    report = compress(DEMO, tmp_path, sqnr=250, op_types={"gather": Linear()}, per_name={"head_weight": Palette(2)})
    assert {weight.name: weight.recipe for weight in report.weights} == {
        "embedding_weight": Linear(),
        "head_weight": Palette(2),
    }
    report = compress(
        DEMO, tmp_path, sqnr=-1e9, op_types={"gather": None}, per_name={"head_weight": None}, dry_run=True
    )
    names = {weight.name for weight in report.weights}
    assert len(names) > 5 and not names & {"embedding_weight", "head_weight"}


def test_progress_reaches_its_end(tmp_path):
    for options in ({"size": 90_000}, {"size": 180_000}, {"sqnr": 30}):
        rows = []
        compress(DEMO, tmp_path, **options, dry_run=True, progress=lambda *row, rows=rows: rows.append(row))
        rows = steps(rows)
        assert len({row[2] for row in rows}) == 1
        assert [row[1] for row in rows] == sorted(row[1] for row in rows)
        assert rows[-1][1] == rows[-1][2]


# --------------------------------------------------------------------------------------------------------------- plans


def test_a_plan_is_written_read_and_applied(tmp_path):
    first = milblob.compress(DEMO, tmp_path / "a.mlpackage", milblob.Goal(size=100_000))
    first.plan.save(tmp_path / "plan.json")
    assert (
        milblob.CompressPlan.load(tmp_path / "plan.json")
        == first.plan
        == milblob.CompressPlan.load(json.loads((tmp_path / "plan.json").read_text()))
    )
    again = milblob.compress(DEMO, tmp_path / "b.mlpackage", milblob.CompressPlan.load(tmp_path / "plan.json"))
    assert tree(tmp_path / "a.mlpackage") == tree(tmp_path / "b.mlpackage")
    assert (again.weights, again.kept, again.nbytes_after) == (first.weights, first.kept, first.nbytes_after)
    assert again.plan == first.plan
    with pytest.raises(FileExistsError):
        first.plan.save(tmp_path / "plan.json")
    first.plan.save(tmp_path / "plan.json", force=True)


def test_a_plan_with_a_function_is_not_saved(tmp_path):
    """It would not come back."""
    own = Palette(None, "custom", lut_function=lambda weight: ([0.0], np.zeros(weight.size, int)))
    report = milblob.compress(
        DEMO, tmp_path / "a.mlpackage", own, dry_run=True, scope=milblob.Scope(select="head_weight")
    )
    assert report.plan.recipes == {"head_weight": own}  # in memory it can be applied again
    for plan in (report.plan, CompressPlan({"head_weight": PlannedWeight(own + Prune(0.5))})):
        with pytest.raises(ValueError, match="got one with a lut_function for head_weight"):
            plan.save(tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_an_edited_plan(tmp_path):
    document = milblob.compress(DEMO, tmp_path / "a.mlpackage", Linear(), dry_run=True).plan.to_dict()
    weights = document["weights"]
    weights["head_weight"]["recipe"] = Palette(4).to_dict()
    weights["embedding_weight"] = {"recipe": None}
    del weights["layers_0_mlp_up_weight"]
    report = milblob.compress(DEMO, tmp_path / "a.mlpackage", document)
    recipes = {one.name: one.recipe for one in report.weights}
    assert (len(recipes), recipes["head_weight"], report.kept) == (24, Palette(4), ["embedding_weight"])
    with milblob.open(DEMO) as before, milblob.open(tmp_path / "a.mlpackage") as after:
        for name in ("embedding_weight", "layers_0_mlp_up_weight"):
            assert before[name].read().tobytes() == after[name].read().tobytes()


def test_a_plan_of_any_recipes(model, tmp_path):
    """Measured errors of a plan are those of the applied compression: every recipe, on every weight that takes it."""
    recipes = [
        *LADDER,
        Linear("uint4", "linear", "per_block", 8),
        Prune(0.5),
        Palette(2, "uniform"),
        Linear(search=True),
    ]
    names = itertools.cycle(recipes)
    report = milblob.compress(model, tmp_path / "a.mlpackage", milblob.Goal(sqnr=-1000, recipes=recipes), dry_run=True)
    plan = {one.name: next(names) for one in report.weights if one.name != "w_disagree"}  # which takes Prune alone
    document = {
        "milblob": "compress plan",
        "version": 1,
        "weights": {n: {"recipe": r.to_dict()} for n, r in plan.items()},
    }
    applied = milblob.compress(model, tmp_path / "a.mlpackage", document)
    assert {one.name: one.recipe for one in applied.weights} == plan
    assert applied.nbytes_after == stored_nbytes(tmp_path / "a.mlpackage")


def plan_with(name="head_weight", row=None, **changes):
    weights = {name: {"recipe": Linear().to_dict()} if row is None else row}
    return {"milblob": "compress plan", "version": 1, "weights": weights, **changes}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (plan_with("haed_weight"), "plan: .* has no weight 'haed_weight'; did you mean head_weight"),
        (plan_with("haed_weight", {"recipe": None}), "plan: .* has no weight 'haed_weight'; did you mean head_weight"),
        (plan_with("head_bias"), "plan: expected recipes only for weights that can be compressed so, got one for head_bias: expected two dim"),
        (plan_with(row={"recipe": {"recipe": "Round"}}), "head_weight in plan: recipe: expected one of .*, got 'Round'"),
        (plan_with(row={"recipe": {"recipe": "Linear", "nbits": 4}}), "head_weight in plan: Linear: expected its options dtype, mode, granularity, block, search, got 'nbits'"),
        (plan_with(row={"recipe": {"recipe": "Palette", "bits": 5}}), "head_weight in plan: bits: expected one of"),
        (plan_with(row={}), "head_weight in plan: expected a recipe and the figures .*, got none"),
        (plan_with(row={"recipe": None, "recipee": 1}), "head_weight in plan: expected a recipe and the figures .*, got 'recipee'"),
        (plan_with(row=[]), "head_weight in plan: expected an object with its recipe, got list"),
        (plan_with(version=2), "version of plan: expected 1, got 2"),
        (plan_with(version=True), "version of plan: expected 1, got True"),
        (plan_with(version=1.0), "version of plan: expected 1, got 1.0"),
        (plan_with(other=2), "plan: expected milblob, version and weights, got 'other'"),
        (plan_with(weights=[]), "weights of plan: expected an object with the name of each weight, got list"),
        (plan_with(row={"recipe": Prune(threshold=1e-9).to_dict()}), "got one for head_weight: expected a sparsity of 0.5 or more"),
        (plan_with(row={"recipe": Linear("int4").to_dict()}), "expected a model for iOS 18 or later"),
    ],
)  # fmt: skip
def test_plans_that_do_not_fit_are_refused(document, words, tmp_path):
    with pytest.raises((ValueError, KeyError, TypeError, milblob.UnsupportedError), match=words):
        milblob.compress(DEMO, tmp_path / "a.mlpackage", document)
    (tmp_path / "plan.json").write_text(json.dumps(document))
    with pytest.raises((ValueError, KeyError, milblob.MilblobError), match=words):
        milblob.compress(DEMO, tmp_path / "a.mlpackage", milblob.CompressPlan.load(tmp_path / "plan.json"))
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"milblob": "compress plan", "milblob": 1}', "[" * 100_000, "\xff"])
def test_files_that_are_no_plan(text, tmp_path):
    (tmp_path / "plan.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(milblob.FormatError, match=r"plan\.json"):
        milblob.compress(DEMO, tmp_path / "a.mlpackage", milblob.CompressPlan.load(tmp_path / "plan.json"))


def test_a_weight_tied_to_a_kept_one_frees_nothing(tmp_path):
    """Its record is still needed: compressing it only adds bytes, so it is kept whatever the size allows."""
    shared = shared_names(FUNCTIONS)[0]
    report = compress(
        FUNCTIONS, tmp_path, bits=15.9, select=shared[0], min_size=0, recipes=[Linear(), Palette(2)], dry_run=True
    )
    assert report.kept == [shared[0]]
    assert report.nbytes_after == report.nbytes


# ------------------------------------------------------------------------------------------------------------ frontier


def test_frontier_is_what_compress_reaches(model, tmp_path):
    frontier = milblob.compress_frontier(model)
    assert frontier.nbytes == stored_nbytes(model)
    assert all(a.nbytes < b.nbytes and a.error > b.error for a, b in itertools.pairwise(frontier.points))
    assert frontier.points[-1].error == 0.0
    for point in frontier.points[:: len(frontier.points) // 6]:
        report = compress(model, tmp_path, size=point.nbytes, dry_run=True)
        assert report.nbytes_after == point.nbytes
        weights = sum(reads(model, [*(one.name for one in report.weights), *report.kept]).values())
        assert total(report) / weights == pytest.approx(point.error, rel=1e-9, abs=1e-12)
        assert frontier.bits(point.nbytes) == pytest.approx(
            8 * (point.nbytes - frontier.fixed_nbytes) / frontier.element_count
        )
    for one in frontier.alone:
        report = compress(model, tmp_path, recipe=one.recipe, dry_run=True)
        assert report.nbytes_after == one.point.nbytes
        assert total(report) / weights == pytest.approx(one.point.error, rel=1e-9)
        assert one.chosen_error <= one.point.error
    assert all(a.chosen_error >= b.chosen_error for a, b in itertools.pairwise(frontier.alone))
    assert json.loads(json.dumps(frontier.to_dict()))["alone"][0]["recipe"] == frontier.alone[0].recipe.to_dict()


@pytest.mark.parametrize(
    "options", [{}, {"recipes": [Linear()]}, {"recipes": [Palette(None, "unique")]}, {"select": "head_weight"}]
)
def test_picture(options):
    """Well-formed, with units on both axes, everything inside the frame, and colours for dark paper."""
    frontier = milblob.compress_frontier(DEMO, **scoped(**options))
    root = ElementTree.fromstring(frontier.to_svg())
    _, _, width, height = map(float, root.get("viewBox").split())
    texts = ["".join(element.itertext()) for element in root.findall(".//{*}text")]
    assert "all weights as stored, KiB" in texts or not frontier.alone
    assert "SQNR, dB" in texts
    assert "prefers-color-scheme: dark" in root.find("{*}style").text
    (line,) = root.findall(".//{*}polyline")
    places = [tuple(map(float, pair.split(","))) for pair in line.get("points").split()]
    places += [(float(dot.get("cx")), float(dot.get("cy"))) for dot in root.findall(".//{*}circle")]
    assert all(0 < x < width and 0 < y < height for x, y in places)
    assert len(list(root.findall(".//{*}circle"))) == sum(one.point.error > 0 for one in frontier.alone)


# ------------------------------------------------------------------------------------------------------------- command


def test_command_with_goals_and_plans(tmp_path, capsys):
    out, plan = tmp_path / "a.mlpackage", tmp_path / "plan.json"
    argv = [
        "compress",
        str(DEMO),
        "-o",
        str(out),
        "--size",
        "60K",
        "--sensitivity",
        "head*=4",
        "--save-plan",
        str(plan),
        "--json",
    ]
    assert main(argv) == 0
    printed = json.loads(capsys.readouterr().out)
    report = milblob.compress(DEMO, tmp_path / "b.mlpackage", milblob.Goal(size=60 << 10, sensitivity={"head*": 4}))
    assert printed == json.loads(json.dumps(report.to_dict() | {"output": str(out)}))
    assert milblob.CompressPlan.load(plan) == report.plan
    assert main(["compress", str(DEMO), "-o", str(tmp_path / "c.mlpackage"), "--plan", str(plan)]) == 0
    assert tree(out) == tree(tmp_path / "b.mlpackage") == tree(tmp_path / "c.mlpackage")
    capsys.readouterr()
    assert (
        main(["compress", str(DEMO), "-o", str(tmp_path / "d.mlpackage"), "--bits", "5", "--save-plan", str(plan)]) == 2
    )
    assert "plan.json already exists (use --force to replace it)" in capsys.readouterr().err
    assert not (tmp_path / "d.mlpackage").exists()


def test_command_draws_the_frontier(tmp_path, capsys):
    picture = tmp_path / "f.svg"
    argv = [
        "compress",
        str(DEMO),
        "--frontier",
        str(picture),
        "--config",
        *with_config([{"recipes": ["int8", {"recipe": "Palette", "bits": 4}]}], tmp_path),
    ]
    assert main(argv) == 0
    printed = capsys.readouterr()
    assert [line.split("  ")[0] for line in printed.out.splitlines()] == ["recipe alone", "palette 4", "int8"]
    assert "drawn to" in printed.err
    frontier = milblob.compress_frontier(DEMO, recipes=[Linear(), Palette(4)])
    assert picture.read_text() == frontier.to_svg()
    assert main([*argv, "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(frontier.to_dict()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f.svg"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--size", "9"], "-o: expected the path of the result, got none"),
        (["--size", "x", "-o", "{}/o"], "size: expected bytes"),
        (["--int8", "-o", "{}/o", "--config", {"recipes": ["int8"]}], "recipes of --config: expected --size, --bits, --sqnr or --frontier"),
        (["--int8", "-o", "{}/o", "--sensitivity", "a=1"], "--sensitivity: expected --size"),
        (["--size", "90K", "-o", "{}/o", "--sensitivity", "a"], "expected GLOB=FACTOR, such as head*=4, got 'a'"),
        (["--size", "90K", "--bits", "4", "-o", "{}/o"], "compress: expected one of --size, --bits, "),
        (["--size", "90K", "--block", "32", "-o", "{}/o"], "--block: expected it only with --int8"),
        (["--plan", "{}/none.json", "-o", "{}/o"], "none.json"),
        (["--plan", "{}/none.json", "-o", "{}/o", "-k", "head*"], "-k: expected none with --plan"),
        (["--plan", "{}/none.json", "-o", "{}/o", "--min-size", "5"], "--min-size: expected none with --plan"),
        (["--frontier", "{}/f.svg", "-o", "{}/o"], "-o: expected none with --frontier"),
        (["--frontier", "{}/f.svg", "--save-plan", "{}/p"], "--save-plan: expected none with --frontier"),
        (["--frontier", "{}/f.svg", "-n"], "-n: expected none with --frontier"),
        (["--frontier", f"{DEMO}/f.svg"], "expected a place outside the model"),
        (["--frontier", "{}/f.svg", "--min-size", "9999999"], "--frontier: expected weights that can be compressed"),
    ],
)  # fmt: skip
def test_command_refuses(options, words, tmp_path, capsys):
    try:
        status = main(
            ["compress", str(DEMO), *(option.replace("{}", str(tmp_path)) for option in with_config(options, tmp_path))]
        )
    except SystemExit as stopped:
        status = stopped.code
    assert status == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


# ---------------------------------------------------------------------------------------------------------- odd weights


def test_odd_weights_have_choices_too(tmp_path):
    """All zero, constant, subnormal and very large ones; one with an infinity has none, and stays with the reason."""
    path = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    with milblob.open(path, "r+") as opened:

        def put(name, values):
            opened[name] = np.broadcast_to(values, opened[name].shape).astype(opened[name].dtype)

        put("embedding_weight", 0.0)
        put("layers_0_mlp_up_weight", 0.25)
        put("layers_1_mlp_up_weight", opened["layers_1_mlp_up_weight"].read().astype(np.float64) * 1e-7)
        put("layers_2_mlp_up_weight", opened["layers_2_mlp_up_weight"].read().astype(np.float64) * 1e4)
        broken = opened["head_weight"].read().copy()
        broken[3, 4] = np.inf
        put("head_weight", broken)
    for options in ({"bits": 3.0}, {"bits": 8.0}, {"sqnr": 25}):
        report = compress(path, tmp_path, **options)
        assert dict(report.skipped)["head_weight"] == "array: expected finite elements, got 1 that are NaN or infinite"
        assert "head_weight" not in report.kept
        weights = {one.name: one for one in report.weights}
        for name in ("embedding_weight", "layers_0_mlp_up_weight"):  # exact in any palette: the smallest one
            assert (weights[name].recipe, weights[name].squared) == (Palette(2), 0.0)
        assert all(math.isfinite(one.relative) for one in report.weights)
        assert list(milblob.check(tmp_path / "out.mlpackage")) == []
    points = milblob.compress_frontier(path).points
    assert all(math.isfinite(point.error) for point in points)


def test_the_page_shows_what_the_command_draws(tmp_path, capsys, monkeypatch):
    """docs/frontier.svg and the table in docs/compress-goals.md are those of the demo model."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(DEMO, "demo.mlpackage")
    assert main(["compress", "demo.mlpackage", "--frontier", "demo.svg"]) == 0
    printed = capsys.readouterr()
    page = (ROOT / "docs" / "compress-goals.md").read_text(encoding="utf-8")
    command = "$ milblob compress demo.mlpackage --frontier demo.svg\n"
    assert command + printed.out + printed.err in page
    assert (tmp_path / "demo.svg").read_text() == (ROOT / "docs" / "frontier.svg").read_text(encoding="utf-8")


def test_the_page_shows_what_each_recipe_loses(tmp_path):
    """The tables in docs/compress.md: the demo model, and the same with the opset of iOS 18."""
    newer = tmp_path / "newer.mlpackage"
    shutil.copytree(DEMO, newer)
    program = newer / "Data/com.apple.CoreML/model.mlmodel"
    data = program.read_bytes()
    assert data.startswith(b"\x08\x08")  # the version of the specification
    program.write_bytes(b"\x08\x09" + data[2:].replace(b"CoreML7", b"CoreML8"))
    assert list(milblob.check(newer)) == []
    page = (ROOT / "docs" / "compress.md").read_text(encoding="utf-8")
    section = page.split("## What each recipe loses\n")[1].split("\n## ")[0]
    tables = section.split("On the same model")
    assert len(tables) == 2
    for path, table in zip((DEMO, newer), tables, strict=True):
        rows = re.findall(r"^\| `(.+?)` \| ([\d.]+) KiB \| ([\d.]+) dB \|$", table, re.MULTILINE)
        assert len(rows) == table.count("\n| `") > 5
        for text, size, quality in rows:
            report = milblob.compress(path, tmp_path / "out.mlpackage", eval(text, dict(RECIPES)), dry_run=True)
            assert f"{report.nbytes / 1024:.1f} KiB" in section
            found = f"{report.nbytes_after / 1024:.1f}", f"{min(one.sqnr for one in report.weights):.1f}"
            assert found == (size, quality), text
