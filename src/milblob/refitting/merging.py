"""The arrays of a base checkpoint with adapters merged into them; values are computed when they are read.

The arithmetic is that of PEFT's `merge_and_unload`: W + scale * (B A) in float32, then a cast to the dtype of the base.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _codec
from ..dtypes import DType
from ..errors import FormatError, UnsupportedError
from ..formats.peft import Adapter, LowRank, are_equal, as_float32
from ..model.elements import Elements
from ..model.lazy import LazyTensor
from ..model.places import Place
from ..model.stored import StoredArray
from ..values.cast import convert_into, elements_named
from ..values.dense import Dense, read, read_key
from ..wording import escape, some
from .checkpoints import renamed

Values = np.ndarray[Any, Any]

_TILE_COUNT = 1 << 16  # elements that are merged at a time: they fit into the cache
_PRODUCT_COUNT = (
    1 << 18
)  # multiplications up to which OpenBLAS uses one thread; its threads wait for each other in vain
_MIN_BLOCK_COUNT = 1 << 10
_MAX_DELTA = 1e38  # below the largest float32


class MergedArray(LazyTensor):
    """An array of the base with the changes of adapters; nothing is computed yet."""

    __slots__ = ("_place",)

    def __init__(self, name: str, place: "_MergedPlace") -> None:
        super().__init__(name, place.dtype, place.shape)
        self._place = place

    @property
    def place(self) -> "_MergedPlace":
        """Where the values come from; for milblob's own modules."""
        return self._place


class Delta(NamedTuple):
    """What one adapter does to a weight, seen as a matrix [rows, columns]: adds scale * left @ right."""

    a: StoredArray  # the factors; b is None if `a` itself, a vector, is added
    b: StoredArray | None
    scale: float  # of their product
    magnitude: StoredArray | None = None  # DoRA's lengths, one for each output; None without DoRA
    is_turned: bool = False  # whether the rows are the inputs, so that left is A
    is_embedding: bool = False  # whether the weight is an embedding

    def factors(self) -> tuple[Values, Values]:
        """Return left, [rows, rank], and right, [rank, columns], in float32."""
        a = as_float32(self.a)
        if self.b is None:
            return a.reshape(-1, 1), np.ones((1, 1), np.float32)
        b = as_float32(self.b)
        a, b = a.reshape(a.shape[0], -1), b.reshape(b.shape[:2])
        return (a.T, b.T) if self.is_turned else (b, a)


class _MergedPlace(Place):
    """The values of a MergedArray.

    Args:
        name: in the base.
        base: the array of the base.
        source: the same, or the one that an adapter has in its place.
        deltas: what is added.
        overflow: as `refit`, where the base's dtype has no number as large as a merged one.
    """

    __slots__ = ("_deltas", "_factor", "_overflow", "_source", "where")

    where: str
    is_computed = True

    def __init__(self, name: str, base: LazyTensor, source: LazyTensor, deltas: Sequence[Delta], overflow: str) -> None:
        super().__init__(base.mil_dtype, base.shape)
        self.where, self._source, self._deltas, self._overflow = name, source, deltas, overflow
        self._factor: Values | None = None

    def account(self) -> None:
        self._source.place.account()

    def dense(self) -> "_Merged":
        shape = cast("tuple[int, ...]", self.shape)
        merged = _Merged(self.where, self._source, self.dtype, shape, self._deltas, self._overflow)
        magnitude = self._deltas[0].magnitude if self._deltas else None
        if magnitude is not None:
            if self._factor is None:
                self._factor = merged.factor(as_float32(magnitude).reshape(-1), self._deltas[0].is_turned)
            merged.scales = self._factor
        return merged

    def read(self, out: Values | None = None) -> Values:
        return read(self.dense(), out)

    def read_key(self, key: Any) -> Any:
        return read_key(self.dense(), key)


