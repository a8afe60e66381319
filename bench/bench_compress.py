"""Compression of weights: quantization, palettes and pruning of 48 million parameters, against coremltools and NumPy; and of
a whole package, against one read of it and one write of the result."""

import os
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import SCALE, Made, needs, scaled
from milblob import Linear, Palette, _codec
from milblob.compressing.recipe import Recipe
from milblob.lossy.palettize import palettize
from milblob.lossy.prune import prune
from milblob.lossy.quantize import quantize
from milblob.lossy.vectors import palettize_vectors

SHAPE = (scaled(192, 1) * 64, scaled(64, 1) * 64)
NBYTES = SHAPE[0] * SHAPE[1] * 2
JOB = f"compress {SHAPE[0] * SHAPE[1] / 1e6:.2g}M float16"


@pytest.fixture(scope="module")
def weights() -> Any:
    """Normally distributed weights."""
    random = np.random.default_rng(6)
    block = (random.standard_normal(1 << 22, np.float32) * np.float32(0.02)).astype(np.float16)
    return np.resize(block, SHAPE)


def _quantizer(dtype: str, blocks: list[int]) -> Callable[[Any], Any]:
    from coremltools.optimize.coreml._quantization_passes import linear_quantize_weights as rival

    return lambda array: rival.blockwise_compress_by_dtype(array, dtype, "LINEAR_SYMMETRIC", blocks)


def _palettizer(group: int) -> Callable[[Any], Any]:
    from coremltools.optimize.coreml._quantization_passes import palettize_weights as rival

    return lambda array: rival.grouped_channelwise_compress(array, "KMEANS", 4, 0, group)


def _pruner() -> Callable[[Any], Any]:
    from coremltools.optimize.coreml._quantization_passes import prune_weights as rival

    return lambda array: rival.compress_by_magnitude(array, 0.5)


def _pruner_of_neighbours() -> Callable[[Any], Any]:
    from coremltools.optimize.coreml._quantization_passes import prune_weights as rival

    return lambda array: rival.compress_by_nm_sparsity(array, (2, 4), 1)


def _pruner_of_blocks() -> Callable[[Any], Any]:
    from coremltools.optimize.coreml._quantization_passes import prune_weights as rival

    return lambda array: rival.compress_by_magnitude(array, 0.5, block_size=4, dim=0)


def _clusterer(count: int = 16) -> Callable[[Any], Any]:
    """What coremltools does with vectors: scikit-learn's k-means of all of them."""
    from sklearn.cluster import KMeans

    def run(array: Any) -> Any:
        rows = array.reshape(-1, 2, array.shape[1]).transpose(0, 2, 1).reshape(-1, 2).astype(np.float32)
        found = KMeans(count, n_init=1, random_state=0).fit(rows)
        return found.cluster_centers_, found.labels_.astype(np.uint8)

    return run


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[], Callable[[Any], Any]], int]] = {
    "int8 per channel": (lambda a: quantize(a, "int8", blocks=(1, 0)), lambda: _quantizer("int8", [1, 0]), 1),
    "int4 blocks of 32": (lambda a: quantize(a, "int4", blocks=(1, 32)), lambda: _quantizer("int4", [1, 32]), 1),
    "4-bit palette": (lambda a: palettize(a, 4), lambda: _palettizer(0), 1),
    "4-bit palettes of 16 channels": (lambda a: palettize(a, 4, axis=0, group_size=16), lambda: _palettizer(16), 16),
    "half of the elements zero": (lambda a: prune(a, sparsity=0.5), _pruner, 1),
    "2 of 4 neighbours zero": (lambda a: prune(a, n_m=(2, 4)), _pruner_of_neighbours, 16),
    "half of the blocks of 4 zero": (lambda a: prune(a, sparsity=0.5, block=4), _pruner_of_blocks, 16),
    "4-bit palette of vectors of 2": (lambda a: palettize_vectors(a, 4, vector=2, axis=0), _clusterer, 16),
    "8-bit palette of vectors of 2": (lambda a: palettize_vectors(a, 8, vector=2, axis=0), lambda: _clusterer(256), 64),
}
"""Kind -> (milblob, what makes coremltools' function, the part of the rows that the latter is run on)."""


@pytest.mark.parametrize("kind", KINDS)
def bench_milblob(row: Any, weights: Any, kind: str, name: str = "milblob") -> None:
    run = KINDS[kind][0]

    def check(found: Any) -> None:
        assert 0 < found.loss.squared < found.loss.power / 2

    row(f"{JOB}: {kind}", name, lambda: run(weights), check=check, role="milblob", nbytes=NBYTES)


TIERS, USED = _codec.tiers()


@pytest.mark.parametrize("tier", [tier for tier in ("avx2", "avx512") if tier in TIERS and tier != USED])
@pytest.mark.parametrize("kind", ["int8 per channel", "int4 blocks of 32", "4-bit palette"])
def bench_with_tier(row: Any, weights: Any, kind: str, tier: str) -> None:
    """The same with the kernels of other CPUs."""
    _codec.set_tier(tier)
    try:
        bench_milblob(row, weights, kind, f"milblob, kernels of tier {tier}")
    finally:
        _codec.set_tier(USED)


