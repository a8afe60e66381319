"""The rule about axes: each is a dimension of what it counts, from the first on or, if negative, from the last."""

import pytest

from milblob.dtypes import DType
from milblob.program.types import TensorType
from milblob.rules.operation_rules import Bound
from milblob.rules.output_rules import axis_breaches

MATRIX, NUMBER = Bound(TensorType(DType.FLOAT32, (2, 3), 2), False), TensorType(DType.INT32, (), 0)


def words(kind, key, *axes, counted="x", bindings=(MATRIX,)):
    """What is wrong with an operation that has these axes."""
    arguments = [(counted, bindings), (key, (Bound(NUMBER, True, axes),))]
    found = list(axis_breaches(kind, arguments))
    assert {rule for rule, _ in found} <= {"MIL050"}
    return [message for _, message in found]


@pytest.mark.parametrize(
    ("kind", "key", "counted", "rank"),
    [
        ("softmax", "axis", "x", 2), ("reduce_sum", "axes", "x", 2), ("scatter", "axis", "data", 2), ("concat", "axis", "values", 2),
        ("stack", "axis", "values", 3), ("one_hot", "axis", "indices", 3), ("expand_dims", "axes", "x", 3), ("quantize", "axis", "input", 2),
        ("reverse_sequence", "seq_axis", "x", 2), ("reverse_sequence", "batch_axis", "x", 2),
    ],
)  # fmt: skip
@pytest.mark.sample(10)
def test_axes(kind, key, counted, rank):
    for axis in range(-rank, rank):
        assert words(kind, key, axis, counted=counted, bindings=(MATRIX, MATRIX)) == []
    for axis in (-rank - 1, rank, 1 << 31):
        expected = [f"{key} of {kind}: expected {-rank} to {rank - 1}, got {axis}"]
        assert words(kind, key, axis, counted=counted) == expected


def test_what_is_not_known_is_not_judged():
    for bindings in ((), (None,), (Bound(TensorType(DType.FLOAT32, (), -1), False),), (Bound(NUMBER, False),)):
        assert words("softmax", "axis", 7, bindings=bindings) == []
    assert words("flatten2d", "axis", 2) == []  # a place between dimensions


def test_permutations():
    assert words("transpose", "perm", 1, 0) == words("transpose", "perm", -1, 0) == []
    for perm in ((0, 0), (0,), (0, 1, 1)):
        expected = [f"perm of transpose: expected each of 2 dimensions once, got {list(perm)}"]
        assert words("transpose", "perm", *perm) == expected
    assert words("transpose", "perm", 0, 5) == ["perm of transpose: expected -2 to 1, got 5"]


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("depth_to_space", "block_size"), ("space_to_depth", "block_size"), ("pixel_shuffle", "upscale_factor"),
        ("pixel_unshuffle", "downscale_factor"), ("conv", "strides"), ("conv", "dilations"), ("conv", "groups"),
        ("max_pool", "kernel_sizes"), ("space_to_batch", "block_shape"),
    ],
)  # fmt: skip
def test_sizes_below_one(kind, key):
    assert words(kind, key, 1) == words(kind, key, 2, 1) == words(kind, key) == []
    for wrong in (0, -2):
        assert words(kind, key, 3, wrong) == [f"{key} of {kind}: expected 1 or more, got {wrong}"]
