"""Archives in TVM's Model Library Format: how they are recognised. milblob.tvm opens them."""

import os

from ..storage import paths

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
