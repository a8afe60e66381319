"""milblob.refit with LoRA adapters: weights are those of a refit with the merged checkpoint, or an error names the array."""

import json
import math
import re
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

import milblob
from adapters import CONFIG, PREFIX, factors, save_adapter
from finetuning import NETWORKS, converted, random_arrays
from milblob.formats.peft import open_adapter
from milblob.formats.read import open_arrays
from milblob.refitting import merging
from milblob.refitting.from_base import tensors_of
from paths import DEMO
from peers import WITHOUT
from thorough import some

pytestmark = pytest.mark.usefixtures("unsynced")

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])


def product(arrays, module, kind="lora_{}.weight"):
    a, b = (arrays[f"{PREFIX}{module}.{kind.format(side)}"].astype(np.float64) for side in "AB")
    return b.reshape(b.shape[:2]) @ a.reshape(len(a), -1)


def merged(base, adapters, scales=(1.0,)):
    """What milblob merges into arrays, as arrays."""
    opened = [open_adapter(str(path)) for path in adapters]
    found, _ = merging.merge(tensors_of(base), list(zip(opened, scales, strict=True)), "error")
    return {name: np.array(array.read()) for name, array in found.items()}


def weight_bytes(package):
    return (package / "Data/com.apple.CoreML/weights/weight.bin").read_bytes()


# --------------------------------------------------------------------------------------------------------- the values


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("options", [{}, {"lora_alpha": 3}, {"use_rslora": True}, {"lora_alpha": -8.0}])
def test_linear_weight_gets_the_scaled_product(options, dtype, tmp_path):
    base = {
        "l.weight": np.random.default_rng(0).standard_normal((12, 7)).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    }
    arrays = factors("l", 12, 7)
    found = merged(base, [save_adapter(tmp_path / "a", arrays, **options)])["l.weight"]
    alpha = options.get("lora_alpha", 4)
    scale = np.float32(alpha / math.sqrt(2) if "use_rslora" in options else alpha / 2)
    delta = product(arrays, "l").astype(np.float32) * scale
    wide = np.float64 if dtype == "float64" else np.float32
    assert found.dtype == base["l.weight"].dtype
    assert np.array_equal(found, (base["l.weight"].astype(wide) + delta).astype(found.dtype))


def test_patterns_choose_rank_and_alpha(tmp_path):
    base = {f"x.{n}.{m}.weight": np.zeros((4, 3), np.float32) for n in (0, 1) for m in ("q", "v")}
    arrays = factors("x.0.q", 4, 3) | factors("x.1.q", 4, 3, 3) | factors("x.0.v", 4, 3) | factors("x.1.v", 4, 3)
    patterns = {"rank_pattern": {"1.q": 3}, "alpha_pattern": {r"x\.\d\.v": 6, "^x.0.q": 8}}
    found = merged(base, [save_adapter(tmp_path / "a", arrays, **patterns)])
    scales = {"x.0.q": 4.0, "x.1.q": 4 / 3, "x.0.v": 3.0, "x.1.v": 3.0}
    for module, scale in scales.items():
        expected = product(arrays, module).astype(np.float32) * np.float32(scale)
        assert np.array_equal(found[f"{module}.weight"], expected), module


