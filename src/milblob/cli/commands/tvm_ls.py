"""milblob tvm ls: what a Model Library Format archive holds besides parameters."""

from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .. import options
from ..several import run_each
from ..terminal import output, tables
from ..terminal.tables import LAST, Column

if TYPE_CHECKING:
    from ...tvm import Library

_MODULE, _SIZE = Column("module", is_name=True), Column("size", True)
_MEMORY = [
    _MODULE,
    Column("memory on"),
    Column("workspace", True),
    Column("constants", True, drop=1),
    Column("io", True, drop=2),
]
_PORTS = [_MODULE, Column(""), Column("name", is_name=True), Column("dtype", drop=LAST + 1), _SIZE]
_FUNCTIONS = [_MODULE, Column("function", is_name=True), Column("memory", is_name=True)]
_STORAGE = [_MODULE, Column("storage id", True), Column("reported", True), Column("by the graph", True)]
_PARAMETERS = [_MODULE, Column("parameters", True), _SIZE]
_FILES = [Column("file", is_name=True), Column("role", drop=LAST + 1), Column("module", drop=1, is_name=True), _SIZE]
_ROLES = [Column("files for"), Column("count", True), _SIZE]

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
    from ..terminal.tvm_archive import function_rows, library_rows, memory_rows, port_rows, storage_rows

    modules = list(library.modules.values())
    tables.print_pairs([("archive", path), *library_rows(library)])
    _table(_MEMORY, memory_rows(modules))
    _table(_PORTS, port_rows(modules))
    if arguments.verbose:
        _table(_FUNCTIONS, function_rows(modules))
        _table(_STORAGE, storage_rows(modules))
    parameters = [
        [module.name, str(len(module.params)), output.size(sum(p.stored_nbytes for p in module.params.values()))]
        for module in modules
    ]
    _table(_PARAMETERS, parameters)
    if arguments.quiet:
        return
    if arguments.verbose:
        rows = [[file.name, file.role, file.module or "", output.size(file.nbytes)] for file in library.files]
        _table(_FILES, rows)
        return
    by_role: dict[str, list[int]] = {}
    for file in library.files:
        by_role.setdefault(file.role, []).append(file.nbytes)
    _table(_ROLES, [[role, str(len(sizes)), output.size(sum(sizes))] for role, sizes in by_role.items()])


def _table(columns: Sequence[Column], rows: list[list[str]]) -> None:
    if rows:
        print()
        tables.print_table(columns, rows)
