"""`milblob.batch`: one call for many models."""

import errno
import os
import re
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ..arguments import as_count, as_path, require_calls, require_flags
from ..progress import Progress, start_progress
from ..storage import paths
from ..workers import workers_of
from .files import nbytes_below
from .find import Found, find_models
from .journal import BatchJournal
from .plan import JOURNAL, Plan
from .report import BatchFailure, BatchItem, BatchReport
from .work import CHANGED, DONE, FAILED, SKIPPED, BatchTask, Outcome, TaskEnd, failed, has_parameter, run_task

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from ..executors import Workers


def batch(
    call: Callable[..., Any],
    sources: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    into: str | os.PathLike[str] | None = None,
    suffix: str | None = None,
    recursive: bool = False,
    resume: bool = False,
    journal: str | os.PathLike[str] | None = None,
    fail_fast: bool = False,
    jobs: int = 1,
    executor: "Executor | None" = None,
    each: Callable[[BatchItem], None] | None = None,
    progress: Progress | None = None,
) -> BatchReport:
    """Call a function for each of many models, also in several processes; one that fails does not stop the rest.

    A journal in `into` names every model that is done, with hashes of its source and its output. After an
    interruption, of any kind, the same call with `resume=True` does the rest.

    Args:
        call: the function, such as `milblob.repack`, or a `functools.partial` of one with its options. If it has a
            parameter `destination` and there is `into`, it is called as `call(source, destination)` and writes one
            file or directory, whole or not at all, as all functions of milblob do; with `force=True`, if it has that
            parameter, where it is to replace an output that the batch made of an older source. Else it is called as
            `call(source)`; with `into`, its result is written as JSON.
        sources: a path or several: models, and globs such as "models/**/*.mlpackage".
        into: a directory for outputs; it is created. An output has the name that its source has below its directory
            (`recursive`) or the fixed part of its glob, or else the last part of its path; JSON has ".json" added.
        suffix: the suffix of outputs, such as ".npz"; None: that of the source.
        recursive: a directory that is not a model yields every model below it, except hidden ones.
        resume: continue the batch of a journal. A model is skipped if source and output have the hashes of the journal.
        journal: path of the journal; default: "milblob-batch.jsonl" in `into`, and none without `into`.
        fail_fast: begin no further model after a failure.
        jobs: how many processes; 1: work in this one. Several need a `call` that can be pickled.
        executor: any `concurrent.futures.Executor` (see `milblob.executors`), instead of `jobs`. Its workers need the
            same files at the same paths.
        each: called with a `BatchItem` for each model when it is done, in this thread; results are kept nowhere else.
        progress: called with the name of a model, the bytes of the sources done, and those of all.

    Returns:
        Counts and failures.

    Raises:
        ValueError: no model, a directory or glob without one, two sources with one output name, an output inside a
            source, a journal of another call. FileExistsError: an output or a journal exists (without `resume`).
            Both before anything is written.
        FormatError: the journal is damaged. BlockingIOError: another process continues the same batch.
        OSError: the journal cannot be written.

    Examples:
        >>> from functools import partial
        >>> half = partial(milblob.repack, cast={"float32": "float16"})
        >>> report = milblob.batch(half, ["demo.mlpackage"], into="half")
        >>> report.done, report.failures, milblob.check("half/demo.mlpackage").is_sound
        (1, (), True)
        >>> milblob.batch(half, ["demo.mlpackage"], into="half", resume=True).skipped
        1
    """
    require_flags(recursive=recursive, resume=resume, fail_fast=fail_fast)
    start_progress(progress)
    given = [sources] if isinstance(sources, str | os.PathLike) else sources
    return run_batch(
        call, find_models(given, recursive=recursive), into=None if into is None else as_path(into), suffix=suffix,
        resume=resume, journal=None if journal is None else as_path(journal), fail_fast=fail_fast, jobs=jobs,
        executor=executor, each=each, progress=progress,
    )  # fmt: skip


def run_batch(
    call: Callable[..., Any],
    found: Iterable[Found],
    *,
    into: str | None,
    suffix: str | None = None,
    added: str | None = None,
    resume: bool = False,
    journal: str | None = None,
    fail_fast: bool = False,
    jobs: int = 1,
    executor: "Executor | None" = None,
    each: Callable[[BatchItem], None] | None = None,
    progress: Progress | None = None,
) -> BatchReport:
    """As `batch`, of models that were found; `added` ends the name of each output, by default ".json" those of JSON."""
    require_calls(call=call, each=each, progress=progress)
    jobs = as_count("jobs", jobs, 1)
    workers = workers_of(executor)
    if executor is not None and jobs > 1:
        raise ValueError("jobs: expected none with an executor, got both")
    if suffix is not None and (not suffix.startswith(".") or os.path.basename(suffix) != suffix):
        raise ValueError(f"suffix: expected one that begins with '.', such as .npz, got {suffix!r}")
    if added is None:
        added = "" if has_parameter(call, "destination") else ".json"
    plan = Plan(found, into, suffix, added)
    if into is not None and paths.is_there(into) and not paths.is_directory(into):
        raise NotADirectoryError(errno.ENOTDIR, "expected a directory for outputs, got a file", into)
    if into is not None and journal is None:
        journal = os.path.join(into, JOURNAL)
    elif journal is not None:
        plan.require_journal(journal)
    if resume and journal is None:
        raise ValueError("resume: expected into or journal, got neither")
    if not resume:
        plan.require_new()
    run = _Run(plan, each, progress)
    if journal is None:
        return run.work(call, None, workers, jobs, fail_fast)
    for directory in (into, os.path.dirname(journal)):
        if directory:
            os.makedirs(directory, exist_ok=True)
    with closing(BatchJournal(journal, describe(call), resume=resume)) as opened:
        return run.work(call, opened, workers, jobs, fail_fast)


