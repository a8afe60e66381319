"""coremltools alone, and with `milblob.compat.coremltools.install()`: the same calls, the same files.

Convert, write, load, palettize, quantize, and undo palettizing, of programs from the MIL builder (no torch needed). The
rows of a job run one after another in one process; what they make is compared byte by byte before it is timed.
"""

import contextlib
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

from conftest import scaled

WAYS = {"coremltools": False, "coremltools with milblob": True}
WIDTH, LAYERS, MASK = scaled(1024, 64), scaled(12, 2), scaled(1024, 64)
ROUNDS = 5


@contextlib.contextmanager
def way(name: str) -> Iterator[None]:
    """One of WAYS, for a while."""
    from milblob.compat import coremltools as compat

    logging.getLogger("coremltools").setLevel(logging.ERROR)
    with compat.install() if WAYS[name] else contextlib.nullcontext():
        yield


@pytest.fixture
def compat_row(row: Any) -> Callable[..., None]:
    """Return the function that measures one row of a job, in one of the WAYS."""

    def measure(job: str, name: str, run: Callable[[], Any], check: Callable[[Any], None], **options: Any) -> None:
        with way(name):
            role = "milblob" if WAYS[name] else "rival"
            row(job, name, run, check=check, role=role, rounds=ROUNDS, memory=False, **options)

    return measure


def build_program(mask_count: int) -> Any:
    """A few linear layers, and a mask of bools, as attention has it."""
    import coremltools as ct
    from coremltools.converters.mil import Builder

    rng = np.random.default_rng(0)
    mask = np.triu(np.ones((mask_count, mask_count), bool), 1)

    @Builder.program(input_specs=[Builder.TensorSpec((mask_count, WIDTH))], opset_version=ct.target.iOS18)
    def program(x: Any) -> Any:
        for _ in range(LAYERS):
            x = Builder.linear(x=x, weight=rng.standard_normal((WIDTH, WIDTH)).astype(np.float32))
        scores = Builder.matmul(x=x, y=x, transpose_y=True)
        return Builder.select(cond=mask, a=np.float32(-1e4), b=scores)

    return program


def convert() -> Any:
    """Convert it to a package in a temporary folder."""
    import coremltools as ct

    target = ct.target.iOS18
    return ct.convert(build_program(MASK), minimum_deployment_target=target, skip_model_load=True)


def files(folder: str) -> dict[str, bytes]:
    """Contents of a package's files, without the manifest, whose identifiers are new every time."""
    root = Path(folder)
    paths = [path for path in root.rglob("*") if path.is_file() and path.name != "Manifest.json"]
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def compress(kind: str) -> Callable[[Any], Any]:
    """A function of a model that returns it compressed."""
    from coremltools.optimize import coreml

    op: Any
    if kind == "palettize":
        op = coreml.OpPalettizerConfig("uniform", nbits=4, granularity="per_grouped_channel", group_size=16)
        return lambda model: coreml.palettize_weights(model, coreml.OptimizationConfig(op))
    if kind == "quantize":
        op = coreml.OpLinearQuantizerConfig("linear_symmetric", dtype="int4", granularity="per_block", block_size=32)
        return lambda model: coreml.linear_quantize_weights(model, coreml.OptimizationConfig(op))
    op = coreml.OpMagnitudePrunerConfig(target_sparsity=0.5)
    return lambda model: coreml.prune_weights(model, coreml.OptimizationConfig(op))


class Models:
    """The models that the jobs begin with, made by coremltools alone; one of each for a run."""

    def __init__(self) -> None:
        self.converted = convert()
        self.palettized = compress("palettize")(self.converted)
        self.results: dict[str, dict[str, bytes]] = {}

    def check(self, job: str) -> Callable[[Any], None]:
        """Return a check that a model has the files that coremltools alone made in the same job."""

        def check(model: Any) -> None:
            found = files(model.package_path)
            assert found == self.results.setdefault(job, found)

        return check


