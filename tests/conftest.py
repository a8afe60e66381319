"""What several test files share: the fixtures of tests/data, and comparison bit for bit."""

import functools
import json
import os
import struct
import tempfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import reference
from faults import faults  # noqa: F401  # a fixture
from milblob import _codec

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tests" / "data"
CASES = sorted(path.parent.relative_to(DATA).as_posix() for path in DATA.rglob("expected.json"))
BLOB_CASES = [name for name in CASES if name.startswith("blob_")]
MODEL_CASES = [name for name in CASES if not name.startswith("blob_") and name != "neural_network"]

# What arrays must come as, written down here and not taken from milblob.
NUMPY = {
    "BOOL": "?", "STRING": object, "FLOAT16": "<f2", "FLOAT32": "<f4", "FLOAT64": "<f8", "BFLOAT16": ml_dtypes.bfloat16,
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "INT4": ml_dtypes.int4,
    "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8", "UINT4": ml_dtypes.uint4,
    "UINT2": ml_dtypes.uint2,
    "UINT1": ml_dtypes.uint1, "UINT6": "u1", "UINT3": "u1",
    "FLOAT8E4M3FN": ml_dtypes.float8_e4m3fn, "FLOAT8E5M2": ml_dtypes.float8_e5m2,
}  # fmt: skip


@pytest.fixture
def tmp_path(request, tmp_path):
    """A directory of the test's own: in memory where faults are injected, if there is such a place.

    What those tests are about is the order of calls, and disks take long to sync.
    """
    if "faults" not in request.fixturenames or not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture(params=_codec._tiers()[0])
def tier(request):
    """Every tier of kernels that this CPU can run, one after another."""
    before = _codec._tiers()[1]
    _codec._set_tier(request.param)
    yield request.param
    _codec._set_tier(before)


class Case:
    """One fixture: expected.json as `expected`, expected.npz as `arrays`, its directory as `folder`."""

    def __init__(self, name):
        self.name = name
        self.folder = DATA / name
        self.expected = json.loads((self.folder / "expected.json").read_text(encoding="utf-8"))
        with np.load(self.folder / "expected.npz", allow_pickle=False) as arrays:
            self.arrays = dict(arrays)
        self.rows = self.expected.get("tensors", [])

    def path(self, number=0):
        return self.folder / self.expected["paths"][number]

    def source(self, path):
        """What milblob.open takes for an entry of `paths`: the path; for a bare Program, a Model around its bytes."""
        path = self.folder / path
        if path.suffix != ".pb":
            return path
        return reference.write_field(1, 8) + reference.write_field(502, path.read_bytes())

    def values(self, row):
        """The recorded values of a row: an array of the dtype that milblob must give, or a list of strings."""
        if "strings" in row:
            return row["strings"]
        return natural(self.arrays[row["npz"]], row["dtype"])


@functools.cache
def load_case(name):
    return Case(name)


def case_paths(names=MODEL_CASES):
    """Every (case, path) pair, for parametrize."""
    return [(name, path) for name in names for path in load_case(name).expected["paths"]]


def natural(array, dtype):
    """View raw bits as expected.npz keeps them as the dtype that stands for them."""
    if dtype == "INT4":
        array = array & 15  # other_fields has them sign-extended, the others as nibbles: ml_dtypes keeps nibbles
    return np.ascontiguousarray(array).reshape(array.shape).view(NUMPY[dtype])


def assert_same(got, expected, dtype):
    """Assert equal dtype, shape and bits; NaN payloads count."""
    assert isinstance(got, np.ndarray)
    assert got.dtype == np.dtype(NUMPY[dtype])
    if dtype == "STRING":
        assert got.reshape(-1).tolist() == list(expected)
        return
    assert got.shape == expected.shape
    assert got.tobytes() == expected.tobytes()


def numbers(array, dtype):
    """The elements as tests/support/reference.py has them: Python numbers, raw bits for fp16, bfloat16 and fp8."""
    nbits, kind = reference.DTYPES[dtype][2:]
    flat = np.ascontiguousarray(array).reshape(-1)
    if kind == "r":
        return flat.view(f"u{nbits // 8}").tolist()
    if nbits < 8:
        bits = flat.view("u1").tolist()
        return [v - (1 << nbits) if kind == "i" and v >> nbits - 1 else v for v in bits]
    return flat.tolist()


def tensor_value(field, array, dtype):
    """A TensorValue by tests/support/reference.py, with the values in the named field."""
    if field == "bytes" and dtype == "BOOL":
        return reference.pack_tensor_value(field, array.tobytes())
    if field == "bytes" and reference.DTYPES[dtype][2] >= 8:
        return reference.pack_tensor_value(field, array.tobytes())
    if field == "bytes":
        return reference.pack_tensor_value(field, reference.pack_elements(numbers(array, dtype), dtype))
    if field in ("floats", "doubles"):  # raw: a NaN in a Python float loses its payload
        width = "<f4" if field == "floats" else "<f8"
        data = array.astype(width, copy=False).tobytes()
        number = 1 if field == "floats" else 6
        return reference.write_field(number, reference.write_field(1, data) if data else b"")
    if (field, dtype) in (("ints", "UINT32"), ("longInts", "UINT64")):
        array = array.view(f"<i{array.itemsize}")  # a signed field: the same bits
        dtype = dtype[1:]
    return reference.pack_tensor_value(field, numbers(array, dtype))


def blob_file(*records):
    """A blob file of (dtype, array) pairs by tests/support/reference.py: (bytes, metadata offsets)."""
    bits = [("UINT32" if dtype == "FLOAT32" else dtype, array) for dtype, array in records]
    data, offsets = reference.write_blobs(
        [(dtype, numbers(array.view("<u4") if array.dtype == "<f4" else array, dtype)) for dtype, array in bits]
    )
    data = bytearray(data)
    for (dtype, _), offset in zip(records, offsets, strict=True):
        struct.pack_into("<I", data, offset + 4, reference.DTYPES[dtype][0])
    return bytes(data), offsets


def model_directory(path, model=""):
    """The directory that @model_path stands for in a model at `path`."""
    path = Path(path)
    if not path.is_dir():
        return path.parent
    if not (path / "Manifest.json").exists():
        return path / model
    manifest = json.loads((path / "Manifest.json").read_text(encoding="utf-8"))
    root = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
    return (path / "Data" / root).parent


def child_environment():
    """The environment for a new interpreter with this one's import path."""
    import sys

    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


@pytest.fixture
def cli(capsys):
    """Run main() in this process: (status, stdout, stderr)."""

    from milblob.cli import main

    def run(*argv):
        status = main([str(argument) for argument in argv])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        if status == 2:
            lines = captured.err.splitlines()
            assert len(lines) == 1, captured.err
            assert lines[0].startswith("milblob: ")
        return status, captured.out, captured.err

    return run
