"""Selection of tensors: -k, -f, and names with close matches."""

import difflib
from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from ..model import open as opening
from ..model.model import Model
from ..model.tensor import Tensor
from ..selection import selector


def _is_in(tensor: Tensor, function: str) -> bool:
    """Whether a tensor belongs to a function; in a pipeline the function may be named without its model."""
    return tensor.function == function or tensor.function.rpartition("/")[2] == function


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
