"""The width of the terminal."""

import os
import sys
from contextlib import suppress


def terminal_columns() -> int:
    """Return what `shutil.get_terminal_size` does, without the modules for archives that importing shutil needs."""
    with suppress(KeyError, ValueError):
        given = int(os.environ["COLUMNS"])
        if given > 0:
            return given
    with suppress(AttributeError, ValueError, OSError):
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    return 80
