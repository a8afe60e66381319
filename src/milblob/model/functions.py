"""The functions of an open model: a tuple of their names, indexed by name too."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

from .open_program import OpenProgram

if TYPE_CHECKING:
    from ..program.view import Function


class Functions(tuple[str, ...]):
    """The names of all functions of a model, in Program order. Indexed by a name, it gives the `Function`.

    It is a tuple of str in every other respect: `model.functions[0]` is the first name.
    """

    _programs: Sequence[OpenProgram]

    def __new__(cls, names: Iterable[str], programs: Sequence[OpenProgram]) -> "Functions":
        """Make the functions of some Programs, by their names."""
        self = super().__new__(cls, names)
        self._programs = programs
        return self

    @overload
    def __getitem__(self, key: str) -> "Function": ...
    @overload
    def __getitem__(self, key: SupportsIndex) -> str: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[str, ...]: ...
    def __getitem__(self, key: Any) -> Any:
        """Return the function of a name, or the name at an index.

        Raises:
            KeyError: no function has that name. ValueError: the model is closed. As opening the model.
        """
        if not isinstance(key, str):
            return super().__getitem__(key)
        if key in self:
            for program in self._programs:
                if (function := program.view.functions.get(key)) is not None:
                    return function
        raise KeyError(f"function: expected one of {', '.join(self[:8]) or 'none'}, got {key!r}")

    def values(self) -> tuple["Function", ...]:
        """Return every function, in Program order."""
        return tuple(self[name] for name in self)

    def items(self) -> tuple[tuple[str, "Function"], ...]:
        """Return every name with its function, in Program order."""
        return tuple((name, self[name]) for name in self)

    def __reduce__(self) -> tuple[Any, ...]:
        return tuple, (list(self),)  # without the model
