"""The cases of tests/data: their files, and what coremltools read from them when they were made."""

import functools
import json
from pathlib import Path

import numpy as np

import reference
from dtype_values import NUMPY, natural
from paths import DATA

CASES = sorted(path.parent.relative_to(DATA).as_posix() for path in DATA.rglob("expected.json"))
BLOB_CASES = [name for name in CASES if name.startswith("blob_")]
MODEL_CASES = [name for name in CASES if not name.startswith("blob_") and name != "neural_network"]
DENSE_CASES = sorted(path.parent.name for path in DATA.glob("*/dense.json"))


class Case:
    """One fixture: expected.json as `expected`, expected.npz as `arrays`, its directory as `folder`."""

    def __init__(self, name):
        self.name = name
        self.folder = DATA / name
        self.expected = json.loads((self.folder / "expected.json").read_text(encoding="utf-8"))
        with np.load(self.folder / "expected.npz", allow_pickle=False) as arrays:
            self.arrays = dict(arrays)
        self.rows = self.expected.get("tensors", [])

    def path(self, number=0):
        return self.folder / self.expected["paths"][number]

    def source(self, path):
        """What milblob.open takes for an entry of `paths`: the path; for a bare Program, a Model around its bytes."""
        path = self.folder / path
        if path.suffix != ".pb":
            return path
        return reference.write_field(1, 8) + reference.write_field(502, path.read_bytes())

    def values(self, row):
        """The recorded values of a row: an array of the dtype that milblob must give, or a list of strings."""
        if "strings" in row:
            return row["strings"]
        return natural(self.arrays[row["npz"]], row["dtype"])


@functools.cache
def load_case(name):
    return Case(name)


def case_paths(names=MODEL_CASES):
    """Every (case, path) pair, for parametrize."""
    return [(name, path) for name in names for path in load_case(name).expected["paths"]]


def model_directory(path, model=""):
    """The directory that @model_path stands for in a model at `path`."""
    path = Path(path)
    if not path.is_dir():
        return path.parent
    if not (path / "Manifest.json").exists():
        return path / model
    manifest = json.loads((path / "Manifest.json").read_text(encoding="utf-8"))
    root = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
    return (path / "Data" / root).parent


@functools.cache
def dense_rows(case):
    """{name: (row, array)} as coremltools decompresses the weights of a case."""
    rows = json.loads((DATA / case / "dense.json").read_text(encoding="utf-8"))["dense"]
    data = (DATA / case / "dense.bin").read_bytes()
    arrays = {}
    for row in rows:
        dtype, count = np.dtype(NUMPY[row["dtype"]]), int(np.prod(row["shape"]))
        arrays[row["output"]] = (row, np.frombuffer(data, dtype, count, row["offset"]).reshape(row["shape"]))
    return arrays
