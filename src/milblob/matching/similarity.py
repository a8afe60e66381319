"""The last step: for weights that nothing gives bit for bit, the arrays whose values correlate best.

Samples select candidates, which are compared in full. The assignment is greedy, by correlation: an optimal one (the
Hungarian method) maximises the sum, and could give up a near-certain pair for several weak ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from ..analysis.tensor_diff import measure
from ..model.elements import Elements, have_equal_bits
from ..model.lazy import LazyTensor
from .checkpoint import Checkpoint
from .derivations.layouts import Layout, Values
from .ownership import Ownership
from .steps.renderings import normalized
from .steps.same_elements import affordable_layouts, moved_elements

_MIN_COUNT = 16  # of elements; smaller tensors look alike by accident
_SAMPLE_COUNT = 1024
_SLACK = 0.12  # how far a sample's correlation may be below that of the whole
_TIE = 0.002  # correlations closer than this do not distinguish candidates
_MAX_CONFIRMED = 4  # candidates per weight that are compared in full
_MAX_RIVALS = 32  # equally similar weights among which names decide
_PRODUCTS_COUNT = 1 << 22  # correlations of samples in memory at a time

_Candidates = dict[str, tuple[float, Layout]]  # array -> correlation of a sample, layout


class _Pair(NamedTuple):
    """A blob, by its first weight, and an array whose values correlate."""

    correlation: float
    name: str
    array: str
    layout: Layout


class Similarity:
    """Compares the values of the remaining weights and arrays.

    `checkpoint`: the arrays. to: the decisions so far; similar arrays are added. `min_correlation`: correlation from
    which values count as similar.
    """

    def __init__(self, checkpoint: Checkpoint, to: Ownership, min_correlation: float) -> None:
        self._arrays, self._weights, self._may = checkpoint.floats, to.weights, checkpoint.may
        self._work, self._to, self._min_correlation = checkpoint.work, to, min_correlation

    def settle(self) -> None:
        """Assign arrays to the weights whose values correlate."""
        sizes: dict[int, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for name, tensor in self._arrays.items():
            if name not in self._to.used and tensor.size >= _MIN_COUNT:
                sizes[tensor.size][0].append(name)
        for name in self._to.left():
            weight = self._weights[name]
            if weight.mil_dtype.is_float and weight.size >= _MIN_COUNT:
                sizes[weight.size][1].append(name)
        for size, (arrays, names) in sizes.items():
            if arrays and names:
                self._correlate(size, arrays, names)

    def _correlate(self, size: int, arrays: list[str], names: list[str]) -> None:
        """Correlate samples of all pairs, then compare the most promising pairs in full."""
        ours, theirs = _by_shape(arrays, self._arrays), _by_shape(names, self._weights)
        random = np.random.default_rng(size)
        positions = np.arange(size) if size <= _SAMPLE_COUNT else np.unique(random.integers(0, size, _SAMPLE_COUNT))
        best: dict[str, _Candidates] = defaultdict(dict)
        for new_shape, new in theirs.items():
            sketches = self._sketches([self._weights[name] for name in new], positions)
            for old_shape, old in ours.items():
                tensors = [self._arrays[name] for name in old]
                for layout in affordable_layouts(old_shape, new_shape, self._work):
                    if not self._may(len(new) * len(old) * len(positions) // 8):
                        break
                    samples = self._sketches(tensors, layout.sources(old_shape, positions))
                    for name, array, score in self._promising(new, old, sketches, samples):
                        known = best[name].get(array)
                        if known is None or score > known[0] + 1e-9:
                            best[name][array] = score, layout
        self._confirm(best)

    def _sketches(self, tensors: list[Any], positions: Values) -> Values:
        """Return sketches of tensors; all zero, which correlate with nothing, once the work budget is spent."""
        work = sum(100_000 + 10 * len(positions) + 2 * tensor.size * _is_decoded(tensor) for tensor in tensors)
        return _sketches(tensors, positions) if self._may(work) else np.zeros((len(tensors), len(positions)))

    def _promising(
        self, new: list[str], old: list[str], sketches: Values, samples: Values
    ) -> Iterator[tuple[str, str, float]]:
        """Yield for each weight the arrays that correlate best, and how much; a few rows are in memory at a time."""
        least, step = self._min_correlation - _SLACK, max(_PRODUCTS_COUNT // len(old), 1)
        for begin in range(0, len(new), step):
            found = sketches[begin : begin + step] @ samples.T
            for row in np.flatnonzero(found.max(axis=1) >= least):
                name, scores = new[begin + row], found[row]
                columns = np.flatnonzero(scores >= least)
                count = self._candidate_count(name)
                if len(columns) > count:
                    columns = columns[np.argsort(-scores[columns], kind="stable")[:count]]
                yield from ((name, old[column], float(scores[column])) for column in columns)

    def _candidate_count(self, name: str) -> int:
        """Return how many arrays to compare in full with a weight: more if it represents several."""
        return _MAX_CONFIRMED + len(self._weights.members[name]) - 1

    def _confirm(self, best: Mapping[str, _Candidates]) -> None:
        """Compare candidates in full, and assign each weight the one that correlates best."""
        confirmed = []
        for name, candidates in self._work.counter.noting(best.items(), itemgetter(0)):
            ranked = sorted(candidates.items(), key=lambda item: -item[1][0])
            for array, (_, layout) in ranked[: self._candidate_count(name)]:
                if not self._may(300_000 + 10 * self._weights[name].size):
                    break
                figures = measure(moved_elements(self._arrays[array], layout), Elements(self._weights[name]))
                correlation = figures.correlation
                if correlation is not None and correlation >= self._min_correlation and (figures.relative or 0) < 1:
                    confirmed.append(_Pair(correlation, name, array, layout))
        confirmed.sort(key=lambda pair: -pair.correlation)
        of_name, of_array = defaultdict(list), defaultdict(list)
        for pair in confirmed:
            of_name[pair.name].append(pair)
            of_array[pair.array].append(pair)
        for pair in confirmed:
            if self._is_open(pair):
                self._decide(pair, of_name[pair.name], of_array[pair.array])

    def _is_open(self, pair: _Pair) -> bool:
        return pair.name not in self._to.taken and pair.array not in self._to.used

    def _decide(self, best: _Pair, of_name: list[_Pair], of_array: list[_Pair]) -> None:
        """Assign a blob its arrays, the one with the best remaining correlation among them; or leave it tied."""
        of_name = [pair for pair in of_name if pair.array not in self._to.used]
        of_array = list(islice((pair for pair in of_array if pair.name not in self._to.taken), _MAX_RIVALS))
        rivals = [
            pair
            for pair in of_name + of_array
            if pair is not best and best.correlation - pair.correlation < _TIE and self._is_open(pair)
        ]
        names = list(dict.fromkeys([best.name, *(pair.name for pair in rivals)]))
        arrays = list(dict.fromkeys([best.array, *(pair.array for pair in rivals)]))
        # If a blob is several weights, each prefers the array of its own name, even if less similar.
        members = self._weights.members[best.name]
        namesakes = [pair.array for pair in of_name if pair.array in members] if len(members) > 1 else []
        known = list(dict.fromkeys(arrays + namesakes))
        named = self._to.agreeing(known, names) if len(known) > 1 or rivals else {}
        mine = named.get(best.name, {})
        owners = {old for pairs in named.values() for old in pairs.values()}
        rest = [old for old in arrays if old not in owners] if len(names) == 1 else []
        if rivals and not mine and (owners or len(names) > 1 or not self._are_same(rest)):
            if best.array not in owners:  # else it is decided later
                self._to.tie(arrays, names)
            return
        if rivals and best.array not in mine.values() and not self._are_same([best.array, *mine.values()]):
            return  # it belongs to another blob
        takers = self._to.shares(best.name, mine, rest if self._are_same([best.array, *rest]) else [])
        if not takers:
            self._to.tie(arrays, names)
        if takers and self._are_same(arrays):
            self._to.equal.update(arrays)
        pair_of = {pair.array: pair for pair in of_name}
        for new, old in takers.items():
            self._to.add(old, new, "similar", pair_of[old].layout, pair_of[old].correlation)

    def _are_same(self, arrays: list[str]) -> bool:
        """Whether arrays equal each other bit for bit."""
        first, *others = (self._arrays[name] for name in dict.fromkeys(arrays))
        return self._may(len(others) * (50_000 + 2 * first.size)) and all(
            (other.mil_dtype, other.shape) == (first.mil_dtype, first.shape)
            and have_equal_bits(Elements(first), Elements(other))
            for other in others
        )


# --------------------------------------------------------------------------------------------------------------- values


def _by_shape(names: list[str], tensors: Mapping[str, LazyTensor]) -> dict[tuple[int, ...], list[str]]:
    found: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for name in names:
        found[tensors[name].shape].append(name)
    return found


def _is_decoded(tensor: LazyTensor) -> bool:
    """Whether elements of a tensor can only be had by decoding others too."""
    return tensor.mil_dtype.is_sub_byte or tensor.place.is_computed


def sampled(tensors: Iterable[Elements], positions: Values) -> Values:
    """Return the elements of each tensor at some positions, a row for each tensor; zeros where they are not finite."""
    rows = np.array([elements.sample(positions) for elements in tensors]).reshape(-1, len(positions))
    rows[~np.isfinite(rows)] = 0
    return rows


def _sketches(tensors: list[Any], positions: Values) -> Values:
    """Return samples of each tensor, `normalized`."""
    return normalized(sampled(map(Elements, tensors), positions))
