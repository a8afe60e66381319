"""Directories of files of arrays: how they are recognised, without importing what opens them."""

import os

from ..storage import paths
from ..storage.table import CACHES

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


SUFFIXES = (".tar", ".tar.gz", ".tgz")
_METADATA = "metadata.json"
PARAMETERS = "parameters"
"""The folder of an unpacked archive that holds its `.params` files."""

# A compiled Core ML model and a bundle of Core AI have a metadata.json too, and so has a folder with a bundle in it.
_OTHERS = frozenset(["Manifest.json", "model.mil", "model0", "coremldata.bin", "model.espresso.net", "main.mlirb"])


def is_archive(path: str) -> bool:
    """Whether a path is an archive: by its suffix; a directory by the metadata.json in it."""
    return is_unpacked(path) if paths.is_directory(path) else path.lower().endswith(SUFFIXES)


def changeable_files(path: str) -> set[str]:
    """Return the files of an unpacked archive that its journal may change: its parameter files.

    A journal's paths are compared once their links are resolved, so that a file that a link leads to is none of these.

    Raises: OSError: they cannot be listed.
    """
    folder = os.path.join(paths.real(path), PARAMETERS)
    return {os.path.join(folder, name) for name in os.listdir(folder)} if paths.is_directory(folder) else set()


def is_unpacked(directory: str) -> bool:
    """Whether a directory is an archive that was unpacked."""
    if not paths.is_there(os.path.join(directory, _METADATA)):
        return False
    names = os.listdir(directory)
    return not _OTHERS.intersection(names) and not any(name.endswith((".aimodel", ".aimodelc")) for name in names)
