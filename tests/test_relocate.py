"""References in MIL text move, and nothing else does."""

import re

import pytest

import milblob
from milblob.program.relocate import relocate
from repacking import (
    blobs_of,
    copy_of,
    fixture_path,
    references,
    tree,
    unsynced,  # noqa: F401  # a fixture, of every test here
    values,
    weight_file_names,
)

OLD, NEW = ("@model_path/weights/weight.bin", 64), ('@model_path/weights/größe "1"\\2.bin', 1 << 40)


def text(body, version="1.3"):
    return f"program({version})\n{{\n  func main<ios17>(fp32 x) {{\n{body}\n  }} -> (x);\n}}\n".encode()


def const(value, name="w"):
    return f'    tensor<fp32, [2]> {name} = const()[name = string("{name}"), val = tensor<fp32, [2]>({value})];\n'


def blobfile(path="@model_path/weights/weight.bin", offset=64, long=False):
    string, number = ("tensor<string, []>", "tensor<uint64, []>") if long else ("string", "uint64")
    return f'BLOBFILE(path = {string}("{path}"), offset = {number}({offset}))'


def places(data):
    from milblob.program.relocate import _places

    return _places(data, None)


@pytest.mark.parametrize("long", [True, False])
def test_both_spellings(long):
    before = text(const(blobfile(long=long)) + const(blobfile(offset=128, long=long), "v"), "1.0" if long else "1.3")
    after = relocate(before, {OLD: NEW})
    assert places(after) == [NEW, ("@model_path/weights/weight.bin", 128)]
    assert after == before.replace(b"weight.bin", 'größe \\"1\\"\\\\2.bin'.encode(), 1).replace(
        b"(64)", b"(%d)" % (1 << 40)
    )
    assert relocate(after, {NEW: OLD}) == before
    assert relocate(before, {}) == before and relocate(before, {NEW: OLD}) == before


@pytest.mark.parametrize("spelled", [
    'BLOBFILE(path=string("@model_path/weights/weight.bin"),offset=uint64(64))',
    'BLOBFILE \t(\r\n path\n=\nstring ( "@model_path/weights/weight.bin" ) , offset = uint64\r\n( 64 )\r\n)',
    'BLOBFILE(path = tensor < string , [ ] > ("@model_path/weights/weight.bin"), offset = tensor<uint64,[]>(64))',
    'BLOBFILE(path = string("@model_path/weights/weight.bin"), offset = uint64(0064))',
    'BLOBFILE(path = string("@model_path/weights\\/weight.bin"), offset = uint64(64))',
])  # fmt: skip
def test_white_space_and_digits(spelled):
    before = text(const(spelled))
    try:
        known = places(before) == [OLD]
    except milblob.FormatError:
        known = False
    if not known:
        with pytest.raises(milblob.FormatError):
            relocate(before, {OLD: NEW})
        return
    after = relocate(before, {OLD: NEW})
    assert places(after) == [NEW]
    assert relocate(after, {NEW: OLD}).translate(None, b"0") == before.translate(None, b"0")


@pytest.mark.parametrize("words", [
    'BLOBFILE(path = string(\\"@model_path/weights/weight.bin\\"), offset = uint64(64))',
    'a \\" quote and BLOBFILE(path = string(',
    "backslash at the end \\\\",
    "\\\\\\\"",
    "üñí// no comment /* none */",
    "BLOBFILE",
])  # fmt: skip
def test_strings_that_look_like_references(words):
    line = f'    string s = const()[name = string("s"), val = string("{words}")];\n'
    before = text(line + const(blobfile()) + line.replace("string s", "string t"))
    after = relocate(before, {OLD: NEW})
    assert places(after) == [NEW] and after.count(line[15:].encode()) == 2
    assert relocate(after, {NEW: OLD}) == before


def test_line_ends_stay():
    before = text(const(blobfile())).replace(b"\n", b"\r\n")
    assert relocate(relocate(before, {OLD: NEW}), {NEW: OLD}) == before
    assert relocate(before, {OLD: NEW}).count(b"\r\n") == before.count(b"\r\n")


