"""Large new arrays and bytes ask the system for huge pages: touching small pages for the first time costs more than the arithmetic."""

import os
import pathlib

import numpy as np
import pytest

import milblob
import reference
from milblob.values.cast import cast_array
from milblob.values.tensorvalue import stored_bytes

COUNT = 9 << 20
SMAPS = pathlib.Path("/proc/self/smaps")


def is_advised(data):
    """Whether the system was asked for huge pages in the middle of these bytes."""
    array = np.frombuffer(data, np.uint8)
    middle, is_ours = array.__array_interface__["data"][0] + array.size // 2, False
    for line in SMAPS.read_text().splitlines():
        words = line.split()
        if "-" in words[0] and not words[0].endswith(":"):
            low, high = (int(part, 16) for part in words[0].split("-"))
            is_ours = low <= middle < high
        elif is_ours and words[0] == "VmFlags:":
            return "hg" in words
    raise AssertionError("no flags of this memory")


@pytest.fixture(scope="module", autouse=True)
def huge_pages():
    """Where the system has them. NumPy asks for those of its arrays, unless it was told not to."""
    if not os.path.exists("/sys/kernel/mm/transparent_hugepage/enabled") or "hg" not in SMAPS.read_text():
        probe = np.empty(COUNT, np.uint8)
        probe[:] = 1
        if not SMAPS.exists() or not is_advised(probe):
            pytest.skip("no huge pages, or NumPy does not ask for them: that results are put on them is not tested")


def test_new_arrays(tmp_path):
    bits = np.zeros(COUNT, np.uint8)
    with milblob.BlobWriter(tmp_path / "w.bin") as blobs:
        offset = blobs.write(bits, "uint4")
    with milblob.BlobReader(tmp_path / "w.bin") as blobs:
        assert is_advised(blobs.read(offset))
    with milblob.open(tmp_path / "w.bin") as model:
        assert is_advised(model["#0"].read().view(np.uint8))
    assert is_advised(cast_array(np.zeros(COUNT, np.float32), "float16")[0])
    assert is_advised(stored_bytes(np.zeros(2 * COUNT, np.uint8), milblob.DType.UINT4))


def test_tensor_values():
    for dtype in ("int32", "bool", "uint6", "float32"):
        value = milblob.pack_tensor(np.zeros(2 * COUNT, {"uint6": "uint8"}.get(dtype, dtype)), dtype)
        assert is_advised(value)
        if dtype != "float32":
            assert is_advised(milblob.unpack_tensor(value, dtype, (2 * COUNT,)))
    half = reference.write_field(1, bytes(4 * COUNT // 2))
    pieces = reference.write_field(1, half + half)  # put together in memory of our own
    assert is_advised(milblob.unpack_tensor(pieces, "float32", (COUNT,)).view(np.uint8))
