"""milblob.match: find which training tensor became which weight of a model."""

import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import islice
from numbers import Real
from typing import Any

import numpy as np

from ..analysis.operations import WEIGHT_COUNT
from ..analysis.sides import Side, is_arrays
from ..analysis.tensor_diff import measure
from ..arguments import require, require_calls
from ..dtypes import DType
from ..model.elements import Elements, have_equal_bits
from ..model.lazy import LazyTensor
from ..model.model import Model
from ..model.sharing import blob_users, by_blob
from ..model.tensor import Tensor
from ..progress import Counter, Progress
from ..selection import Select, require_selected, selector
from .agreeing import agreeing
from .conv_folds import Fold, FoldFinder
from .layouts import Layout
from .readers import Readers
from .report import Match, Matching, Tie
from .same_elements import Edge, MovedElements, affordable_layouts, same_elements
from .siblings import Siblings

MIN_CORRELATION = 0.7
_MIN_COUNT = 16  # of elements; smaller tensors look alike by accident
_SAMPLE_COUNT = 1024
_SLACK = 0.12  # how far a sample's correlation may be below that of the whole
_TIE = 0.002  # correlations closer than this cannot tell candidates apart
_MAX_CONFIRMED = 4  # candidates per weight that are compared in full
_MAX_RIVALS = 32  # equally similar weights among which names decide
_MAX_LACKING = 100  # names listed in `Match.without`
_PRODUCTS_COUNT = 1 << 22  # correlations of samples in memory at a time
_MIN_WORK, _WORK_PER_ELEMENT = 20_000_000_000, 100
"""About a nanosecond each, reckoned and not measured, so that the result is the same on any machine. Weights that were
trained take a few for each element; of pairs, layouts and samples that somebody made many of, the rest is left out."""

_FLOATS = frozenset(dtype for dtype in DType if "FLOAT" in dtype.name)


def match(
    weights: Any,
    model: Any,
    *,
    threshold: float = MIN_CORRELATION,
    select: Select = None,
    progress: Progress | None = None,
    max_nbytes: int | None = None,
) -> Matching:
    """Find which training tensor became which weight of a model.

    First, find tensors with the same elements after a cast to the weight's dtype: in the same order, with permuted axes
    (for matrices: transposed), or in another shape. Then, for weights that are compressed or otherwise changed, find
    the tensors whose values correlate best. Names decide between equal tensors where they agree.

    Args:
        weights: path of a .safetensors, .npz, .npy, .gguf or .onnx file, of a directory of .npy files, or of a model;
            or a mapping from names to arrays.
        model: what `open` takes, or an open Model; or a Model Library Format archive of TVM, or another file of arrays.
            Where weights are one blob, as those of two functions, each is
            matched: with the training tensor that its name says, else with one that the blob is.
        threshold: correlation (the cosine once the means are taken off) from which values count as similar.
        select: glob, several, or a function of a name: the weights of the model to look for.
        progress: called as each training tensor has been looked at (see `Progress`).
        max_nbytes: as for `open`, of each side that is opened here.

    Returns:
        Matching.

    Raises:
        ValueError: a threshold outside (0, 1]; a `select` that selects nothing. As `diff`.
    """
    require_calls(progress=progress)
    is_selected = selector(select)
    require("threshold", threshold, Real, "a number")
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold: expected a number above 0, up to 1, got {threshold}")
    with contextlib.ExitStack() as stack:
        side = Side.open(weights, False, stack, max_nbytes)
        whole = _target(model, stack, max_nbytes)
        side, whole = side.beside(whole), whole.beside(side)
        given = {name: tensor for name, tensor in side.tensors.items() if _is_numeric(tensor)}
        weights_of = {n: t for n, t in whole.tensors.items() if _is_candidate(t) and is_selected(n)}
        require_selected(select, any(map(is_selected, whole.tensors)), whole.words)
        work = _Work(given, weights_of, progress)
        work.match_exactly()
        if whole.has_program:
            work.match_folds()
        work.match_similar(threshold)
        ordered = [match for name in given for match in work.found.get(name, ())]
        equal = [name for name in given if name in work.equal and name not in work.used]
        rest = [name for name in side.tensors if name not in work.used and name not in work.equal]
        lost = [name for name, tensor in weights_of.items() if name not in work.taken and _is_weight(tensor)]
        found = ordered if whole.model is None else _with_what_lacks(whole.model, ordered)
        tied = {name for tie in work.ties for name in tie.given}
        folded = [name for name in given if name in work.used and name not in tied and name not in work.found]
        return Matching(side.words, whole.words, found, work.ties, rest, lost, equal, folded)


