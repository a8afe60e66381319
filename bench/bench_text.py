"""model.mil to Program bytes: 5 MB of compiled text. No other reader of it is known.

For orientation: protobuf parsing the same Program from its own bytes, and str.split, which only finds the words.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import scaled
from milblob import _codec, schema
from milblob.text import parse_text

FIXTURES = Path(__file__).parent.parent / "tests" / "data"
NBYTES = scaled(5_000_000, 50_000)


def statements(count: int) -> Iterator[Any]:
    """Operations as a transformer has them: constants inline and in a weight file, inputs by name."""
    from coremltools import proto

    mil = proto.MIL_pb2

    def tensor(type_: Any, dtype: int, *shape: int) -> None:
        type_.tensorType.dataType = dtype
        type_.tensorType.rank = len(shape)
        for size in shape:
            type_.tensorType.dimensions.add().constant.size = size

    previous = "x"
    for i in range(count):
        scope = f"encoder_layers_{i // 16}_block_{i % 16}"
        for kind in ("blob", "ints", "floats", "linear"):
            op = mil.Operation(type="linear" if kind == "linear" else "const")
            output = op.outputs.add(name=f"{scope}_{kind}")
            name = op.attributes["name"]
            tensor(name.type, mil.STRING)
            name.immediateValue.tensor.strings.values.append(f"{scope}_{kind}")
            if kind == "linear":
                tensor(output.type, mil.FLOAT16, 1, 64, 512)
                inputs = {"x": previous, "weight": f"{scope}_blob", "bias": f"{scope}_floats", "shape": f"{scope}_ints"}
                for key, value in inputs.items():
                    op.inputs[key].arguments.add(name=value)
                previous = f"{scope}_{kind}"
                yield op
                continue
            val = op.attributes["val"]
            if kind == "blob":
                shape, dtype = (512, 512), mil.FLOAT16
                val.blobFileValue.fileName = "@model_path/weights/weight.bin"
                val.blobFileValue.offset = 64 * (i + 1)
            elif kind == "ints":
                shape, dtype = (4,), mil.INT32
                val.immediateValue.tensor.ints.values.extend([1, 64, i, -1])
            else:
                shape, dtype = (8,), mil.FLOAT32
                val.immediateValue.tensor.floats.values.extend([0.001 * (i + k) for k in range(8)])
            tensor(val.type, dtype, *shape)
            tensor(output.type, dtype, *shape)
            yield op


def numbers(count: int) -> Iterator[Any]:
    """Constants of 10,000 float32 each, all in the text."""
    import numpy as np
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
    make = statements if request.param == "statements" else numbers
    nbytes_each = 1250 if make is statements else 165_000
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

    options = {"role": "milblob", "nbytes": len(text)}
    row(job, "milblob: parse_text", lambda: parse_text(_codec.Buffer(text)), check=check, **options)


def bench_protobuf(row: Any, case: Any) -> None:
    job, text, program = case
    data = program.SerializeToString()

    def check(result: Any) -> None:
        assert result.ByteSize() == len(data)

    options = {"note": f"{len(data) / 1e6:.1f} MB of protobuf instead of text", "nbytes": len(text)}
    row(job, "protobuf: the same Program", lambda: schema.parse("Program", data), check=check, **options)


def bench_split(row: Any, case: Any) -> None:
    job, text, _ = case

    def check(result: Any) -> None:
        assert b"".join(result) == b"".join(text.split())

    row(job, "bytes.split", text.split, check=check, note="finds the words only", nbytes=len(text))
