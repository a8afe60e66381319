"""The commands and their options."""

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import limits, tvm_arguments

_MODEL = ".mlpackage, .mlmodelc, .mlmodel, model.mil or weight file"
_ANY = f"{_MODEL}; .params, .safetensors or .npz file, archive of TVM (.tar, .tar.gz, directory)"
_ORDERS = ("file", "name", "size", "dtype", "offset")
_FIGURES = ("file", "name", "dtype", "count", "minimum", "maximum", "mean", "deviation", "absmax", "zeros", "distinct")


class _Parser(argparse.ArgumentParser):
    """A parser that reports wrong usage in one line, like every other error."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"milblob: {message}; see {self.prog} --help\n")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse arguments; `run` in the result is the command's function.

    Raises:
        SystemExit: --help, --version or wrong usage.
    """
    parser = _Parser(
        prog="milblob",
        description="Inspect and change Core ML models, weight files and TVM's files of parameters.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=_Parser)
    _add_ls(commands)
    _add_show(commands)
    _add_stats(commands)
    _add_hash(commands)
    _add_diff(commands)
    _add_match(commands)
    _add_extract(commands)
    _add_convert(commands)
    _add_pack(commands)
    _add_check(commands)
    _add_refit(commands)
    _add_repack(commands)
    _add_merge_functions(commands)
    tvm_arguments.add_tvm(commands, _command, _add_limit)
    _add_info(commands)
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
    commands: Any,
    name: str,
    summary: str,
    volume_help: tuple[str, str],
    *,
    selects: bool = True,
    runs: str | None = None,
) -> argparse.ArgumentParser:
    sentence = f"{summary[0].upper()}{summary[1:]}."
    parser: argparse.ArgumentParser = commands.add_parser(name, help=summary, description=sentence, allow_abbrev=False)
    parser.set_defaults(run=_lazily(runs or name))
    if selects:
        _add_keep(parser)
        parser.add_argument("-f", "--function", metavar="NAME", help="select tensors of this function")
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("-q", "--quiet", action="store_true", help=volume_help[0])
    volume.add_argument("-v", "--verbose", action="store_true", help=volume_help[1])
    return parser


def _add_keep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-k",
        "--keep",
        metavar="GLOB",
        action="append",
        default=[],
        help="only tensors whose name matches; may be repeated",
    )


