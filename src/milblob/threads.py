"""Threads for large tensors: how many to use, and the one way to share out work among them.

Results never depend on the number of threads: work is divided in the same way for any number, results come in order,
and the error raised is the one that processing the items one by one would have met first.
"""

import atexit
import os
import sys
import threading
from _thread import start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from functools import cache
from itertools import islice
from time import monotonic
from typing import Any, Generic, TypeVar

from .forks import here

PIECE_NBYTES = 1 << 22
"""Bytes that one thread processes at a time: enough (about a millisecond) to be worth starting a thread."""

ALONE_COUNT = 1 << 21
"""An item with at least this many elements is split among the threads; smaller items go one to each."""

AHEAD = 64
"""How many results may be kept where they take next to no memory."""

VARIABLE = "MILBLOB_THREADS"

_cpu_count = cache(os.cpu_count)  # which opens a file
_T = TypeVar("_T")
_R = TypeVar("_R")
_A = TypeVar("_A")
_inside = threading.local()  # whether this thread is processing an item of shared work
_give_way: Callable[[], Any] = getattr(os, "sched_yield", lambda: None)


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
    if getattr(_inside, "depth", 0) or _end.is_near:
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
    """Return how many cores this process may use: by affinity, and by the quota of its control group (Linux).

    Two processors that share a core count as one: loops like these keep it busy alone.
    """
    own = getattr(os, "process_cpu_count", _cpu_count)()  # 3.13
    cores = sys.maxsize
    if hasattr(os, "sched_getaffinity"):
        cores = _cores(frozenset(os.sched_getaffinity(0)), "/sys/devices/system/cpu")
    return max(1, min(own or 1, cores, _quota("/proc/self/cgroup", "/sys/fs/cgroup")))


@cache
def _cores(numbers: frozenset[int], root: str) -> int:
    """How many cores these processors are; as many as processors where no file shows it. Read once."""
    return len({_text(f"{root}/cpu{number}/topology/thread_siblings_list") or number for number in numbers})


