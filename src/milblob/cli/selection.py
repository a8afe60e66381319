"""Selection of tensors: -k, -f, and names with close matches."""

from argparse import Namespace
from collections.abc import Iterable
from contextlib import ExitStack

from ..closeness import hint
from ..formats.read import array_kind, has_views, open_arrays
from ..formats.selecting import ChosenTensors, Selected, check_function, is_in, open_tensors, select_from
from ..model import open as opening
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.tensor import Tensor
from ..selection import selector
from ..storage.mapped import closed_on_error
from .terminal import output

_VIEWS = ((False, False), (False, True), (True, False), (True, True))
"""`constants` and `stored` of every view of a model, the usual one first."""


def open_chosen(
    stack: ExitStack,
    source: str,
    arguments: Namespace,
    *,
    constants: bool = False,
    stored: bool = False,
    noted: bool = False,
) -> ChosenTensors:
    """Open a model or a file of arrays, and choose from it what -k and -f leave: see `open_tensors`."""
    return open_tensors(
        stack, source, lambda names, where: kept(names, arguments, where), function=arguments.function,
        constants=constants, stored=stored, noted=noted, max_nbytes=arguments.max_nbytes,
    )  # fmt: skip


def find_array(stack: ExitStack, source: str, name: str, max_nbytes: int | None = None) -> LazyTensor:
    """Open a file of arrays, and return the one of this name; of a format with views, in the first that has it.

    Raises:
        KeyError: there is none. As opening it does.
    """
    for constants, stored in _VIEWS if has_views(source) else _VIEWS[:1]:
        arrays = stack.enter_context(open_arrays(source, max_nbytes=max_nbytes, constants=constants, stored=stored))
        if name in arrays:
            break
    if name not in arrays:
        raise KeyError(f"array: expected a name in {source}, got {name!r}{hint(name, arrays)}")
    return arrays[name]


def select(model: Model, arguments: Namespace) -> Selected:
    """Return the tensors that -k and -f select, in the model's order.

    Raises:
        KeyError: no function has that name.
    """
    return select_from(model, lambda names, where: kept(names, arguments, where), arguments.function)


def kept(names: Iterable[str], arguments: Namespace, where: str) -> list[str]:
    """Return the names that -k selects: all, if it is not given.

    A glob that matches nothing beside others that match something is named on stderr.

    Args:
        names: to choose from.
        arguments: of the command.
        where: what has these names, for messages.

    Raises:
        ValueError: none matches, in any command: what was asked for cannot be done.
    """
    names = list(names)
    if not arguments.keep:
        return names
    found = list(filter(selector(arguments.keep), names))
    if not found:
        words = " ".join(f"-k {glob}" for glob in arguments.keep)
        close = hint(arguments.keep[0].strip("*"), names)
        raise ValueError(f"{words}: expected the name of a tensor in {where}, got none that matches{close}")
    if not arguments.quiet:
        for glob in arguments.keep:
            if not any(map(selector(glob), found)):
                output.say(f"-k {glob}: no tensor in {where} matches")
    return found


def check_keep(arguments: Namespace, *sources: str, stored: bool | None = None) -> None:
    """Check -k of a command that does not open its models itself, before it does anything.

    Args:
        arguments: of the command.
        sources: models or files of arrays; a name may be of any of them.
        stored: see `milblob.open`; None: a name may be of any view, also of constants that are no weights.

    Raises:
        ValueError: none matches. As opening them does.
    """
    if not arguments.keep:
        return
    names: dict[str, None] = {}
    for source in sources:
        with ExitStack() as stack:
            if array_kind(source) is not None:
                names.update(dict.fromkeys(stack.enter_context(open_arrays(source, max_nbytes=arguments.max_nbytes))))
                if has_views(source):
                    other = open_arrays(source, max_nbytes=arguments.max_nbytes, constants=True, stored=True)
                    names.update(dict.fromkeys(stack.enter_context(other)))
                continue
            for constants, parts in _VIEWS if stored is None else [(False, stored)]:
                model = opening.open_model(source, constants=constants, stored=parts, max_nbytes=arguments.max_nbytes)
                names.update(dict.fromkeys(stack.enter_context(model)))
    kept(names, arguments, " and ".join(sources))


def describe_filter(arguments: Namespace) -> str:
    """Describe -k and -f, for the message that nothing was found."""
    words = [f"-k {glob}" for glob in arguments.keep]
    if getattr(arguments, "function", None) is not None:
        words.append(f"-f {arguments.function}")
    return " ".join(words)


def find(source: str, name: str, function: str | None, max_nbytes: int | None = None) -> tuple[Model, Tensor]:
    """Open a model in the first view that has a tensor of this name: weights, stored parts, every constant.

    Returns:
        The open model, for the caller to close, and the tensor.

    Raises:
        KeyError: no view has it, or several tensors could be meant.
    """
    known: dict[str, None] = {}
    for constants, stored in _VIEWS:
        model = opening.open_model(source, constants=constants, stored=stored, max_nbytes=max_nbytes)
        with closed_on_error(model):
            if function is not None:
                check_function(model, function)
            tensor = _lookup(model, name, function)
            if tensor is not None:
                return model, tensor
            known.update((t.name, None) for t in model.values() if function is None or is_in(t, function))
        model.close()
        if model.kind == "blob":
            break
    of = "" if function is None else f" of function {function}"
    raise KeyError(f"tensor: expected a name{of} in {source}, got {name!r}{hint(name, known)}")


def _lookup(model: Model, name: str, function: str | None) -> Tensor | None:
    if function is not None:
        inside = [t for t in model.values() if is_in(t, function)]
        exact = [t for t in inside if t.name == name] or [t for t in inside if t.name.endswith(f"/{name}")]
        if len(exact) > 1:
            raise KeyError(
                f"tensor: expected one of {', '.join(t.name for t in exact[:8])}, got the ambiguous {name!r}"
            )
        return exact[0] if exact else None
    return model.lookup(name)
