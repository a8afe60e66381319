"""Interrupted changes: completed before a command changes a model in place, and by `milblob recover`."""

from argparse import Namespace
from typing import TYPE_CHECKING

from .terminal import output

if TYPE_CHECKING:
    from ..storage.journal import Recovered


def complete_first(arguments: Namespace, *sources: str) -> None:
    """Complete an interrupted change of models that a command is about to change in place, before it reads them.

    Raises: As `milblob.recover`.
    """
    from ..refitting.recover import recover
    from ..rewrite.destination import is_in_place

    target = arguments.output
    if not arguments.dry_run and (target is None or is_in_place(list(sources), target)):
        for source in sources:
            for change in recover(source).changes:
                say_completed(arguments, source, change)


def say_completed(arguments: Namespace, source: str, change: "Recovered") -> None:
    """Report that an interrupted change was completed; with -v name the files that it changed."""
    if not arguments.quiet:
        files = output.plural(len(change.files), "file")
        output.say(f"completed an interrupted change of {source}: {output.size(change.nbytes)} in {files}")
    if arguments.verbose:
        for file in change.files:
            output.say(f"  {file}")
