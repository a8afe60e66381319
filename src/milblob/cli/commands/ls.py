"""milblob ls: list the tensors of a model."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from ...errors import MilblobError
from .. import options
from ..selection import describe_filter, open_chosen
from ..several import add_models, run_each
from ..terminal import output, tables
from ..terminal.patterns import fold, scopes
from ..terminal.tables import LAST, Column

if TYPE_CHECKING:
    from ...formats.selecting import ChosenTensors
    from ...model.lazy import LazyTensor
    from ...model.model import Model
    from ...model.rows import Listed

_ORDERS: "dict[str, Callable[[Listed], Any]]" = {
    "file": lambda row: 0,  # the order is kept
    "name": lambda row: row.name,
    "size": lambda row: -(row.nbytes or 0),
    "dtype": lambda row: row.dtype,
    "offset": lambda row: (row.offset is None, row.file or "", row.offset or 0),  # those without one come last
}
_NAME, _COUNT, _DTYPE, _SHAPE = (
    Column("name", is_name=True),
    Column("count", True),
    Column("dtype", drop=LAST + 2),
    Column("shape", drop=LAST + 1),
)
_FIGURES = (Column("size", True), Column("bits", True, drop=2), Column("share", True, drop=1))
_READER = Column("read by", drop=LAST, is_name=True)
_PLACE = (
    Column("function", drop=4),
    Column("op", drop=LAST + 3, is_name=True),
    Column("offset", True, drop=LAST + 4),
    Column("file", drop=3, is_name=True),
)
_TOTALS = (
    Column("", is_name=True),
    Column("tensors", True),
    Column("elements", True, drop=3),
    Column("size", True),
    Column("bits", True, drop=2),
    Column("share", True, drop=1),
)

EXAMPLES = ("ls Model.mlpackage --pattern", "ls Model.mlpackage -k '*bias' --sort size")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add_models(parser)
    options.add_selection(parser)
    options.add_views(parser)
    fold = "fold names that differ only in numbers into one row"
    parser.add_argument("-p", "--pattern", action="store_true", help=fold)
    keys = f"{', '.join(_ORDERS)}; default: file, the model's own order"
    parser.add_argument("-s", "--sort", metavar="KEY", choices=_ORDERS, default="file", help=keys)
    options.add_reporting(parser, quiet="no totals", verbose="also show function, operation, offset and file")


def run(arguments: Namespace) -> int:
    """Run the command."""
    return run_each(arguments, _list)


def _list(path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    from ..terminal.listed import array_row

    with ExitStack() as stack:
        opened = open_chosen(stack, path, arguments, constants=arguments.constants, stored=arguments.stored)
        chosen = opened.tensors
        if opened.model is None:
            rows = [array_row(name, array, opened.path) for name, array in chosen.items()]
            unique = _stored_once(chosen.values(), rows)
        else:
            found = opened.model.rows(None if len(chosen) == len(opened.model) else chosen)
            rows, unique = found.listed, found.unique_nbytes
        rows = sorted(rows, key=_ORDERS[arguments.sort])
        if arguments.json:
            return 0, _document(opened, rows, unique, arguments)
        if arguments.pattern:
            _print_patterns(rows, opened.model, arguments.sort)
        elif rows:
            _print_rows(rows, opened.model, arguments.verbose)
        if not arguments.quiet:
            _print_totals(rows, unique, opened.kind == "blob")
            if opened.model is not None and not (arguments.constants or arguments.stored or describe_filter(arguments)):
                _print_unlisted(opened.model)
    return 0, None


def _readers(model: "Model | None", rows: "list[Listed]", *, is_named: bool = True) -> list[str]:
    """Return the readers of each tensor; nothing for arrays, and "?" where the Program cannot be walked."""
    if model is None or model.kind == "blob":
        return []
    from ..terminal import consumers

    found = []
    for row in rows:
        try:
            found.append(consumers.first_of(model.tensors.consumers(row.name), is_named=is_named))
        except MilblobError:
            found.append("?")
    return found


def _stored_once(arrays: "Iterable[LazyTensor]", rows: "list[Listed]") -> int:
    """Return the total bytes of arrays; bytes that several arrays share count once, if the format records sharing."""
    pieces: dict[Any, int] = {}
    for number, (array, row) in enumerate(zip(arrays, rows, strict=True)):
        own = getattr(array, "stored_pieces", None)
        pieces.update({number: row.nbytes or 0} if own is None else own())
    return sum(pieces.values())


def _totals(rows: "list[Listed]", unique: int) -> dict[str, Any]:
    by_dtype: dict[str, dict[str, int]] = {}
    by_scope: dict[str, dict[str, int]] = {}
    for row, scope in zip(rows, scopes([row.name for row in rows]), strict=True):
        for table, key in ((by_dtype, row.dtype), (by_scope, scope)):
            entry = table.setdefault(key, {"tensors": 0, "elements": 0, "nbytes": 0})
            entry["tensors"] += 1
            entry["elements"] += row.element_count or 0
            entry["nbytes"] += row.nbytes or 0
    return {
        "tensors": len(rows),
        "elements": sum(row.element_count or 0 for row in rows),
        "nbytes": sum(row.nbytes or 0 for row in rows),
        "nbytes_unique": unique,
        "by_dtype": by_dtype,
        "by_scope": by_scope,
    }


def _document(opened: "ChosenTensors", rows: "list[Listed]", unique: int, arguments: Namespace) -> dict[str, Any]:
    from ..terminal.listed import row_document

    document: dict[str, Any] = {
        "path": opened.path,
        "kind": opened.kind,
        "tensors": [row_document(row) for row in rows],
        "totals": _totals(rows, unique),
    }
    if arguments.pattern:
        document["patterns"] = [
            {
                "pattern": name,
                "count": len(members),
                "dtype": members[0].dtype,
                "shape": members[0].shape,
                "nbytes": sum(row.nbytes or 0 for row in members),
            }
            for name, members in _folded(rows, arguments.sort)
        ]
    return document


def _folded(rows: "list[Listed]", order: str) -> "list[tuple[str, list[Listed]]]":
    """Fold sorted rows. A group takes the place of its first member; ordered by size, by the sum of its members."""
    from ...model.rows import scheme_of

    groups = fold([row.name for row in rows], [(row.dtype, row.shape, scheme_of(row)) for row in rows])
    folded = [(pattern, [rows[i] for i in members]) for pattern, members in groups]
    if order == "size":
        folded.sort(key=lambda pair: -sum(row.nbytes or 0 for row in pair[1]))
    return folded


def _print_rows(rows: "list[Listed]", model: "Model | None", verbose: bool) -> None:
    total = sum(row.nbytes or 0 for row in rows)
    columns = [_NAME, _DTYPE, _SHAPE, *_FIGURES]
    cells = [
        [
            row.name,
            output.type_words(row.dtype, row.compression),
            output.shape_text(row.shape),
            output.size(row.nbytes),
            row.nbits,
            output.share(row.nbytes, total),
        ]
        for row in rows
    ]
    readers = _readers(model, rows)
    if any(readers):
        columns.append(_READER)
        if not _fit([(line[0], *line[1:4], reader) for line, reader in zip(cells, readers, strict=True)]):
            readers = _readers(model, rows, is_named=False)
        for reader, line in zip(readers, cells, strict=True):
            line.append(reader)
    if verbose:
        columns[3] = columns[3]._replace(drop=LAST)  # the size makes room for what -v is for
        columns += _PLACE
        for row, line in zip(rows, cells, strict=True):
            line[1] = row.dtype  # the column of operations shows the compression
            op = output.chain_words(row.compression) or row.op
            line += [row.function, op, "" if row.offset is None else str(row.offset), row.file or ""]
    tables.print_table(columns, cells)


def _fit(rows: list[tuple[str, ...]]) -> bool:
    """Whether rows of cells have room in the terminal as they are."""
    width = tables.terminal_width()
    return width is None or sum(max(map(len, cells)) + 2 for cells in zip(*rows, strict=True)) - 2 <= width


def _print_patterns(rows: "list[Listed]", model: "Model | None", order: str) -> None:
    total = sum(row.nbytes or 0 for row in rows)
    cells = []
    for pattern, members in _folded(rows, order):
        nbytes = sum(row.nbytes or 0 for row in members)
        count = f"{len(members)} x" if len(members) > 1 else ""
        first = members[0]
        readers = set(_readers(model, members, is_named=False))
        cells.append(
            [
                pattern,
                count,
                output.type_words(first.dtype, first.compression),
                output.shape_text(first.shape),
                output.size(nbytes),
                first.nbits,
                output.share(nbytes, total),
                "several" if len(readers) > 1 else next(iter(readers), ""),
            ]
        )
    columns = [_NAME, _COUNT, _DTYPE, _SHAPE, *_FIGURES, _READER]
    if not any(line[-1] for line in cells):
        columns, cells = columns[:-1], [line[:-1] for line in cells]
    if cells:
        tables.print_table(columns, cells)


def _print_totals(rows: "list[Listed]", unique: int, is_blob: bool) -> None:
    totals = _totals(rows, unique)
    groups = [("by dtype", totals["by_dtype"])]
    if not is_blob and len(totals["by_scope"]) < len(rows):
        groups.append(("by scope", totals["by_scope"]))
    cells = [["total", *_total_cells(totals, totals["nbytes"])]]
    for title, table in groups:
        cells += tables.group_rows(
            title, table, itemgetter("nbytes"), _summed, lambda entry: _total_cells(entry, totals["nbytes"])
        )
    if rows:
        print()
    tables.print_table(_TOTALS, cells)
    if unique < totals["nbytes"]:
        print()
        tables.print_text(f"Some are stored once for several tensors: the files hold {output.size(unique)}.")


def _summed(entries: list[dict[str, int]]) -> dict[str, int]:
    return {key: sum(entry[key] for entry in entries) for key in entries[0]}


def _print_unlisted(model: "Model") -> None:
    count = model.tensors.unlisted_count
    if count:
        message = f"{output.plural(count, 'constant')} not listed: fewer than ten elements, bool or text"
        print()
        tables.print_text(f"{message} (--constants lists them).")


def _total_cells(entry: Any, total: int) -> list[str]:
    nbits = f"{8 * entry['nbytes'] / entry['elements']:.4g}" if entry["elements"] else "-"
    return [
        f"{entry['tensors']:,}",
        f"{entry['elements']:,}",
        output.size(entry["nbytes"]),
        nbits,
        output.share(entry["nbytes"], total),
    ]
