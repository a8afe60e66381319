"""A model whose weights can be assigned: values are checked and kept, then written together."""

import os
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, cast

from .. import _codec
from ..arguments import array_of, as_path, source_of
from ..errors import FormatError, ResolveError
from ..forks import here
from ..program import wire_edits
from ..storage import journal, paths, pending
from ..storage.locks import give_back, lock, unlock
from ..storage.mapped import MappedFile
from ..storage.temporary import sweep
from .assigning import Stored, encode, is_in_text, require_fit, stored_of
from .identify import PACKAGES
from .model import Model
from .open_program import OpenProgram
from .package import Package
from .recovery import complete
from .sharing import require_no_other_data, require_unshared
from .tensor import Tensor

_FLAGS = os.O_RDWR | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY"))


class Assignment(NamedTuple):
    """New values of one tensor in their stored form."""

    tensor: Tensor  # the tensor that gets them
    data: Any  # the bytes to write: elements, or a TensorValue
    stored: Stored  # the bytes to replace


class EditableModel(Model):
    """A model whose weights can be assigned: `model["w"] = array`. Returned by `milblob.open(path, "r+")`.

    Values must have the dtype and the shape of the weight. They are checked at once and kept (not copied: do not change
    them until they are written). `flush`, `close` or the end of a `with` block writes them together: all or, after an
    exception, none. If the process is killed while it writes, the model has either all old values or all new ones (see
    docs/architecture.md). If writing fails, the next writer or `milblob.recover` completes the change; this object then
    refuses everything except `close`, which reports it.

    Weight files, and immediates whose new bytes have the same length, are changed in place: views of them show the new
    values, and the cost is that of the changed bytes. Otherwise, and for values in MIL text, a new file replaces the
    model file, and tensors obtained earlier keep showing the old values.

    There is one writer at a time. Locks keep other processes out. If several threads assign, flush or close at once,
    all but the first get a RuntimeError, and the first loses nothing. Any number of threads may read.

    Examples:
        >>> with milblob.open("demo.mlpackage", "r+") as model:
        ...     model["head_bias"] = np.ones(96, np.float32)
        >>> milblob.load("demo.mlpackage")["head_bias"].max()
        np.float32(1.0)
    """

    def __init__(
        self,
        source: Any,
        *,
        constants: bool = False,
        stored: bool = False,
        locked: bool = False,
        max_nbytes: int | None = None,
    ) -> None:
        """Open for reading and writing, as `milblob.open`. With `locked`, the caller holds the directory's lock.

        A change that was interrupted is completed first.
        """
        self._staged: dict[str, Assignment] = {}
        self._fds: dict[str, int] = {}
        self._lock_fd = -1
        self._process = here()
        source = source_of(source)
        if not isinstance(source, str | os.PathLike):
            raise TypeError(f"source for mode 'r+': expected a path, got {type(source).__name__}")
        path = as_path(source)
        self._turn = _codec.Turn(f"model {path} in mode 'r+'")
        around = paths.above(path, PACKAGES)
        if around is not None:  # one lock and one journal per model
            raise ValueError(f"path for mode 'r+': expected the whole model {around}, got {path} in it")
        package = Package(path, on_pending=complete, max_nbytes=max_nbytes)
        super().__init__(package, constants=constants, stored=stored)
        self._root, self._base = pending.place(path, self.package.is_directory)
        try:
            self._lock(path, locked)
        except BaseException:
            self._release()
            raise
        sweep(self._root)

    def _lock(self, path: str, locked: bool) -> None:
        """Keep other writers out, and make sure that the mapped file is still the current one."""
        if self._base:
            self.writable(self.package.mappings[0])
        elif (
            not locked and os.name != "nt"
        ):  # Windows cannot lock directories; each file is locked at its first assignment
            self._lock_fd = os.open(self._root, os.O_RDONLY)
            lock(self._lock_fd, self._root)
        pending.require_none(path)  # from a writer that died after the model was opened
        for mapped in self.package.mappings:
            _require_same(mapped.fd, cast(str, mapped.name))
            pending.sweep_staged(paths.real(cast(str, mapped.name)))

    def writable(self, mapped: MappedFile) -> str:
        """Open a file of the model for writing, locked; return its path from the root. For milblob's own modules."""
        real = paths.real(cast(str, mapped.name))
        relative = os.path.relpath(real, self._root).replace(os.sep, "/")
        if relative.split("/")[0] == "..":
            raise ResolveError(f"file to change: expected one inside {self._root}, got {real}")
        if relative not in self._fds:
            fd = os.open(real, _FLAGS)
            try:
                lock(fd, real)
                _require_same(mapped.fd, real)
                if not os.path.samestat(
                    os.fstat(fd), os.fstat(mapped.fd)
                ):  # compare: the mapped file was opened inside the model
                    raise FormatError("file: expected the one that was opened, got another by that name", file=real)
            except BaseException:
                os.close(fd)
                raise
            self._fds[relative] = fd
        return relative

    # ------------------------------------------------------------------------------------------------------ assignment

    def __setitem__(self, name: str, values: Any) -> None:
        """Give a weight new values, which `flush` or `close` writes.

        Args:
            name: as for reading.
            values: array of the weight's dtype and shape. For a sub-byte dtype also int8 or uint8, one element per
                byte; every element is checked.

        Raises:
            KeyError: no such tensor.
            TypeError: another dtype. ValueError: another shape; the model is closed.
            RuntimeError: another thread is assigning or writing.
            OverflowError: an element outside a sub-byte dtype.
            UnsupportedError: a compressed weight (its parts can be set: stored=True).
            BlockingIOError: another writer has the file. OSError: it cannot be written to.
            As `Tensor.read`.
        """
        with self._turn:
            self.package.require_open()
            tensor = self[name]
            values = values if hasattr(values, "mil_dtype") else array_of(values)
            require_fit(tensor, values)
            data, array, _ = encode(tensor, values)
            new = (array if array.dtype == tensor.dtype else array.astype(tensor.dtype)).view()
            new.flags.writeable = False
            stored = stored_of(tensor)
            self.writable(stored.mapping)
            self._staged[tensor.name] = Assignment(tensor, data, stored)
            self.package.assigned[tensor.name] = new

    def flush(self) -> None:
        """Write everything that was assigned, all or nothing.

        Raises:
            ValueError: a weight was assigned, but not another weight that is the same blob. Nothing is written.
            PendingChangeError: another writer was interrupted, and its change must be completed first.
            OSError: from the system. If the journal was complete by then, the next writer or `milblob.recover`
                completes the change, and this object refuses everything except `close`; else nothing has changed.
        """
        with self._turn:
            self.package.require_sound()
            if self._write_assigned():
                self._reopen()

    def _write_assigned(self) -> set[str]:
        """Write what was assigned; return the files that are new ones now."""
        if not self._staged:
            return set()
        require_unshared(self, {name: a.data for name, a in self._staged.items() if a.tensor.is_blob})
        require_no_other_data(self, [assigned.tensor for assigned in self._staged.values()])
        replaced = self.commit(*_plan(self._staged.values(), self.writable))
        self._forget()
        return replaced

    def commit(self, patches: Iterable[journal.Patch], replacements: Iterable[journal.Replacement]) -> set[str]:
        """Change files of the model, all or none; return those that are new ones now. For milblob's own modules.

        Args:
            patches, replacements: as for `journal.commit`; their paths are from `writable`.
        """
        if not self._process.is_here:  # its descriptors, and so the lock, belong to the process that opened the model
            raise RuntimeError("model in mode 'r+': expected to be written by the process that opened it, got a fork")
        progress = journal.CommitProgress()
        try:
            return journal.commit(self._root, self._base, patches, replacements, self._fds, progress)
        except BaseException:
            if progress.is_published:
                self._give_up()
            raise

    def _give_up(self) -> None:
        """Let other processes complete a change whose journal exists; this object may not read or write any more."""
        self.package.unsound = True
        self._forget()
        self._unlock()

    def _reopen(self) -> None:
        """Map the current files; existing tensors keep what they have."""
        self._close_fds()
        try:
            fresh = Model(
                cast(str, self.path), constants=self._constants, stored=self._stored_view,
                max_nbytes=self.package.budget.given_nbytes,
            )  # fmt: skip
        except BaseException:  # all is written, but the mapping no longer matches the files
            self._give_up()
            raise
        self.__dict__.update(vars(fresh))  # in one step, for threads that read
        if self._base:
            try:
                self.writable(self.package.mappings[0])
            except BaseException:  # another writer has it now
                self._give_up()
                raise

    def discard(self) -> None:
        """Forget everything that was assigned but not written yet.

        Raises:
            FormatError: it may have been written in part (see `flush`).
        """
        with self._turn:
            self.package.require_sound()
            self._forget()

    def _forget(self) -> None:
        self._staged.clear()
        self.package.assigned.clear()

    def close(self) -> None:
        """Write what was assigned, as `flush` does, and close every file; raise if another thread is writing.

        Raises:
            FormatError: an earlier `flush` failed after its journal was complete. Nothing is written, and every file is
                closed; `milblob.recover` completes that change.
            As `flush`.
        """
        with self._turn:
            try:
                if not self.package.closed:
                    self.package.require_sound()
                    self._write_assigned()
            finally:
                self._release()

    def __exit__(self, kind: object = None, *_: object) -> None:
        if kind is None:
            self.close()
        elif not self._process.is_here:  # no other thread is in a forked process, not even one that had the turn
            self._release()
        else:
            self._turn.when_free(self._release)  # waits for a writing thread

    def _release(self) -> None:
        try:
            self._forget()
            super().close()
        finally:
            self._unlock()

    def _close_fds(self) -> None:
        is_ours = self._process.is_here
        for relative, fd in list(self._fds.items()):  # after Ctrl-C, `__del__` closes those that are left
            del self._fds[relative]
            try:
                if is_ours:
                    unlock(fd)
            finally:  # closing unlocks it too
                os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_process"):  # else Ctrl-C came before it had anything
            self._unlock()

    def _unlock(self) -> None:
        try:
            self._close_fds()
        finally:
            give_back(self, "_lock_fd", self._process.is_here)


def _require_same(fd: int, path: str) -> None:
    if not os.path.samestat(os.fstat(fd), os.stat(path)):
        raise FormatError("file: expected the one that was opened, got another by that name", file=path)


def _plan(
    assignments: Iterable[Assignment], place: Callable[[MappedFile], str]
) -> tuple[list[journal.Patch], list[journal.Replacement]]:
    """Decide what to change where: bytes in place, or the whole model file: of text, or if a length changes."""
    by_file: dict[str, list[Assignment]] = {}
    for assignment in assignments:
        by_file.setdefault(place(assignment.stored.mapping), []).append(assignment)
    patches, replacements = [], []
    for path, group in by_file.items():
        first = group[0]
        if not is_in_text(first.tensor) and all(len(a.data) == a.stored.nbytes for a in group):
            patches += [journal.Patch(path, a.stored.offset, a.data) for a in group]
            continue
        program = cast(OpenProgram, first.tensor.program)  # of several in one file they have the same bytes
        edits = [wire_edits.value_edit(program.scan.buffer, a.tensor.constant, tensor=a.data) for a in group]
        new = program.edited(wire_edits.combined(edits))
        replacements.append(journal.Replacement(path, new.write_to))
    return patches, replacements