@pytest.fixture(scope="module")
def models() -> Iterator[Models]:
    """See Models."""
    with way("coremltools"):
        made = Models()
    yield made
    for model in (made.converted, made.palettized):
        shutil.rmtree(model.package_path, ignore_errors=True)


@pytest.mark.parametrize("name", WAYS)
def bench_convert(compat_row: Any, models: Models, name: str) -> None:
    job = f"convert {LAYERS} layers of {WIDTH} x {WIDTH} and a mask of {MASK} x {MASK} bools"
    compat_row(job, name, convert, models.check(job))


@pytest.mark.parametrize("kind", ["palettize", "quantize", "prune"])
@pytest.mark.parametrize("name", WAYS)
def bench_compress(compat_row: Any, models: Models, kind: str, name: str) -> None:
    job = f"{kind} that model"
    run = compress(kind)
    compat_row(job, name, lambda: run(models.converted), models.check(job))


@pytest.mark.parametrize("name", WAYS)
def bench_decompress(compat_row: Any, models: Models, name: str) -> None:
    from coremltools.optimize.coreml import decompress_weights

    job = "decompress what was palettized"
    compat_row(job, name, lambda: decompress_weights(models.palettized), models.check(job))


# ---------------------------------------------------------------------------------------------------- the parts, alone


@pytest.mark.parametrize("name", WAYS)
def bench_immediate(compat_row: Any, name: str) -> None:
    from coremltools.converters.mil.backend.mil import helper

    mask = np.triu(np.ones((MASK, MASK), bool), 1)

    def check(value: Any) -> None:
        assert value.type.tensorType.rank == 2
        assert list(value.immediateValue.tensor.bools.values) == mask.reshape(-1).tolist()

    # Looked up when it is called: `install` replaces the name.
    compat_row(f"{mask.size:,} bools to an immediate value", name, lambda: helper.create_tensor_value(mask), check)


@pytest.mark.parametrize("name", WAYS)
def bench_write(compat_row: Any, tmp_path: Path, name: str) -> None:
    from types import SimpleNamespace

    from coremltools.converters.mil.backend.mil import helper, load
    from coremltools.converters.mil.mil import types

    tensors = makers.Tensors(scaled(100, 4), (scaled(1024, 4), 1311))
    variables = [SimpleNamespace(val=array, dtype=types.fp16) for _, array in tensors]
    expected = tmp_path / "expected"
    makers.write_blob(expected, tensors)

    def write() -> Path:
        writer = load.BlobWriter(str(tmp_path / "weight.bin"))
        for variable in variables:
            helper._get_offset_by_writing_data(variable, writer)
        return tmp_path / "weight.bin"

    def check(path: Path) -> None:
        assert np.array_equal(np.memmap(path, np.uint8, "r"), np.memmap(expected, np.uint8, "r"))

    job = f"write {tensors.nbytes / 2**20:.0f} MiB of float16 in {tensors.count} weights"
    compat_row(job, name, write, check, nbytes=tensors.nbytes)


@pytest.mark.parametrize("name", WAYS)
def bench_load(compat_row: Any, transformer: Path, tmp_path: Path, name: str) -> None:
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto import load

    package = tmp_path / "m.mlpackage"
    shutil.copytree(transformer, package, copy_function=lambda a, b: Path(b).hardlink_to(a))
    manifest = package / "Manifest.json"  # coremltools writes it again
    text = manifest.read_bytes()
    manifest.unlink()
    manifest.write_bytes(text)
    model = ct.models.MLModel(str(package), skip_model_load=True)
    spec = model.get_spec()

    def run() -> Any:
        return load.load(spec, spec.specificationVersion, model.weights_dir)

    def check(program: Any) -> None:
        ops = [op for op in program.functions["main"].operations if op.op_type == "const"]
        assert sum(op.outputs[0].val.nbytes for op in ops if hasattr(op.outputs[0].val, "nbytes")) > 1 << 20

    compat_row("load the transformer to a PyMIL program", name, run, check)
