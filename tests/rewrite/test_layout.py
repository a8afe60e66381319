"""milblob.repack: which records there are afterwards, and where: equal ones, unreferenced ones, files, functions, links."""

import json
import os
import struct

import numpy as np
import pytest

import milblob
import reference
from blob_files import blob_file
from coremltools_view import theirs
from hostile_bytes import field
from peers import WITHOUT
from repacking import (
    FILE,
    WEIGHTS,
    blobs_of,
    copy_of,
    findings,
    fixture_path,
    package_of,
    record_values,
    references,
    simple_package,
    tree,
    values,
    weight_file_names,
)

pytestmark = pytest.mark.usefixtures("unsynced")

INSIDE = "Data/com.apple.CoreML/"


def numbers(*values):
    return struct.pack(f"<{len(values)}f", *values)


def offsets(path):
    return {name: place[1] for name, place in references(path).items()}


# --------------------------------------------------------------------------------------------------------------- dedupe


def test_dedupe_is_exact(tmp_path):
    """One byte makes a difference, and so do dtype, count, and unused bits; reserved bytes do not."""
    base = bytes(range(60))
    other = bytearray(base)
    other[59] ^= 1
    data, offset = blobs_of(
        (3, base), (3, base), (3, bytes(other)), (4, base), (2, base), (11, base[:6], 0), (11, base[:6], 4),
        (11, base[:5] + b"\xf5", 4), (3, base), garbage=0xA5,
    )  # fmt: skip
    kinds = [
        (31, [60]),
        (31, [60]),
        (31, [60]),
        (21, [60]),
        (11, [15]),
        (35, [12]),
        (35, [11]),
        (35, [11]),
        (31, [6, 10]),
    ]
    tensors = [
        (f"w{i}", code, shape, WEIGHTS, at) for i, ((code, shape), at) in enumerate(zip(kinds, offset, strict=True))
    ]
    source = package_of(tmp_path, {"main": tensors}, {"weights/weight.bin": data})
    milblob.repack(source, tmp_path / "out.mlpackage", dedupe=True)
    found = offsets(tmp_path / "out.mlpackage")
    assert found["w0"] == found["w1"] == found["w8"]
    assert len(set(found.values())) == 7
    assert values(tmp_path / "out.mlpackage") == values(source)
    with milblob.BlobReader(tmp_path / "out.mlpackage" / FILE) as blobs:
        assert len(blobs) == 7
    written = (tmp_path / "out.mlpackage" / FILE).read_bytes()
    assert written[8:64] == bytes(56) and written[64 + 32 : 128] == bytes(32)  # garbage is not copied
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    assert theirs(tmp_path / "out.mlpackage") == theirs(source)


def test_dedupe_of_one_record_with_several_names(tmp_path):
    data, (at,) = blobs_of((2, numbers(1, 2)))
    source = package_of(tmp_path, {"main": [("a", 11, [2], WEIGHTS, at), ("b", 11, [2], "@model_path/weights/./weight.bin", at)]},
                        {"weights/weight.bin": data})  # fmt: skip
    report = milblob.repack(source, tmp_path / "out.mlpackage", dedupe=True)
    assert report.changed == [] and [c.nbytes_after for c in report.changes] == [8, 0]
    assert tree(tmp_path / "out.mlpackage") == tree(source)


def test_dedupe_across_weight_files(tmp_path):
    one, (first, second) = blobs_of((2, numbers(1, 2, 3)), (2, numbers(4, 5, 6)))
    two, (third, fourth) = blobs_of((2, numbers(4, 5, 6)), (2, numbers(7, 8, 9)))
    tensors = [("a", 11, [3], WEIGHTS, first), ("b", 11, [3], WEIGHTS, second),
               ("c", 11, [3], "@model_path/weights/two.bin", third), ("d", 11, [3], "@model_path/weights/two.bin", fourth)]  # fmt: skip
    source = package_of(tmp_path, {"main": tensors}, {"weights/weight.bin": one, "weights/two.bin": two})
    target = tmp_path / "out.mlpackage"
    report = milblob.repack(source, target, dedupe=True)
    assert references(target)["c"] == references(target)["b"] == (WEIGHTS, second)
    assert references(target)["d"] == ("@model_path/weights/two.bin", 64)
    assert values(target) == values(source) and [name for name, _, _ in report.files] == [INSIDE + "weights/two.bin"]
    assert (target / FILE).read_bytes() == one


