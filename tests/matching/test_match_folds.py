"""milblob.match where a converter folded a batch norm or a scale into the weights of convolutions."""

import numpy as np
import pytest

import milblob
from finetuning import NETWORKS, converted, initial_arrays, random_arrays
from milblob.matching.search import Search
from peers import WITHOUT
from thorough import some

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])


def example(name, tmp_path, make=random_arrays, precision="FLOAT16"):
    arrays = make(NETWORKS[name][0], 1)
    return arrays, converted(name, arrays, tmp_path / "m.mlpackage", precision)


@pytest.mark.parametrize("precision", some(["FLOAT16", "FLOAT32"], 4))
@pytest.mark.parametrize(
    "name", ["conv_norm", "two_conv_norms", "depthwise_and_grouped", "transposed_convs", "conv_of_lines", "frozen_norm"]
)
@pytest.mark.sample(6)
def test_a_folded_batch_norm_is_computed(name, precision, tmp_path):
    arrays, model = example(name, tmp_path, precision=precision)
    found = milblob.match(model, arrays)
    assert {match.how for match in found.matches} == {"folded"} and not found.unmatched_given
    assert not found.unmatched_names and not found.ties
    assert {match.refit for match in found.matches} == {"with a base"}
    assert all("the batch norm" in match.folded and "fold: the batch norm" in match.needs[0] for match in found.matches)
    assert found.refit_mapping == dict.fromkeys(arrays)
    assert {*found.folded_given, *found.mapping} == set(arrays)
    with pytest.raises(milblob.UnsupportedError, match="refit with a base computes it"):
        found.matches[0].apply(arrays[found.matches[0].given])


def test_a_fold_with_numbers_that_float16_has_not(tmp_path):
    """They become 0 in a weight of 400 elements or more, although the sample that is compared first has fewer."""

    def make(*given):
        arrays = random_arrays(*given)
        arrays["c.weight"].reshape(-1)[::3] = 1e-9
        return arrays

    arrays, model = example("conv_norm", tmp_path, make)
    assert arrays["c.weight"].size >= 400
    assert {match.how for match in milblob.match(model, arrays).matches} == {"folded"}


def test_scales_that_are_not_given(tmp_path, cli):
    """Without the batch norm, the factors of the channels still tell that something was folded."""
    arrays, model = example("two_conv_norms", tmp_path)
    own = {name: array for name, array in arrays.items() if name in ("c.weight", "d.weight")}
    found = milblob.match(model, own)
    assert [(match.given, match.how, match.refit) for match in found.matches] == [(name, "scaled", "") for name in own]
    factors = arrays["b.weight"] / np.sqrt(arrays["b.running_var"] + np.float32(1e-5))
    low, high = found.matches[0].folded.removeprefix("each output channel is scaled, by ").split(" to ")
    assert np.allclose([float(low), float(high)], [factors.min(), factors.max()], rtol=1e-2)
    assert set(found.refit_mapping.values()) == {None}
    np.savez(tmp_path / "own.npz", **own)
    out = cli("match", model, tmp_path / "own.npz")[1]
    assert out.count("fold: each output channel is scaled, by") == 2 and ": 2 cannot; 2 of the model not matched" in out


def test_nothing_that_is_folded_enters_a_mapping(tmp_path, cli):
    """The way that once destroyed models: match, then refit with its mapping and a cast."""
    arrays, model = example("two_conv_norms", tmp_path)
    before = milblob.load(model)
    np.savez(tmp_path / "w.npz", **arrays)
    assert cli("match", model, tmp_path / "w.npz", "-o", tmp_path / "map.json")[0] == 0
    status, _, err = cli("refit", model, tmp_path / "w.npz", "--mapping", tmp_path / "map.json", "--cast")
    assert status == 2 and "expected at least one, got none" in err
    assert all((array == before[name]).all() for name, array in milblob.load(model).items())


def test_constants_that_coremltools_stores_once(tmp_path):
    arrays, model = example("shared_norms", tmp_path, initial_arrays)
    found = milblob.match(model, arrays)
    names = [match.name for match in found.matches if match.given == "n.weight"]
    assert [match.name for match in found.matches if match.given == "o.weight"] == names and len(names) == 1
    assert {found.refit_mapping[name] for name in ("l.bias", "n.bias", "o.bias")} == {"linear_0_bias_0_to_fp16"}
    assert None not in found.refit_mapping.values()


@pytest.mark.parametrize(
    ("name", "computed"),
    [
        ("split_attention", {"a.in_proj_weight[0:6]", "a.in_proj_weight[6:12]", "a.in_proj_weight[12:18]"}),
        ("plain_arithmetic", {"n.weight + 1", "exp(A_log) * -1"}),
        ("joined_with_zeros", {"q_bias | 0 in every element | v_bias"}),
    ],
)
def test_what_is_computed_from_arrays(name, computed, tmp_path):
    """Where the other weights are exact, the steps of `refit` with a base explain those that are left, to the bit."""
    arrays, model = example(name, tmp_path)
    found = milblob.match(model, arrays)
    matches = [match for match in found.matches if match.how == "computed"]
    assert computed <= {match.folded for match in matches}
    assert all(match.refit == "with a base" and match.needs[0] == f"compute: {match.folded}" for match in matches)
    assert {*found.mapping, *found.folded_given} == set(arrays) and not found.unmatched_given
    with pytest.raises(milblob.UnsupportedError, match="refit with a base computes it"):
        matches[0].apply(arrays[matches[0].given])
    # So it is with what `refit` computes of other arrays.
    new = {name: array + np.float32(0.01) for name, array in arrays.items()}
    milblob.refit(model, new, base=arrays)
    assert {match.name for match in milblob.match(model, new).matches if match.how == "computed"} == {
        match.name for match in matches
    }


def test_another_checkpoint_is_not_searched_for_expressions(tmp_path, monkeypatch):
    """Of a checkpoint with other values, no expression can give a weight to the bit; to look for one takes most of the work."""
    arrays, model = example("plain_arithmetic", tmp_path)
    monkeypatch.setattr(Search, "claim_computed", lambda *_: pytest.fail("expected no search, got one"))
    found = milblob.match(model, {name: array + np.float32(1e-2) for name, array in arrays.items()})
    assert "computed" not in {match.how for match in found.matches}
    with pytest.raises(pytest.fail.Exception):
        milblob.match(model, arrays)
