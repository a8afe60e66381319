"""A model whose weights can be assigned: values are checked and kept, then written together."""

import os
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..dtypes import DType, as_dtype
from ..errors import FormatError, MilblobError, ResolveError, UnsupportedError
from ..program import wire_edits
from ..program.scan import Program
from ..program.splice import Spliced, splice
from ..progress import Counter
from ..storage import journal, paths, pending
from ..storage.beneath import Location
from ..storage.mapped import MappedFile
from ..storage.output import lock, sweep, unlock
from ..storage.turns import Turn
from ..values.cast import CastCounts, cast_array, is_castable
from ..values.tensorvalue import pack_tensor, stored_bytes
from .model import Model
from .package import Source, resolve
from .places import RecordPlace
from .tensor import Tensor

_ONE_BYTE = (DType.INT8, DType.UINT8)
_FLAGS = os.O_RDWR | sum(getattr(os, name, 0) for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_BINARY"))


class Assignment(NamedTuple):
    """New values of one tensor in their stored form.

    Attributes:
        tensor: the tensor that gets them.
        values: as `Tensor.read` returns them, read-only.
        data: the bytes to write: elements, or a TensorValue.
        mapping: the file to change.
        offset, nbytes: the bytes to replace.
        given, given_dtype: name and dtype of the source values.
        counts: the cast's counts.
    """

    tensor: Tensor
    values: np.ndarray[Any, Any]
    data: Any
    mapping: MappedFile
    offset: int
    nbytes: int
    given: str
    given_dtype: DType
    counts: CastCounts

    @property
    def is_in_place(self) -> bool:
        """Whether the new bytes are as many as the old ones."""
        return len(self.data) == self.nbytes


def assignment_of(tensor: Tensor, values: Any, given: str, can_cast: bool, overflow: str) -> Assignment:
    """Return what is needed to give a tensor new values; writes nothing.

    Args:
        values: array, or a tensor, which is read; known to fit (`require_fit`).
        given: its name in reports.
        can_cast, overflow: as `refit`.

    Raises:
        OverflowError: an element outside the dtype. As `require_fit`.
    """
    own, counts, dtype = _dtype_of(values), CastCounts(), tensor.mil_dtype
    array = values.read() if hasattr(values, "mil_dtype") else np.asarray(values)
    place = tensor.stored_place
    try:
        if own is not dtype and can_cast:
            array, counts = cast_array(array, dtype, overflow=overflow)
        if isinstance(place, RecordPlace):
            reader, record = place.record()
            mapping, offset, nbytes = reader.mapping, record.data_offset, record.nbytes
            data: Any = stored_bytes(array, dtype)
        else:
            mapping = typing.cast(Source, tensor.source).mapping
            offset, nbytes = tensor.constant.payload
            data = memoryview(pack_tensor(array, dtype))
    except MilblobError:
        raise
    except (OverflowError, TypeError, ValueError) as error:
        kind = next(kind for kind in (OverflowError, TypeError, ValueError) if isinstance(error, kind))
        raise kind(f"{tensor.name}: {error}") from None
    new = (array if array.dtype == tensor.dtype else array.astype(tensor.dtype)).view()
    new.flags.writeable = False
    return Assignment(tensor, new, data, mapping, offset, nbytes, given, own, counts)


def _dtype_of(values: Any) -> DType:
    own = getattr(values, "mil_dtype", None)
    return own if own is not None else as_dtype(np.asarray(values).dtype)


def require_fit(tensor: Tensor, values: Any, can_cast: bool) -> None:
    """Refuse values that cannot become those of a tensor; does not look at their elements.

    Raises:
        UnsupportedError: a compressed weight, an immediate of MIL text.
        TypeError: another dtype. ValueError: another shape.
        As looking up the tensor's record.
    """
    name, dtype, source = tensor.name, tensor.mil_dtype, tensor.source
    if tensor.compression:
        words = f"{name}: expected a weight that is stored dense, got {tensor.op} (its parts can be set: stored=True)"
        raise UnsupportedError(words)
    own, shape = _dtype_of(values), tuple(np.shape(values) if not hasattr(values, "shape") else values.shape)
    is_packed_later = dtype.is_sub_byte and own in _ONE_BYTE  # one element per byte; each is checked
    if own is not dtype and not is_packed_later and not (can_cast and is_castable(own, dtype)):
        wanted = f"{dtype}, or that can become it" if can_cast else dtype
        raise TypeError(f"{name}: expected elements of {wanted}, got {own}")
    if shape != tensor.shape:
        raise ValueError(f"{name}: expected shape {tensor.shape}, got {shape}")
    place = tensor.stored_place
    if isinstance(place, RecordPlace):
        with place.naming():
            place.record()
    elif source is not None and source.is_text:
        words = f"{name}: expected a value in a weight file, got one in MIL text, which is not edited"
        raise UnsupportedError(words, file=source.mapping.name)
    else:
        wire_edits.require_plain(typing.cast(Program, tensor.program), typing.cast(Source, source).mapping.live())


class EditableModel(Model):
    """A model whose weights can be assigned: `model["w"] = array`. Returned by `milblob.open(path, "r+")`.

    Values must have the dtype and the shape of the weight. They are checked at once and kept (not copied: do not change
    them until they are written). `flush`, `close` or the end of a `with` block writes them together: all or, after an
    exception, none. If the process is killed meanwhile, the model has either all old values or all new ones (see
    docs/architecture.md). If writing itself fails on the way, the change is completed when the model is opened the next
    time; this object then refuses everything except `close`, which reports it.

    Weight files, and immediates whose new bytes have the same length, are changed in place: views of them show the new
    values, and the cost is that of the changed bytes. Otherwise the model file is rewritten to a new file, and tensors
    obtained earlier keep showing the old values.

    There is one writer at a time. Locks keep other processes out. If several threads assign, flush or close at once,
    all but the first get a RuntimeError, and the first loses nothing. Any number of threads may read.
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
        """Open for reading and writing, as `milblob.open`. With `locked`, the caller holds the directory's lock."""
        self._staged: dict[str, Assignment] = {}
        self._fds: dict[str, int] = {}
        self._lock_fd = -1
        self._pid = os.getpid()
        if not isinstance(source, str | os.PathLike):
            raise TypeError(f"source for mode 'r+': expected a path, got {type(source).__name__}")
        path = os.fsdecode(os.fspath(source))
        self._turn = Turn(f"model {path} in mode 'r+'")
        around = pending.enclosing(path)
        if around is not None:  # one lock and one journal per model
            raise ValueError(f"path for mode 'r+': expected the whole model {around}, got {path} in it")
        super().__init__(path, constants=constants, stored=stored, max_nbytes=max_nbytes)
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
            self._writable(self.package.mappings[0])
        elif (
            not locked and os.name != "nt"
        ):  # Windows cannot lock directories; each file is locked at its first assignment
            self._lock_fd = os.open(self._root, os.O_RDONLY)
            lock(self._lock_fd, self._root)
        pending.require_none(path)  # from a writer that died after the model was opened
        for mapped in self.package.mappings:
            _require_same(mapped.fd, typing.cast(str, mapped.name))
            pending.sweep_staged(paths.real(typing.cast(str, mapped.name)))

    def _writable(self, mapped: MappedFile) -> str:
        """Open a file of the model for writing, locked; return its path from the root."""
        real = paths.real(typing.cast(str, mapped.name))
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
            UnsupportedError: a compressed weight (its parts can be set: stored=True), an immediate of MIL text.
            BlockingIOError: another writer has the file. OSError: it cannot be written to.
            As `Tensor.read`.
        """
        with self._turn:
            self.package.require_open()
            tensor = self[name]
            values = values if hasattr(values, "mil_dtype") else np.asarray(values)
            require_fit(tensor, values, False)
            self.stage(assignment_of(tensor, values, tensor.name, False, "error"))

    def stage(self, assignment: Assignment) -> None:
        """Keep new values, which `flush` or `close` writes; for milblob's own modules."""
        self._writable(assignment.mapping)
        self._staged[assignment.tensor.name] = assignment
        self.package.assigned[assignment.tensor.name] = assignment.values

    def flush(self) -> None:
        """Write everything that was assigned, all or nothing.

        Raises:
            ValueError: a weight was assigned, but not another weight that is the same blob. Nothing is written.
            FormatError: another writer was interrupted, and its change must be completed first.
            OSError: from the system. If the journal was complete by then, the change is completed when the model is
                opened the next time, and this object refuses everything except `close`; else nothing has changed.
        """
        with self._turn:
            self.package.require_sound()
            if self.write_assigned():
                self._reopen()

    def write_assigned(self, counter: Counter | None = None) -> set[str]:
        """Write what was assigned; return the files that are new ones now. For milblob's own modules.

        `counter` counts each tensor once its new bytes are written, before they count: what it raises changes nothing.
        """
        if not self._staged:
            return set()
        if self._pid != os.getpid():  # its descriptors, and so the lock, belong to the process that opened the model
            raise RuntimeError("model in mode 'r+': expected to be written by the process that opened it, got a fork")
        require_unshared(self, self._staged)
        patches, replacements = _plan(self._staged.values(), self._writable, counter or Counter(None))
        progress = journal.CommitProgress()
        try:
            replaced = journal.commit(self._root, self._base, patches, replacements, self._fds, progress)
        except BaseException:
            if progress.is_published:
                self._give_up()
            raise
        self._forget()
        return replaced

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
                typing.cast(str, self.path), constants=self._constants, stored=self._stored_view,
                max_nbytes=self.package.budget.given_nbytes,
            )  # fmt: skip
        except BaseException:  # all is written, but the mapping no longer matches the files
            self._give_up()
            raise
        self.__dict__.update(vars(fresh))  # in one step, for threads that read
        if self._base:
            try:
                self._writable(self.package.mappings[0])
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
                closed; opening the model again completes that change.
            As `flush`.
        """
        with self._turn:
            try:
                if not self.package.closed:
                    self.package.require_sound()
                    self.write_assigned()
            finally:
                self._release()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
        else:
            with self._turn.lock:  # waits for a writing thread
                self._release()

    def _release(self) -> None:
        self._forget()
        super().close()
        self.__del__()

    def _close_fds(self) -> None:
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            self._give_back(fd)

    def _give_back(self, fd: int) -> None:
        if self._pid == os.getpid():
            unlock(fd)
        os.close(fd)

    def __del__(self) -> None:
        self._unlock()

    def _unlock(self) -> None:
        self._close_fds()
        fd, self._lock_fd = self._lock_fd, -1
        if fd >= 0:
            self._give_back(fd)


def _require_same(fd: int, path: str) -> None:
    if not os.path.samestat(os.fstat(fd), os.stat(path)):
        raise FormatError("file: expected the one that was opened, got another by that name", file=path)


def _plan(
    assignments: Iterable[Assignment], place: Callable[[MappedFile], str], counter: Counter
) -> tuple[list[journal.Patch], list[journal.Replacement]]:
    """Decide what to change where: bytes in place, or the whole model file if a value needs another length."""
    by_file: dict[str, list[Assignment]] = {}
    for assignment in assignments:
        by_file.setdefault(place(assignment.mapping), []).append(assignment)
    patches, replacements = [], []
    for path, group in by_file.items():
        if all(a.is_in_place for a in group):
            patches += [journal.Patch(path, a.offset, a.data, _counting(counter, [a])) for a in group]
            continue
        mapped = group[0].mapping
        buffer = mapped.check_size()
        changes = [wire_edits.value_edit(buffer, a.tensor.constant, tensor=a.data) for a in group]
        new = splice(mapped, (0, mapped.nbytes), wire_edits.combined(changes))
        replacements.append(journal.Replacement(path, _writing(new, _counting(counter, group))))
    return patches, replacements


def _counting(counter: Counter, group: list[Assignment]) -> Callable[[], None]:
    def written() -> None:
        for a in group:
            counter.add_tensor(a.tensor.name, a.tensor)

    return written


def _writing(new: Spliced, written: Callable[[], None]) -> Callable[[int], None]:
    def write(fd: int) -> None:
        new.write_to(fd)
        written()

    return write


# --------------------------------------------------------------------------------------------------------- shared blobs


def require_unshared(model: Model, staged: Mapping[str, Assignment]) -> None:
    """Refuse to change a blob that is also another weight, unless that weight gets the same values.

    Raises:
        ValueError: it does not; the message names it.
    """
    blobs = [a for a in staged.values() if a.tensor.is_blob and a.tensor.source is not None]
    if not blobs:
        return
    users = blob_users(model)
    places: dict[tuple[Location | None, str], str] = {}
    for a in blobs:
        constant = a.tensor.constant
        key = _place(places, typing.cast(Source, a.tensor.source), constant.text), constant.blob_offset
        for other in users.get(key, ()):
            if other not in staged:
                words = f"{a.tensor.name}: expected new values for {other} too, which is the same blob, got none"
                raise ValueError(words)
            if staged[other].data != a.data:
                words = f"{a.tensor.name}: expected equal values for {other}, which is the same blob, got others"
                raise ValueError(words)


def blob_users(model: Model) -> dict[tuple[str, int], list[str]]:
    """Return the weights, and parts of compressed ones, of each blob: (real path, metadata offset) -> names."""
    places: dict[tuple[Location | None, str], str] = {}
    names = {id(t.constant): t.name for t in model.values() if t.constant is not None}
    users: dict[tuple[str, int], list[str]] = {}
    for source, program in model.scans:
        for c in program.scan.constants:
            if c.storage == _codec.BLOB:
                name = names.get(id(c)) or program.part_names.get(id(c)) or program.path(c.op, c)
                users.setdefault((_place(places, source, c.text), c.blob_offset), []).append(name)
    return users


def _place(places: dict[tuple[Location | None, str], str], source: Source, text: str) -> str:
    """Return the real path of a weight file; an unresolvable reference equals no other."""
    key = (source.directory, text)
    if key not in places:
        try:
            places[key] = resolve(*key).real()
        except ResolveError:
            places[key] = text
    return places[key]
