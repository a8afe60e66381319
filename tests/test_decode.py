"""Dense values of compressed weights: every case that coremltools made (tests/data/make_constexpr.py), to the bit."""

import functools
import json

import numpy as np
import pytest

import milblob
from conftest import DATA, NUMPY, assert_same

CASES = sorted(path.parent.name for path in DATA.glob("*/dense.json"))


@functools.cache
def dense_rows(case):
    """{name: (row, array)} as coremltools decompresses the weights of a case."""
    rows = json.loads((DATA / case / "dense.json").read_text(encoding="utf-8"))["dense"]
    data = (DATA / case / "dense.bin").read_bytes()
    arrays = {}
    for row in rows:
        dtype, count = np.dtype(NUMPY[row["dtype"]]), int(np.prod(row["shape"]))
        arrays[row["output"]] = (row, np.frombuffer(data, dtype, count, row["offset"]).reshape(row["shape"]))
    return arrays


def weights():
    return [(case, name) for case in CASES for name in dense_rows(case)]


def test_there_are_many_cases():
    assert len(weights()) > 280
    operations = {row["op"] for case in CASES for row, _ in dense_rows(case).values()}
    assert {"constexpr_affine_dequantize", "constexpr_blockwise_shift_scale", "constexpr_cast", "constexpr_lut_to_dense",
            "constexpr_sparse_to_dense"} == operations  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_every_weight(case, tier):
    expected = dense_rows(case)
    arrays = milblob.load(DATA / case / "model.mlpackage")
    assert set(expected) <= set(arrays)
    for name, (row, array) in expected.items():
        assert_same(arrays[name], array, row["dtype"])
