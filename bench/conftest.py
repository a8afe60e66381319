"""What every job shares: scale, data made once, the C limits, and `row`, which checks a result and then times it.

The rows of a job take turns: each bench function runs TURNS times, in turns through all rows of its group, forwards and
backwards, so that a slow minute of the machine hits all of them alike. The first turn checks the result and measures
memory; every turn times its part of the rounds.
"""

import gc
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import makers
import measure
import pytest
import table
from cwalk import CWalk
from results import Results
from samples import Collected, Sampled, without_turn

os.environ.setdefault("TQDM_DISABLE", "1")  # coremltools' progress bars

SCALE = float(os.environ.get("MILBLOB_BENCH_SCALE", "1"))
"""Share of the full size at which the jobs run. Targets are meant for 1."""

TURNS = 5
SECONDS_PER_ROW = float(os.environ.get("MILBLOB_BENCH_SECONDS", "1" if SCALE > 0.1 else "0.2"))
"""What the rounds of a row take together, where that is more than MIN_ROUNDS of them."""
MIN_ROUNDS, MAX_ROUNDS = 5, 300
SLOW_ROUNDS = {1.5: 2, 0.5: 3}
"""A row that takes longer than so many seconds once has fewer rounds than MIN_ROUNDS."""

CORES = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
_BUSY = "import os\nos.sched_setaffinity(0, {%d})\nwhile True: pass"

COLLECTED = Collected()
_config: Any = None


def scaled(count: int, least: int = 1) -> int:
    """Return a size at the scale of this run."""
    return max(least, round(count * SCALE))


def needs(module: str) -> None:
    """Leave a row out, by name in the report, where the rival's package is not installed."""
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed")


# ------------------------------------------------------------------------------------------------------------ fixtures

Made = Callable[[str, Callable[[Path], None]], Path]


@pytest.fixture(scope="session")
def made() -> Iterator[Made]:
    """Return made(name, write) -> path: a file or package that is written once and shared by the rows.

    In a folder of $MILBLOB_BENCH_DATA, which is kept, or in a temporary one, which is not.
    """
    root = os.environ.get("MILBLOB_BENCH_DATA")
    folder = Path(root) / f"{SCALE:g}" if root else Path(tempfile.mkdtemp(prefix="milblob-bench-"))
    folder.mkdir(parents=True, exist_ok=True)

    def make(name: str, write: Callable[[Path], None]) -> Path:
        path, unfinished = folder / name, folder / f"unfinished-{name}"
        if not path.exists():
            if unfinished.is_dir():
                shutil.rmtree(unfinished)
            unfinished.unlink(missing_ok=True)
            write(unfinished)
            unfinished.rename(path)
        return path

    yield make
    if root is None:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def cwalk(tmp_path_factory: pytest.TempPathFactory) -> CWalk:
    """The bare C walks, compiled for this run."""
    return CWalk(tmp_path_factory.mktemp("cwalk"))


