"""Work on many models, and on one large model, by 1, 2 and 4 worker processes: the tables of docs/scale.md.

    PYTHONPATH=bench .venv/bin/python bench/scale.py [--models 10,100,1000] [--workers 1,2,4] [--layers 8]

Each row is a process of its own, which starts its workers before the clock starts. Processor time is that of the process and
of all its workers, user and system, without what it takes to start as many workers and to do the same to a small model. Memory of the coordinator is
what it holds at the end, less what it held before. The work on one model needs coremltools, which makes the model.
"""

import argparse
import json
import pathlib
import pickle
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Any

import milblob

DEMO = pathlib.Path(__file__).resolve().parent.parent / "examples" / "demo.mlpackage"


def repacked(path: str) -> str:
    """Repack a model beside itself; return its hash."""
    milblob.repack(path, f"{path}.new", dedupe=True, force=True)
    return milblob.content_hash(f"{path}.new").model


def hashed(path: str) -> str:
    """Return the hash of a model."""
    return milblob.content_hash(path).model


CALLS: dict[str, Callable[..., Any]] = {
    "statistics": lambda path, executor: milblob.statistics(path, executor=executor),
    "content_hash": lambda path, executor: milblob.content_hash(path, executor=executor),
    "repack, align 4096": lambda path, executor: milblob.repack(
        path, f"{path}.new", align=4096, force=True, executor=executor
    ),
    "compress, int8": lambda path, executor: milblob.compress(
        path, f"{path}.new", "int8", force=True, executor=executor
    ),
    "compress, 4-bit palette": lambda path, executor: milblob.compress(
        path, f"{path}.new", "palette4", force=True, executor=executor
    ),
}


class Counting(Executor):
    """Runs each call at once, and counts what another process would be sent and would send back."""

    def __init__(self) -> None:
        self.pieces = self.sent_nbytes = self.returned_nbytes = self.opened = 0
        self._max_workers = 2

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> "Future[Any]":
        self.pieces += 1
        self.sent_nbytes += len(pickle.dumps((fn, args, kwargs)))
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        self.returned_nbytes += len(pickle.dumps(future.result()))
        return future


def used() -> float:
    """Return the processor time of this process and of those of its children that have ended, in seconds."""
    parts = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(part.ru_utime + part.ru_stime for part in parts)


def resident_nbytes() -> int:
    """Return the memory of this process (Linux)."""
    return int(pathlib.Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def measured(workers: int, first: Callable[[Any], Any], job: Callable[[Any], Any]) -> dict[str, float]:
    """Do a job with worker processes that have started, after a small job of the same kind."""
    times = []
    for work in (lambda executor: None, lambda executor: None, job):  # the first imports
        before = used()
        with milblob.executors.open(f"processes:{workers}") as executor:
            list(executor.map(len, [""] * 4 * workers))
            first(executor)
            nbytes, start = resident_nbytes(), time.perf_counter()
            result = work(executor)
            wall, nbytes = time.perf_counter() - start, resident_nbytes() - nbytes
            del result
        times.append(used() - before)  # of the workers too, which have ended
    return {"wall": wall, "processor": times[2] - times[1], "memory": nbytes}


def many(call: str, folder: str, count: int, workers: int) -> dict[str, float]:
    """Work on `count` models, one for each piece."""
    paths = [str(path) for path in sorted(pathlib.Path(folder).glob("*.mlpackage"))[:count]]
    work = {"content_hash": hashed, "repack + content_hash": repacked}[call]

    def job(executor: Any) -> list[str]:
        found = list(executor.run(work, paths, str))
        assert len(set(found)) == 1
        return found

    return measured(workers, lambda executor: list(executor.run(work, paths[: 2 * workers], str)), job)


def one(call: str, path: str, workers: int) -> dict[str, float]:
    """Work on one model in pieces."""
    with tempfile.TemporaryDirectory() as folder:
        small = shutil.copytree(DEMO, f"{folder}/small.mlpackage")
        return measured(workers, partial(CALLS[call], small), partial(CALLS[call], path))


def counted(call: str, path: str) -> dict[str, float]:
    """Count the pieces of a call, the bytes that processes exchange, and the files that are opened."""
    CALLS[call](path, None)  # imports
    executor, opened = Counting(), [0]

    def hook(event: str, _: Any) -> None:
        opened[0] += event == "open"

    sys.addaudithook(hook)
    CALLS[call](path, executor)
    return {
        "pieces": executor.pieces, "sent": executor.sent_nbytes, "returned": executor.returned_nbytes, "opened": opened[0],
    }  # fmt: skip


def child(*words: Any) -> dict[str, float]:
    """Run one of the functions above in a new process."""
    command = [sys.executable, __file__, "--row", json.dumps(words)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def show(*words: str) -> None:
    """Print a row of a table."""
    print("| " + " | ".join(words) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", default="10,100,1000")
    parser.add_argument("--workers", default="1,2,4")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--row", type=json.loads)
    arguments = parser.parse_args()
    if arguments.row:
        name, *words = arguments.row
        print(json.dumps({"many": many, "one": one, "counted": counted}[name](*words)))
        return
    counts, workers = ([int(word) for word in text.split(",")] for text in (arguments.models, arguments.workers))
    with tempfile.TemporaryDirectory() as folder:
        for number in range(max(counts)):
            shutil.copytree(DEMO, f"{folder}/{number:06}.mlpackage")
        show("call", "models", "workers", "wall", "processor", "models/s", "coordinator grows by")
        show("---", *["--:"] * 6)
        for call in ("content_hash", "repack + content_hash"):
            for count in counts:
                for width in workers:
                    got = child("many", call, folder, count, width)
                    show(
                        call, f"{count:,}", str(width), f"{got['wall']:.2f} s", f"{got['processor']:.2f} s",
                        f"{count / got['wall']:.0f}", f"{got['memory'] / 1024:.0f} KiB",
                    )  # fmt: skip
    import makers  # after the rows that need no coremltools

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/layers.mlpackage"
        makers.write_transformer(pathlib.Path(path), arguments.layers, 1024, "iOS18")
        print(f"\nOne model: {milblob.statistics(path).total.count * 2 / 2**20:.0f} MiB of float16\n")
        show("call", "workers", "wall", "processor", "coordinator grows by", "pieces", "sent", "returned", "opened")
        show("---", *["--:"] * 8)
        for call in CALLS:
            extent = child("counted", call, path)
            for width in workers:
                got = child("one", call, path, width)
                show(
                    call, str(width), f"{got['wall']:.2f} s", f"{got['processor']:.2f} s",
                    f"{got['memory'] / 2**20:.1f} MiB", f"{extent['pieces']:.0f}", f"{extent['sent'] / 1024:.0f} KiB",
                    f"{extent['returned'] / 1024:.0f} KiB", f"{extent['opened']:.0f}",
                )  # fmt: skip


if __name__ == "__main__":
    main()
