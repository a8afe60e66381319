"""milblob.batch: names of outputs, failures, resuming, executors, and what is refused."""

import concurrent.futures
import json
import os
import shutil
import subprocess
import sys
import tracemalloc
from functools import partial

import numpy as np
import pytest

import milblob
import milblob.onnx
from batches import InThisThread, failing, halved, killed_by_one, left_over, models, seen, size
from children import child_environment
from milblob.batching.find import Found
from milblob.batching.plan import JOURNAL
from paths import DEMO
from peers import WITHOUT
from progress_rows import steps
from repacking import tree
from thorough import sized

pytestmark = pytest.mark.usefixtures("unsynced")


@pytest.fixture
def source(tmp_path):
    return models(tmp_path / "in", 4)


NAMES = ["m0.mlpackage", "m1.mlpackage", "m3.mlpackage", "sub/m2.mlpackage"]


def entries(path):
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def done_of(path):
    return [entry["name"] for entry in entries(path) if entry.get("state") == "done"]


def test_outputs_are_those_of_single_calls_and_mirror_their_sources(source, tmp_path):
    report = milblob.batch(halved, source, into=tmp_path / "out", recursive=True)
    assert (report.count, report.done, report.skipped, report.failed) == (4, 4, 0, 0)
    assert report.is_complete
    assert report.nbytes == sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    assert sorted(done_of(tmp_path / "out" / JOURNAL)) == NAMES
    for name in NAMES:
        halved(source / name, tmp_path / "one.mlpackage")
        assert tree(tmp_path / "out" / name) == tree(tmp_path / "one.mlpackage")
        shutil.rmtree(tmp_path / "one.mlpackage")
    assert left_over(tmp_path / "out") == []


def test_results_are_written_as_json_and_given_to_each(source, tmp_path):
    items, calls = [], []
    report = milblob.batch(
        partial(milblob.content_hash, dense=True), [source / "m0.mlpackage", source / "sub/m2.mlpackage"],
        into=tmp_path / "out", each=items.append, progress=lambda *call: calls.append(call),
    )  # fmt: skip
    assert report.done == 2
    for item, name in zip(items, ("m0", "m2"), strict=True):
        document = json.loads((tmp_path / "out" / f"{name}.mlpackage.json").read_text("utf-8"))
        assert document == item.result.to_dict() == milblob.content_hash(item.source, dense=True).to_dict()
        assert (item.status, item.error) == ("done", "")
        assert item.destination == str(tmp_path / "out" / f"{name}.mlpackage.json")
    assert [call[0] for call in steps(calls)] == ["m0.mlpackage.json", "m2.mlpackage.json"]
    assert calls[-1][1:] == (report.nbytes, report.nbytes)


def test_suffix_replaces_that_of_the_source(source, tmp_path):
    milblob.batch(milblob.convert, [DEMO], into=tmp_path / "out", suffix=".npz")
    with np.load(tmp_path / "out/demo.npz") as arrays:
        assert set(arrays) == set(milblob.load(DEMO))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failure_is_one_line_and_the_rest_is_done(source, jobs):
    items = []
    report = milblob.batch(failing, [f"{source}/*.mlpackage", source / "no"], jobs=jobs, each=items.append)
    assert sorted(item.result for item in items if item.status == "done") == ["m0", "m3", "no"]
    assert [(one.source, one.error) for one in report.failures] == [
        (str(source / "m1.mlpackage"), "RuntimeError: two lines")
    ]
    assert not report.is_complete


def test_fail_fast_begins_no_further_model(source):
    report = milblob.batch(failing, f"{source}/*.mlpackage", fail_fast=True)
    assert (report.count, report.done, report.failed) == (3, 1, 1)


def test_a_process_that_dies_costs_its_model_only(source):
    report = milblob.batch(killed_by_one, source, recursive=True, jobs=2)
    assert (report.done, report.failed) == (3, 1)
    assert report.failures[0].source == str(source / "m1.mlpackage")
    assert "m1.mlpackage: expected a worker to finish it, got one that was killed each time" in report.failures[0].error


