"""kill -9 of a batch, at any moment: after it is resumed every output is whole, and none was made twice."""

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import pytest

import milblob
from batches import halved, left_over, models, seen
from children import child_environment, run_child
from milblob.batching.plan import JOURNAL
from repacking import tree
from thorough import sized, some

COUNT = sized(6, 12)
CODE = """
import sys
import milblob
from batches import halved
if __name__ == "__main__":
    report = milblob.batch(halved, sys.argv[1], into=sys.argv[2], recursive=True, jobs=int(sys.argv[3]), resume=True)
    print(report.done, report.skipped, report.failed)
"""
"""With `resume`, which begins a batch too: a coordinator may be killed before it has a journal."""


def lines_of(path):
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed_at(arguments, journal, lines, seconds):
    """Run the batch, and kill its coordinator some seconds after the journal has a number of lines; return whether it ran."""
    with subprocess.Popen(
        [sys.executable, "-c", CODE, *arguments], env=child_environment(), stdout=subprocess.PIPE
    ) as child:
        while lines_of(journal) < lines and child.poll() is None:
            time.sleep(0.0005)
        time.sleep(seconds)
        child.send_signal(signal.SIGKILL)
        return child.wait() == -signal.SIGKILL


@pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no SIGKILL: a batch that is killed is not tested there"
)
@pytest.mark.parametrize("point", some(range(20), named=[7, 14]))
def test_a_killed_batch_resumes(tmp_path, point):
    """The points are spread over the entries of the journal; one batch is killed several times."""
    draw = random.Random(point)
    source, out = models(tmp_path / "in", COUNT), tmp_path / "out"
    journal, jobs = out / JOURNAL, 1 + point % 2
    lines = point * (2 * COUNT + 1) // 19
    was_killed, before = 0, {}
    for _ in range(1 + point % 3 // 2):
        was_killed += killed_at([source, out, str(jobs)], journal, lines, draw.random() * 0.01)
        now = seen(out) if out.exists() else {}
        assert {name: now[name] for name in before} == before
        before = now
        lines = lines_of(journal) + 3
    # In this process: to start another one takes half of the time of the test.
    report = milblob.batch(halved, source, into=out, recursive=True, jobs=sized(1, jobs), resume=True)
    assert (report.done + report.skipped, report.failed) == (COUNT, 0)
    after = seen(out)
    assert {name: after[name] for name in before} == before
    for package in source.rglob("*.mlpackage"):
        name = package.relative_to(source).as_posix()
        halved(package, tmp_path / "one.mlpackage", force=True)
        assert after[name][1] == tree(tmp_path / "one.mlpackage")
    entries = [json.loads(line) for line in journal.read_bytes().splitlines()]
    assert sorted(entry["name"] for entry in entries if entry.get("state") == "done") == sorted(after)
    assert len(after) == COUNT
    assert left_over(out) == []
    assert was_killed or point > 16  # the last points may be after the end


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="there is no /proc: that no worker is left is not tested"
)
def test_the_processes_of_a_killed_coordinator_end(tmp_path):
    """In the middle of work that would take a minute."""
    code = """
        import os, sys, time
        import milblob
        from batches import sleeping
        if __name__ == "__main__":
            milblob.batch(sleeping, [sys.argv[1]] * 4, jobs=2)
    """
    child = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code), tmp_path], env=child_environment())
    deadline = time.monotonic() + 30
    while len(list(tmp_path.iterdir())) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    workers = [int(path.name) for path in tmp_path.iterdir()]
    assert len(workers) == 2
    child.kill()
    child.wait()
    assert ended(lambda: list(filter(is_running, workers)))


def ended(running):
    """Whether processes end within ten seconds; `running` returns those that run."""
    deadline = time.monotonic() + 10
    while running():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def is_running(pid, group=None):
    """Whether a process runs; with a group: and is in it."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            state, _, its_group, *_ = file.read().rpartition(")")[2].split()
    except OSError:
        return False
    return state != "Z" and group in (None, int(its_group))


@pytest.mark.thorough
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="there is no /proc: that no worker is left is not tested"
)
def test_an_interrupt_leaves_no_process_and_no_part(tmp_path):
    """Ctrl-C reaches the coordinator and its workers; the batch resumes."""
    source, out = models(tmp_path / "in", COUNT), tmp_path / "out"
    with subprocess.Popen(
        [sys.executable, "-c", CODE, source, out, "2"], env=child_environment(), stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, start_new_session=True,
    ) as child:  # fmt: skip
        while lines_of(out / JOURNAL) < 6 and child.poll() is None:
            time.sleep(0.0005)
        os.killpg(child.pid, signal.SIGINT)
        errors = child.stderr.read()
    assert errors.count(b"Traceback") <= 1  # that of the coordinator, which ends with KeyboardInterrupt
    assert ended(
        lambda: [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if is_running(pid, child.pid)]
    )
    done, skipped, failed = map(int, run_child(CODE, source, out, 1).split())
    assert (done + skipped, failed) == (COUNT, 0)
    assert left_over(out) == []
