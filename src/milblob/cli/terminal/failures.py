"""Reports any error in one line."""

from ...errors import DestinationExistsError, MilblobError, SelectionError
from ...mirrored import shown
from .output import say

EXIT_ERROR = 2


def message_of(error: BaseException) -> str | None:
    """Return the message of an error that input may cause; None for one that is a bug, or no error at all."""
    if isinstance(error, MemoryError):
        return "not enough memory"
    if isinstance(error, RecursionError):
        return "input: expected less nesting, got more than Python can follow"
    if isinstance(error, KeyError):
        return str(error.args[0]) if error.args else "unknown name"
    if isinstance(error, DestinationExistsError):
        return f"{error.destination} already exists (use --force to replace it)"
    if isinstance(error, SelectionError) and error.globs:
        options = " ".join(f"-k {glob}" for glob in error.globs)
        return f"{options}: no tensor in {error.where} matches{error.hint}"
    if isinstance(error, OSError):
        file = f": {shown(str(error.filename))}" if error.filename is not None else ""
        return f"{error.strerror}{file}" if error.strerror else str(error)
    if isinstance(error, ImportError) and not isinstance(error, ModuleNotFoundError):  # an extra that is missing
        return str(error)
    if isinstance(error, MilblobError | ValueError | TypeError | NotImplementedError | LookupError | OverflowError):
        return str(error)
    return None


def report(error: Exception, path: str | None = None) -> int:
    """Print an error, and return the exit status.

    Args:
        error: what was raised.
        path: the model it was about, of several; it is named if the message does not.

    Raises:
        Exception: the error itself, if it is a bug.
    """
    message = message_of(error)
    if message is None:
        raise error
    say(message if path is None or path in message else f"{path}: {message}")
    return EXIT_ERROR
