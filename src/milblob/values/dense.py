"""Tensors computed from packed elements, whole or any range of them: sparse, scaled, looked up."""

from collections.abc import Iterable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import _codec
from ..dtypes import DType
from ..threads import PIECE_NBYTES, each
from . import parallel
from .arrays import copy_into, require_fit
from .tensorvalue import stored_bytes

_RANK_COUNT = 1 << 20  # bits of a mask that are counted at a time

QUANTIZED = {
    **dict.fromkeys((DType.UINT1, DType.UINT2, DType.UINT3, DType.UINT4, DType.UINT6, DType.UINT8), _codec.FROM_U8),
    **dict.fromkeys((DType.INT4, DType.INT8), _codec.FROM_I8),
}
FLOATS = {DType.FLOAT16: _codec.FROM_F16, DType.FLOAT32: _codec.FROM_F32}
KINDS = QUANTIZED | FLOATS
"""The kind of element that the codec's kernels see for a dtype."""


class Packed(NamedTuple):
    """The stored elements of a tensor, packed and little-endian, in held bytes from `offset` on."""

    buffer: _codec.Buffer
    offset: int
    dtype: Any
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    def array(self) -> np.ndarray[Any, Any]:
        """Return the values: a view, or for sub-byte dtypes a new array of one byte each."""
        if not self.dtype.is_sub_byte:
            return np.ndarray(self.shape, self.dtype.numpy, self.buffer, self.offset)  # type: ignore[arg-type]
        out = np.empty(self.shape, np.uint8)
        parallel.unpack_bits(self.buffer, self.offset, self.size, self.dtype.nbits, out)
        return out.view(self.dtype.numpy)

    def elements(self, mask: "Mask | None" = None, is_signed: bool = False) -> _codec.PackedElements:
        """Return the elements for the decoding kernels. `is_signed`: whether to sign-extend sub-byte elements."""
        bits = () if mask is None else (mask.packed.buffer, mask.packed.offset, mask.packed.size)
        return _codec.PackedElements(self.buffer, self.offset, self.size, self.dtype.nbits, is_signed, *bits)


def pack(array: np.ndarray[Any, Any], dtype: Any) -> Packed:
    """Return an array's elements as they would be stored."""
    return Packed(_codec.Buffer(stored_bytes(array, dtype)), 0, dtype, array.shape)


class Mask(NamedTuple):
    """The mask of stored elements, one bit each, with the count of set bits before every 2^20th."""

    packed: Packed
    ranks: list[int]

    @classmethod
    def of(cls, packed: Packed) -> "Mask":
        """Count the bits of a mask."""
        ranks = [0]
        for begin in range(0, packed.size, _RANK_COUNT):
            count = min(_RANK_COUNT, packed.size - begin)
            ranks.append(ranks[-1] + _codec.count_ones(packed.buffer, packed.offset, begin, count))
        return cls(packed, ranks)

    def rank(self, begin: int) -> int:
        """Count the set bits before `begin`."""
        number, left = divmod(begin, _RANK_COUNT)
        return self.ranks[number] + _codec.count_ones(self.packed.buffer, self.packed.offset, begin - left, left)


# ------------------------------------------------------------------------------------------------------ dense tensors


class Dense:
    """A tensor that can be computed, whole or in part."""

    def __init__(self, dtype: Any, shape: tuple[int, ...], unit: int = 1) -> None:
        self.dtype = dtype  # DType of the elements
        self.shape = shape  # its dimensions, all known
        self.unit = unit  # ranges that begin and end at multiples of it need no extra work

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        """Fill `out` (bytes) with elements [begin, begin + count) in row-major order."""
        raise NotImplementedError


class Computed(Dense):
    """A tensor that has been computed already."""

    def __init__(self, array: np.ndarray[Any, Any], dtype: Any) -> None:
        super().__init__(dtype, array.shape)
        self._bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        nbytes = self.dtype.numpy.itemsize
        out[:] = self._bytes[begin * nbytes : (begin + count) * nbytes]


class Cast(Dense):
    """float16 as float32."""

    def __init__(self, source: Packed) -> None:
        super().__init__(DType.FLOAT32, source.shape)
        self._source = source

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        source = self._source
        _codec.cast(_codec.CAST_F16_F32, source.buffer, source.offset + 2 * begin, count, out)


class Sparse(Dense):
    """Nonzero elements, and zeros between them."""

    def __init__(self, nonzero: Packed, mask: Mask) -> None:
        super().__init__(nonzero.dtype, mask.packed.shape)
        self._mask = mask
        self._elements = nonzero.elements(mask)

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        _codec.decode_sparse(out, begin, count, self._elements, self._mask.rank(begin))


class Scaled(Dense):
    """scale * (element - shift). `scale` and `shift` have as many elements as the grid has parameters."""

    def __init__(
        self,
        source: Packed,
        shape: tuple[int, ...],
        grid: _codec.Grid,
        scale: Packed,
        shift: Packed | None,
        to: int,
        mask: Mask | None = None,
    ) -> None:
        super().__init__(scale.dtype, shape)
        self._mask = mask
        shifts: tuple[Any, ...] = (None, 0, 0)
        if shift is not None:
            shifts = (shift.buffer, shift.offset, KINDS[shift.dtype])
        scales = (scale.buffer, scale.offset, KINDS[scale.dtype])
        self._head = source.elements(mask, source.dtype is DType.INT4)
        self._tail = (grid, *scales, *shifts, KINDS[source.dtype], to)

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        rank = self._mask.rank(begin) if self._mask is not None else 0
        _codec.decode_scale(out, begin, count, self._head, rank, *self._tail)


