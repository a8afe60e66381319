"""What was fetched is kept between runs: never wrong bytes, also after damage to the directory in between."""

import base64
import contextlib
import errno
import io
import os
import pathlib
import random
import stat
import subprocess
import sys
import threading
import time
import zipfile

import fsspec
import numpy as np
import pytest

import milblob
from milblob.cli import main
from milblob.remote import http, origin
from remote_server import files_below, serving
from repacking import FILE, simple_package
from thorough import sized, some

pytestmark = pytest.mark.usefixtures("unsynced")

HEAD = http.HEAD_NBYTES
COUNT, NBYTES = 3, 400_000


@pytest.fixture
def package(tmp_path):
    random = np.random.default_rng(5)
    return simple_package(tmp_path, [random.random(NBYTES // 4).astype("<f4").tobytes() for _ in range(COUNT)])


@pytest.fixture
def server(package, monkeypatch):
    monkeypatch.setattr(http, "_FIRST_WAIT_S", 0.001)
    with serving(files_below(package, "m.mlpackage/")) as server:
        server.model = f"{server.url}/m.mlpackage"
        server.weights = f"m.mlpackage/{FILE}"
        yield server


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


def expect_same(server, package, cache, **options):
    found, expected = milblob.load(server.model, cache=cache, **options), milblob.load(package)
    assert list(found) == list(expected)
    for name, array in expected.items():
        assert np.array_equal(found[name], array), name


def moved(server):
    """Bytes of the weight file since the last call."""
    nbytes = server.moved(FILE)
    server.log.clear()
    return nbytes


def test_next_run_asks_for_the_version_only(server, package, cache):
    expect_same(server, package, cache)
    assert moved(server) >= COUNT * NBYTES
    for options in ({}, {"mmap": False}):
        expect_same(server, package, cache, **options)
        assert 0 < moved(server) <= HEAD
    with milblob.open(server.model, cache=milblob.Cache(cache)) as model:
        assert np.array_equal(model["w1"].read(), milblob.load(package)["w1"])
    assert moved(server) <= HEAD


def test_ranges_of_two_runs_add_up(server, package, cache):
    expected = milblob.load(package)
    for name in ("w2", "w0", "w1", "w2"):
        with milblob.open(server.model, cache=cache) as model:
            assert np.array_equal(model[name].read(), expected[name])
    assert moved(server) < COUNT * NBYTES + 5 * HEAD


def test_nothing_is_kept_unless_a_cache_is_given(server, package, cache, tmp_path):
    before = sorted(tmp_path.rglob("*"))
    milblob.load(server.model)
    with pytest.raises(ValueError, match="cache: expected a URL"):
        milblob.load(package, cache=cache)
    assert sorted(tmp_path.rglob("*")) == before


def test_another_version_is_another_entry(server, package, cache):
    expect_same(server, package, cache)
    data = server.files[server.weights]
    server.files[server.weights] = data[:-NBYTES] + bytes(NBYTES)
    server.etags[server.weights] = '"new"'
    assert not np.any(milblob.load(server.model, cache=cache)["w2"])
    server.files[server.weights] = data
    server.etags.clear()
    moved(server)
    expect_same(server, package, cache)
    assert moved(server) <= HEAD


@pytest.mark.parametrize(("etag", "age", "is_kept"), [
    (None, 3600, True), (None, 5, False), (None, None, False), ('W/"weak"', 3600, False),
])  # fmt: skip
def test_only_versions_that_last_are_kept(server, package, cache, monkeypatch, etag, age, is_kept):
    def headers(self, path, begin, end, size):
        found = {"Content-Range": f"bytes {begin}-{end - 1}/{size}"}
        found |= {} if etag is None else {"ETag": etag}
        return found | ({} if age is None else {"Last-Modified": changed})

    from email.utils import formatdate

    changed = formatdate(time.time() - (age or 0), usegmt=True)
    monkeypatch.setattr("remote_server._Handler.range_headers", headers)
    for _ in range(2):
        moved(server)
        expect_same(server, package, cache)
    assert (moved(server) <= HEAD) is is_kept


def test_server_that_repeats_a_version_for_other_bytes_is_not_believed(server, package, cache):
    expect_same(server, package, cache)
    data = server.files[server.weights]
    server.files[server.weights] = data[:64] + data[64:128] + bytes(NBYTES) + data[128 + NBYTES :]
    assert not np.any(milblob.load(server.model, cache=cache)["w0"])


# ---------------------------------------------------------------------------------------------- damage between two runs


def largest(cache, suffix):
    return max(cache.glob(f"*.{suffix}"), key=lambda path: path.stat().st_size)


def flip(cache):
    path = largest(cache, "data")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def zero(cache):
    for path in cache.glob("*.data"):
        path.write_bytes(bytes(path.stat().st_size))


def cut_data(cache):
    path = largest(cache, "data")
    os.truncate(path, path.stat().st_size // 2)


def lengthen(cache):
    with largest(cache, "data").open("ab") as file:
        file.write(b"more")


def cut_ranges(cache):
    path = largest(cache, "ranges")
    os.truncate(path, path.stat().st_size - 11)


def garbage(cache):
    for path in cache.glob("*.ranges"):
        with path.open("ab") as file:
            file.write(b"\n0 ffffffffffffffff " + b"0" * 32 + b" 00000000\n\xff\0" * 3)


def exchange(cache):
    one, two, *_ = sorted(cache.glob("*.ranges"))
    data = one.read_bytes()
    one.write_bytes(two.read_bytes())
    two.write_bytes(data)


def remove(suffix):
    def damage(cache):
        for path in cache.glob(f"*{suffix}"):
            path.unlink()

    return damage


DAMAGE = {
    "a bit": flip, "zeros": zero, "short data": cut_data, "long data": lengthen, "half a line": cut_ranges,
    "garbage": garbage, "other ranges": exchange, "no data": remove(".data"), "no ranges": remove(".ranges"),
    "no key": remove("key"), "empty key": lambda cache: (cache / "key").write_bytes(b""),
}  # fmt: skip


@pytest.mark.parametrize("damage", some([*DAMAGE], 4))
def test_damaged_cache_gives_the_right_bytes(server, package, cache, damage):
    expect_same(server, package, cache)
    DAMAGE[damage](cache)
    expect_same(server, package, cache)
    moved(server)
    expect_same(server, package, cache)
    assert moved(server) <= HEAD, "what was damaged is kept again"


@pytest.mark.skipif(not hasattr(os, "symlink"), reason="no links on this platform: links in the cache are not tested")
@pytest.mark.parametrize("suffix", ["data", "ranges", "lock", "key"])
def test_link_in_the_cache_is_never_written_through(server, package, cache, suffix):
    expect_same(server, package, cache)
    outside = cache.parent / "outside"
    outside.write_bytes(b"mine")
    for path in [*cache.glob(f"*.{suffix}"), *cache.glob(suffix)]:
        path.unlink()
        path.symlink_to(outside)
    with contextlib.suppress(OSError):
        expect_same(server, package, cache)
    assert outside.read_bytes() == b"mine"


@pytest.mark.skipif(
    not hasattr(os, "mkfifo"),
    reason="no FIFOs in the file systems of Windows: one in place of a file of the cache is not tested",
)
@pytest.mark.parametrize("suffix", ["data", "ranges", "lock", "key"])
def test_fifo_in_the_cache_is_replaced_or_left(server, package, cache, suffix):
    expect_same(server, package, cache)
    for path in [*cache.glob(f"*.{suffix}"), *cache.glob(suffix)]:
        path.unlink()
        os.mkfifo(path)
    expect_same(server, package, cache)
    moved(server)
    expect_same(server, package, cache)
    assert moved(server) <= HEAD


@pytest.mark.parametrize("suffix", ["data", "ranges", "key"])
def test_directory_in_place_of_a_file_of_the_cache_is_named(server, cache, suffix):
    milblob.load(server.model, cache=cache)
    for path in [*cache.glob(f"*.{suffix}"), *cache.glob(suffix)]:
        path.unlink()
        path.mkdir()
    with pytest.raises(OSError) as caught:
        milblob.load(server.model, cache=cache)
    assert os.path.dirname(caught.value.filename) == str(cache)


def test_full_disk_without_room_for_the_key_names_it_and_leaves_nothing(server, package, cache, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="expected room for") as caught:
            milblob.load(server.model, cache=cache)
    assert caught.value.filename == str(cache / "key") and not list(cache.glob("key*"))
    expect_same(server, package, cache)


CHILD = """
import sys, milblob
found = milblob.load(sys.argv[1], cache=sys.argv[2])
expected = milblob.load(sys.argv[3])
assert all((found[name] == array).all() for name, array in expected.items())
"""


def start_child(server, package, cache):
    words = [sys.executable, "-c", CHILD, server.model, str(cache), str(package)]
    return subprocess.Popen(words, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})


@pytest.mark.skipif(
    sys.platform == "win32", reason="no SIGKILL on Windows: the cache of a process that is killed is not tested"
)
def test_killed_process_leaves_a_sound_cache(server, package, cache):
    server.delay = 0.01
    chance = random.Random(1)
    start = time.monotonic()
    assert start_child(server, package, cache / "first").wait() == 0
    usual = time.monotonic() - start
    for _ in range(sized(2, 20)):
        child = start_child(server, package, cache)
        time.sleep(usual * chance.uniform(0.3, 1.0))
        child.kill()
        child.wait()
        expect_same(server, package, cache)
        for path in cache.glob("*.ranges") if chance.random() < 0.5 else ():
            path.unlink()


def test_processes_share_a_cache(server, package, cache):
    server.delay = 0.01
    children = [start_child(server, package, cache) for _ in range(2)]
    assert [child.wait() for child in children] == [0, 0]
    moved(server)
    expect_same(server, package, cache)
    assert moved(server) <= HEAD


def test_threads_share_a_cache(server, package, cache):
    expected, wrong = milblob.load(package), []
    milblob.load(server.model, cache=cache)
    moved(server)
    with milblob.open(server.model, cache=cache) as model:

        def read(number):
            name = f"w{number % COUNT}"
            wrong.extend([name] if not np.array_equal(model[name].read(), expected[name]) else [])

        threads = [threading.Thread(target=read, args=(number,)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == [] and moved(server) <= HEAD


# ------------------------------------------------------------------------------------------------------ size and secrets


def on_disk(cache):
    return sum(path.stat().st_blocks * 512 for path in cache.iterdir() if path.suffix in (".data", ".ranges"))


@pytest.mark.skipif(
    sys.platform == "win32", reason="no sparse files by default on Windows: which entries go first is not tested"
)
def test_oldest_entries_go_first(server, package, cache):
    for name in "abcd":
        for path, data in files_below(package, f"{name}.mlpackage/").items():
            server.files[path] = data
    limit = milblob.Cache(cache, max_nbytes=3_000_000)
    expected = milblob.load(package)
    for name in ("a", "b", "a", "c"):  # 1.2 MB each: two of them fit
        found = milblob.load(f"{server.url}/{name}.mlpackage", cache=limit)
        assert all(np.array_equal(found[key], array) for key, array in expected.items())
        assert on_disk(cache) <= limit.max_nbytes
        time.sleep(0.02)
    kept = {}
    for name in "abc":
        moved(server)
        milblob.load(f"{server.url}/{name}.mlpackage", cache=milblob.Cache(cache))
        kept[name] = moved(server) <= HEAD
    assert kept == {"a": True, "b": False, "c": True}


def test_model_larger_than_its_cache_is_read(server, package, cache):
    limit = milblob.Cache(cache, max_nbytes=100_000)
    expect_same(server, package, limit)
    assert on_disk(cache) <= limit.max_nbytes
    with milblob.open(server.model, cache=cache) as model:
        model["w0"].read()
        milblob.load(server.model, cache=milblob.Cache(cache, max_nbytes=0))  # removes what the other has open
        assert np.array_equal(model["w1"].read(), milblob.load(package)["w1"])


def test_foreign_files_in_the_directory_are_left(server, cache):
    cache.mkdir()
    (cache / "notes.data").write_bytes(b"mine" * 1000)
    milblob.load(server.model, cache=milblob.Cache(cache, max_nbytes=0))
    assert (cache / "notes.data").read_bytes() == b"mine" * 1000


def test_credentials_are_in_no_name_and_no_file(server, cache):
    secrets = ["us3r", "pa55word", "t0ken", "bear3r"]
    url = server.model.replace("http://", "http://us3r:pa55word@") + "?key=t0ken"
    milblob.load(url, cache=cache, storage_options={"headers": {"X-Key": "bear3r"}})
    secrets += [base64.b64encode(text.encode()).decode() for text in [*secrets, "us3r:pa55word"]]
    assert list(cache.glob("*.data"))
    for path in cache.iterdir():
        data = path.read_bytes()
        assert not any(text in path.name or text.encode() in data for text in secrets), path
        assert stat.S_IMODE(path.stat().st_mode) == 0o600 or os.name == "nt"
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700 or os.name == "nt"


def test_other_query_or_options_are_another_entry(server, package, cache):
    milblob.load(f"{server.model}?a=1", cache=cache)
    moved(server)
    for query, options in (("?a=2", {}), ("?a=1", {"headers": {"X-Own": "1"}})):
        milblob.load(server.model + query, cache=cache, storage_options=options)
        assert moved(server) > HEAD
    milblob.load(f"{server.model}?a=1", cache=cache, storage_options={"timeout": 20})
    assert moved(server) <= HEAD


def test_refused_request_gives_nothing_of_the_cache(server, cache):
    milblob.load(server.model, cache=cache)

    def fault(handler, *_):
        handler.answer(403, b"")
        return True

    server.fault = fault
    with pytest.raises(PermissionError):
        milblob.load(server.model, cache=cache)


@pytest.mark.skipif(
    os.name == "nt", reason="Windows has other permissions: a directory that others may write to is not tested"
)
def test_directory_that_others_may_write_to_is_refused(server, cache):
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(PermissionError, match="expected a directory of this user that others cannot write to"):
        milblob.load(server.model, cache=cache)


@pytest.mark.parametrize("given", [5, ["a"], b"\xff" and 3.0])
def test_cache_that_is_not_a_directory_is_refused(server, given):
    with pytest.raises(TypeError, match="cache: expected a directory's path"):
        milblob.load(server.model, cache=given)


@pytest.mark.parametrize("arguments", [("a", -1), ("a", 1.5), (5,), ("a\0b",)])
def test_settings_of_a_cache_are_checked(arguments):
    with pytest.raises((TypeError, ValueError)):
        milblob.Cache(*arguments)


# ------------------------------------------------------------------------------------------- commands and file systems


def test_commands_take_a_cache(server, cache, capsys):
    for _ in range(2):
        assert main(["hash", server.model, "--cache", str(cache), "--cache-size", "1G"]) == 0
        last = moved(server)
    assert last <= HEAD
    assert main(["ls", server.model, "--cache-size", "1G"]) == 2
    assert "expected --cache DIR" in capsys.readouterr().err


def test_bytes_of_file_systems_are_kept_by_their_version(package, cache, monkeypatch, tmp_path):
    from milblob.remote.filesystem import FileSystemFile

    monkeypatch.setattr(origin, "_MIN_AGE_S", -1.0)  # the file was written just now
    counts = []
    read = FileSystemFile.read
    monkeypatch.setattr(FileSystemFile, "read", lambda self, *span: counts.append(span) or read(self, *span))
    expected = milblob.load(package)
    url = f"file://{package}"
    for is_first in (True, False):
        counts.clear()
        found = milblob.load(url, cache=cache)
        assert all(np.array_equal(found[name], array) for name, array in expected.items())
        assert bool(counts) is is_first
    path = pathlib.Path(package, *FILE.split("/"))
    data = bytearray(path.read_bytes())
    data[128:132] = b"\0\0\x80\x3f"
    path.write_bytes(data)
    assert milblob.load(url, cache=cache)["w0"][0] == 1


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_bytes_of_an_archive_are_kept(server, package, cache, method):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", method) as archive:
        for name, content in files_below(package, "m.mlpackage/").items():
            archive.writestr(name, content)
    server.files["m.zip"] = data.getvalue()
    expected = milblob.load(package)
    for limit in (len(data.getvalue()) + 2 * HEAD, HEAD):
        server.log.clear()
        found = milblob.load(f"{server.url}/m.zip", cache=cache)
        assert all(np.array_equal(found[name], array) for name, array in expected.items())
        assert 0 < server.moved() <= limit


@pytest.mark.skipif(
    sys.platform == "win32", reason="no such limit on Windows: more files than a process can open are not tested"
)
def test_directory_of_more_files_than_a_process_can_open(package):
    system = fsspec.filesystem("memory")
    for name, data in files_below(package, "many.mlpackage/").items():
        system.pipe(f"/{name}", data)
    for number in range(400):
        system.pipe(f"/many.mlpackage/more/{number}", b"x")
    import resource

    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (300, before[1]))
    try:
        assert len(milblob.load("memory://many.mlpackage")) == COUNT
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
