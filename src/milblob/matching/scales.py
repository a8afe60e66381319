"""Batch norms and vectors of a checkpoint as factors of channels: a weight is compared with all of a size at once."""

from collections.abc import Callable, Iterable, Iterator
from itertools import product

import numpy as np

from .derivations.layouts import Values, spread
from .derivations.norms import EPSILONS, FORMS, Norm, Vectors, epsilons, scale_of

Steps = tuple[Norm, ...]
"""The folded norms, one after the other."""

_PLACES = 32  # channels that are compared
_MAX_PAIRS = 256


class Scales:
    """The scales that the norms of one number of channels may be, with each usual epsilon.

    `norms`: of this number of channels; vectors and single numbers as scales too. `vectors`: reads the arrays of a
    norm. `epsilon`: to try before the usual ones.
    """

    def __init__(
        self, norms: Iterable[Norm], count: int, vectors: Callable[[Norm], Vectors], epsilon: float | None
    ) -> None:
        self._vectors = vectors
        self._norms = list(norms)
        self._places = spread(count, _PLACES)
        usual = dict.fromkeys(EPSILONS if epsilon is None else (epsilon, *EPSILONS))
        self._rows = [
            norm._replace(epsilon=value) for norm in self._norms for value in (usual if norm.variance else (0.0,))
        ]
        width = len(self._places)
        self._scales, self._means, self._betas = (np.zeros((len(self._rows), width)) for _ in range(3))
        self._varied, end = [norm for norm in self._norms if norm.variance is not None], 0
        # their scales for the least epsilon and the largest
        ends = [np.abs(scale_of(norm, self._some(norm), np.array([0.0, 1.0]))) for norm in self._varied]
        self._extremes = np.array(ends, np.float64).reshape(-1, 2, width)
        for norm in self._norms:
            some, begin = self._some(norm), end
            end += len(usual) if norm.variance else 1
            self._scales[begin:end] = scale_of(norm, some, np.array([*usual] if norm.variance else [0.0]))
            for table, vector in ((self._means, some.mean), (self._betas, some.beta)):
                if vector is not None:
                    table[begin:end] = vector

    def _some(self, norm: Norm) -> Vectors:
        whole = self._vectors(norm)
        return Vectors(*(v if v is None or v.size == 1 else v[self._places] for v in whole))

    def near(self, factors: Values, tolerance: float) -> list[Steps]:
        """Return the norms whose scales are the factors of channels, NaN where one is not known; the nearest first."""
        return [(self._rows[at],) for at in _nearest(self._scales, factors[self._places], tolerance)]

    def near_unusual(self, factors: Values, tolerance: float) -> Iterator[Steps]:
        """Yield norms with an unusual epsilon, which is estimated from the factors."""
        some = factors[self._places]
        for norm in self._possible(some, tolerance):
            options = np.array(epsilons(self._vectors(norm), factors))
            scales = scale_of(norm, self._some(norm), options).astype(np.float64)
            for at in sorted(_nearest(scales, some, tolerance)):
                yield (norm._replace(epsilon=float(options[at])),)

    def _possible(self, factors: Values, tolerance: float) -> list[Norm]:
        """Return the norms whose scales some epsilon makes the factors, for half of the channels.

        Scales shrink as epsilon grows.
        """
        known = np.isfinite(factors)
        top, bottom = self._extremes[:, 0, known], self._extremes[:, 1, known]
        size = np.abs(factors[known])
        inside = (size <= top * (1 + tolerance)) & (size >= bottom * (1 - tolerance))
        counts = np.count_nonzero(inside, axis=1)
        return [self._varied[at] for at in np.flatnonzero(2 * counts >= max(known.sum(), 1))]

    def near_pairs(self, factors: Values, tolerance: float) -> list[Steps]:
        """Return two norms, one of them with a variance at most, whose scales together are the factors."""
        wanted = factors[self._places]
        known = np.isfinite(wanted) & (wanted != 0)
        if not known.any():
            return []
        logs = np.log(np.abs(self._scales[:, known]))
        logs[np.isnan(logs)] = np.inf
        rest = np.log(np.abs(wanted[known])) - logs
        # The other one must have this logarithm in the channel where scales differ most; then in all of them.
        column = int(np.argmax(np.where(np.isfinite(logs), logs, 0).std(axis=0))) if len(logs) else 0
        order = np.argsort(logs[:, column], kind="stable")
        ordered = logs[order, column]
        low = np.searchsorted(ordered, rest[:, column] - 2 * tolerance, "left")
        high = np.searchsorted(ordered, rest[:, column] + 2 * tolerance, "right")
        found: list[tuple[float, Steps]] = []
        for first, (begin, end) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            others = order[begin:end]
            apart = np.median(np.abs(logs[others] - rest[first]), axis=1) if len(others) else np.zeros(0)
            for at, distance in zip(others.tolist(), apart.tolist(), strict=True):
                pair = (self._rows[first], self._rows[at])
                if distance <= 2 * tolerance and sum(norm.variance is not None for norm in pair) < 2:
                    found.append((distance, pair))
        found.sort(key=lambda row: row[0])
        return [pair for _, pair in found[:_MAX_PAIRS]]

    def proportional(self, factors: Values, tolerance: float) -> list[tuple[Norm, float]]:
        """Return the norms whose scales are the factors but for one number, and the number."""
        wanted = factors[self._places]
        quotient = wanted / self._scales
        middle = np.median(quotient, axis=1)
        apart = np.quantile(np.abs(quotient / middle[:, None] - 1), 0.9, axis=1)
        return [(self._rows[at], float(middle[at])) for at in np.flatnonzero(apart <= tolerance)]

    def near_bias(self, bias: Values, own: Values | None, tolerance: float) -> list[Steps]:
        """Return the norms that make a bias of a convolution's own one."""
        wanted = bias[self._places].astype(np.float64)
        before = 0.0 if own is None else own[self._places].astype(np.float64)
        given = self._scales * (before - self._means) + self._betas
        apart = np.abs(given - wanted) / (np.abs(wanted) + np.sqrt(np.mean(wanted**2)) + 1e-30)
        middle = np.nan_to_num(np.median(apart, axis=1), nan=np.inf)
        return [(self._rows[at],) for at in np.argsort(middle, kind="stable") if middle[at] <= tolerance]

    def near_shifts(self, shift: Values, tolerance: float) -> list[str]:
        """Return the vectors that are a shift of channels."""
        wanted = shift[self._places].astype(np.float64)
        apart = np.median(np.abs(self._scales - wanted), axis=1) / (np.sqrt(np.mean(wanted**2)) + 1e-30)
        return [
            str(norm.gamma) for at, norm in enumerate(self._rows) if norm.form == "scale" and apart[at] <= tolerance
        ]


def variants(steps: Steps, is_half: Callable[[Norm], bool]) -> Iterator[Steps]:
    """Yield the orders and dtypes of the arithmetic with which norms may have been computed."""
    ways: list[list[Norm]] = []
    for norm in steps:
        forms = (norm.form,) if norm.variance is None else FORMS
        dtypes = ("float32", "float16") if is_half(norm) else ("float32",)
        ways.append([norm._replace(form=form, dtype=dtype) for dtype in dtypes for form in forms])
    return product(*ways)


def _nearest(scales: Values, factors: Values, tolerance: float) -> list[int]:
    """Return the rows of scales whose relative differences from factors have a small median; the nearest first."""
    known = np.isfinite(factors) & (factors != 0)
    if not known.any():
        return []
    if not known.all():
        scales, factors = scales[:, known], factors[known]
    apart = np.abs(scales - factors) / np.abs(factors)
    # Half of the differences at least are small then; that is faster to find out than a median.
    near = np.flatnonzero(2 * np.count_nonzero(apart <= tolerance, axis=1) >= len(factors))
    middle = np.median(apart[near], axis=1)
    order = np.argsort(middle, kind="stable")
    return [int(near[at]) for at in order if middle[at] <= tolerance]
