"""milblob compress: quantize, palettize or prune the weights of a model."""

import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from typing import Any

from ..rewrite.compress import LEAST, CompressReport, compress
from ..rewrite.recipes import Linear, Palette, Prune, Recipe, as_recipe
from . import compress_goals, options, output, tables
from .progress import shown
from .selection import check_keep

_COLUMNS = (
    tables.Column("name", is_name=True),
    tables.Column("operation"),
    tables.Column("size", is_right=True, drop=2),
    tables.Column("becomes", is_right=True),
    tables.Column("SQNR", is_right=True),
    tables.Column("relative", is_right=True, drop=0),
    tables.Column("largest", is_right=True, drop=1),
)
EXAMPLES = (
    "compress Model.mlpackage -o Small.mlpackage --int8",
    "compress Model.mlpackage -o Small.mlpackage --size 60K --dry-run",
)
_EXIT_IDLE = 1
_DTYPES = ("int8", "uint8", "int4", "uint4")
_LINEAR = "--int8, --uint8, --int4 or --uint4"
_BELONGS_TO = {
    "block": f"{_LINEAR} or --sparsity", "per_tensor": _LINEAR, "zero_point": _LINEAR, "search": _LINEAR,
    "group": "--palette or --unique", "uniform": "--palette",
}  # fmt: skip


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("model", metavar="MODEL", help=".mlpackage or .mlmodelc")
    add("-o", "--output", metavar="OUT", help="the result; may be MODEL itself, which is then replaced")
    kinds = parser.add_argument_group("how, exactly one of these")
    for dtype in _DTYPES:
        kinds.add_argument(f"--{dtype}", action="store_true", help=f"linear quantization to {dtype}")
    kinds.add_argument("--palette", metavar="N", type=int, help="palettes with indices of N bits: 1, 2, 3, 4, 6 or 8")
    kinds.add_argument("--unique", action="store_true", help="a palette of all numbers, where 256 or fewer differ")
    kinds.add_argument("--sparsity", metavar="PART", type=float, help="make this part of the elements zero")
    kinds.add_argument("--threshold", metavar="X", type=float, help="make elements up to this magnitude zero")
    kinds.add_argument("--n-m", metavar="N:M", type=_pair, help="make N of every M neighbours zero")
    kinds.add_argument("--recipe", metavar="JSON", type=as_recipe, help="a recipe as milblob prints it with --json")
    compress_goals.add_options(parser, kinds)
    add(
        "--block",
        metavar="N",
        type=int,
        help="N input channels share a scale; of --sparsity: N neighbours go together",
    )
    add("--per-tensor", action="store_true", help="one scale for each weight; default: one for each output channel")
    add("--zero-point", action="store_true", help="quantize from least to greatest, not symmetric around zero")
    add("--search", action="store_true", help="clip the range of each block where that lowers its error")
    add("--group", metavar="N", type=int, help="N channels share a palette; default: one for each weight")
    add("--uniform", action="store_true", help="palettes with equal distances, not the best ones")
    options.add_keep(parser, "compress only weights whose name matches")
    least = f"compress only weights of more than N elements; default: {LEAST}"
    add("--least", metavar="N", type=options.count, default=LEAST, help=least)
    options.add_force(parser)
    options.add_dry_run(parser, "compute and measure, write nothing")
    options.add_reporting(parser, quiet="no summary, no progress", verbose="every weight, also those that stay")


def run(arguments: Namespace) -> int:
    """Run the command."""
    recipe = _recipe(arguments)
    compress_goals.check(arguments)
    if arguments.frontier is not None:
        return compress_goals.run_frontier(arguments)
    check_keep(arguments, arguments.model)
    with shown(arguments) as progress:
        report = compress(
            arguments.model, arguments.output, recipe, select=arguments.keep or None, least=arguments.least,
            force=arguments.force, dry_run=arguments.dry_run, progress=progress, max_nbytes=arguments.max_nbytes,
            **compress_goals.goal(arguments),
        )  # fmt: skip
    if arguments.plan is not None:
        report.plan.save(arguments.plan, force=arguments.force)
    is_idle = not report.weights and not report.kept
    if is_idle:  # said with -q and --json too: nothing of what was asked for was done
        output.say(f"no weight compressed: {_common_reason(report)}")
    if arguments.json:
        output.print_json(report.to_dict())
        return _EXIT_IDLE if is_idle else 0
    if arguments.dry_run or arguments.verbose:
        _print_weights(report)
    if arguments.verbose:
        for name, reason in report.skipped:
            output.say(f"{name} stays: {reason}")
    if not arguments.quiet:
        _summary(report)
    return _EXIT_IDLE if is_idle else 0


