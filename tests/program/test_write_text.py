"""MIL text, written: byte for byte what was read, and Programs that come back as they were."""

import difflib
import io
import json

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import milblob
from cases import case_paths, load_case
from hostile_bytes import field, model, program
from milblob import _codec
from milblob.program import schema
from milblob.program.plain import parse_text
from milblob.program.write_text import version_of, write_program
from paths import DATA, SAMPLES
from protobuf_programs import F32, STRING, add_const, add_op, as_model, new_program, set_type, set_value
from reference import write_varint
from thorough import PROFILE, some

TEXTS = sorted(DATA.rglob("*.mil"))
SAMPLE_TEXTS = sorted(SAMPLES.rglob("*.mil")) if SAMPLES.is_dir() else []


def written(data, **options):
    """The text of a serialized Program."""
    out = io.BytesIO()
    write_program(_codec.Buffer(data), (0, len(data)), out.write, **options)
    return out.getvalue()


def rewritten(text):
    """A text read and written again, in the version and with the end that it has."""
    program_ = parse_text(_codec.Buffer(text))
    return written(program_, version=version_of(text), newline=text.endswith(b"\n"))


def back(data, **options):
    return schema.Program.FromString(parse_text(_codec.Buffer(written(data, **options))))


def first_difference(a, b):
    """For a message that a person can read: two texts of a megabyte say nothing."""
    lines = difflib.unified_diff(a.decode().splitlines(), b.decode().splitlines(), lineterm="", n=0)
    return [line[:200] for line, _ in zip(lines, range(6), strict=False)]


@pytest.mark.parametrize("path", [*TEXTS, *SAMPLE_TEXTS], ids=lambda path: "/".join(path.parts[-3:-1]))
@pytest.mark.sample(5)
def test_every_text_is_written_as_it_was(path):
    text = path.read_bytes()
    assert not first_difference(text, rewritten(text)) and rewritten(text) == text


# What of the test models text cannot hold, and the words that say so.
UNWRITABLE = {
    "attributes": "a docString",
    "immediates_odd": "a NUL character in a string",
    "other_fields": "a value in another field than that of its dtype",
    "specializations": "a function with no block, or with blocks for several opsets",
    "type_attributes": "attributes of a tensor type",
    "wire/odd_names": "the name of an input or output",
    "wire/unknown_fields": "a field that the specification does not have",
    "wire/unknown_groups": "a field that the specification does not have",
    "wire/unknown_in_entry": "a field that the specification does not have",
}


@pytest.mark.parametrize(("name", "path"), case_paths())
@pytest.mark.sample(8)
def test_every_test_model_comes_back(name, path):
    with milblob.open(load_case(name).source(path)) as opened:
        for view, (prefix, message) in zip(opened.views, opened.programs.items(), strict=True):
            buffer, (offset, nbytes) = view.held()
            data = bytes(memoryview(buffer)[offset : offset + nbytes])
            if name in UNWRITABLE:
                with pytest.raises(milblob.UnsupportedError, match=f"text can hold, got {UNWRITABLE[name]}"):
                    written(data)
                continue
            for version in ("1.0", "1.3"):
                assert back(data, version=version) == message, prefix


@pytest.mark.skipif(
    not SAMPLES.is_dir(), reason="no models by other people beside the repository: only our own are tested"
)
def test_every_sample_comes_back():
    tried = 0
    for path in [*SAMPLES.glob("*/*.mlpackage"), *SAMPLES.glob("*/*.mlmodelc")]:
        with milblob.open(path) as opened:
            text = milblob.to_text(opened)
            assert schema.Program.FromString(parse_text(_codec.Buffer(text.encode()))) == opened.program, path
            tried += 1
    assert tried > 8


def test_a_package_and_its_compiled_model_have_one_text():
    """The same case as a package and as coremltools' Program printed by tests/data/mil_printer.py."""
    name = "opset_ios18_fp16"
    with milblob.open(DATA / name / "model.mlpackage") as package:
        ours = milblob.to_text(package).encode()
    theirs = (DATA / name / "model.mlmodelc" / "model.mil").read_bytes() + b"\n"
    assert first_difference(theirs, ours) == [] and ours == theirs


# -------------------------------------------------------------------------------------------------------------- numbers

NUMERIC = [d for d in milblob.DType if d is not milblob.DType.STRING]


