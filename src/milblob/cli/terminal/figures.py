"""Statistics as text and as JSON."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from . import output, tables
from .tables import Column

if TYPE_CHECKING:
    from ...analysis.statistics import Statistics

_BAR_NCHARS = 40
_LEFT_OF_BAR_NCHARS = 36


def number(value: Any) -> str:
    """Format a value of a tensor, or a figure about it."""
    return f"{value:.6g}" if isinstance(value, float) else str(value) if isinstance(value, int) else repr(value)


def short(value: Any) -> str:
    """Format a figure in few characters; "-" for None."""
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def plain(value: Any) -> Any:
    """Return a JSON-able value: numbers that are not finite become strings."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def histogram_json(statistics: "Statistics") -> list[dict[str, Any]]:
    """Return the bins, JSON-able."""
    return [{"low": low, "high": high, "count": count} for low, high, count in statistics.histogram or ()]


def to_dict(statistics: "Statistics") -> dict[str, Any]:
    """Return everything but dtype, shape and histogram, in the order of Statistics."""
    left_out = ("dtype", "shape", "histogram", "spread")
    return {key: plain(value) for key, value in vars(statistics).items() if key not in left_out}


def print_histogram(statistics: "Statistics") -> None:
    """Print the bins as bars, if there are any."""
    bins = statistics.histogram
    if not bins:
        return
    block = "\u2588" if output.can_draw("\u2588") else "#"
    most = max(count for _, _, count in bins)
    width = tables.terminal_width()
    nchars = _BAR_NCHARS if width is None else min(_BAR_NCHARS, width - _LEFT_OF_BAR_NCHARS)
    cells = []
    for low, high, count in bins:
        bar = block * max(round(nchars * count / most), 1 if count else 0)
        ends = [str(end) if isinstance(end, int) else f"{end:.4g}" for end in (low, high)]
        cells.append([*ends, str(count), bar])
    if all(low == high for low, high, _ in bins):
        cells = [[number(low), *cell[2:]] for (low, _, _), cell in zip(bins, cells, strict=True)]
        tables.print_table([Column("value", True), Column("count", True), Column("", drop=1)], cells)
    else:
        columns = [Column("from", True), Column("to", True), Column("count", True), Column("", drop=1)]
        tables.print_table(columns, cells)


def totals_by(keys: Iterable[str], all_statistics: "Iterable[Statistics]") -> "dict[str, tuple[int, Statistics]]":
    """Merge statistics by key: key -> (number of tensors, their statistics)."""
    from ...analysis.statistics import Statistics

    groups: dict[str, list[Statistics]] = {}
    for key, statistics in zip(keys, all_statistics, strict=True):
        groups.setdefault(key, []).append(statistics)
    return {key: (len(group), Statistics.merge(group)) for key, group in groups.items()}
