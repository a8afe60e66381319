"""Explains a weight as one array, or a function of it, times and plus something: for all elements, or per channel.

A converter computes only short expressions from constants: weight norm, weight standardization, `1 + w`, a layer
scale, a sum of two embeddings. A sample of the weight is compared with all arrays of its size. An array that differs
from it by a factor and a shift is kept; then numbers and vectors are searched for the factor and the shift, and the
expressions found are computed in full.
"""

import math
from collections.abc import Iterable, Iterator
from itertools import combinations, islice
from typing import Any, NamedTuple

import numpy as np

from ...dtypes import DType
from ..checkpoint import Checkpoint
from ..derivations.arithmetic import FUNCTIONS, STANDARDS, Applied, Combined, Literal, Reduced, Standardized, kind_of
from ..derivations.derivation import CheckpointArray, Derivation, Explained, Moved, moved, row_of
from ..derivations.layouts import Layout, Values, layouts, spread
from ..derivations.norms import EPSILONS, Norm
from ..derivations.rounding import are_one_rounding_apart, casts_to
from .literals import GAINS

_TOLERANCE = {DType.FLOAT32: 2e-5, DType.FLOAT16: 4e-3, DType.BFLOAT16: 3e-2}
_TINY = {DType.FLOAT16: 2.0**-24}
_CHANNELS, _ELEMENTS, _WIDTH = 8, 16, 64
_MIN_ELEMENTS = 4  # of a channel: two of them give its factor and its shift
_MAX_LAYOUTS = 4
_MAX_ROWS = 8192
_MAX_FOUND = 16
_MAX_OPTIONS = 1024
_NOISE = 1e-2
_BATCH = 1024  # arrays whose samples are compared at a time
_MAX_SAMPLES = 128  # such batches that are kept, of half a megabyte each


class _Affine(NamedTuple):
    """A weight as `factors * of + shifts`; factors and shifts are estimates."""

    of: Derivation  # in the order of the weight's elements, of its shape
    axis: int | None  # along which factors and shifts differ; None for one of each
    factors: Values  # float64, [channels] or [1]
    shifts: Values


