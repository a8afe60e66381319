"""Dense values of compressed weights: from the stored parts of constexpr operations to an array, or any range of one."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np

from . import _codec
from .dtypes import BY_MIL_CODE, DType
from .errors import FormatError, MilblobError, UnsupportedError
from .program import Compressed
from .tensorvalue import require_shape, stored_bytes

MAX_DEPTH = 32
"""Operations in a chain. coremltools makes chains of three; each level is computed in full before the next."""

PIECE_NBYTES = 1 << 22
"""Results larger than this are computed by several threads, so much at a time."""

_RANK_COUNT = 1 << 20  # bits of a mask that are counted at once

_QUANTIZED = {
    **dict.fromkeys((DType.UINT1, DType.UINT2, DType.UINT3, DType.UINT4, DType.UINT6, DType.UINT8), _codec.FROM_U8),
    **dict.fromkeys((DType.INT4, DType.INT8), _codec.FROM_I8),
}
_FLOATS = {DType.FLOAT16: _codec.FROM_F16, DType.FLOAT32: _codec.FROM_F32}
_KINDS = _QUANTIZED | _FLOATS
_INDICES = {d.nbits: d for d in (DType.UINT1, DType.UINT2, DType.UINT3, DType.UINT4, DType.UINT6, DType.UINT8)}
_SPARSE_TO_SPARSE = ("constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale")


class Packed(NamedTuple):
    """The elements of a tensor as they are stored, packed and little-endian, in held bytes from `offset` on."""

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
        _codec.unpack_bits(self.buffer, self.offset, self.size, self.dtype.nbits, out)
        return out.view(self.dtype.numpy)

    def elements(self, mask: "Mask | None" = None) -> _codec.Elements:
        """Return them for the decoding kernels."""
        bits = () if mask is None else (mask.packed.buffer, mask.packed.offset, mask.packed.size)
        return _codec.Elements(self.buffer, self.offset, self.size, self.dtype.nbits, self.dtype is DType.INT4, *bits)


def pack(array: np.ndarray[Any, Any], dtype: Any) -> Packed:
    """Return an array's elements as they would be stored."""
    return Packed(_codec.Buffer(stored_bytes(array, dtype)), 0, dtype, array.shape)


class Mask(NamedTuple):
    """Which elements are stored: one bit each, and how many are set before every 2^20th."""

    packed: Packed
    ranks: list[int]

    def rank(self, begin: int) -> int:
        """Count the set bits before `begin`."""
        number, left = divmod(begin, _RANK_COUNT)
        return self.ranks[number] + _codec.count_ones(self.packed.buffer, self.packed.offset, begin - left, left)


# ------------------------------------------------------------------------------------------------------ dense tensors


class Dense:
    """A tensor that can be computed, whole or in part.

    Attributes:
        dtype: DType of the elements.
        shape: its dimensions, all known.
        unit: ranges that begin and end at multiples of it are computed without waste.
    """

    def __init__(self, dtype: Any, shape: tuple[int, ...], unit: int = 1) -> None:
        self.dtype = dtype
        self.shape = shape
        self.unit = unit

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        """Fill `out` (bytes) with elements [begin, begin + count) in row-major order."""
        raise NotImplementedError


class _Array(Dense):
    """One that has been computed already."""

    def __init__(self, array: np.ndarray[Any, Any], dtype: Any) -> None:
        super().__init__(dtype, array.shape)
        self._bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        nbytes = self.dtype.numpy.itemsize
        out[:] = self._bytes[begin * nbytes : (begin + count) * nbytes]


class _Cast(Dense):
    """float16 as float32."""

    def __init__(self, source: Packed) -> None:
        super().__init__(DType.FLOAT32, source.shape)
        self._source = source

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        source = self._source
        _codec.cast(_codec.CAST_F16_F32, source.buffer, source.offset + 2 * begin, count, out)


class _Sparse(Dense):
    """Nonzero elements, and zeros between them."""

    def __init__(self, nonzero: Packed, mask: Mask) -> None:
        super().__init__(nonzero.dtype, mask.packed.shape)
        self._mask = mask
        self._elements = nonzero.elements(mask)

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        _codec.decode_sparse(out, begin, count, self._elements, self._mask.rank(begin))


