"""model/package.py: the kind of a source, where references lead, what is refused by name."""

import gzip
import io
import json
import os
import pathlib
import shutil
import tempfile

import numpy as np
import pytest

import milblob
import reference
from blob_files import blob_file
from cases import load_case, model_directory
from milblob.jsontext import MAX_NBYTES as MAX_JSON_NBYTES
from milblob.model.manifest import find_root_model, read_json
from milblob.model.package import MAX_PIPELINE_DEPTH, Package, resolve
from milblob.program import schema
from milblob.storage.beneath import Location
from paths import DATA
from protobuf_programs import LONG, add_const, as_model, new_program, set_type

pytestmark = pytest.mark.wheel

PACKAGE = DATA / "opset_ios16_fp16" / "model.mlpackage"
COMPILED = DATA / "opset_ios16_fp16" / "model.mlmodelc"
MODEL_FILE = PACKAGE / "Data" / "com.apple.CoreML" / "model.mlmodel"
WEIGHTS = model_directory(PACKAGE) / "weights" / "weight.bin"


@pytest.fixture
def copy(tmp_path):
    """Copy a fixture's model to a place of its own."""

    def make(name, path="model.mlpackage"):
        return shutil.copytree(DATA / name / path, tmp_path / path)

    return make


# --------------------------------------------------------------------------------------------------------------- kinds


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (PACKAGE, "mlpackage"),
        (COMPILED, "mlmodelc"),
        (MODEL_FILE, "mlmodel"),
        (COMPILED / "model.mil", "mil"),
        (WEIGHTS, "blob"),
    ],
)
@pytest.mark.parametrize("form", [lambda p: p, str, lambda p: f"{p}/" if p.is_dir() else str(p)])
def test_kinds(source, kind, form):
    path = form(source)
    with milblob.open(path) as model:
        assert model.kind == kind
        assert model.path == os.fspath(path)
        assert len(model) > 0
        assert repr(model) == f"<Model {os.fspath(path)} ({kind}): {len(model)} tensors>"
        keys = list(model)
    assert repr(model) == f"<Model {os.fspath(path)} ({kind}): closed>"
    if kind != "blob":
        with milblob.open(PACKAGE) as package:
            assert keys == list(package)


@pytest.mark.parametrize(
    ("source", "kind"), [(MODEL_FILE, "mlmodel"), (COMPILED / "model.mil", "mil"), (WEIGHTS, "blob")]
)
def test_kinds_of_buffers_and_file_objects(source, kind):
    data = source.read_bytes()
    for given in (data, bytearray(data), memoryview(data), np.frombuffer(data, np.uint8), io.BytesIO(data)):
        with milblob.open(given) as model:
            assert (model.kind, model.path) == (kind, None)
            assert repr(model) == f"<Model buffer ({kind}): {len(model)} tensors>"
    with source.open("rb") as file, milblob.open(file) as model:
        assert (model.kind, model.path) == (kind, None)


def test_what_a_file_is_follows_from_its_contents(tmp_path):
    for source, kind in ((MODEL_FILE, "mlmodel"), (COMPILED / "model.mil", "mil"), (WEIGHTS, "blob")):
        for name in ("thing", "thing.dat", "größe"):
            shutil.copy(source, tmp_path / name)
            with milblob.open(tmp_path / name) as model:
                assert model.kind == kind


def test_leading_white_space_in_text(tmp_path):
    text = (COMPILED / "model.mil").read_bytes()
    (tmp_path / "thing").write_bytes(b" \r\n\t" + text)
    with milblob.open(tmp_path / "thing") as model:
        assert model.kind == "mil"


def test_a_package_is_known_by_its_manifest(copy, tmp_path):
    moved = copy("xcode").rename(tmp_path / "renamed")
    with milblob.open(moved) as model:
        assert model.kind == "mlpackage"
    (moved / "Manifest.json").unlink()
    for words, path in (
        ("expected a .mlpackage or .mlmodelc", moved),
        ("expected a Manifest.json", tmp_path / "a.mlpackage"),
    ):
        if path != moved:
            moved.rename(path)
        with pytest.raises(milblob.FormatError, match=words):
            milblob.open(path)


