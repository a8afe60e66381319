"""pack_tensor and unpack_tensor: byte for byte what protobuf writes, bit for bit what it reads.

The oracle is tests/support/reference.py; where coremltools is installed, its create_tensor_value as well.
"""

import itertools
import random

import ml_dtypes
import numpy as np
import pytest

import reference
from cases import MODEL_CASES, load_case
from dtype_values import (
    FIELD,
    INTEGERS,
    NUMERIC,
    NUMPY,
    SUB_BYTE,
    accepted,
    assert_same,
    bounds,
    draw,
    natural,
    numbers,
    tensor_value,
)
from matrix import every
from milblob import DType, pack_tensor, unpack_tensor
from milblob.program import schema
from peers import WITHOUT

pytestmark = pytest.mark.wheel

NUMBER = {name: number for number, name in reference.FIELDS.items()}
COUNTS = [*range(131), 255, 256, 257, 1000, 4095, 4096, 4097, 4099]


# ------------------------------------------------------------------------------------------------------------- packing


@pytest.mark.every
@pytest.mark.parametrize("dtype", NUMERIC)
def test_pack_writes_the_bytes_of_the_reference(dtype):
    for count in COUNTS if dtype in SUB_BYTE else COUNTS[::3]:
        array = draw(dtype, count)
        packed = pack_tensor(array, dtype)
        assert type(packed) is bytes
        assert packed == tensor_value(FIELD[dtype], array, dtype)
        if dtype not in ("UINT3", "UINT6"):
            assert pack_tensor(array) == packed


@pytest.mark.every
@pytest.mark.parametrize("dtype", NUMERIC)
def test_unpack_reads_what_was_packed(dtype):
    for count in COUNTS:
        array = draw(dtype, count, 1)
        assert_same(unpack_tensor(pack_tensor(array, dtype), dtype, (count,)), array, dtype)


