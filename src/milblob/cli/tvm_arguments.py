"""The options of `milblob tvm` and its commands."""

import argparse
from collections.abc import Callable
from typing import Any

_ARCHIVE = "Model Library Format archive: .tar, .tar.gz, or the directory that it was unpacked to"


_Limit = Callable[[argparse.ArgumentParser], None]


def add_tvm(commands: Any, command: Callable[..., argparse.ArgumentParser], add_limit: _Limit) -> None:
    """Add `tvm`, whose commands are made by `command` and have the option that `add_limit` adds, as all others."""
    summary = "archives in Model Library Format, which TVM wrote until 0.18"
    parser = commands.add_parser(
        "tvm", help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    inner = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=type(parser))
    _add_ls(inner, command, add_limit)
    _add_check(inner, command, add_limit)
    _add_params(inner, command, add_limit)


def _with_examples(parser: argparse.ArgumentParser, *examples: str) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "examples:\n" + "\n".join(f"  milblob tvm {example}" for example in examples)


def _add_ls(commands: Any, command: Callable[..., argparse.ArgumentParser], add_limit: _Limit) -> None:
    parser = command(
        commands,
        "ls",
        "list modules, memory, parameters and files of an archive",
        ("no files", "operator functions, storage ids and every file too"),
        selects=False,
        runs="tvm_ls",
    )
    parser.add_argument("model", metavar="ARCHIVE", help=_ARCHIVE)
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_limit(parser)
    _with_examples(parser, "ls model.tar", "ls model.tar.gz --json")


def _add_check(commands: Any, command: Callable[..., argparse.ArgumentParser], add_limit: _Limit) -> None:
    parser = command(
        commands,
        "check",
        "report every problem of archives and .params files",
        ("no notes, no summaries", "count the findings by code"),
        selects=False,
    )
    parser.set_defaults(values=False)
    parser.add_argument("models", metavar="FILE", nargs="+", help=f"{_ARCHIVE}; or a .params file")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    add_limit(parser)
    _with_examples(parser, "check model.tar", "check *.tar model.params --json")


def _add_params(commands: Any, command: Callable[..., argparse.ArgumentParser], add_limit: _Limit) -> None:
    parser = command(
        commands,
        "params",
        "write the parameters of an archive to a file, or give them new values",
        ("no message, no progress", "name each parameter"),
        selects=False,
        runs="tvm_params",
    )
    parser.add_argument("model", metavar="ARCHIVE", help=_ARCHIVE)
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="file.params, file.npz, file.safetensors or directory/; with --with the new archive, of the kind that "
        "ARCHIVE is; default: ARCHIVE itself",
    )
    new = "new values: .npz, .safetensors, .npy or .params file, or another archive; names, shapes and dtypes must fit"
    parser.add_argument("--with", dest="new", metavar="NEW", help=new)
    module = "only this module, whose parameters then have their own names, without MODULE/"
    parser.add_argument("-m", "--module", metavar="MODULE", help=module)
    parser.add_argument(
        "-k",
        "--keep",
        metavar="GLOB",
        action="append",
        default=[],
        help="only parameters whose name matches; may be repeated",
    )
    parser.add_argument("--cast", action="store_true", help="convert floats to floats and integers to integers")
    parser.add_argument("--force", action="store_true", help="replace what is at OUT")
    parser.add_argument("-n", "--dry-run", action="store_true", help="check everything, write nothing")
    parser.add_argument("--json", action="store_true", help="say what was done as one JSON object")
    add_limit(parser)
    _with_examples(parser, "params model.tar -o weights.npz", "params model.tar --with weights.npz -o retrained.tar")
