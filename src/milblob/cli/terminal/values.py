"""The values of one tensor, as `show` prints them."""

from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...errors import MilblobError
from . import tables
from .failures import report
from .figures import histogram_json, number, plain, print_histogram

if TYPE_CHECKING:
    from ...analysis.statistics import Statistics
    from ...model.lazy import LazyTensor

_FIRST_COUNT, _FIRST_COUNT_VERBOSE = 8, 64


def _first_values(tensor: "LazyTensor", count: int) -> list[Any]:
    """Return the first elements, as int, float, bool or str."""
    import numpy as np

    from ...dtypes import DType

    first = tensor.read().reshape(-1)[:count]
    if tensor.mil_dtype is DType.STRING:
        return [str(text) for text in first]
    is_whole = tensor.mil_dtype.is_integer or tensor.mil_dtype is DType.BOOL
    with np.errstate(all="ignore"):  # signalling NaNs
        return (first if first.dtype.itemsize == 8 else first.astype(np.int64 if is_whole else np.float64)).tolist()  # type: ignore[no-any-return]


def show_values(
    tensor: "LazyTensor",
    arguments: Namespace,
    document: dict[str, Any],
    place: list[tuple[str, str]],
    parts: Callable[[], None] = lambda: None,
) -> tuple[int, dict[str, Any] | None]:
    """Show a tensor: where it is, and its values, as -v, -q and --json ask.

    `document`: what --json prints besides the values. place: the same as rows. `parts`: prints what comes between place
    and values.
    Returns: The exit status, and the document for --json. With --json, values that cannot be read are reported here.
    Raises: MilblobError: the values cannot be read, without --json. Everything else has been shown then.
    """
    from ...analysis.statistics import statistics

    summary, failure, first = None, None, []
    try:
        first = _first_values(tensor, _FIRST_COUNT_VERBOSE if arguments.verbose else _FIRST_COUNT)
        summary = statistics(tensor, histogram=True)
    except MilblobError as error:
        failure = error
    if arguments.json:
        status = 0 if failure is None else report(failure)
        return status, {**document, "values": None if summary is None else _values_json(summary, first)}
    tables.print_pairs(place)
    parts()
    if failure is not None:  # its place is known and printed; exit status 2 reports that there are no values
        raise failure
    if summary is not None:
        print()
        _print_statistics(summary, first)
    return 0, None


def _values_json(summary: "Statistics", first: list[Any]) -> dict[str, Any]:
    """Return the statistics and the first values for JSON."""
    keys = ("min", "max", "mean", "std", "zeros", "nans", "infinities")
    document: dict[str, Any] = {"count": summary.count, "first": [plain(value) for value in first]}
    document |= {key: plain(getattr(summary, key)) for key in keys}
    document["histogram"] = histogram_json(summary)
    return document


def _print_statistics(summary: "Statistics", first: list[Any]) -> None:
    """Print the first values, extremes and a histogram."""
    shown = ", ".join(map(number, first)) + (", ..." if summary.count > len(first) else "")
    rows = [("first values", shown)]
    if summary.min is not None:
        rows.append(("min, max", f"{number(summary.min)}, {number(summary.max)}"))
        rows.append(("mean, std", f"{number(summary.mean)}, {number(summary.std)}"))
    for words, count in (("zeros", summary.zeros), ("NaN", summary.nans), ("infinite", summary.infinities)):
        if count:
            rows.append((words, f"{count} of {summary.count}"))
    tables.print_pairs(rows)
    if summary.histogram:
        print()
        print_histogram(summary)