def test_two_references_to_one_place_and_swapped_ones():
    one, two = ("@model_path/a.bin", 64), ("@model_path/b.bin", 64)
    before = text("".join(const(blobfile(*place), name) for name, place in zip("wvu", (one, two, one), strict=True)))
    assert places(relocate(before, {one: two, two: one})) == [two, one, two]


@pytest.mark.parametrize("broken", [b"program(1.3) {", text(const(blobfile())) + b"x", text("// " + const(blobfile()))])
def test_text_that_is_none(broken):
    with pytest.raises(milblob.FormatError):
        relocate(broken, {OLD: NEW}, "model.mil")


def test_function_that_is_there_twice():
    function = text(const(blobfile()))[len(b"program(1.3)\n{\n") : -2]
    with pytest.raises(milblob.FormatError, match="expected every function and argument once, got a name twice"):
        relocate(b"program(1.3)\n{\n" + function + function + b"}\n", {OLD: NEW})


def test_what_is_not_recognised_is_refused(monkeypatch):
    """Whatever the search misses, parsing finds."""
    before = text(const(blobfile()))
    monkeypatch.setattr(milblob.program.relocate, "_REFERENCE", re.compile(rb'X(Y)(Z)|"[^"]*"'))
    with pytest.raises(milblob.UnsupportedError, match="as Core ML writes it, got others in model.mil"):
        relocate(before, {OLD: NEW}, "model.mil")
    assert relocate(before, {NEW: OLD}) == before


# ----------------------------------------------------------------------------------------------------- compiled models


def compiled(folder, line_end="\n", version="1.3"):
    path = folder / "m.mlmodelc"
    (path / "weights").mkdir(parents=True)
    data, offsets = blobs_of((2, b"abcdefgh"), (2, b"xxxxxxxx"), (2, b"abcdefgh"))
    (path / "weights/weight.bin").write_bytes(data)
    lines = "".join(const(blobfile(offset=at, long=version == "1.0"), f"w{i}") for i, at in enumerate(offsets))
    note = '    string s = const()[name = string("s"), val = string("BLOBFILE(path = x")];\n'
    (path / "model.mil").write_bytes(
        text(note + lines + const(blobfile(offset=offsets[1]), "w3"), version).replace(b"\n", line_end.encode())
    )
    (path / "coremldata.bin").write_bytes(b"compiled")
    return path


@pytest.mark.parametrize("version", ["1.0", "1.3"])
@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_compiled_model(tmp_path, line_end, version):
    source, target = compiled(tmp_path, line_end, version), tmp_path / "out.mlmodelc"
    milblob.repack(source, target, dedupe=True, align=4096)
    assert values(target) == values(source) and (target / "coremldata.bin").read_bytes() == b"compiled"
    assert len(set(references(target).values())) == 2 and references(target)["w2"] == references(target)["w0"]
    before, after = (path.joinpath("model.mil").read_bytes() for path in (source, target))
    assert [line for line in before.split(b"\n") if b"offset" not in line] == [
        line for line in after.split(b"\n") if b"offset" not in line
    ]
    milblob.repack(source, source, split="function")
    assert weight_file_names(source) == ["coremldata.bin", "weights/main-weight.bin"] and values(source) == values(
        target
    )


def test_compiled_pipeline(tmp_path):
    source = fixture_path("pipeline", "model.mlmodelc")
    for number, options in enumerate(
        ({"split": "function"}, {"merge": True, "align": 16384}, {"split": 500, "canonical": True, "gc": True})
    ):
        target = tmp_path / f"{number}.mlmodelc"
        milblob.repack(source, target, **options)
        assert values(target) == values(source)
        assert {name.split("/")[0] for name in weight_file_names(target)} == {"model0", "model1"}
        other = copy_of(target, tmp_path, f"copy-{number}.mlmodelc")
        milblob.repack(target, target, **options)
        assert tree(target) == tree(other)
