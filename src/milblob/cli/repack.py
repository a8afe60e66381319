"""milblob repack: rewrite a model or weight files."""

from argparse import Namespace
from typing import Any

from ..rewrite.changes import TensorChange
from ..rewrite.repack import RepackReport, repack
from . import output
from .progress import shown


def run(arguments: Namespace) -> int:
    """Run the command."""
    options: dict[str, Any] = {
        "cast": _casts(arguments.cast), "dedupe": arguments.dedupe, "gc": arguments.gc,
        "externalize": arguments.externalize, "inline": arguments.inline, "split": arguments.split,
        "merge": arguments.merge, "align": arguments.align, "canonical": arguments.canonical,
        "select": arguments.keep or None, "functions": arguments.function, "overflow": arguments.overflow,
        "nan": arguments.nan, "force": arguments.force, "decompress": arguments.decompress,
        "max_nbytes": arguments.max_nbytes,
    }  # fmt: skip
    with shown(arguments) as progress:
        report = repack(arguments.models, arguments.output, dry_run=arguments.dry_run, progress=progress, **options)
    if arguments.json:
        output.print_json(report.to_dict())
        return 0
    if arguments.dry_run or arguments.verbose:
        _print_plan(report, arguments.verbose)
    if not arguments.quiet:
        _summary(report)
    return 0


def _casts(texts: list[str]) -> Any:
    """Parse --cast: {from: to}, or one dtype for all."""
    if not texts:
        return None
    if len(texts) == 1 and "=" not in texts[0]:
        return texts[0]
    pairs = [text.partition("=") for text in texts]
    for text, (_, equals, _) in zip(texts, pairs, strict=True):
        if not equals:
            raise ValueError(f"cast: expected FROM=TO where there are several, got {text!r}")
    return {source: target for source, _, target in pairs}


def _print_plan(report: RepackReport, everything: bool) -> None:
    rows = [
        (
            change.name,
            " ".join(change.actions) or "keep",
            str(change.dtype),
            str(change.dtype_after),
            output.size(change.nbytes),
            output.size(change.nbytes_after),
            _place(change),
        )
        for change in report.changes
        if change.actions or everything
    ]
    output.print_table(("name", "action", "dtype", "becomes", "size", "becomes", "to"), rows, right={4, 5})


def _place(change: TensorChange) -> str:
    if change.file_after is None:
        return "" if "drop" in change.actions else "the Program"
    return f"{change.file_after.rpartition('/')[2]} at {change.offset_after}"


def _summary(report: RepackReport) -> None:
    counts = ", ".join(f"{action} {count}" for action, count in sorted(report.counts().items()))
    lost = [("overflow", "too large"), ("nan", "NaN"), ("underflow", "to zero")]
    for key, words in lost:
        total = sum(getattr(change, key) for change in report.changes)
        if total:
            counts += f", {output.plural(total, 'element')} {words}"
    verb = "to" if report.done else "would go to"
    output.say(
        f"{output.plural(len(report.changes), 'tensor')}, {output.size(report.nbytes)} -> "
        f"{output.size(report.nbytes_after)}{': ' + counts if counts else ''}, {verb} {report.output}"
    )