class _Merged(Dense):
    """The values of a MergedArray, computed a tile of whole rows at a time."""

    def __init__(
        self,
        name: str,
        source: LazyTensor,
        dtype: DType,
        shape: tuple[int, ...],
        deltas: Sequence[Delta],
        overflow: str,
    ) -> None:
        self._rows = shape[0] if shape else 1
        self._columns = prod(shape[1:])
        self._step = max(_TILE_COUNT // max(self._columns, 1), 4)
        super().__init__(dtype, shape, self._step * self._columns)
        self._name, self._overflow = name, overflow
        self._elements = Elements(source)
        self._products = [(*delta.factors(), np.float32(delta.scale)) for delta in deltas]
        # PEFT adds to an embedding what it has cast to the embedding's dtype.
        self._is_rounded = any(delta.is_embedding and delta.magnitude is None for delta in deltas)
        self._working = np.dtype(np.float64 if dtype is DType.FLOAT64 else np.float32)
        self.scales: Values | None = None  # of the merged weights, with DoRA: [rows, 1] or [1, columns]

    def fill(self, out: Values, begin: int, count: int) -> None:
        nbytes = self.dtype.numpy.itemsize
        for first, last in self._tiles(begin // self._columns, -(-(begin + count) // self._columns)):
            values = self._tile(first, last).reshape(-1)
            low, high = max(begin, first * self._columns), min(begin + count, last * self._columns)
            values = values[low - first * self._columns : high - first * self._columns]
            self._store(values, out[(low - begin) * nbytes : (high - begin) * nbytes], low)

    def factor(self, magnitude: Values, is_turned: bool) -> Values:
        """Return what DoRA multiplies the merged weights of each output by: the length that it learnt / their length.

        Raises: FormatError: outputs all of whose weights are 0.
        """
        squares = np.zeros(self._columns if is_turned else self._rows)
        for first, last in self._tiles(0, self._rows):
            values = self._tile(first, last).astype(np.float64)
            if is_turned:
                squares += np.einsum("ij,ij->j", values, values)
            else:
                squares[first:last] = np.einsum("ij,ij->i", values, values)
        if not squares.all():
            message = f"lengths of {self._name}: expected numbers above 0 to divide DoRA's lengths by, got 0"
            raise FormatError(message)
        found = magnitude / np.sqrt(squares).astype(self._working)
        return found.reshape((1, -1) if is_turned else (-1, 1))

    def _tiles(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Yield the tiles of a grid in which some rows lie: the bits of a product depend on the shape of a tile."""
        step, rows = self._step, self._rows
        for begin in range(first // step * step, last, step):
            if begin == 0 or begin != rows - 1:  # one row alone is part of the tile before it
                yield begin, rows if rows - begin - step == 1 else min(begin + step, rows)
            elif first == begin:
                yield begin - step, rows

    def _tile(self, first: int, last: int) -> Values:
        begin, count = first * self._columns, (last - first) * self._columns
        values = self._elements.read(begin, count)
        if self._elements.dtype.numpy == self._working:
            values = values.copy()
        else:
            values = _converted(values, self._elements.dtype, self._working)
        values = values.reshape(last - first, self._columns)
        total: Values | None = None
        for left, right, scale in self._products:
            product = np.empty(values.shape, np.float32)
            _multiply(left[first:last], right, product)
            if scale != 1:
                product *= scale
            total = product if total is None else np.add(total, product, out=total)
        if total is not None:
            values += total.astype(self.dtype.numpy) if self._is_rounded else total
        if self.scales is not None:
            values *= self.scales if len(self.scales) == 1 else self.scales[first:last]
        return values

    def _store(self, values: Values, out: Values, index: int) -> None:
        if values.dtype == self.dtype.numpy:
            out[:] = values.view(np.uint8)
            return
        source, own = _codec.Buffer(values.view(np.uint8)), str(values.dtype)
        with elements_named(escape(f"{self._name}, merged")):
            convert_into(out, source, 0, values.size, own, self.dtype, overflow=self._overflow, first_index=index)


def _converted(values: Values, own: DType, to: np.dtype[Any]) -> Values:
    out = np.empty(values.size, to)
    convert_into(
        out.view(np.uint8), _codec.Buffer(np.ascontiguousarray(values).view(np.uint8)), 0, values.size, own, to
    )
    return out


def _ranges(begin: int, end: int, step: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of at most `step`, 4 or more, that are about equally long: so none is 1 long, unless all are."""
    count = max(-(-(end - begin) // step), 1)
    bounds = [begin + (end - begin) * number // count for number in range(count + 1)]
    yield from pairwise(bounds)


def _multiply(left: Values, right: Values, out: Values) -> None:
    """Fill `out` with left @ right, in blocks that BLAS computes in the caller's thread."""
    count = max(_PRODUCT_COUNT // max(left.shape[1], 1), _MIN_BLOCK_COUNT)
    columns = max(min(right.shape[1], count // min(len(left), 64)), 4)
    for i, j in _ranges(0, len(left), max(count // columns, 4)):
        for k, m in _ranges(0, right.shape[1], columns):
            np.matmul(left[i:j], right[:, k:m], out=out[i:j, k:m])


# ------------------------------------------------------------------------------------------------------------- merging


def merge(
    base: Mapping[str, LazyTensor], adapters: Sequence[tuple[Adapter, float]], overflow: str
) -> tuple[dict[str, LazyTensor], str]:
    """Return the arrays of a base with adapters merged into them, and a text that describes how names were changed.

    `adapters`: with the factor of each. The changes of several add up. `overflow`: as `refit`.
    Raises: KeyError: arrays that the base lacks. FormatError: shapes that do not fit, numbers that are too large.
    UnsupportedError: several adapters for a weight that cannot be added.
    """
    found, notes = dict(base), []
    deltas: dict[str, list[Delta]] = {}
    replaced: dict[str, StoredArray] = {}
    for adapter, factor in adapters:
        names, note = _names(adapter, base)
        notes += [note] if note and note not in notes else []
        for name, new in adapter.replaced.items():
            _require_shape(adapter, name, base[names[name]], new.shape)
            if not are_equal(replaced.setdefault(names[name], new), new):
                message = f"{name}: expected one array in place of that of the base, got some of several adapters"
                raise UnsupportedError(message, file=adapter.path)
        turned = _Turned(adapter, base, names)
        for name, change in adapter.changes.items():
            scale, is_turned = factor * change.scale, turned.is_turned(name)
            delta = Delta(change.a, change.b, scale, change.magnitude, is_turned, change.is_embedding)
            _require_small(adapter, name, delta)
            deltas.setdefault(names[name], []).append(delta)
        for name, (bias, scale) in adapter.biases.items():
            _require_shape(adapter, name, base[names[name]], bias.shape)
            deltas.setdefault(names[name], []).append(Delta(bias, None, factor * scale))
    for name in {**replaced, **deltas}:
        changes, array = deltas.get(name, []), base[name]
        if len(changes) > 1 and any(delta.magnitude is not None for delta in changes):
            message = f"{name}: expected one adapter for a weight with DoRA, got {len(changes)}"
            raise UnsupportedError(message, file=adapters[0][0].path)
        source = replaced.get(name, array)
        found[name] = MergedArray(name, _MergedPlace(name, array, source, changes, overflow))
    return found, "; ".join(notes)


def _names(adapter: Adapter, base: Mapping[str, LazyTensor]) -> tuple[dict[str, str], str]:
    """Return the name in the base of each weight that an adapter changes, and how names were changed."""
    every = [*adapter.changes, *adapter.biases, *adapter.replaced]
    found, note = renamed(base.keys(), {name: name for name in every})
    names = {own: name for name, own in found.items()}
    lacking = [name for name in every if names[name] not in base]
    if lacking:
        raise KeyError(escape(f"adapter {adapter.path}: expected weights of the base, got {some(lacking)}"))
    wrong = [name for name in every if not base[names[name]].mil_dtype.is_float]
    if wrong:
        raise UnsupportedError(f"base: expected floats to merge with, got others in {some(wrong)}", file=adapter.path)
    return names, note


def _require_shape(adapter: Adapter, name: str, array: LazyTensor, shape: tuple[int, ...]) -> None:
    if array.shape != shape:
        message = f"{name}: expected shape {list(array.shape)} as in the base, got {list(shape)}"
        raise FormatError(message, file=adapter.path)


def _require_small(adapter: Adapter, name: str, delta: Delta) -> None:
    left, right = delta.factors()
    largest = [float(np.abs(factor).max(initial=0)) for factor in (left, right)]
    if not prod(largest) * left.shape[1] * abs(delta.scale) < _MAX_DELTA:
        raise FormatError(f"{name}: expected numbers that float32 has, got larger ones", file=adapter.path)


class _Turned:
    """Finds out which weights of an adapter are [inputs, outputs], as those of GPT-2's Conv1D are.

    The config has one flag for all modules. Shapes decide; for a square weight those of other weights with the same
    last name, then those of all others, then the flag.
    """

    def __init__(self, adapter: Adapter, base: Mapping[str, LazyTensor], names: Mapping[str, str]) -> None:
        self._adapter = adapter
        self._fits = {name: self._fitting(name, change, base[names[name]]) for name, change in adapter.changes.items()}
        self._seen: dict[str, set[bool]] = {}
        for name, fits in self._fits.items():
            if len(fits) == 1 and not adapter.changes[name].is_embedding:
                for leaf in ("", _leaf(name)):
                    self._seen.setdefault(leaf, set()).update(fits)

    def is_turned(self, name: str) -> bool:
        """Whether a weight is [inputs, outputs]."""
        for found in (self._fits[name], self._seen.get(_leaf(name), ()), self._seen.get("", ())):
            if len(found) == 1:
                return next(iter(found))
        return self._adapter.is_transposed

    def _fitting(self, name: str, change: LowRank, array: LazyTensor) -> set[bool]:
        inputs, outputs = change.a.shape[1:], change.b.shape[0]
        straight, turned = (outputs, *inputs), (*inputs, outputs)
        if change.is_embedding:
            fits = {True} if turned == array.shape else set()
        else:
            fits = {way for way, shape in ((False, straight), (True, turned)) if shape == array.shape}
            if array.ndim > 2:
                fits -= {True}
        if change.magnitude is not None and change.magnitude.size != outputs:
            message = f"DoRA's lengths of {name}: expected {outputs}, got {list(change.magnitude.shape)}"
            raise FormatError(message, file=self._adapter.path)
        if not fits:
            message = f"{name}: expected factors for shape {list(array.shape)} of the base"
            raise FormatError(f"{message}, got some for {list(straight)}", file=self._adapter.path)
        return fits


def _leaf(name: str) -> str:
    return name.removesuffix(".weight").rpartition(".")[2]
