"""storage/mounts.py: a directory with a mount in it is not replaced, since removing the old one would empty the mount."""

import os
import shutil
import subprocess
import sys

import pytest

from milblob.storage import mounts
from milblob.storage.output import NewDirectory
from paths import ROOT
from thorough import some

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="junctions are links there: mounts are not tested")

COMMANDS = {
    "repack": ["repack", "m.mlpackage", "-o", "m.mlpackage", "--align", "4096"],
    "repack another": ["repack", "n.mlpackage", "-o", "m.mlpackage", "--force"],
    "refit": ["refit", "n.mlpackage", "w.npz", "-o", "m.mlpackage", "--force"],
    "extract": ["convert", "n.mlpackage", "-o", "arrays", "--force"],
}


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0,
    reason="only root on Linux mounts: mounts inside packages are not tested",
)
@pytest.mark.parametrize("name", some(COMMANDS, 1))
def test_a_mounted_directory_is_not_emptied(tmp_path, name):
    demo = ROOT / "examples" / "demo.mlpackage"
    for package in ("m.mlpackage", "n.mlpackage"):
        shutil.copytree(demo, tmp_path / package)
    run = [sys.executable, "-m", "milblob"]
    subprocess.run([*run, "convert", demo, "-o", tmp_path / "arrays"], check=True, capture_output=True)
    subprocess.run([*run, "convert", demo, "-o", tmp_path / "w.npz"], check=True, capture_output=True)
    inside = tmp_path / "m.mlpackage" / "Data" / "com.apple.CoreML" / "weights"
    point = tmp_path / "arrays" if name == "extract" else inside
    elsewhere = tmp_path / "else \\ where"
    shutil.copytree(point, elsewhere)
    before = {path.name: path.read_bytes() for path in elsewhere.iterdir()}
    script = 'mount --bind "$1" "$2" && shift 2 && cd "$1" && shift && exec "$@"'
    command = ["unshare", "-m", "sh", "-c", script, "sh", elsewhere, point, tmp_path, *run, *COMMANDS[name]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare:" in done.stderr or "mount:" in done.stderr:
        pytest.skip("nothing can be mounted here: mounts inside packages are not tested")
    assert done.returncode != 0 and "expected a directory without mounts" in done.stderr, done.stderr
    assert {path.name: path.read_bytes() for path in elsewhere.iterdir()} == before and before
    assert not list(tmp_path.glob(".milblob-*"))


def test_mounts_are_found_by_their_table_and_by_their_devices(tmp_path, monkeypatch):
    folder = tmp_path / "a b"
    (folder / "in" / "deep").mkdir(parents=True)
    mounts.require_none(str(folder))
    table = tmp_path / "mountinfo"
    monkeypatch.setattr(mounts, "_TABLE", str(table))
    mounts.require_none(str(folder))  # by devices
    line = "36 35 98:0 / {} rw,noatime master:1 - ext3 /dev/root rw\n"
    for point, is_refused in (
        (tmp_path, False),
        (f"{tmp_path}/a", False),
        (folder, True),
        (folder / "in" / "deep", True),
    ):
        table.write_text(line.format("/") + line.format(str(point).replace(" ", "\\040")))
        if is_refused:
            with pytest.raises(FileExistsError, match="without mounts.*unmount it") as caught:
                mounts.require_none(str(folder))
            assert str(point) in str(caught.value)
            with pytest.raises(FileExistsError, match="without mounts"):
                NewDirectory(str(folder), replace=True)
        else:
            mounts.require_none(str(folder))


def test_a_mount_that_comes_while_a_directory_is_written(tmp_path, monkeypatch):
    folder, table = tmp_path / "old", tmp_path / "mountinfo"
    (folder / "in").mkdir(parents=True)
    monkeypatch.setattr(mounts, "_TABLE", str(table))
    with pytest.raises(FileExistsError, match="without mounts"), NewDirectory(str(folder), replace=True):
        table.write_text(f"36 35 98:0 / {folder}/in rw,noatime master:1 - ext3 /dev/root rw\n")
    assert os.listdir(folder) == ["in"] and sorted(os.listdir(tmp_path)) == ["mountinfo", "old"]
