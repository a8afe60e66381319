"""The picture of a frontier as SVG, readable on a light and on a dark background."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from html import escape

from .. import decibels
from ..wording import escape as printable
from .choosing import Point
from .linear_recipe import Linear
from .palette_recipe import Palette
from .prune_recipe import Prune
from .recipe import Joint, Recipe

WIDTH, HEIGHT = 860, 480
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 56, 56
_LABEL_STEP = 15
_PAST = 1.06  # length of an axis relative to the range of the points
_LEAST_SPAN = 1e-6  # of an axis, in dB or in units of bytes
_STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #57606a; }
  .title { font-weight: 600; font-size: 15px; }
  .grid { stroke: #8b949e; stroke-opacity: 0.28; stroke-width: 1; }
  .line { fill: none; stroke: #3b82c4; stroke-width: 2.5; }
  .key { fill: #3b82c4; }
  .dot { fill: #d9822b; }
  .lead { stroke: #d9822b; stroke-opacity: 0.55; stroke-width: 1; }
  @media (prefers-color-scheme: dark) { text { fill: #9da7b3; } .key { fill: #79b8f0; } .line { stroke: #58a6ff; } }
"""


def picture(name: str, points: Sequence[Point], alone: Mapping[Recipe, Point]) -> str:
    """Return the SVG: SQNR of the mean error over the bytes.

    `points`: of the mixtures, which become a line. `alone`: of each recipe alone; each becomes a dot.
    """
    lossy = [point for point in points if 0 < point.error < math.inf]
    dots = {recipe: point for recipe, point in alone.items() if 0 < point.error < math.inf}
    rows = [*lossy, *dots.values()]
    unit, unit_name = _unit(max((point.nbytes for point in rows), default=1))
    xs = [point.nbytes / unit for point in rows] or [0.0, 1.0]
    ys = [decibels.of_power(1.0, point.error) for point in rows] or [0.0, 1.0]
    x_ticks, y_ticks = list(_ticks(min(xs), max(xs))), list(_ticks(min(ys), max(ys)))
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(value: float) -> float:
        return LEFT + (right - LEFT) * (value - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])

    def y(value: float) -> float:
        return bottom - (bottom - TOP) * (value - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])

    title = printable(f"{name}: size against error")
    box = f'viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}"'
    key = "line: the best mixture of recipes at each size; dots: one recipe alone"
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f"<style>{_STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="22">{escape(title)}</text>',
        f'<text class="key" x="{LEFT}" y="42">{key}</text>',
    ]
    for value in x_ticks:
        out.append(f'<line class="grid" x1="{x(value):.1f}" y1="{TOP}" x2="{x(value):.1f}" y2="{bottom}"/>')
        out.append(f'<text x="{x(value):.1f}" y="{bottom + 18}" text-anchor="middle">{value:.6g}</text>')
    for value in y_ticks:
        out.append(f'<line class="grid" x1="{LEFT}" y1="{y(value):.1f}" x2="{right}" y2="{y(value):.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:.6g}</text>')
    middle = (LEFT + right) / 2
    out.append(
        f'<text x="{middle:.1f}" y="{HEIGHT - 14}" text-anchor="middle">all weights as stored, {unit_name}</text>'
    )
    out.append(
        f'<text transform="translate(16 {(TOP + bottom) / 2:.1f}) rotate(-90)" text-anchor="middle">SQNR, dB</text>'
    )
    line = " ".join(
        f"{a:.1f},{b:.1f}" for a, b in _thinned((x(p.nbytes / unit), y(decibels.of_power(1.0, p.error))) for p in lossy)
    )
    out.append(f'<polyline class="line" points="{line}"/>')
    taken: list[tuple[float, float]] = []
    for recipe, point in dots.items():
        at, height = x(point.nbytes / unit), y(decibels.of_power(1.0, point.error))
        label = _free(taken, at, height + 18)
        out.append(f'<line class="lead" x1="{at:.1f}" y1="{height:.1f}" x2="{at + 8:.1f}" y2="{label - 4:.1f}"/>')
        out.append(f'<circle class="dot" cx="{at:.1f}" cy="{height:.1f}" r="4"/>')
        words = escape(short(recipe))
        anchor, shift = ("end", -2) if at > right - 130 else ("start", 10)
        out.append(f'<text x="{at + shift:.1f}" y="{label:.1f}" text-anchor="{anchor}">{words}</text>')
    return "\n".join([*out, "</svg>", ""])


def short(recipe: Recipe) -> str:
    """Return a short label of a recipe; it leaves out rare options, so labels may be equal."""
    if isinstance(recipe, Joint):
        return " + ".join(map(short, recipe.recipes))
    if isinstance(recipe, Linear):
        blocks = f" blocks of {recipe.block}" if recipe.granularity == "per_block" else ""
        return f"{recipe.dtype}{blocks}{' per tensor' if recipe.granularity == 'per_tensor' else ''}"
    if isinstance(recipe, Palette):
        groups = f" of {recipe.group_size} channels" if recipe.granularity == "per_grouped_channel" else ""
        entries = "" if recipe.lut_dtype is None else f" of {recipe.lut_dtype}"
        return f"palette {recipe.bits or recipe.mode}{entries}{groups}"
    if isinstance(recipe, Prune) and recipe.sparsity is not None:
        return f"{recipe.sparsity:.0%} zeros"
    given = [(one.name, getattr(recipe, one.name), one.default) for one in fields(recipe)]
    options = [f"{name} {value}" for name, value, default in given if value != default]
    return " ".join([type(recipe).__name__.lower(), *options])


def _unit(nbytes: int) -> tuple[int, str]:
    for shift, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << shift:
            return 1 << shift, name
    return 1, "bytes"


def _ticks(least: float, most: float) -> Iterator[float]:
    """Yield round numbers, from one at most `least` to one at least `most`."""
    span = max(most - least, abs(most) * 1e-3, _LEAST_SPAN) * _PAST
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * factor for factor in (1, 2, 5, 10) if span / (power * factor) <= 8)
    first, last = math.floor(least / step), math.ceil(max(most, least + step) / step)
    for number in range(first, last + 1):
        yield round(number * step, 9)


def _thinned(points: Iterator[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield the points that are a pixel or more from the one before, and the last point."""
    before, waiting = (-math.inf, -math.inf), None
    for point in points:
        if max(abs(point[0] - before[0]), abs(point[1] - before[1])) >= 1:
            before, waiting = point, None
            yield point
        else:
            waiting = point
    if waiting is not None:
        yield waiting


def _free(taken: list[tuple[float, float]], x: float, y: float) -> float:
    """Return where a label at `x` goes, at `y` or lower, so that it covers none before it; and note it."""
    while any(abs(x - a) < 150 and abs(y - b) < _LABEL_STEP for a, b in taken):
        y += _LABEL_STEP / 3
    taken.append((x, y))
    return y
