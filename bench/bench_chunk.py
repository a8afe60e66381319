"""A package of 277 MB cut into two that run one after another, and joined again."""

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

LAYERS, WIDTH = scaled(22, 2), 704
MEGABYTES = (24 * LAYERS + 32) * WIDTH * WIDTH / 1e6
JOB = f"cut a transformer of {MEGABYTES:.0f} MB in two"
JOIN_JOB = f"join two packages of {MEGABYTES:.0f} MB"
RIVAL = "coremltools: bisect_model"
COPY = "copy and sync the weight file"


@pytest.fixture(scope="module")
def source(made: Made) -> Path:
    """A transformer of 22 layers for iOS 16: about 2,600 operations, 421 weights."""
    return made("chunk.mlpackage", lambda path: makers.write_transformer(path, LAYERS, WIDTH))


def weights(package: Path) -> Path:
    return package / "Data/com.apple.CoreML/weights/weight.bin"


@pytest.fixture
def target(tmp_path: Path) -> Any:
    """(path of what is written, a function that removes it before each round)."""
    path = tmp_path / "made"
    yield path, lambda: shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(tmp_path)


def check_of(source: Path, target: Path) -> Callable[[Any], None]:
    """Two packages that together have every weight of the model, with its values."""

    def check(_: Any) -> None:
        packages = sorted(target.glob("*chunk?.mlpackage"))
        assert len(packages) == 2
        found: dict[str, Any] = {}
        for package in packages:
            found |= {name: array.copy() for name, array in milblob.load(package).items()}
        whole = milblob.load(source)
        values = sorted(array.tobytes() for array in whole.values() if array.nbytes > 1000)
        assert values == sorted(array.tobytes() for array in found.values() if array.nbytes > 1000)
        assert not np.isnan(next(iter(found.values()))).any()

    return check


def bench_milblob(row: Any, source: Path, target: Any) -> None:
    path, remove = target
    run = lambda: milblob.chunk(source, path, parts=2)  # noqa: E731
    targets = {RIVAL: 1 / 20, COPY: 1.2}
    check = check_of(source, path)
    row(JOB, "milblob: chunk", run, check=check, role="milblob", targets=targets, setup=remove, rounds=7)


def copy(old: Path, new: Path) -> None:
    """Copy a file by the system call that copies without passing bytes through memory, and sync it."""
    with old.open("rb") as source, new.open("wb") as target:
        done = 0
        while step := os.sendfile(target.fileno(), source.fileno(), done, 1 << 30):
            done += step
        os.fsync(target.fileno())


def bench_limit(row: Any, source: Path, target: Any) -> None:
    path, remove = target

    def run() -> None:
        path.mkdir()
        copy(weights(source), path / "weight.bin")

    def check(_: Any) -> None:
        assert (path / "weight.bin").read_bytes() == weights(source).read_bytes()

    row(JOB, COPY, run, check=check, role="limit", setup=remove, rounds=7)


def bench_coremltools(row: Any, source: Path, target: Any) -> None:
    import coremltools as ct

    path, remove = target
    run = lambda: ct.models.utils.bisect_model(str(source), str(path), check_output_correctness=False)  # noqa: E731
    row(JOB, RIVAL, run, check=check_of(source, path), setup=remove, rounds=2, note="does not sync")


def bench_join(row: Any, source: Path, target: Any, tmp_path: Path) -> None:
    path, remove = target
    chunks = [chunk.path for chunk in milblob.chunk(source, tmp_path / "parts", parts=2).chunks]
    whole = path.with_suffix(".mlpackage")

    def run() -> Any:
        return milblob.join(chunks, whole)

    def setup() -> None:
        remove()
        shutil.rmtree(whole, ignore_errors=True)

    def check(_: Any) -> None:
        assert milblob.content_hash(whole).model == milblob.content_hash(source).model

    row(JOIN_JOB, "milblob: join", run, check=check, role="milblob", targets={COPY: 1.2}, setup=setup, rounds=7)


def bench_join_limit(row: Any, source: Path, target: Any) -> None:
    path, remove = target

    def run() -> None:
        path.mkdir()
        copy(weights(source), path / "weight.bin")

    def check(_: Any) -> None:
        assert (path / "weight.bin").stat().st_size == weights(source).stat().st_size

    row(JOIN_JOB, COPY, run, check=check, role="limit", setup=remove, rounds=7)
