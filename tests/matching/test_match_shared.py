"""milblob.match where several weights are one blob: each is found, and `refit` takes the mapping."""

import json
import shutil

import numpy as np
import pytest

import milblob
from blob_files import blob_file
from draws import restarts
from hostile_bytes import blob_value, const, model, program, write_package
from milblob.dtypes import DType
from milblob.matching.agreeing import agreeing
from paths import DATA
from peers import WITHOUT

RNG = np.random.default_rng(11)
each_test_draws_the_same = restarts(RNG)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def functions(tmp_path):
    """A copy of a model of two functions: one blob is base_weight of both, another one four biases."""
    return shutil.copytree(DATA / "functions" / "model.mlpackage", tmp_path / "functions.mlpackage")


@pytest.fixture
def shared(tmp_path):
    """A function that makes a package of (name of a weight, array); the same array object is one blob."""

    def make(*weights):
        code = DType.FLOAT32.mil_code
        arrays = list({id(array): array for _, array in weights}.values())
        data, offsets = blob_file(*(("FLOAT32", array.reshape(-1)) for array in arrays))
        at = {id(array): offset for array, offset in zip(arrays, offsets, strict=True)}
        path = "@model_path/weights/weight.bin"
        rows = [const(blob_value(code, list(array.shape), path, at[id(array)]), name) for name, array in weights]
        return write_package(tmp_path, model(program(*rows)), {"weight.bin": data})

    return make


def found_is_whole(found):
    return not (found.ties or found.unmatched_given or found.unmatched_names or found.equal_given)


# ------------------------------------------------------------------------------------------------------- exact elements


def test_what_was_extracted_goes_back(functions, cli, tmp_path):
    """On the command line: extract, match, and refit with the mapping, of the same values and of tuned ones."""
    weights, mapping = tmp_path / "w.npz", tmp_path / "map.json"
    assert cli("convert", functions, "-o", weights)[0] == 0
    status, out, err = cli("match", functions, weights, "-o", mapping)
    names = list(milblob.load(functions))
    assert status == 0 and "not matched" not in out and "8 names that refit can take" in err
    assert json.loads(mapping.read_text()) == {name: name for name in names}
    assert out.splitlines()[-1] == "8 matched: 8 can be refit as they are; 0 cannot"
    assert cli("refit", functions, weights, "--mapping", mapping, "--dry-run")[0] == 0
    tuned = {name: array + 1 for name, array in milblob.load(functions).items()}
    np.savez(weights, **tuned)
    assert cli("refit", functions, weights, "--mapping", mapping)[0] == 0
    assert all((array == tuned[name]).all() for name, array in milblob.load(functions).items())
    # New values that are not equal do not go into one blob.
    tuned["alpha/out_bias_0"] = tuned["alpha/out_bias_0"] * 2
    np.savez(weights, **tuned)
    status, _, err = cli("refit", functions, weights, "--mapping", mapping)
    assert status == 2 and "which is the same blob, got others" in err


