"""Work given to executors: the same results for any of them, and what happens when a worker is killed."""

import concurrent.futures
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

import far
import milblob
from children import child_environment
from killing import NEEDS_FORK, NEEDS_KILL
from milblob import executors
from milblob.executors import Workers
from milblob.rewrite import execute, tasks
from paths import DATA, DEMO
from peers import WITHOUT
from repacking import tree
from thorough import some

SMALL = executors.MIN_NBYTES


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    path = tmp_path_factory.mktemp("compressed") / "demo.mlpackage"
    milblob.compress(DEMO, path, milblob.Goal(size="60KB"))
    return path


@pytest.fixture(scope="module")
def expected(compressed, tmp_path_factory):
    return far.results(DEMO, compressed, tmp_path_factory.mktemp("here"))


@pytest.fixture
def tiny_pieces(monkeypatch):
    """Pieces of a few KB, in threads and forked processes, so that small models are several pieces."""
    monkeypatch.setattr(executors, "MIN_NBYTES", 4096)
    monkeypatch.setattr(tasks, "TASK_NBYTES", 16384)
    monkeypatch.setattr(execute, "TASK_NBYTES", 16384)


# --------------------------------------------------------------------------------------------------------- same results


@pytest.mark.parametrize("count", some([1, 2, 4], 1))
def test_threads_give_the_same_results(count, compressed, expected, tiny_pieces, tmp_path):
    with executors.open(f"threads:{count}", memory=8192) as executor:
        assert far.results(DEMO, compressed, tmp_path, executor) == expected


@pytest.mark.parametrize("count", some([2, 1, 4], 1))
def test_processes_give_the_same_results(count, compressed, expected, tmp_path):
    with executors.open(f"processes:{count}", memory="1M") as executor:
        assert far.results(DEMO, compressed, tmp_path, executor) == expected


@pytest.mark.parametrize("name", some(
    ["functions", "constexpr_ios18", "states", "constexpr_ios16", "control_flow", "matrix_palettes", "matrix_chains"], 3
))  # fmt: skip
def test_models_of_every_kind_give_the_same_results(name, tiny_pieces):
    source = DATA / name / "model.mlpackage"
    with executors.open("threads:2", memory=4096) as executor:
        for call in (milblob.statistics, milblob.content_hash):
            assert call(source, executor=executor) == call(source)
        assert milblob.check(source, values=True, executor=executor) == milblob.check(source, values=True)
        for options in ({}, {"stored": True}, {"names_only": True}):
            assert milblob.diff(source, DEMO, **options, executor=executor) == milblob.diff(source, DEMO, **options)
        with milblob.open(source, constants=True) as model:
            assert milblob.statistics(model, executor=executor) == milblob.statistics(model)


def test_files_of_arrays_give_the_same_results(tmp_path):
    path = tmp_path / "arrays.npz"
    milblob.save({f"w{number}": np.arange(number + 1, dtype=np.float32) for number in range(40)}, path)
    with executors.open("threads:2") as executor:
        for call in (milblob.statistics, milblob.content_hash):
            assert call(path, executor=executor) == call(path)
        assert milblob.diff(path, path, executor=executor) == milblob.diff(path, path)


def test_recipe_that_cannot_be_pickled_is_applied_here(tmp_path):
    seen = []

    def entries(weight):
        seen.append(os.getpid())
        return np.linspace(weight.min(), weight.max(), 16), np.digitize(
            weight, np.linspace(weight.min(), weight.max(), 15)
        ) % 16

    scope = milblob.Scope(per_name={"head_weight": milblob.Palette(4, mode="custom", lut_function=entries)})
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(entries)
    here = milblob.compress(DEMO, tmp_path / "a", "int8", scope=scope)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        there = milblob.compress(DEMO, tmp_path / "b", "int8", scope=scope, executor=pool)
    assert tree(tmp_path / "a") == tree(tmp_path / "b") and here.weights == there.weights
    assert set(seen) == {os.getpid()}


