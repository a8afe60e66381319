"""milblob.match: which training tensor became which weight of a model."""

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from . import _codec
from .arguments import require, require_calls
from .casting import cast_array, is_castable
from .compare import measure, printable
from .dtypes import DType
from .formats.elements import Readable
from .layouts import Layout, layouts
from .model import Model
from .ranges import PIECE_COUNT, Elements, starts
from .sides import Side
from .structure import WEIGHT_COUNT
from .tensor import Tensor

MIN_CORRELATION = 0.7
_MIN_COUNT = 16  # of elements; fewer are alike by accident
_SAMPLE_COUNT = 1024
_SLACK = 0.12  # by how much the correlation of a sample may be below that of the whole
_TIE = 0.002  # correlations that are closer say nothing about which it is
_MAX_CONFIRMED = 4  # candidates for a weight that are compared in full
_MAX_VERIFIED = 4096  # pairs with the same elements whose order is looked at
_FLOATS = frozenset(dtype for dtype in DType if "FLOAT" in dtype.name)


class Match(NamedTuple):
    """A training tensor and the weight it became.

    Attributes:
        given: name in the weights that were given.
        name: of the weight in the model.
        how: "exact" (the same elements after a cast), "name" (likewise, one of several equal tensors, chosen by its
            name) or "similar".
        given_dtype, given_shape, dtype, shape: of the two.
        layout: what makes the one's order of elements the other's.
        compression: scheme of the weight, "" if it is stored dense.
        correlation: of the values; 1.0 if they are exact.
    """

    given: str
    name: str
    how: str
    given_dtype: DType
    given_shape: tuple[int, ...]
    dtype: DType
    shape: tuple[int, ...]
    layout: Layout
    compression: str
    correlation: float

    @property
    def needs(self) -> list[str]:
        """What makes the given tensor the weight, such as ["transpose (1, 0)", "cast float32 to float16"]."""
        steps = self.layout.words
        if self.given_dtype is not self.dtype:
            steps.append(f"cast {self.given_dtype} to {self.dtype}")
        return [*steps, f"compress ({self.compression})"] if self.compression else steps

    @property
    def refit(self) -> str:
        """How `refit` takes it: "as it is", "with a cast" (cast=True), or "" if it does not."""
        if self.compression or not self.layout.is_identity:
            return ""
        return "as it is" if self.given_dtype is self.dtype else "with a cast"

    def apply(self, array: Any) -> np.ndarray[Any, Any]:
        """Return the given tensor in the layout and dtype of the weight; too large numbers become infinite.

        Args:
            array: of `given_shape`.

        Raises:
            TypeError: a cast between floats and integers.
        """
        moved = self.layout.apply(np.ascontiguousarray(np.asarray(array)).reshape(self.given_shape))
        return cast_array(np.ascontiguousarray(moved).reshape(self.shape), self.dtype, overflow="inf")[0]

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        row: dict[str, Any] = {"given": self.given, "name": self.name, "how": self.how}
        row |= {"given_dtype": str(self.given_dtype), "given_shape": list(self.given_shape)}
        row |= {"dtype": str(self.dtype), "shape": list(self.shape), "compression": str(self.compression)}
        return {**row, "needs": self.needs, "refit": self.refit, "correlation": self.correlation}


class Tie(NamedTuple):
    """Tensors that could be each other's: equal ones, or as good as equal.

    Attributes:
        given: names in the weights that were given.
        names: of weights in the model.
    """

    given: list[str]
    names: list[str]


@dataclass(frozen=True)
class Matching:
    """What `match` found.

    Attributes:
        weights, model: what was matched: paths, or words for what has none.
        matches: one for each training tensor that was found, in their order.
        ties: what could not be told apart.
        unmatched_given: training tensors that became no weight of the model.
        unmatched_names: weights of the model that come from none.
    """

    weights: str
    model: str
    matches: list[Match]
    ties: list[Tie]
    unmatched_given: list[str]
    unmatched_names: list[str]

    @property
    def mapping(self) -> dict[str, str]:
        """Name in the weights -> name in the model, of all matches."""
        return {match.given: match.name for match in self.matches}

    @property
    def refit_mapping(self) -> dict[str, str | None]:
        """What `refit(mapping=...)` takes: names of the tensors that it can write, and None for the others.

        Those with another dtype need cast=True. What needs another layout is None too: see `Match.apply`.
        """
        found: dict[str, str | None] = {match.given: match.name if match.refit else None for match in self.matches}
        rest = [*(name for tie in self.ties for name in tie.given), *self.unmatched_given]
        return found | dict.fromkeys(name for name in rest if name not in found)

    def as_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        document: dict[str, Any] = {"weights": self.weights, "model": self.model}
        document["matches"] = [match.as_dict() for match in self.matches]
        document["ties"] = [tie._asdict() for tie in self.ties]
        return {**document, "unmatched_given": self.unmatched_given, "unmatched_names": self.unmatched_names}

    def __str__(self) -> str:
        lines = [f"{m.given} -> {m.name}" + (f" ({', '.join(m.needs)})" if m.needs else "") for m in self.matches]
        lines += [f"{', '.join(tie.given)} -> one of {', '.join(tie.names)}" for tie in self.ties]
        return "\n".join(map(printable, [*lines, summary(self)]))