def tensor_program(array, dtype, shape=None):
    message, block = new_program()
    op = block.operations.add(type="const")
    value = op.attributes["val"]
    set_type(value.type, dtype.mil_code, np.shape(array) if shape is None else shape)
    value.immediateValue.tensor.ParseFromString(milblob.pack_tensor(array, dtype))
    set_type(op.outputs.add(name="w").type, dtype.mil_code, np.shape(array))
    return message


@st.composite
def arrays(draw):
    dtype = draw(st.sampled_from(NUMERIC))
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 7]), max_size=4))
    nbytes = int(np.prod(shape, dtype=int))
    if dtype is milblob.DType.BOOL:
        return dtype, draw(hnp.arrays(bool, shape))
    if dtype.is_integer:
        low, high = dtype.range
        kind = np.int64 if low < 0 else np.uint64
        values = draw(st.lists(st.integers(low, high), min_size=nbytes, max_size=nbytes))
        whole = np.array(values, kind).reshape(shape)
        return dtype, whole.astype(
            np.int8 if dtype is milblob.DType.INT4 else dtype.numpy if not dtype.is_sub_byte else np.uint8
        )
    bits = draw(hnp.arrays(np.dtype(f"u{dtype.nbits // 8}"), shape))
    return dtype, bits.view(dtype.numpy)


@settings(PROFILE)
@given(arrays())
def test_any_tensor_comes_back(made):
    dtype, array = made
    message = tensor_program(array, dtype)
    found = back(message.SerializeToString())
    assert found == message  # also the fraction bits of a NaN


@pytest.mark.parametrize(("values", "dtype", "text"), [
    (np.float16([1.5, -0.0, 6e-8, 65504, np.inf]), "fp16", "[0x1.8p+0, -0x0p+0, 0x1p-24, 0x1.ffcp+15, inf]"),
    (np.float32(0.1), "fp32", "0x1.99999ap-4"),
    (np.float64([5e-324, -1.7976931348623157e308]), "fp64", "[0x1p-1074, -0x1.fffffffffffffp+1023]"),
    (np.array([448, 2**-9], ml_dtypes.float8_e4m3fn), "fp8e4m3fn", "[0x1.cp+8, 0x1p-9]"),
    (np.int8([[-128, 127], [0, -1]]), "int8", "[[-128, 127], [0, -1]]"),
    (np.int32([-(2**31), 99, 100, 12345, 2**31 - 1]), "int32", "[-2147483648, 99, 100, 12345, 2147483647]"),
    (np.uint64([2**64 - 1]), "uint64", "[18446744073709551615]"),
    (np.int64([-(2**63), 10**18]), "int64", "[-9223372036854775808, 1000000000000000000]"),
    (np.array([True, False]), "bool", "[true, false]"),
    (np.array([-8, 7], np.int8), "int4", "[-8, 7]"),
    (np.zeros((2, 0), np.int32), "int32", "[[], []]"),
])  # fmt: skip
def test_numbers(values, dtype, text):
    found = written(tensor_program(values, milblob.dtypes.as_dtype(dtype)).SerializeToString()).decode()
    assert f"({text})];" in found


def test_every_float16_is_what_python_writes():
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    text = written(tensor_program(every, milblob.DType.FLOAT16).SerializeToString()).decode()
    found = text.split("val = tensor<fp16, [65536]>([")[1].split("])")[0].split(", ")

    def expected(value):
        if value != value:
            return nan_word(int(value.view(np.uint16)), milblob.DType.FLOAT16, 10)
        head, _, exponent = float(value).hex().partition("p")
        return f"{head.rstrip('0').rstrip('.') if '.' in head else head}p{exponent}" if exponent else head

    assert found == [expected(value) for value in every]


