"""Compressing what is compressed: joint where Core ML has the operation, through dense values when asked; and `nan`, `importance`."""

import logging
import math
import shutil

import numpy as np
import pytest

import milblob
from compress_coremltools import decompressed, described, theirs
from compress_models import save_model, with_config
from compress_options import grouped, scoped
from milblob import Linear, Palette, Prune
from milblob.cli import main
from milblob.compressing.pieces import Pieces
from milblob.compressing.weight import Weight, is_far_from_infinity, measured_now
from milblob.lossy.palettize import palettize
from onnx_models import save
from paths import DATA, ROOT
from peers import WITHOUT
from thorough import some

pytestmark = pytest.mark.usefixtures("one_thread", "unsynced")
DEMO = ROOT / "examples" / "demo.mlpackage"
WHOLE = Linear(granularity="per_tensor")


def values(path):
    with milblob.open(path) as opened:
        return {name: tensor.read().copy() for name, tensor in opened.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    logging.disable(logging.CRITICAL)
    path = tmp_path_factory.mktemp("models") / "model.mlpackage"
    yield save_model(path, 18, np.dtype("float16"), disagree=False)
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("first", "second"),
    some([
        (Prune(0.5), Palette(4)), (Prune(0.5), Linear()), (Palette(4), WHOLE), (Palette(4), Prune(0.5)), (Linear(), Prune(0.5)),
        (Linear(), Palette(4)), (Prune(0.5) + Palette(4), WHOLE), (Prune(0.5), Palette(4) + WHOLE),
    ], 4),
    ids=str,
)  # fmt: skip
def test_two_steps_make_what_one_makes(first, second, model, tmp_path):
    """Operations, parts and values; and coremltools reads the same."""
    milblob.compress(model, tmp_path / "a.mlpackage", first)
    report = milblob.compress(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", second)
    once = milblob.compress(model, tmp_path / "c.mlpackage", first + second)
    assert [weight.name for weight in report.weights] == [weight.name for weight in once.weights]
    assert len(report.weights) >= 8
    got, expected = described(tmp_path / "b.mlpackage"), described(tmp_path / "c.mlpackage")
    for weight in report.weights:
        assert got[weight.name][0] == expected[weight.name][0]
        assert np.array_equal(got[weight.name][1], expected[weight.name][1])
    assert report.nbytes_after <= once.nbytes_after + 1024  # nothing of the first result is left
    assert [finding for finding in milblob.check(tmp_path / "b.mlpackage") if finding.code != "owner-only"] == []
    decompressed(tmp_path / "b.mlpackage", tmp_path / "d.mlpackage")
    with milblob.open(tmp_path / "d.mlpackage") as opened:
        for weight in report.weights:
            assert np.array_equal(opened[weight.name].read().astype(np.float64), got[weight.name][1])


@pytest.mark.parametrize("second", [Linear(), Palette(4), Palette(4) + WHOLE], ids=str)
def test_bits_after_a_mask_mean_nothing(second, tmp_path):
    """Whoever wrote them: what is made of a pruned weight has zeros there."""
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools.converters.mil import Builder as mb

    weight = (
        np.random.default_rng(8).standard_normal((67, 39)).astype(np.float32)
    )  # 2613 elements: 5 bits of the last byte

    def build(x):
        return mb.linear(x=x, weight=mb.const(val=weight, name="w"), name="y")

    path = save(tmp_path / "m.mlpackage", build, {"x": np.zeros((1, 39), np.float32)}, opset="iOS18", precision="fp32")
    milblob.compress(path, tmp_path / "pruned.mlpackage", Prune(0.5))
    milblob.compress(tmp_path / "pruned.mlpackage", tmp_path / "clean.mlpackage", second)
    with milblob.open(tmp_path / "pruned.mlpackage") as opened:
        mask = opened["w"].parts["mask"]
        with milblob.BlobReader(mask.file) as blobs:
            end = blobs.record(mask.offset).data_offset + 326
        with open(mask.file, "r+b") as file:
            file.seek(end)
            last = file.read(1)[0]
            assert last < 32
            file.seek(end)
            file.write(bytes([last | 0xE0]))
    milblob.compress(tmp_path / "pruned.mlpackage", tmp_path / "out.mlpackage", second)
    with (
        milblob.open(tmp_path / "out.mlpackage", stored=True) as got,
        milblob.open(tmp_path / "clean.mlpackage", stored=True) as due,
    ):
        assert list(got) == list(due) and len(list(got)) >= 3
        for name, tensor in got.items():
            assert bytes(tensor.read_packed()) == bytes(due[name].read_packed()), name


@pytest.mark.parametrize(
    ("kind", "recipe"), [("palettize", Palette(4)), ("linear", Linear())], ids=["palette of a pruned one", "integers"]
)
def test_what_coremltools_pruned_is_compressed_as_coremltools_does(kind, recipe, model, tmp_path):
    assert theirs(model, [("prune", {"target_sparsity": 0.5})], tmp_path / "a.mlpackage") is None
    steps = [("prune", {"target_sparsity": 0.5}), (kind, {"nbits": 4} if kind == "palettize" else {})]
    assert theirs(model, steps, tmp_path / "b.mlpackage") is None
    report = milblob.compress(tmp_path / "a.mlpackage", tmp_path / "c.mlpackage", recipe)
    got, expected = described(tmp_path / "c.mlpackage"), described(tmp_path / "b.mlpackage")
    assert {name: row for name, (row, _) in got.items()} == {name: row for name, (row, _) in expected.items()}
    assert len(report.weights) >= 8


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (Prune(0.5), Palette(4, scale=True), "Palette with others: expected scale=False: Core ML has no operation"),
        (Linear(), Palette(4, scale=True), "Palette with others: expected scale=False: Core ML has no operation"),
        (Linear(), Palette(4, vector=2), "Palette after Linear: expected vector=1: Core ML has no operation"),
        (Palette(4), Linear(), "Linear after Palette: expected granularity 'per_tensor', got 'per_channel'"),
        (Palette(4), Palette(2), "recipes: expected one of Linear + Palette, Linear + Prune, Palette + Linear"),
    ],
    ids=str,
)
def test_weights_that_cannot_be_recompressed_are_kept_with_the_reason(first, second, words, model, tmp_path):
    milblob.compress(model, tmp_path / "a.mlpackage", first, scope=milblob.Scope(select="w_linear"))
    report = milblob.compress(
        tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", second, scope=milblob.Scope(select="w_linear")
    )
    assert report.weights == []
    assert f"): {words}" in dict(report.skipped)["w_linear"]
    dense = milblob.compress(
        tmp_path / "a.mlpackage",
        tmp_path / "c.mlpackage",
        second,
        recompress=True,
        scope=milblob.Scope(select="w_linear"),
    )
    assert [weight.recipe for weight in dense.weights] == [second]


