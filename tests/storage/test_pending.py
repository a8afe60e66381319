"""milblob.storage.pending: an interrupted change is seen by any name; readers refuse it, writers complete it first."""

import contextlib
import errno
import functools
import itertools
import os
import pathlib
import re
import shutil
import stat
import struct
import sys
import tempfile

import numpy as np
import pytest

import milblob
from blob_files import blob_file
from editable_packages import assign, assign_blobs, assign_in, files_of, left, make_package, number_of, recovered_number
from journal_bytes import journal_bytes
from milblob.compat import storage
from milblob.model.editable import EditableModel
from milblob.refitting import refit as refitting
from milblob.storage import journal, journal_format, paths, pending
from milblob.storage.output import NewFile, NewNamedFile
from syntax import nodes
from thorough import sized, some

pytestmark = pytest.mark.skipif(
    sys.platform == "win32",
    reason="the model's lock is a lock of its directory, which Windows lacks: journals are not tested",
)

PACKAGE, DATA = "m.mlpackage", "Data/com.apple.CoreML"
SOMEBODY = 12345  # a user that owns nothing else here
ALL = ("floats", "bytes", "ints")
as_root = pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() != 0,
    reason="only root gives files to other users: whose journals count is not tested",
)


def journals(root):
    return sorted(pathlib.Path(root).rglob(f"*{pending.JOURNAL}"))


def assign_records(path, number):
    """New values for the blobs of a bare weight file."""
    with milblob.open(path, "r+") as opened:
        for name in ("#0", "#1"):
            opened[name] = np.full(opened[name].shape, number, opened[name].dtype)


EVERY = sized(2, 1)
_FIRST: dict[str, int] = {}
"""The first call of an action after which there was a journal; `make test` kills no later tree before it."""


def interrupted(faults, action, arguments, fresh, every=EVERY):
    """Yield the path of a tree in each state, or every few, that a kill leaves while a journal is there."""
    seen = 0
    for number in range(sized(_FIRST.get(action.__name__, 1), 1), 300, every):
        root = fresh()
        outcome = faults.run(action, arguments(root), root=root, number=number, mode="kill after")
        if journals(root):
            seen += 1
            _FIRST.setdefault(action.__name__, number)
            yield root
        if outcome.exit == "ok":
            break
    assert seen >= 4 // every


@pytest.fixture
def trees(tmp_path):
    """A function that makes a new package; how its directory is called is the argument."""
    count = 0

    def make(name=PACKAGE):
        nonlocal count
        count += 1
        folder = tmp_path / str(count)
        folder.mkdir()
        made = make_package(folder)
        return made.rename(folder / name)

    return make


# --------------------------------------------------------------------------------------- a commit that failed on the way


def close_it(opened, path):
    opened.close()


def flush_it(opened, path):
    opened.flush()


def assign_and_flush(opened, path):
    assign_in(opened, 1, ALL)
    opened.flush()


def discard_and_patch(opened, path):
    """What was assigned is forgotten; then bytes are patched in a file that may have been replaced."""
    opened.discard()
    assign_in(opened, 1, ALL)
    opened.close()


def read_it(opened, path):
    for name in opened:
        opened[name].read()


def read_anew(opened, path):
    number_of(path)


def open_anew(opened, path):
    milblob.open(path, "r+").close()


def recover_it(opened, path):
    milblob.recover(path)


SECOND = {
    f.__name__: f
    for f in (close_it, flush_it, assign_and_flush, discard_and_patch, read_it, read_anew, open_anew, recover_it)
}


def fail_and_go_on(path, second, fault=None):
    """Assign, flush, and whatever a program may do when that has failed. In the end everything says the same."""
    opened = milblob.open(path, "r+")
    assign_in(opened, 1, ALL)
    with contextlib.nullcontext() if fault is None else fault():
        try:
            opened.flush()
        except OSError:
            failed = True
        else:
            failed = False
    was_pending = bool(journals(path))
    assert not was_pending or failed
    try:
        SECOND[second](opened, path)
    except (OSError, milblob.FormatError, milblob.PendingChangeError):
        pass
    else:
        # What must be refused while a change is half done; a new writer and `recover` complete it.
        assert not was_pending or second in ("open_anew", "recover_it"), (
            f"{second} after a commit that failed on the way"
        )
    if was_pending and second != "close_it":
        try:
            opened.close()
        except milblob.FormatError as error:
            assert "failed on the way; close it, and complete the change with milblob recover" in str(error)
        else:
            raise AssertionError("expected close to say that a commit failed on the way")
    with contextlib.suppress(OSError, milblob.FormatError, milblob.PendingChangeError):
        opened.close()
    opened.close()  # said once


