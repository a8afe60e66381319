"""Which array each weight of a model is: by equal values, by names between equal arrays, and by derivations."""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from ..model.rows import scheme_of
from .agreeing import agreeing
from .checkpoint import Checkpoint
from .derivations.derivation import CheckpointArray, Derivation, Folded, moved
from .derivations.layouts import Layout
from .match_report import Match, Tie
from .model_weights import ModelWeights, is_compressed
from .search import Search
from .steps.same_elements import Equality

_MAX_LEFT = 4  # times the weights that are known
_PATIENCE = 8  # weights in a row that a step of the search does not explain


class Ownership:
    """The decisions so far, filled step by step."""

    def __init__(self, checkpoint: Checkpoint, weights: ModelWeights) -> None:
        self.arrays, self.weights, self.counter = checkpoint.arrays, weights, checkpoint.work.counter
        self.found: dict[str, list[Match]] = defaultdict(list)  # by array
        self.ties: list[Tie] = []  # of tensors that cannot be distinguished
        self.used: set[str] = set()  # arrays that were found, or tied, or that others were computed with
        self.taken: set[str] = set()  # weights that were found, or tied
        self.equal: set[str] = set()  # arrays that equal one that was found

    def left(self) -> list[str]:
        """Return the first weight of each blob that nothing is known of."""
        return [name for name in self.weights.members if name not in self.taken]

    def add(self, array: str, name: str, how: str, layout: Layout, correlation: float = 1.0, folded: str = "") -> None:
        """Record the array that a weight is, or was computed from."""
        ours, theirs = self.arrays[array], self.weights[name]
        types = (ours.mil_dtype, ours.shape, theirs.mil_dtype, theirs.shape)
        match = Match(array, name, how, *types, layout, scheme_of(theirs), correlation, folded=folded)
        self.found[array].append(match)
        self.used.add(array)
        self.taken.add(name)

    def tie(self, arrays: list[str], blobs: Iterable[str]) -> None:
        """Record that some arrays and some blobs, given by their first weights, match in an unknown order."""
        names = self.weights.of_blobs(blobs)
        self.ties.append(Tie(arrays, names))
        self.used.update(arrays)
        self.taken.update(names)

    def agreeing(self, arrays: list[str], blobs: Iterable[str]) -> dict[str, dict[str, str]]:
        """Return which array belongs to which weight, judged by words: blob -> {weight: array}."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        for old, new in agreeing(arrays, self.weights.of_blobs(blobs), self.weights.first_of):
            found[self.weights.first_of[new]][new] = old
        return found

    def settle_equal(self, equalities: list[Equality]) -> None:
        """Choose the simplest layout of each weight; then let names decide between equal ones, or leave them tied."""
        best: dict[int, Equality] = {}
        for one in equalities:
            if id(one.weights) not in best or one.rank < best[id(one.weights)].rank:
                best[id(one.weights)] = one
        by_arrays: dict[frozenset[str], list[Equality]] = defaultdict(list)
        members = {id(one.arrays): frozenset(one.arrays.members) for one in best.values()}
        for one in best.values():
            by_arrays[members[id(one.arrays)]].append(one)
        for chosen in self.counter.noting(by_arrays.values(), lambda chosen: chosen[0].arrays.members[0]):
            arrays = chosen[0].arrays.members
            layout_of = {name: one.layout for one in chosen for name in one.weights.members}
            named = self.agreeing(arrays, layout_of)
            owners = {old for pairs in named.values() for old in pairs.values()}
            rest = [name for name in arrays if name not in owners]
            left = [first for first in layout_of if first not in named]
            # If only one blob is left, it does not matter which of its weights an equal tensor gets.
            is_one = len(layout_of) == 1
            shares = {first: self.shares(first, named[first], rest if is_one else [], is_one) for first in named}
            if rest and len(left) == 1:
                shares[left[0]] = self.shares(left[0], {}, rest, is_one)
            for first, takers in shares.items():
                for name, old in takers.items():
                    is_choice = len(arrays) > 1 or len(layout_of) > 1
                    is_named = name in named.get(first, ()) or (first in left and len(layout_of) > 1)
                    self.add(old, name, "name" if is_choice and is_named else "exact", layout_of[first])
            unsettled = [first for first in left if not shares.get(first)]
            if unsettled:
                self.tie(rest or arrays, unsettled)
            self.equal.update(arrays)
        blobs: dict[int, set[str]] = defaultdict(set)
        for one in equalities:
            blobs[id(one.arrays)].update(one.weights.members)
        for one in equalities:  # tensors that equal the only weight with these elements share it
            if len(blobs[id(one.arrays)]) == 1:
                for array in one.arrays.members:
                    if array not in self.used:
                        for name in self.weights.of_blobs(one.weights.members):
                            self.add(array, name, "shared", one.layout)

    def shares(self, first: str, named: Mapping[str, str], rest: list[str], is_one: bool = False) -> dict[str, str]:
        """Assign each weight of a blob its array: by name, else one of the rest, else the first.

        Returns:
            weight -> arrays; empty if there are more arrays than weights and names do not decide, unless
            they have one blob for all of them.
        """
        free = [name for name in self.weights.members[first] if name not in named]
        others = dict(zip(free, rest, strict=False)) if is_one or len(rest) <= len(free) else {}
        default = next(iter((named or others).values()), None)
        if default is None:
            return {}
        return {name: named.get(name) or others.get(name) or default for name in self.weights.members[first]}

    # --------------------------------------------------------------------------------------------------------- derived

    def settle_derived(self, search: Search) -> None:
        """Record the arrays that the remaining weights were computed from, as the steps of a search find them.

        Folds are always looked for. The other steps take most of the work, and only find something if the model was
        made of this checkpoint: values of another one differ.
        """
        search.claim_folds(self.left())
        self._take(search.claims)
        known = self.weights.members.keys() & self.taken
        rest = {name: self.weights[name] for name in self.left()} if known else {}
        left = [name for name, weight in rest.items() if weight.mil_dtype.is_float and not is_compressed(weight)]
        if left and _varied(self.weights, left) <= _MAX_LEFT * _varied(self.weights, known):
            for match in (one for several in self.found.values() for one in several if not one.folded):
                search.claim(match.name, moved(CheckpointArray(match.given), match.layout))
            search.claim_computed(left, _PATIENCE)
            exact = (name for name in left if name in search.claims and name not in search.rounded)
            self._take({name: search.claims[name] for name in exact})
        for name, array, (low, high) in search.scaled():
            if name not in self.taken and array not in self.used:
                message = f"each output channel is scaled, by {low:.4g} to {high:.4g}"
                self._add_blob(array, name, "scaled", message)

    def _take(self, claims: Mapping[str, Mapping[Derivation | None, object]]) -> None:
        for name, options in claims.items():
            derivation = next((one for one in options if one is not None), None)
            if derivation is None:
                continue
            first, main = self.weights.first_of[name], derivation.main
            if first not in self.taken:
                if main is not None:
                    is_fold = isinstance(derivation, Folded)
                    self._add_blob(main, first, "folded" if is_fold else "computed", derivation.words)
                self.taken.update(self.weights.members[first])
            self.used.update(derivation.sources())

    def _add_blob(self, array: str, first: str, how: str, message: str) -> None:
        """Add a match for each weight of a blob."""
        for name in self.weights.members[first]:
            old, new = self.arrays[array].shape, self.weights[name].shape
            layout = Layout() if how == "computed" or old == new else Layout(after=new)
            self.add(array, name, how, layout, folded=message)


def _varied(weights: ModelWeights, names: Iterable[str]) -> int:
    """Return how many weights have elements that are not all equal."""
    return sum(not weights.is_flat(name) for name in names)
