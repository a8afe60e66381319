"""milblob extract: write tensors to another format."""

from argparse import ArgumentParser, Namespace

from ...rewrite.convert import extract
from .. import options
from ..saving import say_converted
from ..selection import check_keep
from ..terminal.progress import shown

EXAMPLES = ("extract Model.mlpackage -o weights.safetensors", "extract Model.mlpackage -k 'head*' -o head/")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="MODEL", help=options.ANY)
    target = "file.npz, file.safetensors, file.params or directory/"
    options.add_output(parser, "-o", "--output", required=True, help=target)
    options.add_selection(parser)
    options.add_views(parser)
    options.add_force(parser)
    options.add_reporting(
        parser, verbose="name each tensor that was written", json="print what was written as one JSON object"
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    check_keep(arguments, arguments.model)
    with shown(arguments) as progress:
        done = extract(
            arguments.model, arguments.output, select=arguments.keep or None, function=arguments.function,
            constants=arguments.constants, stored=arguments.stored, force=arguments.force, progress=progress,
            max_nbytes=arguments.max_nbytes,
        )  # fmt: skip
    say_converted(arguments, done)
    return 0
