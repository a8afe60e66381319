"""Writing files of arrays: the format's own library reads the same bits."""

import json
import os
import sys
import zipfile
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import milblob
from milblob.formats import npy_dir, npz
from milblob.formats import safetensors as safetensors_format
from milblob.formats.filenames import escaped, file_names
from paths import DATA

SOURCES = [
    *[
        f"{case}/weight.bin"
        for case in ("blob_all_dtypes", "blob_sub_byte", "blob_empty", "blob_handmade", "blob_garbage")
    ],
    "immediates/model.mlmodel",
    "immediates_odd/model.mlmodel",
]
OWN = {"bfloat16": np.uint16, "float8e4m3fn": np.uint8, "float8e5m2": np.uint8}


def opened(source):
    return milblob.open(DATA / source, constants=True)


def same(read, note, tensor):
    """Whether an array that a format gave back, and its note, are the tensor."""
    values = tensor.read()
    if tensor.mil_dtype is milblob.DType.STRING:
        assert note["dtype"] == "string"
        return np.array(json.loads(bytes(read)), object).reshape(note["shape"]).tolist() == values.tolist()
    assert read.shape == values.shape
    if note is not None and "dtype" in note:
        assert milblob.DType[note["dtype"].upper()] is tensor.mil_dtype
        assert read.dtype == OWN.get(note["dtype"], np.uint8)
    else:
        assert read.dtype == values.dtype
    return read.tobytes() == values.tobytes()


@pytest.mark.parametrize("source", SOURCES)
def test_npz_gives_every_tensor_back(source, tmp_path):
    target = str(tmp_path / "out.npz")
    with opened(source) as model:
        npz.save(model, target)
        with np.load(target) as archive:
            notes = json.loads(str(archive[npz.NOTES])) if npz.NOTES in archive else {}
            real = {notes.get(key, {}).get("name", key): key for key in archive.files if key != npz.NOTES}
            assert sorted(real) == sorted(model)
            for name, tensor in model.items():
                assert same(archive[real[name]], notes.get(real[name]), tensor), name


@pytest.mark.parametrize("source", SOURCES)
def test_a_directory_gives_every_tensor_back(source, tmp_path):
    target = str(tmp_path / "out")
    with opened(source) as model:
        npy_dir.save(model, target)
        index = json.loads((tmp_path / "out" / "index.json").read_text("utf-8"))["tensors"]
        assert list(index) == list(model)
        for name, tensor in model.items():
            row = index[name]
            array = np.load(os.path.join(target, row["file"]))
            assert row["dtype"] == str(tensor.mil_dtype)
            assert str(array.dtype) == row["stored"]
            plain = array.dtype == tensor.dtype and row["dtype"] not in ("uint3", "uint6", "string")
            assert same(array, None if plain else row, tensor), name
        assert sorted(os.listdir(target)) == sorted(["index.json", *(row["file"] for row in index.values())])


