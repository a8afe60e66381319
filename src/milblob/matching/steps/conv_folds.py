"""Finds the norms and scales that were folded into the weights of convolutions: by values, channel by channel."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain, compress
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ...dtypes import DType
from ...model.lazy import LazyTensor
from ..checkpoint import Checkpoint
from ..derivations.derivation import CheckpointArray, Derivation, Folded
from ..derivations.layouts import Values, spread
from ..derivations.norms import EPSILONS, FORMS, Norm, Ratio, channels, factors_of, fold_bias, ratio, scale_of
from ..derivations.rounding import each_casts_to
from ..model_weights import Convolution, ModelWeights, is_compressed
from ..scales import Steps, variants
from .renderings import block_of, sqnr_of

TOLERANCE = {DType.FLOAT32: 1e-5, DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2}
"""How far the factors of channels may be from a scale before a fold is computed in full."""

_TINY = {DType.FLOAT16: 2.0**-24}  # absolute tolerance of an element: subnormal numbers have few digits
_MAX_RESIDUAL = 0.7  # of channels that were compressed; equals 3 dB
_COARSE = 0.2  # how far a factor of compressed channels may be from a scale where no bias decides
_CHANNELS, _ELEMENTS, _WIDTH = 16, 16, 64  # of a sample that is compared with all arrays; and of one for factors
_MAX_RENDERED = 8


class Fold(NamedTuple):
    """The norms and scales that were folded into a convolution."""

    convolution: Convolution  # of the model
    own: str  # name of the weight before
    steps: Steps  # the folded norms, one after the other
    own_bias: str | None = None  # name of the bias before; None if it had none
    gives_bias: bool = False  # whether the fold gives the convolution's bias too

    def weight(self, shape: tuple[int, ...]) -> Derivation:
        """Return how the weight follows."""
        found: Derivation = CheckpointArray(self.own)
        for norm in self.steps:
            found = Folded(found, norm._replace(beta=None, mean=None), self.convolution.groups, False, shape)
        return found

    def bias(self, shape: tuple[int, ...]) -> Derivation:
        """Return how the bias follows."""
        own: Derivation | None = None if self.own_bias is None else CheckpointArray(self.own_bias)
        for norm in self.steps:
            own = Folded(own, norm, 0, True, shape)
        if own is None:
            raise ValueError("fold: expected a norm, got none")
        return own

    @property
    def epsilon(self) -> float:
        """Of its batch norm; 0 if it has none."""
        return next((norm.epsilon for norm in self.steps if norm.variance is not None), 0.0)


class FoldFinder:
    """Finds folds in one model, of the arrays of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint, weights: ModelWeights) -> None:
        self._checkpoint, self._weights = checkpoint, weights
        self._may, self._array = checkpoint.may, checkpoint.read
        self.sqnr: dict[str, float] = {}  # in dB, of compressed weights whose fold was chosen
        self._of_shape: dict[tuple[tuple[int, ...], int], list[str]] = defaultdict(list)
        for name, tensor in checkpoint.floats.items():
            if tensor.ndim >= 2:
                self._of_shape[tensor.shape[:2], tensor.size].append(name)
        self._samples: dict[tuple[tuple[int, ...], int], tuple[Values, Values]] = {}  # and the sums of their squares

    def _is_half(self, norm: Norm) -> bool:
        first = norm.gamma or norm.variance
        return first is not None and self._checkpoint.arrays[first].mil_dtype is DType.FLOAT16

    # ----------------------------------------------------------------------------------------------------- the arrays

    def _sample(self, weight: Values, groups: int) -> Values:
        """Return a few elements of a few channels: float64 [channels, elements]."""
        rows = channels(weight, groups)
        chosen, places = spread(rows.shape[0], _CHANNELS), spread(rows.shape[1], _ELEMENTS)
        return np.asarray(rows[chosen[:, None], places], np.float64)

    def candidates(self, convolution: Convolution, residual: float | None = None) -> list[str]:
        """Return the arrays that, by a sample, may be a convolution's weight up to a factor per channel.

        `convolution`: in question. `residual`: the most of a channel that may be left; None: the rounding of the
        weight's dtype.
        """
        weight, groups = self._weights[convolution.weight], convolution.groups
        key = weight.shape[:2], weight.size
        names = self._of_shape.get(key, [])
        work = 100_000 + 20_000 * len(names) + weight.size * (is_compressed(weight) or groups > 0)
        if weight.mil_dtype not in TOLERANCE or not names or not self._may(work):
            return []
        sample_key = weight.shape, groups
        if sample_key not in self._samples:
            arrays = (self._array(name).reshape(weight.shape) for name in names)
            samples = np.stack([self._sample(array, groups) for array in arrays])
            sizes = np.einsum("nij,nij->ni", samples, samples)
            self._samples[sample_key] = samples, np.where(sizes > 0, sizes, np.inf)
        (x, sizes), y = self._samples[sample_key], self._sample(np.asarray(weight.read()), groups)
        allowed = (y * y).sum(axis=1)
        rest = np.nan_to_num(allowed - np.einsum("nij,ij->ni", x, y) ** 2 / sizes, nan=np.inf)
        if residual is not None:
            fits = rest.sum(axis=1) <= residual**2 * allowed.sum()
        else:
            tiny = _TINY.get(weight.mil_dtype, 0.0) ** 2 * y.shape[1]
            fits = (rest <= TOLERANCE[weight.mil_dtype] ** 2 * allowed + tiny).all(axis=1)
        return [name for name, is_one in zip(names, fits.tolist(), strict=True) if is_one]

    def ratio(self, convolution: Convolution, own: str) -> Ratio | None:
        """Return the factor of each channel from an array to a convolution's weight; None if there is more to it."""
        weight = self._weights[convolution.weight]
        if not self._may(40 * weight.size):
            return None
        found = ratio(np.asarray(weight.read()), self._array(own).reshape(weight.shape), convolution.groups)
        return found if found.residual <= TOLERANCE[weight.mil_dtype] else None

    # ------------------------------------------------------------------------------------------------------ the folds

    def folds(self, convolution: Convolution, own: str, with_scales: bool = True) -> list[Fold]:
        """Return the possible folds: those that give a sample of the weight to the bit, and all of the bias."""
        weight = self._weights[convolution.weight]
        rows, wanted = (
            channels(values, convolution.groups)
            for values in (self._array(own).reshape(weight.shape), np.asarray(weight.read()))
        )
        scales = self._checkpoint.scales(len(rows), with_scales)
        if scales is None or not self._may(300_000 + 300 * len(rows) * min(rows.shape[1], _WIDTH)):
            return []
        places = spread(rows.shape[1], _WIDTH)
        x, y = rows[:, places], np.ascontiguousarray(wanted[:, places])
        factors, tolerance = factors_of(y, x), TOLERANCE[weight.mil_dtype]

        def exact(found: Iterable[Steps]) -> list[Steps]:
            ways = [steps for one in found for steps in variants(one, self._is_half) if self._may(50_000)]
            for count in (4, len(x)):
                scaled = partial(self._scaled, x[:count])
                ways = self._exact(ways, scaled, y[:count], weight.mil_dtype, weight.size)
            return ways

        found = exact(scales.near(factors, tolerance)) or exact(scales.near_unusual(factors, tolerance))
        if not found and with_scales:
            found = exact(scales.near_pairs(factors, tolerance))
        plain = [Fold(convolution, own, steps) for steps in found]
        return (self._with_bias(plain, convolution.bias) if convolution.bias is not None else []) or plain

    def _exact(
        self, ways: list[Steps], compute: Callable[[Steps, Values], Values], present: Values, dtype: DType, count: int
    ) -> list[Steps]:
        """Return the ways that give present values to the bit; those that differ in epsilons only are tried at once.

        `compute`: returns the values of norms for several epsilons each, [norms, n]: [n, ...]. `count`: elements of the
        weight; the values may be a sample of them.
        """
        alike: dict[Any, list[Steps]] = defaultdict(list)
        for steps in ways:
            alike[tuple((*norm[:4], norm.form, norm.dtype) for norm in steps)].append(steps)
        exact: set[Steps] = set()
        if ways:
            values = np.concatenate(
                [
                    compute(several[0], np.array([[norm.epsilon for norm in steps] for steps in several]).T)
                    for several in alike.values()
                ]
            )
            is_exact = each_casts_to(values, present, dtype, count).tolist()
            exact.update(compress(chain.from_iterable(alike.values()), is_exact))
        return [steps for steps in ways if steps in exact]

    def _scaled(self, rows: Values, norms: Steps, epsilons: Values) -> Values:
        """Return the first channels of an array with norms folded in, for several epsilons: [n, channels, width]."""
        values = rows[None]
        for norm, several in zip(norms, epsilons, strict=True):
            scale = scale_of(norm, self._checkpoint.vectors(norm), several)
            values = values.astype(scale.dtype, copy=False) * scale[:, : len(rows), None]
        return values

    def rendered(self, convolution: Convolution, dense: Values) -> list[Fold]:
        """Return the possible folds before a weight was compressed.

        The bias, which is not compressed, decides to the bit; without one, the factors decide as far as they can.
        """
        wanted = channels(dense, convolution.groups)
        scales, places = self._checkpoint.scales(len(wanted), True), spread(wanted.shape[1], _WIDTH)
        found: list[Fold] = []
        for own in self.candidates(convolution, _MAX_RESIDUAL) if scales is not None else ():
            rows = channels(self._array(own).reshape(dense.shape), convolution.groups)
            if scales is None or not self._may(500_000 + 100 * len(rows) * len(places)):
                break
            factors = factors_of(wanted[:, places], rows[:, places])
            if convolution.bias is None:
                near = [Fold(convolution, own, steps) for steps in scales.near(factors, _COARSE)]
                found += near[:_MAX_RENDERED]
                continue
            bias = self._weights[convolution.bias]
            values = np.asarray(bias.read()).reshape(-1)
            steps = [
                one
                for own_bias in self._own_biases(own, bias.size)
                for one in scales.near_bias(
                    values, None if own_bias is None else self._array(own_bias).reshape(-1), _COARSE
                )
            ]
            for options in (steps, scales.near(factors, _COARSE)[:_MAX_RENDERED], scales.near_pairs(factors, _COARSE)):
                plain = [Fold(convolution, own, way) for one in options for way in variants(one, self._is_half)]
                fitting = self._with_bias(plain, convolution.bias)
                if fitting:
                    found += fitting
                    break
        return found

    def _own_biases(self, own: str, count: int) -> list[str | None]:
        return [*self._checkpoint.siblings.vectors(own, count), None]

    def _with_bias(self, folds: list[Fold], bias: str) -> list[Fold]:
        """Return the folds of one array that give a bias too, each with the bias before."""
        weight = self._weights[bias]
        values = np.asarray(weight.read()).reshape(-1)
        found: list[tuple[int, Fold]] = []
        complete: set[int] = set()
        for own_bias in self._own_biases(folds[0].own, weight.size) if folds else ():
            options = [
                (place, option)
                for place, fold in enumerate(folds)
                if own_bias is not None or place not in complete  # a bias that there is was used: such as one of zeros
                for whole in (fold._replace(own_bias=own_bias, gives_bias=True),)
                for option in (whole, *self._shifted(whole, weight, values))
                if self._may(100_000 + 8 * weight.size)
            ]
            before = np.zeros(weight.size, np.float32) if own_bias is None else self._array(own_bias).reshape(-1)
            ways = [option.steps for _, option in options]
            exact = self._exact(ways, partial(self._shifts, before), values, weight.mil_dtype, weight.size)
            found += (one for one in options if one[1].steps in exact)
            complete.update(place for place, _ in found)
        return [option for _, option in sorted(found, key=itemgetter(0))]

    def _shifts(self, bias: Values, norms: Steps, epsilons: Values) -> Values:
        """Return a bias with norms folded in, for several epsilons: [n, channels]."""
        values = bias[None]
        for norm, several in zip(norms, epsilons, strict=True):
            values = fold_bias(values, norm, self._checkpoint.vectors(norm), several)
        return values

    def _shifted(self, fold: Fold, weight: LazyTensor, values: Values) -> Iterator[Fold]:
        """Yield a fold that ends with a scale with each vector that may have been added after it."""
        last, scales = fold.steps[-1], self._checkpoint.scales(weight.size, True)
        if last.variance is not None or scales is None or not self._may(50_000 + 50 * weight.size):
            return
        shift = values.astype(np.float64) - fold.bias(weight.shape).compute(self._array).reshape(-1)
        for name in scales.near_shifts(shift, TOLERANCE.get(weight.mil_dtype, 0.0)):
            if name != last.gamma and self._checkpoint.arrays[name].size == weight.size:
                yield fold._replace(steps=(*fold.steps[:-1], last._replace(beta=name)))

    # ------------------------------------------------------------------------------------------------------- choosing

    def chosen(self, folds: Iterable[Fold]) -> Iterator[Fold]:
        """Choose between folds of the same arrays, one convolution after the other.

        They differ in epsilon only, or in the order of the arithmetic. Rounding hides small differences. One network
        rarely has several epsilons, so of the folds that give all of the weight, those with the epsilon that most
        convolutions allow are taken. If it is none of EPSILONS, all are kept: too many numbers are near each other.
        Between forms, the pass that made the weight decides: fuse_conv_batchnorm leaves constants without a name of
        their own ("const_3"), and fuse_conv_scale names them after the operation.
        """
        groups: dict[Any, list[Fold]] = defaultdict(list)
        for fold in folds:
            arrays = tuple((norm.gamma, norm.beta, norm.mean, norm.variance) for norm in fold.steps)
            groups[fold.convolution, fold.own, arrays, fold.own_bias].append(fold)
        epsilon = self._checkpoint.epsilon
        votes: Counter[float | None] = Counter()
        for group in groups.values():
            votes.update({fold.epsilon for fold in group})
        votes[epsilon] = votes.total() + 1  # the caller's value is taken wherever it fits
        rank: dict[float | None, int] = {epsilon: -1, **{value: place for place, value in enumerate(EPSILONS)}}
        for group in groups.values():
            usual = [fold for fold in group if fold.epsilon in rank]
            usual.sort(key=lambda fold: (_is_other_form(fold), -votes[fold.epsilon], rank[fold.epsilon]))
            one = next((fold for fold in usual if self._is_whole(fold)), None)
            if one is not None:
                yield one
            elif not usual:
                group.sort(key=_is_other_form, reverse=True)
                ways = {fold.epsilon: fold for fold in group}
                yield from (fold for fold in ways.values() if self._is_whole(fold))

    def _is_whole(self, fold: Fold) -> bool:
        """Whether a fold gives all of its weight: to the bit, or as near as compression comes."""
        weight = self._weights[fold.convolution.weight]
        if not is_compressed(weight):
            return self._checkpoint.fits(weight, fold.weight(weight.shape))
        if not self._may(300 * weight.size):
            return False
        values = fold.weight(weight.shape).compute(self._array)
        found = sqnr_of(values, np.asarray(weight.read()), block_of(weight))
        if found is not None:
            self.sqnr[weight.name] = min(self.sqnr.get(weight.name, np.inf), found)
        return found is not None


def _is_other_form(fold: Fold) -> bool:
    if len(fold.steps) > 1:
        return False
    is_norm = fold.convolution.weight.rpartition("/")[2].startswith("const_")
    return is_norm != (fold.steps[0].form == FORMS[0])
