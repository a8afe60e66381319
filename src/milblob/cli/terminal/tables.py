"""Tables and lines that fit the terminal.

On a terminal no row is wider than it, from 60 columns up: columns are left out in a fixed order, then names are
shortened in the middle. Elsewhere everything is printed in full.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from .folding import fold_names, head_of, width_of
from .output import can_draw, escape
from .width import terminal_columns

_T = TypeVar("_T")

LEAST_WIDTH = 60  # narrower terminals get what fits this
_MAX_RICH_ROWS = 1000  # rich takes seconds to lay out more; plain text has the same columns
_MAX_GROUPS = 12  # of a table of totals
_GAP = 2
_NAME_WIDTH, _LEAST_NAME_WIDTH = 20, 10
LAST = 100
"""What `Column.drop` begins at where a column is left out only if names of 20 characters have no room beside it."""


class Column(NamedTuple):
    """A column of a table."""

    head: str
    is_right: bool = False  # aligned to the right
    # if a table is too wide, columns are left out by this number, the lowest first; None: never. See LAST.
    drop: int | None = None
    is_name: bool = False  # its cells may be shortened in the middle


def terminal_width() -> int | None:
    """Return the width of the terminal in columns; None if stdout is not a terminal."""
    try:
        is_terminal = sys.stdout.isatty()
    except ValueError:  # closed
        is_terminal = False
    return max(terminal_columns(), LEAST_WIDTH) if is_terminal else None


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print a table: with rich where it is installed and stdout is a terminal, else as aligned plain text.

    `columns`: at least one. `rows`: a cell for each column.
    """
    cells = [[cell if cell.isprintable() else escape(cell) for cell in row] for row in rows]
    dropped: list[str] = []
    width = terminal_width()
    if width is not None:
        columns, cells, dropped = _fitted(columns, cells, width)
    heads = [column.head for column in columns]
    _print_rows(heads, cells, frozenset(i for i, column in enumerate(columns) if column.is_right))
    if dropped:
        print_text(f"No room for: {', '.join(dropped)}.")


def group_rows(
    title: str,
    groups: Mapping[str, _T],
    size: Callable[[_T], int],
    merge: Callable[[list[_T]], _T],
    cells: Callable[[_T], list[str]],
) -> list[list[str]]:
    """Return the rows of a table of totals for some groups: the title, the largest ones, and the others as one.

    `groups`: by name; a single one gets no rows. `cells`: makes those after the name.
    """
    if len(groups) < 2:
        return []
    ranked = sorted(groups.items(), key=lambda item: -size(item[1]))
    rows = [[f"  {name}", *cells(entry)] for name, entry in ranked[:_MAX_GROUPS]]
    if rest := [entry for _, entry in ranked[_MAX_GROUPS:]]:
        rows.append([f"  {len(rest)} others", *cells(merge(rest))])
    return [[title, *[""] * (len(rows[0]) - 1)], *rows]


def print_pairs(rows: Sequence[tuple[str, str]]) -> None:
    """Print names with their values; long values are continued on the next line."""
    width = terminal_width()
    if width is None:
        _print_rows([], [[escape(name), escape(value)] for name, value in rows], frozenset())
        return
    room = width - _GAP - max((width_of(escape(name)) for name, _ in rows), default=0)
    lines = []
    for name, value in rows:
        first, *more = _wrapped(escape(value), room)
        lines += [[escape(name), first], *(["", line] for line in more)]
    _print_rows([], lines, frozenset())


def print_text(text: str) -> None:
    """Print a message of one line; on a terminal a long one is wrapped and indented."""
    text = escape(text)
    width = terminal_width()
    if width is None or width_of(text) <= width:
        print(text)
        return
    first, *_ = _wrapped(text, width)
    print(first)
    for line in _wrapped(text[len(first) :].lstrip(" "), width - 2):
        print(f"  {line}")


