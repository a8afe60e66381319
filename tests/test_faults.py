"""Everything that writes, while every call on files fails once: the old state or the new one, then and after a second try.

tests/test_files.py and others fail the calls that change files; here it is also those that look (stat, open, read, map,
list, lock), remove and close, and after each fault the same process goes on: it closes what it has, or does it again.
"""

import itertools
import os
import pathlib
import random
import shutil
import stat
import sys

import pytest

import milblob
import writers
from thorough import sized
from writers import WRITERS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs fork and a library to preload")

CODES = ("EIO", "EACCES", "ENOMEM", "EMFILE")
HOW = (("fail", "EIO"), ("fail on", "ENOSPC"), ("fail", "EROFS"), ("short then fail", "ENOSPC"), ("kill after", "EIO"))
SECONDS = ("again", "close", "stop")
LEFT = (".milblob-", ".milblob-new", ".milblob-journal")


def snapshot(folder):
    """Everything below a directory: name -> (mode, contents or target)."""
    found = {}
    for directory, names, files in os.walk(folder):
        for name in names + files:
            path = os.path.join(directory, name)
            status = os.lstat(path)
            content = None
            if stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            elif stat.S_ISREG(status.st_mode):
                content = pathlib.Path(path).read_bytes()
            found[os.path.relpath(path, folder)] = (status.st_mode, content)
    return found


class Case:
    """A writer in a directory, and the states that it may leave."""

    def __init__(self, name, folder):
        self.name, self.folder, self.writer = name, pathlib.Path(folder), WRITERS[name]
        self.make()
        self.before = snapshot(self.folder)
        if name == "complete an edit":  # there is no looking at the old state: looking completes it
            self.old = None
        else:
            self.old = self.see()
        writers.act(name, self.folder)
        self.new = self.see()
        assert self.old != self.new
        self.new_again = self.again()
        self.seen = {"old": 0, "new": 0, "refused": 0}

    def see(self):
        return self.writer.see(self.folder)

    def make(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        writers.make(self.name, self.folder)

    def reset(self):
        """Have the directory as it was, whatever has become of it."""
        if snapshot(self.folder) != self.before or "linked.bin" in self.before:  # whose other name is gone
            self.make()

    def again(self):
        """Do it once more, without faults: what there is then, or why not."""
        try:
            writers.act(self.name, self.folder)
        except Exception as error:
            return type(error)
        return self.see()

    def require_whole(self, outcome, is_done):
        """The old state, or the new one, and only that one if it is said to be done; nothing of others touched; nothing
        left over, and it can be done again.

        Args:
            outcome: for messages.
            is_done: whether success was reported.
        """
        try:
            now = self.see()
        except Exception as error:
            raise AssertionError(outcome) from error
        assert now in (self.old, self.new), outcome
        if is_done:
            assert now == self.new, outcome
        self.seen["new" if now == self.new else "old"] += 1
        again = self.again()
        assert again == (self.new_again if now == self.new else self.new), (outcome, again)
        milblob.storage.output.sweep(str(self.folder))  # as the next one that writes there does
        after = snapshot(self.folder)
        left = [name for name in after if any(mark in name for mark in LEFT)]
        assert left == [], outcome
        assert self.others(self.before) == self.others(after), outcome

    def others(self, files):
        """What is no matter of the writer."""
        return {name: found for name, found in files.items() if name.split(os.sep)[0] not in self.writer.outputs}


def fates(names):
    """Which call meets which fate, and what the process does then: (number, mode, code, second action).

    All of them with MILBLOB_THOROUGH=1. Otherwise one for each call, in turn; of more than three equal calls in a row
    (the parts of a path, the entries of a directory) the first, the last and one in between; `test_every_look_fails_once`
    takes a choice of these.
    """
    number = 0
    for what, group in itertools.groupby(names):
        count = len(list(group))
        chosen = {1, 1 + number % count, count} if sized(1, 0) else range(1, count + 1)
        for at in sorted(number + i for i in chosen):
            for turn in range(sized(1, len(CODES) * len(SECONDS))):
                yield at, "fail", CODES[(at + turn) % len(CODES)], SECONDS[(at + turn) // len(CODES) % len(SECONDS)]
            if what.startswith("open"):  # somebody else has removed it
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
        outcome = faults.run(
            "writers:act", arguments, root=case.folder, kinds=kinds, number=number, mode=mode, code=code
        )
        exits[outcome.exit] += 1
        words = (outcome, mode, code, second)
        if outcome.exit == "killed" and not case.writer.is_durable:
            # What coremltools' formats lack: an item that was copied and not yet listed is in the way of the next one.
            assert case.see() in (case.old, case.new), words
        else:
            case.require_whole(words, outcome.exit == "ok")
    print(f"{case.name}: {len(fates)} faults, {exits}, {case.seen}")
    return exits


def some_of(name, fates, count):
    """All of them, or a choice for `make test`."""
    fates = list(fates)
    return random.Random(name).sample(fates, min(len(fates), sized(count, len(fates))))


@pytest.mark.parametrize("name", WRITERS)
def test_every_look_fails_once(faults, tmp_path, name):
    case, kinds = Case(name, tmp_path / "run"), ("looks", "removes", "closes")
    case.reset()
    names = faults.run("writers:act", [name, str(case.folder)], root=case.folder, kinds=kinds).names
    exits = go_through(faults, case, kinds, some_of(name, fates(names), 60))
    assert exits["ok"] and exits["error"]


@pytest.mark.parametrize("name", WRITERS)
def test_every_change_fails_once(faults, tmp_path, name):
    """As the tests of each writer, here with what is done after the failure."""
    case, kinds = Case(name, tmp_path / "run"), ("changes",)
    case.reset()
    names = faults.run("writers:act", [name, str(case.folder)], root=case.folder, kinds=kinds).names
    every = [
        (number, *HOW[(number + turn) % len(HOW)], SECONDS[(number + turn) // len(HOW) % len(SECONDS)])
        for number in range(1, len(names) + 1)
        for turn in range(sized(1, len(HOW) * len(SECONDS)))
    ]
    exits = go_through(faults, case, kinds, some_of(name, every, 40))
    assert exits["error"]
