"""milblob tvm ls: what a Model Library Format archive holds besides parameters."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from .. import options
from ..several import run_each
from ..terminal import output, tables
from ..terminal.tables import LAST, Column

if TYPE_CHECKING:
    from ...tvm import Library


EXAMPLES = ("tvm ls model.tar", "tvm ls model.tar --json")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("models", metavar="ARCHIVE", nargs="+", help=options.ARCHIVE)
    options.add_reporting(parser, quiet="no files", verbose="operator functions, storage ids and every file too")


def run(arguments: Namespace) -> int:
    """Run the command."""
    return run_each(arguments, _list)


def _list(path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    from ...tvm import open as open_library

    with open_library(path, max_nbytes=arguments.max_nbytes) as library:
        if arguments.json:
            return 0, _document(library, path)
        _print(library, path, arguments)
    return 0, None


def _document(library: "Library", path: str) -> dict[str, Any]:
    from ..terminal.tvm_archive import library_document

    files = [
        {"name": file.name, "role": file.role, "module": file.module, "nbytes": file.nbytes, "offset": file.offset}
        for file in library.files
    ]
    return {"path": path, **library_document(library), "files": files}


def _print(library: "Library", path: str, arguments: Namespace) -> None:
    from ..terminal.tvm_archive import SIZE, library_rows, tables_of

    tables.print_pairs([("archive", path), *library_rows(library)])
    found = list(tables_of(library, is_verbose=arguments.verbose))
    if arguments.verbose:
        columns = [Column("file", is_name=True), Column("role", drop=LAST + 1), Column("module", drop=1, is_name=True)]
        files = [[file.name, file.role, file.module or "", output.size(file.nbytes)] for file in library.files]
        found.append(([*columns, SIZE], files))
    elif not arguments.quiet:
        by_role: dict[str, list[int]] = {}
        for file in library.files:
            by_role.setdefault(file.role, []).append(file.nbytes)
        roles = [[role, str(len(sizes)), output.size(sum(sizes))] for role, sizes in by_role.items()]
        found.append(([Column("files for"), Column("count", True), SIZE], roles))
    for heads, rows in found:
        if rows:
            print()
            tables.print_table(heads, rows)