def every_bit_pattern(dtype, count):
    """Elements of a dtype that hold each of its bit patterns, or as many random ones, in random order; and Python's words."""
    rng = np.random.default_rng(dtype.mil_code)
    if dtype is milblob.DType.BOOL:
        array = rng.integers(0, 2, count).astype(bool)
        return array, ["true" if value else "false" for value in array]
    if dtype.is_integer:
        low, high = dtype.range
        kind = np.int64 if low < 0 else np.uint64
        array = rng.integers(low, high, count, dtype=kind, endpoint=True)
        array >>= rng.integers(0, dtype.nbits, count).astype(kind)  # of any length
        array[:2] = low, high
        words = [str(int(value)) for value in array]
        return array.astype(
            np.int8 if dtype is milblob.DType.INT4 else np.uint8 if dtype.is_sub_byte else dtype.numpy
        ), words
    bits = rng.integers(0, 1 << dtype.nbits, count, dtype=np.uint64).astype(f"u{dtype.nbits // 8}")
    array = bits.view(dtype.numpy)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        wide = array.astype(np.float64)
    fraction_nbits = 52 if dtype is milblob.DType.FLOAT64 else ml_dtypes.finfo(array.dtype).nmant
    return array, [
        python_word(value) if value == value else nan_word(int(pattern), dtype, fraction_nbits)
        for value, pattern in zip(wide, bits, strict=True)
    ]


def nan_word(bits, dtype, fraction_nbits):
    """A NaN from its bits: the usual quiet one has no fraction bits in words, and where there is only one, it has none."""
    fraction = bits & ((1 << fraction_nbits) - 1)
    is_usual = fraction == 1 << (fraction_nbits - 1) or dtype is milblob.DType.FLOAT8E4M3FN
    return f"{'-' * (bits >> (dtype.nbits - 1))}nan{'' if is_usual else f'(0x{fraction:x})'}"


def python_word(value):
    """A real as Python writes it, in the form of MIL text."""
    head, _, exponent = float(value).hex().partition("p")
    if not exponent:
        return head
    digits = head.rstrip("0").rstrip(".") if "." in head else head
    if digits.endswith("0x0") or "0x1" in digits[:4]:
        return f"{digits}p{exponent}"
    least = float(value)  # subnormal double: Python has 0x0.8p-1022 for 0x1p-1023
    mantissa, power = np.frexp(least)
    return python_word(mantissa * 2).partition("p")[0] + f"p{int(power) - 1:+d}"


@pytest.mark.parametrize("dtype", some(NUMERIC, 20), ids=str)
@pytest.mark.parametrize("shape", [(6153,), (3, 2051), (2051, 3), (2, 2049)], ids=str)
@pytest.mark.sample(7)
def test_many_elements(dtype, shape):
    """Of long rows, which go another way, and of short ones; rows that begin inside a byte."""
    array, words = every_bit_pattern(dtype, int(np.prod(shape)))
    text = written(tensor_program(array.reshape(shape), dtype).SerializeToString()).decode()
    body = text.split("val = ")[1].split(">(", 1)[1].split(")];")[0]
    assert body.replace("[", "").replace("]", "").split(", ") == words
    rows = body.split("], [") if len(shape) == 2 else [body]
    assert len(rows) == (shape[0] if len(shape) == 2 else 1)
    assert {row.count(",") for row in rows} == {shape[-1] - 1}


VARINTS = [milblob.DType[name] for name in ("INT16", "UINT16", "INT32", "INT64", "UINT64")]


def varints_program(dtype, payload, count):
    """A Program whose constant has these bytes as its varints, in whatever form."""
    message = tensor_program(np.zeros(count, dtype.numpy), dtype)
    (op,) = message.functions["main"].block_specializations["CoreML8"].operations
    number = {2: 2, 5: 5}[dtype.field]
    op.attributes["val"].immediateValue.tensor.ParseFromString(field(number, field(1, payload)))
    assert sum(byte < 0x80 for byte in payload) == count
    return message.SerializeToString()


def in_varints(words):
    return b"".join(write_varint(int(word) % (1 << 64)) for word in words)


@pytest.mark.parametrize("dtype", VARINTS, ids=str)
def test_integers_in_every_tier(tier, dtype):
    """Kernels decode what is plain: long stretches of one length and of all, and begin again behind what they leave."""
    rng = np.random.default_rng(3)
    low, high = dtype.range
    words = [0] * 700 + [int(v) for v in rng.integers(max(low, -900), 900, 900)] + every_bit_pattern(dtype, 3000)[1]
    words += [high] * 400 + [low] * 400 + [1, -1 % (high + 1)] * 50
    for count in (*range(1, 130), 288, 289, 511, 512, 513, len(words)):
        start = len(words) // 2 if count < 600 else 0
        text = written(
            tensor_program(
                np.array([int(w) for w in words[start : start + count]], dtype.numpy), dtype
            ).SerializeToString()
        )
        body = text.decode().split("val = ")[1].split(">([", 1)[1].split("])];")[0]
        assert body.split(", ") == [str(word) for word in words[start : start + count]]


