"""The fixtures that several test files ask for, and hooks. What is neither is in tests/support."""

import gc
import os
import sys
import tempfile
from pathlib import Path

import pytest

# Nothing that collecting makes is garbage, and looking for some takes a quarter of its time: until pytest_collection_finish.
gc.disable()

# For all processes of a run, before the first imports NumPy: threads of BLAS and OpenMP that wait for one another take the
# processors from the other workers, and twice the time that the work takes.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# coremltools imports it, with SciPy, and does not use the versions that are there: twice its own time.
sys.modules.setdefault("sklearn", None)

# Before they are imported: a failing assert in them says what it compared, as in a test.
pytest.register_assert_rewrite(*(path.stem for path in Path(__file__).with_name("support").glob("*.py")))

from coremltools_view import trust_coremltools  # noqa: E402
from faults import Faults, build_library  # noqa: E402
from milblob import _codec  # noqa: E402
from opening import EVERY_WAY, open_by  # noqa: E402
from thorough import IS_THOROUGH, LONGEST, first_tier  # noqa: E402 - and the profile of hypothesis


def pytest_configure():
    """Let Python keep bytecode. Where the environment forbids it, as images of containers do, each of the hundreds of
    processes that tests start would compile all of milblob, and each worker every test.
    """
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    """Let every other worker begin at the other end: of what they import, each then compiles one half for both."""
    report = yield
    if isinstance(collector, (pytest.Session, pytest.Dir)) and os.environ.get("PYTEST_XDIST_WORKER", "")[-1:] in set(
        "13579"
    ):
        report.result.reverse()
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Have the tests in one order in all workers, and leave out the second tier, unless this is `make thorough`.

    There the longest module comes first: at the end one worker would go through it alone, for nobody takes over a test that runs.
    """
    items.sort(key=lambda item: (IS_THOROUGH and item.path.name != LONGEST, item.path.parts))
    if not IS_THOROUGH:
        chosen = first_tier(items)
        kept = set(chosen)
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen


def pytest_collection_finish():
    """Keep the collector away from what stays until the end: thousands of tests and the libraries that they import.

    coremltools calls it after each conversion, and without this it looks at all of them each time.
    """
    gc.collect()
    gc.freeze()
    gc.enable()
    if sys.modules["sklearn"] is None:
        del sys.modules["sklearn"]
    trust_coremltools()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """Keep the collector away from what a module has imported too, once its tests have run."""
    yield
    if nextitem is None or nextitem.path != item.path:
        gc.collect()  # which takes time for what is new only
        gc.freeze()


@pytest.fixture
def tmp_path(request, tmp_path):
    """A directory of the test's own: in memory where faults are injected, if there is such a place.

    What those tests are about is the order of calls, and disks take long to sync.
    """
    if "faults" not in request.fixturenames or not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        yield Path(name)


@pytest.fixture
def unsynced(monkeypatch):
    """os.fsync syncs nothing, for modules that write hundreds of files and are not about syncing. `make thorough` syncs."""
    if not IS_THOROUGH:
        monkeypatch.setattr(os, "fsync", os.fstat)  # a descriptor has to be one


@pytest.fixture
def one_thread(monkeypatch):
    """MILBLOB_THREADS is 1, for modules that compress hundreds of small weights: `make thorough` leaves the number as it is.

    Each of the steps of a fit looks for free processors, and results do not depend on threads, which other tests show.
    """
    if not IS_THOROUGH:
        monkeypatch.setenv("MILBLOB_THREADS", "1")


@pytest.fixture(params=_codec.tiers()[0])
def tier(request):
    """Every tier of kernels that this CPU can run, one after another."""
    before = _codec.tiers()[1]
    _codec.set_tier(request.param)
    yield request.param
    _codec.set_tier(before)


@pytest.fixture(params=EVERY_WAY)
def every_way(request, monkeypatch):
    """Every way of opening what a model names, one after another."""
    return open_by(request.param, monkeypatch)


@pytest.fixture(scope="session")
def faults(tmp_path_factory):
    """The `Faults` that all tests share."""
    library = build_library(tmp_path_factory.mktemp("faults")) if sys.platform.startswith("linux") else None
    if library is None:
        pytest.skip("faults are injected on Linux, with a C compiler: failing calls are not tested here")
    server = Faults(library)
    yield server
    server.close()


@pytest.fixture
def cli(capsys):
    """Run main() in this process: (status, stdout, stderr)."""

    from milblob.cli import main

    def run(*argv):
        status = main([str(argument) for argument in argv])
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        if status == 2:
            lines = captured.err.splitlines()
            assert len(lines) == 1, captured.err
            assert lines[0].startswith("milblob: ")
        return status, captured.out, captured.err

    return run