def test_dedupe_of_values_that_leave_the_program_and_records(tmp_path):
    """An integer in the Program is a varint; what counts is the bytes that a weight file has for it."""
    from dtype_values import tensor_value

    array = np.arange(-5, 15, dtype=np.int32)
    data, (at,) = blobs_of((14, array.tobytes()))
    value = tensor_value("ints", array, "INT32")
    tensors = [("a", 23, [20], None, value), ("b", 23, [20], WEIGHTS, at), ("c", 23, [20], None, value)]
    source = package_of(tmp_path, {"main": tensors}, {"weights/weight.bin": data})
    target = tmp_path / "out.mlpackage"
    milblob.repack(source, target, dedupe=True, externalize=True)
    assert set(references(target).values()) == {(WEIGHTS, 64)} and len(references(target)) == 3
    assert values(target) == values(source)


def test_dedupe_in_a_compiled_pipeline_is_per_model(tmp_path):
    """What @model_path stands for is another directory for each."""
    source = copy_of(fixture_path("pipeline", "model.mlmodelc"), tmp_path)
    first, second = sorted(source.rglob("*-weight.bin"))
    with milblob.BlobReader(first) as a, milblob.BlobReader(second) as b:
        pairs = [(x, y) for x in a for y in b if (x.dtype, x.nbytes) == (y.dtype, y.nbytes)]
        assert pairs
        same = bytes(a.read_packed(pairs[0][0].offset))
    data = bytearray(second.read_bytes())
    data[pairs[0][1].data_offset : pairs[0][1].data_offset + len(same)] = same
    second.write_bytes(data)
    target = tmp_path / "out.mlmodelc"
    milblob.repack(source, target, dedupe=True, canonical=True)
    assert values(target) == values(source)
    assert sorted(weight_file_names(target)) == sorted(weight_file_names(source))


def test_several_weight_files_become_one(tmp_path):
    one, _ = blobs_of((2, numbers(1, 2, 3)), (1, b"ab"))
    two, _ = blobs_of((1, b"ab"), (1, b"cd"), (4, b"abcd"), garbage=0x77)
    (tmp_path / "one.bin").write_bytes(one)
    (tmp_path / "two.bin").write_bytes(two)
    sources = [tmp_path / "one.bin", tmp_path / "two.bin"]
    report = milblob.repack(sources, tmp_path / "all.bin")
    assert record_values(tmp_path / "all.bin") == record_values(sources[0]) + record_values(sources[1])
    assert [c.name for c in report.changes] == [
        f"{s}#{i}" for s, n in zip(sources, (2, 3), strict=True) for i in range(n)
    ]
    assert report.files[0][1:] == (5, (tmp_path / "all.bin").stat().st_size)
    milblob.repack(sources, tmp_path / "shared.bin", dedupe=True)
    assert record_values(tmp_path / "shared.bin") == [*record_values(sources[0]), *record_values(sources[1])[1:]]
    milblob.repack(sources, sources[1])  # one of them is replaced
    assert sources[1].read_bytes() == (tmp_path / "all.bin").read_bytes() and sources[0].read_bytes() == one
    source = simple_package(tmp_path, [numbers(1)])
    with pytest.raises(milblob.UnsupportedError, match="repack of several: expected weight files, got a model"):
        milblob.repack([sources[0], source], tmp_path / "new.bin")


# ------------------------------------------------------------------------------------------------------------------- gc


def unreferenced(tmp_path):
    data, at = blobs_of((2, numbers(1)), (2, numbers(2)), (1, b"zz"), (2, numbers(3)))
    tensors = [("a", 11, [1], WEIGHTS, at[3]), ("b", 11, [1], WEIGHTS, at[1])]
    return package_of(tmp_path, {"main": tensors}, {"weights/weight.bin": data})


def test_gc(tmp_path):
    source, target = unreferenced(tmp_path), tmp_path / "out.mlpackage"
    assert ("note", "unreferenced") in findings(source)
    report = milblob.repack(source, target, gc=True)
    assert record_values(target / FILE) == [("float32", 1, numbers(2)), ("float32", 1, numbers(3))]
    assert values(target) == values(source) and report.counts() == {"drop": 2}
    assert ("note", "unreferenced") not in findings(target)
    assert (report.nbytes, report.nbytes_after) == (14, 8)


