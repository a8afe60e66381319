"""milblob hash: hashes of the contents of every tensor and of the model."""

from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from typing import Any

from ..analysis.hash import content_hash, tensor_hashes
from ..formats.read import array_kind
from . import options, output
from .selection import describe_filter, open_chosen

EXAMPLES = ("hash Model.mlpackage -q", "hash Model.mlpackage -k 'head*'")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="MODEL", help=options.ANY)
    options.add_selection(parser)
    parser.add_argument("--dense", action="store_true", help="hash compressed weights by their decoded values")
    options.add_reporting(
        parser, quiet="print only the model's hash", verbose="every tensor constant, not only the weights"
    )


def run(arguments: Namespace) -> int:
    """Run the command. With -k or -f there is no hash of the model, because not everything that it covers is read."""
    filtered = bool(describe_filter(arguments))
    with ExitStack() as stack:
        is_model = array_kind(arguments.model) is None
        opened = open_chosen(stack, arguments.model, arguments, constants=arguments.verbose and is_model)
        chosen = opened.tensors
        if not chosen and filtered and not arguments.quiet:
            output.say(f"no tensor matches {describe_filter(arguments)}")
        if filtered:
            whole, hashes = None, dict(zip(chosen, tensor_hashes(chosen.values(), dense=arguments.dense), strict=True))
        else:
            whole, every = content_hash(chosen if opened.model is None else opened.model, dense=arguments.dense)
            hashes = {name: every[name] for name in chosen if name in every}
        if arguments.json:
            document: dict[str, Any] = {
                "path": opened.path,
                "kind": opened.kind,
                "dense": arguments.dense,
                "model": whole,
            }
            output.print_json({**document, "tensors": hashes})
            return 0
        if not arguments.quiet or filtered:
            for name, digest in hashes.items():
                print(f"{digest}  {output.escape(name)}")
        if whole is not None:
            print(f"{whole}  {output.escape(arguments.model)}")
    return 0
