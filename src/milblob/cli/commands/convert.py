"""milblob convert: tensors of models, weight files and files of arrays to another format, lossless."""

from argparse import ArgumentParser, Namespace
from typing import TYPE_CHECKING, Any

from ...storage.table import UNPACKED
from ...wording import some
from .. import options
from ..calling import call
from ..selection import say_unmatched
from ..several import add_finding, found_in
from ..sources import add_sources, local_sources
from ..terminal import output

if TYPE_CHECKING:
    from ...rewrite.convert import ConvertReport

_MAX_NAMES = 20  # in one message
EXAMPLES = ("convert Model.mlpackage -o weights.npz", "convert new.safetensors -o weight.bin -k 'head*'")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    what = f"{options.SIDE}, .aimodel; several become one"
    parser.add_argument("sources", metavar="SOURCE", nargs="*", help=what)
    target = f"{options.NEW_FILES}, directory/ or weight.bin, with weight.json"
    options.add_output(parser, "-o", "--output", required=True, help=target)
    options.add_selection(parser)
    options.add_views(parser)
    unpack = f"one element to a byte, not packed; of {', '.join(UNPACKED)} and directories"
    parser.add_argument("--unpack", action="store_true", help=f"store dtypes below 8 bits as {unpack}")
    dtypes = "of a weight file: store these as another integer dtype, such as 'w*=uint4'; may be repeated"
    parser.add_argument("--dtype", metavar="NAME=DTYPE", action="append", default=[], help=dtypes)
    skip = "of a weight file: leave out what it cannot hold: bool, 64-bit numbers, strings"
    parser.add_argument("--skip-unsupported", action="store_true", help=skip)
    options.add_listing(parser)
    options.add_align(parser)
    tvm = "version of TVM that wrote, or is to read, a .params file, such as 0.14; default: 0.23 or later"
    parser.add_argument("--tvm", metavar="VERSION", help=tvm)
    options.add_force(parser)
    add_finding(parser)
    add_sources(parser, "sources")
    options.add_reporting(
        parser, verbose="name each tensor that was written", json="print what was written as one JSON object"
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    arguments.sources = [found.path for found in found_in(arguments, arguments.sources)]
    if not arguments.sources:
        raise ValueError(f"expected SOURCE or --files-from FILE, got neither; {arguments.usage}")
    with local_sources(arguments):
        report = _convert(arguments.sources, arguments)
        say_unmatched(arguments, report.unmatched, " and ".join(arguments.sources))
        _say_left(arguments, report)
        say_written(arguments, report)
    return 0


def run_one(path: str, arguments: Namespace) -> tuple[int, dict[str, Any]]:
    """Convert one model, and print nothing; see `several.run_each`."""
    return 0, _convert([path], arguments).to_dict()


def _convert(sources: list[str], arguments: Namespace) -> "ConvertReport":
    from ...rewrite.convert import convert

    return call(
        convert, arguments, sources[0] if len(sources) == 1 else sources, arguments.output,
        dtypes=_dtypes(arguments.dtype), align=None if arguments.align == 64 else arguments.align,
    )  # fmt: skip


def _dtypes(given: list[str]) -> dict[str, str]:
    """Read --dtype NAME=DTYPE; of equal NAMEs the last one is taken, in its place. Raises: ValueError: another form."""
    result: dict[str, str] = {}
    for option in given:
        glob, equals, dtype = option.rpartition("=")
        if not equals:
            raise ValueError(f"--dtype: expected NAME=DTYPE, such as w=uint4, got {option}")
        result.pop(glob, None)
        result[glob] = dtype
    return result


def _say_left(arguments: Namespace, report: "ConvertReport") -> None:
    """List the arrays that are not written, and those that a Core ML model cannot use; with -q only their number."""
    if arguments.quiet:
        if report.skipped and not arguments.json:  # nothing that was given is passed over in silence
            output.say(f"{output.plural(len(report.skipped), 'array')} left out (--skip-unsupported)")
        return
    for name, dtype in report.skipped.items():
        output.say(f"left out: {name} {dtype}")
    if report.noted:
        dtypes = {tensor.name: tensor.dtype for tensor in report.tensors}
        names = some((f"{name} ({dtypes[name]})" for name in report.noted), _MAX_NAMES)
        output.say(f"stored as uint8, which the listing notes and no Core ML model can use: {names}")


def say_written(arguments: Namespace, report: "ConvertReport") -> None:
    """Report what was written, as -v, -q and --json ask."""
    if report.widened and not arguments.quiet:
        output.say(f"as int8 or uint8, one element to a byte: {some(report.widened, _MAX_NAMES)}")
    if arguments.verbose:
        for tensor in report.tensors:
            output.say(f"{tensor.name} {tensor.dtype} {output.shape_text(tensor.shape)}")
    if arguments.json:
        output.print_json(report.to_dict())
    elif not arguments.quiet:
        count = output.plural(len(report.tensors), "tensor")
        output.say(f"{count}, {output.size(report.nbytes)}, to {report.destination}")
