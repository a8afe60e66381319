"""The four plots: a histogram, the largest weights, the error of each weight, and the frontier of a compression."""

import contextlib
import math
import os
from collections.abc import Mapping
from typing import Any

from ..analysis.diff import Diff
from ..analysis.sides import Side
from ..analysis.statistics import Statistics, statistics
from ..arguments import as_count, require, require_flags
from ..compressing.compress import CompressReport
from ..compressing.frontier import Frontier
from ..compressing.frontier_svg import short
from ..extras import require as require_package
from ..wording import bounded, escape

_MIB = 1 << 20
_MAX_LABEL = 48


def histogram(source: Any, *, ax: Any = None, log: bool = False) -> Any:
    """Draw the histogram of a tensor's finite values.

    Args:
        source: a tensor or an array; or Statistics that have a histogram.
        ax: axes to draw to; None makes new ones.
        log: count on a logarithmic scale, so that single outliers are seen.

    Returns:
        The axes.

    Raises:
        ImportError: the extra `plot` is not installed. ValueError: Statistics without a histogram. TypeError: a model,
        a file of arrays, or what `statistics` returns for one: they have several tensors. As `statistics`.
    """
    require_flags(log=log)
    if isinstance(source, str | os.PathLike | Mapping):
        kind = type(source).__name__
        raise TypeError(f"source: expected one tensor, such as model[name], an array or Statistics, got {kind}")
    ax = _axes(ax)
    found = source if isinstance(source, Statistics) else statistics(source, histogram=True, distinct=False)
    if found.histogram is None:
        raise ValueError("source: expected statistics with a histogram, got some without; use histogram=True")
    if found.histogram:
        is_float = isinstance(found.histogram[0].low, float)
        edges = [one.low for one in found.histogram]
        edges.append(found.histogram[-1].high + (0 if is_float else 1))  # integers: both ends are in the bin
        if edges[0] == edges[-1]:
            edges[-1] = math.nextafter(edges[0], math.inf)
        ax.stairs([one.count for one in found.histogram], edges, fill=True)
    if log:
        ax.set_yscale("log")
    ax.set_xlabel("value")
    ax.set_ylabel("elements")
    if isinstance(getattr(source, "name", None), str):
        ax.set_title(_label(source.name))
    return ax


def sizes(source: Any, *, max_weights: int = 20, ax: Any = None) -> Any:
    """Draw the stored bytes of the largest weights, and of all others together.

    Args:
        source: a path (a model or a file of arrays), an open Model, or a mapping from names to arrays.
        max_weights: number of weights with a bar of their own.
        ax: axes to draw to; None makes new ones.

    Returns:
        The axes.

    Raises:
        ImportError: the extra `plot` is not installed. As `milblob.open`.
    """
    most = as_count("max_weights", max_weights, 1)
    ax = _axes(ax)
    with contextlib.ExitStack() as stack:
        rows = [(tensor.nbytes, name) for name, tensor in Side.open(source, False, stack).tensors.items()]
    rows.sort(key=lambda row: -row[0])
    bars = [(_label(name), nbytes) for nbytes, name in rows[:most]]
    if rest := rows[most:]:
        bars.append((f"{len(rest):,} others", sum(nbytes for nbytes, _ in rest)))
    positions = range(len(bars))
    ax.barh(positions, [nbytes / _MIB for _, nbytes in bars])
    ax.set_yticks(positions, [label for label, _ in bars])
    ax.invert_yaxis()
    ax.set_xlabel("MiB")
    return ax


def errors(source: Any, *, ax: Any = None) -> Any:
    """Draw the SQNR of each weight that differs, in network order.

    Args:
        source: a Diff, or a CompressReport.
        ax: axes to draw to; None makes new ones.

    Returns:
        The axes.

    Raises:
        ImportError: the extra `plot` is not installed. ValueError: a Diff of names only.
    """
    require("source", source, Diff | CompressReport, "a Diff or a CompressReport")
    if isinstance(source, Diff):
        if source.names_only:
            raise ValueError("source: expected a comparison of values, got one of names only")
        found = [None if row.figures is None else row.figures.sqnr for row in source.rows]
    else:
        found = [row.sqnr for row in source.weights]
    ax = _axes(ax)
    points = [(at, value) for at, value in enumerate(found) if value is not None and math.isfinite(value)]
    if points:
        ax.stem(*zip(*points, strict=True), basefmt=" ")
    ax.set_xlabel("weight, in network order")
    ax.set_ylabel("SQNR, dB")
    return ax


def frontier(source: Frontier, *, chosen: Any = None, ax: Any = None) -> Any:
    """Draw size against error: the frontier, each recipe alone, and the size that was chosen.

    Args:
        source: what `milblob.compress_frontier` returned.
        chosen: a CompressReport, or the bytes of all weights.
        ax: axes to draw to; None makes new ones.

    Returns:
        The axes.

    Raises:
        ImportError: the extra `plot` is not installed.
    """
    require("source", source, Frontier, "a Frontier")
    nbytes = chosen.nbytes_after if isinstance(chosen, CompressReport) else chosen
    nbytes = None if nbytes is None else as_count("chosen", nbytes, expected="a CompressReport or a number of bytes")
    ax = _axes(ax)
    points = [(point.nbytes / _MIB, -10 * math.log10(point.error)) for point in source.points if point.error > 0]
    if points:
        ax.plot(*zip(*points, strict=True), drawstyle="steps-post", label="best mixtures")
    for one in source.alone:
        if one.point.error > 0:
            ax.plot(one.point.nbytes / _MIB, -10 * math.log10(one.point.error), "o", label=short(one.recipe))
    if nbytes is not None:
        ax.axvline(nbytes / _MIB, linestyle="--", color="black", label="chosen")
    ax.set_xlabel("MiB of all weights")
    ax.set_ylabel("SQNR, dB")
    if ax.get_legend_handles_labels()[0]:
        ax.legend()
    return ax


def _axes(ax: Any) -> Any:
    """Return axes to draw to. Raises: ImportError."""
    if ax is not None:
        return ax
    return require_package("matplotlib.pyplot").subplots()[1]


def _label(name: str) -> str:
    """Return a name as Matplotlib shows it: one line, its end if it is long, no formulas."""
    text = bounded(escape(name)).replace("$", r"\$")
    return text if len(text) <= _MAX_LABEL else f"...{text[3 - _MAX_LABEL :]}"
