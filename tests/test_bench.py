"""The benchmarks themselves: a tiny run with rivals that fail, the table of its results, and two trees side by side."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import milblob
from bench_modules import BENCH, bench_modules
from children import SANITIZED
from paths import ROOT

HARNESS = (
    "conftest.py",
    "cwalk.py",
    "machine.py",
    "makers.py",
    "measure.py",
    "pytest.ini",
    "results.py",
    "run.py",
    "samples.py",
    "table.py",
)

TINY = '''"""A tiny job.

It is here to be tested."""
import atexit
import os
import time
from pathlib import Path

import numpy as np
import pytest

import milblob
from conftest import needs

TURNS = []
DATA = milblob.pack_tensor(np.arange(1000, dtype=np.int32))


def is_thousand(got):
    assert len(got) == 1000


def bench_milblob(row, made):
    assert made("data", lambda path: path.write_bytes(DATA)).read_bytes() == DATA
    TURNS.append("milblob")
    run = lambda: milblob.unpack_tensor(DATA, "int32", (1000,))
    row("tiny", "milblob", run, check=is_thousand, role="milblob", nbytes=len(DATA), targets={"slow": 0.5, "nobody": 2})


def bench_slow(row):
    TURNS.append("slow")
    row("tiny", "slow", lambda: time.sleep(0.02) or range(1000), check=is_thousand, rounds=5)


def bench_limit(row):
    TURNS.append("limit")
    row("tiny", "limit", lambda: range(1000), check=is_thousand, role="limit")


def bench_wrong(row):
    row("tiny", "wrong", lambda: [], check=is_thousand)


def bench_missing(row):
    import no_such_module


def bench_left_out(row):
    needs("no_such_rival")


@pytest.mark.parametrize("factor", [1, 10, 100])
def bench_nap(row, factor):
    row("nap", f"{factor}x", lambda: time.sleep(factor / 5000), check=lambda _: None, role="milblob", rounds=5)


def bench_memory(row, tmp_path):
    out = tmp_path / "out"

    def run():
        assert not out.exists()
        out.write_bytes(b"x")
        kept = np.ones(32 << 20, np.uint8)
        np.ones(64 << 20, np.uint8)
        return kept

    row("memory", "64 MiB, 32 of them kept", run, check=lambda got: None, role="milblob", output=out, rounds=5)


def bench_moving(row, turn):
    again = Path(os.environ["MILBLOB_BENCH_DATA"]) / "again"
    row("moving", "limit", lambda: time.sleep(0.2 if turn > 2 and not again.exists() else 0.02), check=lambda got: None,
        role="limit", rounds=5)


def bench_moving_rival(row):
    again = Path(os.environ["MILBLOB_BENCH_DATA"]) / "again"
    row("moving", "rival", lambda: 1, check=lambda got: None, note="again" if again.exists() else "")
    atexit.register(again.touch)


def bench_turns(row):
    row("turns", "all", lambda: "".join(name[0] for name in TURNS), check=lambda got: None, facts=lambda: {"note": " ".join(TURNS)})
'''

KILLED = '''"""A job that ends its process."""
import os


def bench_before(row):
    row("killed", "before", lambda: 1, check=lambda got: None)


def bench_kills(row):
    os._exit(9)
'''


@pytest.fixture(scope="module")
def bench():
    with bench_modules() as found:
        yield found


def run_python(*argv, **environment):
    outside = "PYTEST_", "MILBLOB_"  # what xdist or a user says to this run is not for that one
    env = {key: value for key, value in os.environ.items() if not key.startswith(outside)}
    env |= {"PYTHONPATH": str(Path(milblob.__file__).parents[1]), **environment}
    return subprocess.run(
        [sys.executable, *map(str, argv)], capture_output=True, text=True, check=False, env=env, cwd=ROOT
    )


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """(path of the results, what was printed) of a run of two tiny files."""
    if os.name == "nt":
        pytest.skip("the benchmarks run on POSIX systems: their start is not tested here")
    folder = tmp_path_factory.mktemp("tiny")
    for name in HARNESS:
        shutil.copy(BENCH / name, folder)
    (folder / "bench_tiny.py").write_text(TINY)
    (folder / "bench_killed.py").write_text(KILLED)
    temporary = folder / "temporary"
    temporary.mkdir()
    out = folder / "out" / "results.json"
    done = run_python(folder / "run.py", "--json", out, TMPDIR=str(temporary), MILBLOB_BENCH_SCALE="0.01")
    assert done.returncode == 0, done.stderr
    assert list(temporary.iterdir()) == []
    return out, done.stdout


@pytest.mark.thorough
def test_a_failing_rival_is_absent_and_the_others_go_on(tiny):
    path, printed = tiny
    data = json.loads(path.read_text())
    absent = {row["row"]: (row["job"], row["file"], row["reason"]) for row in data["absent"]}
    assert absent == {
        "wrong": ("tiny", "bench_tiny", "failed: AssertionError: assert 0 == 1000"),
        "bench_missing": ("", "bench_tiny", "no_such_module is not installed"),
        "bench_left_out": ("", "bench_tiny", "no_such_rival is not installed"),
        "bench_kills": ("", "bench_killed", "failed: exit code 9"),
    }
    rows = {(row["job"], row["row"]): row for row in data["rows"]}
    assert {name for job, name in rows if job == "tiny"} == {"milblob", "slow", "limit"}
    assert rows["killed", "before"]["rounds"] > 0
    slow = rows["tiny", "slow"]
    assert slow["rounds"] == 5 and 0.02 <= slow["min"] <= slow["q1"] <= slow["median"] <= slow["q3"]
    assert "bench_tiny: tiny: wrong: failed: AssertionError" in printed
    assert re.search(r"target <= 1/2 of slow \(is 1/[\d,.]+\): met", printed)
    assert data["header"]["milblob"]["tier"] in data["header"]["milblob"]["tiers"]


@pytest.fixture
def trees(tmp_path):
    """Two trees with the milblob of this run and benchmarks of their own, which a test may change."""
    if os.name == "nt":
        pytest.skip("the benchmarks run on POSIX systems: their start is not tested here")
    for name in ("then", "now"):
        folder = tmp_path / name / "bench"
        folder.mkdir(parents=True)
        (tmp_path / name / "src").symlink_to(Path(milblob.__file__).parents[1])
        for file in (*HARNESS, "against.py"):
            shutil.copy(BENCH / file, folder)
        (folder / "bench_tiny.py").write_text(TINY)
    return tmp_path / "then", tmp_path / "now"


def against(trees, *jobs):
    """Return (exit code, what was printed, the rows of the JSON)."""
    out = trees[1] / "against.json"
    arguments = [trees[1] / "bench" / "against.py", trees[0], *jobs, "--json", out, "--seconds", "0.01"]
    done = run_python(*arguments, MILBLOB_BENCH_SCALE="0.01")
    return done.returncode, done.stdout, json.loads(out.read_text()) if out.exists() else done.stderr


@pytest.mark.thorough
def test_two_trees_side_by_side(trees):
    code, printed, rows = against(trees)
    names = [(row["job"], row["row"]) for row in rows]
    assert names == [
        ("tiny", "milblob"),
        ("nap", "1x"),
        ("nap", "10x"),
        ("nap", "100x"),
        ("memory", "64 MiB, 32 of them kept"),
    ]
    for row in rows:
        then, now = row["seconds"]
        assert len(then) == len(now) >= 5 and min(then) > 0 and len(row["cpu"][1]) == len(now)
    for index in (0, 1):
        assert min(rows[3]["seconds"][index]) >= 0.02  # what a row takes, not what the harness does
    assert ", 0 absent" in printed and code == int("SLOWER" in printed)


@pytest.mark.thorough
def test_two_trees_with_rows_of_their_own(trees):
    """A row that is in one tree only is not compared; one that gives a wrong result is named, and the others go on."""
    then, now = (tree / "bench" / "bench_tiny.py" for tree in trees)
    then.write_text(TINY.replace("def bench_memory", "def bench_of_old"))
    now.write_text(TINY.replace("len(got) == 1000", "len(got) == 1001").replace('f"{factor}x"', 'f"milblob {factor}x"'))
    (trees[1] / "bench" / "bench_new.py").write_text(TINY)
    code, printed, rows = against(trees)
    assert code == 1 and rows == [] and "bench_new: not in" in printed
    assert re.search(r"absent: bench_tiny.py::bench_milblob\[turn0\]: row tiny milblob -> absent .*assert", printed), (
        printed
    )
    assert printed.count("row nap") == 2 * 3 and "bench_memory" not in printed and ", 4 absent" in printed


@pytest.mark.thorough
def test_against_reports_a_tree_that_fails(trees):
    (trees[1] / "bench" / "bench_tiny.py").write_text(
        TINY.replace("is_thousand(got):\n", "is_thousand(got):\n    os._exit(9)\n")
    )
    code, printed, _ = against(trees)
    assert code == 1 and "a process has ended" in printed and "0 rows, 0 slower by more than 5%, 1 absent" in printed


def test_against_rejects_a_tree_without_milblob(trees):
    code, printed, error = against((trees[0] / "none", trees[1]))
    assert code == 1 and "expected a commit, or a directory" in error
    shutil.rmtree(trees[0] / "bench")
    (trees[0] / "src").unlink()
    code, printed, rows = against(trees)
    assert "not in" in printed and rows == []


def test_slower_is_slower_by_the_clock_and_in_cpu_time(bench):
    times = bench["against"].Times("job", "row")
    for seconds, cpu, is_slower in (
        ([1, 1.04], [1, 1.2], False),
        ([1, 1.2], [1, 1.04], False),
        ([1, 1.06], [1, 1.06], True),
    ):
        times.seconds, times.cpu = ([seconds[0], 9], [seconds[1], 9]), ([cpu[0], 9], [cpu[1], 9])
        assert times.is_slower is is_slower
        assert ("SLOWER" in str(times)) is is_slower


def test_a_job_whose_limit_moved_is_measured_again(tiny):
    data = json.loads(tiny[0].read_text())
    limit, rival = sorted((row for row in data["rows"] if row["job"] == "moving"), key=lambda row: row["role"])
    assert limit["repeats"] == rival["repeats"] >= 1 and rival["note"] == "again"
    assert 0.02 <= limit["start"] < 0.2 and 0.02 <= limit["end"] < 0.2 and "node" not in limit
    assert (
        data["runs"].keys() == {"bench_tiny", "bench_killed"}
        and data["runs"]["bench_tiny"]["version"] == milblob.__version__
    )


def test_rows_take_turns(tiny):
    rows = {(row["job"], row["row"]): row for row in json.loads(tiny[0].read_text())["rows"]}
    there, back = ["milblob", "slow", "limit"], ["limit", "slow", "milblob"]
    assert rows["turns", "all"]["note"].split() == there + back + there + back + there


@pytest.mark.skipif(SANITIZED, reason="AddressSanitizer's own memory counts: what we take is not measured under it")
def test_memory_is_that_of_the_row(tiny):
    (row,) = [row for row in json.loads(tiny[0].read_text())["rows"] if row["job"] == "memory"]
    if not Path("/proc/self/clear_refs").exists():
        assert "peak_nbytes" not in row
        return
    assert 96 << 20 <= row["peak_nbytes"] < 104 << 20
    assert 32 << 20 <= row["anonymous_nbytes"] < 40 << 20


def test_table_of_results_and_what_changed(tiny, bench, tmp_path):
    path, printed = tiny
    done = run_python(BENCH / "table.py", path, "--against", path)
    assert done.returncode == 0 and printed.strip() in done.stdout
    assert "0 changed" in done.stdout
    data = json.loads(path.read_text())
    (row,) = [row for row in data["rows"] if (row["job"], row["row"]) == ("tiny", "milblob")]
    figures = {"min": 9e-7, "q1": 1e-6, "median": 1.1e-6, "q3": 1.2e-6}  # how busy the machine was must not matter
    row.update(figures)
    (limit,) = [row for row in data["rows"] if row["job"] == "tiny" and row["role"] == "limit"]
    limit["end"] = limit["start"]
    old = bench["results"].Results(json.loads(json.dumps(data)))
    row.update({key: seconds * 50 for key, seconds in figures.items()})
    found = bench["results"].Results(data)
    text = bench["table"].comparison(found, old)
    assert (
        re.search(r"50x slower  tiny: milblob: .+ then, .+ now; of the limit: .+ then, .+ now", text)
        and "1 changed" in text
    )
    data["header"]["scale"] = 1
    assert "nothing to compare" in bench["table"].comparison(bench["results"].Results(data), old)


def test_every_bench_file_can_be_collected():
    if os.name == "nt":
        pytest.skip("the benchmarks run on POSIX systems: their start is not tested here")
    done = run_python("-m", "pytest", "-c", BENCH / "pytest.ini", BENCH, "--collect-only")
    assert done.returncode == 0, done.stdout[-2000:]
    files = {path.name for path in BENCH.glob("bench_*.py")}
    assert set(re.findall(r"(bench_\w+\.py)::", done.stdout)) == files and len(files) >= 18
