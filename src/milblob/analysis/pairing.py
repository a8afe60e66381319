"""The two sides of a comparison, and the pairing of their tensors."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..arguments import Names, names_in, require
from ..dtypes import dtype_of
from ..formats.read import is_array_file, open_arrays
from ..formats.weights import with_notes
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.stored import StoredArray
from ..model.tensor import Tensor


def is_arrays(source: Any) -> bool:
    """Whether what a caller gave is arrays, in a file or in memory, and no model."""
    if isinstance(source, str | os.PathLike):
        return is_array_file(os.fsdecode(source))
    return isinstance(source, Mapping) and not isinstance(source, Model)


class Side(NamedTuple):
    """One side of a comparison.

    Attributes:
        tensors: by name, those to compare. `pair` adds constants that are weights only on the other side.
        model: the model that has them; None for arrays.
        words: its name in messages.
    """

    tensors: dict[str, LazyTensor]
    model: Model | None
    words: str

    @classmethod
    def open(cls, source: Any, stored: bool, stack: contextlib.ExitStack, max_nbytes: int | None = None) -> "Side":
        """Open a caller's source; if it is opened here, it is closed with the stack."""
        if isinstance(source, Model):
            return cls(dict(source), source, source.path or "model in memory")
        if isinstance(source, Mapping):
            for name in source:
                require("names of arrays", name, str, "str")
            return cls({name: _array(name, value) for name, value in source.items()}, None, "arrays")
        if is_arrays(source):
            arrays = stack.enter_context(open_arrays(source, max_nbytes=max_nbytes))
            return cls({name: arrays[name] for name in arrays}, None, os.fsdecode(source))
        model = stack.enter_context(Model(source, stored=stored, max_nbytes=max_nbytes))
        return cls(dict(with_notes(model, model)), model, model.path or "model in memory")

    @property
    def has_program(self) -> bool:
        """Whether it is a model, and not a weight file."""
        return self.model is not None and self.model.kind not in ("blob", "listing")

    def find(self, name: str) -> str | None:
        """Return the only tensor name that a name, with or without its prefix, stands for."""
        if name in self.tensors:
            return name
        if self.model is None or name not in self.model:
            return None
        found = self.model[name].name
        return found if found in self.tensors else None


class _Spare:
    """The constants of a side that are not weights there, by name; collected on first use."""

    def __init__(self, side: Side) -> None:
        self._side = side

    @cached_property
    def tensors(self) -> dict[str, Tensor]:
        """Name -> tensor."""
        return {} if self._side.model is None else self._side.model.unlisted()

    @cached_property
    def _tails(self) -> dict[str, list[str]]:
        """Names by their ends: what remains without prefixes of functions and pipelines."""
        found: dict[str, list[str]] = {}
        for name, tensor in self.tensors.items():
            if tensor.function and name.startswith(f"{tensor.function}/"):
                found.setdefault(name.removeprefix(f"{tensor.function}/"), []).append(name)
        return found

    def find(self, name: str) -> str | None:
        """Return the only constant name that a name, with or without its prefix, stands for."""
        if name in self.tensors:
            return name
        names = self._tails.get(name, ())
        return names[0] if len(names) == 1 else None

    def take(self, name: str) -> str:
        """Add a constant to the tensors that are compared."""
        self._side.tensors[name] = self.tensors[name]
        return name


def _array(name: str, value: Any) -> LazyTensor:
    if isinstance(value, LazyTensor):
        return value
    array = np.asarray(value)
    return StoredArray(name, dtype_of(array, f"array {name!r}"), array.shape, lambda: array)


Pairs = list[tuple[str | None, str | None]]