@pytest.mark.parametrize("source", SOURCES)
def test_safetensors_gives_every_tensor_back(source, tmp_path):
    target = str(tmp_path / "out.safetensors")
    with opened(source) as model:
        safetensors_format.save(model, target)
        with safetensors.safe_open(target, "numpy") as file:
            notes = json.loads((file.metadata() or {}).get("milblob", "{}"))
        rows = dict(safetensors.deserialize((tmp_path / "out.safetensors").read_bytes()))
        assert sorted(rows) == sorted(model)
        types = {"BF16": ml_dtypes.bfloat16, "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
        types |= safetensors.numpy._TYPES
        for name, tensor in model.items():
            array = np.frombuffer(rows[name]["data"], types[rows[name]["dtype"]]).reshape(rows[name]["shape"])
            assert same(array, notes.get(name), tensor), name
            assert name in notes or array.dtype == tensor.dtype


HOSTILE = [
    "../up", "/absolute", "a/../b", "a//b", "C:\\x", "nul", "CON.weight", ".hidden", "a\0b", "", "w.npy", "W.npy", "w",
    "W", "Größe", "a%2Fb", "a/b", "__milblob__", "%w", "x" * 5000, "x" * 5001, "index.json", "index",
    "main/loop_0[1]/w", "a\nb",
]  # fmt: skip


def made(names):
    """Tensors with these names, each with another value."""

    class Made(SimpleNamespace):
        def read(self):
            return self.values

        @property
        def place(self):
            return SimpleNamespace(account=lambda: None)

    return {
        name: Made(name=name, mil_dtype=milblob.DType.INT32, nbytes=4, values=np.array([i], np.int32))
        for i, name in enumerate(names)
    }


def test_hostile_names_do_not_escape_a_directory(tmp_path):
    target = tmp_path / "deep" / "out"
    target.parent.mkdir()
    npy_dir.save(made(HOSTILE), str(target))
    assert os.listdir(tmp_path) == ["deep"]
    assert os.listdir(tmp_path / "deep") == ["out"]
    index = json.loads((target / "index.json").read_text("utf-8"))["tensors"]
    files = [row["file"] for row in index.values()]
    assert len({name.lower() for name in files}) == len(HOSTILE)
    assert all(len(name) < 250 and name.isascii() and name[0] not in ". " for name in files)
    for i, name in enumerate(HOSTILE):
        assert np.load(target / index[name]["file"]).tolist() == [i]


def test_hostile_names_are_distinct_in_npz(tmp_path):
    target = str(tmp_path / "out.npz")
    npz.save(made(HOSTILE), target)
    with zipfile.ZipFile(target) as archive:
        members = archive.namelist()
    assert len(set(members)) == len(members) == len(HOSTILE) + 1
    assert not any(m.startswith("/") or "\\" in m or ".." in m.split("/") or "\0" in m for m in members)
    with np.load(target) as archive:
        notes = json.loads(str(archive[npz.NOTES]))
        read = {notes.get(key, {}).get("name", key): archive[key].tolist() for key in archive.files if key != npz.NOTES}
    assert read == {name: [i] for i, name in enumerate(HOSTILE)}


def test_hostile_names_are_distinct_in_safetensors(tmp_path):
    names = [*HOSTILE, "__metadata__", "%__metadata__"]
    target = str(tmp_path / "out.safetensors")
    safetensors_format.save(made(names), target)
    with safetensors.safe_open(target, "numpy") as file:
        notes = json.loads(file.metadata()["milblob"])
        read = {notes.get(key, {}).get("name", key): file.get_tensor(key).tolist() for key in file.keys()}  # noqa: SIM118
    assert read == {name: [i] for i, name in enumerate(names)}


def test_names_that_differ_in_case_only_get_different_files():
    names = ["Weight", "weight", "WEIGHT", "other/W", "Plain"]
    files = file_names(names)
    assert len({file.lower() for file in files.values()}) == len(names)
    assert files["Plain"] == "Plain"
    assert files["weight"] == "weight"
    assert files["other/W"] == "other%2FW"


def test_escaped_names():
    assert escaped("encoder.layers-0_w#1") == "encoder.layers-0_w#1"
    assert escaped("a/b c") == "a%2Fb%20c"
    assert escaped(".x") == "%2Ex"
    assert escaped("con.x") == "%63on.x"
    assert escaped("ü") == escaped("ü") == "%C3%BC"
    assert escaped("") == "%"
    assert len(escaped("y" * 999)) < 210


SAVES = [(npz, "out.npz"), (npy_dir, "out"), (safetensors_format, "out.safetensors")]


@pytest.mark.parametrize(("module", "name"), SAVES)
def test_nothing_is_left_when_a_tensor_cannot_be_read(module, name, tmp_path):
    tensors = made(["a", "b"])
    tensors["b"].read = lambda: (_ for _ in ()).throw(milblob.FormatError("broken"))
    with pytest.raises(milblob.FormatError):
        module.save(tensors, str(tmp_path / name))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("module", "name"), SAVES)
