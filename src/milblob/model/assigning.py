"""Assignment to a tensor: checks of new values, the place of its stored bytes, and the conversion to bytes."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _codec
from ..arguments import array_of
from ..dtypes import DType, as_dtype
from ..errors import UnsupportedError
from ..storage.mapped import MappedFile
from ..threads import ordered
from ..values.cast import CastCounts, cast_array, convert_into, elements_named, is_castable
from ..values.dense import read as read_dense
from ..values.tensorvalue import pack_tensor, stored_bytes
from ..wording import escape
from .lazy import LazyTensor
from .open_program import OpenProgram
from .places import RecordPlace
from .tensor import Tensor

_PIECE_COUNT = 1 << 20  # elements of values that are computed and written at a time
_ONE_BYTE = (DType.INT8, DType.UINT8)


class Stored(NamedTuple):
    """Where the stored bytes of a tensor are."""

    mapping: MappedFile  # the file
    # of the elements of a record, or of the TensorValue of an immediate; of one `is_in_text`, in the Program that was
    # read from it
    offset: int
    nbytes: int


def dtype_of(values: Any) -> DType:
    """Return the dtype of an array or of a tensor."""
    own = getattr(values, "mil_dtype", None)
    return own if own is not None else as_dtype(array_of(values).dtype)


def shape_of(values: Any) -> tuple[int, ...]:
    """Return the shape of an array or of a tensor."""
    return tuple(values.shape if hasattr(values, "shape") else np.shape(values))


def require_editable(tensor: Tensor) -> None:
    """Refuse a tensor whose stored bytes cannot be replaced.

    Raises: UnsupportedError: an immediate in a Program that protobuf had to put together. As looking up the tensor's
    record.
    """
    place = tensor.stored_place
    if isinstance(place, RecordPlace):
        with place.naming():
            place.record()
    else:
        cast(OpenProgram, tensor.program).require_edits()


def require_shape(tensor: Tensor, values: Any) -> None:
    """Refuse values of another shape. Raises: ValueError."""
    shape = shape_of(values)
    if shape != tensor.shape:
        raise ValueError(escape(f"{tensor.name}: expected shape {tensor.shape}, got {shape}"))


def is_fitting(dtype: DType, own: DType, can_cast: bool) -> bool:
    """Whether elements of dtype `own` can be given to a tensor; sub-byte ones may come one per byte."""
    return own is dtype or (dtype.is_sub_byte and own in _ONE_BYTE) or (can_cast and is_castable(own, dtype))


def require_fit(tensor: Tensor, values: Any) -> None:
    """Refuse values that cannot become those of a tensor as they are; does not look at their elements.

    Raises: UnsupportedError: a compressed weight. TypeError: another dtype. ValueError: another shape. As
    `require_editable`.
    """
    if tensor.compression:
        message = f"{tensor.name}: expected a weight that is stored dense, got {tensor.op}"
        raise UnsupportedError(f"{message} (its parts can be set: stored=True)")
    own = dtype_of(values)
    if not is_fitting(tensor.mil_dtype, own, False):
        raise TypeError(escape(f"{tensor.name}: expected elements of {tensor.mil_dtype}, got {own}"))
    require_shape(tensor, values)
    require_editable(tensor)


def stored_of(tensor: Tensor) -> Stored:
    """Return where the stored bytes of a tensor are, one that is `require_editable`."""
    place = tensor.stored_place
    if isinstance(place, RecordPlace):
        reader, record = place.record()
        return Stored(reader.mapping, record.data_offset, record.nbytes)
    return Stored(cast(OpenProgram, tensor.program).mapping, *tensor.constant.payload)


def is_in_text(tensor: Tensor) -> bool:
    """Whether the value stands in MIL text: new ones are not new bytes, but a new statement."""
    return not tensor.is_blob and cast(OpenProgram, tensor.program).is_text


def encode(
    tensor: Tensor, values: Any, *, can_cast: bool = False, overflow: str = "error"
) -> tuple[Any, np.ndarray[Any, Any], CastCounts]:
    """Return the stored bytes of new values: elements, or a TensorValue; the values themselves; and a cast's counts.

    `values`: array, or a tensor, which is read; known to fit. `can_cast`, `overflow`: as `refit`.
    Raises: OverflowError, TypeError, ValueError: an element outside the dtype; the message names the tensor. As reading
    `values`.
    """
    dtype, counts = tensor.mil_dtype, CastCounts()
    array = values.read() if hasattr(values, "mil_dtype") else array_of(values)
    with elements_named(tensor.name):
        if can_cast and dtype_of(values) is not dtype:
            array, counts = cast_array(array, dtype, overflow=overflow)
        data: Any = stored_bytes(array, dtype) if tensor.is_blob else memoryview(pack_tensor(array, dtype))
    return data, array, counts


def encoded_pieces(
    tensor: Tensor, values: LazyTensor, *, can_cast: bool, overflow: str
) -> Iterator[tuple[Any, CastCounts]]:
    """Yield the stored bytes of values that are computed, in order and a piece at a time, with the counts of each cast.

    `tensor`: of a weight file, dense, of floats. `values`: whose `place.is_computed`; known to fit. `can_cast`,
    `overflow`: as `refit`.
    Raises: As `encode`.
    """
    dense, dtype = values.place.dense(), tensor.mil_dtype
    if dense is None:
        data, _, counts = encode(tensor, values, can_cast=can_cast, overflow=overflow)
        yield data, counts
        return
    count, is_cast = values.size, can_cast and values.mil_dtype is not dtype
    unit = max(dense.unit, 1)
    step = max(_PIECE_COUNT // unit, 1) * unit

    def work(begin: int) -> tuple[np.ndarray[Any, Any], CastCounts]:
        found = read_dense(dense, None, begin, (min(step, count - begin),))
        if not is_cast:
            return found.view(np.uint8), CastCounts()
        out = np.empty(dtype.nbytes(found.size), np.uint8)
        source = _codec.Buffer(found.view(np.uint8))
        with elements_named(tensor.name):
            counts = convert_into(
                out, source, 0, found.size, values.mil_dtype, dtype, overflow=overflow, first_index=begin
            )
        return out, counts

    yield from ordered(work, range(0, count, step), count > step)
