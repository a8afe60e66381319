"""Words of messages: long lists and numbers cut short, names from files made safe to print."""

import re
from collections.abc import Iterable, Sequence
from typing import Any

MAX_NAMES = 8
MAX_NCHARS = 2000
"""Of one message, before what is unprintable in it becomes escapes."""
_LONG_NUMBER = re.compile(r"\d[\d,]{40,}")


def escape(text: str) -> str:
    """Return a text in one line, with control and other unprintable characters escaped.

    Names come from files: nothing in them may start a new line, or reach the terminal as a control sequence.
    """
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def bounded(text: str) -> str:
    """Return a message of bearable length: numbers of more than 40 digits are cut, and the middle of long texts.

    A file may declare sizes whose product has thousands of digits, and names of any length.
    """
    text = _LONG_NUMBER.sub(lambda found: f"{found[0][:8]}... ({len(found[0].replace(',', ''))} digits)", text)
    if len(text) <= MAX_NCHARS:
        return text
    return f"{text[: MAX_NCHARS * 3 // 4]}... ({len(text):,} characters) ...{text[-MAX_NCHARS // 5 :]}"


def located(message: str, found: Any) -> str:
    """Return a message with the `offset`, `file` and `where` of what was found, an error or a finding, escaped."""
    at = "" if found.offset is None else f" at byte {found.offset}"
    file = "" if found.file is None else f" in {found.file}"
    where = f" - at {bounded(found.where)}" if found.where else ""
    return escape(f"{message}{at}{file}{where}")


def abbreviated(text: str) -> str:
    """Return a name, or a short list, of a length that fits a message; those from files may have any length."""
    return text if len(text) <= 120 else text[:100] + "..." + text[-17:]


def some(names: Iterable[str], most: int = MAX_NAMES) -> str:
    """Return some of the names, each of a length that fits a message, and how many more there are."""
    found = list(names)
    more = f" and {len(found) - most:,} more" if len(found) > most else ""
    return f"{', '.join(map(abbreviated, found[:most]))}{more}"


def enumerated(names: Sequence[str], word: str) -> str:
    """Return "a, b and c", with another `word` such as "or" in place of "and"."""
    return f"{', '.join(names[:-1])} {word} {names[-1]}"


def shortened(lines: list[str], most: int) -> list[str]:
    """Return the first lines; where there are more than `most`, a last one gives the number of the others."""
    return [*lines[:most], f"and {len(lines) - most:,} more"] if len(lines) > most else lines


def sizes(shape: Iterable[int | None]) -> str:
    """Return a shape as text, "[32, ?]" where a size is None."""
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def plural(count: int, noun: str) -> str:
    """Return "1 tensor", "2 tensors"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
