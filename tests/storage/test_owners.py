"""storage/owners.py: what root writes over somebody's file or tree still belongs to that one, with the same permissions."""

import os
import stat
import sys

import pytest

from milblob.storage import owners
from milblob.storage.output import NewDirectory, NewFile, NewNamedFile
from outcomes import Case
from thorough import some
from writers import MECHANISMS, WRITERS, act

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0,
    reason="only root gives files to other users: that owners stay is not tested",
)

OWNER = (4321, 4322)


def entries(folder):
    """Path below a directory -> (user, group, mode), the directory itself included."""
    names = [folder, *folder.rglob("*")]
    return {path.relative_to(folder).as_posix(): described(path) for path in names if os.path.lexists(path)}


def described(path):
    status = os.lstat(path)
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def give_away(folder):
    """Everything to another user, who lets nobody else read it."""
    for path in [folder, *folder.rglob("*")]:
        os.chown(path, *OWNER, follow_symlinks=False)
        if not path.is_symlink():
            path.chmod(0o750 if path.is_dir() else 0o640)


@pytest.mark.parametrize(
    "name", some((name for name, writer in WRITERS.items() if writer.is_durable), named=MECHANISMS)
)  # not coremltools' own
def test_every_writer_leaves_things_to_their_owner(tmp_path, name):
    case = Case(name, tmp_path / "run")
    case.make()
    give_away(case.folder)
    before = entries(case.folder)
    act(name, str(case.folder))
    after = entries(case.folder)
    assert case.see() == case.new
    for path, found in after.items():
        parent = os.path.dirname(path) or "."
        if path in before and path != ".":
            assert found == before[path], path
        elif parent != "." and parent in before:  # new in a tree that was replaced; a new file beside is this process'
            assert found[:2] == OWNER, path


def test_a_tree_keeps_what_it_has_names_for(tmp_path):
    old, outside = tmp_path / "old", tmp_path / "outside"
    for folder in (old / "a" / "b", outside):
        folder.mkdir(parents=True)
    for file in (old / "x", old / "a" / "b" / "y", old / "now a directory", outside / "secret"):
        file.write_bytes(b"old")
    (old / "link").symlink_to("x")
    (old / "led out").symlink_to(outside)
    give_away(tmp_path)
    (old / "a").chmod(0o500)
    (old / "x").chmod(0o4604)
    (outside / "secret").chmod(0o666)
    with NewDirectory(str(old), replace=True) as new:
        for folder in ("a/b", "led out", "now a directory"):
            os.makedirs(os.path.join(new.name, folder))
        for file in ("x", "a/b/y", "a/b/new", "led out/secret"):
            with open(os.path.join(new.name, file), "wb") as written:
                written.write(b"new")
            os.chmod(os.path.join(new.name, file), 0o600)
        os.symlink("x", os.path.join(new.name, "link"))
    found = entries(old)
    assert {entry[:2] for entry in found.values()} == {OWNER}
    modes = {path: entry[2] for path, entry in found.items()}
    modes.pop("link")
    assert modes["a"] == 0o700 and modes["x"] == 0o604 and modes["a/b"] == modes["."] == 0o750
    assert modes["a/b/y"] == 0o640 and modes["a/b/new"] == 0o600 and modes["now a directory"] == 0o755
    assert described(outside / "secret") == (*OWNER, 0o666)


@pytest.mark.parametrize("how", [NewFile, NewNamedFile])
def test_a_file_that_cannot_be_given_away_is_written_all_the_same(tmp_path, monkeypatch, how):
    """As for users who are not root; its group may then not write to it either."""
    path = tmp_path / "file"
    path.write_bytes(b"old")
    give_away(tmp_path)
    path.chmod(0o664)

    def fail(*args, **kwargs):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchown", fail)
    with how(str(path), force=True) as new:
        if how is NewFile:
            os.write(new.fd, b"new")
        else:
            with open(new.name, "wb") as file:
                file.write(b"new")
    assert path.read_bytes() == b"new" and described(path) == (0, 0, 0o644)


def test_nothing_is_asked_of_the_system_where_the_owner_is_the_same(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    with path.open("r+b") as file:
        for name in ("fchown", "chown", "fchmod", "chmod"):
            monkeypatch.setattr(os, name, None)
        owners.keep_file(file.fileno(), os.stat(path))
    fd = os.open(tmp_path, os.O_RDONLY)
    owners.keep_tree(fd, str(tmp_path))
    os.close(fd)
