"""Completing an interrupted change of a model before it is opened."""

import os
from collections.abc import Callable, Collection
from contextlib import closing
from typing import Any

from ..arguments import as_path
from ..storage import pending
from .package import Package


def open_package(source: Any, **options: Any) -> Package:
    """Open the files of a model once no change of it is pending: the only way to open one that others may write to.

    Args:
        source: as for Package.
        options: as for Package.

    Raises:
        As Package and `journal.recover`.
    """
    if isinstance(source, str | os.PathLike):
        settle(as_path(source))
    return Package(source, settle=settle, **options)


def settle(path: str, changeable: Callable[[str], Collection[str]] | None = None) -> bool:
    """Complete a change that a killed process began in the model that a path is, or leads into.

    Args:
        path: of a model, or of a file that one names.
        changeable: see `journal.recover`; default: what `Package.changeable` says.

    Returns:
        Whether there was one.
    """
    is_done = False
    while (found := pending.pending(path)) is not None:
        from ..storage import journal  # with what writes files, which whoever only reads does not wait for

        journal.recover(found, changeable or _changeable)
        is_done = True
    return is_done


def _changeable(path: str) -> set[str]:
    with closing(Package(path)) as package:
        return package.changeable()
