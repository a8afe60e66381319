"""milblob hash: hashes of the contents of every tensor and of the model."""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import Any

from .. import options
from ..engines import add_executor
from ..selection import describe_filter, open_chosen
from ..several import add_models, run_each
from ..terminal import output
from ..terminal.progress import shown

EXAMPLES = ("hash Model.mlpackage -q", "hash Model.mlpackage -k 'head*'")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    add_models(parser)
    options.add_selection(parser)
    parser.add_argument("--dense", action="store_true", help="hash compressed weights by their decoded values")
    add_executor(parser)
    options.add_reporting(
        parser, quiet="print only the model's hash, no progress", verbose="every tensor constant, not only the weights"
    )


def run(arguments: Namespace) -> int:
    """Run the command. With -k or -f it prints no hash of the model, because it does not read all tensors."""
    return run_each(arguments, run_one, is_headed=not arguments.quiet)  # the line has the path


def run_one(path: str, arguments: Namespace) -> tuple[int, dict[str, Any] | None]:
    """Run the command for one model; see `several.run_each`."""
    from ...analysis.hash import content_hash, hashes_of, tensor_hashes
    from ...analysis.reopening import FarTensors
    from ...formats.read import array_kind, has_views

    filtered = bool(describe_filter(arguments))
    with ExitStack() as stack:
        has_constants = array_kind(path) is None or has_views(path)
        opened = open_chosen(stack, path, arguments, constants=arguments.verbose and has_constants)
        chosen = opened.tensors
        with shown(arguments) as progress:
            if filtered:
                constants = arguments.verbose and has_constants
                source = path if opened.model is None else opened.model
                far = FarTensors.of(arguments.executor, source, constants=constants, max_nbytes=arguments.max_nbytes)
                whole, found = None, hashes_of(chosen, far, dense=arguments.dense, progress=progress)
            else:
                is_bundle = opened.model is None and arguments.verbose and has_constants
                by_path = is_bundle or (opened.model is None and arguments.executor is not None)
                hashed = content_hash(
                    path if by_path else chosen if opened.model is None else opened.model, dense=arguments.dense,
                    executor=arguments.executor, progress=progress, max_nbytes=arguments.max_nbytes,
                )  # fmt: skip
                whole, every = hashed.model, hashed.tensors
                rest = {name: tensor for name, tensor in chosen.items() if is_bundle and name not in every}
                every |= dict(zip(rest, tensor_hashes(rest.values()), strict=True))  # no part of the model's hash
                found = {name: every[name] for name in chosen if name in every}
        if arguments.json:
            document: dict[str, Any] = {
                "path": opened.path,
                "kind": opened.kind,
                "dense": arguments.dense,
                "model": whole,
            }
            return 0, {**document, "tensors": found}
        if not arguments.quiet or filtered:
            for name, digest in found.items():
                print(f"{digest}  {output.escape(name)}")
        if whole is not None:
            print(f"{whole}  {output.escape(path)}")
    return 0, None
