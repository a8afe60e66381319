"""storage/journal.py: changes inside files are made whole or not at all; a hostile journal changes nothing else."""

import contextlib
import os
import pathlib
import shutil
import stat
import struct
import sys
import zlib

import numpy as np
import pytest

import milblob
from blob_files import blob_file
from faults import EACH_FAILURE, generation, read_only, temporaries
from journal_bytes import journal_bytes
from milblob.storage import journal, journal_format
from milblob.storage.journal import Patch, Recovered, Replacement, commit, recover
from milblob.storage.locks import lock
from milblob.storage.pending import JOURNAL, Pending
from milblob.storage.transfer import write_at
from paths import DATA
from reference_hash import blake3
from thorough import sized, some

pytestmark = pytest.mark.skipif(
    sys.platform == "win32",
    reason="the model's lock is a lock of its directory, which Windows lacks: journals are not tested",
)

SIZES = {"a": 30_000, "in/b": 500, "in/c": 9_000}
SPANS = {"a": [(0, 10), (70, 20_000), (29_990, 10)], "in/b": [(499, 1), (3, 64)], "in/c": []}


def make(root, number=0):
    """Files whose patched ranges and one replaced file all say which generation they are of."""
    for name, size in SIZES.items():
        path = pathlib.Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes([255]) * size)
        with path.open("r+b") as file:
            for offset, nbytes in SPANS[name]:
                file.seek(offset)
                file.write(bytes([number % 251]) * nbytes)
    pathlib.Path(root, "in/c").write_bytes(generation(number % 251))


def number_of(root):
    """The generation, if everything is of the same one and the rest is untouched."""
    (number,) = {pathlib.Path(root, "a").read_bytes()[0]}
    for name in ("a", "in/b"):
        expected = bytearray([255]) * SIZES[name]
        for offset, nbytes in SPANS[name]:
            expected[offset : offset + nbytes] = bytes([number]) * nbytes
        assert pathlib.Path(root, name).read_bytes() == expected, f"{name}: a mixture"
    assert pathlib.Path(root, "in/c").read_bytes() == generation(number)
    return number


def all_files(root):
    return {os.path.realpath(path) for path in pathlib.Path(root).rglob("*") if path.is_file()}


@contextlib.contextmanager
def held(root):
    fd = os.open(root, os.O_RDONLY)
    try:
        lock(fd, root)
        yield
    finally:
        os.close(fd)


def change(root, number, replace=True):
    number %= 251
    patches = [
        Patch(name, offset, np.full(nbytes, number, np.uint8)) for name in SPANS for offset, nbytes in SPANS[name]
    ]
    replacements = [Replacement("in/c", lambda fd: write_at(fd, [generation(number)], 0))] if replace else []
    with held(root):
        commit(root, "", patches, replacements)


def change_for_ever(root, first):
    for number in range(first, 1 << 30):
        recover_all(root)
        change(root, number)


def recover_all(root):
    recover(Pending(root, JOURNAL), lambda model: all_files(model))


def left(root):
    """What should not be there."""
    return temporaries(root) + sorted(p.name for p in pathlib.Path(root).rglob("*.milblob-*"))


# -------------------------------------------------------------------------------------------------------------- commits


def test_commit(tmp_path):
    make(tmp_path)
    before = {name: os.stat(tmp_path / name) for name in SIZES}
    change(str(tmp_path), 7)
    assert number_of(tmp_path) == 7 and left(tmp_path) == []
    after = {name: os.stat(tmp_path / name) for name in SIZES}
    for name in ("a", "in/b"):  # in place
        assert (after[name].st_ino, after[name].st_size) == (before[name].st_ino, before[name].st_size)
    assert after["in/c"].st_ino != before["in/c"].st_ino
    recover_all(str(tmp_path))
    assert number_of(tmp_path) == 7
    with held(str(tmp_path)):
        commit(str(tmp_path), "", [])
        commit(str(tmp_path), "", [], [Replacement("in/c", lambda fd: write_at(fd, [b"only one"], 0))])
    assert (tmp_path / "in/c").read_bytes() == b"only one" and left(tmp_path) == []


