"""What every job shares: scale, data made once, the C limits, and `row`, which checks a result and then times it."""

import gc
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import pytest
from cwalk import CWalk

os.environ.setdefault("TQDM_DISABLE", "1")  # coremltools' progress bars

SCALE = float(os.environ.get("MILBLOB_BENCH_SCALE", "1"))
"""Share of the full size at which the jobs run. Targets are meant for 1."""

SECONDS_PER_ROW = 1.5
MIN_ROUNDS, MAX_ROUNDS = 5, 300


def scaled(count: int, least: int = 1) -> int:
    """Return a size at the scale of this run."""
    return max(least, round(count * SCALE))


Made = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def made() -> Made:
    """Return made(name, write) -> path: a file or package that is written once and kept for the next run.

    Kept in $MILBLOB_BENCH_DATA, else a folder of the system's temporary directory; one sub-folder for each scale and
    version of makers.py.
    """
    root = os.environ.get("MILBLOB_BENCH_DATA") or Path(tempfile.gettempdir()) / f"milblob-bench-{os.getuid()}"
    version = hashlib.sha256(Path(makers.__file__).read_bytes()).hexdigest()[:8]
    folder = Path(root) / f"{SCALE:g}-{version}"
    folder.mkdir(parents=True, exist_ok=True)

    def make(name: str, write: Callable[[Path], None]) -> Path:
        path, unfinished = folder / name, folder / f"unfinished-{name}"
        if not path.exists():
            if unfinished.is_dir():
                shutil.rmtree(unfinished)
            unfinished.unlink(missing_ok=True)
            write(unfinished)
            unfinished.rename(path)
        return path

    return make


@pytest.fixture(scope="session")
def cwalk(tmp_path_factory: pytest.TempPathFactory) -> CWalk:
    """The bare C walks, compiled for this run."""
    return CWalk(tmp_path_factory.mktemp("cwalk"))


@pytest.fixture(scope="session")
def transformer(made: Made) -> Path:
    """A package that coremltools converted: at full scale 2,841 operations, 459 weights, 640 MB."""
    layers, width = scaled(24, 2), max(64, round(1024 * min(1.0, SCALE**0.5)) // 64 * 64)
    return made("transformer.mlpackage", lambda path: makers.write_transformer(path, layers, width))


@pytest.fixture
def row(benchmark: Any) -> Callable[..., Any]:
    """Return the function that measures one row of a job. See `_measure`."""

    def measure(job: str, name: str, run: Callable[[], Any], **options: Any) -> None:
        _measure(benchmark, job, name, run, **options)

    return measure


def _measure(
    benchmark: Any,
    job: str,
    name: str,
    run: Callable[[], Any],
    *,
    check: Callable[[Any], None],
    role: str = "rival",
    targets: dict[str, float] | None = None,
    limit_ms: float | None = None,
    share: float = 1.0,
    nbytes: int = 0,
    setup: Callable[[], None] | None = None,
    rounds: int | None = None,
    note: str = "",
    extra: dict[str, Any] | None = None,
) -> None:
    """Check what a row gives, then time it.

    Args:
        benchmark: fixture of pytest-benchmark.
        job, name: what is measured, by whom. Rows of one job are compared with each other.
        run: the work. Called once more than it is timed.
        check: raises AssertionError unless the result is right; not timed.
        role: "milblob", "rival", or "limit" for what cannot be beaten.
        targets: name of another row of this job -> how many times its median this one may take.
        limit_ms: what this row may take, in milliseconds.
        share: part of the work that was done; the table divides by it.
        nbytes: bytes of input, where a speed is wanted.
        setup: called before each round, not timed.
        rounds: how often, without a warm-up; default: what fits in SECONDS_PER_ROW.
        note: for the table.
        extra: more facts for extra_info.
    """
    if setup is not None:
        setup()
    start = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - start
    check(result)
    del result
    gc.collect()
    iterations, warmup = 1, 0
    if rounds is None:
        rounds = min(MAX_ROUNDS, max(MIN_ROUNDS, int(SECONDS_PER_ROW / seconds)))
        iterations = 1 if setup is not None else max(1, min(1000, int(50e-6 / seconds)))
        warmup = 1 if seconds < 0.2 else 0
    benchmark.group = job
    benchmark.name = f"{job}: {name}"
    benchmark.extra_info.update(job=job, row=name, role=role, checked=True, note=note, scale=SCALE)
    benchmark.extra_info.update(targets=targets or {}, limit_ms=limit_ms, share=share, nbytes=nbytes)
    benchmark.pedantic(run, setup=setup, rounds=rounds, iterations=iterations, warmup_rounds=warmup)
    benchmark.extra_info.update(extra or {})
