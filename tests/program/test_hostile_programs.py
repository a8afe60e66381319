"""Bad Programs, numbered: each ends in the documented class, with its offset and its path in the Program."""

# One attack per line, however long it is.

import pytest

import milblob
from hostile_bytes import (
    FLOATS,
    blob_value,
    const,
    field,
    function,
    immediate,
    list_value,
    model,
    nested_fields,
    operation,
    program,
    tensor_type,
)
from matrix import every
from reference import write_varint

GOOD = immediate(11, [10], FLOATS)
HERE = "main.block['CoreML7'].op[0] 'w'.val"
MOST = (1 << 64) - 1


def nested(count, wrap, core=b""):
    for _ in range(count):
        core = wrap(core)
    return core


def in_block(block):
    """A Program whose only block has these bytes."""
    return field(1, 1) + field(
        2, field(1, "main") + field(2, field(2, "CoreML7") + field(3, field(1, "CoreML7") + field(2, block)))
    )


# number, Program, words, path inside the Program
BAD_PROGRAMS = [
    (1, program(const(immediate(99, [10], FLOATS))), "MIL dtype code: expected one that is known, got 99", HERE),
    (2, program(const(immediate((1 << 32) + 11, [10], FLOATS))), "MIL dtype code", HERE),
    (3, program(const(immediate(11, [10], FLOATS, rank=2))), "rank of a type: expected 2 dimensions, got 1", HERE),
    (4, program(const(immediate(11, [10], FLOATS, rank=MOST))), "rank of a type", HERE),
    (5, program(const(immediate(11, [MOST], FLOATS))), "size of a dimension: expected 18446744073709551614, got 18446744073709551615", HERE),
    (6, program(const(immediate(11, [1 << 32, 1 << 32], FLOATS))), "element count of a type: expected a number below 2^64", HERE),
    (7, program(const(immediate(11, [1 << 62, 5], FLOATS))), "element count of a type", HERE),
    (8, program(const(field(2, b"") + field(5, field(1, "@model_path/w") + field(2, 64)))), "type of a BlobFileValue", HERE),
    (9, program(operation(attributes=[("val", b"\x12" + b"\xff" * 10 + b"\x01")])), "varint: expected at most 10 bytes", HERE),
    (10, program(operation(attributes=[("val", b"\x12\x7f")])), "length prefix: expected 127 bytes, got 0", HERE),
    (11, program(operation(attributes=[("val", b"\x12" + write_varint(MOST))])), "length prefix: expected 18446744073709551615", HERE),
    (12, program(operation(attributes=[("val", b"\x12" + write_varint(1 << 63))])), "length prefix: expected 9223372036854775808", HERE),
    (13, program(operation(attributes=[("val", b"\x12\x80")])), "varint: expected 2 more bytes, got 1", HERE),
    (14, program(operation(attributes=[("val", b"\x10\x01")])), "member of Value: expected wire type 2, got 0", HERE),
    (15, program(operation(attributes=[("val", b"\x00")])), "field number: expected 1 to 536870911, got 0", HERE),
    (16, program(operation(attributes=[("val", b"\x0e")])), "wire type: expected 0 to 3 or 5, got 6", HERE),
    (17, program(operation(attributes=[("val", b"\x0c")])), "wire type: expected 0 to 3 or 5, got 4", HERE),
    (18, program(operation(attributes=[("val", b"\x0b")])), "end of group: expected 1 more bytes, got 0", HERE),
    (19, program(operation(attributes=[("val", b"\x0b\x14")])), "end of group: expected the field number of its start, got 2", HERE),
    (20, program(operation(attributes=[("val", b"\x0b" * 100_000)])), "groups: expected at most 200 levels", HERE),
    (21, program(operation(attributes=[("val", b"\x0d\0\0\0")])), "fixed-width field: expected 4 more bytes, got 3", HERE),
    (22, program(operation(attributes=[("val", b"\x09\0\0\0")])), "fixed-width field: expected 8 more bytes, got 3", HERE),
    (23, program(operation(attributes=[("val", b"\xff\xff\xff\xff\xff\x01")])), "field number", HERE),
    (24, program(const(nested(250, lambda inner: list_value([inner])))), "lists, tuples and dictionaries: expected at most 200", HERE),
    (25, program(const(nested(5000, lambda inner: field(3, field(2, field(1, inner)))))), "expected at most 200 levels", HERE),
    (26, program(const(nested(5000, lambda inner: field(3, field(4, field(1, field(1, inner))))))), "expected at most 200 levels", HERE),
    (27, in_block(nested(5000, lambda inner: field(3, field(1, "cond") + field(4, inner)))), "nested blocks: expected at most 200", "main"),
    (28, program(operation(name=b"\xff", attributes=[("val", GOOD)])), "text: expected UTF-8", ""),
    (29, program(operation(attributes=[(b"\xc0\x80", GOOD)])), "text: expected UTF-8", ""),
    (30, program(const(blob_value(11, [10], b"@model_path/\xed\xa0\x80", 64))), "text: expected UTF-8", ""),
    (31, field(1, 1) + field(2, field(1, b"\xfe") + field(2, b"")), "text: expected UTF-8", ""),
    (32, b"\x08", "varint: expected 1 more bytes, got 0", "program"),
    (33, b"\x0a\x00", "version of the Program: expected wire type 0, got 2", "program"),
    (34, field(1, 1) + b"\x10\x01", "map entry: expected wire type 2, got 0", "program"),
    (35, in_block(b"\x18\x01"), "field of Block: expected wire type 2, got 0", "main"),
    (36, in_block(field(3, b"\x08\x01")), "field of Operation: expected wire type 2, got 0", "main"),
    (37, program(const(immediate(2, [], field(4, b"\x08\x01")))) + b"\x22\x02\x12\x08", "length prefix", "program"),
]  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize(("number", "data", "words", "where"), BAD_PROGRAMS, ids=[row[0] for row in BAD_PROGRAMS])
def test_bad_program(number, data, words, where):
    source = model(data)
    with pytest.raises(milblob.MilblobError) as caught:
        milblob.open(source, constants=True)
    error = caught.value
    assert type(error) is milblob.FormatError
    assert words in str(error)
    assert len(source) - len(data) <= error.offset <= len(source)
    assert error.where.startswith(where) if where else True
    assert "\n" not in str(error) and str(error).isprintable() and len(str(error)) < 1000


