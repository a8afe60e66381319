"""Time every row of milblob against another commit: python bench/against.py OTHER [JOB ...], JOB as in bench_JOB.py.

OTHER is a commit, which is built in a temporary directory, or a directory with a milblob that is built. Each bench file
runs in two processes at once, one per milblob, each with the bench files of its own tree, on the same data. They go from
row to row together: both check their result, then they take turns, round by round, so that a slow minute of the machine
hits both alike. Only rows that both have are compared.

A row is slower if the quickest of its rounds took more than LIMIT times as long as the other's, by the clock and in CPU
time. A row that looks slower gets more rounds before it is called so. Exit code: 1 if a row is slower or failed.
"""

import argparse
import contextlib
import gc
import inspect
import json
import os
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
LIMIT = 1.05
SECONDS = 1.5
"""What the rounds of one row may take on each side, before it looks slower."""
MIN_ROUNDS, MAX_ROUNDS = 5, 200
ROUND_SECONDS = 2e-3
"""A round of a row without setup repeats its work until it takes about so long."""
MORE = 4
"""How often a row that looks slower gets as many rounds again."""
PIPE = "MILBLOB_BENCH_PIPE"

# ---------------------------------------------------------------------------------------------- in the two processes

_side: Connection | None = None


def pytest_configure(config: Any) -> None:
    """Open the pipe to the process that compares."""
    global _side
    _side = Connection(int(os.environ[PIPE]))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Take over `_measure`, and run what the other side has too: one turn of each row that can be milblob's."""
    import milblob

    assert _side is not None
    sys.modules["conftest"]._measure = _measure  # type: ignore[attr-defined]
    found = {item.nodeid: item for item in items if _is_own(item)}
    _side.send((milblob.__file__, list(found)))
    items[:] = [found[name] for name in _side.recv()]


def _is_own(item: Any) -> bool:
    """Whether this is the first turn of what speaks of milblob: the rivals' data need not be made."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    return not given.get("turn") and "milblob" in inspect.getsource(item.function) + repr(given)


def pytest_runtest_logstart(nodeid: str) -> None:
    """Wait until it is this side's turn: data that both need is made by the one that comes first."""
    assert _side is not None
    _side.send(("start", nodeid))
    _side.recv()


