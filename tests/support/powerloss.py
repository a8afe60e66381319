"""What a disk may hold after a power failure: the states that follow from a log of what a process did to files.

    disk = Disk(folder)                         # before: everything in it is on the disk
    log = faults.record(act, [...], root=folder)
    disk.replay(log)
    for state in disk.states: ...               # state.write(place), state.is_end

The model is that of the ALICE (Pillai et al., OSDI 2014) and CrashMonkey (Mohan et al., OSDI 2018) papers, without the
favours of any file system:

- What was written to a file is on the disk after fsync of it. Before, each write, truncation and change of permissions
  may be there or not, in any combination; a write also in part, cut at a sector, or as a larger file with zeros or noise
  where the bytes belong.
- A name (made, linked, renamed, exchanged, removed) is on the disk after fsync of its directory; fsync of the file is not
  enough. Before, each may be there or not, in any combination. Both names of one rename in one directory go together;
  across directories they do not.
- A file without its bytes may have its name, and the other way round.

A state is what all of this makes of the tree at one moment. Between two syncs more and more is possible, so only moments
right before a sync, and the end, are looked at: every subset of what is open at an earlier one is among them.
"""

import itertools
import os
import pathlib
import random
import stat
from typing import NamedTuple

SECTOR_NBYTES = 512
MAX_LOCAL = 200  # outcomes of one file or directory; beyond, a choice of them
STAGED, JOURNAL = ".milblob-new", "milblob-journal"
IGNORED = (".milblob-", ".tmp")  # a temporary name: what is below is nobody's, and only removed


class Op(NamedTuple):
    """A line of the log."""

    kind: str
    inode: int
    at: int
    a: str
    b: str
    data: bytes


def parse(log):
    ops, at = [], 0
    while at < len(log):
        end = log.index(b"\n", at)
        kind, inode, place, *sizes = log[at:end].split(b" ")
        parts, at = [], end + 1
        for size in map(int, sizes):
            parts.append(log[at : at + size])
            at += size
        ops.append(Op(kind.decode(), int(inode), int(place), os.fsdecode(parts[0]), os.fsdecode(parts[1]), parts[2]))
    return ops


class Node:
    """A file, directory or link: what of it is on the disk, and what may be."""

    def __init__(self, kind, content, mode):
        self.kind, self.content, self.mode = kind, content, mode  # as they are on the disk
        self.now = dict(content) if kind == "directory" else content
        self.mode_now = mode
        self.open = []  # effects that are not on the disk for sure
        self._outcomes = None

    def change(self, effect):
        self.open.append(effect)
        self._outcomes = None
        self.now, self.mode_now = applied(self.now, self.mode_now, effect, "whole")

    def sync(self):
        self.content, self.mode = dict(self.now) if self.kind == "directory" else self.now, self.mode_now
        self.open, self._outcomes = [], None

    def outcomes(self, chance):
        """What may be on the disk: (content, mode), the first with nothing and the last with everything that is open."""
        if self._outcomes is None:
            found = {}
            for choice in choices(self.open, chance):
                content, mode = dict(self.content) if self.kind == "directory" else self.content, self.mode
                for effect, how in zip(self.open, choice, strict=True):
                    if how:
                        content, mode = applied(content, mode, effect, how)
                found[key_of(content), mode] = (content, mode)
            last = (key_of(self.now), self.mode_now)
            self._outcomes = [found[k] for k in found if k != last] + [found[last]]
        return self._outcomes


def is_ignored(name):
    return name.startswith(IGNORED[0]) and name.endswith(IGNORED[1])


def key_of(content):
    return tuple((name, id(node)) for name, node in sorted(content.items())) if isinstance(content, dict) else content


