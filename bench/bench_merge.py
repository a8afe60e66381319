"""Two equal packages of 186 MB to one package of two functions that share their weights."""

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
JOB = f"merge two transformers of {(24 * LAYERS + 32) * WIDTH * WIDTH / 1e6:.0f} MB"
RIVAL = "coremltools: save_multifunction"
LIMIT = "compare the weights, copy and sync one of them"


def write_source(package: Path) -> None:
    """Convert a transformer of 22 layers for iOS 18: 2,606 operations, 421 weights."""
    makers.write_transformer(package, LAYERS, WIDTH, "iOS18")


@pytest.fixture(scope="module")
def sources(made: Made) -> list[Path]:
    """Two packages of equal weights, each with files of its own."""
    first = made("merge_a.mlpackage", write_source)
    return [first, made("merge_b.mlpackage", lambda path: shutil.copytree(first, path))]


def weights(package: Path) -> Path:
    return package / "Data/com.apple.CoreML/weights/weight.bin"


@pytest.fixture
def target(tmp_path: Path) -> Any:
    """(path of the new package, a function that removes it before each round)."""
    path = tmp_path / "merged.mlpackage"
    yield path, lambda: shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(tmp_path)


def check_of(sources: list[Path], target: Path) -> Callable[[Any], None]:
    """Two functions, every value of which is that of the source, and each weight once."""

    def check(_: Any) -> None:
        with milblob.open(target) as merged, milblob.open(sources[0]) as source:
            assert sorted(merged.functions) == ["one", "two"]
            assert len(merged) == 2 * len(source) > 30 * LAYERS
            for name, tensor in source.items():
                places = set()
                for function in ("one", "two"):
                    found = merged[f"{function}/{name}"]
                    assert np.array_equal(found.read(), tensor.read())
                    places.add(found.offset)
                assert len(places) == 1
        assert weights(target).stat().st_size < 1.01 * weights(sources[0]).stat().st_size

    return check


def bench_milblob(row: Any, sources: list[Path], target: Any) -> None:
    path, remove = target

    def run() -> Any:
        return milblob.merge_functions([(sources[0], "one"), (sources[1], "two")], path)

    check = check_of(sources, path)
    targets = {RIVAL: 1 / 20}
    row(JOB, "milblob: merge_functions", run, check=check, role="milblob", targets=targets, setup=remove, rounds=7)


def bench_limit(row: Any, sources: list[Path], target: Any) -> None:
    """What has to be done at least, by system calls and NumPy: every byte of both compared, one file written."""
    import os

    path, remove = target

    def run() -> bool:
        path.mkdir()
        first, second = (np.memmap(weights(source), np.uint64, "r")[:-1] for source in sources)
        equal = all(
            np.array_equal(first[i : i + (1 << 17)], second[i : i + (1 << 17)]) for i in range(0, len(first), 1 << 17)
        )
        with weights(sources[0]).open("rb") as old, (path / "weight.bin").open("wb") as new:
            done = 0
            while step := os.sendfile(new.fileno(), old.fileno(), done, 1 << 30):
                done += step
            os.fsync(new.fileno())
        return equal

    def check(equal: bool) -> None:
        assert equal
        assert (path / "weight.bin").read_bytes() == weights(sources[0]).read_bytes()

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

    row(JOB, RIVAL, run, check=check_of(sources, path), setup=remove, rounds=2, note="does not sync")