def test_pack_writes_the_bytes_of_coremltools():
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    from coremltools.converters.mil.backend.mil.helper import create_tensor_value
    from coremltools.converters.mil.mil.types import type_int

    checked = set()
    for dtype in NUMERIC:
        theirs = np.dtype(getattr(type_int, f"np_{dtype.lower()}_dtype", NUMPY[dtype]))
        for count in [0, 1, 7, 8, 9, 64, 129]:
            array = draw(dtype, count, 2)
            ours = pack_tensor(array, dtype)
            if dtype in SUB_BYTE:
                array = array.astype(np.int8) if dtype == "INT4" else array.view(np.uint8)
            try:
                message = create_tensor_value(array.astype(theirs))
            except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError):
                continue
            assert message.immediateValue.tensor.SerializeToString() == ours, (dtype, count)
            if count:
                checked.add(dtype)
    assert checked == set(NUMERIC) - {"UINT64", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2"}


@pytest.mark.parametrize("name", [name for name in MODEL_CASES if not name.startswith("wire/")])
@pytest.mark.sample(5)
def test_pack_writes_the_immediates_of_the_fixtures(name):
    """Every immediate that coremltools wrote (in its own choice of field), as it stands in the model file."""
    case = load_case(name)
    data = b"".join(path.read_bytes() for path in sorted(case.path().rglob("*.mlmodel")) or [case.path()])
    for row in case.rows:
        if row.get("field") == FIELD[row["dtype"]]:
            values = case.values(row)
            packed = pack_tensor(np.array(values, object) if "strings" in row else values, row["dtype"])
            assert reference.write_field(1, packed) in data  # ImmediateValue.tensor


@pytest.mark.parametrize(
    "texts", [[], [""], ["a"], ["", "", "x"], ['ü\0\n"\\', "日本", "\U0001f600"], ["x" * 200] * 70]
)
def test_strings(texts):
    expected = reference.pack_tensor_value("strings", texts)
    assert pack_tensor(np.array(texts, object), "string") == expected
    assert pack_tensor(np.array(texts, object)) == expected
    assert pack_tensor(texts, "string") == expected
    if all("\0" not in text for text in texts):
        assert pack_tensor(np.array(texts, np.str_)) == expected
        assert pack_tensor(np.array([text.encode() for text in texts], np.bytes_)) == expected
        assert pack_tensor(np.array([text.encode() for text in texts], object)) == expected
    got = unpack_tensor(expected, "string", (len(texts),))
    assert got.dtype == object
    assert got.tolist() == texts
    assert all(type(text) is str for text in got)


def test_strings_have_a_shape():
    data = reference.pack_tensor_value("strings", list("abcdef"))
    assert unpack_tensor(data, "string", (2, 3)).tolist() == [["a", "b", "c"], ["d", "e", "f"]]
    assert unpack_tensor(reference.pack_tensor_value("strings", ["x"]), DType.STRING, ()).shape == ()
    assert unpack_tensor(data, "string", (3, None)).shape == (3, 2)
    assert pack_tensor(np.array([["a", "b", "c"], ["d", "e", "f"]])) == data


@pytest.mark.parametrize("dtype", SUB_BYTE)
def test_an_open_dimension_beside_padding_bits(dtype):
    """The last byte may have room for elements that a whole number of rows does not have."""
    nbits = reference.DTYPES[dtype][2]
    for rows, columns in itertools.product(range(1, 10), range(1, 10)):
        values = draw(dtype, rows * columns, 3).reshape(rows, columns)
        data = pack_tensor(values, dtype.lower())
        fitting = [n for n in range(99) if (n * columns * nbits + 7) // 8 == (rows * columns * nbits + 7) // 8]
        for shape in ((None, columns), (columns, None)):
            found = unpack_tensor(data, dtype.lower(), shape)
            assert found.size == max(fitting) * columns
            assert found.reshape(-1)[: values.size].tolist() == values.reshape(-1).tolist()


def test_packing_takes_arrays_of_any_layout():
    array = np.arange(-60, 60, dtype=np.int32).reshape(2, 3, 4, 5)
    expected = reference.pack_tensor_value("ints", list(range(-60, 60)))
    assert pack_tensor(array) == expected
    assert pack_tensor(array.astype(">i4")) == expected
    assert pack_tensor(np.asfortranarray(array)) == expected
    assert pack_tensor(np.repeat(array, 2, axis=3)[..., ::2]) == expected
    assert pack_tensor(array[::-1, ::-1, ::-1, ::-1]) == reference.pack_tensor_value("ints", list(range(59, -61, -1)))
    assert pack_tensor(array.tolist(), "int32") == expected
    unaligned = np.frombuffer(b"x" + array.tobytes(), np.uint8)[1:].view("<i4")
    assert not unaligned.flags.aligned
    assert pack_tensor(unaligned) == expected
    doubles = np.linspace(-1, 1, 7)
    assert pack_tensor(doubles.astype(">f8")) == reference.pack_tensor_value("doubles", doubles.tolist())
    assert pack_tensor(np.array(list(range(14)), ">u2")) == reference.pack_tensor_value("ints", list(range(14)))


def test_text_keeps_its_last_characters():
    """NumPy's own text arrays drop NULs at the end; lists and single strings do not go through them."""
    expected = reference.pack_tensor_value("strings", ["a\0", "\0"])
    assert pack_tensor(["a\0", "\0"]) == expected
    assert pack_tensor(["a\0", "\0"], "string") == expected
    assert pack_tensor(np.array(["a\0", "\0"], object)) == expected
    assert pack_tensor(np.str_("a\0")) == pack_tensor("a\0") == reference.pack_tensor_value("strings", ["a\0"])


@pytest.mark.parametrize("dtype", list(FIELD))
@pytest.mark.sample(8)
def test_an_empty_list_is_of_any_dtype(dtype):
    assert pack_tensor([], dtype) == reference.pack_tensor_value(FIELD[dtype], b"" if FIELD[dtype] == "bytes" else [])


def test_packing_takes_scalars_and_lists():
    assert pack_tensor(np.float32(0.5)) == reference.pack_tensor_value("floats", [0.5])
    assert pack_tensor(0.5, "float32") == reference.pack_tensor_value("floats", [0.5])
    assert pack_tensor([0.5, 1], DType.FLOAT32) == reference.pack_tensor_value("floats", [0.5, 1])
    assert pack_tensor(7, "int32") == reference.pack_tensor_value("ints", [7])
    assert pack_tensor([True, False]) == reference.pack_tensor_value("bools", [True, False])
    assert pack_tensor([1, 0], "bool") == reference.pack_tensor_value("bools", [True, False])
    assert pack_tensor([1.0], "bfloat16") == reference.pack_tensor_value("bytes", b"\x80\x3f")
    assert pack_tensor(np.zeros((3, 0), np.int32)) == b"\x12\x00"


@pytest.mark.parametrize("name", ["float16", "FLOAT16", "fp16", np.float16, "<f2", DType.FLOAT16])
def test_dtypes_by_any_name(name):
    array = np.arange(3, dtype=np.float16)
    assert pack_tensor(array, name) == reference.pack_tensor_value("bytes", array.tobytes())
    assert_same(unpack_tensor(pack_tensor(array), name, (3,)), array, "FLOAT16")


def test_bools_that_are_views_of_foreign_bytes():
    foreign = np.array([0, 1, 2, 255, 128, 0], np.uint8).view(np.bool_)
    assert pack_tensor(foreign) == reference.pack_tensor_value("bools", [False, True, True, True, True, False])
    many = np.full(5000, 0x80, np.uint8).view(np.bool_)
    assert pack_tensor(many) == reference.pack_tensor_value("bools", [True] * 5000)


def test_narrowing_checks_every_value():
    every(check_narrowing, INTEGERS, INTEGERS)


def check_narrowing(own, target):
    (own_low, own_high), (low, high) = bounds(own), bounds(target)
    values = sorted({v for v in (own_low, own_high, low, high, low - 1, high + 1, 0, 1) if own_low <= v <= own_high})
    for value in values:
        array = np.array([0, value, 0], NUMPY[own])
        if own in ("UINT3", "UINT6"):  # their arrays are uint8 and cannot say so
            continue
        if low <= value <= high:
            assert pack_tensor(array, target) == tensor_value(
                FIELD[target], np.array([0, value, 0], NUMPY[target]), target
            )
        else:
            with pytest.raises(OverflowError, match=f"^element 1: expected {low} to {high}, got {value}$"):
                pack_tensor(array, target)


@pytest.mark.parametrize("index", [0, 1, 2499, 4998, 4999])
@pytest.mark.parametrize("dtype", SUB_BYTE)
def test_sub_byte_values_out_of_range_are_found(dtype, index):
    low, high = bounds(dtype)
    array = np.zeros(5000, np.int8 if dtype == "INT4" else np.uint8)
    array[index] = high + 1
    array[-1] = max(array[-1], high)
    with pytest.raises(OverflowError, match=f"^element {index}: expected {low} to {high}, got {high + 1}$"):
        pack_tensor(array, dtype)
    if dtype == "INT4":
        array[index] = -9
        with pytest.raises(OverflowError, match=f"^element {index}: expected -8 to 7, got -9$"):
            pack_tensor(array, dtype)


def test_int4_in_memory():
    values = list(range(-8, 8))
    expected = reference.pack_tensor_value("bytes", reference.pack_elements(values, "INT4"))
    assert pack_tensor(np.array(values, np.int8), "int4") == expected
    assert pack_tensor(np.array(values, ml_dtypes.int4)) == expected
    assert pack_tensor(np.array(values, np.int64), "int4") == expected
    sign_extended = np.array(values, np.int8).view(ml_dtypes.int4)  # what some code makes of it
    assert pack_tensor(sign_extended) == expected
    got = unpack_tensor(expected, "int4", (16,))
    assert got.view(np.uint8).tolist() == [v & 15 for v in values]
    assert got.astype(np.int8).tolist() == values


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.zeros(2, np.float32), "float16"),
        (np.zeros(2, np.float32), "int32"),
        (np.zeros(2, np.int32), "float32"),
        (np.zeros(2, np.bool_), "int8"),
        (np.zeros(2, np.int8), "bool"),
        (np.zeros(2, np.float32), "string"),
        (np.array(["a"]), "int8"),
        (np.zeros(2, np.float16), "bfloat16"),
        (np.zeros(2, np.complex64), None),
        (np.zeros(2, "M8[s]"), None),
        (np.array([1, 2], object), None),
        (np.zeros(2, np.float32), "no such dtype"),
        (np.zeros(2, np.float32), object()),
        ([b"a", 1], "string"),
    ],
)
def test_arrays_that_are_refused(array, dtype):
    with pytest.raises(TypeError, match=r"(array|dtype): expected "):
        pack_tensor(array, dtype)