def test_no_such_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        milblob.open(tmp_path / "nothing.mlpackage")
    (tmp_path / "empty").touch()
    with pytest.raises(milblob.FormatError, match="file: expected a Core ML model or weight file, got an empty file"):
        milblob.open(tmp_path / "empty")


@pytest.mark.parametrize("mode", ["w", "a", "rb", "", None])
def test_other_modes(mode):
    with pytest.raises(ValueError, match=r"mode: expected 'r' or 'r\+', got"):
        milblob.open(PACKAGE, mode)


# ----------------------------------------------------------------------------------------------------------- manifests


def test_another_root_path(copy):
    path = copy("elsewhere")
    assert find_root_model(Location(str(path))).path == str(path / "Data" / "org.example" / "other.mlmodel")
    with milblob.open(path) as model:
        (tensor,) = model.values()
        assert tensor.file == str(path / "Data" / "org.example" / "weights" / "weight.bin")


def test_edited_packages_have_more_items():
    manifest = json.loads((DATA / "xcode" / "model.mlpackage" / "Manifest.json").read_text())
    assert len(manifest["itemInfoEntries"]) > 2
    assert list(milblob.load(DATA / "xcode" / "model.mlpackage"))


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            lambda m: m.pop("rootModelIdentifier"),
            milblob.FormatError,
            "expected a key rootModelIdentifier",
        ),
        (lambda m: m.pop("itemInfoEntries"), milblob.FormatError, "expected a key itemInfoEntries"),
        (
            lambda m: m.update(rootModelIdentifier="?"),
            milblob.FormatError,
            "expected an item with a path for root '[?]'",
        ),
        (
            lambda m: m["itemInfoEntries"].update({m["rootModelIdentifier"]: {"path": 5}}),
            milblob.FormatError,
            "expected an item",
        ),
        (
            lambda m: m["itemInfoEntries"][m["rootModelIdentifier"]].update(path="gone.mlmodel"),
            milblob.ResolveError,
            "root item of the manifest: expected at .*gone.mlmodel, got no such file",
        ),
        (
            lambda m: m["itemInfoEntries"][m["rootModelIdentifier"]].update(path="../../x"),
            milblob.ResolveError,
            "reference: expected a path inside",
        ),
    ],
)
def test_manifests_that_lead_nowhere(copy, change, error, words):
    path = copy("xcode")
    manifest = json.loads((path / "Manifest.json").read_text())
    change(manifest)
    (path / "Manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(error, match=words):
        milblob.open(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[]", "expected a key"),
        ("{", "JSON: expected a document, got .* at byte 1 "),
        ("", "JSON: expected a document"),
        ("\udcff", "JSON: expected a document"),
        ("[" * 100_000, "JSON: expected a document, got nesting too deep"),
    ],
)
def test_manifests_that_are_no_json(copy, text, words):
    path = copy("xcode")
    (path / "Manifest.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(milblob.FormatError, match=words):
        milblob.open(path)


def test_a_path_that_is_half_a_character(copy):
    path = copy("xcode")
    manifest = json.loads((path / "Manifest.json").read_text())
    manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"] = "\ud800.mlmodel"
    (path / "Manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(milblob.ResolveError, match="reference: expected a path that can be a file name"):
        milblob.open(path)


def test_huge_json_is_not_read(tmp_path):
    with (tmp_path / "Manifest.json").open("wb") as file:
        file.truncate(MAX_JSON_NBYTES + 1)
    words = f"JSON: expected at most {MAX_JSON_NBYTES} bytes, got {MAX_JSON_NBYTES + 1}"
    with pytest.raises(milblob.FormatError, match=words):
        read_json(Location(str(tmp_path / "Manifest.json")))
    (tmp_path / "ok.json").write_text('{"a": [1]}')
    assert read_json(Location(str(tmp_path / "ok.json"))) == {"a": [1]}
    with pytest.raises(milblob.FormatError, match="expected a regular file, got a directory"):
        read_json(Location(str(tmp_path)))


# ---------------------------------------------------------------------------------------------------------- references


def test_references_inside_the_directory(tmp_path):
    (tmp_path / "weights" / "deep").mkdir(parents=True)
    (tmp_path / "weights" / "deep" / "ü b.bin").touch()
    (tmp_path / "link.bin").symlink_to("weights/deep/ü b.bin")
    root = str(tmp_path)
    place = Location(root)
    deep = os.path.join(root, "weights", "deep", "ü b.bin")
    assert resolve(place, "@model_path/weights/deep/ü b.bin").path == deep
    assert resolve(place, "@model_path/./weights//x.bin").path == os.path.join(root, "weights", "x.bin")
    assert resolve(place, "@model_path/link.bin").path == os.path.join(root, "link.bin")
    assert resolve(place, "@model_path/link.bin").real() == os.path.realpath(deep)
    assert place.beneath("").path == root
    assert Location(f"{root}/").beneath("a..b/c..").path == os.path.join(f"{root}/", "a..b", "c..")


def test_a_model_reached_through_a_link_may_use_its_own_files(tmp_path):
    (tmp_path / "link.mlpackage").symlink_to(PACKAGE)
    direct, linked = milblob.load(PACKAGE, stored=True), milblob.load(tmp_path / "link.mlpackage", stored=True)
    assert {k: v.tobytes() for k, v in direct.items()} == {k: v.tobytes() for k, v in linked.items()}


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "\\x", "..\\x", "C:/x", "C:x", "a/..", "x\0y"])
def test_references_outside_the_directory(tmp_path, name):
    with pytest.raises(milblob.ResolveError, match="reference: expected a path inside"):
        resolve(Location(str(tmp_path)), f"@model_path/{name}")


