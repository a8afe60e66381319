"""The stored parts of a compressed weight from new dense values: codes, scales, offsets, palettes and masks.

Pure functions of arrays, vectorised, a piece of the weight at a time. They know no Program and no file. Scales are
those of coremltools' `linear_quantize_weights`, bit for bit for float32.
"""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from .. import decibels
from .palettize import palettize
from .vectors import palettize_vectors

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]

_PIECE_COUNT = 1 << 18  # elements of temporaries, unless one row has more
_DISTANCES_COUNT = 1 << 20  # of vectors to the entries of a palette, at a time


class Range(NamedTuple):
    """Least and greatest code."""

    low: int
    high: int


def rows_of(shape: Shape) -> Iterator[slice]:
    """Yield ranges of the first axis that cover about _PIECE_COUNT elements each."""
    step = max(_PIECE_COUNT * shape[0] // max(prod(shape), 1), 1) if shape else 1
    for start in range(0, shape[0] if shape else 1, step):
        yield slice(start, min(start + step, shape[0] if shape else 1))


def spread(parameters: Array, shape: Shape, rows: slice) -> Array:
    """Return the parameter of each element of some rows, as an array that broadcasts against them.

    `parameters`: as many axes as `shape`; along each, `shape / parameters.shape` elements share one.
    """
    found: Array = parameters[np.arange(rows.start, rows.stop) // max(shape[0] // parameters.shape[0], 1)]
    for axis in range(1, len(shape)):
        count = parameters.shape[axis]
        if count not in (1, shape[axis]):
            found = np.repeat(found, shape[axis] // count, axis)
    return found


# ---------------------------------------------------------------------------------------------------- scale and offset


def quantize(values: Array, scale: Array, offset: Array | None, codes: Range) -> Array:
    """Return the codes whose values, scale * (code - offset), are nearest; beyond the ends, the last one.

    `values`: finite floats, of one axis or more. `scale`, `offset`: one for each block, as many axes as `values`.
    Returns: int16 codes of the shape of `values`.
    """
    out = np.empty(values.shape, np.int16)
    for rows in rows_of(values.shape):
        by = spread(scale, values.shape, rows).astype(values.dtype)
        with np.errstate(all="ignore"):
            steps = values[rows] / by
        steps[np.broadcast_to(by == 0, steps.shape)] = 0  # every code is worth 0 there
        if offset is not None:
            own = spread(offset, values.shape, rows)
            # A float offset shifts the value before rounding; an integer offset is added to the code.
            steps = np.rint(steps + own.astype(values.dtype)) if own.dtype.kind == "f" else np.rint(steps) + own
        else:
            steps = np.rint(steps)
        out[rows] = np.clip(steps, codes.low, codes.high)
    return out


def fit_scale(
    values: Array, counts: Shape, offset: Array | None, codes: Range, mask: Array | None = None
) -> tuple[Array, Array | None, Range]:
    """Return the scale and the offset of each block, fitted to its values, and the codes to use.

    Unsigned codes without offsets: the scale has the sign of the larger end. Offsets in the middle of the codes, or
    none for signed codes: the range is symmetric, and the largest magnitude gets the last code. Other offsets are
    fitted: the least and the greatest value get the first and the last code, and 0 is met exactly.

    `values`: finite floats. `counts`: number of blocks along each axis. `offset`: the present ones, which determine the
    mode; of shape `counts`. `codes`: of the dtype. `mask`: of the elements that count.
    Returns: (scale, offset, codes); offset is None if it was.
    """
    low, high = extremes(values, counts, mask)
    middle = middle_of(offset, codes)
    if middle is not None:
        room = min(middle - codes.low, codes.high - middle)
        most = np.maximum(np.abs(low), np.abs(high))
        return (most - -most) / (2 * room), offset, Range(middle - room, middle + room)
    if offset is None:  # unsigned codes: a scale has one sign, that of the larger end
        return np.where(high >= -low, high, low) / codes.high, None, codes
    low, high = np.minimum(low, 0), np.maximum(high, 0)
    with np.errstate(all="ignore"):
        scale = (high - low) / (codes.high - codes.low)
        new = (codes.low * high - codes.high * low) / (high - low)
    new = np.where(high > low, new, 0)
    if offset.dtype.kind != "f":
        new = np.rint(new)
    return scale, np.clip(new, codes.low, codes.high).astype(offset.dtype), codes


def fit_scale_alone(values: Array, scale: Array, offset: Array, codes: Range) -> Array:
    """Return the least scales under which no value lies beyond the codes, with the offsets unchanged.

    Used if only one of scale and offset is a single number, so that they cannot be fitted together. Ignores values on a
    side where the offset leaves no codes.

    `values`: finite floats. `scale`, `offset`: the present ones, of shapes that broadcast.
    """
    low, high = extremes(values, tuple(np.broadcast_shapes(scale.shape, offset.shape)))
    above, below = codes.high - offset.astype(values.dtype), offset.astype(values.dtype) - codes.low
    with np.errstate(all="ignore"):
        needed = np.maximum(np.where(above > 0, high / above, 0), np.where(below > 0, -low / below, 0))
    axes = tuple(axis for axis, count in enumerate(scale.shape) if count == 1)
    return np.asarray(np.maximum(needed, 0).max(axes, keepdims=True))


def middle_of(offset: Array | None, codes: Range) -> int | None:
    """Return the offset of a symmetric range; None if the range is not symmetric."""
    if offset is None:
        return 0 if codes.low < 0 else None
    values = np.unique(np.asarray(offset, np.float64))
    center = 0 if codes.low < 0 else (codes.high + 1) // 2
    return int(values[0]) if len(values) == 1 and values[0] in (center, center - (codes.low == 0)) else None


def extremes(values: Array, counts: Shape, mask: Array | None = None) -> tuple[Array, Array]:
    """Return the least and the greatest value of each block; 0 where it has no element, or where `mask` leaves none."""
    first = np.full(counts, np.inf, values.dtype)
    last = np.full(counts, -np.inf, values.dtype)
    shape = values.shape
    split = [size for axis in range(1, len(shape)) for size in (counts[axis], shape[axis] // counts[axis])]
    axes = tuple(range(2, 2 * len(shape), 2))
    for rows in rows_of(shape):
        piece = values[rows]
        numbers = np.arange(rows.start, rows.stop) // (shape[0] // counts[0])
        for out, ufunc, neutral in ((first, np.minimum, np.inf), (last, np.maximum, -np.inf)):
            part = piece if mask is None else np.where(mask[rows], piece, neutral).astype(values.dtype)
            reduced = ufunc.reduce(part.reshape(part.shape[0], *split), axis=axes, initial=neutral) if axes else part
            ufunc.at(out, numbers, reduced)
    for out in (first, last):
        out[~np.isfinite(out)] = 0
    return first, last


# ------------------------------------------------------------------------------------------------------------ palettes


def groups_of(shape: Shape, groups: Shape) -> Iterator[tuple[Shape, tuple[slice, ...]]]:
    """Yield (number, ranges) of each group of elements that share a palette."""
    sizes = [size // count for size, count in zip(shape, groups, strict=True)]
    for number in product(*map(range, groups)):
        yield number, tuple(slice(n * size, (n + 1) * size) for n, size in zip(number, sizes, strict=True))


def as_vectors(values: Array, vector: int, axis: int) -> Array:
    """Put the elements along an axis together as vectors: shape (*indices, vector)."""
    if vector == 1:
        return values[..., None]
    shape = values.shape
    split = values.reshape(*shape[:axis], shape[axis] // vector, vector, *shape[axis + 1 :])
    return np.moveaxis(split, axis + 1, -1)


def nearest(vectors: Array, palette: Array) -> Array:
    """Return the index of the entry that is nearest to each vector (Euclidean); of equal ones any.

    `vectors`: finite floats, shape (..., n). `palette`: shape (entries, n).
    Returns: uint8, shape (...).
    """
    if palette.shape[1] == 1:
        order = np.argsort(palette[:, 0], kind="stable")
        entries = palette[order, 0].astype(np.float64)
        middles = (entries[1:] + entries[:-1]) / 2
        flat = vectors.reshape(-1)
        out = np.empty(flat.size, np.uint8)
        for start in range(0, flat.size, _PIECE_COUNT):
            part = flat[start : start + _PIECE_COUNT]
            out[start : start + part.size] = order[np.searchsorted(middles, part)]
        return out.reshape(vectors.shape[:-1])
    return _nearest_vectors(vectors.reshape(-1, vectors.shape[-1]), palette.astype(np.float64)).reshape(
        vectors.shape[:-1]
    )


def _nearest_vectors(vectors: Array, entries: Array) -> Array:
    norms = (entries**2).sum(1)
    out = np.empty(len(vectors), np.uint8)
    step = max(_DISTANCES_COUNT // len(entries), 1)
    for start in range(0, len(vectors), step):
        part = vectors[start : start + step].astype(np.float64)
        out[start : start + len(part)] = (norms - 2 * (part @ entries.T)).argmin(1)
    return out


def fit_palette(vectors: Array, palette: Array) -> Array:
    """Return a palette fitted to vectors, with as many entries as the present one, as a new compression would fit it.

    `vectors`: finite float16 or float32, shape (count, n). Without any, the palette is unchanged. `palette`: shape
    (entries, n).
    """
    entries, length = palette.shape
    if not len(vectors):
        return palette
    nbits = entries.bit_length() - 1
    found = palettize(vectors, nbits) if length == 1 else palettize_vectors(vectors, nbits, vector=length, axis=1)
    return found.palettes.reshape(entries, length)


# --------------------------------------------------------------------------------------------------------------- masks


def fit_mask(values: Array, count: int) -> Array:
    """Return a mask of the `count` largest magnitudes; of equal ones the first."""
    sizes = np.abs(values.reshape(-1))
    mask: Array = np.zeros(sizes.size, bool)
    if count:
        least = np.partition(sizes, sizes.size - count)[sizes.size - count]
        mask = sizes > least
        mask[np.flatnonzero(sizes == least)[: count - int(np.count_nonzero(mask))]] = True
    return mask.reshape(values.shape)


# ------------------------------------------------------------------------------------------------------------- quality


def sqnr(values: Array, decoded: Array) -> float | None:
    """Return the signal-to-quantization-noise ratio in dB: infinite without noise, None for zeros with noise."""
    signal = noise = 0.0
    first, second = values.reshape(-1), decoded.reshape(-1)
    for start in range(0, first.size, _PIECE_COUNT):
        part = first[start : start + _PIECE_COUNT].astype(np.float64)
        signal += float(np.dot(part, part))
        part = part - second[start : start + _PIECE_COUNT].astype(np.float64)
        noise += float(np.dot(part, part))
    return None if noise and not signal else decibels.of_power(signal, noise)
