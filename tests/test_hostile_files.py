"""Files that are not what they seem: references that lead out, links, devices, JSON bombs, files that change when open."""

# One attack per line, however long it is.

import json
import os
import pathlib
import shutil
import socket
import sys

import numpy as np
import pytest

import milblob
import reference
from children import run_fork
from hostile_bytes import blob_value, const, model, program, write_package
from paths import DATA

posix = pytest.mark.skipif(
    sys.platform == "win32", reason="links and special files need POSIX: refusing them is not tested"
)
WEIGHTS, (OFFSET,) = reference.write_blobs([("FLOAT32", [float(i) for i in range(10)])])
EXPECTED = list(range(10))


def package_with(tmp_path, file_name, weights=None):
    """A package whose only tensor refers to this file."""
    spec = model(program(const(blob_value(11, [10], file_name, OFFSET))))
    return write_package(tmp_path, spec, {"weight.bin": WEIGHTS} if weights is None else weights)


def read(package):
    with milblob.open(package) as opened:
        return opened["w"].read()


def refused(package, kind, words):
    """Listing works, reading is refused, both ways of reading alike."""
    for action in (read, milblob.load):
        with pytest.raises(milblob.MilblobError) as caught:
            action(package)
        assert type(caught.value) is kind
        assert words in str(caught.value), str(caught.value)
        assert caught.value.where == "main.block['CoreML7'].op[0] 'w'.val"
        assert str(caught.value).isprintable()


# ------------------------------------------------------------------------------------------------------- references


@pytest.mark.parametrize("name", [
    "@model_path/weights/weight.bin", "@model_path/weights/./weight.bin", "@model_path/weights//weight.bin",
    "@model_path/weights\\weight.bin",
])  # fmt: skip
def test_reference_that_is_good(name, tmp_path):
    assert read(package_with(tmp_path, name)).tolist() == EXPECTED


# number, fileName, words
BAD_REFERENCES = [
    (1, "", "expected a name that begins with @model_path/, got ''"),
    (2, "@model_path", "expected a name that begins with @model_path/"),
    (3, "weights/weight.bin", "expected a name that begins with @model_path/"),
    (4, "@MODEL_PATH/weights/weight.bin", "expected a name that begins with @model_path/"),
    (5, "/etc/passwd", "expected a name that begins with @model_path/"),
    (6, "@model_path/../weight.bin", "expected a path inside"),
    (7, "@model_path/../../weight.bin", "expected a path inside"),
    (8, "@model_path/weights/../weights/weight.bin", "expected a path inside"),
    (9, "@model_path/weights/..", "expected a path inside"),
    (10, "@model_path/..\\weight.bin", "expected a path inside"),
    (11, "@model_path/weights\\..\\..\\weight.bin", "expected a path inside"),
    (12, "@model_path//etc/passwd", "expected a path inside"),
    (13, "@model_path/\\etc\\passwd", "expected a path inside"),
    (14, "@model_path/C:/weight.bin", "expected a path inside"),
    (15, "@model_path/weights/C:\\weight.bin", "expected a path inside"),
    (16, "@model_path/weights/weight.bin\0", "expected a path inside"),
    (17, "@model_path/\0/../../x", "expected a path inside"),
    (18, "@model_path/weights/missing.bin", "no such file"),
    (19, "@model_path/weights/WEIGHT.BIN", "no such file"),
    (20, "@model_path/weights/weight.bin/x", "no such file"),
    (21, "@model_path/weights/weight.bin ", "no such file"),
    (22, "@model_path/%2e%2e/weight.bin", "no such file"),
    (23, "@model_path/~/weight.bin", "no such file"),
    (24, "@model_path/$HOME/weight.bin", "no such file"),
    (25, "@model_path/a\nb\x1b[2J", "no such file"),
]  # fmt: skip


@pytest.mark.parametrize(("number", "name", "words"), BAD_REFERENCES, ids=[row[0] for row in BAD_REFERENCES])
@pytest.mark.sample(13)
def test_bad_reference(number, name, words, tmp_path):
    if number == 19 and sys.platform in ("win32", "darwin"):
        pytest.skip("file names without case here: two that differ in case only are not tested")
    (tmp_path / "weight.bin").write_bytes(WEIGHTS)
    refused(package_with(tmp_path, name), milblob.ResolveError, words)


