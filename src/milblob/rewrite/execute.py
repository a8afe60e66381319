"""Running the tasks of a plan: workers copy, cast and decode records into files that exist already."""

import contextlib
import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import _codec
from ..analysis.reopening import Reopened
from ..dtypes import DType
from ..progress import ProgressCounter
from ..storage.mapped import MappedFile
from ..storage.source_file import SourceFile
from ..storage.transfer import copy_range, write_at
from ..threads import ordered
from ..values.cast import CastCounts, convert_into, elements_named
from ..values.dense import Dense, read
from ..values.tensorvalue import stored_bytes, unpack_at
from ..workers import workers_of
from .copying import data_ranges, existing_file, new_file
from .parts import Done, Put, WeightParts, write_all
from .tasks import CAST, COMPUTED, COPY, DENSE, HELD, TASK_NBYTES, VALUE, Item, Step, Task, make_tasks

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..executors import Workers

_STAGING_NBYTES = 1 << 20
_CAST_NBYTES = 1 << 18  # of the wider type: input and output of a part fit the second-level cache


def write_weight_files(
    files: Sequence[tuple[str, list[Item], int]],
    counter: ProgressCounter,
    *,
    overflow: str = "error",
    nan: str = "keep",
    executor: "Executor | None" = None,
    source: Reopened | None = None,
    cast_done: Callable[[Item, CastCounts], None] = lambda item, counts: None,
    computed: Done = lambda parts: None,
) -> None:
    """Write new weight files that are laid out: the headers here, the records in workers.

    Args:
        files: path, records in order and size in bytes of each.
        counter: counts every record, or part of one, that is written.
        overflow, nan: policies of casts.
        executor: see `run_tasks`.
        source: of the compressed weights that become dense, for workers.
        cast_done: called with each cast record, or part of one, and its counts.
        computed: called with the parts of each weight that was computed while it was written.

    Raises:
        As `run_task` and `write_dense`.
    """
    tasks: list[Task] = []
    numbered: list[Item] = []
    others: list[tuple[str, Item]] = []
    for path, items, nbytes in files:
        with new_file(path) as fd:
            os.ftruncate(fd, nbytes)
            write_at(fd, [_codec.blob_header(len(items))], 0)
        tasks += make_tasks(path, items, len(numbered), overflow, nan)
        numbered += items
        others += [(path, item) for item in items if item.how in (DENSE, HELD, COMPUTED)]

    def done(task: Task, counts: list[tuple[int, CastCounts]]) -> None:
        for number, found in counts:
            cast_done(numbered[number], found)
        for step in task.steps:
            counter.add(step.name, step.written_nbytes)

    workers = workers_of(executor)
    run_tasks(workers, tasks, done)
    if workers is not None and source is not None:
        run_tasks(workers, _dense_tasks(workers, source, [row for row in others if row[1].how == DENSE]), done)
        others = [row for row in others if row[1].how != DENSE]
    places: dict[WeightParts, list[tuple[str, str, Item]]] = {}
    for path, item in others:  # after the tasks, which may write zeros between their own records
        if item.held is not None:
            _write_held(path, item, memoryview(item.held), partial(counter.add, item.name))
        elif item.computed is not None:
            parts, key = item.computed
            places.setdefault(parts, []).append((key, path, item))
        else:
            write_dense(path, item, cast("Callable[[], Dense]", item.open)(), partial(counter.add, item.name))
    _write_computed(places, counter, computed)


def run_tasks(workers: "Workers | None", tasks: list[Task], done: Callable[[Task, Any], None]) -> None:
    """Run tasks, and call `done` with each task and its result, in order, in this thread.

    After an error, in a task or in `done`, no new task starts, and running ones are waited for.

    `workers`: None for threads (see threads.py) if something is computed; copies run in this thread, because file
    systems allow one writer at a time in a file.
    """
    if workers is None:
        computes = any(step.how != COPY for task in tasks for step in task.steps)
        for task, result in zip(tasks, ordered(run_task, tasks, computes), strict=True):
            done(task, result)
        return
    with contextlib.closing(workers.run(run_task, tasks, lambda task: f"{task.path} from byte {task.begin}")) as found:
        for task, result in zip(tasks, found, strict=True):
            done(task, result)


def run_task(task: Task) -> list[tuple[int, CastCounts]]:
    """Write the records of a task. Runs in any thread or process.

    Returns: Counts of the casts among them: (number, counts).
    Raises: OSError, FormatError: a file cannot be read or written, or has changed; parts that do not match.
    OverflowError, ValueError: the policies of casts; the tensor is named.
    """
    sources: dict[SourceFile, MappedFile] = {}
    counts: list[tuple[int, CastCounts]] = []
    with contextlib.ExitStack() as stack:
        fd = stack.enter_context(existing_file(task.path))
        output = _Output(fd, task.begin)
        tensors = {} if task.source is None else task.source.named(stack)
        for step in task.steps:
            if step.how == DENSE:
                if step.metadata:
                    write_at(fd, [step.metadata], step.offset)
                dense = cast(Dense, tensors[step.name].place.dense())
                _write_range(fd, dense, DType[step.target], step.data_offset, step.first_index, step.count)
                continue
            source = sources.get(step.origin)
            if source is None:
                source = sources[step.origin] = stack.enter_context(contextlib.closing(step.origin.open()))
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
    return counts


