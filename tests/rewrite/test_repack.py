"""milblob.repack: whatever is asked for, the values stay, for milblob and for coremltools; and the same gives the same."""

import concurrent.futures
import json
import multiprocessing
import pathlib
import pickle
import shutil

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import milblob
from cases import load_case
from coremltools_view import pymil_values, theirs
from matrix import every
from milblob.rewrite import tasks as plan
from milblob.selection import selector
from peers import WITHOUT
from repacking import (
    FIXTURES,
    PACKAGES,
    WEIGHTS,
    blobs_of,
    findings,
    fixture_path,
    package_of,
    record_values,
    simple_package,
    tree,
    values,
)
from thorough import share, sized, some

pytestmark = pytest.mark.usefixtures("unsynced")

MODELS = [row for row in FIXTURES if not row[0].startswith("blob_")]
BLOBS = [row for row in FIXTURES if row[0].startswith("blob_")]
ANY = [
    {"dedupe": True, "gc": True}, {"align": 4096}, {"align": 16384, "merge": True}, {"canonical": True},
    {"split": "function"}, {"split": 1024}, {"merge": True, "canonical": True, "dedupe": True, "align": 4096},
]  # fmt: skip
PROTOBUF = [
    {"inline": 10**9}, {"externalize": True, "inline": True}, {"externalize": 3}, {"inline": 100, "externalize": 100},
    {"externalize": 1, "split": "function", "dedupe": True, "canonical": True},
]  # fmt: skip


def spell(options):
    return "-".join(f"{key}={value}" for key, value in options.items()) or "nothing"


# -------------------------------------------------------------------------------------------------------- every fixture