def in_one_state(path, first=0):
    if journals(path):
        with pytest.raises(milblob.PendingChangeError):
            milblob.open(path)
    number = recovered_number(path)
    milblob.open(path, "r+").close()  # sweeps
    assert number_of(path) == number and journals(path) == [] and left(path) == []
    return number


@pytest.mark.parametrize("second", some(SECOND, 3))
@pytest.mark.parametrize(
    "mode, code, linked",
    some(
        [
            ("fail", "EIO", False),
            ("fail on", "ENOSPC", False),
            ("short then fail", "EDQUOT", False),
            ("fail", "EIO", True),
        ],
        2,
    ),
)
def test_after_a_commit_that_failed(faults, tmp_path, second, mode, code, linked):
    """A fault at every call of the commit, or of the second action: old or new, never some of each."""
    first, path = tmp_path / "first", tmp_path / PACKAGE
    first.mkdir()
    made, numbers, number = make_package(first), set(), sized(1 + list(SECOND).index(second) // 2, 1)
    while True:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(made, path, copy_function=os.link if linked else shutil.copy2)
        outcome = faults.run(fail_and_go_on, [str(path), second], root=path, number=number, mode=mode, code=code)
        assert outcome.exit == "ok", outcome
        numbers.add(in_one_state(path))
        assert number_of(made) == 0, outcome
        if outcome.calls < number:
            break
        number += sized(3, 1)  # of three actions, each meets other calls
    assert number > 15
    assert numbers == ({1} if mode == "fail" else {0, 1})  # what failed once is written by `close`


def nowhere(*_):
    """What `look_above` answers where the system has no lstat."""
    return -errno.ENOSYS


class Failing:
    """Python's questions to the file system, and its removals: the nth below a directory fails, or all from it on."""

    def __init__(self, monkeypatch, root, lasts=False):
        self._monkeypatch, self._root, self._lasts = monkeypatch, os.path.realpath(root), lasts
        self.seen, self.number = 0, 0

    @contextlib.contextmanager
    def at(self, number):
        self.seen, self.number = 0, number
        with self._monkeypatch.context() as patch:
            for name in ("stat", "lstat", "readlink", "access", "scandir", "listdir", "unlink", "replace"):
                patch.setattr(os, name, functools.partial(self._meet, getattr(os, name)))
            patch.setattr(pending._codec, "look_above", nowhere)  # which asks in C; test_faults.py makes that fail
            yield

    def _meet(self, real, path=".", *args, **kwargs):
        if not isinstance(path, int) and os.path.abspath(os.fsdecode(path)).startswith(self._root):
            self.seen += 1
            if self.seen == self.number or (self._lasts and self.seen > self.number):
                raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *args, **kwargs)


def test_a_failing_question_while_a_change_is_completed(faults, trees, monkeypatch):
    """One stat, lstat, readlink or listing fails in `recover`: an error or the new values, never a mixture."""
    for root in list(interrupted(faults, assign, lambda root: [str(root), 1], trees)):
        saved = root.parent / "saved"
        shutil.copytree(root, saved)
        errors, number = 0, 1
        while True:
            failing = Failing(monkeypatch, root)
            with failing.at(number):
                try:
                    values = recovered_number(root)
                except OSError as error:
                    assert error.errno == errno.EIO
                    errors += 1
                else:
                    assert values == 1
            assert recovered_number(root) == 1, number  # done again, with nothing that fails
            shutil.rmtree(root)
            shutil.copytree(saved, root)
            if failing.seen < number:
                break
            number += 1
        assert errors > 20


@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("second", some(SECOND, 2))
def test_a_failing_question_while_a_change_is_written(trees, monkeypatch, second, lasts):
    numbers, number = set(), sized(1 + lasts, 1)
    while True:
        path = str(trees())
        failing = Failing(monkeypatch, path, lasts)
        fail_and_go_on(path, second, lambda failing=failing, number=number: failing.at(number))
        numbers.add(in_one_state(path))
        if failing.seen < number:
            break
        number += sized(2, 1)  # the odd ones fail once in `make test`, the even ones for good
    assert numbers == {1} and number > 20  # what failed is written by `close`


