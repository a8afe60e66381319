"""Reading never writes: no function and no command that reads changes a byte, a time or a name of a model.

The functions are those of public_calls.py, which has every public one; the commands are those of the parser, by the
examples in their help. Each is run on a sound model and on one with an interrupted change, which it must refuse.
"""

import contextlib
import importlib
import os
import pathlib
import shutil
import sys
import threading
import warnings

import numpy as np
import pytest

import milblob
import milblob.onnx
import milblob.tvm
import tvm_archives
from editable_packages import assign, assign_in, make_package, number_of
from example_files import NAMES, arguments_of, make_files
from milblob.cli import main
from milblob.storage import journal, pending
from paths import DEMO
from public_calls import CALLS as EVERY

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="the model's lock is a lock of its directory, which Windows lacks: not tested"
)

CALLS = {name: call for name, call in EVERY.items() if not name.startswith("onnx.convert ")}
CALLS["onnx.convert"] = lambda path, out: milblob.onnx.convert(path, out / "m.onnx")  # not beside the model
READERS = sorted(CALLS.keys() - {"recover"})
RUNNING = ("Session", "OutputSensitivity", "verify", "onnx.")
"""What these import is not forked."""


def state_of(folder):
    """Everything below a folder and the folder itself: name -> (mode, inode, size, times, contents)."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        times = status.st_mtime_ns, status.st_ctime_ns
        found[str(path)] = (status.st_mode, status.st_ino, status.st_size, times, content)
    return found


def interrupt(change):
    """Run a change in place that ends when its journal is complete and nothing of it is applied."""

    def die(*_):
        raise KeyboardInterrupt

    kept, journal._apply = journal._apply, die
    try:
        with contextlib.suppress(KeyboardInterrupt):
            change()
    finally:
        journal._apply = kept


def interrupt_package(path):
    """Leave the journal of new values for one weight."""

    def change():
        with milblob.open(path, "r+") as model:
            name = next(name for name, tensor in model.items() if tensor.is_blob and tensor.chain is None)
            model[name] = np.ones(model[name].shape, model[name].dtype)

    interrupt(change)
    assert list(path.rglob(f"*{pending.JOURNAL}"))


def interrupt_archive(path):
    """The same for a parameter of an unpacked archive."""

    def change():
        with milblob.tvm.open(path) as library:
            parameters = library.modules["default"].params
            library.with_params({name: parameters[name].read() + 1 for name in parameters}, path)

    interrupt(change)
    assert (path / pending.JOURNAL).exists()


def call(name, path, out):
    """Call a function that reads; the name of the exception, or None. An action of the child, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = CALLS[name](pathlib.Path(path), pathlib.Path(out))
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return repr(found)


def require_refused(name, said, is_other_kind):
    """A model with an interrupted change is refused, or is a finding of `check`."""
    found = "PendingChangeError" in said or "interrupted change" in said or "error[pending-change]" in said
    assert found or is_other_kind, (name, said)


