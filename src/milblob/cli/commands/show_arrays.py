"""milblob show of a file of arrays, and of one array in it."""

from argparse import Namespace
from contextlib import ExitStack
from typing import Any

from ...formats.params import Parameter
from ...formats.read import has_views, open_arrays
from ...model.lazy import LazyTensor
from ...model.rows import Listed
from ..selection import find_array
from ..terminal import output, tables
from ..terminal.listed import array_row
from ..terminal.tvm_archive import library_document, library_rows
from ..terminal.values import show_values


def show(path: str, arguments: Namespace, kind: str) -> tuple[int, dict[str, Any] | None]:
    """Show what `array_kind` calls `kind`. Raises: ValueError: -f, which arrays have no use for."""
    if arguments.function is not None and not has_views(path):
        raise ValueError(f"{path}: expected a model, which -f is about")
    with ExitStack() as stack:
        if arguments.name is None:
            return _show_file(stack, path, arguments, kind)
        name = arguments.name if arguments.function is None else f"{arguments.function}/{arguments.name}"
        return _show_array(find_array(stack, path, name, arguments.max_nbytes), path, arguments)


def _show_file(stack: ExitStack, path: str, arguments: Namespace, kind: str) -> tuple[int, dict[str, Any] | None]:
    arrays = stack.enter_context(open_arrays(path, max_nbytes=arguments.max_nbytes))
    rows = [array_row(name, arrays[name], path) for name in arrays]
    nbytes = sum(row.nbytes or 0 for row in rows)
    document: dict[str, Any] = {"path": path, "kind": kind, "tensors": len(rows), "nbytes": nbytes}
    lines = [("file", f"{path} ({kind})"), ("tensors", str(len(rows))), ("size", output.size(nbytes))]
    if kind == "archive":
        from ...tvm.library import open as open_library

        library = stack.enter_context(open_library(path, max_nbytes=arguments.max_nbytes))
        document["library"] = library_document(library)
        lines[1:1] = library_rows(library)
    if kind == "aimodel":
        from ..terminal.bundle import asset_document, asset_rows

        document.update(asset_document(arrays))
        lines += asset_rows(arrays)
    if arguments.json:
        return 0, document
    tables.print_pairs(lines)
    return 0, None


def _show_array(array: LazyTensor, path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    row = array_row(array.name, array, path)
    document = {key: value for key, value in row._asdict().items() if key in _KEYS}
    more: list[tuple[str, str]] = []
    if hasattr(array, "consumers"):
        from ..terminal.bundle import tensor_document, tensor_rows

        document.update(tensor_document(array))
        more = tensor_rows(array)
    if isinstance(array, Parameter):
        document["tvm_dtype"] = array.dtype_text
    if arguments.quiet and not arguments.json:
        tables.print_pairs(_place_rows(row) + more)
        return 0, None
    return show_values(array, arguments, document, _place_rows(row) + more)


_KEYS = ("name", "dtype", "shape", "nbytes", "file", "offset")


def _place_rows(row: Listed) -> list[tuple[str, str]]:
    rows = [("name", row.name), ("type", f"{row.dtype} {output.shape_text(row.shape)}")]
    if row.nbytes is not None:
        rows.append(("stored", output.plural(row.nbytes, "byte")))
    rows.append(("file", row.file or ""))
    if row.offset is not None:
        rows.append(("offset", f"data at byte {row.offset}"))
    return rows
