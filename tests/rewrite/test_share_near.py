"""repack(dedupe="near"): weights whose values are nearly equal share the form of one of them."""

import shutil

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import milblob
from milblob.rewrite import alike
from paths import DATA
from peers import WITHOUT
from repacking import findings

pytestmark = pytest.mark.usefixtures("unsynced")

ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
from coremltools.converters.mil import Builder as mb  # noqa: E402

import equal_forms as forms  # noqa: E402
from compress_coremltools import theirs  # noqa: E402
from compress_models import save_model  # noqa: E402
from thorough import sized  # noqa: E402


def sqnr(values, noisy):
    """In dB, by NumPy."""
    values, noisy = values.astype(np.float64), noisy.astype(np.float64)
    noise = ((values - noisy) ** 2).sum()
    return 10 * np.log10((values**2).sum() / noise) if noise else np.inf


def consts(arrays):
    """Name -> what makes a const of an array, as `save_forms` takes it."""
    return {name: lambda label, array=array: mb.const(val=array, name=label) for name, array in arrays.items()}


def save(path, arrays):
    """A package with dense weights w0_<name>, float32, each read by an operation."""
    return forms.save_forms(path, [consts(arrays)], half=False)


def near_copy(source, target, **options):
    """Share; require that the report says what NumPy measures, and that everything else is as it was."""
    report = milblob.repack(source, target, dedupe="near", **options)
    plan = milblob.repack(source, target, dedupe="near", dry_run=True, force=True, **options)
    assert plan.shared == report.shared and not plan.done
    before, after = milblob.load(source), milblob.load(target)
    assert list(before) == list(after) and findings(target) == []
    rows = {row.name: row for row in report.shared}
    for name, values in after.items():
        if name not in rows:
            assert values.tobytes() == before[name].tobytes()
            continue
        row = rows[name]
        assert row.reference not in rows and values.tobytes() == before[row.reference].tobytes()
        assert row.sqnr == pytest.approx(sqnr(before[name], values), abs=1e-6)
        assert row.max_abs == pytest.approx(np.abs(before[name].astype(float) - values.astype(float)).max(), abs=0)
        assert row.sqnr >= options.get("min_sqnr", 60)
    return report


def noisy(rng, array, level):
    return (array + level * np.sqrt((array**2).mean()) * rng.standard_normal(array.shape)).astype(array.dtype)


@pytest.fixture(scope="module")
def matrix():
    return np.random.default_rng(0).standard_normal(forms.SHAPE).astype(np.float32)


def test_layers_palettized_twice(tmp_path):
    """By coremltools, of weights that differ a little: what two conversions of one network make of it."""
    first = save_model(tmp_path / "first.mlpackage", 18, np.float32, disagree=False)
    second = shutil.copytree(first, tmp_path / "second.mlpackage")
    rng = np.random.default_rng(1)
    with milblob.open(second, "r+") as model:
        for name, tensor in list(model.items()):
            if tensor.ndim > 1:
                model[name] = noisy(rng, tensor.read(), 1e-4)
    steps = [("palettize", {"nbits": sized(4, 6), "mode": "kmeans", "weight_threshold": 0})]
    sources = []
    for name, path in (("one", first), ("two", second)):
        assert theirs(path, steps, tmp_path / f"{name}.mlpackage") is None
        sources.append((tmp_path / f"{name}.mlpackage", name))
    both = tmp_path / "both.mlpackage"
    milblob.merge_functions(sources, both)
    report = near_copy(both, tmp_path / "out.mlpackage", min_sqnr=20)
    assert len(report.shared) >= 10 and all("palett" in row.name for row in report.shared)
    assert report.nbytes_after < 0.7 * report.nbytes
    merged = milblob.merge_functions(sources, tmp_path / "merged.mlpackage", dedupe="near", min_sqnr=20)
    assert merged.shared == report.shared
    assert milblob.diff(tmp_path / "merged.mlpackage", tmp_path / "out.mlpackage").is_same
    assert near_copy(both, tmp_path / "none.mlpackage", min_sqnr=200).shared == ()
    given = milblob.load(second)
    based = near_copy(both, tmp_path / "based.mlpackage", min_sqnr=20, base=second)
    for row in based.shared:
        name = row.reference.partition("/")[2].removesuffix("_palettized")
        assert len({one.partition("/")[2] for one in (row.name, row.reference)}) == 1
        errors = {one: -sqnr(given[name], milblob.load(both)[one]) for one in (row.name, row.reference)}
        assert errors[row.reference] == min(errors.values())


@pytest.mark.parametrize("level", [1e-2, 1e-4])
def test_the_limit(tmp_path, matrix, level):
    arrays = {"a": matrix, "b": noisy(np.random.default_rng(1), matrix, level)}
    source, found = save(tmp_path / "a.mlpackage", arrays), sqnr(arrays["b"], matrix)
    assert len(near_copy(source, tmp_path / "b.mlpackage", min_sqnr=found - 1e-3).shared) == 1
    assert near_copy(source, tmp_path / "c.mlpackage", min_sqnr=found + 1e-3).shared == ()


