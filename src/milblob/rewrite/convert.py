"""milblob.convert and extract: tensors of a model or a file of arrays, written in another format."""

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from ..arguments import as_path, require, require_calls, require_flags, source_of
from ..errors import UnsupportedError
from ..formats.selecting import keeper, open_tensors
from ..formats.write import format_written, listing_of, save
from ..model.lazy import LazyTensor, dtype_text
from ..model.model import Model
from ..progress import Progress
from ..remote.reading import takes_urls
from ..selection import Select
from .destination import require_outside

_WIDENED = ("int4", "uint1", "uint2", "uint3", "uint4", "uint6")


@dataclass(frozen=True)
class ConvertedTensor:
    """One tensor that was written.

    Attributes:
        name, shape, nbytes: of it; bytes as values.
        dtype: its name; of one that MIL lacks, its name in its own format.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True)
class ConvertReport:
    """What a conversion wrote.

    Attributes:
        source, destination: paths.
        tensors: in the order of the source.
        listing: path of the listing of a weight file; None of other formats.
        widened: names of the tensors that a .params file, which has no integers below a byte, holds as int8 or uint8.
    """

    source: str
    destination: str
    tensors: tuple[ConvertedTensor, ...]
    listing: str | None = None
    widened: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all values."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        listed = {} if self.listing is None else {"listing": self.listing}
        return {
            "path": self.source, "output": self.destination, "tensors": [tensor.name for tensor in self.tensors],
            "nbytes": self.nbytes, **listed,
        }  # fmt: skip


@takes_urls("source")
def convert(
    source: Any,
    destination: str | os.PathLike[str],
    *,
    select: Select = None,
    function: str | None = None,
    constants: bool = False,
    stored: bool = False,
    listing: str | os.PathLike[str] | None = None,
    align: int | None = None,
    tvm: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> ConvertReport:
    """Write the tensors of a model or a file of arrays in another format, without loss.

    Args:
        source: the path of a model, a weight file or a file of arrays (see `open_arrays`); an open Model; an MLModel of
            coremltools.
        destination: its suffix chooses the format, as for `save`.
        select: glob, several, or a function of a name: the tensors that are written.
        function: only tensors of this function of the model.
        constants, stored: as for `open`.
        listing, align: of a weight file, as for `save`.
        tvm: version of TVM that wrote, or is to read, a .params file.
        force: replace what is at `destination`, and its listing.
        progress: called as each tensor is written (see `Progress`).
        max_nbytes: as for `open`.

    Returns:
        ConvertReport.

    Raises:
        ValueError: a destination of no format or inside the source; nothing that is selected. KeyError: no such
            function. As `open`, `open_arrays` and `save`. Nothing is written then.

    Example:
        >>> milblob.convert("Model.mlpackage", "weights.safetensors", select="encoder*")
    """
    require_flags(constants=constants, stored=stored, force=force)
    require_calls(progress=progress)
    source, target = _path(source), as_path(destination)
    row = format_written(target)
    is_weights = row.kind == "weights"
    if (listing is not None or align is not None) and not is_weights:
        raise ValueError(f"output {target}: expected a weight file (.bin), which listing and align are about")
    if tvm is not None and not any(path.lower().endswith(".params") for path in (str(source), target)):
        raise ValueError(f"{source}, {target}: expected a .params file, which tvm is about")
    listed = listing_of(target, listing) if is_weights else None
    with ExitStack() as stack:
        _require_apart(source, target, listed)
        chosen = open_tensors(
            stack, source, keeper(select), function=function, constants=constants, stored=stored, noted=True, tvm=tvm,
            max_nbytes=max_nbytes,
        )  # fmt: skip
        options = {"tvm": tvm if row.kind == "params" else None, "listing": listed, "align": align, "packed": True}
        return _written(chosen.path, chosen.tensors, target, stored, force, progress, **options)


@takes_urls("source")
def extract(
    source: Any,
    destination: str | os.PathLike[str],
    *,
    select: Select = None,
    function: str | None = None,
    constants: bool = False,
    stored: bool = False,
    force: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
) -> ConvertReport:
    """Write the tensors of a model for other tools: as `convert`, with one element of int4 and the like to a byte.

    Args:
        source, select, function, constants, stored, force, progress, max_nbytes: as for `convert`.
        destination: ends in .safetensors, .npz or .params; or a directory of .npy files.

    Returns:
        ConvertReport.

    Raises:
        As `convert`. ValueError: a weight file as the destination (`convert` writes one).

    Example:
        >>> milblob.extract("Model.mlpackage", "head/", select="head*")
    """
    require_flags(constants=constants, stored=stored, force=force)
    require_calls(progress=progress)
    source, target = _path(source), as_path(destination)
    if format_written(target).kind == "weights":
        words = "expected .npz, .safetensors, .params or a directory (ending in /), got a weight file; "
        raise ValueError(f"output {target}: {words}`convert` writes one")
    with ExitStack() as stack:
        _require_apart(source, target, None)
        chosen = open_tensors(
            stack, source, keeper(select), function=function, constants=constants, stored=stored, noted=True,
            max_nbytes=max_nbytes,
        )  # fmt: skip
        return _written(chosen.path, chosen.tensors, target, stored, force, progress)


def _path(source: Any) -> Any:
    """The path of a source, or an open Model."""
    source = source_of(source)
    if isinstance(source, Model):
        return source
    require("source", source, str | os.PathLike, "the path of a model or a file of arrays, or an open Model")
    return as_path(source)


def _require_apart(source: Any, target: str, listing: str | None) -> None:
    path = source.path if isinstance(source, Model) else source
    for one in (target, listing):
        if path is not None and one is not None:
            require_outside(path, one)


def _written(
    source: str,
    tensors: Mapping[str, LazyTensor],
    target: str,
    stored: bool,
    force: bool,
    progress: Progress | None,
    **options: Any,
) -> ConvertReport:
    if not tensors:
        raise ValueError(f"tensors to write: expected at least one, got none in {source}")
    rows = tuple(ConvertedTensor(name, dtype_text(one), one.shape, one.nbytes) for name, one in tensors.items())
    is_params = target.lower().endswith(".params")
    widened = tuple(row.name for row in rows if is_params and row.dtype in _WIDENED)
    try:
        save(tensors, target, force=force, progress=progress, **options)
    except UnsupportedError as error:
        if not stored and any(getattr(tensor, "compression", "") for tensor in tensors.values()):
            raise UnsupportedError(f"{error} (--stored, or stored=True, writes the parts)") from None
        raise
    return ConvertReport(source, target, rows, options.get("listing"), widened)
