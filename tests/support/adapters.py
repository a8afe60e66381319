"""A base checkpoint of the demo model, and LoRA adapters for it as PEFT saves them."""

import json
import re

import numpy as np
from safetensors.numpy import save_file

import milblob
from paths import DEMO

PREFIX = "base_model.model."
CONFIG = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["query", "value"], "bias": "none"}


def save_adapter(folder, arrays, **config):
    """Save a folder with an adapter, as PEFT's save_pretrained does."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(arrays, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps({**CONFIG, **config}))
    return folder


def factors(module, outputs, inputs, rank=2, seed=1, kind="lora_{}.weight"):
    """Factors of small fractions, whose products and sums float32 has without rounding."""
    rng = np.random.default_rng(seed)
    made = (rng.integers(-8, 9, shape).astype(np.float32) / 16 for shape in ((rank, inputs), (outputs, rank)))
    return {f"{PREFIX}{module}.{kind.format(side)}": array for side, array in zip("AB", made, strict=True)}


def make_files(folder):
    """Write base.safetensors, and the adapters lora and style, of the demo model."""
    base = {}
    for name, array in milblob.load(DEMO).items():
        dotted = re.sub(r"_(weight|bias)$", r".\1", name)
        dotted = (
            re.sub(r"^layers_(\d)_", r"layers.\1.", dotted).replace("attention_", "attention.").replace("mlp_", "mlp.")
        )
        base[dotted] = array.astype(np.float32)
    save_file(base, folder / "base.safetensors")
    for name, rows in (("lora", ("query", "value")), ("style", ("value",))):
        modules = [f"layers.{layer}.attention.{row}" for layer in range(2) for row in rows]
        arrays = {}
        for seed, module in enumerate(modules):
            arrays |= factors(module, 48, 48, seed=seed)
        save_adapter(folder / name, arrays)
