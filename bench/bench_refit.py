"""New values for one weight of a 1 GiB model, and for all weights of a smaller one, on the disk when the call returns.

The time should be that of the weight's bytes and not of the file's: rows with eight times the weights, and with a package
of an eighth of the size, stand beside. milblob writes the bytes twice, to the journal and in place, each synced, so that
a crash at any moment leaves the old values or the new ones; the others leave what was written by then. A library that
cannot change a file in place rewrites all of it.

New values for all weights are written once: to a copy, or to a new file in place of the old one. That should take no
longer than `repack`, which writes as many bytes; the limit is a copy of the file.
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

COUNT, SMALL_COUNT, MANY, SHAPE = 200, 25, 8, (scaled(1024, 4), 2622)
TENSORS, SMALL = makers.Tensors(COUNT, SHAPE), makers.Tensors(SMALL_COUNT, SHAPE)
NEW = {TENSORS.name(i): -TENSORS[i + 1] for i in range(MANY)}
FIRST = TENSORS.name(0)
NBYTES = NEW[FIRST].nbytes
JOB = f"refit {NBYTES / 2**20:.2g} MiB of {TENSORS.nbytes / 2**30:.2g} GiB"
REWRITE = "what any rewrite costs at least"
LIMIT, COPY = "pwrite at a known offset, fsync", "copy of the weight file, fsync"
WEIGHTS = Path("Data", "com.apple.CoreML", "weights", "weight.bin")


def bare(path: Path) -> Any:
    """What a user would write who knows the offset, and needs no second chance."""
    fd = os.open(path / WEIGHTS, os.O_RDWR)
    try:
        os.pwrite(fd, NEW[FIRST], 128)
        os.fsync(fd)
    finally:
        os.close(fd)
    return milblob.load(path)[FIRST]


def refit_one(path: Path) -> Any:
    """One call."""
    milblob.refit(path, {FIRST: NEW[FIRST]})
    return milblob.load(path)[FIRST]


def refit_many(path: Path) -> Any:
    """Eight weights, eight times the bytes."""
    milblob.refit(path, NEW)
    return milblob.load(path)[FIRST]


def assign_one(path: Path) -> Any:
    """In the manner of h5py."""
    with milblob.open(path, "r+") as model:
        model[FIRST] = NEW[FIRST]
    return milblob.load(path)[FIRST]


def copy_file(path: Path) -> Any:
    """The whole file to another, which then has the new values: what a rewrite costs at least."""
    target = path.with_name("refit-copy.bin")
    with (path / WEIGHTS).open("rb") as source, target.open("wb") as file:
        while chunk := source.read(1 << 24):
            file.write(chunk)
        file.flush()
        os.pwrite(file.fileno(), NEW[FIRST], 128)
        os.fsync(file.fileno())
    values = np.fromfile(target, np.float16, NEW[FIRST].size, offset=128).reshape(SHAPE)
    target.unlink()
    return values


def h5py_write(path: Path) -> Any:
    """In place too, with no protection against a crash."""
    import h5py

    with h5py.File(path, "r+") as file:
        file[FIRST][...] = NEW[FIRST]
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)
    with h5py.File(path) as file:
        return file[FIRST][...]


def safetensors_rewrite(path: Path) -> Any:
    """Load everything, replace one, save everything: the format has no other way."""
    from safetensors import safe_open
    from safetensors.numpy import load_file, save_file

    values = load_file(path)
    values[FIRST] = NEW[FIRST]
    target = path.with_name("refit-copy.safetensors")
    save_file(values, target)
    fd = os.open(target, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)
    with safe_open(target, "np") as file:
        result = file.get_tensor(FIRST)
    target.unlink()
    return result


ROWS: dict[str, tuple[Callable[[Path], Any], str, dict[str, Any]]] = {
    LIMIT: (bare, "mlpackage", {"role": "limit"}),
    "milblob: refit": (refit_one, "mlpackage", {"role": "milblob", "targets": {COPY: 0.1}}),
    "milblob: open r+, assign": (assign_one, "mlpackage", {"role": "milblob"}),
    "milblob: refit in a package of 1/8 the size": (refit_one, "small.mlpackage", {"role": "milblob"}),
    "milblob: refit of 8 weights": (refit_many, "mlpackage", {"role": "milblob", "targets": {"milblob: refit": 12.0}}),
    "h5py: r+, data[...] = array": (h5py_write, "h5", {"note": "one copy, in place: a crash leaves part of it"}),
    COPY: (copy_file, "mlpackage", {"role": "aside", "note": REWRITE}),
    "safetensors: load_file, save_file": (safetensors_rewrite, "safetensors", {}),
}


ALL = {SMALL.name(i): -SMALL[i + 1] for i in range(SMALL_COUNT)}
JOB_ALL = f"refit all of {SMALL.nbytes / 2**20:.0f} MiB"
REPACK = "milblob: repack"


def refit_all(path: Path) -> Any:
    """In place: the weight file is written again."""
    milblob.refit(path, ALL)
    return milblob.load(path)[FIRST]


def refit_to_copy(path: Path) -> Any:
    """The copy is written with the new values."""
    target = path.with_name("refit-all.mlpackage")
    milblob.refit(path, ALL, destination=target, force=True)
    return milblob.load(target)[FIRST]


def repack_all(path: Path) -> Any:
    """The same bytes, read from the model itself."""
    target = path.with_name("refit-repacked.mlpackage")
    milblob.repack(path, target, force=True)
    return NEW[FIRST] if milblob.load(target)[FIRST].size == NEW[FIRST].size else None


ROWS_ALL: dict[str, tuple[Callable[[Path], Any], dict[str, Any]]] = {
    COPY: (copy_file, {"role": "limit"}),
    REPACK: (repack_all, {"role": "aside", "note": "as many bytes, without new values"}),
    "milblob: refit to a copy": (refit_to_copy, {"role": "milblob", "targets": {REPACK: 1.3}}),
    "milblob: refit in place": (refit_all, {"role": "milblob", "targets": {REPACK: 1.3}}),
}


@pytest.mark.parametrize("name", ROWS_ALL)
def bench_refit_all(row: Any, made: Made, name: str) -> None:
    run, options = ROWS_ALL[name]
    path = made("refit-all-of.mlpackage", lambda path: makers.WRITERS["mlpackage"](path, SMALL))
    row(JOB_ALL, name, lambda: run(path), check=check, **options)


def check(values: Any) -> None:
    """The new values are there."""
    assert values.dtype == np.float16 and np.array_equal(values, NEW[FIRST])


@pytest.mark.parametrize("name", ROWS)
def bench_refit(row: Any, made: Made, name: str) -> None:
    run, suffix, options = ROWS[name]
    tensors = SMALL if suffix.startswith("small") else TENSORS
    path = made(f"refit.{suffix}", lambda path: makers.WRITERS[suffix.rpartition(".")[2]](path, tensors))
    row(JOB, name, lambda: run(path), check=check, **options)
