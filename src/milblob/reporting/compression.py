"""The data of a report about a compression: the recipe of each weight, and the frontier with the chosen size."""

import os
from collections.abc import Mapping
from typing import Any

from ..arguments import as_path, require
from ..compressing.compress import CompressReport
from ..compressing.compress_plan import CompressPlan
from ..compressing.frontier import Frontier
from ..compressing.frontier_svg import short
from ..compressing.parse_recipe import as_recipe
from ..errors import FormatError
from ..jsontext import parse_json
from ..wording import escape
from .fields import number

COLUMNS = ("name", "recipe", "nbytes", "nbytes_after", "sqnr", "largest", "reason")
"""The columns of the table of recipes; `reason` explains why a weight is kept as it is."""


def compression_of(plan: Any, frontier: Any, names: Mapping[str, int]) -> dict[str, Any]:
    """Return the rows of the page.

    Args:
        plan: a CompressReport, a CompressPlan, its dict, or the path of its file.
        frontier: a Frontier, its dict, or the path of the JSON that `milblob compress --frontier --json` prints.
        names: name of a weight of the report -> its index.

    Raises:
        As `CompressPlan.load`; FormatError, ValueError: the frontier is not one.
    """
    rows = [] if plan is None else _of_report(plan) if isinstance(plan, CompressReport) else _of_plan(plan)
    outputs = plan.outputs_sqnr if isinstance(plan, CompressReport) else None
    drawn = None if frontier is None else _frontier(frontier)
    return {
        "columns": [*COLUMNS, "index"],
        "rows": [[*row, names.get(row[0])] for row in rows],
        "outputs_sqnr": number(outputs),
        "chosen": plan.nbytes_after if isinstance(plan, CompressReport) else _chosen(rows, drawn),
        "frontier": drawn,
    }


def _of_report(report: CompressReport) -> list[list[Any]]:
    rows = [
        [escape(one.name), short(one.recipe), one.nbytes, one.nbytes_after, number(one.sqnr), number(one.largest), ""]
        for one in report.weights
    ]
    reasons = {**dict.fromkeys(report.kept, "kept by the plan"), **dict(report.skipped)}
    return rows + [[escape(name), "", None, None, None, None, escape(reason)] for name, reason in reasons.items()]


def _of_plan(source: Any) -> list[list[Any]]:
    rows = []
    for name, weight in (source if isinstance(source, CompressPlan) else CompressPlan.load(source)).weights.items():
        recipe = "" if weight.recipe is None else short(weight.recipe)
        figures = [_figure(weight.figures.get(key)) for key in ("nbytes", "nbytes_after", "sqnr")]
        rows.append([escape(name), recipe, *figures, None, "" if recipe else "kept by the plan"])
    return rows


def _figure(value: Any) -> Any:
    """Return a figure of a plan, which people may have edited."""
    return number(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _frontier(source: Any) -> dict[str, Any]:
    file = None
    if isinstance(source, str | os.PathLike):
        file = as_path(source)
        with open(file, "rb") as opened:  # noqa: PTH123
            source = parse_json(opened.read(), "frontier", file)
    if isinstance(source, Frontier):
        source = source.to_dict()
    try:
        require("frontier", source, Mapping, "a Frontier, its dict or the path of its JSON")
        return {
            "nbytes": _count(source["nbytes"]),
            "points": [_point(row) for row in _rows(source, "points")],
            "alone": [[escape(short(as_recipe(row["recipe"]))), *_point(row)] for row in _rows(source, "alone")],
        }
    except (KeyError, ValueError, TypeError) as error:
        if file is None and not isinstance(error, KeyError):
            raise
        words = f"expected the key {error}, got none" if isinstance(error, KeyError) else str(error)
        raise FormatError(f"frontier: {words}", file=file) from None


def _rows(source: Mapping[str, Any], key: str) -> Any:
    rows = source[key]
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) for row in rows):
        raise ValueError(f"{key}: expected a list of objects, got {type(rows).__name__}")
    return rows


def _point(row: Mapping[str, Any]) -> list[Any]:
    """Return [bytes, SQNR in dB] of one size; an SQNR of None is infinite."""
    sqnr = row["sqnr"]
    if not isinstance(sqnr, int | float | None):
        raise ValueError(f"sqnr: expected a number or null, got {sqnr!r:.40}")
    return [_count(row["nbytes"]), number(sqnr)]


def _count(nbytes: Any) -> int:
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or not 0 <= nbytes < 1 << 53:
        raise ValueError(f"nbytes: expected a number of bytes, got {nbytes!r:.40}")
    return nbytes


def _chosen(rows: list[list[Any]], frontier: dict[str, Any] | None) -> int | None:
    """Return the bytes of all weights after a plan, if the frontier has their number before it."""
    saved = [before - after for _, _, before, after, *_ in rows if before is not None and after is not None]
    return frontier["nbytes"] - sum(saved) if frontier is not None and saved else None
