"""Completing an interrupted change of a model before it is written to: for writers and `milblob.recover`."""

from collections.abc import Callable, Collection
from contextlib import closing

from ..storage import journal
from ..storage.pending import Pending, pending
from .package import Package


def settle(path: str, changeable: Callable[[str], Collection[str]] | None = None) -> list[journal.Recovered]:
    """Complete every change that is pending for a path.

    Args:
        path: of a model, or of a file that one names.
        changeable: as for `journal.recover`; default: `changeable_files`.

    Returns:
        What was completed.

    Raises:
        As `journal.recover`.
    """
    done = []
    while (found := pending(path)) is not None:
        done.append(journal.recover(found, changeable or changeable_files))
    return [change for change in done if change is not None]


def complete(found: Pending) -> None:
    """Complete a change of a file of a model, which a writer has met: for `Package(on_pending=...)`."""
    journal.recover(found, changeable_files)


def changeable_files(path: str) -> set[str]:
    """Return the files of a model that its journal may change; see `Package.changeable`."""
    with closing(Package(path, on_pending=None)) as package:
        return package.changeable()
