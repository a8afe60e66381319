"""Settles what no search explains: numbers that code holds, tables that code computes, and unknown numbers.

A number that depends on the checkpoint but is not updated makes a wrong model without an error. So every float constant
of a Program that is not explained is unknown, even the smallest.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping

import numpy as np

from ..checkpoint import Checkpoint
from ..derivations.derivation import CheckpointArray, Derivation
from ..derivations.layouts import Values
from ..model_weights import ModelWeights, is_compressed, is_weight
from ..siblings import PARAMETERS
from .known_tables import recognise, resembles
from .literals import Literals, dimensions_in
from .numbers import Numbers

Claims = Mapping[str, Mapping[Derivation | None, set[str]]]

_SETTINGS = ("epsilon",)  # parameters of operations that no converter takes from a checkpoint
_LEARNT = PARAMETERS - {"alpha", "beta"}  # without those that are limits of clip too, perhaps infinite


class Rest:
    """Classifies the constants of a model that are not known to follow from an array.

    `weights`: of the model. claims: on those that are explained. `changed`: the arrays that will have other values.
    """

    def __init__(self, weights: ModelWeights, claims: Claims, checkpoint: Checkpoint, changed: Collection[str]) -> None:
        self._weights, self._checkpoint = weights, checkpoint
        self._changed = [name for name in checkpoint.arrays if name in changed]
        small = (n for n, t in weights.items() if not t.mil_dtype.is_float and t.size <= 8 and not is_compressed(t))
        integers = map(weights.values_of, small)
        self._literals = Literals(dimensions_in((tensor.shape for tensor in weights.values()), integers))
        self._numbers = Numbers(checkpoint, self._literals)
        self._place = {name: place for place, name in enumerate(weights)}  # in the Program
        # array -> the places of the weights that follow from it
        self._places: dict[str, list[int]] = {name: [] for name in checkpoint.arrays}
        for name, derivations in claims.items():
            for source in (source for one in derivations if one is not None for source in one.sources()):
                if source in self._places:
                    self._places[source].append(self._place[name])
        self._ambiguous: dict[Derivation, list[str]] = defaultdict(list)
        # found here: weight -> derivations; None where code may hold the number as well
        self.claims: dict[str, list[Derivation | None]] = defaultdict(list)
        self.constant: dict[str, str] = {}  # weight -> its kind, although it follows from no array
        self.unknown: dict[str, str] = {}  # weight -> a description of it
        self.rounded: set[str] = set()  # weights whose claims give the present values to one rounding only
        self.weak: set[str] = set()  # numbers of few bits that may equal their expressions by accident

    def settle(self, name: str) -> None:
        """Find out about a weight that nothing claims."""
        weight, is_flat = self._weights[name], self._weights.is_flat(name)
        if not weight.mil_dtype.is_float:
            if is_weight(weight):
                self.constant[name] = "integers"
        elif not self._is_setting(name):
            values = self._weights.values_of(name)
            if not np.isfinite(values).all() and any(r.parameter in _LEARNT for r in self._weights.readers[name]):
                self._settle_unknown(name, values, is_flat)  # it hides which arrays it follows from
            elif values.size >= 10 and not is_flat:
                self._settle_table(name, values)
            else:
                self._settle_number(name, values, is_flat)

    def _settle_number(self, name: str, values: Values, is_flat: bool) -> None:
        weight = self._weights[name]
        is_literal = self._literals.has(values, weight.mil_dtype)
        found = self._numbers.explain(values, weight.mil_dtype, self._nearest(name), is_literal)
        shown = _shown(values, is_flat)
        if self._literals.is_weak(values, weight.mil_dtype) if is_literal else any(one.is_weak for one in found):
            self.weak.add(name)
        if is_literal:
            if is_weight(weight) or self._is_parameter(name):
                self.constant[name] = f"only the number {shown}" if is_flat else f"the numbers {shown}"
            for one in found:
                if one.is_of_one and one.is_exact:
                    self._ambiguous[one.derivation].append(name)
        elif found:
            self.claims[name] = [one.derivation for one in found]
            if not all(one.is_exact for one in found):
                self.rounded.add(name)
        else:
            self._settle_unknown(name, values, is_flat)

    def _settle_unknown(self, name: str, values: Values, is_flat: bool) -> None:
        reader = next((f", read by {reader.label} ({reader.type})" for reader in self._weights.readers[name]), "")
        self.unknown[name] = f"{_shown(values, is_flat)}{reader}"

    def settle_ambiguous(self) -> None:
        """Claim numbers that code may hold, and that are a function of a single number of the checkpoint too.

        If the array itself is the value of one constant only, that constant is the array. Then, if one constant is
        another function of it, and not a number such as 0.5 that occurs everywhere, it is that function. Else it
        remains unknown.
        """
        sure = {d for d, names in self._ambiguous.items() if len(names) == 1 and isinstance(d, CheckpointArray)}
        known = defaultdict[str, set[Derivation]](set)
        for one in sure:
            known[self._ambiguous[one][0]].add(one)
        for derivation, names in self._ambiguous.items():
            of_sure = all(CheckpointArray(source) in sure for source in derivation.sources())
            for name in names:
                self.constant.pop(name, None)
                if name in known and derivation not in known[name]:
                    continue  # such as the magnitude of a positive number
                is_rare = not float(2 * self._weights.values_of(name).reshape(-1)[0]).is_integer()
                is_sure = derivation in sure or (of_sure and len(names) == 1 and is_rare)
                self.claims[name] += [derivation] if is_sure else [derivation, None]

    def _settle_table(self, name: str, values: Values) -> None:
        known = recognise(values, self._weights[name].mil_dtype, self._literals)
        if known is None:
            self.unknown[name] = f"{self._weights[name].mil_dtype} {list(values.shape)}"
            return
        for numbers in known.coefficients:
            for array in self._changed:
                is_one = self._checkpoint.arrays[array].size == numbers.size
                if is_one and resembles(numbers, self._checkpoint.read(array)):
                    self.unknown[name] = f"{known.words}, with the numbers of {array}"
                    return
        self.constant[name] = known.words

    def _nearest(self, name: str) -> list[str]:
        """Return the arrays, those first that weights near a constant follow from, and those last that none does."""
        here, last = self._place[name], len(self._place)

        def distance(array: str) -> int:
            return min((abs(place - here) for place in self._places[array]), default=last)

        return sorted(self._places, key=distance)

    def _is_setting(self, name: str) -> bool:
        """Whether a constant is a number that is never trained, such as an epsilon."""
        readers = self._weights.readers[name]
        if not readers:
            return name.rpartition(".")[2] in _SETTINGS
        return all(reader.parameter in _SETTINGS for reader in readers)

    def _is_parameter(self, name: str) -> bool:
        """Whether a constant too small to be listed is a learned one, such as a bias of three channels."""
        return self._weights[name].size > 1 and any(r.parameter in PARAMETERS for r in self._weights.readers[name])


def _shown(values: Values, is_flat: bool) -> str:
    return ", ".join(f"{value:g}" for value in values.reshape(-1)[: 1 if is_flat else 4])
