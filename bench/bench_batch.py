"""200 models of 1.2 MB, each compressed to int8 by `milblob.batch`, with its journal and hashes."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import Made, scaled

COUNT, WIDTH = scaled(200, 4), 144
JOB = f"compress {COUNT} models of 1.2 MB"
ONE, LOOP = "milblob: batch in one process", "milblob.compress in a loop: no journal"
COMPRESS = partial(milblob.compress, recipe="int8")


def write_models(folder: Path) -> None:
    """Convert a transformer of one layer for iOS 18, and copy it."""
    folder.mkdir()
    makers.write_transformer(folder / "m000.mlpackage", 1, WIDTH, "iOS18")
    for number in range(1, COUNT):
        shutil.copytree(folder / "m000.mlpackage", folder / f"m{number:03}.mlpackage")


@pytest.fixture(scope="module")
def source(made: Made) -> Path:
    """The directory of models."""
    return made("batch", write_models)


@pytest.fixture
def target(tmp_path: Path) -> Any:
    """(directory for outputs, a function that removes it before each round)."""
    path = tmp_path / "out"
    yield path, lambda: shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(tmp_path)


def check_of(source: Path, path: Path) -> Callable[[Any], None]:
    """Every model is there, its weights are smaller and close to those of the source."""

    def check(_: Any) -> None:
        made = sorted(path.glob("*.mlpackage"))
        assert [one.name for one in made] == [one.name for one in sorted(source.iterdir())]
        with milblob.open(source / made[0].name) as old:
            for one in (made[0], made[-1]):
                with milblob.open(one) as new:
                    assert sum(t.nbytes for t in new.values()) < 0.6 * sum(t.nbytes for t in old.values())
                    for name, tensor in old.items():
                        values = tensor.read().astype(np.float64)
                        assert np.abs(new[name].read() - values).max() <= np.abs(values).max() / 100

    return check


def batch(source: Path, path: Path, jobs: int) -> milblob.BatchReport:
    return milblob.batch(COMPRESS, source, recursive=True, into=path, jobs=jobs)


def bench_two(row: Any, source: Path, target: Any) -> None:
    path, remove = target
    run = partial(batch, source, path, 2)
    more: dict[str, Any] = {"role": "milblob", "targets": {ONE: 1 / 1.7}, "setup": remove, "rounds": 3}
    row(JOB, "milblob: batch in two processes", run, check=check_of(source, path), **more)


def bench_one(row: Any, source: Path, target: Any) -> None:
    path, remove = target
    more: dict[str, Any] = {"role": "milblob", "setup": remove, "rounds": 3}
    row(JOB, ONE, partial(batch, source, path, 1), check=check_of(source, path), **more)


def bench_loop(row: Any, source: Path, target: Any) -> None:
    path, remove = target

    def run() -> None:
        path.mkdir()
        for one in sorted(source.iterdir()):
            COMPRESS(one, path / one.name)

    row(JOB, LOOP, run, check=check_of(source, path), role="milblob", setup=remove, rounds=3)
