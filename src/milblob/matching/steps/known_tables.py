"""Recognises tables that code computes and no checkpoint has: positions, masks, ranges, grids.

A table is recognised by the law that all its elements keep, to the rounding of its dtype: a sinusoid of positions, an
affine function of the indices, or a few literal numbers. A trained array keeps none of them. What the law leaves open
(frequencies, slopes) may still come from the checkpoint: `Known.coefficients` has it, for the caller to compare.
"""

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

import numpy as np

from ...dtypes import DType
from ..derivations.layouts import Values
from .literals import Literals

_MIN_LENGTH = 6  # positions; fewer keep every law by accident
_MAX_FEW = 8  # distinct numbers of a mask
_MAX_COMPONENTS = 8  # coordinates of a grid
_MAX_NBYTES = 1 << 28
_MASKED = -1000.0  # masks have this or less where nothing is to be seen
_PRECISE = 1e-3  # above it, a float16 has all of its bits
_MAX_FACTOR = 0.98  # else all are almost 1
_LEAST = 2.0**-24  # of float16
_CLEAR = 8.0  # times its rounding, that what varies must vary
_EPSILON = {DType.FLOAT64: 2.0**-23, DType.FLOAT32: 2.0**-23, DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7}


class Known(NamedTuple):
    """The law of a table."""

    words: str  # for people
    # arrays of numbers that the law leaves open, such as frequencies: may be those of a checkpoint
    coefficients: tuple[Values, ...] = ()