class _Scaled(Dense):
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
            shifts = (shift.buffer, shift.offset, _KINDS[shift.dtype])
        scales = (scale.buffer, scale.offset, _KINDS[scale.dtype])
        self._head = source.elements(mask)
        self._tail = (grid, *scales, *shifts, _KINDS[source.dtype], to)

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        rank = self._mask.rank(begin) if self._mask is not None else 0
        _codec.decode_scale(out, begin, count, self._head, rank, *self._tail)


class _Palette(Dense):
    """Entries of palettes, by index: scalars, or vectors that are laid along an axis."""

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
        self._tail = (_grid(shape, lut.shape[: len(shape)]), *table)

    def fill(self, out: np.ndarray[Any, Any], begin: int, count: int) -> None:
        nbytes, unit = self.dtype.numpy.itemsize, max(self.unit, 1)
        first = begin - begin % unit
        last = -(-(begin + count) // unit) * unit
        if (first, last) != (begin, begin + count):  # vectors across the range: compute whole ones, keep the range
            whole = np.empty((last - first) * nbytes, np.uint8)
            self.fill(whole, first, last - first)
            out[:] = whole[(begin - first) * nbytes : (begin - first + count) * nbytes]
            return
        begin, count = begin // self.vector, count // self.vector
        rank = self._mask.rank(begin) if self._mask is not None else 0
        _codec.decode_palette(out, begin, count, self._head, rank, *self._tail)


def _grid(shape: tuple[int, ...], counts: tuple[int, ...]) -> _codec.Grid:
    """Which of `counts` parameters along each axis an element has: blocks of shape / counts share one."""
    if not prod(shape):
        return _codec.Grid((1,), (0,))
    dims: list[tuple[int, int]] = []  # (size, stride), innermost first
    stride = 1
    for size, count in zip(reversed(shape), reversed(counts), strict=True):
        for dim in ((size // count, 0), (count, stride)):
            if dim[0] == 1:
                continue
            if dims and dim[1] == dims[-1][0] * dims[-1][1]:  # goes on where the last one ends
                dims[-1] = (dims[-1][0] * dim[0], dims[-1][1])
            else:
                dims.append(dim)
        stride *= count
    dims = dims[::-1] or [(1, 0)]
    return _codec.Grid([size for size, _ in dims], [step for _, step in dims])


# -------------------------------------------------------------------------------------------------------------- chains


class Chain:
    """Puts together what computes a weight, once its parts are known to be sound. Reads no more than that takes.

    Args:
        stored: a function that returns the Packed of a stored part (a `_codec.Constant`).
        path: a function that returns the path of a `_codec.Op`, for messages.
    """

    def __init__(self, stored: Callable[[Any], Packed], path: Callable[[Any], str]) -> None:
        self._stored = stored
        self._path = path
        self._resolved: dict[int, Packed] = {}
        self._depth = 0

    def dense(self, weight: Compressed) -> Dense:
        """Return the dense form of what `weight` computes.

        Raises:
            FormatError: a part is missing, or does not fit the others; operation and part are named.
            UnsupportedError: an operation that is not known; a chain of more than MAX_DEPTH.
            As reading the parts does.
        """
        with self._inside(weight):
            dense, mask = self._open(weight)
            return dense if mask is None else _output(weight, dense, mask)

    @contextlib.contextmanager
    def _inside(self, weight: Compressed) -> Iterator[None]:
        """Count the depth, and say where an error comes from."""
        self._depth += 1
        try:
            if self._depth > MAX_DEPTH:
                raise UnsupportedError(f"constexpr operations: expected a chain of at most {MAX_DEPTH}, got more")
            yield
        except MilblobError as error:
            error.where = error.where or self._path(weight.op)
            raise
        finally:
            self._depth -= 1

    def _open(self, weight: Compressed) -> tuple[Dense, Mask | None]:
        """Return what an operation computes; of one with two outputs, the dense form of both together, and the mask."""
        kind = weight.op.type
        if kind not in _PARTS:
            raise UnsupportedError(f"operation: expected one that is known, got {kind}")
        required, optional = _PARTS[kind]
        missing = [key for key in required if key not in weight.parts]
        unknown = [key for key in weight.parts if key not in required + optional]
        if missing:
            raise _wrong(weight, missing[0], "a tensor", "none")
        if unknown:
            raise _wrong(weight, unknown[0], f"no part but {', '.join(required + optional)}", "one")
        dense, mask = self._operations[kind](self, weight)
        dtype, shape = dense.dtype, dense.shape
        if kind in _SPARSE_TO_SPARSE and weight.output == 0:
            dtype = DType.UINT1
        elif kind in _SPARSE_TO_SPARSE:
            shape = (mask.ranks[-1] * getattr(dense, "vector", 1),)
        self._require_declared(weight, dtype, shape)
        return dense, mask if kind in _SPARSE_TO_SPARSE else None

    def _require_declared(self, weight: Compressed, dtype: Any, shape: tuple[int, ...]) -> None:
        op = weight.op
        sizes = op.shape if op.shape is not None else ()
        if (
            op.mil_code != dtype.mil_code
            or len(sizes) != len(shape)
            or any(size not in (None, own) for size, own in zip(sizes, shape, strict=True))
        ):
            found = "no tensor" if op.shape is None else f"{BY_MIL_CODE[op.mil_code]} {sizes}"
            raise _wrong(weight, "output", f"{dtype} {shape}, which its parts make", found)

    def _part(self, weight: Compressed, key: str) -> Packed:
        """The stored elements of a part, or of what computes it, packed again."""
        part = weight.parts[key]
        found = self._resolved.get(id(part))
        if found is None:
            if isinstance(part, Compressed):
                dense = self.dense(part)
                found = pack(read(dense), dense.dtype)
            else:
                found = self._stored(part)
            require_shape(found.shape, found.offset, found.buffer.name)
            self._resolved[id(part)] = found
        return found

    def _number(self, weight: Compressed, key: str, least: int, most: int) -> int:
        part = self._part(weight, key)
        if part.size != 1 or not part.dtype.is_integer:
            raise _wrong(weight, key, "one integer", f"{part.dtype} {part.shape}")
        number = int(part.array().reshape(-1)[0])
        if not least <= number <= most:
            raise _wrong(weight, key, f"{least} to {most}", number)
        return number

    def _shape(self, weight: Compressed) -> tuple[int, ...]:
        """The part `shape`, by which the first generation (iOS16) is known."""
        part = self._part(weight, "shape")
        if len(part.shape) != 1 or not part.dtype.is_integer:
            raise _wrong(weight, "shape", "a vector of integers", f"{part.dtype} {part.shape}")
        shape = tuple(int(size) for size in part.array())
        if any(size < 0 for size in shape):
            raise _wrong(weight, "shape", "sizes of 0 or more", shape)
        require_shape(shape, part.offset, part.buffer.name)
        return shape

    def _bits(self, weight: Compressed, key: str, dtype: Any, shape: tuple[int, ...]) -> Packed:
        """A part that holds packed elements in a vector of uint8, as iOS16 has it, as what they are."""
        part = self._part(weight, key)
        expected = dtype.nbytes(prod(shape))
        if part.dtype is not DType.UINT8 or part.shape != (expected,):
            words = f"uint8 ({expected},) for {dtype.nbits} bits each of shape {shape}"
            raise _wrong(weight, key, words, f"{part.dtype} {part.shape}")
        return part._replace(dtype=dtype, shape=shape)

    def _mask(self, weight: Compressed, key: str, nonzero_key: str, shape: tuple[int, ...] | None = None) -> Mask:
        """A mask with as many set bits as the other part has elements. `shape`: that of iOS16's."""
        nonzero = self._part(weight, nonzero_key)
        if len(nonzero.shape) != 1:
            raise _wrong(weight, nonzero_key, "a vector", f"{nonzero.dtype} {nonzero.shape}")
        packed = self._part(weight, key) if shape is None else self._bits(weight, key, DType.UINT1, shape)
        if packed.dtype is not DType.UINT1:
            raise _wrong(weight, key, "uint1", f"{packed.dtype} {packed.shape}")
        ranks = [0]
        for begin in range(0, packed.size, _RANK_COUNT):
            count = min(_RANK_COUNT, packed.size - begin)
            ranks.append(ranks[-1] + _codec.count_ones(packed.buffer, packed.offset, begin, count))
        if ranks[-1] != nonzero.size:
            raise _wrong(weight, key, f"{nonzero.size} set bits, one for each element of {nonzero_key}", ranks[-1])
        return Mask(packed, ranks)

    # ------------------------------------------------------------------------------------------------- operations

    def _cast(self, weight: Compressed) -> tuple[Dense, None]:
        source = self._part(weight, "source_val")
        if source.dtype is not DType.FLOAT16:
            raise _wrong(weight, "source_val", "float16", source.dtype)
        return _Cast(source), None

    def _affine(self, weight: Compressed) -> tuple[Dense, None]:
        data, scale, zero_point = (self._part(weight, key) for key in ("quantized_data", "scale", "zero_point"))
        shape = data.shape
        for key, part, allowed in (
            ("quantized_data", data, (DType.INT8, DType.UINT8)),
            ("scale", scale, tuple(_FLOATS)),
            ("zero_point", zero_point, (DType.INT8, DType.UINT8, DType.FLOAT32)),
        ):
            if part.dtype not in allowed:
                raise _wrong(weight, key, _one_of(allowed), part.dtype)
        if not shape:
            raise _wrong(weight, "quantized_data", "one dimension or more", "none")
        axis = self._number(weight, "axis", -len(shape), len(shape) - 1) % len(shape)
        counts = [1] * len(shape)
        for key, part in (("scale", scale), ("zero_point", zero_point)):
            if part.shape not in ((), (shape[axis],)):
                raise _wrong(weight, key, f"a number, or {shape[axis]} along axis {axis}", f"shape {part.shape}")
            if part.shape:
                counts[axis] = shape[axis]
        if prod(shape):
            scale, zero_point = (
                pack(np.full(counts[axis], part.array()), part.dtype) if not part.shape else part
                for part in (scale, zero_point)
            )
        to = _codec.TO_F32 if scale.dtype is DType.FLOAT32 else _codec.TO_F16
        return _Scaled(data, shape, _grid(shape, tuple(counts)), scale, zero_point, to), None

    def _blockwise(self, weight: Compressed) -> tuple[Dense, None]:
        data = self._part(weight, "data")
        return self._scaled(weight, "data", data, data.shape), None

    def _sparse_blockwise(self, weight: Compressed) -> tuple[Dense, Mask]:
        data, mask = self._part(weight, "nonzero_data"), self._mask(weight, "data_mask", "nonzero_data")
        return self._scaled(weight, "nonzero_data", data, mask.packed.shape, mask), mask

    def _scaled(
        self, weight: Compressed, key: str, data: Packed, shape: tuple[int, ...], mask: Mask | None = None
    ) -> Dense:
        scale = self._part(weight, "scale")
        offset = self._part(weight, "offset") if "offset" in weight.parts else None
        if data.dtype not in _KINDS:
            raise _wrong(weight, key, _one_of(tuple(_KINDS)), data.dtype)
        if scale.dtype not in _FLOATS:
            raise _wrong(weight, "scale", _one_of(tuple(_FLOATS)), scale.dtype)
        if not shape or len(scale.shape) != len(shape):
            words = f"as many dimensions as {shape}, 1 or more"
            raise _wrong(weight, "scale", words, f"shape {scale.shape}")
        if any(count == 0 or size % count for size, count in zip(shape, scale.shape, strict=True)):
            raise _wrong(weight, "scale", f"sizes that divide {shape}", scale.shape)
        to = _codec.TO_F32 if scale.dtype is DType.FLOAT32 else _codec.TO_F16
        if offset is not None:
            if offset.dtype not in _FLOATS and (offset.dtype is not data.dtype):
                raise _wrong(weight, "offset", f"{data.dtype}, float16 or float32", offset.dtype)
            if offset.shape != scale.shape:
                raise _wrong(weight, "offset", f"the shape of scale, {scale.shape}", offset.shape)
            if offset.dtype is DType.FLOAT16 and to == _codec.TO_F16:
                to = _codec.TO_F16_STEPS
            if offset.dtype.is_sub_byte:
                nibbles = offset.array().view(np.uint8)
                is_signed = offset.dtype is DType.INT4
                wide = ((nibbles ^ 8) - 8).astype(np.uint8) if is_signed else nibbles
                offset = pack(wide.view(np.int8 if is_signed else np.uint8), DType.INT8 if is_signed else DType.UINT8)
        return _Scaled(data, shape, _grid(shape, scale.shape), scale, offset, to, mask)

    def _lut(self, weight: Compressed) -> tuple[Dense, None]:
        lut = self._part(weight, "lut")
        if "shape" not in weight.parts:
            indices = self._part(weight, "indices")
            return self._palette(weight, "indices", indices, indices.shape, lut), None
        if "vector_axis" in weight.parts:
            raise _wrong(weight, "vector_axis", "none beside shape", "one")
        shape = self._shape(weight)
        if len(lut.shape) != 1 or lut.size not in [1 << nbits for nbits in _INDICES]:
            raise _wrong(weight, "lut", f"a vector of {_one_of([1 << n for n in _INDICES])} entries", lut.shape)
        indices = self._bits(weight, "indices", _INDICES[lut.size.bit_length() - 1], shape)
        flat = indices._replace(shape=(*shape, 1))
        lut = lut._replace(shape=(1,) * len(flat.shape) + (lut.size, 1))
        dense = self._palette(weight, "indices", flat, flat.shape, lut)
        dense.shape = shape
        return dense, None

    def _lut_to_sparse(self, weight: Compressed) -> tuple[Dense, Mask]:
        indices = self._part(weight, "indices_nonzero_data")
        mask = self._mask(weight, "indices_mask", "indices_nonzero_data")
        lut = self._part(weight, "lut")
        return self._palette(weight, "indices_nonzero_data", indices, mask.packed.shape, lut, mask), mask

    def _palette(
        self,
        weight: Compressed,
        key: str,
        indices: Packed,
        shape: tuple[int, ...],
        lut: Packed,
        mask: Mask | None = None,
    ) -> Dense:
        rank = len(shape)
        if indices.dtype not in _INDICES.values():
            raise _wrong(weight, key, _one_of(tuple(_INDICES.values())), indices.dtype)
        if lut.dtype in (DType.STRING, DType.BOOL):
            raise _wrong(weight, "lut", "numbers", lut.dtype)
        if rank < 1 or len(lut.shape) != rank + 2:
            raise _wrong(weight, "lut", f"two dimensions more than those of {key}, {shape}", f"shape {lut.shape}")
        *groups, entry_count, vector = lut.shape
        if any(count == 0 or size % count for size, count in zip(shape, groups, strict=True)):
            raise _wrong(weight, "lut", f"first sizes that divide {shape}", f"shape {lut.shape}")
        if entry_count != 1 << indices.dtype.nbits:
            words = f"{1 << indices.dtype.nbits} entries for indices of {indices.dtype.nbits} bits"
            raise _wrong(weight, "lut", words, entry_count)
        if vector < 1:
            raise _wrong(weight, "lut", "vectors of one element or more", vector)
        axis = 0
        if "vector_axis" in weight.parts:
            axis = self._number(weight, "vector_axis", -rank, rank - 1) % rank
        elif vector > 1:
            raise _wrong(weight, "vector_axis", f"one for vectors of {vector} elements", "none")
        dense = list(shape)
        dense[axis] *= vector
        require_shape(dense, lut.offset, lut.buffer.name)
        if prod(dense) >= 1 << 59:
            raise _wrong(weight, "lut", "fewer than 2^59 elements in the result", f"shape {tuple(dense)}")
        if lut.dtype.is_sub_byte:
            lut = lut._replace(buffer=_codec.Buffer(np.ascontiguousarray(lut.array()).view(np.uint8)), offset=0)
        return _Palette(indices, shape, lut, vector, axis, mask)

    def _sparse(self, weight: Compressed) -> tuple[Dense, None]:
        values, mask_part = weight.parts["nonzero_data"], weight.parts["mask"]
        if "shape" in weight.parts:
            mask = self._mask(weight, "mask", "nonzero_data", self._shape(weight))
            return _Sparse(self._part(weight, "nonzero_data"), mask), None
        if isinstance(values, Compressed) and values.op.type in _SPARSE_TO_SPARSE and values.output == 1:
            # What computes the nonzero values computes them where they stand, if it has the same mask: one pass.
            own = values.parts.get(_PARTS[values.op.type][0][0])
            is_output = isinstance(mask_part, Compressed) and mask_part.op.message == values.op.message
            if (is_output and mask_part.output == 0) or _is_same_blob(mask_part, own):
                with self._inside(values):
                    dense, mask = self._open(values)
                if is_output or dense.shape == mask.packed.shape:
                    return dense, None
        return _Sparse(self._part(weight, "nonzero_data"), self._mask(weight, "mask", "nonzero_data")), None

    _operations: dict[str, Callable[..., Any]] = {
        "constexpr_affine_dequantize": _affine,
        "constexpr_blockwise_shift_scale": _blockwise,
        "constexpr_cast": _cast,
        "constexpr_lut_to_dense": _lut,
        "constexpr_lut_to_sparse": _lut_to_sparse,
        "constexpr_sparse_blockwise_shift_scale": _sparse_blockwise,
        "constexpr_sparse_to_dense": _sparse,
    }


_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "constexpr_affine_dequantize": (("quantized_data", "scale", "zero_point", "axis"), ()),
    "constexpr_blockwise_shift_scale": (("data", "scale"), ("offset",)),
    "constexpr_cast": (("source_val",), ("output_dtype",)),
    "constexpr_lut_to_dense": (("indices", "lut"), ("shape", "vector_axis")),
    "constexpr_lut_to_sparse": (("indices_mask", "indices_nonzero_data", "lut"), ("vector_axis",)),
    "constexpr_sparse_blockwise_shift_scale": (("data_mask", "nonzero_data", "scale"), ("offset",)),
    "constexpr_sparse_to_dense": (("nonzero_data", "mask"), ("shape",)),
}
"""Operation -> its required and its optional parts. Those with `shape` are iOS16's, where bits are packed in uint8."""


def _output(weight: Compressed, dense: Dense, mask: Mask) -> Dense:
    """One of the two outputs of a sparse-to-sparse operation: the mask, or the values at its set bits."""
    bits = mask.packed.array().view(np.uint8)
    if isinstance(dense, _Palette) and dense.vector > 1:
        bits = np.repeat(bits, dense.vector, dense.axis)
    if weight.output == 0:
        return _Array(bits.view(DType.UINT1.numpy), DType.UINT1)
    return _Array(read(dense)[bits != 0], dense.dtype)


def _is_same_blob(a: Any, b: Any) -> bool:
    """Whether two parts are one: coremltools writes a mask that two operations share as two values at one offset."""
    if a is b:
        return True
    if isinstance(a, Compressed) or isinstance(b, Compressed) or a.storage != _codec.BLOB or b.storage != _codec.BLOB:
        return False
    return bool((a.text, a.blob_offset, a.shape, a.mil_code) == (b.text, b.blob_offset, b.shape, b.mil_code))


def _one_of(names: Any) -> str:
    *most, last = map(str, names)
    return f"{', '.join(most)} or {last}"


def _wrong(weight: Compressed, key: str, expected: object, got: object) -> FormatError:
    return FormatError(f"{key} of {weight.op.type}: expected {expected}, got {got}")


# ------------------------------------------------------------------------------------------------------------- reading


def read(
    dense: Dense, out: np.ndarray[Any, Any] | None = None, begin: int = 0, shape: tuple[int, ...] | None = None
) -> np.ndarray[Any, Any]:
    """Compute the whole of `dense`, or the part of `shape` that begins at element `begin`, in row-major order.

    Args:
        out: C-contiguous array of its dtype and the shape asked for, to fill; default: a new one.

    Large results are computed by several threads, unless this is called in one that is not the main thread.
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

    workers = min(thread_count(), len(starts))
    if workers <= 1 or threading.current_thread() is not threading.main_thread():
        if count:
            dense.fill(flat, begin, count)
        return out
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(fill, starts):
            pass
    return out


def thread_count() -> int:
    """Return how many threads compute a large tensor: $MILBLOB_THREADS, else one for each processor, at most 4."""
    given = os.environ.get("MILBLOB_THREADS", "")
    if given:
        if not given.isascii() or not given.isdigit() or int(given) < 1:
            raise ValueError(f"MILBLOB_THREADS: expected a number of 1 or more, got {given!r}")
        return int(given)
    if hasattr(os, "sched_getaffinity"):
        return min(4, len(os.sched_getaffinity(0)))
    return min(4, os.cpu_count() or 1)


def read_key(dense: Dense, key: Any) -> Any:
    """Return `array[key]` without computing more of the array than leading numbers and one slice leave.

    Raises:
        IndexError: as NumPy.
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
        rest[0] = slice(None, None, rows.step)  # the ends of a covering range are rows themselves
        begin *= prod(left[1:])
    else:
        begin *= prod(left)
    return read(dense, None, begin, tuple(left))[tuple(rest)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
