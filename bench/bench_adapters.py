"""A LoRA adapter of rank 16 for all weights of a 1 GiB model: merged into the base, cast, and written to a copy of the model.

milblob reads the base and the model (it checks that the one follows from the other), computes the products, and writes the
copy. The limit is a copy of the weight file. PEFT loads the base, wraps it and merges the adapter in memory, and then
still has no Core ML model: a conversion would follow.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest
from bench_refit import WEIGHTS

import milblob
from conftest import Made, needs, scaled

COUNT, RANK, SHAPE = 32, 16, (scaled(8192, 16), 2048)
JOB = "adapter of rank 16 into {:.2g} GiB"
COPY = "copy of the weight file, fsync"


class Named(makers.Tensors):
    """Weights with the names of a checkpoint of torch."""

    def name(self, number: int) -> str:
        return f"layers.{number}.weight"


TENSORS = Named(COUNT, SHAPE)


def write_adapter(path: Path) -> None:
    """Write the folder that PEFT's save_pretrained writes."""
    from safetensors.numpy import save_file

    random = np.random.default_rng(3)
    arrays = {
        f"base_model.model.layers.{number}.lora_{side}.weight": random.standard_normal(shape, np.float32) / 64
        for number in range(COUNT)
        for side, shape in (("A", (RANK, SHAPE[1])), ("B", (SHAPE[0], RANK)))
    }
    path.mkdir()
    save_file(arrays, path / "adapter_model.safetensors")
    modules = [f"layers.{number}" for number in range(COUNT)]
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": modules, "bias": "none"}
    (path / "adapter_config.json").write_text(json.dumps(config))


def copy_file(package: Path, base: Path, adapter: Path) -> Any:
    """The whole file to another: what a rewrite costs at least."""

    target = package.with_name("adapters-copy.bin")
    with (package / WEIGHTS).open("rb") as source, target.open("wb") as file:
        while chunk := source.read(1 << 24):
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    target.unlink()


def refit(package: Path, base: Path, adapter: Path) -> Any:
    """One call."""
    target = package.with_name("adapters-tuned.mlpackage")
    milblob.refit(package, adapter, base=base, destination=target, force=True)
    return milblob.load(target)[TENSORS.name(0)]


def merge_peft(package: Path, base: Path, adapter: Path) -> Any:
    """PEFT's merge_and_unload of the same arrays, in memory; nothing is written."""
    import torch
    import transformers

    transformers.utils.import_utils._torchvision_available = False  # not needed, and often of another version of torch
    from peft import PeftModel
    from safetensors.torch import load_file

    with torch.device("meta"):
        layers = torch.nn.ModuleList(torch.nn.Linear(SHAPE[1], SHAPE[0], bias=False) for _ in range(COUNT))
    network = torch.nn.Module()
    network.layers = layers
    network.load_state_dict(load_file(base), assign=True)
    merged = PeftModel.from_pretrained(network, str(adapter)).merge_and_unload()
    return merged.layers[0].weight.detach().numpy()


ROWS: dict[str, tuple[Callable[[Path, Path, Path], Any], dict[str, Any]]] = {
    COPY: (copy_file, {"role": "limit"}),
    "milblob: refit with an adapter": (refit, {"role": "milblob", "targets": {COPY: 2.0}}),
    "peft: load, merge_and_unload": (merge_peft, {"note": "in memory: nothing is converted or written"}),
}


def check(values: Any) -> None:
    """The merged values are there; those of a copy are not looked at."""
    assert values is None or (values.dtype == np.float16 and not np.array_equal(values, TENSORS[0]))


@pytest.mark.parametrize("name", ROWS)
def bench_adapters(row: Any, made: Made, name: str) -> None:
    run, options = ROWS[name]
    if run is merge_peft:
        needs("peft")
    package = made("adapters.mlpackage", lambda path: makers.WRITERS["mlpackage"](path, TENSORS))
    base = made("adapters.safetensors", lambda path: makers.WRITERS["safetensors"](path, TENSORS))
    adapter = made("adapters", write_adapter)
    row(JOB.format(TENSORS.nbytes / 2**30), name, lambda: run(package, base, adapter), check=check, **options)
