"""milblob.diff: compare two models, or a model and a file of arrays: names, shapes, dtypes, values."""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple, cast

import numpy as np

from .. import _codec
from ..arguments import Names, as_mapping, require, require_calls, require_flags
from ..dtypes import DType
from ..model.elements import PIECE_COUNT, Elements, are_stored_alike, have_equal_bits, starts
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.tensor import Tensor
from ..progress import Counter, Progress
from ..selection import Select, require_selected, selector
from ..threads import ordered
from ..wording import escape
from .aligning import Alignment
from .changes import Change
from .diff_metadata import compare_metadata
from .diff_program import compare_programs
from .limits import Failure, Limits
from .operations import Key, key_of
from .pairing import left_out, of_function, pair
from .sides import Side

_DIFFERENT = ("different", "dtype", "shape", "only_a", "only_b")
_MAX_LINES = 40
_MAX_NAMES = 8
_SMALL_COUNT = 1 << 14
"""Elements of a stored part; comparing fewer again costs less than finding out whether they were compared before."""

_LEAST = 2.0**-960
"""Of sums of squares: below it, what single squares lose to underflow shows in the figures."""


class Figures(NamedTuple):
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


class TensorDiff(NamedTuple):
    """One tensor of A and its counterpart in B.

    Attributes:
        name: in A; in B if it is only there.
        other: its name in B; None if it is only in A, or only in B.
        kind: "same" (dtype, shape, bits); "stored" (the same, compressed in another way); "close" (every element within
            the tolerances, or 0 for -0); "dtype" (the same values in another dtype); "different" (some element outside
            the tolerances); "shape" (other dimensions; values are not compared); "only_a", "only_b"; "named" (in both;
            only names were compared). With tolerances above 0, another dtype is "close" too.
        dtypes, shapes, compressions: of A and of B; None for a missing tensor.
        count: elements of A, or of B if it is only there.
        figures: None if the bits are the same or no values were compared.
    """

    name: str
    other: str | None
    kind: str
    dtypes: tuple[DType | None, DType | None]
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None]
    compressions: tuple[str, str]
    count: int  # type: ignore[assignment]  # hides tuple.count
    figures: Figures | None = None

    @property
    def is_different(self) -> bool:
        """Whether it makes the models differ."""
        return self.kind in _DIFFERENT

    @property
    def words(self) -> str:
        """What differs, in one line."""
        return _words(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it; figures that are no finite number are null."""
        row: dict[str, Any] = {
            "name": self.name,
            "other": self.other,
            "kind": self.kind,
            "different": self.is_different,
        }
        row["dtypes"] = [None if dtype is None else str(dtype) for dtype in self.dtypes]
        row["shapes"] = [None if shape is None else list(shape) for shape in self.shapes]
        row |= {"compressions": [str(scheme) for scheme in self.compressions], "elements": self.count, "figures": None}
        if self.figures is not None:
            row["figures"] = {key: _finite(value) for key, value in self.figures._asdict().items()}
        return row


@dataclass(frozen=True)
class Diff:
    """The differences between A and B. True if there are any.

    Attributes:
        a, b: what was compared: paths, or descriptions of anything without a path.
        rows: a TensorDiff for every tensor, in the order of A, then those that only B has.
        structure: Changes of the Programs.
        metadata: Changes of the models' metadata.
        tools: Changes in when and by which tools the models were made; they do not count as differences.
        notes: Changes that do not count as differences: names of operations.
        left_out: names of A that the mapping leaves out; they were not compared.
        atol, rtol: the tolerances.
        names_only: whether only names were compared.
    """

    a: str
    b: str
    rows: list[TensorDiff]
    structure: list[Change] = field(default_factory=list)
    metadata: list[Change] = field(default_factory=list)
    tools: list[Change] = field(default_factory=list)
    notes: list[Change] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    atol: float = 0.0
    rtol: float = 0.0
    names_only: bool = False

    @property
    def same(self) -> bool:
        """Whether nothing differs: neither tensors (beyond the tolerances) nor Programs nor metadata."""
        return not (self.structure or self.metadata or any(row.is_different for row in self.rows))

    def __bool__(self) -> bool:
        return not self.same

    @property
    def totals(self) -> dict[str, int]:
        """The number of tensors of each kind, of elements compared, and of Changes."""
        kinds = ("same", "stored", "close", "dtype", "different", "shape", "only_a", "only_b", "named")
        found = dict.fromkeys(kinds, 0)
        for row in self.rows:
            found[row.kind] += 1
        compared = sum(row.count for row in self.rows if row.kind in kinds[:5])
        return {**found, "elements": compared, "structure": len(self.structure), "metadata": len(self.metadata)}

    def worst(self) -> list[TensorDiff]:
        """Return the rows that differ or are close: those without figures first, then by descending relative error."""
        rows = [row for row in self.rows if row.is_different or row.kind in ("close", "stored")]
        return sorted(rows, key=_rank)

    def failing(
        self, *, min_sqnr: float | None = None, min_cosine: float | None = None, max_abs: float | None = None
    ) -> list[Failure]:
        """Return the weights that are beyond a limit, those without figures first, then by descending relative error.

        Equal values are within any limit. A weight without a counterpart, or with one of another shape, is within none.
        Programs and metadata play no part, nor do the tolerances.

        Args:
            min_sqnr: least signal-to-noise ratio, in dB.
            min_cosine: least cosine.
            max_abs: largest |b - a|.

        Raises:
            TypeError, ValueError: no number, or no limit at all. ValueError: only names were compared.
        """
        limits = Limits(min_sqnr, min_cosine, max_abs)
        limits.require()
        if self.names_only:
            raise ValueError("limits: expected a comparison of values, got one of names only")
        return [failure for row in sorted(self.rows, key=_rank) if (failure := limits.judge(row)) is not None]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        document: dict[str, Any] = {"a": self.a, "b": self.b, "same": self.same, "names_only": self.names_only}
        document |= {"atol": self.atol, "rtol": self.rtol, "tensors": [row.to_dict() for row in self.rows]}
        for key in ("structure", "metadata", "tools", "notes"):
            document[key] = [change.to_dict() for change in getattr(self, key)]
        document["left_out"] = list(self.left_out)
        return {**document, "totals": self.totals}

    def __str__(self) -> str:
        lines = [f"{row.name}: {row.words}" for row in self.rows if row.kind not in ("same", "named")]
        lines += map(str, (*self.structure, *self.metadata))
        if len(lines) > _MAX_LINES:
            lines[_MAX_LINES:] = [f"... and {len(lines) - _MAX_LINES} more"]
        verdict = "same" if self.same else "different"
        return "\n".join(map(escape, [f"{self.a} and {self.b}: {verdict}, {summary(self)}", *lines]))


def summary(diff: Diff) -> str:
    """Return the number of tensors of each kind as text, and what the mapping left out."""
    words = {
        "same": "the same", "stored": "the same, stored otherwise", "close": "close", "named": "in both",
        "dtype": "of another dtype", "different": "with other values", "shape": "of another shape",
        "only_a": "only in A", "only_b": "only in B",
    }  # fmt: skip
    parts = [f"{diff.totals[kind]:,} {text}" for kind, text in words.items() if diff.totals[kind]]
    count = len(diff.rows)
    text = f"{count:,} tensor{'' if count == 1 else 's'}" + (f": {', '.join(parts)}" if parts else "")
    if diff.left_out:
        more = ", ..." if len(diff.left_out) > _MAX_NAMES else ""
        text += f"; {len(diff.left_out):,} of A left out by the mapping: {', '.join(diff.left_out[:_MAX_NAMES])}{more}"
    return text


def diff(
    a: Any,
    b: Any,
    *,
    select: Select = None,
    function: str | None = None,
    mapping: Mapping[str, Names] | None = None,
    atol: float = 0.0,
    rtol: float = 0.0,
    names_only: bool = False,
    stored: bool = False,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> Diff:
    """Compare two models, or a model and a file of arrays, regardless of compression.

    Tensors are paired by `mapping`, by name, by name without function or pipeline prefix if that is unambiguous, and
    finally by their consumers: coremltools renames a weight when it compresses it. A weight that counts as one on only
    one side, because it is in a weight file, is paired with the small constant of the other. Positions and order of
    tensors, uninitialised bytes, and how a Program is serialized do not count.

    Args:
        a, b: each a path (a model, weight file or listing; .safetensors, .npz, .npy or a directory of .npy), an open
            Model, or a mapping from names to arrays. A is the reference.
        select: glob, several, or a function of a name: only tensors that it selects by the name of either side are
            compared, and no Programs and metadata.
        function: likewise only tensors of this function.
        mapping: name in `a` -> name in `b`, or a list of names; None leaves the tensor of `a` out.
        atol, rtol: elements may differ by atol + rtol * |a|.
        names_only: compare only which names there are.
        stored: compare the stored parts of compressed weights instead of the weights.
        progress: called as each tensor of `a` has been compared (see `Progress`).
        max_nbytes: as for `open`, of each side that is opened here.

    Returns:
        Diff. Programs and metadata are compared if both are models.

    Raises:
        KeyError: an unknown name in `mapping`; a function that neither has. ValueError: two names for one tensor; a
            negative tolerance; a `select` that selects nothing. TypeError: arrays of neither numbers nor text.
        As `open`, `formats.read.open_arrays` and `Tensor.read`.
    """
    require_flags(names_only=names_only, stored=stored)
    require_calls(progress=progress)
    is_selected = selector(select)
    require("function", function, str | None, "a name")
    names = as_mapping("mapping", mapping, "a mapping of names")
    for what, tolerance in (("atol", atol), ("rtol", rtol)):
        require(what, tolerance, Real, "a number")
    if not (atol >= 0 and rtol >= 0):
        raise ValueError(f"tolerances: expected 0 or more, got {atol} and {rtol}")
    if names_only and (atol or rtol):
        raise ValueError(f"tolerances: expected none with names_only, which compares no values, got {atol} and {rtol}")
    with contextlib.ExitStack() as stack:
        first, second = (Side.open(side, stored, stack, max_nbytes) for side in (a, b))
        if stored and not first.has_parts and not second.has_parts:
            raise ValueError(f"{first.words}, {second.words}: expected a model, which stored (--stored) is about")
        first, second = first.beside(second), second.beside(first)
        alignment = None
        if first.has_program and second.has_program:
            alignment = Alignment(cast(Model, first.model), cast(Model, second.model))
        pairs = pair(first, second, names, alignment, reads=not names_only)
        if function is not None:
            pairs = of_function(pairs, first, second, function)
        pairs = [both for both in pairs if any(name is not None and is_selected(name) for name in both)]
        inside = "" if function is None else f", function {function}"
        require_selected(select, bool(pairs), f"{first.words} or {second.words}{inside}")
        rows = []
        parts = _Parts()
        counter = Counter(progress, (first.tensors[old] for old, _ in pairs if old is not None))
        for old, new in pairs:
            ours, theirs = (s.tensors[n] if n is not None else None for s, n in ((first, old), (second, new)))
            rows.append(_compare(old, ours, new, theirs, atol, rtol, names_only, parts))
            if ours is not None:
                counter.add_tensor(str(old), ours)
        result = Diff(first.words, second.words, rows, atol=atol, rtol=rtol, names_only=names_only)
        result.left_out.extend(left_out(first, mapping or {}))
        if alignment is not None and select is None and function is None and not names_only:
            keys = [(_key(first, old), _key(second, new)) for old, new in pairs]
            _compare_programs(alignment, result, keys)
            for target, changes in zip(
                (result.metadata, result.tools), compare_metadata(*alignment.models), strict=True
            ):
                target.extend(changes)
        return result


def _compare_programs(alignment: Alignment, result: "Diff", keys: list[tuple[Key | None, Key | None]]) -> None:
    """Add how two Programs differ; remove the rows of small constants without a counterpart that this compares."""
    seen: tuple[set[Key], set[Key]] = set(), set()
    changes, notes = compare_programs(alignment, {(x, y) for x, y in keys if x and y}, seen)
    rows = zip(result.rows, keys, strict=True)
    result.rows[:] = [row for row, (x, y) in rows if (x and y) or not (x in seen[0] or y in seen[1])]
    result.structure.extend(changes)
    result.notes.extend(notes)


def _key(side: Side, name: str | None) -> Key | None:
    tensor = None if name is None else side.tensors[name]
    return key_of(tensor) if isinstance(tensor, Tensor) else None


# ----------------------------------------------------------------------------------------------------------- one tensor


def _compare(
    old: str | None,
    a: LazyTensor | None,
    new: str | None,
    b: LazyTensor | None,
    atol: float,
    rtol: float,
    names_only: bool,
    parts: "_Parts",
) -> TensorDiff:
    """Compare two tensors, of which one may be missing."""
    either = cast(LazyTensor, a if a is not None else b)
    if a is None or b is None or names_only:
        kind = "named" if a is not None and b is not None else "only_a" if b is None else "only_b"
        other = new if kind == "named" else None
        shapes = tuple(None if t is None else _declared(t) for t in (a, b))
        dtypes = tuple(None if t is None else t.mil_dtype for t in (a, b))
        schemes = tuple("" if t is None else _scheme(t) for t in (a, b))
        count = math.prod(_declared(either) or (0,))
        return TensorDiff(str(old if old is not None else new), other, kind, dtypes, shapes, schemes, count)  # type: ignore[arg-type]
    row = TensorDiff(
        str(old), new, "same", (a.mil_dtype, b.mil_dtype), (a.shape, b.shape), (_scheme(a), _scheme(b)), a.size
    )
    if a.shape != b.shape:
        return row._replace(kind="shape")
    if DType.STRING in row.dtypes:
        if a.mil_dtype is not b.mil_dtype:
            return row._replace(kind="different")
        return row if a.read().tolist() == b.read().tolist() else row._replace(kind="different")
    are_tensors = False
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if parts.are_equal(a, b):
            return row
        are_tensors = True
    ours, theirs = Elements(a), Elements(b)
    is_compared = are_tensors and not any(row.compressions)  # parts are compared one by one
    if a.mil_dtype is b.mil_dtype and not is_compared and have_equal_bits(ours, theirs):
        return row if row.compressions[0] == row.compressions[1] else row._replace(kind="stored")
    figures = measure(ours, theirs, atol, rtol)
    if figures.outside:
        kind = "different"
    elif a.mil_dtype is b.mil_dtype or atol > 0 or rtol > 0:
        kind = "close"
    else:
        kind = "dtype"
    return row._replace(kind=kind, figures=figures)


def _declared(tensor: LazyTensor) -> tuple[int, ...]:
    """Return the shape without reading values to find an open dimension."""
    shape = tensor.declared_shape if isinstance(tensor, Tensor) else tensor.shape
    return tuple(-1 if size is None else size for size in shape)


def _scheme(tensor: LazyTensor) -> str:
    return tensor.compression if isinstance(tensor, Tensor) else ""


class _Parts:
    """Which stored parts of two models have the same bits; each pair is compared once, even if weights share it."""

    def __init__(self) -> None:
        self._known: dict[Any, bool] = {}

    def are_equal(self, a: Tensor, b: Tensor) -> bool:
        """Whether two weights are stored as the same bits, so nothing needs decoding."""
        if a.chain is None and b.chain is None and a.size < _SMALL_COUNT:
            return self._compare(a, b)
        key = *_identity(a), *_identity(b)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._compare(a, b)
        return found

    def _compare(self, a: Tensor, b: Tensor) -> bool:
        if a.chain is None or b.chain is None:
            if a.chain is not b.chain or a.mil_dtype is not b.mil_dtype or a.shape != b.shape:
                return False
            if a.mil_dtype is DType.STRING:
                return bool(a.read().tolist() == b.read().tolist())
            return are_stored_alike(a, b)
        ours, theirs = a.parts, b.parts
        if a.op != b.op or ours.keys() != theirs.keys() or a.chain.output != b.chain.output:
            return False
        return all(self.are_equal(ours[key], theirs[key]) for key in ours)


def _identity(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key that identifies a tensor of an open model; in a weight file, its position and type."""
    if not tensor.is_blob:
        return (tensor.name,)
    return tensor.place.key(), tensor.mil_dtype.mil_code, tensor.declared_shape


def measure(a: Elements, b: Elements, atol: float = 0.0, rtol: float = 0.0) -> Figures:
    """Compare the values of two tensors of equal size, in their order.

    Raises:
        ValueError: different numbers of elements.
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
    sqnr = None
    if relative is not None:
        sqnr = math.inf if not relative else 20 * math.log10(1 / relative)
    return Figures(unequal, outside, mismatched, total.most, mean, relative, cosine, centred, sqnr)


def _spread(squares: float, total: float, count: int) -> float:
    """Return the sum of squared distances from the mean; 0 if rounding leaves nothing."""
    spread = squares - total * (total / count)
    return spread if spread > squares * 1e-12 else 0.0


def _cosine(ab: float, aa: float, bb: float) -> float | None:
    if not aa or not bb:
        return None
    return max(-1.0, min(1.0, ab / (math.sqrt(aa) * math.sqrt(bb))))


# ---------------------------------------------------------------------------------------------------------------- words


def _rank(row: TensorDiff) -> tuple[int, float, bool]:
    if row.figures is None:
        return (0 if row.is_different else 2), 0.0, False
    relative = row.figures.relative
    return (0, 0.0, False) if relative is None or row.figures.mismatched else (1, -relative, not row.is_different)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _words(row: TensorDiff) -> str:
    dtypes, shapes = row.dtypes, row.shapes
    if row.kind in ("only_a", "only_b"):
        side = row.kind == "only_b"
        return f"only in {'B' if side else 'A'}: {dtypes[side]} {_shape_words(shapes[side])}"
    words = [] if row.other in (None, row.name) else [f"is {row.other}"]
    if row.kind == "shape":
        words.append(f"shape {_shape_words(shapes[0])} in A, {_shape_words(shapes[1])} in B")
    if dtypes[0] is not dtypes[1]:
        words.append(f"{dtypes[0]} in A, {dtypes[1]} in B")
    if row.compressions[0] != row.compressions[1]:
        words.append(f"{row.compressions[0] or 'dense'} in A, {row.compressions[1] or 'dense'} in B")
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