def test_links_outside_the_directory(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "outside.bin").touch()
    (tmp_path / "model" / "link.bin").symlink_to("../outside.bin")
    (tmp_path / "model" / "folder").symlink_to(tmp_path)
    for name in ("link.bin", "folder/outside.bin", "folder"):
        with pytest.raises(milblob.ResolveError, match=f"reference '{name}': expected a file inside .*, got a link to"):
            resolve(Location(str(tmp_path / "model")), f"@model_path/{name}").open()


def test_other_forms_of_references():
    with pytest.raises(
        milblob.ResolveError, match="expected a name that begins with @model_path/, got 'weights/weight.bin'"
    ):
        resolve(Location("/somewhere"), "weights/weight.bin")
    with pytest.raises(milblob.ResolveError, match="expected a model with a directory, got a buffer"):
        resolve(None, "@model_path/weights/weight.bin")


def test_a_missing_weight_file_fails_only_when_it_is_read(copy):
    path = copy("opset_ios16_fp16")
    weights = model_directory(path) / "weights" / "weight.bin"
    weights.unlink()
    with milblob.open(path, stored=True) as model:
        blobs = [tensor for tensor in model.values() if tensor.is_blob]
        assert {tensor.file for tensor in blobs} == {str(weights)}
        for tensor in blobs:
            with pytest.raises(milblob.ResolveError, match=f"expected at {weights}, got no such file") as error:
                tensor.read()
            assert error.value.where == tensor.where
    with pytest.raises(milblob.ResolveError, match="got no such file"):
        milblob.load(path, stored=True)


def test_a_model_in_memory_has_no_weight_files():
    with milblob.open(MODEL_FILE.read_bytes(), stored=True) as model:
        tensor = next(tensor for tensor in model.values() if tensor.is_blob)
        assert tensor.file is None
        with pytest.raises(milblob.ResolveError, match="expected a model with a directory, got a buffer"):
            tensor.read()


def test_several_weight_files_are_mapped_once_each():
    case = load_case("weight_files")
    package = Package(case.path())
    (source,) = package.sources
    files = {row["file"] for row in case.rows if "file" in row}
    assert len(files) == 3
    readers = {name: package.reader(source, name) for name in files}
    assert all(package.reader(source, name) is reader for name, reader in readers.items())
    assert len({reader.name for reader in readers.values()}) == 3
    package.close()
    for reader in readers.values():
        with pytest.raises(ValueError, match="closed"):
            reader.read(64)


