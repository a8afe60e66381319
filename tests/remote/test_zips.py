"""Models in zip archives open without unpacking, and hostile archives are refused."""

import io
import os
import struct
import zipfile
import zlib

import numpy as np
import pytest

import milblob
from cases import load_case
from milblob.cli import main
from paths import DEMO
from peers import WITHOUT
from remote_server import files_below, serving
from repacking import FILE, simple_package
from thorough import sized

STORED, DEFLATED = zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED


@pytest.fixture
def package(tmp_path):
    random = np.random.default_rng(3)
    return simple_package(tmp_path, [random.random(50_000).astype("<f4").tobytes() for _ in range(3)])


def zipped(path, files, method=STORED, prefix="", folders=(), **more):
    with zipfile.ZipFile(path, "w", method) as archive:
        for folder in folders:
            archive.mkdir(folder)
        for name, data in files.items():
            with archive.open(
                zipfile.ZipInfo(prefix + name) if method == STORED else prefix + name, "w", **more
            ) as member:
                member.write(data)
    return path


def same(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


@pytest.mark.parametrize("method", [STORED, DEFLATED])
@pytest.mark.parametrize("prefix", ["", "Model.mlpackage/", "a/b/Model.mlpackage/"])
@pytest.mark.parametrize("is_remote", [False, True])
@pytest.mark.parametrize("zip64", [False, True])
def test_values_are_those_of_the_package(package, tmp_path, method, prefix, is_remote, zip64):
    path = zipped(tmp_path / "m.zip", files_below(package), method, prefix, force_zip64=zip64)
    with serving({"m.zip": path.read_bytes()}) as server:
        source = f"{server.url}/m.zip?key=secret" if is_remote else path
        same(milblob.load(source), milblob.load(package))
        with milblob.open(source) as model:
            assert model.path == (f"{server.url}/m.zip" if is_remote else str(path))
            assert model["w1"].file == f"{model.path}/{prefix}{FILE}".replace(f"/{prefix}", "/")
            kept = model["w2"].read()
        assert np.array_equal(kept, milblob.load(package)["w2"])
        assert os.listdir(tmp_path) and bool(server.log) == is_remote


@pytest.mark.parametrize("name", ["functions", "pipeline", "sparse", "quant_int4_block"])
def test_compiled_models_and_packages_that_archivers_make(name, tmp_path):
    folder = load_case(name).path().parent
    for model in folder.glob("model.ml*[ec]"):
        files = files_below(model, f"{model.name}/") | {"__MACOSX/._model": b"x", f"{model.name}/.DS_Store": b"y"}
        path = zipped(tmp_path / f"{model.name}.zip", files, DEFLATED, folders=[model.name])
        same(milblob.load(path), milblob.load(model))
        assert milblob.content_hash(path) == milblob.content_hash(model)
        assert milblob.diff(path, model).is_same


def test_stored_members_are_mapped_and_a_tensor_of_a_remote_one_costs_its_own_bytes(package, tmp_path):
    path = zipped(tmp_path / "m.zip", files_below(package))
    with serving({"m.zip": path.read_bytes()}) as server:
        with milblob.open(f"{server.url}/m.zip") as model:
            model["w0"].read()
        assert server.moved() < 450_000 < path.stat().st_size
    with milblob.open(path) as model:
        assert not model["w0"].read().flags.owndata


def test_command_line_takes_zips(package, tmp_path, capsys, monkeypatch):
    zipped(tmp_path / "m.zip", files_below(package))
    monkeypatch.chdir(tmp_path)
    assert main(["ls", "-v", "m.zip"]) == 0
    out = capsys.readouterr().out
    assert f"m.zip/{FILE}" in out and "milblob-" not in out
    assert main(["hash", "-q", "m.zip", str(package)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first.split()[0] == second.split()[0] and first.split()[1] == "m.zip"


def test_writing_to_a_zip_is_refused(package, tmp_path):
    path = zipped(tmp_path / "m.zip", files_below(package))
    with pytest.raises(ValueError, match="expected a local model"):
        milblob.open(path, "r+")


def test_commands_that_write_advise_to_unzip(package, tmp_path, capsys):
    path = zipped(tmp_path / "m.zip", files_below(package))
    assert main(["repack", str(path), "-o", str(tmp_path / "out.mlpackage")]) == 2
    err = capsys.readouterr().err
    assert "got a zip archive of a Core ML model (unzip it" in err and "zip.zip" not in err


def test_folder_with_the_name_of_a_zip_is_a_folder(package, tmp_path):
    os.rename(package, tmp_path / "m.zip")
    assert list(milblob.load(tmp_path / "m.zip")) == ["w0", "w1", "w2"]


# --------------------------------------------------------------------------------------------------------------- hostile


def refused(path, kind=milblob.FormatError):
    with pytest.raises(kind) as caught:
        milblob.load(path)
    assert str(path) in str(caught.value), str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    "name", ["../secret", "/secret", "a/../../secret", "a\\..\\secret", "c:/secret", "a//b", "./a"]
)
def test_names_that_lead_out_are_refused(package, tmp_path, name):
    assert "inside" in refused(zipped(tmp_path / "m.zip", {**files_below(package), name: b"x"}))


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_names_that_occur_twice_are_refused(package, tmp_path):
    path = tmp_path / "m.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in [*files_below(package).items(), ("Manifest.json", b"{}")]:
            archive.writestr(name, data)
    assert "twice" in refused(path)
    assert "both" in refused(zipped(tmp_path / "n.zip", {**files_below(package), "Data": b"x"}))


def test_links_are_refused(package, tmp_path):
    path = tmp_path / "m.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files_below(package).items():
            info = zipfile.ZipInfo(name)
            if name == FILE:
                info.external_attr, data = 0o120777 << 16, b"/etc/passwd"
            archive.writestr(info, data)
    assert "link" in refused(path)


def edited(path, find, change, count=1):
    data = bytearray(path.read_bytes())
    at = -1
    for _ in range(count):
        at = data.index(find, at + 1)
    change(data, at)
    path.write_bytes(data)
    return path


def test_members_that_overlap_are_refused(package, tmp_path):
    path = zipped(tmp_path / "m.zip", {"Manifest.json": b"{}", "Manifest.json2": b"PK" + bytes(100)})
    first = path.read_bytes().index(b"PK\1\2")

    def change(data, at):
        struct.pack_into("<II", data, first + 20, 100, 100)
        struct.pack_into("<II", data, 18, 100, 100)

    assert "overlap" in refused(edited(path, b"PK\1\2", change))


def test_local_header_that_disagrees_is_refused(package, tmp_path):
    def rename(data, at):
        data[at] ^= 1

    path = edited(zipped(tmp_path / "m.zip", files_below(package)), b"Manifest.json", rename)
    assert "the same as in the directory" in refused(path)


@pytest.mark.parametrize("shift", [-1, 1])
def test_sizes_that_lie_are_refused(package, tmp_path, shift):
    def change(data, at):
        for offset in (data.index(b"PK\1\2") + 24, 22):
            size = struct.unpack_from("<I", data, offset)[0]
            struct.pack_into("<I", data, offset, size + shift)

    path = zipped(tmp_path / "m.zip", {"Manifest.json": bytes(5000), **files_below(package)}, DEFLATED)
    assert "zip" in refused(edited(path, b"PK\1\2", change))


def test_wrong_checksum_is_refused(package, tmp_path):
    path = tmp_path / "m.zip"
    zipped(path, files_below(package), DEFLATED)
    with zipfile.ZipFile(path) as archive:
        row = archive.getinfo(FILE)

    def change(data, at):
        data[at] ^= 255

    assert "CRC-32" in refused(edited(path, struct.pack("<I", row.CRC), change, count=2))


def test_bombs_are_bounded_by_the_budget(package, tmp_path, monkeypatch):
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    chunk = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)  # after which it may come again
    packed = 128 * chunk + packer.flush()
    path = tmp_path / "m.zip"
    zipped(path, {**files_below(package), "Data/x": b""}, DEFLATED)
    with zipfile.ZipFile(path, "a", STORED) as archive:
        archive.writestr("Data/com.apple.CoreML/model2", packed)
    manifest = (package / "Manifest.json").read_bytes().replace(b"model.mlmodel", b"model2")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("Manifest.json", manifest)
        info = zipfile.ZipInfo("Data/com.apple.CoreML/model2")
        archive.writestr(info, packed)

    data = bytearray(path.read_bytes())
    for signature, method, size, name in ((b"PK\3\4", 8, 22, 30), (b"PK\1\2", 10, 24, 46)):
        at = -1
        while (at := data.find(signature, at + 1)) >= 0:
            if data[at + name : at + name + 28] == b"Data/com.apple.CoreML/model2":
                struct.pack_into("<H", data, at + method, 8)
                struct.pack_into("<I", data, at + size, 128 << 24)
    path.write_bytes(data)
    with pytest.raises(milblob.LimitError):
        milblob.load(path)
    with pytest.raises(milblob.LimitError):
        milblob.load(path, max_nbytes=1000)


def test_other_archives_are_refused(package, tmp_path):
    for name, data in {
        "empty": b"",
        "text": b"PK no",
        "cut": zipped(tmp_path / "m.zip", files_below(package)).read_bytes()[:-30],
    }.items():
        path = tmp_path / f"{name}.zip"
        path.write_bytes(data)
        refused(path)
    assert "unzip" in refused(zipped(tmp_path / "none.zip", {"a.txt": b""}), milblob.UnsupportedError)
    files = {**files_below(package, "a.mlpackage/"), **files_below(package, "b.mlpackage/")}
    assert "2 of them" in refused(zipped(tmp_path / "two.zip", files))
    with zipfile.ZipFile(tmp_path / "bz.zip", "w", zipfile.ZIP_BZIP2) as archive:
        for name, data in files_below(package).items():
            archive.writestr(name, data)
    refused(tmp_path / "bz.zip", milblob.UnsupportedError)


def test_random_damage_is_an_error_or_the_right_values(package, tmp_path):
    small = load_case("functions").path().parent / "model.mlpackage"
    data = io.BytesIO()
    zipped(data, files_below(small), DEFLATED)
    expected = milblob.load(small)
    random = np.random.default_rng(1)
    path = tmp_path / "m.zip"
    for _ in range(sized(40, 150)):
        damaged = bytearray(data.getvalue())
        for _ in range(int(random.integers(1, 4))):
            damaged[int(random.integers(len(damaged)))] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        try:
            found = milblob.load(path)
        except (milblob.MilblobError, OSError):
            continue
        same(found, expected)


def test_empty_archive_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "m.zip", "w"):
        pass
    with pytest.raises(milblob.UnsupportedError, match="expected one .mlpackage"):
        milblob.open(tmp_path / "m.zip")


