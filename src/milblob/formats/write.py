"""Writing tensors in a format chosen by the output's name, and the protocol of each format's `save`."""

import os
from collections.abc import Mapping
from typing import Any

from ..arguments import as_path, require, require_flags
from ..dtypes import DType
from ..model.fetching import fetch
from ..model.stored import readable_of
from ..progress import Progress, start_progress
from ..storage import paths
from ..storage.table import ARRAYS, FORMATS, UNPACKED, WRITTEN, Format
from .directories import is_archive
from .filenames import require_texts

_MODELS = (".mlpackage", ".mlmodelc", ".mlmodel")


def save(
    tensors: Mapping[str, Any],
    destination: str | os.PathLike[str],
    *,
    listing: str | os.PathLike[str] | None = None,
    align: int | None = None,
    tvm: str | None = None,
    packed: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> None:
    """Write tensors to a file; its suffix chooses the format.

    .safetensors and .npz files, TVM's .params files, Core ML weight files (.bin, with a listing of the names beside),
    and directories of .npy files. `open_arrays` gives the tensors back with their names, dtypes and values; notes in
    the file record dtypes that the format lacks.

    Args:
        tensors: an open Model, or name -> anything NumPy makes an array of, a Tensor of a model, a StoredArray or
            Parameter of another file. Read one at a time, zero-copy where the mapped file holds the values.
        destination: ends in .safetensors, .npz, .params or .bin; a directory that exists, or a path that ends in a
            slash or has no suffix, is a directory of .npy files. Appears whole or not at all.
        listing: of a weight file: the path of its listing, .json or .mil; default: beside it, with the suffix .json.
        align: of a weight file: data begins at multiples of it, 64 (the default), 4096 or 16384.
        tvm: of a .params file: the version of TVM that is to read it; see `milblob.tvm.write_params`.
        packed: store integers below a byte as their packed bytes, not one to a byte. Weight files always do, .params
            files never.
        force: replace what an earlier call has made.
        progress: called as each tensor is written (see `Progress`).

    Raises:
        ValueError: another suffix (GGUF and ONNX files are read and not written), an option of another format, names
            that a file cannot hold. TypeError: something else. FileExistsError: without `force`. OSError: it cannot be
            written. As `Tensor.read`.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     milblob.save(model, "weights.npz")
        >>> len(np.load("weights.npz").files)
        69
    """
    if isinstance(destination, Mapping) and not isinstance(tensors, Mapping):
        raise TypeError("save: expected tensors, then the destination, got them the other way round")
    require("tensors", tensors, Mapping, "a mapping of names to arrays")
    path = as_path(destination)
    require_flags(packed=packed, force=force)
    start_progress(progress)
    row = format_written(path)
    require_use(path, row, listing=listing is not None, align=align is not None, tvm=tvm is not None)
    save_as(row, tensors, path, listing, align, tvm=tvm, packed=packed, force=force, progress=progress)


def save_as(
    row: Format,
    tensors: Mapping[str, Any],
    path: str,
    listing: str | os.PathLike[str] | None,
    align: int | None,
    *,
    dtypes: Mapping[str, DType] | None = None,
    tvm: str | None,
    packed: bool,
    force: bool,
    progress: Progress | None,
) -> None:
    """Write tensors in a format; see `save`. `dtypes` of a weight file: see `write_weights`."""
    options: dict[str, Any] = {"packed": packed}
    if row.kind == "params":
        options = {"tvm": tvm}
    elif row.kind == "weights":
        align = 64 if align is None else align
        options = {"listing": listing_of(path, listing), "align": align, "dtypes": dtypes}
    readable = {name: readable_of(name, tensor) for name, tensor in tensors.items()}
    if row.kind != "params":
        require_texts(readable)
    fetch(readable.values())
    row.function("save")(readable, path, force=force, progress=progress, **options)


def require_use(path: str, row: Format, **given: bool) -> None:
    """Refuse options that a format has no use for. Raises: ValueError: there is one."""
    for name in filter(given.get, given):
        if name == "unpack":
            is_used, expected = row.kind not in ("weights", "params"), f"{', '.join(UNPACKED)} or a directory"
        elif name == "tvm":
            is_used, expected = row.kind == "params", "a .params file"
        else:
            is_used, expected = row.kind == "weights", "a weight file (.bin)"
        if not is_used:
            raise ValueError(f"output {path}: expected {expected}, which {name} is about")


def listing_of(path: str, listing: str | os.PathLike[str] | None = None) -> str:
    """Return the path of the listing that `save` writes beside a weight file."""
    return os.path.splitext(path)[0] + ".json" if listing is None else as_path(listing)


def format_written(path: str) -> Format:
    """Return the format of a file to be written, by its name. Raises: ValueError: none is written there."""
    suffix = os.path.splitext(path)[1].lower()
    if path.rstrip("/\\").lower().endswith(_MODELS):
        message = "expected a file of arrays, got a model; `milblob repack MODEL -o` writes one"
        raise ValueError(f"output {path}: {message}")
    if path.endswith(("/", os.sep)) or paths.is_directory(path) or not suffix:
        return next(row for row in FORMATS if row.save and not row.written)
    found = next((row for row in FORMATS if suffix in row.written), None)
    if found is None:
        message = f"output {path}: expected {', '.join(WRITTEN)}, .bin or a directory (ending in /), got {suffix}"
        if is_archive(path):
            message += " (milblob tvm params --with and milblob refit change an archive; nothing makes a new one)"
        elif suffix == ".onnx":
            message += " (milblob to-onnx, or milblob.onnx.convert, converts a model)"
        elif any(suffix in row.suffixes and not row.save for row in ARRAYS.values()):
            message += f" (milblob reads {suffix} files and does not write them)"
        raise ValueError(message)
    return found