# ------------------------------------------------------------------------------------------------ spellings on the wire


def varint_field(number, value):
    return reference.write_varint(number << 3) + reference.write_varint(value)


def items(field, dtype, array):
    """Encoded elements of a numeric field, one bytes object each."""
    if field in ("floats", "doubles"):
        width = "<f4" if field == "floats" else "<f8"
        return [value.tobytes() for value in np.asarray(array).astype(width, copy=False)]
    return [reference.write_varint(value) for value in numbers(array, dtype)]


def spellings(field, dtype, array, seed=0):
    """Yield (kind, TensorValue): every way in which the wire can spell the same values."""
    random_cut = random.Random(seed)
    parts = items(field, dtype, array)
    wire = {"floats": 5, "doubles": 1}.get(field, 0)
    single = [reference.write_varint(1 << 3 | wire) + part for part in parts]

    def packed(some):
        return reference.write_field(1, b"".join(some))

    def whole(*messages):
        return b"".join(reference.write_field(NUMBER[field], message) for message in messages)

    cuts = sorted(random_cut.randrange(len(parts) + 1) for _ in range(3))
    pieces = [parts[a:b] for a, b in zip([0, *cuts], [*cuts, len(parts)], strict=True)]
    yield "packed", whole(packed(parts))
    yield "unpacked", whole(b"".join(single))
    yield "chunks", whole(b"".join(packed(piece) for piece in pieces))
    singles = [single[a:b] for a, b in zip([0, *cuts], [*cuts, len(parts)], strict=True)]
    mixed = [packed(pieces[i]) if i % 2 else b"".join(singles[i]) for i in range(len(pieces))]
    yield "mixed", whole(b"".join(mixed))
    yield "split", whole(*(packed(piece) for piece in pieces))
    yield "unknown", b"\xf8\x07\x05" + whole(b"\xf8\x07\x05" + packed(parts) + b"\xfa\x07\x01x") + b"\xf2\x07\x00"
    yield "replaced", reference.write_field(7 if field != "bytes" else 1, packed([b"gone"])) + whole(packed(parts))
    if wire == 0:
        padded = [
            part[:-1] + bytes([part[-1] | 0x80]) + b"\x80" * (9 - len(part)) + b"\0" if len(part) < 10 else part
            for part in parts
        ]
        yield "padded", whole(packed(padded))


