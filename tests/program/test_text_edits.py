"""Edits of a Program become edits of the text that it was read from."""

import numpy as np
import pytest

import milblob
from milblob import _codec
from milblob.program import schema
from milblob.program.plain import parse_text
from milblob.program.scan import ProgramScan
from milblob.program.splice import Edit, splice
from milblob.program.text_edits import splice_text
from milblob.program.wire_edits import copied_constant, followed_operation, removed_operation, value_edit
from paths import DATA, SAMPLES

TEXTS = sorted(DATA.rglob("*.mil"))
SAMPLE_TEXTS = sorted(SAMPLES.rglob("*.mil")) if SAMPLES.is_dir() else []

HEAD = "program(1.3)\n{\n    func main<ios17>(tensor<fp32, [2]> x) {\n"
TAIL = "        } -> (x);\n}"


def const(name, values="0x1p+0, 0x1p+1"):
    return f'            tensor<fp32, [2]> {name} = const()[name = string("{name}"), val = tensor<fp32, [2]>([{values}])];\n'


def scanned(text):
    buffer = _codec.Buffer(text if isinstance(text, bytes) else text.encode(), "model.mil")
    data = _codec.Buffer(parse_text(buffer), "model.mil")
    return buffer, ProgramScan(data, (0, data.nbytes), constants=True, is_text=True)


def constant(program, name, key="val"):
    return next(c for c in program.constants if c.op is not None and c.op.name == name and c.key == key)


def edited(text, make):
    buffer, program = scanned(text)
    edits = make(program)
    result = splice_text(buffer, program, edits).tobytes()
    wanted = splice(program.buffer, program.span, edits).tobytes()
    assert schema.Program.FromString(parse_text(_codec.Buffer(result))) == schema.Program.FromString(wanted)
    return result.decode()


def replaced(*names):
    """Edits that give constants other values."""
    new = milblob.pack_tensor(np.float32([0.5, -3]))
    return lambda program: [value_edit(program.buffer, constant(program, name), tensor=new) for name in names]


NEW = "0x1p-1, -0x1.8p+1"


def test_a_value():
    text = HEAD + const("a") + const("b") + const("c") + TAIL
    assert edited(text, replaced("b")) == HEAD + const("a") + const("b", NEW) + const("c") + TAIL
    assert edited(text, replaced("c", "a")) == HEAD + const("a", NEW) + const("b") + const("c", NEW) + TAIL
    assert edited(text, lambda program: []) == text


def test_an_operation_that_goes():
    text = HEAD + const("a") + const("b") + const("c") + TAIL
    for gone in ("a", "b", "c", "ab", "bc", "ac", "abc"):
        kept = "".join(const(name) for name in "abc" if name not in gone)

        def remove(program, gone=gone):
            return [removed_operation(program.buffer, constant(program, name).op) for name in gone]

        assert edited(text, remove) == HEAD + kept + TAIL


def test_an_operation_that_comes():
    text = HEAD + const("a") + const("b") + TAIL

    def add(program):
        new = [copied_constant(program.buffer, constant(program, "a"), name, tensor=NEW_VALUE) for name in ("d", "e")]
        return [followed_operation(program.buffer, constant(program, "a").op, [], new)]

    assert edited(text, add) == HEAD + const("a") + const("d", NEW) + const("e", NEW) + const("b") + TAIL


NEW_VALUE = milblob.pack_tensor(np.float32([0.5, -3]))


def test_one_comes_and_others_go():
    text = HEAD + const("a") + const("b") + const("c") + TAIL

    def change(program):
        new = [copied_constant(program.buffer, constant(program, "b"), name, tensor=NEW_VALUE) for name in ("d", "e")]
        return [
            removed_operation(program.buffer, constant(program, "a").op),
            followed_operation(program.buffer, constant(program, "b").op, replaced("b")(program), new),
            removed_operation(program.buffer, constant(program, "c").op),
        ]

    assert edited(text, change) == HEAD + const("b", NEW) + const("d", NEW) + const("e", NEW) + TAIL


def test_no_white_space_and_much_of_it():
    tight = "program(1.0){func main<ios15>(){" + const("a").strip() + const("b").strip() + "}->(a);}"
    wide = tight.replace(";", " \t;\r\n\r\n \t")

    def change(program):
        new = [copied_constant(program.buffer, constant(program, "b"), "d", tensor=NEW_VALUE)]
        return [
            removed_operation(program.buffer, constant(program, "a").op),
            followed_operation(program.buffer, constant(program, "b").op, [], new),
        ]

    d = const("d", NEW).strip().replace('string("d")', 'tensor<string, []>("d")')
    assert edited(tight, change) == tight.replace(const("a").strip(), "").replace("}->", d + "}->")
    wanted = wide.replace(const("a").strip()[:-1] + " \t;", "")
    assert edited(wide, change) == wanted.replace("\r\n\r\n \t}->", f"\r\n\r\n \t{d}\r\n\r\n \t}}->")


@pytest.mark.parametrize("count", [1, 255, 256, 257, 5000])
def test_a_lot_of_white_space(count):
    space = "\n" + " " * (count - 1)
    head = "program(1.3){func main<ios17>(){"
    parts = [const(name).strip() for name in "abc"]
    text = head + "".join(space + part for part in parts) + space + "} -> ();}"
    wanted = head + space + parts[2] + space + "} -> ();}"

    def remove(program):
        return [removed_operation(program.buffer, constant(program, name).op) for name in "ab"]

    assert edited(text, remove) == wanted


