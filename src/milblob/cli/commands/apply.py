"""milblob apply: make the new model of a patch, beside the old one or in place."""

from argparse import ArgumentParser, Namespace

from .. import options
from ..calling import call, complete_first
from ..terminal import output
from .delta import MODEL

EXAMPLES = (
    "apply Old.mlpackage update.milpatch -o Updated.mlpackage",
    "apply Model.mlpackage update.milpatch --dry-run",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="OLD", help=f"the model that the patch is for: {MODEL}")
    parser.add_argument("patch", metavar="PATCH", help="file that `milblob delta` wrote")
    options.add_output(parser, "-o", "--output", help="the new model; default: change OLD in place")
    options.add_force(parser, "replace an existing model")
    options.add_dry_run(parser, "check that the patch is for this model and makes the new one, write nothing")
    options.add_reporting(parser, verbose="name each file that is new, changed or gone")


def run(arguments: Namespace) -> int:
    """Run the command."""
    from ... import apply

    complete_first(arguments, arguments.model)
    report = call(apply, arguments, arguments.model, arguments.patch, arguments.output)
    if arguments.json:
        output.print_json(report.to_dict())
        return 0
    if arguments.verbose:
        for what, names in (("changed", report.changed), ("gone", report.removed)):
            for name in names:
                output.say(f"{what}: {name or report.destination}")
    if not arguments.quiet:
        how = " in place" if report.through_journal else ""
        written = f"{output.plural(len(report.changed), 'file')} changed{how}" if report.done else "nothing written"
        output.say(f"{report.destination}: {report.new_hash[:16]}, {output.size(report.nbytes)}, {written}")
    return 0