def test_importance_reaches_workers(tmp_path):
    guidance = milblob.Guidance(importance={"head_weight": np.arange(1.0, 49.0)})
    recipe = milblob.Palette(2)
    with executors.open("threads:2") as executor:
        for number, how in enumerate([None, executor]):
            milblob.compress(DEMO, tmp_path / str(number), recipe, guidance=guidance, executor=how)
    milblob.compress(DEMO, tmp_path / "without", recipe)
    assert tree(tmp_path / "0") == tree(tmp_path / "1") != tree(tmp_path / "without")


def test_frontier_of_workers_is_the_same():
    recipes = ["int8", "palette4"]
    with executors.open("threads:2") as executor:
        there = milblob.compress_frontier(DEMO, recipes=recipes, executor=executor)
    assert there.to_dict() == milblob.compress_frontier(DEMO, recipes=recipes).to_dict()


def test_pieces_hold_paths_and_ranges_not_values(compressed, tmp_path):
    """What reaches a worker is small, however large the weights are."""

    class Recording(concurrent.futures.Executor):
        sizes = []

        def submit(self, function, /, *arguments, **options):
            data = pickle.dumps((function, arguments, options))
            self.sizes.append(len(data))
            future = concurrent.futures.Future()
            function, arguments, options = pickle.loads(data)
            future.set_result(pickle.loads(pickle.dumps(function(*arguments, **options))))
            return future

    large = tmp_path / "large.npz"
    milblob.save({"w": np.zeros(1 << 20, np.float32)}, large)
    milblob.statistics(large, executor=Recording())
    far.results(DEMO, compressed, tmp_path, Recording())
    assert 10 < len(Recording.sizes) < 1000 and max(Recording.sizes) < 60_000


# ------------------------------------------------------------------------------------------------------------- in pieces


def test_groups_are_bounded_by_memory_and_in_order():
    workers = Workers(concurrent.futures.ThreadPoolExecutor(2), 4 * SMALL)
    sizes = [SMALL, 3 * SMALL, 9 * SMALL, 1, 2, 100 * SMALL]
    groups = list(workers.groups(enumerate(sizes), lambda item: item[1]))
    assert [item for group in groups for item in group] == list(enumerate(sizes))
    assert all(len(group) == 1 or sum(nbytes for _, nbytes in group) <= workers.memory for group in groups)
    assert [len(group) for group in groups] == [2, 1, 2, 1]
    assert list(workers.groups([], len)) == []


def test_few_pieces_are_under_way_at_a_time():
    taken = []

    def pieces():
        for number in range(50):
            taken.append(number)
            yield number

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for number, found in enumerate(Workers(pool).run(abs, pieces(), str)):
            assert found == number and len(taken) <= number + 5
    assert len(taken) == 50


def test_results_come_as_they_are_there_without_an_order():
    is_last = threading.Event()

    def work(number):
        if number == 0:
            assert is_last.wait(30)
        elif number == 9:
            is_last.set()
        return number

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        found = list(Workers(pool).run(work, range(10), str, in_order=False))
    assert sorted(found) == list(range(10)) and found[0] != 0


@pytest.mark.parametrize("where", ["work", "pieces"])
def test_first_error_in_order_is_raised(where):
    def work(number):
        time.sleep(0.001 * (10 - number))
        if where == "work" and number in (4, 7):
            raise ValueError(number)
        return number

    def pieces():
        yield from range(4)
        if where == "pieces":
            raise ValueError(4)
        yield from range(4, 10)

    found = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool, pytest.raises(ValueError, match="4"):
        found.extend(Workers(pool).run(work, pieces(), str))
    with concurrent.futures.ThreadPoolExecutor(4) as pool, pytest.raises(ValueError, match="4"):
        for number in Workers(pool).run(work, pieces(), str):
            assert number < 4


def test_interrupt_waits_for_pieces_under_way_and_starts_no_other():
    running, started = [0], [0]

    def work(number):
        running[0] += 1
        started[0] += 1
        time.sleep(0.02)
        running[0] -= 1

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        results = Workers(pool).run(work, range(100), str)
        next(results)
        with pytest.raises(KeyboardInterrupt):
            results.throw(KeyboardInterrupt())
        assert running == [0] and started[0] < 10