def test_every_spelling():
    every(check_spellings, [name for name in NUMERIC if accepted(name) - {"bytes"}], [0, 1, 2, 3, 10, 31, 130, 5001])


def check_spellings(dtype, count):
    array = draw(dtype, count, 3)
    for field in sorted(accepted(dtype) - {"bytes"}):
        values = array
        if field == "ints" and dtype in ("INT64", "UINT64"):  # what 32 bits hold
            values = draw(dtype.replace("64", "16"), count, 3).astype(array.dtype)
        if dtype == "FLOAT64" and field == "floats":
            values = draw("FLOAT32", count, 3)
        with np.errstate(invalid="ignore"):
            expected = values.astype(NUMPY[dtype])
        for kind, data in spellings(field, dtype, values, count):
            if count == 0 and kind == "replaced":
                assert unpack_tensor(data, dtype, (0,)).shape == (0,)
                continue
            got = unpack_tensor(data, dtype, (count,))
            assert_same(got, expected, dtype)
            assert got.flags.c_contiguous


def test_the_last_bytes_count():
    inner = reference.write_field(1, b"first") + reference.write_field(1, b"xyz")
    data = reference.write_field(7, inner)
    assert unpack_tensor(data, "uint8", (3,)).tobytes() == b"xyz"
    again = reference.write_field(7, reference.write_field(1, b"first")) + reference.write_field(7, b"")
    assert unpack_tensor(again, "uint8", (5,)).tobytes() == b"first"


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.sample(7)
def test_messages_of_both_bindings(dtype):
    array = draw(dtype, 37, 4)
    data = pack_tensor(array, dtype)
    assert_same(unpack_tensor(schema.parse("TensorValue", data), dtype, (37,)), array, dtype)
    for view in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert_same(unpack_tensor(view, dtype, (37,)), array, dtype)


