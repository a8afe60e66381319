"""Selection of tensors: -k, -f, and names with close matches."""

import difflib
from argparse import Namespace
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from ..formats.read import array_kind, open_arrays
from ..model import open as opening
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.tensor import Tensor
from ..selection import selector


def _is_in(tensor: Tensor, function: str) -> bool:
    """Whether a tensor belongs to a function; in a pipeline the function may be named without its model."""
    return tensor.function == function or tensor.function.rpartition("/")[2] == function


class Chosen(NamedTuple):
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
) -> Chosen:
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
            return Chosen(source, model.kind, chosen, model)
        from ..formats.weights import with_notes  # brings what writes weight files: a listing needs none of it

        return Chosen(source, model.kind, with_notes(chosen, model), model)
    if arguments.function is not None or constants or stored:
        raise ValueError(f"{source}: expected a model, which -f, --constants and --stored are about")
    arrays = stack.enter_context(open_arrays(source, max_nbytes=arguments.max_nbytes, tvm=tvm))
    return Chosen(source, kind, {name: arrays[name] for name in filter(selector(arguments.keep or None), arrays)}, None)


def find_array(stack: ExitStack, source: str, name: str, max_nbytes: int | None = None) -> LazyTensor:
    """Open a file of arrays, and return the one of this name.

    Raises:
        KeyError: there is none. As opening it does.
    """
    arrays = stack.enter_context(open_arrays(source, max_nbytes=max_nbytes))
    if name not in arrays:
        raise KeyError(f"array: expected a name in {source}, got {name!r}{_hint(name, arrays)}")
    return arrays[name]


def select(model: Model, arguments: Namespace) -> dict[str, Tensor]:
    """Return the tensors that -k and -f select, in the model's order.

    Raises:
        KeyError: no function has that name.
    """
    wanted = arguments.function
    if wanted is not None:
        check_function(model, wanted)
    is_kept = selector(arguments.keep or None)
    chosen = {}
    for name, tensor in model.items():
        if wanted is not None and not _is_in(tensor, wanted):
            continue
        if not is_kept(name):
            continue
        chosen[name] = tensor
    return chosen


def check_function(model: Model, wanted: str) -> None:
    """Raise KeyError, with close matches, if no function of the model has the name `wanted`."""
    known = {*model.functions, *(name.rpartition("/")[2] for name in model.functions)}
    if wanted not in known:
        names = ", ".join(model.functions[:8]) + (", ..." if len(model.functions) > 8 else "")
        expected = f"one of {names}" if names else "none, in a weight file"
        raise KeyError(f"function: expected {expected}, got {wanted!r} in {model.path}{_hint(wanted, known)}")


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
    for constants, stored in ((False, False), (False, True), (True, False), (True, True)):
        model = opening.open(source, constants=constants, stored=stored, max_nbytes=max_nbytes)
        try:
            if function is not None:
                check_function(model, function)
            tensor = _lookup(model, name, function)
            if tensor is not None:
                return model, tensor
            known.update((t.name, None) for t in model.values() if function is None or _is_in(t, function))
        except BaseException:
            model.close()
            raise
        model.close()
        if model.kind == "blob":
            break
    of = "" if function is None else f" of function {function}"
    raise KeyError(f"tensor: expected a name{of} in {source}, got {name!r}{_hint(name, known)}")


def _lookup(model: Model, name: str, function: str | None) -> Tensor | None:
    if function is not None:
        inside = [t for t in model.values() if _is_in(t, function)]
        exact = [t for t in inside if t.name == name] or [t for t in inside if t.name.endswith(f"/{name}")]
        if len(exact) > 1:
            raise KeyError(
                f"tensor: expected one of {', '.join(t.name for t in exact[:8])}, got the ambiguous {name!r}"
            )
        return exact[0] if exact else None
    try:
        return model[name]
    except KeyError as error:
        if "ambiguous" in str(error.args[0]) and error.args[0] != name:
            raise
        return None


def _hint(name: str, known: Iterable[Any]) -> str:
    names = list(known)  # weights come first
    close = difflib.get_close_matches(name, names[:50000], n=3, cutoff=0.5)
    if not close and name:
        close = [other for other in names if name.lower() in other.lower()][:3]
    return f"; did you mean {' or '.join(close)}?" if close else ""
