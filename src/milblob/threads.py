"""Threads for large tensors: how many to use, and the one way to share out work among them.

Results never depend on the number of threads: work is divided in the same way for any number, results come in order,
and the error raised is the one that processing the items one by one would have met first.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Generic, TypeVar, cast

PIECE_NBYTES = 1 << 22
"""Bytes that one thread processes at a time: enough (about a millisecond) to be worth starting a thread."""

ALONE_COUNT = 1 << 21
"""An item with at least this many elements is split among the threads; smaller items go one to each."""

VARIABLE = "MILBLOB_THREADS"

_T = TypeVar("_T")
_R = TypeVar("_R")
_A = TypeVar("_A")
_inside = threading.local()  # whether this thread is processing an item of shared work


# ------------------------------------------------------------------------------------------------------------- how many


def count() -> int:
    """Return how many threads, this one included, may share large work that starts now in this thread.

    $MILBLOB_THREADS, if it is 1 or more. Otherwise one per processor that this process may use, but only in the main
    thread of a process that is not a worker of `multiprocessing`: a caller with threads or processes of its own keeps
    the processors busy already. Always 1 inside shared work, and while the interpreter shuts down.

    Raises:
        ValueError: $MILBLOB_THREADS is not a number.
    """
    given = chosen()
    if getattr(_inside, "depth", 0) or sys.is_finalizing():
        return 1
    return given or (1 if is_in_pool() else processors())


def chosen() -> int:
    """Return the number in $MILBLOB_THREADS; 0 if it is 0, empty or not set: one per processor.

    Raises:
        ValueError: it is not such a number.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise ValueError(f"{VARIABLE}: expected a number of threads, 0 for one on each processor, got {text!r}")
    return int(text)


def is_in_pool() -> bool:
    """Whether the caller seems to share out work itself: this is not the main thread, or it is a worker process."""
    if threading.get_ident() != threading.main_thread().ident:
        return True
    processes: Any = sys.modules.get("multiprocessing.process")  # not imported: not a worker
    return processes is not None and processes.parent_process() is not None


def processors() -> int:
    """Return how many processors this process may use: by affinity, and by the quota of its control group (Linux)."""
    own = getattr(os, "process_cpu_count", None)  # 3.13
    if own is not None:
        number = own()
    else:
        number = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(number or 1, _quota("/proc/self/cgroup", "/sys/fs/cgroup")))


@cache
def _quota(groups: str, root: str) -> int:
    """The least quota of a control group and its parents, in whole processors; many if there is none. Read once."""
    least = sys.maxsize
    try:
        with open(groups, encoding="utf-8") as file:  # noqa: PTH123  # pathlib takes long to import
            lines = file.read().splitlines()
    except (OSError, ValueError):
        return least
    for line in lines:
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and "cpu" not in names.split(","):
            continue
        folder = f"{root}/cpu" if names else root  # version 1 has one hierarchy per controller, version 2 a single one
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):  # in a container, the path may be the one outside it
            least = min(least, _quota_of("/".join([folder, *parts[:depth]])))
    return least


