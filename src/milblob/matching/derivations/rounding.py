"""Whether computed values are those of a weight: to the bit, or to one rounding."""

import numpy as np

from ...dtypes import DType
from ...values.cast import cast_array, is_castable
from .layouts import Values

_ROUNDING = {DType.FLOAT64: 2.0**-22, DType.FLOAT32: 2.0**-22, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}
"""One unit in the last place of a number of each dtype, as a share of the number; float32 has two, for sums in another
order; float64 is computed in float32."""

_TINY = {DType.FLOAT64: 2.0**-126, DType.FLOAT32: 2.0**-126, DType.FLOAT16: 2.0**-24, DType.BFLOAT16: 2.0**-126}


MAX_KEPT = 400
"""Elements from which on an array is cast as it is; see `kept_from_zero`."""
_LEAST = 2.0**-24  # of float16


def kept_from_zero(values: Values, dtype: DType, count: int | None = None) -> Values:
    """Return values that are to be cast to float16 as coremltools casts them, where there are fewer than 400.

    Its pass add_fp16_cast keeps numbers that would become 0 as the least one, for they may be epsilons. `count`: of the
    array, where the values are others than its elements.
    """
    is_large = (values.size if count is None else count) >= MAX_KEPT
    if is_large or dtype is not DType.FLOAT16 or values.dtype not in (np.float32, np.float64):
        return values
    with np.errstate(invalid="ignore"):
        is_lost = (values != 0) & (np.abs(values) <= _LEAST / 2)
    return np.where(is_lost, np.copysign(_LEAST, values), values).astype(values.dtype) if is_lost.any() else values


def casts_to(values: Values, present: Values, dtype: DType, count: int | None = None) -> bool:
    """Whether values are the present ones of a dtype to the bit, once they are cast to it as coremltools does.

    `count`: elements of the weight, if these are those of several such weights. Default: as many as there are.
    """
    if values.size != present.size or not is_castable(values.dtype, dtype):
        return False
    try:
        return bool(each_casts_to(values.reshape(1, -1), present, dtype, count or present.size)[0])
    except OverflowError:
        return False


def each_casts_to(several: Values, present: Values, dtype: DType, count: int) -> Values:
    """Whether each of several arrays, [n, ...], is the present one, as `casts_to`: bool [n].

    `count`: elements of the weight; these may be a sample of them. Raises: OverflowError: an integer is out of range.
    """
    kept = kept_from_zero(several, dtype, count)
    cast = cast_array(np.ascontiguousarray(kept), dtype, overflow="inf")[0].reshape(len(several), -1)
    bits = f"u{dtype.numpy.itemsize}"
    return np.asarray((cast.view(bits) == np.ascontiguousarray(present).reshape(-1).view(bits)).all(axis=1))


def are_one_rounding_apart(values: Values, present: Values, dtype: DType) -> bool:
    """Whether every value is at most one unit in the last place (two in float32) from the present one."""
    if values.size != present.size or dtype not in _ROUNDING:
        return False
    x, y = (array.reshape(-1).astype(np.float64) for array in (values, present))
    with np.errstate(all="ignore"):
        apart = np.abs(x - y)
        return bool((apart <= np.maximum(np.abs(y) * _ROUNDING[dtype], _TINY[dtype])).all())
