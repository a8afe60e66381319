"""BlobWriter, mode "a": what was there stays, whoever wrote it and whatever happens; the new records count all at once."""

import contextlib
import gc
import os
import struct
import sys

import numpy as np
import pytest

import milblob
import reference
from blob_files import RANDOM, blob_file, values_of, written
from cases import BLOB_CASES
from draws import restarts
from faults import EACH_FAILURE, generation, temporaries
from paths import DATA
from thorough import sized, some

each_test_draws_the_same = restarts(RANDOM)

NEW = [
    ("UINT8", np.arange(5, dtype=np.uint8)),
    ("FLOAT16", values_of("FLOAT16", 400_000)),
    ("UINT3", np.arange(7, dtype=np.uint8)),
]
"""What the tests append: staged, written directly, staged."""
HELD = 640
"""Where they begin after the records of `plain`."""
HOSTILE = DATA / "blob_garbage" / "weight.bin"


def append(path, records=None, **options):
    """Append records; return their offsets."""
    with milblob.BlobWriter(path, "a", sync=False, **options) as blobs:
        return [blobs.write(array, dtype) for dtype, array in (NEW if records is None else records)]


def appended(old, records=None):
    """The bytes that the reference makes of a file and more records."""
    data, count = bytearray(old), struct.unpack_from("<I", old)[0]
    for dtype, array in NEW if records is None else records:
        one, _ = blob_file((dtype, array[:0]))  # its metadata, the data by itself: the reference is slow
        stored = (
            array.tobytes()
            if reference.DTYPES[dtype][2] >= 8
            else milblob.pack_tensor(array, dtype)[-((array.size * 3 + 7) // 8) :]
        )
        data += bytes(reference.align64(len(data)) - len(data))
        padding = 8 * len(stored) - array.size * reference.DTYPES[dtype][2]
        data += one[64:72] + struct.pack("<QQQ32x", len(stored), len(data) + 64, padding) + stored
        count += 1
    struct.pack_into("<I", data, 0, count)
    return bytes(data)


def plain(path, count=3):
    """A file of `count` records that ends off a 64 boundary; return its bytes."""
    return written(path, *(lambda blobs, n=n: blobs.write(np.arange(100 + n, dtype=np.uint8)) for n in range(count)))[0]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "weight.bin"


# -------------------------------------------------------------------------------------------------------- what is written


@pytest.mark.parametrize("case", BLOB_CASES)
def test_files_of_others(path, case):
    old = (DATA / case / "weight.bin").read_bytes()
    path.write_bytes(old)
    for round_number in range(2):
        before = path.read_bytes()
        offsets = append(path)
        assert path.read_bytes() == appended(before)
        assert path.read_bytes()[4 : len(old)] == old[4:]
        with milblob.BlobReader(path) as blobs:
            assert [record.offset for record in blobs][-3:] == offsets
            assert len(blobs) == struct.unpack_from("<I", old)[0] + 3 * (round_number + 1)
            for offset, (_, array) in zip(offsets, NEW, strict=True):
                assert blobs.read(offset).tobytes() == array.tobytes()


def test_records_made_by_hand(path):
    """Data that is not right after its metadata, and at no multiple of 64."""
    data = bytearray(struct.pack("<II56x", 2, 2))
    data += struct.pack("<IIQQ40x", reference.SENTINEL, 3, 10, 200) + bytes(72) + b"0123456789" + bytes(46)
    data += struct.pack("<IIQQ40x", reference.SENTINEL, 3, 3, len(data) + 64 + 5) + bytes(5) + b"abc"
    path.write_bytes(data)
    offsets = append(path)
    assert offsets[0] == reference.align64(len(data))
    assert path.read_bytes()[4 : len(data)] == data[4:]
    with milblob.BlobReader(path) as blobs:
        assert [blobs.read_packed(record).tobytes()[:3] for record in blobs][:2] == [b"012", b"abc"]
        assert [record.offset for record in blobs][2:] == offsets


@pytest.mark.parametrize("align", [4096, 16384])
def test_alignment(path, align):
    old = plain(path)
    append(path, align=align)
    with milblob.BlobReader(path) as blobs:
        assert [record.data_offset % align for record in blobs][3:] == [0, 0, 0]
    assert path.read_bytes()[4 : len(old)] == old[4:]
    assert not [finding for finding in milblob.check(path) if finding.severity == "error"]


@pytest.mark.parametrize("tail", [b"\0" * 9000, b"\0" * 3, b"junk", b"\xff" * 70_000, b"\0" * 61 + b"\xef\xbe\xad"])
def test_what_follows_the_last_record_is_overwritten(path, tail):
    """The file never gets shorter, because somebody may have it mapped; no record seems to follow the last."""
    old = plain(path)
    path.write_bytes(old + tail)
    append(path, NEW[:1])
    data, expected = path.read_bytes(), appended(old, NEW[:1])
    assert data[: len(expected)] == expected
    assert len(data) == max(len(expected), len(old) + len(tail))
    assert data[len(expected) : len(expected) + 128].strip(b"\0") == b""
    append(path, NEW[1:])
    assert path.read_bytes()[: len(old) + 1000] == appended(old)[: len(old) + 1000]
    with milblob.BlobReader(path) as blobs:
        assert [blobs.read(record).size for record in blobs] == [100, 101, 102, 5, 400_000, 7]


def test_records_that_the_header_does_not_count_are_not_overwritten(path):
    old = bytearray(plain(path))
    old[0] = 2
    path.write_bytes(old)
    with pytest.raises(milblob.FormatError) as caught:
        milblob.BlobWriter(path, "a")
    assert (
        str(caught.value) == f"records: expected 2 as the header states, got another after them at byte 448 in {path}"
    )
    assert path.read_bytes() == old


def test_nothing_to_write_changes_nothing(path):
    old = plain(path)
    os.utime(path, ns=(10**18, 10**18))
    with milblob.BlobWriter(path, "a") as blobs:
        assert len(blobs) == 3 and blobs.nbytes == len(old)
    assert path.read_bytes() == old and path.stat().st_mtime_ns == 10**18
    with milblob.BlobWriter(path, "a") as blobs:
        with pytest.raises(TypeError):
            blobs.write_many([np.zeros(1 << 20, np.uint8), np.zeros(3)])
        with pytest.raises(OverflowError):
            blobs.write(np.arange(600_000) % 9, "uint3")
    assert path.read_bytes() == old


@pytest.mark.parametrize("tail", [b"", b"\xff" * 100_000])
def test_an_exception_in_the_block(path, tail):
    old = plain(path)
    path.write_bytes(old + tail)
    with pytest.raises(KeyError), milblob.BlobWriter(path, "a") as blobs:
        blobs.write(np.zeros(3 << 20, np.uint8))
        raise KeyError
    data = path.read_bytes()
    assert data[: len(old)] == old and len(data) == len(old + tail)
    append(path)
    assert path.read_bytes()[: len(appended(old))] == appended(old)


def test_a_writer_that_is_never_closed(path):
    old = plain(path)
    with pytest.warns(ResourceWarning, match="never closed"):
        milblob.BlobWriter(path, "a").write(np.zeros(3 << 20, np.uint8))
    assert path.read_bytes() == old
    append(path)


def test_all_ways_to_write(path):
    old, array = plain(path), values_of("FLOAT32", 200_000)
    source = milblob.BlobReader(path)
    records = [
        ("UINT8", np.arange(101, dtype=np.uint8)),
        ("FLOAT32", array),
        ("FLOAT32", array[:5]),
        ("UINT8", np.arange(9, dtype=np.uint8)),
    ]
    with milblob.BlobWriter(path, "a") as blobs:
        blobs.copy(source, source[1])  # of the file itself
        offset = blobs.reserve(array.nbytes, "float32")
        blobs.write_many([array[:5]])
        blobs.write_packed(bytes(range(9)), "uint8")
        blobs.fill(offset, array)
    assert path.read_bytes() == appended(old, records)
    path.write_bytes(old)
    for first in (
        lambda blobs: blobs.write_many([array]),
        lambda blobs: blobs.reserve(0, "float32"),
        lambda blobs: blobs.write([], "float32"),
    ):
        path.write_bytes(old)
        with milblob.BlobWriter(path, "a") as blobs:
            first(blobs)
        assert path.read_bytes()[HELD : HELD + 8] == appended(old, [("FLOAT32", array)])[HELD : HELD + 8]
        assert path.read_bytes()[HELD + 24 : HELD + 64] == bytes(40)  # no mark is left


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize("content, error, words", [
    (b"", milblob.FormatError, "storage header: expected 64 more bytes, got 0"),
    (b"version https://git-lfs.github.com/spec/v1\nsize 5\n", milblob.FormatError, "Git LFS pointer"),
    (struct.pack("<II56x", 1, 1) + bytes(200), milblob.UnsupportedError, "storage version: expected 2, got 1"),
    (struct.pack("<II56x", 1, 2) + bytes(200), milblob.FormatError, "record sentinel: expected 0xdeadbeef, got 0x00000000"),
    (struct.pack("<II56x", 9, 2) + bytes(200), milblob.FormatError, "records that the file has room for"),
    (b"\x08\x08" + bytes(200), milblob.MilblobError, "storage version"),
])  # fmt: skip
def test_files_that_are_refused(path, content, error, words):
    path.write_bytes(content)
    gc.collect()
    before = len(os.listdir("/proc/self/fd")) if sys.platform.startswith("linux") else 0
    for _ in range(3):
        with pytest.raises(error, match=words):
            milblob.BlobWriter(path, "a")
    assert path.read_bytes() == content
    gc.collect()  # tracebacks hold frames, those the mapping
    if before:
        assert len(os.listdir("/proc/self/fd")) == before


def test_paths_that_are_refused(tmp_path, path):
    with pytest.raises(FileNotFoundError):
        milblob.BlobWriter(path, "a")
    with pytest.raises(OSError):
        milblob.BlobWriter(tmp_path, "a")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here: appending to one is not refused by a test")
def test_a_fifo_is_refused(path):
    os.mkfifo(path)
    with pytest.raises(milblob.FormatError, match="expected a regular file, got a FIFO"):
        milblob.BlobWriter(path, "a")


def test_a_file_in_the_middle_of_a_change_is_refused(tmp_path):
    """What is in place is not the model's weights until the change is completed."""
    weights = tmp_path / "model.mlpackage" / "weight.bin"
    weights.parent.mkdir()
    old = plain(weights)
    (weights.parent / ".milblob-journal").write_bytes(b"")
    with pytest.raises(milblob.PendingChangeError, match="journal: expected none"):
        milblob.BlobWriter(weights, "a")
    assert weights.read_bytes() == old


# -------------------------------------------------------------------------------------------------- others at the same time


def test_two_writers(path):
    old = plain(path)
    with milblob.BlobWriter(path, "a") as first:
        first.write(np.arange(3, dtype=np.uint8))
        with pytest.raises(BlockingIOError, match="expected to be the only writer"):
            milblob.BlobWriter(path, "a")
        replacing = milblob.BlobWriter(path)
        replacing.write(np.zeros(300_000, np.uint8))
        with pytest.raises(BlockingIOError):
            replacing.close()
        with pytest.raises(ValueError, match="closed"):
            replacing.write(np.zeros(3, np.uint8))
    assert path.read_bytes() == appended(old, [("UINT8", np.arange(3, dtype=np.uint8))])
    assert temporaries(path.parent) == []


def test_readers_see_the_old_records_or_all_of_the_new(path):
    plain(path)
    reader = milblob.BlobReader(path)
    view = reader.read(64)
    with milblob.BlobWriter(path, "a") as blobs:
        blobs.write(np.zeros(3 << 20, np.uint8))
        blobs.write(np.zeros(3, np.uint8))
        between = milblob.BlobReader(path)
        assert len(between) == 3 and between.read(64).tobytes() == bytes(range(100))
    assert view.tobytes() == bytes(range(100)) == reader.read(64).tobytes() == between.read(64).tobytes()
    assert [len(reader), len(between), len(milblob.BlobReader(path))] == [3, 3, 5]


def test_links(tmp_path, path):
    old = plain(path)
    (tmp_path / "symbolic").symlink_to(path)
    os.link(path, tmp_path / "hard")
    append(tmp_path / "symbolic")
    assert path.read_bytes() == (tmp_path / "hard").read_bytes() == appended(old)
    assert (tmp_path / "symbolic").is_symlink()
    with milblob.BlobWriter(path, "a"), pytest.raises(BlockingIOError):
        milblob.BlobWriter(tmp_path / "symbolic", "a")


def test_the_count_is_written_last_and_after_a_sync(path, monkeypatch):
    if not hasattr(os, "pwritev") or sys.platform == "darwin":
        pytest.skip("no fault library here: which calls an append makes is not watched")
    plain(path)
    calls, pwritev, fsync = [], os.pwritev, os.fsync
    monkeypatch.setattr(os, "pwritev", lambda fd, views, at: calls.append(at) or pwritev(fd, views, at))
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("sync") or fsync(fd))
    with milblob.BlobWriter(path, "a") as blobs:
        for dtype, array in NEW:
            blobs.write(array, dtype)
    first = calls.index("sync")
    assert min(calls[:first]) > 600 and calls[first:] == ["sync", 0, "sync", HELD + 56]
    calls.clear()
    append(path)
    assert "sync" not in calls and calls[-2] == 0


# ------------------------------------------------------------------------------------------------------ crashes and faults


def append_new(path, sync=False):
    with milblob.BlobWriter(path, "a", sync=sync) as blobs:
        for dtype, array in NEW:
            blobs.write(array, dtype)


def write_new(path):
    with milblob.BlobWriter(path) as blobs:
        for dtype, array in NEW:
            blobs.write(array, dtype)
        blobs.fill(blobs.reserve(3, "int8"), b"abc")
        with milblob.BlobReader(HOSTILE) as source:
            blobs.write_many([array for _, array in NEW] * 3)
            blobs.copy(source, source[0])


def without_mark(data, offset):
    """The mark stays where only taking it away failed: a reserved field, which nobody reads."""
    return data[: offset + 56] + bytes(8) + data[offset + 64 :]


@pytest.mark.parametrize("tail", some([b"", b"\xff" * 300_000, b"\xff" * 3_000_000], 2))
@pytest.mark.parametrize("mode, code", EACH_FAILURE)
def test_append_at_every_call(faults, path, mode, code, tail):
    old = plain(path)
    new = appended(old)
    path.write_bytes(old + tail)
    exits = set()
    for outcome in faults.at_every_call(append_new, [str(path), True], root=path.parent, mode=mode, code=code, turns=1):
        data = path.read_bytes()
        is_new = data[: len(old)] == new[: len(old)]
        assert is_new or data[: len(old)] == old, outcome
        if is_new:
            # Where what comes after the count fails, and from then on every write, the old count cannot be put back.
            assert outcome.exit != "error" or mode in ("fail on", "short then fail"), outcome
            assert without_mark(data, HELD)[: len(new)] == new, outcome
        else:
            assert outcome.exit != "ok", outcome
            if outcome.exit == "error" and mode == "fail":  # else even cutting it off fails
                assert len(data) == len(old + tail), outcome
            with milblob.BlobReader(path) as blobs:
                assert [blobs.read(record).size for record in blobs] == [100, 101, 102]
            append(path)  # and the next one does what this one could not
            assert path.read_bytes()[: len(new)] == new, outcome
        assert temporaries(path.parent) == []
        exits.add((outcome.exit, is_new))
        path.write_bytes(old + tail)
    if mode == "short":
        assert exits == {("ok", True)}
    elif mode.startswith("kill"):
        assert exits == {("killed", True), ("killed", False)}
    else:
        assert exits - {("error", True)} == {("error", False), ("ok", True)}


@pytest.mark.parametrize("mode, code", EACH_FAILURE)
def test_new_file_at_every_call(faults, path, mode, code):
    old = plain(path)
    write_new(path)
    new = path.read_bytes()
    path.write_bytes(old)
    exits = set()
    for outcome in faults.at_every_call(write_new, [str(path)], root=path.parent, mode=mode, code=code):
        data = path.read_bytes()
        assert data in (old, new), outcome
        exits.add((outcome.exit, data == new))
        assert temporaries(path.parent) == [] or outcome.exit == "killed"
        with contextlib.suppress(FileNotFoundError):
            milblob.storage.temporary.sweep(str(path.parent))
        path.write_bytes(old)
    if mode == "short":
        assert exits == {("ok", True)}
    elif mode.startswith("kill"):
        assert ("killed", False) in exits and ("ok", False) not in exits
    else:  # the name may be there and its directory not synced
        assert exits - {("error", True), ("ok", mode == "short then fail")} == {("error", False)}


def test_a_failed_write_leaves_the_writer_usable(path, monkeypatch):
    """The disk is full for a while: what could not be written can be written again, and nothing else is lost."""
    if not hasattr(os, "pwritev"):
        pytest.skip("no pwritev here: a short write in an append is not tested")
    small, large = np.arange(5, dtype=np.uint8), np.zeros(1 << 20, np.uint8)
    real, state = os.pwritev, {"full": False}

    def pwritev(fd, views, offset):
        if state["full"]:
            if len(b"".join(views[:1])) > 10:
                real(fd, [bytes(views[0])[:10]], offset)
            raise OSError(28, "No space left on device")
        return real(fd, views, offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    for mode in ("w", "a"):
        with milblob.BlobWriter(path, mode, sync=False) as blobs:
            blobs.write(small)
            state["full"] = True
            for call in (
                lambda: blobs.write(large),
                lambda: blobs.write_many([small, large]),
                lambda: blobs.reserve(5, "int8"),
            ):
                with pytest.raises(OSError, match="No space"):
                    call()
            state["full"] = False
            blobs.write(large)
            blobs.write(small)
    assert not [finding for finding in milblob.check(path) if finding.code != "unreferenced"]
    with milblob.BlobReader(path) as blobs:
        assert [blobs.read(record).tobytes() for record in blobs] == [
            small.tobytes(),
            large.tobytes(),
            small.tobytes(),
        ] * 2


@pytest.mark.parametrize("leaves", [True, False], ids=["error", "caught"])
@pytest.mark.parametrize("tail", [0, 100, 5_000_000])
def test_a_copy_that_fails_leaves_the_file_as_it_was(path, tail, leaves, monkeypatch):
    """Its first record is a large one of another file: copied by the kernel, before there is any metadata."""
    source = path.with_name("source")
    with milblob.BlobWriter(source, sync=False) as blobs:
        offset = blobs.write(values_of("FLOAT16", 2_000_000))
    old = plain(path)
    with open(path, "ab") as file:
        file.write(bytes(tail))

    def fail(source, start, nbytes, fd, at):
        os.pwrite(fd, b"x" * (nbytes - 1), at)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(milblob.blobs.writer, "copy_range", fail)
    with (
        contextlib.suppress(OSError),
        milblob.BlobReader(source) as reader,
        milblob.BlobWriter(path, "a", sync=False) as blobs,
        contextlib.nullcontext() if leaves else contextlib.suppress(OSError),
    ):
        blobs.copy(reader, offset)
    found = path.read_bytes()
    assert len(found) == len(old) + tail and found[: len(old)] == old
    monkeypatch.undo()
    append(path)
    assert path.read_bytes().startswith(appended(old))


def append_for_ever(path, first, sync):
    for number in range(first, 1 << 30):
        data = np.frombuffer(generation(number), np.uint8)
        with milblob.BlobWriter(path, "a", sync=sync) as blobs:
            blobs.write(data)
            blobs.write_many([data[:3], data])


@pytest.mark.parametrize("sync", some([True, False], 1))
def test_kill_9_while_records_are_appended(faults, path, sync):
    written(path)
    lasts, unfinished = [0], []
    for _ in faults.kill_often(
        append_for_ever,
        lambda: [str(path), lasts[-1] + 1, sync],
        root=path.parent,
        seed=f"append {sync}",
        count=sized(25, 100),
        is_enough=lambda: len(set(lasts)) > 5 and any(unfinished),
        longest_s=0.02,
    ):
        with milblob.BlobReader(path) as blobs:
            count, rest = divmod(len(blobs), 3)
            assert rest == 0 and count >= lasts[-1]
            found = [blobs.read(record).tobytes() for record in blobs]
            unfinished.append(count > 0 and path.stat().st_size > blobs[-1].data_offset + blobs[-1].nbytes)
        for number in range(count):
            data = generation(number + 1)
            assert found[3 * number : 3 * number + 3] == [data, data[:3], data]
        lasts.append(count)
        if path.stat().st_size > 50 << 20:
            written(path)
            lasts.append(0)