@pytest.mark.parametrize(
    ("shapes", "flag", "turned"),
    [
        ({"a": (5, 5)}, False, {"a": False}),
        ({"a": (5, 5)}, True, {"a": True}),
        ({"a": (5, 5), "b": (3, 5)}, False, {"a": True, "b": True}),
        ({"h.0.p": (5, 5), "m.p": (3, 5), "head": (5, 3)}, False, {"h.0.p": True, "m.p": True, "head": False}),
    ],
)
def test_shapes_show_which_weights_are_transposed(shapes, flag, turned, tmp_path):
    base = {f"{name}.weight": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    arrays = {}
    for name, shape in shapes.items():
        arrays |= factors(name, *(shape[::-1] if turned[name] else shape))
    found = merged(base, [save_adapter(tmp_path / "a", arrays, fan_in_fan_out=flag)])
    for name in shapes:
        delta = product(arrays, name) * 2
        assert np.array_equal(found[f"{name}.weight"], delta.T if turned[name] else delta), name


def test_embeddings_convolutions_biases_and_saved_modules(tmp_path):
    rng = np.random.default_rng(3)
    shapes = {
        "e.weight": (9, 4),
        "c.weight": (6, 4, 3),
        "c.bias": (6,),
        "l.weight": (5, 4),
        "l.bias": (5,),
        "s.w": (3,),
    }
    base = {name: rng.integers(-9, 9, shape).astype(np.float32) for name, shape in shapes.items()}
    arrays = factors("e", 4, 9, kind="lora_embedding_{}") | factors("l", 5, 4)
    arrays[f"{PREFIX}c.lora_A.weight"] = rng.integers(-8, 9, (2, 4, 3)).astype(np.float32) / 16
    arrays[f"{PREFIX}c.lora_B.weight"] = rng.integers(-8, 9, (6, 2, 1)).astype(np.float32) / 16
    added, bias, saved = (rng.standard_normal(count).astype(np.float32) for count in (5, 6, 3))
    arrays |= {f"{PREFIX}l.lora_B.bias": added, f"{PREFIX}c.base_layer.bias": bias, f"{PREFIX}s.w": saved}
    arrays[f"{PREFIX}s.original_module.w"] = base["s.w"]
    found = merged(base, [save_adapter(tmp_path / "a", arrays)])
    assert np.array_equal(found["e.weight"], base["e.weight"] + 2 * product(arrays, "e", "lora_embedding_{}").T)
    assert np.array_equal(found["c.weight"], base["c.weight"] + 2 * product(arrays, "c").reshape(6, 4, 3))
    assert np.array_equal(found["l.weight"], base["l.weight"] + 2 * product(arrays, "l"))
    assert np.array_equal(found["l.bias"], base["l.bias"] + 2 * added)
    assert np.array_equal(found["c.bias"], bias)
    assert np.array_equal(found["s.w"], saved)


@pytest.mark.parametrize("turned", [False, True])
def test_dora_gives_each_output_its_learnt_length(turned, tmp_path):
    rng = np.random.default_rng(4)
    base = {"l.weight": rng.standard_normal((7, 5) if turned else (5, 7)).astype(np.float32)}
    arrays, lengths = factors("l", 5, 7), rng.random(5).astype(np.float32) + 1
    arrays[f"{PREFIX}l.lora_magnitude_vector"] = lengths
    found = merged(base, [save_adapter(tmp_path / "a", arrays, use_dora=True)])["l.weight"]
    outputs = (found.T if turned else found).astype(np.float64)
    assert np.allclose(np.linalg.norm(outputs, axis=1), lengths, rtol=1e-6)
    plain = (base["l.weight"].T if turned else base["l.weight"]) + 2 * product(arrays, "l")
    assert np.allclose(outputs, plain * (lengths / np.linalg.norm(plain, axis=1))[:, None], rtol=1e-6)


def test_several_adapters_add_up_with_their_scales(tmp_path):
    base = {"l.weight": np.ones((6, 4), np.float32)}
    first, second = factors("l", 6, 4), factors("l", 6, 4, 5, seed=2)
    paths = [save_adapter(tmp_path / "a", first), save_adapter(tmp_path / "b", second, r=5, lora_alpha=5)]
    found = merged(base, paths, [0.5, -2.0])["l.weight"]
    assert np.array_equal(found, 1 + product(first, "l") - 2 * product(second, "l"))


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (9, 33), (64, 70), (65, 64), (2, 700)])
def test_a_part_has_the_bits_of_the_whole(shape, tmp_path, monkeypatch):
    monkeypatch.setattr(merging, "_TILE_COUNT", 256)
    rng = np.random.default_rng(5)
    base = {"l.weight": rng.standard_normal(shape).astype(np.float32)}
    arrays = {f"{PREFIX}l.lora_A.weight": rng.standard_normal((37, shape[1]), dtype=np.float32)}
    arrays[f"{PREFIX}l.lora_B.weight"] = rng.standard_normal((shape[0], 37), dtype=np.float32)
    adapter = open_adapter(str(save_adapter(tmp_path / "a", arrays, r=37)))
    found, _ = merging.merge(tensors_of(base), [(adapter, 1.0)], "error")
    whole = np.array(found["l.weight"].read())
    a, b = (arrays[f"{PREFIX}l.lora_{side}.weight"] for side in "AB")
    assert np.allclose(whole, base["l.weight"] + b @ a * np.float32(4 / 37), rtol=1e-5, atol=1e-5)
    for row in range(shape[0]):
        assert np.array_equal(found["l.weight"][row], whole[row])
    middle = shape[0] // 2
    assert np.array_equal(found["l.weight"][middle : middle + 3], whole[middle : middle + 3])


