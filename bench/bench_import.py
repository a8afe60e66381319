"""What `import milblob` costs in a process that has NumPy and ml_dtypes already, beside what other readers cost.

Each sample is a fresh process that times its own import, with bytecode in place; it is handed to pytest-benchmark through
a clock that it moves.
"""

import functools
import importlib.util
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
    """A clock that only the samples move: pytest-benchmark reads it instead of the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


def sample(name: str) -> float:
    """Let as much time pass as an import took in a fresh process; return it, in seconds."""
    seconds = float(measure.run_python(_TIME, MODULES[name], "" if name == BASE else BASE))
    CLOCK.now += seconds
    return seconds


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
def bench_import(row: Any, name: str) -> None:
    options: dict[str, Any] = {"rounds": 3 if name == "coremltools" else ROUNDS, "setup": lambda: None}
    if importlib.util.find_spec(name.partition(".")[0].partition(",")[0]) is None:
        pytest.skip(f"{name} is not installed")
    if name == BASE:
        options |= {"role": "aside", "note": "in a bare interpreter"}
    if name == "milblob":
        options |= {"role": "milblob", "limit_ms": 15.0, "facts": facts}

    def check(seconds: float) -> None:
        assert seconds > 0

    row(JOB, f"import {name}", lambda: sample(name), check=check, memory=False, **options)


@functools.cache
def facts() -> dict[str, str]:
    """Where milblob's time goes."""
    return {"note": "ms of their own: " + ", ".join(f"{name} {ms:.1f}" for name, ms in list(breakdown().items())[:5])}
