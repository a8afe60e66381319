"""A bundle of Core AI of 1 GiB: listed and loaded as views, beside Apple's own library where it is installed.

Apple's library is asked in a process of its own ($MILBLOB_COREAI_PYTHON, which `make aimodel-oracle` installs): its time
includes neither the start of Python nor the import.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import milblob
from conftest import Made, needs, scaled

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))
import mlir_bytes as m

COUNT, SHAPE = scaled(32, 2), (4096, 2048)
NBYTES = 4 * SHAPE[0] * SHAPE[1]
JOB, LOAD = f"list a bundle of {COUNT} weights, 32 MiB each", f"load a bundle of {COUNT} weights, 32 MiB each, as views"
PYTHON = os.environ.get("MILBLOB_COREAI_PYTHON", "")


def write_bundle(path: Path) -> None:
    """Write a bundle whose weights are zeros: a sparse file."""
    path.mkdir()
    keys = [f"resource_{number}".encode() for number in range(COUNT)]
    kind = m.varint(2) + m.varint(2) + m.varint(SHAPE[0] << 1) + m.varint(SHAPE[1] << 1) + m.varint(1)
    attributes = [*m.ATTRIBUTES, *(m.varint(7) + m.varint(number) for number in range(COUNT))]
    properties = [m.PROPERTIES[0], *(m.varint(len(m.ATTRIBUTES) + number) for number in range(COUNT))]
    ops = [m.op(m.CONSTANT, properties=1 + number, results=(0,)) for number in range(COUNT)]
    ops.append(m.op(m.OUTPUT, operands=(1,)))
    ir = m.graph_ops(inner=m.region(COUNT + 1, m.block(*ops, arguments=(0,))))
    head = m.varint(16) + m.varint(NBYTES)
    head += b"\xcb" * (-len(head) % 16)
    sizes = b"".join(m.varint(len(m.TEXTS) + n) + m.varint(len(head) + NBYTES) + b"\0" for n in range(COUNT))
    start = m.file(
        ir=ir, texts=(*m.TEXTS, *keys), attributes=attributes, types=(kind, *m.TYPES[1:]), properties=properties,
        parts={6: m.varint(0) + m.varint(0) + m.varint(COUNT) + sizes},
    )  # fmt: skip
    whole = bytes([5 | 0x80]) + m.varint(COUNT * (len(head) + NBYTES)) + m.varint(16)
    whole += b"\xcb" * (-(len(start) + len(whole)) % 16)
    (path / "metadata.json").write_text('{"assetVersion": "2.0"}', "utf-8")
    with (path / "main.mlirb").open("wb") as file:
        file.write(start + whole)
        for _ in range(COUNT):
            file.write(head)
            file.seek(NBYTES, os.SEEK_CUR)
        file.truncate()


@pytest.fixture(scope="module")
def bundle(made: Made) -> Path:
    """A bundle of 1 GiB."""
    return made("large.aimodel", write_bundle)


def bench_list(row: Any, bundle: Path) -> None:
    def run() -> Any:
        with milblob.open(bundle) as asset:
            return [(name, tensor.dtype_text, tensor.shape) for name, tensor in asset.items()]

    def check(result: Any) -> None:
        assert len(result) == COUNT and {line[1:] for line in result} == {("f32", SHAPE)}

    row(JOB, "milblob: open(path).items()", run, check=check, role="milblob", limit_ms=5, limit_nbytes=20_000_000)


def bench_load(row: Any, bundle: Path) -> None:
    def check(result: Any) -> None:
        assert len(result) == COUNT and all(array.shape == SHAPE for array in result.values())

    row(LOAD, "milblob: load(path)", lambda: milblob.load(bundle), check=check, role="milblob")


ASK = """
import sys, time
from coreai.authoring.asset import AIModelAsset
for line in sys.stdin:
    start = time.perf_counter()
    AIModelAsset.load(sys.argv[1]).summary()
    print(time.perf_counter() - start, flush=True)
"""


def bench_apple(row: Any, bundle: Path) -> None:
    """Time `summary()`: `program` refuses bytecode without the debug locations that Apple's own writer makes."""
    if not PYTHON:
        needs("coreai")
    child = subprocess.Popen(
        [PYTHON or sys.executable, "-c", ASK, str(bundle)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    if child.stdin is None or child.stdout is None:
        raise RuntimeError("the process of Apple's library: expected pipes to it, got none")

    def run() -> float:
        child.stdin.write("\n")  # type: ignore[union-attr]
        child.stdin.flush()  # type: ignore[union-attr]
        return float(child.stdout.readline())  # type: ignore[union-attr]

    def check(result: float) -> None:
        assert result > 0

    row(JOB, "coreai-core: asset.summary()", run, check=check, role="rival", rounds=3, memory=False)
    child.stdin.close()
    child.wait(60)