class LookedUp(Dense):
    """Entries of palettes, by index: scalars, or vectors along an axis."""

    def __init__(
        self, indices: Packed, shape: tuple[int, ...], lut: Packed, vector: int, axis: int, mask: Mask | None = None
    ) -> None:
        dense = list(shape)
        dense[axis] *= vector
        self.vector, self.axis = vector, axis
        self._inner = prod(shape[axis + 1 :]) if vector > 1 else 1
        super().__init__(lut.dtype, tuple(dense), self._inner * vector)
        self._mask = mask
        nbytes = lut.dtype.numpy.itemsize
        table = (lut.buffer, lut.offset, 1 << indices.dtype.nbits, nbytes, vector, max(self._inner, 1))
        self._head = indices.elements(mask)
        self._tail = (make_grid(shape, lut.shape[: len(shape)]), *table)

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        nbytes, unit = self.dtype.numpy.itemsize, max(self.unit, 1)
        first = begin - begin % unit
        last = -(-(begin + count) // unit) * unit
        if (first, last) != (begin, begin + count):  # vectors cross the range: compute whole ones, keep the range
            whole = np.empty((last - first) * nbytes, np.uint8)
            self.fill(whole, first, last - first)
            out[:] = whole[(begin - first) * nbytes : (begin - first + count) * nbytes]
            return
        begin, count = begin // self.vector, count // self.vector
        rank = self._mask.rank(begin) if self._mask is not None else 0
        _codec.decode_palette(out, begin, count, self._head, rank, *self._tail)


def make_grid(shape: tuple[int, ...], counts: tuple[int, ...]) -> _codec.Grid:
    """The parameter of each element: along each axis, blocks of shape / counts share one of `counts` parameters."""
    if not prod(shape):
        return _codec.Grid((1,), (0,))
    dims: list[tuple[int, int]] = []  # (size, stride), innermost first
    stride = 1
    for size, count in zip(reversed(shape), reversed(counts), strict=True):
        for dim in ((size // count, 0), (count, stride)):
            if dim[0] == 1:
                continue
            if dims and dim[1] == dims[-1][0] * dims[-1][1]:  # continues where the last one ends
                dims[-1] = (dims[-1][0] * dim[0], dims[-1][1])
            else:
                dims.append(dim)
        stride *= count
    dims = dims[::-1] or [(1, 0)]
    return _codec.Grid([size for size, _ in dims], [step for _, step in dims])


# ------------------------------------------------------------------------------------------------------------- reading


def read(
    dense: Dense, out: np.ndarray[Any, Any] | None = None, begin: int = 0, shape: tuple[int, ...] | None = None
) -> np.ndarray[Any, Any]:
    """Compute all of `dense`, or the part of `shape` that begins at element `begin`, in row-major order.

    Args:
        out: C-contiguous array of its dtype and the requested shape to fill; default: a new one.

    Large results are computed by several threads (see threads.py).
    """
    shape = dense.shape if shape is None else shape
    dtype = dense.dtype.numpy
    if out is None:
        out = np.empty(shape, dtype)
    flat = out.reshape(-1).view(np.uint8)
    count = prod(shape)
    piece = max(PIECE_NBYTES // dtype.itemsize // max(dense.unit, 1), 1) * max(dense.unit, 1)
    starts = range(begin, begin + count, piece)

    def fill(start: int) -> None:
        size = min(piece, begin + count - start)
        at = (start - begin) * dtype.itemsize
        dense.fill(flat[at : at + size * dtype.itemsize], start, size)

    if len(starts) == 1:
        fill(begin)
    else:
        each(fill, starts)
    return out


def read_to(dense: Dense, out: np.ndarray[Any, Any] | None, sources: Iterable[_codec.Buffer]) -> np.ndarray[Any, Any]:
    """Compute all of `dense`, into an array of any memory order if one is given. Raises: as `require_fit`.

    `sources`: held bytes that the parts lie in. An array in one of them, which is the caller's memory, is filled at the
    end.
    """
    if out is None:
        return read(dense)
    require_fit(out, dense.dtype.numpy, dense.shape)
    into = np.asarray(out)  # of a subclass: parts of a matrix are matrices, two-dimensional even when it is reshaped
    if not into.flags.carray or any(np.may_share_memory(np.asarray(memoryview(source)), into) for source in sources):
        return copy_into(out, read(dense))
    read(dense, into)
    return out


def read_key(dense: Dense, key: Any) -> Any:
    """Return `array[key]`, computing only the part that leading integers and one slice select.

    Raises: IndexError: as NumPy.
    """
    keys = key if isinstance(key, tuple) else (key,)
    is_basic = all(k is None or k is Ellipsis or isinstance(k, slice) or _is_number(k) for k in keys)
    begin, axis, shape = 0, 0, dense.shape
    if is_basic:
        while axis < min(len(keys), len(shape)) and _is_number(keys[axis]):
            number, size = int(keys[axis]), shape[axis]
            if not -size <= number < size:
                raise IndexError(f"index {number} is out of bounds for axis {axis} with size {size}")
            begin = begin * size + number % size
            axis += 1
    rest, left = list(keys[axis:]), list(shape[axis:])
    if rest and left and isinstance(rest[0], slice):
        rows = range(left[0])[rest[0]]
        low, high = (min(rows[0], rows[-1]), max(rows[0], rows[-1]) + 1) if rows else (0, 0)
        begin = begin * left[0] + low
        left[0] = high - low
        rest[0] = slice(None, None, rows.step)  # the ends of the covering range are selected rows
        begin *= prod(left[1:])
    else:
        begin *= prod(left)
    return read(dense, None, begin, tuple(left))[tuple(rest)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
