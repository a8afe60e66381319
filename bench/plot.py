"""How costs grow, as an SVG: text that is written here, both axes logarithmic, readable on light and on dark paper."""

import math
from html import escape

from results import spell_time

COLOURS = ("#3b82c4", "#d9822b", "#3a9a5b", "#c4504b", "#8a63b8", "#a0785a", "#cc6fa8", "#8a8a2e", "#2fa3ad")
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #57606a; }
  .title { font-weight: 600; font-size: 15px; }
  .grid { stroke: #8b949e; stroke-opacity: 0.28; stroke-width: 1; }
  .guide { stroke: #8b949e; stroke-opacity: 0.7; stroke-width: 1; stroke-dasharray: 2 4; }
  .line { fill: none; stroke-width: 2; }
  @media (prefers-color-scheme: dark) { text { fill: #9da7b3; } }
"""


COLUMNS, PANEL_WIDTH, PANEL_HEIGHT = 5, 176, 128


def multiples(panels: list[tuple[str, list[tuple[float, float]], float | None]], title: str) -> str:
    """Return a page of small plots of one shape, work -> time, both axes logarithmic; a dotted line of slope 1 in each.

    Args:
        panels: (name, points, slope of the upper range). All have axes of their own.
        title: above them.
    """
    rows = -(-len(panels) // COLUMNS)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {COLUMNS * PANEL_WIDTH} {40 + rows * PANEL_HEIGHT}" '
        f'role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE} .small {{ font-size: 10px; }}</style>",
        f'<text class="title" x="10" y="22">{escape(title)}</text>',
    ]
    for number, (name, points, slope) in enumerate(panels):
        left, top = 10 + number % COLUMNS * PANEL_WIDTH, 48 + number // COLUMNS * PANEL_HEIGHT
        colour = COLOURS[number % len(COLOURS)]
        heading = f"{name}{'' if slope is None else f'  {slope:.2f}'}"
        out.append(f'<text class="small" x="{left}" y="{top}" style="fill:{colour}">{escape(heading)}</text>')
        if len(points) > 1:
            out += _panel(points, left, top + 8, PANEL_WIDTH - 24, PANEL_HEIGHT - 52, colour)
    return "\n".join([*out, "</svg>", ""])


def _panel(
    points: list[tuple[float, float]], left: float, top: float, width: float, height: float, colour: str
) -> list[str]:
    (x0, _), (x1, last) = points[0], points[-1]
    least, most = min(t for _, t in points), max(t for _, t in points)
    decades = max(math.log10(most / least), math.log10(x1 / x0))  # slope 1 is the diagonal at most

    def place(work: float, seconds: float) -> tuple[float, float]:
        return (
            left + width * math.log10(work / x0) / math.log10(x1 / x0),
            top + height * (1 - math.log10(seconds / least) / decades),
        )

    rise = place(x0, least), place(x1, least * min(x1 / x0, 10**decades))
    places = [place(*point) for point in points]
    return [
        f'<line class="grid" x1="{left}" y1="{top + height}" x2="{left + width}" y2="{top + height}"/>',
        '<line class="guide" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>'.format(*rise[0], *rise[1]),
        f'<polyline class="line" stroke="{colour}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>',
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in places),
        f'<text class="small" x="{left}" y="{top + height + 13}">{x0:,.0f}</text>',
        f'<text class="small" x="{left + width}" y="{top + height + 13}" text-anchor="end">{x1:,.0f}: {spell_time(last)}</text>',
    ]
