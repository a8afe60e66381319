"""milblob convert: between models, weight files and other formats, lossless."""

import os
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack

from ...errors import UnsupportedError
from ...formats import weights
from ...formats.write import save
from ...model.identify import BLOB_SUFFIXES
from ...rewrite.destination import require_outside
from ...storage import paths
from .. import options
from ..saving import refuse_model, report, say_widened, widened, with_hint
from ..selection import describe_filter, open_chosen
from ..sources import add_sources
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
    tvm = "version of TVM that wrote, or is to read, a .params file, such as 0.14; default: 0.23 or later"
    parser.add_argument("--tvm", metavar="VERSION", help=tvm)
    options.add_force(parser)
    add_sources(parser, "source")
    options.add_reporting(
        parser, verbose="name each tensor that was written", json="print what was written as one JSON object"
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    source, target = arguments.source, arguments.target
    refuse_model(target)
    to_weights = os.path.splitext(target)[1].lower() in BLOB_SUFFIXES and not paths.is_directory(target)
    listing = None
    if to_weights:
        listing = arguments.listing or os.path.splitext(target)[0] + ".json"
        require_outside(source, listing)
    elif arguments.listing or arguments.align != 64:
        raise ValueError(f"output {target}: expected a weight file (.bin), which --listing and --align are about")
    if arguments.tvm is not None and not {".params"} & {os.path.splitext(path)[1].lower() for path in (source, target)}:
        raise ValueError(f"{source}, {target}: expected a .params file, which --tvm is about")
    require_outside(source, target)
    with ExitStack() as stack:
        chosen = open_chosen(
            stack,
            source,
            arguments,
            constants=arguments.constants,
            stored=arguments.stored,
            noted=True,
            tvm=arguments.tvm,
        ).tensors
        if not chosen:
            wanted = describe_filter(arguments)
            raise ValueError(f"tensors to convert: expected at least one, got none{' for ' if wanted else ''}{wanted}")
        more = {"listing": listing} if to_weights else {}
        say, names = report(arguments, source, target, chosen, **more), widened(target, chosen)
        try:
            with shown(arguments) as progress:
                if to_weights:
                    weights.save(
                        chosen, target, listing=listing, align=arguments.align, force=arguments.force, progress=progress
                    )
                else:
                    save(chosen, target, force=arguments.force, progress=progress, packed=True, tvm=arguments.tvm)
        except UnsupportedError as error:
            raise with_hint(error, chosen, arguments) from None
        say_widened(arguments, names)
        say()
    return 0
