"""Formatting of results: sizes, shapes, JSON, and text that is safe for a terminal."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...mirrored import shown
from ...wording import escape as _escape
from ...wording import plural as plural

if TYPE_CHECKING:
    from ...program.compression import Compression


def escape(text: str) -> str:
    """Return a text that is safe for a terminal, with remote files called by their URLs."""
    return _escape(shown(text))


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


def type_words(dtype: str, compression: "Compression | None", is_verbose: bool = False) -> str:
    """Return a dtype, and how a compressed weight is stored: "float16 as int4 /32"; verbose: by its operations."""
    if compression is None:
        return dtype
    return f"{dtype} as {chain_words(compression) if is_verbose else compression}"


def chain_words(compression: "Compression | None") -> str:
    """Return the operations that compute a weight, from the dense end inwards; "" if it is not compressed."""
    return "" if compression is None else " <- ".join(compression.operations or (compression.scheme,))


def print_json(document: Any) -> None:
    """Print one JSON document. Not ASCII only, but safe for any encoding of stdout, and for any terminal.

    A control character that JSON allows, such as U+009B or one that turns the direction of text, is an escape of JSON:
    the value of the document is unchanged.
    """
    import json

    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    text = shown(json.dumps(document, ensure_ascii=encoding != "utf8", indent=1))
    print("\n".join(map(_escaped_json, text.split("\n"))))


def print_json_line(document: Any) -> None:
    """Print one JSON document on one line, as `print_json` does, so that it is there for the reader of a pipe."""
    import json

    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    print(_escaped_json(shown(json.dumps(document, ensure_ascii=encoding != "utf8"))), flush=True)


def _escaped_json(line: str) -> str:
    """Return a line of JSON with its unprintable characters as escapes, those beyond 16 bits as two."""
    if line.isprintable():
        return line
    import json

    return "".join(c if c.isprintable() else json.dumps(c)[1:-1] for c in line)


def say(message: str) -> None:
    """Print a message to stderr, if that is open."""
    with suppress(OSError):
        print(f"milblob: {escape(message)}", file=sys.stderr)


def say_stale(stale: Iterable[str]) -> None:
    """Name the copied entries that still describe the model before the change, if there are any."""
    if words := ", ".join(stale):
        say(f"copied, and of the model before: {words}")


def can_draw(text: str) -> bool:
    """Whether stdout can encode these characters."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