@pytest.mark.parametrize("stays", ["nothing", "unlink", "stat"])
def test_journal_that_has_its_name_and_fails_to_be_synced(trees, monkeypatch, stays):
    """It is taken back; if that fails too, it counts, and what it needs stays."""
    root, commit = trees(), NewFile.commit
    opened = milblob.open(root, "r+")
    assign_in(opened, 1, ALL)

    def failing(real, path, *args, **kwargs):
        if str(path).endswith(pending.JOURNAL) and os.path.realpath(root) in str(path) and is_there:
            raise OSError(errno.EIO, os.strerror(errno.EIO), path)
        return real(path, *args, **kwargs)

    def fail(self):
        commit(self)
        if self.path.endswith(pending.JOURNAL):
            is_there.append(True)
            raise OSError(errno.EIO, os.strerror(errno.EIO), self.path)

    is_there = []
    with monkeypatch.context() as patch:
        patch.setattr(NewFile, "commit", fail)
        if stays != "nothing":
            patch.setattr(os, stays, functools.partial(failing, getattr(os, stays)))
        with pytest.raises(OSError, match="Input/output error"):
            opened.flush()
    assert is_there
    if stays == "nothing":
        assert journals(root) == [] and number_of(root) == 0 and left(root) == []
        opened.flush()
    else:
        assert journals(root) and list(root.rglob(f"*{journal_format.STAGED}"))
        with pytest.raises(milblob.FormatError, match="failed on the way"):
            opened["floats"].read()
        with pytest.raises(milblob.FormatError, match="failed on the way"):
            opened.close()
    opened.close()
    assert in_one_state(root) == 1


@pytest.mark.parametrize("action", [assign, assign_blobs])
def test_writer_that_dies_after_another_has_opened(faults, trees, monkeypatch, action):
    """Without any error: B opens, A dies on the way, B takes the lock."""
    lock, refused, numbers = EditableModel._lock, 0, set()
    for number in range(1, 300):
        path = trees()

        outcomes = []

        def lock_later(self, *args, path=path, number=number, outcomes=outcomes):
            outcomes.append(faults.run(action, [str(path), 1], root=path, number=number, mode="kill after"))
            return lock(self, *args)

        with monkeypatch.context() as patch:
            patch.setattr(EditableModel, "_lock", lock_later)
            try:
                with milblob.open(path, "r+"):
                    pass
            except (milblob.FormatError, milblob.PendingChangeError):
                refused += 1
        milblob.open(path, "r+").close()
        values = milblob.load(path)
        numbers.add(int(values["bytes"][0]))
        if action is assign:
            assert number_of(path) in (0, 1)
        else:
            assert len({*np.unique(values["floats"]), *np.unique(values["bytes"])}) == 1
        assert left(path) == []
        if outcomes[0].exit == "ok":
            break
    assert refused >= 4 and numbers == {0, 1}


def test_no_commit_while_a_change_is_pending(faults, trees):
    """Whoever holds the locks and finds a journal of somebody else's, refuses, and sweeps nothing."""
    for root in interrupted(faults, assign, lambda root: [str(root), 1], trees):
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        real = os.path.realpath(root)
        for path in (f"{DATA}/weights/weight.bin", f"{DATA}/model.mlmodel"):
            change = [journal.Patch(path, 64, b"1")]
            with pytest.raises(milblob.PendingChangeError, match="journal: expected none, got one of an interrupted"):
                journal.commit(real, "", change)
            alone = os.path.join(real, path)
            with pytest.raises(milblob.PendingChangeError, match="journal: expected none"):
                journal.commit(
                    os.path.dirname(alone), os.path.basename(alone), [journal.Patch(os.path.basename(alone), 64, b"1")]
                )
            with pytest.raises(milblob.PendingChangeError, match="journal: expected none"):
                pending.sweep_staged(alone)
        assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
        assert recovered_number(root) == 1


def test_model_that_was_replaced_is_not_written_to(trees):
    """A commit whose descriptors lead to a file that has lost its name would change nothing, and say it did."""
    root = trees()
    opened = milblob.open(root, "r+")
    assign_in(opened, 1, ["floats"])
    (weights,) = root.rglob("weight.bin")
    shutil.copy(weights, weights.with_name("other"))
    os.replace(weights.with_name("other"), weights)
    with pytest.raises(milblob.FormatError, match="expected the one that was opened, got another by that name"):
        opened.flush()
    opened.discard()
    opened.close()
    assert number_of(root) == 0


# -------------------------------------------------------------------------------------------------------------- any name


def ways(root):
    """Paths that lead into a package in all ways: name -> (path, whether it is the whole model)."""
    folder = root.parent
    links = {"package": root, "data": root / DATA, "weights": root / DATA / "weights"}
    for name, target in links.items():
        (folder / f"{name}-link").symlink_to(os.path.relpath(target, folder))
    (folder / "again").symlink_to("package-link")
    (folder / "file-link.bin").symlink_to(root / DATA / "weights" / "weight.bin")
    return {
        "itself": root, "slash": f"{root}/", "relative": os.path.relpath(root), "link": folder / "package-link",
        "link to a link": folder / "again", "roundabout": folder / "weights-link" / ".." / ".." / ".." / ".." / root.name,
        "model file": root / DATA / "model.mlmodel", "link to its folder": folder / "data-link" / "model.mlmodel",
        "weight file": root / DATA / "weights" / "weight.bin", "link to the weights": folder / "weights-link" / "weight.bin",
        "link to the file": folder / "file-link.bin",
    }  # fmt: skip


