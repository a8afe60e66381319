"""milblob.check: each defect is found under its code, all of them in one pass, and sound models have none."""

import json
import os
import pathlib
import re
import shutil
import struct

import pytest

import milblob
from milblob.analysis import check_blob as blobcheck
from milblob.analysis.check_report import MAX_ALIKE
from milblob.model.package import Package
from milblob.program import schema
from other_files import OTHERS
from paths import DATA
from thorough import sized, some

DEMO = DATA.parent.parent / "examples" / "demo.mlpackage"
GRAMMAR = re.compile(r"[^\n]+: expected [^\n]+, got [^\n]*[^.\n]")
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 123456\n"

# What is no ML Program on purpose. What breaks a rule of the specification is in rules/test_rules.py.
UNSOUND = {"neural_network/model.mlmodel", "neural_network/model.mlpackage"}
MODELS = sorted(
    str(path.relative_to(DATA))
    for pattern in ("**/*.mlpackage", "**/*.mlmodelc", "*/*.mlmodel", "wire/*/*.mlmodel", "**/*.bin", "**/model.mil")
    for path in DATA.glob(pattern)
    if path.name != "dense.bin"  # raw values that decoding is compared with
    and path.parent.name != "cache"  # shards of TVM's
)


def codes(findings, *severities):
    return [f.code for f in findings if not severities or f.severity in severities]


def problems(path):
    """Errors and warnings beside the rules of the specification, after a look at the grammar of all findings."""
    findings = milblob.check(path, ignore="MIL*")
    for finding in findings:
        assert GRAMMAR.fullmatch(finding.message), finding
        assert finding.code in blobcheck.CODES
        assert "\n" not in str(finding)
    return [f for f in findings if f.severity != "note"]


@pytest.mark.parametrize("path", some([m for m in MODELS if m not in UNSOUND], 50))
@pytest.mark.sample(6)
def test_sound_models_have_no_problems(path):
    assert problems(DATA / path) == []


def test_the_demo_is_sound():
    assert list(milblob.check(DEMO)) == []


@pytest.mark.parametrize("path", sorted(UNSOUND))
def test_unsound_fixtures_are_reported(path):
    assert codes(problems(DATA / path)) == ["model-type"]


# -- blob files -------------------------------------------------------------------------------------------------------


def blob(*records, count=None, version=2):
    """A blob file of (code, data) or (code, data, padding bits); data right after the metadata."""
    body = b""
    for code, data, *padding in records:
        at = 64 + len(body)
        body += struct.pack("<IIQQQ", 0xDEADBEEF, code, len(data), at + 64, *(padding or [0])).ljust(64, b"\0")
        body += data + bytes(-len(data) % 64)
    return bytearray(struct.pack("<II", len(records) if count is None else count, version).ljust(64, b"\0") + body)


def good():
    return blob((14, bytes(range(64))), (1, b"\1\2" * 32), (3, b"\7" * 40))  # at 64, 192, 320; ends at 448


def test_a_sound_blob_file():
    assert list(milblob.check(bytes(good()))) == []


def test_noise_in_byte_sized_records_is_not_reported():
    data = good()
    for at in (64, 192, 320):
        data[at + 24 : at + 64] = b"\xa5" * 40
    assert list(milblob.check(bytes(data))) == []


def found(data, offset=None):
    findings = problems(bytes(data))
    if offset is not None:
        assert findings[0].offset == offset
    return codes(findings)


def patched(at, form, value):
    data = good()
    struct.pack_into(form, data, at, value)
    return data


def test_pending_change_is_one_finding(tmp_path):
    """The manifest is checked all the same; what the change may have touched is not."""
    package = shutil.copytree(DEMO, tmp_path / "m.mlpackage")
    (package / "Manifest.json").write_text("{")
    (package / ".milblob-journal").touch()
    assert codes(problems(package)) == ["manifest", "pending-change"]
    shutil.copy(DEMO / "Manifest.json", package)
    (found,) = problems(package)
    assert (found.code, found.file) == ("pending-change", str(package / ".milblob-journal"))


def test_empty_file():
    assert found(b"") == ["empty-file"]


def test_short_header(tmp_path):
    (tmp_path / "w.bin").write_bytes(b"\1\0\0\0\2\0\0\0")
    assert codes(problems(tmp_path / "w.bin")) == ["header"]


