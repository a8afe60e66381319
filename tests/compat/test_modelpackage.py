"""Packages made and opened by milblob's ModelPackage and by coremltools' native one."""

import json
import os

import pytest

from peers import WITHOUT

pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])

from coremltools import libmodelpackage as theirs

from milblob.compat import modelpackage as ours

ITEM = ("model.mlmodel", "com.apple.CoreML", "CoreML Model Specification")


@pytest.fixture
def made(tmp_path):
    """A function that makes a package with one of the two modules: a model, and a directory of weights."""
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "weight.bin").write_bytes(b"weights")
    (tmp_path / "model").write_bytes(b"model")
    (tmp_path / "other").write_bytes(b"other")

    def make(module, name="p.mlpackage"):
        package = module.ModelPackage(str(tmp_path / name))
        package.setRootModel(str(tmp_path / "model"), *ITEM)
        package.addItem(str(tmp_path / "weights"), "weights", "com.apple.CoreML", "CoreML Model Weights")
        return tmp_path / name

    return make


def contents(root):
    """Files of a package, and its manifest without its identifiers."""
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    manifest = json.loads(found.pop("Manifest.json"))
    entries = manifest.pop("itemInfoEntries")
    root_model = entries[manifest.pop("rootModelIdentifier")]
    return found, manifest, root_model, sorted(entries.values(), key=str)


def test_packages_are_the_same(made):
    assert contents(made(ours, "a.mlpackage")) == contents(made(theirs, "b.mlpackage"))


@pytest.mark.parametrize(("maker", "opener"), [(ours, theirs), (theirs, ours), (ours, ours)])
def test_either_opens_what_the_other_has_made(made, tmp_path, maker, opener):
    path = made(maker)
    before = contents(path)
    assert opener.ModelPackage.isValid(str(path)) is True
    package = opener.ModelPackage(str(path))
    item = package.getRootModel()
    assert package.path() == str(path)
    assert (item.name(), item.author(), item.description()) == ITEM
    assert item.path() == str(path / "Data" / "com.apple.CoreML" / "model.mlmodel")
    assert package.findItemByNameAuthor("model.mlmodel", "com.apple.CoreML").identifier() == item.identifier()
    weights = package.findItemByNameAuthor("weights", "com.apple.CoreML")
    assert os.listdir(weights.path()) == ["weight.bin"]
    assert package.findItemByNameAuthor("weights", "somebody") is None
    for call in (package.setRootModel, package.addItem):
        with pytest.raises(RuntimeError):
            call(str(tmp_path / "other"), *ITEM)
    with pytest.raises(RuntimeError):
        package.addItem(str(tmp_path / "missing"), "x", "y", "z")
    identifier = package.replaceRootModel(str(tmp_path / "other"), "other", "me", "another")
    assert package.getRootModel().identifier() == identifier
    del package, call  # the native one writes its manifest when it goes
    files, _, root_model, entries = contents(path)
    assert files[os.path.join("Data", "me", "other")] == b"other" and len(entries) == len(before[3])
    assert root_model["name"] == "other" and len(files) == len(before[0])


def test_opening_does_not_change_the_manifest(made):
    manifest = made(ours) / "Manifest.json"
    before = manifest.read_bytes(), manifest.stat().st_mtime_ns
    ours.ModelPackage(str(manifest.parent)).getRootModel().path()
    assert (manifest.read_bytes(), manifest.stat().st_mtime_ns) == before and len(list(manifest.parent.iterdir())) == 2


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "{}", "{", '"x"', '{"fileFormatVersion": "2.0.0"}', '{"fileFormatVersion": "1.0.0", "itemInfoEntries": []}',
        '{"fileFormatVersion": "1.0.0", "itemInfoEntries": {"a": 3}}', "[" * 100_000,
        '{"fileFormatVersion": "1.0.0", "itemInfoEntries": {"a": {"path": "x", "name": "x", "author": "x"}}}',
        '{"fileFormatVersion": "1.0.0", "itemInfoEntries": {"a": {"path": "none", "name": "x", "author": "x", "description": ""}}}',
    ],
)  # fmt: skip
def test_broken_manifests_are_refused(made, text):
    path = made(ours)
    (path / "Manifest.json").write_text(text)
    with pytest.raises(RuntimeError):
        ours.ModelPackage(str(path))
    assert ours.ModelPackage.isValid(str(path)) is False
    (path / "Manifest.json").unlink()
    with pytest.raises(RuntimeError, match="A valid manifest does not exist at path"):
        ours.ModelPackage(str(path))


