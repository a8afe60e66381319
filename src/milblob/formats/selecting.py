"""Tensors of a model or a file of arrays, opened alike: all, those of a function, or some."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple

from ..closeness import unknown
from ..mirrored import shown
from ..model import open as opening
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.tensor import Tensor
from .read import array_kind, has_views, open_arrays


def is_in(tensor: Tensor, function: str) -> bool:
    """Whether a tensor belongs to a function; in a pipeline the function may be named without its model."""
    return tensor.function == function or tensor.function.rpartition("/")[2] == function


class ChosenTensors(NamedTuple):
    """Tensors of a source: all of them, those of one function, or some.

    Attributes:
        path: as given; of a remote source what messages call it.
        kind: of a model `Model.kind`; of arrays see `array_kind`.
        tensors: in the order of the file.
        model: that has them; None for arrays.
    """

    path: str
    kind: str
    tensors: Mapping[str, LazyTensor]
    model: Model | None

    def only(self, names: Iterable[str]) -> "ChosenTensors":
        """Return some of them. Accesses arrays; raises as `open_arrays`."""
        if self.model is not None:
            return self._replace(tensors=Selected(self.model.tensors, names))
        return self._replace(tensors={name: self.tensors[name] for name in names})


def open_tensors(
    stack: ExitStack,
    source: str | Model,
    *,
    function: str | None = None,
    constants: bool = False,
    stored: bool = False,
    tvm: str | None = None,
    max_nbytes: int | None = None,
) -> ChosenTensors:
    """Open a model or a file of arrays.

    Args:
        stack: closes what is opened here.
        source: a path or an open Model.
        function: only tensors of this function.
        constants, stored: as for `milblob.open`.
        tvm: see `open_arrays`.
        max_nbytes: as for `milblob.open`.

    Raises:
        ValueError: options that arrays, or an open Model, have no use for. KeyError: no function has this name. As
            opening it does.
    """
    if isinstance(source, Model):
        if constants or stored or max_nbytes is not None:
            raise ValueError("constants, stored and max_nbytes: expected none of an open model, which has its own")
        return _of_model(source, str(source.path), function)
    kind = array_kind(source)
    if kind is None:
        model = opening.open_model(source, constants=constants, stored=stored, max_nbytes=max_nbytes)
        return _of_model(stack.enter_context(model), shown(source), function)
    if (function is not None or constants or stored) and not has_views(source):
        raise ValueError(f"{shown(source)}: expected a model, which function, constants and stored are about")
    options: dict[str, Any] = {"tvm": tvm, "constants": constants, "stored": stored}
    arrays: Any = stack.enter_context(open_arrays(source, max_nbytes=max_nbytes, **options))
    if function is None:
        return ChosenTensors(shown(source), kind, arrays, None)
    require_function(arrays.functions, function, shown(source))
    names = [name for name in arrays if arrays[name].function == function]
    return ChosenTensors(shown(source), kind, Selected(arrays, names), None)


def _of_model(model: Model, path: str, function: str | None) -> ChosenTensors:
    if function is None:
        return ChosenTensors(path, model.kind, model.tensors, model)
    check_function(model, function)
    names = [tensor.name for tensor in model.values() if is_in(tensor, function)]
    return ChosenTensors(path, model.kind, Selected(model.tensors, names), model)


class Selected(Mapping[str, LazyTensor]):
    """Some tensors of a model or of a file of arrays, each made when it is asked for."""

    def __init__(self, tensors: Mapping[str, LazyTensor], names: Iterable[str]) -> None:
        self._tensors = tensors
        self._names = dict.fromkeys(names)

    def __getitem__(self, name: str) -> LazyTensor:
        if name not in self._names:
            raise KeyError(name)
        return self._tensors[name]

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def check_function(model: Model, wanted: str) -> None:
    """Refuse a name that no function of the model has. Raises: KeyError: with close matches."""
    require_function(model.functions, wanted, model.path)


def require_function(functions: Iterable[str], wanted: str, where: str | None) -> None:
    """Refuse a name that is none of these. Raises: KeyError: with close matches."""
    every = list(functions)
    known = {*every, *(name.rpartition("/")[2] for name in every)}
    if wanted not in known:
        raise KeyError(unknown("function", wanted, every, where))