def pair(a: Side, b: Side, mapping: Mapping[str, Names]) -> Pairs:
    """Find the tensor of B for each of A.

    Raises:
        KeyError, ValueError: see `diff`.
    """
    spare = _Spare(a), _Spare(b)
    mapped, dropped = _mapped(a, b, spare, mapping)
    found = {old: new[0] for old, new in mapped.items()}
    taken = {name for new in mapped.values() for name in new}

    def add(pairs: Iterable[tuple[str, str]]) -> None:
        for old, new in pairs:
            if old not in found and old not in dropped and new not in taken:
                found[old] = new
                taken.add(new)

    def left() -> tuple[list[str], list[str]]:
        ours = [name for name in a.tensors if name not in found and name not in dropped]
        return ours, [name for name in b.tensors if name not in taken]

    add((name, name) for name in a.tensors if name in b.tensors)
    if all(left()):
        ours, theirs = left()
        add((name, other) for name in ours if (other := b.find(name)) is not None)
        add((other, name) for name in theirs if (other := a.find(name)) is not None)
    # Whether a small constant counts as a weight depends on where it is stored.
    ours, theirs = left()
    add((name, spare[1].take(other)) for name in ours if (other := spare[1].find(name)) is not None)
    add((spare[0].take(other), name) for name in theirs if (other := spare[0].find(name)) is not None)
    if a.model is not None and b.model is not None:
        several = len(a.model.functions) > 1 or len(b.model.functions) > 1
        ours, theirs = left()
        if ours and theirs:
            add(_same_readers(_named(a.tensors, ours), _named(b.tensors, theirs), several))
        ours, theirs = left()
        if ours:
            unpaired = {name: tensor for name, tensor in spare[1].tensors.items() if name not in taken}
            pairs = list(_same_readers(_named(a.tensors, ours), unpaired, several))
            add((name, spare[1].take(other)) for name, other in pairs)
        if theirs:
            unpaired = {name: tensor for name, tensor in spare[0].tensors.items() if name not in found}
            pairs = list(_same_readers(unpaired, _named(b.tensors, theirs), several))
            add((spare[0].take(other), name) for other, name in pairs)
    rows: Pairs = [
        (name, new) for name in a.tensors if name not in dropped for new in mapped.get(name, [found.get(name)])
    ]
    return rows + [(None, name) for name in b.tensors if name not in taken]


def _named(tensors: Mapping[str, LazyTensor], names: Iterable[str]) -> dict[str, LazyTensor]:
    return {name: tensors[name] for name in names}


def _mapped(
    a: Side, b: Side, spare: tuple[_Spare, _Spare], mapping: Mapping[str, Names]
) -> tuple[dict[str, list[str]], set[str]]:
    """Return the pairs of a mapping, and the names that it leaves out."""

    def find(number: int, name: str) -> str | None:
        known = (a, b)[number].find(name)
        if known is not None:
            return known
        other = spare[number].find(name)
        return None if other is None else spare[number].take(other)

    found: dict[str, list[str]] = {}
    taken: set[str] = set()
    dropped: set[str] = set()
    for old, value in mapping.items():
        ours = find(0, old)
        if ours is None:
            raise KeyError(f"mapping: expected names in {a.words}, got {old!r}")
        names = names_in(value)
        if not names:
            dropped.add(ours)
            continue
        known = ours in found
        for new in names:
            theirs = find(1, new)
            if theirs is None:
                raise KeyError(f"mapping: expected names in {b.words}, got {new!r}")
            if theirs in taken or known:
                raise ValueError(f"mapping: expected each name once, got another one for {old!r} or {new!r}")
            found.setdefault(ours, []).append(theirs)
            taken.add(theirs)
    return found, dropped


def _same_readers(
    old: Mapping[str, LazyTensor], new: Mapping[str, LazyTensor], several: bool
) -> Iterator[tuple[str, str]]:
    """Pair tensors that have the same consumers, if each side has only one such tensor.

    Args:
        several: whether there are several functions; then the function must be the same too.
    """
    readers: list[dict[Any, list[str]]] = []
    for tensors in (old, new):
        found: dict[Any, list[str]] = {}
        for name, tensor in tensors.items():
            if isinstance(tensor, Tensor):
                uses = frozenset((use.name, use.parameter) for use in tensor.consumers if use.op != "return")
                if uses:
                    found.setdefault((tensor.function if several else "", uses), []).append(name)
        readers.append(found)
    for key, names in readers[0].items():
        others = readers[1].get(key, [])
        if len(names) == len(others) == 1:
            yield names[0], others[0]


def of_function(pairs: Pairs, a: Side, b: Side, function: str) -> Pairs:
    """Keep the pairs with a tensor of a function.

    Raises:
        KeyError: neither side has it.
    """

    def is_in(side: Side, name: str | None) -> bool:
        tensor = side.tensors[name] if name is not None else None
        own = tensor.function if isinstance(tensor, Tensor) else ""
        return function in (own, own.rpartition("/")[2]) and bool(own)

    known = {n for side in (a, b) if side.model is not None for n in side.model.functions}
    if function not in known and function not in {name.rpartition("/")[2] for name in known}:
        raise KeyError(f"function: expected one of {', '.join(sorted(known)) or 'none'}, got {function!r}")
    return [pair for pair in pairs if is_in(a, pair[0]) or is_in(b, pair[1])]