# number, dtype code, shape, TensorValue, words. These list; reading refuses them.
BAD_VALUES = [
    (1, 11, [11], FLOATS, "elements of floats: expected 11 for shape (11,), got 10"),
    (2, 11, [9], FLOATS, "elements of floats: expected 9"),
    (3, 11, [0], FLOATS, "elements of floats: expected 0"),
    (4, 11, [1 << 40, 1 << 20], FLOATS, "elements of floats: expected 1152921504606846976"),
    (5, 11, [], FLOATS, "elements of floats: expected 1"),
    (6, 11, [10], field(1, field(1, bytes(39))), "bytes of floats: expected a multiple of 4, got 39"),
    (7, 12, [5], field(6, field(1, bytes(39))), "bytes of doubles: expected a multiple of 8, got 39"),
    (8, 10, [5], field(7, field(1, bytes(9))), "bytes of bytes: expected a multiple of 2, got 9"),
    (9, 11, [10], b"", "expected field floats, got nothing"),
    (10, 11, [10], field(2, field(1, bytes(10))), "expected field floats, got ints"),
    (11, 23, [10], FLOATS, "expected field ints, got floats"),
    (12, 2, [10], FLOATS, "expected field strings, got floats"),
    (13, 11, [10], field(4, field(1, "a") * 10), "expected field floats, got strings"),
    (14, 1, [10], FLOATS, "expected field bools, got floats"),
    (15, 23, [1], field(2, field(1, b"\xff" * 10 + b"\x01")), "varint: expected at most 10 bytes"),
    (16, 23, [1], field(2, field(1, b"\xff" * 9 + b"\x02")), "varint: expected at most 10 bytes and 64 bits"),
    (17, 23, [2], field(2, field(1, b"\x01\x80")), "elements of ints: expected 2"),
    (18, 23, [1], field(2, field(1, b"\x01\x80")), "elements: expected 1, got 2"),
    (19, 23, [1], field(2, field(1, write_varint(1 << 32))), "element 0: expected -2147483648 to 4294967295"),
    (20, 22, [1], field(2, field(1, write_varint(1 << 15))), "element 0: expected -32768 to 32767, got 32768"),
    (21, 32, [1], field(2, field(1, write_varint(-1))), "element 0: expected 0 to 65535, got -1"),
    (22, 21, [100], field(2, field(1, b"\x01" * 99 + b"\xff\x01")), "element 99: expected -128 to 127, got 255"),
    (23, 1, [100], field(3, field(1, b"\x01" * 99 + b"\x02")), "element 99: expected 0 to 1, got 2"),
    (24, 23, [64], field(2, field(1, b"\1" * 63 + b"\x80" * 10_000 + b"\1")), "varint: expected at most 10 bytes"),
    (25, 24, [64], field(5, field(1, b"\x80" * 10_000 + b"\1" * 64)), "varint: expected at most 10 bytes"),
    (26, 23, [64], field(2, field(1, b"\1" * 64 + b"\x80" * 20)), "elements: expected 64, got 65"),
    (27, 1, [64], field(3, field(1, b"\1" * 63 + b"\x80" * 10_000 + b"\1")), "varint: expected at most 10 bytes"),
    (28, 25, [3], field(7, field(1, bytes(3))), "elements of bytes: expected 3"),
    (29, 38, [1], field(7, field(1, bytes(2))), "elements of bytes: expected 1"),
    (30, 1, [2], field(7, field(1, b"\1\2")), "element 1: expected 0 to 1, got 2"),
    (31, 2, [1], field(4, field(1, b"\xff")), "text: expected UTF-8"),
    (32, 2, [2], field(4, field(1, "a")), "elements of strings: expected 2 for shape (2,), got 1"),
    (33, 11, [None, None], FLOATS, "shape: expected at most one open dimension"),
    (34, 11, [None, 3], FLOATS, "elements of floats"),
    (35, 11, [None, 0], FLOATS, "elements of floats: expected 0"),
    (36, 11, [10], b"\x0a\x7f", "length prefix: expected 127 bytes"),
    (37, 11, [10], b"\x08\x01", "field of TensorValue: expected wire type 2, got 0"),
    (38, 11, [10], field(1, b"\x08\x01"), "values of a tensor: expected wire type 5, got 0"),
    (39, 23, [10], field(2, b"\x0d\0\0\0\0"), "values of a tensor: expected wire type 0, got 5"),
    (40, 11, [10] + [1] * 64, FLOATS, "rank: expected at most 64, which NumPy holds, got 65"),
    (41, 11, [None] + [1 << 63] * 50, FLOATS, "shape: expected fewer than 2^59 elements"),
    (42, 11, [0, 1 << 63], b"", "shape: expected fewer than 2^59 elements"),
    (43, 11, [0, 1 << 40, 1 << 23], field(1, b""), "shape: expected fewer than 2^59 elements"),
]  # fmt: skip
UNSUPPORTED = (40, 41, 42, 43)