def interrupted(root, monkeypatch, replacements):
    """A commit that ends with the journal complete and nothing applied; returns the hashes in it, by path."""
    with monkeypatch.context() as context, held(root):
        context.setattr(
            journal_format.Journal, "__enter__", lambda _: (_ for _ in ()).throw(OSError(5, "as a test says"))
        )
        with pytest.raises(OSError, match="expected to complete it, got as a test says"):
            commit(root, "", [], replacements)
    with journal_format.Journal(os.path.join(root, JOURNAL)) as found:
        return {entry.path: bytes(entry.data[: journal_format.DIGEST_NBYTES]) for entry in found.entries}


def test_replacements_are_identified_by_the_hash_of_their_first_bytes_and_of_the_others(tmp_path, monkeypatch):
    """Whether it is known what the others hash to or the file is read, however many bytes and pieces it has."""
    monkeypatch.setattr(journal_format, "_PIECE_NBYTES", 500)
    every = [b"", b"1", bytes(range(63)), bytes(range(64)), bytes(range(65)), bytes(i % 251 for i in range(2100))]
    contents = {f"{number}{known}": data for number, data in enumerate(every) for known in ("", " known")}
    hashes = {name: bytes.fromhex(blake3(data[64:])) for name, data in contents.items()}
    replacements = []
    for name, data in contents.items():
        (tmp_path / name).write_bytes(b"old")
        rest = (lambda name=name: hashes[name]) if "known" in name else None
        replacements.append(Replacement(name, lambda fd, data=data: write_at(fd, [data], 0), rest))
    expected = {name: bytes.fromhex(blake3(data[:64] + hashes[name])) for name, data in contents.items()}
    assert interrupted(str(tmp_path), monkeypatch, replacements) == expected
    assert {(tmp_path / name).read_bytes() for name in contents} == {b"old"}
    recover_all(str(tmp_path))
    assert {name: (tmp_path / name).read_bytes() for name in contents} == contents and left(tmp_path) == []


def test_a_wrong_known_hash_completes_nothing(tmp_path, monkeypatch):
    """A writer that is wrong about its own bytes cannot put others into place: whoever completes it reads them."""
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"old")
    new = [Replacement(name, lambda fd: write_at(fd, [b"new"], 0), lambda: bytes(32)) for name in ("a", "b")]
    interrupted(str(tmp_path), monkeypatch, new)
    with pytest.raises(milblob.FormatError, match="to have the checksum that is in the journal, got another"):
        recover_all(str(tmp_path))
    assert {(tmp_path / name).read_bytes() for name in ("a", "b")} == {b"old"}


@pytest.mark.parametrize("replace", [True, False])
@pytest.mark.parametrize("mode, code", EACH_FAILURE)
def test_commit_at_every_call(faults, tmp_path, mode, code, replace):
    root, states = tmp_path / "model", set()
    make(root)
    for outcome in faults.at_every_call(change, [str(root), 1, replace], root=root, mode=mode, code=code):
        interrupted = (root / JOURNAL).exists()
        recover_all(str(root))
        if not replace:
            (root / "in/c").write_bytes(generation((root / "a").read_bytes()[0]))
        number = number_of(root)
        if interrupted or outcome.exit == "ok":
            assert number == 1, outcome
        states.add((outcome.exit, number))
        with held(str(root)):  # the next writer removes what a killed one prepared
            commit(
                str(root),
                "",
                [Patch("in/b", 499, bytes([number]))],
                [Replacement("in/c", lambda fd: write_at(fd, [b"x"], 0))],
            )
        assert left(root) == [], outcome
        make(root)
    if mode == "short":
        assert states == {("ok", 1)}
    else:
        assert states >= ({("killed", 0), ("killed", 1)} if mode.startswith("kill") else {("error", 0)})


@pytest.mark.parametrize("mode", some(["fail", "fail on", "short", "kill before", "kill middle", "kill after"], 3))
def test_recover_at_every_call(faults, tmp_path, mode):
    """A recovery that is interrupted is done again."""
    root, before = tmp_path / "model", tmp_path / "before"
    make(before)
    for number in range(1, 100):  # the first run that dies with a journal that is complete
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(before, root)
        faults.run(change, [str(root), 1], root=root, number=number, mode="kill after")
        if (root / JOURNAL).exists():
            break
    shutil.rmtree(before)
    shutil.copytree(root, before)
    for outcome in faults.at_every_call(recover_all, [str(root)], root=root, mode=mode, code="ENOSPC"):
        if outcome.exit == "error":
            assert "as a user who may write to it" in outcome.error
        recover_all(str(root))
        assert number_of(root) == 1 and left(root) == [], outcome
        shutil.rmtree(root)
        shutil.copytree(before, root)


