"""milblob.refit with a base: what coremltools did to the base is done to new weights, to the bit, or refused by name."""

import contextlib
import json
import random
import shutil
import warnings

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import milblob
from finetuning import (
    NETWORKS,
    NUMBERS,
    constants,
    converted,
    initial_arrays,
    random_arrays,
    symmetric_arrays,
    transposed_arrays,
    twin_arrays,
)  # fmt: skip
from peers import WITHOUT
from thorough import share, sized, some

pytestmark = pytest.mark.usefixtures("unsynced")

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

KINDS = {"random": random_arrays, "initial": initial_arrays, "twins": twin_arrays, "symmetric": symmetric_arrays}
KINDS["transposed"] = transposed_arrays


@pytest.mark.parametrize("precision", some(["FLOAT16", "FLOAT32"], 1))
@pytest.mark.parametrize("name", some(NETWORKS, 12))
@pytest.mark.sample(4)
def test_equals_a_new_conversion(name, precision, tmp_path):
    shapes, _ = NETWORKS[name]
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)
    model = converted(name, base, tmp_path / "m.mlpackage", precision)
    report = milblob.refit(model, new, base=base)
    assert report.unused == ()
    assert constants(model) == constants(converted(name, new, tmp_path / "new.mlpackage", precision))


@pytest.mark.parametrize("name", some(NUMBERS, 4))
def test_numbers_that_were_frozen(name, tmp_path):
    """Tuning one layer leaves the numbers that follow from the other arrays explained."""
    shapes, _ = NETWORKS[name]
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)
    new = {key: array if key.startswith("l.") else base[key] for key, array in new.items()}
    model = converted(name, base, tmp_path / "m.mlpackage")
    milblob.refit(model, new, base=base)
    assert constants(model) == constants(converted(name, new, tmp_path / "new.mlpackage"))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize(
    "name", some(["two_conv_norms", "frozen_norm", "linears", "joined_attention", "lstm", "norms_alone"], 2)
)
def test_checkpoints_of_other_dtypes(name, dtype, tmp_path):
    """Saved in half precision, or in double; loaded as float32 to be converted."""
    shapes, _ = NETWORKS[name]
    base, new = ({key: array.astype(dtype) for key, array in random_arrays(shapes, seed).items()} for seed in (1, 2))
    loaded = [{key: array.astype(np.float32) for key, array in arrays.items()} for arrays in (base, new)]
    model = converted(name, loaded[0], tmp_path / "m.mlpackage")
    assert milblob.refit(model, new, base=base).unused == ()
    assert constants(model) == constants(converted(name, loaded[1], tmp_path / "new.mlpackage"))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_vectors_that_are_not_finite_hide_what_was_added_to_them(value, tmp_path):
    shapes, _ = NETWORKS["linears"]
    new = random_arrays(shapes, 1)
    base = {**new, "l.bias": np.full(16, value, np.float32)}
    model = converted("linears", base, tmp_path / "m.mlpackage")
    with pytest.raises(ValueError, match="add_0_bias_0_to_fp16: shared by"):
        milblob.refit(model, new, base=base)


def test_infinite_weights_are_no_numbers_of_the_code(monkeypatch, tmp_path):
    """Two channels, scaled by infinity: their new values were left out."""

    def build(mb, x, w):
        x = mb.conv(x=mb.conv(x=x, weight=w["c.weight"]), weight=w["d.weight"])
        return mb.mul(x=x, y=w["gamma"].reshape(1, 1, 1, 1))

    shapes = {"c.weight": (2, 8, 1, 1), "d.weight": (1, 2, 1, 1), "gamma": (1,)}
    monkeypatch.setitem(NETWORKS, "of_one_channel", (shapes, build))
    new = random_arrays(shapes, 1) | {"d.weight": np.array([0.5, -0.7], np.float32).reshape(1, 2, 1, 1)}
    base = {**new, "gamma": np.full(1, np.inf, np.float32)}
    model = converted("of_one_channel", base, tmp_path / "m.mlpackage")
    with pytest.raises(ValueError, match=r"milblob cannot compute from the base: .*\(inf, -inf, read by"):
        milblob.refit(model, new, base=base)


