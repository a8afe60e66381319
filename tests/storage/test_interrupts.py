"""Ctrl-C at every place where Python looks for it: no temporary file is left, and the next call works."""

import contextlib
import functools
import gc
import os
import pathlib
import sys

import numpy as np
import pytest

import milblob
import milblob.storage.output
from editable_packages import assign, left, make_package, recovered_number
from faults import temporaries
from milblob.compat.storage import _BlobStorageWriter
from milblob.storage.locks import is_held, locked_directory
from milblob.storage.output import NewDirectory, NewFile, together
from milblob.storage.temporary import remove_tree
from thorough import sized

pytestmark = pytest.mark.usefixtures("unsynced")

SOURCE = os.path.dirname(milblob.__file__)


def is_lost(frame):
    """Whether Python can only print an exception of this frame."""
    while frame is not None:
        if frame.f_code.co_name == "__del__":
            return True
        frame = frame.f_back
    return False


def interrupted(action, number, but=()):
    """Run an action with KeyboardInterrupt at one of the places; return whether it has that many.

    Python raises it as a function of Python begins, and after a call of one in C; `but`: some after which it is not.
    """
    passed = -1

    def look(frame, event, called):
        nonlocal passed
        if event == "c_return" and called in but:
            return
        if event in ("call", "c_return") and frame.f_code.co_filename.startswith(SOURCE) and not is_lost(frame):
            passed += 1
            if passed == number:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        action()
    except KeyboardInterrupt:
        assert passed == number
        return True
    finally:
        sys.setprofile(None)
    assert passed < number, "the interrupt was lost"
    return False


def at_every_place(action, step=1, but=()):
    """Yield after each interrupt of an action, and then after an action without one; `step`: every how manyth place."""
    number = 0
    while interrupted(action, number, but):
        yield number
        number += step
    yield -1


def test_turn_is_given_back():
    turn = milblob._codec.Turn("thing")

    def take():
        with turn:
            pass

    for _ in at_every_place(take):
        with turn:
            pass


@pytest.mark.parametrize("tmpfile", [True, False])
@pytest.mark.parametrize("force", [True, False])
def test_file(tmp_path, monkeypatch, tmpfile, force):
    if not tmpfile:
        monkeypatch.setattr(milblob.storage.output, "_TMPFILE", 0)
    path = tmp_path / "out"

    def replace():
        with NewFile(str(path), force=force) as new:
            os.write(new.fd, b"new")

    for number in at_every_place(replace):
        assert not path.exists() or path.read_bytes() == b"new", number
        assert temporaries(tmp_path) == [], number
        path.unlink(missing_ok=True)


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc here: open descriptors are not counted")
def test_no_descriptor_of_an_output_remains(tmp_path):
    """Only what comes right after `os.open` loses the number that it returns."""

    def replace():
        with NewFile(str(tmp_path / "out")) as new:
            os.write(new.fd, b"new")

    replace()
    before = len(os.listdir("/proc/self/fd"))
    for number in at_every_place(replace, but=(os.open,)):
        assert len(os.listdir("/proc/self/fd")) == before, number


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="no /proc here: open descriptors are not counted")
def test_no_descriptor_of_a_changed_model_remains(tmp_path):
    """Two of its files are open and locked: Ctrl-C may come when only one of them is closed."""
    path, before = make_package(tmp_path, 1), len(os.listdir("/proc/self/fd"))
    number, is_more = 0, True
    while is_more:
        model = milblob.open(path, "r+")
        model["floats"].read()
        assert len({model.writable(mapped) for mapped in model.package.mappings}) == 2
        is_more = interrupted(functools.partial(model.__exit__, KeyError), number)
        del model
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before, number
        number += 1
    assert number > 10


def test_file_that_keeps_its_lock(tmp_path):
    """Nothing has the lock once the object is gone."""
    path = tmp_path / "out"

    def write():
        new = NewFile(str(path), held=True)
        os.write(new.fd, b"new")
        new.commit()
        new.release()

    for number in at_every_place(write):
        gc.collect()
        if path.exists():
            with open(path, "rb") as file:
                assert not is_held(file.fileno()), number
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("replace", [True, False])
def test_directory(tmp_path, replace):
    path = tmp_path / "out"

    def write(content):
        with NewDirectory(str(path), replace=replace) as new:
            for name in ("a", "b"):
                os.mkdir(os.path.join(new.name, name))
                pathlib.Path(new.name, name, "file").write_bytes(content)

    if replace:
        write(b"old")
    for number in at_every_place(lambda: write(b"new"), sized(3, 1)):
        found = {file.read_bytes() for file in path.rglob("file")}
        assert found in ([{b"old"}, {b"new"}] if replace else [set(), {b"new"}]), number
        assert temporaries(tmp_path) == [], number
        if replace:
            write(b"old")
        else:
            remove_tree(str(path))


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("many", [True, False])
def test_writer_goes_on(tmp_path, mode, many):
    arrays = [np.arange(n, dtype="<f4") for n in (2, 0, 3, 100_000, 7, 1)]
    path, right = tmp_path / "file", tmp_path / "right"
    with milblob.BlobWriter(right) as writer:
        writer.write_many(arrays)
    is_more, number = True, 0
    while is_more:
        with milblob.BlobWriter(path) as writer:
            writer.write(arrays[0])
        with milblob.BlobWriter(path, mode) as writer:

            def write(writer=writer):
                rest = arrays[1 if mode == "a" and not len(writer) else len(writer) :]
                if many:
                    writer.write_many(rest)
                else:
                    for array in rest:
                        writer.write(array)

            is_more = interrupted(write, number)
            assert not many or len(writer) in (0, 1, len(arrays))
            write()
        assert path.read_bytes() == right.read_bytes(), number
        number += 1
    assert sorted(os.listdir(tmp_path)) == ["file", "right"] and number > 10


