"""milblob convert: tensors of models, weight files and files of arrays to another format, lossless."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from contextlib import ExitStack

from ...dtypes import DType, as_dtype
from ...errors import UnsupportedError
from ...formats import weights
from ...formats.write import save
from ...model.identify import BLOB_SUFFIXES
from ...model.lazy import LazyTensor
from ...rewrite.destination import require_outside
from ...selection import selector
from ...storage import paths
from ...wording import some
from .. import options
from ..saving import refuse_model, report, say_widened, widened, with_hint
from ..selection import describe_filter, open_all
from ..sources import add_sources
from ..terminal import output
from ..terminal.progress import shown

EXAMPLES = ("convert Model.mlpackage -o weights.npz", "convert new.safetensors -o weight.bin -k 'head*'")
_MAX_NAMES = 20


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    what = (
        "a model, weight file or listing; .safetensors, .npz, .npy, .params, .gguf, .onnx, directory of .npy, archive "
        "of TVM, .aimodel; several become one"
    )
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help=what)
    target = "file.safetensors, file.npz, file.params, directory/ or weight.bin, with weight.json"
    options.add_output(parser, "-o", "--output", required=True, help=target)
    options.add_selection(parser)
    options.add_views(parser)
    unpack = "store dtypes below 8 bits as one element to a byte, not packed; of .npz, .safetensors and directories"
    parser.add_argument("--unpack", action="store_true", help=unpack)
    dtypes = "of a weight file: store these as another integer dtype, such as 'w*=uint4'; may be repeated"
    parser.add_argument("--dtype", metavar="NAME=DTYPE", action="append", default=[], help=dtypes)
    skip = "of a weight file: leave out what it cannot hold: bool, 64-bit numbers, strings"
    parser.add_argument("--skip-unsupported", action="store_true", help=skip)
    options.add_listing(parser)
    options.add_align(parser)
    tvm = "version of TVM that wrote, or is to read, a .params file, such as 0.14; default: 0.23 or later"
    parser.add_argument("--tvm", metavar="VERSION", help=tvm)
    options.add_force(parser)
    add_sources(parser, "sources")
    options.add_reporting(
        parser, verbose="name each tensor that was written", json="print what was written as one JSON object"
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    sources, target = arguments.sources, arguments.output
    refuse_model(target)
    to_weights = os.path.splitext(target)[1].lower() in BLOB_SUFFIXES and not paths.is_directory(target)
    _require_use(arguments, to_weights)
    listing = None
    if to_weights:
        listing = arguments.listing or os.path.splitext(target)[0] + ".json"
    for source in sources:
        require_outside(source, target)
        if listing is not None:
            require_outside(source, listing)
    with ExitStack() as stack:
        chosen, skipped = open_all(stack, sources, arguments, skip_unsupported=arguments.skip_unsupported)
        dtypes = _dtypes(chosen, arguments.dtype)
        noted = _unsupported(chosen, dtypes) if to_weights else {}
        if arguments.skip_unsupported:
            for name in noted:
                del chosen[name]
            skipped, noted = skipped | noted, {}
        if not chosen:
            wanted = describe_filter(arguments)
            raise ValueError(f"tensors to convert: expected at least one, got none{' for ' if wanted else ''}{wanted}")
        more = {"listing": listing, "skipped": list(skipped)} if to_weights else {}
        source = sources[0] if len(sources) == 1 else sources
        say, names = report(arguments, source, target, chosen, **more), widened(target, chosen)
        try:
            with shown(arguments) as progress:
                if to_weights:
                    weights.save(
                        chosen, target, listing=listing, align=arguments.align, force=arguments.force,
                        progress=progress, dtypes=dtypes,
                    )  # fmt: skip
                else:
                    save(
                        chosen, target, force=arguments.force, progress=progress, packed=not arguments.unpack,
                        tvm=arguments.tvm,
                    )  # fmt: skip
        except UnsupportedError as error:
            raise with_hint(error, chosen, arguments) from None
        say_widened(arguments, names)
        _say_left(arguments, skipped, noted)
        say()
    return 0


def _require_use(arguments: Namespace, to_weights: bool) -> None:
    """Refuse options that the formats have no use for.

    Raises:
        ValueError: there is one.
    """
    target = arguments.output
    suffixes = {os.path.splitext(path)[1].lower() for path in (*arguments.sources, target)}
    of_weights = {
        "--listing": arguments.listing,
        "--align": arguments.align != 64,
        "--dtype": arguments.dtype,
        "--skip-unsupported": arguments.skip_unsupported,
    }
    for option, is_given in of_weights.items():
        if is_given and not to_weights:
            raise ValueError(f"output {target}: expected a weight file (.bin), which {option} is about")
    if arguments.unpack and (to_weights or os.path.splitext(target)[1].lower() == ".params"):
        raise ValueError(f"output {target}: expected .npz, .safetensors or a directory, which --unpack is about")
    if arguments.tvm is not None and ".params" not in suffixes:
        raise ValueError(f"{', '.join(arguments.sources)}, {target}: expected a .params file, which --tvm is about")


def _unsupported(chosen: Mapping[str, LazyTensor], dtypes: Mapping[str, DType]) -> dict[str, str]:
    """Return the dtype of each tensor whose dtype weight files lack."""
    found = {}
    for name, tensor in chosen.items():
        dtype = dtypes.get(name) or tensor.mil_dtype
        if dtype.blob_code is None:
            found[name] = str(dtype)
    return found


def _say_left(arguments: Namespace, skipped: Mapping[str, str], noted: Mapping[str, str]) -> None:
    """Say which arrays are not written, and which a Core ML model cannot use; with -q how many are not written."""
    if arguments.quiet:
        if skipped and not arguments.json:  # nothing that was given is passed over in silence
            output.say(f"{output.plural(len(skipped), 'array')} left out (--skip-unsupported)")
        return
    for name, dtype in skipped.items():
        output.say(f"left out: {name} {dtype}")
    if noted:
        names = some((f"{name} ({dtype})" for name, dtype in noted.items()), _MAX_NAMES)
        output.say(f"stored as uint8, which the listing notes and no Core ML model can use: {names}")


def _dtypes(arrays: Mapping[str, LazyTensor], given: list[str]) -> dict[str, DType]:
    """Read --dtype NAME=DTYPE; NAME may be a pattern. The last one that matches wins.

    Raises:
        ValueError: no such form, or no such tensor; a dtype that weight files lack. TypeError: no such dtype.
    """
    result: dict[str, DType] = {}
    for option in given:
        glob, equals, text = option.rpartition("=")
        if not equals:
            raise ValueError(f"--dtype: expected NAME=DTYPE, such as w=uint4, got {option}")
        dtype = as_dtype(text)
        if dtype.blob_code is None:
            raise ValueError(f"--dtype {option}: expected a dtype that weight files hold, got {dtype}")
        found = list(filter(selector(glob), arrays))
        if not found:
            raise ValueError(f"--dtype {option}: no tensor matches {glob}")
        result.update(dict.fromkeys(found, dtype))
    return result