def test_any_executor(source, tmp_path):
    executor = InThisThread()
    assert milblob.batch(halved, source, into=tmp_path / "a", recursive=True, executor=executor).done == 4
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert milblob.batch(halved, source, into=tmp_path / "b", recursive=True, executor=pool).done == 4
    contents = [{name: files for name, (_, files) in seen(tmp_path / part).items()} for part in "ab"]
    assert contents[0] == contents[1]
    assert len(executor.threads) == 1


def test_a_program_that_runs_when_it_is_imported(source, tmp_path):
    """Its processes would run it again."""
    script = tmp_path / "program.py"
    script.write_text("import sys, milblob\nmilblob.batch(milblob.check, [sys.argv[1]] * 2, jobs=2)\n")
    ended = subprocess.run(
        [sys.executable, script, source / "m0.mlpackage"],
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ended.returncode == 1
    assert ended.stderr.rstrip().endswith('(in a program, open them below `if __name__ == "__main__":`)')


def test_the_command_with_an_executor(cli, source, tmp_path):
    found = []
    for more in ([], ["--executor", "threads:2"], ["--jobs", "2"]):
        status, out, err = cli("batch", "hash", "--", "-r", source, *more)
        assert (status, err.count("4 done")) == (0, 1)
        found.append(sorted(out.splitlines()))
    assert found[0] == found[1] == found[2] and len(found[0]) == 4
    status, _, err = cli("batch", "hash", "--", "-r", source, "--executor", "threads:2", "--jobs", "2")
    assert status == 2 and "jobs: expected none with an executor" in err
    status, _, err = cli("batch", "hash", "--executor", "threads:2", "--", "-r", source)
    assert status == 2 and "expected no --executor of hash" in err


def test_a_closed_executor_is_its_error(source):
    pool = concurrent.futures.ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="after shutdown"):
        milblob.batch(size, source, recursive=True, executor=pool)


# ------------------------------------------------------------------------------------------------------------ resuming


def test_resume_skips_what_is_unchanged(source, tmp_path):
    out = tmp_path / "out"
    milblob.batch(halved, source, into=out, recursive=True)
    before = seen(out)
    report = milblob.batch(halved, source, into=out, recursive=True, resume=True)
    assert (report.done, report.skipped) == (0, 4)
    assert seen(out) == before


def test_resume_makes_what_is_missing_or_of_another_source(source, tmp_path):
    out = tmp_path / "out"
    milblob.batch(halved, source, into=out, recursive=True)
    before = seen(out)
    shutil.rmtree(out / "m0.mlpackage")
    next((source / "m1.mlpackage").rglob("notes.txt")).write_text("changed")
    models(tmp_path / "more", 5)
    shutil.copytree(tmp_path / "more/m4.mlpackage", source / "m4.mlpackage")
    report = milblob.batch(halved, source, into=out, recursive=True, resume=True)
    assert (report.done, report.skipped, report.failed) == (3, 2, 0)
    after = seen(out)
    assert {name for name in after if after[name] != before.get(name)} == {
        "m0.mlpackage",
        "m1.mlpackage",
        "m4.mlpackage",
    }
    for name in after:
        assert (
            next((out / name).rglob("notes.txt")).read_bytes() == next((source / name).rglob("notes.txt")).read_bytes()
        )
    again = milblob.batch(halved, source, into=out, recursive=True, resume=True)
    assert (again.done, again.skipped) == (0, 5)


def test_resume_keeps_an_output_that_was_changed_by_hand(source, tmp_path):
    out = tmp_path / "out"
    milblob.batch(halved, source, into=out, recursive=True)
    next((out / "m0.mlpackage").rglob("notes.txt")).write_text("by hand")
    report = milblob.batch(halved, source, into=out, recursive=True, resume=True)
    assert (report.skipped, report.failed) == (3, 1)
    assert "expected the output that the journal has, got a changed one" in report.failures[0].error
    assert next((out / "m0.mlpackage").rglob("notes.txt")).read_text() == "by hand"
    shutil.rmtree(out / "m0.mlpackage")
    assert milblob.batch(halved, source, into=out, recursive=True, resume=True).done == 1