def check_values(path):
    """Everything that a path gives says 1."""
    values = milblob.load(path)
    if "#0" in values:
        assert {int(v) for name in ("#0", "#1") for v in np.unique(values[name])} == {1}
    else:
        assert {int(v) for name in ("floats", "bytes") for v in np.unique(values[name])} == {1}
        assert set(np.unique(values["ints"])) <= {0, 1000}


WAYS = (
    "itself", "slash", "relative", "link", "link to a link", "roundabout", "model file", "link to its folder",
    "weight file", "link to the weights", "link to the file",
)  # fmt: skip
WRITERS = {
    "the package": (assign, lambda root: [str(root), 1]),
    "its model file": (assign, lambda root: [str(root / DATA / "model.mlmodel"), 1]),
    "its blobs": (assign_blobs, lambda root: [str(root / DATA / "model.mlmodel"), 1]),
    "its weight file": (assign_records, lambda root: [str(root / DATA / "weights" / "weight.bin"), 1]),
}


@pytest.mark.parametrize(
    ("name", "writer"),
    some(
        [
            (PACKAGE, "the package"),  # files in a package of that name are not opened alone for writing
            *itertools.product(["plain", "odd.name", "a.mlmodelc.d"], WRITERS),
        ],
        named=[
            (PACKAGE, "the package"),
            ("plain", "its model file"),
            ("odd.name", "its blobs"),
            ("a.mlmodelc.d", "its weight file"),
        ],
    ),
)
def test_an_interrupted_change_is_seen_from_everywhere(faults, trees, name, writer):
    """Reading and writing, by each way, after each writer that may have died."""
    action, arguments = WRITERS[writer]
    for root in list(interrupted(faults, action, arguments, lambda: trees(name))):
        for way in WAYS:
            copy = root.parent / way.replace(" ", "-")
            copy.mkdir()
            model = copy / name
            shutil.copytree(root, model)
            path = ways(model)[way]
            (weights,) = model.rglob("weight.bin")
            (journal_file,) = journals(model)
            for reader, read in ((weights, milblob.BlobReader), (path, milblob.load), (model, milblob.load)):
                before = files_of(copy)
                try:
                    read(reader)
                except milblob.PendingChangeError as error:
                    assert error.journal == os.path.realpath(journal_file) and "milblob recover" in str(error)
                else:  # a change of the model file alone, of which nothing else is part
                    assert journal_file.name.startswith(".model.mlmodel") and "#0" in milblob.load(reader)
                assert files_of(copy) == before
            milblob.recover(path)
            check_values(path)
            milblob.recover(model)
            check_values(model)
            milblob.open(model, "r+").close()
            assert journals(model) == [] and left(model) == []


@pytest.mark.parametrize("way", some(WAYS, 4))
def test_an_edit_by_any_way_is_not_lost(faults, trees, way):
    """Whoever edits first completes what was begun: a later recovery does not write over the edit."""
    for root in list(interrupted(faults, assign, lambda root: [str(root), 1], lambda: trees("plain"))):
        path = ways(root)[way]
        if "weight" in way or ("file" in way.split()[-1:] and "model" not in way):
            assign_records(path, 2)
        else:
            assign(path, 2, ("floats", "bytes"))
        values = milblob.load(root)
        assert {int(v) for name in ("floats", "bytes") for v in np.unique(values[name])} == {2}
        assert set(np.unique(values["ints"])) == {1000}
        assert journals(root) == []


def test_files_in_a_package_are_not_edited_alone_through_links(trees):
    root = trees()
    for way, path in ways(root).items():
        if "package" in way or way in ("itself", "slash", "relative", "link", "link to a link", "roundabout"):
            milblob.open(path, "r+").close()
        else:
            with pytest.raises(ValueError, match="expected the whole model"):
                milblob.open(path, "r+")