def test_through_dense_values_when_asked(tmp_path):
    milblob.compress(DEMO, tmp_path / "a.mlpackage", Linear())
    skipped = milblob.compress(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", Palette(4))
    assert skipped.weights == []
    assert ", or recompress, got a compressed one (" in dict(skipped.skipped)["embedding_weight"]
    report = milblob.compress(tmp_path / "a.mlpackage", tmp_path / "c.mlpackage", Palette(4), recompress=True)
    assert len(report.weights) == 26
    milblob.repack(tmp_path / "a.mlpackage", tmp_path / "d.mlpackage", decompress=True)
    milblob.compress(tmp_path / "d.mlpackage", tmp_path / "e.mlpackage", Palette(4))
    one, other = values(tmp_path / "c.mlpackage"), values(tmp_path / "e.mlpackage")
    assert all(np.array_equal(one[name], other[name]) for name in one)
    sizes = [
        sum(f.stat().st_size for f in (tmp_path / name).rglob("weight.bin")) for name in ("c.mlpackage", "e.mlpackage")
    ]
    assert abs(sizes[0] - sizes[1]) < 4096
    assert list(milblob.check(tmp_path / "c.mlpackage")) == []


def test_shared_chains_are_kept_shared(tmp_path):
    functions = DATA / "functions" / "model.mlpackage"
    milblob.compress(functions, tmp_path / "a.mlpackage", Linear(), scope=milblob.Scope(min_size=0))
    report = milblob.compress(
        tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", Palette(2), recompress=True, scope=milblob.Scope(min_size=0)
    )
    assert len(report.weights) >= 2

    def places(path):
        found = {}
        with milblob.open(path) as opened:
            for weight in report.weights:
                parts = opened[weight.name].parts
                key = tuple(sorted(part.constant.blob_offset for part in parts.values() if part.is_blob))
                found.setdefault(key, []).append(weight.name)
        return sorted(found.values())

    assert places(tmp_path / "a.mlpackage") == places(tmp_path / "b.mlpackage")


# ----------------------------------------------------------------------------------------------------------------- nan


@pytest.fixture
def broken(tmp_path):
    shutil.copytree(DEMO, tmp_path / "broken.mlpackage")
    with milblob.open(tmp_path / "broken.mlpackage", "r+") as opened:
        array = opened["head_weight"].read().copy()
        array[0, 0], array[0, 1], array[1, 0] = np.inf, -np.inf, np.nan
        array[3, :7] = np.inf
        opened["head_weight"] = array
    return tmp_path / "broken.mlpackage"


@pytest.mark.parametrize("recipe", [Palette(4), Palette(8), Prune(0.5), Prune(threshold=0.01, min_sparsity=0)], ids=str)
def test_what_is_not_finite_is_kept_when_asked(recipe, broken, tmp_path):
    stays = milblob.compress(broken, tmp_path / "a.mlpackage", recipe, scope=milblob.Scope(select="head_weight"))
    assert stays.weights == []
    assert "expected finite elements, got 10" in dict(stays.skipped)["head_weight"]
    report = milblob.compress(
        broken, tmp_path / "b.mlpackage", recipe, nan="keep", scope=milblob.Scope(select="head_weight")
    )
    old, new = values(broken)["head_weight"], values(tmp_path / "b.mlpackage")["head_weight"]
    is_finite = np.isfinite(old)
    assert np.array_equal(old[~is_finite], new[~is_finite], equal_nan=True)
    assert np.isfinite(new[is_finite]).all()
    lost = new[is_finite].astype(np.float64) - old[is_finite]
    assert report.weights[0].squared == pytest.approx(float(np.sum(lost**2)), rel=1e-5)
    assert report.weights[0].sqnr > (15 if isinstance(recipe, Palette) else 5)


def test_weights_that_no_recipe_continues_from_are_skipped(broken, tmp_path):
    for recipe, words in (
        (Linear(), "expected finite elements"),
        (Palette(1), "expected more entries than the 3 kinds of NaN and infinity need, got 2"),
        (Prune(1.0), "expected to keep NaN and infinity, got 10 that would become zero"),
    ):
        report = milblob.compress(
            broken,
            tmp_path / "b.mlpackage",
            recipe,
            nan="keep",
            dry_run=True,
            scope=milblob.Scope(select="head_weight"),
        )
        assert words in dict(report.skipped)["head_weight"]
    with pytest.raises(ValueError, match="nan: expected one of keep, skip, error, got 'zero'"):
        milblob.compress(broken, tmp_path / "b.mlpackage", Palette(4), nan="zero")


# ---------------------------------------------------------------------------------------------------------- importance


@pytest.mark.parametrize("recipe", [Palette(2), Linear("uint8", search=True), Prune(0.5)], ids=str)
@pytest.mark.parametrize("is_by_channel", [True, False])
def test_importance_lowers_the_weighted_error(recipe, is_by_channel, tmp_path):
    """Of the important elements; per input channel the same as per element."""
    name = "layers_0_mlp_up_weight"
    old = values(DEMO)[name].astype(np.float64)
    channels = np.full(old.shape[1], 0.01, np.float32)
    channels[: old.shape[1] // 4] = 10
    heavy = channels if is_by_channel else np.broadcast_to(channels, old.shape)
    errors = []
    for importance in (None, {name: heavy}):
        milblob.compress(
            DEMO,
            tmp_path / "a.mlpackage",
            recipe,
            force=True,
            scope=milblob.Scope(select=name),
            guidance=milblob.Guidance(importance=importance),
        )
        new = values(tmp_path / "a.mlpackage")[name].astype(np.float64)
        errors.append(float(np.sum(channels * (new - old) ** 2)))
    assert errors[1] < errors[0] or (isinstance(recipe, Linear) and errors[1] <= errors[0])


def test_pruning_by_importance_is_pruning_of_weighted_magnitudes(tmp_path):
    name = "layers_0_mlp_up_weight"
    old = values(DEMO)[name].astype(np.float64)
    heavy = np.random.default_rng(1).uniform(0.1, 4, old.shape).astype(np.float32)
    milblob.compress(
        DEMO,
        tmp_path / "a.mlpackage",
        Prune(0.75),
        scope=milblob.Scope(select=name),
        guidance=milblob.Guidance(importance={name: heavy}),
    )
    new = values(tmp_path / "a.mlpackage")[name]
    scores = np.abs(old) * np.sqrt(heavy.astype(np.float64))
    assert scores[new == 0].max() <= scores[new != 0].min() * (1 + 1e-6)
    assert np.count_nonzero(new == 0) == pytest.approx(0.75 * old.size, abs=2)
    assert np.array_equal(new[new != 0], old[new != 0])


def test_importance_that_does_not_fit_is_refused(tmp_path):
    name = "layers_0_mlp_up_weight"
    for importance, recipe, words in (
        ({"none": 1}, Palette(4), "importance: expected names of weights in .*, got 'none'"),
        ({name: np.ones(3)}, Palette(4), "one for each input channel, got shape \\(3,\\)"),
        ({name: -np.ones(values(DEMO)[name].shape)}, Palette(4), "expected finite weights of zero or more"),
        ({name: np.ones(values(DEMO)[name].shape)}, Linear(), "expected a recipe that weighs elements"),
    ):
        with pytest.raises(ValueError, match=words):
            milblob.compress(DEMO, tmp_path / "a.mlpackage", recipe, guidance=milblob.Guidance(importance=importance))


# --------------------------------------------------------------------------------------------------------- with a goal


LADDER = [Linear("int4", granularity="per_tensor"), Palette(2), Palette(1)]


def stored_nbytes(path):
    with milblob.open(path, stored=True) as opened:
        rows = {(t.file, t.offset) if t.is_blob else name: t.nbytes for name, t in opened.items()}
    return sum(rows.values())


@pytest.mark.parametrize("is_anew", [False, True])
@pytest.mark.parametrize("first", [Prune(0.5), Linear(), Prune(0.5) + Palette(4)], ids=str)
def test_size_counts_the_parts_that_go(first, is_anew, tmp_path):
    """Shared ones once; the least size is exact; the plan of a result makes it again."""
    source, output = tmp_path / "a.mlpackage", tmp_path / "b.mlpackage"
    milblob.compress(DATA / "functions" / "model.mlpackage", source, first, scope=milblob.Scope(min_size=0))
    options = {"recipes": LADDER, "min_size": 0, "recompress": is_anew, "force": True}
    least = milblob.compress(source, output, **grouped(sqnr=-1000, **options))
    assert least.weights
    for nbytes in (least.nbytes_after, (least.nbytes_after + least.nbytes) // 2, least.nbytes):
        report = milblob.compress(source, output, **grouped(size=nbytes, **options))
        assert report.nbytes_after <= nbytes
        assert report.nbytes_after == stored_nbytes(output)
        names = [one.name for one in report.weights] + [name for name, _ in report.skipped]
        assert len(names) == len(set(names))
        again = milblob.compress(source, tmp_path / "c.mlpackage", report.plan, recompress=is_anew, force=True)
        assert again.weights == report.weights
        old, new = values(output), values(tmp_path / "c.mlpackage")
        assert all(np.array_equal(old[name], new[name]) for name in old)
    with pytest.raises(ValueError, match=f"size: expected {least.nbytes_after} bytes or more"):
        milblob.compress(source, output, **grouped(size=least.nbytes_after - 1, **options))


def test_weights_that_no_recipe_continues_are_kept(tmp_path):
    milblob.compress(DEMO, tmp_path / "a.mlpackage", Linear())
    report = milblob.compress(tmp_path / "a.mlpackage", tmp_path / "b.mlpackage", milblob.Goal(sqnr=10), dry_run=True)
    assert report.weights == []
    words = (
        "expected a dense weight, or recompress, got one that no recipe continues from (constexpr_affine_dequantize)"
    )
    assert dict(report.skipped)["head_weight"] == words


def test_importance_is_used_by_what_is_chosen(tmp_path):
    name = "layers_0_mlp_up_weight"
    heavy = np.linspace(0, 10, values(DEMO)[name].size, dtype=np.float32).reshape(values(DEMO)[name].shape)
    options = {"select": name, "importance": {name: heavy}}
    milblob.compress(DEMO, tmp_path / "a.mlpackage", **grouped(sqnr=5, recipes=[Linear(), Palette(2)], **options))
    milblob.compress(DEMO, tmp_path / "b.mlpackage", Palette(2), **grouped(**options))
    milblob.compress(DEMO, tmp_path / "c.mlpackage", Palette(2), scope=milblob.Scope(select=name))
    chosen, weighed, plain = (values(tmp_path / f"{key}.mlpackage")[name] for key in "abc")
    assert np.array_equal(chosen, weighed)
    assert not np.array_equal(chosen, plain)


def weighted_error(old, new, heavy):
    """Squared error over power, both weighted, from the values in the files."""
    old, new, heavy = (np.asarray(one, np.float64) for one in (old, new, heavy))
    return float(np.sum(heavy * (new - old) ** 2) / np.sum(heavy * old**2))


@pytest.mark.parametrize("recipe", [Linear(), Palette(2), Prune(0.5), Palette(2, vector=2)], ids=str)
@pytest.mark.parametrize("is_by_channel", [True, False])
def test_goals_compare_errors_weighted_by_importance(recipe, is_by_channel, model, tmp_path):
    """Of recipes that weigh elements and of those that do not; the report still has the plain figures."""
    source, name = model, "w_linear"
    old = values(source)[name]
    heavy = np.full(old.shape[1] if is_by_channel else old.shape, 0.1, np.float32)
    heavy[..., : old.shape[1] // 4] = np.random.default_rng(2).uniform(1, 5, old.shape[1] // 4)
    options = {"select": name, "importance": {name: heavy}, "recipes": [recipe], "min_size": 0}
    report = milblob.compress(source, tmp_path / "a.mlpackage", **grouped(sqnr=-1000, **options))
    new = values(tmp_path / "a.mlpackage")[name]
    wanted = weighted_error(old, new, np.broadcast_to(heavy, old.shape))
    plain = weighted_error(old, new, np.ones(old.shape))
    assert not math.isclose(wanted, plain, rel_tol=1e-3)
    (alone,) = milblob.compress_frontier(source, **scoped(**options)).alone
    assert alone.point.error == pytest.approx(wanted, rel=1e-6)
    assert report.weights[0].squared / report.weights[0].power == pytest.approx(plain, rel=1e-5)
    limit = -10 * math.log10(wanted)
    for sqnr, count in ((limit - 0.01, 1), (limit + 0.01, 0)):
        found = milblob.compress(source, tmp_path / "b.mlpackage", **grouped(sqnr=sqnr, dry_run=True, **options))
        assert len(found.weights) == count


def test_errors_are_those_that_a_given_function_returns(tmp_path):
    """It gets the values that are in the result; equal weights are measured once, each by its own name."""
    names = ["layers_0_mlp_up_weight", "layers_1_mlp_up_weight"]
    recipes, seen = [Linear(), Palette(4), Palette(2)], {}

    def errors(name, before, after):
        key = next(key for key, one in made.items() if np.array_equal(one[name], after))
        assert np.array_equal(before, made[None][name])
        seen.setdefault(name, []).append(key)
        return {"Linear": 3.0, "Palette": 1.0 if name == names[0] else 5.0}[key[:-1] if key[-1].isdigit() else key]

    made = {None: values(DEMO)}
    for key, recipe in (("Linear", recipes[0]), ("Palette4", recipes[1]), ("Palette2", recipes[2])):
        milblob.compress(DEMO, tmp_path / f"{key}.mlpackage", recipe, scope=milblob.Scope(select=names))
        made[key] = values(tmp_path / f"{key}.mlpackage")
    goal = {"select": names, "recipes": recipes, "errors": errors}
    report = milblob.compress(DEMO, tmp_path / "x.mlpackage", **grouped(sqnr=-10 * math.log10(4), dry_run=True, **goal))
    assert {one.name: one.recipe for one in report.weights} == {names[0]: Palette(2), names[1]: Linear()}
    assert all(sorted(keys) == ["Linear", "Palette2", "Palette4"] for keys in seen.values())
    doubled = milblob.compress(
        DEMO,
        tmp_path / "x.mlpackage",
        **grouped(sqnr=-10 * math.log10(4), sensitivity={names[0]: 5}, dry_run=True, **goal),
    )
    assert [one.name for one in doubled.weights] == [names[1]]
    for wrong, kind, words in (
        (lambda *_: -1.0, ValueError, "errors of layers_0_mlp_up_weight: expected zero or more, got -1"),
        (lambda *_: math.nan, ValueError, "expected zero or more, got nan"),
        (lambda *_: None, TypeError, "expected a number, got NoneType"), (3, TypeError, "errors: expected a function"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words):
            milblob.compress(DEMO, tmp_path / "x.mlpackage", **grouped(bits=4, **goal | {"errors": wrong}))
    with pytest.raises(ValueError, match="goal: expected one of size, bits and sqnr, got none"):
        milblob.Goal(errors=errors)


def test_frontier_takes_importance_nan_and_recompress(broken, tmp_path):
    name = "layers_0_mlp_up_weight"
    shape = values(DEMO)[name].shape
    heavy = {name: np.linspace(0, 10, shape[0] * shape[1], dtype=np.float32).reshape(shape)}
    options = {"recipes": [Palette(2)], "select": name}
    weighed = milblob.compress_frontier(DEMO, **scoped(importance=heavy, **options))
    milblob.compress(
        DEMO,
        tmp_path / "a.mlpackage",
        Palette(2),
        scope=milblob.Scope(select=name),
        guidance=milblob.Guidance(importance=heavy),
    )
    wanted = weighted_error(values(DEMO)[name], values(tmp_path / "a.mlpackage")[name], heavy[name])
    assert weighed.points[0].error == pytest.approx(wanted, rel=1e-6)
    np.savez(tmp_path / "heavy.npz", **heavy)
    command = ["compress", str(DEMO), "--frontier", str(tmp_path / "a.svg"), "-k", name, "--config"]
    command += with_config([{"recipes": ["palette2"]}], tmp_path)
    assert main([*command, "--importance", str(tmp_path / "heavy.npz"), "--json"]) == 0
    options["select"] = "head_weight"
    assert milblob.compress_frontier(broken, **scoped(**options)).alone == []
    assert milblob.compress_frontier(broken, **scoped(nan="keep", **options | {"recipes": [Palette(4)]})).alone
    milblob.compress(DEMO, tmp_path / "c.mlpackage", Linear())
    assert milblob.compress_frontier(tmp_path / "c.mlpackage", **scoped(**options)).alone == []
    assert milblob.compress_frontier(tmp_path / "c.mlpackage", **scoped(recompress=True, **options)).alone


# ------------------------------------------------------------------------------------------------------------- streaming


def test_only_what_depends_on_values_alone_is_planned():
    array = np.random.default_rng(3).standard_normal((64, 64)).astype(np.float32)
    plain = Weight(array, (1, 0), 18, (("linear", "weight"),))
    weights = np.ones_like(array)
    recipes = Linear(), Linear(search=True), Palette(4), Palette(4, "uniform"), Prune(0.5)
    for recipe in recipes:
        assert recipe.parts(plain).compute is not None
        assert (recipe.parts(plain._replace(importance=weights)).compute is None) == recipe.weighs
        assert recipe.parts(plain._replace(nan="keep")).compute is None
        assert recipe.parts(plain._replace(pieces=Pieces(array))).compute is None
    assert is_far_from_infinity(array)
    for value in (2.0**125, -(2.0**125), np.inf, -np.inf, np.nan):
        for dtype, scale in ((np.float32, 1.0), (np.float16, 2.0**-111)):
            other = array.astype(dtype)
            other[40, 7] = np.float32(value) * np.float32(scale)
            assert not is_far_from_infinity(other)
            if np.isfinite(value):
                other[40, 7] = np.nextafter(other[40, 7], dtype(0))
                assert is_far_from_infinity(other)
    for recipe in (Palette(4, vector=2), Palette(4, scale=True), Prune(0.5) + Palette(4)):
        assert recipe.parts(plain).compute is None


def test_gap_is_that_of_the_palettes(tmp_path):
    """Also where the weight is written while it is computed."""
    array = np.random.default_rng(4).standard_normal((64, 1024)).astype(np.float32)
    weight = Weight(array, (1, 0), 18, ())
    gap = measured_now(Palette(4).parts(weight)).loss.gap
    assert gap == palettize(array, 4).gap
    assert gap > 0
    assert measured_now(Palette(4, "uniform").parts(weight)).loss.gap is None
    report = milblob.compress(DEMO, tmp_path / "a.mlpackage", Palette(4), scope=milblob.Scope(select="head_weight"))
    assert report.weights[0].gap == palettize(values(DEMO)["head_weight"], 4).gap
    assert (
        milblob.compress(DEMO, tmp_path / "b.mlpackage", Linear(), scope=milblob.Scope(select="head_weight"))
        .weights[0]
        .gap
        is None
    )