def _add_views(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--constants", action="store_true", help="every tensor constant, not only the weights")
    parser.add_argument(
        "--stored", action="store_true", help="the stored parts of compressed weights instead of the weights"
    )


def _add_limit(parser: argparse.ArgumentParser) -> None:
    most = "most bytes of values to make of the files, such as 100G; default: 256 times their size, 1G at least"
    parser.add_argument("--max-nbytes", metavar="SIZE", type=_size, help=most)


def _add_ls(commands: Any) -> None:
    parser = _command(
        commands,
        "ls",
        "list the tensors of a model or weight file",
        ("no totals", "also show function, operation, offset and file"),
    )
    parser.add_argument("model", metavar="MODEL", help=_ANY)
    _add_views(parser)
    parser.add_argument(
        "-p", "--pattern", action="store_true", help="fold names that differ only in numbers into one row"
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
    _add_limit(parser)


def _add_show(commands: Any) -> None:
    parser = _command(
        commands,
        "show",
        "show a model, or one of its tensors",
        ("read no values; omit user-defined metadata", "show more values; the inputs and outputs of every function"),
        selects=False,
    )
    parser.add_argument("model", metavar="MODEL", help=_ANY)
    parser.add_argument("name", metavar="NAME", nargs="?", help="a tensor; default: the model itself")
    parser.add_argument("-f", "--function", metavar="FUNCTION", help="the function that the tensor belongs to")
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_info(commands: Any) -> None:
    summary = "print versions, build, kernels and threads"
    parser: argparse.ArgumentParser = commands.add_parser(
        "info", help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    parser.set_defaults(run=_lazily("info"))
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_stats(commands: Any) -> None:
    parser = _command(
        commands,
        "stats",
        "print statistics of every tensor: count, extremes, mean, spread, special values",
        ("no totals, no progress", "more columns"),
    )
    parser.add_argument("model", metavar="MODEL", help=_ANY)
    _add_views(parser)
    overflow = "list only tensors with finite values that overflow float16; exit status 1 if there are any"
    parser.add_argument("--would-overflow", metavar="DTYPE", choices=("float16",), help=overflow)
    parser.add_argument("--histogram", action="store_true", help="also print a histogram of each tensor")
    keys = f"{', '.join(_FIGURES)}; default: file, the model's own order; figures with the largest first"
    parser.add_argument("-s", "--sort", metavar="KEY", choices=_FIGURES, default="file", help=keys)
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_hash(commands: Any) -> None:
    parser = _command(
        commands,
        "hash",
        "print hashes of the contents: equal for equal models, whichever tool wrote them",
        ("print only the model's hash", "every tensor constant, not only the weights"),
    )
    parser.add_argument("model", metavar="MODEL", help=_ANY)
    parser.add_argument("--dense", action="store_true", help="hash compressed weights by their decoded values")
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_mapping(parser: argparse.ArgumentParser, words: str) -> None:
    parser.add_argument("--map", metavar="OLD=NEW", action="append", default=[], help=words)
    file = "a .json object {old: new}, null leaving one out; or lines OLD=NEW; '#' begins a comment"
    parser.add_argument("--mapping", metavar="FILE", help=file)


def _at_least_0(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text!r}")
    return number


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text!r}")
    return int(text)


def _add_diff(commands: Any) -> None:
    parser = _command(
        commands,
        "diff",
        "compare two models, or a model and a file of arrays, through any compression",
        (
            "print nothing; the exit status has the result",
            "also list equal tensors, all changes, and which tools made the models",
        ),
    )
    what = "a model, weight file or listing; .safetensors, .npz, .npy, .params, directory of .npy, archive of TVM"
    parser.add_argument("a", metavar="A", help=what)
    parser.add_argument("b", metavar="B", help="likewise, compared with A")
    _add_mapping(parser, "the tensor OLD of A is NEW of B; may be repeated")
    tolerance = "elements may differ by X; default: 0"
    parser.add_argument("--atol", metavar="X", type=_at_least_0, default=0.0, help=tolerance)
    relative = "elements may differ by X times the magnitude of A's; default: 0"
    parser.add_argument("--rtol", metavar="X", type=_at_least_0, default=0.0, help=relative)
    parser.add_argument("--names-only", action="store_true", help="compare only the names of tensors")
    parser.add_argument("--top", metavar="N", type=_count, help="list only the N tensors that differ most, worst first")
    parser.add_argument(
        "--stored", action="store_true", help="the stored parts of compressed weights instead of the weights"
    )
    limits.add(parser)
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_match(commands: Any) -> None:
    parser = _command(
        commands,
        "match",
        "find which training tensor became which weight",
        ("no table, no progress", "list every name that was not matched"),
        selects=False,
    )
    parser.add_argument(
        "weights",
        metavar="WEIGHTS",
        help=".safetensors, .npz, .npy or .params file, directory of .npy files, archive of TVM, or a model",
    )
    parser.add_argument("model", metavar="MODEL", help=_ANY)
    _add_keep(parser)
    parser.add_argument("-o", "--output", metavar="FILE", help="write the mapping that refit takes: a .json object")
    parser.add_argument("--force", action="store_true", help="replace FILE")
    similar = "least correlation of similar values, up to 1; default: 0.7"
    parser.add_argument("--threshold", metavar="R", type=float, default=0.7, help=similar)
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_extract(commands: Any) -> None:
    parser = _command(
        commands,
        "extract",
        "write tensors to .npz, .safetensors, .params or a directory of .npy files",
        ("no message, no progress", "name each tensor that was written"),
    )
    parser.add_argument("model", metavar="MODEL", help=_ANY)
    parser.add_argument(
        "-o", "--output", metavar="OUT", required=True, help="file.npz, file.safetensors, file.params or directory/"
    )
    _add_views(parser)
    parser.add_argument("--force", action="store_true", help="replace what is there")
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="say what was written as one JSON object")


def _add_convert(commands: Any) -> None:
    parser = _command(
        commands,
        "convert",
        "convert between models, weight files, .safetensors, .npz, .npy and .params, lossless",
        ("no message, no progress", "name each tensor that was written"),
    )
    parser.add_argument(
        "source",
        metavar="SRC",
        help="a model, weight file or listing; .safetensors, .npz, .npy, .params, directory of .npy, archive of TVM",
    )
    parser.add_argument(
        "target",
        metavar="DST",
        help="file.safetensors, file.npz, file.params, directory/ or weight.bin, with weight.json",
    )
    _add_views(parser)
    _add_weight_file(parser)
    tvm = "version of TVM that wrote, or is to read, a .params file, such as 0.14; default: 0.23 or later"
    parser.add_argument("--tvm", metavar="VERSION", help=tvm)
    parser.add_argument("--force", action="store_true", help="replace what is there")
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="say what was written as one JSON object")


