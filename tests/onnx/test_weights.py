"""Weights by reference: the .onnx file refers to the bytes of every data type where they stand."""

import numpy as np
import onnx_ir
import pytest

import milblob
import milblob.onnx
import reference
from blob_files import BLOB_DTYPES, blob_file, values_of
from dtype_values import numbers
from milblob.onnx.reference import fill, refer
from repacking import WEIGHTS, package_of

COUNT = 8192
WIDENED = ("UINT1", "UINT3", "UINT6")  # ONNX has no such types


@pytest.mark.parametrize("dtype", [dtype for dtype in BLOB_DTYPES if dtype not in WIDENED])
def test_every_data_type_is_referred_to_in_place(dtype, tmp_path):
    """Also those that no operation of MIL takes yet."""
    values = values_of(dtype, COUNT)
    data, offsets = blob_file(("FLOAT32", np.zeros(5, np.float32)), (dtype, values))
    code = milblob.DType[dtype].mil_code
    package = package_of(
        tmp_path / "m.mlpackage", {"main": [("w", code, [COUNT], WEIGHTS, offsets[1])]}, {"weights/weight.bin": data}
    )
    with milblob.open(package) as model:
        function = milblob.onnx.MilProgramContainer(model).function
        scope = milblob.onnx.parse_mil(function).scope
        weights = milblob.onnx.Weights(model, "reference", str(tmp_path / "m.onnx"))
        tensor, _ = weights.tensor(scope.variables["w"])
        assert isinstance(tensor, onnx_ir.ExternalTensor)
        nbits = reference.DTYPES[dtype][2]
        assert tensor.length == COUNT * nbits // 8
        file = package / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
        assert (tmp_path / tensor.location).samefile(file)
        packed = values.tobytes() if nbits >= 8 else reference.pack_elements(numbers(values, dtype), dtype)
        assert file.read_bytes()[tensor.offset :][: tensor.length] == packed
        assert tensor.numpy().tobytes() == values.astype(tensor.dtype.numpy()).tobytes()
        assert not weights.made


def test_values_instead_of_a_reference_leave_nothing_of_it():
    array = np.arange(6, dtype=np.float32)
    whole = onnx_ir.to_proto(onnx_ir.tensor(array, name="w"))
    message = type(whole).FromString(whole.SerializeToString())
    refer(message, "", 0, array.nbytes)
    fill(message, array)
    assert message.SerializeToString() == whole.SerializeToString()