def test_base_decides_which_values_remain(tmp_path, matrix):
    """Its arrays have other names, and may be transposed."""
    rng = np.random.default_rng(1)
    arrays = {"a": noisy(rng, matrix, 1e-4), "b": noisy(rng, matrix, 1e-5), "c": noisy(rng, matrix, 3e-5)}
    source = save(tmp_path / "a.mlpackage", arrays)
    for number, base in enumerate(({"model.up": matrix}, {"x": rng.standard_normal(9), "model.up": matrix.T.copy()})):
        report = near_copy(source, tmp_path / f"b{number}.mlpackage", base=base)
        assert [(row.name, row.reference) for row in report.shared] == [("w0_a", "w0_b"), ("w0_c", "w0_b")]
    milblob.save({"model.up": matrix}, tmp_path / "base.npz")
    assert near_copy(source, tmp_path / "c.mlpackage", base=tmp_path / "base.npz").shared == report.shared
    assert {row.reference for row in near_copy(source, tmp_path / "d.mlpackage").shared} == {"w0_a"}


@pytest.mark.parametrize(
    "base", [{}, {"up": np.zeros((3, 4), np.float32)}, {"up": "other"}], ids=["none", "shape", "values"]
)
def test_base_of_another_model_is_refused(tmp_path, matrix, base):
    rng = np.random.default_rng(1)
    base = {name: rng.standard_normal(forms.SHAPE) if isinstance(array, str) else array for name, array in base.items()}
    source = save(tmp_path / "a.mlpackage", {"a": matrix, "b": noisy(rng, matrix, 1e-5)})
    with pytest.raises(
        ValueError, match=r"base: expected a tensor that one of the nearly equal weights was made from \(w0_a"
    ):
        milblob.repack(source, tmp_path / "b.mlpackage", dedupe="near", base=base)
    assert not (tmp_path / "b.mlpackage").exists()


def test_values_that_are_not_near(tmp_path, matrix):
    """NaN and infinity on one side, another sign or scale, zeros, another order."""
    holed, infinite = matrix.copy(), matrix.copy()
    holed[3, 3], infinite[20, 31] = np.nan, np.inf
    arrays = {
        "a": matrix, "nan": holed, "inf": infinite, "minus": -matrix, "twice": 2 * matrix, "zero": 0 * matrix,
        "reversed": matrix[::-1].copy(), "tiny": (matrix * 1e-30).astype(np.float32),
    }  # fmt: skip
    assert near_copy(save(tmp_path / "a.mlpackage", arrays), tmp_path / "b.mlpackage").shared == ()


def test_values_with_a_large_mean(tmp_path):
    """Scales of a norm: the noise is small beside the values, though not beside their distances from the mean."""
    rng = np.random.default_rng(1)
    scale = (1 + 0.01 * rng.standard_normal(forms.SHAPE)).astype(np.float32)
    source = save(
        tmp_path / "a.mlpackage",
        {"a": scale, "b": (scale + 5e-4 * rng.standard_normal(scale.shape)).astype(np.float32)},
    )
    assert len(near_copy(source, tmp_path / "b.mlpackage").shared) == 1


def test_weights_that_samples_do_not_distinguish(tmp_path, monkeypatch):
    """All zero where they are sampled: each is compared with a few others in full, not with all."""
    rng = np.random.default_rng(1)
    arrays = {}
    for number in range(30):
        arrays[f"n{number}"] = np.zeros((64, 32), np.float32)
        arrays[f"n{number}"][-5, :20] = rng.standard_normal(20)
    arrays["near"] = arrays["n29"] * np.float32(1 + 1e-5)
    calls = []
    real = alike.measure
    monkeypatch.setattr(alike, "measure", lambda a, b: calls.append(1) or real(a, b))
    source = save(tmp_path / "a.mlpackage", arrays)
    report = milblob.repack(source, tmp_path / "b.mlpackage", dedupe="near")
    assert len(calls) <= 31 * 8 and report.shared == ()  # its neighbour was not among them
    calls.clear()
    milblob.repack(
        save(tmp_path / "c.mlpackage", {"n29": arrays["n29"], "near": arrays["near"]}),
        tmp_path / "d.mlpackage",
        dedupe="near",
    )
    assert len(calls) == 1


