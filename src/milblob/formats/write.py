"""Writing tensors in a format chosen by the output's name."""

import os
from collections.abc import Mapping

from ..model.lazy import LazyTensor
from ..progress import Progress
from ..storage import paths
from .archive import is_archive


def save(
    tensors: Mapping[str, LazyTensor],
    path: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    packed: bool = False,
    tvm: str | None = None,
) -> None:
    """Write tensors to an .npz, .safetensors or .params file, or to a directory of .npy files.

    Args:
        tensors: name -> LazyTensor: a Tensor, StoredArray or Parameter.
        path: ends in .npz, .safetensors or .params; a directory that exists, or ends in a slash, or has no suffix,
            is one.
        force: replace what is there: a file, or a directory that an earlier call has made.
        progress: called as each tensor is written (see `Progress`).
        packed: see `encoding.elements`. A .params file has no notes, and so the values themselves: int4, uint1,
            uint2 and uint4 as int8 and uint8 (see `params.write_params`).
        tvm: version of TVM that is to read a .params file; see `params.write_params`.

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
    elif suffix == ".params":
        from . import params

        params.write_params(tensors, path, tvm=tvm, force=force, progress=progress)
    else:
        words = f"output {path}: expected .npz, .safetensors, .params or a directory (ending in /), got {suffix}"
        if is_archive(path):
            words += " (no archive is made anew: milblob tvm params --with and milblob refit change one)"
        raise ValueError(words)