# -------------------------------------------------------------------------------------------------- refit with a base

ADAPTED = {
    "linears": ({"l.weight": "l.weight", "p": "p.weight"}, ["l", "p"]),
    "split_attention": ({"a.in_proj_weight": "qkv.weight", "a.in_proj_bias": "qkv.bias"}, ["qkv", "a.out_proj"]),
    "joined_attention": ({}, ["q", "v"]),
    "untied_embedding": ({}, ["emb", "head"]),
    "conv_norm": ({}, ["c"]),
}  # the network, names of arrays that differ in the checkpoint, modules


def adapted(name, tmp_path):
    """A package, its base as a file, an adapter for some of its weights, and the merged arrays computed in float64."""
    names, modules = ADAPTED[name]
    arrays = random_arrays(NETWORKS[name][0], 1)
    converted(name, arrays, tmp_path / "m.mlpackage")
    base = {names.get(key, key): array for key, array in arrays.items()}
    tuned, changes = dict(base), {}
    for seed, module in enumerate(modules):
        weight = base[f"{module}.weight"]
        if module == "emb":
            own = factors(module, weight.shape[1], weight.shape[0], seed=seed, kind="lora_embedding_{}")
            delta = product(own, module, "lora_embedding_{}").T
        elif module == "p":  # x @ p: stored as a linear layer stores it
            own = factors(module, *weight.shape, seed=seed)
            delta = product(own, module)
        else:
            own = factors(module, len(weight), weight[0].size, seed=seed)
            delta = product(own, module).reshape(weight.shape)
            if weight.ndim > 2:
                key = f"{PREFIX}{module}.lora_A.weight"
                own[key] = own[key].reshape(-1, *weight.shape[1:])
                own[f"{PREFIX}{module}.lora_B.weight"] = own[f"{PREFIX}{module}.lora_B.weight"][:, :, None, None]
        changes |= own
        tuned[f"{module}.weight"] = (weight.astype(np.float32) + (2 * delta).astype(np.float32)).astype(weight.dtype)
    save_file(base, tmp_path / "base.safetensors")
    save_adapter(tmp_path / "lora", changes)
    return tmp_path / "m.mlpackage", tmp_path / "base.safetensors", tmp_path / "lora", tuned


@pytest.mark.parametrize("name", some(ADAPTED, 5))
def test_refit_equals_one_with_the_merged_checkpoint(name, tmp_path):
    model, base, lora, tuned = adapted(name, tmp_path)
    milblob.refit(model, tuned, base=base, destination=tmp_path / "expected.mlpackage")
    report = milblob.refit(model, lora, base=base, destination=tmp_path / "copy.mlpackage")
    assert weight_bytes(tmp_path / "copy.mlpackage") == weight_bytes(tmp_path / "expected.mlpackage")
    assert milblob.diff(tmp_path / "copy.mlpackage", tmp_path / "expected.mlpackage").is_same
    assert not milblob.diff(tmp_path / "copy.mlpackage", model).is_same
    assert 0 < len(report.changes) <= len(ADAPTED[name][1]) + 2
    milblob.refit(model, lora, base=base)
    assert weight_bytes(model) == weight_bytes(tmp_path / "expected.mlpackage")


@pytest.mark.parametrize("how", ["keep", "fit"])
def test_compressed_weights_equal_those_of_the_merged_checkpoint(how, tmp_path):
    model, base, lora, tuned = adapted("linears", tmp_path)
    milblob.compress(model, tmp_path / "small.mlpackage", "int8", scope=milblob.Scope(min_size=64))
    small, outputs = tmp_path / "small.mlpackage", [tmp_path / "a.mlpackage", tmp_path / "b.mlpackage"]
    for new, output in zip((lora, tuned), outputs, strict=True):
        milblob.refit(small, new, base=base, destination=output, requantize=how)
    assert milblob.diff(*outputs).is_same
    assert not milblob.diff(outputs[0], small).is_same
    with pytest.raises(milblob.UnsupportedError, match="stored dense"):
        milblob.refit(small, lora, base=base)