class Late(concurrent.futures.Executor):
    """Runs each call at once, after something has happened to the source."""

    def __init__(self, before):
        self.before = before

    def submit(self, function, /, *arguments, **options):
        self.before()
        future = concurrent.futures.Future()
        try:
            future.set_result(function(*arguments, **options))
        except Exception as error:
            future.set_exception(error)
        return future


@pytest.mark.parametrize("name", ["statistics", "content_hash", "diff", "check", "compress", "decompress"])
def test_source_that_changes_before_a_worker_opens_it_is_refused(name, compressed, tmp_path):
    source = tmp_path / "m.mlpackage"
    milblob.repack(compressed, source)
    weights = source / "Data" / "com.apple.CoreML" / "weights" / "weight.bin"
    executor = Late(lambda: os.utime(weights, ns=(1, 1)))
    calls = {
        "statistics": lambda: milblob.statistics(source, executor=executor),
        "content_hash": lambda: milblob.content_hash(source, executor=executor),
        "diff": lambda: milblob.diff(compressed, source, executor=executor),
        "compress": lambda: milblob.compress(source, tmp_path / "out", "int8", recompress=True, executor=executor),
        "decompress": lambda: milblob.repack(source, tmp_path / "out", decompress=True, executor=executor),
    }
    if name == "check":
        found = milblob.check(source, values=True, executor=executor)
        assert not found.is_sound and "a changed one" in found.errors[0].message
    else:
        with pytest.raises(milblob.FormatError, match="a changed one"):
            calls[name]()
    assert sorted(os.listdir(tmp_path)) == ["m.mlpackage"]


def test_workers_do_not_allow_more_values_than_one_process(compressed, tiny_pieces):
    with executors.open("threads:2", memory=4096) as executor:
        for call in (milblob.statistics, milblob.content_hash):
            options = {"dense": True} if call is milblob.content_hash else {}
            for how in (None, executor):
                with pytest.raises(milblob.LimitError, match="expected at most 20000 bytes made"):
                    call(compressed, max_nbytes=20_000, executor=how, **options)


# ---------------------------------------------------------------------------------------------------------- killed workers


@NEEDS_KILL
@pytest.mark.parametrize("count", [1, 2])
def test_piece_of_a_killed_worker_runs_again(count, monkeypatch, tmp_path):
    killed = far.killing(monkeypatch, tmp_path / "killed", count)
    pieces = ["a", "b", "deadly", *map(str, range(8))]
    context = multiprocessing.get_context("fork" if far.CAN_FORK else "spawn")
    with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
        assert list(Workers(pool).run(far.piece_of_killed, pieces, str)) == pieces
    assert len(os.listdir(killed)) == count


@NEEDS_KILL
@NEEDS_FORK
@pytest.mark.parametrize("name", ["repack", "compress"])
def test_call_whose_workers_are_killed(name, monkeypatch, tiny_pieces, tmp_path):
    """The same bytes if one is killed; if all are, the piece is named, and everything is as it was."""
    monkeypatch.setattr(execute, "run_task", far.task_of_killed)
    monkeypatch.setattr("milblob.compressing.compress.parts_of", far.parts_of_killed)
    call = {
        "repack": lambda path, **more: milblob.repack(DEMO, path, align=4096, **more),
        "compress": lambda path, **more: milblob.compress(DEMO, path, "int8", **more),
    }[name]
    far.killing(monkeypatch, tmp_path / "none", 0)
    (tmp_path / "out").mkdir()
    call(tmp_path / "out" / "here")
    wanted = tree(tmp_path / "out" / "here")
    context = multiprocessing.get_context("fork")
    for count in (1, 100):
        killed = far.killing(monkeypatch, tmp_path / f"killed{count}", count)
        with concurrent.futures.ProcessPoolExecutor(2, context) as pool:
            if count == 1:
                call(tmp_path / "out" / "there", executor=pool)
                assert tree(tmp_path / "out" / "there") == wanted and len(os.listdir(killed)) == 1
            else:
                expected = "byte 64: expected a worker" if name == "repack" else "weights from .*: expected a worker"
                with pytest.raises(milblob.WorkerError, match=expected):
                    call(tmp_path / "out" / "there", force=True, executor=pool)
                assert tree(tmp_path / "out" / "there") == wanted
        assert sorted(os.listdir(tmp_path / "out")) == ["here", "there"]


