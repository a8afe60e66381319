"""milblob convert: between models, weight files and other formats, lossless."""

from argparse import ArgumentParser, Namespace

from ...rewrite.convert import convert
from .. import options
from ..saving import say_converted
from ..selection import check_keep
from ..terminal.progress import shown

EXAMPLES = ("convert Model.mlpackage weights.npz", "convert new.safetensors weight.bin")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    what = (
        "a model, weight file or listing; .safetensors, .npz, .npy, .params, .gguf, .onnx, directory of .npy, archive "
    )
    what += "of TVM"
    parser.add_argument("source", metavar="SRC", help=what)
    target = "file.safetensors, file.npz, file.params, directory/ or weight.bin, with weight.json"
    options.add_output(parser, "target", metavar="DST", help=target)
    options.add_selection(parser)
    options.add_views(parser)
    options.add_listing(parser)
    options.add_align(parser)
    parser.set_defaults(align=None)  # it is refused where it was given and nothing is aligned
    tvm = "version of TVM that wrote, or is to read, a .params file, such as 0.14; default: 0.23 or later"
    parser.add_argument("--tvm", metavar="VERSION", help=tvm)
    options.add_force(parser)
    options.add_reporting(
        parser, verbose="name each tensor that was written", json="print what was written as one JSON object"
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    check_keep(arguments, arguments.source)
    with shown(arguments) as progress:
        done = convert(
            arguments.source, arguments.target, select=arguments.keep or None, function=arguments.function,
            constants=arguments.constants, stored=arguments.stored, listing=arguments.listing,
            align=arguments.align, tvm=arguments.tvm,
            force=arguments.force, progress=progress, max_nbytes=arguments.max_nbytes,
        )  # fmt: skip
    say_converted(arguments, done)
    return 0
