"""milblob diff: compare two models, or a model and a file of arrays."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING

from .. import names, options
from ..calling import call
from ..engines import add_executor
from ..selection import check_select, describe_filter
from ..sources import add_sources
from ..terminal import output, tables
from ..terminal.failures import EXIT_FINDINGS
from ..terminal.tables import LAST, Column
from . import diff_limits

if TYPE_CHECKING:
    from ...analysis.diff import Diff
    from ...analysis.tensor_diff import TensorDiff

_MAX_CHANGES = 20
_COLUMNS = [
    Column("name", is_name=True),
    Column("in B", is_name=True),
    Column("what"),
    Column("dtype", drop=6),
    Column("shape", drop=3),
    Column("differ", True, drop=5),
    Column("max", True, drop=LAST + 1),
    Column("mean", True, drop=2),
    Column("relative", True, drop=1),
    Column("cosine", True, drop=4),
    Column("SQNR dB", True),
]
_WHAT = {
    "same": "same", "stored": "same, stored otherwise", "close": "close", "dtype": "same, other dtype",
    "named": "in both", "different": "other values", "shape": "other shape",
    "only_a": "only in A", "only_b": "only in B",
}  # fmt: skip

EXAMPLES = (
    "diff Model.mlpackage Half.mlpackage --top 10",
    "diff Model.mlpackage new.safetensors -k 'head*' --rtol 1e-3",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("a", metavar="A", help=options.SIDE)
    parser.add_argument("b", metavar="B", help="likewise, compared with A")
    options.add_selection(parser)
    options.add_stored(parser)
    options.add_mapping(parser, "the tensor OLD of A is NEW of B; may be repeated")
    tolerance = "elements may differ by X; default: 0"
    parser.add_argument("--atol", metavar="X", type=options.at_least_0, default=0.0, help=tolerance)
    relative = "elements may differ by X times the magnitude of A's; default: 0"
    parser.add_argument("--rtol", metavar="X", type=options.at_least_0, default=0.0, help=relative)
    parser.add_argument("--names-only", action="store_true", help="compare only the names of tensors")
    worst = "list only the N tensors that differ most, worst first"
    parser.add_argument("--top", metavar="N", type=options.count, help=worst)
    diff_limits.add(parser)
    add_sources(parser, "a", "b")
    add_executor(parser)
    options.add_reporting(
        parser,
        quiet="print nothing; the exit status has the result",
        verbose="also list equal tensors, all changes, and which tools made the models",
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    from ...analysis.diff import diff

    if arguments.names_only:
        defaults = {"atol": 0.0, "rtol": 0.0, "top": None, "min_sqnr": None, "min_cosine": None, "max_abs": None}
        for option, default in defaults.items():
            if getattr(arguments, option) != default:
                shown_option = "--" + option.replace("_", "-")
                raise ValueError(f"{shown_option}: expected none with --names-only, which compares no values, got one")
    check_select(arguments, arguments.a, arguments.b, stored=arguments.stored)
    found = call(diff, arguments, arguments.a, arguments.b, mapping=names.mapping(arguments))
    if not found.rows and describe_filter(arguments):  # "same" would be a claim about tensors that were not compared
        raise ValueError(f"tensors to compare: expected at least one, got none for {describe_filter(arguments)}")
    gate = diff_limits.Gate.of(arguments, found)
    if arguments.json:
        output.print_json(found.to_dict() | (gate.to_dict() if gate is not None else {}))
    elif not arguments.quiet:
        _print(found, arguments, gate)
    elif found.left_out:  # input that is not used is always reported
        output.say(f"{output.plural(len(found.left_out), 'tensor')} of A left out by the mapping")
    return 0 if (found.is_same if gate is None else gate.passes) else EXIT_FINDINGS


def _print(found: "Diff", arguments: Namespace, gate: diff_limits.Gate | None) -> None:
    from ...analysis.diff import summary

    rows = [row for row in found.rows if arguments.verbose or row.kind not in ("same", "named")]
    left = 0
    if gate is not None and not arguments.verbose:
        rows = [failure.row for failure in gate.failing]
    if arguments.top is not None:
        worst = found.worst() if gate is None else [failure.row for failure in gate.failing]
        rows, left = worst[: arguments.top], max(0, len(worst) - arguments.top)
    if rows:
        reasons = {id(failure.row): failure.message for failure in gate.failing} if gate is not None else {}
        cells = [_cells(row, reasons.get(id(row)), arguments.verbose) for row in rows]
        used = [i for i in range(len(_COLUMNS)) if any(line[i] for line in cells)]
        tables.print_table([_COLUMNS[i] for i in used], [[line[i] for i in used] for line in cells])
        if left:
            tables.print_text(f"... and {output.plural(left, 'tensor')} that differ less")
        print()
    changes = [*found.structure, *found.metadata, *found.notes, *(found.tools if arguments.verbose else ())]
    shown = changes if arguments.verbose else changes[:_MAX_CHANGES]
    for change in shown:
        tables.print_text(change.message)
        for part in change.parts if arguments.verbose else ():
            tables.print_text(f"  {part}")
    if len(shown) < len(changes):
        tables.print_text(f"... and {len(changes) - len(shown):,} more (-v shows them)")
    if changes:
        print()
    words = summary(found)
    tables.print_text(words if gate is not None else f"{'same' if found.is_same else 'different'}: {words}")
    if gate is not None:
        tables.print_text(gate.message)


def _cells(row: "TensorDiff", reason: str | None, is_verbose: bool) -> list[str]:
    other = "" if row.other in (None, row.name) else row.other
    dtypes = [
        "" if dtype is None else output.type_words(str(dtype), compression, is_verbose)
        for dtype, compression in zip(row.dtypes, row.compressions, strict=True)
    ]
    shapes = [
        "" if shape is None else output.shape_text(None if size < 0 else size for size in shape) for shape in row.shapes
    ]
    figures = row.figures
    are_equal = figures is not None and not figures.unequal
    what = "equal but for -0" if are_equal and row.kind == "close" and dtypes[0] == dtypes[1] else _WHAT[row.kind]
    cells = [row.name, other or "", reason or what, _both(*dtypes), _both(*shapes)]
    if figures is None or are_equal:
        return [*cells, *[""] * 6]
    values = (figures.max_abs, figures.mean_abs, figures.relative, figures.cosine, figures.sqnr)
    texts = ["" if value is None else f"{value:.4g}" for value in values]
    if figures.cosine is not None:
        texts[3] = f"{figures.cosine:.6f}"
    if figures.sqnr is not None:
        texts[4] = f"{figures.sqnr:.1f}"
    differ = output.share(figures.unequal, row.count)
    return [*cells, f"{differ}, {figures.mismatched} not finite" if figures.mismatched else differ, *texts]


def _both(a: str, b: str) -> str:
    return a if a == b or not b else b if not a else f"{a} | {b}"