def _quota_of(folder: str) -> int:
    def words(name: str) -> list[str]:
        try:
            with open(f"{folder}/{name}", encoding="utf-8") as file:  # noqa: PTH123
                return file.read().split()
        except (OSError, ValueError):
            return []

    found = words("cpu.max") or words("cpu.cfs_quota_us") + words("cpu.cfs_period_us")
    if len(found) != 2 or not all(word.isdigit() for word in found) or not int(found[0]) or not int(found[1]):
        return sys.maxsize  # "max", or -1: none
    return -(-int(found[0]) // int(found[1]))


# --------------------------------------------------------------------------------------------------------- sharing out


def ordered(work: Callable[[_T], _R], items: Iterable[_T], is_much: bool = True) -> Iterator[_R]:
    """Yield work(item) for each item, in order, processing several at a time in this thread and others.

    Threads start when there are items for them and end when there are none: none is left running or waiting when this
    returns, is closed, or raises. Items are taken a few ahead of the result that is yielded. The caller's thread takes
    them and yields results. If no thread can start, or the process was forked during the call, it does all the work.

    Args:
        work: called in any thread; must not depend on what other items do.
        items: taken one at a time, in the caller's thread.
        is_much: whether the work is worth threads; if not, this is `map`.

    Raises:
        What `work` or `items` raise, in place of the result. No item is started afterwards, and items in progress are
            waited for (also after KeyboardInterrupt, which is raised in the caller's thread).
        ValueError: as `count`.
    """
    workers = count() if is_much else 1
    if workers < 2:
        yield from map(work, items)
        return
    left, is_more, team = iter(items), True, _Team(work, workers - 1)
    pending: deque[_Slot[_T, _R]] = deque()
    try:
        while True:
            while is_more and len(pending) < 2 * workers:
                slot: _Slot[_T, _R] = _Slot()
                try:
                    slot.item = next(left)
                except StopIteration:
                    is_more = False
                    break
                except Exception as error:
                    slot.fail(error)
                    is_more = False
                pending.append(slot)
                if slot.error is None:
                    team.offer(slot)
            if not pending:
                return
            team.finish(pending[0])
            head = pending.popleft()
            if head.error is not None:
                raise head.take_error()
            yield head.value
            if team.is_foreign:
                yield from (_result(slot, work) for slot in pending)
                yield from map(work, left) if is_more else ()
                pending.clear()
                return
    finally:
        team.end(pending)


def with_own(make: Callable[[], _A], work: Callable[[_T, _A], _R], items: Iterable[_T]) -> tuple[list[_R], list[_A]]:
    """Return work(item, own) for each item, in order, and each `own`, which `make` returned; see `ordered`.

    One `own` is used by one thread at a time, and there are no more of them than threads.
    """
    made: list[_A] = []

    def one(item: _T) -> _R:
        try:
            own = made.pop()
        except IndexError:
            own = make()
        result = work(item, own)
        made.append(own)
        return result

    return list(ordered(one, items)), made


def each(work: Callable[[_T], Any], items: Iterable[_T]) -> None:
    """Call work(item) for each item, several at a time; see `ordered`."""
    for _ in ordered(work, items):
        pass


def sized(work: Callable[[_T], _R], items: Iterable[_T], size_of: Callable[[_T], int]) -> Iterator[_R]:
    """Yield work(item) for each item, in order: large ones alone, several small ones at a time.

    Args:
        work: shares out a large item among the threads by itself; small ones are processed in any thread.
        size_of: returns the number of elements of an item.
    """
    small: list[_T] = []
    for item in items:
        if size_of(item) < ALONE_COUNT:
            small.append(item)
            continue
        yield from ordered(work, small)
        small = []
        yield work(item)
    yield from ordered(work, small)


def parts(total: int, nbytes: float, piece_nbytes: int) -> Iterator[tuple[int, int]]:
    """Divide `total` elements of that size into equal parts of at most `piece_nbytes`: (first, count) of each.

    All but the last are multiples of 64 elements, so that parts begin at whole bytes for any number of bits. Zero
    elements are one part.
    """
    most = max(int(piece_nbytes / nbytes) // 64, 1)
    units = -(-total // 64)
    step = -(-units // max(-(-units // most), 1)) * 64
    for begin in range(0, max(total, 1), max(step, 1)):
        yield begin, min(step, total - begin)


class _Slot(Generic[_T, _R]):
    """One item and its result."""

    __slots__ = ("done", "error", "is_done", "is_helped", "item", "value")
    item: _T
    value: _R

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.is_done = self.is_helped = False  # is_helped: another thread has started it, and will finish it
        self.done = threading.Lock()
        self.done.acquire()  # released once there is a result

    def run(self, work: Callable[[_T], _R]) -> None:
        """Process the item. Only an exception for this thread alone (KeyboardInterrupt) propagates."""
        _inside.depth = getattr(_inside, "depth", 0) + 1
        try:
            self.value = work(self.item)
            self.is_done = True
            self.done.release()
        except Exception as error:
            self.fail(error)
        finally:
            _inside.depth -= 1

    def fail(self, error: BaseException) -> None:
        """Store `error` as the result."""
        self.error, self.is_done = error, True
        self.done.release()

    def help(self, work: Callable[[_T], _R]) -> None:
        """Process the item in a thread other than the caller's; the caller gets any error."""
        try:
            self.run(work)
        except BaseException as error:  # SystemExit and the like
            self.fail(error)

    def wait(self) -> None:
        """Wait for the result."""
        if not self.is_done:
            self.done.acquire()
            self.done.release()

    def settle(self) -> None:
        """Wait for the thread that has started it, even if interrupted, and drop an error."""
        while self.is_helped and not self.is_done:
            try:
                self.wait()
            except KeyboardInterrupt:  # the memory that the thread writes to must not be freed
                continue
        self.error = None

    def take_error(self) -> BaseException:
        """Return the error and forget it: kept here, it would form a cycle with its traceback and keep files mapped."""
        error, self.error = self.error, None
        return cast(BaseException, error)


def _result(slot: _Slot[_T, _R], work: Callable[[_T], _R]) -> _R:
    """The result of a slot in a forked process, where the thread that was processing it does not exist."""
    if not slot.is_done:
        return work(slot.item)
    if slot.error is not None:
        raise slot.take_error()
    return slot.value


class _Team(Generic[_T, _R]):
    """The waiting items, and the threads that take them; the caller's thread takes part when it would have to wait."""

    def __init__(self, work: Callable[[_T], _R], helpers: int) -> None:
        self._work = work
        self._helpers = helpers  # how many may be started
        self._alive = 0
        self._lock = threading.Lock()
        self._waiting: deque[_Slot[_T, _R]] = deque()
        self._pid = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked process, which has no threads (and perhaps a lock that is never released)."""
        return self._pid != os.getpid()

    def offer(self, slot: _Slot[_T, _R]) -> None:
        """Queue an item. The first waiting item is left to the caller."""
        with self._lock:
            self._waiting.append(slot)
            if len(self._waiting) < 2 or self._alive >= self._helpers:
                return
            self._alive += 1
        try:
            threading.Thread(target=self._help, name="milblob").start()
        except RuntimeError:  # the system allows no more, or the interpreter is shutting down
            with self._lock:
                self._alive, self._helpers = self._alive - 1, 0

    def _help(self) -> None:
        while True:
            with self._lock:
                if not self._waiting:
                    self._alive -= 1
                    return
                slot = self._waiting.popleft()
                slot.is_helped = True
            slot.help(self._work)

    def finish(self, head: _Slot[_T, _R]) -> None:
        """Wait for the result of `head`, the oldest item, and process other items until then."""
        while not head.is_done:
            with self._lock:
                slot = self._waiting.popleft() if self._waiting else None
            if slot is None:
                head.wait()
            else:
                slot.run(self._work)

    def end(self, pending: Iterable[_Slot[_T, _R]]) -> None:
        """Start no more items, and wait for those that other threads have started."""
        if self.is_foreign:
            return
        with self._lock:
            self._waiting.clear()
        for slot in pending:
            slot.settle()
