"""What --force replaces: a directory whose every file is of the kind that is written, and nothing else of anybody's."""

import json
import os
import shutil

import numpy as np
import pytest

import milblob
from milblob.cli import main
from milblob.formats.write import save
from paths import DATA
from repacking import tree

PACKAGE = DATA / "opset_ios16_fp16/model.mlpackage"
COMPILED = DATA / "opset_ios16_fp16/model.mlmodelc"
IOS18 = DATA / "opset_ios18_fp16/model.mlpackage"
INNER = "Data/com.apple.CoreML"


def first_weight(path):
    with milblob.open(path) as model:
        name = next(name for name, tensor in model.items() if tensor.is_blob)
        return {name: np.array(model[name].read())}


def save_all(folder, out, force):
    with milblob.open(PACKAGE) as model:
        save(model, str(out), force=force)


def convert_by_command(folder, out, force):
    run("convert", PACKAGE, "-o", out, *["--force"] * force)


def run(*arguments):
    status = main([str(argument) for argument in arguments])
    if status == 2:
        raise FileExistsError("as the command says")


def repack(folder, out, force):
    milblob.repack(PACKAGE, out, align=4096, force=force)


def repack_by_command(folder, out, force):
    run("repack", PACKAGE, "-o", out, "--align", 4096, *["--force"] * force)


def repack_compiled(folder, out, force):
    milblob.repack(COMPILED, out, align=4096, force=force)


def refit(folder, out, force):
    milblob.refit(PACKAGE, first_weight(PACKAGE), destination=out, force=force)


def refit_compiled(folder, out, force):
    milblob.refit(COMPILED, first_weight(COMPILED), destination=out, force=force)


def merge(folder, out, force):
    milblob.merge_functions([(IOS18, "one"), (IOS18, "two")], out, force=force)


WRITERS = {
    "npy": (save_all, convert_by_command), "mlpackage": (repack, repack_by_command, refit, merge),
    "mlmodelc": (repack_compiled, refit_compiled),
}  # fmt: skip
ALL = [(kind, writer) for kind, writers in WRITERS.items() for writer in writers]
NAMES = {"npy": "out", "mlpackage": "out.mlpackage", "mlmodelc": "out.mlmodelc"}
FOREIGN = {
    "npy": ["thesis.txt", ".hidden", ".git/config", "more/w.npy", "photo.npy", "._index.json", ".milblob-mine.txt",
        ".milblob-mine.old", ".milblob-0123456789abcdef.old/w.npy", ".milblob-mine.tmp", ".w.npy.0123456789abcdef.milblob-new"],
    "mlpackage": [
        "thesis.txt", ".hidden", ".git/config", "Data/thesis.txt", f"{INNER}/thesis.txt", f"{INNER}/weights/thesis.bin",
        f"{INNER}/weights/.hidden", f"{INNER}/weights/deep/thesis.txt", "Data/weight.bin", f"{INNER}/._weights",
        ".milblob-mine.old", f"{INNER}/.milblob-0123456789abcdef.old/weight.bin", ".milblob-mine.tmp",
    ],
    "mlmodelc": ["thesis.txt", ".hidden", "weights/thesis.bin", "model0/thesis.txt", "analytics/thesis.txt", "._x"],
}  # fmt: skip


