"""storage/output.py: after any failure the old state or the new one is there, whole; no temporary file stays; one writer at a time."""

import errno
import mmap
import os
import pathlib
import shutil
import stat
import sys

import pytest

import milblob.storage.output
from faults import EACH_FAILURE, generation, generation_of, read_only, temporaries
from milblob import _codec
from milblob.storage.locks import lock
from milblob.storage.output import NewDirectory, NewFile, NewNamedFile, sweep
from thorough import sized, some

OLD, NEW = b"old" * 1000, b"new state " * 2000
posix = pytest.mark.skipif(
    sys.platform == "win32", reason="needs POSIX file locks and links: how results appear is not tested here"
)


# ------------------------------------------------------------------------------------------ actions, run in processes


def write_all(fd, data):
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_file(path, tmpfile=True, force=True, content=None):
    if not tmpfile:
        milblob.storage.output._TMPFILE = 0
    content = NEW if content is None else content
    with NewFile(path, force=force) as new:
        for start in range(0, len(content), 7000):
            write_all(new.fd, content[start : start + 7000])


def replace_through_a_name(path):
    with NewNamedFile(path, True) as new, open(new.name, "wb", buffering=0) as file:
        write_all(file.fileno(), NEW)


def fill(directory, content):
    pathlib.Path(directory, "b").mkdir()
    for name in ("a", "b/c", "b/d"):
        path = pathlib.Path(directory, name)
        with path.open("wb", buffering=0) as file:
            write_all(file.fileno(), content)


def replace_directory(path, replace=True, content=None, exchange=True):
    if not exchange:
        milblob.storage.renaming.exchange = lambda a, b: errno.ENOSYS
    with NewDirectory(path, replace=replace) as new:
        fill(new.name, NEW if content is None else content)


def replace_file_for_ever(path, tmpfile, first):
    for number in range(first, 1 << 30):
        replace_file(path, tmpfile, content=generation(number))


def replace_directory_for_ever(path, first):
    for number in range(first, 1 << 30):
        replace_directory(path, content=generation(number))


def content_of(path):
    """The content of a directory that `fill` made, if it is whole."""
    contents = {file: pathlib.Path(path, file).read_bytes() for file in ("a", "b/c", "b/d")}
    assert sorted(os.listdir(path)) == ["a", "b"] and sorted(os.listdir(os.path.join(path, "b"))) == ["c", "d"]
    assert len(set(contents.values())) == 1, "a mixture"
    return contents["a"]


# ------------------------------------------------------------------------------------------------- every failure point


@pytest.mark.parametrize("mode, code", EACH_FAILURE)
@pytest.mark.parametrize("tmpfile", [True, False])
@pytest.mark.parametrize("exists", [True, False])
def test_file_at_every_call(faults, tmp_path, mode, code, tmpfile, exists):
    path = tmp_path / "out"
    if exists:
        path.write_bytes(OLD)
    exits = set()
    for outcome in faults.at_every_call(replace_file, [str(path), tmpfile], root=tmp_path, mode=mode, code=code):
        found = path.read_bytes() if path.exists() else None
        assert found in (OLD if exists else None, NEW), outcome
        if outcome.exit == "ok":
            assert found == NEW, outcome
        if outcome.exit == "killed":
            sweep(str(tmp_path))
        assert temporaries(tmp_path) == [], outcome
        exits.add((outcome.exit, found == NEW))
        path.unlink(missing_ok=True)
        if exists:
            path.write_bytes(OLD)
    if mode.startswith("kill"):
        assert ("killed", False) in exits
    elif mode != "short":
        assert ("error", False) in exits and ("ok", False) not in exits
    else:
        assert exits == {("ok", True)}


@pytest.mark.parametrize("mode, code", EACH_FAILURE)
def test_file_through_a_name_at_every_call(faults, tmp_path, mode, code):
    path = tmp_path / "out"
    path.write_bytes(OLD)
    for outcome in faults.at_every_call(replace_through_a_name, [str(path)], root=tmp_path, mode=mode, code=code):
        assert path.read_bytes() in (OLD, NEW)
        if outcome.exit == "killed":
            sweep(str(tmp_path))
        assert temporaries(tmp_path) == [], outcome
        path.write_bytes(OLD)