def test_a_small_form_replaces_a_dense_one(tmp_path, matrix):
    """Nearly equal, exactly equal and other values in one model."""
    found = forms.codes(0.3)
    made = forms.ios18(found, half=False)
    exact = forms.dense(found, half=False)
    arrays = {"near": noisy(np.random.default_rng(1), exact, 1e-4), "other": matrix}
    chosen = {"dense": made["dense"], "int8": made["int8"], "palette": made["palette"], **consts(arrays)}
    source = forms.save_forms(tmp_path / "a.mlpackage", [chosen], half=False)
    report = near_copy(source, tmp_path / "b.mlpackage")
    assert {row.name: row.reference for row in report.shared} == dict.fromkeys(
        ("w0_dense", "w0_int8", "w0_near"), "w0_palette"
    )
    finite = {row.name: np.isfinite(row.sqnr) for row in report.shared}
    assert finite == {"w0_dense": False, "w0_int8": False, "w0_near": True}


def test_a_part_of_another_weight_keeps_its_values(tmp_path):
    """A chain is read by an operation, and is the scale of another weight, whose values would change with it."""
    number = np.float32
    codes = np.arange(1, 25, dtype=np.int8).reshape(24, 1)
    twin = (codes / 16 * (1 + 1e-5)).astype(number)

    def scale(name):
        return mb.constexpr_blockwise_shift_scale(data=codes, scale=np.full((1, 1), 1 / 16, number), name=name)

    def reader(x, weight, place):
        if place:
            return mb.add(x=x, y=mb.reduce_sum(x=weight, axes=[0, 1]))
        data = forms.codes(0.3).astype(np.int8)
        scaled = mb.constexpr_blockwise_shift_scale(data=data, scale=weight, name="scaled")
        return mb.add(x=forms.product(x, scaled, 0), y=mb.reduce_sum(x=weight, axes=[0, 1]))

    matrices = [{"scale": scale}, consts({"twin": twin})]
    source = forms.save_forms(tmp_path / "a.mlpackage", matrices, half=False, reader=reader)
    assert near_copy(source, tmp_path / "b.mlpackage", base={"twin": twin}).shared == ()
    [row] = near_copy(source, tmp_path / "c.mlpackage").shared
    assert (row.name, row.reference) == ("w1_twin", "w0_scale")


@pytest.mark.thorough
@given(st.data())
def test_families(tmp_path_factory, data):
    """Each weight near a reference shares with it: no pair is missed, none is too far apart. NumPy compares all pairs."""
    rng = np.random.default_rng(data.draw(st.integers(0, 1 << 30)))
    centres = rng.standard_normal((data.draw(st.integers(1, 3)), *forms.SHAPE)).astype(np.float32)
    arrays = {
        f"n{number}": noisy(rng, centres[rng.integers(len(centres))], 10.0 ** rng.integers(-5, 0))
        for number in range(data.draw(st.integers(2, 7)))
    }
    least = data.draw(st.sampled_from([20, 40, 60]))
    folder = tmp_path_factory.mktemp("families")
    report = near_copy(save(folder / "a.mlpackage", arrays), folder / "b.mlpackage", min_sqnr=least)
    names = {row.name for row in report.shared}
    kept = [array for name, array in arrays.items() if f"w0_{name}" not in names]
    for number, first in enumerate(kept):
        assert all(sqnr(second, first) < least for second in kept[number + 1 :])


def test_models_without_floats_or_weights(tmp_path):
    for case in ("blob_none", "wide_integers", "lists"):
        for path in (DATA / case).glob("*.mlpackage"):
            source = shutil.copytree(path, tmp_path / f"{case}.mlpackage")
            assert milblob.repack(source, tmp_path / f"{case}_b.mlpackage", dedupe="near").shared == ()


@pytest.mark.parametrize("min_sqnr", [10.0, 30.0, 60.0])
def test_all_near_rows_are_found(min_sqnr):
    """Against the comparison of every pair."""
    random = np.random.default_rng(5)
    rows = random.standard_normal((300, 64)) * np.exp2(random.uniform(-3, 3, (300, 1)))
    ratio = 10 ** (-min_sqnr / 20)
    noise = random.standard_normal((300, 64))
    noise *= 0.99 * ratio * np.linalg.norm(rows, axis=1, keepdims=True) / np.linalg.norm(noise, axis=1, keepdims=True)
    rows = np.concatenate([rows, rows + noise, np.zeros((2, 64))])
    neighbours = alike._neighbours(rows, ratio)
    norms = np.linalg.norm(rows, axis=1)
    for number, row in enumerate(rows):
        near = np.flatnonzero(np.linalg.norm(rows - row, axis=1) <= ratio * norms)
        assert set(near) <= set(neighbours(number))


def test_the_comparisons_grow_with_the_rows_and_not_with_their_square():
    random = np.random.default_rng(6)

    def count(number):
        neighbours = alike._neighbours(random.standard_normal((number, 64)), 10 ** (-24 / 20))
        return sum(len(neighbours(row)) for row in range(number))

    assert count(4000) < 3 * count(2000) < 3 * 2000 * 60  # all pairs would be 4 times as many, 2000 of each row
