"""Finds what was folded into the weights of convolutions: by values, channel by channel."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from ..dtypes import DType
from ..model.lazy import LazyTensor
from ..model.tensor import Tensor
from .derivation import CheckpointArray, Derivation, Folded
from .folds import EPSILONS, FORMS, Norm, Ratio, Vectors, channels, fitting, fold_weight, is_scaled, ratio, scale_of
from .readers import Convolution
from .renderings import block_of, sqnr_of
from .rounding import casts_to
from .same_elements import May
from .siblings import Siblings

Values = np.ndarray[Any, Any]

TOLERANCE = {DType.FLOAT32: 1e-5, DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2}
"""How far the factors of channels may be from a scale before a fold is computed in full."""

_FLOATS = frozenset(dtype for dtype in DType if "FLOAT" in dtype.name)
_MAX_RESIDUAL = 0.7  # of channels that were compressed; what 3 dB are
_SOME = 64
_FEW = 4  # channels that are compared before all are


class Fold(NamedTuple):
    """What was folded into a convolution.

    Attributes:
        convolution: of the model.
        own: name of the weight before.
        norm: what was folded.
        own_bias: name of the bias before; None if it had none.
        gives_bias: whether the fold gives the convolution's bias too.
    """

    convolution: Convolution
    own: str
    norm: Norm
    own_bias: str | None = None
    gives_bias: bool = False

    def weight(self, shape: tuple[int, ...]) -> Folded:
        """Return how the weight follows."""
        norm = replace(self.norm, beta=None, mean=None)
        return Folded(CheckpointArray(self.own), norm, self.convolution.groups, False, shape)

    def bias(self, shape: tuple[int, ...]) -> Folded:
        """Return how the bias follows."""
        return Folded(None if self.own_bias is None else CheckpointArray(self.own_bias), self.norm, 0, True, shape)


class FoldFinder:
    """Finds folds in one model, of the arrays of one checkpoint.

    Args:
        given: arrays by name. weights: of the model.
        siblings: of the arrays.
        may: the work budget.
        epsilon: to try before the usual ones.
    """

    def __init__(
        self,
        given: Mapping[str, LazyTensor],
        weights: Mapping[str, Tensor],
        siblings: Siblings,
        may: May,
        epsilon: float | None = None,
    ) -> None:
        self._given, self._weights, self._siblings, self._may = given, weights, siblings, may
        self._epsilon = epsilon

    def _array(self, name: str) -> Values:
        return np.asarray(self._given[name].read())

    def candidates(self, convolution: Convolution) -> list[str]:
        """Return the arrays of a shape that a convolution's weight may have been made of."""
        weight = self._weights[convolution.weight]
        return [
            name
            for name, tensor in self._given.items()
            if tensor.size == weight.size and tensor.mil_dtype in _FLOATS and tensor.ndim >= 2
            and tensor.shape[:2] == weight.shape[:2] and self._may(100_000)
        ]  # fmt: skip

    def ratio(self, convolution: Convolution, own: str) -> Ratio | None:
        """Return the factor of each channel from an array to a convolution's weight; None if there is more to it."""
        weight = self._weights[convolution.weight]
        if weight.mil_dtype not in TOLERANCE or not self._may(500_000 + 40 * weight.size):
            return None
        target, source = np.asarray(weight.read()), self._array(own).reshape(weight.shape)
        tolerance = TOLERANCE[weight.mil_dtype]
        if not is_scaled(target, source, convolution.groups, tolerance):
            return None
        found = ratio(target, source, convolution.groups)
        return found if found.residual <= tolerance else None

    def folds(self, convolution: Convolution, own: str, found: Ratio, with_scales: bool = True) -> list[Fold]:
        """Return what may have been folded: what gives the weight to the bit, and the bias too where anything does."""
        weight = self._weights[convolution.weight]
        count = len(found.factors)
        norms = [*self._siblings.norms.get(count, ()), *(self._siblings.scales(count) if with_scales else ())]
        if not self._may(1_000_000 * len(norms)):
            return []
        source = self._array(own).reshape(weight.shape)
        target = np.asarray(weight.read())
        rows, wanted = (channels(values, convolution.groups)[:_FEW] for values in (source, target))

        def is_exact(norm: Norm, vectors: Vectors) -> bool:
            scale = scale_of(norm, vectors)
            few = rows.astype(scale.dtype) * (scale[:_FEW, None] if scale.size > 1 else scale)
            return casts_to(few, wanted, weight.mil_dtype) and casts_to(
                fold_weight(source, norm, vectors, convolution.groups), target, weight.mil_dtype
            )

        fits = fitting(found.factors, norms, self._array, is_exact, TOLERANCE[weight.mil_dtype], self._epsilon)
        plain = [Fold(convolution, own, norm) for norm in fits]
        return (self._with_bias(plain, convolution.bias) if convolution.bias is not None else []) or plain

    def rendered(self, convolution: Convolution, own: str, dense: Values) -> list[Fold]:
        """Return what may have been folded before a weight was compressed.

        The bias, which is not compressed, tells to the bit; without one, the compressed values tell.
        """
        groups = convolution.groups
        source = self._array(own).reshape(dense.shape)
        few, wanted = (channels(values, groups)[:_SOME].astype(np.float64) for values in (source, dense))
        rest = wanted - np.nan_to_num(ratio(wanted, few, 0).factors)[:, None] * few
        if (rest**2).sum() > _MAX_RESIDUAL**2 * (wanted**2).sum() or not self._may(100 * dense.size):
            return []
        factors = ratio(dense, source, groups)
        norms = self._siblings.norms.get(len(factors.factors), [])

        block = block_of(self._weights[convolution.weight])

        def is_near(norm: Norm, vectors: Vectors) -> bool:
            return sqnr_of(fold_weight(source, norm, vectors, groups), dense, block) is not None

        plain = [
            Fold(convolution, own, n)
            for n in fitting(factors.factors, norms, self._array, is_near, _MAX_RESIDUAL, self._epsilon)
        ]
        if convolution.bias is None:
            return plain
        return self._with_bias(plain, convolution.bias)

    def _with_bias(self, folds: list[Fold], bias: str) -> list[Fold]:
        weight = self._weights[bias]
        found, complete = [], set()
        for fold in folds:
            shifts = [fold.norm]
            if fold.norm.variance is None:
                vectors = self._siblings.of_size(weight.size)  # each of which may be its shift
                shifts += [replace(fold.norm, beta=name) for name in vectors if name != fold.norm.gamma]
            for norm in shifts:
                for own_bias in [*self._siblings.vectors(fold.own, weight.size), None]:
                    whole = fold._replace(norm=norm, own_bias=own_bias, gives_bias=True)
                    if own_bias is None and (fold.own, norm) in complete:
                        continue  # a convolution that has a bias has used it: such as one of zeros
                    if self._fits(weight, whole.bias(weight.shape)):
                        found.append(whole)
                        complete.add((fold.own, norm))
        return found

    def _fits(self, weight: Tensor, derivation: Derivation) -> bool:
        if not self._may(100_000 + 8 * weight.size):
            return False
        return casts_to(derivation.compute(self._array), np.asarray(weight.read()), weight.mil_dtype)


