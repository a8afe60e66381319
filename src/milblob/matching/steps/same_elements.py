"""Finds arrays with the same elements after a cast, in any order; hashes come first, so not all pairs are compared."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from ... import _codec
from ...dtypes import DType
from ...model.elements import PIECE_COUNT, Elements, starts
from ...model.lazy import LazyTensor
from ...model.stored import StoredArray
from ...values import parallel
from ...values.cast import cast_array, is_castable
from ..checkpoint import Work
from ..derivations.layouts import Layout, layouts

_MAX_VERIFIED = 4096  # pairs with the same elements whose order is compared


class SameOrder(NamedTuple):
    """Arrays, or weights, with the same elements, order and shape, whose hashes are `key`."""

    key: Any
    tensor: LazyTensor  # the first of them
    members: list[str]


class Equality(NamedTuple):
    """Arrays, and the weights that they equal in a layout."""

    cost: int
    arrays: SameOrder
    weights: SameOrder
    layout: Layout

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """Sort key, simplest first: identity layout, then the order of layouts, then without a cast."""
        is_cast = self.arrays.tensor.mil_dtype is not self.weights.tensor.mil_dtype
        return not self.layout.is_identity, self.cost, is_cast


_BATCH = 64  # tensors: few enough for progress between batches
_Hashes = tuple[tuple[int, ...], tuple[int, ...]]

_Looked = tuple[str, LazyTensor, tuple[tuple[int, ...], tuple[int, ...]]]
"""The name of a tensor, the tensor, and its key: its shape, and hashes of its pieces in their order."""


def same_elements(arrays: Mapping[str, LazyTensor], weights: Mapping[str, LazyTensor], work: Work) -> list[Equality]:
    """Return the pairs of arrays and weights with the same elements, after a cast to the weight's dtype.

    `arrays`, `weights`: by name; of numbers. `work`: of the search; each array is done once it has been hashed.
    """
    seed = int.from_bytes(os.urandom(8), "little")  # no author of a file can make tensors look equal
    looks: dict[Any, tuple[list[_Looked], list[_Looked]]] = defaultdict(lambda: ([], []))
    ours = {tensor.size for tensor in arrays.values()}
    kinds: dict[int, dict[DType, None]] = defaultdict(dict)
    for tensor in weights.values():
        if tensor.size in ours:
            kinds[tensor.size][tensor.mil_dtype] = None

    def look(side: int, tensors: Mapping[str, LazyTensor], done: Callable[[str], None]) -> None:
        hashes: dict[tuple[str, DType], _Hashes] = {}
        for some, size, own in _batches(tensors):
            for dtype in kinds.get(size, ()):
                if own is dtype if side else is_castable(own, dtype):
                    with suppress(OverflowError):  # an integer is out of range
                        found = _hashes([tensors[name] for name in some], dtype, seed)
                        hashes.update(zip(((name, dtype) for name in some), found, strict=True))
            for name in some:
                done(name)
        for name, tensor in tensors.items():
            for dtype in kinds.get(tensor.size, ()):
                if (name, dtype) in hashes:
                    ordered, mixed = hashes[name, dtype]
                    looks[tensor.size, dtype, mixed][side].append((name, tensor, (tensor.shape, ordered)))

    look(1, weights, work.counter.note)
    look(0, arrays, lambda name: work.done(name, arrays[name]))
    return [
        one
        for (_, dtype, _), sides in looks.items()
        if all(sides)
        for a, b in _groups(sides, dtype)
        for one in work.counter.noting(_equalities(a, b, dtype, work), lambda one: one.arrays.members[0])
    ]


def _batches(tensors: Mapping[str, LazyTensor]) -> Iterator[tuple[list[str], int, DType]]:
    """Yield names of tensors of one size and dtype, with these; small ones together."""
    alike: dict[tuple[int, DType], list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        alike[tensor.size, tensor.mil_dtype].append(name)
    for (size, dtype), names in alike.items():
        most = max(1, min(PIECE_COUNT // max(size, 1), _BATCH))
        step = most if dtype.is_float else 1  # an integer may be out of range: of one alone
        yield from ((names[begin : begin + step], size, dtype) for begin in range(0, len(names), step))


def _hashes(tensors: list[LazyTensor], dtype: DType, seed: int) -> list[_Hashes]:
    """Return for tensors of one size and dtype the hashes of their pieces, and a mixture of their elements' bits.

    This is the xor, the minimum and the maximum. Only tensors that agree in these may have the same elements. They take
    a sixth of the time of a hash in any order, which few tensors then need.
    """
    every = [Elements(tensor) for tensor in tensors]
    if not every[0].count:
        return [((), ())] * len(every)
    ordered: list[list[int]] = []
    mixed: list[list[Any]] = []
    for begin in starts(every[0].count):
        some = [elements.read(begin, min(PIECE_COUNT, elements.count - begin)) for elements in every]
        rows = np.stack(some) if len(some) > 1 else some[0][None]
        if every[0].dtype is not dtype:
            rows = cast_array(rows, dtype, overflow="inf")[0]
        buffer, nbytes = _codec.Buffer(rows.reshape(-1).view(np.uint8)), rows.nbytes // len(rows)
        ordered.append([_codec.hash_bytes(buffer, place * nbytes, nbytes, seed) for place in range(len(rows))])
        bits = rows.view(f"u{dtype.numpy.itemsize}")
        mixed.append([np.bitwise_xor.reduce(bits, axis=1), bits.min(axis=1), bits.max(axis=1)])
    xors, least, most = zip(*mixed, strict=True)
    mixtures = np.bitwise_xor.reduce(xors), np.minimum.reduce(least), np.maximum.reduce(most)
    return list(zip(zip(*ordered, strict=True), zip(*(row.tolist() for row in mixtures), strict=True), strict=True))


def _groups(
    sides: tuple[list[_Looked], list[_Looked]], dtype: DType
) -> Iterator[tuple[list[SameOrder], list[SameOrder]]]:
    """Yield arrays and weights with the same elements in any order, each divided by order and shape."""
    hashes: dict[tuple[int, ...], int] = {}
    groups: dict[int, tuple[dict[Any, SameOrder], dict[Any, SameOrder]]] = {}
    is_one = len({ordered for side in sides for _, _, (_, ordered) in side}) == 1
    for side, rows in enumerate(sides):
        for name, tensor, key in rows:
            if key[1] not in hashes:
                hashes[key[1]] = 0 if is_one else hash_in_any_order(tensor, dtype)
            parts = groups.setdefault(hashes[key[1]], ({}, {}))[side]
            parts.setdefault(key, SameOrder(key, tensor, [])).members.append(name)
    yield from ((list(a.values()), list(b.values())) for a, b in groups.values() if a and b)


def _equalities(ours: Iterable[SameOrder], theirs: Iterable[SameOrder], dtype: DType, work: Work) -> Iterator[Equality]:
    """Yield groups with the same elements that match in some layout."""
    verified = 0
    for new in theirs:
        for old in ours:
            verified += 1
            if verified > _MAX_VERIFIED:
                return
            if old.key == new.key:  # the hashes agree: compare the elements
                order = [Layout()] if work.may(50_000) else []
            else:
                order = affordable_layouts(old.tensor.shape, new.tensor.shape, work)
            for cost, layout in enumerate(order):
                if not work.may(200_000 + 4 * old.tensor.size):
                    return
                if are_equal(old.tensor, new.tensor, layout, dtype):
                    yield Equality(cost, old, new, layout)
                    break


def hash_in_any_order(tensor: LazyTensor, dtype: DType) -> int:
    """Return a hash of the elements, cast to a dtype, that does not depend on their order."""
    nbytes = dtype.numpy.itemsize
    found = sum(_codec.hash_elements(piece.view(np.uint8), nbytes) for piece in pieces(Elements(tensor), dtype))
    return found % (1 << 64)


def affordable_layouts(old: tuple[int, ...], new: tuple[int, ...], work: Work) -> list[Layout]:
    """Return the layouts to try for a pair of shapes; none once the work budget is spent."""
    found = layouts(old, new) if work.may(50_000) else []
    work.may(20_000 * len(found))
    return found


def moved_elements(tensor: LazyTensor, layout: Layout) -> Elements:
    """Return the elements of a tensor in another layout."""
    if layout.axes is None:
        return Elements(tensor)
    values = np.ascontiguousarray(layout.view(np.ascontiguousarray(tensor.read()).reshape(tensor.shape)))
    return Elements(StoredArray(tensor.name, tensor.mil_dtype, values.shape, lambda: values))


def pieces(elements: Elements, dtype: DType) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements, cast to a dtype; numbers that are too large become infinite.

    Raises: OverflowError: an integer that is out of range.
    """
    for begin in starts(elements.count):
        values = elements.read(begin, min(PIECE_COUNT, elements.count - begin))
        if elements.dtype is not dtype:
            values = cast_array(values, dtype, overflow="inf")[0]
        yield values


def are_equal(array: LazyTensor, weight: LazyTensor, layout: Layout, dtype: DType) -> bool:
    """Whether an array in a layout, cast, is a weight to the bit."""
    pairs = zip(pieces(moved_elements(array, layout), dtype), pieces(Elements(weight), dtype), strict=True)
    return all(parallel.equal_bytes(_codec.Buffer(x), 0, _codec.Buffer(y), 0, x.nbytes) for x, y in pairs)
