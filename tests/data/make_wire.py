"""Wire bytes that protobuf allows and no producer writes. What they mean is what google's parser makes of them.

A message is a list of (field number, content); content is a list (sub-message), an int (varint), bytes or str
(length-delimited), or Raw (bytes that follow the tag of the given wire type as they are).
"""

import dataclasses
import os
import struct
import sys

import record

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
import reference

FLOAT32, FLOAT64, INT32, INT64, BOOL, STRING, UINT8 = 11, 12, 23, 24, 1, 2, 31


@dataclasses.dataclass
class Raw:
    """Encoded content under an explicit wire type."""

    wire: int
    data: bytes


class Entry(list):
    """A map entry: a message whose fields are 1 key and 2 value."""


def varint(value, nbytes=0):
    """A varint, padded with continuation bytes to `nbytes`."""
    out = bytearray(reference.write_varint(value))
    while len(out) < nbytes:
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def encode(message, tags=0, lengths=0, values=0):
    """Encodes a message; the numbers are the least bytes a tag, a length or a value takes."""
    out = b""
    for number, content in message:
        if isinstance(content, Raw):
            out += varint(number << 3 | content.wire, tags) + content.data
        elif isinstance(content, int):
            out += varint(number << 3, tags) + varint(content, values)
        else:
            if isinstance(content, list):
                content = encode(content, tags, lengths, values)
            content = content.encode() if isinstance(content, str) else content
            out += varint(number << 3 | 2, tags) + varint(len(content), lengths) + content
    return out


def floats(*values):
    """Packed floats."""
    return struct.pack(f"<{len(values)}f", *values)


def doubles(*values):
    """Packed doubles."""
    return struct.pack(f"<{len(values)}d", *values)


def varints(*values, nbytes=0):
    """Packed varints."""
    return b"".join(varint(value, nbytes) for value in values)


def value_type(dtype, *dims):
    """ValueType of a tensor."""
    return [(1, [(1, dtype), (2, len(dims)), *((3, [(1, [(1, dim)])]) for dim in dims)])]


def tensor(dtype, dims, *tensor_value):
    """Value with an immediate tensor."""
    return [(2, value_type(dtype, *dims)), (3, [(1, list(tensor_value))])]


def entry(key, value):
    """A map entry."""
    return Entry([(1, key), (2, value)])


def const(name, value):
    """A const operation; `value` is a Value, or the list of attribute entries if it is a tuple."""
    entries = value if isinstance(value, tuple) else (entry("val", value),)
    label = entry("name", tensor(STRING, (), (4, [(1, name)])))
    out_type = value_type(FLOAT32, 1)
    return [(1, "const"), (3, [(1, name), (2, out_type)]), (5, label), *((5, item) for item in entries)]


def program(*operations):
    """A Program with one function."""
    block = [(2, "out"), *((3, op) for op in operations)]
    function = [(1, [(1, "x"), (2, value_type(FLOAT32, 1))]), (2, "CoreML7"), (3, entry("CoreML7", block))]
    return [(1, 1), (2, entry("main", function))]


def plain():
    """One constant of each kind that the other cases bend."""
    return program(
        const("f", tensor(FLOAT32, (2, 6), (1, [(1, floats(*range(12)))]))),
        const("d", tensor(FLOAT64, (3,), (6, [(1, doubles(0.1, -2.0, 1e300))]))),
        const("i", tensor(INT32, (11,), (2, [(1, varints(0, 1, -1, 127, 128, -128, 1 << 30, -(1 << 31), 7, 300, 2))]))),
        const("l", tensor(INT64, (3,), (5, [(1, varints(-(1 << 63), (1 << 63) - 1, 5))]))),
        const("b", tensor(BOOL, (10,), (3, [(1, varints(1, 0, 1, 1, 0, 0, 1, 0, 1, 1))]))),
        const("s", tensor(STRING, (2,), (4, [(1, "one"), (1, "zwei ü")]))),
        const("y", tensor(UINT8, (10,), (7, [(1, bytes(range(10)))]))),
        [
            (1, "add"),
            (2, entry("x", [(1, [(1, "x")])])),
            (2, entry("y", [(1, [(2, tensor(FLOAT32, (), (1, [(1, floats(0.5))])))])])),
            (3, [(1, "out"), (2, value_type(FLOAT32, 1))]),
        ],
    )