def write_dense(path: str, item: Item, dense: Dense, done: Callable[[int], None]) -> None:
    """Write the record of a compressed weight as dense values, a piece at a time.

    `path`: the file, which exists and has its final size. `item`: with DENSE. `done`: called with the number of bytes
    of each piece.
    Raises: FormatError: parts that do not match. OSError: the file cannot be written.
    """
    part = _dense_count(item, dense, TASK_NBYTES)
    with existing_file(path) as fd:
        write_at(fd, [item.metadata()], item.offset)
        for begin in range(0, item.count, part):
            done(_write_range(fd, dense, item.target, item.data_offset, begin, min(part, item.count - begin)))


def _dense_count(item: Item, dense: Dense, nbytes: int) -> int:
    """The number of elements that are decoded at a time: whole units, which fill whole bytes when packed."""
    unit = 8 * max(dense.unit, 1)
    return max(nbytes // item.target.numpy.itemsize // unit, 1) * unit


def _write_range(fd: int, dense: Dense, target: DType, data_offset: int, begin: int, count: int) -> int:
    values = stored_bytes(read(dense, None, begin, (count,)), target)
    write_at(fd, [values], data_offset + begin * target.nbits // 8)
    return len(values)


def _dense_tasks(workers: "Workers", source: Reopened, rows: list[tuple[str, Item]]) -> list[Task]:
    """Return tasks that write compressed weights as dense values; each has ranges of weights of one file."""
    steps: dict[str, list[Step]] = {}
    for path, item in rows:
        part = _dense_count(item, cast("Callable[[], Dense]", item.open)(), TASK_NBYTES)
        for begin in range(0, item.count, part):
            count, metadata = min(part, item.count - begin), b"" if begin else item.metadata()
            step = Step(
                0, DENSE, item.origin, 0, 0, item.dtype.name, item.target.name, count, begin, item.shape, metadata,
                item.offset, item.data_offset, item.target.nbytes(count), item.name,
            )  # fmt: skip
            steps.setdefault(path, []).append(step)
    return [
        Task(path, group[0].data_offset, tuple(group), source=source)
        for path, own in steps.items()
        for group in workers.groups(own, lambda step: step.written_nbytes)
    ]


def _write_held(path: str, item: Item, data: memoryview, done: Callable[[int], None]) -> None:
    """Write a record whose stored bytes are there already."""
    with existing_file(path) as fd:
        write_at(fd, [item.metadata()], item.offset)
        for begin in range(0, len(data), TASK_NBYTES):
            part = data[begin : begin + TASK_NBYTES]
            write_at(fd, [part], item.data_offset + begin)
            done(len(part))


def _write_computed(
    places: dict[WeightParts, list[tuple[str, str, Item]]], counter: ProgressCounter, done: Done
) -> None:
    """Compute weights and write each part as soon as it is complete.

    `places`: of the parts: key, file, which exists and has its final size, and item; a part may go to several.
    """
    with contextlib.ExitStack() as stack:
        fds: dict[str, int] = {}
        for path in {path for rows in places.values() for _, path, _ in rows}:
            fds[path] = stack.enter_context(existing_file(path))

        def put_of(parts: WeightParts) -> Put:
            by_key: dict[str, list[tuple[int, Item]]] = {}
            for key, path, item in places[parts]:
                by_key.setdefault(key, []).append((fds[path], item))
                write_at(fds[path], [item.metadata()], item.offset)

            def put(key: str, offset: int, data: Any) -> None:
                view = memoryview(data).cast("B")
                for fd, item in by_key[key]:
                    write_at(fd, [view], item.data_offset + offset)
                    if view.nbytes >= _STAGING_NBYTES // 4:  # the disk writes while the next values are computed
                        _codec.start_writing(fd, item.data_offset + offset, view.nbytes)
                    counter.add(item.name, view.nbytes)

            return put

        write_all(places, put_of, done)


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
    """Convert one record, or a part of it, in cache-sized chunks. Holes read as zero and are preserved."""
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
            with elements_named(step.name or "record"):
                counts = convert_into(
                    into, source.check_size(), at, count, dtype, target, overflow=task.overflow, nan=task.nan,
                    first_index=step.first_index + done,
                )  # fmt: skip
            total = total.plus(counts)
            write_at(output.fd, [into.view(np.uint8)], step.data_offset + done * target_nbytes)
            done += count
    return total
