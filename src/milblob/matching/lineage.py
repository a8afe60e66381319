"""The result of a search: how each weight of a model follows from the arrays of a checkpoint."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from .derivations.derivation import Derivation


class Claim(NamedTuple):
    """One way in which a weight follows from the checkpoint."""

    # computes the values; None for the present ones, where an operation reads a constant that no array of the
    # checkpoint is the source of
    derivation: Derivation | None
    # the operations that read these values, as "operation.parameter"; empty if it is not known which of the readers,
    # and so all
    readers: tuple[str, ...] = ()

    def sources(self) -> Iterator[str]:
        """Yield the names of the arrays that the values follow from."""
        return iter(()) if self.derivation is None else self.derivation.sources()


class Origin(NamedTuple):
    """Where a weight comes from."""

    name: str  # of the weight
    # all of them give the present values. New values must agree, or be for different readers.
    claims: tuple[Claim, ...]
    sqnr: float | None = None  # in dB, of a compressed weight against its derivation; None if it is not compressed
    is_exact: bool = True  # whether the claims give the present values to the bit; else to one rounding


@dataclass(frozen=True)
class Lineage:
    """How the weights of a model follow from a checkpoint."""

    origins: dict[str, Origin]  # by the name of the weight
    unknown: dict[str, str]  # weight -> why its values could not be reproduced
    # weights that are not a function of the checkpoint -> their kind: one number, a mask, positions
    constant: dict[str, str]
    unused: tuple[str, ...]  # arrays of the checkpoint that no weight follows from
    # unused arrays that may matter all the same: they equal a weight that more arrays equal than were followed; or they
    # are small, and the explanation of a number may be an accident
    unclear: frozenset[str] = frozenset()

    def unused_parts(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, list[int]]]:
        """Return the arrays that are used only in part: name -> (axis, indices along it that are not used)."""
        whole: set[str] = set()
        parts: dict[str, dict[int, set[int]]] = {}
        for origin in self.origins.values():
            for claim in origin.claims:
                for use in claim.derivation.uses() if claim.derivation is not None else ():
                    if use.axis is None:
                        whole.add(use.name)
                    else:
                        along = parts.setdefault(use.name, {}).setdefault(use.axis, set())
                        along.update(range(use.begin, use.end))
        found = {}
        for name, axes in parts.items():
            left = [(axis, sorted(set(range(shapes[name][axis])) - used)) for axis, used in axes.items()]
            if name not in whole and all(missing for _, missing in left):
                found[name] = left[0] if len(left) == 1 else (0, list(range(shapes[name][0])))
        return found