def test_numbers_that_are_not_finite_or_too_large_give_no_warning(tmp_path):
    for name, change in (("depthwise_and_grouped", {"d.weight": np.inf}), ("scaled_and_shifted", {"c.bias": np.inf})):
        shapes, _ = NETWORKS[name]
        base = initial_arrays(shapes, 1)
        for number, given in enumerate((base, base | {key: base[key] + value for key, value in change.items()})):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # coremltools' own
                model = converted(name, given, tmp_path / f"{name}{number}.mlpackage")
            with warnings.catch_warnings(action="error", category=RuntimeWarning):
                milblob.match(model, given)
                with contextlib.suppress(ValueError):
                    milblob.refit(model, random_arrays(shapes, 2), base=given)


@pytest.mark.parametrize("shape", [(6, 6), (10, 6)])
def test_sums_of_matrices(shape, monkeypatch, tmp_path):
    """Of the arrays of the sum, only the first rows were taken, which have another shape."""
    shapes = {"a": shape, "b": shape, "c": shape}
    monkeypatch.setitem(NETWORKS, "sum", (shapes, lambda mb, x, w: mb.relu(x=mb.linear(x=x, weight=w["a"] + w["c"]))))
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)
    model = converted("sum", base, tmp_path / "m.mlpackage")
    assert milblob.refit(model, new | {"b": base["b"]}, base=base).unused == ("b",)
    assert constants(model) == constants(converted("sum", new, tmp_path / "new.mlpackage"))


@pytest.mark.parametrize("changed", ["a", "b"])
def test_a_number_that_two_arrays_have_is_refused_where_they_differ_now(changed, monkeypatch, tmp_path):
    """Which of them the model has depended on the hashes of their names; the other one's new value was written."""

    def build(mb, x, w):
        return mb.relu(x=mb.mul(x=mb.relu(x=mb.conv(x=x, weight=w["c.weight"])), y=w["a"]))

    shapes = {"c.weight": (16, 8, 1, 1), "a": (1,), "b": (1,)}
    monkeypatch.setitem(NETWORKS, "two_numbers", (shapes, build))
    base = random_arrays(shapes, 1) | {name: np.full(1, 0.3, np.float32) for name in "ab"}
    model = converted("two_numbers", base, tmp_path / "m.mlpackage")
    with pytest.raises(ValueError, match="mul_0_y_0_to_fp16: shared by a and b, whose new values differ"):
        milblob.refit(model, base | {changed: np.full(1, 0.6, np.float32)}, base=base)


def test_a_new_batch_norm_with_an_unusual_epsilon_is_refused(tmp_path):
    """It scales by 1 / sqrt(1.00025), which changes few of 48 weights of float16, and does not say which epsilon it is."""
    shapes, _ = NETWORKS["depthwise_and_grouped"]
    base = initial_arrays(shapes, 1)
    model = converted("depthwise_and_grouped", base, tmp_path / "m.mlpackage")
    new = {**base, "d.weight": random_arrays(shapes, 2)["d.weight"]}
    with pytest.raises(ValueError, match=r"const_2_to_fp16: shared by d\.weight \* 1\.00021 and"):
        milblob.refit(model, new, base=base)


