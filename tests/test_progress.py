"""`progress` of every function that has it: one signature, from the thread of the caller, and what an exception leaves."""

import atexit
import functools
import pathlib
import shutil
import tempfile
import threading
from itertools import accumulate

import numpy as np
import pytest

import milblob
from editable_packages import files_of, make_package
from milblob.formats import npy_dir, npz, safetensors, weights
from milblob.progress import ProgressCounter
from paths import DATA
from progress_rows import steps

NAMES = ["floats", "bytes", "ints"]  # of make_package
CHAINS, SHARED = DATA / "matrix_chains/model.mlpackage", DATA / "opset_ios18_fp16/model.mlpackage"
NBYTES = {"floats": 1200, "bytes": 70, "ints": 160}


@pytest.fixture
def package(tmp_path, request):
    folder = tmp_path / "s"
    folder.mkdir()
    found = make_package(folder, 1)
    if "two names" in request.node.name:  # a changed copy takes the place of such a file
        (tmp_path / "other name").hardlink_to(next(found.rglob("weight.bin")))
    return found


def others():
    """New values for every weight of the package, among them one that makes the model file longer."""
    return {
        "floats": np.full((3, 100), 7, "<f4"), "bytes": np.full(70, 7, "u1"), "ints": np.full(40, 7000, "<i4"),
    }  # fmt: skip


def saving(save, name, **options):
    def run(package, progress):
        with milblob.open(package, constants=True) as model:
            save(model, str(package.parent / name), progress=progress, **options)

    return run


def write_listed(package, progress):
    path = package.parent / "w.bin"
    with milblob.open(package, constants=True) as model:
        milblob.write_weights(model, path, listing=path.with_suffix(".json"), force=True, progress=progress)


