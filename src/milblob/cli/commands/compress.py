"""milblob compress: quantize, palettize or prune the weights of a model."""

import contextlib
import math
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .. import options
from ..calling import call, complete_first
from ..engines import add_executor
from ..names import mapping
from ..selection import check_select
from ..terminal import output, tables
from ..terminal.failures import EXIT_FINDINGS
from . import compress_config, compress_goals

if TYPE_CHECKING:
    from ...compressing.compress import CompressReport
    from ...compressing.options import Scope
    from ...compressing.recipe import Recipe

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
_MOST_REASONS = 2
_DTYPES = ("int8", "uint8", "int4", "uint4")
_PALETTES = ("palette", "unique")
_PRUNINGS = ("sparsity", "threshold", "n_m")
_KINDS = (_PRUNINGS, _PALETTES, _DTYPES)  # in the order in which several are applied
_ALONE = (*compress_goals.KINDS, "recipe")
_LINEAR, _PALETTE = "--int8, --uint8, --int4 or --uint4", "--palette or --unique"
_BELONGS_TO = {
    "block": "--int8, --uint8, --int4, --uint4 or --sparsity", "per_tensor": _LINEAR, "zero_point": _LINEAR,
    "search": _LINEAR,
    "group": _PALETTE, "uniform": "--palette", "vector": _PALETTE, "scale": _PALETTE,
    "axis": f"{_PALETTE} with --group, --vector or --scale",
    "dim": "--n-m, or --sparsity with --block", "min_sparsity": "--threshold",
}  # fmt: skip


_MIN_SIZE = 2048  # compressing.options.MIN_SIZE, without importing it


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add = parser.add_argument
    add("model", metavar="MODEL", help=".mlpackage or .mlmodelc")
    options.add_output(parser, "-o", "--output", help="the result; may be MODEL itself, which is then replaced")
    title = "how: one, or one each to prune, palettize and quantize, in this order"
    kinds = parser.add_argument_group(title)
    kinds.add_argument("--sparsity", metavar="PART", type=float, help="make this part of the elements zero")
    kinds.add_argument("--threshold", metavar="X", type=float, help="make elements up to this magnitude zero")
    kinds.add_argument("--n-m", metavar="N:M", type=_pair, help="make N of every M neighbours zero")
    kinds.add_argument("--palette", metavar="N", type=int, help="palettes with indices of N bits: 1, 2, 3, 4, 6 or 8")
    kinds.add_argument("--unique", action="store_true", help="a palette of all numbers, where 256 or fewer differ")
    for dtype in _DTYPES:
        kinds.add_argument(f"--{dtype}", action="store_true", help=f"linear quantization to {dtype}")
    compress_goals.add_options(parser, kinds)
    config = "recipes and goals, also for weights by name or by operation, in a .toml or .json file (docs/cli.md)"
    add("--config", metavar="FILE", help=config)
    add(
        "--block",
        metavar="N",
        type=_sizes,
        help="N input channels share a scale, or N,M,... the size of a block in each dimension, 0 for all of it; of "
        "--sparsity: N neighbours become zero together",
    )
    add("--per-tensor", action="store_true", help="one scale for each weight; default: one for each output channel")
    add("--zero-point", action="store_true", help="quantize from least to greatest, not symmetric around zero")
    add("--search", action="store_true", help="clip the range of each block where that lowers its error")
    add("--group", metavar="N", type=int, help="N channels share a palette; default: one for each weight")
    add("--axis", metavar="N", type=int, help="the dimension of these channels; default: that of the output channels")
    add("--vector", metavar="N", type=int, help="N neighbours along the channels share an index")
    add("--scale", action="store_true", help="divide by the greatest magnitude along the channels first")
    add("--uniform", action="store_true", help="palettes with equal distances, not the best ones")
    add(
        "--dim",
        metavar="N",
        type=int,
        choices=(0, 1),
        help="the dimension of the neighbours of --n-m, or of --block with --sparsity",
    )
    add(
        "--min-sparsity",
        metavar="PART",
        type=float,
        help="of --threshold: weights with fewer zeros are not compressed; default: 0.5",
    )
    add(
        "--importance", metavar="FILE", help="arrays by name of weight: how much each element, or input channel, counts"
    )
    add("--weights", metavar="FILE", help="a file of new values for the model, as for refit, such as .gguf")
    options.add_mapping(parser, "with --weights, the array OLD is the weight NEW of the model; may be repeated")
    add("--keep-nan", action="store_true", help="keep NaN and infinity, in palettes and pruned weights")
    add("--recompress", action="store_true", help="re-compress compressed weights from their decoded values")
    options.add_select(parser, "compress only weights whose name matches")
    min_size = f"compress only weights of more than N elements; default: {_MIN_SIZE}"
    add("--min-size", metavar="N", type=options.count, help=min_size)
    options.add_force(parser)
    options.add_dry_run(parser, "compute and measure, write nothing")
    add_executor(parser)
    options.add_reporting(parser, quiet="no summary, no progress", verbose="every weight, also those left as they are")