def _wrapped(text: str, width: int) -> list[str]:
    """Break a line between words; a word that is too long is broken too. Only spaces at the breaks are lost."""
    lines = []
    while width_of(text) > width:
        line = head_of(text, width)
        end = len(line)
        if text[end] != " " and " " in line.strip(" "):
            end = line.rindex(" ")
        elif text[end] != " " and "/" in line[end // 2 :]:  # a path
            end = line.rindex("/") + 1
        lines.append(text[:end].rstrip(" "))
        text = text[end:].lstrip(" ")
    return [*lines, text]


def _fitted(
    columns: Sequence[Column], rows: list[list[str]], width: int
) -> tuple[list[Column], list[list[str]], list[str]]:
    """Leave out columns, then shorten names.

    Returns: The columns that are left, their cells, and the heads of the others.
    """
    widths = [max([width_of(column.head), *(width_of(row[i]) for row in rows)]) for i, column in enumerate(columns)]
    least = [min(found, _NAME_WIDTH) if columns[i].is_name else found for i, found in enumerate(widths)]
    left = list(range(len(columns)))
    # Empty columns are dropped first.
    is_empty = [all(row[i] in ("", "-") for row in rows) for i in left]
    for i in sorted(left, key=lambda i: (not is_empty[i], columns[i].drop or 0)):
        needed = least if (columns[i].drop or 0) >= LAST else widths
        if columns[i].drop is not None and _total([needed[k] for k in left]) > width:
            left.remove(i)
    excess = _total([widths[i] for i in left]) - width
    names = [i for i in left if columns[i].is_name]
    forms: dict[int, dict[str, str]] = {}
    while excess > 0 and names:
        widest = max(names, key=lambda i: widths[i])
        if widths[widest] <= _LEAST_NAME_WIDTH:
            break
        second = max((widths[i] for i in names if i != widest), default=0)
        less = min(excess, max(widths[widest] - max(second, _LEAST_NAME_WIDTH), 1))
        widths[widest] -= less
        excess -= less
    mark = "…" if can_draw("…") else "..."
    for i in names:
        if any(width_of(row[i]) > widths[i] for row in rows):
            forms[i] = fold_names((row[i] for row in rows), widths[i], mark)
    cells = [[forms[i][row[i]] if i in forms else row[i] for i in left] for row in rows]
    dropped = [column.head for i, column in enumerate(columns) if i not in left and not is_empty[i]]
    return [columns[i] for i in left], cells, dropped


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + _GAP * (len(widths) - 1)


def _print_rows(heads: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int]) -> None:
    """Print cells that fit; without heads if these are empty."""
    columns = list(zip(*([heads, *rows] if heads else rows), strict=True))
    widths = [max(map(width_of, column)) for column in columns]
    is_colourful = len(rows) <= _MAX_RICH_ROWS and terminal_width() is not None and os.environ.get("TERM") != "dumb"
    if is_colourful and _print_rich(heads, rows, right, widths):
        return
    padded = [_padded(column, width, i in right) for i, (column, width) in enumerate(zip(columns, widths, strict=True))]
    if padded:
        print("\n".join((" " * _GAP).join(line).rstrip() for line in zip(*padded, strict=True)))


def _padded(column: Sequence[str], width: int, is_right: bool) -> list[str]:
    if "".join(column).isascii():  # in ASCII each character takes one column
        return [cell.rjust(width) for cell in column] if is_right else [cell.ljust(width) for cell in column]
    rooms = (" " * (width - width_of(cell)) for cell in column)
    return [room + cell if is_right else cell + room for cell, room in zip(column, rooms, strict=True)]


def _print_rich(
    heads: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int], widths: Sequence[int]
) -> bool:
    """Print a table with rich; return False if it is not installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    table = Table(
        box=box.SIMPLE_HEAD if heads else None,
        show_header=bool(heads),
        header_style="bold",
        padding=(0, 1),
        collapse_padding=bool(heads),  # without heads a line between columns takes one
        pad_edge=False,
        show_edge=False,
    )
    for i, width in enumerate(widths):
        justify: Any = "right" if i in right else "left"
        style = "cyan" if i == 0 else None
        table.add_column(heads[i] if heads else "", justify=justify, no_wrap=True, style=style, min_width=width)
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    # Wider than the table, which fits already: rich is not to fit it again.
    Console(highlight=False, emoji=False, markup=False, width=_total(widths) + 2 * len(widths)).print(table)
    return True