def test_unreferenced_records_are_kept(tmp_path):
    source, target = unreferenced(tmp_path), tmp_path / "out.mlpackage"
    milblob.repack(source, target, align=4096)
    assert record_values(target / FILE) == record_values(source / FILE)
    milblob.repack(source, target, canonical=True, force=True)  # in the order of the Program, the others last
    kept = record_values(source / FILE)
    assert record_values(target / FILE) == [kept[3], kept[1], kept[0], kept[2]]


def test_records_that_cannot_be_listed(tmp_path):
    """Behind a broken record nothing can be listed; what is referred to is sound, and can be had alone."""
    source, target = unreferenced(tmp_path), tmp_path / "out.mlpackage"
    path = source / FILE
    data = bytearray(path.read_bytes())
    data[64:68] = b"????"
    path.write_bytes(data)
    with pytest.raises(milblob.FormatError, match="record sentinel"):
        milblob.repack(source, target, align=4096)
    assert not target.exists()
    milblob.repack(source, target, gc=True)
    assert record_values(target / FILE) == [("float32", 1, numbers(2)), ("float32", 1, numbers(3))]
    assert values(target) == values(source)


def test_overlapping_records(tmp_path):
    """Two records over the same bytes: each has its own afterwards."""
    data, (at, _) = blobs_of((2, numbers(1, 2, 3, 4)), (2, numbers(0, 0)))
    data = bytearray(data)
    second = 192
    struct.pack_into("<Q", data, second + 16, at + 64 + 8)
    tensors = [("a", 11, [4], WEIGHTS, at), ("b", 11, [2], WEIGHTS, second)]
    source = package_of(tmp_path, {"main": tensors}, {"weights/weight.bin": bytes(data)})
    target = tmp_path / "out.mlpackage"
    milblob.repack(source, target, gc=True)
    assert values(target) == values(source) and values(target)["b"][2] == numbers(3, 4)
    assert not [f for f in findings(target) if f[0] == "error"]


# ------------------------------------------------------------------------------------------------ externalize and inline


@pytest.mark.parametrize("name", ["opset_ios15_fp16", "opset_ios17_fp32", "opset_ios18_fp16", "wide_integers", "functions",
                                  "constexpr_ios16", "constexpr_ios18", "quant_int4_block", "sparse_uint1", "states", "control_flow"])  # fmt: skip
def test_there_and_back_as_coremltools_had_it(tmp_path, name):
    """Everything inline, then 10 elements and more external: the rule of coremltools, its files, byte for byte."""
    source = fixture_path(name, "model.mlpackage")
    milblob.repack(source, tmp_path / "inline.mlpackage", inline=10**9)
    assert references(tmp_path / "inline.mlpackage") == {}
    assert weight_file_names(tmp_path / "inline.mlpackage") == []
    assert (tmp_path / "inline.mlpackage/Data/com.apple.CoreML/weights").is_dir()  # as coremltools leaves it
    assert not [f for f in findings(tmp_path / "inline.mlpackage") if f[0] == "error"]
    milblob.repack(tmp_path / "inline.mlpackage", tmp_path / "back.mlpackage", externalize=10, dedupe=True)
    assert values(tmp_path / "back.mlpackage") == values(source)
    got, wanted = references(tmp_path / "back.mlpackage"), references(source)
    assert list(got) == list(wanted)
    canonical = tmp_path / "canonical.mlpackage"
    milblob.repack(source, canonical, canonical=True, gc=True, dedupe=True)
    weights = [
        {n: data for n, data in tree(path).items() if n.endswith(".bin")}
        for path in (tmp_path / "back.mlpackage", canonical)
    ]
    assert weights[0] == weights[1] and weights[0]
    milblob.repack(tmp_path / "back.mlpackage", tmp_path / "again.mlpackage", canonical=True)
    assert tree(tmp_path / "again.mlpackage") == tree(canonical)
    if name in (
        "opset_ios15_fp16",
        "opset_ios18_fp16",
        "wide_integers",
        "states",
    ):  # written in the order of the Program
        assert tree(tmp_path / "back.mlpackage") == tree(source)