def run(arguments: Namespace) -> int:
    """Run the command."""
    report = _compress(arguments)
    if isinstance(report, int):
        return report
    is_idle = _is_idle(report, arguments)
    if is_idle:  # printed with -q and --json too: the command did nothing
        output.say(f"no weight compressed: {_reasons(report, arguments.sqnr)}")
    if arguments.json:
        output.print_json(report.to_dict())
        return EXIT_FINDINGS if is_idle else 0
    if report.weights and (arguments.dry_run or arguments.verbose):
        _print_weights(report)
    if arguments.verbose:
        for name, reason in report.skipped:
            output.say(f"{name} left as it is: {reason}")
    if not arguments.quiet:
        _summary(report)
    return EXIT_FINDINGS if is_idle else 0


def run_one(path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    """Compress one model, and print nothing; see `several.run_each`."""
    arguments = Namespace(**{**vars(arguments), "model": path})
    report = _compress(arguments)
    if isinstance(report, int):
        return report, None
    return EXIT_FINDINGS if _is_idle(report, arguments) else 0, report.to_dict()


def _is_idle(report: "CompressReport", arguments: Namespace) -> bool:
    """Whether nothing was compressed. If every weight is left as it is, a size or a plan is met; a quality is not."""
    return not report.weights and (arguments.sqnr is not None or not report.kept)


def _compress(arguments: Namespace) -> "CompressReport | int":
    """Compress `arguments.model`; of --frontier, print it and return the exit status."""
    from ...compressing.compress import compress
    from ...compressing.options import Guidance

    ways = (*compress_goals.KINDS, *(name for kind in _KINDS for name in kind))
    compress_config.apply(arguments, has_way=any(_is_given(arguments, name) for name in ways))
    given, named = _new_values(arguments), _named(arguments)
    recipe = _recipe(arguments, needs_one=not given and not any(any(one.values()) for one in named.values()))
    has_choice = any(_is_given(arguments, name) for name in compress_goals.KINDS)
    everything = [recipe, *(one for some in named.values() for one in some.values())]
    keepers = [one for one in everything if one is not None and one.can_keep_nan]
    if arguments.keep_nan and not has_choice and not keepers:
        raise ValueError("--keep-nan: expected it with palettes or pruning, got it with neither")
    compress_goals.check(arguments)
    if arguments.frontier is not None:
        with _extras(arguments) as extras:
            return compress_goals.run_frontier(arguments, _scope(arguments, named), extras)
    complete_first(arguments, arguments.model)
    check_select(arguments, arguments.model)
    with _extras(arguments) as extras:
        way = compress_goals.goal(arguments, extras.pop("errors")) or recipe
        guidance = Guidance(**given, importance=extras.pop("importance"))
        return call(
            compress, arguments, arguments.model, arguments.output, way, scope=_scope(arguments, named),
            guidance=guidance, **extras,
        )  # fmt: skip


@contextlib.contextmanager
def _extras(arguments: Namespace) -> Iterator[dict[str, Any]]:
    """Yield what the options give besides recipes; the file of importance is open until the end."""
    found: dict[str, Any] = {"nan": "keep" if arguments.keep_nan else "skip", "recompress": arguments.recompress}
    errors = compress_goals.calibration(arguments)
    found |= {"errors": errors, "importance": None}
    if arguments.importance is None:
        yield found
        compress_goals.say_unmeasured(errors)
        return
    from ...formats.read import open_arrays

    with open_arrays(arguments.importance, max_nbytes=arguments.max_nbytes) as arrays:
        yield found | {"importance": arrays}
        compress_goals.say_unmeasured(errors)


def _scope(arguments: Namespace, named: dict[str, Any]) -> "Scope":
    """Which weights, and those with recipes of their own."""
    from ...compressing.options import Scope

    if arguments.min_size is not None:
        named["min_size"] = arguments.min_size
    return Scope(arguments.select or None, **named)


def _new_values(arguments: Namespace) -> dict[str, Any]:
    """The new values of the model, as arguments of `Guidance`.

    Raises: ValueError: renames without a file, or a file for the frontier. As `mapping`.
    """
    renames = mapping(arguments)
    if arguments.weights is None:
        if renames:
            raise ValueError("--map: expected --weights, whose arrays it renames, got none")
        return {}
    if arguments.frontier is not None:
        raise ValueError("--weights: expected none with --frontier (refit the model first), got a file")
    return {"weights": arguments.weights, "mapping": renames}


def _named(arguments: Namespace) -> dict[str, Any]:
    """Return the recipes for some weights, as arguments of `Scope`."""
    pairs = {"per_name": arguments.per_name, "op_types": arguments.op_types}
    return {key: value for key, value in pairs.items() if value}


def _recipe(arguments: Namespace, needs_one: bool) -> "Recipe | None":
    """Return the recipe that the options describe; None if they describe no recipe.

    `needs_one`: whether there must be a recipe, or an option that replaces it.
    Raises: ValueError: no kind of recipe, or two of one kind; an option that does not belong to it.
    """
    from ...compressing.recipe import Joint

    chosen = [[name for name in kind if _is_given(arguments, name)] for kind in _KINDS]
    words = [_flag(name) for names in chosen for name in names]
    given = {name for name in _BELONGS_TO if _is_given(arguments, name)}
    alone = [name for name in _ALONE if _is_given(arguments, name)]
    if len(alone) == 1 and not words:
        _allow(given, set(), _flag(alone[0]))
        found: Recipe | None = arguments.recipe
        return found
    if not (words or alone or needs_one):
        _allow(given, set(), "--weights" if arguments.weights is not None else "--config")
        return None
    if not words or alone or any(len(names) > 1 for names in chosen):
        kinds_text = "; ".join(", ".join(map(_flag, names)) for names in _KINDS)
        alone_text = ", ".join(map(_flag, compress_goals.KINDS))
        expected = f"one of {alone_text}, or one of {kinds_text}, or one each of these"
        expected += "; or --weights; or --config with a recipe"
        got = " and ".join([*words, *map(_flag, alone)]) or "none"
        raise ValueError(f"compress: expected {expected}, got {got}")
    (pruning, palette, dtype) = (names[0] if names else None for names in chosen)
    allowed: set[str] = set()
    if pruning is not None:
        of_sparsity = {"block", "dim"} if "block" in given else {"block"}
        allowed |= {"sparsity": of_sparsity, "n_m": {"dim"}, "threshold": {"min_sparsity"}}[pruning]
    if palette is not None:
        allowed |= {"group", "vector", "scale"} | ({"uniform"} if palette == "palette" else set())
        allowed |= {"axis"} if given & {"group", "vector", "scale"} else set()
    if dtype is not None:
        allowed |= {"block", "per_tensor", "zero_point", "search"}
    _allow(given, allowed, " and ".join(words))
    if "block" in given and dtype is not None and pruning == "sparsity":
        raise ValueError("--block: expected it with pruning or integers, got it with both (use --config to set each)")
    steps: list[Recipe] = []
    if pruning is not None:
        steps.append(_prune(arguments, is_in_blocks=dtype is None))
    if palette is not None:
        steps.append(_palette(arguments))
    if dtype is not None:
        steps.append(_linear(arguments, dtype, of_palette=palette is not None))
    return steps[0] if len(steps) == 1 else Joint(tuple(steps))


def _prune(arguments: Namespace, is_in_blocks: bool) -> "Recipe":
    from ...compressing.prune_recipe import Prune

    block = arguments.block if is_in_blocks else None
    if isinstance(block, tuple):
        raise ValueError(f"--block: expected one number with --sparsity, got {','.join(map(str, block))}")
    least: dict[str, Any] = {} if arguments.min_sparsity is None else {"min_sparsity": arguments.min_sparsity}
    return Prune(arguments.sparsity, arguments.threshold, arguments.n_m, block, arguments.dim, **least)


def _palette(arguments: Namespace) -> "Recipe":
    from ...compressing.palette_recipe import Palette

    mode = "unique" if arguments.unique else "uniform" if arguments.uniform else "kmeans"
    grouped: dict[str, Any] = {}
    if arguments.group is not None:
        grouped = {"granularity": "per_grouped_channel", "group_size": arguments.group}
    if arguments.vector is not None:
        grouped["vector"] = arguments.vector
    return Palette(arguments.palette, mode, channel_axis=arguments.axis, scale=arguments.scale, **grouped)


def _linear(arguments: Namespace, dtype: str, of_palette: bool) -> "Recipe":
    from ...compressing.linear_recipe import Linear

    if arguments.block is not None and (arguments.per_tensor or of_palette):
        raise ValueError(f"--block: expected it without {'--palette' if of_palette else '--per-tensor'}, got both")
    granularity = "per_tensor" if arguments.per_tensor or of_palette else "per_channel"
    sizes: dict[str, Any] = {}
    if arguments.block is not None:
        granularity, sizes = "per_block", {"block": arguments.block}
    mode = "linear" if arguments.zero_point else "linear_symmetric"
    return Linear(dtype, mode, granularity, search=arguments.search, **sizes)


def _flag(name: str) -> str:
    return "the recipe of --config" if name == "recipe" else f"--{name.replace('_', '-')}"


def _is_given(arguments: Namespace, name: str) -> bool:
    return getattr(arguments, name) is not None and getattr(arguments, name) is not False


def _allow(given: set[str], allowed: set[str], kind: str) -> None:
    for name in sorted(given - allowed):
        raise ValueError(f"{_flag(name)}: expected it only with {_BELONGS_TO[name]}, got it with {kind}")


def _sizes(text: str) -> int | tuple[int, ...]:
    numbers = text.split(",")
    if not all(number.isdigit() for number in numbers):
        raise ArgumentTypeError(f"expected N, or N,M,... such as 1,32, got {text!r}")
    return int(text) if len(numbers) == 1 else tuple(map(int, numbers))


def _pair(text: str) -> tuple[int, int]:
    first, colon, second = text.partition(":")
    if not (colon and first.isdigit() and second.isdigit()):
        raise ArgumentTypeError(f"expected N:M, such as 2:4, got {text!r}")
    return int(first), int(second)


def _print_weights(report: "CompressReport") -> None:
    rows = [
        (one.name, one.op.removeprefix("constexpr_"), output.size(one.nbytes), output.size(one.nbytes_after),
         _decibel(one.sqnr), f"{one.relative:.3g}", f"{one.largest:.3g}")
        for one in report.weights
    ]  # fmt: skip
    tables.print_table(_COLUMNS, rows)


def _decibel(value: float) -> str:
    return f"{value:.1f} dB" if math.isfinite(value) else "exact" if value > 0 else "nothing left"


def _reasons(report: "CompressReport", sqnr: float | None) -> str:
    """Return the most frequent reasons to leave weights as they are, without the figures of each weight."""
    if report.kept and sqnr is not None:
        count = output.plural(len(report.kept), "weight")
        return f"expected a recipe that keeps {sqnr:g} dB of one of {count}, got none"
    if not report.skipped:
        return f"{report.source} has none"
    counts = Counter(reason.partition(", got ")[0] for _, reason in report.skipped)
    if len(counts) == 1:
        return report.skipped[0][1]
    return "; ".join(
        f"{count} of {len(report.skipped)}: {reason}" for reason, count in counts.most_common(_MOST_REASONS)
    )


def _summary(report: "CompressReport") -> None:
    worst = min(report.weights, key=lambda one: one.sqnr, default=None)
    message = f"{output.plural(len(report.weights), 'weight')} compressed, {len(report.skipped)} unchanged"
    if worst is not None:
        message += f", least SQNR {_decibel(worst.sqnr)} ({worst.name})"
    if report.outputs_sqnr is not None:
        message += f", {_decibel(report.outputs_sqnr)} of the outputs"
    verb = "to" if report.done else "would go to"
    sizes = f"{output.size(report.nbytes)} -> {output.size(report.nbytes_after)}"
    output.say(f"{message}: {sizes}, {verb} {report.output}")
    output.say_stale(report.stale)
