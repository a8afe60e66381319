"""milblob merge-functions: merge several packages into one with all their functions."""

import os
from argparse import ArgumentParser, Namespace

from .. import options
from ..calling import call
from ..terminal import output, sharing

EXAMPLES = (
    "merge-functions prefill.mlpackage decode.mlpackage -o LLM.mlpackage",
    "merge-functions prefill.mlpackage decode.mlpackage -o LLM.mlpackage -v",
)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    models = ".mlpackage with an ML Program for iOS 18 or later"
    options.add_merging(parser, models)
    rename = "rename a function; MODEL=NAME where it has only one; may be repeated"
    parser.add_argument("--as", metavar="[MODEL:]FUNCTION=NAME", dest="names", action="append", default=[], help=rename)
    parser.add_argument("--default", metavar="NAME", help="the default function; default: that of the first model")
    options.add_dedupe(parser)
    options.add_dry_run(parser, "report what would be done, write nothing")
    options.add_reporting(
        parser, verbose="print where each function comes from", json="print the result as one JSON object"
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    from ...rewrite import merge_functions

    names = _names(arguments.models, arguments.names)
    sources = list(zip(arguments.models, names, strict=True))
    merged = call(
        merge_functions.merge_functions, arguments, sources, arguments.output, dedupe=arguments.dedupe or True
    )
    if arguments.json:
        output.print_json(merged.to_dict())
        return 0
    if arguments.verbose:
        for function in merged.functions:
            default = " (default)" if function.name == merged.default else ""
            output.say(f"{function.name}{default}: {function.function} of {function.source}")
    if arguments.verbose or arguments.dry_run:
        sharing.print_shared(merged.shared)
    if not arguments.quiet:
        shared = f", {output.size(merged.shared_nbytes)} shared" if merged.shared_nbytes else ""
        count = output.plural(len(merged.functions), "function")
        verb = "to" if merged.done else "would go to"
        more = f"; {sharing.shared_message(merged.shared, arguments.dedupe)}" if arguments.dedupe else ""
        output.say(f"{count}, {output.size(merged.nbytes)} of weights{shared}, {verb} {merged.path}{more}")
    return 0


def _names(models: list[str], given: list[str]) -> list[str | dict[str, str]]:
    """Sort the --as options to the models: [MODEL:]FUNCTION=NAME, or MODEL=NAME for a model of one function.

    Raises: ValueError: one without =, or whose model is none of those given, or several.
    """
    names: list[str | dict[str, str]] = [{} for _ in models]
    for text in given:
        left, equals, name = text.rpartition("=")
        if not equals or not left or not name:
            raise ValueError(f"--as {text}: expected MODEL=NAME or [MODEL:]FUNCTION=NAME")
        whole = _places(models, left)
        model, colon, function = left.rpartition(":")
        if not whole and not colon and len(models) > 1:
            expected = f"MODEL={name}, or MODEL:FUNCTION={name}, with one of the models {', '.join(models)}"
            raise ValueError(f"--as {text}: expected {expected}, got {left}")
        places = whole or (_places(models, model) if colon else [0])
        if not places:
            raise ValueError(f"--as {text}: expected one of the models {', '.join(models)}, got {model}")
        if len(places) > 1:
            raise ValueError(f"--as {text}: expected a model that is given once, got {len(places)}")
        known = names[places[0]]
        if whole and known == {}:
            names[places[0]] = name
        elif not whole and isinstance(known, dict) and function not in known:
            known[function] = name
        else:
            raise ValueError(f"--as {text}: expected one name for each function, got another")
    return names


def _places(models: list[str], path: str) -> list[int]:
    """Find the models that a path names: as given, else by real path."""
    exact = [index for index, model in enumerate(models) if model == path]
    return exact or [i for i, model in enumerate(models) if os.path.realpath(model) == os.path.realpath(path)]