@pytest.fixture(scope="session")
def transformer(made: Made) -> Path:
    """A package that coremltools converted: at full scale 2,841 operations, 459 weights, 640 MB."""
    layers, width = scaled(24, 2), max(64, round(1024 * min(1.0, SCALE**0.5)) // 64 * 64)
    return made("transformer.mlpackage", lambda path: makers.write_transformer(path, layers, width))


@pytest.fixture(scope="session")
def busy() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Stopped processes, one for each core but the first."""
    found = [subprocess.Popen([sys.executable, "-c", _BUSY % core]) for core in CORES[1:]]
    time.sleep(0.5)
    for process in found:
        process.send_signal(signal.SIGSTOP)
    yield found
    for process in found:
        process.kill()
        process.wait()


@pytest.fixture(params=[False, True], ids=["alone", "beside-busy"])
def beside(request: Any, busy: list[subprocess.Popen[bytes]]) -> Iterator[bool]:
    """Whether the busy processes run; the timed one goes where it likes."""
    for process in busy if request.param else ():
        process.send_signal(signal.SIGCONT)
    time.sleep(0.05 if request.param else 0.0)
    yield request.param
    for process in busy:
        process.send_signal(signal.SIGSTOP)


def where_of(beside: bool) -> str:
    """What the name of a job says of it."""
    return f", beside a busy process on {len(CORES) - 1} of {len(CORES)} cores" if beside else ""


@pytest.fixture(params=range(TURNS), ids=lambda turn: f"turn{turn}")
def turn(request: pytest.FixtureRequest) -> int:
    """Which of the turns this is."""
    return int(request.param)


@pytest.fixture
def row(request: pytest.FixtureRequest, benchmark: Any, turn: int) -> Callable[..., None]:
    """Return the function that measures one row of a job. See `_measure`."""

    def measure_row(job: str, name: str, run: Callable[[], Any], **options: Any) -> None:
        if name.startswith("milblob") and options.get("role", "rival") == "rival":
            raise ValueError(f"{job}: {name}: expected the role 'milblob' or 'aside', got 'rival'")
        COLLECTED.place(request.node.nodeid, job, name)
        _measure(benchmark, turn, request.path.stem, job, name, run, **options)

    return measure_row


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
    targets: dict[str, float] | None = None,
    limit_ms: float | None = None,
    limit_nbytes: int | None = None,
    share: float = 1.0,
    nbytes: int = 0,
    setup: Callable[[], None] | None = None,
    output: Path | None = None,
    rounds: int | None = None,
    memory: bool = True,
    facts: Callable[[], dict[str, Any]] | None = None,
    note: str = "",
    extra: dict[str, Any] | None = None,
) -> None:
    """Check what a row gives, then time it.

    Args:
        benchmark: fixture of pytest-benchmark.
        turn: the first one checks; each times its part of the rounds.
        file: stem of the bench file, by which one can run this job alone.
        job, name: what is measured, by whom. Rows of one job are compared with each other.
        run: the work. Called more often than it is timed.
        check: raises AssertionError unless the result is right; not timed.
        role: "milblob"; "rival" for another library at the same job; "limit" for what cannot be beaten; "aside" for
            orientation: less work or other work, which no ratio is taken to.
        targets: name of another row of this job -> how many times its median this one may take.
        limit_ms: what this row may take, in milliseconds.
        limit_nbytes: what may become resident at most.
        share: part of the work that was done; the table divides by it.
        nbytes: bytes of input, where a speed is wanted.
        setup: called before each round, not timed.
        output: what run makes; removed before and after each round, not timed.
        rounds: how often, without a warm-up; default: what fits in SECONDS_PER_ROW.
        memory: measure it, in a child process.
        facts: called after each turn; more facts, `note` among them.
        note: for the table.
        extra: more facts.
    """

    def prepare() -> None:
        if output is not None:
            remove(output)
        if setup is not None:
            setup()

    bare = setup is None and output is None
    forget_imports()
    if turn == 0:
        memory_facts = measure.memory_in_child(run, prepare) if memory else {}
        prepare()
        start = time.perf_counter()
        result = run()
        seconds = time.perf_counter() - start
        check(result)
        del result
        if rounds is None:
            rounds = min(MAX_ROUNDS, max(MIN_ROUNDS, int(SECONDS_PER_ROW / seconds)))
            rounds = next((few for limit, few in SLOW_ROUNDS.items() if seconds > limit), rounds)
        sampled = Sampled(job, name, file, role, rounds, max(1, min(1000, int(50e-6 / seconds))) if bare else 1)
        sampled.warm = bare and seconds < 0.1
        sampled.info.update(targets=targets or {}, limit_ms=limit_ms, limit_nbytes=limit_nbytes, note=note)
        sampled.info.update(share=share, nbytes=nbytes, **memory_facts, **(extra or {}))
        COLLECTED.add(sampled)
    else:
        found = COLLECTED.rows.get((job, name))
        if found is None:
            pytest.skip("the first turn gave nothing")
        sampled = found
    part = sampled.rounds * (turn + 1) // TURNS - sampled.rounds * turn // TURNS
    if part:
        benchmark.pedantic(
            run,
            setup=None if bare else prepare,
            rounds=part,
            iterations=sampled.iterations,
            warmup_rounds=1 if sampled.warm else 0,
        )
        sampled.turns.append(list(benchmark.stats.stats.data))
        if facts is not None:
            sampled.info.update(facts())
    if output is not None:
        remove(output)


def forget_imports() -> None:
    """Collect garbage, so that none is left for the next row, and let later collections pass over what is there for good.

    coremltools and torch leave a million objects; to look at them takes longer than most rows.
    """
    if COLLECTED.modules != len(sys.modules):
        COLLECTED.modules = len(sys.modules)
        gc.collect()
        gc.freeze()
    gc.collect()


def remove(path: Path) -> None:
    """Remove a file or a directory, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


# --------------------------------------------------------------------------------------------------------------- hooks


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options."""
    parser.addoption("--summary", type=Path, help="where to write what was measured, as JSON")
    parser.addoption("--only", type=Path, help="JSON of the nodes to run, their turns left out")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the rows take turns: all that run on the same data once forwards, then backwards, and so on."""
    only = _config.getoption("--only")
    if only is not None:
        nodes = set(json.loads(only.read_text()))
        items[:] = [item for item in items if without_turn(item.nodeid) in nodes]

    def group(item: Any) -> tuple[Any, ...]:
        given = getattr(item, "callspec", None)
        own = {name for mark in item.iter_markers("parametrize") for name in str(mark.args[0]).split(",")}
        params = given.params.items() if given is not None else ()
        return item.path, *((k, repr(v)) for k, v in params if k != "turn" and k not in own)

    def turn_of(item: Any) -> int:
        return int(item.callspec.params.get("turn", 0)) if hasattr(item, "callspec") else 0

    ordered: list[pytest.Item] = []
    for _, found in itertools.groupby(items, group):
        for number, taken in itertools.groupby(sorted(found, key=turn_of), turn_of):
            ordered += list(taken)[:: -1 if number % 2 else 1]
    items[:] = ordered


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: Any) -> Any:
    """A row that fails, or whose package is not there, is absent by name; the others go on."""
    report = yield
    if call.excinfo is not None and report.when in ("setup", "call"):
        message = str(call.excinfo.value).strip() or call.excinfo.typename
        if call.excinfo.errisinstance(ModuleNotFoundError):
            message = f"{call.excinfo.value.name} is not installed"
        elif not call.excinfo.errisinstance(pytest.skip.Exception):
            message = f"failed: {call.excinfo.typename}: {message}"
        COLLECTED.absent_row(item.nodeid, item.path.stem, message.splitlines()[0][:200])
    return report


def pytest_runtest_logstart(nodeid: str) -> None:
    """Record which row is running, so that a run that is stopped names it."""
    COLLECTED.running = nodeid
    keep()


def pytest_runtest_logfinish(nodeid: str) -> None:
    """Keep what there is, in case that a later row takes the process with it."""
    COLLECTED.running = ""
    keep()


def keep() -> None:
    """Write what there is to where the option says."""
    path = _config.getoption("--summary")
    if path is not None:
        COLLECTED.write(path)


def pytest_configure(config: pytest.Config) -> None:
    """Keep the options."""
    global _config
    _config = config


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A file that cannot be imported is absent as a whole."""
    if report.failed:
        words = str(report.longrepr).strip().splitlines()[-1]
        COLLECTED.absent_row(report.nodeid, Path(report.nodeid).stem, f"failed: {words[:200]}")


def pytest_itemcollected(item: Any) -> None:
    """Note what a file says of itself."""
    COLLECTED.abouts.setdefault(item.path.stem, (item.module.__doc__ or "").strip())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print the table, unless bench/run.py prints it."""
    if _config.getoption("--summary") is None and COLLECTED.rows:
        terminalreporter.ensure_newline()
        terminalreporter.write_line(table.text(Results(COLLECTED.summary())))
