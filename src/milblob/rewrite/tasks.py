"""The plan of a repack as data: each record's place, source bytes and kernel; and how workers write it.

The plan is complete before a byte is written: every offset is known, so workers (threads or processes) write disjoint
ranges. Everything in a `Task` can be pickled.
"""

import os
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from .. import _codec
from ..dtypes import DType
from ..errors import FormatError
from ..storage.mapped import MappedFile
from ..storage.transfer import copy_range, write_at
from ..threads import ordered
from ..values.cast import CastCounts, convert_into
from ..values.dense import Dense, read
from ..values.tensorvalue import stored_bytes, unpack_at

if TYPE_CHECKING:
    from concurrent.futures import Executor, Future

COPY, CAST, VALUE, DENSE = "copy", "cast", "value", "dense"
TASK_NBYTES = 16 << 20
_STAGING_NBYTES = 1 << 20
_CAST_NBYTES = 1 << 18  # of the wider type: both sides of a part stay in the second-level cache
_ZEROS = bytes(1 << 20)
SETTLED_S = 300.0
"""So long after the last change of a file the system has written its data to the disk."""


class Origin(NamedTuple):
    """A source file of bytes, and its state, which shows whether it has changed."""

    path: str
    device: int
    inode: int
    nbytes: int
    changed_ns: int

    @classmethod
    def of(cls, mapping: MappedFile) -> "Origin":
        """Describe a mapped file."""
        status = os.fstat(mapping.fd)
        path = os.path.abspath(str(mapping.name))
        return cls(path, status.st_dev, status.st_ino, mapping.nbytes, status.st_mtime_ns)

    def open(self) -> MappedFile:
        """Map it.

        Raises:
            FormatError: the file was replaced or written to.
        """
        mapping = MappedFile(self.path)
        try:
            self.require_same(mapping.fd)
        except BaseException:
            mapping.close()
            raise
        return mapping

    def require_same(self, fd: int) -> None:
        """Refuse another file, or one that was written to meanwhile.

        Raises:
            FormatError.
        """
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns) != self[1:]:
            words = "file: expected the one that was planned for, unchanged, got another or a changed one"
            raise FormatError(words, file=self.path)


class Item:
    """One record of the result.

    Attributes:
        origin, start, nbytes: where its bytes come from. For VALUE they are a TensorValue message.
        dtype, count: of the stored elements.
        target: dtype in the result; equal to `dtype` for COPY and VALUE.
        how: COPY, CAST, VALUE (a TensorValue to decode) or DENSE (a compressed weight to decode).
        open: for DENSE, returns what computes the elements. Such items are written by `write_dense`, not by tasks,
            since what computes them cannot be pickled.
        shape: declared shape; used by VALUE.
        name: of the first tensor that refers to it; for an unreferenced record, its file and number.
        base: directory of the model that refers to it, relative to the root of the result: what @model_path stands for.
        file: the result's weight file, relative to the root, such as "Data/com.apple.CoreML/weights/weight.bin".
        order: sort key of the records in a file.
        users: functions that refer to it.
        offset, data_offset: in that file, once `lay_out` has set them.
        before: (file, offset) in the source; None for a value that was in the Program.
        first: the equal item that replaces this one; itself if there is none.
    """

    __slots__ = (
        "base", "before", "count", "data_offset", "dtype", "file", "first", "how", "name", "nbytes", "offset", "open",
        "order", "origin", "shape", "start", "target", "users",
    )  # fmt: skip

    def __init__(
        self, origin: Origin, span: tuple[int, int], dtype: DType, count: int, base: str, file: str, how: str = COPY
    ) -> None:
        self.origin = origin
        self.start, self.nbytes = span
        self.dtype = self.target = dtype
        self.count = count
        self.base = base
        self.file = file
        self.how = how
        self.open: Callable[[], Dense] | None = None
        self.shape: tuple[int, ...] = ()
        self.name = ""
        self.order: tuple[int, ...] = ()
        self.users: set[str] = set()
        self.offset = self.data_offset = 0
        self.before: tuple[str, int] | None = None
        self.first: Item = self

    @property
    def target_nbytes(self) -> int:
        """Bytes of data in the result."""
        return self.target.nbytes(self.count)

    def metadata(self) -> bytes:
        """The 64 bytes of its metadata in the result."""
        padding_nbits = self.target_nbytes * 8 - self.count * self.target.nbits
        return _codec.blob_metadata(self.target.blob_code or 0, self.target_nbytes, self.data_offset, padding_nbits)


