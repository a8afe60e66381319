"""Finds tensors with the same elements after a cast, in any order; hashes come first, so not all pairs are compared."""

import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..dtypes import DType
from ..model.elements import PIECE_COUNT, Elements, starts
from ..model.lazy import LazyTensor
from ..values.cast import cast_array, is_castable
from .layouts import Layout, layouts

_MAX_VERIFIED = 4096  # pairs with the same elements whose order is compared

May = Callable[[int], bool]
"""Whether enough of the work budget is left for some work, in reckoned nanoseconds; if so, spends it."""


class Class(NamedTuple):
    """Tensors with the same elements, order and shape, whose hashes are `key`."""

    key: Any
    shape: tuple[int, ...]
    dtype: DType
    members: list[str]


class Edge(NamedTuple):
    """Given tensors, and the weights that they equal in a layout."""

    cost: int
    old: Class
    new: Class
    layout: Layout

    @property
    def rank(self) -> tuple[bool, int, bool]:
        """Sort key, simplest first: identity layout, then the order of layouts, then without a cast."""
        return not self.layout.is_identity, self.cost, self.old.dtype is not self.new.dtype


def same_elements(
    given: Mapping[str, LazyTensor],
    weights: Mapping[str, LazyTensor],
    may: May,
    looked_at: Callable[[str, LazyTensor], None],
) -> list[Edge]:
    """Return which given tensors have the elements of which weights, once they are cast to the weight's dtype.

    Args:
        given, weights: by name; of numbers.
        may: the work budget.
        looked_at: called with each given tensor, once it has been hashed.
    """
    return _Search(given, weights, may).edges(looked_at)


class _Search:
    """One search; `groups` has (count, dtype, hash of the elements in any order) -> classes of both sides."""

    def __init__(self, given: Mapping[str, LazyTensor], weights: Mapping[str, LazyTensor], may: May) -> None:
        self.given, self.weights, self.may = given, weights, may
        self._seed = int.from_bytes(os.urandom(8), "little")  # nobody can make tensors look equal

    def edges(self, looked_at: Callable[[str, LazyTensor], None]) -> list[Edge]:
        kinds: dict[int, set[DType]] = defaultdict(set)
        groups: dict[Any, tuple[dict[Any, Class], dict[Any, Class]]] = {}
        ours = {tensor.size for tensor in self.given.values()}
        for name, tensor in self.weights.items():
            if tensor.size in ours:
                kinds[tensor.size].add(tensor.mil_dtype)
                self._classify(groups, 1, name, tensor, tensor.mil_dtype)
        for name, given in self.given.items():
            for dtype in kinds.get(given.size, ()):
                if is_castable(given.mil_dtype, dtype):
                    self._classify(groups, 0, name, given, dtype)
            looked_at(name, given)
        return [
            edge
            for (_, dtype, _), (a, b) in groups.items()
            if a and b
            for edge in self._edges(a.values(), b.values(), dtype)
        ]

    def _classify(self, groups: dict[Any, Any], side: int, name: str, tensor: LazyTensor, dtype: DType) -> None:
        """Add a tensor to the group with the same elements, and there to the class with the same order and shape."""
        nbytes = dtype.numpy.itemsize
        unordered, ordered = 0, []
        try:
            for piece in pieces(Elements(tensor), dtype):
                data = piece.view(np.uint8)
                unordered += _codec.hash_elements(data, nbytes)
                ordered.append(_codec.hash_bytes(_codec.Buffer(data), 0, data.nbytes, self._seed))
        except OverflowError:  # an integer is out of range
            return
        classes = groups.setdefault((tensor.size, dtype, unordered % (1 << 64)), ({}, {}))[side]
        key = (tensor.shape, tuple(ordered))
        classes.setdefault(key, Class(key, tensor.shape, tensor.mil_dtype, [])).members.append(name)

    def _edges(self, ours: Iterable[Class], theirs: Iterable[Class], dtype: DType) -> Iterator[Edge]:
        """Yield classes with the same elements that match in some layout."""
        verified = 0
        for new in theirs:
            for old in ours:
                verified += 1
                if verified > _MAX_VERIFIED:
                    return
                order = affordable_layouts(old.shape, new.shape, self.may)
                if old.key == new.key:  # the hashes agree: compare the elements
                    order = order[:1]
                a, b = self.given[old.members[0]], self.weights[new.members[0]]
                for cost, layout in enumerate(order):
                    if not self.may(200_000 + 4 * a.size):
                        return
                    if are_equal(a, b, layout, dtype):
                        yield Edge(cost, old, new, layout)
                        break


def affordable_layouts(old: tuple[int, ...], new: tuple[int, ...], may: May) -> list[Layout]:
    """Return the layouts to try for a pair of shapes; none once the work budget is spent."""
    found = layouts(old, new) if may(50_000) else []
    may(20_000 * len(found))
    return found


class MovedElements(Elements):
    """The elements of a tensor in another layout."""

    def __init__(self, tensor: LazyTensor, layout: Layout) -> None:
        if layout.axes is None:
            super().__init__(tensor)
            return
        view = layout.view(np.ascontiguousarray(tensor.read()).reshape(tensor.shape))
        self.dtype, self.shape, self.count = tensor.mil_dtype, view.shape, prod(tensor.shape)
        self._dense = self._packed = self._flat = None
        self._view = view

    def read(self, begin: int, count: int) -> np.ndarray[Any, Any]:
        """See Elements."""
        view = getattr(self, "_view", None)
        if view is None:
            return super().read(begin, count)
        return np.ascontiguousarray(view.flat[begin : begin + count])


def pieces(elements: Elements, dtype: DType) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements, cast to a dtype; numbers that are too large become infinite.

    Raises:
        OverflowError: an integer that is out of range.
    """
    for begin in starts(elements.count):
        values = elements.read(begin, min(PIECE_COUNT, elements.count - begin))
        if elements.dtype is not dtype:
            values = cast_array(values, dtype, overflow="inf")[0]
        yield values


def are_equal(given: LazyTensor, weight: LazyTensor, layout: Layout, dtype: DType) -> bool:
    """Whether a given tensor in a layout, cast, is a weight to the bit."""
    pairs = zip(pieces(MovedElements(given, layout), dtype), pieces(Elements(weight), dtype), strict=True)
    return all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in pairs)
