"""Short texts of values, and the base of what notebooks show as a table: results, models, tensors."""

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

from .dtypes import DType
from .wording import escape

_MAX_NCHARS = 80
"""Of one value in a repr."""
MAX_FIRST = 5
"""Rows that a model or a file of arrays shows of its own."""
_MAX_COUNTS = 32
_SIMPLE = (bool, int, float, str, DType, tuple)


class Shown:
    """Base of what shows itself in notebooks, as a short table; values of weights are never read for it."""

    __slots__ = ()

    def _texts(self) -> list[tuple[str, str]]:
        """Return (name, short text) of each row, not escaped for HTML."""
        raise NotImplementedError

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        import html  # with its table of names

        rows = (f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in self._texts())
        return f"<table><caption>{type(self).__name__}</caption>{''.join(rows)}</table>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Return the table and the repr by MIME type; IPython keeps those that it wants."""
        return {"text/plain": repr(self), "text/html": self._repr_html_()}


def short(value: Any) -> str:
    """Return a short text of a value, one line of at most 80 characters; of long sequences and mappings their size."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return repr(value if len(value) < _MAX_NCHARS else f"{value[:30]}...{value[-30:]}")[:_MAX_NCHARS]
    if isinstance(value, DType):
        return str(value)
    if isinstance(value, Mapping) and not hasattr(value, "__dataclass_fields__"):
        if len(value) < _MAX_COUNTS and all(type(item) is int for item in value.values()):
            value = {key: item for key, item in value.items() if item}  # of counts, those that are not zero
        return _counted(value.values(), len(value), "{}", [f"{cut(escape(str(key)))}: " for key in _few(value)])
    if isinstance(value, Sequence | Set) and not hasattr(value, "__dataclass_fields__"):
        return _counted(value, len(value), "()" if isinstance(value, tuple) else "[]")
    return cut(escape(repr(value)))


def _few(values: Iterable[Any], count: int = 8) -> list[Any]:
    return [value for value, _ in zip(values, range(count), strict=False)]


def _counted(values: Iterable[Any], count: int, ends: str, heads: Sequence[str] = ()) -> str:
    """Return all values if they are few and simple, else their number and type."""
    some = _few(values)
    if count == len(some) and all(value is None or isinstance(value, _SIMPLE) for value in some):
        text = ", ".join(head + short(value) for head, value in zip(heads or [""] * count, some, strict=True))
        if len(text) + 2 <= _MAX_NCHARS:
            return f"{ends[0]}{text}{ends[1]}"
    return f"{ends[0]}{count:,} {type(some[0]).__name__}{ends[1]}"


def cut(text: str) -> str:
    """Return the start of a text that is longer than 80 characters."""
    return text if len(text) <= _MAX_NCHARS else f"{text[: _MAX_NCHARS - 3]}..."
