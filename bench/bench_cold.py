"""Listing when nothing is in the page cache: a weight file of 640 MB by its records, and the package around it.

Before each round the pages of the files are dropped. Where they cannot be (a file system that ignores it, pages that
another process has mapped) the rows say how much was left, and their times mean nothing.
"""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import measure
import pytest
from cwalk import CWalk

import milblob
from conftest import SCALE

SIZE = f" (scale {SCALE:g})" if SCALE != 1 else " of 640 MB"
RECORDS, PACKAGE = f"cold: list the records{SIZE}", f"cold: list the package{SIZE}"
DEFAULT = "C walk, default read-ahead"
FOLDER = Path("Data", "com.apple.CoreML")
ROUNDS = 15


class Cold:
    """Drops a path's pages before each round, and adds up what the rounds then read.

    Args:
        path: a file or a directory.
        cwalk: tells what is in the page cache.
    """

    def __init__(self, path: Path, cwalk: CWalk) -> None:
        self._path, self._cwalk = path, cwalk
        self._read: list[int] = []
        self._cached: list[int] = []
        self._left = 0
        self._before = 0

    def drop(self) -> None:
        """Do it, and note what the kernel kept. What is mapped stays: nothing of the last round may be alive."""
        gc.collect()
        measure.drop_cache(self._path)
        if self._resident():
            measure.drop_all_caches()
        self._left = max(self._left, self._resident())
        self._before = measure.disk_nbytes()

    def measured(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Return `run` with its reads counted. Reading the counter takes some 20 microseconds."""

        def counted() -> Any:
            result = run()
            self._read.append(measure.disk_nbytes() - self._before)
            return result

        return counted

    def _resident(self) -> int:
        return sum(max(0, self._cwalk.resident(str(file))) for file in measure.files_of(self._path))

    def facts(self) -> dict[str, int]:
        """Bytes read from disk in one round, bytes cached after the last round, bytes that could not be dropped."""
        read = sorted(self._read)[len(self._read) // 2]
        return {"disk_nbytes": read, "cached_nbytes": self._resident(), "not_dropped_nbytes": self._left}


@pytest.fixture
def cold_row(row: Any, benchmark: Any, cwalk: CWalk) -> Callable[..., None]:
    """Return the function that measures one row with cold files."""

    def measure_cold(job: str, name: str, path: Path, run: Callable[[], Any], **options: Any) -> None:
        cold = Cold(path, cwalk)
        row(job, name, cold.measured(run), setup=cold.drop, rounds=ROUNDS, **options)
        facts = cold.facts()
        note = f"{facts['disk_nbytes'] / 2**20:.1f} MiB read from disk"
        if facts["not_dropped_nbytes"]:
            note = f"INVALID, the cache kept {facts['not_dropped_nbytes']} bytes; {note}"
        benchmark.extra_info.update(facts, note=note)

    return measure_cold


# ------------------------------------------------------------------------------------------- the records of one file


@pytest.fixture(scope="module")
def weights(transformer: Path) -> Path:
    """The weight file."""
    return transformer / FOLDER / "weights" / "weight.bin"


@pytest.fixture(scope="module")
def expected(weights: Path) -> tuple[int, int]:
    """Records and the sum of their sizes, by a walk in Python."""
    data = memoryview(weights.read_bytes())
    count, offset, total = int.from_bytes(data[:4], "little"), 64, 0
    for _ in range(count):
        nbytes, data_offset = (int.from_bytes(data[offset + at : offset + at + 8], "little") for at in (8, 16))
        total += nbytes
        offset = (data_offset + nbytes + 63) // 64 * 64
    return count, total


@pytest.mark.parametrize("random", [False, True])
def bench_c_walk(cold_row: Any, weights: Path, expected: Any, cwalk: CWalk, random: bool) -> None:
    def check(result: Any) -> None:
        assert result == expected

    name = "C walk, random advice" if random else DEFAULT
    cold_row(RECORDS, name, weights, lambda: cwalk.records(str(weights), random), check=check, role="limit")


def bench_index(cold_row: Any, weights: Path, expected: Any) -> None:
    def run() -> Any:
        with milblob.BlobReader(weights) as blobs:
            return blobs.index

    def check(index: Any) -> None:
        assert (len(index), int(index["nbytes"].sum())) == expected

    name = "milblob: BlobReader(path).index"
    cold_row(RECORDS, name, weights, run, check=check, role="milblob", targets={DEFAULT: 1 / 10})


# ------------------------------------------------------------------------------------------------- the whole package


def bench_package_c_walk(cold_row: Any, transformer: Path, expected: Any, cwalk: CWalk) -> None:
    folder = transformer / FOLDER

    def run() -> Any:
        return cwalk.program(str(folder / "model.mlmodel"), str(folder / "weights" / "weight.bin"))

    def check(result: Any) -> None:
        assert (result[0], result[2]) == expected

    cold_row(PACKAGE, DEFAULT, transformer, run, check=check, role="limit")


def bench_package_open(cold_row: Any, transformer: Path, expected: Any) -> None:
    def run() -> Any:
        with milblob.open(transformer) as model:
            return [(name, t.dtype, t.shape, t.nbytes) for name, t in model.items()]

    def check(rows: Any) -> None:
        assert (len(rows), sum(nbytes for _, _, _, nbytes in rows)) == expected

    cold_row(PACKAGE, "milblob: open, list", transformer, run, check=check, role="milblob", targets={DEFAULT: 1 / 10})


def bench_package_load(cold_row: Any, transformer: Path, expected: Any) -> None:
    def run() -> tuple[int, int]:
        arrays = milblob.load(transformer)
        return len(arrays), sum(array.nbytes for array in arrays.values())

    def check(result: Any) -> None:
        assert result == expected

    cold_row(PACKAGE, "milblob: load", transformer, run, check=check, role="milblob")


def bench_package_load_spec(cold_row: Any, transformer: Path, expected: Any) -> None:
    import coremltools as ct

    def check(spec: Any) -> None:
        assert spec.WhichOneof("Type") == "mlProgram"

    cold_row(PACKAGE, "coremltools: load_spec", transformer, lambda: ct.utils.load_spec(str(transformer)), check=check)
