"""Palettes chosen by a function that the user gives, called as coremltools' mode "custom" calls it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arguments import array_of
from ..values.strided import Empty, boxes
from .loss import Loss
from .palettize import NBITS, Palettized
from .unfit import UnfitError

Array = np.ndarray[Any, Any]


def custom_palettes(
    array: Array, function: Callable[[Array], Any], *, axis: int = 0, group_size: int | None = None, vector: int = 1,
    empty: Empty = np.empty,
) -> Palettized:  # fmt: skip
    """Call a function for each group of channels, and check its result.

    Args:
        array: float16 or float32.
        function: called with a group, its channels first; returns (entries, indices): at most 256 numbers, or vectors
            of numbers, and the index of each element or vector in row-major order.
        axis: of the channels, and of the vectors.
        group_size: number of channels that share a palette; None: all.
        vector: elements of an entry.
        empty: makes the copies of groups that the function gets, and the array of the indices.

    Returns:
        Palettized; its gap is nan.

    Raises:
        ValueError: groups or vectors that do not divide the channels; something else returned.
    """
    if array.size == 0:
        raise UnfitError(f"array: expected elements, got shape {array.shape}")
    channels = array.shape[axis]
    size = channels if group_size is None else group_size
    if not 1 <= size <= channels or channels % size:
        raise UnfitError(f"group_size: expected a divisor of {channels}, the channels of axis {axis}, got {size}")
    if size % vector:
        raise UnfitError(f"vector: expected a divisor of the {size} channels of a palette, got {vector}")
    turned = np.swapaxes(array, 0, axis)
    shape = list(array.shape)
    shape[axis] //= vector
    indices = empty(tuple(shape), np.uint8)
    places = np.swapaxes(indices, 0, axis)
    entries: list[Array] = []
    loss = Loss()
    for first in range(0, channels, size):
        group = turned[first : first + size]
        copy = empty(group.shape, group.dtype)
        copy[...] = group
        found, codes = _checked(function(copy), group.size // vector, vector, array.dtype)
        entries.append(found)
        into = places[first // vector : (first + size) // vector]
        into[...] = codes.reshape(into.shape)
        loss = loss.plus(_measured(group, into, found, vector))
    nbits = next(n for n in NBITS if max(map(len, entries)) <= 1 << n)
    palettes = np.zeros((len(entries), 1 << nbits, vector), array.dtype)
    for number, found in enumerate(entries):
        palettes[number, : len(found)] = found
    wanted = [1] * array.ndim + [1 << nbits, vector]
    wanted[axis] = len(entries)
    return Palettized(indices, palettes.reshape(wanted), nbits, loss)


def _measured(group: Array, codes: Array, entries: Array, vector: int) -> Loss:
    """Return what is lost of a group, whose channels come first."""
    loss = Loss()
    for box in boxes(codes.shape):
        first = slice(box[0].start * vector, box[0].stop * vector)
        wide = group[(first, *box[1:])].astype(np.float64)
        dense = np.moveaxis(entries[codes[box]], -1, 1).reshape(wide.shape).astype(np.float64)
        lost = dense - wide
        loss = loss.plus(Loss(float(np.sum(lost**2)), float(np.sum(wide**2)), float(np.abs(lost).max(initial=0.0))))
    return loss


def _checked(returned: Any, count: int, vector: int, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Check and return the entries, shape (entries, vector), and the indices."""
    try:
        entries, codes = map(array_of, returned)
        if entries.dtype.kind in "cO":  # NumPy would drop the imaginary part, and turn None into NaN
            raise TypeError(f"expected real numbers as entries, got {entries.dtype}")
        entries, codes = entries.astype(np.float64), codes.reshape(-1)
    except (TypeError, ValueError) as error:
        message = "lut_function: expected (entries, indices) from it, got something else"
        raise ValueError(f"{message} ({error})") from None
    if entries.ndim == 1 and vector == 1:
        entries = entries[:, None]
    if entries.ndim != 2 or entries.shape[1] != vector or not 1 <= len(entries) <= 256:
        message = f"1 to 256 entries{f' of {vector} numbers' if vector > 1 else ''}"
        raise ValueError(f"lut_function: expected {message} from it, got shape {entries.shape}")
    if codes.size != count or codes.dtype.kind not in "iu":
        message = f"{codes.size} of {codes.dtype}"
        raise ValueError(f"lut_function: expected {count} integers as indices from it, got {message}")
    if codes.min() < 0 or codes.max() >= len(entries):
        message = f"{codes.min()} to {codes.max()}"
        raise ValueError(f"lut_function: expected indices of its {len(entries)} entries, got {message}")
    with np.errstate(over="ignore"):
        return entries.astype(dtype), codes.astype(np.uint8, copy=False)
