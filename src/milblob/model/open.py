"""milblob.open and load: open a model to read its weights or to assign new values."""

from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np

from ..arguments import require_flags
from ..errors import UnsupportedError
from ..mirrored import is_remote
from ..storage.mapped import closed_on_error
from ..storage.table import model_opener
from .model import Model
from .reading import read_all

if TYPE_CHECKING:
    from ..remote.cache import CacheLike
    from ..remote.mirror import Mirror
    from .editable import EditableModel


@overload
def open(
    source: Any,
    mode: Literal["r+"],
    *,
    constants: bool = False,
    stored: bool = False,
    mmap: Literal[True] = True,
    max_nbytes: int | None = None,
    storage_options: None = None,
    cache: None = None,
) -> "EditableModel": ...


@overload
def open(
    source: Any,
    mode: str = "r",
    *,
    constants: bool = False,
    stored: bool = False,
    mmap: bool = True,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: "CacheLike" = None,
) -> Model: ...


def open(
    source: Any,
    mode: str = "r",
    *,
    constants: bool = False,
    stored: bool = False,
    mmap: bool = True,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: "CacheLike" = None,
) -> Model:
    """Open a model, or a bare weight file, without reading its values.

    Args:
        source: path of a .mlpackage, .mlmodelc, .mlmodel, model.mil, blob file, or listing of one (`write_weights`);
            or a buffer or file object that holds one of the latter four. The contents decide which. Also a bundle of
            Core AI (.aimodel) or its .mlirb file, for reading. A URL ("https://...", "s3://...", "hf://...", any that
            fsspec knows) or a .zip of a model is read without being downloaded or unpacked: see docs/remote.md.
        mode: "r" to read; "r+" also to assign: `model["w"] = array` (see EditableModel). With "r+", `source` must be a
            path, no other writer may have the model open, and a change that was interrupted is completed first.
        constants: list every tensor constant, not only the weights (every blob-file value, and numeric immediates of
            ten or more elements).
        stored: list the stored parts of compressed weights ("w.indices", "w.lut", ...) instead of the dense weights.
        mmap: map files. False reads a whole file into memory when it is first needed (a weight file, when one of its
            tensors is), and arrays share that memory: for files that another process may truncate, where touching a
            lost mapped page kills this process (SIGBUS). For reading only.
        max_nbytes: limit for the bytes of values produced from the files, each tensor counted once: decoded, unpacked,
            scanned or written elsewhere, but not views of the files. Default: 256 times the bytes of the files, at
            least 1 GiB; only a file built to exhaust memory or time reaches that.
        storage_options: of a URL: what its file system takes, such as {"headers": {...}} for https.
        cache: of a URL: a directory that keeps what is fetched for later calls, also of other processes; its path, or
            a `milblob.Cache`, which has a size too. Default: nothing is kept.

    Returns:
        Model, a mapping from names to `Tensor`; a context manager. With "r+", an EditableModel. Of a bundle of Core AI,
        a `milblob.aimodel.Asset`, which reads in the same way.

    Raises:
        OSError: a file cannot be opened, or fetched. ImportError: the extra "remote", which this URL needs, is missing.
        FormatError: broken bytes; UnsupportedError: not an ML Program (the type is named), or a weight computed by more
            operations than any tool writes; ResolveError: the manifest names no file. A missing weight file raises only
            when one of its tensors is read.
        PendingChangeError: "r", and a change of the model was interrupted: `milblob.recover` completes it.
        ValueError: another mode; "r+" with mmap=False, or of a file inside a package; `storage_options` or `cache`
            without a URL. BlockingIOError: "r+", and another writer has it.

    Examples:
        >>> with milblob.open("demo.mlpackage") as model:
        ...     print(len(model), model["head_weight"])
        ...     bias = model["head_bias"].read()
        69 <Tensor 'head_weight': float32 [96, 48]>
        >>> bias.shape
        (96,)
    """
    options: dict[str, Any] = {"constants": constants, "stored": stored, "mmap": mmap, "max_nbytes": max_nbytes}
    mirror = None
    if storage_options or cache is not None or is_remote(source):
        from ..remote.mirror import open_mirror

        mirror = open_mirror(source, storage_options, max_nbytes, cache)
    found: Any = _open_local(source, mode, options) if mirror is None else _open_mirror(mirror, mode, options)
    return found  # type: ignore[no-any-return]


