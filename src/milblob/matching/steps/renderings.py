"""Whether compressed values are a rendering of dense ones: rounded, palettized or pruned, and nothing else."""

import math

import numpy as np

from ... import decibels
from ...model.lazy import LazyTensor
from ..derivations.layouts import Values, spread
from ..model_weights import is_compressed

_MIN_SQNR = 3.0  # dB; palettes of 2 entries reach 4
_MAX_SHARE = 0.02  # of the elements may miss: borders between entries move when entries are rounded
_SLACK = 2e-3  # of a value: float16, and scales of float16
_FEW_ROWS = 16
_MIN_CORRELATION = 0.5  # of a sample
_MIN_COUNT = 16


def sqnr_of(
    values: Values, rendered: Values, block: tuple[int, ...] | None = None, share: float = _MAX_SHARE
) -> float | None:
    """Return in dB how near compressed values are to dense ones; None if they are something else.

    Rounding and palettization take the nearest number that there is. Pruning keeps numbers, or makes them 0. So every
    number that is not 0 must be the nearest of those that occur. If a channel was multiplied in between, as a batch
    norm does, many numbers are not the nearest, even under coarse compression.

    Args:
        values: values that may have been compressed. rendered: the compressed values, decoded. Of one shape.
        block: shape of the blocks that have a scale or a palette of their own; None for the whole.
        share: of the elements that may miss.
    """
    x, y = (_blocks(array.astype(np.float64), block) for array in (values, rendered))
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    signal, noise = float((x * x).sum()), float(((x - y) ** 2).sum())
    found = decibels.of_power(signal, noise)
    if found == math.inf:
        return found
    if found < _MIN_SQNR:
        return None
    is_kept = y != 0
    missed = np.count_nonzero(~_is_nearest(x, y)[is_kept])
    return found if missed <= max(share * np.count_nonzero(is_kept), 2) else None


def may_render(values: Values, rendered: Values, block: tuple[int, ...] | None) -> bool:
    """Whether a few rows allow that compressed values are a rendering of dense ones: most arrays end here."""
    rows = block[0] if block is not None and block[0] > _FEW_ROWS else _FEW_ROWS
    if 2 * rows >= len(values):
        return True
    few, part = values[:rows], rendered[:rows]
    inside = None if block is None else (min(block[0], rows), *block[1:])
    return bool(not part.any() or sqnr_of(few, part, inside, 2 * _MAX_SHARE) is not None)


def _is_nearest(x: Values, y: Values) -> Values:
    """Return for [blocks, elements] whether each y is the nearest to x of the numbers that y has in its block."""
    order = np.argsort(y, axis=1, kind="stable")
    levels = np.take_along_axis(y, order, axis=1)
    is_new = np.diff(levels, axis=1) > 0
    below, above = np.full_like(levels, -np.inf), np.full_like(levels, np.inf)
    below[:, 1:][is_new] = levels[:, :-1][is_new]
    above[:, :-1][is_new] = levels[:, 1:][is_new]
    below = np.maximum.accumulate(below, axis=1)  # within equal numbers, the first knows what is below
    above = np.minimum.accumulate(above[:, ::-1], axis=1)[:, ::-1]
    sorted_x = np.take_along_axis(x, order, axis=1)
    apart = np.abs(sorted_x - levels)
    slack = _SLACK * np.abs(levels)
    nearest: Values = (apart <= np.abs(sorted_x - below) + slack) & (apart <= np.abs(sorted_x - above) + slack)
    result = np.empty_like(nearest)
    np.put_along_axis(result, order, nearest, axis=1)
    return result


def _blocks(array: Values, block: tuple[int, ...] | None) -> Values:
    """Return an array as [blocks, elements]."""
    if block is None or len(block) != array.ndim:
        return array.reshape(1, -1)
    split = [size for whole, part in zip(array.shape, block, strict=True) for size in (whole // part, part)]
    count = array.ndim
    turned = array.reshape(split).transpose(*range(0, 2 * count, 2), *range(1, 2 * count, 2))
    return np.ascontiguousarray(turned).reshape(-1, math.prod(block))


def block_of(weight: LazyTensor) -> tuple[int, ...] | None:
    """Return the shape of the blocks of a compressed weight that have a scale or a palette of their own."""
    block = list(weight.shape)
    for key, part in getattr(weight, "parts", {}).items():
        inner = block_of(part) if is_compressed(part) else None
        shape = part.shape
        if key == "scale" and len(shape) == 1 < len(weight.shape):
            axis = next((at for at, size in enumerate(weight.shape) if size == shape[0] > 1), None)
            if axis is not None:
                block[axis] = 1
        elif key in ("scale", "lut") and len(shape) >= len(block):
            for at, size in enumerate(weight.shape):
                if shape[at] and size % shape[at] == 0:
                    block[at] = math.gcd(block[at], size // shape[at])
        if inner is not None and len(inner) == len(block) and part.shape == weight.shape:
            block = [math.gcd(ours, theirs) for ours, theirs in zip(block, inner, strict=True)]
    return tuple(block) if tuple(block) != weight.shape else None


def is_like(values: Values, tensor: LazyTensor) -> bool:
    """Whether values are more like an array, or its first rows, than chance: as a sum with another one is."""
    count = values.size
    if count < _MIN_COUNT or tensor.size < count or not tensor.mil_dtype.is_float:
        return False
    array = np.asarray(tensor.read())
    ways = [array.reshape(-1)[:count], *([array.T.reshape(-1)] if array.ndim == 2 and array.size == count else [])]
    places = spread(count, 4096)
    flat = values.reshape(-1)[places]
    return any(_correlation(flat, way[places]) >= max(_MIN_CORRELATION, 6 / len(places) ** 0.5) for way in ways)


def correlate(a: Values, b: Values) -> bool:
    """Whether two samples of elements are alike enough for all elements to be compared."""
    return _correlation(a, b) >= _MIN_CORRELATION


def _correlation(a: Values, b: Values) -> float:
    x, y = normalized(np.array([a, b], np.float64))
    return float(x @ y)


def normalized(rows: Values) -> Values:
    """Return rows of samples, float64, each centred on its mean and scaled to length 1; zeros if constant.

    The product of two of them is their correlation. What is not finite counts as 0; `rows` is overwritten.
    """
    rows[~np.isfinite(rows)] = 0
    scale = np.abs(rows).max(axis=1, initial=0, keepdims=True)
    rows /= np.where(scale > 0, scale, 1)
    rows -= rows.mean(axis=1, keepdims=True)
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return np.asarray(rows / np.where(norms > 1e-9, norms, np.inf))
