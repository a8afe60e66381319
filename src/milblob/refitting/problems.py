"""The problems of a `refit`: all are found before any is raised, and those of one kind are counted."""

from ..errors import MilblobError
from ..wording import abbreviated, escape, shortened, some

ERRORS = (KeyError, TypeError, ValueError, OverflowError, MilblobError)
"""What is wrong with an array or a weight; anything else ends the work at once."""

_MAX_PROBLEMS = 20
_MAX_NAMES = 4
_Kind = tuple[str, str]


class Problems:
    """Collects problems. Several of one kind become one message: their number, some names, and the remedy."""

    def __init__(self) -> None:
        self._count = 0
        self._single: list[Exception] = []
        self._seen: set[int] = set()  # of those in _single, which keeps them
        self._kinds: dict[_Kind, list[tuple[str, Exception]]] = {}

    def __bool__(self) -> bool:
        return self._count > 0

    def add(self, error: Exception) -> None:
        """Add a problem of its own kind, unless it is there already."""
        if id(error) in self._seen:
            return
        self._seen.add(id(error))
        self._count += 1
        self._single.append(error)

    def add_kind(self, what: str, remedy: str, name: str, error: Exception) -> None:
        """Add a problem that others may share.

        `what`: in the plural, such as "float32 arrays for float16 weights". `remedy`: what to do, such as "add --cast".
        `error`: to raise if this is the only problem of its kind; its message lacks the remedy.
        """
        self._count += 1
        self._kinds.setdefault((what, remedy), []).append((name, error))

    def raise_any(self) -> None:
        """Raise what was found. Raises: The only problem itself; ValueError with all of them if there are several."""
        if not self._count:
            return
        if self._count == 1:
            if self._single:
                raise self._single[0]
            ((_, remedy), [(_, error)]) = next(iter(self._kinds.items()))
            raise _with_remedy(error, remedy)
        messages = [_message_of(error) for error in self._single]
        for (what, remedy), found in self._kinds.items():
            if len(found) == 1:
                messages.append(f"{_message_of(found[0][1])} ({remedy})")
            else:
                names = some((abbreviated(name) for name, _ in found), _MAX_NAMES)
                messages.append(f"{len(found):,} {what} ({names}): {remedy}")
        listed = "; ".join(shortened(messages, _MAX_PROBLEMS))
        raise ValueError(escape(f"weights: expected all to fit, got {self._count:,} problems: {listed}"))


def _with_remedy(error: Exception, remedy: str) -> Exception:
    if isinstance(error, MilblobError):
        error.what = f"{error.what} ({remedy})"
        return error
    return type(error)(f"{_message_of(error)} ({remedy})")


def _message_of(error: Exception) -> str:
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
