"""milblob.apply: make a new model from an old one and a patch, beside it or in place."""

import contextlib
import io
import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..arguments import as_path, require_flags
from ..budget import Budget
from ..errors import FormatError
from ..model.editable import EditableModel
from ..model.manifest import make_folders
from ..model.recovery import complete
from ..progress import Progress, ProgressCounter, start_progress
from ..rewrite.copying import new_file
from ..rewrite.destination import is_in_place, require_destination
from ..storage import paths
from ..storage.journal import Patch as InPlace
from ..storage.journal import Replacement
from ..storage.journal_format import Later, nbytes_of
from ..storage.mapped import MappedFile
from ..storage.output import NewDirectory, NewFile
from ..storage.pending import wait
from ..storage.transfer import copy_range, write_at
from ..threads import ordered
from . import frames
from .digests import digest_of, hashes_of_pieces, part_hashes
from .files import ModelFiles
from .patch import CHANGE, COPY, PREFIX, PatchedFile, PatchReader
from .report import ApplyReport

_COPY_NBYTES = 16 << 20
_UP_TO_DATE = "up-to-date"


def apply(
    source: str | os.PathLike[str],
    patch: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None = None,
    *,
    force: bool = False,
    dry_run: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> ApplyReport:
    """Make the new model of a patch from the old one, byte for byte.

    The old model must be the one that the patch was made from: every file is compared by its digest first. The digests
    of the new files are compared before they take their names.

    In place, files change through a journal if the patch changes only the model file and weight files, as milblob's own
    functions do; the cost is then that of the changed bytes. Otherwise, for example if the manifest has new
    identifiers, a new package replaces the old one in one step. A model that is up to date is left as it is, so that an
    interrupted call can be repeated.

    Args:
        source: path of the old model.
        patch: path of a file that `delta` wrote.
        destination: the new model; None changes the old one in place.
        force: replace an existing model.
        dry_run: compare the model and make every new byte, but write nothing.
        progress: called as files are written (see `Progress`).
        max_nbytes: largest size of the new model; default: 256 times that of the old one and the patch, at least 1 GiB.

    Raises:
        FormatError: another model than the patch is for, named by its content hash; a damaged patch.
        LimitError: the new model is larger than `max_nbytes`. FileExistsError: `destination` exists, without `force`.
        ImportError: no zstd. BlockingIOError: another writer has the model. OSError: from the system.
        After any exception nothing was written; if a journal was complete by then, the next writer or
        `milblob.recover` completes the change.

    Examples:
        >>> values = {"head_bias": np.ones(96, np.float32)}
        >>> refitted = milblob.refit("demo.mlpackage", values, destination="new.mlpackage")
        >>> patch = milblob.delta("demo.mlpackage", "new.mlpackage", "update.milpatch")
        >>> report = milblob.apply("demo.mlpackage", "update.milpatch")  # in place
        >>> milblob.content_hash("demo.mlpackage").model == patch.new_hash
        True
    """
    name, file = as_path(source), as_path(patch)
    require_flags(force=force, dry_run=dry_run)
    start_progress(progress)
    target = name if destination is None else as_path(destination)
    frames.zstd()
    in_place = destination is None or is_in_place([name], target)
    on_pending = wait if dry_run or not in_place else complete
    with contextlib.closing(PatchReader(file)) as opened, contextlib.closing(ModelFiles(name, on_pending)) as files:
        budget = Budget(max_nbytes, name)
        for mapping in files.mappings.values():
            budget.add_file(mapping.name, mapping.nbytes, mapping.identity)
        budget.add_file(file, opened.nbytes)
        budget.require(opened.new_nbytes)
        if not in_place:
            require_destination([name], files.kind, target, force)
        work = _Applying(opened, files, ProgressCounter(progress))
        new_hash = opened.index.hashes[1].hex()
        try:
            work.require_old()
        except FormatError as error:
            if not in_place or error.code != _UP_TO_DATE:
                raise
            return ApplyReport(name, file, target, new_hash, opened.new_nbytes, (), (), False, not dry_run)
        through_journal = in_place and work.can_patch
        sizes = opened.new_nbytes, work.changed, work.removed
        report = ApplyReport(name, file, target, new_hash, *sizes, through_journal, not dry_run)
        if dry_run:
            work.check()
        elif not in_place:
            work.write_new(target, force)
        elif work.can_patch:
            work.write_through_journal()
        else:
            work.replace(target)
        return report


class _Applying:
    """One call of `apply`."""

    def __init__(self, patch: PatchReader, files: ModelFiles, counter: ProgressCounter) -> None:
        self.patch, self.files, self.counter = patch, files, counter
        index = patch.index
        counter.total_nbytes = patch.new_nbytes
        known = {file.path: file for file in index.old}
        self._rows = {file.path: number for number, file in enumerate(index.new)}
        # paths: of new files that the old model has not, or with other bytes; of old files that the new one has not
        self.changed = tuple(
            file.path for file in index.new if file.path not in known or known[file.path].key != file.key
        )
        self.removed = tuple(file.path for file in index.old if file.path not in self._rows)
        # whether files can change in place through a journal
        self.can_patch = not self.removed and all(path in known for path in self.changed)
        if self.can_patch and self.changed:
            changeable = files.package.changeable()
            self.can_patch = all(paths.real(files.shown(path)) in changeable for path in self.changed)

    # ------------------------------------------------------------------------------------------------------ the old one

    def require_old(self) -> None:
        """Refuse another model than that which the patch was made from. Raises: FormatError."""
        index, mappings = self.patch.index, self.files.mappings
        if self.files.kind != index.kind:
            raise self._other(f"a {self.files.kind}, and the patch is for a {index.kind}")
        expected = {file.path: file for file in index.old}
        missing, more = sorted(expected.keys() - mappings.keys()), sorted(mappings.keys() - expected.keys())
        if missing or more:
            raise self._other(f"one without {missing[0]}" if missing else f"one with the file {more[0]} too")
        for path, file in expected.items():  # sizes first: they are known
            if mappings[path].nbytes != file.nbytes:
                raise self._other(f"{self._called(path)} of {mappings[path].nbytes} bytes instead of {file.nbytes}")
        for path, file in expected.items():
            if _digest(mappings[path], file) != file.digest:
                raise self._other(f"other bytes in {self._called(path)}")

    def _called(self, path: str) -> str:
        return path or "the file"

    def _other(self, got: str) -> FormatError:
        old, new = self.patch.index.hashes
        files, mappings, code = self.patch.index.new, self.files.mappings, "another-model"
        is_new = {file.path: file.nbytes for file in files} == {path: one.nbytes for path, one in mappings.items()}
        if is_new and all(_digest(mappings[file.path], file) == file.digest for file in files):
            got, code = f"the one that the patch makes ({new.hex()})", _UP_TO_DATE
        message = f"patch {self.patch.path}: expected the model with the content hash {old.hex()}, got {got}"
        return FormatError(message, file=self.files.path, code=code)

    # ---------------------------------------------------------------------------------------------------- the new bytes

    def _made(self, number: int, row: int) -> np.ndarray[Any, Any] | bytes:
        """Return the bytes of a step that is not a copy."""
        kind, width, old, offset, nbytes, span, stored = self.patch.index.steps[number][row].tolist()
        frame = self.patch.frame(int(self.patch.starts[number][row]), stored)
        if kind == PREFIX:
            return frames.decompress(frame, nbytes, self._read(old, offset, span))
        data = frames.from_planes(np.frombuffer(frames.decompress(frame, nbytes), np.uint8), width)
        return frames.restored(data, self._read(old, offset, nbytes), width) if kind == CHANGE else data

    def _read(self, number: int, offset: int, nbytes: int) -> bytes:
        return frames.read(self._mapping(number), offset, nbytes)

    def _mapping(self, number: int) -> MappedFile:
        return self.files.mappings[self.patch.index.old[number].path]

    def _pieces(self, path: str) -> Iterator[tuple[int, int, Any]]:
        """Yield (offset, row, bytes; None of a copy) of each step of a new file, several made at a time."""
        number = self._rows[path]
        rows = self.patch.index.steps[number]
        ends = np.cumsum(rows["nbytes"], dtype=np.int64).tolist()

        def work(row: int) -> Any:
            return None if rows["kind"][row] == COPY else self._made(number, row)

        made = ordered(work, range(len(rows)), self.patch.index.new[number].nbytes > frames.PIECE_NBYTES)
        try:
            for row, (start, data) in enumerate(zip([0, *ends], made, strict=False)):
                yield start, row, data
        except FormatError as error:
            error.file = error.file or self.patch.path
            raise

    def _write(self, path: str, fd: int) -> None:
        """Write a new file, and compare its digest. Raises: FormatError: it is another one."""
        file = self.patch.index.new[self._rows[path]]
        rows = self.patch.index.steps[self._rows[path]]
        os.ftruncate(fd, file.nbytes)
        for start, row, data in self._pieces(path):
            nbytes = int(rows["nbytes"][row])
            if data is not None:
                write_at(fd, [data], start)
                self.counter.add(self.files.shown(path), nbytes)
                continue
            origin, offset = self._mapping(int(rows["file"][row])), int(rows["offset"][row])
            for done in range(0, nbytes, _COPY_NBYTES):
                count = min(_COPY_NBYTES, nbytes - done)
                copy_range(origin, offset + done, count, fd, start + done)
                self.counter.add(self.files.shown(path), count)
        with io.FileIO(fd, closefd=False) as stream, contextlib.closing(MappedFile(stream)) as written:
            self._require(file, _digest(written, file))

    def _bytes(self, path: str) -> Iterator[Any]:
        """Yield the bytes of a new file without writing it."""
        rows = self.patch.index.steps[self._rows[path]]
        for _, row, data in self._pieces(path):
            if data is not None:
                yield data
                continue
            offset, end = int(rows["offset"][row]), int(rows["offset"][row]) + int(rows["nbytes"][row])
            for start in range(offset, end, _COPY_NBYTES):
                yield self._read(int(rows["file"][row]), start, min(_COPY_NBYTES, end - start))

    def check(self, path: str | None = None) -> None:
        """Make the bytes of a new file, or of all, and compare their digests. Raises: FormatError: one has another."""
        for file in self.patch.index.new:
            if path in (None, file.path):
                sizes = file.parts.tolist()
                self._require(file, digest_of(sizes, hashes_of_pieces(self._bytes(file.path), sizes)))

    def _require(self, file: PatchedFile, digest: bytes) -> None:
        if digest != file.digest:
            message = f"patch: expected {self._called(file.path)} to get the digest that the patch names, got another"
            raise FormatError(message, file=self.patch.path)

    # ---------------------------------------------------------------------------------------------------------- writing

    def write_new(self, target: str, force: bool) -> None:
        """Write the new model to another place."""
        if self.files.is_directory:
            with NewDirectory(target, replace=paths.is_directory(target)) as directory:
                self._fill(directory.name)
        else:
            with NewFile(target, force=force) as file:
                self._write("", file.fd)

    def replace(self, target: str) -> None:
        """Write a whole new package, and put it in the place of the old one."""
        with self._locked(), NewDirectory(target, replace=True, locked=os.name != "nt") as directory:
            self._fill(directory.name)

    def _fill(self, folder: str) -> None:
        for file in self.patch.index.new:
            path = os.path.join(folder, *file.path.split("/"))
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with new_file(path) as fd:
                self._write(file.path, fd)
        if self.files.kind == "mlpackage":  # a patch has files only
            make_folders(folder)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[EditableModel]:
        """Keep other writers out; the files are still those that were compared."""
        with EditableModel(self.files.path) as model:
            self.files.require_same()
            yield model

    def write_through_journal(self) -> None:
        """Change the files of the old model: ranges of weight files of the same size, all else as a whole."""
        with self._locked() as model:
            patches: list[InPlace] = []
            replacements: list[Replacement] = []
            self.counter.total_nbytes = 0
            for path in self.changed:
                place = model.writable(self.files.mappings[path])
                found = self._in_place(path, place)
                if found is None:
                    self.counter.total_nbytes += self.patch.index.new[self._rows[path]].nbytes
                    replacements.append(Replacement(place, lambda fd, path=path: self._write(path, fd)))  # type: ignore[misc]
                else:
                    self.check(path)
                    self.counter.total_nbytes += sum(nbytes_of(patch.data) for patch in found)
                    patches += found
            if patches or replacements:
                model.commit(patches, replacements)

    def _in_place(self, path: str, place: str) -> list[InPlace] | None:
        """Return the changed ranges of a weight file; None if half of it or more changes, or its size does.

        The model file is replaced as a whole: a reader of the journal must be able to open it at any moment.
        """
        number = self._rows[path]
        file, rows = self.patch.index.new[number], self.patch.index.steps[number]
        mapping = self.files.mappings[path]
        is_model = any(source.mapping.identity == mapping.identity for source in self.files.package.sources)
        if is_model or file.nbytes != mapping.nbytes:
            return None
        own = next(n for n, one in enumerate(self.patch.index.old) if one.path == path)
        starts = np.concatenate([[0], np.cumsum(rows["nbytes"], dtype=np.int64)[:-1]])
        is_kept = (rows["kind"] == COPY) & (rows["file"] == own) & (rows["offset"] == starts.astype(np.uint64))
        if int(rows["nbytes"][~is_kept].sum()) * 2 >= file.nbytes:
            return None
        return [
            patch
            for row in np.flatnonzero(~is_kept).tolist()
            for patch in self._ranges(number, row, place, int(starts[row]))
        ]

    def _ranges(self, number: int, row: int, place: str, start: int) -> Iterator[InPlace]:
        """Yield the bytes of a step as changes in place, made when the journal is written."""
        rows = self.patch.index.steps[number][row]
        nbytes, shown = int(rows["nbytes"]), self.files.shown(self.patch.index.new[number].path)
        if rows["kind"] != COPY:
            yield InPlace(
                place, start, Later(nbytes, lambda: self._made(number, row)), lambda: self.counter.add(shown, nbytes)
            )
            return
        old, offset = int(rows["file"]), int(rows["offset"])
        for done in range(0, nbytes, _COPY_NBYTES):
            count = min(_COPY_NBYTES, nbytes - done)

            def read(at: int = offset + done, count: int = count) -> bytes:
                return self._read(old, at, count)

            yield InPlace(place, start + done, Later(count, read), lambda count=count: self.counter.add(shown, count))  # type: ignore[misc]


def _digest(mapping: MappedFile, file: PatchedFile) -> bytes:
    """Return the digest of a file that has the size and the parts of one in a patch."""
    sizes = file.parts.tolist()
    return digest_of(sizes, part_hashes(mapping, sizes))