@cache
def _quota(groups: str, root: str) -> int:
    """The least quota of a control group and its parents, in whole processors; many if there is none. Read once."""
    least = sys.maxsize
    for line in _text(groups).splitlines():
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
    found = _text(f"{folder}/cpu.max").split()
    found = found or [_text(f"{folder}/cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    if len(found) != 2 or not all(word.isdecimal() for word in found) or not int(found[0]) or not int(found[1]):
        return sys.maxsize  # "max", or -1: none
    return -(-int(found[0]) // int(found[1]))


def unused() -> int:
    """Return how many threads would have a core of their own now, this one included; see `processors`."""
    return min(processors(), 1 + _idle())


def would_share() -> bool:
    """Whether `ordered` would start another thread now: if not, a division that itself costs time cannot pay.

    Raises:
        ValueError: as `count`.
    """
    return count() > 1 and _Room()()


def _is_free(path: str = "/proc/loadavg") -> bool:
    """Whether a processor of this machine is idle at this moment, or no file shows it. Takes 5 us."""
    return _idle(path) > 0


def _idle(path: str = "/proc/loadavg") -> int:
    """How many processors of this machine are idle at this moment; many if no file shows it."""
    running = _text(path).partition("/")[0].rpartition(" ")[2]
    return max((_cpu_count() or 1) - int(running), 0) if running.isdecimal() else sys.maxsize


def _text(path: str) -> str:
    """What a small file of the system contains; nothing if it cannot be read."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(fd, 1 << 16).decode("utf-8", "replace")
    except OSError:
        return ""
    finally:
        os.close(fd)


# --------------------------------------------------------------------------------------------------------- sharing out


def ordered(work: Callable[[_T], _R], items: Iterable[_T], is_much: bool = True, ahead: int = 0) -> Iterator[_R]:
    """Yield work(item) for each item, in order, processing several at a time in this thread and others.

    Whichever thread is free takes the next item, a few ahead of the result that is yielded. The caller's thread takes
    items too, and yields results. Threads start when there are items for them, and the caller waits for none to start:
    if none can, or none gets a processor, or the process was forked during the call, it does all the work. None is
    processing an item when this returns, is closed, or raises.

    Args:
        work: called in any thread; must not depend on what other items do.
        items: taken one at a time, in the caller's thread.
        is_much: whether the work is worth threads; if not, this is `map`.
        ahead: how many results may be kept, and more items be processed, while an earlier item is in progress; two for
            each thread at least. Enough, and a thread that loses its processor in an item delays only the end.

    Raises:
        What `work` or `items` raise, in place of the result. No item is started afterwards, and items in progress are
            waited for (also after KeyboardInterrupt, which is raised in the caller's thread).
        ValueError: as `count`.
    """
    is_single = isinstance(items, Sized) and len(items) < 2  # a fit of small weights asks 100,000 times
    workers = count() if is_much and not is_single else 1
    if workers < 2:
        yield from map(work, items)
        return
    left, has_room, is_more = iter(items), _Room(), True
    while not has_room():
        for item in islice(left, 1):
            yield work(item)
            break
        else:
            return
    team = _Team[_T, _R](workers - 1, has_room)
    pending, ahead = team.pending, max(ahead, 2 * workers)
    try:
        while not team.is_foreign:
            while is_more and len(pending) < ahead and len(team.waiting) < 2 * workers:
                slot = _Slot(work)
                try:
                    slot.item = next(left)
                except StopIteration:
                    is_more = False
                    break
                except Exception as error:
                    slot.error, is_more = error, False
                    slot.end()
                pending.append(slot)
                if slot.error is None:
                    team.offer(slot)
            if not pending:
                return
            if pending[0].is_done:
                yield pending.popleft().take()
            else:
                team.step(pending[0])
        while pending:
            slot = pending.popleft()
            yield slot.take() if slot.is_done else work(slot.item)  # the thread that had it does not exist here
        yield from map(work, left) if is_more else ()
    finally:
        team.end()


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
    for _ in ordered(work, items, ahead=AHEAD):
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
    """One item, what is to be done with it, and its result."""

    __slots__ = ("done", "error", "is_done", "is_helped", "item", "value", "work")
    item: _T
    value: _R

    def __init__(self, work: Callable[[_T], _R]) -> None:
        self.work = work
        self.error: BaseException | None = None
        self.is_done = self.is_helped = False  # is_helped: another thread has started it, and will finish it
        self.done = threading.Lock()
        self.done.acquire()  # released once there is a result

    def run(self, is_caller: bool = True) -> None:
        """Process the item. An exception for this thread alone (KeyboardInterrupt) is raised if it is the caller's."""
        _inside.depth = getattr(_inside, "depth", 0) + 1
        try:
            self.value = self.work(self.item)
        except BaseException as error:
            if is_caller and not isinstance(error, Exception):
                raise
            self.error = error
        finally:
            _inside.depth -= 1
        self.end()

    def end(self) -> None:
        """Note that there is a result."""
        self.is_done = True
        self.done.release()

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

    def take(self) -> _R:
        """Return the result or raise the error, which no frame keeps: it would form a cycle and keep files mapped."""
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
            return self.value
        finally:
            del error


class _Room:
    """Whether one more thread would have a processor to itself: looked up now and then, not for a chosen number."""

    def __init__(self) -> None:
        self._is_chosen = bool(chosen())
        self._again = 0.0  # when to look
        self._pause = 0.001

    def __call__(self) -> bool:
        now = monotonic()
        if not self._is_chosen and now >= self._again and not _is_free():
            self._pause = min(2 * self._pause, 0.1)
            self._again = now + self._pause
        return now >= self._again


class _Team(Generic[_T, _R]):
    """Items, and the threads that take them.

    Attributes:
        pending: those whose results are not yielded, in order.
        waiting: those of them that no thread has taken.
    """

    def __init__(self, helpers: int, has_room: Callable[[], bool]) -> None:
        self.pending: deque[_Slot[_T, _R]] = deque()
        self.waiting: deque[_Slot[_T, _R]] = deque()
        self._helpers = helpers  # how many may be started
        self._has_room = has_room
        self._alive = 0
        self._lock = threading.Lock()
        self._process = here()

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked process, which has no threads (and perhaps a lock that is never released)."""
        return not self._process.is_here

    def offer(self, slot: _Slot[_T, _R]) -> None:
        """Queue an item. The first waiting item is left to the caller."""
        with self._lock:
            self.waiting.append(slot)
            if len(self.waiting) < 2 or self._alive >= self._helpers or not self._has_room():
                return
            self._alive += 1
        try:
            start_new_thread(self._help, ())  # threading.Thread would wait until it runs
        except RuntimeError:  # the system allows no more, or the interpreter is shutting down
            with self._lock:
                self._alive, self._helpers = self._alive - 1, 0

    def _help(self) -> None:
        life = threading.Lock()
        life.acquire()
        _end.lives.add(life)  # here, where Ctrl-C does not come: a life without a thread would never end
        while True:
            with self._lock:
                if not self.waiting or _end.is_near:
                    self._alive -= 1
                    break
                slot = self.waiting.popleft()
                slot.is_helped = True
            slot.run(is_caller=False)
            del slot
            _give_way()  # a thread that shares its processor is to lose it here, not in an item that others wait for
        _end.lives.discard(life)
        life.release()

    def step(self, head: _Slot[_T, _R]) -> None:
        """Process the oldest item that waits; if there is none, wait for the result of `head`."""
        with self._lock:
            slot = self.waiting.popleft() if self.waiting else None
        if slot is None:
            head.wait()
        else:
            slot.run()

    def end(self) -> None:
        """Start no more items, and wait for those that other threads have started."""
        if self.is_foreign:
            return
        with self._lock:
            self.waiting.clear()
        for slot in self.pending:
            slot.settle()


class _End:
    """The end of the interpreter, which frees the memory that threads use: they end before, and no more start.

    Attributes:
        lives: a lock for each thread, released by its end.
    """

    def __init__(self) -> None:
        self.is_near = False
        self.lives: set[threading.Lock] = set()
        atexit.register(self._wait)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.lives.clear)

    def _wait(self) -> None:
        self.is_near = True
        for life in list(self.lives):
            life.acquire()


_end = _End()
