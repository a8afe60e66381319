"""Compressed weights as ONNX: 1 GiB as int4 blocks converted and run over the weight file, and a transformer's throughput."""

import json
import logging
from pathlib import Path
from typing import Any

import makers
import measure
import numpy as np
import pytest

import milblob
from conftest import SCALE, needs, scaled

LAYERS, ROWS, COLUMNS = 16, 4096, max(int(4096 * SCALE) // 32 * 32, 64)
CONVERT = "convert 1 GiB of linear layers in int4 blocks to ONNX" + (f" (scale {SCALE:g})" if SCALE != 1 else "")
RUN = "onnxruntime opens and runs them once, nothing optimised"
TOKENS = "onnxruntime runs a transformer of {} layers on 64 tokens, {}"
WAYS = ("as it is opened by default", "nothing optimised")

PRIVATE = """
import json, sys
import numpy as np, onnxruntime as ort

def private():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024

path, prioritised, columns = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
options.add_session_config_entry("session.disable_prepacking", "1")
options.intra_op_num_threads = 1
if prioritised:
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
x = np.ones((1, columns), np.float32)
ort.InferenceSession  # what the import needs is not counted
before = private()
session = ort.InferenceSession(path, options)
opened = private() - before
session.run(None, {session.get_inputs()[0].name: x})
print(json.dumps([opened, private() - before]))
"""


@pytest.fixture(scope="module")
def linear(made: Any) -> Path:
    """A package of 16 linear layers of 1 GiB in single precision, for iOS 18."""

    def write(path: Path) -> None:
        import coremltools as ct
        from coremltools.converters.mil.mil import Builder as mb

        logging.getLogger("coremltools").setLevel(logging.ERROR)
        random = np.random.default_rng(0)

        @mb.program(input_specs=[mb.TensorSpec((1, COLUMNS))], opset_version=ct.target.iOS18)
        def program(x: Any) -> Any:
            for _ in range(LAYERS // 2):
                for shape in ((ROWS, COLUMNS), (COLUMNS, ROWS)):
                    x = mb.linear(x=x, weight=random.standard_normal(shape, np.float32) / 64)
            return x

        options = {"compute_precision": ct.precision.FLOAT32, "minimum_deployment_target": ct.target.iOS18}
        ct.convert(program, convert_to="mlprogram", skip_model_load=True, **options).save(str(path))

    package: Path = made("linear18.mlpackage", write)
    return package


@pytest.fixture(scope="module")
def blocks(made: Any, linear: Path) -> Path:
    """The same with blocks of 32 int4 elements."""
    recipe = milblob.Linear("int4", granularity="per_block", block=32)
    package: Path = made("linear18-int4.mlpackage", lambda path: milblob.compress(linear, path, recipe))
    return package


def stored_nbytes(package: Path) -> int:
    return (package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin").stat().st_size


@pytest.mark.parametrize("compressed", ["keep", "dense"])
def bench_convert(row: Any, blocks: Path, compressed: str) -> None:
    import milblob.onnx

    path = blocks.parent / f"int4-{compressed}.onnx"

    def run() -> Any:
        return milblob.onnx.convert(blocks, path, compressed=compressed, force=True)

    def check(_: Any) -> None:
        kept = compressed == "keep"
        assert path.stat().st_size < 1 << 20
        assert len(makers.weights_of_onnx(path)) == (not kept)

    if compressed == "keep":
        options = {
            "role": "milblob",
            "limit_ms": 1000.0,
            "limit_nbytes": 64 << 20,
            "targets": {"milblob: decoded": 0.1},
        }
        row(CONVERT, "milblob: kept", run, check=check, **options)
    else:
        options = {"limit_nbytes": 512 << 20, "note": "one round"}
        row(CONVERT, "milblob: decoded", run, check=check, role="milblob", rounds=1, **options)


@pytest.mark.parametrize("form", ["int4, prioritised", "int4", "dense"])
def bench_private(row: Any, blocks: Path, linear: Path, form: str) -> None:
    """What matters is the memory: the process' own, after the start and after a run."""
    needs("onnxruntime")
    import milblob.onnx

    package = linear if form == "dense" else blocks
    path = package.parent / f"private-{form.split(',')[0]}.onnx"
    milblob.onnx.convert(package, path, force=True)
    found: list[list[int]] = []

    def run() -> None:
        found.append(measure.run_python(PRIVATE, str(path), str(int("prioritised" in form)), str(COLUMNS)))

    def check(_: Any) -> None:
        opened, ran = found[-1]
        stored = stored_nbytes(package)
        assert opened < 64 << 20
        if "prioritised" in form and SCALE == 1:
            assert ran <= stored, f"{ran} bytes of its own after a run, {stored} stored"

    def facts() -> dict[str, Any]:
        opened, ran = (round(nbytes / (1 << 20)) for nbytes in found[-1])
        stored = round(stored_nbytes(package) / (1 << 20))
        return {
            "note": f"{stored} MiB stored; private {opened} MiB opened, {ran} MiB after a run",
            "private": found[-1],
        }

    role = "milblob" if "prioritised" in form else "aside"
    row(RUN, form, run, check=check, facts=facts, role=role, memory=False, rounds=5)


# --------------------------------------------------------------------------------------------------------- throughput

RECIPES: dict[str, Any] = {
    "dense": None,
    "int8 channels": milblob.Linear("int8"),
    "int4 blocks": milblob.Linear("int4", granularity="per_block", block=32),
    "palettes of 8 bits": milblob.Palette(8, mode="uniform"),
    "palettes of 4 bits": milblob.Palette(4, mode="uniform"),
}
BLOCKS = scaled(8, 2)


@pytest.fixture(scope="module")
def small(made: Any) -> Path:
    """A transformer in half precision for iOS 18: at full scale 8 layers of width 512."""
    name = "small18.mlpackage"
    package: Path = made(name, lambda path: makers.write_transformer(path, BLOCKS, 512, "iOS18"))
    return package


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("form", RECIPES)
def bench_throughput(row: Any, made: Any, small: Path, form: str, way: str) -> None:
    """Reported, without targets: what a runtime makes of the nodes is its own."""
    needs("onnxruntime")
    import onnxruntime

    import milblob.onnx

    recipe = RECIPES[form]
    name = f"small18-{form.replace(' ', '-')}.mlpackage"
    package = small if recipe is None else made(name, lambda path: milblob.compress(small, path, recipe))
    path = package.with_suffix(".onnx")
    milblob.onnx.convert(package, path, force=True)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED
    if way == WAYS[1]:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options)
    (given,) = session.get_inputs()
    feeds = {given.name: np.arange(64, dtype=np.int32)[None]}

    def check(found: Any) -> None:
        assert np.isfinite(found[0]).all()

    copied = json.loads(milblob.onnx.convert(package).metadata_props.get("milblob.copied", "[]"))
    assert not copied
    row(
        TOKENS.format(BLOCKS, way), form, lambda: session.run(None, feeds), check=check,
        role="milblob" if recipe is not None else "rival", memory=False,
        note=f"{stored_nbytes(package) / (1 << 20):.0f} MiB of weights",
    )  # fmt: skip