@pytest.mark.parametrize("dtype", VARINTS, ids=str)
@pytest.mark.parametrize("at", [0, 1, 299, 300, 899])
def test_padded_integers_and_those_that_do_not_fit_in_every_tier(tier, dtype, at):
    words = [str(value) for value in np.random.default_rng(at).integers(0, 30_000, 900)]
    before, after = in_varints(words[:at]), in_varints(words[at + 1 :])
    padded = written(varints_program(dtype, before + b"\x87\x80\x80\0" + after, 900)).decode()
    assert padded.split(">([", 1)[1].split("])];")[0].split(", ") == [*words[:at], "7", *words[at + 1 :]]
    if dtype.nbits == 16:
        with pytest.raises(milblob.FormatError, match=f"got another at element {at} "):
            written(varints_program(dtype, before + write_varint(70_000) + after, 900))
        return
    wide, kept = {32: (write_varint((1 << 40) + 5), 5), 64: (b"\xff" * 9 + b"\x02", (1 << 63) - 1)}[dtype.nbits]
    text = written(varints_program(dtype, before + wide + after, 900)).decode()  # as protobuf cuts it
    assert text.split(">([", 1)[1].split("])];")[0].split(", ") == [*words[:at], str(kept), *words[at + 1 :]]


# --------------------------------------------------------------------------------------------------------------- layout


def loop_program():
    message, block = new_program()
    message.functions["main"].opset = "CoreML8"
    set_type(message.functions["main"].inputs.add(name="i").type, 23, [])
    loop = block.operations.add(type="while_loop")
    set_type(loop.outputs.add(name="r").type, 23, [])
    loop.inputs["loop_vars"].arguments.add(name="i")
    set_type(loop.attributes["name"].type, STRING, [])
    loop.attributes["name"].immediateValue.tensor.strings.values.append('w"\\\n\t')
    for number, name in enumerate("cj"):
        inner = loop.blocks.add()
        set_type(inner.inputs.add(name=f"i{number}").type, 23, [])
        op = inner.operations.add(type="add")
        set_type(op.outputs.add(name=name).type, 23, [])
        op.inputs["x"].arguments.add(name=f"i{number}")
        inner.outputs.append(name)
    write = block.operations.add(type="write_state")
    write.inputs["input"].arguments.add(name="kv")
    block.outputs.append("r")
    return message


def test_nested_blocks_and_operations_without_outputs():
    message = loop_program()
    assert (
        written(message.SerializeToString()).decode()
        == """program(1.3)
{
    func main<ios18>(int32 i) {
            int32 r = while_loop(loop_vars = i)[name = string("w\\"\\\\\\n\\t")] (int32 i0) {
                    int32 c = add(x = i0);
                } -> (c) (int32 i1) {
                    int32 j = add(x = i1);
                } -> (j);
            write_state(input = kv);
        } -> (r);
}
"""
    )
    assert back(message.SerializeToString()) == message


@settings(PROFILE)
@given(st.data())
def test_maps_come_in_the_order_of_their_keys(data):
    names = data.draw(
        st.lists(st.from_regex(r"[A-Za-z_][A-Za-z0-9_@]{0,3}", fullmatch=True), min_size=1, max_size=90, unique=True)
    )
    message, block = new_program()
    op = add_op(block, "custom", "y", **dict.fromkeys(names, "x"))
    for name in names:
        set_value(op.attributes[name], 1.0)
    assert back(message.SerializeToString()) == message
    line = next(line for line in written(message.SerializeToString()).decode().splitlines() if "custom(" in line)
    arguments, attributes = line.split("custom(")[1].split(")[")
    assert [pair.split(" = ")[0] for pair in arguments.split(", ")] == sorted(names)
    assert [pair.split(" = ")[0] for pair in attributes[:-2].split(", ")] == sorted(names)


def test_functions_come_in_the_order_of_their_names_and_one_alone():
    message, _ = new_program("b", "a", "c")
    data = message.SerializeToString()
    lines = written(data).decode().splitlines()
    assert [line.split()[1][0] for line in lines if "func" in line] == ["a", "b", "c"]
    assert [line.split()[1][0] for line in written(data, functions=["b"]).decode().splitlines() if "func" in line] == [
        "b"
    ]
    with pytest.raises(KeyError, match="has no function 'd' .it has a, b, c"):
        written(data, functions=["d"])


