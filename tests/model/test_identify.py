"""model/identify.py: what a path is, and what milblob says about files and directories that are no model."""

import os
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

import milblob
from cases import model_directory
from milblob.cli import main
from milblob.model.identify import identify
from milblob.storage import pending
from milblob.storage.foreign import ARRAY_COMMANDS, Foreign
from milblob.storage.table import ARRAYS
from other_files import LFS_POINTER, ONNX, OTHERS, TORCH, code_of, zip_of
from paths import DATA
from peers import WITHOUT
from tvm_archives import files_of, tar_of

CASE = DATA / "opset_ios17_fp16"
PACKAGE, COMPILED = CASE / "model.mlpackage", CASE / "model.mlmodelc"
INSIDE = model_directory(PACKAGE)


@pytest.fixture
def path_of(tmp_path):
    """Write one of the files of other formats."""

    def write(name):
        path = tmp_path / name
        path.write_bytes(OTHERS[name][0])
        return path

    return write


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        (PACKAGE, "mlpackage"),
        (COMPILED, "mlmodelc"),
        (INSIDE / "model.mlmodel", "mlmodel"),
        (COMPILED / "model.mil", "mil"),
        (INSIDE / "weights" / "weight.bin", "blob"),
    ],
)
def test_models(source, kind):
    assert identify(source) == identify(str(source)) == kind
    if source.is_file():
        data = source.read_bytes()
        assert identify(data) == identify(memoryview(data)[:1024]) == kind
    with milblob.open(source) as model:
        assert model.kind == kind


@pytest.mark.parametrize("order", ["as written", "description first", "network first"])
def test_a_neural_network_is_not_taken_for_an_onnx_model(order):
    """Field numbers of Core ML are not those of ONNX, in every version and order of fields."""
    coremltools = pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    import coremltools.proto.Model_pb2 as proto
    from coremltools.models.neural_network import NeuralNetworkBuilder

    array = coremltools.models.datatypes.Array(3)
    builder = NeuralNetworkBuilder([("x", array)], [("y", array)])
    builder.add_inner_product("fc" + ":" * 99, np.eye(3, dtype=np.float32), None, 3, 3, False, "x", "y")
    for version in range(1, 10):
        rest = proto.Model()
        rest.CopyFrom(builder.spec)
        rest.ClearField("specificationVersion")
        number = proto.Model(specificationVersion=version).SerializeToString()
        description = proto.Model(description=rest.description).SerializeToString()
        whole = number + rest.SerializeToString()
        rest.ClearField("description")
        parts = {"description first": description + number + rest.SerializeToString(), "as written": whole}
        parts["network first"] = rest.SerializeToString() + number + description
        assert identify(parts[order]) == "mlmodel"


def test_listings(tmp_path):
    milblob.write_weights({"a": np.zeros(12, np.float32)}, tmp_path / "w.bin", listing=tmp_path / "w.json")
    assert identify(tmp_path / "w.json") == "listing" and identify(tmp_path / "w.bin") == "blob"


def test_every_model_of_the_fixtures_is_one():
    """Nothing that opens is taken for a file of another kind."""
    count = 0
    for path in DATA.rglob("*"):
        if path.suffix in (".mlpackage", ".mlmodelc", ".mlmodel", ".mil") or path.name.endswith("weight.bin"):
            assert isinstance(identify(path), str), path
            count += 1
    assert count > 100


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_formats(name, path_of):
    path, (data, kind, advice) = path_of(name), OTHERS[name]
    with pytest.raises(milblob.MilblobError, match="expected ") as caught:
        milblob.open(path)
    error = caught.value
    assert error.code == code_of(kind) and advice in str(error) and str(error).isprintable()
    assert error.file == str(path)
    assert [finding.code for finding in milblob.check(path)] == [error.code]
    found = identify(path)
    assert isinstance(found, Foreign) and found.name == kind and found.description in str(error)
    with pytest.raises(milblob.MilblobError, match="expected ") as caught:
        milblob.open(data)  # a buffer has no name: the bytes say it
    if kind not in ("xml", "json", "text"):
        assert caught.value.code == error.code


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.sample(8)
def test_every_command_that_opens_a_model_names_the_kind_of_file(name, path_of, tmp_path, capsys):
    """One line that says what the file is and what to do, whatever the command; arrays are listed where they can be."""
    path, (_, kind, advice) = str(path_of(name)), OTHERS[name]
    listed = path.endswith(f".{kind}") and kind in ARRAYS
    own = str(shutil.copytree(PACKAGE, tmp_path / "own.mlpackage"))
    commands = {
        "ls": ["ls", path], "show": ["show", path], "stats": ["stats", path], "hash": ["hash", path],
        "diff": ["diff", path, path], "match": ["match", path, path],
        "convert": ["convert", path, "-o", str(tmp_path / "c.npz")],
        "repack": ["repack", path, "-o", str(tmp_path / "r.bin")],
        "refit": ["refit", path, path],
        "refit with it": ["refit", own, path, "--dry-run"],
        "merge-functions": ["merge-functions", path, own, "-o", str(tmp_path / "m.mlpackage")],
    }  # fmt: skip
    for command, words in commands.items():
        status = main(words)
        captured = capsys.readouterr()
        if listed and command in ARRAY_COMMANDS.replace("milblob ", "").replace(" and ", ", ").split(", "):
            assert status in (0, 1), (command, captured.err)
            continue
        lines = captured.err.splitlines()
        assert status == 2 and len(lines) == 1 and lines[0].startswith("milblob: "), (command, captured.err)
        if not (listed and command == "refit with it"):  # which names an array that the model has not
            assert advice in lines[0], (command, lines[0])


