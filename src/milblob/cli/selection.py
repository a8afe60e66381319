"""Selection of tensors: -k, -f, and names with close matches."""

from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from ..closeness import ambiguous, hint, unknown
from ..errors import UnsupportedError
from ..formats.read import array_kind, has_views, open_arrays
from ..formats.selecting import ChosenTensors, Selected, check_function, is_in, require_function
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
) -> ChosenTensors:
    """Open a model or a file of arrays, and choose from it.

    Args:
        stack: that closes it.
        source: a path.
        arguments: of the command: `max_nbytes`, and see `kept`.
        constants, stored: see `milblob.open`.

    Raises:
        ValueError: options that arrays have no use for. KeyError: no function is called that. As opening it does.
    """
    opened = _open(stack, source, arguments, constants=constants, stored=stored)
    names = kept(opened.names, arguments, source)
    if opened.model is not None:
        return ChosenTensors(source, opened.kind, Selected(opened.model, names), opened.model)
    return ChosenTensors(source, opened.kind, {name: opened.tensors[name] for name in names}, None)


def open_all(
    stack: ExitStack, sources: list[str], arguments: Namespace, *, skip_unsupported: bool
) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Open models and files of arrays, and choose from all of them together what is to be written elsewhere.

    What a listing notes about its records is restored.

    Args:
        stack: that closes them.
        sources: paths.
        arguments: of the command: `max_nbytes`, `constants`, `stored`, `tvm`, and see `kept`.
        skip_unsupported: leave out arrays whose dtype MIL lacks.

    Returns:
        The tensors by name; the dtypes of those that are left out.

    Raises:
        ValueError: a name occurs in two of them. As `open_chosen`; UnsupportedError: without `skip_unsupported`.
    """
    chosen: dict[str, LazyTensor] = {}
    skipped: dict[str, str] = {}
    views = {"constants": arguments.constants, "stored": arguments.stored, "tvm": arguments.tvm}
    opened = [_open(stack, source, arguments, **views) for source in sources]
    names = [name for one in opened for name in one.names]
    wanted = set(kept(names, arguments, " and ".join(sources)))
    for source, one in zip(sources, opened, strict=True):
        tensors = one.tensors
        if one.model is not None and one.model.kind == "listing":
            from ..formats.weights import with_notes  # brings what writes weight files

            tensors = with_notes(one.model, one.model)
        for name in filter(wanted.__contains__, one.names):
            if name in chosen or name in skipped:
                raise ValueError(f"names of tensors: expected each once, got {name} again in {source}")
            try:
                chosen[name] = tensors[name]
            except UnsupportedError as error:
                if not skip_unsupported:
                    raise
                skipped[name] = f"({error.what})"
    return chosen, skipped


class _Opened(NamedTuple):
    """A model or a file of arrays, with the names in the function that -f says, or all; see `ChosenTensors`."""

    kind: str
    names: list[str]
    tensors: Mapping[str, LazyTensor]
    model: Model | None


def _open(
    stack: ExitStack, source: str, arguments: Namespace, *, constants: bool, stored: bool, tvm: str | None = None
) -> _Opened:
    kind = array_kind(source)
    if kind is None:
        model = stack.enter_context(
            opening.open_model(source, constants=constants, stored=stored, max_nbytes=arguments.max_nbytes)
        )
        return _Opened(model.kind, _of_model(model, arguments.function), model, model)
    if (arguments.function is not None or constants or stored) and not has_views(source):
        raise ValueError(f"{source}: expected a model, which -f, --constants and --stored are about")
    options: dict[str, Any] = {"tvm": tvm, "constants": constants, "stored": stored}
    arrays = stack.enter_context(open_arrays(source, max_nbytes=arguments.max_nbytes, **options))
    return _Opened(kind, _of_function(arrays, arguments.function, source), arrays, None)


def _of_model(model: Model, wanted: str | None) -> list[str]:
    """Return the names of the tensors of a function; of all, if None is asked for."""
    if wanted is None:
        return list(model)
    check_function(model, wanted)
    return [tensor.name for tensor in model.values() if is_in(tensor, wanted)]


def _of_function(arrays: Any, function: str | None, source: str) -> list[str]:
    """Return the names of the arrays of a function; of all, if None is asked for."""
    if function is None:
        return list(arrays)
    require_function(arrays.functions, function, source)
    return [name for name in arrays if arrays[name].function == function]


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
        raise KeyError(unknown("array", name, arrays, source))
    return arrays[name]


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
    if not arguments.select:
        return names
    found = list(filter(selector(arguments.select), names))
    if not found:
        words = " ".join(f"-k {glob}" for glob in arguments.select)
        close = hint(arguments.select[0].strip("*"), names)
        raise ValueError(f"{words}: no tensor in {where} matches{close}")
    if not arguments.quiet:
        for glob in arguments.select:
            if not any(map(selector(glob), found)):
                output.say(f"-k {glob}: no tensor in {where} matches")
    return found


def check_select(arguments: Namespace, *sources: str, stored: bool | None = None) -> None:
    """Check -k of a command that does not open its models itself, before it does anything.

    Args:
        arguments: of the command.
        sources: models or files of arrays; a name may be of any of them.
        stored: see `milblob.open`; None: a name may be of any view, also of constants that are no weights.

    Raises:
        ValueError: none matches. As opening them does.
    """
    if not arguments.select:
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
    words = [f"-k {glob}" for glob in arguments.select]
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
    raise KeyError(unknown("tensor", name, known, source if function is None else f"function {function} of {source}"))


def _lookup(model: Model, name: str, function: str | None) -> Tensor | None:
    if function is not None:
        inside = [t for t in model.values() if is_in(t, function)]
        exact = [t for t in inside if t.name == name] or [t for t in inside if t.name.endswith(f"/{name}")]
        if len(exact) > 1:
            raise KeyError(ambiguous(name, (tensor.name for tensor in exact)))
        return exact[0] if exact else None
    return model.lookup(name)
