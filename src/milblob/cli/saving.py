"""Shared by the commands that write tensors to another file: the report of what was written."""

from argparse import Namespace
from typing import TYPE_CHECKING

from ..wording import some
from .terminal import output

if TYPE_CHECKING:
    from ..rewrite.convert import ConvertReport

MAX_NAMES = 20
"""In one message."""


def say_written(arguments: Namespace, report: "ConvertReport") -> None:
    """Report what was written, as -v, -q and --json ask."""
    if report.widened and not arguments.quiet:
        output.say(f"as int8 or uint8, one element to a byte: {some(report.widened, MAX_NAMES)}")
    if arguments.verbose:
        for tensor in report.tensors:
            output.say(f"{tensor.name} {tensor.dtype} {output.shape_text(tensor.shape)}")
    if arguments.json:
        output.print_json(report.to_dict())
    elif not arguments.quiet:
        count = output.plural(len(report.tensors), "tensor")
        output.say(f"{count}, {output.size(report.nbytes)}, to {report.destination}")
