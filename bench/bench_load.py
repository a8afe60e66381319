"""From a file to NumPy arrays: 1 GiB in 200 tensors.

The work is to open the file and have an array of every tensor under its name, or, for the limits, in order. The file is in
the page cache. Rivals that copy read everything; the column of memory says so.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import numpy as np
import pytest

import milblob
from conftest import Made, needs, scaled

COUNT, SHAPE = 200, (scaled(1024, 4), 2622)
TENSORS = makers.Tensors(COUNT, SHAPE)
JOB = f"load {TENSORS.nbytes / 2**30:.2g} GiB in {COUNT} tensors"
LIMIT = "np.memmap views"
WEIGHTS = Path("Data", "com.apple.CoreML", "weights", "weight.bin")
NBYTES = int(np.prod(SHAPE)) * 2
RESIDENT = COUNT * (64 << 10) + (4 << 20)
"""A page is touched of every record; what else of the file is in the page cache around it, Linux maps with it."""


def offsets(path: Path) -> list[int]:
    """The metadata offsets of the records: all of one size, so that nothing has to be read for the limits."""
    count = (path / WEIGHTS).stat().st_size // (64 + NBYTES)
    step = 64 + -(-NBYTES // 64) * 64
    return [64 + step * i for i in range(count)]


# ------------------------------------------------------------------------------------------ what is run: path -> arrays


def views(path: Path) -> Any:
    """One np.memmap and a slice of it for each tensor: what a user would write who knows every offset."""
    data = np.memmap(path / WEIGHTS, np.uint8, "r")
    return [data[o + 64 : o + 64 + NBYTES].view(np.float16).reshape(SHAPE) for o in offsets(path)]


def bare_views(path: Path) -> Any:
    """The same without np.memmap's own work on every slice."""
    data = np.memmap(path / WEIGHTS, np.uint8, "r")
    return [np.ndarray(SHAPE, np.float16, data, o + 64) for o in offsets(path)]


def load(path: Path) -> Any:
    """One call."""
    return milblob.load(path)


def safetensors_open(path: Path) -> Any:
    """Lazy, one get_tensor each, which copies."""
    from safetensors import safe_open

    with safe_open(path, "np") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)


def safetensors_load(path: Path) -> Any:
    """Everything at once."""
    from safetensors.numpy import load_file

    return load_file(path)


def gguf_reader(path: Path) -> Any:
    """Views of one np.memmap."""
    import gguf

    return {tensor.name: tensor.data for tensor in gguf.GGUFReader(path).tensors}


def torch_mmap(path: Path) -> Any:
    """Tensors over a mapped file, then arrays over the tensors."""
    import torch

    return {name: tensor.numpy() for name, tensor in torch.load(path, mmap=True, weights_only=True).items()}


def h5py_read(path: Path) -> Any:
    """One read of each dataset."""
    import h5py

    with h5py.File(path) as file:
        return {name: data[...] for name, data in file.items()}


def coremltools_reader(path: Path) -> Any:
    """coremltools' own reader of weight files, at offsets that are known."""
    from coremltools.libmilstoragepython import _BlobStorageReader

    reader = _BlobStorageReader(str(path / WEIGHTS))
    return [reader.read_fp16_data(offset).view(np.float16).reshape(SHAPE) for offset in offsets(path)]


ROWS: dict[str, tuple[Callable[[Path], Any], str, dict[str, Any]]] = {
    LIMIT: (views, "mlpackage", {"role": "limit"}),
    "np.ndarray views": (bare_views, "mlpackage", {"role": "limit"}),
    "milblob: load": (load, "mlpackage", {"role": "milblob", "targets": {LIMIT: 3.0}, "limit_nbytes": RESIDENT}),
    "safetensors: safe_open, get_tensor": (safetensors_open, "safetensors", {}),
    "safetensors: load_file": (safetensors_load, "safetensors", {}),
    "gguf: GGUFReader": (gguf_reader, "gguf", {}),
    "torch: load(mmap=True), numpy()": (torch_mmap, "pt", {}),
    "h5py: data[...]": (h5py_read, "h5", {}),
    "coremltools: _BlobStorageReader": (coremltools_reader, "mlpackage", {}),
}


def check(result: Any) -> None:
    """Every value of every tensor, by name where there are names."""
    arrays = {TENSORS.name(i): array for i, array in enumerate(result)} if isinstance(result, list) else result
    assert sorted(arrays) == [TENSORS.name(i) for i in range(COUNT)]
    for name, expected in TENSORS:
        assert arrays[name].dtype == np.float16
        assert np.array_equal(arrays[name], expected)


@pytest.mark.parametrize("name", ROWS)
def bench_load(row: Any, made: Made, name: str) -> None:
    run, suffix, options = ROWS[name]
    if suffix == "pt":
        needs("torch")
    path = made(f"load.{suffix}", lambda path: makers.WRITERS[suffix](path, TENSORS))
    row(JOB, name, lambda: run(path), check=check, **options)
