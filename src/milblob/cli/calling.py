"""Calls a function of the library with the options of a command, after an interrupted change was completed."""

from argparse import Namespace
from collections.abc import Callable
from inspect import signature
from typing import TYPE_CHECKING, TypeVar

from .terminal import output
from .terminal.progress import shown

if TYPE_CHECKING:
    from ..storage.journal import Recovered

_R = TypeVar("_R")
_OF_URLS = ("storage_options", "cache")  # `sources.local_sources` has used them: the sources are local paths


def call(function: Callable[..., _R], arguments: Namespace, *given: object, **more: object) -> _R:
    """Call a function with the options that are named as its parameters are, and show its progress.

    An option that may be repeated, and was not given, has its default.

    `given`: its first arguments. `more`: keywords that no option has, or that an option of another meaning hides.
    Raises: As the function.
    """
    names = [name for name in [*signature(function).parameters][len(given) :] if name not in _OF_URLS]
    options = {name: getattr(arguments, name) for name in names if getattr(arguments, name, []) != []}
    with shown(arguments) as progress:
        return function(*given, **options | {"progress": progress} | more)


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
