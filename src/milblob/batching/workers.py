"""Where tasks run: here, in an executor, or in processes that are started for the batch."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from typing import Any

from .work import FAILED, BatchTask, Outcome, run_task

_AHEAD = 2
_MAX_DEATHS = 2
_FOREIGN_AHEAD = 256
"""Tasks given to an executor whose number of workers is not known."""

Call = Callable[..., Any]
Taken = tuple[int, BatchTask]
"""A task with its number."""
Given = dict["Future[Outcome]", tuple[int, BatchTask, int]]
"""Tasks that an executor has, with the number of processes that died while they had them."""
Ends = Generator[tuple[int, BatchTask, Outcome], None, None]


def outcomes(call: Call, take: Callable[[], Taken | None], executor: Executor | None, jobs: int) -> Ends:
    """Yield the outcome of each task as it comes; a few tasks more than there are workers are taken ahead.

    Args:
        call: the function of the batch.
        take: returns a task, or None if there is none now; the caller may have further ones after an outcome.
        executor: runs them; None for `jobs` processes of its own, or this one.

    Raises:
        RuntimeError: processes cannot start. What the executor raises if it ends; tasks in progress are waited for.
    """
    if executor is not None:
        given: Given = {}
        try:
            yield from _run(call, executor, given, lambda: _fresh(take()), _FOREIGN_AHEAD)
        finally:
            for future in given:
                future.cancel()
            wait(given)
    elif jobs > 1:
        yield from _of_processes(call, take, jobs)
    else:
        while (taken := take()) is not None:
            yield *taken, run_task(call, taken[1])


def _fresh(taken: Taken | None) -> tuple[int, BatchTask, int] | None:
    return None if taken is None else (*taken, 0)


def _run(
    call: Call, executor: Executor, given: Given, take: Callable[[], tuple[int, BatchTask, int] | None], ahead: int
) -> Ends:
    """Run tasks until there are none. If the executor breaks, `given` has those in progress."""
    while True:
        while len(given) < ahead and (taken := take()) is not None:
            try:
                given[executor.submit(run_task, call, taken[1])] = taken
            except BrokenExecutor:
                lost: Future[Outcome] = Future()
                given[lost] = taken
                raise
        if not given:
            return
        for future in wait(given, return_when=FIRST_COMPLETED).done:
            outcome = future.result()
            number, task, _ = given.pop(future)
            yield number, task, outcome


def _of_processes(call: Call, take: Callable[[], Taken | None], jobs: int) -> Ends:
    """Run tasks in processes. If one dies, others start, and the tasks in progress are tried again one by one.

    So only a task whose process dies twice fails.
    """
    suspects: deque[tuple[int, BatchTask, int]] = deque()
    while True:
        given: Given = {}
        is_alone = bool(suspects)
        with _pool(1 if is_alone else jobs) as pool:
            try:
                if is_alone:
                    yield from _run(call, pool, given, lambda: suspects.popleft() if suspects else None, 1)
                else:
                    yield from _run(call, pool, given, lambda: _fresh(take()), _AHEAD * jobs)
                    return
            except BrokenExecutor:
                pass
        for number, task, deaths in given.values():
            if deaths + 1 < _MAX_DEATHS:
                suspects.append((number, task, deaths + 1))
            else:
                yield number, task, Outcome(FAILED, error="the process that worked on it died, twice")


@contextlib.contextmanager
def _pool(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """Start processes, which end with this one, however it ends.

    Raises:
        RuntimeError: they cannot start.
    """
    context = multiprocessing.get_context("spawn" if sys.platform == "win32" else "forkserver")
    if sys.platform != "win32":
        context.set_forkserver_preload([__name__])
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_end_with_coordinator)
    try:
        try:
            pool.submit(int).result()
        except BrokenExecutor:
            hint = 'in a program, call it below `if __name__ == "__main__":`'
            raise RuntimeError(f"batch: expected processes for {jobs} jobs, got none that runs ({hint})") from None
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_coordinator() -> None:
    """End this process when the coordinator has ended, also in the middle of its work."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C: end without a traceback
    coordinator = multiprocessing.parent_process()
    if coordinator is not None:
        threading.Thread(target=_watch, args=(coordinator,), daemon=True).start()


def _watch(coordinator: Any) -> None:
    coordinator.join()
    os._exit(1)
