"""milblob repack: rewrite a model or weight files."""

from argparse import ArgumentParser, Namespace
from typing import Any

from ...arguments import NAN_POLICIES
from ...rewrite.changes import TensorChange
from ...rewrite.repack import repack
from ...rewrite.repack_report import RepackReport
from .. import options
from ..completing import complete_first
from ..engines import add_executor
from ..selection import check_select
from ..terminal import output, tables
from ..terminal.progress import shown
from ..terminal.tables import LAST, Column

_PLAN = [
    Column("name", is_name=True),
    Column("action"),
    Column("dtype", drop=LAST + 1),
    Column("becomes", drop=LAST + 2),
    Column("size", True, drop=2),
    Column("becomes", True),
    Column("to", drop=1),
]

EXAMPLES = (
    "repack Model.mlpackage -o Small.mlpackage --cast float32=float16",
    "repack Model.mlpackage -o Split.mlpackage --split 100K --dry-run",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    models = ".mlpackage, .mlmodelc, .mlmodel, .mil or weight file; several weight files become one"
    add("models", metavar="MODEL", nargs="+", help=models)
    options.add_output(
        parser, "-o", "--output", required=True, help="the result; may be MODEL itself, which is then replaced"
    )
    options.add_select(parser, "cast, externalize and inline only tensors whose name matches")
    functions = "keep only this function; may be repeated"
    add("-f", "--function", metavar="NAME", action="append", help=functions)
    casts = "store float32, float16 or bfloat16 weights as another of them; may be repeated"
    add("--cast", metavar="[FROM=]TO", action="append", default=[], help=casts)
    options.add_overflow(parser)
    add(
        "--nan", choices=NAN_POLICIES, default="keep", help="what a cast does with tensors that have NaN; default: keep"
    )
    add("--decompress", action="store_true", help="make compressed weights dense")
    add("--dedupe", action="store_true", help="store equal weights once")
    add("--gc", action="store_true", help="drop records that nothing refers to")
    count: dict[str, Any] = {"metavar": "N", "nargs": "?", "type": int, "const": True}
    add("--externalize", **count, help="move values of N (10) or more elements to the weight file")
    add("--inline", **count, help="move values of fewer than N (10) elements into the Program")
    what = "'function': one weight file per function; or the largest size of a file, such as 1G"
    add("--split", metavar="WHAT", type=_split, help=what)
    add("--merge", action="store_true", help="merge everything into one weight file")
    options.add_align(parser)
    add("--canonical", action="store_true", help="write canonical files: the same model gives the same bytes")
    options.add_force(parser)
    options.add_dry_run(parser, "report what would be done, write nothing")
    add_executor(parser)
    options.add_reporting(parser, quiet="no summary, no progress", verbose="every tensor, not only those that change")


def _split(text: str) -> str | int:
    return text if text == "function" else options.size(text)


def run(arguments: Namespace) -> int:
    """Run the command."""
    options: dict[str, Any] = {
        "cast": _casts(arguments.cast), "dedupe": arguments.dedupe, "gc": arguments.gc,
        "externalize": arguments.externalize, "inline": arguments.inline, "split": arguments.split,
        "merge": arguments.merge, "align": arguments.align, "canonical": arguments.canonical,
        "select": arguments.select or None, "functions": arguments.function, "overflow": arguments.overflow,
        "nan": arguments.nan, "force": arguments.force, "decompress": arguments.decompress,
        "max_nbytes": arguments.max_nbytes, "executor": arguments.executor,
    }  # fmt: skip
    _check_use(arguments)
    complete_first(arguments, *arguments.models)
    check_select(arguments, *arguments.models)
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


def _check_use(arguments: Namespace) -> None:
    """Refuse options that would have no effect, so that a mistake is not passed over in silence.

    Raises:
        ValueError: there is one.
    """
    selects = (arguments.cast, arguments.decompress, arguments.externalize is not None, arguments.inline is not None)
    if arguments.select and not any(selects):
        raise ValueError("-k: expected --cast, --decompress, --externalize or --inline, which it selects for, got none")
    for option, value, default in (("--overflow", arguments.overflow, "error"), ("--nan", arguments.nan, "keep")):
        if value != default and not arguments.cast:
            raise ValueError(f"{option}: expected --cast, which it is about, got none")


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
    tables.print_table(_PLAN, rows)


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
    output.say_stale(report.stale)
