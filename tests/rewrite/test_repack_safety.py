"""milblob.repack: what it replaces and what it never does; links, permissions, other writers; every way to be stopped."""

import concurrent.futures
import contextlib
import errno
import os
import pathlib
import shutil
import stat
import sys
import tempfile
import threading

import numpy as np
import pytest

import milblob
from children import run_child
from faults import temporaries
from milblob import repack
from milblob.model.open_program import OpenProgram
from milblob.rewrite import copying, execute
from milblob.rewrite import tasks as plan
from milblob.storage.locks import lock
from milblob.storage.output import NewDirectory
from repacking import (
    FILE,
    WEIGHTS,
    blobs_of,
    copy_of,
    fixture_path,
    package_of,
    simple_package,
    tree,
    values,
)

pytestmark = pytest.mark.usefixtures("unsynced")

INSIDE = "Data/com.apple.CoreML"
OPTIONS = {"align": 4096, "canonical": True}
posix = pytest.mark.skipif(
    sys.platform == "win32", reason="needs POSIX links, permissions and locks: who may write where is not tested here"
)


@pytest.fixture
def source(tmp_path):
    """A package in a directory of its own."""
    (tmp_path / "s").mkdir()
    return copy_of(fixture_path("weight_files", "model.mlpackage"), tmp_path / "s")


# --------------------------------------------------------------------------------------------------- where it may write


@pytest.mark.parametrize("spelling", ["same", "slash", "dots", "relative", "link", "linked parent"])
def test_source_is_destination(tmp_path, source, spelling, monkeypatch):
    milblob.repack(source, tmp_path / "wanted.mlpackage", **OPTIONS)
    before = values(source)
    place = str(source)
    if spelling == "slash":
        place += "/"
    elif spelling == "dots":
        place = str(source.parent / ".." / "s" / "." / source.name)
    elif spelling == "relative":
        monkeypatch.chdir(source.parent)
        place = source.name
    elif spelling == "link":
        os.symlink(source, tmp_path / "link.mlpackage")
        place = str(tmp_path / "link.mlpackage")
    elif spelling == "linked parent":
        os.symlink(source.parent, tmp_path / "other")
        place = str(tmp_path / "other" / source.name)
    milblob.repack(source, place, **OPTIONS)
    assert tree(source) == tree(tmp_path / "wanted.mlpackage") and values(source) == before
    assert os.listdir(source.parent) == [source.name] and not source.is_symlink()
    if spelling == "link":
        assert os.path.islink(place)
    milblob.repack(place, source, align=64, merge=True)
    assert values(source) == before


def test_weight_file_in_place(tmp_path):
    data, _ = blobs_of((2, bytes(40)), (2, bytes(40)))
    path = tmp_path / "w.bin"
    path.write_bytes(data)
    with milblob.BlobReader(path) as blobs:
        array = blobs.read(64)
        milblob.repack(path, path, dedupe=True)
        assert array.tobytes() == bytes(40)  # what was there before
    assert len(milblob.BlobReader(path)) == 1 and os.listdir(tmp_path) == ["w.bin"]


@posix
def test_other_side_of_a_hard_link(tmp_path):
    """It is another name, so that nothing is replaced without force, and this name keeps what it has."""
    data, _ = blobs_of((2, bytes(40)), (2, bytes(40)))
    path, other = tmp_path / "w.bin", tmp_path / "other.bin"
    path.write_bytes(data)
    os.link(path, other)
    with pytest.raises(FileExistsError, match="use force=True to replace it"):
        milblob.repack(path, other, dedupe=True)
    milblob.repack(path, other, dedupe=True, force=True)
    assert path.read_bytes() == data and len(milblob.BlobReader(other)) == 1
    other.unlink()
    os.link(path, other)
    milblob.repack(path, path, dedupe=True)
    assert other.read_bytes() == data and len(milblob.BlobReader(path)) == 1


@posix
def test_package_whose_files_have_other_names(tmp_path, source):
    """Files are never changed where they are: their other names keep what they have."""
    kept = {}
    for number, path in enumerate(p for p in source.rglob("*") if p.is_file()):
        os.link(path, tmp_path / f"{number}")
        kept[number] = path.read_bytes()
    milblob.repack(source, source, **OPTIONS)
    assert all((tmp_path / str(number)).read_bytes() == data for number, data in kept.items())


