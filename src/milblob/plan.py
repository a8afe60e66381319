"""The plan of a repacking, as data: which record goes where, from which bytes, by which kernel; and how one is written.

A plan is made before a byte is written: every offset is known, so workers (threads or processes) write ranges that do
not touch. Everything in a `Task` can be pickled.
"""

import os
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from . import _codec
from .casting import CastCounts, convert_into
from .dtypes import DType
from .errors import FormatError
from .mapping import Mapping
from .tensorvalue import stored_bytes, unpack_at
from .transfer import copy_range, write_at

COPY, CAST, VALUE = "copy", "cast", "value"
TASK_NBYTES = 16 << 20
_STAGING_NBYTES = 1 << 20
_CAST_NBYTES = 1 << 18  # of the wider type: both sides of a part stay in the second-level cache


class Origin(NamedTuple):
    """A file that bytes come from, and what tells that it is still the same one."""

    path: str
    device: int
    inode: int
    nbytes: int

    @classmethod
    def of(cls, mapping: Mapping) -> "Origin":
        """Describe a mapped file."""
        status = os.fstat(mapping.fd)
        return cls(str(mapping.name), status.st_dev, status.st_ino, mapping.nbytes)

    def open(self) -> Mapping:
        """Map it.

        Raises:
            FormatError: another file has taken its place.
        """
        mapping = Mapping(self.path)
        status = os.fstat(mapping.fd)
        if (status.st_dev, status.st_ino, mapping.nbytes) != self[1:]:
            mapping.close()
            raise FormatError("file: expected the one that was planned for, got another", file=self.path)
        return mapping


class Item:
    """One record of the result.

    Attributes:
        origin, start, nbytes: where its bytes come from. For VALUE they are a TensorValue message.
        dtype, count: what is stored there.
        target: dtype in the result; with COPY and VALUE the same.
        how: COPY, CAST or VALUE (a TensorValue that must be decoded).
        shape: declared shape; used by VALUE.
        name: of the first tensor that refers to it; of an unreferenced record, "" .
        file: name of the result's weight file, relative to the model's directory, such as "weights/weight.bin".
        order: sorts the records of a file.
        offset, data_offset: in that file, once `lay_out` has set them.
        before: (file, offset) in the source; None for a value that was in the Program.
        first: the equal item that stands for this one; None or itself otherwise.
    """

    __slots__ = (
        "before", "count", "data_offset", "dtype", "file", "first", "how", "name", "nbytes", "offset", "order",
        "origin", "shape", "start", "target",
    )  # fmt: skip

    def __init__(
        self,
        origin: Origin,
        start: int,
        nbytes: int,
        dtype: DType,
        count: int,
        file: str,
        order: tuple[int, ...],
        how: str = COPY,
        shape: tuple[int, ...] = (),
        name: str = "",
    ) -> None:
        self.origin = origin
        self.start = start
        self.nbytes = nbytes
        self.dtype = self.target = dtype
        self.count = count
        self.file = file
        self.order = order
        self.how = how
        self.shape = shape
        self.name = name
        self.offset = self.data_offset = 0
        self.before: tuple[str, int] | None = None
        self.first: Item | None = None

    @property
    def target_nbytes(self) -> int:
        """Bytes of data in the result."""
        return self.target.nbytes(self.count)

    def metadata(self) -> bytes:
        """The 64 bytes of its metadata in the result."""
        padding_nbits = self.target_nbytes * 8 - self.count * self.target.nbits
        return _codec.blob_metadata(self.target.blob_code or 0, self.target_nbytes, self.data_offset, padding_nbits)


class Step(NamedTuple):
    """One record for a worker: an Item with everything decided. `start` and `nbytes` are of the source."""

    number: int
    how: str
    origin: Origin
    start: int
    nbytes: int
    dtype: str
    target: str
    count: int  # type: ignore[assignment]  # hides tuple.count
    shape: tuple[int, ...]
    metadata: bytes
    offset: int
    data_offset: int
    name: str


class Task(NamedTuple):
    """Steps that fill one range of one file, from `begin` on; nothing else writes there."""

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
        path: the file, which exists and has its final size.
        items: all of its records, in order.
        first: number of the first, so that results can be told apart.
        overflow, nan: policies of casts.
    """
    tasks: list[Task] = []
    steps: list[Step] = []
    begin = end = 64
    for number, item in enumerate(items, first):
        step = Step(
            number, item.how, item.origin, item.start, item.nbytes, item.dtype.name, item.target.name, item.count,
            item.shape, item.metadata(), item.offset, item.data_offset, item.name,
        )  # fmt: skip
        steps.append(step)
        end = item.data_offset + item.target_nbytes
        if end - begin >= TASK_NBYTES:
            tasks.append(Task(path, begin, tuple(steps), overflow, nan))
            steps, begin = [], end
    if steps:
        tasks.append(Task(path, begin, tuple(steps), overflow, nan))
    return tasks


def run_task(task: Task) -> list[tuple[int, CastCounts]]:
    """Write the records of a task. Runs in any thread or process.

    Returns:
        What the casts among them met: (number, counts).

    Raises:
        OSError, FormatError: a file cannot be read or written. OverflowError, ValueError: the policies of casts; the
            tensor is named.
    """
    fd = os.open(task.path, os.O_RDWR | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    sources: dict[Origin, Mapping] = {}
    counts: list[tuple[int, CastCounts]] = []
    output = _Output(fd, task.begin)
    try:
        for step in task.steps:
            source = sources.get(step.origin)
            if source is None:
                source = sources[step.origin] = step.origin.open()
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
                copy_range(source, step.start, step.nbytes, fd, step.data_offset)
        output.flush()
    finally:
        os.close(fd)
        for source in sources.values():
            source.close()
    return counts


class _Output:
    """Gathers small writes to neighbouring places; gaps between them are zero."""

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
            # One copy in memory: small pieces cost the kernel more each than they cost here.
            data = b"".join(self._pieces) if len(self._pieces) > 2 else None
            write_at(self.fd, [data] if data is not None else self._pieces, self._begin)
        self._pieces = []
        self._begin = self._end


def _cast(step: Step, source: Mapping, output: _Output, task: Task) -> CastCounts:
    """Convert one record, a cache's worth at a time."""
    dtype, target = DType[step.dtype], DType[step.target]
    part = _CAST_NBYTES * 8 // max(dtype.nbits, target.nbits)
    out = np.empty(part, target.numpy)
    total = CastCounts()
    done = 0
    output.flush()
    while done < step.count:
        count = min(part, step.count - done)
        buffer = source.check_size()
        start = step.start + done * dtype.nbits // 8
        try:
            counts = convert_into(
                out[:count],
                buffer,
                start,
                count,
                dtype,
                target,
                overflow=task.overflow,
                nan=task.nan,
                first_index=done,
            )
        except (OverflowError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            raise type(error)(f"{step.name or 'record'}: {error}") from None
        total = CastCounts(*(a + b for a, b in zip(total, counts, strict=True)))
        write_at(output.fd, [out[:count].view(np.uint8)], step.data_offset + done * target.nbits // 8)
        done += count
    return total