@pytest.mark.parametrize("mode, code", EACH_FAILURE)
@pytest.mark.parametrize("exists", [True, False])
def test_directory_at_every_call(faults, tmp_path, mode, code, exists):
    path = tmp_path / "out"
    if exists:
        path.mkdir()
        fill(path, OLD)
    seen = set()
    for outcome in faults.at_every_call(replace_directory, [str(path)], root=tmp_path, mode=mode, code=code):
        found = content_of(path) if path.exists() else None
        assert found in (OLD if exists else None, NEW), outcome
        if outcome.exit == "ok":
            assert found == NEW
        elif outcome.exit == "killed":
            sweep(str(tmp_path))
        else:
            assert found != NEW, outcome
        assert temporaries(tmp_path) == [], outcome
        seen.add(found)
        shutil.rmtree(path, ignore_errors=True)
        if exists:
            path.mkdir()
            fill(path, OLD)
    assert seen & {OLD, None} or mode == "short"


@pytest.mark.parametrize("mode", ["fail", "fail on"])
def test_directory_without_exchange_at_every_call(faults, tmp_path, mode):
    path = tmp_path / "out"
    path.mkdir()
    fill(path, OLD)
    arguments = [str(path), True, None, False]
    for outcome in faults.at_every_call(replace_directory, arguments, root=tmp_path, mode=mode, code="ENOSPC", turns=1):
        assert content_of(path) == OLD, outcome
        assert temporaries(tmp_path) == [], outcome
    assert content_of(path) == NEW


def test_kill_between_two_renames_loses_nothing(faults, tmp_path):
    """The one gap: without an exchange both states are there, whole, under other names."""
    path = tmp_path / "out"
    path.mkdir()
    fill(path, OLD)
    for outcome in faults.at_every_call(
        replace_directory, [str(path), True, None, False], root=tmp_path, mode="kill after", turns=1
    ):
        sweep(str(tmp_path))
        if path.exists():
            shutil.rmtree(path)
        else:
            (aside,) = tmp_path.glob(".milblob-*.old")
            assert content_of(aside) == OLD, outcome
            shutil.rmtree(aside)
        for rest in tmp_path.glob(".milblob-*.old"):
            assert content_of(rest) == OLD
            shutil.rmtree(rest)
        path.mkdir()
        fill(path, OLD)


# ------------------------------------------------------------------------------------------------------ kill -9, random


@pytest.mark.parametrize("tmpfile", some([True, False], 1))
def test_kill_9_while_a_file_is_replaced(faults, tmp_path, tmpfile):
    path = tmp_path / "out"
    path.write_bytes(generation(0))
    numbers = [0]
    for _ in faults.kill_often(
        replace_file_for_ever,
        lambda: [str(path), tmpfile, numbers[-1] + 1],
        root=tmp_path,
        seed=f"file {tmpfile}",
        count=sized(20, 70),
        is_enough=lambda: numbers[-1] > 5,
        longest_s=0.012,
    ):
        numbers.append(generation_of(path.read_bytes()))
        assert numbers[-1] >= numbers[-2]
        assert len(temporaries(tmp_path)) <= 1  # what the one before left is gone
        sweep(str(tmp_path))
        assert temporaries(tmp_path) == []


def test_kill_9_while_a_directory_is_replaced(faults, tmp_path):
    path = tmp_path / "out"
    path.mkdir()
    fill(path, generation(0))
    numbers = [0]
    for _ in faults.kill_often(
        replace_directory_for_ever,
        lambda: [str(path), numbers[-1] + 1],
        root=tmp_path,
        seed="directory",
        count=sized(20, 80),
        is_enough=lambda: numbers[-1] > 5,
        longest_s=0.025,
    ):
        numbers.append(generation_of(content_of(path)))
        assert numbers[-1] >= numbers[-2]
        assert len(temporaries(tmp_path)) <= 1
        sweep(str(tmp_path))
        assert temporaries(tmp_path) == []


# -------------------------------------------------------------------------------------------------- what is replaced


def test_new_file(tmp_path):
    path = tmp_path / "out"
    with NewFile(str(path)) as new:
        os.write(new.fd, b"abc")
        assert os.pread(new.fd, 3, 0) == b"abc" if hasattr(os, "pread") else True
        assert not path.exists()
    assert path.read_bytes() == b"abc" and new.fd == -1
    new.discard()
    assert path.exists()