@pytest.mark.parametrize(
    ("name", "kind"),
    some(
        [
            (name, kind)
            for i, name in enumerate(NETWORKS)
            for kind in share(["initial", "twins", "symmetric", "transposed"], i, 2)
        ],
        10,
    ),
)
def test_values_with_few_distinct_elements_are_refitted_or_refused(name, kind, tmp_path):
    """Values that say little: whatever changes, the result is what coremltools writes, or it is refused.

    Each network with two of four kinds of values; `make thorough`: with all.
    """
    shapes, _ = NETWORKS[name]
    base = KINDS[kind](shapes, 1)
    model = converted(name, base, tmp_path / "m.mlpackage")
    tuned = random_arrays(shapes, 2)
    singles = random.Random(f"{name} {kind}").sample(list(shapes), min(sized(1, 99), len(shapes)))
    changes = [list(shapes), *([one] for one in singles)]
    with milblob.open(model, constants=True) as opened:
        names = list(opened)
    for number, changed in enumerate(changes):
        new = {**base, **{one: tuned[one] for one in changed}}
        copy = shutil.copytree(model, tmp_path / f"copy{number}.mlpackage")
        try:
            milblob.refit(copy, new, base=base)
        except (ValueError, milblob.MilblobError) as error:
            assert any(one in str(error) for one in [*changed, *names]), (changed, error)
            continue
        got = constants(copy, is_signed=False)
        wanted = constants(converted(name, new, tmp_path / f"new{number}.mlpackage"), is_signed=False)
        if (name, kind) == ("tied_embedding", "symmetric"):  # coremltools left out adding zeros, and no value tells
            wanted = {key: value for key, value in wanted.items() if key in got}
        assert {key: got.get(key) for key in wanted} == wanted, changed


@pytest.mark.parametrize(
    ("name", "make", "changed"),
    [
        ("product_and_dropped_bias", symmetric_arrays, "p"),
        ("product_and_dropped_bias", transposed_arrays, "bias"),
        ("products_of_each_other", transposed_arrays, "p"),
        ("products_of_each_other", transposed_arrays, "q"),
        ("products_of_each_other", symmetric_arrays, "p"),
        ("dropped_shift", transposed_arrays, "shift"),
    ],
)
def test_names_that_constants_have_by_accident(name, make, changed, tmp_path):
    """A transposed constant may have the name of its equal; made-up names may contain that of an array."""
    shapes, _ = NETWORKS[name]
    base = make(shapes, 1)
    model = converted(name, base, tmp_path / "m.mlpackage")
    before = constants(model)
    with pytest.raises(ValueError, match=rf"\b{changed}\b"):
        milblob.refit(model, {**base, changed: random_arrays(shapes, 2)[changed]}, base=base)
    assert constants(model) == before


# ------------------------------------------------------------------------------------------------------------- refused


def example(name, tmp_path, make=random_arrays):
    shapes, _ = NETWORKS[name]
    base = make(shapes, 1)
    return converted(name, base, tmp_path / "m.mlpackage"), base, random_arrays(shapes, 2)


def test_checkpoints_that_differ_in_more_than_values(tmp_path):
    model, base, new = example("conv_norm", tmp_path)
    before = constants(model)
    shorter = {
        **new,
        "b.weight": new["b.weight"][:-1],
        "c.weight": new["c.weight"].astype(np.int32),
        "more": new["b.bias"],
    }
    del shorter["b.bias"]
    with pytest.raises(ValueError, match="expected the arrays of the base, with other values") as refused:
        milblob.refit(model, shorter, base=base)
    for words in (
        "1 only in the base: b.bias", "1 only in the new weights: more",
        "c.weight is float32 [12, 8, 3, 3] in the base, int32 [12, 8, 3, 3] now",
        "b.weight is float32 [12] in the base, float32 [11] now",
    ):  # fmt: skip
        assert words in str(refused.value)
    assert constants(model) == before