def likeliest(folds: Iterable[Fold], epsilon: float | None = None) -> list[Fold]:
    """Choose between folds of the same arrays that differ in epsilon only, or in the order of the arithmetic.

    Rounding hides small differences. One network rarely has several epsilons, so the one that most convolutions allow
    is taken. Where it is none of EPSILONS, all stay: too many numbers are near each other. Of the forms, the pass that
    made the weight decides: fuse_conv_batchnorm leaves constants without a name of their own ("const_3"), and
    fuse_conv_scale calls them after the operation.
    """
    groups: dict[Any, list[Fold]] = defaultdict(list)
    for fold in folds:
        norm = fold.norm
        groups[fold.convolution, fold.own, norm.gamma, norm.beta, norm.mean, norm.variance, fold.own_bias].append(fold)
    votes: Counter[float | None] = Counter()
    for group in groups.values():
        votes.update({fold.norm.epsilon for fold in group})
    votes[epsilon] = votes.total() + 1  # what the caller says is taken wherever it fits
    rank: dict[float | None, int] = {epsilon: -1, **{value: place for place, value in enumerate(EPSILONS)}}
    chosen = []
    for group in groups.values():
        usual = [fold for fold in group if fold.norm.epsilon in rank]
        if usual:
            chosen.append(min(usual, key=lambda f: (_is_other_form(f), -votes[f.norm.epsilon], rank[f.norm.epsilon])))
        else:
            group.sort(key=_is_other_form, reverse=True)
            chosen += list({fold.norm.epsilon: fold for fold in group}.values())
    return chosen


def _is_other_form(fold: Fold) -> bool:
    is_norm = fold.convolution.weight.rpartition("/")[2].startswith("const_")
    return is_norm != (fold.norm.form == FORMS[0])
