"""Casts of values: the choice of the kernel, the policies for numbers that do not fit, and the counts."""

import contextlib
from collections.abc import Iterator
from operator import add
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .. import _codec
from ..dtypes import DType, as_dtype
from ..errors import FormatError, MilblobError
from . import parallel
from .tensorvalue import narrow

OVERFLOW_POLICIES = ("error", "inf", "clamp")
NAN_POLICIES = ("keep", "error")
CHUNK_COUNT = 1 << 16
"""Elements that NumPy casts at a time without a kernel, so that temporaries fit into the CPU cache."""

_KERNELS = {
    (DType.FLOAT32, DType.FLOAT16): _codec.CAST_F32_F16,
    (DType.FLOAT32, DType.BFLOAT16): _codec.CAST_F32_BF16,
    (DType.FLOAT16, DType.FLOAT32): _codec.CAST_F16_F32,
    (DType.BFLOAT16, DType.FLOAT32): _codec.CAST_BF16_F32,
    (DType.FLOAT16, DType.BFLOAT16): _codec.CAST_F16_BF16,
    (DType.BFLOAT16, DType.FLOAT16): _codec.CAST_BF16_F16,
}


class CastCounts(NamedTuple):
    """What happened to the elements of a cast.

    Attributes:
        overflow: finite values too large for the target: now infinite (NaN where it has no infinity), or clamped.
        nan: NaN before and after.
        underflow: nonzero before, zero afterwards.
    """

    overflow: int = 0
    nan: int = 0
    underflow: int = 0

    def plus(self, other: "CastCounts") -> "CastCounts":
        """Return the counts of two parts together."""
        return CastCounts(*map(add, self, other))


@contextlib.contextmanager
def elements_named(name: str) -> Iterator[None]:
    """Put the name of an array before the message of an error about its elements, dtype or shape."""
    try:
        yield
    except MilblobError:
        raise
    except (OverflowError, TypeError, ValueError) as error:
        kind = next(kind for kind in (OverflowError, TypeError, ValueError) if isinstance(error, kind))
        raise kind(f"{name}: {error}") from None


def require_policies(overflow: str, nan: str = "keep") -> None:
    """Refuse an unknown policy of casts. Raises: ValueError."""
    if not isinstance(overflow, str) or overflow not in OVERFLOW_POLICIES:
        raise ValueError(f"overflow: expected one of {', '.join(OVERFLOW_POLICIES)}, got {overflow!r}")
    if not isinstance(nan, str) or nan not in NAN_POLICIES:
        raise ValueError(f"nan: expected one of {', '.join(NAN_POLICIES)}, got {nan!r}")


def is_castable(src_dtype: Any, dst_dtype: Any) -> bool:
    """Whether convert_into and cast_array accept a pair of dtypes: two floats, two integers, or one dtype twice."""
    src, dst = as_dtype(src_dtype), as_dtype(dst_dtype)
    return src is dst or (src.is_float and dst.is_float) or (src.is_integer and dst.is_integer)


def convert_into(
    dst: Any,
    source: _codec.Buffer,
    offset: int,
    count: int,
    src_dtype: Any,
    dst_dtype: Any,
    *,
    overflow: str = "error",
    nan: str = "keep",
    first_index: int = 0,
) -> CastCounts:
    """Cast stored floats, rounding to nearest even; without the GIL between float32, float16 and bfloat16.

    Values equal those of NumPy's and ml_dtypes' astype bit for bit, NaNs included (include/milblob/kernels/float.h
    lists the results).

    Args:
        dst: writable buffer of exactly `count` elements of `dst_dtype`, any alignment; must not overlap `source`.
        source: held bytes, for instance a mapped file; little-endian elements at any alignment.
        src_dtype, dst_dtype: float dtypes: a DType, a name or a NumPy dtype.
        overflow: what happens to a finite number too large for `dst_dtype`: "error" raises, "inf" makes it infinite
            (NaN in float8_e4m3fn, which has no infinity), "clamp" makes it the largest finite number. Infinities are
            kept.
        nan: "keep" keeps NaNs, "error" raises.
        first_index: index of the first element in messages, where this is a part of a tensor.

    Returns:
        CastCounts.

    Raises:
        OverflowError: a number too large, under overflow="error"; the message has its index and value.
        ValueError: a NaN under nan="error", likewise; `dst` of another size; an unknown policy.
        TypeError: dtypes that are not both floats, or are the same.
        FormatError: `source` is too short.

    After an error the contents of `dst` are unspecified.
    """
    src_type, dst_type = as_dtype(src_dtype), as_dtype(dst_dtype)
    require_policies(overflow, nan)
    if src_type is dst_type or not src_type.is_float or not dst_type.is_float:
        raise TypeError(f"cast: expected two different float dtypes, got {src_type} and {dst_type}")
    kind = _KERNELS.get((src_type, dst_type))
    if kind is None:
        return _convert_by_numpy(dst, source, offset, count, src_type, dst_type, overflow, nan, first_index)
    counts = CastCounts(*parallel.cast(kind, source, offset, count, dst, overflow == "clamp"))
    for number, is_nan, policy in ((counts.overflow, False, overflow), (counts.nan, True, nan)):
        if number and policy == "error":
            index = _codec.cast_find(kind, source, offset, count, is_nan)
            if index == count:  # gone again
                message = f"elements that do not fit: expected {number} as counted before, got none"
                message += ": they changed while they were read"
                raise FormatError(message, offset=offset, file=source.name)
            at = offset + index * src_type.nbits // 8
            value = np.ndarray(1, src_type.numpy, source, at)[0]  # type: ignore[arg-type]
            raise _refusal(first_index + index, value, dst_type, is_nan)
    return counts