def test_destinations_that_are_refused(tmp_path, source):
    before = tree(tmp_path)
    other = tmp_path / "directory"
    other.mkdir()
    (other / "Manifest.json").write_text("of a web page")
    (tmp_path / "fake.mlpackage").mkdir()
    (tmp_path / "fake.mlpackage/thesis.txt").touch()
    (tmp_path / "file.mlpackage").write_text("text")
    copy_of(source, tmp_path, "other.mlpackage")
    before = tree(tmp_path)
    refused = [
        (source / "inside.mlpackage", ValueError, "expected a place outside of models, got one in"),
        (source / "Data/new", ValueError, "expected a place outside of models"),
        (tmp_path / "other.mlpackage/Data/out.mlpackage", ValueError, "expected a place outside of models"),
        (source.parent, ValueError, "expected a place outside of models, got one that holds"),
        (tmp_path, ValueError, "expected a place outside of models, got one that holds"),
        (other, FileExistsError, "expected a .mlpackage to replace, got something else"),
        (tmp_path / "fake.mlpackage", FileExistsError, "expected a .mlpackage to replace"),
        (tmp_path / "file.mlpackage", FileExistsError, "a .mlpackage to replace, got a file"),
        (
            tmp_path / "out.mlmodelc",
            ValueError,
            "expected a name for a mlpackage, such as .mlpackage, got one for a mlmodelc",
        ),
        (tmp_path / "out.bin", ValueError, "got one for a blob"),
        (tmp_path / "none/out.mlpackage", FileNotFoundError, "expected a directory"),
    ]
    for place, error, words in refused:
        for dry_run in (True, False) if error is not FileNotFoundError else (False,):
            with pytest.raises(error) as raised:
                milblob.repack(source, place, **OPTIONS, force=True, dry_run=dry_run)
            assert words in str(raised.value), place
            assert tree(tmp_path) == before, place
    with pytest.raises(FileExistsError, match="use force=True to replace it"):
        milblob.repack(source, tmp_path / "other.mlpackage")
    assert tree(tmp_path) == before


def test_weight_file_inside_a_package_is_not_changed_alone(tmp_path, source):
    """Its offsets are in the Program."""
    before = tree(source)
    for force in (True, False):
        with pytest.raises(ValueError, match="expected a place outside of models, got one in"):
            milblob.repack(source / FILE, source / FILE, align=4096, force=force)
    milblob.repack(source / FILE, tmp_path / "out.bin", align=4096)
    assert tree(source) == before


def test_force_replaces_a_model_by_a_model(tmp_path, source):
    other = copy_of(fixture_path("functions", "model.mlpackage"), tmp_path, "other.mlpackage")
    with milblob.open(other) as opened:
        arrays = {name: tensor.read() for name, tensor in opened.items()}
        kept = {name: array.copy() for name, array in arrays.items()}
        milblob.repack(source, other, **OPTIONS, force=True)
        assert all(np.array_equal(arrays[name], kept[name]) for name in kept)
        assert all(np.array_equal(opened[name].read(), kept[name]) for name in kept)
    assert values(other) == values(source)
    path = tmp_path / "w.bin"
    (tmp_path / "directory").mkdir()
    path.write_bytes(b"anything")
    with pytest.raises(FileExistsError):
        milblob.repack(source / FILE, path)
    milblob.repack(source / FILE, path, force=True)
    assert path.read_bytes() == (source / FILE).read_bytes()
    with pytest.raises(FileExistsError, match="expected a file to replace, got a directory"):
        milblob.repack(source / FILE, other.parent / "s" / ".." / "directory", force=True)


# ------------------------------------------------------------------------------------------------ links and permissions


