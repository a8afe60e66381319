"""Turns arrays and weights into changes of files: new values of stored constants, and shared constants to be split.

coremltools stores equal values once: several operations read one constant, several constants are one record. New values
that differ need constants and records of their own.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

from .. import _codec
from ..blobs.appended import Appended
from ..errors import FormatError, UnsupportedError
from ..hashing import hash_bytes
from ..model.assigning import encode, encoded_pieces, is_in_text, stored_of
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.open_program import OpenProgram
from ..model.places import RecordPlace
from ..model.sharing import User, record_users, require_no_other_data
from ..model.tensor import Tensor
from ..program import wire_edits
from ..program.splice import Edit
from ..program.view import Consumer, Operation
from ..progress import ProgressCounter
from ..storage import paths
from ..storage.mapped import MappedFile
from ..values.cast import CastCounts
from ..wording import escape, some
from .pairs import How, RefitItem, described, readers_of
from .problems import ERRORS, Problems
from .requantize import Requantized, requantized
from .write import FileChange, Write

_UNSHARE = "unshare=True (--unshare)"


class Content:
    """New stored bytes, and the items that they come from."""

    def __init__(self, tensor: Tensor, items: list[RefitItem], make: Callable[[], Any], how: How) -> None:
        # tensor: a constant that is stored as such bytes; items: the arrays that they are made of
        self.tensor, self.items, self._how = tensor, items, how
        self._make = make
        self._digest = ""
        self._data: Any = None
        self._error: Exception | None = None

    def make(self) -> Any:
        """Return the bytes; bytes of a value in a Program are kept, because their number is needed first."""
        if self._data is not None:
            return self._data
        self._require_no_error()
        try:
            data = self._make()
        except ERRORS as error:
            self._error = error
            raise
        if not self.tensor.is_blob:
            self._data = data
        return data

    def is_same(self, other: "Content") -> bool:
        """Whether two have the same bytes."""
        own, theirs = self.items, other.items
        if self is other or (self.is_dense and other.is_dense and own[0].values is theirs[0].values):
            return True
        return self._hash() == other._hash()

    def pieces(self) -> Iterator[Any]:
        """Yield the bytes in order: values that are computed, a piece at a time."""
        item = self.items[0]
        is_computed = isinstance(item.values, LazyTensor) and item.values.place.is_computed
        is_float = item.given_dtype.is_float and self.tensor.mil_dtype.is_float
        if not (is_computed and is_float and self.is_dense and self.tensor.is_blob):
            yield self.make()
            return
        self._require_no_error()
        how, total = self._how, CastCounts()
        for data, counts in encoded_pieces(self.tensor, item.values, can_cast=how.can_cast, overflow=how.overflow):
            total = total.plus(counts)
            yield data
        item.counts = total

    def _require_no_error(self) -> None:
        """Raise what making the bytes raised before: one problem, however often they are needed."""
        if self._error is not None:
            raise self._error

    @property
    def is_dense(self) -> bool:
        """Whether the bytes are the values of one array, and not a part of a compressed weight."""
        return self.items[0].tensor is self.tensor

    def _hash(self) -> str:
        if not self._digest:
            self._digest = hash_bytes(memoryview(self.make()))
        return self._digest


class RefitPlan:
    """The changes of a refit to the files of a model; nothing is written."""

    def __init__(self, model: Model, items: list[RefitItem], how: How) -> None:
        """Plan, and find problems of every weight before any is raised.

        Raises: As `refit`, one problem or a ValueError that lists them.
        """
        self.items = items  # the arrays and the weights that they are for
        self._model, self._how = model, how
        counter = ProgressCounter(how.progress)
        self._contents: dict[str, Content] = {}
        self._files: dict[str, FileChange] = {}
        self._new: dict[tuple[OpenProgram, tuple[int, int]], tuple[Tensor, list[bytes]]] = {}
        self._names: set[str] = set()
        self._recent: list[Requantized] = []
        self._every: list[Content] = []
        problems = Problems()
        by_tensor: dict[str, list[RefitItem]] = {}
        for item in items:
            by_tensor.setdefault(item.tensor.name, []).append(item)
        for group in counter.noting(by_tensor.values(), lambda group: group[0].name):
            try:
                (self._add_chain if group[0].tensor.chain is not None else self._add_dense)(group)
            except ERRORS as error:
                problems.add(error)
        self._every = list(self._contents.values())
        self._add_records(problems)
        for content in counter.noting(self._contents.values(), lambda content: content.tensor.name):
            try:
                self._add_write(content.tensor, content)
            except ERRORS as error:
                problems.add(error)
        if problems:
            self._make_all(problems)
        problems.raise_any()
        self._add_operations()
        self.changes = list(self._files.values())  # of each file
        for change in self.changes:
            _require_apart(change)
        require_no_other_data(self._model, [w.tensor for change in self.changes for w in change.writes], counter)

    def check(self) -> None:
        """Make all new bytes, one weight at a time, and keep none.

        Raises: What does not fit: one problem, or a ValueError that lists them.
        """
        problems = Problems()
        self._make_all(problems)
        problems.raise_any()

    def _make_all(self, problems: Problems) -> None:
        for content in self._every:
            try:
                deque(content.pieces(), maxlen=0)
            except ERRORS as error:
                problems.add(error)

    # ------------------------------------------------------------------------------------------------- stored constants

    def _content(self, tensor: Tensor, item: RefitItem) -> Content:
        how = self._how

        def make() -> Any:
            data, _, item.counts = encode(tensor, item.values, can_cast=how.can_cast, overflow=how.overflow)
            return data

        return Content(tensor, [item], make, how)

    def _add_chain(self, items: list[RefitItem]) -> None:
        """Set the stored parts of a compressed weight."""
        item = items[0]
        if len(items) > 1 or item.consumers is not None:
            message = f"{item.tensor.name}: expected one array for all that read a compressed weight, got several"
            raise UnsupportedError(f"{message} (repack --decompress makes it dense)", file=self._model.path)
        for tensor, make in requantized(item, self._how, self._recent):
            content = Content(tensor, [item], make, self._how)
            other = self._contents.setdefault(tensor.name, content)
            if not other.is_same(content):
                message = f"{tensor.name}: expected equal values for it from {other.items[0].given} and {item.given}"
                raise ValueError(escape(f"{message}, got others"))

    def _add_dense(self, items: list[RefitItem]) -> None:
        """Set a constant, and find out which of its readers need another one."""
        tensor = items[0].tensor
        classes: list[Content] = []
        for item in items:
            content = self._content(tensor, item)
            same = next((other for other in classes if other.is_same(content)), None)
            if same is None:
                classes.append(content)
            else:
                same.items.append(item)
        if len(classes) == 1 and any(
            item.consumers is None for item in items
        ):  # nearly all weights: their readers are not needed
            self._contents[tensor.name] = classes[0]
            return
        readers = readers_of(tensor)
        whole = [c for c in classes if any(item.consumers is None for item in c.items)]
        taken: dict[Consumer, Content] = {}
        for content in classes:
            for reader in (one for item in content.items for one in item.consumers or ()):
                if not taken.setdefault(reader, content).is_same(content):
                    message = f"one array for {described(tensor)}, got {_given([taken[reader], content])}"
                    raise ValueError(escape(f"{tensor.name}: expected {message}"))
        left = [reader for reader in readers if reader not in taken]
        if len(classes) == 1 and not left:
            self._contents[tensor.name] = classes[0]
            return
        self._require_unshare(tensor, classes, whole)
        if whole and not left:
            message = f"an operation to read {whole[0].items[0].given}, got another array for each: {described(tensor)}"
            raise ValueError(escape(f"{tensor.name}: expected {message}"))
        main = whole[0] if whole else None if left else classes[0]
        if main is not None:
            self._contents[tensor.name] = main
        for content in classes:
            own = [reader for reader in dict.fromkeys(readers) if taken.get(reader) is content]
            if content is not main and own:
                self._add_constant(content, own)

    def _require_unshare(self, tensor: Tensor, classes: list[Content], whole: list[Content]) -> None:
        """Refuse what needs several constants, unless that is allowed and it is known which is for what."""
        if not self._how.unshare:
            if len(classes) == 1:
                message = f"an array for all that read it, {described(tensor)}, got one for some of them"
            else:
                message = f"equal arrays for it, got different ones: {_given(classes)}"
            raise ValueError(
                escape(f"{tensor.name}: expected {message}; {_UNSHARE} makes a constant of its own for each")
            )
        if len(whole) > 1:
            message = f"to know which operation reads which of {_given(whole)}; map each to {tensor.name}@OPERATION"
            raise ValueError(escape(f"{tensor.name}: expected {message}, which is read by {described(tensor)}"))

    # ---------------------------------------------------------------------------------------------------------- records

    def _add_records(self, problems: Problems) -> None:
        """Find constants that are one record and are to hold different values."""
        if not self._model.parts:
            return
        for users in record_users(self._model).values():
            if len(users) < 2 or not any(user.name in self._contents for user in users):
                continue
            try:
                self._add_record(users)
            except ERRORS as error:
                problems.add(error)

    def _add_record(self, users: list[User]) -> None:
        classes: list[tuple[Content, list[User]]] = []
        kept = [user for user in users if user.name not in self._contents]
        for user in users:
            content = self._contents.get(user.name)
            if content is not None:
                same = next((found for other, found in classes if other.is_same(content)), None)
                if same is None:
                    classes.append((content, [user]))
                else:
                    same.append(user)
        first, holders = classes[0]
        if not self._how.unshare and (kept or len(classes) > 1):
            if kept:
                message = f"expected new values for {kept[0].name} too, which is the same blob, got none"
            else:
                message = f"expected equal values for {classes[1][1][0].name}, which is the same blob, got others"
            raise ValueError(escape(f"{holders[0].name}: {message}; {_UNSHARE} stores them apart"))
        moved = classes if kept else classes[1:]
        stays = kept[0].name if kept else holders[0].name
        for content, movers in moved:
            offset = self._append(content)
            for user in movers:
                own = self._contents.pop(user.name)
                for item in own.items:
                    item.unshared, item.is_in_place = item.unshared or stays, False
                edit = wire_edits.reference_edit(user.program.scan.buffer, user.constant, user.constant.text, offset)
                self._edit(user.program, [edit])
        for user in () if kept else holders[1:]:  # the same bytes at the same place: one write
            for item in self._contents.pop(user.name).items:
                if item not in first.items:
                    first.items.append(item)

    def _append(self, content: Content) -> int:
        """Plan a new record in the weight file of a constant; return its offset."""
        tensor = content.tensor
        reader = cast(RecordPlace, tensor.stored_place).reader()
        change = self._file(reader.mapping)
        if change.appended is None:
            change.appended = Appended(reader)
        for item in content.items:
            item.nbytes += tensor.mil_dtype.nbytes(tensor.size)
        return change.appended.add(tensor.mil_dtype, tensor.size, content.make)

    # ---------------------------------------------------------------------------------------------------------- Program

    def _add_constant(self, content: Content, consumers: list[Consumer]) -> None:
        """Plan a new constant operation for some consumers of another one."""
        tensor = content.tensor
        program, op = cast(OpenProgram, tensor.program), cast(_codec.Op, tensor.op_row)
        name = wire_edits.unused_name(program.scan, op.name, self._names, 2)
        self._names.add(name)
        value: dict[str, Any] = {"tensor": content.make()}
        if tensor.is_blob:
            value = {"reference": (tensor.constant.text, self._append(content))}
        self._edit(program, [edit for consumer in consumers for edit in _renamings(consumer, name)])
        new = wire_edits.copied_constant(program.scan.buffer, tensor.constant, name, **value)
        self._new.setdefault((program, op.message), (tensor, []))[1].append(new)
        own = tensor.name.removesuffix(op.name)
        for item in content.items:
            item.name, item.unshared, item.is_in_place = f"{own}{name}", tensor.name, False
            item.nbytes = item.nbytes or memoryview(content.make()).nbytes

    def _edit(self, program: OpenProgram, edits: Iterable[Edit | None]) -> None:
        program.require_edits()
        self._file(program.mapping).edits += [edit for edit in edits if edit is not None]

    def _add_operations(self) -> None:
        """Insert each new operation after its original; a copy includes the edits inside the original."""
        for tensor, new in self._new.values():
            op, program = cast(_codec.Op, tensor.op_row), cast(OpenProgram, tensor.program)
            buffer, change = program.scan.buffer, self._file(program.mapping)
            start, end = op.message[0], sum(op.message)
            inside = [edit for edit in change.edits if start <= edit.offset < end]
            values = [w for w in change.writes if start <= w.offset < end]
            inside += [
                edit
                for w in values
                if (edit := wire_edits.value_edit(buffer, w.tensor.constant, tensor=w.make())) is not None
            ]
            change.edits = [edit for edit in change.edits if edit not in inside]
            change.writes = [write for write in change.writes if write not in values]
            change.edits.append(wire_edits.followed_operation(buffer, op, inside, new))

    # ------------------------------------------------------------------------------------------------------------ files

    def _file(self, mapping: MappedFile) -> FileChange:
        name = paths.real(str(mapping.name))
        found = self._files.get(name)
        if found is None:
            holder = next((program for program in self._model.parts if program.mapping is mapping), None)
            found = self._files[name] = FileChange(mapping, holder)
        return found

    def _add_write(self, tensor: Tensor, content: Content) -> None:
        mapping, offset, nbytes = stored_of(tensor)
        new_nbytes = nbytes if tensor.is_blob else memoryview(content.make()).nbytes
        write = Write(content.items[0].name, tensor, offset, nbytes, new_nbytes, content.make, content.pieces)
        self._file(mapping).writes.append(write)
        for item in content.items:
            item.nbytes += new_nbytes
            item.is_in_place &= new_nbytes == nbytes and not is_in_text(tensor)


def _renamings(consumer: Consumer, name: str) -> Iterator[Edit]:
    """Yield the edits after which an operation reads another name."""
    for binding in cast(Operation, consumer.reader).inputs[consumer.parameter]:
        if binding.name == consumer.name:
            yield Edit(*binding.span, name.encode())


def _given(classes: list[Content]) -> str:
    """Name the arrays of some contents, the first of each."""
    return some(content.items[0].given for content in classes)


def _require_apart(change: FileChange) -> None:
    """Refuse records whose data overlap: one of them could not be kept."""
    end = 0
    for write in sorted(change.writes, key=lambda write: write.offset):
        if write.offset < end:
            message = f"data of {write.name}: expected none of another record, got some before byte {end}"
            raise FormatError(message, offset=write.offset, file=change.mapping.name)
        end = write.offset + write.nbytes