def summary(matching: Matching) -> str:
    """Say in words how much was found, and what `refit` can take of it."""
    ways = [match.refit for match in matching.matches]
    words = f"{len(ways):,} matched"
    if ways:
        words += f": refit takes {ways.count('as it is'):,} as they are, {ways.count('with a cast'):,} with --cast"
        words += f", not {ways.count(''):,}"
    if matching.ties:
        words += f"; {sum(len(tie.names) for tie in matching.ties):,} weights ambiguous"
    lost = (len(matching.unmatched_names), "of the model"), (len(matching.unmatched_given), "given")
    return words + "".join(f"; {count:,} {whose} not matched" for count, whose in lost if count)


def match(
    weights: Any,
    model: Any,
    *,
    threshold: float = MIN_CORRELATION,
    select: Callable[[str], bool] | None = None,
    progress: Callable[[str, int], None] | None = None,
) -> Matching:
    """Find which training tensor became which weight of a model.

    First those with the same elements once they are cast to the weight's dtype: in the same order, in that of permuted
    axes (for matrices: transposed), or of another shape. Then, for weights that are compressed or otherwise changed,
    those whose values correlate best. Equal tensors are told apart by their names where these agree.

    Args:
        weights: path of a .safetensors, .npz or .npy file, of a directory of .npy files, or of a model; or a mapping
            from names to arrays.
        model: what `open` takes, or an open Model. A weight of several names, as of two functions, has the first.
        threshold: correlation (the cosine once the means are taken off) from which values count as similar.
        select: called with names of weights in the model; others are left out.
        progress: told of the name and stored bytes of each training tensor that was looked at.

    Returns:
        Matching.

    Raises:
        ValueError: a threshold outside (0, 1]. As `diff`.
    """
    require_calls(select=select, progress=progress)
    require("threshold", threshold, Real, "a number")
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold: expected a number above 0, up to 1, got {threshold}")
    with contextlib.ExitStack() as stack:
        side = Side.open(weights, False, stack)
        whole = model if isinstance(model, Model) else stack.enter_context(Model(model, constants=True))
        given = {name: tensor for name, tensor in side.tensors.items() if _is_numeric(tensor)}
        names = _distinct({n: t for n, t in whole.items() if _is_candidate(t) and (select is None or select(n))})
        work = _Work(given, names, progress)
        work.match_exactly()
        work.match_similar(threshold)
        ordered = [work.found[name] for name in given if name in work.found]
        rest = [name for name in side.tensors if name not in work.used]
        lost = [name for name, tensor in names.items() if name not in work.taken and _is_weight(tensor)]
        return Matching(side.words, whole.path or "model in memory", ordered, work.ties, rest, lost)


