"""What two comparable things there are, and which tensor of the one belongs to which of the other."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .arguments import Names, names_in, require
from .dtypes import dtype_of
from .formats.arrays import StoredArray
from .formats.elements import Readable
from .formats.read import is_array_file, open_arrays
from .formats.weights import with_notes
from .model import Model
from .tensor import Tensor


class Side(NamedTuple):
    """One of what is compared: its tensors by name, the model that has them (None for arrays), what to call it."""

    tensors: Mapping[str, Readable]
    model: Model | None
    words: str

    @classmethod
    def open(cls, source: Any, stored: bool, stack: contextlib.ExitStack) -> "Side":
        """Open what a caller gave; what is opened here is closed with the stack."""
        if isinstance(source, Model):
            return cls(dict(source), source, source.path or "model in memory")
        if isinstance(source, Mapping):
            for name in source:
                require("names of arrays", name, str, "str")
            return cls({name: _array(name, value) for name, value in source.items()}, None, "arrays")
        if isinstance(source, str | os.PathLike) and is_array_file(os.fsdecode(source)):
            arrays = stack.enter_context(open_arrays(source))
            return cls({name: arrays[name] for name in arrays}, None, os.fsdecode(source))
        model = stack.enter_context(Model(source, stored=stored))
        return cls(dict(with_notes(model, model)), model, model.path or "model in memory")

    @property
    def has_program(self) -> bool:
        """Whether it is a model, and not a weight file."""
        return self.model is not None and self.model.kind not in ("blob", "listing")

    def find(self, name: str) -> str | None:
        """The name of the one tensor that a name, perhaps without prefix, stands for."""
        if name in self.tensors:
            return name
        if self.model is None or name not in self.model:
            return None
        found = self.model[name].name
        return found if found in self.tensors else None


def _array(name: str, value: Any) -> Readable:
    if isinstance(value, Tensor | StoredArray):
        return value
    array = np.asarray(value)
    return StoredArray(name, dtype_of(array, f"array {name!r}"), array.shape, lambda: array)


Pairs = list[tuple[str | None, str | None]]


def pair(a: Side, b: Side, mapping: Mapping[str, Names]) -> Pairs:
    """Find the tensor of B for each of A.

    Raises:
        KeyError, ValueError: see `diff`.
    """
    mapped, dropped = _mapped(a, b, mapping)
    found = {old: new[0] for old, new in mapped.items()}
    taken = {name for new in mapped.values() for name in new}

    def add(pairs: Iterable[tuple[str, str]]) -> None:
        for old, new in pairs:
            if old not in found and old not in dropped and new not in taken:
                found[old] = new
                taken.add(new)

    add((name, name) for name in a.tensors if name in b.tensors)
    left = [
        [name for name in a.tensors if name not in found and name not in dropped],
        [name for name in b.tensors if name not in taken],
    ]
    if all(left):
        add((name, other) for name in left[0] if (other := b.find(name)) is not None)
        add((other, name) for name in left[1] if (other := a.find(name)) is not None)
        add(
            _same_readers(
                a, [name for name in left[0] if name not in found], b, [name for name in left[1] if name not in taken]
            )
        )
    pairs: Pairs = [
        (name, new) for name in a.tensors if name not in dropped for new in mapped.get(name, [found.get(name)])
    ]
    return pairs + [(None, name) for name in b.tensors if name not in taken]


def _mapped(a: Side, b: Side, mapping: Mapping[str, Names]) -> tuple[dict[str, list[str]], set[str]]:
    """The pairs that a mapping says, and what it leaves out."""
    found: dict[str, list[str]] = {}
    taken: set[str] = set()
    dropped: set[str] = set()
    for old, value in mapping.items():
        ours = a.find(old)
        if ours is None:
            raise KeyError(f"mapping: expected names in {a.words}, got {old!r}")
        names = names_in(value)
        if not names:
            dropped.add(ours)
            continue
        known = ours in found
        for new in names:
            theirs = b.find(new)
            if theirs is None:
                raise KeyError(f"mapping: expected names in {b.words}, got {new!r}")
            if theirs in taken or known:
                raise ValueError(f"mapping: expected each name once, got another one for {old!r} or {new!r}")
            found.setdefault(ours, []).append(theirs)
            taken.add(theirs)
    return found, dropped


def _same_readers(a: Side, old: list[str], b: Side, new: list[str]) -> Iterator[tuple[str, str]]:
    """Pair tensors of models that nothing else is paired with, if the same operations read them."""
    if a.model is None or b.model is None or not old or not new:
        return
    several = len(a.model.functions) > 1 or len(b.model.functions) > 1
    readers: list[dict[Any, list[str]]] = []
    for side, names in ((a, old), (b, new)):
        found: dict[Any, list[str]] = {}
        for name in names:
            tensor = side.tensors[name]
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
        KeyError: neither model has it.
    """

    def is_in(side: Side, name: str | None) -> bool:
        tensor = side.tensors[name] if name is not None else None
        own = tensor.function if isinstance(tensor, Tensor) else ""
        return function in (own, own.rpartition("/")[2]) and bool(own)

    known = {n for side in (a, b) if side.model is not None for n in side.model.functions}
    if function not in known and function not in {name.rpartition("/")[2] for name in known}:
        raise KeyError(f"function: expected one of {', '.join(sorted(known)) or 'none'}, got {function!r}")
    return [pair for pair in pairs if is_in(a, pair[0]) or is_in(b, pair[1])]
