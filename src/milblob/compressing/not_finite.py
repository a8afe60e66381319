"""NaN and infinity in weights that are palettized or pruned: kept as they are, where the result can hold them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from .pieces import NotCompressibleError

Array = np.ndarray[Any, Any]

_FAR = 1 << 22
"""Where infinity is put, if all finite elements are within -1 and 1. A palette of the least squared error gives what is
so far away an entry of its own: with anything else it would lose more than all finite elements of 2^40 together."""


def palettize_all(array: Array, fit: Callable[[Array], Any]) -> Any:
    """Palettize an array of which some elements are NaN or infinite; these get entries of their own.

    Args:
        array: float16 or float32.
        fit: returns the Palettized of a finite float32 array.

    Raises:
        NotCompressibleError: there are not enough entries.
    """
    is_finite = np.isfinite(array)
    with np.errstate(invalid="ignore"):  # a signalling NaN among them
        wide = array.astype(np.float32)
        exponent = int(np.frexp(np.abs(wide[is_finite]).max(initial=0.0))[1])
        wide = np.ldexp(wide, -exponent)
    for value, is_it in (1, np.isposinf(array)), (-1, np.isneginf(array)), (2, np.isnan(array)):
        wide[is_it] = value * _FAR
    made = fit(wide)
    entries = made.palettes
    with np.errstate(over="ignore"):
        restored = np.ldexp(entries, exponent).astype(array.dtype)
    for number, place in (np.inf, _FAR), (-np.inf, -_FAR), (np.nan, 2 * _FAR):
        restored[entries == place] = number
    if np.any((np.abs(entries) > 1) & np.isfinite(restored)):
        kinds = int(sum(one.any() for one in (np.isposinf(array), np.isneginf(array), np.isnan(array))))
        words = f"expected more entries than the {kinds} kinds of NaN and infinity need, got {1 << made.nbits}"
        raise NotCompressibleError(words)
    return made._replace(palettes=restored, gap=float("nan"))


def require_finite(array: Array) -> None:
    """Refuse NaN and infinity. Raises: NotCompressibleError: with their number."""
    bad = int(np.count_nonzero(~np.isfinite(array)))
    if bad:
        raise NotCompressibleError(f"array: expected finite elements, got {bad} that are NaN or infinite")


def in_place_of(array: Array) -> Array:
    """Return an array in which the largest magnitude stands for NaN and infinity, so that pruning takes them last."""
    return np.where(np.isfinite(array), array, np.finfo(array.dtype).max).astype(array.dtype)
