"""An HTML report of 3,000 weights, 640 MB of float16, beside `milblob stats`, which reads the same values; as commands.

Both start Python, import milblob and write what people look at: the one a file of HTML, the other a table.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import makers
import pytest

from conftest import Made, needs, scaled

COUNT = scaled(3000, 10)
TENSORS = makers.Tensors(COUNT, (320, 333))
JOB = f"HTML report of {COUNT:,} weights of float16, {TENSORS.nbytes / 1e6:.0f} MB"
STATS = "milblob stats"


@pytest.fixture(scope="module")
def package(made: Made) -> Path:
    return made("report.mlpackage", lambda path: makers.write_package(path, TENSORS))


def command(*argv: object) -> str:
    """What a command prints on stdout."""
    done = subprocess.run(
        [sys.executable, "-m", "milblob", *map(str, argv)], check=True, capture_output=True, text=True
    )
    return done.stdout


def bench_stats(row: Any, package: Path) -> None:
    def check(printed: str) -> None:
        assert printed.count("float16") >= COUNT

    row(JOB, STATS, lambda: command("stats", package), check=check, role="limit", nbytes=TENSORS.nbytes, rounds=3)


def bench_report(row: Any, package: Path) -> None:
    needs("mpld3")
    output = package.with_name("report.html")

    def check(_: str) -> None:
        assert COUNT * 200 < output.stat().st_size < 6_000_000

    run = lambda: command("report", package, "-o", output, "--force", "-q")  # noqa: E731
    options: dict[str, Any] = {"targets": {STATS: 1.2}, "nbytes": TENSORS.nbytes, "rounds": 3}
    row(JOB, "milblob report", run, check=check, role="milblob", **options)


def bench_without_values(row: Any, package: Path) -> None:
    needs("mpld3")
    output = package.with_name("program.html")

    def check(_: str) -> None:
        assert output.stat().st_size < 6_000_000

    run = lambda: command("report", package, "-o", output, "--force", "-q", "--no-values")  # noqa: E731
    row(JOB, "milblob report --no-values", run, check=check, role="aside", rounds=3)
