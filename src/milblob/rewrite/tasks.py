"""The plan of a repack as data: each record's place, source bytes and kernel, divided into tasks.

The plan is complete before a byte is written: every offset is known, so workers (threads or processes) write disjoint
ranges. Everything in a `Task` can be pickled. `execute.py` runs them.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import InitVar, dataclass, field
from typing import NamedTuple

from .. import _codec
from ..analysis.reopening import Reopened
from ..dtypes import DType
from ..storage.source_file import SourceFile
from ..values.dense import Dense
from .parts import WeightParts

COPY, CAST, VALUE, DENSE, HELD, COMPUTED = "copy", "cast", "value", "dense", "held", "computed"
TASK_NBYTES = 16 << 20


@dataclass(eq=False, slots=True)
class Item:
    """One record of the result."""

    origin: SourceFile  # where its bytes come from
    span: InitVar[tuple[int, int]]  # the same as `start` and `nbytes`
    dtype: DType  # of the stored elements
    count: int
    base: str  # directory of the model that refers to it, relative to the root of the result; replaces @model_path
    file: str  # the weight file, relative to the root, such as "Data/com.apple.CoreML/weights/weight.bin"
    # COPY, CAST, VALUE (a TensorValue to decode), DENSE (a compressed weight to decode), HELD (bytes in memory: of a
    # value in MIL text, of a part) or COMPUTED (a part that is computed while it is written). Tasks have nothing of the
    # last two; those of `make_tasks` have no DENSE either.
    how: str = COPY
    start: int = field(init=False)  # in the origin; for VALUE, of a TensorValue message
    nbytes: int = field(init=False)
    target: DType = field(init=False)  # dtype in the result; equal to `dtype` for COPY and VALUE
    open: Callable[[], Dense] | None = None  # for DENSE, returns what computes the elements
    held: _codec.Buffer | None = None  # for HELD, the stored bytes
    computed: tuple[WeightParts, str] | None = None  # for COMPUTED, the parts and the key of this one
    shape: tuple[int, ...] = ()  # as declared; used by VALUE
    name: str = ""  # of the first tensor that refers to it; for an unreferenced record, its file and number
    order: tuple[int, ...] = ()  # sort key of the records in a file
    user: str | None = None  # the function that refers to it; "" if several do, None if none does
    offset: int = 0  # of the metadata in the file, once `lay_out` has set it
    data_offset: int = 0
    before: tuple[str, int] | None = None  # (file, offset) in the source; None for a value that was in the Program
    _first: "Item | None" = None  # not itself: a cycle would hold the bytes of parts

    def __post_init__(self, span: tuple[int, int]) -> None:
        self.start, self.nbytes = span
        self.target = self.dtype

    @property
    def first(self) -> "Item":
        """The equal item that replaces this one; itself if there is none."""
        return self if self._first is None else self._first

    @first.setter
    def first(self, item: "Item") -> None:
        self._first = None if item is self else item

    def add_user(self, function: str | None) -> None:
        """Record that a function refers to it too; None for an unreferenced record."""
        if self.user is None:
            self.user = function
        elif function not in (None, self.user):
            self.user = ""

    @property
    def target_nbytes(self) -> int:
        """Bytes of data in the result."""
        return self.target.nbytes(self.count)

    def metadata(self) -> bytes:
        """The 64 bytes of its metadata in the result."""
        padding_nbits = self.target_nbytes * 8 - self.count * self.target.nbits
        return _codec.blob_metadata(self.target.blob_code or 0, self.target_nbytes, self.data_offset, padding_nbits)


class Step(NamedTuple):
    """One record, or a part of a large one, for a worker: an Item with all decisions made."""

    number: int  # of the item
    how: str
    origin: SourceFile
    start: int  # of the source. count, first_index: of elements (with CAST and DENSE).
    nbytes: int
    dtype: str
    target: str
    count: int  # type: ignore[assignment]  # hides tuple.count
    first_index: int
    shape: tuple[int, ...]
    metadata: bytes  # of the record, to be written at `offset`; b"" for a part that does not begin it
    offset: int
    data_offset: int
    written_nbytes: int  # bytes written at `data_offset`
    name: str


class Task(NamedTuple):
    """Steps that fill one range of one file, starting at `begin`; nothing else writes there."""

    path: str
    begin: int
    steps: tuple[Step, ...]
    overflow: str = "error"
    nan: str = "keep"
    source: Reopened | None = None  # of steps with DENSE: what a worker opens to find the weights by their names


def lay_out(items: Iterable[Item], align: int) -> dict[str, tuple[list[Item], int]]:
    """Set the offsets of all items. Returns: file -> (its items in order, its size in bytes)."""
    by_file: dict[str, list[Item]] = {}
    for item in items:
        by_file.setdefault(item.file, []).append(item)
    result = {}
    for file, own in by_file.items():
        own.sort(key=lambda item: item.order)
        end = 64
        for item in own:
            item.offset, item.data_offset = _codec.blob_place(end, align)
            end = item.data_offset + item.target_nbytes
        result[file] = own, end
    return result


def make_tasks(path: str, items: list[Item], first: int, overflow: str, nan: str) -> list[Task]:
    """Divide the records of one file among workers.

    Args:
        path: the file, which exists, has its final size, and holds zeros after its header.
        items: all of its records, in order.
        first: number of the first item, which identifies the results.
        overflow, nan: policies of casts.
    """
    tasks: list[Task] = []
    steps: list[Step] = []
    begin = 64
    for number, item in enumerate(items, first):
        for step in _steps(number, item) if item.how not in (DENSE, HELD, COMPUTED) else ():
            steps.append(step)
            end = step.data_offset + step.written_nbytes
            if end - begin >= TASK_NBYTES:
                tasks.append(Task(path, begin, tuple(steps), overflow, nan))
                steps, begin = [], end
    if steps:
        tasks.append(Task(path, begin, tuple(steps), overflow, nan))
    return tasks


def _steps(number: int, item: Item) -> Iterator[Step]:
    """Yield one step; several for a record that is large enough to be shared among workers."""
    nbytes = item.target_nbytes
    if item.how == CAST:
        count, source_nbytes, target_nbytes = item.count, item.dtype.nbits // 8, item.target.nbits // 8
    else:  # bytes
        count, source_nbytes, target_nbytes = item.nbytes, 1, 1
    part = TASK_NBYTES // max(source_nbytes, target_nbytes)
    is_whole = item.how == VALUE or count <= 2 * part
    for done in (0,) if is_whole else range(0, count, part):
        now = count if is_whole else min(part, count - done)
        yield Step(
            number, item.how, item.origin, item.start + done * source_nbytes, now * source_nbytes, item.dtype.name,
            item.target.name, now, done, item.shape, b"" if done else item.metadata(), item.offset,
            item.data_offset + done * target_nbytes, nbytes if is_whole else now * target_nbytes, item.name,
        )  # fmt: skip