def _recipe(arguments: Namespace) -> Recipe | None:
    """The recipe that the options describe; None if they say something else.

    Raises:
        ValueError: not exactly one kind of recipe; an option that does not belong to it.
    """
    kinds = (*_DTYPES, "palette", "unique", "sparsity", "threshold", "n_m", "recipe", *compress_goals.KINDS)
    chosen = [f"--{name.replace('_', '-')}" for name in kinds if getattr(arguments, name) not in (None, False)]
    if len(chosen) != 1:
        kinds_text = ", ".join(f"--{name.replace('_', '-')}" for name in kinds)
        raise ValueError(f"compress: expected exactly one of {kinds_text}, got {' and '.join(chosen) or 'none'}")
    dtype = next((name for name in _DTYPES if getattr(arguments, name)), None)
    given = {
        name for name in ("block", "per_tensor", "zero_point", "search", "group", "uniform")
        if getattr(arguments, name) not in (None, False)
    }  # fmt: skip
    if dtype is not None:
        _allow(given, {"block", "per_tensor", "zero_point", "search"}, chosen[0])
        if {"block", "per_tensor"} <= given:
            raise ValueError("--block: expected it without --per-tensor, got both")
        granularity = "per_block" if "block" in given else "per_tensor" if arguments.per_tensor else "per_channel"
        sizes: dict[str, Any] = {"block": arguments.block} if "block" in given else {}
        mode = "linear" if arguments.zero_point else "linear_symmetric"
        return Linear(dtype, mode, granularity, search=arguments.search, **sizes)
    if arguments.palette is not None or arguments.unique:
        _allow(given, {"group", "uniform"} - ({"uniform"} if arguments.unique else set()), chosen[0])
        mode = "unique" if arguments.unique else "uniform" if arguments.uniform else "kmeans"
        grouped: dict[str, Any] = {}
        if "group" in given:
            grouped = {"granularity": "per_grouped_channel", "group_size": arguments.group}
        return Palette(arguments.palette, mode, **grouped)
    if any(getattr(arguments, name) is not None for name in compress_goals.KINDS):
        _allow(given, set(), chosen[0])
        return None
    if arguments.recipe is not None:
        _allow(given, set(), chosen[0])
        found: Recipe = arguments.recipe
        return found
    _allow(given, {"block"} if arguments.sparsity is not None else set(), chosen[0])
    return Prune(arguments.sparsity, arguments.threshold, arguments.n_m, arguments.block)


def _allow(given: set[str], allowed: set[str], kind: str) -> None:
    for name in sorted(given - allowed):
        raise ValueError(f"--{name.replace('_', '-')}: expected it only with {_BELONGS_TO[name]}, got it with {kind}")


def _pair(text: str) -> tuple[int, int]:
    first, colon, second = text.partition(":")
    if not (colon and first.isdigit() and second.isdigit()):
        raise ArgumentTypeError(f"expected N:M, such as 2:4, got {text!r}")
    return int(first), int(second)


def _print_weights(report: CompressReport) -> None:
    rows = [
        (one.name, one.op.removeprefix("constexpr_"), output.size(one.nbytes), output.size(one.nbytes_after),
         _decibel(one.sqnr), f"{one.relative:.3g}", f"{one.largest:.3g}")
        for one in report.weights
    ]  # fmt: skip
    tables.print_table(_COLUMNS, rows)


def _decibel(value: float) -> str:
    return f"{value:.1f} dB" if math.isfinite(value) else "exact" if value > 0 else "nothing left"


def _common_reason(report: CompressReport) -> str:
    """Why most of the weights stay."""
    if not report.skipped:
        return f"{report.source} has none"
    (reason, count), *others = Counter(reason for _, reason in report.skipped).most_common()
    return f"{reason} ({count} of {output.plural(len(report.skipped), 'weight')})" if others else reason


def _summary(report: CompressReport) -> None:
    worst = min(report.weights, key=lambda one: one.sqnr, default=None)
    words = f"{output.plural(len(report.weights), 'weight')} compressed, {len(report.skipped)} stay"
    if worst is not None:
        words += f", least SQNR {_decibel(worst.sqnr)} ({worst.name})"
    verb = "to" if report.done else "would go to"
    sizes = f"{output.size(report.nbytes)} -> {output.size(report.nbytes_after)}"
    output.say(f"{words}: {sizes}, {verb} {report.output}")
