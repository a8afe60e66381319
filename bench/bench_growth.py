"""How each cost grows: the same work 1, 10 and 100 times over.

A cost that grows as the work does is a line of slope 1 where both axes are logarithmic; one that does not depend on the
work at all, like refitting one weight of a larger and larger model, is flat.
"""

import functools
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import makers
import numpy as np
import pytest

import milblob
from conftest import Made, scaled
from milblob import _codec
from milblob.program.plain import parse_text

FACTORS = 1, 10, 100
SHAPE = (1024, 2622)
PATCH = makers.Tensors(2, SHAPE)
DATA = Path("Data", "com.apple.CoreML")


class Series(NamedTuple):
    """One cost.

    Attributes:
        name: what is done.
        unit: of the work.
        most: work at the largest factor.
        prepare: (work, made, folder) -> what is timed, and a check of its result.
    """

    name: str
    unit: str
    most: int
    prepare: Callable[[int, Made, Path], tuple[Callable[[], Any], Callable[[Any], bool]]]


def values(nbytes: int) -> np.ndarray[Any, Any]:
    """Normally distributed float16."""
    block = np.random.default_rng(6).standard_normal(1 << 20, np.float32).astype(np.float16)
    return np.resize(block, nbytes // 2)


def blob(made: Made, nbytes: int, copy: str = "") -> Path:
    """A weight file of one record."""

    def write(path: Path) -> None:
        with milblob.BlobWriter(path, sync=False) as blobs:
            blobs.write(values(nbytes))

    return made(f"grow-{nbytes}{copy}.bin", write)


def list_records(count: int, made: Made, folder: Path) -> Any:
    path = made(f"grow-list-{count}.bin", lambda path: makers.write_blob(path, makers.Tensors(count, (512,))))

    def run() -> Any:
        with milblob.BlobReader(path) as blobs:
            return blobs.index

    return run, lambda index: len(index) == count


def load_package(count: int, made: Made, folder: Path) -> Any:
    path = made(f"grow-{count}.mlpackage", lambda path: makers.write_package(path, makers.Tensors(count, (64,))))
    return lambda: milblob.load(path), lambda arrays: len(arrays) == count


def scan(nbytes: int, made: Made, folder: Path) -> Any:
    path = made(f"grow-scan-{nbytes}.mlpackage", lambda path: makers.write_program(path, nbytes))

    def run() -> Any:
        with milblob.open(path) as model:
            return len(model)

    return run, lambda count: count > nbytes // 10_000


def parse(nbytes: int, made: Made, folder: Path) -> Any:
    data = str(Path(__file__).parent.parent / "tests" / "data")
    sys.path.insert(0, data)
    try:
        from mil_printer import Printer
    finally:
        sys.path.remove(data)
    from coremltools import proto

    def write(path: Path) -> None:
        program = proto.MIL_pb2.Program(version=1)
        function = program.functions["main"]
        function.opset = "CoreML6"
        function.inputs.add(name="x").type.tensorType.dataType = proto.MIL_pb2.FLOAT16
        block = function.block_specializations["CoreML6"]
        block.operations.extend(makers.statements(max(1, nbytes // 1250)))
        block.outputs.append(block.operations[-1].outputs[0].name)
        path.write_bytes(Printer("1.0").program(program).encode())

    text = made(f"grow-{nbytes}.mil", write).read_bytes()
    return lambda: parse_text(_codec.Buffer(text)), lambda program: len(program) > nbytes // 10


@functools.cache
def integers(count: int) -> np.ndarray[Any, Any]:
    """int32 of every magnitude alike."""
    random = np.random.default_rng(4)
    return (np.exp2(random.uniform(0, 31, count)) * random.choice([-1, 1], count)).astype(np.int32)


def unpack(count: int, made: Made, folder: Path) -> Any:
    array = integers(count)
    data = milblob.pack_tensor(array)
    return lambda: milblob.unpack_tensor(data, "int32", (count,)), lambda got: np.array_equal(got, array)


def pack(count: int, made: Made, folder: Path) -> Any:
    array = integers(count)
    return (
        lambda: milblob.pack_tensor(array),
        lambda data: np.array_equal(milblob.unpack_tensor(data, "int32", (count,)), array),
    )


def read_uint4(count: int, made: Made, folder: Path) -> Any:
    def elements() -> np.ndarray[Any, Any]:
        return np.resize(np.random.default_rng(7).integers(0, 16, 1 << 20, np.uint8), count)

    def write(path: Path) -> None:
        with milblob.BlobWriter(path, sync=False) as blobs:
            blobs.write(elements(), "uint4")

    path = made(f"grow-uint4-{count}.bin", write)

    def run() -> Any:
        with milblob.open(path) as model:
            return model["#0"].read()

    return run, lambda got: np.array_equal(got.view(np.uint8), elements())


def statistics(nbytes: int, made: Made, folder: Path) -> Any:
    path = blob(made, nbytes)

    def run() -> Any:
        with milblob.open(path) as model:
            return milblob.statistics(model["#0"])

    return run, lambda got: got.count == nbytes // 2


def content_hash(nbytes: int, made: Made, folder: Path) -> Any:
    path, copy = blob(made, nbytes), blob(made, nbytes, "-copy")
    return lambda: milblob.content_hash(path), lambda got: got == milblob.content_hash(copy)


def diff(nbytes: int, made: Made, folder: Path) -> Any:
    a, b = blob(made, nbytes), blob(made, nbytes, "-copy")
    return lambda: milblob.diff(a, b), lambda got: got.is_same


def write(nbytes: int, made: Made, folder: Path) -> Any:
    array, path = milblob.load(blob(made, nbytes))["#0"], folder / "out"  # mapped, in the page cache

    def run() -> Any:
        with milblob.BlobWriter(path, sync=False) as blobs:
            blobs.write(array)
        return path

    return run, lambda got: got.stat().st_size == 128 + nbytes


def refit(nbytes: int, made: Made, folder: Path) -> Any:
    count = max(2, nbytes // PATCH[0].nbytes)
    tensors = makers.Tensors(count, SHAPE)
    source = made(f"grow-refit-{count}.mlpackage", lambda path: makers.write_package(path, tensors))
    name, new = tensors.name(count // 2), -PATCH[1]
    return lambda: milblob.refit(source, {name: new}), lambda _: np.array_equal(milblob.load(source)[name], new)


def repack(nbytes: int, made: Made, folder: Path) -> Any:
    count = max(2, nbytes // PATCH[0].nbytes)
    tensors = makers.Tensors(count, SHAPE)
    source = made(f"grow-refit-{count}.mlpackage", lambda path: makers.write_package(path, tensors))
    target = folder / "out"

    def run() -> Path:
        milblob.repack(source, target, align=4096)
        return target

    def check(path: Path) -> bool:
        shutil.rmtree(folder / "kept", ignore_errors=True)
        return (path / DATA / "weights" / "weight.bin").stat().st_size > count * PATCH[0].nbytes

    return run, check


GIB = scaled(1 << 30, 100 << 12) // 409600 * 409600
SERIES = {
    series.name: series
    for series in (
        Series("list a weight file", "records", scaled(20_000, 200), list_records),
        Series("load a package", "tensors", scaled(20_000, 200), load_package),
        Series("scan a Program", "bytes of Program", scaled(100_000_000, 200_000), scan),
        Series("parse MIL text", "bytes of text", scaled(5_000_000, 200_000), parse),
        Series("unpack int32 of a TensorValue", "elements", scaled(10_000_000, 100_000), unpack),
        Series("pack int32 into a TensorValue", "elements", scaled(10_000_000, 100_000), pack),
        Series("read uint4", "elements", scaled(64 << 20, 100_000) // 200 * 200, read_uint4),
        Series("statistics of float16", "bytes", GIB, statistics),
        Series("content hash", "bytes", GIB, content_hash),
        Series("diff of equal files", "bytes", GIB, diff),
        Series("write a weight file, no sync", "bytes", GIB, write),
        Series("repack to pages, synced", "bytes", GIB, repack),
        Series("refit 5 MiB in a package, synced", "bytes of the package", GIB, refit),
    )
}


@pytest.mark.parametrize("factor", FACTORS)
@pytest.mark.parametrize("name", SERIES)
def bench_growth(row: Any, made: Made, tmp_path: Path, name: str, factor: int) -> None:
    series = SERIES[name]
    work = series.most * factor // FACTORS[-1]
    run, is_right = series.prepare(work, made, tmp_path)

    def check(result: Any) -> None:
        assert is_right(result)

    output = tmp_path / "out" if series.prepare in (write, repack) else None
    rounds = {write: 5, repack: 5, refit: 10}.get(series.prepare)
    extra = {"growth": {"unit": series.unit, "work": work, "factor": factor}}
    row(name, f"{factor}x", run, check=check, role="milblob", output=output, rounds=rounds, extra=extra)
