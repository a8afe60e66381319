"""What the commands that write tensors elsewhere share: where to, how far, and what was done."""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from ..errors import UnsupportedError
from ..formats.elements import Readable
from . import output

_PROGRESS_AFTER_S = 1.0
_PROGRESS_EVERY_S = 0.1


def check_target(source: str, target: str) -> None:
    """Refuse an output that is what is read, lies in it, or holds it.

    Raises:
        ValueError: it does.
    """
    real_source, real_target = os.path.realpath(source), os.path.realpath(target)
    inside = real_target == real_source or real_target.startswith(real_source + os.sep)
    around = os.path.isdir(real_target) and real_source.startswith(real_target.rstrip(os.sep) + os.sep)
    if inside or around:
        how = "holds" if around else "is, or is in,"
        raise ValueError(f"output {target}: expected a place outside the model, got one that {how} {source}")


def with_hint(error: UnsupportedError, tensors: Mapping[str, Readable], arguments: Namespace) -> UnsupportedError:
    """Say of a compressed weight how its parts can be had."""
    if not arguments.stored and any(getattr(tensor, "compression", "") for tensor in tensors.values()):
        return UnsupportedError(f"{error} (--stored extracts the parts)")
    return error


def report(arguments: Namespace, source: Any, target: str, tensors: Mapping[str, Readable], **more: Any) -> None:
    """Say what was written, as -v, -q and --json ask.

    Args:
        arguments: of the command.
        source: "path" in JSON.
        target: "output" in JSON.
        tensors: what was written.
        more: further keys in JSON.
    """
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    if arguments.verbose:
        for name, tensor in tensors.items():
            output.say(f"{name} {tensor.mil_dtype} {output.shape_text(tensor.shape)}")
    if arguments.json:
        output.print_json({"path": source, "output": target, "tensors": list(tensors), "nbytes": nbytes, **more})
    elif not arguments.quiet:
        output.say(f"{output.plural(len(tensors), 'tensor')}, {output.size(nbytes)}, to {target}")


class Progress:
    """A line on a terminal, from the second second on; a context manager."""

    def __init__(self, tensors: Mapping[str, Readable], quiet: bool) -> None:
        self._enabled = not quiet and sys.stderr.isatty()
        self._count = len(tensors)
        self._total = sum(tensor.nbytes for tensor in tensors.values()) if self._enabled else 0
        self._done = self._done_nbytes = 0
        self._started = self._last = time.monotonic()
        self._shown = False

    def __call__(self, name: str, nbytes: int) -> None:
        """Count one tensor."""
        if not self._enabled:
            return
        self._done += 1
        self._done_nbytes += nbytes
        now = time.monotonic()
        if now - self._started < _PROGRESS_AFTER_S or now - self._last < _PROGRESS_EVERY_S:
            return
        self._last, self._shown = now, True
        portion = self._done_nbytes / self._total if self._total else 1.0
        bar = "#" * int(30 * portion)
        line = f"[{bar:<30}] {portion:4.0%}  {self._done} of {self._count}  {output.size(self._done_nbytes)}"
        print(f"\r{line}\x1b[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: object) -> None:
        """Take the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