def applied(content, mode, effect, how):
    """Content and mode after an effect of which so much has come to the disk."""
    kind, *more = effect
    if kind == "names":
        content = {**content, **more[0]}
        return {name: node for name, node in content.items() if node is not None}, mode
    if kind == "mode":
        return content, more[0]
    if kind == "size":
        return content[: more[0]].ljust(more[0], b"\0"), mode
    at, data = more
    room = max(len(content), at + len(data))
    if how == "zeros":
        return content.ljust(room, b"\0"), mode
    if how == "noise":
        noise = random.Random(at).randbytes(room)
        return content + noise[len(content) : room], mode
    cut = (at + len(data) // 2) // SECTOR_NBYTES * SECTOR_NBYTES - at
    if how == "first half":
        data = data[: max(cut, 0)]
        room = max(len(content), at + len(data))
    elif how == "second half":
        at, data = at + max(cut, 0), data[max(cut, 0) :]
    content = content.ljust(room, b"\0")
    return content[:at] + data + content[at + len(data) :], mode


def hows(effect):
    """Ways in which an effect may have come to the disk, or not."""
    return ("", "zeros", "noise", "first half", "second half", "whole") if effect[0] == "data" else ("", "whole")


def choices(effects, chance):
    """How much of each effect is there: all combinations if they are few; else a choice, seeded."""
    ways = [hows(effect) for effect in effects]
    count = 1
    for way in ways:
        count *= len(way)
    if count <= MAX_LOCAL:
        yield from itertools.product(*ways)
        return
    n = len(effects)
    nothing, everything = [""] * n, ["whole"] * n
    yield tuple(nothing)
    for i in range(n):
        for how in ways[i]:
            yield (*nothing[:i], how, *nothing[i + 1 :])  # alone, before all others
            yield (*everything[:i], how, *everything[i + 1 :])  # the only one that is not whole
            yield (*everything[:i], how, *nothing[i + 1 :])  # a prefix
    for _ in range(MAX_LOCAL):
        yield tuple(chance.choice(way) for way in ways)
    yield tuple(everything)


class State:
    """One tree that may be found.

    Attributes:
        tree: name -> (mode, contents or target or None for a directory).
        is_end: whether it may be found after the action was done.
        moment: of the log.
    """

    def __init__(self, tree, is_end, moment):
        self.tree, self.is_end, self.moment = tree, is_end, moment

    def write(self, folder):
        """Make it."""
        folder = pathlib.Path(folder)
        folder.mkdir(parents=True)
        first = {}
        for name, (kind, mode, content, node) in self.tree.items():
            path = folder / name
            if kind == "directory":
                path.mkdir()
            elif kind == "link":
                path.symlink_to(content)
                continue
            elif id(node) in first:
                os.link(first[id(node)], path)
                continue
            else:
                path.write_bytes(content)
                first[id(node)] = path
            path.chmod(mode)

    def modes(self):
        """Name -> permissions, without temporary names."""
        return {
            name: mode
            for name, (kind, mode, *_) in self.tree.items()
            if kind != "link" and not is_ignored(name.split(os.sep)[0])
        }


class Disk:
    """A directory, at first with everything on the disk.

    Args:
        folder: the directory.
        seed: of the choices where there are too many combinations.
        limit: how many of one moment are all looked at.
        has_drafts: tell states apart that differ only in what is in a staged file. Without a journal nobody reads it.

    Attributes:
        states: what may be found, each tree once, after `replay`.
        moments: how many moments were looked at.
        combinations: of what is there and what is not, in all of them; many give the same tree.
    """

    def __init__(self, folder, *, seed=0, limit=300, has_drafts=True):
        self.root_path = os.path.realpath(folder)
        self.by_inode = {}
        self.root = self._load(self.root_path)
        self.limit, self.has_drafts, self._chance = limit, has_drafts, random.Random(seed)
        self.states, self._seen = [], {}
        self.moments = self.combinations = 0

    def _load(self, path):
        status = os.lstat(path)
        known = self.by_inode.get(status.st_ino)
        if known is not None:
            return known
        mode = stat.S_IMODE(status.st_mode)
        if stat.S_ISDIR(status.st_mode):
            node = Node(
                "directory", {name: self._load(os.path.join(path, name)) for name in sorted(os.listdir(path))}, mode
            )
        elif stat.S_ISLNK(status.st_mode):
            node = Node("link", os.readlink(path), mode)
        else:
            node = Node("file", pathlib.Path(path).read_bytes(), mode)
        self.by_inode[status.st_ino] = node
        return node

    # ---------------------------------------------------------------------------------------------------------- replay

    def replay(self, log):
        """Go through a log; collect the states of every moment right before a sync, and of the end."""
        ops = parse(log)
        for number, op in enumerate(ops):
            if op.kind == "sync":
                node = self.by_inode[op.inode]
                if node.open:
                    self._collect(number, False)
                    node.sync()
            else:
                self._do(op)
        self._require_same(self.root, self.root_path)
        self._collect(len(ops), True)

    def _do(self, op):
        kind = op.kind
        if kind == "create":
            self.by_inode[op.inode] = node = Node("file", b"", op.at)
            if op.a:
                self._name(op.a, node)
        elif kind == "mkdir":
            self.by_inode[op.inode] = node = Node("directory", {}, op.at)
            self._name(op.a, node)
        elif kind == "symlink":
            self.by_inode[op.inode] = node = Node("link", op.b, 0o777)
            self._name(op.a, node)
        elif kind == "link":
            self._name(op.a, self.by_inode[op.inode])
        elif kind == "unlink":
            self._name(op.a, None)
        elif kind in ("rename", "exchange"):
            (one, a), (two, b) = self._place(op.a), self._place(op.b)
            self._infer(one, a, op.inode)
            moved, other = one.now[a], two.now[b] if kind == "exchange" else None
            assert moved is self.by_inode[op.inode], op
            if one is two:
                one.change(("names", {a: other, b: moved}))
            else:
                two.change(("names", {b: moved}))
                one.change(("names", {a: other}))
        elif kind == "write":
            self.by_inode[op.inode].change(("data", op.at, op.data))
        elif kind == "truncate":
            self.by_inode[op.inode].change(("size", op.at))
        elif kind == "chmod":
            self.by_inode[op.inode].change(("mode", op.at))
        else:
            raise AssertionError(f"a call that the model does not know: {op}")

    def _infer(self, directory, name, inode):
        """A rename that was not seen: safetensors makes that system call itself, past the C library."""
        node = self.by_inode[inode]
        if name not in directory.now:
            (old,) = (other for other, found in directory.now.items() if found is node)
            directory.change(("names", {old: None, name: node}))

    def _place(self, path):
        """The directory that a name is in, and the name."""
        parts = os.path.relpath(path, self.root_path).split(os.sep)
        node = self.root
        for part in parts[:-1]:
            node = node.now[part]
        return node, parts[-1]

    def _name(self, path, node):
        directory, name = self._place(path)
        directory.change(("names", {name: node}))

    def _require_same(self, node, path):
        """What was replayed is what is there: nothing was missed."""
        if node.kind == "directory":
            assert sorted(node.now) == sorted(os.listdir(path)), path
            for name, inner in node.now.items():
                self._require_same(inner, os.path.join(path, name))
        elif node.kind == "file":
            assert node.now == pathlib.Path(path).read_bytes(), path

    # ---------------------------------------------------------------------------------------------------------- states

    def _collect(self, moment, is_end):
        self.moments += 1
        for tree in self._trees():
            self.combinations += 1
            is_read = self.has_drafts or any(JOURNAL in name for name in tree)
            key = tuple(
                (name, kind, mode, content if is_read or not name.endswith(STAGED) else None)
                for name, (kind, mode, content, _) in tree.items()
                if not is_ignored(name.split(os.sep)[0]) or os.sep not in name
            )
            known = self._seen.get(key)
            if known is None:
                self._seen[key] = state = State(tree, is_end, moment)
                self.states.append(state)
            elif is_end:
                known.is_end = True

    def _trees(self):
        """Trees that may be found now: all if they are few, else a choice; the last has everything."""
        total, chosen = 0, []
        for chosen_tree in self._walk([("", self.root)], {}, {}):
            total += 1
            if total > self.limit:
                break
            chosen.append(chosen_tree)
        if total <= self.limit:
            yield from chosen
            return
        nodes = [node for node in self._reachable() if len(node.outcomes(self._chance)) > 1]
        for rest in (0, -1):  # all others: nothing, everything
            for node in nodes:
                for number in range(len(node.outcomes(self._chance))):
                    yield self._one(
                        lambda other, node=node, number=number, rest=rest: number if other is node else rest
                    )
        for _ in range(self.limit):
            picked = {}
            yield self._one(
                lambda other, picked=picked: picked.setdefault(
                    id(other), self._chance.randrange(len(other.outcomes(self._chance)))
                )
            )

    def _reachable(self):
        """Nodes that some state shows outside of temporary names."""
        found, queue = {}, [self.root]
        while queue:
            node = queue.pop()
            if id(node) in found:
                continue
            found[id(node)] = node
            if node.kind == "directory":
                for content, _ in node.outcomes(self._chance):
                    queue += [inner for name, inner in content.items() if not is_ignored(name)]
        return list(found.values())

    def _one(self, pick):
        """The tree where each node has the outcome that `pick` says."""
        tree, queue = {}, [("", self.root)]
        while queue:
            name, node = queue.pop()
            content, mode = node.outcomes(self._chance)[pick(node)]
            self._show(tree, queue, name, node, content, mode)
        return dict(sorted(tree.items()))

    def _show(self, tree, queue, name, node, content, mode):
        if name:
            tree[name] = (node.kind, mode, None if node.kind == "directory" else content, node)
        if node.kind == "directory":
            queue += [(os.path.join(name, inner), other) for inner, other in content.items()]

    def _walk(self, queue, picked, tree):
        """Every combination of outcomes of the nodes that can be seen; below temporary names, everything as it is."""
        if not queue:
            yield dict(sorted(tree.items()))
            return
        (name, node), rest = queue[-1], queue[:-1]
        outcomes = node.outcomes(self._chance)
        if id(node) in picked:
            numbers = [picked[id(node)]]
        elif name and is_ignored(name.split(os.sep)[0]):
            numbers = [len(outcomes) - 1]
        else:
            numbers = range(len(outcomes))
        for number in numbers:
            more, shown = list(rest), dict(tree)
            self._show(shown, more, name, node, *outcomes[number])
            yield from self._walk(more, {**picked, id(node): number}, shown)
