"""Which commands and options there are."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

_ORDERS = ("file", "name", "size", "dtype", "offset")


class _Parser(argparse.ArgumentParser):
    """Wrong usage is one line, as every other error."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"milblob: {message}; see {self.prog} --help\n")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments; `run` in the result is the command's function.

    Raises:
        SystemExit: --help, --version or wrong usage.
    """
    parser = _Parser(prog="milblob", description="Look into Core ML models and weight files.", allow_abbrev=False)
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    _add_ls(commands)
    _add_show(commands)
    _add_extract(commands)
    _add_check(commands)
    _add_merge_functions(commands)
    return parser.parse_args(argv)


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version

        try:
            words = version("milblob")
        except PackageNotFoundError:
            words = "(not installed)"
        print(f"milblob {words}")
        parser.exit()


def _lazily(name: str) -> Callable[[argparse.Namespace], int]:
    """Import a command's module only when it runs: `milblob --help` needs none of them."""

    def run(arguments: argparse.Namespace) -> int:
        from importlib import import_module

        return int(import_module(f".{name.replace('-', '_')}", __package__).run(arguments))

    return run


def _command(
    commands: Any, name: str, summary: str, volume_help: tuple[str, str], *, selects: bool = True
) -> argparse.ArgumentParser:
    sentence = f"{summary[0].upper()}{summary[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=sentence, allow_abbrev=False)
    parser.set_defaults(run=_lazily(name))
    if selects:
        parser.add_argument(
            "-k",
            "--keep",
            metavar="GLOB",
            action="append",
            default=[],
            help="only tensors whose name matches; may be repeated",
        )
        parser.add_argument("-f", "--function", metavar="NAME", help="only tensors of this function")
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("-q", "--quiet", action="store_true", help=volume_help[0])
    volume.add_argument("-v", "--verbose", action="store_true", help=volume_help[1])
    return parser


def _add_views(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--constants", action="store_true", help="every tensor constant, not only the weights")
    parser.add_argument(
        "--stored", action="store_true", help="the stored parts of compressed weights instead of the weights"
    )


def _add_ls(commands: Any) -> None:
    parser = _command(
        commands,
        "ls",
        "list the tensors of a model or weight file",
        ("no totals", "function, operation, offset and file too"),
    )
    parser.add_argument("model", metavar="MODEL", help=".mlpackage, .mlmodelc, .mlmodel, model.mil or weight file")
    _add_views(parser)
    parser.add_argument(
        "-p", "--pattern", action="store_true", help="fold names that differ in counted numbers into one row"
    )
    parser.add_argument(
        "-s",
        "--sort",
        metavar="KEY",
        choices=_ORDERS,
        default="file",
        help=f"{', '.join(_ORDERS)}; default: file, the model's own order",
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_show(commands: Any) -> None:
    parser = _command(
        commands,
        "show",
        "show a model, or one of its tensors",
        ("no values are read; no user-defined metadata", "more first values; the inputs and outputs of every function"),
        selects=False,
    )
    parser.add_argument("model", metavar="MODEL", help=".mlpackage, .mlmodelc, .mlmodel, model.mil or weight file")
    parser.add_argument("name", metavar="NAME", nargs="?", help="a tensor; default: the model itself")
    parser.add_argument("-f", "--function", metavar="FUNCTION", help="the function whose tensor is meant")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_extract(commands: Any) -> None:
    parser = _command(
        commands,
        "extract",
        "write tensors to .npz, .safetensors or a directory of .npy files",
        ("no message, no progress", "name each tensor that was written"),
    )
    parser.add_argument("model", metavar="MODEL", help=".mlpackage, .mlmodelc, .mlmodel, model.mil or weight file")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="file.npz, file.safetensors or directory/")
    _add_views(parser)
    parser.add_argument("--force", action="store_true", help="replace what is there")
    parser.add_argument("--json", action="store_true", help="say what was written as one JSON object")


def _add_check(commands: Any) -> None:
    parser = _command(
        commands,
        "check",
        "report every problem of models and weight files",
        ("no notes, no summaries", "count the findings by code"),
        selects=False,
    )
    parser.add_argument(
        "models", metavar="MODEL", nargs="+", help=".mlpackage, .mlmodelc, .mlmodel, model.mil or weight file"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_merge_functions(commands: Any) -> None:
    parser = _command(
        commands,
        "merge-functions",
        "make one package with the functions of several, equal weights stored once",
        ("no message", "say where each function comes from"),
        selects=False,
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", help=".mlpackage with an ML Program for iOS 18 or later")
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the new .mlpackage")
    parser.add_argument(
        "--as",
        metavar="[MODEL:]FUNCTION=NAME",
        dest="names",
        action="append",
        default=[],
        help="call a function NAME; MODEL=NAME where it has only one; may be repeated",
    )
    parser.add_argument("--default", metavar="NAME", help="the default function; default: that of the first model")
    parser.add_argument("--force", action="store_true", help="replace a package that exists")
    parser.add_argument("--json", action="store_true", help="say what was made as one JSON object")
