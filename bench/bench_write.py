"""Writing weight files: 1 GiB in 200 tensors, 20,000 tensors of 1 KiB, and elements below 8 bits.

The limit is a bare write of the same bytes with the system's own call. Nobody but milblob waits for the disk, so its rows
with `sync=False` stand beside bare writes, and its default beside a bare write and fsync; milblob also makes a temporary
file and gives it its name. Before each round the file is removed and all that is waiting for the disk is written.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import Made, scaled

LARGE = makers.Tensors(200, (scaled(1024, 4), 2622))
SMALL = makers.Tensors(scaled(20_000, 20), (512,))
PACKED = scaled(64 << 20, 1000)
LARGE_JOB = f"write {LARGE.nbytes / 2**30:.2g} GiB in {LARGE.count} tensors"
SMALL_JOB = f"write {SMALL.count:,} tensors of 1 KiB"
BARE = "bare write"
ROUNDS = 5  # gigabytes: more would only fill the page cache


def header(count: int) -> bytes:
    """The first 64 bytes of a file."""
    return np.array([count, 2] + [0] * 14, "<u4").tobytes()


def metadata(nbytes: int, end: int) -> bytes:
    """What stands before the data of a float16 record: zeros up to a multiple of 64, and 64 bytes."""
    offset = -(-end // 64) * 64
    return bytes(offset - end) + np.array([0x1DEADBEEF, nbytes, offset + 64, 0, 0, 0, 0, 0], "<u8").tobytes()


def pieces(tensors: makers.Tensors) -> list[Any]:
    """The bytes of the whole file: header, then metadata and data of each record."""
    found: list[Any] = [header(tensors.count)]
    end = 64
    for _, array in tensors:
        head = metadata(array.nbytes, end)
        found += [head, array.reshape(-1).view(np.uint8).data]
        end += len(head) + array.nbytes
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


def is_like(expected: Path) -> Callable[[Path], None]:
    """Return a check that a file has the bytes of another, which coremltools wrote."""

    def check(path: Path) -> None:
        assert np.array_equal(np.memmap(path, np.uint8, "r"), np.memmap(expected, np.uint8, "r"))

    return check


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

        options.setdefault("rounds", ROUNDS)
        # What the last round has left for the disk must not slow this one down.
        row(job, name, run, check=check, output=path, setup=os.sync, **options)

    return measure_write


# ------------------------------------------------------------------------------------------------- 1 GiB in 200 tensors


@pytest.fixture(scope="module")
def large(made: Made) -> Path:
    """The file that all must write."""
    return made("write.bin", lambda path: makers.write_blob(path, LARGE))


@pytest.mark.parametrize("sync", [False, True])
def bench_large_bare(write_row: Any, large: Path, sync: bool) -> None:
    parts = pieces(LARGE)
    job = LARGE_JOB + " and sync" * sync
    write_row(job, BARE, lambda path: write_bare(path, parts, sync), is_like(large), role="limit", nbytes=LARGE.nbytes)


@pytest.mark.parametrize("sync", [False, True])
def bench_large(write_row: Any, large: Path, sync: bool) -> None:
    arrays = [array for _, array in LARGE]

    def write(path: Path) -> None:
        with milblob.BlobWriter(path, sync=sync) as blobs:
            for array in arrays:
                blobs.write(array)

    job, name = LARGE_JOB + " and sync" * sync, "milblob: write" + "(sync=False)" * (not sync)
    write_row(job, name, write, is_like(large), role="milblob", targets={BARE: 1.15}, nbytes=LARGE.nbytes)


def bench_large_coremltools(write_row: Any, large: Path) -> None:
    name = "coremltools: _BlobStorageWriter"
    write_row(LARGE_JOB, name, lambda path: makers.write_blob(path, LARGE), is_like(large), nbytes=LARGE.nbytes)


def bench_large_safetensors(write_row: Any) -> None:
    from safetensors.numpy import load_file

    def check(path: Path) -> None:
        found = load_file(path)
        assert all(np.array_equal(found[name], array) for name, array in LARGE)

    name = "safetensors: save_file"
    write_row(LARGE_JOB, name, lambda path: makers.write_safetensors(path, LARGE), check, nbytes=LARGE.nbytes)


# ------------------------------------------------------------------------------------------- 20,000 tensors of 1 KiB


@pytest.fixture(scope="module")
def small(made: Made) -> Path:
    """The file that all must write."""
    return made("write-small.bin", lambda path: makers.write_blob(path, SMALL))


SMALL_WRITERS: dict[str, Callable[[Any, list[Any]], Any]] = {
    "write_many": lambda blobs, arrays: blobs.write_many(arrays),
    "write": lambda blobs, arrays: [blobs.write(array) for array in arrays],
}


@pytest.mark.parametrize("sync", [False, True])
def bench_small_bare(write_row: Any, small: Path, sync: bool) -> None:
    parts = [b"".join(pieces(SMALL))]
    options = {"role": "limit", "rounds": 30, "note": "one call, one buffer that was there before"}
    write_row(
        SMALL_JOB + " and sync" * sync, BARE, lambda path: write_bare(path, parts, sync), is_like(small), **options
    )


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("way", SMALL_WRITERS)
def bench_small(write_row: Any, small: Path, sync: bool, way: str) -> None:
    arrays = [array for _, array in SMALL]

    def write(path: Path) -> None:
        with milblob.BlobWriter(path, sync=sync) as blobs:
            SMALL_WRITERS[way](blobs, arrays)

    suffix = "(sync=False)" * (not sync)
    options: dict[str, Any] = {"targets": {BARE: 5}}
    if way == "write":
        options = {"targets": {f"milblob: write_many{suffix}": 2}, "note": "one call for each"}
    name = f"milblob: {way}{suffix}"
    write_row(SMALL_JOB + " and sync" * sync, name, write, is_like(small), role="milblob", rounds=30, **options)


def bench_small_coremltools(write_row: Any, small: Path) -> None:
    name = "coremltools: _BlobStorageWriter"
    write_row(SMALL_JOB, name, lambda path: makers.write_blob(path, SMALL), is_like(small))


# ---------------------------------------------------------------------------------------------------- packed elements

ELEMENTS: dict[str, tuple[np.dtype[Any], int, int]] = {
    "uint4": (np.dtype(np.uint8), 0, 16), "int4": (np.dtype(np.int8), -8, 8), "uint3": (np.dtype(np.uint8), 0, 8),
    "uint1": (np.dtype(np.uint8), 0, 2),
}  # fmt: skip


def packed_job(dtype: str) -> str:
    """Name of the job."""
    return f"write {PACKED / 2**20:.3g}M elements of {dtype}"


@pytest.fixture(scope="module", params=list(ELEMENTS))
def elements(request: Any, made: Made) -> tuple[str, np.ndarray[Any, Any], Path]:
    """dtype, elements, and the file that coremltools writes of them."""
    from coremltools.libmilstoragepython import _BlobStorageWriter

    kind, low, high = ELEMENTS[request.param]
    array = np.random.default_rng(6).integers(low, high, PACKED, kind)

    def write(path: Path) -> None:
        getattr(_BlobStorageWriter(str(path)), f"write_{request.param}_data")(array)

    return request.param, array, made(f"write-{request.param}.bin", write)


def bench_packed(write_row: Any, elements: Any) -> None:
    dtype, array, expected = elements

    def write(path: Path) -> None:
        with milblob.BlobWriter(path, sync=False) as blobs:
            blobs.write(array, dtype)

    write_row(
        packed_job(dtype), "milblob: write(sync=False)", write, is_like(expected), role="milblob", nbytes=array.nbytes
    )


def bench_packed_bare(write_row: Any, elements: Any) -> None:
    dtype, _, expected = elements
    data = expected.read_bytes()
    note = "of the packed bytes"
    write_row(
        packed_job(dtype),
        BARE,
        lambda path: write_bare(path, [data], False),
        is_like(expected),
        role="limit",
        note=note,
    )


def bench_packed_coremltools(write_row: Any, elements: Any) -> None:
    from coremltools.libmilstoragepython import _BlobStorageWriter

    dtype, array, expected = elements

    def write(path: Path) -> None:
        getattr(_BlobStorageWriter(str(path)), f"write_{dtype}_data")(array)

    name = "coremltools: _BlobStorageWriter"
    write_row(packed_job(dtype), name, write, is_like(expected), nbytes=array.nbytes, rounds=3)