def test_version(tmp_path):
    data = patched(4, "<I", 1)
    assert found(data, 4) == ["version"]
    (tmp_path / "w.bin").write_bytes(bytes(64))
    assert codes(problems(tmp_path / "w.bin")) == ["version"]


def test_version_hides_no_other_problem():
    data = patched(4, "<I", 1)
    struct.pack_into("<I", data, 192 + 4, 77)
    assert found(data) == ["version", "dtype-code"]


@pytest.mark.parametrize("count", [0, 1, 2, 4, 5, 1000, 2**32 - 1])
def test_record_count(count):
    findings = problems(bytes(patched(0, "<I", count)))
    assert codes(findings) == ["record-count"]
    assert "expected 3 " in findings[0].message
    assert f"got {count} " in findings[0].message


@pytest.mark.parametrize(("at", "number"), [(64, 0), (192, 1), (320, 2)])
def test_sentinel(at, number):
    findings = problems(bytes(patched(at, "<I", 0)))
    assert codes(findings) == ["sentinel"]
    assert (findings[0].offset, findings[0].where) == (at, f"record {number}")


def test_sentinel_and_the_way_on_lost():
    data = good()
    data[192:256] = b"\x11" * 64
    assert found(data, 192) == ["sentinel"]  # the record after it is found and counted, this one counts too


def test_dtype_code():
    assert found(patched(192 + 4, "<I", 99), 196) == ["dtype-code"]


def test_size_of_data():
    assert found(patched(64 + 8, "<Q", 63), 72) == ["size"]


def test_padding_of_sub_byte_records():
    assert found(blob((8, b"\x21", 8)), 88) == ["size"]
    assert found(blob((12, b"\x21\0", 2)), 88) == ["size"]
    assert found(blob((8, b"\x21\3", 4))) == []


@pytest.mark.parametrize("size", [10**6, 2**63, 2**64 - 64, 2**64 - 2])
def test_bounds(size):
    findings = problems(bytes(patched(320 + 8, "<Q", size)))
    assert codes(findings) == ["bounds"]


@pytest.mark.parametrize("offset", [2**64 - 2, 2**63, 449])
def test_bounds_of_the_offset(offset):
    assert found(patched(64 + 16, "<Q", offset)) == ["bounds"]


def test_truncated_files_at_every_byte():
    data = good()
    for size in range(8, 320 + 64 + 40):
        assert found(data[:size]), size


def test_overlap_with_its_own_metadata():
    assert found(patched(192 + 16, "<Q", 200)) == ["overlap"]


def test_several_problems_of_one_record():
    data = good()
    struct.pack_into("<IIQQ", data, 192, 0xDEADBEEF, 99, 10**9, 128)
    assert found(data) == ["dtype-code", "bounds", "overlap"]


def test_all_broken_neighbours_are_reported():
    data = good()
    struct.pack_into("<IIQQ", data, 64, 0xDEADBEEF, 1, 10**9, 128)
    struct.pack_into("<I", data, 192 + 4, 99)
    struct.pack_into("<I", data, 320, 0)
    assert found(data) == ["bounds", "dtype-code", "sentinel"]


def test_alignment_of_data():
    data = good() + bytes(64)
    struct.pack_into("<Q", data, 320 + 16, 320 + 72)
    assert found(data) == ["alignment"]


def notes(data):
    assert problems(bytes(data)) == []
    return [(f.code, f.offset) for f in milblob.check(bytes(data))]


def test_padding_between_records():
    data = good() + b""
    small = blob((3, b"\1" * 10), (3, b"\2" * 10))
    small[150] = 1
    assert notes(small) == [("padding", 138)]
    struct.pack_into("<Q", data, 320 + 16, 448)  # data further on
    data += b"\7" * 40
    assert notes(data) == [("padding", 384)]


def test_unused_bits():
    assert notes(blob((8, b"\x21\xf3", 4))) == [("padding", 129)]


def test_trailing_bytes():
    assert notes(good() + b"x") == [("trailing-bytes", 424)]
    assert notes(good() + bytes(64)) == [("trailing-bytes", 424)]
    assert notes(good()[:424]) == []
    assert notes(good() + bytes(10)) == []


def test_what_is_alike_is_counted():
    data = blob(*[(99, b"")] * (MAX_ALIKE + 5))
    findings = problems(bytes(data))
    assert len(findings) == MAX_ALIKE + 1
    assert "got 5 more" in findings[-1].message


