"""Whole files of a remote model in a local directory: from servers without ranges too, and resumed where it ended."""

import json
import os
import pathlib
import signal
import subprocess
import sys

import fsspec
import pytest

import milblob
from cases import load_case
from milblob.cli import main
from milblob.remote import http
from milblob.storage import renaming
from remote_server import files_below, serving
from repacking import FILE, simple_package

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture
def package(tmp_path):
    return simple_package(tmp_path, [os.urandom(1 << 20) for _ in range(3)])


@pytest.fixture
def server(package, monkeypatch):
    monkeypatch.setattr(http, "_FIRST_WAIT_S", 0.001)
    with serving(files_below(package, "m.mlpackage/")) as server:
        server.model = f"{server.url}/m.mlpackage"
        server.weights = f"m.mlpackage/{FILE}"
        yield server


@pytest.mark.parametrize("has_ranges", [True, False])
def test_files_are_those_of_the_server(server, package, tmp_path, has_ranges):
    server.has_ranges = has_ranges
    found = milblob.download(f"{server.model}?key=secret", tmp_path / "into")
    assert files_below(tmp_path / "into", "") == server.files
    assert found.hash == milblob.content_hash(package).model and found.path == str(tmp_path / "into" / "m.mlpackage")
    assert found.source == server.model and found.files == 3
    assert found.nbytes == found.fetched_nbytes == sum(map(len, server.files.values()))
    assert [path.name for path in (tmp_path / "into").iterdir()] == ["m.mlpackage"]
    with pytest.raises(FileExistsError):
        milblob.download(server.model, tmp_path / "into")
    milblob.download(server.model, tmp_path / "into", force=True)
    assert files_below(tmp_path / "into", "") == server.files


def cut_at(server, nbytes, *, is_changed=False):
    def fault(handler, path, begin, end, number):
        if path != server.weights:
            return False
        data = server.files[path]
        headers = handler.range_headers(path, begin, end, len(data)) if begin else {"ETag": server.etag(path)}
        handler.cut(206 if begin else 200, data[begin : max(begin, nbytes)], headers, len(data) - begin)
        return True

    server.fault = fault


@pytest.mark.parametrize("is_changed", [False, True])
def test_interrupted_download_goes_on_where_it_ended(server, tmp_path, is_changed):
    cut_at(server, 2_000_000)
    with pytest.raises(OSError, match="5 attempts"):
        milblob.download(server.model, tmp_path / "into")
    assert [path.name for path in (tmp_path / "into").iterdir()] == [".milblob-m.mlpackage.download"]
    server.fault = None
    server.log.clear()
    if is_changed:
        server.files[server.weights] = server.files[server.weights][::-1]
        server.etags[server.weights] = '"new"'
    found = None
    if is_changed:  # no model any more: it has no hash, but its files are whole
        found = milblob.download(server.model, tmp_path / "into")
    else:
        found = milblob.download(server.model, tmp_path / "into")
        assert server.moved(FILE) == len(server.files[server.weights]) - 2_000_000
    assert files_below(tmp_path / "into", "") == server.files
    assert bool(found.hash) is not is_changed


def test_cut_connection_is_asked_for_the_rest(server, tmp_path):
    server.fault = None
    counted = []

    def fault(handler, path, begin, end, number):
        if path != server.weights or number > 2:
            return False
        data = server.files[path]
        headers = handler.range_headers(path, begin, end, len(data)) if begin else {"ETag": server.etag(path)}
        handler.cut(206 if begin else 200, data[begin : begin + 500_000], headers, len(data) - begin)
        counted.append(begin)
        return True

    server.fault = fault
    milblob.download(server.model, tmp_path / "into")
    assert files_below(tmp_path / "into", "") == server.files
    assert counted == [0, 500_000, 1_000_000]


@pytest.mark.parametrize("name", ["functions", "containers", "flexible"])
def test_compiled_models_and_single_files(name, tmp_path):
    folder = load_case(name).path().parent
    with serving(files_below(folder)) as server:
        for model in sorted(folder.glob("model*.ml*")):
            found = milblob.download(f"{server.url}/{model.name}", tmp_path / "into")
            assert milblob.content_hash(found.path) == milblob.content_hash(model)
            assert found.hash == milblob.content_hash(model).model


def test_files_of_a_file_system(package, tmp_path):
    system = fsspec.filesystem("memory")
    for name, data in files_below(package, "down.mlpackage/").items():
        system.pipe(f"/{name}", data)
    found = milblob.download("memory://down.mlpackage", tmp_path / "into")
    assert files_below(tmp_path / "into" / "down.mlpackage") == files_below(package)
    assert found.hash == milblob.content_hash(package).model


def test_command_downloads_then_reads(server, package, tmp_path, capsys):
    server.has_ranges = False
    assert main(["ls", server.model]) == 0 or "--download DIR" in capsys.readouterr().err
    assert main(["stats", server.model]) == 2
    assert "--download DIR" in capsys.readouterr().err
    into = tmp_path / "into"
    assert main(["hash", "-q", server.model, "--download", str(into)]) == 0
    digest = milblob.content_hash(package).model
    assert capsys.readouterr().out.split()[0] == digest
    assert main(["ls", server.model, "--download", str(tmp_path / "other")]) == 0
    assert f"content hash {digest}" in capsys.readouterr().err


