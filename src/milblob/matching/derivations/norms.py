"""Batch norms and scales that a converter folds into convolutions: computed as coremltools computes them, and found.

coremltools 9's passes `fuse_conv_batchnorm`, `fuse_conv_scale` and `fuse_conv_bias` compute with NumPy in the dtype of
the weights, one channel after the other. The same operations in the same order on whole arrays give the same bits.
"""

from collections.abc import Callable, Iterator, Mapping
from math import prod
from typing import NamedTuple

import numpy as np

from .layouts import Values

EPSILONS = (1e-5, 1e-3, 1e-6, 1e-12, 1e-4, 1e-2, 1e-8, 1e-7, 0.0)
"""Tried in this order, because a checkpoint does not hold the epsilon of a batch norm."""

_NEAR = 12
_EVIDENCE = 16

FORMS = ("batch_norm", "frozen", "steps")
"""How a batch norm is computed: by the operation `batch_norm`; as `x * scale + shift` with constants
(FrozenBatchNorm2d); one step after the other (a batch norm without gamma and beta)."""

_MEANS = ("running_mean", "moving_mean", "mean")
_VARIANCES = ("running_var", "moving_variance", "moving_var", "variance", "var")
_GAMMAS = ("weight", "gamma", "scale")
_BETAS = ("bias", "beta")
_SUFFIXES = sorted(_MEANS + _VARIANCES + _GAMMAS + _BETAS, key=len, reverse=True)


class Vectors(NamedTuple):
    """The arrays of a batch norm in the dtype of the arithmetic, each [channels]; None where it has none."""

    gamma: Values | None
    beta: Values | None
    mean: Values | None
    variance: Values | None


class Norm(NamedTuple):
    """A batch norm, or a scale and shift, of a checkpoint."""

    gamma: str | None  # names of arrays; None where the checkpoint has none
    beta: str | None
    mean: str | None
    variance: str | None
    epsilon: float = EPSILONS[0]  # added to the variance
    form: str = FORMS[0]  # one of FORMS, or "scale": gamma alone is multiplied
    dtype: str = "float32"  # of the arithmetic: "float32" or "float16"

    def names(self, is_bias: bool) -> Iterator[str]:
        """Yield the names of the arrays that take part in a weight, or in a bias."""
        used = (self.gamma, self.variance, *((self.beta, self.mean) if is_bias else ()))
        return (name for name in used if name is not None)

    def vectors(self, arrays: Callable[[str], Values]) -> Vectors:
        """Read its arrays."""
        dtype = np.dtype(self.dtype)
        names = (self.gamma, self.beta, self.mean, self.variance)
        found = (None if name is None else arrays(name) for name in names)
        return Vectors(*(None if v is None else v.reshape(-1).astype(dtype, copy=False) for v in found))

    def __str__(self) -> str:
        if self.form == "scale":
            return f"the scale {self.gamma}"
        suffix = next((alias for alias in _SUFFIXES if _ends_with(str(self.variance), alias)), "")
        name = str(self.variance).removesuffix(suffix).rstrip("./_") or str(self.variance)
        return f"the batch norm {name} (epsilon {self.epsilon:g})"


def scale_of(norm: Norm, vectors: Vectors, several: Values | None = None) -> Values:
    """Return the factor of each output channel: [channels], or [1] for one scale for all.

    `several`: epsilons instead of the norm's own one; the result has a row for each, [epsilons, channels].
    Raises: ValueError: a norm without any array that scales.
    """
    gamma, variance = vectors.gamma, vectors.variance
    if variance is None:
        if gamma is None:
            raise ValueError("norm: expected a gamma or a variance, got neither")
        return gamma if several is None else np.broadcast_to(gamma, (len(several), gamma.size))
    with np.errstate(all="ignore"):
        epsilon = norm.epsilon if several is None else several[:, None]
        root = np.sqrt(variance + np.asarray(epsilon, variance.dtype))
        one = variance.dtype.type(1)
        if norm.form == "batch_norm":
            return np.asarray((np.ones_like(root) if gamma is None else gamma) / root)
        inverse = one / root
        return np.asarray(inverse if gamma is None else gamma * inverse)


def fold_weight(weight: Values, norm: Norm, vectors: Vectors, groups: int) -> Values:
    """Return a convolution's weight with a norm folded in.

    `weight`: [out, in / groups, ...] of a conv; [in, out / groups, ...] of a conv_transpose. `groups`: of a
    conv_transpose; 0 for a conv.
    """
    scale = scale_of(norm, vectors)
    own = weight.astype(scale.dtype, copy=False)
    rows = channels(own, groups)
    with np.errstate(all="ignore"):
        return from_channels(rows * scale[:, None], own.shape, groups)


def fold_bias(bias: Values, norm: Norm, vectors: Vectors, several: Values | None = None) -> Values:
    """Return a convolution's bias, [channels], with a norm folded in.

    `several`: as for `scale_of`; then the bias, and the result, may have a row for each: [epsilons, channels].
    """
    scale = scale_of(norm, vectors, several)
    own = bias.astype(scale.dtype)
    zero = scale.dtype.type(0)
    mean = zero if vectors.mean is None else vectors.mean
    beta = zero if vectors.beta is None else vectors.beta
    with np.errstate(all="ignore"):
        if norm.form == "scale":
            return np.asarray(own * scale + beta) if vectors.beta is not None else np.asarray(own * scale)
        if norm.form == "frozen":
            return np.asarray(own * scale + (beta - mean * scale))
        if norm.form == "steps":
            return (
                np.asarray((own - mean) * scale + beta)
                if vectors.beta is not None
                else np.asarray((own - mean) * scale)
            )
        return np.asarray(scale * (own - mean) + beta)