# -- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def copy(tmp_path):
    """Return a function that copies a fixture to where it may be broken."""

    def make(source):
        return pathlib.Path(shutil.copytree(source, tmp_path / pathlib.Path(source).name))

    return make


@pytest.fixture
def demo(copy):
    return copy(DEMO)


def model_file(package):
    return package / "Data/com.apple.CoreML/model.mlmodel"


def weights(package):
    return package / "Data/com.apple.CoreML/weights/weight.bin"


def edit(package, change):
    """Change the Model message of a package."""
    path = model_file(package)
    message = schema.parse("Model", path.read_bytes())
    change(message)
    path.write_bytes(message.SerializeToString())


def blob_values(message):
    """The blob-file values of the only Program of a Model, by name of the operation."""
    (function,) = message.mlProgram.functions.values()
    (block,) = function.block_specializations.values()
    return {
        op.outputs[0].name: op.attributes["val"]
        for op in block.operations
        if op.type == "const" and op.attributes["val"].WhichOneof("value") == "blobFileValue"
    }


def manifest(package, change):
    path = package / "Manifest.json"
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("key", ["fileFormatVersion", "itemInfoEntries", "rootModelIdentifier"])
def test_manifest_keys(demo, key):
    manifest(demo, lambda d: d.pop(key))
    findings = problems(demo)
    assert set(codes(findings)) == {"manifest"}
    assert any(key in f.message for f in findings)


def test_manifest_with_an_unknown_root(demo):
    manifest(demo, lambda d: d.update(rootModelIdentifier="nobody"))
    struct_patch(weights(demo), 64, 0)
    assert codes(problems(demo)) == ["manifest", "sentinel"]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100000, '"\\ud800"'])
def test_manifest_that_is_none(demo, text):
    (demo / "Manifest.json").write_text(text)
    assert codes(problems(demo)) == ["manifest"]


def test_manifest_items(demo):
    def change(document):
        entries = document["itemInfoEntries"]
        entries["a"] = {"path": "com.apple.CoreML/none", "author": "x", "name": "y"}
        entries["b"] = {"path": "../../up", "author": "x", "name": "y"}
        entries["c"] = {"author": "x"}
        entries["d"] = 7
        entries["e"] = {"path": "com.apple.CoreML/a\0b", "author": "x", "name": "y"}

    manifest(demo, change)
    assert codes(problems(demo)) == ["missing-file", "escaping-file", "manifest", "manifest", "escaping-file"]


def test_manifest_items_without_names_are_a_note(demo):
    manifest(demo, lambda d: [item.pop("author") for item in d["itemInfoEntries"].values()])
    assert codes(milblob.check(demo)) == ["manifest"] * 2
    assert problems(demo) == []


def test_missing_root(demo):
    model_file(demo).unlink()
    assert codes(problems(demo)) == ["missing-file"]


def struct_patch(path, at, value, form="<I"):
    data = bytearray(path.read_bytes())
    struct.pack_into(form, data, at, value)
    path.write_bytes(bytes(data))


def test_missing_weights_are_reported_once(demo):
    weights(demo).unlink()
    findings = problems(demo)
    assert codes(findings) == ["missing-file"]
    assert findings[0].where.endswith("'embedding_weight'.val")


@pytest.mark.parametrize(
    "name", ["@model_path/../../../etc/passwd", "/etc/passwd", "weights/weight.bin", "@model_path/a\0b"]
)
def test_escaping_references(demo, name):
    def change(message):
        blob_values(message)["head_bias"].blobFileValue.fileName = name

    edit(demo, change)
    findings = milblob.check(demo)
    assert codes(findings, "error") == ["escaping-file"]
    assert findings[0].where.endswith("'head_bias'.val")
    assert codes(findings, "note") == ["unreferenced"]


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows: a link in a package is not checked")
def test_links_that_escape(demo, tmp_path):
    weights(demo).rename(tmp_path / "outside.bin")
    weights(demo).symlink_to(tmp_path / "outside.bin")
    assert codes(problems(demo)) == ["escaping-file"]