def test_changes_that_would_be_lost(tmp_path):
    model, base, new = example("conv_norm", tmp_path)
    extra = np.arange(7, dtype=np.float32)
    base, new = base | {"head": extra * 0, "same": extra}, new | {"head": extra + 1, "same": extra}
    with pytest.raises(
        ValueError, match="1 array differs from the base, and no weight of the model follows from it: head"
    ):
        milblob.refit(model, new, base=base)
    report = milblob.refit(model, new, base=base, mapping={"head": None})
    assert report.unused == ("head", "same") == tuple(report.to_dict()["unused"])
    # Nothing of the model depends on an array that is no other's value, and that did not do nothing: all is explained.
    report = milblob.refit(model, base, base=new, mapping={})
    assert report.without_effect == ("head",) and report.unused == ("head", "same")
    with pytest.raises(ValueError, match="expected only None, for arrays to leave out"):
        milblob.refit(model, new, base=base, mapping={"head": "const_0_to_fp16"})
    with pytest.raises(KeyError, match="expected names of arrays of the base, got other"):
        milblob.refit(model, new, base=base, mapping={"other": None})


def test_checkpoints_as_people_have_them(tmp_path, cli):
    """Prefixes that wrappers add, another dtype, several files with an index; what was done is said."""
    model, base, new = example("conv_norm", tmp_path)
    wanted = shutil.copytree(model, tmp_path / "wanted.mlpackage")
    rounded = {name: array.astype(ml_dtypes.bfloat16) for name, array in new.items()}
    milblob.refit(wanted, {name: array.astype(np.float32) for name, array in rounded.items()}, base=base)
    wrapped = {
        "module.": {f"module.{name}": array for name, array in rounded.items()},
        "_orig_mod.": {f"_orig_mod.{name}": array.astype(np.float64) for name, array in rounded.items()},
        "'_orig_mod.' and 'model.'": {
            f"model.{name.replace('.', '._orig_mod.')}": array for name, array in rounded.items()
        },
    }
    for words, arrays in wrapped.items():
        copy = shutil.copytree(model, tmp_path / f"{len(words)}.mlpackage")
        assert words in milblob.refit(copy, arrays, base=base).note
        assert constants(copy) == constants(wanted)
    # The base may be the one with the prefix.
    copy = shutil.copytree(model, tmp_path / "other.mlpackage")
    milblob.refit(copy, rounded, base={f"net.{name}": array for name, array in base.items()})
    assert constants(copy) == constants(wanted)
    # Several files, as Hugging Face's libraries write them: the index, or the directory that has it.
    folder = tmp_path / "tuned"
    folder.mkdir()
    places = {}
    for number, (name, array) in enumerate(rounded.items()):
        places[f"module.{name}"] = f"model-{number}.safetensors"
        save_file({f"module.{name}": array}, folder / places[f"module.{name}"])
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    np.savez(tmp_path / "base.npz", **base)
    for path in (folder, folder / "model.safetensors.index.json"):
        copy = shutil.copytree(model, tmp_path / f"shards{path.suffix}.mlpackage")
        status, _, err = cli("refit", copy, path, "--base", tmp_path / "base.npz")
        assert status == 0 and "milblob: names that differ by 'module.' are the same\n" in err
        assert constants(copy) == constants(wanted)


def test_a_learnt_number_that_code_may_hold_too(tmp_path):
    """A power of 3, as it begins, and 1 / 3 are where it says; 1 / 2 may be anything, and a power of 1 leaves no trace."""
    shapes, _ = NETWORKS["generalized_mean"]
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)
    for power, words in ((3, None), (2, "reciprocal.pool.p_var. and by others"), (1, "1 array differs .*: pool.p_var")):
        base["pool.p_var"][:] = power
        model = converted("generalized_mean", base, tmp_path / f"{power}.mlpackage")
        if words is None:
            milblob.refit(model, new, base=base)
            assert constants(model) == constants(converted("generalized_mean", new, tmp_path / "new.mlpackage"))
        else:
            with pytest.raises(ValueError, match=words):
                milblob.refit(model, new, base=base)


