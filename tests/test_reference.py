"""The oracle itself, checked against what coremltools wrote and read when the fixtures were made."""

import hashlib
import json
import re

import numpy as np
import pytest

import reference
from paths import DATA

CASES = sorted(path.parent.relative_to(DATA).as_posix() for path in DATA.rglob("expected.json"))
BLOB_CASES = [case for case in CASES if case.startswith("blob_")]
MODEL_CASES = [case for case in CASES if not case.startswith("blob_")]


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


def test_fixtures_are_the_ones_that_were_made():
    made = json.loads((DATA / "versions.json").read_text(encoding="utf-8"))["sha256"]
    of_tvm = json.loads((DATA / "tvm" / "sha256.json").read_text(encoding="utf-8"))  # by make_tvm_oracle.py
    made |= {f"tvm/{name}": digest for name, digest in of_tvm.items()}
    bundles = json.loads((DATA / "aimodel" / "sha256.json").read_text(encoding="utf-8"))  # by make_aimodel_oracle.py
    made |= {f"aimodel/{name}": digest for name, digest in bundles.items()}
    for name, digest in made.items():
        assert hashlib.sha256((DATA / name).read_bytes()).hexdigest() == digest, name
    files = {path.relative_to(DATA).as_posix() for path in DATA.rglob("*") if path.is_file()}
    loose = {name for name in files - set(made) if "__pycache__" not in name}
    assert {name for name in loose if not re.fullmatch(r"[a-z_]+\.py", name)} == {
        "README.md",
        "versions.json",
        "tvm/sha256.json",
        "aimodel/sha256.json",
        ".gitattributes",
    }


@pytest.mark.parametrize("case", MODEL_CASES)
@pytest.mark.sample(5)
def test_reads_blobs_of_models(case):
    expected, arrays, path = load_case(case)
    roots = [path.parent, *(folder for folder in path.glob("Data/*"))]
    for row in expected["tensors"]:
        if "file" not in row:
            continue
        inside = row["file"].removeprefix("@model_path/")
        file = next(root / inside for root in roots if (root / inside).exists())
        dtype, values, _, _ = reference.read_blob(file.read_bytes(), row["offset"])
        assert dtype == row["dtype"]
        assert stored(values, dtype, arrays[row["npz"]]).tobytes() == arrays[row["npz"]].tobytes()


def find(message, number):
    """The payload of a singular sub-message, its pieces merged; None if it is absent."""
    pieces = [value for field, wire, value in reference.read_fields(message) if (field, wire) == (number, 2)]
    return b"".join(pieces) if pieces else None


def tensor_values(program):
    """Yields (output name, attribute key, TensorValue bytes) of every const in the blocks of every function."""
    functions = dict(map_entries(program, 2))
    for function in functions.values():
        for block in dict(map_entries(function, 3)).values():
            for op in [value for field, _, value in reference.read_fields(block) if field == 3]:
                outputs = [value for field, _, value in reference.read_fields(op) if field == 3]
                for key, value in dict(map_entries(op, 5)).items():
                    immediate = find(value, 3)
                    if immediate is not None and find(immediate, 1) is not None:
                        yield (find(outputs[0], 1) or b"").decode(), key, find(immediate, 1)


def map_entries(message, number):
    """Yields (key, value bytes) of a map field."""
    for field, wire, entry in reference.read_fields(message):
        if (field, wire) == (number, 2):
            yield (find(entry, 1) or b"").decode(), find(entry, 2) or b""


def merge_is_concatenation(case):
    """Groups are beyond the reference; oneof members that replace each other do not merge by concatenation."""
    return case.startswith("wire/") and case not in ("wire/unknown_groups", "wire/replaced")


@pytest.mark.parametrize("case", [case for case in MODEL_CASES if merge_is_concatenation(case)])
@pytest.mark.sample(6)
def test_reads_tensor_values_off_the_wire(case):
    expected, arrays, path = load_case(case)
    found = {(name, key): data for name, key, data in tensor_values((path.parent / "program.pb").read_bytes())}
    for row in expected["tensors"]:
        if row["where"] != "attribute":
            continue
        field, values = reference.unpack_tensor_value(found[row["output"], row["parameter"]])
        assert field == row["field"]
        if "strings" in row:
            assert values == row["strings"]
            continue
        array = arrays[row["npz"]].ravel()
        values = list(values) if field == "bytes" else values
        assert np.array_equal(np.array(values, array.dtype), array)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("floats", [0.5, -1.0, float("inf")]), ("doubles", [0.1, -1e300]), ("ints", [0, 1, -1, 127, 128, -(1 << 31)]),
        ("longInts", [-(1 << 63), (1 << 63) - 1]), ("bools", [True, False]), ("strings", ["", "ü"]),
        ("bytes", b"\0\xff"),
        ("floats", []), ("ints", []), ("bytes", b""), ("strings", []),
    ],
)  # fmt: skip
def test_tensor_value_round_trip(field, values):
    assert reference.unpack_tensor_value(reference.pack_tensor_value(field, values)) == (field, values)


def test_negative_int32_takes_ten_bytes():
    assert reference.write_varint(-1) == b"\xff" * 9 + b"\x01"
    assert reference.as_int(reference.read_varint(b"\xff\xff\xff\xff\x0f", 0)[0], 32) == -1


@pytest.mark.parametrize("data", [b"\x80" * 10 + b"\x01", b"\x80", b""])
def test_bad_varints(data):
    with pytest.raises(ValueError, match="varint"):
        reference.read_varint(data, 0)