def each_message(message, change):
    """Applies change(message) to every message, innermost first."""
    fields = [(n, each_message(c, change) if isinstance(c, list) else c) for n, c in message]
    return change(type(message)(fields))


def add_unknown(message):
    """Surrounds the fields of a message, unless it is a map entry, with unknown ones of every wire type."""
    if isinstance(message, Entry):
        return message
    fields = [(900, 1 << 63), (901, b"unknown"), (902, Raw(5, b"\1\2\3\4")), (903, Raw(1, bytes(8)))]
    return [*fields, *message, (1 << 28, b""), (536870911, 0)]


def add_group(message):
    """Ends a message, unless it is a map entry, with an unknown group that holds another one."""
    if isinstance(message, Entry):
        return message
    inner = [(5, Raw(3, b"")), (1, b"x"), (6, Raw(3, b"")), (2, 3), (6, Raw(4, b"")), (5, Raw(4, b""))]
    return [*message, *((n + 1000, c) for n, c in inner)]


def add_to_entries(message):
    """Puts an unknown field into every map entry."""
    return Entry([(900, 5), *message]) if isinstance(message, Entry) else message


def chunks():
    """Packed fields in several pieces, an empty one among them, and pieces mixed with single elements."""
    single = Raw(5, struct.pack("<f", 9.5))
    return program(
        const(
            "f",
            tensor(
                FLOAT32,
                (11,),
                (1, [(1, floats(*range(4))), (1, b""), (1, floats(4.0)), (1, single), (1, floats(*range(5)))]),
            ),
        ),
        const("d", tensor(FLOAT64, (4,), (6, [(1, doubles(1.0, 2.0)), (1, Raw(1, doubles(3.0))), (1, doubles(4.0))]))),
        const(
            "i",
            tensor(
                INT32,
                (10,),
                (2, [(1, varints(1, -2, 3)), (1, 4), (1, -5), (1, varints(6, 7)), (1, varints(8, 9, 1000))]),
            ),
        ),
        const("l", tensor(INT64, (3,), (5, [(1, varints(1)), (1, -2), (1, varints(1 << 40))]))),
        const("b", tensor(BOOL, (4,), (3, [(1, varints(1, 0)), (1, 1), (1, varints(0))]))),
    )


def unpacked():
    """One field per element."""
    return program(
        const("f", tensor(FLOAT32, (10,), (1, [(1, Raw(5, floats(i / 3))) for i in range(10)]))),
        const("d", tensor(FLOAT64, (2,), (6, [(1, Raw(1, doubles(v))) for v in (0.1, -1e-300)]))),
        const("i", tensor(INT32, (12,), (2, [(1, i * 100 - 600) for i in range(12)]))),
        const("l", tensor(INT64, (2,), (5, [(1, -1), (1, 1 << 62)]))),
        const("b", tensor(BOOL, (3,), (3, [(1, 1), (1, 0), (1, 1)]))),
    )


def split():
    """Singular sub-messages in two pieces, which merge; a singular scalar given twice, of which the last counts."""
    type_split = [
        (2, [(1, [(1, FLOAT32), (2, 1)])]),
        (2, [(1, [(3, [(1, [(1, 4)])])])]),
        (3, [(1, [(1, [(1, floats(1, 2, 3, 4))])])]),
    ]
    value_split = [
        (2, value_type(FLOAT32, 12)),
        (3, [(1, [(1, [(1, floats(*range(5)))])])]),
        (3, [(1, [(1, [(1, floats(*range(7)))])])]),
    ]
    floats_split = tensor(FLOAT32, (10,), (1, [(1, floats(*range(6)))]), (1, [(1, floats(6, 7, 8, 9))]))
    ints_split = tensor(INT32, (4,), (2, [(1, varints(1, 2))]), (2, [(1, 3), (1, 4)]))
    bytes_twice = tensor(UINT8, (3,), (7, [(1, b"first"), (1, b"xyz")]))
    bytes_split = tensor(UINT8, (3,), (7, [(1, b"first")]), (7, [(1, b"abc")]))
    bytes_kept = tensor(UINT8, (3,), (7, [(1, b"abc")]), (7, []))
    strings_split = tensor(STRING, (3,), (4, [(1, "a"), (1, "b")]), (4, [(1, "c")]))
    dtype_twice = [
        (2, [(1, [(1, INT32), (2, 1), (3, [(1, [(1, 9)]), (1, [(1, 2)])]), (1, FLOAT32)])]),
        (3, [(1, [(1, [(1, floats(1, 2))])])]),
    ]
    whole = tensor(FLOAT32, (2,), (1, [(1, floats(7, 8))]))
    entry_split = ([(1, "val"), *((2, [field]) for field in whole)],)
    blobs = {
        "type": type_split,
        "value": value_split,
        "floats": floats_split,
        "ints": ints_split,
        "bytes_twice": bytes_twice,
        "bytes": bytes_split,
        "bytes_kept": bytes_kept,
        "strings": strings_split,
        "dtype": dtype_twice,
        "entry": entry_split,
    }
    return program(*(const(f"{name}_split", value) for name, value in blobs.items()))


