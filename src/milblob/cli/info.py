"""milblob info: versions, build, kernels and threads."""

from argparse import Namespace

from ..about import info
from . import output


def run(arguments: Namespace) -> int:
    """Run the command."""
    found = info()
    if arguments.json:
        output.print_json(found.to_dict())
    else:
        for line in str(found).splitlines():
            print(output.escape(line))
    return 0