@posix
@pytest.mark.parametrize("kind", ["file", "absolute file", "folder", "absolute folder", "model", "absolute data"])
@pytest.mark.parametrize("options", [{}, OPTIONS, {"split": "function"}, {"inline": 10**9}], ids=str)
def test_links_inside_a_package(tmp_path, kind, options):
    """What a link leads to is read and written, once; nothing is ever written through a link into the source."""
    source = simple_package(tmp_path, [b"abcd" * 5, b"efgh" * 5])
    inside = source / INSIDE
    absolute = kind.startswith("absolute")
    moved = {"file": ("weights/weight.bin", "weights/real.bin"), "folder": ("weights", "real"), "model": ("model.mlmodel", "real.mlmodel"),
             "data": ("../com.apple.CoreML", "../real")}[kind.removeprefix("absolute ")]  # fmt: skip
    link, real = (pathlib.Path(os.path.normpath(inside / name)) for name in moved)
    link.rename(real)
    link.symlink_to(real if absolute else os.path.relpath(real, link.parent))
    before, held = tree(source), values(source)
    target = tmp_path / "out.mlpackage"
    milblob.repack(source, target, **options)
    assert tree(source) == before and values(target) == held
    for path in [p for p in target.rglob("*") if p.is_symlink()]:
        assert not os.path.isabs(os.readlink(path)) and path.exists(), path
    shutil.rmtree(source)
    assert values(target) == held
    milblob.repack(target, target, **OPTIONS)
    assert values(target) == held


@posix
def test_two_names_for_one_weight_file(tmp_path):
    data, at = blobs_of((2, b"abcd" * 3), (2, b"efgh" * 3))
    tensors = [("a", 11, [3], WEIGHTS, at[0]), ("b", 11, [3], "@model_path/weights/other.bin", at[1])]
    source = package_of(tmp_path, {"main": tensors}, {"weights/weight.bin": data})
    (source / INSIDE / "weights/other.bin").symlink_to("weight.bin")
    target = tmp_path / "out.mlpackage"
    report = milblob.repack(source, target, align=4096, gc=True)
    assert values(target) == values(source) and len(report.files) == 1
    assert os.readlink(target / INSIDE / "weights/other.bin") == "weight.bin"
    milblob.repack(source, target, split="function", force=True)
    assert values(target) == values(source)
    assert os.listdir(target / INSIDE / "weights") == ["main-weight.bin"]


@posix
def test_links_out_of_a_package(tmp_path, source):
    (tmp_path / "notes.txt").write_text("notes")
    (source / "notes.txt").symlink_to(tmp_path / "notes.txt")
    (source / "nowhere").symlink_to("../../none")
    milblob.repack(source, tmp_path / "out.mlpackage", **OPTIONS)
    assert os.readlink(tmp_path / "out.mlpackage/notes.txt") == str(tmp_path / "notes.txt")
    assert os.readlink(tmp_path / "out.mlpackage/nowhere") == "../../none"
    assert (tmp_path / "notes.txt").read_text() == "notes"


@posix
def test_permissions_and_what_else_is_there(tmp_path, source):
    (source / "empty").mkdir(mode=0o750)
    (source / "extra").mkdir()
    (source / "extra/run").write_bytes(b"#!")
    (source / ".hidden").write_bytes(b"")
    for name, mode in (
        ("extra/run", 0o755),
        ("extra", 0o500),
        (FILE, 0o400),
        (f"{INSIDE}/model.mlmodel", 0o640),
        (".hidden", 0o604),
    ):
        os.chmod(source / name, mode)
    os.chmod(source, 0o710)
    for options in ({}, OPTIONS):
        target = tmp_path / f"{len(options)}.mlpackage"
        milblob.repack(source, target, **options)
        for path in [source, *source.rglob("*")]:
            other = target / path.relative_to(source)
            wanted = stat.S_IMODE(path.stat().st_mode) | (0o700 if path.is_dir() else 0)  # its owner can replace it
            assert stat.S_IMODE(other.stat().st_mode) == wanted, path
        assert (target / "extra/run").read_bytes() == b"#!" and list((target / "empty").iterdir()) == []
        shutil.rmtree(target)
    milblob.repack(source, tmp_path / "new.mlpackage", split="function")
    new = tmp_path / "new.mlpackage" / INSIDE / "weights/main-weight.bin"
    assert not (source / INSIDE / "weights/main-weight.bin").exists() and stat.S_IMODE(new.stat().st_mode) == 0o400
    milblob.repack(source, source, **OPTIONS)
    assert stat.S_IMODE(source.stat().st_mode) == 0o710