def test_externalize_few(tmp_path):
    source = fixture_path("wide_integers", "model.mlpackage")
    milblob.repack(source, tmp_path / "out.mlpackage", externalize=4)
    moved = set(references(tmp_path / "out.mlpackage")) - set(references(source))
    assert moved == {f"{dtype}_few" for dtype in ("int8", "uint8", "int16", "uint16", "int32", "uint32")}
    report = milblob.repack(source, tmp_path / "more.mlpackage", externalize=5)
    assert report.changed == [] and tree(tmp_path / "more.mlpackage") == tree(source)


def test_early_models_keep_wide_integers_in_the_program(tmp_path):
    """Weight files for iOS 17 and before hold float16, float32, int8 and uint8."""
    from dtype_values import tensor_value

    array = np.arange(20)
    tensors = [("i", 23, [20], None, tensor_value("ints", array.astype(np.int32), "INT32")),
               ("f", 11, [20], None, tensor_value("floats", array.astype(np.float32), "FLOAT32"))]  # fmt: skip
    for spec_version, wanted in ((8, {"f"}), (9, {"f", "i"})):
        (tmp_path / str(spec_version)).mkdir()
        source = package_of(tmp_path / str(spec_version), {"main": tensors}, {}, spec_version=spec_version)
        target = tmp_path / f"{spec_version}.mlpackage"
        milblob.repack(source, target, externalize=True)
        assert set(references(target)) == wanted and values(target) == values(source)
        entries = json.loads((target / "Manifest.json").read_text())["itemInfoEntries"]
        assert sorted(entry["path"] for entry in entries.values()) == [
            "com.apple.CoreML/model.mlmodel",
            "com.apple.CoreML/weights",
        ]
        again = tmp_path / f"again-{spec_version}.mlpackage"
        milblob.repack(source, again, externalize=True)
        assert tree(again) == tree(target)


def test_select(tmp_path):
    source = fixture_path("opset_ios17_fp16", "model.mlpackage")
    milblob.repack(source, tmp_path / "out.mlpackage", inline=10**9, select=["fc_*", "*table"])
    gone = set(references(source)) - set(references(tmp_path / "out.mlpackage"))
    assert gone == {"fc_weight", "table.quantized_data", "table.scale", "table.zero_point"} & set(references(source))
    assert {"fc_weight", "table.quantized_data"} <= gone


# ---------------------------------------------------------------------------------------------------------------- files


def two_functions(tmp_path, names, others=None):
    """Functions with a weight of their own and one that all share."""
    contents = [numbers(*range(i, i + 12)) for i in range(len(names) + 1)]
    data, at = blobs_of(*((2, content) for content in contents))
    functions = {
        name: [("own", 11, [12], WEIGHTS, at[i]), ("shared", 11, [12], WEIGHTS, at[-1])] for i, name in enumerate(names)
    }
    return package_of(tmp_path, functions, {"weights/weight.bin": data}, others)


def test_split_by_function(tmp_path):
    names = ["main", "Main", "weight", "a/../../b", "a\\b", "ä", "x" * 300]
    source, target = two_functions(tmp_path, names, {"weights/main-weight.bin": b"mine"}), tmp_path / "out.mlpackage"
    milblob.repack(source, target, split="function")
    assert values(target) == values(source)
    files = weight_file_names(target)
    assert len({name.lower() for name in files}) == len(names) + 2  # and one that all share, and one that was there
    found = references(target)
    assert found["weight/shared"][0] == WEIGHTS and found["weight/own"][0] == "@model_path/weights/weight-weight.bin"
    assert found["main/own"][0] == "@model_path/weights/main-weight-2.bin"
    assert found["Main/own"][0] == "@model_path/weights/Main-weight-3.bin"
    assert (target / INSIDE / "weights/main-weight.bin").read_bytes() == b"mine"
    again = tmp_path / "again.mlpackage"
    milblob.repack(target, again, split="function")
    assert tree(again) == tree(target)
    merged = tmp_path / "merged.mlpackage"
    milblob.repack(target, merged, merge=True, canonical=True)
    assert values(merged) == values(source)
    assert weight_file_names(merged) == [INSIDE + "weights/main-weight.bin", INSIDE + "weights/weight.bin"]


