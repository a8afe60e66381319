"""When nothing is in the page cache: listing a weight file of 640 MB and the package around it, and reading every value.

Before each round the pages of the files are dropped. Where they cannot be (a file system that ignores it, pages that
another process has mapped) the rows say how much was left, and their times mean nothing.
"""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import measure
import numpy as np
import pytest
from cwalk import CWalk

import milblob
from conftest import SCALE, Made, needs, scaled

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

    def facts(self) -> dict[str, Any]:
        """Bytes read from disk in one round, bytes cached after the last round, bytes that could not be dropped."""
        read = sorted(self._read)[len(self._read) // 2]
        note = f"{read / 2**20:.1f} MiB read from disk"
        if self._left:
            note = f"INVALID, the cache kept {self._left} bytes; {note}"
        return {"note": note, "disk_nbytes": read, "cached_nbytes": self._resident(), "not_dropped_nbytes": self._left}


@pytest.fixture
def cold_row(row: Any, cwalk: CWalk) -> Callable[..., None]:
    """Return the function that measures one row with cold files."""

    def measure_cold(job: str, name: str, path: Path, run: Callable[[], Any], **options: Any) -> None:
        cold = Cold(path, cwalk)
        options.setdefault("rounds", ROUNDS)
        row(job, name, cold.measured(run), setup=cold.drop, facts=cold.facts, memory=False, **options)

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

    cold_row(
        PACKAGE,
        "coremltools: load_spec",
        transformer,
        lambda: ct.utils.load_spec(str(transformer)),
        check=check,
        role="aside",
    )


# -------------------------------------------------------------------------------------------------- every value, read


VALUES = makers.Tensors(50, (scaled(1024, 4), 2622))
READ = f"cold: load {VALUES.nbytes / 2**20:.0f} MiB in {VALUES.count} tensors and read every value"
BARE_READ = "bare read into one buffer"


def sums(arrays: Any) -> list[int]:
    """One pass over all values, which brings in what is only mapped."""
    return [int(array.reshape(-1).view(np.uint16).sum(dtype=np.uint64)) for array in arrays]


def read_milblob(path: Path) -> list[int]:
    """Views of the mapped file."""
    return sums(milblob.load(path).values())


def read_safetensors(path: Path) -> list[int]:
    """One copy."""
    from safetensors.numpy import load_file

    arrays = load_file(path)
    return sums(arrays[name] for name in sorted(arrays))


def read_gguf(path: Path) -> list[int]:
    """Views of the mapped file."""
    import gguf

    return sums(tensor.data for tensor in sorted(gguf.GGUFReader(path).tensors, key=lambda tensor: tensor.name))


def read_torch(path: Path) -> list[int]:
    """Views of the mapped file."""
    import torch

    tensors = torch.load(path, mmap=True, weights_only=True)
    return sums(tensors[name].numpy() for name in sorted(tensors))


def read_h5py(path: Path) -> list[int]:
    """One read of each dataset."""
    import h5py

    with h5py.File(path) as file:
        return sums(file[name][...] for name in sorted(file))


def read_coremltools(path: Path) -> list[int]:
    """coremltools' own reader, at offsets that are known."""
    from coremltools.libmilstoragepython import _BlobStorageReader

    reader, step = _BlobStorageReader(str(path)), 64 + -(-VALUES[0].nbytes // 64) * 64
    return sums(reader.read_fp16_data(64 + step * i) for i in range(VALUES.count))


def read_bare(path: Path) -> list[int]:
    """The file's bytes by the system's own call, and the same pass over them."""
    data = np.empty(path.stat().st_size, np.uint8)
    with path.open("rb", buffering=0) as file:
        filled = 0
        while step := file.readinto(data[filled:]):
            filled += step
    nbytes, step = VALUES[0].nbytes, 64 + -(-VALUES[0].nbytes // 64) * 64
    return sums(data[128 + step * i : 128 + step * i + nbytes] for i in range(VALUES.count))


AHEAD_OF = {"gguf: GGUFReader": 1.0, "h5py: data[...]": 1.0, "coremltools: _BlobStorageReader": 1.0}
READERS: dict[str, tuple[Callable[[Path], list[int]], str, dict[str, Any]]] = {
    BARE_READ: (read_bare, "bin", {"role": "limit"}),
    "milblob: load": (read_milblob, "bin", {"role": "milblob", "targets": AHEAD_OF}),
    "milblob: load of a package": (read_milblob, "mlpackage", {"role": "milblob", "targets": AHEAD_OF}),
    "safetensors: load_file": (read_safetensors, "safetensors", {}),
    "gguf: GGUFReader": (read_gguf, "gguf", {}),
    "torch: load(mmap=True)": (read_torch, "pt", {}),
    "h5py: data[...]": (read_h5py, "h5", {}),
    "coremltools: _BlobStorageReader": (read_coremltools, "bin", {}),
}


@pytest.mark.parametrize("name", READERS)
def bench_read_values(cold_row: Any, made: Made, name: str) -> None:
    run, suffix, options = READERS[name]
    if suffix == "pt":
        needs("torch")
    path = made(f"cold.{suffix}", lambda path: makers.WRITERS[suffix](path, VALUES))

    def check(got: list[int]) -> None:
        assert got == sums(array for _, array in VALUES)

    cold_row(READ, name, path, lambda: run(path), check=check, nbytes=VALUES.nbytes, rounds=5, **options)
