"""The functions of an open model, by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from ..closeness import unknown
from ..wording import some
from .open_program import OpenProgram

if TYPE_CHECKING:
    from ..program.view import Function


class Functions(Mapping[str, "Function"]):
    """The functions of a model, in Program order: a mapping from their names. Each is made on access."""

    def __init__(self, programs: Sequence[OpenProgram]) -> None:
        self._programs = programs
        self._names = {
            program.prefix + name: program for program in programs for name, _, _ in program.scan.table.functions
        }

    def __getitem__(self, name: str) -> "Function":
        """Return the function of a name.

        Raises: KeyError: no function has that name. ValueError: the model is closed. As opening the model.
        """
        program = self._names.get(name)
        if program is None:
            raise KeyError(unknown("function", name, self, "the model"))
        return program.view.functions[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<Functions: {some(self)}>"
