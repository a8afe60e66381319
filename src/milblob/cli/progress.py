"""The progress line of a long command."""

import contextlib
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Iterator

from . import output

_PROGRESS_AFTER_S = 1.0
_PROGRESS_EVERY_S = 0.1


@contextlib.contextmanager
def shown(arguments: Namespace) -> Iterator["Progress | None"]:
    """Give what a function takes as `progress`: a line on a terminal; None with -q, or where stderr is no terminal."""
    if arguments.quiet or not sys.stderr.isatty():
        yield None
        return
    line = Progress()
    try:
        yield line
    finally:
        line.close()


class Progress:
    """A line on a terminal, shown after the first second; called as `milblob.progress.Progress` says."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._shown = False

    def __call__(self, name: str, done_nbytes: int, total_nbytes: int) -> None:
        """Print how much is done, at most a few times per second."""
        now = time.monotonic()
        if now - self._started < _PROGRESS_AFTER_S or now - self._last < _PROGRESS_EVERY_S:
            return
        self._last, self._shown = now, True
        portion = done_nbytes / total_nbytes if total_nbytes else 1.0
        bar = "#" * int(30 * portion)
        line = f"[{bar:<30}] {portion:4.0%}  {output.size(done_nbytes)}  {output.escape(name)}"
        columns = shutil.get_terminal_size().columns - 1  # a line that wraps cannot be taken back
        print(f"\r{line[:columns]}\x1b[K", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the line."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
