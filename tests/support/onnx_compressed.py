"""What coremltools.optimize makes of a model, converted to ONNX as it is and decompressed: both must compute the same bits."""

import collections
import json
import shutil

import numpy as np

import milblob.onnx
from compress_coremltools import decompressed, theirs
from compress_models import save_model
from onnx_models import run


def _linear(opset):
    granularities = [{}] if opset < 18 else [
        {"granularity": "per_tensor"}, {"granularity": "per_channel"}, {"granularity": "per_block", "block_size": 8},
    ]  # fmt: skip
    for dtype in ("int8", "uint8") if opset < 18 else ("int8", "uint8", "int4", "uint4"):
        for mode in ("linear_symmetric", "linear"):
            for one in granularities:
                yield [("linear", {"mode": mode, "dtype": dtype, **one})]


def _palettes(opset):
    for nbits in (1, 2, 4, 6, 8) if opset < 18 else (1, 2, 3, 4, 6, 8):
        yield [("palettize", {"mode": "uniform", "nbits": nbits})]
    if opset < 18:
        return
    for nbits in (1, 2, 3, 4, 6, 8):
        for axis in (0, 1):
            grouped = {"granularity": "per_grouped_channel", "group_size": 8, "channel_axis": axis}
            yield [("palettize", {"mode": "uniform", "nbits": nbits, **grouped})]
    for nbits in (3, 4, 8):
        yield [("palettize", {"mode": "uniform", "nbits": nbits, "enable_per_channel_scale": True})]
    for axis in (0, 1):
        yield [("palettize", {"mode": "kmeans", "nbits": 2, "cluster_dim": 2, "channel_axis": axis})]


def _joint(opset):
    prune, quantize = ("prune", {"target_sparsity": 0.5}), ("linear", {"dtype": "int8"})
    yield [prune]
    if opset >= 18:
        yield [prune, quantize]
        yield [prune, ("palettize", {"mode": "uniform", "nbits": 4})]
        for nbits in (4, 6, 8):
            palette = ("palettize", {"mode": "uniform", "nbits": nbits})
            yield [palette, ("linear", {"dtype": "int8", "granularity": "per_tensor"})]


CASES = [
    (opset, dtype, steps)
    for opset in (16, 18)
    for dtype in ("float16", "float32")
    for make in (_linear, _palettes, _joint)
    for steps in make(opset)
]
"""(opset of the model, type of its weights, what compresses it)."""


def name(case):
    """Return a case in a few words."""
    opset, dtype, steps = case
    words = [f"{kind} " + " ".join(f"{key}={value}" for key, value in options.items()) for kind, options in steps]
    return f"iOS{opset} {dtype} {', '.join(words)}"


def compare(case, base, folder, onnx_opset=21):
    """Compress a model, convert it and its decompressed form, and run both.

    Args:
        case: of `CASES`.
        base: the model.
        folder: for files.
        onnx_opset: of the conversion.

    Returns:
        (outputs that differ, how often each kind of node reads compressed weights, why others were decoded).
    """
    _, dtype, steps = case
    small, dense = folder / "small.mlpackage", folder / "dense.mlpackage"
    error = theirs(base, steps, small)
    if error is not None:
        raise error
    decompressed(small, dense)
    random = np.random.default_rng(0)
    feeds = {
        "x": random.standard_normal((1, 16, 12, 12)).astype(dtype),
        "tokens": np.array([[1, 2, 50, 99]], np.int32),
    }
    kept = milblob.onnx.convert(small, folder / "small.onnx", opset=onnx_opset)
    milblob.onnx.convert(dense, folder / "dense.onnx", opset=onnx_opset)
    found, expected = (run(folder / f"{which}.onnx", feeds, prepacked=False) for which in ("small", "dense"))
    different = [key for key, value in expected.items() if found[key].tobytes() != value.tobytes()]
    kinds = collections.Counter(node.op_type for node in kept.graph)
    copied = json.loads(kept.metadata_props.get("milblob.copied", "[]"))
    for path in folder.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return different, kinds, collections.Counter(row["why"] for row in copied)


def save_base(path, opset, dtype):
    """Write the model that a case compresses."""
    save_model(path, opset, np.dtype(dtype), disagree=False)