@pytest.mark.parametrize(("name", "path"), some(FIXTURES, 20))
@pytest.mark.sample(7)
def test_nothing_to_do_gives_the_same_bytes(tmp_path, name, path):
    source, target = fixture_path(name, path), tmp_path / pathlib.Path(path).name
    report = milblob.repack(source, target)
    assert tree(target) == tree(source)
    assert report.done and report.changed == [] and report.files == [] and report.nbytes == report.nbytes_after
    assert [p.name for p in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize(("name", "path"), some(MODELS, 16))
@pytest.mark.sample(8)
def test_values_are_kept(tmp_path, name, path):
    """The many model files without a weight file, one per way to write a message, have little to rewrite.

    The others take every second set of options, and their neighbours the rest; `make thorough`: all take all.
    """
    asked = share(ANY, MODELS.index((name, path)), 2) if not name.startswith("wire/") else ANY[-1:]
    with_each(asked, fixture_path(name, path), tmp_path)


@pytest.mark.parametrize(("name", "path"), some(PACKAGES, 8))
def test_values_are_kept_in_or_out_of_the_program(tmp_path, name, path):
    """Every second set of options for one package, the rest for the next; `make thorough`: all for all."""
    with_each(share(PROTOBUF, PACKAGES.index((name, path)), 2), fixture_path(name, path), tmp_path)


def with_each(asked, source, folder):
    """Check each set of options in a folder of its own."""
    before = values(source), findings(source)

    def check(options):
        inside = folder / spell(options)
        inside.mkdir()
        check_values(source, inside, options, before)

    every(check, asked)


def check_values(source, folder, options, before):
    """Values, names, types; findings; the dry run; two runs; and, canonical, a run on the result.

    `before`: the values and the findings of the source.
    """
    target = folder / source.name
    plan = milblob.repack(source, target, **options, dry_run=True)
    assert not target.exists()
    report = milblob.repack(source, target, **options)
    assert report.to_dict() == {**plan.to_dict(), "done": True}
    assert values(target) == before[0]
    assert set(findings(target)) <= set(before[1])
    for change in report.changes:
        if change.file_after is not None:
            assert (target / change.file_after).is_file() or target.is_file()
    if target.is_dir():
        for file, count, nbytes in report.files:
            assert (target / file).stat().st_size == nbytes
            assert len(milblob.BlobReader(target / file)) == count
        if options.get("align"):
            for file in target.rglob("*weight*.bin"):
                assert all(r.data_offset % options["align"] == 0 for r in milblob.BlobReader(file))
    (folder / "again").mkdir()
    other = folder / "again" / source.name
    milblob.repack(source, other, **options)
    assert tree(other) == tree(target)
    if options.get("canonical"):
        milblob.repack(target, target, **options)
        assert tree(target) == tree(other)


@pytest.mark.parametrize(("name", "path"), BLOBS)
@pytest.mark.parametrize("options", [{"align": 4096}, {"canonical": True}, {"merge": True}], ids=spell)
def test_weight_files_alone(tmp_path, name, path, options):
    source, target = fixture_path(name, path), tmp_path / "out.bin"
    milblob.repack(source, target, **options)
    assert record_values(target) == record_values(source)
    with milblob.BlobReader(target) as blobs:
        assert all(r.data_offset % options.get("align", 64) == 0 for r in blobs)
    again = tmp_path / "again.bin"
    milblob.repack(target, again, **options)
    assert again.read_bytes() == target.read_bytes()


SMALL = [("functions", "model.mlpackage"), ("pipeline", "model.mlpackage"), ("weight_files", "model.mlpackage"),
         ("opset_ios18_fp16", "model.mlpackage"), ("palette_scaled", "model.mlpackage"), ("control_flow", "model.mlpackage")]  # fmt: skip
OPTIONS = st.fixed_dictionaries({}, optional={
    "dedupe": st.booleans(), "gc": st.booleans(), "canonical": st.booleans(), "align": st.sampled_from([64, 4096, 16384]),
    "where": st.one_of(
        st.fixed_dictionaries({"split": st.one_of(st.just("function"), st.integers(192, 5000))}),
        st.just({"merge": True}),
    ),
    "immediates": st.one_of(
        st.fixed_dictionaries({"externalize": st.integers(0, 40)}),
        st.fixed_dictionaries({"inline": st.integers(0, 3000)}),
        st.integers(0, 2000).map(lambda count: {"externalize": count, "inline": count}),
    ),
    "select": st.sampled_from(["*", "*weight*", ["*a*", "*1*"], "nothing"]),
})  # fmt: skip


@hypothesis.given(case=st.sampled_from(SMALL), asked=OPTIONS)
@hypothesis.settings(
    max_examples=sized(12, 60), deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
def test_any_options_together(tmp_path_factory, case, asked):
    options = {key: value for key, value in asked.items() if key not in ("where", "immediates")}
    options |= asked.get("where", {}) | asked.get("immediates", {})
    folder = tmp_path_factory.mktemp("any")
    try:
        source = fixture_path(*case)
        before = values(source), findings(source)
        names = [change.name for change in milblob.repack(source, folder / "out", dry_run=True).changes]
        if not any(map(selector(options.get("select")), names)):
            with pytest.raises(ValueError, match="no tensor in .* is selected"):
                milblob.repack(source, folder / "out", **options)
            assert not (folder / "out").exists()
            return
        check_values(source, folder, options, before)
    finally:
        shutil.rmtree(folder)


# ---------------------------------------------------------------------------------------------------------- coremltools


@pytest.mark.parametrize(("name", "path"), some([row for row in PACKAGES if row[0] != "blob_handmade"], 6))
def test_coremltools_finds_the_same_values(tmp_path, name, path):
    pytest.importorskip("coremltools", reason=WITHOUT["coremltools"])
    source = fixture_path(name, path)
    before = theirs(source)
    assert before
    # coremltools finds files by their last part
    is_loaded = load_case(name).expected.get("pymil") == "loads" and name != "weight_files"
    loaded = pymil_values(source) if is_loaded else None

    def check(options):
        target = tmp_path / f"{spell(options)}.mlpackage"
        milblob.repack(source, target, **options)
        assert theirs(target) == before
        if is_loaded:
            assert pymil_values(target) == loaded

    every(check, [ANY[0], ANY[2], ANY[4], *PROTOBUF])


# ------------------------------------------------------------------------------------------------------------ executors


def many(folder):
    """Records of very different sizes, one of them divided among workers, and one that is cast in parts."""
    rng = np.random.default_rng(4)
    sizes = [1, 3, 300, 70_000, sized(200_001, 1_000_001), 5, sized(500_001, 9_000_001), 2]
    return [rng.standard_normal(size, np.float32).tobytes() for size in sizes]


@pytest.mark.parametrize("task_nbytes", some([1 << 12, 1 << 20, plan.TASK_NBYTES], 1))
def test_any_number_of_workers_gives_the_same_bytes(tmp_path, monkeypatch, task_nbytes):
    data, offsets = blobs_of(*((2, content) for content in many(tmp_path)))
    source = tmp_path / "weights.bin"
    source.write_bytes(data)
    for options in ({"align": 4096}, {"cast": "float16", "canonical": True}):
        milblob.repack(source, tmp_path / "default.bin", **options, force=True)
        wanted = (tmp_path / "default.bin").read_bytes()
        monkeypatch.setattr(plan, "TASK_NBYTES", task_nbytes)
        for workers in (1, 7):
            with concurrent.futures.ThreadPoolExecutor(workers) as pool:
                milblob.repack(source, tmp_path / "out.bin", **options, executor=pool, force=True)
            assert (tmp_path / "out.bin").read_bytes() == wanted
        monkeypatch.undo()
    arrays = [np.frombuffer(content, np.float32) for content in many(tmp_path)]
    with milblob.BlobReader(tmp_path / "out.bin") as blobs:  # NumPy casts as milblob does
        assert [blobs.read(r.offset).tobytes() for r in blobs] == [a.astype(np.float16).tobytes() for a in arrays]
    assert offsets[0] == 64


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes(tmp_path, method):
    if method not in multiprocessing.get_all_start_methods():
        method = "spawn"
    source = simple_package(tmp_path, many(tmp_path))
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as pool:
        milblob.repack(source, tmp_path / "processes.mlpackage", align=4096, executor=pool)
    milblob.repack(source, tmp_path / "threads.mlpackage", align=4096)
    assert tree(tmp_path / "processes.mlpackage") == tree(tmp_path / "threads.mlpackage")


def test_a_task_can_be_pickled(tmp_path):
    data, _ = blobs_of((2, bytes(12)))
    path = tmp_path / "w.bin"
    path.write_bytes(data)
    with milblob.BlobReader(path) as blobs:
        item = plan.Item(plan.SourceFile.of(blobs.mapping), (128, 12), milblob.DType.FLOAT32, 3, "", "out.bin")
    ((items, nbytes),) = plan.lay_out([item], 64).values()
    (task,) = plan.make_tasks(str(tmp_path / "out.bin"), items, 0, "error", "keep")
    assert pickle.loads(pickle.dumps(task)) == task and nbytes == 140


# ------------------------------------------------------------------------------------------------------- what it reports


def test_report(tmp_path):
    ten = np.arange(10, dtype=np.float32).tobytes()
    data, offsets = blobs_of((2, ten), (2, ten), (2, ten[:8]), (3, b"abc"))
    weights = WEIGHTS
    source = package_of(
        tmp_path,
        {"main": [("a", 11, [10], weights, offsets[0]), ("b", 11, [10], weights, offsets[1]),
                  ("c", 11, [2], weights, offsets[2]), ("d", 11, [2, 5], weights, offsets[1])]},
        {"weights/weight.bin": data},
    )  # fmt: skip
    report = milblob.repack(source, tmp_path / "out.mlpackage", dedupe=True, gc=True, inline=True)
    file = "Data/com.apple.CoreML/weights/weight.bin"
    rows = [(c.name, c.actions, c.nbytes, c.nbytes_after, c.file_after, c.offset_after) for c in report.changes]
    assert rows == [
        ("a", [], 40, 40, file, 64), ("b", ["deduplicate"], 40, 0, file, 64), ("c", ["inline"], 8, 8, None, None),
        ("d", ["deduplicate"], 40, 0, file, 64), (f"{file}#3", ["drop"], 3, 0, None, None),
    ]  # fmt: skip
    assert report.counts() == {"deduplicate": 2, "inline": 1, "drop": 1}
    assert (report.nbytes, report.nbytes_after) == (40 + 40 + 8 + 3, 48)
    assert report.files == [(file, 1, 128 + 40)]
    assert [c.name for c in report.changed] == ["b", "c", "d", f"{file}#3"]
    assert (
        "b" in repr(report.changes[1])
        and "deduplicate" in repr(report.changes[1])
        and "keep" in repr(report.changes[0])
    )
    document = json.loads(json.dumps(report.to_dict()))
    assert set(document) == {
        "source",
        "output",
        "done",
        "nbytes",
        "nbytes_after",
        "actions",
        "files",
        "shared",
        "stale",
        "tensors",
    }
    assert document["tensors"][2] == {
        "name": "c", "actions": ["inline"], "dtype": "float32", "dtype_after": "float32", "nbytes": 8, "nbytes_after": 8,
        "file": file, "file_after": None, "offset": offsets[2], "offset_after": None,
    }  # fmt: skip
    assert document["files"] == [{"file": file, "records": 1, "nbytes": 168}] and document["output"].endswith(
        "out.mlpackage"
    )


@pytest.mark.parametrize(("options", "least"), [({"align": 4096}, 2), ({}, 1), ({"merge": True, "inline": True}, 2)])
def test_progress(tmp_path, options, least):
    source, seen = fixture_path("weight_files", "model.mlpackage"), []
    milblob.repack(source, tmp_path / "out.mlpackage", **options, progress=lambda *row: seen.append(row))
    done = [row[1] for row in seen]
    assert len(set(done)) > least and done == sorted(done) and {row[2] for row in seen} == {0, done[-1]}
    assert seen[0] == ("", 0, 0) and all(isinstance(row[0], str) and row[0] for row in seen[1:])


# ------------------------------------------------------------------------------------------------------ what it refuses


@pytest.mark.parametrize(("options", "error", "words"), [
    ({"align": 100}, ValueError, "align: expected one of 64, 4096, 16384, got 100"),
    ({"overflow": "wrap"}, ValueError, "overflow: expected one of error, inf, clamp, got 'wrap'"),
    ({"nan": "drop"}, ValueError, "nan: expected one of keep, skip, error, got 'drop'"),
    ({"split": "layer"}, ValueError, "split: expected 'function' or a size, such as '500M' or '1G', got 'layer'"),
    ({"split": "100"}, ValueError, "split: expected 'function' or a size of 192 bytes or more, got 100"),
    ({"split": 100}, ValueError, "split: expected 'function' or a size of 192 bytes or more, got 100"),
    ({"split": 500, "merge": True}, ValueError, "merge: expected it without split, got both"),
    ({"inline": 11, "externalize": 10}, ValueError, "inline: expected at most the 10 elements from which on"),
    ({"inline": -1}, ValueError, "inline: expected a number of elements, got -1"),
    ({"externalize": "ten"}, TypeError, "str"),
    ({"cast": "int8"}, TypeError, "cast: expected float32, float16 or bfloat16, got int8"),
    ({"cast": {"float32": "float64"}}, TypeError, "cast: expected float32, float16 or bfloat16, got float64"),
    ({"decompress": True, "cast": "float16"}, ValueError, "decompress: expected it without cast"),
    ({"functions": "other"}, KeyError, "function: expected one of add, two, got 'other'"),
    ({"functions": []}, milblob.ProgramError, "functions: expected at least one to keep, got none"),
])  # fmt: skip
def test_options_that_make_no_sense(tmp_path, options, error, words):
    source = fixture_path("functions", "model.mlpackage")
    with pytest.raises(error) as raised:
        milblob.repack(source, tmp_path / "out.mlpackage", **options)
    if error is not KeyError:
        assert words in str(raised.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("source", [b"weights", bytearray(3), memoryview(b"abc"), 5, None, [b"x"], [3], iter(())])
def test_sources_that_are_no_paths(tmp_path, source):
    with pytest.raises(TypeError, match=r"^source: expected .*, got "):
        milblob.repack(source, tmp_path / "out.bin")


def test_no_source(tmp_path):
    with pytest.raises(ValueError, match="source: expected a path or several, got none"):
        milblob.repack([], tmp_path / "out.bin")
    with pytest.raises(FileNotFoundError):
        milblob.repack(tmp_path / "none.mlpackage", tmp_path / "out.mlpackage")
    with pytest.raises(TypeError, match="source"), open(fixture_path("blob_none", "weight.bin"), "rb") as file:
        milblob.repack(file, tmp_path / "out.bin")


@pytest.mark.parametrize(("name", "path", "options", "words"), [
    ("functions", "model.mlmodelc", {"functions": "add"}, "functions: expected a package, got a compiled model"),
    ("blob_all_dtypes", "weight.bin", {"gc": True}, "gc: expected a model, got a weight file alone"),
    ("blob_all_dtypes", "weight.bin", {"split": 999}, "split: expected a model, got a weight file alone"),
    ("immediates", "model.mlmodel", {"externalize": True}, "which has no place beside the result"),
    ("pipeline", "model.mlpackage", {"functions": "model0/main"}, "functions: expected a model with one Program"),
])  # fmt: skip
def test_what_a_kind_of_model_cannot_have(tmp_path, name, path, options, words):
    with pytest.raises(milblob.UnsupportedError) as raised:
        milblob.repack(fixture_path(name, path), tmp_path / pathlib.Path(path).name, **options)
    assert words in str(raised.value)
    assert list(tmp_path.iterdir()) == []
