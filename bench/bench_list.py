"""Listing 20,000 blobs of 1 KiB: name or offset, dtype and size of every tensor in a file, and no values."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest
from cwalk import CWalk

import milblob
from conftest import Made, needs, scaled

LIMIT, FIELD = "C walk", "safetensors: keys, dtypes, shapes"
COUNT, SIZE = scaled(20_000, 20), 512
JOB = f"list {COUNT:,} blobs"
NAMES = [f"weight_{i:05d}" for i in range(COUNT)]


@pytest.fixture(scope="module")
def file(made: Made) -> Callable[[str], Path]:
    """Return file(suffix) -> path of the tensors in that format."""
    tensors = makers.Tensors(COUNT, (SIZE,))

    def make(suffix: str) -> Path:
        return made(f"list.{suffix}", lambda path: makers.WRITERS[suffix](path, tensors))

    return make


def is_names(result: list[str]) -> None:
    """The names, and nothing else, in any order: containers sort as they like."""
    assert sorted(result) == NAMES


def is_described(result: list[tuple[str, str, tuple[int, ...]]]) -> None:
    """Names, dtypes and shapes."""
    assert sorted(result) == [(name, "float16", (SIZE,)) for name in NAMES]


def offsets() -> np.ndarray[Any, Any]:
    """Where the records' metadata must be."""
    return 64 + (64 + SIZE * 2) * np.arange(COUNT, dtype=np.uint64)


# --------------------------------------------------------------------------------------------------------------- limit


def bench_c_walk(row: Any, file: Any, cwalk: CWalk) -> None:
    path = str(file("bin"))

    def check(result: tuple[int, int]) -> None:
        assert result == (COUNT, COUNT * SIZE * 2)

    row(JOB, LIMIT, lambda: cwalk.records(path), check=check, role="limit")


# ------------------------------------------------------------------------------------------------------------- milblob


def bench_index(row: Any, file: Any) -> None:
    path = file("bin")

    def run() -> Any:
        with milblob.BlobReader(path) as blobs:
            return blobs.index

    def check(index: Any) -> None:
        assert np.array_equal(index["offset"], offsets())
        assert np.array_equal(index["data_offset"], offsets() + 64)
        assert (index["nbytes"] == SIZE * 2).all() and (index["count"] == SIZE).all()
        assert (index["blob_code"] == milblob.DType.FLOAT16.blob_code).all()

    row(JOB, "milblob: BlobReader(path).index", run, check=check, role="milblob", targets={LIMIT: 3, FIELD: 1 / 5})


def bench_objects(row: Any, file: Any) -> None:
    path = file("bin")

    def run() -> Any:
        with milblob.BlobReader(path) as blobs:
            return list(blobs)

    def check(records: Any) -> None:
        assert [r.offset for r in records] == offsets().tolist()
        assert {(r.dtype, r.count, r.nbytes) for r in records} == {(milblob.DType.FLOAT16, SIZE, SIZE * 2)}

    row(JOB, "milblob: list(BlobReader(path))", run, check=check, role="milblob", note="one Python object per record")


def bench_keys(row: Any, file: Any) -> None:
    path = file("bin")

    def run() -> Any:
        with milblob.open(path) as model:
            return list(model.keys())

    def check(names: Any) -> None:
        assert names == [f"#{i}" for i in range(COUNT)]

    row(JOB, "milblob: list(milblob.open(path))", run, check=check, role="milblob", note="one Tensor per record")


# -------------------------------------------------------------------------------------------------------------- rivals


def bench_safetensors_keys(row: Any, file: Any) -> None:
    from safetensors import safe_open

    path = file("safetensors")

    def run() -> Any:
        with safe_open(path, "np") as tensors:
            return list(tensors.keys())

    row(JOB, "safetensors: keys", run, check=is_names, role="aside", note="names only")


def bench_safetensors(row: Any, file: Any) -> None:
    from safetensors import safe_open

    path = file("safetensors")

    def run() -> Any:
        with safe_open(path, "np") as tensors:
            slices = ((name, tensors.get_slice(name)) for name in tensors.keys())  # noqa: SIM118 (not a mapping)
            return [(name, s.get_dtype(), s.get_shape()) for name, s in slices]

    def check(result: Any) -> None:
        is_described([(name, {"F16": "float16"}[dtype], tuple(shape)) for name, dtype, shape in result])

    row(JOB, FIELD, run, check=check)


def bench_h5py(row: Any, file: Any) -> None:
    import h5py

    path = file("h5")

    def run() -> Any:
        with h5py.File(path) as tensors:
            return [(name, data.dtype.name, data.shape) for name, data in tensors.items()]

    row(JOB, "h5py: names, dtypes, shapes", run, check=is_described)


def bench_h5py_names(row: Any, file: Any) -> None:
    import h5py

    path = file("h5")

    def run() -> Any:
        with h5py.File(path) as tensors:
            return list(tensors)

    row(JOB, "h5py: names", run, check=is_names, role="aside", note="names only")


def bench_gguf(row: Any, file: Any) -> None:
    import gguf

    path = file("gguf")

    def check(result: Any) -> None:
        is_described([(t.name, t.tensor_type.name.replace("F16", "float16"), tuple(t.shape.tolist())) for t in result])

    row(JOB, "gguf: GGUFReader.tensors", lambda: gguf.GGUFReader(path).tensors, check=check)


def bench_torch(row: Any, file: Any) -> None:
    needs("torch")
    import torch

    path = file("pt")

    def run() -> Any:
        tensors = torch.load(path, mmap=True, weights_only=True)
        return [(name, str(tensor.dtype), tuple(tensor.shape)) for name, tensor in tensors.items()]

    def check(result: Any) -> None:
        is_described([(name, dtype.removeprefix("torch."), shape) for name, dtype, shape in result])

    row(JOB, "torch: load(mmap=True)", run, check=check)
