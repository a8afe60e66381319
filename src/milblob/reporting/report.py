"""milblob.report: one HTML file about a model, or about two, that opens from disk without network."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..analysis.sides import Side
from ..arguments import as_path, require_flags
from ..model.lazy import LazyTensor
from ..progress import Progress, ProgressCounter, start_progress
from ..remote.cache import CacheLike
from ..remote.reading import takes_urls
from ..results import Result
from ..rewrite.destination import require_outside_models
from ..selection import Select, require_selected, selector
from ..storage.output import NewFile
from ..storage.transfer import write_at
from ..version import VERSION
from ..wording import escape
from .document import Subject, findings_of, model_of, weights_of
from .page import library, page

_FORMAT = 1
"""Of the data in the file."""


@dataclass(frozen=True, repr=False)
class ReportFile(Result):
    """A report that was written.

    Attributes:
        destination: path of the file.
        nbytes: its size.
        weights: number of weights of the first model.
        sampled: names of weights of whose values only a sample was read, because they are so large.
        unreadable: name -> why its values could not be read.
        findings: severity -> number of findings of `check`.

    Examples:
        >>> found = milblob.report("demo.mlpackage", destination="report.html")
        >>> found.destination, found.weights, found.unreadable
        ('report.html', 69, {})
    """

    destination: str
    nbytes: int
    weights: int
    sampled: tuple[str, ...]
    unreadable: dict[str, str]
    findings: dict[str, int]


@takes_urls("source", "other")
def report(
    source: Any,
    other: Any = None,
    *,
    destination: str | os.PathLike[str],
    values: bool = True,
    select: Select = None,
    plan: Any = None,
    frontier: Any = None,
    force: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
    storage_options: dict[str, Any] | None = None,
    cache: CacheLike = None,
) -> ReportFile:
    """Write one HTML file about a model, or about two: a map of its bytes, its weights, its findings, what differs.

    The file needs no network and runs no code but its own; docs/report.md describes what it shows. A weight that cannot
    be read does not end the report: the page and the result give the reason.

    Args:
        source: a path (a model, weight file or listing; .safetensors, .npz, .npy or a directory of .npy), an open
            Model, or a mapping from names to arrays.
        other: likewise; `source` is the reference.
        destination: path of the file.
        values: read the weights; without it the report is made from the Program alone.
        select: glob, several, or a function of a name: only these weights.
        plan: what a compression did: a CompressReport, a CompressPlan, its dict or the path of its file.
        frontier: a Frontier, its dict, or the path of the JSON that `milblob compress --frontier FILE --json` prints.
        force: replace the file if it exists.
        progress: called as each weight has been read (see `Progress`).
        max_nbytes: as for `open`, of each side that is opened here.
        storage_options, cache: for the file system of each URL (docs/remote.md).

    Returns:
        ReportFile.

    Raises:
        FileExistsError: the file exists, and `force` is False. OSError: it cannot be written. ImportError: the extra
            `report` is not installed. ValueError: `select` selects nothing; a destination inside a model.
            As `open`; with `other`, as `diff`.

    Examples:
        >>> found = milblob.report("demo.mlpackage", destination="report.html")
        >>> report = milblob.compress("demo.mlpackage", "small.mlpackage", "int8")
        >>> found = milblob.report("demo.mlpackage", "small.mlpackage", destination="both.html", plan=report)
        >>> found.weights
        69
    """
    require_flags(values=values, force=force)
    start_progress(progress)
    is_selected = selector(select)
    target = as_path(destination)
    require_outside_models([os.fspath(one) for one in (source, other) if isinstance(one, str | os.PathLike)], target)
    library()  # before the work: an extra that is missing, and below, a file that cannot be written
    with contextlib.ExitStack() as stack, NewFile(target, force=force) as new:
        first = _chosen(Side.open(source, False, stack, max_nbytes), is_selected)
        second = None if other is None else _chosen(Side.open(other, False, stack, max_nbytes), is_selected)
        require_selected(select, bool(first.tensors or (second and second.tensors)), first.side.words)
        document = _document(first, second, values, select, plan, frontier, progress, max_nbytes)
        data = page(document, document["title"])
        written = _result(target, len(data), document)  # before the file has its name
        write_at(new.fd, [data], 0)
    return written


def _chosen(side: Side, is_selected: Any) -> Subject:
    tensors: Mapping[str, LazyTensor] = {name: tensor for name, tensor in side.tensors.items() if is_selected(name)}
    return Subject(side, tensors)


def _document(
    first: Subject,
    second: Subject | None,
    values: bool,
    select: Select,
    plan: Any,
    frontier: Any,
    progress: Progress | None,
    max_nbytes: int | None,
) -> dict[str, Any]:
    compression = None
    if plan is not None or frontier is not None:  # what compresses takes as long to import as a small report to make
        from .compression import compression_of

        compression = compression_of(plan, frontier, {escape(name): at for at, name in enumerate(first.tensors)})
    counter = ProgressCounter(progress if values else None, first.tensors.values())
    models = [model_of(one) for one in (first, second) if one is not None]
    document: dict[str, Any] = {
        "milblob": "report",
        "version": _FORMAT,
        "made_by": f"milblob {VERSION}",
        "title": " and ".join(model["title"] for model in models),
        "values": values,
        "models": models,
        "weights": weights_of(first, values, counter),
        "findings": findings_of(first.side, counter),
        "comparison": None,
        "compression": compression,
    }
    if second is not None:
        from .comparison import comparison_of

        options: dict[str, Any] = {"select": select, "progress": progress, "max_nbytes": max_nbytes}
        document["comparison"] = comparison_of(first, second, counter, values=values, **options)
    return document


def _result(target: str, nbytes: int, document: dict[str, Any]) -> ReportFile:
    weights = document["weights"]
    rows = [dict(zip(weights["columns"], row, strict=True)) for row in weights["rows"]]
    findings: dict[str, int] = {}
    for severity, *_ in document["findings"] or []:
        findings[severity] = findings.get(severity, 0) + 1
    return ReportFile(
        destination=target,
        nbytes=nbytes,
        weights=len(rows),
        sampled=tuple(row["name"] for row in rows if row["sampled"] is not None),
        unreadable={row["name"]: row["failure"] for row in rows if row["failure"]},
        findings=findings,
    )