def test_nothing_is_written_over_a_pending_change(faults, trees):
    """New files, too: completing the change would write into them."""
    action, arguments = WRITERS["its weight file"]
    other, _ = blob_file(("FLOAT32", np.full(300, 3, "<f4")), ("UINT8", np.full(70, 3, "u1")))
    for root in interrupted(faults, action, arguments, lambda: trees("plain")):
        (weights,) = root.rglob("weight.bin")
        before = weights.read_bytes()

        def new_file(weights=weights):
            with NewFile(str(weights)) as file:
                os.write(file.fd, other)

        def new_blobs(weights=weights):
            with milblob.BlobWriter(weights) as blobs:
                blobs.write(np.zeros(9, "u1"))

        def more_blobs(weights=weights):
            with milblob.BlobWriter(weights, "a") as blobs:
                blobs.write(np.zeros(9, "u1"))

        def by_name(weights=weights):
            with NewNamedFile(str(weights), True) as new:
                pathlib.Path(new.name).write_bytes(other)

        with pytest.raises(RuntimeError, match="journal: expected none, got one of an interrupted change"):
            storage._BlobStorageWriter(str(weights))
        for write in (new_file, new_blobs, more_blobs, by_name):
            with pytest.raises(milblob.PendingChangeError, match="journal: expected none, got one of an interrupted"):
                write()
        assert weights.read_bytes() == before
        weights.unlink()  # also where there is no file any more
        with pytest.raises(milblob.PendingChangeError, match="journal: expected none"):
            new_file()
        weights.write_bytes(before)
        milblob.recover(weights)
        check_values(root)
        new_file()


def test_journal_that_comes_while_a_file_is_written(tmp_path):
    """It is asked for again when the new file takes its name."""
    path = tmp_path / "weight.bin"
    for exists in (False, True):
        if exists:
            path.write_bytes(b"old")
        for force in (True,) if exists else (True, False):
            new = NewFile(str(path), force=force)
            (tmp_path / f".weight.bin{pending.JOURNAL}").touch()
            with pytest.raises(milblob.PendingChangeError, match="journal: expected none"):
                new.commit()
            (tmp_path / f".weight.bin{pending.JOURNAL}").unlink()
            assert path.exists() == exists


@pytest.mark.parametrize("name", [f".weight.bin{pending.JOURNAL}", pending.JOURNAL])
@pytest.mark.parametrize("form", ["package", "file"])
def test_half_a_change_is_not_copied(trees, monkeypatch, tmp_path, name, form):
    """A writer that dies after the source was opened, and before it is copied."""
    root = trees("plain")
    source = root if form == "package" else root / DATA / "weights" / "weight.bin"
    opened = milblob.Model(source)
    for tensor in opened.values():
        tensor.read()
    monkeypatch.setattr(refitting, "Model", lambda *args, **kwargs: opened)
    (root / DATA / "weights" / name).touch()
    key = "bytes" if form == "package" else "#1"
    with pytest.raises(
        milblob.MilblobError, match="journal: expected none|expected no change while it is (copied|read)"
    ):
        milblob.refit(
            source, {key: np.zeros(70, "u1")}, destination=tmp_path / ("copy" if form == "package" else "copy.bin")
        )
    assert not (tmp_path / "copy").exists() and not (tmp_path / "copy.bin").exists()


@pytest.mark.parametrize("writer", ["the package", "its weight file"])
def test_check_reports_a_pending_change_once_and_judges_no_values(faults, trees, writer):
    """What the journal may have changed in part is not looked at; everything else is."""
    action, arguments = WRITERS[writer]
    for root in interrupted(faults, action, arguments, lambda: trees("plain")):
        (root / DATA / "weights" / "other.bin").write_bytes(b"x" * 2000)  # not a weight file
        before, (journal_file,) = files_of(root), journals(root)
        for values in (False, True):
            found = milblob.check(root, values=values, ignore="manifest")  # which is a short one
            (one,) = [finding for finding in found if finding.code == "pending-change"]
            assert (one.severity, one.file) == ("error", os.path.realpath(journal_file))
            others = {os.path.basename(str(finding.file)) for finding in found if finding is not one}
            assert others == ({"other.bin"} if writer == "its weight file" else set())
        assert files_of(root) == before


# --------------------------------------------------------------------------------------------------- whose journal it is


def half_done(faults, trees):
    """A package with a journal and a file that is to take the place of another; neither is done yet."""
    for root in interrupted(faults, assign, lambda root: [str(root), 1], trees):
        if list(root.rglob(f"*{journal_format.STAGED}")):
            return root
    raise AssertionError("no such state")