@pytest.mark.parametrize(
    ("dtype", "shape", "words"),
    [
        ("FLOAT16", (12,), "record dtype: expected float16 as the Program declares, got float32"),
        ("FLOAT32", (13,), r"elements of the record: expected 13 for shape \(13,\), got 12"),
        ("FLOAT32", (3, 2, 2), None),
        ("FLOAT32", (None, 12), "shape: expected every dimension known"),
    ],
)
def test_records_must_be_what_the_program_declares(tmp_path, dtype, shape, words):
    data, (offset,) = blob_file(("FLOAT32", LONG))
    (tmp_path / "weight.bin").write_bytes(data)
    program, block = new_program()
    value = block.operations.add(type="const").attributes["val"]
    block.operations[0].outputs.add(name="w")
    value.blobFileValue.fileName, value.blobFileValue.offset = "@model_path/weight.bin", offset
    tensor = value.type.tensorType
    tensor.dataType, tensor.rank = reference.DTYPES[dtype][1], len(shape)
    for size in shape:
        if size is None:
            tensor.dimensions.add().unknown.variadic = False
        else:
            tensor.dimensions.add().constant.size = size
    (tmp_path / "model.mlmodel").write_bytes(as_model(program))
    if words is None:
        assert milblob.load(tmp_path / "model.mlmodel")["w"].tolist() == LONG.reshape(shape).tolist()
        return
    with milblob.open(tmp_path / "model.mlmodel") as model, pytest.raises(milblob.ResolveError, match=words) as error:
        model["w"].read()
    assert (error.value.offset, error.value.where) == (offset, "main.block['CoreML8'].op[0] 'w'.val")
    with pytest.raises(milblob.ResolveError, match=words) as error:
        milblob.load(tmp_path / "model.mlmodel")
    assert error.value.where == "main.block['CoreML8'].op[0] 'w'.val"


# ------------------------------------------------------------------------------------------------------------ pipelines


@pytest.mark.parametrize(
    ("shape", "words"), [((1,) * 65, "rank: expected at most 64"), ((0, 1 << 62), "shape: expected fewer than")]
)
def test_load_refuses_shapes_that_no_array_has_as_read_does(tmp_path, shape, words):
    data, (offset,) = blob_file(("FLOAT32", np.zeros(0 if 0 in shape else 1, np.float32)))
    (tmp_path / "weight.bin").write_bytes(data)
    program, block = new_program()
    value = add_const(block, "w", LONG).attributes["val"]
    value.type.Clear()
    set_type(value.type, reference.DTYPES["FLOAT32"][1], shape)
    value.blobFileValue.fileName, value.blobFileValue.offset = "@model_path/weight.bin", offset
    (tmp_path / "model.mlmodel").write_bytes(as_model(program))
    with pytest.raises(milblob.UnsupportedError, match=words):
        milblob.load(tmp_path / "model.mlmodel")


def test_the_file_of_a_tensor_is_the_one_that_is_read(tmp_path):
    data, (offset,) = blob_file(("FLOAT32", LONG))
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "w.bin").write_bytes(data)
    program, block = new_program()
    for name, file_name in (
        ("a", "@model_path/weights/w.bin"),
        ("b", r"@model_path/weights\w.bin"),
        ("c", "@model_path/./weights//w.bin"),
    ):
        value = add_const(block, name, LONG).attributes["val"]
        value.blobFileValue.fileName, value.blobFileValue.offset = file_name, offset
    (tmp_path / "model.mlmodel").write_bytes(as_model(program))
    with milblob.open(tmp_path / "model.mlmodel") as model:
        for tensor in model.values():
            assert tensor.file == os.path.join(tmp_path, "weights", "w.bin")
            assert tensor.read().tolist() == LONG.tolist()


def inner_model(value):
    program, block = new_program()
    add_const(block, "w", LONG * value)
    return schema.parse("Model", as_model(program))


