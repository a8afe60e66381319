"""The oracle itself, checked against what coremltools wrote and read when the fixtures were made."""

import json
import pathlib

import numpy as np
import pytest
import reference

DATA = pathlib.Path(__file__).parent / "data"
BLOB_CASES = sorted(path.parent.name for path in DATA.glob("blob_*/expected.json"))
MODEL_CASES = sorted(
    path.parent.name for path in DATA.glob("*/expected.json") if not path.parent.name.startswith("blob_")
)


def load_case(name):
    """Returns (expected.json as an object, expected.npz as a dict, the first file of the case)."""
    expected = json.loads((DATA / name / "expected.json").read_text(encoding="utf-8"))
    with np.load(DATA / name / "expected.npz", allow_pickle=False) as arrays:
        return expected, dict(arrays), DATA / name / expected["paths"][0]


def stored(values, dtype, array):
    """Turns the reference's numbers into the array form that expected.npz keeps."""
    nbits, kind = reference.DTYPES[dtype][2:]
    if kind == "r" or nbits < 8:
        bits = np.array([value & (1 << nbits) - 1 for value in values], f"u{max(nbits, 8) // 8}")
        return bits.view(array.dtype)
    return np.frombuffer(reference.pack_elements(values, dtype), array.dtype)


@pytest.mark.parametrize("case", BLOB_CASES)
def test_reads_recorded_blobs(case):
    expected, arrays, path = load_case(case)
    data = path.read_bytes()
    assert list(reference.walk_blobs(data)) == [row["offset"] for row in expected["records"]]
    for row in expected["records"]:
        dtype, values, data_offset, nbytes = reference.read_blob(data, row["offset"])
        assert (dtype, data_offset, nbytes) == (row["dtype"], row["data_offset"], row["nbytes"])
        assert len(values) == row["count"]
        array = arrays[row["npz"]]
        if reference.DTYPES[dtype][3] == "f":  # NaN payloads do not survive a Python float everywhere
            assert np.array_equal(np.array(values, array.dtype), array, equal_nan=True)
        else:
            assert stored(values, dtype, array).tobytes() == array.tobytes()


@pytest.mark.parametrize("case", [case for case in BLOB_CASES if case != "blob_garbage"])
def test_writes_the_same_bytes(case):
    expected, arrays, path = load_case(case)
    records = []
    for row in expected["records"]:
        array, (nbits, kind) = arrays[row["npz"]], reference.DTYPES[row["dtype"]][2:]
        dtype = "UINT32" if kind == "f" else row["dtype"]  # as bits: a Python float may quieten a NaN
        bits = array.view(f"u{array.itemsize}") if kind in "rf" or nbits < 8 else array
        values = [v - (1 << nbits) if kind == "i" and nbits < 8 and v >> nbits - 1 else v for v in bits.tolist()]
        records.append((dtype, values))
    data, offsets = reference.write_blobs(records)
    data = bytearray(data)
    for row, offset in zip(expected["records"], offsets, strict=True):
        assert offset == row["offset"]
        data[offset + 4] = row["code"]
    assert data == path.read_bytes()
