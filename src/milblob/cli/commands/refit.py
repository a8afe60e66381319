"""milblob refit: give weights of a model new values."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from ...wording import some
from .. import names, options
from ..calling import call, complete_first
from ..selection import check_select
from ..terminal import output, tables

if TYPE_CHECKING:
    from ...refitting.refit import RefitReport

_MAX_UNUSED = 20
_COLUMNS = [
    tables.Column("weight", is_name=True),
    tables.Column("dtype", drop=1),
    tables.Column("shape", drop=0),
    tables.Column("follows from", is_name=True),
]

EXAMPLES = (
    "refit Model.mlpackage new.safetensors --cast",
    "refit Model.mlpackage new.safetensors --cast -k 'head*' --dry-run",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    models = ".mlpackage, .mlmodelc, .mlmodel or weight file; archive of TVM"
    parser.add_argument("model", metavar="MODEL", help=models)
    given = f"{options.FILES}, or a directory of .npy files"
    parser.add_argument("weights", metavar="WEIGHTS", nargs="?", help=given)
    options.add_select(parser, "only weights of the model whose name matches")
    options.add_mapping(parser, "the array OLD of WEIGHTS is the weight NEW of the model; may be repeated")
    base = "the checkpoint that the model was converted from, which shows how each weight was made"
    parser.add_argument("--base", metavar="FILE", help=base)
    adapter = "a LoRA adapter, as a folder that PEFT saved, in place of WEIGHTS; may be repeated"
    parser.add_argument("--adapter", metavar="DIR", action="append", default=[], help=adapter)
    scale = "what the change of an adapter is multiplied by; repeated, one for each --adapter"
    parser.add_argument("--scale", metavar="S", type=float, action="append", default=[], help=scale)
    epsilon = "with --base, an epsilon of batch norms to try before the usual ones"
    parser.add_argument("--epsilon", metavar="E", type=float, help=epsilon)
    leave = "with --base, leave a weight as it is if its new values are unknown; may be repeated"
    parser.add_argument("--leave", metavar="GLOB", action="append", default=[], help=leave)
    parser.add_argument("--cast", action="store_true", help="convert floats to floats and integers to integers")
    options.add_overflow(parser)
    unshare = "store weights apart that were stored once and get different values"
    parser.add_argument("--unshare", action="store_true", help=unshare)
    requantize = "compressed weights: keep their scales, palettes and masks, or fit new ones to the values"
    parser.add_argument("--requantize", metavar="HOW", choices=("keep", "fit"), help=requantize)
    least = "write nothing if a requantized weight has a lower SQNR, in dB"
    parser.add_argument("--min-sqnr", metavar="DB", type=float, help=least)
    options.add_output(parser, "-o", "--output", help="write a copy of the model there instead")
    options.add_force(parser, "replace an existing OUT")
    options.add_dry_run(parser)
    options.add_reporting(
        parser, verbose="name each weight that is changed", json="print the changes as one JSON object"
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    if bool(arguments.adapter) is (arguments.weights is not None):
        raise ValueError(f"refit: expected WEIGHTS or --adapter, got {'both' if arguments.adapter else 'neither'}")
    from ...refitting.refit import refit

    complete_first(arguments, arguments.model)
    check_select(arguments, arguments.model)
    report = call(
        refit, arguments, arguments.model, arguments.adapter or arguments.weights, mapping=names.mapping(arguments),
        destination=arguments.output,
    )  # fmt: skip
    if arguments.base is not None and arguments.dry_run and not (arguments.json or arguments.quiet):
        cells = [[c.name, str(c.dtype), output.shape_text(c.shape), c.given] for c in report.changes]
        tables.print_table(_COLUMNS, cells)
    say_refit(report, arguments)
    return 0


def say_refit(report: "RefitReport", arguments: Namespace) -> None:
    """Report the changes, and the input that was not used, as -v, -q and --json ask."""
    if arguments.verbose:
        for change in report.changes:
            cast = "" if change.given_dtype is change.dtype else f", cast from {change.given_dtype}"
            if change.requantized:
                cast += f", requantized ({change.requantized}), SQNR {_decibels(change.sqnr)}"
            given = "" if change.given == change.name else f" <- {change.given}"
            apart = f", apart from {change.unshared}" if change.unshared else ""
            output.say(f"{change.name} {change.dtype} {output.shape_text(change.shape)}{given}{cast}{apart}")
    if arguments.json:
        output.print_json(report.to_dict())
    elif not arguments.quiet:
        output.say(_summary(report))
        if report.note:
            output.say(report.note)
        for what in dict.fromkeys(report.constant.values()):
            alike = tuple(name for name, words in report.constant.items() if words == what)
            _say_others(f"follow from no array ({what})", alike)
        _say_others("differ, and no constant of the model depends on them", report.without_effect)
        _say_others("left as they are (--leave)", report.left)
        if report.unchanged:
            output.say(f"{output.plural(len(report.unchanged), 'initializer')} as in the model")
    if report.unused and not arguments.json:  # with -q too: input that is not used is always reported
        names = "" if arguments.quiet else f": {some(report.unused, _MAX_UNUSED)}"
        output.say(f"{output.plural(len(report.unused), 'array')} not used{names}")


def _say_others(message: str, names: tuple[str, ...]) -> None:
    if names:
        output.say(f"{message}: {some(names, _MAX_UNUSED)}")


def _decibels(sqnr: float | None) -> str:
    return "none (zeros)" if sqnr is None else "inf dB" if sqnr == float("inf") else f"{sqnr:.1f} dB"


def _summary(report: "RefitReport") -> str:
    if not report.changes and report.unchanged:
        copy = "" if report.output == report.source else f"; a copy is at {report.output}" if report.done else ""
        return f"nothing changed{copy}"
    message = f"{output.plural(len(report.changes), 'weight')}, {output.size(report.nbytes)}"
    if report.output != report.source:
        message += f", to {report.output}"
    elif all(change.in_place for change in report.changes):
        message += ", in place"
    elif any(change.unshared for change in report.changes):
        message += ", the model file and its weights rewritten"
    else:
        message += ", the model file rewritten"
    for kind, verb in (("overflow", "too large"), ("underflow", "became zero"), ("nan", "not a number")):
        count = sum(getattr(change.counts, kind) for change in report.changes)
        if count:
            message += f"; {output.plural(count, 'element')} {verb}"
    unshared = [change for change in report.changes if change.unshared]
    if unshared:
        message += f"; {output.plural(len(unshared), 'weight')} stored apart"
    coded = [change for change in report.changes if change.requantized]
    if coded:
        worst = min(coded, key=lambda change: float("-inf") if change.sqnr is None else change.sqnr)
        message += f"; {output.plural(len(coded), 'weight')} requantized, SQNR {_decibels(worst.sqnr)}"
        message += f" or more ({worst.name})" if len(coded) > 1 else ""
    return message if report.done else f"{message}; nothing written (--dry-run)"
