"""A real-sized Program: a transformer of 2,841 operations with 459 weights of 640 MB, converted by coremltools."""

import io
import logging
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cwalk import CWalk

import milblob
from conftest import SCALE

JOB = f"load a transformer Program (scale {SCALE:g})" if SCALE != 1 else "load a transformer Program of 640 MB"
RIVAL = "coremltools: PyMIL load"
MODEL = Path("Data", "com.apple.CoreML", "model.mlmodel")
WEIGHTS = Path("Data", "com.apple.CoreML", "weights", "weight.bin")


@pytest.fixture(scope="module")
def expected(transformer: Path) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Name -> (metadata offset, shape) of every blob value, read off the protobuf message."""
    import coremltools as ct

    logging.getLogger("coremltools").setLevel(logging.ERROR)
    found = {}
    for function in ct.utils.load_spec(str(transformer)).mlProgram.functions.values():
        for block in function.block_specializations.values():
            for op in block.operations:
                value = op.attributes["val"]
                if value.WhichOneof("value") == "blobFileValue":
                    shape = tuple(d.constant.size for d in value.type.tensorType.dimensions)
                    found[op.outputs[0].name] = (value.blobFileValue.offset, shape)
    return found


def load(path: Path) -> Any:
    """Views of everything."""
    return milblob.load(path)


def load_pymil(path: Path) -> Any:
    """The only way by which coremltools gives the values of a package."""
    import coremltools as ct
    from coremltools.converters.mil.frontend.milproto.load import load as load_mil

    spec = ct.utils.load_spec(str(path))
    return load_mil(spec, spec.specificationVersion, str((path / WEIGHTS).parent))


def bench_load(row: Any, transformer: Path, expected: Any) -> None:
    data = (transformer / WEIGHTS).read_bytes()

    def check(arrays: Any) -> None:
        assert arrays.keys() == expected.keys()
        for name, (offset, shape) in expected.items():
            assert arrays[name].shape == shape
            stored = np.frombuffer(data, np.float16, arrays[name].size, offset + 64).reshape(shape)
            assert np.array_equal(arrays[name], stored)

    options = {"role": "milblob", "targets": {RIVAL: 1 / 200}}
    row(JOB, "milblob: load", lambda: load(transformer), check=check, **options)


def bench_open(row: Any, transformer: Path, expected: Any) -> None:
    def run() -> Any:
        with milblob.open(transformer) as model:
            return model

    def check(model: Any) -> None:
        assert {name: (t.offset, t.shape) for name, t in model.items()} == expected

    row(JOB, "milblob: open", run, check=check, role="milblob")


def bench_c_walk(row: Any, transformer: Path, expected: Any, cwalk: CWalk) -> None:
    def check(result: Any) -> None:
        count, operations, nbytes, elements = result
        assert count == len(expected) and operations > count
        assert nbytes == 2 * elements == 2 * sum(int(np.prod(shape)) for _, shape in expected.values())

    model, weights = str(transformer / MODEL), str(transformer / WEIGHTS)
    note = "makes no names and no arrays"
    row(JOB, "C walk", lambda: cwalk.program(model, weights), check=check, role="limit", note=note)


def bench_pymil(row: Any, transformer: Path, expected: Any) -> None:
    def check(program: Any) -> None:
        found = {op.outputs[0].name: op.outputs[0] for op in program.functions["main"].operations if op.outputs}
        with milblob.open(transformer) as model:
            for name in expected:
                assert np.array_equal(found[name].val, model[name])

    row(JOB, RIVAL, lambda: load_pymil(transformer), check=check)


def bench_load_spec(row: Any, transformer: Path, expected: Any) -> None:
    import coremltools as ct

    def check(spec: Any) -> None:
        assert spec.WhichOneof("Type") == "mlProgram"

    note = "protobuf parse only: no values, no weights"
    row(
        JOB,
        "coremltools: load_spec",
        lambda: ct.utils.load_spec(str(transformer)),
        check=check,
        role="aside",
        note=note,
    )


def bench_weights_metadata(row: Any, transformer: Path, expected: Any) -> None:
    import coremltools as ct

    def run() -> Any:
        with redirect_stderr(io.StringIO()):
            model = ct.models.MLModel(str(transformer), skip_model_load=True)
            return ct.optimize.coreml.get_weights_metadata(model, weight_threshold=10)

    def check(metadata: Any) -> None:
        assert metadata.keys() == expected.keys()

    row(JOB, "coremltools: get_weights_metadata", run, check=check, rounds=1, role="aside", note="one round")