def test_kill_9_while_changing(faults, tmp_path):
    root = str(tmp_path / "model")
    make(root)
    numbers, journals = [0], []
    for _ in faults.kill_often(
        change_for_ever,
        lambda: [root, numbers[-1] + 1],
        root=root,
        seed="journal",
        count=sized(25, 100),
        is_enough=lambda: len(set(numbers)) > 5 and sum(journals) > 2,
    ):
        journals.append(os.path.exists(os.path.join(root, JOURNAL)))
        recover_all(root)
        numbers.append(number_of(root))
        assert not os.path.exists(os.path.join(root, JOURNAL))
    change(root, numbers[-1])
    assert left(root) == []


def test_hard_links_are_not_changed(tmp_path):
    root = tmp_path / "model"
    make(root)
    old = {name: (root / name).read_bytes() for name in SIZES}
    for name in ("a", "in/c"):
        os.link(root / name, tmp_path / os.path.basename(name))
    (root / "a").chmod(0o640)
    change(str(root), 3)
    assert number_of(root) == 3 and left(root) == []
    assert (tmp_path / "a").read_bytes() == old["a"] and (tmp_path / "c").read_bytes() == old["in/c"]
    assert stat.S_IMODE((root / "a").stat().st_mode) == 0o640


def leave_a_journal(faults, root):
    """Make a model of which a change was killed as soon as its journal was there."""
    for number in range(1, 100):
        shutil.rmtree(root, ignore_errors=True)
        make(root)
        faults.run(change, [str(root), 1], root=root, number=number, mode="kill after")
        if (root / JOURNAL).exists():
            return
    raise AssertionError("no journal was written")


def test_hard_links_made_before_recovery_are_not_changed(faults, tmp_path):
    root = tmp_path / "model"
    leave_a_journal(faults, root)
    old = (root / "a").read_bytes()
    os.link(root / "a", tmp_path / "a")
    recover_all(str(root))
    assert number_of(root) == 1 and (tmp_path / "a").read_bytes() == old and left(root) == []


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0,
    reason="only root gives files to other users: that owners stay is not tested",
)
@pytest.mark.parametrize("how", ["patched", "one of them", "recovered"])
def test_files_keep_their_owner(faults, tmp_path, how):
    """Root edits somebody's model, or only reads it after an edit was interrupted; what is private stays readable."""
    root = tmp_path / "model"
    for number in range(1, 100):
        shutil.rmtree(root, ignore_errors=True)
        make(root)
        for name in SIZES:
            os.chown(root / name, 4321, 4322)
            (root / name).chmod(0o600)
        if how != "recovered":
            break
        faults.run(change, [str(root), 1], root=root, number=number, mode="kill after")
        if (root / JOURNAL).exists():
            break
    for name in ("a", "in/b"):
        os.link(root / name, tmp_path / os.path.basename(name))
    if how == "recovered":
        recover_all(str(root))
    elif how == "patched":
        change(str(root), 1)
    else:
        with held(root):
            commit(str(root), "", [Patch("a", 0, np.zeros(3, "u1"))])
    assert left(root) == [] and (root / "a").stat().st_nlink == 1
    for name in SIZES:
        status = (root / name).stat()
        assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (4321, 4322, 0o600), name


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize("moment", some(["_redo", "_locked", "_is_to_do", "_stage", "_apply"], 3))
def test_a_recovery_is_not_led_outside(faults, tmp_path, monkeypatch, moment, linked):
    """The folder of the files becomes a link to another one while a change is completed: that one stays as it was."""
    root, outside = tmp_path / "model", tmp_path / "outside"
    leave_a_journal(faults, root)
    shutil.copytree(root, outside)  # with what is staged, so that nothing is missing there
    if linked:  # patched as a copy
        os.link(root / "in/b", tmp_path / "b")
    before = {path: (path.read_bytes(), path.stat().st_ino) for path in outside.rglob("*") if path.is_file()}
    met = []

    def exchange_first(*args, **kwargs):
        if not met:
            (root / "in").rename(tmp_path / "aside")
            (root / "in").symlink_to(outside / "in")
            met.append(moment)
        return real(*args, **kwargs)

    real = getattr(journal, moment)
    with monkeypatch.context() as patch:
        patch.setattr(journal, moment, exchange_first)
        with contextlib.suppress(milblob.FormatError, OSError):
            recover_all(str(root))
    assert {path: (path.read_bytes(), path.stat().st_ino) for path in outside.rglob("*") if path.is_file()} == before
    if met:
        (root / "in").unlink()
        (tmp_path / "aside").rename(root / "in")
    assert bool(met) == (moment in ("_redo", "_locked", "_is_to_do", "_apply") or (moment == "_stage" and linked))
    recover_all(str(root))
    assert number_of(root) == 1 and left(root) == []