@pytest.mark.thorough
@NEEDS_KILL
@pytest.mark.parametrize("delay", [0.02, 0.3, 1.0])
def test_ctrl_c_leaves_no_worker_and_no_file(delay, tmp_path):
    rng = np.random.default_rng(1)
    out, weights = tmp_path / "out", tmp_path / "w.bin"
    out.mkdir()
    arrays = {f"w{number}": rng.standard_normal(1 << 18, np.float32) for number in range(120)}
    milblob.save(arrays, weights)
    command = [sys.executable, "-m", "milblob", "repack", weights, "-o", out / "r.bin", "--cast", "float16"]
    process = subprocess.Popen(
        [*command, "--executor", "processes:2", "--memory", "1M"], env=child_environment(), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not os.listdir(out) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.005)
    time.sleep(delay)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode in (0, 130)
    if process.returncode == 0 or os.listdir(out):  # it was faster: the result is in its place, and whole
        assert os.listdir(out) == ["r.bin"]
        milblob.repack(weights, tmp_path / "wanted.bin", cast={"float32": "float16"})
        assert (out / "r.bin").read_bytes() == (tmp_path / "wanted.bin").read_bytes()
    deadline = time.monotonic() + 10
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:  # the tracker of multiprocessing ends after the others
            os.killpg(process.pid, 0)
            time.sleep(0.05)


@NEEDS_KILL
def test_workers_end_when_their_parent_is_killed():
    code = """
    import os, signal, sys
    import milblob
    if __name__ == "__main__":
        executor = milblob.executors.open("processes:1")
        print(executor.submit(os.getpid).result(), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, env=child_environment(), capture_output=True, timeout=60, check=False)
    worker = int(done.stdout)
    assert done.returncode == -signal.SIGKILL
    deadline = time.monotonic() + 20
    with pytest.raises(ProcessLookupError):
        while time.monotonic() < deadline:
            os.kill(worker, 0)
            time.sleep(0.02)


# ---------------------------------------------------------------------------------------------------------------- engines


@pytest.mark.parametrize(("spec", "message"), [
    ("", "expected processes:N"), ("spark:local", "got 'spark:local'"), ("processes:0", "processes:8"), ("threads:x", "threads:8"),
    ("threads:", "threads:8"), ("dask", "dask:tcp://host:8786"), ("ray:", "ray:auto"),
])  # fmt: skip
def test_wrong_engines_are_refused(spec, message):
    with pytest.raises(ValueError, match=f"executor: .*{message}"):
        executors.open(spec)


def test_arguments_of_wrong_types_are_refused():
    with pytest.raises(TypeError, match="executor: expected text"):
        executors.open(5)
    with pytest.raises(ValueError, match="memory: expected 1048576"):
        executors.open("threads:1", memory=100)
    for call in (milblob.statistics, milblob.content_hash):
        with pytest.raises(TypeError, match="concurrent.futures.Executor, got str"):
            call(DEMO, executor="threads:1")
    with pytest.raises(ValueError, match="executor: expected it with values"):
        milblob.check(DEMO, executor=concurrent.futures.ThreadPoolExecutor(1))


@pytest.mark.parametrize(("scheme", "module"), [("dask", "distributed"), ("ray", "ray")])
def test_missing_engine_is_named_with_its_extra(scheme, module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"{module} is not installed.*extra {scheme}"):
        executors.open(f"{scheme}:tcp://127.0.0.1:1")


def test_sources_that_workers_cannot_open_are_refused(tmp_path):
    with executors.open("threads:1") as executor:
        for source in (
            {"a": np.ones(3)},
            milblob.open((DEMO / "Data" / "com.apple.CoreML" / "weights" / "weight.bin").read_bytes()),
        ):
            for call in (milblob.statistics, milblob.content_hash):
                with pytest.raises(ValueError, match="executor: expected a source with a path"):
                    call(source, executor=executor)
        url = (DEMO / "Data" / "com.apple.CoreML" / "weights" / "weight.bin").as_uri()
        with pytest.raises(ValueError, match="executor: expected a local source"):
            milblob.statistics(url, executor=executor)


@pytest.mark.parametrize("command", ["hash", "stats", "check --values", "diff {}"])
def test_commands_print_the_same_with_an_executor(command, cli):
    words = [word.format(DEMO) for word in command.split()]
    found = [cli(*words, DEMO, *more) for more in ([], ["--executor", "threads:2", "--memory", "1M"])]
    assert found[0] == found[1] and found[0][0] == 0


def test_memory_without_an_executor_is_refused(cli):
    status, _, err = cli("hash", DEMO, "--memory", "1M")
    assert status == 2 and "--memory: expected --executor" in err


# ------------------------------------------------------------------------------------------------------------ Dask, Ray


@pytest.fixture
def environment(monkeypatch):
    """Workers of Dask and Ray, and their own processes, find the tests' modules."""
    for name, value in child_environment().items():
        monkeypatch.setenv(name, value)


