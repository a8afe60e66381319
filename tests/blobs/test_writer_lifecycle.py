"""BlobWriter: a new file appears whole or not at all; one thread, one process; systems that lack calls."""

import contextlib
import gc
import os
import threading
import warnings

import numpy as np
import pytest

import milblob
from blob_files import RANDOM, blob_file, values_of, written
from children import run_child
from draws import restarts
from faults import temporaries

each_test_draws_the_same = restarts(RANDOM)

# ------------------------------------------------------------------------------------------------------- whole or not at all


def test_an_exception_in_the_block_leaves_everything_as_it_was(tmp_path):
    for before in (None, b"old"):
        if before is not None:
            (tmp_path / "a").write_bytes(before)
        with pytest.raises(KeyError, match="mine"), milblob.BlobWriter(tmp_path / "a") as blobs:
            blobs.write(np.zeros(1 << 20, np.uint8))
            raise KeyError("mine")
        assert os.listdir(tmp_path) == ([] if before is None else ["a"])
        with pytest.raises(ValueError, match="^I/O operation on closed writer"):
            blobs.write(np.zeros(3, np.uint8))
    assert (tmp_path / "a").read_bytes() == b"old"


def test_nothing_is_there_before_the_end(tmp_path):
    blobs = milblob.BlobWriter(tmp_path / "a")
    blobs.write(np.zeros(1 << 20, np.uint8))
    assert repr(blobs) == f"<BlobWriter {tmp_path / 'a'}: 1 records>"
    assert not (tmp_path / "a").exists()
    blobs.close()
    blobs.close()
    assert repr(blobs) == f"<BlobWriter {tmp_path / 'a'}: closed>"
    assert (tmp_path / "a").stat().st_size == 128 + (1 << 20) == blobs.nbytes


def test_views_of_a_replaced_file_remain_valid(tmp_path):
    first, second = values_of("UINT8", 100_000), values_of("UINT8", 100)
    written(tmp_path / "a", lambda blobs: blobs.write(first))
    with milblob.BlobReader(tmp_path / "a") as blobs:
        view = blobs.read(64)
        written(tmp_path / "a", lambda blobs: blobs.write(second))
        assert np.array_equal(view, first) and np.array_equal(blobs.read(64), first)
    assert np.array_equal(milblob.BlobReader(tmp_path / "a").read(64), second)