class Step(NamedTuple):
    """One record, or a part of a large one, for a worker: an Item with all decisions made.

    Attributes:
        number: of the item.
        start, nbytes: of the source. count, first_index: of elements (with CAST).
        metadata: of the record, to be written at `offset`; b"" for a part that does not begin it.
        written_nbytes: bytes written at `data_offset`.
    """

    number: int
    how: str
    origin: Origin
    start: int
    nbytes: int
    dtype: str
    target: str
    count: int  # type: ignore[assignment]  # hides tuple.count
    first_index: int
    shape: tuple[int, ...]
    metadata: bytes
    offset: int
    data_offset: int
    written_nbytes: int
    name: str


class Task(NamedTuple):
    """Steps that fill one range of one file, starting at `begin`; nothing else writes there."""

    path: str
    begin: int
    steps: tuple[Step, ...]
    overflow: str
    nan: str


def lay_out(items: Iterable[Item], align: int) -> dict[str, tuple[list[Item], int]]:
    """Set the offsets of all items.

    Returns:
        file -> (its items in order, its size in bytes).
    """
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
        first: number of the first item, to tell results apart.
        overflow, nan: policies of casts.
    """
    tasks: list[Task] = []
    steps: list[Step] = []
    begin = 64
    for number, item in enumerate(items, first):
        for step in _steps(number, item) if item.how != DENSE else ():
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


def run_tasks(executor: "Executor | None", tasks: list[Task], done: Callable[[Task, Any], None]) -> None:
    """Run tasks, and call `done` with each task and its result, in order, in this thread.

    After an error, in a task or in `done`, no new task starts, and running ones are waited for.

    Args:
        executor: None for threads (see threads.py) if something is computed; copies run in this thread, because file
            systems allow one writer at a time in a file.
    """
    if executor is None:
        computes = any(step.how != COPY for task in tasks for step in task.steps)
        for task, result in zip(tasks, ordered(run_task, tasks, computes), strict=True):
            done(task, result)
        return
    from concurrent.futures import wait

    futures: list[Future[Any]] = []
    try:
        for task in tasks:
            futures.append(executor.submit(run_task, task))  # noqa: PERF401  # the list survives if a submit fails
        for task, future in zip(tasks, futures, strict=True):
            done(task, future.result())
    finally:
        for future in futures:
            future.cancel()
        wait(futures)


def run_task(task: Task) -> list[tuple[int, CastCounts]]:
    """Write the records of a task. Runs in any thread or process.

    Returns:
        Counts of the casts among them: (number, counts).

    Raises:
        OSError, FormatError: a file cannot be read or written. OverflowError, ValueError: the policies of casts; the
            tensor is named.
    """
    fd = os.open(task.path, os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    sources: dict[Origin, MappedFile] = {}
    counts: list[tuple[int, CastCounts]] = []
    output = _Output(fd, task.begin)
    try:
        for step in task.steps:
            source = sources.get(step.origin)
            if source is None:
                source = sources[step.origin] = step.origin.open()
            if step.metadata:
                output.put(step.metadata, step.offset)
            if step.how == CAST:
                counts.append((step.number, _cast(step, source, output, task)))
            elif step.how == VALUE:
                buffer, dtype = source.check_size(), DType[step.dtype]
                values = unpack_at(buffer, step.start, step.nbytes, dtype, step.shape)
                output.put(stored_bytes(values, dtype), step.data_offset)
            elif step.nbytes <= _STAGING_NBYTES // 4:
                view = memoryview(source.check_size())
                output.put(view[step.start : step.start + step.nbytes], step.data_offset)
            else:
                output.flush()
                for start, nbytes in data_ranges(source, step.start, step.nbytes):
                    copy_range(source, start, nbytes, fd, step.data_offset + start - step.start)
        output.flush()
    finally:
        os.close(fd)
        for source in sources.values():
            source.close()
    return counts


def write_dense(path: str, item: Item, done: Callable[[int], None]) -> None:
    """Write the record of a compressed weight as dense values, a piece at a time.

    Args:
        path: the file, which exists and has its final size.
        item: with DENSE.
        done: called with the number of bytes of each piece.

    Raises:
        FormatError: parts that do not match. OSError: the file cannot be written.
    """
    dense, nbits = cast("Callable[[], Dense]", item.open)(), item.target.nbits
    unit = 8 * max(dense.unit, 1)  # packed elements must fill whole bytes
    part = max(TASK_NBYTES // item.target.numpy.itemsize // unit, 1) * unit
    space = np.empty(min(part, item.count), item.target.numpy)
    fd = os.open(path, os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        write_at(fd, [item.metadata()], item.offset)
        for begin in range(0, item.count, part):
            count = min(part, item.count - begin)
            values = stored_bytes(read(dense, space[:count], begin, (count,)), item.target)
            write_at(fd, [values], item.data_offset + begin * nbits // 8)
            done(len(values))
    finally:
        os.close(fd)


class _Output:
    """Collects small writes to neighbouring places; gaps between them are zero."""

    def __init__(self, fd: int, begin: int) -> None:
        self.fd = fd
        self._pieces: list[Any] = []
        self._begin = self._end = begin

    def put(self, data: Any, offset: int) -> None:
        nbytes = len(data)
        gap = offset - self._end
        if gap != 0 and (gap < 0 or gap >= 1 << 16 or not self._pieces):
            self.flush()
            self._begin = self._end = offset
        elif gap:
            self._pieces.append(bytes(gap))
        self._pieces.append(data)
        self._end = offset + nbytes
        if self._end - self._begin >= _STAGING_NBYTES:
            self.flush()

    def flush(self) -> None:
        if self._pieces:
            # One copy in memory: a system call per small piece would cost more.
            data = b"".join(self._pieces) if len(self._pieces) > 2 else None
            write_at(self.fd, [data] if data is not None else self._pieces, self._begin)
        self._pieces = []
        self._begin = self._end


def _cast(step: Step, source: MappedFile, output: _Output, task: Task) -> CastCounts:
    """Convert one record, or a part of it, in cache-sized chunks. Holes are zero and stay holes."""
    dtype, target = DType[step.dtype], DType[step.target]
    source_nbytes, target_nbytes = dtype.nbits // 8, target.nbits // 8
    part = _CAST_NBYTES // max(source_nbytes, target_nbytes)
    out = np.empty(part, target.numpy)
    total = CastCounts()
    output.flush()
    end = 0  # elements done: data ranges may begin and end in the middle of an element
    for start, nbytes in data_ranges(source, step.start, step.nbytes):
        done = max(end, (start - step.start) // source_nbytes)
        end = -(-(start - step.start + nbytes) // source_nbytes)
        while done < end:
            count = min(part, end - done)
            into, at = out[:count], step.start + done * source_nbytes
            try:
                counts = convert_into(
                    into, source.check_size(), at, count, dtype, target, overflow=task.overflow, nan=task.nan,
                    first_index=step.first_index + done,
                )  # fmt: skip
            except FormatError:
                raise
            except (OverflowError, ValueError) as error:
                raise type(error)(f"{step.name or 'record'}: {error}") from None
            total = add_counts(total, counts)
            write_at(output.fd, [into.view(np.uint8)], step.data_offset + done * target_nbytes)
            done += count
    return total


def add_counts(a: CastCounts, b: CastCounts) -> CastCounts:
    """Return the sum of two parts' counts."""
    return CastCounts(a.overflow + b.overflow, a.nan + b.nan, a.underflow + b.underflow)


