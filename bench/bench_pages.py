"""The first touch of new memory: 64M elements unpacked from 4 bits, with small pages, huge pages, and into warm memory.

Filling a new array of that size is the limit of each way; the unpacking should take no longer.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from numpy._core.multiarray import _set_madvise_hugepage  # type: ignore[attr-defined]  # what NUMPY_MADVISE_HUGEPAGE sets

import milblob
from conftest import scaled

COUNT = scaled(1 << 26, 1 << 16)
JOB = f"first touch: {COUNT:,} uint4"
HUGE, SMALL, WARM = "fill a new array, huge pages", "fill a new array, small pages", "fill a warm array"


@pytest.fixture(scope="module")
def value() -> bytes:
    """A TensorValue of these elements."""
    elements = np.arange(COUNT, dtype=np.uint8)
    elements &= 15
    return milblob.pack_tensor(elements, "uint4")


@pytest.fixture
def pages() -> Iterator[Callable[[bool], None]]:
    """Return a function that says whether NumPy asks for huge pages."""
    before = _set_madvise_hugepage(True)
    yield _set_madvise_hugepage
    _set_madvise_hugepage(before)


def is_filled(array: Any) -> None:
    """Every byte is 1."""
    assert array.size == COUNT and (array == 1).all()


def is_unpacked(array: Any) -> None:
    """The elements of `value`."""
    array = array.view(np.uint8)
    assert array.size == COUNT and (array[:16] == np.arange(16)).all() and (array[16:] == array[:-16]).all()


def fill() -> np.ndarray[Any, Any]:
    """Make an array, and write to all of it."""
    array = np.empty(COUNT, np.uint8)
    array[:] = 1
    return array


@pytest.mark.parametrize("name", [HUGE, SMALL])
def bench_fill(row: Any, pages: Any, name: str) -> None:
    pages(name == HUGE)
    row(JOB, name, fill, check=is_filled, role="limit", nbytes=COUNT)


def bench_fill_warm(row: Any) -> None:
    array = fill()

    def run() -> np.ndarray[Any, Any]:
        array[:] = 1
        return array

    row(JOB, WARM, run, check=is_filled, role="limit", nbytes=COUNT)


@pytest.mark.parametrize("name", [HUGE, SMALL])
def bench_unpack(row: Any, pages: Any, value: bytes, name: str) -> None:
    pages(name == HUGE)
    words = f"milblob: unpack_tensor, {name.split(', ')[1]}"
    targets = {HUGE: 1.25} if name == HUGE else {}
    run = lambda: milblob.unpack_tensor(value, "uint4", COUNT)  # noqa: E731
    row(JOB, words, run, check=is_unpacked, role="milblob", targets=targets, nbytes=COUNT)


def bench_unpack_warm(row: Any, value: bytes) -> None:
    out = milblob.unpack_tensor(value, "uint4", COUNT)
    run = lambda: milblob.unpack_tensor(value, "uint4", COUNT, out=out)  # noqa: E731
    row(JOB, "milblob: unpack_tensor, out=", run, check=is_unpacked, role="milblob", nbytes=COUNT)
