"""Words of messages: long lists cut short."""

from collections.abc import Iterable

MAX_NAMES = 8


def some(names: Iterable[str], most: int = MAX_NAMES) -> str:
    """Return some of the names, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return f"{', '.join(found[:most])}{more}"


def shortened(lines: list[str], most: int) -> list[str]:
    """Return the first lines; where there are more than `most`, a last one says how many are left out."""
    return [*lines[:most], f"and {len(lines) - most:,} more"] if len(lines) > most else lines