@pytest.fixture
def out(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


@pytest.mark.parametrize("name", READERS)
@pytest.mark.sample(16)
def test_no_function_that_reads_changes_a_model(tmp_path, out, name):
    path = shutil.copytree(DEMO, tmp_path / "models" / "m.mlpackage")
    before = state_of(path.parent)
    call(name, path, out)
    assert state_of(path.parent) == before
    interrupt_package(path)
    before = state_of(path.parent)
    said = call(name, path, out)
    assert state_of(path.parent) == before
    if name != "EditableModel":  # which is given a copy, and completes the change there
        require_refused(
            name, said, name.startswith("tvm.") or name in ("refit a model", "open_arrays")
        )  # which takes no model


@pytest.mark.parametrize("name", READERS)
@pytest.mark.sample(8)
def test_no_function_that_reads_changes_an_archive(tmp_path, out, name):
    files = tvm_archives.files_of()
    (tmp_path / "models").mkdir()
    path = tvm_archives.make(tmp_path / "models" / "m", files, "directory")
    before = state_of(path.parent)
    is_other_kind = any(kind in call(name, path, out) for kind in ("Error", "not-a-model"))  # most want a model
    assert state_of(path.parent) == before
    interrupt_archive(path)
    before = state_of(path.parent)
    said = call(name, path, out)
    assert state_of(path.parent) == before
    require_refused(name, said, is_other_kind)


@pytest.mark.parametrize("reader", [milblob.tvm.open_params, milblob.tvm.read_params, milblob.load, milblob.check])
def test_a_file_of_parameters_is_refused_too(tmp_path, reader):
    """It is read alone, and the journal is in the directory of its archive."""
    path = tvm_archives.make(tmp_path / "m", tvm_archives.files_of(), "directory")
    interrupt_archive(path)
    (file,) = (path / "parameters").iterdir()
    before = state_of(path)
    try:
        (finding,) = reader(file)
        assert (finding.code, finding.file) == ("pending-change", str(path / pending.JOURNAL))
    except milblob.PendingChangeError as error:
        assert error.journal == str(path / pending.JOURNAL)
    assert state_of(path) == before
    (change,) = milblob.recover(file).changes
    assert change.files == (str(file),)
    reader(file) if reader is not milblob.load else None


@pytest.mark.parametrize("name", [name for name in READERS if not name.startswith(RUNNING)])
@pytest.mark.parametrize("is_pending", [False, True])
@pytest.mark.sample(8)
def test_no_system_call_of_a_reader_changes_anything(faults, tmp_path, out, name, is_pending):
    """As the preloaded library counts them: create, write, truncate, rename, link, change of a mode, sync, removal."""
    path = shutil.copytree(DEMO, tmp_path / "models" / "m.mlpackage")
    if is_pending:
        interrupt_package(path)
    given = [name, str(path), str(out)]
    outcome = faults.run(call, given, root=path.parent, kinds=("changes", "removes"))
    assert (outcome.exit, outcome.names) == ("ok", []), outcome


# ------------------------------------------------------------------------------------------------------------- commands


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory with the files that the examples name, each model with an interrupted change."""
    folder = tmp_path_factory.mktemp("examples")
    make_files(folder)
    for path in folder.glob("*.mlpackage"):
        interrupt_package(path)
    return folder


def examples_of(name):
    module = importlib.import_module(f"milblob.cli.commands.{name.replace('-', '_').replace(' ', '_')}")
    return module.EXAMPLES


EXAMPLES = [(name, example) for name in NAMES if name != "batch" for example in examples_of(name)]


@pytest.mark.sample(18)
@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_no_command_that_reads_changes_a_model(cli, files, tmp_path, monkeypatch, name, example):
    folder = shutil.copytree(files, tmp_path / "files")
    monkeypatch.chdir(folder)
    before = state_of(folder)
    status, out, err = cli(*arguments_of(example))
    after = {path: state for path, state in state_of(folder).items() if path in before and path != str(folder)}
    completes = name == "recover" or (name == "refit" and "--dry-run" not in example)
    if completes:
        assert status == 0 and "completed an interrupted change of Model.mlpackage" in err
        assert not (folder / "Model.mlpackage" / pending.JOURNAL).exists()
        after = {path: state for path, state in after.items() if "Model.mlpackage" not in path}
    elif ".mlpackage" in example:
        assert status == (1 if name == "check" else 2)
        assert "interrupted change" in out + err and "milblob recover" in out + err
        assert state_of(folder) == before  # no output either
    else:
        assert status == 0, err
    assert after == {path: before[path] for path in after}
    assert len(after) == len([path for path in before if not completes or "Model.mlpackage" not in path]) - 1


@pytest.mark.parametrize("command", [["check"], ["hash"], ["repack", "--gc"]])
def test_a_batch_reports_an_interrupted_change_and_changes_no_model(files, tmp_path, monkeypatch, capsys, command):
    folder = shutil.copytree(files, tmp_path / "files")
    monkeypatch.chdir(folder)
    before = state_of(folder)
    status = main(["batch", *command, "--", "Model.mlpackage", "--into", str(tmp_path / "out")])
    out, err = capsys.readouterr()
    results = [path.read_text() for path in (tmp_path / "out").glob("*.json")]
    assert status == (1 if command == ["check"] else 2)
    assert "interrupted change" in "".join([out, err, *results]) and "milblob recover" in "".join([out, err, *results])
    assert state_of(folder) == before


@pytest.mark.parametrize("name", ["refit", "repack", "compress"])
def test_a_command_that_changes_a_model_in_place_completes_the_change_first(cli, files, tmp_path, name):
    """Also with -k, for which it looks at the names before it does anything."""
    folder = shutil.copytree(files, tmp_path / "files")
    path = str(folder / "Model.mlpackage")
    rest = {
        "refit": [str(folder / "new.safetensors"), "--cast", "-k", "*"],
        "repack": ["-o", path, "--cast", "float32=float16", "-k", "*"],
        "compress": ["-o", path, "--int8", "-k", "*"],
    }[name]
    status, _, err = cli(name, path, *rest)
    assert status == 0 and f"completed an interrupted change of {path}" in err
    assert not list(folder.glob("Model.mlpackage/**/*milblob-*"))
    milblob.load(path)


def test_recover_reports_what_it_does(cli, files, tmp_path):
    folder = shutil.copytree(files, tmp_path / "files")
    path, other = str(folder / "Model.mlpackage"), str(folder / "Half.mlpackage")
    status, out, err = cli("recover", path, other, "-v")
    assert (status, out) == (0, "")
    assert err.count("completed an interrupted change of") == 2 and err.count("weight.bin") == 2
    assert cli("recover", path) == (0, "", f"milblob: no change of {path} is pending\n")
    assert cli("recover", path, "-q") == (0, "", "")
    status, _, err = cli("recover", str(folder / "none.mlpackage"))
    assert status == 2 and "none.mlpackage" in err
    (folder / "Model.mlpackage" / pending.JOURNAL).write_bytes(b"junk")
    status, _, err = cli("recover", path)
    assert status == 2 and "journal: expected a header" in err and pending.JOURNAL in err


# ------------------------------------------------------------------------------------------------- writers that are at work


@pytest.fixture
def package(tmp_path):
    return make_package(tmp_path)


def test_readers_wait_for_a_writer_that_is_at_work(package, monkeypatch):
    """They return all new values, and report nothing; the lock of the journal says that it is not an interrupted change."""
    apply, is_there, may_go_on = journal._apply, threading.Event(), threading.Event()

    def apply_later(*args):
        is_there.set()
        assert may_go_on.wait(60)
        apply(*args)

    monkeypatch.setattr(journal, "_apply", apply_later)
    writer = threading.Thread(target=assign, args=(package, 1))
    writer.start()
    assert is_there.wait(60)
    monkeypatch.setattr(pending, "_WAIT_S", 0.05)
    with pytest.raises(BlockingIOError, match="got one still at work") as caught:
        milblob.load(package)
    assert caught.value.filename == os.path.realpath(package / pending.JOURNAL)
    monkeypatch.setattr(pending, "_WAIT_S", 60)
    found = []
    reader = threading.Thread(target=lambda: found.append(number_of(package)))
    reader.start()
    reader.join(0.1)
    assert reader.is_alive() and not found
    may_go_on.set()
    for thread in (writer, reader):
        thread.join(60)
    assert found == [1]


def test_readers_never_take_a_writer_for_an_interrupted_one(package):
    """A journal is locked before it has its name and until it is gone."""
    is_over, met, count = threading.Event(), [], 0

    def keep_reading():
        while not is_over.is_set():
            try:
                milblob.load(package)
            except Exception as error:
                met.append(error)
            nonlocal count
            count += 1

    readers = [threading.Thread(target=keep_reading) for _ in range(2)]
    for reader in readers:
        reader.start()
    for number in range(60):
        with milblob.open(package, "r+") as model:
            assign_in(model, number % 2, ["floats", "bytes", "ints"])
    is_over.set()
    for reader in readers:
        reader.join(60)
    assert met == [] and count > 5


def test_the_lock_ends_with_the_process(faults, package):
    """Killed at its first call after the journal has its name: readers refuse at once."""
    seen = 0
    for number in range(1, 300):
        outcome = faults.run(assign, [str(package), 1], root=package, number=number, mode="kill after")
        if (package / pending.JOURNAL).exists():
            seen += 1
            with pytest.raises(milblob.PendingChangeError):
                milblob.load(package)
            milblob.recover(package)
            assert number_of(package) == 1
            assign(package, 0)
        if outcome.exit == "ok":
            break
    assert seen > 3