def test_what_is_there_is_replaced_only_by_force(module, name, tmp_path):
    target = str(tmp_path / name)
    module.save(made(["a"]), target)
    before = os.stat(target)
    with pytest.raises(FileExistsError, match="use force=True"):
        module.save(made(["b"]), target)
    assert os.stat(target).st_ino == before.st_ino
    module.save(made(["b", "c"]), target, force=True)
    assert os.listdir(tmp_path) == [name]
    files = os.listdir(target) if os.path.isdir(target) else (tmp_path / name).read_bytes()
    assert ("b.npy" in files) if isinstance(files, list) else (b"b" in files)
    assert not isinstance(files, list) or "a.npy" not in files


def test_a_directory_of_others_is_never_replaced(tmp_path):
    target = tmp_path / "out"
    target.mkdir()
    (target / "thesis.txt").write_text("years of work")
    with pytest.raises(FileExistsError):
        npy_dir.save(made(["a"]), str(target), force=True)
    assert (target / "thesis.txt").read_text() == "years of work"
    assert os.listdir(tmp_path) == ["out"]
    (target / "thesis.txt").unlink()
    npy_dir.save(made(["a"]), str(target))  # an empty one may be filled
    assert sorted(os.listdir(target)) == ["a.npy", "index.json"]


@pytest.mark.parametrize("module", [npz, safetensors_format])
def test_a_file_does_not_replace_a_directory(module, tmp_path):
    (tmp_path / "out").mkdir()
    with pytest.raises(FileExistsError):
        module.save(made(["a"]), str(tmp_path / "out"), force=True)
    assert os.listdir(tmp_path) == ["out"]


@pytest.mark.skipif(
    os.name != "posix", reason="permission bits are POSIX's: which ones a new file has is not tested on Windows"
)
@pytest.mark.parametrize(("module", "name"), SAVES)
def test_permissions_are_those_of_any_new_file(module, name, tmp_path):
    module.save(made(["a"]), str(tmp_path / name))
    plain = tmp_path / "plain"
    plain.mkdir() if module is npy_dir else plain.touch()
    assert (tmp_path / name).stat().st_mode == plain.stat().st_mode


def test_without_the_library_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.delitem(sys.modules, "safetensors.numpy")
    with pytest.raises(
        ImportError, match=r"safetensors is not installed; run: pip install safetensors \(milblob's extra safetensors "
    ):
        safetensors_format.save(made(["a"]), str(tmp_path / "out.safetensors"))


def test_the_same_tensors_give_the_same_npz(tmp_path):
    npz.save(made(["a", "b"]), str(tmp_path / "1.npz"))
    npz.save(made(["a", "b"]), str(tmp_path / "2.npz"))
    assert (tmp_path / "1.npz").read_bytes() == (tmp_path / "2.npz").read_bytes()


def test_arguments_in_the_wrong_order(tmp_path):
    with pytest.raises(TypeError, match="^save: expected tensors, then the destination, got them the other way round$"):
        milblob.save(tmp_path / "w.npz", {"w": np.ones(3)})
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors", "w.params", "w"])
@pytest.mark.parametrize("shape", [(4, 1024), (0, 3)])
def test_foreign_bytes_that_are_seen_as_bools_are_written_as_0_and_1(name, shape, tmp_path):
    """Readers need not take another byte for true: .params files with one are refused."""
    stored = np.arange(np.prod(shape), dtype=np.uint32).astype(np.uint8).reshape(shape)
    for bools in (stored.view(bool), stored.T[::-1].view(bool)):
        milblob.save({"b": bools}, tmp_path / name, force=True)
        with milblob.open_arrays(tmp_path / name) as arrays:
            found = arrays["b"].read()
        np.testing.assert_array_equal(found.view(np.uint8), np.where(bools, 1, 0))


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors", "w.params", "w"])
@pytest.mark.parametrize("kind", ["int4", "uint4", "uint2", "uint1"])
def test_bits_above_those_of_an_element_are_not_written(name, kind, tmp_path):
    """They mean nothing to ml_dtypes, and readers refuse them: an int4 may be kept as the byte of an int8."""
    stored = np.arange(256, dtype=np.uint8).reshape(16, 16).view(kind)
    milblob.save({"w": stored.T}, tmp_path / name)
    with milblob.open_arrays(tmp_path / name) as arrays:
        np.testing.assert_array_equal(arrays["w"].read().astype(np.int64), stored.T.astype(np.int64))
