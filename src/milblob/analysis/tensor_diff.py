"""The differences of one tensor between A and B: figures of its values, and their text."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from .. import _codec, decibels
from ..dtypes import DType
from ..model.elements import PIECE_COUNT, Elements, starts
from ..program.compression import Compression
from ..results import Result
from ..threads import ordered

_DIFFERENT = ("different", "dtype", "shape", "only_a", "only_b")

_LEAST = 2.0**-960
"""Of sums of squares: below it, what single squares lose to underflow shows in the figures."""


@dataclass(frozen=True, repr=False)
class Figures(Result):
    """Differences between the values of two tensors of one shape; B - A is treated as noise on the signal A.

    Elements that are NaN or infinite on either side count only in the first three figures. NaNs are equal if their bits
    agree, infinities if their signs do; otherwise they are `mismatched`, `unequal` and `outside`. 0 equals -0.

    Attributes:
        unequal: number of elements that differ.
        outside: number of elements that differ by more than atol + rtol * |a|.
        mismatched: number of elements that are NaN or infinite on one side, and not the same on the other.
        max_abs, mean_abs: the largest and the mean |b - a|. These and all below are None without finite elements, or if
            float64 cannot hold the sum of distances (below: of squares).
        relative: norm of b - a over norm of a; None if a is zero and b is not.
        cosine: of the angle between a and b; None if one of them is zero.
        correlation: the same after subtracting their means; None if one of them is constant.
        sqnr: signal-to-noise ratio in dB, 20 * log10(1 / relative): infinite if nothing differs.

    Examples:
        >>> [row] = milblob.diff({"w": np.float32([3, 4])}, {"w": np.float32([3, 5])}).rows
        >>> row.figures.unequal, row.figures.max_abs, row.figures.relative, round(row.figures.sqnr, 2)
        (1, 1.0, 0.2, 13.98)
    """

    unequal: int
    outside: int
    mismatched: int
    max_abs: float | None
    mean_abs: float | None
    relative: float | None
    cosine: float | None
    correlation: float | None
    sqnr: float | None


@dataclass(frozen=True, repr=False)
class TensorDiff(Result):
    """One tensor of A and its counterpart in B.

    Attributes:
        name: in A; in B if it is only there.
        other: its name in B; None if it is only in A, or only in B.
        kind: "same" (dtype, shape, bits); "stored" (the same, compressed in another way); "close" (every element within
            the tolerances, or 0 for -0); "dtype" (the same values in another dtype); "different" (some element outside
            the tolerances); "shape" (other dimensions; values are not compared); "only_a", "only_b"; "named" (in both;
            only names were compared). With tolerances above 0, another dtype is "close" too.
        dtypes, shapes, compressions: of A and of B; None for a missing tensor, and for a weight that is not compressed.
        count: elements of A, or of B if it is only there.
        figures: None if the bits are the same or no values were compared.

    Examples:
        >>> bias = np.ones(96, np.float32)
        >>> report = milblob.refit("demo.mlpackage", {"head_bias": bias}, destination="new.mlpackage")
        >>> [row] = milblob.diff("demo.mlpackage", "new.mlpackage").worst()
        >>> row.name, row.kind, row.count, row.figures.unequal
        ('head_bias', 'different', 96, 96)
    """

    name: str
    other: str | None
    kind: str
    dtypes: tuple[DType | None, DType | None]
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    compressions: tuple[Compression | None, Compression | None]
    count: int
    figures: Figures | None = None

    _keys: ClassVar = {
        "is_different": "different",
        "schemes": "compressions",
        "compressions": None,
        "count": "elements",
    }

    @property
    def is_different(self) -> bool:
        """Whether it makes the models differ."""
        return self.kind in _DIFFERENT

    @property
    def schemes(self) -> tuple[str, str]:
        """The compression schemes of both sides; "" for a dense weight."""
        a, b = ("" if one is None else one.scheme for one in self.compressions)
        return a, b

    @property
    def is_same(self) -> bool:
        """Whether it does not: `is_different` is the opposite."""
        return not self.is_different

    @property
    def message(self) -> str:
        """What differs, in one line."""
        return _message(self)


def measure(a: Elements, b: Elements, atol: float = 0.0, rtol: float = 0.0) -> Figures:
    """Compare the values of two tensors of equal size, in their order.

    Raises: ValueError: different numbers of elements.
    """
    if a.count != b.count:
        raise ValueError(f"elements: expected as many on both sides, got {a.count} and {b.count}")
    codes = a.dtype.mil_code, b.dtype.mil_code

    def work(begin: int) -> _codec.Comparison:
        count = min(PIECE_COUNT, a.count - begin)
        x, y = a.read(begin, count), b.read(begin, count)
        return _codec.compare(codes[0], x.view(np.uint8), codes[1], y.view(np.uint8), atol, rtol)

    total = _codec.Comparison()
    for part in ordered(work, starts(a.count), a.count > 4 * PIECE_COUNT):  # in order: the same result on any machine
        total.add(part)
    return _figures(total)


def _figures(total: _codec.Comparison) -> Figures:
    _, finite, unequal, outside, mismatched = total.counts
    if not finite:
        return Figures(unequal, outside, mismatched, None, None, None, None, None, None)
    sum_a, sum_b, aa, bb, ab, distance, noise = total.sums
    mean = distance / finite if math.isfinite(distance) else None
    if not all(x == 0 or _LEAST <= x < math.inf for x in (aa, bb, noise)) or (total.most and not noise):
        return Figures(unequal, outside, mismatched, total.most, mean, None, None, None, None)
    relative = math.sqrt(noise) / math.sqrt(aa) if aa else (0.0 if not noise else None)
    cosine = _cosine(ab, aa, bb)
    centred = _cosine(ab - sum_a * (sum_b / finite), _spread(aa, sum_a, finite), _spread(bb, sum_b, finite))
    ratio = None if relative is None else decibels.of_norm(relative)
    return Figures(unequal, outside, mismatched, total.most, mean, relative, cosine, centred, ratio)


def _spread(squares: float, total: float, count: int) -> float:
    """Return the sum of squared distances from the mean; 0 if rounding leaves nothing."""
    spread = squares - total * (total / count)
    return spread if spread > squares * 1e-12 else 0.0


def _cosine(ab: float, aa: float, bb: float) -> float | None:
    if not aa or not bb:
        return None
    return max(-1.0, min(1.0, ab / (math.sqrt(aa) * math.sqrt(bb))))


def _message(row: TensorDiff) -> str:
    dtypes, shapes = row.dtypes, row.shapes
    if row.kind in ("only_a", "only_b"):
        side = row.kind == "only_b"
        return f"only in {'B' if side else 'A'}: {dtypes[side]} {_shape_words(shapes[side])}"
    words = [] if row.other in (None, row.name) else [f"is {row.other}"]
    if row.kind == "shape":
        words.append(f"shape {_shape_words(shapes[0])} in A, {_shape_words(shapes[1])} in B")
    if dtypes[0] is not dtypes[1]:
        words.append(f"{dtypes[0]} in A, {dtypes[1]} in B")
    if row.schemes[0] != row.schemes[1]:
        words.append(f"{row.schemes[0] or 'dense'} in A, {row.schemes[1] or 'dense'} in B")
    figures = row.figures
    if row.kind in ("stored", "dtype") or (figures is not None and not figures.unequal):
        words.append("same values" if row.kind != "close" or dtypes[0] is not dtypes[1] else "equal but for -0")
    elif figures is not None:
        words.append(f"{figures.unequal:,} of {row.count:,} elements differ")
        if figures.outside != figures.unequal:
            words.append(f"{figures.outside:,} beyond the tolerance")
        if figures.mismatched:
            words.append(f"{figures.mismatched:,} NaN or infinite on one side")
        for name, value, unit in (
            ("max", figures.max_abs, ""), ("mean", figures.mean_abs, ""), ("relative", figures.relative, ""),
            ("cosine", figures.cosine, ""), ("SQNR", figures.sqnr, " dB"),
        ):  # fmt: skip
            if value is not None:
                words.append(f"{name} {value:.6g}{unit}")
    elif row.kind == "different":
        words.append("other values")
    return ", ".join(words) or row.kind


def _shape_words(shape: tuple[int, ...] | None) -> str:
    return f"[{', '.join('?' if size < 0 else str(size) for size in shape or ())}]"