def test_resume_tries_failures_again(source, tmp_path):
    out = tmp_path / "out"
    broken = next((source / "m1.mlpackage").rglob("model.mlmodel"))
    whole = broken.read_bytes()
    broken.write_bytes(whole[:100])
    report = milblob.batch(halved, source, into=out, recursive=True)
    assert (report.done, report.failed) == (3, 1)
    assert not (out / "m1.mlpackage").exists()
    broken.write_bytes(whole)
    report = milblob.batch(halved, source, into=out, recursive=True, resume=True)
    assert (report.done, report.skipped, report.failed) == (1, 3, 0)


@pytest.mark.parametrize("state", ["output there", "output there, source changed", "no output"])
def test_a_model_that_was_started_when_its_coordinator_was_killed(source, tmp_path, state):
    out = tmp_path / "out"
    milblob.batch(halved, source, into=out, recursive=True)
    lines = (out / JOURNAL).read_text("utf-8").splitlines(keepends=True)
    kept = [line for line in lines if '"m1.mlpackage"' not in line or '"started"' in line]
    (out / JOURNAL).write_text("".join(kept), "utf-8")
    before = seen(out)
    if state == "no output":
        shutil.rmtree(out / "m1.mlpackage")
    if state == "output there, source changed":
        next((source / "m1.mlpackage").rglob("notes.txt")).write_text("changed since")
    report = milblob.batch(halved, source, into=out, recursive=True, resume=True)
    assert (report.done, report.skipped, report.failed) == (1, 3, 0)
    assert (seen(out)["m1.mlpackage"] == before["m1.mlpackage"]) is (state == "output there")
    assert done_of(out / JOURNAL).count("m1.mlpackage") == 1
    notes = [next((folder / "m1.mlpackage").rglob("notes.txt")).read_bytes() for folder in (source, out)]
    assert notes[0] == notes[1]


@pytest.mark.parametrize("is_ours", [False, True])
def test_an_output_of_two_files_one_with_its_name(tmp_path, is_ours):
    """As after a kill between the two renames. A file that was there before the batch is kept."""
    pytest.importorskip("onnx", reason=WITHOUT["onnx"])
    call = partial(milblob.onnx.convert, weights="copy")
    model, out = shutil.copytree(DEMO, tmp_path / "m.mlpackage"), tmp_path / "out"
    if not is_ours:
        out.mkdir()
        (out / "m.bin").write_bytes(b"mine")
    first = milblob.batch(call, model, into=out, suffix=".onnx")
    assert first.done == is_ours
    lines = (out / JOURNAL).read_text("utf-8").splitlines(keepends=True)
    (out / JOURNAL).write_text("".join(lines[:2]), "utf-8")
    (out / "m.onnx").unlink(missing_ok=True)
    weights = (out / "m.bin").read_bytes()
    report = milblob.batch(call, model, into=out, suffix=".onnx", resume=True)
    assert (report.done, report.failed) == (is_ours, not is_ours)
    assert (out / "m.bin").read_bytes() == weights
    assert (out / "m.onnx").exists() is is_ours