def test_versions():
    message, block = new_program()
    add_const(block, "w", 1.0)
    data = message.SerializeToString()
    assert b"program(1.0)\n" in written(data, version="1.0") and b"tensor<fp32, []> w" in written(data, version="1.0")
    assert b"program(1.3)\n" in written(data) and b" fp32 w" in written(data)
    for version in ("2.0", "1", "x", "1.", ""):
        with pytest.raises(ValueError, match="version: expected"):
            written(data, version=version)
    message.version = 0
    assert written(message.SerializeToString()).startswith(b"program(0.3)\n")


# ------------------------------------------------------------------------------------------------------ what it refuses


def refused():
    """(words, change of a sound Program) for each thing that text cannot hold."""

    def on_const(change):
        def run(message, block):
            change(block.operations[0])

        return run

    def value_of(change):
        return on_const(lambda op: change(op.attributes["val"]))

    return {
        "a docString of the Program": ("a docString", lambda m, b: setattr(m, "docString", "x")),
        "a docString of a value": ("a docString", value_of(lambda v: setattr(v, "docString", "x"))),
        "a version below 0": ("a version below 0", lambda m, b: setattr(m, "version", -1)),
        "attributes of a block": ("attributes of a block", lambda m, b: set_value(b.attributes["x"], 1.0)),
        "inputs of a block": ("inputs of a function's block", lambda m, b: b.inputs.add(name="x")),
        "another opset": ("a function whose block is for another opset", lambda m, b: setattr(m.functions["main"], "opset", "CoreML7")),
        "no block": ("a function with no block", lambda m, b: m.functions["main"].block_specializations.clear()),
        "two blocks": ("blocks for several opsets", lambda m, b: m.functions["main"].block_specializations["CoreML9"].SetInParent()),
        "a name": ("the name of an input or output", on_const(lambda op: setattr(op.outputs[0], "name", "1x"))),
        "no name": ("the name of an input or output", on_const(lambda op: setattr(op.outputs[0], "name", ""))),
        "a type of operation": ("the type of an operation", on_const(lambda op: setattr(op, "type", "a b"))),
        "a key": ("the name of an attribute", on_const(lambda op: op.attributes["ä"].CopyFrom(op.attributes["val"]))),
        "a block's output": ("the name that a block returns", lambda m, b: b.outputs.append("a-b")),
        "a name that is read": ("the name that an argument reads", lambda m, b: add_op(b, "relu", "y", x="a.b")),
        "true": ("an argument that reads something called true", lambda m, b: add_op(b, "relu", "y", x="true")),
        "no type": ("a value without a type", value_of(lambda v: v.ClearField("type"))),
        "no value": ("a type without a value", value_of(lambda v: v.ClearField("immediateValue"))),
        "an output without a type": ("an input or output without a type", on_const(lambda op: op.outputs[0].ClearField("type"))),
        "a variadic dimension": ("any number of dimensions", value_of(lambda v: setattr(v.type.tensorType.dimensions[0].unknown, "variadic", True))),
        "an empty dimension": ("neither a number nor open", value_of(lambda v: v.type.tensorType.dimensions[0].Clear())),
        "any rank": ("a tensor of any rank", value_of(lambda v: setattr(v.type.tensorType, "rank", -1))),
        "a field": ("another field than that of its dtype", value_of(lambda v: v.immediateValue.tensor.doubles.values.append(1))),
        "a kind": ("another kind than its type", value_of(lambda v: v.immediateValue.list.SetInParent())),
        "a state": ("another kind than its type", value_of(lambda v: set_type(v.type.stateType.wrappedType, F32, [12]))),
        "a tuple of nothing": ("a tuple without members", value_of(lambda v: v.type.tupleType.SetInParent())),
        "a list of no type": ("a part missing", value_of(lambda v: v.type.listType.length.constant.SetInParent())),
        "an opset by Apple's name": ("an opset that text reads as another one", rename_opset),
    }  # fmt: skip


def rename_opset(message, block):
    function = message.functions["main"]
    function.opset = "ios15"
    function.block_specializations["ios15"].CopyFrom(block)
    del function.block_specializations["CoreML8"]