def test_training_names_of_all_functions(functions, cli, tmp_path):
    """Each training tensor is the weight of that name in both functions: the mapping has a list."""
    arrays = milblob.load(functions)
    given = {
        "base.weight": arrays["alpha/base_weight"], "base.bias": arrays["alpha/base_bias_0"], "out.bias": arrays["alpha/out_bias_0"],
        "a.weight": arrays["alpha/adapter_weight"], "b.weight": arrays["beta/adapter_weight"],
    }  # fmt: skip
    found = milblob.match(functions, given)
    assert found_is_whole(found) and len(found.matches) == 8
    assert found.mapping["base.weight"] == "alpha/base_weight"
    wanted = {
        "base.weight": ["alpha/base_weight", "beta/base_weight"], "base.bias": ["alpha/base_bias_0", "beta/base_bias_0"],
        "out.bias": ["alpha/out_bias_0", "beta/out_bias_0"], "a.weight": "alpha/adapter_weight", "b.weight": "beta/adapter_weight",
    }  # fmt: skip
    assert found.refit_mapping == wanted
    assert {match.name: match.how for match in found.matches}["beta/out_bias_0"] == "name"
    np.savez(tmp_path / "w.npz", **given)
    assert cli("match", functions, tmp_path / "w.npz", "-o", tmp_path / "map.json")[0] == 0
    assert json.loads((tmp_path / "map.json").read_text()) == wanted

    tuned = {name: array * 3 for name, array in given.items()}
    np.savez(tmp_path / "w.npz", **tuned)
    assert cli("refit", functions, tmp_path / "w.npz", "--mapping", tmp_path / "map.json")[0] == 0
    after = milblob.load(functions)
    for old, new in wanted.items():
        for name in [new] if isinstance(new, str) else new:
            assert after[name].tobytes() == tuned[old].tobytes()
    # diff takes the file too, with a row for each weight.
    assert cli("diff", tmp_path / "w.npz", functions, "--mapping", tmp_path / "map.json")[0] == 0
    rows = milblob.diff(tuned, functions, mapping=wanted).rows
    assert sorted(row.other for row in rows) == sorted(arrays) and {row.kind for row in rows} == {"same"}


def test_matching_without_help_from_names(functions):
    """Any of the equal tensors may be any weight of their blob, since all of them have the same values."""
    arrays = milblob.load(functions)
    bias = arrays["alpha/base_bias_0"]
    bias, names = bias.copy(), [name for name in arrays if "bias" in name]
    found = milblob.match(functions, {"x": bias})
    assert found.refit_mapping == {"x": names} and not found.ties and not found.unmatched_given
    assert {match.how for match in found.matches} == {"exact"}
    found = milblob.match(functions, {"x": bias, "y": bias.copy()})
    assert found.refit_mapping == {"x": [names[0], *names[2:]], "y": names[1]} and not found.ties
    tuned = {"x": bias + 2, "y": bias + 2}
    assert len(milblob.refit(functions, tuned, mapping=found.refit_mapping).changes) == 4
    assert all((milblob.load(functions)[name] == bias + 2).all() for name in names)
    # One name is known: the others take what is left.
    bias = tuned["x"]
    found = milblob.match(functions, {"x": bias, "beta/out_bias_0": bias})
    assert found.refit_mapping == {"x": names[0], "beta/out_bias_0": names[1:]} and not found.unmatched_given
    # More than there are weights, and no names to go by.
    found = milblob.match(functions, dict.fromkeys("pqrst", bias))
    assert not found.ties and {match.name for match in found.matches} == set(names)
    assert found.refit_mapping == {**dict(zip("pqrs", names, strict=True)), "t": names}
    assert [match.how for match in found.matches] == ["exact"] * 4 + ["shared"] * 4


def test_tied_in_training_and_one_in_the_model(functions, cli, tmp_path):
    """Both names are the weight, so that what is given for either of them is not lost."""
    weight = milblob.load(functions)["alpha/base_weight"]
    given = {"base.weight": weight, "lm_head.weight": weight}
    found = milblob.match(functions, given)
    assert found.refit_mapping == {name: ["alpha/base_weight", "beta/base_weight"] for name in given}
    assert not found.equal_given and not found.unmatched_given and not found.ties
    assert [match.how for match in found.matches] == ["name", "name", "shared", "shared"]
    assert str(found).endswith("4 matched: 4 can be refit as they are; 0 cannot; 6 of the model not matched")
    np.savez(tmp_path / "w.npz", **given)
    out = cli("match", functions, tmp_path / "w.npz")[1]
    assert "shared" in out and "given, not matched" not in out


def test_one_too_many_for_two_weights(shared):
    """Two weights are equal, and so are three tensors: which weight the third one shares, nothing says."""
    w = normal(6, 5)
    package = shared(("a_w", w), ("b_w", w.copy()), ("h", normal(6, 5)))
    given = dict.fromkeys(("a.w", "b.w", "x"), w)
    found = milblob.match(package, given)
    assert found.refit_mapping == {"a.w": "a_w", "b.w": "b_w", "x": None}
    assert found.equal_given == ["x"] and found.to_dict()["equal_given"] == ["x"]
    assert "; 1 given equal to others; 1 of the model not matched" in str(found)


