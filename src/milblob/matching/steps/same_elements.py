"""Finds arrays with the same elements after a cast, in any order; hashes come first, so not all pairs are compared."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from operator import itemgetter
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


_Looked = tuple[str, LazyTensor, tuple[tuple[int, ...], tuple[int, ...]]]
"""The name of a tensor, the tensor, and its key: its shape, and hashes of its pieces in their order."""


def same_elements(arrays: Mapping[str, LazyTensor], weights: Mapping[str, LazyTensor], work: Work) -> list[Equality]:
    """Return the pairs of arrays and weights with the same elements, after a cast to the weight's dtype.

    `arrays`, `weights`: by name; of numbers. `work`: of the search; each array is done once it has been hashed.
    """
    seed = int.from_bytes(os.urandom(8), "little")  # no author of a file can make tensors look equal
    kinds: dict[int, set[DType]] = defaultdict(set)
    looks: dict[Any, tuple[list[_Looked], list[_Looked]]] = defaultdict(lambda: ([], []))

    def look(side: int, name: str, tensor: LazyTensor, dtype: DType) -> None:
        with suppress(OverflowError):  # an integer is out of range
            ordered, mixed = _hashes(tensor, dtype, seed)
            looks[tensor.size, dtype, mixed][side].append((name, tensor, (tensor.shape, ordered)))

    ours = {tensor.size for tensor in arrays.values()}
    for name, tensor in work.counter.noting(weights.items(), itemgetter(0)):
        if tensor.size in ours:
            kinds[tensor.size].add(tensor.mil_dtype)
            look(1, name, tensor, tensor.mil_dtype)
    for name, array in arrays.items():
        for dtype in kinds.get(array.size, ()):
            if is_castable(array.mil_dtype, dtype):
                look(0, name, array, dtype)
        work.done(name, array)
    return [
        one
        for (_, dtype, _), sides in looks.items()
        if all(sides)
        for a, b in _groups(sides, dtype)
        for one in work.counter.noting(_equalities(a, b, dtype, work), lambda one: one.arrays.members[0])
    ]


def _hashes(tensor: LazyTensor, dtype: DType, seed: int) -> tuple[tuple[int, ...], tuple[int, int, int]]:
    """Return the hashes of the pieces of a tensor, and the xor, the minimum and the maximum of its elements' bits.

    Only tensors that agree in the latter may have the same elements. These take a sixth of the time of a hash in any
    order, which few tensors then need.
    """
    ordered: list[int] = []
    mixed, low, high = 0, 0, 0
    for piece in pieces(Elements(tensor), dtype):
        data = piece.view(np.uint8)
        bits = piece.view(f"u{dtype.numpy.itemsize}")
        ordered.append(_codec.hash_bytes(_codec.Buffer(data), 0, data.nbytes, seed))
        mixed ^= int(np.bitwise_xor.reduce(bits))
        low = int(bits.min()) if len(ordered) == 1 else min(low, int(bits.min()))
        high = max(high, int(bits.max()))
    return tuple(ordered), (mixed, low, high)


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
            order = affordable_layouts(old.tensor.shape, new.tensor.shape, work)
            if old.key == new.key:  # the hashes agree: compare the elements
                order = order[:1]
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
