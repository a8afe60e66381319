"""milblob convert: between models, weight files and other formats, lossless."""

import os
from argparse import Namespace
from collections.abc import Mapping
from contextlib import ExitStack

from ..errors import UnsupportedError
from ..formats import weights
from ..formats.read import is_array_file, open_arrays
from ..formats.write import save
from ..model import open as opening
from ..model.lazy import LazyTensor
from ..model.package import BLOB_SUFFIXES
from ..selection import selector
from ..storage import paths
from .progress import shown
from .saving import check_target, report, with_hint
from .selection import describe_filter, select


def run(arguments: Namespace) -> int:
    """Run the command."""
    source, target = arguments.source, arguments.target
    to_weights = os.path.splitext(target)[1].lower() in BLOB_SUFFIXES and not paths.is_directory(target)
    listing = None
    if to_weights:
        listing = arguments.listing or os.path.splitext(target)[0] + ".json"
        check_target(source, listing)
    elif arguments.listing or arguments.align != 64:
        raise ValueError(f"output {target}: expected a weight file (.bin), which --listing and --align are about")
    check_target(source, target)
    with ExitStack() as stack:
        chosen = _open(stack, source, arguments)
        if not chosen:
            wanted = describe_filter(arguments)
            raise ValueError(f"tensors to convert: expected at least one, got none{' for ' if wanted else ''}{wanted}")
        try:
            with shown(arguments) as progress:
                if to_weights:
                    weights.save(
                        chosen, target, listing=listing, align=arguments.align, force=arguments.force, progress=progress
                    )
                else:
                    save(chosen, target, force=arguments.force, progress=progress, packed=True)
        except UnsupportedError as error:
            raise with_hint(error, chosen, arguments) from None
        report(arguments, source, target, chosen, **({"listing": listing} if to_weights else {}))
    return 0


def _open(stack: ExitStack, source: str, arguments: Namespace) -> Mapping[str, LazyTensor]:
    """Open the source and choose from it."""
    if not is_array_file(source):
        model = stack.enter_context(
            opening.open(
                source, constants=arguments.constants, stored=arguments.stored, max_nbytes=arguments.max_nbytes
            )
        )
        return weights.with_notes(select(model, arguments), model)
    if arguments.function is not None or arguments.constants or arguments.stored:
        raise ValueError(f"{source}: expected a model, which -f, --constants and --stored are about")
    arrays = stack.enter_context(open_arrays(source, max_nbytes=arguments.max_nbytes))
    return {name: arrays[name] for name in filter(selector(arguments.keep or None), arrays)}