@functools.cache
def two_chunks():
    """Packages that can be joined, in a directory of their own."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return [chunk.path for chunk in milblob.chunk(SHARED, pathlib.Path(folder) / "parts", parts=2).chunks]


def patch_for(package):
    """A patch that changes the weights of a package, in a folder of its own."""
    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    milblob.refit(package, others(), destination=folder / "new.mlpackage")
    milblob.delta(package, folder / "new.mlpackage", folder / "p.milpatch")
    return folder / "p.milpatch"


WORK = {
    "diff": lambda package, progress: milblob.diff(milblob.load(package), others(), progress=progress),
    "diff of models": lambda package, progress: milblob.diff(package, package, progress=progress),
    "match": lambda package, progress: milblob.match(package, milblob.load(package), progress=progress),
    "refit": lambda package, progress: milblob.refit(package, others(), progress=progress),
    "refit to a copy": lambda package, progress: milblob.refit(
        package, others(), destination=package.parent / "copy.mlpackage", progress=progress
    ),
    "refit of a file of two names": lambda package, progress: milblob.refit(package, others(), progress=progress),
    "repack": lambda package, progress: milblob.repack(
        package, package.parent / "out.mlpackage", align=4096, progress=progress
    ),
    "repack in place": lambda package, progress: milblob.repack(package, package, align=4096, progress=progress),
    "content_hash": lambda package, progress: milblob.content_hash(package, progress=progress),
    "content_hash of arrays": lambda package, progress: milblob.content_hash(milblob.load(package), progress=progress),
    "statistics": lambda package, progress: milblob.statistics(package, progress=progress),
    "statistics of arrays": lambda package, progress: milblob.statistics(milblob.load(package), progress=progress),
    "check": lambda package, progress: milblob.check(package, values=True, progress=progress),
    "check of compressed weights": lambda _, progress: milblob.check(CHAINS, values=True, progress=progress),
    "merge_functions": lambda package, progress: milblob.merge_functions(
        [SHARED], package.parent / "out.mlpackage", progress=progress
    ),
    "chunk": lambda package, progress: milblob.chunk(
        SHARED, package.parent / "parts", parts=2, pipeline=True, progress=progress
    ),
    "join": lambda package, progress: milblob.join(two_chunks(), package.parent / "out.mlpackage", progress=progress),
    "delta": lambda package, progress: milblob.delta(SHARED, package, package.parent / "p", progress=progress),
    "apply": lambda package, progress: milblob.apply(
        package, patch_for(package), package.parent / "out.mlpackage", progress=progress
    ),
    "apply in place": lambda package, progress: milblob.apply(package, patch_for(package), progress=progress),
    "write_weights": saving(milblob.write_weights, "w.bin"),
    "write_weights with a listing": write_listed,
    "weights": saving(weights.save, "s.bin"),
    "npz": saving(npz.save, "w.npz"),
    "npy": saving(npy_dir.save, "folder"),
    "safetensors": saving(safetensors.save, "w.safetensors"),
}


@pytest.mark.parametrize("name", WORK)
def test_done_grows_to_the_total(package, name):
    rows, threads = [], set()

    def progress(*row):
        threads.add(threading.get_ident())
        rows.append(row)

    WORK[name](package, progress)
    assert threads == {threading.get_ident()}
    assert rows[0] == ("", 0, 0) or name in (
        "weights",
        "npz",
        "npy",
        "safetensors",
    )  # which are parts of `milblob.save`
    assert len({total for _, _, total in rows if total}) == 1
    rows = steps(rows)
    names, done, totals = (list(column) for column in zip(*rows, strict=True))
    assert all(type(name) is str and name for name in names) and all(type(n) is int for n in done + totals)
    assert len(set(totals)) == 1 and done == sorted(done) and done[0] > 0 and done[-1] == totals[0]
    if name.startswith(
        ("content_hash", "check", "merge", "chunk", "join", "delta", "apply")
    ):  # of other models, or of more constants
        assert len(rows) >= (1 if name in ("check", "apply in place") else 3)
    elif not name.startswith("repack"):  # which counts files as well
        assert sorted(names) == sorted(NAMES * (2 if name == "match" else 1))  # arrays, then weights
        assert names[:3] == NAMES or name.startswith(("diff", "refit"))  # which has an order of its own
        assert done == list(accumulate(NBYTES[name] for name in names))
    else:
        assert set(NAMES) & set(names)


class OwnError(Exception):
    pass


@pytest.mark.parametrize("error", [OwnError, KeyError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("name", WORK)
def test_an_exception_leaves_the_old_state(package, name, error):
    if name == "write_weights with a listing":  # replaces a pair with other values
        WORK[name](package, None)
        milblob.refit(package, {"floats": np.full((3, 100), 3, "<f4")})
    copy, count = shutil.copytree(package.parent, package.parent.parent / "copy") / package.name, []
    WORK[name](copy, lambda *row: count.append(row))
    before = files_of(package.parent)
    for at in (1, next(at for at, row in enumerate(count, 1) if row[1]), len(count)):
        calls = []

        def progress(*_, calls=calls, at=at):
            calls.append(True)
            if len(calls) == at:
                raise error("stop")

        with pytest.raises(error) as caught:
            WORK[name](package, progress)
        assert caught.value.args == ("stop",) and files_of(package.parent) == before


def test_no_sizes_are_computed_without_a_progress_function():
    class Costly:
        @property
        def nbytes(self):
            raise AssertionError("a size was asked for")

    counter = ProgressCounter(None, [Costly()])
    counter.add_tensor("a", Costly())
    counter.add("a", 3)
    assert counter.total_nbytes == 0


def test_done_is_never_above_the_total():
    """Of a file that grows meanwhile, too."""
    rows = []
    counter = ProgressCounter(lambda *row: rows.append(row))
    counter.total_nbytes = 5
    for _ in range(3):
        counter.add("a", 3)
    assert rows == [("a", 3, 5), ("a", 6, 6), ("a", 9, 9)]


def test_refit_reports_no_weight_that_is_left_out(package):
    rows = []
    milblob.refit(package, others(), select="*s", mapping={"bytes": None}, progress=lambda *row: rows.append(row))
    rows = steps(rows)
    assert sorted(name for name, _, _ in rows) == ["floats", "ints"] and rows[-1][1:] == (1360, 1360)
    rows.clear()
    milblob.refit(package, others(), dry_run=True, progress=lambda *row: rows.append(row))
    assert not steps(rows)  # nothing is written


def test_refit_with_a_base(package):
    """Half of the count is what is learnt, in a dry run too; what is raised there leaves the model as it was."""
    base = {"floats": np.random.default_rng(1).standard_normal((3, 100), np.float32)}
    milblob.refit(package, base)
    before, new, rows = files_of(package.parent), {"floats": -base["floats"]}, []

    def refit(**options):
        milblob.refit(package, new, base=base, **options)

    refit(progress=lambda *row: rows.append(row), dry_run=True)
    learnt = [done for _, done, _ in steps(rows)]
    (total,) = {total for _, _, total in rows if total}
    assert learnt == sorted(set(learnt)) and 2 * learnt[-1] == total

    def stop(*_):
        raise OwnError

    with pytest.raises(OwnError):
        refit(progress=stop)
    assert files_of(package.parent) == before
    rows.clear()
    refit(progress=lambda *row: rows.append(row))
    assert [done for _, done, _ in steps(rows)] == [*learnt, total] and rows[-1][0] == "floats"
    assert np.array_equal(milblob.load(package)["floats"], new["floats"])


def test_refit_of_the_model_file_alone(package):
    """Replaced by one renaming, without a journal."""
    before, rows = files_of(package.parent), []

    def progress(*row):
        rows.append(row)
        if row[1]:
            raise OwnError

    with pytest.raises(OwnError):
        milblob.refit(package, others(), select="ints", progress=progress)
    assert steps(rows) == [("ints", 160, 160)] and files_of(package.parent) == before
