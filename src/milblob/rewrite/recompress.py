"""Weights that are compressed already: the pieces that a recipe goes on from, and what identifies them."""

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from .. import _codec
from ..dtypes import DType
from ..model.tensor import Tensor
from ..program.scan import Compressed
from ..values.palettize import Palettized
from ..values.quantize import Quantized
from ..values.tensorvalue import stored_bytes
from .pieces import Pieces

_INTEGERS = (DType.INT8, DType.UINT8, DType.INT4, DType.UINT4)
_NAN = float("nan")


def pieces_of(tensor: Tensor) -> Pieces | None:
    """Return the pieces of a weight that one recipe, or Prune and Palette, could have made for iOS18; else None.

    Args:
        tensor: a compressed weight.
    """
    parts = tensor.parts
    array = tensor.read()
    if tensor.op == "constexpr_lut_to_dense" and "shape" not in parts:
        return _with_palettes(Pieces(array, ("Palette",)), parts, "indices", None)
    if tensor.op == "constexpr_blockwise_shift_scale":
        data, scale, offset = parts["data"], parts["scale"], parts.get("offset")
        own = [part for part in (data, scale, offset) if part is not None]
        if data.mil_dtype not in _INTEGERS or any(part.parts for part in own):
            return None
        if offset is not None and offset.mil_dtype is not data.mil_dtype:
            return None
        point = None if offset is None else offset.read()
        coded = Quantized(data.read(), scale.read(), point, data.mil_dtype, 0.0, 0.0, 0.0)
        return Pieces(array, ("Linear",), coded=coded)
    if tensor.op != "constexpr_sparse_to_dense" or "shape" in parts:
        return None
    nonzero = parts["nonzero_data"]
    if not nonzero.parts:
        mask = parts["mask"]
        bits = None if mask.parts else _bits(mask.read())
        return None if bits is None else Pieces(array, ("Prune",), bits=bits, nonzero=nonzero.read())
    if nonzero.op != "constexpr_lut_to_sparse" or nonzero.parts["indices_mask"].parts:
        return None
    pieces = Pieces(array, ("Prune", "Palette"), bits=_bits(nonzero.parts["indices_mask"].read()))
    return _with_palettes(pieces, nonzero.parts, "indices_nonzero_data", pieces.mask)


def _with_palettes(pieces: Pieces, parts: Mapping[str, Tensor], key: str, mask: Any) -> Pieces | None:
    """The pieces with palettes of numbers and indices, where these are stored as floats."""
    indices, lut = parts[key], parts["lut"]
    if lut.parts or indices.parts or lut.shape[-1] != 1 or lut.mil_dtype not in (DType.FLOAT16, DType.FLOAT32):
        return None
    codes = indices.read().view(np.uint8)
    if mask is not None:
        dense = np.zeros(pieces.array.shape, np.uint8)
        dense[mask] = codes
        codes = dense
    return pieces._replace(table=Palettized(codes, lut.read(), indices.mil_dtype.nbits, 0.0, 0.0, 0.0, _NAN))


def _bits(mask: Any) -> Any:
    return np.frombuffer(stored_bytes(mask, DType.UINT1), np.uint8)


def identity(tensor: Tensor) -> Hashable:
    """Return what a compressed weight is computed from: equal for the same operations on the same stored parts."""

    def of(row: Any) -> Hashable:
        if isinstance(row, Compressed):
            return (
                row.op.type,
                row.output,
                row.op.shape,
                tuple((key, of(part)) for key, part in sorted(row.parts.items())),
            )
        part = tensor.part(row)
        if row.storage == _codec.BLOB:
            return part.file, row.blob_offset, row.shape, row.mil_code
        return part.read().tobytes(), row.shape, row.mil_code

    return of(tensor.chain)
