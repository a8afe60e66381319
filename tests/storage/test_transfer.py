"""storage/transfer.py: all bytes arrive, however few a call moves; copies by the kernel and plain copies are the same."""

import errno
import mmap
import os
import random
import sys

import ml_dtypes
import numpy as np
import pytest

from milblob._codec import start_writing
from milblob.errors import FormatError
from milblob.storage.mapped import MappedFile
from milblob.storage.transfer import copy_range, write_at
from thorough import some

WAYS = [[], ["pwritev"], ["pwritev", "pwrite"]]
HAS_KERNEL = hasattr(os, "copy_file_range")
kernel_copies = pytest.mark.skipif(not HAS_KERNEL, reason="the kernel's copies are Linux's: they are not tested here")


@pytest.fixture
def file(tmp_path):
    """A descriptor of an empty file, and a function that gives its bytes."""
    fd = os.open(tmp_path / "target", os.O_RDWR | os.O_CREAT | getattr(os, "O_BINARY", 0))
    yield fd, (tmp_path / "target").read_bytes
    os.close(fd)


@pytest.mark.parametrize("missing", WAYS)
def test_pieces_of_all_kinds(file, monkeypatch, missing):
    for name in missing:
        monkeypatch.delattr(os, name, raising=False)
    fd, content = file
    array = np.arange(6, dtype="<u2").reshape(2, 3)
    pieces = [
        b"",
        b"ab",
        bytearray(b"cd"),
        memoryview(b"xefx")[1:3],
        array,
        np.zeros((0, 3)),
        np.array(5, "u1"),
        memoryview(b""),
    ]
    write_at(fd, pieces, 3)
    assert content() == b"\0\0\0abcdef" + array.tobytes() + b"\5"
    write_at(fd, [], 0)
    write_at(fd, [b"", b""], 1 << 40)
    write_at(fd, [b"ABC"], 0)
    assert content() == b"ABCabcdef" + array.tobytes() + b"\5"
    write_at(fd, [bytes([n % 256]) * 3 for n in range(2500)], 0)  # more than one call takes
    assert content() == b"".join(bytes([n % 256]) * 3 for n in range(2500))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("missing", WAYS)
def test_short_writes(file, monkeypatch, seed, missing):
    chooser = random.Random(seed)
    for name in missing:
        monkeypatch.delattr(os, name, raising=False)
    if hasattr(os, "pwritev"):
        pwrite = os.pwrite

        def some(fd, views, offset):
            data = b"".join(views)
            return pwrite(fd, data[: chooser.randrange(1, len(data) + 1)], offset)

        monkeypatch.setattr(os, "pwritev", some)
    else:
        name = "pwrite" if hasattr(os, "pwrite") else "write"
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda fd, view, *at: real(fd, view[: chooser.randrange(1, len(view) + 1)], *at))
    pieces = [chooser.randbytes(chooser.choice([0, 1, 5, 300])) for _ in range(50)]
    fd, content = file
    write_at(fd, pieces, 7)
    assert content() == bytes(7) + b"".join(pieces)


def test_no_call_is_given_more_than_systems_take(monkeypatch):
    """macOS refuses 2 GiB and more, and both it and Linux more than 1024 pieces."""
    taken = []

    def pwritev(fd, views, offset):
        nbytes = sum(view.nbytes for view in views)
        if nbytes >= 1 << 31 or len(views) > 1024:
            raise OSError(errno.EINVAL, "too much")
        taken.append((offset, nbytes))
        return nbytes

    sparse = np.zeros(5 << 30, np.uint8)  # pages that nobody touches are not there
    for missing in WAYS[:2]:
        taken.clear()
        monkeypatch.setattr(os, "pwritev", pwritev, raising=False)
        monkeypatch.setattr(os, "pwrite", lambda fd, view, offset: pwritev(fd, [view], offset), raising=False)
        for name in missing:
            monkeypatch.delattr(os, name)
        write_at(-1, [b"abc", sparse, sparse[:100], *[b"x"] * 3000], 10)
        end = 10
        for offset, nbytes in taken:
            assert offset == end
            end += nbytes
        assert end == 10 + 3 + (5 << 30) + 100 + 3000


