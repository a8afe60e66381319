"""milblob repack: rewrite a model or weight files."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from ...arguments import NAN_POLICIES
from .. import options
from ..calling import call, complete_first
from ..engines import add_executor
from ..selection import check_select
from ..terminal import output, sharing, tables
from ..terminal.failures import EXIT_FINDINGS
from ..terminal.tables import LAST, Column
from .verify import print_report

if TYPE_CHECKING:
    from ... import VerifyReport
    from ...rewrite.changes import TensorChange
    from ...rewrite.repack_report import RepackReport


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
    "repack Model.mlpackage -o Small.mlpackage --dedupe=values --dry-run",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    models = ".mlpackage, .mlmodelc, .mlmodel, .mil or weight file; several weight files become one"
    add("models", metavar="MODEL", nargs="+", help=models)
    options.add_output(
        parser, "-o", "--output", required=True, help="the result; may be MODEL itself, which is then replaced"
    )
    options.add_select(parser, "cast, externalize, inline or share only tensors whose name matches")
    functions = "keep only this function; may be repeated"
    add("-f", "--function", metavar="NAME", action="append", help=functions)
    casts = "store float32, float16 or bfloat16 weights as another of them; may be repeated"
    add("--cast", metavar="[FROM=]TO", action="append", default=[], help=casts)
    options.add_overflow(parser)
    add(
        "--nan", choices=NAN_POLICIES, default="keep", help="what a cast does with tensors that have NaN; default: keep"
    )
    add("--decompress", action="store_true", help="make compressed weights dense")
    options.add_dedupe(parser, "store equal records once")
    add("--gc", action="store_true", help="drop records that nothing refers to")
    count: dict[str, Any] = {"metavar": "N", "nargs": "?", "type": int, "const": True}
    add("--externalize", **count, help="move values of N (10) or more elements to the weight file")
    add("--inline", **count, help="move values of fewer than N (10) elements into the Program")
    what = "'function': one weight file per function; or the largest size of a file, such as 1G"
    add("--split", metavar="WHAT", type=_split, help=what)
    add("--merge", action="store_true", help="merge everything into one weight file")
    options.add_align(parser)
    add("--canonical", action="store_true", help="write canonical files: the same model gives the same bytes")
    what = "then run MODEL and the result in onnxruntime, each function, and compare their outputs"
    add("--verify", action="store_true", help=what)
    options.add_force(parser)
    options.add_dry_run(parser, "report what would be done, write nothing")
    add_executor(parser)
    options.add_reporting(parser, quiet="no summary, no progress", verbose="every tensor, not only those that change")


def _split(text: str) -> str | int:
    return text if text == "function" else options.size(text)


def run(arguments: Namespace) -> int:
    """Run the command."""
    report = _repack(arguments.models, arguments)
    verified = _verified(arguments.models[0], arguments)
    status = 0 if all(found.is_same for found in verified) else EXIT_FINDINGS
    if arguments.json:
        output.print_json(_document(report, verified))
        return status
    if arguments.dry_run or arguments.verbose:
        _print_plan(report, arguments.verbose)
        if report.shared:
            print()
            sharing.print_shared(report.shared)
    if not arguments.quiet:
        _summary(report, arguments.dedupe)
        for found in verified:
            print_report(found)
    return status


def run_one(path: str, arguments: Namespace) -> tuple[int, dict[str, Any]]:
    """Repack one model, and print nothing; see `several.run_each`."""
    report = _repack([path], arguments)
    verified = _verified(path, arguments)
    return 0 if all(found.is_same for found in verified) else EXIT_FINDINGS, _document(report, verified)


def _document(report: "RepackReport", verified: "list[VerifyReport]") -> dict[str, Any]:
    return report.to_dict() | ({"verify": [found.to_dict() for found in verified]} if verified else {})


def _verified(path: str, arguments: Namespace) -> "list[VerifyReport]":
    """With --verify, compare the outputs of the model and the result: of each function."""
    from ...model.model import Model

    if not arguments.verify:
        return []
    from ... import verify

    with Model(arguments.output) as model:
        names = list(model.functions)
    several = names if len(names) > 1 else [None]
    return [verify(path, arguments.output, function=name) for name in several]


def _repack(models: list[str], arguments: Namespace) -> "RepackReport":
    from ...rewrite.repack import repack

    _check_use(arguments)
    complete_first(arguments, *models)
    check_select(arguments, *models)
    return call(repack, arguments, models, arguments.output, cast=_casts(arguments.cast), functions=arguments.function)


def _check_use(arguments: Namespace) -> None:
    """Refuse options that would have no effect, so that a mistake is not passed over in silence.

    Raises: ValueError: there is one.
    """
    from ...rewrite.destination import is_in_place

    selects = [arguments.cast, arguments.decompress, arguments.externalize is not None, arguments.inline is not None]
    if arguments.select and not any([*selects, isinstance(arguments.dedupe, str)]):
        which = "--cast, --decompress, --externalize, --inline or --dedupe=values"
        raise ValueError(f"-k: expected {which}, which it selects for, got none")
    if arguments.verify and (arguments.dry_run or is_in_place(arguments.models, arguments.output)):
        raise ValueError("--verify: expected a result beside the model to compare with it, got none")
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


def _print_plan(report: "RepackReport", everything: bool) -> None:
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
    if rows:
        tables.print_table(_PLAN, rows)


def _place(change: "TensorChange") -> str:
    if change.file_after is None:
        return "" if {"drop", "share"} & set(change.actions) else "the Program"
    return f"{change.file_after.rpartition('/')[2]} at {change.offset_after}"


def _summary(report: "RepackReport", dedupe: bool | str) -> None:
    counts = ", ".join(f"{action} {count}" for action, count in sorted(report.counts().items()))
    lost = [("overflow", "too large"), ("nan", "NaN"), ("underflow", "to zero")]
    for key, words in lost:
        total = sum(getattr(change, key) for change in report.changes)
        if total:
            counts += f", {output.plural(total, 'element')} {words}"
    verb = "to" if report.done else "would go to"
    more = f"; {sharing.shared_message(report.shared, dedupe)}" if isinstance(dedupe, str) else ""
    output.say(
        f"{output.plural(len(report.changes), 'tensor')}, {output.size(report.nbytes)} -> "
        f"{output.size(report.nbytes_after)}{': ' + counts if counts else ''}, {verb} {report.output}{more}"
    )
    output.say_stale(report.stale)
