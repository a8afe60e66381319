"""Two weight files of 1 GiB compared: equal ones against memcmp, others against NumPy in chunks."""

import ctypes
import mmap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import milblob
from conftest import scaled

NBYTES = scaled(1 << 30, 1 << 20) // 4096 * 4096
COUNT = NBYTES // 2
CHUNK = 1 << 20
EQUAL = f"compare two equal files of {NBYTES >> 20} MiB"
DIFFERENT_LIMIT = "C: one summing pass over both, one thread"
DIFFERENT = f"figures of two different files of {NBYTES >> 20} MiB of float16"


def block(noise: float) -> np.ndarray[Any, Any]:
    """4M weights; `noise` is added to them."""
    random = np.random.default_rng(6)
    values = random.standard_normal(1 << 22, np.float32) * np.float32(0.02)
    return (values + np.float32(noise) * random.standard_normal(1 << 22, np.float32)).astype(np.float16)


def write_blob(noise: float) -> Callable[[Path], None]:
    """A writer of one record."""

    def write(path: Path) -> None:
        with milblob.BlobWriter(path) as blobs:
            blobs.write(np.resize(block(noise), COUNT))

    return write


@pytest.fixture(scope="module")
def files(made: Callable[..., Path]) -> tuple[Path, Path, Path]:
    """Two equal files and one with noise, all pages touched."""
    paths = made("a.bin", write_blob(0)), made("same.bin", write_blob(0)), made("noisy.bin", write_blob(1e-4))
    for path in paths:
        milblob.load(path)["#0"].view(np.uint8)[::4096].sum()
    return paths


def numpy_figures(a: Path, b: Path) -> tuple[float, float, float, float, float]:
    """Largest and mean difference, relative error, cosine and SQNR, in float64, so many elements at a time."""
    x, y = (np.memmap(path, np.float16, "r", 128, COUNT) for path in (a, b))
    most = distance = noise = aa = bb = ab = 0.0
    for start in range(0, COUNT, CHUNK):
        p, q = (array[start : start + CHUNK].astype(np.float64) for array in (x, y))
        d = q - p
        size = np.abs(d)
        most, distance = max(most, float(size.max())), distance + float(size.sum())
        noise, aa, bb, ab = noise + float(d @ d), aa + float(p @ p), bb + float(q @ q), ab + float(p @ q)
    relative = (noise / aa) ** 0.5
    return most, distance / COUNT, relative, ab / (aa * bb) ** 0.5, -20 * float(np.log10(relative))


def same(found: Any) -> None:
    assert found.is_same and [row.kind for row in found.rows] == ["same"]


def memcmp(a: Path, b: Path) -> int:
    """One memcmp of two mapped files' elements."""
    library = ctypes.CDLL(None)
    library.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    addresses, kept = [], []
    for path in (a, b):
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        array = np.frombuffer(mapped, np.uint8)
        kept.append(array)
        addresses.append(array.__array_interface__["data"][0] + 128)
    return int(library.memcmp(*addresses, NBYTES))


def bench_memcmp(row: Any, files: Any) -> None:
    def check(got: int) -> None:
        assert got == 0

    row(EQUAL, "C: memcmp, one thread", lambda: memcmp(files[0], files[1]), check=check, role="limit", nbytes=NBYTES)


def bench_milblob_equal(row: Any, files: Any) -> None:
    row(EQUAL, "milblob.diff", lambda: milblob.diff(files[0], files[1]), check=same, role="milblob", nbytes=NBYTES)


def bench_numpy_equal(row: Any, files: Any) -> None:
    def run() -> bool:
        x, y = (np.memmap(path, np.uint16, "r", 128, COUNT) for path in files[:2])
        return all(np.array_equal(x[i : i + CHUNK], y[i : i + CHUNK]) for i in range(0, COUNT, CHUNK))

    def check(got: bool) -> None:
        assert got

    row(EQUAL, "numpy: array_equal in chunks", run, check=check, nbytes=NBYTES)


def bench_milblob_figures(row: Any, files: Any) -> None:
    def check(got: Any) -> None:
        expected = numpy_figures(files[0], files[2])
        (tensor,) = got.rows
        f = tensor.figures
        np.testing.assert_allclose([f.max_abs, f.mean_abs, f.relative, f.cosine, f.sqnr], expected, rtol=1e-10)

    row(DIFFERENT, "milblob.diff", lambda: milblob.diff(files[0], files[2]), check=check, role="milblob", nbytes=NBYTES)


def bench_figures_limit(row: Any, files: Any, cwalk: Any) -> None:
    arrays = [np.memmap(path, np.uint64, "r", 128, COUNT // 4) for path in (files[0], files[2])]

    def check(got: list[int]) -> None:
        assert got == [int(array.sum()) for array in arrays]

    run = lambda: [cwalk.sum(array) for array in arrays]  # noqa: E731
    row(DIFFERENT, DIFFERENT_LIMIT, run, check=check, role="limit", nbytes=NBYTES)


def bench_numpy_figures(row: Any, files: Any) -> None:
    def check(got: Any) -> None:
        assert 0 < got[2] < 1

    name = "numpy: five figures in float64, in chunks"
    row(DIFFERENT, name, lambda: numpy_figures(files[0], files[2]), check=check, nbytes=NBYTES)
