"""milblob delta: write a patch that makes a new model from an old one."""

from argparse import ArgumentParser, Namespace

from .. import options
from ..calling import call
from ..terminal import output, tables

EXAMPLES = (
    "delta Old.mlpackage New.mlpackage -o new.milpatch",
    "delta Old.mlpackage New.mlpackage -o new.milpatch --level 19 -v",
)
MODEL = ".mlpackage, .mlmodelc, .mlmodel with its weights in it, or weight file"
_FILES = (
    tables.Column("file", is_name=True),
    tables.Column("size", is_right=True),
    tables.Column("copied", is_right=True),
    tables.Column("stored", is_right=True),
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("old", metavar="OLD", help=MODEL)
    parser.add_argument("new", metavar="NEW", help="model of the same kind")
    options.add_output(parser, "-o", "--output", metavar="PATCH", required=True, help="the new file")
    level = "level of zstd, 1 to 22; default: 3"
    parser.add_argument("--level", metavar="N", type=options.count, default=3, help=level)
    options.add_force(parser, "replace an existing file")
    options.add_reporting(parser, verbose="also the files, and how many of their bytes are copied from OLD")


def run(arguments: Namespace) -> int:
    """Run the command."""
    from ... import delta

    report = call(delta, arguments, arguments.old, arguments.new, arguments.output)
    if arguments.json:
        output.print_json(report.to_dict())
        return 0
    if arguments.verbose:
        sizes = ((one.nbytes, one.copied_nbytes, one.stored_nbytes) for one in report.files)
        rows = [[one.path, *map(output.size, own)] for one, own in zip(report.files, sizes, strict=True)]
        tables.print_table(_FILES, rows)
    if not arguments.quiet:
        hashes = f"{report.old_hash[:16]} to {report.new_hash[:16]}"
        output.say(f"{hashes}: {output.size(report.nbytes)} for {output.size(report.new_nbytes)}, to {report.path}")
    return 0