def test_scale_and_lists_of_adapters(tmp_path):
    model, base, lora, _ = adapted("linears", tmp_path)
    shutil.copytree(lora, tmp_path / "again")
    milblob.refit(
        model, [lora, tmp_path / "again"], base=base, scale=[2.5, -2.0], destination=tmp_path / "two.mlpackage"
    )
    milblob.refit(model, lora, base=base, scale=0.5, destination=tmp_path / "one.mlpackage")
    assert milblob.diff(tmp_path / "one.mlpackage", tmp_path / "two.mlpackage").is_same
    milblob.refit(model, str(lora), base=base, scale=0, destination=tmp_path / "none.mlpackage")
    assert milblob.diff(tmp_path / "none.mlpackage", model).is_same


def test_names_of_the_base_may_lack_a_prefix_or_have_one_more(tmp_path):
    model, base, lora, _ = adapted("joined_attention", tmp_path)
    milblob.refit(model, lora, base=base, destination=tmp_path / "expected.mlpackage")
    arrays = {name: np.array(array) for name, array in open_arrays(base).items()}
    own = {name: np.array(array) for name, array in open_arrays(lora).items()}
    longer = {f"transformer.{name}": array for name, array in arrays.items()}
    save_adapter(tmp_path / "other", {name.replace(PREFIX, PREFIX + "model."): array for name, array in own.items()})
    for number, (new, old) in enumerate(((lora, longer), (tmp_path / "other", arrays))):
        report = milblob.refit(model, new, base=old, destination=tmp_path / f"{number}.mlpackage")
        assert "are the same" in report.note
        assert milblob.diff(tmp_path / f"{number}.mlpackage", tmp_path / "expected.mlpackage").is_same


def test_what_the_model_lacks_is_named(tmp_path):
    model, base, lora, _ = adapted("linears", tmp_path)
    before = weight_bytes(model)
    arrays = {name: np.array(array) for name, array in open_arrays(base).items()}
    own = {name: np.array(array) for name, array in open_arrays(lora).items()}
    with pytest.raises(KeyError, match="expected weights of the base, got x.weight"):
        milblob.refit(model, save_adapter(tmp_path / "a", own | factors("x", 4, 4)), base=base)
    longer = {**arrays, "x.weight": np.random.default_rng(1).standard_normal((8, 8)).astype(np.float32)}
    more = save_adapter(tmp_path / "b", own | factors("x", 8, 8))
    with pytest.raises(ValueError, match="no weight of the model follows from it: x.weight"):
        milblob.refit(model, more, base=longer)
    assert weight_bytes(model) == before
    milblob.refit(model, more, base=longer, mapping={"x.weight": None}, destination=tmp_path / "left.mlpackage")
    milblob.refit(model, lora, base=base)
    assert milblob.diff(tmp_path / "left.mlpackage", model).is_same


def test_another_base_is_found_by_its_values(tmp_path):
    model, base, _, _ = adapted("linears", tmp_path)
    before = weight_bytes(model)
    arrays = {name: np.array(array) for name, array in open_arrays(base).items()}
    lora = save_adapter(tmp_path / "named", factors("l", 16, 6), base_model_name_or_path="some/base")
    other = {**arrays, "l.weight": arrays["l.weight"] * np.float32(1.01)}
    with pytest.raises(
        ValueError, match=r"cannot compute from the base: .*\(float16 \[16, 6\]\).*; base of the adapter: some/base"
    ):
        milblob.refit(model, lora, base=other)
    with pytest.raises(ValueError, match="is it the checkpoint that this model was converted from"):
        milblob.refit(model, lora, base=random_arrays({name: array.shape for name, array in arrays.items()}, 9))
    assert weight_bytes(model) == before


# ------------------------------------------------------------------------------------------------------- refused input


def without(key):
    return lambda arrays, config: config.pop(key)


def setting(**values):
    return lambda arrays, config: config.update(values)


def array(name, change):
    def alter(arrays, config):
        arrays[f"{PREFIX}{name}"] = np.ascontiguousarray(change(arrays.get(f"{PREFIX}{name}")))

    return alter


