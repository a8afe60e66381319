"""Whether computed values are those of a weight: to the bit, or to one rounding."""

from typing import Any

import numpy as np

from ..dtypes import DType
from ..values.cast import cast_array, is_castable

Values = np.ndarray[Any, Any]

_ROUNDING = {DType.FLOAT64: 2.0**-22, DType.FLOAT32: 2.0**-22, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}
"""One unit in the last place of a number of each dtype, as a share of the number; float32 has two, for sums in another
order; float64 is computed in float32."""

_TINY = {DType.FLOAT64: 2.0**-126, DType.FLOAT32: 2.0**-126, DType.FLOAT16: 2.0**-24, DType.BFLOAT16: 2.0**-126}


def casts_to(values: Values, present: Values, dtype: DType) -> bool:
    """Whether values are the present ones of a dtype to the bit, once they are cast to it."""
    if values.size != present.size or not is_castable(values.dtype, dtype):
        return False
    try:
        cast = cast_array(np.ascontiguousarray(values), dtype, overflow="inf")[0].reshape(-1)
    except OverflowError:
        return False
    return bool(np.array_equal(cast.view(np.uint8), np.ascontiguousarray(present).reshape(-1).view(np.uint8)))


def are_one_rounding_apart(values: Values, present: Values, dtype: DType) -> bool:
    """Whether every value is at most one unit in the last place (two in float32) from the present one."""
    if values.size != present.size or dtype not in _ROUNDING:
        return False
    x, y = (array.reshape(-1).astype(np.float64) for array in (values, present))
    with np.errstate(all="ignore"):
        apart = np.abs(x - y)
        return bool((apart <= np.maximum(np.abs(y) * _ROUNDING[dtype], _TINY[dtype])).all())