def refused(root, words):
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(milblob.FormatError, match=words) as caught:
        milblob.recover(root)
    assert caught.value.file == os.path.join(os.path.realpath(root), pending.JOURNAL)
    with pytest.raises(milblob.PendingChangeError) as seen:
        milblob.open(root)
    assert seen.value.journal == caught.value.file
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@as_root
@pytest.mark.parametrize("what", ["journal", "staged"])
def test_what_another_user_wrote_is_not_applied(faults, trees, what):
    root = half_done(faults, trees)
    (made,) = root.rglob(f"*{pending.JOURNAL if what == 'journal' else journal_format.STAGED}")
    os.chown(made, SOMEBODY, -1)
    refused(
        root,
        rf"journal: expected .* belong to the owner of .* \(user 0\) or to this process \(user 0\), got user {SOMEBODY}",
    )
    targets = [root / DATA / "model.mlmodel", root / DATA / "weights" / "weight.bin"]
    os.chown(targets[0], SOMEBODY, -1)
    if what == "journal":
        refused(root, f"got user {SOMEBODY}")  # every file must be theirs
        os.chown(targets[1], SOMEBODY, -1)
    assert recovered_number(root) == 1  # who owns the files may change them


@as_root
def test_a_user_opens_a_model_that_another_user_may_not_change(faults, trees):
    """The attack: in a sticky directory, whoever opens a model would write what the journal says, with their rights."""
    with tempfile.TemporaryDirectory() as folder:  # where other users may go
        os.chmod(folder, 0o755)
        root = pathlib.Path(folder, PACKAGE)
        shutil.copytree(half_done(faults, trees), root)
        attack(root)


