"""EditableModel and threads: the second that writes is refused, and nothing of the first is lost."""

import contextlib
import os
import shutil
import signal
import threading

import numpy as np
import pytest

import milblob
from paths import DATA
from thorough import sized

pytestmark = pytest.mark.usefixtures("unsynced")

NAME = "opset_ios18_fp16/model.mlpackage"


class Slow:
    """Values that take their time."""

    def __init__(self, values):
        self.values, self.begun, self.go_on = values, threading.Event(), threading.Event()

    def __array__(self, dtype=None, copy=None):
        self.begun.set()
        assert self.go_on.wait(30)
        return self.values


@pytest.fixture
def package(tmp_path):
    return shutil.copytree(DATA / NAME, tmp_path / "model.mlpackage")


def new_values(model):
    """(name, other values) of the first weight in a weight file."""
    tensor = next(tensor for tensor in model.values() if tensor.is_blob)
    return tensor.name, (tensor.read() + 1).astype(tensor.dtype)


def begin(model):
    """Assign in another thread: (name, values, Slow, thread)."""
    name, values = new_values(model)
    slow = Slow(values)
    thread = threading.Thread(target=model.__setitem__, args=(name, slow))
    thread.start()
    assert slow.begun.wait(30)
    return name, values, slow, thread


def test_a_second_thread_is_refused(package):
    model = milblob.open(package, "r+")
    name, values, slow, thread = begin(model)
    old = model[name].read().copy()  # reading goes on
    for call in (model.flush, model.discard, model.close, lambda: model.__setitem__(name, values)):
        with pytest.raises(
            RuntimeError, match=r"mode 'r\+': expected one thread at a time, got another before a call ended$"
        ):
            call()
    slow.go_on.set()
    thread.join(30)
    assert not np.array_equal(old, values)
    model.close()
    assert np.array_equal(milblob.load(package)[name], values)


def test_leaving_the_block_waits_for_a_thread_that_assigns(package):
    with pytest.raises(KeyError), milblob.open(package, "r+") as model:
        name, values, slow, thread = begin(model)
        threading.Timer(0.2, slow.go_on.set).start()
        raise KeyError
    thread.join(30)
    assert not np.array_equal(milblob.load(package)[name], values)
    with milblob.open(package, "r+"):
        pass  # its lock was given back


@pytest.mark.skipif(
    not hasattr(os, "fork"),
    reason="no fork here: that a forked child does not wait for a thread of its parent is not tested",
)
@pytest.mark.filterwarnings("ignore:.*fork")
def test_a_forked_process_waits_for_no_thread_of_its_parent(package):
    model = milblob.open(package, "r+")
    name, values, slow, thread = begin(model)
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        with contextlib.suppress(KeyError), model:
            raise KeyError
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    slow.go_on.set()
    thread.join(30)
    model.close()
    assert np.array_equal(milblob.load(package)[name], values)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_before_a_model_has_anything(package, monkeypatch):
    def stop():
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(milblob.model.editable.os, "getpid", stop)
        with pytest.raises(KeyboardInterrupt):
            milblob.model.editable.EditableModel(package)
    with milblob.open(package, "r+"):
        pass


def test_reading_while_another_thread_writes(package):
    """Who looks up by name finds every name all the time, and elements that are the old ones or the new ones."""
    with milblob.open(package, "r+") as model:
        name, values = new_values(model)
        old, names, stop, errors = model[name].read().copy(), list(model), threading.Event(), []

        def read():
            while not stop.is_set():
                found = model[name].read().copy()
                if list(model) != names or not ((found == old) | (found == values)).all():
                    errors.append(found)

        threads = [threading.Thread(target=read) for _ in range(3)]
        [thread.start() for thread in threads]
        for turn in range(sized(3, 6)):
            model[name] = values if turn % 2 == 0 else old
            model.flush()
        stop.set()
        [thread.join(30) for thread in threads]
    assert not errors
