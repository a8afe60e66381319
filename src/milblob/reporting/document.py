"""The data of a report as plain rows: everything that the page shows of one model."""

import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from ..analysis.check import check
from ..analysis.sides import Side
from ..dtypes import DType
from ..errors import MilblobError
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.tensor import Tensor
from ..progress import ProgressCounter
from ..wording import bounded, escape
from .fields import STATISTICS, number
from .scopes import scope_tree
from .values import Examined, examine_all

COLUMNS = (
    "name", "dtype", "shape", "nbytes", "count", "bits", "function", "op", "compression", "file", "offset",
    "data_offset", "consumers", "consumer_count", "statistics", "histogram", "histogram_count", "channels", "sampled",
    "failure",
)  # fmt: skip
"""The columns of the table of weights."""
_MAX_CONSUMERS = 8
_MAX_FINDINGS = 500
_MAX_FEATURES = 64


class Subject(NamedTuple):
    """What a report is about."""

    side: Side  # a model or a file of arrays, open
    tensors: Mapping[str, LazyTensor]  # those that were selected, in order


def weights_of(chosen: Subject, values: bool, counter: ProgressCounter) -> dict[str, Any]:
    """Return the table of weights, and their tree of scopes.

    `values`: read them. `counter`: is given each weight that was read.
    """
    tensors = list(chosen.tensors.values())
    rows = []
    found: Iterable[Examined] = examine_all(tensors) if values else (Examined() for _ in tensors)
    for (name, tensor), examined in zip(chosen.tensors.items(), found, strict=True):
        rows.append(_row(name, tensor, examined, chosen.side.words))
        counter.add_tensor(name, tensor)
    return {
        "columns": list(COLUMNS),
        "statistics": list(STATISTICS),
        "rows": rows,
        "tree": scope_tree(list(map(escape, chosen.tensors))),
    }


def _row(name: str, tensor: LazyTensor, found: Examined, source: str) -> list[Any]:
    failure = found.failure
    nbytes = count = None
    shape: list[Any] = []
    try:
        shape = list(tensor.declared_shape)
        nbytes = tensor.nbytes
        count = tensor.size
    except (MilblobError, OSError, ValueError) as error:  # the shape follows from values that cannot be read
        failure = failure or escape(bounded(f"{type(error).__name__}: {error}"))
    bits = number(8 * nbytes / count) if nbytes is not None and count else None
    place = _place(tensor, source) if isinstance(tensor, Tensor) else ["", "", "", None, None, None, [], 0]
    return [
        escape(name), _dtype(tensor), shape, nbytes, count, bits, *place, found.figures, found.histogram,
        found.histogram_count, found.channels, found.sampled, within(failure, source),
    ]  # fmt: skip


def within(text: str, source: str) -> str:
    """Return an escaped text without the directories of its source: the report may be sent to others."""
    path = escape(source.rstrip(os.sep))
    return text.replace(path + os.sep, "").replace(path, os.path.basename(path)) if os.sep in path else text


def _dtype(tensor: LazyTensor) -> str:
    return str(tensor.mil_dtype) if isinstance(tensor.mil_dtype, DType) else escape(str(tensor.mil_dtype))


def _place(tensor: Tensor, source: str) -> list[Any]:
    """Function, operation, compression, file, offsets and consumers of a weight of a model."""
    file = tensor.file
    if file is not None and source and file.startswith(source.rstrip(os.sep) + os.sep):
        file = file[len(source.rstrip(os.sep)) + 1 :]
    elif file is not None:
        file = os.path.basename(file)
    try:
        data_offset = tensor.data_offset
    except (MilblobError, OSError):  # the file is missing, or the record is broken: `check` reports it
        data_offset = None
    consumers = tensor.consumers
    readers = [
        [escape(one.type or "output"), escape(one.label), escape(one.name)] for one in consumers[:_MAX_CONSUMERS]
    ]
    return [
        escape(tensor.function), escape(tensor.op), escape(str(tensor.compression)),
        None if file is None else escape(file), tensor.offset, data_offset, readers, len(consumers),
    ]  # fmt: skip


def model_of(chosen: Subject) -> dict[str, Any]:
    """Return the title, the totals and the metadata of one model."""
    side, tensors = chosen
    kind = side.model.kind if side.model is not None else "arrays"
    nbytes = elements = 0
    for tensor in tensors.values():
        try:
            nbytes += tensor.nbytes
            elements += tensor.size
        except (MilblobError, OSError, ValueError):  # its row has the reason
            continue
    path = side.words
    return {
        "title": escape(bounded(os.path.basename(path.rstrip(os.sep)) or path)),
        "kind": kind,
        "weights": len(tensors),
        "nbytes": nbytes,
        "elements": elements,
        "metadata": _metadata(side.model) if side.model is not None else [],
    }


def _metadata(model: Model) -> list[list[str]]:
    try:
        found = model.metadata
    except MilblobError as error:
        return [["metadata", escape(bounded(str(error)))]]
    rows: list[tuple[str, Any]] = [
        ("author", found.author),
        ("description", found.description),
        ("licence", found.license),
        ("version", found.version),
        ("specification", found.spec_version or ""),
        ("operations", found.opset),
        ("producer", found.producer),
    ]
    for what in ("inputs", "outputs", "states"):
        features = getattr(found, what)
        rows += [(what[:-1], str(feature)) for feature in features[:_MAX_FEATURES]]
        if len(features) > _MAX_FEATURES:
            rows.append((what, f"and {len(features) - _MAX_FEATURES:,} more"))
    rows += list(found.user_defined.items())[:_MAX_FEATURES]
    return [[escape(bounded(key)), escape(bounded(str(value)))] for key, value in rows if value != ""]


def findings_of(side: Side, counter: ProgressCounter) -> list[list[str]] | None:
    """Return what `check` finds, errors first; None for what it cannot check: arrays, and models without a path.

    `counter`: notes what is checked.
    """
    if side.model is None or side.model.path is None:
        return None
    order = {"error": 0, "warning": 1, "note": 2}
    checked = check(side.model.path, progress=counter.notes)
    found = sorted(checked, key=lambda finding: order[finding.severity])
    inside = os.path.join(side.model.path.rstrip(os.sep), "")
    rows = []
    for one in found[:_MAX_FINDINGS]:
        file = "" if one.file is None else one.file.removeprefix(inside)
        file = os.path.basename(file) if os.path.isabs(file) else file
        at = "" if one.offset is None else f"byte {one.offset:,}"
        place = ", ".join(filter(None, (one.where, file, at)))
        texts = [within(escape(bounded(text)), side.model.path) for text in (one.message, place)]
        rows.append([one.severity, one.code, *texts])
    if len(found) > _MAX_FINDINGS:
        rows.append(["note", "", f"{len(found) - _MAX_FINDINGS:,} more findings: milblob check lists all", ""])
    return rows
