"""unpack_tensor: shapes that fit, and what does not fit: field, count, element, where."""

from functools import partial

import numpy as np
import pytest

import milblob
import reference
from dtype_values import FIELD, FIELDS, INTEGERS, NUMERIC, NUMPY, accepted, bounds, draw, tensor_value
from matrix import every
from milblob import FormatError, pack_tensor, unpack_tensor

# --------------------------------------------------------------------------------------------------------------- shapes


def test_shapes():
    data = pack_tensor(np.arange(24, dtype=np.int32))
    assert unpack_tensor(data, "int32", (2, 3, 4)).tolist() == np.arange(24).reshape(2, 3, 4).tolist()
    assert unpack_tensor(data, "int32", [4, None]).shape == (4, 6)
    assert unpack_tensor(data, "int32", (None,)).shape == (24,)
    assert unpack_tensor(pack_tensor(np.int32(5)), "int32", ()).shape == ()
    assert unpack_tensor(pack_tensor(np.zeros((0, 3), np.int32)), "int32", (0, 3)).shape == (0, 3)
    assert unpack_tensor(pack_tensor(np.zeros(0, np.float32)), "float32", (None, 3)).shape == (0, 3)
    assert unpack_tensor(b"", "float32", (0, 7)).shape == (0, 7)
    assert unpack_tensor(b"", "string", (0,)).shape == (0,)
    half = pack_tensor(np.arange(6, dtype=np.float16))
    assert unpack_tensor(half, "float16", (None, 2)).shape == (3, 2)


def test_open_shape_of_packed_bits_counts_whole_bytes():
    data = reference.write_field(7, reference.write_field(1, b"\x21\x43"))
    assert unpack_tensor(data, "uint4", (None,)).tolist() == [1, 2, 3, 4]
    assert unpack_tensor(data, "uint4", (3,)).tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        ((23,), r"elements of ints: expected 23 for shape \(23,\), got 24"),
        ((25,), r"elements of ints: expected 25 for shape \(25,\), got 24"),
        ((), r"elements of ints: expected 1 for shape \(\), got 24"),
        ((0,), "elements of ints: expected 0"),
        ((7, None), "elements of ints: expected 21"),
        ((0, None), "elements of ints: expected 0"),
        ((1 << 40, 1 << 40), "elements of ints: expected 1208925819614629174706176"),
    ],
)
def test_counts_that_do_not_fit(shape, words):
    with pytest.raises(FormatError, match=words):
        unpack_tensor(pack_tensor(np.arange(24, dtype=np.int32)), "int32", shape)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ((b"", "int32", (None, None)), ValueError, r"shape: expected at most one open dimension, got \(None, None\)"),
        ((b"", "int32", (3, -1)), ValueError, r"shape: expected sizes of 0 or more, .*, got \(3, -1\)"),
        ((b"", "int32", None), TypeError, "shape: expected a number or several, got NoneType"),
        ((b"", "int32", "x"), TypeError, "shape: expected integers, got str"),
        ((b"", "int32", (1.5,)), TypeError, "shape: expected integers, got float"),
        ((b"", None, (0,)), TypeError, "dtype: expected a DType, a NumPy dtype or a name such as 'float16', got None"),
        ((None, "int32", (0,)), TypeError, "value: expected a buffer or a TensorValue message, got NoneType"),
        (([1], "int32", (1,)), TypeError, "value: expected a buffer or a TensorValue message, got list"),
    ],
)
def test_arguments_are_no_matter_of_the_format(arguments, kind, words):
    with pytest.raises(kind, match=f"^{words}$") as caught:
        unpack_tensor(*arguments)
    assert not isinstance(caught.value, milblob.MilblobError)


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.sample(7)
def test_one_element_more_or_less(dtype):
    for count in (1, 16, 63, 5000):
        for field in sorted(accepted(dtype)):
            data = draw("UINT1", count, 11).view("u1").astype(NUMPY[dtype])
            data = tensor_value(field, data.astype("<f4") if (dtype, field) == ("FLOAT64", "floats") else data, dtype)
            for wrong in {count - 1, count + 1, 0, 2 * count}:
                nbits = reference.DTYPES[dtype][2]
                if field == "bytes" and (wrong * nbits + 7) // 8 == (count * nbits + 7) // 8:
                    continue  # the bits at the end may be padding
                with pytest.raises(
                    FormatError, match=rf"^elements of {field}: expected {wrong} for shape \({wrong},\), got "
                ):
                    unpack_tensor(data, dtype, (wrong,))


