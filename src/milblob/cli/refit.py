"""milblob refit: give weights of a model new values."""

from argparse import ArgumentParser, Namespace

from ..rewrite.refit import RefitReport, refit
from . import names, options, output
from .progress import shown

_MAX_UNUSED = 20

EXAMPLES = (
    "refit Model.mlpackage new.safetensors --cast",
    "refit Model.mlpackage new.safetensors --cast -k 'head*' --dry-run",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    models = ".mlpackage, .mlmodelc, .mlmodel or weight file; archive of TVM"
    parser.add_argument("model", metavar="MODEL", help=models)
    given = ".safetensors, .npz, .npy or .params file, or a directory of .npy files"
    parser.add_argument("weights", metavar="WEIGHTS", help=given)
    options.add_keep(parser, "only weights of the model whose name matches")
    options.add_mapping(parser, "the array OLD of WEIGHTS is the weight NEW of the model; may be repeated")
    base = "what the model was converted from: tells how each weight came to be"
    parser.add_argument("--base", metavar="FILE", help=base)
    leave = "with --base, a weight that may stay as it is, although nothing is known about it; may be repeated"
    parser.add_argument("--leave", metavar="GLOB", action="append", default=[], help=leave)
    parser.add_argument("--cast", action="store_true", help="convert floats to floats and integers to integers")
    options.add_overflow(parser)
    parser.add_argument("-o", "--output", metavar="OUT", help="write a copy of the model there instead")
    options.add_force(parser, "replace an existing OUT")
    options.add_dry_run(parser)
    options.add_reporting(
        parser,
        quiet="no message, no progress",
        verbose="name each weight that is changed",
        json="print the changes as one JSON object",
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    with shown(arguments) as progress:
        report = refit(
            arguments.model,
            arguments.weights,
            base=arguments.base,
            leave=arguments.leave or None,
            mapping=names.mapping(arguments),
            cast=arguments.cast,
            overflow=arguments.overflow,
            select=arguments.keep or None,
            output=arguments.output,
            force=arguments.force,
            dry_run=arguments.dry_run,
            progress=progress,
            max_nbytes=arguments.max_nbytes,
        )
    say_refit(report, arguments)
    return 0


def say_refit(report: RefitReport, arguments: Namespace) -> None:
    """Say what was changed, as -v, -q and --json ask; what is not used of the input too."""
    if arguments.verbose:
        for change in report.changes:
            cast = "" if change.given_dtype is change.dtype else f" from {change.given_dtype}"
            given = "" if change.given == change.name else f" <- {change.given}"
            output.say(f"{change.name}{given} {change.dtype} {output.shape_text(change.shape)}{cast}")
    if arguments.json:
        output.print_json(report.to_dict())
    elif not arguments.quiet:
        output.say(_summary(report))
    if report.unused and not arguments.json and not arguments.quiet:
        more = f" and {len(report.unused) - _MAX_UNUSED:,} more" if len(report.unused) > _MAX_UNUSED else ""
        output.say(f"not used: {', '.join(report.unused[:_MAX_UNUSED])}{more}")


def _summary(report: RefitReport) -> str:
    words = f"{output.plural(len(report.changes), 'weight')}, {output.size(report.nbytes)}"
    if report.output != report.source:
        words += f", to {report.output}"
    elif all(change.in_place for change in report.changes):
        words += ", in place"
    else:
        words += ", the model file anew"
    for kind, verb in (("overflow", "too large"), ("underflow", "became zero"), ("nan", "not a number")):
        count = sum(getattr(change.counts, kind) for change in report.changes)
        if count:
            words += f"; {output.plural(count, 'element')} {verb}"
    return words if report.done else f"{words}; nothing written (--dry-run)"