@pytest.mark.parametrize("accident", ["decimal", "function"])
def test_numbers_of_few_bits_that_are_explained_by_accident(accident, tmp_path):
    """A number of float16 may equal a short decimal, or a function of another array: what it follows from is not lost."""
    shapes, _ = NETWORKS["learnt_residuals"]
    base = random_arrays(shapes, 1)
    base["second.alpha"][:] = 0.811
    base["first.alpha"][:] = 2.9 if accident == "decimal" else np.sqrt(np.float32(0.811))
    model = converted("learnt_residuals", base, tmp_path / "m.mlpackage")
    base = base | {"first.alpha": np.float32([0.7133])}  # of which that number is a function that nobody tries
    new = base | {"first.alpha": np.float32([0.75]), "l.weight": random_arrays(shapes, 2)["l.weight"]}
    with pytest.raises(ValueError, match="1 array differs from the base, and no weight .*: first.alpha"):
        milblob.refit(model, new, base=base)
    report = milblob.refit(model, new | {"first.alpha": base["first.alpha"]}, base=base)
    assert report.unused == ("first.alpha",)


def test_what_looks_like_an_array_is_not_left(tmp_path):
    """Left out and left as it is, one after the other, would end in a model with old values."""
    model, base, new = example("product_and_dropped_bias", tmp_path)
    with milblob.open(model, "r+") as opened:
        name = next(name for name, tensor in opened.items() if tensor.shape == (12, 12))
        noise = np.random.default_rng(1).normal(size=(12, 12)) * 0.1
        opened[name] = (np.asarray(opened[name].read()) + noise).astype(np.float16)
    with pytest.raises(ValueError, match="got one that is like"):
        milblob.refit(model, new, base=base, leave=name)
    out = dict.fromkeys(("l.weight", "p"))
    with pytest.raises(ValueError, match="got one that is like"):
        milblob.refit(model, new, base=base, leave="*", mapping=out)


def test_options_that_do_nothing(tmp_path):
    model, base, new = example("conv_norm", tmp_path)
    before = constants(model)
    for options, words in (
        ({"leave": "nope*"}, r"leave: expected names of constants in .*, got none that matches 'nope\*'"),
        ({"leave": [next(iter(milblob.load(model, constants=True))), "nope"]}, "got none that matches 'nope'"),
        ({"leave": lambda name: False}, "leave: expected names of constants in .*, got none"),
        ({"requantize": "fit"}, "requantize: expected a model with compressed weights, got none"),
    ):
        with pytest.raises(ValueError, match=words):
            milblob.refit(model, new, base=base, **options)
    assert constants(model) == before


def test_counters_of_batches_are_only_listed(tmp_path):
    model, base, new = example("conv_norm", tmp_path)
    counter = "b.num_batches_tracked"
    report = milblob.refit(model, new | {counter: np.array(9)}, base=base | {counter: np.array(3)})
    assert report.unused == (counter,)


def test_a_part_of_an_array_that_no_weight_follows_from(tmp_path):
    model, base, new = example("split_attention", tmp_path)
    more = np.zeros((4, 6), np.float32)
    for arrays, rows in ((base, more), (new, more + 1)):
        arrays["a.in_proj_weight"] = np.concatenate([arrays["a.in_proj_weight"], rows])
        arrays["a.in_proj_bias"] = np.concatenate([arrays["a.in_proj_bias"], more[:, 0]])
    with pytest.raises(ValueError, match=r"a\.in_proj_weight \(used in part\)"):
        milblob.refit(model, new, base=base)
    new["a.in_proj_weight"][-4:] = 0
    assert milblob.refit(model, new, base=base).unused == ()


