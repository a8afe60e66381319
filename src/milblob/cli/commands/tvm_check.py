"""milblob tvm check: every problem of archives and .params files."""

from argparse import ArgumentParser

from .. import options
from .check import run as run

EXAMPLES = ("tvm check model.tar", "tvm check model.tar model.params --json")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("models", metavar="FILE", nargs="+", help=f"{options.ARCHIVE}; or a .params file")
    parser.set_defaults(values=False, executor=None)
    options.add_codes(parser)
    options.add_reporting(parser, quiet="no notes, no summaries", verbose="count the findings by code")