@posix
def test_pipe_in_a_package(tmp_path, source):
    os.mkfifo(source / "pipe")
    with pytest.raises(milblob.FormatError, match="expected a regular file, got a FIFO"):
        milblob.repack(source, tmp_path / "out.mlpackage")
    assert sorted(os.listdir(tmp_path)) == ["s"]


@posix
def test_target_directory_that_cannot_be_written_to(source):
    """As a user who is not root, because root may write anywhere."""
    code = """
        import os, sys
        import milblob
        milblob.repack(sys.argv[1], sys.argv[3], align=4096)  # brings every module, which somebody else may not read
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            milblob.repack(sys.argv[1], sys.argv[2], align=4096)
        except PermissionError as error:
            print("refused", error.strerror)
    """
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder, "place")
        place.mkdir()
        copied = copy_of(source, folder)
        os.chmod(folder, 0o755)
        os.chmod(place, 0o555)
        assert (
            run_child(code, copied, place / "out.mlpackage", f"{folder}/out.mlpackage") == "refused Permission denied\n"
        )
        assert list(place.iterdir()) == [] and tree(copied) == tree(source)
        os.chmod(place, 0o755)


# -------------------------------------------------------------------------------------------------------- other writers


@posix
def test_other_writers_of_what_is_replaced_are_kept_out(tmp_path, source):
    fd = os.open(source, os.O_RDONLY)
    lock(fd, str(source))
    before = tree(source)
    with pytest.raises(BlockingIOError):
        milblob.repack(source, source, **OPTIONS)
    assert tree(source) == before and temporaries(tmp_path) == []
    milblob.repack(source, tmp_path / "out.mlpackage", **OPTIONS)  # reading it harms nobody
    os.close(fd)
    tried = []

    def progress(name, done, total):
        if not name:  # it has not been opened
            return
        with pytest.raises(BlockingIOError), contextlib.closing(contextlib.ExitStack()) as stack:
            other = os.open(source, os.O_RDONLY)
            stack.callback(os.close, other)
            lock(other, str(source))
        tried.append(True)

    milblob.repack(source, source, **OPTIONS, progress=progress)
    assert tried and tree(source) == tree(tmp_path / "out.mlpackage")


@posix
def test_weight_file_in_place_locks_it(tmp_path):
    path = tmp_path / "w.bin"
    path.write_bytes(blobs_of((2, bytes(40)), (2, bytes(40)))[0])
    before = path.read_bytes()
    fd = os.open(path, os.O_RDONLY)
    lock(fd, str(path))
    with pytest.raises(BlockingIOError):
        milblob.repack(path, path, dedupe=True)
    os.close(fd)
    assert path.read_bytes() == before
    milblob.repack(path, path, dedupe=True)
    assert len(milblob.BlobReader(path)) == 1


def test_source_that_is_replaced_during_the_call(tmp_path, source):
    """One half from the old, one from the new would be neither."""
    other = copy_of(fixture_path("functions", "model.mlpackage"), tmp_path, "other.mlpackage")
    saved = copy_of(source, tmp_path, "saved.mlpackage")
    for options in ({}, OPTIONS):
        started = []

        def progress(name, done, total, started=started):
            if done and not started:
                started.append(True)
                with NewDirectory(str(source), replace=True) as new:
                    shutil.copytree(other, new.name, dirs_exist_ok=True)

        with pytest.raises((milblob.FormatError, FileNotFoundError)):
            milblob.repack(source, tmp_path / "out.mlpackage", **options, progress=progress)
        assert sorted(os.listdir(tmp_path)) == ["other.mlpackage", "s", "saved.mlpackage"]
        assert tree(source) == tree(other)
        shutil.rmtree(source)
        shutil.copytree(saved, source)


