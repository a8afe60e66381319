"""Numbers that the code of a network holds and no training changes: epsilons, 0.5, 1 / sqrt(d), small integers."""

import math
from collections.abc import Collection, Iterable, Iterator

import numpy as np

from ...dtypes import DType
from ...values.cast import cast_array
from ..derivations.layouts import Values

_DIGITS = {DType.FLOAT64: 4, DType.FLOAT32: 4, DType.FLOAT16: 2, DType.BFLOAT16: 1}
"""Significant digits of the decimals that count as literals: few enough that a number that was learnt is rarely one."""

_LEAST_INTEGER = {DType.FLOAT16: 1024.0, DType.BFLOAT16: 128.0}
"""Where a dtype has only integers: a learnt number is not recognised there, and few are that large."""

_MAX_DIMENSION = 1 << 16
_MAX_DIMENSIONS = 256
_MAX_HEAD = 512

GAINS = (
    1.7881293296813965, 1.7015043497085571, 1.7139588594436646, 1.7131484746932983, 1.0008515119552612,
    1.270926833152771, 1.2716004848480225, 1.70590341091156, 1.9193484783172607, 1.0002083778381348,
    4.803835391998291, 2.338853120803833, 1.9203323125839233, 1.5939117670059204,
)  # fmt: skip
"""The gains of activations in networks without norms, which keep the variance: SiLU, GELU, ReLU, ReLU6, SELU, ..."""

_NAMED = (
    math.pi, math.e, math.log(2), math.log(10), math.sqrt(2 / math.pi), 0.044715, 1.702, 1 / 1.702,  # GELU
    1.0507009873554805, 1.6732632423543772, 1.0507009873554805 * 1.6732632423543772,  # SELU
    1 / 3, 2 / 3, 1 / 6, math.log(10000), 1 / math.log(10000), math.log2(math.e), 1e-45, 2.0**-149,
    1 / 255, 1 / 127.5, 0.5 / 255, 2 / 255,  # pixels
    *GAINS,
)  # fmt: skip
_DEVIATIONS = [math.sqrt(1 + 0.04 * count) for count in range(1, 33)]
"""Standard deviations that normalizer-free networks expect after 1 to 32 residual blocks with an alpha of 0.2."""

_PIXELS = (
    (0.485, 0.229), (0.456, 0.224), (0.406, 0.225),
    (0.48145466, 0.26862954), (0.4578275, 0.26130258), (0.40821073, 0.27577711),
)  # fmt: skip
"""Mean and standard deviation of the channels of pictures: ImageNet's, and CLIP's."""


class Literals:
    """The numbers that code may hold, for the dimensions of one network.

    `dimensions`: sizes of axes and heads; their roots and reciprocals are literals too.
    """

    def __init__(self, dimensions: Iterable[int]) -> None:
        usual = sorted({size for size in dimensions if 1 < size <= _MAX_DIMENSION})
        usual = usual[:_MAX_DIMENSIONS]
        heads = {a // b for a in usual for b in usual if a % b == 0 and a // b <= _MAX_HEAD}  # width / heads, and such
        numbers = [*_named(), *(number for size in usual for number in _of_dimension(size))]
        numbers += [number for size in heads for number in (size**0.5, size**-0.5, size**0.25, size**-0.25)]
        self._numbers = np.asarray(numbers, np.float64)
        self._of: dict[DType, frozenset[bytes]] = {}

    def has(self, values: Values, dtype: DType) -> bool:
        """Whether all of some values of a dtype are literals; zeros, infinities and NaN are."""
        return all(self._is_known(float(x), dtype) or self._is_decimal(float(x), dtype) for x in _distinct(values))

    def is_weak(self, values: Values, dtype: DType) -> bool:
        """Whether a value is a literal only as a short decimal of a dtype of few bits, which may be an accident."""
        return _DIGITS.get(dtype, 4) < 4 and any(not self._is_known(float(x), dtype) for x in _distinct(values))

    def _is_known(self, value: float, dtype: DType) -> bool:
        size = abs(value)
        if not math.isfinite(value) or (2 * size).is_integer() or math.frexp(size)[0] == 0.5:
            return True
        if _is_limit(size) or size >= _LEAST_INTEGER.get(dtype, 2.0**23):
            return True
        if dtype not in self._of:
            numbers = cast_array(self._numbers, dtype, overflow="inf")[0]
            self._of[dtype] = frozenset(number.tobytes() for number in numbers)
        return _bits(size, dtype) in self._of[dtype] or _bits(float(f"{size:.1g}"), dtype) == _bits(size, dtype)

    def _is_decimal(self, value: float, dtype: DType) -> bool:
        size, digits = abs(value), _DIGITS.get(dtype, 4)
        decimals = (float(f"{size:.{digits}g}"), 1 / float(f"{1 / size:.{max(digits - 1, 1)}g}"))
        return any(_bits(decimal, dtype) == _bits(size, dtype) for decimal in decimals)


def _distinct(values: Values) -> Values:
    return np.unique(values.reshape(-1))


def _bits(number: float, dtype: DType) -> bytes:
    return cast_array(np.asarray([number], np.float64), dtype, overflow="inf")[0].tobytes()


def _named() -> Iterator[float]:
    for number in _NAMED:
        yield from (number, 2 * number, number / 2, math.sqrt(number), 1 / math.sqrt(number))
    for number in _DEVIATIONS:
        yield from (number, 1 / number)
    for mean, deviation in _PIXELS:
        yield from (mean, deviation, 1 / deviation, mean / deviation, 1 / (255 * deviation), 255 * mean)


def _of_dimension(size: int) -> Iterator[float]:
    root = math.sqrt(size)
    yield from (root, 1 / root, root / 2, math.sqrt(root), 1 / math.sqrt(root), 1 / size, 2 / size)
    yield from (math.log(size), 1 / math.log(size), 1 / math.sqrt(2 * size), (size - 1) / size)
    if size > 2:
        yield from (1 / (size - 1), 2 / (size - 1), math.sqrt(size - 1))


def _is_limit(size: float) -> bool:
    """Whether this is the largest number of a dtype, or half of it: masks have these."""
    limits = (65504.0, float(np.finfo(np.float32).max), 3.3895313892515355e38)
    return any(abs(size - limit) <= 1e-3 * limit or abs(2 * size - limit) <= 1e-3 * limit for limit in limits)


def dimensions_in(shapes: Iterable[Collection[int]], integers: Iterable[Values]) -> set[int]:
    """Return the sizes that a network names: those of its constants, and those in its constants."""
    found = {int(size) for shape in shapes for size in shape}
    for values in integers:
        found.update(int(value) for value in values.reshape(-1)[:64])
    return found
