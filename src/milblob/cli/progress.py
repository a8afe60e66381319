"""The progress line of a long command."""

import contextlib
import sys
import time
from collections.abc import Collection
from typing import Protocol

from . import output

_PROGRESS_AFTER_S = 1.0
_PROGRESS_EVERY_S = 0.1


class Sized(Protocol):
    """Anything with a size in bytes."""

    @property
    def nbytes(self) -> int:
        """Bytes, as stored."""


def progress_of(source: str, stored: bool, quiet: bool) -> "Progress":
    """Return a Progress for work on every tensor of a model or file of arrays, as in `diff` and `match`.

    Raises:
        As opening it does.
    """
    from ..analysis.pairing import Side

    enabled = not quiet and sys.stderr.isatty()
    with contextlib.ExitStack() as stack:
        return Progress(list(Side.open(source, stored, stack).tensors.values()) if enabled else [], enabled)


class Progress:
    """A line on a terminal, shown after the first second.

    Args:
        tensors: the tensors to process.
        enabled: whether to show anything; never if stderr is not a terminal.

    Called with the name and the bytes of each tensor that is done.
    """

    def __init__(self, tensors: Collection[Sized], enabled: bool) -> None:
        self._enabled = enabled
        self._count = len(tensors)
        self._total = sum(tensor.nbytes for tensor in tensors) if enabled else 0
        self._done = self._done_nbytes = 0
        self._started = self._last = time.monotonic()
        self._shown = False

    def __call__(self, name: str, nbytes: int) -> None:
        """Count a tensor as done."""
        if not self._enabled:
            return
        self._done += 1
        self._done_nbytes += nbytes
        self.show(self._done_nbytes, self._total, f"{self._done} of {self._count}")

    def show(self, done_nbytes: int, total_nbytes: int, words: str) -> None:
        """Print how much is done, at most a few times per second."""
        now = time.monotonic()
        if not self._enabled or now - self._started < _PROGRESS_AFTER_S or now - self._last < _PROGRESS_EVERY_S:
            return
        self._last, self._shown = now, True
        portion = done_nbytes / total_nbytes if total_nbytes else 1.0
        bar = "#" * int(30 * portion)
        line = f"[{bar:<30}] {portion:4.0%}  {words}  {output.size(done_nbytes)}"
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
