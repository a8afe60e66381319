"""Threads for large tensors: how many, and the one way in which work is shared out among them.

Results never depend on how many there are: work is divided in the same way for any number, results come in order, and
the error that is raised is the one that doing one item after the other would have met first.
"""

import contextlib
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any, Generic, TypeVar, cast

PIECE_NBYTES = 1 << 22
"""What one thread does in one go: long enough (about a millisecond) that starting a thread is worth while."""

VARIABLE = "MILBLOB_THREADS"

_T = TypeVar("_T")
_R = TypeVar("_R")
_inside = threading.local()  # whether this thread is doing an item of work that is shared out already


# ------------------------------------------------------------------------------------------------------------- how many


def count() -> int:
    """Return how many threads may work on something large that is begun here and now, this one included.

    $MILBLOB_THREADS, if it is 1 or more. Else one for each processor that this process may use, but only in the main
    thread of a process that is no worker of `multiprocessing`: whoever works in threads or processes of their own has
    the processors busy already. Always 1 inside of work that is shared out, and while the interpreter shuts down.

    Raises:
        ValueError: $MILBLOB_THREADS is no number.
    """
    given = chosen()
    if getattr(_inside, "depth", 0) or sys.is_finalizing():
        return 1
    return given or (1 if is_in_pool() else processors())


def chosen() -> int:
    """Return the number in $MILBLOB_THREADS; 0 if it is 0, empty or not there: as many as there are processors.

    Raises:
        ValueError: it is no such number.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 6):
        raise ValueError(f"{VARIABLE}: expected a number of threads, 0 for one on each processor, got {text!r}")
    return int(text)


def is_in_pool() -> bool:
    """Whether somebody seems to have shared out work already: not the main thread, or a worker process."""
    if threading.get_ident() != threading.main_thread().ident:
        return True
    processes: Any = sys.modules.get("multiprocessing.process")  # not imported: no worker
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
    """The quota of a control group and of those around it, in whole processors; many if there is none. Read once."""
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
        folder = f"{root}/cpu" if names else root  # version 1 has a hierarchy for each controller, version 2 one
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):  # in a container, the path may be that outside of it
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
    """Yield work(item) for each item, in order; several at a time, in this thread and others.

    Threads are started when there are items for them, and end when there are none: none is left, or waits, when this
    returns, is closed, or raises. A few items are taken ahead of the one that is yielded; they are taken, and results
    are yielded, in the caller's thread. Where no thread can be started, and in a process that was forked meanwhile, the
    caller's does everything.

    Args:
        work: called in any thread; must not depend on what other items do.
        items: taken one at a time.
        is_much: whether it is worth the threads; if not, this is `map`.

    Raises:
        What `work` or `items` raise, in the place of the result. Nothing is begun afterwards, and what has been begun
            is waited for (also after KeyboardInterrupt, which comes in the caller's thread).
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


def each(work: Callable[[_T], Any], items: Iterable[_T]) -> None:
    """Call work(item) for each item, several at a time; see `ordered`."""
    for _ in ordered(work, items):
        pass


@contextlib.contextmanager
def beside(work: Callable[[], _R]) -> Iterator[Callable[[], _R]]:
    """Have something done beside what a block does, if there may be a second thread; else when it is asked for.

    Yields:
        A function that waits for the result and returns it, or raises what `work` raised. The end of the block waits
        too.
    """
    slot: _Slot[Callable[[], _R], _R] = _Slot()
    slot.item = work
    if count() > 1:
        slot.is_helped = True  # before it begins: whatever happens here, `settle` waits for it
        try:
            threading.Thread(target=slot.help, args=(_call,), name="milblob").start()
        except RuntimeError:  # no more threads
            slot.is_helped = False

    def result() -> _R:
        if not slot.is_helped and not slot.is_done:
            slot.run(_call)
        slot.wait()
        if slot.error is not None:
            raise slot.error
        return slot.value

    try:
        yield result
    finally:
        slot.settle()


def _call(work: Callable[[], _R]) -> _R:
    return work()


def parts(total: int, nbytes: float, piece_nbytes: int) -> Iterator[tuple[int, int]]:
    """Divide `total` elements that take so many bytes each: (first, count) of equal parts of at most `piece_nbytes`.

    All but the last are multiples of 64 elements, so that those of any number of bits begin at whole bytes. Nothing is
    in one part.
    """
    most = max(int(piece_nbytes / nbytes) // 64, 1)
    units = -(-total // 64)
    step = -(-units // max(-(-units // most), 1)) * 64
    for begin in range(0, max(total, 1), max(step, 1)):
        yield begin, min(step, total - begin)


class _Slot(Generic[_T, _R]):
    """One item and what becomes of it."""

    __slots__ = ("done", "error", "is_done", "is_helped", "item", "value")
    item: _T
    value: _R

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self.is_done = self.is_helped = False  # is_helped: another thread has begun it, and will end it
        self.done = threading.Lock()
        self.done.acquire()  # released once the result is there

    def run(self, work: Callable[[_T], _R]) -> None:
        """Do it. Only an exception that is meant for this thread alone (KeyboardInterrupt) comes out."""
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
        """Have `error` for a result."""
        self.error, self.is_done = error, True
        self.done.release()

    def help(self, work: Callable[[_T], _R]) -> None:
        """Do it in another thread than the caller's, to whom everything goes that is raised."""
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
        """Wait for another thread that has begun it, whatever happens, and forget an error."""
        while self.is_helped and not self.is_done:
            try:
                self.wait()
            except KeyboardInterrupt:  # what the thread writes to must not go away; and one is on its way already
                continue
        self.error = None

    def take_error(self) -> BaseException:
        """Hand over the error: kept here, it would be a cycle with its traceback, and keep files mapped for long."""
        error, self.error = self.error, None
        return cast(BaseException, error)


def _result(slot: _Slot[_T, _R], work: Callable[[_T], _R]) -> _R:
    """What a slot holds, in a forked process: there, the thread that was at work on it is no more."""
    if not slot.is_done:
        return work(slot.item)
    if slot.error is not None:
        raise slot.take_error()
    return slot.value


class _Team(Generic[_T, _R]):
    """The items that are waiting, and the threads that take them; the caller's own takes part when it has to wait."""

    def __init__(self, work: Callable[[_T], _R], helpers: int) -> None:
        self._work = work
        self._helpers = helpers  # as many as may be started
        self._alive = 0
        self._lock = threading.Lock()
        self._waiting: deque[_Slot[_T, _R]] = deque()
        self._pid = os.getpid()

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked process, which has none of the threads (and maybe a lock that nobody gives back)."""
        return self._pid != os.getpid()

    def offer(self, slot: _Slot[_T, _R]) -> None:
        """Have an item done. The first one that waits is left to the caller."""
        with self._lock:
            self._waiting.append(slot)
            if len(self._waiting) < 2 or self._alive >= self._helpers:
                return
            self._alive += 1
        try:
            threading.Thread(target=self._help, name="milblob").start()
        except RuntimeError:  # as many as the system allows, or the interpreter is shutting down
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
        """Return when the result of `head`, the oldest item, is there."""
        while not head.is_done:
            with self._lock:
                slot = self._waiting.popleft() if self._waiting else None
            if slot is None:
                head.wait()
            else:
                slot.run(self._work)

    def end(self, pending: Iterable[_Slot[_T, _R]]) -> None:
        """Begin nothing more, and wait for what other threads have begun."""
        if self.is_foreign:
            return
        with self._lock:
            self._waiting.clear()
        for slot in pending:
            slot.settle()
