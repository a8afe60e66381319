"""Rules about compressed weights that depend on values: what reading a weight refuses, `check` reports."""

import numpy as np
import pytest

import milblob
from constexpr_bytes import constexpr
from hostile_bytes import model, program

INT8, UINT8 = np.zeros((3, 4), np.int8), np.zeros(2, np.uint8)
HALF, FOUR = ("FLOAT16", np.float16(1)), ("FLOAT16", np.ones(4, np.float16))


def integer(*numbers):
    return "INT32", np.array(numbers, np.int32).reshape(() if len(numbers) == 1 else -1)


def sizes(*numbers):
    return "UINT32", np.array(numbers, np.uint32)


def affine(axis, scale=HALF):
    return "affine_dequantize", (3, 4), {
        "quantized_data": ("INT8", INT8), "scale": scale, "zero_point": ("INT8", np.int8(0)), "axis": axis
    }  # fmt: skip


def blocks(data, offset):
    types = {"INT8": np.int8, "UINT8": np.uint8, "FLOAT16": np.float16, "FLOAT32": np.float32}
    parts = {"data": (data, np.zeros((3, 4), types[data])), "scale": ("FLOAT16", np.ones((1, 1), np.float16))}
    return "blockwise_shift_scale", (3, 4), parts | {"offset": (offset, np.zeros((1, 1), types[offset]))}


def vectors(axis, shape=(3, 8)):
    lut = ("FLOAT16", np.zeros((1, 1, 2, 2), np.float16))
    return "lut_to_dense", shape, {"indices": ("UINT1", np.zeros((3, 4), "u1")), "lut": lut, "vector_axis": axis}


def packed(stated, shape=(3, 4)):
    return "lut_to_dense", shape, {
        "indices": ("UINT8", UINT8), "lut": ("FLOAT16", np.zeros(2, np.float16)), "shape": stated
    }  # fmt: skip


def sparse(stated, shape=(3, 4)):
    parts = {"mask": ("UINT8", UINT8), "nonzero_data": ("FLOAT16", np.zeros(0, np.float16)), "shape": stated}
    return "sparse_to_dense", shape, parts


SOUND = [
    affine(integer(1), FOUR),
    affine(integer(-1), FOUR),
    affine(integer(-2)),
    blocks("INT8", "INT8"),
    blocks("INT8", "FLOAT16"),
    blocks("UINT8", "FLOAT32"),
    blocks("FLOAT16", "FLOAT32"),
    vectors(integer(1)),
    vectors(integer(-2), (6, 4)),
    packed(sizes(3, 4)),
    sparse(sizes(3, 4)),
]
BROKEN = [
    (affine(integer(2)), "axis: expected -2 to 1, got 2"),
    (affine(integer(-3)), "axis: expected -2 to 1, got -3"),
    (affine(integer(0, 0)), "axis: expected one integer, got the shape [2]"),
    (affine(integer(0), FOUR), "scale: expected a number, or as many as axis 0 of [3, 4], got [4]"),
    (blocks("INT8", "UINT8"), "data type of the offset: expected int8, float16 or float32, got uint8"),
    (blocks("FLOAT16", "INT8"), "data type of the offset: expected float16 or float32, got int8"),
    (vectors(integer(2)), "vector_axis: expected -2 to 1, got 2"),
    (vectors(integer(0)), "shape of the result: expected [6, 4], which the parts make, got [3, 8]"),
    (packed(sizes(4, 3)), "shape of the result: expected [4, 3], which the parts make, got [3, 4]"),
    (packed(sizes(3, 40)), "indices: expected a vector of 15 bytes, got [2]"),
    (packed(sizes(12)), "shape: expected a vector of 2, which the result has as dimensions, got [1]"),
    (sparse(sizes(4, 3)), "shape of the result: expected [4, 3], which the parts make, got [3, 4]"),
]


def breaches(made, as_attributes, path):
    """The breaches of MIL049 of a weight, and whether it can be read."""
    kind, shape, parts = made
    opset = "CoreML6" if "shape" in parts else "CoreML8"
    operation = constexpr(kind, [("w", "FLOAT16", shape)], parts, as_attributes)
    path.write_bytes(model(program(operation, opset=opset), 9))
    try:
        milblob.load(path)
        is_readable = True
    except milblob.FormatError:
        is_readable = False
    found = milblob.check(path, rules="MIL049").findings
    assert all(one.where == f"main.block['{opset}'].op[0] 'w'" for one in found)
    return [one.message.removeprefix(f"constexpr_{kind}, ") for one in found], is_readable