@pytest.mark.parametrize("name", ["@model_path/", "@model_path/.", "@model_path/weights", "@model_path/weights/"])
def test_reference_to_a_directory(name, tmp_path):
    refused(package_with(tmp_path, name), milblob.FormatError, "expected a regular file, got a directory")


def test_reference_to_a_very_long_name(tmp_path):
    with pytest.raises(OSError, match="too long"):
        read(package_with(tmp_path, "@model_path/" + "a" * 5000))


def test_reference_from_a_buffer():
    spec = model(program(const(blob_value(11, [10], "@model_path/weights/weight.bin", OFFSET))))
    for source in (spec, bytearray(spec), memoryview(spec)):
        with pytest.raises(milblob.ResolveError, match="expected a model with a directory, got a buffer"):
            milblob.load(source)


@pytest.mark.parametrize(("code", "shape", "offset", "words"), [
    (10, [10], OFFSET, "record dtype: expected float16 as the Program declares, got float32"),
    (11, [11], OFFSET, "elements of the record: expected 11 for shape (11,), got 10"),
    (11, [0], OFFSET, "elements of the record: expected 0"),
    (11, [], OFFSET, "elements of the record: expected 1"),
    (11, [None], OFFSET, "expected every dimension known"),
    (11, [1 << 40, 1 << 20], OFFSET, "elements of the record: expected 1152921504606846976"),
])  # fmt: skip
def test_record_that_is_not_what_the_program_declares(code, shape, offset, words, tmp_path):
    spec = model(program(const(blob_value(code, shape, "@model_path/weights/weight.bin", offset))))
    with pytest.raises(milblob.ResolveError) as caught:
        milblob.load(write_package(tmp_path, spec, {"weight.bin": WEIGHTS}))
    assert words in str(caught.value)
    assert caught.value.offset == offset
    assert caught.value.where == "main.block['CoreML7'].op[0] 'w'.val"


@pytest.mark.every
@pytest.mark.parametrize("offset", [0, 1, 63, 65, 128, 1 << 32, 1 << 63, (1 << 64) - 1])
def test_reference_to_where_no_record_is(offset, tmp_path):
    spec = model(program(const(blob_value(11, [10], "@model_path/weights/weight.bin", offset))))
    refused(write_package(tmp_path, spec, {"weight.bin": WEIGHTS}), milblob.FormatError, "record")


