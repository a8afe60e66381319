"""How costs grow, as an SVG: text that is written here, both axes logarithmic, readable on light and on dark paper."""

import math
from html import escape

from results import Series, spell_time

WIDTH, HEIGHT = 900, 600
LEFT, RIGHT, TOP, BOTTOM = 70, 300, 46, 52
LABEL_STEP = 17
COLOURS = ("#3b82c4", "#d9822b", "#3a9a5b", "#c4504b", "#8a63b8", "#a0785a", "#cc6fa8", "#8a8a2e", "#2fa3ad")
STYLE = """
  text { font: 13px system-ui, sans-serif; fill: #57606a; }
  .title { font-weight: 600; font-size: 15px; }
  .grid { stroke: #8b949e; stroke-opacity: 0.28; stroke-width: 1; }
  .guide { stroke: #8b949e; stroke-opacity: 0.7; stroke-width: 1; stroke-dasharray: 2 4; }
  .line { fill: none; stroke-width: 2; }
  .lead { stroke-width: 1; stroke-opacity: 0.5; fill: none; }
  @media (prefers-color-scheme: dark) { text { fill: #9da7b3; } }
"""


def spread_labels(places: list[float], least: float, most: float, step: float) -> list[float]:
    """Return places for labels, in the same order, no two nearer than `step`, each as near to its own as they allow.

    Args:
        places: wanted, ascending.
        least, most: the range to stay in, if there is room for all.
    """
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + step if found else least))
    over = most
    for i in range(len(found) - 1, -1, -1):
        found[i] = min(found[i], over)
        over = found[i] - step
    return found


def growth(series: list[Series], title: str) -> str:
    """Return the plot: how many times the least work -> time, a line for each series.

    Args:
        series: each with two points or more.
        title: above the plot.
    """
    xs = [work / s.points[0][0] for s in series for work, _ in s.points]
    ys = [seconds for s in series for _, seconds in s.points]
    decades_x = range(math.ceil(math.log10(max(xs)) - 0.05) + 1)
    decades_y = range(math.floor(math.log10(min(ys))), math.ceil(math.log10(max(ys))) + 1)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def x(factor: float) -> float:
        return LEFT + (right - LEFT) * math.log10(factor) / max(decades_x[-1], 1)

    def y(seconds: float) -> float:
        span = decades_y[-1] - decades_y[0]
        return bottom - (bottom - TOP) * (math.log10(seconds) - decades_y[0]) / max(span, 1)

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f"<style>{STYLE}</style>",
        f'<text class="title" x="{LEFT}" y="24">{escape(title)}</text>',
    ]
    for decade in decades_x:
        at = x(10**decade)
        out.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}"/>')
        out.append(f'<text x="{at:.1f}" y="{bottom + 20}" text-anchor="middle">{10**decade:,}x</text>')
    out.append(f'<text x="{(LEFT + right) / 2:.1f}" y="{bottom + 42}" text-anchor="middle">work</text>')
    for decade in decades_y:
        at = y(10.0**decade)
        out.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>')
        out.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{spell_time(10.0**decade)}</text>')
    for decade in decades_y[:-1]:  # what grows as the work does runs along these
        rise = min(decades_x[-1], decades_y[-1] - decade)
        ends = x(1), y(10.0**decade), x(10.0**rise), y(10.0 ** (decade + rise))
        out.append('<line class="guide" x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}"/>'.format(*ends))
    ordered = sorted(series, key=lambda s: -s.points[-1][1])
    labels = spread_labels([y(s.points[-1][1]) for s in ordered], TOP, bottom, LABEL_STEP)
    for number, (s, label) in enumerate(zip(ordered, labels, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        points = [(x(work / s.points[0][0]), y(seconds)) for work, seconds in s.points]
        path = " ".join(f"{px:.1f},{py:.1f}" for px, py in points)
        out.append(f'<polyline class="line" stroke="{colour}" points="{path}"/>')
        out += [f'<circle cx="{px:.1f}" cy="{py:.1f}" r="3" fill="{colour}"/>' for px, py in points]
        px, py = points[-1]
        out.append(f'<path class="lead" stroke="{colour}" d="M{px + 4:.1f} {py:.1f} L{right + 22} {label:.1f}"/>')
        words = escape(f"{s.name} ({s.exponent:.2f})")
        out.append(f'<text x="{right + 26}" y="{label + 4:.1f}" style="fill:{colour}">{words}</text>')
    return "\n".join([*out, "</svg>", ""])


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
