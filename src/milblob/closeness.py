"""Close matches of a name that was not found, for messages."""

import re
from collections.abc import Iterable

_MAX_NCHARS = 200  # of a name that is compared: difflib takes the product of both lengths
_MAX_COMPARED = 200  # names compared letter by letter; the rest is judged by the words that they share
_MIN_RATIO = 0.6
_WORDS = r"[A-Za-z]{2,}|\d+"  # compiled with its first use


def close_names(name: str, known: Iterable[str], count: int = 3) -> list[str]:
    """Return up to `count` of the known names that are most like a name, the most similar first.

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
    found = [other for other in candidates if len(name) > 2 and name.lower() in other.lower()][:count]
    return found or difflib.get_close_matches(name, candidates, n=count, cutoff=_MIN_RATIO)


def hint(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: which ones may be meant, or "" if none is like it."""
    close = close_names(name, known)
    return f"; did you mean {' or '.join(close)}?" if close else ""