@pytest.mark.parametrize("is_new", [False, True])
def test_an_output_that_was_being_replaced_when_its_coordinator_was_killed(source, tmp_path, is_new):
    """The journal names the old output, so both states of it are known."""
    out = tmp_path / "out"
    milblob.batch(halved, source, into=out, recursive=True)
    old = shutil.copytree(out / "m1.mlpackage", tmp_path / "old")
    next((source / "m1.mlpackage").rglob("notes.txt")).write_text("changed")
    milblob.batch(halved, source, into=out, recursive=True, resume=True)
    lines = (out / JOURNAL).read_text("utf-8").splitlines(keepends=True)
    assert '"done"' in lines[-1]
    (out / JOURNAL).write_text("".join(lines[:-1]), "utf-8")
    new = seen(out)["m1.mlpackage"]
    if not is_new:
        shutil.rmtree(out / "m1.mlpackage")
        old.rename(out / "m1.mlpackage")
    report = milblob.batch(halved, source, into=out, recursive=True, resume=True)
    assert (report.done, report.skipped, report.failed) == (1, 3, 0)
    after = seen(out)["m1.mlpackage"]
    assert after == new if is_new else after[1] == new[1]


def test_every_cut_of_a_journal_resumes(source, tmp_path):
    """As after a crash in the middle of writing it: no output is made twice, none is lost."""
    out = tmp_path / "out"
    milblob.batch(halved, source, into=out, recursive=True)
    whole, before = (out / JOURNAL).read_bytes(), seen(out)
    for cut in [*range(1, len(whole), 97), len(whole) - 1]:
        (out / JOURNAL).write_bytes(whole[:cut])
        report = milblob.batch(halved, source, into=out, recursive=True, resume=True)
        started = sum(b'"started"' in line for line in whole[:cut].splitlines(keepends=True) if line.endswith(b"\n"))
        assert report.failed == 4 - started  # outputs that the journal does not have are kept
        assert seen(out) == before
        assert all("that the journal does not have" in one.error for one in report.failures)


@pytest.mark.parametrize(
    "line",
    ["", "[]", "1", "{}", '{"name": "a", "state": "lost"}', '{"name": 1}', '{"name": "a", "state": "done", "source_hash": "x"}', "[" * 99999],
    ids=range(8),
)  # fmt: skip
def test_a_damaged_journal_is_refused(source, tmp_path, line):
    out = tmp_path / "out"
    milblob.batch(halved, source, into=out, recursive=True)
    lines = (out / JOURNAL).read_text("utf-8").splitlines()
    for number in (0, 2):
        data = "\n".join([*lines[:number], line, *lines[number + 1 :], ""])
        (out / JOURNAL).write_text(data, "utf-8")
        with pytest.raises(
            milblob.FormatError, match=f"line {number + 1}: expected an entry of a batch, got"
        ) as caught:
            milblob.batch(halved, source, into=out, recursive=True, resume=True)
        assert caught.value.file == str(out / JOURNAL)
        assert (out / JOURNAL).read_text("utf-8") == data


def test_a_journal_of_another_call_is_refused(source, tmp_path):
    milblob.batch(partial(milblob.repack, gc=True), source, into=tmp_path / "out", recursive=True)
    with pytest.raises(ValueError, match=r"expected a journal of milblob.*repack\(dedupe=True\), got one of .*gc=True"):
        milblob.batch(partial(milblob.repack, dedupe=True), source, into=tmp_path / "out", recursive=True, resume=True)


def test_two_coordinators_are_kept_apart(source, tmp_path, monkeypatch):
    monkeypatch.setattr("milblob.batching.journal._WAIT_S", 0.02)

    def second(item):
        with pytest.raises(BlockingIOError, match="only writer"):
            milblob.batch(halved, source, into=tmp_path / "out", recursive=True, resume=True)

    assert milblob.batch(halved, source, into=tmp_path / "out", recursive=True, each=second).done == 4


def test_a_journal_without_outputs(source, tmp_path):
    found = []
    journal = tmp_path / "deep/journal.jsonl"
    milblob.batch(failing, source, recursive=True, journal=journal)
    report = milblob.batch(failing, source, recursive=True, journal=journal, resume=True, each=found.append)
    assert (report.skipped, report.failed, report.journal) == (3, 1, str(journal))
    assert {item.status for item in found} == {"skipped", "failed"}


# ------------------------------------------------------------------------------------------------------------- refused


