"""From a file to PyTorch tensors: 640 MB in 160 tensors, loaded, and loaded and read once.

The files are in the page cache. Both libraries give tensors over a private mapping, so loading reads no values; adding up
a tensor touches every page of it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import makers
import pytest

import milblob
from conftest import Made, needs, scaled

COUNT, SHAPE = 160, (scaled(1024, 4), 2000)
TENSORS = makers.Tensors(COUNT, SHAPE)
JOBS = {
    "load": f"PyTorch tensors of {TENSORS.nbytes / 1e6:.0f} MB, loaded",
    "read": f"PyTorch tensors of {TENSORS.nbytes / 1e6:.0f} MB, loaded and added up",
}
RIVAL = "safetensors.torch.load_file"


def load(path: Path) -> Any:
    """One call."""
    return milblob.torch.load(path)


def safetensors_load(path: Path) -> Any:
    """One call."""
    from safetensors.torch import load_file

    return load_file(path)


ROWS: dict[str, tuple[Callable[[Path], Any], str, dict[str, Any]]] = {
    "milblob.torch.load": (load, "mlpackage", {"role": "milblob", "targets": {RIVAL: 1.1}}),
    RIVAL: (safetensors_load, "safetensors", {}),
}


def added(tensors: dict[str, Any]) -> dict[str, Any]:
    """Read each value of each tensor, as bits, and return the tensors."""
    import torch

    for tensor in tensors.values():
        tensor.view(torch.int16).sum()
    return tensors


def check(tensors: dict[str, Any]) -> None:
    """Every value of every tensor, by name."""
    assert sorted(tensors) == [TENSORS.name(i) for i in range(COUNT)]
    for name, expected in TENSORS:
        assert tensors[name].numpy().tobytes() == expected.tobytes()


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("name", ROWS)
def bench_frameworks(row: Any, made: Made, name: str, job: str) -> None:
    needs("torch")
    run, suffix, options = ROWS[name]
    path = made(f"frameworks.{suffix}", lambda path: makers.WRITERS[suffix](path, TENSORS))
    row(JOBS[job], name, lambda: run(path) if job == "load" else added(run(path)), check=check, **options)
