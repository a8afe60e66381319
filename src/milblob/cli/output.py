"""Formatting of results: tables, sizes, JSON, and text that is safe for a terminal."""

import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

MAX_RICH_ROWS = 1000  # rich takes seconds to lay out more; plain text has the same columns


def escape(text: str) -> str:
    """Return `text` in one line, with control and other unprintable characters, which come from files, escaped."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def size(nbytes: int | None) -> str:
    """Format a number of bytes: "96 B", "4.5 KiB"."""
    if nbytes is None:
        return "?"
    if nbytes < 1024:
        return f"{nbytes} B"
    value = float(nbytes)
    units = ["KiB", "MiB", "GiB", "TiB", "PiB"]
    value /= 1024
    while value >= 1023.95 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.1f} {units[0]}"


def share(nbytes: int | None, total: int) -> str:
    """Format a share of the whole in percent."""
    return f"{100 * nbytes / total:.1f}%" if nbytes is not None and total else "-"


def shape_text(shape: Iterable[int | None] | None) -> str:
    """Format a shape as "[512, ?]"; "" if there is none."""
    return "" if shape is None else f"[{', '.join('?' if n is None else str(n) for n in shape)}]"


def plural(count: int, noun: str) -> str:
    """Return "1 tensor", "2 tensors"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def print_json(document: Any) -> None:
    """Print one JSON document. Not ASCII only, but safe for any encoding of stdout."""
    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    print(json.dumps(document, ensure_ascii=encoding != "utf8", indent=1))


def say(message: str) -> None:
    """Print a message to stderr."""
    print(f"milblob: {escape(message)}", file=sys.stderr)


def can_draw(text: str) -> bool:
    """Whether stdout can encode these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = ()) -> None:
    """Print a table: with rich where it is installed and stdout is a terminal, else as aligned plain text.

    Names are never cut or folded to fit: a table that is too wide is plain text, which the terminal wraps.

    Args:
        heads: column heads; all empty for a list of keys and values, whose last column may be folded.
        rows: cells, one line each.
        right: indices of the columns that are aligned to the right.
    """
    cells = [[escape(cell) for cell in row] for row in rows]
    right = frozenset(right)
    widths = [max([len(head), *(len(row[i]) for row in cells)]) for i, head in enumerate(heads)]
    fits = sum(widths) + 3 * len(widths) <= shutil.get_terminal_size().columns or not any(heads)
    if fits and len(cells) <= MAX_RICH_ROWS and _is_terminal() and _print_rich(heads, cells, right):
        return
    for row in [list(heads), *cells] if any(heads) else cells:
        columns = enumerate(zip(row, widths, strict=True))
        padded = [cell.rjust(width) if i in right else cell.ljust(width) for i, (cell, width) in columns]
        print("  ".join(padded).rstrip())


def _is_terminal() -> bool:
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _print_rich(heads: Sequence[str], rows: Sequence[Sequence[str]], right: frozenset[int]) -> bool:
    """Print a table with rich; return False if it is not installed."""
    try:
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    has_heads = any(heads)
    table = Table(
        box=box.SIMPLE_HEAD if has_heads else None,
        show_header=has_heads,
        header_style="bold",
        padding=(0, 1),
        pad_edge=False,
        show_edge=False,
    )
    for index, head in enumerate(heads):
        justify: Any = "right" if index in right else "left"
        style = "cyan" if index == 0 else None
        table.add_column(head, justify=justify, overflow="fold", no_wrap=has_heads or index == 0, style=style)
    for row in rows:
        table.add_row(*[Text(cell) for cell in row])
    Console(highlight=False, emoji=False, markup=False).print(table)
    return True
