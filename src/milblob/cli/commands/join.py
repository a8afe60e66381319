"""milblob join: make one package of packages that run one after another."""

from argparse import ArgumentParser, Namespace

from .. import options
from ..calling import call
from ..terminal import output

EXAMPLES = (
    "join Model_chunk1.mlpackage Model_chunk2.mlpackage -o Whole.mlpackage",
    "join Model_chunk*.mlpackage -o Whole.mlpackage -v",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    models = ".mlpackage with an ML Program; outputs feed inputs of later ones that have their names"
    options.add_merging(parser, models)
    keep = "also return this output, although a later model takes it; may be repeated"
    parser.add_argument("--also", metavar="NAME", action="append", default=[], help=keep)
    options.add_reporting(parser, verbose="also inputs, outputs and what is linked")


def run(arguments: Namespace) -> int:
    """Run the command."""
    from ... import join

    joined = call(join, arguments, arguments.models, arguments.output)
    if arguments.json:
        output.print_json(joined.to_dict())
        return 0
    if arguments.verbose:
        for function in joined.functions:
            for what in ("inputs", "states", "outputs", "linked"):
                names = getattr(joined, what)[function]
                output.say(f"{function}: {what} {', '.join(names) or 'none'}")
    if not arguments.quiet:
        shared = f", {output.size(joined.shared_nbytes)} shared" if joined.shared_nbytes else ""
        renamed = f", {output.plural(joined.renamed, 'value')} renamed" if joined.renamed else ""
        count = output.plural(len(joined.sources), "package")
        output.say(f"{count}, {output.size(joined.nbytes)} of weights{shared}{renamed}, to {joined.destination}")
    return 0