def test_split_by_size(tmp_path):
    contents = [bytes(np.full(size, i, np.uint8)) for i, size in enumerate([400, 300, 3000, 100, 100, 100, 500])]
    source, target = simple_package(tmp_path, contents, 31, 3, 1), tmp_path / "out.mlpackage"
    milblob.repack(source, target, split=1000)
    sizes = {name.rpartition("/")[2]: (target / name).stat().st_size for name in weight_file_names(target)}
    assert sorted(sizes) == ["0-weight.bin", "1-weight.bin", "2-weight.bin", "3-weight.bin"]
    assert [len(record_values(target / INSIDE / "weights" / name)) for name in sorted(sizes)] == [2, 1, 3, 1]
    assert all(size <= 1000 or name == "1-weight.bin" for name, size in sizes.items())
    assert values(target) == values(source)
    again = tmp_path / "again.mlpackage"
    report = milblob.repack(target, again, split=1000)
    assert tree(again) == tree(target) and report.files == []
    (tmp_path / "x").mkdir()
    exact = simple_package(tmp_path / "x", contents[:2], 31, 3, 1)
    size = (exact / FILE).stat().st_size
    assert milblob.repack(exact, tmp_path / "e.mlpackage", split=size).files == []
    assert len(milblob.repack(exact, tmp_path / "f.mlpackage", split=size - 1).files) == 2


def test_a_file_that_is_there_is_never_written_over(tmp_path):
    """Files of those names, which nothing refers to, are somebody's."""
    others = {
        "weights/0-weight.bin": b"zero",
        "weights/1-WEIGHT.bin": b"one",
        "weights/extra.txt": b"text",
        "weights/weight.bin": b"mine",
    }
    contents = [bytes(300), bytes([1]) * 300, bytes([2]) * 300]
    data, at = blobs_of(*((3, content) for content in contents))
    one, two = data, blobs_of((3, b"abc"))[0]
    tensors = [(f"w{i}", 31, [300], "@model_path/weights/a.bin", offset) for i, offset in enumerate(at)]
    tensors.append(("t", 31, [3], "@model_path/weights/b.bin", 64))
    source = package_of(tmp_path, {"main": tensors}, {"weights/a.bin": one, "weights/b.bin": two}, others)
    for options in ({"split": 400}, {"split": "function"}, {"merge": True}, {"externalize": 1, "merge": True}):
        target = tmp_path / f"{len(os.listdir(tmp_path))}.mlpackage"
        milblob.repack(source, target, **options)
        assert values(target) == values(source)
        for name, content in others.items():
            assert (target / INSIDE / name).read_bytes() == content
        assert len({n.lower() for n in weight_file_names(target)}) == len(weight_file_names(target))


def test_merge(tmp_path):
    source, target = fixture_path("weight_files", "model.mlpackage"), tmp_path / "out.mlpackage"
    milblob.repack(source, target, merge=True)
    assert weight_file_names(target) == [FILE] and values(target) == values(source)
    compiled = tmp_path / "out.mlmodelc"
    milblob.repack(fixture_path("weight_files", "model.mlmodelc"), compiled, merge=True)
    assert weight_file_names(compiled) == ["weights/weight.bin"]
    assert (target / FILE).read_bytes() == (compiled / "weights/weight.bin").read_bytes()
    assert values(compiled) == values(fixture_path("weight_files", "model.mlmodelc"))
    pipeline = tmp_path / "pipeline.mlpackage"
    milblob.repack(fixture_path("pipeline", "model.mlpackage"), pipeline, merge=True)
    assert weight_file_names(pipeline) == [FILE] and values(pipeline) == values(
        fixture_path("pipeline", "model.mlpackage")
    )


def test_functions(tmp_path):
    source, target = fixture_path("functions", "model.mlpackage"), tmp_path / "out.mlpackage"
    with milblob.open(source) as opened:
        names = list(opened.functions)
    report = milblob.repack(source, target, functions=names[-1])
    with milblob.open(target) as opened:
        assert list(opened.functions) == names[-1:] and opened.metadata.default_function == names[-1]
    kept = {name.removeprefix(f"{names[-1]}/"): row for name, row in values(source, [names[-1]]).items()}
    assert {name: row for name, row in values(target).items() if name in kept} == kept
    assert {c.name for c in report.changes if c.actions == ["drop"]} == {
        c.name for c in report.changes if c.name.startswith(names[0])
    }
    assert not [f for f in findings(target) if f not in findings(source)]


