"""The progress line of a long command."""

import contextlib
import sys
import time
from argparse import Namespace
from collections.abc import Iterator

from . import output, width

_PROGRESS_AFTER_S = 0.2
_PROGRESS_EVERY_S = 0.1


@contextlib.contextmanager
def shown(arguments: Namespace) -> Iterator["Progress | None"]:
    """Yield the argument `progress`: a line on a terminal; None with -q, or if stderr is not a terminal."""
    if arguments.quiet or not sys.stderr.isatty():
        yield None
        return
    with contextlib.closing(Progress()) as line:
        yield line


class Progress:
    """A line on a terminal, shown after a fifth of a second; its calls follow `milblob.progress.Progress`.

    Between calls, which come once for each tensor, a thread renews it: work on one large tensor is seen to go on too.
    """

    def __init__(self) -> None:
        import threading

        self._started = self._last = time.monotonic()
        self._shown = False
        self._state = ("", 0, 0)
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._keep_showing, daemon=True)
        self._thread.start()

    def __call__(self, name: str, done_nbytes: int, total_nbytes: int) -> None:
        """Print how much is done, at most a few times per second."""
        with self._lock:
            self._state = (name, done_nbytes, total_nbytes)
            now = time.monotonic()
            if now - self._started >= _PROGRESS_AFTER_S and now - self._last >= _PROGRESS_EVERY_S:
                self._show(now)

    def _keep_showing(self) -> None:
        while not self._closed.wait(_PROGRESS_AFTER_S):
            with self._lock:
                if not self._closed.is_set():
                    self._show(time.monotonic())

    def _show(self, now: float) -> None:
        name, done_nbytes, total_nbytes = self._state
        self._last, self._shown = now, True
        portion = done_nbytes / total_nbytes if total_nbytes else 0.0  # it is not known while work is planned
        bar = "#" * int(30 * portion)
        seconds = int(now - self._started)
        line = f"[{bar:<30}] {portion:4.0%}  {output.size(done_nbytes)}  {seconds} s  {output.escape(name)}".rstrip()
        columns = width.terminal_columns() - 1  # a line that wraps cannot be taken back
        with contextlib.suppress(OSError):  # a terminal that is gone ends no work
            print(f"\r{line[:columns]}\x1b[K", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Remove the line."""
        self._closed.set()
        with self._lock:
            if self._shown:
                with contextlib.suppress(OSError):
                    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        self._thread.join()