def test_a_writer_that_is_never_closed(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.warns(ResourceWarning, match="was never closed: nothing was written"):
        blobs = milblob.BlobWriter(tmp_path / "a")
        blobs.write(np.zeros(1 << 20, np.uint8))
        del blobs
        gc.collect()
    assert (tmp_path / "a").read_bytes() == b"old" and temporaries(tmp_path) == []


def test_a_symbolic_link_is_kept(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    data, _ = written(tmp_path / "link", lambda blobs: blobs.write(np.zeros(3, np.uint8)))
    assert (tmp_path / "link").is_symlink() and (tmp_path / "real").read_bytes() == data


def test_two_writers_of_one_new_file(tmp_path):
    """Each is whole; the last to end is there."""
    first, second = milblob.BlobWriter(tmp_path / "a"), milblob.BlobWriter(tmp_path / "a")
    first.write(np.zeros(300_000, np.uint8))
    second.write(np.arange(5, dtype=np.uint8))
    first.close()
    assert (tmp_path / "a").stat().st_size == 300_128
    second.close()
    assert (tmp_path / "a").read_bytes() == blob_file(("UINT8", np.arange(5, dtype=np.uint8)))[0]


# ------------------------------------------------------------------------------------------------- threads and processes


class Slow:
    """An array that takes its time."""

    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __array__(self, dtype=None, copy=None):
        self.begun.set()
        assert self.go_on.wait(30)
        return np.arange(5, dtype=np.uint8)


def test_a_second_thread_is_refused(tmp_path):
    blobs, slow = milblob.BlobWriter(tmp_path / "a"), Slow()
    thread = threading.Thread(target=blobs.write, args=(slow,))
    thread.start()
    assert slow.begun.wait(30)
    for call in (
        lambda: blobs.write(np.zeros(3, np.uint8)), lambda: blobs.write_many([]), lambda: blobs.reserve(3, "int8"), blobs.close,
        lambda: blobs.fill(64, b""), lambda: blobs.write_packed(b"a", "int8"), lambda: blobs.copy(None, None),
    ):  # fmt: skip
        with pytest.raises(RuntimeError, match=": expected one thread at a time, got another before a call ended$"):
            call()
    slow.go_on.set()
    thread.join(30)
    assert blobs.write(np.zeros(3, np.uint8)) == 192
    blobs.close()
    assert len(milblob.BlobReader(tmp_path / "a")) == 2


def test_leaving_the_block_waits_for_a_thread_that_is_writing(tmp_path):
    slow, ended = Slow(), []
    with pytest.raises(KeyError), milblob.BlobWriter(tmp_path / "a") as blobs:
        thread = threading.Thread(target=lambda: ended.append(blobs.write(slow)))
        thread.start()
        assert slow.begun.wait(30)
        threading.Timer(0.2, slow.go_on.set).start()
        raise KeyError
    assert ended == [64]
    assert not (tmp_path / "a").exists()


def test_closing_what_another_thread_has_just_closed_does_nothing(tmp_path):
    with milblob.BlobWriter(tmp_path / "a") as blobs:
        blobs.write(np.zeros(1, np.uint8))

        def lose_the_race():
            del blobs._require_process
            other = threading.Thread(target=blobs.close)
            other.start()
            other.join(30)

        blobs._require_process = lose_the_race
        blobs.close()
    assert len(milblob.BlobReader(tmp_path / "a")) == 1


def test_a_call_inside_of_a_call_is_refused(tmp_path):
    class Greedy:
        def __array__(self, dtype=None, copy=None):
            return np.array([blobs.write(np.zeros(1, np.uint8))], np.uint8)

    with milblob.BlobWriter(tmp_path / "a") as blobs:
        with pytest.raises(RuntimeError, match=": expected one call at a time, got another inside of it$"):
            blobs.write(Greedy())
        with pytest.raises(RuntimeError, match="inside of it"):
            blobs.write_many(blobs.write(np.zeros(1, np.uint8)) for _ in range(2))
        blobs.write(np.zeros(1, np.uint8))
    assert len(milblob.BlobReader(tmp_path / "a")) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here: what a forked child does is not tested")
@pytest.mark.parametrize("mode, named", [("w", False), ("w", True), ("a", False)])
def test_a_forked_process_leaves_the_file_alone(tmp_path, mode, named):
    """It may end, fail inside the block, or live on: the file is the parent's, and the lock with it."""
    code = """
        import gc, os, sys, warnings
        import numpy as np
        import milblob, milblob.storage.output
        path, mode, named = sys.argv[1], sys.argv[2], sys.argv[3] == "True"
        warnings.simplefilter("error")
        if named:
            milblob.storage.output._TMPFILE = 0
        if mode == "a":
            with milblob.BlobWriter(path) as blobs:
                blobs.write(np.arange(3, dtype=np.uint8))
        def child(*actions):
            pid = os.fork()
            if pid == 0:
                for action in actions:
                    action()
                return True
            assert os.waitpid(pid, 0)[1] == 0
            return False
        def refused():
            for call in (blobs.close, lambda: blobs.write(np.zeros(1, np.uint8))):
                try:
                    call()
                except RuntimeError as error:
                    assert str(error).endswith("expected the process that opened it, got a forked one"), error
                else:
                    raise AssertionError
        blobs = milblob.BlobWriter(path, mode)
        blobs.write(np.zeros(3 << 20, np.uint8))
        if child(refused):
            sys.exit(0)
        def leave():
            try:
                with blobs:
                    raise KeyError
            except KeyError:
                os._exit(0)
        child(leave)
        def forget():
            global blobs
            del blobs
            gc.collect()
            os._exit(0)
        child(forget)
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(writer)
            os.read(reader, 1)  # lives on with a copy of the descriptor
            os._exit(0)
        blobs.write(np.arange(5, dtype=np.uint8))
        blobs.close()
        with milblob.BlobWriter(path, "a") as again:
            again.write(np.arange(7, dtype=np.uint8))
        os.close(writer)
        os.waitpid(pid, 0)
        print([record.count for record in milblob.BlobReader(path)])
    """
    counts = ([3] if mode == "a" else []) + [3 << 20, 5, 7]
    assert run_child(code, tmp_path / "a", mode, named).strip() == str(counts)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here: a forked child's leftovers are not tested")
def test_a_writer_that_only_another_thread_has_is_left_alone_by_a_forked_process(tmp_path):
    """Python destroys what the other threads had before it calls what `os.register_at_fork` was given."""
    code = """
        import os, sys, threading
        import numpy as np
        import milblob
        path = sys.argv[1]
        with milblob.BlobWriter(path) as blobs:
            blobs.write(np.arange(3, dtype=np.uint8))
        own, has_begun, may_end = threading.local(), threading.Event(), threading.Event()
        def append():
            own.blobs = milblob.BlobWriter(path, "a")
            own.blobs.write(np.zeros(3 << 20, np.uint8))
            has_begun.set()
            may_end.wait()
            own.blobs.close()
        thread = threading.Thread(target=append, daemon=True)
        thread.start()
        has_begun.wait()
        nbytes = os.path.getsize(path)
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert os.path.getsize(path) == nbytes > 3 << 20
        try:
            milblob.BlobWriter(path, "a")
        except BlockingIOError:
            may_end.set()
        thread.join()
        print([record.count for record in milblob.BlobReader(path)])
    """
    assert run_child(code, tmp_path / "a").strip() == str([3, 3 << 20])


# ------------------------------------------------------------------------------------------------- what the system lacks


@pytest.mark.parametrize("missing", [
    ["copy_file_range"], ["pwritev"], ["pwritev", "copy_file_range"], ["pwritev", "pwrite", "copy_file_range"],
])  # fmt: skip
@pytest.mark.parametrize("mode", ["w", "a"])
def test_without_positioned_writes(tmp_path, monkeypatch, missing, mode):
    """Windows has none of them, old macOS no pwritev."""
    array = values_of("FLOAT16", 400_000)

    def everything(path):
        if mode == "a":
            written(path, lambda blobs: blobs.write(np.arange(9, dtype=np.uint8)))
        with milblob.BlobWriter(path, mode, sync=False) as blobs, milblob.BlobReader(tmp_path / "source") as source:
            offset = blobs.reserve(array.nbytes, "float16")
            blobs.write(array)
            blobs.write_many([array[::2], array[:5]])
            blobs.copy(source, 64)
            with contextlib.suppress(TypeError):
                blobs.write(["a"])
            blobs.fill(offset, array[1000:], 2000)
            blobs.fill(offset, array[:1000])
        return path.read_bytes()

    written(tmp_path / "source", lambda blobs: blobs.write(array))
    expected = everything(tmp_path / "a")
    for name in missing:
        monkeypatch.delattr(os, name, raising=False)
    assert everything(tmp_path / "b") == expected


def test_no_warning_in_good_use(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        written(tmp_path / "a", lambda blobs: blobs.write(values_of("FLOAT16", 1000).reshape(10, 100).T))
        gc.collect()
