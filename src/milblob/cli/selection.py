"""Selection of tensors: -k, -f, and names with close matches."""

from argparse import Namespace
from collections.abc import Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ..closeness import ambiguous, unknown
from ..selection import choose, selector
from .terminal import output

if TYPE_CHECKING:
    from ..formats.selecting import ChosenTensors
    from ..model.lazy import LazyTensor
    from ..model.model import Model
    from ..model.tensor import Tensor

_VIEWS = ((False, False), (False, True), (True, False), (True, True))
"""`constants` and `stored` of every view of a model, the usual one first."""


def open_chosen(
    stack: ExitStack, source: str, arguments: Namespace, *, constants: bool = False, stored: bool = False
) -> "ChosenTensors":
    """Open a model or a file of arrays, and choose from it. Unless -q is given, print a message if nothing is left.

    `constants`, `stored`: see `milblob.open`.
    Raises: ValueError: options that arrays have no use for. KeyError: no function is called that. As opening it does.
    """
    from ..formats.selecting import open_tensors

    opened = open_tensors(
        stack, source, function=arguments.function, constants=constants, stored=stored, max_nbytes=arguments.max_nbytes
    )
    chosen = opened.only(kept(opened.tensors, arguments, source))
    if not chosen.tensors and not arguments.quiet and (words := describe_filter(arguments)):
        output.say(f"no tensor matches {words}")
    return chosen


def find_array(stack: ExitStack, source: str, name: str, max_nbytes: int | None = None) -> "LazyTensor":
    """Open a file of arrays, and return the one of this name; of a format with views, in the first that has it.

    Raises: KeyError: there is none. As opening it does.
    """
    from ..formats.read import has_views, open_arrays

    for constants, stored in _VIEWS if has_views(source) else _VIEWS[:1]:
        arrays = stack.enter_context(open_arrays(source, max_nbytes=max_nbytes, constants=constants, stored=stored))
        if name in arrays:
            break
    if name not in arrays:
        raise KeyError(unknown("array", name, arrays, source) + _advice(source, name, arrays))
    return arrays[name]


def kept(names: Iterable[str], arguments: Namespace, where: str) -> list[str]:
    """Return the names that -k selects: all, if it is not given.

    A glob that matches nothing beside others that match something is named on stderr.

    `names`: to choose from. `where`: what has these names, for messages.
    Raises: SelectionError: none matches, in any command: what was asked for cannot be done.
    """
    found, unmatched = choose(names, arguments.select or None, where)
    say_unmatched(arguments, unmatched, where)
    return found


def say_unmatched(arguments: Namespace, globs: Iterable[str], where: str) -> None:
    """Name globs that match nothing beside others that match something; not with -q."""
    if not arguments.quiet:
        for glob in globs:
            output.say(f"-k {glob}: no tensor in {where} matches")


def check_select(arguments: Namespace, *sources: str, stored: bool | None = None) -> None:
    """Check -k of a command that does not open its models itself, before it does anything.

    `sources`: models or files of arrays; a name may be of any of them. `stored`: see `milblob.open`; None: a name may
    be of any view, also of constants that are no weights.
    Raises: SelectionError: none matches. As opening them does.
    """
    from ..formats.opening import open_source
    from ..formats.read import array_kind, has_views

    names: dict[str, None] = {}
    unmatched = list(arguments.select)
    for source in sources:
        is_model = array_kind(source) is None
        views = _VIEWS if is_model or has_views(source) else _VIEWS[:1]
        for constants, parts in views if stored is None or not is_model else [(False, stored)]:
            if not unmatched:
                return
            with ExitStack() as stack:
                opened = open_source(stack, source, constants=constants, stored=parts, max_nbytes=arguments.max_nbytes)
                names.update(dict.fromkeys(opened))
            unmatched = [glob for glob in unmatched if not any(map(selector(glob), names))]
    if unmatched:
        kept(names, arguments, " and ".join(sources))


def describe_filter(arguments: Namespace) -> str:
    """Describe -k and -f, for the message that nothing was found."""
    words = [f"-k {glob}" for glob in arguments.select]
    if getattr(arguments, "function", None) is not None:
        words.append(f"-f {arguments.function}")
    return " ".join(words)


def find(source: str, name: str, function: str | None, max_nbytes: int | None = None) -> "tuple[Model, Tensor]":
    """Open a model in the first view that has a tensor of this name: weights, stored parts, every constant.

    Returns: The open model, for the caller to close, and the tensor.
    Raises: KeyError: no view has it, or several tensors could be meant.
    """
    from ..formats.selecting import is_in, require_function
    from ..model import open as opening
    from ..storage.mapped import closed_on_error

    known: dict[str, None] = {}
    for constants, stored in _VIEWS:
        model = opening.open_model(source, constants=constants, stored=stored, max_nbytes=max_nbytes)
        with closed_on_error(model):
            if function is not None:
                require_function(model.functions, function, model.path)
            tensor = _lookup(model, name, function)
            if tensor is not None:
                return model, tensor
            known.update((t.name, None) for t in model.values() if function is None or is_in(t, function))
        model.close()
        if model.kind == "blob":
            break
    where = source if function is None else f"function {function} of {source}"
    raise KeyError(unknown("tensor", name, known, where) + _advice(source, name, known))


def _advice(source: str, name: str, known: Iterable[str]) -> str:
    """Return what to do with a glob where a name is expected, "" if nothing matches it."""
    count = sum(map(selector(name), known))
    return f"; it is a glob, which milblob ls {source} -k '{name}' takes (it lists {count:,})" if count else ""


def _lookup(model: "Model", name: str, function: str | None) -> "Tensor | None":
    from ..formats.selecting import is_in

    if function is not None:
        inside = [t for t in model.values() if is_in(t, function)]
        exact = [t for t in inside if t.name == name] or [t for t in inside if t.name.endswith(f"/{name}")]
        if len(exact) > 1:
            raise KeyError(ambiguous(name, (tensor.name for tensor in exact)))
        return exact[0] if exact else None
    return model.lookup(name)