def _open_local(source: Any, mode: str, options: dict[str, Any]) -> Any:
    other = model_opener(source)
    if other is None:
        return open_model(source, mode, **options)
    if mode != "r":
        _require_mode(mode)
        raise UnsupportedError(
            "mode 'r+': expected a Core ML model, got a bundle of Core AI (milblob.refit changes one)"
        )
    return other(source, **options)


def _open_mirror(mirror: "Mirror", mode: str, options: dict[str, Any]) -> Any:
    """Open what represents a remote model, and keep it as long as the model is used."""
    with closed_on_error(mirror):
        if mode != "r":
            _require_mode(mode)
            raise ValueError(f"mode 'r+': expected a local model, got {mirror.name}; milblob.download makes a copy")
        found = _open_local(mirror.path, mode, options)
        found.keep(mirror, getattr(found, "package", None))
    return found


def open_model(
    source: Any,
    mode: str = "r",
    *,
    constants: bool = False,
    stored: bool = False,
    mmap: bool = True,
    max_nbytes: int | None = None,
) -> Model:
    """Open one of Core ML's own models, as `open` does; for milblob's own modules.

    Raises: As `open`; UnsupportedError: a bundle of Core AI.
    """
    _require_mode(mode)
    if mode == "r":
        return Model(source, constants=constants, stored=stored, mmap=mmap, max_nbytes=max_nbytes)
    require_flags(mmap=mmap)
    if not mmap:
        raise ValueError("mmap: expected True with mode 'r+', got False")
    from .editable import EditableModel

    return EditableModel(source, constants=constants, stored=stored, max_nbytes=max_nbytes)


def _require_mode(mode: Any) -> None:
    if not isinstance(mode, str) or mode not in ("r", "r+"):
        raise ValueError(f"mode: expected 'r' or 'r+', got {mode!r}")


def load(
    source: Any,
    *,
    constants: bool = False,
    stored: bool = False,
    mmap: bool = True,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: "CacheLike" = None,
) -> dict[str, np.ndarray[Any, Any]]:
    """Read every weight of a model: name -> ndarray.

    Args:
        source, constants, stored, mmap, max_nbytes, storage_options, cache: as for `open`.

    Returns:
        dict in Program order. Arrays are zero-copy, read-only views of the mapped files wherever the stored bytes are
        the values (nothing is read from disk until it is touched), else new arrays. They keep their files mapped; with
        mmap=False, each keeps the memory that its file was read into.

    Raises:
        As `open` and `Tensor.read`; all or nothing.

    Examples:
        >>> weights = milblob.load("demo.mlpackage")
        >>> len(weights), weights["head_weight"].shape, weights["head_weight"].dtype
        (69, (96, 48), dtype('float32'))
    """
    options: dict[str, Any] = {"constants": constants, "stored": stored, "mmap": mmap, "max_nbytes": max_nbytes}
    if storage_options or cache is not None or is_remote(source):
        from ..remote.mirror import local

        with local(source, storage_options, max_nbytes, cache) as path:
            return _load_local(path, options)
    return _load_local(source, options)


def _load_local(source: Any, options: dict[str, Any]) -> dict[str, np.ndarray[Any, Any]]:
    other = model_opener(source)
    if other is not None:
        with other(source, **options) as found:
            return {name: tensor.read() for name, tensor in found.items()}
    with Model(source, **options) as model:
        return read_all(model)
