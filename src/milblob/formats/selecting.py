"""Tensors of a model or a file of arrays, opened alike: all, those of a function, or some."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, NamedTuple, cast

from ..closeness import unknown
from ..mirrored import shown
from ..model.lazy import LazyTensor
from ..model.model import Model
from .opening import open_source
from .read import array_kind


def is_in(tensor: Any, function: str) -> bool:
    """Whether a tensor belongs to a function; in a pipeline the function may be named without its model."""
    return function in (tensor.function, tensor.function.rpartition("/")[2])


class ChosenTensors(NamedTuple):
    """Tensors of a source: all of them, those of one function, or some."""

    path: str  # as given; of a remote source what messages call it
    kind: str  # of a model `Model.kind`; of arrays see `array_kind`
    tensors: Mapping[str, LazyTensor]  # in the order of the file
    model: Model | None  # that has them; None for arrays

    def only(self, names: Iterable[str]) -> "ChosenTensors":
        """Return some of them. Accesses arrays; raises as `open_arrays`."""
        if self.model is not None:
            return self._replace(tensors=Selected(self.model.tensors, names))
        return self._replace(tensors={name: self.tensors[name] for name in names})


def open_tensors(
    stack: ExitStack, source: str | Model, *, function: str | None = None, max_nbytes: int | None = None, **options: Any
) -> ChosenTensors:
    """Open a model or a file of arrays, and choose the tensors of a function.

    Raises: ValueError: a function of arrays, which have none. KeyError: no function has this name. As `open_source`.
    """
    opened = open_source(stack, source, max_nbytes=max_nbytes, **options)
    model = opened if isinstance(opened, Model) else None
    kind = model.kind if model is not None else cast(str, array_kind(cast(str, source)))
    path = str(source.path) if isinstance(source, Model) else shown(source)
    tensors: Mapping[str, LazyTensor] = opened if model is None else model.tensors
    if function is not None:
        functions = getattr(opened, "functions", None)
        if functions is None:
            raise ValueError(f"{path}: expected a model, which function is about")
        require_function(functions, function, path)
        tensors = Selected(tensors, [name for name, tensor in opened.items() if is_in(tensor, function)])
    return ChosenTensors(path, kind, tensors, model)


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


def require_function(functions: Iterable[str], wanted: str, where: str | None) -> None:
    """Refuse a name that is none of these. Raises: KeyError: with close matches."""
    every = list(functions)
    known = {*every, *(name.rpartition("/")[2] for name in every)}
    if wanted not in known:
        raise KeyError(unknown("function", wanted, every, where))
