"""Messages about a name that is not known, or that several things have; close matches of it."""

import re
from collections.abc import Iterable

from .wording import abbreviated

_MAX_NCHARS = 200  # of a name that is compared: difflib takes the product of both lengths
_MAX_COMPARED = 200  # names compared letter by letter; the rest is judged by the words that they share
_MIN_RATIO = 0.6
_MAX_CLOSE = 3
_MAX_LISTED = 8  # names that a message lists where none is like the one that was asked for
_WORDS = r"[A-Za-z]{2,}|\d+"  # compiled with its first use


def close_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of the known names that are most like a name, the most similar first.

    The time is bounded: a hundred thousand names take some hundredths of a second, for any names.
    """
    if not 0 < len(name) <= _MAX_NCHARS:
        return []
    words = set(re.findall(_WORDS, name.lower()))

    def shared(other: str) -> tuple[int, int]:
        lower = other.lower()
        return sum(len(word) for word in words if word in lower), -abs(len(other) - len(name))

    import difflib  # neither is brought by `import milblob`
    import heapq

    candidates = heapq.nlargest(_MAX_COMPARED, (other for other in known if len(other) <= _MAX_NCHARS), key=shared)
    found = [other for other in candidates if len(name) > 2 and name.lower() in other.lower()][:_MAX_CLOSE]
    return found or difflib.get_close_matches(name, candidates, n=_MAX_CLOSE, cutoff=_MIN_RATIO)


def hint(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: which ones may be meant, or "" if none is like it."""
    close = close_names(name, known)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def unknown(kind: str, name: object, known: Iterable[str], where: str | None = None) -> str:
    """Return the message about an unknown name: "m.mlpackage has no function 'man'; did you mean main?".

    `kind`: of the named object, such as "function". `known`: existing names. Up to 8 are listed if none is similar to
    `name`, each of a length that fits a message.
    """
    names = list(known)
    end = hint(name, names) if isinstance(name, str) else ""
    if not end and 0 < len(names) <= _MAX_LISTED:
        listed = ", ".join(map(abbreviated, names))
        end = f" (it has {listed})" if where else f" (there is {listed})"
    return f"{where} has no {kind} {name!r:.200}{end}" if where else f"no {kind} {name!r:.200}{end}"


def ambiguous(name: str, found: Iterable[str]) -> str:
    """Return the message about a name that several things have: "'w' is ambiguous: a/w or b/w"."""
    names = list(map(abbreviated, found))
    if len(names) > _MAX_LISTED:
        return f"{name!r:.200} is ambiguous: {', '.join(names[:_MAX_LISTED])} or {len(names) - _MAX_LISTED:,} others"
    return f"{name!r:.200} is ambiguous: {', '.join(names[:-1])} or {names[-1]}"
