"""milblob tvm ls: what a Model Library Format archive holds besides parameters."""

from argparse import ArgumentParser, Namespace
from typing import Any

from ..tvm import Library
from ..tvm import open as open_library
from . import options, output
from .tvm_words import (
    function_rows,
    library_document,
    library_rows,
    memory_rows,
    port_rows,
    storage_rows,
)

EXAMPLES = ("tvm ls model.tar", "tvm ls model.tar --json")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="ARCHIVE", help=options.ARCHIVE)
    options.add_reporting(parser, quiet="no files", verbose="operator functions, storage ids and every file too")


def run(arguments: Namespace) -> int:
    """Run the command."""
    with open_library(arguments.model, max_nbytes=arguments.max_nbytes) as library:
        if arguments.json:
            output.print_json(_document(library, arguments.model))
        else:
            _print(library, arguments)
    return 0


def _document(library: Library, path: str) -> dict[str, Any]:
    files = [
        {"name": file.name, "role": file.role, "module": file.module, "nbytes": file.nbytes, "offset": file.offset}
        for file in library.files
    ]
    return {"path": path, **library_document(library), "files": files}


def _print(library: Library, arguments: Namespace) -> None:
    modules = list(library.modules.values())
    output.print_table(["", ""], [["archive", arguments.model], *library_rows(library)])
    _table(["module", "memory on", "workspace", "constants", "io"], memory_rows(modules), (2, 3, 4))
    _table(["module", "", "name", "dtype", "size"], port_rows(modules), (4,))
    if arguments.verbose:
        _table(["module", "function", "memory"], function_rows(modules))
        _table(["module", "storage id", "reported", "by the graph"], storage_rows(modules), (1, 2, 3))
    parameters = [
        [module.name, str(len(module.params)), output.size(sum(p.stored_nbytes for p in module.params.values()))]
        for module in modules
    ]
    _table(["module", "parameters", "size"], parameters, (1, 2))
    if arguments.quiet:
        return
    if arguments.verbose:
        rows = [[file.name, file.role, file.module or "", output.size(file.nbytes)] for file in library.files]
        _table(["file", "role", "module", "size"], rows, (3,))
        return
    by_role: dict[str, list[int]] = {}
    for file in library.files:
        by_role.setdefault(file.role, []).append(file.nbytes)
    rows = [[role, str(len(sizes)), output.size(sum(sizes))] for role, sizes in by_role.items()]
    _table(["files for", "count", "size"], rows, (1, 2))


def _table(heads: list[str], rows: list[list[str]], right: tuple[int, ...] = ()) -> None:
    if rows:
        print()
        output.print_table(heads, rows, right=right)