def test_the_commands_that_are_named_take_arrays(path_of, tmp_path, capsys):
    with pytest.raises(milblob.UnsupportedError) as caught:
        milblob.open(path_of("w.npz"))
    assert f"{ARRAY_COMMANDS} take it, and milblob refit gives its values to a model" in str(caught.value)
    values = {"fc_weight": np.zeros((8, 8), np.float16)}
    np.savez(tmp_path / "new.npz", **values)
    own = shutil.copytree(PACKAGE, tmp_path / "own.mlpackage")
    assert main(["refit", str(own), str(tmp_path / "new.npz"), "-q"]) == 0
    assert not milblob.load(own)["fc_weight"].any()
    capsys.readouterr()


# --------------------------------------------------------------------------------------------------------- directories


def refused(path, *words, code="not-a-model"):
    with pytest.raises(milblob.FormatError) as caught:
        milblob.open(path)
    assert caught.value.code == code and all(word in str(caught.value) for word in words), str(caught.value)
    assert isinstance(identify(path), Foreign)


def test_directories_of_neither_kind(tmp_path):
    refused(tmp_path, "an empty directory")
    (tmp_path / "notes.txt").write_text("x")
    refused(tmp_path, "a directory with notes.txt in it")
    for number in range(5):
        (tmp_path / f"part{number}").mkdir()
    refused(tmp_path, "notes.txt, part0, part1, ... in it")
    (tmp_path / "w.safetensors").write_bytes(OTHERS["w.safetensors"][0])
    refused(tmp_path, "a directory with w.safetensors in it", f"give {tmp_path / 'w.safetensors'}")
    shutil.copytree(PACKAGE, tmp_path / "a.mlpackage")
    refused(tmp_path, "a directory with a.mlpackage in it", f"open {tmp_path / 'a.mlpackage'}")


@pytest.mark.parametrize("version", [1, 5, 7])
def test_an_archive_of_tvm_is_called_one(version, tmp_path):
    """Also by commands that do not take it: to unpack it would not help. The commands that are named take it."""
    tar, folder = tmp_path / "model.tar", tmp_path / "model"
    tar.write_bytes(tar_of(files_of(version)))
    with tarfile.open(tar) as archive:
        archive.extractall(folder, filter="data")
    for path in (tar, folder):
        for change in (milblob.repack, milblob.compress):
            with pytest.raises(milblob.MilblobError, match="(a tar archive|an unpacked archive of TVM) ") as caught:
                change(path, tmp_path / "out", **({"recipe": "int8"} if change is milblob.compress else {}))
            assert f"{ARRAY_COMMANDS.replace(' and', ',')}, check, refit and tvm take it)" in str(caught.value)
        for words in (["ls", path], ["check", path], ["report", path, "-o", f"{path}.html"], ["tvm", "ls", path]):
            assert main([*map(str, words), "-q"]) == 0


@pytest.mark.parametrize("name", OTHERS)
def test_compress_names_the_kind_of_file_too(name, path_of, tmp_path):
    with pytest.raises(milblob.MilblobError, match=r"^compress: expected a \.mlpackage or \.mlmodelc, got ") as caught:
        milblob.compress(path_of(name), tmp_path / "out", "int8")
    assert OTHERS[name][2] in str(caught.value) and not (tmp_path / "out").exists()


def test_a_saved_model_of_tensorflow(tmp_path):
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    refused(tmp_path, "TensorFlow")