@pytest.mark.skipif(os.name != "posix", reason="no FIFOs on Windows: check of one is not tested")
def test_special_files(demo):
    weights(demo).unlink()
    os.mkfifo(weights(demo))
    assert codes(problems(demo)) == ["not-a-model"]
    weights(demo).unlink()
    weights(demo).mkdir()
    assert codes(problems(demo)) == ["not-a-model"]
    weights(demo).rmdir()
    weights(demo).symlink_to(weights(demo).name)
    assert codes(problems(demo)) == ["unreadable"]


@pytest.mark.parametrize("which", [weights, model_file, lambda p: p / "Manifest.json", lambda p: p / "notes.txt"])
def test_lfs_pointers(demo, which):
    which(demo).write_bytes(LFS)
    findings = problems(demo)
    assert codes(findings) == ["lfs-pointer"]
    assert findings[0].file == str(which(demo))
    assert "123456" in findings[0].message


def test_a_bare_lfs_pointer(tmp_path):
    (tmp_path / "w.bin").write_bytes(LFS)
    assert codes(problems(tmp_path / "w.bin")) == ["lfs-pointer"]


@pytest.mark.parametrize(("name", "code"), [("page.html", "web-page"), ("x.pt", "other-format")])
def test_files_of_other_formats_in_a_model(demo, name, code):
    """Each file of a model may be a download that failed; the other files are still checked."""
    weights(demo).write_bytes(OTHERS[name][0])
    assert codes(problems(demo)) == [code]
    model_file(demo).write_bytes(OTHERS[name][0])
    findings = problems(demo)
    assert codes(findings) == [code, code]
    assert {finding.file for finding in findings} == {str(weights(demo)), str(model_file(demo))}


def test_the_model_is_opened_once(demo, monkeypatch):
    """The description and the values are read from the files that are open already."""
    opened = []
    real = Package.__init__

    def counted(self, *arguments, **options):
        opened.append(arguments[0])
        real(self, *arguments, **options)

    monkeypatch.setattr(Package, "__init__", counted)
    for source in (demo, model_file(demo), weights(demo), model_file(demo).read_bytes()):
        opened.clear()
        milblob.check(source, values=True)
        assert len(opened) == 1, opened


def test_a_reference_to_the_data_of_a_record(demo):
    """A common mistake of writers: the offset of the data in place of that of the metadata."""
    with milblob.open(demo) as model:
        tensor = model["embedding_weight"]
        offset, data_offset = tensor.offset, tensor.data_offset
    message = schema.parse("Model", model_file(demo).read_bytes())
    for number, words in ((data_offset, "where the data begins"), (data_offset + 6, "in the data")):
        edited = point_to(message, number, was=offset if number == data_offset else data_offset)
        model_file(demo).write_bytes(edited.SerializeToString(deterministic=True))
        expected = f"({words} of the record at byte {offset}: a reference names the offset of the record)"
        (finding,) = [f for f in problems(demo) if f.code == "reference"]
        assert expected in finding.message
        with milblob.open(demo) as model, pytest.raises(milblob.FormatError, match=re.escape(expected)):
            model["embedding_weight"].read()
        with pytest.raises(milblob.FormatError, match=re.escape(expected)):
            milblob.load(demo)


def point_to(model, offset, was):
    """Change every reference to one offset in a Model message to another."""
    for function in model.mlProgram.functions.values():
        for block in function.block_specializations.values():
            for operation in block.operations:
                for value in operation.attributes.values():
                    if value.WhichOneof("value") == "blobFileValue" and value.blobFileValue.offset == was:
                        value.blobFileValue.offset = offset
    return model


def test_broken_program_hides_no_broken_weights(demo):
    path = model_file(demo)
    path.write_bytes(path.read_bytes()[:-10])
    struct_patch(weights(demo), 64, 0)
    assert codes(problems(demo)) == ["program", "sentinel"]


def test_bare_model_file_that_is_broken(demo):
    struct_patch(weights(demo), 64, 0)
    model_file(demo).write_bytes(b"\xff" * 100)
    assert codes(problems(model_file(demo))) == ["program", "sentinel"]


def test_spec_version(demo):
    edit(demo, lambda m: setattr(m, "specificationVersion", 5))
    assert codes(problems(demo)) == ["spec-version"]


