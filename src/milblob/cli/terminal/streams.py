"""The standard streams of a command: stand-ins for closed ones, and errors of stdout that name it."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

_STDOUT = "stdout"


class _Stdout(io.FileIO):
    """The descriptor of stdout."""

    def write(self, data: Any) -> int:
        """Write as a file does. Raises: OSError: with the name of the stream."""
        try:
            return super().write(data)
        except OSError as error:
            error.filename = _STDOUT
            raise


@contextmanager
def prepared() -> Iterator[None]:
    """Until the block ends, none of the streams is None, and errors of stdout are recognized by `is_of_stdout`.

    A closed stream is opened at /dev/null, so that no other file gets its descriptor. Reading the input and writing
    the output fail there as with a closed descriptor; messages are dropped. What cannot be encoded is escaped.
    """
    before = sys.stdin, sys.stdout, sys.stderr
    if sys.stdin is None:
        sys.stdin = os.fdopen(_null(os.O_WRONLY), encoding="utf-8")
    if sys.stdout is None:
        sys.stdout = _named(_null(os.O_RDONLY), encoding="utf-8")
    elif isinstance(sys.stdout, io.TextIOWrapper) and type(_raw(sys.stdout)) is io.FileIO:
        sys.stdout.flush()
        old = sys.stdout
        options = {"line_buffering": old.line_buffering, "write_through": old.write_through}
        sys.stdout = _named(old.fileno(), encoding=old.encoding, **options)
    if sys.stderr is None:
        sys.stderr = os.fdopen(_null(os.O_WRONLY), "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before


def is_of_stdout(error: BaseException) -> bool:
    """Whether stdout cannot be written."""
    return isinstance(error, OSError) and error.filename == _STDOUT


def discard(stream: Any) -> None:
    """Drop what a stream cannot write, so that the interpreter does not try it again as it ends."""
    with suppress(OSError, ValueError, AttributeError):
        null = _null(os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


def _null(flags: int) -> int:
    return os.open(os.devnull, flags)


def _raw(stream: io.TextIOWrapper) -> Any:
    return getattr(stream.buffer, "raw", stream.buffer)


def _named(fd: int, **options: Any) -> io.TextIOWrapper:
    raw: Any = _Stdout(fd, "w", closefd=False)
    return io.TextIOWrapper(raw if options.get("write_through") else io.BufferedWriter(raw), **options)
