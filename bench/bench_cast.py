"""float32 -> float16: a package of 1 GiB of weights, and the kernels alone.

Every row of the first job reads the same values from its own format, mapped where it can map, and leaves a file or package
of float16 on the disk: each ends with an fsync, as milblob.repack does. On a disk that is most of the time; in a memory
file system ($MILBLOB_BENCH_DATA, --basetemp) the arithmetic shows.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import Made, needs, scaled
from milblob import _codec
from milblob.values.cast import convert_into

COUNT, SHAPE = 200, (scaled(1024, 4), 1311)
TENSORS = makers.Tensors(COUNT, SHAPE, np.float32)
JOB = f"cast {TENSORS.nbytes / 2**30:.2g} GiB of float32 in {COUNT} tensors to float16"
LIMIT = "C: read, write half of it, sync; no arithmetic"
TORCH = "torch: load(mmap=True), to(float16), save"
WEIGHTS = Path("Data", "com.apple.CoreML", "weights", "weight.bin")
MODEL = Path("Data", "com.apple.CoreML", "model.mlmodel")
RECORD_NBYTES = 64 + -(-int(np.prod(SHAPE)) * 4 // 64) * 64


def write_adds(package: Path, tensors: makers.Tensors = TENSORS) -> None:
    """Convert a chain of additions by coremltools' own converter: every weight has a reader that keeps it."""
    import coremltools as ct
    from coremltools.converters.mil import Builder as mb
    from coremltools.converters.mil.mil import types

    @mb.program(input_specs=[mb.TensorSpec(tensors.shape, dtype=types.fp32)], opset_version=ct.target.iOS16)
    def program(x: Any) -> Any:
        for name, array in tensors:
            x = mb.add(x=x, y=mb.const(val=array, name=name), name=f"{name}_sum")
        return x

    model = ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.iOS16,
        pass_pipeline=ct.PassPipeline.EMPTY,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )
    model.save(str(package))


def sync(path: Path) -> None:
    """Wait until a file is on the disk."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# ----------------------------------------------------------------------------------- what is run: source, target -> files


def repack(source: Path, target: Path) -> None:
    """One call."""
    milblob.repack(source, target, cast={"float32": "float16"})


def kernel_and_write(source: Path, target: Path) -> None:
    """The kernel over the mapped file, through a buffer that stays in the processor's cache; one thread."""
    out = np.empty(1 << 17, np.float16).view(np.uint8)
    with milblob.BlobReader(source / WEIGHTS) as blobs, target.open("wb", buffering=0) as file:
        for record in blobs:
            held = _codec.Buffer(blobs.read_packed(record.offset))
            for start in range(0, record.count, 1 << 17):
                count = min(1 << 17, record.count - start)
                convert_into(out[: 2 * count], held, 4 * start, count, "float32", "float16")
                file.write(out[: 2 * count])
        os.fsync(file.fileno())


def reader_astype_writer(source: Path, target: Path) -> None:
    """coremltools' own reader and writer of weight files, and NumPy between them."""
    from coremltools.libmilstoragepython import _BlobStorageReader, _BlobStorageWriter

    reader, writer = _BlobStorageReader(str(source / WEIGHTS)), _BlobStorageWriter(str(target))
    for i in range(COUNT):
        half = reader.read_float_data(64 + i * RECORD_NBYTES).astype(np.float16)
        writer.write_fp16_data(half.view(np.uint16))
    del writer
    sync(target)


def torch_to(source: Path, target: Path) -> None:
    """A state dict, mapped, converted, saved."""
    import torch

    tensors = torch.load(source, mmap=True, weights_only=True)
    torch.save({name: tensor.to(torch.float16) for name, tensor in tensors.items()}, target)
    sync(target)


def coremltools_pass(source: Path, target: Path) -> None:
    """coremltools' fp16 pass on the loaded program; operations become float16 too, not the weights alone."""
    import coremltools as ct
    from coremltools import proto
    from coremltools.converters.mil.frontend.milproto.load import load
    from coremltools.converters.mil.mil.passes.pass_registry import PASS_REGISTRY

    spec = proto.Model_pb2.Model.FromString((source / MODEL).read_bytes())
    program = load(spec, spec.specificationVersion, str((source / WEIGHTS).parent))
    for name in ("add_fp16_cast", "const_elimination", "dead_code_elimination"):
        PASS_REGISTRY[f"common::{name}"](program)
    made = ct.convert(
        program,
        convert_to="mlprogram",
        minimum_deployment_target=ct.target.iOS16,
        pass_pipeline=ct.PassPipeline.EMPTY,
        compute_precision=ct.precision.FLOAT32,
        skip_model_load=True,
    )
    made.save(str(target))
    sync(target / WEIGHTS)


ROWS: dict[str, tuple[Callable[[Path, Path], None], str, dict[str, Any]]] = {
    "milblob: repack": (repack, "mlpackage", {"role": "milblob", "targets": {LIMIT: 1.3, TORCH: 1.0}}),
    "milblob: kernel and write": (kernel_and_write, "mlpackage", {"role": "milblob"}),
    "coremltools reader, astype, writer": (reader_astype_writer, "mlpackage", {}),
    TORCH: (torch_to, "pt", {}),
    "coremltools: add_fp16_cast pass": (coremltools_pass, "mlpackage", {"rounds": 2}),
}


