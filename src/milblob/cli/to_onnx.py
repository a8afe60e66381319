"""milblob to-onnx: convert a model to ONNX."""

import json
import os
from argparse import ArgumentParser, Namespace

from .. import onnx
from . import options, output

EXAMPLES = ("to-onnx Model.mlpackage model.onnx", "to-onnx Model.mlpackage --coverage")
_EXIT_FINDINGS = 1


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("model", metavar="MODEL", help=".mlpackage, .mlmodelc or .mlmodel with an ML Program")
    parser.add_argument("output", metavar="OUT", nargs="?", help="the new .onnx file")
    parser.add_argument("--function", metavar="NAME", help="which one; default: the model's default function")
    modes = "reference: OUT refers into the model; copy: into a copy beside it; embed: they stand in it"
    parser.add_argument("--weights", choices=("reference", "copy", "embed"), default="reference", help=modes)
    parser.add_argument("--opset", metavar="N", type=int, default=21, help="of ONNX, 18 to 23; default: 21")
    words = "probabilities of a classifier as a dictionary, label -> probability"
    parser.add_argument("--zipmap", action="store_true", help=words)
    words = "only say which operations have no converter; exit status 1 if there are any"
    parser.add_argument("--coverage", action="store_true", help=words)
    options.add_force(parser, "replace files that exist")
    options.add_reporting(
        parser,
        quiet="no message",
        verbose="name the weights that were decoded",
        json="print the result as one JSON object",
    )


def run(arguments: Namespace) -> int:
    """Run the command."""
    if arguments.coverage:
        return _coverage(arguments)
    if arguments.output is None:
        raise ValueError("output: expected the name of an .onnx file, got none (or --coverage)")
    model = onnx.convert(
        arguments.model,
        arguments.output,
        function=arguments.function,
        weights=arguments.weights,
        opset=arguments.opset,
        zipmap=arguments.zipmap,
        force=arguments.force,
    )
    graph, nbytes = model.graph, os.path.getsize(arguments.output)
    if arguments.json:
        result = {
            "path": arguments.output,
            "nbytes": nbytes,
            "opset": arguments.opset,
            "weights": arguments.weights,
            "inputs": [value.name for value in graph.inputs],
            "outputs": [value.name for value in graph.outputs],
            "nodes": len(graph),
            "metadata": dict(model.metadata_props),
        }
        output.print_json(result)
        return 0
    if arguments.verbose:
        for row in json.loads(model.metadata_props.get("milblob.copied", "[]")):
            output.say(f"{row['name']}: decoded, {row['why']}")
    if not arguments.quiet:
        nodes = output.plural(len(graph), "node")
        output.say(f"{nodes}, opset {arguments.opset}, {output.size(nbytes)}, to {arguments.output}")
    return 0


def _coverage(arguments: Namespace) -> int:
    """Say which operations have no converter."""
    lacking = onnx.coverage(arguments.model, function=arguments.function, opset=arguments.opset)
    if arguments.json:
        output.print_json({"path": arguments.model, "unsupported": lacking})
    elif lacking:
        for type, count in lacking.items():
            print(f"{count:>6}  {output.escape(type)}")
    elif not arguments.quiet:
        output.say("every operation has a converter")
    return _EXIT_FINDINGS if lacking else 0
