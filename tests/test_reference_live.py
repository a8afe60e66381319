"""The oracle against coremltools itself, where that is installed."""

import numpy as np
import pytest

import reference
from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

from coremltools import proto
from coremltools.libmilstoragepython import _BlobStorageReader, _BlobStorageWriter

KINDS = {
    "FLOAT16": ("fp16", np.uint16), "FLOAT32": ("float", np.float32), "INT8": ("int8", np.int8),
    "INT16": ("int16", np.int16), "INT32": ("int32", np.int32), "UINT8": ("uint8", np.uint8),
    "UINT16": ("uint16", np.uint16), "UINT32": ("uint32", np.uint32), "INT4": ("int4", np.int8),
    "UINT1": ("uint1", np.uint8), "UINT2": ("uint2", np.uint8), "UINT3": ("uint3", np.uint8),
    "UINT4": ("uint4", np.uint8), "UINT6": ("uint6", np.uint8),
}  # fmt: skip


def draw(dtype, count):
    """Random elements of a dtype; floats that a Python float keeps exactly."""
    rng = np.random.default_rng(count)
    _, _, nbits, kind = reference.DTYPES[dtype]
    if kind == "f":
        return rng.standard_normal(count).astype(np.float32)
    low = -(1 << nbits - 1) if kind == "i" else 0
    return rng.integers(low, low + (1 << nbits), count).astype(KINDS[dtype][1])


@pytest.mark.parametrize("count", [0, 1, 2, 5, 8, 13, 31, 64, 100])
def test_blob_files_are_the_same_bytes(tmp_path, count):
    arrays = {dtype: draw(dtype, count) for dtype in KINDS}
    writer = _BlobStorageWriter(str(tmp_path / "theirs.bin"))
    offsets = [getattr(writer, f"write_{KINDS[dtype][0]}_data")(array) for dtype, array in arrays.items()]
    del writer
    ours, our_offsets = reference.write_blobs([(dtype, array.tolist()) for dtype, array in arrays.items()])
    assert our_offsets == offsets
    assert ours == (tmp_path / "theirs.bin").read_bytes()
    if count:  # coremltools cannot read an empty record
        (tmp_path / "ours.bin").write_bytes(ours)
        reader = _BlobStorageReader(str(tmp_path / "ours.bin"))
        for offset, (dtype, array) in zip(offsets, arrays.items(), strict=True):
            assert np.array_equal(getattr(reader, f"read_{KINDS[dtype][0]}_data")(offset), array)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("floats", [0.5, -1.0, 3e38]), ("doubles", [0.1, -1e300]), ("ints", [0, 1, -1, 300, -(1 << 31), (1 << 31) - 1]),
        ("longInts", [-(1 << 63), (1 << 63) - 1, 5]), ("bools", [True, False, True]), ("strings", ["", "ü", "\0"]),
        ("bytes", b"\0\xff\x80"), ("floats", []), ("strings", []), ("bytes", b""),
    ],
)  # fmt: skip
def test_tensor_values_are_the_same_bytes(field, values):
    message = proto.MIL_pb2.TensorValue()
    part = getattr(message, field)
    part.SetInParent()
    if field == "bytes":
        part.values = values
    else:
        part.values.extend(values)
    data = message.SerializeToString()
    assert reference.pack_tensor_value(field, values) == data
    assert reference.unpack_tensor_value(data)[0] == field
    values = np.array(values, "f4").tolist() if field == "floats" else values
    assert reference.unpack_tensor_value(data)[1] == values


@pytest.mark.parametrize("value", [0, 1, 127, 128, -1, -(1 << 31), (1 << 31) - 1, 1 << 62, -(1 << 63)])
def test_varints(value):
    message = proto.MIL_pb2.TensorValue.RepeatedLongInts(values=[value])
    assert reference.write_field(1, reference.write_varint(value)) == message.SerializeToString()
    decoded, end = reference.read_varint(reference.write_varint(value), 0)
    assert (reference.as_int(decoded, 64), end) == (value, len(reference.write_varint(value)))


def test_walker_agrees_on_a_program():
    spec = proto.Model_pb2.Model(specificationVersion=8)
    spec.mlProgram.version = 1
    fields = {number: value for number, _, value in reference.read_fields(spec.SerializeToString())}
    assert fields == {1: 8, 502: reference.write_field(1, 1)}
