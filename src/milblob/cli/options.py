"""Options that several commands have. Those of one command are in its module."""

import argparse
from typing import Any

from ..arguments import parse_nbytes
from ..storage.table import SUFFIXES, WRITTEN

MODEL = ".mlpackage, .mlmodelc, .mlmodel, model.mil or weight file"
FILES = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]} file"
NEW_FILES = ", ".join(f"file{suffix}" for suffix in WRITTEN)
SIDE = f"a model, weight file or listing; {', '.join(SUFFIXES)}, directory of .npy, archive of TVM"
ANY = f"{MODEL}; {FILES}, archive of TVM (.tar, .tar.gz, directory), .aimodel"
ARCHIVE = "Model Library Format archive: .tar, .tar.gz, or the directory that it was unpacked to"

Parser = argparse.ArgumentParser


def add_output(parser: Any, *names: str, metavar: str = "OUT", **more: Any) -> None:
    """Add an option or argument for a file or directory to write. The tests of writers use every one of them."""
    parser.add_argument(*names, metavar=metavar, **more).is_output = True


def add_merging(parser: Parser, models: str) -> None:
    """Add the models that become one package, and that package; `models` describes them."""
    parser.add_argument("models", metavar="MODEL", nargs="+", help=models)
    add_output(parser, "-o", "--output", required=True, help="the new .mlpackage")
    add_force(parser, "replace an existing package")


def add_selection(parser: Parser) -> None:
    """Add -k and -f, which `selection.kept` applies."""
    add_select(parser)
    parser.add_argument("-f", "--function", metavar="NAME", help="select tensors of this function")


def add_select(parser: Parser, what: str = "only tensors whose name matches") -> None:
    """Add -k; `what` describes what it selects."""
    description = f"{what}; may be repeated"
    parser.add_argument("-k", "--select", metavar="GLOB", action="append", default=[], help=description)


def add_views(parser: Parser) -> None:
    """Add --constants and --stored, which set what is listed as a tensor."""
    parser.add_argument("--constants", action="store_true", help="every tensor constant, not only the weights")
    add_stored(parser)


def add_stored(parser: Parser) -> None:
    """Add --stored."""
    description = "the stored parts of compressed weights instead of the weights"
    parser.add_argument("--stored", action="store_true", help=description)


def add_mapping(parser: Parser, description: str) -> None:
    """Add --map and --mapping, which `names.mapping` reads; `description` describes OLD and NEW."""
    parser.add_argument("--map", metavar="OLD=NEW", action="append", default=[], help=description)
    file = "a .json object {old: new}, null leaving one out; or lines OLD=NEW; '#' begins a comment"
    parser.add_argument("--mapping", metavar="FILE", help=file)


def add_overflow(parser: Parser) -> None:
    """Add --overflow, for commands that cast."""
    description = "what a cast does with numbers that are too large: error, inf, clamp; default: error"
    parser.add_argument(
        "--overflow", metavar="HOW", choices=("error", "inf", "clamp"), default="error", help=description
    )


def add_align(parser: Parser) -> None:
    """Add --align, for commands that lay out a weight file."""
    description = "align data to 64, 4096 or 16384 bytes; default: 64"
    parser.add_argument("--align", metavar="N", type=int, choices=(64, 4096, 16384), default=64, help=description)


def add_dedupe(parser: Parser, description: str | None = None) -> None:
    """Add --dedupe=values and =near with what they are about; with a description, also --dedupe alone."""
    add = parser.add_argument
    if description is not None:
        add("--dedupe", action="store_const", const=True, default=False, help=description)
    values = "weights of equal values share the smallest form that their readers accept"
    add("--dedupe=values", dest="dedupe", action="store_const", const="values", default=False, help=values)
    near = "nearly equal weights share one form, too"
    add("--dedupe=near", dest="dedupe", action="store_const", const="near", default=False, help=near)
    add("--min-sqnr", metavar="DB", type=float, help="with --dedupe=near: least SQNR of replaced values; default: 60")
    base = "with --dedupe=near: the weights that the model was made from; the values nearest to them replace the others"
    add("--base", metavar="WEIGHTS", help=base)


def add_listing(parser: Parser) -> None:
    """Add --listing, for commands that write a bare weight file."""
    description = "listing of names and offsets: .json, or .mil for MIL text; default: named as the weight file"
    add_output(parser, "--listing", metavar="FILE", help=description)


def add_force(parser: Parser, description: str = "replace what is there") -> None:
    """Add --force."""
    parser.add_argument("--force", action="store_true", help=description)


def add_dry_run(parser: Parser, description: str = "check everything, write nothing") -> None:
    """Add -n."""
    parser.add_argument("-n", "--dry-run", action="store_true", help=description)


def add_reporting(parser: Parser, **words: str) -> None:
    """Add what nearly every command has: --max-nbytes, and what `add_messages` adds, with these words."""
    most = "limit for the bytes of values made from the files, such as 100G; default: 256 times their size, at least 1G"
    parser.add_argument("--max-nbytes", metavar="SIZE", type=size, help=most)
    add_messages(parser, **words)


def add_messages(
    parser: Parser, *, verbose: str, json: str = "one JSON object", quiet: str = "no message, no progress"
) -> None:
    """Add --json, and -q or -v, with words on what these do."""
    add_json(parser, json)
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument("-q", "--quiet", action="store_true", help=quiet)
    volume.add_argument("-v", "--verbose", action="store_true", help=verbose)


def add_codes(parser: Parser) -> None:
    """Add --rule, --ignore and --sarif, for commands that report findings."""
    description = "only findings with this code, such as MIL003 or 'MIL0*'; may be repeated"
    parser.add_argument("--rule", metavar="CODE", action="append", help=description)
    parser.add_argument("--ignore", metavar="CODE", action="append", help="no findings with this code; may be repeated")
    parser.add_argument("--sarif", action="store_true", help="a SARIF 2.1.0 log, for code-scanning services")


def add_json(parser: Parser, description: str = "one JSON object") -> None:
    """Add --json."""
    parser.add_argument("--json", action="store_true", help=description)


def size(text: str) -> int:
    """Parse a number of bytes: 1000000, 64K, 16MiB, 2G."""
    try:
        return parse_nbytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def count(text: str) -> int:
    """Parse a whole number, 0 or more."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text!r}")
    return int(text)


def at_least_0(text: str) -> float:
    """Parse a number, 0 or more."""
    try:
        number = float(text)
    except ValueError:
        number = -1
    if not number >= 0:
        raise argparse.ArgumentTypeError(f"expected a number of 0 or more, got {text!r}")
    return number
