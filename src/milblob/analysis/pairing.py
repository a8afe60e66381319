"""Pairs the tensors of A with those of B: a list of rules, each applied to the tensors that are still unpaired."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from operator import itemgetter
from typing import Any

from ..arguments import Names, names_in
from ..closeness import unknown
from ..errors import MilblobError
from ..model.lazy import LazyTensor
from ..model.tensor import Tensor
from ..program.view import Operation
from ..progress import ProgressCounter
from .aligning import Alignment, plain
from .hash import tensor_hashes
from .operations import CompressedArgument, ConstantArgument, Key, key_of
from .sides import Side

_NUMBERED = re.compile(r"[a-z]+(?:_[a-z]+)*_\d+(?:_[a-z]+(?:_[a-z]+)*_\d+)?(?:\..*)?")
"""Names that converters make of the type of an operation and a number, such as "const_3" and "linear_0_weight_0"."""

Pair = tuple[str, str]
"""A tensor of A and a tensor of B, by name."""

AnyPair = tuple[str | None, str | None]
Pairs = list[AnyPair]
"""The same with None where one side lacks it."""


def pair(
    a: Side,
    b: Side,
    mapping: Mapping[str, Names],
    alignment: Alignment | None,
    counter: ProgressCounter,
    *,
    reads: bool = True,
) -> Pairs:
    """Find the tensors of B for each of A. Constants that are weights on one side only are added to the other side.

    A tensor may be in several pairs: where one side stores as one what are two on the other.

    `mapping`: as for `diff`. `alignment`: the operations of both; None if one side has none. `counter`: notes each
    tensor. `reads`: whether values may be read, to pair by them what has no names.
    Raises: KeyError, ValueError: see `diff`.
    """
    pairing = _Pairing(a, b, alignment)
    pairing.is_by_content = reads and not (a.has_given_names and b.has_given_names)
    pairing.follow(mapping)
    for rule in _RULES:
        if not pairing.left(0) and not pairing.left(1):  # a pair has a tensor that was left, on one side at least
            break
        pairing.add(counter.noting(rule(pairing), itemgetter(0)))
    pairing.add_shared()
    return pairing.rows()


def left_out(a: Side, mapping: Mapping[str, Names]) -> list[str]:
    """Return the names of A that a mapping leaves out."""
    return [a.find(name) or name for name, value in mapping.items() if not names_in(value)]


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
        """Names without prefixes of functions and pipelines -> full names."""
        found: dict[str, list[str]] = {}
        for name, tensor in self.tensors.items():
            if tensor.function and name.startswith(f"{tensor.function}/"):
                found.setdefault(name.removeprefix(f"{tensor.function}/"), []).append(name)
        return found

    def find(self, name: str) -> str | None:
        """Return the only constant that has this name, with or without its prefix."""
        if name in self.tensors:
            return name
        names = self._tails.get(name, ())
        return names[0] if len(names) == 1 else None


class _Pairing:
    """The pairs that were found so far, and what is left.

    Attributes:
        sides: A and B.
        spare: their small constants that are no weights there.
        alignment: their operations; None if one has none.
        pairs: name in A -> names in B; empty for a tensor that the mapping leaves out.
        taken: names in B that are in a pair.
        is_by_content: whether equal values are paired before names are looked at.
    """

    is_by_content = False

    def __init__(self, a: Side, b: Side, alignment: Alignment | None) -> None:
        self.sides = a, b
        self.alignment = alignment
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
        """Add the pairs of a mapping. Raises: KeyError, ValueError: see `diff`."""
        for old, value in mapping.items():
            ours = self._find(0, old)
            if ours in self.pairs:
                raise ValueError(f"mapping: expected each tensor of A once, got {ours!r} again as {old!r}")
            names = self.pairs[ours] = [self._find(1, new) for new in names_in(value)]
            if len(set(names)) != len(names):
                raise ValueError(f"mapping: expected each name once for {old!r}, got {value!r:.200}")
            self.taken.update(names)

    def _find(self, number: int, name: str) -> str:
        found = self.sides[number].find(name)
        if found is None:
            found = self.spare[number].find(name)
            if found is None:
                side = self.sides[number]
                raise KeyError(f"mapping: {unknown('tensor', name, side.tensors, side.words)}")
            self._take(number, found)
        return found

    @cached_property
    def places(self) -> "tuple[_Places, _Places]":
        """Where the operations of both sides read their weights; empty without operations."""
        a, b = (_Places(side.tensors, found) for side, found in zip(self.sides, self._readings, strict=True))
        return a, b

    @cached_property
    def all_places(self) -> "tuple[_Places, _Places]":
        """Likewise, with the small constants."""
        both = zip(self.spare, self.sides, self._readings, strict=True)
        a, b = (_Places({**spare.tensors, **side.tensors}, found) for spare, side, found in both)
        return a, b

    @cached_property
    def _readings(self) -> tuple[dict[Key, list[Any]], dict[Key, list[Any]]]:
        """The places of both sides by the key of what is read."""
        return ({}, {}) if self.alignment is None else (_readings(self.alignment, 0), _readings(self.alignment, 1))

    def add_shared(self) -> None:
        """Add pairs of weights that one place reads, paired before or not, if one of them is read elsewhere too.

        Converters store equal values once. What is equal in A may differ in B: each such pair is compared.
        """
        if self.alignment is None:  # no places
            return
        listed = self.sides[0].tensors, self.sides[1].tensors
        places = self.places
        for place, old in places[0].names.items():
            new = places[1].names.get(place)
            if new is None or old not in listed[0] or new not in listed[1]:
                continue
            known = self.pairs.get(old)
            is_shared = max(places[0].count(old), places[1].count(new)) > 1
            if is_shared and known != [] and new not in (known or ()):
                self.pairs.setdefault(old, []).append(new)
                self.taken.add(new)

    def rows(self) -> Pairs:
        """Return all tensors of A in their order, without those that the mapping leaves out, then the rest of B."""
        a, b = self.sides
        rows: Pairs = [(old, new) for old in a.tensors for new in self.pairs.get(old, [None])]
        return rows + [(None, name) for name in b.tensors if name not in self.taken]


class _Places:
    """Where the operations of one side read their constants.

    A place is an operation, a parameter, a number among what is given for it, and for the part of a compressed weight
    the parameter of that. Operations are those of B; a place in A without a counterpart there is left out.

    `tensors`: by name. `readings`: places by the key of what is read.
    """

    def __init__(self, tensors: Mapping[str, LazyTensor], readings: Mapping[Key, list[Any]]) -> None:
        self.names: dict[Any, str] = {}  # place -> name of the tensor
        self._of: dict[str, list[Any]] = {}
        for name, tensor in tensors.items() if readings else ():
            if isinstance(tensor, Tensor):
                own = readings.get(key_of(tensor) or ("", None), ())
                for place in own or _places_of_part(tensor, readings):
                    if self.names.setdefault(place, name) == name:
                        self._of.setdefault(name, []).append(place)

    def count(self, name: str) -> int:
        """Return the number of places that read a tensor."""
        return len(self._of.get(name, ()))

    def seen_from(self, other: "_Places", name: str) -> set[str]:
        """Return the names of the tensors that `other` has at the places of a tensor."""
        return {other.names[place] for place in self._of.get(name, ()) if place in other.names}


def _readings(alignment: Alignment, number: int) -> dict[Key, list[Any]]:
    """Return where the constants of A (0) or B (1) are read."""
    found: dict[Key, list[Any]] = {}
    for _, *both in alignment.functions:
        function = both[number]
        for op in function.ops if function is not None else ():
            partner = op if number else alignment.partners.get(op.key)
            for parameter, read in op.arguments.items() if partner is not None else ():
                for index, argument in enumerate(read):
                    if partner is not None and isinstance(argument, ConstantArgument | CompressedArgument):
                        for item, key in enumerate(argument.keys()):
                            found.setdefault(key, []).append((partner.key, parameter, index, item, ""))
    return found


def _places_of_part(tensor: Tensor, places: Mapping[Key, list[Any]]) -> Iterator[Any]:
    """Yield the places of the compressed weight that a tensor is a part of, each with the part's parameter."""
    if tensor.chain is not None or tensor.program is None:
        return
    for reader, parameter, _ in tensor.consumers:
        if isinstance(reader, Operation) and reader.type.startswith("constexpr_"):
            for *place, _ in places.get((tensor.program.prefix, (reader.block_row, reader.name)), ()):
                yield (*place, parameter)