def _add_pack(commands: Any) -> None:
    parser = _command(
        commands,
        "pack",
        "write arrays to a bare weight file, with a listing of their names",
        ("no message, no progress", "name each tensor that was written"),
        selects=False,
    )
    parser.add_argument(
        "sources",
        metavar="FILE",
        nargs="+",
        help=".npy, .npz, .safetensors or .params files, directories of .npy files",
    )
    _add_keep(parser)
    parser.add_argument("-o", "--output", metavar="OUT", required=True, help="the weight file, such as weight.bin")
    _add_weight_file(parser)
    parser.add_argument(
        "--dtype",
        metavar="NAME=DTYPE",
        action="append",
        default=[],
        help="store these as another integer dtype, such as 'w*=uint4'; may be repeated",
    )
    parser.add_argument(
        "--skip-unsupported",
        action="store_true",
        help="leave out what weight files cannot hold: bool, 64-bit numbers, strings",
    )
    parser.add_argument("--force", action="store_true", help="replace what is there")
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="say what was written as one JSON object")


def _add_weight_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--listing",
        metavar="FILE",
        help="listing of names and offsets: .json, or .mil for MIL text; default: named as the weight file",
    )
    align = "begin data at multiples of 64, 4096 or 16384"
    parser.add_argument("--align", metavar="N", type=int, choices=(64, 4096, 16384), default=64, help=align)


def _add_check(commands: Any) -> None:
    parser = _command(
        commands,
        "check",
        "report every problem of models and weight files",
        ("no notes, no summaries", "count the findings by code"),
        selects=False,
    )
    parser.add_argument("models", metavar="MODEL", nargs="+", help=f"{_MODEL}; .params file or archive of TVM")
    parser.add_argument("--values", action="store_true", help="also check values, which reads all weights")
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="one JSON object")


def _add_refit(commands: Any) -> None:
    parser = _command(
        commands,
        "refit",
        "give weights new values, in place, all or nothing",
        ("no message, no progress", "name each weight that is changed"),
        selects=False,
    )
    parser.add_argument("model", metavar="MODEL", help=".mlpackage, .mlmodelc, .mlmodel or weight file; archive of TVM")
    parser.add_argument(
        "weights", metavar="WEIGHTS", help=".safetensors, .npz, .npy or .params file, or a directory of .npy files"
    )
    _add_mapping(parser, "the array OLD of WEIGHTS is the weight NEW of the model; may be repeated")
    parser.add_argument("--cast", action="store_true", help="convert floats to floats and integers to integers")
    parser.add_argument(
        "--overflow",
        metavar="HOW",
        choices=("error", "inf", "clamp"),
        default="error",
        help="what a cast does with too large numbers: error, inf, clamp; default: error",
    )
    parser.add_argument(
        "-k",
        "--keep",
        metavar="GLOB",
        action="append",
        default=[],
        help="only weights of the model whose name matches; may be repeated",
    )
    parser.add_argument("-o", "--output", metavar="OUT", help="write a copy of the model there instead")
    parser.add_argument("--force", action="store_true", help="replace an existing OUT")
    parser.add_argument("--dry-run", action="store_true", help="check everything, write nothing")
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="print the changes as one JSON object")


