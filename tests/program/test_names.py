"""Names made in C, the table that finds them, and the rows that are kept: against names put together in Python."""

import random
import tracemalloc

import numpy as np
import pytest

import milblob
import reference_names
from hostile_bytes import FLOATS, const, immediate, model
from hostile_bytes import program as program_of
from milblob import _codec
from milblob.program.scan import ProgramScan
from protobuf_programs import LONG, add_const, add_op, as_model, new_program, set_value
from thorough import sized

NAMES = [
    "",
    "w",
    "w",
    "a.b",
    "w#2",
    "main/w",
    "w[1]",
    "@program.note",
    "é中\U0001f600",
    "x" * 300,
    "val",
    "/",
    "a/b/c",
    "main/out[0]/w",
    "\0",
]
FIELDS = (
    "value",
    "payload",
    "steps",
    "key",
    "text",
    "shape",
    "blob_offset",
    "count",
    "mil_code",
    "owner",
    "storage",
    "block",
    "function",
    "binding",
)
OP_FIELDS = ("message", "name", "type", "block", "index", "output_count", "mil_code", "shape")


def fill(chance, block, depth=0):
    """Add random operations to a block: the names are few, so that many occur twice."""
    for _ in range(chance.randrange(6)):
        name, small = chance.choice(NAMES), LONG[: chance.choice([1, 9, 10, 12])]
        kind = chance.randrange(7)
        if kind < 2:
            add_const(block, name, small)
        elif kind == 2:
            add_op(block, "concat", name, values=[chance.choice(NAMES), small, LONG], axis=np.float32(1))
        elif kind == 3:
            add_op(
                block,
                chance.choice(["constexpr_cast", "constexpr_lut_to_dense"]),
                name,
                lut=small,
                indices=chance.choice(NAMES),
            )
        elif kind == 4:
            op = add_op(block, "write_state", None, data=LONG)
            set_value(op.attributes[chance.choice(["val", "hint", "é"])], LONG)
        elif kind == 5 and depth < 3:
            op = add_op(block, "cond", name)
            for _ in range(chance.randrange(1, 3)):
                fill(chance, op.blocks.add(), depth + 1)
        else:
            value = add_op(block, "const", name).attributes[chance.choice(["val", "other"])]
            for _ in range(3):
                set_value(value.immediateValue.list.values.add(), LONG)
    if chance.random() < 0.2:
        set_value(block.attributes[chance.choice(["note", "w"])], LONG)


def random_program(seed):
    """A Program with everything that names are made of, by seed."""
    chance = random.Random(seed)
    program, _ = new_program(*chance.choice([["main"], ["main"], ["alpha", "main"], ["a", "b", "c"]]))
    for each in program.functions.values():
        if chance.random() < 0.3:
            each.block_specializations["CoreML9"].SetInParent()
        for block in each.block_specializations.values():
            fill(chance, block)
        if chance.random() < 0.2:
            set_value(each.attributes["note"], LONG)
    if chance.random() < 0.3:
        set_value(program.attributes["note"], LONG)
    return program


def fields(row, names):
    return None if row is None else tuple(getattr(row, name) for name in names)


@pytest.mark.parametrize("seeds", [range(start, start + sized(20, 50)) for start in range(0, 400, 50)], ids=str)
def test_names_are_those_made_in_python(seeds):
    for seed in seeds:
        data = random_program(seed).SerializeToString(deterministic=True)
        buffer = _codec.Buffer(data)
        every = _codec.scan_program(buffer, 0, len(data), _codec.SCAN_ALL)
        for constants in (True, False):
            for prefix in ("", "model0/"):
                scanned = ProgramScan(buffer, (0, len(data)), prefix, constants)
                plain = scanned.table
                if not constants and len(plain.blocks) > len(plain.functions):  # then all constants decide
                    by_value = dict(zip(every.constants, reference_names.names_of(every, prefix), strict=False))
                    expected = [by_value[c] for c in plain.constants]
                else:
                    expected = reference_names.names_of(plain, prefix)[: len(plain)]
                before = [(fields(c, FIELDS), fields(c.op, OP_FIELDS)) for c in plain.constants]
                names = scanned.names()
                assert list(names)[: len(plain)] == [name or "" for name in expected], seed
                for row, name in enumerate(expected):
                    assert names.find(name) == row if name is not None else names[row] == "", (seed, name)
                assert names.find("no such name") == names.find("\ud800") == -1
                of_ops = [op for op in plain.ops if op.type.startswith("constexpr_")]
                assert len(of_ops) == len(names) - len(plain)
                after = [(fields(c, FIELDS), fields(c.op, OP_FIELDS)) for c in plain.constants]
                assert (
                    before
                    == after
                    == [(fields(c, FIELDS), fields(c.op, OP_FIELDS)) for c in map(plain.constant, range(len(plain)))]
                )
                scanned.release()
                assert after == [(fields(c, FIELDS), fields(c.op, OP_FIELDS)) for c in plain.constants], (
                    "rows outlive the bytes"
                )