def test_patches_outside_the_file_are_refused(tmp_path):
    make(tmp_path)
    for offset, data in ((29_999, b"12"), (-1, b"1"), (30_001, b"1")):
        with held(str(tmp_path)), pytest.raises(ValueError, match="expected to lie inside its 30000 bytes"):
            commit(str(tmp_path), "", [Patch("in/b", 0, b"1"), Patch("a", offset, data)])
    assert number_of(tmp_path) == 0 and left(tmp_path) == []


def test_two_writers(tmp_path):
    make(tmp_path)
    with held(str(tmp_path)), pytest.raises(BlockingIOError):
        change(str(tmp_path), 1)
    fd = os.open(tmp_path / "a", os.O_RDWR)  # somebody appends to one of the files
    lock(fd, str(tmp_path / "a"))
    with pytest.raises(BlockingIOError):
        change(str(tmp_path), 1)
    os.close(fd)
    (tmp_path / JOURNAL).write_bytes(b"not mine")
    with pytest.raises(milblob.PendingChangeError, match="journal: expected none, got one of an interrupted change"):
        change(str(tmp_path), 1)
    assert (tmp_path / JOURNAL).read_bytes() == b"not mine"
    (tmp_path / JOURNAL).unlink()
    assert number_of(tmp_path) == 0 and left(tmp_path) == []


def test_recover_waits_for_a_writer(tmp_path, monkeypatch):
    make(tmp_path)
    (tmp_path / JOURNAL).write_bytes(journal_bytes((1, "in/b", 500, 0, b"1")))
    monkeypatch.setattr(journal, "_WAIT_S", 0.05)
    with held(str(tmp_path)), pytest.raises(BlockingIOError, match="journal of an interrupted change"):
        recover_all(str(tmp_path))
    assert (tmp_path / JOURNAL).exists()

    def finish(seconds):
        (tmp_path / JOURNAL).unlink()

    monkeypatch.setattr(journal.time, "sleep", finish)
    with held(str(tmp_path)):
        recover_all(str(tmp_path))
    assert number_of(tmp_path) == 0


# ------------------------------------------------------------------------------------- journals that somebody else wrote