def _size(text: str) -> int:
    """Parse a number of bytes: 1000000, 64K, 16MiB, 2G."""
    units = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
    number = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = number[-1:] if number[-1:] in units else ""
    try:
        return int(float(number.removesuffix(unit)) * (1 << units[unit]))
    except (ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"size: expected bytes, such as 64M or 2G, got {text!r}") from None


def _split(text: str) -> str | int:
    return text if text == "function" else _size(text)


def _add_repack(commands: Any) -> None:
    parser = _command(
        commands,
        "repack",
        "rewrite a model or weight files: cast, deduplicate, move and lay out weights",
        ("no summary, no progress", "every tensor, not only those that change"),
        selects=False,
    )
    add = parser.add_argument
    models = ".mlpackage, .mlmodelc, .mlmodel or weight file; several weight files become one"
    add("models", metavar="MODEL", nargs="+", help=models)
    add("-o", "--output", metavar="OUT", required=True, help="the result; may be MODEL itself, which is then replaced")
    casts = "store float32, float16 or bfloat16 weights as another of them; may be repeated"
    add("--cast", metavar="[FROM=]TO", action="append", default=[], help=casts)
    too_large = "what a cast does with too large numbers; default: error"
    add("--overflow", choices=("error", "inf", "clamp"), default="error", help=too_large)
    add("--nan", choices=("keep", "error"), default="keep", help="what a cast does with NaNs; default: keep")
    add("--decompress", action="store_true", help="make compressed weights dense")
    add("--dedupe", action="store_true", help="store equal weights once")
    add("--gc", action="store_true", help="drop records that nothing refers to")
    count: dict[str, Any] = {"metavar": "N", "nargs": "?", "type": int, "const": True}
    add("--externalize", **count, help="move values of N (10) or more elements to the weight file")
    add("--inline", **count, help="move values of fewer than N (10) elements into the Program")
    what = "'function': one weight file per function; or the largest size of a file, such as 1G"
    add("--split", metavar="WHAT", type=_split, help=what)
    add("--merge", action="store_true", help="merge everything into one weight file")
    align = "begin data at multiples of 64, 4096 or 16384"
    add("--align", metavar="N", type=int, choices=(64, 4096, 16384), default=64, help=align)
    add("--canonical", action="store_true", help="one form of every file: the same model gives the same bytes")
    globs = "cast, externalize and inline only tensors whose name matches; may be repeated"
    add("-k", "--keep", metavar="GLOB", action="append", default=[], help=globs)
    functions = "keep only this function; may be repeated"
    add("-f", "--function", metavar="NAME", action="append", help=functions)
    add("-n", "--dry-run", action="store_true", help="say what would be done")
    add("--force", action="store_true", help="replace what is there")
    _add_limit(parser)
    add("--json", action="store_true", help="one JSON object")


def _add_merge_functions(commands: Any) -> None:
    parser = _command(
        commands,
        "merge-functions",
        "merge the functions of several packages into one, equal weights stored once",
        ("no message", "print where each function comes from"),
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
        help="rename a function; MODEL=NAME where it has only one; may be repeated",
    )
    parser.add_argument("--default", metavar="NAME", help="the default function; default: that of the first model")
    parser.add_argument("--force", action="store_true", help="replace an existing package")
    _add_limit(parser)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
