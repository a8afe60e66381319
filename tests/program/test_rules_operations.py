"""The table of operations: as coremltools' registry has it now, what each opset takes, and types that follow from others."""

import sys

import pytest

from milblob.dtypes import DType
from milblob.program.rules_operations import Bound, opset_index, table
from milblob.program.rules_outputs import output_of
from milblob.program.types import TensorType
from paths import DATA


def test_the_table_is_what_the_script_makes_of_the_registry():
    pytest.importorskip("coremltools")
    sys.path.insert(0, str(DATA))
    import make_operations

    assert make_operations.PATH.read_text("utf-8") == make_operations.table()


def test_what_the_table_says():
    operations = table()
    assert operations.opsets == ("CoreML5", "CoreML6", "CoreML7", "CoreML8") and len(operations.versions) > 160
    conv = operations.find("conv", 0)
    assert conv["x"].dtypes == {DType.FLOAT16, DType.FLOAT32} and conv["x"].group == conv["weight"].group
    assert conv["pad"].is_constant and conv["pad"].is_optional and not conv["x"].is_optional
    assert operations.find("conv", 2)["x"].group != operations.find("conv", 2)["weight"].group
    assert operations.find("concat", 0)["values"].kind == "tuple"
    assert operations.find("read_state", 2) is None and operations.find("read_state", 3)["input"].kind == "state"
    assert operations.find("write_state", 3)["data"].kind == "any"
    assert set(operations.find("constexpr_lut_to_dense", 1)) == {"indices", "lut", "shape"}
    assert set(operations.find("constexpr_lut_to_dense", 3)) == {"indices", "lut", "vector_axis"}
    assert operations.find("plus", 3) is None


@pytest.mark.parametrize(
    ("opset", "index"),
    [("CoreML5", 0), ("CoreML8", 3), ("ios15", 0), ("ios18", 3), ("CoreML9", None), ("CoreML4", None), ("ios26", None),
     ("", None), ("ios", None), ("iosx", None), ("ios1²", None), ("ios" + "9" * 5000, None)],
)  # fmt: skip
def test_opsets(opset, index):
    assert opset_index(opset) == index


F16, F32, I32 = DType.FLOAT16, DType.FLOAT32, DType.INT32


def tensor(dtype, *shape):
    return TensorType(dtype, shape, len(shape))


@pytest.mark.parametrize(("kind", "types", "expected"), [
    ("relu", {"x": tensor(F16, 2, None)}, "tensor<fp16, [2, ?]>"),
    ("clip", {"x": tensor(F32, 3), "alpha": tensor(F32), "beta": tensor(F32)}, "tensor<fp32, [3]>"),
    ("add", {"x": tensor(F32, 3, 1), "y": tensor(F32, 5)}, "tensor<fp32, [3, 5]>"),
    ("mul", {"x": tensor(F32, None, 4), "y": tensor(F32, 2, 1)}, "tensor<fp32, [?, 4]>"),
    ("sub", {"x": tensor(F32, None, 1), "y": tensor(F32)}, "tensor<fp32, [?, 1]>"),
    ("add", {"x": tensor(F32, 3), "y": tensor(F16, 3)}, None),
    ("less", {"x": tensor(I32, 3), "y": tensor(I32, 1)}, "tensor<bool, [3]>"),
    ("linear", {"x": tensor(F16, 7, 3), "weight": tensor(F16, 5, 3)}, "tensor<fp16, [7, 5]>"),
    ("conv", {"x": tensor(F16, 1, 3, 8, 8), "weight": tensor(F16, 6, 3, 2, 2)}, "tensor<fp16, [1, 6, ?, ?]>"),
    ("matmul", {"x": tensor(F16, 2, 3), "y": tensor(F16, 4, 3, 5)}, "tensor<fp16, [?, ?, ?]>"),
    ("transpose", {"x": tensor(I32, 2, 3), "perm": tensor(I32, 2)}, "tensor<int32, [?, ?]>"),
    ("reshape", {"x": tensor(I32, 2, 3), "shape": tensor(I32, 1)}, TensorType(I32, (), -1)),
    ("reduce_sum", {"x": tensor(I32, 2, 3)}, None),
    ("relu", {"x": TensorType(F32, (), -1)}, TensorType(F32, (), -1)),
    ("relu", {"x": TensorType(F32, (2, 3), 1)}, None),
    ("relu", {"x": TensorType(99, (2,), 1)}, None),
    ("relu", {"x": None}, None),
    ("linear", {"x": tensor(F16), "weight": tensor(F16, 5, 3)}, None),
])  # fmt: skip
def test_types_of_outputs(kind, types, expected):
    found = output_of(kind, [(key, [Bound(declared, False)]) for key, declared in types.items()])
    assert (str(found) if isinstance(expected, str) else found) == expected
    assert output_of(kind, [(key, [None]) for key in types]) is None
    assert output_of(kind, []) is None
