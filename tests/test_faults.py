"""Everything that writes, while every call on files fails once: the old state or the new one, then and after a second try.

storage/test_output.py and others fail the calls that change files; here it is also those that look (stat, open, read, map,
list, lock), remove and close, and after each fault the same process goes on: it closes what it has, or does it again.
"""

import itertools
import random
import sys

import pytest

from milblob.storage import paths
from outcomes import Case
from thorough import sized, some
from writers import MECHANISMS, WRITERS, act

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="needs fork and a library to preload: failing calls are not tested here"
)

CODES = ("EIO", "EACCES", "ENOMEM", "EMFILE")
HOW = (("fail", "EIO"), ("fail on", "ENOSPC"), ("fail", "EROFS"), ("short then fail", "ENOSPC"), ("kill after", "EIO"))
SECONDS = ("again", "close", "stop")
BY_NAME = ("open", "stat", "lstat", "fstatat", "readlink", "access", "faccessat", "syscall")
"""Calls that look for a name; "syscall" is openat2, and what asks for the status of a path."""


def fates(names):
    """Which call meets which fate, and what the process does then: (number, mode, code, second action).

    Each call meets one code, with MILBLOB_THOROUGH=1 two, and is followed by as many second actions: which they are changes
    from call to call. Of more than three equal calls in a row (the parts of a path, the entries of a directory) it is the
    first, the last and one in between; without MILBLOB_THOROUGH=1 `test_every_look_fails_once` takes a choice of these.
    """
    number = 0
    for what, group in itertools.groupby(names):
        count = len(list(group))
        for at in sorted({number + 1, number + 1 + number % count, number + count}):
            for turn in range(at, at + sized(1, 2)):
                yield at, "fail", CODES[turn % len(CODES)], SECONDS[turn % len(SECONDS)]
            if what.startswith(BY_NAME):  # somebody else has removed it
                yield at, "fail", "ENOENT", SECONDS[at % len(SECONDS)]
            if what.startswith(("read", "pread")) and what not in ("readlink", "readdir64"):
                yield at, "short", "EIO", "stop"
        number += count


def go_through(faults, case, kinds, fates):
    """Run a writer once for each fate, and look at what it leaves."""
    exits = dict.fromkeys(("ok", "error", "killed"), 0)
    for number, mode, code, second in fates:
        case.reset()
        arguments = [case.name, str(case.folder), second]
        outcome = faults.run(act, arguments, root=case.folder, kinds=kinds, number=number, mode=mode, code=code)
        exits[outcome.exit] += 1
        words = (outcome, mode, code, second)
        is_named = "expected room for" in outcome.error or "expected to complete it" in outcome.error  # from a journal
        if "No space left" in outcome.error and case.writer.is_durable:
            assert is_named and str(case.folder) in outcome.error and "-> None" not in outcome.error, words
        if outcome.exit == "killed" and not case.writer.is_durable:
            # What coremltools' formats lack: an item that was copied and not yet listed is in the way of the next one.
            assert case.see() in (case.old, case.new), words
        else:
            case.require_whole(words, outcome.exit == "ok", outcome.exit == "killed")
    print(f"{case.name}: {len(fates)} faults, {exits}, {case.seen}")
    return exits


def some_of(name, fates, count):
    """All of them, or a choice for `make test`."""
    fates = list(fates)
    return random.Random(name).sample(fates, min(len(fates), sized(count, len(fates))))


@pytest.mark.parametrize("name", some(WRITERS, named=MECHANISMS))
def test_every_look_fails_once(faults, tmp_path, name):
    case, kinds = Case(name, tmp_path / "run"), ("looks", "removes", "closes")
    case.reset()
    names = faults.run(act, [name, str(case.folder)], root=case.folder, kinds=kinds).names
    exits = go_through(faults, case, kinds, some_of(name, fates(names), 20))
    assert exits["ok"] and exits["error"]


@pytest.mark.parametrize("name", some(WRITERS, named=MECHANISMS))
def test_every_change_fails_once(faults, tmp_path, name):
    """As the tests of each writer, here with what is done after the failure."""
    case, kinds = Case(name, tmp_path / "run"), ("changes",)
    case.reset()
    names = faults.run(act, [name, str(case.folder)], root=case.folder, kinds=kinds).names
    every = [
        (number, *HOW[turn % len(HOW)], SECONDS[turn % len(SECONDS)])
        for number in range(1, len(names) + 1)
        for turn in range(number, number + sized(1, len(HOW)))
    ]
    exits = go_through(faults, case, kinds, some_of(name, every, 14))
    assert exits["error"]


@pytest.mark.parametrize("name", some(["append after a tail", "append"], 1))
def test_every_close_of_an_append_fails_once(faults, tmp_path, name):
    """Doing it again after an error must not append twice: no error comes once the records count."""
    case, kinds = Case(name, tmp_path / "run"), ("closes",)
    case.reset()
    calls = faults.run(act, [name, str(case.folder)], root=case.folder, kinds=kinds).calls
    go_through(faults, case, kinds, [(number, "fail", "EIO", "again") for number in range(1, calls + 1)])


@pytest.mark.parametrize("name", some(WRITERS, named=MECHANISMS))
def test_every_directory_is_nowhere_once(tmp_path, monkeypatch, name):
    """As if somebody exchanged it at that moment: what a model is was decided when it was opened, and so was its root."""
    case, real = Case(name, tmp_path / "run"), paths.is_directory
    asked: list[str] = []

    def ask(path):
        if str(path).startswith(str(case.folder)):
            asked.append(path)
            if len(asked) == number:
                return False
        return real(path)

    for number in itertools.count(1):
        case.reset()
        asked.clear()
        with monkeypatch.context() as patch:
            patch.setattr(paths, "is_directory", ask)
            try:
                act(name, str(case.folder))
            except Exception:
                is_done = False
            else:
                is_done = True
        if len(asked) < number:
            break
        case.require_whole((number, asked[number - 1]), is_done)
