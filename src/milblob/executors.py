"""Work given to any executor in pieces: a few at a time, results in order, again where a worker was killed.

A worker may run on another machine with the same file system, so a piece is data that can be pickled: paths and ranges.
`Workers.run` is the one way in which milblob uses an executor.
"""

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import (
    ALL_COMPLETED,
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from typing import Any, TypeVar, cast

from .arguments import as_count, parse_nbytes
from .errors import WorkerError
from .extras import require
from .threads import processors

__all__ = ["Workers", "open"]

MEMORY_NBYTES = 64 << 20
"""Bytes of values in a piece, unless the caller limits them."""

MIN_NBYTES = 1 << 20
"""Smaller pieces cost more than they save."""

RETRIES = 2
"""How often a piece runs again after its worker was killed."""

_PER_WORKER = 4  # pieces at least, so that the workers finish at about the same time
_UNKNOWN_WIDTH = 8
_LOOK_S = 1.0  # between two looks at whether a pool has lost a piece
_KILLED = ("KilledWorker", "WorkerCrashedError", "NodeDiedError", "OutOfMemoryError")
"""Errors of Dask and Ray for a worker that was killed: both run its piece again themselves before they raise one."""

_SCHEMES = "processes:N, threads:N, dask:ADDRESS or ray:ADDRESS"

_T = TypeVar("_T")
_R = TypeVar("_R")


class Workers(Executor):
    """An executor, and how much one of its workers takes at a time. It is itself an executor.

    Args:
        executor: any concurrent.futures.Executor.
        memory: about how many bytes of values a piece of work may have; at least 1 MiB. A tensor that is larger is a
            piece of its own, which is read in parts.
        close: called when the executor is shut down.

    Attributes:
        memory: as a number of bytes.

    Examples:
        >>> from concurrent.futures import ThreadPoolExecutor
        >>> with ThreadPoolExecutor(2) as pool:
        ...     workers = milblob.executors.Workers(pool, memory="16M")
        ...     found = milblob.statistics("demo.mlpackage", executor=workers)
        >>> found.total.count
        85248
    """

    def __init__(
        self, executor: Executor, memory: int | str | None = None, close: Callable[[], None] | None = None
    ) -> None:
        if not hasattr(executor, "submit"):
            raise TypeError(f"executor: expected a concurrent.futures.Executor, got {type(executor).__name__}")
        nbytes = parse_nbytes(memory) if isinstance(memory, str) else memory
        nbytes = MEMORY_NBYTES if nbytes is None else as_count("memory", nbytes, expected="a number of bytes")
        if nbytes < MIN_NBYTES:
            raise ValueError(f"memory: expected {MIN_NBYTES} bytes or more, got {nbytes}")
        self.memory: int = nbytes
        self._executor = executor
        self._close = close
        self._call = os.urandom(8)
        self._lock = threading.Lock()  # while a pool is replaced: threads may share the workers

    def submit(self, fn: Callable[..., _R], /, *args: Any, **kwargs: Any) -> "Future[_R]":
        """Submit a call, as `concurrent.futures.Executor.submit`."""
        return self._executor.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Let the workers go; see `concurrent.futures.Executor.shutdown`."""
        if isinstance(self._executor, ThreadPoolExecutor | ProcessPoolExecutor):
            self._executor.shutdown(wait, cancel_futures=cancel_futures)
        else:
            self._executor.shutdown(wait)
        close, self._close = self._close, None
        if close is not None:
            close()

    @property
    def width(self) -> int:
        """How many pieces run at the same time, as far as that is known."""
        client = getattr(self._executor, "_client", None)
        cores = getattr(client, "ncores", None)
        if cores is not None:  # of Dask
            return int(max(sum(cores().values()), 1))
        return int(getattr(self._executor, "_max_workers", None) or _UNKNOWN_WIDTH)

    def groups(self, items: Iterable[_T], nbytes_of: Callable[[_T], int]) -> Iterator[list[_T]]:
        """Divide items into pieces, in order: of at most `memory` bytes, or of one item, and some for each worker."""
        sized = [(item, nbytes_of(item)) for item in items]
        share = sum(nbytes for _, nbytes in sized) // (_PER_WORKER * self.width)
        most, group, total = min(self.memory, max(share, MIN_NBYTES)), list[_T](), 0
        for item, nbytes in sized:
            if group and total + nbytes > most:
                yield group
                group, total = [], 0
            group.append(item)
            total += nbytes
        if group:
            yield group

    def run(
        self,
        work: Callable[[_T], _R],
        pieces: Iterable[_T],
        name_of: Callable[[_T], str],
        *,
        in_order: bool = True,
        of_killed: Callable[[_T, WorkerError], _R] | None = None,
    ) -> Generator[_R, None, None]:
        """Yield work(piece) for each piece. At most two pieces for each worker are under way.

        A piece whose worker was killed runs again, at most twice, and then alone, so that the right piece is named.
        After an error, or Ctrl-C, no other piece starts, and those under way are waited for.

        Args:
            work: of a module, so that its name is enough; its result can be pickled.
            pieces: taken one at a time; an error that this raises takes its place in the order.
            name_of: describes a piece in messages.
            in_order: yield results in the order of the pieces; else each one when it is there.
            of_killed: returns the result of a piece whose workers were killed; None: the error is raised.

        Raises:
            What `work` or `pieces` raise, for the first piece in order. WorkerError: a piece whose workers were killed.
        """
        most, left, failed = 2 * self.width, iter(pieces), list[Exception]()
        flight: deque[_Flight] = deque()
        given = self._executor
        try:
            while True:
                while not failed and len(flight) < most:
                    try:
                        piece = next(left)
                    except StopIteration:
                        break
                    except Exception as error:
                        failed.append(error)
                        break
                    flight.append(_Flight(work, piece, name_of(piece)))
                    self._start(flight[-1])
                if not flight:
                    if failed:
                        raise failed[0]
                    return
                if not in_order:
                    _wait(flight, FIRST_COMPLETED)
                    flight.rotate(-next(number for number, one in enumerate(flight) if one.is_done))
                piece = flight[0].piece
                try:
                    result = self._finish(flight, is_raised=of_killed is None)
                except WorkerError as error:
                    if of_killed is None:
                        raise
                    result = of_killed(piece, error)
                yield cast(_R, result)
        finally:
            # Not cancelled: a future of Dask or Ray can be while its work goes on; and in a process pool that breaks,
            # before Python 3.12, a cancelled one keeps the others from ending.
            _wait(flight)
            _end_processes(self._executor)
            if self._executor is not given and self._close is None:  # the caller's own pool, which is broken
                self._executor.shutdown(wait=True)
                self._executor = given

    def _start(self, one: "_Flight") -> None:
        # The number keeps an engine from taking the result of an equal call before.
        number = (self._call, next(_numbers))
        one.executor = self._executor
        try:
            one.future = one.executor.submit(_called, one.work, one.piece, number)
        except BrokenExecutor as error:  # it was broken before
            one.executor = self._renewed(one, error)
            one.future = one.executor.submit(_called, one.work, one.piece, number)
        one.thread = getattr(one.executor, "_executor_manager_thread", None)

    def _finish(self, flight: "deque[_Flight]", *, is_raised: bool) -> Any:
        """Return the result of the first piece under way, which is then no longer there."""
        one = flight[0]
        try:
            if one.thread is not None:
                _wait([one])
            return one.future.result()  # type: ignore[union-attr]  # it has started
        except BrokenExecutor:
            self._repeat(flight, is_raised=is_raised)
            return one.future.result()  # type: ignore[union-attr]
        except Exception as error:
            if type(error).__name__ in _KILLED:
                raise _killed(one, f"{type(error).__name__}: {error}") from error
            cause = getattr(error, "cause", None)  # Ray's error has it, and a text with all of the worker's traceback
            if type(error).__name__.startswith("RayTaskError") and isinstance(cause, Exception):
                raise cause from error
            raise
        finally:
            if one.is_done:  # else Ctrl-C came first, and it is waited for with the others
                flight.popleft()

    def _repeat(self, flight: "deque[_Flight]", *, is_raised: bool) -> None:
        """Run all pieces again that were under way when a worker was killed: alone, as any may be the cause.

        Raises: WorkerError: its workers are killed each time, and `is_raised`; else that is the outcome of the piece.
        """
        _wait(flight)
        for one in flight:
            tries = 0
            while isinstance(error := cast("Future[Any]", one.future).exception(), BrokenExecutor):
                tries += 1
                if tries > RETRIES:
                    killed = _killed(one, str(error))
                    if is_raised:
                        raise killed from error
                    one.future = Future()
                    one.future.set_exception(killed)
                    break
                self._renewed(one, error)
                self._start(one)
                _wait([one])

    def _renewed(self, one: "_Flight", error: BaseException) -> Executor:
        """Return a process pool in place of the one of a piece, which takes no work after a process was killed.

        Raises: WorkerError: another executor, which cannot be replaced.
        """
        old = one.executor
        if type(old) is not ProcessPoolExecutor:
            raise _killed(one, str(error)) from error
        with self._lock:
            if self._executor is not old:  # replaced already, for another piece or in another thread
                return self._executor
            values: Any = vars(old)  # as they were given; no method returns them
            self._executor = ProcessPoolExecutor(
                values["_max_workers"],
                values["_mp_context"],
                values["_initializer"],
                values["_initargs"],
                max_tasks_per_child=values.get("_max_tasks_per_child"),
            )
            _end_processes(old)
            old.shutdown(wait=False)
            return self._executor


_numbers = itertools.count()


class _Flight:
    """A piece that is under way."""

    __slots__ = ("executor", "future", "name", "piece", "thread", "work")

    def __init__(self, work: Callable[[Any], Any], piece: Any, name: str) -> None:
        self.work, self.piece, self.name = work, piece, name
        self.future: Future[Any] | None = None  # until it starts
        self.executor: Executor | None = None
        self.thread: threading.Thread | None = None  # of a process pool, which forgets it

    @property
    def is_done(self) -> bool:
        return self.future is not None and self.future.done()


def _wait(flight: "Iterable[_Flight]", return_when: str = ALL_COMPLETED) -> None:
    """Wait for pieces that have started, also for those that a broken process pool has lost.

    Before Python 3.12, a pool that breaks never finishes a piece that is submitted in that moment, nor one that was
    submitted after a call that was cancelled.
    """
    started = {one.future: one for one in flight if one.future is not None}
    while True:
        left = wait(started, _LOOK_S, return_when).not_done
        # `wait` does not count one that was cancelled while its executor shuts down.
        left = {future for future in left if not future.done()}
        if not left or (len(left) < len(started) and return_when == FIRST_COMPLETED):
            return
        for future in left:
            one = started[future]
            if _is_broken(one.executor) and one.thread is not None and not one.thread.is_alive():
                future.set_exception(BrokenExecutor("the process pool broke and lost the piece"))


def _is_broken(executor: Executor | None) -> bool:
    return isinstance(executor, ProcessPoolExecutor) and bool(vars(executor)["_broken"])


def _end_processes(executor: Executor) -> None:
    """End the processes of a broken pool whose own thread failed; Python would wait for them when it exits."""
    if not _is_broken(executor):
        return
    thread, processes = vars(executor)["_executor_manager_thread"], vars(executor)["_processes"]
    if thread is None:
        return
    thread.join(_LOOK_S)
    if thread.is_alive():  # it ends them itself
        return
    for process in list((processes or {}).values()):
        process.terminate()
        process.join(_LOOK_S)


def _called(work: Callable[[_T], _R], piece: _T, number: tuple[bytes, int]) -> _R:
    return work(piece)


def _killed(one: _Flight, reason: str) -> WorkerError:
    message = "expected a worker to finish it, got one that was killed each time"
    return WorkerError(f"{one.name}: {message} ({reason}); less memory for each worker may help")


# -------------------------------------------------------------------------------------------------------------- engines


def open(spec: str, *, memory: int | str | None = None) -> Workers:
    """Return workers of an engine, to be passed as `executor=`. Shut them down, or use them in a `with` block.

    Results do not depend on the engine or on the number of workers. Workers open files by their paths: on several
    machines, sources and destination must be on a file system that all share, and milblob must be installed there.

    Args:
        spec: "processes:8" or "threads:4" (without a number: one for each processor); "dask:tcp://host:8786", the
            address of a scheduler; "ray:auto", or another address that ray.init takes.
        memory: about how many bytes of values a worker takes at a time, such as "1G"; default: 64 MiB.

    Raises:
        ValueError: an unknown engine, or not a number of workers. ImportError: the engine is not installed; the message
            names the extra. RuntimeError: processes cannot start. As the engine: it cannot be reached.

    Examples:
        >>> with milblob.executors.open("threads:2") as executor:
        ...     found = milblob.content_hash("demo.mlpackage", executor=executor)
        >>> found == milblob.content_hash("demo.mlpackage")
        True
    """
    if not isinstance(spec, str):
        raise TypeError(f"executor: expected text such as 'processes:8', got {type(spec).__name__}")
    scheme, colon, rest = spec.partition(":")
    if scheme == "processes":
        # A fork would copy locks, and the descriptors of open files, of this process.
        context, number = multiprocessing.get_context("spawn"), _number(spec, colon, rest)
        workers = Workers(ProcessPoolExecutor(number, context, _begin), memory, _nothing)
        _require_start(workers, spec)
        return workers
    if scheme == "threads":
        return Workers(ThreadPoolExecutor(_number(spec, colon, rest), "milblob-worker"), memory, _nothing)
    if scheme not in ("dask", "ray"):
        raise ValueError(f"executor: expected {_SCHEMES}, got {spec!r}")
    if not rest:
        example = "dask:tcp://host:8786" if scheme == "dask" else "ray:auto"
        raise ValueError(f"executor: expected an address, as in {example}, got {spec!r}")
    return _open_dask(rest, memory) if scheme == "dask" else _open_ray(rest, memory)


def _number(spec: str, colon: str, text: str) -> int:
    if not colon:
        return processors()
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 10_000):
        raise ValueError(f"executor: expected a number of workers, as in {spec.partition(':')[0]}:8, got {spec!r}")
    return int(text)


def _require_start(workers: Workers, spec: str) -> None:
    """Wait until a process has started: in a program that opens them when it is imported, none does.

    Raises: RuntimeError: none starts.
    """
    try:
        workers.submit(int).result()
    except BaseException as error:
        workers.shutdown()
        if not isinstance(error, BrokenExecutor):
            raise
        hint = 'in a program, open them below `if __name__ == "__main__":`'
        raise RuntimeError(f"executor: expected processes for {spec!r}, got none that starts ({hint})") from None


def _begin() -> None:
    """Prepare a worker process: Ctrl-C is for its parent, and it ends when that ends, even if that is killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)  # all threads


def _nothing() -> None:
    """The executor is ours: what replaces it after a worker was killed is kept for the next call."""


def _open_dask(address: str, memory: int | str | None) -> Workers:
    client = require("distributed").Client(address)
    return Workers(client.get_executor(pure=False), memory, client.close)


def _open_ray(address: str, memory: int | str | None) -> Workers:
    ray = require("ray")
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(address=address, log_to_driver=False)
    return Workers(_RayExecutor(ray), memory, ray.shutdown if is_ours else _nothing)


class _RayExecutor(Executor):
    """Ray's tasks as an executor: Ray has none, but its references are also futures of the standard library."""

    def __init__(self, ray: Any) -> None:
        self._task = ray.remote(_applied).options(max_retries=RETRIES)
        self._max_workers = int(ray.cluster_resources().get("CPU", 1))

    def submit(self, fn: Callable[..., _R], /, *args: Any, **kwargs: Any) -> "Future[_R]":
        """See concurrent.futures.Executor."""
        return cast("Future[_R]", self._task.remote(fn, args, kwargs).future())


def _applied(function: Callable[..., _R], args: tuple[Any, ...], kwargs: dict[str, Any]) -> _R:
    return function(*args, **kwargs)
