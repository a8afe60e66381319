"""Whether compressed values are a rendering of dense ones: rounded, palettized or pruned, and nothing else."""

import math
from typing import Any

import numpy as np

from .folds import channels

Values = np.ndarray[Any, Any]

_MIN_SQNR = 3.0  # dB; palettes of 2 entries reach 4
_SLACK = 1e-3  # rounding of scales to float16
_SIGMAS = 5.0
_MIN_SHARE = 0.97  # of the channels
_MIN_CORRELATION = 0.5  # of a sample


def sqnr_of(values: Values, rendered: Values, groups: int = 0) -> float | None:
    """Return in dB how near compressed values are to dense ones; None if they are something else.

    Rounding keeps the size of each output channel. Pruning, and palettes whose entries are means, take off just what
    they are wrong by. So a channel that was multiplied by something, as a batch norm does, shows, however coarse the
    compression is.

    Args:
        values: what may have been compressed. rendered: the compressed values, decoded. Of one shape.
        groups: of a conv_transpose, for `channels`.
    """
    x, y = (channels(np.atleast_2d(a).astype(np.float64), groups) for a in (values, rendered))
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    size, noise = (x * x).sum(axis=1), ((x - y) ** 2).sum(axis=1)
    total, error = float(size.sum()), float(noise.sum())
    if error == 0:
        return math.inf
    if total == 0 or 10 * math.log10(total / error) < _MIN_SQNR:
        return None
    known = size > 0
    factor = (x * y).sum(axis=1)[known] / size[known]
    relative = noise[known] / size[known]
    slack = _SIGMAS * np.sqrt(relative / x.shape[1]) + _SLACK
    is_kept = (factor >= 1 - relative - slack) & (factor <= 1 + slack)
    return 10 * math.log10(total / error) if is_kept.mean() >= _MIN_SHARE else None


def correlate(a: Values, b: Values) -> bool:
    """Whether two samples of elements are alike enough for all elements to be compared."""
    x, y = (values.astype(np.float64) - values.mean(dtype=np.float64) for values in (a, b))
    norm = math.sqrt(float((x * x).sum()) * float((y * y).sum()))
    return norm > 0 and float((x * y).sum()) >= _MIN_CORRELATION * norm
