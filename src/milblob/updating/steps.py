"""The steps that make the files of a new model from those of an old one: what is copied, and what is different."""

from collections.abc import Iterator
from typing import NamedTuple

from .._codec import equal_bytes
from .files import FilePart, HashedFiles
from .frames import MAX_PREFIX_NBYTES, PIECE_NBYTES
from .patch import CHANGE, COPY, PREFIX, RAW

SMALL_NBYTES = 4096
"""Equal bytes after bytes that differ, up to this many, are in one frame with them."""


class PatchStep(NamedTuple):
    """Bytes of a new file."""

    kind: int  # see patch.py
    start: int  # in the new file
    nbytes: int  # how many
    width: int = 0  # bytes of an element, see `frames.difference`
    old: str = ""  # path of the old file that they are like; "" for none, or for the one file of a model
    offset: int = 0  # of the bytes there that they are like
    span: int = 0  # with PREFIX, how many bytes there a frame refers to


class Planner:
    """Decides how the files of a new model are made of those of an old one.

    A record that the old model has anywhere is copied. Of another one, the differences from its counterpart are
    stored: from the record of its name, of the same size, or else from the next record of that size that the new model
    does not have.
    """

    def __init__(self, old: HashedFiles, new: HashedFiles) -> None:
        self.old, self.new = old, new
        self._equal: dict[tuple[int, bytes], list[tuple[str, int]]] = {}
        self._named: dict[str, tuple[str, FilePart]] = {}
        self._left: dict[tuple[int, int], list[tuple[str, FilePart]]] = {}
        kept = {row.digest for rows in new.parts.values() for row in rows}
        wanted = {(name, row.nbytes) for rows in new.parts.values() for row in rows for name in row.names}
        for path, rows in old.parts.items():
            for row in rows:
                if not row.digest:
                    continue
                self._equal.setdefault((row.nbytes, row.digest), []).append((path, row.offset))
                self._named.update((name, (path, row)) for name in row.names)
                if row.digest not in kept and not any((name, row.nbytes) in wanted for name in row.names):
                    self._left.setdefault((row.nbytes, row.width), []).append((path, row))
        for found in self._left.values():
            found.reverse()  # `pop` gives the next one

    def steps(self, path: str) -> Iterator[PatchStep]:
        """Yield the steps of a new file, in order."""
        file = self.new.patched[path]
        same = [one for one in self.old.patched.values() if one.key == file.key]
        if not file.nbytes:
            return
        if same:
            first = next((one for one in same if one.path == path), same[0])
            yield PatchStep(COPY, 0, file.nbytes, 0, first.path, 0)
        elif path in self.new.parts:
            yield from _divided(_joined(self._of_records(path)))
        else:
            yield from self._of_other(path)

    def _of_records(self, path: str) -> Iterator[PatchStep]:
        """Yield a step for each part of a weight file."""
        rows = self.new.parts[path]
        found = [self._of_record(path, row) if row.digest else None for row in rows]
        following: list[PatchStep | None] = [*found[1:], None]
        before: PatchStep | None = None
        for row, step, after in zip(rows, found, following, strict=True):
            if step is None:
                step = self._between(path, row, before, after)
            yield step
            before = step

    def _of_record(self, path: str, row: FilePart) -> PatchStep:
        places = self._equal.get((row.nbytes, row.digest))
        if places:
            old, offset = (path, row.offset) if (path, row.offset) in places[:8] else places[0]
            return PatchStep(COPY, row.offset, row.nbytes, row.width, old, offset)
        known = (self._named[name] for name in row.names if name in self._named)
        counterpart = next((one for one in known if one[1].nbytes == row.nbytes), None)
        if counterpart is None:
            left = self._left.get((row.nbytes, row.width))
            counterpart = left.pop() if left else None
        if counterpart is None:
            return PatchStep(RAW, row.offset, row.nbytes, row.width)
        return PatchStep(CHANGE, row.offset, row.nbytes, row.width, counterpart[0], counterpart[1].offset)

    def _between(self, path: str, row: FilePart, before: PatchStep | None, after: PatchStep | None) -> PatchStep:
        """Return the step of what is between records: mostly the metadata of the next one, at the same distance."""
        for near in (after, before):
            if near is None or near.kind == RAW:
                continue
            offset = row.offset - near.start + near.offset
            if 0 <= offset <= self.old.files.mappings[near.old].nbytes - row.nbytes:
                kind = COPY if self._is_equal(path, row, near.old, offset) else CHANGE
                return PatchStep(kind, row.offset, row.nbytes, 0, near.old, offset)
        return PatchStep(RAW, row.offset, row.nbytes)

    def _is_equal(self, path: str, row: FilePart, old: str, offset: int) -> bool:
        a, b = self.new.files.mappings[path].check_size(), self.old.files.mappings[old].check_size()
        return equal_bytes(a, row.offset, b, offset, row.nbytes)

    def _of_other(self, path: str) -> Iterator[PatchStep]:
        """Yield steps of a file without records: pieces that refer to the old file around the same place."""
        nbytes, name = self.new.patched[path].nbytes, path.rpartition("/")[2]
        like = [old for old in self.old.patched if old not in self.old.parts and old.rpartition("/")[2] == name]
        old = path if path in like else next(iter(like), None)
        size = 0 if old is None else self.old.patched[old].nbytes
        for start in range(0, nbytes, PIECE_NBYTES):
            count = min(PIECE_NBYTES, nbytes - start)
            if not size or old is None:
                yield PatchStep(RAW, start, count)
                continue
            span = min(size, MAX_PREFIX_NBYTES)
            middle = (start + count // 2) * size // nbytes
            yield PatchStep(PREFIX, start, count, 0, old, max(0, min(middle - span // 2, size - span)), span)


def _joined(steps: Iterator[PatchStep]) -> Iterator[PatchStep]:
    """Join steps that follow each other in both files."""
    last: PatchStep | None = None
    for step in steps:
        if last is not None:
            follows = (step.old, step.offset) == (last.old, last.offset + last.nbytes) or step.kind == RAW
            is_alike = step.kind == last.kind and (step.width == last.width or step.kind == COPY)
            # What is equal between two small records that differ costs less in one frame with them.
            is_small = (last.kind, step.kind) == (CHANGE, COPY) and step.nbytes <= SMALL_NBYTES
            if follows and (is_alike or (is_small and step.nbytes % max(last.width, 1) == 0)):
                last = last._replace(nbytes=last.nbytes + step.nbytes)
                continue
        if last is not None:
            yield last
        last = step
    if last is not None:
        yield last


def _divided(steps: Iterator[PatchStep]) -> Iterator[PatchStep]:
    """Divide steps with frames into pieces."""
    for step in steps:
        if step.kind == COPY:
            yield step._replace(width=0)
        else:
            for done in range(0, step.nbytes, PIECE_NBYTES):
                count = min(PIECE_NBYTES, step.nbytes - done)
                width = step.width if count % max(step.width, 1) == 0 else 0
                offset = step.offset + done if step.kind == CHANGE else 0
                yield step._replace(start=step.start + done, nbytes=count, width=width, offset=offset)
