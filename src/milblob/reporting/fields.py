"""The figures of statistics that a report shows, and how it holds numbers."""

import math
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..analysis.statistics import Statistics

STATISTICS = (
    "min", "max", "mean", "std", "absmax", "smallest", "zeros", "nans", "infinities", "subnormals", "overflows",
    "distinct",
)  # fmt: skip
"""The columns of the report: attributes of Statistics, whose `float16_overflows` is called "overflows"."""
_figures = attrgetter(*(key.replace("overflows", "float16_overflows") for key in STATISTICS))
_MAX_EXACT = 1 << 53
"""Numbers of JavaScript are float64: larger integers lose digits."""


def number(value: Any) -> Any:
    """Return a number as the report holds it: of six significant digits, None if it is not finite."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value if value is None or abs(value) <= _MAX_EXACT else float(value)


def statistics_row(found: "Statistics") -> list[Any]:
    """Return the figures of one weight in the order of STATISTICS."""
    return list(map(number, _figures(found)))


def histogram_row(bins: Any) -> list[Any] | None:
    """Return bins as [low, high, width, counts]; a width of 0 is that of floats, whose bins divide the range evenly."""
    if not bins:
        return None
    first, last = bins[0], bins[-1]
    width = 0 if isinstance(first.low, float) else first.high - first.low + 1
    return [number(first.low), number(last.high), width, [one.count for one in bins]]
