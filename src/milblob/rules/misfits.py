"""What is wrong with inputs that fit no output of their operation."""

from ..wording import sizes as spelled

Shape = tuple[int | None, ...]


class Misfit(Exception):  # noqa: N818 - not an error of ours: it becomes a finding
    """The arguments fit no output: which ones, what was expected of them, and what they are."""

    def __init__(self, what: str, expected: object, got: object) -> None:
        super().__init__(what, expected, got)

    def words(self, kind: str) -> str:
        """The message about an operation."""
        what, expected, got = self.args
        return f"{what} of {kind}: expected {expected}, got {got}"


def require_like(what: str, expected: Shape, got: Shape) -> None:
    """Refuse a shape of another rank, or with another size where both are known. Raises: Misfit."""
    pairs = zip(expected, got, strict=False)
    if len(expected) != len(got) or any(None not in pair and pair[0] != pair[1] for pair in pairs):
        raise Misfit(what, spelled(expected), spelled(got))


def require_multiple(what: str, size: int | None, divisor: int) -> None:
    """Refuse a known size that `divisor` does not divide. Raises: Misfit."""
    if size is not None and size % divisor:
        raise Misfit(what, f"a multiple of {divisor}", size)