GOOD = (1, "in/b", 500, 0, b"1")
STAGED = b".c.0123456789abcdef.milblob-new"
DIGEST = bytes(32)
BROKEN = {
    "empty": (b"", "expected a header of 24 bytes, got 0"),
    "magic": (journal_bytes(GOOD, magic=b"milbloc\3"), "expected the magic"),
    "an old one": (journal_bytes(GOOD, magic=b"milblob\2"), "expected version 3 of the format, got version 2"),
    "a new one": (journal_bytes(GOOD, magic=b"milblob\4"), "expected version 3 of the format, got version 4"),
    "longer": (journal_bytes(GOOD) + b"\0", "expected 58 bytes, got 59"),
    "no model": (journal_bytes()[:24], "bytes, got"),
    "model of another directory": (journal_bytes(GOOD, base="../model"), "expected a model in its own directory"),
    "model that is this directory": (journal_bytes(GOOD, base="."), "expected a model in its own directory"),
    "checksum": (journal_bytes(GOOD, crc=1), "expected the checksum 0x00000001"),
    "more entries": (journal_bytes(GOOD, count=2), "expected an entry, got 0 bytes"),
    "fewer entries": (journal_bytes(GOOD, GOOD, count=1), "expected its end after 1 entries, got more"),
    "data beyond the end": (journal_bytes(GOOD)[:-1] , "bytes, got"),
    "no such kind": (journal_bytes(GOOD, (3, "a", 30000, 0, b"1")), "got kind 3"),
    "not UTF-8": (journal_bytes(GOOD, (1, b"\xff", 1, 0, b"1")), "UTF-8"),
    "up": (journal_bytes(GOOD, (1, "../victim", 6, 0, b"1")), "weight files only, got one of '../victim'"),
    "absolute": (journal_bytes(GOOD, (1, "/etc/passwd", 6, 0, b"1")), "weight files only"),
    "NUL": (journal_bytes(GOOD, (1, "a\0b", 6, 0, b"1")), "weight files only"),
    "a link out": (journal_bytes(GOOD, (1, "out", 6, 0, b"1")), "weight files only, got one of 'out'"),
    "another file": (journal_bytes(GOOD, (1, "notes", 6, 0, b"1")), "weight files only, got one of 'notes'"),
    "the journal": (journal_bytes(GOOD, (1, JOURNAL, 6, 0, b"1")), "weight files only"),
    "directory": (journal_bytes(GOOD, (1, "in", 6, 0, b"1")), "weight files only"),
    "past the end": (journal_bytes(GOOD, (1, "a", 30000, 30000, b"1")), "expected to lie inside its 30000 bytes"),
    "offset wraps": (journal_bytes(GOOD, (1, "a", 30000, (1 << 64) - 1, b"1")), "expected to lie inside"),
    "grows": (journal_bytes(GOOD, (1, "a", 40000, 30000, b"1")), "expected a to have 40000 bytes, got 30000"),
    "replaced by what is elsewhere": (journal_bytes(GOOD, (2, "in/c", 6, 0, DIGEST + b"../a")), "expected the name of a replacement"),
    "replaced by another name": (journal_bytes(GOOD, (2, "in/c", 6, 0, DIGEST + b".a.0123456789abcdef.milblob-new")), "name of a replacement"),
    "replaced by a link": (journal_bytes(GOOD, (2, "in/c", 6, 0, DIGEST + STAGED)), "to be a regular file, got a symbolic link"),
    "below what is not there": (journal_bytes(GOOD, (1, "n/" * 1900 + "b", 6, 0, b"1")), "weight files only"),
    "a long name of a replacement": (journal_bytes(GOOD, (2, "in/c", 6, 0, DIGEST + STAGED * 1000)), "bytes of a replacement, got 31032"),
    "replaces another file": (journal_bytes(GOOD, (2, "notes", 6, 0, DIGEST + b".notes.0123456789abcdef.milblob-new")), "weight files only"),
}  # fmt: skip


@pytest.mark.every
@pytest.mark.parametrize("name", BROKEN)
def test_broken_and_hostile_journals_change_nothing(tmp_path, name):
    data, words = BROKEN[name]
    root = tmp_path / "model"
    make(root)
    for path in (tmp_path / "victim", root / "notes", root / ".notes.0123456789abcdef.milblob-new"):
        path.write_bytes(b"victim")
    (root / "out").symlink_to("../victim")
    (root / "in" / STAGED.decode()).symlink_to("../../victim")
    (root / JOURNAL).write_bytes(data)
    allowed = {os.path.realpath(root / file) for file in SIZES}
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(milblob.FormatError) as caught:
        recover(Pending(str(root), JOURNAL), lambda model: allowed)
    assert words in str(caught.value) and str(caught.value).startswith("journal: ")
    assert caught.value.file == str(root / JOURNAL)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_every_truncation_changes_nothing(tmp_path):
    make(tmp_path)
    data = journal_bytes(GOOD, (1, "a", 30000, 5, b"123"))
    for nbytes in range(len(data)):
        (tmp_path / JOURNAL).write_bytes(data[:nbytes])
        with pytest.raises(milblob.FormatError, match=r"journal: .* in .*\.milblob-journal"):
            recover_all(str(tmp_path))
        assert number_of(tmp_path) == 0
    (tmp_path / JOURNAL).write_bytes(data)
    recover_all(str(tmp_path))
    assert (tmp_path / "a").read_bytes()[5:8] == b"123" and (tmp_path / "in/b").read_bytes()[0] == ord("1")


