"""TVM's `.params` files and Model Library Format archives: reading, writing, opening, and what memory they take.

TVM 0.27 reads in a process of its own, which is asked through a pipe and has the file read once before; it copies every
tensor. It is there if `make tvm-oracle` has run. The limits are views over `np.memmap` by a script that knows every offset,
and a bare write of the same bytes.
"""

import json
import os
import struct
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

from conftest import Made, scaled
from milblob import tvm

COUNT, SHAPE = 200, (scaled(1024, 4), 2622)
TENSORS = makers.Tensors(COUNT, SHAPE)
NBYTES = int(np.prod(SHAPE)) * 2
SIZE = f"{TENSORS.nbytes / 2**30:.2g} GiB in {COUNT} tensors"
READ_JOB, WRITE_JOB = f"read .params of {SIZE}", f"write .params of {SIZE}"
MEMBERS = scaled(10_000, 100)
OPEN_JOB = f"open an archive of {MEMBERS:,} members"
LARGE_NBYTES = scaled(4 << 30, 1 << 20)
LARGE_JOB = f"list an archive of {LARGE_NBYTES / 2**30:.2g} GiB and read one tensor"
EDIT_JOB = f"other values for one tensor of an archive of {TENSORS.nbytes / 2**30:.2g} GiB, synced"
VIEWS, BARE, OWN, COPY = "np.memmap views", "bare write", "tarfile: getmembers", "copy of the file"
TVM = "tvm 0.27: load_param_dict_from_file"
RESIDENT = 50 << 20
CHILD = """
import sys, time
from tvm import runtime
for line in sys.stdin:
    found = runtime.load_param_dict_from_file(line.strip())
    print(len(found), found["weight_00007"].shape[0], flush=True)
    del found
"""


@pytest.fixture(scope="module")
def params(made: Made) -> Path:
    """1 GiB of .params."""
    return made("tvm.params", lambda path: tvm.write_params(dict(TENSORS), path))


# ------------------------------------------------------------------------------------------------------------- reading


def all_views(path: Path) -> Any:
    """One np.memmap and a slice of it for each tensor: what a user would write who knows every offset."""
    start = 24 + COUNT * (8 + len(TENSORS.name(0))) + 8
    data = np.memmap(path, np.uint8, "r")
    found = {}
    for number in range(COUNT):
        at = start + number * (32 + 24 + NBYTES) + 32 + 24
        found[TENSORS.name(number)] = data[at : at + NBYTES].view(np.float16).reshape(SHAPE)
    return found


def is_all(found: Any) -> None:
    """The arrays, by name."""
    assert list(found) == [TENSORS.name(number) for number in range(COUNT)]
    for number in (0, 7, COUNT - 1):
        assert np.array_equal(found[TENSORS.name(number)], TENSORS[number])


def bench_views(row: Any, params: Path) -> None:
    row(READ_JOB, VIEWS, lambda: all_views(params), check=is_all, role="limit", nbytes=TENSORS.nbytes)


