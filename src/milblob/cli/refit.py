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
            base=arguments.base,
            leave=arguments.leave or None,
            epsilon=arguments.epsilon,
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
    if arguments.base is not None and arguments.dry_run and not (arguments.json or arguments.quiet):
        cells = [[c.name, str(c.dtype), output.shape_text(c.shape), c.given] for c in report.changes]
        output.print_table(["weight", "dtype", "shape", "follows from"], cells)
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
        _say_others("follow from no array (equal elements, masks or integers)", report.constant)
        _say_others("stay as they are (--leave)", report.left)
    if report.unused and not arguments.json and not arguments.quiet:
        more = f" and {len(report.unused) - _MAX_UNUSED:,} more" if len(report.unused) > _MAX_UNUSED else ""
        output.say(f"not used: {', '.join(report.unused[:_MAX_UNUSED])}{more}")


def _say_others(words: str, names: tuple[str, ...]) -> None:
    if names:
        more = f" and {len(names) - _MAX_UNUSED:,} more" if len(names) > _MAX_UNUSED else ""
        output.say(f"{words}: {', '.join(names[:_MAX_UNUSED])}{more}")


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