def test_what_cannot_be_done_is_refused_before_anything_is_written(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    shutil.copytree(source / "m0.mlpackage", tmp_path / "there/m0.mlpackage")
    inside = source / "m0.mlpackage"
    cases = [
        (["empty"], "out", ValueError, "a directory with models below it"),
        ([], "out", ValueError, "expected models, got none"),
        (["no*.mlpackage"], "out", ValueError, "a glob that matches"),
        ([inside, tmp_path / "there/m0.mlpackage"], "out", ValueError, "expected different output names, got m0.mlpackage"),
        ([inside, inside], "out", ValueError, "expected different output names"),
        ([source], source, ValueError, "outside of the sources"),
        ([source], source / "out", ValueError, "outside of the sources"),
        ([inside], inside / "Data", ValueError, "outside of the sources"),
        ([inside], source, ValueError, "an output outside of the sources"),
        ([source / "m1.mlpackage", inside], "there", FileExistsError, "expected no such output, got one"),
        ([source], "file", NotADirectoryError, "expected a directory for outputs, got a file"),
        (["https://host/m.mlpackage"], "out", ValueError, "expected local paths, got a URL"),
    ]  # fmt: skip
    os.symlink(source, tmp_path / "link", target_is_directory=True)
    cases.append(([source], "link/out", ValueError, "outside of the sources"))
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for sources, into, error, message in cases:
        with pytest.raises(error, match=message):
            milblob.batch(halved, sources, into=into, recursive=True)
    with pytest.raises(ValueError, match="expected into or journal, got neither"):
        milblob.batch(halved, source, resume=True)
    with pytest.raises(ValueError, match="suffix: expected one that begins with"):
        milblob.batch(halved, source, into="out", suffix="npz")
    with pytest.raises(ValueError, match="jobs: expected none with an executor"):
        milblob.batch(halved, source, into="out", jobs=2, executor=InThisThread())
    with pytest.raises(TypeError, match=r"executor: expected a concurrent\.futures\.Executor, got int"):
        milblob.batch(halved, source, into="out", executor=1)
    with pytest.raises(TypeError, match="call: expected"):
        milblob.batch("repack", source, into="out")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before


def test_an_output_in_another_one_is_refused():
    from milblob.batching.plan import Plan

    nested = [Found("/a", "x/y.mlpackage"), Found("/b", "x")]
    for sources in (nested, nested[::-1]):
        with pytest.raises(ValueError, match="expected an output that is not in another one, got x/y.mlpackage"):
            Plan(sources, "/out")
    with pytest.raises(ValueError, match="other than the journal's"):
        Plan([Found("/a", JOURNAL)], "/out")


def test_a_second_batch_needs_another_directory_or_resume(source, tmp_path):
    milblob.batch(halved, source / "m0.mlpackage", into=tmp_path / "out")
    with pytest.raises(FileExistsError, match="expected no journal, got one"):
        milblob.batch(halved, source / "m1.mlpackage", into=tmp_path / "out")
    assert not (tmp_path / "out/m1.mlpackage").exists()


def test_a_file_that_is_nested_too_deep_is_not_taken_for_a_journal(source, tmp_path):
    (tmp_path / "journal").write_bytes(b"[" * 50_000)
    for resume, words in ((False, "expected no journal, got one"), (True, "expected an entry of a batch")):
        with pytest.raises((FileExistsError, milblob.FormatError), match=words):
            milblob.batch(size, source, recursive=True, journal=tmp_path / "journal", resume=resume)


@pytest.mark.parametrize(
    ("content", "is_kept"),
    [
        (b"", False), (b'{"milblob_batch": 1, "call": "of another"}\n', False), (b"mine\n", True), (b"1", True), (b"\n\n", True),
        (b'{"milblob_batch": 1, "call": "x"}\n{"na', True),
    ],
)  # fmt: skip
def test_a_journal_without_models_is_used_and_other_files_are_kept(source, tmp_path, content, is_kept):
    """As of a batch whose processes could not start."""
    journal = tmp_path / "journal"
    journal.write_bytes(content)
    if is_kept:
        with pytest.raises(FileExistsError, match="expected no journal, got one"):
            milblob.batch(size, source, recursive=True, journal=journal)
        assert journal.read_bytes() == content
    else:
        assert milblob.batch(size, source, recursive=True, journal=journal).done == 4
        assert len(entries(journal)) == 9


@pytest.mark.parametrize("content", [b'{"mine": 1}', b"mine", b"\x00" * 99])
def test_resume_keeps_another_file(source, tmp_path, content):
    """Also one that has no end of a line, as a journal that was cut off has not."""
    journal = tmp_path / "mine.json"
    journal.write_bytes(content)
    with pytest.raises(milblob.FormatError, match="line 1: expected an entry of a batch"):
        milblob.batch(size, source, recursive=True, journal=journal, resume=True)
    assert journal.read_bytes() == content


@pytest.mark.parametrize("name", ["", "journal", "new/journal"])
def test_a_journal_in_a_source_is_refused(source, name):
    model = source / "m0.mlpackage"
    before = sorted(source.rglob("*"))
    for resume in (False, True):
        with pytest.raises(ValueError, match=r"expected a journal outside of the sources, got one in .*m0\.mlpackage"):
            milblob.batch(size, source, recursive=True, journal=model / name, resume=resume)
    assert sorted(source.rglob("*")) == before


# -------------------------------------------------------------------------------------------------------------- memory


def test_the_coordinator_keeps_little_of_a_model(tmp_path):
    """Less than 2 KB: a million models fit any machine. Of the first batch, and of a resumed one."""

    class Elsewhere(InThisThread):  # the work itself is in other processes
        def submit(self, function, work, task, number):
            from milblob.batching.work import DONE, Outcome

            future = concurrent.futures.Future()
            future.set_result((task, Outcome(DONE, 1000, bytes(32), bytes(range(32)))))
            return future

    (tmp_path / "in").mkdir()
    count = sized(150, 400)
    for number in range(count):
        (tmp_path / f"in/a_model_with_a_name_of_some_length_{number:05}.mlmodel").write_bytes(b"")

    def peak_nbytes(count, resume):
        sources = sorted((tmp_path / "in").iterdir())[:count]
        tracemalloc.start()
        milblob.batch(halved, sources, into=tmp_path / str(count), executor=Elsewhere(), resume=resume)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    peak_nbytes(10, False)
    for resume in (False, True):
        few, many = peak_nbytes(count // 4, resume), peak_nbytes(count, resume)
        assert (many - few) / (count - count // 4) < 2000, (few, many)


def test_an_output_of_two_files_that_was_being_replaced(tmp_path):
    """The new weights have their name already, and the .onnx file is the old one: it is not taken for the new one."""
    pytest.importorskip("onnx", reason=WITHOUT["onnx"])
    call = partial(milblob.onnx.convert, weights="copy")
    model, out = shutil.copytree(DEMO, tmp_path / "m.mlpackage"), tmp_path / "out"
    milblob.batch(call, model, into=out, suffix=".onnx")
    old = (out / "m.onnx").read_bytes()
    with milblob.open(model, "r+") as opened:
        opened["head_bias"] = np.ones(96, np.float32)
    assert milblob.batch(call, model, into=out, suffix=".onnx", resume=True).done == 1
    new = (out / "m.onnx").read_bytes()
    assert new != old
    lines = (out / JOURNAL).read_text("utf-8").splitlines(keepends=True)
    (out / JOURNAL).write_text("".join(lines[:-1]), "utf-8")
    (out / "m.onnx").write_bytes(old)
    assert milblob.batch(call, model, into=out, suffix=".onnx", resume=True).done == 1
    with milblob.open_arrays(out / "m.onnx") as arrays:
        assert np.all(arrays["head_bias"].read() == 1)
    assert milblob.batch(call, model, into=out, suffix=".onnx", resume=True).skipped == 1