def replaced():
    """A oneof member followed by another one: the later member replaces the earlier, whatever it held."""
    five = [(1, [(1, floats(5.0))])]
    return program(
        const("ints_then_floats", tensor(FLOAT32, (2,), (2, [(1, varints(1, 2, 3))]), (1, [(1, floats(1, 2))]))),
        const("there_and_back", tensor(FLOAT32, (1,), (1, [(1, floats(9, 9))]), (2, [(1, 7)]), (1, [(1, floats(3))]))),
        const("floats_then_nothing", tensor(INT32, (0,), (1, [(1, floats(9, 9))]), (2, []))),
        const("blob_then_immediate", [(2, value_type(FLOAT32, 1)), (5, [(1, "gone.bin"), (2, 64)]), (3, [(1, five)])]),
        const(
            "list_then_tensor",
            [(2, value_type(FLOAT32, 1)), (3, [(3, [(1, tensor(INT32, (), (2, [(1, 4)])))]), (1, five)])],
        ),
        const(
            "list_type_then_tensor", [(2, [(2, [(1, value_type(INT32))]), *value_type(FLOAT32, 1)]), (3, [(1, five)])]
        ),
        const(
            "unknown_then_constant",
            [(2, [(1, [(1, FLOAT32), (2, 1), (3, [(2, [(1, 1)]), (1, [(1, 1)])])])]), (3, [(1, five)])],
        ),
        [
            (1, "add"),
            (2, entry("y", [(1, [(1, "x"), (2, tensor(FLOAT32, (1,), *five))])])),
            (2, entry("z", [(1, [(2, tensor(FLOAT32, (1,), *five)), (1, "x")])])),
            (3, [(1, "out"), (2, value_type(FLOAT32, 1))]),
        ],
    )


def duplicates():
    """Map keys that occur twice: the last entry counts, whole; entries do not merge."""
    first, last = tensor(FLOAT32, (1,), (1, [(1, floats(1))])), tensor(FLOAT32, (2,), (1, [(1, floats(2, 3))]))
    twice = const("w", (entry("val", first), entry("val", last)))
    message = program(const("hidden", first))
    return [*message, *program(twice)[1:], (4, entry("note", first)), (4, entry("note", last))]


def odd_numbers():
    """Varints that say more than their field holds: cut to 32 bits, or any bit set for a bool."""
    return program(
        const(
            "i",
            tensor(INT32, (6,), (2, [(1, varints(0xFFFFFFFF, 1 << 32, (1 << 32) + 5, -1, 0x80000000, (1 << 63) | 3))])),
        ),
        const("b", tensor(BOOL, (5,), (3, [(1, varints(2, 0, 255, 1 << 31, -1))]))),
        const("padded", tensor(INT32, (3,), (2, [(1, varints(1, 0, 300, nbytes=10))]))),
        const("padded_bool", tensor(BOOL, (3,), (3, [(1, varints(1, 0, 1, nbytes=10))]))),
        const("padded_long", tensor(INT64, (2,), (5, [(1, varints(1, 1 << 40, nbytes=10))]))),
    )