def test_names_in_a_journal_that_is_changed_after_they_were_checked(tmp_path):
    """Whoever owns the files may write to their journal while somebody with more rights, such as root, applies it."""
    make(tmp_path)
    path = tmp_path / JOURNAL
    path.write_bytes(journal_bytes((2, "in/c", 6, 0, DIGEST + STAGED), (1, "a", 30000, 5, b"123"), base="model"))
    with journal_format.Journal(str(path)) as found:
        with path.open("r+b") as file:
            file.write(b"\xff" * path.stat().st_size)
        replacement, patch = found.entries
        assert (found.base, replacement[:4], patch[:4]) == ("model", (2, "in/c", 6, 0), (1, "a", 30000, 5))
        assert bytes(replacement.data) == DIGEST + STAGED and len(patch.data) == 3


HUGE = 1 << 40
SPARSE = {
    "one patch of all": [(1, "a", HUGE, 0, HUGE)],
    "a patch that its file would have to be large for": [(1, "a", HUGE, 0, 30001)],
    "patches of the whole file, twice": [(1, "a", 30000, 0, 30000), (1, "a", 30000, 0, 30000)],
    "patches of every file, and one more": [(1, "a", 30000, 0, 30000), (1, "in/b", 30000, 0, 1), (1, "a", 30000, 0, 1)],
    "empty patches": [(1, "a", 30000, 0, 0)] * 100,
    "nothing": [(0, "", 0, 0, 0)],
    "of nothing": [(1, "none", HUGE, 0, HUGE)],
    "a replacement": [(2, "in/c", 6, 0, HUGE)],
}


@pytest.mark.parametrize("name", SPARSE)
def test_a_huge_sparse_journal_is_not_read(tmp_path, monkeypatch, name):
    """It takes no room on the disk and belongs to whoever opens the model; more than the files hold is not looked at."""
    make(tmp_path)
    body = struct.pack("<H", 0)
    with (tmp_path / JOURNAL).open("wb") as file:
        at = 24
        for kind, path, file_nbytes, offset, nbytes in SPARSE[name]:
            file.seek(at)
            file.write(body + struct.pack("<BHQQQ", kind, len(path), file_nbytes, offset, nbytes) + path.encode())
            at, body = file.tell() + nbytes, b""
        file.truncate(max(at, HUGE if name == "nothing" else 0))
        nbytes = file.seek(0, 2)
        file.seek(0)
        file.write(
            struct.pack("<8sQII", b"milblob\3", nbytes, 0, (1 << 32) - 1 if name == "nothing" else len(SPARSE[name]))
        )
    read = []
    monkeypatch.setattr(zlib, "crc32", lambda data, *_: read.append(len(data)))
    with pytest.raises(milblob.FormatError, match="journal: expected"):
        recover_all(str(tmp_path))
    assert read == [] and number_of(tmp_path) == 0


def test_tensors_that_are_the_same_bytes_are_in_a_journal_once(tmp_path, monkeypatch):
    make(tmp_path)
    told: list[int] = []
    seen = []
    write = journal_format.pieces
    monkeypatch.setattr(journal_format, "pieces", lambda base, entries: seen.append(entries) or write(base, entries))
    data = np.arange(30000, dtype=np.uint8)
    patches = [
        Patch("a", 0, given, lambda number=number: told.append(number))
        for number, given in enumerate((data, data.copy(), data))
    ]
    patches += [Patch("in/b", 0, b"12", lambda: told.append(3)), Patch("in/b", 0, b"34", lambda: told.append(4))]
    commit(str(tmp_path), "", patches)
    assert [len(memoryview(entry.data)) for entry in seen[0]] == [30000, 2, 2] and sorted(told) == [0, 1, 2, 3, 4]
    assert (tmp_path / "a").read_bytes() == data.tobytes() and (tmp_path / "in/b").read_bytes()[:2] == b"34"
    with pytest.raises(ValueError, match="expected no more bytes than it has"):
        commit(str(tmp_path), "", [Patch("a", 0, data), Patch("a", 0, data[::-1].copy())])
    assert (tmp_path / "a").read_bytes() == data.tobytes() and not (tmp_path / JOURNAL).exists()