def _distinct(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Leave out weights that are stored as the same records as an earlier one, such as in another function."""
    found: dict[Any, str] = {}
    for name, tensor in tensors.items():
        stored = list(tensor.parts.values()) if tensor._compressed is not None else [tensor]
        places = tuple((part.file, part.offset) for part in stored if part.is_blob)
        found.setdefault((tensor.op, tensor.shape, places) if len(places) == len(stored) > 0 else name, name)
    return {name: tensors[name] for name in found.values()}


def _is_numeric(tensor: Readable) -> bool:
    return tensor.mil_dtype not in (DType.STRING, DType.BOOL) and tensor.size > 0


def _is_weight(tensor: Tensor) -> bool:
    return tensor._compressed is not None or tensor.is_blob or tensor.size >= WEIGHT_COUNT


def _is_candidate(tensor: Tensor) -> bool:
    """Weights, and those small constants that may be a bias; not what operations are told in numbers."""
    if tensor._compressed is None and not _is_numeric(tensor):
        return False
    return _is_weight(tensor) or (tensor.op == "const" and tensor.mil_dtype in _FLOATS and tensor.ndim > 0)


class _Work:
    """What is found, step by step."""

    def __init__(
        self, given: Mapping[str, Readable], names: Mapping[str, Tensor], progress: Callable[[str, int], None] | None
    ) -> None:
        self.given, self.names = given, names
        self.found: dict[str, Match] = {}
        self.ties: list[Tie] = []
        self.used: set[str] = set()  # of those given: found, or tied
        self.taken: set[str] = set()  # of the model's
        self._progress = progress
        self._seed = int.from_bytes(os.urandom(8), "little")  # nobody can make tensors look equal

    def _add(self, given: str, name: str, how: str, layout: Layout, correlation: float = 1.0) -> None:
        ours, theirs = self.given[given], self.names[name]
        types = (ours.mil_dtype, ours.shape, theirs.mil_dtype, theirs.shape)
        self.found[given] = Match(given, name, how, *types, layout, theirs.compression, correlation)
        self.used.add(given)
        self.taken.add(name)

    def _tie(self, given: list[str], names: list[str]) -> None:
        self.ties.append(Tie(given, names))
        self.used.update(given)
        self.taken.update(names)

    # ------------------------------------------------------------------------------------------------------------ exact

    def match_exactly(self) -> None:
        """Find those with the same elements after a cast, in whatever order."""
        kinds: dict[int, set[DType]] = defaultdict(set)
        groups: dict[Any, tuple[list[_Class], list[_Class]]] = {}
        ours = {tensor.size for tensor in self.given.values()}
        for name, tensor in self.names.items():
            if tensor.size in ours:
                kinds[tensor.size].add(tensor.mil_dtype)
                self._classify(groups, 1, name, tensor, tensor.mil_dtype)
        for name, given in self.given.items():
            for dtype in kinds.get(given.size, ()):
                if is_castable(given.mil_dtype, dtype):
                    self._classify(groups, 0, name, given, dtype)
            if self._progress is not None:
                self._progress(name, given.nbytes)
        edges = [edge for (_, dtype, _), (a, b) in groups.items() if a and b for edge in self._edges(a, b, dtype)]
        self._settle(edges)

    def _classify(self, groups: dict[Any, Any], side: int, name: str, tensor: Readable, dtype: DType) -> None:
        """Put a tensor to those with the same elements, and there to those with the same order and shape."""
        nbytes = dtype.numpy.itemsize
        unordered, ordered = 0, []
        try:
            for piece in _pieces(Elements(tensor), dtype):
                data = piece.view(np.uint8)
                unordered += _codec.hash_elements(data, nbytes)
                ordered.append(_codec.hash_bytes(_codec.Buffer(data), 0, data.nbytes, self._seed))
        except OverflowError:  # an integer that does not fit
            return
        classes = groups.setdefault((tensor.size, dtype, unordered % (1 << 64)), ([], []))[side]
        key = (tensor.shape, tuple(ordered))
        for other in classes:
            if other.key == key:
                other.members.append(name)
                return
        classes.append(_Class(key, tensor.shape, tensor.mil_dtype, [name]))

    def _edges(self, ours: list["_Class"], theirs: list["_Class"], dtype: DType) -> Iterator["_Edge"]:
        """Which classes with the same elements are each other's, and in which layout."""
        verified = 0
        for new in theirs:
            for old in ours:
                verified += 1
                if verified > _MAX_VERIFIED:
                    return
                if old.key == new.key:  # the hashes agree: look whether the elements do
                    order: Iterable[Layout] = layouts(old.shape, new.shape)[:1]
                else:
                    order = layouts(old.shape, new.shape)
                a, b = self.given[old.members[0]], self.names[new.members[0]]
                for cost, layout in enumerate(order):
                    if _are_equal(a, b, layout, dtype):
                        yield _Edge(cost, old, new, layout)
                        break

    def _settle(self, edges: list["_Edge"]) -> None:
        """Take the simplest layout of each weight; then tell equal tensors apart by their names, or leave them tied."""
        best: dict[int, _Edge] = {}
        for edge in edges:
            if id(edge.new) not in best or edge.rank < best[id(edge.new)].rank:
                best[id(edge.new)] = edge
        by_given: dict[frozenset[str], list[_Edge]] = defaultdict(list)
        for edge in best.values():
            by_given[frozenset(edge.old.members)].append(edge)
        for chosen in by_given.values():
            given = chosen[0].old.members
            layout_of = {name: edge.layout for edge in chosen for name in edge.new.members}
            if len(given) == len(layout_of) == 1:
                ((name, layout),) = layout_of.items()
                self._add(given[0], name, "exact", layout)
                continue
            for old, new in agreeing(given, list(layout_of)):
                self._add(old, new, "name", layout_of.pop(new))
            rest = [name for name in given if name not in self.found]
            if len(rest) == len(layout_of) == 1:
                ((name, layout),) = layout_of.items()
                self._add(rest[0], name, "name", layout)
            elif layout_of:
                self._tie(rest or given, list(layout_of))

    # ---------------------------------------------------------------------------------------------------------- similar

    def match_similar(self, threshold: float) -> None:
        """Find those whose values correlate, among what is left."""
        given = [name for name in self.given if name not in self.used]
        names = [name for name in self.names if name not in self.taken]
        sizes: dict[int, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for number, (group, tensors) in enumerate(((given, self.given), (names, self.names))):
            for name in group:
                tensor = tensors[name]
                if tensor.mil_dtype in _FLOATS and tensor.size >= _MIN_COUNT:
                    sizes[tensor.size][number].append(name)
        for size, (ours, theirs) in sizes.items():
            if ours and theirs:
                self._correlate(size, ours, theirs, threshold)

    def _correlate(self, size: int, given: list[str], names: list[str], threshold: float) -> None:
        """Correlate samples of all pairs; then the most promising pairs in full."""
        ours, theirs = self._by_shape(given, self.given), self._by_shape(names, self.names)
        random = np.random.default_rng(size)
        positions = np.arange(size) if size <= _SAMPLE_COUNT else np.unique(random.integers(0, size, _SAMPLE_COUNT))
        best: dict[str, list[tuple[float, str, Layout]]] = defaultdict(list)
        for new_shape, new in theirs.items():
            sketches = _sketches([self.names[name] for name in new], positions)
            for old_shape, old in ours.items():
                top = np.full((len(new), len(old)), -1.0)
                which = np.zeros(top.shape, int)
                order = layouts(old_shape, new_shape)
                for number, layout in enumerate(order):
                    samples = _sketches([self.given[name] for name in old], layout.sources(old_shape, positions))
                    found = sketches @ samples.T
                    is_better = found > top + 1e-9
                    top[is_better], which[is_better] = found[is_better], number
                for row, column in np.argwhere(top >= threshold - _SLACK):
                    best[new[row]].append((float(top[row, column]), old[column], order[which[row, column]]))
        self._confirm(best, threshold)

    @staticmethod
    def _by_shape(names: list[str], tensors: Mapping[str, Any]) -> dict[tuple[int, ...], list[str]]:
        found: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name in names:
            found[tensors[name].shape].append(name)
        return found

    def _confirm(self, best: Mapping[str, list[tuple[float, str, Layout]]], threshold: float) -> None:
        """Compare candidates in full, and give each weight the one that it correlates with best."""
        confirmed = []
        for name, candidates in best.items():
            for _, given, layout in sorted(candidates, key=lambda row: -row[0])[:_MAX_CONFIRMED]:
                figures = measure(_Moved(self.given[given], layout), Elements(self.names[name]))
                correlation = figures.correlation
                if correlation is not None and correlation >= threshold and (figures.relative or 0) < 1:
                    confirmed.append((correlation, name, given, layout))
        confirmed.sort(key=lambda row: -row[0])
        rows_of: dict[tuple[int, str], list[Any]] = defaultdict(list)
        for row in confirmed:
            rows_of[1, row[1]].append(row)
            rows_of[2, row[2]].append(row)
        for correlation, name, given, layout in confirmed:
            if name in self.taken or given in self.used:
                continue
            rivals = [
                row
                for row in rows_of[1, name] + rows_of[2, given]
                if (row[1], row[2]) != (name, given)
                and correlation - row[0] < _TIE
                and row[1] not in self.taken
                and row[2] not in self.used
            ]
            names = list(dict.fromkeys([name, *(row[1] for row in rivals)]))
            givens = list(dict.fromkeys([given, *(row[2] for row in rivals)]))
            by_name = dict(agreeing(givens, names)) if rivals else {}
            if not rivals or by_name.get(given) == name:
                self._add(given, name, "similar", layout, correlation)
            elif given not in by_name and name not in by_name.values():  # else its turn comes, or it is another's
                self._tie(givens, names)


class _Class(NamedTuple):
    """Tensors with the same elements, order and shape, whose hashes are `key`."""

    key: Any
    shape: tuple[int, ...]
    dtype: DType
    members: list[str]


class _Edge(NamedTuple):
    """Training tensors, and weights that they are in a layout."""

    cost: int
    old: _Class
    new: _Class
    layout: Layout

    @property
    def rank(self) -> tuple[int, bool]:
        """Less is simpler: the layout, then the cast."""
        return self.cost, self.old.dtype is not self.new.dtype


# --------------------------------------------------------------------------------------------------------------- values


class _Moved(Elements):
    """The elements of a tensor in another layout."""

    def __init__(self, tensor: Readable, layout: Layout) -> None:
        if layout.axes is None:
            super().__init__(tensor)
            return
        view = layout.view(np.ascontiguousarray(tensor.read()).reshape(tensor.shape))
        self.dtype, self.shape, self.count = tensor.mil_dtype, view.shape, prod(tensor.shape)
        self._dense = self._packed = self._flat = None
        self._view = view

    def read(self, begin: int, count: int) -> np.ndarray[Any, Any]:
        """See Elements."""
        view = getattr(self, "_view", None)
        if view is None:
            return super().read(begin, count)
        return np.ascontiguousarray(view.flat[begin : begin + count])


def _pieces(elements: Elements, dtype: DType) -> Iterator[np.ndarray[Any, Any]]:
    """Yield the elements, cast to a dtype; too large numbers become infinite.

    Raises:
        OverflowError: an integer that does not fit.
    """
    for begin in starts(elements.count):
        values = elements.read(begin, min(PIECE_COUNT, elements.count - begin))
        if elements.dtype is not dtype:
            values = cast_array(values, dtype, overflow="inf")[0]
        yield values


def _are_equal(given: Readable, weight: Tensor, layout: Layout, dtype: DType) -> bool:
    """Whether a training tensor in a layout, cast, is a weight to the bit."""
    pairs = zip(_pieces(_Moved(given, layout), dtype), _pieces(Elements(weight), dtype), strict=True)
    return all(np.array_equal(x.view(np.uint8), y.view(np.uint8)) for x, y in pairs)


def _sketches(tensors: list[Any], positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Elements of each tensor at some positions, as a vector of length 1 about its mean; zeros without spread."""
    rows = np.empty((len(tensors), len(positions)))
    for row, tensor in zip(rows, tensors, strict=True):
        row[:] = _sample(Elements(tensor), positions)
    rows[~np.isfinite(rows)] = 0
    scale = np.abs(rows).max(axis=1, initial=0, keepdims=True)
    rows /= np.where(scale > 0, scale, 1)
    rows -= rows.mean(axis=1, keepdims=True)
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return np.asarray(rows / np.where(norms > 1e-9, norms, np.inf))


def _sample(elements: Elements, positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Elements at positions, in any order, as float64."""
    if elements._flat is not None:
        return np.asarray(elements._flat[positions].astype(np.float64))
    order = np.argsort(positions)
    result = np.empty(len(positions))
    for begin in starts(elements.count):
        low, high = np.searchsorted(positions[order], (begin, begin + PIECE_COUNT))
        if low < high:
            piece = elements.read(begin, min(PIECE_COUNT, elements.count - begin))
            result[order[low:high]] = piece[positions[order[low:high]] - begin]
    return result


# ---------------------------------------------------------------------------------------------------------------- names


def agreeing(given: list[str], names: list[str]) -> list[tuple[str, str]]:
    """Pair names where one is the other with something before or behind it ("fc.weight", "model_fc_weight_to_fp16").

    The longest one counts; nothing is paired where that leaves a choice.
    """
    ours, theirs = {name: _words(name) for name in given}, {name: _words(name) for name in names}
    choices: dict[str, list[str]] = defaultdict(list)
    for name, text in theirs.items():
        fitting = [old for old, part in ours.items() if part in text or text in part]
        longest = max((min(len(ours[old]), len(text)) for old in fitting), default=0)
        fitting = [old for old in fitting if min(len(ours[old]), len(text)) == longest]
        if len(fitting) == 1:
            choices[fitting[0]].append(name)
    return [(old, new[0]) for old, new in choices.items() if len(new) == 1]


def _words(name: str) -> str:
    """A name as its words, with marks around them."""
    return f"_{'_'.join(word for word in re.split(r'[^A-Za-z0-9]+', name.lower()) if word)}_"
