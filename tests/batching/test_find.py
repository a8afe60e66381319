"""Finding models: below directories, by globs, in lists."""

import io
import os
import shutil
import tarfile
import zipfile

import numpy as np
import pytest

from milblob.batching.find import Found, find_models, read_list
from paths import DATA, DEMO

BLOB = DEMO / "Data/com.apple.CoreML/weights/weight.bin"


@pytest.fixture
def tree(tmp_path):
    """A directory of everything that milblob opens, among files that it does not."""
    root = tmp_path / "models"
    (root / "b/deep/er").mkdir(parents=True)
    shutil.copytree(DEMO, root / "z.mlpackage")
    shutil.copytree(DEMO, root / "b/deep/a.mlpackage")
    shutil.copytree(DATA / "palette_4bit/model.mlmodelc", root / "b/c")
    shutil.copy(BLOB, root / "b/w.bin")
    shutil.copy(DEMO / "Data/com.apple.CoreML/model.mlmodel", root / "b/deep/er/m.mlmodel")
    np.savez(root / "arrays.npz", a=np.arange(3))
    np.save(root / "b/one.npy", np.arange(3))
    with zipfile.ZipFile(root / "packed.zip", "w") as archive:
        archive.write(DEMO / "Manifest.json", "M.mlpackage/Manifest.json")
    for name, member in (("library.tar", "./metadata.json"), ("other.tar", "readme")):
        with tarfile.open(root / name, "w") as archive:
            archive.addfile(tarfile.TarInfo(member))
    with zipfile.ZipFile(root / "other.zip", "w") as archive:
        archive.writestr("readme", "")
    for name in ("pytorch_model.bin", "config.json", "notes.txt", "b/model.py", "b/empty.bin"):
        (root / name).write_bytes(b"{}" if name.endswith("json") else b"not a model" * (name != "b/empty.bin"))
    (root / ".hidden").mkdir()
    shutil.copy(root / "arrays.npz", root / ".hidden/arrays.npz")
    shutil.copy(root / "arrays.npz", root / ".arrays.npz")
    return root


NAMES = ["arrays.npz", "library.tar", "packed.zip", "z.mlpackage", "b/c", "b/one.npy", "b/w.bin", "b/deep/a.mlpackage", "b/deep/er/m.mlmodel"]  # fmt: skip


def test_every_model_below_a_directory_is_found_once(tree):
    found = list(find_models([tree], recursive=True))
    assert [one.name for one in found] == NAMES
    assert [one.path for one in found] == [os.path.join(tree, *name.split("/")) for name in NAMES]
    assert {one.root for one in found} == {str(tree)}


def test_a_directory_is_itself_without_recursive(tree):
    assert list(find_models([tree])) == [Found(str(tree), "models")]
    package = tree / "z.mlpackage"
    assert list(find_models([package, f"{package}/"], recursive=True)) == [
        Found(str(package), "z.mlpackage"), Found(f"{package}/", "z.mlpackage"),
    ]  # fmt: skip


def test_links_to_directories_are_not_followed(tree):
    (tree / "b/up").symlink_to(tree, target_is_directory=True)
    (tree / "b/linked.mlpackage").symlink_to(tree / "z.mlpackage", target_is_directory=True)
    names = [one.name for one in find_models([tree], recursive=True)]
    assert sorted(names) == sorted([*NAMES, "b/linked.mlpackage"])


def test_globs(tree):
    assert [one.name for one in find_models([f"{tree}/*.npz"])] == ["arrays.npz"]
    assert [one.name for one in find_models([f"{tree}/**/*.mlpackage"])] == ["b/deep/a.mlpackage", "z.mlpackage"]
    assert [one.name for one in find_models([f"{tree}/[b]"], recursive=True)] == [
        name.removeprefix("b/") for name in NAMES if name.startswith("b/")
    ]
    (tree / "x[1].npz").write_bytes((tree / "arrays.npz").read_bytes())
    assert [one.name for one in find_models([tree / "x[1].npz"])] == ["x[1].npz"]  # it exists: not a glob


def test_a_directory_or_glob_without_models_is_an_error(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "readme.txt").write_text("no model")
    with pytest.raises(ValueError, match="expected a directory with models below it, got none"):
        list(find_models([tmp_path], recursive=True))
    with pytest.raises(ValueError, match="expected a glob that matches a file or directory, got no match"):
        list(find_models([f"{tmp_path}/*.mlpackage"]))


def test_listed_paths_keep_their_directories(tree, monkeypatch):
    monkeypatch.chdir(tree)
    listed = ["./b/w.bin", "z.mlpackage", str(tree / "arrays.npz"), "../models/arrays.npz", "b/*.npy"]
    found = [one.name for one in find_models([], listed=listed)]
    assert found == ["b/w.bin", "z.mlpackage", "arrays.npz", "arrays.npz", "b/*.npy"]
    deep = [one.name for one in find_models([], listed=["b/deep"], recursive=True)]
    assert deep == ["a.mlpackage", "er/m.mlmodel"]


@pytest.mark.parametrize(
    ("data", "paths"),
    [
        (b"a\nb c\r\n\n d\n", ["a", "b c", " d"]), (b"a\nlast", ["a", "last"]), (b"a\0b\nc\0", ["a", "b\nc"]), (b"", []),
        ("\u00e4\n".encode(), ["\u00e4"]),
    ],
)  # fmt: skip
def test_lists(data, paths):
    assert list(read_list(io.BytesIO(data))) == paths


def test_a_directory_that_cannot_be_listed_is_reported_by_opening_it(tree, monkeypatch):
    real = os.scandir

    def scandir(path="."):
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [one.name for one in find_models([tree], recursive=True)] == [*NAMES[:-2], "b/deep"]
