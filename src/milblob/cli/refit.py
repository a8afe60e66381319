"""milblob refit: give weights of a model new values."""

from argparse import Namespace

from ..rewrite.refit import RefitReport, refit
from . import names, output
from .progress import shown

_MAX_UNUSED = 20


def run(arguments: Namespace) -> int:
    """Run the command."""
    with shown(arguments) as progress:
        report = refit(
            arguments.model,
            arguments.weights,
            mapping=names.mapping(arguments),
            cast=arguments.cast,
            overflow=arguments.overflow,
            unshare=arguments.unshare,
            requantize=arguments.requantize,
            min_sqnr=arguments.min_sqnr,
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
            if change.requantized:
                cast += f", requantized ({change.requantized}), SQNR {_decibels(change.sqnr)}"
            given = "" if change.given == change.name else f" <- {change.given}"
            apart = f", apart from {change.unshared}" if change.unshared else ""
            output.say(f"{change.name}{given} {change.dtype} {output.shape_text(change.shape)}{cast}{apart}")
    if arguments.json:
        output.print_json(report.to_dict())
    elif not arguments.quiet:
        output.say(_summary(report))
    if report.unused and not arguments.json:  # with -q too: nothing that was given is passed over in silence
        output.say(_unused(report, arguments))


def _unused(report: RefitReport, arguments: Namespace) -> str:
    count = f"{output.plural(len(report.unused), 'array')} not used"
    if arguments.quiet:
        return count
    more = f" and {len(report.unused) - _MAX_UNUSED:,} more" if len(report.unused) > _MAX_UNUSED else ""
    return f"{count}: {', '.join(report.unused[:_MAX_UNUSED])}{more}"


def _decibels(sqnr: float | None) -> str:
    return "none (zeros)" if sqnr is None else "inf dB" if sqnr == float("inf") else f"{sqnr:.1f} dB"


def _summary(report: RefitReport) -> str:
    words = f"{output.plural(len(report.changes), 'weight')}, {output.size(report.nbytes)}"
    if report.output != report.source:
        words += f", to {report.output}"
    elif all(change.in_place for change in report.changes):
        words += ", in place"
    elif any(change.unshared for change in report.changes):
        words += ", the model file and its weights anew"
    else:
        words += ", the model file anew"
    for kind, verb in (("overflow", "too large"), ("underflow", "became zero"), ("nan", "not a number")):
        count = sum(getattr(change.counts, kind) for change in report.changes)
        if count:
            words += f"; {output.plural(count, 'element')} {verb}"
    unshared = [change for change in report.changes if change.unshared]
    if unshared:
        words += f"; {output.plural(len(unshared), 'weight')} stored apart"
    coded = [change for change in report.changes if change.requantized]
    if coded:
        worst = min(coded, key=lambda change: float("-inf") if change.sqnr is None else change.sqnr)
        words += f"; {output.plural(len(coded), 'weight')} requantized, SQNR {_decibels(worst.sqnr)}"
        words += f" or more ({worst.name})" if len(coded) > 1 else ""
    return words if report.done else f"{words}; nothing written (--dry-run)"
