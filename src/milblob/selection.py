"""Selection of tensors by name, for every function that has `select`: a glob, several, or a predicate."""

from collections.abc import Callable, Iterable, Sequence
from typing import cast

from .closeness import hint
from .errors import SelectionError

Select = str | Sequence[str] | Callable[[str], bool] | None
"""A glob or exact name, several of them, or a function that is called with a name; None selects everything."""

_WORDS = "a glob, several globs or a function"


def selector(select: Select) -> Callable[[str], bool]:
    """Return a function that returns whether a name is selected.

    A glob matches the whole name, case-sensitive: `*` any characters, also `/`; `?` one; `[ab]` one of several. Every
    text also matches itself, so that a name with `[` in it needs no escape.

    Raises: TypeError: `select` is of another kind. ValueError: it has no glob at all.
    """
    if select is None:
        return lambda _: True
    if callable(select):
        return select
    globs = _globs(select)
    if not globs:
        raise ValueError("select: expected a glob or several, got none; None selects everything")
    from fnmatch import fnmatchcase  # not brought by `import milblob`

    exact = frozenset(globs)
    patterns = [glob for glob in exact if any(sign in glob for sign in "*?[")]
    return lambda name: name in exact or any(fnmatchcase(name, glob) for glob in patterns)


def choose(names: Iterable[str], select: Select, where: str) -> tuple[list[str], tuple[str, ...]]:
    """Return the names that are selected, in their order, and the globs that none of them matches.

    Raises: SelectionError: nothing is selected, with close matches. As `selector`.
    """
    names, globs = list(names), _globs(select)
    found = list(filter(selector(select if callable(select) or select is None else globs), names))
    if select is not None and not found:
        raise SelectionError(globs, where, hint(globs[0].strip("*"), names) if globs else "")
    return found, tuple(glob for glob in globs if not any(map(selector(glob), found)))


def require_selected(select: Select, is_any: bool, where: str) -> None:
    """Refuse a selection that selects nothing: a misspelled name must be an error, not an empty result.

    `select`: as it was given; None is never refused. `is_any`: whether it selects something.
    Raises: SelectionError: it selects nothing.
    """
    if select is not None and not is_any:
        raise SelectionError(_globs(select), where)


def _globs(select: Select) -> tuple[str, ...]:
    """Return the globs of a selection; () of a function and None. Raises: TypeError: as `selector`."""
    if select is None or callable(select):
        return ()
    if isinstance(select, bytes | bytearray) or not isinstance(select, Iterable):
        raise TypeError(f"select: expected {_WORDS}, got {type(select).__name__}")
    try:
        globs = (select,) if isinstance(select, str) else tuple(select)
    except TypeError:  # an array without dimensions has __iter__ but raises
        raise TypeError(f"select: expected {_WORDS}, got {type(select).__name__}") from None
    for glob in cast("tuple[object, ...]", globs):
        if not isinstance(glob, str):
            raise TypeError(f"select: expected {_WORDS}, got {type(glob).__name__} among the globs")
    return globs
