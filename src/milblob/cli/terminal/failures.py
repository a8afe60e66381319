"""Reports any error in one line."""

from ... import errors
from ...errors import DestinationExistsError, SelectionError
from .output import say

EXIT_FINDINGS = 1
"""The command did its work, and there is something to look at: findings, differences, nothing to do."""
EXIT_ERROR = 2


def message_of(error: BaseException) -> str | None:
    """As `errors.message_of`, with the options that help."""
    if isinstance(error, DestinationExistsError):
        return f"{error.destination} already exists (use --force to replace it)"
    if isinstance(error, SelectionError) and error.globs:
        options = " ".join(f"-k {glob}" for glob in error.globs)
        return f"{options}: no tensor in {error.where} matches{error.hint}"
    return errors.message_of(error)


def report(error: Exception, path: str | None = None) -> int:
    """Print an error, and return the exit status.

    `path`: the model it was about, of several; it is named if the message does not.
    Raises: Exception: the error itself, if it is a bug.
    """
    message = message_of(error)
    if message is None:
        raise error
    say(message if path is None or path in message else f"{path}: {message}")
    return EXIT_ERROR
