"""Selection of tensors: -k, -f, and names with close matches."""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import NamedTuple

from ..closeness import hint
from ..formats.read import array_kind, open_arrays
from ..model import open as opening
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.tensor import Tensor
from ..selection import selector
from ..storage.mapped import closed_on_error
from .terminal import output

_VIEWS = ((False, False), (False, True), (True, False), (True, True))
"""`constants` and `stored` of every view of a model, the usual one first."""


def _is_in(tensor: Tensor, function: str) -> bool:
    """Whether a tensor belongs to a function; in a pipeline the function may be named without its model."""
    return tensor.function == function or tensor.function.rpartition("/")[2] == function


class ChosenTensors(NamedTuple):
    """What a command is about.

    Attributes:
        path: as given.
        kind: of a model `Model.kind`; of arrays see `array_kind`.
        tensors: those that -k and -f leave, in the order of the file.
        model: that has them; None for arrays.
    """

    path: str
    kind: str
    tensors: Mapping[str, LazyTensor]
    model: Model | None


def open_chosen(
    stack: ExitStack,
    source: str,
    arguments: Namespace,
    *,
    constants: bool = False,
    stored: bool = False,
    noted: bool = False,
    tvm: str | None = None,
) -> ChosenTensors:
    """Open a model or a file of arrays, and choose from it.

    Args:
        stack: that closes it.
        source: a path.
        arguments: of the command: `max_nbytes`, and see `select`.
        constants, stored: see `milblob.open`.
        tvm: see `open_arrays`.
        noted: give what the notes of a listing say that records stand for.

    Raises:
        ValueError: options that arrays have no use for. KeyError: no function is called that. As opening it does.
    """
    kind = array_kind(source)
    if kind is None:
        model = stack.enter_context(
            opening.open(source, constants=constants, stored=stored, max_nbytes=arguments.max_nbytes)
        )
        chosen = select(model, arguments)
        if not noted:
            return ChosenTensors(source, model.kind, chosen, model)
        from ..formats.weights import with_notes  # brings what writes weight files: a listing needs none of it

        return ChosenTensors(source, model.kind, with_notes(chosen, model), model)
    if arguments.function is not None or constants or stored:
        raise ValueError(f"{source}: expected a model, which -f, --constants and --stored are about")
    arrays = stack.enter_context(open_arrays(source, max_nbytes=arguments.max_nbytes, tvm=tvm))
    return ChosenTensors(source, kind, {name: arrays[name] for name in kept(arrays, arguments, source)}, None)


def find_array(stack: ExitStack, source: str, name: str, max_nbytes: int | None = None) -> LazyTensor:
    """Open a file of arrays, and return the one of this name.

    Raises:
        KeyError: there is none. As opening it does.
    """
    arrays = stack.enter_context(open_arrays(source, max_nbytes=max_nbytes))
    if name not in arrays:
        raise KeyError(f"array: expected a name in {source}, got {name!r}{hint(name, arrays)}")
    return arrays[name]


class Selected(Mapping[str, Tensor]):
    """Some tensors of a model, each made when it is asked for."""

    def __init__(self, model: Model, names: Iterable[str]) -> None:
        self._tensors = model.tensors
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._names:
            raise KeyError(name)
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def select(model: Model, arguments: Namespace) -> Selected:
    """Return the tensors that -k and -f select, in the model's order.

    Raises:
        KeyError: no function has that name.
    """
    wanted = arguments.function
    names = list(model)
    if wanted is not None:
        check_function(model, wanted)
        names = [tensor.name for tensor in model.values() if _is_in(tensor, wanted)]
    return Selected(model, kept(names, arguments, str(model.path)))


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
                continue
            for constants, parts in _VIEWS if stored is None else [(False, stored)]:
                model = opening.open(source, constants=constants, stored=parts, max_nbytes=arguments.max_nbytes)
                names.update(dict.fromkeys(stack.enter_context(model)))
    kept(names, arguments, " and ".join(sources))


def check_function(model: Model, wanted: str) -> None:
    """Raise KeyError, with close matches, if no function of the model has the name `wanted`."""
    known = {*model.functions, *(name.rpartition("/")[2] for name in model.functions)}
    if wanted not in known:
        names = ", ".join(model.functions[:8]) + (", ..." if len(model.functions) > 8 else "")
        expected = f"one of {names}" if names else "none, in a weight file"
        raise KeyError(f"function: expected {expected}, got {wanted!r} in {model.path}{hint(wanted, known)}")


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
        model = opening.open(source, constants=constants, stored=stored, max_nbytes=max_nbytes)
        with closed_on_error(model):
            if function is not None:
                check_function(model, function)
            tensor = _lookup(model, name, function)
            if tensor is not None:
                return model, tensor
            known.update((t.name, None) for t in model.values() if function is None or _is_in(t, function))
        model.close()
        if model.kind == "blob":
            break
    of = "" if function is None else f" of function {function}"
    raise KeyError(f"tensor: expected a name{of} in {source}, got {name!r}{hint(name, known)}")


def _lookup(model: Model, name: str, function: str | None) -> Tensor | None:
    if function is not None:
        inside = [t for t in model.values() if _is_in(t, function)]
        exact = [t for t in inside if t.name == name] or [t for t in inside if t.name.endswith(f"/{name}")]
        if len(exact) > 1:
            raise KeyError(
                f"tensor: expected one of {', '.join(t.name for t in exact[:8])}, got the ambiguous {name!r}"
            )
        return exact[0] if exact else None
    return model.lookup(name)