@pytest.mark.parametrize("options", [{}, OPTIONS], ids=str)
def test_source_that_is_written_to_during_the_call(tmp_path, source, options):
    path = source / FILE
    started = []

    def progress(name, done, total):
        if done and not started:
            started.append(True)
            with path.open("r+b") as file:
                file.seek(128)
                file.write(b"\x55")
            os.utime(path, ns=(1, 1))

    with pytest.raises(milblob.FormatError, match="unchanged|no change"):
        milblob.repack(source, tmp_path / "out.mlpackage", **options, progress=progress)
    assert os.listdir(tmp_path) == ["s"]


def test_other_files_that_are_written_to_during_the_call(tmp_path, source):
    (source / "notes.txt").write_bytes(b"notes")

    def progress(name, *_):
        if name == "notes.txt":
            with (source / name).open("ab") as file:
                file.write(b" and more")

    with pytest.raises(milblob.FormatError, match="expected no change while it is copied, got one"):
        milblob.repack(source, tmp_path / "out.mlpackage", progress=progress)
    assert os.listdir(tmp_path) == ["s"]


def test_source_that_is_replaced_at_the_end(tmp_path, source):
    """Everything has been read: all the same it may be a mixture of two states of other files."""
    names = sorted(path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file())

    def progress(name, *_):
        if name == names[-1]:
            source.rename(tmp_path / "moved")
            shutil.copytree(tmp_path / "moved", source)

    with pytest.raises(milblob.FormatError, match="expected no change while it is read, got another in its place"):
        milblob.repack(source, tmp_path / "out.mlpackage", progress=progress)
    assert sorted(os.listdir(tmp_path)) == ["moved", "s"]


@posix
def test_what_changes_before_the_lock_is_held(tmp_path, source, monkeypatch):
    module, path = sys.modules[repack.__module__], source / INSIDE / "model.mlmodel"

    def replaced(fd, name):
        data = path.read_bytes()
        path.unlink()
        path.write_bytes(data)

    monkeypatch.setattr(module, "lock", replaced)
    with pytest.raises(milblob.FormatError, match="expected the one that was opened, got another"):
        milblob.repack(source, source, **OPTIONS)

    def none(fd, name):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(module, "lock", none)  # a file system without locks
    before = values(source)
    milblob.repack(source, source, **OPTIONS)
    assert values(source) == before


def test_what_an_interrupted_writer_has_left(tmp_path, source):
    """Its temporary names are not copied; a model with its journal is refused."""
    (source / ".milblob-0123456789abcdef.tmp").write_bytes(b"half")
    (source / f"{INSIDE}/.model.mlmodel.0123456789abcdef.milblob-new").write_bytes(b"half")
    milblob.repack(source, tmp_path / "out.mlpackage")
    assert [path.name for path in (tmp_path / "out.mlpackage").rglob(".*")] == []
    assert values(tmp_path / "out.mlpackage") == values(source)

    (source / ".milblob-journal").write_bytes(b"")
    with pytest.raises(milblob.PendingChangeError):
        milblob.repack(source, tmp_path / "other.mlpackage")
    with pytest.raises(milblob.FormatError, match="journal: expected a header"):
        milblob.repack(source, source)
    with pytest.raises(milblob.FormatError, match="expected no change while it is read, got a journal"):
        list(copying.walk(str(source)))


def test_names_that_are_like_those_of_an_interrupted_writer_are_copied(tmp_path, source):
    """Also into the model's own place, where what is not copied is lost."""
    names = [
        ".milblob-mine.tmp", ".milblob-0123456789ABCDEF.tmp", ".milblob-mine.old", ".milblob-0123456789abcdef.old/whole",
        "mine.milblob-new", ".x.0123456789abcdeg.milblob-new", ".x.0123456789abcdef.milblob-new/y",
    ]  # fmt: skip
    for name in names:
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(name)
    for target in (tmp_path / "out.mlpackage", source):
        milblob.repack(source, target, force=True)
        assert [(target / name).read_text() for name in names] == names