@pytest.mark.every
@pytest.mark.parametrize(("number", "code", "shape", "data", "words"), BAD_VALUES, ids=[row[0] for row in BAD_VALUES])
def test_bad_value(number, code, shape, data, words):
    kind = milblob.UnsupportedError if number in UNSUPPORTED else milblob.FormatError
    source = model(program(const(immediate(code, shape, data)), const(GOOD, "good")))
    try:
        opened = milblob.open(source, constants=True)
    except milblob.MilblobError as error:  # open dimensions are counted when it lists: broken bytes may end that
        assert type(error) is kind and words in str(error) and error.where == HERE
        return
    with opened:
        with pytest.raises(milblob.MilblobError) as caught:
            opened["w"].read()
        assert type(caught.value) is kind
        assert words in str(caught.value)
        assert caught.value.where == HERE
        assert caught.value.offset is not None and caught.value.offset <= len(source)
        assert opened["good"].read().tolist() == [0.0] * 10  # its neighbour is none the worse
    with pytest.raises(kind):  # all or nothing
        milblob.load(source, constants=True)


@pytest.mark.parametrize(("number", "code", "shape", "data", "words"), BAD_VALUES, ids=[row[0] for row in BAD_VALUES])
@pytest.mark.sample(8)
def test_bad_value_by_itself(number, code, shape, data, words):
    kind = milblob.UnsupportedError if number in UNSUPPORTED else milblob.FormatError
    if shape.count(None) > 1:
        kind = ValueError  # nobody's bytes say so here
    dtype = next(member for member in milblob.DType if member.mil_code == code)
    with pytest.raises(kind) as caught:
        milblob.unpack_tensor(data, dtype, shape)
    assert words in str(caught.value)