def put(path, content="mine"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


@pytest.mark.parametrize(("kind", "writer"), ALL, ids=lambda value: getattr(value, "__name__", value))
def test_own_output_is_replaced_with_force(kind, writer, tmp_path, capsys):
    out = tmp_path / NAMES[kind]
    writer(tmp_path, out, False)
    before = tree(out)
    with pytest.raises(FileExistsError):
        writer(tmp_path, out, False)
    assert tree(out) == before
    put(out / ".DS_Store")  # how the Finder shows a folder: nobody's work
    writer(tmp_path, out, True)
    assert tree(out) == before and os.listdir(tmp_path) == [out.name]
    shutil.rmtree(out)
    out.mkdir()  # empty
    writer(tmp_path, out, True)
    assert tree(out) == before


@pytest.mark.parametrize(("kind", "writer"), ALL, ids=lambda value: getattr(value, "__name__", value))
def test_a_foreign_file_is_never_removed(kind, writer, tmp_path, capsys):
    out = tmp_path / NAMES[kind]
    for name in FOREIGN[kind]:
        shutil.rmtree(out, ignore_errors=True)
        writer(tmp_path, out, False)
        put(out / name)
        before = tree(out)
        capsys.readouterr()
        with pytest.raises(FileExistsError) as caught:
            writer(tmp_path, out, True)
        words = str(caught.value) if "as the command" not in str(caught.value) else capsys.readouterr().err
        assert f"got the file {name} that is not part of one; move it elsewhere, or name another output" in words, words
        assert tree(out) == before and os.listdir(tmp_path) == [out.name], name
        (out / name).unlink()
        writer(tmp_path, out, True)


@pytest.mark.skipif(os.name == "nt", reason="links need rights on Windows: what stands behind one is not tested")
@pytest.mark.parametrize(("kind", "writer"), ALL, ids=lambda value: getattr(value, "__name__", value))
def test_a_foreign_link_is_never_removed(kind, writer, tmp_path, capsys):
    out = tmp_path / NAMES[kind]
    writer(tmp_path, out, False)
    (out / "way").symlink_to(tmp_path)
    before = tree(out)
    with pytest.raises(FileExistsError):
        writer(tmp_path, out, True)
    assert tree(out) == before


SOMEBODYS = [
    {"index.json": "{}"}, {"index.json": '{"format": "other", "tensors": {}}'}, {"index.json": "[1"}, {"index.json": ""},
    {"index.json": '{"format": "milblob", "tensors": 7}'}, {"index.json/deep": "x"},
    {"index.json": '{"format": "milblob", "tensors": {"w": {"file": "thesis.txt"}}}', "thesis.txt": "mine"},
    {"index.json": '{"format": "milblob", "tensors": {"w": {"file": "../w.npy"}}}', "w.npy": "mine"},
    {"Manifest.json": "{}"}, {"Manifest.json": '{"name": "of a web page"}', "index.html": "mine"}, {"Manifest.json": "{"},
    {"Manifest.json": '{"fileFormatVersion": "1.0.0", "itemInfoEntries": {}, "rootModelIdentifier": "x"}'},
    {"model.mil": "mine"}, {"model.mil": ""}, {"model0/mine": "mine"}, {"coremldata.bin/mine": "mine"}, {"mine": ""},
    {"a/b/c": "mine"}, {"model.mil/mine": "mine"}, {"weight.bin": "mine"},
]  # fmt: skip


@pytest.mark.parametrize(("kind", "writer"), ALL, ids=lambda value: getattr(value, "__name__", value))
def test_what_is_not_understood_is_never_removed(kind, writer, tmp_path, capsys):
    out = tmp_path / NAMES[kind]
    for files in SOMEBODYS:
        shutil.rmtree(out, ignore_errors=True)
        for name, content in files.items():
            put(out / name, content)
        before = tree(out)
        for force in (False, True):
            with pytest.raises(FileExistsError):
                writer(tmp_path, out, force)
            assert tree(out) == before and os.listdir(tmp_path) == [out.name], files


def test_a_model_of_another_kind_is_not_replaced(tmp_path):
    out = tmp_path / "ext"
    shutil.copytree(COMPILED, out)
    before = tree(out)
    with pytest.raises(FileExistsError, match="expected a .mlpackage to replace"):
        refit(tmp_path, out, True)
    with pytest.raises(FileExistsError, match="a directory that milblob convert made"):
        save_all(tmp_path, out, True)
    assert tree(out) == before


def test_what_the_source_has_too_may_be_replaced(tmp_path):
    """Notes in a model are copied along; the copy may be replaced by another one."""
    source, out = tmp_path / "m.mlpackage", tmp_path / "out.mlpackage"
    shutil.copytree(PACKAGE, source)
    put(source / INNER / "notes.txt")
    for number in (4096, 16384):
        milblob.repack(source, out, align=number, force=True)
        milblob.refit(source, first_weight(source), destination=out, force=True)
    put(out / "Data/mine.txt")
    with pytest.raises(FileExistsError, match="Data/mine.txt"):
        milblob.refit(source, first_weight(source), destination=out, force=True)


def test_every_package_of_the_samples_is_understood(tmp_path):
    """A copy of a model of any producer may be replaced."""
    for path in sorted([*DATA.rglob("*.mlpackage"), *DATA.rglob("*.mlmodelc")]):
        kind, out = path.suffix[1:], tmp_path / f"out{path.suffix}"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(path, out)
        milblob.model.replaceable.require_replaceable(str(out), kind, True)


def test_items_that_other_producers_list(tmp_path):
    out = tmp_path / "out.mlpackage"
    shutil.copytree(PACKAGE, out)
    document = json.loads((out / "Manifest.json").read_text())
    document["itemInfoEntries"]["X"] = {"path": "org.example/notes.json", "name": "notes.json", "author": "org.example"}
    put(out / "Manifest.json", json.dumps(document))
    put(out / "Data/org.example/notes.json")
    repack(tmp_path, out, True)
