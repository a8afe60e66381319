"""milblob extract: tensors to another format."""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Mapping

from .. import opening
from ..errors import UnsupportedError
from ..tensor import Tensor
from . import output
from .selection import describe_filter, select

_PROGRESS_AFTER_S = 1.0
_PROGRESS_EVERY_S = 0.1


def run(arguments: Namespace) -> int:
    """Run the command."""
    target = arguments.output
    _check_target(arguments.model, target)
    with opening.open(arguments.model, constants=arguments.constants, stored=arguments.stored) as model:
        chosen = select(model, arguments)
        if not chosen:
            wanted = describe_filter(arguments)
            raise ValueError(f"tensors to extract: expected at least one, got none{' for ' if wanted else ''}{wanted}")
        progress = _Progress(chosen, enabled=not arguments.quiet and sys.stderr.isatty())
        try:
            _save(chosen, target, arguments.force, progress)
        except UnsupportedError as error:
            if not arguments.stored and any(tensor.compression for tensor in chosen.values()):
                raise UnsupportedError(f"{error} (--stored extracts the parts)") from None
            raise
        finally:
            progress.close()
        nbytes = sum(tensor.nbytes for tensor in chosen.values())
        if arguments.verbose:
            for name, tensor in chosen.items():
                output.say(f"{name} {tensor.mil_dtype} {output.shape_text(tensor.shape)}")
        if arguments.json:
            output.print_json({"path": model.path, "output": target, "tensors": list(chosen), "nbytes": nbytes})
        elif not arguments.quiet:
            output.say(f"{output.plural(len(chosen), 'tensor')}, {output.size(nbytes)}, to {target}")
    return 0


def _save(tensors: Mapping[str, Tensor], target: str, force: bool, progress: "_Progress") -> None:
    suffix = os.path.splitext(target)[1].lower()
    if target.endswith(("/", os.sep)) or os.path.isdir(target) or not suffix:
        from ..formats import npy_dir

        npy_dir.save(tensors, target, force=force, progress=progress)
    elif suffix == ".npz":
        from ..formats import npz

        npz.save(tensors, target, force=force, progress=progress)
    elif suffix == ".safetensors":
        from ..formats import safetensors

        safetensors.save(tensors, target, force=force, progress=progress)
    else:
        raise ValueError(f"output {target}: expected .npz, .safetensors or a directory (ending in /), got {suffix}")


def _check_target(source: str, target: str) -> None:
    """Refuse an output that is the model, lies in it, or holds it.

    Raises:
        ValueError: it does.
    """
    real_source, real_target = os.path.realpath(source), os.path.realpath(target)
    inside = real_target == real_source or real_target.startswith(real_source + os.sep)
    around = os.path.isdir(real_target) and real_source.startswith(real_target.rstrip(os.sep) + os.sep)
    if inside or around:
        how = "holds" if around else "is, or is in,"
        raise ValueError(f"output {target}: expected a place outside the model, got one that {how} {source}")


class _Progress:
    """A line on a terminal, from the second second on."""

    def __init__(self, tensors: Mapping[str, Tensor], enabled: bool) -> None:
        self._enabled = enabled
        self._count = len(tensors)
        self._total = sum(tensor.nbytes for tensor in tensors.values()) if enabled else 0
        self._done = self._done_nbytes = 0
        self._started = self._last = time.monotonic()
        self._shown = False

    def __call__(self, name: str, nbytes: int) -> None:
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

    def close(self) -> None:
        """Take the line away."""
        if self._shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