def recognise(values: Values, dtype: DType, literals: Literals) -> Known | None:
    """Identify a table; None if it follows no known law."""
    if dtype not in _EPSILON or values.size < 2 or values.size * 8 > _MAX_NBYTES:
        return None
    few = np.unique(values.reshape(-1)[:: max(values.size // 4096, 1)])
    is_few = few.size <= _MAX_FEW and np.unique(values).size <= _MAX_FEW
    if is_few and literals.has(values, dtype):
        numbers = [f"{number:g}" for number in np.unique(values)]
        if set(np.unique(values).tolist()) <= {-1.0, 1.0} and values.size > 1 and len(numbers) == 2:
            return Known("signs", (values,))  # perhaps those of an array
        return Known(f"only the numbers {', '.join(numbers)}")
    if is_few and values.min() <= _MASKED and values.max() == 0 and len(np.unique(values)) == 2:
        return Known("a mask")
    wide = values.astype(np.float64)
    if not np.isfinite(wide).all():
        return None
    if bool((2 * wide == np.rint(2 * wide)).all()) and np.abs(wide).max() < (
        1024 if dtype is DType.FLOAT16 else 1 << 20
    ):
        return Known("integers and halves")
    return _powers(wide, dtype) or _affine(wide, dtype, literals) or _sinusoids(wide, dtype, literals)


def _powers(values: Values, dtype: DType) -> Known | None:
    """Recognise the frequencies of rotary positions: 1, f, f^2, f^3, ... with f below 1."""
    series = values.reshape(-1)
    if series.size < 2 * _MIN_LENGTH or series.size != max(values.shape) or series[0] != 1 or not (series > 0).all():
        return None
    last = int(np.flatnonzero(series > _PRECISE)[-1])
    factor = series[last] ** (1 / max(last, 1))
    expected = factor ** np.arange(series.size)
    is_near = np.abs(series - expected) <= 2 * _EPSILON[dtype] * expected + _LEAST
    return Known("frequencies of rotary positions", (series,)) if factor < _MAX_FACTOR and is_near.all() else None


def _affine(values: Values, dtype: DType, literals: Literals) -> Known | None:
    """Recognise ranges and grids: each component an affine function of the indices of the other axes.

    The numbers at its corners must be literals, or the slopes of the components a geometric series, as ALiBi's are.
    """
    shape = tuple(size for size in values.shape if size != 1)
    table = values.reshape(shape)
    for axis in (None, *(at for at, size in enumerate(shape) if size <= _MAX_COMPONENTS or len(shape) > 2)):
        parts = table[None] if axis is None else np.moveaxis(table, axis, 0)
        if parts[0].size < _MIN_LENGTH or max(parts.shape[1:]) < _MIN_LENGTH:
            continue
        slopes = [_plane(part, dtype) for part in parts]
        if any(slope is None for slope in slopes):
            continue
        steepest = np.asarray([max(slope or [0.0], key=abs) for slope in slopes])
        corners = parts.reshape(len(parts), -1)[:, [0, -1]]
        if literals.has(corners.astype(dtype.numpy), dtype) or _is_geometric(steepest):
            return Known("a range of the indices", (steepest,))
    return None


def _plane(part: Values, dtype: DType) -> list[float] | None:
    """Return the slopes of an affine function of the indices; None if it is none, or hardly varies."""
    tolerance = 2 * _EPSILON[dtype] * max(float(np.abs(part).max()), 1e-30)
    origin = float(part.flat[0])
    slopes, expected = [], np.full(part.shape, origin)
    for axis, size in enumerate(part.shape):
        last = [0] * part.ndim
        last[axis] = size - 1
        slopes.append((float(part[tuple(last)]) - origin) / max(size - 1, 1))
        expected += slopes[-1] * np.arange(size).reshape([-1 if at == axis else 1 for at in range(part.ndim)])
    return slopes if np.abs(part - expected).max() <= tolerance < np.ptp(part) / _CLEAR else None


def _is_geometric(numbers: Values) -> bool:
    size = np.abs(numbers)
    if size.size < 3 or not size.all():
        return False
    steps = np.diff(np.log(np.sort(size)))
    return bool(
        np.median(steps) > 0 and (np.abs(steps - np.median(steps)) <= 0.02 * np.median(steps) + 1e-3).mean() > 0.6
    )


def _sinusoids(values: Values, dtype: DType, literals: Literals) -> Known | None:
    """Recognise sines and cosines of positions, in any order of columns, along any axis; of rows and columns too.

    Frequencies must be a geometric series, or multiples of one, and the amplitude one literal.
    """
    shape = tuple(size for size in values.shape if size != 1)
    table = values.reshape(shape)
    for axis, size in enumerate(shape):
        columns = np.moveaxis(table, axis, 0).reshape(size, -1)
        if len(shape) == 1 or size < _MIN_LENGTH or columns.shape[1] < 2:
            continue
        for parts in _one_axis(columns, size):
            found = [_waves(part, dtype) for part in parts]
            if any(wave is None for wave in found):
                continue
            waves = np.concatenate([wave for wave in found if wave is not None], axis=1)
            if not waves.size:
                continue
            frequencies, amplitude = np.unique(waves[0].round(3)), float(np.median(waves[1]))
            is_usual = abs(amplitude - 1) < 2e-3 or literals.has(np.asarray([amplitude], np.float16), DType.FLOAT16)
            if is_usual and (np.abs(waves[1] / amplitude - 1) < 0.05).all() and _is_series(frequencies):
                return Known("sines and cosines of positions", (frequencies,))
    return None


def _is_series(frequencies: Values) -> bool:
    """Whether frequencies are a geometric or an arithmetic series; of one or two, whether one is 1."""
    if len(frequencies) < 3:
        return bool((np.abs(frequencies - 1) < 1e-2).any())
    steps = np.diff(frequencies)
    return _is_geometric(frequencies) or bool((np.abs(steps - np.median(steps)) <= 0.02 * np.median(steps)).all())


def _one_axis(columns: Values, size: int) -> Iterator[list[Values]]:
    """Yield columns as sequences of equal steps: as they are; or of a grid, along its rows and along its columns."""
    yield [columns]
    for width in range(_MIN_LENGTH, size // _MIN_LENGTH + 1):
        if size % width:
            continue
        grid = columns.reshape(size // width, width, -1)
        is_of_row = (grid == grid[:, :1]).all(axis=(0, 1))
        is_of_column = (grid == grid[:1]).all(axis=(0, 1))
        if (is_of_row | is_of_column).all():
            yield [part for part in (grid[:, 0, is_of_row], grid[0][:, is_of_column & ~is_of_row]) if part.size]


def _waves(table: Values, dtype: DType) -> Values | None:
    """Return frequency and amplitude of the columns that determine them, [2, columns]; None if one is not a sinusoid.

    Prony's method for one frequency: a sinusoid fulfils x[i + 1] + x[i - 1] = 2 cos(frequency) x[i], so the frequency
    is a linear least-squares fit, without a search.
    """
    inner, both = table[1:-1], table[2:] + table[:-2]
    with np.errstate(all="ignore"):
        twice = (inner * both).sum(axis=0) / (inner * inner).sum(axis=0)  # 2 cos(frequency), by least squares
    size = np.abs(table).max()  # of all columns: they have one amplitude
    frequency = np.arccos(np.clip(np.nan_to_num(twice, nan=2.0), -2, 2) / 2)
    slack = size * (4 * _EPSILON[dtype] + 4 * 2.0**-24 * np.maximum(frequency * len(table), 1))
    if (np.abs(both - 2 * np.cos(frequency) * inner) > 4 * slack).any():
        return None
    is_clear = np.ptp(table, axis=0) > _CLEAR * 4 * slack
    if 2 * is_clear.sum() < (np.ptp(table, axis=0) > 0).sum():
        return None
    least = 0.2 if dtype in (DType.FLOAT16, DType.BFLOAT16) else 0.05  # lower ones are weak evidence
    distinct = np.flatnonzero(is_clear & (frequency > least) & (frequency < np.pi - least))
    places = np.arange(len(table))
    amplitudes = []
    for at in distinct:
        waves = np.stack([np.cos(places * frequency[at]), np.sin(places * frequency[at])], axis=1)
        amplitudes.append(float(np.hypot(*np.linalg.lstsq(waves, table[:, at], rcond=None)[0])))
    return np.stack([frequency[distinct], np.asarray(amplitudes)])


def resembles(coefficients: Values, array: Values) -> bool:
    """Whether the free parameters of a law are an array of a checkpoint, to the rounding of half precision."""
    if coefficients.size < 2 or prod(array.shape) != coefficients.size:
        return False
    x, y = (np.sort(values.reshape(-1).astype(np.float64)) for values in (coefficients, array))
    return bool(np.allclose(x, y, rtol=2e-3, atol=1e-6) and np.ptp(x) > 0)
