"""Repacking: 1 GiB to pages, equal weights of two functions found and stored once, 20,000 small records laid out again.

Every row that writes waits until its bytes are on the disk.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import Made, scaled

WEIGHTS = Path("Data", "com.apple.CoreML", "weights", "weight.bin")
COUNT, SHAPE = 200, (scaled(1024, 4), 2622)
TENSORS = makers.Tensors(COUNT, SHAPE)
ALIGN_JOB = f"repack {TENSORS.nbytes / 2**30:.2g} GiB in {COUNT} tensors to pages of 4 KiB"
HALF = makers.Tensors(COUNT // 2, SHAPE)
DEDUPE_JOB = f"find equal weights in {2 * HALF.nbytes / 2**30:.2g} GiB of two functions"
STORE_JOB = f"store equal weights of {2 * HALF.nbytes / 2**30:.2g} GiB of two functions once"
SMALL = makers.Tensors(scaled(20_000, 10), (512,))
SMALL_JOB = f"repack {SMALL.count:,} tensors of 1 KiB, canonical"
COPY = "copy_file_range of the weight file"
READ = "NumPy: one read of the mapped file"
ONCE = "one read, and copy_file_range of half the file"


class Twice(makers.Tensors):
    """The same tensors again, as another function has them."""

    def __init__(self, tensors: makers.Tensors) -> None:
        super().__init__(tensors.count, tensors.shape)
        self.half = tensors.count
        self.count *= 2

    def __getitem__(self, number: int) -> Any:
        return super().__getitem__(number % self.half)


def write_two_functions(package: Path) -> None:
    """A package whose second function has weights of its own that equal those of the first."""
    from coremltools import proto

    makers.write_package(package, Twice(HALF))
    path = package / "Data" / makers.MODEL_NAME
    model = proto.Model_pb2.Model.FromString(path.read_bytes())
    first = model.mlProgram.functions["main"]
    second = model.mlProgram.functions["other"]
    second.CopyFrom(first)
    del first.block_specializations["CoreML6"].operations[HALF.count :]
    del second.block_specializations["CoreML6"].operations[: HALF.count]
    for name in ("main", "other"):
        model.description.functions.add(name=name)
    model.description.defaultFunctionName = "main"
    path.write_bytes(model.SerializeToString())


@pytest.fixture
def target(tmp_path: Path) -> Any:
    """(path of the result, a function that removes it before each round)."""
    path = tmp_path / "out.mlpackage"
    yield path, lambda: shutil.rmtree(path, ignore_errors=True)
    shutil.rmtree(tmp_path)


def copy_weights(source: Path, path: Path, share: float = 1.0) -> None:
    """What the kernel needs for the same bytes, or a share of them."""
    path.mkdir()
    with (source / WEIGHTS).open("rb") as old, (path / "weight.bin").open("wb") as new:
        nbytes, done = int(os.stat(old.fileno()).st_size * share), 0
        while done < nbytes:
            done += os.copy_file_range(old.fileno(), new.fileno(), nbytes - done)
        os.fsync(new.fileno())


def read_once(source: Path) -> int:
    """Every byte, a cache's worth at a time; mapped again each time, as milblob does."""
    words = np.memmap(source / WEIGHTS, np.uint8, "r")[: os.stat(source / WEIGHTS).st_size // 8 * 8].view(np.uint64)
    return int(sum(int(np.bitwise_xor.reduce(words[i : i + (1 << 15)])) for i in range(0, len(words), 1 << 15)))


def check_values(path: Path, tensors: makers.Tensors, prefixes: tuple[str, ...] = ("",)) -> None:
    """Every value of every tensor."""
    with milblob.open(path) as opened:
        assert len(opened) == tensors.count * len(prefixes)
        for prefix in prefixes:
            for name, expected in tensors:
                number = int(name.rpartition("_")[2]) + (tensors.count if prefix == "other/" else 0)
                assert np.array_equal(opened[prefix + tensors.name(number)].read(), expected)


# ------------------------------------------------------------------------------------------------------ 1 GiB to pages


@pytest.fixture
def package(made: Made) -> Path:
    return made("load.mlpackage", lambda path: makers.write_package(path, TENSORS))


def bench_align_limit(row: Any, package: Path, target: Any) -> None:
    path, remove = target

    def check(_: Any) -> None:
        assert (path / "weight.bin").read_bytes() == (package / WEIGHTS).read_bytes()

    run = lambda: copy_weights(package, path)  # noqa: E731
    row(ALIGN_JOB, COPY, run, check=check, role="limit", setup=remove, nbytes=TENSORS.nbytes)


def bench_align_cp(row: Any, package: Path, target: Any) -> None:
    """What a user would do who only wants a copy."""
    path, remove = target

    def run() -> None:
        shutil.copytree(package, path)
        for file in path.rglob("*.bin"):
            with file.open("rb") as opened:
                os.fsync(opened.fileno())

    def check(_: Any) -> None:
        assert (path / WEIGHTS).read_bytes() == (package / WEIGHTS).read_bytes()

    row(ALIGN_JOB, "shutil.copytree, fsync", run, check=check, role="aside", setup=remove, nbytes=TENSORS.nbytes)


def bench_align(row: Any, package: Path, target: Any) -> None:
    path, remove = target

    def check(_: Any) -> None:
        check_values(path, TENSORS)
        with milblob.BlobReader(path / WEIGHTS) as blobs:
            assert all(record.data_offset % 4096 == 0 for record in blobs)

    run = lambda: milblob.repack(package, path, align=4096)  # noqa: E731
    targets = {COPY: 1.5}
    row(ALIGN_JOB, "milblob: repack(align=4096)", run, check=check, role="milblob", targets=targets, setup=remove,
        nbytes=TENSORS.nbytes)  # fmt: skip


# ------------------------------------------------------------------------------------------------------- equal weights


@pytest.fixture
def functions(made: Made) -> Path:
    return made("two_functions.mlpackage", write_two_functions)


def bench_dedupe_read(row: Any, functions: Path) -> None:
    words = np.fromfile(functions / WEIGHTS, np.uint8)
    words = words[: len(words) // 8 * 8].view(np.uint64)
    expected = sum(int(np.bitwise_xor.reduce(words[i : i + (1 << 15)])) for i in range(0, len(words), 1 << 15))
    del words

    def check(result: Any) -> None:
        assert result == expected

    row(DEDUPE_JOB, READ, lambda: read_once(functions), check=check, role="limit", nbytes=2 * HALF.nbytes)


def bench_dedupe_hash(row: Any, functions: Path) -> None:
    """What is done where nothing better is at hand: a cryptographic hash of each record."""
    import hashlib

    def run() -> list[bytes]:
        with milblob.BlobReader(functions / WEIGHTS) as blobs:
            return [hashlib.sha256(blobs.read_packed(record.offset)).digest() for record in blobs]

    def check(result: Any) -> None:
        assert result[: HALF.count] == result[HALF.count :] and len(set(result)) == HALF.count

    row(DEDUPE_JOB, "hashlib: sha256 of every record", run, check=check, nbytes=2 * HALF.nbytes)


def bench_dedupe_plan(row: Any, functions: Path, target: Any) -> None:
    """The whole of a dry run: open, plan, compare every pair byte by byte."""

    def check(report: Any) -> None:
        assert report.counts() == {"deduplicate": HALF.count}
        assert report.nbytes_after * 2 == report.nbytes == 2 * HALF.nbytes

    run = lambda: milblob.repack(functions, target[0], dedupe=True, dry_run=True)  # noqa: E731
    row(DEDUPE_JOB, "milblob: repack(dedupe=True, dry_run=True)", run, check=check, role="milblob", targets={READ: 1.5},
        nbytes=2 * HALF.nbytes)  # fmt: skip


def bench_store_limit(row: Any, functions: Path, target: Any) -> None:
    path, remove = target

    def run() -> None:
        read_once(functions)
        copy_weights(functions, path, 0.5)

    def check(_: Any) -> None:
        assert (path / "weight.bin").stat().st_size == (functions / WEIGHTS).stat().st_size // 2

    row(STORE_JOB, ONCE, run, check=check, role="limit", setup=remove, nbytes=2 * HALF.nbytes)


def bench_store(row: Any, functions: Path, target: Any) -> None:
    path, remove = target

    def check(_: Any) -> None:
        check_values(path, HALF, ("main/", "other/"))
        assert (path / WEIGHTS).stat().st_size < 0.51 * (functions / WEIGHTS).stat().st_size

    run = lambda: milblob.repack(functions, path, dedupe=True)  # noqa: E731
    row(STORE_JOB, "milblob: repack(dedupe=True)", run, check=check, role="milblob", targets={ONCE: 1.5}, setup=remove,
        nbytes=2 * HALF.nbytes)  # fmt: skip


# -------------------------------------------------------------------------------------------------------- small records


@pytest.fixture
def small(made: Made) -> Path:
    return made("small.mlpackage", lambda path: makers.write_package(path, SMALL))


ROWS: dict[str, tuple[Callable[[Path, Path], Any], dict[str, Any]]] = {
    COPY: (copy_weights, {"role": "limit"}),
    "milblob: repack(canonical=True, dedupe=True)": (
        lambda source, path: milblob.repack(source, path, canonical=True, dedupe=True),
        {"role": "milblob"},
    ),
    "milblob: repack": (
        lambda source, path: milblob.repack(source, path),
        {"role": "milblob", "note": "a copy: nothing is asked for"},
    ),
}


@pytest.mark.parametrize("name", ROWS)
def bench_small(row: Any, small: Path, target: Any, name: str) -> None:
    path, remove = target
    run, options = ROWS[name]

    def check(_: Any) -> None:
        if name == COPY:
            assert (path / "weight.bin").read_bytes() == (small / WEIGHTS).read_bytes()
        else:
            check_values(path, SMALL)

    row(SMALL_JOB, name, lambda: run(small, path), check=check, setup=remove, nbytes=SMALL.nbytes, **options)