def data_ranges(mapping: MappedFile, start: int, nbytes: int) -> Iterator[tuple[int, int]]:
    """Yield (start, nbytes) of the bytes to write to a file of zeros: everything but the holes of a sparse file.

    Some file systems have reported unwritten data as holes. So a hole in a recently changed file is read, and skipped
    only if it is zero.
    """
    end = start + nbytes
    seek_data, seek_hole = getattr(os, "SEEK_DATA", None), getattr(os, "SEEK_HOLE", None)
    if mapping.fd < 0 or seek_data is None or seek_hole is None:
        yield start, nbytes
        return
    is_settled = time.time() - os.fstat(mapping.fd).st_ctime > SETTLED_S
    while start < end:
        try:
            hole = min(os.lseek(mapping.fd, start, seek_hole), end)
        except OSError:  # not supported here
            hole = end
        data = _end_of_hole(mapping.fd, hole, end, seek_data)
        if data <= start:  # another process is writing to it
            hole = data = end
        if hole > start:
            yield start, hole - start
        if not is_settled and not _is_zero(mapping.fd, hole, data - hole):
            yield hole, data - hole
        start = data


def _end_of_hole(fd: int, hole: int, end: int, seek_data: int) -> int:
    if hole == end:
        return end
    try:
        return min(os.lseek(fd, hole, seek_data), end)
    except OSError:  # ENXIO: a hole up to the end of the file
        return end


def _is_zero(fd: int, start: int, nbytes: int) -> bool:
    """Whether all bytes of a range exist and are zero. They are read, not mapped, so no pages become resident."""
    end = start + nbytes
    while start < end:
        data = os.pread(fd, min(len(_ZEROS), end - start), start)
        if not data or data != _ZEROS[: len(data)]:
            return False
        start += len(data)
    return True
