"""The values that constexpr operations of a view compute: those of compressed weights."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import FormatError
from ..program.view import Operation, ProgramView
from .open_program import OpenProgram
from .package import Package, Source
from .program_places import place_of

Decode = Callable[[ProgramView, Operation, int], "np.ndarray[Any, Any]"]


def decoder(package: Package, source: Source) -> Decode:
    """Return a function that decodes an output of a constexpr operation: `decode(view, operation, number)`.

    The first call scans the Program of the view again, which holds no model that is no longer used.
    """
    programs: list[OpenProgram] = []
    rows: dict[tuple[int, int], Any] = {}

    def decode(view: ProgramView, operation: Operation, number: int) -> "np.ndarray[Any, Any]":
        if not programs:
            buffer, span = view.held()
            program = OpenProgram(package, source._replace(program=(buffer, *span)))
            program.scan.link()
            rows.update({(group.op.message[0], group.output): group for group in program.scan.groups})
            programs.append(program)
        row = rows.get((operation.message[0], number))
        if row is None:
            message = f"{operation.type}: expected an operation that computes a weight, got one that cannot be decoded"
            raise FormatError(message, where=operation.path)
        program = programs[0]
        return place_of(program, program.scan.name_of(row), row).read()

    return decode
