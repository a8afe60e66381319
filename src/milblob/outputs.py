"""Arrays that a caller gives to be filled: whether they fit, and whether values can be computed right into them.

New arrays are `np.empty`: NumPy asks the system for huge pages where they are large. For memory that is warm already,
which is faster still, there is `out=`.
"""

from typing import Any, cast

import numpy as np

Array = np.ndarray[Any, Any]


def require_fit(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Refuse an output array of another dtype or shape.

    Raises:
        TypeError: no array.
        ValueError: another dtype or shape.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out: expected a NumPy array, got {type(out).__name__}")
    if out.dtype != dtype:
        raise ValueError(f"out: expected dtype {dtype}, got {out.dtype}")
    if out.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {out.shape}")


def place(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...], source: Any = None) -> Array:
    """Return the array to compute values in: `out` itself if it will do, else a new one, for `deliver` to copy.

    Args:
        out: array to fill, or None.
        dtype, shape: of the values.
        source: buffer that they are computed from, which must not be written to before it is read.

    Raises:
        As `require_fit`.
    """
    if out is None:
        return np.empty(shape, dtype)
    require_fit(out, dtype, shape)
    flags = out.flags
    will_do = flags.c_contiguous and flags.writeable and flags.aligned and dtype.isnative
    if will_do and (source is None or not np.may_share_memory(out, np.frombuffer(source, np.uint8))):
        return cast(Array, out)
    return np.empty(shape, dtype)


def deliver(out: Any, values: Array) -> Array:
    """Return `out` with `values` in it; `values` if `out` is None.

    Raises:
        As `require_fit`; ValueError: a read-only array.
    """
    if out is None or out is values:
        return values
    require_fit(out, values.dtype, values.shape)
    np.copyto(out, values)
    return cast(Array, out)
