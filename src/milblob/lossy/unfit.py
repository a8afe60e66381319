"""The error of this folder's functions for an array that cannot be compressed, and the check that most of them make."""


class UnfitError(ValueError):
    """The elements or the shape of an array do not allow this compression; another array might.

    A wrong option is a plain ValueError: it is the caller's mistake, for any array.
    """


def refuse_not_finite(bad: int) -> None:
    """Refuse elements that are NaN or infinite, if there are any; `bad`: how many. Raises: UnfitError."""
    if bad:
        raise UnfitError(f"array: expected finite elements, got {bad} that are NaN or infinite")
