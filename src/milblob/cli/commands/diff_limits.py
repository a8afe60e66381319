"""The limits of milblob diff: its exit status reports whether the weights are within them."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from ...analysis.diff import Diff
    from ...analysis.limits import Failure, Limits


def add(parser: ArgumentParser) -> None:
    """Add the options that set limits."""
    group = parser.add_argument_group("limits", "With any of these, exit status 1 means that a weight is beyond one.")
    least = "lowest signal-to-noise ratio that a weight may have, in dB"
    group.add_argument("--min-sqnr", metavar="DB", type=_number("min_sqnr"), help=least)
    lowest = "lowest cosine that a weight may have, -1 to 1"
    group.add_argument("--min-cosine", metavar="C", type=_number("min_cosine"), help=lowest)
    group.add_argument("--max-abs", metavar="X", type=_number("max_abs"), help="largest difference of two elements")


def _number(name: str) -> Callable[[str], float]:
    """Return the parser of a limit."""

    def parse(text: str) -> float:
        from ...analysis.limits import Limits

        try:
            number = float(text)
            Limits(**{name: number}).require()
        except ValueError:
            words = {"min_sqnr": "a number", "min_cosine": "a number from -1 to 1", "max_abs": "a number of 0 or more"}
            raise ArgumentTypeError(f"expected {words[name]}, got {text!r}") from None
        return number

    return parse


class Gate(NamedTuple):
    """The verdict on a comparison."""

    limits: "Limits"
    failing: "list[Failure]"  # the weights beyond them, the worst first
    is_empty: bool  # whether there was no weight to judge

    @classmethod
    def of(cls, arguments: Namespace, found: "Diff") -> Self | None:
        """Judge a comparison by the options; None if they set no limit."""
        from ...analysis.limits import Limits

        limits = Limits(arguments.min_sqnr, arguments.min_cosine, arguments.max_abs)
        if limits == Limits():
            return None
        return cls(limits, found.failing(**limits._asdict()), not found.rows)

    @property
    def passes(self) -> bool:
        """Whether there is a weight and every weight is within the limits."""
        return not self.failing and not self.is_empty

    @property
    def message(self) -> str:
        """The verdict."""
        if self.is_empty:
            return "fails: no weight was compared"
        if not self.failing:
            return f"passes: every weight is within the limits ({self.limits})"
        count = len(self.failing)
        return f"fails: {count:,} {'weight is' if count == 1 else 'weights are'} beyond a limit ({self.limits})"

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON can hold it."""
        limits = {name: value for name, value in self.limits._asdict().items() if value is not None}
        return {"limits": limits, "passes": self.passes, "failing": [failure.to_dict() for failure in self.failing]}
