"""Bundles of Core AI in tests/data/aimodel, and what Apple's own library says of them (tests/data/make_aimodel_oracle.py)."""

import functools
import hashlib
import json
import shutil

import numpy as np

from paths import DATA

FOLDER = DATA / "aimodel"
NAMES = sorted(path.stem for path in FOLDER.glob("*.aimodel"))
WIDE = {"si2": np.int8, "si4": np.int8}  # elements that the oracle has as int8


@functools.cache
def oracle():
    """Name of a bundle -> what the library says of it."""
    return json.loads((FOLDER / "oracle.json").read_text("utf-8"))["bundles"]


def bundle(name):
    """The path of a recorded bundle."""
    return str(FOLDER / f"{name}.aimodel")


def copy_of(name, folder, as_name="Model.aimodel"):
    """A copy of a recorded bundle that a test may change."""
    target = folder / as_name
    shutil.copytree(bundle(name), target)
    return target


def digest(array, dtype=None):
    """The hash of elements, as the oracle has it."""
    if dtype in WIDE:
        array = array.astype(WIDE[dtype])
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def is_hashed(folder):
    """Whether main.hash is that of main.mlirb."""
    return (folder / "main.hash").read_bytes() == hashlib.sha256((folder / "main.mlirb").read_bytes()).digest()


def linear(weights, x):
    """What the recorded networks of two linear layers compute, by NumPy; `weights` in the order of the bundle."""
    first, bias, second, other = weights
    return np.maximum(x @ first.T + bias, 0) @ second.T + other