def test_exception_leaves_everything(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(OLD)
    for make in (
        lambda: NewFile(str(path)),
        lambda: NewDirectory(str(tmp_path / "dir")),
        lambda: NewNamedFile(str(path), True),
    ):
        with pytest.raises(KeyboardInterrupt), make():
            raise KeyboardInterrupt
        assert path.read_bytes() == OLD and os.listdir(tmp_path) == ["out"]


def test_forgotten_file_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(milblob.storage.output, "_TMPFILE", 0)
    new = NewFile(str(tmp_path / "out"))
    assert len(temporaries(tmp_path)) == 1
    del new
    assert temporaries(tmp_path) == []


@pytest.mark.parametrize("tmpfile", [True, False])
def test_without_force_nothing_is_replaced(tmp_path, monkeypatch, tmpfile):
    if not tmpfile:
        monkeypatch.setattr(milblob.storage.output, "_TMPFILE", 0)
    path = tmp_path / "out"
    path.write_bytes(OLD)
    with pytest.raises(FileExistsError, match=r"already exists \(use force=True to replace it\)"):
        NewFile(str(path), force=False)
    path.unlink()
    with pytest.raises(FileExistsError), NewFile(str(path), force=False) as new:
        os.write(new.fd, NEW)
        path.write_bytes(OLD)  # somebody was faster
    assert path.read_bytes() == OLD and temporaries(tmp_path) == []
    path.unlink()
    replace_file(str(path), force=False)
    assert path.read_bytes() == NEW and temporaries(tmp_path) == []


@posix
@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_permissions(tmp_path, mask):
    path, named, directory = tmp_path / "out", tmp_path / "named", tmp_path / "dir"
    before = os.umask(mask)
    try:
        replace_file(str(path))
        replace_through_a_name(str(named))
        replace_directory(str(directory))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(named.stat().st_mode) == 0o666 & ~mask
    assert stat.S_IMODE(directory.stat().st_mode) == 0o777 & ~mask
    path.chmod(0o604)
    named.chmod(0o640)
    directory.chmod(0o751)
    replace_file(str(path))
    replace_through_a_name(str(named))
    replace_directory(str(directory))
    modes = [stat.S_IMODE(p.stat().st_mode) for p in (path, named, directory)]
    assert modes == [0o604, 0o640, 0o751]


@posix
def test_what_a_link_points_to_is_replaced(tmp_path):
    (tmp_path / "other").mkdir()
    target, link = tmp_path / "other" / "target", tmp_path / "link"
    target.write_bytes(OLD)
    link.symlink_to("other/target")
    replace_file(str(link))
    assert link.is_symlink() and target.read_bytes() == NEW
    target.unlink()  # a link that points to nothing yet
    replace_through_a_name(str(link))
    assert link.is_symlink() and target.read_bytes() == NEW
    (tmp_path / "directory").mkdir()
    (tmp_path / "way").symlink_to("directory")
    replace_directory(str(tmp_path / "way"))
    assert (tmp_path / "way").is_symlink() and content_of(tmp_path / "directory") == NEW
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError) as caught:
        NewFile(str(tmp_path / "round"))
    assert caught.value.errno == errno.ELOOP


@posix
def test_other_links_and_views_keep_the_old_bytes(tmp_path):
    path, other = tmp_path / "out", tmp_path / "other"
    path.write_bytes(OLD)
    os.link(path, other)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        replace_file(str(path))
        assert view[:] == OLD
    assert other.read_bytes() == OLD and path.read_bytes() == NEW
    with path.open("rb") as source, NewFile(str(path)) as new:  # the source is the destination
        os.write(new.fd, source.read()[::-1])
    assert path.read_bytes() == NEW[::-1]
    os.link(other, tmp_path / "third")  # the source is another link of the destination
    with other.open("rb") as source, NewFile(str(tmp_path / "third")) as new:
        os.write(new.fd, source.read() * 2)
    assert other.read_bytes() == OLD and (tmp_path / "third").read_bytes() == OLD * 2


@posix
def test_only_regular_files_and_directories_are_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(OLD)
    (tmp_path / "directory").mkdir()
    for path, words in (("pipe", "a device, a pipe"), ("directory", "a directory")):
        for make in (lambda: NewFile(str(tmp_path / path)), lambda: NewNamedFile(str(tmp_path / path), True)):  # noqa: B023
            with pytest.raises(FileExistsError, match=words):
                make()
    with pytest.raises(FileExistsError, match="expected a regular file or nothing"):
        NewFile(os.devnull)
    with pytest.raises(FileExistsError, match="expected a directory or nothing, got a file"):
        NewDirectory(str(tmp_path / "file"), replace=True)
    with pytest.raises(FileExistsError, match="already exists"):
        NewDirectory(str(tmp_path / "directory"))
    for make in (NewFile, NewDirectory):
        with pytest.raises(FileNotFoundError, match="expected a directory .*, got none"):
            make(str(tmp_path / "none" / "out"))
    assert sorted(os.listdir(tmp_path)) == ["directory", "file", "pipe"]