@pytest.mark.parametrize("kind", KINDS)
def bench_coremltools(row: Any, weights: Any, kind: str) -> None:
    needs("coremltools")
    _, make, part = KINDS[kind]
    rows = max(SHAPE[0] // part // 16 * 16, 16)
    run, some = make(), weights[:rows].copy()

    def quiet() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(some)

    def check(found: Any) -> None:
        assert found is not None and any(np.size(field) >= some.size // 8 for field in found if field is not None)

    row(f"{JOB}: {kind}", "coremltools", quiet, check=check, nbytes=NBYTES, share=rows / SHAPE[0], rounds=1)


# ----------------------------------------------------------------------------------------------------- choosing recipes

LADDER: tuple[Recipe, ...] = (Linear(), Palette(8), Palette(6), Palette(4), Palette(3), Palette(2))
CHOICE_JOB = "choose from 6 recipes for 50M float16 by a size"


@pytest.fixture(scope="module")
def layers(made: Made) -> Path:
    """Four layers of a transformer, for iOS 18."""
    count, width = scaled(4, 1), max(64, round(1024 * min(1.0, SCALE**0.5)) // 64 * 64)
    return made("layers.mlpackage", lambda path: makers.write_transformer(path, count, width, "iOS18"))


def bench_choice(row: Any, layers: Path) -> None:
    """Every recipe measured on every weight, and all sizes that can be had."""

    def check(found: Any) -> None:
        assert len(found.alone) == len(LADDER) and found.points[-1].error == 0

    with milblob.open(layers) as opened:
        nbytes = sum(t.nbytes for name, t in opened.items() if name.startswith("layers_") and name.endswith("_weight"))
    row(
        CHOICE_JOB, "milblob",
        lambda: milblob.compress_frontier(layers, recipes=LADDER, scope=milblob.Scope(select="layers_*_weight")),
        check=check, role="milblob", nbytes=nbytes,
    )  # fmt: skip


def bench_choice_rival(row: Any, weights: Any) -> None:
    """What coremltools takes for one of the six, a 4-bit palette of one weight as large as all of them."""
    needs("coremltools")
    run, some = _palettizer(0), weights[: max(SHAPE[0] // 16, 16)].copy()

    def quiet() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return run(some)

    def check(found: Any) -> None:
        assert found is not None

    row(
        CHOICE_JOB,
        "coremltools, one recipe",
        quiet,
        check=check,
        nbytes=NBYTES,
        share=some.size / weights.size,
        rounds=1,
    )


def _numpy_int8(array: Any) -> Any:
    """What one writes by hand: float32, one array after another."""
    wide = array.astype(np.float32)
    scale = np.abs(wide).max(axis=1, keepdims=True) / np.float32(127)
    return np.clip(np.rint(wide / scale), -127, 127).astype(np.int8)


def _numpy_int4(array: Any) -> Any:
    wide = array.astype(np.float32).reshape(array.shape[0], -1, 32)
    scale = np.abs(wide).max(axis=2, keepdims=True) / np.float32(7)
    return np.clip(np.rint(wide / scale), -7, 7).astype(np.int8)


def _numpy_prune(array: Any) -> Any:
    sizes = np.abs(array)
    cut = np.partition(sizes.reshape(-1), sizes.size // 2)[sizes.size // 2]
    mask = sizes > cut
    return np.packbits(mask, bitorder="little"), array[mask]


BY_HAND = {
    "int8 per channel": _numpy_int8,
    "int4 blocks of 32": _numpy_int4,
    "half of the elements zero": _numpy_prune,
}


@pytest.mark.parametrize("kind", BY_HAND)
def bench_numpy(row: Any, weights: Any, kind: str) -> None:
    def check(found: Any) -> None:
        assert found is not None

    row(f"{JOB}: {kind}", "NumPy", lambda: BY_HAND[kind](weights), check=check, nbytes=NBYTES, rounds=1)


def _torch_rows(torch: Any, array: Any) -> dict[str, Callable[[], Any]]:
    """The same with tensors, all threads; quantile() takes no more than 2^24 elements, kthvalue does."""
    tensor = torch.from_numpy(array)

    def int8() -> Any:
        wide = tensor.float()
        return torch.quantize_per_channel(wide, wide.abs().amax(1) / 127, torch.zeros(len(wide)), 0, torch.qint8)

    def int4() -> Any:
        wide = tensor.float().reshape(len(tensor), -1, 32)
        return (wide / (wide.abs().amax(2, keepdim=True) / 7)).round_().clamp_(-7, 7).to(torch.int8)

    def half() -> Any:
        sizes = tensor.abs()
        mask = sizes > sizes.reshape(-1).kthvalue(sizes.numel() // 2).values
        return mask, tensor[mask]

    def neighbours() -> Any:
        sizes = tensor.abs().reshape(-1, 4)
        mask = torch.ones_like(sizes, dtype=torch.bool).scatter_(1, sizes.topk(2, 1, largest=False).indices, False)
        return mask, tensor.reshape(-1, 4)[mask]

    return {
        "int8 per channel": int8, "int4 blocks of 32": int4, "half of the elements zero": half,
        "2 of 4 neighbours zero": neighbours,
    }  # fmt: skip


BY_TORCH = ("int8 per channel", "int4 blocks of 32", "half of the elements zero", "2 of 4 neighbours zero")


@pytest.mark.parametrize("kind", BY_TORCH)
def bench_torch(row: Any, weights: Any, kind: str) -> None:
    needs("torch")
    import torch

    run = _torch_rows(torch, weights)[kind]

    def check(found: Any) -> None:
        assert found is not None

    row(f"{JOB}: {kind}", "torch", run, check=check, nbytes=NBYTES, rounds=1)


# ------------------------------------------------------------------------------------------------------ whole packages

LAYERS, LAYER = scaled(16, 2), (scaled(128, 1) * 64, scaled(64, 1) * 64)
PACKAGE_NBYTES = LAYERS * LAYER[0] * LAYER[1] * 2
PACKAGE_JOB = f"compress a package of {PACKAGE_NBYTES / 2**30:.2g} GiB"
ONCE = "one read of the source, one write of as many bytes as the result has"
RECIPES = {
    "int8 per channel": milblob.Linear("int8"),
    "int4 blocks of 32": milblob.Linear("int4", granularity="per_block", block=32),
    "4-bit palette": milblob.Palette(4),
    "half of the elements zero": milblob.Prune(0.5),
}
TARGETS = {ONCE: 1.5}


@pytest.fixture(scope="module")
def package(tmp_path_factory: Any) -> Any:
    """A package of linear operations; it goes afterwards."""
    needs("coremltools")
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    random = np.random.default_rng(6)
    some = (random.standard_normal(min(1 << 22, LAYER[0] * LAYER[1]), np.float32) * np.float32(0.02)).astype(np.float16)
    spec = mb.TensorSpec((1, LAYER[1]), dtype=types.fp16)

    @mb.program(input_specs=[spec], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        return tuple(mb.linear(x=x, weight=np.resize(np.roll(some, number), LAYER)) for number in range(LAYERS))

    folder = tmp_path_factory.mktemp("compress")
    options = {"minimum_deployment_target": ct.target.iOS18, "skip_model_load": True}
    ct.convert(program, convert_to="mlprogram", **options).save(str(folder / "m.mlpackage"))
    yield folder / "m.mlpackage"
    shutil.rmtree(folder)


@pytest.mark.parametrize("kind", RECIPES)
def bench_package(row: Any, package: Path, kind: str) -> None:
    output = package.parent / "out.mlpackage"

    def remove() -> None:
        shutil.rmtree(output, ignore_errors=True)

    def check(found: Any) -> None:
        assert len(found.weights) == LAYERS

    row(f"{PACKAGE_JOB}, {kind}", "milblob", lambda: milblob.compress(package, output, RECIPES[kind]), check=check,
        role="milblob", targets=TARGETS, setup=remove, nbytes=PACKAGE_NBYTES)  # fmt: skip


@pytest.mark.parametrize("kind", RECIPES)
def bench_executor(row: Any, package: Path, kind: str) -> None:
    """Two processes, which write the parts beside the result, and then copy them to their places."""
    output = package.parent / "out.mlpackage"

    def remove() -> None:
        shutil.rmtree(output, ignore_errors=True)

    def check(found: Any) -> None:
        assert len(found.weights) == LAYERS

    with milblob.executors.open("processes:2") as executor:
        list(executor.map(len, ["", ""]))  # started
        row(f"{PACKAGE_JOB}, {kind}", "milblob, executor of 2 processes",
            lambda: milblob.compress(package, output, RECIPES[kind], executor=executor),
            check=check, role="milblob", setup=remove, nbytes=PACKAGE_NBYTES)  # fmt: skip


@pytest.mark.parametrize("kind", RECIPES)
def bench_once(row: Any, package: Path, kind: str) -> None:
    weights = package / "Data/com.apple.CoreML/weights/weight.bin"
    left = milblob.compress(package, package.parent / "none", RECIPES[kind], dry_run=True).nbytes_after

    def run() -> int:
        space, written = bytearray(16 << 20), 0
        with weights.open("rb", buffering=0) as source, (package.parent / "copy").open("wb", buffering=0) as target:
            while source.readinto(space):
                written += target.write(memoryview(space)[: min(len(space), left - written)])
            os.fsync(target.fileno())
        return written

    def check(found: int) -> None:
        assert found == left

    row(f"{PACKAGE_JOB}, {kind}", ONCE, run, check=check, role="limit", nbytes=PACKAGE_NBYTES)
