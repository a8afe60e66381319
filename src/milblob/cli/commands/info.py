"""milblob info: versions, build, kernels and threads."""

from argparse import ArgumentParser, Namespace

from .. import options
from ..terminal import output

EXAMPLES = ("info", "info --json")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    options.add_json(parser)


def run(arguments: Namespace) -> int:
    """Run the command."""
    from ...about import info

    found = info()
    if arguments.json:
        output.print_json(found.to_dict())
    else:
        for line in str(found).splitlines():
            print(output.escape(line))
    return 0
