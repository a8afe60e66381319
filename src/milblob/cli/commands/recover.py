"""milblob recover: complete a change in place that was interrupted."""

from argparse import ArgumentParser, Namespace
from typing import Any

from .. import options
from ..calling import say_completed
from ..several import run_each
from ..terminal import output

EXAMPLES = ("recover Model.mlpackage", "recover Model.mlpackage --json")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help=f"{options.MODEL}; or an unpacked archive of TVM")
    options.add_json(parser)
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("-q", "--quiet", action="store_true", help="no message")
    volume.add_argument("-v", "--verbose", action="store_true", help="name each file that is changed")


def run(arguments: Namespace) -> int:
    """Run the command."""
    return run_each(arguments, _recover, is_headed=False)


def _recover(path: str, arguments: Namespace) -> tuple[int, dict[str, Any]]:
    from ...refitting.recover import recover

    report = recover(path)
    for change in report.changes:
        say_completed(arguments, path, change)
    if not report.changes and not arguments.quiet:
        output.say(f"no change of {path} is pending")
    return 0, report.to_dict()
