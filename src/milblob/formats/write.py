"""Writing tensors in a format chosen by the output's name, and what the `save` of each format does."""

import os
from collections.abc import Mapping
from typing import Protocol

from ..model.fetching import fetch
from ..model.lazy import LazyTensor
from ..progress import Progress
from ..storage import paths
from .archive import is_archive
from .filenames import require_texts


class Save(Protocol):
    """`save` of a format: npz, npy_dir and safetensors. Their own docstrings say only what is particular to them."""

    def __call__(
        self,
        tensors: Mapping[str, LazyTensor],
        path: str,
        *,
        force: bool = False,
        progress: Progress | None = None,
        packed: bool = False,
    ) -> None:
        """Write tensors so that `open_arrays` gives them back bit for bit, with their names.

        Args:
            tensors: name -> LazyTensor: a Tensor, StoredArray or Parameter. Read one at a time; written zero-copy from
                the mapped file where it holds the values.
            path: appears whole or not at all.
            force: replace what an earlier call has made.
            progress: called as each tensor is written (see `Progress`).
            packed: see `encoding.elements`, which also says what becomes of dtypes that the format lacks. Notes in the
                file name the originals.

        Raises:
            As `Tensor.read`; FileExistsError: without `force`. OSError: it cannot be written.
        """


def save(
    tensors: Mapping[str, LazyTensor],
    path: str,
    *,
    force: bool = False,
    progress: Progress | None = None,
    packed: bool = False,
    tvm: str | None = None,
) -> None:
    """Write tensors to an .npz, .safetensors or .params file, or to a directory of .npy files: see `Save`.

    Args:
        tensors, force, progress: see `Save`.
        path: ends in .npz, .safetensors or .params; a directory that exists, or ends in a slash, or has no suffix,
            is one.
        packed: see `Save`. A .params file has no notes, and so the values themselves: int4, uint1, uint2 and uint4 as
            int8 and uint8 (see `params.write_params`).
        tvm: version of TVM that is to read a .params file; see `params.write_params`.

    Raises:
        ValueError: another suffix, or as `require_texts`; .params files hold such names. Otherwise as the format's own
            `save`.
    """
    suffix = os.path.splitext(path)[1].lower()
    if path.endswith(("/", os.sep)) or paths.is_directory(path) or not suffix:
        from .npy_dir import save as saver
    elif suffix == ".npz":
        from .npz import save as saver
    elif suffix == ".safetensors":
        from .safetensors import save as saver
    elif suffix == ".params":
        from .params import write_params

        write_params(tensors, path, tvm=tvm, force=force, progress=progress)
        return
    else:
        words = f"output {path}: expected .npz, .safetensors, .params or a directory (ending in /), got {suffix}"
        if is_archive(path):
            words += " (milblob tvm params --with and milblob refit change an archive; nothing makes a new one)"
        raise ValueError(words)
    require_texts(tensors)
    fetch(tensors.values())
    write: Save = saver
    write(tensors, path, force=force, progress=progress, packed=packed)