def test_bytes_that_make_no_whole_element():
    data = reference.write_field(7, reference.write_field(1, bytes(7)))
    for dtype, nbytes in (("float16", 2), ("uint32", 4), ("int64", 8)):
        with pytest.raises(FormatError, match=f"^bytes of bytes: expected a multiple of {nbytes}, got 7 at byte 4$"):
            unpack_tensor(data, dtype, (3,))
    with pytest.raises(FormatError, match=r"expected .* got"):
        unpack_tensor(reference.write_field(1, reference.write_field(1, bytes(7))), "float32", (2,))


# --------------------------------------------------------------------------------------------------------------- errors


def test_fields_that_hold_the_dtype_and_others():
    every(check_field, FIELD, FIELDS)


def check_field(dtype, field):
    value = {"strings": ["1"], "bytes": bytes(8)}.get(field, [1])
    data = reference.pack_tensor_value(field, value)
    if field in accepted(dtype):
        shape = (1,) if field != "bytes" else (64 // reference.DTYPES[dtype][2],)
        assert unpack_tensor(data, dtype, shape).shape == shape
        return
    words = f"^tensor value of {dtype.lower()}: expected field {FIELD[dtype]}, got {field} at byte 0$"
    with pytest.raises(FormatError, match=words):
        unpack_tensor(data, dtype, (1,))


def test_no_field_at_all():
    with pytest.raises(FormatError, match="^tensor value of int8: expected field bytes, got nothing"):
        unpack_tensor(b"", "int8", (1,))


def in_field(field, values):
    return reference.pack_tensor_value(field, values)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.sample(5)
def test_values_out_of_range_are_named(dtype):
    every(partial(check_out_of_range, dtype), ["ints", "longInts"], [1, 30, 5000, 9999])


def check_out_of_range(dtype, field, count):
    low, high = bounds(dtype)
    field_low, field_high = (-(1 << 31), (1 << 31) - 1) if field == "ints" else (-(1 << 63), (1 << 63) - 1)
    for bad in (low - 1, high + 1, field_high, field_low):
        same_width = reference.DTYPES[dtype][2] == (32 if field == "ints" else 64)
        if low <= bad <= high or not field_low <= bad <= field_high or same_width:
            continue
        for index in sorted({0, count // 2, count - 1}):
            values = [1 if high > 0 else 0] * count
            values[index] = bad
            values[-1] = bad if index == count - 1 else values[-1]
            data = in_field(field, values)
            with pytest.raises(
                FormatError,
                match=rf"^element {index}: expected {low} to {min(high, (1 << 63) - 1)}, got {bad} at byte \d+$",
            ) as e:
                unpack_tensor(data, dtype, (count,))
            assert reference.read_varint(data, e.value.offset)[0] == bad & (1 << 64) - 1


@pytest.mark.parametrize("field", ["ints", "longInts"])
@pytest.mark.parametrize("first", [0, 700, 2500, 4999, 8000])
def test_the_first_of_several_bad_values_is_named(field, first):
    values = [3] * 10_000
    for index in {first, (first + 2500) % 10_000, (first + 5000) % 10_000, 9999}:
        values[index] = 999
    with pytest.raises(
        FormatError, match=f"^element {min(i for i, v in enumerate(values) if v == 999)}: expected -128 to 127, got 999"
    ):
        unpack_tensor(in_field(field, values), "int8", (10_000,))


BROKEN = {"cut": b"\x80", "cut10": b"\xff" * 9, "eleven": b"\x80" * 10 + b"\x01", "wide": b"\xff" * 9 + b"\x02"}


def test_broken_varints():
    fields = [("INT8", 2), ("UINT16", 2), ("INT32", 2), ("INT64", 5), ("UINT64", 5), ("BOOL", 3)]
    every(check_broken_varints, fields, [1, 50, 6000], BROKEN)


def check_broken_varints(dtype_and_field, count, kind):
    dtype, field = dtype_and_field
    for index in sorted({0, count // 2, count - 1}):
        if kind.startswith("cut") and index != count - 1:
            continue
        payload = b"\1" * index + BROKEN[kind] + b"\1" * (count - 1 - index)
        data = reference.write_field(field, reference.write_field(1, payload))
        with pytest.raises(FormatError) as error:
            unpack_tensor(data, dtype, (count,))
        assert error.value.offset is not None
        # cut ones are one element too few before they are one cut off; an eleven-byte one is one too many or too long
        assert "elements of" in str(error.value) or error.value.offset >= len(data) - len(payload) + index


@pytest.mark.parametrize("count", [1, 50, 6000])
def test_bools_are_zero_or_one(count):
    for bad in (b"\2", b"\xff\1", b"\x80\x80\x01", b"\xff" * 9 + b"\1"):
        for index in sorted({0, count // 2, count - 1}):
            payload = b"\1" * index + bad + b"\0" * (count - 1 - index)
            with pytest.raises(FormatError, match=f"^element {index}: expected 0 to 1, got "):
                unpack_tensor(reference.write_field(3, reference.write_field(1, payload)), "bool", (count,))


@pytest.mark.parametrize("bad", [2, 0x7F, 0x80, 0x81, 0xFF])
@pytest.mark.parametrize("count", [1, 2, 40, 6000])
def test_bools_in_bytes_are_zero_or_one(count, bad):
    for index in sorted({0, count // 2, count - 1}):
        payload = bytearray(b"\1" * count)
        payload[index] = bad
        with pytest.raises(FormatError):
            unpack_tensor(reference.write_field(7, reference.write_field(1, bytes(payload))), "bool", (count,))


def test_bools_in_bytes():
    payload = bytes(i % 3 == 0 for i in range(5001))
    got = unpack_tensor(reference.write_field(7, reference.write_field(1, payload)), "bool", (5001,))
    assert got.dtype == np.bool_
    assert got.tobytes() == payload


def test_wide_values_in_their_32_bit_field():
    for value in (1 << 32, (1 << 32) + 5, -(1 << 31) - 1, (1 << 63) | 3, -(1 << 63)):
        data = reference.write_field(2, reference.write_field(1, reference.write_varint(value)))
        for dtype in ("int32", "uint32"):
            with pytest.raises(FormatError, match=r"^element 0: expected -2147483648 to 4294967295, got "):
                unpack_tensor(data, dtype, (1,))


@pytest.mark.parametrize("value", [1 << 32, -(1 << 31) - 1, -2684354561, (1 << 63) | 3, -(1 << 63)])
def test_wide_value_among_many(value):
    """The quick decoder once took -2684354561 for 1610612735: ten bytes, and bit 31 not set."""
    for index in (0, 70, 199):
        values = [-(1 << 31), (1 << 32) - 1, -1, 5] * 50
        values[index] = value
        data = reference.write_field(2, reference.write_field(1, b"".join(map(reference.write_varint, values))))
        with pytest.raises(FormatError, match=rf"^element {index}: expected -2147483648 to 4294967295, got "):
            unpack_tensor(data, "int32", (200,))


@pytest.mark.parametrize("count", [3, 63, 64, 100, 1000])
def test_numbers_just_below_int32(count, tier):
    """All ones from bit 32 on, as in a negative int32, but bit 31 clear."""
    for value in (-(1 << 31) - 1, -(1 << 32), -(1 << 32) + 0x70000000):
        for index in (0, count // 2, count - 1):
            values = [7, -1, 300, *range(count - 3)]
            values[index] = value
            words = f"^element {index}: expected -2147483648 to 4294967295, got {value} "
            with pytest.raises(FormatError, match=words):
                unpack_tensor(in_field("ints", values), "int32", (count,))


@pytest.mark.parametrize("field", FIELDS)
def test_truncation_anywhere(field):
    value = {"strings": ["ab", "", "c"], "bytes": b"abc"}.get(field, [1, 0, 1])
    dtype = {"ints": "int32", "longInts": "int64", "floats": "float32", "doubles": "float64", "bytes": "uint8"}.get(
        field, field[:-1]
    )
    data = reference.pack_tensor_value(field, value)
    assert unpack_tensor(data, dtype, (3,)).size == 3
    for end in range(len(data)):
        with pytest.raises(FormatError):
            unpack_tensor(data[:end], dtype, (3,))


def test_strings_that_are_no_utf8():
    with pytest.raises(FormatError, match=r"UTF-8.* at byte 7$"):
        unpack_tensor(
            reference.write_field(4, reference.write_field(1, b"a") + reference.write_field(1, b"\xff")), "string", (2,)
        )


def test_errors_are_value_errors_of_milblob():
    with pytest.raises(milblob.MilblobError) as error:
        unpack_tensor(pack_tensor(np.zeros(3, np.float32)), "float32", (4,))
    assert isinstance(error.value, ValueError)
    assert "\n" not in str(error.value)


def test_shapes_as_numpy_takes_them():
    value = milblob.pack_tensor(np.arange(6, dtype=np.int32))
    assert milblob.unpack_tensor(value, "int32", 6).shape == (6,)
    assert milblob.unpack_tensor(value, "int32", [np.int64(2), 3]).shape == (2, 3)
    with pytest.raises(ValueError, match=r"shape: expected sizes of 0 or more, or None for an open one, got \(-1,\)"):
        milblob.unpack_tensor(value, "int32", (-1,))
