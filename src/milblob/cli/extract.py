"""milblob extract: tensors to another format."""

import os
import sys
from argparse import Namespace
from collections.abc import Mapping

from .. import opening
from ..errors import UnsupportedError
from ..tensor import Tensor
from . import output
from .progress import Progress
from .selection import describe_filter, select


def run(arguments: Namespace) -> int:
    """Run the command."""
    target = arguments.output
    _check_target(arguments.model, target)
    with opening.open(arguments.model, constants=arguments.constants, stored=arguments.stored) as model:
        chosen = select(model, arguments)
        if not chosen:
            wanted = describe_filter(arguments)
            raise ValueError(f"tensors to extract: expected at least one, got none{' for ' if wanted else ''}{wanted}")
        progress = Progress(chosen.values(), enabled=not arguments.quiet and sys.stderr.isatty())
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


def _save(tensors: Mapping[str, Tensor], target: str, force: bool, progress: Progress) -> None:
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
