"""A Program, or some of its operations, as MIL text; docs/mil-text.md describes the layout."""

import re
from collections.abc import Callable, Sequence
from functools import partial

from .. import _codec
from ..closeness import unknown
from ..errors import FormatError, UnsupportedError
from .plain import rewrite
from .view import Operation, ProgramView

WEIGHTS = {"all": _codec.WRITE_ALL, "head": _codec.WRITE_CUT, "none": _codec.WRITE_NONE}
"""How much is written of immediates of ten elements or more: all of them, the first eight, or none."""

_MINOR = 3  # what Apple's compiler writes since 2025

Write = Callable[[bytes], object]


def version_of(text: bytes) -> str | None:
    """Return the version that a MIL text begins with, such as "1.0"; None for other bytes."""
    found = re.match(rb"\s*program\s*\(\s*(\d+(?:\.\d+)?)\s*\)", text[:200])
    return found[1].decode() if found else None


def write_program(
    buffer: _codec.Buffer,
    span: tuple[int, int],
    write: Write,
    *,
    functions: Sequence[str] | None = None,
    version: str | None = None,
    weights: str = "all",
    newline: bool = True,
    is_plain: bool = False,
) -> None:
    """Write a Program as MIL text. All of it is checked before the first character is written.

    Args:
        buffer, span: held bytes, and (offset, nbytes) of the serialized Program in them.
        write: called with UTF-8 bytes, a quarter of a megabyte at a time.
        functions: names of those that are written; None for all. They come in the order of their names.
        version: of the language: "1.0" writes scalars as tensors of rank 0, "1.3", the default, by their name.
        weights: a key of `WEIGHTS`. Only "all" can be read again.
        newline: end with one.
        is_plain: protobuf itself wrote these bytes.

    Raises:
        UnsupportedError: something that text cannot hold, see docs/mil-text.md. FormatError: malformed.
        KeyError: no function of that name. ValueError: another version.
    """
    minor = _MINOR if version is None else _minor(version)
    while True:
        flags = _codec.SCAN_KNOWN | (_codec.SCAN_PLAIN if is_plain else 0)
        graph = _codec.graph_program(buffer, *span, flags)
        if graph is not None:
            if version is not None and int(version.partition(".")[0]) != graph.version:
                raise ValueError(f"version: expected {graph.version}.N, as in the Program, got {version}")
            rows = _rows(graph, functions)
            path = partial(_path, buffer, span, is_plain)
            end = b"}\n" if newline else b"}"
            mode = WEIGHTS[weights]
            if _codec.graph_text(graph, *span, write, path, True, rows, [], minor, end, mode, is_plain):
                return
        if is_plain:
            raise FormatError("Program: expected plain form from protobuf, got messages in pieces", file=buffer.name)
        buffer, span = rewrite(buffer, span)
        is_plain = True


def _path(buffer: _codec.Buffer, span: tuple[int, int], is_plain: bool, row: int) -> str:
    """The path of an operation, for a message."""
    return ProgramView(buffer, span, is_plain=is_plain).operation(row).path


def _rows(graph: _codec.Graph, functions: Sequence[str] | None) -> list[int]:
    """The rows of functions by their names, in the order of these."""
    names = {graph.function(row)[0]: row for row in range(graph.counts[0])}
    for name in functions or ():
        if name not in names:
            raise KeyError(unknown("function", name, sorted(names), "the Program"))
    return [names[name] for name in sorted(names) if functions is None or name in functions]


def _minor(version: str) -> int:
    """The number after the point of a version."""
    found = re.fullmatch(r"(\d{1,18})\.(\d{1,18})", version)
    if found is None:
        raise ValueError(f"version: expected one such as 1.3, got {version!r}")
    return int(found[2])


def write_operations(
    view: ProgramView,
    operations: Sequence[Operation],
    write: Write,
    *,
    weights: str = "head",
    version: str | None = None,
) -> None:
    """Write some operations of a view as statements, one after another; blocks of an operation are written whole.

    `weights`, `version`: as for `write_program`.
    Raises: As `write_program`.
    """
    rows = [operation.row for operation in operations]
    buffer, span = view.held()

    def path(row: int) -> str:
        return view.operation(row).path

    mode, minor = WEIGHTS[weights], _MINOR if version is None else _minor(version)
    if not _codec.graph_text(view.graph, *span, write, path, False, [], rows, minor, b"", mode, False):
        message = (
            "MIL text of some operations: expected every message in one piece, got pieces; write the whole Program"
        )
        raise UnsupportedError(message, file=buffer.name)
