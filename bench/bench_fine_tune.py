"""New values of every weight of a DenseNet-121 from a fine-tuned checkpoint, on the disk when the call returns.

The package was converted by coremltools, which folded one half of the batch norms into convolutions. `refit --base` finds
out which ones and how. Beside it stands a script that knows that already.
"""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milblob
from conftest import Made, scaled

BLOCKS, GROWTH = (6, 12, scaled(24, 1), scaled(16, 1)), 32
JOB = "refit a DenseNet-121 from a fine-tuned checkpoint"
HAND = "NumPy: read, fold, copy the package, write, fsync"
WEIGHTS = "Data/com.apple.CoreML/weights/weight.bin"
EPSILON = 1e-5

Layers = list[tuple[str, str | None]]
"""Each layer of the converted network, in order: its name in the checkpoint, and the batch norm that was folded into it."""


def checkpoint(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    """The 606 arrays of torchvision's densenet121, 8 million numbers, under its names."""
    random = np.random.default_rng(seed)
    arrays: dict[str, np.ndarray[Any, Any]] = {}

    def conv(name: str, *shape: int) -> None:
        scale = np.sqrt(2 / np.prod(shape[1:]))
        arrays[f"{name}.weight"] = (random.standard_normal(shape, np.float32) * scale).astype(np.float32)

    def norm(name: str, channels: int) -> None:
        for part in ("weight", "running_var"):
            arrays[f"{name}.{part}"] = random.uniform(0.5, 1.5, channels).astype(np.float32)
        for part in ("bias", "running_mean"):
            arrays[f"{name}.{part}"] = (random.standard_normal(channels) / 4).astype(np.float32)

    channels = 2 * GROWTH
    conv("features.conv0", channels, 3, 7, 7)
    norm("features.norm0", channels)
    for block, count in enumerate(BLOCKS, 1):
        for layer in range(1, count + 1):
            name = f"features.denseblock{block}.denselayer{layer}"
            norm(f"{name}.norm1", channels)
            conv(f"{name}.conv1", 4 * GROWTH, channels, 1, 1)
            norm(f"{name}.norm2", 4 * GROWTH)
            conv(f"{name}.conv2", GROWTH, 4 * GROWTH, 3, 3)
            channels += GROWTH
        if block < len(BLOCKS):
            norm(f"features.transition{block}.norm", channels)
            conv(f"features.transition{block}.conv", channels // 2, channels, 1, 1)
            channels //= 2
    norm("features.norm5", channels)
    conv("classifier", 1000, channels)
    arrays["classifier.bias"] = random.standard_normal(1000).astype(np.float32)
    return arrays


def convert(package: Path, arrays: dict[str, np.ndarray[Any, Any]]) -> Layers:
    """Convert the network by coremltools, with all its passes."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb

    layers: Layers = []

    def conv(x: Any, name: str, norm: str | None = None, **options: Any) -> Any:
        layers.append((name, norm))
        x = mb.conv(x=x, weight=arrays[f"{name}.weight"], name=name.replace(".", "_"), **options)
        return x if norm is None else batch_norm(x, norm, folded=True)

    def batch_norm(x: Any, name: str, folded: bool = False) -> Any:
        if not folded:
            layers.append((name, None))
        mean, variance = arrays[f"{name}.running_mean"], arrays[f"{name}.running_var"]
        x = mb.batch_norm(
            x=x, mean=mean, variance=variance, gamma=arrays[f"{name}.weight"], beta=arrays[f"{name}.bias"],
            epsilon=np.float32(EPSILON), name=name.replace(".", "_"),
        )  # fmt: skip
        return mb.relu(x=x)

    def pool(x: Any, kind: Any, **options: Any) -> Any:
        return kind(x=x, kernel_sizes=[2, 2], strides=[2, 2], pad_type="valid", **options)

    @mb.program(input_specs=[mb.TensorSpec((1, 3, 64, 64))], opset_version=ct.target.iOS16)
    def program(image: Any) -> Any:
        padding = {"pad_type": "custom", "strides": [2, 2], "pad": [3, 3, 3, 3]}
        x = pool(conv(image, "features.conv0", "features.norm0", **padding), mb.max_pool)
        for block, count in enumerate(BLOCKS, 1):
            for layer in range(1, count + 1):
                name = f"features.denseblock{block}.denselayer{layer}"
                y = conv(batch_norm(x, f"{name}.norm1"), f"{name}.conv1", f"{name}.norm2")
                x = mb.concat(values=[x, conv(y, f"{name}.conv2", pad_type="same")], axis=1)
            if block < len(BLOCKS):
                name = f"features.transition{block}"
                x = pool(
                    conv(batch_norm(x, f"{name}.norm"), f"{name}.conv"), mb.avg_pool, exclude_padding_from_average=True
                )
        x = mb.reduce_mean(x=batch_norm(x, "features.norm5"), axes=[2, 3])
        layers.append(("classifier", None))
        return mb.linear(x=x, weight=arrays["classifier.weight"], bias=arrays["classifier.bias"], name="classifier")

    model = ct.convert(program, convert_to="mlprogram", minimum_deployment_target=ct.target.iOS16, skip_model_load=True)
    model.save(str(package))
    return layers


def values_of(layer: str, norm: str | None, arrays: dict[str, np.ndarray[Any, Any]]) -> Iterator[np.ndarray[Any, Any]]:
    """Yield what the package stores of a layer, in the order of the Program."""
    if norm is not None:
        scale = arrays[f"{norm}.weight"] / np.sqrt(arrays[f"{norm}.running_var"] + np.float32(EPSILON))
        yield arrays[f"{layer}.weight"] * scale[:, None, None, None]
        yield arrays[f"{norm}.bias"] - arrays[f"{norm}.running_mean"] * scale
    else:
        parts = ("running_mean", "running_var", "weight", "bias")
        yield from (arrays[f"{layer}.{part}"] for part in parts if f"{layer}.{part}" in arrays)


def by_hand(package: Path, offsets: list[int], layers: Layers, tuned: Path, copy: Path) -> None:
    """Write a copy of the package with the new values, which nobody checks."""
    from safetensors.numpy import load_file

    arrays = load_file(tuned)
    shutil.copytree(package, copy)
    fd = os.open(copy / WEIGHTS, os.O_RDWR)
    try:
        values = (array for layer, norm in layers for array in values_of(layer, norm, arrays))
        for offset, array in zip(offsets, values, strict=True):
            os.pwrite(fd, array.astype(np.float16).tobytes(), offset)
        os.fsync(fd)
    finally:
        os.close(fd)


@pytest.fixture(scope="module")
def sources(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """(package, base checkpoint, fine-tuned checkpoint, layers, byte offset of each weight)."""
    save = pytest.importorskip("safetensors.numpy", reason="the checkpoints are safetensors files").save_file
    base, tuned = (made(f"densenet-{i}.safetensors", lambda path, i=i: save(checkpoint(i), path)) for i in (1, 2))
    folder = tmp_path_factory.mktemp("fine-tune")
    package = folder / "densenet.mlpackage"
    layers = convert(package, checkpoint(1))
    with milblob.open(package) as model:
        offsets = [tensor.data_offset for tensor in model.values()]
    yield package, base, tuned, layers, offsets
    shutil.rmtree(folder)


ROWS: dict[str, dict[str, Any]] = {
    HAND: {"role": "limit", "note": "by a script that knows which batch norms are folded; checks nothing"},
    "milblob: refit(base=) to a copy": {"role": "milblob", "targets": {HAND: 2}},
    "milblob: refit(base=) in place": {
        "role": "milblob",
        "targets": {HAND: 2},
        "note": "writes the values twice: a crash loses nothing",
    },
    "coremltools: convert again": {"role": "rival", "note": "from Python code of the network"},
}


@pytest.mark.parametrize("name", ROWS)
def bench_fine_tune(row: Any, sources: Any, tmp_path: Path, name: str) -> None:
    package, base, tuned, layers, offsets = sources
    copy = tmp_path / "tuned.mlpackage"

    def prepare() -> None:
        if name.endswith("in place"):
            shutil.copytree(package, copy)

    runs: dict[str, Callable[[], Any]] = {
        HAND: lambda: by_hand(package, offsets, layers, tuned, copy),
        "milblob: refit(base=) to a copy": lambda: milblob.refit(package, tuned, base=base, destination=copy),
        "milblob: refit(base=) in place": lambda: milblob.refit(copy, tuned, base=base),
        "coremltools: convert again": lambda: convert(copy, checkpoint(2)),
    }

    def check(_: Any) -> None:
        """The weights are those of the fine-tuned network to one rounding to float16."""
        arrays = checkpoint(2)
        new = (array for layer, norm in layers for array in values_of(layer, norm, arrays))
        with milblob.open(copy) as model:
            for tensor, array in zip(model.values(), new, strict=True):
                np.testing.assert_allclose(tensor.read(), array, rtol=2e-3, atol=1e-4)

    row(JOB, name, runs[name], setup=prepare, output=copy, check=check, **ROWS[name])
