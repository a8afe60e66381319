"""Work for workers of executors that tests give out: by its name, as workers import it."""

import multiprocessing
import os
import pathlib
import signal
import time

import milblob
from children import SANITIZED
from milblob.compressing import far_weights
from milblob.rewrite.execute import run_task

CAN_FORK = "fork" in multiprocessing.get_all_start_methods() and not SANITIZED
"""Beside other threads, a forked process can wait for ever for a lock of AddressSanitizer's own allocator (gcc 12)."""

VARIABLE = "MILBLOB_TEST_KILLS"
"""A directory, and how many workers are to be killed: each leaves a file there."""


def killing(monkeypatch, folder, count):
    """Have `count` workers killed; returns the directory that gets a file for each."""
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, f"{folder}:{count}")
    return folder


def _die_if_asked():
    folder, _, most = os.environ[VARIABLE].rpartition(":")
    count = len(os.listdir(folder))
    if count < int(most):
        (pathlib.Path(folder) / str(count)).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def task_of_killed(task):
    """As `run_task`, in a worker that may be killed in the middle of it."""
    if task.begin == 64:
        run_task(task._replace(steps=task.steps[: len(task.steps) // 2]))
        _die_if_asked()
    return run_task(task)


def parts_of_killed(candidate, more, room):
    """As `parts_of`, in a worker that may be killed after the first weight of a piece."""
    found = far_weights.parts_of(candidate, more, room)
    _die_if_asked()
    return found


def piece_of_killed(piece):
    """Return a piece; the worker of one that is called "deadly" may be killed."""
    if piece == "deadly":
        _die_if_asked()
    return piece


def slow_piece_of_killed(piece):
    """As `piece_of_killed`, and each piece takes a while."""
    time.sleep(0.02)
    return piece_of_killed(piece)


def lines_or_an_error(piece):
    """Fail, or write a line to a file again and again."""
    if piece == "wrong":
        time.sleep(0.2)
        raise ValueError(piece)
    for _ in range(50):
        with open(piece, "a") as file:
            file.write("line\n")
        time.sleep(0.1)


def refused(piece):
    """Fail as work on broken files does."""
    raise milblob.FormatError(f"{piece}: expected a record, got none", offset=5, file="weight.bin", code="reference")


def results(source, other, folder, executor=None):
    """What every call that takes an executor returns or writes: values by name, files by path."""
    found = {
        "statistics": milblob.statistics(source, histogram=True, executor=executor),
        "hash": milblob.content_hash(source, executor=executor),
        "dense": milblob.content_hash(source, dense=True, executor=executor),
        "check": milblob.check(source, values=True, executor=executor),
        "diff": milblob.diff(source, other, executor=executor),
    }
    calls = {
        "repacked": lambda path: milblob.repack(source, path, align=4096, dedupe=True, executor=executor),
        "cast": lambda path: milblob.repack(source, path, cast="float16", executor=executor),
        "dense": lambda path: milblob.repack(other, path, decompress=True, executor=executor),
        "int8": lambda path: milblob.compress(source, path, "int8", nan="error", executor=executor),
        "palette": lambda path: milblob.compress(source, path, "palette4", executor=executor),
        "pruned": lambda path: milblob.compress(source, path, milblob.Prune(0.5), executor=executor),
        "goal": lambda path: milblob.compress(source, path, milblob.Goal(bits=6), executor=executor),
    }
    for name, call in calls.items():
        report = call(folder / name).to_dict()
        found[f"report of {name}"] = {key: value for key, value in report.items() if key != "output"}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = path.read_bytes()
    return found