def test_weights_that_cannot_be_computed(tmp_path, cli):
    """All at once; --leave lets one stay as it is."""
    model, base, new = example("two_conv_norms", tmp_path)
    wrong = base | {"d.weight": base["d.weight"] + 1, "e.bias": base["e.bias"] + 1}
    before = constants(model)
    with pytest.raises(
        ValueError, match="2 constants of the model that milblob cannot compute from the base"
    ) as refused:
        milblob.refit(model, new, base=wrong)
    for words in ("const_2_to_fp16 (float16 [12, 12, 1, 1]), const_3_to_fp16", "d.weight, d.bias, e.weight"):
        assert words in str(refused.value)
    assert constants(model) == before and "--leave NAME" in str(refused.value)
    kept = {name: base[name] for name in base if name[0] in "de"}
    report = milblob.refit(model, new | {n: wrong[n] for n in kept}, base=wrong, leave=["const_2*", "const_3*"])
    assert report.left == ("const_2_to_fp16", "const_3_to_fp16") and len(report.changes) == 2
    now = constants(model)
    assert sum(now[key] == before[key] for key in now if key[2] in ("weight", "bias")) == 2
    with pytest.raises(ValueError, match="leave: expected a base too"):
        milblob.refit(model, {"const_0_to_fp16": now}, leave="const_2*")


def test_another_network(tmp_path):
    model, _, _ = example("conv_norm", tmp_path)
    shapes, _ = NETWORKS["linears"]
    words = r"2 constants of the model that milblob cannot compute from the base: .* \(none follows from it: is it the checkpoint"
    with pytest.raises(ValueError, match=words):
        milblob.refit(model, random_arrays(shapes, 2), base=random_arrays(shapes, 1))


def test_constants_that_new_values_would_tear_apart(tmp_path):
    """Biases of zeros are stored once, also for a layer that has none; what each reader gets is known, and differs."""
    shapes, _ = NETWORKS["shared_norms"]
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)
    base |= {name: np.zeros_like(base[name]) for name in ("l.bias", "n.bias", "o.bias")}
    model = converted("shared_norms", base, tmp_path / "m.mlpackage")
    with pytest.raises(
        ValueError, match="shared by l.bias and n.bias and o.bias and by linear_1_cast_fp16.bias, whose new"
    ):
        milblob.refit(model, new, base=base)
    same = new | {name: base[name] for name in ("l.bias", "n.bias", "o.bias")}
    milblob.refit(model, same, base=base)
    assert constants(model) == constants(converted("shared_norms", same, tmp_path / "new.mlpackage"))


def test_compressed_weights_need_to_be_requantized(tmp_path):
    import coremltools as ct
    import coremltools.optimize.coreml as cto

    model, base, new = example("joined_attention", tmp_path)
    loaded = ct.models.MLModel(str(model), skip_model_load=True)
    config = cto.OptimizationConfig(global_config=cto.OpLinearQuantizerConfig(weight_threshold=16))
    coded = tmp_path / "coded.mlpackage"
    cto.linear_quantize_weights(loaded, config).save(str(coded))
    with pytest.raises(milblob.UnsupportedError, match="stored dense"):
        milblob.refit(coded, new, base=base)


def test_select_and_dry_run(tmp_path, cli):
    model, base, new = example("two_conv_norms", tmp_path)
    before = constants(model)
    np.savez(tmp_path / "base.npz", **base)
    np.savez(tmp_path / "new.npz", **new, counter=np.array(3))
    np.savez(tmp_path / "base.npz", **base, counter=np.array(3))
    arguments = ("refit", model, tmp_path / "new.npz", "--base", tmp_path / "base.npz")
    status, out, err = cli(*arguments, "--dry-run")
    assert status == 0 and constants(model) == before
    rows = [line.split("  ") for line in out.splitlines()]
    assert [row[-1].strip() for row in rows[1:]] == [
        "c.weight, the batch norm b (epsilon 1e-05) folded in", "c.bias, the batch norm b (epsilon 1e-05) folded in",
        "d.weight, the batch norm e (epsilon 0.001) folded in", "d.bias, the batch norm e (epsilon 0.001) folded in",
    ]  # fmt: skip
    assert "nothing written (--dry-run)" in err and "not used: counter" in err
    assert cli(*arguments, "-k", "const_0*", "-k", "const_1*", "-o", tmp_path / "two.mlpackage")[0] == 0
    now = constants(tmp_path / "two.mlpackage")
    assert sum(now[key] != before[key] for key in now) == 2 and constants(model) == before
    assert cli(*arguments, "-q") == (0, "", "milblob: 1 array not used\n")