@pytest.mark.parametrize("as_attributes", [False, True])
def test_check_reports_what_reading_refuses(tmp_path, as_attributes):
    path = tmp_path / "m.mlmodel"
    for made in SOUND:
        assert breaches(made, as_attributes, path) == ([], True), made
    for made, words in BROKEN:
        found, is_readable = breaches(made, as_attributes, path)
        assert words in found and not is_readable, (made, found)


@pytest.mark.parametrize("kind", ["lut_to_sparse", "sparse_blockwise_shift_scale"])
def test_both_outputs_of_sparse_operations(tmp_path, kind):
    """A mask and values: each has the shape and the data type that the parts make."""
    bits, scale = ("UINT1", np.ones((3, 4), np.uint8)), ("FLOAT16", np.ones((1, 1), np.float16))
    parts = {"data_mask": bits, "nonzero_data": ("INT8", np.zeros(12, np.int8)), "scale": scale}
    shape, count = [3, 4], 12
    if kind == "lut_to_sparse":
        lut = ("FLOAT16", np.zeros((1, 1, 2, 2), np.float16))
        stored = "UINT1", np.zeros(12, np.uint8)
        parts = {"indices_mask": bits, "indices_nonzero_data": stored, "lut": lut, "vector_axis": integer(-1)}
        shape, count = [3, 8], 24
    for mask, values, words in [
        (("UINT1", shape), ("FLOAT16", [count]), []),
        (
            ("UINT1", [24]),
            ("FLOAT16", [count]),
            [f"shape of the mask: expected {shape}, which the parts make, got [24]"],
        ),
        (
            ("UINT1", shape),
            ("FLOAT16", [5]),
            [f"shape of the result: expected [{count}], which the parts make, got [5]"],
        ),
        (
            ("UINT1", shape),
            ("FLOAT32", [count]),
            ["data type of the result: expected float16, which the parts make, got float32"],
        ),
    ]:
        outputs = [("mask", *mask), ("values", *values)]
        (tmp_path / "m.mlmodel").write_bytes(model(program(constexpr(kind, outputs, parts), opset="CoreML8"), 9))
        found = milblob.check(tmp_path / "m.mlmodel", rules="MIL049").findings
        assert [one.message for one in found] == [f"constexpr_{kind}, {one}" for one in words]


def test_offsets_of_sparse_blocks(tmp_path):
    bits, scale = ("UINT1", np.ones((3, 4), np.uint8)), ("FLOAT16", np.ones((1, 1), np.float16))
    parts = {"data_mask": bits, "nonzero_data": ("INT8", np.zeros(12, np.int8)), "scale": scale}
    outputs = [("mask", "UINT1", [3, 4]), ("values", "FLOAT16", [12])]
    for stated, dtype, count in [("INT8", np.int8, 0), ("FLOAT32", np.float32, 0), ("UINT8", np.uint8, 1)]:
        operation = constexpr(
            "sparse_blockwise_shift_scale", outputs, parts | {"offset": (stated, np.zeros((1, 1), dtype))}
        )
        (tmp_path / "m.mlmodel").write_bytes(model(program(operation, opset="CoreML8"), 9))
        assert len(milblob.check(tmp_path / "m.mlmodel", rules="MIL049").findings) == count, stated


def test_operations_that_differ_in_an_attribute_alone(tmp_path):
    """Operations that are alike are judged once: these are not."""
    path = tmp_path / "m.mlmodel"
    operations = [
        constexpr(kind, [(f"w{axis}", "FLOAT16", shape)], parts, True)
        for axis in (0, 2, 1)
        for kind, shape, parts in [affine(integer(axis))]
    ]
    path.write_bytes(model(program(*operations), 9))
    [one] = milblob.check(path, rules="MIL049").findings
    assert one.where.endswith("'w2'") and one.message.endswith("axis: expected -2 to 1, got 2")
