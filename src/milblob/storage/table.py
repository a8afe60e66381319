"""The table of formats beside Core ML's own files: how each is recognised, opened, checked and refitted.

Its rows are data: names of functions as text, which `Format.function` imports when it is first asked for one. So a
format may lie in a folder above those that use it, and costs nothing until a file of it comes. Messages and the help of
commands take their lists of suffixes from it; it imports no NumPy.
"""

import mmap
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from ..arguments import as_path
from . import paths


class Format(NamedTuple):
    """One format. Functions are named "folder.module:function"; "" where there is none."""

    kind: str  # its name, as `array_kind` returns it
    suffixes: tuple[str, ...] = ()  # endings of file names, in lower case. names: whole file names.
    names: tuple[str, ...] = ()
    holds: str = ""  # returns whether a directory (a path) is of this format
    open: str = ""  # takes a path and `max_nbytes`, returns its arrays by name
    open_model: str = ""  # takes what `milblob.open` takes; of formats with functions, constants and stored parts
    check: str = ""  # takes a path and `max_nbytes`, returns findings. codes: every code of them, with its meaning.
    codes: str = ""
    refit: str = ""  # takes a path, arrays, `refitting.pairs.How` and where to write; returns a RefitReport
    changeable: str = ""  # takes a path, returns the real paths of the files that a journal of it may change
    repack: str = ""  # takes a path, a target and the options of `milblob.repack`; returns a RepackReport
    save: str = ""  # writes tensors to a path. written: the suffixes of the files that it writes; none of a directory.
    written: tuple[str, ...] = ()
    is_model: bool = False  # Core ML's own file, which only `open_arrays` opens as arrays
    called: str = ""  # of a single file of arrays: a phrase for messages, with an article. magic: its first bytes.
    magic: bytes = b""

    def function(self, name: str) -> Any:
        """Return what a field of the row names, such as `row.function("refit")`."""
        return imported(getattr(self, name))


BLOB_SUFFIXES = (".bin", ".blob", ".weights", ".fmadapter")
CACHES = ("tensor-cache.json", "ndarray-cache.json")
LISTINGS = (".json", ".mil")
BUNDLE = "main.mlirb"

FORMATS = (
    Format(
        "aimodel", (".mlirb",), holds="storage.table:is_bundle", open="aimodel.asset:open_asset",
        open_model="aimodel.asset:open_asset", check="aimodel.check:check_asset", codes="aimodel.check:CODES",
        refit="aimodel.refit:refit", repack="aimodel.repack:repack",
        changeable="aimodel.asset:changeable_files",
    ),
    Format(
        "archive", (".tar", ".tar.gz", ".tgz"), holds="formats.directories:is_unpacked", open="tvm.arrays:open_arrays",
        check="tvm.check:check_archive", codes="tvm.findings:CODES", refit="tvm.refit:refit",
        changeable="formats.directories:changeable_files",
    ),
    Format(
        "tensor-cache", names=CACHES, holds="formats.directories:has_cache", open="formats.tensor_cache:open_cache",
    ),
    Format(
        "safetensors", (".safetensors",), open="formats.safetensors:open_arrays", save="formats.safetensors:save",
        written=(".safetensors",), called="a safetensors file",
    ),
    Format(
        "npz", (".npz",), open="formats.npz:open_arrays", save="formats.npz:save", written=(".npz",),
        called="an npz file",
    ),
    Format(
        "npy", (".npy",), holds="formats.directories:has_npy", open="formats.npy_dir:open_path",
        save="formats.npy_dir:save", called="a NumPy array", magic=b"\x93NUMPY",
    ),
    Format(
        "params", (".params",), open="formats.params:open_arrays", check="tvm.check:check_params",
        codes="tvm.findings:CODES", save="formats.params:write_params", written=(".params",),
        called="parameters of TVM", magic=0xF7E58D4F05049CB7.to_bytes(8, "little"),
    ),
    Format("gguf", (".gguf",), open="formats.gguf:open_arrays", called="a GGUF file", magic=b"GGUF"),
    Format("onnx", (".onnx",), open="formats.onnx:open_arrays", called="an ONNX model"),
    Format(
        "safetensors", (".safetensors.index.json",), holds="formats.directories:has_checkpoint",
        open="formats.safetensors:open_path",
    ),
    Format(
        "weights", (*BLOB_SUFFIXES, *LISTINGS), open="formats.weights:open_arrays", save="formats.weights:save",
        written=BLOB_SUFFIXES, is_model=True,
    ),
)  # fmt: skip

ARRAYS = {row.kind: row for row in FORMATS if row.called}
"""The formats of single files of arrays, by kind."""
SUFFIXES = tuple(suffix for row in ARRAYS.values() for suffix in row.suffixes)
WRITTEN = tuple(suffix for row in ARRAYS.values() for suffix in row.written)
UNPACKED = tuple(suffix for suffix in WRITTEN if suffix != ".params")  # can hold integers below a byte in two ways


def imported(name: str) -> Any:
    """Return the object that "folder.module:name" names in milblob."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(f"{__package__.partition('.')[0]}.{module}"), attribute)


def format_of(path: str) -> Format | None:
    """Return the format of a path: of a file by its name alone, of a directory by what is in it; None of another."""
    if paths.is_directory(path):
        return next((row for row in FORMATS if row.holds and imported(row.holds)(path)), None)
    name = os.path.basename(path)
    lower = name.lower()
    return next((row for row in FORMATS if name in row.names or lower.endswith(row.suffixes)), None)


def model_opener(source: Any) -> Callable[..., Any] | None:
    """Return the function that opens a source as a model of a format with its own folder; None for Core ML."""
    if isinstance(source, str | os.PathLike):
        row = format_of(as_path(source))
        return row.function("open_model") if row is not None and row.open_model else None
    if _head(source) == b"ML\xefR":
        return FORMATS[0].function("open_model")  # type: ignore[no-any-return]
    return None


def _head(source: Any) -> bytes:
    """Return the first four bytes of a buffer or a file object (its position is kept); b"" for any other object."""
    try:
        if not hasattr(source, "seek") or isinstance(source, mmap.mmap):
            return bytes(memoryview(source).cast("B")[:4])
        at = source.tell()
        try:
            source.seek(0)
            return bytes(source.read(4))
        finally:
            source.seek(at)
    except (TypeError, ValueError, OSError):  # opening it reports the error
        return b""


def is_bundle(path: str) -> bool:
    """Whether a directory is a bundle of Core AI: by its name, or by the bytecode in it."""
    return path.rstrip("/\\").endswith(".aimodel") or paths.is_there(os.path.join(path, BUNDLE))
