"""Directories of files of arrays: how they are recognised, without importing what opens them."""

import os

from ..model.table import CACHES
from ..storage import paths

INDEX_SUFFIX = ".safetensors.index.json"
FILE_SUFFIX = ".safetensors"


def has_cache(path: str) -> bool:
    """Whether a directory has a tensor cache in it."""
    return any(paths.is_there(os.path.join(path, name)) for name in CACHES)


def has_npy(path: str) -> bool:
    """Whether a directory holds .npy files, and is not a model."""
    names = os.listdir(path)
    return any(name.endswith(".npy") for name in names) and not {"Manifest.json", "model.mil", "model0"} & {*names}


def has_checkpoint(path: str) -> bool:
    """Whether a directory has one checkpoint in it."""
    return checkpoint_in(path) is not None


def checkpoint_in(directory: str) -> str | None:
    """Return the checkpoint in a directory: the only index, or the only .safetensors file; None if it has neither."""
    names = os.listdir(directory)
    for suffix in (INDEX_SUFFIX, FILE_SUFFIX):
        found = [name for name in names if name.endswith(suffix)]
        if found:
            return os.path.join(directory, found[0]) if len(found) == 1 else None
    return None