def test_run_of_continuation_bytes_is_read_within_the_array():
    """Counted as one varint or none, but ten bytes at a time look like many: once this wrote past the end of the array."""
    every(check_run, [64, 65, 127, 128, 1000], [10, 11, 20, 5000], ["begin", "middle", "end"])


def check_run(size, run, at):
    before = {"begin": 0, "middle": size // 2, "end": size}[at]
    payload = b"\1" * before + b"\x80" * run + b"\1" * (size - before)
    for dtype, number in (("int32", 2), ("int64", 5), ("int16", 2), ("bool", 3), ("int8", 2)):
        for count in (size, size + 1):
            with pytest.raises(milblob.FormatError):
                milblob.unpack_tensor(field(number, field(1, payload)), dtype, (count,))


def test_depths_that_are_allowed():
    lists = nested(199, lambda inner: list_value([inner]), list_value([GOOD]))
    assert len(milblob.load(model(program(const(lists))), constants=True)) == 1
    core = field(3, const(GOOD))
    blocks = nested(199, lambda inner: field(3, field(1, "cond") + field(3, field(1, "c")) + field(4, inner)), core)
    assert list(milblob.load(model(in_block(blocks)))) == ["w"]


def test_types_nested_100_000_deep_are_stepped_over():
    deep = nested_fields(100_000, 1, 2)
    value = field(2, deep) + field(3, field(3, b""))
    assert milblob.load(model(program(const(value), const(GOOD, "good"))), constants=True).keys() == {"good"}


@pytest.mark.parametrize("levels", [250, 100_000])
def test_values_and_blocks_nested_deep(levels):
    for value in (nested_fields(levels, *numbers) for numbers in ((1, 3, 3), (1, 2, 3), (2, 1, 4, 3))):
        with pytest.raises(milblob.FormatError, match="expected at most 200 levels of nesting") as caught:
            milblob.open(model(program(const(value))))
        assert caught.value.where == HERE
    with pytest.raises(milblob.FormatError, match="nested blocks: expected at most 200 levels") as caught:
        milblob.open(model(in_block(nested_fields(levels, 4, 3))))
    assert caught.value.where.startswith("main.block['CoreML7'].op[0]")


def test_names_do_not_talk_to_the_terminal():
    name = "a\n\x1b[2Jb"
    with pytest.raises(milblob.MilblobError) as caught:
        milblob.load(model(field(1, 1) + function([const(blob_value(11, [10], f"@model_path/{name}", 64))], name)))
    assert str(caught.value).isprintable()


def test_two_values_of_one_name_are_two_tensors():
    source = model(program(*[const(GOOD)] * 3, const(GOOD, "main/w#2")))
    with milblob.open(source) as opened:
        assert len(opened) == len(set(opened)) == 4
        assert all(opened[name].name == name for name in opened)


def test_output_type_that_lies():
    bad = operation(attributes=[("val", GOOD)], output_type=tensor_type(99, [1]))
    with pytest.raises(milblob.FormatError, match="MIL dtype code"):
        milblob.open(model(program(bad)))


def test_small_parts_of_one_name_in_two_functions_are_two_tensors():
    """Parts below the threshold of weights are listed with stored=True; once the second function's was lost."""

    def half(name, last):
        part = immediate(11, [4], field(1, field(1, bytes(15) + bytes([last]))))
        read = field(2, field(1, "source_val") + field(2, field(1, field(1, "lut"))))
        cast = operation("constexpr_cast", "w", inputs=read, output_type=tensor_type(11, [4]))
        return function([const(part, "lut"), cast], name)

    source = model(field(1, 1) + half("a", 0x40) + half("b", 0x41))
    with milblob.open(source, stored=True) as opened:
        assert list(opened) == ["a/lut", "b/lut"]
        assert [tensor.read()[-1] for tensor in opened.values()] == [2.0, 8.0]
    with milblob.open(source) as opened:
        assert [tensor.parts["source_val"].name for tensor in opened.values()] == ["a/lut", "b/lut"]


def test_tensors_without_a_name_are_not_lost():
    source = model(program(const(GOOD, ""), const(GOOD, "")))
    assert len(milblob.load(source)) == 2