@pytest.mark.parametrize("inside", ["Data", "Data/com.apple.CoreML", "Data/com.apple.CoreML/weights"])
def test_a_directory_inside_a_model(inside, tmp_path):
    package = shutil.copytree(PACKAGE, tmp_path / "a.mlpackage")
    refused(package / inside, "a directory inside a model", f"open {package}")


def test_files_inside_a_model(tmp_path):
    package = shutil.copytree(PACKAGE, tmp_path / "a.mlpackage")
    with pytest.raises(milblob.UnsupportedError, match=rf"JSON[^@]* that is a part of a model \(open {package}\)"):
        milblob.open(package / "Manifest.json")
    compiled = shutil.copytree(COMPILED, tmp_path / "b.mlmodelc")
    (compiled / "coremldata.bin").write_bytes(bytes(100))
    with pytest.raises(milblob.UnsupportedError, match=rf"a part of a compiled model \(open {compiled}\)"):
        milblob.open(compiled / "coremldata.bin")


# ------------------------------------------------------------------------------------------- files that a model names


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (LFS_POINTER, "lfs-pointer", "git lfs pull"),
        (b"<!doctype html><html>", "web-page", "got an HTML page"),
        (b"Entry not found", "not-a-model", "got text: 'Entry not found'"),
        (TORCH, "other-format", "got a PyTorch file"),
        (zip_of("weight.bin"), "other-format", "got a zip archive"),
    ],
)
def test_files_that_a_model_names(data, code, words, tmp_path):
    """A failed download is one whichever of a model's files it stands for."""
    for inside in ("weights/weight.bin", "model.mlmodel"):
        package = shutil.copytree(PACKAGE, tmp_path / f"{os.path.basename(inside)}.mlpackage")
        (model_directory(package) / inside).write_bytes(data)
        with pytest.raises(milblob.MilblobError) as caught:
            milblob.load(package)
        assert caught.value.code == code and words in str(caught.value)
        assert code in [finding.code for finding in milblob.check(package)]
    compiled = shutil.copytree(COMPILED, tmp_path / "c.mlmodelc")
    (compiled / "model.mil").write_bytes(data)
    with pytest.raises(milblob.MilblobError) as caught:
        milblob.load(compiled)
    if code != "not-a-model":  # text that is no MIL is an error in MIL text
        assert caught.value.code == code and words in str(caught.value)
    (tmp_path / "bare.bin").write_bytes(data)
    with pytest.raises(milblob.MilblobError) as caught:
        milblob.BlobReader(tmp_path / "bare.bin")
    assert caught.value.code == code and words in str(caught.value)


@pytest.mark.parametrize("suffix", ["safetensors", "npz", "npy", "params"])
@pytest.mark.parametrize("name", ["page.html", "x.pt", "weight.bin.gz", "a.zipped", "m.gguf", "net.onnx"])
def test_files_with_the_suffix_of_arrays(name, suffix, tmp_path):
    """The name says arrays, the bytes say something else."""
    path = tmp_path / f"fc_weight.{suffix}"
    path.write_bytes(OTHERS[name][0])
    new = shutil.copytree(PACKAGE, tmp_path / "own.mlpackage")
    with pytest.raises(milblob.MilblobError) as caught:
        milblob.refit(new, path)
    _, kind, advice = OTHERS[name]
    if (kind, suffix) != ("zip", "npz"):  # a broken one of its kind
        assert caught.value.code == code_of(kind) and advice in str(caught.value)


def test_a_model_in_place_of_arrays(tmp_path):
    new = shutil.copytree(PACKAGE, tmp_path / "own.mlpackage")
    for other in (PACKAGE, COMPILED, INSIDE / "model.mlmodel"):
        with pytest.raises(milblob.UnsupportedError, match=r"got a Core ML model \(milblob convert "):
            milblob.refit(new, other)
    (tmp_path / "net.npz").write_bytes(ONNX)
    with pytest.raises(milblob.UnsupportedError, match=r"got an ONNX model \(if its name ends in .onnx, milblob ls"):
        milblob.refit(new, tmp_path / "net.npz")


@pytest.fixture
def cached(tmp_path):
    """A package in the cache of huggingface_hub: each file is a link to a blob outside of the package."""
    cache = tmp_path / "models--a--b"
    package = cache / "snapshots" / "0123" / "a.mlpackage"
    package.parent.mkdir(parents=True)
    shutil.copytree(PACKAGE, package)
    (cache / "blobs").mkdir()
    for number, path in enumerate(sorted(path for path in package.rglob("*") if path.is_file())):
        shutil.move(path, cache / "blobs" / f"{number:040x}")
        path.symlink_to(os.path.relpath(cache / "blobs" / f"{number:040x}", path.parent))
    return package


