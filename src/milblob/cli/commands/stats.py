"""milblob stats: statistics of every tensor, and totals."""

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Mapping
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import options
from ..engines import add_executor
from ..selection import describe_filter, open_chosen
from ..several import add_models, run_each
from ..terminal import output, tables
from ..terminal.failures import EXIT_FINDINGS
from ..terminal.figures import histogram_json, print_histogram, short, to_dict, totals_by
from ..terminal.patterns import scopes
from ..terminal.progress import shown
from ..terminal.tables import Column

if TYPE_CHECKING:
    from ...analysis.reopening import FarTensors
    from ...analysis.statistics import Statistics
    from ...formats.selecting import ChosenTensors
    from ...model.lazy import LazyTensor
    from ...program.compression import Compression

_COLUMNS = [
    Column("name", is_name=True),
    Column("dtype", drop=5),
    Column("shape", drop=3),
    Column("min", True),
    Column("max", True),
    Column("mean", True),
    Column("std", True, drop=6),
    Column("absmax", True, drop=1),
    Column("zeros", True, drop=4),
    Column("special", True, drop=8),
    Column("distinct", True, drop=2),
]
# The columns of -v are dropped last: the user asked for them.
_MORE = [
    Column("smallest", True, drop=9),
    Column("subnormal", True, drop=10),
    Column("NaN", True, drop=14),
    Column("+inf", True, drop=13),
    Column("-inf", True, drop=12),
    Column("-0", True, drop=11),
    Column("float16 overflow", True, drop=15),
]
_TOTALS = [
    Column("", is_name=True),
    Column("tensors", True, drop=1),
    Column("elements", True, drop=3),
    Column("min", True),
    Column("max", True),
    Column("mean", True),
    Column("std", True, drop=4),
    Column("zeros", True, drop=2),
    Column("special", True, drop=6),
]
_KEYS = ("file", "name", "dtype", "count", "min", "max", "mean", "std", "absmax", "zeros", "distinct")

EXAMPLES = ("stats Model.mlpackage --sort absmax", "stats Model.mlpackage --would-overflow float16")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add_models(parser)
    options.add_selection(parser)
    options.add_views(parser)
    overflow = "list only tensors with finite values that overflow float16; exit status 1 if there are any"
    parser.add_argument("--would-overflow", metavar="DTYPE", type=_float16, help=overflow)
    parser.add_argument("--histogram", action="store_true", help="also print a histogram of each tensor")
    keys = f"{', '.join(_KEYS)}; default: file, the model's own order; figures with the largest first"
    parser.add_argument("-s", "--sort", metavar="KEY", choices=_KEYS, default="file", help=keys)
    add_executor(parser)
    options.add_reporting(parser, quiet="no totals, no progress", verbose="more columns")


def _float16(text: str) -> str:
    from ...dtypes import DType, as_dtype

    try:
        if as_dtype(text) is DType.FLOAT16:
            return "float16"
    except TypeError:
        pass
    raise ArgumentTypeError(f"expected float16, got {text!r}")


class _Row(NamedTuple):
    name: str
    tensor: "LazyTensor"
    figures: "Statistics"

    @property
    def scheme(self) -> str:
        """Its compression scheme, "" if it is not compressed."""
        from ...model.tensor import Tensor

        if not isinstance(self.tensor, Tensor) or not self.tensor.parts:
            return ""
        return self.tensor.op.removeprefix("constexpr_")

    @property
    def compression(self) -> "Compression | None":
        """The same with its attributes."""
        from ...model.tensor import Tensor

        return self.tensor.compression if isinstance(self.tensor, Tensor) else None

    def dtype(self, is_verbose: bool = False) -> str:
        return output.type_words(str(self.tensor.mil_dtype), self.compression, is_verbose)


def run(arguments: Namespace) -> int:
    """Run the command."""
    return run_each(arguments, run_one)


