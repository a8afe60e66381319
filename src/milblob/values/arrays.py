"""Output arrays (`out=`): refused if they do not fit, written directly if possible."""

from collections.abc import Callable
from typing import Any

import numpy as np


def require_fit(out: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
    """Refuse an output array of another dtype or shape, or whose elements share memory.

    Raises: TypeError: not an array. ValueError: another dtype or shape, a read-only or masked array, or one whose
    elements share memory.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out: expected a NumPy array, got {type(out).__name__}")
    if out.dtype != dtype:
        raise ValueError(f"out: expected dtype {dtype}, got {out.dtype}")
    if out.shape != shape:
        raise ValueError(f"out: expected shape {shape}, got {out.shape}")
    if not out.flags.writeable:
        raise ValueError("out: expected a writable array, got a read-only one")
    if type(out) is not np.ndarray and np.count_nonzero(getattr(out, "mask", False)):
        raise ValueError("out: expected an array without masked elements, which hide the values, got one with some")
    if not out.flags.forc and _has_overlap(out):
        raise ValueError(f"out: expected memory of its own for each element, got strides {out.strides} for {shape}")


def _has_overlap(array: np.ndarray[Any, Any]) -> bool:
    """Whether elements share memory, or have strides that only as_strided makes, for which the answer is expensive."""
    nbytes = array.itemsize  # that all dimensions with smaller strides span
    for stride, size in sorted((abs(stride), size) for stride, size in zip(array.strides, array.shape, strict=True)):
        if size > 1:
            if stride < nbytes:
                return array.size > 0
            nbytes += stride * (size - 1)
    return False


def sound_bools(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return bools as bytes 0 and 1, which files hold; foreign bytes that are seen as bools may be others: they mean 1.

    The array itself where it is so already.
    """
    stored = array.view(np.uint8)
    return stored != 0 if stored.size and int(stored.max()) > 1 else array


def copy_into(out: np.ndarray[Any, Any], values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copy `values` to `out`, which must have their dtype and as many elements; return `out`.

    Raises: TypeError: not an array. ValueError: as `require_fit`.
    """
    require_fit(out, values.dtype, values.shape)
    # NumPy lets elements that it writes overtake those that it reads if memory overlaps and one has larger steps.
    into = np.asarray(out)  # a subclass may copy in a way of its own
    is_risky = into.strides != values.strides and np.may_share_memory(into, values)
    np.copyto(into, values.copy() if is_risky else values)
    return out


def filled(
    out: np.ndarray[Any, Any] | None,
    dtype: np.dtype[Any],
    shape: tuple[int, ...],
    fill: Callable[[np.ndarray[Any, Any]], object],
) -> np.ndarray[Any, Any]:
    """Return an array of `dtype` and `shape`, a new one or `out`, that `fill` has written.

    `out`: array of that dtype and shape, or None. It is written directly if it is aligned and contiguous, else by a
    copy. Its contents after an exception are unspecified. `fill`: takes a C-contiguous, aligned array, none of a
    subclass of ndarray, and writes every element.
    Raises: As `copy_into`, and any error of `fill`.
    """
    if out is not None:
        require_fit(out, dtype, shape)
        if out.flags.carray:
            fill(np.asarray(out))
            return out
    values = np.empty(shape, dtype)
    fill(values)
    return values if out is None else copy_into(out, values)