def test_model_in_a_hugging_face_cache_opens(cached, tmp_path):
    found, expected = milblob.load(cached), milblob.load(PACKAGE)
    assert list(found) == list(expected) and all(np.array_equal(found[k], expected[k]) for k in found)
    assert milblob.content_hash(cached) == milblob.content_hash(PACKAGE)
    (tmp_path / "link").symlink_to(cached.parent)
    assert list(milblob.load(tmp_path / "link" / "a.mlpackage")) == list(expected)


@pytest.mark.every
@pytest.mark.parametrize(
    "target",
    ["{cache}/../models--a--c/blobs/x", "{cache}/refs/x", "{cache}/blobs/../refs/x", "{cache}/blobs/sub/x", "{tmp}/x",
     "{cache}/blobs/onward", "{cache}/snapshots/0124/x", "{cache}/blobs"],
)  # fmt: skip
def test_links_of_a_cached_model_lead_nowhere_else(cached, tmp_path, target):
    cache = cached.parents[2]
    for folder in ("../models--a--c/blobs", "refs", "blobs/sub", "snapshots/0124"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
        shutil.copy(model_directory(PACKAGE) / "weights" / "weight.bin", cache / folder / "x")
    shutil.copy(cache / "refs" / "x", tmp_path / "x")
    (cache / "blobs" / "onward").symlink_to("../refs/x")
    weights = model_directory(cached) / "weights" / "weight.bin"
    place = Path(target.format(cache=cache, tmp=tmp_path))
    for link in (
        str(place),
        os.path.relpath(cache, weights.parent) + str(place).removeprefix(str(cache))
        if target.startswith("{cache}")
        else os.path.relpath(place, weights.parent),
    ):
        weights.unlink()
        weights.symlink_to(link)
        with pytest.raises((milblob.MilblobError, OSError)):
            milblob.load(cached)


def test_blobs_of_a_cache_are_not_written_to(cached):
    blobs = {path: path.read_bytes() for path in (cached.parents[2] / "blobs").iterdir()}
    with pytest.raises((milblob.MilblobError, OSError, ValueError)), milblob.open(cached, "r+") as model:
        name = next(iter(model))
        model[name] = np.zeros(model[name].shape, model[name].dtype)
    assert {path: path.read_bytes() for path in (cached.parents[2] / "blobs").iterdir()} == blobs


# -------------------------------------------------------------------------------------------------------------- opening


def test_a_pending_change_is_looked_for_once_for_each_file_that_is_mapped(monkeypatch):
    """`identify` says what a path is without opening it, and does not look."""
    calls = []
    monkeypatch.setattr(pending, "pending", lambda path: calls.append(path))
    assert identify(PACKAGE) == "mlpackage" and calls == []
    with milblob.open(PACKAGE) as model:
        assert calls == [str(INSIDE / "model.mlmodel")]
        for tensor in model.values():
            tensor.read()
        assert calls == [str(INSIDE / "model.mlmodel"), str(INSIDE / "weights" / "weight.bin")]


# ------------------------------------------------------------------------------------------------------- hostile bytes


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.sample(9)
def test_any_part_of_a_file_is_something(name):
    """Cut off at every byte, or with a byte changed: an answer, never another error."""
    data, _, _ = OTHERS[name]
    rng = np.random.default_rng(len(data))
    for end in range(min(len(data), 1100)):
        assert isinstance(identify(data[:end]), str | Foreign)
    for at in rng.integers(0, min(len(data), 600), 300):
        changed = bytearray(data)
        changed[at] = rng.integers(0, 256)
        found = identify(changed)
        assert isinstance(found, str) or "\n" not in found.description
    assert isinstance(identify(data + bytes(1 << 20)), str | Foreign)


def test_a_zip_archive_that_leads_in_circles():
    """Sizes in the headers of members are those of the file itself: looking at names ends."""
    member = b"PK\x03\x04" + bytes(14) + (0).to_bytes(4, "little") * 2 + (0).to_bytes(4, "little")
    assert identify(member * 100_000).name == "zip"
    large = b"PK\x03\x04" + bytes(14) + (0xFFFFFFFE).to_bytes(4, "little") * 2 + (0xFFFFFFFF).to_bytes(4, "little")
    assert identify(large).name == "zip"