def test_records_that_only_a_removed_function_used(tmp_path):
    source, target = two_functions(tmp_path, ["one", "two"]), tmp_path / "out.mlpackage"
    milblob.repack(source, target, functions=["two"])
    assert record_values(target / FILE) == record_values(source / FILE)[1:]
    milblob.repack(source, target, functions=["one", "two"], force=True)
    assert tree(target) == tree(source)


# ---------------------------------------------------------------------------------- what is odd, and what is not a model


def test_model_in_pieces(tmp_path):
    """What protobuf has to put together first has no bytes in the file that could be replaced."""
    for case in ("wire/split", "wire/duplicate_keys", "wire/split_program"):
        source = fixture_path(case, "model.mlmodel")
        with pytest.raises(milblob.UnsupportedError, match="expected one that lies in the file in one piece"):
            milblob.repack(source, tmp_path / "out.mlmodel", externalize=1, force=True)
        milblob.repack(source, tmp_path / "out.mlmodel", gc=True, force=True)
        assert (tmp_path / "out.mlmodel").read_bytes() == source.read_bytes()


def test_model_around_a_program_in_pieces(tmp_path):
    """The Program is whole, but the Model has its field twice."""
    data, at = blobs_of((2, numbers(1)), (2, numbers(2)), garbage=1)
    tensors = [("a", 11, [1], WEIGHTS, at[0]), ("b", 11, [1], WEIGHTS, at[1])]
    source = package_of(tmp_path, {"main": tensors}, {"weights/weight.bin": data + bytes(100)})
    path = source / INSIDE / "model.mlmodel"
    path.write_bytes(path.read_bytes() + field(502, field(1, 1)))
    before = values(source)
    with pytest.raises(milblob.UnsupportedError, match="expected one that lies in the file in one piece"):
        milblob.repack(source, tmp_path / "out.mlpackage", align=4096)
    milblob.repack(source, tmp_path / "out.mlpackage", canonical=True)  # what moves nothing is done
    assert values(tmp_path / "out.mlpackage") == before
    assert (tmp_path / "out.mlpackage" / FILE).read_bytes() == blobs_of((2, numbers(1), 0), (2, numbers(2), 0))[0]


