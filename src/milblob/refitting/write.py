"""Writing the changes of a `refit`: in place through the journal, or directly into a new copy."""

import contextlib
import dataclasses
import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, cast

from ..blobs.appended import Appended
from ..model.editable import EditableModel
from ..model.open_program import OpenProgram
from ..model.package import Package
from ..model.tensor import Tensor
from ..program import wire_edits
from ..program.splice import Edit
from ..progress import ProgressCounter
from ..rewrite.changed_copy import Changed, copy_between, copy_changed, copy_changed_tree
from ..rewrite.copying import OpenFiles, write_spliced
from ..storage import journal, paths, pending
from ..storage.journal_format import Later
from ..storage.mapped import MappedFile
from ..storage.output import NewDirectory, NewNamedFile
from ..storage.transfer import write_at
from ..wording import escape

_LEAST_NBYTES = 1 << 20
"""A smaller file is changed in place, however much of it changes: then the system's calls take the time."""


class Write(NamedTuple):
    """New stored bytes of one constant."""

    name: str  # of the tensor, for progress
    tensor: Tensor  # the constant that has them
    offset: int  # of the old bytes
    nbytes: int
    new_nbytes: int  # of the new ones; differs only where the value stands in the model file
    make: Callable[[], Any]  # returns the new bytes, each time that it is called
    pieces: Callable[[], Iterator[Any]]  # yields the same, in order


@dataclasses.dataclass(eq=False)
class FileChange:
    """What changes in one file of a model."""

    mapping: MappedFile  # the open file
    # a Program that is in the file, which also gives its format; None for a weight file
    holder: OpenProgram | None = None
    # new bytes for old ones. Their offsets in MIL text are those in the Program that was read from it.
    writes: list[Write] = dataclasses.field(default_factory=list)
    edits: list[Edit] = dataclasses.field(default_factory=list)  # of a Program, besides
    appended: Appended | None = None  # new records of a weight file

    @property
    def is_same_size(self) -> bool:
        """Whether nothing but bytes inside the file changes."""
        return self.appended is None and not self._is_spliced

    @property
    def _is_spliced(self) -> bool:
        """Whether the whole file must be rewritten: a length changes, or the file is text."""
        is_text = self.holder is not None and self.holder.is_text
        return bool(self.edits or (self.writes and is_text)) or any(w.nbytes != w.new_nbytes for w in self.writes)

    def patches(self, path: str, counter: ProgressCounter) -> list[journal.Patch] | None:
        """Return the changes one by one, or None if it is cheaper to rewrite the file.

        A journal takes twice the changed bytes, a new file all bytes once: half of the file costs the same.
        """
        changed_nbytes = sum(write.nbytes for write in self.writes)
        is_large = self.mapping.nbytes >= _LEAST_NBYTES and 2 * changed_nbytes >= self.mapping.nbytes
        if is_large or not self.is_same_size:
            return None
        return [
            journal.Patch(path, w.offset, Later(w.nbytes, w.make), partial(counter.add_tensor, w.name, w.tensor))
            for w in self.writes
        ]

    def write(self, fd: int, counter: ProgressCounter) -> None:
        """Write the changed file to an empty one.

        Raises: FormatError: the file has shrunk. ValueError: other bytes than announced. OSError: as writing. As making
        the new bytes.
        """
        mapping = self.mapping
        if self._is_spliced:
            self._write_spliced(fd, counter)
            return
        os.ftruncate(fd, mapping.nbytes)
        at = 0
        for write in sorted(self.writes, key=lambda write: write.offset):
            copy_between(mapping, at, write.offset, fd)
            nbytes = 0
            for piece in write.pieces():
                data = memoryview(piece)
                if nbytes + data.nbytes <= write.nbytes:
                    write_at(fd, [data], write.offset + nbytes)
                nbytes += data.nbytes
            if nbytes != write.nbytes:
                raise ValueError(escape(f"new bytes of {write.name}: expected {write.nbytes}, got {nbytes}"))
            counter.add_tensor(write.name, write.tensor)
            at = write.offset + write.nbytes
        copy_between(mapping, at, mapping.nbytes, fd)
        if self.appended is not None:
            self.appended.write(fd, lambda: None)

    def _write_spliced(self, fd: int, counter: ProgressCounter) -> None:
        edits: list[Edit | None] = list(self.edits)
        program = cast(OpenProgram, self.holder)  # a weight file has no edits
        edits += [wire_edits.value_edit(program.scan.buffer, w.tensor.constant, tensor=w.make()) for w in self.writes]
        new = program.edited(wire_edits.combined(edits))
        write_spliced(new, self.mapping, fd, lambda nbytes: None)
        for write in self.writes:
            counter.add_tensor(write.name, write.tensor)


def write_in_place(model: EditableModel, changes: list[FileChange], counter: ProgressCounter) -> None:
    """Change the files of a model, all or none. Raises: As `FileChange.write` and `journal.commit`."""
    patches, replacements = [], []
    for change in changes:
        path = model.writable(change.mapping)
        found = change.patches(path, counter)
        if found is None:
            replacements.append(journal.Replacement(path, _writing(change, counter)))
        else:
            patches += found
    model.commit(patches, replacements)


@contextlib.contextmanager
def copied(
    source: str, package: Package, target: str, force: bool, changes: list[FileChange], counter: ProgressCounter
) -> Iterator[str]:
    """Write a changed copy of a model and yield its path; the end of the block renames it to `target`.

    Raises: As `FileChange.write`, `copy_changed_tree` and `NewDirectory`.
    """
    changed: Changed = {change.mapping: _writing(change, counter) for change in changes}
    files = OpenFiles(package.mappings)
    if not package.is_directory:
        with NewNamedFile(target, force) as file:
            real = paths.real(source)
            copy_changed(os.path.dirname(real), os.path.basename(real), file.name, changed, files)
            files.require_all()
            pending.require_none(source)  # from a writer that died after the model was opened
            yield file.name
        return
    with NewDirectory(target, replace=paths.is_directory(target)) as new:
        copy_changed_tree(source, new.name, changed, files)
        pending.require_none(source)
        yield new.name


def _writing(change: FileChange, counter: ProgressCounter) -> Callable[[int], None]:
    return lambda fd: change.write(fd, counter)
