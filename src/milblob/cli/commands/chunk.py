"""milblob chunk: cut a model into packages that run one after another."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from .. import options
from ..calling import call
from ..terminal import output, tables

if TYPE_CHECKING:
    from ... import ChunkReport

EXAMPLES = (
    "chunk Model.mlpackage -o parts --parts 2 --pipeline",
    "chunk Model.mlpackage -o parts --max-nbytes 60K --dry-run",
)
_CUTS = (
    tables.Column("cut", is_name=True),
    tables.Column("function", drop=0),
    tables.Column("values", is_right=True),
    tables.Column("crossing", is_right=True),
    tables.Column("again", is_right=True, drop=1),
)
_CHUNKS = (
    tables.Column("package", is_name=True),
    tables.Column("size", is_right=True),
    tables.Column("records", is_right=True),
    tables.Column("operations", is_right=True, drop=0),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="MODEL", help=".mlpackage or .mlmodel with one ML Program")
    description = "the folder of the new packages, NAME_chunk1.mlpackage and so on; made if it does not exist"
    options.add_output(parser, "-o", "--output", metavar="DIR", required=True, help=description)
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--parts", metavar="N", type=options.count, help="number of packages")
    most = "packages whose weights and operations are not larger, as few as that takes; such as 1G"
    how.add_argument("--max-nbytes", metavar="SIZE", type=options.size, help=most)
    at = "cut after the operation that computes this value; may be repeated"
    how.add_argument("--at", metavar="NAME", action="append", help=at)
    parser.add_argument(
        "--pipeline", action="store_true", help="also one package that runs all, NAME_pipeline.mlpackage"
    )
    options.add_force(parser, "replace packages that exist")
    options.add_dry_run(parser, "choose the cuts and print them, write nothing")
    options.add_messages(
        parser, verbose="also the values that cross each cut, and weights that are stored several times"
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    from ... import chunk

    report = call(chunk, arguments, arguments.model, arguments.output)
    if arguments.json:
        output.print_json(report.to_dict())
    elif not arguments.quiet:
        _print(report, arguments.verbose)
    return 0


def _print(report: "ChunkReport", is_verbose: bool) -> None:
    rows = [
        [cut.after, cut.function, str(len(cut.values)), output.size(cut.nbytes), str(cut.repeated)]
        for cut in report.cuts
    ]
    if rows:
        tables.print_table(_CUTS, rows)
        print()
    tables.print_table(
        _CHUNKS,
        [[one.path, output.size(one.nbytes), str(one.blob_count), str(one.operations)] for one in report.chunks],
    )
    if is_verbose:
        for cut in report.cuts:
            values = ", ".join(f"{name} ({kind})" for name, kind in cut.values.items())
            output.say(f"cut of {cut.function} after {cut.after}: {values or 'nothing crosses'}")
        for weight in report.repeated:
            numbers = ", ".join(map(str, weight.chunks))
            output.say(f"{weight.name} ({output.size(weight.nbytes)}) is stored in packages {numbers}")
    for note in report.notes:
        output.say(note)
    nbytes = sum(weight.nbytes * (len(weight.chunks) - 1) for weight in report.repeated)
    again = f", {output.size(nbytes)} of weights stored again" if nbytes else ""
    written = "written" if report.is_written else "planned"
    pipeline = f" and {report.pipeline}" if report.pipeline else ""
    output.say(f"{output.plural(len(report.chunks), 'package')}{pipeline} {written}{again}")