@pytest.mark.parametrize("case", refused())
def test_what_text_cannot_hold_is_refused_by_name(case):
    words, change = refused()[case]
    message, block = new_program()
    add_const(block, "w", np.arange(12))
    assert back(message.SerializeToString()) == message
    change(message, block)
    out = io.BytesIO()
    data = message.SerializeToString()
    with pytest.raises(
        milblob.UnsupportedError, match="MIL text: expected a Program that text can hold, got "
    ) as caught:
        write_program(_codec.Buffer(data), (0, len(data)), out.write)
    assert words in str(caught.value) and out.getvalue() == b"" and caught.value.offset is not None


BROKEN = [
    ("rank of a type: expected 3 dimensions, got 1", lambda v: setattr(v.type.tensorType, "rank", 3)),
    ("MIL dtype code: expected one that is known, got 99", lambda v: setattr(v.type.tensorType, "dataType", 99)),
    (
        "elements of a tensor: expected 13, got 12",
        lambda v: setattr(v.type.tensorType.dimensions[0].constant, "size", 13),
    ),
]


@pytest.mark.parametrize(("words", "change"), BROKEN)
def test_broken_values_are_refused_with_their_path(words, change):
    message, block = new_program()
    add_const(block, "w", np.arange(12))
    change(block.operations[0].attributes["val"])
    with pytest.raises(milblob.FormatError, match=words) as caught:
        written(message.SerializeToString())
    assert caught.value.where == "main.block['CoreML8'].op[0] 'w'"


def test_lists_that_do_not_fit_their_type():
    message, block = new_program()
    op = block.operations.add(type="const")
    value = op.attributes["val"]
    set_type(value.type.listType.type, F32, [2])
    value.type.listType.length.constant.size = 2
    for _ in range(2):
        set_value(value.immediateValue.list.values.add(), [1.0, 2.0])
    assert back(message.SerializeToString()) == message
    set_value(value.immediateValue.list.values.add(), [1.0, 2.0])
    with pytest.raises(milblob.FormatError, match="elements of a list: expected 2, got 3"):
        written(message.SerializeToString())
    value.type.listType.length.constant.size = 3
    value.immediateValue.list.values[2].type.tensorType.dimensions[0].constant.size = 3
    with pytest.raises(milblob.UnsupportedError, match="an element of another type than its list"):
        written(message.SerializeToString())


def test_an_exception_of_the_writer_comes_out():
    message, block = new_program()
    add_const(block, "w", np.zeros(200_000, np.float32))
    calls = []

    def write(data):
        calls.append(len(data))
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        data = message.SerializeToString()
        write_program(_codec.Buffer(data), (0, len(data)), write)
    assert len(calls) == 1


def test_memory_is_bounded():
    """A text of many megabytes goes through a small buffer."""
    message, block = new_program()
    add_const(block, "w", np.zeros(2_000_000, np.float32))
    data = message.SerializeToString()
    sizes = []
    write_program(_codec.Buffer(data), (0, len(data)), lambda part: sizes.append(len(part)))
    assert sum(sizes) > 10_000_000 and max(sizes) <= 1 << 18


# ------------------------------------------------------------------------------------------------------------- to_text


def test_to_text_takes_models_messages_and_paths(tmp_path):
    message = loop_program()
    expected = written(message.SerializeToString()).decode()
    data = as_model(message)
    (tmp_path / "m.mlmodel").write_bytes(data)
    spec = schema.Model.FromString(data)
    with milblob.open(data) as opened:
        for source in (opened, message, spec, data, tmp_path / "m.mlmodel"):
            assert milblob.to_text(source) == expected
    out = io.BytesIO()
    assert milblob.to_text(message, out) is None and out.getvalue().decode() == expected
    (tmp_path / "model.mil").write_text(expected, encoding="utf-8")
    assert milblob.open(tmp_path / "model.mil").programs[""] == message


def test_a_text_that_was_not_changed_gives_its_own_characters(tmp_path):
    text = "program ( 1.0 )  {func main<ios18>(  ) {\n\n} -> () ; }   \n\n"
    (tmp_path / "model.mil").write_text(text, encoding="utf-8")
    assert milblob.to_text(tmp_path / "model.mil") == text
    assert milblob.to_text(tmp_path / "model.mil", version="1.0") == text
    assert milblob.to_text(tmp_path / "model.mil", version="1.3").startswith(
        "program(1.3)\n{\n    func main<ios18>() {\n"
    )