def channels(weight: Values, groups: int) -> Values:
    """Return a weight as [output channels, the rest], in the order in which coremltools scales channels.

    For a conv_transpose of several groups that order is not the order of its outputs, unless each group has one:
    coremltools scales other channels than the batch norm did. The values here are those that it writes.
    """
    if not groups:
        return weight.reshape(weight.shape[0], -1)
    turned = np.moveaxis(weight, 1, 0)
    return np.ascontiguousarray(turned).reshape(weight.shape[1] * groups, -1)


def from_channels(rows: Values, shape: tuple[int, ...], groups: int) -> Values:
    """Undo `channels`."""
    if not groups:
        return rows.reshape(shape)
    return np.ascontiguousarray(np.moveaxis(rows.reshape(shape[1], shape[0], *shape[2:]), 0, 1))


# ---------------------------------------------------------------------------------------------------------------- found


class Ratio(NamedTuple):
    """How a weight differs from an array by one factor per output channel."""

    factors: Values  # float64 [channels]; NaN where the array has only zeros
    residual: float  # difference of a channel beyond its factor, relative to the channel: the largest of all
    width: int  # elements of a channel

    @property
    def is_evidence(self) -> bool:
        """Whether there are enough elements for this to be no accident: one of a channel always fits."""
        return len(self.factors) * (self.width - 1) >= _EVIDENCE

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest factor."""
        known = self.factors[np.isfinite(self.factors)]
        return (float(known.min()), float(known.max())) if known.size else (1.0, 1.0)


def factors_of(rows: Values, own: Values) -> Values:
    """Return the factor of each row of `own`, [channels, width], to that of `rows`: float64, NaN for rows of zeros."""
    x, y = own.astype(np.float64, copy=False), rows.astype(np.float64, copy=False)
    with np.errstate(all="ignore"):
        size = np.einsum("ij,ij->i", x, x)
        return np.asarray(np.einsum("ij,ij->i", x, y) / np.where(size > 0, size, np.nan))


def ratio(weight: Values, own: Values, groups: int) -> Ratio:
    """Return the factor of each output channel from `own` to `weight`, two arrays of one shape, and the residual."""
    x, y = (channels(values, groups).astype(np.float64) for values in (own, weight))
    with np.errstate(all="ignore"):
        factors = factors_of(y, x)
        rest = np.sqrt(((y - np.nan_to_num(factors)[:, None] * x) ** 2).sum(axis=1))
        norms = np.sqrt((y * y).sum(axis=1))
        relative = np.where(norms > 0, rest / np.where(norms > 0, norms, 1), 0.0)
    return Ratio(factors, float(np.nan_to_num(relative, nan=np.inf).max(initial=0)), x.shape[1])


def find_norms(shapes: Mapping[str, tuple[int, ...]]) -> list[Norm]:
    """Return the batch norms among the arrays of a checkpoint: a mean and a variance of one size under one prefix."""
    by_prefix: dict[str, dict[str, str]] = {}
    for name, shape in shapes.items():
        if len([size for size in shape if size != 1]) <= 1:
            suffix = next((alias for alias in _SUFFIXES if _ends_with(name, alias)), None)
            if suffix is not None:
                by_prefix.setdefault(name[: -len(suffix)], {})[suffix] = name
    found = []
    for known in by_prefix.values():
        mean, variance = _one_of(known, _MEANS), _one_of(known, _VARIANCES)
        if mean is None or variance is None or prod(shapes[mean]) != prod(shapes[variance]):
            continue
        gamma, beta = (
            name if name is not None and prod(shapes[name]) == prod(shapes[mean]) else None
            for name in (_one_of(known, _GAMMAS), _one_of(known, _BETAS))
        )
        found.append(Norm(gamma, beta, mean, variance))
    return found


def epsilons(vectors: Vectors, factors: Values) -> list[float]:
    """Return the unusual epsilons that explain the factors of a batch norm, the likeliest first."""
    variance, gamma = vectors.variance, vectors.gamma
    if variance is None:
        return []
    with np.errstate(all="ignore"):
        top = 1.0 if gamma is None else gamma.astype(np.float64)
        implied = (top / factors) ** 2 - variance.astype(np.float64)
        # Where the variance is small, epsilon counts most.
        order = np.argsort(variance)[: max(len(variance) // 8, 4)]
        guess = float(np.nanmedian(implied[order])) if np.isfinite(implied[order]).any() else 0.0
    if not 0 < guess < np.inf:
        return []
    # Numbers of one or two digits near the estimate from rounded weights.
    unit = 10.0 ** (np.floor(np.log10(guess)) - 1)
    near = {float(f"{guess + step * unit:.1e}") for step in range(-_NEAR, _NEAR + 1) if guess + step * unit > 0}
    return sorted(near - set(EPSILONS), key=lambda epsilon: (epsilon != float(f"{epsilon:.0e}"), abs(epsilon - guess)))


def _ends_with(name: str, word: str) -> bool:
    return name.endswith(word) and not name[: -len(word)][-1:].isalnum()


def _one_of(known: Mapping[str, str], names: tuple[str, ...]) -> str | None:
    return next((known[name] for name in names if name in known), None)
