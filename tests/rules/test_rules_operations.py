"""The table of operations: as coremltools' registry has it now, what each opset takes, and types that follow from others."""

import sys

import pytest

from milblob.dtypes import DType
from milblob.program.types import ListType, StateType, TensorType, TupleType
from milblob.rules.operation_rules import Bound, opset_index, table
from milblob.rules.output_rules import MAKERS, outputs_of
from paths import DATA
from peers import WITHOUT


def test_the_table_is_what_the_script_makes_of_the_registry():
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    sys.path.insert(0, str(DATA))
    import make_operations

    assert make_operations.PATH.read_text("utf-8") == make_operations.table()


def test_types_and_groups_of_the_table():
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


@pytest.mark.sample(6)
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


@pytest.mark.sample(12)
@pytest.mark.parametrize(("kind", "types", "expected"), [
    ("relu", {"x": tensor(F16, 2, None)}, "tensor<fp16, [2, ?]>"),
    ("batch_norm", {"x": tensor(F32, 1, 3, 2), "mean": tensor(F16, 3), "variance": tensor(F16, 3)}, None),
    ("batch_norm", {"x": tensor(F32, 1, 3, 2), "mean": tensor(F32, 3), "variance": tensor(F32, 3)}, "tensor<fp32, [1, 3, 2]>"),
    ("clip", {"x": tensor(F32, 3), "alpha": tensor(F32), "beta": tensor(F32)}, "tensor<fp32, [3]>"),
    ("add", {"x": tensor(F32, 3, 1), "y": tensor(F32, 5)}, "tensor<fp32, [3, 5]>"),
    ("mul", {"x": tensor(F32, None, 4), "y": tensor(F32, 2, 1)}, "tensor<fp32, [2, 4]>"),
    ("sub", {"x": tensor(F32, None, 1), "y": tensor(F32)}, "tensor<fp32, [?, 1]>"),
    ("add", {"x": tensor(F32, 3), "y": tensor(F16, 3)}, None),
    ("less", {"x": tensor(I32, 3), "y": tensor(I32, 1)}, "tensor<bool, [3]>"),
    ("linear", {"x": tensor(F16, 7, 3), "weight": tensor(F16, 5, 3)}, "tensor<fp16, [7, 5]>"),
    ("conv", {"x": tensor(F16, 1, 3, 8, 8), "weight": tensor(F16, 6, 3, 2, 2)}, "tensor<fp16, [1, 6, 7, 7]>"),
    ("conv", {"x": tensor(F16, 1, 3, None, 8), "weight": tensor(F16, 6, 3, 2, 2)}, "tensor<fp16, [1, 6, ?, 7]>"),
    ("conv", {"x": tensor(F16, 1, 3, 8), "weight": tensor(F16, 6, 3, 2), "pad_type": tensor(DType.STRING)},
     "tensor<fp16, [1, 6, ?]>"),
    ("matmul", {"x": tensor(F16, 2, 3), "y": tensor(F16, 4, 3, 5)}, "tensor<fp16, [4, 2, 5]>"),
    ("matmul", {"x": tensor(F16, 2, 3), "y": tensor(F16, 3, 5), "transpose_x": tensor(DType.BOOL)}, None),
    ("matmul", {"x": tensor(F16, 3), "y": tensor(F16, 3, 5)}, "tensor<fp16, [5]>"),
    ("matmul", {"x": tensor(F16, 3), "y": tensor(F16, 4, 3, 5)}, "tensor<fp16, [?, ?]>"),
    ("transpose", {"x": tensor(I32, 2, 3), "perm": tensor(I32, 2)}, "tensor<int32, [?, ?]>"),
    ("reshape", {"x": tensor(I32, 2, 3), "shape": tensor(I32, 1)}, "tensor<int32, [?]>"),
    ("reshape", {"x": tensor(I32, 2, 3), "shape": tensor(I32, None)}, TensorType(I32, (), -1)),
    ("reduce_sum", {"x": tensor(I32, 2, 3)}, "int32"),
    ("reduce_sum", {"x": tensor(I32, 2, 3), "axes": tensor(I32, 1)}, None),
    ("squeeze", {"x": tensor(F32, None, 1)}, TensorType(F32, (), -1)),
    ("real_div", {"x": tensor(I32, 2), "y": tensor(I32, 2)}, None),
    ("select", {"cond": tensor(DType.BOOL, 2, 2), "a": tensor(F32, 2), "b": tensor(F32)}, TensorType(F32, (), -1)),
    ("split", {"x": tensor(F32, 4), "axis": tensor(I32)}, None),
    ("cast", {"x": tensor(F32, 4), "dtype": tensor(DType.STRING)}, None),
    ("concat", {"values": tensor(F32, 4), "axis": tensor(I32)}, None),
    ("relu", {"x": TensorType(F32, (), -1)}, TensorType(F32, (), -1)),
    ("relu", {"x": TensorType(F32, (2, 3), 1)}, None),
    ("relu", {"x": TensorType(99, (2,), 1)}, None),
    ("relu", {"x": None}, None),
    ("linear", {"x": tensor(F16), "weight": tensor(F16, 5, 3)}, None),
])  # fmt: skip
def test_types_of_outputs(kind, types, expected):
    found = outputs_of(kind, [(key, [Bound(declared, False)]) for key, declared in types.items()])
    if expected is None:
        assert found is None
    else:
        assert [str(one) if isinstance(expected, str) else one for one in found] == [expected]
    assert outputs_of(kind, [(key, [None]) for key in types]) is None
    assert outputs_of(kind, []) is None


