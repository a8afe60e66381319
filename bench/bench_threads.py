"""What threads gain, and what they cost when the other cores are busy.

Each job runs in one thread and in as many as milblob takes by itself, on a machine that is left alone and beside a busy
process on every core but one. There, a second thread gets a part of a core or none, and no more than 3% may be lost by
it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import CORES, Made, scaled, where_of
from milblob.hashing import hash_bytes

ROWS, COLUMNS = scaled(5856, 8), 8192
SHAPE = (ROWS, COLUMNS)
ONE, AUTO = "one thread", "milblob"
RECIPES: dict[str, Any] = {
    "int8, blocks of 32": milblob.Linear(8, block=32),
    "int4, blocks of 32": milblob.Linear(4, block=32),
    "4-bit palette": milblob.Palette(4),
    "6-bit palette": milblob.Palette(6),
    "50% sparse": milblob.Prune(sparsity=0.5),
}


@pytest.fixture(scope="module")
def dense(made: Made) -> Path:
    """One weight of float16 in a package."""
    tensors = makers.Tensors(1, SHAPE)
    return made("threads.mlpackage", lambda path: makers.WRITERS["mlpackage"](path, tensors))


def decoding(made: Made, dense: Path, scheme: str) -> Callable[[], Any]:
    """Return what reads the weight into an array that is there."""
    name = f"threads-{''.join(c if c.isalnum() else '-' for c in scheme)}.mlpackage"
    path = made(name, lambda path: milblob.compress(dense, path, RECIPES[scheme]))
    tensor = next(tensor for tensor in milblob.open(path).values() if tensor.shape == SHAPE)
    out = np.zeros(SHAPE, np.float16)
    return lambda: tensor.read(out=out)


def job_of(name: str, made: Made, dense: Path) -> Callable[[], Any]:
    """Return what is timed."""
    if name in RECIPES:
        return decoding(made, dense, name)
    if name == "load":
        path = made("threads-int8--blocks-of-32.mlpackage", lambda path: milblob.compress(dense, path, "int8"))
        return lambda: milblob.load(path)
    if name == "statistics":
        return lambda: milblob.statistics(dense)
    data = np.random.default_rng(6).integers(0, 256, 2 * ROWS * COLUMNS, np.uint8)
    return lambda: hash_bytes(data)


JOBS = [*RECIPES, "load", "statistics", "hash"]


def values(result: Any) -> Any:
    """A result as lists of bytes and words, to compare and to keep while its memory is filled again."""
    arrays = {"": result} if isinstance(result, np.ndarray) else result
    if isinstance(arrays, dict):
        return {name: got.tobytes() if isinstance(got, np.ndarray) else repr(got) for name, got in arrays.items()}
    return repr(result)


@pytest.fixture(scope="module", params=JOBS)
def job(request: Any, made: Made, dense: Path) -> tuple[str, Callable[[], Any], Any]:
    """Its name, what is timed, and the values that one thread gives."""
    run = job_of(request.param, made, dense)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MILBLOB_THREADS", "1")
        return request.param, run, values(run())


@pytest.mark.skipif(len(CORES) < 2, reason="one core only")
@pytest.mark.parametrize("name", [ONE, AUTO])
def bench_threads(row: Any, job: Any, beside: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    title, run, expected = job
    monkeypatch.setenv("MILBLOB_THREADS", "1" if name == ONE else "0")

    def check(result: Any) -> None:
        assert values(result) == expected

    role, targets = ("milblob", {ONE: 1.03}) if name == AUTO else ("aside", {})
    title = f"threads: {title} of {ROWS * COLUMNS / 1e6:.0f}M float16{where_of(beside)}"
    row(title, name, run, check=check, role=role, targets=targets, memory=False)