def test_after_dedupe(tmp_path, shared, cli):
    w, bias = normal(8, 8), normal(8)
    package = shared(("l1_weight_0", w), ("l2_weight_0", w.copy()), ("bias", bias), ("flat", w.reshape(-1).copy()))
    cli("convert", package, "-o", tmp_path / "w.npz")
    small, mapping = tmp_path / "small.mlpackage", tmp_path / "map.json"
    milblob.repack(package, small, dedupe=True)
    with milblob.open(small) as opened:
        assert opened["l1_weight_0"].offset == opened["l2_weight_0"].offset == opened["flat"].offset
    assert cli("match", small, tmp_path / "w.npz", "-o", mapping)[0] == 0
    assert json.loads(mapping.read_text()) == {name: name for name in ("l1_weight_0", "l2_weight_0", "bias", "flat")}
    tuned = {name: array * 0.5 for name, array in milblob.load(package).items()}
    np.savez(tmp_path / "w.npz", **tuned)
    assert cli("refit", small, tmp_path / "w.npz", "--mapping", mapping)[0] == 0
    assert all((array == tuned[name]).all() for name, array in milblob.load(small).items())


def test_two_linears_of_coremltools(tmp_path):
    ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools.converters.mil import Builder as mb

    w = normal(8, 8)

    @mb.program(input_specs=[mb.TensorSpec(shape=(1, 8))], opset_version=ct.target.iOS18)
    def two(x):
        return mb.linear(x=mb.relu(x=mb.linear(x=x, weight=w, name="l1")), weight=w.copy(), name="l2")

    ct.convert(
        two, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS18, skip_model_load=True,
        compute_precision=ct.precision.FLOAT32,
    ).save(str(tmp_path / "m.mlpackage"))  # fmt: skip
    milblob.repack(tmp_path / "m.mlpackage", tmp_path / "small.mlpackage", dedupe=True)
    arrays = milblob.load(tmp_path / "m.mlpackage")
    found = milblob.match(tmp_path / "small.mlpackage", arrays)
    assert found_is_whole(found) and found.refit_mapping == {name: name for name in arrays}
    tuned = {name: array + 1 for name, array in arrays.items()}
    milblob.refit(tmp_path / "small.mlpackage", tuned, mapping=found.refit_mapping)
    assert all((array == tuned[name]).all() for name, array in milblob.load(tmp_path / "small.mlpackage").items())


# ------------------------------------------------------------------------------------------------- what refit would not


def test_a_blob_with_a_missing_part(shared, cli, tmp_path):
    """The same blob in two shapes: what is of the one can be written only with what is of the other."""
    w = normal(4, 6)
    data, (offset,) = blob_file(("FLOAT32", w.reshape(-1)))
    code, file = DType.FLOAT32.mil_code, "@model_path/weights/weight.bin"
    rows = [const(blob_value(code, shape, file, offset), name) for name, shape in (("w", [4, 6]), ("v", [24]))]
    package = write_package(tmp_path, model(program(*rows)), {"weight.bin": data})
    found = milblob.match(package, {"w": w})
    assert [(match.name, match.refit, match.without) for match in found.matches] == [("w", "", ("v",))]
    assert [(tie.given, tie.names) for tie in found.ties] == [(["w"], ["v"])]
    assert found.refit_mapping == {"w": None} and found.matches[0].to_dict()["without"] == ["v"]
    with pytest.raises(ValueError, match="w: expected new values for v too"):
        milblob.refit(package, {"w": w}, dry_run=True)
    np.savez(tmp_path / "w.npz", w=w)
    status, out, _ = cli("match", package, tmp_path / "w.npz")
    assert status == 1 and out.splitlines()[1].endswith("no, without v")
    found = milblob.match(package, {"w": w, "v": w.reshape(-1)})
    assert found_is_whole(found) and found.refit_mapping == {"w": "w", "v": "v"}


