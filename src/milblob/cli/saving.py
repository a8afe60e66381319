"""Shared by the commands that write tensors to another file: check the output, report."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from ..model.lazy import LazyTensor, dtype_text
from ..rewrite.convert import ConvertReport
from ..wording import some
from .terminal import output

_MAX_NAMES = 20


def is_model_name(path: str) -> bool:
    """Whether a path is called as a model."""
    return path.rstrip("/\\").lower().endswith((".mlpackage", ".mlmodelc", ".mlmodel"))


def refuse_model(target: str) -> None:
    """Refuse to write arrays where the name says that a model is wanted.

    Raises:
        ValueError: it does.
    """
    if is_model_name(target):
        raise ValueError(
            f"output {target}: expected a file of arrays, got a model; `milblob repack MODEL -o` writes one"
        )


def report(
    arguments: Namespace, source: Any, target: str, tensors: Mapping[str, LazyTensor], **more: Any
) -> Callable[[], None]:
    """Prepare to say what is written, as -v, -q and --json ask: nothing of that may fail when it is written.

    Args:
        arguments: of the command.
        source: "path" in JSON.
        target: "output" in JSON.
        tensors: what is written.
        more: further keys in JSON.

    Returns:
        What says it.

    Raises:
        As the sizes, dtypes and shapes of the tensors.
    """
    nbytes = sum(tensor.nbytes for tensor in tensors.values())
    lines = []
    if arguments.verbose:
        for name, tensor in tensors.items():
            lines.append(f"{name} {dtype_text(tensor)} {output.shape_text(tensor.shape)}")
    names = list(tensors)

    def say() -> None:
        for line in lines:
            output.say(line)
        if arguments.json:
            output.print_json({"path": source, "output": target, "tensors": names, "nbytes": nbytes, **more})
        elif not arguments.quiet:
            output.say(f"{output.plural(len(names), 'tensor')}, {output.size(nbytes)}, to {target}")

    return say


def say_converted(arguments: Namespace, done: ConvertReport) -> None:
    """Say what was written, as -v, -q and --json ask."""
    if arguments.verbose:
        for tensor in done.tensors:
            output.say(f"{tensor.name} {tensor.dtype} {output.shape_text(tensor.shape)}")
    if done.widened and not arguments.quiet:
        output.say(f"as int8 or uint8, one element to a byte: {some(done.widened, _MAX_NAMES)}")
    if arguments.json:
        output.print_json(done.to_dict())
    elif not arguments.quiet:
        sizes = f"{output.plural(len(done.tensors), 'tensor')}, {output.size(done.nbytes)}"
        output.say(f"{sizes}, to {done.destination}")
