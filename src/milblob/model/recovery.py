"""Completing an interrupted change of a model before it is written to: for writers and `milblob.recover`."""

from contextlib import closing

from ..storage import journal
from ..storage.pending import Pending, pending
from ..storage.table import format_of
from .package import Package


def settle(path: str) -> list[journal.Recovered]:
    """Complete every change that is pending for a path.

    `path`: of a model, or of a file that one names.
    Returns: What was completed.
    Raises: As `journal.recover`.
    """
    done = []
    while (found := pending(path)) is not None:
        done.append(journal.recover(found, changeable_files))
    return [change for change in done if change is not None]


def complete(found: Pending) -> None:
    """Complete a pending change of a model's file that a writer has found: for `Package(on_pending=...)`."""
    journal.recover(found, changeable_files)


def changeable_files(path: str) -> set[str]:
    """Return the real paths of the files of a model, archive or bundle that its journal may change.

    Raises: As opening it.
    """
    row = format_of(path)
    if row is not None and row.changeable:
        return set(row.function("changeable")(path))
    with closing(Package(path, on_pending=None)) as package:
        return package.changeable()
