"""milblob.convert: tensors of models and files of arrays, written in another format."""

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..arguments import as_mapping, as_path, require, require_flags, source_of
from ..dtypes import DType, as_dtype
from ..errors import UnsupportedError
from ..formats.selecting import ChosenTensors, open_tensors
from ..formats.write import format_written, listing_of, require_use, save_as
from ..mirrored import shown
from ..model.lazy import LazyTensor, dtype_text
from ..model.model import Model
from ..progress import Progress, start_progress
from ..remote.cache import CacheLike
from ..remote.reading import takes_urls
from ..results import Result
from ..selection import Select, choose, selector
from .destination import require_outside

_WIDENED = ("int4", "uint1", "uint2", "uint3", "uint4", "uint6")
_SOURCE = "the path of a model or a file of arrays, or an open Model"


@dataclass(frozen=True, repr=False)
class ConvertedTensor(Result):
    """One tensor that was written.

    Attributes:
        name, shape, nbytes: of it; bytes as stored in the source.
        dtype: its name, in the source; of one that MIL lacks, its name in its own format.

    Examples:
        >>> tensor = milblob.convert("demo.mlpackage", "bias.npz", select="head_bias").tensors[0]
        >>> tensor.name, tensor.dtype, tensor.shape, tensor.nbytes
        ('head_bias', 'float32', (96,), 384)
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int


@dataclass(frozen=True, repr=False)
class ConvertReport(Result):
    """What a conversion wrote.

    Attributes:
        source: the path, or several.
        destination: the path.
        tensors: in the order of the sources.
        listing: path of the listing of a weight file; None of other formats.
        widened: names of the tensors that a .params file, which has no integers below a byte, holds as int8 or uint8.
        noted: names of the tensors that a weight file, which lacks their dtypes, holds as uint8 with a note in the
            listing; no Core ML model can use them.
        skipped: name -> dtype, or why it has none, of the arrays that `skip_unsupported` left out.
        unmatched: globs of `select` that no tensor matches, beside others that match some.

    Examples:
        >>> report = milblob.convert("demo.mlpackage", "arrays.npz", select=["head*", "tail*"])
        >>> len(report.tensors), report.nbytes, report.unmatched
        (2, 18816, ('tail*',))
    """

    source: str | tuple[str, ...]
    destination: str
    tensors: tuple[ConvertedTensor, ...]
    listing: str | None = None
    widened: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()

    _keys: ClassVar = {"source": "path", "destination": "output", "nbytes": "nbytes"}

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors, as stored in the source."""
        return sum(tensor.nbytes for tensor in self.tensors)