def odd_names():
    """Empty names and keys, absent keys and values, a key after its value."""
    five = tensor(FLOAT32, (1,), (1, [(1, floats(5.0))]))
    return program(
        const("", five),
        const("no_key", ([(2, five)],)),
        const("no_value", ([(1, "val")], entry("other", five))),
        const("unicode_键", (entry("clé", five),)),
    )


def order(message):
    """Fields in descending order of their number; repeated ones keep theirs."""
    return type(message)(sorted(message, key=lambda field: -field[0]))


def swap_entries(message):
    """Puts the value of a map entry before its key."""
    return message[::-1] if isinstance(message, Entry) else message


def wrap(pieces, **padding):
    """A Model whose mlProgram comes in the given pieces."""
    tail = [(502, piece) for piece in pieces]
    return encode([(1, 8), (2, [(1, [(1, "x"), (3, [(5, [(1, b"\1"), (2, 65568)])])])]), *tail], **padding)


CHANGES = {
    "plain": ("fields in order, nothing odd: what the others are compared with", plain, {}),
    "value_before_key": (
        "every map entry has its value before its key",
        lambda: each_message(plain(), swap_entries),
        {},
    ),
    "reversed": ("fields of every message in descending order", lambda: each_message(plain(), order), {}),
    "unknown_fields": (
        "unknown fields of wire types 0 1 2 5 in every message but map entries",
        lambda: each_message(plain(), add_unknown),
        {},
    ),
    "unknown_groups": (
        "unknown nested groups (wire types 3 and 4) in every message but map entries",
        lambda: each_message(plain(), add_group),
        {},
    ),
    "padded_values": ("every varint value takes 10 bytes", plain, {"values": 10}),
    "padded_lengths": ("every length prefix takes 5 bytes", plain, {"lengths": 5}),
    "padded_tags": ("every tag takes 5 bytes", plain, {"tags": 5}),
    "chunks": ("packed fields in several pieces, mixed with single elements", chunks, {}),
    "unpacked": ("repeated numbers one field each", unpacked, {}),
    "split": ("singular sub-messages in two pieces: they merge", split, {}),
    "replaced": ("oneof members replaced by later ones", replaced, {}),
    "duplicate_keys": ("a map key twice: the last entry counts", duplicates, {}),
    "odd_numbers": ("varints wider than their field", odd_numbers, {}),
    "odd_names": ("empty and non-ASCII names, entries without key or value", odd_names, {}),
}


def wire_case(name):
    """Returns the maker of one wire case: model.mlmodel, and its Program alone in program.pb."""
    note, build, padding = CHANGES[name]

    def make(folder):
        write(folder, [build()], note, padding)

    return make


def write(folder, pieces, note, padding, recorded=False):
    """Writes a case whose Program comes in pieces, and records it if it is not yet."""
    with open(os.path.join(folder, "model.mlmodel"), "wb") as file:
        file.write(wrap(pieces, **padding))
    with open(os.path.join(folder, "program.pb"), "wb") as file:
        file.write(b"".join(encode(piece, **padding) for piece in pieces))
    if not recorded:
        record.record_model(folder, ["model.mlmodel", "program.pb"], note, pymil=False)


def make_split_program(folder):
    """Model.mlProgram in three pieces: two functions apart, attributes last."""
    first, second = plain(), program(const("w", tensor(FLOAT32, (1,), (1, [(1, floats(1))]))))
    second = [(2, entry("other", second[1][1][1][1]))]
    third = [(4, entry("note", tensor(STRING, (), (4, [(1, "last piece")]))))]
    write(folder, [first, second, third], "Model.mlProgram in three pieces: they merge", {})


def make_unknown_in_entry(folder):
    """An unknown field in every map entry. Python's protobuf hides such entries; C++ keeps them, and that is right."""
    piece = each_message(plain(), add_to_entries)
    note = (
        "an unknown field in every map entry; expected is what C++ and pure-Python protobuf see (upb hides the entries)"
    )
    write(folder, [plain()], note, {})
    write(folder, [piece], note, {}, recorded=True)


CASES = {
    **{f"wire/{name}": wire_case(name) for name in CHANGES},
    "wire/split_program": make_split_program,
    "wire/unknown_in_entry": make_unknown_in_entry,
}