def test_directory_that_appears_during_the_write_is_kept(tmp_path):
    path = tmp_path / "out"
    with pytest.raises(OSError), NewDirectory(str(path)) as new:
        fill(new.name, NEW)
        path.mkdir()
        fill(path, OLD)
    assert content_of(path) == OLD and temporaries(tmp_path) == []


@posix
def test_read_only_directory(tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    (inside / "out").write_bytes(OLD)
    (inside / "dir").mkdir()
    with read_only(inside):
        for change in (replace_file, replace_through_a_name):
            for name in ("out", "new"):
                with pytest.raises(PermissionError):
                    change(str(inside / name))
        for name in ("dir", "other"):
            with pytest.raises(PermissionError):
                replace_directory(str(inside / name))
        assert (inside / "out").read_bytes() == OLD and sorted(os.listdir(inside)) == ["dir", "out"]


# ---------------------------------------------------------------------------------------------------------- two writers


@posix
def test_lock(tmp_path):
    path = tmp_path / "out"
    path.write_bytes(OLD)
    first, second = (os.open(path, os.O_RDWR) for _ in range(2))
    try:
        lock(first, str(path))
        with pytest.raises(BlockingIOError, match="only writer, got another one") as caught:
            lock(second, str(path))
        assert caught.value.filename == str(path)
        with pytest.raises(BlockingIOError):
            replace_file(str(path))
        assert path.read_bytes() == OLD and os.listdir(tmp_path) == ["out"]
        with NewFile(str(path), locked=True) as new:  # whoever holds it may
            os.write(new.fd, NEW)
        assert path.read_bytes() == NEW
        os.close(first)
        with pytest.raises(FileNotFoundError, match="got another by that name"):
            lock(second, str(path))  # what was opened has been replaced
    finally:
        os.close(second)


@posix
def test_directory_lock(tmp_path):
    path = tmp_path / "out"
    path.mkdir()
    fill(path, OLD)
    fd = os.open(path, os.O_RDONLY)
    lock(fd, str(path))
    with pytest.raises(BlockingIOError):
        replace_directory(str(path))
    assert content_of(path) == OLD and os.listdir(tmp_path) == ["out"]
    os.close(fd)
    replace_directory(str(path))
    assert content_of(path) == NEW


def test_two_writers_at_once(tmp_path):
    path = str(tmp_path / "out")
    with NewFile(path) as first:
        with NewFile(path) as second:
            write_all(first.fd, OLD)
            write_all(second.fd, NEW)
        assert pathlib.Path(path).read_bytes() == NEW
    assert pathlib.Path(path).read_bytes() == OLD and os.listdir(tmp_path) == ["out"]
    directory = str(tmp_path / "dir")
    with NewDirectory(directory, replace=True) as one, NewDirectory(directory, replace=True) as two:
        fill(one.name, OLD)
        fill(two.name, NEW)
    assert content_of(directory) == OLD and temporaries(tmp_path) == []


# ---------------------------------------------------------------------------------------------------------------- sweep


@posix
def test_sweep_leaves_what_is_in_use_and_what_is_not_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(milblob.storage.output, "_TMPFILE", 0)
    kept = [
        ".milblob-mine.tmp",
        ".milblob-0123456789abcdef.old",
        ".milblob-0123456789ABCDEF.tmp",
        "x.milblob-0123456789abcdef.tmp",
    ]
    for name in kept:
        (tmp_path / name).touch()
    left = tmp_path / ".milblob-0123456789abcdef.tmp"
    left.mkdir()
    fill(left, OLD)
    (tmp_path / ".milblob-fedcba9876543210.tmp").write_bytes(OLD)
    (tmp_path / ".milblob-00000000000000aa.tmp").symlink_to(kept[0])  # not one of ours, and not followed
    with NewFile(str(tmp_path / "out")) as new, NewDirectory(str(tmp_path / "dir")) as directory:
        in_use = [os.path.basename(new._name), os.path.basename(directory.name)]
        sweep(str(tmp_path))
        assert sorted(os.listdir(tmp_path)) == sorted([*kept, *in_use, ".milblob-00000000000000aa.tmp"])
    (tmp_path / ".milblob-00000000000000aa.tmp").unlink()
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "dir", "out"])
    sweep(str(tmp_path / "none"))


def test_exchange(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.write_bytes(OLD)
    code = _codec.exchange(os.fsencode(first), os.fsencode(second))
    if sys.platform in ("linux", "darwin"):
        assert code == 0 and first.is_file() and second.is_dir()
    else:
        assert code == errno.ENOSYS and first.is_dir()
    assert _codec.exchange(os.fsencode(tmp_path / "none"), os.fsencode(second)) in (errno.ENOENT, errno.ENOSYS)
