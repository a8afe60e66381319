"""A transformer of 3,000 operations: each with its type, its outputs and the names that it reads.

milblob makes its table of the Program and lists it; the rival parses the same bytes by protobuf, by milblob's own classes
and by coremltools', and walks over the message.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import makers
import pytest

import milblob
from conftest import Made, scaled
from milblob import _codec
from milblob.program import schema
from milblob.program.scan import ProgramScan
from milblob.program.view import ProgramView

LAYERS = scaled(26, 1)
JOB = "list all operations of a Program of 3,000 with what they read"
Listed = list[tuple[str, tuple[str, ...], dict[str, tuple[str | None, ...]]]]


@pytest.fixture(scope="module")
def package(made: Made) -> Path:
    return made("view.mlpackage", lambda path: makers.write_transformer(path, LAYERS, 32))


def walk(message: Any) -> Listed:
    """What one writes without milblob."""
    found = []
    for function in message.mlProgram.functions.values():
        for block in function.block_specializations.values():
            for op in block.operations:
                inputs = {
                    key: tuple(b.name if b.WhichOneof("binding") == "name" else None for b in argument.arguments)
                    for key, argument in op.inputs.items()
                }
                found.append((op.type, tuple(output.name for output in op.outputs), inputs))
    return found


@pytest.fixture(scope="module")
def data(package: Path) -> bytes:
    return (package / "Data" / "com.apple.CoreML" / "model.mlmodel").read_bytes()


@pytest.fixture(scope="module")
def expected(data: bytes) -> Listed:
    return walk(proto_parse(data))


def proto_parse(data: bytes) -> Any:
    """The message, by coremltools' own classes."""
    from coremltools import proto

    return proto.Model_pb2.Model.FromString(data)


@pytest.fixture(scope="module")
def scanned(package: Path) -> Iterator[ProgramScan]:
    with milblob.open(package) as model:
        yield model.parts[0].scan


def view_of(scanned: ProgramScan) -> ProgramView:
    """A view made again, as the first question to a model makes it."""
    return ProgramView(scanned.buffer, scanned.span)


def bench_table(row: Any, scanned: ProgramScan, expected: Listed, data: bytes) -> None:
    def check(got: Any) -> None:
        assert got.counts[2] == len(expected)

    run = lambda: _codec.graph_program(scanned.buffer, *scanned.span)  # noqa: E731
    row(JOB, "the table alone", run, check=check, role="limit", nbytes=len(data), note="makes no names and no list")


def bench_statements(row: Any, scanned: ProgramScan, expected: Listed, data: bytes) -> None:
    def check(got: Any) -> None:
        assert [(s.type, s.outputs, dict(s.inputs)) for s in got] == expected

    run = lambda: view_of(scanned).functions["main"].statements()  # noqa: E731
    row(JOB, "milblob: statements", run, check=check, role="milblob", nbytes=len(data))


def bench_objects(row: Any, scanned: ProgramScan, expected: Listed, data: bytes) -> None:
    def check(got: Any) -> None:
        assert got == expected

    def run() -> Listed:
        return [
            (op.type, op.output_names, {key: tuple([b.name for b in found]) for key, found in op.inputs.items()})
            for op in view_of(scanned).functions["main"].walk()
        ]

    row(JOB, "milblob: objects of the view", run, check=check, role="aside", nbytes=len(data))


def bench_protobuf(row: Any, expected: Listed, data: bytes) -> None:
    def check(got: Any) -> None:
        assert got == expected

    row(JOB, "protobuf: parse and walk", lambda: walk(proto_parse(data)), check=check, role="rival", nbytes=len(data))


def bench_protobuf_here(row: Any, expected: Listed, data: bytes) -> None:
    def check(got: Any) -> None:
        assert got == expected

    run = lambda: walk(schema.parse("Model", data))  # noqa: E731
    row(JOB, "protobuf: parse and walk, milblob's classes", run, check=check, role="rival", nbytes=len(data))
