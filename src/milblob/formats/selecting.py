"""Tensors of a model or a file of arrays, by name and by function."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from ..arguments import require, source_of
from ..closeness import hint, unknown
from ..model import open as opening
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.tensor import Tensor
from ..selection import Select, selector
from .read import array_kind, has_views, open_arrays

Keep = Callable[[Iterable[str], str], list[str]]
"""Called with names and what has them, for messages; returns those that are wanted, or raises ValueError."""


def is_in(tensor: Tensor, function: str) -> bool:
    """Whether a tensor belongs to a function; in a pipeline the function may be named without its model."""
    return tensor.function == function or tensor.function.rpartition("/")[2] == function


class ChosenTensors(NamedTuple):
    """Tensors of a source that were asked for.

    Attributes:
        path: as given.
        kind: of a model `Model.kind`; of arrays see `array_kind`.
        tensors: in the order of the file.
        model: that has them; None for arrays.
    """

    path: str
    kind: str
    tensors: Mapping[str, LazyTensor]
    model: Model | None


def keeper(select: Select) -> Keep:
    """Return the `Keep` of a public `select`: a name that nothing has is an error, with close matches.

    Raises:
        As `selector`.
    """
    is_selected = selector(select)

    def keep(names: Iterable[str], where: str) -> list[str]:
        names = list(names)
        found = list(filter(is_selected, names))
        if found or select is None:
            return found
        globs = [select] if isinstance(select, str) else [] if callable(select) else list(select)
        close = hint(globs[0].strip("*"), names) if globs else ""
        asked = " ".join(globs) or "a function"
        raise ValueError(f"select {asked}: expected the name of a tensor in {where}, got none that matches{close}")

    return keep


def open_tensors(
    stack: ExitStack,
    source: Any,
    keep: Keep,
    *,
    function: str | None = None,
    constants: bool = False,
    stored: bool = False,
    noted: bool = False,
    tvm: str | None = None,
    max_nbytes: int | None = None,
) -> ChosenTensors:
    """Open a model or a file of arrays, and choose from it.

    Args:
        stack: closes what is opened here.
        source: a path, an open Model or an MLModel of coremltools.
        keep: chooses the names.
        function: only tensors of this function.
        constants, stored: as for `milblob.open`.
        noted: give what the notes of a listing say that records are.
        tvm: see `open_arrays`.
        max_nbytes: as for `milblob.open`.

    Raises:
        ValueError: options that arrays have no use for. KeyError: no function has this name. As opening it does.
    """
    source = source_of(source)
    if isinstance(source, Model):
        if constants or stored or max_nbytes is not None:
            raise ValueError("constants, stored and max_nbytes: expected none of an open model, which has its own")
        return ChosenTensors(str(source.path), source.kind, _noted(source, keep, function, noted), source)
    require("source", source, str, "the path of a model or a file of arrays, or an open Model")
    kind = array_kind(source)
    if kind is None:
        model = stack.enter_context(
            opening.open_model(source, constants=constants, stored=stored, max_nbytes=max_nbytes)
        )
        return ChosenTensors(source, model.kind, _noted(model, keep, function, noted), model)
    if (function is not None or constants or stored) and not has_views(source):
        raise ValueError(f"{source}: expected a model, which -f, --constants and --stored are about")
    options: dict[str, Any] = {"tvm": tvm, "constants": constants, "stored": stored}
    arrays = stack.enter_context(open_arrays(source, max_nbytes=max_nbytes, **options))
    names = keep(_of_function(arrays, function, source), source)
    return ChosenTensors(source, kind, {name: arrays[name] for name in names}, None)


def _noted(model: Model, keep: Keep, function: str | None, noted: bool) -> Mapping[str, LazyTensor]:
    chosen = select_from(model, keep, function)
    if not noted:
        return chosen
    from .weights import with_notes  # brings what writes weight files: a listing needs none of it

    return with_notes(chosen, model)


def _of_function(arrays: Any, function: str | None, source: str) -> list[str]:
    """Return the names of the arrays of a function; of all, if None is asked for."""
    if function is None:
        return list(arrays)
    require_function(arrays.functions, function, source)
    return [name for name in arrays if arrays[name].function == function]


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


def select_from(model: Model, keep: Keep, function: str | None) -> Selected:
    """Return the tensors of a model, and of one function, that are wanted, in the model's order.

    Raises:
        KeyError: no function has that name. As `keep`.
    """
    names = list(model)
    if function is not None:
        check_function(model, function)
        names = [tensor.name for tensor in model.values() if is_in(tensor, function)]
    return Selected(model, keep(names, str(model.path)))


def check_function(model: Model, wanted: str) -> None:
    """Refuse a name that no function of the model has. Raises: KeyError: with close matches."""
    require_function(model.functions, wanted, model.path)


def require_function(functions: Iterable[str], wanted: str, where: str | None) -> None:
    """Refuse a name that is none of these. Raises: KeyError: with close matches."""
    every = list(functions)
    known = {*every, *(name.rpartition("/")[2] for name in every)}
    if wanted not in known:
        raise KeyError(unknown("function", wanted, every, where))
