"""Llama, Qwen2 and Whisper of transformers, with caches as states and two functions, converted by coremltools.

An adapter in a converted model gives what PEFT and another conversion give; chunks compute what the model computes, and
joined they are the model.
"""

import functools
from pathlib import Path

import numpy as np
import pytest

import milblob
from peers import WITHOUT
from thorough import IS_LARGE, sized

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])
pytest.importorskip("torch", reason=WITHOUT["torch"])
pytest.importorskip("transformers", reason=WITHOUT["transformers"])

import coremltools as ct
import coremltools.optimize.coreml as coreml
import torch
from safetensors.torch import save_file

from torch_language_models import MAKERS, PROMPT, convert, inputs_of, join_functions, make, trained

peft = pytest.importorskip("peft", reason=WITHOUT["peft"])

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]

ATTENTION, GATES = ["q_proj", "k_proj", "v_proj"], ["gate_proj", "up_proj", "down_proj"]
NETWORKS = {
    "llama": (sized(128, 2048), {"target_modules": [*ATTENTION, "o_proj", *GATES, "embed_tokens", "lm_head"]}),
    "qwen2": (sized(128, 896), {"target_modules": [*ATTENTION, *GATES], "bias": "lora_only"}),
    "whisper": (sized(128, 512), {"target_modules": [*ATTENTION, "out_proj", "fc1", "fc2", "conv1", "embed_tokens"]}),
}
"""Name -> width, and what an adapter of rank 16 changes."""
FORMS = ["float16", "int4 blocks", "palettes"]
FUNCTIONS = ("prefill", "decode")


class Models:
    """The base of a network, an adapter, and the network that PEFT merged, with the packages made of them."""

    def __init__(self, name, folder, **options):
        self.name, self._folder = name, folder
        width, adapted = NETWORKS[name]
        base = make(name, width)
        self.base, self.adapter = folder / "base.safetensors", folder / "lora"
        save_file({key: value.clone() for key, value in base.state_dict().items()}, self.base)
        tuned = peft.get_peft_model(make(name, width), peft.LoraConfig(r=16, lora_alpha=32, **adapted, **options))
        trained(tuned, 1)
        tuned.save_pretrained(self.adapter)
        merged = peft.PeftModel.from_pretrained(make(name, width), self.adapter).merge_and_unload().eval()
        self._networks = {"base": base, "merged": merged}

    @functools.cache  # noqa: B019
    def package(self, which, form="float16"):
        """Return the package of the base, or of what PEFT merged, in a form; `palettes` by milblob, others by coremltools."""
        path = self._folder / f"{which} {form}.mlpackage"
        if form == "palettes":
            recipe = milblob.Palette(4, granularity="per_grouped_channel", group_size=16)
            milblob.compress(self.package(which), path, recipe, scope=milblob.Scope(min_size=512))
            return path
        parts = {function: self._function(which, function, form) for function in FUNCTIONS}
        return join_functions(parts, path)

    @functools.cache  # noqa: B019
    def _function(self, which, function, form):
        path = self._folder / f"{which} {function} {form}.mlpackage"
        if form == "float16":
            return convert(self.name, self._networks[which], function, path)
        model = ct.models.MLModel(str(self._function(which, function, "float16")), skip_model_load=True)
        if form == "int4 blocks":
            option = coreml.OpLinearQuantizerConfig("linear_symmetric", "int4", "per_block", 32, weight_threshold=512)
            model = coreml.linear_quantize_weights(model, coreml.OptimizationConfig(option))
        else:
            grouped = {"granularity": "per_grouped_channel", "group_size": 16, "weight_threshold": 512}
            option = coreml.OpPalettizerConfig("uniform", 4, **grouped)
            model = coreml.palettize_weights(model, coreml.OptimizationConfig(option))
        model.save(str(path))
        return path

    def refitted(self, form, path):
        """Return the package of the base with the adapter in it."""
        how = None if form == "float16" else "fit"
        report = milblob.refit(
            self.package("base", form), self.adapter, base=self.base, destination=path, requantize=how
        )
        assert len({change.name.rpartition("/")[2] for change in report.changes}) > 13
        return path


@pytest.fixture(scope="module", params=NETWORKS)
def models(request, tmp_path_factory):
    return Models(request.param, tmp_path_factory.mktemp(request.param))


def weight_bytes(package):
    return (Path(package) / "Data/com.apple.CoreML/weights/weight.bin").read_bytes()


@pytest.mark.parametrize("form", ["float16", "palettes"])
def test_an_adapter_gives_the_bytes_of_peft_and_another_conversion(models, form, tmp_path):
    found, expected = models.refitted(form, tmp_path / "tuned.mlpackage"), models.package("merged", form)
    assert weight_bytes(found) == weight_bytes(expected)
    assert milblob.diff(found, expected).is_same
    assert not milblob.diff(found, models.package("base", form)).is_same


def test_an_adapter_in_int4_blocks_differs_by_one_rounding(models, tmp_path):
    """Scales are equal. coremltools divides by them in float16, so a value near the middle of two steps may take the other."""
    found, expected = (
        models.refitted("int4 blocks", tmp_path / "tuned.mlpackage"),
        models.package("merged", "int4 blocks"),
    )
    with milblob.open(found, stored=True) as ours, milblob.open(expected, stored=True) as theirs:
        assert ours.keys() == theirs.keys()
        compressed = 0
        for name, tensor in ours.items():
            a, b = tensor.read(), theirs[name].read()
            if name.endswith("_quantized.data"):
                assert np.abs(a.astype(np.int8) - b.astype(np.int8)).max() <= 1, name
                assert np.count_nonzero(a != b) <= 0.003 * a.size, name
                compressed += 1
            else:
                assert a.tobytes() == b.tobytes(), name
    assert compressed > 13