def test_functions_of_a_pipeline():
    with milblob.open(load_case("pipeline").path()) as opened:
        with pytest.raises(milblob.UnsupportedError, match="got a pipeline of 2; choose one by a function"):
            milblob.to_text(opened)
        for name in opened.functions:
            assert milblob.to_text(opened, function=name).count("    func ") == 1
        with pytest.raises(KeyError, match="has no function 'main'; did you mean model0/main"):
            milblob.to_text(opened, function="main")
    with pytest.raises(milblob.UnsupportedError, match="got a weight file"):
        milblob.to_text(load_case("blob_all_dtypes").path())


def test_weights_that_are_cut():
    message, block = new_program()
    add_const(block, "w", np.arange(12).reshape(3, 4))
    add_const(block, "v", np.arange(3))
    whole, head, none = (milblob.to_text(message, weights=mode) for mode in ("all", "head", "none"))
    assert "[[0x0p+0, 0x1p+0, 0x1p+1, 0x1.8p+1], [" in whole
    assert "([0x0p+0, 0x1p+0, 0x1p+1, 0x1.8p+1, 0x1p+2, 0x1.4p+2, 0x1.8p+2, 0x1.cp+2, ...])" in head
    assert "tensor<fp32, [3, 4]>([...])" in none and all(
        "([0x0p+0, 0x1p+0, 0x1p+1])" in text for text in (whole, head, none)
    )
    with pytest.raises(ValueError, match="weights: expected one of all, head, none, got 'some'"):
        milblob.to_text(message, weights="some")


def test_the_neighbourhood_of_an_operation():
    message, block = new_program()
    add_const(block, "w", np.arange(12))
    add_op(block, "relu", "a", x="w")
    add_op(block, "relu", "b", x="a")
    cond = add_op(block, "cond", "c", pred="b")
    inner = cond.blocks.add()
    add_op(inner, "add", "d", x="b", y="a")
    add_op(block, "relu", "e", x="c")
    add_op(block, "relu", "far", x="e")

    def names(**options):
        lines = milblob.to_text(message, **options).splitlines()
        return [line.split(" = ")[0].split()[-1] for line in lines if " = " in line and not line.startswith(" ")]

    assert names(operation="b", around=0) == ["b"]
    assert names(operation="b") == ["a", "b", "c"]  # d is written with c
    assert names(operation="b", around=2) == ["w", "a", "b", "c", "e"]
    assert names(operation="w") == ["w", "a"] and names(operation="d") == ["a", "b", "d"]
    assert names(operation="b", around=99) == ["w", "a", "b", "c", "e", "far"]
    assert "[0x0p+0" in milblob.to_text(message, operation="w") and "..." in milblob.to_text(message, operation="w")
    with pytest.raises(KeyError, match="no operation with the output 'x'"):
        milblob.to_text(message, operation="x")
    with pytest.raises(ValueError, match="around: expected 0 or more steps, got -1"):
        milblob.to_text(message, operation="b", around=-1)
    for steps in (0, 1, 2):
        with pytest.raises(ValueError, match=f"around: expected the operation too, .*, got {steps} alone"):
            milblob.to_text(message, around=steps)


def test_an_operation_by_its_own_name():
    """Apple's texts have `var_9` for an operation that is called op_9."""
    message, block = new_program()
    op = add_op(block, "relu", "var_9", x="x")
    set_type(op.attributes["name"].type, STRING, [])
    op.attributes["name"].immediateValue.tensor.strings.values.append("op_9")
    add_op(block, "relu", "op_8", x="var_9")
    assert milblob.to_text(message, operation="op_9", around=0).startswith("tensor<fp32, [12]> var_9 = relu(")
    assert milblob.to_text(message, operation="op_9") == milblob.to_text(message, operation="var_9")


@settings(PROFILE)
@given(st.data())
def test_broken_bytes_are_refused_or_come_back(data):
    whole = bytearray(loop_program().SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    try:
        text = written(bytes(whole))
    except milblob.MilblobError as error:
        assert "\n" not in str(error)
        return
    assert schema.Program.FromString(parse_text(_codec.Buffer(text))) == schema.Program.FromString(bytes(whole))


def test_a_document_of_versions_is_not_a_text():
    assert version_of(json.dumps({"program": 1}).encode()) is None and version_of(b" program( 1 )") == "1"
    assert version_of(b"program(1.25) {") == "1.25" and model(program()) and field(1, 1)