def bench_read(row: Any, params: Path) -> None:
    targets = {VIEWS: 3, TVM: 1 / 50}
    row(READ_JOB, "milblob: dict(read_params(path))", lambda: dict(tvm.read_params(params)), check=is_all, role="milblob", targets=targets, nbytes=TENSORS.nbytes)  # fmt: skip


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[[Path], str]]:
    """A function that has TVM load a file."""
    python = Path(os.environ.get("MILBLOB_TVM_PYTHON", Path(sys.prefix) / "tvm" / "bin" / "python"))
    if not python.exists():
        pytest.skip("apache-tvm is not installed (make tvm-oracle)")
    child = subprocess.Popen([python, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)  # fmt: skip

    def one(path: Path) -> str:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(f"{path}\n")
        child.stdin.flush()
        return child.stdout.readline()

    yield one
    assert child.stdin is not None
    child.stdin.close()
    child.wait(60)


def bench_tvm(row: Any, params: Path, ask: Callable[[Path], str]) -> None:
    def check(answer: str) -> None:
        assert answer.split() == [str(COUNT), str(SHAPE[0])]

    ask(params)
    row(READ_JOB, TVM, lambda: ask(params), check=check, memory=False, nbytes=TENSORS.nbytes)


# ------------------------------------------------------------------------------------------------------------- writing


def pieces() -> list[Any]:
    """The bytes of the whole file: names, then record and elements of each tensor."""
    names = b"".join(struct.pack("<Q", len(name)) + name.encode() for name, _ in TENSORS)
    found: list[Any] = [struct.pack("<QQQ", 0xF7E58D4F05049CB7, 0, COUNT) + names + struct.pack("<Q", COUNT)]
    for _, array in TENSORS:
        head = struct.pack("<QQiiiBBH", 0xDD5E40F096B4A13F, 0, 1, 0, 2, 2, 16, 1) + struct.pack("<qqq", *SHAPE, NBYTES)
        found += [head, array.reshape(-1).view(np.uint8).data]
    return found


def write_bare(path: Path, parts: list[Any], sync: bool) -> None:
    """Write buffers, two to a call, in the order of the file."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, parts[0])
    for start in range(1, len(parts), 2):
        os.writev(fd, parts[start : start + 2])
    if sync:
        os.fsync(fd)
    os.close(fd)


@pytest.fixture
def write_row(row: Any, tmp_path: Path) -> Callable[..., None]:
    """Return the function that measures one row: `write` is given a path where nothing is."""
    path = tmp_path / "out"

    def measure_write(
        job: str, name: str, write: Callable[[Path], Any], check: Callable[[Path], None], **options: Any
    ) -> None:
        def run() -> Path:
            write(path)
            return path

        row(job, name, run, check=check, output=path, setup=os.sync, rounds=5, **options)

    return measure_write


@pytest.mark.parametrize("sync", [False, True])
def bench_write_bare(write_row: Any, params: Path, sync: bool) -> None:
    parts, job = pieces(), WRITE_JOB + " and sync" * sync
    write_row(
        job, BARE, lambda path: write_bare(path, parts, sync), is_like(params), role="limit", nbytes=TENSORS.nbytes
    )


@pytest.mark.parametrize("sync", [False, True])
def bench_write(write_row: Any, params: Path, sync: bool) -> None:
    arrays = dict(TENSORS)

    def write(path: Path) -> None:
        tvm.write_params(arrays, path, sync=sync)

    job, name = WRITE_JOB + " and sync" * sync, "milblob: write_params" + "(sync=False)" * (not sync)
    write_row(job, name, write, is_like(params), role="milblob", targets={BARE: 1.2}, nbytes=TENSORS.nbytes)


def is_like(expected: Path) -> Callable[[Path], None]:
    """Return a check that a file has the bytes of another."""

    def check(path: Path) -> None:
        assert np.array_equal(np.memmap(path, np.uint8, "r"), np.memmap(expected, np.uint8, "r"))

    return check


# ------------------------------------------------------------------------------------------------------------ archives


def metadata() -> bytes:
    """The least that an archive has to say."""
    module = {"model_name": "default", "export_datetime": "2021-11-25 16:50:12Z", "executors": ["graph"], "target": ["c"], "style": "full-model", "memory": {"functions": {"main": [], "operator_functions": []}}}  # fmt: skip
    return json.dumps({"version": 7, "modules": {"default": module}}).encode()


def write_tar(path: Path, files: dict[str, Any]) -> None:
    """Write a tar as TVM does, with a PAX header for each member."""
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as tar:
        for name, source in files.items():
            info = tarfile.TarInfo(f"./{name}")
            info.mtime, info.size = 1637859012.5, len(source) if isinstance(source, bytes) else source.stat().st_size
            if isinstance(source, bytes):
                import io

                tar.addfile(info, io.BytesIO(source))
            else:
                with open(source, "rb") as file:
                    tar.addfile(info, file)


@pytest.fixture(scope="module")
def many(made: Made) -> Path:
    """An archive of many small files."""
    files: dict[str, Any] = {"metadata.json": metadata()}
    files |= {f"runtime/src/part_{number % 50}/file_{number:05}.c": b"x" * 100 for number in range(MEMBERS - 1)}
    return made("many.tar", lambda path: write_tar(path, files))


def bench_open(row: Any, many: Path) -> None:
    def run() -> int:
        with tvm.open(many) as library:
            return len(library.archive.members)

    def check(count: int) -> None:
        assert count == MEMBERS

    row(OPEN_JOB, "milblob: tvm.open", run, check=check, role="milblob", targets={OWN: 1})


def bench_tarfile(row: Any, many: Path) -> None:
    def run() -> int:
        with tarfile.open(many) as tar:
            return len(tar.getmembers())

    def check(count: int) -> None:
        assert count == MEMBERS

    row(OPEN_JOB, OWN, run, check=check)


@pytest.fixture(scope="module")
def archive(made: Made, params: Path) -> Path:
    """An archive of 1 GiB."""
    files: dict[str, Any] = {"metadata.json": metadata(), "parameters/default.params": params}
    return made("large.tar", lambda path: write_tar(path, files))


@pytest.fixture(scope="module")
def sparse(made: Made) -> Path:
    """An archive of 4 GiB of zeros in 256 tensors, with holes on the disk."""

    def write(path: Path) -> None:
        count, each = 256, LARGE_NBYTES // 256
        names = b"".join(struct.pack("<Q", 4) + b"p%03d" % number for number in range(count))
        head = struct.pack("<QQQ", 0xF7E58D4F05049CB7, 0, count) + names + struct.pack("<Q", count)
        record = struct.pack("<QQiiiBBHqq", 0xDD5E40F096B4A13F, 0, 1, 0, 1, 1, 8, 1, each, each)
        write_tar(path, {"metadata.json": metadata()})
        info = tarfile.TarInfo("./parameters/default.params")
        info.size = len(head) + count * (len(record) + each)
        with open(path, "r+b") as file, tarfile.open(path) as tar:
            at = tar.getmembers()[-1].offset_data + 512 * -(-len(metadata()) // 512)
            file.seek(at)
            file.write(info.tobuf(tarfile.PAX_FORMAT))
            start = file.tell()
            file.write(head)
            for number in range(count):
                file.seek(start + len(head) + number * (len(record) + each))
                file.write(record)
            file.truncate(start + info.size + -info.size % 512 + 1024)

    return made("sparse.tar", write)


def bench_large(row: Any, sparse: Path) -> None:
    def run() -> Any:
        with tvm.open(sparse) as library:
            found = library.modules["default"].params
            rows = [(name, tensor.dtype_text, tensor.shape) for name, tensor in found.items()]
            return rows, int(found["p007"].read()[:: 1 << 16].max())

    def check(result: Any) -> None:
        rows, most = result
        assert [name for name, _, _ in rows] == [f"p{number:03}" for number in range(256)] and most == 0

    row(LARGE_JOB, "milblob: Library.params", run, check=check, role="milblob", limit_nbytes=RESIDENT)


def bench_edit(write_row: Any, archive: Path) -> None:
    given = {TENSORS.name(7): TENSORS[8].copy()}

    def write(path: Path) -> None:
        with tvm.open(archive) as library:
            library.with_params(given, path)

    def check(path: Path) -> None:
        with tvm.open(path) as library:
            found = library.modules["default"].params
            assert np.array_equal(found[TENSORS.name(7)].read(), TENSORS[8])
            assert np.array_equal(found[TENSORS.name(9)].read(), TENSORS[9])

    write_row(EDIT_JOB, "milblob: Library.with_params", write, check, role="milblob", nbytes=TENSORS.nbytes, limit_nbytes=RESIDENT)  # fmt: skip


def bench_copy(write_row: Any, archive: Path) -> None:
    def write(path: Path) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with open(archive, "rb") as source:
            done = 0
            while some := os.copy_file_range(source.fileno(), fd, 1 << 30, done, done):
                done += some
        os.fsync(fd)
        os.close(fd)

    write_row(EDIT_JOB, COPY, write, is_like(archive), role="aside", nbytes=TENSORS.nbytes)
