"""What a writer of writers.py leaves, whatever has happened to it: the old state or the new one, and nothing else."""

import os
import pathlib
import shutil
import stat

import milblob
import writers
from writers import WRITERS

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
        self.old = None if self.is_pending(self.folder) else self.see()  # readers refuse a pending change
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

    def require_whole(self, outcome, is_done, is_killed=False):
        """The old state, or the new one, and only that one if it is said to be done; nothing of others touched; nothing
        left over, and it can be done again.

        Args:
            outcome: for messages.
            is_done: whether success was reported.
            is_killed: whether the process, or the system, ended before the writer did.
        """
        try:
            if self.is_pending(self.folder):
                self.require_refused(outcome)
                self.require_completed_by_next_writer(outcome)
                for name in filter(os.path.lexists, (self.folder / name for name in self.writer.outputs)):
                    milblob.recover(name)
            now = self.see()
        except Exception as error:
            raise AssertionError(outcome) from error
        allowed = [self.old, self.new]
        if is_killed and self.writer.is_ordered:
            allowed += [self.new[:count] + self.old[count:] for count in range(1, len(self.new))]
        assert now in allowed, outcome
        if is_done:
            assert now == self.new, outcome
        self.seen["new" if now == self.new else "old"] += 1
        again = self.again()
        assert again == (self.new_again if now == self.new else self.new), (outcome, again)
        milblob.storage.temporary.sweep(str(self.folder))  # as the next one that writes there does
        after = snapshot(self.folder)
        left = [name for name in after if any(mark in name for mark in LEFT)]
        assert left == [], outcome
        assert self.others(self.before) == self.others(after), outcome

    @staticmethod
    def is_pending(folder):
        """Whether a change was interrupted once its journal was complete."""
        return any(path.name.endswith("milblob-journal") for path in folder.rglob("*"))

    def require_refused(self, outcome):
        """Readers refuse an interrupted change, or find all old or all new values; they change nothing."""
        before = snapshot(self.folder)
        try:
            now = self.see()
        except milblob.PendingChangeError as error:
            assert os.path.lexists(error.journal), outcome
        else:
            assert now in (self.old, self.new), outcome
        assert snapshot(self.folder) == before, outcome

    def require_completed_by_next_writer(self, outcome):
        """In a copy, the same writer completes what was interrupted and does its own."""
        copy = self.folder.with_name(f"{self.folder.name}-copy")
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self.folder, copy, symlinks=True)
        writers.act(self.name, copy)
        assert not self.is_pending(copy), outcome
        assert self.writer.see(copy) in (self.new, self.new_again), outcome
        shutil.rmtree(copy)

    def others(self, files):
        """What is no matter of the writer."""
        return {name: found for name, found in files.items() if name.split(os.sep)[0] not in self.writer.outputs}