def test_no_progress_is_an_error(monkeypatch):
    monkeypatch.setattr(os, "pwritev", lambda fd, views, offset: 0, raising=False)
    with pytest.raises(OSError, match="write of 3 bytes: expected progress, got none"):
        write_at(-1, [b"abc"], 0)


def test_writing_starts_early(file):
    fd, content = file
    write_at(fd, [b"x" * 300_000], 5)
    expected = 0 if sys.platform == "linux" and sys.maxsize > 1 << 32 else errno.ENOSYS
    assert start_writing(fd, 5, 300_000) == expected
    assert content() == bytes(5) + b"x" * 300_000
    assert start_writing(-1, 0, 1) == (expected or errno.EBADF)


def test_errors_pass(file):
    fd, _ = file
    with pytest.raises(OSError) as caught:
        write_at(fd, [b"abc"], (1 << 63) - 2)
    assert caught.value.errno in (errno.EFBIG, errno.EINVAL)
    with pytest.raises((ValueError, BufferError, TypeError)):
        write_at(fd, [np.zeros(3, ml_dtypes.bfloat16)[::2]], 0)


@pytest.fixture
def source(tmp_path):
    data = np.random.default_rng(1).bytes(20_000_003)
    (tmp_path / "source").write_bytes(data)
    mapping = MappedFile(tmp_path / "source")
    yield mapping, data
    mapping.close()


@pytest.mark.parametrize("start, nbytes, offset", some([
    (0, 20_000_003, 0), (1, 20_000_000, 17), (8192, 15_000_000, 4096), (19_999_999, 4, 4096), (5, 0, 9), (4096, 8 << 20, 1), (0, (8 << 20) + 1, 0),
], 9))  # fmt: skip
@pytest.mark.parametrize("way", ["as it is", "none", "in memory", *["refuses", "refuses later"] * HAS_KERNEL])
def test_copy_range(file, source, monkeypatch, start, nbytes, offset, way):
    fd, content = file
    mapping, data = source
    calls = []
    if way == "none":
        monkeypatch.delattr(os, "copy_file_range", raising=False)
    elif way.startswith("refuses"):
        real = os.copy_file_range

        def refuse(a, b, count, at, to):
            calls.append(count)
            if len(calls) > (3 if way == "refuses later" else 0):
                raise OSError(errno.EXDEV, "not between these two")
            return real(a, b, min(count, 1_000_000), at, to)

        monkeypatch.setattr(os, "copy_file_range", refuse)
    copy_range(MappedFile(data) if way == "in memory" else mapping, start, nbytes, fd, offset)
    assert content() == (bytes(offset) + data[start : start + nbytes] if nbytes else b"")
    if (start - offset) % mmap.PAGESIZE:  # the kernel copies such pages slower than a read and a write do
        assert calls == []
    elif way.startswith("refuses") and nbytes > 4_000_000:
        assert len(calls) == (4 if way == "refuses later" else 1)


@kernel_copies
def test_copy_errors_pass(file, source, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "copy_file_range", full)
    with pytest.raises(OSError, match="No space"):
        copy_range(source[0], 0, 100, file[0], 0)


def test_copy_of_a_source_that_has_shrunk(file, source, tmp_path):
    mapping, data = source
    fd, _ = file
    os.truncate(tmp_path / "source", 10_000_000)
    with pytest.raises(FormatError, match="size: expected 20000003 bytes as when it was opened, got 10000000"):
        copy_range(mapping, 0, len(data), fd, 0)


@kernel_copies
def test_copy_of_a_source_that_shrinks_during_the_copy(file, source, tmp_path, monkeypatch):
    mapping, data = source
    fd, _ = file
    real = os.copy_file_range

    def shrink(a, b, count, at, to):
        os.truncate(tmp_path / "source", 6_000_000)
        return real(a, b, min(count, 5_000_000), at, to)

    monkeypatch.setattr(os, "copy_file_range", shrink)
    with pytest.raises(FormatError, match="size: expected 20000003 bytes"):
        copy_range(mapping, 0, len(data), fd, 0)


def test_copy_inside_of_one_file(tmp_path):
    (tmp_path / "a").write_bytes(b"0123456789")
    mapping, fd = MappedFile(tmp_path / "a"), os.open(tmp_path / "a", os.O_RDWR)
    copy_range(mapping, 2, 5, fd, 10)
    os.close(fd)
    assert (tmp_path / "a").read_bytes() == b"012345678923456"
