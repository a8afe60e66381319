"""Shared by the commands that write tensors to another file: check the output, report."""

from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import UnsupportedError
from ..formats.onnx import OnnxArray
from ..formats.params import Parameter
from ..model.lazy import LazyTensor
from ..wording import some
from .terminal import output

_WIDENED = ("int4", "uint1", "uint2", "uint3", "uint4", "uint6")
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


def with_hint(error: UnsupportedError, tensors: Mapping[str, LazyTensor], arguments: Namespace) -> UnsupportedError:
    """Add to an error about a compressed weight how to extract its parts."""
    if not arguments.stored and any(getattr(tensor, "compression", "") for tensor in tensors.values()):
        return UnsupportedError(f"{error} (--stored extracts the parts)")
    return error


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


def widened(target: str, tensors: Mapping[str, LazyTensor]) -> list[str]:
    """Return which tensors a .params file, which has no integers below a byte, holds as int8 and uint8."""
    if not target.lower().endswith(".params"):
        return []
    return [name for name, tensor in tensors.items() if dtype_text(tensor) in _WIDENED]


def say_widened(arguments: Namespace, names: list[str]) -> None:
    """Say which tensors these are."""
    if names and not arguments.quiet:
        output.say(f"as int8 or uint8, one element to a byte: {some(names, _MAX_NAMES)}")


def dtype_text(tensor: LazyTensor) -> str:
    """Return the name of a dtype; of one that only TVM or ONNX has, its name there."""
    try:
        return str(tensor.mil_dtype)
    except UnsupportedError:
        if isinstance(tensor, Parameter | OnnxArray):
            return tensor.dtype_text
        raise