@pytest.mark.parametrize("offset", [0, 1, 63, 128, 10**9, 2**64 - 64])
def test_references_to_no_record(demo, offset):
    def change(message):
        blob_values(message)["head_bias"].blobFileValue.offset = offset

    edit(demo, change)
    findings = problems(demo)
    assert codes(findings, "error") == ["reference"]
    assert codes(findings, "warning") == (["alignment"] if offset % 64 else [])
    assert findings[-1].where.endswith("'head_bias'.val")
    assert findings[-1].offset == offset


def test_dtype_and_size_against_the_program(demo):
    def change(message):
        values = blob_values(message)
        values["final_norm_bias"].type.tensorType.dataType = 11  # FLOAT32
        values["head_weight"].type.tensorType.dimensions[0].constant.size += 1
        values["embedding_weight"].type.tensorType.dataType = 24  # INT64, which no blob file has

    edit(demo, change)
    assert codes(problems(demo)) == ["dtype-mismatch", "dtype-mismatch", "size-mismatch"]


def test_open_dimensions_of_blob_values(demo):
    def change(message):
        blob_values(message)["head_weight"].type.tensorType.dimensions[0].unknown.variadic = False

    edit(demo, change)
    assert codes(problems(demo)) == ["shape"]


def test_two_values_at_one_record(demo):
    def change(message):
        values = blob_values(message)
        values["head_bias"].blobFileValue.offset = values["head_weight"].blobFileValue.offset

    edit(demo, change)
    findings = milblob.check(demo)
    assert codes(findings, "error") == ["conflict", "size-mismatch"]
    assert codes(findings, "note") == ["unreferenced"]


def test_records_off_the_walk_that_overlap(demo):
    offsets = []

    def change(message):
        value = blob_values(message)["head_weight"]
        at = value.blobFileValue.offset + 128
        offsets.append(at)
        value.blobFileValue.offset = at
        value.type.tensorType.dimensions[0].constant.size = 1
        value.type.tensorType.dimensions[1].constant.size = 4

    edit(demo, change)
    data = bytearray(weights(demo).read_bytes())
    struct.pack_into("<IIQQ", data, offsets[0], 0xDEADBEEF, 2, 16, offsets[0] + 64)
    weights(demo).write_bytes(bytes(data))
    findings = milblob.check(demo, ignore="MIL022")
    assert set(codes(findings, "error")) == {"overlap"}
    assert codes(findings, "note") == ["unreferenced"]


def test_unreferenced_weight_files(demo):
    shutil.copy(weights(demo), weights(demo).with_name("old.bin"))
    findings = milblob.check(demo)
    assert [(f.severity, f.code, f.file) for f in findings] == [
        ("note", "unreferenced", str(weights(demo).with_name("old.bin")))
    ]


def test_immediates(demo):
    def change(message):
        (function,) = message.mlProgram.functions.values()
        (block,) = function.block_specializations.values()
        scalars = [op.attributes["val"] for op in block.operations if op.type == "const"]
        ints = [v for v in scalars if v.immediateValue.tensor.WhichOneof("value") == "ints"]
        ints[0].immediateValue.tensor.ints.values.append(7)  # count
        ints[1].type.tensorType.dataType = 11  # field
        bools = next(v for v in scalars if v.immediateValue.tensor.WhichOneof("value") == "bools")
        bools.type.tensorType.dataType = 21
        ints[2].type.tensorType.dataType = 21  # range
        ints[2].immediateValue.tensor.ints.values[0] = 1000

    edit(demo, change)
    findings = milblob.check(demo, rules="MIL016")
    assert codes(findings) == ["MIL016"] * 4
    assert all(f.where.endswith(".val") for f in findings)


def test_text_that_is_broken_hides_no_other_model(copy):
    model = copy(DATA / "pipeline/model.mlmodelc")
    (model / "model0/model.mil").write_text("program(1.0) {")
    struct_patch(model / "model1/weights/1-weight.bin", 64, 0)
    assert codes(problems(model)) == ["program", "sentinel", "reference"]


def test_metadata_that_is_broken(copy):
    model = copy(DATA / "states/model.mlmodelc")
    (model / "metadata.json").write_text("[{}, {}]")
    assert [(f.severity, f.code) for f in problems(model)] == [("warning", "metadata")]


def test_parts_of_compressed_weights_are_checked(copy):
    package = copy(DATA / "palette_4bit/model.mlpackage")
    count = struct.unpack_from("<I", weights(package).read_bytes())[0]
    struct_patch(weights(package), 64, 0)
    findings = problems(package)
    assert codes(findings) == ["sentinel", "reference"]
    assert count > 1
    assert "first_" in findings[1].where or "conv_" in findings[1].where or "second_" in findings[1].where