@pytest.mark.parametrize("name", [b"\0", b"\0x"])
def test_member_without_a_name_is_refused(package, tmp_path, name):
    path = tmp_path / "m.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x" * len(name), b"")
        for member, data in files_below(package, "m.mlpackage/").items():
            archive.writestr(member, data)
    data = path.read_bytes()
    for at in (data.index(b"PK\3\4") + 30, data.index(b"PK\1\2") + 46):
        data = data[:at] + name + data[at + len(name) :]
    path.write_bytes(data)
    with pytest.raises(milblob.FormatError, match="a path inside the directory, got ''"):
        milblob.open(path)


@pytest.mark.parametrize("method", [STORED, DEFLATED])
def test_session_runs_a_model_that_is_not_a_local_file(tmp_path, method):
    pytest.importorskip("onnxruntime", reason=WITHOUT["onnxruntime"])
    archive = zipped(tmp_path / "m.zip", files_below(DEMO), method)

    def predicted(source):
        with milblob.open(source) as model:
            return milblob.Session(model).predict({"tokens": np.zeros((1, 16), np.int32)})

    expected = predicted(DEMO)
    with serving({"m.zip": archive.read_bytes(), **files_below(DEMO, "m.mlpackage/")}) as server:
        for source in (archive, f"{server.url}/m.zip", f"{server.url}/m.mlpackage"):
            same(predicted(source), expected)
