"""model.mil to Program bytes and back: 5 MB of compiled text. No other reader or writer of it is known.

For orientation: protobuf parsing the same Program from its own bytes, and str.split, which only finds the words.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import Made, scaled
from milblob import _codec
from milblob.program import schema
from milblob.program.plain import parse_text
from milblob.program.write_text import write_program

FIXTURES = Path(__file__).parent.parent / "tests" / "data"
NBYTES = scaled(5_000_000, 50_000)


def numbers(count: int) -> Iterator[Any]:
    """Constants of 10,000 float32 each, all in the text."""
    from coremltools import proto

    mil = proto.MIL_pb2
    values = np.random.default_rng(5).standard_normal(10_000).astype(np.float32)
    for i in range(count):
        op = mil.Operation(type="const")
        output = op.outputs.add(name=f"table_{i}")
        val = op.attributes["val"]
        val.immediateValue.tensor.floats.values.extend(values.tolist())
        for type_ in (val.type, output.type):
            type_.tensorType.dataType = mil.FLOAT32
            type_.tensorType.rank = 1
            type_.tensorType.dimensions.add().constant.size = len(values)
        yield op


@pytest.fixture(scope="module", params=["statements", "numbers"])
def case(request: Any) -> tuple[str, bytes, Any]:
    """Job, text, Program message: the text is what tests/data/mil_printer.py prints of the Program."""
    from coremltools import proto

    sys.path.insert(0, str(FIXTURES))
    try:
        from mil_printer import Printer
    finally:
        sys.path.remove(str(FIXTURES))
    make = makers.statements if request.param == "statements" else numbers
    nbytes_each = 1250 if make is makers.statements else 165_000
    program = proto.MIL_pb2.Program(version=1)
    function = program.functions["main"]
    function.opset = "CoreML6"
    function.inputs.add(name="x").type.tensorType.dataType = proto.MIL_pb2.FLOAT16
    block = function.block_specializations["CoreML6"]
    block.operations.extend(make(max(1, NBYTES // nbytes_each)))
    block.outputs.append(block.operations[-1].outputs[0].name)
    text = Printer("1.0").program(program).encode()
    return f"MIL text, {request.param}: {len(text) / 1e6:.1f} MB", text, program


def bench_milblob(row: Any, case: Any) -> None:
    job, text, program = case

    def check(result: bytes) -> None:
        parsed = schema.parse("Program", result)
        assert parsed.SerializeToString(deterministic=True) == program.SerializeToString(deterministic=True)

    # 200 MB/s is promised of statements; the other text is digits throughout.
    options = {
        "role": "milblob",
        "nbytes": len(text),
        "limit_ms": len(text) / 200e6 * 1e3 if ", statements" in job else None,
    }
    row(job, "milblob: parse_text", lambda: parse_text(_codec.Buffer(text)), check=check, **options)


def bench_write(row: Any, case: Any) -> None:
    """The text that mil_printer.py prints, from the Program's bytes."""
    job, text, program = case
    data = _codec.Buffer(program.SerializeToString())

    def run() -> bytes:
        parts: list[bytes] = []
        write_program(data, (0, data.nbytes), parts.append, version="1.0", newline=False)
        return b"".join(parts)

    def check(got: bytes) -> None:
        assert got == text

    options = {"limit_ms": len(text) / 300e6 * 1e3 if ", numbers" in job else None}
    row(f"{job}, written", "milblob: write_program", run, check=check, role="milblob", nbytes=len(text), **options)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int8", "int16", "int32", "uint4"])
def bench_write_weights(row: Any, dtype: str) -> None:
    """Weights as numbers: the limit is 300 MB/s of what they take when stored."""
    own = milblob.dtypes.as_dtype(dtype)
    count = scaled(4_000_000, 10_000)
    generator = np.random.default_rng(7)
    if own.is_integer:
        low, high = own.range
        array: Any = generator.integers(low, high, count, endpoint=True).astype(
            np.uint8 if own.is_sub_byte else own.numpy
        )
    else:
        array = generator.standard_normal(count).astype(own.numpy)
    data = _codec.Buffer(as_program(array, own))
    nbytes = own.nbytes(count)

    def run() -> int:
        written = 0

        def write(text: bytes) -> None:
            nonlocal written
            written += len(text)

        write_program(data, (0, data.nbytes), write)
        return written

    def check(got: int) -> None:
        parts: list[bytes] = []
        write_program(data, (0, data.nbytes), parts.append)
        text = b"".join(parts)
        assert len(text) == got
        assert schema.parse("Program", parse_text(_codec.Buffer(text))) == schema.parse("Program", bytes(data))

    job = f"weights as MIL text, {dtype}: {nbytes / 1e6:.1f} MB"
    options = {"role": "milblob", "nbytes": nbytes, "limit_ms": nbytes / 300e6 * 1e3}
    row(job, "milblob: write_program", run, check=check, **options)


def as_program(array: Any, dtype: Any) -> bytes:
    """A Program with one constant in it."""
    program = schema.Program(version=1)
    function = program.functions["main"]
    function.opset = "CoreML8"
    block = function.block_specializations["CoreML8"]
    op = block.operations.add(type="const")
    value = op.attributes["val"]
    value.type.tensorType.dataType = dtype.mil_code
    value.type.tensorType.rank = 1
    value.type.tensorType.dimensions.add().constant.size = array.size
    value.immediateValue.tensor.ParseFromString(milblob.pack_tensor(array, dtype))
    op.outputs.add(name="w").type.CopyFrom(value.type)
    block.outputs.append("w")
    return bytes(program.SerializeToString())


def bench_text_of_a_model(row: Any, made: Made) -> None:
    """`to_text` of an open package of 3,000 operations: 50 ms are promised."""
    path = made("view.mlpackage", lambda path: makers.write_transformer(path, scaled(26, 1), 32))

    def check(got: str) -> None:
        assert schema.parse("Program", parse_text(_codec.Buffer(got.encode()))) == expected

    with milblob.open(path) as model:
        expected = model.program
        count = sum(1 for function in model.functions for _ in model.functions[function].walk())
        job = f"text of a model: {count:,} operations"
        row(job, "milblob.to_text", lambda: milblob.to_text(model), check=check, role="milblob", limit_ms=50)


def bench_protobuf(row: Any, case: Any) -> None:
    job, text, program = case
    data = program.SerializeToString()

    def check(result: Any) -> None:
        assert result.ByteSize() == len(data)

    options = {"note": f"{len(data) / 1e6:.1f} MB of protobuf instead of text", "nbytes": len(text)}
    options["role"] = "aside"
    row(job, "protobuf: the same Program", lambda: schema.parse("Program", data), check=check, **options)


def bench_split(row: Any, case: Any) -> None:
    job, text, _ = case

    def check(result: Any) -> None:
        assert b"".join(result) == b"".join(text.split())

    row(job, "bytes.split", text.split, check=check, role="aside", note="finds the words only", nbytes=len(text))


def bench_pass(row: Any, case: Any, cwalk: Any) -> None:
    job, text, _ = case
    array = np.frombuffer(text, np.uint8)
    expected = int(np.frombuffer(text, np.uint64, len(text) // 8).sum())

    def check(got: int) -> None:
        assert got == expected

    row(job, "C: one summing pass", lambda: cwalk.sum(array), check=check, role="limit", nbytes=len(text))
