"""Which tensor of A is which of B: a list of rules, each for what those before it left."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from ..arguments import Names, names_in
from ..model.lazy import LazyTensor
from ..model.tensor import Tensor
from .sides import Side

Pair = tuple[str, str]
"""A tensor of A and a tensor of B, by name."""

Pairs = list[tuple[str | None, str | None]]
"""The same with None where one side lacks it."""


def pair(a: Side, b: Side, mapping: Mapping[str, Names]) -> Pairs:
    """Find the tensor of B for each of A. Constants that are weights on one side only are added to the other side.

    Raises:
        KeyError, ValueError: see `diff`.
    """
    pairing = _Pairing(a, b)
    pairing.follow(mapping)
    for rule in _RULES:
        pairing.add(rule(pairing))
    return pairing.rows()


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


class _Pairing:
    """The pairs that were found so far, and what is left.

    Attributes:
        sides: A and B.
        spare: their small constants that are no weights there.
        pairs: name in A -> names in B; empty for a tensor that the mapping leaves out.
        taken: names in B that are in a pair.
    """

    def __init__(self, a: Side, b: Side) -> None:
        self.sides = a, b
        self.spare = _Spare(a), _Spare(b)
        self.pairs: dict[str, list[str]] = {}
        self.taken: set[str] = set()

    def add(self, pairs: Iterable[Pair]) -> None:
        """Add those of the pairs whose tensors are in none yet."""
        for old, new in pairs:
            if old not in self.pairs and new not in self.taken:
                self._take(0, old)
                self._take(1, new)
                self.pairs[old] = [new]
                self.taken.add(new)

    def _take(self, number: int, name: str) -> None:
        """Make sure that a tensor is among those that are compared: it may be a spare one."""
        tensors = self.sides[number].tensors
        if name not in tensors:
            tensors[name] = self.spare[number].tensors[name]

    def left(self, number: int) -> dict[str, LazyTensor]:
        """Return the tensors of A (0) or B (1) that are in no pair."""
        done = self.taken if number else self.pairs
        return {name: tensor for name, tensor in self.sides[number].tensors.items() if name not in done}

    def spare_left(self, number: int) -> dict[str, Tensor]:
        """Return the small constants of A (0) or B (1) that are in no pair."""
        done = self.taken if number else self.pairs
        return {name: tensor for name, tensor in self.spare[number].tensors.items() if name not in done}

    def follow(self, mapping: Mapping[str, Names]) -> None:
        """Add the pairs of a mapping.

        Raises:
            KeyError, ValueError: see `diff`.
        """
        for old, value in mapping.items():
            ours = self._find(0, old)
            names = names_in(value)
            if not names:
                self.pairs[ours] = []
                continue
            known = ours in self.pairs
            for new in names:
                theirs = self._find(1, new)
                if theirs in self.taken or known:
                    raise ValueError(f"mapping: expected each name once, got another one for {old!r} or {new!r}")
                self.pairs.setdefault(ours, []).append(theirs)
                self.taken.add(theirs)

    def _find(self, number: int, name: str) -> str:
        found = self.sides[number].find(name)
        if found is None:
            found = self.spare[number].find(name)
            if found is None:
                raise KeyError(f"mapping: expected names in {self.sides[number].words}, got {name!r}")
            self._take(number, found)
        return found

    def rows(self) -> Pairs:
        """Return all tensors of A in their order, those that the mapping leaves out omitted, then the rest of B."""
        a, b = self.sides
        rows: Pairs = [(old, new) for old in a.tensors for new in self.pairs.get(old, [None])]
        return rows + [(None, name) for name in b.tensors if name not in self.taken]


# ---------------------------------------------------------------------------------------------------------------- rules


def _by_name(pairing: _Pairing) -> Iterator[Pair]:
    """The same name."""
    theirs = pairing.left(1)
    yield from ((name, name) for name in pairing.left(0) if name in theirs)


def _by_name_without_prefix(pairing: _Pairing) -> Iterator[Pair]:
    """The same name once the prefix of a function or a pipeline is gone, if only one tensor has it."""
    a, b = pairing.sides
    ours, theirs = pairing.left(0), pairing.left(1)
    if ours and theirs:
        yield from ((name, other) for name in ours if (other := b.find(name)) is not None)
        yield from ((other, name) for name in theirs if (other := a.find(name)) is not None)


def _by_name_of_small_constant(pairing: _Pairing) -> Iterator[Pair]:
    """Likewise, but a weight on one side only: where a small constant is stored decides whether it is one."""
    yield from ((name, other) for name in pairing.left(0) if (other := pairing.spare[1].find(name)) is not None)
    yield from ((other, name) for name in pairing.left(1) if (other := pairing.spare[0].find(name)) is not None)


def _by_reader(pairing: _Pairing) -> Iterator[Pair]:
    """Read by the same operations as the same parameters: coremltools renames a weight when it compresses it."""
    yield from _same_readers(pairing, pairing.left(0), pairing.left(1))


def _by_reader_of_small_constant(pairing: _Pairing) -> Iterator[Pair]:
    """Likewise, but a weight on one side only."""
    if ours := pairing.left(0):
        yield from _same_readers(pairing, ours, pairing.spare_left(1))
    if theirs := pairing.left(1):
        yield from _same_readers(pairing, pairing.spare_left(0), theirs)


_RULES: tuple[Callable[[_Pairing], Iterator[Pair]], ...] = (
    _by_name,
    _by_name_without_prefix,
    _by_name_of_small_constant,
    _by_reader,
    _by_reader_of_small_constant,
)


def _same_readers(pairing: _Pairing, old: Mapping[str, LazyTensor], new: Mapping[str, LazyTensor]) -> Iterator[Pair]:
    """Pair tensors that have the same consumers, if each side has only one such tensor."""
    models = [side.model for side in pairing.sides]
    if not old or not new or None in models:
        return
    several = any(len(model.functions) > 1 for model in models if model is not None)
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