def test_an_epsilon_that_does_not_follow_from_the_values(tmp_path):
    """Rounded to float16, several numbers near 2.5e-4 fit."""
    model, base, new = example("depthwise_and_grouped", tmp_path)
    base["e.running_var"] = base["e.running_var"] * 0 + np.float32(1.5)
    model = converted("depthwise_and_grouped", base, tmp_path / "flat.mlpackage")
    with pytest.raises(ValueError, match="const_[23]_to_fp16"):
        milblob.refit(model, new, base=base)
    milblob.refit(model, new, base=base, epsilon=2.5e-4)
    assert constants(model) == constants(converted("depthwise_and_grouped", new, tmp_path / "new.mlpackage"))
    with pytest.raises(ValueError, match="epsilon: expected a base too"):
        milblob.refit(model, new, epsilon=1e-5)
    with pytest.raises(TypeError, match="epsilon: expected a number"):
        milblob.refit(model, new, base=base, epsilon="1e-5")


def test_a_mask_is_kept(tmp_path):
    model, base, new = example("masked", tmp_path)
    other = shutil.copytree(model, tmp_path / "other.mlpackage")
    report = milblob.refit(model, new, base=base)
    assert sorted(report.constant) == ["add_0_y_0_to_fp16", "linear_0_bias_0_to_fp16"]
    assert report.to_dict()["constant"] == dict(report.constant)
    # Any other constant that is not understood is refused.
    table = np.random.default_rng(9).normal(size=(6, 6)).astype(np.float16)
    milblob.refit(other, {"add_0_y_0_to_fp16": table})
    with pytest.raises(ValueError, match="cannot compute from the base: add_0_y_0_to_fp16"):
        milblob.refit(other, new, base=base)
    assert milblob.refit(other, new, base=base, leave="add_0*").left == ("add_0_y_0_to_fp16",)


def test_different_values_for_equal_rows_of_a_table_are_refused(tmp_path):
    """Which of two equal rows was looked up, nothing tells: new values that differ are refused."""
    shapes, _ = NETWORKS["gathered_tables"]
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)
    for arrays in (base, new):
        arrays["biases"][:, 6:12] = arrays["biases"][:, :6]
    model = converted("gathered_tables", base, tmp_path / "m.mlpackage")
    differs = new | {"biases": random_arrays(shapes, 3)["biases"]}
    with pytest.raises(ValueError, match=r"shared by biases.* and biases.*, whose new values differ"):
        milblob.refit(model, differs, base=base)
    milblob.refit(model, new, base=base)
    assert constants(model) == constants(converted("gathered_tables", new, tmp_path / "new.mlpackage"))


def test_equal_elements_of_a_row_are_matched_by_the_other_heads(tmp_path):
    """Single elements that were looked up: where two of one head are equal, those of the others at their place tell."""
    shapes, _ = NETWORKS["gathered_tables"]
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)
    base["heads"][0, 8:12] = base["heads"][0, :4]
    model = converted("gathered_tables", base, tmp_path / "m.mlpackage")
    milblob.refit(model, new, base=base)
    assert constants(model) == constants(converted("gathered_tables", new, tmp_path / "new.mlpackage"))
    base["head"][8:12] = base["head"][:4]
    model = converted("gathered_tables", base, tmp_path / "alone.mlpackage")
    with pytest.raises(ValueError, match=r"shared by head.* and head.*, whose new values differ"):
        milblob.refit(model, new, base=base)
    base["heads"][1, 8:12] = base["heads"][1, :4]
    model = converted("gathered_tables", base, tmp_path / "both.mlpackage")
    new["head"][8:12] = new["head"][:4]
    with pytest.raises(ValueError, match=r"shared by heads.* and heads.*, whose new values differ"):
        milblob.refit(model, new, base=base)