def describe(call: Callable[..., Any]) -> str:
    """Return a text of a function and its options that is equal in every process."""
    if isinstance(call, partial):
        options = [*map(repr, call.args), *(f"{key}={value!r}" for key, value in sorted(call.keywords.items()))]
        return f"{describe(call.func)}({', '.join(options)})"
    name = getattr(call, "__qualname__", None)
    text = f"{call.__module__}.{name}" if name is not None else repr(call)
    return re.sub(r" at 0x[0-9A-Fa-f]+", "", text)


class _Run:
    """The coordinator: gives out tasks, and records what becomes of them.

    `plan`: of all models. `each`, `progress`: see `batch`.
    """

    def __init__(self, plan: Plan, each: Callable[[BatchItem], None] | None, progress: Progress | None) -> None:
        self._plan, self._each, self._progress = plan, each, progress
        self._total_nbytes = 0 if progress is None else sum(map(nbytes_below, plan.sources))
        self._counts = Counter[str]()
        self._nbytes = self._seen_nbytes = 0
        self._failures: list[BatchFailure] = []
        self._is_ended = False
        self._numbers = iter(range(len(plan)))
        self._changed: deque[BatchTask] = deque()  # made by the batch, of older sources

    def work(
        self,
        call: Callable[..., Any],
        journal: BatchJournal | None,
        workers: "Workers | None",
        jobs: int,
        fail_fast: bool,
    ) -> BatchReport:
        with nullcontext(workers) if jobs == 1 else _processes(jobs) as opened:
            is_more = True
            while is_more:  # after the last outcome there may be a changed one
                with closing(_ends(call, self._tasks(journal), opened)) as ends:
                    for task, outcome in ends:
                        self._take(task, outcome, journal)
                        self._is_ended = fail_fast and bool(self._failures)
                is_more = bool(self._changed) and not self._is_ended
        done, skipped, failed = (self._counts[status] for status in (DONE, SKIPPED, FAILED))
        where = None if journal is None else journal.path
        return BatchReport(len(self._plan), done, skipped, failed, self._nbytes, tuple(self._failures), where)

    def _tasks(self, journal: BatchJournal | None) -> Iterator[BatchTask]:
        """Yield tasks. That the work of one begins is in the journal before it is given to a worker."""
        while not self._is_ended:
            if self._changed:
                yield self._changed.popleft()
                continue
            number = next(self._numbers, None)
            if number is None:
                return
            yield self._task(number, journal)

    def _task(self, number: int, journal: BatchJournal | None) -> BatchTask:
        source, destination, name = self._plan.sources[number], self._plan.destination(number), self._plan.name(number)
        entry = None if journal is None else journal.entries.pop(name, None)
        is_there = destination is not None and paths.is_there(destination)
        if journal is not None and not is_there and not (entry is not None and entry.is_done):
            started = journal.begin(name, source, destination, entry)
            entry = None if entry is None else started
        return BatchTask(number, source, destination, journal is not None, entry, self._each is not None)

    def _take(self, task: BatchTask, outcome: Outcome, journal: BatchJournal | None) -> None:
        name = self._plan.name(task.number)
        if outcome.status == CHANGED and journal is not None:
            old = None if task.entry is None else task.entry._replace(output=outcome.output)
            entry = journal.begin(name, task.source, task.destination, old)
            self._changed.append(task._replace(entry=entry))
            return
        self._counts[outcome.status] += 1
        if outcome.status == FAILED:
            self._failures.append(BatchFailure(task.source, outcome.error))
        else:
            self._nbytes += outcome.nbytes
        if journal is not None and outcome.status == DONE:
            journal.finish(name, outcome.source, outcome.output, outcome.nbytes)
        elif journal is not None and outcome.status == FAILED:
            journal.fail(name, outcome.error)
        self._seen_nbytes += outcome.nbytes
        if self._progress is not None:
            total = max(self._total_nbytes, self._seen_nbytes)
            self._progress(name, self._seen_nbytes, total)
        if self._each is not None:
            self._each(BatchItem(task.source, task.destination, *outcome[:2], outcome.error, outcome.result))


def _processes(jobs: int) -> "Workers":
    from .. import executors

    return executors.open(f"processes:{jobs}")


def _ends(
    call: Callable[..., Any], tasks: Iterator[BatchTask], workers: "Workers | None"
) -> Generator[TaskEnd, None, None]:
    """Yield each task with its outcome, as it comes."""
    work = partial(run_task, call)
    if workers is not None:
        yield from workers.run(work, tasks, attrgetter("source"), in_order=False, of_killed=failed)
    else:
        yield from map(work, tasks)