def judge_engine(executor, compressed, expected, tmp_path):
    """The same results as here, and the same error."""
    (tmp_path / "there").mkdir()
    assert far.results(DEMO, compressed, tmp_path / "there", executor) == expected
    with pytest.raises(milblob.FormatError) as caught:
        list(executor.run(far.refused, ["a"], str))
    assert (caught.value.offset, caught.value.code) == (5, "reference") and "Traceback" not in str(caught.value)


@pytest.mark.thorough
@NEEDS_KILL
def test_dask(compressed, expected, environment, monkeypatch, tmp_path):
    distributed = pytest.importorskip("distributed", reason=WITHOUT["distributed"])
    killed = far.killing(monkeypatch, tmp_path / "killed", 1)
    options = {"n_workers": 2, "threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with (
        distributed.LocalCluster(**options) as cluster,
        executors.open(f"dask:{cluster.scheduler_address}", memory="1M") as executor,
    ):
        assert executor.width == 2
        judge_engine(executor, compressed, expected, tmp_path)
        assert list(executor.run(far.piece_of_killed, ["a", "deadly", "b"], str)) == ["a", "deadly", "b"]
        assert len(os.listdir(killed)) == 1
    far.killing(monkeypatch, tmp_path / "all", 100)
    with (
        distributed.LocalCluster(**options) as cluster,
        executors.open(f"dask:{cluster.scheduler_address}") as executor,
    ):
        with pytest.raises(milblob.WorkerError, match="deadly: expected a worker"):
            list(executor.run(far.piece_of_killed, ["a", "deadly"], str))
        assert list(executor.run(far.piece_of_killed, ["a"], str)) == ["a"]


@pytest.mark.thorough
@NEEDS_KILL
def test_ray(compressed, expected, environment, monkeypatch, tmp_path):
    ray = pytest.importorskip("ray", reason=WITHOUT["ray"])
    for count in (1, 100):
        killed = far.killing(monkeypatch, tmp_path / f"killed{count}", count)
        ray.init(
            num_cpus=2, include_dashboard=False, log_to_driver=False,
            runtime_env={"env_vars": {name: os.environ[name] for name in ("PYTHONPATH", far.VARIABLE)}},
        )  # fmt: skip
        try:
            with executors.open("ray:auto", memory="1M") as executor:
                if count == 1:
                    judge_engine(executor, compressed, expected, tmp_path)
                    assert list(executor.run(far.piece_of_killed, ["a", "deadly", "b"], str)) == ["a", "deadly", "b"]
                    assert len(os.listdir(killed)) == 1
                else:
                    with pytest.raises(milblob.WorkerError, match="deadly: expected a worker"):
                        list(executor.run(far.piece_of_killed, ["a", "deadly"], str))
                    assert len(os.listdir(killed)) == 1 + executors.RETRIES
        finally:
            ray.shutdown()