def test_messages_of_coremltools():
    proto = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"]).proto
    for dtype in NUMERIC:
        array = draw(dtype, 37, 5)
        message = proto.MIL_pb2.TensorValue.FromString(pack_tensor(array, dtype))
        assert message.WhichOneof("value") == FIELD[dtype]
        assert message.SerializeToString() == pack_tensor(array, dtype)
        assert_same(unpack_tensor(message, dtype, (37,)), array, dtype)
    message = proto.MIL_pb2.TensorValue()
    message.strings.values.extend(["a", "ü"])
    assert unpack_tensor(message, "string", (2,)).tolist() == ["a", "ü"]
    assert message.SerializeToString() == pack_tensor(["a", "ü"])
    with pytest.raises(TypeError, match="expected a TensorValue message, got CoreML.Specification.MILSpec.Value"):
        unpack_tensor(proto.MIL_pb2.Value(), "int8", (1,))


@pytest.mark.parametrize("value", [None, 5, "text", object()])
def test_neither_bytes_nor_message(value):
    with pytest.raises(TypeError):
        unpack_tensor(value, "int8", (1,))


def test_another_message():
    with pytest.raises(TypeError, match=r"expected a TensorValue message, got .*Value"):
        unpack_tensor(schema.Value(), "int8", (1,))


# --------------------------------------------------------------------------------------------------- exhaustive, bounds


@pytest.mark.parametrize("dtype", SUB_BYTE)
def test_every_byte_of_packed_values(dtype):
    nbits = reference.DTYPES[dtype][2]
    data = bytes(range(256)) * 3
    count = len(data) * 8 // nbits
    got = unpack_tensor(reference.write_field(7, reference.write_field(1, data)), dtype, (count,))
    assert numbers(got, dtype) == reference.unpack_elements(data, dtype, count)
    assert pack_tensor(got, dtype) == reference.write_field(7, reference.write_field(1, data))


@pytest.mark.parametrize("dtype", [name for name in NUMERIC if reference.DTYPES[name][2] in (8, 16)])
def test_every_pattern_of_8_and_16_bits(dtype):
    nbits = reference.DTYPES[dtype][2]
    array = np.arange(2 if dtype == "BOOL" else 1 << nbits).astype(f"<u{nbits // 8}").view(NUMPY[dtype])
    packed = pack_tensor(array, dtype)
    assert packed == tensor_value(FIELD[dtype], array, dtype)
    assert_same(unpack_tensor(packed, dtype, array.shape), array, dtype)


