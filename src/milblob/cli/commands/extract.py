"""milblob extract: write tensors to another format."""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack

from ...errors import UnsupportedError
from ...formats.write import save
from ...rewrite.destination import require_outside
from .. import options
from ..saving import refuse_model, report, say_widened, widened, with_hint
from ..selection import describe_filter, open_chosen
from ..sources import add_sources
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
    add_sources(parser, "model")
    options.add_reporting(
        parser, verbose="name each tensor that was written", json="print what was written as one JSON object"
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    target = arguments.output
    refuse_model(target)
    require_outside(arguments.model, target)
    with ExitStack() as stack:
        chosen = open_chosen(
            stack, arguments.model, arguments, constants=arguments.constants, stored=arguments.stored, noted=True
        ).tensors
        if not chosen:
            wanted = describe_filter(arguments)
            raise ValueError(f"tensors to extract: expected at least one, got none{' for ' if wanted else ''}{wanted}")
        say, names = report(arguments, arguments.model, target, chosen), widened(target, chosen)
        try:
            with shown(arguments) as progress:
                save(chosen, target, force=arguments.force, progress=progress)
        except UnsupportedError as error:
            raise with_hint(error, chosen, arguments) from None
        say_widened(arguments, names)
        say()
    return 0