def cast_array(
    array: Any, dtype: Any, *, overflow: str = "error", nan: str = "keep"
) -> tuple[np.ndarray[Any, Any], CastCounts]:
    """Cast an array to another dtype of its kind: floats as convert_into does, integers with every value checked.

    Args:
        array: anything that NumPy makes an array of, in any memory order.
        dtype: DType, name or NumPy dtype. uint3 and uint6 give uint8 arrays.
        overflow, nan: as for convert_into; integers that do not fit are always an error.

    Returns:
        (array, counts): C-contiguous, of dtype.numpy and the same shape; the array itself if it already has that dtype
        (then nothing is counted).

    Raises:
        OverflowError, ValueError: as convert_into; the index is that of the flattened array.
        TypeError: a float for an integer, an integer for a float, or a dtype that MIL lacks.
    """
    array = np.asarray(array)
    target = as_dtype(dtype)
    own = as_dtype(array.dtype)
    require_policies(overflow, nan)
    if not is_castable(own, target):
        raise TypeError(f"array: expected elements of a dtype that can become {target}, got {own}")
    if own is target:
        return array, CastCounts()
    if own.is_integer:
        return narrow(array, target), CastCounts()
    out = np.empty(array.shape, target.numpy)
    flat = out.reshape(-1)
    counts = CastCounts()
    chunk_count = array.size if array.flags.c_contiguous and array.dtype == own.numpy else CHUNK_COUNT
    for start in range(0, array.size, max(chunk_count, 1)):
        # Each chunk of a strided array is copied, so the whole array never is.
        part = array.reshape(-1) if chunk_count == array.size else array.flat[start : start + chunk_count]
        source = _codec.Buffer(np.ascontiguousarray(part, own.numpy).view(np.uint8))
        into = flat[start : start + part.size].view(np.uint8)
        found = convert_into(into, source, 0, part.size, own, target, overflow=overflow, nan=nan, first_index=start)
        counts = counts.plus(found)
    return out, counts


def _convert_by_numpy(
    dst: Any,
    source: _codec.Buffer,
    offset: int,
    count: int,
    src_type: DType,
    dst_type: DType,
    overflow: str,
    nan: str,
    first_index: int,
) -> CastCounts:
    """The pairs that have no kernel (float64, fp8), in chunks."""
    total = CastCounts()
    try:
        values: np.ndarray[Any, Any] = np.ndarray(count, src_type.numpy, source, offset)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        message = f"elements at byte {offset}: expected {count} of {src_type}, got a buffer of {source.nbytes} bytes"
        raise FormatError(message, offset=offset, file=source.name) from None
    out = np.frombuffer(dst, dst_type.numpy)
    if out.size != count:
        raise ValueError(f"dst: expected {dst_type.nbytes(count)} bytes, got {out.nbytes}")
    largest = ml_dtypes.finfo(dst_type.numpy).max  # type: ignore[no-untyped-call]
    for start in range(0, count, CHUNK_COUNT):
        # A copy, because it is read several times, and another thread may change the array.
        part, into = values[start : start + CHUNK_COUNT].copy(), out[start : start + CHUNK_COUNT]
        with np.errstate(all="ignore"):
            into[...] = part.astype(dst_type.numpy)
            is_nan = np.isnan(part)
            too_large = np.isfinite(part) & ~np.isfinite(into)
            to_zero = (part != 0) & (into == 0)
        for bad, named, policy in ((too_large, False, overflow), (is_nan, True, nan)):
            if policy == "error" and bad.any():
                index = int(bad.argmax())
                raise _refusal(first_index + start + index, part[index], dst_type, named)
        if overflow == "clamp":
            into[too_large] = np.where(np.signbit(part[too_large]), -largest, largest)
        total = total.plus(CastCounts(*(int(np.count_nonzero(bad)) for bad in (too_large, is_nan, to_zero))))
    return total


def _refusal(index: int, value: Any, dst_type: DType, is_nan: bool) -> Exception:
    if is_nan:
        return ValueError(f"element {index}: expected a number, got nan")
    largest = float(ml_dtypes.finfo(dst_type.numpy).max)  # type: ignore[no-untyped-call]
    return OverflowError(f"element {index}: expected at most {largest:.9g} in magnitude, got {float(value):.9g}")