@pytest.mark.parametrize("stored", [False, True])
def test_a_model_finds_each_tensor_by_its_name(stored):
    found = 0
    for seed in range(60):
        data = as_model(random_program(seed))
        try:
            opened = milblob.open(data, constants=seed % 2 == 0, stored=stored)
        except milblob.MilblobError:  # a compressed weight that names cannot make
            continue
        with opened:
            names = list(opened)
            assert len(names) == len(opened) == len(set(names)) == len(list(opened.values()))
            assert (
                [(t.name, t) for t in opened.values()]
                == list(opened.items())
                == [(name, opened[name]) for name in names]
            )
            assert all(name in opened for name in names)
            described = [(t.name, t.mil_dtype, t.declared_shape, t.where, t.op, t.function) for t in opened.values()]
        assert [
            (t.name, t.mil_dtype, t.declared_shape, t.where, t.op, t.function) for t in opened.values()
        ] == described
        found += len(names)
    assert found > 500


def test_constants_are_equal_if_they_are_one_message_of_one_buffer():
    program, block = new_program()
    for i in range(3):
        add_const(block, f"w{i}", LONG)
    data = program.SerializeToString()
    buffer, other = _codec.Buffer(data), _codec.Buffer(data)
    first, again, elsewhere = (_codec.scan_program(b, 0, len(data)).constants for b in (buffer, buffer, other))
    assert first == again and set(first) == set(again) and len(set(first + again)) == 3
    assert not any(a == b for a in first for b in elsewhere) and len(set(first + elsewhere)) == 6
    assert first[0] != first[1] and first[0] != "w0"


def test_many_equal_names():
    """Each gets a number; the table of names is not searched once for each of those before."""
    count = 30_000
    weight = const(immediate(11, [10], FLOATS), "same")
    names = list(milblob.open(model(program_of(*[weight] * count))))
    assert names[0] == "main/same" and names[-1] == f"main/same#{count}" and len(set(names)) == count


@pytest.mark.parametrize("length", [1, 7, 8, 9, 15, 16, 17, 4095, 100_000])
def test_names_of_every_length(length):
    program, block = new_program()
    for last in "ab":
        add_const(block, "n" * (length - 1) + last, LONG)
    with milblob.open(as_model(program)) as opened:
        assert list(opened) == ["n" * (length - 1) + "a", "n" * (length - 1) + "b"]
        assert opened["n" * (length - 1) + "b"].size == 12 and "n" * length not in opened


@pytest.mark.parametrize(
    "name", [b"\xff", b"\xc0\x80", b"a" * 9 + b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"ok\xe2\x82", b"12345678\x80"]
)
def test_names_that_are_not_utf8(name):
    source = model(program_of(const(immediate(11, [10], FLOATS), "good"), const(immediate(11, [10], FLOATS), name)))
    with pytest.raises(milblob.FormatError, match="text: expected UTF-8") as caught:
        milblob.open(source)
    assert name in source[caught.value.offset - 12 : caught.value.offset + 12]


@pytest.mark.parametrize("whole", ["é", "€", "\U0001f600"])
def test_names_that_are_utf8_only_together(whole):
    text = whole.encode()
    for cut in range(1, len(text)):
        rows = [const(immediate(11, [10], FLOATS), name) for name in (b"w" + text[:cut], text[cut:] + b"w")]
        for constants in (False, True):
            with pytest.raises(milblob.FormatError, match="text: expected UTF-8"):
                milblob.open(model(program_of(*rows)), constants=constants)


def test_a_type_that_changes_after_names_were_made():
    program, block = new_program()
    add_const(block, "a€€", LONG)  # 7 bytes, of which ".val" would take 4
    data = bytearray(program.SerializeToString(deterministic=True))
    scan = _codec.scan_program(_codec.Buffer(data), 0, len(data))
    scan.names("", 1 << 20)
    at = data.index(b"const")
    data[at : at + 5] = b"other"
    scan.settle()
    with pytest.raises(milblob.FormatError, match="expected them as counted before"):
        list(scan.ops)


def test_memory_of_weights_that_are_not_read():
    count = sized(6_000, 20_000)
    program, block = new_program()
    for i in range(count):
        add_const(block, f"encoder_layers_{i:05}_weight", LONG)
    data = as_model(program)
    with milblob.open(data) as opened:
        assert sum(1 for _ in opened.values()) == count  # imports what it needs
    tracemalloc.start()
    try:
        with milblob.open(data) as opened:
            held, _ = tracemalloc.get_traced_memory()
            scanned = opened.parts[0].scan
            table = scanned.table.nbytes + scanned.names().nbytes
            assert (held + table) / count < 100
            assert sum(1 for _ in opened.values()) == count
            assert tracemalloc.get_traced_memory()[0] - held < 10 * count, "a listing keeps nothing"
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["constexpr_", "constexpr_x", "constexpr"])
def test_a_name_is_that_of_its_operation_for_every_type(kind):
    """Names that occur twice come from a scan of every constant: it must have the outputs that the first scan has."""
    program, block = new_program("main")
    add_op(block, kind, "small", data=LONG[:1])
    nested = add_op(block, "cond", "c").blocks.add()
    for where, name in ((nested, "w"), (block, "v"), (block, "w")):
        add_op(where, "constexpr_cast", name, source_val=LONG)
    with milblob.open(as_model(program)) as model:
        found = model.parts[0].scan
        names = {found.name_of(end): end.op.name for end in found.ends if end.op.type == "constexpr_cast"}
    assert names == {"main/c[0]/w": "w", "v": "v", "main/w": "w"}