def test_select_leaves_out_what_refit_needs(functions, cli):
    arrays = milblob.load(functions)
    found = milblob.match(functions, arrays, select=lambda name: name.startswith("alpha/"))
    by_name = {match.name: match for match in found.matches}
    assert by_name["alpha/base_weight"].without == ("beta/base_weight",)
    assert {old: new for old, new in found.refit_mapping.items() if new} == {
        "alpha/adapter_weight": "alpha/adapter_weight"
    }
    assert len(milblob.refit(functions, arrays, mapping=found.refit_mapping, dry_run=True).changes) == 1
    cells = {
        line.split()[1]: line
        for line in cli("match", functions, functions, "-k", "alpha/*")[1].splitlines()
        if "alpha/" in line
    }
    assert cells["alpha/base_weight"].endswith("no, without beta/base_weight")
    assert cells["alpha/base_bias_0"].endswith("no, without beta/base_bias_0 and 1 more")


# ------------------------------------------------------------------------------------------------------- similar values


def test_tuned_values_of_one_blob(functions):
    """Weights that were tuned since are matched by correlation; no mapping has them, for nothing says how they were made."""
    weight = milblob.load(functions)["alpha/base_weight"]
    near = weight + 0.02 * normal(*weight.shape)
    tuned = {"beta/base_weight": near, "alpha/base_weight": near.copy()}
    found = milblob.match(functions, tuned)
    assert {match.how for match in found.matches} == {"similar"} and not found.unmatched_given and not found.ties
    assert {match.given: match.name for match in found.matches} == {name: name for name in tuned}
    assert found.refit_mapping == dict.fromkeys(tuned) and {match.refit for match in found.matches} == {""}


def pairs(found):
    return sorted((match.given, match.name) for match in found.matches)


def test_similar_with_other_names(shared):
    w = normal(16, 8)
    package = shared(("f/w", w), ("g/w", w), ("h", normal(16, 8)))
    near = w + 0.01 * normal(16, 8)
    names = list(milblob.load(package))[:2]
    assert pairs(milblob.match(package, {"x": near})) == [("x", name) for name in names]
    # Equal ones, in any order; a third one is too many; those that differ cannot be one blob.
    found = milblob.match(package, {"x": near, "y": near.copy()})
    assert pairs(found) == list(zip("xy", names, strict=True)) and not found.ties
    found = milblob.match(package, dict.fromkeys("xyz", near))
    assert [(sorted(tie.given), tie.names) for tie in found.ties] == [(list("xyz"), names)]
    found = milblob.match(package, {"x": near, "y": near * np.float32(1.0001)})
    assert [(sorted(tie.given), tie.names) for tie in found.ties] == [(["x", "y"], names)]
    # By its very name, though less similar.
    far = w + 0.3 * normal(16, 8)
    found = milblob.match(package, {names[0]: near, names[1]: far})
    assert pairs(found) == [(name, name) for name in names]
    with pytest.raises(ValueError, match="expected equal values"):
        milblob.refit(package, {names[0]: near, names[1]: far}, dry_run=True)
    # One name for both, and one that is equal and for which nothing is left.
    found = milblob.match(package, {"w": near, "other": near})
    assert pairs(found) == [("w", name) for name in names] and found.equal_given == ["other"]


# --------------------------------------------------------------------------------------------------------- its mappings


def test_agreeing_names_of_one_blob():
    one = {"f_w": "f_w", "g_w": "f_w", "h_w": "h_w"}
    assert agreeing(["w"], ["f_w", "g_w"], one) == [("w", "f_w"), ("w", "g_w")]
    assert agreeing(["w"], ["f_w", "g_w", "h_w"], one) == []
    assert agreeing(["f_w", "g_w"], ["f_w", "g_w"], one) == [("f_w", "f_w"), ("g_w", "g_w")]
    assert agreeing(["w", "x.w"], ["w", "y_x_w"]) == [("w", "w"), ("x.w", "y_x_w")]