def filled(number):
    def change(values):
        values = values.copy()
        values.flat[3] = number
        return values

    return change


A, B = "l.lora_A.weight", "l.lora_B.weight"
REFUSED = {
    "no peft_type": (without("peft_type"), "expected a key peft_type, got none"),
    "no rank": (without("r"), "expected a key r, got none"),
    "no alpha": (without("lora_alpha"), "expected a key lora_alpha, got none"),
    "another method": (setting(peft_type="LOHA"), "peft_type of adapter: expected LORA, got 'LOHA'"),
    "a list as method": (setting(peft_type=[1]), "peft_type of adapter: expected LORA, got"),
    "rank 0": (setting(r=0), "r of adapter: expected a rank of at least 1, got 0"),
    "rank true": (setting(r=True), "r of adapter: expected a rank of at least 1, got True"),
    "another rank": (setting(r=3), r"factors of l: expected A \[3, ...\] and B \[..., 3\] .* got \[2, 7\] and \[5, 2\]"),
    "rank 0 in a pattern": (setting(rank_pattern={"l": 0}), "rank_pattern 'l' of adapter: expected a rank"),
    "alpha is NaN": (setting(lora_alpha=math.nan), "lora_alpha of adapter: expected a number, got nan"),
    "alpha is a text": (setting(alpha_pattern={"l": "2"}), "alpha_pattern 'l' of adapter: expected a number, got '2'"),
    "patterns are a list": (setting(rank_pattern=["l"]), "rank_pattern of adapter: expected an object"),
    "broken expression": (setting(rank_pattern={"l(": 2}), "expected a regular expression"),
    "slow expression": (setting(rank_pattern={"(a+)+b": 2}), "few repetitions and groups"),
    "slow alternatives": (setting(rank_pattern={"(a|a)" * 30: 2}), "few repetitions and groups"),
    "flag is a number": (setting(use_rslora=1), "use_rslora of adapter: expected true or false, got 1"),
    "other arithmetic": (setting(use_qalora=True, layer_replication=[[0, 1]]), "got use_qalora, layer_replication"),
    "changed base": (setting(init_lora_weights="pissa"), "init_lora_weights of adapter: expected a method that keeps"),
    "NaN": (array(A, filled(np.nan)), "values of base_model.model.l.lora_A.weight: expected finite numbers, got NaN"),
    "infinity": (array(B, filled(np.inf)), "values of base_model.model.l.lora_B.weight: expected finite numbers"),
    "too large": (array(B, filled(3e38)), "l.weight: expected numbers that float32 has, got larger ones"),
    "integers": (array(A, lambda a: a.astype(np.int32)), "dtype of base_model.model.l.lora_A.weight: expected floats"),
    "no B": (lambda arrays, config: arrays.pop(PREFIX + B), "arrays of l: expected lora A and B, got A"),
    "wrong inputs": (array(A, lambda a: a[:, :6]), r"l.weight: expected factors for shape \[5, 7\] of the base, got some for \[5, 6\]"),
    "wrong outputs": (array(B, lambda b: b[:4]), r"got some for \[4, 7\]"),
    "three axes": (array(A, lambda a: a[:, :, None]), r"got some for \[5, 7, 1\]"),
    "one axis": (array(A, lambda a: a[0]), "factors of l: expected A"),
    "DoRA without lengths": (setting(use_dora=True), "arrays of l: expected lora A and B and magnitude, got A, B"),
    "lengths without DoRA": (array("l.lora_magnitude_vector", lambda _: np.ones(5, np.float32)), "got A, B, magnitude"),
    "unknown array": (array("l.lora_C", lambda _: np.ones(5, np.float32)), "expected arrays of LoRA or DoRA, got"),
    "other bias": (array("l.bias", lambda _: np.ones(4, np.float32)), r"l.bias: expected shape \[5\] as in the base, got \[4\]"),
    "two names": (
        lambda arrays, config: arrays.update({PREFIX + "l.lora_A.default.weight": arrays[PREFIX + A] + 1}), "got two",
    ),
    "nothing": (lambda arrays, config: arrays.clear(), "adapter: expected arrays, got none"),
}  # fmt: skip


