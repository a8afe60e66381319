"""What the compressing functions of this folder raise for an array that they cannot take."""


class UnfitError(ValueError):
    """The elements or the shape of an array are such that it cannot be compressed so; another array could be.

    A wrong option is a plain ValueError: it is the caller's mistake, whatever the array.
    """
