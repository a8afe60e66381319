"""Process pools that break while milblob works in them, and executors that the caller shuts down."""

import concurrent.futures.process
import multiprocessing
import os
import signal
import threading
import time

import pytest

import far
from killing import NEEDS_FORK, NEEDS_KILL
from milblob.executors import Workers


def released(path):
    """Wait until a file is there."""
    while not os.path.exists(path):
        time.sleep(0.01)


def cancel_one(pool):
    """Cancel a call of the caller that waits after others."""
    assert [pool.submit(time.sleep, 0.5) for _ in range(20)][-1].cancel()


def run_in_time(pool, pieces):
    """Return the results of pieces, or None if one is never finished. The processes of the pool have started."""
    found, processes = [], list(pool._processes.values())
    run = Workers(pool).run(far.piece_of_killed, pieces, str)
    thread = threading.Thread(target=lambda: found.append(list(run)), daemon=True)
    thread.start()
    thread.join(20)
    for one in processes:
        one.join(2)
    alive = [one for one in processes if one.is_alive()]
    for one in alive:
        one.kill()
    assert not alive, "expected no process that Python waits for when it exits"
    return found[0] if found else None


@NEEDS_KILL
@NEEDS_FORK
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of Python's own thread
def test_pool_that_breaks_after_a_call_was_cancelled(monkeypatch, tmp_path):
    """The caller's own calls are in the pool too. Python before 3.12 finishes nothing that came after a cancelled one."""
    far.killing(monkeypatch, tmp_path / "killed", 1)

    def pieces():
        yield "deadly"
        cancel_one(pool)
        yield "a"
        (tmp_path / "go").touch()
        yield from "bcd"

    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        for _ in range(2):  # its processes start with the first
            pool.submit(released, tmp_path / "go")
        assert run_in_time(pool, pieces()) == ["deadly", *"abcd"]


@NEEDS_KILL
@NEEDS_FORK
@pytest.mark.parametrize("number", [0, 3])
def test_piece_that_is_submitted_while_the_pool_breaks(number, monkeypatch, tmp_path):
    """Before Python 3.12 the pool may fail its pieces while `submit`, which found it whole, adds one."""
    far.killing(monkeypatch, tmp_path / "killed", 0)
    pools = concurrent.futures.process
    made, end = pools._WorkItem, pools._ExecutorManagerThread.terminate_broken
    breaks, is_submitting, has_ended = threading.Event(), threading.Event(), threading.Event()

    def ended(*args):
        breaks.set()
        is_submitting.wait(5)
        try:
            end(*args)
        finally:
            has_ended.set()

    def item(*args):
        if breaks.is_set() and not has_ended.is_set():
            is_submitting.set()
            has_ended.wait(0.5)  # it waits for us since 3.12
        return made(*args)

    def pieces():
        for at, piece in enumerate("abcdefgh"):
            if at == number:
                next(iter(pool._processes.values())).kill()
                assert breaks.wait(5)
            yield piece

    monkeypatch.setattr(pools, "_WorkItem", item)
    monkeypatch.setattr(pools._ExecutorManagerThread, "terminate_broken", ended)
    with concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork")) as pool:
        pool.submit(int).result()  # its processes start
        assert run_in_time(pool, pieces()) == list("abcdefgh")
        assert is_submitting.is_set()


@NEEDS_KILL
@NEEDS_FORK
def test_pool_that_replaces_a_broken_one_is_not_broken_by_another_thread(monkeypatch, tmp_path):
    """Two threads have pieces in a pool that breaks: both take the same new one."""
    far.killing(monkeypatch, tmp_path / "killed", 1)
    pool = concurrent.futures.ProcessPoolExecutor(2, multiprocessing.get_context("fork"))
    with Workers(pool, close=int) as workers:
        pieces = [*"abc", "deadly", *map(str, range(40))]
        with concurrent.futures.ThreadPoolExecutor(2) as threads:
            runs = [threads.submit(lambda: list(workers.run(far.slow_piece_of_killed, pieces, str))) for _ in range(2)]
        assert [run.result() for run in runs] == [pieces, pieces]


@NEEDS_KILL
@NEEDS_FORK
def test_calls_of_the_caller_end_when_their_pool_breaks(monkeypatch, tmp_path):
    """Also where a callback of the caller keeps the thread of the pool busy for several seconds."""
    far.killing(monkeypatch, tmp_path / "killed", 1)
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        first = pool.submit(released, tmp_path / "go")
        pool.submit(far.piece_of_killed, "deadly").add_done_callback(lambda future: time.sleep(3))

        def pieces():
            yield "a"
            last.append(pool.submit(int))
            (tmp_path / "go").touch()
            yield "b"

        last = []
        assert list(Workers(pool).run(far.piece_of_killed, pieces(), str)) == ["a", "b"]
        assert isinstance(last[0].exception(10), concurrent.futures.BrokenExecutor) and first.done()


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("count", [2, 5])
def test_executor_that_the_caller_shuts_down(count, in_order):
    """Calls that it cancels end with an error; those under way are waited for."""
    started, go = threading.Event(), threading.Event()

    def work(piece):
        started.set()
        go.wait(10)

    def shut_down():
        started.wait(10)
        pool.shutdown(wait=False, cancel_futures=True)
        go.set()

    pool = concurrent.futures.ThreadPoolExecutor(1)
    thread = threading.Thread(target=shut_down)
    thread.start()
    with pytest.raises((concurrent.futures.CancelledError, RuntimeError)):
        list(Workers(pool).run(work, range(count), str, in_order=in_order))
    thread.join()


@pytest.fixture
def ctrl_c():
    """Ctrl-C raises KeyboardInterrupt, also in a process of the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@NEEDS_KILL
@pytest.mark.parametrize("in_order", [True, False])
def test_ctrl_c_waits_for_the_pieces_under_way(in_order, ctrl_c):
    ended = []

    def work(piece):
        time.sleep(1.5 - piece)
        ended.append(piece)

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            list(Workers(pool).run(work, range(2), str, in_order=in_order))
        assert sorted(ended) == [0, 1]


@NEEDS_KILL
@NEEDS_FORK
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # of Python's own thread
def test_no_piece_runs_after_the_call_has_ended(monkeypatch, tmp_path):
    """A piece fails, and then the pool breaks after a call was cancelled: its thread ends no process."""
    far.killing(monkeypatch, tmp_path / "killed", 1)

    def pieces():
        yield "wrong"
        yield str(tmp_path / "lines")
        for _ in range(2):
            pool.submit(released, tmp_path / "go")
        pool.submit(far.piece_of_killed, "deadly")
        cancel_one(pool)
        threading.Timer(0.8, (tmp_path / "go").touch).start()  # after the piece has failed

    with concurrent.futures.ProcessPoolExecutor(3, multiprocessing.get_context("fork")) as pool:
        with pytest.raises(ValueError, match="wrong"):
            list(Workers(pool).run(far.lines_or_an_error, pieces(), str))
        written = os.path.getsize(tmp_path / "lines")
        time.sleep(0.5)
        assert os.path.getsize(tmp_path / "lines") == written
