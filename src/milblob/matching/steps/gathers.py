"""Finds weights whose rows are rows of one array in any order, and vectors that are several arrays and zeros joined.

Tables that were looked up when a model was converted are such: the bias of attention by relative positions. That of one
head consists of single elements, which are in one row.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import islice
from math import log2

import numpy as np

from ...dtypes import DType
from ...values.cast import cast_array
from ..checkpoint import Checkpoint, bits_of
from ..derivations.arithmetic import Filled, Literal
from ..derivations.derivation import CheckpointArray, Derivation, Gathered, Moved, Stacked, moved, row_of
from ..derivations.layouts import Layout, Values
from .numbers import BITS

_MIN_WIDTH = 2  # elements of a row; of single ones it takes many that none is equal by accident
_MIN_BITS = 64.0  # of evidence that single elements are those of a row
_MAX_HEADS = 64
_MAX_EQUAL = 8  # equal rows, or equal parts, that are followed
_MAX_PARTS = 64
_MAX_RENDERED = 4096  # rows of a table that a compressed weight may consist of
_FEW = 16  # rows that are looked up before all are


class Gathers:
    """The arrays of one checkpoint as tables."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self._given = checkpoint, checkpoint.floats
        self._may, self._cast, self._hashes = checkpoint.may, checkpoint.cast, checkpoint.hash_rows
        self._tables: dict[int, list[tuple[str, int]]] = defaultdict(list)
        self._vectors: list[str] = []
        for name, tensor in self._given.items():
            for axis, size in enumerate(tensor.shape):
                if size >= _MIN_WIDTH:
                    self._tables[size].append((name, axis))
            if tensor.size == max(tensor.shape, default=0) and tensor.size >= _MIN_WIDTH:
                self._vectors.append(name)
        self._hashed: dict[tuple[str, int, DType], tuple[Values, Values]] = {}
        self._known_ends: dict[tuple[str, int, DType], Values] = {}
        self._beginnings: dict[DType, dict[bytes, list[str]]] = {}

    # ------------------------------------------------------------------------------------------------------ gathered

    def gathered(self, values: Values, dtype: DType) -> Iterator[Derivation | None]:
        """Yield the ways in which a weight consists of rows of one array; None for more ways than are followed.

        Nothing is known for certain before the result is compared: rows were compared by their hashes.
        """
        for axis, width in enumerate(values.shape):
            tables = self._tables.get(width, ())
            if not tables or not self._may(100_000 + 10 * values.size):
                continue
            outside = tuple(at for at in range(values.ndim) if at != axis)
            wanted: Values | None = None
            few = _ends(values.transpose(*outside, axis), _FEW)
            for name, along in tables:
                ends = self._table_ends(name, along, dtype)
                if ends is None or not (ends[np.searchsorted(ends, few).clip(max=len(ends) - 1)] == few).all():
                    continue
                found = self._table(name, along, dtype)
                if found is None:
                    return
                hashes, order = found
                if wanted is None:
                    wanted = self._hashes(values.transpose(*outside, axis).reshape(-1, width))
                shape = tuple(values.shape[at] for at in outside)
                layout = Layout((*shape, width), _back(axis, values.ndim))
                for rows in _choices(order, *_places(hashes, wanted)):
                    yield None if rows is None else Moved(Gathered(self._rows(name, along), rows), layout)

    def rendered(self, values: Values, dtype: DType) -> Iterator[Derivation | None]:
        """Yield the ways in which a weight that was compressed consists of rows of one array; None as in `gathered`.

        At each place of the rows, an element became the nearest of the numbers that the weight has there.
        """
        for axis, width in enumerate(values.shape):
            tables = self._tables.get(width, ())
            if not tables or not self._may(100_000 + 100 * values.size):
                continue
            rows = np.moveaxis(values, axis, -1)
            layout = Layout(rows.shape, _back(axis, values.ndim))
            rows, which = np.unique(rows.reshape(-1, width), axis=0, return_inverse=True)
            cells = [_cells(column.astype(np.float64)) for column in rows.T]
            for name, along in tables:
                count = self._given[name].size // width
                if not len(rows) <= count <= _MAX_RENDERED or not self._may(10 * len(rows) * count * width):
                    continue
                is_near = np.ones((len(rows), count), bool)
                table = np.moveaxis(self._checkpoint.read(name), along, -1).reshape(-1, width)
                for column, (least, most) in zip(table.T, cells, strict=True):
                    is_near &= (least[:, None] <= column) & (column <= most[:, None])
                ends = np.cumsum(is_near.sum(axis=1))
                begins, ends = (np.concatenate(([0], ends))[at + which.reshape(-1)] for at in (0, 1))
                for chosen in _choices(np.nonzero(is_near)[1], begins, ends):
                    yield None if chosen is None else Moved(Gathered(self._rows(name, along), chosen), layout)

    def _rows(self, name: str, along: int) -> Derivation:
        """Return an array as its rows along an axis: [rows, elements]."""
        tensor = self._given[name]
        outside = [at for at in range(tensor.ndim) if at != along]
        axes = (*outside, along) if along != tensor.ndim - 1 else None
        after = None if tensor.ndim == 2 else (tensor.size // tensor.shape[along], tensor.shape[along])
        return moved(CheckpointArray(name), Layout(None, axes, after))

    def _table(self, name: str, along: int, dtype: DType) -> tuple[Values, Values] | None:
        """Return the sorted hashes of an array's rows, and which rows these are."""
        key = name, along, dtype
        if key not in self._hashed:
            tensor = self._given[name]
            if not self._may(100_000 + 20 * tensor.size):
                return None
            rows = np.moveaxis(self._cast(name, dtype), along, -1).reshape(-1, tensor.shape[along])
            hashes = self._hashes(rows)
            order = np.argsort(hashes, kind="stable")
            self._hashed[key] = hashes[order], order
        return self._hashed[key]

    def _table_ends(self, name: str, along: int, dtype: DType) -> Values | None:
        """Return the first and the last element of each row of an array, as one number."""
        key = name, along, dtype
        if key not in self._known_ends:
            tensor = self._given[name]
            if not self._may(50_000 + 20 * tensor.size // tensor.shape[along]):
                return None
            array = np.moveaxis(self._checkpoint.read(name), along, -1)
            corners = np.ascontiguousarray(array[..., [0, -1]])
            self._known_ends[key] = np.unique(_ends(cast_array(corners, dtype, overflow="inf")[0]))
        return self._known_ends[key]

    # ------------------------------------------------------------------------------------------------ single elements

    def looked_up(self, weights: Mapping[str, tuple[Values, DType]]) -> Iterator[tuple[str, Derivation | None]]:
        """Yield the ways in which weights consist of elements of one row of an array; None for more than are followed.

        A row may have equal elements. The weights of several heads have one order: an element of one is looked up with
        those at its place in the others.
        """
        places: dict[tuple[str, DType, tuple[int, ...]], list[tuple[str, int]]] = defaultdict(list)
        for name, (values, dtype) in weights.items():
            for given, row in self._with_all(np.unique(values), dtype, values.size):
                places[given, dtype, values.shape].append((name, row))
        for (given, dtype, shape), pairs in places.items():
            table = self._cast(given, dtype).reshape(-1, self._given[given].shape[-1])

            def rows_of(some: list[tuple[str, int]], table: Values = table) -> list[bytes | None]:
                hashes = self._hashes(table[[row for _, row in some]].T)
                order = np.argsort(hashes, kind="stable")
                wanted = np.stack([weights[name][0].reshape(-1) for name, _ in some], axis=1)
                return list(_choices(order, *_places(hashes[order], self._hashes(wanted))))

            together = rows_of(pairs) if len(pairs) <= _MAX_HEADS else []
            for pair in pairs:
                column = Moved(row_of(given, self._given[given].shape, pair[1]), Layout(after=(table.shape[1], 1)))
                for rows in together or rows_of([pair]):
                    yield pair[0], None if rows is None else Moved(Gathered(column, rows), Layout(after=shape))

    def _with_all(self, wanted: Values, dtype: DType, size: int) -> Iterator[tuple[str, int]]:
        """Yield the rows that have all of some elements, unless it could be an accident, as it is with integers."""
        least = 2.0**-14 if dtype is DType.FLOAT16 else 0.0  # below it are few numbers: many of them are in any row
        twice = 2 * wanted.astype(np.float64)
        count = int(np.count_nonzero((twice != np.rint(twice)) & (np.abs(twice) >= 2 * least)))
        for given, tensor in self._given.items():
            width = tensor.shape[-1] if tensor.ndim else 0
            if not _MIN_WIDTH <= width <= size or tensor.size > _MAX_HEADS * width:
                continue
            if count * (BITS.get(dtype, 0.0) - log2(width)) < _MIN_BITS:
                continue
            if self._may(20_000 + 50 * tensor.size):
                rows = self._cast(given, dtype).reshape(-1, width)
                few = wanted[[0, wanted.size // 2, -1]]
                hopeful = (rows[:, :, None] == few).any(axis=1).all(axis=1)
                found = (row for row in np.flatnonzero(hopeful).tolist() if np.isin(wanted, rows[row]).all())
                yield from ((given, row) for row in found)

    # -------------------------------------------------------------------------------------------------------- joined

    def joined(self, values: Values, dtype: DType) -> Iterator[Derivation]:
        """Yield the ways in which a vector is several arrays, one after the other, with zeros between some of them."""
        flat = np.ascontiguousarray(values).reshape(-1)
        parts: list[list[Derivation]] = []
        place = 0
        while place < flat.size and len(parts) < _MAX_PARTS and self._may(20_000):
            begin = self._beginning(dtype).get(flat[place : place + 2].tobytes(), ())
            options = [name for name in begin if self._is_at(name, flat, place, dtype)]
            length = max((self._given[name].size for name in options), default=0)
            ways: list[Derivation] = [self._flat(name) for name in options if self._given[name].size == length]
            zeros = _zeros(flat[place:])
            if not ways or zeros >= length:
                length = length or zeros
                ways.append(Filled(Literal(0.0), (length,)))
            if length < _MIN_WIDTH:
                return
            parts.append(ways[:_MAX_EQUAL])
            place += length
        if place != flat.size or len(parts) < 2 or all(isinstance(ways[0], Filled) for ways in parts):
            return
        first = [ways[0] for ways in parts]
        yield Stacked(tuple(first))
        for at, ways in enumerate(parts):
            yield from (Stacked((*first[:at], other, *first[at + 1 :])) for other in ways[1:])

    def _flat(self, name: str) -> Derivation:
        of = CheckpointArray(name)
        return of if self._given[name].ndim == 1 else Moved(of, Layout(after=(self._given[name].size,)))

    def _is_at(self, name: str, flat: Values, place: int, dtype: DType) -> bool:
        part = flat[place : place + self._given[name].size]
        return len(part) < flat.size and part.tobytes() == self._cast(name, dtype).tobytes()

    def _beginning(self, dtype: DType) -> dict[bytes, list[str]]:
        """Return the vectors by their first two elements."""
        if dtype not in self._beginnings:
            found: dict[bytes, list[str]] = defaultdict(list)
            for name in islice(self._vectors, 1 << 16):
                if self._may(30_000 + self._given[name].size):
                    found[self._cast(name, dtype).reshape(-1)[:2].tobytes()].append(name)
            self._beginnings[dtype] = found
        return self._beginnings[dtype]


def _cells(numbers: Values) -> tuple[Values, Values]:
    """Return the range in which each of some numbers is the nearest one, a little widened for rounding."""
    levels = np.unique(numbers)
    slack = 0.02 * np.diff(levels)
    middles = (levels[1:] + levels[:-1]) / 2
    at = np.searchsorted(levels, numbers)
    return np.concatenate(([-np.inf], middles - slack))[at], np.concatenate((middles + slack, [np.inf]))[at]


def _places(hashes: Values, wanted: Values) -> tuple[Values, Values]:
    """Return where in sorted hashes the wanted ones begin, and where they end."""
    return np.searchsorted(hashes, wanted, "left"), np.searchsorted(hashes, wanted, "right")


def _choices(order: Values, begins: Values, ends: Values) -> Iterator[bytes | None]:
    """Yield which rows a weight consists of, as `Gathered` has them: several times, where several rows may be one.

    None means more than are followed.

    `order`: rows of a table. begins, ends: for each row of the weight, where in `order` those are that it may be.
    """
    most = int((ends - begins).max()) if (begins < ends).all() else 0
    for step in range(min(most, _MAX_EQUAL)):
        yield order[np.minimum(begins + step, ends - 1)].astype(np.int32).tobytes()
    if most > _MAX_EQUAL:
        yield None


def _ends(rows: Values, most: int | None = None) -> Values:
    """Return the first and the last element of rows, of the last axis, as one number each: uint64 [rows]."""
    first, last = (rows[..., at].reshape(-1)[:most] for at in (0, -1))
    bits = [bits_of(part).astype(np.uint64) for part in (first, last)]
    return np.asarray(bits[0] << np.uint64(32) ^ bits[1])


def _zeros(values: Values) -> int:
    """Return how many zeros an array begins with."""
    others = np.flatnonzero(bits_of(values))
    return int(others[0]) if others.size else values.size


def _back(axis: int, ndim: int) -> tuple[int, ...] | None:
    """Return the order of axes that moves the last one to its place."""
    if axis == ndim - 1:
        return None
    order = list(range(ndim - 1))
    order.insert(axis, ndim - 1)
    return tuple(order)
