"""milblob.delta: write what a new model has and an old one has not, as a patch."""

import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..arguments import as_count, as_path, require_flags
from ..errors import FormatError, LimitError
from ..progress import Progress, ProgressCounter, start_progress
from ..rewrite.destination import require_no_part, require_outside_models
from ..storage.mapped import MappedFile
from ..storage.output import NewFile
from ..storage.transfer import write_at
from ..threads import ordered
from . import frames
from .files import HashedFiles, ModelFiles, hash_both
from .patch import (
    CHANGE,
    COPY,
    HEAD_NBYTES,
    MAX_INDEX_NBYTES,
    PREFIX,
    RAW,
    STEP,
    Index,
    PatchedFile,
    header,
    index_bytes,
)
from .report import DeltaReport, FileDelta
from .steps import PatchStep, Planner

SUFFIX = ".milpatch"
_MAX_LEVEL = 22
_INDEX_LEVEL = 9
_SAMPLES, _SAMPLE_NBYTES = 4, 128 << 10
_CLEARLY = 0.9
"""A kind of frame is smaller if its sample has no more than this share of the bytes of the other one's."""


def delta(
    old: str | os.PathLike[str],
    new: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    level: int = 3,
    force: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> DeltaReport:
    """Write a patch that makes a new model from an old one; `apply` does that, byte for byte.

    A record of a weight file that the old model has anywhere costs nothing. Of another one the patch has the difference
    from the record of the same name, or all of it, whichever is smaller after zstd (of large ones, by a sample). Other
    files are stored with the old ones as zstd's dictionary. The patch names both models by their content hashes and
    their files by digests, so that it is never applied to another one.

    Args:
        old: path of a .mlpackage, .mlmodelc, .mlmodel or weight file.
        new: path of a model of the same kind.
        destination: the new file, such as "update.milpatch".
        level: of zstd, from 1 to 22. Changed weights are mostly noise, which higher levels hardly make smaller.
        force: replace an existing file.
        progress: called as files are hashed (see `Progress`).
        max_nbytes: as for `open`.

    Raises:
        ValueError: a level out of range; a destination inside a model. FileExistsError: it exists, without `force`.
        UnsupportedError: a file that refers to weights beside it, MIL text. FormatError: models of two kinds, or one
            changed while it was read. ImportError: no zstd. As `content_hash`. After any exception nothing was written.

    Examples:
        >>> values = {"head_bias": np.ones(96, np.float32)}
        >>> refitted = milblob.refit("demo.mlpackage", values, destination="new.mlpackage")
        >>> report = milblob.delta("demo.mlpackage", "new.mlpackage", "update.milpatch")
        >>> report.nbytes < report.new_nbytes / 100
        True
    """
    names, target = [as_path(old), as_path(new)], as_path(destination)
    require_flags(force=force)
    start_progress(progress)
    level = as_count("level", level, 1)
    if level > _MAX_LEVEL:
        raise ValueError(f"level: expected at most {_MAX_LEVEL}, got {level}")
    frames.zstd()  # before the models are read
    require_outside_models(names, target)
    require_no_part(names, target, SUFFIX)
    counter = ProgressCounter(progress)
    with contextlib.ExitStack() as stack:
        a, b = (stack.enter_context(contextlib.closing(ModelFiles(name, max_nbytes=max_nbytes))) for name in names)
        if a.kind != b.kind:
            raise FormatError(f"new model: expected a {a.kind} as the old one is, got a {b.kind}", file=names[1])
        counter.total_nbytes = sum(one.nbytes for files in (a, b) for one in files.mappings.values())
        before, after = hash_both(a, b, counter)
        with NewFile(target, force=force) as output:
            work = _Work(before, after, level, output.fd)
            nbytes = work.write()
            a.require_same()
            b.require_same()
            removed = tuple(sorted(before.patched.keys() - after.patched.keys()))
            new_nbytes = sum(file.nbytes for file in after.patched.values())
            hashes = before.content.hex(), after.content.hex()
            return DeltaReport(names[0], names[1], target, *hashes, nbytes, new_nbytes, work.reports, removed)


class _Work:
    """One call of `delta`: encodes the steps and writes them."""

    def __init__(self, old: HashedFiles, new: HashedFiles, level: int, fd: int) -> None:
        self.old, self.new, self.level, self.fd = old, new, level, fd
        self.reports: list[FileDelta] = []
        self._numbers = {path: number for number, path in enumerate(old.patched)}
        self._at = HEAD_NBYTES

    def write(self) -> int:
        """Write the whole patch; return its size."""
        planner = Planner(self.old, self.new)
        steps = [self._write_file(path, file, planner) for path, file in self.new.patched.items()]
        hashes, files = (self.old.content, self.new.content), list(self.new.patched.values())
        kind = self.new.files.kind
        data = index_bytes(Index(kind, hashes, list(self.old.patched.values()), files, steps))
        if len(data) > MAX_INDEX_NBYTES:
            message = f"patch: expected an index of at most {MAX_INDEX_NBYTES} bytes, got {len(data)}"
            raise LimitError(f"{message}: the models have too many records", file=self.new.files.path)
        packed = frames.compress(data, _INDEX_LEVEL)
        write_at(self.fd, [packed], self._at)
        with open(self.fd, "rb", buffering=0, closefd=False) as file, contextlib.closing(MappedFile(file)) as mapping:
            write_at(self.fd, [header(kind, mapping, self._at, len(data))], 0)
            return mapping.nbytes

    def _write_file(self, path: str, file: PatchedFile, planner: Planner) -> np.ndarray[Any, Any]:
        """Write the frames of a file; return its rows."""
        rows: list[tuple[int, ...]] = []
        copied, before = 0, self._at
        for step, kind, width, frame in self._encoded(path, planner.steps(path)):
            write_at(self.fd, [frame], self._at)
            self._at += len(frame)
            number, offset = (0, 0) if kind == RAW else (self._numbers[step.old], step.offset)
            rows.append((kind, width, number, offset, step.nbytes, step.span, len(frame)))
            copied += step.nbytes if kind == COPY else 0
        self.reports.append(FileDelta(path, file.nbytes, copied, self._at - before))
        return np.array(rows, STEP)

    def _encoded(self, path: str, steps: Iterator[PatchStep]) -> Iterator[tuple[PatchStep, int, int, bytes]]:
        mapping = self.new.files.mappings[path]

        def work(step: PatchStep) -> tuple[PatchStep, int, int, bytes]:
            if step.kind == COPY:
                return step, COPY, 0, b""
            return (step, *self._frame(step, frames.read(mapping, step.start, step.nbytes)))

        yield from ordered(work, steps, self.new.patched[path].nbytes > frames.PIECE_NBYTES)

    def _frame(self, step: PatchStep, data: bytes) -> tuple[int, int, bytes]:
        """Return (kind, width, frame) of the smallest frame for some bytes."""
        old = self.old.files.mappings.get(step.old)
        if step.kind == PREFIX and old is not None:
            return PREFIX, 0, frames.compress(data, self.level, frames.read(old, step.offset, step.span))
        if step.kind != CHANGE or old is None:
            return RAW, step.width, self._packed(data, None, step.width)
        before = frames.read(old, step.offset, step.nbytes)
        kinds = self._kinds(data, before, step.width)
        packed = [self._packed(data, before if kind == CHANGE else None, step.width) for kind in kinds]
        return min(zip(kinds, [step.width] * 2, packed, strict=False), key=lambda row: len(row[2]))

    def _kinds(self, data: bytes, before: bytes, width: int) -> list[int]:
        """Return the kinds of frames to try: one of them where a sample shows clearly that it is smaller."""
        if len(data) < 4 * _SAMPLE_NBYTES:
            return [RAW, CHANGE]
        places = range(0, len(data), len(data) // _SAMPLES // 8 * 8)
        some, same = (
            b"".join(all_bytes[at : at + _SAMPLE_NBYTES // _SAMPLES] for at in places[:_SAMPLES])
            for all_bytes in (data, before)
        )
        raw, changed = len(self._packed(some, None, width)), len(self._packed(some, same, width))
        return [CHANGE] if changed < _CLEARLY * raw else [RAW] if raw < _CLEARLY * changed else [RAW, CHANGE]

    def _packed(self, data: bytes, before: bytes | None, width: int) -> bytes:
        """Return a frame of bytes, or of their differences from others."""
        found = np.frombuffer(data, np.uint8) if before is None else frames.difference(data, before, width)
        return frames.compress(frames.planes(found, width), self.level)
