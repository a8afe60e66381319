"""The base of all results: as JSON, in one paragraph, and as HTML."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, ClassVar, NoReturn

import numpy as np

from .dtypes import DType
from .shown import Shown, cut, short
from .wording import escape

_MAX_WORST = 3


@dataclass(frozen=True, repr=False)
class Result(Shown):
    """Base of everything that a function of milblob reports: frozen dataclasses.

    `repr` has at most a paragraph for any number of weights: it gives the length of long lists, and shows the three
    most important rows. `to_dict` has everything.

    Subclasses may set `_keys`: field or property -> its key in `to_dict`, and whether it is there. Properties that are
    not named are left out; None leaves a field out. And `_worst`: the rows that a repr shows.

    Examples:
        >>> report = milblob.refit("demo.mlpackage", {"head_bias": np.zeros(96, np.float32)}, dry_run=True)
        >>> isinstance(report, milblob.Result), report.to_dict()["done"]
        (True, False)
    """

    _keys: ClassVar[Mapping[str, str | None]] = {}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it: dtypes and paths as text, numbers that are not finite as None."""
        return {key: plain(getattr(self, name)) for name, key in self._shown().items() if key is not None}

    def _shown(self) -> dict[str, str | None]:
        """The key of every field, then of every property that `_keys` names."""
        return {field.name: field.name for field in fields(self)} | dict(self._keys)

    def _worst(self) -> Iterable[str]:
        """Return texts of the rows that matter most, in order; the first three are shown."""
        return ()

    def _texts(self) -> list[tuple[str, str]]:
        """Return (name, short text) of what a repr shows: fields that have their default value are left out."""
        defaults = {field.name: _default(field) for field in fields(self)}
        values = ((name, getattr(self, name)) for name, key in self._shown().items() if key is not None)
        texts = [(name, short(value)) for name, value in values if name not in defaults or value != defaults[name]]
        worst = [cut(escape(text)) for text, _ in zip(self._worst(), range(_MAX_WORST), strict=False)]
        return texts + [("worst", "; ".join(worst))] * bool(worst)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={text}' for name, text in self._texts())})"


def ambiguous(result: Result, attribute: str) -> NoReturn:
    """Refuse to be a truth value, which would read as well one way as the other.

    Raises:
        TypeError: always; it names the attribute to use.
    """
    raise TypeError(f"the truth value of a {type(result).__name__} is ambiguous; use .{attribute}")


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it.

    Results and named tuples become dicts, dtypes and paths text, and numbers that are not finite None.

    Raises:
        TypeError: nothing that a result holds.
    """
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, float | np.floating):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, int | np.integer):
        return int(value)
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, DType):
        return str(value)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, np.generic | np.ndarray):
        return plain(value.tolist())
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | Set):
        return [plain(item) for item in value]
    raise TypeError(f"value of a result: expected something that JSON can hold, got {type(value).__name__}")


def least(rows: Iterable[Any], key: Any) -> list[Any]:
    """Return the few rows with the least keys, in order."""
    return sorted(rows, key=key)[:_MAX_WORST]


def _default(field: "Field[Any]") -> Any:
    """The default value of a field; MISSING, which nothing equals, without one."""
    return field.default if field.default_factory is MISSING else field.default_factory()
