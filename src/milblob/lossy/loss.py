"""What a compression loses, as sums over the elements of an array."""

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple


class Loss(NamedTuple):
    """What is lost."""

    squared: float = 0.0  # sum of the squared differences from the array
    power: float = 0.0  # sum of the squares of the array
    largest: float = 0.0  # difference
    # upper bound of the squared error of palettes minus the least possible one, weighted if they were fitted so; None
    # if it is unknown
    gap: float | None = None

    def plus(self, other: "Loss") -> "Loss":
        """Return the loss of two parts together, without a gap."""
        return Loss(self.squared + other.squared, self.power + other.power, max(self.largest, other.largest))


def total(parts: Iterable[Loss]) -> Loss:
    """Return the loss of all parts together; in order, because sums of doubles depend on it."""
    return reduce(Loss.plus, parts, Loss())