class Expressions:
    """Explains weights by the arrays of one checkpoint."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint, self._given = checkpoint, checkpoint.floats
        self._may, self._array = checkpoint.may, checkpoint.read
        self._sure = _sure_numbers(tensor.shape for tensor in self._given.values())
        self._samples: dict[tuple[Any, ...], Values] = {}  # of a batch of arrays, see `_sampled`
        self._kinds: set[tuple[Any, ...]] = set()  # of expressions found so far: one network has few

    def explain(self, values: Values, dtype: DType) -> list[Explained]:
        """Return expressions of values of a dtype: all that give them to the bit, or else to one rounding.

        `values`: at least two that are not all equal. `dtype`: of the weight.
        """
        if dtype not in _TOLERANCE or not self._may(200_000):
            return []
        near: list[Explained] = []
        exact: list[Explained] = []
        for is_turned in (False, True):  # turned ones where nothing else gives the values, or where both ways do
            options = list(dict.fromkeys(islice(self._options(values, dtype, is_turned), _MAX_OPTIONS)))
            usual = [option for option in options if kind_of(option) in self._kinds]
            others = [option for option in options if kind_of(option) not in self._kinds]
            for group in (usual, others):
                found = [one for option in group if (one := self._tried(option, values, dtype)) is not None]
                sure = [one for one in found if one.is_exact]
                exact += sure
                if sure:
                    break
                near += found
            if (exact or near) and not _is_symmetric(values):
                break
        if exact:
            self._kinds.update(kind_of(one.derivation) for one in exact)
            return exact
        return near

    def _tried(self, option: Derivation, values: Values, dtype: DType) -> Explained | None:
        """Return a derivation that gives values; None if it does not."""
        if not self._may(50_000 + 20 * values.size):
            return None
        computed, flat = option.compute(self._array).reshape(-1), values.reshape(-1)
        places = spread(flat.size, 64)
        if computed.size != flat.size or not are_one_rounding_apart(computed[places], flat[places], dtype):
            return None
        if casts_to(computed, values, dtype):
            return Explained(option, True)
        # Another number, or another epsilon, may be one rounding away now and more with new values. An array that is
        # cast without arithmetic is exact: one that is not was scaled by almost 1, as by a new batch norm.
        is_sure = self._rounds(option) and all(number in self._sure for number in _numbers_in(option))
        return Explained(option, False) if is_sure and are_one_rounding_apart(computed, values, dtype) else None

    def _rounds(self, option: Derivation) -> bool:
        """Whether something rounds besides the cast to a weight's dtype: arithmetic, or a cast of doubles first."""
        is_plain = isinstance(option, CheckpointArray) or (isinstance(option, Moved) and not self._rounds(option.of))
        return not is_plain or any(self._given[name].mil_dtype is DType.FLOAT64 for name in option.sources())

    def _options(self, values: Values, dtype: DType, is_turned: bool) -> Iterator[Derivation]:
        """Yield expressions that may give values.

        `is_turned`: those of arrays whose equal axes changed places, and sums that were transposed.
        """
        tolerance = _TOLERANCE[dtype]
        for affine in self._affine(values, dtype, tolerance, is_turned):
            if affine.axis is None:
                yield from self._with_numbers(affine, tolerance)
            else:
                yield from self._with_vectors(affine, values.shape, tolerance)
        if is_turned:
            if values.ndim == 2 and min(values.shape) > 1:
                sums = self._sums(np.ascontiguousarray(values.T), tolerance)
                yield from (Moved(one, Layout(axes=(1, 0))) for one in sums)
            return
        if values.size == max(values.shape, default=0):
            yield from self._of_vectors(values.reshape(-1).astype(np.float64), tolerance)
        yield from self._sums(values, tolerance)

    # -------------------------------------------------------------------------------------- a factor and a shift

    def _affine(self, values: Values, dtype: DType, tolerance: float, is_turned: bool) -> Iterator[_Affine]:
        """Yield the arrays that give a weight by a factor and a shift, the simplest first."""
        names = self._checkpoint.of_size(values.size)
        if is_turned:
            names = [name for name in names if _is_turnable(self._given[name].shape, values.shape)]
        flat = values.reshape(-1)
        tiny = _TINY.get(dtype, 0.0)
        axes: list[int | None] = [None, *(at for at, size in enumerate(values.shape) if size > 1)]
        for axis in axes:
            positions = _positions(values.shape, axis, _CHANNELS, _ELEMENTS)
            if positions is None or not names or not self._may(100_000 + 30_000 * len(names)):
                continue
            y = flat[positions].astype(np.float64)
            limits = tolerance, tiny
            for name, layout, function in self._fitting(names, values.shape, axis, positions, y, limits, is_turned):
                array, shape = self._array(name).reshape(-1), self._given[name].shape
                x = array[layout.sources(shape, positions)].astype(np.float64)
                of = moved(CheckpointArray(name), layout)
                of = Applied(of, function) if function else of
                if axis is None and (np.abs(_applied(x, function) - y) <= tolerance * np.abs(y) + tiny).all():
                    # Numbers with only a few bits left in float16 do not determine a factor.
                    yield _Affine(of, None, np.ones(1), np.zeros(1))
                whole = _positions(values.shape, axis, values.size, _WIDTH)
                if whole is None or not self._may(50 * whole.size):
                    continue
                everywhere = _applied(array[layout.sources(shape, whole)].astype(np.float64), function)
                yield _Affine(of, axis, *_factors(everywhere, flat[whole].astype(np.float64)))

    def _fitting(
        self,
        names: list[str],
        new: tuple[int, ...],
        axis: int | None,
        positions: Values,
        y: Values,
        limits: tuple[float, float],
        is_turned: bool,
    ) -> Iterator[tuple[str, Layout, str]]:
        """Yield the arrays whose samples give those of a weight of shape `new`, with the layout and function for that.

        For each array and layout the first function that fits. Samples are compared for many arrays at a time.
        """
        functions = ("", *FUNCTIONS) if axis is None else ("",)
        for begin in range(0, len(names), _BATCH):
            some = names[begin : begin + _BATCH]
            found: list[tuple[int, int, Layout, str]] = []
            for kind in dict.fromkeys(map(self._kind, some)):
                alike = [at for at, name in enumerate(some) if self._kind(name) == kind]
                for order, layout in enumerate(_orders(kind[0], new, is_turned)):
                    table = self._sampled([some[at] for at in alike], layout, new, axis, positions)
                    left = np.ones(len(alike), bool)
                    for function in functions:
                        if function and not self._may(2_000 * int(left.sum())):
                            return
                        fitting = np.zeros(len(alike), bool)
                        fitting[left] = _fits(_applied(table[left], function), y, *limits)
                        found += [(alike[at], order, layout, function) for at in np.flatnonzero(fitting).tolist()]
                        left &= ~fitting
            found.sort(key=lambda one: one[:2])
            yield from ((some[at], layout, function) for at, _, layout, function in found)

    def _kind(self, name: str) -> tuple[tuple[int, ...], DType]:
        return self._given[name].shape, self._given[name].mil_dtype

    def _sampled(
        self,
        names: list[str],
        layout: Layout,
        new: tuple[int, ...],
        axis: int | None,
        positions: Values,
    ) -> Values:
        """Return arrays of one shape and dtype at some positions of a weight: float64, [arrays, *positions]."""
        key = names[0], layout, new, axis
        if key not in self._samples:
            if len(self._samples) >= _MAX_SAMPLES:
                self._samples.clear()
            sources = layout.sources(self._given[names[0]].shape, positions)
            self._samples[key] = np.stack([self._array(name).reshape(-1)[sources] for name in names])
        return self._samples[key].astype(np.float64)

    def _with_numbers(self, affine: _Affine, tolerance: float) -> Iterator[Derivation]:
        """Yield an array times a number plus a number."""
        factor, shift = float(affine.factors[0]), float(affine.shifts[0])
        for number in self._numbers(factor, tolerance):
            scaled = [_times(affine.of, number)]
            if number != Literal(1) and factor:
                scaled += [Combined("/", affine.of, one) for one in self._numbers(1 / factor, tolerance)[:2]]
            for one in scaled:
                for added in self._numbers(shift, tolerance):
                    yield one if added == Literal(0) else Combined("+", one, added)

    def _numbers(self, value: float, tolerance: float, most: int = 8) -> list[Derivation]:
        """Return numbers of code and of the checkpoint near a value, the likeliest first."""
        found: list[Derivation] = []
        for name in self._checkpoint.of_size(1):
            number = float(self._array(name).reshape(-1)[0])
            for function in ("", "exp", "sigmoid", "tanh", "reciprocal", "square", "softplus"):
                of = CheckpointArray(name)
                if abs(float(_applied(np.asarray(number), function)) - value) <= tolerance * abs(value):
                    flat = Moved(of, Layout(after=()))
                    found.append(Applied(flat, function) if function else flat)
        near = (Literal(one) for one in _literals(value) if abs(one - value) <= tolerance * max(abs(value), 1))
        return [*near, *found][:most]

    # ------------------------------------------------------------------------------------------------- per channel

    def _with_vectors(self, affine: _Affine, shape: tuple[int, ...], tolerance: float) -> Iterator[Derivation]:
        """Yield an array times a vector plus a vector, one number for each channel."""
        axis, count = affine.axis or 0, len(affine.factors)
        array = np.asarray(affine.of.compute(self._array), np.float64).reshape(shape)
        rest = tuple(at for at in range(len(shape)) if at != axis)
        mean, deviation = array.mean(axis=rest), array.std(axis=rest)
        size = np.abs(affine.factors) * np.sqrt((array**2).mean(axis=rest))
        slack = max(tolerance, _NOISE)
        along = tuple(count if at == axis else 1 for at in range(len(shape)))
        if _mostly(np.abs(affine.shifts) <= slack * size):
            yield from self._scaled(affine.of, affine.factors, along, tolerance)
            direction = Combined("/", affine.of, Reduced(affine.of, "norm", rest, True))
            lengths = np.sqrt((array**2).sum(axis=rest))
            yield from self._scaled(direction, affine.factors * lengths, along, tolerance)
        elif _mostly(np.abs(affine.shifts + affine.factors * mean) <= slack * np.abs(affine.factors) * deviation):
            for of, form, epsilon, root in _standardized(affine.of, shape, axis, deviation, array.size // count):
                if not self._may(200_000):
                    return
                whole = Standardized(of[0], of[1], form, epsilon)
                shaped = Moved(whole, Layout(after=shape)) if of[0] is not affine.of else whole
                yield from self._scaled(shaped, affine.factors * root, along, max(tolerance, 1e-3), array.size // count)
        elif _mostly(np.abs(affine.factors - 1) <= max(tolerance, 1e-3)):
            for one in self._shifts(affine.shifts, tolerance):
                yield Combined("+", affine.of, Moved(one, Layout(after=along)))

    def _scaled(
        self, of: Derivation, factors: Values, along: tuple[int, ...], tolerance: float, width: int = 1
    ) -> Iterator[Derivation]:
        """Yield expressions times the possible factors of their channels."""
        middle = float(np.nanmedian(factors)) if np.isfinite(factors).any() else 0.0
        if _mostly(np.abs(factors - middle) <= tolerance * abs(middle)):
            for number, after in _gains(middle, width, tolerance):
                yield _times(of, number) if after is None else _times(_times(of, number), after)
            yield from (_times(of, number) for number in self._numbers(middle, tolerance))
        scales = self._checkpoint.scales(len(factors))
        if scales is None:
            return
        several = scales.near(factors, tolerance) or scales.near_pairs(factors, tolerance)
        for steps in several[:_MAX_FOUND]:
            for scale in _scale_derivations(steps):
                yield Combined("*", of, Moved(scale, Layout(after=along)))
        inverse = scales.near(1 / factors, tolerance)
        for steps in inverse[:_MAX_FOUND]:
            for scale in _scale_derivations(steps):
                yield Combined("/", of, Moved(scale, Layout(after=along)))
        for norm, quotient in scales.proportional(factors, tolerance)[:_MAX_FOUND]:
            others = ((one, None) for one in self._numbers(quotient, tolerance))
            for one, after in (*_gains(quotient, width, tolerance), *others):
                for scale in _scale_derivations((norm,)):
                    scaled = Combined("*", of, Moved(_times(scale, one), Layout(after=along)))
                    yield scaled if after is None else _times(scaled, after)

    def _shifts(self, shifts: Values, tolerance: float) -> Iterator[Derivation]:
        """Yield vectors, and rows of arrays, that may be the shifts of channels."""
        for name, row in self._rows(len(shifts)):
            values = self._array(name).reshape(-1, len(shifts))[row]
            if (np.abs(values - shifts) <= tolerance * np.sqrt(np.mean(shifts**2))).all():
                yield self._row(name, row)

    def _row(self, name: str, row: int) -> Derivation:
        return row_of(name, self._given[name].shape, row)

    def _rows(self, count: int) -> Iterator[tuple[str, int]]:
        """Yield vectors of a size, and rows of arrays."""
        left = _MAX_ROWS
        for name, tensor in self._given.items():
            if tensor.ndim and tensor.shape[-1] == count and tensor.size // count <= left:
                left -= tensor.size // count
                yield from ((name, row) for row in range(tensor.size // count))

    # ------------------------------------------------------------------------------------------------ vectors, sums

    def _of_vectors(self, values: Values, tolerance: float) -> Iterator[Derivation]:
        """Yield products of vectors, and scales and shifts of batch norms."""
        scales = self._checkpoint.scales(len(values))
        if scales is None:
            return
        ways = [*scales.near(values, tolerance), *scales.near_pairs(values, tolerance)]
        for steps in ways[:_MAX_FOUND]:
            yield from _scale_derivations(steps)
        for steps in scales.near_bias(values, None, tolerance)[:_MAX_FOUND]:
            (norm,) = steps
            if norm.mean is not None and norm.beta is not None:
                for scale in _scale_derivations(steps):
                    yield Combined("-", _flat(norm.beta), Combined("*", _flat(norm.mean), scale))

    def _sums(self, values: Values, tolerance: float) -> Iterator[Derivation]:
        """Yield sums of two arrays, or an array and a row of another one."""
        count = values.size
        places = spread(count, 32)
        last = values.shape[-1] if values.ndim else 1
        is_row = last == count
        rows = list(self._rows(count)) if is_row else [(name, 0) for name in self._checkpoint.of_size(count)]
        if len(rows) < 2 or not self._may(20_000 * len(rows) + len(rows) ** 2 // 8):
            return
        table = np.stack([self._array(name).reshape(-1, count)[row][places].astype(np.float64) for name, row in rows])
        wanted = values.reshape(-1)[places].astype(np.float64)
        size = float(np.sqrt(np.mean(wanted**2)))
        rest = wanted - table
        order = np.argsort(table[:, 0], kind="stable")
        slack = tolerance * size
        low = np.searchsorted(table[order, 0], rest[:, 0] - slack, "left")
        high = np.searchsorted(table[order, 0], rest[:, 0] + slack, "right")
        for first, (begin, end) in enumerate(zip(low.tolist(), high.tolist(), strict=True)):
            for other in order[begin:end].tolist():
                if first < other and (np.abs(table[other] - rest[first]) <= slack).all():
                    ab = (self._row(*rows[at]) if is_row else CheckpointArray(rows[at][0]) for at in (first, other))
                    yield Combined("+", *(Moved(one, Layout(after=values.shape)) for one in ab))


def _mostly(conditions: Values) -> bool:
    """Whether nine of ten hold: a channel whose factor is almost 0 is weak evidence."""
    return bool(10 * np.count_nonzero(conditions) >= 9 * conditions.size)


def _positions(shape: tuple[int, ...], axis: int | None, channels: int, elements: int) -> Values | None:
    """Return places of some elements of some channels in a flattened array, [channels, elements]; None for too few."""
    size = math.prod(shape)
    if axis is None:
        return spread(size, channels * elements)[None]
    count, inner = shape[axis], math.prod(shape[axis + 1 :])
    width = size // count
    if width < _MIN_ELEMENTS:
        return None
    chosen = spread(count, channels)
    random = np.random.default_rng(width)
    some = np.arange(width) if width <= elements else np.sort(random.choice(width, elements, replace=False))
    outside, inside = np.divmod(some, inner)
    return np.asarray(outside * (count * inner) + chosen[:, None] * inner + inside)


def _orders(old: tuple[int, ...], new: tuple[int, ...], is_turned: bool) -> Iterable[Layout]:
    """Return the layouts to try; `is_turned`: all but the first, of shapes that are equal without them."""
    if is_turned:
        return layouts(old, new)[1:_MAX_LAYOUTS]
    if _sizes(old) == _sizes(new):
        return (Layout(after=None if old == new else new),)
    return layouts(old, new)[:_MAX_LAYOUTS]


def _is_turnable(old: tuple[int, ...], new: tuple[int, ...]) -> bool:
    """Whether axes can change places between shapes that are equal: two of them have one size, as in a square."""
    sizes = _sizes(old)
    return sizes == _sizes(new) and len(set(sizes)) < len(sizes)


def _is_symmetric(values: Values) -> bool:
    """Whether two axes can change places without a change: then a turned array may be the right one, too."""
    pairs = combinations([axis for axis, size in enumerate(values.shape) if size > 1], 2)
    return any(values.shape[a] == values.shape[b] and np.array_equal(values, values.swapaxes(a, b)) for a, b in pairs)


def _sizes(shape: tuple[int, ...]) -> list[int]:
    return [size for size in shape if size != 1]


def _applied(values: Values, function: str) -> Values:
    return np.asarray(FUNCTIONS[function](values) if function else values)


def _factors(x: Values, y: Values) -> tuple[Values, Values]:
    """Return the factor and the shift of each channel from x to y, [..., channels, elements]."""
    middle, level = x.mean(axis=-1), y.mean(axis=-1)
    away = x - middle[..., None]
    size = (away**2).sum(axis=-1)
    factors = np.where(size > 0, (away * (y - level[..., None])).sum(axis=-1) / np.where(size > 0, size, 1), np.nan)
    return factors, level - factors * middle


def _fits(x: Values, y: Values, tolerance: float, tiny: float) -> Values:
    """Whether y, [channels, elements], is x, [arrays, channels, elements], but for factors and shifts: [arrays]."""
    factors, shifts = _factors(x, y)
    rest = np.abs(y - (factors[..., None] * x + shifts[..., None]))
    fitting = rest <= tolerance * np.abs(y).max(axis=-1, keepdims=True) + tiny
    return np.asarray((fitting & np.isfinite(x)).all(axis=(-2, -1)))


def _literals(value: float) -> Iterator[float]:
    """Yield numbers near a value that code may hold."""
    if not math.isfinite(value):
        return
    yield from (0.0, float(round(value)))
    size, sign = abs(value), math.copysign(1.0, value)
    if 1e-4 < size < 1e4:
        square, inverse = round(size**2), round(1 / size**2)
        yield from (sign * math.sqrt(square), sign / math.sqrt(inverse or 1), sign / (round(1 / size) or 1))
    for digits in (1, 2):  # of three, one is near any number
        yield float(f"{value:.{digits}g}")


def _gains(value: float, width: int, tolerance: float) -> list[tuple[Literal, Literal | None]]:
    """Return the gains of networks without norms near a value, for channels of `width` elements.

    What follows each is a decimal of the network, such as an alpha of 0.2, that a converter multiplied by afterwards.
    """
    found: list[tuple[Literal, Literal | None]] = []
    for number in (gain / math.sqrt(width) for gain in (1.0, *GAINS)):
        if abs(number - value) <= tolerance * abs(value):
            found.insert(0, (Literal(number), None))
        elif abs((after := float(f"{value / number:.1g}")) * number - value) <= tolerance * abs(value):
            found.append((Literal(number), Literal(after)))
    return found


def _times(of: Derivation, number: Derivation) -> Derivation:
    return of if number == Literal(1) else Combined("*", of, number)


def _sure_numbers(shapes: Iterable[tuple[int, ...]]) -> frozenset[float]:
    """Return the sparse ones of the numbers that code may hold: few are near each other."""
    found = {0.0, *(sign * one for n in range(1, 17) for one in (n, 1 / n) for sign in (1, -1))}
    for shape in set(shapes):
        for size in shape:
            found |= {math.sqrt(size), 1 / math.sqrt(size or 1)}
        width = math.prod(shape[1:]) or 1
        found |= {gain / math.sqrt(width) for gain in (1.0, *GAINS)}
    return frozenset(float(one) for one in found)


def _numbers_in(derivation: Derivation) -> Iterator[float]:
    if isinstance(derivation, Literal):
        yield derivation.value
    elif isinstance(derivation, Standardized) or (isinstance(derivation, Applied) and "sqrt" in derivation.name):
        yield math.nan  # the root of a variance and an epsilon, which may be 0
    for step in derivation.steps:
        yield from _numbers_in(step)


def _flat(name: str) -> Derivation:
    return Moved(CheckpointArray(name), Layout(after=(-1,)))


def _scale_derivations(steps: tuple[Norm, ...]) -> Iterator[Derivation]:
    """Yield the product of norms' scales in the orders in which it may have been computed."""
    norm = steps[0]
    if len(steps) > 1:
        for first in _scale_derivations(steps[:1]):
            yield from (Combined("*", first, other) for other in _scale_derivations(steps[1:]))
    elif norm.variance is None:
        yield _flat(str(norm.gamma))
    else:
        variance = Combined("+", _flat(norm.variance), Literal(norm.epsilon))
        if norm.gamma is None:
            yield Applied(variance, "rsqrt")
        else:
            yield Combined("/", _flat(norm.gamma), Applied(variance, "sqrt"))
            yield Combined("*", _flat(norm.gamma), Applied(variance, "rsqrt"))


def _standardized(
    of: Derivation, shape: tuple[int, ...], axis: int, deviation: Values, width: int
) -> Iterator[tuple[tuple[Derivation, tuple[int, ...]], str, float, Values]]:
    """Yield the ways in which channels are standardized: the operand and axes, the form, epsilon, the divisors."""
    ways = [(of, tuple(at for at in range(len(shape)) if at != axis))]
    if axis == 0:  # torch's `batch_norm` of the weight as [1, channels, elements]
        ways.insert(0, (Moved(of, Layout(after=(1, shape[0], width))), (0, 2)))
    for form in STANDARDS:
        spread = deviation**2 * (width / (width - 1) if form == STANDARDS[1] else 1.0)
        for epsilon in EPSILONS:
            root = np.sqrt(spread) + epsilon if form == STANDARDS[2] else np.sqrt(spread + epsilon)
            yield from ((way, form, epsilon, root) for way in ways)