def test_journal_that_is_not_a_file(tmp_path):
    make(tmp_path)
    (tmp_path / JOURNAL).symlink_to("a")
    with pytest.raises(milblob.FormatError, match="expected a regular file, got a symbolic link"):
        recover_all(str(tmp_path))
    (tmp_path / JOURNAL).unlink()
    (tmp_path / JOURNAL).mkdir()
    with pytest.raises(milblob.FormatError, match="expected a regular file, got a directory"):
        recover_all(str(tmp_path))


def _remove(path):
    shutil.rmtree(path) if path.is_dir() else path.unlink()


GONE = {
    "its model": {"base": "gone"},
    "its model, by a long name": {"base": "g" * 300},
    "its model, behind a link to nothing": {"base": "dangling"},
    "its model, behind a link to itself": {"base": "loop"},
    "a patched file": {"entry": (1, "in/b", 500, 0, b"1"), "removed": "in/b"},
    "a replaced file": {"entry": (2, "in/c", 6, 0, DIGEST + STAGED), "removed": "in/c"},
    "the directory of a replaced file": {"entry": (2, "in/c", 6, 0, DIGEST + STAGED), "removed": "in"},
    "a replaced file below a file": {"entry": (2, "a/c", 6, 0, DIGEST + STAGED), "removed": "in/c"},
}


@pytest.mark.parametrize("name", GONE)
def test_a_sound_journal_of_a_missing_file_raises_an_error_that_names_both(tmp_path, name):
    case = {"entry": GOOD, "base": "", "removed": None, **GONE[name]}
    root = tmp_path / "model"
    make(root)
    (root / "dangling").symlink_to("nowhere")
    (root / "loop").symlink_to("loop")
    if case["removed"]:
        _remove(root / case["removed"])
    (root / JOURNAL).write_bytes(journal_bytes(case["entry"], base=case["base"]))
    allowed = {os.path.realpath(root / file) for file in (*SIZES, "a/c")}
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    with pytest.raises(milblob.FormatError, match="^journal: expected .*, got ") as caught:
        recover(Pending(str(root), JOURNAL), lambda model: allowed)
    assert (case["base"] or case["entry"][1]) in str(caught.value)
    assert caught.value.file == str(root / JOURNAL)
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("removed", ["weights/weight.bin", "weights", "."])
@pytest.mark.parametrize("by", [milblob.open, milblob.load])
def test_a_model_whose_journal_names_a_file_that_is_gone(tmp_path, by, removed):
    package = tmp_path / "m.mlpackage"
    shutil.copytree(DATA / "opset_ios16_fp16" / "model.mlpackage", package)
    files = package / "Data" / "com.apple.CoreML"
    weights = (files / "weights" / "weight.bin").relative_to(package).as_posix()
    replaced = (2, weights, 6, 0, DIGEST + b".weight.bin.0123456789abcdef.milblob-new")
    (package / JOURNAL).write_bytes(journal_bytes(replaced))
    _remove(files / removed)
    with pytest.raises(milblob.ResolveError if removed == "." else milblob.PendingChangeError):
        by(package)
    with pytest.raises(milblob.FormatError, match="^journal: expected ") as caught:
        milblob.recover(package)
    assert caught.value.file == str(package / JOURNAL)


def test_a_model_file_that_is_gone_and_whose_journal_is_left(tmp_path):
    path, beside = tmp_path / "weight.bin", tmp_path / f".weight.bin{JOURNAL}"
    beside.write_bytes(journal_bytes((1, "weight.bin", 6, 0, b"1"), base="weight.bin"))
    with pytest.raises(FileNotFoundError):
        milblob.open(path)
    with pytest.raises(milblob.FormatError, match=r"^journal: .*weight\.bin.*remove the journal") as caught:
        milblob.recover(path)
    assert caught.value.file == str(beside)


