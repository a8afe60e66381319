"""NaN and infinity in palettized and pruned weights: kept where the result can hold them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..lossy.unfit import UnfitError, refuse_not_finite
from ..values.strided import Empty, computed, not_finite, ranges

Array = np.ndarray[Any, Any]

_FAR = 1 << 22
"""Where infinity is put, if all finite elements are within -1 and 1. A palette of the least squared error gives what is
so far away an entry of its own: with anything else it would lose more than all finite elements of 2^40 together."""

_TESTS: dict[str, Callable[[Array], Array]] = {"posinf": np.isposinf, "neginf": np.isneginf, "nan": np.isnan}
_PLACES = {"posinf": 1, "neginf": -1, "nan": 2}


def palettize_all(array: Array, fit: Callable[[Array], Any], empty: Empty) -> Any:
    """Palettize an array with NaN or infinite elements; each such value gets a palette entry of its own.

    `array`: float16 or float32. `fit`: returns the Palettized of a finite float32 array. `empty`: makes that array.
    Raises: UnfitError: there are not enough entries.
    """
    kinds = {"posinf": 0, "neginf": 0, "nan": 0}
    most = np.float32(0)
    for _, piece in ranges(array):
        wide = _wide(piece)
        most = max(most, np.abs(wide[np.isfinite(wide)]).max(initial=0.0))
        for kind, test in _TESTS.items():
            kinds[kind] = kinds[kind] or int(test(wide).any())
    exponent = int(np.frexp(most)[1])

    def finite(box: tuple[slice, ...]) -> Array:
        wide = _wide(array[box])
        with np.errstate(invalid="ignore"):
            moved = np.ldexp(wide, -exponent)
        for kind, test in _TESTS.items():
            moved[test(wide)] = _PLACES[kind] * _FAR
        return moved

    made = fit(computed(array.shape, np.float32, finite, empty))
    entries = made.palettes
    with np.errstate(over="ignore"):
        restored = np.ldexp(entries, exponent).astype(array.dtype)
    for kind, number in ("posinf", np.inf), ("neginf", -np.inf), ("nan", np.nan):
        restored[entries == _PLACES[kind] * _FAR] = number
    if np.any((np.abs(entries) > 1) & np.isfinite(restored)):
        message = f"expected more entries than the {sum(kinds.values())} kinds of NaN and infinity need"
        raise UnfitError(f"{message}, got {1 << made.nbits}")
    return made._replace(palettes=restored, gap=float("nan"))


def _wide(array: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return array.astype(np.float32)


def require_finite(array: Array) -> None:
    """Refuse NaN and infinity. Raises: UnfitError: with their number."""
    refuse_not_finite(not_finite(array))


def in_place_of(array: Array, empty: Empty) -> Array:
    """Return an array with NaN and infinity replaced by the largest magnitude, so that pruning takes them last."""
    top = np.finfo(array.dtype).max
    return computed(array.shape, array.dtype, lambda box: np.where(np.isfinite(array[box]), array[box], top), empty)