@pytest.mark.parametrize(
    "inside", ["../../secret", "/etc/passwd", "a/../../../secret", "..\\..\\secret", "C:\\x", "", "a\0b"]
)
def test_items_are_inside_the_package(made, tmp_path, inside):
    (tmp_path / "secret").write_text("secret")
    path = made(ours)
    manifest = json.loads((path / "Manifest.json").read_text())
    manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"] = inside
    (path / "Manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(RuntimeError, match="^Item is not inside the package: "):
        ours.ModelPackage(str(path))


def test_a_folder_that_is_a_link_leads_out_of_the_package(made, tmp_path):
    """An item in it would be replaced and removed where the link leads."""
    path = made(ours)
    package = ours.ModelPackage(str(path))
    author = path / "Data" / "com.apple.CoreML"
    author.rename(tmp_path / "own")
    author.symlink_to(tmp_path / "own")
    before = sorted(os.listdir(tmp_path / "own"))
    for call in (
        lambda: ours.ModelPackage(str(path)),
        lambda: package.addItem(str(tmp_path / "other"), "new", "com.apple.CoreML", ""),
        lambda: package.replaceRootModel(str(tmp_path / "other"), "other", "me", "another"),
    ):
        with pytest.raises(RuntimeError, match="^Item is not inside the package: com.apple.CoreML/"):
            call()
    assert sorted(os.listdir(tmp_path / "own")) == before


@pytest.mark.parametrize("module", [ours, theirs])
def test_a_root_model_that_cannot_be_removed(made, tmp_path, module):
    """The manifest names the new one by then."""
    package = module.ModelPackage(str(made(module)))
    os.unlink(package.getRootModel().path())
    with pytest.raises(RuntimeError, match="^Failed to remove file at path: .*model.mlmodel"):
        package.replaceRootModel(str(tmp_path / "other"), "other", "me", "another")


def test_a_root_model_of_the_same_path_in_other_words_remains(made, tmp_path):
    path = made(ours)
    manifest = json.loads((path / "Manifest.json").read_text())
    entry = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]
    entry["path"] = "./" + entry["path"]
    (path / "Manifest.json").write_text(json.dumps(manifest))
    package = ours.ModelPackage(str(path))
    package.replaceRootModel(str(tmp_path / "other"), *ITEM)
    with open(ours.ModelPackage(str(path)).getRootModel().path(), "rb") as file:
        assert file.read() == b"other"


def test_ctrl_c_once_the_manifest_names_an_item(made, tmp_path, monkeypatch):
    path = made(ours)
    replace = os.replace

    def interrupted(source, target):
        replace(source, target)
        if target.endswith("Manifest.json"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", interrupted)
        ours.ModelPackage(str(path)).replaceRootModel(str(tmp_path / "other"), "other", "me", "another")
    with open(ours.ModelPackage(str(path)).getRootModel().path(), "rb") as file:
        assert file.read() == b"other"


def test_without_a_root_model(tmp_path):
    package = ours.ModelPackage(str(tmp_path / "p"))
    with pytest.raises(RuntimeError, match="^Failed to look up root model$"):
        package.getRootModel()
    assert ours.ModelPackage.isValid(str(tmp_path / "p")) is False
    assert ours.ModelPackage.isValid(str(tmp_path / "missing")) is False and not (tmp_path / "missing").exists()
    with pytest.raises(RuntimeError, match="^Failed to create model package at path"):
        ours.ModelPackage(str(tmp_path / "missing" / "p"))
