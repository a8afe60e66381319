"""milblob text: the Program of a model as MIL text, or the surroundings of one operation."""

import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .. import options
from ..several import add_models, run_each
from ..terminal import output, tables

if TYPE_CHECKING:
    from ...model.model import Model
    from ...program.view import Operation

EXAMPLES = ("text Model.mlpackage", "text Model.mlpackage --op logits --around 2")

_MAX_COLOURED = 20_000  # characters of a line, and lines: rich takes seconds for more

# The colours of a terminal: a type, an operation after its =, a string, a number.
_STYLES = (
    (re.compile(r"\b(?:tensor|list|tuple|dict|state)<[^()=]*>|\b(?:fp\w+|bf16|u?int\d+|bool|string)\b"), "cyan"),
    (re.compile(r"(?<== )\w+(?=\()|\b(?:program|func)\b"), "bold"),
    (re.compile(r"(?<![\w.])-?(?:0x[\da-f.]+p[+-]\d+|\d+|inf|nan|true|false)(?![\w.])"), "magenta"),
    (re.compile(r'"(?:[^"\\]|\\.)*"'), "green"),
)


_WEIGHTS = ("all", "head", "none")  # the keys of write_text.WEIGHTS, without importing it


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add_models(parser, ".mlpackage, .mlmodelc, .mlmodel or model.mil")
    parser.add_argument("-f", "--function", metavar="NAME", help="only this function")
    parser.add_argument("--op", metavar="NAME", help="only the operations around this one, by the name of an output")
    description = "how many steps from it, along inputs and outputs; default: 1"
    parser.add_argument("--around", metavar="N", type=options.count, help=description)
    description = "immediates of ten elements or more: none, head, all; default: all, head with --op or on a terminal"
    parser.add_argument("--weights", metavar="HOW", choices=_WEIGHTS, help=description)
    options.add_reporting(
        parser,
        quiet="check that text can hold the model, print nothing",
        verbose="the same as --weights all",
        json="operations with types, outputs and inputs, as one JSON object",
    )


def run(arguments: Namespace) -> int:
    """Run the command. On a terminal lines are coloured, and weights are cut; elsewhere the bytes of the text go out.

    Raises: ValueError: --around without --op; --weights with --json. As `to_text`.
    """
    if arguments.around is not None and arguments.op is None:
        raise ValueError("--around: expected --op NAME, around which operations are shown")
    if (arguments.json or arguments.json_lines) and arguments.weights is not None:
        raise ValueError(f"--weights: expected none with --json, which prints no values, got {arguments.weights}")
    return run_each(arguments, _write, is_headed=not arguments.quiet)


def _write(path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    from ...model import open as opening
    from ...model.text import write_text

    around = 1 if arguments.around is None else arguments.around
    with opening.open_model(path, max_nbytes=arguments.max_nbytes) as model:
        if arguments.json:
            return 0, _document(model, path, arguments, around)
        on_terminal = tables.terminal_width() is not None
        weights = arguments.weights or ("all" if arguments.verbose else None)
        if weights is None:
            weights = "head" if on_terminal or arguments.op is not None else "all"
        sink = _Lines() if on_terminal else None
        write = _nothing if arguments.quiet else _bytes_writer() if sink is None else sink.write
        write_text(model, write, function=arguments.function, operation=arguments.op, around=around, weights=weights)
        if sink is not None:
            sink.finish()
    return 0, None


def _document(model: "Model", path: str, arguments: Namespace, around: int) -> dict[str, Any]:
    """What --json prints: the operations of each function, or those around one."""
    from ...model.text import neighbourhood

    document: dict[str, Any] = {"path": path, "kind": model.kind}
    if arguments.op is not None:
        found = neighbourhood(model, arguments.op, around, arguments.function)
        return {**document, "operations": [_row(op) for op in found]}
    names = model.functions if arguments.function is None else (arguments.function,)
    functions = [model.functions[name] for name in names]
    rows = [{"name": f.name, "opset": f.opset, "operations": [_row(op) for op in f.walk()]} for f in functions]
    return {**document, "functions": rows}


def _row(op: "Operation") -> dict[str, Any]:
    inputs = {key: [binding.name for binding in bindings] for key, bindings in op.inputs.items()}
    outputs = [{"name": name, "type": str(declared)} for name, declared in op.outputs]
    return {"type": op.type, "outputs": outputs, "inputs": inputs, "path": op.path}


def _nothing(_: bytes) -> None:
    """Take what is only checked."""


def _bytes_writer() -> Callable[[bytes], object]:
    """Return a function that writes bytes of UTF-8 to stdout, independent of the encoding of stdout."""
    sys.stdout.flush()
    buffer = getattr(sys.stdout, "buffer", None)
    if buffer is not None:
        return buffer.write  # type: ignore[no-any-return]
    return lambda data: sys.stdout.write(data.decode())


class _Lines:
    """Prints text line by line: escaped, for names come from files, and with colours if rich is installed."""

    def __init__(self) -> None:
        self._rest = b""
        self._count = 0
        self._console, self._text = _rich()

    def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._print(line.decode())

    def finish(self) -> None:
        """Print what is left without an end of line."""
        if self._rest:
            self._print(self._rest.decode())

    def _print(self, line: str) -> None:
        line = output.escape(line)
        self._count += 1
        if self._console is None or self._count > _MAX_COLOURED or len(line) > _MAX_COLOURED:
            print(line)
            return
        text = self._text(line)
        for pattern, style in _STYLES:
            text.highlight_regex(pattern, style)
        self._console.print(text, soft_wrap=True)


def _rich() -> tuple[Any, Any]:
    """Return a console of rich and its class of texts; None without rich, or where a terminal has no colours."""
    if os.environ.get("TERM") == "dumb":
        return None, None
    try:
        from rich.console import Console
        from rich.text import Text
    except ImportError:
        return None, None
    return Console(highlight=False, emoji=False, markup=False), Text