# ---------------------------------------------------------------------------------------------------------------- rules


def _by_content(pairing: _Pairing) -> Iterator[Pair]:
    """Pair by dtype, shape and values, where names only identify the reader; names and order decide between equals."""
    if not pairing.is_by_content:
        return
    sides: list[dict[str, list[str]]] = [{}, {}]
    for number, found in enumerate(sides):
        for name, tensor in pairing.left(number).items():
            with suppress(MilblobError, OSError):  # the comparison reports what cannot be read
                found.setdefault(next(tensor_hashes([tensor], dense=True)), []).append(name)
    for digest, ours in sides[0].items():
        theirs = sides[1].get(digest, [])
        same = [name for name in ours if name in theirs]
        yield from zip(same, same, strict=True)
        yield from zip(*([name for name in names if name not in same] for names in (ours, theirs)), strict=False)


def _by_number(pairing: _Pairing) -> Iterator[Pair]:
    """The same function and the same number among its constants, and the same shape."""
    keys: list[dict[Any, str]] = []
    for number in (0, 1):
        tensors = pairing.left(number).items()
        numbered = ((name, t) for name, t in tensors if getattr(t, "ordinal", -1) >= 0)
        keys.append({(t.function, t.ordinal, t.declared_shape): name for name, t in numbered})  # type: ignore[attr-defined]
    yield from ((name, keys[1][key]) for key, name in keys[0].items() if key in keys[1])


