"""LoRA adapters that PEFT made and saved, merged into checkpoints: the values are those of PEFT's merge_and_unload.

Bit for bit as PEFT computes on this machine for ranks up to 128; milblob's NumPy and torch have BLAS libraries of their
own, which sum longer rows in another order: then a few float32 sums in the last bits, before one cast.
"""

import contextlib

import ml_dtypes
import numpy as np
import pytest

from milblob.formats.peft import open_adapter
from milblob.formats.read import open_arrays
from milblob.refitting.from_base import tensors_of
from milblob.refitting.merging import MergedArray, merge
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
pytest.importorskip("torch", reason=WITHOUT["torch"])
pytest.importorskip("transformers", reason=WITHOUT["transformers"])

import torch
import transformers

from torch_language_models import trained

peft = pytest.importorskip("peft", reason=WITHOUT["peft"])

pytestmark = pytest.mark.thorough


def llama():
    config = transformers.LlamaConfig(
        vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def qwen2():
    config = transformers.Qwen2Config(
        vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    return transformers.Qwen2ForCausalLM(config)


def gpt2():
    config = transformers.GPT2Config(
        vocab_size=160, n_positions=32, n_embd=64, n_layer=2, n_head=4, tie_word_embeddings=False
    )
    return transformers.GPT2LMHeadModel(config)


def bert():
    config = transformers.BertConfig(
        vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def whisper():
    config = transformers.WhisperConfig(
        vocab_size=160, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, num_mel_bins=8, max_source_positions=20,
        max_target_positions=16, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config)


QKV = ["q_proj", "v_proj"]
CASES = {
    "llama": (llama, {"r": 8, "lora_alpha": 16, "target_modules": QKV}),
    "llama, all linear, rank 64, rank-stabilized": (
        llama, {"r": 64, "lora_alpha": 5, "use_rslora": True, "target_modules": "all-linear"},
    ),
    "llama, patterns": (
        llama,
        {
            "r": 4, "lora_alpha": 7, "target_modules": [*QKV, "down_proj"],
            "rank_pattern": {"layers.1.self_attn.q_proj": 3, r"layers\.0\..*v_proj": 6}, "alpha_pattern": {"down_proj": 3},
        },
    ),
    "llama, embeddings": (llama, {"r": 4, "lora_alpha": 8, "target_modules": ["embed_tokens", "lm_head"]}),
    "llama, DoRA": (llama, {"r": 8, "lora_alpha": 16, "target_modules": QKV, "use_dora": True}),
    "llama, DoRA of embeddings": (
        llama, {"r": 8, "lora_alpha": 16, "target_modules": ["embed_tokens", "o_proj"], "use_dora": True},
    ),
    "llama, DoRA with patterns": (
        llama, {"r": 8, "lora_alpha": 16, "target_modules": QKV, "use_dora": True, "rank_pattern": {"v_proj": 2}},
    ),
    "llama, rank 300": (llama, {"r": 300, "lora_alpha": 16, "target_modules": QKV}),
    "qwen2, biases": (qwen2, {"r": 8, "lora_alpha": 8, "target_modules": [*QKV, "gate_proj"], "bias": "all"}),
    "qwen2, biases of adapted layers": (qwen2, {"r": 8, "lora_alpha": 8, "target_modules": QKV, "bias": "lora_only"}),
    "qwen2, biases of B": (qwen2, {"r": 8, "lora_alpha": 9, "target_modules": QKV, "lora_bias": True}),
    "qwen2, modules to save": (
        qwen2, {"r": 8, "lora_alpha": 8, "target_modules": QKV, "modules_to_save": ["lm_head", "embed_tokens"]},
    ),
    "gpt2": (gpt2, {"r": 8, "lora_alpha": 16, "target_modules": ["c_attn", "c_proj", "c_fc"], "fan_in_fan_out": True}),
    "gpt2, flag not set": (gpt2, {"r": 8, "lora_alpha": 16, "target_modules": ["c_attn", "c_proj"]}),
    "gpt2, with a linear layer": (gpt2, {"r": 8, "lora_alpha": 16, "target_modules": ["c_proj", "lm_head", "wpe"]}),
    "gpt2, DoRA": (
        gpt2, {"r": 8, "lora_alpha": 16, "target_modules": ["c_attn", "c_proj"], "fan_in_fan_out": True, "use_dora": True},
    ),
    "bert": (
        bert, {"r": 8, "lora_alpha": 16, "target_modules": ["query", "value"], "task_type": "SEQ_CLS", "bias": "all"},
    ),
    "bert, pooler": (bert, {"r": 1, "lora_alpha": 2, "target_modules": ["dense"], "modules_to_save": ["classifier"]}),
    "whisper": (whisper, {"r": 8, "lora_alpha": 16, "target_modules": [*QKV, "fc1", "out_proj"]}),
    "whisper, convolutions": (whisper, {"r": 4, "lora_alpha": 16, "target_modules": ["conv1", "conv2", "k_proj"]}),
    "whisper, DoRA of convolutions": (
        whisper, {"r": 4, "lora_alpha": 16, "target_modules": ["conv1", "k_proj"], "use_dora": True},
    ),
}  # fmt: skip
ROUNDED = {"llama, rank 300", "whisper, convolutions"}
"""Where BLAS libraries sum in another order, or PEFT computes a product as a convolution."""
EPSILON = {"float32": 2.0**-20, "bfloat16": 2.0**-7, "float16": 2.0**-10}


def saved(case, dtype, folder, seeds=(0,)):
    """Save a base with random values, and an adapter for each seed; return the function that makes the base again."""
    make, options = CASES[case]
    torch.manual_seed(7)
    state = make().to(getattr(torch, dtype)).state_dict()
    with torch.no_grad():
        for name, value in state.items():
            if value.is_floating_point() and (name.endswith("bias") or "norm" in name):
                value.add_(torch.randn(value.shape) * 0.1)

    def base():
        model = make().to(getattr(torch, dtype))
        model.load_state_dict(state)
        return model

    from safetensors.torch import save_file

    save_file({name: value.clone().contiguous() for name, value in state.items()}, folder / "base.safetensors")
    for seed in seeds:
        model = peft.get_peft_model(base(), peft.LoraConfig(**options))
        trained(model, seed)
        model.save_pretrained(folder / f"lora{seed}")
    return base


def merged_by_peft(base, *adapters, scales=None):
    """The state after merge_and_unload; of several adapters, of PEFT's own combination of them."""
    model = peft.PeftModel.from_pretrained(base(), adapters[0], adapter_name="a0")
    for number, path in enumerate(adapters[1:], 1):
        model.load_adapter(path, adapter_name=f"a{number}")
    names = [f"a{number}" for number in range(len(adapters))]
    if len(adapters) > 1:
        model.add_weighted_adapter(names, scales, "all", combination_type="cat")
        model.set_adapter("all")
    elif scales is not None:
        for module in model.modules():
            if isinstance(module, peft.tuners.lora.LoraLayer):
                module.set_scale("a0", scales[0])
    return {name: value.contiguous() for name, value in model.merge_and_unload().state_dict().items()}


def as_numpy(value):
    if value.dtype is torch.bfloat16:
        return value.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return value.numpy()


def compare(expected, base, adapters, scales, is_exact):
    """Compare every array of the merged base with PEFT's; return the names that an adapter changed."""
    changed = []
    with contextlib.ExitStack() as stack:
        opened = [open_adapter(str(path)) for path in adapters]
        for adapter in opened:
            stack.callback(adapter.arrays.close)
        arrays = tensors_of(stack.enter_context(open_arrays(base)))
        found, _ = merge(arrays, list(zip(opened, scales, strict=True)), "error")
        for name, array in found.items():
            if isinstance(array, MergedArray):
                changed.append(name)
            ours, theirs = array.read(), as_numpy(expected[name])
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
            if is_exact:
                assert ours.tobytes() == theirs.tobytes(), name
            else:
                near = np.abs(theirs.astype(np.float64)) * EPSILON[str(ours.dtype)] + 2.0**-20
                assert (np.abs(ours.astype(np.float64) - theirs.astype(np.float64)) <= near).all(), name
    return changed


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.filterwarnings("ignore")
def test_merged_values_equal_those_of_peft(case, dtype, tmp_path):
    base = saved(case, dtype, tmp_path)
    expected = merged_by_peft(base, tmp_path / "lora0")
    is_exact = case not in ROUNDED and "DoRA" not in case
    changed = compare(expected, tmp_path / "base.safetensors", [tmp_path / "lora0"], [1.0], is_exact)
    state = base().state_dict()
    different = [name for name, value in expected.items() if not torch.equal(value, state[name])]
    assert set(different) <= set(changed)
    assert len(different) > 1


@pytest.mark.parametrize("case", ["llama", "llama, embeddings", "llama, DoRA", "gpt2", "qwen2, biases of B", "whisper"])
@pytest.mark.filterwarnings("ignore")
def test_scale_equals_set_scale_of_peft(case, tmp_path):
    base = saved(case, "bfloat16", tmp_path)
    expected = merged_by_peft(base, tmp_path / "lora0", scales=[0.3])
    compare(expected, tmp_path / "base.safetensors", [tmp_path / "lora0"], [0.3], "DoRA" not in case)


@pytest.mark.parametrize("case", ["llama", "llama, patterns", "llama, embeddings", "gpt2", "whisper"])
@pytest.mark.filterwarnings("ignore")
def test_several_adapters_equal_add_weighted_adapter_of_peft(case, tmp_path):
    base = saved(case, "float32", tmp_path, seeds=(1, 2, 3))
    adapters, scales = [tmp_path / f"lora{seed}" for seed in (1, 2, 3)], [0.7, 1.4, -0.25]
    expected = merged_by_peft(base, *adapters, scales=scales)
    compare(expected, tmp_path / "base.safetensors", adapters, scales, False)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.filterwarnings("ignore")
def test_several_adapters_in_half_precision_are_rounded_once(dtype, tmp_path):
    """PEFT rounds the factors of a combined adapter to the dtype of the base; here they stay float32."""
    base = saved("llama", dtype, tmp_path, seeds=(1, 2))
    adapters, scales = [tmp_path / "lora1", tmp_path / "lora2"], [0.7, 1.4]
    expected = merged_by_peft(lambda: base().float(), *adapters, scales=scales)
    expected = {name: value.to(getattr(torch, dtype)) for name, value in expected.items()}
    compare(expected, tmp_path / "base.safetensors", adapters, scales, False)
