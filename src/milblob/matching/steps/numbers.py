"""Explains constants of few elements as functions of arrays of the checkpoint: their values alone are weak evidence.

A number of 11 bits is equal to some function of some array by accident once thousands are tried. So candidates are
tried in the order of their likelihood, and a match is accepted only while the constant has more bits than the number
of candidates so far, by a margin: the principle of minimum description length.
"""

import math
from collections.abc import Iterator

import numpy as np

from ...dtypes import DType
from ..checkpoint import Checkpoint
from ..derivations.arithmetic import FUNCTIONS, REDUCTIONS, Applied, Combined, Filled, Literal, Reduced
from ..derivations.derivation import CheckpointArray, Derivation, Explained
from ..derivations.layouts import Values
from ..derivations.rounding import are_one_rounding_apart, casts_to
from .literals import Literals

BITS = {DType.FLOAT64: 26.0, DType.FLOAT32: 26.0, DType.FLOAT16: 13.0, DType.BFLOAT16: 10.0}
"""Evidence of one element: its significant bits, and two bits of its size."""
_FEW_BITS = 16.0  # with fewer, one rounding more would triple the accidents: only equal bits are evidence

_MARGIN_BITS = 6.0  # one accident in 64 constants that no candidate explains
_MAX_CANDIDATES = 1 << 14
_AFTER_FUNCTIONS = ("reciprocal", "negative", "sqrt", "square", "rsqrt")  # of a reduction
_FACTORS = (2.0, 0.5, -2.0, -0.5, 4.0, 0.25, 127.0, -128.0, 128.0, -127.0, 255.0, 15.0, 7.0, -8.0, 1 / 127, 1 / 255)
_SHIFTS = (1.0, -1.0, 1e-9, 1e-8, 1e-6, 1e-5)
_MAX_CLAIMS = 8


class Numbers:
    """Explains constants of one model."""

    def __init__(self, checkpoint: Checkpoint, literals: Literals) -> None:
        self._given = {name: tensor for name, tensor in checkpoint.arrays.items() if tensor.mil_dtype in BITS}
        self._array, self._literals, self._may = checkpoint.read, literals, checkpoint.may
        self._computed: dict[Derivation, Values | None] = {}

    def explain(self, values: Values, dtype: DType, order: list[str], is_literal: bool) -> list[Explained]:
        """Return the functions of arrays that have the values of a constant, the likeliest first.

        Args:
            values: of a constant of few elements, or of many equal ones.
            dtype: of the constant.
            order: the arrays, those first that weights nearby in the Program follow from.
            is_literal: whether code may hold it as well. Then only functions of the checkpoint's single numbers count:
                accidents are too many.
        """
        flat, shape = np.ascontiguousarray(values).reshape(-1), values.shape
        names = [name for name in order if name in self._given]
        is_filled = flat.size > 1 and bool((flat == flat[0]).all())
        wanted = flat[:1] if is_filled else flat
        bits = wanted.size * BITS.get(dtype, 0.0)
        most = min(int(2 ** min(bits - _MARGIN_BITS, 30.0)), _MAX_CANDIDATES) if bits > _MARGIN_BITS else 0
        found: list[Explained] = []
        last = most
        candidates = self._candidates(names, wanted.size)
        if is_literal:
            candidates = self._functions(self._arrays(names, 1)) if wanted.size == 1 else iter(())
        for count, candidate in enumerate(candidates):
            is_array = isinstance(candidate, CheckpointArray)  # the likeliest by far: all of them are tried
            if (count >= last and not is_array) or len(found) == _MAX_CLAIMS:
                break
            computed = self._compute(candidate)
            if computed is None or computed.size != wanted.size:
                continue
            is_exact = casts_to(computed, wanted, dtype)
            if is_exact or (bits > _FEW_BITS and are_one_rounding_apart(computed, wanted, dtype)):
                whole = Filled(candidate, shape) if is_filled else candidate
                is_of_one = all(self._given[name].size == 1 for name in candidate.sources())
                found.append(Explained(whole, is_exact, is_of_one, bits <= _FEW_BITS and not is_array))
                last = min(most, last, 4 * count + 64)  # others as likely must agree with it
        if any(one.is_exact for one in found):
            found = [one for one in found if one.is_exact]
        return found

    def _compute(self, derivation: Derivation) -> Values | None:
        """Return the values of a candidate; None once the work budget is spent."""
        if derivation not in self._computed:
            count = max((self._given[name].size for name in derivation.sources()), default=0)
            self._computed[derivation] = derivation.compute(self._array) if self._may(20_000 + 10 * count) else None
        return self._computed[derivation]

    def _candidates(self, names: list[str], count: int) -> Iterator[Derivation]:
        """Yield functions that leave `count` elements, the likeliest first."""
        same = self._arrays(names, count)
        yield from self._functions(same)
        near = [name for name in names if self._given[name].size > count]
        yield from self._reductions(near[:4], count)
        for number in _FACTORS:
            yield from (Combined("*", one, Literal(number)) for one in same)
        for number in _SHIFTS:
            for one in same:
                shifted = Combined("+", one, Literal(number))
                yield from (shifted, Applied(shifted, "reciprocal"))
        yield from self._reductions(near[4:], count)

    def _arrays(self, names: list[str], count: int) -> list[Derivation]:
        return [CheckpointArray(name) for name in names if self._given[name].size == count]

    def _functions(self, same: list[Derivation]) -> Iterator[Derivation]:
        yield from same
        for name in FUNCTIONS:
            yield from (Applied(one, name) for one in same)

    def _reductions(self, names: list[str], count: int) -> Iterator[Derivation]:
        for name in names:
            tensor = self._given[name]
            reduced = [
                Reduced(CheckpointArray(name), reduction, axes)
                for axes in _axes(tensor.shape, count)
                for reduction in REDUCTIONS
            ]
            yield from reduced
            for function in _AFTER_FUNCTIONS:
                yield from (Applied(one, function) for one in reduced)


def _axes(shape: tuple[int, ...], count: int) -> list[tuple[int, ...] | None]:
    """Return along which axes an array must be reduced so that `count` elements are left."""
    if count == 1:
        return [None]
    rank = len(shape)
    kept = [at for at in range(rank) if shape[at] == count]
    ways: list[tuple[int, ...] | None] = [tuple(axis for axis in range(rank) if axis != at) for at in kept]
    if rank > 2:
        ways += [(axis,) for axis in range(rank) if math.prod(shape) == count * shape[axis]]
    return list(dict.fromkeys(ways))
