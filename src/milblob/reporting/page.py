"""The page of a report: data, style, script and chart library in one HTML file, under a strict policy."""

import base64
import hashlib
import html
import json
import os
from importlib.util import find_spec
from typing import Any

from ..errors import UnsupportedError
from ..extras import missing

_LIBRARY = "js/d3.v5.min.js"
"""D3 inside the package mpld3, which ships it; docs/decisions.md has the reasons for it."""
_SCRIPTS = ("charts.js", "table.js", "report.js")
"""Our own scripts, in the order in which they run."""


def library() -> str:
    """Return the source of D3.

    Raises: ImportError: mpld3 is not installed; the message names the extra. UnsupportedError: it ships no D3.
    """
    found = find_spec("mpld3")  # mpld3 itself is not imported: it brings Matplotlib
    if found is None or not found.submodule_search_locations:
        raise missing("mpld3")
    path = os.path.join(found.submodule_search_locations[0], *_LIBRARY.split("/"))
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123
            return _inert(file.read())
    except FileNotFoundError:
        raise UnsupportedError(
            f"report: expected mpld3 with {_LIBRARY}, got one without it; install mpld3 0.5"
        ) from None


def page(document: dict[str, Any], title: str) -> bytes:
    """Return the whole file.

    The policy allows no network, no inline handler or style attribute, no eval, and only the scripts and the style
    whose hashes it has. Text of the model is data: it is never parsed as HTML, and every "<" in it is escaped.

    `document`: the data, as JSON can hold it. `title`: of the page; any text.
    Raises: As `library`.
    """
    style = _part("report.css")
    scripts = [library(), "\n".join(map(_part, _SCRIPTS))]
    policy = "; ".join([
        "default-src 'none'",
        f"script-src {' '.join(map(_digest, scripts))}",
        f"style-src {_digest(style)}",
        "base-uri 'none'",
        "form-action 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    ])  # fmt: skip
    data = json.dumps(document, separators=(",", ":"), allow_nan=False)  # ASCII: no line separator, no lone surrogate
    for sign in "<>&":
        data = data.replace(sign, f"\\u{ord(sign):04x}")
    filled = {
        "policy": html.escape(policy),
        "title": html.escape(title),
        "style": style,
        "data": data,
        "library": scripts[0],
        "script": scripts[1],
    }
    pieces = _part("report.html").split("%%")  # every second piece is the name of a part
    return "".join(filled[piece] if at % 2 else piece for at, piece in enumerate(pieces)).encode()


def _part(name: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:  # noqa: PTH123
        return file.read()


def _inert(script: str) -> str:
    """Return a script that cannot end its element early. Raises: UnsupportedError."""
    if "</script" in script.lower() or "<!--" in script:
        raise UnsupportedError("report: expected a script that can stand in HTML, got one with </script or <!--")
    return script.replace("\r\n", "\n").replace("\r", "\n")  # as an HTML parser reads it: the hash is of that


def _digest(text: str) -> str:
    """Return the hash that allows a script or a style in the content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