@pytest.mark.parametrize("dtype", [name for name in INTEGERS if reference.DTYPES[name][2] >= 8])
def test_bounds_of_varint_lengths(dtype):
    low, high = bounds(dtype)
    values = sorted({s * (1 << k) + d for k in range(65) for s in (1, -1) for d in (-1, 0, 1)})
    values = [v for v in values if low <= v <= high]
    array = np.array(values, NUMPY[dtype])
    for field in ("ints", "longInts"):
        if field == "ints" and reference.DTYPES[dtype][2] == 64:
            continue
        data = tensor_value(field, array, dtype)
        assert_same(unpack_tensor(data, dtype, array.shape), array, dtype)
        for value in values:  # alone, at the very end of the buffer
            one = np.array([value], NUMPY[dtype])
            assert_same(unpack_tensor(tensor_value(field, one, dtype), dtype, (1,)), one, dtype)
    assert pack_tensor(array) == tensor_value(FIELD[dtype], array, dtype)
    assert_same(unpack_tensor(pack_tensor(array), dtype, array.shape), array, dtype)


def test_a_negative_int32_in_five_bytes():
    data = reference.write_field(2, reference.write_field(1, b"\xff\xff\xff\xff\x0f\x80\x80\x80\x80\x08"))
    assert unpack_tensor(data, "int32", (2,)).tolist() == [-1, -(1 << 31)]
    assert unpack_tensor(data, "uint32", (2,)).tolist() == [(1 << 32) - 1, 1 << 31]


@pytest.mark.parametrize("dtype", ["INT16", "UINT16", "INT32", "INT64", "UINT64", "BOOL"])
def test_a_hundred_thousand_mixed_numbers(dtype):
    array = draw(dtype, 100_000, 6)
    data = tensor_value(FIELD[dtype], array, dtype)
    assert pack_tensor(array) == data
    assert_same(unpack_tensor(data, dtype, (400, 250)), array.reshape(400, 250), dtype)


@pytest.mark.parametrize("dtype", ["INT8", "UINT8", "INT4", "UINT3", "UINT32"])
def test_a_hundred_thousand_numbers_in_another_field(dtype):
    array = draw(dtype, 100_000, 7)
    assert_same(unpack_tensor(tensor_value("ints", array, dtype), dtype, (100_000,)), array, dtype)


def test_nan_payloads_survive():
    rng = np.random.default_rng(8)
    for dtype, exponent in (
        ("FLOAT32", 0x7F800000),
        ("FLOAT64", 0x7FF0000000000000),
        ("FLOAT16", 0x7C00),
        ("BFLOAT16", 0x7F80),
    ):
        width = reference.DTYPES[dtype][2] // 8
        bits = np.frombuffer(rng.bytes(500 * width), f"<u{width}") | exponent
        array = natural(bits, dtype)
        assert pack_tensor(array) == tensor_value(FIELD[dtype], array, dtype)
        assert_same(unpack_tensor(pack_tensor(array), dtype, (500,)), array, dtype)


# --------------------------------------------------------------------------------------------------------------- memory


@pytest.mark.parametrize(
    "dtype", ["FLOAT32", "FLOAT64", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "UINT32", "FLOAT8E5M2"]
)
def test_views_of_the_bytes(dtype):
    array = draw(dtype, 1000, 9)
    data = pack_tensor(array)
    got = unpack_tensor(data, dtype, (10, 100))
    assert np.shares_memory(got, np.frombuffer(data, np.uint8))
    assert not got.flags.writeable
    del data
    assert got.tobytes() == array.tobytes()


@pytest.mark.parametrize("dtype", ["BOOL", "INT32", "INT64", "UINT16", "INT4", "UINT6"])
def test_what_is_decoded_is_new(dtype):
    data = pack_tensor(draw(dtype, 100, 10), dtype)
    got = unpack_tensor(data, dtype, (100,))
    assert not np.shares_memory(got, np.frombuffer(data, np.uint8))


def test_views_may_be_unaligned():
    array = np.arange(5, dtype=np.float64)
    data = b"xyz" + pack_tensor(array)
    got = [
        unpack_tensor(memoryview(data)[3:] if i == 0 else b"" + pack_tensor(array), "float64", (5,)) for i in range(2)
    ]
    assert all(values.tolist() == array.tolist() for values in got)
