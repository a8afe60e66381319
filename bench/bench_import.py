"""What `import milblob` costs in a process that has NumPy and ml_dtypes already, beside what other readers cost.

Each sample is a fresh process that times its own import. The rows take turns, so that a slow minute hits all of them;
the samples are then handed to pytest-benchmark through a clock that they move.
"""

from collections.abc import Callable, Iterator
from typing import Any

import measure
import pytest

JOB = "import, over numpy and ml_dtypes"
BASE = "numpy, ml_dtypes"
ROUNDS = 25
MODULES = {
    BASE: "numpy, ml_dtypes",
    "milblob": "milblob",
    "safetensors.numpy": "safetensors.numpy",
    "h5py": "h5py",
    "gguf": "gguf",
    "coremltools": "coremltools",
}

_TIME = """
import json, sys, time
if sys.argv[2]:
    exec("import " + sys.argv[2])
start = time.perf_counter()
exec("import " + sys.argv[1])
seconds = time.perf_counter() - start
print()
print(json.dumps(seconds))
"""


class Clock:
    """A clock that only the samples move: pytest-benchmark reads it instead of the time.

    Args:
        samples: seconds, one for each call of `tick`.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self.samples: Iterator[float] = iter(())

    def __call__(self) -> float:
        return self.now

    def tick(self) -> None:
        """Let the next sample pass."""
        self.now += next(self.samples)


CLOCK = Clock()


@pytest.fixture(scope="module")
def samples() -> dict[str, list[float]]:
    """Seconds per import, for each row, the rows taking turns. The first turn fills the caches and is not counted."""
    found: dict[str, list[float]] = {name: [] for name in MODULES}
    for number in range(ROUNDS + 1):
        for name, modules in MODULES.items():
            if name == "coremltools" and number > 5:
                continue  # seconds each
            seconds = measure.run_python(_TIME, modules, "" if name == BASE else BASE)
            if number > 0:
                found[name].append(seconds)
    return found


def breakdown() -> dict[str, float]:
    """What `python -X importtime` says of milblob: milliseconds of its own for each module, dearest first."""
    code = """
import json, os
import numpy, ml_dtypes
reader, writer = os.pipe()
kept = os.dup(2)
os.dup2(writer, 2)
import milblob
os.dup2(kept, 2)
os.close(writer)
print(json.dumps(os.read(reader, 65536).decode()))
"""
    lines = measure.run_python(code, options=("-X", "importtime")).splitlines()
    rows = [line.removeprefix("import time:").split("|") for line in lines if "|" in line]
    times = {name.strip(): int(own) / 1000 for own, _, name in rows}
    return dict(sorted(times.items(), key=lambda item: -item[1])[:15])


@pytest.mark.benchmark(timer=CLOCK)
@pytest.mark.parametrize("name", MODULES)
def bench_import(row: Any, samples: dict[str, list[float]], name: str) -> None:
    times = samples[name]
    CLOCK.samples = iter([0.0, *times])  # the first call is the one that row checks
    options: dict[str, Any] = {}
    if name == BASE:
        options = {"role": "limit", "note": "in a bare interpreter"}
    if name == "milblob":
        spent = breakdown()
        note = ", ".join(f"{module} {ms:.1f}" for module, ms in list(spent.items())[:5])
        options = {"role": "milblob", "limit_ms": 15.0, "note": f"ms of their own: {note}"}
        options["extra"] = {"importtime_ms": spent}

    def check(_: Callable[[], None]) -> None:
        assert len(times) >= 5

    row(JOB, f"import {name}", CLOCK.tick, check=check, rounds=len(times), **options)