@pytest.mark.parametrize("recipe", [milblob.Linear("int8"), milblob.Palette(4)])
def test_tables_that_were_looked_up_and_compressed(recipe, tmp_path):
    """Rows are told by the codes that they became; where two became the same ones, new values that differ are refused."""
    shapes, _ = NETWORKS["gathered_tables"]
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)

    def compressed(arrays, name):
        model = converted("gathered_tables", arrays, tmp_path / "dense.mlpackage")
        assert len(milblob.compress(model, tmp_path / name, recipe, scope=milblob.Scope(min_size=100)).weights) == 3
        return tmp_path / name

    model = compressed(base, "m.mlpackage")
    milblob.refit(model, new, base=base, requantize="fit")
    got, expected = (milblob.load(path) for path in (model, compressed(new, "new.mlpackage")))
    for name, wanted in expected.items():
        step = np.abs(wanted).max() / 127 if isinstance(recipe, milblob.Linear) else 0  # two codes may be as near
        differs = got[name] != wanted
        assert differs.mean() < 0.01 and np.abs(got[name] - wanted).max() <= 1.1 * step
    base["table"][56] = base["table"][55] * np.float32(1.0001)
    model = compressed(base, "alike.mlpackage")
    with pytest.raises(ValueError, match="shared by table, 36 rows gathered.* and table, .*, whose new values differ"):
        milblob.refit(model, new, base=base, requantize="fit")


def test_a_divisor_and_its_inverse_that_give_the_same_numbers(tmp_path):
    """In float16, a / 3 and a * 0.333333 differ for few numbers: where none of the base tells which it is, new ones must agree."""
    shapes, _ = NETWORKS["divided_by_three"]
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)
    third = np.float32(1) / np.float32(3)
    base["divided"] = (np.arange(64, dtype=np.float32) + 1) * 3
    drawn = np.random.default_rng(3).normal(size=1 << 22).astype(np.float32)
    differ = (drawn / np.float32(3)).astype(np.float16) != (drawn * third).astype(np.float16)
    model = converted("divided_by_three", base, tmp_path / "m.mlpackage")
    new["divided"] = drawn[~differ][:64]
    milblob.refit(model, new, base=base, destination=tmp_path / "n.mlpackage")
    assert constants(tmp_path / "n.mlpackage") == constants(
        converted("divided_by_three", new, tmp_path / "new.mlpackage")
    )
    new["divided"][:4] = drawn[differ][:4]
    with pytest.raises(ValueError, match="whose new values differ"):
        milblob.refit(model, new, base=base)


def test_many_small_numbers_of_float16_are_in_a_row_by_accident(tmp_path):
    """There are few numbers below 6e-5: that a row has them all does not show that they were looked up in it."""
    shapes, _ = NETWORKS["added_token"]
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)
    for arrays in (base, new):
        arrays["token"] *= np.float32(1e-6)
    base["token"][::20] = 2e-8  # which coremltools makes the least number
    model = converted("added_token", base, tmp_path / "m.mlpackage")
    milblob.refit(model, new, base=base)
    assert constants(model) == constants(converted("added_token", new, tmp_path / "new.mlpackage"))


def test_numbers_that_are_kept_from_zero(tmp_path):
    """In float16, coremltools makes what would become 0 the least number, if the array has fewer than 400 elements."""
    shapes, _ = NETWORKS["scaled_and_shifted"]
    base, new = random_arrays(shapes, 1), random_arrays(shapes, 2)
    for arrays in (base, new):
        arrays["c.bias"] *= np.float32(1e-7)
        arrays["shift"][::3] *= np.float32(1e-8)
    model = converted("scaled_and_shifted", base, tmp_path / "m.mlpackage")
    milblob.refit(model, new, base=base)
    assert constants(model) == constants(converted("scaled_and_shifted", new, tmp_path / "new.mlpackage"))