def pytest_exception_interact(call: Any) -> None:
    """Say why a row is not there."""
    if _side is not None and call.when != "teardown":
        _side.send(("absent", f"{call.excinfo.typename}: {call.excinfo.value}".splitlines()[0][:200]))


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Hand over."""
    assert _side is not None
    _side.send(("finish", nodeid))


def _measure(
    benchmark: Any,
    turn: int,
    file: str,
    job: str,
    name: str,
    run: Callable[[], Any],
    *,
    check: Callable[[Any], None],
    role: str = "rival",
    setup: Callable[[], None] | None = None,
    output: Path | None = None,
    **options: Any,
) -> None:
    """Stands in for `_measure` of conftest.py: check once, then time a round whenever it is asked to."""
    assert _side is not None
    if role != "milblob":
        return
    conftest = sys.modules["conftest"]

    def prepare() -> None:
        if output is not None:
            conftest.remove(output)  # type: ignore[attr-defined]
        if setup is not None:
            setup()

    prepare()
    conftest.forget_imports()  # type: ignore[attr-defined]
    result = run()
    check(result)
    del result
    prepare()
    seconds, _ = _round(run, 1)
    _side.send(("row", job, name, seconds, setup is None and output is None))
    while times := _side.recv():
        prepare()
        gc.collect()
        _side.send(_round(run, times))
    if output is not None:
        conftest.remove(output)  # type: ignore[attr-defined]


def _round(run: Callable[[], Any], times: int) -> tuple[float, float]:
    """Seconds by the clock, and of CPU time with that of children, of one call out of so many."""
    cpu, start = _cpu_seconds(), time.perf_counter()
    for _ in range(times):
        run()
    return (time.perf_counter() - start) / times, (_cpu_seconds() - cpu) / times


def _cpu_seconds() -> float:
    import resource

    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


# ------------------------------------------------------------------------------------------ in the one that compares


class Side:
    """A process that runs one bench file with one milblob.

    Args:
        tree: with `src/milblob`, built, and `bench`.
        file: name of the bench file.
        folder: of its own, for logs and outputs.
        data: shared by both sides.

    Attributes:
        nodes: what it can run, until one of them is chosen.
    """

    def __init__(self, tree: Path, file: str, folder: Path, data: Path) -> None:
        self._pipe, other = Pipe()
        folder.mkdir()
        path = os.pathsep.join((str(tree / "src"), str(HERE)))
        ini = tree / "bench" / "pytest.ini"
        command = [sys.executable, "-m", "pytest", "-p", "against", "-c", ini, tree / "bench" / file]
        with (folder / "log.txt").open("w") as log:
            self._process = subprocess.Popen(
                [*command, "--basetemp", folder / "tmp", "--summary", folder / "unused.json"],
                cwd=tree / "bench", stdout=log, stderr=subprocess.STDOUT, pass_fds=[other.fileno()],
                env=os.environ | {"PYTHONPATH": path, PIPE: str(other.fileno()), "MILBLOB_BENCH_DATA": str(data)},
            )  # fmt: skip
        other.close()
        try:
            used, self.nodes = self._pipe.recv()
        except EOFError:
            raise SystemExit(f"{tree / 'bench' / file}: {(folder / 'log.txt').read_text()[-2000:]}") from None
        if not Path(used).is_relative_to(tree / "src"):
            raise SystemExit(f"{tree}: expected its own milblob, got {used}")

    def begin(self, nodes: list[str]) -> None:
        """Tell it what to run."""
        self._pipe.send(nodes)

    def start(self) -> None:
        """Let it run the next bench function up to its first row."""
        self._pipe.recv()
        self._pipe.send(True)

    def next(self) -> tuple[Any, ...]:
        """Return the next row, or why there is none, or that the function has ended."""
        found: tuple[Any, ...] = self._pipe.recv()
        return found

    def round(self, times: int) -> tuple[float, float]:
        """Seconds by the clock and of CPU time of one call, of so many."""
        self._pipe.send(times)
        seconds, cpu = self._pipe.recv()
        return seconds, cpu

    def leave(self) -> None:
        """Let it go on after a row."""
        self._pipe.send(0)

    def end(self) -> None:
        """Wait for its end, or end it."""
        self._pipe.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Times:
    """Rounds of one row on both sides: the other milblob first, then this one."""

    def __init__(self, job: str, name: str) -> None:
        self.job, self.name = job, name
        self.seconds: tuple[list[float], list[float]] = [], []
        self.cpu: tuple[list[float], list[float]] = [], []

    def add(self, sides: list[Side], rounds: int, times: int) -> None:
        """Take turns; who is first changes."""
        for number in range(rounds):
            for index in (0, 1) if number % 2 else (1, 0):
                seconds, cpu = sides[index].round(times)
                self.seconds[index].append(seconds)
                self.cpu[index].append(cpu)

    @property
    def ratio(self) -> float:
        """This milblob's quickest round to the other's."""
        return min(self.seconds[1]) / min(self.seconds[0])

    @property
    def cpu_ratio(self) -> float:
        """The same, of CPU time."""
        return min(self.cpu[1]) / max(min(self.cpu[0]), 1e-9)

    @property
    def median_ratio(self) -> float:
        """The same, of the medians by the clock."""
        return statistics.median(self.seconds[1]) / statistics.median(self.seconds[0])

    @property
    def is_slower(self) -> bool:
        """By the clock and in CPU time, which other processes disturb less."""
        return self.ratio > LIMIT and self.cpu_ratio > LIMIT

    def __str__(self) -> str:
        then, now = (min(found) * 1e3 for found in self.seconds)
        words = f"{then:10.3f} -> {now:10.3f} ms  x{self.ratio:.3f} cpu x{self.cpu_ratio:.3f} median x{self.median_ratio:.3f}"
        mark = "SLOWER" if self.is_slower else ""
        return f"{words} ({len(self.seconds[0])}) {mark:6} {self.job}: {self.name}"

    def to_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {"job": self.job, "row": self.name, "seconds": self.seconds, "cpu": self.cpu}


def compare_row(sides: list[Side], rows: list[tuple[Any, ...]], seconds: float) -> Times:
    """Time a row that both sides have reached."""
    _, job, name, longest, bare = max(rows, key=lambda row: row[3])
    found = Times(job, name)
    times = max(1, min(1000, int(ROUND_SECONDS / longest))) if bare else 1
    rounds = max(MIN_ROUNDS, min(MAX_ROUNDS, int(seconds / (longest * times))))
    found.add(sides, rounds, times)
    for _ in range(MORE):
        if found.is_slower:
            found.add(sides, rounds, times)
    return found


def compare_file(file: str, trees: list[Path], folder: Path, data: Path, seconds: float) -> Iterator[Times | str]:
    """Run one bench file on both sides; yield its rows, and words for each row that is not there."""
    with contextlib.ExitStack() as stack:
        sides = []
        for index, tree in enumerate(trees):
            sides.append(Side(tree, file, folder / f"{file}-{index}", data))
            stack.callback(sides[-1].end)
        nodes = [node for node in sides[1].nodes if node in sides[0].nodes]
        for side in sides:
            side.begin(nodes)
        for node in nodes:
            try:
                yield from _compare_node(node, sides, seconds)
            except EOFError:
                yield f"absent: {node} and what follows: a process has ended"
                return


def _compare_node(node: str, sides: list[Side], seconds: float) -> Iterator[Times | str]:
    at = []
    for side in sides:
        side.start()
        at.append(side.next())
    while any(found[0] != "finish" for found in at):
        rows = [found for found in at if found[0] == "row"]
        if len(rows) == 2 and rows[0][1:3] == rows[1][1:3]:
            yield compare_row(sides, rows, seconds)
        else:
            yield f"absent: {node}: {' -> '.join(' '.join(map(str, found[:3])) for found in at)}"
        for index, side in enumerate(sides):
            if at[index][0] == "row":
                side.leave()
            if at[index][0] != "finish":
                at[index] = side.next()


def built(other: str, folder: Path) -> Path:
    """Return the directory of OTHER: itself, or a commit's files with its extension compiled.

    Raises:
        SystemExit: it is neither.
    """
    if Path(other).is_dir():
        return Path(other).resolve()
    tree = folder / "other"
    root = HERE.parent
    archive = subprocess.run(["git", "-C", root, "archive", "-o", folder / "other.tar", other], check=False)
    if archive.returncode:
        raise SystemExit(f"{other}: expected a commit, or a directory with a milblob that is built")
    with tarfile.open(folder / "other.tar") as tar:
        tar.extractall(tree, filter="data")
    print(f"building {other}", file=sys.stderr)
    subprocess.run([sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"], cwd=tree, check=True)
    return tree


def main() -> int:
    """Compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", metavar="OTHER", help="a commit, or a directory with a milblob that is built")
    parser.add_argument("jobs", nargs="*", metavar="JOB", help="as in bench_JOB.py; default: all")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"for the rounds of a row; default {SECONDS}")
    parser.add_argument("--json", type=Path, help="where to write every round")
    arguments = parser.parse_args()

    from run import bench_files, remove_unshared

    slower, absent, done = 0, 0, []
    kept = os.environ.get("MILBLOB_BENCH_DATA")
    with tempfile.TemporaryDirectory(prefix="milblob-against-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        trees = [built(arguments.other, folder), HERE.parent]
        data = Path(kept) if kept else folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        for path in bench_files(arguments.jobs):
            if not (trees[0] / "bench" / path.name).is_file():
                print(f"{path.stem}: not in {arguments.other}", flush=True)
                continue
            print(path.stem, flush=True)
            for found in compare_file(path.name, trees, folder, data, arguments.seconds):
                print(f"  {found}", flush=True)
                if isinstance(found, Times):
                    done.append(found)
                    slower += found.is_slower
                else:
                    absent += 1
            if not kept:
                remove_unshared(data)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps([found.to_dict() for found in done]))
    print(f"{len(done)} rows, {slower} slower by more than {LIMIT - 1:.0%}, {absent} absent")
    return int(bool(slower or absent))


if __name__ == "__main__":
    raise SystemExit(main())