def test_an_invalid_or_unreachable_url_is_refused(server, package, tmp_path):
    with pytest.raises(ValueError, match="expected a URL"):
        milblob.download(str(package), tmp_path / "into")
    with pytest.raises(FileNotFoundError, match="Manifest"):
        milblob.download(f"{server.url}/none.mlpackage", tmp_path / "into")
    assert not (tmp_path / "into" / "none.mlpackage").exists()


def interrupt(server, tmp_path):
    """Leave the first 2,000,000 bytes of the weights, and return their directory."""
    cut_at(server, 2_000_000)
    with pytest.raises(OSError, match="5 attempts"):
        milblob.download(server.model, tmp_path / "into")
    server.fault = None
    return tmp_path / "into" / ".milblob-m.mlpackage.download"


@pytest.mark.parametrize("state", [b"", b"{", b"[]", b"{}", pytest.param(b"[" * 50_000, id="deep")])
def test_bytes_of_an_unknown_version_never_become_a_part_of_another(server, tmp_path, state):
    """An interrupted call may have left a longer file, whose state is lost; then a second call is interrupted too."""
    staging = interrupt(server, tmp_path)
    (staging / ".state.json").write_bytes(state)
    server.files[server.weights] = bytes(len(server.files[server.weights]))
    server.etags[server.weights] = '"new"'
    cut_at(server, 1_000_000)
    with pytest.raises(OSError, match="5 attempts"):
        milblob.download(server.model, tmp_path / "into")
    server.fault = None
    milblob.download(server.model, tmp_path / "into")
    assert files_below(tmp_path / "into", "") == server.files


def test_file_that_is_longer_than_its_version_is_fetched_again(server, tmp_path):
    staging = interrupt(server, tmp_path)
    state = json.loads((staging / ".state.json").read_text())
    state[server.weights][0] = 1_000
    (staging / ".state.json").write_text(json.dumps(state))
    cut_at(server, 1_000_000)
    with pytest.raises(OSError, match="5 attempts"):
        milblob.download(server.model, tmp_path / "into")
    assert (staging / server.weights).stat().st_size == 1_000_000
    server.fault = None
    milblob.download(server.model, tmp_path / "into")
    assert files_below(tmp_path / "into", "") == server.files


def test_files_that_the_model_no_longer_has_are_not_in_the_result(server, tmp_path):
    staging = interrupt(server, tmp_path)
    other = staging / "m.mlpackage/Data/old/weights.bin"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"x")
    milblob.download(server.model, tmp_path / "into")
    assert files_below(tmp_path / "into", "") == server.files
    assert not (tmp_path / "into/m.mlpackage/Data/old").exists()


def test_what_appears_at_the_destination_during_a_download_is_kept(server, tmp_path):
    target = tmp_path / "into" / "m.mlpackage"

    def appear(name, *_):
        if not name:
            return  # nothing is fetched yet
        target.mkdir(exist_ok=True)
        (target / "mine").write_text("mine")

    with pytest.raises(FileExistsError):
        milblob.download(server.model, tmp_path / "into", progress=appear)
    assert (target / "mine").read_text() == "mine"
    milblob.download(server.model, tmp_path / "into", force=True)
    assert files_below(tmp_path / "into", "") == server.files


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("kind", ["directory", "file", "link", "broken link", "nothing"])
def test_force_replaces_anything_and_leaves_nothing_else(server, tmp_path, monkeypatch, kind, can_exchange):
    if not can_exchange:
        monkeypatch.setattr(renaming, "exchanged", lambda a, b: False)
    target, beside = tmp_path / "into" / "m.mlpackage", tmp_path / "beside"
    target.parent.mkdir()
    beside.mkdir()
    (beside / "mine").write_text("mine")
    if kind == "directory":
        target.mkdir()
        (target / "old").write_text("old")
    elif kind == "file":
        target.write_text("old")
    elif kind != "nothing":
        target.symlink_to(beside if kind == "link" else tmp_path / "none")
    milblob.download(server.model, tmp_path / "into", force=True)
    assert files_below(tmp_path / "into", "") == server.files
    assert os.listdir(tmp_path / "into") == ["m.mlpackage"] and (beside / "mine").read_text() == "mine"


_KILLED = """
import os, signal, sys
import milblob
from milblob.rewrite import download
def die(*_, **more): os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "before": download.place = die
else:
    remove = download.remove_tree
    download.remove_tree = lambda name: die() if name.endswith(".download") else remove(name)
milblob.download(sys.argv[1], sys.argv[2], force=True)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL on Windows: a download that is killed is not tested")
@pytest.mark.parametrize("moment", ["before", "after"])
def test_killed_replacement_leaves_the_old_or_the_new_model_whole(server, tmp_path, moment):
    into = tmp_path / "into"
    milblob.download(server.model, into)
    old = dict(server.files)
    server.files[server.weights] = bytes(len(server.files[server.weights]))
    server.etags[server.weights] = '"new"'
    environment = os.environ | {"PYTHONPATH": str(pathlib.Path(milblob.__file__).parents[1])}
    command = [sys.executable, "-c", _KILLED, server.model, str(into), moment]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert files_below(into / "m.mlpackage", "m.mlpackage/") == (old if moment == "before" else server.files)
    server.files, server.etags[server.weights] = old, '"third"'
    milblob.download(server.model, into, force=True)
    assert files_below(into, "") == old
