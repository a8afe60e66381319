"""The work on one model of a batch, in any thread or process: skips it, adopts its output, or calls the function."""

import inspect
import os
from collections.abc import Callable
from typing import Any, NamedTuple

from ..errors import message_of
from ..results import plain
from ..storage import paths, transfer
from ..storage.output import NewFile
from ..storage.temporary import sweep
from ..wording import escape
from .files import beside, hash_files, nbytes_below, signature
from .journal import BatchEntry

_MAX_NCHARS = 1000

DONE, SKIPPED, FAILED, CHANGED = "done", "skipped", "failed", "changed"
_ADOPT, _MAKE, _REPLACE = "adopt", "make", "replace"


class BatchTask(NamedTuple):
    """A model to work on."""

    number: int  # of the model in the plan
    source: str  # its path
    destination: str | None = None  # path of its output; None without one
    is_recorded: bool = False  # whether there is a journal, which needs hashes
    entry: BatchEntry | None = None  # what the journal has about it
    has_result: bool = False  # whether the result is wanted; else it is not sent from a process to the coordinator


class Outcome(NamedTuple):
    """What became of a task."""

    # DONE, SKIPPED or FAILED; CHANGED: nothing was done, for its entry is of another source, or its output is gone
    status: str
    nbytes: int = 0  # size of the source
    source: bytes = b""  # its hash; b"" without a journal
    output: bytes | None = None  # that of the output, None if there is none
    error: str = ""  # one line about a failure
    result: Any = None  # what the function returned, if it is wanted


TaskEnd = tuple[BatchTask, Outcome]


def run_task(call: Callable[..., Any], task: BatchTask) -> TaskEnd:
    """Work on one model; its exception becomes a FAILED outcome."""
    try:
        return task, _run(call, task)
    except Exception as error:
        return failed(task, error)


def failed(task: BatchTask, error: Exception) -> TaskEnd:
    """Return the end of a task that raised an error, or whose workers were killed."""
    known = message_of(error)
    message = known if known is not None else f"{type(error).__name__}: {error}"
    return task, Outcome(FAILED, nbytes_below(task.source), error=escape(" ".join(message.split()))[:_MAX_NCHARS])


def has_parameter(call: Callable[..., Any], name: str) -> bool:
    """Whether a function has a parameter of this name."""
    try:
        return name in inspect.signature(call).parameters
    except (TypeError, ValueError):  # some that are written in C
        return False


def _run(call: Callable[..., Any], task: BatchTask) -> Outcome:
    nbytes = nbytes_below(task.source)
    source = hash_files(task.source) if task.is_recorded else b""
    if task.entry is not None and task.entry.is_done:
        output = _output_hash(task)
        if (task.entry.source, task.entry.output) == (source, output):
            return Outcome(SKIPPED, nbytes, source, output)
        if output not in (None, task.entry.output):
            message = "expected the output that the journal has, got a changed one (remove it, and it is made again)"
            raise FileExistsError(f"{task.destination}: {message}")
        return Outcome(CHANGED, output=None if output is None else hash_files(task.destination or ""))
    step = _step(task)
    if step == _ADOPT:  # it was complete when its coordinator was killed
        sweep(os.path.dirname(task.destination or ""))
        result = None
    else:
        result = _call(call, task, is_replaced=step == _REPLACE)
    output = _output_hash(task) if task.is_recorded else None
    return Outcome(DONE, nbytes, source, output, result=result if task.has_result else None)


def _step(task: BatchTask) -> str:
    """Decide what to do, by the journal and by what is there.

    Raises: FileExistsError: there is an output that the batch did not make.
    """
    if task.destination is None:
        return _MAKE
    if not paths.is_there(task.destination):
        # The first of two files may have its name already; it is the batch's own if there was none before.
        is_half = task.entry is not None and task.entry.is_clear and bool(beside(task.destination))
        return _REPLACE if is_half else _MAKE
    if task.entry is None:
        raise FileExistsError(f"{task.destination}: expected no such output, got one that the journal does not have")
    # Either the one to be replaced, or the new one: writers never leave a part of one, and it is the last of its files.
    if hash_files(task.destination) == task.entry.output or signature(task.source) != task.entry.source:
        return _REPLACE
    return _ADOPT


def _output_hash(task: BatchTask) -> bytes | None:
    """Return the hash of an output and of the files that belong to it; None if there is none."""
    if task.destination is None or not paths.is_there(task.destination):
        return None
    return hash_files(task.destination, *beside(task.destination))


def _call(call: Callable[..., Any], task: BatchTask, *, is_replaced: bool) -> Any:
    if task.destination is None:
        return call(task.source)
    os.makedirs(os.path.dirname(task.destination), exist_ok=True)
    if has_parameter(call, "destination"):
        more = {"force": True} if is_replaced and has_parameter(call, "force") else {}
        return call(task.source, task.destination, **more)
    result = call(task.source)
    write_json(task.destination, plain(result), force=is_replaced)
    return result


def write_json(path: str, document: Any, *, force: bool) -> None:
    """Write a JSON file, whole or not at all."""
    with NewFile(path, force=force) as new:
        transfer.write_json(new.fd, document)
