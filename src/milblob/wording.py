"""Words of messages: long lists cut short, names from files made safe to print."""

from collections.abc import Iterable

MAX_NAMES = 8


def escape(text: str) -> str:
    """Return a text in one line, with control and other unprintable characters escaped.

    Names come from files: nothing in them may start a new line, or reach the terminal as a control sequence.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def some(names: Iterable[str], most: int = MAX_NAMES) -> str:
    """Return some of the names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return f"{', '.join(found[:most])}{more}"


def shortened(lines: list[str], most: int) -> list[str]:
    """Return the first lines; where there are more than `most`, a last one says how many are left out."""
    return [*lines[:most], f"and {len(lines) - most:,} more"] if len(lines) > most else lines
