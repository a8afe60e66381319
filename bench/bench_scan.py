"""A Program of 100 MB, 600,000 operations: every tensor of the weight file by name, dtype, shape and place.

milblob reads the file in one pass and makes its table; the rival is coremltools' own protobuf classes and the loop that
one writes over the message. What the values are is not asked.
"""

import tracemalloc
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest
from cwalk import CWalk

import milblob
from conftest import Made, scaled

NBYTES = scaled(100_000_000, 200_000)
JOB = f"scan a Program of {NBYTES / 1e6:.3g} MB"
WALK = "C walk"
RIVAL = "protobuf: FromString and a loop"
FOLDER = Path("Data", "com.apple.CoreML")
Listed = list[tuple[str, str, tuple[int, ...], int]]


@pytest.fixture(scope="module")
def package(made: Made) -> Path:
    return made("scan.mlpackage", lambda path: makers.write_program(path, NBYTES))


def protobuf_parse(package: Path) -> Any:
    """The message, and nothing made of it."""
    from coremltools import proto

    return proto.Model_pb2.Model.FromString((package / FOLDER / "model.mlmodel").read_bytes())


def protobuf_list(package: Path) -> Listed:
    """What one writes without milblob."""
    found = []
    for function in protobuf_parse(package).mlProgram.functions.values():
        for block in function.block_specializations.values():
            for op in block.operations:
                if op.type == "const" and op.attributes["val"].WhichOneof("value") == "blobFileValue":
                    value = op.attributes["val"]
                    tensor = value.type.tensorType
                    shape = tuple(d.constant.size for d in tensor.dimensions)
                    dtype = {10: "float16"}[tensor.dataType]
                    found.append((op.outputs[0].name, dtype, shape, value.blobFileValue.offset))
    return found


def milblob_list(package: Path) -> Listed:
    """The same list."""
    with milblob.open(package) as model:
        return [(name, t.mil_dtype.name.lower(), t.shape, t.offset) for name, t in model.items()]


@pytest.fixture(scope="module")
def expected(package: Path) -> Listed:
    return protobuf_list(package)


def bench_walk(row: Any, package: Path, expected: Listed, cwalk: CWalk) -> None:
    model, weights = package / FOLDER / "model.mlmodel", package / FOLDER / "weights" / "weight.bin"

    def check(got: Any) -> None:
        assert got[0] == len(expected) and got[1] == 4 * len(expected)

    run = lambda: cwalk.program(str(model), str(weights))  # noqa: E731
    row(JOB, WALK, run, check=check, role="limit", nbytes=NBYTES, note="makes no names and no list")


def bench_list(row: Any, package: Path, expected: Listed) -> None:
    def check(got: Listed) -> None:
        assert got == expected

    row(JOB, "milblob: open and list", lambda: milblob_list(package), check=check, role="milblob", nbytes=NBYTES)


def bench_names(row: Any, package: Path, expected: Listed) -> None:
    names = [name for name, _, _, _ in expected]

    def run() -> list[str]:
        with milblob.open(package) as model:
            return list(model)

    def check(got: list[str]) -> None:
        assert got == names

    row(JOB, "milblob: open and names", run, check=check, role="milblob", nbytes=NBYTES, targets={WALK: 4})


def bench_memory(row: Any, package: Path, expected: Listed) -> None:
    """What an open model holds of tensors that nobody has asked for: its table, and what Python has allocated."""
    held: dict[str, Any] = {}

    def run() -> int:
        tracemalloc.start()
        with milblob.open(package) as model:
            count, (objects, _) = len(model), tracemalloc.get_traced_memory()
            scan = model.parts[0].scan
            table = scan.table.nbytes + scan.names().nbytes
        tracemalloc.stop()
        held.update(
            note=f"{(table + objects) / count:.0f} bytes for each weight", bytes_per_weight=(table + objects) / count
        )
        return count

    def check(count: int) -> None:
        assert count == len(expected)

    name = "milblob: open, memory traced"
    row(JOB, name, run, check=check, role="aside", nbytes=NBYTES, facts=lambda: held, memory=False, rounds=3)


def bench_one(row: Any, package: Path, expected: Listed) -> None:
    name = expected[len(expected) // 2][0]

    def run() -> Any:
        with milblob.open(package) as model:
            return model[name].read()

    def check(got: np.ndarray[Any, Any]) -> None:
        assert np.array_equal(got, makers.Tensors(1, (512, 512))[0])

    row(JOB, "milblob: open, one tensor by name", run, check=check, role="milblob", nbytes=NBYTES)


def bench_protobuf(row: Any, package: Path, expected: Listed) -> None:
    def check(got: Listed) -> None:
        assert got == expected

    row(JOB, RIVAL, lambda: protobuf_list(package), check=check, nbytes=NBYTES)


def bench_protobuf_parse(row: Any, package: Path) -> None:
    def check(got: Any) -> None:
        assert got.WhichOneof("Type") == "mlProgram"

    name, run = "protobuf: FromString", lambda: protobuf_parse(package)
    row(JOB, name, run, check=check, role="aside", nbytes=NBYTES, note="the message only")


def bench_pass(row: Any, package: Path, cwalk: CWalk) -> None:
    data = (package / FOLDER / "model.mlmodel").read_bytes()
    array = np.frombuffer(data, np.uint8)

    def check(got: int) -> None:
        assert got == int(np.frombuffer(data, np.uint64, len(data) // 8).sum())

    name, run = "C: one summing pass in memory", lambda: cwalk.sum(array)
    row(JOB, name, run, check=check, role="aside", nbytes=NBYTES, note="every byte of the Program, not opened")
