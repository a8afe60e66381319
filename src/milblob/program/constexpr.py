"""Constexpr operations that compute compressed weights: their parts, checked, and the resulting tensor."""

import contextlib
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import numpy as np

from .. import _codec
from ..dtypes import BY_MIL_CODE, DType
from ..errors import FormatError, MilblobError, UnsupportedError
from ..values.dense import (
    FLOATS,
    KINDS,
    Cast,
    Computed,
    Dense,
    LookedUp,
    Mask,
    Packed,
    Scaled,
    Sparse,
    make_grid,
    pack,
    read,
)
from ..values.tensorvalue import require_shape
from .scan import Compressed

MAX_GROWTH, MIN_LIMIT_NBYTES = 4096, 1 << 30
"""Long vectors make a few megabytes of indices and palettes terabytes of values. Core ML's have 2 to 8 elements."""

_INDICES = {d.nbits: d for d in (DType.UINT1, DType.UINT2, DType.UINT3, DType.UINT4, DType.UINT6, DType.UINT8)}
_SPARSE_TO_SPARSE = ("constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale")


class Chain:
    """Assembles the computation of a weight, after checking its parts. Reads no more than that requires.

    `path`: a function that returns the path of a `_codec.Op`, for messages. `require`: a function that raises if the
    parts have too many bytes.
    """

    def __init__(
        self, stored: Callable[[Any], Packed], path: Callable[[Any], str], require: Callable[[int], None]
    ) -> None:
        self._stored = stored
        self._path = path
        self._require = require
        self.nbytes = 0  # of all parts; inner operations count with their computed size
        self._resolved: dict[Any, Packed] = {}

    def dense(self, weight: Compressed) -> Dense:
        """Return the dense form of `weight`.

        Raises: FormatError: a part is missing or does not match the others; operation and part are named.
        UnsupportedError: an unknown operation. As reading the parts does.
        """
        with self._inside(weight):
            dense, mask = self._open(weight)
            return dense if mask is None else _output(weight, dense, mask)

    @contextlib.contextmanager
    def _inside(self, weight: Compressed) -> Iterator[None]:
        """Add the operation's path to errors raised inside."""
        try:
            yield
        except MilblobError as error:
            error.where = error.where or self._path(weight.op)
            raise

    def _open(self, weight: Compressed) -> tuple[Dense, Mask | None]:
        """Return an operation's result; for one with two outputs, the dense form of both together and the mask."""
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
        dense, mask = _OPERATIONS[kind](self, weight)
        dtype, shape = dense.dtype, dense.shape
        if mask is not None and weight.output == 0:
            dtype = DType.UINT1
        elif mask is not None:
            shape = (mask.ranks[-1] * getattr(dense, "vector", 1),)
        self._require_declared(weight, dtype, shape)
        return dense, mask

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
        """Return the stored elements of a part, or the packed result of the operation that computes it."""
        part = weight.parts[key]
        found = self._resolved.get(part)
        if found is None:
            if isinstance(part, Compressed):
                dense = self.dense(part)
                self._count(dense.dtype.numpy.itemsize * prod(dense.shape))
                found = pack(read(dense), dense.dtype)
            elif part.mil_code == DType.STRING.mil_code:
                raise _wrong(weight, key, "numbers", f"{DType.STRING} {part.shape}")
            else:
                found = self._stored(part)
                self._count(found.dtype.nbytes(found.size))
            require_shape(found.shape, found.offset, found.buffer.name)
            self._resolved[part] = found
        return found

    def _count(self, nbytes: int) -> None:
        self.nbytes += nbytes
        self._require(self.nbytes)

    def _number(self, weight: Compressed, key: str, least: int, most: int) -> int:
        part = self._part(weight, key)
        if part.size != 1 or not part.dtype.is_integer:
            raise _wrong(weight, key, "one integer", f"{part.dtype} {part.shape}")
        number = int(part.array().reshape(-1)[0])
        if not least <= number <= most:
            raise _wrong(weight, key, f"{least} to {most}", number)
        return number

    def _shape(self, weight: Compressed) -> tuple[int, ...]:
        """Return the part `shape`, which only first-generation operations (iOS16) have."""
        part = self._part(weight, "shape")
        if len(part.shape) != 1 or not part.dtype.is_integer:
            raise _wrong(weight, "shape", "a vector of integers", f"{part.dtype} {part.shape}")
        shape = tuple(int(size) for size in part.array())
        if any(size < 0 for size in shape):
            raise _wrong(weight, "shape", "sizes of 0 or more", shape)
        require_shape(shape, part.offset, part.buffer.name)
        return shape

    def _bits(self, weight: Compressed, key: str, dtype: Any, shape: tuple[int, ...]) -> Packed:
        """Return a part that iOS16 stores as packed elements in a uint8 vector, as the elements it really holds."""
        part = self._part(weight, key)
        expected = dtype.nbytes(prod(shape))
        if part.dtype is not DType.UINT8 or part.shape != (expected,):
            message = f"uint8 ({expected},) for {dtype.nbits} bits each of shape {shape}"
            raise _wrong(weight, key, message, f"{part.dtype} {part.shape}")
        return part._replace(dtype=dtype, shape=shape)

    def _mask(self, weight: Compressed, key: str, nonzero_key: str, shape: tuple[int, ...] | None = None) -> Mask:
        """Return a mask with as many set bits as the other part has elements. `shape`: that of iOS16's."""
        nonzero = self._part(weight, nonzero_key)
        if len(nonzero.shape) != 1:
            raise _wrong(weight, nonzero_key, "a vector", f"{nonzero.dtype} {nonzero.shape}")
        packed = self._part(weight, key) if shape is None else self._bits(weight, key, DType.UINT1, shape)
        if packed.dtype is not DType.UINT1:
            raise _wrong(weight, key, "uint1", f"{packed.dtype} {packed.shape}")
        mask = Mask.of(packed)
        if mask.ranks[-1] != nonzero.size:
            message = f"{nonzero.size} set bits, one for each element of {nonzero_key}"
            raise _wrong(weight, key, message, mask.ranks[-1])
        return mask

    # ------------------------------------------------------------------------------------------------- operations

    def _cast(self, weight: Compressed) -> tuple[Dense, None]:
        source = self._part(weight, "source_val")
        if source.dtype is not DType.FLOAT16:
            raise _wrong(weight, "source_val", "float16", source.dtype)
        return Cast(source), None

    def _affine(self, weight: Compressed) -> tuple[Dense, None]:
        data, scale, zero_point = (self._part(weight, key) for key in ("quantized_data", "scale", "zero_point"))
        shape = data.shape
        for key, part, allowed in (
            ("quantized_data", data, (DType.INT8, DType.UINT8)),
            ("scale", scale, tuple(FLOATS)),
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
        return Scaled(data, shape, make_grid(shape, tuple(counts)), scale, zero_point, to), None

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
        if data.dtype not in KINDS:
            raise _wrong(weight, key, _one_of(tuple(KINDS)), data.dtype)
        if scale.dtype not in FLOATS:
            raise _wrong(weight, "scale", _one_of(tuple(FLOATS)), scale.dtype)
        if not shape or len(scale.shape) != len(shape):
            message = f"as many dimensions as {shape}, 1 or more"
            raise _wrong(weight, "scale", message, f"shape {scale.shape}")
        if any(count == 0 or size % count for size, count in zip(shape, scale.shape, strict=True)):
            raise _wrong(weight, "scale", f"sizes that divide {shape}", scale.shape)
        to = _codec.TO_F32 if scale.dtype is DType.FLOAT32 else _codec.TO_F16
        if offset is not None:
            if offset.dtype not in FLOATS and (offset.dtype is not data.dtype):
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
        return Scaled(data, shape, make_grid(shape, scale.shape), scale, offset, to, mask)

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
            message = f"{1 << indices.dtype.nbits} entries for indices of {indices.dtype.nbits} bits"
            raise _wrong(weight, "lut", message, entry_count)
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
        stored_nbytes = indices.dtype.nbytes(indices.size) + lut.dtype.nbytes(lut.size)
        nbytes = lut.dtype.nbytes(prod(dense))
        if nbytes > MIN_LIMIT_NBYTES and nbytes > MAX_GROWTH * stored_nbytes:
            message = f"a result of at most {MAX_GROWTH} times the bytes of indices and palettes ({stored_nbytes})"
            raise _wrong(weight, "lut", message, f"{nbytes} bytes, shape {tuple(dense)}")
        if lut.dtype.is_sub_byte:
            lut = lut._replace(buffer=_codec.Buffer(np.ascontiguousarray(lut.array()).view(np.uint8)), offset=0)
        return LookedUp(indices, shape, lut, vector, axis, mask)

    def _sparse(self, weight: Compressed) -> tuple[Dense, None]:
        values, mask_part = weight.parts["nonzero_data"], weight.parts["mask"]
        if "shape" in weight.parts:
            mask = self._mask(weight, "mask", "nonzero_data", self._shape(weight))
            return Sparse(self._part(weight, "nonzero_data"), mask), None
        if isinstance(values, Compressed) and values.op.type in _SPARSE_TO_SPARSE and values.output == 1:
            # With the same mask, the inner operation can compute the nonzero values in place: one pass.
            own = values.parts.get(_PARTS[values.op.type][0][0])
            is_output = isinstance(mask_part, Compressed) and mask_part.op.message == values.op.message
            if (is_output and mask_part.output == 0) or (own is not None and _is_same_blob(mask_part, own)):
                with self._inside(values):
                    dense, own_mask = self._open(values)
                if is_output or (own_mask is not None and dense.shape == own_mask.packed.shape):
                    return dense, None
        return Sparse(self._part(weight, "nonzero_data"), self._mask(weight, "mask", "nonzero_data")), None


_OPERATIONS: dict[str, Callable[[Chain, Compressed], tuple[Dense, Mask | None]]] = {
    "constexpr_affine_dequantize": Chain._affine,
    "constexpr_blockwise_shift_scale": Chain._blockwise,
    "constexpr_cast": Chain._cast,
    "constexpr_lut_to_dense": Chain._lut,
    "constexpr_lut_to_sparse": Chain._lut_to_sparse,
    "constexpr_sparse_blockwise_shift_scale": Chain._sparse_blockwise,
    "constexpr_sparse_to_dense": Chain._sparse,
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


def part_names(op_type: str) -> tuple[str, ...]:
    """Return the names of all parts that an operation can have.

    Raises: UnsupportedError: an operation that is not known.
    """
    if op_type not in _PARTS:
        raise UnsupportedError(f"operation: expected one that is known, got {op_type}")
    required, optional = _PARTS[op_type]
    return required + optional


def _output(weight: Compressed, dense: Dense, mask: Mask) -> Dense:
    """Return one of a sparse-to-sparse operation's two outputs: the mask, or the values at its set bits."""
    bits = mask.packed.array().view(np.uint8)
    if isinstance(dense, LookedUp) and dense.vector > 1:
        bits = np.repeat(bits, dense.vector, dense.axis)
    if weight.output == 0:
        return Computed(bits.view(DType.UINT1.numpy), DType.UINT1)
    return Computed(read(dense)[bits != 0], dense.dtype)


def _is_same_blob(a: Any, b: Any) -> bool:
    """Whether two parts are one: coremltools writes a mask shared by two operations as two values at one offset."""
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