def run_one(path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    """Run the command for one model; see `several.run_each`."""
    from ...analysis.reopening import FarTensors

    with ExitStack() as stack:
        opened = open_chosen(stack, path, arguments, constants=arguments.constants, stored=arguments.stored)
        chosen = opened.tensors
        source = path if opened.model is None else opened.model
        far = FarTensors.of(
            arguments.executor, source, constants=arguments.constants, stored=arguments.stored,
            max_nbytes=arguments.max_nbytes,
        )  # fmt: skip
        rows = _rows(chosen, far, arguments)
        overflowing = [row for row in rows if row.figures.float16_overflows]
        shown = overflowing if arguments.would_overflow else rows
        shown = _sorted(shown, arguments.sort)
        if not rows and not describe_filter(arguments) and not arguments.quiet:
            output.say(f"{path}: no weights" + ("" if arguments.constants else " (--constants takes every constant)"))
        status = EXIT_FINDINGS if arguments.would_overflow and overflowing else 0
        if arguments.json:
            return status, _document(opened, shown, rows, arguments)
        _print(shown, rows, arguments)
    return status, None


def _rows(chosen: "Mapping[str, LazyTensor]", far: "FarTensors | None", arguments: Namespace) -> list[_Row]:
    from ...analysis.statistics import examined
    from ...progress import ProgressCounter

    rows = []
    with shown(arguments) as progress:
        counter = ProgressCounter(progress, chosen.values())
        with closing(examined(chosen, far, histogram=arguments.histogram)) as found:
            for (name, tensor), figures in zip(chosen.items(), found, strict=True):
                rows.append(_Row(name, tensor, figures))
                counter.add_tensor(name, tensor)
    return rows


def _sorted(rows: list[_Row], key: str) -> list[_Row]:
    if key == "file":
        return rows
    if key in ("name", "dtype"):
        return sorted(rows, key=lambda row: row.name if key == "name" else row.dtype())
    # Rows without the figure come last.
    return sorted(rows, key=lambda row: (getattr(row.figures, key) is None, -(getattr(row.figures, key) or 0)))


def _totals(rows: list[_Row]) -> "dict[str, dict[str, tuple[int, Statistics]]]":
    figures = [row.figures for row in rows]
    return {
        "by_dtype": totals_by([str(row.tensor.mil_dtype) for row in rows], figures),
        "by_scope": totals_by(scopes([row.name for row in rows]), figures),
        "by_scheme": totals_by([row.scheme or "none" for row in rows], figures),
    }


# ---------------------------------------------------------------------------------------------------------------- JSON


def _document(opened: "ChosenTensors", shown: list[_Row], rows: list[_Row], arguments: Namespace) -> dict[str, Any]:
    from ...analysis.statistics import Statistics

    tensors = []
    for row in shown:
        entry = {"name": row.name, "dtype": str(row.tensor.mil_dtype), "shape": list(row.figures.shape or ())}
        entry |= {"compression": row.scheme, **to_dict(row.figures)}
        if arguments.histogram:
            entry["histogram"] = histogram_json(row.figures)
        tensors.append(entry)
    totals: dict[str, Any] = _total_json(len(rows), Statistics.merge(row.figures for row in rows))
    for key, table in _totals(rows).items():
        totals[key] = {name: _total_json(*entry) for name, entry in table.items()}
    return {"path": opened.path, "kind": opened.kind, "tensors": tensors, "totals": totals}


def _total_json(count: int, figures: "Statistics") -> dict[str, Any]:
    document = to_dict(figures)
    del document["distinct"], document["is_distinct_exact"]
    return {"tensors": count, **document}


# --------------------------------------------------------------------------------------------------------------- tables


def _print(shown: list[_Row], rows: list[_Row], arguments: Namespace) -> None:
    if shown:
        columns = _COLUMNS + (_MORE if arguments.verbose or arguments.would_overflow else [])
        cells = [
            [row.name, row.dtype(arguments.verbose), output.shape_text(row.figures.shape), *_cells(row.figures)]
            for row in shown
        ]
        tables.print_table(columns, [line[: len(columns)] for line in cells])
    if arguments.histogram:
        for row in shown:
            if row.figures.histogram:
                print()
                tables.print_text(row.name)
                print_histogram(row.figures)
    if arguments.would_overflow:
        if not arguments.quiet:
            message = f"{output.plural(len(shown), 'tensor')} of {len(rows)} would overflow {arguments.would_overflow}"
            if shown:
                print()
            tables.print_text(message)
    elif not arguments.quiet and rows:
        _print_totals(rows)


def _cells(figures: "Statistics") -> list[str]:
    """The columns of both tables after name, dtype and shape."""
    special = figures.nans + figures.infinities
    distinct = short(figures.distinct) if figures.is_distinct_exact else f"~{figures.distinct}"
    return [
        short(figures.min),
        short(figures.max),
        short(figures.mean),
        short(figures.std),
        short(figures.absmax),
        output.share(figures.zeros, figures.count),
        str(special) if special else "-",
        distinct,
        short(figures.smallest),
        str(figures.subnormals),
        str(figures.nans),
        str(figures.positive_infinities),
        str(figures.negative_infinities),
        str(figures.negative_zeros),
        str(figures.float16_overflows),
    ]


def _print_totals(rows: list[_Row]) -> None:
    from ...analysis.statistics import Statistics

    groups = _totals(rows)
    if len(groups["by_scope"]) == len(rows):
        del groups["by_scope"]
    if set(groups["by_scheme"]) == {"none"}:
        del groups["by_scheme"]

    def merged(entries: list[tuple[int, Statistics]]) -> tuple[int, Statistics]:
        return sum(count for count, _ in entries), Statistics.merge(figures for _, figures in entries)

    cells = [["total", *_total_cells(len(rows), Statistics.merge(row.figures for row in rows))]]
    for title, table in groups.items():
        cells += tables.group_rows(
            title.replace("_", " "), table, lambda entry: entry[1].count, merged, lambda entry: _total_cells(*entry)
        )
    print()
    tables.print_table(_TOTALS, cells)


def _total_cells(count: int, figures: "Statistics") -> list[str]:
    least, most, mean, std, _, zeros, special, *_ = _cells(figures)
    return [f"{count:,}", f"{figures.count:,}", least, most, mean, std, zeros, special]
