"""milblob.match and `milblob match`: training tensors and what a converter made of them."""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import milblob
from children import child_environment
from diffing import listed
from draws import restarts
from milblob.matching.agreeing import agreeing
from milblob.matching.derivations.layouts import Layout, layouts
from paths import DATA
from peers import WITHOUT
from progress_rows import steps

RNG = np.random.default_rng(5)
each_test_draws_the_same = restarts(RNG)


def normal(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture
def matched(tmp_path):
    """A function that matches weights with a weight file of other arrays, and checks each Match by applying it."""

    def run(weights, model, **options):
        found = milblob.match(listed(tmp_path, f"m{len(os.listdir(tmp_path))}", **model), weights, **options)
        for match in found.matches:
            if match.how != "similar":
                result, wanted = match.apply(weights[match.given]), np.asarray(model[match.name])
                assert (result.dtype, result.shape) == (wanted.dtype, wanted.shape)
                assert result.tobytes() == wanted.tobytes()
        return found

    return run


# ---------------------------------------------------------------------------------------------------------------- exact


def test_cast_transposition_and_reshape(matched):
    w = {name: normal(*shape) for name, shape in {
        "same": (6, 5), "cast": (40,), "linear": (6, 7), "square": (8, 8), "conv": (4, 3, 2, 2), "flat": (3, 11), "heads": (6, 10),
        "one": (13, 1, 1), "long": (64, 9),
    }.items()}  # fmt: skip
    model = {
        "a": w["same"], "b": w["cast"].astype(np.float16), "c": np.ascontiguousarray(w["linear"].T),
        "d": np.ascontiguousarray(w["square"].T).astype(ml_dtypes.bfloat16), "e": w["conv"].transpose(2, 3, 1, 0).copy(),
        "f": w["flat"].reshape(-1), "g": w["heads"].reshape(2, 3, 10).transpose(2, 0, 1).copy(), "h": w["one"].reshape(1, 13),
        "i": w["long"].T.reshape(3, 3, 64).copy(),
    }  # fmt: skip
    found = matched(w, model)
    assert found.mapping == dict(zip(w, "abcdefghi", strict=True))
    assert not found.ties and not found.unmatched_given and not found.unmatched_names
    needs = {match.name: (match.needs, match.refit) for match in found.matches}
    assert needs["a"] == ([], "as it is")
    assert needs["b"] == (["cast float32 to float16"], "with a cast")
    assert needs["c"] == (["transpose (1, 0)"], "with a base")
    assert needs["d"] == (["transpose (1, 0)", "cast float32 to bfloat16"], "with a base")
    assert needs["e"] == (["transpose (2, 3, 1, 0)"], "with a base")
    assert needs["f"] == (["reshape [33]"], "with a base")
    assert needs["h"] == (["reshape [1, 13]"], "with a base")
    assert needs["i"] == (["transpose (1, 0)", "reshape [3, 3, 64]"], "with a base")
    assert {match.how for match in found.matches} == {"exact"}
    assert found.refit_mapping == {**dict.fromkeys(w), "same": "a", "cast": "b"}
    assert (
        str(found).splitlines()[-1] == "9 matched: 1 can be refit as they are, 1 with --cast, 7 with --base; 0 cannot"
    )


def test_odd_values(matched):
    nan = np.array([np.nan, -0.0, np.inf, 70000, 1e-9, 1, 2, 3, 4, 5, 6, 7], np.float32)
    with np.errstate(over="ignore"):
        half = nan.astype(np.float16)
    found = matched({"x": nan, "y": np.arange(20), "z": np.arange(300, 330)}, {"a": half, "b": np.arange(20, dtype="i1"), "c": np.arange(30, dtype="u1")})  # fmt: skip
    assert found.mapping == {"x": "a", "y": "b"}
    assert found.unmatched_given == ["z"] and found.unmatched_names == ["c"]


def test_tensors_without_elements(matched):
    """Arrays and weights of no elements have no hash of elements: their shapes are compared."""
    nothing = np.empty((0, 4), np.float32)
    for array in (nothing, nothing.astype(np.float16), nothing.T):
        matched({"a": array, "b": normal(3, 4)}, {"w": nothing, "v": normal(3, 4)})


def test_simplest_layout_wins(matched):
    """A symmetric matrix needs no transposition, and one that the model has both ways is taken as it is."""
    w = normal(9, 9)
    (match,) = matched({"w": w + w.T}, {"a": w + w.T}).matches
    assert match.layout.is_identity
    found = matched({"w": w, "t": w.T.copy()}, {"a": w, "b": w.T.copy()})
    assert found.mapping == {"w": "a", "t": "b"} and all(match.layout.is_identity for match in found.matches)


# ----------------------------------------------------------------------------------------------------------------- ties


def test_equal_tensors(matched):
    ones, zeros = np.ones(20, "f4"), np.zeros(20, "f4")
    found = matched({"p": ones, "q": ones, "r": zeros}, {"a": ones, "b": ones.reshape(4, 5), "c": zeros})
    assert found.mapping == {"r": "c"}
    assert [(tie.given, tie.names) for tie in found.ties] == [(["p", "q"], ["a", "b"])]
    assert found.refit_mapping == {"r": "c", "p": None, "q": None}
    assert found.unmatched_given == found.unmatched_names == []
    assert "p, q -> one of a, b" in str(found)


def test_names_distinguish_equal_tensors(matched):
    ones = np.ones(20, "f4")
    given = {f"layers.{i}.norm.weight": ones for i in (1, 11, 2)}
    model = {f"model_layers_{i}_norm_weight_to_fp16": ones.astype("f2") for i in (11, 2, 1)}
    found = matched(given, model)
    assert found.mapping == {f"layers.{i}.norm.weight": f"model_layers_{i}_norm_weight_to_fp16" for i in (1, 11, 2)}
    assert {match.how for match in found.matches} == {"name"} and not found.ties
    # The one that is left goes to what is left.
    found = matched({**given, "x": ones}, {**model, "y": ones.astype("f2")})
    assert found.mapping["x"] == "y"


def test_a_tensor_that_is_two_weights(matched):
    w = normal(5, 4)
    found = matched({"embed": w}, {"embed_w": w, "head": w.T.copy()})
    assert found.mapping == {"embed": "embed_w"}
    assert [(tie.given, tie.names) for tie in found.ties] == [(["embed"], ["head"])]
    assert found.refit_mapping == {"embed": "embed_w"}


def test_a_weight_of_two_functions():
    """Both functions refer to one record: it is one weight, called by its first name."""
    path = DATA / "functions" / "model.mlpackage"
    arrays = milblob.load(path)
    weight = arrays["alpha/base_weight"]
    assert (arrays["beta/base_weight"] == weight).all()
    found = milblob.match(path, {"w": weight})
    assert found.mapping == {"w": "alpha/base_weight"} and not found.ties
    assert "beta/base_weight" not in found.unmatched_names


def test_agreeing_names():
    assert agreeing(["a.w", "b.w"], ["x_a_w", "b_w_0"]) == [("a.w", "x_a_w"), ("b.w", "b_w_0")]
    assert agreeing(["w"], ["w_1", "w_2"]) == []
    assert agreeing(["a.1", "a.11"], ["a_11"]) == [("a.11", "a_11")]
    assert agreeing(["x"], ["y"]) == []
    assert agreeing(["net.0.w"], ["w"]) == [("net.0.w", "w")]


# -------------------------------------------------------------------------------------------------------------- similar


def test_similar_values(matched):
    w = {name: normal(32, 24) + 1 for name in "abc"}
    model = {
        "one": np.round(w["b"] * 4) / 4,
        "two": np.where(np.abs(w["c"]) > 0.6, w["c"], 0).T.copy(),
        "three": (w["a"] + 0.05 * normal(32, 24)).astype(np.float16).reshape(-1),
        "four": normal(32, 24) + 1,
    }
    found = matched(w, model)
    assert found.mapping == {"a": "three", "b": "one", "c": "two"}
    assert found.unmatched_names == ["four"]
    by_name = {match.name: match for match in found.matches}
    assert {match.how for match in found.matches} == {"similar"}
    for match in found.matches:
        moved, wanted = match.apply(w[match.given]).astype(float), model[match.name].astype(float)
        assert match.correlation == pytest.approx(np.corrcoef(moved.reshape(-1), wanted.reshape(-1))[0, 1], abs=2e-3)
    assert by_name["two"].needs == ["transpose (1, 0)"] and by_name["three"].needs[0] == "reshape [768]"
    strict = matched(w, model, min_correlation=0.998)
    assert set(strict.mapping) == {"a"}
    with pytest.raises(ValueError, match="min_correlation"):
        matched(w, model, min_correlation=0)


def test_what_is_as_similar_is_a_tie(matched):
    w = normal(64)
    found = matched({"p": w, "q": w * 1.0001}, {"a": np.round(w * 8) / 8})
    assert found.matches == [] and found.ties[0].names == ["a"] and set(found.ties[0].given) == {"p", "q"}
    found = matched({"a.w": w, "b.w": w * 1.0001}, {"b_w": np.round(w * 8) / 8})
    assert found.mapping == {"b.w": "b_w"}


def test_layer_norms_are_not_similar(matched):
    """Their values are all near one: only what remains without the mean can tell."""
    given = {f"n{i}": 1 + 0.02 * normal(256) for i in range(4)}
    found = matched(given, {f"m{i}": (given[f"n{i}"] + 0.002 * normal(256)).astype(np.float16) for i in (2, 0, 3, 1)})
    assert found.mapping == {f"n{i}": f"m{i}" for i in range(4)}
    assert matched({"n": 1 + 0.02 * normal(256)}, {"m": 1 + 0.02 * normal(256)}).matches == []


def test_many_of_one_size(matched):
    order = RNG.permutation(600)
    given = {f"g{i}": normal(8, 16) for i in range(600)}
    model = {}
    for i in order:
        w = given[f"g{i}"]
        w = w.T.copy() if i % 3 == 0 else w
        model[f"m{i}"] = w.astype(np.float16) if i % 2 else np.round(w * 8) / 8
    found = matched(given, model)
    assert found.mapping == {f"g{i}": f"m{i}" for i in range(600)}
    assert sum(match.how == "exact" for match in found.matches) == 300


def test_select_and_progress(matched):
    told = []
    w = {"x": normal(20), "y": normal(20)}
    found = matched(
        w, {"a": w["x"], "b": w["y"]}, select=lambda name: name == "b", progress=lambda *row: told.append(row)
    )
    assert found.mapping == {"y": "b"} and found.unmatched_names == []
    assert steps(told) == [("x", 80, 240), ("y", 160, 240), ("b", 240, 240)]


# -------------------------------------------------------------------------------------------------------------- layouts


@st.composite
def moves(draw):
    """(shape, axes, new shape): an array is permuted, and what comes out is cut or joined."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    axes = draw(st.permutations(range(len(shape))))
    permuted = [shape[axis] for axis in axes]
    cut = draw(st.integers(0, len(permuted)))
    joined = [int(np.prod(permuted[:cut])), *permuted[cut:]] if draw(st.booleans()) else permuted
    if draw(st.booleans()):
        joined.insert(draw(st.integers(0, len(joined))), 1)
    return tuple(shape), tuple(axes), tuple(joined)


@given(moves(), st.booleans())
@settings(deadline=None)
def test_layouts_find_what_was_done(move, backwards):
    shape, axes, new = move
    array = np.arange(np.prod(shape)).reshape(shape)
    result = array.transpose(axes).reshape(new)
    if backwards:
        array, result = result, array
    found = [layout for layout in layouts(array.shape, result.shape) if (layout.apply(array) == result).all()]
    assert found
    for layout in layouts(array.shape, result.shape):
        moved = layout.apply(array)
        assert moved.shape == result.shape
        positions = np.arange(array.size)[::-1]
        assert (array.reshape(-1)[layout.sources(array.shape, positions)] == moved.reshape(-1)[positions]).all()
        assert layout.is_identity == (layout == Layout())


def test_layouts_are_bounded():
    assert len(layouts((2,) * 16, (2,) * 16)) <= 121
    assert len(layouts((2,) * 16, (4,) * 8)) <= 241
    assert layouts((2, 3), (7,)) == []
    assert layouts((1,) * 40 + (5,), (5,)) == [Layout(after=(5,))]


# ----------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def files(tmp_path):
    w = {"fc.weight": normal(6, 7), "fc.bias": normal(12), "steps": np.array([3])}
    np.savez(tmp_path / "w.npz", **w)
    model = listed(tmp_path, "m", w=w["fc.weight"].T.copy(), b=w["fc.bias"].astype("f2"))
    return model, tmp_path / "w.npz"


def test_match_command_does_not_write_over_what_it_reads(files, cli, tmp_path):
    (tmp_path / "link.json").symlink_to(files[0])
    package = tmp_path / "m.mlpackage"
    shutil.copytree(DATA / "opset_ios16_fp32" / "model.mlpackage", package)
    folder = tmp_path / "arrays"
    assert cli("convert", files[1], "-o", folder, "-q")[0] == 0
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for model, weights, target in [
        (*files, files[0]), (*files, tmp_path / "link.json"), (package, files[1], package / "Manifest.json"),
        (package, files[1], package / "new.json"), (files[0], folder, folder / "index.json"), (package, files[0], files[0]),
    ]:  # fmt: skip
        status, _, err = cli("match", model, weights, "-o", target, "--force")
        assert status == 2 and "expected a place outside the model" in err, target
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before, target


def test_match_command(files, cli, tmp_path):
    mapping = tmp_path / "mapping.json"
    status, out, err = cli("match", *files, "-o", mapping)
    lines = out.splitlines()
    assert status == 0 and lines[0].split() == ["given", "weight", "how", "needs", "refit"]
    assert lines[1].split() == ["fc.weight", "w", "exact", "transpose", "(1,", "0)", "with", "a", "base"]
    assert lines[2].endswith("cast float32 to float16  with a cast")
    assert "given, not matched: steps" in out
    assert lines[-1] == "2 matched: 1 can be refit with --cast, 1 with --base; 0 cannot; 1 given not matched"
    assert err == f"milblob: 1 name that refit can take, to {mapping}; null leaves out the others\n"
    assert json.loads(mapping.read_text()) == {"fc.weight": None, "fc.bias": "b", "steps": None}
    assert cli("match", *files, "-o", mapping)[0] == 2  # it is there
    assert cli("match", *files, "-o", mapping, "--force", "-q")[:2] == (0, "")
    document = json.loads(cli("match", *files, "--json")[1])
    assert [(row["given"], row["name"], row["refit"]) for row in document["matches"]] == [("fc.weight", "w", "with a base"), ("fc.bias", "b", "with a cast")]  # fmt: skip
    lines = cli("match", *files, "-k", "b")[1].splitlines()
    assert (
        len(lines) == 6
        and "not matched: 2 arrays" in lines[3]
        and lines[-1] == "1 matched: 1 can be refit with --cast; 0 cannot"
    )
    # refit takes it as it is written.
    weights = milblob.load(files[0])["b"].copy()
    np.savez(
        tmp_path / "new.npz",
        **{"fc.weight": normal(6, 7), "fc.bias": np.arange(12, dtype="f4"), "steps": np.array([3])},
    )
    assert (
        cli("refit", tmp_path / "m.bin", tmp_path / "new.npz", "--mapping", mapping, "--cast")[0] == 2
    )  # names are #0, #1
    assert (milblob.load(files[0])["b"] == weights).all()


def test_match_command_finds_problems(files, cli, tmp_path):
    w = np.ones(20, "f4")
    np.savez(tmp_path / "ones.npz", p=w, q=w)
    model = listed(tmp_path, "ones", a=w, b=w, c=normal(30))
    status, out, _ = cli("match", model, tmp_path / "ones.npz")
    assert status == 1
    assert "ambiguous: p, q for a, b" in out and "of the model, not matched: c" in out
    for options in ([model, "nowhere.npz"], ["nowhere", tmp_path / "ones.npz"], [*files, "--min-correlation", "2"], [*files, "-o", tmp_path / "x.txt"]):  # fmt: skip
        assert cli("match", *options)[0] == 2


def test_broken_weights(cli, tmp_path, files):
    (tmp_path / "x.safetensors").write_bytes(b"\xff" * 64)
    assert cli("match", files[0], tmp_path / "x.safetensors")[0] == 2
    data = (tmp_path / "m.bin").read_bytes()
    (tmp_path / "m.bin").write_bytes(data[:-8])
    assert cli("match", *files)[0] == 2


# ----------------------------------------------------------------------------------------------------------- coremltools


def state_dict():
    return {
        "encoder.0.fc.weight": normal(32, 48), "encoder.0.fc.bias": normal(32), "encoder.1.fc.weight": normal(48, 32),
        "encoder.1.fc.bias": normal(48), "conv.weight": normal(8, 4, 3), "norm.weight": normal(64) + 1,
        "num_batches_tracked": np.array(7),
    }  # fmt: skip


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A state dict, and what coremltools makes of it: float16, a matrix transposed, a vector as [1, 1, 64]; and palettized."""
    ct = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    sys.path.insert(0, str(DATA))
    from coremltools.converters.mil import Builder as mb

    import make_compressed as make

    w = state_dict()

    @mb.program(input_specs=[mb.TensorSpec(shape=(4, 48))], opset_version=ct.target.iOS17)
    def program(x):
        def const(key, name, change=lambda array: array):
            return mb.const(val=np.ascontiguousarray(change(w[key])), name=name)

        x = mb.linear(x=x, weight=const("encoder.0.fc.weight", "fc0_w"), bias=const("encoder.0.fc.bias", "fc0_b"))
        x = mb.matmul(x=x, y=const("encoder.1.fc.weight", "fc1_w", np.transpose))
        x = mb.add(x=mb.relu(x=x), y=const("encoder.1.fc.bias", "fc1_b"))
        x = mb.reshape(x=x, shape=[4, 4, 12])
        x = mb.conv(x=x, weight=const("conv.weight", "conv_w"))
        x = mb.reshape(x=x, shape=[1, 5, 64])
        return mb.mul(x=x, y=const("norm.weight", "norm_w", lambda array: array.reshape(1, 1, 64)))

    model = ct.convert(
        program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS17, skip_model_load=True,
        compute_precision=ct.precision.FLOAT16,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("converted")
    model.save(str(folder / "model.mlpackage"))
    function, config = make.palettize(4)
    import coremltools.optimize.coreml as cto

    function(model, cto.OptimizationConfig(global_config=config)).save(str(folder / "small.mlpackage"))
    return w, folder


def test_a_converted_model(converted, tmp_path):
    from safetensors.numpy import load_file, save_file

    w, folder = converted
    save_file(w, tmp_path / "w.safetensors")
    found = milblob.match(folder / "model.mlpackage", tmp_path / "w.safetensors")
    arrays = milblob.load(folder / "model.mlpackage")
    assert set(found.mapping) == set(w) - {"num_batches_tracked"}
    assert not found.unmatched_names and found.unmatched_given == ["num_batches_tracked"]
    for match in found.matches:
        assert match.apply(w[match.given]).tobytes() == arrays[match.name].tobytes()
    needs = {match.given: match.needs[0] for match in found.matches}
    assert needs["encoder.1.fc.weight"] == "transpose (1, 0)" and needs["norm.weight"] == "reshape [1, 1, 64]"

    # The mapping, fed to refit with other values.
    other = {name: array * 2 for name, array in load_file(tmp_path / "w.safetensors").items()}
    target = tmp_path / "new.mlpackage"
    report = milblob.refit(
        folder / "model.mlpackage", other, mapping=found.refit_mapping, cast=True, destination=target
    )
    assert len(report.changes) == sum(match.is_direct for match in found.matches) == 4
    values = milblob.load(target)
    for match in found.matches:
        expected = match.apply(other[match.given]) if match.is_direct else arrays[match.name]
        assert values[match.name].tobytes() == expected.tobytes()
    # What needs another layout is refitted as Match.apply gives it.
    moved = {match.name: match.apply(other[match.given]) for match in found.matches}
    milblob.refit(target, moved)
    assert all((milblob.load(target)[name] == array).all() for name, array in moved.items())


def test_a_palettized_model(converted):
    w, folder = converted
    exact = milblob.match(folder / "model.mlpackage", w)
    found = milblob.match(folder / "small.mlpackage", w)
    by_given = {match.given: match for match in found.matches}
    assert set(by_given) == set(exact.mapping) and not found.unmatched_names
    compressed = [match for match in found.matches if match.compression]
    assert len(compressed) >= 3
    for match in compressed:
        assert match.how == "similar" and match.refit == "" and match.correlation > 0.98
        assert match.needs[-1] == "compress (lut_to_dense)"
        assert match.name.startswith(exact.mapping[match.given])
    # diff takes the mapping too: what a palette costs, against the training weights.
    same_shape = {m.given: m.name if m.given_shape == m.shape else None for m in found.matches} | {
        "num_batches_tracked": None
    }
    rows = {row.name: row for row in milblob.diff(w, folder / "small.mlpackage", mapping=same_shape).rows}
    assert rows["encoder.0.fc.weight"].figures.sqnr > 15


def test_match_in_a_process(files):
    """As a user runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "milblob", "match", *map(str, files)], capture_output=True, text=True, check=False,
        env=child_environment(), cwd=pathlib.Path(files[1]).parent,
    )  # fmt: skip
    assert done.returncode == 0 and "fc.weight" in done.stdout


def test_a_source_that_is_not_an_array_is_refused():
    with pytest.raises(TypeError, match="^array 'a': expected numbers or text, got object$"):
        milblob.match(DATA / "quant_int8" / "model.mlmodelc", {"a": object()})
    with pytest.raises(TypeError, match="^min_correlation: expected a number, got str$"):
        milblob.match(DATA / "quant_int8" / "model.mlmodelc", {"a": np.zeros(3)}, min_correlation="x")