@takes_urls("source")
def convert(
    source: Any,
    destination: str | os.PathLike[str],
    *,
    select: Select = None,
    function: str | None = None,
    constants: bool = False,
    stored: bool = False,
    unpack: bool = False,
    dtypes: Mapping[str, Any] | None = None,
    skip_unsupported: bool = False,
    listing: str | os.PathLike[str] | None = None,
    align: int | None = None,
    tvm: str | None = None,
    force: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> ConvertReport:
    """Write the tensors of models and files of arrays in another format, without loss.

    Args:
        source: the path of a model, a weight file or a file of arrays (see `open_arrays`); an open Model; an MLModel of
            coremltools. Or a list of these, which become one file; no name may occur twice.
        destination: its suffix chooses the format, as for `save`.
        select: glob, several, or a function of a name: the tensors that are written.
        function: only tensors of this function of the model.
        constants, stored: as for `open`.
        unpack: store int4 and narrower integers as one element to a byte, not packed. Of .npz, .safetensors and
            directories; weight files never do, .params files always.
        dtypes: of a weight file: name or glob -> DType, name or NumPy dtype to store instead, as for `write_weights`.
            Of several that match a name the last one is taken.
        skip_unsupported: of a weight file: leave out what it cannot hold: bool, 64-bit numbers, strings, and dtypes
            that MIL lacks. Without it the first three become uint8 with a note in the listing.
        listing, align: of a weight file, as for `save`.
        tvm: version of TVM that wrote, or is to read, a .params file.
        force: replace what is at `destination`, and its listing.
        progress: called as each tensor is written (see `Progress`).
        max_nbytes: as for `open`, for each source.

    Returns:
        ConvertReport.

    Raises:
        ValueError: a destination of no format or inside a source; an option of another format; nothing to write, or
            nothing that is selected; a name that occurs twice. KeyError: no such function. As `open`, `open_arrays`,
            `save` and `write_weights`. Nothing is written then.

    Examples:
        >>> report = milblob.convert("demo.mlpackage", "head.npz", select="head*")
        >>> [tensor.name for tensor in report.tensors]
        ['head_weight', 'head_bias']
        >>> milblob.convert("head.npz", "weight.bin").listing
        'weight.json'
    """
    require_flags(constants=constants, stored=stored, unpack=unpack, skip_unsupported=skip_unsupported, force=force)
    start_progress(progress)
    given = as_mapping("dtypes", dtypes, "a mapping of names or globs to dtypes")
    sources, target = _sources(source), as_path(destination)
    row = format_written(target)
    require_use(
        target, row, listing=listing is not None, align=align is not None, dtypes=bool(given),
        skip_unsupported=skip_unsupported, unpack=unpack,
    )  # fmt: skip
    names = [str(one.path) if isinstance(one, Model) else one for one in sources]
    if tvm is not None and not any(name.lower().endswith(".params") for name in (*names, target)):
        raise ValueError(f"{', '.join(map(shown, names))}, {target}: expected a .params file, which tvm is about")
    listed = listing_of(target, listing) if row.kind == "weights" else None
    for name in names:
        require_outside(name, target)
        if listed is not None:
            require_outside(name, listed)
    with ExitStack() as stack:
        opened = [
            open_tensors(
                stack, one, function=function, constants=constants, stored=stored, tvm=tvm, max_nbytes=max_nbytes
            )
            for one in sources
        ]
        names = list(map(shown, names))  # from here on for messages and the report
        where = " and ".join(names)
        found, unmatched = choose([name for one in opened for name in one.tensors], select, where)
        chosen, skipped = _chosen(opened, set(found), skip_unsupported)
        stored_as = _dtypes(chosen, given)
        noted = _unsupported(chosen, stored_as, skip_unsupported) if row.kind == "weights" else {}
        if skip_unsupported:
            chosen = {name: tensor for name, tensor in chosen.items() if name not in noted}
            skipped, noted = skipped | noted, {}
        if not chosen:
            inside = "" if function is None else f" for function {function}"
            raise ValueError(f"tensors to convert: expected at least one, got none in {where}{inside}")
        report = written(names, target, chosen, listed, tuple(noted), skipped, unmatched)
        try:
            save_as(
                row, chosen, target, listed, align, dtypes=stored_as, tvm=tvm if row.kind == "params" else None,
                packed=not unpack, force=force, progress=progress,
            )  # fmt: skip
        except UnsupportedError as error:
            if not stored and any(getattr(tensor, "compression", None) for tensor in chosen.values()):
                raise UnsupportedError(f"{error} (--stored, or stored=True, writes the parts)") from None
            raise
    return report


def written(
    sources: list[str],
    target: str,
    tensors: Mapping[str, LazyTensor],
    listing: str | None = None,
    noted: tuple[str, ...] = (),
    skipped: Mapping[str, str] | None = None,
    unmatched: tuple[str, ...] = (),
) -> ConvertReport:
    """Return the report of tensors that are to be written; it is made before, so that nothing can fail afterwards.

    Raises: As the sizes, dtypes and shapes of the tensors.
    """
    rows = tuple(ConvertedTensor(name, dtype_text(one), one.shape, one.nbytes) for name, one in tensors.items())
    is_params = target.lower().endswith(".params")
    widened = tuple(row.name for row in rows if is_params and row.dtype in _WIDENED)
    source = sources[0] if len(sources) == 1 else tuple(sources)
    return ConvertReport(source, target, rows, listing, widened, noted, skipped or {}, unmatched)


def _sources(source: Any) -> list[str | Model]:
    """Return every source as a path or an open Model. Raises: TypeError: something else. ValueError: an empty list."""
    if isinstance(source, list | tuple) and not source:
        raise ValueError("source: expected at least one, got none")
    found: list[str | Model] = []
    for one in map(source_of, source if isinstance(source, list | tuple) else [source]):
        if not isinstance(one, Model):
            require("source", one, str | os.PathLike, f"{_SOURCE}, or a list of these")
        found.append(one if isinstance(one, Model) else as_path(one))
    return found


def _chosen(
    opened: Iterable[ChosenTensors], wanted: set[str], skip_unsupported: bool
) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Return the wanted tensors of all sources, with what a listing notes about its records restored.

    Returns: The tensors by name; of those that are left out, because MIL lacks their dtypes, name -> reason.
    Raises: ValueError: a name occurs twice. UnsupportedError: a dtype that MIL lacks, without `skip_unsupported`.
    """
    chosen: dict[str, LazyTensor] = {}
    skipped: dict[str, str] = {}
    for one in opened:
        names = list(filter(wanted.__contains__, one.tensors))
        tensors = one.tensors
        if one.model is not None and one.model.kind == "listing":
            from ..formats.weights import with_notes  # brings what writes weight files

            tensors = with_notes(one.only(names).tensors, one.model)
        for name in names:
            if name in chosen or name in skipped:
                raise ValueError(f"names of tensors: expected each once, got {name} again in {one.path}")
            try:
                chosen[name] = tensors[name]
            except UnsupportedError as error:
                if not skip_unsupported:
                    raise
                skipped[name] = f"({error.what})"
    return chosen, skipped


def _dtypes(tensors: Mapping[str, LazyTensor], given: Mapping[str, Any]) -> dict[str, DType]:
    """Return the dtype to store of each tensor that a name or glob in `given` matches; the last one is taken.

    Raises: ValueError: no such tensor; a dtype that weight files lack. TypeError: no such dtype.
    """
    result: dict[str, DType] = {}
    for glob, value in given.items():
        dtype = as_dtype(value)
        if dtype.blob_code is None:
            raise ValueError(f"dtypes {glob}: expected a dtype that weight files hold, got {dtype}")
        found = list(filter(selector(glob), tensors))
        if not found:
            raise ValueError(f"dtypes: no tensor matches {glob}")
        result.update(dict.fromkeys(found, dtype))
    return result


def _unsupported(
    tensors: Mapping[str, LazyTensor], dtypes: Mapping[str, DType], skip_unsupported: bool
) -> dict[str, str]:
    """Return name -> dtype of each tensor whose dtype weight files lack, and for which `dtypes` has no other.

    Raises: UnsupportedError: a dtype that MIL lacks, without `skip_unsupported`.
    """
    found = {}
    for name, tensor in tensors.items():
        try:
            dtype = dtypes.get(name) or tensor.mil_dtype
        except UnsupportedError as error:
            if not skip_unsupported:
                raise
            found[name] = f"({error.what})"
            continue
        if dtype.blob_code is None:
            found[name] = str(dtype)
    return found