def test_read_only_place_raises_an_error_with_advice(tmp_path):
    root = tmp_path / "model"
    make(root)
    (root / JOURNAL).write_bytes(journal_bytes(GOOD))
    with (
        read_only(root),
        pytest.raises(PermissionError, match="milblob recover .*model as a user who may write to it") as caught,
    ):
        if os.geteuid() != 0:
            (root / "in/b").chmod(0o444)
        recover_all(str(root))
    assert caught.value.filename == str(root / JOURNAL)
    assert (root / JOURNAL).exists()


# --------------------------------------------------------------------------------------------------------------- models


def entry(path, offset, data, root):
    name = path.relative_to(root).as_posix()
    return (1, name, path.stat().st_size, offset, data)


def stored(path, name):
    with milblob.open(path) as model:
        return model[name].read().tobytes()


def test_recover_completes_the_change_and_readers_refuse_it(tmp_path):
    package = tmp_path / "m.mlpackage"
    shutil.copytree(DATA / "opset_ios16_fp16" / "model.mlpackage", package)
    (weights,) = package.rglob("weight.bin")
    with milblob.open(package) as model:
        name = next(name for name in model if model[name].is_blob)
        offset, values = model[name].data_offset, np.array(model[name])
    changed = (values + 1).astype(values.dtype)
    data = journal_bytes(entry(weights, offset, changed.tobytes(), package))
    for opened in (package, *package.rglob("*.mlmodel"), weights):  # also by a file inside
        (package / JOURNAL).write_bytes(data)
        for read, path in ((milblob.BlobReader, weights), (milblob.open, opened), (milblob.load, opened)):
            with pytest.raises(
                milblob.PendingChangeError, match=r"milblob recover .*m\.mlpackage completes it"
            ) as caught:
                read(path)
            assert caught.value.journal == str(package / JOURNAL) and caught.value.code == "pending-change"
        (change,) = milblob.recover(opened).changes
        assert change == Recovered(str(package / JOURNAL), (str(weights),), changed.nbytes)
        assert not (package / JOURNAL).exists()
        assert milblob.recover(opened).changes == ()
        assert stored(package, name) == changed.tobytes()
        with weights.open("r+b") as file:
            file.seek(offset)
            file.write(values.tobytes())
    assert stored(package, name) == values.tobytes()


def test_journal_in_a_package_changes_model_and_weights_only(tmp_path):
    package = tmp_path / "m.mlpackage"
    shutil.copytree(DATA / "opset_ios16_fp16" / "model.mlpackage", package)
    (weights,) = package.rglob("weight.bin")
    other = weights.with_name("other.bin")  # no Program names it
    other.write_bytes(weights.read_bytes())
    for victim in (package / "Manifest.json", other):
        before = victim.read_bytes()
        good = entry(weights, 64 + 64, b"1", package)
        (package / JOURNAL).write_bytes(journal_bytes(good, entry(victim, 0, b"1", package)))
        with pytest.raises(milblob.FormatError, match="expected changes of the model file and its weight files only"):
            milblob.recover(package)
        assert victim.read_bytes() == before


def test_journal_beside_a_file(tmp_path):
    data, (offset,) = blob_file(("UINT8", np.arange(9, dtype=np.uint8)))
    for name in ("weight.bin", "other.bin"):
        (tmp_path / name).write_bytes(data)
    beside = tmp_path / f".weight.bin{JOURNAL}"
    beside.write_bytes(journal_bytes(entry(tmp_path / "weight.bin", offset + 64, b"\7", tmp_path)))
    with milblob.BlobReader(tmp_path / "other.bin") as blobs:
        assert blobs.read(offset)[0] == 0
    for read in (milblob.BlobReader, milblob.load):
        with pytest.raises(milblob.PendingChangeError, match=r"milblob recover .*/weight\.bin completes it"):
            read(tmp_path / "weight.bin")
    milblob.recover(tmp_path / "weight.bin")
    assert milblob.load(tmp_path / "weight.bin")["#0"][0] == 7
    assert sorted(os.listdir(tmp_path)) == ["other.bin", "weight.bin"]
    beside.write_bytes(journal_bytes(entry(tmp_path / "other.bin", offset + 64, b"\7", tmp_path)))
    with pytest.raises(milblob.FormatError, match="got one of 'other.bin'"):
        milblob.recover(tmp_path / "weight.bin")
    assert (tmp_path / "other.bin").read_bytes() == data