@pytest.mark.parametrize(("kind", "types", "values", "expected"), [
    ("reshape", {"x": tensor(F32, None, 4)}, {"shape": (0, -1)}, "tensor<fp32, [?, ?]>"),
    ("reshape", {"x": tensor(F32, 2, None)}, {"shape": (0, -1)}, "tensor<fp32, [?, ?]>"),
    ("reshape", {"x": tensor(F32, 2, 4)}, {"shape": (0, -1)}, "tensor<fp32, [2, 4]>"),
    ("reshape", {"x": tensor(F32, 2, 4)}, {"shape": (0, 2, -1)}, "tensor<fp32, [?, 2, ?]>"),
    ("reshape", {"x": tensor(F32, 2, 4)}, {"shape": (-1, -1)}, TensorType(F32, (), -1)),
    ("transpose", {"x": tensor(F32, 2, 4)}, {"perm": (0, 0)}, TensorType(F32, (), -1)),
    ("transpose", {"x": tensor(F32, 2, 4)}, {"perm": (5, 0)}, TensorType(F32, (), -1)),
    ("squeeze", {"x": tensor(F32, None, 1)}, {"axes": (1,)}, "tensor<fp32, [?]>"),
    ("squeeze", {"x": tensor(F32, 2, 1)}, {"axes": (0,)}, TensorType(F32, (), -1)),
    ("slice_by_index", {"x": tensor(F32, 5)}, {"begin": (1,), "end": (9,)}, "tensor<fp32, [4]>"),
    ("slice_by_index", {"x": tensor(F32, 5)}, {"begin": (3,), "end": (3,)}, "tensor<fp32, [?]>"),
    ("slice_by_index", {"x": tensor(F32, 5)}, {"begin": (3,), "end": (-6,), "stride": (-1,)}, "tensor<fp32, [?]>"),
    ("slice_by_size", {"x": tensor(F32, 5)}, {"begin": (-1,), "size": (-1,)}, "tensor<fp32, [?]>"),
    ("topk", {"x": tensor(F32, 5)}, {"k": (-1,), "return_indices": (False,)}, "tensor<fp32, [?]>"),
    ("split", {"x": tensor(F32, 5)}, {"axis": (3,), "num_splits": (1,)}, None),
    ("sliding_windows", {"x": tensor(F32, 5)}, {"axis": (0,), "size": (6,)}, "tensor<fp32, [?, 6]>"),
    ("avg_pool", {"x": tensor(F32, 1, 1, 2)}, {"kernel_sizes": (1,), "strides": (0,)}, "tensor<fp32, [1, 1, ?]>"),
    ("reduce_argmax", {"x": tensor(F32, 5)}, {"axis": (0,), "output_dtype": ("INT32",)}, "int32"),
    ("cast", {"x": TensorType(F32, (), -1)}, {"dtype": ("fp16",)}, TensorType(F16, (), -1)),
    ("cast", {"x": tensor(F32, 5)}, {"dtype": ("half",)}, None),
    ("einsum", {}, {"equation": ("ab,bc->ac",)}, None),
])  # fmt: skip
def test_types_of_outputs_by_values(kind, types, values, expected):
    arguments = [(key, [Bound(declared, False)]) for key, declared in types.items()]
    arguments += [(key, [Bound(tensor(I32, len(value)), True, value)]) for key, value in values.items()]
    found = outputs_of(kind, arguments)
    if expected is None:
        assert found is None
    else:
        assert [str(one) if isinstance(expected, str) else one for one in found] == [expected]


def test_arguments_that_are_not_tensors_are_not_checked():
    for kind in MAKERS:
        for declared in (
            ListType(None, None),
            TupleType(()),
            StateType(None),
            TensorType(99),
            TensorType(F32, (2,), 3),
        ):
            keys = table().find(kind, 3)
            found = outputs_of(kind, [(key, [Bound(declared, True)]) for key in keys])
            is_length = kind == "list_length" and isinstance(declared, ListType)
            assert is_length or found is None or all(type(one) is type(declared) for one in found)