@pytest.mark.parametrize(("data", "kind", "words"), [
    (b"", milblob.FormatError, "storage header: expected 64 more bytes, got 0"),
    (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n", milblob.FormatError, "Git LFS pointer"),
    (WEIGHTS[:4] + b"\1" + WEIGHTS[5:], milblob.UnsupportedError, "Espresso"),
])  # fmt: skip
def test_weight_file_that_is_none(data, kind, words, tmp_path):
    refused(package_with(tmp_path, "@model_path/weights/weight.bin", {"weight.bin": data}), kind, words)


# ---------------------------------------------------------------------------------------------------- links, devices


@posix
@pytest.mark.parametrize("target", ["file", "folder", "device", "missing", "loop"])
def test_link_that_leads_out(every_way, target, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "weight.bin").write_bytes(WEIGHTS)
    package = package_with(tmp_path, "@model_path/weights/weight.bin", {})
    weights = package / "Data/com.apple.CoreML/weights"
    if target == "folder":
        weights.rmdir()
        weights.symlink_to(outside)
    else:
        to = {
            "file": outside / "weight.bin",
            "device": "/dev/zero",
            "missing": outside / "missing",
            "loop": "weight.bin",
        }
        (weights / "weight.bin").symlink_to(to[target])
    if target == "loop":
        with pytest.raises(OSError, match="symbolic link"):
            read(package)
        return
    refused(package, milblob.ResolveError, "got a link to")


@posix
def test_link_within_the_package(every_way, tmp_path):
    package = package_with(tmp_path, "@model_path/weights/weight.bin", {"real.bin": WEIGHTS})
    inside = package / "Data/com.apple.CoreML"
    (inside / "weights/weight.bin").symlink_to("real.bin")
    assert read(package).tolist() == EXPECTED
    (inside / "weights").rename(inside / "elsewhere")
    (inside / "weights").symlink_to("elsewhere")
    assert read(package).tolist() == EXPECTED


@posix
def test_package_that_is_a_link_itself(every_way, tmp_path):
    package = package_with(tmp_path, "@model_path/weights/weight.bin")
    link = tmp_path / "link.mlpackage"
    link.symlink_to(package)
    assert read(link).tolist() == EXPECTED
    assert read(link / "Data/com.apple.CoreML/model.mlmodel").tolist() == EXPECTED


@posix
def test_directory_whose_name_begins_alike_is_outside(every_way, tmp_path):
    package = package_with(tmp_path, "@model_path/weights/weight.bin", {})
    twin = package / "Data/com.apple.CoreML2"
    twin.mkdir()
    (twin / "weight.bin").write_bytes(WEIGHTS)
    (package / "Data/com.apple.CoreML/weights/weight.bin").symlink_to(twin / "weight.bin")
    refused(package, milblob.ResolveError, "got a link to")


@posix
@pytest.mark.parametrize("part", ["Manifest.json", "Data/com.apple.CoreML/model.mlmodel"])
def test_parts_of_a_package_that_are_links_out(every_way, part, tmp_path):
    package = package_with(tmp_path, "@model_path/weights/weight.bin")
    (package / part).rename(tmp_path / "moved")
    (package / part).symlink_to(tmp_path / "moved")
    with pytest.raises(milblob.ResolveError, match="got a link to"):
        milblob.open(package)


@posix
@pytest.mark.parametrize("part", ["model.mil", "metadata.json", "weights/weight.bin"])
def test_parts_of_a_compiled_model_that_are_links_out(every_way, part, tmp_path):
    compiled = tmp_path / "m.mlmodelc"
    shutil.copytree(DATA / "opset_ios16_fp16/model.mlmodelc", compiled)
    (compiled / part).rename(tmp_path / "moved")
    (compiled / part).symlink_to(tmp_path / "moved")
    with pytest.raises(milblob.ResolveError, match="got a link to"), milblob.open(compiled) as opened:
        _ = opened.metadata
        [tensor.read() for tensor in opened.values()]


def make_special(kind, path):
    """Make a file of this kind; what a message calls it."""
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as bound:
            here = pathlib.Path.cwd()
            os.chdir(path.parent)  # the name of a socket is at most 107 bytes long
            try:
                bound.bind(path.name)
            finally:
                os.chdir(here)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to("/dev/zero")


@posix
@pytest.mark.parametrize("kind", ["FIFO", "socket", "directory", "character device"])
def test_special_file_in_every_place(every_way, kind, tmp_path):
    """Refused by name, at once: opening a FIFO must not wait for a writer, /dev/zero must not be read to its end."""
    if every_way == "compared afterwards" and kind == "FIFO":
        pytest.skip("no FIFOs in the file systems of Windows: refusing one is not tested")
    refused_by = (milblob.FormatError, milblob.ResolveError) if kind == "character device" else milblob.FormatError
    words = "got a link to /dev/zero" if kind == "character device" else f"expected a regular file, got a {kind}"
    special = tmp_path / "special.bin"
    make_special(kind, special)
    if kind != "socket":  # a socket cannot be opened as a file: the system says so
        with pytest.raises(milblob.FormatError, match=f"got a {kind}|got neither Manifest"):
            milblob.open(special)
        with pytest.raises(milblob.FormatError, match=f"got a {kind}"):
            milblob.BlobReader(special)
    for place in ("Manifest.json", "Data/com.apple.CoreML/model.mlmodel", "Data/com.apple.CoreML/weights/weight.bin"):
        folder = tmp_path / place.replace("/", "_")
        folder.mkdir()
        package = package_with(folder, "@model_path/weights/weight.bin")
        (package / place).unlink()
        make_special(kind, package / place)
        with pytest.raises(OSError if kind == "socket" else refused_by) as caught:
            milblob.load(package)
        assert kind == "socket" or words in str(caught.value)


# -------------------------------------------------------------------------------------------------------------- JSON


def manifest(tmp_path, text):
    package = package_with(tmp_path, "@model_path/weights/weight.bin")
    (package / "Manifest.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    return package


# number, contents, class, words
BAD_MANIFESTS = [
    (1, "", milblob.FormatError, "JSON: expected a document"),
    (2, "{", milblob.FormatError, "JSON: expected a document"),
    (3, "[]", milblob.FormatError, "expected a key itemInfoEntries"),
    (4, "null", milblob.FormatError, "expected a key"),
    (5, '{"itemInfoEntries": [], "rootModelIdentifier": "A"}', milblob.FormatError, "expected a key"),
    (6, '{"itemInfoEntries": {}, "rootModelIdentifier": ["A"]}', milblob.FormatError, "expected a key"),
    (7, '{"itemInfoEntries": {}, "rootModelIdentifier": "A"}', milblob.FormatError, "expected an item with a path for root 'A'"),
    (8, '{"itemInfoEntries": {"A": []}, "rootModelIdentifier": "A"}', milblob.FormatError, "expected an item with a path"),
    (9, '{"itemInfoEntries": {"A": {"path": 1}}, "rootModelIdentifier": "A"}', milblob.FormatError, "expected an item with a path"),
    (10, "[" * 100_000, milblob.FormatError, "nesting too deep"),
    (11, '{"a":' * 100_000, milblob.FormatError, "nesting too deep"),
    (12, "[" + "1" * 100_000 + "]", milblob.FormatError, "JSON: expected a document"),
    (13, b"\xff\xfe\xfd", milblob.FormatError, "JSON: expected a document"),
    (14, b'{"\xff": 1}', milblob.FormatError, "JSON: expected a document"),
    (15, " " * (16 << 20) + "{}", milblob.FormatError, "JSON: expected at most 16777216 bytes"),
    (16, "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n", milblob.FormatError, "Git LFS pointer"),
]  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize(("number", "text", "kind", "words"), BAD_MANIFESTS, ids=[row[0] for row in BAD_MANIFESTS])
def test_bad_manifest(number, text, kind, words, tmp_path):
    package = manifest(tmp_path, text)
    with pytest.raises(kind) as caught:
        milblob.open(package)
    assert words in str(caught.value)
    assert caught.value.file == str(package / "Manifest.json")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("item", [
    "../x", "..", "/etc/passwd", "\\etc\\passwd", "a/../../x", "..\\x", "C:/x", "a/C:/x", "a\0b", "\ud800", "missing",
    "a" * 300 + "/b", "~/x",
])  # fmt: skip
def test_manifest_item_that_leads_nowhere(item, tmp_path):
    text = json.dumps({"itemInfoEntries": {"A": {"path": item}}, "rootModelIdentifier": "A"})
    with pytest.raises(milblob.ResolveError) as caught:
        milblob.open(manifest(tmp_path, text))
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("item", ["", ".", "com.apple.CoreML", "com.apple.CoreML/weights/"])
def test_manifest_item_that_is_a_directory(item, tmp_path):
    text = json.dumps({"itemInfoEntries": {"A": {"path": item}}, "rootModelIdentifier": "A"})
    with pytest.raises(milblob.FormatError, match="expected a regular file, got a directory"):
        milblob.open(manifest(tmp_path, text))


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[{}, {}]", '[{"inputSchema": 7}]', b"\xff"])
def test_bad_metadata_json(text, tmp_path):
    compiled = tmp_path / "m.mlmodelc"
    shutil.copytree(DATA / "opset_ios15_fp16/model.mlmodelc", compiled)
    (compiled / "metadata.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with milblob.open(compiled) as opened:
        for _ in range(2):
            with pytest.raises(milblob.FormatError):
                _ = opened.metadata
        assert len([tensor.read() for tensor in opened.values()]) == len(opened)


# --------------------------------------------------------------------------------------- files that change when open


STEPS = {
    "read": "model['fc_weight'].read()",
    "asarray": "np.asarray(model['fc_weight'])",
    "inline": "model['pick_indices_0'].read()",
    "out": "model['fc_weight'].read(out=np.empty(model['fc_weight'].shape, model['fc_weight'].dtype))",
    "all": "milblob.model.reading.read_all(model)",
    "metadata": "model.metadata",
    "program": "model.program",
    "programs": "model.programs",
    "consumers": "model['fc_weight'].consumers",
}
OF_FILE = {
    "model.mlmodel": set(STEPS) - {"read", "asarray", "out"},
    "weights/weight.bin": {"read", "asarray", "out", "all"},
}


@posix
@pytest.mark.parametrize("file", OF_FILE)
@pytest.mark.parametrize("left", [0, 1, "all but one"])
def test_file_that_shrank_after_it_was_opened(file, left, tmp_path):
    """Every later read says so. In a child: a step that forgets the check dies of SIGBUS."""
    package = tmp_path / "m.mlpackage"
    shutil.copytree(DATA / "opset_ios15_fp16/model.mlpackage", package)
    victim = package / "Data/com.apple.CoreML" / file
    nbytes = victim.stat().st_size - 1 if left == "all but one" else left
    code = """
        import os
        import milblob, numpy as np
        package, victim, nbytes, *steps = sys.argv[1:]
        model = milblob.open(package)
        model["fc_weight"].read()  # so that the weight file is mapped
        os.truncate(victim, int(nbytes))
        for _ in range(2):
            for step in steps:
                try:
                    eval(step)
                except milblob.FormatError as error:
                    assert "size: expected" in str(error) and error.offset == int(nbytes) and error.file == victim, error
                else:
                    raise AssertionError(step)
        model.close()
        print("done")
    """
    steps = [STEPS[name] for name in sorted(OF_FILE[file])]
    assert run_fork(code, package, victim, nbytes, *steps).strip() == "done"


@posix
def test_blob_file_that_shrank(tmp_path):
    code = """
        import os
        import milblob
        reader = milblob.BlobReader(sys.argv[1])
        first = reader.record(64)
        os.truncate(sys.argv[1], 0)
        for step in (lambda: reader.index, lambda: list(reader), lambda: reader[0], lambda: reader.record(64),
                     lambda: reader.read(64), lambda: reader.read(first), lambda: reader.read_packed(first)):
            try:
                step()
            except milblob.FormatError as error:
                assert "size: expected" in str(error) and error.offset == 0, error
            else:
                raise AssertionError("read from a file that is gone")
        print("done")
    """
    path = tmp_path / "weight.bin"
    path.write_bytes(WEIGHTS)
    assert run_fork(code, path).strip() == "done"


@posix
def test_file_that_grew_was_replaced_or_deleted(tmp_path):
    """The mapping holds the file that was opened."""
    path = tmp_path / "weight.bin"
    path.write_bytes(WEIGHTS)
    with milblob.BlobReader(path) as blobs:
        with path.open("ab") as file:
            file.write(bytes(100))
        assert blobs.read(OFFSET).tolist() == EXPECTED
        os.replace(shutil.copy(DATA / "blob_empty/weight.bin", tmp_path / "new"), path)
        assert blobs.read(OFFSET).tolist() == EXPECTED
        path.unlink()
        values = blobs.read(OFFSET)
        assert len(blobs.index) == 1
    assert np.array_equal(values, EXPECTED)


@posix
def test_package_whose_weights_were_swapped_before_they_were_read(tmp_path):
    package = package_with(tmp_path, "@model_path/weights/weight.bin")
    with milblob.open(package) as opened:
        weights = package / "Data/com.apple.CoreML/weights/weight.bin"
        weights.unlink()
        with pytest.raises(milblob.ResolveError, match="no such file"):
            opened["w"].read()
        weights.symlink_to("/etc/passwd")
        with pytest.raises(milblob.ResolveError, match="got a link to"):
            opened["w"].read()
        weights.unlink()
        weights.write_bytes(WEIGHTS)
        assert opened["w"].read().tolist() == EXPECTED
