"""Which arrays of a checkpoint belong together: those of one module, by their names and shapes."""

from collections import defaultdict
from collections.abc import Mapping
from math import prod

from .derivations.arithmetic import Combined
from .derivations.derivation import CheckpointArray, Derivation, Folded, Moved, RowRange, Stacked
from .derivations.norms import Norm, find_norms

VECTORS = {
    "bias": ("weight", "weight_ih"),
    "bias_back": ("weight_ih_back",),
    "beta": ("gamma", "mean", "variance"),
    "gamma": ("beta", "mean", "variance"),
    "mean": ("variance", "gamma", "beta"),
    "variance": ("mean", "gamma", "beta"),
}
"""Parameter of an operation -> parameters that are of the same module; the first that is known decides."""

_NAMES = {
    "bias": ("bias", "beta"),
    "bias_back": ("bias",),
    "beta": ("bias", "beta"),
    "gamma": ("weight", "gamma", "scale"),
    "mean": ("mean",),
    "variance": ("var",),
    "weight": ("weight", "kernel"),
    "alpha": ("weight", "alpha"),
}


PARAMETERS = frozenset(_NAMES) | {"weight_ih", "weight_hh", "weight_ih_back", "weight_hh_back"}
"""Parameters of operations that are learnt."""


class Siblings:
    """The arrays of a checkpoint by module: the name up to its last dot or slash."""

    def __init__(self, shapes: Mapping[str, tuple[int, ...]]) -> None:
        self._shapes = shapes
        self._vectors: dict[tuple[str, int], list[str]] = defaultdict(list)
        self._of_size: dict[int, list[str]] = defaultdict(list)
        self.norms: dict[int, list[Norm]] = defaultdict(list)  # batch norms by their number of channels
        for name, shape in shapes.items():
            if prod(shape) == max(shape, default=0):
                self._vectors[module_of(name), prod(shape)].append(name)
                self._of_size[prod(shape)].append(name)
        for norm in find_norms(shapes):
            self.norms[prod(shapes[str(norm.mean)])].append(norm)

    def of_size(self, count: int) -> list[str]:
        """Return all vectors of a size."""
        return self._of_size.get(count, [])

    def scales(self, count: int) -> list[Norm]:
        """Return the vectors of a size, and single numbers, as scales of channels."""
        names = self.of_size(count) + (self.of_size(1) if count != 1 else [])
        return [Norm(name, None, None, None, 0.0, "scale") for name in names]

    def vectors(self, name: str, count: int) -> list[str]:
        """Return the vectors of a size in an array's module that may be its bias."""
        found = [other for other in self._vectors.get((module_of(name), count), []) if other != name]
        twin = name.replace("weight", "bias").replace("kernel", "bias")
        return [twin] if twin in found else [other for other in found if self.is_named_for(other, "bias")]

    def is_named_for(self, name: str, parameter: str) -> bool:
        """Whether the last part of a name is that of a parameter of an operation."""
        last = name[len(module_of(name)) :].lower()
        return any(word in last for word in _NAMES.get(parameter, ()))

    def beside(self, known: Derivation, parameter: str, count: int) -> list[Derivation] | None:
        """Return the candidates for another parameter of the same operation.

        `known`: how a weight of the operation follows from the checkpoint. `parameter`: which one is asked for.
        `count`: its elements.
        Returns: Candidates; empty if the module has no array for it; None if the derivation does not determine the
        module.
        """
        if isinstance(known, Folded):
            return None  # was claimed with the weight
        if isinstance(known, Stacked):
            parts = [self.beside(part, parameter, -1) for part in known.parts]
            if any(part is None for part in parts):
                return None
            several = [part for part in parts if part is not None]
            if not all(several):
                return []
            ways = max(map(len, several))
            return [Stacked(tuple(part[min(way, len(part) - 1)] for part in several)) for way in range(ways)]
        if isinstance(known, RowRange):
            whole = self.beside(known.of, parameter, -1)
            return None if whole is None else [RowRange(one, known.begin, known.end) for one in whole]
        if isinstance(known, Moved):
            is_plain = known.layout.axes is None and known.layout.before is None
            return self.beside(known.of, parameter, count) if is_plain else None
        if not isinstance(known, CheckpointArray):
            return None
        size = count if count >= 0 else self._shapes[known.name][0]
        return self._of_module(known.name, parameter, size)

    def _of_module(self, name: str, parameter: str, count: int) -> list[Derivation] | None:
        module = module_of(name)
        found = [
            other
            for other in self._vectors.get((module, count), [])
            if other != name and self.is_named_for(other, parameter)
        ]
        twin = name.replace("weight", "bias").replace("kernel", "bias")
        if parameter == "bias" and twin in found and "_ih_" not in name:
            return [CheckpointArray(twin)]
        if "_ih_" in name:
            pairs = [(a, a.replace("_ih_", "_hh_")) for a in found if "_ih_" in a]
            both: list[Derivation] = [
                Combined("+", CheckpointArray(a), CheckpointArray(b)) for a, b in pairs if b in found
            ]
            both.sort(key=lambda one: next(one.sources()) != twin)
            return [*both, *(CheckpointArray(other) for other in found)]
        if not found and not self.is_named_for(name, "weight"):
            return None
        return [CheckpointArray(other) for other in found]


def module_of(name: str) -> str:
    """Return a name without its last part."""
    for separator in (".", "/"):
        if separator in name:
            return name.rpartition(separator)[0]
    return ""
