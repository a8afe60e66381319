"""milblob pack: write arrays to a bare weight file, with a listing of their names."""

import os
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import Any

from ...dtypes import DType, as_dtype
from ...errors import UnsupportedError
from ...formats.read import open_arrays
from ...formats.weights import write_weights
from ...model.identify import identify
from ...model.lazy import LazyTensor
from ...rewrite.destination import require_outside
from ...selection import selector
from .. import options
from ..saving import is_model_name, report
from ..selection import describe_filter, kept
from ..terminal import output
from ..terminal.progress import shown

EXAMPLES = ("pack new.safetensors -o weight.bin", "pack new.safetensors -o weight.bin -k 'head*' --listing weight.mil")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    files = ".npy, .npz, .safetensors, .params, .gguf or .onnx files, directories of .npy files"
    parser.add_argument("sources", metavar="FILE", nargs="+", help=files)
    options.add_output(parser, "-o", "--output", required=True, help="the weight file, such as weight.bin")
    options.add_keep(parser)
    dtypes = "store these as another integer dtype, such as 'w*=uint4'; may be repeated"
    parser.add_argument("--dtype", metavar="NAME=DTYPE", action="append", default=[], help=dtypes)
    skip = "leave out what weight files cannot hold: bool, 64-bit numbers, strings"
    parser.add_argument("--skip-unsupported", action="store_true", help=skip)
    options.add_listing(parser)
    options.add_align(parser)
    options.add_force(parser)
    options.add_reporting(
        parser, verbose="name each tensor that was written", json="print what was written as one JSON object"
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    target = arguments.output
    listing = arguments.listing or os.path.splitext(target)[0] + ".json"
    for source in arguments.sources:
        if is_model_name(source) and isinstance(identify(source), str):  # else it says what it is when it is opened
            raise ValueError(
                f"{source}: expected a file of arrays, got a model; `milblob convert MODEL weight.bin` takes one"
            )
        require_outside(source, target)
        require_outside(source, listing)
    with ExitStack() as stack:
        chosen, skipped = _open(stack, arguments)
        dtypes = _dtypes(chosen, arguments.dtype)
        if arguments.skip_unsupported:
            for name in [name for name, array in chosen.items() if dtypes.get(name, array.mil_dtype).blob_code is None]:
                skipped[name] = str(chosen.pop(name).mil_dtype)
        if not chosen:
            wanted = describe_filter(arguments)
            raise ValueError(f"tensors to pack: expected at least one, got none{' for ' if wanted else ''}{wanted}")
        sources = arguments.sources[0] if len(arguments.sources) == 1 else arguments.sources
        say = report(arguments, sources, target, chosen, listing=listing, skipped=list(skipped))
        with shown(arguments) as progress:
            try:
                write_weights(
                    chosen,
                    target,
                    listing=listing,
                    dtypes=dtypes,
                    align=arguments.align,
                    force=arguments.force,
                    progress=progress,
                )
            except TypeError as error:
                raise TypeError(f"{error} (--skip-unsupported leaves them out)") from None
        for name, dtype in skipped.items() if not arguments.quiet else ():
            output.say(f"left out: {name} {dtype}")
        if skipped and arguments.quiet and not arguments.json:  # nothing that was given is passed over in silence
            output.say(f"{output.plural(len(skipped), 'array')} left out (--skip-unsupported)")
        say()
    return 0


def _open(stack: ExitStack, arguments: Namespace) -> tuple[dict[str, LazyTensor], dict[str, str]]:
    """Open all sources; return the arrays, and the dtypes of those left out, by name.

    Raises:
        ValueError: a name occurs in two of them.
    """
    chosen: dict[str, LazyTensor] = {}
    skipped: dict[str, str] = {}
    files = [stack.enter_context(open_arrays(source, max_nbytes=arguments.max_nbytes)) for source in arguments.sources]
    names = [name for arrays in files for name in arrays]
    wanted = set(kept(names, arguments, " and ".join(arguments.sources)))
    for source, arrays in zip(arguments.sources, files, strict=True):
        for name in filter(wanted.__contains__, arrays):
            if name in chosen or name in skipped:
                raise ValueError(f"names of tensors: expected each once, got {name} again in {source}")
            try:
                chosen[name] = arrays[name]
            except UnsupportedError as error:
                if not arguments.skip_unsupported:
                    raise
                skipped[name] = f"({error.what})"
    return chosen, skipped


def _dtypes(arrays: dict[str, LazyTensor], options: list[str]) -> dict[str, DType]:
    """Read --dtype NAME=DTYPE; NAME may be a pattern. The last one that matches counts.

    Raises:
        ValueError: no such form, or no such tensor. TypeError: no such dtype.
    """
    result: dict[str, Any] = {}
    for option in options:
        glob, equals, text = option.rpartition("=")
        if not equals:
            raise ValueError(f"--dtype: expected NAME=DTYPE, such as w=uint4, got {option}")
        dtype = as_dtype(text)
        found = list(filter(selector(glob), arrays))
        if not found:
            raise ValueError(f"--dtype {option}: expected the name of a tensor, got none that matches {glob}")
        result.update(dict.fromkeys(found, dtype))
    return result