def attack(root):
    os.chmod(root, 0o1777)
    (made,) = root.rglob(f"*{pending.JOURNAL}")
    os.chown(made, SOMEBODY, -1)
    for path in root.rglob("*"):
        if path != made:
            os.chown(path, SOMEBODY + 1, -1)
    os.chown(root, SOMEBODY + 1, -1)
    refused(root, rf"\(user {SOMEBODY + 1}\) or to this process \(user 0\), got user {SOMEBODY}")
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setresuid(SOMEBODY + 1, SOMEBODY + 1, SOMEBODY + 1)
            refused(root, f"got user {SOMEBODY}")
            for path in root.rglob("*"):
                if path.is_file() and path != made:
                    assert path.stat().st_uid == SOMEBODY + 1
            os.write(writer, b"refused")
        except BaseException as error:
            os.write(writer, f"{error!r} {error.filename if isinstance(error, OSError) else ''}".encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(reader, 1000) == b"refused"
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("what", ["journal", "staged"])
@pytest.mark.parametrize("mode", some([0o620, 0o602, 0o666], 1))
def test_what_others_may_write_to_is_not_applied(faults, trees, what, mode):
    root = half_done(faults, trees)
    (made,) = root.rglob(f"*{pending.JOURNAL if what == 'journal' else journal_format.STAGED}")
    before = stat.S_IMODE(made.stat().st_mode)
    made.chmod(mode)
    refused(root, rf"expected .* writable by nobody who may not write to .*, got mode {mode:04o}")
    made.chmod(before)
    assert recovered_number(root) == 1


@pytest.mark.parametrize("what", ["journal", "staged"])
def test_what_has_another_name_is_not_applied(faults, trees, what):
    root = half_done(faults, trees)
    (made,) = root.rglob(f"*{pending.JOURNAL if what == 'journal' else journal_format.STAGED}")
    os.link(made, root.parent / "another")
    refused(root, "expected a file of one name, got 2 hard links" if what == "journal" else "bytes, got another")
    (root.parent / "another").unlink()
    made.rename(root.parent / "another")
    made.symlink_to(root.parent / "another")
    refused(root, "regular file, got a symbolic link")
    made.unlink()
    (root.parent / "another").rename(made)
    assert recovered_number(root) == 1


@pytest.mark.parametrize("umask", some([0o000, 0o002, 0o022, 0o077], 2))
@pytest.mark.parametrize("mode", some([0o600, 0o640, 0o644, 0o664, 0o666], 2))
def test_own_journals_are_applied_with_any_permissions(faults, trees, umask, mode):
    """The rule must not refuse what milblob wrote itself; and who may not read the model may not read its journal."""

    def make():
        root = trees()
        for path in root.rglob("*"):
            if path.is_file():
                path.chmod(mode)
        return root

    old = os.umask(umask)
    try:
        for root in interrupted(faults, with_umask, lambda root: [str(root), umask], make):
            (made,) = journals(root)
            assert stat.S_IMODE(made.stat().st_mode) == 0o600 | mode & 0o044
            assert recovered_number(root) == 1
            (file,) = root.rglob("*.mlmodel")
            assert stat.S_IMODE(file.stat().st_mode) == mode
    finally:
        os.umask(old)


def with_umask(path, umask):
    os.umask(umask)
    assign(path, 1)


def with_linked_names(path):
    """As where there are no files without a name: the journal has two for a moment."""
    milblob.storage.output._TMPFILE = 0
    assign(path, 1)


def test_journal_that_was_killed_between_its_two_names(faults, trees):
    seen = 0
    for root in interrupted(faults, with_linked_names, lambda root: [str(root)], trees, every=1):
        (made,) = journals(root)
        seen += made.stat().st_nlink == 2
        assert in_one_state(root) == 1
    assert seen == 1


@pytest.mark.parametrize("change", some(["other bytes", "shorter", "longer", "gone"], 2))
def test_replacement_that_is_not_the_one_of_the_journal(faults, trees, change):
    """A renaming counts as done only if the target is the new file, byte for byte."""
    root = half_done(faults, trees)
    (made,) = root.rglob(f"*{journal_format.STAGED}")
    data = made.read_bytes()
    if change == "gone":
        made.unlink()
        refused(root, r"journal: expected .*\.milblob-new, or .*model\.mlmodel to be that file .* already, got neither")
        target = root / DATA / "model.mlmodel"
        target.write_bytes(data[:-1] + b"?")  # as long as the new one
        refused(root, "got neither")
        target.write_bytes(data)
        assert recovered_number(root) == 1  # that it is
    else:
        made.write_bytes({"other bytes": data[:-1] + b"?", "shorter": data[:-1], "longer": data + b"?"}[change])
        refused(root, "expected .* to have the checksum" if change == "other bytes" else "bytes, got another")
        made.write_bytes(data)
        assert recovered_number(root) == 1


# --------------------------------------------------------------------------------------------- journals in directories above


@as_root
def test_a_journal_of_another_user_above_stops_only_the_model_that_it_names(faults, trees, tmp_path):
    """Anybody can put a journal into /tmp; models below it are opened all the same."""
    shared = tmp_path / "shared"
    shared.mkdir()
    os.chmod(shared, 0o1777)
    root = trees().rename(shared / PACKAGE)
    above = shared / pending.JOURNAL
    for content in (b"", b"junk", journal_bytes((1, "other", 6, 0, b"1")), journal_bytes((1, "../x", 6, 0, b"1"))):
        above.write_bytes(content)
        os.chown(above, SOMEBODY, -1)
        assert number_of(root) == 0
    above.write_bytes(struct.pack("<8sQII", b"milblob\3", 1 << 40, 0, (1 << 32) - 1))  # nobody reads all of this
    os.truncate(above, 1 << 40)
    assert number_of(root) == 0
    above.unlink()
    above.symlink_to("nowhere")
    assert number_of(root) == 0
    above.unlink()
    about = journal_bytes((1, f"{PACKAGE}/{DATA}/weights/weight.bin", 6, 0, b"1"))
    above.write_bytes(about)
    os.chown(above, SOMEBODY, -1)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(milblob.PendingChangeError) as caught:
        milblob.load(root)
    assert caught.value.journal == str(above)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_journal_above_of_one_s_own(trees):
    """It may be about everything below: readers name it."""
    root = trees("plain")
    (root.parent / pending.JOURNAL).write_bytes(b"junk")
    for path in (root, root / DATA / "weights" / "weight.bin"):
        with pytest.raises(milblob.PendingChangeError, match=f"milblob recover {re.escape(str(root.parent))} ") as seen:
            milblob.open(path)
        with pytest.raises(milblob.FormatError, match="journal: expected a header") as caught:
            milblob.recover(path)
        assert seen.value.journal == caught.value.file == os.path.realpath(root.parent / pending.JOURNAL)


def ask(path):
    """Which journal a path has."""
    return pending.pending(path)


def test_a_journal_is_found_in_c_as_in_python(faults, tmp_path, monkeypatch):
    """Beside a file, in a directory, and above either, of every kind and at every level."""
    folder = tmp_path / "a" / "b.mlpackage" / "c"
    folder.mkdir(parents=True)
    (folder / "file").write_bytes(b"")
    asked = [
        folder / "file",
        folder,
        folder.parent,
        tmp_path / "a",
        folder / "none",
        folder / "file" / "x",
        folder / "none" / "x",
    ]
    asked += [tmp_path, tmp_path.parent, pathlib.Path("/"), pathlib.Path("/none"), folder / ("x" * 300)]
    places = [folder, folder.parent, tmp_path / "a", tmp_path]
    journals = [None, *(place / pending.JOURNAL for place in places)]
    journals += [
        place.parent / f".{place.name}{pending.JOURNAL}"
        for place in (folder / "file", folder, folder / "none", tmp_path / "a")
    ]
    found = []
    for journal_path in journals:
        for kind in ("file", "dangling link", "directory"):
            if journal_path is not None:
                {"file": pathlib.Path.touch, "directory": pathlib.Path.mkdir}.get(
                    kind, lambda path: path.symlink_to("none")
                )(journal_path)
            for path in map(str, asked):
                answers = []
                for look in (None, nowhere):
                    with monkeypatch.context() as patch:
                        if look is not None:
                            patch.setattr(pending._codec, "look_above", look)
                        try:
                            answers.append(pending.pending(path))
                        except OSError as error:
                            answers.append(error.errno)
                assert answers[0] == answers[1], (path, journal_path, kind)
                found.append(answers[0])
                if answers[0] and not isinstance(answers[0], int):
                    assert answers[0].path == str(journal_path)
            if journal_path is not None:
                journal_path.rmdir() if kind == "directory" else journal_path.unlink()
    assert sum(isinstance(answer, pending.Pending) for answer in found) > 20 and found.count(errno.ENAMETOOLONG) > 20
    codes = set()
    for code in ("EIO", "EACCES", "ENOMEM"):
        for number in itertools.count(1):
            outcome = faults.run(ask, [str(folder / "file")], root=tmp_path, kinds=("looks",), number=number, code=code)
            if outcome.calls < number:
                break
            assert outcome.exit == "error" and f"[Errno {getattr(errno, code)}]" in outcome.error, outcome
            codes.add((code, outcome.what))
    assert len({what for _, what in codes if "readlink" in what}) >= 1 and len(codes) >= 6
    assert number > 6  # the file, what is beside it, and four directories


# ------------------------------------------------------------------------------------------------------------------- paths


@pytest.mark.parametrize(
    "question", [paths.status, paths.is_there, paths.is_directory, paths.is_file, paths.is_link, paths.real]
)
@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ELOOP, errno.ENAMETOOLONG, errno.ENOMEM, errno.ESTALE])
def test_only_no_such_file_is_a_no(tmp_path, monkeypatch, question, code):
    path = str(tmp_path / "file")
    for name in ("file", "file/below", "none/below"):
        assert not question(str(tmp_path / name)) or question is paths.real
    pathlib.Path(path).touch()
    for below in ("below", "below/below"):  # ENOTDIR
        assert not question(os.path.join(path, below)) or question is paths.real

    def fail(*args, **kwargs):
        raise OSError(code, os.strerror(code))

    for name in ("stat", "lstat", "open"):
        monkeypatch.setattr(os, name, fail)
    with pytest.raises(OSError) as caught:
        question(path)
    assert caught.value.errno == code


