"""The error of this folder's functions for an array that cannot be compressed."""


class UnfitError(ValueError):
    """The elements or the shape of an array do not allow this compression; another array might.

    A wrong option is a plain ValueError: it is the caller's mistake, for any array.
    """
