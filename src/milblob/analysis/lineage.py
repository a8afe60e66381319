"""What `learn` found: how each weight of a model follows from the arrays of a checkpoint."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from .derivation import Derivation


class Claim(NamedTuple):
    """One way in which a weight follows from the checkpoint.

    Attributes:
        derivation: computes the values; None for the present ones, where an operation reads a constant that no array of
            the checkpoint is the source of.
        readers: the operations that read these values, as "operation.parameter"; empty if it is not known which of the
            readers, and so all.
    """

    derivation: Derivation | None
    readers: tuple[str, ...] = ()


class Origin(NamedTuple):
    """Where a weight comes from.

    Attributes:
        name: of the weight.
        claims: all of them give the present values. New values must agree, or be for different readers.
        sqnr: in dB, of a compressed weight against its derivation; None if all bits are equal.
    """

    name: str
    claims: tuple[Claim, ...]
    sqnr: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        claims = [
            {"from": None if c.derivation is None else c.derivation.to_dict(), "readers": list(c.readers)}
            for c in self.claims
        ]
        return {"name": self.name, "claims": claims, "sqnr": self.sqnr}


@dataclass(frozen=True)
class Lineage:
    """How the weights of a model follow from a checkpoint.

    Attributes:
        origins: by the name of the weight.
        unknown: weight -> why its values could not be reproduced.
        constant: weights that are no function of the checkpoint: all elements are equal, or they are integers.
        unused: arrays of the checkpoint that no weight follows from.
    """

    origins: dict[str, Origin]
    unknown: dict[str, str]
    constant: tuple[str, ...]
    unused: tuple[str, ...]

    def sources(self) -> Iterator[str]:
        """Yield the arrays that weights follow from, perhaps several times."""
        for origin in self.origins.values():
            for claim in origin.claims:
                if claim.derivation is not None:
                    yield from claim.derivation.sources()

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        origins = [origin.to_dict() for origin in self.origins.values()]
        document: dict[str, Any] = {"weights": origins, "unknown": self.unknown}
        return {**document, "constant": list(self.constant), "unused": list(self.unused)}
