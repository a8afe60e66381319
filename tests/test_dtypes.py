"""The dtype table against tests/support/reference.py, names of dtypes, and the errors as objects."""

import pickle

import numpy as np
import pytest

import milblob
import reference
from dtype_values import NUMPY
from milblob import DType
from milblob.dtypes import as_dtype
from peers import WITHOUT

pytestmark = pytest.mark.wheel


def test_the_table():
    assert {member.name for member in DType} == set(reference.DTYPES)
    for name, (blob_code, mil_code, nbits, kind) in reference.DTYPES.items():
        member = DType[name]
        assert (member.blob_code, member.mil_code, member.nbits) == (blob_code, mil_code, nbits)
        assert member.numpy == np.dtype(NUMPY[name])
        assert member.is_sub_byte is (0 < nbits < 8)
        assert member.is_integer is (kind in "iu")
        assert (str(member), repr(member)) == (name.lower(), f"DType.{name}")
        for count in (0, 1, 7, 8, 9):
            assert member.nbytes(count) == (count * nbits + 7) // 8
    assert len({member.mil_text for member in DType}) == len(DType)


def test_ranges():
    for name, (_, _, nbits, kind) in reference.DTYPES.items():
        if kind in "iu":
            low = -(1 << nbits - 1) if kind == "i" else 0
            assert DType[name].range == (low, low + (1 << nbits) - 1)
    assert DType.BOOL.range == (0, 1)
    with pytest.raises(TypeError, match="range: expected an integer dtype, got float16"):
        _ = DType.FLOAT16.range


def test_numbers_match_coremltools():
    proto = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"]).proto
    theirs = dict(proto.MIL_pb2.DataType.items())
    for member in DType:
        assert theirs[member.name] == member.mil_code


def test_names():
    for member in DType:
        for value in (member, member.name, member.name.lower(), member.mil_text):
            assert as_dtype(value) is member
        if member.name not in ("UINT3", "UINT6"):  # their arrays are uint8
            assert as_dtype(member.numpy) is member
    for name, member in {"f16": "FLOAT16", "FP16": "FLOAT16", "half": "FLOAT16", "bf16": "BFLOAT16", "BF16": "BFLOAT16",
                         "f32": "FLOAT32", "fp32": "FLOAT32", "Float32": "FLOAT32", "f64": "FLOAT64", "F8_E4M3": "FLOAT8E4M3FN",
                         "float8_e5m2": "FLOAT8E5M2", "i8": "INT64", "u1": "UINT8"}.items():  # fmt: skip
        assert as_dtype(name) is DType(name) is DType[member], name
    for value in (np.float16, np.dtype("float16"), "fp16", DType.FLOAT16):
        assert DType(value) is DType.FLOAT16
    with pytest.raises(ValueError, match="no such"):
        DType("no such")
    assert as_dtype("uint8") is as_dtype(np.uint8) is DType.UINT8
    assert as_dtype(">i4") is DType.INT32
    assert as_dtype(np.dtype("U5")) is DType.STRING


@pytest.mark.parametrize("value", ["no such", np.complex64, "M8[s]", 5, object(), [("a", "i4")]])
def test_an_unknown_dtype_is_refused(value):
    with pytest.raises(TypeError, match="dtype: expected "):
        as_dtype(value)


@pytest.mark.parametrize(
    "kind", [milblob.FormatError, milblob.UnsupportedError, milblob.ResolveError, milblob.ProgramError]
)
def test_errors_survive_a_process_pool(kind):
    error = kind("w: expected a, got b", offset=5, where="main.x", file="f.bin")
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is kind
    assert str(again) == str(error) == "w: expected a, got b at byte 5 in f.bin - at main.x"
    assert (again.offset, again.where, again.file) == (5, "main.x", "f.bin")