@pytest.mark.parametrize("fails", [True, False], ids=["error", "success"])
def test_append_is_over(tmp_path, fails):
    """The writer has given back the file and its lock, or still does so when it goes; the records count or do not."""
    path = tmp_path / "file"

    def append():
        with contextlib.suppress(KeyError), milblob.BlobWriter(path, "a") as writer:
            writer.write(np.arange(300_000, dtype="<f4"))
            if fails:
                raise KeyError

    def count():
        return int.from_bytes(path.read_bytes()[:4], "little")

    number, is_more = 0, True
    while is_more:
        with milblob.BlobWriter(path) as writer:
            writer.write(np.arange(3, dtype="<f4"))
        is_more = interrupted(append, number)
        found = count()
        assert found == 1 or (found == 2 and not fails), number
        if is_more:  # what still holds the writer is gone
            gc.collect()
        assert count() == found, number
        with milblob.BlobWriter(path, "a") as again:
            again.write(np.arange(3, dtype="<f4"))
        assert count() == found + 1, number
        number += 1
    assert number > 10


def test_closing_again_touches_no_other_file(tmp_path):
    """The descriptor may be another file's by then."""
    path, other = tmp_path / "file", tmp_path / "other"
    number, is_more = 0, True
    while is_more:
        writer = milblob.BlobWriter(path)
        writer.write(np.arange(3, dtype="<f4"))
        is_more = interrupted(writer.close, number)
        with contextlib.ExitStack() as files:
            for _ in range(3):
                files.enter_context(open(other, "wb"))
            with contextlib.suppress(OSError, ValueError):
                writer.close()
            assert other.stat().st_size == 0, number
        assert not path.exists() or len(milblob.BlobReader(path)) == 1, number
        with pytest.raises(ValueError, match="closed writer"):
            writer.write(np.arange(3, dtype="<f4"))
        path.unlink(missing_ok=True)
        number += 1
    assert number > 10


@pytest.mark.parametrize("many", [2, 70_000])
def test_writer_goes_on_after_two_errors(tmp_path, many):
    """Ctrl-C while the records of a call that failed are removed again."""
    arrays = [np.arange(n, dtype="<f4") for n in (5, many, 100_000, 7)]
    path, right = tmp_path / "file", tmp_path / "right"

    def failing():
        yield from (array + 1 for array in arrays[1:] * 3)
        raise KeyError

    with milblob.BlobWriter(right) as writer:
        writer.write_many(arrays)
    number, is_more = 0, True
    while is_more:
        with milblob.BlobWriter(path) as writer:
            writer.write(arrays[0])

            def fail(writer=writer):
                with contextlib.suppress(KeyError):
                    writer.write_many(failing())

            is_more = interrupted(fail, number)
            assert len(writer) == 1, number
            for array in arrays[1:]:
                writer.write(array)
        assert path.read_bytes() == right.read_bytes(), number
        number += 1
    assert number > 10


def test_filling_goes_on(tmp_path):
    """What was filled before Ctrl-C remains filled."""
    number, is_more = 0, True
    while is_more:
        with milblob.BlobWriter(tmp_path / "file") as writer:
            offset = writer.reserve(9, "uint8")
            writer.fill(offset, b"abc")
            is_more = interrupted(functools.partial(writer.fill, offset, b"def", 3), number)
            writer.fill(offset, b"defghi", 3)
        assert milblob.BlobReader(tmp_path / "file").read(offset).tobytes() == b"abcdefghi"
        number += 1
    assert number > 10


def test_writer_for_coremltools_goes_on(tmp_path):
    """The record is there and counted, or nothing is."""
    path, arrays = tmp_path / "file", [np.arange(n, dtype="<f4") for n in (3, 5, 7)]
    number, is_more = 0, True
    while is_more:
        writer = _BlobStorageWriter(str(path))
        writer.write_float_data(arrays[0])
        is_more = interrupted(functools.partial(writer.write_float_data, arrays[1]), number)
        writer.write_float_data(arrays[2])
        with milblob.BlobReader(path) as reader:
            found = [reader.read(record).size for record in reader]
        assert found in ([3, 7], [3, 5, 7]), number
        with milblob.BlobWriter(tmp_path / "right") as right:
            right.write_many(arrays[size // 2 - 1] for size in found)
        assert path.read_bytes() == (tmp_path / "right").read_bytes(), number
        number += 1
    assert number > 10


def test_change_in_place_is_whole(tmp_path):
    path = make_package(tmp_path, 1)
    for number in at_every_place(lambda: assign(path, 2), sized(13, 1)):
        assert recovered_number(path) in (1, 2), number
        assert left(path) == [], number
        assign(path, 1)
        assert recovered_number(path) == 1


def test_directory_in_place_is_free_while_the_exception_lives(tmp_path, monkeypatch):
    """Ctrl-C while the replaced directory is removed: what keeps the exception keeps everything in its frames."""
    path, caught = tmp_path / "out", []
    path.mkdir()
    for place in range(30):
        try:
            with together() as parts:
                parts.append(NewDirectory(str(path), replace=True))
                monkeypatch.setattr(
                    milblob.storage.output, "remove_tree", lambda name, place=place: _remove(name, place)
                )
        except KeyboardInterrupt as error:
            caught.append(error)
            with locked_directory(str(path)):
                pass
        monkeypatch.undo()
    assert caught


def _remove(name, place):
    if interrupted(lambda: remove_tree(name), place):
        raise KeyboardInterrupt