LOOP = (
    '            tensor<fp32, [2]> r = while_loop(loop_vars = x)[name=string("r")]\n'
    "                (tensor<fp32, [2]> i) {\n{c}                    bool t = less(x = i, y = c); } -> (t)\n"
    "                (tensor<fp32, [2]> j) {{d} {d2} tensor<fp32, [2]> k = add(x = j, y = d); } -> (k);\n"
)


def loop(c="", d="", d2=""):
    return LOOP.replace("{c}", c).replace("{d}", d).replace("{d2}", d2)


@pytest.mark.parametrize("words", [
    "; } -> (x); } }", 'const()[name = string(\\"b\\")];', "a \\\\", '\\\\\\"', "üñí // no comment /* none */", "BLOBFILE(path = string(", "\\n\\t\\r ;",
])  # fmt: skip
def test_strings_that_look_like_statements(words):
    line = f'            string s = const()[name = string("s"), val = string("{words}")];\n'
    text = HEAD + const("a") + line + const("b") + line.replace("string s", "string t") + TAIL
    wanted = HEAD + const("a") + line + const("b", NEW) + line.replace("string s", "string t") + TAIL
    assert edited(text, replaced("b")) == wanted


def test_a_block_in_a_block():
    """Only the inner statement is written anew; what stands around it keeps its characters."""
    text = HEAD + const("a") + loop(const("c"), const("d").strip()) + const("b") + TAIL
    wanted = HEAD + const("a") + loop(const("c"), const("d", NEW).strip()) + const("b", NEW) + TAIL
    assert edited(text, replaced("d", "b")) == wanted

    def change(program):
        new = [copied_constant(program.buffer, constant(program, "d"), "d2", tensor=NEW_VALUE)]
        return [
            removed_operation(program.buffer, constant(program, "a").op),
            followed_operation(program.buffer, constant(program, "d").op, [], new),
        ]

    wanted = HEAD + loop(const("c"), const("d").strip() + const("d2", NEW).strip()) + const("b") + TAIL
    assert edited(text, change) == wanted


def test_an_operation_with_blocks_whose_head_changes():
    """It is written anew with all that is in it."""
    text = HEAD + loop(const("c"), const("d").strip()) + const("b") + TAIL

    def rename(program):
        return [value_edit(program.buffer, constant(program, "r", "name"), tensor=milblob.pack_tensor(["q"]))]

    got = edited(text, rename)
    assert got.startswith(HEAD) and got.endswith(const("b") + TAIL) and 'name = string("q")' in got
    assert const("c").strip() in got and const("d").strip() in got


@pytest.mark.parametrize(
    ("version", "word"), [("1.0", "tensor<string, []>"), ("1.3", "string"), ("1", "tensor<string, []>")]
)
def test_what_stands_around_operations(version, word):
    """An attribute of a function: all is written anew, in the version that the text has."""
    text = (
        f'program({version}) {{func main<ios17>() [ note = {word}("n") ] {{ int32 a = '
        f'const ( )[name = {word}("a")]; }}->(a);}}'
    )

    def change(program):
        note = next(c for c in program.constants if c.op is None)
        return [value_edit(program.buffer, note, tensor=milblob.pack_tensor(["m"]))]

    got = edited(text, change)
    assert got.startswith(
        f'program({version if "." in version else "1.0"})\n{{\n    func main<ios17>() [note = {word}("m")] {{\n'
    )
    assert got.endswith("\n}") and f'const()[name = {word}("a")];' in got


def test_another_text_than_the_programs():
    buffer, program = scanned(HEAD + const("a") + const("b") + TAIL)
    other, _ = scanned(HEAD + const("a") + const("b", NEW) + TAIL)
    with pytest.raises(milblob.FormatError, match="expected the one that its Program was read from, got another"):
        splice_text(other, program, replaced("b")(program))
    broken = Edit(constant(program, "b").value[0], 2, b"\xff\xff")
    with pytest.raises(milblob.FormatError):
        splice_text(buffer, program, [broken])


@pytest.mark.parametrize("path", [*TEXTS, *SAMPLE_TEXTS], ids=lambda path: "/".join(path.parts[-3:-1]))
@pytest.mark.sample(5)
def test_statements_of_every_text(path):
    """Each is one that ends in a semicolon, and every operation has one; without it the rest says the rest."""
    text = path.read_bytes()
    buffer, program = scanned(text)
    statements = []
    parse_text(buffer, statements)
    ops = [op for op in program.table.ops if op.type == "const"]
    assert len(statements) >= len(ops) and all(text[at : at + n].endswith(b";") for at, n in statements)
    assert sorted(statements) == statements
    if not ops:
        return
    step = max(1, len(ops) // 12)
    for first in range(0, min(len(ops), 3 * step), step):
        gone = ops[first::step]
        edits = [removed_operation(program.buffer, op) for op in gone]
        left = splice_text(buffer, program, edits).tobytes()
        wanted = splice(program.buffer, program.span, edits).tobytes()
        assert parse_text(_codec.Buffer(left)) == wanted  # the bytes: nothing else was written anew
