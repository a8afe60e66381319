"""milblob report: one HTML file about a model, or about two."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from .. import options
from ..calling import call
from ..selection import check_select
from ..sources import add_sources
from ..terminal import output
from ..terminal.failures import EXIT_FINDINGS

if TYPE_CHECKING:
    from ...reporting.report import ReportFile


EXAMPLES = ("report Model.mlpackage -o report.html", "report Model.mlpackage Half.mlpackage -o both.html --no-values")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="MODEL", help=options.ANY)
    parser.add_argument("other", metavar="OTHER", nargs="?", help="another one to compare with it")
    options.add_output(parser, "-o", "--output", metavar="FILE", required=True, help="the HTML file to write")
    options.add_select(parser)
    parser.add_argument("--no-values", action="store_true", help="read the Program alone, no weights")
    parser.add_argument("--plan", metavar="FILE", help="plan of a compression: show the recipe of each weight")
    frontier = "what `compress --frontier SVG --json` printed: draw it, with the size of --plan"
    parser.add_argument("--frontier", metavar="FILE", help=frontier)
    options.add_force(parser)
    add_sources(parser, "model", "other")
    options.add_reporting(parser, verbose="name the weights that were sampled", json="one JSON object about the file")


def run(arguments: Namespace) -> int:
    """Run the command; status 1 if a weight could not be read."""
    from ...reporting.report import report

    sources = [one for one in (arguments.model, arguments.other) if one is not None]
    check_select(arguments, *sources, stored=False)
    written = call(
        report, arguments, arguments.model, arguments.other, destination=arguments.output,
        values=not arguments.no_values,
    )  # fmt: skip
    if arguments.json:
        output.print_json(written.to_dict())
    else:
        _say(written, arguments)
    return EXIT_FINDINGS if written.unreadable else 0


def _say(written: "ReportFile", arguments: Namespace) -> None:
    for name, reason in written.unreadable.items():
        output.say(f"{name} was not read: {reason}")
    if arguments.quiet:
        return
    if arguments.verbose:
        for name in written.sampled:
            output.say(f"{name}: its statistics are of a sample of its values")
    elif written.sampled:
        output.say(f"{output.plural(len(written.sampled), 'large weight')}: statistics of a sample of the values")
    output.say(f"{written.destination}: {output.plural(written.weights, 'weight')}, {output.size(written.nbytes)}")