def _target(model: Any, stack: contextlib.ExitStack, max_nbytes: int | None) -> Side:
    """What is to be refitted: a model with every constant, or the parameters of an archive."""
    if isinstance(model, Model) or is_arrays(model):
        return Side.open(model, False, stack, max_nbytes)
    whole = stack.enter_context(Model(model, constants=True, max_nbytes=max_nbytes))
    return Side(dict(whole), whole, whole.path or "model in memory")


def _with_what_lacks(model: Model, matches: list[Match]) -> list[Match]:
    """Note where `refit` would refuse a weight because it cannot write another weight that is the same blob."""
    writable = {match.name for match in matches if match.is_direct}
    lacking: dict[str, tuple[str, ...]] = {}
    for users in blob_users(model).values():
        missing = tuple(islice(dict.fromkeys(name for name in users if name not in writable), _MAX_LACKING))
        lacking |= dict.fromkeys(writable.intersection(users), missing) if missing else {}
    return [match._replace(without=lacking.get(match.name, ())) for match in matches]


def _is_numeric(tensor: LazyTensor) -> bool:
    return tensor.mil_dtype not in (DType.STRING, DType.BOOL) and tensor.size > 0


def _is_weight(tensor: LazyTensor) -> bool:
    if not isinstance(tensor, Tensor):
        return True
    return tensor.chain is not None or tensor.is_blob or tensor.size >= WEIGHT_COUNT


def _is_candidate(tensor: LazyTensor) -> bool:
    """Weights, and those small constants that may be a bias; not what operations are told in numbers."""
    if not isinstance(tensor, Tensor):
        return _is_numeric(tensor)
    if tensor.chain is None and not _is_numeric(tensor):
        return False
    return _is_weight(tensor) or (tensor.op == "const" and tensor.mil_dtype in _FLOATS and tensor.ndim > 0)


