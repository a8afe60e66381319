"""Weights of 4 bits that onnxruntime multiplies by as they are stored: MatMulNBits."""

import collections
import json

import numpy as np
import pytest

import milblob
import milblob.onnx
from onnx_models import run, save

X = np.random.default_rng(0).standard_normal((2, 3, 96)).astype(np.float32)
COUNTS = {"blocks": (40, 3), "channels": (40, 1), "one": (1, 1), "small": (40, 12)}  # small: blocks of 8, as none


def weights(kind, dtype):
    """Name -> (elements, scales, zero points or None, NumPy's product of them)."""
    random = np.random.default_rng(1)
    low, high = (-8, 8) if kind == "int4" else (0, 16)
    for name, counts in COUNTS.items():
        data = random.integers(low, high, (40, 96))
        scale = (random.random(counts) * 0.1).astype(dtype)
        for zero in (None, random.integers(low, high, counts)):
            grid = [
                np.kron(one, np.ones((40 // counts[0], 96 // counts[1])))
                for one in (scale, 0 * scale if zero is None else zero)
            ]
            yield (
                name + "_shifted" * (zero is not None),
                data,
                scale,
                zero,
                (data - grid[1]) * grid[0].astype(np.float64),
            )


@pytest.fixture(
    scope="module", params=[(kind, dtype) for kind in ("int4", "uint4") for dtype in ("float32", "float16")]
)
def package(request, tmp_path_factory):
    """Return a package with a product for each weight, what NumPy computes for each, and the element type."""
    from coremltools.converters.mil.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    kind, dtype = request.param
    element = types.nptype_from_builtin(getattr(types, kind))
    found = list(weights(kind, dtype))

    def build(x):
        made = []
        for name, data, scale, zero, _ in found:
            options = {} if zero is None else {"offset": zero.astype(element)}
            weight = mb.constexpr_blockwise_shift_scale(
                data=data.astype(element), scale=scale, name=f"w_{name}", **options
            )
            if name.startswith("blocks"):
                made.append(mb.linear(x=x, weight=weight, bias=np.arange(40, dtype=dtype), name=name))
            else:
                made.append(mb.matmul(x=x, y=weight, transpose_y=True, name=name))
        return made

    x = X.astype(dtype)
    path = save(
        tmp_path_factory.mktemp("products") / "m.mlpackage", build, {"x": x}, opset="iOS18", precision=f"fp{dtype[-2:]}"
    )
    expected = {
        name: x.astype(np.float64) @ dense.T + (np.arange(40) if name.startswith("blocks") else 0)
        for name, *_, dense in found
    }
    return path, x, expected, kind


def require_close(found, expected, dtype):
    for name, values in expected.items():
        assert found[name].dtype == dtype, name
        error = np.abs(found[name].astype(np.float64) - values).max() / np.ptp(values)
        assert error < (1e-3 if dtype == np.float16 else 1e-6), (name, error)


@pytest.mark.parametrize("mode", ["reference", "embed"])
def test_products_of_4_bits_are_computed_from_what_is_stored(package, mode):
    path, x, expected, kind = package
    made = path.parent / f"{mode}.onnx"
    model = milblob.onnx.convert(path, made, weights=mode, compressed="onnxruntime", force=True)
    kinds = collections.Counter(node.op_type for node in model.graph)
    assert kinds["MatMulNBits"] == 6 and not kinds["DequantizeLinear"]
    require_close(run(made, {"x": x}), expected, x.dtype)
    copied = {row["name"] for row in json.loads(model.metadata_props["milblob.copied"])}
    assert {"w_small", "w_small_shifted"} <= copied  # decoded
    has_copy = "w_blocks.data.unsigned" in copied or "w_blocks.unsigned" in copied
    assert has_copy == (kind == "int4"), copied


def test_a_session_that_optimizes_uses_them(package):
    path, x, expected, _ = package
    found = milblob.Session(path, optimize=True)
    kinds = [node.op_type for stage in found.stages for node in stage.model.graph]
    assert kinds.count("MatMulNBits") == 6
    require_close(found.predict({"x": x}), expected, x.dtype)


def test_older_opsets_decode(package):
    path, x, expected, _ = package
    made = path.parent / "old.onnx"
    model = milblob.onnx.convert(path, made, compressed="onnxruntime", opset=18, force=True)
    assert "MatMulNBits" not in {node.op_type for node in model.graph}
    require_close(run(made, {"x": x}), expected, x.dtype)