@pytest.mark.parametrize("form", ["int4 blocks", "uniform palettes"])
def test_an_adapter_in_weights_that_coremltools_compressed_is_as_near_as_theirs(models, form, tmp_path):
    if form == "uniform palettes" and IS_LARGE:
        pytest.skip(
            "palettes of coremltools in large networks take minutes: their errors are not compared, those of small ones are"
        )
    found, expected = models.refitted(form, tmp_path / "tuned.mlpackage"), models.package("merged", form)
    ours, theirs, exact = (milblob.load(path) for path in (found, expected, models.package("merged")))
    for name in ours:
        dense = exact[name.removesuffix("_quantized").removesuffix("_palettized")].astype(np.float64)
        mine, other = (np.square(side[name].astype(np.float64) - dense).sum() for side in (ours, theirs))
        assert mine <= (1.0001 if form == "int4 blocks" else 1.01) * other, name


@pytest.mark.parametrize("how", ["fit", "keep"])
@pytest.mark.parametrize("form", ["int4 blocks", "palettes"])
def test_weights_that_an_adapter_does_not_change_keep_their_bits(models, form, how, tmp_path):
    """Others are those of a refit with the merged checkpoint."""
    merged = {key: value.clone() for key, value in models._networks["merged"].state_dict().items()}
    save_file(merged, tmp_path / "merged.safetensors")
    small, outputs = models.package("base", form), [tmp_path / "adapter.mlpackage", tmp_path / "whole.mlpackage"]
    reports = [
        milblob.refit(small, weights, base=models.base, destination=output, requantize=how)
        for weights, output in zip((models.adapter, tmp_path / "merged.safetensors"), outputs, strict=True)
    ]
    changed = {change.name for change in reports[0].changes}
    found, whole, old = (milblob.load(path) for path in (*outputs, small))
    for name, array in found.items():
        assert array.tobytes() == (whole if name in changed else old)[name].tobytes(), name


def test_dora_differs_by_one_rounding(tmp_path):
    models = Models("qwen2", tmp_path, use_dora=True)
    found = milblob.load(models.refitted("float16", tmp_path / "tuned.mlpackage"))
    for name, array in milblob.load(models.package("merged")).items():
        if array.dtype == np.float16:
            assert (np.abs(found[name] - array) <= np.spacing(np.abs(array))).all(), name
            assert np.count_nonzero(found[name] != array) <= 0.003 * array.size + 1, name
        else:
            assert found[name].tobytes() == array.tobytes(), name


def answers(name, model):
    """Logits of a prompt and of three tokens after it, and the states after each call; each operation is rounded."""
    found, kept = [], {}
    for function, starts in zip(FUNCTIONS, ([0], range(PROMPT, PROMPT + 3)), strict=True):
        with milblob.Session(model, function=function, round_each=True) as session:
            state = session.make_state(kept)
            for start in starts:
                found.append(session.predict(inputs_of(name, function, start), state)["logits"])
                kept = {key: value.copy() for key, value in state.items()}
                found += [kept[key] for key in sorted(kept)]
    return found


@pytest.fixture(scope="module")
def expected(models):
    """Form -> what the whole model answers."""
    return functools.cache(lambda form: answers(models.name, models.package("base", form)))


@pytest.mark.parametrize("parts", [2, 3, 7])
@pytest.mark.parametrize("form", FORMS)
def test_chunks_of_both_functions_compute_the_same_and_are_the_model_when_joined(
    models, expected, form, parts, tmp_path
):
    whole = models.package("base", form)
    report = milblob.chunk(whole, tmp_path / "parts", parts=parts)
    paths = [chunk.path for chunk in report.chunks]
    assert len(paths) == parts and {cut.function for cut in report.cuts} == set(FUNCTIONS)
    found = answers(models.name, paths)
    for number, (ours, theirs) in enumerate(zip(found, expected(form), strict=True)):
        assert np.isfinite(ours).all() and ours.any()
        assert ours.tobytes() == theirs.tobytes(), number

    milblob.join(paths, tmp_path / "joined.mlpackage")
    assert milblob.content_hash(tmp_path / "joined.mlpackage").model == milblob.content_hash(whole).model


def test_it_computes_what_torch_computes(models, expected):
    """The conversion of this file's wrappers is sound: without it, other comparisons would be of noise."""
    network = models._networks["base"]
    prefill, decode = (MAKERS[models.name][1](network, is_prefill).eval() for is_prefill in (True, False))
    found = []
    for model, function, starts in ((prefill, "prefill", [0]), (decode, "decode", range(PROMPT, PROMPT + 3))):
        if model is decode:
            decode.load_state_dict(prefill.state_dict())
        for start in starts:
            arrays = inputs_of(models.name, function, start).values()
            with torch.no_grad():
                values = [torch.from_numpy(a.astype(np.float32 if a.dtype == np.float16 else a.dtype)) for a in arrays]
                found.append(model(*values).numpy())
    every = expected("float16")
    for theirs, ours in zip(found, every[:: len(every) // 4], strict=True):
        assert np.abs(theirs - ours).max() < 0.01 * np.abs(theirs).max()