@pytest.mark.sample(12)
@pytest.mark.parametrize("what", REFUSED)
def test_refused_adapter_is_one_clear_error(what, tmp_path):
    alter, message = REFUSED[what]
    milblob.write_weights({"l": np.ones((5, 7), np.float32)}, tmp_path / "w.bin", listing=tmp_path / "w.json")
    before = (tmp_path / "w.bin").read_bytes()
    base = {"l.weight": np.ones((5, 7), np.float32), "l.bias": np.ones(5, np.float32)}
    arrays, config = factors("l", 5, 7), dict(CONFIG)
    alter(arrays, config)
    folder = tmp_path / "a"
    folder.mkdir()
    save_file(arrays, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    with pytest.raises((milblob.FormatError, milblob.UnsupportedError), match=message) as caught:
        milblob.refit(tmp_path / "w.json", folder, base=base)
    assert "\n" not in str(caught.value)
    assert (tmp_path / "w.bin").read_bytes() == before


def test_damaged_files_are_refused(tmp_path):
    folder = save_adapter(tmp_path / "a", factors("l", 5, 7))
    file, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    data, text = file.read_bytes(), config.read_text()
    base = {"l.weight": np.ones((5, 7), np.float32)}
    for damaged in (data[:-1], data[:5], b"", data[:8] + b"x" + data[9:]):
        file.write_bytes(damaged)
        with pytest.raises(milblob.FormatError, match=re.escape(str(file))):
            milblob.refit(tmp_path / "w.json", folder, base=base)
    file.write_bytes(data)
    for damaged in (text[:-1], "[]", "{}", '{"r": 1, "r": 1}', "nul"):
        config.write_text(damaged)
        with pytest.raises(milblob.FormatError, match=re.escape(str(config))):
            milblob.refit(tmp_path / "w.json", folder, base=base)
    config.write_text(text)
    file.rename(folder / "adapter_model.bin")
    with pytest.raises(milblob.UnsupportedError, match="expected adapter_model.safetensors, got adapter_model.bin"):
        milblob.refit(tmp_path / "w.json", folder, base=base)


def test_refused_arguments(tmp_path):
    folder, base = save_adapter(tmp_path / "a", factors("l", 5, 7)), {"l.weight": np.ones((5, 7), np.float32)}
    for weights, scale, error, message in (
        ([folder], [1, 2], ValueError, "scale: expected one for each of 1 adapters, got 2"),
        (folder, math.nan, ValueError, "scale: expected a number, got nan"),
        (folder, "2", TypeError, "scale: expected a number"),
        (base, 2, ValueError, "scale: expected an adapter, got none"),
        ([], None, ValueError, "weights: expected an adapter, got none"),
        ([tmp_path], None, milblob.FormatError, "expected a folder with adapter_config.json, got none"),
    ):
        with pytest.raises(error, match=message):
            milblob.refit(tmp_path / "w.json", weights, base=base, scale=scale)
    with pytest.raises(ValueError, match=r"scale: expected a base too \(--base\), got none"):
        milblob.refit(tmp_path / "w.json", folder, scale=2)
    with pytest.raises(ValueError, match=r"base: expected one \(--base\), to merge 2 adapters into, got none"):
        milblob.refit(tmp_path / "w.json", [folder, folder])
    with pytest.raises(
        ValueError, match=r"base: expected the checkpoint to merge the adapter into \(--base\), got none"
    ):
        milblob.refit(DEMO, folder, dry_run=True)


def test_merged_number_that_the_base_dtype_lacks(tmp_path):
    arrays = factors("l", 5, 7)
    arrays[f"{PREFIX}{B}"] *= 1e6
    base = {"l.weight": np.ones((5, 7), np.float16)}
    with pytest.raises(OverflowError, match=r"l.weight, merged: element \d+: expected at most 65504"):
        merged(base, [save_adapter(tmp_path / "a", arrays)])


def test_dora_of_several_adapters_or_of_zeros_is_refused(tmp_path):
    arrays = factors("l", 5, 7)
    arrays[f"{PREFIX}l.lora_magnitude_vector"] = np.ones(5, np.float32)
    folder = save_adapter(tmp_path / "a", arrays, use_dora=True)
    with pytest.raises(milblob.UnsupportedError, match="l.weight: expected one adapter for a weight with DoRA, got 2"):
        merged({"l.weight": np.ones((5, 7), np.float32)}, [folder, folder], [1, 1])
    arrays[f"{PREFIX}{B}"] = np.zeros((5, 2), np.float32)
    with pytest.raises(milblob.FormatError, match="lengths of l.weight: expected numbers above 0"):
        merged({"l.weight": np.zeros((5, 7), np.float32)}, [save_adapter(tmp_path / "b", arrays, use_dora=True)])


# ------------------------------------------------------------------------------------------- adapters inside a Program


def names_of(*names):
    return {name: np.zeros((2, 7) if "A" in name else (5, 2), np.float16) for name in names}


def test_adapter_weights_of_a_model_are_refitted_by_name(tmp_path):
    layers = ["x_layers_0_q_proj", "x_layers_1_q_proj"]
    names = [f"base_model_model_{layer}_lora_{side}_default_weight_to_fp16" for layer in layers for side in "AB"]
    milblob.write_weights(
        names_of(*names) | {"x_layers_0_q_proj_weight_to_fp16": np.ones((5, 7), np.float16)},
        tmp_path / "w.bin", listing=tmp_path / "w.json",
    )  # fmt: skip
    arrays = factors("x.layers.0.q_proj", 5, 7, seed=1) | factors("x.layers.1.q_proj", 5, 7, seed=2)
    report = milblob.refit(tmp_path / "w.json", save_adapter(tmp_path / "a", arrays))
    assert len(report.changes) == 4
    assert report.note == "scales in the model are kept; those of the adapter are 2"
    found = milblob.load(tmp_path / "w.json")
    for name, array in arrays.items():
        own = name.replace(".weight", ".default.weight").replace(".", "_") + "_to_fp16"
        assert np.array_equal(found[own], array.astype(np.float16)), own
    assert (found["x_layers_0_q_proj_weight_to_fp16"] == 1).all()
    with pytest.raises(ValueError, match="x.layers.2.q_proj.lora_A.weight, x.layers.2.q_proj.lora_B.weight"):
        milblob.refit(tmp_path / "w.json", save_adapter(tmp_path / "b", arrays | factors("x.layers.2.q_proj", 5, 7)))


def test_select_chooses_between_the_adapters_of_a_model(tmp_path):
    names = [f"q_lora_{side}_{adapter}_weight_to_fp16" for adapter in ("french", "german") for side in "AB"]
    milblob.write_weights(names_of(*names), tmp_path / "w.bin", listing=tmp_path / "w.json")
    folder = save_adapter(tmp_path / "a", factors("q", 5, 7))
    with pytest.raises(KeyError, match="--select chooses"):
        milblob.refit(tmp_path / "w.json", folder)
    milblob.refit(tmp_path / "w.json", folder, select="*german*")
    found = milblob.load(tmp_path / "w.json")
    assert found["q_lora_A_german_weight_to_fp16"].any()
    assert not found["q_lora_A_french_weight_to_fp16"].any()


# ------------------------------------------------------------------------------------------------------- command line


def test_command_takes_weights_or_adapters(cli, capsys, tmp_path):
    model, base, lora, _ = adapted("linears", tmp_path)
    capsys.readouterr()  # the progress of coremltools
    for arguments, got in (([], "neither"), ([str(base), "--adapter", str(lora)], "both")):
        status, _, err = cli("refit", str(model), *arguments)
        assert (status, err) == (2, f"milblob: refit: expected WEIGHTS or --adapter, got {got}\n")
    given = ["--adapter", str(lora), "--scale", "0.5", "--adapter", str(lora), "--scale", "0.25", "--base", str(base)]
    status, _, err = cli("refit", str(model), *given, "-o", str(tmp_path / "two.mlpackage"))
    assert status == 0, err
    milblob.refit(model, lora, base=base, scale=0.75)
    assert milblob.diff(model, tmp_path / "two.mlpackage").is_same


def test_patterns_that_take_long_to_compile_are_refused(tmp_path):
    patterns = {"rank_pattern": {"[\0-\U0010ffff]" * 5000: 3}}
    adapter = save_adapter(tmp_path / "a", factors("l", 4, 3), **patterns)
    with pytest.raises(milblob.UnsupportedError, match="expected some that can be matched in seconds"):
        open_adapter(str(adapter))
