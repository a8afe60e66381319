"""Arrays in files without a name."""

import errno
import gc
import os
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from milblob.storage import scratch
from milblob.storage.scratch import Scratch

SHAPE = (3, 1 << 21)  # of float32: more than is held in memory


def test_large_arrays_are_files_that_go_with_them(tmp_path):
    array = Scratch(str(tmp_path)).empty(SHAPE, np.float32)
    array[...] = np.arange(3)[:, None]
    view = array[1:]
    del array
    assert view.sum() == 3 * SHAPE[1] and view.flags.writeable
    assert sys.platform == "win32" or not list(tmp_path.iterdir())
    if sys.platform == "linux":
        with open("/proc/self/maps") as maps:
            assert str(tmp_path) in maps.read()
        del view
        with open("/proc/self/maps") as maps:
            assert str(tmp_path) not in maps.read()


@pytest.mark.parametrize("shape", [(), 0, (0, 4), 5, (2, 3)])
def test_small_arrays_are_in_memory(tmp_path, shape):
    array = Scratch(str(tmp_path / "missing")).empty(shape, np.uint8)
    assert array.shape == np.empty(shape).shape and array.dtype == np.uint8


def test_a_directory_that_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        Scratch(str(tmp_path / "missing")).empty(SHAPE, np.float32)


@pytest.mark.skipif(
    not hasattr(os, "posix_fallocate"), reason="macOS and Windows have no such call: a full disk is not tested there"
)
def test_a_full_disk_is_an_error_before_a_page_is_written(tmp_path, monkeypatch):
    def full(fd, offset, nbytes):
        assert nbytes == 4 * SHAPE[0] * SHAPE[1]
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        Scratch(str(tmp_path)).empty(SHAPE, np.float32)


def test_a_file_system_that_cannot_reserve_gets_zeros(tmp_path, monkeypatch):
    def unable(fd, offset, nbytes):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    written = []
    write_at = scratch.write_at
    monkeypatch.setattr(os, "posix_fallocate", unable, raising=False)
    monkeypatch.setattr(
        scratch, "write_at", lambda fd, pieces, at: (written.append(len(pieces[0])), write_at(fd, pieces, at))
    )
    array = Scratch(str(tmp_path)).empty((1 << 24) + 5, np.uint8)
    assert sum(written) == array.size and not array.any()


def test_arrays_that_are_kept_share_files(tmp_path, monkeypatch):
    """They do not overlap; what fits is in memory, the rest in few files, each of which goes with the arrays in it."""
    monkeypatch.setattr(scratch, "_HELD_NBYTES", 1 << 16)
    monkeypatch.setattr(scratch, "_FIRST_NBYTES", 1 << 16)
    made, empty = [], Scratch.empty

    def recorded(self, shape, dtype):
        array = empty(self, shape, dtype)
        made.append(weakref.ref(array.base))
        return array

    monkeypatch.setattr(Scratch, "empty", recorded)
    room, rng = Scratch(str(tmp_path)), np.random.default_rng(1)
    sizes = [*rng.integers(0, 9000, 60).tolist(), 200_000]
    with ThreadPoolExecutor(4) as pool:
        arrays = list(pool.map(lambda count: room.persistent((count, 1), np.uint16), sizes))
    for number, array in enumerate(arrays):
        array[:] = number
    for number, (array, count) in enumerate(zip(arrays, sizes, strict=True)):
        assert (array.shape, array.dtype) == ((count, 1), np.uint16)
        assert array.__array_interface__["data"][0] % 16 == 0
        assert (array == number).all()
    assert 2 < len(made) < 20
    assert not list(tmp_path.iterdir())
    del array, arrays[:]
    gc.collect()
    assert sum(one() is not None for one in made) <= 1  # the one with room left