def test_models_of_another_kind_in_a_pipeline_are_a_note():
    assert codes(milblob.check(DATA / "nested_pipeline/model.mlmodel"), "note") == ["other-model"]


def test_everything_at_once(demo):
    """Defects of every part of a package, reported in one pass."""

    def change(message):
        values = blob_values(message)
        values["final_norm_bias"].type.tensorType.dataType = 11
        values["head_weight"].type.tensorType.dimensions[0].constant.size += 1
        values["layers_3_mlp_down_bias"].blobFileValue.fileName = "@model_path/weights/other.bin"
        values["layers_3_mlp_up_bias"].blobFileValue.fileName = "@model_path/../x.bin"
        values["final_norm_weight"].blobFileValue.offset = 96

    edit(demo, change)
    manifest(demo, lambda d: d["itemInfoEntries"].update(x={"path": "nowhere", "name": "x", "author": "x"}))
    (demo / "Data/pointer.bin").write_bytes(LFS)
    struct_patch(weights(demo), 0, 7)
    struct_patch(weights(demo), 9344, 0)
    struct_patch(weights(demo), 9536 + 4, 50)
    struct_patch(weights(demo), 14400 + 16, 2**40, "<Q")
    found = {f.code for f in problems(demo)}
    assert found == {
        "lfs-pointer", "missing-file", "escaping-file", "dtype-mismatch", "size-mismatch", "reference", "alignment",
        "record-count", "sentinel", "dtype-code", "bounds",
    }  # fmt: skip


# -- hostile input ----------------------------------------------------------------------------------------------------


def test_a_path_that_does_not_exist(tmp_path):
    with pytest.raises(FileNotFoundError):
        milblob.check(tmp_path / "none.mlpackage")


def test_an_empty_directory(tmp_path):
    assert codes(problems(tmp_path)) == ["not-a-model"]


def test_mutated_models_raise_nothing(copy):
    """Bytes of a model file changed, one at a time: findings or none, but no exception. All in `make thorough`."""
    package = copy(DATA / "lists/model.mlpackage")
    path = model_file(package)
    data = path.read_bytes()
    for at in range(0, len(data), sized(29, 1)):
        for value in (0xFF, data[at] ^ 0x08):
            path.write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
            milblob.check(package)


def test_mutated_blobs_raise_nothing():
    data = good()
    for at in range(len(data)):
        for value in (0x00, 0x7F, 0xFF, data[at] ^ 0x01):
            milblob.check(bytes(data[:at]) + bytes([value]) + bytes(data[at + 1 :]))


@pytest.mark.parametrize("sizes", [[2**63, 0], [2**64 - 2, 2**64 - 2, 0], [1] * 200])
def test_shapes_that_no_array_has(demo, sizes):
    def change(message):
        (function,) = message.mlProgram.functions.values()
        (block,) = function.block_specializations.values()
        value = next(
            op.attributes["val"]
            for op in block.operations
            if op.type == "const" and op.attributes["val"].immediateValue.tensor.HasField("ints")
        )
        tensor = value.type.tensorType
        tensor.rank = len(sizes)
        del tensor.dimensions[:]
        for size in sizes:
            tensor.dimensions.add().constant.size = size
        if 0 in sizes:
            del value.immediateValue.tensor.ints.values[:]

    edit(demo, change)
    assert codes(milblob.check(demo, rules="MIL016")) == ["MIL016"]


@pytest.mark.parametrize("name", ["empty file", "Git LFS pointer", "no such file", "manifest", "specification version"])
def test_codes_do_not_depend_on_messages(tmp_path, name):
    """What a file is called says nothing about what is wrong with it."""
    package = tmp_path / "m.mlpackage"
    package.mkdir()
    entries = {"a": {"author": "x", "name": "n", "description": "", "path": f"../../{name}"}}
    manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": entries, "rootModelIdentifier": "a"}
    (package / "Manifest.json").write_text(json.dumps(manifest))
    (tmp_path / name).touch()
    assert [f.code for f in milblob.check(package) if f.severity == "error"] == ["escaping-file"]
    with pytest.raises(milblob.ResolveError) as caught:
        milblob.open(package)
    assert caught.value.code == "escaping-file"