def test_two_at_once(tmp_path, source):
    """Both write the same place: one of them wins, whole; the other one says so or has been replaced."""
    target, results = tmp_path / "out.mlpackage", []
    start = threading.Barrier(2)

    def work(align):
        start.wait()
        try:
            milblob.repack(source, target, align=align, force=True)
            results.append("done")
        except OSError:
            results.append("refused")

    for _ in range(10):
        workers = [threading.Thread(target=work, args=(align,)) for align in (64, 4096)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert values(target) == values(source)
        assert temporaries(tmp_path) == []
    assert "done" in results and len(results) == 20


# --------------------------------------------------------------------------------------------------------------- stopped


class Broken(concurrent.futures.Executor):
    """An executor that takes some tasks and then fails."""

    def __init__(self, count, error):
        self.left, self.error, self.pool = count, error, concurrent.futures.ThreadPoolExecutor(2)

    def submit(self, function, *arguments, **options):
        if self.left == 0:
            raise self.error
        self.left -= 1
        return self.pool.submit(function, *arguments, **options)


@pytest.fixture
def small_tasks(monkeypatch):
    monkeypatch.setattr(plan, "TASK_NBYTES", 64)


@pytest.mark.parametrize("error", [RuntimeError("pool is gone"), KeyboardInterrupt(), MemoryError()])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_executor_that_fails(tmp_path, source, small_tasks, error, count):
    before = tree(source)
    for target in (tmp_path / "out.mlpackage", source):
        with pytest.raises(type(error)):
            milblob.repack(source, target, **OPTIONS, executor=Broken(count, error))
        assert tree(source) == before and os.listdir(tmp_path) == ["s"] and os.listdir(tmp_path / "s") == [source.name]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_progress_that_fails(tmp_path, source, small_tasks, error, at):
    before, calls = tree(source), []

    def progress(*_):
        calls.append(True)
        if len(calls) == at:
            raise error("stop")

    for target in (tmp_path / "out.mlpackage", source):
        calls.clear()
        with pytest.raises(error):
            milblob.repack(source, target, **OPTIONS, progress=progress)
        assert tree(source) == before and os.listdir(tmp_path) == ["s"] and os.listdir(tmp_path / "s") == [source.name]


def test_nothing_is_written_after_a_failure(tmp_path, source, small_tasks, monkeypatch):
    """Workers that are in the middle of something are waited for before the temporary directory goes."""
    running, most, real = [0], [0], execute.run_task

    def slow(task):
        running[0] += 1
        most[0] = max(most[0], running[0])
        try:
            return real(task)
        finally:
            running[0] -= 1

    def progress(*_):
        if most[0]:
            raise RuntimeError("stop")

    monkeypatch.setattr(execute, "run_task", slow)
    with concurrent.futures.ThreadPoolExecutor(4) as pool, pytest.raises(RuntimeError):
        milblob.repack(source, tmp_path / "out.mlpackage", **OPTIONS, executor=pool, progress=progress)
    assert running == [0] and most[0] >= 1 and os.listdir(tmp_path) == ["s"]


def test_pool_that_was_broken_before_is_replaced(tmp_path, source, small_tasks):
    context = __import__("multiprocessing").get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as pool:
        with pytest.raises(concurrent.futures.BrokenExecutor):
            pool.submit(os._exit, 1).result()
        milblob.repack(source, tmp_path / "out.mlpackage", **OPTIONS, executor=pool)
    milblob.repack(source, tmp_path / "here.mlpackage", **OPTIONS)
    assert tree(tmp_path / "out.mlpackage") == tree(tmp_path / "here.mlpackage") and temporaries(tmp_path) == []


def test_error_while_the_result_is_put_together(tmp_path, source, monkeypatch):
    before = tree(source)

    def fail(*_):
        raise OSError(5, "input/output error")

    writing = sys.modules[repack.__module__]
    for module, name in (
        (writing, "set_mode"), (OpenProgram, "edited"), (writing, "copy_entry"), (execute, "make_tasks"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(module, name, fail)
            for target in (tmp_path / "out.mlpackage", source):
                with pytest.raises(OSError, match="input/output error"):
                    milblob.repack(source, target, merge=True)
                assert (
                    tree(source) == before
                    and os.listdir(tmp_path) == ["s"]
                    and os.listdir(tmp_path / "s") == [source.name]
                )