class _Work:
    """The state of one `match`, filled step by step."""

    def __init__(
        self, given: Mapping[str, LazyTensor], weights: Mapping[str, LazyTensor], progress: Progress | None
    ) -> None:
        self.given, self.weights = given, weights
        self.members = by_blob(weights)  # per blob; its first weight represents all of them
        self.first_of = {name: first for first, members in self.members.items() for name in members}
        self.names = {name: weights[name] for name in self.members}
        self.found: dict[str, list[Match]] = defaultdict(list)
        self.ties: list[Tie] = []
        self.used: set[str] = set()  # of those given: found, or tied
        self.taken: set[str] = set()  # of the model's
        self.equal: set[str] = set()  # of those given: equal to one that was found
        self._counter = Counter(progress, given.values())
        count = sum(tensor.size for tensors in (given, weights) for tensor in tensors.values())
        self._work_left = _MIN_WORK + _WORK_PER_ELEMENT * count

    def _may(self, work: int) -> bool:
        """Whether enough of the work budget is left; if so, spend it."""
        self._work_left -= work
        return self._work_left >= 0

    def _add(self, given: str, name: str, how: str, layout: Layout, correlation: float = 1.0, folded: str = "") -> None:
        ours, theirs = self.given[given], self.weights[name]
        types = (ours.mil_dtype, ours.shape, theirs.mil_dtype, theirs.shape)
        match = Match(given, name, how, *types, layout, getattr(theirs, "compression", ""), correlation, folded=folded)
        self.found[given].append(match)
        self.used.add(given)
        self.taken.add(name)

    def _tie(self, given: list[str], blobs: Iterable[str]) -> None:
        names = self._names_of(blobs)
        self.ties.append(Tie(given, names))
        self.used.update(given)
        self.taken.update(names)

    def _names_of(self, blobs: Iterable[str]) -> list[str]:
        """Return all weights of some blobs, given by their first weights."""
        return [name for first in blobs for name in self.members[first]]

    def _agreeing(self, given: list[str], blobs: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return which given name belongs to which weight, judged by words: blob -> {weight: given}."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for old, new in agreeing(given, self._names_of(blobs), self.first_of):
            found[self.first_of[new]][new] = old
        return found

    # ------------------------------------------------------------------------------------------------------------ exact

    def match_exactly(self) -> None:
        """Match tensors with the same elements after a cast, in any order."""
        self._settle(same_elements(self.given, self.names, self._may, self._counter.add_tensor))

    def match_folds(self) -> None:
        """Match weights of convolutions that training tensors give by one factor for each output channel."""
        tensors = {name: tensor for name, tensor in self.weights.items() if isinstance(tensor, Tensor)}
        readers = Readers(tensors)
        finder = FoldFinder(self.given, tensors, Siblings({n: t.shape for n, t in self.given.items()}), self._may)
        folds, scaled = [], []
        for name in self.names:
            convolution = readers.convolution(name) if name not in self.taken else None
            if convolution is None:
                continue
            for own in finder.candidates(convolution):
                found = finder.folds(convolution, own)
                folds += found
                factors = finder.ratio(convolution, own) if not found else None
                if factors is not None and factors.is_evidence:
                    scaled.append((name, own, factors))
        for fold in finder.chosen(folds):
            self._add_fold(fold)
        for name, own, factors in scaled:
            if name not in self.taken and own not in self.used:
                low, high = factors.spread
                words = f"each output channel is scaled, by {low:.4g} to {high:.4g}"
                self._add_all(own, name, "scaled", words)

    def _add_fold(self, fold: Fold) -> None:
        name, bias = fold.convolution.weight, fold.convolution.bias
        if name in self.taken:
            return
        self._add_all(fold.own, name, "folded", fold.words)
        shift = fold.own_bias or fold.steps[-1].beta
        if fold.gives_bias and bias is not None and bias not in self.taken:
            if shift is not None:
                self._add_all(shift, bias, "folded", fold.words)
            self.taken.update(self.members.get(bias, [bias]))
        self.used.update(source for norm in fold.steps for source in norm.names(True))

    def _add_all(self, given: str, name: str, how: str, folded: str) -> None:
        """Add a match for each weight of a blob."""
        for member in self.members.get(name, [name]):
            old, new = self.given[given].shape, self.weights[member].shape
            self._add(given, member, how, Layout(after=None if old == new else new), folded=folded)

    def _settle(self, edges: list["Edge"]) -> None:
        """Choose the simplest layout of each weight; then let names decide between equal ones, or leave them tied."""
        best: dict[int, Edge] = {}
        for edge in edges:
            if id(edge.new) not in best or edge.rank < best[id(edge.new)].rank:
                best[id(edge.new)] = edge
        by_given: dict[frozenset[str], list[Edge]] = defaultdict(list)
        members = {id(edge.old): frozenset(edge.old.members) for edge in best.values()}
        for edge in best.values():
            by_given[members[id(edge.old)]].append(edge)
        for chosen in by_given.values():
            given = chosen[0].old.members
            layout_of = {name: edge.layout for edge in chosen for name in edge.new.members}
            named = self._agreeing(given, layout_of)
            owners = {old for pairs in named.values() for old in pairs.values()}
            rest = [name for name in given if name not in owners]
            left = [first for first in layout_of if first not in named]
            # If only one blob is left, it does not matter which of its weights an equal tensor gets.
            is_one = len(layout_of) == 1
            shares = {first: self._shares(first, named[first], rest if is_one else [], is_one) for first in named}
            if rest and len(left) == 1:
                shares[left[0]] = self._shares(left[0], {}, rest, is_one)
            for first, takers in shares.items():
                for name, old in takers.items():
                    is_choice = len(given) > 1 or len(layout_of) > 1
                    is_named = name in named.get(first, ()) or (first in left and len(layout_of) > 1)
                    self._add(old, name, "name" if is_choice and is_named else "exact", layout_of[first])
            unsettled = [first for first in left if not shares.get(first)]
            if unsettled:
                self._tie(rest or given, unsettled)
            self.equal.update(given)
        blobs: dict[int, set[str]] = defaultdict(set)
        for edge in edges:
            blobs[id(edge.old)].update(edge.new.members)
        for edge in edges:  # tensors that equal the only weight with these elements share it
            if len(blobs[id(edge.old)]) == 1:
                for given_name in edge.old.members:
                    if given_name not in self.used:
                        for name in self._names_of(edge.new.members):
                            self._add(given_name, name, "shared", edge.layout)

    def _shares(self, first: str, named: Mapping[str, str], rest: list[str], is_one: bool = False) -> dict[str, str]:
        """Assign each weight of a blob its training tensor: by name, else one of the rest, else the first.

        Returns:
            weight -> given; empty if there are more training tensors than weights and names do not decide, unless
            they have one blob for all of them.
        """
        free = [name for name in self.members[first] if name not in named]
        others = dict(zip(free, rest, strict=False)) if is_one or len(rest) <= len(free) else {}
        default = next(iter((named or others).values()), None)
        if default is None:
            return {}
        return {name: named.get(name) or others.get(name) or default for name in self.members[first]}

    # ---------------------------------------------------------------------------------------------------------- similar

    def match_similar(self, threshold: float) -> None:
        """Match the remaining tensors whose values correlate."""
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
        """Correlate samples of all pairs, then compare the most promising pairs in full."""
        ours, theirs = self._by_shape(given, self.given), self._by_shape(names, self.names)
        random = np.random.default_rng(size)
        positions = np.arange(size) if size <= _SAMPLE_COUNT else np.unique(random.integers(0, size, _SAMPLE_COUNT))
        best: dict[str, _Candidates] = defaultdict(dict)
        for new_shape, new in theirs.items():
            sketches = self._sketches([self.names[name] for name in new], positions)
            for old_shape, old in ours.items():
                tensors = [self.given[name] for name in old]
                for layout in affordable_layouts(old_shape, new_shape, self._may):
                    if not self._may(len(new) * len(old) * len(positions) // 8):
                        break
                    samples = self._sketches(tensors, layout.sources(old_shape, positions))
                    self._add_candidates(best, new, old, layout, sketches, samples, threshold - _SLACK)
        self._confirm(best, threshold)

    def _sketches(self, tensors: list[Any], positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return sketches of tensors; all zero, which correlate with nothing, once the work budget is spent."""
        work = sum(100_000 + 10 * len(positions) + 2 * tensor.size * _is_decoded(tensor) for tensor in tensors)
        return _sketches(tensors, positions) if self._may(work) else np.zeros((len(tensors), len(positions)))

    def _add_candidates(
        self,
        best: dict[str, "_Candidates"],
        new: list[str],
        old: list[str],
        layout: Layout,
        sketches: np.ndarray[Any, Any],
        samples: np.ndarray[Any, Any],
        least: float,
    ) -> None:
        """Record for each weight the training tensors that correlate best, by layout; a few rows at a time."""
        step = max(_PRODUCTS_COUNT // len(old), 1)
        for begin in range(0, len(new), step):
            found = sketches[begin : begin + step] @ samples.T
            for row in np.flatnonzero(found.max(axis=1) >= least):
                name, scores = new[begin + row], found[row]
                count = self._candidate_count(name)
                columns = np.flatnonzero(scores >= least)
                if len(columns) > count:
                    columns = columns[np.argsort(-scores[columns], kind="stable")[:count]]
                for column in columns:
                    known = best[name].get(old[column])
                    if known is None or scores[column] > known[0] + 1e-9:
                        best[name][old[column]] = (float(scores[column]), layout)

    def _candidate_count(self, name: str) -> int:
        """Return how many training tensors to compare in full with a weight: more if it represents several."""
        return _MAX_CONFIRMED + len(self.members[name]) - 1

    @staticmethod
    def _by_shape(names: list[str], tensors: Mapping[str, Any]) -> dict[tuple[int, ...], list[str]]:
        found: dict[tuple[int, ...], list[str]] = defaultdict(list)
        for name in names:
            found[tensors[name].shape].append(name)
        return found

    def _confirm(self, best: Mapping[str, "_Candidates"], threshold: float) -> None:
        """Compare candidates in full, and assign each weight the one that correlates best."""
        confirmed = []
        for name, candidates in best.items():
            ranked = sorted(candidates.items(), key=lambda item: -item[1][0])
            for given, (_, layout) in ranked[: self._candidate_count(name)]:
                if not self._may(300_000 + 10 * self.names[name].size):
                    break
                figures = measure(MovedElements(self.given[given], layout), Elements(self.names[name]))
                correlation = figures.correlation
                if correlation is not None and correlation >= threshold and (figures.relative or 0) < 1:
                    confirmed.append((correlation, name, given, layout))
        confirmed.sort(key=lambda row: -row[0])
        rows_of: dict[tuple[int, str], list[_Row]] = defaultdict(list)
        for row in confirmed:
            rows_of[1, row[1]].append(row)
            rows_of[2, row[2]].append(row)
        for row in confirmed:
            if row[1] not in self.taken and row[2] not in self.used:
                self._decide(row, rows_of[1, row[1]], rows_of[2, row[2]])

    def _decide(self, best: "_Row", of_name: list["_Row"], of_given: list["_Row"]) -> None:
        """Assign a blob its training tensors, one of which has the best remaining correlation; or leave it tied."""
        correlation, name, given, _ = best
        of_name = [row for row in of_name if row[2] not in self.used]
        of_given = list(islice((row for row in of_given if row[1] not in self.taken), _MAX_RIVALS))
        rivals = [
            row
            for row in of_name + of_given
            if row is not best and correlation - row[0] < _TIE and row[1] not in self.taken and row[2] not in self.used
        ]
        names = list(dict.fromkeys([name, *(row[1] for row in rivals)]))
        givens = list(dict.fromkeys([given, *(row[2] for row in rivals)]))
        # If a blob is several weights, each prefers the tensor of its own name, even if less similar.
        namesakes = [row[2] for row in of_name if row[2] in self.members[name]] if len(self.members[name]) > 1 else []
        known = list(dict.fromkeys(givens + namesakes))
        named = self._agreeing(known, names) if len(known) > 1 or rivals else {}
        mine = named.get(name, {})
        owners = {old for pairs in named.values() for old in pairs.values()}
        rest = [old for old in givens if old not in owners] if len(names) == 1 else []
        if rivals and not mine and (owners or len(names) > 1 or not self._are_same(rest)):
            if given not in owners:  # else it is decided later
                self._tie(givens, names)
            return
        if rivals and given not in mine.values() and not self._are_same([given, *mine.values()]):
            return  # it belongs to another blob
        takers = self._shares(name, mine, rest if self._are_same([given, *rest]) else [])
        if not takers:
            self._tie(givens, names)
        if takers and self._are_same(givens):
            self.equal.update(givens)
        rows = {row[2]: row for row in of_name}
        for new, old in takers.items():
            self._add(old, new, "similar", rows[old][3], rows[old][0])

    def _are_same(self, given: list[str]) -> bool:
        """Whether training tensors equal each other bit for bit."""
        first, *others = (self.given[name] for name in dict.fromkeys(given))
        return self._may(len(others) * (50_000 + 2 * first.size)) and all(
            (other.mil_dtype, other.shape) == (first.mil_dtype, first.shape)
            and have_equal_bits(Elements(first), Elements(other))
            for other in others
        )


_Row = tuple[float, str, str, Layout]  # correlation, first weight of a blob, given, layout
_Candidates = dict[str, tuple[float, Layout]]  # given -> correlation of a sample, layout


# --------------------------------------------------------------------------------------------------------------- values


def _is_decoded(tensor: LazyTensor) -> bool:
    """Whether elements of a tensor can only be had by decoding others too."""
    return tensor.mil_dtype.is_sub_byte or tensor.place.is_computed


def _sketches(tensors: list[Any], positions: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return samples of each tensor, centred on their mean and scaled to length 1; zeros if constant."""
    rows = np.empty((len(tensors), len(positions)))
    for row, tensor in zip(rows, tensors, strict=True):
        row[:] = Elements(tensor).sample(positions)
    rows[~np.isfinite(rows)] = 0
    scale = np.abs(rows).max(axis=1, initial=0, keepdims=True)
    rows /= np.where(scale > 0, scale, 1)
    rows -= rows.mean(axis=1, keepdims=True)
    norms = np.sqrt((rows * rows).sum(axis=1, keepdims=True))
    return np.asarray(rows / np.where(norms > 1e-9, norms, np.inf))