def test_lists_in_mappings(functions, tmp_path, cli):
    arrays = milblob.load(functions)
    weight, names = arrays["alpha/base_weight"] + 1, ["alpha/base_weight", "beta/base_weight"]
    report = milblob.refit(functions, {"w": weight}, mapping={"w": names})
    assert [(row.given, row.name) for row in report.changes] == [("w", name) for name in names]
    assert all((milblob.load(functions)[name] == weight).all() for name in names)
    # One name of a blob is still refused, and a weight for which two are given.
    with pytest.raises(ValueError, match="expected new values for beta/base_weight too, which is the same blob"):
        milblob.refit(functions, {"w": weight}, mapping={"w": names[:1]})
    with pytest.raises(ValueError, match="alpha/base_weight: expected equal arrays for it, got different ones: w, v"):
        milblob.refit(functions, {"w": weight, "v": weight + 1}, mapping={"w": names, "v": names[0]})
    with pytest.raises(ValueError, match="expected at least one, got none"):
        milblob.refit(functions, {"w": weight}, mapping={"w": []})
    for wrong in (1, ["a", 2], {"a": "b"}):
        with pytest.raises(TypeError, match="mapping: expected a name, a list of names or None, got"):
            milblob.refit(functions, {"w": weight}, mapping={"w": wrong})
        with pytest.raises(TypeError, match="mapping: expected a name, a list of names or None, got"):
            milblob.diff({"w": weight}, functions, mapping={"w": wrong})
    with pytest.raises(ValueError, match="mapping: expected each name once"):
        milblob.diff({"w": weight}, functions, mapping={"w": [names[0], names[0]]})
    np.savez(tmp_path / "w.npz", w=weight)
    (tmp_path / "map.json").write_text('{"w": ["alpha/base_weight", 3]}')
    status, _, err = cli("refit", functions, tmp_path / "w.npz", "--mapping", tmp_path / "map.json")
    assert status == 2 and "mapping: expected an object of names" in err


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.sample(5)
def test_any_sharing(tmp_path, seed):
    """Whatever is one blob and whatever is given: each name is in one place, and `refit` takes the mapping as it is."""
    random = np.random.default_rng(seed)
    base = [normal(4, 5) for _ in range(2)]
    arrays = [base[i].copy() for i in random.integers(0, 2, random.integers(1, 5))]
    data, offsets = blob_file(*(("FLOAT32", array.reshape(-1)) for array in arrays))
    weights = {}
    for name in [f"{function}_w{i}" for function in "fg" for i in range(random.integers(1, 5))]:
        which = random.integers(len(arrays))
        weights[name] = arrays[which] if random.random() < 0.85 else arrays[which].reshape(20), offsets[which]
    code, file = DType.FLOAT32.mil_code, "@model_path/weights/weight.bin"
    rows = [const(blob_value(code, list(array.shape), file, at), name) for name, (array, at) in weights.items()]
    package = write_package(tmp_path, model(program(*rows)), {"weight.bin": data})
    given = {"extra": base[0]}
    for name, (array, _) in weights.items():
        if random.random() < 0.7:
            given[(name, name[2:], f"x{len(given)}")[random.integers(3)]] = array
    found = milblob.match(package, given)
    matched = [match.name for match in found.matches if match.how != "shared"]
    tied = [name for tie in found.ties for name in tie.names]
    assert {match.name for match in found.matches} == set(matched)
    assert sorted(matched + tied + found.unmatched_names) == sorted(weights)
    ours, rivals = set(found.mapping), {name for tie in found.ties for name in tie.given}
    assert ours | rivals | {*found.unmatched_given, *found.equal_given} == set(given) == set(found.refit_mapping)
    assert not (ours | rivals) & {*found.unmatched_given, *found.equal_given}
    assert not set(found.unmatched_given) & set(found.equal_given)
    writable = [match.name for match in found.matches if match.is_direct and not match.without]
    if writable and len(writable) == len(matched):
        report = milblob.refit(package, given, mapping=found.refit_mapping, dry_run=True)
        assert sorted(row.name for row in report.changes) == sorted(writable)
