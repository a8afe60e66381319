"""What is shown of the values of one tensor."""

from typing import Any

import numpy as np

from ..analysis.statistics import Statistics
from ..dtypes import DType
from ..model.lazy import LazyTensor
from . import tables
from .figures import histogram_json, number, plain, print_histogram

FIRST_COUNT, FIRST_COUNT_VERBOSE = 8, 64


def first_values(tensor: LazyTensor, count: int) -> list[Any]:
    """Return the first elements, as int, float, bool or str."""
    first = tensor.read().reshape(-1)[:count]
    if tensor.mil_dtype is DType.STRING:
        return [str(text) for text in first]
    is_whole = tensor.mil_dtype.is_integer or tensor.mil_dtype is DType.BOOL
    with np.errstate(all="ignore"):  # signalling NaNs
        return (first if first.dtype.itemsize == 8 else first.astype(np.int64 if is_whole else np.float64)).tolist()  # type: ignore[no-any-return]


def values_json(summary: Statistics, first: list[Any]) -> dict[str, Any]:
    """Return what is said of values, as JSON can hold it."""
    keys = ("minimum", "maximum", "mean", "deviation", "zeros", "nans", "infinities")
    document: dict[str, Any] = {"count": summary.count, "first": [plain(value) for value in first]}
    document |= {key: plain(getattr(summary, key)) for key in keys}
    document["histogram"] = histogram_json(summary)
    return document


def print_statistics(summary: Statistics, first: list[Any]) -> None:
    """Print the first values, extremes and a histogram."""
    shown = ", ".join(map(number, first)) + (", ..." if summary.count > len(first) else "")
    rows = [("first values", shown)]
    if summary.minimum is not None:
        rows.append(("min, max", f"{number(summary.minimum)}, {number(summary.maximum)}"))
        rows.append(("mean, deviation", f"{number(summary.mean)}, {number(summary.deviation)}"))
    for words, count in (("zeros", summary.zeros), ("NaN", summary.nans), ("infinite", summary.infinities)):
        if count:
            rows.append((words, f"{count} of {summary.count}"))
    tables.print_pairs(rows)
    if summary.histogram:
        print()
        print_histogram(summary)
