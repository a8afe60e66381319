"""Calls a function of the library with the options of a command, which are named as its parameters are."""

from argparse import Namespace
from collections.abc import Callable
from inspect import signature
from typing import TypeVar

from .terminal.progress import shown

_R = TypeVar("_R")
_OF_URLS = ("storage_options", "cache")  # `sources.local_sources` has used them: the sources are local paths


def call(function: Callable[..., _R], arguments: Namespace, *given: object, **more: object) -> _R:
    """Call a function, and show its progress. An option that may be repeated, and was not given, has its default.

    `given`: its first arguments. `more`: keywords that no option has, or that an option of another meaning hides.
    Raises: As the function.
    """
    names = [name for name in [*signature(function).parameters][len(given) :] if name not in _OF_URLS]
    options = {name: getattr(arguments, name) for name in names if getattr(arguments, name, []) != []}
    with shown(arguments) as progress:
        return function(*given, **options | {"progress": progress} | more)
