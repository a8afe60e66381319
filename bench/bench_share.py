"""A dense transformer and its int8 form to one package of two functions, in which each weight is stored once."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import Made, scaled

LAYERS, WIDTH = scaled(22, 2), 576
JOB = f"share the weights of a transformer in int8 and its dense copy of {(24 * LAYERS + 32) * WIDTH * WIDTH / 1e6:.0f} MB"
PLAN = JOB.replace("share", "find", 1) + ", without writing"
READ = "milblob: read every weight, and sum it"
RIVAL = "coremltools: save_multifunction"
LIMIT = "read both weight files, copy and sync the smaller one"


def write_small(package: Path) -> None:
    """Convert a transformer for iOS 18 and store its weights as int8."""
    whole = package.with_name("share_whole.mlpackage")
    makers.write_transformer(whole, LAYERS, WIDTH, "iOS18")
    milblob.compress(whole, package, "int8")
    shutil.rmtree(whole)


@pytest.fixture(scope="module")
def sources(made: Made) -> list[Path]:
    """The int8 model, and the model with the same values dense, with files of its own."""
    small = made("share_small.mlpackage", write_small)
    return [made("share_dense.mlpackage", lambda path: milblob.repack(small, path, decompress=True)), small]


def weights(package: Path) -> Path:
    return package / "Data/com.apple.CoreML/weights/weight.bin"


@pytest.fixture
def target(tmp_path: Path) -> Any:
    """(path of the new package, a function that removes it before each round)."""
    path = tmp_path / "shared.mlpackage"
    yield path, lambda: shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(tmp_path)


def check_of(sources: list[Path], target: Path, is_shared: bool) -> Callable[[Any], None]:
    """Two functions with every value of the sources; nearly as small as the int8 model if the forms are shared."""

    def check(_: Any) -> None:
        with milblob.open(target) as merged, milblob.open(sources[0]) as source:
            assert sorted(merged.functions) == ["one", "two"]
            for name, tensor in source.items():
                assert np.array_equal(merged[f"one/{name}"].read(), tensor.read())
        assert (weights(target).stat().st_size < 1.01 * weights(sources[1]).stat().st_size) == is_shared

    return check


def bench_milblob(row: Any, sources: list[Path], target: Any) -> None:
    path, remove = target

    def run() -> Any:
        return milblob.merge_functions([(sources[0], "one"), (sources[1], "two")], path, dedupe="values")

    targets = {RIVAL: 1 / 5}
    check = check_of(sources, path, True)
    row(JOB, "milblob: dedupe='values'", run, check=check, role="milblob", targets=targets, setup=remove, rounds=7)


def bench_plan(row: Any, sources: list[Path], target: Any) -> None:
    """Finding the weights: each is sampled, decoded and compared once; nothing is written."""
    path, _ = target

    def run() -> Any:
        return milblob.merge_functions([(sources[0], "one"), (sources[1], "two")], path, dedupe="values", dry_run=True)

    def check(report: Any) -> None:
        assert len(report.shared) > 5 * LAYERS and not path.exists()

    row(PLAN, "milblob: dry run", run, check=check, role="milblob", targets={READ: 2}, rounds=7)


def bench_read(row: Any, sources: list[Path]) -> None:
    """Every value decoded and read once."""

    def run() -> int:
        total = 0
        for source in sources:
            with milblob.open(source) as model:
                for tensor in model.values():
                    data = tensor.read().reshape(-1).view(np.uint8)
                    total += int(data[: data.size // 8 * 8].view(np.uint64).sum())
        return total

    def check(total: int) -> None:
        assert total > 0

    row(PLAN, READ, run, check=check, role="aside", rounds=7)


def bench_limit(row: Any, sources: list[Path], target: Any) -> None:
    """What has to be done at least, by system calls: every byte of both read, one file written."""
    path, remove = target
    buffer = bytearray(1 << 20)

    def run() -> int:
        path.mkdir()
        total = 0
        for source in sources:
            with weights(source).open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    total += count
        with weights(sources[1]).open("rb") as old, (path / "weight.bin").open("wb") as new:
            done = 0
            while count := os.sendfile(new.fileno(), old.fileno(), done, 1 << 30):
                done += count
            os.fsync(new.fileno())
        return total

    def check(total: int) -> None:
        assert total == sum(weights(source).stat().st_size for source in sources)
        assert (path / "weight.bin").read_bytes() == weights(sources[1]).read_bytes()

    row(JOB, LIMIT, run, check=check, role="limit", setup=remove, rounds=7)


def bench_coremltools(row: Any, sources: list[Path], target: Any) -> None:
    import coremltools as ct

    path, remove = target

    def run() -> None:
        descriptor = ct.utils.MultiFunctionDescriptor()
        for source, name in zip(sources, ("one", "two"), strict=True):
            descriptor.add_function(str(source), "main", name)
        descriptor.default_function_name = "one"
        ct.utils.save_multifunction(descriptor, str(path))

    note = "shares nothing of these: its file has both forms; does not sync"
    row(JOB, RIVAL, run, check=check_of(sources, path, False), setup=remove, rounds=2, note=note)