def _by_given_name(pairing: _Pairing) -> Iterator[Pair]:
    """Pair by a name that an author gave, not by a converter's number: known operations are more reliable than that."""
    theirs = pairing.left(1)
    is_sure = pairing.alignment is None
    yield from (
        (n, n) for n in pairing.left(0) if n in theirs and (is_sure or not _NUMBERED.fullmatch(n.rpartition("/")[2]))
    )


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
    """As above, for a constant that is a weight on one side only: its place of storage decides whether it is one."""
    yield from ((name, other) for name in pairing.left(0) if (other := pairing.spare[1].find(name)) is not None)
    yield from ((other, name) for name in pairing.left(1) if (other := pairing.spare[0].find(name)) is not None)


def _by_place(pairing: _Pairing) -> Iterator[Pair]:
    """Read by the same operation of the network as the same parameter, and both by no other."""
    if (ours := pairing.left(0)) and (theirs := pairing.left(1)):
        yield from _at_the_same_places(pairing.places, ours, theirs)


def _by_place_of_small_constant(pairing: _Pairing) -> Iterator[Pair]:
    """Likewise, but a weight on one side only."""
    if ours := pairing.left(0):
        yield from _at_the_same_places(pairing.all_places, ours, pairing.spare_left(1))
    if theirs := pairing.left(1):
        yield from _at_the_same_places(pairing.all_places, pairing.spare_left(0), theirs)


def _by_plain_name(pairing: _Pairing) -> Iterator[Pair]:
    """The same name once marks of a precision or a compression are gone, if only one tensor has it."""
    ours, theirs = pairing.left(0), pairing.left(1)
    if ours and theirs:
        names: list[dict[str, str]] = []
        for tensors in (ours, theirs):
            counts = Counter(map(plain, tensors))
            names.append({plain(name): name for name in tensors if counts[plain(name)] == 1})
        yield from ((old, names[1][name]) for name, old in names[0].items() if name in names[1])


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
    _by_content,
    _by_given_name,
    _by_place,
    _by_name,
    _by_name_without_prefix,
    _by_name_of_small_constant,
    _by_place_of_small_constant,
    _by_plain_name,
    _by_reader,
    _by_reader_of_small_constant,
    _by_number,
)


def _at_the_same_places(
    places: tuple[_Places, _Places], old: Mapping[str, LazyTensor], new: Mapping[str, LazyTensor]
) -> Iterator[Pair]:
    """Pair tensors at whose places the other side has no other tensor."""
    a, b = places
    for name in old:
        found = a.seen_from(b, name)
        if len(found) == 1:
            (other,) = found
            if other in new and b.seen_from(a, other) == {name}:
                yield name, other


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
                uses = frozenset(
                    (plain(reader.label), parameter)
                    for reader, parameter, _ in tensor.consumers
                    if isinstance(reader, Operation)
                )
                if uses:
                    found.setdefault((tensor.function if several else "", uses), []).append(name)
        readers.append(found)
    for key, names in readers[0].items():
        others = readers[1].get(key, [])
        if len(names) == len(others) == 1:
            yield names[0], others[0]


def of_function(pairs: Pairs, a: Side, b: Side, function: str) -> Pairs:
    """Keep the pairs with a tensor of a function. Raises: KeyError: neither side has it."""

    def is_in(side: Side, name: str | None) -> bool:
        tensor = side.tensors[name] if name is not None else None
        own = tensor.function if isinstance(tensor, Tensor) else ""
        return function in (own, own.rpartition("/")[2]) and bool(own)

    known = {n for side in (a, b) if side.model is not None for n in side.model.functions}
    if function not in known and function not in {name.rpartition("/")[2] for name in known}:
        raise KeyError(unknown("function", function, sorted(known)))
    return [pair for pair in pairs if is_in(a, pair[0]) or is_in(b, pair[1])]
