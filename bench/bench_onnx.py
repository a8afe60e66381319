"""ML Programs to ONNX: transformers, many operations, 1 GiB of weights by reference, and onnxruntime's start with them."""

import logging
import os
from functools import partial
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import SCALE, needs, scaled

TRANSFORMER = "convert a transformer of 2,841 operations to ONNX"
NETWORK = "convert a transformer of torch to ONNX: about 1,000 operations, 200 MB"
MANY = "convert many operations without weights to ONNX"
LARGE = (
    f"convert 16 linear layers of 1 GiB to ONNX (scale {SCALE:g})"
    if SCALE != 1
    else "convert 1 GiB of linear layers to ONNX"
)
COPY = "the same with a copy of the weights"
START = "onnxruntime opens it"
VERIFY = "compare it with itself, one run each"
LAYERS, ROWS, COLUMNS = 16, 4096, max(int(4096 * SCALE), 16)


@pytest.fixture(scope="module")
def linear(made: Any) -> Path:
    """A package of 16 linear layers in single precision, 1 GiB in all."""

    def write(path: Path) -> None:
        import coremltools as ct
        from coremltools.converters.mil.mil import Builder as mb

        logging.getLogger("coremltools").setLevel(logging.ERROR)
        random = np.random.default_rng(0)

        @mb.program(input_specs=[mb.TensorSpec((1, COLUMNS))], opset_version=ct.target.iOS16)
        def program(x: Any) -> Any:
            for _ in range(LAYERS // 2):
                for shape in ((ROWS, COLUMNS), (COLUMNS, ROWS)):
                    x = mb.linear(x=x, weight=random.standard_normal(shape, np.float32))
            return x

        options = {"compute_precision": ct.precision.FLOAT32, "minimum_deployment_target": ct.target.iOS16}
        ct.convert(program, convert_to="mlprogram", skip_model_load=True, **options).save(str(path))

    package: Path = made("linear.mlpackage", write)
    return package


def weight_of(package: Path) -> Path:
    return package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"


def check_small(path: Path, package: Path) -> Any:
    """The .onnx file refers to everything, and the weights are where they were."""
    before = os.stat(weight_of(package))

    def check(_: Any) -> None:
        after = os.stat(weight_of(package))
        assert path.stat().st_size < 1 << 20
        assert (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)

    return check


def bench_transformer(row: Any, transformer: Path) -> None:
    import milblob.onnx

    path = transformer.parent / "transformer.onnx"
    options = {"role": "milblob", "targets": {"coremltools: PyMIL load": 1.0}}

    def run() -> Any:
        return milblob.onnx.convert(transformer, path, force=True)

    row(TRANSFORMER, "milblob: convert", run, check=check_small(path, transformer), **options)


def bench_pymil(row: Any, transformer: Path) -> None:
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load

    def run() -> Any:
        spec = ct.utils.load_spec(str(transformer))
        return load(spec, spec.specificationVersion, str(weight_of(transformer).parent))

    def check(program: Any) -> None:
        assert "main" in program.functions

    row(TRANSFORMER, "coremltools: PyMIL load", run, check=check)


@pytest.fixture(scope="module")
def network(made: Any) -> tuple[Any, Any, Path]:
    """A transformer of torch, what it is called with, and its package as coremltools converts it."""
    needs("torch")
    import torch

    import networks

    width = max(64, round(512 * SCALE**0.5) // 64 * 64)
    torch.manual_seed(0)
    layers = (networks.Layer(width, heads=8) for _ in range(scaled(16, 2)))
    net, x = torch.nn.Sequential(*layers).eval(), torch.zeros(1, 16, width)

    def write(path: Path) -> None:
        import coremltools as ct

        options = {"compute_precision": ct.precision.FLOAT32, "minimum_deployment_target": ct.target.iOS16}
        networks.convert(path, net, (x,), inputs=[ct.TensorType(name="x", shape=tuple(x.shape))], **options)

    return net, x, made("network.mlpackage", write)


def bench_network(row: Any, network: Any) -> None:
    import milblob.onnx

    package = network[2]
    path = package.parent / "network.onnx"
    targets = {"torch.onnx.export": 1 / 20, "torch.onnx.export, dynamo": 1 / 20, "coremltools: PyMIL load": 1.0}

    def run() -> Any:
        return milblob.onnx.convert(package, path, force=True)

    row(NETWORK, "milblob: convert", run, check=check_small(path, package), role="milblob", targets=targets)


def bench_network_pymil(row: Any, network: Any) -> None:
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load

    def run() -> Any:
        spec = ct.utils.load_spec(str(network[2]))
        return load(spec, spec.specificationVersion, str(weight_of(network[2]).parent))

    def check(program: Any) -> None:
        assert "main" in program.functions

    row(NETWORK, "coremltools: PyMIL load", run, check=check)


@pytest.mark.parametrize("dynamo", [False, True])
def bench_torch(row: Any, network: Any, tmp_path: Path, dynamo: bool) -> None:
    """The same network, exported from torch itself by the older exporter and by the newer one."""
    if dynamo:
        needs("onnxscript")
    import torch

    net, x, _ = network
    path = tmp_path / "torch.onnx"

    def run() -> None:
        torch.onnx.export(net, (x,), str(path), dynamo=dynamo, **({"verbose": False} if dynamo else {}))

    def check(_: Any) -> None:
        assert path.exists()

    name = "torch.onnx.export, dynamo" if dynamo else "torch.onnx.export"
    row(NETWORK, name, run, check=check, rounds=1, note="one round")


@pytest.fixture(scope="module")
def many(made: Any) -> dict[int, Path]:
    """Packages of so many operations without weights."""

    def write(count: int, path: Path) -> None:
        import coremltools as ct
        from coremltools.converters.mil.mil import Builder as mb

        logging.getLogger("coremltools").setLevel(logging.ERROR)

        @mb.program(input_specs=[mb.TensorSpec((4, 4))], opset_version=ct.target.iOS16)
        def program(x: Any) -> Any:
            for _ in range(count // 4):
                x = mb.transpose(x=mb.add(x=mb.sigmoid(x=mb.tanh(x=x)), y=np.float32(0.5)), perm=[1, 0])
            return x

        options = {"compute_precision": ct.precision.FLOAT32, "minimum_deployment_target": ct.target.iOS16}
        options["pass_pipeline"] = ct.PassPipeline.EMPTY
        ct.convert(program, convert_to="mlprogram", skip_model_load=True, **options).save(str(path))

    counts = scaled(5000, 8), scaled(10000, 16)
    return {count: made(f"many{count}.mlpackage", partial(write, count)) for count in counts}


@pytest.mark.parametrize("which", ["half", "all"])
def bench_many(row: Any, many: dict[int, Path], which: str) -> None:
    import milblob.onnx

    count = (min if which == "half" else max)(many)
    path = many[count].with_suffix(".onnx")
    options: dict[str, Any] = {"role": "milblob"}
    if which == "all":
        options |= {"limit_ms": 3000.0, "targets": {f"milblob: {min(many)} operations": 2.3}}

    def run() -> Any:
        return milblob.onnx.convert(many[count], path, force=True)

    def check(_: Any) -> None:
        assert path.stat().st_size < 1 << 20

    row(MANY, f"milblob: {count} operations", run, check=check, **options)


def bench_reference(row: Any, linear: Path) -> None:
    import milblob.onnx

    path = linear.parent / "linear.onnx"
    options = {
        "role": "milblob",
        "limit_ms": 1000.0,
        "limit_nbytes": 64 << 20,
        "targets": {"onnx.helper: embedded": 0.1},
    }

    def run() -> Any:
        return milblob.onnx.convert(linear, path, force=True)

    row(LARGE, "milblob: by reference", run, check=check_small(path, linear), **options)


def bench_embedded(row: Any, linear: Path, tmp_path: Path) -> None:
    needs("onnx")
    import onnx
    from onnx import helper, numpy_helper

    path = tmp_path / "embedded.onnx"
    with milblob.open(linear) as model:
        arrays = {name: tensor.read() for name, tensor in model.items() if len(tensor.shape) == 2}

    def run() -> None:
        tensors = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
        nodes, at = [], "x"
        for name in arrays:
            nodes.append(helper.make_node("Gemm", [at, name], [f"y_{name}"], transB=1))
            at = f"y_{name}"
        ends = [helper.make_tensor_value_info(end, 1, None) for end in ("x", at)]
        onnx.save(helper.make_model(helper.make_graph(nodes, "main", ends[:1], ends[1:], tensors)), path)

    def check(_: Any) -> None:
        assert path.stat().st_size > sum(array.nbytes for array in arrays.values())

    row(LARGE, "onnx.helper: embedded", run, check=check, rounds=1, note="one round")


def bench_copy(row: Any, linear: Path, tmp_path: Path) -> None:
    import milblob.onnx

    path = tmp_path / "copy.onnx"

    def run() -> Any:
        return milblob.onnx.convert(linear, path, weights="copy", force=True)

    def check(_: Any) -> None:
        sizes = [one.stat().st_size for one in makers.weights_of_onnx(path)]
        assert sizes == [weight_of(linear).stat().st_size]

    row(COPY, "milblob: copy", run, check=check, role="milblob", targets={"cp and sync": 1.2})


def bench_cp(row: Any, linear: Path, tmp_path: Path) -> None:
    target = tmp_path / "weight.bin"

    def run() -> None:
        with open(weight_of(linear), "rb") as source, open(target, "wb") as file:
            at, size = 0, os.fstat(source.fileno()).st_size
            while at < size:
                at += os.copy_file_range(source.fileno(), file.fileno(), size - at)
            os.fsync(file.fileno())

    def check(_: Any) -> None:
        assert target.stat().st_size == weight_of(linear).stat().st_size

    row(COPY, "cp and sync", run, check=check)


@pytest.mark.parametrize("weights", ["reference", "embed"])
def bench_session(row: Any, linear: Path, weights: str) -> None:
    needs("onnxruntime")
    import onnxruntime

    import milblob.onnx

    path = linear.parent / f"session-{weights}.onnx"
    if not path.exists():
        milblob.onnx.convert(linear, path, weights=weights)

    def run() -> Any:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.disable_prepacking", "1")
        return onnxruntime.InferenceSession(str(path), options)

    def check(session: Any) -> None:
        assert session.get_inputs()[0].shape == [1, COLUMNS]

    if weights == "reference":
        targets = {"embedded": 0.1}
        row(START, "by reference", run, check=check, role="milblob", limit_nbytes=64 << 20, targets=targets)
    else:
        row(START, "embedded", run, check=check)


def bench_session_of_a_package(row: Any, linear: Path) -> None:
    """The conversion is part of it."""
    needs("onnxruntime")
    from milblob import Session

    def run() -> Any:
        return Session(linear)

    def check(session: Any) -> None:
        assert session.inputs["x"].shape == (1, COLUMNS)

    row(
        START,
        "milblob: Session of the package",
        run,
        check=check,
        role="milblob",
        limit_nbytes=64 << 20,
        targets={"embedded": 0.1},
    )


def bench_verify(row: Any, linear: Path) -> None:
    needs("onnxruntime")

    def run() -> Any:
        return milblob.verify(linear, linear, runs=1)

    def check(found: Any) -> None:
        assert found.is_same and found.runs == 1

    row(VERIFY, "milblob: verify", run, check=check, role="milblob", targets={"onnxruntime: opened and run twice": 1.5})


def bench_two_runs(row: Any, linear: Path) -> None:
    """The same work by hand: a file that refers to the weights is opened and run, twice."""
    needs("onnxruntime")
    import onnxruntime

    import milblob.onnx

    path, x = linear.parent / "twice.onnx", np.zeros((1, COLUMNS), np.float32)
    milblob.onnx.convert(linear, path, force=True)

    def run() -> Any:
        found = []
        for _ in range(2):
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.add_session_config_entry("session.disable_prepacking", "1")
            found.append(onnxruntime.InferenceSession(str(path), options).run(None, {"x": x}))
        return found

    def check(found: Any) -> None:
        assert len(found) == 2

    row(VERIFY, "onnxruntime: opened and run twice", run, check=check)