def test_members_of_a_pipeline():
    package = Package(load_case("nested_pipeline").path())
    assert [source.prefix for source in package.sources] == ["model0/", "model1/model0/"]
    assert package.others == [("model1/model1/", "neuralNetwork")]
    package.close()


@pytest.mark.parametrize("kind", ["pipeline", "pipelineClassifier", "pipelineRegressor"])
def test_kinds_of_pipelines(kind):
    model = schema.Model(specificationVersion=9)
    pipeline = model.pipeline if kind == "pipeline" else getattr(model, kind).pipeline
    for value in range(2):
        pipeline.models.add().CopyFrom(inner_model(value))
    arrays = milblob.load(model.SerializeToString())
    assert {name: array[1] for name, array in arrays.items()} == {"model0/w": 0, "model1/w": 1}


def test_pipelines_without_programs():
    model = schema.Model(specificationVersion=9)
    model.pipeline.SetInParent()
    with pytest.raises(milblob.UnsupportedError, match="expected an ML Program among its models, got no models"):
        milblob.open(model.SerializeToString())
    for number in (500, 500, 400):  # neuralNetwork, glmClassifier
        model.pipeline.models.add().MergeFromString(reference.write_field(number, b""))
    with pytest.raises(milblob.UnsupportedError, match="got glmClassifier, neuralNetwork$"):
        milblob.open(model.SerializeToString())
    model.Clear()
    model.pipelineClassifier.SetInParent()
    with pytest.raises(milblob.UnsupportedError, match="got no models"):
        milblob.open(model.SerializeToString())


def test_pipelines_in_pipelines():
    model = inner_model(3)
    for _ in range(MAX_PIPELINE_DEPTH):
        outer = schema.Model(specificationVersion=9)
        outer.pipeline.models.add().CopyFrom(model)
        model = outer
    (name,) = milblob.load(model.SerializeToString())
    assert name == "model0/" * MAX_PIPELINE_DEPTH + "w"
    outer = schema.Model(specificationVersion=9)
    outer.pipeline.models.add().CopyFrom(model)
    with pytest.raises(milblob.FormatError, match="pipelines: expected at most 16 levels, got more"):
        milblob.open(outer.SerializeToString())


def test_compiled_pipelines_with_other_members(tmp_path):
    root = tmp_path / "model.mlmodelc"
    shutil.copytree(DATA / "opset_ios15_fp32" / "model.mlmodelc", root / "model0")
    (root / "model1").mkdir()
    (root / "model1" / "model.espresso.net").touch()
    (root / "model2").mkdir()
    (root / "model2" / "coremldata.bin").touch()
    shutil.copytree(DATA / "pipeline" / "model.mlmodelc", root / "model3")
    package = Package(root)
    assert [source.prefix for source in package.sources] == ["model0/", "model3/model0/", "model3/model1/"]
    assert package.others == [("model1/", "neuralNetwork"), ("model2/", "unknown")]
    package.close()
    shutil.rmtree(root / "model0")
    shutil.rmtree(root / "model3")
    (root / "model1").rename(root / "model0")
    with pytest.raises(milblob.UnsupportedError, match="expected an ML Program among its models, got neuralNetwork"):
        milblob.open(root)


def test_compiled_pipelines_too_deep(tmp_path):
    deep = tmp_path / "model.mlmodelc" / "/".join(["model0"] * (MAX_PIPELINE_DEPTH + 1))
    shutil.copytree(COMPILED, deep)
    with pytest.raises(milblob.FormatError, match="pipelines: expected at most 16 levels, got more"):
        milblob.open(tmp_path / "model.mlmodelc")


@pytest.mark.parametrize(
    ("name", "words"),
    [("model.espresso.net", "expected an ML Program, got a neuralNetwork"), ("coremldata.bin", "got another type")],
)
def test_compiled_models_of_other_types(tmp_path, name, words):
    (tmp_path / name).touch()
    with pytest.raises(milblob.UnsupportedError, match=f"compiled model: .*{words}"):
        milblob.open(tmp_path)


