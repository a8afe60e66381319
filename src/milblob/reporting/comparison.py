"""The data of a report about two models: how far each weight of one is from its counterpart in the other."""

from collections.abc import Mapping
from typing import Any

from ..analysis.changes import Change
from ..analysis.diff import diff
from ..analysis.tensor_diff import TensorDiff
from ..errors import MilblobError
from ..model.lazy import LazyTensor
from ..progress import Progress, ProgressCounter
from ..selection import Select
from ..wording import bounded, escape
from .document import Subject
from .fields import number
from .values import overlaid

COLUMNS = ("name", "other", "kind", "index", "sqnr", "max_abs", "relative", "dtypes", "message", "histograms")
"""The columns of the table of differences."""
_MAX_OVERLAYS = 500
"""Pairs whose histograms are shown: those with the least SQNR."""
_MAX_CHANGES = 200


def comparison_of(
    a: Subject,
    b: Subject,
    counter: ProgressCounter,
    *,
    values: bool,
    select: Select,
    progress: Progress | None,
    max_nbytes: int | None,
) -> dict[str, Any]:
    """Compare two models, and return the rows of the page, in the order of A.

    `counter`: notes each pair whose histograms are made. `values`: compare them; else names only. `select`, `progress`,
    `max_nbytes`: as for `milblob.diff`.
    """
    found = diff(
        _source(a), _source(b), select=select, names_only=not values, progress=progress, max_nbytes=max_nbytes
    )  # fmt: skip
    index = {name: number for number, name in enumerate(a.tensors)}
    overlays = _overlays(found.rows, a.side.tensors, b.side.tensors, counter) if values else {}
    rows = []
    for number_, row in enumerate(found.rows):
        figures = row.figures
        rows.append([
            escape(row.name),
            None if row.other is None or row.other == row.name else escape(row.other),
            row.kind,
            index.get(row.name) if row.kind != "only_b" else None,
            None if figures is None else number(figures.sqnr),
            None if figures is None else number(figures.max_abs),
            None if figures is None else number(figures.relative),
            [None if dtype is None else str(dtype) for dtype in row.dtypes],
            escape(bounded(row.message)),
            overlays.get(number_),
        ])  # fmt: skip
    changes = [*_changes("structure", found.structure), *_changes("metadata", found.metadata)]
    return {
        "columns": list(COLUMNS),
        "rows": rows,
        "changes": changes,
        "totals": {key: count for key, count in found.totals.items() if count},
        "is_same": found.is_same,
        "names_only": not values,
    }


def _source(chosen: Subject) -> Any:
    side = chosen.side
    return side.model if side.model is not None else side.arrays if side.arrays is not None else side.tensors


def _changes(what: str, changes: list[Change]) -> list[list[str]]:
    rows = [[what, escape(bounded(str(change)))] for change in changes[:_MAX_CHANGES]]
    if len(changes) > _MAX_CHANGES:
        rows.append([what, f"and {len(changes) - _MAX_CHANGES:,} more"])
    return rows


def _overlays(
    rows: list[TensorDiff], a: Mapping[str, LazyTensor], b: Mapping[str, LazyTensor], counter: ProgressCounter
) -> dict[int, list[Any] | None]:
    """Return both histograms of the pairs that differ most, by the number of their row."""
    differing = [
        (row.figures.sqnr if row.figures.sqnr is not None else float("-inf"), at)
        for at, row in enumerate(rows)
        if row.figures is not None and row.figures.unequal and row.name in a and (row.other or row.name) in b
    ]
    result: dict[int, list[Any] | None] = {}
    for _, at in sorted(differing)[:_MAX_OVERLAYS]:
        row = rows[at]
        counter.note(row.name)
        try:
            result[at] = overlaid(a[row.name], b[row.other or row.name])
        except (MilblobError, OSError, ValueError, TypeError):  # it was read a moment ago: the file has changed since
            result[at] = None
    return result
