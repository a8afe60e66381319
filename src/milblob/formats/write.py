"""Writing tensors in a format chosen by the output's name."""

import os
from collections.abc import Mapping

from ..model.lazy import LazyTensor
from ..storage import paths
from .encoding import Progress


def save(
    tensors: Mapping[str, LazyTensor],
    path: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    packed: bool = False,
) -> None:
    """Write tensors to an .npz or .safetensors file, or to a directory of .npy files.

    Args:
        tensors: name -> Tensor or StoredArray.
        path: ends in .npz or .safetensors; an existing directory, a final slash or no suffix means a directory.
        force: replace what is there: a file, or a directory that an earlier call has made.
        progress: told of each tensor.
        packed: see `elements.elements`.

    Raises:
        ValueError: another suffix. Otherwise as the format's own `save`.
    """
    suffix = os.path.splitext(path)[1].lower()
    if path.endswith(("/", os.sep)) or paths.is_directory(path) or not suffix:
        from . import npy_dir

        npy_dir.save(tensors, path, force=force, progress=progress, packed=packed)
    elif suffix == ".npz":
        from . import npz

        npz.save(tensors, path, force=force, progress=progress, packed=packed)
    elif suffix == ".safetensors":
        from . import safetensors

        safetensors.save(tensors, path, force=force, progress=progress, packed=packed)
    else:
        raise ValueError(f"output {path}: expected .npz, .safetensors or a directory (ending in /), got {suffix}")