@pytest.mark.parametrize(
    "content", [None, b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", b"", bytes(64)]
)
def test_weight_files_that_are_none(tmp_path, content):
    source, target = simple_package(tmp_path, [numbers(1)]), tmp_path / "out.mlpackage"
    (source / FILE).unlink()
    if content is not None:
        (source / FILE).write_bytes(content)
    for options in ({}, {"dedupe": True}, {"inline": True}):
        with pytest.raises(milblob.MilblobError) as raised:
            milblob.repack(source, target, **options)
        assert "main.block['CoreML7'].op[0] 'w0'" in str(raised.value)
        assert os.listdir(tmp_path) == ["m.mlpackage"]


def test_record_that_contradicts_the_program(tmp_path):
    """It is moved as it is, but neither cast nor inlined."""
    data, (at,) = blobs_of((2, numbers(1, 2)))
    source = package_of(tmp_path, {"main": [("a", 11, [3], WEIGHTS, at)]}, {"weights/weight.bin": data})
    with pytest.raises(milblob.ResolveError, match="elements of the record: expected 3"):
        milblob.repack(source, tmp_path / "out.mlpackage", inline=True)
    milblob.repack(source, tmp_path / "out.mlpackage", align=4096)
    assert record_values(tmp_path / "out.mlpackage" / FILE) == record_values(source / FILE)


def test_manifest_that_names_the_weight_file_itself(tmp_path):
    source, target = simple_package(tmp_path, [numbers(1)]), tmp_path / "out.mlpackage"
    entry = '{"itemInfoEntries": {"A": {"path": "com.apple.CoreML/model.mlmodel"}, "B": {"path": "com.apple.CoreML/weights/weight.bin"}}, "rootModelIdentifier": "A"}'
    (source / "Manifest.json").write_text(entry)
    milblob.repack(source, target, inline=True)
    assert record_values(target / FILE) == [] and not [f for f in findings(target) if f[0] == "error"]
    assert (target / "Manifest.json").read_text() == entry


def test_package_in_other_folders(tmp_path):
    source, target = fixture_path("elsewhere", "model.mlpackage"), tmp_path / "out.mlpackage"
    milblob.repack(source, target, align=4096, split="function")
    assert values(target) == values(source)
    assert weight_file_names(target) == ["Data/org.example/weights/main-weight.bin"]


def test_padding_between_records_is_zero_and_files_end_where_coremltools_ends_them(tmp_path):
    data, _ = blob_file(
        ("FLOAT32", np.arange(5, dtype="<f4")),
        ("UINT4", np.arange(7, dtype=np.uint8)),
        ("INT8", np.arange(3, dtype="i1")),
    )
    (tmp_path / "odd.bin").write_bytes(data[:64] + data[64:] + b"\1\2\3")
    milblob.repack(tmp_path / "odd.bin", tmp_path / "out.bin", canonical=True)
    assert (tmp_path / "out.bin").read_bytes() == data
    milblob.repack(tmp_path / "odd.bin", tmp_path / "aligned.bin", align=16384)
    written = (tmp_path / "aligned.bin").read_bytes()
    at = 64
    for dtype, count, content in record_values(tmp_path / "odd.bin"):
        sentinel, _, nbytes, start, padding = struct.unpack_from("<IIQQQ", written, at)
        assert sentinel == reference.SENTINEL and start % 16384 == 0 and written[start : start + nbytes] == content
        assert written[at + 32 : start] == bytes(start - at - 32)
        assert padding == (4 if dtype == "uint4" else 0) and count
        at = reference.align64(start + nbytes)
        assert not any(written[start + nbytes : at])


def test_empty_records(tmp_path):
    source, target = fixture_path("blob_empty", "weight.bin"), tmp_path / "out.bin"
    milblob.repack(source, target, dedupe=True)
    with milblob.BlobReader(target) as blobs:
        assert [(r.dtype, r.nbytes) for r in blobs] == list(
            dict.fromkeys((r.dtype, r.nbytes) for r in milblob.BlobReader(source))
        )


def test_a_manifest_without_weights_is_not_repaired(tmp_path):
    source = simple_package(tmp_path, [numbers(1)])
    assert b"weights" not in (source / "Manifest.json").read_bytes()
    milblob.repack(source, tmp_path / "out.mlpackage", align=4096, split="function")
    assert (tmp_path / "out.mlpackage/Manifest.json").read_bytes() == (source / "Manifest.json").read_bytes()


def test_reference_that_leads_to_no_record(tmp_path):
    data, (at,) = blobs_of((2, numbers(1, 2)))
    source = package_of(tmp_path, {"main": [("a", 11, [2], WEIGHTS, at + 64)]}, {"weights/weight.bin": data})
    with pytest.raises(milblob.FormatError, match="record metadata.* - at main.block\\['CoreML7'\\].op\\[0\\] 'a'.val"):
        milblob.repack(source, tmp_path / "out.mlpackage", align=4096)


def test_many_small_records(tmp_path):
    """More than are gathered for one write."""
    contents = [bytes([i % 256, i // 256]) * (50 + i % 30) for i in range(9000)]
    data, _ = blobs_of(*((3, content) for content in contents))
    (tmp_path / "w.bin").write_bytes(data)
    milblob.repack(tmp_path / "w.bin", tmp_path / "out.bin", canonical=True)
    assert (tmp_path / "out.bin").read_bytes() == blobs_of(*((3, content, 0) for content in contents))[0]


def test_identifier_that_the_manifest_has_already(tmp_path):
    import uuid

    value = field(1, field(1, numbers(*range(20))))
    source = package_of(tmp_path, {"main": [("a", 11, [20], None, value)]}, {})
    taken = str(uuid.uuid5(uuid.NAMESPACE_URL, "com.apple.CoreML/weights")).upper()
    entries = {
        "A": {"path": "com.apple.CoreML/model.mlmodel"},
        taken: {"path": "com.apple.CoreML/notes", "name": "größe"},
    }
    (source / INSIDE / "notes").write_bytes(b"")
    (source / "Manifest.json").write_text(json.dumps({"itemInfoEntries": entries, "rootModelIdentifier": "A"}))
    milblob.repack(source, tmp_path / "out.mlpackage", externalize=True)
    written = json.loads((tmp_path / "out.mlpackage/Manifest.json").read_text("utf-8"))["itemInfoEntries"]
    assert {key: written[key] for key in entries} == entries and len(written) == 3
    assert values(tmp_path / "out.mlpackage") == values(source)
