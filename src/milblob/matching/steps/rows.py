"""Finds weights that consist of rows of other arrays: split, concatenated, reordered, along any axis."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ...dtypes import DType
from ...values.cast import cast_array, is_castable
from ..checkpoint import Checkpoint
from ..derivations.derivation import CheckpointArray, Derivation, Moved, RowRange, Stacked, moved
from ..derivations.layouts import Layout, Values

_PIECE_COUNT = 1 << 20
_MAX_CANDIDATES = 8  # equal rows of other arrays that are followed
_MIN_ROW = 2  # elements; single ones are equal by accident


class _Run(NamedTuple):
    """Consecutive rows of a weight that are consecutive rows of an array."""

    candidates: list[tuple[int, int]]  # (number of the array's axis, first row), of all arrays that have these rows
    length: int  # rows
    first_count: int  # how many arrays have its first row, and its last one
    last_count: int


class RowIndex:
    """The rows of all arrays of a checkpoint that have as many elements as rows of some weight.

    `dtype`: of the weights; arrays are cast to it. `count`: elements of a row.
    """

    def __init__(self, checkpoint: Checkpoint, dtype: DType, count: int) -> None:
        self._checkpoint, self._count, self._may = checkpoint, count, checkpoint.may
        self._axes: list[tuple[str, int, tuple[int, ...]]] = []  # (array, axis, shape of the array)
        keys, owners, rows = [], [], []
        for name, tensor in checkpoint.arrays.items():
            if not is_castable(tensor.mil_dtype, dtype) or tensor.ndim < 2:
                continue
            for axis, size in enumerate(tensor.shape):
                if tensor.size != size * count or size == 0 or not self._may(100_000 + 30 * tensor.size):
                    continue
                found = self._keys(checkpoint.read(name), axis, dtype)
                keys.append(found)
                owners.append(np.full(size, len(self._axes)))
                rows.append(np.arange(size))
                self._axes.append((name, axis, tensor.shape))
        none = np.zeros(0, np.int64)
        order = np.argsort(np.concatenate(keys), kind="stable") if keys else none
        self._keys_sorted = np.concatenate(keys)[order] if keys else np.zeros(0, np.uint64)
        self._owners = np.concatenate(owners)[order] if keys else none
        self._rows = np.concatenate(rows)[order] if keys else none

    def _keys(self, array: Values, axis: int, dtype: DType) -> Values:
        """Return a hash of each row along an axis: [rows] uint64."""
        rows = np.moveaxis(array, axis, 0)
        found = np.empty(len(rows), np.uint64)
        step = max(_PIECE_COUNT // self._count, 1)
        for begin in range(0, len(rows), step):
            piece = np.ascontiguousarray(rows[begin : begin + step]).reshape(-1, self._count)
            if piece.dtype != dtype.numpy:
                piece = cast_array(piece, dtype, overflow="inf")[0]
            found[begin : begin + step] = self._checkpoint.hash_rows(piece)
        return found

    def find(self, weight: Values, dtype: DType) -> Iterator[list[Derivation]]:
        """Yield, for each axis along which a weight consists of rows of the arrays, the ways in which it does.

        Nothing is known for certain before the result is compared: rows were compared by their hashes.
        """
        for axis, size in enumerate(weight.shape):
            if weight.size != size * self._count or self._count < _MIN_ROW or not self._may(20_000 * size):
                continue
            runs = self._runs(self._keys(weight, axis, dtype))
            if runs is not None:
                yield self._ways(runs, axis, weight.shape)

    def _runs(self, keys: Values) -> list["_Run"] | None:
        """Return the runs of rows of one array that follow each other; None if a row is in no array, or unclear."""
        low, high = (np.searchsorted(self._keys_sorted, keys, side) for side in ("left", "right"))
        spans = list(zip(low.tolist(), high.tolist(), strict=True))
        runs: list[_Run] = []
        for first, last in spans:
            if first == last:
                return None
            run = runs[-1] if runs else None
            continued = (
                [] if run is None else [at for at in run.candidates if self._follows(at, run.length, first, last)]
            )
            if run is not None and continued:
                runs[-1] = _Run(continued, run.length + 1, run.first_count, last - first)
                continue
            places = range(first, min(last, first + _MAX_CANDIDATES))
            candidates = [(int(self._owners[at]), int(self._rows[at])) for at in places]
            runs.append(_Run(candidates, 1, last - first, last - first))
        # Between two runs, a row that other arrays have too may belong to either.
        if len(runs) > 1 and any({run.first_count, run.last_count} != {len(run.candidates)} for run in runs):
            return None
        return None if any(run.first_count > _MAX_CANDIDATES for run in runs) else runs

    def _follows(self, start: tuple[int, int], length: int, first: int, last: int) -> bool:
        places = range(first, min(last, first + 4 * _MAX_CANDIDATES))
        return any(self._owners[at] == start[0] and self._rows[at] == start[1] + length for at in places)

    def _ways(self, runs: list["_Run"], axis: int, shape: tuple[int, ...]) -> list[Derivation]:
        """Return the first way, and those that differ from it in one run."""
        first = [run.candidates[0] for run in runs]
        choices = [first]
        for at, run in enumerate(runs):
            choices += [[*first[:at], other, *first[at + 1 :]] for other in run.candidates[1:]]
        return [self._derivation(choice, [run.length for run in runs], axis, shape) for choice in choices]

    def _derivation(
        self, places: list[tuple[int, int]], lengths: list[int], axis: int, shape: tuple[int, ...]
    ) -> Derivation:
        parts: list[Derivation] = []
        for (owner, row), length in zip(places, lengths, strict=True):
            name, along, sizes = self._axes[owner]
            part = turned(CheckpointArray(name), along, len(sizes))
            if self._inner(owner) != self._inner(places[0][0]):
                part = Moved(part, Layout(None, None, (sizes[along], *self._inner(places[0][0]))))
            if (row, length) != (0, sizes[along]):
                part = RowRange(part, row, row + length)
            parts.append(part)
        result = parts[0] if len(parts) == 1 else Stacked(tuple(parts))
        rows_first = (shape[axis], *shape[:axis], *shape[axis + 1 :])
        if any(self._inner(owner) != rows_first[1:] for owner, _ in places):
            result = Moved(result, Layout(None, None, rows_first))
        if axis:
            order = list(range(1, len(shape)))
            order.insert(axis, 0)
            result = Moved(result, Layout(None, tuple(order), None))
        return result

    def _inner(self, owner: int) -> tuple[int, ...]:
        """The shape of one row."""
        _, axis, shape = self._axes[owner]
        return (*shape[:axis], *shape[axis + 1 :])


def turned(of: Derivation, axis: int, ndim: int) -> Derivation:
    """Return an array with an axis moved to the front."""
    axes = None if axis == 0 else (axis, *(other for other in range(ndim) if other != axis))
    return moved(of, Layout(None, axes))
