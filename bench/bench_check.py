"""A transformer of 3,000 operations: everything that `check` knows of it, values left out.

The rival is what else finds mistakes in a Program off a Mac: coremltools' loader, which stops at the first.
"""

from pathlib import Path
from typing import Any

import makers
import pytest

import milblob
from conftest import Made, scaled

LAYERS = scaled(26, 1)
JOB = "check a package of 3,000 operations, without values"


@pytest.fixture(scope="module")
def package(made: Made) -> Path:
    return made("check.mlpackage", lambda path: makers.write_transformer(path, LAYERS, 32))


def is_sound(found: Any) -> None:
    assert [finding for finding in found if finding.severity != "note"] == []


def bench_check(row: Any, package: Path) -> None:
    run = lambda: milblob.check(package)  # noqa: E731
    row(JOB, "milblob", run, check=is_sound, role="milblob", limit_ms=100)


def bench_files(row: Any, package: Path) -> None:
    run = lambda: milblob.check(package, ignore="MIL*")  # noqa: E731
    row(JOB, "milblob: no rule of the specification", run, check=is_sound, role="aside")


def bench_loader(row: Any, package: Path) -> None:
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load

    def run() -> Any:
        spec = ct.utils.load_spec(str(package))
        return load(spec, spec.specificationVersion, str(package / "Data" / "com.apple.CoreML" / "weights"))

    def check(program: Any) -> None:
        assert program.functions

    row(JOB, "coremltools: PyMIL load", run, check=check, role="rival", rounds=1)