def check_result(target: Path) -> None:
    """Every value, whatever format it is in."""
    expected = (array.astype(np.float16) for _, array in TENSORS)
    if target.suffix == ".pt":
        import torch

        results = (tensor.numpy() for tensor in torch.load(target, mmap=True, weights_only=True).values())
    elif target.suffix == ".mlpackage":
        blobs = milblob.BlobReader(target / WEIGHTS)
        results = (blobs.read(record.offset) for record in blobs)
    elif target.suffix == ".bin":
        blobs = milblob.BlobReader(target)
        results = (blobs.read(record.offset) for record in blobs)
    else:
        data = np.fromfile(target, np.float16).reshape(COUNT, -1)
        results = iter(data)
    found = 0
    for got, want in zip(results, expected, strict=True):
        assert got.dtype == np.float16 and np.array_equal(got.reshape(-1), want.reshape(-1))
        found += 1
    assert found == COUNT


def remover(target: Path) -> Callable[[], None]:
    """What is run before each round: the result of the last one goes."""

    def remove() -> None:
        if target.is_dir():
            shutil.rmtree(target)
        target.unlink(missing_ok=True)

    return remove


@pytest.mark.parametrize("name", ROWS)
def bench_cast(row: Any, made: Made, name: str, tmp_path: Path) -> None:
    run, suffix, options = ROWS[name]
    if suffix == "pt":
        needs("torch")
    write = makers.WRITERS["pt"] if suffix == "pt" else lambda path, tensors: write_adds(path, tensors)
    source = made(f"cast.{suffix}", lambda path: write(path, TENSORS))
    results = {kernel_and_write: "raw", reader_astype_writer: "bin"}
    target = tmp_path / f"result.{results.get(run, suffix)}"
    remove = remover(target)
    row(JOB, name, lambda: run(source, target), check=lambda _: check_result(target), setup=remove,
        nbytes=TENSORS.nbytes, **options)  # fmt: skip
    remove()


def bench_cast_limit(row: Any, made: Made, cwalk: Any, tmp_path: Path) -> None:
    source, target = made("cast.mlpackage", write_adds), tmp_path / "result"
    remove = remover(target)

    def check(written: int) -> None:
        data = np.fromfile(source / WEIGHTS, np.uint32)
        assert np.array_equal(np.fromfile(target, np.uint32), data[: data.size // 2 * 2 : 2])
        assert written == target.stat().st_size

    row(JOB, LIMIT, lambda: cwalk.halve(str(source / WEIGHTS), str(target), True), check=check, setup=remove,
        role="limit", nbytes=TENSORS.nbytes)  # fmt: skip
    remove()


# ------------------------------------------------------------------------------------------------------------- kernels

KERNEL_COUNT = scaled(1 << 26, 1 << 12)
PAIRS = [("float32", "float16"), ("float16", "float32"), ("float32", "bfloat16"), ("bfloat16", "float32")]


class Pair:
    """Elements of one dtype, an array for them in another, and what must be in it."""

    def __init__(self, src: str, dst: str) -> None:
        self.src, self.dst = src, dst
        source, target = (milblob.DType[name.upper()].numpy for name in (src, dst))
        self.array = np.random.default_rng(9).standard_normal(KERNEL_COUNT, np.float32).astype(source)
        self.expected = self.array.astype(target)
        self.out = np.zeros(KERNEL_COUNT, target)


@pytest.fixture(scope="module", params=PAIRS, ids="-".join)
def pair(request: Any) -> Pair:
    return Pair(*request.param)


@pytest.mark.parametrize("name", ["milblob", "copy", "NumPy: astype", "torch: copy_"])
def bench_kernel(row: Any, name: str, pair: Pair) -> None:
    src, dst, array, out, expected = pair.src, pair.dst, pair.array, pair.out, pair.expected
    job = f"{src} -> {dst}, {KERNEL_COUNT / 1e6:.0f}M elements in memory, into an array that is there"
    nbytes = array.nbytes + out.nbytes
    options: dict[str, Any] = {"nbytes": nbytes}
    if name == "milblob":
        held, into = _codec.Buffer(array.view(np.uint8)), out.view(np.uint8)
        options.update(role="milblob", targets={"copy": 1.3})

        def run() -> Any:
            convert_into(into, held, 0, KERNEL_COUNT, src, dst)
            return out
    elif name == "copy":
        half_in, half_out = np.zeros(nbytes // 2, np.uint8), np.zeros(nbytes // 2, np.uint8)
        options.update(role="limit", note="as many bytes read and written by memcpy")
        expected, out = half_in, half_out

        def run() -> Any:
            np.copyto(half_out, half_in)
            return half_out
    elif name == "NumPy: astype":

        def run() -> Any:
            np.copyto(out, array, casting="unsafe")
            return out
    else:
        needs("torch")
        import torch

        kinds = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
        ours, theirs = (
            torch.from_numpy(array.view(np.uint8)).view(kinds[src]),
            torch.from_numpy(out.view(np.uint8)).view(kinds[dst]),
        )

        def run() -> Any:
            theirs.copy_(ours)
            return out

    def check(result: np.ndarray[Any, Any]) -> None:
        assert np.array_equal(result.view(np.uint8), expected.view(np.uint8))

    row(job, name, run, check=check, **options)
