"""How the elements of one array can become those of another: permuted axes, and reshaping."""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice, permutations
from math import prod
from typing import Any, NamedTuple

import numpy as np

Shape = tuple[int, ...]
Values = np.ndarray[Any, Any]

_MAX_PERMUTATIONS = 120
"""Orders of axes that are tried for a pair of shapes: all of those of five."""


class Layout(NamedTuple):
    """Turns one array into another: `array.reshape(before).transpose(axes).reshape(after)`."""

    before: Shape | None = None  # shapes; None if no reshape is needed
    axes: Shape | None = None  # order of axes; None if unchanged
    after: Shape | None = None

    @property
    def is_identity(self) -> bool:
        """Whether the layout leaves the array unchanged."""
        return self == Layout()

    def apply(self, array: Values) -> Values:
        """Return the array in its new layout; a view where NumPy can make one."""
        view = self.view(array)
        return view if self.after is None else view.reshape(self.after)

    def view(self, array: Values) -> Values:
        """Return a view of a C-contiguous array with its elements in the new order, perhaps of another shape."""
        if self.before is not None:
            array = array.reshape(self.before)
        return array if self.axes is None else array.transpose(self.axes)

    def sources(self, shape: Shape, positions: Values) -> Values:
        """Return which elements of a flattened array of `shape` end up at `positions` of the flattened result."""
        if self.axes is None:
            return positions
        shape = shape if self.before is None else self.before
        indices = np.unravel_index(positions, [shape[axis] for axis in self.axes])
        back: list[Any] = [None] * len(shape)
        for axis, index in zip(self.axes, indices, strict=True):
            back[axis] = index
        return np.asarray(np.ravel_multi_index(back, shape))

    @property
    def words(self) -> list[str]:
        """The steps in order, such as ["transpose (1, 0)", "reshape [64]"]."""
        steps = [] if self.before is None else [f"reshape {list(self.before)}"]
        steps += [] if self.axes is None else [f"transpose {self.axes}"]
        return steps + ([] if self.after is None else [f"reshape {list(self.after)}"])


def layouts(old: Shape, new: Shape) -> list[Layout]:
    """Return the layouts that can turn an array of shape `old` into one of shape `new`, simplest first.

    Each gives a different order of elements. If `new` is a permutation of `old`, all fitting orders of axes are tried;
    else `old` is permuted and reshaped, or reshaped and permuted. Dimensions of 1 do not count.
    """
    if prod(old) != prod(new):
        return []
    found = [Layout(after=None if old == new else new)]
    small, target = _without_ones(old), _without_ones(new)
    if sorted(small) == sorted(target):
        candidates = [axes for axes in _orders(small) if tuple(small[axis] for axis in axes) == target]
        found += [_permuted(old, small, axes, new) for axes in candidates]
        return found
    found += [_permuted(old, small, axes, new) for axes in _orders(small)]
    for axes in _orders(target):  # `axes` of the result are those of the array in order
        shape = tuple(target[axis] for axis in axes)
        back = tuple(int(axis) for axis in np.argsort(axes))
        found.append(Layout(shape if shape != old else None, back, None if target == new else new))
    return found


def _permuted(old: Shape, small: Shape, axes: Shape, new: Shape) -> Layout:
    """Return the layout for an order of the axes that are not 1, with as little reshaping as possible."""
    if len(small) == len(old):
        return Layout(None, axes, None if tuple(old[axis] for axis in axes) == new else new)
    if len(old) == len(new):  # perhaps the axes of 1 can move along
        places = [axis for axis, size in enumerate(old) if size != 1]
        ones = iter(axis for axis, size in enumerate(old) if size == 1)
        left = iter(axes)
        whole = (
            [places[next(left)] if size != 1 else next(ones) for size in new]
            if sum(n != 1 for n in new) == len(small)
            else []
        )
        if whole and tuple(old[axis] for axis in whole) == new:
            return Layout(None, tuple(whole), None)
    return Layout(small, axes, None if tuple(small[axis] for axis in axes) == new else new)


def _without_ones(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _orders(shape: Shape) -> Iterator[Shape]:
    """Yield all orders of axes except the current one; the reversed one, a matrix transpose, first."""
    count = len(shape)
    reverse = tuple(range(count))[::-1]
    if count < 2:
        return
    yield reverse
    for axes in islice(permutations(range(count)), 1, _MAX_PERMUTATIONS):
        if axes != reverse:
            yield axes


@lru_cache(maxsize=256)
def spread(count: int, most: int) -> Values:
    """Return at most `most` of `count` places, spread evenly; the array is read-only."""
    places = np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
    places.flags.writeable = False
    return places
