"""Selection of tensors by name, for every function that has `select`: a glob, several, or a predicate."""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

Select = str | Sequence[str] | Callable[[str], bool] | None
"""A glob or exact name, several of them, or a function that is called with a name; None selects everything."""

_MAX_COMPARED = 50_000
_WORDS = "a glob, several globs or a function"


def selector(select: Select) -> Callable[[str], bool]:
    """Return the function that says of a name whether it is selected.

    A glob matches the whole name, case-sensitive: `*` any characters, also `/`; `?` one; `[ab]` one of several. Every
    text also matches itself, so that a name with `[` in it needs no escape.

    Raises:
        TypeError: `select` is of another kind. ValueError: it has no glob at all.
    """
    if select is None:
        return lambda _: True
    if callable(select):
        return select
    if isinstance(select, bytes | bytearray) or not isinstance(select, Iterable):
        raise TypeError(f"select: expected {_WORDS}, got {type(select).__name__}")
    globs = (select,) if isinstance(select, str) else tuple(select)
    for glob in cast("tuple[object, ...]", globs):
        if not isinstance(glob, str):
            raise TypeError(f"select: expected {_WORDS}, got {type(glob).__name__} among the globs")
    if not globs:
        raise ValueError("select: expected a glob or several, got none; None selects everything")
    from fnmatch import fnmatchcase  # not brought by `import milblob`

    exact = frozenset(globs)
    patterns = [glob for glob in exact if any(sign in glob for sign in "*?[")]
    return lambda name: name in exact or any(fnmatchcase(name, glob) for glob in patterns)


def hint(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the names closest to one that is not there; "" if none is close."""
    from difflib import get_close_matches  # not brought by `import milblob`

    names = list(known)
    close = [other for other in names if len(name) > 2 and name.lower() in other.lower()][:3]
    close = close or get_close_matches(name, names[:_MAX_COMPARED], n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(close)}?" if close else ""


class Unknown:
    """The argument of a KeyError about a name, which it equals, as that of a dict does.

    Close names are looked for when it is printed: `get` never prints it.

    Args:
        name: that is not there.
        known: the names that are.
    """

    def __init__(self, name: object, known: Iterable[str]) -> None:
        self._name = name
        self._known = known

    def __str__(self) -> str:
        close = hint(self._name, self._known) if isinstance(self._name, str) else ""
        return f"tensor: expected a name of the model, got {self._name!r}{close}"

    __repr__ = __str__

    def __eq__(self, other: object) -> bool:
        return self._name == (other._name if isinstance(other, Unknown) else other)

    def __hash__(self) -> int:
        return hash(self._name)

    def __reduce__(self) -> tuple[type[str], tuple[str]]:
        return str, (str(self),)