# ------------------------------------------------------------------------------------------------------ types of models


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (reference.write_field(1, 5) + reference.write_field(500, b""), "got a neuralNetwork"),
        (reference.write_field(1, 5) + reference.write_field(400, b""), "got a glmClassifier"),
        (reference.write_field(1, 5) + reference.write_field(9999, b""), "got type number 9999"),
        (reference.write_field(1, 5), "got none that is known"),
    ],
)
def test_models_of_other_types(data, words):
    with pytest.raises(
        milblob.UnsupportedError, match=f"model type: expected an ML Program or a pipeline of them, {words}"
    ):
        milblob.open(data)


def test_drafts_are_refused():
    program, _ = new_program()
    model = schema.parse("Model", as_model(program))
    model.specificationVersion = 5
    words = r"specification version of an ML Program: expected 6 or more, got 5 \(a draft of the format\)"
    with pytest.raises(milblob.UnsupportedError, match=words):
        milblob.open(model.SerializeToString())
    model.specificationVersion = 6
    with milblob.open(model.SerializeToString()) as opened:
        assert list(opened) == []


def test_the_last_type_counts():
    """Model.Type is a oneof: a later member replaces an earlier one."""
    program, block = new_program()
    add_const(block, "w", LONG)
    with milblob.open(reference.write_field(500, b"x") + as_model(program)) as model:
        assert list(model) == ["w"]
    with pytest.raises(milblob.UnsupportedError, match="neuralNetwork"):
        milblob.open(as_model(program) + reference.write_field(500, b""))


def test_bytes_of_no_known_kind_are_no_model(tmp_path):
    path = tmp_path / "picture.png"
    path.write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    with pytest.raises(
        milblob.FormatError, match="^file: expected a Core ML model, MIL text or a weight file, got none of them"
    ):
        milblob.open(path)
    assert [finding.code for finding in milblob.check(path)] == ["not-a-model"]


def test_errors_of_broken_model_files_name_the_place(tmp_path):
    for name, content in (("a.mlmodel", b"\x12\x7f"), ("b", b"\x08\x07\x12\x7f")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(milblob.FormatError, match="^length prefix: expected 127 bytes, got 0"):
            milblob.open(tmp_path / name)


def test_empty_model_file_in_a_package(tmp_path):
    package = shutil.copytree(DATA / "xcode/model.mlpackage", tmp_path / "model.mlpackage")
    model = next(pathlib.Path(package).rglob("*.mlmodel"))
    model.write_bytes(b"")
    with pytest.raises(milblob.FormatError, match="got an empty file"):
        milblob.open(package)
    assert [f.code for f in milblob.check(package) if f.severity == "error"] == ["empty-file"]


def test_compressed_file_objects_are_read_not_mapped(tmp_path):
    with gzip.open(tmp_path / "w.bin.gz", "wb") as file:
        file.write(WEIGHTS.read_bytes())
    with gzip.open(tmp_path / "w.bin.gz") as file, milblob.BlobReader(file) as blobs:
        assert len(blobs) == len(milblob.BlobReader(WEIGHTS))
    with tempfile.NamedTemporaryFile() as file:
        file.write(WEIGHTS.read_bytes())
        file.flush()
        assert len(milblob.BlobReader(file)) == len(milblob.BlobReader(WEIGHTS))


@pytest.mark.parametrize(
    "text",
    [
        "program(1.0) { func f<ios15>() { A } -> (a); func f<ios15>() { B } -> (b); }",
        "program(1.0) { func f<ios15>() { tensor<fp32, [10]> a = const()[val = V, val = V]; } -> (a); }",
    ],
)
def test_text_that_gives_a_name_twice_is_refused(text):
    value = f"tensor<fp32, [10]>([{', '.join(['0x1p+0'] * 10)}])"
    for name in "ab":
        text = text.replace(f"{{ {name.upper()} }}", f"{{ tensor<fp32, [10]> {name} = const()[val = {value}]; }}")
    with pytest.raises(milblob.FormatError, match="expected every function and argument once, got a name twice"):
        milblob.open(text.replace("V", value).encode())