def test_real_paths(tmp_path, monkeypatch):
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "file").touch()
    (folder / "gone (deleted)").touch()
    (tmp_path / "link").symlink_to("a/b")
    (tmp_path / "dangling").symlink_to("a/none/x")
    (tmp_path / "round").symlink_to("about")
    (tmp_path / "about").symlink_to("round")
    (tmp_path / "a" / "absolute").symlink_to(tmp_path / "link" / "file")
    names = [
        "", "a", "link", "link/", "link/file", "link/..", "link/../b/file", "link/none", "link/none/x", "dangling", "dangling/y",
        "a/absolute", "none", "none/../a", "link/gone (deleted)", "link/file/x", ".", "..", "link/./file",
        "link/../none", "link/../none/x/../y", "link/none/..", "link/none/./", "dangling/", "dangling/..", "n/" * 1900 + "x",
    ]  # fmt: skip
    for is_quick in (True, False):
        if not is_quick:
            monkeypatch.delattr(os, "O_PATH", raising=False)
        for name in names:
            path = os.path.join(tmp_path, name)
            assert paths.real(path) == os.path.realpath(path), name
            monkeypatch.chdir(tmp_path)
            assert paths.real(name or ".") == os.path.realpath(name or "."), name
        for name in ("round", "round/x"):
            with pytest.raises(OSError) as caught:
                paths.real(os.path.join(tmp_path, name))
            assert caught.value.errno == errno.ELOOP


def test_no_other_way_to_ask():
    """`os.path.exists` and its siblings take every error for a no; paths.py is there instead of them."""
    import ast

    names = {"exists", "lexists", "isdir", "isfile", "islink", "ismount", "is_file", "is_dir", "is_symlink"}
    for path in pathlib.Path(milblob.__file__).parent.rglob("*.py"):
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and node.attr in names:
                is_entry = (
                    isinstance(node.value, ast.Name) and node.value.id == "entry"
                )  # of scandir, which has asked already
                assert is_entry or ast.unparse(node.value) == "paths", f"{path.name}:{node.lineno} {ast.unparse(node)}"
