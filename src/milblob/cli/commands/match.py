"""milblob match: find which training tensor became which weight."""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import TYPE_CHECKING

from ...wording import some
from .. import options
from ..calling import call
from ..selection import check_select
from ..sources import add_sources
from ..terminal import output, tables
from ..terminal.failures import EXIT_FINDINGS
from ..terminal.tables import LAST, Column

if TYPE_CHECKING:
    from ...matching.match_report import Matching
    from ...storage.output import NewFile

_MAX_LEFT = 20
_COLUMNS = [
    Column("given", is_name=True),
    Column("weight", is_name=True),
    Column("how"),
    Column("needs", drop=LAST + 1),
    Column("refit", is_name=True),
]

EXAMPLES = ("match Model.mlpackage new.safetensors", "match Model.mlpackage new.safetensors -o mapping.json")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="MODEL", help=options.ANY)
    given = f"{options.FILES}, directory of .npy files, archive of TVM, or a model"
    parser.add_argument("weights", metavar="WEIGHTS", help=given)
    options.add_select(parser)
    similar = "lowest correlation at which values count as similar, up to 1; default: 0.7"
    parser.add_argument("--min-correlation", metavar="R", type=float, default=0.7, help=similar)
    options.add_output(
        parser, "-o", "--output", metavar="FILE", help="write the mapping that refit takes: a .json object"
    )
    options.add_force(parser, "replace FILE")
    add_sources(parser, "weights", "model")
    options.add_reporting(parser, quiet="no table, no progress", verbose="list every name that was not matched")


def run(arguments: Namespace) -> int:
    """Run the command: 0 if every weight of the model was found, 1 if not."""
    from ...matching.match import match
    from ...rewrite.destination import require_outside
    from ...storage.transfer import write_json

    if arguments.output is not None:
        for source in (arguments.model, arguments.weights):
            require_outside(source, arguments.output)
    check_select(arguments, arguments.model, stored=False)
    with ExitStack() as stack:
        new = None if arguments.output is None else stack.enter_context(_new_file(arguments))
        found = call(match, arguments, arguments.model, arguments.weights)
        if new is not None:
            write_json(new.fd, found.refit_mapping)
    if arguments.json:
        output.print_json(found.to_dict())
    else:
        _print(found, arguments)
    return EXIT_FINDINGS if found.ties or found.unmatched_names else 0


def _new_file(arguments: Namespace) -> "NewFile":
    """Return the file of -o, before the work. Raises: ValueError: another suffix. As `NewFile`."""
    from ...storage.output import NewFile

    if not arguments.output.lower().endswith(".json"):
        raise ValueError(f"output {arguments.output}: expected a name that ends in .json, got another")
    return NewFile(arguments.output, force=arguments.force)


def _print(found: "Matching", arguments: Namespace) -> None:
    from ...matching.match_report import summary

    if arguments.quiet:
        left = found.unmatched_given + found.equal_given
        if left:  # input that is not used is always reported
            output.say(f"{output.plural(len(left), 'array')} not matched")
        return
    cells = []
    asked_for_all = not arguments.select  # else most of what was given is of no interest
    for m in found.matches:
        how = m.how if m.how != "similar" else f"similar, {m.correlation:.4f}"
        more = f" and {len(m.without) - 1:,} more" if len(m.without) > 1 else ""
        refit = m.refit or (f"no, without {m.without[0]}{more}" if m.without else "no")
        cells.append([m.given, m.name, how, ", ".join(m.needs) or "-", refit])
    if cells:
        tables.print_table(_COLUMNS, cells)
        print()
    for tie in found.ties:
        tables.print_text(f"ambiguous: {_some(tie.given, arguments)} for {_some(tie.names, arguments)}")
    if found.unmatched_names:
        tables.print_text(f"of the model, not matched: {_some(found.unmatched_names, arguments)}")
    if found.equal_given and asked_for_all:
        tables.print_text(f"given, equal to others that matched: {_some(found.equal_given, arguments)}")
    if found.unmatched_given:  # with -k most of them are of no interest, but none is passed over in silence
        names = _some(found.unmatched_given, arguments)
        tables.print_text(
            f"given, not matched: {names if asked_for_all else output.plural(len(found.unmatched_given), 'array')}"
        )
    if found.ties or found.unmatched_names or found.unmatched_given or (asked_for_all and found.equal_given):
        print()
    tables.print_text(summary(found, asked_for_all))
    if arguments.output is not None:
        count = sum(name is not None for name in found.refit_mapping.values())
        output.say(
            f"{output.plural(count, 'name')} that refit can take, to {arguments.output}; null leaves out the others"
        )


def _some(names: list[str], arguments: Namespace) -> str:
    return some(names, len(names) if arguments.verbose else _MAX_LEFT)
